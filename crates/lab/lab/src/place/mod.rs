// SPDX-License-Identifier: Apache-2.0
//! Places of a run: this host, another one through ssh, or an emulated one; and actors on other hosts.

pub mod actor;
pub mod clocks;
pub(crate) mod name;
mod remote;
mod ssh;

pub use name::{Hypervisor, Place, PlaceError};
pub use ssh::{Line, SshRun, ask_over_ssh, run_over_ssh};
