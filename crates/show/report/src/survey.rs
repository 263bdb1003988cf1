// SPDX-License-Identifier: Apache-2.0
//! Statistics over the results of a fleet, read as a stream. Each directory is read without its samples: `run.json`,
//! `host.json` and the trials' records. Five numbers are kept for each machine, treatment and metric.
//!
//! Each machine counts once, however many runs and boots it has. Nothing is averaged over machines of different kinds or over
//! different plans.

use crate::analysis::TrialQuantile;
use crate::export::{Dataset, Row, quantiles_of, rows_of};
use crate::parallel::read_each;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use vtax_core::{Base, Source, Unit, counted};
use vtax_results::numbers::{Shown, percent, plain, ratio};
use vtax_results::stats::{
    Description, Groups, Interval, Moments, NoTax, Tax, Verdict, describe, exact_ratio,
    judge_family, tax_over, verdict,
};
use vtax_results::text::{Table, clean, cut};
use vtax_results::{Better, Identities, Machine, Metric, ResultsDir, ResultsError, RunInfo, Trial};

/// Most causes of unreadable results that are kept.
const MOST_CAUSES: usize = 20;

/// The combined results.
#[derive(Debug, Default, Serialize)]
pub struct Survey {
    /// Number of directories read.
    pub results: usize,
    /// Number of directories left out because another directory held the same run.
    pub twice: usize,
    /// Number of trials read.
    pub trials: usize,
    /// Number of those trials that count.
    pub counted: usize,
    /// Number of machines, of all kinds; a boot whose record does not identify its machine counts as one.
    pub machines: usize,
    /// Number of boots of these machines.
    pub boots: usize,
    /// What is not known of the machines.
    pub cautions: BTreeSet<String>,
    /// Kinds of machines.
    pub kinds: Vec<Kind>,
    /// Number of unreadable directories and trials.
    pub unreadable: usize,
    /// Their causes; the first ones of many.
    pub causes: Vec<String>,
}

/// The machines of one kind.
#[derive(Debug, Default, Serialize)]
pub struct Kind {
    /// Facts of the kind.
    pub kind: BTreeMap<&'static str, String>,
    /// Number of machines, as in the survey.
    pub machines: usize,
    /// Them and their boots in words.
    pub counted: String,
    /// Findings over these machines.
    pub findings: Vec<Finding>,
}

/// One metric of one treatment of one plan, over machines.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// The plan's name.
    pub plan: String,
    /// SHA-256 of the plan.
    pub plan_sha256: String,
    /// The treatment's label.
    pub treatment: String,
    /// The metric's name.
    pub metric: String,
    /// Description of the metric.
    #[serde(flatten)]
    pub about: About,
    /// Statistics over one mean per machine.
    #[serde(flatten)]
    pub values: Description,
    /// The ratio to the baseline; `None` without a baseline or with fewer than two machines.
    pub ratio: Option<Ratio>,
    /// Reason for a missing ratio although pairs exist.
    pub note: Option<String>,
}

/// The description of a metric on all machines.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct About {
    /// Unit of the values.
    pub unit: Unit,
    /// Which direction is better.
    pub better: Better,
    /// Whether a summary leads with it.
    pub headline: bool,
    /// The worst source of any value.
    pub source: Source,
    /// Whether a model computed any value, regardless of `source`.
    pub modelled: bool,
}

impl About {
    fn from_metric(metric: &Metric) -> Self {
        Self {
            unit: metric.quantity.unit,
            better: metric.better,
            headline: metric.headline,
            source: metric.source,
            modelled: metric.is_modelled(),
        }
    }

    /// Whether it is joules or watts that a power model computed.
    fn is_by_model(self) -> bool {
        self.modelled && matches!(self.unit.base, Base::Joule | Base::Watt)
    }

    /// Adds another value's flags.
    fn flag(&mut self, other: Self) {
        self.source = self.source.max(other.source);
        self.modelled |= other.modelled;
    }
}

/// A ratio over machines.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ratio {
    /// Number of machines, each of which counts once.
    pub n: usize,
    /// Geometric mean.
    pub ratio: f64,
    /// Its 95 % interval, of this ratio alone.
    pub interval: Interval,
    /// The printed interval: adjusted for the number of ratios of the family, consistent with the adjusted p.
    pub adjusted_interval: Interval,
    /// Level of `adjusted_interval`, 0.95 or more.
    pub confidence: f64,
    /// Typical factor between two machines: the standard deviation between machines, without the scatter of their
    /// pairs.
    pub factor: Option<f64>,
    /// The verdict, with p adjusted for the headline metrics, or for the others, of all machines of the kind.
    pub verdict: Verdict,
    /// Smallest relative difference that counts as a difference.
    pub minimum_effect: f64,
    #[serde(skip)]
    tax: Tax,
}

/// The summary of one directory.
struct Digest {
    /// Plan, seed, start and machines: the identity of a run.
    identity: String,
    minimum_effect: f64,
    /// The metrics of each machine.
    parts: Vec<(Machine, Values)>,
    trials: usize,
    counted: usize,
    rows: Vec<Row>,
    causes: Vec<ResultsError>,
}

/// Plan name, plan digest, treatment and metric.
type Key = [String; 4];

/// The values of each metric on one machine.
type Values = Vec<(Key, About, Own)>;

/// The values of one metric on one machine.
#[derive(Debug, Default)]
struct Own {
    /// Moments of the value of each block.
    values: Moments,
    /// Moments of the logarithms of the pairs' ratios.
    pairs: Moments,
    /// The reason why a pair has no ratio.
    refused: Option<NoTax>,
}

impl Own {
    fn add(&mut self, other: Self) {
        self.values = self.values.with(other.values);
        self.pairs = self.pairs.with(other.pairs);
        self.refused = self.refused.or(other.refused);
    }
}

/// Every results directory at or below a path, in order. Links are not followed.
///
/// # Errors
/// When a directory cannot be listed.
pub fn directories(path: &Path) -> Result<Vec<PathBuf>, ResultsError> {
    if path.join("run.json").exists() {
        return Ok(vec![path.to_owned()]);
    }
    let mut open = vec![path.to_owned()];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        for entry in fs::read_dir(&path).map_err(ResultsError::io("list", &path))? {
            let entry = entry.map_err(ResultsError::io("list", &path))?;
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            match entry.path() {
                run if run.join("run.json").exists() => found.push(run),
                other => open.push(other),
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Reads all of `paths`, on all processors, and writes their trials to `dataset`, if given.
///
/// # Errors
/// When the data set cannot be written. Unreadable directories are counted instead.
pub fn survey(
    paths: &[PathBuf],
    mut dataset: Option<&mut Dataset>,
) -> Result<Survey, ResultsError> {
    let wants_rows = dataset.is_some();
    let mut all = Gathered::default();
    read_each(
        paths,
        |path| digest(path, wants_rows),
        |found| {
            match found {
                Ok(mut digest) => {
                    let rows = std::mem::take(&mut digest.rows);
                    if let (true, Some(dataset)) = (all.add(digest), dataset.as_deref_mut()) {
                        dataset.add(rows)?;
                    }
                }
                Err(cause) => all.refuse(&cause),
            }
            Ok(())
        },
    )?;
    Ok(all.finish())
}

fn digest(path: &Path, wants_rows: bool) -> Result<Digest, ResultsError> {
    let results = ResultsDir::open(path)?;
    let run = results.run();
    let machines = results.machines()?;
    let names = machines.machines.iter().map(Machine::name);
    let mut identity = vec![run.plan_sha256.clone(), run.started.clone()];
    identity.extend(std::iter::once(run.seed.to_string()).chain(names));
    let mut digest = Digest {
        identity: identity.join(" "),
        minimum_effect: run.minimum_effect,
        parts: Vec::new(),
        trials: 0,
        counted: 0,
        rows: Vec::new(),
        causes: Vec::new(),
    };
    let mut found: Vec<Entries> = machines.machines.iter().map(|_| Entries::new()).collect();
    for trial in results.trials() {
        let trial = match trial {
            Ok(trial) => trial,
            Err(cause) => {
                digest.causes.push(cause);
                continue;
            }
        };
        digest.trials += 1;
        let quantiles = quantiles_of(&results, &trial).unwrap_or_else(|cause| {
            digest.causes.push(cause);
            Vec::new()
        });
        if wants_rows {
            let machine = machines.of_block(trial.block);
            let rows = rows_of(&results, machine, &trial, &quantiles);
            digest.rows.extend(rows);
        }
        if trial.counts()
            && let Some(at) = machines.blocks.get(&trial.block)
            && let Some(table) = found.get_mut(*at)
        {
            digest.counted += 1;
            enter(table, trial, &quantiles);
        }
    }
    let parts = machines.machines.into_iter().zip(&found);
    let parts = parts.map(|(machine, found)| (machine, values(run, found)));
    digest.parts = parts.collect();
    Ok(digest)
}

/// Treatment → metric → its values.
type Entries = BTreeMap<String, BTreeMap<String, Entered>>;

/// One metric of one treatment on one machine.
struct Entered {
    about: About,
    /// Value by block.
    blocks: BTreeMap<u32, f64>,
    /// Whether the requests of some trial are too few for the quantile.
    is_unsupported: bool,
}

fn enter(table: &mut Entries, trial: Trial, quantiles: &[TrialQuantile]) {
    let metrics = table.entry(trial.treatment.label).or_default();
    for (name, metric) in trial.metrics {
        let about = About::from_metric(&metric);
        let mut quantiles = quantiles.iter().filter(|one| one.metric == name);
        let is_unsupported = quantiles.any(|one| one.unsupported().is_some());
        let known = metrics.entry(name).or_insert_with(|| Entered {
            about,
            blocks: BTreeMap::new(),
            is_unsupported: false,
        });
        known.is_unsupported |= is_unsupported;
        known.about.flag(about);
        if known.about.unit == about.unit && metric.quantity.value.is_finite() {
            known.blocks.insert(trial.block, metric.quantity.value);
        }
    }
}

fn values(run: &RunInfo, table: &Entries) -> Values {
    let mut values = Vec::new();
    for treatment in &run.treatments {
        let baseline = treatment.baseline.as_ref();
        let baseline = baseline.and_then(|label| table.get(label));
        for (name, entered) in table.get(&treatment.label).into_iter().flatten() {
            let others = baseline.and_then(|metrics| metrics.get(name));
            let mut both = [Some(entered), others].into_iter().flatten();
            let is_supported = both.all(|one| !one.is_unsupported);
            let supported = is_supported.then_some(()).ok_or(NoTax::TooFewRequests);
            let pairs = entered.blocks.iter();
            let pairs =
                pairs.filter_map(|(block, value)| Some((value, others?.blocks.get(block)?)));
            let ratios: Result<Vec<f64>, NoTax> = pairs
                .map(|(value, other)| Ok(supported.and(exact_ratio(*value, *other))?.ln()))
                .collect();
            let all: Vec<f64> = entered.blocks.values().copied().collect();
            let own = Own {
                values: Moments::from_values(&all),
                refused: ratios.as_ref().err().copied(),
                pairs: Moments::from_values(&ratios.unwrap_or_default()),
            };
            let key = [&run.name, &run.plan_sha256, &treatment.label, name].map(String::clone);
            values.push((key, entered.about, own));
        }
    }
    values
}

/// The running totals over the directories read.
#[derive(Default)]
struct Gathered {
    survey: Survey,
    known: BTreeSet<String>,
    /// Machines of one kind, by the facts of the kind.
    kinds: BTreeMap<BTreeMap<&'static str, String>, Pool>,
}

#[derive(Default)]
struct Pool {
    machines: Identities,
    metrics: BTreeMap<Key, Over>,
}

/// One metric of one treatment, over machines.
struct Over {
    about: About,
    minimum_effect: f64,
    /// The values of each machine, by its number.
    machines: BTreeMap<usize, Own>,
}

impl Gathered {
    /// Adds a directory's summary. Returns whether its run is new.
    fn add(&mut self, digest: Digest) -> bool {
        if !self.known.insert(digest.identity) {
            self.survey.twice += 1;
            return false;
        }
        self.survey.results += 1;
        self.survey.trials += digest.trials;
        self.survey.counted += digest.counted;
        for cause in &digest.causes {
            self.refuse(cause);
        }
        for (machine, values) in digest.parts {
            let pool = self.kinds.entry(machine.kind()).or_default();
            let machine = pool.machines.number(&machine);
            for (key, about, own) in values {
                let over = pool.metrics.entry(key).or_insert_with(|| Over {
                    about,
                    minimum_effect: digest.minimum_effect,
                    machines: BTreeMap::new(),
                });
                // A metric of one plan has one unit; another unit is from another version of vtax and is left out of
                // this mean.
                if over.about.unit == about.unit {
                    over.about.flag(about);
                    over.machines.entry(machine).or_default().add(own);
                }
            }
        }
        true
    }

    fn refuse(&mut self, cause: &ResultsError) {
        self.survey.unreadable += 1;
        if self.survey.causes.len() < MOST_CAUSES {
            self.survey.causes.push(cause.to_string());
        }
    }

    fn finish(self) -> Survey {
        let mut survey = self.survey;
        for (kind, pool) in self.kinds {
            let machines = &pool.machines;
            survey.machines += machines.machines();
            survey.boots += machines.boots();
            survey.cautions.extend(machines.caution());
            let mut findings: Vec<Finding> = pool.metrics.into_iter().filter_map(finding).collect();
            judge(&mut findings);
            survey.kinds.push(Kind {
                kind,
                machines: pool.machines.machines(),
                counted: pool.machines.in_words(),
                findings,
            });
        }
        survey
    }
}

/// Sets the verdicts and the printed intervals, with p adjusted within each family: the headlines, and the rest.
fn judge(findings: &mut [Finding]) {
    for headline in [true, false] {
        let own = findings.iter_mut();
        let own = own.filter(|of| of.about.headline == headline && !of.about.is_by_model());
        let family: Vec<&mut Ratio> = own.filter_map(|of| of.ratio.as_mut()).collect();
        let taxes: Vec<Tax> = family.iter().map(|ratio| ratio.tax).collect();
        for (ratio, judged) in family.into_iter().zip(judge_family(&taxes, 0.0)) {
            ratio.adjusted_interval = judged.interval.unwrap_or(ratio.interval);
            ratio.confidence = judged.confidence;
            ratio.tax.interval = Some(ratio.adjusted_interval);
            ratio.verdict = verdict(&ratio.tax, ratio.minimum_effect);
        }
    }
}

fn finding(([plan, plan_sha256, treatment, metric], over): (Key, Over)) -> Option<Finding> {
    let machines = || over.machines.values();
    let refused = machines().find_map(|own| own.refused);
    let mut pairs = Groups::default();
    // With any pair without a ratio, a mean over the other pairs would be biased.
    if refused.is_none() {
        for own in machines() {
            pairs.add(own.pairs);
        }
    }
    let tax = tax_over(&pairs, 0.0);
    let ratio = tax.and_then(|tax| {
        Some(Ratio {
            n: tax.n,
            ratio: tax.ratio,
            interval: tax.interval?,
            adjusted_interval: tax.interval?,
            confidence: 0.95,
            factor: pairs.between().map(|between| between.sd.exp()),
            verdict: if over.about.is_by_model() {
                Verdict::Modelled
            } else {
                Verdict::NoDifferenceShown
            },
            minimum_effect: over.minimum_effect,
            tax,
        })
    });
    let means: Vec<f64> = machines().filter_map(|own| own.values.mean()).collect();
    Some(Finding {
        plan,
        plan_sha256,
        treatment,
        metric,
        about: over.about,
        values: describe(&means)?,
        ratio,
        note: refused.map(|none| none.to_string()),
    })
}

/// Renders the headline metrics as a table.
pub fn table(survey: &Survey, width: usize) -> String {
    let width = width.clamp(72, 120);
    let mut lines = vec![format!(
        "{} on {}: {} of {} count",
        counted(survey.results, "run"),
        counted(survey.machines, "machine"),
        survey.counted,
        counted(survey.trials, "trial")
    )];
    let is_headline = |of: &&Finding| of.about.headline;
    for kind in &survey.kinds {
        let facts = kind.kind.iter().map(|(of, is)| format!("{of}: {is}"));
        let mut facts: Vec<String> = facts.collect();
        if facts.is_empty() {
            facts.push("of unknown kind".to_owned());
        }
        let head = format!("{}: {}", kind.counted, facts.join(", "));
        lines.extend([String::new(), cut(&clean(&head), width)]);
        // The second number is the factor by which machines are apart.
        let ratio = "ratio [95 % CI], factor between machines, verdict";
        let mut table = Table::new(["metric", "median (range)", ratio], 0..0);
        let mut heading = None;
        for of in kind.findings.iter().filter(is_headline) {
            let here = (&of.plan, &of.plan_sha256, &of.treatment);
            if heading.replace(here) != Some(here) {
                table.row([format!("{} · {}", of.plan, of.treatment)]);
            }
            table.row(row(of));
        }
        lines.extend(table.lines(width));
    }
    lines.push(String::new());
    let findings = survey.kinds.iter().flat_map(|kind| &kind.findings);
    let mut ratios = findings.filter(is_headline).filter_map(|of| of.ratio);
    if ratios.any(|ratio| ratio.confidence > 0.95) {
        lines.push("  intervals are adjusted for the number of ratios of the kind".to_owned());
    }
    if survey.twice > 0 {
        let holds = if survey.twice == 1 {
            "directory holds a run that another one holds already, and is left out"
        } else {
            "directories hold runs that others hold already, and are left out"
        };
        lines.push(format!("  {} {holds}", survey.twice));
    }
    lines.extend(survey.cautions.iter().map(|one| format!("  {one}")));
    let causes = survey.causes.iter();
    lines.extend(causes.map(|cause| format!("  left out: {}", clean(cause))));
    if let Some(more @ 1..) = survey.unreadable.checked_sub(survey.causes.len()) {
        lines.push(format!("  left out: {more} more"));
    }
    lines.join("\n")
}

fn row(finding: &Finding) -> [String; 3] {
    let values = &finding.values;
    let of = |value| plain(value, finding.about.unit);
    let [median, min, max] = [values.median, values.min, values.max].map(of);
    let ratio = finding.ratio.map(|found| {
        let Shown { value, range, .. } = ratio(found.ratio, Some(found.adjusted_interval));
        let apart = found.factor.map(|factor| format!(", {factor:.3}"));
        let apart = apart.unwrap_or_default();
        let verdict = match found.verdict {
            Verdict::Same => format!("the same within {}", percent(found.minimum_effect)),
            other => other.words().to_owned(),
        };
        format!("{value} {range}{apart}, {verdict}")
    });
    let ratio = ratio.or_else(|| finding.note.clone());
    let spread = if min == max {
        median
    } else {
        format!("{median} ({min} to {max})")
    };
    [finding.metric.clone(), spread, ratio.unwrap_or_default()]
}
