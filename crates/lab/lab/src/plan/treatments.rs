// SPDX-License-Identifier: Apache-2.0
//! Expansion of a plan into treatments: platform × workload × the levels of every factor that applies to both.

use super::{
    Catalogue, Entry, NEIGHBOURS, NeighbourKind, Objective, Plan, Profile, SETTINGS_OF_A_GUEST,
    VARIANT,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::Duration;
use vtax_host::cell::{BESIDE, CLIENT_PLACE, TARGET};
use vtax_host::meters::{self, Meters};
use vtax_host::roots::Roots;
use vtax_host::settings::{Level, Settings};
use vtax_load::workload::{Extent, command};
use vtax_results::Treatment;

/// A treatment with everything needed to run it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedTreatment {
    /// The treatment as results name it.
    pub record: Treatment,
    /// The settings in force.
    pub settings: Settings,
    /// Whether the target's client is on the host that the plan names for it.
    pub client_is_remote: bool,
    /// The guests beside the target.
    pub neighbours: Vec<PlannedGuest>,
    /// The profile of the target's load.
    pub profile: Profile,
    /// The objective that the load must keep.
    pub objective: Option<Objective>,
    /// The label of a baseline that the plan names and does not contain. Such a treatment has no comparison.
    pub missing_baseline: Option<String>,
}

/// A guest beside the target.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedGuest {
    /// Its name, which is the owner of its series.
    pub name: String,
    /// The kind of its platform.
    pub platform_kind: String,
    /// The kind of its workload.
    pub workload_kind: String,
    /// Its settings.
    pub settings: Settings,
    /// Whether its load follows the target's profile, level by level.
    pub is_twin: bool,
}

/// A guest of a treatment, target or neighbour.
#[derive(Debug, Clone, Copy)]
pub struct GuestRole<'a> {
    /// [`TARGET`], or the neighbour's name.
    pub name: &'a str,
    /// The kind of its platform.
    pub platform_kind: &'a str,
    /// The kind of its workload.
    pub workload_kind: &'a str,
    /// Its settings.
    pub settings: &'a Settings,
    /// Whether it is a neighbour whose load follows the target's profile.
    pub is_twin: bool,
}

impl PlannedTreatment {
    /// The guests, the target first.
    pub fn guests(&self) -> impl Iterator<Item = GuestRole<'_>> {
        let target = GuestRole {
            name: TARGET,
            platform_kind: &self.record.platform_kind,
            workload_kind: &self.record.workload_kind,
            settings: &self.settings,
            is_twin: false,
        };
        let neighbours = self.neighbours.iter().map(|guest| GuestRole {
            name: &guest.name,
            platform_kind: &guest.platform_kind,
            workload_kind: &guest.workload_kind,
            settings: &guest.settings,
            is_twin: guest.is_twin,
        });
        std::iter::once(target).chain(neighbours)
    }
}

/// Expands a plan. A factor that does not apply to a platform and workload does not multiply
/// their treatments: `vm.vcpus = [1, 2]` gives two VMs and one container.
pub fn treatments(plan: &Plan, catalogue: &Catalogue) -> Vec<PlannedTreatment> {
    let mut all = Vec::new();
    for platform in &plan.platforms {
        for workload in &plan.workloads {
            let factors = plan.factors.iter();
            let meant = factors.filter(|(key, _)| varies(plan, catalogue, platform, workload, key));
            for levels in combinations(meant) {
                all.push(treatment(plan, catalogue, platform, workload, levels));
            }
        }
    }
    let labels: BTreeSet<String> = all
        .iter()
        .map(|planned| planned.record.label.clone())
        .collect();
    for planned in &mut all {
        // A missing treatment cannot be a baseline, and no treatment is its own baseline.
        let own = planned.record.label.clone();
        planned.record.baseline.take_if(|label| *label == own);
        planned.missing_baseline = planned
            .record
            .baseline
            .take_if(|label| !labels.contains(label));
    }
    all
}

/// Returns every combination of one level of each factor.
pub fn combinations<'a>(
    factors: impl Iterator<Item = (&'a String, &'a Vec<Level>)>,
) -> Vec<BTreeMap<String, Level>> {
    factors.fold(vec![BTreeMap::new()], |found, (key, levels)| {
        let with = |chosen: &BTreeMap<String, Level>, level: &Level| {
            let mut next = chosen.clone();
            next.insert(key.clone(), level.clone());
            next
        };
        found
            .iter()
            .flat_map(|chosen| levels.iter().map(move |level| with(chosen, level)))
            .collect()
    })
}

/// Whether a factor applies to a platform and a workload. Variants do where one of them changes either.
fn varies(
    plan: &Plan,
    catalogue: &Catalogue,
    platform: &Entry,
    workload: &Entry,
    key: &str,
) -> bool {
    let has = |key: &str| {
        let found = catalogue.parameter(&platform.kind, &workload.kind, key);
        found.is_some()
    };
    match key {
        NEIGHBOURS => true,
        VARIANT => {
            let mut keys = plan.variants.iter().flat_map(|one| one.settings.0.keys());
            !workload.variants.is_empty() || keys.any(|key| has(key))
        }
        key => has(key),
    }
}

/// Returns the plan's settings for all trials that apply to a platform and a workload.
fn common(plan: &Plan, catalogue: &Catalogue, platform: &str, workload: &str) -> Settings {
    let understood = |key: &str| catalogue.parameter(platform, workload, key).is_some();
    let all = plan.settings.0.iter();
    Settings(
        all.filter(|(key, _)| understood(key))
            .map(|(key, level)| (key.clone(), level.clone()))
            .collect(),
    )
}

fn treatment(
    plan: &Plan,
    catalogue: &Catalogue,
    platform: &Entry,
    workload: &Entry,
    levels: BTreeMap<String, Level>,
) -> PlannedTreatment {
    let mut settings = common(plan, catalogue, &platform.kind, &workload.kind);
    settings.0.extend(platform.settings.0.clone());
    let number = (plan.variants.iter()).position(|one| levels.get(VARIANT) == Some(&one.level()));
    let of_workload = number.and_then(|number| workload.variants.get(number));
    let of_workload = of_workload.unwrap_or(&workload.settings);
    settings.0.extend(of_workload.0.clone());
    if let Some(variant) = number.and_then(|number| plan.variants.get(number)) {
        let own = variant.settings.0.iter();
        let own = own.filter(|(key, _)| {
            let found = catalogue.parameter(&platform.kind, &workload.kind, key);
            found.is_some()
        });
        settings
            .0
            .extend(own.map(|(key, level)| (key.clone(), level.clone())));
    }
    settings.0.extend(levels.clone());
    for chosen in [NEIGHBOURS, VARIANT] {
        settings.0.remove(chosen);
    }

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
        .filter(|key| varies(plan, catalogue, baseline_platform, workload, key))
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
        client_is_remote: plan.places.client.is_some()
            && settings.text(CLIENT_PLACE) != Some(BESIDE),
        neighbours: neighbours(plan, catalogue, platform, workload, &settings, &levels),
        settings,
        profile: workload.profile.clone(),
        objective: workload.objective.clone(),
        missing_baseline: None,
    }
}

/// Returns the neighbours of a treatment: those in its level of `neighbours`, or all of the plan's neighbours
/// without such a level.
fn neighbours(
    plan: &Plan,
    catalogue: &Catalogue,
    platform: &Entry,
    workload: &Entry,
    settings: &Settings,
    levels: &BTreeMap<String, Level>,
) -> Vec<PlannedGuest> {
    let chosen = |name: &str| match levels.get(NEIGHBOURS) {
        Some(Level::Text(text)) => text.split('+').any(|word| word == name),
        _ => true,
    };
    let present = plan.neighbours.iter().filter(|guest| chosen(&guest.name));
    present
        .map(|neighbour| match &neighbour.kind {
            NeighbourKind::Twin => PlannedGuest {
                name: neighbour.name.clone(),
                platform_kind: platform.kind.clone(),
                workload_kind: workload.kind.clone(),
                settings: settings.clone(),
                is_twin: true,
            },
            NeighbourKind::Guest {
                workload: kind,
                platform: place,
                settings: own,
            } => {
                let named = place.as_ref();
                let platform = named
                    .and_then(|name| plan.platforms.iter().find(|entry| entry.name == *name))
                    .unwrap_or(platform);
                let mut settings = common(plan, catalogue, &platform.kind, kind);
                settings.0.extend(platform.settings.0.clone());
                // Factors of platforms apply to all guests; loads and pins only to the target.
                let varied = levels.iter().filter(|(key, _)| {
                    let of_target = ["load.", "target.", "client."];
                    !of_target.iter().any(|prefix| key.starts_with(prefix))
                        && catalogue.parameter(&platform.kind, kind, key).is_some()
                });
                settings
                    .0
                    .extend(varied.map(|(key, level)| (key.clone(), level.clone())));
                settings
                    .0
                    .retain(|key, _| !SETTINGS_OF_A_GUEST.iter().any(|(_, own)| key == own));
                settings.0.extend(own.0.clone());
                PlannedGuest {
                    name: neighbour.name.clone(),
                    platform_kind: platform.kind.clone(),
                    workload_kind: kind.clone(),
                    settings,
                    is_twin: false,
                }
            }
        })
        .collect()
}

fn label(platform: &str, workload: &str, levels: &BTreeMap<String, Level>) -> String {
    let mut label = format!("{platform} · {workload}");
    for (key, level) in levels {
        label.push_str(&format!(" · {key}={level}"));
    }
    label
}

impl Plan {
    /// Returns an estimate of the time of the whole plan on this host.
    pub fn expected_time(
        &self,
        treatments: &[PlannedTreatment],
        catalogue: &Catalogue,
    ) -> Duration {
        let block: Duration = treatments
            .iter()
            .map(|planned| planned.expected_time(self, catalogue))
            .sum();
        (self.idle_phase() + block) * self.repetitions
    }

    /// Returns the length of the idle phase before each block on this host; zero without a meter. A model has none.
    pub(crate) fn idle_phase(&self) -> Duration {
        let is_metered = |name: &String| match name.as_str() {
            "none" | "model" => false,
            "auto" => *HAS_METER,
            _ => true,
        };
        if self.meters.iter().any(is_metered) {
            self.idle
        } else {
            Duration::ZERO
        }
    }
}

/// Whether a meter of this host measures it.
static HAS_METER: LazyLock<bool> = LazyLock::new(|| {
    let opened = meters::open(&Roots::host()).map(|opened| opened.meters);
    Meters::from_meters(opened.unwrap_or_default()).is_measured()
});

/// The time that is counted for a run of a command of which nothing says how long it takes, until a trial has ended.
const UNKNOWN_COMMAND: Duration = Duration::from_secs(3);

impl PlannedTreatment {
    /// Returns an estimate of the time of one trial.
    pub fn expected_time(&self, plan: &Plan, catalogue: &Catalogue) -> Duration {
        let others = self.neighbours.iter().map(|guest| &guest.platform_kind);
        let overhead: Duration = std::iter::once(&self.record.platform_kind)
            .chain(others)
            .filter_map(|kind| catalogue.platform(kind))
            .map(|platform| platform.expected_overhead())
            .sum();
        overhead + self.loaded_time(plan, catalogue)
    }

    /// Returns an estimate of the time under load. A run to completion has a warm-up only where loads already run beside it.
    fn loaded_time(&self, plan: &Plan, catalogue: &Catalogue) -> Duration {
        let guests = 1 + self.neighbours.len();
        if !self.ends_itself(catalogue) {
            return plan.warmup + self.profile.longest(plan.duration, guests);
        }
        if self.record.workload_kind != command::KIND {
            return plan.duration;
        }
        let one = command::run_time(&self.settings).unwrap_or(UNKNOWN_COMMAND);
        let warmup = match guests {
            1 => Duration::ZERO,
            _ => plan.warmup,
        };
        warmup + one * command::runs(&self.settings)
    }

    /// Whether its load ends when the work is done.
    fn ends_itself(&self, catalogue: &Catalogue) -> bool {
        let workload = catalogue.workload(&self.record.workload_kind);
        let extent = workload.map(|one| one.extent(&self.settings));
        self.profile == Profile::Steady && extent == Some(Extent::ToCompletion)
    }

    /// Returns what the estimate assumes, in words; `None` where it is known.
    pub(crate) fn assumption(&self, catalogue: &Catalogue) -> Option<String> {
        let is_unknown = self.record.workload_kind == command::KIND
            && self.ends_itself(catalogue)
            && command::run_time(&self.settings).is_none();
        is_unknown.then(|| {
            let seconds = UNKNOWN_COMMAND.as_secs();
            format!("how long the command takes is not known: until a trial has ended, {seconds} s are counted for a run")
        })
    }
}
