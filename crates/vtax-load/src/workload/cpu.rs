//! `cpu`: integer work in user mode, the control that shows what virtualization does *not* tax.
//!
//! A linear congruential generator is stepped by bash's own arithmetic: no files, almost no
//! memory, and nothing but a program that every Debian system has. One operation is 10 000
//! steps, and its result is checked. bash makes a system call or two for each expression, so an
//! expression is a thousand steps.

use super::driver::{TargetLoad, script};
use super::output::{Metrics, garbage, json, number, positive};
use super::{
    Extent, Load, LoadClient, Program, Service, Timing, WorkDone, Workload, WorkloadResult,
    chosen_extent, extent_parameter,
};
use serde::Deserialize;
use vtax_guest::platform::Target;
use vtax_host::HostError;
use vtax_host::settings::{Domain, Parameter, Settings};
use vtax_report::results::{Better, Work};
use vtax_units::{Base, Unit};

/// See the module.
pub struct Cpu;

const PROGRAMS: &[Program] = &[Program {
    name: "bash",
    package: "bash",
}];

/// `$1` warm-up and `$2` duration in µs, `$3` operations of each thread or 0, `$4` threads.
///
/// Prints a JSON array: an object from each thread, in one write, and a last one that says that
/// all is there.
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

fn threads(settings: &Settings) -> i64 {
    settings.integer("load.threads", 1)
}

/// One line of what the script prints.
#[derive(Debug, Deserialize)]
struct Line {
    operations: Option<f64>,
    real: Option<f64>,
    user: Option<f64>,
    system: Option<f64>,
    threads: Option<i64>,
}

impl Workload for Cpu {
    fn kind(&self) -> &'static str {
        "cpu"
    }

    fn summary(&self) -> &'static str {
        "integer work in user mode, a control that virtualization should not tax"
    }

    fn parameters(&self) -> &'static [Parameter] {
        const PARAMETERS: &[Parameter] = &[
            Parameter {
                key: "load.threads",
                domain: Domain::Integer(1, 1024),
                default: Some("1"),
                help: "processes that work in parallel",
            },
            Parameter {
                key: "load.operations",
                domain: Domain::Integer(1, 1_000_000_000),
                default: Some("200"),
                help: "operations of each thread where the extent is `completion`",
            },
            extent_parameter("duration"),
        ];
        PARAMETERS
    }

    fn target_programs(&self) -> &'static [Program] {
        PROGRAMS
    }

    fn extent(&self, settings: &Settings) -> Extent {
        chosen_extent(settings, Extent::FixedDuration)
    }

    fn serve(
        &self,
        _target: &mut dyn Target,
        _client: &dyn LoadClient,
        _settings: &Settings,
    ) -> Result<Service, HostError> {
        Ok(Service::default())
    }

    fn drive(
        &self,
        target: &mut dyn Target,
        _client: &dyn LoadClient,
        _service: Service,
        settings: &Settings,
        timing: Timing,
    ) -> Result<Box<dyn Load>, HostError> {
        let extent = self.extent(settings);
        let operations = match extent {
            Extent::FixedDuration => 0,
            Extent::ToCompletion => settings.integer("load.operations", 200),
        };
        let line = script(
            "bash",
            SCRIPT,
            &[
                &timing.warmup.as_micros().to_string(),
                &timing.duration.as_micros().to_string(),
                &operations.to_string(),
                &threads(settings).to_string(),
            ],
        );
        Ok(Box::new(TargetLoad::start(
            target, line, PROGRAMS, extent, timing,
        )?))
    }

    fn parse(
        &self,
        raw: &[u8],
        settings: &Settings,
        _timing: Timing,
    ) -> Result<WorkloadResult, HostError> {
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
        let said = lines.last().and_then(|line| line.threads);
        if said != Some(seen) || seen != threads(settings) {
            let detail = format!(
                "{seen} threads reported, and {} were asked for",
                threads(settings)
            );
            return Err(garbage("the cpu script", &detail));
        }
        let op_rate = Unit::per(Base::Operation, Base::Second);
        let mut metrics = Metrics::default();
        metrics.add(
            "rate",
            rate,
            op_rate,
            Better::Higher,
            "integer operations (10 000 steps each)",
        );
        metrics.lead("rate");
        let per_op = Unit::per(Base::Second, Base::Operation);
        let title = "CPU time per operation, as the target counts it";
        metrics.add(
            "cpu.inside_per_work",
            cpu / operations,
            per_op,
            Better::Lower,
            title,
        );
        let phrase = "do 1 integer operation";
        let work = |amount| Work {
            amount,
            unit: Unit::of(Base::Operation),
            phrase: phrase.to_owned(),
        };
        let work = match self.extent(settings) {
            Extent::FixedDuration => WorkDone::Rate(work(rate)),
            Extent::ToCompletion => {
                let second = Unit::of(Base::Second);
                metrics.add(
                    "elapsed",
                    elapsed,
                    second,
                    Better::Lower,
                    "time until all operations were done",
                );
                WorkDone::Total(work(operations))
            }
        };
        Ok(WorkloadResult {
            work: Some(work),
            metrics: metrics.0,
            suspect: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use vtax_host::settings::Level;

    const TIMING: Timing = Timing {
        warmup: Duration::ZERO,
        duration: Duration::from_secs(2),
    };
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
