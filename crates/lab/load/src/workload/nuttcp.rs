// SPDX-License-Identifier: Apache-2.0
//! `nuttcp`: bulk TCP by nttcp's successor, with each kernel's own view of the connection. It runs as fast as the link
//! allows: nuttcp's own rate limit waits in a loop that keeps the sender's processor busy.

use super::check::Claim;
use super::driver::{command, script, whole_seconds};
use super::output::{BIT_RATE, Metrics, figure, garbage, gigabytes, number, positive, text};
use super::*;
use vtax_core::Quantity;

/// The workload.
pub struct Nuttcp;

const PROGRAMS: &[Program] = &[Program::of("nuttcp", "nuttcp")];
const PORT: u16 = 5000;
const LENGTH: Parameter = Parameter::new("load.length", Domain::Integer(1, 1_048_576), "65536")
    .help("bytes of each write and read");
const DIRECTION: Parameter = Parameter::new(
    "load.direction",
    Domain::Choice(&["receive", "send"]),
    "receive",
)
.help("whether the target receives or sends");

/// `$1` seconds of warm-up, `$2` seconds to measure, then nuttcp, which has no warm-up of its own.
const SCRIPT: &str = r#"# nuttcp after a warm-up
warmup=$1 measured=$2; shift 2
[ "$warmup" = 0 ] || "$1" -T "$warmup" "${@:2}" >/dev/null || exit
exec "$1" -T "$measured" "${@:2}"
"#;

static ABOUT: About = About {
    kind: "nuttcp",
    summary: "bulk TCP into or out of the target (nuttcp)",
    parameters: &[LENGTH, DIRECTION],
    target_programs: PROGRAMS,
    client_programs: PROGRAMS,
    packages: &["nuttcp"],
    ..About::NONE
};

impl Workload for Nuttcp {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let line = command(["nuttcp", "-S", "--nofork"]);
        context.start_for_one("nuttcp", &line, PORT, PROGRAMS)
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let whole = |time| whole_seconds(time).to_string();
        let mut arguments = vec![whole(spec.timing.warmup), whole(spec.timing.duration)];
        arguments.extend(["nuttcp", "-fparse"].map(str::to_owned));
        arguments.push(format!("-l{}", LENGTH.integer(spec.settings)));
        if DIRECTION.text(spec.settings) == "send" {
            arguments.push("-r".to_owned());
        }
        arguments.push(spec.address.to_string());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Ok(LoadCommand::client(script("bash", SCRIPT, &arguments)))
    }

    fn parse(&self, raw: &[u8], settings: &Settings, timing: Timing) -> Outcome<WorkloadResult> {
        let text = text("nuttcp", raw)?;
        let value = |key: &str| {
            let words = text.split_whitespace();
            let (_, value) = words
                .rev()
                .filter_map(|word| word.split_once('='))
                .find(|pair| pair.0 == key)?;
            figure(value)
        };
        let seconds = positive("nuttcp", "real_seconds", value("real_seconds"))?;
        let throughput = number("nuttcp", "rate_Mbps", value("rate_Mbps"))? * 1e6;
        if throughput == 0.0 {
            return Err(garbage(
                "nuttcp",
                "not one byte arrived; check the link's settings",
            ));
        }
        let megabytes = number("nuttcp", "megabytes", value("megabytes"))?;
        let of_bytes = 8.0 * megabytes * f64::from(1 << 20) / seconds;
        let mut suspect = Vec::new();
        // Each of the two is rounded.
        if (of_bytes - throughput).abs() > 0.1 * throughput.max(of_bytes) {
            suspect.push(format!(
                "nuttcp's rate is {}, and its bytes in its time are {}",
                Quantity::new(throughput, BIT_RATE),
                Quantity::new(of_bytes, BIT_RATE)
            ));
        }
        let asked = Duration::from_secs(whole_seconds(timing.duration));
        suspect.extend(check::duration("nuttcp", seconds, asked));
        let into_target = DIRECTION.text(settings) != "send";
        let length = LENGTH.integer(settings);
        let claims = vec![Claim::bulk(into_target, throughput / 8.0, length)];
        let (title, phrase) = match DIRECTION.text(settings) {
            "send" => ("TCP throughput out of the target", "send 1 GB"),
            _ => ("TCP throughput into the target", "receive 1 GB"),
        };
        let mut metrics = Metrics::default();
        metrics.add_in(metric::THROUGHPUT, throughput, BIT_RATE, title);
        metrics.lead(metric::THROUGHPUT);
        let again = number("nuttcp", "retrans", value("retrans"))? / seconds;
        metrics.add(metric::RETRANSMITS, again, "");
        let work = WorkDone::Rate(gigabytes(throughput / 8.0, phrase));
        Ok(WorkloadResult {
            suspect,
            claims,
            ..metrics.result(work)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_and_what_was_sent_again_are_read() {
        let raw = include_bytes!("../../tests/data/nuttcp-8.2.2.txt");
        let second = Duration::from_secs(1);
        let timing = Timing {
            warmup: second,
            duration: 2 * second,
        };
        let parse = |raw: &[u8]| Nuttcp.parse(raw, &Settings::default(), timing);
        let result = parse(raw).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert!(
            (value("throughput") - 98_918_800.0).abs() < 1.0,
            "{result:?}"
        );
        assert!(
            (value("retransmits") - 3.0 / 2.02).abs() < 1e-9,
            "{result:?}"
        );
        // A rate in nuttcp's default format, which is not the requested output.
        assert!(parse(b"  23.8 MB /   2.00 sec =   99.8 Mbps\n").is_err());
    }
}
