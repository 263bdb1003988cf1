//! The host-state journal: before vtax changes anything that outlives its processes, the old
//! state is written and synced here, so that it can be restored on exit, on a signal, and at
//! the next start after `kill -9`.
//!
//! One JSON line an entry, in the state directory. Entries are undone in reverse order and then
//! cut off the file, so an empty file means that the host is as it was found.

use crate::HostError;
use crate::cell::remove;
use crate::virsh::Virsh;
use crate::xenapi::{Access, Pool};
use crate::{kernel_file, loop_device, xl};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

/// One change to the host, recorded before it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "change")]
pub enum Change {
    /// A kernel setting gets a new value.
    Setting {
        /// The file under `/sys` or `/proc`.
        path: PathBuf,
        /// What to write back.
        old: String,
    },
    /// A control group directory is created; processes in it are killed when it is undone.
    Cgroup {
        /// The directory.
        path: PathBuf,
    },
    /// A Xen domain is created; it is destroyed when it is undone.
    Domain {
        /// Its name, which must start with `vtax-`.
        name: String,
        /// The image of its scratch disk, whose loop devices are freed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scratch: Option<PathBuf>,
    },
    /// The cap of a Xen domain is set.
    DomainCap {
        /// Its number.
        domain: u32,
        /// What it was, in percent of a processor; 0 is none.
        old: u32,
    },
    /// A domain of libvirt's is made; it is destroyed when it is undone.
    Libvirt {
        /// Which libvirt.
        uri: String,
        /// Its name, which must start with `vtax-`.
        name: String,
    },
    /// A VM is made in a pool of XenServer or XCP-ng; it is removed with its disks when it is undone.
    PoolVm {
        /// Which pool.
        pool: Access,
        /// Its name, which must start with `vtax-`.
        name: String,
    },
    /// A temporary directory is created; it is removed whole when it is undone.
    Directory {
        /// The directory; its name must start with `vtax-`.
        path: PathBuf,
    },
    /// A line that this version does not understand: a newer one changed something.
    #[serde(skip)]
    Unknown {
        /// The line.
        line: String,
    },
}

impl fmt::Display for Change {
    /// What was changed, as a thing: `the control group /sys/fs/cgroup/vtax-1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting { path, old } => {
                write!(
                    f,
                    "the setting {}, which was `{}`",
                    path.display(),
                    old.trim()
                )
            }
            Self::Cgroup { path } => write!(f, "the control group {}", path.display()),
            Self::Domain { name, .. } => write!(f, "the Xen domain {name}"),
            Self::DomainCap { domain, old } => {
                write!(f, "the cap of the Xen domain {domain}, which was {old} %")
            }
            Self::Libvirt { uri, name } => write!(f, "the domain {name} of {uri}"),
            Self::PoolVm { pool, name } => write!(f, "the VM {name} of the pool {}", pool.host),
            Self::Directory { path } => write!(f, "the directory {}", path.display()),
            Self::Unknown { line } => write!(f, "a change that this version does not know: {line}"),
        }
    }
}

/// An entry as stored: the change, and the boot in which it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    boot: String,
    #[serde(flatten)]
    change: Change,
}

/// When and where an entry was written.
#[derive(Debug, Clone)]
struct Place {
    boot: String,
    /// Where its line starts in the file.
    offset: u64,
}

/// The journal of this host.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    boot: String,
    changes: Vec<Change>,
    /// The place of each change.
    places: Vec<Place>,
}

/// A point in the journal to which it can be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(usize);

impl Journal {
    /// Opens the journal of `state_dir`, with whatever an earlier process left in it.
    ///
    /// # Errors
    /// When the directory or file cannot be created or read.
    pub fn open(state_dir: &Path) -> Result<Self, HostError> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self::open_in_boot(state_dir, boot.trim())
    }

    fn open_in_boot(state_dir: &Path, boot: &str) -> Result<Self, HostError> {
        fs::create_dir_all(state_dir).map_err(HostError::file("create", state_dir))?;
        let path = state_dir.join("journal.jsonl");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => String::new(),
            Err(cause) => {
                return Err(HostError::File {
                    action: "read",
                    path,
                    cause,
                });
            }
        };
        let (mut changes, mut places) = (Vec::new(), Vec::new());
        let mut offset = 0;
        for line in text.split_inclusive('\n') {
            match serde_json::from_str(line.trim_end()) {
                Ok(Entry { boot, change }) => {
                    changes.push(change);
                    places.push(Place { boot, offset });
                }
                // A line that was torn is a change that was never made: it had not been synced.
                Err(cause) if cause.is_eof() => {}
                Err(_) => {
                    changes.push(Change::Unknown {
                        line: line.trim().to_owned(),
                    });
                    places.push(Place {
                        boot: boot.to_owned(),
                        offset,
                    });
                }
            }
            offset += line.len() as u64;
        }
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(HostError::file("write", &path))?;
        file.seek(io::SeekFrom::End(0))
            .map_err(HostError::file("read", &path))?;
        Ok(Self {
            path,
            file,
            boot: boot.to_owned(),
            changes,
            places,
        })
    }

    /// What is recorded and not yet undone, oldest first.
    pub fn pending(&self) -> &[Change] {
        &self.changes
    }

    /// The present end, for [`Journal::undo_to`].
    pub fn mark(&self) -> Mark {
        Mark(self.changes.len())
    }

    /// Records a change and syncs it; only after this returns may the change be made.
    ///
    /// # Errors
    /// When it cannot be stored, in which case the change must not be made.
    pub fn record(&mut self, change: Change) -> Result<(), HostError> {
        self.record_all(vec![change])
    }

    /// Records several changes with one sync; only after this returns may they be made.
    ///
    /// # Errors
    /// When they cannot be stored, in which case none of them must be made.
    pub fn record_all(&mut self, changes: Vec<Change>) -> Result<(), HostError> {
        let start = self
            .file
            .stream_position()
            .map_err(HostError::file("read", &self.path))?;
        // A newline first: a torn line of an earlier crash must not swallow the first of these.
        let mut text = String::from("\n");
        let mut places = Vec::new();
        for change in &changes {
            // Undoing the first entry takes the newline before it along.
            let offset = if places.is_empty() {
                start
            } else {
                start + text.len() as u64
            };
            let entry = Entry {
                boot: self.boot.clone(),
                change: change.clone(),
            };
            text += &serde_json::to_string(&entry)
                .map_err(|cause| HostError::file("write", &self.path)(cause.into()))?;
            text.push('\n');
            places.push(Place {
                boot: entry.boot,
                offset,
            });
        }
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(HostError::file("write", &self.path))?;
        self.changes.extend(changes);
        self.places.extend(places);
        Ok(())
    }

    /// Undoes everything recorded since `mark`, last first, and forgets it.
    ///
    /// # Errors
    /// The first thing that could not be undone; it and what is older stays recorded.
    pub fn undo_to(&mut self, mark: Mark) -> Result<(), HostError> {
        while self.changes.len() > mark.0 {
            let (Some(change), Some(place)) = (self.changes.last(), self.places.last()) else {
                break;
            };
            // What is on disk or elsewhere is still there after a boot.
            let stays = matches!(change, Change::Directory { .. } | Change::PoolVm { .. });
            if place.boot == self.boot || stays {
                undo(change)?;
            }
            // Kernel state of an earlier boot is gone with that boot: nothing to undo.
            self.cut_last()?;
        }
        Ok(())
    }

    /// Takes the newest entry off the file and the list; an empty list leaves an empty file.
    fn cut_last(&mut self) -> Result<Option<Change>, HostError> {
        let (Some(change), Some(place)) = (self.changes.pop(), self.places.pop()) else {
            return Ok(None);
        };
        let end = if self.changes.is_empty() {
            0
        } else {
            place.offset
        };
        self.file
            .set_len(end)
            .and_then(|()| self.file.seek(io::SeekFrom::Start(end)))
            .and_then(|_| self.file.sync_data())
            .map_err(HostError::file("write", &self.path))?;
        Ok(Some(change))
    }

    /// Undoes everything, for a start after a crash and for `vtax restore`.
    ///
    /// # Errors
    /// As [`Journal::undo_to`].
    pub fn undo_all(&mut self) -> Result<usize, HostError> {
        let count = self.changes.len();
        self.undo_to(Mark(0))?;
        Ok(count)
    }

    /// Gives up on the newest entry, which could not be undone; returns it.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub fn forget_last(&mut self) -> Result<Option<Change>, HostError> {
        self.cut_last()
    }
}

fn undo(change: &Change) -> Result<(), HostError> {
    match change {
        Change::Setting { path, old } => kernel_file::restore(path, old).map(drop),
        Change::Cgroup { path } => remove::remove_stale(path),
        Change::Unknown { line } => Err(HostError::Invalid {
            what: format!("the journal's change {line}"),
            problem: "this version does not know it, perhaps a newer one does; restore with the version that made it, or undo it by hand and run `vtax restore --forget`".to_owned(),
        }),
        Change::Domain { name, scratch } => {
            xl::destroy(name)?;
            scratch.as_deref().map_or(Ok(()), loop_device::release_image)
        }
        Change::DomainCap { domain, old } => xl::restore_cap(*domain, *old),
        Change::Libvirt { uri, name } => Virsh {
            uri: uri.clone(),
            reads_only: false,
        }
        .end(name),
        Change::PoolVm { pool, name } => Pool::log_in(pool)?.end(name),
        Change::Directory { path } => {
            let ours = path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("vtax-"));
            if !ours {
                return Err(HostError::Invalid {
                    what: format!("the journal's directory {}", path.display()),
                    problem: "it is not named like one of ours and is not removed; look at it and remove it by hand, then run `vtax restore --forget`".to_owned(),
                });
            }
            match fs::remove_dir_all(path) {
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(HostError::File {
                    action: "remove",
                    path: path.clone(),
                    cause,
                }),
                _ => Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(base: &Path, name: &str) -> Change {
        let path = base.join(name);
        fs::create_dir_all(path.join("inner")).unwrap();
        Change::Directory { path }
    }

    #[test]
    fn what_a_crashed_process_recorded_is_undone_at_the_next_start() {
        let state = tempfile::tempdir().unwrap();
        let setting = state.path().join("governor");
        fs::write(&setting, "powersave\n").unwrap();
        let mut journal = Journal::open(state.path()).unwrap();
        journal
            .record(Change::Setting {
                path: setting.clone(),
                old: "powersave".into(),
            })
            .unwrap();
        fs::write(&setting, "performance\n").unwrap();
        journal.record(directory(state.path(), "vtax-a")).unwrap();
        drop(journal);

        let mut journal = Journal::open(state.path()).unwrap();
        assert_eq!(journal.undo_all().unwrap(), 2);
        assert_eq!(fs::read_to_string(&setting).unwrap().trim(), "powersave");
        assert!(!state.path().join("vtax-a").exists());
        assert_eq!(fs::read(state.path().join("journal.jsonl")).unwrap(), b"");
        assert_eq!(Journal::open(state.path()).unwrap().pending().len(), 0);
    }

    #[test]
    fn a_torn_line_is_ignored_and_does_not_swallow_the_next() {
        let state = tempfile::tempdir().unwrap();
        fs::write(
            state.path().join("journal.jsonl"),
            "\n{\"boot\":\"x\",\"chan",
        )
        .unwrap();
        let mut journal = Journal::open(state.path()).unwrap();
        assert_eq!(journal.pending().len(), 0);
        journal.record(directory(state.path(), "vtax-b")).unwrap();
        assert_eq!(Journal::open(state.path()).unwrap().pending().len(), 1);
    }

    #[test]
    fn a_change_of_a_newer_version_is_kept_and_said_until_it_is_forgotten() {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join("journal.jsonl");
        fs::write(&file, "{\"boot\":\"x\",\"change\":\"moon\",\"phase\":3}\n").unwrap();
        let mut journal = Journal::open(state.path()).unwrap();
        assert_eq!(journal.pending().len(), 1);
        let message = journal.undo_all().unwrap_err().to_string();
        assert!(
            message.contains("moon") && message.contains("--forget"),
            "{message}"
        );
        assert_eq!(Journal::open(state.path()).unwrap().pending().len(), 1);
        journal.forget_last().unwrap();
        assert_eq!(Journal::open(state.path()).unwrap().pending().len(), 0);
    }

    #[test]
    fn settings_of_an_earlier_boot_are_not_written_back() {
        let state = tempfile::tempdir().unwrap();
        let setting = state.path().join("governor");
        fs::write(&setting, "chosen since\n").unwrap();
        let mut journal = Journal::open_in_boot(state.path(), "first").unwrap();
        journal
            .record(Change::Setting {
                path: setting.clone(),
                old: "old".into(),
            })
            .unwrap();
        drop(journal);
        let mut journal = Journal::open_in_boot(state.path(), "second").unwrap();
        journal.undo_all().unwrap();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "chosen since\n");
        assert_eq!(journal.pending().len(), 0);
    }

    #[test]
    fn undoing_to_a_mark_keeps_what_is_older() {
        let state = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(state.path()).unwrap();
        journal.record(directory(state.path(), "vtax-old")).unwrap();
        let mark = journal.mark();
        journal.record(directory(state.path(), "vtax-new")).unwrap();
        journal.undo_to(mark).unwrap();
        assert!(state.path().join("vtax-old").exists());
        assert!(!state.path().join("vtax-new").exists());
        assert_eq!(Journal::open(state.path()).unwrap().pending().len(), 1);
    }

    #[test]
    fn a_domain_is_recorded_by_name_and_one_that_does_not_end_stays_recorded() {
        let state = tempfile::tempdir().unwrap();
        let domain = |name: &str, scratch: Option<&str>| Change::Domain {
            name: name.to_owned(),
            scratch: scratch.map(PathBuf::from),
        };
        let changes = vec![
            domain("vtax-trial-1", Some("/cache/scratch.ext4")),
            domain("Domain-0", None),
        ];
        let mut journal = Journal::open(state.path()).unwrap();
        journal.record_all(changes.clone()).unwrap();
        drop(journal);
        let mut journal = Journal::open(state.path()).unwrap();
        assert_eq!(journal.pending(), changes);
        let message = journal.undo_all().unwrap_err().to_string();
        assert!(message.contains("Domain-0"), "{message}");
        assert_eq!(journal.pending(), changes);
    }

    #[test]
    fn a_domain_of_an_earlier_boot_went_with_it() {
        let state = tempfile::tempdir().unwrap();
        let mut journal = Journal::open_in_boot(state.path(), "first").unwrap();
        journal
            .record(Change::Domain {
                name: "vtax-trial-1".to_owned(),
                scratch: None,
            })
            .unwrap();
        drop(journal);
        let mut journal = Journal::open_in_boot(state.path(), "second").unwrap();
        // There need be no Xen any more.
        assert_eq!(journal.undo_all().unwrap(), 1);
        assert_eq!(journal.pending().len(), 0);
    }

    #[test]
    fn a_vm_of_a_pool_is_still_there_after_a_boot_and_stays_recorded_until_it_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let made = Change::PoolVm {
            pool: Access {
                host: "pool.invalid".to_owned(),
                authorities: None,
                fingerprint: None,
                login: Some(state.path().join("nowhere")),
            },
            name: "vtax-trial-1".to_owned(),
        };
        let mut journal = Journal::open_in_boot(state.path(), "first").unwrap();
        journal.record(made.clone()).unwrap();
        let mut journal = Journal::open_in_boot(state.path(), "second").unwrap();
        let message = journal.undo_all().unwrap_err().to_string();
        assert!(message.contains("nowhere"), "{message}");
        assert_eq!(journal.pending(), [made]);
    }

    #[test]
    fn a_directory_that_is_not_ours_is_never_removed() {
        let state = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(state.path()).unwrap();
        let foreign = state.path().join("precious");
        fs::create_dir(&foreign).unwrap();
        journal
            .record(Change::Directory {
                path: foreign.clone(),
            })
            .unwrap();
        assert!(journal.undo_all().is_err());
        assert!(foreign.exists());
        assert_eq!(
            journal.pending().len(),
            1,
            "what could not be undone stays recorded"
        );
        journal.forget_last().unwrap();
        assert_eq!(Journal::open(state.path()).unwrap().pending().len(), 0);
    }
}
