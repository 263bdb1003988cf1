// SPDX-License-Identifier: Apache-2.0
//! The shared root file system of `native` and containers: the unpacked tree, read-only, with a writable layer in
//! memory that ends with the cell.

use super::host_root;
use crate::image::GuestFiles;
use crate::image::oci::DIRECTORY;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use vtax_host::cell::{Attached, Seat, Space};
use vtax_host::scratch::MOUNT_POINT;
use vtax_host::{HostError, rootless};

/// The writable layer of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// An overlay on the whole tree.
    Overlay,
    /// Memory file systems on the directories that services write to; for kernels without overlay.
    Memory,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Overlay => "overlay on tmpfs",
            Self::Memory => "read-only, with tmpfs on /tmp, /var and /run",
        })
    }
}

/// The root file system in a cell.
#[derive(Debug)]
pub struct Root {
    /// Its path in the cell's mount namespace.
    pub path: PathBuf,
    /// Its writable layer.
    pub layer: Layer,
    /// The scratch disk, which is also mounted in it.
    pub scratch: Option<Attached>,
    /// Whether it has the image of a container below it.
    pub has_image: bool,
}

/// Mounts the tree read-only, at a path without the characters that overlay's options reserve.
const LOWER: &str = r#"mkdir $SEAT/lower $SEAT/root $SEAT/upper $SEAT/work
mount --bind "$1" $SEAT/lower
mount -o remount,bind,ro $SEAT/lower
"#;

const OVERLAY: &str =
    "mount -t overlay -o lowerdir=$SEAT/lower,upperdir=$SEAT/upper,workdir=$SEAT/work$LAYER_OPTIONS vtax $SEAT/root
";

/// Mounts memory on the directories that everyone may write to. The layer of an ordinary user takes no entry into a directory
/// whose owner has no number in the user's namespace.
const OF_EVERYONE: &str = r#"for folder in tmp var/tmp run/lock; do
    inside=$SEAT/root/$folder
    [ ! -d "$inside" ] || [ -L "$inside" ] || mount -t tmpfs -o mode=1777 vtax "$inside"
done
"#;

/// Mounts memory file systems. /var is copied into memory, so that services find their directories; it is small in
/// an image.
const MEMORY: &str = r#"mount --rbind $SEAT/lower $SEAT/root
for folder in tmp run var; do
    if [ -d $SEAT/root/$folder ]; then
        cp -a $SEAT/lower/$folder/. $SEAT/upper/$folder 2>/dev/null || mkdir -p $SEAT/upper/$folder
        mount --bind $SEAT/upper/$folder $SEAT/root/$folder
    fi
done
"#;

impl Root {
    /// Mounts the tree of the guest's files in the cell, and the cell's scratch disk in it.
    ///
    /// # Errors
    /// When the tree is not a root file system, or a mount fails.
    pub fn mount(seat: &Seat<'_>, guest: &GuestFiles) -> Result<Self, HostError> {
        if guest.root == Path::new("/") {
            return Self::mount_host(seat, guest);
        }
        let layer = if has_overlay() {
            Layer::Overlay
        } else {
            Layer::Memory
        };
        Self::mount_as(seat, &guest.root, layer)
    }

    /// Mounts the root of this host.
    fn mount_host(seat: &Seat<'_>, guest: &GuestFiles) -> Result<Self, HostError> {
        if !has_overlay() {
            return Err(HostError::Missing {
                what: "overlayfs of this kernel, without which the files of this host would be written,"
                    .to_owned(),
                remedy: "load it: modprobe overlay".to_owned(),
            });
        }
        let steps = host_root::steps(guest.directory.as_deref(), guest.files.as_deref())?;
        let words: Vec<OsString> = steps.iter().flat_map(host_root::Step::words).collect();
        let words: Vec<&Path> = words.iter().map(Path::new).collect();
        let mut script = format!("LAYER_OPTIONS={}\n{}", layer_options(), host_root::SCRIPT);
        if rootless::is_root() {
            // A user without root cannot read them.
            script.push_str(&format!("cd $SEAT/root && rm -rf {}\n", host_root::SECRETS));
        }
        seat.script(
            Space::Switch,
            "the mount of this host's root file system",
            &script,
            &words,
        )?;
        Self::with_scratch(seat, Layer::Overlay, false)
    }

    /// As [`Root::mount`], with a given layer.
    ///
    /// # Errors
    /// As [`Root::mount`].
    pub fn mount_as(seat: &Seat<'_>, lower: &Path, layer: Layer) -> Result<Self, HostError> {
        if !lower.join("bin/sh").exists() && fs::symlink_metadata(lower.join("bin/sh")).is_err() {
            return Err(HostError::Missing {
                what: format!(
                    "a root file system in {} (it has no /bin/sh)",
                    lower.display()
                ),
                remedy: "have the image built again: `vtax image build --force`".to_owned(),
            });
        }
        let has_image = lower.join(DIRECTORY.trim_start_matches('/')).is_dir();
        if has_image && layer == Layer::Memory {
            return Err(HostError::Missing {
                what: "overlayfs of this kernel, without which an image is read-only,".to_owned(),
                remedy: "load it: modprobe overlay".to_owned(),
            });
        }
        let above = match layer {
            Layer::Overlay if rootless::is_root() => OVERLAY.to_owned(),
            Layer::Overlay => format!("{OVERLAY}{OF_EVERYONE}"),
            Layer::Memory => MEMORY.to_owned(),
        };
        let script = format!("LAYER_OPTIONS={}\n{LOWER}{above}", layer_options());
        seat.script(
            Space::Switch,
            "the mount of the root file system",
            &script,
            &[lower],
        )?;
        Self::with_scratch(seat, layer, has_image)
    }

    fn with_scratch(seat: &Seat<'_>, layer: Layer, has_image: bool) -> Result<Self, HostError> {
        let scratch = Attached::attach(seat)?;
        if let Some(scratch) = &scratch {
            let script = r#"[ -d "$2" ] || mkdir "$2"
mount --bind "$1" "$2""#;
            let inside = seat.run_dir().join(format!("root{MOUNT_POINT}"));
            seat.script(
                Space::Switch,
                "the mount of the scratch disk",
                script,
                &[&scratch.directory, &inside],
            )?;
        }
        Ok(Self {
            path: seat.run_dir().join("root"),
            layer,
            scratch,
            has_image,
        })
    }
}

/// Further options of an overlay: in a user namespace it keeps its marks in attributes that a user may write.
fn layer_options() -> &'static str {
    if rootless::is_root() {
        ""
    } else {
        ",userxattr"
    }
}

/// Whether the kernel has overlayfs; loads the module.
fn has_overlay() -> bool {
    let listed = || {
        fs::read_to_string("/proc/filesystems").is_ok_and(|list| {
            list.lines()
                .any(|line| line.split_whitespace().next_back() == Some("overlay"))
        })
    };
    // Without modprobe or the module the list stays the same.
    listed()
        || std::process::Command::new("modprobe")
            .args(["-q", "overlay"])
            .status()
            .is_ok_and(|_| listed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::cell::link::LinkConfig;
    use vtax_host::cell::{Cell, CellConfig, requirements};

    #[test]
    fn without_overlayfs_services_can_still_write_where_they_do() {
        if let Err(error) = requirements::check(&LinkConfig::default()) {
            return eprintln!("SKIPPED: {error}");
        }
        let tree = tempfile::tempdir().unwrap();
        for folder in ["bin", "etc", "run", "tmp", "var/log/service"] {
            fs::create_dir_all(tree.path().join(folder)).unwrap();
        }
        fs::write(tree.path().join("bin/sh"), "").unwrap();
        let cell = Cell::create_unrecorded(CellConfig {
            name: "memory".to_owned(),
            ..CellConfig::default()
        })
        .unwrap();
        let seat = cell.target().unwrap();
        let root = Root::mount_as(&seat, tree.path(), Layer::Memory).unwrap();
        let outside = seat.outside(&root.path);
        for path in ["tmp/new", "run/new", "var/log/service/new"] {
            fs::write(outside.join(path), "").unwrap();
            assert!(!tree.path().join(path).exists(), "{path}");
        }
        let refused = fs::write(outside.join("etc/new"), "").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        cell.destroy().unwrap();
    }
}
