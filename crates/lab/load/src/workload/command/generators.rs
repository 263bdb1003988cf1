// SPDX-License-Identifier: Apache-2.0
//! Load generators whose output is read without a plan's `work`: how much each did, and whether a part of it failed.
//! `workloads/generators.toml` describes them.

use super::super::described::{Figure, Printed as Output, Scope};
use super::figure::regex;
use super::words;
use serde::Deserialize;
use std::sync::LazyLock;
use std::time::Duration;
use vtax_core::Base;

/// A load generator.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generator {
    /// The name of its program.
    pub program: String,
    /// The versions whose recorded outputs the tests read.
    pub versions: String,
    /// The unit of its work.
    #[serde(default = "request")]
    pub unit: String,
    /// One unit, in words to follow "CPU time to".
    #[serde(default = "serve")]
    pub phrase: String,
    /// Whether its numbers are on standard error.
    #[serde(default)]
    pub is_on_stderr: bool,
    /// The options that say how long it runs.
    #[serde(default)]
    time: Vec<String>,
    /// The seconds without one; 0 where the work ends it.
    #[serde(default)]
    default_s: u64,
    /// The figures that give the `amount` of work, in the unit.
    figures: Vec<Figure>,
    /// What failed, by the first that is found.
    #[serde(default)]
    failed: Vec<Failure>,
}

/// A sign of failure in the output.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Failure {
    /// A regular expression whose groups say what failed.
    regex: String,
    /// A text that is no failure.
    but: Option<String>,
    /// The text behind which it is searched.
    behind: Option<String>,
    /// The text that ends that part.
    before: Option<String>,
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

/// Every generator, of `workloads/generators.toml`.
pub static GENERATORS: LazyLock<Vec<Generator>> = LazyLock::new(|| {
    let file = include_str!("../../../workloads/generators.toml");
    // A test reads the file.
    toml::from_str(file).map_or_else(|_| Vec::new(), |Table { generators }| generators)
});

#[derive(Deserialize)]
struct Table {
    generators: Vec<Generator>,
}

fn request() -> String {
    "request".to_owned()
}

fn serve() -> String {
    "serve 1 request".to_owned()
}

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
    let (words, generator) = (parts.get(place..)?, named(parts.get(place)?)?);
    let given = words.iter().enumerate().find_map(|(place, word)| {
        let mut options = generator.time.iter();
        let value = options.find_map(|option| word.strip_prefix(option.as_str()))?;
        match value.trim_start_matches('=') {
            "" => words.get(place + 1).and_then(|value| time(value)),
            value => time(value),
        }
    });
    Some(given.unwrap_or(Duration::from_secs(generator.default_s))).filter(|time| !time.is_zero())
}

/// A time of a generator's option: a number alone is seconds.
fn time(text: &str) -> Option<Duration> {
    match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => vtax_args::time::parse(text).ok(),
    }
}

/// The work that a generator printed; `None` where it printed none that is known.
pub fn read(generator: &'static Generator, output: &str) -> Option<Printed> {
    let (mut scope, mut printed) = (
        Scope::default(),
        Output::from_driver(&generator.program, output),
    );
    for figure in &generator.figures {
        printed.figure(figure, &mut scope).ok()?;
    }
    let amount = scope.number("amount").ok();
    let failed = generator.failed.iter().find_map(|one| one.found(output));
    Some(Printed {
        amount: amount.filter(|amount| amount.is_finite() && *amount > 0.0)?,
        base: generator.unit.parse().ok()?,
        phrase: &generator.phrase,
        failed: failed.map(|what| {
            format!(
                "{} reports failures, `{}`: a part of its work was not done",
                generator.program,
                what.trim()
            )
        }),
    })
}

impl Failure {
    /// The groups of the first match that is a failure.
    fn found(&self, output: &str) -> Option<String> {
        let mut part = output;
        if let Some(behind) = &self.behind {
            part = part.split_once(behind.as_str())?.1;
        }
        if let Some(before) = &self.before {
            part = part.split_once(before.as_str())?.0;
        }
        let regex = regex(&self.regex).ok()?;
        let texts = regex.captures_iter(part).map(|found| {
            let groups = found.iter().skip(1).flatten();
            groups
                .map(|group| group.as_str())
                .collect::<Vec<_>>()
                .join(": ")
        });
        let is_failure = |text: &String| !self.but.as_ref().is_some_and(|but| text.contains(but));
        texts.into_iter().find(is_failure)
    }
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
        assert_eq!(GENERATORS.len(), 13);
        for generator in &*GENERATORS {
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
            for generator in &*GENERATORS {
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
