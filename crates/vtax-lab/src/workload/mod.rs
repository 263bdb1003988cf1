//! Workloads: a service in the target and the load generator that drives it. One file each;
//! [`all`] registers them.

use crate::LabError;
use crate::cell::Client;
use crate::platform::Target;
use crate::settings::{Parameter, Settings};
use std::collections::BTreeMap;
use std::time::Duration;
use vtax_report::results::{Metric, Work};

/// Every workload, in the order of tables.
pub fn all() -> &'static [&'static dyn Workload] {
    &[]
}

/// How a trial's measured window ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// After the plan's duration; reported in watts and rates.
    FixedDuration,
    /// When the work is done; reported in joules and totals.
    ToCompletion,
}

/// The times of one trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Load runs this long before the measured window opens.
    pub warmup: Duration,
    /// The measured window of a fixed-duration workload.
    pub duration: Duration,
}

/// A load: a service, its driver and the reading of what the driver printed.
pub trait Workload: Sync {
    /// The name in plans: `iperf3-receive`, `http-rate`, `cpu`.
    fn kind(&self) -> &'static str;

    /// What it does, in one line.
    fn summary(&self) -> &'static str;

    /// What a plan may set for it; keys start with `load.`.
    fn parameters(&self) -> &'static [Parameter];

    /// How its measured window ends.
    fn extent(&self, settings: &Settings) -> Extent;

    /// The scratch disk it needs in the target, in MiB; 0 for none.
    fn scratch_mib(&self, _settings: &Settings) -> u64 {
        0
    }

    /// Starts the service inside the target and waits until it answers (from the client, where
    /// it listens on the network).
    ///
    /// # Errors
    /// When the service does not come up.
    fn serve(&self, target: &mut dyn Target, client: &Client, settings: &Settings) -> Result<(), LabError>;

    /// Starts the load: warm-up first, then the measured part. Returns at once.
    ///
    /// # Errors
    /// When the driver cannot be started.
    fn drive(
        &self,
        target: &mut dyn Target,
        client: &Client,
        settings: &Settings,
        timing: Timing,
    ) -> Result<Box<dyn Load>, LabError>;

    /// Reads what the driver printed. A pure function, tested on recorded and on garbage input.
    ///
    /// # Errors
    /// When it is not what the driver prints when all is well; the message quotes it.
    fn parse(&self, raw: &[u8], settings: &Settings, timing: Timing) -> Result<WorkloadResult, LabError>;
}

/// A load in progress.
pub trait Load {
    /// What the driver printed, once it has ended; `None` while it runs.
    ///
    /// # Errors
    /// When the driver or the service died, with what it said.
    fn poll(&mut self, target: &mut dyn Target) -> Result<Option<Vec<u8>>, LabError>;
}

/// What a workload found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkloadResult {
    /// The work done per second of the measured window (fixed duration) or in all (completion).
    pub work: Option<WorkDone>,
    /// Its metrics by stable name: `throughput`, `latency.p99`, `jitter`.
    pub metrics: BTreeMap<String, Metric>,
    /// Reasons not to trust this trial that only the load generator can see.
    pub suspect: Vec<String>,
}

/// The useful work, as a rate or a total.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkDone {
    /// Per second of the measured window.
    Rate(Work),
    /// In all.
    Total(Work),
}
