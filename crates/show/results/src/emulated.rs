// SPDX-License-Identifier: Apache-2.0
//! Names of environment facts of a trial in an emulated host, shared by their writers and readers.

/// The seed of the emulated host.
pub const SEED: &str = "testbed.seed";
/// Duration of an instruction in ns; only a deterministic host has one.
pub const INSTRUCTION_NS: &str = "testbed.instruction_ns";
/// Number of times that the host got stuck and the trial was restarted with another seed.
pub const STUCK: &str = "testbed.stuck";
/// The QEMU that emulates the host.
pub const QEMU: &str = "testbed.qemu";
/// Speed of the processors by frequency.
pub const FREQUENCY: &str = "testbed.frequency";
