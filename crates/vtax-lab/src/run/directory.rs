//! The results directory of a run: begun, or gone on with where an unfinished run of the same plan
//! is in it.

use crate::LabError;
use crate::plan::{Order, schedule};
use sha2::{Digest, Sha256};
use std::path::Path;
use vtax_host::{Roots, facts};
use vtax_report::results::{FORMAT, ResultsDir, RunInfo, Treatment};

/// What a run is, before it has a directory.
#[derive(Debug, Clone, Copy)]
pub struct NewRun<'a> {
    /// The plan as it is written; its digest tells whether a directory holds the same plan.
    pub plan_text: &'a str,
    /// The plan's name.
    pub name: &'a str,
    /// What the plan is for.
    pub description: &'a str,
    /// Whether durations are shrunk.
    pub is_quick: bool,
    /// Where the trials run: `local`, `ssh:HOST`, …
    pub place: &'a str,
    /// Of the schedule.
    pub seed: u64,
    /// How often each treatment runs.
    pub repetitions: u32,
    /// Of the trials.
    pub order: Order,
    /// A ratio this near to 1 is no effect.
    pub minimum_effect: f64,
}

impl NewRun<'_> {
    /// Begins the run in a new or empty directory, or goes on with it where it was begun.
    ///
    /// # Errors
    /// When the directory holds another plan's or command's run, or something else, or cannot be read or written.
    pub fn open(
        &self,
        path: &Path,
        roots: &Roots,
        treatments: impl FnOnce() -> Vec<Treatment>,
    ) -> Result<ResultsDir, LabError> {
        let profile = if self.is_quick { "quick" } else { "full" };
        let plan_sha256 = format!("{:x}", Sha256::digest(self.plan_text));
        if path.join("run.json").exists() {
            let results = ResultsDir::resume(path)?;
            let run = results.run();
            if run.plan_sha256 != plan_sha256 || run.profile != profile {
                return Err(LabError::other(format!(
                    "{} holds a run of another plan ({}, {} profile): give another directory with --results, or the plan that is in it",
                    path.display(),
                    run.name,
                    run.profile
                )));
            }
            let labels = |of: &[Treatment]| -> Vec<String> {
                of.iter().map(|treatment| treatment.label.clone()).collect()
            };
            if labels(&run.treatments) != labels(&treatments()) {
                return Err(LabError::other(format!(
                    "{} holds a run of other treatments of {}: another command began it, or this host offered something else then; give another directory with --results",
                    path.display(),
                    run.name
                )));
            }
            return Ok(results);
        }
        let occupied = path
            .read_dir()
            .is_ok_and(|mut entries| entries.next().is_some());
        if occupied {
            return Err(LabError::other(format!(
                "{} exists and holds no run of vtax: give an empty or new directory with --results",
                path.display()
            )));
        }
        let treatments = treatments();
        let run = RunInfo {
            format: FORMAT,
            name: self.name.to_owned(),
            description: self.description.to_owned(),
            seed: self.seed,
            profile: profile.to_owned(),
            place: self.place.to_owned(),
            started: jiff::Timestamp::now().to_string(),
            plan_sha256,
            schedule: schedule(treatments.len(), self.repetitions, self.order, self.seed),
            treatments,
            minimum_effect: self.minimum_effect,
        };
        let facts = serde_json::to_value(facts::facts(roots, None))
            .map_err(|cause| LabError::other(cause.to_string()))?;
        Ok(ResultsDir::create(path, &run, self.plan_text, &facts)?)
    }
}
