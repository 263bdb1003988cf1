//! `idle`: no load at all. What a platform costs when it does nothing.

use super::driver::Passed;
use super::output::{json, positive, work};
use super::*;

/// See the module.
pub struct Idle;

impl Workload for Idle {
    fn kind(&self) -> &'static str {
        "idle"
    }

    fn summary(&self) -> &'static str {
        "the booted target does nothing"
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[]
    }

    fn load(
        &self,
        _address: IpAddr,
        _scratch: &Scratch,
        _settings: &Settings,
        _timing: Timing,
    ) -> Outcome<LoadCommand> {
        Ok(LoadCommand::client(Vec::new()))
    }

    fn parse(&self, raw: &[u8], _settings: &Settings, _timing: Timing) -> Outcome<WorkloadResult> {
        let passed: Passed = json("idle", raw)?;
        positive("idle", "seconds", Some(passed.seconds))?;
        let work = work(1.0, Base::Second, "stay idle for 1 s");
        Ok(WorkloadResult {
            work: Some(WorkDone::Rate(work)),
            ..WorkloadResult::default()
        })
    }
}
