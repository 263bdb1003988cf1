// SPDX-License-Identifier: Apache-2.0
//! Creates, extends and reads a results directory; the only module with its layout.

use super::checksums::{self, SUMS};
use super::trial::at_most;
use super::{
    FORMAT, HistogramRecord, ResultsError, RunInfo, SampleReader, SampleWriter, Scheduled, Trial,
    Work, histograms,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use vtax_files::{Dir, Entry};

/// Longest record or plan that is read, in bytes: some hundred times the size after a long run.
const MOST_BYTES: u64 = 16 << 20;

/// Written last, so a directory with this file is complete.
const RUN: &str = "run.json";
/// The trials that were added to the planned ones. It is written at once, so that a killed writer leaves the run as it was.
const MORE: &str = "more.json";
/// The most trials of a run.
const MOST_TRIALS: usize = 1_000_000;
/// The directory of the trials.
pub(super) const TRIALS: &str = "trials";
/// In the directory of an unfinished trial: its progress events.
const EVENTS: &str = "events.jsonl";

/// In the directory of a trial: its samples.
const SAMPLES: &str = "samples.parquet";

/// The trials that were added to a run.
#[derive(Debug, Serialize, Deserialize)]
struct More {
    /// [`FORMAT`].
    format: u32,
    /// The trials, which follow the planned ones.
    schedule: Vec<Scheduled>,
}

/// One results directory. It is opened once, and all access to its content is relative to that descriptor: another
/// process with write access to it or to its parent cannot redirect a reader or writer.
#[derive(Debug, Clone)]
pub struct ResultsDir {
    dir: Dir,
    run: RunInfo,
}

impl ResultsDir {
    /// Creates a results directory, or completes one after an interrupted creation. `run.json` is written last, so a
    /// directory with this file is complete.
    ///
    /// # Errors
    /// When the directory already holds a run or foreign files, or cannot be written.
    pub fn create(
        path: &Path,
        run: &RunInfo,
        plan_text: &str,
        host: &serde_json::Value,
    ) -> Result<Self, ResultsError> {
        Self::create_in(Dir::create(path)?, run, plan_text, host)
    }

    /// As [`ResultsDir::create`], in an open directory.
    ///
    /// # Errors
    /// As there.
    pub fn create_in(
        dir: Dir,
        run: &RunInfo,
        plan_text: &str,
        host: &serde_json::Value,
    ) -> Result<Self, ResultsError> {
        let path = dir.path();
        if dir.contains(RUN) {
            return Err(ResultsError::AlreadyARun(path.to_owned()));
        }
        run.check(&path.join(RUN))?;
        check_free(&dir)?;
        dir.create_dir(TRIALS)?;
        let host = to_json(&path.join("host.json"), host)?;
        let record = to_json(&path.join(RUN), run)?;
        let files = [
            ("plan.toml", plan_text.as_bytes()),
            ("host.json", &host),
            (RUN, &record),
        ];
        dir.write(SUMS, checksums::of_contents(&files).as_bytes())?;
        for (name, bytes) in files {
            dir.write(name, bytes)?;
        }
        if let Some(parent) = path.parent()
            && !parent.as_os_str().is_empty()
        {
            Dir::open(parent)?.sync()?;
        }
        Ok(Self {
            dir,
            run: run.clone(),
        })
    }

    /// Checks that [`ResultsDir::create`] may write to a directory without a run: it is absent, empty, or left by an
    /// interrupted creation.
    ///
    /// # Errors
    /// When it holds something else, or cannot be read.
    pub fn check_free(path: &Path) -> Result<(), ResultsError> {
        match Dir::open(path) {
            Err(error) if error.is_not_found() => Ok(()),
            other => check_free(&other?),
        }
    }

    /// Opens a run for reading. Changes nothing, so it is safe during the run.
    ///
    /// # Errors
    /// When there is no run, its format is newer, or `run.json` is corrupted.
    pub fn open(path: &Path) -> Result<Self, ResultsError> {
        match Dir::open(path) {
            Err(error) if error.is_not_found() => Err(ResultsError::NotARun(path.to_owned())),
            other => Self::open_in(other?),
        }
    }

    /// As [`ResultsDir::open`], for an open directory.
    ///
    /// # Errors
    /// As there.
    pub fn open_in(dir: Dir) -> Result<Self, ResultsError> {
        if !dir.contains(RUN) {
            return Err(ResultsError::NotARun(dir.path().to_owned()));
        }
        let remedy = "Restore it from a copy; the trials beside it are not affected";
        let mut run: RunInfo = read_json(&dir, Path::new(RUN), remedy)?;
        run.check(&dir.path().join(RUN))?;
        if dir.contains(MORE) {
            let remedy = "Remove it: the planned trials are not affected";
            let more: More = read_json(&dir, Path::new(MORE), remedy)?;
            let path = dir.path().join(MORE);
            let count = run.schedule.len().saturating_add(more.schedule.len());
            at_most(&path, "trials", count, MOST_TRIALS)?;
            run.schedule.extend(more.schedule);
            run.extended = true;
        }
        Ok(Self { dir, run })
    }

    /// Adds trials after the planned ones. Intervals of the run then hold at every look.
    ///
    /// # Errors
    /// When the file cannot be written, or they would be too many.
    pub fn extend(&mut self, more: &[Scheduled]) -> Result<(), ResultsError> {
        let path = self.path().join(MORE);
        let count = self.run.schedule.len().saturating_add(more.len());
        at_most(&path, "trials", count, MOST_TRIALS)?;
        let mut all = if self.dir.contains(MORE) {
            read_json(&self.dir, Path::new(MORE), "Remove it")?
        } else {
            More {
                format: FORMAT,
                schedule: Vec::new(),
            }
        };
        all.schedule.extend_from_slice(more);
        self.dir.write(MORE, &to_json(&path, &all)?)?;
        self.run.schedule.extend_from_slice(more);
        self.run.extended = true;
        Ok(())
    }

    /// Opens a run to continue it: as [`ResultsDir::open`], and removes the unfinished trial of a killed run. Only for
    /// the holder of the lab's lock.
    ///
    /// # Errors
    /// As [`ResultsDir::open`] and [`ResultsDir::verify`], and when a leftover cannot be removed.
    pub fn resume(path: &Path) -> Result<Self, ResultsError> {
        let results = Self::open(path)?;
        results.verify()?;
        let trials = results.dir.create_dir(TRIALS)?;
        for directory in [&results.dir, &trials] {
            for entry in directory.list()? {
                if is_partial(&entry.name.to_string_lossy()) {
                    directory.remove_all(&entry.name)?;
                }
            }
        }
        Ok(results)
    }

    /// Checks that the plan and the record of the run are those that were written when the run began.
    ///
    /// # Errors
    /// When one was changed since, or the directory has no sums.
    pub fn verify(&self) -> Result<(), ResultsError> {
        for name in ["plan.toml", RUN] {
            let path = self.path().join(name);
            match checksums::is_intact(&self.dir, name)? {
                Some(true) => {}
                Some(false) => return Err(ResultsError::Edited(path)),
                None => return Err(ResultsError::NoSum(path)),
            }
        }
        Ok(())
    }

    /// Path of the directory, for messages and names. Access to its content goes through [`ResultsDir::dir`].
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The open directory, for files beside the records.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The description of the planned run.
    pub fn run(&self) -> &RunInfo {
        &self.run
    }

    /// The number of blocks of the schedule: the trials of each treatment that were planned.
    pub fn blocks(&self) -> u32 {
        let blocks = self.run.schedule.iter().map(|one| one.block);
        blocks.max().map_or(0, |last| last.saturating_add(1))
    }

    /// The text of the run's plan.
    ///
    /// # Errors
    /// When it is absent or not text.
    pub fn plan_text(&self) -> Result<String, ResultsError> {
        Ok(self.dir.read_text("plan.toml", MOST_BYTES)?)
    }

    /// The facts about the host.
    ///
    /// # Errors
    /// When it is absent or not JSON.
    pub fn host(&self) -> Result<serde_json::Value, ResultsError> {
        let bytes = self.dir.read("host.json", MOST_BYTES)?;
        parse_json(
            &self.path().join("host.json"),
            &bytes,
            "Restore it from a copy; the numbers do not depend on it",
        )
    }

    /// Replaces the facts about the host by those of the host inside, which is known after the first trial.
    ///
    /// # Errors
    /// When the record of the run was edited, or a file cannot be written.
    pub fn replace_host(&self, host: &serde_json::Value) -> Result<(), ResultsError> {
        self.verify()?;
        let facts = to_json(&self.path().join("host.json"), host)?;
        let plan = self.dir.read("plan.toml", MOST_BYTES)?;
        let record = self.dir.read(RUN, MOST_BYTES)?;
        let files: [(&str, &[u8]); 3] =
            [("plan.toml", &plan), ("host.json", &facts), (RUN, &record)];
        self.dir.write("host.json", &facts)?;
        Ok(self
            .dir
            .write(SUMS, checksums::of_contents(&files).as_bytes())?)
    }

    /// Path of one trial's directory, existing or not: for messages.
    pub fn trial_path(&self, index: u32) -> PathBuf {
        self.path().join(trial_below(index))
    }

    /// Opens the directory of one trial.
    ///
    /// # Errors
    /// When it is absent, or not a directory.
    pub fn trial_dir(&self, index: u32) -> Result<Dir, ResultsError> {
        Ok(self.dir.dir(trial_below(index))?)
    }

    /// Whether the directory of a trial exists.
    pub fn has_trial(&self, index: u32) -> bool {
        self.dir.contains(trial_below(index))
    }

    /// Whether a trial has samples.
    pub fn has_samples(&self, index: u32) -> bool {
        self.dir.contains(trial_below(index).join(SAMPLES))
    }

    /// The schedule's entries without a trial, in order.
    ///
    /// A trial with a directory counts as run even when its `trial.json` is corrupted: it was complete when it was
    /// renamed into place, so the damage is of a later date and may be repairable ([`ResultsDir::damaged`]). A trial
    /// that is set aside ([`ResultsDir::set_aside`]) is pending.
    pub fn pending(&self) -> Vec<u32> {
        (0..self.run.schedule.len())
            .filter_map(|index| u32::try_from(index).ok())
            .filter(|index| !self.has_trial(*index))
            .collect()
    }

    /// Starts to write one trial, in a temporary directory beside its final place.
    ///
    /// # Errors
    /// When the schedule has no such trial, the trial already exists, or a file operation fails.
    pub fn trial_writer(&self, index: u32) -> Result<TrialWriter, ResultsError> {
        let planned = self.run.schedule.len();
        if usize::try_from(index).map_or(true, |index| index >= planned) {
            return Err(ResultsError::NoSuchTrial { index, planned });
        }
        if self.has_trial(index) {
            return Err(ResultsError::TrialExists(self.trial_path(index)));
        }
        let trials = self.dir.create_dir(TRIALS)?;
        let writer = format!(".{}.partial-{}-", trial_name(index), std::process::id());
        Ok(TrialWriter {
            index,
            dir: trials.new_dir_named(&writer)?,
            trials,
            placed: false,
        })
    }

    /// The unfinished trials, of a current or a killed run. Trials that a run writes elsewhere until they are finished,
    /// as in a testbed, are not included.
    pub fn in_flight(&self) -> Vec<InFlight> {
        let mut found: Vec<InFlight> = self
            .trial_entries()
            .iter()
            .filter_map(|entry| {
                let name = entry.name.to_str()?;
                let (index, rest) = name.strip_prefix('.')?.split_once(".partial-")?;
                Some(InFlight {
                    index: index.parse().ok()?,
                    writer: rest.split('-').next()?.parse().ok()?,
                    below: Path::new(TRIALS).join(name),
                })
            })
            .collect();
        found.sort_by_key(|one| one.index);
        found
    }

    /// Every existing trial, in order of its index. An unreadable trial is an error of its own and does not stop the
    /// iteration.
    pub fn trials(&self) -> impl Iterator<Item = Result<Trial, ResultsError>> + '_ {
        let indexes = self.trial_indexes().into_iter();
        indexes.map(|index| self.trial(index))
    }

    /// The indexes of the existing trials.
    pub fn trial_indexes(&self) -> Vec<u32> {
        let index_of = |entry: &Entry| trial_index(entry.name.to_str()?);
        let mut indexes: Vec<u32> = self.trial_entries().iter().filter_map(index_of).collect();
        indexes.sort_unstable();
        indexes
    }

    /// All entries of the directory of trials.
    pub(super) fn trial_entries(&self) -> Vec<Entry> {
        let trials = self.dir.dir(TRIALS);
        trials.and_then(|trials| trials.list()).unwrap_or_default()
    }

    /// Reads one trial.
    ///
    /// # Errors
    /// When it is absent or corrupted, or its format is newer.
    pub fn trial(&self, index: u32) -> Result<Trial, ResultsError> {
        read_trial(self, &trial_below(index), index)
    }

    /// Rewrites a finished trial, with metrics that were derived from it later.
    ///
    /// # Errors
    /// When there is no such trial, or it cannot be written.
    pub fn rewrite_trial(&self, trial: &Trial) -> Result<(), ResultsError> {
        self.trial(trial.index)?;
        let path = self.trial_path(trial.index).join("trial.json");
        let trial_dir = self.trial_dir(trial.index)?;
        trial_dir.write("trial.json", &to_json(&path, trial)?)?;
        checksums::write(&trial_dir)
    }

    /// Opens the samples of one trial.
    ///
    /// # Errors
    /// When they are absent or corrupted.
    pub fn samples(&self, index: u32) -> Result<SampleReader, ResultsError> {
        let below = trial_below(index).join(SAMPLES);
        let file = self.dir.file(&below)?;
        SampleReader::from_file(file, &self.path().join(below), &self.run.place)
    }

    /// Reads the distributions of one trial; empty without `latencies.hlog`.
    ///
    /// # Errors
    /// When the file is unreadable or corrupted.
    pub fn histograms(&self, index: u32) -> Result<Vec<HistogramRecord>, ResultsError> {
        histograms::read(&self.dir, &trial_below(index).join(histograms::FILE))
    }
}

/// An unfinished trial as seen by other processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    /// Position in the schedule.
    pub index: u32,
    /// Process id of the writer.
    pub writer: u32,
    /// Path below the results directory until the trial is finished.
    pub below: PathBuf,
}

impl InFlight {
    /// Path of the trial's progress events below the results directory: [`TrialWriter::events`].
    pub fn events(&self) -> PathBuf {
        self.below.join(EVENTS)
    }
}

/// One trial during writing. It becomes visible with [`TrialWriter::finish`]; a drop before that removes it.
#[derive(Debug)]
pub struct TrialWriter {
    index: u32,
    trials: Dir,
    dir: Dir,
    placed: bool,
}

impl TrialWriter {
    /// The trial's position in the schedule.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Path of the temporary directory: for messages, and for programs that need a path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The temporary directory; further files in it become part of the trial.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Starts `samples.parquet`. The writer may move to another thread; it must be finished before the trial.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn samples(&self) -> Result<SampleWriter, ResultsError> {
        SampleWriter::create(&self.dir, SAMPLES)
    }

    /// Writes `latencies.hlog`.
    ///
    /// # Errors
    /// When an actor's or metric's name is no valid tag, or the file cannot be written.
    pub fn write_histograms(&self, records: &[HistogramRecord]) -> Result<(), ResultsError> {
        histograms::write(&self.dir, records)
    }

    /// Writes the load generator's output, byte for byte, as `workload.json`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_workload_json(&self, raw: &[u8]) -> Result<(), ResultsError> {
        Ok(self.dir.write("workload.json", raw)?)
    }

    /// Opens the trial's log for appending.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn log(&self) -> Result<File, ResultsError> {
        Ok(self.dir.append("log")?)
    }

    /// Opens the trial's progress events for appending: JSON lines for other processes. The file is removed when the
    /// trial is finished.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn events(&self) -> Result<File, ResultsError> {
        Ok(self.dir.append(EVENTS)?)
    }

    /// Writes `trial.json`, syncs every file, renames the directory into place and syncs its parent: the trial then
    /// survives a power failure. A metric that is not a finite number cannot be stored; it is left out and becomes a
    /// reason for suspicion.
    ///
    /// # Errors
    /// When a file operation fails, or another process finished the same trial meanwhile.
    pub fn finish(mut self, mut trial: Trial) -> Result<PathBuf, ResultsError> {
        trial.format = FORMAT;
        trial.index = self.index;
        trial.metrics.retain(|name, metric| {
            let value = metric.quantity.value;
            if !value.is_finite() {
                trial.suspect.push(format!(
                    "{name} was not a finite number ({value}) and is left out"
                ));
            }
            value.is_finite()
        });
        if let Some(Work { amount, .. }) = &trial.work
            && !amount.is_finite()
        {
            trial.suspect.push(format!(
                "the work done was not a finite number ({amount}) and is left out"
            ));
            trial.work = None;
        }
        self.dir.remove_all(EVENTS)?;
        let file = self.path().join("trial.json");
        self.dir.write("trial.json", &to_json(&file, &trial)?)?;
        checksums::write(&self.dir)?;
        for entry in self.dir.list()?.iter().filter(|entry| entry.is_file) {
            let file = self.dir.file(&entry.name)?;
            file.sync_all()
                .map_err(ResultsError::io("sync", &self.path().join(&entry.name)))?;
        }
        self.dir.sync()?;
        let destination = self.trials.path().join(trial_name(self.index));
        match self.trials.rename_new(self.name(), trial_name(self.index)) {
            Err(error) if error.already_exists() => {
                return Err(ResultsError::TrialExists(destination));
            }
            other => other?,
        }
        self.placed = true;
        self.trials.sync()?;
        Ok(destination)
    }

    /// Name of the temporary directory among the trials.
    fn name(&self) -> &OsStr {
        self.path().file_name().unwrap_or_default()
    }
}

impl Drop for TrialWriter {
    fn drop(&mut self) {
        if !self.placed {
            // The next `resume` removes the rest.
            let _ = self.trials.remove_all(self.name());
        }
    }
}

/// Reads the `trial.json` of a trial's directory at `below`, relative to the results directory.
pub(super) fn read_trial(
    results: &ResultsDir,
    below: &Path,
    index: u32,
) -> Result<Trial, ResultsError> {
    let directory = results.path().join(below);
    let file = directory.join("trial.json");
    let remedy = format!(
        "Move {} away and run the plan again on this directory: only that trial is repeated",
        directory.display()
    );
    let corrupted = |why: String| ResultsError::Corrupted {
        path: file.clone(),
        why,
        remedy: remedy.clone(),
    };
    let mut trial: Trial = match read_json(&results.dir, &below.join("trial.json"), &remedy) {
        Err(ResultsError::File(error)) if error.is_not_found() => {
            return Err(corrupted("it is missing".to_owned()));
        }
        other => other?,
    };
    if trial.index != index {
        return Err(corrupted(format!(
            "it says that it is trial {}",
            trial.index
        )));
    }
    if checksums::is_intact(&results.dir.dir(below)?, "trial.json")? == Some(false) {
        return Err(corrupted(format!(
            "it was changed after it was written: {SUMS} has another digest"
        )));
    }
    trial.check(&file)?;
    trial.part_disturbances();
    trial.flag_as_recorded_at(&results.run.place);
    Ok(trial)
}

pub(super) fn trial_name(index: u32) -> String {
    format!("{index:04}")
}

/// The index of a trial whose directory has this name; `None` for another name.
pub(super) fn trial_index(name: &str) -> Option<u32> {
    let index = name.parse().ok()?;
    (trial_name(index) == name).then_some(index)
}

/// Path of a trial below the results directory.
fn trial_below(index: u32) -> PathBuf {
    Path::new(TRIALS).join(trial_name(index))
}

fn is_partial(name: &str) -> bool {
    name.starts_with('.') && name.contains(".partial-")
}

fn check_free(dir: &Dir) -> Result<(), ResultsError> {
    for entry in dir.list()? {
        let name = entry.name.to_string_lossy();
        let ours = ["plan.toml", "host.json", SUMS, TRIALS, "lost+found"].contains(&&*name)
            || is_partial(&name);
        if !ours {
            return Err(ResultsError::NotEmpty {
                path: dir.path().to_owned(),
                found: name.into_owned(),
            });
        }
    }
    Ok(())
}

pub(super) fn to_json(path: &Path, value: &impl serde::Serialize) -> Result<Vec<u8>, ResultsError> {
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|error| ResultsError::io("write", path)(std::io::Error::other(error)))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// The field that every record has.
#[derive(Deserialize)]
struct Format {
    #[serde(default)]
    format: u64,
}

pub(super) fn read_json<T: DeserializeOwned>(
    directory: &Dir,
    below: &Path,
    remedy: &str,
) -> Result<T, ResultsError> {
    let bytes = directory.read(below, MOST_BYTES)?;
    let path = &directory.path().join(below);
    let found = parse_json::<Format>(path, &bytes, remedy)?.format;
    if found > u64::from(FORMAT) {
        return Err(ResultsError::NewerFormat {
            path: path.to_owned(),
            found,
        });
    }
    // A second parse from the bytes gives a message with line and column.
    parse_json(path, &bytes, remedy)
}

fn parse_json<T: DeserializeOwned>(
    path: &Path,
    bytes: &[u8],
    remedy: &str,
) -> Result<T, ResultsError> {
    serde_json::from_slice(bytes).map_err(|error| ResultsError::Corrupted {
        path: path.to_owned(),
        why: if bytes.is_empty() {
            "it is empty".to_owned()
        } else {
            error.to_string()
        },
        remedy: remedy.to_owned(),
    })
}
