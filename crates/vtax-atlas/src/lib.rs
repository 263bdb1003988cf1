//! The atlas: each figure and table of the papers, its published numbers beside ours, and whether
//! they agree.
//!
//! [`catalogue`] says what is compared with what, [`ours`] has our numbers, [`verdict`] judges, and
//! [`page()`] shows it. Runs are started by whoever calls: [`missing`] says which.

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

/// The atlas could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AtlasError {
    /// What came with the program cannot be read.
    #[error("the atlas's own data are damaged: {0}; build vtax again")]
    Catalogue(String),
    /// A name that is none.
    #[error("{0}")]
    Unknown(String),
    /// A results directory is not of the plan that it should be of.
    #[error(
        "{} holds a run of {holds}, or of another text of it, not of the plan {plan} that is to be run: \
         give another directory with --results",
        path.display()
    )]
    AnotherPlan {
        /// The directory.
        path: PathBuf,
        /// The plan's name in it.
        holds: String,
        /// The plan.
        plan: String,
    },
    /// A run has nothing for the atlas.
    #[error(
        "{} has no trial that counts of what the atlas shows: its report says why (`vtax report`), \
         and the numbers that were kept stand in its place",
        .0.display()
    )]
    Nothing(PathBuf),
    /// A results directory is not readable.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A file could not be read or written.
    #[error("cannot {what} {}: {cause}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
}

impl AtlasError {
    /// For `map_err` around an operation on a file.
    pub fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::File { what, path, cause }
    }
}

/// Where runs lie: each plan's in a directory of its name below `results`; and the plans.
#[derive(Debug, Clone, Copy)]
pub struct Folders<'a> {
    /// The root of the results directories.
    pub results: &'a Path,
    /// The directory of plans.
    pub plans: &'a Path,
}

impl Folders<'_> {
    /// A plan's results directory.
    pub fn of(&self, plan: &str) -> PathBuf {
        self.results.join(plan)
    }
}

/// Every number of ours that these figures name.
pub fn wanted<'a>(figures: impl IntoIterator<Item = &'a Figure>) -> BTreeSet<Key> {
    let all = figures.into_iter().flat_map(|figure| &figure.series);
    all.flat_map(|series| series.rows.iter().filter_map(|row| series.key(row)))
        .collect()
}

/// The plans of these figures that have no whole run in their results directories.
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

/// What was kept and, over it, what lies in results directories; and what of these cannot be used.
///
/// # Errors
/// When what was kept is damaged.
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
        // Without its file a plan is known by its name alone.
        let text = fs::read_to_string(folders.plans.join(&plan.file)).ok();
        match Ours::of_results(&path, name, text.as_deref(), &wanted) {
            Ok(found) if found.numbers.is_empty() => unusable.push(AtlasError::Nothing(path)),
            Ok(found) => ours.take(found),
            Err(cause) => unusable.push(cause),
        }
    }
    Ok((ours, unusable))
}

/// One figure with everything that is shown of it.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    /// The figure.
    pub figure: &'a Figure,
    /// Its series.
    pub series: Vec<Compared<'a>>,
    /// Over all series.
    pub verdict: Verdict,
}

/// One series, compared.
#[derive(Debug, Clone)]
pub struct Compared<'a> {
    /// The series.
    pub series: &'a catalogue::Series,
    /// Its rows.
    pub rows: Vec<ComparedRow<'a>>,
    /// What may be said.
    pub verdict: Verdict,
}

/// One system or level, compared.
#[derive(Debug, Clone)]
pub struct ComparedRow<'a> {
    /// The row.
    pub row: &'a catalogue::Row,
    /// The published number.
    pub published: Option<Published>,
    /// Ours, and where it comes from.
    pub ours: Option<(Key, &'a Number, &'a Origin)>,
    /// The published ratio to the baseline.
    pub published_ratio: Option<Ratio>,
    /// Ours.
    pub our_ratio: Option<Ratio>,
}

/// Compares figures with our numbers.
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
    /// Whether there is a number of ours.
    pub fn has_ours(&self) -> bool {
        self.series.iter().any(Compared::has_ours)
    }
}

impl Compared<'_> {
    /// Whether there is a number of ours.
    pub fn has_ours(&self) -> bool {
        self.rows.iter().any(|row| row.ours.is_some())
    }
}

/// How many figures there are, and what may be said of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Figures and tables.
    pub figures: usize,
    /// With numbers of ours.
    pub measured: usize,
    /// Of those, the ones in which there is nothing published to compare them with.
    pub alone: usize,
    /// Of those whose order can be compared, those that agree.
    pub order: (usize, usize),
    /// Of those whose ratios can be compared, those that agree.
    pub ratio: (usize, usize),
}

impl Summary {
    /// Of these figures.
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

/// The page of the whole atlas: of what was kept and, over it, of runs below `folders`.
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
