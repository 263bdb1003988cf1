// SPDX-License-Identifier: Apache-2.0
//! Reads Linux's `/proc` and control groups: one parser for each file, typed values.
//!
//! Parsers take the text of a file as bytes, so that single reads and files that stay open ([`KernelFile`]) share
//! them. They are total: for any content, they return values or `None`. Functions that open files take the root of
//! the tree (`/proc`, a group's directory), so that tests run on fake trees.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod cgroup;
mod cpu_table;
mod error;
pub mod file;
mod memory;
pub mod mounts;
mod net_dev;
mod process;
pub mod stat;
pub mod text;

pub use cpu_table::{CpuRow, cpu_columns, cpu_rows};
pub use error::KernelError;
pub use file::{KernelFile, read};
pub use memory::MemInfo;
pub use net_dev::{NetDevice, Traffic, net_devices};
pub use process::{CpuSplit, Process, ProcessStat, namespace_numbers, numbered};

use vtax_core::Nanoseconds;

/// The unit in which the kernel prints CPU time: USER_HZ is 100 on every architecture but Alpha and IA-64
/// (`asm-generic/param.h`).
pub const TICK: Nanoseconds = Nanoseconds(10_000_000);

/// Converts ticks to time.
pub(crate) fn of_ticks(ticks: u64) -> Nanoseconds {
    Nanoseconds(ticks.saturating_mul(TICK.0))
}
