// SPDX-License-Identifier: Apache-2.0
//! From trials to estimates, comparisons and sentences: all data of a report.

pub(crate) mod certainty;
pub mod charge;
mod checks;
mod comparison;
mod comparisons;
mod control;
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
pub(crate) mod variants;
mod verdicts;
pub(crate) mod withheld;
mod within;
pub(crate) mod words;

pub use certainty::Certainty;
pub(crate) use checks::pairs;
pub use comparison::{BetweenRuns, Comparison, Control, Disagreement, Judgement, Needed, by_key};
pub use comparisons::judge;
pub(crate) use comparisons::{adjusted_in_words, asked_effect, unpaired};
use comparisons::{blocks, compare_with_baselines, places};
use control::Controls;
pub(crate) use control::between_runs;
pub use control::{HostSpeed, PartSpeed, Variation};
use energy::IdlePower;
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
    ActorSummary, CommonError, Counts, Distribution, ErrorOf, LevelSummary, MetricSummary,
    ObjectiveSummary, TreatmentSummary, distinct,
};
pub(crate) use summaries::{
    at_level, common_level, distinct_metrics, find_metric, headline_metrics,
};
pub use timeline::{Layer, Timeline, TimelinePhase};
pub use variance::{not_separable, separable};
pub use verdicts::PlatformVerdict;
pub(crate) use within::of_trial as trial_quantiles;
pub use within::{TrialQuantile, Within};

use crate::parallel::read_each;
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

/// The fact of a trial that says what its costs leave out.
pub(crate) const SCOPE: &str = "scope";

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
    let fleet = Fleet::from_together(&together, &first.run().place);
    let (mut trials, unreadable) = read(&together.trials)?;
    certainty::set_stuck_apart(&mut trials);
    let run = first.run();
    let treatments = every_treatment(&run.treatments, &trials);
    let factors = varied_factors(&treatments);
    let rows: Vec<TrialRow> = trials.iter().map(row).collect();
    let went = Counts::from_trials(&trials);
    let standing = Standing::from_trials(&trials);
    if standing != Standing::Claims {
        for read in &mut trials {
            read.counts = read.trial.outcome == TrialOutcome::Complete;
        }
    }
    let mut own: HashMap<&str, Vec<(&Read, &TrialRow)>> = HashMap::new();
    for (read, row) in trials.iter().zip(&rows) {
        let label = read.trial.treatment.label.as_str();
        own.entry(label).or_default().push((read, row));
    }
    // Machines have idle powers of their own.
    let idle =
        (fleet.machines < 2).then(|| IdlePower::from_trials(trials.iter().map(|read| &read.trial)));
    let shorts = words::shorts(&treatments, &factors);
    let mut summaries: Vec<TreatmentSummary> = treatments
        .iter()
        .zip(shorts)
        .map(|(treatment, short)| {
            let own = own.get(treatment.label.as_str());
            let own = own.map_or(&[][..], Vec::as_slice);
            summarise(treatment, short, own, idle.as_ref())
        })
        .collect();
    words::tell_nouns_apart(&mut summaries);
    let counted = || {
        let all = trials.iter().filter(|read| read.counts);
        all.map(|read| &read.trial)
    };
    let fixed_times = fixed_time::mark(&mut summaries, counted());
    let other_work = variants::other_work(&summaries, counted());
    let block_of = blocks(&trials);
    let plan = RunPlan::from_results(first);
    let sequential = run.extended || plan.ends_when_it_knows();
    let method = Method {
        minimum_effect: run.minimum_effect,
        sequential,
        typical: plan.is_of_typical_pairs(),
    };
    let controls = Controls::from_trials(&trials);
    let (mut comparisons, pairs) = match standing {
        Standing::Nothing => Default::default(),
        _ => compared(
            &summaries,
            &block_of,
            (&fleet, &controls, idle.as_ref()),
            method,
        ),
    };
    let tax_changes = match standing {
        Standing::Claims => tax_changes(&summaries, &block_of, &fleet, method),
        Standing::Provisional | Standing::Nothing => Vec::new(),
    };
    let (mut checks, mut variance, mut shifts) = (Vec::new(), Vec::new(), Vec::new());
    match standing {
        Standing::Claims => {
            let compared: Vec<_> = comparisons.iter().zip(&pairs).collect();
            checks = checks::lines(&summaries, &compared, &places(&block_of));
            variance = variance::by_level(&summaries, &rows, &fleet, &comparisons);
            shifts = shifts::shifts(&summaries, &trials, &fleet, run.minimum_effect);
        }
        Standing::Provisional => {
            let all = comparisons.iter_mut();
            all.for_each(Comparison::make_provisional);
        }
        Standing::Nothing => {
            let all = summaries.iter_mut();
            all.for_each(TreatmentSummary::forget_intervals);
        }
    }
    checks.extend(quantiles::line(&summaries));
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
    let launches = launch::lines(counted());
    let scopes = counted().filter_map(|trial| trial.environment.get(SCOPE));
    let scopes = distinct(scopes.map(|scope| format!("{}.", words::capital(scope))));
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
        accepted: first.accepted()?,
        plan,
        sequential,
        minimum_effect: run.minimum_effect,
        source,
        counts: Counts {
            planned: run.schedule.len(),
            pending: missing,
            unreadable: unreadable.len(),
            ..went
        },
        provisional: standing != Standing::Claims,
        advice: (standing == Standing::Nothing).then(|| words::advice(&rows, &run.place)),
        installations,
        sentences: Vec::new(),
        workloads,
        factors,
        treatments: summaries,
        comparisons,
        tax_changes,
        observation: observation(&trials),
        fleet,
        checks,
        shifts,
        variance,
        noise: Vec::new(),
        host_speed: controls.speed().cloned(),
        attempts: attempts(shards, &rows),
        trials: rows,
        unreadable,
    };
    analysis.noise = noise::lines(&analysis);
    analysis.noise.extend(controls.lines(&analysis.comparisons));
    analysis.noise.extend(scopes);
    analysis.noise.extend(launches);
    analysis.noise.extend(fixed_times);
    analysis.noise.extend(other_work);
    analysis.sentences = words::sentences(&analysis, &trials);
    let changes = words::tax_changes(&analysis);
    analysis.sentences.extend(changes);
    let shifts = analysis.shifts.iter().filter_map(|shift| {
        let treatment = analysis.treatment(&shift.treatment)?;
        Some(shift.sentence(&treatment.treatment.platform))
    });
    let shifts: Vec<Sentence> = shifts.collect();
    analysis.sentences.extend(shifts);
    Ok(analysis)
}

/// What the trials of a run support.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Claims about differences: each treatment has trials that are not suspect, and the statistics leave out the others.
    Claims,
    /// Values without claims: some treatment has only suspect trials, and the statistics use every completed trial.
    Provisional,
    /// No comparison and no interval: every trial is suspect.
    Nothing,
}

impl Standing {
    fn from_trials(trials: &[Read]) -> Self {
        let labels = |of: fn(&Read) -> bool| -> HashSet<&str> {
            let own = trials.iter().filter(|read| of(read));
            own.map(|read| read.trial.treatment.label.as_str())
                .collect()
        };
        let completed = labels(|read| read.trial.outcome == TrialOutcome::Complete);
        let trusted = labels(|read| read.counts);
        match (completed.is_subset(&trusted), trusted.is_empty()) {
            (true, _) => Self::Claims,
            (false, false) => Self::Provisional,
            (false, true) => Self::Nothing,
        }
    }
}

/// How the comparisons of a run are judged.
#[derive(Debug, Clone, Copy)]
struct Method {
    minimum_effect: f64,
    /// Whether the run was looked at while it went on.
    sequential: bool,
    /// Whether ratios are of the typical pair of trials.
    typical: bool,
}

impl Method {
    /// Sets the interval of a comparison, which then holds for its pairs, this host and this run's looks.
    fn set(self, comparison: &mut Comparison, pairs: &checks::Pairs, fleet: &Fleet) {
        checks::note_outliers(comparison, pairs);
        if self.sequential {
            comparison.tax = comparison.tax.map(vtax_results::stats::Tax::at_any_time);
        } else if self.typical {
            checks::set_typical(comparison, pairs);
        }
        noise::put_above_floor(comparison, pairs);
        fleet.judge(comparison, pairs);
        comparison.widen_by_model();
    }
}

/// The comparisons with baselines, judged, and the pairs of each.
fn compared(
    summaries: &[TreatmentSummary],
    block_of: &BTreeMap<u32, u32>,
    (fleet, controls, idle): (&Fleet, &Controls, Option<&IdlePower>),
    method: Method,
) -> (Vec<Comparison>, Vec<checks::Pairs>) {
    // An interval for every look is of logarithms.
    let idle = if method.sequential { None } else { idle };
    let mut comparisons = compare_with_baselines(summaries, block_of, idle);
    let labels = by_label(summaries);
    let pairs_of = |comparison: &mut Comparison| {
        let metric = |label: &str| labels.get(label)?.metric(&comparison.metric);
        let both = [&comparison.treatment, &comparison.baseline].map(|label| metric(label));
        let [Some(own), Some(other)] = both else {
            return Vec::new();
        };
        let mut pairs = checks::pairs(own, other, block_of);
        // An interval for every look is without a control, and machines have speeds of their own.
        if !method.sequential && fleet.machines < 2 {
            controls.apply(comparison, &mut pairs, [own, other], block_of);
        }
        pairs
    };
    let pairs: Vec<checks::Pairs> = comparisons.iter_mut().map(pairs_of).collect();
    for (comparison, pairs) in comparisons.iter_mut().zip(&pairs) {
        method.set(comparison, pairs, fleet);
    }
    let minimum_effect = method.minimum_effect;
    judge(&mut comparisons, minimum_effect);
    for (comparison, pairs) in comparisons.iter_mut().zip(&pairs) {
        knees::judge(comparison, minimum_effect);
        let both = [&comparison.treatment, &comparison.baseline];
        if let [Some(own), Some(other)] = both.map(|label| labels.get(label.as_str())) {
            withheld::judge(comparison, own, other, Some(pairs));
        }
    }
    (comparisons, pairs)
}

/// The changes of the taxes of platforms between variants, judged.
fn tax_changes(
    summaries: &[TreatmentSummary],
    block_of: &BTreeMap<u32, u32>,
    fleet: &Fleet,
    method: Method,
) -> Vec<Comparison> {
    let mut found = variants::compare(summaries, block_of);
    for (comparison, pairs) in &mut found {
        method.set(comparison, pairs, fleet);
    }
    judge(found.iter_mut().map(|(one, _)| one), method.minimum_effect);
    let labels = by_label(summaries);
    for (comparison, _) in &mut found {
        let new = [&comparison.treatment, &comparison.baseline];
        let [Some(here), Some(there)] = new.map(|label| labels.get(label.as_str()).copied()) else {
            continue;
        };
        let old = [here, there].map(|of| labels.get(of.treatment.baseline.as_deref()?).copied());
        // Trials that any of the four lost may be the slow ones.
        withheld::judge(comparison, here, there, None);
        if let [Some(old_here), Some(old_there)] = old {
            withheld::judge(comparison, old_here, old_there, None);
            withheld::judge(comparison, here, old_here, None);
        }
    }
    found
        .into_iter()
        .map(|(comparison, _)| comparison)
        .collect()
}

/// A trial with the other data of its directory.
struct Read {
    trial: Trial,
    /// Whether the statistics use it.
    counts: bool,
    /// The series with a steadiness class.
    samples: Vec<Samples>,
    histograms: Vec<HistogramRecord>,
    timeline: Option<Timeline>,
}

/// Reads every trial with its samples. The second value lists the unreadable trials.
fn read(work: &BTreeMap<u32, &ResultsDir>) -> Result<(Vec<Read>, Vec<String>), ResultsError> {
    let work: Vec<(u32, &ResultsDir)> = work.iter().map(|(index, from)| (*index, *from)).collect();
    let mut found = BTreeMap::new();
    let one = |(index, from): &(u32, &ResultsDir)| (*index, read_one(from, *index));
    read_each(&work, one, |(index, read)| {
        found.insert(index, read);
        Ok(())
    })?;
    let (trials, unreadable): (Vec<Option<Read>>, Vec<Vec<String>>) = found.into_values().unzip();
    Ok((trials.into_iter().flatten().collect(), unreadable.concat()))
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
        counts: trial.counts(),
        trial,
        samples,
        histograms,
        timeline,
    };
    (Some(read), problems)
}

/// The attempts set aside in any of the shards, each with the state of its replacement.
fn attempts(shards: &[&ResultsDir], rows: &[TrialRow]) -> Vec<AttemptRow> {
    let rows: HashMap<u32, &TrialRow> = rows.iter().map(|row| (row.index, row)).collect();
    let mut found = Vec::new();
    for shard in shards {
        for attempt in shard.attempts() {
            let (state, reason) = match &attempt.trial {
                Err(error) => ("damaged", error.to_string()),
                Ok(trial) => match &trial.outcome {
                    TrialOutcome::Failed(reason) => ("failed", reason.clone()),
                    _ if !trial.suspect.is_empty() => ("suspect", trial.suspect.join("; ")),
                    _ if !trial.disturbed.is_empty() => ("disturbed", trial.disturbed.join("; ")),
                    _ => {
                        let why = "set aside by hand, or its files are damaged";
                        ("counts", why.to_owned())
                    }
                },
            };
            found.push(AttemptRow {
                index: attempt.index,
                attempt: format!("{}-{}", attempt.aside.name(), attempt.number),
                treatment: planned(shard, attempt.index).unwrap_or_default(),
                state,
                reason,
                replacement: match rows.get(&attempt.index) {
                    Some(row) => row.state(),
                    None if shard.has_trial(attempt.index) => "damaged",
                    None => "not run yet",
                },
            });
        }
    }
    found.sort_by(|a, b| (a.index, &a.attempt).cmp(&(b.index, &b.attempt)));
    found
}

/// The label of the treatment of a trial in the schedule.
fn planned(shard: &ResultsDir, index: u32) -> Option<String> {
    let entry = shard.run().schedule.get(usize::try_from(index).ok()?)?;
    let treatment = shard.run().treatments.get(entry.treatment)?;
    Some(treatment.label.clone())
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
    let all = || trials.iter().map(|read| &read.trial);
    let cores: Vec<f64> = all().filter_map(observation_cores).collect();
    let total = |of: fn(&Trial) -> u64| all().map(of).fold(0, u64::saturating_add);
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
        let own = samples.iter().find(|own| own.series.metric == metric);
        let Some(samples) = own else {
            continue;
        };
        let found = rates(
            &samples.points,
            samples.series.kind,
            trial.window,
            Nanoseconds(1_000_000_000),
        );
        let (unit, scale) = match (samples.series.kind, samples.series.unit.base) {
            (SeriesKind::Counter, Base::Nanosecond) => (Unit::from_base(Base::Core), 1e9),
            (SeriesKind::Counter, Base::Second) => (Unit::from_base(Base::Core), 1.0),
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

fn summarise(
    treatment: &Treatment,
    short: String,
    own: &[(&Read, &TrialRow)],
    idle: Option<&IdlePower>,
) -> TreatmentSummary {
    let (mine, rows): (Vec<&Read>, Vec<&TrialRow>) = own.iter().copied().unzip();
    let mut read = mine.clone();
    read.retain(|read| read.counts);
    let counted: Vec<&Trial> = read.iter().map(|read| &read.trial).collect();
    let found: Vec<(u32, &BTreeMap<String, Metric>)> = counted
        .iter()
        .map(|trial| (trial.index, &trial.metrics))
        .collect();
    let mut metrics = metric_summaries(
        &[&treatment.label],
        &found,
        Certainty::from_trials(&counted),
    );
    let objective = scenario::objective(&counted);
    knees::widen(&mut metrics, objective.as_ref());
    let widen = |metrics: &mut [MetricSummary]| {
        energy::widen(metrics, &counted);
        if let Some(idle) = idle {
            idle.widen(metrics);
        }
    };
    widen(&mut metrics);
    let (mut levels, mut actors) = (
        scenario::levels(treatment, &counted),
        scenario::actors(treatment, &counted),
    );
    quantiles::attach(&mut metrics, &rows, TARGET, None);
    for level in &mut levels {
        widen(&mut level.metrics);
        quantiles::attach(&mut level.metrics, &rows, TARGET, Some(&level.name));
    }
    for actor in &mut actors {
        quantiles::attach(&mut actor.metrics, &rows, &actor.name, None);
    }
    let mut steady: BTreeMap<String, SteadyState> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.counts()) {
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
    let first = mine.first().map(|read| read.trial.environment.clone());
    let environment = first.unwrap_or_default();
    TreatmentSummary {
        short,
        noun: platforms::noun(treatment, &environment),
        treatment: treatment.clone(),
        counts: Counts::from_trials(mine),
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
    let names = found.iter().flat_map(|(_, metrics)| metrics.keys());
    let names: BTreeSet<&String> = names.collect();
    let summary = |name: &String| {
        let trials = found.iter();
        let values = trials.filter_map(|(index, metrics)| Some((*index, metrics.get(name)?)));
        metric_summary(whose, name, values.collect(), certainty)
    };
    let mut summaries: Vec<MetricSummary> = names.into_iter().filter_map(summary).collect();
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
        common_error: None,
        lacks_work: false,
    })
}
