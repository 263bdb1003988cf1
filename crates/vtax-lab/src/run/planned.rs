// SPDX-License-Identifier: Apache-2.0
//! The part of a plan that one run executes, at any place.

use super::NewRun;
use crate::plan::{Catalogue, Plan, PlannedTreatment};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use vtax_guest::image::Recipe;
use vtax_report::results::Treatment;

/// A plan and the treatments to run.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The plan as it is written.
    pub text: &'a str,
    /// The directory at which the relative paths of the plan start.
    pub folder: &'a Path,
    /// The treatments to run: the plan's own, or those of [`crate::plan::charge_study`].
    pub treatments: &'a [PlannedTreatment],
    /// The platforms and workloads.
    pub catalogue: &'a Catalogue,
}

impl<'a> Planned<'a> {
    /// Returns the recipes of the images that the booted guests of a treatment need.
    pub fn recipes(&self, planned: &PlannedTreatment) -> BTreeSet<Recipe> {
        let booted = planned.guests().filter(|guest| {
            let platform = self.catalogue.platform(guest.platform_kind);
            platform.is_none_or(|platform| !platform.is_external(guest.settings))
        });
        booted
            .filter_map(|guest| {
                let workload = self.catalogue.workload(guest.workload_kind)?;
                Some(Recipe::of_guest(
                    &workload.packages(guest.settings),
                    guest.settings,
                ))
            })
            .collect()
    }

    /// Returns the run at `place` as results record it.
    pub fn new_run(&self, place: &'a str) -> NewRun<'a> {
        let plan = self.plan;
        NewRun {
            plan_text: self.text,
            files: "",
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

    /// Returns the treatments as results record them.
    pub fn records(&self) -> Vec<Treatment> {
        let treatments = self.treatments.iter();
        treatments.map(|planned| planned.record.clone()).collect()
    }

    /// Returns the longest time without an event in a trial of a treatment: its warm-up and its longest window, or the
    /// idle phase.
    pub fn longest_silence(&self, treatment: usize) -> Duration {
        let duration = self.plan.duration;
        let planned = self.treatments.get(treatment);
        let loaded = planned.map_or(duration, |planned| planned.profile.each(duration));
        self.plan.idle.max(self.plan.warmup + loaded)
    }

    /// Returns a rough estimate of the time of one trial of a treatment.
    pub fn expected(&self, treatment: usize) -> Duration {
        let planned = self.treatments.get(treatment);
        planned.map_or(Duration::ZERO, |planned| {
            planned.expected_time(self.plan, self.catalogue)
        })
    }
}
