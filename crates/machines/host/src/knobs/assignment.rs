// SPDX-License-Identifier: Apache-2.0
//! One value for one file of the host's kernel: checked against what the kernel offers, journalled, written and read back.

use crate::HostError;
use crate::facts::chosen;
use crate::journal::Journal;
use crate::kernel_file::{store, unreadable, verify};
use crate::roots::text;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// One value for one file.
#[derive(Debug)]
pub struct Assignment {
    pub key: String,
    pub path: PathBuf,
    pub value: String,
    /// The values that the kernel offers for this file, where it lists them.
    pub offers: Option<Vec<String>>,
}

impl Assignment {
    pub fn new(key: &str, path: PathBuf, value: impl Into<String>) -> Self {
        Self {
            key: key.to_owned(),
            path,
            value: value.into(),
            offers: None,
        }
    }

    /// Checks that the kernel offers the value, and lets the file be written.
    ///
    /// # Errors
    /// When it does not, with the values that it offers.
    pub fn offered(&self) -> Result<(), HostError> {
        let mode = std::fs::metadata(&self.path).map(|found| found.permissions().mode());
        if mode.is_ok_and(|mode| mode & 0o222 == 0) {
            return Err(HostError::Setting(format!(
                "{} = `{}` cannot be set: this kernel has {} for reading only; leave {} out of the plan",
                self.key,
                self.value,
                self.path.display(),
                self.key
            )));
        }
        match &self.offers {
            Some(offers) if !offers.contains(&self.value) => Err(HostError::Setting(format!(
                "{} = `{}` is not offered by {}; this host offers: {}",
                self.key,
                self.value,
                self.path.display(),
                if offers.is_empty() {
                    "nothing".to_owned()
                } else {
                    offers.join(", ")
                },
            ))),
            _ => Ok(()),
        }
    }

    pub fn make(&self, journal: &mut Journal) -> Result<(), HostError> {
        let Some(now) = text(&self.path) else {
            return if self.vanished() {
                Ok(())
            } else {
                Err(unreadable(&self.path))
            };
        };
        let old = chosen(&now);
        if old == self.value {
            return Ok(());
        }
        self.offered()?;
        let recorded = journal.record_setting(&self.path, old, &self.value)?;
        match store(&self.path, &self.value) {
            Ok(()) => verify(&self.path, &self.value).or_else(|error| {
                // The kernel may store another form of the value, which must be undone too.
                if let Some(now) = text(&self.path) {
                    journal.rewrite(recorded, chosen(&now))?;
                }
                Err(error)
            }),
            Err(_) if self.vanished() => Ok(()),
            Err(cause) => Err(HostError::Setting(format!(
                "cannot set {} = `{}`: writing {}: {cause}; {}",
                self.key,
                self.value,
                self.path.display(),
                remedy(&cause)
            ))),
        }
    }

    // The cpufreq directory of a CPU disappears when the CPU goes offline; nothing is left to set.
    fn vanished(&self) -> bool {
        self.key == "host.governor" && !self.path.exists()
    }
}

fn remedy(cause: &std::io::Error) -> &'static str {
    match cause.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            "run as root, outside of a container with a read-only /sys"
        }
        _ => "leave this setting out of the plan, or run it on a host that has it",
    }
}
