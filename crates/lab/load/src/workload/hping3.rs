// SPDX-License-Identifier: Apache-2.0
//! `hping3`: the time until a number of TCP SYNs is answered; no connection is opened.
//!
//! The target's kernel answers each SYN, and the client's kernel, which has no such connection, resets it. Apache
//! listens, so that the answers are those of an open port. The round trips that hping3 prints are not used: they depend
//! on how seldom it checks for answers (between 0 and 1 ms on a loopback device), and some are a second too long.

use super::check::{Account, Amount, Claim};
use super::driver::script;
use super::output::*;
use super::*;

/// The workload.
pub struct Hping3;

/// The program.
pub const PROGRAMS: &[Program] = &[Program::of("hping3", "hping3")];
const REQUESTS: Parameter =
    Parameter::new("load.requests", Domain::Integer(1, 10_000_000), "10000")
        .help("connections asked for");
const RATE: Parameter = Parameter::new("load.rate", Domain::Number(0.1, 1e6), "1000")
    .help("of them per second, as far as the client's timer goes");

/// hping3 ends with the last answer, or a second after its last request. It exits with 1 where no answer came.
const SCRIPT: &str = r#"# hping3 and the time that it took
begun=${EPOCHREALTIME//[!0-9]/}; "$@" 2>&1
code=$?; echo "microseconds $((${EPOCHREALTIME//[!0-9]/} - begun))"; exit $code
"#;

/// hping3's command up to the address: SYN to the web server's port, from the client's own address.
pub fn syn(rest: &[&str]) -> Vec<String> {
    let port = apache::PORT.to_string();
    let line = ["hping3", "--syn", "--destport", &port];
    let words = line.iter().chain(rest);
    words.map(|word| (*word).to_owned()).collect()
}

/// hping3's option for a rate, which it rounds to whole microseconds.
pub fn interval(rate: f64) -> String {
    format!("u{:.0}", (1e6 / rate).clamp(1.0, 1e9))
}

static ABOUT: About = About {
    kind: "hping3",
    summary: "TCP connections asked for and never opened, until all are answered (hping3)",
    parameters: &[REQUESTS, RATE],
    target_programs: apache::PROGRAMS,
    client_programs: PROGRAMS,
    ..About::NONE
};

impl Workload for Hping3 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn extent(&self, _settings: &Settings) -> Extent {
        Extent::ToCompletion
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        apache::serve(context, 1, 1)
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let (interval, count) = (
            interval(RATE.number(spec.settings)),
            REQUESTS.integer(spec.settings).to_string(),
        );
        let address = spec.address.to_string();
        let line = syn(&[
            "--quiet",
            "--interval",
            &interval,
            "--count",
            &count,
            &address,
        ]);
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        Ok(LoadCommand::client(script("bash", SCRIPT, &words)))
    }

    fn parse(&self, raw: &[u8], settings: &Settings, _timing: Timing) -> Outcome<WorkloadResult> {
        let text = text("hping3", raw)?;
        let (mut sent, mut answered, mut microseconds) = (None, None, None);
        for line in text.lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                [
                    out,
                    "packets",
                    "transmitted,",
                    back,
                    "packets",
                    "received,",
                    ..,
                ] => {
                    (sent, answered) = (figure(out), figure(back));
                }
                ["microseconds", time] => microseconds = figure(time),
                _ => {}
            }
        }
        let sent = positive("hping3", "packets transmitted", sent)?;
        let heard = number("hping3", "packets received", answered)?;
        // Answers that a server sends again are counted again.
        let answered = heard.min(sent);
        let seconds = positive("hping3", "microseconds", microseconds)? / 1e6;
        if answered == 0.0 {
            let detail = "not one answer came; check the link's settings and the target's console";
            return Err(garbage("hping3", detail));
        }
        let mut metrics = Metrics::default();
        let title = "time until all connections asked for were answered or given up";
        metrics.add(metric::ELAPSED, seconds, title);
        metrics.lead(metric::ELAPSED);
        let title = "connections asked for that were answered";
        metrics.add(metric::ANSWERED, 100.0 * answered / sent, title);
        let title = "connections asked for that were answered each second";
        metrics.add_in(metric::RATE, answered / seconds, REQUEST_RATE, title);
        let asked = REQUESTS.integer(settings) as f64;
        let unit = Unit::of(Base::Request);
        let mut suspect: Vec<String> = Vec::new();
        suspect.extend(shortfall("the number of answers", answered, asked, unit));
        let what = "the number of requests";
        suspect.extend(check::excess(what, sent, asked, unit, seconds));
        if heard > sent {
            suspect.push(format!(
                "hping3 counts more answers than requests, {heard} for {sent}: some were sent again"
            ));
        }
        let claims = vec![
            Claim::at_most(
                "requests sent",
                Amount::InAll(sent),
                Account::FramesToTarget,
            ),
            Claim::answers(Amount::InAll(answered)),
            Claim::elapsed(seconds),
        ];
        let work = work(answered, Base::Request, "answer 1 SYN");
        Ok(WorkloadResult {
            suspect,
            claims,
            ..metrics.result(WorkDone::Total(work))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_and_missing_ones_are_suspect() {
        use vtax_host::settings::Level;
        let parse = |raw: &str, asked| {
            let asked = ("load.requests".to_owned(), Level::Integer(asked));
            Hping3.parse(raw.as_bytes(), &Settings([asked].into()), TIMING)
        };
        let raw = include_str!("../../tests/data/hping3.txt");
        let result = parse(raw, 300).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert_eq!(value("answered"), 100.0);
        assert!((value("rate") * value("elapsed") - 300.0).abs() < 1e-6);
        assert!(result.suspect.is_empty(), "{result:?}");
        assert!(parse(raw, 400).unwrap().suspect[0].contains("300"));
        let none = raw.replace("300 packets received", "0 packets received");
        let cause = parse(&none, 300).unwrap_err().to_string();
        assert!(cause.contains("not one answer"), "{cause}");
    }

    #[test]
    fn more_answers_than_requests_are_suspect_and_count_once() {
        use vtax_host::settings::Level;
        let settings = Settings([("load.requests".to_owned(), Level::Integer(300))].into());
        let raw = "200 packets transmitted, 300 packets received, -50% packet loss\nmicroseconds 404264\n";
        let result = Hping3.parse(raw.as_bytes(), &settings, TIMING).unwrap();
        assert_eq!(result.metrics["answered"].quantity.value, 100.0);
        assert!(matches!(&result.work, Some(WorkDone::Total(work)) if work.amount == 200.0));
        let reasons = result.suspect.join("; ");
        assert!(
            reasons.contains("300") && reasons.contains("200"),
            "{reasons}"
        );
        assert!(reasons.contains("more answers"), "{reasons}");
    }

    #[test]
    fn nothing_but_the_target_is_addressed_and_from_nothing_but_the_clients_own_address() {
        let scratch = Scratch {
            device: "/dev/vdb".into(),
            directory: "/scratch".into(),
        };
        for workload in [&Hping3 as &dyn Workload, &http_batch::HttpBatch::Flooded] {
            let address = IpAddr::from([10, 91, 0, 2]);
            let (scratch, settings) = (&scratch, &Settings::default());
            let line = workload.load(LoadSpec {
                address,
                scratch,
                settings,
                timing: TIMING,
            });
            let line = line.unwrap().line.join(" ");
            for forged in ["--rand", "--spoof", " -a "] {
                assert!(!line.contains(forged), "{line}");
            }
            assert!(line.contains(" 10.91.0.2"), "{line}");
        }
    }
}
