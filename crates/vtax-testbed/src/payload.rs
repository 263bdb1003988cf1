//! What travels into an emulated host. It boots with a second archive behind its own initial RAM disk: the
//! kernel unpacks both, and what is in both is taken from the second, such as `init`. What it is to do comes as
//! an archive in the memory of the machine, which it unpacks once it rests: so hosts with different errands boot
//! alike. No disk or network of this machine is involved, so both arrive at the same instruction every time.

use crate::host::Host;
use crate::link::{End, Link};
use crate::pstates;
use crate::settings::Settings;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vtax_guest::image::Archive;
use vtax_host::HostError;
use vtax_lab::place::Hypervisor;

const INIT: &str = include_str!("guest/init.sh");
const START: &str = include_str!("guest/start.sh");
const KVM: &str = include_str!("guest/kvm.sh");
const XEN: &str = include_str!("guest/xen.sh");
const GOVERNORS: &str = include_str!("guest/governors.sh");

/// The size of the memory with an errand, the same for all. What is not written takes no room.
pub(crate) const ERRAND_BYTES: u64 = 1 << 30;

/// What the host is to do.
#[derive(Debug)]
pub(crate) enum Errand<'a> {
    /// Open a shell on the console.
    Shell {
        /// The vtax that is to be there.
        binary: &'a Path,
    },
    /// Be reached over the link, until it is ended.
    Client,
    /// Run one trial of a plan.
    Trial {
        /// The vtax to run it with.
        binary: &'a Path,
        /// What of vtax runs it: `run`, `accuracy run`.
        command: &'a str,
        /// The plan's text.
        plan: &'a str,
        /// For how long the host, which has just booted, comes to rest before: its own seconds.
        rest: Duration,
        /// Whether its processors have frequencies.
        governors: bool,
    },
}

/// What a host with an errand boots with, as files: the same whatever vtax, command and plan it will have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Luggage {
    /// Its initial RAM disk.
    pub initrd: PathBuf,
    /// The table of its processors' frequencies, if they have any.
    pub pstates: Option<PathBuf>,
}

impl Luggage {
    /// Packs it into a directory.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn pack(
        directory: &Path,
        host: &Host,
        settings: &Settings,
        errand: &Errand<'_>,
        link: Option<&Link>,
    ) -> Result<Self, HostError> {
        let keep = |path: &Path, content: &[u8]| {
            Ok::<(), HostError>(vtax_files::write_scratch(path, content)?)
        };
        let governors = matches!(
            errand,
            Errand::Trial {
                governors: true,
                ..
            }
        );
        let luggage = Self::of(directory, governors);
        keep(&luggage.initrd, &initrd(host, errand, link)?)?;
        if let Some(table) = &luggage.pstates {
            keep(table, &pstates::table(settings.processors()))?;
        }
        Ok(luggage)
    }

    /// What is packed in a directory.
    pub fn of(directory: &Path, has_pstates: bool) -> Self {
        Self {
            initrd: directory.join("initrd"),
            pstates: has_pstates.then(|| directory.join("pstates")),
        }
    }
}

/// The initial RAM disk of a host with an errand.
///
/// # Errors
/// When a file cannot be read.
fn initrd(host: &Host, errand: &Errand<'_>, link: Option<&Link>) -> Result<Vec<u8>, HostError> {
    let read = |path: &Path| fs::read(path).map_err(HostError::file("read", path));
    let mut bytes = read(&host.files.initrd)?;
    // Archives begin at multiples of four bytes.
    bytes.resize(bytes.len().next_multiple_of(4), 0);

    let mut archive = Archive::default();
    archive.executable("init", INIT.as_bytes());
    archive.directory("payload");
    let mut add = |name: &str, content: &[u8]| {
        archive.executable(&format!("payload/{name}"), content);
    };
    add("start", START.as_bytes());
    let hypervisor = match host.hypervisor {
        Hypervisor::Kvm => KVM,
        Hypervisor::Xen => XEN,
    };
    let governors = match errand {
        Errand::Trial {
            governors: true, ..
        } => GOVERNORS,
        _ => "",
    };
    add("hypervisor", [hypervisor, governors].concat().as_bytes());
    if let Some(link) = link {
        let end = match errand {
            Errand::Client => End::Client,
            _ => End::Host,
        };
        add("link", link.told(end).as_bytes());
    }
    match errand {
        Errand::Shell { .. } => add("shell", b""),
        Errand::Client => add("client", b""),
        Errand::Trial { rest, .. } => add("rest", rest.as_secs().to_string().as_bytes()),
    }
    bytes.extend(archive.finish());
    Ok(bytes)
}

impl Errand<'_> {
    /// Packs what is not there when the host boots, as files below its root.
    ///
    /// # Errors
    /// When a file cannot be read or written, or there is more than the memory holds.
    pub fn bring(&self, directory: &Path, hypervisor: Hypervisor) -> Result<PathBuf, HostError> {
        let mut archive = Archive::default();
        match self {
            Errand::Client => {}
            Errand::Shell { binary } => add_program(&mut archive, binary)?,
            Errand::Trial {
                binary,
                command,
                plan,
                ..
            } => {
                add_program(&mut archive, binary)?;
                let place = format!("testbed:{hypervisor}");
                for (name, content) in [
                    ("command", *command),
                    ("plan.toml", plan),
                    ("place", &place),
                ] {
                    archive.executable(&format!("run/testbed/{name}"), content.as_bytes());
                }
            }
        }
        let bytes = archive.finish();
        fits(bytes.len() as u64)?;
        let path = directory.join("errand");
        let mut file = vtax_files::create(&path)?;
        file.write_all(&bytes)
            .and_then(|()| file.set_len(ERRAND_BYTES))
            .map_err(HostError::file("write", &path))?;
        Ok(path)
    }
}

/// # Errors
/// When an errand of so many bytes does not fit.
fn fits(bytes: u64) -> Result<(), HostError> {
    if bytes <= ERRAND_BYTES {
        return Ok(());
    }
    Err(HostError::Setting(format!(
        "a vtax of {} MiB does not fit into an emulated host, which has room for {}: a release build is smaller",
        bytes >> 20,
        ERRAND_BYTES >> 20
    )))
}

fn add_program(archive: &mut Archive, binary: &Path) -> Result<(), HostError> {
    let file = fs::read(binary).map_err(HostError::file("read", binary))?;
    archive.executable("usr/local/bin/vtax", program(&file));
    Ok(())
}

/// What the kernel loads of an ELF file (elf(5)): what is behind, debug information above all, is four fifths of
/// a build of vtax, and unpacking it in an emulated host takes seconds. Section headers are not looked at by it.
fn program(file: &[u8]) -> &[u8] {
    loaded(file).and_then(|end| file.get(..end)).unwrap_or(file)
}

/// Where the last loaded segment of a 64-bit little-endian ELF file ends; `None` for what is none.
fn loaded(file: &[u8]) -> Option<usize> {
    const LOAD: usize = 1;
    let number = |offset: usize, bytes: usize| -> Option<usize> {
        let field = file.get(offset..offset.checked_add(bytes)?)?;
        let fold =
            |value: usize, byte: &u8| value.checked_mul(256)?.checked_add(usize::from(*byte));
        field.iter().rev().try_fold(0, fold)
    };
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut end = table.checked_add(size.checked_mul(count)?)?;
    for position in 0..count {
        let entry = table.checked_add(size.checked_mul(position)?)?;
        if number(entry, 4)? == LOAD {
            let (offset, length) = (
                number(entry.checked_add(8)?, 8)?,
                number(entry.checked_add(32)?, 8)?,
            );
            end = end.max(offset.checked_add(length)?);
        }
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests::fake_host;

    #[test]
    fn a_program_runs_without_what_is_behind_its_segments() {
        let whole = fs::read("/proc/self/exe").unwrap();
        let part = program(&whole);
        assert!(
            part.len() < whole.len() / 2,
            "{} of {}",
            part.len(),
            whole.len()
        );
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        fs::write(&path, part).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).unwrap();
        // A process that another test forks meanwhile may hold the file open for writing until it executes.
        let output = loop {
            match std::process::Command::new(&path).arg("--list").output() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                output => break output.unwrap(),
            }
        };
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("payload::tests"));
    }

    #[test]
    fn what_is_no_program_or_a_damaged_one_stays_as_it_is() {
        let whole = fs::read("/proc/self/exe").unwrap();
        assert_eq!(program(b"#!/bin/sh"), b"#!/bin/sh");
        for length in [0, 5, 40, 57, 64, 100] {
            assert_eq!(program(&whole[..length]), &whole[..length]);
        }
        let mut damaged = whole[..4096].to_vec();
        damaged[32..64].fill(0xff);
        assert_eq!(program(&damaged), damaged);
    }

    #[test]
    fn the_same_errand_gives_the_same_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let host = fake_host(directory.path(), Hypervisor::Kvm);
        let binary = directory.path().join("vtax");
        fs::write(&binary, "a program").unwrap();
        let errand = |governors| Errand::Trial {
            binary: &binary,
            command: "run",
            plan: "name = \"x\"",
            rest: Duration::ZERO,
            governors,
        };
        let with = initrd(&host, &errand(true), None).unwrap();
        let errand = errand(false);
        let first = initrd(&host, &errand, None).unwrap();
        assert_eq!(first, initrd(&host, &errand, None).unwrap());
        let holds = |bytes: &[u8], text: &str| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        let brought = |errand: &Errand<'_>| {
            let path = errand.bring(directory.path(), host.hypervisor).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), ERRAND_BYTES);
            let mut start = vec![0; 4096];
            std::io::Read::read_exact(&mut fs::File::open(path).unwrap(), &mut start).unwrap();
            start
        };
        let errand_of_it = brought(&errand);
        assert_eq!(errand_of_it, brought(&errand));
        for text in ["a program", "testbed:kvm", "name = \"x\""] {
            assert!(holds(&errand_of_it, text), "{text}");
            // Hosts with different plans boot alike.
            assert!(!holds(&first, text), "{text}");
        }
        assert!(holds(&first, "kvm_amd"));
        assert!(holds(&with, "acpi-cpufreq") && !holds(&first, "acpi-cpufreq"));
        let shell = brought(&Errand::Shell { binary: &binary });
        assert!(holds(&shell, "a program") && !holds(&shell, "name = \"x\""));
        assert!(!holds(&brought(&Errand::Client), "a program"));
    }

    #[test]
    fn a_program_that_does_not_fit_is_refused() {
        fits(ERRAND_BYTES).unwrap();
        let said = fits(ERRAND_BYTES + 1).unwrap_err().to_string();
        assert!(said.contains("a vtax of 1024 MiB does not fit"), "{said}");
    }
}
