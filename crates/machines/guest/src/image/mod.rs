// SPDX-License-Identifier: Apache-2.0
//! The root file system that every platform shares: built once from a recipe, and cached by the recipe's hash.
//!
//! A build runs in a hidden directory beside its destination and is renamed into place when it is complete, so that
//! a killed build is never used as an image.

mod above;
mod build;
pub mod closure;
mod compile;
mod cpio;
mod debian;
mod echo;
mod files;
mod initrd;
mod kernel;
mod layer;
mod logged;
mod modules;
pub mod oci;
mod pack;
mod recipe;
pub mod trace;
mod tree;
pub mod user_files;
mod vmlinux;

pub use compile::compile;
pub use cpio::Archive;
pub use echo::{ECHO_TOKEN, EchoGuest, echo_guest};
pub use files::GuestFiles;
pub(crate) use recipe::KERNEL;
pub use recipe::{Recipe, RecipeFile};
pub use vmlinux::{has_pvh_entry, vmlinux};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::{info, warn};
use vtax_files::Dir;
use vtax_host::untrusted::end_of;
use vtax_host::{HostError, rootless};
use vtax_kernel::mounts;

/// The initial RAM disk of a KVM probe, which prints [`PROBE_TOKEN`] and powers off.
pub(crate) use initrd::{PROBE_TOKEN, probe};

/// Returns the image of a recipe, and builds it if it is not in the cache. `progress` receives lines during a build
/// only.
///
/// # Errors
/// When it must be built and cannot be: a missing program, no space, or a package that does not install
/// (with the end of the build log, and the path of the whole log).
pub fn ensure(recipe: &Recipe, progress: &mut dyn FnMut(&str)) -> Result<GuestFiles, HostError> {
    ensure_in(&cache_dir()?, recipe, progress)
}

/// Builds the image of a recipe even if the cache has it: for a damaged one.
///
/// # Errors
/// As [`ensure`], and when the existing image cannot be removed.
pub fn rebuild(recipe: &Recipe, progress: &mut dyn FnMut(&str)) -> Result<GuestFiles, HostError> {
    let cache = cache_dir()?;
    let hash = recipe.hash()?;
    let there = cache.join("images").join(&hash);
    if there.exists() {
        vtax_files::remove_all(&there)?;
    }
    built(&cache, recipe, &hash, progress)
}

/// Returns the image of a recipe if the user's cache has it, or the one that root fills for all users of the machine.
///
/// # Errors
/// When the recipe is not valid or there is no cache directory.
pub fn cached(recipe: &Recipe) -> Result<Option<GuestFiles>, HostError> {
    Ok(find_in(
        &[&cache_dir()?, Path::new(SHARED)],
        &recipe.hash()?,
    ))
}

/// The cache of root, whose images every user of the machine can use.
pub const SHARED: &str = "/var/cache/vtax";

/// The directory of images and verdicts: `$VTAX_CACHE_DIR`, else `/var/cache/vtax` for root and
/// `$XDG_CACHE_HOME/vtax` or `~/.cache/vtax` for other users.
///
/// # Errors
/// When none of these is set.
pub fn cache_dir() -> Result<PathBuf, HostError> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(dir) = set("VTAX_CACHE_DIR") {
        return Ok(dir);
    }
    if rootless::is_root() {
        return Ok(PathBuf::from(SHARED));
    }
    set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .map(|dir| dir.join("vtax"))
        .ok_or_else(|| HostError::Missing {
            what: "a directory for images".into(),
            remedy: "set HOME, or VTAX_CACHE_DIR to a directory with 2 GB free".into(),
        })
}

fn ensure_in(
    cache: &Path,
    recipe: &Recipe,
    progress: &mut dyn FnMut(&str),
) -> Result<GuestFiles, HostError> {
    let hash = recipe.hash()?;
    match find_in(&[cache, Path::new(SHARED)], &hash) {
        Some(files) => Ok(files),
        None => built(cache, recipe, &hash, progress),
    }
}

/// Returns the image of a recipe in a cache, and builds it if the cache lacks it.
fn built(
    cache: &Path,
    recipe: &Recipe,
    hash: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<GuestFiles, HostError> {
    let images = cache.join("images");
    Dir::create(&images)?;
    let _lock = lock(&images, hash, progress)?;
    // Another process may have built it while this one waited for the lock.
    if let Some(files) = find(cache, hash) {
        return Ok(files);
    }
    remove_abandoned(&images, hash, progress)?;
    info!("the image {hash} is built in {}", images.display());
    build::build(&images, recipe, hash, progress)?;
    info!("the image {hash} is ready");
    find(cache, hash).ok_or_else(|| HostError::Missing {
        what: format!("the image that was just built in {}", images.display()),
        remedy: "it was removed; build it again".to_owned(),
    })
}

/// Returns the image with the recipe of `base` in the cache of a user, where `base` is that of root; `None` where its tree
/// can be copied. A user can neither read private files of root's tree nor keep their owner. The image is built if the
/// cache lacks it.
fn own_copy(
    cache: &Path,
    base: &GuestFiles,
    progress: &mut dyn FnMut(&str),
) -> Result<Option<GuestFiles>, HostError> {
    let root = fs::metadata(&base.root).map_err(HostError::file("read", &base.root))?;
    if rootless::is_root() || root.uid() == 0 {
        return Ok(None);
    }
    let dir = base.root.parent().unwrap_or(&base.root);
    let path = dir.join(RECIPE);
    let wrong = |cause: String| HostError::file("read", &path)(io::Error::other(cause));
    let text = Dir::open(dir)?.read(RECIPE, 1 << 20)?;
    let text = String::from_utf8(text).map_err(|cause| wrong(cause.to_string()))?;
    let recipe: Recipe = toml::from_str(&text).map_err(|cause| wrong(cause.to_string()))?;
    if recipe.hash()? != base.recipe {
        return Err(wrong("it is the recipe of another image".to_owned()));
    }
    if find(cache, &base.recipe).is_none() {
        progress(
            "root's image has private files, so that files are added to one of your own, which is built once",
        );
    }
    built(cache, &recipe, &base.recipe, progress).map(Some)
}

/// Finds an image in the first cache that has it.
fn find_in(caches: &[&Path], hash: &str) -> Option<GuestFiles> {
    caches.iter().find_map(|cache| find(cache, hash))
}

/// Finds an image. A directory with its final name is complete; the files are still checked, because users may
/// delete parts of a cache.
fn find(cache: &Path, hash: &str) -> Option<GuestFiles> {
    let files = guest_files(&cache.join("images").join(hash), hash);
    let whole = files.root.is_dir()
        && [&files.image, &files.kernel, &files.initrd]
            .iter()
            .all(|file| file.is_file());
    whole.then_some(files)
}

/// The file beside an image's tree that has its recipe.
const RECIPE: &str = "recipe.toml";

/// The bounds of what an image gets from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    /// The uncompressed bytes: of archives with their headers, of files without.
    bytes: u64,
    /// The entries: files, directories and links, with the directories that an archive implies.
    entries: u64,
    /// The uncompressed bytes beyond which an archive is refused that is [`MOST_RATIO`] times its file.
    free: u64,
}

const BOUNDS: Bounds = Bounds {
    bytes: 16 << 30,
    entries: 1_000_000,
    free: 1 << 30,
};

/// The most levels of a path.
const MOST_DEPTH: usize = 256;
/// How many times its file a compressed archive may be. Programs and texts are up to 20 times theirs, zeros 1,000 times.
const MOST_RATIO: u64 = 200;

/// SHA-256 over several parts, as the name of an image.
fn key(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        // Lengths separate the parts.
        hasher.update(part.len().to_le_bytes());
        hasher.update(part);
    }
    hexadecimal(hasher)
}

/// A digest in hexadecimal.
fn hexadecimal(hasher: Sha256) -> String {
    format!("{:x}", hasher.finalize())
}

/// The kernel in the directory of an image.
const KERNEL_FILE: &str = "vmlinuz";
/// The initial RAM disk in the directory of an image.
const INITRD: &str = "initrd";

/// The end of a log, for error messages.
pub(crate) fn tail(log: &Path) -> String {
    String::from_utf8_lossy(&end_of(log, 8192)).into_owned()
}

fn guest_files(dir: &Path, hash: &str) -> GuestFiles {
    GuestFiles {
        root: dir.join("root"),
        image: dir.join("root.ext4"),
        kernel: dir.join(KERNEL_FILE),
        initrd: dir.join(INITRD),
        recipe: hash.to_owned(),
        directory: None,
        files: None,
    }
}

fn lock_name(hash: &str) -> String {
    format!(".{hash}.lock")
}

/// Locks an image, so that only one build of it runs at a time. The kernel releases the lock when the process ends.
fn lock(images: &Path, hash: &str, progress: &mut dyn FnMut(&str)) -> Result<File, HostError> {
    let mut announced = false;
    loop {
        if let Some(file) = try_lock(images, hash)? {
            return Ok(file);
        }
        if !announced {
            progress("another vtax is building this image; waiting for it");
            announced = true;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Locks an image; `None` while it is locked elsewhere.
fn try_lock(images: &Path, hash: &str) -> Result<Option<File>, HostError> {
    let name = lock_name(hash);
    let file = Dir::open(images)?.edit(&name)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(cause) => Err(HostError::file("lock", &images.join(name))(cause.into())),
    }
}

/// Removes what killed builds left, and a damaged image of this recipe. The caller holds the recipe's lock.
fn remove_abandoned(
    images: &Path,
    hash: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    // A directory with the final name that is not complete was damaged by a user.
    let damaged = images.join(hash);
    if damaged.exists() {
        warn!("the image {hash} lacks files: it is removed");
        remove_unmounted(&damaged)?;
    }
    remove_unfinished(images, Some(hash), progress)
}

/// Removes the directories of killed builds in `images`: those of the recipe `held`, whose lock the caller holds, and
/// those of recipes that no process builds. One of another recipe that cannot be removed is reported to `progress`.
///
/// # Errors
/// When one of the recipe `held` cannot be removed, or something is mounted in it.
pub fn remove_unfinished(
    images: &Path,
    held: Option<&str>,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    for entry in fs::read_dir(images).map_err(HostError::file("read", images))? {
        let entry = entry.map_err(HostError::file("read", images))?;
        let directory = entry.file_name();
        let Some(built) = directory.to_str().and_then(build::built_in) else {
            continue;
        };
        let is_held = held == Some(built);
        let lock = if is_held {
            None
        } else {
            try_lock(images, built)?
        };
        if is_held {
            remove_unmounted(&entry.path())?;
        } else if lock.is_some()
            && let Err(error) = remove_unmounted(&entry.path())
        {
            let line = format!("an unfinished image of another run is left: {error}");
            warn!("{line}");
            progress(&line);
        }
    }
    Ok(())
}

fn remove_unmounted(path: &Path) -> Result<(), HostError> {
    refuse_mounts(path)?;
    Ok(vtax_files::remove_all(path)?)
}

/// Refuses to remove a directory with a mount below it, which could be the host's own `/dev/shm`. A build mounts
/// nothing in this process's namespace, so that a user has to examine it.
fn refuse_mounts(path: &Path) -> Result<(), HostError> {
    let table = Path::new("/proc/self/mountinfo");
    let text = fs::read(table).map_err(HostError::file("read", table))?;
    let path = path.canonicalize().map_err(HostError::file("read", path))?;
    match mount_below(&text, &path) {
        None => Ok(()),
        Some(mount) => Err(HostError::Busy {
            what: format!(
                "{} is left of an unfinished build and is not removed, because something is mounted in it",
                path.display()
            ),
            remedy: format!("`umount {}`, then try again", mount.display()),
        }),
    }
}

/// The first mount point at or below `path`.
fn mount_below(mountinfo: &[u8], path: &Path) -> Option<PathBuf> {
    mounts::parse(mountinfo)
        .map(|mount| mount.point)
        .find(|point| point.starts_with(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake_image(cache: &Path, hash: &str) -> GuestFiles {
        let files = guest_files(&cache.join("images").join(hash), hash);
        fs::create_dir_all(&files.root).unwrap();
        for file in [&files.image, &files.kernel, &files.initrd] {
            fs::write(file, b"x").unwrap();
        }
        files
    }

    #[test]
    fn an_image_in_the_cache_is_used_without_a_word() {
        let cache = tempfile::tempdir().unwrap();
        let recipe = Recipe::standard();
        let expected = fake_image(cache.path(), &recipe.hash().unwrap());
        let found = ensure_in(cache.path(), &recipe, &mut |line| panic!("printed {line}")).unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn an_image_in_the_cache_for_all_users_is_found_after_the_users_own() {
        let [own, shared] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let caches = [own.path(), shared.path()];
        assert_eq!(find_in(&caches, "abc"), None);
        let all = fake_image(shared.path(), "abc");
        assert_eq!(find_in(&caches, "abc"), Some(all));
        let mine = fake_image(own.path(), "abc");
        assert_eq!(find_in(&caches, "abc"), Some(mine));
    }

    #[test]
    fn an_image_that_lacks_a_file_is_not_whole() {
        let cache = tempfile::tempdir().unwrap();
        let files = fake_image(cache.path(), "abc");
        fs::remove_file(&files.initrd).unwrap();
        assert_eq!(find(cache.path(), "abc"), None);
    }

    #[test]
    fn directories_of_killed_builds_are_removed_and_those_of_running_builds_and_images_are_kept() {
        let cache = tempfile::tempdir().unwrap();
        let image = fake_image(cache.path(), "image");
        let images = cache.path().join("images");
        let [own, killed, running] = ["abc", "qemu-0123", "qemu-4567"].map(|name| {
            let half = images.join(format!("{}x1Y2z3", build::building_prefix(name)));
            fs::create_dir_all(half.join("root")).unwrap();
            half
        });
        let _own = lock(&images, "abc", &mut |_| {}).unwrap();
        let _running = lock(&images, "qemu-4567", &mut |_| {}).unwrap();
        remove_abandoned(&images, "abc", &mut |_| {}).unwrap();
        let left = [own, killed, running, image.root].map(|path| path.exists());
        assert_eq!(left, [false, false, true, true]);
    }

    #[test]
    fn an_image_that_lacks_files_is_removed_with_a_warning() {
        let cache = tempfile::tempdir().unwrap();
        let files = fake_image(cache.path(), "abc");
        fs::remove_file(&files.kernel).unwrap();
        let images = cache.path().join("images");
        let logged = vtax_log::testing::logged(|| {
            remove_abandoned(&images, "abc", &mut |_| {}).unwrap();
        });
        assert_eq!(
            logged,
            "<4>vtax_guest::image: the image abc lacks files: it is removed\n"
        );
        assert!(!files.root.exists());
    }

    #[test]
    fn what_is_mounted_below_is_found_and_what_is_beside_is_not() {
        let table = b"22 1 0:1 / /a rw - ext4 x rw\n68 27 0:27 / /a/b\\040c/root/dev/shm rw - tmpfs tmpfs rw\n";
        let found = mount_below(table, Path::new("/a/b c"));
        assert_eq!(found, Some("/a/b c/root/dev/shm".into()));
        assert_eq!(mount_below(table, Path::new("/a/b")), None);
        assert_eq!(mount_below(b"garbage\n\n", Path::new("/a")), None);
    }

    #[test]
    fn remains_with_the_hosts_files_mounted_in_them_are_not_removed() {
        let precious = tempfile::tempdir().unwrap();
        fs::write(precious.path().join("file"), "of the host").unwrap();
        let remains = tempfile::tempdir().unwrap();
        // The mount is made and visible only in the namespace of a child process, which runs this check.
        let Ok(test) = std::env::current_exe() else {
            return;
        };
        if let Some(path) = std::env::var_os("VTAX_TEST_REMAINS") {
            let text = refuse_mounts(Path::new(&path)).unwrap_err().to_string();
            assert!(text.contains("umount"), "{text}");
            return;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can mount");
            return;
        }
        let script = r#"mount --bind "$1" "$2" && exec "$3" --exact "$4""#;
        let name = "image::tests::remains_with_the_hosts_files_mounted_in_them_are_not_removed";
        let output = std::process::Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                script,
                "sh",
            ])
            .arg(precious.path())
            .arg(remains.path())
            .arg(test)
            .arg(name)
            .env("VTAX_TEST_REMAINS", remains.path())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && printed.contains("1 passed"),
            "{printed}"
        );
        assert!(precious.path().join("file").exists());
    }

    #[test]
    fn the_second_builder_waits_for_the_first() {
        let images = tempfile::tempdir().unwrap();
        let first = lock(images.path(), "abc", &mut |_| {}).unwrap();
        let path = images.path().to_owned();
        let (printed, heard) = std::sync::mpsc::channel();
        let second = std::thread::spawn(move || {
            let mut say = |line: &str| printed.send(line.to_owned()).unwrap();
            lock(&path, "abc", &mut say).map(|_| ())
        });
        assert!(heard.recv().unwrap().contains("waiting"));
        drop(first);
        second.join().unwrap().unwrap();
    }
}
