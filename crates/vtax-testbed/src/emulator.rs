//! The QEMU that emulates the hosts: one of our own build where it is in the cache, else the system's.
//!
//! Debian's QEMU (7.2, and upstream at least to 10.2) delivers an interrupt that KVM injected into a nested
//! guest a second time where a timer of the host ends at the wrong instruction: `docs/testbed.md` has the
//! story. Our own build is Debian's source with that mended, so that no guest gets stuck, and the same
//! emulator on every machine.

use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vtax_guest::image;
use vtax_host::HostError;

/// What makes it, in a Debian of this suite.
const SCRIPT: &str = include_str!("emulator/build.sh");
const SUITE: &str = "bookworm";

/// What that needs.
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

/// The program in what was built; firmware is beside it.
const PROGRAM: &str = "qemu-system-x86_64";

/// A QEMU for emulated hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Emulator {
    /// Its program.
    pub binary: String,
    /// Where its firmware is, unless it knows.
    pub firmware: Option<PathBuf>,
}

impl Emulator {
    /// The one of the system.
    pub fn of_the_system() -> Self {
        Self {
            binary: PROGRAM.to_owned(),
            firmware: None,
        }
    }

    /// Ours, if it has been built, else that of the system.
    pub fn find(cache: &Path) -> Self {
        // What root has built serves everyone on the machine.
        let built = [cache, Path::new("/var/cache/vtax")].map(directory);
        let built = built
            .into_iter()
            .find(|built| built.join(PROGRAM).is_file());
        built.map_or_else(Self::of_the_system, |built| Self {
            binary: built.join(PROGRAM).to_string_lossy().into_owned(),
            firmware: Some(built),
        })
    }

    /// Which one it is, for the record: the first line of its version, and whose build.
    ///
    /// # Errors
    /// When it is not there or does not run.
    pub fn describe(&self) -> Result<String, HostError> {
        let output = Command::new(&self.binary)
            .arg("--version")
            .env("PATH", vtax_host::roots::PATH)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(crate::flight::missing)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().next().unwrap_or("of no version").trim();
        let version = version.trim_start_matches("QEMU emulator version ");
        Ok(match self.firmware {
            Some(_) => format!("QEMU {version}, built by vtax"),
            None => format!("QEMU {version}"),
        })
    }
}

/// Where our own build is kept, by what it is made of.
fn directory(cache: &Path) -> PathBuf {
    let mut hasher = Sha256::new();
    hasher.update(SCRIPT);
    hasher.update(PACKAGES.join(","));
    let hash = format!("{:x}", hasher.finalize());
    let name = format!("qemu-{}", hash.get(..16).unwrap_or(&hash));
    cache.join("testbed").join(name)
}

/// Builds our own, unless it is in the cache; where it is.
///
/// # Errors
/// When it has to be built and cannot be: see [`image::compile`].
pub fn build(progress: &mut dyn FnMut(&str)) -> Result<PathBuf, HostError> {
    let cache = image::cache_dir()?;
    let into = directory(&cache);
    if !into.join(PROGRAM).is_file() {
        let packages = PACKAGES.map(str::to_owned);
        image::compile(SUITE, &packages, SCRIPT, &into, progress)?;
    }
    Ok(into)
}

/// Removes our own builds from the cache; what was removed.
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

/// Our own builds in the cache, also those of an earlier vtax.
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
mod tests {
    use super::*;

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
