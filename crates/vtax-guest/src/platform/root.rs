//! The shared root file system as `native` and `container` see it: the unpacked tree, read-only,
//! with a writable layer in memory that ends with the cell.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use vtax_host::HostError;
use vtax_host::cell::Attached;
use vtax_host::cell::{Cell, Space};
use vtax_host::scratch::MOUNT_POINT;

/// What makes the tree writable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// An overlay: all of it.
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
    /// Where, in the cell's mount namespace.
    pub path: PathBuf,
    /// How it is writable.
    pub layer: Layer,
    /// The scratch disk, which is mounted in it, too.
    pub scratch: Option<Attached>,
}

/// The bind mount gives the tree a name without the characters that overlay's options reserve.
const LOWER: &str = r#"mkdir /run/lower /run/root /run/upper /run/work
mount --bind "$1" /run/lower
mount -o remount,bind,ro /run/lower
"#;

const OVERLAY: &str =
    "mount -t overlay -o lowerdir=/run/lower,upperdir=/run/upper,workdir=/run/work vtax /run/root
";

/// /var is copied into memory, small as it is in an image, so that services find their folders.
const MEMORY: &str = r#"mount --rbind /run/lower /run/root
for folder in tmp run var; do
    if [ -d /run/root/$folder ]; then
        cp -a /run/lower/$folder/. /run/upper/$folder 2>/dev/null || mkdir -p /run/upper/$folder
        mount --bind /run/upper/$folder /run/root/$folder
    fi
done
"#;

impl Root {
    /// Mounts the tree `lower` in the cell, and the cell's scratch disk in it.
    ///
    /// # Errors
    /// When `lower` is no root file system, or a mount fails.
    pub fn mount(cell: &Cell, lower: &Path) -> Result<Self, HostError> {
        let layer = if has_overlay() {
            Layer::Overlay
        } else {
            Layer::Memory
        };
        Self::mount_as(cell, lower, layer)
    }

    /// As [`Root::mount`], with a given layer.
    ///
    /// # Errors
    /// As [`Root::mount`].
    pub fn mount_as(cell: &Cell, lower: &Path, layer: Layer) -> Result<Self, HostError> {
        if !lower.join("bin/sh").exists() && fs::symlink_metadata(lower.join("bin/sh")).is_err() {
            return Err(HostError::Missing {
                what: format!(
                    "a root file system in {} (it has no /bin/sh)",
                    lower.display()
                ),
                remedy: "have the image built again: `vtax image build --force`".to_owned(),
            });
        }
        let script = format!(
            "{LOWER}{}",
            if layer == Layer::Overlay {
                OVERLAY
            } else {
                MEMORY
            }
        );
        cell.script(
            Space::Switch,
            "the mount of the root file system",
            &script,
            &[lower],
        )?;
        let scratch = Attached::attach(cell)?;
        if let Some(scratch) = &scratch {
            let script = r#"[ -d "$2" ] || mkdir "$2"
mount --bind "$1" "$2""#;
            let inside = PathBuf::from(format!("/run/root{MOUNT_POINT}"));
            cell.script(
                Space::Switch,
                "the mount of the scratch disk",
                script,
                &[&scratch.directory, &inside],
            )?;
        }
        Ok(Self {
            path: PathBuf::from("/run/root"),
            layer,
            scratch,
        })
    }
}

/// Whether the kernel has overlayfs; where it is a module, mounting one loads it.
fn has_overlay() -> bool {
    let listed = || {
        fs::read_to_string("/proc/filesystems").is_ok_and(|list| {
            list.lines()
                .any(|line| line.split_whitespace().next_back() == Some("overlay"))
        })
    };
    // Without modprobe, or the module, the list stays as it is, and that is the answer.
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
    use vtax_host::cell::{CellConfig, requirements};

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
        let root = Root::mount_as(&cell, tree.path(), Layer::Memory).unwrap();
        let outside = cell.outside(&root.path);
        for path in ["tmp/new", "run/new", "var/log/service/new"] {
            fs::write(outside.join(path), "").unwrap();
            assert!(!tree.path().join(path).exists(), "{path}");
        }
        let refused = fs::write(outside.join("etc/new"), "").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        cell.destroy().unwrap();
    }
}
