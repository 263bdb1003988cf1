// SPDX-License-Identifier: Apache-2.0
//! The snapshot that trials start from. A host boots, becomes idle, and stops itself at an exact instruction. Its
//! memory and its root disk are files, which the machine of each trial maps privately: no trial sees the writes of
//! another, and each starts with the same bits. The payload is loaded after the start, so a snapshot serves every plan
//! whose hosts boot alike, until the next boot of this machine.

use crate::host::Host;
use crate::machine::{self, Files};
use crate::payload::{BootFiles, PAYLOAD_BYTES, Payload};
use crate::process::{Ports, QemuProcess, SILENT_CPU_TIME, STATE, tail};
use crate::scratch::{self, Scratch};
use crate::settings::Settings;
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};
use std::cmp::Reverse;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};
use tracing::{debug, info, warn};
use vtax_files::Dir;
use vtax_guest::platform::qemu::Qmp;
use vtax_host::HostError;
use vtax_lab::LabError;

/// Time limit of a host's boot, also on a busy machine.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1800);

/// Time limit of writing the state, some hundred KiB.
const SAVE_TIMEOUT: Duration = Duration::from_secs(60);

/// The event of QEMU when a host stops itself: see `guest/start.sh`.
const STOPPED: &str = "STOP";

/// The number of unused snapshots that stay in the cache; each takes 1 GiB, with Xen 2.5.
const SPARE: usize = 4;

/// The seed of the machine that creates a snapshot; the machines of trials have their own.
const SEED: u32 = 1;

/// A snapshot, or the host that boots to create it.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Its directory, once it is complete.
    path: PathBuf,
    /// The lock against its removal; unset while its host boots.
    lock: Option<File>,
    booting: Option<Booting>,
    has_pstates: bool,
}

/// A host that boots to create a snapshot.
#[derive(Debug)]
struct Booting {
    machine: QemuProcess,
    monitor: Qmp,
    since: Instant,
    /// The files of the snapshot, on the file system of the cache.
    made: Scratch,
    /// Temporary files: monitor, console and ports.
    scratch: Scratch,
}

impl Snapshot {
    /// The snapshot of hosts with such a payload, from the cache if it has one; otherwise a host boots to create it.
    ///
    /// # Errors
    /// When its files cannot be written, or QEMU does not start.
    pub fn for_host(
        host: &Host,
        settings: &Settings,
        payload: &Payload<'_>,
    ) -> Result<Self, LabError> {
        let settings = Settings {
            seed: SEED,
            ..settings.clone()
        };
        Dir::create(&host.cache).map_err(HostError::from)?;
        let made = Scratch::create(&host.cache)?;
        let directory = made.path().join(MADE);
        fs::create_dir(&directory).map_err(HostError::file("create", &directory))?;
        let boot_files = BootFiles::pack(&directory, host, &settings, payload, None)?;
        let name = name(host, &settings, &boot_files)?;
        let mut snapshot = Self {
            lock: None,
            path: host.cache.join(name),
            booting: None,
            has_pstates: boot_files.pstates.is_some(),
        };
        let path = snapshot.path.display().to_string();
        if snapshot.take() {
            debug!("trials start from the snapshot {path}");
            return Ok(snapshot);
        }
        info!("a host boots for the snapshot {path}");
        tidy(&host.cache, SPARE);
        if has_room(&host.cache, host, &settings).is_err() {
            tidy(&host.cache, 0);
            has_room(&host.cache, host, &settings)?;
        }
        copy(&host.root().path, &directory.join(ROOT))?;
        // Not in the cache, since the path of a socket has at most 107 bytes.
        let scratch = Scratch::create(&std::env::temp_dir())?;
        let ports = Ports::create(scratch.path())?;
        let monitor = scratch.path().join("monitor");
        // The memory of the payload exists, but is empty.
        let payload = scratch.path().join("payload");
        vtax_files::create(&payload)
            .map_err(HostError::from)?
            .set_len(PAYLOAD_BYTES)
            .map_err(HostError::file("write", &payload))?;
        let paths = Paths::in_directory(&directory, snapshot.has_pstates);
        let files = paths.files(&ports, &payload, &monitor, true);
        let line = machine::command_line(host, &settings, files);
        let mut machine = QemuProcess::start(&line, Some(&directory.join(STATE_FILE)))?;
        let monitor = machine.monitor(&monitor)?;
        snapshot.booting = Some(Booting {
            machine,
            monitor,
            since: Instant::now(),
            made,
            scratch,
        });
        Ok(snapshot)
    }

    /// Its files, for machines that start from it.
    pub fn paths(&self) -> Paths {
        Paths::in_directory(&self.path, self.has_pstates)
    }

    /// Whether trials can start; stores the snapshot once its host has stopped.
    ///
    /// # Errors
    /// When the host ends early, computes for too long, or its state cannot be stored.
    pub fn is_ready(&mut self) -> Result<bool, LabError> {
        let Some(booting) = &mut self.booting else {
            return Ok(true);
        };
        if !booting.has_stopped()? {
            return Ok(false);
        }
        // QEMU does not wait for the command, so the state gets its name once it is complete.
        let state = format!("exec:cat >\"${STATE}.part\" && mv \"${STATE}.part\" \"${STATE}\"");
        booting.monitor.save(&state)?;
        // The state is saved, so a failure to quit does not matter.
        let _ = booting.monitor.quit();
        let made = booting.made.path().join(MADE);
        let state = made.join(STATE_FILE);
        let saved = Instant::now();
        while !state.exists() {
            if saved.elapsed() > SAVE_TIMEOUT {
                return Err(LabError::Host(HostError::Timeout {
                    what: "saving the state of the emulated host".into(),
                    seconds: SAVE_TIMEOUT.as_secs(),
                    evidence: format!("is there room in {}?", made.display()),
                }));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // Locked before it is visible to others.
        let lock = File::open(&state).map_err(HostError::file("open", &state))?;
        flock(&lock, FlockOperation::LockShared)
            .map_err(|cause| HostError::file("lock", &state)(cause.into()))?;
        match fs::rename(&made, &self.path) {
            Ok(()) => self.lock = Some(lock),
            // Another process may have created the same snapshot meanwhile.
            Err(cause) if !self.take() => {
                return Err(HostError::file("create", &self.path)(cause).into());
            }
            Err(_) => {}
        }
        info!("the snapshot {} is ready", self.path.display());
        self.booting = None;
        Ok(true)
    }

    /// Removes it after a machine could not start from it. Running machines have its files open.
    pub fn discard(self) {
        if self.lock.is_some() {
            warn!(
                "no machine starts from the snapshot {}: it is removed",
                self.path.display()
            );
            // If that fails, the next trial reports why it cannot start.
            let _ = scratch::remove(&self.path);
        }
    }

    /// Locks it against removal for the lifetime of this value, if it is in the cache.
    fn take(&mut self) -> bool {
        let path = self.path.join(STATE_FILE);
        let Ok(state) = File::open(&path) else {
            return false;
        };
        let locked = flock(&state, FlockOperation::LockShared).is_ok();
        // Another process may have removed it before the lock.
        let is_there = locked && fs::exists(&path).unwrap_or(false);
        if is_there {
            // Snapshots are removed in the order of this time. The time of another user's file cannot be set.
            let _ = state.set_modified(SystemTime::now());
            self.lock = Some(state);
        }
        is_there
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if self.lock.take().is_some() {
            tidy(self.path.parent().unwrap_or(&self.path), SPARE);
        }
    }
}

impl Booting {
    fn has_stopped(&mut self) -> Result<bool, LabError> {
        let stopped = self.monitor.has_sent(STOPPED, Duration::from_millis(1));
        let console = self.scratch.path().join("console");
        if let Some(status) = self.machine.ended()? {
            let bus = rustix::process::Signal::BUS.as_raw();
            let full = match status.signal() {
                Some(signal) if signal == bus => ": is there room in the cache of vtax?",
                _ => "",
            };
            let status = format!("{status}, before it was ready for a snapshot{full}");
            let ended = self
                .machine
                .early_end("the emulated host", status, &console);
            return Err(ended.into());
        }
        // An idle host uses no processor time, and one on a busy machine little.
        if self.machine.computed() > SILENT_CPU_TIME || self.since.elapsed() > OUTPUT_TIMEOUT {
            return Err(LabError::Host(HostError::Timeout {
                what: "the boot of the emulated host".into(),
                seconds: self.since.elapsed().as_secs(),
                evidence: tail(&console),
            }));
        }
        stopped.map_err(LabError::Host)
    }
}

/// The directory of an incomplete snapshot.
const MADE: &str = "snapshot";
const ROOT: &str = "root";
const STATE_FILE: &str = "state";

/// The files of a snapshot.
pub(crate) struct Paths {
    initrd: PathBuf,
    pstates: Option<PathBuf>,
    memory: PathBuf,
    root: PathBuf,
    /// The state of its devices.
    pub state: PathBuf,
}

impl Paths {
    fn in_directory(directory: &Path, has_pstates: bool) -> Self {
        let boot_files = BootFiles::in_directory(directory, has_pstates);
        Self {
            initrd: boot_files.initrd,
            pstates: boot_files.pstates,
            memory: directory.join("memory"),
            root: directory.join(ROOT),
            state: directory.join(STATE_FILE),
        }
    }

    /// The files of the machine that creates the snapshot, or of one that starts from it.
    pub fn files<'a>(
        &'a self,
        ports: &'a Ports,
        payload: &'a Path,
        monitor: &'a Path,
        creates: bool,
    ) -> Files<'a> {
        Files {
            initrd: &self.initrd,
            payload,
            pstates: self.pstates.as_deref(),
            snapshot: Some(machine::SnapshotFiles {
                memory: &self.memory,
                root: &self.root,
                monitor,
                creates,
            }),
            ..ports.files()
        }
    }
}

/// The migration source of a machine that starts from a snapshot.
pub(crate) fn from_state() -> String {
    format!("exec:cat \"${STATE}\"")
}

/// The name of a snapshot. It depends on the host's image, on this boot of this machine, since unwritten data is lost
/// with a power failure, and on all boot files. The guests' disk is mounted later, so only its size counts.
fn name(host: &Host, settings: &Settings, boot_files: &BootFiles) -> Result<String, HostError> {
    let nowhere = Path::new("");
    let paths = Paths::in_directory(nowhere, boot_files.pstates.is_some());
    let ports = Ports::in_directory(nowhere);
    let files = paths.files(&ports, nowhere, nowhere, true);
    let mut alike = host.clone();
    let [_, guests] = &mut alike.disks;
    guests.path.clear();
    let line = machine::command_line(&alike, settings, files);
    let mut digest = Sha256::new();
    // Other users cannot use it.
    digest.update(rustix::process::geteuid().as_raw().to_le_bytes());
    for word in line.words() {
        digest.update(word.as_bytes());
        digest.update([0]);
    }
    digest.update(host.emulator.describe()?);
    for file in std::iter::once(&boot_files.initrd).chain(&boot_files.pstates) {
        digest.update(fs::read(file).map_err(HostError::file("read", file))?);
    }
    let images = [&host.files.kernel, &host.root().path];
    for file in images.into_iter().chain(&host.xen) {
        let found = fs::metadata(file).map_err(HostError::file("read", file))?;
        digest.update(file.as_os_str().as_encoded_bytes());
        // The identity of a file in place of its gigabytes of content.
        for number in [
            found.dev(),
            found.ino(),
            found.len(),
            found.mtime().cast_unsigned(),
            found.mtime_nsec().cast_unsigned(),
        ] {
            digest.update(number.to_le_bytes());
        }
    }
    let digest = format!("{:x}", digest.finalize());
    let digest = digest.get(..16).unwrap_or(&digest);
    Ok(format!("{}-{}-{digest}", boot()?, host.files.recipe))
}

/// The prefix of the names of snapshots of this boot of this machine.
fn boot() -> Result<String, HostError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let id = fs::read_to_string(path).map_err(HostError::file("read", path))?;
    let id = id.get(..8).unwrap_or(&id);
    Ok(format!("{PREFIX}{id}"))
}

const PREFIX: &str = "snapshot-";

/// Removes the snapshots of earlier boots, and all but the last `spare` unused ones. Those of other users stay.
fn tidy(cache: &Path, spare: usize) {
    let Ok(boot) = boot() else { return };
    let own = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let mut snapshots: Vec<(bool, SystemTime, PathBuf, File)> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
        .filter_map(|entry| {
            let state = File::open(entry.path().join(STATE_FILE)).ok()?;
            flock(&state, FlockOperation::NonBlockingLockExclusive).ok()?;
            let of_today = entry.file_name().to_string_lossy().starts_with(&boot);
            let found = state.metadata().ok().filter(|found| found.uid() == own)?;
            Some((of_today, found.modified().ok()?, entry.path(), state))
        })
        .collect();
    snapshots.sort_by_key(|snapshot| Reverse((snapshot.0, snapshot.1)));
    let newest = snapshots.iter().take(spare);
    let spare = newest.filter(|snapshot| snapshot.0).count();
    let gone = snapshots.split_off(spare);
    // Releases the locks of the snapshots that stay.
    drop(snapshots);
    for (_, _, path, _state) in gone {
        // The next run tries again.
        match scratch::remove(&path) {
            Ok(()) => debug!("the unused snapshot {} is removed", path.display()),
            Err(cause) => warn!("the unused snapshot {} is left: {cause}", path.display()),
        }
    }
}

/// Checks the free space for the files of memory and root disk, since the kernel kills a QEMU whose page cannot be
/// written. An idle host has written a fifth of its memory, one with Xen three fifths, and little of its disk.
fn has_room(below: &Path, host: &Host, settings: &Settings) -> Result<(), HostError> {
    let room = rustix::fs::statvfs(below)
        .map_err(|cause| HostError::file("look at", below)(cause.into()))?;
    let room = room.f_bavail.saturating_mul(room.f_frsize) >> 20;
    let root = &host.root().path;
    let disk = fs::metadata(root).map_err(HostError::file("read", root))?;
    let memory = match host.xen {
        None => u64::from(settings.memory_mib) / 3,
        Some(_) => u64::from(settings.memory_mib) * 2 / 3,
    };
    let needed = memory + ((disk.blocks() * 512) >> 20);
    if room >= needed {
        return Ok(());
    }
    Err(HostError::Setting(format!(
        "an emulated host's memory and disk are files in {} and take {needed} MiB; {room} MiB are free there: set VTAX_CACHE_DIR to a directory with more room",
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
    Err(HostError::program(
        format!("cp {} {}", disk.display(), into.display()),
        &output,
    ))
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
        let printed = has_room(directory.path(), &host, &settings).unwrap_err();
        assert!(printed.to_string().contains("VTAX_CACHE_DIR"), "{printed}");
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
    fn what_nobody_uses_goes_but_for_the_last_ones_and_what_is_used_stays() {
        let cache = tempfile::tempdir().unwrap();
        let boot = boot().unwrap();
        let keep = |name: String, age: u64| {
            let path = cache.path().join(name);
            fs::create_dir(&path).unwrap();
            let state = File::create(path.join(STATE_FILE)).unwrap();
            let used = SystemTime::now() - Duration::from_secs(age);
            state.set_modified(used).unwrap();
            path
        };
        let of_today: Vec<PathBuf> = (0..7)
            .map(|age| keep(format!("{boot}-recipe-{age}"), 10 * age))
            .collect();
        let earlier = keep("snapshot-before-recipe-0".to_owned(), 5);
        let another = keep("root-recipe.ext4".to_owned(), 1000);
        let mut used = Snapshot {
            path: of_today[5].clone(),
            lock: None,
            booting: None,
            has_pstates: false,
        };
        let other = File::open(of_today[6].join(STATE_FILE)).unwrap();
        flock(&other, FlockOperation::LockShared).unwrap();
        // A snapshot in use counts as new.
        assert!(used.take() && used.is_ready().unwrap());

        while of_today[4].exists() || earlier.exists() {
            tidy(cache.path(), SPARE);
        }
        let left: Vec<bool> = of_today.iter().map(|path| path.exists()).collect();
        assert_eq!(left, [true, true, true, true, false, true, true]);
        assert!(another.exists());

        drop(used);
        // A child process of another test may briefly have the lock, too.
        while of_today[3].exists() {
            tidy(cache.path(), SPARE);
        }
        let left: Vec<bool> = of_today.iter().map(|path| path.exists()).collect();
        assert_eq!(left, [true, true, true, false, false, true, true]);
        let mut gone = Snapshot {
            path: of_today[3].clone(),
            lock: None,
            booting: None,
            has_pstates: false,
        };
        assert!(!gone.take());

        let mut bad = Snapshot {
            path: of_today[0].clone(),
            lock: None,
            booting: None,
            has_pstates: false,
        };
        assert!(bad.take());
        let logged = vtax_log::testing::logged(|| bad.discard());
        let expected = format!(
            "<4>vtax_testbed::snapshot: no machine starts from the snapshot {}",
            of_today[0].display()
        );
        assert!(logged.starts_with(&expected), "{logged}");
        assert!(!of_today[0].exists() && of_today[1].exists());

        // When free space is short, only snapshots in use stay.
        while of_today[1].exists() || of_today[2].exists() {
            tidy(cache.path(), 0);
        }
        assert!(of_today[6].exists());
    }

    #[test]
    fn a_snapshot_serves_hosts_that_boot_alike() {
        let directory = tempfile::tempdir().unwrap();
        let mut host = fake_host(directory.path(), Hypervisor::Kvm);
        host.emulator = pretended(directory.path(), "7.2.22", "exit 1");
        let name_of = |host: &Host, settings: &Settings, plan: &str, governors: bool| {
            let payload = Payload::Trial {
                binary: Path::new("/nowhere"),
                command: "run",
                plan,
                rest: Duration::ZERO,
                governors,
            };
            let packed = tempfile::tempdir().unwrap();
            let boot_files =
                BootFiles::pack(packed.path(), host, settings, &payload, None).unwrap();
            name(host, settings, &boot_files).unwrap()
        };
        let settings = Settings::default();
        let first = name_of(&host, &settings, "a", false);
        assert_eq!(first, name_of(&host, &settings, "b", false));
        assert_ne!(first, name_of(&host, &settings, "a", true));
        let more = Settings {
            memory_mib: settings.memory_mib * 2,
            ..settings.clone()
        };
        assert_ne!(first, name_of(&host, &more, "a", false));
        // The images of guests are read after the boot, so that the snapshot does not depend on them.
        host.disks[1].path.set_extension("another");
        assert_eq!(first, name_of(&host, &settings, "a", false));
        for file in [
            host.files.initrd.clone(),
            host.files.kernel.clone(),
            host.root().path.clone(),
        ] {
            let before = name_of(&host, &settings, "a", false);
            fs::write(&file, "another").unwrap();
            assert_ne!(
                before,
                name_of(&host, &settings, "a", false),
                "{}",
                file.display()
            );
        }
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
        let payload = Payload::Client;
        let printed = Snapshot::for_host(&host, &Settings::default(), &payload)
            .err()
            .unwrap();
        let printed = printed.to_string();
        assert!(
            printed.contains("no such machine") && printed.contains("monitor"),
            "{printed}"
        );
    }
}
