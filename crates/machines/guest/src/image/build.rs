// SPDX-License-Identifier: Apache-2.0
//! Builds an image: mmdebstrap installs the tree, mke2fs packs it, without loop devices and without mounts in this
//! namespace.

use super::debian::{devices, mmdebstrap, sources};
use super::logged::run_logged;
use super::pack::pack;
use super::{Recipe, RecipeFile, initrd, kernel};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use vtax_host::roots::PATH;
use vtax_host::{HostError, Roots, rootless};

/// The required space in MiB: a tree of 420 MB, its image, mmdebstrap's downloads, and room for a longer recipe.
pub(super) const NEEDED_MIB: u64 = 2048;

/// Room beside the image below for the files that an image above it gets, in MiB.
pub(super) const ROOM_MIB: u64 = 512;

const BUILDING: &str = ".building-";

/// The prefix of the directories of unfinished builds of this recipe.
pub(super) fn building_prefix(hash: &str) -> String {
    format!("{BUILDING}{hash}-")
}

/// The name that a directory of an unfinished build will have; `None` for other directories.
pub(super) fn built_in(directory: &str) -> Option<&str> {
    let (hash, _) = directory.strip_prefix(BUILDING)?.rsplit_once('-')?;
    Some(hash)
}

/// Builds `images/<hash>`. The caller holds the recipe's lock.
pub(super) fn build(
    images: &Path,
    recipe: &Recipe,
    hash: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    require_programs_and_rights()?;
    require_space(images, NEEDED_MIB)?;
    let building = Building::new(images, hash)?;
    let dir = building.path();
    // The tree of root is read by QEMU, by runtimes, by services that drop root and by other users. That of a user has
    // programs with set-user-ID of this user, which no other user must reach.
    let mode = if rootless::is_root() { 0o755 } else { 0o700 };
    fs::set_permissions(dir, fs::Permissions::from_mode(mode))
        .map_err(HostError::file("write", dir))?;
    write(&dir.join(super::RECIPE), recipe.to_toml()?.as_bytes())?;
    let log = dir.join("build.log");
    let root = dir.join("root");

    let result = (|| {
        install(recipe, &root, &log, progress)?;
        for file in &recipe.files {
            add(&root, file)?;
        }
        if let Some(release) = &recipe.kernel {
            replace_kernel(release, &root, dir, &log, progress)?;
        }
        let version = take_kernel(&root, &dir.join("vmlinuz"))?;
        write(
            &dir.join("initrd"),
            &initrd::boot(
                &root,
                &root.join("lib/modules").join(&version),
                &recipe.modules,
            )?,
        )?;
        progress("packing the tree into an ext4 image");
        pack(&root, &dir.join("root.ext4"), &log)
    })();
    if let Err(error) = result {
        // The directory is removed; its log is kept under a name with the recipe's hash.
        let kept = images.join(format!("failed-{}.log", hash.get(..12).unwrap_or(hash)));
        let note = match fs::rename(&log, &kept) {
            Ok(()) => format!("\nthe whole log: {}", kept.display()),
            Err(_) => String::new(),
        };
        return Err(match error {
            HostError::Program {
                command,
                status,
                output,
            } => HostError::Program {
                command,
                status,
                output: output + &note,
            },
            other => other,
        });
    }

    publish(building, &images.join(hash))
}

/// The directory of an image that is being made, which is removed unless it is published.
pub(super) struct Building(PathBuf);

impl Building {
    /// Creates the directory for the image `hash` in `images`.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn new(images: &Path, hash: &str) -> Result<Self, HostError> {
        let made = tempfile::Builder::new()
            .prefix(&building_prefix(hash))
            .tempdir_in(images)
            .map_err(HostError::file("create", images))?;
        Ok(Self(made.keep()))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        // What cannot be removed is removed before the next build.
        let _ = vtax_files::remove_all(&self.0);
    }
}

/// Gives a complete image its final name, once its content is on the disk.
pub(super) fn publish(building: Building, done: &Path) -> Result<(), HostError> {
    let dir = building.path();
    let handle = File::open(dir).map_err(HostError::file("read", dir))?;
    rustix::fs::syncfs(&handle).map_err(|cause| HostError::file("sync", dir)(cause.into()))?;
    fs::rename(dir, done).map_err(HostError::file("create", done))?;
    Ok(())
}

/// Checks that this process can make images.
///
/// # Errors
/// When a program is missing, or the process is neither root's nor in a user namespace of its own.
pub(super) fn require_programs_and_rights() -> Result<(), HostError> {
    let missing = [
        ("mmdebstrap", "mmdebstrap"),
        ("mke2fs", "e2fsprogs"),
        ("setpriv", "util-linux"),
        ("unshare", "util-linux"),
        ("mount", "mount"),
    ]
    .into_iter()
    .filter(|(program, _)| Roots::host().program(program).is_none());
    let (programs, mut packages): (Vec<_>, Vec<_>) = missing.unzip();
    if !programs.is_empty() {
        packages.dedup();
        return Err(HostError::Missing {
            what: format!("what builds the guest image ({})", programs.join(", ")),
            remedy: format!("sudo apt-get install {}", packages.join(" ")),
        });
    }
    if !rootless::is_root() {
        rootless::enter()?;
    }
    Ok(())
}

/// Checks that a directory has space for an image.
///
/// # Errors
/// When fewer than `needed_mib` are free.
pub(super) fn require_space(images: &Path, needed_mib: u64) -> Result<(), HostError> {
    let stat = rustix::fs::statvfs(images)
        .map_err(|cause| HostError::file("read", images)(cause.into()))?;
    let free_mib = stat.f_bavail.saturating_mul(stat.f_frsize) >> 20;
    if free_mib >= needed_mib {
        return Ok(());
    }
    Err(HostError::Missing {
        what: format!(
            "space for the guest image in {} ({free_mib} MiB free, {needed_mib} MiB needed)",
            images.display()
        ),
        remedy: "free some, or set VTAX_CACHE_DIR to a directory on a larger disk".into(),
    })
}

/// Runs mmdebstrap with all of its output in the log.
fn install(
    recipe: &Recipe,
    root: &Path,
    log: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    let mut command = mmdebstrap(&recipe.packages, root.parent().unwrap_or(root))?;
    let (suite, count) = (&recipe.suite, recipe.packages.len());
    let [before, after] = devices();
    if recipe.unpacked {
        progress(&format!(
            "unpacking the agent and the kernel of VMs from Debian {suite}"
        ));
        command.arg("--variant=extract");
    } else {
        progress(&format!(
            "installing Debian {suite} with {count} packages (a minute or two)"
        ));
        if rootless::has_one_owner() {
            progress("all files of the image belong to root, since one id is mapped");
        }
        command.args(before).args(after);
    }
    command.arg(suite).arg(root).args(sources(suite));
    // The guest boots with vtax's own initial RAM disk; Debian's takes long to build.
    command.env("INITRD", "No");
    run_logged(command, log, progress)?;
    if recipe.unpacked {
        // The script of the kernel's package does it where it is installed.
        depend(root, log, progress)?;
    }
    Ok(())
}

/// Writes the table of dependencies of each kernel's modules, by the program of the tree.
fn depend(root: &Path, log: &Path, progress: &mut dyn FnMut(&str)) -> Result<(), HostError> {
    let modules = root.join("lib/modules");
    let entries = fs::read_dir(&modules).map_err(HostError::file("read", &modules))?;
    for entry in entries {
        let entry = entry.map_err(HostError::file("read", &modules))?;
        let mut command = Command::new("chroot");
        command.arg(root).arg("depmod").arg(entry.file_name());
        // A user's own has no directories of administration.
        command.env("PATH", PATH);
        run_logged(command, log, progress)?;
    }
    Ok(())
}

/// Replaces the kernel and the modules of the tree at `root`. The packages of the release are unpacked in `dir`.
fn replace_kernel(
    release: &str,
    root: &Path,
    dir: &Path,
    log: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    progress(&format!("taking the kernel of Debian {release}"));
    let tree = dir.join("kernel");
    let suite = release.strip_suffix("-backports").unwrap_or(release);
    let mut command = mmdebstrap(&[format!("{}/{release}", kernel::PACKAGE)], dir)?;
    // The packages are unpacked and not installed.
    command.arg("--variant=extract").arg(suite).arg(&tree);
    command.args(kernel::with_release(sources(suite), suite, release));
    run_logged(command, log, progress)?;
    kernel::exchange(&tree, root)?;
    vtax_files::remove_all(&tree)?;
    depend(root, log, progress)
}

/// Creates directories one by one, since a symbolic link in the tree could lead out of it, into the host's own
/// files.
fn create_directories(root: &Path, inside: &Path) -> Result<PathBuf, HostError> {
    let mut path = root.to_owned();
    for part in inside.strip_prefix("/").unwrap_or(inside) {
        path.push(part);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => {
                return Err(HostError::Setting(format!(
                    "image recipe: {} is not a directory in the image; name the directory it leads to",
                    Path::new("/").join(inside).display()
                )));
            }
            Err(_) => {
                fs::create_dir(&path).map_err(HostError::file("create", &path))?;
                let mode = fs::Permissions::from_mode(0o755);
                fs::set_permissions(&path, mode).map_err(HostError::file("write", &path))?;
            }
        }
    }
    Ok(path)
}

/// Adds a file of a recipe to the tree, in the place of an entry of its path.
fn add(root: &Path, file: &RecipeFile) -> Result<(), HostError> {
    let mode = if file.executable { 0o755 } else { 0o644 };
    put(root, &file.path, mode, file.text.as_bytes())
}

/// Adds a file to the tree, in the place of an entry of its path.
pub(super) fn put(root: &Path, path: &str, mode: u32, content: &[u8]) -> Result<(), HostError> {
    let inside = Path::new(path);
    let parent = create_directories(root, inside.parent().unwrap_or(inside))?;
    let path = parent.join(inside.file_name().unwrap_or_default());
    // A package may have put a link there that leads out of the tree.
    if path.symlink_metadata().is_ok() {
        fs::remove_file(&path).map_err(HostError::file("remove", &path))?;
    }
    write(&path, content)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode))
        .map_err(HostError::file("write", &path))
}

fn write(path: &Path, content: &[u8]) -> Result<(), HostError> {
    Ok(vtax_files::write_scratch(path, content)?)
}

/// Copies the tree's kernel out and returns its version. Debian's cloud kernel is packed by LZ4, which unpacks fast
/// even under emulation.
fn take_kernel(root: &Path, destination: &Path) -> Result<String, HostError> {
    let boot = root.join("boot");
    let kernels: Vec<(String, PathBuf)> = fs::read_dir(&boot)
        .map_err(HostError::file("read", &boot))?
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let version = entry
                .file_name()
                .to_str()?
                .strip_prefix("vmlinuz-")?
                .to_owned();
            Some((version, entry.path()))
        })
        .collect();
    let [(version, kernel)] = kernels.as_slice() else {
        return Err(HostError::Setting(format!(
            "image recipe: the packages bring {} kernels, and one is needed; linux-image-cloud-amd64 brings one",
            kernels.len()
        )));
    };
    fs::copy(kernel, destination).map_err(HostError::file("create", destination))?;
    Ok(version.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_never_written_through_a_link_that_leaves_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        let (root, host) = (dir.path().join("root"), dir.path().join("host"));
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(&host).unwrap();
        std::os::unix::fs::symlink(&host, root.join("etc")).unwrap();
        std::os::unix::fs::symlink(host.join("target"), root.join("motd")).unwrap();
        let file = |path: &str| RecipeFile {
            path: path.into(),
            executable: false,
            text: "x".into(),
        };
        assert!(
            add(&root, &file("/etc/motd"))
                .unwrap_err()
                .to_string()
                .contains("not a directory")
        );
        add(&root, &file("/motd")).unwrap();
        assert_eq!(fs::read_dir(&host).unwrap().count(), 0);
        assert_eq!(fs::read(root.join("motd")).unwrap(), b"x");
    }

    #[test]
    fn too_little_space_is_reported_with_both_numbers() {
        // /proc has no free space on any machine.
        let text = require_space(Path::new("/proc"), NEEDED_MIB)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("0 MiB free, 2048 MiB needed") && text.contains("VTAX_CACHE_DIR"),
            "{text}"
        );
    }
}
