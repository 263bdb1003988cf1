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
use vtax_report::results::{ResultsDir, Trial, TrialOutcome};
use vtax_report::stats::{Interval, positive_mean_interval, seed_of};

/// The stored numbers, by paper.
const KEPT: [(&str, &str); 5] = [
    ("shea", include_str!("../../../papers/ours/shea.csv")),
    ("rossi", include_str!("../../../papers/ours/rossi.csv")),
    (
        "bratterud",
        include_str!("../../../papers/ours/bratterud.csv"),
    ),
    (
        "cherkasova",
        include_str!("../../../papers/ours/cherkasova.csv"),
    ),
    ("chen", include_str!("../../../papers/ours/chen.csv")),
];

/// The stored numbers of other cost models.
const KEPT_MODELS: &str = include_str!("../../../papers/ours/models.csv");

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
            let sources = [Source::Measured, Source::Modelled, Source::Emulated];
            let mut sources = sources.into_iter();
            let source = sources.find(|one| one.to_string() == source);
            let entry = Number {
                value: number(&value)?,
                interval,
                n: n.parse().map_err(|_| wrong("a count"))?,
                unit: unit.parse().map_err(|_| wrong("a unit"))?,
                source: source.ok_or_else(|| wrong("a source flag"))?,
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
    /// at the knee.
    fn at(summary: &'a TreatmentSummary, name: &str, at: At) -> Option<Self> {
        let mut levels: Vec<(f64, &MetricSummary)> = (summary.levels.iter())
            .filter_map(|level| Some((level.level.value, level.metric(name)?)))
            .collect();
        levels.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let (_, any) = levels.first()?;
        let knees = summary
            .metric(metric::KNEE.name)
            .map(|knee| knee.values.as_slice());
        let mut values = BTreeMap::new();
        for (level, metric) in &levels {
            for (trial, value) in &metric.values {
                let is_own = match at {
                    At::Lowest => !values.contains_key(trial),
                    At::Knee => knees.is_some_and(|knees| knees.contains(&(*trial, *level))),
                };
                if is_own {
                    values.insert(*trial, *value);
                }
            }
        }
        Some(Self { any, values })
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
                let Some(total) = guest.total("traced").filter(|_| work > 0.0) else {
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
mod tests {
    use super::*;
    use std::fs;

    fn no_models(_: &Trial) -> Vec<(String, BTreeMap<String, f64>)> {
        Vec::new()
    }

    #[test]
    fn numbers_of_other_cost_models_come_back_from_their_file_and_follow_their_plan() {
        let kept = "plan,treatment,metric,model,value\np,vm · send,model.power,genoa,2.5\n\
                    p,vm · send,model.power,rome,3\nq,vm · send,model.power,rome,4\n";
        let ours = Ours::kept().unwrap();
        let number = ours.numbers.values().next().unwrap();
        let mut all = Ours {
            models: models_of_csv(kept).unwrap(),
            ..Ours::default()
        };
        let keys: Vec<Key> = all.models.keys().cloned().collect();
        all.numbers
            .extend(keys.iter().map(|key| (key.clone(), number.clone())));
        assert_eq!(all.models_csv(), kept);
        for wrong in ["", &kept.replace("3", "three"), &format!("{kept}p,x\n")] {
            assert!(models_of_csv(wrong).is_err(), "{wrong}");
        }
        // A newer run of a plan replaces what other models made of the older one.
        all.take(Ours {
            origins: [("p".to_owned(), Origin::default())].into(),
            ..Ours::default()
        });
        assert_eq!(all.models.keys().collect::<Vec<_>>(), [&keys[1]]);
    }

    #[test]
    fn numbers_come_back_from_their_file() {
        let key = |plan: &str, treatment: &str| Key {
            plan: plan.into(),
            treatment: treatment.into(),
            metric: "a + b".into(),
        };
        let number = Number {
            value: 0.1 + 0.2,
            interval: Some(Interval {
                low: 1e-9,
                high: 4.0,
            }),
            n: 4,
            unit: "cycle/GB".parse().unwrap(),
            source: Source::Emulated,
            varies: "seed".into(),
        };
        let origin = Origin {
            host: "A \"fast\" one, of 2".into(),
            ..Origin::default()
        };
        let ours = Ours {
            numbers: [
                (key("p", "x, y · \"z\""), number.clone()),
                (
                    key("p", "w"),
                    Number {
                        interval: None,
                        ..number.clone()
                    },
                ),
            ]
            .into(),
            origins: [("p".to_owned(), origin)].into(),
            models: BTreeMap::new(),
            earlier: BTreeSet::new(),
        };
        let text = ours.csv(&ours.numbers.keys().cloned().collect());
        assert_eq!(Ours::of_csv(&text).unwrap(), ours);
        assert_eq!(ours.csv(&[key("q", "w")].into()).lines().count(), 1);
        for wrong in [
            "",
            "a,b\n",
            &format!("{text}p,x\n"),
            &text.replace(",4,", ",four,"),
        ] {
            assert!(Ours::of_csv(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sums_of_metrics_are_taken_trial_by_trial_and_of_those_that_count() {
        let root = tempfile::tempdir().unwrap();
        let treatment = serde_json::json!({ "label": "vm · send", "platform": "vm", "workload": "send", "factors": {},
            "baseline": null, "platform_kind": "qemu", "workload_kind": "iperf3-send" });
        let run = serde_json::from_value(
            serde_json::json!({ "format": 2, "name": "p", "description": "", "seed": 1,
            "profile": "quick", "place": "local", "started": "2026-01-01T00:00:00Z", "plan_sha256": "x",
            "treatments": [treatment], "minimum_effect": 0.02,
            "schedule": [{"treatment": 0, "block": 0}, {"treatment": 0, "block": 1}, {"treatment": 0, "block": 2}] }),
        );
        let host = serde_json::json!({ "vtax": "9", "kernel": "6.1", "cpu": { "model": "C" } });
        ResultsDir::create(root.path(), &run.unwrap(), "", &host).unwrap();
        for (index, a, suspect) in [(0, 1.0, vec![]), (1, 3.0, vec![]), (2, 500.0, vec!["busy"])] {
            let metric = |value: f64| serde_json::json!({ "value": value, "unit": "core", "source": "emulated", "better": "lower", "title": "t" });
            let times = serde_json::json!({ "boot": 0, "service": 0, "warmup": 0, "measured": 1, "teardown": 0, "total": 1 });
            let trial = serde_json::json!({ "format": 2, "index": index, "block": index, "treatment": treatment,
                "started": "2026-01-01T00:00:00Z", "outcome": "complete", "suspect": suspect, "times": times,
                "window": [0, 1], "work": null, "metrics": { "a": metric(a), "b": metric(10.0) }, "environment": {},
                "actors": [{ "name": "large", "role": "neighbour", "platform": "qemu", "workload": "cpu",
                    "place": "local", "metrics": { "a": metric(7.0 * a) }, "environment": {} }],
                "observation": { "cpu": 0, "passes": 1, "missed": 0 } });
            let folder = root.path().join(format!("trials/{index:04}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("trial.json"), trial.to_string()).unwrap();
        }
        let key = |metric: &str| Key {
            plan: "p".into(),
            treatment: "vm · send".into(),
            metric: metric.into(),
        };
        let wanted = ["a + b", "a + none", "large: a", "large: b", "small: a"].map(key);
        let wanted = wanted.into();
        let ours = Ours::of_results(root.path(), "p", None, &wanted, no_models).unwrap();
        let number = &ours.numbers[&key("a + b")];
        assert_eq!((number.value, number.n), (12.0, 2));
        assert!(
            number
                .interval
                .is_some_and(|interval| interval.contains(12.0))
        );
        assert_eq!(
            (number.source, number.varies.as_str()),
            (Source::Emulated, "trial")
        );
        assert_eq!(ours.numbers[&key("large: a")].value, 14.0);
        for absent in ["a + none", "large: b", "small: a"] {
            assert!(!ours.numbers.contains_key(&key(absent)), "{absent}");
        }
        assert_eq!(ours.origins["p"].host, "C, 6.1");
        let another = Ours::of_results(root.path(), "p", Some("another text"), &wanted, no_models);
        assert!(matches!(another, Err(AtlasError::AnotherPlan { .. })));
    }

    #[test]
    fn a_load_level_is_each_trials_own_knee_or_its_lowest() {
        let root = tempfile::tempdir().unwrap();
        let treatment = serde_json::json!({ "label": "xen · 1KB", "platform": "xen", "workload": "1KB", "factors": {},
            "baseline": null, "platform_kind": "xen", "workload_kind": "http-rate" });
        let run = serde_json::from_value(
            serde_json::json!({ "format": 2, "name": "p", "description": "", "seed": 1,
            "profile": "quick", "place": "local", "started": "2026-01-01T00:00:00Z", "plan_sha256": "x",
            "treatments": [treatment], "minimum_effect": 0.02,
            "schedule": [{"treatment": 0, "block": 0}, {"treatment": 0, "block": 1}, {"treatment": 0, "block": 2}] }),
        );
        let metric = |value: f64, unit: &str| serde_json::json!({ "value": value, "unit": unit, "source": "emulated", "better": "lower", "title": "t" });
        ResultsDir::create(root.path(), &run.unwrap(), "", &serde_json::json!({})).unwrap();
        // The knee of the second trial is one level higher than that of the first. The third has no knee.
        for (index, knee) in [(0, Some(20.0)), (1, Some(26.0)), (2, None)] {
            let phases: Vec<_> = [20.0, 26.0, 33.8]
                .into_iter()
                .zip(1u32..)
                .map(|(level, place)| {
                    let cores = 0.1 * f64::from(place) + 0.01 * f64::from(index);
                    serde_json::json!({ "name": format!("{level} op/s"), "level": { "value": level, "unit": "op/s" },
                        "window": [0, 1], "work": null, "kept": knee.is_some_and(|knee| level <= knee),
                        "metrics": { "a": metric(cores, "core"), "b": metric(1.0, "core") } })
                })
                .collect();
            let mut metrics = serde_json::json!({ "a": metric(9.0, "core") });
            if let Some(knee) = knee {
                metrics["knee"] = metric(knee, "op/s");
            }
            let times = serde_json::json!({ "boot": 0, "service": 0, "warmup": 0, "measured": 1, "teardown": 0, "total": 1 });
            let trial = serde_json::json!({ "format": 2, "index": index, "block": index, "treatment": treatment,
                "started": "2026-01-01T00:00:00Z", "outcome": "complete", "suspect": [], "times": times,
                "window": [0, 1], "work": null, "metrics": metrics, "environment": {}, "phases": phases,
                "observation": { "cpu": 0, "passes": 1, "missed": 0 } });
            let folder = root.path().join(format!("trials/{index:04}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("trial.json"), trial.to_string()).unwrap();
        }
        let key = |metric: &str| Key {
            plan: "p".into(),
            treatment: "xen · 1KB".into(),
            metric: metric.into(),
        };
        let wanted = [
            "a @ knee",
            "a + b @ knee",
            "a @ lowest",
            "a",
            "a @ top",
            "none @ knee",
        ]
        .map(key);
        let ours = Ours::of_results(root.path(), "p", None, &wanted.into(), no_models).unwrap();
        let found = |metric| {
            let number = ours.numbers.get(&key(metric))?;
            Some(((number.value * 1e6).round() / 1e6, number.n))
        };
        // 0.10 at the first trial's knee of 20/s, 0.21 at the second's of 26/s.
        assert_eq!(found("a @ knee"), Some((0.155, 2)));
        assert_eq!(found("a + b @ knee"), Some((1.155, 2)));
        assert_eq!(found("a @ lowest"), Some((0.11, 3)));
        assert_eq!(found("a"), Some((9.0, 3)));
        assert_eq!((found("a @ top"), found("none @ knee")), (None, None));
    }

    #[test]
    fn a_later_run_of_a_plan_replaces_all_of_it() {
        let kept = "plan,treatment,metric,value,low,high,n,unit,source,varies,vtax,host,started,place,profile,plan_sha256\n\
                    p,one,m,1,,,1,s,measured,trials,0,h,t,local,full,x\n\
                    p,two,m,2,,,1,s,measured,trials,0,h,t,local,full,x\n\
                    q,one,m,3,,,1,s,measured,trials,0,h,t,local,full,x\n";
        let mut all = Ours::of_csv(kept).unwrap();
        let newer = kept.lines().take(2).collect::<Vec<_>>().join("\n");
        all.take(Ours::of_csv(&newer.replace("one,m,1", "one,m,9")).unwrap());
        let values: Vec<f64> = all.numbers.values().map(|number| number.value).collect();
        assert_eq!(values, [9.0, 3.0]);
    }

    #[test]
    fn what_was_kept_is_of_plans_and_figures_that_are_there() {
        let (kept, catalogue) = (Ours::kept().unwrap(), Catalogue::read().unwrap());
        let wanted = crate::wanted(&catalogue.figures);
        for key in &wanted {
            let level = key.metric.split_once(" @ ").map(|(_, level)| level);
            assert!(
                level.is_none_or(|level| At::named(level).is_some()),
                "{key:?} is at no level that there is"
            );
        }
        for key in kept.numbers.keys() {
            assert!(
                wanted.contains(key),
                "{key:?} is of no figure: `vtax atlas --keep` writes the files anew"
            );
        }
    }
}
