// SPDX-License-Identifier: Apache-2.0
//! The scratch disk for disk workloads: an ext4 image with one big file of random data.

use crate::HostError;
use crate::command::need_program;
use crate::roots::PATH;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use vtax_core::SplitMix64;

/// The big file's name in the file system.
pub const DATA_FILE: &str = "vtax-disk-read";
/// The mount point of the file system in targets.
pub const MOUNT_POINT: &str = "/scratch";
const MIB: u64 = 1 << 20;

/// The image of a scratch disk whose [`DATA_FILE`] has `mib` MiB, in `folder`; created where it does not exist. The
/// data are random, so that no layer can skip or compress them.
///
/// # Errors
/// When `mke2fs` is missing or fails, or the disk is too full; no partial image is left.
pub fn image(folder: &Path, mib: u64) -> Result<PathBuf, HostError> {
    let path = folder.join(format!("scratch-{mib}.ext4"));
    if path.exists() {
        return Ok(path);
    }
    need_program("mke2fs", "e2fsprogs")?;
    fs::create_dir_all(folder).map_err(HostError::file("create", folder))?;
    // Room for the journal and metadata.
    let size_mib = mib.saturating_add(mib / 16).saturating_add(32);
    need_space(folder, mib.saturating_add(size_mib))?;
    let work = tempfile::Builder::new()
        .prefix(".scratch-")
        .tempdir_in(folder)
        .map_err(HostError::file("create a directory in", folder))?;
    let contents = work.path().join("contents");
    fs::create_dir(&contents).map_err(HostError::file("create", &contents))?;
    write_noise(&contents.join(DATA_FILE), mib)?;
    let new = work.path().join("image");
    let output = Command::new("mke2fs")
        .args([
            "-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-N", "1024",
        ])
        // Otherwise the kernel initialises the file system in the background during the trial.
        .args([
            "-E",
            "lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0",
            "-d",
        ])
        .arg(&contents)
        .arg(&new)
        .arg(format!("{size_mib}M"))
        // A user's own has no directories of administration.
        .env("PATH", PATH)
        .output()
        .map_err(HostError::process("start", "`mke2fs`"))?;
    if !output.status.success() {
        return Err(HostError::program(
            format!("mke2fs -d {} {}", contents.display(), new.display()),
            &output,
        ));
    }
    File::open(&new)
        .and_then(|file| file.sync_all())
        .map_err(HostError::file("write", &new))?;
    fs::rename(&new, &path).map_err(HostError::file("create", &path))?;
    Ok(path)
}

fn need_space(folder: &Path, mib: u64) -> Result<(), HostError> {
    let about = rustix::fs::statvfs(folder).map_err(|cause| HostError::File {
        action: "inspect",
        path: folder.to_owned(),
        cause: cause.into(),
    })?;
    let free = about.f_bavail.saturating_mul(about.f_frsize) / MIB;
    if free >= mib {
        return Ok(());
    }
    Err(HostError::Missing {
        what: format!(
            "room for a scratch disk, {mib} MiB in {} while it is made where {free} MiB are free,",
            folder.display()
        ),
        remedy: "make room, or ask for a smaller one in the plan".to_owned(),
    })
}

/// Writes pseudo-random data, the same each time.
fn write_noise(path: &Path, mib: u64) -> Result<(), HostError> {
    let mut file = vtax_files::create(path)?;
    let mut random = SplitMix64::new(0);
    let mut block = Vec::new();
    for _ in 0..mib {
        block.clear();
        for _ in 0..MIB / 8 {
            block.extend_from_slice(&random.bits().to_le_bytes());
        }
        file.write_all(&block)
            .map_err(HostError::file("write", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_image_is_made_once_and_leaves_nothing_else() {
        if need_program("mke2fs", "e2fsprogs").is_err() {
            eprintln!("SKIPPED: mke2fs is not installed (Debian package e2fsprogs)");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let first = image(folder.path(), 2).unwrap();
        let made = fs::metadata(&first).unwrap().modified().unwrap();
        assert_eq!(image(folder.path(), 2).unwrap(), first);
        assert_eq!(fs::metadata(&first).unwrap().modified().unwrap(), made);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let noise = tempfile::NamedTempFile::new().unwrap();
        write_noise(noise.path(), 2).unwrap();
        let bytes = fs::read(noise.path()).unwrap();
        assert_eq!(bytes.len(), 2 << 20);
        assert_ne!(bytes[..1 << 20], bytes[1 << 20..]);
        assert_eq!(bytes[..8], 0xe220_a839_7b1d_cdaf_u64.to_le_bytes());
    }

    #[test]
    fn a_disk_that_is_too_full_is_refused_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let message = image(folder.path(), 1 << 40).unwrap_err().to_string();
        assert!(
            message.contains("MiB are free") && message.contains("make room"),
            "{message}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
