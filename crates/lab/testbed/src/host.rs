// SPDX-License-Identifier: Apache-2.0
//! The images of emulated hosts in the cache: built once from their recipes, found by the hash.

use crate::emulator::{self, Emulator, REMEDY};
use crate::recipe::recipe;
use crate::scratch::{self, Scratch};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vtax_files::Dir;
use vtax_guest::image::{self, Recipe};
use vtax_guest::platform::GuestFiles;
use vtax_host::HostError;
use vtax_lab::place::Hypervisor;

/// The size of the root disk is a multiple of this, as persistent memory requires.
const ALIGNMENT: u64 = 128 << 20;

/// The size of the guests' disk is a multiple of this. It is so large that most disks have the same size: hosts with
/// disks of the same sizes can share a snapshot.
const GUESTS_ALIGNMENT: u64 = 2 << 30;

/// Free space of the root disk, in MiB: the largest scratch disk of vtax's own plans, and a guest's changes. Unwritten
/// blocks take no memory.
const ROOM_MIB: u64 = 1024;

/// The limits of an emulator that is not the build of this vtax.
fn without(emulator: &Emulator) -> &'static str {
    if emulator.is_ours() {
        "without this vtax's own build of QEMU a host has one processor, and no references to caches are counted"
    } else {
        "without vtax's own build of QEMU a guest under KVM may get stuck, two runs may differ in their last digits, and a host has one processor"
    }
}

/// An emulated host, ready to boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its hypervisor.
    pub hypervisor: Hypervisor,
    /// Its kernel, initial RAM disk and root.
    pub(crate) files: GuestFiles,
    /// Its root disk, and the disk with the images of guests.
    pub(crate) disks: [Disk; 2],
    /// The Xen that boots before its kernel.
    pub(crate) xen: Option<PathBuf>,
    /// Its emulator.
    pub(crate) emulator: Emulator,
    /// The directory of files made from its image.
    pub(crate) cache: PathBuf,
}

/// The image of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disk {
    pub path: PathBuf,
    pub bytes: u64,
}

/// A host's image in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedHost {
    /// Its hypervisor.
    pub hypervisor: Hypervisor,
    /// Its directory.
    pub path: PathBuf,
    /// Its size on the disk.
    pub bytes: u64,
    /// Whether it is from the current recipe.
    pub is_current: bool,
}

/// Builds a host that is not in the cache yet, and vtax's own QEMU. `progress` gets a line for each step.
///
/// # Errors
/// When an image cannot be built: see [`image::ensure`]. If that QEMU cannot be built, the system's is used, and
/// `progress` gets the reason.
pub fn build(hypervisor: Hypervisor, progress: &mut dyn FnMut(&str)) -> Result<Host, HostError> {
    let cache = image::cache_dir()?;
    let mut emulator = Emulator::find(&cache);
    if !emulator.is_current {
        match emulator::build(progress) {
            Ok(_) => emulator = Emulator::find(&cache),
            Err(cause) => progress(&format!(
                "{}: it cannot be built: {cause}",
                without(&emulator)
            )),
        }
    }
    assemble(hypervisor, emulator, progress)
}

/// A host from the cache, built if it is not there.
///
/// # Errors
/// As [`build`].
pub fn ready(hypervisor: Hypervisor, progress: &mut dyn FnMut(&str)) -> Result<Host, HostError> {
    let Some(host) = cached(hypervisor)? else {
        return build(hypervisor, progress);
    };
    if !host.emulator.is_current {
        progress(&format!("{}: {REMEDY}", without(&host.emulator)));
    }
    Ok(host)
}

fn assemble(
    hypervisor: Hypervisor,
    emulator: Emulator,
    progress: &mut dyn FnMut(&str),
) -> Result<Host, HostError> {
    let files = image::ensure(&recipe(hypervisor), progress)?;
    let cache = image::cache_dir()?;
    let root = derived(&cache, &root_name(&files.recipe), |path| {
        progress("packing the host's root disk");
        pack(&files.root, ROOM_MIB, ALIGNMENT, path)
    })?;
    let xen = match hypervisor {
        Hypervisor::Kvm => None,
        Hypervisor::Xen => Some(derived(&cache, &format!("xen-{}", files.recipe), |path| {
            unpack_xen(&files.root, path)
        })?),
    };
    Ok(Host {
        hypervisor,
        disks: [disk(root)?, guests(&[Recipe::standard()], progress)?],
        files,
        xen,
        emulator,
        cache: cache.join("testbed"),
    })
}

/// A host, if the cache is complete.
///
/// # Errors
/// When there is no cache directory.
pub fn cached(hypervisor: Hypervisor) -> Result<Option<Host>, HostError> {
    let Some(files) = image::cached(&recipe(hypervisor))? else {
        return Ok(None);
    };
    if image::cached(&Recipe::standard())?.is_none() {
        return Ok(None);
    }
    let cache = image::cache_dir()?;
    let guests = guests_name(&[Recipe::standard()])?;
    let names = [root_name(&files.recipe), guests];
    if names.iter().all(|name| find(&cache, name).is_some()) {
        return assemble(hypervisor, Emulator::find(&cache), &mut |_| {}).map(Some);
    }
    Ok(None)
}

/// The emulator and image of a host that this user can start.
///
/// # Errors
/// When the emulator or the image is missing.
pub fn available(hypervisor: Hypervisor) -> Result<String, HostError> {
    let found = Emulator::find(&image::cache_dir()?);
    let emulator = format!("{} ({})", found.describe()?, found.origin());
    if cached(hypervisor)?.is_some() {
        return Ok(format!("{emulator}, and its image is built; needs no root"));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(format!("{emulator}; the first run builds its image"));
    }
    Err(HostError::Missing {
        what: format!("the image of testbed:{hypervisor}"),
        remedy: format!("build it once as root: sudo vtax testbed build {hypervisor}"),
    })
}

/// All emulated hosts in the cache, also those of earlier recipes.
///
/// # Errors
/// When there is no cache directory, or it cannot be read.
pub fn list() -> Result<Vec<CachedHost>, HostError> {
    let listed: Result<Vec<_>, _> = emulator::caches()?.iter().map(|at| list_in(at)).collect();
    Ok(listed?.concat())
}

fn list_in(cache: &Path) -> Result<Vec<CachedHost>, HostError> {
    let images = cache.join("images");
    if !images.is_dir() {
        return Ok(Vec::new());
    }
    let mut kept = Vec::new();
    for entry in fs::read_dir(&images).map_err(HostError::file("read", &images))? {
        let path = entry.map_err(HostError::file("read", &images))?.path();
        let Some(found) = read_recipe(&path) else {
            continue;
        };
        let Some(hypervisor) = hypervisor_of(&found) else {
            continue;
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut bytes = allocated(&path)?;
        for made in made_from(cache, &name) {
            bytes += allocated(&made)?;
        }
        kept.push(CachedHost {
            hypervisor,
            bytes,
            is_current: recipe(hypervisor).hash().is_ok_and(|hash| hash == name),
            path,
        });
    }
    kept.sort_by(|a, b| {
        (a.hypervisor, !a.is_current, &a.path).cmp(&(b.hypervisor, !b.is_current, &b.path))
    });
    Ok(kept)
}

/// Removes all images of a hypervisor from the cache; returns the removed ones.
///
/// # Errors
/// When something cannot be removed.
pub fn remove(hypervisor: Hypervisor) -> Result<Vec<CachedHost>, HostError> {
    remove_in(&image::cache_dir()?, hypervisor)
}

fn remove_in(cache: &Path, hypervisor: Hypervisor) -> Result<Vec<CachedHost>, HostError> {
    let mut kept = list_in(cache)?;
    kept.retain(|kept| kept.hypervisor == hypervisor);
    for CachedHost { path, .. } in &kept {
        vtax_files::remove_all(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for made in made_from(cache, &name) {
            scratch::remove(&made)?;
        }
    }
    // The image may be in the machine's cache, and the files made from it in this cache.
    for made in made_from(cache, &recipe(hypervisor).hash()?) {
        scratch::remove(&made)?;
    }
    Ok(kept)
}

impl Host {
    /// The root disk.
    pub(crate) fn root(&self) -> &Disk {
        let [root, _] = &self.disks;
        root
    }

    /// The same host with the images of these recipes; missing ones are built.
    ///
    /// # Errors
    /// See [`image::ensure`].
    pub(crate) fn with_images(
        &self,
        recipes: &BTreeSet<Recipe>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self, HostError> {
        let recipes: Vec<Recipe> = recipes.iter().cloned().collect();
        let [root, _] = self.disks.clone();
        Ok(Self {
            disks: [root, guests(&recipes, progress)?],
            ..self.clone()
        })
    }
}

/// The disk with the images of these recipes, each in a directory of its name.
fn guests(recipes: &[Recipe], progress: &mut dyn FnMut(&str)) -> Result<Disk, HostError> {
    let images = recipes.iter().map(|recipe| image::ensure(recipe, progress));
    let images = images.collect::<Result<Vec<GuestFiles>, _>>()?;
    let made = derived(&image::cache_dir()?, &guests_name(recipes)?, |path| {
        progress("packing the guests' images, so that nothing is built inside");
        // Hard links to all files, on their file system.
        let beside = images
            .first()
            .and_then(|files| files.root.parent()?.parent());
        let tree = Scratch::create(beside.unwrap_or(Path::new("/")))?;
        for files in &images {
            let directory = files.root.parent().unwrap_or(&files.root);
            let mut command = Command::new("cp");
            command.args(["--archive", "--link"]);
            command.args([directory, &tree.path().join(&files.recipe)]);
            run(command)?;
        }
        pack(tree.path(), 0, GUESTS_ALIGNMENT, path)
    })?;
    disk(made)
}

/// The name of the disk with the images of these recipes.
fn guests_name(recipes: &[Recipe]) -> Result<String, HostError> {
    let mut name = "guests".to_owned();
    for recipe in recipes {
        let hash = recipe.hash()?;
        name = format!("{name}-{}", hash.get(..16).unwrap_or(&hash));
    }
    let gib = GUESTS_ALIGNMENT >> 30;
    Ok(format!("{name}-{gib}.ext4"))
}

/// The name of the root disk of this recipe's host.
fn root_name(recipe: &str) -> String {
    format!("root-{recipe}-{ROOM_MIB}.ext4")
}

/// The files and directories that this and earlier versions of vtax made from the image of a recipe.
fn made_from(cache: &Path, recipe: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache.join("testbed"));
    let files = entries.into_iter().flatten().flatten();
    files
        .filter(|file| file.file_name().to_string_lossy().contains(recipe))
        .map(|file| file.path())
        .collect()
}

/// The recipe of an image in the cache; `None` for other directories.
fn read_recipe(directory: &Path) -> Option<Recipe> {
    toml::from_str(&fs::read_to_string(directory.join("recipe.toml")).ok()?).ok()
}

/// The hypervisor of an image by its recipe, also one of an earlier version.
fn hypervisor_of(recipe: &Recipe) -> Option<Hypervisor> {
    let mut files = recipe.files.iter();
    let is_host = files.any(|file| file.path == "/etc/hostname" && file.text == "testbed\n");
    let mut packages = recipe.packages.iter();
    let has_xen = packages.any(|package| package.starts_with("xen-hypervisor"));
    is_host.then_some(if has_xen {
        Hypervisor::Xen
    } else {
        Hypervisor::Kvm
    })
}

/// A file of an emulated host in the user's cache, or in the one that root fills for all users of the machine.
fn find(cache: &Path, name: &str) -> Option<PathBuf> {
    [cache, Path::new(image::SHARED)]
        .map(|cache| cache.join("testbed").join(name))
        .into_iter()
        .find(|path| path.is_file())
}

/// The path of a file that is made from an image. A missing file is made, and gets its name once it is complete.
fn derived(
    cache: &Path,
    name: &str,
    make: impl FnOnce(&Path) -> Result<(), HostError>,
) -> Result<PathBuf, HostError> {
    if let Some(path) = find(cache, name) {
        return Ok(path);
    }
    let directory = cache.join("testbed");
    Dir::create(&directory)?;
    let partial = Scratch::create(&directory)?;
    let partial = partial.path().join(name);
    make(&partial)?;
    let file = File::open(&partial).map_err(HostError::file("open", &partial))?;
    // All users of the machine may boot it.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    let path = directory.join(name);
    file.set_permissions(mode)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&partial, &path))
        .map_err(HostError::file("create", &path))?;
    Ok(path)
}

fn disk(path: PathBuf) -> Result<Disk, HostError> {
    let metadata = fs::metadata(&path).map_err(HostError::file("read", &path))?;
    let bytes = metadata.len();
    Ok(Disk { path, bytes })
}

/// Packs a tree into an ext4 image with this much free space. The image has no journal, since writes to it do not
/// outlive the machine.
fn pack(tree: &Path, room_mib: u64, alignment: u64, image: &Path) -> Result<(), HostError> {
    if !rustix::process::geteuid().is_root() {
        return Err(HostError::Missing {
            what: "root, which owns the files of the testbed's image,".into(),
            remedy: "build it once as root; after that everyone on this machine can use it".into(),
        });
    }
    let used = allocated(tree)?;
    // An eighth and 256 MiB more, for the structures of the file system.
    let bytes = (used + used / 8 + ((256 + room_mib) << 20)).next_multiple_of(alignment);
    let mut command = Command::new("mke2fs");
    command.args("-q -t ext4 -b 4096 -m 0 -O ^has_journal -F -d".split(' '));
    command.args([tree, image]).arg(format!("{}M", bytes >> 20));
    run(command)
}

/// Decompresses Xen, since QEMU loads only the uncompressed format.
fn unpack_xen(root: &Path, into: &Path) -> Result<(), HostError> {
    let boot = root.join("boot");
    let packed = fs::read_dir(&boot)
        .map_err(HostError::file("read", &boot))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // The plain name is a symbolic link to it.
            name.starts_with("xen-") && name.ends_with(".gz") && !path.is_symlink()
        })
        .ok_or_else(|| HostError::Missing {
            what: format!("Xen in {}", boot.display()),
            remedy: "vtax testbed rm xen, then build it again".into(),
        })?;
    let mut command = Command::new("gzip");
    command.args(["--decompress", "--stdout"]).arg(packed);
    command.stdout(vtax_files::create(into)?);
    run(command)
}

fn run(mut command: Command) -> Result<(), HostError> {
    let line = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .map_err(|cause| HostError::Missing {
            what: format!("the program of `{line}` ({cause})"),
            remedy: "apt-get install e2fsprogs gzip".into(),
        })?;
    if output.status.success() {
        return Ok(());
    }
    Err(HostError::program(line, &output))
}

/// The bytes that a tree takes on the disk, without what this user may not read. A file that is removed during the count
/// takes none.
fn allocated(tree: &Path) -> Result<u64, HostError> {
    let mut sum = 0;
    let mut waiting = vec![tree.to_owned()];
    while let Some(path) = waiting.pop() {
        let failed = |cause| HostError::file("read", &path)(cause);
        let metadata = match fs::symlink_metadata(&path) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => continue,
            found => found.map_err(failed)?,
        };
        // A small file or a directory takes at least one block of the image.
        sum += (metadata.blocks() * 512).max(4096);
        if metadata.is_dir() {
            use ErrorKind::{NotFound, PermissionDenied};
            let entries = match fs::read_dir(&path) {
                Err(cause) if matches!(cause.kind(), NotFound | PermissionDenied) => continue,
                found => found.map_err(failed)?,
            };
            for entry in entries {
                waiting.push(entry.map_err(failed)?.path());
            }
        }
    }
    Ok(sum)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A host whose files are in `directory`, where there is one.
    pub(crate) fn fake_host(directory: &Path, hypervisor: Hypervisor) -> Host {
        let files = |recipe: &str| GuestFiles {
            root: directory.join("root"),
            image: directory.join("root.ext4"),
            kernel: directory.join("vmlinuz"),
            initrd: directory.join("initrd"),
            recipe: recipe.to_owned(),
            directory: None,
            files: None,
        };
        if directory.is_dir() {
            for name in ["vmlinuz", "initrd", "root.ext4", "xen"] {
                fs::write(directory.join(name), "odd").unwrap();
            }
        }
        let disk = |name: &str| Disk {
            path: directory.join(name),
            bytes: 768 << 20,
        };
        Host {
            hypervisor,
            files: files("host"),
            disks: [disk("root.ext4"), disk("guests.ext4")],
            xen: (hypervisor == Hypervisor::Xen).then(|| directory.join("xen")),
            emulator: Emulator::of_the_system(),
            cache: directory.join("cache"),
        }
    }

    fn keep(cache: &Path, name: &str, recipe: &Recipe) {
        let directory = cache.join("images").join(name);
        fs::create_dir_all(directory.join("root")).unwrap();
        fs::write(directory.join("recipe.toml"), recipe.to_toml().unwrap()).unwrap();
    }

    #[test]
    fn hosts_are_listed_and_removed_and_the_guests_image_is_neither() {
        let cache = tempfile::tempdir().unwrap();
        assert_eq!(list_in(cache.path()).unwrap(), []);
        let kvm = recipe(Hypervisor::Kvm);
        keep(cache.path(), &kvm.hash().unwrap(), &kvm);
        keep(cache.path(), "an-older-one", &kvm);
        keep(cache.path(), "xen", &recipe(Hypervisor::Xen));
        keep(cache.path(), "guests", &Recipe::standard());
        fs::create_dir_all(cache.path().join("images/.building-x")).unwrap();
        let derived = ["root-an-older-one.ext4", "xen-xen", "guests-guests.ext4"];
        let snapshot = cache.path().join("testbed/snapshot-7-an-older-one-8");
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(snapshot.join("state"), "").unwrap();
        for name in derived {
            fs::write(cache.path().join("testbed").join(name), "").unwrap();
        }

        let listed = list_in(cache.path()).unwrap();
        let shown: Vec<_> = listed
            .iter()
            .map(|kept| (kept.hypervisor, kept.is_current))
            .collect();
        assert_eq!(
            shown,
            [
                (Hypervisor::Kvm, true),
                (Hypervisor::Kvm, false),
                (Hypervisor::Xen, false)
            ]
        );
        assert_eq!(remove_in(cache.path(), Hypervisor::Kvm).unwrap().len(), 2);
        assert_eq!(list_in(cache.path()).unwrap().len(), 1);
        assert!(!snapshot.exists());
        assert!(cache.path().join("images/guests").exists());
        let left = derived.map(|name| cache.path().join("testbed").join(name).exists());
        assert_eq!(left, [false, true, true]);

        // The cache of a user has only the files made from an image in the machine's cache.
        let snapshot = format!("testbed/snapshot-7-{}-8", kvm.hash().unwrap());
        let snapshot = cache.path().join(snapshot);
        fs::create_dir_all(&snapshot).unwrap();
        assert_eq!(remove_in(cache.path(), Hypervisor::Kvm).unwrap(), []);
        assert!(!snapshot.exists());
        assert_eq!(allocated(&snapshot).unwrap(), 0);
    }

    #[test]
    fn a_derived_file_is_made_once_and_only_whole() {
        let cache = tempfile::tempdir().unwrap();
        let fails = derived(cache.path(), "a-name-of-a-test", |path| {
            fs::write(path, "half").unwrap();
            Err(HostError::Other("no".into()))
        });
        assert!(fails.is_err());
        let make = |text: &'static str| {
            derived(cache.path(), "a-name-of-a-test", move |path| {
                fs::write(path, text).map_err(HostError::file("write", path))
            })
            .unwrap()
        };
        let path = make("first");
        assert_eq!(make("second"), path);
        assert_eq!(fs::read_to_string(path).unwrap(), "first");
    }
}
