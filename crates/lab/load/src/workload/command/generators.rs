// SPDX-License-Identifier: Apache-2.0
//! Load generators whose output is read without a plan's `work`: how much each did, and whether a part of it failed.
//!
//! A generator that runs for a time does more work where the target is faster. Its CPU time for a run says nothing about
//! the target's cost, so the work is read from what it prints.

use super::figure::regex;
use super::words;
use serde_json::Value;
use std::time::Duration;
use vtax_core::Base;

/// A load generator.
#[derive(Debug)]
pub struct Generator {
    /// The name of its program.
    pub program: &'static str,
    /// The versions whose recorded outputs the tests read.
    pub versions: &'static str,
    /// The unit of its work.
    pub unit: &'static str,
    /// One unit, in words to follow "CPU time to".
    pub phrase: &'static str,
    /// Whether its numbers are on standard error.
    pub is_on_stderr: bool,
    /// The options that say how long it runs, and the time without one; zero where the work ends it.
    time: (&'static [&'static str], Duration),
    /// Reads the work, in the unit.
    amount: fn(&str) -> Option<f64>,
    /// Finds what failed.
    failed: fn(&str) -> Option<String>,
}

/// The work of a run, as its generator printed it.
#[derive(Debug, PartialEq)]
pub struct Printed {
    /// How much, in the unit.
    pub amount: f64,
    /// The unit.
    pub base: Base,
    /// One unit, in words.
    pub phrase: &'static str,
    /// What failed, as a reason to suspect the run.
    pub failed: Option<String>,
}

const REQUEST: Generator = Generator {
    program: "",
    versions: "",
    unit: "request",
    phrase: "serve 1 request",
    is_on_stderr: false,
    time: (&[], Duration::ZERO),
    amount: |_| None,
    failed: |_| None,
};

/// wrk, and wrk2, which prints the same.
const WRK: Generator = Generator {
    time: (&["-d", "--duration"], Duration::from_secs(10)),
    amount: |text| sum(text, r"(?m)^ +([0-9]+) requests in "),
    failed: |text| {
        let status = line(text, r"(?m)^ +(Non-2xx or 3xx responses: [0-9]+)");
        status.or_else(|| line(text, r"(?m)^ +(Socket errors: .*)$"))
    },
    ..REQUEST
};

/// Every generator.
pub const GENERATORS: &[Generator] = &[
    Generator {
        program: "wrk",
        versions: "4.1.0",
        ..WRK
    },
    Generator {
        program: "wrk2",
        versions: "4.0.0",
        ..WRK
    },
    Generator {
        program: "oha",
        versions: "1.16.0",
        time: (&["-z"], Duration::ZERO),
        amount: |text| match json(text) {
            Some(document) => {
                let codes = document.get("statusCodeDistribution")?.as_object()?;
                total(codes.values().map(Value::as_f64))
            }
            None => sum(text, r"(?m)^ *\[[0-9]{3}\]\s+([0-9]+) responses"),
        },
        failed: statuses,
        ..REQUEST
    },
    Generator {
        program: "ab",
        versions: "2.3",
        time: (&["-t"], Duration::ZERO),
        amount: |text| sum(text, r"(?m)^Complete requests: +([0-9]+)"),
        failed: |text| {
            let status = line(text, r"(?m)^(Non-2xx responses: +[0-9]+)");
            status.or_else(|| {
                // Answers of another length than the first are no failures of a service.
                let parts = line(text, r"(?m)^ +\((Connect: .*)\)$")?;
                let is_failure = |name| sum(&parts, &format!("{name}: ([0-9]+)")) > Some(0.0);
                ["Connect", "Receive", "Exceptions"]
                    .into_iter()
                    .any(is_failure)
                    .then_some(parts)
            })
        },
        ..REQUEST
    },
    Generator {
        program: "hey",
        versions: "0.1.4",
        time: (&["-z"], Duration::ZERO),
        amount: |text| sum(text, r"(?m)^ *\[[0-9]{3}\]\s+([0-9]+) responses"),
        failed: statuses,
        ..REQUEST
    },
    Generator {
        program: "vegeta",
        versions: "12.8.4",
        time: (&["-duration"], Duration::ZERO),
        amount: |text| match json(text) {
            Some(document) => document.get("requests")?.as_f64(),
            None => sum(
                text,
                r"(?m)^Requests +\[total, rate, throughput\] +([0-9]+),",
            ),
        },
        failed: |text| match json(text) {
            Some(document) => {
                let success = document.get("success")?.as_f64()?;
                (success < 1.0).then(|| format!("success: {success}"))
            }
            None => {
                let success = line(text, r"(?m)^(Success +\[ratio\] +.*)$")?;
                (!success.ends_with(" 100.00%")).then_some(success)
            }
        },
        ..REQUEST
    },
    Generator {
        program: "k6",
        versions: "0.46.0",
        time: (&["-d", "--duration"], Duration::ZERO),
        amount: |text| sum(text, r"(?m)^ *http_reqs\.*: +([0-9]+) "),
        failed: |text| {
            let failed = line(text, r"(?m)^ *(?:. )?(http_req_failed\.*: +.*)$")?;
            (!failed.contains(": 0.00%")).then_some(failed)
        },
        ..REQUEST
    },
    Generator {
        program: "redis-benchmark",
        versions: "7.0.15",
        amount: |text| sum(text, r"(?m)^ +([0-9]+) requests completed in "),
        ..REQUEST
    },
    Generator {
        program: "memtier_benchmark",
        versions: "2f74d61",
        time: (&["--test-time"], Duration::ZERO),
        amount: memtier,
        ..REQUEST
    },
    Generator {
        program: "sysbench",
        versions: "1.0.20",
        time: (&["--time"], Duration::from_secs(10)),
        unit: "event",
        phrase: "do 1 event of sysbench",
        amount: |text| sum(text, r"(?m)^ +total number of events: +([0-9]+)"),
        ..REQUEST
    },
    Generator {
        program: "fio",
        versions: "3.33",
        time: (&["--runtime"], Duration::ZERO),
        unit: "access",
        phrase: "do 1 access of fio",
        amount: |text| match json(text) {
            Some(document) => {
                let jobs = document.get("jobs")?.as_array()?;
                let kinds = ["read", "write", "trim"];
                let of = |job: &Value, kind| job.get(kind)?.get("total_ios")?.as_f64();
                total(jobs.iter().flat_map(|job| kinds.map(|kind| of(job, kind))))
            }
            None => {
                let kinds = [0, 1, 2].map(|skipped| {
                    let before = "[0-9]+,".repeat(skipped);
                    sum(
                        text,
                        &format!("(?m)^ +issued rwts: total={before}([0-9]+)[, ]"),
                    )
                });
                total(kinds.into_iter())
            }
        },
        ..REQUEST
    },
    Generator {
        program: "iperf3",
        versions: "3.12",
        time: (&["-t", "--time"], Duration::from_secs(10)),
        unit: "GB",
        phrase: "transfer 1 GB",
        amount: |text| Some(iperf3(text)? / 1e9),
        ..REQUEST
    },
    Generator {
        program: "stress-ng",
        versions: "0.15.06",
        time: (&["-t", "--timeout"], Duration::ZERO),
        unit: "op",
        phrase: "do 1 bogo operation of stress-ng",
        is_on_stderr: true,
        amount: |text| {
            let rows =
                regex(r"(?m)^stress-ng: metrc: \[[0-9]+\] [a-z][a-z0-9-]* +([0-9]+) ").ok()?;
            let mut rows = rows.captures_iter(text);
            let row = rows.next()?;
            // The operations of two stressors differ.
            if rows.next().is_some() {
                return None;
            }
            row.get(1)?.as_str().parse().ok()
        },
        ..REQUEST
    },
];

/// The words of a command, and those of the script of a shell in it.
fn parts(load: &str) -> Vec<String> {
    let all = words::split(load).unwrap_or_default();
    let parts = all
        .iter()
        .flat_map(|word| word.split(|c: char| c.is_whitespace() || ";|&()'\"`".contains(c)));
    parts.map(str::to_owned).collect()
}

/// The generator that a word names.
fn named(word: &str) -> Option<&'static Generator> {
    let name = word.rsplit('/').next().unwrap_or(word);
    let mut all = GENERATORS.iter();
    all.find(|generator| generator.program == name)
}

/// The generator that a command starts: itself, below programs that start others, or in a script of a shell.
pub fn started(load: &str) -> Option<&'static Generator> {
    parts(load).iter().find_map(|word| named(word))
}

/// How long the generator of a command runs, where its options or its default say so.
pub fn runs_for(load: &str) -> Option<Duration> {
    let parts = parts(load);
    let place = parts.iter().position(|word| named(word).is_some())?;
    let (words, (options, default)) = (parts.get(place..)?, named(parts.get(place)?)?.time);
    let given = words.iter().enumerate().find_map(|(place, word)| {
        let option = options.iter().find(|option| word.starts_with(**option))?;
        match word.strip_prefix(*option)?.trim_start_matches('=') {
            "" => words.get(place + 1).and_then(|value| time(value)),
            value => time(value),
        }
    });
    Some(given.unwrap_or(default)).filter(|time| !time.is_zero())
}

/// A time of a generator's option: a number alone is seconds.
fn time(text: &str) -> Option<Duration> {
    match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => vtax_args::time::parse(text).ok(),
    }
}

/// The work that a generator printed; `None` where it printed none that is known.
pub fn read(generator: &Generator, output: &str) -> Option<Printed> {
    let amount = (generator.amount)(output).filter(|amount| amount.is_finite() && *amount > 0.0)?;
    let failed = (generator.failed)(output);
    Some(Printed {
        amount,
        base: generator.unit.parse().ok()?,
        phrase: generator.phrase,
        failed: failed.map(|what| {
            format!(
                "{} reports failures, `{}`: a part of its work was not done",
                generator.program,
                what.trim()
            )
        }),
    })
}

/// The sum of the first group of each match, `None` without a match.
fn sum(text: &str, pattern: &str) -> Option<f64> {
    let regex = regex(pattern).ok()?;
    total(
        regex
            .captures_iter(text)
            .map(|found| found.get(1)?.as_str().parse().ok()),
    )
}

/// The sum of numbers, `None` without one or where one is missing.
fn total(numbers: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let all: Vec<f64> = numbers.collect::<Option<_>>()?;
    (!all.is_empty()).then(|| all.iter().sum())
}

/// The first group of the first match.
fn line(text: &str, pattern: &str) -> Option<String> {
    let found = regex(pattern)
        .ok()?
        .captures(text)?
        .get(1)?
        .as_str()
        .to_owned();
    Some(found)
}

/// The output, or what follows its first brace, as JSON.
fn json(text: &str) -> Option<Value> {
    let from = text.find('{')?;
    serde_json::from_str(text.get(from..)?).ok()
}

/// Answers of a status of 400 or more, and errors, of oha and hey.
fn statuses(text: &str) -> Option<String> {
    if let Some(document) = json(text) {
        let part = |name: &str| Some(document.get(name)?.as_object()?.clone());
        let errors = part("errorDistribution").unwrap_or_default();
        let codes = part("statusCodeDistribution").unwrap_or_default();
        let bad = codes.into_iter().filter(|(code, _)| code.as_str() >= "400");
        // oha ends the requests that are under way at its deadline.
        let errors = errors
            .into_iter()
            .filter(|(what, _)| !what.contains("deadline"));
        return bad
            .chain(errors)
            .next()
            .map(|(what, times)| format!("{what}: {times}"));
    }
    let status = line(text, r"(?m)^ *(\[[45][0-9]{2}\]\s+[0-9]+ responses)");
    status.or_else(|| {
        let (_, errors) = text.split_once("Error distribution:")?;
        let mut lines = errors
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with('['));
        lines
            .find(|line| !line.contains("deadline"))
            .map(str::to_owned)
    })
}

/// The requests of memtier_benchmark: the product of its settings, or the rate times its time.
fn memtier(text: &str) -> Option<f64> {
    let number = |what: &str| sum(text, &format!(r"(?m)^([0-9]+) +{what}"));
    let each = number("Requests per client");
    match each {
        Some(each) => Some(each * number("Threads")? * number("Connections per thread")?),
        None => Some(number("Seconds")? * sum(text, r"(?m)^Totals +([0-9.]+) ")?),
    }
}

/// The bytes that receivers of iperf3 got. Its units in text are powers of 1024.
fn iperf3(text: &str) -> Option<f64> {
    if let Some(document) = json(text) {
        let of = |name: &str| document.pointer(&format!("/end/{name}/bytes"))?.as_f64();
        let forward = of("sum_received").or_else(|| of("sum"))?;
        return Some(forward + of("sum_received_bidir_reverse").unwrap_or_default());
    }
    let pattern = r"(?m)^\[([ 0-9A-Z]+)\].* sec +([0-9.]+) ([KMGT]?)Bytes .* receiver$";
    let regex = regex(pattern).ok()?;
    let rows = regex.captures_iter(text).filter_map(|found| {
        let scale = match found.get(3)?.as_str() {
            "" => 1.0,
            "K" => 1024.0,
            "M" => 1_048_576.0,
            "G" => 1_073_741_824.0,
            _ => 1_099_511_627_776.0,
        };
        let is_sum = found.get(1)?.as_str() == "SUM";
        Some((is_sum, found.get(2)?.as_str().parse::<f64>().ok()? * scale))
    });
    let (sums, streams): (Vec<_>, Vec<_>) = rows.partition(|(is_sum, _)| *is_sum);
    let counted = if sums.is_empty() { streams } else { sums };
    total(counted.into_iter().map(|(_, bytes)| Some(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded outputs: a file's name, the command, the work, and whether a part failed.
    const RECORDED: &[(&str, &str, f64, bool)] = &[
        (
            "wrk-4.1.0",
            "wrk -t1 -c4 -d2s http://{target}/",
            4116.0,
            false,
        ),
        (
            "wrk-4.1.0-latency",
            "wrk -t1 --latency http://{target}/",
            3845.0,
            false,
        ),
        ("wrk-4.1.0-404", "wrk http://{target}/none", 3771.0, true),
        ("ab-2.3", "ab -n 400 -c 4 http://{target}/", 400.0, false),
        (
            "ab-2.3-404",
            "/usr/bin/ab -n 40 http://{target}/none",
            40.0,
            true,
        ),
        ("hey-0.1.4", "hey -z 2s http://{target}/", 3391.0, false),
        (
            "hey-0.1.4-404",
            "hey -n 40 http://{target}/none",
            40.0,
            true,
        ),
        (
            "redis-benchmark-7.0.15",
            "redis-benchmark -t set,get -n 20000",
            40_000.0,
            false,
        ),
        ("sysbench-1.0.20-cpu", "sysbench cpu run", 91_380.0, false),
        (
            "sysbench-1.0.20-memory",
            "sysbench memory run",
            14_471_152.0,
            false,
        ),
        (
            "sysbench-1.0.20-threads",
            "timeout 9 sysbench threads run",
            4039.0,
            false,
        ),
        (
            "sysbench-1.0.20-fileio",
            "sh -c 'cd /tmp; sysbench fileio run'",
            1_621_235.0,
            false,
        ),
        ("fio-3.33", "fio --name=a --rw=randrw", 61_003.0, false),
        ("fio-3.33-jobs", "fio --name=a --numjobs=2", 56_913.0, false),
        (
            "fio-3.33-json",
            "fio --name=a --output-format=json",
            58_549.0,
            false,
        ),
        (
            "iperf3-3.12",
            "iperf3 -c {target}",
            5.34 * 1.073_741_824,
            false,
        ),
        (
            "iperf3-3.12-parallel",
            "iperf3 -c {target} -P 2",
            6.39 * 1.073_741_824,
            false,
        ),
        (
            "iperf3-3.12-reverse",
            "iperf3 -c {target} -R",
            4.85 * 1.073_741_824,
            false,
        ),
        (
            "iperf3-3.12-json",
            "iperf3 -c {target} -J",
            5.969_018_88,
            false,
        ),
        (
            "iperf3-3.12-udp",
            "iperf3 -c {target} -u",
            11.9 * 0.001_048_576,
            false,
        ),
        (
            "iperf3-3.12-udp-json",
            "iperf3 -c {target} -u -J",
            0.012_517_376,
            false,
        ),
        ("oha-1.16.0", "oha -z 2s http://{target}/", 5371.0, false),
        (
            "oha-1.16.0-json",
            "oha --output-format json http://{target}/",
            5607.0,
            false,
        ),
        (
            "oha-1.16.0-404",
            "oha -n 20 http://{target}/none",
            20.0,
            true,
        ),
        ("k6-0.46.0", "k6 run k.js", 2897.0, false),
        ("k6-0.46.0-404", "k6 run k.js", 10.0, true),
        (
            "vegeta-12.8.4",
            "sh -c 'vegeta attack | vegeta report'",
            100.0,
            false,
        ),
        (
            "vegeta-12.8.4-json",
            "vegeta report -type=json",
            100.0,
            false,
        ),
        ("vegeta-12.8.4-404", "vegeta report", 20.0, true),
        ("wrk2-4.0.0", "wrk2 -R100 http://{target}/", 201.0, false),
        (
            "memtier_benchmark-2f74d61",
            "memtier_benchmark -n 2000",
            8000.0,
            false,
        ),
        (
            "memtier_benchmark-2f74d61-time",
            "memtier_benchmark --test-time=2",
            11_377.06,
            false,
        ),
        (
            "stress-ng-0.15.06",
            "stress-ng --cpu 1 --metrics-brief",
            3550.0,
            false,
        ),
    ];

    fn recorded(name: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/generators");
        std::fs::read_to_string(format!("{folder}/{name}.txt")).unwrap()
    }

    #[test]
    fn the_work_of_each_generator_is_read_from_what_it_printed() {
        for (name, load, amount, fails) in RECORDED {
            let generator = started(load).unwrap_or_else(|| panic!("{load}"));
            let printed = read(generator, &recorded(name)).unwrap_or_else(|| panic!("{name}"));
            assert!(
                (printed.amount / amount - 1.0).abs() < 1e-9,
                "{name}: {printed:?}"
            );
            assert_eq!(printed.failed.is_some(), *fails, "{name}: {printed:?}");
        }
        for generator in GENERATORS {
            let name = format!("{}-{}", generator.program, generator.versions);
            let has_recording = RECORDED
                .iter()
                .any(|(recorded, ..)| recorded.starts_with(&name));
            assert!(has_recording, "no recording of {name}");
        }
    }

    #[test]
    fn an_output_without_a_total_and_other_commands_have_no_known_work() {
        let quiet = started("redis-benchmark -q").unwrap();
        assert_eq!(read(quiet, &recorded("redis-benchmark-7.0.15-quiet")), None);
        // The operations of two stressors have no sum.
        let two = started("stress-ng --cpu 1 --vm 1").unwrap();
        assert_eq!(read(two, &recorded("stress-ng-0.15.06-metrics")), None);
        for text in [
            "",
            "{",
            "{}",
            "requests in",
            "  99999999999999999999999999 requests in 2s",
        ] {
            for generator in GENERATORS {
                let printed = read(generator, text);
                assert!(
                    printed.is_none_or(|printed| printed.amount.is_finite()),
                    "{text}"
                );
            }
        }
        assert!(started("sha256sum /usr/bin/wrkx").is_none());
        assert!(started("").is_none());
    }

    #[test]
    fn the_time_of_a_generator_is_that_of_its_options_or_its_default() {
        for (load, seconds) in [
            ("wrk -t1 -c4 -d2s http://{target}/", Some(2.0)),
            ("/usr/bin/wrk http://{target}/", Some(10.0)),
            ("sysbench cpu run", Some(10.0)),
            ("sysbench cpu --time=2 run", Some(2.0)),
            ("sysbench cpu --time=0 --events=9 run", None),
            ("sh -c 'sleep 1; hey -z 500ms http://{target}/'", Some(0.5)),
            ("iperf3 -c {target} -t 3", Some(3.0)),
            ("fio --name=a --runtime=1m", Some(60.0)),
            ("stress-ng --cpu 1 -t", None),
            ("ab -n 400 http://{target}/", None),
            ("sha256sum -d 5 /usr/bin/perl", None),
            // wrk refuses it.
            ("wrk -d99999999999999999999h x", Some(10.0)),
        ] {
            let found = runs_for(load).map(|time| time.as_secs_f64());
            assert_eq!(found, seconds, "{load}");
        }
    }
}
