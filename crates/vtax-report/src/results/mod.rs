//! The results directory: the whole record of a run, in open formats.
//!
//! ```text
//! plan.toml                    the plan as it was run
//! run.json                     format version, seed, profile, schedule
//! host.json                    hardware, kernel, versions, mitigations, clock source
//! trials/0007/trial.json       one trial: treatment, timing, metrics, suspicion
//! trials/0007/samples.parquet  every sample: t_ns, owner, metric, unit, kind, source, value
//! trials/0007/workload.json    what the load generator printed, untouched
//! trials/0007/log              what was done, and what the guest's console said
//! report.html, figures/*.vl.json
//! ```

mod directory;
mod error;
mod samples;
mod trial;

pub(crate) use directory::write_atomically;
pub use directory::{ResultsDir, TrialWriter};
pub use error::ResultsError;
pub(crate) use samples::write_column;
pub use samples::{SampleKind, SampleReader, SampleSeries, SampleSeriesId, SampleWriter, Samples};
pub use trial::{
    Actor, Better, Metric, ObjectiveOutcome, ObservationCost, Phase, PhaseTimes, Role, RunInfo,
    Scheduled, Treatment, Trial, TrialOutcome, Work,
};

/// Version of the results format; readers refuse a newer one, and read older ones. Since 2 a trial
/// has actors and phases.
pub const FORMAT: u32 = 2;
