// SPDX-License-Identifier: Apache-2.0
//! The image of a VM with files of this host: those that a command uses, with the agent that vtax controls a VM by.
//!
//! Platforms on this host's kernel show its files in place ([`crate::platform::host_root`]). A VM has no such view, so
//! that the files are copied: each with the links and directories that lead to it, owned by root. The agent and its
//! libraries come from vtax's image, into a directory of their own, since this host's libraries may be older or newer.
//! The kernel is that of this host where it can be read.

use super::above::{self, Making};
use super::build::put;
use super::tree::Tree;
use super::{BOUNDS, GuestFiles, INITRD, KERNEL_FILE};
use super::{cache_dir, find, hexadecimal, initrd, key, user_files};
use crate::platform::host_root;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use vtax_files::Dir;
use vtax_host::HostError;
use vtax_host::untrusted::tar::{Entry, Kind};

/// The version of this builder, which changes whenever the same files result in a different image.
const BUILDER: &str = "host 1";

/// The directory of vtax's own files in the image.
const PARTS: &str = "/usr/lib/vtax/guest";

/// The init of vtax's image, which starts the agent.
const INIT: &str = include_str!("guest/init.sh");

/// The changes to [`INIT`] for a root that has neither its shell nor its agent at their usual places: a line, and what
/// takes its place. The guest's `/tmp` and `/run` are memory, so that files of this host below them are copied there.
const INIT_CHANGES: [(&str, &str); 3] = [
    (
        "#!/bin/sh\n",
        "#!/usr/lib/vtax/guest/busybox sh\nparts=/usr/lib/vtax/guest\n[ ! -d $parts/over ] || $parts/busybox cp -a $parts/over/. /\n",
    ),
    (
        "\nqemu-ga ",
        "\n$parts/ld.so --library-path $parts/lib $parts/qemu-ga ",
    ),
    ("exec busybox ", "exec $parts/busybox "),
];

/// The directories that are memory in a VM.
const IN_MEMORY: [&str; 2] = ["/run", "/tmp"];

/// The modules of this host's kernel that a guest needs, and those that it needs where the kernel has them: ext4 asks for
/// `crc32c` by a name that no table of dependencies has.
const MODULES: [&str; 5] = [
    "ext4",
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_console",
];
const FURTHER_MODULES: [&str; 2] = ["crc32c_generic", "virtio_mmio"];

/// What a VM gets of this host.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The same guest on a platform of this host's kernel: its working directory, and the files of the plan.
    pub on_host: &'a GuestFiles,
    /// The files and directories that the commands used, by absolute paths that may lead over links. Those that are
    /// missing, cannot be read or are no files are left out.
    pub used: &'a BTreeSet<PathBuf>,
    /// Whether the guest boots the kernel of this host where it can be read.
    pub hosts_kernel: bool,
}

/// An image with files of this host.
#[derive(Debug)]
pub struct Closure {
    /// The files that a guest is booted from.
    pub files: GuestFiles,
    /// `sha256:` and the digest of the content.
    pub digest: String,
    /// The number of regular files.
    pub count: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// The release of the kernel, where it is that of this host.
    pub kernel: Option<String>,
}

/// Returns an image with files of this host. Makes it if the cache has none with their content. `base` is vtax's image,
/// which has the agent. `progress` receives lines while it is made.
///
/// # Errors
/// When the files are beyond the bounds of an image or change while they are copied, when `base` lacks the agent, or
/// when the image cannot be stored.
pub fn ensure(
    wanted: &Wanted<'_>,
    base: &GuestFiles,
    progress: &mut dyn FnMut(&str),
) -> Result<Closure, HostError> {
    let directory = wanted
        .on_host
        .directory
        .as_deref()
        .unwrap_or(Path::new("/"));
    let mut content = Content::new(Path::new("/"), directory);
    if let Some(files) = &wanted.on_host.files {
        content.mount(files)?;
    }
    content.add(directory);
    for file in wanted.used {
        content.add(file);
    }
    content.check()?;
    let digest = content.digest(&mut |_, content| io::copy(content, &mut io::sink()).map(drop))?;
    let kernel = if wanted.hosts_kernel {
        HostKernel::find(
            Path::new("/"),
            &rustix::system::uname().release().to_string_lossy(),
        )
    } else {
        None
    };
    let of_kernel = kernel.as_ref().map_or("", |kernel| &kernel.identity);
    let hash = key(&[BUILDER, &base.recipe, of_kernel, &digest]);
    let fill = |making: &Making<'_>, progress: &mut dyn FnMut(&str)| {
        progress(&format!(
            "copying {} files of this host ({} MiB) into an image for VMs",
            content.count(),
            content.bytes() >> 20
        ));
        content.copy(making.root, &digest)?;
        add_parts(making.root, &base.root)?;
        let write = |name: &str, bytes: &[u8]| {
            vtax_files::write_scratch(&making.dir.join(name), bytes).map_err(HostError::from)
        };
        let read = |path: &Path| fs::read(path).map_err(HostError::file("read", path));
        match &kernel {
            Some(kernel) => {
                write(KERNEL_FILE, &read(&kernel.file)?)?;
                let names = &kernel.modules;
                write(INITRD, &initrd::boot(&base.root, &kernel.directory, names)?)
            }
            None => {
                write(KERNEL_FILE, &read(&base.kernel)?)?;
                write(INITRD, &read(&base.initrd)?)
            }
        }
    };
    let room = content.bytes().saturating_mul(2) >> 20;
    let files = above::ensure(&cache_dir()?, &hash, Some(room), find, fill, progress)?;
    Ok(Closure {
        files: GuestFiles {
            directory: wanted.on_host.directory.clone(),
            ..files
        },
        count: content.count(),
        bytes: content.bytes(),
        kernel: kernel.map(|kernel| kernel.release),
        digest,
    })
}

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
struct Content<'a> {
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

    fn new(root: &'a Path, directory: &Path) -> Self {
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
    fn mount(&mut self, files: &Path) -> Result<(), HostError> {
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
    fn add(&mut self, path: &Path) {
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
    fn count(&self) -> usize {
        let items = self.items.values();
        items.filter(|item| item.kind == Kind::File).count()
    }

    /// The bytes of the files.
    fn bytes(&self) -> u64 {
        let sizes = self.items.values().map(|item| item.size);
        sizes.fold(0, u64::saturating_add)
    }

    fn check(&self) -> Result<(), HostError> {
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
    fn digest(
        &self,
        take: &mut dyn FnMut(&Entry, &mut dyn Read) -> io::Result<()>,
    ) -> Result<String, HostError> {
        let mut digest = Sha256::new();
        for (path, item) in &self.items {
            let wrong = |cause| HostError::file("copy", path)(cause);
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
            let mut content = Hashed(Sha256::new(), None);
            if item.kind == Kind::File {
                let file = self.open(path).map_err(wrong)?;
                content.1 = Some(file.take(item.size));
            }
            take(&entry, &mut content).map_err(wrong)?;
            let target = match &item.kind {
                Kind::Link(target) => target.as_os_str(),
                _ => Default::default(),
            };
            let kind: &[u8] = match &item.kind {
                Kind::Link(_) => b"link",
                Kind::Directory => b"directory",
                _ => b"file",
            };
            for part in [
                kind,
                path.as_os_str().as_bytes(),
                &item.mode.to_le_bytes(),
                &item.mtime.to_le_bytes(),
                target.as_bytes(),
                &content.0.finalize(),
            ] {
                digest.update(part.len().to_le_bytes());
                digest.update(part);
            }
        }
        Ok(format!("sha256:{}", hexadecimal(digest)))
    }

    /// Copies the entries into the empty root of a guest. What is memory there goes where the init copies it from.
    fn copy(&self, root: &Path, digest: &str) -> Result<(), HostError> {
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

/// A content that is hashed while it is read; empty without a file.
struct Hashed(Sha256, Option<io::Take<File>>);

impl Read for Hashed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(file) = &mut self.1 else {
            return Ok(0);
        };
        let read = file.read(into)?;
        self.0.update(into.get(..read).unwrap_or_default());
        Ok(read)
    }
}

/// Adds what every guest has: the directories that it mounts on, its init, and the agent with its libraries from the
/// tree `base` of vtax's image.
fn add_parts(root: &Path, base: &Path) -> Result<(), HostError> {
    let tree = Tree::open(root)?;
    for name in ["dev", "proc", "root", "run", "sys", "tmp"] {
        tree.mount_point(name)?;
    }
    put(root, "/usr/lib/vtax/init", 0o755, init().as_bytes())?;
    let add = |name: &str, mode: u32, from: &Path| {
        let content = fs::read(from).map_err(HostError::file("read", from))?;
        put(root, &format!("{PARTS}/{name}"), mode, &content)
    };
    add("busybox", 0o755, &base.join("bin/busybox"))?;
    let agent = base.join("usr/sbin/qemu-ga");
    add("qemu-ga", 0o755, &agent)?;
    let loader = Loader::of(base)?;
    add("ld.so", 0o755, &loader.path)?;
    for (name, path) in loader.libraries(&agent)? {
        add(&format!("lib/{name}"), 0o644, &path)?;
    }
    for (path, text) in [
        ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
        ("etc/hostname", "target\n"),
    ] {
        if root.join(path).symlink_metadata().is_err() {
            put(root, &format!("/{path}"), 0o644, text.as_bytes())?;
        }
    }
    Ok(())
}

/// The init of the image.
fn init() -> String {
    let change = |text: String, (line, other): &(&str, &str)| text.replacen(line, other, 1);
    INIT_CHANGES.iter().fold(INIT.to_owned(), change)
}

/// The dynamic loader of a tree.
struct Loader {
    path: PathBuf,
    /// The directories of the tree's libraries.
    folders: Vec<PathBuf>,
}

impl Loader {
    /// Finds the loader of Debian's layout, `/lib/TRIPLET/ld-linux-*.so.*`.
    fn of(tree: &Path) -> Result<Self, HostError> {
        let entries = |folder: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let is_loader = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("ld-linux")
        };
        let lib = tree.join("usr/lib");
        let lib = if lib.is_dir() { lib } else { tree.join("lib") };
        let folders = [tree.join("lib"), lib];
        let triplets = folders.iter().flat_map(|folder| entries(folder));
        let path = triplets.flat_map(|folder| entries(&folder)).find(is_loader);
        let path = path.ok_or_else(|| HostError::Missing {
            what: format!("the dynamic loader in {}", tree.display()),
            remedy: "build the image again: `vtax image build --force`".to_owned(),
        })?;
        let triplet = path.parent().and_then(Path::file_name).unwrap_or_default();
        let folders = ["lib", "usr/lib"]
            .map(|lib| tree.join(lib).join(triplet))
            .to_vec();
        Ok(Self { path, folders })
    }

    /// The libraries of a program of the tree, by the names that it looks for.
    fn libraries(&self, program: &Path) -> Result<BTreeMap<String, PathBuf>, HostError> {
        let folders = std::env::join_paths(&self.folders).unwrap_or_default();
        let output = Command::new(&self.path)
            .args(["--inhibit-cache", "--library-path"])
            .arg(folders)
            .arg("--list")
            .arg(program)
            .output()
            .map_err(HostError::process("start", self.path.display().to_string()))?;
        if !output.status.success() {
            let line = format!("{} --list {}", self.path.display(), program.display());
            return Err(HostError::program(line, &output));
        }
        Ok(listed(&String::from_utf8_lossy(&output.stdout)))
    }
}

/// The libraries of a loader's list, whose lines are `NAME => PATH (0xADDRESS)`.
fn listed(text: &str) -> BTreeMap<String, PathBuf> {
    let library = |line: &str| {
        let (name, rest) = line.trim().split_once(" => ")?;
        let (path, _) = rest.rsplit_once(" (")?;
        let is_plain = !name.contains('/') && Path::new(path).is_absolute();
        is_plain.then(|| (name.to_owned(), PathBuf::from(path)))
    };
    text.lines().filter_map(library).collect()
}

/// The kernel of this host, for guests.
#[derive(Debug, PartialEq)]
struct HostKernel {
    release: String,
    file: PathBuf,
    /// Its `/lib/modules/RELEASE`.
    directory: PathBuf,
    /// The modules that a guest loads.
    modules: Vec<&'static str>,
    /// What identifies it.
    identity: String,
}

impl HostKernel {
    /// Finds the kernel of a release below `root`, with the modules of a guest; `None` where it or they cannot be read.
    fn find(root: &Path, release: &str) -> Option<Self> {
        let directory = root.join("lib/modules").join(release);
        let boot = root.join("boot").join(format!("vmlinuz-{release}"));
        let file = [boot, directory.join("vmlinuz")]
            .into_iter()
            .find(|file| File::open(file).is_ok())?;
        let has = |name: &str| super::modules::in_load_order(&directory, &[name]).is_ok();
        if !MODULES.iter().all(|name| has(name)) {
            return None;
        }
        let further = FURTHER_MODULES.iter().filter(|name| has(name));
        let about = file.metadata().ok()?;
        Some(Self {
            modules: further.chain(&MODULES).copied().collect(),
            identity: format!("{release} {} {}", about.len(), about.mtime()),
            release: release.to_owned(),
            directory,
            file,
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

    #[test]
    fn the_init_differs_from_that_of_the_image_in_what_is_elsewhere() {
        for (line, _) in INIT_CHANGES {
            assert_eq!(INIT.matches(line).count(), 1, "{line:?}");
        }
        assert!(init().contains("$parts/qemu-ga --method"));
    }

    #[test]
    fn a_loader_s_list_has_the_libraries_with_a_path() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /t/lib/libc.so.6 (0x00007f)\n\t/lib64/ld.so (0x7)\n\
                    \tlibx.so => not found\n\t../up => /a/b (0x1)\n";
        let found = listed(text);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [("libc.so.6".to_owned(), PathBuf::from("/t/lib/libc.so.6"))]
        );
    }

    #[test]
    fn a_kernel_without_the_modules_of_a_guest_is_not_that_of_guests() {
        let host = host(&["boot/vmlinuz-6.1"], &[]);
        assert_eq!(HostKernel::find(host.path(), "6.1"), None);
        let modules = host.path().join("lib/modules/6.1");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("modules.dep"), "").unwrap();
        let builtin: String = MODULES
            .iter()
            .map(|name| format!("kernel/{name}.ko\n"))
            .collect();
        fs::write(modules.join("modules.builtin"), builtin).unwrap();
        let found = HostKernel::find(host.path(), "6.1").unwrap();
        assert_eq!(found.modules, MODULES);
        assert_eq!(HostKernel::find(host.path(), "6.2"), None);
    }
}
