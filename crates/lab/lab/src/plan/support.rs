// SPDX-License-Identifier: Apache-2.0
//! Objectives on a quantile that the planned requests of a level do not support.

use super::{Catalogue, Plan, PlannedTreatment, Profile};
use std::time::Duration;
use vtax_core::{Base, Unit, metric};
use vtax_results::stats::{Unsupported, supports};

/// The longest time that a level settles before its window. A quarter of the level's time applies when that is
/// shorter.
const SETTLE_LIMIT: Duration = Duration::from_secs(1);

/// Returns the time that a level of this length settles before its window.
pub fn settling(every: Duration) -> Duration {
    SETTLE_LIMIT.min(every / 4)
}

/// Returns the length of a level with this window.
fn level_with(window: Duration) -> Duration {
    // A level settles for a quarter of its length, a third of its window, up to the limit.
    window + SETTLE_LIMIT.min(window / 3)
}

/// Returns a caveat for each objective on a quantile that the requests of the lowest level do not support, with the length
/// of levels that would.
pub fn unsupported_objectives(
    plan: &Plan,
    all: &[PlannedTreatment],
    catalogue: &Catalogue,
) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for planned in all {
        let caveat = caveat(plan, planned, catalogue);
        found.extend(caveat.filter(|caveat| !found.contains(caveat)));
    }
    found
}

fn caveat(plan: &Plan, planned: &PlannedTreatment, catalogue: &Catalogue) -> Option<String> {
    let objective = planned.objective.as_ref()?;
    let (_, quantile) = metric::quantile(&objective.metric)?;
    let about = catalogue.workload(&planned.record.workload_kind)?.about();
    let of = about
        .level
        .filter(|of| of.unit == Unit::per(Base::Request, Base::Second))?;
    let (level, window, key) = match &planned.profile {
        Profile::Steady | Profile::Turns => {
            let mut parameters = about.parameters.iter();
            let set = parameters.find(|one| one.key == of.key)?;
            (set.number(&planned.settings), plan.duration, "duration")
        }
        profile => {
            let every = profile.each(plan.duration);
            (profile.lowest()?, every - settling(every), "every")
        }
    };
    let load = of.quantity(level);
    let requests = (load.value * window.as_secs_f64()).floor();
    // A count of requests of one window is far below 2^64.
    let Unsupported { needed, .. } = supports(requests as u64, quantile).err()?;
    let window = Duration::try_from_secs_f64(needed as f64 / load.value).ok()?;
    let length = match key {
        "every" => level_with(window),
        _ => window,
    };
    let unsupported = Unsupported {
        quantile,
        values: requests as u64,
        needed,
    };
    Some(format!(
        "the objective `{objective}` of {} is not judged at {load}: {unsupported}; {key} = \"{:.1}s\" has them",
        planned.record.workload,
        (10.0 * length.as_secs_f64()).ceil() / 10.0
    ))
}

#[cfg(test)]
mod tests {
    use super::super::treatments;
    use super::*;

    fn caveats(rate: &str) -> Vec<String> {
        let catalogue = Catalogue::standard();
        let text = format!(
            "name = \"x\"\ndescription = \"x\"\nrepetitions = 4\n[[platform]]\nkind = \"native\"\n[[workload]]\nkind = \"http-rate\"\n{rate}\nobjective = \"latency.p99 <= 20ms\"\n"
        );
        let plan = Plan::read("plan.toml", &text, &catalogue).unwrap();
        let all = treatments(&plan, &catalogue);
        unsupported_objectives(&plan, &all, &catalogue)
    }

    #[test]
    fn an_objective_on_too_few_requests_has_a_caveat_with_the_length_that_suffices() {
        let ramp = |from: u32, every: &str| {
            caveats(&format!(
                "profile = {{ ramp = {{ from = {from}, to = 1000, step = 50, every = \"{every}\" }} }}"
            ))
        };
        let [caveat] = &ramp(50, "5s")[..] else {
            panic!("one caveat");
        };
        assert!(
            caveat.contains("200 requests do not support p99: at least 368 are needed"),
            "{caveat}"
        );
        assert!(caveat.ends_with("every = \"8.4s\" has them"), "{caveat}");
        assert!(ramp(50, "8.4s").is_empty());
        assert!(ramp(100, "5s").is_empty());
        assert_eq!(ramp(1000, "0.4s").len(), 1);
    }
}
