// SPDX-License-Identifier: Apache-2.0
//! The driver's side of vhost-user-net: traffic, a simulator of hold policies, and a front end that behaves like a
//! guest or injects faults.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod arrivals;
pub mod backend;
pub mod descriptor;
pub mod hostile;
pub mod load;
pub mod memory;
pub mod nic;
pub mod packed;
pub mod probe;
pub mod ring;
pub mod session;
pub mod simulation;
pub mod stream;
