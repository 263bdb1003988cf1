//! What of a plan is to run, wherever it runs.

use super::NewRun;
use crate::plan::{Catalogue, Plan, PlannedTreatment};
use std::collections::BTreeSet;
use std::time::Duration;
use vtax_host::settings::Settings;
use vtax_report::results::Treatment;

/// A plan and the treatments that are to run under all else that it says.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The plan as it is written.
    pub text: &'a str,
    /// Its own treatments, or others ([`crate::plan::charge_study`]).
    pub treatments: &'a [PlannedTreatment],
    /// Where platforms and workloads are found.
    pub catalogue: &'a Catalogue,
}

impl<'a> Planned<'a> {
    /// The packages beyond the shared image's that the guests of a treatment need: a set for each image.
    pub fn packages(&self, planned: &PlannedTreatment) -> BTreeSet<&'static [&'static str]> {
        let is_booted = |platform: &str, settings: &Settings| {
            let platform = self.catalogue.platform(platform);
            platform.is_none_or(|platform| !platform.is_found(settings))
        };
        let record = &planned.record;
        let target = (
            &record.platform_kind,
            &record.workload_kind,
            &planned.settings,
        );
        let neighbours = planned.neighbours.iter();
        let neighbours =
            neighbours.map(|guest| (&guest.platform_kind, &guest.workload_kind, &guest.settings));
        std::iter::once(target)
            .chain(neighbours)
            .filter(|(platform, _, settings)| is_booted(platform, settings))
            .filter_map(|(_, kind, _)| self.catalogue.workload(kind))
            .map(|workload| workload.packages())
            .collect()
    }

    /// What it is in the results, where the trials run at `place`.
    pub fn new_run(&self, place: &'a str) -> NewRun<'a> {
        let plan = self.plan;
        NewRun {
            plan_text: self.text,
            name: &plan.name,
            description: &plan.description,
            is_quick: plan.is_quick,
            place,
            seed: plan.seed,
            repetitions: plan.repetitions,
            order: plan.order,
            minimum_effect: plan.minimum_effect,
        }
    }

    /// The treatments as results name them.
    pub fn records(&self) -> Vec<Treatment> {
        let treatments = self.treatments.iter();
        treatments.map(|planned| planned.record.clone()).collect()
    }

    /// For how long a trial of a treatment may say nothing: the longest of its warm-up and stretches.
    pub fn longest_silence(&self, treatment: usize) -> Duration {
        let duration = self.plan.duration;
        let planned = self.treatments.get(treatment);
        self.plan.warmup + planned.map_or(duration, |planned| planned.profile.each(duration))
    }

    /// A rough time for one trial of a treatment.
    pub fn expected(&self, treatment: usize) -> Duration {
        let planned = self.treatments.get(treatment);
        planned.map_or(Duration::ZERO, |planned| {
            planned.expected_time(self.plan, self.catalogue)
        })
    }
}
