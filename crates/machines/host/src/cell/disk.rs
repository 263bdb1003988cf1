// SPDX-License-Identifier: Apache-2.0
//! The scratch disk of a cell, attached to the host's kernel.

use super::{Seat, Space};
use crate::{HostError, loop_device};
use std::path::PathBuf;

/// A scratch disk that is attached to the host's kernel, in a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The loop device.
    pub device: PathBuf,
    /// The mount point in the cell.
    pub directory: PathBuf,
    /// Whether the loop device bypasses the host's page cache.
    pub direct: bool,
}

impl Attached {
    /// Mounts the seat's scratch image, where the seat has one, through a loop device that the kernel frees with the
    /// mount.
    ///
    /// # Errors
    /// When the kernel has no loop devices or cannot mount the image.
    pub fn attach(seat: &Seat<'_>) -> Result<Option<Self>, HostError> {
        let Some(image) = seat.scratch() else {
            return Ok(None);
        };
        let directory = seat.run_dir().join("scratch");
        let script = r#"mkdir "$2"
mount -t ext4 -o loop,noatime "$1" "$2"
device=$(findmnt --noheadings --output SOURCE --mountpoint "$2")
direct=yes
losetup --direct-io=on "$device" 2>/dev/null || direct=no
echo "$direct $device""#;
        let shown = seat.script(
            Space::Switch,
            "the mount of the scratch disk",
            script,
            &[image, &directory],
        )?;
        let (direct, device) = shown
            .trim()
            .split_once(' ')
            .ok_or_else(|| HostError::Protocol {
                peer: "findmnt".to_owned(),
                detail: format!("it printed {shown:?} for the scratch disk"),
            })?;
        Ok(Some(Self {
            device: PathBuf::from(device),
            directory,
            direct: direct == "yes",
        }))
    }

    /// The device's kernel name, such as `loop3`.
    pub fn kernel_name(&self) -> String {
        loop_device::kernel_name(&self.device)
    }
}
