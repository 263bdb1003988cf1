// SPDX-License-Identifier: Apache-2.0
//! Counters of a host: CPU time by owner, interrupts, devices and hardware counters, all read on one monotonic clock by
//! one thread.
//!
//! The flow: [`counters`] and the meters of `vtax-meter` are *instruments*; an [`Observer`] reads every instrument once per
//! period on a thread of its own and passes each reading to a [`Sink`]. [`Observer::mark`] takes an extra reading
//! immediately, and the difference of two marks is the cost of a trial. See `docs/reference/observe.md`.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod bpf;
pub mod clock;
pub mod counters;
mod error;
mod namespace;
mod observer;
mod reading;
pub mod roots;
mod subject;

pub use error::ObserveError;
pub use namespace::NamespaceAccount;
pub use observer::{Observer, ObserverConfig, ObserverReport};
pub use reading::{Instrument, Readings, SeriesId, Sink, Snapshot};
pub use roots::Roots;
pub use subject::{NetDevice, Subject};
