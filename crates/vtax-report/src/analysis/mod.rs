//! From trials to estimates, comparisons and sentences: everything that a report shows, as data.

pub mod charge;
mod words;

pub use words::noun;

use crate::results::{
    Better, ResultsDir, ResultsError, SampleKind, Samples, Treatment, Trial, TrialOutcome,
};
use crate::stats::{
    self, Description, Interval, NoTax, SteadyState, Tax, Verdict, benjamini_hochberg, classify,
    describe, mean_interval, rates, seed_of,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use vtax_units::{Base, Nanoseconds, Source, Unit};

/// Everything that can be said about a run.
#[derive(Debug, Clone, Serialize)]
pub struct Analysis {
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
    /// Trials whose files could not be read, with the reason and the remedy.
    pub unreadable: Vec<String>,
    /// What watching cost, over all trials.
    pub observation: Observation,
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
}

impl TreatmentSummary {
    /// One metric by name.
    pub fn metric(&self, name: &str) -> Option<&MetricSummary> {
        self.metrics.iter().find(|metric| metric.name == name)
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
    /// n, mean, median, standard deviation.
    #[serde(flatten)]
    pub description: Description,
    /// 95 % confidence interval of the mean.
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
    pub tax: Option<Tax>,
    /// Student's p adjusted for the family of comparisons (Benjamini and Hochberg).
    pub adjusted_p: Option<f64>,
    /// How many comparisons that family has.
    pub family: usize,
    /// What may be said.
    pub verdict: Verdict,
    /// Why there is no ratio, or what else a reader must know.
    pub note: Option<String>,
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

/// The rate of one series over a trial's window.
#[derive(Debug, Clone, PartialEq)]
pub struct RateSeries {
    /// What it is, in words: `CPU`, `received`, `sent`.
    pub name: &'static str,
    /// Unit of the rates; `1` for cores.
    pub unit: Unit,
    /// One rate per second of the window.
    pub rates: Vec<f64>,
}

/// Series whose steadiness is judged: metric of the target, its name, and its direction.
const STEADY_SERIES: [(&str, &str, Better); 3] = [
    ("cpu.total_ns", "CPU", Better::Lower),
    ("net.rx_bytes", "received", Better::Higher),
    ("net.tx_bytes", "sent", Better::Higher),
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
    let Some((first, others)) = shards.split_first() else {
        return Err(ResultsError::NotARun(std::path::PathBuf::new()));
    };
    for other in others {
        let what = match (first.run(), other.run()) {
            (a, b) if a.plan_sha256 != b.plan_sha256 => "plans",
            (a, b) if a.seed != b.seed || a.schedule != b.schedule => "schedules",
            _ => continue,
        };
        return Err(ResultsError::NotOneRun {
            first: first.path().to_owned(),
            other: other.path().to_owned(),
            what,
        });
    }
    let (mut trials, unreadable, missing) = read(shards);
    let run = first.run();
    let treatments = every_treatment(&run.treatments, &trials);
    let factors = varied_factors(&treatments);
    let rows: Vec<TrialRow> = trials
        .iter()
        .map(|(trial, series)| row(trial, series))
        .collect();
    let counted = trials.iter().filter(|(trial, _)| counts(trial)).count();
    let provisional = lacks_trustworthy_trials(&trials);
    if provisional {
        // The rows above keep the reasons; the statistics below use every completed trial.
        trials
            .iter_mut()
            .for_each(|(trial, _)| trial.suspect.clear());
    }
    let summaries: Vec<TreatmentSummary> = treatments
        .iter()
        .map(|treatment| summarise(treatment, &treatments, &factors, &trials, &rows))
        .collect();
    let mut comparisons = compare_with_baselines(&summaries, &trials);
    judge(&mut comparisons, run.minimum_effect);
    if provisional {
        for comparison in &mut comparisons {
            comparison.verdict = Verdict::TooFewTrials;
            comparison.note = Some("the trials are suspect: run again on a quiet host".to_owned());
        }
    }
    let mut workloads: Vec<String> = Vec::new();
    for treatment in &treatments {
        if !workloads.contains(&treatment.workload) {
            workloads.push(treatment.workload.clone());
        }
    }
    let failed = trials
        .iter()
        .filter(|(trial, _)| trial.outcome != TrialOutcome::Complete)
        .count();
    let source = summaries
        .iter()
        .flat_map(|summary| &summary.metrics)
        .filter(|metric| metric.headline)
        .map(|metric| metric.source)
        .max();
    let mut analysis = Analysis {
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
            counted,
            suspect: trials.len() - counted - failed,
            failed,
            pending: missing,
            unreadable: unreadable.len(),
        },
        provisional,
        sentences: Vec::new(),
        workloads,
        factors,
        treatments: summaries,
        comparisons,
        observation: observation(&trials),
        trials: rows,
        unreadable,
    };
    analysis.sentences = words::sentences(&analysis, &trials);
    Ok(analysis)
}

type ReadTrial = (Trial, Vec<Samples>);

/// Every readable trial with its samples, what could not be read, and how many are still to run.
fn read(shards: &[&ResultsDir]) -> (Vec<ReadTrial>, Vec<String>, usize) {
    let mut work: BTreeMap<u32, &ResultsDir> = BTreeMap::new();
    for shard in shards {
        for index in shard.trial_indexes() {
            work.entry(index).or_insert(shard);
        }
    }
    let planned = shards.first().map_or(0, |first| first.run().schedule.len());
    let missing = (0..planned)
        .filter(|index| u32::try_from(*index).map_or(true, |index| !work.contains_key(&index)))
        .count();
    let work: Vec<(u32, &ResultsDir)> = work.into_iter().collect();
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
                match result {
                    (Some(trial), problem) => {
                        trials.push(trial);
                        unreadable.extend(problem);
                    }
                    (None, problem) => unreadable.extend(problem),
                }
            }
        }
    });
    (trials, unreadable, missing)
}

fn read_one(from: &ResultsDir, index: u32) -> (Option<ReadTrial>, Option<String>) {
    let trial = match from.trial(index) {
        Ok(trial) => trial,
        Err(error) => return (None, Some(error.to_string())),
    };
    let wanted = |owner: &str, metric: &str| {
        owner == "target" && STEADY_SERIES.iter().any(|(name, ..)| *name == metric)
    };
    if !from.trial_path(index).join("samples.parquet").exists() {
        return (Some((trial, Vec::new())), None);
    }
    match from.samples(index).and_then(|reader| reader.load(wanted)) {
        Ok(samples) => (Some((trial, samples)), None),
        Err(error) => (Some((trial, Vec::new())), Some(error.to_string())),
    }
}

/// Whether a trial's numbers are part of the headlines.
fn counts(trial: &Trial) -> bool {
    trial.outcome == TrialOutcome::Complete && trial.suspect.is_empty()
}

/// Whether some treatment completed trials and all of them are suspect.
fn lacks_trustworthy_trials(trials: &[ReadTrial]) -> bool {
    let completed = |(trial, _): &&ReadTrial| trial.outcome == TrialOutcome::Complete;
    let labels: BTreeSet<&str> = trials
        .iter()
        .filter(completed)
        .map(|(trial, _)| trial.treatment.label.as_str())
        .collect();
    labels.iter().any(|label| {
        let mut own = trials
            .iter()
            .filter(|(trial, _)| trial.treatment.label == *label);
        !own.any(|(trial, _)| counts(trial))
    })
}

/// The plan's treatments, then any that only trials know.
fn every_treatment(planned: &[Treatment], trials: &[ReadTrial]) -> Vec<Treatment> {
    let mut treatments = planned.to_vec();
    for (trial, _) in trials {
        if !treatments
            .iter()
            .any(|treatment| treatment.label == trial.treatment.label)
        {
            treatments.push(trial.treatment.clone());
        }
    }
    treatments
}

fn varied_factors(treatments: &[Treatment]) -> BTreeMap<String, Vec<String>> {
    let mut factors: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, level) in treatments.iter().flat_map(|treatment| &treatment.factors) {
        let levels = factors.entry(name.clone()).or_default();
        if !levels.contains(level) {
            levels.push(level.clone());
        }
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

fn observation(trials: &[ReadTrial]) -> Observation {
    let cores: Vec<f64> = trials
        .iter()
        .filter_map(|(trial, _)| observation_cores(trial))
        .collect();
    let total = |of: fn(&Trial) -> u64| {
        trials
            .iter()
            .fold(0u64, |sum, (trial, _)| sum.saturating_add(of(trial)))
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
            (SampleKind::Counter, Base::Nanosecond) => (Unit::of(Base::One), 1e9),
            (SampleKind::Counter, Base::Second) => (Unit::of(Base::One), 1.0),
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
        steady.insert(name.to_owned(), classify(&found, better).class);
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

fn summarise(
    treatment: &Treatment,
    all: &[Treatment],
    factors: &BTreeMap<String, Vec<String>>,
    trials: &[ReadTrial],
    rows: &[TrialRow],
) -> TreatmentSummary {
    let mine: Vec<&Trial> = trials
        .iter()
        .map(|(trial, _)| trial)
        .filter(|trial| trial.treatment.label == treatment.label)
        .collect();
    let counted: Vec<&Trial> = mine.iter().copied().filter(|trial| counts(trial)).collect();
    let failed = mine
        .iter()
        .filter(|trial| trial.outcome != TrialOutcome::Complete)
        .count();
    let names: BTreeSet<&String> = counted
        .iter()
        .flat_map(|trial| trial.metrics.keys())
        .collect();
    let mut metrics: Vec<MetricSummary> = names
        .into_iter()
        .filter_map(|name| metric_summary(treatment, name, &counted))
        .collect();
    metrics.sort_by_key(|metric| !metric.headline);
    let mut steady: BTreeMap<String, SteadyState> = BTreeMap::new();
    for row in rows.iter().filter(|row| {
        row.treatment == treatment.label && row.failed.is_none() && row.suspect.is_empty()
    }) {
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
        short: words::short(treatment, all, factors),
        noun: noun(&treatment.platform, &environment),
        treatment: treatment.clone(),
        counts: Counts {
            planned: mine.len(),
            counted: counted.len(),
            suspect: mine.len() - counted.len() - failed,
            failed,
            pending: 0,
            unreadable: 0,
        },
        metrics,
        steady,
        environment,
        phases: sums
            .into_iter()
            .filter_map(|(phase, values)| Some((phase, stats::mean(&values)?)))
            .collect(),
    }
}

fn metric_summary(treatment: &Treatment, name: &str, counted: &[&Trial]) -> Option<MetricSummary> {
    let first = counted.iter().find_map(|trial| trial.metrics.get(name))?;
    let metrics: Vec<(u32, &crate::results::Metric)> = counted
        .iter()
        .filter_map(|trial| Some((trial.index, trial.metrics.get(name)?)))
        // A unit that changed between trials would make the mean meaningless.
        .filter(|(_, metric)| {
            metric.quantity.unit == first.quantity.unit && metric.quantity.value.is_finite()
        })
        .collect();
    let values: Vec<f64> = metrics
        .iter()
        .map(|(_, metric)| metric.quantity.value)
        .collect();
    Some(MetricSummary {
        name: name.to_owned(),
        title: first.title.clone(),
        unit: first.quantity.unit,
        better: first.better,
        headline: first.headline,
        source: metrics.iter().map(|(_, metric)| metric.source).max()?,
        description: describe(&values)?,
        interval: mean_interval(&values, seed_of(&["mean", &treatment.label, name])),
        values: metrics
            .iter()
            .map(|(index, metric)| (*index, metric.quantity.value))
            .collect(),
    })
}

fn compare_with_baselines(summaries: &[TreatmentSummary], trials: &[ReadTrial]) -> Vec<Comparison> {
    let block_of: BTreeMap<u32, u32> = trials
        .iter()
        .map(|(trial, _)| (trial.index, trial.block))
        .collect();
    let mut comparisons = Vec::new();
    for summary in summaries {
        let Some(baseline_label) = &summary.treatment.baseline else {
            continue;
        };
        let Some(baseline) = summaries
            .iter()
            .find(|other| &other.treatment.label == baseline_label)
        else {
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
            let (result, dropped) = match other {
                Some(other) => tax_of(metric, other, &block_of, seed),
                None => (Err(NoTax::NoTrials), 0),
            };
            let note = match result {
                Err(reason) => Some(reason.to_string()),
                Ok(tax) if !tax.paired => {
                    Some("blocks are incomplete: compared without pairing".to_owned())
                }
                Ok(_) if dropped > 0 => Some(format!(
                    "{} without a partner in its block left out",
                    crate::numbers::count(dropped, "trial")
                )),
                Ok(_) => None,
            };
            comparisons.push(Comparison {
                treatment: summary.treatment.label.clone(),
                baseline: baseline_label.clone(),
                workload: summary.treatment.workload.clone(),
                platform: summary.treatment.platform.clone(),
                metric: metric.name.clone(),
                title: metric.title.clone(),
                better: metric.better,
                headline: metric.headline,
                source: other.map_or(metric.source, |other| metric.source.combine(other.source)),
                // An emulated guest's flag hides that of a model; its baseline's does not.
                modelled: [Some(metric), other]
                    .into_iter()
                    .flatten()
                    .any(|one| one.source == Source::Modelled),
                tax: result.ok(),
                adjusted_p: None,
                family: 0,
                verdict: Verdict::NoRatio,
                note,
            });
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
    let by_block = |metric: &MetricSummary| -> BTreeMap<u32, f64> {
        metric
            .values
            .iter()
            .filter_map(|(index, value)| Some((*block_of.get(index)?, *value)))
            .collect()
    };
    let (mine, theirs) = (by_block(metric), by_block(baseline));
    let pairs: Vec<(f64, f64)> = mine
        .iter()
        .filter_map(|(block, value)| Some((*value, *theirs.get(block)?)))
        .collect();
    let complete = pairs.len() == metric.values.len() && pairs.len() == baseline.values.len();
    if complete || pairs.len() >= 4 {
        let (treatment, baseline_values): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
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

/// Adjusts p within each family (the headlines, and the rest) and gives the verdicts.
pub(crate) fn judge(comparisons: &mut [Comparison], minimum_effect: f64) {
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
                comparison.note.get_or_insert(format!(
                    "on its own p = {:.3}; among {size} comparisons {adjusted:.3}: more repetitions would decide",
                    tax.student_p
                ));
            }
        }
    }
}
