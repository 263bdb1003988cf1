// SPDX-License-Identifier: Apache-2.0
//! `cpu`: integer work in user mode, the control that shows what virtualization does *not* tax.
//!
//! A linear congruential generator is stepped by bash's own arithmetic: no files, almost no
//! memory, and nothing but a program that every Debian system has. One operation is 10 000
//! steps, and its result is checked. bash makes a system call or two for each expression, so an
//! expression is a thousand steps.

use super::check::Claim;
use super::driver::script;
use super::output::{Metrics, OP_RATE, garbage, json, number, positive, work};
use super::*;
use serde::Deserialize;

/// The workload.
pub struct Cpu;

const PROGRAMS: &[Program] = &[Program::of("bash", "bash")];
const THREADS: Parameter = Parameter::new("load.threads", Domain::Integer(1, 1024), "1")
    .help("processes that work in parallel");
const OPERATIONS: Parameter =
    Parameter::new("load.operations", Domain::Integer(1, 1_000_000_000), "200")
        .help("operations of each thread where the extent is `completion`");
const EXTENT: Parameter = Extent::parameter("duration");

/// `$1` warm-up and `$2` duration in µs, `$3` operations of each thread or 0, `$4` threads.
///
/// Prints a JSON array: an object from each thread, in one write, and a last object that marks the end.
const SCRIPT: &str = r#"# integer work
printf -v steps 'x = (x * 1103515245 + 12345) & 0x7fffffff, %.0s' {1..1000}
operation() {
  local i x=1
  for i in {1..10}; do ((${steps} 1)); done
  ((x == 1910041713)) || { echo "wrong result $x: this processor does not compute correctly" >&2; exit 1; }
}
until_us() { while ((${EPOCHREALTIME/./} < $1)); do operation; ((done += 1)); done; }
thread() {
  local done=0 TIMEFORMAT
  until_us $((${EPOCHREALTIME/./} + $1))
  done=0
  time {
    if (($3 > 0)); then
      while ((done < $3)); do operation; ((done += 1)); done
    else
      until_us $((${EPOCHREALTIME/./} + $2))
    fi
    TIMEFORMAT="{\"operations\":$done,\"real\":%3R,\"user\":%3U,\"system\":%3S},"
  }
}
echo '['
pids=()
for ((k = 0; k < $4; k++)); do thread "$@" 2>&1 & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
echo "{\"threads\":$4}]"
"#;

/// One line of the script's output.
#[derive(Debug, Deserialize)]
struct Line {
    operations: Option<f64>,
    real: Option<f64>,
    user: Option<f64>,
    system: Option<f64>,
    threads: Option<i64>,
}

static ABOUT: About = About {
    kind: "cpu",
    summary: "integer work in user mode, a control that virtualization should not tax",
    parameters: &[THREADS, OPERATIONS, EXTENT],
    target_programs: PROGRAMS,
    level: Some(LoadLevel::of(
        &THREADS,
        Unit::of(Base::One),
        1.0,
        "processes at work",
    )),
    ..About::NONE
};

impl Workload for Cpu {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let operations = match self.extent(spec.settings) {
            Extent::FixedDuration => 0,
            Extent::ToCompletion => OPERATIONS.integer(spec.settings),
        };
        let arguments = [
            spec.timing.warmup.as_micros().to_string(),
            spec.timing.duration.as_micros().to_string(),
            operations.to_string(),
            THREADS.integer(spec.settings).to_string(),
        ];
        let arguments = arguments.each_ref().map(String::as_str);
        Ok(LoadCommand::target(script("bash", SCRIPT, &arguments)))
    }

    fn parse(&self, raw: &[u8], settings: &Settings, timing: Timing) -> Outcome<WorkloadResult> {
        let lines: Vec<Line> = json("the cpu script", raw)?;
        let (mut operations, mut rate, mut cpu, mut elapsed) = (0.0, 0.0, 0.0, 0.0_f64);
        let mut seen = 0;
        for line in lines.iter().filter(|line| line.threads.is_none()) {
            let done = positive("the cpu script", "operations", line.operations)?;
            let real = positive("the cpu script", "real", line.real)?;
            operations += done;
            rate += done / real;
            elapsed = elapsed.max(real);
            cpu += number("the cpu script", "user", line.user)?
                + number("the cpu script", "system", line.system)?;
            seen += 1;
        }
        let printed = lines.last().and_then(|line| line.threads);
        let asked = THREADS.integer(settings);
        if printed != Some(seen) || seen != asked {
            let detail = format!("{seen} threads reported, and {asked} were asked for");
            return Err(garbage("the cpu script", &detail));
        }
        let mut metrics = Metrics::default();
        let title = "integer operations (10 000 steps each)";
        metrics.add_in(metric::RATE, rate, OP_RATE, title);
        metrics.lead(metric::RATE);
        metrics.add(metric::CPU_INSIDE_PER_WORK, cpu / operations, "");
        let work = |amount| work(amount, Base::Operation, "do 1 integer operation");
        let extent = self.extent(settings);
        let driver = "the cpu script";
        let mut suspect = Vec::new();
        suspect.extend(check::processor_time(driver, cpu, asked, elapsed));
        let claims = match extent {
            Extent::FixedDuration => {
                suspect.extend(check::duration(driver, elapsed, timing.duration));
                Vec::new()
            }
            Extent::ToCompletion => {
                let due = OPERATIONS.integer(settings).saturating_mul(asked) as f64;
                if operations != due {
                    suspect.push(format!(
                        "{driver} did {operations} operations of the {due} asked for"
                    ));
                }
                vec![Claim::elapsed(elapsed)]
            }
        };
        let elapsed = (elapsed, "time until all operations were done");
        let work = metrics.done(extent, work(rate), work(operations), elapsed);
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
    use vtax_host::settings::Level;

    const TWO: &[u8] = br#"[
{"operations":100,"real":2.000,"user":1.990,"system":0.010},
{"operations":60,"real":2.000,"user":1.200,"system":0.000},
{"threads":2}]"#;

    fn settings(extent: &str) -> Settings {
        let extent = Level::Text(extent.to_owned());
        Settings(
            [
                ("load.threads".to_owned(), Level::Integer(2)),
                ("load.extent".to_owned(), extent),
            ]
            .into(),
        )
    }

    #[test]
    fn rates_add_up_over_threads_and_cpu_time_is_shared_by_all_operations() {
        let result = Cpu.parse(TWO, &settings("duration"), TIMING).unwrap();
        assert_eq!(result.metrics["rate"].quantity.value, 80.0);
        assert_eq!(result.metrics["cpu.inside_per_work"].quantity.value, 0.02);
        assert!(matches!(result.work, Some(WorkDone::Rate(work)) if work.amount == 80.0));
        let result = Cpu.parse(TWO, &settings("completion"), TIMING).unwrap();
        assert!(matches!(result.work, Some(WorkDone::Total(work)) if work.amount == 160.0));
    }

    #[test]
    fn a_thread_that_is_missing_is_an_error() {
        let one = br#"[{"operations":100,"real":2.0,"user":1.9,"system":0.1},{"threads":2}]"#;
        let message = Cpu
            .parse(one, &settings("duration"), TIMING)
            .unwrap_err()
            .to_string();
        assert!(message.contains("1 threads reported"), "{message}");
    }
}
