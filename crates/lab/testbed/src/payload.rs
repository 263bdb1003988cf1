// SPDX-License-Identifier: Apache-2.0
//! The boot files and the payload of an emulated host. The boot files are an archive behind the host's own initial RAM
//! disk; the kernel unpacks both, and a file in both, such as `init`, is taken from the second. The payload is an
//! archive in the memory of the machine, which the host unpacks once it is idle, so that hosts with different payloads
//! boot alike. Neither uses a disk or network of this machine, so both arrive at the same instruction every time.

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

/// The size of the memory of a payload, the same for all. Unwritten pages take no room.
pub(crate) const PAYLOAD_BYTES: u64 = 1 << 30;

/// The payload of a host.
#[derive(Debug)]
pub(crate) enum Payload<'a> {
    /// Open a shell on the console.
    Shell {
        /// The vtax in the host.
        binary: &'a Path,
    },
    /// Accept the client over the link until the host is ended.
    Client,
    /// Run one trial of a plan.
    Trial {
        /// The vtax that runs it.
        binary: &'a Path,
        /// The subcommand of vtax: `run`, `accuracy run`, `density`.
        command: &'a str,
        /// The plan's text.
        plan: &'a str,
        /// Idle time after the boot, by the clock of the host.
        rest: Duration,
        /// Whether its processors have frequencies.
        governors: bool,
    },
}

/// The files that a host boots with. They do not depend on vtax, command and plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BootFiles {
    /// Its initial RAM disk.
    pub initrd: PathBuf,
    /// The table of its processors' frequencies, if they have any.
    pub pstates: Option<PathBuf>,
}

impl BootFiles {
    /// Writes the files into a directory.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn pack(
        directory: &Path,
        host: &Host,
        settings: &Settings,
        payload: &Payload<'_>,
        link: Option<&Link>,
    ) -> Result<Self, HostError> {
        let boot_files = Self::in_directory(directory, payload.has_governors());
        vtax_files::write_scratch(&boot_files.initrd, initrd(host, payload, link)?)?;
        if let Some(table) = &boot_files.pstates {
            vtax_files::write_scratch(table, pstates::table(settings.processors()))?;
        }
        Ok(boot_files)
    }

    /// The files in a directory.
    pub fn in_directory(directory: &Path, has_pstates: bool) -> Self {
        Self {
            initrd: directory.join("initrd"),
            pstates: has_pstates.then(|| directory.join("pstates")),
        }
    }
}

/// The initial RAM disk of a host with a payload.
///
/// # Errors
/// When a file cannot be read.
fn initrd(host: &Host, payload: &Payload<'_>, link: Option<&Link>) -> Result<Vec<u8>, HostError> {
    let read = |path: &Path| fs::read(path).map_err(HostError::file("read", path));
    let mut bytes = read(&host.files.initrd)?;
    // Archives begin at multiples of four bytes.
    bytes.resize(bytes.len().next_multiple_of(4), 0);

    let mut archive = Archive::default();
    archive.executable("init", INIT.as_bytes());
    archive.directory("testbed");
    let mut add = |name: &str, content: &[u8]| {
        archive.executable(&format!("testbed/{name}"), content);
    };
    add("start", START.as_bytes());
    let hypervisor = match host.hypervisor {
        Hypervisor::Kvm => KVM,
        Hypervisor::Xen => XEN,
    };
    let governors = if payload.has_governors() {
        GOVERNORS
    } else {
        ""
    };
    add("hypervisor", [hypervisor, governors].concat().as_bytes());
    if let Some(link) = link {
        let end = match payload {
            Payload::Client => End::Client,
            _ => End::Host,
        };
        add("link", link.description(end).as_bytes());
    }
    match payload {
        Payload::Shell { .. } => add("shell", b""),
        Payload::Client => add("client", b""),
        Payload::Trial { rest, .. } => add("rest", rest.as_secs().to_string().as_bytes()),
    }
    bytes.extend(archive.finish());
    Ok(bytes)
}

impl Payload<'_> {
    /// Whether the host's processors have frequencies.
    fn has_governors(&self) -> bool {
        matches!(self, Self::Trial { governors, .. } if *governors)
    }

    /// Writes the archive of the payload, with paths below the root of the host.
    ///
    /// # Errors
    /// When a file cannot be read or written, or the archive is too large.
    pub fn pack(&self, directory: &Path, hypervisor: Hypervisor) -> Result<PathBuf, HostError> {
        let mut archive = Archive::default();
        match self {
            Payload::Client => {}
            Payload::Shell { binary } => add_program(&mut archive, binary)?,
            Payload::Trial {
                binary,
                command,
                plan,
                ..
            } => {
                add_program(&mut archive, binary)?;
                let place = format!("testbed:{hypervisor}");
                let files = [
                    ("command", *command),
                    ("plan.toml", plan),
                    ("place", &place),
                ];
                for (name, content) in files {
                    archive.executable(&format!("run/testbed/{name}"), content.as_bytes());
                }
            }
        }
        let bytes = archive.finish();
        fits(bytes.len() as u64)?;
        let path = directory.join("payload");
        let mut file = vtax_files::create(&path)?;
        file.write_all(&bytes)
            .and_then(|()| file.set_len(PAYLOAD_BYTES))
            .map_err(HostError::file("write", &path))?;
        Ok(path)
    }
}

/// # Errors
/// When a payload of this size does not fit.
fn fits(bytes: u64) -> Result<(), HostError> {
    if bytes <= PAYLOAD_BYTES {
        return Ok(());
    }
    Err(HostError::Setting(format!(
        "a vtax of {} MiB does not fit into an emulated host, which has room for {}: a release build is smaller",
        bytes >> 20,
        PAYLOAD_BYTES >> 20
    )))
}

fn add_program(archive: &mut Archive, binary: &Path) -> Result<(), HostError> {
    let file = fs::read(binary).map_err(HostError::file("read", binary))?;
    archive.executable("usr/local/bin/vtax", program(&file));
    Ok(())
}

/// The part of an ELF file (elf(5)) that the kernel loads. The rest, above all debug information, is four fifths of a
/// build of vtax, and takes seconds to unpack in an emulated host. The kernel does not read section headers.
fn program(file: &[u8]) -> &[u8] {
    loaded(file).and_then(|end| file.get(..end)).unwrap_or(file)
}

/// The end of the last loaded segment of a 64-bit little-endian ELF file; `None` for other files.
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
            let offset = number(entry.checked_add(8)?, 8)?;
            let length = number(entry.checked_add(32)?, 8)?;
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
        // Symbols at least; with debug information more than half of it.
        assert!(
            part.len() < whole.len(),
            "{} of {}",
            part.len(),
            whole.len()
        );
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        fs::write(&path, part).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).unwrap();
        // A process that another test forks may hold the file open for writing until it executes its program.
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
    fn the_same_payload_has_the_same_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let host = fake_host(directory.path(), Hypervisor::Kvm);
        let binary = directory.path().join("vtax");
        fs::write(&binary, "a program").unwrap();
        let payload = |governors| Payload::Trial {
            binary: &binary,
            command: "run",
            plan: "name = \"x\"",
            rest: Duration::ZERO,
            governors,
        };
        let with = initrd(&host, &payload(true), None).unwrap();
        let payload = payload(false);
        let first = initrd(&host, &payload, None).unwrap();
        assert_eq!(first, initrd(&host, &payload, None).unwrap());
        let holds = |bytes: &[u8], text: &str| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        let packed = |payload: &Payload<'_>| {
            let path = payload.pack(directory.path(), host.hypervisor).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), PAYLOAD_BYTES);
            let mut start = vec![0; 4096];
            std::io::Read::read_exact(&mut fs::File::open(path).unwrap(), &mut start).unwrap();
            start
        };
        let archive = packed(&payload);
        assert_eq!(archive, packed(&payload));
        for text in ["a program", "testbed:kvm", "name = \"x\""] {
            assert!(holds(&archive, text), "{text}");
            // Hosts with different plans boot alike.
            assert!(!holds(&first, text), "{text}");
        }
        assert!(holds(&first, "kvm_amd"));
        assert!(holds(&with, "acpi-cpufreq") && !holds(&first, "acpi-cpufreq"));
        let shell = packed(&Payload::Shell { binary: &binary });
        assert!(holds(&shell, "a program") && !holds(&shell, "name = \"x\""));
        assert!(!holds(&packed(&Payload::Client), "a program"));
    }

    #[test]
    fn a_program_that_does_not_fit_is_refused() {
        fits(PAYLOAD_BYTES).unwrap();
        let printed = fits(PAYLOAD_BYTES + 1).unwrap_err().to_string();
        assert!(
            printed.contains("a vtax of 1024 MiB does not fit"),
            "{printed}"
        );
    }
}
