// SPDX-License-Identifier: Apache-2.0
//! From trials to estimates, comparisons and sentences: all data of a report.

pub(crate) mod certainty;
pub mod charge;
mod checks;
mod comparison;
mod comparisons;
mod energy;
mod fixed_time;
mod installations;
mod knees;
mod launch;
mod machines;
mod model;
mod noise;
mod quantiles;
mod scenario;
mod shifts;
mod summaries;
mod timeline;
mod variance;
mod verdicts;
mod within;
pub(crate) mod words;

pub use certainty::Certainty;
pub use comparison::{Comparison, Disagreement, Judgement, Needed, by_key};
pub use comparisons::judge;
pub(crate) use comparisons::{adjusted_in_words, asked_effect, unpaired};
use comparisons::{blocks, compare_with_baselines, places};
pub(crate) use knees::bounds as knee_bounds;
pub use knees::knee_in_words;
pub use machines::Fleet;
pub use model::{
    Analysis, AttemptRow, LevelVariance, MetricVariance, Observation, RateSeries, Sentence, Shift,
    ShiftPoint, TrialRow, WIDTH,
};
pub(crate) use noise::NOISE_FLOOR;
use summaries::by_label;
pub use summaries::{
    ActorSummary, Counts, Distribution, LevelSummary, MetricSummary, ObjectiveSummary,
    TreatmentSummary, distinct,
};
pub(crate) use summaries::{
    at_level, common_level, distinct_metrics, find_metric, headline_metrics,
};
pub use timeline::{Layer, Timeline, TimelinePhase};
pub use variance::{not_separable, separable};
pub use verdicts::PlatformVerdict;
pub(crate) use within::of_trial as trial_quantiles;
pub use within::{TrialQuantile, Within};

use crate::platforms;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use vtax_core::owner::{Owner, TARGET};
use vtax_core::{Base, Nanoseconds, SeriesKind, Unit, counter};
use vtax_results::stats::{
    self, SteadyState, classify, describe, mean_interval, positive_mean_interval, rates, seed_of,
};
use vtax_results::{
    Better, HistogramRecord, Metric, ResultsDir, ResultsError, RunPlan, Samples, Treatment, Trial,
    TrialOutcome, is_difference, together,
};

/// Series with a steadiness class: metric of the target, name, and direction. Network counters are the host's, which
/// sends the bytes that the target receives.
const STEADY_SERIES: [(&str, &str, Better); 3] = [
    (counter::CPU_TOTAL, "CPU", Better::Lower),
    (counter::NET_TX_BYTES, "received", Better::Higher),
    (counter::NET_RX_BYTES, "sent", Better::Higher),
];

/// Analyses one results directory, finished or not.
///
/// # Errors
/// No single trial is a cause: the analysis lists unreadable trials.
pub fn analyse(results: &ResultsDir) -> Result<Analysis, ResultsError> {
    analyse_shards(&[results])
}

/// Analyses the shards of one run together.
///
/// # Errors
/// When they are not shards of one run, or there are none.
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
    let rows: Vec<TrialRow> = trials.iter().map(row).collect();
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
    let fixed_times = fixed_time::mark(&mut summaries, trials.iter().map(|read| &read.trial));
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
        noise::put_above_floor(comparison, &pairs);
    }
    fleet.judge(&mut comparisons, pairs_of);
    judge(&mut comparisons, run.minimum_effect);
    for comparison in &mut comparisons {
        knees::judge(comparison, run.minimum_effect);
    }
    if provisional {
        for comparison in &mut comparisons {
            comparison.make_provisional();
        }
    }
    let compared = comparisons.iter().map(|one| (one, pairs_of(one)));
    let compared: Vec<(&Comparison, checks::Pairs)> = compared.collect();
    let mut checks = if provisional {
        Vec::new()
    } else {
        checks::lines(&summaries, &compared, &places(&block_of))
    };
    checks.extend(quantiles::line(&summaries));
    let variance = if provisional {
        Vec::new()
    } else {
        variance::by_level(&summaries, &rows, &fleet, &comparisons)
    };
    let shifts = if provisional {
        Vec::new()
    } else {
        shifts::shifts(&summaries, &trials, &fleet, run.minimum_effect)
    };
    let workloads = distinct(treatments.iter().map(|of| of.workload.clone()));
    let source = summaries
        .iter()
        .flat_map(|summary| &summary.metrics)
        .filter(|metric| metric.headline)
        .map(|metric| metric.source)
        .max();
    // Directories of old versions may lack the facts.
    let host = first.host().unwrap_or_default();
    let installed: Vec<installations::Installed<'_>> = summaries
        .iter()
        .map(|summary| installations::Installed {
            treatment: &summary.treatment,
            environment: &summary.environment,
        })
        .collect();
    let installations = installations::sentences(&installed, &host);
    let energy = energy::lines(&summaries, trials.iter().map(|read| &read.trial));
    let launches = launch::lines(trials.iter().map(|read| &read.trial));
    let mut analysis = Analysis {
        energy,
        path: first.path().to_owned(),
        name: run.name.clone(),
        description: run.description.clone(),
        place: run.place.clone(),
        profile: run.profile.clone(),
        started: run.started.clone(),
        seed: run.seed,
        plan_sha256: run.plan_sha256.clone(),
        plan: RunPlan::of(first),
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
        installations,
        sentences: Vec::new(),
        workloads,
        factors,
        treatments: summaries,
        comparisons,
        observation: observation(&trials),
        fleet,
        checks,
        shifts,
        variance,
        noise: Vec::new(),
        attempts: attempts(shards, &rows),
        trials: rows,
        unreadable,
    };
    analysis.noise = noise::lines(&analysis);
    analysis.noise.extend(launches);
    analysis.noise.extend(fixed_times);
    analysis.sentences = words::sentences(&analysis, &trials);
    let shifts = analysis.shifts.iter().filter_map(|shift| {
        let treatment = analysis.treatment(&shift.treatment)?;
        Some(shift.sentence(&treatment.treatment.platform))
    });
    let shifts: Vec<Sentence> = shifts.collect();
    analysis.sentences.extend(shifts);
    Ok(analysis)
}

/// A trial with the other data of its directory.
struct Read {
    trial: Trial,
    /// The series with a steadiness class.
    samples: Vec<Samples>,
    histograms: Vec<HistogramRecord>,
    timeline: Option<Timeline>,
}

/// Reads every trial with its samples. The second value lists the unreadable trials.
fn read(work: &BTreeMap<u32, &ResultsDir>) -> (Vec<Read>, Vec<String>) {
    let work: Vec<(u32, &ResultsDir)> = work.iter().map(|(index, from)| (*index, *from)).collect();
    // Reading is mostly decoding, so the trials are divided between the processors.
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
    let is_steadiness = |owner: &Owner, metric: &str| {
        *owner == Owner::Target && STEADY_SERIES.iter().any(|(name, ..)| *name == metric)
    };
    let is_scenario = scenario::is_scenario(&trial);
    let wanted = |owner: &Owner, metric: &str| {
        is_steadiness(owner, metric) || (is_scenario && timeline::is_wanted(owner, metric))
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
    let timeline = is_scenario.then(|| timeline::timeline(&trial, &samples));
    samples.retain(|samples| is_steadiness(&samples.series.owner, &samples.series.metric));
    let read = Read {
        trial,
        samples,
        histograms,
        timeline,
    };
    (Some(read), problems)
}

/// Whether all completed trials of some treatment are suspect.
fn lacks_trustworthy_trials(trials: &[Read]) -> bool {
    let labels = |of: fn(&Trial) -> bool| -> HashSet<&str> {
        let own = trials.iter().filter(|read| of(&read.trial));
        own.map(|read| read.trial.treatment.label.as_str())
            .collect()
    };
    let completed = labels(|trial| trial.outcome == TrialOutcome::Complete);
    !completed.is_subset(&labels(Trial::counts))
}

/// The attempts set aside in any of the shards, each with the state of its replacement.
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
                        TrialOutcome::Complete if !trial.suspect.is_empty() => {
                            ("suspect", trial.suspect.join("; "))
                        }
                        TrialOutcome::Complete if !trial.disturbed.is_empty() => {
                            ("disturbed", trial.disturbed.join("; "))
                        }
                        TrialOutcome::Complete => (
                            "counts",
                            "set aside by hand, or its files are damaged".to_owned(),
                        ),
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

/// The plan's treatments, followed by those that occur only in trials.
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

fn row(read: &Read) -> TrialRow {
    let (trial, samples) = (&read.trial, &read.samples);
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
            (SeriesKind::Counter, Base::Nanosecond) => (Unit::of(Base::Core), 1e9),
            (SeriesKind::Counter, Base::Second) => (Unit::of(Base::Core), 1.0),
            (SeriesKind::Counter, base) => (Unit::per(base, Base::Second), 1.0),
            (SeriesKind::Gauge, _) => (samples.series.unit, 1.0),
        };
        let found: Vec<f64> = found.iter().map(|rate| rate / scale).collect();
        // An idle direction (acknowledgements, stray frames) has no steadiness class.
        let quiet = match unit.base {
            Base::Byte => 10_000.0,
            _ => 0.001,
        };
        if stats::mean(&found).is_none_or(|mean| mean < quiet) {
            continue;
        }
        // A load that changes makes every series change, so a trial with phases has no steadiness class.
        if trial.phases.is_empty() {
            steady.insert(name.to_owned(), classify(&found, better));
        }
        series.push(RateSeries {
            name,
            unit,
            rates: found,
            has_reading_each: stats::has_reading_each(&samples.points, Nanoseconds(1_000_000_000)),
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
        disturbed: trial.disturbed.clone(),
        phases: phases(trial),
        observation_cores: observation_cores(trial),
        steady,
        quantiles: within::of_trial(trial, &read.histograms),
        series,
    }
}

fn summarise(treatment: &Treatment, short: String, own: &[(&Read, &TrialRow)]) -> TreatmentSummary {
    let read: Vec<&Read> = own.iter().map(|(read, _)| *read).collect();
    let mine: Vec<&Trial> = read.iter().map(|read| &read.trial).collect();
    let counted: Vec<&Trial> = mine
        .iter()
        .copied()
        .filter(|trial| trial.counts())
        .collect();
    let read: Vec<&Read> = read
        .into_iter()
        .filter(|read| read.trial.counts())
        .collect();
    let found: Vec<(u32, &BTreeMap<String, Metric>)> = counted
        .iter()
        .map(|trial| (trial.index, &trial.metrics))
        .collect();
    let mut metrics = metric_summaries(&[&treatment.label], &found, Certainty::of(&counted));
    let objective = scenario::objective(&counted);
    knees::widen(&mut metrics, objective.as_ref());
    let (mut levels, mut actors) = (
        scenario::levels(treatment, &counted),
        scenario::actors(treatment, &counted),
    );
    let rows: Vec<&TrialRow> = own.iter().map(|(_, row)| *row).collect();
    quantiles::attach(&mut metrics, &rows, TARGET, None);
    for level in &mut levels {
        quantiles::attach(&mut level.metrics, &rows, TARGET, Some(&level.name));
    }
    for actor in &mut actors {
        quantiles::attach(&mut actor.metrics, &rows, &actor.name, None);
    }
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
        levels,
        objective,
        actors,
        distributions: scenario::distributions(&read),
        timeline: read.iter().find_map(|read| read.timeline.clone()),
    }
}

/// Summarises every metric of `found` (the metrics of each trial, by its index), headlines first, then by name. `whose`
/// separates the seeds of the resampled intervals.
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
        origin: distinct(
            (metrics.iter())
                .filter_map(|(_, metric)| metric.model.clone().or_else(|| metric.meter.clone())),
        ),
        description: describe(&values)?,
        certainty,
        interval,
        values: metrics
            .iter()
            .map(|(index, metric)| (*index, metric.quantity.value))
            .collect(),
        within: None,
        lacks_work: false,
    })
}
