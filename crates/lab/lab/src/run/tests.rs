// SPDX-License-Identifier: Apache-2.0
//! The run loop with an experiment that needs nothing of the host.

use super::*;
use crate::plan::Order;
use std::collections::VecDeque;
use std::fs;
use vtax_results::Aside;

/// How a trial is to end.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Well,
    Suspect,
    Disturbed,
    Failed,
}

/// Two treatments, whose trials end in a given order of outcomes.
struct Scripted {
    ends: VecDeque<End>,
    again: f64,
    ran: Vec<u32>,
}

impl Scripted {
    fn new(ends: &[End], again: f64) -> Self {
        Self {
            ends: ends.iter().copied().collect(),
            again,
            ran: Vec::new(),
        }
    }
}

impl Experiment for Scripted {
    fn new_run(&self) -> NewRun<'_> {
        NewRun {
            plan_text: "example",
            files: "",
            name: "example",
            description: "",
            is_quick: false,
            place: "local",
            seed: 1,
            repetitions: 3,
            order: Order::Sequential,
            minimum_effect: 0.02,
        }
    }

    fn treatments(&self) -> Vec<Treatment> {
        let treatment = |label: &str| Treatment {
            label: label.to_owned(),
            platform: "native".to_owned(),
            workload: "idle".to_owned(),
            factors: BTreeMap::new(),
            baseline: None,
            platform_kind: "native".to_owned(),
            workload_kind: "idle".to_owned(),
        };
        ["a", "b"].map(treatment).to_vec()
    }

    fn again(&self) -> f64 {
        self.again
    }

    fn prepare(&mut self, _note: &mut dyn FnMut(String)) -> Result<(), LabError> {
        Ok(())
    }

    fn expected(&self, _treatment: usize) -> Duration {
        Duration::from_secs(1)
    }

    fn perform(
        &mut self,
        assignment: Assignment,
        _journal: &mut Journal,
        writer: &TrialWriter,
        _log: &mut Log<'_>,
        trial: &mut Trial,
    ) -> Result<(), LabError> {
        self.ran.push(assignment.index);
        writer.samples()?.finish()?;
        match self.ends.pop_front().unwrap_or(End::Well) {
            End::Well => Ok(()),
            End::Suspect => {
                trial.suspect.push("somebody else worked".to_owned());
                Ok(())
            }
            End::Disturbed => {
                trial.disturbed.push("somebody else worked".to_owned());
                Ok(())
            }
            End::Failed => Err(LabError::other("it did not boot")),
        }
    }
}

/// How far the run was after each trial.
#[derive(Default)]
struct Counted(Vec<(usize, usize)>);

impl Progress for Counted {
    fn event(&mut self, event: Event) {
        if let Event::TrialFinished(over) = event {
            self.0.push((over.done, over.of));
        }
    }
}

struct Bench {
    folder: tempfile::TempDir,
    signals: Signals,
}

impl Bench {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            signals: Signals::install().unwrap(),
        }
    }

    fn run(&self, script: &mut Scripted) -> Result<(ResultsDir, RunSummary), LabError> {
        self.run_counted(script, &mut Counted::default())
    }

    fn run_counted(
        &self,
        script: &mut Scripted,
        counted: &mut Counted,
    ) -> Result<(ResultsDir, RunSummary), LabError> {
        let options = RunOptions {
            results: self.folder.path().join("results"),
            shard: None,
            waits: false,
            state_dir: self.folder.path().join("state"),
            place: "local".to_owned(),
            // Tests do not wait for a quiet host.
            host: Source::Simulated,
            own: None,
            knows: None,
            more: 0,
        };
        run_experiment(script, &options, &self.signals, counted)
    }
}

use End::{Disturbed, Failed, Suspect, Well};

#[test]
fn a_trial_that_does_not_count_comes_again_at_the_end_of_its_block_and_is_kept() {
    let bench = Bench::new();
    let mut script = Scripted::new(&[Suspect, Well, Well], 0.5);
    let (results, summary) = bench.run(&mut script).unwrap();
    assert_eq!(script.ran, [0, 1, 0, 2, 3, 4, 5]);
    assert_eq!((summary.ran, summary.failed), (7, 0));
    assert!(results.trial(0).unwrap().suspect.is_empty());
    let kept = results.attempts();
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].index, kept[0].aside), (0, Aside::Again));
    assert_eq!(kept[0].trial.as_ref().unwrap().suspect.len(), 1);
}

#[test]
fn a_disturbed_trial_counts_and_does_not_come_again() {
    let bench = Bench::new();
    let mut script = Scripted::new(&[Disturbed; 6], 0.5);
    let (results, _) = bench.run(&mut script).unwrap();
    assert_eq!(script.ran, [0, 1, 2, 3, 4, 5]);
    let trial = results.trial(0).unwrap();
    assert_eq!((trial.suspect.len(), trial.disturbed.len()), (0, 1));
}

#[test]
fn progress_counts_trials_of_the_schedule_and_a_trial_that_comes_again_once() {
    let mut counted = Counted::default();
    let mut script = Scripted::new(&[Suspect, Well, Suspect], 0.5);
    Bench::new().run_counted(&mut script, &mut counted).unwrap();
    let expected = [0, 1, 1, 2, 3, 4, 5, 6].map(|done| (done, 6));
    assert_eq!(counted.0, expected);
}

#[test]
fn no_more_than_the_share_runs_again_and_no_trial_more_than_three_times() {
    let ran = |share| {
        let mut script = Scripted::new(&[Suspect; 40], share);
        Bench::new().run(&mut script).unwrap();
        script.ran.len()
    };
    assert_eq!(ran(0.0), 6);
    assert_eq!(ran(0.5), 9);
    assert_eq!(ran(10.0), 18);
}

#[test]
fn what_an_earlier_run_left_suspect_or_damaged_runs_again_and_what_counts_does_not() {
    let bench = Bench::new();
    let (results, _) = bench.run(&mut Scripted::new(&[Suspect], 0.0)).unwrap();
    fs::write(results.trial_path(3).join("trial.json"), "{ torn").unwrap();
    let mut again = Scripted::new(&[], 0.5);
    let (results, summary) = bench.run(&mut again).unwrap();
    assert_eq!(again.ran, [0, 3]);
    assert_eq!(summary.already, 4);
    assert!(results.damaged().is_empty());
    let mut kept: Vec<u32> = results.attempts().iter().map(|kept| kept.index).collect();
    kept.sort_unstable();
    assert_eq!(kept, [0, 3]);
    let mut once_more = Scripted::new(&[], 0.5);
    bench.run(&mut once_more).unwrap();
    assert!(once_more.ran.is_empty());
}

#[test]
fn a_damaged_record_is_replaced_whatever_the_share_is() {
    let bench = Bench::new();
    let (results, _) = bench.run(&mut Scripted::new(&[Suspect], 0.0)).unwrap();
    fs::write(results.trial_path(3).join("trial.json"), "{ torn").unwrap();
    let mut resumed = Scripted::new(&[], 0.0);
    let (results, _) = bench.run(&mut resumed).unwrap();
    assert_eq!(resumed.ran, [3]);
    assert!(results.damaged().is_empty());
}

#[test]
fn two_failures_of_one_treatment_in_a_row_end_the_run_and_lose_nothing() {
    let bench = Bench::new();
    let mut script = Scripted::new(&[Well, Failed, Failed], 0.5);
    let Err(cause) = bench.run(&mut script) else {
        panic!("the run went on");
    };
    let message = cause.to_string();
    assert!(message.contains("b failed 2 times in a row"), "{message}");
    assert_eq!(script.ran, [0, 1, 1]);
    // A resumed run repeats failed trials, whatever the share is.
    let mut resumed = Scripted::new(&[], 0.0);
    let (results, summary) = bench.run(&mut resumed).unwrap();
    assert_eq!(resumed.ran, [1, 2, 3, 4, 5]);
    assert_eq!(summary.failed, 0);
    assert_eq!(results.attempts().len(), 2);
}

/// The lines of the log of a run, without their module.
fn logged(run: impl FnOnce()) -> Vec<String> {
    let logged = vtax_log::testing::logged(run);
    let lines = logged.lines().map(|line| {
        let (module, text) = line.split_once(": ").unwrap();
        let priority = module.split_once('>').unwrap().0;
        format!("{priority}>{text}")
    });
    lines.collect()
}

#[test]
fn the_log_has_the_start_each_failure_and_retry_and_the_end_of_a_run() {
    let bench = Bench::new();
    let lines = logged(|| {
        drop(
            bench
                .run(&mut Scripted::new(&[Failed, Suspect], 0.5))
                .unwrap(),
        )
    });
    let results = bench.folder.path().join("results");
    let expected = [
        format!(
            "<6>the run of example begins at local into {}: 6 trials to run, 0 finished",
            results.display()
        ),
        "<7>trial 0000 of block 1 begins: a".to_owned(),
        "<4>trial 0000, a, failed: it did not boot".to_owned(),
        "<6>trial 0001, b, is suspect: somebody else worked".to_owned(),
        "<6>trial 0000 runs again: it failed: it did not boot".to_owned(),
        "<6>trial 0001 runs again: somebody else worked".to_owned(),
        "<6>the run of example has ended: 8 trials ran, 0 were finished, 0 failed".to_owned(),
    ];
    let mut left = lines.iter();
    for line in &expected {
        assert!(left.any(|logged| logged == line), "{line}: {lines:#?}");
    }
}

#[test]
fn the_log_says_why_a_run_is_refused_or_ends_early_and_what_does_not_run_again() {
    let bench = Bench::new();
    let state = bench.folder.path().join("state");
    let lock = Lock::acquire(&state, "running another plan").unwrap();
    let refused = logged(|| {
        let _ = bench.run(&mut Scripted::new(&[], 0.5)).unwrap_err();
    });
    // A process that another test has just forked may still hold it: the other runs have states of their own.
    drop(lock);
    let is = |lines: &[String], start: &str| lines.iter().any(|line| line.starts_with(start));
    let busy = "<4>the run of example is refused: another vtax run is on this host (process ";
    assert!(is(&refused, busy), "{refused:#?}");
    let bench = Bench::new();
    let ended = logged(|| {
        let _ = bench.run(&mut Scripted::new(&[Well, Failed, Failed], 0.5));
    });
    let early = "<3>the run of example ends early: b failed 2 times in a row";
    assert!(is(&ended, early), "{ended:#?}");
    let bench = Bench::new();
    let suspect = logged(|| drop(bench.run(&mut Scripted::new(&[Suspect], 0.0)).unwrap()));
    let kept = "<4>trial 0000 does not count and does not run again";
    assert!(is(&suspect, kept), "{suspect:#?}");
}
