//! Creating, extending and reading a results directory; the only place that knows its layout.

use super::{
    FORMAT, HistogramRecord, ResultsError, RunInfo, SampleReader, SampleWriter, Trial, histograms,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use vtax_files::{Dir, Entry};

/// The most bytes of a record or a plan that are read: some hundred times what a long run writes.
const MOST_BYTES: u64 = 16 << 20;

/// Last to be written, so that a directory that has it has everything.
const RUN: &str = "run.json";
/// The directory of the trials.
pub(super) const TRIALS: &str = "trials";
/// In the directory of a trial that is being written: what it says of itself.
const EVENTS: &str = "events.jsonl";

/// In the directory of a trial: what was sampled.
const SAMPLES: &str = "samples.parquet";

/// One results directory. It is opened once, and what is in it is reached from there: whoever may write to it, or
/// to the directory that it is in, cannot lead a reader or writer elsewhere.
#[derive(Debug, Clone)]
pub struct ResultsDir {
    dir: Dir,
    run: RunInfo,
}

impl ResultsDir {
    /// Makes a new results directory, or completes one whose making was interrupted. `run.json`
    /// is written last, so a directory that has it has everything.
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

    /// As [`ResultsDir::create`], in a directory that is open.
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
        for entry in dir.list()? {
            let name = entry.name.to_string_lossy();
            let ours = ["plan.toml", "host.json", "trials", "lost+found"].contains(&&*name)
                || is_partial(&name);
            if !ours {
                return Err(ResultsError::NotEmpty {
                    path: path.to_owned(),
                    found: name.into_owned(),
                });
            }
        }
        dir.create_dir(TRIALS)?;
        dir.write("plan.toml", plan_text.as_bytes())?;
        dir.write("host.json", &to_json(&path.join("host.json"), host)?)?;
        dir.write(RUN, &to_json(&path.join(RUN), run)?)?;
        if let Some(parent) = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            Dir::open(parent)?.sync()?;
        }
        Ok(Self {
            dir,
            run: run.clone(),
        })
    }

    /// Opens a run to read it. Changes nothing, so it is safe while the run is going on.
    ///
    /// # Errors
    /// When there is no run, a newer vtax wrote it, or `run.json` is corrupted.
    pub fn open(path: &Path) -> Result<Self, ResultsError> {
        match Dir::open(path) {
            Err(error) if error.is_not_found() => Err(ResultsError::NotARun(path.to_owned())),
            other => Self::open_in(other?),
        }
    }

    /// As [`ResultsDir::open`], of a directory that is open.
    ///
    /// # Errors
    /// As there.
    pub fn open_in(dir: Dir) -> Result<Self, ResultsError> {
        if !dir.contains(RUN) {
            return Err(ResultsError::NotARun(dir.path().to_owned()));
        }
        let remedy = "Restore it from a copy; the trials beside it are not affected";
        let run: RunInfo = read_json(&dir, Path::new(RUN), remedy)?;
        run.check(&dir.path().join(RUN))?;
        Ok(Self { dir, run })
    }

    /// Opens a run to go on with it: as [`ResultsDir::open`], and removes what a killed run left
    /// of the trial in flight. Only for the one who holds the lab's lock.
    ///
    /// # Errors
    /// As [`ResultsDir::open`], and when a leftover cannot be removed.
    pub fn resume(path: &Path) -> Result<Self, ResultsError> {
        let results = Self::open(path)?;
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

    /// Where it is: for messages and names. What is in it is reached by [`ResultsDir::dir`].
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The directory, for what others keep beside the records.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// What was going to be run.
    pub fn run(&self) -> &RunInfo {
        &self.run
    }

    /// The plan as it was run.
    ///
    /// # Errors
    /// When it is absent or not text.
    pub fn plan_text(&self) -> Result<String, ResultsError> {
        Ok(self.dir.read_text("plan.toml", MOST_BYTES)?)
    }

    /// What the host was.
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

    /// Where the directory of one trial is, whether it is there or not: for messages.
    pub fn trial_path(&self, index: u32) -> PathBuf {
        self.path().join(trial_below(index))
    }

    /// The directory of one trial.
    ///
    /// # Errors
    /// When it is absent, or no directory.
    pub fn trial_dir(&self, index: u32) -> Result<Dir, ResultsError> {
        Ok(self.dir.dir(trial_below(index))?)
    }

    /// Whether the directory of a trial is there.
    pub fn has_trial(&self, index: u32) -> bool {
        self.dir.contains(trial_below(index))
    }

    /// Whether a trial has samples.
    pub fn has_samples(&self, index: u32) -> bool {
        self.dir.contains(trial_below(index).join(SAMPLES))
    }

    /// The schedule's entries that have no trial yet, in order.
    ///
    /// A trial whose directory is there counts as run even when its `trial.json` turns out to be
    /// corrupted: it was complete when it was renamed into place, so the damage came later, may
    /// be repairable, and is for a person to judge ([`ResultsDir::damaged`]). Once it is set aside
    /// ([`ResultsDir::set_aside`]) it is pending.
    pub fn pending(&self) -> Vec<u32> {
        (0..self.run.schedule.len())
            .filter_map(|index| u32::try_from(index).ok())
            .filter(|index| !self.has_trial(*index))
            .collect()
    }

    /// Starts writing one trial, in a directory beside the place where it will be.
    ///
    /// # Errors
    /// When the schedule has no such trial, it is already there, or the disk refuses.
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

    /// The trials that are being written, or were when their run was killed. Those of runs that keep
    /// them elsewhere until they are over, as in a testbed, are not seen.
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

    /// Every trial that is there, in order of its index. One that cannot be read is an error of
    /// its own and does not stop the others.
    pub fn trials(&self) -> impl Iterator<Item = Result<Trial, ResultsError>> + '_ {
        self.trial_indexes()
            .into_iter()
            .map(|index| self.trial(index))
    }

    /// The indexes of the trials that are there.
    pub fn trial_indexes(&self) -> Vec<u32> {
        let index_of = |entry: &Entry| {
            let name = entry.name.to_str()?;
            let index = name.parse().ok()?;
            (trial_name(index) == name).then_some(index)
        };
        let mut indexes: Vec<u32> = self.trial_entries().iter().filter_map(index_of).collect();
        indexes.sort_unstable();
        indexes
    }

    /// What is beside the trials, and them.
    pub(super) fn trial_entries(&self) -> Vec<Entry> {
        let trials = self.dir.dir(TRIALS);
        trials.and_then(|trials| trials.list()).unwrap_or_default()
    }

    /// One trial.
    ///
    /// # Errors
    /// When it is absent, corrupted, or written by a newer vtax.
    pub fn trial(&self, index: u32) -> Result<Trial, ResultsError> {
        read_trial(&self.dir, &trial_below(index), index)
    }

    /// Writes a finished trial again, with metrics that were derived from it later.
    ///
    /// # Errors
    /// When there is no such trial, or the disk refuses.
    pub fn rewrite_trial(&self, trial: &Trial) -> Result<(), ResultsError> {
        self.trial(trial.index)?;
        let path = self.trial_path(trial.index).join("trial.json");
        let trial_dir = self.trial_dir(trial.index)?;
        Ok(trial_dir.write("trial.json", &to_json(&path, trial)?)?)
    }

    /// The samples of one trial.
    ///
    /// # Errors
    /// When they are absent or corrupted.
    pub fn samples(&self, index: u32) -> Result<SampleReader, ResultsError> {
        let below = trial_below(index).join(SAMPLES);
        SampleReader::of(self.dir.file(&below)?, &self.path().join(below))
    }

    /// The distributions of one trial; none where it has no `latencies.hlog`.
    ///
    /// # Errors
    /// When the file is unreadable or corrupted.
    pub fn histograms(&self, index: u32) -> Result<Vec<HistogramRecord>, ResultsError> {
        histograms::read(&self.dir, &trial_below(index).join(histograms::FILE))
    }
}

/// A trial that is being written, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    /// Its position in the schedule.
    pub index: u32,
    /// The process that writes it.
    pub writer: u32,
    /// Where below the results directory, until it is finished.
    pub below: PathBuf,
}

impl InFlight {
    /// Where below the results directory it says of itself what it does: [`TrialWriter::events`].
    pub fn events(&self) -> PathBuf {
        self.below.join(EVENTS)
    }
}

/// One trial being written: nothing of it is visible until [`TrialWriter::finish`], and dropping
/// it unfinished removes it.
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

    /// Where the directory is that is being filled: for messages, and for programs that need a path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The directory that is being filled; further files in it become part of the trial.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Starts `samples.parquet`. The writer may live on another thread; it must be finished
    /// before the trial is.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn samples(&self) -> Result<SampleWriter, ResultsError> {
        SampleWriter::create(&self.dir, SAMPLES)
    }

    /// Writes `latencies.hlog`.
    ///
    /// # Errors
    /// When an actor's or metric's name cannot be a tag, or the disk does not take the file.
    pub fn write_histograms(&self, records: &[HistogramRecord]) -> Result<(), ResultsError> {
        histograms::write(&self.dir, records)
    }

    /// Keeps what the load generator printed, byte for byte, as `workload.json`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_workload_json(&self, raw: &[u8]) -> Result<(), ResultsError> {
        Ok(self.dir.write("workload.json", raw)?)
    }

    /// The trial's log, opened for appending.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn log(&self) -> Result<File, ResultsError> {
        Ok(self.dir.append("log")?)
    }

    /// What the trial says of itself as it goes on, JSON lines for whoever watches; opened for appending.
    /// It goes when the trial is finished: what lasts is in the other files.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn events(&self) -> Result<File, ResultsError> {
        Ok(self.dir.append(EVENTS)?)
    }

    /// Writes `trial.json`, syncs every file, renames the directory into place and syncs its
    /// parent: from here on the trial survives a power cut. A metric that is not a finite number
    /// cannot be stored; it is left out and becomes a reason for suspicion.
    ///
    /// # Errors
    /// When the disk does not take it, or the trial appeared meanwhile.
    pub fn finish(mut self, mut trial: Trial) -> Result<PathBuf, ResultsError> {
        trial.format = FORMAT;
        trial.index = self.index;
        let Trial {
            metrics,
            suspect,
            work,
            ..
        } = &mut trial;
        metrics.retain(|name, metric| {
            let value = metric.quantity.value;
            if !value.is_finite() {
                suspect.push(format!(
                    "{name} was not a finite number ({value}) and is left out"
                ));
            }
            value.is_finite()
        });
        if let Some(amount) = work
            .as_ref()
            .map(|work| work.amount)
            .filter(|amount| !amount.is_finite())
        {
            suspect.push(format!(
                "the work done was not a finite number ({amount}) and is left out"
            ));
            *work = None;
        }
        self.dir.remove_all(EVENTS)?;
        let file = self.path().join("trial.json");
        self.dir.write("trial.json", &to_json(&file, &trial)?)?;
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

    /// Its name among the trials until it is finished.
    fn name(&self) -> &OsStr {
        self.path().file_name().unwrap_or_default()
    }
}

impl Drop for TrialWriter {
    fn drop(&mut self) {
        if !self.placed {
            // What cannot be removed now is removed by the next `resume`.
            let _ = self.trials.remove_all(self.name());
        }
    }
}

/// Reads the `trial.json` of a trial's directory, which is below that of the results.
pub(super) fn read_trial(results: &Dir, below: &Path, index: u32) -> Result<Trial, ResultsError> {
    let directory = results.path().join(below);
    let file = directory.join("trial.json");
    let remedy = format!(
        "Move {} away and run the plan again on this directory: only that trial is repeated",
        directory.display()
    );
    let mut trial: Trial = match read_json(results, &below.join("trial.json"), &remedy) {
        Err(ResultsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Err(ResultsError::Corrupted {
                path: file,
                why: "it is missing".to_owned(),
                remedy,
            });
        }
        other => other?,
    };
    if trial.index != index {
        let why = format!("it says that it is trial {}", trial.index);
        return Err(ResultsError::Corrupted {
            path: file,
            why,
            remedy,
        });
    }
    trial.check(&file)?;
    trial.part_disturbances();
    Ok(trial)
}

pub(super) fn trial_name(index: u32) -> String {
    format!("{index:04}")
}

/// Where a trial is below the results directory.
fn trial_below(index: u32) -> PathBuf {
    Path::new(TRIALS).join(trial_name(index))
}

fn is_partial(name: &str) -> bool {
    name.starts_with('.') && name.contains(".partial-")
}

fn to_json(path: &Path, value: &impl serde::Serialize) -> Result<Vec<u8>, ResultsError> {
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|error| ResultsError::io("write", path)(std::io::Error::other(error)))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// What every record has, whatever else is in it.
#[derive(Deserialize)]
struct Format {
    #[serde(default)]
    format: u64,
}

fn read_json<T: DeserializeOwned>(
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
    // Parsed again from the bytes so that the message names a line and a column.
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
