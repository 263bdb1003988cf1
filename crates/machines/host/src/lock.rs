// SPDX-License-Identifier: Apache-2.0
//! The lock of a host: two runs at a time would disturb each other's measurements.

use crate::HostError;
use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tracing::debug;
use vtax_files::Dir;

/// The lock file's name in the state directory.
const FILE: &str = "lock";
/// The file holds one line; more is not read.
const MOST_BYTES: u64 = 64 << 10;

/// The lock of a run. The kernel releases it however the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the host's lock; `purpose` describes the run to others.
    ///
    /// # Errors
    /// When another run holds it, naming that run.
    pub fn acquire(state_dir: &Path, purpose: &str) -> Result<Self, HostError> {
        let path = state_dir.join(FILE);
        // A process that can open the file can lock it and so block every run and restore.
        let mut file = Dir::private(state_dir)?.edit(FILE)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(HostError::Busy {
                    what: format!("another vtax run is on this host ({})", holder(&file)),
                    remedy: "two runs would measure each other; wait for it to end, or stop it"
                        .to_owned(),
                });
            }
            Err(TryLockError::Error(cause)) => {
                return Err(HostError::File {
                    action: "lock",
                    path,
                    cause,
                });
            }
        }
        let text = format!("process {}, {purpose}\n", std::process::id());
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(text.as_bytes()))
            .map_err(HostError::file("write", &path))?;
        debug!("holds the lock {}: {purpose}", path.display());
        Ok(Self { _file: file })
    }
}

/// The holder of the lock, in words. The file names the last run that took the lock, which may have ended.
/// `/proc/locks` names the present holder's process, unless it is in a PID namespace that this process does not see.
fn holder(lock: &File) -> String {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let Some(process) = holding(&locks, lock) else {
        return "the kernel does not name its process here, which may be in another PID namespace; as root on the host: lslocks".to_owned();
    };
    let mut text = String::new();
    // Without the text the process number is still right.
    let _ = lock.take(MOST_BYTES).read_to_string(&mut text);
    let text = text.trim();
    if text.starts_with(&format!("process {process}, ")) {
        return text.to_owned();
    }
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    match name.trim() {
        "" => format!("process {process}, which is no vtax run"),
        name => format!("process {process}, {name}, which is no vtax run"),
    }
}

/// The process that holds an exclusive or shared flock on a file, from the lines of `/proc/locks` (proc_locks(5)):
/// `1: FLOCK  ADVISORY  WRITE 8570 fe:00:464 0 EOF`, with the device's numbers in hexadecimal. Lines of waiting
/// processes have `->` after the first field.
fn holding(locks: &str, file: &File) -> Option<u32> {
    let known = file.metadata().ok()?;
    let device = known.dev();
    let place = format!(
        "{:02x}:{:02x}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device),
        known.ino()
    );
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, process, at, ..] = fields.as_slice() else {
            return None;
        };
        if *at != place {
            return None;
        }
        // 0 and -1 mark processes that this namespace does not see.
        process.parse().ok().filter(|process| *process > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_run_learns_who_holds_the_lock() {
        let state = tempfile::tempdir().unwrap();
        let first = Lock::acquire(state.path(), "running plan a").unwrap();
        let refused = Lock::acquire(state.path(), "running plan b")
            .unwrap_err()
            .to_string();
        assert!(refused.contains("running plan a"), "{refused}");
        assert!(
            refused.contains(&std::process::id().to_string()),
            "{refused}"
        );
        drop(first);
        // A process that another test has just forked holds it until it executes its program.
        let second = || Lock::acquire(state.path(), "running plan b");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while second().is_err() {
            assert!(std::time::Instant::now() < deadline, "it is not released");
        }
    }

    #[test]
    fn the_process_that_holds_the_lock_is_named_and_not_the_one_that_ended() {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join(FILE);
        fs::write(&path, "process 4194304, running plan that ended\n").unwrap();
        let held = File::open(&path).unwrap();
        held.lock().unwrap();
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let own = std::process::id();
        if holding(&locks, &held) != Some(own) {
            eprintln!("SKIPPED: this kernel's /proc/locks does not name locks of this file system");
            return;
        }
        let refused = Lock::acquire(state.path(), "running plan b").unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains(&format!("process {own}, ")), "{refused}");
        assert!(!refused.contains("that ended"), "{refused}");
    }

    #[test]
    fn a_holder_that_is_not_seen_is_not_guessed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        fs::write(&path, "").unwrap();
        let file = File::open(&path).unwrap();
        let known = file.metadata().unwrap();
        let (major, minor) = (
            rustix::fs::major(known.dev()),
            rustix::fs::minor(known.dev()),
        );
        let line = |kind: &str, process: &str, node: u64| {
            format!("1: {kind}  ADVISORY  WRITE {process} {major:02x}:{minor:02x}:{node} 0 EOF\n")
        };
        let node = known.ino();
        assert_eq!(holding(&line("FLOCK", "77", node), &file), Some(77));
        for other in [
            line("FLOCK", "0", node),
            line("FLOCK", "-1", node),
            line("POSIX", "77", node),
            line("-> FLOCK", "77", node),
            line("FLOCK", "77", node + 1),
            "1: FLOCK\n\n".to_owned(),
        ] {
            assert_eq!(holding(&other, &file), None, "{other}");
        }
    }

    #[test]
    fn no_other_user_can_open_the_lock_even_where_an_earlier_version_let_them() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path().join("state");
        let set = |path: &Path, mode| {
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        };
        fs::create_dir(&state).unwrap();
        set(&state, 0o755);
        fs::write(state.join(FILE), "").unwrap();
        set(&state.join(FILE), 0o644);
        let _lock = Lock::acquire(&state, "running plan a").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&state), mode(&state.join(FILE))), (0o700, 0o600));
    }
}
