// SPDX-License-Identifier: Apache-2.0
//! The treatments of a charge-back study. The first and the last workload of the plan load two guests, alone and
//! together. The workloads between them run alone; the weights of the counted method are fitted to them. One
//! load runs traced and untraced as well, which shows the cost of tracing.

use super::{
    CHARGE, Catalogue, NEIGHBOURS, Plan, PlannedGuest, PlannedTreatment, Profile, treatments,
};
use crate::LabError;
use vtax_host::settings::Level;

/// The name of the second guest.
const NEIGHBOUR: &str = "neighbour";

/// Returns the treatments of a charge-back study. `can_trace` is true when its host can trace soft interrupts.
///
/// # Errors
/// When the plan has fewer than two workloads, or has factors, neighbours or profiles.
pub fn charge_study(
    plan: &Plan,
    catalogue: &Catalogue,
    can_trace: bool,
) -> Result<Vec<PlannedTreatment>, LabError> {
    if let Some(why) = unfit(plan) {
        return Err(LabError::Plan(format!(
            "{} cannot be run as a study of charge-back: {why}",
            plan.name
        )));
    }
    let all = treatments(plan, catalogue);
    let (mut study, mut monitors) = (Vec::new(), Vec::new());
    for platform in &plan.platforms {
        let loads: Vec<&PlannedTreatment> = all
            .iter()
            .filter(|planned| planned.record.platform == platform.name)
            .collect();
        let [first, between @ .., last] = loads.as_slice() else {
            continue;
        };
        study.extend(between.iter().map(|load| charged(load, "both")));
        study.push(pair(first, last));
        if can_trace {
            let watched = between.first().unwrap_or(first);
            let untraced = varied(watched, CHARGE, "counted");
            let mut traced = varied(watched, CHARGE, "traced");
            traced.record.baseline = Some(untraced.record.label.clone());
            monitors.extend([untraced, traced]);
        }
    }
    study.extend(monitors);
    Ok(study)
}

fn unfit(plan: &Plan) -> Option<String> {
    if !plan.factors.is_empty() {
        let factors: Vec<&str> = plan.factors.keys().map(String::as_str).collect();
        return Some(format!(
            "it varies {}, and a study has no factors: set one level in [settings], or make a plan for each",
            factors.join(", ")
        ));
    }
    if plan.workloads.len() < 2 {
        return Some("it needs two workloads, one for each guest".to_owned());
    }
    if !plan.neighbours.is_empty() {
        return Some("its last workload is the neighbour: take [[neighbour]] out".to_owned());
    }
    let is_other = |profile: &Profile| *profile != Profile::Steady;
    let unsteady = plan.workloads.iter().find(|load| is_other(&load.profile));
    unsteady.map(|load| format!("the load of {} is not steady", load.name))
}

fn charged(planned: &PlannedTreatment, methods: &str) -> PlannedTreatment {
    let mut planned = planned.clone();
    let methods = Level::Text(methods.to_owned());
    planned.settings.0.insert(CHARGE.to_owned(), methods);
    planned.record.baseline = None;
    planned
}

/// Returns the treatment with a further factor, which makes its label unique.
fn varied(planned: &PlannedTreatment, factor: &str, level: &str) -> PlannedTreatment {
    let methods = if factor == CHARGE { level } else { "both" };
    let mut planned = charged(planned, methods);
    let record = &mut planned.record;
    record.label = format!("{} · {factor}={level}", record.label);
    record.factors.insert(factor.to_owned(), level.to_owned());
    planned
}

/// Returns the treatment of two guests, loaded in turns and then together.
fn pair(first: &PlannedTreatment, last: &PlannedTreatment) -> PlannedTreatment {
    let mut pair = varied(first, NEIGHBOURS, &last.record.workload);
    pair.profile = Profile::Turns;
    pair.objective = None;
    pair.neighbours = vec![PlannedGuest {
        name: NEIGHBOUR.to_owned(),
        platform_kind: last.record.platform_kind.clone(),
        workload_kind: last.record.workload_kind.clone(),
        settings: last.settings.clone(),
        is_twin: false,
    }];
    pair
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "name = \"pair\"\n[settings]\nhost.thp = \"never\"\n\
        [[platform]]\nkind = \"container\"\n[[platform]]\nkind = \"qemu\"\n\
        [[workload]]\nkind = \"http-rate\"\nname = \"small\"\nfile_bytes = 1000\n\
        [[workload]]\nkind = \"http-rate\"\nname = \"middle\"\nfile_bytes = 30000\n\
        [[workload]]\nkind = \"http-rate\"\nname = \"large\"\nfile_bytes = 70000\n";

    fn study(text: &str, can_trace: bool) -> Result<Vec<PlannedTreatment>, LabError> {
        let catalogue = Catalogue::standard();
        let plan = Plan::read("plan.toml", text, &catalogue).unwrap();
        charge_study(&plan, &catalogue, can_trace)
    }

    #[test]
    fn a_study_is_the_loads_between_alone_the_two_others_in_turns_and_tracing_on_and_off() {
        let study = study(PLAN, true).unwrap();
        let labels: Vec<&str> = study.iter().map(|of| of.record.label.as_str()).collect();
        assert_eq!(
            labels,
            [
                "container · middle",
                "container · small · neighbours=large",
                "qemu · middle",
                "qemu · small · neighbours=large",
                "container · middle · observe.charge=counted",
                "container · middle · observe.charge=traced",
                "qemu · middle · observe.charge=counted",
                "qemu · middle · observe.charge=traced",
            ]
        );
        let [middle, pair, .., traced] = study.as_slice() else {
            panic!("{labels:?}");
        };
        assert_eq!(pair.profile, Profile::Turns);
        let large = &pair.neighbours[0];
        assert_eq!(large.settings.integer("load.file_bytes", 0), 70_000);
        for planned in [middle, pair] {
            assert_eq!(planned.settings.text(CHARGE), Some("both"));
            assert_eq!(planned.settings.text("host.thp"), Some("never"));
            assert_eq!(planned.record.baseline, None);
        }
        let untraced = Some("qemu · middle · observe.charge=counted");
        assert_eq!(traced.record.baseline.as_deref(), untraced);
        assert_eq!(traced.settings.text(CHARGE), Some("traced"));
    }

    #[test]
    fn where_nothing_is_traced_its_cost_is_not_studied() {
        assert_eq!(study(PLAN, false).unwrap().len(), 4);
    }

    #[test]
    fn plans_for_something_else_are_refused_with_the_reason() {
        let refused = |text: &str| study(text, true).unwrap_err().to_string();
        let varied = format!("{PLAN}[factors]\nlink.mtu = [1500, 9000]\n");
        assert!(refused(&varied).contains("varies link.mtu"));
        let company = format!("{PLAN}[[neighbour]]\nname = \"pi\"\nkind = \"cpu\"\n");
        assert!(refused(&company).contains("[[neighbour]]"));
        let one =
            "name = \"one\"\n[[platform]]\nkind = \"container\"\n[[workload]]\nkind = \"idle\"\n";
        assert!(refused(one).contains("two workloads"));
    }
}
