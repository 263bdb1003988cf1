// SPDX-License-Identifier: Apache-2.0
//! Results directories below one root: their list, and their reports.
//!
//! A directory is named by its path below the root. Nothing outside the root is read: paths with `..`, links or hidden
//! names are refused.

use crate::analyses::{Cache, changed};
use crate::density;
use crate::error::RequestError;
use crate::lab::Lab;
use crate::notes;
use crate::run_name::{MAX_DEPTH, NameError, NewRunError};
use crate::runs::Runs;
use serde::Deserialize;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tracing::warn;
use vtax_charge::Problems;
use vtax_core::Source;
use vtax_files::Dir;
use vtax_report::analysis::distinct;
use vtax_results::ResultsDir;
use vtax_results::stats::Verdict;

/// The largest number of runs in the list.
const MAX_RUNS: usize = 2000;
/// The largest number of directories that are read for the list.
const MAX_DIRECTORIES: usize = 20_000;
/// The largest number of runs in a history.
const MAX_HISTORY: usize = 100;
/// The findings of a report, in a results directory.
const ANALYSIS: &str = "analysis.json";
/// The limit of a report's file; a report is a megabyte or two.
const MAX_REPORT_BYTES: u64 = 64 << 20;

/// Results below a root.
#[derive(Debug)]
pub struct Results {
    root: PathBuf,
    findings: Cache<Findings, MAX_RUNS>,
    /// The problems of lists that are in the log.
    reported: Mutex<Problems>,
}

/// A run in the list, by the time of its start, the newest first, and its directory.
type RunEntry = ((Reverse<String>, String), Value);

/// The fields of `analysis.json` that are read.
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
    /// The findings of climbs, in the place of sentences.
    #[serde(skip)]
    climbs: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Finding {
    text: String,
    verdict: Verdict,
}

impl Results {
    /// Results below `root`, which need not exist yet.
    pub fn below(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            findings: Cache::default(),
            reported: Mutex::default(),
        }
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All runs, with their states from `all`, and the directories that are not in the list, each with the reason.
    pub fn list(&self, all: &Runs) -> Value {
        let mut problems = Vec::new();
        let mut runs = Vec::new();
        let lab = all.lab();
        match Dir::open(&self.root) {
            Ok(root) => {
                for below in scan(&root, &mut problems) {
                    match self.entry(&root, &below, all, lab.as_ref()) {
                        Ok(run) => runs.push(run),
                        Err(error) => problems.push(error.to_string()),
                    }
                }
            }
            // The root does not exist before the first run.
            Err(error) if error.is_not_found() => {}
            Err(error) => problems.push(error.to_string()),
        }
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.report_new(&problems, &mut |problem| warn!("{problem}"));
        drop(reported);
        // RFC 3339 in UTC sorts as text.
        runs.sort_by(|(one, _), (other, _)| one.cmp(other));
        let runs: Vec<Value> = runs.into_iter().map(|(_, run)| run).collect();
        json!({ "root": self.root.display().to_string(), "runs": runs, "problems": problems })
    }

    /// The run in a directory that is named by its path below the root.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn open(&self, dir: &str) -> Result<ResultsDir, RequestError> {
        let found = self
            .relative(dir)
            .ok()
            .and_then(|below| opened(&Dir::open(&self.root).ok()?, &below))
            .filter(|found| found.contains("run.json"));
        let found = found.ok_or_else(|| RequestError::NoRun {
            dir: dir.to_owned(),
            root: self.root.clone(),
        })?;
        Ok(ResultsDir::open_in(found)?)
    }

    /// The last runs of the plan with this name, in the order of their starts. Climbs are none.
    pub fn of_plan(&self, name: &str) -> Vec<ResultsDir> {
        let Ok(root) = Dir::open(&self.root) else {
            return Vec::new();
        };
        let runs = scan(&root, &mut Vec::new()).into_iter();
        let runs = runs.filter_map(|below| ResultsDir::open_in(opened(&root, &below)?).ok());
        let mut runs: Vec<ResultsDir> = runs
            .filter(|run| run.run().name == name && !vtax_density::run::is_density(run))
            .collect();
        runs.sort_by(|a, b| a.run().started.cmp(&b.run().started));
        runs.split_off(runs.len().saturating_sub(MAX_HISTORY))
    }

    /// The HTML page of a run's report.
    ///
    /// # Errors
    /// When it has none.
    pub fn report(&self, dir: &str) -> Result<String, RequestError> {
        report_of(&self.open(dir)?, dir)
    }

    /// The path of a run, which need not exist. It is for names and messages only: its target may have been replaced by
    /// the time of use. [`Results::open`] opens a run.
    ///
    /// # Errors
    /// When no directory can have that name.
    pub fn place(&self, dir: &str) -> Result<PathBuf, NameError> {
        let below = self.relative(dir)?;
        let path = self.root.join(&below);
        if below.as_os_str().is_empty() {
            return Ok(self.root.clone());
        }
        match Dir::open(&self.root).map(|root| root.metadata(&below)) {
            Ok(Ok(there)) if !there.is_dir() => Err(NameError::NoDirectory(path)),
            Ok(Err(error)) if error.refusal().is_some() => Err(error.into()),
            _ => Ok(path),
        }
    }

    /// A name as a path below the root; empty for the root itself.
    fn relative(&self, dir: &str) -> Result<PathBuf, NameError> {
        if dir.contains('\0') {
            return Err(NameError::Nul(dir.to_owned()));
        }
        let mut below = PathBuf::new();
        let mut depth = 0;
        for component in Path::new(dir).components() {
            match component {
                Component::CurDir => {}
                Component::Normal(name) if !is_hidden(name) => {
                    below.push(name);
                    depth += 1;
                }
                _ => {
                    return Err(NameError::Outside {
                        dir: dir.to_owned(),
                        root: self.root.clone(),
                    });
                }
            }
        }
        if depth > MAX_DEPTH {
            return Err(NameError::TooDeep(dir.to_owned()));
        }
        Ok(below)
    }

    /// The path of a new run with this name.
    ///
    /// # Errors
    /// When no directory can have that name, the directory has content, or it is within another run.
    pub fn free(&self, dir: &str) -> Result<PathBuf, NewRunError> {
        let path = self.place(dir)?;
        if path == self.root {
            return Err(NewRunError::NoName);
        }
        let is_run = |path: &Path| path.join("run.json").exists();
        let mut above = path.ancestors().skip(1);
        if let Some(run) = above.find(|above| above.starts_with(&self.root) && is_run(above)) {
            let run = run.to_owned();
            return Err(NewRunError::WithinRun { path, run });
        }
        if path
            .read_dir()
            .is_ok_and(|mut entries| entries.next().is_some())
        {
            return Err(NewRunError::NotEmpty(path));
        }
        Ok(path)
    }

    /// The name of a directory below the root; none for a directory elsewhere.
    pub fn name(&self, path: &Path) -> Option<String> {
        let root = crate::lab::canonical(&self.root);
        let below = path.strip_prefix(root).ok()?.to_str()?;
        Some(if below.is_empty() { "." } else { below }.to_owned())
    }

    fn entry(
        &self,
        root: &Dir,
        below: &Path,
        all: &Runs,
        lab: Option<&Lab>,
    ) -> Result<RunEntry, RequestError> {
        let path = &self.root.join(below);
        let dir = below.to_str();
        let dir = dir.ok_or_else(|| NameError::NoText(path.clone()))?;
        let found = opened(root, below).ok_or_else(|| NameError::NoDirectory(path.clone()))?;
        let results = ResultsDir::open_in(found)?;
        let run = results.run();
        let names = |of: fn(&vtax_results::Treatment) -> &String| {
            distinct(run.treatments.iter().map(of).cloned())
        };
        let is_density = vtax_density::run::is_density(&results);
        let findings = self.findings(&results, is_density).unwrap_or_default();
        let report = changed(results.dir(), "report.html");
        let host = results.host().unwrap_or_default();
        let fact = |pointer| host.pointer(pointer).and_then(serde_json::Value::as_str);
        // Records hold no host name, so that results can be published.
        let facts = ["/cpu/model", "/kernel", "/distribution", "/hypervisor"];
        let facts: Vec<&str> = facts.into_iter().filter_map(fact).collect();
        let dir = if dir.is_empty() { "." } else { dir };
        let notes = notes::read(results.dir()).into_iter().rev().take(3);
        let entry = json!({
            "dir": dir,
            "name": run.name,
            "description": run.description,
            "place": run.place,
            "profile": run.profile,
            "started": run.started,
            // The processor, kernel and distribution, and the hypervisor below them.
            "host": facts.join(", "),
            "platforms": names(|one| &one.platform),
            "workloads": names(|one| &one.workload),
            "planned": run.schedule.len(),
            "done": results.trial_indexes().len(),
            "state": all.state(path, &results, lab),
            // The strongest verdict of its report, in words; empty where there is no report.
            "verdict": findings.verdict(),
            // The worst source flag of its headline numbers.
            "source": findings.source,
            // The findings of its report, differences first.
            "found": findings.found(),
            "density": is_density,
            "notes": notes.map(|note| note.text).collect::<Vec<_>>(),
            "report": report.is_some(),
            // Whether the report is older than the last trial.
            "outdated": report.is_some() && report < changed(results.dir(), "trials"),
        });
        Ok(((Reverse(run.started.clone()), dir.to_owned()), entry))
    }

    /// The findings of a run: those of its report, or of its climbs, which have no `analysis.json`.
    fn findings(&self, results: &ResultsDir, is_density: bool) -> Option<Arc<Findings>> {
        let file = if is_density { "trials" } else { ANALYSIS };
        let at = changed(results.dir(), file)?;
        let read = || {
            if is_density {
                return Ok(Findings {
                    climbs: density::sentences(results),
                    ..Findings::default()
                });
            }
            // An unreadable file gives no findings; the report beside it is still shown.
            Ok(read_findings(results.dir()).unwrap_or_default())
        };
        self.findings.get(results.path(), Some(at), read).ok()
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

    /// Up to three sentences with differences; without any, the first sentence.
    fn found(&self) -> Vec<String> {
        if !self.climbs.is_empty() {
            return self.climbs.clone();
        }
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

/// The report in a results directory that is open.
fn report_of(results: &ResultsDir, dir: &str) -> Result<String, RequestError> {
    let file = results.dir().sole_file("report.html");
    let file = file.map_err(|error| RequestError::NoReport {
        path: results.path().to_owned(),
        cause: error.cause,
    })?;
    let mut page = String::new();
    let read = file.take(MAX_REPORT_BYTES).read_to_string(&mut page);
    read.map_err(|cause| RequestError::Report {
        dir: dir.to_owned(),
        cause,
    })?;
    Ok(page)
}

/// The findings in `analysis.json`. The directory may be another user's, and its content arbitrary.
fn read_findings(results: &Dir) -> Option<Findings> {
    let file = results.sole_file(ANALYSIS).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_REPORT_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn is_hidden(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Every directory with a run, by its path below the root.
fn scan(root: &Dir, problems: &mut Vec<String>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut seen = 0;
    let mut next = vec![(PathBuf::new(), 0)];
    while let Some((below, depth)) = next.pop() {
        seen += 1;
        if seen > MAX_DIRECTORIES || found.len() >= MAX_RUNS {
            problems.push(format!(
                "the list is cut: there are more than {MAX_RUNS} runs or {MAX_DIRECTORIES} directories; give a root with less in it"
            ));
            break;
        }
        // The directory may have been removed since it was listed.
        let Some(directory) = opened(root, &below) else {
            continue;
        };
        if directory
            .metadata("run.json")
            .is_ok_and(|kind| kind.is_file())
        {
            found.push(below);
            continue;
        }
        let entries = match directory.list() {
            Ok(entries) => entries,
            Err(error) => {
                problems.push(error.to_string());
                continue;
            }
        };
        for entry in entries {
            if entry.is_dir && depth < MAX_DEPTH && !is_hidden(&entry.name) {
                next.push((below.join(&entry.name), depth + 1));
            }
        }
    }
    found
}

/// A directory below the root, or the root itself.
fn opened(root: &Dir, below: &Path) -> Option<Dir> {
    if below.as_os_str().is_empty() {
        return Some(root.clone());
    }
    root.dir(below).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::fs;
    use std::os::unix::fs::symlink;
    use vtax_results::{FORMAT, RunInfo};

    fn made(path: &Path, report: &str) {
        let run = RunInfo {
            format: FORMAT,
            name: "run".to_owned(),
            description: String::new(),
            seed: 1,
            profile: "full".to_owned(),
            place: "local".to_owned(),
            started: String::new(),
            plan_sha256: String::new(),
            schedule: Vec::new(),
            treatments: Vec::new(),
            minimum_effect: 0.0,
            extended: false,
        };
        ResultsDir::create(path, &run, "", &serde_json::Value::Null).unwrap();
        fs::write(path.join("report.html"), report).unwrap();
    }

    /// Another user with write access below the root replaces a run between the check and the open.
    #[test]
    fn a_run_that_is_exchanged_for_a_link_after_it_was_opened_is_still_the_one_that_was_opened() {
        let folder = tempfile::tempdir().unwrap();
        let (root, secret) = (folder.path().join("root"), folder.path().join("secret"));
        made(&root.join("race"), "own report");
        made(&secret, "secret report");
        symlink(&secret, root.join("link")).unwrap();
        let results = Results::below(&root);
        let exchange = || {
            let (run, link) = (root.join("race"), root.join("link"));
            renameat_with(CWD, run, CWD, link, RenameFlags::EXCHANGE).unwrap();
        };
        let open = results.open("race").unwrap();
        exchange();
        assert_eq!(
            fs::read(root.join("race/report.html")).unwrap(),
            b"secret report"
        );
        assert_eq!(report_of(&open, "race").unwrap(), "own report");
        notes::add(open.dir(), None, "a note").unwrap();
        assert_eq!(notes::read(open.dir()).len(), 1);
        assert!(!secret.join(notes::FILE).exists());
        assert!(root.join("link").join(notes::FILE).exists());
        // The name itself does not open as a run while the link is there.
        assert!(results.open("race").is_err());
        assert!(results.report("race").is_err());
        assert!(results.place("race").is_err());
        exchange();
        assert_eq!(results.report("race").unwrap(), "own report");
    }

    #[test]
    fn a_name_that_can_be_no_directory_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let results = Results::below(folder.path());
        for (dir, why) in [
            ("x\0y", "NUL byte"),
            ("a/b/c/d/e", "more than 4 directories"),
            ("../x", "no name below"),
            (".hidden", "no name below"),
        ] {
            let refused = results.place(dir).unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
        }
        results.place("a/b/c/d").unwrap();
    }
}
