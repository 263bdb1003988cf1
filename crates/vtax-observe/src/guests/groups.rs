// SPDX-License-Identifier: Apache-2.0
//! The containers among the host's control groups. Every pass reads the directories that contain groups; a name is
//! parsed once, since a group's inode is never reused.

use super::runtimes::{self, Container};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, openat, statat};
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
}

#[derive(Debug)]
struct Known {
    /// Relative to the hierarchy.
    path: PathBuf,
    /// The container that its path describes.
    by_name: Option<Container>,
    is_container: bool,
    seen: u64,
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
        }
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
            self.walk(&root, Path::new(""), 0, states, &mut added);
        }
        let passes = self.passes;
        self.known.retain(|_, known| known.seen == passes);
        added
    }

    fn walk(
        &mut self,
        directory: &OwnedFd,
        path: &Path,
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
                    path,
                    is_container: false,
                    seen: 0,
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
                below.push((CString::from(name), known.path.clone()));
            }
        }
        if depth == DEEPEST_GROUP {
            return;
        }
        for (name, path) in below {
            // A group's directory has one link for each child group; most have none.
            let is_leaf = statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| stat.st_nlink == 2);
            if !is_leaf && let Some(directory) = open(directory, name.as_c_str()) {
                self.walk(&directory, &path, depth + 1, states, added);
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
