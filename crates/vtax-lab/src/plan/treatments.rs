//! From a plan to its treatments: platform × workload × the levels of every factor that has a
//! meaning there.

use super::{Catalogue, Entry, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use vtax_host::settings::{Level, Settings};
use vtax_report::results::Treatment;

/// A treatment with everything needed to run it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedTreatment {
    /// What the results will say.
    pub record: Treatment,
    /// The settings in force.
    pub settings: Settings,
}

/// Expands a plan. A factor that a platform and workload do not understand does not multiply
/// their treatments: `vm.vcpus = [1, 2]` gives two VMs and one container.
pub fn treatments(plan: &Plan, catalogue: &Catalogue) -> Vec<PlannedTreatment> {
    let mut all = Vec::new();
    for platform in &plan.platforms {
        for workload in &plan.workloads {
            for levels in combinations(plan, catalogue, platform, workload) {
                all.push(treatment(plan, catalogue, platform, workload, levels));
            }
        }
    }
    let labels: BTreeSet<String> = all
        .iter()
        .map(|planned| planned.record.label.clone())
        .collect();
    for planned in &mut all {
        // A baseline that the plan does not contain is no baseline, and nothing is its own.
        let own = planned.record.label.clone();
        planned
            .record
            .baseline
            .take_if(|label| !labels.contains(label) || *label == own);
    }
    all
}

fn combinations(
    plan: &Plan,
    catalogue: &Catalogue,
    platform: &Entry,
    workload: &Entry,
) -> Vec<BTreeMap<String, Level>> {
    let mut found = vec![BTreeMap::new()];
    for (key, levels) in &plan.factors {
        if catalogue
            .parameter(&platform.kind, &workload.kind, key)
            .is_none()
        {
            continue;
        }
        found = found
            .iter()
            .flat_map(|chosen: &BTreeMap<String, Level>| {
                levels.iter().map(move |level| {
                    let mut next = chosen.clone();
                    next.insert(key.clone(), level.clone());
                    next
                })
            })
            .collect();
    }
    found
}

fn treatment(
    plan: &Plan,
    catalogue: &Catalogue,
    platform: &Entry,
    workload: &Entry,
    levels: BTreeMap<String, Level>,
) -> PlannedTreatment {
    let mut settings = Settings::default();
    for (key, level) in &plan.settings.0 {
        if catalogue
            .parameter(&platform.kind, &workload.kind, key)
            .is_some()
        {
            settings.0.insert(key.clone(), level.clone());
        }
    }
    settings.0.extend(platform.settings.0.clone());
    settings.0.extend(workload.settings.0.clone());
    settings.0.extend(levels.clone());

    let label = label(&platform.name, &workload.name, &levels);
    let baseline_platform = plan
        .baseline
        .platform
        .as_ref()
        .and_then(|name| plan.platforms.iter().find(|entry| entry.name == *name))
        .unwrap_or(platform);
    let baseline_levels = plan
        .factors
        .keys()
        .filter(|key| {
            catalogue
                .parameter(&baseline_platform.kind, &workload.kind, key)
                .is_some()
        })
        .filter_map(|key| {
            let level = plan.baseline.levels.get(key).or_else(|| levels.get(key))?;
            Some((key.clone(), level.clone()))
        })
        .collect();
    PlannedTreatment {
        record: Treatment {
            label,
            platform: platform.name.clone(),
            workload: workload.name.clone(),
            factors: levels
                .iter()
                .map(|(key, level)| (key.clone(), level.to_string()))
                .collect(),
            baseline: Some(self::label(
                &baseline_platform.name,
                &workload.name,
                &baseline_levels,
            )),
            platform_kind: platform.kind.clone(),
            workload_kind: workload.kind.clone(),
        },
        settings,
    }
}

fn label(platform: &str, workload: &str, levels: &BTreeMap<String, Level>) -> String {
    let mut label = format!("{platform} · {workload}");
    for (key, level) in levels {
        label.push_str(&format!(" · {key}={level}"));
    }
    label
}

impl Plan {
    /// A rough time for the whole plan, from what platforms say of their own overhead.
    pub fn expected_time(
        &self,
        treatments: &[PlannedTreatment],
        catalogue: &Catalogue,
    ) -> Duration {
        let block: Duration = treatments
            .iter()
            .map(|planned| {
                let overhead = catalogue
                    .platform(&planned.record.platform_kind)
                    .map_or(Duration::ZERO, |platform| platform.expected_overhead());
                overhead + self.warmup + self.duration
            })
            .sum();
        block * self.repetitions
    }
}
