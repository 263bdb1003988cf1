// SPDX-License-Identifier: Apache-2.0
//! The host-state journal. Before vtax changes anything that outlives its processes, the old state is written and
//! synced here. It is restored on exit, on a signal, and at the next start after `kill -9`.
//!
//! The journal has one JSON line for each entry, in the state directory. Entries are undone in reverse order and then
//! cut off the file. An empty file means that the host is in its original state.

use crate::HostError;
use crate::cell::remove;
use crate::kernel_file::{self, Restored, Written};
use crate::virsh::Virsh;
use crate::xenapi::{Access, Pool};
use crate::{loop_device, xentrace, xl};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tracing::{debug, error, info, warn};
use vtax_core::counted;
use vtax_files::Dir;

/// The journal's name in the state directory.
const FILE: &str = "journal.jsonl";
/// The most bytes of a journal. A change has some hundred bytes.
const MOST_BYTES: u64 = 256 << 20;

/// One change to the host, recorded before it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "change")]
pub enum Change {
    /// A kernel setting gets a new value.
    Setting {
        /// The file under `/sys` or `/proc`.
        path: PathBuf,
        /// The value to write back.
        old: String,
        /// The values that vtax wrote. `None` in journals of versions that did not record these.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        written: Option<Written>,
    },
    /// A control group directory is created. Undoing kills its processes and removes it.
    Cgroup {
        /// The directory.
        path: PathBuf,
    },
    /// A Xen domain is created. Undoing destroys it.
    Domain {
        /// Its name, which must start with `vtax-`.
        name: String,
        /// The image of its scratch disk. Undoing frees the image's loop devices.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scratch: Option<PathBuf>,
    },
    /// The cap of a Xen domain is set.
    DomainCap {
        /// The domain's number.
        domain: u32,
        /// The old cap in percent of a processor; 0 is none.
        old: u32,
        /// The caps that vtax set. `None` in journals of versions that did not record these.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        written: Option<Written>,
    },
    /// Xen writes records into its trace buffers, with a mask of vtax. Undoing ends that and sets Xen's own mask.
    XenTrace,
    /// A libvirt domain is created. Undoing destroys it.
    Libvirt {
        /// The URI of the libvirt connection.
        uri: String,
        /// Its name, which must start with `vtax-`.
        name: String,
    },
    /// A VM is created in a pool of XenServer or XCP-ng. Undoing removes it with its disks.
    PoolVm {
        /// The pool.
        pool: Access,
        /// Its name, which must start with `vtax-`.
        name: String,
    },
    /// A temporary directory is created. Undoing removes it with its contents.
    Directory {
        /// The directory; its name must start with `vtax-`.
        path: PathBuf,
    },
    /// A line that this version does not understand, from a newer version.
    #[serde(skip)]
    Unknown {
        /// The line.
        line: String,
    },
}

impl fmt::Display for Change {
    /// Names the changed object: `the control group /sys/fs/cgroup/vtax-1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting { path, old, .. } => {
                write!(
                    f,
                    "the setting {}, which was `{}`",
                    path.display(),
                    old.trim()
                )
            }
            Self::Cgroup { path } => write!(f, "the control group {}", path.display()),
            Self::Domain { name, .. } => write!(f, "the Xen domain {name}"),
            Self::DomainCap { domain, old, .. } => {
                write!(f, "the cap of the Xen domain {domain}, which was {old} %")
            }
            Self::XenTrace => f.write_str("the tracing of Xen"),
            Self::Libvirt { uri, name } => write!(f, "the domain {name} of {uri}"),
            Self::PoolVm { pool, name } => write!(f, "the VM {name} of the pool {}", pool.host),
            Self::Directory { path } => write!(f, "the directory {}", path.display()),
            Self::Unknown { line } => write!(f, "a change that this version does not know: {line}"),
        }
    }
}

impl Change {
    /// Whether undoing it restores a value of the host. Otherwise it removes what vtax made.
    fn is_of_a_value(&self) -> bool {
        matches!(
            self,
            Self::Setting { .. } | Self::DomainCap { .. } | Self::XenTrace
        )
    }

    /// The value that vtax is about to set, where it is known.
    fn new_value(&self) -> Option<&str> {
        let (Self::Setting { written, .. } | Self::DomainCap { written, .. }) = self else {
            return None;
        };
        written.as_ref()?.values.last().map(String::as_str)
    }
}

/// An entry as stored: the change, and the boot id at the time of the change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    boot: String,
    #[serde(flatten)]
    change: Change,
}

/// The boot and the file position of an entry.
#[derive(Debug, Clone)]
struct Place {
    boot: String,
    /// The file's length after the entry is cut off.
    offset: u64,
    /// The start of its line, and the line's length without the newline.
    line: u64,
    room: usize,
}

/// Blanks at the end of a setting's line, so that later values fit into it.
const BLANKS: usize = 64;

/// A recorded entry, for [`Journal::rewrite`]; valid until the journal is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded(usize);

/// A change that was not undone, because the value in force is not one that vtax set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The change.
    pub change: Change,
    /// The reason, in words.
    pub why: String,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not restored: {}: {}", self.change, self.why)
    }
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
    /// The number of the first changes, which an earlier process made.
    found: usize,
    /// The changes that were left in place during undoing.
    left: Vec<Left>,
}

/// A point in the journal to which it can be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(usize);

impl Journal {
    /// Opens the journal of `state_dir`, with the entries of earlier processes.
    ///
    /// # Errors
    /// When the directory or file cannot be created or read.
    pub fn open(state_dir: &Path) -> Result<Self, HostError> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self::open_in_boot(state_dir, boot.trim())
    }

    fn open_in_boot(state_dir: &Path, boot: &str) -> Result<Self, HostError> {
        let path = state_dir.join(FILE);
        // The journal's values are written to kernel settings, so no other user may write to it.
        let state = Dir::private(state_dir)?;
        let mut file = state.edit(FILE)?;
        let text = state.read_text(FILE, MOST_BYTES)?;
        let (mut changes, mut places) = (Vec::new(), Vec::new());
        let mut offset = 0;
        for line in text.split_inclusive('\n') {
            let place = |boot: String| Place {
                boot,
                offset,
                line: offset,
                room: line.trim_end_matches('\n').len(),
            };
            match serde_json::from_str(line.trim_end()) {
                Ok(Entry { boot, change }) => {
                    changes.push(change);
                    places.push(place(boot));
                }
                // A torn line had not been synced, so its change was never made.
                Err(cause) if cause.is_eof() => {}
                Err(_) => {
                    changes.push(Change::Unknown {
                        line: line.trim().to_owned(),
                    });
                    places.push(place(boot.to_owned()));
                }
            }
            offset += line.len() as u64;
        }
        file.seek(io::SeekFrom::End(0))
            .map_err(HostError::file("read", &path))?;
        if !changes.is_empty() {
            warn!(
                "an earlier vtax was cut off: {} has {} of it",
                path.display(),
                counted(changes.len(), "change")
            );
        }
        Ok(Self {
            path,
            file,
            boot: boot.to_owned(),
            found: changes.len(),
            changes,
            places,
            left: Vec::new(),
        })
    }

    /// The recorded changes that are not yet undone, oldest first.
    pub fn pending(&self) -> &[Change] {
        &self.changes
    }

    /// The present end, for [`Journal::undo_to`].
    pub fn mark(&self) -> Mark {
        Mark(self.changes.len())
    }

    /// Records a change and syncs it. The change may be made only after this returns.
    ///
    /// # Errors
    /// When it cannot be stored, in which case the change must not be made.
    pub fn record(&mut self, change: Change) -> Result<(), HostError> {
        self.record_all(vec![change])
    }

    /// Records several changes with one sync. The changes may be made only after this returns.
    ///
    /// # Errors
    /// When they cannot be stored, in which case none of the changes may be made.
    pub fn record_all(&mut self, changes: Vec<Change>) -> Result<(), HostError> {
        let start = self
            .file
            .stream_position()
            .map_err(HostError::file("read", &self.path))?;
        // A newline first: a torn line of an earlier crash must not absorb the first entry.
        let mut text = String::from("\n");
        let mut places = Vec::new();
        for change in &changes {
            // Undoing the first entry also cuts off the newline before it.
            let offset = if places.is_empty() {
                start
            } else {
                start + text.len() as u64
            };
            let mut line = self.line(change)?;
            if matches!(change, Change::Setting { .. } | Change::DomainCap { .. }) {
                line.extend([' '; BLANKS]);
            }
            places.push(Place {
                boot: self.boot.clone(),
                offset,
                line: start + text.len() as u64,
                room: line.len(),
            });
            text += &line;
            text.push('\n');
        }
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(HostError::file("write", &self.path))?;
        for change in &changes {
            match change.new_value() {
                Some(value) => debug!("the journal has {change}, and becomes `{value}`"),
                None => debug!("the journal has {change}"),
            }
        }
        self.changes.extend(changes);
        self.places.extend(places);
        Ok(())
    }

    /// Records a change of a setting and its first new value.
    ///
    /// # Errors
    /// As [`Journal::record`].
    pub fn record_setting(
        &mut self,
        path: &Path,
        old: &str,
        value: &str,
    ) -> Result<Recorded, HostError> {
        self.record_value(Change::Setting {
            path: path.to_owned(),
            old: old.to_owned(),
            written: Some(Written::first(path, value)),
        })
    }

    /// Records a change of a Xen domain's cap and its first new value.
    ///
    /// # Errors
    /// As [`Journal::record`].
    pub fn record_cap(&mut self, domain: u32, old: u32, value: u32) -> Result<Recorded, HostError> {
        self.record_value(Change::DomainCap {
            domain,
            old,
            written: Some(Written {
                values: vec![value.to_string()],
                file: None,
            }),
        })
    }

    fn record_value(&mut self, change: Change) -> Result<Recorded, HostError> {
        self.record(change)?;
        Ok(Recorded(self.changes.len() - 1))
    }

    /// Records the next value of a setting or cap, before it is set. The entry is not synced: it must outlive this
    /// process but not the boot, since a setting ends with its boot.
    ///
    /// # Errors
    /// When it cannot be stored, in which case the value must not be set.
    pub fn rewrite(&mut self, recorded: Recorded, value: &str) -> Result<(), HostError> {
        let Some(mut change) = self.changes.get(recorded.0).cloned() else {
            return Ok(());
        };
        let (Change::Setting { written, .. } | Change::DomainCap { written, .. }) = &mut change
        else {
            return Ok(());
        };
        if let Some(written) = written {
            written.then(value);
        }
        let mut line = self.line(&change)?;
        let Some(place) = self.places.get(recorded.0) else {
            return Ok(());
        };
        if line.len() > place.room {
            // The additional entry is undone first and restores the same value.
            return self.record(change);
        }
        line.extend(std::iter::repeat_n(' ', place.room - line.len()));
        self.file
            .write_all_at(line.as_bytes(), place.line)
            .map_err(HostError::file("write", &self.path))?;
        if let Some(kept) = self.changes.get_mut(recorded.0) {
            *kept = change;
        }
        Ok(())
    }

    fn line(&self, change: &Change) -> Result<String, HostError> {
        let entry = Entry {
            boot: self.boot.clone(),
            change: change.clone(),
        };
        serde_json::to_string(&entry)
            .map_err(|cause| HostError::file("write", &self.path)(cause.into()))
    }

    /// Returns the changes that were left in place since the last call, because another program had changed the
    /// value. Callers show these to the user after every undoing.
    #[must_use]
    pub fn take_left(&mut self) -> Vec<Left> {
        std::mem::take(&mut self.left)
    }

    /// Undoes every change recorded since `mark`, last first, and removes the entries.
    ///
    /// # Errors
    /// The first change that could not be undone; it and older ones stay recorded.
    pub fn undo_to(&mut self, mark: Mark) -> Result<(), HostError> {
        while self.changes.len() > mark.0 {
            let (Some(change), Some(place)) = (self.changes.last(), self.places.last()) else {
                break;
            };
            // Directories and pool VMs survive a reboot.
            let stays = matches!(change, Change::Directory { .. } | Change::PoolVm { .. });
            if place.boot == self.boot || stays {
                let left = undo(change)
                    .inspect_err(|cause| error!("cannot restore {change}: {cause}"))?
                    .map(|why| Left {
                        change: change.clone(),
                        why,
                    });
                let is_found = self.changes.len() <= self.found;
                match &left {
                    Some(left) => warn!("{left}"),
                    None if is_found || change.is_of_a_value() => info!("restored: {change}"),
                    None => debug!("removed: {change}"),
                }
                self.left.extend(left);
            } else {
                // Kernel state ends with its boot: nothing to undo.
                debug!("{change} ended with an earlier boot of this host");
            }
            self.forget_last()?;
        }
        Ok(())
    }

    /// Removes the newest entry from the file and the list, and returns it without undoing it. An empty list leaves an
    /// empty file.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub fn forget_last(&mut self) -> Result<Option<Change>, HostError> {
        let (Some(change), Some(place)) = (self.changes.pop(), self.places.pop()) else {
            return Ok(None);
        };
        self.found = self.found.min(self.changes.len());
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
}

/// Undoes a change, or returns the reason to leave it.
fn undo(change: &Change) -> Result<Option<String>, HostError> {
    match change {
        Change::Setting { path, old, written } => {
            let restored = kernel_file::restore(path, old, written.as_ref())?;
            return Ok(match restored {
                Restored::Left(why) => Some(why),
                Restored::Done | Restored::Gone => None,
            });
        }
        Change::DomainCap {
            domain,
            old,
            written,
        } => return xl::restore_cap(*domain, *old, written.as_ref()),
        Change::Cgroup { path } => remove::remove_stale(path),
        Change::Unknown { line } => Err(HostError::Invalid {
            what: format!("the journal's change {line}"),
            problem: "this version does not know it, perhaps a newer one does; restore with the version that made it, or undo it by hand and run `vtax restore --forget`".to_owned(),
        }),
        Change::Domain { name, scratch } => {
            xl::destroy(name)?;
            scratch.as_deref().map_or(Ok(()), loop_device::release_image)
        }
        Change::XenTrace => xentrace::end(),
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
            Ok(vtax_files::remove_all(path)?)
        }
    }?;
    Ok(None)
}

#[cfg(test)]
mod tests;
