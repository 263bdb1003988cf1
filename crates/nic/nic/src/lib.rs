// SPDX-License-Identifier: Apache-2.0
//! A vhost-user network backend that merges notifications within a latency budget.
//!
//! Of vtax's crates it needs those of `crates/base` alone. `docs/components/nic.md` is its manual.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]
#![deny(unsafe_code)]

pub mod cli;
pub mod config;
pub mod config_space;
pub mod control;
pub mod datapath;
pub mod features;
pub mod frame;
pub mod front_end;
#[cfg(any(test, feature = "fuzzing"))]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a fuzzer reports what panics"
)]
pub mod fuzz;
pub mod hold;
#[allow(unsafe_code, reason = "requests of devices that no library has")]
mod ioctl;
#[allow(unsafe_code, reason = "maps and touches what front ends share")]
pub mod memory;
pub mod network;
pub mod poller;
pub mod protocol;
#[allow(unsafe_code, reason = "reads and writes rings in guest memory")]
pub mod ring;
pub mod sandbox;
pub mod serve;
#[allow(unsafe_code, reason = "system calls that no library has")]
pub mod signal;
pub mod telemetry;
#[cfg(any(test, feature = "fuzzing"))]
#[allow(
    unsafe_code,
    clippy::unwrap_used,
    reason = "writes guest memory as a guest does; a test that cannot go on fails"
)]
#[cfg_attr(not(test), allow(dead_code, reason = "fuzzers use part of it"))]
mod testing;
#[allow(unsafe_code, reason = "requests of a device that no library has")]
pub mod vhost_net;
pub mod worker;
