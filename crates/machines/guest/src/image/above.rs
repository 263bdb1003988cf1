// SPDX-License-Identifier: Apache-2.0
//! An image of a user's content: that of another image with further files, or that of this host's files, packed.
//!
//! Each version of the content is an image of its own. A cache keeps those that were used last. A process
//! holds a shared lock on each image that it uses until it ends, so that no other process removes it.

use super::build::{Building, ROOM_MIB, publish, require_programs_and_rights, require_space};
use super::logged::run_logged;
use super::pack::pack;
use super::{
    GuestFiles, INITRD, KERNEL_FILE, lock, lock_name, own_copy, remove_abandoned, remove_unmounted,
};
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use vtax_files::Dir;
use vtax_host::HostError;

/// The images above others that a cache keeps beside those in use.
const MOST: usize = 6;
/// The file in the directory of such an image whose modification time is that of its last use.
const USED: &str = "used";
/// The log of the programs that make an image, in its directory.
const LOG: &str = "build.log";

/// The locks of the images that this process uses.
static IN_USE: Mutex<BTreeMap<PathBuf, File>> = Mutex::new(BTreeMap::new());

/// The directories of an image that is made.
pub(super) struct Making<'a> {
    /// The directory that gets the name of the image, with its log.
    pub dir: &'a Path,
    /// The guest's root directory in it.
    pub root: &'a Path,
}

/// Returns what `find` returns for the image of this hash in a cache. Makes the image if `find` returns `None`: `fill`
/// makes its root, its kernel and its initial RAM disk, for which `room_mib` are needed beside [`ROOM_MIB`]. Without
/// `room_mib` it is a directory with files at `root`, which nothing boots.
///
/// # Errors
/// When it must be made and cannot be: a missing program, no space, or an error of `fill`.
pub(super) fn ensure<T>(
    cache: &Path,
    hash: &str,
    room_mib: Option<u64>,
    find: impl Fn(&Path, &str) -> Option<T>,
    fill: impl FnOnce(&Making<'_>, &mut dyn FnMut(&str)) -> Result<(), HostError>,
    progress: &mut dyn FnMut(&str),
) -> Result<T, HostError> {
    let images = cache.join("images");
    if images.join(hash).is_dir() {
        hold(&images, hash)?;
    }
    if let Some(found) = find(cache, hash) {
        return Ok(found);
    }
    if room_mib.is_some() {
        require_programs_and_rights()?;
    }
    Dir::create(&images)?;
    require_space(&images, room_mib.unwrap_or(0).saturating_add(ROOM_MIB))?;
    release(&images, hash);
    let lock = lock(&images, hash, progress)?;
    // Another process may have made it while this one waited for the lock.
    if find(cache, hash).is_none() {
        remove_abandoned(&images, hash, progress)?;
        build(&images, hash, room_mib.is_some(), fill, progress)?;
    }
    drop(lock);
    hold(&images, hash)?;
    prune(&images, MOST, progress)?;
    find(cache, hash).ok_or_else(|| HostError::Missing {
        what: format!("the image that was just made in {}", images.display()),
        remedy: "start the run again".to_owned(),
    })
}

/// The room that the tree of `base` takes when it is packed once more, in MiB. The tree itself is linked.
pub(super) fn room_mib(base: &GuestFiles) -> u64 {
    fs::metadata(&base.image).map_or(0, |image| (image.blocks() * 512) >> 20)
}

/// Makes the directory of an image. The caller holds the image's lock.
fn build(
    images: &Path,
    hash: &str,
    is_packed: bool,
    fill: impl FnOnce(&Making<'_>, &mut dyn FnMut(&str)) -> Result<(), HostError>,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    let building = Building::new(images, hash)?;
    let dir = building.path();
    let root = dir.join("root");
    // The users of the host must not reach programs with set-user-ID of an untrusted image, or private files.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
        .map_err(HostError::file("write", dir))?;
    fill(&Making { dir, root: &root }, progress)?;
    if is_packed {
        progress("packing the tree into an ext4 image");
        pack(&root, &dir.join("root.ext4"), &dir.join(LOG))?;
    }
    vtax_files::write_scratch(&dir.join(USED), [])?;
    publish(building, &images.join(hash))
}

/// The file whose lock an image has.
fn lock_file(images: &Path, hash: &str) -> Result<File, HostError> {
    Ok(Dir::open(images)?.edit(lock_name(hash))?)
}

/// Records that this process uses an image, and keeps other processes from its removal.
fn hold(images: &Path, hash: &str) -> Result<(), HostError> {
    let path = images.join(hash);
    let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    if !in_use.contains_key(&path) {
        let file = lock_file(images, hash)?;
        flock(&file, FlockOperation::LockShared)
            .map_err(|cause| HostError::file("lock", &path)(cause.into()))?;
        in_use.insert(path.clone(), file);
    }
    // Another user's image is used without a record.
    if let Ok(used) = Dir::open(&path).and_then(|dir| dir.edit(USED)) {
        let _ = used.set_modified(SystemTime::now());
    }
    Ok(())
}

/// Gives up the use of an image.
fn release(images: &Path, hash: &str) {
    let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    in_use.remove(&images.join(hash));
}

/// Removes the images above others that no process uses, except for the `most` that were used last.
fn prune(images: &Path, most: usize, progress: &mut dyn FnMut(&str)) -> Result<(), HostError> {
    let dir = Dir::open(images)?;
    let mut found: Vec<(SystemTime, String)> = dir
        .list()?
        .into_iter()
        .filter_map(|entry| {
            let name = entry.name.into_string().ok()?;
            let used = dir.metadata(Path::new(&name).join(USED)).ok()?;
            Some((used.modified().ok()?, name)).filter(|(_, name)| !name.starts_with('.'))
        })
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    for (_, hash) in found.into_iter().skip(most) {
        let lock = lock_file(images, &hash)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let path = images.join(&hash);
        progress(&format!(
            "removing the image {hash}, which was not used for the longest time"
        ));
        // One that cannot be removed is no reason against the image that was made.
        if let Err(error) = remove_unmounted(&path) {
            progress(&format!("the image {hash} is left: {error}"));
        }
    }
    Ok(())
}

/// Makes the root of an image from the tree of `base`, which is linked, with its kernel and its initial RAM disk. A user links
/// an image of the cache of their own.
///
/// # Errors
/// When files cannot be copied, or a user's own image must be made and cannot be.
pub(super) fn link(
    cache: &Path,
    base: &GuestFiles,
    making: &Making<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    let own = own_copy(cache, base, progress)?;
    let base = own.as_ref().unwrap_or(base);
    let Making { dir, root } = *making;
    let log = dir.join(LOG);
    let copy = |link: bool| {
        let mut command = Command::new("cp");
        command.arg("--archive");
        command.args(link.then_some("--link"));
        command.arg(&base.root).arg(root);
        command
    };
    // The image below may be on another file system, where it cannot be linked.
    if run_logged(copy(true), &log, &mut |_| {}).is_err() {
        let _ = vtax_files::remove_all(root);
        run_logged(copy(false), &log, &mut |_| {})?;
    }
    for (from, name) in [(&base.kernel, KERNEL_FILE), (&base.initrd, INITRD)] {
        let to = dir.join(name);
        fs::copy(from, &to).map_err(HostError::file("create", &to))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn image(images: &Path, hash: &str, seconds: u64) {
        fs::create_dir_all(images.join(hash)).unwrap();
        let used = File::create(images.join(hash).join(USED)).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        used.set_modified(time).unwrap();
    }

    #[test]
    fn the_images_used_last_and_those_in_use_stay_and_shared_images_are_not_touched() {
        let images = tempfile::tempdir().unwrap();
        let images = images.path();
        for (number, hash) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
            image(images, hash, number as u64);
        }
        fs::create_dir(images.join("shared")).unwrap();
        let other = lock_file(images, "a").unwrap();
        flock(&other, FlockOperation::LockShared).unwrap();
        hold(images, "b").unwrap();
        let mut removed = Vec::new();
        prune(images, 2, &mut |line| removed.push(line.to_owned())).unwrap();
        // `b` is the last that was used; `a` is in use by another process.
        let left = |hash: &str| images.join(hash).is_dir();
        assert_eq!(removed.len(), 2, "{removed:?}");
        assert!(
            ["a", "b", "e", "shared"].into_iter().all(left),
            "{removed:?}"
        );
        drop(other);
        release(images, "b");
        // A process that another test has just forked holds the locks until it executes its program.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while ["a", "b", "e"].into_iter().any(left) && std::time::Instant::now() < deadline {
            prune(images, 0, &mut |_| {}).unwrap();
        }
        assert_eq!(
            ["a", "b", "e", "shared"].map(left),
            [false, false, false, true]
        );
    }
}
