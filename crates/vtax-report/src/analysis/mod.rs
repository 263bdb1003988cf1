//! From trials to estimates, comparisons and sentences: everything that a report shows, as data.

pub(crate) mod certainty;
pub mod charge;
mod checks;
mod machines;
mod scenario;
pub(crate) mod words;

pub use certainty::Certainty;
pub use machines::{Disagreement, Fleet};
pub use scenario::{
    ActorSummary, Distribution, Layer, LevelSummary, ObjectiveSummary, Timeline, TimelinePhase,
};

use crate::numbers::{count, percent, ratio};
use crate::platforms;
use crate::results::{
    Better, HistogramRecord, Metric, ResultsDir, ResultsError, SampleKind, Samples, Treatment,
    Trial, TrialOutcome, is_difference, power_model, together,
};
use crate::stats::{
    self, Description, FEWEST_PAIRS, Interval, NoTax, SteadyState, Tax, Verdict,
    benjamini_hochberg, classify, describe, mean_interval, positive_mean_interval, rates, seed_of,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::path::PathBuf;
use vtax_core::{Base, Nanoseconds, Source, Unit, metric};

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

fn by_label(summaries: &[TreatmentSummary]) -> HashMap<&str, &TreatmentSummary> {
    let mut found = HashMap::new();
    for summary in summaries {
        found
            .entry(summary.treatment.label.as_str())
            .or_insert(summary);
    }
    found
}

/// Comparisons by the treatment's label and the metric's name.
pub fn by_key(comparisons: &[Comparison]) -> HashMap<(&str, &str), &Comparison> {
    let keyed = comparisons.iter().map(|one| {
        let key = (one.treatment.as_str(), one.metric.as_str());
        (key, one)
    });
    keyed.collect()
}

/// Each of `items` once, where it first stands.
pub fn distinct<T: Hash + Eq + Clone>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut known = HashSet::new();
    let mut items: Vec<T> = items.into_iter().collect();
    items.retain(|item| known.insert(item.clone()));
    items
}

/// Each metric once by its name, as it is first seen.
pub(crate) fn distinct_metrics<'a>(
    metrics: impl IntoIterator<Item = &'a MetricSummary>,
) -> Vec<&'a MetricSummary> {
    let mut known = HashSet::new();
    metrics
        .into_iter()
        .filter(|metric| known.insert(metric.name.as_str()))
        .collect()
}

/// One of the metrics that [`metric_summaries`] sorted, by its name.
pub(crate) fn find_metric<'a>(
    metrics: &'a [MetricSummary],
    name: &str,
) -> Option<&'a MetricSummary> {
    let (headlines, rest) = metrics.split_at(metrics.partition_point(|metric| metric.headline));
    [headlines, rest].into_iter().find_map(|part| {
        let place = part.binary_search_by(|metric| metric.name.as_str().cmp(name));
        part.get(place.ok()?)
    })
}

/// The headline metrics of a workload, each by the first treatment that has it; without any, the
/// first metric, so that there is something to look at.
pub(crate) fn headline_metrics<'a>(treatments: &[&'a TreatmentSummary]) -> Vec<&'a MetricSummary> {
    let all = || treatments.iter().flat_map(|summary| &summary.metrics);
    let mut metrics = distinct_metrics(all().filter(|metric| metric.headline));
    if metrics.is_empty() {
        metrics.extend(all().take(1));
    }
    metrics
}

/// How many trials went how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// In the schedule.
    pub planned: usize,
    /// Complete and trusted: these make the numbers.
    pub counted: usize,
    /// Complete, but with a reason for suspicion.
    pub suspect: usize,
    /// Failed.
    pub failed: usize,
    /// Not run yet.
    pub pending: usize,
    /// Damaged on disk.
    pub unreadable: usize,
}

impl Counts {
    /// How these trials went, all of those that were planned.
    fn of<'a>(trials: impl Iterator<Item = &'a Trial>) -> Self {
        let mut went = Self::default();
        for trial in trials {
            went.planned += 1;
            *match trial.outcome {
                TrialOutcome::Failed(_) => &mut went.failed,
                TrialOutcome::Complete if trial.suspect.is_empty() => &mut went.counted,
                TrialOutcome::Complete => &mut went.suspect,
            } += 1;
        }
        went
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

/// One treatment over its trials.
#[derive(Debug, Clone, Serialize)]
pub struct TreatmentSummary {
    /// The treatment.
    #[serde(flatten)]
    pub treatment: Treatment,
    /// Its name within its workload: the platform, and the levels that set it apart.
    pub short: String,
    /// Its name in sentences: `a VM (QEMU, TCG emulation)`.
    pub noun: String,
    /// How its trials went.
    pub counts: Counts,
    /// Its metrics, headlines first, then by name.
    pub metrics: Vec<MetricSummary>,
    /// Steadiness by series: the class that its trials share, or inconsistent.
    pub steady: BTreeMap<String, SteadyState>,
    /// Facts about the platform, from its first trial.
    pub environment: BTreeMap<String, String>,
    /// Mean seconds by phase: boot, service, warmup, measured, teardown, total.
    pub phases: BTreeMap<&'static str, f64>,
    /// Its load levels, where the load changed within trials.
    pub levels: Vec<LevelSummary>,
    /// How its objective fared, where it has one.
    pub objective: Option<ObjectiveSummary>,
    /// The actors beside the target.
    pub actors: Vec<ActorSummary>,
    /// Its distributions.
    #[serde(skip)]
    pub distributions: Vec<Distribution>,
    /// Its first trial over time, where it is more than one guest under one steady load.
    #[serde(skip)]
    pub timeline: Option<Timeline>,
}

impl TreatmentSummary {
    /// Whether guests ran beside the target.
    pub fn has_neighbours(&self) -> bool {
        let mut actors = self.actors.iter();
        actors.any(|actor| actor.role == crate::results::Role::Neighbour)
    }

    /// One metric by name.
    pub fn metric(&self, name: &str) -> Option<&MetricSummary> {
        find_metric(&self.metrics, name)
    }

    /// Its knee in words, with what broke the objective; `None` where it has no objective.
    pub fn knee_in_words(&self) -> Option<String> {
        words::knee(self)
    }

    /// Of trials that do not count there are values, but nothing to infer from them.
    fn forget_intervals(&mut self) {
        let levels = self.levels.iter_mut().map(|level| &mut level.metrics);
        let actors = self.actors.iter_mut().map(|actor| &mut actor.metrics);
        let all = levels.chain(actors).chain([&mut self.metrics]);
        all.flatten().for_each(|metric| metric.interval = None);
    }
}

/// One metric of one treatment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricSummary {
    /// Its stable name.
    pub name: String,
    /// Its name in tables.
    pub title: String,
    /// Unit of every number here.
    pub unit: Unit,
    /// Which direction is better.
    pub better: Better,
    /// Whether a summary leads with it.
    pub headline: bool,
    /// The worst flag of its trials.
    pub source: Source,
    /// Whether a model computed any of it, whatever else is true of it.
    pub modelled: bool,
    /// n, mean, median, standard deviation.
    #[serde(flatten)]
    pub description: Description,
    /// What its repetitions vary.
    pub certainty: Certainty,
    /// 95 % confidence interval of the mean; `None` where it is exact, or of a single trial.
    pub interval: Option<Interval>,
    /// The value of each trial that counts: index, value.
    pub values: Vec<(u32, f64)>,
}

/// One treatment against its baseline in one metric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Label of the treatment.
    pub treatment: String,
    /// Label of its baseline.
    pub baseline: String,
    /// The workload.
    pub workload: String,
    /// The treatment's platform.
    pub platform: String,
    /// The metric's stable name.
    pub metric: String,
    /// Its name in tables.
    pub title: String,
    /// Which direction is better.
    pub better: Better,
    /// Whether a summary leads with it.
    pub headline: bool,
    /// The worse flag of the two.
    pub source: Source,
    /// Whether one of the two comes from a model, whatever else is true of it.
    pub modelled: bool,
    /// The ratio; `None` with a note where there is none.
    pub ratio: Option<f64>,
    /// What the repetitions of both vary; then the interval and the verdict speak of that.
    pub certainty: Certainty,
    /// What a sample says of the ratio; `None` where it is exact.
    pub tax: Option<Tax>,
    /// Student's p adjusted for the family of comparisons (Benjamini and Hochberg).
    pub adjusted_p: Option<f64>,
    /// How many comparisons that family has.
    pub family: usize,
    /// What may be said.
    pub verdict: Verdict,
    /// How many repetitions would show how much, where neither a difference nor equality is shown.
    pub needed: Option<Needed>,
    /// The Hodges–Lehmann estimate of the ratio, where pairs are outliers by Tukey's fences.
    pub robust_ratio: Option<f64>,
    /// Whether the sample is of machines, each of which counts once, not of pairs.
    pub over_machines: bool,
    /// Why there is no ratio, or what else a reader must know.
    pub note: Option<String>,
    /// How much the machines that ran it disagree, where several did.
    pub machines: Option<Disagreement>,
}

/// How many repetitions show an effect with a chance of 80 %, by the scatter that was observed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Needed {
    /// The effect: the plan's minimum effect, 0.02 where it has none.
    pub effect: f64,
    /// Repetitions, in all.
    pub n: usize,
    /// Those beyond the ones that there are.
    pub more: usize,
}

impl Comparison {
    /// Of one metric, not yet judged. `other` is the baseline's, which may lack it; `sampled` is what
    /// their values say where these are a sample.
    pub(crate) fn of(
        treatment: &Treatment,
        baseline: &Treatment,
        metric: &MetricSummary,
        other: Option<&MetricSummary>,
        sampled: impl FnOnce(&MetricSummary) -> Result<Tax, NoTax>,
    ) -> Self {
        let certainty = other.map_or(metric.certainty, |other| {
            metric.certainty.with(other.certainty)
        });
        let found = match other {
            None => Err(NoTax::NoTrials),
            Some(other) if certainty.is_exact() => {
                let means = (metric.description.mean, other.description.mean);
                stats::exact_ratio(means.0, means.1).map(|ratio| (ratio, None))
            }
            Some(other) => sampled(other).map(|tax| (tax.ratio, Some(tax))),
        };
        Self {
            treatment: treatment.label.clone(),
            baseline: baseline.label.clone(),
            workload: treatment.workload.clone(),
            platform: treatment.platform.clone(),
            metric: metric.name.clone(),
            title: metric.title.clone(),
            better: metric.better,
            headline: metric.headline,
            source: other.map_or(metric.source, |other| metric.source.combine(other.source)),
            modelled: [Some(metric), other]
                .into_iter()
                .flatten()
                .any(|one| one.modelled),
            note: match &found {
                Err(none) => Some(none.to_string()),
                Ok(_) => other.and_then(|other| metric.certainty.apart(other.certainty)),
            },
            ratio: found.ok().map(|(ratio, _)| ratio),
            certainty,
            tax: found.ok().and_then(|(_, tax)| tax),
            adjusted_p: None,
            family: 0,
            verdict: Verdict::NoRatio,
            needed: None,
            robust_ratio: None,
            over_machines: false,
            machines: None,
        }
    }

    /// Adds to what else a reader must know.
    pub(crate) fn add_note(&mut self, more: String) {
        match &mut self.note {
            Some(note) => *note = format!("{note}; {more}"),
            None => self.note = Some(more),
        }
    }

    /// What would show an effect, `5 more blocks would show 2 %`; `None` where that is not known.
    pub fn needed_in_words(&self) -> Option<String> {
        let Needed { effect, more, .. } = self.needed?;
        let effect = percent(effect);
        Some(match (more, self.over_machines, self.tax?.paired) {
            (0, ..) => format!("enough to show {effect}"),
            (more, true, _) => format!("{} would show {effect}", further(more, "machine")),
            (more, false, true) if self.certainty == Certainty::Seeds => {
                format!("{} would show {effect}", further(more, "seed"))
            }
            (more, false, true) => format!("{} would show {effect}", further(more, "block")),
            (more, false, false) => {
                format!("{} of each would show {effect}", further(more, "trial"))
            }
        })
    }

    /// Nothing is claimed of trials that are suspect.
    pub(crate) fn make_provisional(&mut self) {
        if self.ratio.is_none() {
            return;
        }
        self.verdict = Verdict::Suspect;
        self.needed = None;
        self.note = Some("the trials are suspect: run again on a quiet host".to_owned());
    }

    /// The ratio with its interval, `3.1× [2.9–3.3]`, or `exactly 3.1×`; `None` where there is none.
    pub fn ratio_in_words(&self) -> Option<String> {
        let interval = self.tax.and_then(|tax| tax.interval);
        let shown = ratio(self.ratio?, interval).line();
        Some(if self.certainty.is_exact() {
            format!("exactly {shown}")
        } else {
            shown
        })
    }

    /// How many repetitions the ratio comes from: `4 seeds`, `5 pairs`; `None` without a ratio.
    pub fn repetitions(&self) -> Option<String> {
        let (n, paired) = match self.tax {
            Some(tax) => (tax.n, tax.paired),
            None => (1, self.ratio.map(|_| true)?),
        };
        let repetition = match self.over_machines {
            true => "machine",
            false => self.certainty.repetition(paired),
        };
        Some(count(n, repetition))
    }
}

/// `1 more block`, `2 more blocks`.
fn further(n: usize, noun: &str) -> String {
    count(n, &format!("more {noun}"))
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

/// Series whose steadiness is judged: metric of the target, its name, and its direction. Metrics of the
/// network count what the host sees, which sends what the target receives.
const STEADY_SERIES: [(&str, &str, Better); 3] = [
    ("cpu.total_ns", "CPU", Better::Lower),
    ("net.tx_bytes", "received", Better::Higher),
    ("net.rx_bytes", "sent", Better::Higher),
];

/// Analyses one results directory; it may be unfinished.
///
/// # Errors
/// Never for a single trial: what cannot be read is listed in the analysis.
pub fn analyse(results: &ResultsDir) -> Result<Analysis, ResultsError> {
    analyse_shards(&[results])
}

/// Analyses the shards of one run together.
///
/// # Errors
/// When they are not shards of one run, or there is none.
pub fn analyse_shards(shards: &[&ResultsDir]) -> Result<Analysis, ResultsError> {
    let Some(first) = shards.first() else {
        return Err(ResultsError::NotARun(PathBuf::new()));
    };
    let together = together(shards)?;
    let planned = first.run().schedule.len();
    let missing = planned.saturating_sub(together.trials.len());
    let fleet = Fleet::of(&together, &first.run().place);
    let (mut trials, unreadable) = read(&together.trials);
    certainty::set_stuck_apart(
        &mut trials
            .iter_mut()
            .map(|read| &mut read.trial)
            .collect::<Vec<_>>(),
    );
    let run = first.run();
    let treatments = every_treatment(&run.treatments, &trials);
    let factors = varied_factors(&treatments);
    let rows: Vec<TrialRow> = trials
        .iter()
        .map(|read| row(&read.trial, &read.samples))
        .collect();
    let went = Counts::of(trials.iter().map(|read| &read.trial));
    let provisional = lacks_trustworthy_trials(&trials);
    if provisional {
        // The rows above keep the reasons; the statistics below use every completed trial.
        trials
            .iter_mut()
            .for_each(|read| read.trial.suspect.clear());
    }
    let mut own: HashMap<&str, Vec<(&Read, &TrialRow)>> = HashMap::new();
    for (read, row) in trials.iter().zip(&rows) {
        let label = read.trial.treatment.label.as_str();
        own.entry(label).or_default().push((read, row));
    }
    let shorts = words::shorts(&treatments, &factors);
    let mut summaries: Vec<TreatmentSummary> = treatments
        .iter()
        .zip(shorts)
        .map(|(treatment, short)| {
            let own = own.get(treatment.label.as_str());
            summarise(treatment, short, own.map_or(&[], Vec::as_slice))
        })
        .collect();
    words::tell_nouns_apart(&mut summaries);
    let advice = (provisional && went.counted == 0).then(|| words::advice(&rows, &run.place));
    if advice.is_some() {
        summaries
            .iter_mut()
            .for_each(TreatmentSummary::forget_intervals);
    }
    let mut comparisons = match advice {
        None => compare_with_baselines(&summaries, &trials),
        Some(_) => Vec::new(),
    };
    let labels = by_label(&summaries);
    let block_of = blocks(&trials);
    let pairs_of = |comparison: &Comparison| {
        let metric = |label: &str| labels.get(label)?.metric(&comparison.metric);
        let both = metric(&comparison.treatment).zip(metric(&comparison.baseline));
        both.map_or_else(Vec::new, |(own, other)| {
            checks::pairs(own, other, &block_of)
        })
    };
    for comparison in &mut comparisons {
        let pairs = pairs_of(comparison);
        checks::note_outliers(comparison, &pairs);
    }
    fleet.judge(&mut comparisons, pairs_of);
    judge(&mut comparisons, run.minimum_effect);
    if provisional {
        for comparison in &mut comparisons {
            comparison.make_provisional();
        }
    }
    let compared = comparisons.iter().map(|one| (one, pairs_of(one)));
    let compared: Vec<(&Comparison, checks::Pairs)> = compared.collect();
    let checks = match provisional {
        true => Vec::new(),
        false => checks::lines(&summaries, &compared, &places(&block_of)),
    };
    let workloads = distinct(treatments.iter().map(|of| of.workload.clone()));
    let source = summaries
        .iter()
        .flat_map(|summary| &summary.metrics)
        .filter(|metric| metric.headline)
        .map(|metric| metric.source)
        .max();
    let mut analysis = Analysis {
        path: first.path().to_owned(),
        name: run.name.clone(),
        description: run.description.clone(),
        place: run.place.clone(),
        profile: run.profile.clone(),
        started: run.started.clone(),
        seed: run.seed,
        plan_sha256: run.plan_sha256.clone(),
        minimum_effect: run.minimum_effect,
        source,
        counts: Counts {
            planned: run.schedule.len(),
            pending: missing,
            unreadable: unreadable.len(),
            ..went
        },
        provisional,
        advice,
        sentences: Vec::new(),
        workloads,
        factors,
        treatments: summaries,
        comparisons,
        observation: observation(&trials),
        fleet,
        checks,
        attempts: attempts(shards, &rows),
        trials: rows,
        unreadable,
    };
    analysis.sentences = words::sentences(&analysis, &trials);
    Ok(analysis)
}

/// A trial with what else is read of it.
struct Read {
    trial: Trial,
    /// The series whose steadiness is judged.
    samples: Vec<Samples>,
    histograms: Vec<HistogramRecord>,
    timeline: Option<Timeline>,
}

/// Every readable trial with its samples, and what could not be read.
fn read(work: &BTreeMap<u32, &ResultsDir>) -> (Vec<Read>, Vec<String>) {
    let work: Vec<(u32, &ResultsDir)> = work.iter().map(|(index, from)| (*index, *from)).collect();
    // Reading is decoding, so it is spread over the processors.
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(8);
    let share = work.len().div_ceil(threads).max(1);
    let mut trials = Vec::new();
    let mut unreadable = Vec::new();
    std::thread::scope(|scope| {
        let readers: Vec<_> = work
            .chunks(share)
            .map(|part| {
                scope.spawn(move || {
                    part.iter()
                        .map(|(index, from)| read_one(from, *index))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        for reader in readers {
            for result in reader.join().unwrap_or_default() {
                let (trial, problems) = result;
                trials.extend(trial);
                unreadable.extend(problems);
            }
        }
    });
    (trials, unreadable)
}

fn read_one(from: &ResultsDir, index: u32) -> (Option<Read>, Vec<String>) {
    let trial = match from.trial(index) {
        Ok(trial) => trial,
        Err(error) => return (None, vec![error.to_string()]),
    };
    let is_steadiness = |owner: &str, metric: &str| {
        owner == "target" && STEADY_SERIES.iter().any(|(name, ..)| *name == metric)
    };
    let is_scenario = scenario::is_scenario(&trial);
    let wanted = |owner: &str, metric: &str| {
        is_steadiness(owner, metric) || (is_scenario && scenario::is_wanted(owner, metric))
    };
    let mut problems = Vec::new();
    let mut samples = Vec::new();
    if from.has_samples(index) {
        match from.samples(index).and_then(|reader| reader.load(wanted)) {
            Ok(found) => samples = found,
            Err(error) => problems.push(error.to_string()),
        }
    }
    let histograms = from.histograms(index).unwrap_or_else(|error| {
        problems.push(error.to_string());
        Vec::new()
    });
    let timeline = is_scenario.then(|| scenario::timeline(&trial, &samples));
    samples.retain(|samples| is_steadiness(&samples.series.owner, &samples.series.metric));
    let read = Read {
        trial,
        samples,
        histograms,
        timeline,
    };
    (Some(read), problems)
}

/// Whether a trial's numbers are part of the headlines.
fn counts(trial: &Trial) -> bool {
    trial.outcome == TrialOutcome::Complete && trial.suspect.is_empty()
}

/// Whether some treatment completed trials and all of them are suspect.
fn lacks_trustworthy_trials(trials: &[Read]) -> bool {
    let labels = |of: fn(&Trial) -> bool| -> HashSet<&str> {
        let own = trials.iter().filter(|read| of(&read.trial));
        own.map(|read| read.trial.treatment.label.as_str())
            .collect()
    };
    let completed = labels(|trial| trial.outcome == TrialOutcome::Complete);
    !completed.is_subset(&labels(counts))
}

/// What was set aside in any of the shards, and what became of it.
fn attempts(shards: &[&ResultsDir], rows: &[TrialRow]) -> Vec<AttemptRow> {
    let rows: HashMap<u32, &TrialRow> = rows.iter().map(|row| (row.index, row)).collect();
    let mut attempts: Vec<AttemptRow> = shards
        .iter()
        .flat_map(|shard| {
            shard.attempts().into_iter().map(|attempt| {
                let (state, reason) = match &attempt.trial {
                    Err(error) => ("damaged", error.to_string()),
                    Ok(trial) => match &trial.outcome {
                        TrialOutcome::Failed(reason) => ("failed", reason.clone()),
                        TrialOutcome::Complete if trial.suspect.is_empty() => (
                            "counts",
                            "set aside by hand, or its files are damaged".to_owned(),
                        ),
                        TrialOutcome::Complete => ("suspect", trial.suspect.join("; ")),
                    },
                };
                let row = rows.get(&attempt.index);
                let entry = usize::try_from(attempt.index)
                    .ok()
                    .and_then(|index| shard.run().schedule.get(index));
                let planned = entry.and_then(|entry| shard.run().treatments.get(entry.treatment));
                AttemptRow {
                    index: attempt.index,
                    attempt: format!("{}-{}", attempt.aside.name(), attempt.number),
                    treatment: planned.map_or_else(String::new, |known| known.label.clone()),
                    state,
                    reason,
                    replacement: match row {
                        Some(row) => row.state(),
                        None if shard.has_trial(attempt.index) => "damaged",
                        None => "not run yet",
                    },
                }
            })
        })
        .collect();
    attempts.sort_by(|a, b| (a.index, &a.attempt).cmp(&(b.index, &b.attempt)));
    attempts
}

/// The plan's treatments, then any that only trials know.
fn every_treatment(planned: &[Treatment], trials: &[Read]) -> Vec<Treatment> {
    let mut known: HashSet<&str> = planned.iter().map(|one| one.label.as_str()).collect();
    let run = trials.iter().map(|read| &read.trial.treatment);
    let others = run.filter(|treatment| known.insert(&treatment.label));
    planned.iter().chain(others).cloned().collect()
}

fn varied_factors(treatments: &[Treatment]) -> BTreeMap<String, Vec<String>> {
    let levels = treatments.iter().flat_map(|treatment| &treatment.factors);
    let mut factors: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, level) in distinct(levels) {
        factors.entry(name.clone()).or_default().push(level.clone());
    }
    factors.retain(|_, levels| levels.len() > 1);
    factors
}

fn phases(trial: &Trial) -> BTreeMap<&'static str, f64> {
    let times = &trial.times;
    [
        ("boot", times.boot),
        ("service", times.service),
        ("warmup", times.warmup),
        ("measured", times.measured),
        ("teardown", times.teardown),
        ("total", times.total),
    ]
    .into_iter()
    .map(|(name, time)| (name, time.as_secs_f64()))
    .collect()
}

fn observation_cores(trial: &Trial) -> Option<f64> {
    let observed = trial.times.warmup.as_secs_f64() + trial.times.measured.as_secs_f64();
    (observed > 0.0 && trial.observation.passes > 0)
        .then(|| trial.observation.cpu.as_secs_f64() / observed)
}

fn observation(trials: &[Read]) -> Observation {
    let cores: Vec<f64> = trials
        .iter()
        .filter_map(|Read { trial, .. }| observation_cores(trial))
        .collect();
    let total = |of: fn(&Trial) -> u64| {
        trials.iter().fold(0u64, |sum, Read { trial, .. }| {
            sum.saturating_add(of(trial))
        })
    };
    Observation {
        cores: stats::mean(&cores),
        worst_cores: cores.iter().copied().reduce(f64::max),
        passes: total(|trial| trial.observation.passes),
        missed: total(|trial| trial.observation.missed),
    }
}

fn row(trial: &Trial, samples: &[Samples]) -> TrialRow {
    let mut series = Vec::new();
    let mut steady = BTreeMap::new();
    for (metric, name, better) in STEADY_SERIES {
        let Some(samples) = samples
            .iter()
            .find(|samples| samples.series.metric == metric)
        else {
            continue;
        };
        let found = rates(
            &samples.points,
            samples.series.kind,
            trial.window,
            Nanoseconds(1_000_000_000),
        );
        let (unit, scale) = match (samples.series.kind, samples.series.unit.base) {
            (SampleKind::Counter, Base::Nanosecond) => (Unit::of(Base::Core), 1e9),
            (SampleKind::Counter, Base::Second) => (Unit::of(Base::Core), 1.0),
            (SampleKind::Counter, base) => (Unit::per(base, Base::Second), 1.0),
            (SampleKind::Gauge, _) => (samples.series.unit, 1.0),
        };
        let found: Vec<f64> = found.iter().map(|rate| rate / scale).collect();
        // An idle direction (acknowledgements, stray frames) has no steadiness worth reporting.
        let quiet = match unit.base {
            Base::Byte => 10_000.0,
            _ => 0.001,
        };
        if stats::mean(&found).is_none_or(|mean| mean < quiet) {
            continue;
        }
        // Where the load changes, so does everything else: nothing is steady, and needs not be.
        if trial.phases.is_empty() {
            steady.insert(name.to_owned(), classify(&found, better).class);
        }
        series.push(RateSeries {
            name,
            unit,
            rates: found,
        });
    }
    TrialRow {
        index: trial.index,
        block: trial.block,
        treatment: trial.treatment.label.clone(),
        started: trial.started.clone(),
        failed: match &trial.outcome {
            TrialOutcome::Complete => None,
            TrialOutcome::Failed(reason) => Some(reason.clone()),
        },
        suspect: trial.suspect.clone(),
        phases: phases(trial),
        observation_cores: observation_cores(trial),
        steady,
        series,
    }
}

fn summarise(treatment: &Treatment, short: String, own: &[(&Read, &TrialRow)]) -> TreatmentSummary {
    let read: Vec<&Read> = own.iter().map(|(read, _)| *read).collect();
    let mine: Vec<&Trial> = read.iter().map(|read| &read.trial).collect();
    let counted: Vec<&Trial> = mine.iter().copied().filter(|trial| counts(trial)).collect();
    let read: Vec<&Read> = read
        .into_iter()
        .filter(|read| counts(&read.trial))
        .collect();
    let found: Vec<(u32, &BTreeMap<String, Metric>)> = counted
        .iter()
        .map(|trial| (trial.index, &trial.metrics))
        .collect();
    let metrics = metric_summaries(&[&treatment.label], &found, Certainty::of(&counted));
    let mut steady: BTreeMap<String, SteadyState> = BTreeMap::new();
    let rows = own.iter().map(|(_, row)| row);
    for row in rows.filter(|row| row.failed.is_none() && row.suspect.is_empty()) {
        for (series, class) in &row.steady {
            steady
                .entry(series.clone())
                .and_modify(|shared| {
                    if shared != class {
                        *shared = SteadyState::Inconsistent;
                    }
                })
                .or_insert(*class);
        }
    }
    let mut sums: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for trial in &counted {
        for (phase, seconds) in phases(trial) {
            sums.entry(phase).or_default().push(seconds);
        }
    }
    let environment = mine
        .first()
        .map(|trial| trial.environment.clone())
        .unwrap_or_default();
    TreatmentSummary {
        short,
        noun: platforms::noun(treatment, &environment),
        treatment: treatment.clone(),
        counts: Counts::of(mine.iter().copied()),
        metrics,
        steady,
        environment,
        phases: sums
            .into_iter()
            .filter_map(|(phase, values)| Some((phase, stats::mean(&values)?)))
            .collect(),
        levels: scenario::levels(treatment, &counted),
        objective: scenario::objective(&counted),
        actors: scenario::actors(treatment, &counted),
        distributions: scenario::distributions(&read),
        timeline: read.iter().find_map(|read| read.timeline.clone()),
    }
}

/// Every metric of `found` (the metrics of each trial, by its index), headlines first, then by
/// name. `whose` tells the seeds of their intervals apart.
fn metric_summaries(
    whose: &[&str],
    found: &[(u32, &BTreeMap<String, Metric>)],
    certainty: Certainty,
) -> Vec<MetricSummary> {
    let names: BTreeSet<&String> = found
        .iter()
        .flat_map(|(_, metrics)| metrics.keys())
        .collect();
    let mut summaries: Vec<MetricSummary> = names
        .into_iter()
        .filter_map(|name| {
            let values = found
                .iter()
                .filter_map(|(index, metrics)| Some((*index, metrics.get(name)?)));
            metric_summary(whose, name, values.collect(), certainty)
        })
        .collect();
    summaries.sort_by_key(|metric| !metric.headline);
    summaries
}

fn metric_summary(
    whose: &[&str],
    name: &str,
    mut metrics: Vec<(u32, &Metric)>,
    certainty: Certainty,
) -> Option<MetricSummary> {
    let first = metrics.first()?.1;
    // A unit that changed between trials would make the mean meaningless.
    metrics.retain(|(_, metric)| {
        metric.quantity.unit == first.quantity.unit && metric.quantity.value.is_finite()
    });
    let values: Vec<f64> = metrics
        .iter()
        .map(|(_, metric)| metric.quantity.value)
        .collect();
    let seed = seed_of(&[&["mean"], whose, &[name]].concat());
    let certainty = certainty.of_values(&values);
    let interval = match certainty {
        Certainty::Exact { .. } => None,
        _ if is_difference(name) => mean_interval(&values, seed),
        _ => positive_mean_interval(&values, seed),
    };
    Some(MetricSummary {
        name: name.to_owned(),
        title: first.title.clone(),
        unit: first.quantity.unit,
        better: first.better,
        headline: first.headline,
        source: metrics.iter().map(|(_, metric)| metric.source).max()?,
        modelled: metrics.iter().any(|(_, metric)| metric.is_modelled()),
        description: describe(&values)?,
        certainty,
        interval,
        values: metrics
            .iter()
            .map(|(index, metric)| (*index, metric.quantity.value))
            .collect(),
    })
}

/// The block of each trial, by its index.
fn blocks(trials: &[Read]) -> BTreeMap<u32, u32> {
    let trials = trials.iter().map(|read| &read.trial);
    trials.map(|trial| (trial.index, trial.block)).collect()
}

/// The place of each trial in its block, by the order of the schedule.
fn places(block_of: &BTreeMap<u32, u32>) -> BTreeMap<u32, usize> {
    let mut lengths: BTreeMap<u32, usize> = BTreeMap::new();
    let trials = block_of.iter().map(|(index, block)| {
        let length = lengths.entry(*block).or_default();
        *length += 1;
        (*index, *length)
    });
    trials.collect()
}

fn compare_with_baselines(summaries: &[TreatmentSummary], trials: &[Read]) -> Vec<Comparison> {
    let block_of = blocks(trials);
    let labels = by_label(summaries);
    let mut comparisons = Vec::new();
    for summary in summaries {
        let Some(baseline_label) = &summary.treatment.baseline else {
            continue;
        };
        let Some(baseline) = labels.get(baseline_label.as_str()) else {
            continue;
        };
        for metric in summary
            .metrics
            .iter()
            .filter(|metric| metric.better != Better::Neither)
        {
            let other = baseline
                .metric(&metric.name)
                .filter(|other| other.unit == metric.unit);
            let seed = seed_of(&[
                "tax",
                &summary.treatment.label,
                baseline_label,
                &metric.name,
            ]);
            let mut dropped = 0;
            let sampled = |other: &MetricSummary| {
                let tax;
                (tax, dropped) = tax_of(metric, other, &block_of, seed);
                tax
            };
            let treatment = &summary.treatment;
            let mut comparison =
                Comparison::of(treatment, &baseline.treatment, metric, other, sampled);
            if comparison.ratio.is_some() && comparison.note.is_none() {
                comparison.note = if comparison.tax.is_some_and(|tax| !tax.paired) {
                    Some("blocks are incomplete: compared without pairing".to_owned())
                } else if dropped > 0 {
                    Some(format!(
                        "{} without a partner in its block left out",
                        count(dropped, "trial")
                    ))
                } else if metric::KNEE.is(&metric.name) {
                    words::bounds(summary, baseline)
                } else {
                    None
                };
            }
            comparisons.push(comparison);
        }
    }
    comparisons
}

/// Pairs by block where blocks allow it: every trial has a partner, or at least four pairs exist.
/// Also says how many trials were left out for want of a partner.
fn tax_of(
    metric: &MetricSummary,
    baseline: &MetricSummary,
    block_of: &BTreeMap<u32, u32>,
    seed: u64,
) -> (Result<Tax, NoTax>, usize) {
    let pairs = checks::pairs(metric, baseline, block_of);
    let complete = pairs.len() == metric.values.len() && pairs.len() == baseline.values.len();
    if complete || pairs.len() >= FEWEST_PAIRS {
        let values = pairs.iter().map(|(_, value, other)| (*value, *other));
        let (treatment, baseline_values): (Vec<f64>, Vec<f64>) = values.unzip();
        let dropped = metric.values.len() + baseline.values.len() - 2 * pairs.len();
        return (
            stats::paired_tax(&treatment, &baseline_values, seed),
            dropped,
        );
    }
    let values = |metric: &MetricSummary| -> Vec<f64> {
        metric.values.iter().map(|(_, value)| *value).collect()
    };
    (
        stats::unpaired_tax(&values(metric), &values(baseline), seed),
        0,
    )
}

/// Adjusts p within each family (the headlines, and the rest) and gives the verdicts. What is exact
/// needs no test.
pub(crate) fn judge(comparisons: &mut [Comparison], minimum_effect: f64) {
    for comparison in comparisons.iter_mut() {
        if let (true, Some(ratio)) = (comparison.certainty.is_exact(), comparison.ratio) {
            comparison.verdict = stats::exact_verdict(ratio, minimum_effect);
        }
    }
    for headline in [true, false] {
        let family: Vec<&mut Comparison> = comparisons
            .iter_mut()
            .filter(|comparison| comparison.headline == headline && comparison.tax.is_some())
            .collect();
        let p: Vec<f64> = family
            .iter()
            .filter_map(|comparison| Some(comparison.tax?.student_p))
            .collect();
        let size = p.len();
        for (comparison, adjusted) in family.into_iter().zip(benjamini_hochberg(&p)) {
            let Some(tax) = comparison.tax else { continue };
            comparison.adjusted_p = Some(adjusted);
            comparison.family = size;
            comparison.verdict = stats::verdict(&tax, adjusted, minimum_effect);
            let alone = stats::verdict(&tax, tax.student_p, minimum_effect);
            if comparison.verdict != alone {
                comparison.add_note(format!(
                    "on its own p = {:.3}; among {size} comparisons {adjusted:.3}: more repetitions would decide",
                    tax.student_p
                ));
            } else if let Some(why) = why_not_shown(&tax, comparison.verdict, minimum_effect) {
                comparison.add_note(why);
            }
            if comparison.verdict == Verdict::NoDifferenceShown {
                comparison.needed = needed(&tax, minimum_effect);
            }
        }
    }
}

/// Why no difference is shown though the interval excludes 1; `None` where it does not.
fn why_not_shown(tax: &Tax, verdict: Verdict, minimum_effect: f64) -> Option<String> {
    let excludes = tax.interval.is_some_and(|interval| !interval.contains(1.0));
    if verdict != Verdict::NoDifferenceShown || !excludes {
        return None;
    }
    Some(match tax.p < 0.05 {
        true => format!(
            "the interval excludes 1, but the ratio is nearer to 1 than the minimum effect of {}",
            percent(minimum_effect)
        ),
        false => format!(
            "the interval excludes 1, but the permutation test does not (p = {:.3}): more repetitions would decide",
            tax.p
        ),
    })
}

/// Effect that is asked for where the plan has no smallest one.
const ASKED_EFFECT: f64 = 0.02;

/// The effect that more repetitions would show.
pub(crate) fn asked_effect(minimum_effect: f64) -> f64 {
    match minimum_effect > 0.0 {
        true => minimum_effect,
        false => ASKED_EFFECT,
    }
}

fn needed(tax: &Tax, minimum_effect: f64) -> Option<Needed> {
    let effect = asked_effect(minimum_effect);
    let n = stats::pairs_to_show(effect, tax.sd?)?;
    Some(Needed {
        effect,
        n,
        more: n.saturating_sub(tax.n),
    })
}
