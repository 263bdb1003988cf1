// SPDX-License-Identifier: Apache-2.0
//! Emulated hosts with real hypervisors in them: QEMU emulates the machine, and Debian's kernel with KVM and vhost-net,
//! or Xen with a Linux Dom0, runs in it.
//!
//! [`build`] makes the host from a recipe. [`run_plan`] runs each trial of an unchanged plan in one, with this binary,
//! and fetches the results. [`cost`] computes the cycles and energy of real hardware from the counts. By default the
//! machine's clock is its instruction count, so that a plan gives the same numbers on any machine at any time. See
//! `docs/why/testbed.md`.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod cost;
pub mod emulator;
pub mod guard;
mod host;
mod hosts;
mod job;
mod link;
mod machine;
mod output_channel;
mod payload;
mod process;
mod pstates;
mod recipe;
mod scratch;
mod settings;
mod shell;
mod snapshot;
mod speed;
mod watchdog;

pub use host::{CachedHost, Host, available, build, cached, list, ready, remove};
pub use hosts::{PlanRun, run_plan};
pub use recipe::recipe;
pub use settings::{Frequency, Settings, SettingsError};
pub use shell::shell;
pub use speed::Speed;
pub use watchdog::watch;
