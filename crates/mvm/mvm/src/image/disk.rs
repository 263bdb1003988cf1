// SPDX-License-Identifier: Apache-2.0
//! A boot sector as a disk image for QEMU and OpenStack.

use super::Image;
use crate::error::{Error, Result, start_problem};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Cloud tools round disks up to whole megabytes and refuse smaller ones, so the file is 1 MiB.
const DISK_BYTES: u64 = 1 << 20;

/// A disk file's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DiskFormat {
    /// The 512 bytes alone.
    Sector,
    /// The boot sector and zeros, 1 MiB.
    Raw,
    /// The boot sector and zeros as a QEMU copy-on-write image, written by qemu-img.
    Qcow2,
}

/// Writes the image as a disk file. The file is complete or absent.
///
/// # Errors
/// [`Error::File`] when `path` cannot be written; [`Error::Program`] when qemu-img is missing or fails.
pub fn write_disk(image: &Image, format: DiskFormat, path: &Path) -> Result<()> {
    let folder = crate::folder(path);
    let failed = Error::file("write", path);
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(image.bytes()).map_err(failed)?;
    if format != DiskFormat::Sector {
        file.as_file().set_len(DISK_BYTES).map_err(failed)?;
    }
    if format == DiskFormat::Qcow2 {
        let converted = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        convert(file.path(), converted.path())?;
        fs::File::open(converted.path())
            .and_then(|f| f.sync_all())
            .map_err(failed)?;
        file = converted;
    }
    file.persist(path).map_err(|e| failed(e.error))?;
    Ok(())
}

/// Converts a raw disk to QEMU's format.
fn convert(raw: &Path, converted: &Path) -> Result<()> {
    let run = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .arg(raw)
        .arg(converted)
        .output();
    let remedy = "install Debian package qemu-utils, or write format raw";
    let run = run.map_err(|cause| Error::program("qemu-img", start_problem(&cause), remedy))?;
    if run.status.success() {
        return Ok(());
    }
    let problem = String::from_utf8_lossy(&run.stderr);
    let remedy = "write format raw, which needs no other program";
    Err(Error::program("qemu-img", problem.trim(), remedy))
}
