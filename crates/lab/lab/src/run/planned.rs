// SPDX-License-Identifier: Apache-2.0
//! The part of a plan that one run executes, at any place.

use super::NewRun;
use crate::plan::{Catalogue, Plan, PlannedTreatment, RemoteClient, Variation};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use vtax_guest::image::{self, Recipe, oci};
use vtax_guest::platform::GuestKernel;
use vtax_results::Treatment;

/// The trials of a plan, as a place needs to know them that runs each by a vtax of its own.
pub trait PlanTrials {
    /// Returns the run at `place` as results record it.
    fn new_run<'a>(&'a self, place: &'a str) -> NewRun<'a>;

    /// Returns the treatments as results record them.
    fn records(&self) -> Vec<Treatment>;

    /// Returns the number of a treatment in the plan, which the other vtax takes with `--treatment`.
    fn number(&self, treatment: usize) -> usize;

    /// Returns the largest share of all trials that may run again because they do not count.
    fn again(&self) -> f64;

    /// Returns the variation between the blocks.
    fn variation(&self) -> Variation;

    /// Returns the recipes of the images that the booted guests of a treatment need.
    fn recipes(&self, treatment: usize) -> BTreeSet<Recipe>;

    /// Whether a treatment sets the governor of processor frequencies.
    fn sets_governor(&self) -> bool;

    /// Returns the client, where it is on another host than the target.
    fn client(&self) -> Option<&RemoteClient>;

    /// Returns the longest time without an event in a trial of a treatment.
    fn longest_silence(&self, treatment: usize) -> Duration;

    /// Returns a rough estimate of the time of one trial of a treatment.
    fn expected(&self, treatment: usize) -> Duration;
}

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

impl Planned<'_> {
    /// Returns the recipes of the images that the booted guests of a treatment need.
    pub fn recipes_of(&self, planned: &PlannedTreatment) -> BTreeSet<Recipe> {
        let catalogue = self.catalogue;
        let booted = planned
            .guests()
            .filter(|guest| !catalogue.is_external(guest.platform_kind, guest.settings));
        booted
            .filter_map(|guest| {
                let workload = catalogue.workload(guest.workload_kind)?;
                let whole = Recipe::of_guest(&workload.packages(guest.settings), guest.settings);
                if oci::host_directory(guest.settings).is_none() {
                    return Some(whole);
                }
                // The root of this host is not made, and a VM with its files has the agent of an image.
                let platform = catalogue.platform(guest.platform_kind)?;
                let is_vm = platform.guest_kernel() != GuestKernel::Hosts;
                is_vm.then(|| match image::cached(&whole) {
                    Ok(Some(_)) => whole,
                    _ => whole.parts(),
                })
            })
            .collect()
    }
}

impl PlanTrials for Planned<'_> {
    fn new_run<'a>(&'a self, place: &'a str) -> NewRun<'a> {
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

    fn records(&self) -> Vec<Treatment> {
        let treatments = self.treatments.iter();
        treatments.map(|planned| planned.record.clone()).collect()
    }

    fn number(&self, treatment: usize) -> usize {
        treatment
    }

    fn again(&self) -> f64 {
        self.plan.again
    }

    fn variation(&self) -> Variation {
        self.plan.variation
    }

    fn recipes(&self, treatment: usize) -> BTreeSet<Recipe> {
        let planned = self.treatments.get(treatment);
        planned.map_or_else(BTreeSet::new, |planned| self.recipes_of(planned))
    }

    fn sets_governor(&self) -> bool {
        let mut treatments = self.treatments.iter();
        treatments.any(|planned| planned.settings.0.contains_key("host.governor"))
    }

    fn client(&self) -> Option<&RemoteClient> {
        self.plan.places.client.as_ref()
    }

    /// Its warm-up and its longest window, or the idle phase.
    fn longest_silence(&self, treatment: usize) -> Duration {
        let duration = self.plan.duration;
        let planned = self.treatments.get(treatment);
        let loaded = planned.map_or(duration, |planned| planned.profile.each(duration));
        self.plan.idle.max(self.plan.warmup + loaded)
    }

    fn expected(&self, treatment: usize) -> Duration {
        let planned = self.treatments.get(treatment);
        planned.map_or(Duration::ZERO, |planned| {
            planned.expected_time(self.plan, self.catalogue)
        })
    }
}
