// SPDX-License-Identifier: Apache-2.0
//! `http-batch` and `http-flood`: the time until a number of HTTP requests at a rate is answered, without and with
//! a flood of SYNs at the web server's port.
//!
//! The flood is hping3's, not T50's: Debian's T50 (5.8.7b) sends TCP with wrong checksums, so that no server receives
//! it (`TcpInCsumErrors` counts all of it).

use super::check::Claim;
use super::driver::script;
use super::hping3::{PROGRAMS, interval, syn};
use super::http_rate::{FILE_BYTES, KEEPALIVE};
use super::open_loop::{CONNECTIONS, RATE};
use super::output::*;
use super::*;
use crate::generator::{self, Arrival};
use crate::http::Arguments;

/// The workloads.
pub enum HttpBatch {
    /// `http-batch`.
    Calm,
    /// `http-flood`.
    Flooded,
}

const DRIVER: &str = "vtax load http";
const REQUESTS: Parameter = Parameter::new("load.requests", Domain::Integer(1, 10_000_000), "1000")
    .help("requests of the batch");
const TIMEOUT: Parameter = Parameter::new("load.timeout_s", Domain::Number(0.01, 600.0), "120")
    .help("seconds after which a request is given up");
const FLOOD: Parameter = Parameter::new("load.flood_rate", Domain::Number(0.0, 1e6), "0")
    .help("SYNs per second beside the requests; 0: as fast as it goes");

/// `$1` is the words of hping3's command, which ends with this shell. A batch whose flood ends early fails.
const SCRIPT: &str = r#"# HTTP requests under a flood
command -v hping3 >/dev/null || { echo "hping3: not found" >&2; exit 127; }
setpriv --pdeathsig KILL $1 >/dev/null 2>&1 & shift
"$@" || exit
kill $! 2>/dev/null || { echo "hping3 ended before the requests did" >&2; exit 1; }
"#;

const ABOUT: About = About {
    target_programs: apache::PROGRAMS,
    ..About::NONE
};

static CALM: About = About {
    kind: "http-batch",
    summary: "a number of HTTP requests at a rate, until the last answer (Apache in the target)",
    parameters: &[REQUESTS, RATE, CONNECTIONS, FILE_BYTES, KEEPALIVE, TIMEOUT],
    client_programs: &[],
    ..ABOUT
};

static FLOODED: About = About {
    kind: "http-flood",
    summary: "the same while SYNs flood the web server (hping3)",
    parameters: &[
        REQUESTS,
        RATE,
        CONNECTIONS,
        FILE_BYTES,
        KEEPALIVE,
        TIMEOUT,
        FLOOD,
    ],
    client_programs: PROGRAMS,
    ..ABOUT
};

impl Workload for HttpBatch {
    fn about(&self) -> &'static About {
        match self {
            Self::Calm => &CALM,
            Self::Flooded => &FLOODED,
        }
    }

    fn extent(&self, _settings: &Settings) -> Extent {
        Extent::ToCompletion
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let connections = CONNECTIONS.integer(context.settings);
        apache::serve(context, FILE_BYTES.integer(context.settings), connections)
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let (address, settings) = (spec.address, spec.settings);
        let (rate, timeout) = (RATE.number(settings), TIMEOUT.number(settings));
        let arguments = Arguments {
            common: generator::Arguments {
                connections: u32::try_from(CONNECTIONS.integer(settings)).unwrap_or(1),
                duration: REQUESTS.integer(settings) as f64 / rate,
                rate,
                arrival: Arrival::Constant,
                timeout,
                ..generator::Arguments::new(apache::socket(address))
            },
            path: apache::PATH.to_owned(),
            closed: false,
            downloads: None,
            close: !KEEPALIVE.bool(settings),
        };
        let line = open_loop::generator("http", arguments.to_flags())?;
        let line = match self {
            Self::Calm => line,
            Self::Flooded => {
                let (each, address) = (FLOOD.number(settings), address.to_string());
                let each = interval(each);
                let flood = match FLOOD.number(settings) {
                    0.0 => syn(&["--flood", "--quiet", &address]),
                    _ => syn(&["--quiet", "--interval", &each, &address]),
                };
                let flood = flood.join(" ");
                let words = line.iter().map(String::as_str);
                let words: Vec<&str> = [flood.as_str()].into_iter().chain(words).collect();
                script("sh", SCRIPT, &words)
            }
        };
        Ok(LoadCommand::client(line))
    }

    fn parse(&self, raw: &[u8], settings: &Settings, _timing: Timing) -> Outcome<WorkloadResult> {
        let (report, histogram) = open_loop::read(DRIVER, raw, "open")?;
        let asked = REQUESTS.integer(settings) as f64;
        let due = number(DRIVER, "due", report.due.map(|due| due as f64))?;
        let answered = due - report.errors.total() as f64;
        if answered <= 0.0 {
            let detail = "not one request was answered; check the link's settings and the service in the target";
            return Err(garbage(DRIVER, detail));
        }
        let seconds = positive(DRIVER, "last_answer", report.last_answer)?;
        let mut metrics = Metrics::default();
        metrics.latency("HTTP latency", &report.latency);
        let title = "time until the last answer";
        metrics.add(metric::ELAPSED, seconds, title);
        metrics.lead(metric::ELAPSED);
        let title = "HTTP requests answered each second";
        metrics.add_in(metric::RATE, answered / seconds, REQUEST_RATE, title);
        let title = "HTTP requests that were answered";
        metrics.add(metric::ANSWERED, 100.0 * answered / due, title);
        let unit = Unit::of(Base::Request);
        let suspect = shortfall("the number of answers", answered, due.max(asked), unit)
            .into_iter()
            .chain(check::excess(
                "the number of requests",
                due,
                asked,
                unit,
                seconds,
            ))
            .collect();
        let work = work(answered, Base::Request, "serve 1 HTTP request");
        Ok(WorkloadResult {
            histograms: open_loop::named("latency", histogram),
            suspect,
            claims: Claim::totals(answered, report.bytes as f64, seconds),
            ..metrics.result(WorkDone::Total(work))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_lasts_until_its_last_answer_and_lost_requests_are_suspect() {
        let parse = |raw: &str| HttpBatch::Calm.parse(raw.as_bytes(), &Settings::default(), TIMING);
        let raw = include_str!("../../tests/data/http-batch.json");
        let result = parse(raw).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert!(
            value("elapsed") > 0.9 && value("answered") == 100.0,
            "{result:?}"
        );
        assert!((value("rate") * value("elapsed") - 1000.0).abs() < 1e-6);
        assert!(result.suspect.is_empty());
        let lost = parse(&raw.replace("\"timeout\":0", "\"timeout\":100")).unwrap();
        assert!(lost.suspect[0].contains("900"), "{lost:?}");
        let none = raw.replace("\"timeout\":0", "\"timeout\":1000");
        assert!(parse(&none).unwrap_err().to_string().contains("not one"));
    }

    #[test]
    fn a_flood_that_is_missing_or_ends_early_is_an_error_that_says_so() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let run = || {
            let path = format!("{}:/usr/bin:/bin", directory.path().display());
            let mut sh = std::process::Command::new("/bin/sh");
            let words = [
                "-c",
                SCRIPT,
                "vtax-workload",
                "hping3 --flood",
                "sleep",
                "0.3",
            ];
            let run = sh.args(words).env("PATH", path).output().unwrap();
            (run.status.code(), String::from_utf8(run.stderr).unwrap())
        };
        let hping3 = directory.path().join("hping3");
        assert_eq!(run(), (Some(127), "hping3: not found\n".to_owned()));
        symlink("/bin/false", &hping3).unwrap();
        assert_eq!(
            run(),
            (Some(1), "hping3 ended before the requests did\n".to_owned())
        );
        std::fs::remove_file(&hping3).unwrap();
        std::fs::write(&hping3, "#!/bin/sh\nexec sleep 60\n").unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&hping3, executable).unwrap();
        assert_eq!(run(), (Some(0), String::new()));
    }
}
