//! Results directories below one root: found, listed, their reports, and runs side by side.
//!
//! A directory is named by its path below the root. Nothing outside is read: no `..`, no link, no
//! hidden name.

use crate::runs::State;
use crate::within;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use vtax_report::analysis::{Analysis, analyse, distinct};
use vtax_report::compare;
use vtax_report::results::ResultsDir;
use vtax_report::stats::Verdict;
use vtax_units::Source;

/// How deep below the root.
const DEPTH: usize = 4;
/// Runs in the list.
const MOST_RUNS: usize = 2000;
/// Directories that are looked into.
const MOST_DIRECTORIES: usize = 20_000;
/// Runs that are compared at once.
const MOST_COMPARED: usize = 8;
/// Analyses that are kept.
const MOST_ANALYSES: usize = 16;
/// A report is a megabyte or two.
const LONGEST_REPORT: u64 = 64 << 20;

/// Results below a root.
#[derive(Debug)]
pub struct Results {
    root: PathBuf,
    findings: Mutex<HashMap<PathBuf, (SystemTime, Arc<Findings>)>>,
    analyses: Mutex<HashMap<PathBuf, (SystemTime, Arc<Analysis>)>>,
}

/// The list.
#[derive(Debug, Serialize)]
pub struct Listing {
    /// The root.
    pub root: String,
    /// The runs, those that started last first.
    pub runs: Vec<Listed>,
    /// Why directories are not in it; each a sentence.
    pub problems: Vec<String>,
}

/// One run.
#[derive(Debug, Serialize)]
pub struct Listed {
    dir: String,
    name: String,
    description: String,
    place: String,
    profile: String,
    started: String,
    /// Processor and kernel.
    host: String,
    platforms: Vec<String>,
    workloads: Vec<String>,
    planned: usize,
    done: usize,
    state: State,
    /// The strongest verdict of its report, in words; empty where there is no report.
    verdict: String,
    /// Measured, modelled or emulated: the worst flag of its headline numbers.
    source: Option<Source>,
    /// What its report found, first what differs.
    found: Vec<String>,
    report: bool,
    /// The report is older than the last trial.
    outdated: bool,
}

/// What is read of `analysis.json`.
#[derive(Debug, Default, Deserialize)]
struct Findings {
    #[serde(default)]
    sentences: Vec<Finding>,
    #[serde(default)]
    provisional: bool,
    #[serde(default)]
    advice: Option<String>,
    #[serde(default)]
    source: Option<Source>,
}

#[derive(Debug, Deserialize)]
struct Finding {
    text: String,
    verdict: Verdict,
}

impl Results {
    /// Below `root`, which may come later.
    pub fn below(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            findings: Mutex::default(),
            analyses: Mutex::default(),
        }
    }

    /// All runs.
    pub fn list(&self) -> Listing {
        let mut problems = Vec::new();
        let mut runs = Vec::new();
        for path in self.scan(&mut problems) {
            match self.listed(&path) {
                Ok(run) => runs.push(run),
                Err(why) => problems.push(why),
            }
        }
        // RFC 3339 in UTC sorts as text.
        runs.sort_by(|a, b| b.started.cmp(&a.started).then_with(|| a.dir.cmp(&b.dir)));
        Listing {
            root: self.root.display().to_string(),
            runs,
            problems,
        }
    }

    /// The run in a directory that is named by its path below the root.
    ///
    /// # Errors
    /// When there is none, or it cannot be read; in words.
    pub fn open(&self, dir: &str) -> Result<ResultsDir, String> {
        let path = self
            .path(dir)
            .ok_or_else(|| format!("there is no run in {dir:?} below {}", self.root.display()))?;
        ResultsDir::open(&path).map_err(|error| error.to_string())
    }

    /// The report of a run, a page.
    ///
    /// # Errors
    /// When it has none; in words, with what makes one.
    pub fn report(&self, dir: &str) -> Result<String, String> {
        let results = self.open(dir)?;
        let file = within::file(results.path(), Path::new("report.html")).map_err(|cause| {
            format!(
                "there is no report of this run to show ({cause}); this makes it: vtax report {}",
                results.path().display()
            )
        })?;
        let mut page = String::new();
        file.take(LONGEST_REPORT)
            .read_to_string(&mut page)
            .map_err(|cause| format!("cannot read the report of {dir:?}: {cause}"))?;
        Ok(page)
    }

    /// Runs against the first of them: what `vtax compare` shows, or every metric.
    ///
    /// # Errors
    /// When there are too few or too many, or one cannot be read; in words.
    pub fn compare(&self, dirs: &[String], all: bool) -> Result<Compared, String> {
        if !(2..=MOST_COMPARED).contains(&dirs.len()) {
            return Err(format!("give 2 to {MOST_COMPARED} runs to compare"));
        }
        let analyses: Vec<Arc<Analysis>> = dirs
            .iter()
            .map(|dir| self.analysis(dir))
            .collect::<Result<_, _>>()?;
        let Some((first, others)) = analyses.split_first() else {
            return Err("give at least two runs".to_owned());
        };
        let others: Vec<&Analysis> = others.iter().map(AsRef::as_ref).collect();
        let compared = compare::compare(first, &others);
        let shown = |row: &&vtax_report::analysis::Comparison| {
            all || row.headline || row.verdict == Verdict::Different
        };
        let rows = compared.others.iter().flat_map(|run| &run.comparisons);
        let keys = distinct(rows.filter(shown).map(|row| {
            let key = (row.treatment.as_str(), row.metric.as_str());
            (key, row.title.as_str())
        }));
        let rows = keys
            .into_iter()
            .map(|((treatment, metric), title)| ComparedRow {
                treatment: treatment.to_owned(),
                metric: metric.to_owned(),
                title: title.to_owned(),
                cells: compared
                    .others
                    .iter()
                    .map(|run| {
                        let mut own = run.comparisons.iter();
                        own.find(|row| row.treatment == treatment && row.metric == metric)
                            .map(Cell::of)
                    })
                    .collect(),
            })
            .collect();
        Ok(Compared {
            runs: dirs
                .iter()
                .zip(&analyses)
                .map(|(dir, run)| ComparedRun {
                    dir: dir.clone(),
                    name: run.name.clone(),
                    started: run.started.clone(),
                })
                .collect(),
            rows,
            only_first: compared
                .others
                .iter()
                .map(|run| run.only_first.clone())
                .collect(),
            only_here: compared
                .others
                .iter()
                .map(|run| run.only_here.clone())
                .collect(),
            cautions: compared.cautions,
        })
    }

    fn analysis(&self, dir: &str) -> Result<Arc<Analysis>, String> {
        let results = self.open(dir)?;
        let changed = changed(&results.path().join("trials"));
        // Held while it is made: two who ask for it at once get one.
        let mut kept = self.analyses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, analysis)) = kept.get(results.path())
            && Some(*at) == changed
        {
            return Ok(Arc::clone(analysis));
        }
        let analysis = Arc::new(analyse(&results).map_err(|error| error.to_string())?);
        if kept.len() >= MOST_ANALYSES {
            kept.clear();
        }
        if let Some(at) = changed {
            kept.insert(results.path().to_owned(), (at, Arc::clone(&analysis)));
        }
        Ok(analysis)
    }

    /// Where a run below the root is, if there is one of that name.
    fn path(&self, dir: &str) -> Option<PathBuf> {
        let mut path = self.root.clone();
        let mut depth = 0;
        for component in Path::new(dir).components() {
            match component {
                Component::CurDir => {}
                Component::Normal(name) if !is_hidden(name) => {
                    path.push(name);
                    depth += 1;
                    // Not followed: what a link leads to may be anywhere.
                    let kind = fs::symlink_metadata(&path).ok()?;
                    if !kind.is_dir() {
                        return None;
                    }
                }
                _ => return None,
            }
        }
        (depth <= DEPTH && path.join("run.json").is_file()).then_some(path)
    }

    /// Every directory with a run.
    fn scan(&self, problems: &mut Vec<String>) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut seen = 0;
        let mut open = vec![(self.root.clone(), 0)];
        while let Some((directory, depth)) = open.pop() {
            seen += 1;
            if seen > MOST_DIRECTORIES || found.len() >= MOST_RUNS {
                problems.push(format!(
                    "the list is cut: there are more than {MOST_RUNS} runs or {MOST_DIRECTORIES} directories; give a root with less in it"
                ));
                break;
            }
            if directory.join("run.json").is_file() {
                found.push(directory);
                continue;
            }
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(cause) => {
                    // Before the first run there is none.
                    if cause.kind() != std::io::ErrorKind::NotFound {
                        problems.push(format!("cannot list {}: {cause}", directory.display()));
                    }
                    continue;
                }
            };
            for entry in entries.flatten() {
                let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_directory && depth < DEPTH && !is_hidden(&entry.file_name()) {
                    open.push((entry.path(), depth + 1));
                }
            }
        }
        found
    }

    fn listed(&self, path: &Path) -> Result<Listed, String> {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        let dir = below
            .to_str()
            .ok_or_else(|| format!("{} has a name that is no text", path.display()))?;
        let results = ResultsDir::open(path).map_err(|error| error.to_string())?;
        let run = results.run();
        let names = |of: fn(&vtax_report::results::Treatment) -> &String| {
            distinct(run.treatments.iter().map(of).cloned())
        };
        let findings = self.findings(path).unwrap_or_default();
        let report = changed(&path.join("report.html"));
        let host = results.host().unwrap_or_default();
        let fact = |pointer| host.pointer(pointer).and_then(serde_json::Value::as_str);
        let facts: Vec<&str> = [fact("/hostname"), fact("/cpu/model"), fact("/kernel")]
            .into_iter()
            .flatten()
            .collect();
        Ok(Listed {
            dir: if dir.is_empty() { "." } else { dir }.to_owned(),
            name: run.name.clone(),
            description: run.description.clone(),
            place: run.place.clone(),
            profile: run.profile.clone(),
            started: run.started.clone(),
            host: facts.join(", "),
            platforms: names(|one| &one.platform),
            workloads: names(|one| &one.workload),
            planned: run.schedule.len(),
            done: results.trial_indexes().len(),
            state: State::of(&results),
            verdict: findings.verdict(),
            source: findings.source,
            found: findings.found(),
            report: report.is_some(),
            outdated: report.is_some() && report < changed(&path.join("trials")),
        })
    }

    fn findings(&self, path: &Path) -> Option<Arc<Findings>> {
        let file = path.join("analysis.json");
        let at = changed(&file)?;
        let mut kept = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, findings)) = kept.get(path)
            && *known == at
        {
            return Some(Arc::clone(findings));
        }
        // One that cannot be read says nothing; the report beside it is still there.
        let findings = Arc::new(serde_json::from_slice(&fs::read(file).ok()?).ok()?);
        if kept.len() > MOST_RUNS {
            kept.clear();
        }
        kept.insert(path.to_owned(), (at, Arc::clone(&findings)));
        Some(findings)
    }
}

impl Findings {
    fn verdict(&self) -> String {
        if self.advice.is_some() || self.provisional {
            return "nothing counts".to_owned();
        }
        let strongest = self.sentences.iter().map(|one| one.verdict).min();
        strongest.map_or_else(String::new, |verdict| verdict.words().to_owned())
    }

    /// What differs, at most three; else the first sentence.
    fn found(&self) -> Vec<String> {
        let all = self.sentences.iter();
        let differ = all.filter(|one| one.verdict == Verdict::Different);
        let found: Vec<String> = differ.take(3).map(|one| one.text.clone()).collect();
        if found.is_empty() {
            let first = self.sentences.first();
            return first.map(|one| one.text.clone()).into_iter().collect();
        }
        found
    }
}

/// Runs against the first.
#[derive(Debug, Serialize)]
pub struct Compared {
    /// The first is what the others are compared with.
    runs: Vec<ComparedRun>,
    rows: Vec<ComparedRow>,
    /// Treatments that each of the others lacks.
    only_first: Vec<Vec<String>>,
    /// Treatments that only each of the others has.
    only_here: Vec<Vec<String>>,
    cautions: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ComparedRun {
    dir: String,
    name: String,
    started: String,
}

#[derive(Debug, Serialize)]
struct ComparedRow {
    treatment: String,
    metric: String,
    title: String,
    /// One for each run but the first; none where it lacks this.
    cells: Vec<Option<Cell>>,
}

#[derive(Debug, Serialize)]
struct Cell {
    words: Option<String>,
    ratio: Option<f64>,
    interval: Option<(f64, f64)>,
    different: bool,
    verdict: &'static str,
    repetitions: Option<String>,
    source: Source,
    note: Option<String>,
}

impl Cell {
    fn of(row: &vtax_report::analysis::Comparison) -> Self {
        let interval = row.tax.and_then(|tax| tax.interval);
        Self {
            words: row.ratio_in_words(),
            ratio: row.ratio,
            interval: interval.map(|interval| (interval.low, interval.high)),
            different: row.verdict == Verdict::Different,
            verdict: row.verdict.words(),
            repetitions: row.repetitions(),
            source: row.source,
            note: row.note.clone(),
        }
    }
}

fn is_hidden(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|kind| kind.modified()).ok()
}
