//! Trials that were run again: setting an attempt aside, and reading those that were.

use super::directory::{read_trial, sync, trial_name};
use super::{ResultsDir, ResultsError, Trial};
use std::fs;
use std::path::PathBuf;

/// Why an attempt at a trial was set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aside {
    /// It was suspect or damaged: `0007.again-1`.
    Again,
    /// It failed: `0007.failed-1`.
    Failed,
}

impl Aside {
    /// As in the directory's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Again => "again",
            Self::Failed => "failed",
        }
    }

    /// What follows the trial in the directory's name, such as `failed-1`.
    pub(super) fn parse(attempt: &str) -> Option<(Self, u32)> {
        let (kind, number) = attempt.rsplit_once('-')?;
        let aside = [Self::Again, Self::Failed]
            .into_iter()
            .find(|aside| aside.name() == kind)?;
        Some((aside, number.parse().ok()?))
    }
}

/// An earlier attempt at a trial, kept beside the one that replaced it.
#[derive(Debug)]
pub struct Attempt {
    /// The trial's position in the schedule.
    pub index: u32,
    /// Why it was set aside.
    pub aside: Aside,
    /// Which of its kind it was, from 1.
    pub number: u32,
    /// Where it is kept.
    pub path: PathBuf,
    /// What it found, or why that cannot be read.
    pub trial: Result<Trial, ResultsError>,
}

impl ResultsDir {
    /// Keeps a trial's directory under another name, so that the trial is pending again. Returns
    /// where it is kept.
    ///
    /// # Errors
    /// When there is no such trial, or the disk refuses.
    pub fn set_aside(&self, index: u32, aside: Aside) -> Result<PathBuf, ResultsError> {
        let from = self.trial_path(index);
        let kept = (1u32..)
            .map(|number| from.with_extension(format!("{}-{number}", aside.name())))
            .find(|candidate| !candidate.exists())
            .unwrap_or_else(|| from.with_extension(aside.name()));
        fs::rename(&from, &kept).map_err(ResultsError::io("set aside", &from))?;
        sync(&self.path().join("trials"))?;
        Ok(kept)
    }

    /// Every attempt that was set aside, by trial, kind and number.
    pub fn attempts(&self) -> Vec<Attempt> {
        let Ok(entries) = fs::read_dir(self.path().join("trials")) else {
            return Vec::new();
        };
        let mut attempts: Vec<Attempt> = entries
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                let (name, kind) = path.file_name()?.to_str()?.split_once('.')?;
                let index: u32 = name.parse().ok()?;
                let (aside, number) = Aside::parse(kind)?;
                (trial_name(index) == name).then_some(())?;
                Some(Attempt {
                    index,
                    aside,
                    number,
                    trial: read_trial(self.path(), path.strip_prefix(self.path()).ok()?, index),
                    path,
                })
            })
            .collect();
        attempts.sort_by_key(|attempt| (attempt.index, attempt.aside, attempt.number));
        attempts
    }

    /// Trials whose `trial.json`, samples or distributions cannot be read, each with the reason. One
    /// that a newer vtax wrote is not damaged.
    pub fn damaged(&self) -> Vec<(u32, ResultsError)> {
        let check = |index| -> Result<(), ResultsError> {
            self.trial(index)?;
            if self.trial_path(index).join("samples.parquet").exists() {
                self.samples(index)?.check()?;
            }
            self.histograms(index)?;
            Ok(())
        };
        self.trial_indexes()
            .into_iter()
            .filter_map(|index| Some((index, check(index).err()?)))
            .filter(|(_, error)| !matches!(error, ResultsError::NewerFormat { .. }))
            .collect()
    }
}
