//! The record of a study: what was charged in each measurement, as it was read. Everything else is
//! computed from it, so that other weights need no other run.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use vtax_host::HostError;
use vtax_units::{Nanoseconds, Source};

/// The file of a study in its directory.
pub const FILE: &str = "accuracy.json";

/// A study of one or several platforms on one host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// The plan's name.
    pub name: String,
    /// Where it ran: `local`, `testbed:kvm`.
    pub place: String,
    /// Whether that is a real or an emulated host.
    pub source: Source,
    /// The host's kernel.
    pub kernel: String,
    /// Its processors.
    pub processors: usize,
    /// What was missing, in words.
    pub notes: Vec<String>,
    /// By platform, in the plan's order.
    pub platforms: Vec<PlatformStudy>,
}

/// The measurements of one platform.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlatformStudy {
    /// Its name in the plan.
    pub name: String,
    /// The two loads that ran alone and together, by name.
    pub pair: [String; 2],
    /// In the order in which they ran.
    pub measurements: Vec<Measurement>,
    /// What tracing itself costs; `None` where it does not work.
    pub monitor: Option<MonitorCost>,
}

/// The host's busy time for a load, without tracing and with it, in nanoseconds for a unit of work,
/// one for each block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MonitorCost {
    /// The load.
    pub load: String,
    /// Without.
    pub without: Vec<f64>,
    /// With.
    pub with: Vec<f64>,
}

/// One interval under steady load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The repetition.
    pub block: u32,
    /// The guests that were there, with or without load.
    pub guests: Vec<GuestCharge>,
    /// The interval's length.
    pub span: Nanoseconds,
    /// What all of the host's processors did.
    pub total: Nanoseconds,
    /// The kernel's own account of soft interrupts.
    pub softirq: Nanoseconds,
    /// Packets that were no guest's.
    pub host_packets: u64,
    /// Runs of soft interrupts for no I/O.
    pub other_softirqs: u64,
    /// What each method charged to the host itself, by method: tasks, and soft interrupts.
    pub host: BTreeMap<String, [Nanoseconds; 2]>,
    /// What each method left unattributed.
    pub unattributed: BTreeMap<String, Nanoseconds>,
}

/// What one guest was charged in an interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GuestCharge {
    /// The load that is this guest's.
    pub load: String,
    /// The work that its load generator saw done in a second, while the load ran.
    pub work: Option<f64>,
    /// Packets that it received.
    pub received: u64,
    /// Packets that it sent.
    pub sent: u64,
    /// Bytes in both directions.
    pub bytes: u64,
    /// Block requests.
    pub block_requests: u64,
    /// What the kernel books on its threads and processes: what dividing by processes sees.
    pub booked: Nanoseconds,
    /// By method, by stage.
    pub charged: BTreeMap<String, BTreeMap<String, Nanoseconds>>,
}

impl GuestCharge {
    /// All that a method charged to it.
    pub fn total(&self, method: &str) -> Option<Nanoseconds> {
        let stages = self.charged.get(method)?;
        let sum = stages
            .values()
            .fold(0u64, |sum, time| sum.saturating_add(time.0));
        Some(Nanoseconds(sum))
    }

    /// A stage of it.
    pub fn stage(&self, method: &str, stage: &str) -> Nanoseconds {
        let stages = self.charged.get(method);
        let time = stages.and_then(|stages| stages.get(stage)).copied();
        time.unwrap_or(Nanoseconds(0))
    }
}

impl Measurement {
    /// The loads that ran.
    pub fn running(&self) -> impl Iterator<Item = &GuestCharge> {
        self.guests.iter().filter(|guest| guest.work.is_some())
    }

    /// What all of the host's processors did for a unit of the work that was done, in nanoseconds;
    /// `None` without work.
    #[allow(
        clippy::cast_precision_loss,
        reason = "an interval's nanoseconds are below 2^53"
    )]
    pub fn host_cost_of_work(&self) -> Option<f64> {
        let rate: f64 = self.running().filter_map(|guest| guest.work).sum();
        let work = rate * self.span.as_secs_f64();
        (work > 0.0).then(|| self.total.0 as f64 / work)
    }

    /// A guest by its load.
    pub fn guest(&self, load: &str) -> Option<&GuestCharge> {
        self.guests.iter().find(|guest| guest.load == load)
    }
}

impl Study {
    /// Reads the study in a directory.
    ///
    /// # Errors
    /// When there is none, or it is not one.
    pub fn read(directory: &Path) -> Result<Self, HostError> {
        let path = directory.join(FILE);
        let text = fs::read_to_string(&path).map_err(HostError::file("read", &path))?;
        serde_json::from_str(&text).map_err(|cause| HostError::Invalid {
            what: format!("the study {}", path.display()),
            problem: cause.to_string(),
        })
    }

    /// Writes it into a directory, which is made.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), HostError> {
        let path = directory.join(FILE);
        fs::create_dir_all(directory).map_err(HostError::file("create", directory))?;
        let text = serde_json::to_string_pretty(self)
            .map_err(|cause| HostError::Other(format!("cannot write the study: {cause}")))?;
        fs::write(&path, text).map_err(HostError::file("write", &path))
    }
}
