// SPDX-License-Identifier: Apache-2.0
//! `run.json` and `trial.json`: what a run is, and what one trial found.

use super::ResultsError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use vtax_core::metric::Better;
use vtax_core::{Nanoseconds, Quantity, Source, Unit, metric};

/// One combination of platform, workload and factor levels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Treatment {
    /// The treatment's name in tables: unique within a run, such as `qemu · iperf3-receive`.
    pub label: String,
    /// `native`, `container`, `qemu`, …
    pub platform: String,
    /// The workload's name in the plan.
    pub workload: String,
    /// The level of every factor, printed as in the plan.
    pub factors: BTreeMap<String, String>,
    /// The label of the treatment this one is compared against; `None` for a baseline.
    pub baseline: Option<String>,
    /// The platform's kind, whatever the plan calls it: `native`, `container`, `qemu`, `xen`. Empty
    /// in records of format 1, which did not keep it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub platform_kind: String,
    /// The workload's kind, likewise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub workload_kind: String,
}

impl Treatment {
    /// The variant that it measures; `None` in a plan without variants.
    pub fn variant(&self) -> Option<&str> {
        self.factors.get(super::VARIANT).map(String::as_str)
    }

    /// The platform's kind; in records that did not keep it, the platform's name stands in.
    pub fn kind(&self) -> &str {
        if self.platform_kind.is_empty() {
            &self.platform
        } else {
            &self.platform_kind
        }
    }
}

/// Whether a metric's quantity can be negative: a difference, which its name says. Every other one
/// (times, rates, bytes, watts, counts, shares) is positive by nature.
pub fn is_difference(metric: &str) -> bool {
    metric
        .split(['.', '_'])
        .any(|word| ["above", "change", "delta", "difference", "error", "offset"].contains(&word))
}

/// `run.json`: what was going to be run, written before the first trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// [`super::FORMAT`].
    pub format: u32,
    /// The plan's name and one-line description.
    pub name: String,
    /// The question of the plan, in a sentence.
    pub description: String,
    /// Seed of the trial order.
    pub seed: u64,
    /// `full` or `quick`; a quick run is marked in every report.
    pub profile: String,
    /// Where it ran: `local`, `ssh:HOST`, `testbed:kvm`.
    pub place: String,
    /// When it was started, RFC 3339.
    pub started: String,
    /// SHA-256 of `plan.toml`, so that a resumed run is the same plan.
    pub plan_sha256: String,
    /// Every treatment, in the plan's order.
    pub treatments: Vec<Treatment>,
    /// The planned order: entry `i` is trial `i`, naming its treatment and block (repetition).
    pub schedule: Vec<Scheduled>,
    /// Smallest relative difference of interest, such as 0.02: what is surely smaller is the same.
    pub minimum_effect: f64,
    /// Whether blocks were added after the planned ones, by someone who may have looked at these.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extended: bool,
}

/// A record has at most `most` of `what`: time and memory grow with them, and a page with more of them is
/// of no use.
pub(super) fn at_most(
    path: &Path,
    what: &'static str,
    count: usize,
    most: usize,
) -> Result<(), ResultsError> {
    if count <= most {
        return Ok(());
    }
    Err(ResultsError::TooMany {
        path: path.to_owned(),
        what,
        count,
        most,
    })
}

impl RunInfo {
    /// The most treatments of a run.
    pub const MOST_TREATMENTS: usize = 20_000;

    /// Refuses a run that is too large to be analysed; `path` is its file.
    pub(super) fn check(&self, path: &Path) -> Result<(), ResultsError> {
        let count = self.treatments.len();
        at_most(path, "treatments", count, Self::MOST_TREATMENTS)
    }
}

impl Trial {
    /// The most metrics of a trial, of a phase, and of an actor.
    pub const MOST_METRICS: usize = 10_000;
    /// The most phases and actors of a trial.
    pub const MOST_PARTS: usize = 10_000;

    /// Whether it enters the headline numbers.
    pub fn counts(&self) -> bool {
        self.outcome == TrialOutcome::Complete && self.suspect.is_empty()
    }

    /// Refuses a trial that is too large to be analysed; `path` is its file.
    pub(super) fn check(&self, path: &Path) -> Result<(), ResultsError> {
        at_most(path, "phases", self.phases.len(), Self::MOST_PARTS)?;
        at_most(path, "actors", self.actors.len(), Self::MOST_PARTS)?;
        let of_phases = self.phases.iter().map(|phase| phase.metrics.len());
        let of_actors = self.actors.iter().map(|actor| actor.metrics.len());
        let all = [self.metrics.len()].into_iter();
        for count in all.chain(of_phases).chain(of_actors) {
            at_most(path, "metrics", count, Self::MOST_METRICS)?;
        }
        Ok(())
    }
}

/// One entry of the schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduled {
    /// Index into [`RunInfo::treatments`].
    pub treatment: usize,
    /// The block: each block holds every treatment once, in random order, so that trials of one
    /// block are pairs.
    pub block: u32,
}

/// One number that a trial found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// The value and its unit.
    #[serde(flatten)]
    pub quantity: Quantity,
    /// Measured, modelled, emulated or simulated.
    pub source: Source,
    /// The model that computed it, such as the power model's name; whatever else is true of it, for an
    /// emulated guest's or host's flag hides that of a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Of joules and watts: the domains of the meters that they are the sum of, and what these cover.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meter: Option<String>,
    /// Which direction is better.
    pub better: Better,
    /// True for the few metrics that a summary leads with.
    #[serde(default)]
    pub headline: bool,
    /// What it is, in a few words, for tables: `CPU time per GB received`.
    pub title: String,
}

impl Metric {
    /// A value of a declared metric. `about` is what its title leaves open, `given` the unit of the work that it is
    /// divided by, or that of the metric where a workload chooses it.
    pub fn new(
        declared: &vtax_core::metric::Metric,
        about: &str,
        given: Unit,
        value: f64,
        source: Source,
    ) -> Self {
        Self {
            quantity: Quantity::new(value, declared.unit(given)),
            source,
            model: None,
            meter: None,
            better: declared.better,
            headline: declared.headline,
            title: declared.title(about),
        }
    }

    /// Whether a model computed it, even where its flag is a worse one.
    pub fn is_modelled(&self) -> bool {
        self.source == Source::Modelled || self.model.is_some()
    }
}

/// The useful work that a trial did, which costs are divided by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// How much was done in the measured window, in `unit`.
    pub amount: f64,
    /// GB, request, op, s.
    pub unit: Unit,
    /// One unit of it in words that follow "to", such as `receive 1 GB`.
    pub phrase: String,
}

impl Work {
    /// The phrase of a command whose work nothing counts.
    pub const ONCE: &str = "run the command once";
}

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "outcome", content = "reason")]
pub enum TrialOutcome {
    /// It ran and counts.
    Complete,
    /// It failed; the reason is for the reader.
    Failed(String),
}

/// What an actor is in its trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The guest that the treatment is about.
    Target,
    /// A guest beside it, loaded from before the warm-up until after the end.
    Neighbour,
    /// A load generator that drives one guest.
    Client,
}

/// A participant of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Actor {
    /// Its name, which is the owner of its samples: `target`, `client`, `pi`, `pi.client`.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Of a guest: the kind of its platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Of a guest: the kind of its workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Of a client: the guest that it drives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drives: Option<String>,
    /// Where it lived: `local`, `ssh:HOST`.
    pub place: String,
    /// Its metrics over the whole measured part; the target's are the trial's own.
    #[serde(default)]
    pub metrics: BTreeMap<String, Metric>,
    /// Facts about it; the target's are the trial's own.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

/// A part of a trial under one load level, between two marks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name, unique in the trial: `100 req/s`.
    pub name: String,
    /// The load that was asked for; `None` where guests take turns under a steady one.
    #[serde(default)]
    pub level: Option<Quantity>,
    /// Where it lies within `samples.parquet`, on its clock.
    pub window: (Nanoseconds, Nanoseconds),
    /// The work done in it.
    pub work: Option<Work>,
    /// The target's metrics, as [`Trial::metrics`].
    pub metrics: BTreeMap<String, Metric>,
    /// The other actors' metrics, by actor.
    #[serde(default)]
    pub others: BTreeMap<String, BTreeMap<String, Metric>>,
    /// Whether the objective held; `None` where there is none.
    #[serde(default)]
    pub kept: Option<bool>,
}

/// What had to hold in a trial, and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObjectiveOutcome {
    /// As written in the plan: `latency.p99 <= 20ms`.
    pub text: String,
    /// The highest level that kept it: the knee. `None` where even the lowest broke it.
    pub knee: Option<Quantity>,
    /// What broke it, and at which level, in words; `None` where it held to the last level, so that
    /// the knee is a lower bound.
    pub broke: Option<String>,
    /// The next level above the knee that was tried, and broke it. Absent in records that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Quantity>,
    /// The lowest level above the knee at which the load generator was late, where no judged level broke the objective:
    /// the knee is a lower bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_from: Option<Quantity>,
    /// The lowest level above the knee with too few requests for the quantile of the objective, where no judged level broke
    /// the objective: the knee is a lower bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsupported_from: Option<Quantity>,
}

/// The load of a level: the offered one where its unit is that of the level, else the one that was asked for.
pub fn offered_load(level: Quantity, metrics: &BTreeMap<String, Metric>) -> f64 {
    let offered = metrics.get(metric::OFFERED.name).map(|of| of.quantity);
    let offered = offered.filter(|of| of.unit == level.unit && of.value > 0.0);
    offered.map_or(level.value, |of| of.value)
}

/// The power of this host with no guest of the run on it, measured before a block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IdlePhase {
    /// When it began, RFC 3339.
    pub started: String,
    /// The block that it precedes.
    pub block: u32,
    /// Its length in seconds.
    pub seconds: f64,
    /// The mean power, by the meters of the run; `None` where they failed.
    pub watts: Option<f64>,
    /// The busy share of all processors' time, 0 to 1; `None` where it was not read.
    pub busy: Option<f64>,
    /// The reason why the host does not count as idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_idle: Option<String>,
}

impl IdlePhase {
    /// The power of the idle host; `None` where the host was busy, or no meter read it.
    pub fn idle_watts(&self) -> Option<f64> {
        if self.not_idle.is_none() {
            self.watts
        } else {
            None
        }
    }
}

/// The speed of this host beside a trial, by a fixed reference that ran natively before and after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Canary {
    /// SHA-256 of the reference's instructions: speeds of other instructions are not comparable.
    pub code: String,
    /// The speed of each part before the trial.
    pub before: BTreeMap<String, Speed>,
    /// The speed of each part after it.
    pub after: BTreeMap<String, Speed>,
}

/// The speed of one part of a [`Canary`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Rounds in a second of time.
    pub per_second: f64,
    /// Rounds in a second of processor time.
    pub per_cpu_second: f64,
}

/// Idle gaps of one processor in a trial's window: how long it was idle at a time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IdleGaps {
    /// The processor's number.
    pub processor: u32,
    /// The ages of gaps, the lowest first, without those that no gap reached: empty for a processor that was never idle.
    pub bins: Vec<IdleBin>,
}

/// The idle time of a processor in gaps from one age to twice that age; below 1 µs where the age is 0, and without an upper limit
/// in the last bin, from 1,048,576 µs. The sum over all ages is the idle time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct IdleBin {
    /// The age in µs: 0 or a power of two.
    pub from_us: u64,
    /// The number of gaps that reached this age in the window.
    pub gaps: u64,
    /// The idle time from this age to the next, in seconds.
    pub seconds: f64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(time: &Nanoseconds) -> bool {
    time.0 == 0
}

/// How long each phase of a trial took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// From nothing to a platform that answers.
    pub boot: Nanoseconds,
    /// Starting the service.
    pub service: Nanoseconds,
    /// The idle phase before a block, in its first trial.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle: Nanoseconds,
    /// Warm-up.
    pub warmup: Nanoseconds,
    /// The measured window.
    pub measured: Nanoseconds,
    /// Stopping, restoring, verifying, writing.
    pub teardown: Nanoseconds,
    /// The whole trial.
    pub total: Nanoseconds,
}

/// How the trial was watched: what that cost, and what its account and its energy are made of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ObservationCost {
    /// CPU time of the sampling thread in the whole trial.
    pub cpu: Nanoseconds,
    /// Sampling passes.
    pub passes: u64,
    /// Passes that were due and not taken.
    pub missed: u64,
    /// Processors of the target's host that were online. Absent in records that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<usize>,
    /// The host's series whose sum is `energy.total` and `power.mean`; empty where there is no energy, and in records
    /// that did not keep them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub energy: Vec<String>,
    /// The idle phase before the trial's block. Absent without a meter, and in records that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdlePhase>,
    /// Idle gaps of each processor of the target's host. Empty where BPF is not available, for which the trial's log has the
    /// reason, and in records that did not keep them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle_gaps: Vec<IdleGaps>,
    /// The speed of this host beside the trial. Absent where no canary ran, and in records that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}

/// `trial.json`: one trial, self-describing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// [`super::FORMAT`].
    pub format: u32,
    /// The position in the run's schedule, and the name of its directory.
    pub index: u32,
    /// The block it belongs to.
    pub block: u32,
    /// What was tried.
    pub treatment: Treatment,
    /// When it started, RFC 3339.
    pub started: String,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: TrialOutcome,
    /// Reasons not to trust it; a suspect trial is kept and shown, and left out of headlines.
    pub suspect: Vec<String>,
    /// What other programs, or the host itself, did beside it: it counts, and scatters more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbed: Vec<String>,
    /// How long each phase took.
    pub times: PhaseTimes,
    /// The measured window within `samples.parquet`, on its clock.
    pub window: (Nanoseconds, Nanoseconds),
    /// The work done in it.
    pub work: Option<Work>,
    /// Every metric by its stable name: `cpu.per_work`, `throughput`, `energy.per_work`.
    pub metrics: BTreeMap<String, Metric>,
    /// Facts about the platform: accelerator, machine type, versions, exact command line.
    pub environment: BTreeMap<String, String>,
    /// What watching cost.
    pub observation: ObservationCost,
    /// Who took part, the target first. Empty in records of format 1: one target and one client.
    #[serde(default)]
    pub actors: Vec<Actor>,
    /// The phases of the measured part where the load changed in it; empty where it was steady.
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// What had to hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<ObjectiveOutcome>,
}

/// How reasons begin that are disturbances, and what else they contain: the lab's words.
const DISTURBANCES: [(&str, &str); 5] = [
    ("other programs used ", " of CPU time, "),
    ("the hypervisor below this host took ", " of CPU time, "),
    ("the processor was throttled for heat: ", " times)"),
    ("the mean CPU frequency went from ", " MHz, "),
    ("the host swapped ", " pages in or out (limit "),
];

impl Trial {
    /// Moves the disturbances among the reasons for suspicion to their own list. Records that have none hold
    /// them there.
    pub(super) fn part_disturbances(&mut self) {
        let is_one = |reason: &String| {
            let mut known = DISTURBANCES.iter();
            known.any(|(start, part)| reason.starts_with(start) && reason.contains(part))
        };
        self.disturbed
            .extend(self.suspect.extract_if(.., |reason| is_one(reason)));
    }

    /// Gives every number the flag of a record of a run at `place`.
    pub(super) fn flag_as_recorded_at(&mut self, place: &str) {
        let of_actors = self.actors.iter_mut().map(|actor| &mut actor.metrics);
        let of_phases = self.phases.iter_mut().flat_map(|phase| {
            let others = phase.others.values_mut();
            others.chain([&mut phase.metrics])
        });
        let all = of_actors.chain(of_phases).chain([&mut self.metrics]);
        for metric in all.flat_map(BTreeMap::values_mut) {
            metric.source = metric.source.recorded_at(place);
        }
    }
}
