// SPDX-License-Identifier: Apache-2.0
//! Files of a plan in an image: each is copied with its content into one directory, in which the plan's commands run.
//!
//! Only regular files, directories and links below a named directory are copied. No link is followed, so that a
//! directory adds no file from outside of it. The copies belong to root and keep their permissions, without
//! set-user-ID, set-group-ID and sticky bits.

use super::above::{self, Making};
use super::tree::Tree;
use super::{BOUNDS, Bounds, GuestFiles, MOST_DEPTH, cache_dir, find, hexadecimal, key};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use vtax_files::Dir;
use vtax_host::HostError;
use vtax_host::untrusted::tar::{Entry, Kind};

/// The directory of the files in a guest's root.
pub const DIRECTORY: &str = "/files";

/// The same, below a guest's root.
const INSIDE: &str = "files";

/// The version of this builder, which changes whenever the same files result in a different image.
const BUILDER: &str = "files 1";

/// Checks that files and directories can be added to an image, without reading their content.
///
/// # Errors
/// As [`digest()`], except for a file that cannot be read.
pub fn check(paths: &[PathBuf]) -> Result<(), HostError> {
    visit(paths, BOUNDS, &mut |_, _| Ok(()))
}

/// Returns `sha256:` and the digest of files and directories: their names, permissions and content.
///
/// # Errors
/// When one is missing, cannot be read, is neither a file nor a directory, or all are beyond the bounds of an image.
pub fn digest(paths: &[PathBuf]) -> Result<String, HostError> {
    digest_within(paths, BOUNDS)
}

fn digest_within(paths: &[PathBuf], bounds: Bounds) -> Result<String, HostError> {
    let mut digest = FilesDigest::default();
    visit(paths, bounds, &mut |entry, content| {
        digest.add(entry, content, &mut |content| {
            io::copy(content, &mut io::sink()).map(drop)
        })
    })?;
    Ok(digest.finish())
}

/// Returns an image with files in [`DIRECTORY`] above the files of `base`. Makes it if the cache has none with their
/// `digest`. `progress` receives lines while it is made.
///
/// # Errors
/// As [`digest()`], and when the files have changed since, or the image cannot be stored.
pub fn ensure(
    paths: &[PathBuf],
    digest: &str,
    base: &GuestFiles,
    progress: &mut dyn FnMut(&str),
) -> Result<GuestFiles, HostError> {
    let hash = key(&[BUILDER, &base.recipe, digest]);
    let add = |making: &Making<'_>, progress: &mut dyn FnMut(&str)| {
        above::link(&cache_dir()?, base, making, progress)?;
        progress("adding the plan's files to the image");
        fill(paths, digest, making)
    };
    let room = Some(above::room_mib(base));
    above::ensure(&cache_dir()?, &hash, room, find, add, progress)
}

/// Returns the directory of copies of the files, for guests with the root of this host. Makes it if the cache has none with
/// their `digest`; no root is needed.
///
/// # Errors
/// As [`ensure`].
pub fn ensure_alone(
    paths: &[PathBuf],
    digest: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, HostError> {
    let hash = key(&[BUILDER, "alone", digest]);
    let find = |cache: &Path, hash: &str| {
        let files = cache.join("images").join(hash).join("root").join(INSIDE);
        files.is_dir().then_some(files)
    };
    let copy = |making: &Making<'_>, _: &mut dyn FnMut(&str)| {
        fs::create_dir(making.root).map_err(HostError::file("create", making.root))?;
        fill(paths, digest, making)
    };
    above::ensure(&cache_dir()?, &hash, None, find, copy, progress)
}

/// Copies the files that have this digest.
fn fill(paths: &[PathBuf], digest: &str, making: &Making<'_>) -> Result<(), HostError> {
    if copy(paths, &Tree::open(making.root)?, BOUNDS)? == digest {
        Ok(())
    } else {
        Err(HostError::Busy {
            what: "the files of the plan changed while they were copied".to_owned(),
            remedy: "start the run again".to_owned(),
        })
    }
}

/// Copies the files into a guest's root. Returns their digest.
fn copy(paths: &[PathBuf], tree: &Tree, bounds: Bounds) -> Result<String, HostError> {
    let directory = Path::new(INSIDE);
    tree.make(directory)?;
    let mut digest = FilesDigest::default();
    visit(paths, bounds, &mut |entry, content| {
        let inside = Entry {
            name: directory.join(&entry.name),
            ..entry.clone()
        };
        digest.add(entry, content, &mut |content| {
            tree.add(&inside, content)
                .map(drop)
                .map_err(io::Error::other)
        })
    })?;
    Ok(digest.finish())
}

/// The digest of entries, in their order.
#[derive(Default)]
pub(super) struct FilesDigest(Sha256);

impl FilesDigest {
    /// Adds an entry, with its time where it has one. `take` reads its whole content.
    pub(super) fn add(
        &mut self,
        entry: &Entry,
        content: &mut dyn Read,
        take: &mut dyn FnMut(&mut dyn Read) -> io::Result<()>,
    ) -> Result<(), HostError> {
        let mut hashed = HashedContent(content, Sha256::new());
        take(&mut hashed).map_err(HostError::file("copy", &entry.name))?;
        let (kind, target) = match &entry.kind {
            Kind::Directory => ("directory", Path::new("")),
            Kind::Link(target) => ("link", target.as_path()),
            _ => ("file", Path::new("")),
        };
        let mode = entry.mode.to_le_bytes();
        let content = hashed.1.finalize();
        let (name, target) = (entry.name.as_os_str(), target.as_os_str());
        let time = (entry.mtime != 0).then(|| entry.mtime.to_le_bytes());
        let parts = [
            kind.as_bytes(),
            name.as_bytes(),
            &mode,
            target.as_bytes(),
            &content,
        ];
        for part in parts
            .into_iter()
            .chain(time.iter().map(<[u8; 8]>::as_slice))
        {
            self.0.update(part.len().to_le_bytes());
            self.0.update(part);
        }
        Ok(())
    }

    pub(super) fn finish(self) -> String {
        format!("sha256:{}", hexadecimal(self.0))
    }
}

/// A reader that hashes the bytes it returns.
struct HashedContent<'a>(&'a mut dyn Read, Sha256);

impl Read for HashedContent<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(into)?;
        self.1.update(into.get(..read).unwrap_or_default());
        Ok(read)
    }
}

/// A file or directory that is to be visited.
struct Next {
    parent: Dir,
    name: OsString,
    /// Its path below [`DIRECTORY`].
    inside: PathBuf,
}

/// Calls `each` with every file, directory and link, sorted by name below each directory.
fn visit(
    paths: &[PathBuf],
    bounds: Bounds,
    each: &mut dyn FnMut(&Entry, &mut dyn Read) -> Result<(), HostError>,
) -> Result<(), HostError> {
    let mut left = bounds;
    for path in paths {
        let name = path.file_name().ok_or_else(|| {
            invalid(
                path,
                "it has no name: give the path of one file or directory",
            )
        })?;
        let parent = Dir::open(path.parent().unwrap_or(path))?;
        let mut stack = vec![Next {
            parent,
            name: name.to_owned(),
            inside: name.into(),
        }];
        while let Some(next) = stack.pop() {
            let shown = next.parent.path().join(&next.name);
            left.entries = left.entries.checked_sub(1).ok_or_else(|| {
                let most = bounds.entries;
                invalid(
                    &shown,
                    &format!("it comes after {most} files, the most of an image"),
                )
            })?;
            let is_named = next.inside.components().count() == 1;
            visit_one(next, &shown, is_named, &mut left, bounds, &mut stack, each)?;
        }
    }
    Ok(())
}

fn visit_one(
    next: Next,
    shown: &Path,
    is_named: bool,
    left: &mut Bounds,
    bounds: Bounds,
    stack: &mut Vec<Next>,
    each: &mut dyn FnMut(&Entry, &mut dyn Read) -> Result<(), HostError>,
) -> Result<(), HostError> {
    let Next {
        parent,
        name,
        inside,
    } = next;
    if inside.components().count() > MOST_DEPTH {
        let problem = format!("it has more than {MOST_DEPTH} levels, the most of an image");
        return Err(invalid(shown, &problem));
    }
    let about = parent.metadata(&name)?;
    let kind = about.file_type();
    if kind.is_file() {
        let file = parent.file(&name)?;
        let about = file.metadata().map_err(HostError::file("read", shown))?;
        if is_of_kernel(&file) {
            return Err(invalid(
                shown,
                "the kernel makes it when it is read: copy what it shows into a file",
            ));
        }
        let size = about.len();
        left.bytes = left.bytes.checked_sub(size).ok_or_else(|| {
            let most = bounds.bytes >> 30;
            invalid(
                shown,
                &format!("with it the files have more than {most} GiB, the most of an image"),
            )
        })?;
        // A file that grows meanwhile has another digest the next time.
        return each(&entry(inside, Kind::File, &about), &mut file.take(size));
    }
    if kind.is_dir() {
        let dir = parent.dir(&name)?;
        each(
            &entry(inside.clone(), Kind::Directory, &about),
            &mut io::empty(),
        )?;
        // The last one that is pushed is visited first.
        let entries = dir.list()?.into_iter().rev();
        stack.extend(entries.map(|below| Next {
            parent: dir.clone(),
            inside: inside.join(&below.name),
            name: below.name,
        }));
        return Ok(());
    }
    if kind.is_symlink() && !is_named {
        let target = parent.link_target(&name)?;
        return each(&entry(inside, Kind::Link(target), &about), &mut io::empty());
    }
    let problem = if kind.is_symlink() {
        "it is a link: give the path of the file or directory that it leads to"
    } else if kind.is_fifo() {
        "it is a named pipe, and only files, directories and links are copied"
    } else if kind.is_socket() {
        "it is a socket, and only files, directories and links are copied"
    } else {
        "it is a device, and only files, directories and links are copied"
    };
    Err(invalid(shown, problem))
}

/// Whether a file is one of `/proc`, `/sys` or the control groups, whose size says nothing
/// (Linux, `include/uapi/linux/magic.h`).
fn is_of_kernel(file: &std::fs::File) -> bool {
    const PROC: i64 = 0x9fa0;
    const SYSFS: i64 = 0x6265_6572;
    const CGROUP: i64 = 0x27_e0eb;
    const CGROUP2: i64 = 0x6367_7270;
    rustix::fs::fstatfs(file)
        .is_ok_and(|about| [PROC, SYSFS, CGROUP, CGROUP2].contains(&about.f_type))
}

/// An entry that belongs to root. All times are the same, so that only the content counts.
fn entry(name: PathBuf, kind: Kind, about: &Metadata) -> Entry {
    Entry {
        name,
        kind,
        mode: about.mode() & 0o777,
        uid: 0,
        gid: 0,
        mtime: 0,
        size: about.len(),
        capability: None,
    }
}

fn invalid(path: &Path, problem: &str) -> HostError {
    HostError::Invalid {
        what: format!("{} in `files`", path.display()),
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const SMALL: Bounds = Bounds {
        bytes: 100,
        entries: 10,
        free: 1 << 30,
    };

    fn problem(path: &Path) -> String {
        digest_within(&[path.to_owned()], SMALL)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_directory_is_copied_with_its_links_and_without_special_bits_owners_and_outside_files() {
        let host = tempfile::tempdir().unwrap();
        fs::write(host.path().join("secret"), "of the host").unwrap();
        let app = host.path().join("app");
        fs::create_dir_all(app.join("lib")).unwrap();
        fs::write(app.join("run"), "program").unwrap();
        fs::set_permissions(app.join("run"), fs::Permissions::from_mode(0o6755)).unwrap();
        fs::write(app.join("lib/so.1"), "library").unwrap();
        symlink("so.1", app.join("lib/so")).unwrap();
        symlink("../secret", app.join("out")).unwrap();
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::open(root.path()).unwrap();
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: only root sets owners");
        }
        let copied = copy(std::slice::from_ref(&app), &tree, SMALL).unwrap();
        assert_eq!(copied, digest_within(&[app], SMALL).unwrap());
        let inside = root.path().join("files/app");
        assert_eq!(fs::read(inside.join("lib/so")).unwrap(), b"library");
        let run = fs::metadata(inside.join("run")).unwrap();
        assert_eq!((run.mode() & 0o7777, run.uid()), (0o755, 0));
        assert_eq!(
            fs::read_link(inside.join("out")).unwrap(),
            Path::new("../secret")
        );
    }

    #[test]
    fn the_digest_follows_content_names_and_permissions_and_no_times() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str, text: &str, mode: u32| {
            let path = folder.path().join(name);
            let _ = fs::remove_file(&path);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            digest_within(&[path], SMALL).unwrap()
        };
        let first = of("a", "1", 0o755);
        assert_eq!(of("a", "1", 0o755), first);
        for other in [
            of("a", "2", 0o755),
            of("b", "1", 0o755),
            of("a", "1", 0o644),
        ] {
            assert_ne!(other, first);
        }
    }

    #[test]
    fn what_is_missing_a_link_a_device_a_pipe_or_too_large_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert!(problem(&path("none")).contains("No such file"));
        assert!(problem(&path("no/folder")).contains("No such file"));
        symlink("/etc/passwd", path("link")).unwrap();
        assert!(problem(&path("link")).contains("it is a link"));
        assert!(
            problem(Path::new("/dev/null"))
                .contains("/dev/null in `files` is not valid: it is a device")
        );
        fs::create_dir(path("app")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("app/pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(
            problem(&path("app")).contains("app/pipe in `files` is not valid: it is a named pipe")
        );
        fs::write(path("large"), [0; 101]).unwrap();
        assert!(problem(&path("large")).contains("the most of an image"));
        fs::create_dir(path("many")).unwrap();
        for number in 0..10 {
            fs::write(path("many").join(number.to_string()), "").unwrap();
        }
        assert!(problem(&path("many")).contains("after 10 files"));
        assert!(problem(Path::new("/")).contains("it has no name"));
    }
}
