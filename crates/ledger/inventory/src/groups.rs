// SPDX-License-Identifier: Apache-2.0
//! The containers among the host's control groups. Every pass reads the directories that contain groups; a name is
//! parsed once, since a group's inode is never reused.

use super::runtimes::{self, Container};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, inotify, openat, statat};
use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An upper bound for the number of control groups of a host.
const MOST_GROUPS: usize = 200_000;

/// An upper bound for the depth at which engines nest them.
const DEEPEST_GROUP: usize = 24;

/// The control groups of the last pass.
#[derive(Debug)]
pub(super) struct Groups {
    known: HashMap<u64, Known>,
    passes: u64,
    entries: Vec<MaybeUninit<u8>>,
    removals: Removals,
    families: Vec<Family>,
}

#[derive(Debug)]
struct Known {
    /// The inode of its parent; 0 below the hierarchy's root.
    parent: u64,
    found: u64,
    family: Option<FamilyKind>,
    /// Relative to the hierarchy.
    path: PathBuf,
    /// The container that its path describes.
    by_name: Option<Container>,
    is_container: bool,
    seen: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FamilyKind {
    /// By its name, it contains guests only.
    Guests,
    /// A guest was found in it. It may contain other groups too.
    Mixed,
}

/// A control group that contains guests, with all groups directly in it. The CPU time of a group includes the time of
/// all groups that were ever in it, so that guests which ended between two passes are found in the difference.
#[derive(Debug)]
pub struct Family {
    /// Relative to the hierarchy.
    pub path: PathBuf,
    /// Its inode.
    pub inode: u64,
    /// Whether it was absent in the last pass.
    pub is_new: bool,
    /// The groups that ended in it since the last pass.
    pub ended: Ended,
    /// The groups in it.
    pub members: Vec<Member>,
}

/// A group in a [`Family`].
#[derive(Debug)]
pub struct Member {
    /// Relative to the hierarchy.
    pub path: PathBuf,
    /// Its inode.
    pub inode: u64,
    /// Whether it was absent in the last pass.
    pub is_new: bool,
    /// Whether its name is one that engines give.
    pub is_engines: bool,
}

/// The groups that ended in a [`Family`] since the last pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ended {
    /// None, as far as is known.
    #[default]
    Nothing,
    /// Guests only.
    Guests,
    /// At least one that was no guest.
    Others,
}

impl Ended {
    fn and(self, is_guest: bool) -> Self {
        match (self, is_guest) {
            (Self::Others, _) | (_, false) => Self::Others,
            _ => Self::Guests,
        }
    }
}

/// The names of the groups that are removed from families, by inotify: those that come and go between two passes are in
/// no directory.
#[derive(Debug)]
struct Removals {
    queue: Option<OwnedFd>,
    /// By watch descriptor: the inode of the family and its path.
    watched: HashMap<i32, (u64, PathBuf)>,
}

impl Removals {
    fn new() -> Self {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        Self {
            queue: inotify::init(flags).ok(),
            watched: HashMap::new(),
        }
    }

    /// Watches a family. Where the kernel refuses, only the removal of groups that a pass saw is known.
    fn watch(&mut self, inode: u64, mounted: &Path, path: &Path) {
        let Some(queue) = &self.queue else { return };
        let flags = inotify::WatchFlags::DELETE | inotify::WatchFlags::MOVED_FROM;
        let flags = flags | inotify::WatchFlags::ONLYDIR;
        if let Ok(watch) = inotify::add_watch(queue, mounted.join(path), flags) {
            self.watched.insert(watch, (inode, path.to_owned()));
        }
    }

    /// What ended since the last call, by the inode of the family.
    fn read(&mut self, buffer: &mut [MaybeUninit<u8>]) -> HashMap<u64, Ended> {
        let mut ended: HashMap<u64, Ended> = HashMap::new();
        let Some(queue) = &self.queue else {
            return ended;
        };
        let mut events = inotify::Reader::new(queue, buffer);
        while let Ok(event) = events.next() {
            let kind = event.events();
            if kind.contains(inotify::ReadFlags::QUEUE_OVERFLOW) {
                for (inode, _) in self.watched.values() {
                    ended.insert(*inode, Ended::Others);
                }
            } else if kind.contains(inotify::ReadFlags::IGNORED) {
                self.watched.remove(&event.wd());
            } else if let (Some((inode, path)), Some(name)) =
                (self.watched.get(&event.wd()), event.file_name())
            {
                let group = path.join(OsStr::from_bytes(name.to_bytes()));
                let of_family = ended.entry(*inode).or_default();
                *of_family = of_family.and(runtimes::is_engines(&group));
            }
        }
        ended
    }
}

/// A container that was not present in the last pass.
#[derive(Debug)]
pub(super) struct Added {
    pub(super) path: PathBuf,
    pub(super) inode: u64,
    pub(super) is: Container,
}

impl Groups {
    pub(super) fn new() -> Self {
        Self {
            known: HashMap::new(),
            passes: 0,
            entries: vec![MaybeUninit::uninit(); 32 << 10],
            removals: Removals::new(),
            families: Vec::new(),
        }
    }

    /// The groups that contain guests, the innermost first.
    pub(super) fn families(&self) -> &[Family] {
        &self.families
    }

    /// Whether the group was a container's in the last pass.
    pub(super) fn is_container(&self, inode: u64, path: &Path) -> bool {
        let known = self.known.get(&inode);
        known.is_some_and(|known| known.is_container && known.path.as_os_str() == path.as_os_str())
    }

    /// Whether a group was a container's in the last pass, or one within it.
    pub(super) fn is_in_container(&self, path: &Path) -> bool {
        self.known
            .values()
            .any(|known| known.is_container && path.starts_with(&known.path))
    }

    /// Scans every group below `mounted`; groups within a container are not searched. `states` are the containers with
    /// a runtime state, by group.
    pub(super) fn update(
        &mut self,
        mounted: &Path,
        states: &HashMap<&Path, &Container>,
    ) -> Vec<Added> {
        self.passes += 1;
        let mut added = Vec::new();
        if let Some(root) = open(CWD, mounted) {
            self.walk(&root, (0, Path::new("")), 0, states, &mut added);
        }
        // Read after the directories: a group that is in neither was removed before its name was read.
        let mut ended = self.removals.read(&mut self.entries);
        let passes = self.passes;
        self.known.retain(|_, known| {
            if known.seen != passes {
                let is_guest = known.is_container || runtimes::is_engines(&known.path);
                let of_family = ended.entry(known.parent).or_default();
                *of_family = of_family.and(is_guest);
            }
            known.seen == passes
        });
        for added in &added {
            let parent = self.known.get(&added.inode).map(|known| known.parent);
            let family = parent.and_then(|parent| self.known.get_mut(&parent));
            if let Some(family) = family.filter(|family| family.family.is_none()) {
                family.family = Some(FamilyKind::Mixed);
                let parent = parent.unwrap_or_default();
                self.removals.watch(parent, mounted, &family.path);
            }
        }
        self.gather_families(&ended);
        added
    }

    fn gather_families(&mut self, ended: &HashMap<u64, Ended>) {
        let is_new = |known: &Known| known.found == self.passes && self.passes > 1;
        let mut families: HashMap<u64, Family> = HashMap::new();
        for (inode, known) in &self.known {
            if known.is_container {
                continue;
            }
            let Some(kind) = known.family else {
                continue;
            };
            families.insert(
                *inode,
                Family {
                    path: known.path.clone(),
                    inode: *inode,
                    is_new: is_new(known),
                    ended: match kind {
                        FamilyKind::Guests => Ended::Guests,
                        FamilyKind::Mixed => ended.get(inode).copied().unwrap_or_default(),
                    },
                    members: Vec::new(),
                },
            );
        }
        for (inode, known) in &self.known {
            if let Some(family) = families.get_mut(&known.parent) {
                family.members.push(Member {
                    path: known.path.clone(),
                    inode: *inode,
                    is_new: is_new(known),
                    is_engines: known.is_container || runtimes::is_engines(&known.path),
                });
            }
        }
        self.families = families.into_values().collect();
        self.families
            .sort_by_key(|family| std::cmp::Reverse(family.path.iter().count()));
    }

    fn walk(
        &mut self,
        directory: &OwnedFd,
        (inode_of_parent, path): (u64, &Path),
        depth: usize,
        states: &HashMap<&Path, &Container>,
        added: &mut Vec<Added>,
    ) {
        let mut below = Vec::new();
        let mut entries = RawDir::new(directory, &mut self.entries);
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name();
            let is_group = entry.file_type() == FileType::Directory
                && !matches!(name.to_bytes(), b"." | b"..");
            if !is_group {
                continue;
            }
            let inode = entry.ino();
            let is_known = self
                .known
                .get(&inode)
                .is_some_and(|known| is_named(known, path, name.to_bytes()));
            if !is_known {
                if self.known.len() >= MOST_GROUPS {
                    continue;
                }
                let path = path.join(OsStr::from_bytes(name.to_bytes()));
                let known = Known {
                    by_name: runtimes::recognise(&path),
                    family: runtimes::holds_only_guests(&path).then_some(FamilyKind::Guests),
                    path,
                    is_container: false,
                    seen: 0,
                    parent: inode_of_parent,
                    found: self.passes,
                };
                self.known.insert(inode, known);
            }
            let Some(known) = self.known.get_mut(&inode) else {
                continue;
            };
            known.seen = self.passes;
            let state = if states.is_empty() {
                None
            } else {
                states.get(known.path.as_path()).copied()
            };
            // Engines run their containers by runc or crun, which keep a state of these containers too.
            let is = known.by_name.as_ref().or(state);
            if let (Some(is), false) = (is, known.is_container) {
                added.push(Added {
                    path: known.path.clone(),
                    inode,
                    is: is.clone(),
                });
            }
            known.is_container = is.is_some();
            if !known.is_container {
                below.push((CString::from(name), inode, known.path.clone()));
            }
        }
        if depth == DEEPEST_GROUP {
            return;
        }
        for (name, inode, path) in below {
            // A group's directory has one link for each child group; most have none.
            let is_leaf = statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| stat.st_nlink == 2);
            if !is_leaf && let Some(directory) = open(directory, name.as_c_str()) {
                self.walk(&directory, (inode, &path), depth + 1, states, added);
            }
        }
    }
}

/// Whether a group still has the same path: v1 lets groups be renamed.
fn is_named(known: &Known, parent: &Path, name: &[u8]) -> bool {
    let path = known.path.as_os_str().as_bytes();
    let parent = parent.as_os_str().as_bytes();
    path.strip_suffix(name).is_some_and(|rest| {
        if parent.is_empty() {
            rest.is_empty()
        } else {
            rest.strip_suffix(b"/") == Some(parent)
        }
    })
}

fn open(at: impl std::os::fd::AsFd, path: impl rustix::path::Arg) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_container_is_added_once_and_gone_with_its_group() {
        let mounted = tempfile::tempdir().unwrap();
        let group = PathBuf::from("docker").join(ID);
        fs::create_dir_all(mounted.path().join(&group).join("nested").join(ID)).unwrap();
        let mut groups = Groups::new();
        let added = groups.update(mounted.path(), &HashMap::new());
        let [one] = added.as_slice() else {
            panic!("{added:?}");
        };
        assert_eq!(one.path, group);
        assert!(groups.is_container(one.inode, &group));
        assert!(groups.update(mounted.path(), &HashMap::new()).is_empty());
        fs::remove_dir_all(mounted.path().join(&group)).unwrap();
        assert!(groups.update(mounted.path(), &HashMap::new()).is_empty());
        assert!(!groups.is_container(one.inode, &group));
    }

    #[test]
    fn a_group_becomes_a_container_when_its_state_is_complete_and_ceases_with_it() {
        let mounted = tempfile::tempdir().unwrap();
        fs::create_dir_all(mounted.path().join("mine/a")).unwrap();
        let mut groups = Groups::new();
        assert!(groups.update(mounted.path(), &HashMap::new()).is_empty());
        let is = Container {
            platform: super::super::Platform::Runc,
            id: "a".into(),
            name_in: runtimes::NameIn::Group,
        };
        let states = HashMap::from([(Path::new("mine/a"), &is)]);
        let added = groups.update(mounted.path(), &states);
        assert_eq!(added[0].is, is);
        assert!(groups.update(mounted.path(), &states).is_empty());
        groups.update(mounted.path(), &HashMap::new());
        assert!(!groups.is_container(added[0].inode, Path::new("mine/a")));
    }

    #[test]
    fn a_renamed_group_is_judged_by_its_new_name() {
        let mounted = tempfile::tempdir().unwrap();
        let docker = mounted.path().join("docker");
        fs::create_dir_all(docker.join(ID)).unwrap();
        let mut groups = Groups::new();
        let before = groups.update(mounted.path(), &HashMap::new());
        fs::rename(docker.join(ID), docker.join("plain")).unwrap();
        assert!(groups.update(mounted.path(), &HashMap::new()).is_empty());
        assert!(!groups.is_container(before[0].inode, &before[0].path));
    }
}
