// SPDX-License-Identifier: Apache-2.0
//! The common part of the platforms of VMs: the size of a guest, its agent and counters, and the VMM's process and
//! surroundings.

pub(super) mod agent;
pub(super) mod host;
pub mod inner;
pub(super) mod process;
pub(super) mod size;
pub(super) mod surroundings;
pub(super) mod wire;
