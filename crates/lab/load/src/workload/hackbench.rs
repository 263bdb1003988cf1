// SPDX-License-Identifier: Apache-2.0
//! `hackbench`: processes that pass messages to each other, a load of the scheduler (rt-tests).

use super::check::Claim;
use super::driver::script;
use super::output::{Metrics, OP_RATE, figure, garbage, positive, text, work};
use super::*;

/// The workload.
pub struct Hackbench;

const PROGRAMS: &[Program] = &[Program::of("hackbench", "rt-tests")];
const GROUPS: Parameter = Parameter::new("load.groups", Domain::Integer(1, 100), "2")
    .help("groups of 20 senders and 20 receivers");
const MESSAGES: Parameter = Parameter::new("load.messages", Domain::Integer(1, 1_000_000), "1000")
    .help("messages that each sender passes to each receiver of its group");
/// Senders of a group, and receivers.
const EACH: i64 = 20;

/// `$1` seconds of warm-up, then hackbench with `$2` loops. It has no warm-up of its own.
const SCRIPT: &str = r#"# hackbench after its warm-up
before=$1 loops=$2; shift 2
[ "$before" = 0 ] || timeout "$before" "$@" -l 1000000 >/dev/null 2>&1
exec "$@" -l "$loops"
"#;

static ABOUT: About = About {
    kind: "hackbench",
    summary: "processes that pass messages to each other, a load of the scheduler (hackbench of rt-tests)",
    parameters: &[GROUPS, MESSAGES],
    target_programs: PROGRAMS,
    packages: &["rt-tests"],
    level: Some(LoadLevel::of(
        &GROUPS,
        Unit::of(Base::One),
        1.0,
        "groups of 40 processes",
    )),
    ..About::NONE
};

/// The messages of all groups.
fn messages(settings: &Settings) -> f64 {
    GROUPS.number(settings) * (EACH * EACH) as f64 * MESSAGES.number(settings)
}

impl Workload for Hackbench {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn extent(&self, _: &Settings) -> Extent {
        Extent::ToCompletion
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let before = spec.timing.warmup.as_secs_f64().to_string();
        let loops = MESSAGES.integer(spec.settings).to_string();
        let groups = GROUPS.integer(spec.settings).to_string();
        // Version 2.4 misreads the values of long options.
        let line = [
            "hackbench",
            "-g",
            &groups,
            "-f",
            &EACH.to_string(),
            "-s",
            "100",
        ];
        let arguments = [&[before.as_str(), &loops][..], &line].concat();
        Ok(LoadCommand::target(script("sh", SCRIPT, &arguments)))
    }

    fn parse(&self, raw: &[u8], settings: &Settings, _: Timing) -> Outcome<WorkloadResult> {
        let text = text("hackbench", raw)?;
        let mut lines = text.lines();
        let asked = format!("== {} tasks", GROUPS.integer(settings) * 2 * EACH);
        if !lines.next().is_some_and(|line| line.contains(&asked)) {
            return Err(garbage(
                "hackbench",
                &format!("its first line has not `{asked}`"),
            ));
        }
        let elapsed = lines.find_map(|line| figure(line.strip_prefix("Time: ")?));
        let elapsed = positive("hackbench", "Time", elapsed)?;
        let total = messages(settings);
        let mut metrics = Metrics::default();
        metrics.add_in(
            metric::RATE,
            total / elapsed,
            OP_RATE,
            "messages between processes",
        );
        metrics.lead(metric::RATE);
        metrics.add(
            metric::ELAPSED,
            elapsed,
            "time until all messages were received",
        );
        Ok(WorkloadResult {
            claims: vec![Claim::elapsed(elapsed)],
            ..metrics.result(WorkDone::Total(work(
                total,
                Base::Operation,
                "pass 1 message",
            )))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::settings::Level;

    fn parse(raw: &str, groups: i64) -> Outcome<WorkloadResult> {
        let settings = [("load.groups", groups), ("load.messages", 200)];
        let settings = settings.map(|(key, value)| (key.to_owned(), Level::Integer(value)));
        Hackbench.parse(raw.as_bytes(), &settings.into_iter().collect(), TIMING)
    }

    #[test]
    fn the_work_is_the_messages_of_all_senders_to_all_receivers() {
        let raw = include_str!("../../tests/data/hackbench.txt");
        let result = parse(raw, 2).unwrap();
        let seconds = raw.lines().last().unwrap().trim_start_matches("Time: ");
        let rate = 160_000.0 / seconds.parse::<f64>().unwrap();
        assert!((result.metrics["rate"].quantity.value - rate).abs() < 1e-6);
        assert!(matches!(result.work, Some(WorkDone::Total(work)) if work.amount == 160_000.0));
        assert!(
            parse(raw, 3).is_err(),
            "it ran fewer groups than were asked for"
        );
        assert!(parse(raw.lines().next().unwrap(), 2).is_err());
    }
}
