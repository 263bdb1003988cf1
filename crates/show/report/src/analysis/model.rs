// SPDX-License-Identifier: Apache-2.0
//! The data of a report: a run, its treatments, their metrics, and its trials.

use super::variants::is_across_variants;
use super::{
    Certainty, Comparison, Counts, Fleet, HostSpeed, TreatmentSummary, TrialQuantile, by_key,
    by_label,
};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use vtax_core::{Source, Unit, counted};
use vtax_results::numbers::percent;
use vtax_results::stats::{Interval, SteadyState, Unsupported, Verdict};
use vtax_results::{Accepted, RunPlan};

/// The analysis of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Analysis {
    /// The results directory as given; for shards, the first one.
    #[serde(skip)]
    pub path: PathBuf,
    /// The run's name.
    pub name: String,
    /// The question of the plan.
    pub description: String,
    /// Place of the run.
    pub place: String,
    /// `full` or `quick`.
    pub profile: String,
    /// Start of the run, RFC 3339.
    pub started: String,
    /// Seed of the trial order.
    pub seed: u64,
    /// SHA-256 of the plan.
    pub plan_sha256: String,
    /// The acceptance of the run as the reference of later ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<Accepted>,
    /// The plan.
    #[serde(skip)]
    pub plan: RunPlan,
    /// Smallest relative difference that counts as a difference.
    pub minimum_effect: f64,
    /// The worst source of any headline number.
    pub source: Option<Source>,
    /// Number of trials by outcome.
    pub counts: Counts,
    /// True when some treatment has only suspect trials. Tables and figures then include suspect trials, and no
    /// difference is claimed.
    pub provisional: bool,
    /// The remedy where no trial counts. The analysis then has no intervals and no comparisons.
    pub advice: Option<String>,
    /// The pairs of platforms that are two installations, one sentence each: an existing guest beside another one.
    pub installations: Vec<String>,
    /// The findings, one sentence each.
    pub sentences: Vec<Sentence>,
    /// Workloads in the plan's order.
    pub workloads: Vec<String>,
    /// Factors with more than one level, each with its levels in the plan's order.
    pub factors: BTreeMap<String, Vec<String>>,
    /// Every treatment in the plan's order.
    pub treatments: Vec<TreatmentSummary>,
    /// Every treatment against its baseline, for every metric with a direction.
    pub comparisons: Vec<Comparison>,
    /// Whether the intervals of ratios hold at every look at a growing run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sequential: bool,
    /// Changes of the taxes of platforms from the first variant to the others, in the headline metrics: `baseline` is the
    /// same variant on the platform that taxes refer to. Empty without variants.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tax_changes: Vec<Comparison>,
    /// Every trial in order.
    pub trials: Vec<TrialRow>,
    /// Attempts that were set aside and repeated, by trial.
    pub attempts: Vec<AttemptRow>,
    /// Trials whose files could not be read, with the reason and the remedy.
    pub unreadable: Vec<String>,
    /// Cost of observation, over all trials.
    pub observation: Observation,
    /// The machines of the run.
    pub fleet: Fleet,
    /// Results of the checks for drift over blocks, order within blocks and correlation of blocks, one line each.
    pub checks: Vec<String>,
    /// The shift functions of latencies.
    pub shifts: Vec<Shift>,
    /// The variance of headline metrics by level.
    pub variance: Vec<MetricVariance>,
    /// The origin of joules, the idle power of the run, and the energy that leads, in lines.
    pub energy: Vec<String>,
    /// The noise floor of headline comparisons and the number of disturbed trials, in lines.
    pub noise: Vec<String>,
    /// The speed of the host beside the trials; `None` without a canary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_speed: Option<HostSpeed>,
}

impl Analysis {
    /// The workloads and the treatments of each, both in the plan's order.
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

    /// The treatments that are compared with another variant on their platform.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &TreatmentSummary> {
        let labels = self.by_label();
        self.treatments.iter().filter(move |own| {
            let baseline = own.treatment.baseline.as_deref();
            let baseline = baseline.and_then(|label| labels.get(label));
            baseline.is_some_and(|other| is_across_variants(own, other))
        })
    }

    /// The name of the ratio to the baseline: of variants it is no tax.
    pub fn ratio_name(&self) -> &'static str {
        if self.has_variants() { "change" } else { "tax" }
    }

    /// Whether the run compares variants.
    pub fn has_variants(&self) -> bool {
        self.changed().next().is_some()
    }

    /// Whether a comparison is one between two variants on one platform.
    pub(crate) fn is_across_variants(&self, row: &Comparison) -> bool {
        let both = [&row.treatment, &row.baseline].map(|label| self.treatment(label));
        matches!(both, [Some(own), Some(other)] if is_across_variants(own, other))
    }

    /// The comparisons with baselines by the treatment's label and the metric's name.
    pub fn compared(&self) -> HashMap<(&str, &str), &Comparison> {
        by_key(&self.comparisons)
    }

    /// The treatment with this label.
    pub fn treatment(&self, label: &str) -> Option<&TreatmentSummary> {
        let mut all = self.treatments.iter();
        all.find(|summary| summary.treatment.label == label)
    }
}

/// An attempt at a trial that was set aside when the trial was repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AttemptRow {
    /// The trial's position in the schedule.
    pub index: u32,
    /// Kind and number of the attempt: `again-1`, `failed-2`.
    pub attempt: String,
    /// Label of its treatment.
    pub treatment: String,
    /// `suspect`, `disturbed`, `failed` or `damaged`; `counts` for an attempt without a reason to set it aside.
    pub state: &'static str,
    /// Reason for the state.
    pub reason: String,
    /// State of the replacement: `counts`, `suspect`, `failed`, `damaged`, `not run yet`.
    pub replacement: &'static str,
}

/// Cost of observation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Observation {
    /// CPU time of the sampling threads per second of trial, in cores; `None` without trials.
    pub cores: Option<f64>,
    /// The largest value of any trial.
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
    /// Workload of the finding.
    pub workload: String,
    /// Platform of the finding.
    pub platform: String,
    /// Metric of the finding.
    pub metric: String,
    /// Verdict of the comparison.
    pub verdict: Verdict,
    /// Source of the number.
    pub source: Source,
}

/// One trial as a row.
#[derive(Debug, Clone, Serialize)]
pub struct TrialRow {
    /// Position in the schedule.
    pub index: u32,
    /// Its block.
    pub block: u32,
    /// Label of its treatment.
    pub treatment: String,
    /// Start of the trial.
    pub started: String,
    /// Reason for failure, if it failed.
    pub failed: Option<String>,
    /// Reasons for suspicion.
    pub suspect: Vec<String>,
    /// Disturbances during the trial.
    pub disturbed: Vec<String>,
    /// Seconds by phase.
    pub phases: BTreeMap<&'static str, f64>,
    /// The sampling thread's CPU time per second of trial, in cores.
    pub observation_cores: Option<f64>,
    /// Steadiness by series.
    pub steady: BTreeMap<String, SteadyState>,
    /// The quantiles with a histogram, each with its interval within the trial.
    pub quantiles: Vec<TrialQuantile>,
    /// Rates per second of the window, by series, for figures.
    #[serde(skip)]
    pub series: Vec<RateSeries>,
}

impl TrialRow {
    /// Whether it is complete and not suspect.
    pub fn counts(&self) -> bool {
        self.state() == "counts"
    }

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
    /// Name of the series in words: `CPU`, `received`, `sent`.
    pub name: &'static str,
    /// Unit of the rates.
    pub unit: Unit,
    /// One rate per second of the window.
    pub rates: Vec<f64>,
    /// Whether each rate is a sample of its own, which it is not below one reading a second.
    pub has_reading_each: bool,
}

/// Half width of a ratio's interval, relative to the ratio, for which repetitions are recommended.
pub const WIDTH: f64 = 0.05;

/// The variance of one headline metric of one treatment by level.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricVariance {
    /// Label of the treatment.
    pub treatment: String,
    /// Name of the metric.
    pub metric: String,
    /// Name of the metric in tables.
    pub title: String,
    /// The levels that the data separate, lowest first.
    pub levels: Vec<LevelVariance>,
    /// Mean measured seconds of a trial.
    pub measured_seconds: f64,
    /// Measured seconds of a trial for which the mean is most precise in a given time; `None` where the data have no
    /// level of samples, or where trials add no variance.
    pub best_measured_seconds: Option<f64>,
    /// Repetitions for which the interval of the ratio is at most ±5 % wide; `None` for a baseline, and where they cannot
    /// be estimated.
    pub repetitions: Option<usize>,
    /// Noun of one repetition: `block`, or `machine` where the ratio is over machines.
    pub repetition: &'static str,
}

/// The variance component of one level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LevelVariance {
    /// `sample`, `trial`, `block` or `machine`.
    pub level: &'static str,
    /// Standard deviation, relative to the mean of the metric.
    pub sd: f64,
    /// Share of the variance of one sample; of one trial where there are no samples.
    pub share: f64,
}

impl MetricVariance {
    /// The variance component of a level.
    pub fn level(&self, name: &str) -> Option<&LevelVariance> {
        self.levels.iter().find(|of| of.level == name)
    }

    /// The recommended repetitions, `6 blocks for a ratio ±5 %`.
    pub fn needed_in_words(&self) -> Option<String> {
        let needed = counted(self.repetitions?, self.repetition);
        Some(format!("{needed} for a ratio ±{}", percent(WIDTH)))
    }

    /// The recommended length of the measured window, in words; `None` without samples.
    pub fn window_in_words(&self) -> Option<String> {
        self.level("sample")?;
        let now = self.measured_seconds;
        Some(match self.best_measured_seconds {
            Some(best) => format!("{best:.0} s (this run: {now:.0} s)"),
            None => format!("any: trials add no variance (this run: {now:.0} s)"),
        })
    }
}

impl LevelVariance {
    /// The share, and the standard deviation relative to the mean.
    pub fn in_words(&self) -> String {
        format!("{:.0} % (sd {})", 100.0 * self.share, percent(self.sd))
    }
}

/// The quantiles of a treatment's latencies against those of its baseline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shift {
    /// Label of the treatment.
    pub treatment: String,
    /// Label of its baseline.
    pub baseline: String,
    /// The workload.
    pub workload: String,
    /// The distribution: `latency`, `download`.
    pub distribution: String,
    /// The load level; `None` where the load was steady.
    pub level: Option<String>,
    /// Whether all treatments kept the objective at that level.
    pub level_is_kept: bool,
    /// Number of pairs, or of machines where the run has several.
    pub n: usize,
    /// Whether the units are machines, not pairs.
    pub over_machines: bool,
    /// What varies between the pairs.
    pub certainty: Certainty,
    /// Level of each interval; all of the workload's hold together at 95 %.
    pub confidence: f64,
    /// The quantiles that every trial supports, in rising order.
    pub points: Vec<ShiftPoint>,
    /// The quantiles that some trial does not support.
    pub unsupported: Vec<Unsupported>,
    /// The finding in one sentence.
    pub text: String,
    /// The worst source of the latencies.
    pub source: Source,
}

/// One quantile of a shift function.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ShiftPoint {
    /// The quantile, between 0 and 1.
    pub quantile: f64,
    /// Geometric mean over the pairs of the treatment's quantile, in seconds.
    pub treatment_seconds: f64,
    /// The same of the baseline.
    pub baseline_seconds: f64,
    /// Geometric mean of the ratios.
    pub ratio: f64,
    /// Its interval.
    pub interval: Interval,
    /// `different`, `same` or `no-difference-shown`.
    pub verdict: Verdict,
}

impl Shift {
    /// The strongest verdict of its quantiles; `same` only where all are.
    pub fn verdict(&self) -> Verdict {
        let has = |verdict| self.points.iter().any(|point| point.verdict == verdict);
        match (has(Verdict::Different), has(Verdict::NoDifferenceShown)) {
            (true, _) => Verdict::Different,
            (false, true) => Verdict::NoDifferenceShown,
            (false, false) => Verdict::Same,
        }
    }
}
