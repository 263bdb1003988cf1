// SPDX-License-Identifier: Apache-2.0
//! The results directory of a run: a new one, or that of an unfinished run of the same plan.

use crate::LabError;
use crate::plan::{Order, schedule};
use sha2::{Digest, Sha256};
use std::path::Path;
use vtax_host::{Roots, facts};
use vtax_results::{FORMAT, ResultsDir, RunInfo, Scheduled, Treatment};

/// The description of a run that has no directory yet.
#[derive(Debug, Clone, Copy)]
pub struct NewRun<'a> {
    /// The text of the plan. Its digest identifies the plan of a directory, with that of its files.
    pub plan_text: &'a str,
    /// The digests of the files that the plan adds to images; empty without such files.
    pub files: &'a str,
    /// The plan's name.
    pub name: &'a str,
    /// The purpose of the plan.
    pub description: &'a str,
    /// Whether it has the durations of the quick profile.
    pub is_quick: bool,
    /// The place of the trials: `local`, `ssh:HOST`, …
    pub place: &'a str,
    /// The seed of the schedule.
    pub seed: u64,
    /// The number of blocks.
    pub repetitions: u32,
    /// The order of trials.
    pub order: Order,
    /// The smallest relative difference to report.
    pub minimum_effect: f64,
}

impl NewRun<'_> {
    /// Begins the run in a new or empty directory, or resumes it.
    ///
    /// # Errors
    /// When the directory holds a run of another plan, command or treatments, or something else, or
    /// cannot be read or written.
    pub fn open(
        &self,
        path: &Path,
        roots: &Roots,
        treatments: Vec<Treatment>,
    ) -> Result<ResultsDir, LabError> {
        if path.join("run.json").exists() {
            let results = ResultsDir::resume(path)?;
            self.check(&results, &treatments)?;
            if results.run().plan_sha256 != self.digest() {
                return Err(self.is_another(&results));
            }
            return Ok(results);
        }
        let run = RunInfo {
            format: FORMAT,
            name: self.name.to_owned(),
            description: self.description.to_owned(),
            seed: self.seed,
            profile: self.profile().to_owned(),
            place: self.place.to_owned(),
            started: jiff::Timestamp::now().to_string(),
            plan_sha256: self.digest(),
            schedule: schedule(treatments.len(), self.repetitions, self.order, self.seed),
            treatments,
            minimum_effect: self.minimum_effect,
            extended: false,
        };
        let facts = serde_json::to_value(facts::facts(roots, None))
            .map_err(|cause| LabError::other(cause.to_string()))?;
        Ok(ResultsDir::create(path, &run, self.plan_text, &facts)?)
    }

    /// Checks that the run of a directory can go on as this one, but for the plan's files, whose digests are known only when
    /// the images are there.
    ///
    /// # Errors
    /// When it is one of another plan, command or treatments, or was merged.
    pub fn check(&self, results: &ResultsDir, treatments: &[Treatment]) -> Result<(), LabError> {
        let run = results.run();
        if results.is_merged() {
            return Err(LabError::other(format!(
                "{} holds blocks of several machines, put together: what it lacks is run where they ran (vtax run --fleet), or into another directory and merged (vtax merge)",
                results.path().display()
            )));
        }
        if results.plan_text()? != self.plan_text || run.profile != self.profile() {
            return Err(self.is_another(results));
        }
        // The schedule refers to treatments by position.
        let same = |(begun, now): (&Treatment, &Treatment)| begun.label == now.label;
        if run.treatments.len() != treatments.len()
            || !run.treatments.iter().zip(treatments).all(same)
        {
            return Err(LabError::other(format!(
                "{} holds a run of other treatments of {}: another command or version of vtax began it, or before a program was installed or removed; give another directory with --results",
                results.path().display(),
                run.name
            )));
        }
        Ok(())
    }

    /// The trials of `more` blocks after those of a directory, in the order that a longer plan would have had.
    ///
    /// # Errors
    /// When the directory's blocks are not whole, or not in the plan's order.
    pub(super) fn after(
        &self,
        results: &ResultsDir,
        more: u32,
    ) -> Result<Vec<Scheduled>, LabError> {
        let run = results.run();
        let treatments = run.treatments.len();
        let blocks = run.schedule.len() / treatments.max(1);
        let all = u32::try_from(blocks)
            .unwrap_or(u32::MAX)
            .saturating_add(more);
        let all = schedule(treatments, all, self.order, self.seed);
        match all.strip_prefix(run.schedule.as_slice()) {
            Some(rest) => Ok(rest.to_vec()),
            None => Err(LabError::other(format!(
                "no blocks can be added to {}: its trials are in another order than those of its plan",
                results.path().display()
            ))),
        }
    }

    fn is_another(&self, results: &ResultsDir) -> LabError {
        let run = results.run();
        LabError::other(format!(
            "{} holds a run of another plan ({}, {} profile): give another directory with --results, or the plan that is in it{}",
            results.path().display(),
            run.name,
            run.profile,
            if self.files.is_empty() {
                ""
            } else {
                ", with the files that it had"
            }
        ))
    }

    /// The digest of the plan's text and of its files.
    fn digest(&self) -> String {
        let mut digest = Sha256::new_with_prefix(self.plan_text);
        digest.update(self.files);
        format!("{:x}", digest.finalize())
    }

    fn profile(&self) -> &'static str {
        if self.is_quick { "quick" } else { "full" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn treatments(labels: &[&str]) -> Vec<Treatment> {
        let treatment = |label: &&str| Treatment {
            label: (*label).to_owned(),
            platform: "native".to_owned(),
            workload: "idle".to_owned(),
            factors: BTreeMap::new(),
            baseline: None,
            platform_kind: "native".to_owned(),
            workload_kind: "idle".to_owned(),
        };
        labels.iter().map(treatment).collect()
    }

    #[test]
    fn a_run_goes_on_only_with_the_plan_and_the_treatments_that_it_began_with() {
        let folder = tempfile::tempdir().unwrap();
        let (path, roots) = (folder.path().join("results"), Roots::below(folder.path()));
        let files = std::cell::Cell::new("");
        let open = |plan_text: &str, labels: &[&str]| {
            let new = NewRun {
                plan_text,
                files: files.get(),
                name: "test",
                description: "",
                is_quick: false,
                place: "local",
                seed: 1,
                repetitions: 2,
                order: Order::Interleaved,
                minimum_effect: 0.02,
            };
            let opened = new.open(&path, &roots, treatments(labels));
            opened.map(|results| results.run().schedule.len())
        };
        // What a run leaves that is killed before its record is written.
        std::fs::create_dir_all(path.join("trials")).unwrap();
        std::fs::write(path.join("plan.toml"), "a plan").unwrap();
        assert_eq!(open("a plan", &["one", "two"]).unwrap(), 4);
        assert_eq!(open("a plan", &["one", "two"]).unwrap(), 4);
        let reported = |found: Result<usize, LabError>| found.unwrap_err().to_string();
        assert!(reported(open("a plan", &["two", "one"])).contains("other treatments"));
        assert!(reported(open("a plan", &["one"])).contains("other treatments"));
        assert!(reported(open("another", &["one", "two"])).contains("another plan"));
        // A record that was edited by hand, as the plan beside it, does not go on.
        for file in ["plan.toml", "run.json"] {
            let file = path.join(file);
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::write(&file, text.clone() + "\n").unwrap();
            let refused = reported(open("a plan", &["one", "two"]));
            assert!(refused.contains("changed after the run began"), "{refused}");
            std::fs::write(&file, text).unwrap();
        }
        assert_eq!(open("a plan", &["one", "two"]).unwrap(), 4);
        files.set("sha256:of another app");
        let refused = reported(open("a plan", &["one", "two"]));
        assert!(refused.contains("with the files that it had"), "{refused}");
    }
}
