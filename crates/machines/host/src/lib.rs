// SPDX-License-Identifier: Apache-2.0
//! Facts about the host, changes to the host, and the restoration of its state.
//!
//! [`facts`] and [`Roots`] read the host; [`knobs`] and [`cell`] change it. Each change is written to the
//! [`journal`] before it is made. [`lock`] excludes a second lab. A [`cell`] is the sandbox of one trial: every
//! resource that the kernel can free by itself is tied to the cell's holder process.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod canary;
pub mod cell;
pub mod command;
mod error;
pub mod facts;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::disallowed_methods, reason = "it makes the trees of tests")]
pub mod fake_host;
pub mod journal;
pub mod kernel_file;
pub mod knobs;
pub mod lock;
pub mod loop_device;
pub mod meters;
pub mod rootless;
pub mod scratch;
pub mod settings;
pub mod signals;
pub mod untrusted;
pub mod virsh;
pub mod wait;
pub mod xenapi;
pub mod xentrace;
pub mod xl;

pub use error::HostError;
pub use vtax_observe::roots::{self, Roots};
