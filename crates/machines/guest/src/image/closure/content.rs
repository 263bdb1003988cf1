// SPDX-License-Identifier: Apache-2.0
//! The files of this host in an image: each with the links and directories that lead to it.

use super::parts::PARTS;
use crate::image::BOUNDS;
use crate::image::tree::Tree;
use crate::image::user_files::{self, FilesDigest};
use crate::platform::host_root;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use vtax_files::Dir;
use vtax_host::HostError;
use vtax_host::untrusted::tar::{Entry, Kind};

/// The directories that are memory in a VM.
const IN_MEMORY: [&str; 2] = ["/run", "/tmp"];

/// One entry of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Item {
    kind: Kind,
    mode: u32,
    size: u64,
    /// That of a file: programs compare the times of files, such as those of Python's modules and their compiled forms.
    mtime: i64,
}

/// The entries by their paths, which have no links in them.
#[derive(Debug)]
pub(super) struct Content<'a> {
    /// Where the paths begin.
    root: &'a Path,
    /// The working directory: as it is given, and without links.
    directory: [PathBuf; 2],
    /// Files and directories of the guest that are elsewhere on this host.
    mounts: BTreeMap<PathBuf, PathBuf>,
    items: BTreeMap<PathBuf, Item>,
}

impl<'a> Content<'a> {
    /// The most links on the way to a file, as of the kernel (`MAXSYMLINKS`).
    const MOST_LINKS: usize = 40;

    pub(super) fn new(root: &'a Path, directory: &Path) -> Self {
        let mut content = Self {
            root,
            directory: [directory, directory].map(Path::to_owned),
            mounts: BTreeMap::new(),
            items: BTreeMap::new(),
        };
        if let Ok(real) = content.outside(directory).canonicalize()
            && root == Path::new("/")
        {
            content.directory = [directory.to_owned(), real];
        }
        content
    }

    /// Whether a path without links is in the image.
    fn shows(&self, path: &Path) -> bool {
        let [given, real] = &self.directory;
        let leads = given.starts_with(path) || real.starts_with(path);
        let is_left_out = !leads && host_root::is_left_out(path, std::slice::from_ref(real));
        !host_root::is_secret(path) && !is_left_out
    }

    fn outside(&self, path: &Path) -> PathBuf {
        let mounted = path.ancestors().find_map(|above| {
            let from = self.mounts.get(above)?;
            let below = path.strip_prefix(above).ok()?;
            // An empty path would end with a slash, which no file has.
            let is_same = below.as_os_str().is_empty();
            Some(if is_same {
                from.clone()
            } else {
                from.join(below)
            })
        });
        mounted.unwrap_or_else(|| self.root.join(path.strip_prefix("/").unwrap_or(path)))
    }

    /// Adds all files of the plan, which are in a directory `files` of this host, where a guest has them: in a directory of
    /// their own, and in the working directory.
    pub(super) fn mount(&mut self, files: &Path) -> Result<(), HostError> {
        // Files are opened by a path without links.
        let files = files
            .canonicalize()
            .map_err(HostError::file("read", files))?;
        let own = Path::new(user_files::DIRECTORY);
        let [_, directory] = self.directory.clone();
        self.mounts.insert(own.to_owned(), files.clone());
        for entry in Dir::open(&files)?.list()? {
            let beside = directory.join(&entry.name);
            self.mounts.insert(beside, files.join(&entry.name));
        }
        for place in self.mounts.keys().cloned().collect::<Vec<_>>() {
            self.add_below(&place)?;
        }
        Ok(())
    }

    /// Adds a file, or a directory with all that it has.
    fn add_below(&mut self, path: &Path) -> Result<(), HostError> {
        let mut left = vec![path.to_owned()];
        while let Some(path) = left.pop() {
            self.add(&path);
            if self
                .items
                .get(&path)
                .is_some_and(|item| item.kind == Kind::Directory)
            {
                let entries = Dir::open(&self.outside(&path))?.list()?;
                left.extend(entries.into_iter().map(|entry| path.join(entry.name)));
            }
        }
        Ok(())
    }

    /// Adds a file or directory with the links and directories on its way.
    pub(super) fn add(&mut self, path: &Path) {
        let parts = |path: &Path| -> Vec<OsString> {
            let parts = path.components().filter_map(|part| match part {
                Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
                _ => None,
            });
            parts.collect()
        };
        let mut at = PathBuf::from("/");
        let mut rest: VecDeque<OsString> = parts(path).into();
        let mut links = 0;
        while let Some(part) = rest.pop_front() {
            if part == ".." {
                at.pop();
                continue;
            }
            let next = at.join(part);
            let Ok(about) = fs::symlink_metadata(self.outside(&next)) else {
                return;
            };
            if !self.shows(&next) {
                return;
            }
            let kind = if about.is_symlink() {
                let Ok(target) = fs::read_link(self.outside(&next)) else {
                    return;
                };
                links += 1;
                if links > Self::MOST_LINKS {
                    return;
                }
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                for part in parts(&target).into_iter().rev() {
                    rest.push_front(part);
                }
                Kind::Link(target)
            } else if about.is_dir() {
                at.clone_from(&next);
                Kind::Directory
            } else if about.is_file() && rest.is_empty() && self.open(&next).is_ok() {
                Kind::File
            } else {
                return;
            };
            // A directory changes with files that are not in the image.
            let (size, mtime) = match kind {
                Kind::File => (about.len(), about.mtime()),
                _ => (0, 0),
            };
            let item = Item {
                kind,
                size,
                mode: about.mode() & 0o777,
                mtime,
            };
            self.items.insert(next, item);
        }
    }

    /// Opens a regular file. Others may change directories meanwhile, so that no link is followed.
    fn open(&self, path: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The root of a test may be below a link.
        let resolve = if self.root == Path::new("/") {
            ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
        } else {
            ResolveFlags::NO_MAGICLINKS
        };
        let file = File::from(openat2(
            CWD,
            self.outside(path),
            flags,
            Mode::empty(),
            resolve,
        )?);
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    /// The number of regular files.
    pub(super) fn count(&self) -> usize {
        let items = self.items.values();
        items.filter(|item| item.kind == Kind::File).count()
    }

    /// The bytes of the files.
    pub(super) fn bytes(&self) -> u64 {
        let sizes = self.items.values().map(|item| item.size);
        sizes.fold(0, u64::saturating_add)
    }

    pub(super) fn check(&self) -> Result<(), HostError> {
        let most = BOUNDS.bytes >> 30;
        if self.bytes() <= BOUNDS.bytes {
            return Ok(());
        }
        let largest = self.items.iter().max_by_key(|(_, item)| item.size);
        let largest = largest.map(|(path, _)| path.display().to_string());
        Err(HostError::Invalid {
            what: "the files of this host that the command uses".to_owned(),
            problem: format!(
                "they have more than {most} GiB, the most of an image, and the largest is {}",
                largest.unwrap_or_default()
            ),
        })
    }

    /// Calls `take` with each entry and its content. Returns the digest of all.
    pub(super) fn digest(
        &self,
        take: &mut dyn FnMut(&Entry, &mut dyn Read) -> io::Result<()>,
    ) -> Result<String, HostError> {
        let mut digest = FilesDigest::default();
        for (path, item) in &self.items {
            let entry = Entry {
                name: path.strip_prefix("/").unwrap_or(path).to_owned(),
                kind: item.kind.clone(),
                mode: item.mode,
                uid: 0,
                gid: 0,
                mtime: item.mtime,
                size: item.size,
                capability: None,
            };
            let mut take = |content: &mut dyn Read| take(&entry, content);
            if item.kind == Kind::File {
                let file = self.open(path).map_err(HostError::file("copy", path))?;
                digest.add(&entry, &mut file.take(item.size), &mut take)?;
            } else {
                digest.add(&entry, &mut io::empty(), &mut take)?;
            }
        }
        Ok(digest.finish())
    }

    /// Copies the entries into the empty root of a guest. What is memory there goes where the init copies it from.
    pub(super) fn copy(&self, root: &Path, digest: &str) -> Result<(), HostError> {
        fs::create_dir(root).map_err(HostError::file("create", root))?;
        let tree = Tree::open(root)?;
        let over = Path::new(PARTS.trim_start_matches('/')).join("over");
        let copied = self.digest(&mut |entry, content| {
            let path = Path::new("/").join(&entry.name);
            let mut entry = entry.clone();
            if IN_MEMORY.iter().any(|memory| path.starts_with(memory)) {
                entry.name = over.join(&entry.name);
            }
            tree.add(&entry, content)
                .map(drop)
                .map_err(io::Error::other)
        })?;
        if copied == digest {
            return Ok(());
        }
        Err(HostError::Busy {
            what: "the files of this host changed while they were copied".to_owned(),
            remedy: "start the run again".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn host(files: &[&str], links: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        for (link, target) in links {
            let path = root.path().join(link);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        }
        root
    }

    fn paths(root: &Path, directory: &str, files: &[&str]) -> Vec<String> {
        let mut content = Content::new(root, Path::new(directory));
        for file in files {
            content.add(Path::new(file));
        }
        let found = content.items.keys();
        found.map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn a_file_comes_with_the_links_and_directories_on_its_way() {
        let host = host(
            &["usr/lib/a.so.1.2", "usr/lib/b"],
            &[
                ("lib", "usr/lib"),
                ("usr/lib/a.so", "a.so.1"),
                ("usr/lib/a.so.1", "/usr/lib/../lib/a.so.1.2"),
            ],
        );
        assert_eq!(
            paths(
                host.path(),
                "/srv",
                &["/lib/a.so", "/lib/none", "/usr/lib/b/below"]
            ),
            [
                "/lib",
                "/usr",
                "/usr/lib",
                "/usr/lib/a.so",
                "/usr/lib/a.so.1",
                "/usr/lib/a.so.1.2"
            ]
        );
    }

    #[test]
    fn secrets_and_homes_are_left_out_also_behind_links_and_links_may_go_round() {
        let host = host(
            &[
                "etc/shadow",
                "home/me/app/x",
                "home/me/mail",
                "home/other/y",
                "root/z",
            ],
            &[
                ("home/me/app/a", "/etc/shadow"),
                ("home/me/app/b", "../mail"),
                ("home/me/app/c", "/root/z"),
                ("home/me/app/round", "round"),
                ("home/me/app/up", "../../../../../../etc/shadow"),
            ],
        );
        let wanted = ["x", "a", "b", "c", "round", "up"].map(|name| format!("/home/me/app/{name}"));
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let found = paths(host.path(), "/home/me/app", &wanted);
        for secret in [
            "/etc/shadow",
            "/home/me/mail",
            "/root",
            "/root/z",
            "/home/other",
        ] {
            assert!(!found.iter().any(|path| path == secret), "{found:?}");
        }
        assert!(
            found.iter().any(|path| path == "/home/me/app/x"),
            "{found:?}"
        );
    }

    #[test]
    fn files_of_the_plan_are_in_a_directory_of_their_own_and_beside_the_command() {
        let host = host(&["srv/app/x", "srv/app/data", "srv/other"], &[]);
        let files = tempfile::tempdir().unwrap();
        fs::create_dir_all(files.path().join("data/below")).unwrap();
        fs::write(files.path().join("data/below/one"), "of the plan").unwrap();
        fs::write(files.path().join("run"), "").unwrap();
        let mut content = Content::new(host.path(), Path::new("/srv/app"));
        content.mount(files.path()).unwrap();
        content.add(Path::new("/srv/app/x"));
        let found: Vec<String> = content
            .items
            .keys()
            .map(|path| path.display().to_string())
            .collect();
        let expected = [
            "/files",
            "/files/data",
            "/files/data/below",
            "/files/data/below/one",
            "/files/run",
            "/srv",
            "/srv/app",
            "/srv/app/data",
            "/srv/app/data/below",
            "/srv/app/data/below/one",
            "/srv/app/run",
            "/srv/app/x",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_digest_follows_content_names_permissions_and_times() {
        let host = host(&["srv/a"], &[]);
        let digest = || {
            let mut content = Content::new(host.path(), Path::new("/srv"));
            content.add(Path::new("/srv/a"));
            let read = &mut |_: &Entry, content: &mut dyn Read| {
                io::copy(content, &mut io::sink()).map(drop)
            };
            content.digest(read).unwrap()
        };
        let first = digest();
        assert_eq!(digest(), first);
        let file = host.path().join("srv/a");
        let about = fs::metadata(&file).unwrap();
        fs::write(&file, "other").unwrap();
        let times = about.modified().unwrap();
        File::options()
            .write(true)
            .open(&file)
            .unwrap()
            .set_modified(times)
            .unwrap();
        assert_ne!(digest(), first);
    }
}
