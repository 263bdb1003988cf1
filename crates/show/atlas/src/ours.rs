// SPDX-License-Identifier: Apache-2.0
//! The measured numbers of vtax: read from results directories, and stored as CSV so that a page needs no run.

use crate::catalogue::{Catalogue, Key};
use crate::{AtlasError, archive, digest};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;
use vtax_core::csv::{field, fields};
use vtax_core::{Source, Unit, metric};
use vtax_report::analysis::charge::Study;
use vtax_report::analysis::{Analysis, Certainty, MetricSummary, TreatmentSummary, analyse};
use vtax_results::stats::{Interval, positive_mean_interval, seed_of};
use vtax_results::{ResultsDir, Trial};

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

/// The columns of a stored file.
const COLUMNS: &str = "plan,treatment,metric,value,low,high,n,unit,source,varies,vtax,host,started,place,profile,planned,plan_sha256,archive_sha256";

/// The columns of the file of other cost models.
const MODEL_COLUMNS: &str = "plan,treatment,metric,model,value";

/// The modelled metrics of a trial by cost model: the name of each, and its values by metric.
pub type Models = fn(&Trial) -> Vec<(String, BTreeMap<String, f64>)>;

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
    /// The number of `times` as much.
    pub fn times(&self, times: f64) -> Self {
        let interval = self.interval.map(|Interval { low, high }| Interval {
            low: low * times,
            high: high * times,
        });
        Self {
            value: self.value * times,
            interval,
            ..self.clone()
        }
    }

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
    /// The trials of a treatment that were planned; fewer count where some failed or are suspect.
    pub planned: u32,
    /// SHA-256 of the plan.
    pub plan_sha256: String,
    /// SHA-256 of the archive of its trials; empty where they were not kept.
    pub archive_sha256: String,
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

/// A row of a stored file: its text, and its fields by column.
struct StoredRow<'a> {
    text: &'a str,
    fields: BTreeMap<&'static str, String>,
}

impl<'a> StoredRow<'a> {
    /// Parses the rows of a file with these columns.
    fn all(text: &'a str, columns: &'static str) -> Result<Vec<Self>, StoredError> {
        let mut lines = text.lines();
        if lines.next() != Some(columns) {
            return Err(StoredError::Columns);
        }
        let rows = lines.map(|text| {
            let found = fields(text);
            if found.len() != columns.split(',').count() {
                return Err(StoredError::Length(text.to_owned()));
            }
            let fields = columns.split(',').zip(found).collect();
            Ok(Self { text, fields })
        });
        rows.collect()
    }

    fn text(&self, column: &str) -> String {
        self.fields.get(column).cloned().unwrap_or_default()
    }

    fn parsed<T: FromStr>(&self, column: &str, what: &'static str) -> Result<T, StoredError> {
        let wrong = |_| StoredError::Field(what, self.text.to_owned());
        self.text(column).parse().map_err(wrong)
    }

    fn key(&self) -> Key {
        Key {
            plan: self.text("plan"),
            treatment: self.text("treatment"),
            metric: self.text("metric"),
        }
    }
}

/// A line of a stored file.
fn line(fields: &[&dyn Display]) -> String {
    let fields: Vec<String> = (fields.iter())
        .map(|text| field(&text.to_string()))
        .collect();
    fields.join(",") + "\n"
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

    /// The error of one draw of a metric, as a factor: the root mean square over treatments of what one more draw would
    /// lie within, from the intervals of their draws. `None` where no treatment has three draws.
    pub fn spread(&self, metric: &str) -> Option<f64> {
        let drawn = self.numbers.iter().filter(|(key, number)| {
            key.metric == metric && number.varies == "seed" && number.n >= 3 && number.value > 0.0
        });
        let squares: Vec<f64> = drawn
            .filter_map(|(_, number)| {
                let interval = number.interval.filter(|interval| interval.low > 0.0)?;
                let half = (interval.high / interval.low).ln() / 2.0;
                Some(half * half * number.n as f64)
            })
            .collect();
        (!squares.is_empty()).then(|| mean(&squares).sqrt().exp())
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
        results.verify()?;
        let run = results.run();
        let is_another = text.is_some_and(|text| run.plan_sha256 != digest(text.as_bytes()));
        if run.name != plan || is_another {
            return Err(AtlasError::AnotherPlan {
                path: path.to_owned(),
                holds: run.name.clone(),
                plan: plan.to_owned(),
            });
        }
        let of_plan = wanted.iter().filter(|key| key.plan == plan).cloned();
        let mut numbers = BTreeMap::new();
        let mut by_model = BTreeMap::new();
        match Study::from_results(&results) {
            // A study uses suspect trials where a treatment has no others.
            Ok(_) if has_doubted_treatment(&results) => {}
            Ok(study) => {
                let all = of_study(&study);
                numbers.extend(of_plan.filter_map(|key| {
                    let number = all.get(&(key.treatment.clone(), key.metric.clone()))?;
                    Some((key, number.clone()))
                }));
            }
            Err(_) => {
                let analysis = analyse(&results)?;
                let trials: Vec<Trial> = results.trials().flatten().collect();
                for key in of_plan {
                    let Some(number) = of_key(&analysis, &key) else {
                        continue;
                    };
                    let values = of_models(&trials, &key, models);
                    by_model.extend((!values.is_empty()).then(|| (key.clone(), values)));
                    numbers.insert(key, number);
                }
            }
        }
        let host = results.host().unwrap_or_default();
        let of_host = |path: &str| host.pointer(path).and_then(|value| value.as_str());
        let facts = ["/cpu/model", "/distribution", "/kernel"].into_iter();
        let origin = Origin {
            vtax: of_host("/vtax").unwrap_or("unknown").to_owned(),
            host: facts.filter_map(of_host).collect::<Vec<_>>().join(", "),
            started: run.started.clone(),
            place: run.place.clone(),
            profile: run.profile.clone(),
            planned: results.blocks(),
            plan_sha256: run.plan_sha256.clone(),
            archive_sha256: digest(&archive::packed(&results)?),
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
        let rows = self.numbers.iter().filter(|(key, _)| keys.contains(key));
        let rows = rows.filter_map(|(key, number)| {
            let origin = self.origins.get(&key.plan)?;
            let end = |of: fn(Interval) -> f64| {
                let end = number.interval.map(|interval| of(interval).to_string());
                end.unwrap_or_default()
            };
            let (low, high) = (end(|interval| interval.low), end(|interval| interval.high));
            Some(line(&[
                &key.plan,
                &key.treatment,
                &key.metric,
                &number.value,
                &low,
                &high,
                &number.n,
                &number.unit,
                &number.source,
                &number.varies,
                &origin.vtax,
                &origin.host,
                &origin.started,
                &origin.place,
                &origin.profile,
                &origin.planned,
                &origin.plan_sha256,
                &origin.archive_sha256,
            ]))
        });
        COLUMNS.to_owned() + "\n" + &rows.collect::<String>()
    }

    /// The values by cost model of numbers that are stored, as CSV.
    fn models_csv(&self) -> String {
        let stored = self.models.iter();
        let stored = stored.filter(|(key, _)| self.numbers.contains_key(key));
        let rows = stored.flat_map(|(key, values)| {
            let row = |(model, value): (&String, &f64)| {
                line(&[&key.plan, &key.treatment, &key.metric, model, value])
            };
            values.iter().map(row)
        });
        MODEL_COLUMNS.to_owned() + "\n" + &rows.collect::<String>()
    }

    /// Parses the output of [`Ours::csv`].
    fn of_csv(text: &str) -> Result<Self, StoredError> {
        let mut ours = Self::default();
        for row in StoredRow::all(text, COLUMNS)? {
            let number = |column| row.parsed(column, "a number");
            let is_exact = row.text("low").is_empty() && row.text("high").is_empty();
            let source = Source::named(&row.text("source"));
            let source =
                source.ok_or_else(|| StoredError::Field("a source flag", row.text.to_owned()))?;
            let origin = Origin {
                vtax: row.text("vtax"),
                host: row.text("host"),
                started: row.text("started"),
                place: row.text("place"),
                profile: row.text("profile"),
                planned: row.parsed("planned", "a count")?,
                plan_sha256: row.text("plan_sha256"),
                archive_sha256: row.text("archive_sha256"),
            };
            let number = Number {
                value: number("value")?,
                interval: if is_exact {
                    None
                } else {
                    let (low, high) = (number("low")?, number("high")?);
                    Some(Interval { low, high })
                },
                n: row.parsed("n", "a count")?,
                unit: row.parsed("unit", "a unit")?,
                source: source.recorded_at(&origin.place),
                varies: row.text("varies"),
            };
            ours.origins.insert(row.text("plan"), origin);
            ours.numbers.insert(row.key(), number);
        }
        Ok(ours)
    }

    /// Writes the file of each paper into `folder`, with the numbers of the catalogue's figures only.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn keep(&self, catalogue: &Catalogue, folder: &Path) -> Result<(), AtlasError> {
        std::fs::create_dir_all(folder).map_err(AtlasError::file("create", folder))?;
        for paper in &catalogue.papers {
            let figures = catalogue.figures.iter();
            let keys = crate::wanted(figures.filter(|figure| figure.paper == paper.key));
            let file = folder.join(format!("{}.csv", paper.key));
            write(&file, &self.csv(&keys))?;
        }
        write(&folder.join("models.csv"), &self.models_csv())
    }
}

fn write(file: &Path, text: &str) -> Result<(), AtlasError> {
    vtax_files::write(file, text.as_bytes())
        .map_err(|error| AtlasError::file("write", file)(error.cause))
}

/// Parses the file of other cost models.
fn models_of_csv(text: &str) -> Result<BTreeMap<Key, BTreeMap<String, f64>>, StoredError> {
    let mut models: BTreeMap<Key, BTreeMap<String, f64>> = BTreeMap::new();
    for row in StoredRow::all(text, MODEL_COLUMNS)? {
        let value = row.parsed("value", "a number")?;
        let values = models.entry(row.key()).or_default();
        values.insert(row.text("model"), value);
    }
    Ok(models)
}

/// The means of a modelled metric over the trials that count, by cost model. Empty for a measured one, for a sum of
/// metrics, and for a load level.
fn of_models(trials: &[Trial], key: &Key, models: Models) -> BTreeMap<String, f64> {
    if metric::MODEL.part(&key.metric).is_none() {
        return BTreeMap::new();
    }
    let of_treatment = trials.iter();
    let counted: Vec<&Trial> = of_treatment
        .filter(|trial| trial.treatment.label == key.treatment && trial.counts())
        .collect();
    let mut found: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (model, values) in counted.iter().flat_map(|trial| models(trial)) {
        let value = values.get(&key.metric);
        found.entry(model).or_default().extend(value);
    }
    found.retain(|_, values| values.len() == counted.len());
    let means = found.into_iter();
    means
        .map(|(model, values)| (model, mean(&values)))
        .collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
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
    let (sum, level) = match key.metric.split_once(" @ ") {
        None => (key.metric.as_str(), None),
        Some((sum, level)) => (sum, Some(level)),
    };
    let metrics: Vec<OfTrials<'_>> = (sum.split(" + "))
        .map(|name| match level {
            None => whole(summary, name),
            Some(level) => at_level(summary, name, level),
        })
        .collect::<Option<_>>()?;
    let (first, _) = metrics.first()?;
    // A provisional analysis also includes suspect trials, which are not compared.
    let trials = analysis.trials.iter();
    let counted = trials.filter(|trial| trial.failed.is_none() && trial.suspect.is_empty());
    let values: Vec<f64> = counted
        .filter_map(|trial| {
            let of = metrics.iter().map(|(_, values)| values.get(&trial.index));
            of.sum::<Option<f64>>()
        })
        .collect();
    let exact = metrics.iter().all(|(any, _)| any.certainty.is_exact());
    let source = metrics.iter().map(|(any, _)| any.source).max()?;
    Some(Number {
        varies: match first.certainty {
            Certainty::Exact { seed } if exact => format!("exact, seed {seed}"),
            Certainty::Seeds => "seed".to_owned(),
            _ => "trial".to_owned(),
        },
        ..of_values(&values, exact, first.unit, source, key)?
    })
}

/// A metric, for its unit, flag and certainty, and its values by the index of the trial.
type OfTrials<'a> = (&'a MetricSummary, BTreeMap<u32, f64>);

/// A metric over the whole measured part, of the target or of a neighbour (`NEIGHBOUR: METRIC`).
fn whole<'a>(summary: &'a TreatmentSummary, name: &str) -> Option<OfTrials<'a>> {
    let metric = match name.split_once(": ") {
        None => summary.metric(name)?,
        Some((neighbour, name)) => {
            let actor = summary.actors.iter().find(|one| one.name == neighbour)?;
            actor.metrics.iter().find(|metric| metric.name == name)?
        }
    };
    Some((metric, metric.values.iter().copied().collect()))
}

/// The highest level that kept the objective, for each trial separately.
const KNEE: &str = "knee";
/// The lowest level.
const LOWEST: &str = "lowest";

/// A metric at one level of each trial; `None` where no level has the metric. A trial without a knee has no value at the
/// knee. A knee is an offered load, which differs a little from its level: the nearest level is the one.
fn at_level<'a>(summary: &'a TreatmentSummary, name: &str, level: &str) -> Option<OfTrials<'a>> {
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
    let distance = |trial, load: f64| match level {
        LOWEST => Some(load),
        KNEE => knees.get(trial).map(|knee| (load / knee).ln().abs()),
        _ => None,
    };
    let mut nearest = BTreeMap::new();
    for (load, metric) in &levels {
        for (trial, value) in &metric.values {
            let Some(distance) = distance(trial, *load) else {
                continue;
            };
            let best = nearest.entry(*trial).or_insert((distance, *value));
            if distance < best.0 {
                *best = (distance, *value);
            }
        }
    }
    let values = nearest.into_iter();
    let values = values.map(|(trial, (_, value))| (trial, value));
    Some((any, values.collect()))
}

fn of_values(values: &[f64], exact: bool, unit: Unit, source: Source, key: &Key) -> Option<Number> {
    if values.is_empty() {
        return None;
    }
    let seed = seed_of(&["atlas", &key.plan, &key.treatment, &key.metric]);
    let interval = (!exact).then(|| positive_mean_interval(values, seed));
    Some(Number {
        value: mean(values),
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

#[cfg(test)]
mod tests;
