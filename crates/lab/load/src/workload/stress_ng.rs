// SPDX-License-Identifier: Apache-2.0
//! `stress-ng`: a stressor of the processor, its memory or its scheduler.

use super::driver::{script, whole_seconds};
use super::output::{Metrics, OP_RATE, figure, number, positive, text, work};
use super::*;

/// The workload.
pub struct StressNg;

const PROGRAMS: &[Program] = &[Program::of("stress-ng", "stress-ng")];
const STRESSOR: Parameter = Parameter::new(
    "load.stressor",
    Domain::Choice(&["cpu", "stream", "switch"]),
    "cpu",
)
.help("the digits of pi; sweeps over 48 MiB of memory; switches between processes");
const WORKERS: Parameter = Parameter::new("load.workers", Domain::Integer(1, 1024), "1")
    .help("processes that do so at once");

/// `$1` seconds of warm-up, `$2` to measure, then stress-ng, which has no warm-up of its own.
const SCRIPT: &str = r#"# stress-ng after its warm-up
before=$1 measured=$2; shift 2
[ "$before" = 0 ] || timeout "$before" "$@" --timeout 1d >/dev/null 2>&1
found=$(mktemp) && "$@" --timeout "$measured" --metrics --yaml "$found" >&2 &&
  sed -n '/^metrics:/,$p' "$found" && rm "$found"
"#;

static ABOUT: About = About {
    kind: "stress-ng",
    summary: "busy loops for the processor, its memory or its scheduler (stress-ng)",
    parameters: &[STRESSOR, WORKERS],
    target_programs: PROGRAMS,
    packages: &["stress-ng"],
    level: Some(LoadLevel::of(
        &WORKERS,
        Unit::of(Base::One),
        1.0,
        "processes at work",
    )),
    ..About::NONE
};

impl Workload for StressNg {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    /// stress-ng counts whole seconds.
    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let before = spec.timing.warmup.as_secs_f64().to_string();
        let measured = whole_seconds(spec.timing.duration).max(1).to_string();
        let stressor = STRESSOR.text(spec.settings);
        let (option, workers) = (
            format!("--{stressor}"),
            WORKERS.integer(spec.settings).to_string(),
        );
        let mut arguments = vec![before.as_str(), &measured, "stress-ng", &option, &workers];
        arguments.extend::<&[&str]>(match stressor {
            "cpu" => &["--cpu-method", "pi"],
            // By default it takes four times the cache size, which a guest may report differently.
            "stream" => &["--stream-l3-size", "4M"],
            _ => &[],
        });
        Ok(LoadCommand::target(script("sh", SCRIPT, &arguments)))
    }

    /// An operation is a count of the stressor; counts of different stressors are not comparable.
    fn parse(&self, raw: &[u8], settings: &Settings, timing: Timing) -> Outcome<WorkloadResult> {
        let text = text("stress-ng", raw)?;
        let value = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.trim().split_once(": "));
            number(
                "stress-ng",
                name,
                lines
                    .find(|line| line.0 == name)
                    .and_then(|line| figure(line.1)),
            )
        };
        let operations = positive("stress-ng", "bogo-ops", Some(value("bogo-ops")?))?;
        let rate = value("bogo-ops-per-second-real-time")?;
        let rate = positive("stress-ng", "bogo-ops-per-second-real-time", Some(rate))?;
        let cpu = value("user-time")? + value("system-time")?;
        let stressor = STRESSOR.text(settings);
        let mut metrics = Metrics::default();
        let title = format!("stress-ng operations ({stressor})");
        metrics.add_in(metric::RATE, rate, OP_RATE, &title);
        metrics.lead(metric::RATE);
        metrics.add(metric::CPU_INSIDE_PER_WORK, cpu / operations, "");
        let phrase = format!("do 1 operation of stress-ng ({stressor})");
        let seconds = operations / rate;
        let asked = Duration::from_secs(whole_seconds(timing.duration).max(1));
        // Each worker of the stressor `switch` is two processes.
        let processes = 2 * WORKERS.integer(settings);
        let suspect = check::duration("stress-ng", seconds, asked)
            .into_iter()
            .chain(check::processor_time("stress-ng", cpu, processes, seconds));
        Ok(WorkloadResult {
            suspect: suspect.collect(),
            ..metrics.result(WorkDone::Rate(work(rate, Base::Operation, &phrase)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_in_real_time_and_the_processor_time_of_an_operation_are_read() {
        let raw = include_str!("../../tests/data/stress-ng.yaml");
        let parse = |raw: &str| StressNg.parse(raw.as_bytes(), &Settings::default(), TIMING);
        let result = parse(raw).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert_eq!(value("rate"), 1_484.995_22);
        assert!(
            (value("cpu.inside_per_work") - 1.982_076 / 1_485.0).abs() < 1e-9,
            "{result:?}"
        );
        let none = raw.replace("bogo-ops: 1485", "bogo-ops: 0");
        assert!(parse(&none).is_err());
    }
}
