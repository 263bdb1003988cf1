// SPDX-License-Identifier: Apache-2.0
//! The results directory: the whole record of a run, in open formats.
//!
//! ```text
//! plan.toml                    the plan as it was run
//! run.json                     format version, seed, profile, schedule
//! host.json                    hardware, kernel, versions, mitigations, clock source
//! SHA256SUMS                   digests of these three, as they were when the run began
//! machines.json                who ran which block, where several machines did
//! accepted.json                who accepted the run as the reference of later ones, and why
//! trials/0007/trial.json       one trial: treatment, timing, metrics, suspicion
//! trials/0007/samples.parquet  every sample: t_ns, owner, metric, unit, kind, source, value
//! trials/0007/latencies.hlog   distributions, an HdrHistogram interval log, where there are any
//! trials/0007/workload.json    what the load generator printed, untouched
//! trials/0007/log              the steps of the trial, and the guest's console
//! trials/0007/SHA256SUMS       digests of the trial's files
//! trials/0007.again-1/         an attempt that did not count and was run again; .failed-1 likewise
//! report.html, figures/*.vl.json
//! ```
//!
//! This crate alone knows the layout of the directory. [`stats`] are pure functions of the values in it; [`limit`] are
//! gates as they are written; [`numbers`] and [`text`] write values for people.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod accepted;
mod attempts;
mod checksums;
mod directory;
pub mod emulated;
mod error;
mod histograms;
mod hosts;
pub mod limit;
mod machines;
pub mod numbers;
mod pages;
mod plan;
pub mod power_model;
mod record;
mod samples;
pub mod stats;
pub mod text;
mod trial;

pub use accepted::Accepted;
pub use attempts::{Aside, Attempt};
pub use directory::{InFlight, ResultsDir, TrialWriter};
pub use error::ResultsError;
pub use histograms::HistogramRecord;
pub use hosts::{HostDifference, host_differences};
pub use machines::{Identities, Machine, Machines, Together, merge, together};
pub use plan::RunPlan;
pub use record::is_record;
pub use samples::{SampleReader, SampleSeriesId, SampleWriter, Samples};
pub use samples::{parquet_failed, write_column};
pub use trial::{
    Actor, Canary, IdleBin, IdleGaps, IdlePhase, Metric, ObjectiveOutcome, ObservationCost, Phase,
    PhaseTimes, Role, RunInfo, Scheduled, Speed, Treatment, Trial, TrialOutcome, Work,
    is_difference, offered_load,
};
pub use vtax_core::account::Stage;
pub use vtax_core::metric::Better;

/// Version of the results format. Readers refuse newer versions and read older ones. Since version 2 a trial has actors
/// and phases.
pub const FORMAT: u32 = 2;

// Names in the records of trials that their writer and their reader share.

/// Environment fact of a trial: the reason why soft interrupts were not traced.
pub const NOT_TRACED: &str = "charge.not_traced";
/// The setting that selects the methods of charging; as a factor of a treatment it measures the cost of tracing.
pub const CHARGE: &str = "observe.charge";
/// The factor that names the load of the guests beside the target.
pub const NEIGHBOURS: &str = "neighbours";
/// The factor that names the variant of what is measured: a version of a program, an image, or a set of settings.
pub const VARIANT: &str = "variant";
