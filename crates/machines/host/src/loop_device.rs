// SPDX-License-Identifier: Apache-2.0
//! Loop devices: disk images as block devices.

use crate::HostError;
use crate::command::plain;
use crate::wait::holds_within;
use crate::xl;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for a device's release after its last user is gone.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// A disk image as a block device, which the kernel frees with its last user.
#[derive(Debug)]
pub struct Loop {
    /// The device's path, such as `/dev/loop3`.
    pub device: PathBuf,
    /// Whether the device bypasses the page cache of Dom0.
    pub direct: bool,
}

impl Loop {
    /// Attaches an image, with direct I/O where its file system supports it.
    ///
    /// # Errors
    /// When `losetup` fails.
    pub fn attach(image: &Path) -> Result<Self, HostError> {
        let mut direct = true;
        let device = losetup(&["--find", "--show", "--direct-io=on"], image).or_else(|_| {
            direct = false;
            losetup(&["--find", "--show"], image)
        })?;
        Ok(Self {
            device: PathBuf::from(device.trim_end()),
            direct,
        })
    }

    /// Detaches the device; the kernel frees it once its present users close it.
    ///
    /// # Errors
    /// When `losetup` fails.
    pub fn release(&self) -> Result<(), HostError> {
        losetup(&["--detach"], &self.device).map(drop)
    }

    /// The device's kernel name, such as `loop3`.
    pub fn kernel_name(&self) -> String {
        kernel_name(&self.device)
    }
}

/// The kernel name of a device.
pub(crate) fn kernel_name(device: &Path) -> String {
    device
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Frees the loop devices that an image still has, for a domain that outlived its vtax process.
///
/// # Errors
/// When `losetup` fails.
pub fn release_image(image: &Path) -> Result<(), HostError> {
    for device in attached_to(image) {
        losetup(&["--detach"], &Path::new("/dev").join(device))?;
    }
    Ok(())
}

fn losetup(options: &[&str], file: &Path) -> Result<String, HostError> {
    let mut command = plain("losetup");
    command.args(options).arg(file);
    let what = format!("losetup {} {}", options.join(" "), file.display());
    xl::output(command, &what)
}

/// The devices that an image is attached to, on the whole host.
pub fn attached_to(image: &Path) -> Vec<String> {
    let Ok(image) = image.canonicalize() else {
        return Vec::new();
    };
    let Ok(devices) = fs::read_dir("/sys/block") else {
        return Vec::new();
    };
    devices
        .flatten()
        .filter(|device| {
            fs::read_to_string(device.path().join("loop/backing_file"))
                .is_ok_and(|file| Path::new(file.trim_end()) == image)
        })
        .map(|device| device.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Waits until no device holds the image.
///
/// # Errors
/// The devices that still hold it.
pub fn wait_released(image: &Path) -> Result<(), HostError> {
    let mut devices = Vec::new();
    let is_released = || {
        devices = attached_to(image);
        devices.is_empty()
    };
    if holds_within(RELEASE_LIMIT, Duration::from_millis(2), is_released) {
        return Ok(());
    }
    let devices = devices.join(", ");
    Err(HostError::Timeout {
        what: format!("the release of {}", image.display()),
        seconds: RELEASE_LIMIT.as_secs(),
        evidence: format!("still attached to {devices}: `losetup --detach` frees it"),
    })
}
