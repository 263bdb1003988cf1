// SPDX-License-Identifier: Apache-2.0
//! The description of a machine for every VMM.

use std::path::PathBuf;

/// A machine to boot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// The kernel as an ELF file.
    pub kernel: PathBuf,
    /// Its initial RAM disk.
    pub initrd: PathBuf,
    /// Its command line.
    pub arguments: String,
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory, in MiB.
    pub memory_mib: u32,
    /// Its disks, `/dev/vda` first.
    pub disks: Vec<Disk>,
    /// Its network device.
    pub nic: Option<Nic>,
}

/// A disk: a raw image that the VMM reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Its image.
    pub path: PathBuf,
    /// Whether the VMM uses direct I/O where it can.
    pub direct: bool,
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// Its tap, which must exist.
    pub tap: String,
    /// Its MAC address.
    pub mac: String,
}
