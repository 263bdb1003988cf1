// SPDX-License-Identifier: Apache-2.0
//! The measured numbers of vtax: read from results directories, and stored as CSV so that a page needs no run.

use crate::catalogue::{Catalogue, Key};
use crate::{AtlasError, digest};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use vtax_core::csv::field;
use vtax_core::{Source, Unit, metric};
use vtax_report::analysis::charge::Study;
use vtax_report::analysis::{Analysis, Certainty, MetricSummary, TreatmentSummary, analyse};
use vtax_results::stats::{Interval, positive_mean_interval, seed_of};
use vtax_results::{ResultsDir, Trial, TrialOutcome};

/// The stored numbers, by paper.
const KEPT: [(&str, &str); 5] = [
    ("shea", include_str!("../../../../papers/ours/shea.csv")),
    ("rossi", include_str!("../../../../papers/ours/rossi.csv")),
    (
        "bratterud",
        include_str!("../../../../papers/ours/bratterud.csv"),
    ),
    (
        "cherkasova",
        include_str!("../../../../papers/ours/cherkasova.csv"),
    ),
    ("chen", include_str!("../../../../papers/ours/chen.csv")),
];

/// The stored numbers of other cost models.
const KEPT_MODELS: &str = include_str!("../../../../papers/ours/models.csv");

/// The columns of the file of other cost models.
const MODEL_COLUMNS: [&str; 5] = ["plan", "treatment", "metric", "model", "value"];

/// The modelled metrics of a trial by cost model: the name of each, and its values by metric.
pub type Models = fn(&Trial) -> Vec<(String, BTreeMap<String, f64>)>;

/// The columns of a stored file.
const COLUMNS: [&str; 16] = [
    "plan",
    "treatment",
    "metric",
    "value",
    "low",
    "high",
    "n",
    "unit",
    "source",
    "varies",
    "vtax",
    "host",
    "started",
    "place",
    "profile",
    "plan_sha256",
];

/// One measured number.
#[derive(Debug, Clone, PartialEq)]
pub struct Number {
    /// The mean.
    pub value: f64,
    /// Its 95 % interval; `None` for an exact number, or for one trial.
    pub interval: Option<Interval>,
    /// The number of trials, or of rounds of a study.
    pub n: usize,
    /// The unit.
    pub unit: Unit,
    /// The worst flag of its trials.
    pub source: Source,
    /// The repeated unit: `trial`, `seed`, `round` of a study; or `exact, seed 1`.
    pub varies: String,
}

impl Number {
    /// Whether it repeats exactly with one build of vtax.
    pub fn is_exact(&self) -> bool {
        self.varies.starts_with("exact")
    }
}

/// The run that numbers come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The version of vtax.
    pub vtax: String,
    /// Processor, kernel and distribution.
    pub host: String,
    /// Start of the run, RFC 3339.
    pub started: String,
    /// `local`, `testbed:kvm`.
    pub place: String,
    /// `full` or `quick`.
    pub profile: String,
    /// SHA-256 of the plan.
    pub plan_sha256: String,
}

/// Measured numbers by plan, treatment and metric, and the origin of each plan's numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ours {
    /// The numbers.
    pub numbers: BTreeMap<Key, Number>,
    /// By plan.
    pub origins: BTreeMap<String, Origin>,
    /// The values of modelled numbers by cost model.
    pub models: BTreeMap<Key, BTreeMap<String, f64>>,
    /// The plans whose numbers are of an earlier text, as far as the plans' files are there.
    pub earlier: BTreeSet<String>,
}

/// Stored numbers that cannot be read.
#[derive(Debug, thiserror::Error)]
enum StoredError {
    #[error("its columns are not those of this vtax")]
    Columns,
    #[error("a row of another length: {0}")]
    Length(String),
    #[error("{0} is none in: {1}")]
    Field(&'static str, String),
}

impl Ours {
    /// Reads the stored numbers of this program.
    ///
    /// # Errors
    /// When they were damaged before this program was built, which a test rules out.
    pub fn kept() -> Result<Self, AtlasError> {
        let mut all = Self::default();
        for (paper, text) in KEPT {
            let wrong =
                |why: StoredError| AtlasError::Catalogue(format!("papers/ours/{paper}.csv: {why}"));
            all.take(Self::of_csv(text).map_err(wrong)?);
        }
        let wrong =
            |why: StoredError| AtlasError::Catalogue(format!("papers/ours/models.csv: {why}"));
        all.models = models_of_csv(KEPT_MODELS).map_err(wrong)?;
        Ok(all)
    }

    /// Adds the numbers of `other`. They replace all numbers of the same plans, so that a plan's numbers are from one
    /// run.
    pub fn take(&mut self, other: Self) {
        let renewed = |key: &Key| other.origins.contains_key(&key.plan);
        self.numbers.retain(|key, _| !renewed(key));
        self.models.retain(|key, _| !renewed(key));
        self.numbers.extend(other.numbers);
        self.models.extend(other.models);
        self.origins.extend(other.origins);
    }

    /// Reads the `wanted` numbers of a run of `plan` from a results directory.
    ///
    /// # Errors
    /// When the directory cannot be read, or holds a run of another plan. `text` is the text of the plan, where it is
    /// known.
    pub fn of_results(
        path: &Path,
        plan: &str,
        text: Option<&str>,
        wanted: &BTreeSet<Key>,
        models: Models,
    ) -> Result<Self, AtlasError> {
        let results = ResultsDir::open(path)?;
        let run = results.run();
        let is_another = text.is_some_and(|text| run.plan_sha256 != digest(text.as_bytes()));
        if run.name != plan || is_another {
            return Err(AtlasError::AnotherPlan {
                path: path.to_owned(),
                holds: run.name.clone(),
                plan: plan.to_owned(),
            });
        }
        let of_plan = wanted.iter().filter(|key| key.plan == plan);
        let mut by_model = BTreeMap::new();
        let numbers = match Study::of(&results) {
            // A study uses suspect trials where a treatment has no others.
            Ok(_) if has_doubted_treatment(&results) => BTreeMap::new(),
            Ok(study) => {
                let all = of_study(&study);
                let found = of_plan.filter_map(|key| {
                    let number = all.get(&(key.treatment.clone(), key.metric.clone()))?;
                    Some((key.clone(), number.clone()))
                });
                found.collect()
            }
            Err(_) => {
                let analysis = analyse(&results)?;
                let found = of_plan.filter_map(|key| Some((key.clone(), of_key(&analysis, key)?)));
                let found = found.collect::<BTreeMap<_, _>>();
                let trials: Vec<Trial> = results.trials().flatten().collect();
                for key in found.keys() {
                    let values = of_models(&trials, key, models);
                    by_model.extend((!values.is_empty()).then(|| (key.clone(), values)));
                }
                found
            }
        };
        let host = results.host().unwrap_or_default();
        let of_host = |path: &str| host.pointer(path).and_then(|value| value.as_str());
        let facts = ["/cpu/model", "/distribution", "/kernel"];
        let origin = Origin {
            vtax: of_host("/vtax").unwrap_or("unknown").to_owned(),
            host: facts
                .into_iter()
                .filter_map(of_host)
                .collect::<Vec<_>>()
                .join(", "),
            started: run.started.clone(),
            place: run.place.clone(),
            profile: run.profile.clone(),
            plan_sha256: run.plan_sha256.clone(),
        };
        Ok(Self {
            numbers,
            origins: BTreeMap::from([(plan.to_owned(), origin)]),
            models: by_model,
            earlier: BTreeSet::new(),
        })
    }

    /// The numbers of `keys` as CSV (RFC 4180), one number a row.
    pub fn csv(&self, keys: &BTreeSet<Key>) -> String {
        let mut text = COLUMNS.join(",") + "\n";
        for (key, number) in self.numbers.iter().filter(|(key, _)| keys.contains(key)) {
            let Some(origin) = self.origins.get(&key.plan) else {
                continue;
            };
            let end = |of: fn(Interval) -> f64| {
                number
                    .interval
                    .map_or(String::new(), |interval| of(interval).to_string())
            };
            let row = [
                key.plan.clone(),
                key.treatment.clone(),
                key.metric.clone(),
                number.value.to_string(),
                end(|interval| interval.low),
                end(|interval| interval.high),
                number.n.to_string(),
                number.unit.to_string(),
                number.source.to_string(),
                number.varies.clone(),
                origin.vtax.clone(),
                origin.host.clone(),
                origin.started.clone(),
                origin.place.clone(),
                origin.profile.clone(),
                origin.plan_sha256.clone(),
            ];
            text.push_str(&row.map(|column| field(&column)).join(","));
            text.push('\n');
        }
        text
    }

    /// The values by cost model of numbers that are stored, as CSV.
    fn models_csv(&self) -> String {
        let mut text = MODEL_COLUMNS.join(",") + "\n";
        for (key, values) in &self.models {
            if !self.numbers.contains_key(key) {
                continue;
            }
            for (model, value) in values {
                let value = value.to_string();
                let row = [&key.plan, &key.treatment, &key.metric, model, &value];
                text.push_str(&row.map(|column| field(column)).join(","));
                text.push('\n');
            }
        }
        text
    }

    /// Parses the output of [`Ours::csv`].
    fn of_csv(text: &str) -> Result<Self, StoredError> {
        let mut ours = Self::default();
        let mut lines = text.lines();
        if lines.next() != Some(&COLUMNS.join(",")) {
            return Err(StoredError::Columns);
        }
        for line in lines {
            let fields = fields(line);
            let row: [String; COLUMNS.len()] = fields
                .try_into()
                .map_err(|_| StoredError::Length(line.to_owned()))?;
            let [
                plan,
                treatment,
                metric,
                value,
                low,
                high,
                n,
                unit,
                source,
                varies,
                vtax,
                host,
                started,
                place,
                profile,
                plan_sha256,
            ] = row;
            let wrong = |what| StoredError::Field(what, line.to_owned());
            let number = |text: &str| text.parse::<f64>().map_err(|_| wrong("a number"));
            let interval = match (low.as_str(), high.as_str()) {
                ("", "") => None,
                (low, high) => Some(Interval {
                    low: number(low)?,
                    high: number(high)?,
                }),
            };
            let source = Source::named(&source).ok_or_else(|| wrong("a source flag"))?;
            let entry = Number {
                value: number(&value)?,
                interval,
                n: n.parse().map_err(|_| wrong("a count"))?,
                unit: unit.parse().map_err(|_| wrong("a unit"))?,
                source: source.recorded_at(&place),
                varies,
            };
            let origin = Origin {
                vtax,
                host,
                started,
                place,
                profile,
                plan_sha256,
            };
            ours.origins.insert(plan.clone(), origin);
            let key = Key {
                plan,
                treatment,
                metric,
            };
            ours.numbers.insert(key, entry);
        }
        Ok(ours)
    }

    /// Writes the file of each paper into `folder`, with the numbers of the catalogue's figures only.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn keep(&self, catalogue: &Catalogue, folder: &Path) -> Result<(), AtlasError> {
        for paper in &catalogue.papers {
            let figures = catalogue.figures.iter();
            let keys = crate::wanted(figures.filter(|figure| figure.paper == paper.key));
            let file = folder.join(format!("{}.csv", paper.key));
            vtax_files::write(&file, self.csv(&keys).as_bytes())
                .map_err(|error| AtlasError::file("write", &file)(error.cause))?;
        }
        let file = folder.join("models.csv");
        vtax_files::write(&file, self.models_csv().as_bytes())
            .map_err(|error| AtlasError::file("write", &file)(error.cause))?;
        Ok(())
    }
}

/// Parses the file of other cost models.
fn models_of_csv(text: &str) -> Result<BTreeMap<Key, BTreeMap<String, f64>>, StoredError> {
    let mut models: BTreeMap<Key, BTreeMap<String, f64>> = BTreeMap::new();
    let mut lines = text.lines();
    if lines.next() != Some(&MODEL_COLUMNS.join(",")) {
        return Err(StoredError::Columns);
    }
    for line in lines {
        let row: [String; MODEL_COLUMNS.len()] = fields(line)
            .try_into()
            .map_err(|_| StoredError::Length(line.to_owned()))?;
        let [plan, treatment, metric, model, value] = row;
        let value = value.parse();
        let value = value.map_err(|_| StoredError::Field("a number", line.to_owned()))?;
        let key = Key {
            plan,
            treatment,
            metric,
        };
        models.entry(key).or_default().insert(model, value);
    }
    Ok(models)
}

/// The means of a modelled metric over the trials that count, by cost model. Empty for a measured one, for a sum of
/// metrics, and for a load level.
fn of_models(trials: &[Trial], key: &Key, models: Models) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    if metric::MODEL.part(&key.metric).is_none() {
        return BTreeMap::new();
    }
    let counted = trials.iter().filter(|trial| {
        trial.treatment.label == key.treatment
            && trial.outcome == TrialOutcome::Complete
            && trial.suspect.is_empty()
    });
    let mut count = 0;
    for trial in counted {
        count += 1;
        for (model, values) in models(trial) {
            if let Some(value) = values.get(&key.metric) {
                let (sum, of) = sums.entry(model).or_default();
                (*sum, *of) = (*sum + value, *of + 1);
            }
        }
    }
    let whole = sums.into_iter().filter(|(_, (_, of))| *of == count);
    whole
        .map(|(model, (sum, of))| (model, sum / of as f64))
        .collect()
}

/// Whether a treatment has run and all its trials are suspect.
fn has_doubted_treatment(results: &ResultsDir) -> bool {
    let mut trusted: BTreeMap<String, bool> = BTreeMap::new();
    for trial in results.trials().flatten() {
        *trusted.entry(trial.treatment.label).or_default() |= trial.suspect.is_empty();
    }
    trusted.values().any(|trusted| !trusted)
}

/// The number of a key, from the trials that are complete and not suspect. `None` without such trials, or when a metric
/// is missing.
fn of_key(analysis: &Analysis, key: &Key) -> Option<Number> {
    let summary = analysis.treatment(&key.treatment)?;
    let (sum, at) = match key.metric.split_once(" @ ") {
        None => (key.metric.as_str(), None),
        Some((sum, level)) => (sum, Some(At::named(level)?)),
    };
    let metrics: Vec<OfTrials<'_>> = (sum.split(" + "))
        .map(|name| match at {
            None => whole(summary, name).map(OfTrials::whole),
            Some(at) => OfTrials::at(summary, name, at),
        })
        .collect::<Option<_>>()?;
    let first = metrics.first()?;
    // A provisional analysis also includes suspect trials, which are not compared.
    let trials = analysis.trials.iter();
    let counted = trials.filter(|trial| trial.failed.is_none() && trial.suspect.is_empty());
    let values: Vec<f64> = counted
        .filter_map(|trial| {
            let of = metrics.iter().map(|metric| metric.values.get(&trial.index));
            of.sum::<Option<f64>>()
        })
        .collect();
    let any = |metric: &OfTrials<'_>| metric.any.certainty;
    let exact = metrics.iter().all(|metric| any(metric).is_exact());
    let source = metrics.iter().map(|metric| metric.any.source).max()?;
    Some(Number {
        varies: match any(first) {
            Certainty::Exact { seed } if exact => format!("exact, seed {seed}"),
            Certainty::Seeds => "seed".to_owned(),
            _ => "trial".to_owned(),
        },
        ..of_values(&values, exact, first.any.unit, source, key)?
    })
}

/// A metric over the whole measured part, of the target or of a neighbour (`NEIGHBOUR: METRIC`).
fn whole<'a>(summary: &'a TreatmentSummary, name: &str) -> Option<&'a MetricSummary> {
    let Some((neighbour, name)) = name.split_once(": ") else {
        return summary.metric(name);
    };
    let actor = summary.actors.iter().find(|one| one.name == neighbour)?;
    actor.metrics.iter().find(|metric| metric.name == name)
}

/// The load level of a trial to read.
#[derive(Debug, Clone, Copy)]
enum At {
    /// The highest level that kept the objective, for each trial separately.
    Knee,
    /// The lowest level.
    Lowest,
}

impl At {
    fn named(name: &str) -> Option<Self> {
        match name {
            "knee" => Some(Self::Knee),
            "lowest" => Some(Self::Lowest),
            _ => None,
        }
    }
}

/// The values of a metric by trial.
struct OfTrials<'a> {
    /// The source of the unit, flag and certainty.
    any: &'a MetricSummary,
    /// The values, by the index of the trial.
    values: BTreeMap<u32, f64>,
}

impl<'a> OfTrials<'a> {
    /// The values over the whole measured part.
    fn whole(metric: &'a MetricSummary) -> Self {
        Self {
            any: metric,
            values: metric.values.iter().copied().collect(),
        }
    }

    /// The values at one level of each trial; `None` where no level has the metric. A trial without a knee has no value
    /// at the knee. A knee is an offered load, which differs a little from its level: the nearest level is the one.
    fn at(summary: &'a TreatmentSummary, name: &str, at: At) -> Option<Self> {
        let levels: Vec<(f64, &MetricSummary)> = (summary.levels.iter())
            .filter_map(|level| Some((level.level.value, level.metric(name)?)))
            .collect();
        let (_, any) = levels.first()?;
        let knees: BTreeMap<_, f64> = summary
            .metric(metric::KNEE.name)
            .into_iter()
            .flat_map(|knee| knee.values.iter().copied())
            .collect();
        // How far a level is from the one that is looked for.
        let distance = |trial, level: f64| match at {
            At::Lowest => Some(level),
            At::Knee => knees.get(trial).map(|knee| (level / knee).ln().abs()),
        };
        let mut nearest = BTreeMap::new();
        for (level, metric) in &levels {
            for (trial, value) in &metric.values {
                let Some(distance) = distance(trial, *level) else {
                    continue;
                };
                let best = nearest.entry(*trial).or_insert((distance, *value));
                if distance < best.0 {
                    *best = (distance, *value);
                }
            }
        }
        let values = nearest
            .into_iter()
            .map(|(trial, (_, value))| (trial, value));
        Some(Self {
            any,
            values: values.collect(),
        })
    }
}

fn of_values(values: &[f64], exact: bool, unit: Unit, source: Source, key: &Key) -> Option<Number> {
    if values.is_empty() {
        return None;
    }
    let seed = seed_of(&["atlas", &key.plan, &key.treatment, &key.metric]);
    let interval = (!exact).then(|| positive_mean_interval(values, seed));
    Some(Number {
        value: values.iter().sum::<f64>() / values.len() as f64,
        interval: interval.flatten(),
        n: values.len(),
        unit,
        source,
        varies: String::new(),
    })
}

/// The numbers of a charge-back study, by treatment and metric. The treatments are `PLATFORM · LOAD · alone` or
/// `together`. The metric is `host.per_work`: the host's processor time outside the guest's own for a unit of the
/// guest's work.
fn of_study(study: &Study) -> BTreeMap<(String, String), Number> {
    let mut found: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for platform in &study.platforms {
        let pairs = platform.measurements.iter();
        for measurement in pairs.filter(|measurement| measurement.guests.len() == 2) {
            let together = measurement.running().count() == 2;
            for guest in measurement.running() {
                let work = guest.work.unwrap_or(0.0) * measurement.span.as_secs_f64();
                if work.is_nan() || work <= 0.0 {
                    continue;
                }
                let Some(total) = guest.total("traced") else {
                    continue;
                };
                let own = guest.stage("traced", "vcpu").0;
                let seconds = total.0.saturating_sub(own) as f64 / 1e9;
                let when = if together { "together" } else { "alone" };
                let treatment = format!("{} · {} · {when}", platform.name, guest.load);
                let key = (treatment, "host.per_work".to_owned());
                found.entry(key).or_default().push(seconds / work);
            }
        }
    }
    let numbers = found
        .into_iter()
        .filter_map(|((treatment, metric), values)| {
            let key = Key {
                plan: study.name.clone(),
                treatment,
                metric,
            };
            let unit = "s".parse().ok()?;
            let number = of_values(&values, false, unit, study.source, &key)?;
            let varies = "round".to_owned();
            Some(((key.treatment, key.metric), Number { varies, ..number }))
        });
    numbers.collect()
}

/// The fields of a line of CSV.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let (mut quoted, mut characters) = (false, line.chars().peekable());
    while let Some(c) = characters.next() {
        match c {
            '"' if quoted && characters.next_if_eq(&'"').is_some() => {
                fields.last_mut().map(|f| f.push('"'))
            }
            '"' => {
                quoted = !quoted;
                None
            }
            ',' if !quoted => {
                fields.push(String::new());
                None
            }
            c => fields.last_mut().map(|field| field.push(c)),
        };
    }
    fields
}

#[cfg(test)]
mod tests;
