//! From a plan to trials to a results directory.
//!
//! `plan` says what to try, [`cell`] is the sandbox of one trial, a [`platform`] boots a target
//! in it, a [`workload`] drives the target, and the lab's run loop does that for every trial in
//! a seeded random order. See `docs/design.md`.

pub mod cell;
pub mod doctor;
mod error;
#[cfg(test)]
mod fake_host;
pub mod host;
pub mod host_settings;
pub mod image;
pub mod journal;
pub mod load;
pub mod lock;
pub mod place;
pub mod plan;
pub mod platform;
pub mod roots;
pub mod run;
pub mod settings;
pub mod signals;
pub mod suspect;
pub mod workload;

pub use error::LabError;
pub use roots::Roots;
