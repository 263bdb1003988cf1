//! From a plan to trials to a results directory.
//!
//! `plan` says what to try, [`cell`] is the sandbox of one trial, a [`platform`] boots a target
//! in it, a [`workload`] drives the target, and the lab's run loop does that for every trial in
//! a seeded random order. See `docs/design.md`.

pub mod cell;
mod error;
pub mod image;
pub mod journal;
pub mod platform;
pub mod settings;
pub mod workload;

pub use error::LabError;
