// SPDX-License-Identifier: Apache-2.0
//! `cyclictest`: threads that sleep until a time and measure how late they run (rt-tests).

use super::driver::{script, whole_seconds};
use super::output::{Metrics, OP_RATE, garbage, json, number, positive, shortfall, work};
use super::*;
use crate::generator::report::Times;
use serde::Deserialize;

/// The workload.
pub struct Cyclictest;

const PROGRAMS: &[Program] = &[Program::of("cyclictest", "rt-tests")];
const THREADS: Parameter = Parameter::new("load.threads", Domain::Integer(1, 256), "1")
    .help("threads that sleep and wake up");
const INTERVAL: Parameter =
    Parameter::new("load.interval_us", Domain::Integer(50, 1_000_000), "1000")
        .help("microseconds from one wake-up of a thread to the next");
const PRIORITY: Parameter = Parameter::new("load.priority", Domain::Integer(0, 98), "0")
    .help("real-time priority (FIFO), which most containers may not have; 0: an ordinary thread");
const MICROSECOND: f64 = 1e-6;

/// `$1` seconds of warm-up, then cyclictest, which has none of its own. It prints a line for each microsecond of its
/// histogram, which is in its file, too.
const SCRIPT: &str = r#"# cyclictest after its warm-up
before=$1 measured=$2; shift 2
[ "$before" = 0 ] || timeout "$before" "$@" >/dev/null 2>&1
found=$(mktemp) && "$@" --duration="$measured" --json="$found" >/dev/null && cat "$found" && rm "$found"
"#;

/// The part of its result that is read. Times are in microseconds.
#[derive(Deserialize)]
struct Found {
    thread: BTreeMap<String, Thread>,
}

#[derive(Deserialize)]
struct Thread {
    /// Wake-ups by their lateness. What is later than the last one is in `cycles` alone.
    histogram: BTreeMap<u64, u64>,
    cycles: u64,
    max: f64,
    avg: f64,
}

static ABOUT: About = About {
    kind: "cyclictest",
    summary: "threads that sleep until a time and measure how late they run (cyclictest of rt-tests)",
    parameters: &[THREADS, INTERVAL, PRIORITY],
    target_programs: PROGRAMS,
    packages: &["rt-tests"],
    level: Some(LoadLevel::of(
        &THREADS,
        Unit::of(Base::One),
        1.0,
        "threads that sleep and wake up",
    )),
    ..About::NONE
};

impl Workload for Cyclictest {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    /// cyclictest counts whole seconds. By itself it would keep processors out of deep idle states.
    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let settings = spec.settings;
        let before = spec.timing.warmup.as_secs_f64().to_string();
        let measured = whole_seconds(spec.timing.duration).max(1).to_string();
        let threads = format!("--threads={}", THREADS.integer(settings));
        let interval = format!("--interval={}", INTERVAL.integer(settings));
        let priority = PRIORITY.integer(settings);
        // With any priority cyclictest takes the policy FIFO.
        let class = if priority > 0 {
            format!("--priority={priority}")
        } else {
            "--policy=other".to_owned()
        };
        let arguments = [
            before.as_str(),
            &measured,
            "cyclictest",
            "--quiet",
            "--default-system",
            "--histofall=200000",
            &threads,
            &interval,
            &class,
        ];
        Ok(LoadCommand::target(script("sh", SCRIPT, &arguments)))
    }

    fn parse(&self, raw: &[u8], settings: &Settings, timing: Timing) -> Outcome<WorkloadResult> {
        let found: Found = json("cyclictest", raw)?;
        let (mut times, mut cycles, mut total, mut max) = (Times::new(), 0.0, 0.0, 0.0_f64);
        for thread in found.thread.values() {
            let longest = number("cyclictest", "max", Some(thread.max))? * MICROSECOND;
            let mut later = thread.cycles;
            for (late, count) in &thread.histogram {
                times.record_n(*late as f64 * MICROSECOND, *count);
                later = later.checked_sub(*count).ok_or_else(|| {
                    garbage(
                        "cyclictest",
                        "its histogram has more wake-ups than its cycles",
                    )
                })?;
            }
            times.record_n(longest, later);
            cycles += thread.cycles as f64;
            total += number("cyclictest", "avg", Some(thread.avg))? * thread.cycles as f64;
            max = max.max(longest);
        }
        let cycles = positive("cyclictest", "cycles", Some(cycles))?;
        let mut summary = times.summary();
        summary.mean = total / cycles * MICROSECOND;
        summary.max = max;
        let rate = cycles / whole_seconds(timing.duration).max(1) as f64;
        let mut metrics = Metrics::default();
        metrics.latency("lateness of a wake-up", &summary);
        metrics.add_in(metric::RATE, rate, OP_RATE, "wake-ups");
        let asked = THREADS.number(settings) / (INTERVAL.number(settings) * MICROSECOND);
        Ok(WorkloadResult {
            histograms: vec![("latency".to_owned(), times.0)],
            unreached: shortfall("the rate of wake-ups", rate, asked, OP_RATE),
            ..metrics.result(WorkDone::Rate(work(
                rate,
                Base::Operation,
                "wake up 1 time",
            )))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: &str = include_str!("../../tests/data/cyclictest.json");

    fn parse(raw: &str) -> Outcome<WorkloadResult> {
        let second = Duration::from_secs(1);
        let (warmup, duration) = (second, 2 * second);
        let settings = [("load.threads".to_owned(), Level::Integer(2))];
        let settings = settings.into_iter().collect();
        Cyclictest.parse(raw.as_bytes(), &settings, Timing { warmup, duration })
    }

    #[test]
    fn how_late_the_threads_ran_is_read_over_all_of_them() {
        let result = parse(RAW).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert_eq!(value("rate"), (1937.0 + 1925.0) / 2.0);
        assert!((value("latency.max") - 0.022_079).abs() < 1e-9);
        let mean = (113.16 * 1937.0 + 99.68 * 1925.0) / (1937.0 + 1925.0);
        assert!((value("latency.mean") - mean * 1e-6).abs() < 1e-9);
        assert_eq!(result.histograms[0].1.len(), 3862);
        // 2,000 wake-ups a second were asked for.
        assert_eq!(result.unreached, None);
    }

    #[test]
    fn what_is_beyond_the_histogram_counts_as_the_longest() {
        let late = RAW.replace("\"cycles\": 1937", "\"cycles\": 1938");
        assert_eq!(parse(&late).unwrap().histograms[0].1.len(), 3863);
        let fewer = RAW.replace("\"cycles\": 1937", "\"cycles\": 1000");
        assert!(parse(&fewer).is_err());
        assert!(parse("{\"thread\": {}}").is_err());
    }
}
