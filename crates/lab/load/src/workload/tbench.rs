// SPDX-License-Identifier: Apache-2.0
//! `tbench`: the network part of a file server's load, as recorded by dbench, over TCP.

use super::check::{Account, Amount, Claim};
use super::driver::{command, whole_seconds};
use super::output::{BYTE_RATE, Metrics, OP_RATE};
use super::output::{figure, garbage, gigabytes, number, positive, text};
use super::*;

/// The workload.
pub struct Tbench;

const SERVER: &[Program] = &[Program::of("tbench_srv", "dbench")];
const CLIENT: &[Program] = &[Program::of("tbench", "dbench")];
const PORT: u16 = 7003;
const CLIENTS: Parameter = Parameter::new("load.clients", Domain::Integer(1, 1024), "4")
    .help("clients that replay the recording at once, on one connection each");

/// The seconds that tbench measures: the trial's warm-up, in which its clients connect, and the window. tbench counts whole
/// seconds and prints no rate in the first. It warms up for a fifth of its time in whole seconds, so that a run of less
/// than five seconds has no warm-up and would end with the window, or before it.
fn measured(timing: Timing) -> u64 {
    match whole_seconds(timing.warmup + timing.duration) {
        short @ ..5 => short.max(1) + 1,
        long => long,
    }
}

static ABOUT: About = About {
    kind: "tbench",
    summary: "a file server's requests and answers over TCP, without its disk (dbench's tbench)",
    parameters: &[CLIENTS],
    target_programs: SERVER,
    client_programs: CLIENT,
    packages: &["dbench"],
    level: Some(LoadLevel::of(
        &CLIENTS,
        Unit::of(Base::One),
        1.0,
        "clients at once",
    )),
    ..About::NONE
};

impl Workload for Tbench {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let line = command(["tbench_srv"]);
        context.start("tbench_srv", &line, PORT, SERVER)
    }

    /// tbench waits until all its clients are connected, which takes a second where one of many is refused at first, and
    /// warms up for a fifth of what it measures. So it goes on until the window has closed, however late it began.
    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let address = spec.address;
        let (clients, time) = (CLIENTS.integer(spec.settings), measured(spec.timing));
        let line = format!("tbench -c /usr/share/dbench/client.txt -t {time} {clients} {address}");
        let more = Duration::from_secs(time / 5) + spec.timing.warmup;
        Ok(LoadCommand::client(command(line.split_whitespace())).patient(more))
    }

    fn parse(&self, raw: &[u8], _: &Settings, timing: Timing) -> Outcome<WorkloadResult> {
        let text = text("tbench", raw)?;
        let (mut count, mut total, mut longest) = (0.0, 0.0, 0.0_f64);
        let mut throughput = None;
        for line in text.lines() {
            match line.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["Throughput", rate, "MB/sec", ..] => throughput = figure(rate),
                [name, times, mean, max] if figure(times).is_some() => {
                    let times = number("tbench", name, figure(times))?;
                    count += times;
                    total += times * number("tbench", name, figure(mean))? / 1e3;
                    longest = longest.max(number("tbench", name, figure(max))? / 1e3);
                }
                _ => {}
            }
        }
        let throughput = positive("tbench", "Throughput", throughput)? * 1e6;
        if count == 0.0 {
            return Err(garbage("tbench", "its table of operations is missing"));
        }
        let mut metrics = Metrics::default();
        metrics.add_in(
            metric::THROUGHPUT,
            throughput,
            BYTE_RATE,
            "tbench throughput",
        );
        metrics.lead(metric::THROUGHPUT);
        let rate = count / measured(timing) as f64;
        metrics.add_in(metric::RATE, rate, OP_RATE, "tbench operations");
        metrics.add(metric::LATENCY_MEAN, total / count, "tbench latency");
        metrics.add(metric::LATENCY_MAX, longest, "tbench latency");
        let work = gigabytes(throughput, "serve 1 GB to tbench");
        // Which lines of the recording are replayed in the window is not known, nor how long they are.
        let amount = Amount::PerSecond(throughput);
        let claim = Claim::at_most("payload both ways", amount, Account::BytesBothWays);
        Ok(WorkloadResult {
            claims: vec![claim.varying(2.0)],
            ..metrics.result(WorkDone::Rate(work))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_load_outlasts_its_window_too() {
        let lasts = |seconds: u64| {
            let timing = Timing {
                warmup: Duration::from_secs(1),
                duration: Duration::from_secs(seconds),
            };
            // As tbench does by itself.
            measured(timing) + measured(timing) / 5
        };
        for seconds in 1..20 {
            assert!(lasts(seconds) > 1 + seconds, "{seconds}");
        }
    }

    #[test]
    fn throughput_and_latency_over_all_operations_are_read() {
        let raw = include_bytes!("../../tests/data/tbench.txt");
        let second = Duration::from_secs(1);
        let (warmup, duration) = (second, 5 * second);
        let timing = Timing { warmup, duration };
        let result = Tbench.parse(raw, &Settings::default(), timing).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert_eq!(value("throughput"), 423_205_000.0);
        assert!((value("rate") - 372_713.0 / 6.0).abs() < 1e-6, "{result:?}");
        assert_eq!(value("latency.max"), 0.016_632);
        let failed = b"FAILED TO START 2 CLIENTS (started -1)\nThroughput 0 MB/sec  2 clients\n";
        assert!(Tbench.parse(failed, &Settings::default(), timing).is_err());
    }
}
