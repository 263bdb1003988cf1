// SPDX-License-Identifier: Apache-2.0
//! The QEMU that emulates the hosts: vtax's own build if the cache has it, otherwise the system's.
//!
//! Debian's QEMU (7.2, as 10.0) has two faults, which `docs/testbed.md` describes. It delivers an interrupt that KVM
//! injected into a nested guest a second time where a timer of the host ends at the wrong instruction, and the guest
//! may get stuck. Its clock may jump some instructions too far. vtax's own build is Debian's source with fixes for
//! these and with processors whose clock is invariant. It is the same emulator on every machine.

use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vtax_guest::image;
use vtax_host::HostError;

/// The build script, and the suite of the Debian that it runs in.
const SCRIPT: &str = include_str!("emulator/build.sh");
const SUITE: &str = "bookworm";

/// The packages that the build needs.
const PACKAGES: [&str; 13] = [
    "dpkg-dev",
    "gcc",
    "libc6-dev",
    "libfdt-dev",
    "libglib2.0-dev",
    "libpixman-1-dev",
    "meson",
    "ninja-build",
    "pkg-config",
    "python3",
    "qemu-system-data",
    "seabios",
    "zlib1g-dev",
];

/// The program of a build; its firmware is beside it.
const PROGRAM: &str = "qemu-system-x86_64";

/// The oldest version that can map the file of a disk read-only.
const OLDEST: u32 = 6;

/// A QEMU for emulated hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Emulator {
    /// The program.
    pub binary: String,
    /// The directory of its firmware; `None`: QEMU's default.
    pub firmware: Option<PathBuf>,
}

impl Emulator {
    /// The system's QEMU.
    pub fn of_the_system() -> Self {
        Self {
            binary: PROGRAM.to_owned(),
            firmware: None,
        }
    }

    /// vtax's own build if there is one, otherwise the system's.
    pub fn find(cache: &Path) -> Self {
        // A build by root serves all users of the machine.
        let built = [cache, Path::new("/var/cache/vtax")].map(directory);
        let built = built
            .into_iter()
            .find(|built| built.join(PROGRAM).is_file());
        built.map_or_else(Self::of_the_system, |built| Self {
            binary: built.join(PROGRAM).to_string_lossy().into_owned(),
            firmware: Some(built),
        })
    }

    /// Whether it is vtax's own build.
    pub fn is_ours(&self) -> bool {
        self.firmware.is_some()
    }

    /// Its version and its builder, for the record.
    ///
    /// # Errors
    /// When it is missing, does not run, or is too old.
    pub fn describe(&self) -> Result<String, HostError> {
        let output = Command::new(&self.binary)
            .arg("--version")
            .env("PATH", vtax_host::roots::PATH)
            .stdin(Stdio::null())
            .output()
            .map_err(missing)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let first = text.lines().next().unwrap_or_default();
        let version = first.strip_prefix("QEMU emulator version ").map(str::trim);
        let number = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        let (Some(version), Some(number)) = (version, number) else {
            return Err(HostError::Program {
                command: format!("{} --version", self.binary),
                status: output.status.to_string(),
                output: format!("{text}{}", String::from_utf8_lossy(&output.stderr)),
            });
        };
        if number < OLDEST {
            return Err(HostError::Missing {
                what: format!(
                    "a QEMU of version {OLDEST}.0 or newer ({} is {version})",
                    self.binary
                ),
                remedy: "vtax testbed build qemu, or a newer one from your distribution".to_owned(),
            });
        }
        Ok(match self.is_ours() {
            true => format!("QEMU {version}, built by vtax"),
            false => format!("QEMU {version}"),
        })
    }
}

/// The error of a QEMU that cannot be started.
pub(crate) fn missing(cause: std::io::Error) -> HostError {
    HostError::Missing {
        what: format!("a program that starts QEMU ({cause})"),
        remedy: "apt-get install qemu-system-x86 util-linux".into(),
    }
}

/// The directory of vtax's own build, by the hash of its script and packages.
fn directory(cache: &Path) -> PathBuf {
    let mut hasher = Sha256::new();
    hasher.update(SCRIPT);
    hasher.update(PACKAGES.join(","));
    let hash = format!("{:x}", hasher.finalize());
    let name = format!("qemu-{}", hash.get(..16).unwrap_or(&hash));
    cache.join("testbed").join(name)
}

/// Builds vtax's own QEMU unless it is in the cache; returns its directory.
///
/// # Errors
/// When the build fails: see [`image::compile`].
pub fn build(progress: &mut dyn FnMut(&str)) -> Result<PathBuf, HostError> {
    let cache = image::cache_dir()?;
    let into = directory(&cache);
    if !into.join(PROGRAM).is_file() {
        let packages = PACKAGES.map(str::to_owned);
        image::compile(SUITE, &packages, SCRIPT, &into, progress)?;
    }
    Ok(into)
}

/// Removes vtax's own builds from the cache; returns the removed ones.
///
/// # Errors
/// When one cannot be removed.
pub fn remove() -> Result<Vec<PathBuf>, HostError> {
    let built = list()?;
    for path in &built {
        fs::remove_dir_all(path).map_err(HostError::file("remove", path))?;
    }
    Ok(built)
}

/// vtax's own builds in the cache, also those of earlier versions.
///
/// # Errors
/// When there is no cache directory.
pub fn list() -> Result<Vec<PathBuf>, HostError> {
    let testbed = image::cache_dir()?.join("testbed");
    let entries = fs::read_dir(&testbed).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    Ok(paths.filter(|path| path.join(PROGRAM).is_file()).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A program in the place of QEMU that prints its version and otherwise runs the commands `does`.
    pub(crate) fn pretended(directory: &Path, version: &str, does: &str) -> Emulator {
        let path = directory.join("qemu");
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && {{ echo 'QEMU emulator version {version}'; exit; }}\n{does}\n"
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Emulator {
            binary: path.to_string_lossy().into_owned(),
            firmware: None,
        }
    }

    #[test]
    fn one_that_is_missing_too_old_or_none_is_refused_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let printed = |emulator: Emulator| emulator.describe().unwrap_err().to_string();
        let missing = Emulator {
            binary: "/no/such/qemu".to_owned(),
            firmware: None,
        };
        assert!(printed(missing).contains("apt-get install qemu-system-x86"));
        let old = printed(pretended(directory.path(), "5.2.0 (Debian)", ""));
        assert!(old.contains("5.2.0") && old.contains("6.0"), "{old}");
        let none = printed(pretended(directory.path(), "unknown", ""));
        assert!(none.contains("--version"), "{none}");
        let good = pretended(directory.path(), "7.2.22 (Debian)", "");
        assert_eq!(good.describe().unwrap(), "QEMU 7.2.22 (Debian)");
    }

    #[test]
    fn ours_is_used_where_it_is_whole_and_the_systems_elsewhere() {
        let cache = tempfile::tempdir().unwrap();
        let built = directory(cache.path());
        fs::create_dir_all(&built).unwrap();
        let other = Emulator::find(cache.path());
        assert_ne!(other.firmware.as_ref(), Some(&built));
        fs::write(built.join(PROGRAM), "").unwrap();
        let ours = Emulator::find(cache.path());
        assert_eq!(ours.firmware, Some(built));
        assert!(ours.binary.ends_with(PROGRAM));
    }
}
