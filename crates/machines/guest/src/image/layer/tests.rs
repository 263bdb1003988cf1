// SPDX-License-Identifier: Apache-2.0
//! Random stacks of layers beside the kernel's overlay of the same layers.
//!
//! Meant differences, which the comparison leaves out:
//! - A directory without an entry in the upper layer keeps the permissions of the one below. The kernel shows those of the
//!   upper layer, which archives do not have. Image-spec 1.1, "Representing Changes": "Layer changesets MUST include only
//!   entries for files and directories that were added, modified or deleted".
//! - A hard link to a file of a lower layer stays a link to it. In an overlay it is a copy.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// An entry of a random layer: a path, and a kind.
#[derive(Debug, Clone)]
enum Random {
    File(u8),
    Directory,
    Link(String),
    HardLink(String),
    Whiteout,
    Opaque,
}

const STACKS: u32 = 1000;

/// Few names, so that layers meet.
fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4)
        .prop_map(|parts| parts.join("/"))
}

fn layer() -> impl Strategy<Value = Vec<(String, Random)>> {
    let kind = prop_oneof![
        4 => any::<u8>().prop_map(Random::File),
        4 => Just(Random::Directory),
        2 => path().prop_map(|target| Random::Link(format!("/{target}"))),
        1 => path().prop_map(Random::HardLink),
        2 => Just(Random::Whiteout),
        2 => Just(Random::Opaque),
    ];
    prop::collection::vec((path(), kind), 1..9)
}

fn entry((path, random): &(String, Random)) -> (Entry, Vec<u8>) {
    let parent = parent_of(Path::new(path));
    let name = Path::new(path).file_name().unwrap().to_string_lossy();
    let (name, kind, content, mode) = match random {
        Random::File(content) => (path.into(), Kind::File, vec![*content], 0o640),
        Random::Directory => (path.into(), Kind::Directory, Vec::new(), 0o711),
        Random::Link(target) => (path.into(), Kind::Link(target.into()), Vec::new(), 0o777),
        Random::HardLink(target) => (path.into(), Kind::HardLink(target.into()), Vec::new(), 0),
        Random::Whiteout => (
            parent.join(format!(".wh.{name}")),
            Kind::File,
            Vec::new(),
            0o644,
        ),
        Random::Opaque => (
            Path::new(path).join(".wh..wh..opq"),
            Kind::File,
            Vec::new(),
            0o644,
        ),
    };
    let name = name.strip_prefix(".").unwrap_or(&name).to_owned();
    let entry = Entry {
        name,
        kind,
        mode,
        uid: 0,
        gid: 0,
        mtime: 1,
        size: content.len() as u64,
        capability: None,
    };
    (entry, content)
}

/// What a tree shows, by path: type and permissions, with the content or target.
fn shown(root: &Path, implied: &[PathBuf]) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(root.join(&folder)).unwrap().flatten() {
            let path = folder.join(item.file_name());
            // The kernel lists whiteouts of a directory that only one layer has, and finds nothing by their names.
            let Ok(about) = item.metadata() else {
                continue;
            };
            let kind = about.file_type();
            let mode = about.mode() & 0o7777;
            let text = if kind.is_dir() {
                folders.push(path.clone());
                if implied.contains(&path) {
                    "directory".to_owned()
                } else {
                    format!("directory {mode:o}")
                }
            } else if kind.is_symlink() {
                let target = fs::read_link(item.path()).unwrap();
                format!("link to {}", target.display())
            } else {
                let content = fs::read(item.path()).unwrap();
                format!("{kind:?} {mode:o} {content:?}")
            };
            found.insert(path, text);
        }
    }
    found
}

/// The directories of a layer that have no entry.
fn implied(layer: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let handle = OwnedFd::from(fs::File::open(layer.join(&folder)).unwrap());
        if has(&handle, implied_mark()).unwrap() {
            found.push(folder.clone());
        }
        for item in fs::read_dir(layer.join(&folder)).unwrap().flatten() {
            if item.file_type().unwrap().is_dir() {
                folders.push(folder.join(item.file_name()));
            }
        }
    }
    found
}

/// Unpacks the layers, and compares the tree with the kernel's overlay of copies of the layers. An entry that cannot be
/// added, such as one below a file of its own layer, is left out of both.
fn compare(layers: &[Vec<(String, Random)>]) -> Result<(), TestCaseError> {
    let work = tempfile::tempdir().unwrap();
    let root = work.path().join("root");
    fs::create_dir(&root).unwrap();
    let tree = Tree::open(&root).unwrap();
    let (mut lower, mut without) = (Vec::new(), Vec::new());
    for (number, entries) in layers.iter().enumerate() {
        let staging = work.path().join("layer");
        fs::create_dir(&staging).unwrap();
        let own = Layer::new(&staging, &tree).unwrap();
        for random in entries {
            let (entry, content) = entry(random);
            let _ = own.add(&entry, &mut content.as_slice(), &mut || Ok(()));
        }
        let copy = work.path().join(number.to_string());
        let copied = Command::new("cp")
            .args(["--archive", "--"])
            .args([&staging, &copy])
            .status();
        assert!(copied.unwrap().success());
        without.extend(implied(&copy));
        own.merge().unwrap();
        fs::remove_dir_all(&staging).unwrap();
        lower.push(copy.display().to_string());
    }
    lower.reverse();
    // An overlay needs two layers.
    let empty = work.path().join("empty");
    let seen = work.path().join("seen");
    fs::create_dir(&empty).unwrap();
    fs::create_dir(&seen).unwrap();
    lower.push(empty.display().to_string());
    let options = std::ffi::CString::new(format!("lowerdir={}", lower.join(":"))).unwrap();
    rustix::mount::mount("overlay", &seen, "overlay", MountFlags::RDONLY, &*options).unwrap();
    let of_kernel = shown(&seen, &without);
    rustix::mount::unmount(&seen, UnmountFlags::DETACH).unwrap();
    prop_assert_eq!(shown(&root, &without), of_kernel);
    Ok(())
}

/// Whether this thread can mount an overlay, in a mount namespace of its own.
fn can_mount() -> Result<(), String> {
    // SAFETY: only the mount namespace and the working directory of this thread become its own.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
        .map_err(|cause| format!("a mount namespace needs root ({cause})"))?;
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", private).map_err(|cause| cause.to_string())?;
    let work = tempfile::tempdir().unwrap();
    let path = |name: &str| work.path().join(name);
    for name in ["a", "b", "seen"] {
        fs::create_dir(path(name)).unwrap();
    }
    let options = format!("lowerdir={}:{}", path("a").display(), path("b").display());
    let options = std::ffi::CString::new(options).unwrap();
    let seen = path("seen");
    rustix::mount::mount("overlay", &seen, "overlay", MountFlags::RDONLY, &*options)
        .map_err(|cause| format!("this kernel mounts no overlay here ({cause})"))?;
    rustix::mount::unmount(&seen, UnmountFlags::DETACH).map_err(|cause| cause.to_string())
}

#[test]
fn a_thousand_random_stacks_of_layers_are_as_the_kernels_overlay_shows_them() {
    if let Err(why) = can_mount() {
        return eprintln!("SKIPPED: {why}");
    }
    let config = Config {
        cases: STACKS,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let stacks = prop::collection::vec(layer(), 1..4);
    runner.run(&stacks, |layers| compare(&layers)).unwrap();
}
