//! The moment at which trials begin: a host boots, comes to rest, and stops itself there at an exact
//! instruction. Its memory and its root disk are files then, which the machine of each trial maps for itself:
//! what one writes no other sees, and each begins with the same bits.

use crate::host::Host;
use crate::machine::{self, Files};
use crate::payload::{Errand, Luggage};
use crate::running::{BREATH, Ports, Running, STATE, tail};
use crate::scratch;
use crate::settings::Settings;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vtax_guest::platform::qemu::Qmp;
use vtax_host::HostError;
use vtax_lab::LabError;

/// How long a host may take to come to rest, whatever else this machine does.
const SILENCE: Duration = Duration::from_secs(1800);

/// What QEMU tells when a host stops itself: see `guest/start.sh`.
const STOPPED: &str = "STOP";

/// A host that is on its way to its moment, or has come to it.
pub(crate) struct Moment {
    directory: TempDir,
    luggage: Luggage,
    memory: PathBuf,
    root: PathBuf,
    booting: Option<(Running, Qmp)>,
    since: Instant,
}

impl Moment {
    /// Boots the host of an errand.
    ///
    /// # Errors
    /// When its files cannot be written, or QEMU does not start.
    pub fn start(host: &Host, settings: &Settings, errand: &Errand<'_>) -> Result<Self, LabError> {
        let below = std::env::temp_dir();
        has_room(&below, host, settings)?;
        let directory = scratch::directory(&below)?;
        let path = |name: &str| directory.path().join(name);
        copy(&host.root().path, &path("root"))?;
        let mut moment = Self {
            luggage: Luggage::pack(directory.path(), host, settings, errand, None)?,
            memory: path("memory"),
            root: path("root"),
            directory,
            booting: None,
            since: Instant::now(),
        };
        let ports = Ports::create(moment.directory.path())?;
        let monitor = moment.directory.path().join("monitor");
        let line = machine::command_line(host, settings, moment.files(&ports, &monitor, true));
        let mut machine = Running::start(&line, Some(&moment.state()))?;
        let monitor = machine.monitor(&monitor)?;
        moment.booting = Some((machine, monitor));
        Ok(moment)
    }

    /// The files of a machine that keeps this moment, or of one that begins there.
    pub fn files<'a>(&'a self, ports: &'a Ports, monitor: &'a Path, keeps: bool) -> Files<'a> {
        Files {
            initrd: &self.luggage.initrd,
            pstates: self.luggage.pstates.as_deref(),
            moment: Some(machine::Moment {
                memory: &self.memory,
                root: &self.root,
                monitor,
                keeps,
            }),
            ..ports.files()
        }
    }

    /// Whether trials can begin; keeps the host's state once it has stopped.
    ///
    /// # Errors
    /// When the host ends before, computes for too long, or its state cannot be kept.
    pub fn is_kept(&mut self) -> Result<bool, LabError> {
        let Some((machine, monitor)) = &mut self.booting else {
            return Ok(true);
        };
        let stopped = monitor.has_told(STOPPED, Duration::from_millis(1));
        let console = self.directory.path().join("console");
        if let Some(status) = machine.ended()? {
            let bus = rustix::process::Signal::BUS.as_raw();
            let full = match status.signal() {
                Some(signal) if signal == bus => ": is there room in TMPDIR?",
                _ => "",
            };
            return Err(LabError::Host(HostError::Program {
                command: "the emulated host".into(),
                status: format!("{status}, before it came to rest{full}"),
                output: format!("{}\n{}", tail(&console), machine.messages()),
            }));
        }
        // One that idles computes nothing, and one on a busy machine little.
        if machine.computed() > BREATH || self.since.elapsed() > SILENCE {
            return Err(LabError::Host(HostError::Timeout {
                what: "the emulated host's rest".into(),
                seconds: self.since.elapsed().as_secs(),
                evidence: tail(&console),
            }));
        }
        if !stopped? {
            return Ok(false);
        }
        monitor.save(&format!("exec:cat >\"${STATE}\""))?;
        // It has nothing more to do, and what it says of that is nobody's concern.
        let _ = monitor.quit();
        self.booting = None;
        Ok(true)
    }

    /// The state of its devices.
    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }
}

/// Where a machine reads the state from.
pub(crate) fn from_state() -> String {
    format!("exec:cat \"${STATE}\"")
}

/// Memory and root disk become files that are mapped: where there is no room for a page, QEMU is killed. A host
/// that rests has written a fifth of its memory, and little on its disk.
fn has_room(below: &Path, host: &Host, settings: &Settings) -> Result<(), HostError> {
    let room = rustix::fs::statvfs(below)
        .map_err(|cause| HostError::file("look at", below)(cause.into()))?;
    let room = room.f_bavail.saturating_mul(room.f_frsize) >> 20;
    let root = &host.root().path;
    let disk = fs::metadata(root).map_err(HostError::file("read", root))?;
    let needed = u64::from(settings.memory_mib) / 3 + ((disk.blocks() * 512) >> 20);
    if room >= needed {
        return Ok(());
    }
    Err(HostError::Setting(format!(
        "an emulated host's memory and disk are files in {} and take {needed} MiB; {room} MiB are free there: set TMPDIR to a directory with more room",
        below.display()
    )))
}

/// A copy of a disk without its holes.
fn copy(disk: &Path, into: &Path) -> Result<(), HostError> {
    let output = Command::new("cp")
        .args(["--sparse=always", "--reflink=auto"])
        .args([disk, into])
        .output()
        .map_err(HostError::process("start", "cp"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(HostError::Program {
        command: format!("cp {} {}", disk.display(), into.display()),
        status: output.status.to_string(),
        output: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::tests::pretended;
    use crate::host::tests::fake_host;
    use vtax_lab::place::Hypervisor;

    #[test]
    fn a_host_that_does_not_fit_where_files_are_is_refused_with_a_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let host = fake_host(directory.path(), Hypervisor::Kvm);
        let settings = Settings {
            memory_mib: 1 << 30,
            ..Settings::default()
        };
        let said = has_room(directory.path(), &host, &settings).unwrap_err();
        assert!(said.to_string().contains("TMPDIR"), "{said}");
    }

    #[test]
    fn a_copy_has_the_same_bytes_and_no_more_blocks() {
        let directory = tempfile::tempdir().unwrap();
        let (from, into) = (directory.path().join("a"), directory.path().join("b"));
        let file = fs::File::create(&from).unwrap();
        file.set_len(64 << 20).unwrap();
        drop(file);
        copy(&from, &into).unwrap();
        let copied = fs::metadata(&into).unwrap();
        assert_eq!(copied.len(), 64 << 20);
        assert!(copied.blocks() * 512 < 1 << 20, "{}", copied.blocks());
        let missing = copy(&directory.path().join("none"), &into).unwrap_err();
        assert!(missing.to_string().contains("No such file"), "{missing}");
    }

    #[test]
    fn a_host_that_ends_before_its_rest_says_what_it_printed() {
        let directory = tempfile::tempdir().unwrap();
        let mut host = fake_host(directory.path(), Hypervisor::Kvm);
        host.emulator = pretended(
            directory.path(),
            "7.2.22",
            "echo no such machine >&2; exit 1",
        );
        let errand = Errand::Client;
        let said = Moment::start(&host, &Settings::default(), &errand)
            .err()
            .unwrap();
        let said = said.to_string();
        assert!(
            said.contains("no such machine") && said.contains("monitor"),
            "{said}"
        );
    }
}
