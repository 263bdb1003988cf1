//! The data of a report: a run, its treatments, their metrics, and its trials.

use super::{Comparison, Counts, Fleet, TreatmentSummary, by_key, by_label};
use crate::results::power_model;
use crate::stats::{SteadyState, Verdict};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use vtax_core::{Source, Unit};

/// Everything that can be said about a run.
#[derive(Debug, Clone, Serialize)]
pub struct Analysis {
    /// The results directory as it was given, of shards the first one's.
    #[serde(skip)]
    pub path: PathBuf,
    /// The run's name.
    pub name: String,
    /// What it wants to find out.
    pub description: String,
    /// Where it ran.
    pub place: String,
    /// `full` or `quick`.
    pub profile: String,
    /// When it started, RFC 3339.
    pub started: String,
    /// Seed of the order.
    pub seed: u64,
    /// SHA-256 of the plan.
    pub plan_sha256: String,
    /// Smallest relative difference that is called one.
    pub minimum_effect: f64,
    /// The worst flag of any headline number.
    pub source: Option<Source>,
    /// How the trials went.
    pub counts: Counts,
    /// True when some treatment has only suspect trials: then suspect trials are shown in the
    /// tables and figures after all, so that there is something to look at, and no difference is
    /// claimed.
    pub provisional: bool,
    /// What would help, where nothing counts: then no interval is given and nothing compared.
    pub advice: Option<String>,
    /// What was found, in plain words.
    pub sentences: Vec<Sentence>,
    /// Workloads in the plan's order.
    pub workloads: Vec<String>,
    /// Factors with more than one level, each with its levels in the plan's order.
    pub factors: BTreeMap<String, Vec<String>>,
    /// Every treatment in the plan's order.
    pub treatments: Vec<TreatmentSummary>,
    /// Every treatment against its baseline, every metric that has a direction.
    pub comparisons: Vec<Comparison>,
    /// Every trial in order.
    pub trials: Vec<TrialRow>,
    /// Attempts that were set aside and run again, by trial.
    pub attempts: Vec<AttemptRow>,
    /// Trials whose files could not be read, with the reason and the remedy.
    pub unreadable: Vec<String>,
    /// What watching cost, over all trials.
    pub observation: Observation,
    /// The machines that ran it.
    pub fleet: Fleet,
    /// What is seen of drift over blocks, order within blocks and correlation of blocks, in lines.
    pub checks: Vec<String>,
    /// The noise floor of headline comparisons, and how many trials were disturbed, in lines.
    pub noise: Vec<String>,
}

impl Analysis {
    /// The power models that computed joules of these trials, each in words.
    pub fn power_models(&self) -> BTreeSet<String> {
        let summaries = self.treatments.iter();
        summaries
            .filter_map(|summary| summary.environment.get(power_model::MODEL).cloned())
            .collect()
    }

    /// The workloads in the plan's order, each with its treatments in that order.
    pub fn by_workload(&self) -> Vec<(&str, Vec<&TreatmentSummary>)> {
        let mut own: HashMap<&str, Vec<&TreatmentSummary>> = HashMap::new();
        for summary in &self.treatments {
            let workload = summary.treatment.workload.as_str();
            own.entry(workload).or_default().push(summary);
        }
        let workloads = self.workloads.iter().map(String::as_str);
        workloads
            .map(|workload| (workload, own.remove(workload).unwrap_or_default()))
            .collect()
    }

    /// The treatments by label.
    pub fn by_label(&self) -> HashMap<&str, &TreatmentSummary> {
        by_label(&self.treatments)
    }

    /// The comparisons with baselines by the treatment's label and the metric's name.
    pub fn compared(&self) -> HashMap<(&str, &str), &Comparison> {
        by_key(&self.comparisons)
    }

    /// A treatment by its label.
    pub fn treatment(&self, label: &str) -> Option<&TreatmentSummary> {
        let mut all = self.treatments.iter();
        all.find(|summary| summary.treatment.label == label)
    }
}

/// An attempt at a trial that was set aside when the trial was run again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AttemptRow {
    /// The trial's position in the schedule.
    pub index: u32,
    /// Which attempt: `again-1`, `failed-2`.
    pub attempt: String,
    /// Label of its treatment.
    pub treatment: String,
    /// `suspect`, `failed` or `damaged`; `counts` where it was set aside without a reason in it.
    pub state: &'static str,
    /// Why.
    pub reason: String,
    /// What became of the trial: `counts`, `suspect`, `failed`, `damaged`, `not run yet`.
    pub replacement: &'static str,
}

/// What watching cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Observation {
    /// CPU time of the sampling threads per second of trial, in cores; `None` without trials.
    pub cores: Option<f64>,
    /// The worst trial's.
    pub worst_cores: Option<f64>,
    /// Sampling passes taken.
    pub passes: u64,
    /// Passes missed.
    pub missed: u64,
}

/// One sentence of the summary.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sentence {
    /// The sentence.
    pub text: String,
    /// The workload that it is about.
    pub workload: String,
    /// The platform that it is about.
    pub platform: String,
    /// The metric that it is about.
    pub metric: String,
    /// What may be said.
    pub verdict: Verdict,
    /// The flag of its number.
    pub source: Source,
}

/// One trial as a row.
#[derive(Debug, Clone, Serialize)]
pub struct TrialRow {
    /// Its position in the schedule.
    pub index: u32,
    /// Its block.
    pub block: u32,
    /// Label of its treatment.
    pub treatment: String,
    /// When it started.
    pub started: String,
    /// Why it failed, if it did.
    pub failed: Option<String>,
    /// Why not to trust it, if so.
    pub suspect: Vec<String>,
    /// What disturbed it, if anything did.
    pub disturbed: Vec<String>,
    /// Seconds by phase.
    pub phases: BTreeMap<&'static str, f64>,
    /// The sampling thread's CPU time per second of trial, in cores.
    pub observation_cores: Option<f64>,
    /// Steadiness by series.
    pub steady: BTreeMap<String, SteadyState>,
    /// Rates per second of the window by series, for figures.
    #[serde(skip)]
    pub series: Vec<RateSeries>,
}

impl TrialRow {
    /// `counts`, `suspect` or `failed`.
    pub fn state(&self) -> &'static str {
        match (&self.failed, self.suspect.is_empty()) {
            (Some(_), _) => "failed",
            (None, false) => "suspect",
            (None, true) => "counts",
        }
    }
}

/// The rate of one series over a trial's window.
#[derive(Debug, Clone, PartialEq)]
pub struct RateSeries {
    /// What it is, in words: `CPU`, `received`, `sent`.
    pub name: &'static str,
    /// Unit of the rates.
    pub unit: Unit,
    /// One rate per second of the window.
    pub rates: Vec<f64>,
}
