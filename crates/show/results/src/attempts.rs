// SPDX-License-Identifier: Apache-2.0
//! Repeated trials: sets an attempt aside, and reads earlier attempts.

use super::directory::{TRIALS, read_trial, trial_index, trial_name};
use super::{ResultsDir, ResultsError, Trial};
use std::path::{Path, PathBuf};

/// The reason for setting an attempt at a trial aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aside {
    /// It was suspect or damaged: `0007.again-1`.
    Again,
    /// It failed: `0007.failed-1`.
    Failed,
}

impl Aside {
    /// Name in the directory's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Again => "again",
            Self::Failed => "failed",
        }
    }

    /// Parses the suffix of a trial's directory name, such as `failed-1`.
    pub(super) fn parse(attempt: &str) -> Option<(Self, u32)> {
        let (kind, number) = attempt.rsplit_once('-')?;
        let aside = [Self::Again, Self::Failed]
            .into_iter()
            .find(|aside| aside.name() == kind)?;
        Some((aside, number.parse().ok()?))
    }
}

/// An earlier attempt at a trial, kept beside its replacement.
#[derive(Debug)]
pub struct Attempt {
    /// Position in the schedule.
    pub index: u32,
    /// Reason for setting it aside.
    pub aside: Aside,
    /// Number among the attempts of its kind, from 1.
    pub number: u32,
    /// Path of its directory.
    pub path: PathBuf,
    /// Its record, or the reason why that cannot be read.
    pub trial: Result<Trial, ResultsError>,
}

impl ResultsDir {
    /// Renames a trial's directory, so that the trial is pending again. Returns the new path.
    ///
    /// # Errors
    /// When there is no such trial, or the rename fails.
    pub fn set_aside(&self, index: u32, aside: Aside) -> Result<PathBuf, ResultsError> {
        let trials = self.dir().dir(TRIALS)?;
        let from = trial_name(index);
        let mut number = 1u32;
        loop {
            let kept = format!("{from}.{}-{number}", aside.name());
            match trials.rename_new(&from, &kept) {
                Err(error) if error.already_exists() => number = number.saturating_add(1),
                other => {
                    other?;
                    trials.sync()?;
                    return Ok(trials.path().join(kept));
                }
            }
        }
    }

    /// Every attempt that was set aside, by trial, kind and number.
    pub fn attempts(&self) -> Vec<Attempt> {
        let mut attempts: Vec<Attempt> = self
            .trial_entries()
            .iter()
            .filter_map(|entry| {
                let below = Path::new(TRIALS).join(&entry.name);
                let (name, kind) = entry.name.to_str()?.split_once('.')?;
                let index = trial_index(name)?;
                let (aside, number) = Aside::parse(kind)?;
                Some(Attempt {
                    index,
                    aside,
                    number,
                    trial: read_trial(self, &below, index),
                    path: self.path().join(below),
                })
            })
            .collect();
        attempts.sort_by_key(|attempt| (attempt.index, attempt.aside, attempt.number));
        attempts
    }

    /// Trials with an unreadable `trial.json`, samples or distributions, each with the reason. A trial in a newer
    /// format is not damaged.
    pub fn damaged(&self) -> Vec<(u32, ResultsError)> {
        let check = |index| -> Result<(), ResultsError> {
            self.trial(index)?;
            if self.has_samples(index) {
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
