// SPDX-License-Identifier: Apache-2.0
//! `idle`: no load, for the cost of an idle platform.

use super::driver::Elapsed;
use super::output::{json, positive, work};
use super::*;

/// The workload.
pub struct Idle;

static ABOUT: About = About {
    kind: "idle",
    summary: "the booted target does nothing",
    parameters: &[],
    ..About::NONE
};

impl Workload for Idle {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn load(&self, _: LoadSpec) -> Outcome<LoadCommand> {
        Ok(LoadCommand::client(Vec::new()))
    }

    fn parse(&self, raw: &[u8], _settings: &Settings, _timing: Timing) -> Outcome<WorkloadResult> {
        let passed: Elapsed = json("idle", raw)?;
        positive("idle", "seconds", Some(passed.seconds))?;
        let work = work(1.0, Base::Second, "stay idle for 1 s");
        Ok(WorkloadResult {
            work: Some(WorkDone::Rate(work)),
            ..WorkloadResult::default()
        })
    }
}
