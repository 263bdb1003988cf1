// SPDX-License-Identifier: Apache-2.0
//! The atlas: each figure and table of the papers, its published numbers beside measured ones, and the verdicts on the
//! papers' claims.
//!
//! [`catalogue`] lists comparisons and claims, [`ours`] has the measured numbers, [`verdict`] judges a claim, [`claims`]
//! counts the verdicts, and [`page()`] renders the page. This crate starts no runs: [`missing`] returns the plans to run.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod archive;
pub mod catalogue;
pub mod claims;
mod matrix;
pub mod ours;
mod page;
#[cfg(test)]
mod prose;
pub mod verdict;

pub use page::page;

use catalogue::{Catalogue, Figure, Key, Plan, Published};
use claims::{Judged, Score, figure_has_same_size};
use ours::{Models, Number, Origin, Ours};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use verdict::{FigureVerdict, Ratio, judged_interval, our_ratio, published_ratio};
use vtax_core::counted;
use vtax_results::stats::Interval;
use vtax_results::{ResultsDir, ResultsError, Trial, TrialOutcome};

/// A failure to make the atlas.
#[derive(Debug, thiserror::Error)]
pub enum AtlasError {
    /// The data of this program cannot be read.
    #[error("the atlas's own data are damaged: {0}; build vtax again")]
    Catalogue(String),
    /// An unknown name.
    #[error("{0}")]
    Unknown(String),
    /// A results directory holds a run of another plan.
    #[error(
        "{} holds a run of {holds}, or of another text of it, not of the plan {plan} that is to be run: \
         give another directory with --results",
        path.display()
    )]
    AnotherPlan {
        /// The directory.
        path: PathBuf,
        /// The name of the plan in it.
        holds: String,
        /// The expected plan.
        plan: String,
    },
    /// A run has no numbers for the atlas.
    #[error(
        "{} has no trial that counts of what the atlas shows: its report says why (`vtax report`), \
         and the numbers that were kept stand in its place",
        .0.display()
    )]
    Nothing(PathBuf),
    /// A results directory cannot be read.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A file could not be read or written.
    #[error("cannot {what} {}: {cause}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        cause: io::Error,
    },
}

impl AtlasError {
    /// Returns a closure for `map_err` around an operation on a file.
    pub fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::File { what, path, cause }
    }
}

/// The directories of runs and plans. Each plan has a results directory of its name below `results`.
#[derive(Debug, Clone, Copy)]
pub struct Folders<'a> {
    /// The root of the results directories.
    pub results: &'a Path,
    /// The directory of plans.
    pub plans: &'a Path,
    /// Computes the modelled metrics of a trial under other cost models.
    pub models: Models,
}

impl Folders<'_> {
    /// The results directory of a plan.
    pub fn of_plan(&self, plan: &str) -> PathBuf {
        self.results.join(plan)
    }
}

/// The keys of all measured numbers of these figures.
pub fn wanted<'a>(figures: impl IntoIterator<Item = &'a Figure>) -> BTreeSet<Key> {
    let all = figures.into_iter().flat_map(|figure| &figure.series);
    all.flat_map(|series| series.rows.iter().filter_map(|row| series.key(row)))
        .collect()
}

/// The plans of these figures without a complete run in their results directories; of all series, or only of those that
/// judge a claim.
pub fn missing<'a>(
    catalogue: &'a Catalogue,
    figures: &[&Figure],
    folders: &Folders<'_>,
    only_judging: bool,
) -> Vec<(&'a str, &'a Plan)> {
    let is_failed = |trial: Result<Trial, ResultsError>| {
        trial.is_ok_and(|trial| matches!(trial.outcome, TrialOutcome::Failed(_)))
    };
    let is_whole = |plan: &str| {
        let results = ResultsDir::open(&folders.of_plan(plan));
        results
            .is_ok_and(|results| results.pending().is_empty() && !results.trials().any(is_failed))
    };
    let mut plans = catalogue.plans_of(figures, only_judging);
    plans.retain(|(name, _)| !is_whole(name));
    plans
}

/// Reads the stored numbers, replaces those of each plan with a run in `folders`, and returns the errors of runs that
/// cannot be used.
///
/// # Errors
/// When the stored numbers are damaged.
pub fn gather(
    catalogue: &Catalogue,
    folders: Option<&Folders<'_>>,
) -> Result<(Ours, Vec<AtlasError>), AtlasError> {
    let (mut ours, mut unusable) = (Ours::kept()?, Vec::new());
    let wanted = wanted(&catalogue.figures);
    for (name, plan) in &catalogue.plans {
        let Some(folders) = folders else {
            continue;
        };
        let mut path = folders.of_plan(name);
        let archive = archive::path_of(folders.results, name);
        let unpacked = tempfile::tempdir().map_err(AtlasError::file("create", &archive))?;
        if !path.join("run.json").exists() {
            if !archive.exists() {
                continue;
            }
            if let Err(cause) = archive::unpack(&archive, unpacked.path()) {
                unusable.push(cause);
                continue;
            }
            path = unpacked.path().to_owned();
        }
        // Without its file a plan is identified by its name only.
        let text = fs::read_to_string(folders.plans.join(&plan.file)).ok();
        match Ours::of_results(&path, name, text.as_deref(), &wanted, folders.models) {
            Ok(found) if found.numbers.is_empty() => unusable.push(AtlasError::Nothing(path)),
            Ok(found) => ours.take(found),
            Err(cause) => unusable.push(cause),
        }
    }
    if let Some(folders) = folders {
        let earlier = outdated(catalogue, &ours, folders).into_iter();
        ours.earlier = earlier.map(|(plan, _)| plan.to_owned()).collect();
    }
    Ok((ours, unusable))
}

/// Keeps the runs in `folders` from which the numbers of `ours` are as archives in a directory, and returns their plans.
///
/// # Errors
/// When a run was edited, or an archive cannot be written.
pub fn keep_runs(
    ours: &Ours,
    folders: &Folders<'_>,
    into: &Path,
) -> Result<Vec<String>, AtlasError> {
    fs::create_dir_all(into).map_err(AtlasError::file("create", into))?;
    let mut kept = Vec::new();
    for (name, origin) in &ours.origins {
        let path = folders.of_plan(name);
        if !path.join("run.json").exists() {
            continue;
        }
        let bytes = archive::packed(&ResultsDir::open(&path)?)?;
        // A run that could not be used has no number.
        if digest(&bytes) == origin.archive_sha256 {
            let file = archive::path_of(into, name);
            vtax_files::write(&file, &bytes)
                .map_err(|error| AtlasError::file("write", &file)(error.cause))?;
            kept.push(name.clone());
        }
    }
    Ok(kept)
}

/// The plans whose numbers are of another text than that of their file, with the origin of the numbers. Their numbers
/// count: the plan may differ in a comment only.
pub fn outdated<'a>(
    catalogue: &'a Catalogue,
    ours: &'a Ours,
    folders: &Folders<'_>,
) -> Vec<(&'a str, &'a Origin)> {
    let of_plan = |(name, plan): (&'a String, &'a Plan)| {
        let origin = ours.origins.get(name)?;
        let text = fs::read(folders.plans.join(&plan.file)).ok()?;
        (origin.plan_sha256 != digest(&text)).then_some((name.as_str(), origin))
    };
    catalogue.plans.iter().filter_map(of_plan).collect()
}

/// The results directories that are of no plan of the catalogue, in order. Their numbers are not compared.
pub fn unlisted(catalogue: &Catalogue, folders: &Folders<'_>) -> Vec<PathBuf> {
    let entries = fs::read_dir(folders.results).into_iter().flatten();
    let runs = entries.flatten().map(|entry| entry.path());
    let runs = runs.filter(|path| path.join("run.json").exists());
    let is_listed = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| catalogue.plans.contains_key(name))
    };
    let mut unlisted: Vec<PathBuf> = runs.filter(|path| !is_listed(path)).collect();
    unlisted.sort();
    unlisted
}

/// The identity of a plan: the SHA-256 of its text.
fn digest(text: &[u8]) -> String {
    format!("{:x}", Sha256::digest(text))
}

/// One figure with its compared series and judged claims.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    /// The figure.
    pub figure: &'a Figure,
    /// Its series.
    pub series: Vec<Compared<'a>>,
    /// Its claims; empty for a figure without vote.
    pub claims: Vec<Judged<'a>>,
}

/// One series, compared.
#[derive(Debug, Clone)]
pub struct Compared<'a> {
    /// The series.
    pub series: &'a catalogue::Series,
    /// Its rows.
    pub rows: Vec<ComparedRow<'a>>,
}

/// One system or level, compared.
#[derive(Debug, Clone)]
pub struct ComparedRow<'a> {
    /// The row.
    pub row: &'a catalogue::Row,
    /// The published number.
    pub published: Option<Published>,
    /// The measured number with its key and origin.
    pub ours: Option<(Key, Cow<'a, Number>, &'a Origin)>,
    /// The measured number by cost model, where it is modelled.
    pub models: Option<&'a BTreeMap<String, f64>>,
    /// The error of one draw of its metric, as a factor.
    pub spread: Option<f64>,
    /// Whether the number is of an earlier text of its plan.
    pub is_earlier: bool,
    /// The plan whose run has no number for this row.
    pub absent: Option<String>,
}

/// Compares figures with measured numbers.
///
/// # Errors
/// When the catalogue is damaged.
pub fn compare<'a>(
    catalogue: &'a Catalogue,
    figures: &[&'a Figure],
    ours: &'a Ours,
) -> Result<Vec<Entry<'a>>, AtlasError> {
    let of_figure = |figure: &&'a Figure| {
        let series = figure.series.iter();
        let series = series
            .map(|series| compare_series(catalogue, series, ours))
            .collect::<Result<Vec<_>, _>>()?;
        let claims = catalogue.claims.iter();
        let claims = claims.filter(|claim| claim.figure == figure.name());
        Ok(Entry {
            figure,
            claims: claims
                .map(|claim| Judged::from_claim(claim, &series, catalogue.models_of(figure)))
                .collect(),
            series,
        })
    };
    figures.iter().map(of_figure).collect()
}

fn compare_series<'a>(
    catalogue: &Catalogue,
    series: &'a catalogue::Series,
    ours: &'a Ours,
) -> Result<Compared<'a>, AtlasError> {
    let rows = series.rows.iter().map(|row| {
        let published = row.published.as_deref();
        let key = series.key(row);
        let found = key.clone().and_then(|key| {
            let number = ours.numbers.get(&key)?;
            let origin = ours.origins.get(&key.plan)?;
            let number = match row.times {
                Some(times) => Cow::Owned(number.times(times)),
                None => Cow::Borrowed(number),
            };
            Some((key, number, origin))
        });
        let models = found.as_ref().and_then(|(key, number, _)| {
            let models = ours.models.get(key)?;
            // Models of another run of the plan do not have the number among theirs.
            let is_of_run = models.values().any(|value| *value == number.value);
            (is_of_run && row.times.is_none()).then_some(models)
        });
        let is_run = |key: &Key| ours.origins.contains_key(&key.plan);
        Ok(ComparedRow {
            row,
            published: published
                .map(|text| catalogue.published(text))
                .transpose()?,
            absent: key
                .filter(|key| found.is_none() && is_run(key))
                .map(|key| key.plan),
            is_earlier: (found.as_ref()).is_some_and(|(key, ..)| ours.earlier.contains(&key.plan)),
            models,
            spread: (found.as_ref()).and_then(|(key, ..)| ours.spread(&key.metric)),
            ours: found,
        })
    });
    let rows = rows.collect::<Result<_, AtlasError>>()?;
    Ok(Compared { series, rows })
}

/// The part of a figure's published numbers that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measured {
    /// Each of them.
    Fully,
    /// Some of them.
    Partly,
    /// None of them.
    Not,
}

impl Entry<'_> {
    /// The part of its published numbers that is measured. A figure with a stated gap is measured in part.
    pub fn measured(&self) -> Measured {
        let rows = || self.series.iter().flat_map(|series| &series.rows);
        let measured = rows().filter(|row| row.ours.is_some()).count();
        if measured == 0 {
            Measured::Not
        } else if measured == rows().count() && self.figure.missing.is_empty() {
            Measured::Fully
        } else {
            Measured::Partly
        }
    }

    /// The anchor of the figure on the page.
    fn anchor(&self) -> String {
        format!("{}-{}", self.figure.paper, self.figure.id)
    }

    /// The claims with a vote.
    pub fn votes(&self) -> impl Iterator<Item = &Judged<'_>> {
        self.claims.iter().filter(|one| one.claim.setting.is_none())
    }

    /// The verdict on the figure, under all cost models of the paper's years; `None` for one without vote.
    pub fn verdict(&self) -> Option<FigureVerdict> {
        let all: Vec<_> = self.votes().map(|one| one.outcome).collect();
        (!all.is_empty()).then(|| FigureVerdict::from_claims(&all))
    }

    /// Whether all effects of the figure have the published direction and size.
    pub fn same_size(&self) -> bool {
        let sizes: Vec<bool> = self.votes().filter_map(Judged::same_size).collect();
        figure_has_same_size(self.verdict(), &sizes)
    }
}

impl<'a> Compared<'a> {
    /// Whether any of its numbers is measured.
    pub fn has_ours(&self) -> bool {
        self.rows.iter().any(|row| row.ours.is_some())
    }

    /// The row of a system.
    pub fn row(&self, system: &str) -> Option<&ComparedRow<'a>> {
        self.rows.iter().find(|row| row.row.system == system)
    }

    /// The denominator of the ratios.
    fn baseline(&self) -> Option<&ComparedRow<'a>> {
        self.row(&self.series.baseline)
    }

    /// The published ratio of a row to the baseline.
    pub fn published_ratio(&self, row: &ComparedRow<'_>) -> Option<Ratio> {
        published_ratio(row.published?, self.baseline()?.published?)
    }

    /// The measured numbers of a row and of the baseline.
    fn numbers<'b>(&'b self, row: &'b ComparedRow<'a>) -> Option<(&'b Number, &'b Number)> {
        Some((&row.ours.as_ref()?.1, &self.baseline()?.ours.as_ref()?.1))
    }

    /// The measured ratio of a row to the baseline.
    pub fn our_ratio(&self, row: &ComparedRow<'a>) -> Option<Ratio> {
        let (number, baseline) = self.numbers(row)?;
        our_ratio(number, baseline)
    }

    /// The interval of the measured ratio that judges a claim.
    pub fn judged(&self, row: &ComparedRow<'a>) -> Option<Interval> {
        let (number, baseline) = self.numbers(row)?;
        judged_interval(number, baseline, row.spread)
    }
}

/// The verdicts on figures and claims, in a sentence each.
pub fn summary(entries: &[Entry<'_>]) -> String {
    Score::from_entries(entries).to_string()
}

/// The number of figures that are measured in full, in part and not at all.
fn coverage(entries: &[Entry<'_>]) -> String {
    let count = |measured| {
        let own = entries.iter().filter(|entry| entry.measured() == measured);
        own.count()
    };
    format!(
        "{}: {} measured in full, {} in part, {} not",
        counted(entries.len(), "figure"),
        count(Measured::Fully),
        count(Measured::Partly),
        count(Measured::Not)
    )
}

/// The page of the whole atlas, from the stored numbers and the runs in `folders`.
///
/// # Errors
/// When the atlas's own data are damaged.
pub fn whole_page(folders: Option<&Folders<'_>>) -> Result<String, AtlasError> {
    let catalogue = Catalogue::read()?;
    let (ours, _) = gather(&catalogue, folders)?;
    let figures = catalogue.select(None)?;
    let entries = compare(&catalogue, &figures, &ours)?;
    Ok(page(&catalogue, &entries))
}
