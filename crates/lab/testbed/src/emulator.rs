// SPDX-License-Identifier: Apache-2.0
//! The QEMU that emulates the hosts: vtax's own build if the cache or the package `vtax-testbed` has it, otherwise the
//! system's.
//!
//! Debian's QEMU (7.2, as 10.0) has two faults, which `docs/why/testbed.md` describes. It delivers an interrupt that KVM
//! injected into a nested guest a second time where a timer of the host ends at the wrong instruction, and the guest
//! may get stuck. Its clock may jump some instructions too far. vtax's own build is Debian's source with fixes for
//! these, with processors whose clock is invariant, with several processors in one deterministic machine, and with
//! counts of a last-level cache. It is the same emulator on every machine.

use crate::settings::Settings;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vtax_guest::image;
use vtax_host::HostError;

/// The build script, and the suite of the Debian that it runs in.
const SCRIPT: &str = include_str!("emulator/build.sh");
const SUITE: &str = "bookworm";

/// The files that the script finds in `/root`. They become a part of QEMU and have its licence, GPL-2.0-or-later.
const FILES: [(&str, &str); 4] = [
    ("smp.patch", include_str!("emulator/smp.patch")),
    ("llc.patch", include_str!("emulator/llc.patch")),
    ("llc.c", include_str!("emulator/llc.c")),
    ("llc.h", include_str!("emulator/llc.h")),
];

/// What is run after [`SCRIPT`]: it keeps the source of the build beside it, for the package. It is no part of the hash,
/// because it does not change the build.
const KEEP_SOURCE: &str = include_str!("emulator/keep-source.sh");

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

/// Where the Debian package `vtax-testbed` has the build of its vtax, laid out as a cache.
pub const PACKAGED: &str = "/usr/lib/vtax";
const PACKAGE: &str = "vtax-testbed";

/// How to get the build of this vtax.
pub(crate) const REMEDY: &str = "vtax testbed build qemu (once; some 5 minutes of processor time), or the package vtax-testbed of the same build as this vtax";

/// The oldest version that can map the file of a disk read-only.
const OLDEST: u32 = 6;

/// A QEMU for emulated hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Emulator {
    /// The program.
    pub binary: String,
    /// The directory of its firmware; `None`: QEMU's default.
    pub firmware: Option<PathBuf>,
    /// Whether it is the build of this vtax. One of an earlier vtax has one processor and counts no caches.
    pub is_current: bool,
}

impl Emulator {
    /// The system's QEMU.
    pub fn of_the_system() -> Self {
        Self {
            binary: PROGRAM.to_owned(),
            firmware: None,
            is_current: false,
        }
    }

    /// The build of this vtax if a cache or the package has it, otherwise one of an earlier vtax, otherwise the system's.
    pub fn find(cache: &Path) -> Self {
        // A build by root serves all users of the machine.
        Self::find_in(&[cache, Path::new(image::SHARED)], Path::new(PACKAGED))
    }

    fn find_in(caches: &[&Path], packaged: &Path) -> Self {
        let current = current_in(&[caches, &[packaged]].concat()).map(|built| (built, true));
        let mut earlier = caches.iter().flat_map(|cache| builds(cache));
        let built = current.or_else(|| Some((earlier.next()?, false)));
        built.map_or_else(Self::of_the_system, |(built, is_current)| Self {
            binary: built.join(PROGRAM).to_string_lossy().into_owned(),
            firmware: Some(built),
            is_current,
        })
    }

    /// # Errors
    /// When the settings need the build of this vtax, and it is another one.
    pub fn supports(&self, settings: &Settings) -> Result<(), HostError> {
        let needs = match (settings.processors(), settings.llc_mib) {
            (_, Some(mib)) => format!("llc_mib = {mib}"),
            (several, None) if several > 1 && settings.deterministic => {
                format!("processors = {several}")
            }
            _ => return Ok(()),
        };
        if self.is_current {
            return Ok(());
        }
        Err(HostError::Missing {
            what: format!("this vtax's own build of QEMU, which `{needs}` needs,"),
            remedy: REMEDY.to_owned(),
        })
    }

    /// Whether it is vtax's own build.
    pub fn is_ours(&self) -> bool {
        self.firmware.is_some()
    }

    /// Where it is from, for people.
    pub fn origin(&self) -> String {
        match &self.firmware {
            None => "the system's".to_owned(),
            Some(built) if built.starts_with(PACKAGED) => format!("package {PACKAGE}"),
            Some(_) if self.is_current => "in the cache".to_owned(),
            Some(_) => "of an earlier vtax".to_owned(),
        }
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
            let found = &self.binary;
            return Err(HostError::Missing {
                what: format!("a QEMU of version {OLDEST}.0 or newer ({found} is {version})"),
                remedy: format!("{REMEDY}, or a newer one from your distribution"),
            });
        }
        let builder = if self.is_ours() {
            ", built by vtax"
        } else {
            ""
        };
        Ok(format!("QEMU {version}{builder}"))
    }
}

/// The error of a QEMU that cannot be started.
pub(crate) fn missing(cause: std::io::Error) -> HostError {
    HostError::Missing {
        what: format!("a program that starts QEMU ({cause})"),
        remedy: "apt-get install qemu-system-x86 util-linux".into(),
    }
}

/// The whole build script: it writes its files, then builds.
fn script() -> String {
    let files = FILES.map(|(name, text)| {
        let end = format!("end of {name}");
        format!("cat >/root/{name} <<'{end}'\n{text}{end}\n")
    });
    files.concat() + SCRIPT
}

/// The directory of vtax's own build in a cache.
fn directory(cache: &Path) -> PathBuf {
    cache.join("testbed").join(name())
}

/// The name of the directory of vtax's own build, by the hash of its script and packages.
pub fn name() -> String {
    let mut hasher = Sha256::new();
    hasher.update(script());
    hasher.update(PACKAGES.join(","));
    let hash = format!("{:x}", hasher.finalize());
    format!("qemu-{}", hash.get(..16).unwrap_or(&hash))
}

/// Builds vtax's own QEMU unless the cache or the package has it; returns its directory.
///
/// # Errors
/// When the build fails: see [`image::compile`].
pub fn build(progress: &mut dyn FnMut(&str)) -> Result<PathBuf, HostError> {
    let cache = image::cache_dir()?;
    if let Some(built) = current_in(&[&cache, Path::new(PACKAGED)]) {
        return Ok(built);
    }
    let into = directory(&cache);
    let packages = PACKAGES.map(str::to_owned);
    let script = script() + KEEP_SOURCE;
    image::compile(SUITE, &packages, &script, &into, progress)?;
    Ok(into)
}

/// The directory of the build of this vtax, in the first of these that has it.
fn current_in(caches: &[&Path]) -> Option<PathBuf> {
    let mut all = caches.iter().map(|cache| directory(cache));
    all.find(|built| built.join(PROGRAM).is_file())
}

/// Removes vtax's own builds from the cache, and what killed builds left; returns the removed builds.
///
/// # Errors
/// When one cannot be removed.
pub fn remove() -> Result<Vec<PathBuf>, HostError> {
    remove_in(&image::cache_dir()?)
}

fn remove_in(cache: &Path) -> Result<Vec<PathBuf>, HostError> {
    let built = builds(cache);
    for path in &built {
        vtax_files::remove_all(path)?;
    }
    let testbed = cache.join("testbed");
    if testbed.is_dir() {
        let mut left = Vec::new();
        image::remove_unfinished(&testbed, None, &mut |line| left.push(line.to_owned()))?;
        if !left.is_empty() {
            return Err(HostError::Other(left.join("; ")));
        }
    }
    Ok(built)
}

/// A build of QEMU by vtax.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// Its directory.
    pub path: PathBuf,
    /// Whether it is the build of this vtax.
    pub is_current: bool,
}

/// vtax's own builds in the cache and in the package, also those of earlier versions.
///
/// # Errors
/// When there is no cache directory.
pub fn list() -> Result<Vec<Build>, HostError> {
    let mut all = caches()?;
    all.push(PathBuf::from(PACKAGED));
    Ok(list_in(&all))
}

fn list_in(caches: &[PathBuf]) -> Vec<Build> {
    let name = name();
    let built = caches.iter().flat_map(|cache| builds(cache));
    let listed = built.map(|path| Build {
        is_current: path.ends_with(&name),
        path,
    });
    listed.collect()
}

/// The user's cache, and the one that root fills for every user.
///
/// # Errors
/// When there is no cache directory.
pub(crate) fn caches() -> Result<Vec<PathBuf>, HostError> {
    let mut caches = vec![image::cache_dir()?, PathBuf::from(image::SHARED)];
    caches.dedup();
    Ok(caches)
}

fn builds(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache.join("testbed"));
    let paths = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.join(PROGRAM).is_file()).collect();
    paths.sort();
    paths
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
            ..Emulator::of_the_system()
        }
    }

    #[test]
    fn one_that_is_missing_too_old_or_none_is_refused_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let printed = |emulator: Emulator| emulator.describe().unwrap_err().to_string();
        let missing = Emulator {
            binary: "/no/such/qemu".to_owned(),
            ..Emulator::of_the_system()
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
    fn ours_is_used_where_it_is_whole_then_an_earlier_one_and_then_the_systems() {
        let cache = tempfile::tempdir().unwrap();
        let packaged = tempfile::tempdir().unwrap();
        let find = || Emulator::find_in(&[cache.path()], packaged.path());
        let built = directory(cache.path());
        fs::create_dir_all(&built).unwrap();
        assert_eq!(find(), Emulator::of_the_system());
        let earlier = built.with_file_name("qemu-0123456789abcdef");
        fs::create_dir_all(&earlier).unwrap();
        fs::write(earlier.join(PROGRAM), "").unwrap();
        let found = find();
        assert_eq!(found.firmware, Some(earlier));
        assert!(found.is_ours() && !found.is_current);
        fs::write(built.join(PROGRAM), "").unwrap();
        let ours = find();
        assert_eq!(ours.firmware, Some(built));
        assert!(ours.binary.ends_with(PROGRAM) && ours.is_current);
    }

    #[test]
    fn the_package_of_the_same_build_is_used_after_the_cache_and_before_an_earlier_build() {
        let [cache, packaged] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let find = || Emulator::find_in(&[cache.path()], packaged.path());
        let put = |built: PathBuf| {
            fs::create_dir_all(&built).unwrap();
            fs::write(built.join(PROGRAM), "").unwrap();
            built
        };
        let other = directory(packaged.path()).with_file_name("qemu-0123456789abcdef");
        put(other);
        assert_eq!(find(), Emulator::of_the_system());
        put(directory(cache.path()).with_file_name("qemu-0123456789abcdef"));
        assert!(!find().is_current);

        let fitting = put(directory(packaged.path()));
        assert_eq!(find().firmware.as_ref(), Some(&fitting));
        assert!(find().is_current && find().binary.starts_with(fitting.to_str().unwrap()));
        let built = put(directory(cache.path()));
        assert_eq!(find().firmware, Some(built));

        let listed = list_in(&[cache.path(), packaged.path()].map(Path::to_owned));
        let current = listed.iter().filter(|build| build.is_current).count();
        assert_eq!((listed.len(), current), (4, 2));
    }

    #[test]
    fn people_read_where_the_emulator_is_from() {
        let of = |at: &str, is_current| Emulator {
            firmware: Some(PathBuf::from(at)),
            is_current,
            ..Emulator::of_the_system()
        };
        let package = of("/usr/lib/vtax/testbed/qemu-0123456789abcdef", true);
        let cached = of("/var/cache/vtax/testbed/qemu-0123456789abcdef", true);
        let earlier = of("/var/cache/vtax/testbed/qemu-0123456789abcdef", false);
        let all = [Emulator::of_the_system(), package, cached, earlier];
        assert_eq!(
            all.map(|one| one.origin()),
            [
                "the system's",
                "package vtax-testbed",
                "in the cache",
                "of an earlier vtax"
            ]
        );
    }

    #[test]
    fn removing_builds_also_removes_what_killed_builds_left() {
        let cache = tempfile::tempdir().unwrap();
        assert_eq!(remove_in(cache.path()).unwrap(), [] as [PathBuf; 0]);
        let built = directory(cache.path());
        let left = built.with_file_name(".building-qemu-0123456789abcdef-x1Y2z3");
        let host = built.with_file_name("snapshot-1");
        for path in [&built, &left, &host] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(built.join(PROGRAM), "").unwrap();
        assert_eq!(
            remove_in(cache.path()).unwrap(),
            std::slice::from_ref(&built)
        );
        assert!(!built.exists() && !left.exists() && host.exists());
    }

    #[test]
    fn only_the_build_of_this_vtax_has_several_processors_and_caches() {
        let of = |text: &str| Settings::parse(text).unwrap();
        let earlier = Emulator {
            firmware: Some(PathBuf::from("/earlier")),
            ..Emulator::of_the_system()
        };
        let current = Emulator {
            is_current: true,
            ..earlier.clone()
        };
        for text in ["processors = 2", "processors = 4", "llc_mib = 8"] {
            let printed = earlier.supports(&of(text)).unwrap_err().to_string();
            assert!(
                printed.contains(text)
                    && printed.contains("vtax testbed build qemu")
                    && printed.contains(PACKAGE),
                "{printed}"
            );
            current.supports(&of(text)).unwrap();
        }
        for text in ["", "processors = 1", "deterministic = false"] {
            earlier.supports(&of(text)).unwrap();
        }
    }

    #[test]
    fn the_script_writes_the_files_of_qemus_licence_before_it_builds() {
        assert!(!script().contains(KEEP_SOURCE));
        let script = script();
        let before = script.strip_suffix(SCRIPT).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let status = Command::new("sh")
            .args(["-e", "-c", &before.replace("/root", path)])
            .status();
        assert!(status.unwrap().success());
        for (name, text) in FILES {
            assert!(
                text.contains("SPDX-License-Identifier: GPL-2.0-or-later"),
                "{name}"
            );
            let written = fs::read_to_string(directory.path().join(name)).unwrap();
            assert_eq!(written, text.replace("/root", path), "{name}");
        }
    }
}
