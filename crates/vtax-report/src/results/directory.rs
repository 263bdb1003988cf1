//! Creating, extending and reading a results directory; the only place that knows its layout.

use super::{
    FORMAT, HistogramRecord, ResultsError, RunInfo, SampleReader, SampleWriter, Trial, bounded,
    histograms,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The most bytes of a record or a plan that are read: some hundred times what a long run writes.
const MOST_BYTES: u64 = 16 << 20;

/// In the directory of a trial that is being written: what it says of itself.
const EVENTS: &str = "events.jsonl";

/// One results directory.
#[derive(Debug, Clone)]
pub struct ResultsDir {
    path: PathBuf,
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
        fs::create_dir_all(path).map_err(ResultsError::io("create", path))?;
        if path.join("run.json").exists() {
            return Err(ResultsError::AlreadyARun(path.to_owned()));
        }
        for entry in fs::read_dir(path).map_err(ResultsError::io("list", path))? {
            let name = entry.map_err(ResultsError::io("list", path))?.file_name();
            let name = name.to_string_lossy();
            let ours = ["plan.toml", "host.json", "trials", "lost+found"].contains(&&*name)
                || is_partial(&name);
            if !ours {
                return Err(ResultsError::NotEmpty {
                    path: path.to_owned(),
                    found: name.into_owned(),
                });
            }
        }
        let trials = path.join("trials");
        fs::create_dir_all(&trials).map_err(ResultsError::io("create", &trials))?;
        write_atomically(&path.join("plan.toml"), plan_text.as_bytes())?;
        write_atomically(
            &path.join("host.json"),
            &to_json(&path.join("host.json"), host)?,
        )?;
        write_atomically(
            &path.join("run.json"),
            &to_json(&path.join("run.json"), run)?,
        )?;
        if let Some(parent) = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            sync(parent)?;
        }
        Ok(Self {
            path: path.to_owned(),
            run: run.clone(),
        })
    }

    /// Opens a run to read it. Changes nothing, so it is safe while the run is going on.
    ///
    /// # Errors
    /// When there is no run, a newer vtax wrote it, or `run.json` is corrupted.
    pub fn open(path: &Path) -> Result<Self, ResultsError> {
        if !path.join("run.json").exists() {
            return Err(ResultsError::NotARun(path.to_owned()));
        }
        let remedy = "Restore it from a copy; the trials beside it are not affected";
        let run = read_json(path, Path::new("run.json"), remedy)?;
        Ok(Self {
            path: path.to_owned(),
            run,
        })
    }

    /// Opens a run to go on with it: as [`ResultsDir::open`], and removes what a killed run left
    /// of the trial in flight. Only for the one who holds the lab's lock.
    ///
    /// # Errors
    /// As [`ResultsDir::open`], and when a leftover cannot be removed.
    pub fn resume(path: &Path) -> Result<Self, ResultsError> {
        let results = Self::open(path)?;
        let trials = results.path.join("trials");
        fs::create_dir_all(&trials).map_err(ResultsError::io("create", &trials))?;
        for directory in [&results.path, &trials] {
            for entry in fs::read_dir(directory).map_err(ResultsError::io("list", directory))? {
                let entry = entry.map_err(ResultsError::io("list", directory))?;
                if is_partial(&entry.file_name().to_string_lossy()) {
                    let leftover = entry.path();
                    let removed = if leftover.is_dir() {
                        fs::remove_dir_all(&leftover)
                    } else {
                        fs::remove_file(&leftover)
                    };
                    removed.map_err(ResultsError::io("remove the leftover", &leftover))?;
                }
            }
        }
        Ok(results)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
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
        let file = self.path.join("plan.toml");
        String::from_utf8(bounded::read(
            &self.path,
            Path::new("plan.toml"),
            MOST_BYTES,
        )?)
        .map_err(|cause| ResultsError::io("read", &file)(io::Error::other(cause)))
    }

    /// What the host was.
    ///
    /// # Errors
    /// When it is absent or not JSON.
    pub fn host(&self) -> Result<serde_json::Value, ResultsError> {
        let file = self.path.join("host.json");
        let bytes = bounded::read(&self.path, Path::new("host.json"), MOST_BYTES)?;
        parse_json(
            &file,
            &bytes,
            "Restore it from a copy; the numbers do not depend on it",
        )
    }

    /// The directory of one trial, whether it is there or not.
    pub fn trial_path(&self, index: u32) -> PathBuf {
        self.path.join(trial_below(index))
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
            .filter(|index| !self.trial_path(*index).exists())
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
        let destination = self.trial_path(index);
        if destination.exists() {
            return Err(ResultsError::TrialExists(destination));
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let trials = self.path.join("trials");
        let temporary = trials.join(format!(
            ".{}.partial-{}-{number}",
            trial_name(index),
            std::process::id()
        ));
        fs::create_dir_all(&temporary).map_err(ResultsError::io("create", &temporary))?;
        Ok(TrialWriter {
            index,
            trials,
            temporary,
            destination,
            placed: false,
        })
    }

    /// The trials that are being written, or were when their run was killed. Those of runs that keep
    /// them elsewhere until they are over, as in a testbed, are not seen.
    pub fn in_flight(&self) -> Vec<InFlight> {
        let entries = fs::read_dir(self.path.join("trials"));
        let mut found: Vec<InFlight> = entries
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let (index, rest) = name.to_str()?.strip_prefix('.')?.split_once(".partial-")?;
                Some(InFlight {
                    index: index.parse().ok()?,
                    writer: rest.split('-').next()?.parse().ok()?,
                    path: entry.path(),
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
        let Ok(entries) = fs::read_dir(self.path.join("trials")) else {
            return Vec::new();
        };
        let mut indexes: Vec<u32> = entries
            .filter_map(|entry| {
                let name = entry.ok()?.file_name();
                let name = name.to_str()?;
                let index = name.parse().ok()?;
                (trial_name(index) == name).then_some(index)
            })
            .collect();
        indexes.sort_unstable();
        indexes
    }

    /// One trial.
    ///
    /// # Errors
    /// When it is absent, corrupted, or written by a newer vtax.
    pub fn trial(&self, index: u32) -> Result<Trial, ResultsError> {
        read_trial(&self.path, &trial_below(index), index)
    }

    /// Writes a finished trial again, with metrics that were derived from it later.
    ///
    /// # Errors
    /// When there is no such trial, or the disk refuses.
    pub fn rewrite_trial(&self, trial: &Trial) -> Result<(), ResultsError> {
        self.trial(trial.index)?;
        let path = self.trial_path(trial.index).join("trial.json");
        write_atomically(&path, &to_json(&path, trial)?)
    }

    /// The samples of one trial.
    ///
    /// # Errors
    /// When they are absent or corrupted.
    pub fn samples(&self, index: u32) -> Result<SampleReader, ResultsError> {
        let below = trial_below(index).join("samples.parquet");
        SampleReader::of(bounded::open(&self.path, &below)?, &self.path.join(below))
    }

    /// The distributions of one trial; none where it has no `latencies.hlog`.
    ///
    /// # Errors
    /// When the file is unreadable or corrupted.
    pub fn histograms(&self, index: u32) -> Result<Vec<HistogramRecord>, ResultsError> {
        histograms::read(&self.path, &trial_below(index).join(histograms::FILE))
    }
}

/// A trial that is being written, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    /// Its position in the schedule.
    pub index: u32,
    /// The process that writes it.
    pub writer: u32,
    /// Where, until it is finished.
    pub path: PathBuf,
}

impl InFlight {
    /// Where it says of itself what it does: [`TrialWriter::events`].
    pub fn events(&self) -> PathBuf {
        self.path.join(EVENTS)
    }
}

/// One trial being written: nothing of it is visible until [`TrialWriter::finish`], and dropping
/// it unfinished removes it.
#[derive(Debug)]
pub struct TrialWriter {
    index: u32,
    trials: PathBuf,
    temporary: PathBuf,
    destination: PathBuf,
    placed: bool,
}

impl TrialWriter {
    /// The trial's position in the schedule.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The directory that is being filled; further files in it become part of the trial.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Starts `samples.parquet`. The writer may live on another thread; it must be finished
    /// before the trial is.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn samples(&self) -> Result<SampleWriter, ResultsError> {
        SampleWriter::create(&self.temporary.join("samples.parquet"))
    }

    /// Writes `latencies.hlog`.
    ///
    /// # Errors
    /// When an actor's or metric's name cannot be a tag, or the disk does not take the file.
    pub fn write_histograms(&self, records: &[HistogramRecord]) -> Result<(), ResultsError> {
        histograms::write(&self.temporary.join(histograms::FILE), records)
    }

    /// Keeps what the load generator printed, byte for byte, as `workload.json`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_workload_json(&self, raw: &[u8]) -> Result<(), ResultsError> {
        let file = self.temporary.join("workload.json");
        fs::write(&file, raw).map_err(ResultsError::io("write", &file))
    }

    /// The trial's log, opened for appending.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn log(&self) -> Result<File, ResultsError> {
        self.append("log")
    }

    /// What the trial says of itself as it goes on, JSON lines for whoever watches; opened for appending.
    /// It goes when the trial is finished: what lasts is in the other files.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn events(&self) -> Result<File, ResultsError> {
        self.append(EVENTS)
    }

    fn append(&self, name: &str) -> Result<File, ResultsError> {
        let file = self.temporary.join(name);
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&file)
            .map_err(ResultsError::io("open", &file))
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
        match fs::remove_file(self.temporary.join(EVENTS)) {
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                return Err(ResultsError::io("remove", &self.temporary.join(EVENTS))(
                    cause,
                ));
            }
            _ => {}
        }
        let file = self.temporary.join("trial.json");
        fs::write(&file, to_json(&file, &trial)?).map_err(ResultsError::io("write", &file))?;
        for entry in
            fs::read_dir(&self.temporary).map_err(ResultsError::io("list", &self.temporary))?
        {
            let entry = entry.map_err(ResultsError::io("list", &self.temporary))?;
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                sync(&entry.path())?;
            }
        }
        sync(&self.temporary)?;
        if self.destination.exists() {
            return Err(ResultsError::TrialExists(self.destination.clone()));
        }
        fs::rename(&self.temporary, &self.destination)
            .map_err(ResultsError::io("rename into place", &self.temporary))?;
        self.placed = true;
        sync(&self.trials)?;
        Ok(self.destination.clone())
    }
}

impl Drop for TrialWriter {
    fn drop(&mut self) {
        if !self.placed {
            // What cannot be removed now is removed by the next `resume`.
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// Reads the `trial.json` of a trial's directory, which is below that of the results.
pub(super) fn read_trial(results: &Path, below: &Path, index: u32) -> Result<Trial, ResultsError> {
    let directory = results.join(below);
    let file = directory.join("trial.json");
    let remedy = format!(
        "Move {} away and run the plan again on this directory: only that trial is repeated",
        directory.display()
    );
    let trial: Trial = match read_json(results, &below.join("trial.json"), &remedy) {
        Err(ResultsError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
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
    Ok(trial)
}

pub(super) fn trial_name(index: u32) -> String {
    format!("{index:04}")
}

/// Where a trial is below the results directory.
fn trial_below(index: u32) -> PathBuf {
    Path::new("trials").join(trial_name(index))
}

fn is_partial(name: &str) -> bool {
    name.starts_with('.') && name.contains(".partial-")
}

pub(super) fn sync(path: &Path) -> Result<(), ResultsError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(ResultsError::io("sync", path))
}

fn to_json(path: &Path, value: &impl serde::Serialize) -> Result<Vec<u8>, ResultsError> {
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|error| ResultsError::io("write", path)(std::io::Error::other(error)))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Writes beside, syncs, renames into place and syncs the parent: the file is there as a whole
/// or not at all.
///
/// # Errors
/// When the disk does not take it.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), ResultsError> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let name = path
        .file_name()
        .unwrap_or(OsStr::new("file"))
        .to_string_lossy();
    let temporary = directory.join(format!(".{name}.partial-{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        ResultsError::io("write", path)(error)
    })?;
    sync(directory)
}

/// What every record has, whatever else is in it.
#[derive(Deserialize)]
struct Format {
    #[serde(default)]
    format: u64,
}

fn read_json<T: DeserializeOwned>(
    directory: &Path,
    below: &Path,
    remedy: &str,
) -> Result<T, ResultsError> {
    let bytes = bounded::read(directory, below, MOST_BYTES)?;
    let path = &directory.join(below);
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
