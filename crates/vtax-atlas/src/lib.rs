//! The atlas: each figure and table of the papers, its published numbers beside measured ones, and whether they agree.
//!
//! [`catalogue`] lists the comparisons, [`ours`] has the measured numbers, [`verdict`] compares, and [`page()`] renders
//! the page. This crate starts no runs: [`missing`] returns the plans to run.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod catalogue;
pub mod ours;
mod page;
pub mod verdict;

pub use page::page;

use catalogue::{Catalogue, Figure, Key, Plan, Published};
use ours::{Number, Origin, Ours};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use verdict::{Point, Ratio, Verdict, judge, our_ratio, published_ratio};
use vtax_core::counted;
use vtax_report::results::{ResultsDir, ResultsError, Trial, TrialOutcome};

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
}

impl Folders<'_> {
    /// The results directory of a plan.
    pub fn of(&self, plan: &str) -> PathBuf {
        self.results.join(plan)
    }
}

/// The keys of all measured numbers of these figures.
pub fn wanted<'a>(figures: impl IntoIterator<Item = &'a Figure>) -> BTreeSet<Key> {
    let all = figures.into_iter().flat_map(|figure| &figure.series);
    all.flat_map(|series| series.rows.iter().filter_map(|row| series.key(row)))
        .collect()
}

/// The plans of these figures without a complete run in their results directories.
pub fn missing<'a>(
    catalogue: &'a Catalogue,
    figures: &[&Figure],
    folders: &Folders<'_>,
) -> Vec<(&'a str, &'a Plan)> {
    let is_failed = |trial: Result<Trial, ResultsError>| {
        trial.is_ok_and(|trial| matches!(trial.outcome, TrialOutcome::Failed(_)))
    };
    let is_whole = |plan: &str| {
        let results = ResultsDir::open(&folders.of(plan));
        results
            .is_ok_and(|results| results.pending().is_empty() && !results.trials().any(is_failed))
    };
    let mut plans = catalogue.plans_of(figures);
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
        let path = folders.of(name);
        if !path.join("run.json").exists() {
            continue;
        }
        // Without its file a plan is identified by its name only.
        let text = fs::read_to_string(folders.plans.join(&plan.file)).ok();
        match Ours::of_results(&path, name, text.as_deref(), &wanted) {
            Ok(found) if found.numbers.is_empty() => unusable.push(AtlasError::Nothing(path)),
            Ok(found) => ours.take(found),
            Err(cause) => unusable.push(cause),
        }
    }
    Ok((ours, unusable))
}

/// One figure with its compared series.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    /// The figure.
    pub figure: &'a Figure,
    /// Its series.
    pub series: Vec<Compared<'a>>,
    /// The verdict over all series.
    pub verdict: Verdict,
}

/// One series, compared.
#[derive(Debug, Clone)]
pub struct Compared<'a> {
    /// The series.
    pub series: &'a catalogue::Series,
    /// Its rows.
    pub rows: Vec<ComparedRow<'a>>,
    /// Its verdict.
    pub verdict: Verdict,
}

/// One system or level, compared.
#[derive(Debug, Clone)]
pub struct ComparedRow<'a> {
    /// The row.
    pub row: &'a catalogue::Row,
    /// The published number.
    pub published: Option<Published>,
    /// The measured number with its key and origin.
    pub ours: Option<(Key, &'a Number, &'a Origin)>,
    /// The published ratio to the baseline.
    pub published_ratio: Option<Ratio>,
    /// The measured ratio to the baseline.
    pub our_ratio: Option<Ratio>,
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
        Ok(Entry {
            figure,
            verdict: Verdict::of_all(series.iter().map(|series| series.verdict)),
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
    let mut rows = Vec::new();
    let mut points = Vec::new();
    for row in &series.rows {
        let expression = row.published.as_deref();
        let published = expression
            .map(|text| catalogue.published(text))
            .transpose()?;
        let found = series.key(row).and_then(|key| {
            let number = ours.numbers.get(&key)?;
            let origin = ours.origins.get(&key.plan)?;
            Some((key, number, origin))
        });
        points.push(Point {
            published: published.map(|one| one.range.unwrap_or((one.value, one.value))),
            rank: row.rank,
            ours: found
                .as_ref()
                .map(|(_, number, _)| (number.value, number.interval)),
        });
        rows.push(ComparedRow {
            row,
            published,
            ours: found,
            published_ratio: None,
            our_ratio: None,
        });
    }
    let mut names = series.rows.iter();
    let baseline = names.position(|row| row.system == series.baseline);
    let baseline = baseline.unwrap_or(usize::MAX);
    if let Some(base) = points.get(baseline) {
        for (row, point) in rows.iter_mut().zip(&points) {
            row.published_ratio = published_ratio(point, base);
            row.our_ratio = our_ratio(point, base);
        }
    }
    let verdict = judge(&points, baseline);
    Ok(Compared {
        series,
        rows,
        verdict,
    })
}

impl Entry<'_> {
    /// Whether any of its numbers is measured.
    pub fn has_ours(&self) -> bool {
        self.series.iter().any(Compared::has_ours)
    }
}

impl Compared<'_> {
    /// Whether any of its numbers is measured.
    pub fn has_ours(&self) -> bool {
        self.rows.iter().any(|row| row.ours.is_some())
    }
}

/// The numbers of figures by result of the comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Figures and tables.
    pub figures: usize,
    /// Figures with measured numbers.
    pub measured: usize,
    /// Measured figures without published numbers to compare with.
    pub alone: usize,
    /// Figures whose order agrees, and figures whose order can be compared.
    pub order: (usize, usize),
    /// Figures whose ratios agree, and figures whose ratios can be compared.
    pub ratio: (usize, usize),
}

impl Summary {
    /// Counts these figures.
    pub fn of(entries: &[Entry<'_>]) -> Self {
        let agree = |find: fn(&Verdict) -> Option<bool>| {
            let found = entries.iter().filter_map(|entry| find(&entry.verdict));
            let found: Vec<bool> = found.collect();
            (found.iter().filter(|agrees| **agrees).count(), found.len())
        };
        let measured = || entries.iter().filter(|entry| entry.has_ours());
        Self {
            figures: entries.len(),
            measured: measured().count(),
            alone: measured()
                .filter(|entry| !entry.verdict.is_compared())
                .count(),
            order: agree(|verdict| verdict.order),
            ratio: agree(|verdict| verdict.ratio),
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            figures,
            measured,
            alone,
            order,
            ratio,
        } = self;
        write!(
            f,
            "{}, {measured} with ours: the order agrees in {} of {}, ratios within × {} in {} of {}; \
             in {alone} ours stand alone; {} not measured",
            counted(*figures, "figure"),
            order.0,
            order.1,
            verdict::NEAR,
            ratio.0,
            ratio.1,
            figures - measured
        )
    }
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
