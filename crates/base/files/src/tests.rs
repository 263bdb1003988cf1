// SPDX-License-Identifier: Apache-2.0
//! Tests that links, FIFOs, second names and exchanged directories do not redirect access.

use crate::{Dir, FileError, Refusal};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A root directory, and beside it a file that must be neither read nor written.
struct Tree {
    _folder: TempDir,
    root: PathBuf,
    secret: PathBuf,
}

impl Tree {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (root, secret) = (folder.path().join("root"), folder.path().join("secret"));
        fs::create_dir_all(root.join("inner")).unwrap();
        fs::create_dir(&secret).unwrap();
        fs::write(root.join("inner/text"), "text").unwrap();
        fs::write(secret.join("text"), "secret").unwrap();
        Self {
            _folder: folder,
            root,
            secret,
        }
    }

    fn dir(&self) -> Dir {
        Dir::open(&self.root).unwrap()
    }

    fn assert_secret_is_untouched(&self) {
        assert_eq!(fs::read(self.secret.join("text")).unwrap(), b"secret");
        assert_eq!(fs::read_dir(&self.secret).unwrap().count(), 1);
    }
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, FileError>) -> Refusal {
    let error = result.unwrap_err();
    error
        .refusal()
        .cloned()
        .unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn only_regular_files_below_are_read_and_nothing_is_waited_for() {
    let tree = Tree::new();
    let dir = tree.dir();
    assert_eq!(dir.read("inner/text", 4).unwrap(), b"text");
    assert_eq!(dir.read("./inner/./text", 4).unwrap(), b"text");
    symlink("../secret/text", tree.root.join("link")).unwrap();
    symlink("inner", tree.root.join("folder")).unwrap();
    symlink("text", tree.root.join("inner/beside")).unwrap();
    fifo(&tree.root.join("pipe"));
    let _socket = std::os::unix::net::UnixListener::bind(tree.root.join("socket")).unwrap();
    for (below, why) in [
        ("link", Refusal::Link),
        ("folder/text", Refusal::Link),
        ("inner/beside", Refusal::Link),
        ("../secret/text", Refusal::Outside),
        ("inner/../inner/text", Refusal::Outside),
        ("", Refusal::Outside),
        ("/etc/passwd", Refusal::Outside),
        ("pipe", Refusal::NoFile),
        ("socket", Refusal::NoFile),
        ("inner", Refusal::NoFile),
        ("inner/text/more", Refusal::NoDirectory),
        ("x\0y", Refusal::Nul),
    ] {
        assert_eq!(refused(dir.file(below)), why, "{below}");
    }
    assert!(dir.file("none").unwrap_err().is_not_found());
    assert_eq!(refused(dir.dir("folder")), Refusal::NoDirectory);
    assert_eq!(refused(dir.dir("inner/text")), Refusal::NoDirectory);
}

#[test]
fn a_file_with_a_second_name_is_read_but_neither_shown_nor_written() {
    let tree = Tree::new();
    let dir = tree.dir();
    fs::hard_link(tree.secret.join("text"), tree.root.join("second")).unwrap();
    assert_eq!(dir.read("second", 9).unwrap(), b"secret");
    assert_eq!(refused(dir.sole_file("second")), Refusal::SecondName);
    assert_eq!(refused(dir.append("second")), Refusal::SecondName);
    assert_eq!(refused(dir.edit("second")), Refusal::SecondName);
    dir.write("second", b"new").unwrap();
    tree.assert_secret_is_untouched();
}

#[test]
fn a_file_is_read_up_to_the_limit_whatever_length_it_claims() {
    let tree = Tree::new();
    let sparse = File::create(tree.root.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    assert_eq!(
        refused(tree.dir().read("sparse", 100)),
        Refusal::TooLong(100)
    );
    sparse.set_len(100).unwrap();
    assert_eq!(tree.dir().read("sparse", 100).unwrap().len(), 100);
    assert!(tree.dir().read("sparse", u64::MAX).is_ok());
}

#[test]
fn writing_replaces_links_and_fifos_and_writes_through_none_of_them() {
    let tree = Tree::new();
    let dir = tree.dir();
    symlink(tree.secret.join("text"), tree.root.join("link")).unwrap();
    symlink(tree.secret.join("new"), tree.root.join("dangling")).unwrap();
    fifo(&tree.root.join("pipe"));
    for name in ["link", "dangling", "pipe", "inner/text", "free"] {
        dir.write(name, b"written").unwrap();
        let there = fs::symlink_metadata(tree.root.join(name)).unwrap();
        assert!(there.is_file(), "{name}");
        assert_eq!(fs::read(tree.root.join(name)).unwrap(), b"written");
    }
    symlink(tree.secret.join("text"), tree.root.join("log")).unwrap();
    symlink(tree.secret.join("new"), tree.root.join("log-new")).unwrap();
    for name in ["log", "log-new"] {
        assert_eq!(refused(dir.append(name)), Refusal::Link);
        assert_eq!(refused(dir.edit(name)), Refusal::Link);
        assert!(dir.new_file(name).unwrap_err().already_exists());
    }
    symlink(&tree.secret, tree.root.join("folder")).unwrap();
    assert!(dir.write("folder/new", b"x").is_err());
    assert!(dir.append("folder/new").is_err());
    assert!(dir.new_file("folder/new").is_err());
    assert!(dir.create_dir("folder").is_err());
    assert!(dir.create_dir("folder/new").is_err());
    assert!(dir.new_dir("folder/new").is_err());
    assert!(dir.remove_file("folder/text").is_err());
    assert!(dir.remove_all("folder/text").is_err());
    assert!(dir.rename("folder/text", "mine").is_err());
    assert!(dir.rename("inner/text", "folder/text").is_err());
    tree.assert_secret_is_untouched();
}

#[test]
fn a_write_leaves_nothing_beside_the_file_and_one_that_is_dropped_leaves_the_old_one() {
    let tree = Tree::new();
    let inner = tree.dir().dir("inner").unwrap();
    inner.write("text", b"new").unwrap();
    let mut dropped = tree.dir().replace("inner/text").unwrap();
    dropped.file().write_all(b"half").unwrap();
    let names = inner.list().unwrap();
    assert_eq!(names.len(), 2);
    let partial = names[0].name.to_str().unwrap();
    assert!(partial.starts_with(".text.partial-") && partial.len() == 14 + 16);
    drop(dropped);
    assert_eq!(inner.list().unwrap().len(), 1);
    assert_eq!(inner.read("text", 9).unwrap(), b"new");
    inner.write("n".repeat(255), b"a long name").unwrap();
    assert!(inner.write("n".repeat(256), b"too long").is_err());
    assert_eq!(inner.list().unwrap().len(), 2);
}

/// Two files that are written concurrently have different names, which differ by more than a counter.
#[test]
fn names_of_files_that_are_being_written_cannot_be_guessed() {
    let tree = Tree::new();
    let dir = tree.dir();
    let being_written: Vec<_> = (0..32).map(|_| dir.replace("f").unwrap()).collect();
    let ends: Vec<u64> = dir
        .list()
        .unwrap()
        .iter()
        .filter_map(|entry| entry.name.to_str()?.strip_prefix(".f.partial-"))
        .map(|end| u64::from_str_radix(end, 16).unwrap())
        .collect();
    assert_eq!(ends.len(), being_written.len());
    // Each of 64 random bits is set in some names and clear in others: 32 names agree in one bit with 2^-25.
    let (any, all) = ends
        .iter()
        .fold((0, u64::MAX), |(any, all), end| (any | end, all & end));
    assert_eq!((any, all), (u64::MAX, 0));
}

#[test]
fn a_directory_that_is_exchanged_for_a_link_is_still_the_one_that_was_opened() {
    let tree = Tree::new();
    let dir = tree.dir();
    let inner = dir.dir("inner").unwrap();
    // The action of an attacker between two system calls.
    let link = tree.root.join("link");
    symlink(&tree.secret, &link).unwrap();
    renameat_with(
        CWD,
        &link,
        CWD,
        tree.root.join("inner"),
        RenameFlags::EXCHANGE,
    )
    .unwrap();
    assert_eq!(fs::read(tree.root.join("inner/text")).unwrap(), b"secret");
    assert_eq!(inner.read("text", 9).unwrap(), b"text");
    inner.write("text", b"new").unwrap();
    inner.append("notes").unwrap().write_all(b"note").unwrap();
    inner
        .create_dir("figures")
        .unwrap()
        .write("a", b"a")
        .unwrap();
    inner.remove_file("notes").unwrap();
    inner.remove_all("figures").unwrap();
    tree.assert_secret_is_untouched();
    assert_eq!(fs::read(link.join("text")).unwrap(), b"new");
    assert_eq!(refused(dir.file("inner/text")), Refusal::Link);
}

#[test]
fn a_root_that_is_renamed_is_still_the_one_that_was_opened() {
    let tree = Tree::new();
    let dir = tree.dir();
    let moved = tree.root.with_file_name("moved");
    fs::rename(&tree.root, &moved).unwrap();
    symlink(&tree.secret, &tree.root).unwrap();
    dir.write("new", b"new").unwrap();
    assert_eq!(dir.read("inner/text", 9).unwrap(), b"text");
    dir.remove_all("inner").unwrap();
    assert!(moved.join("new").is_file() && !moved.join("inner").exists());
    tree.assert_secret_is_untouched();
}

#[test]
fn removing_all_removes_links_and_not_what_they_lead_to() {
    let tree = Tree::new();
    let dir = tree.dir();
    symlink(&tree.secret, tree.root.join("inner/folder")).unwrap();
    symlink(&tree.secret, tree.root.join("link")).unwrap();
    dir.create_dir("inner/a/b/c").unwrap();
    dir.remove_all("inner").unwrap();
    dir.remove_all("link").unwrap();
    dir.remove_all("none").unwrap();
    assert!(dir.list().unwrap().is_empty());
    tree.assert_secret_is_untouched();
}

#[test]
fn names_are_listed_with_their_kind_and_no_link_counts_as_what_it_leads_to() {
    let tree = Tree::new();
    symlink("inner", tree.root.join("link")).unwrap();
    fs::write(tree.root.join("file"), "").unwrap();
    let kinds: Vec<_> = tree.dir().list().unwrap();
    let kinds: Vec<_> = kinds
        .iter()
        .map(|entry| (entry.name.to_str().unwrap(), entry.is_dir, entry.is_file))
        .collect();
    assert_eq!(
        kinds,
        [
            ("file", false, true),
            ("inner", true, false),
            ("link", false, false)
        ]
    );
    assert!(tree.dir().metadata("link").unwrap().is_symlink());
    let target = tree.dir().link_target("link").unwrap();
    assert_eq!(target, fs::read_link(tree.root.join("link")).unwrap());
    assert!(tree.dir().link_target("file").is_err());
    assert!(tree.dir().contains("link") && !tree.dir().contains("none"));
}

#[test]
fn renaming_to_a_new_name_replaces_nothing() {
    let tree = Tree::new();
    let dir = tree.dir();
    dir.write("a", b"a").unwrap();
    dir.write("b", b"b").unwrap();
    assert!(dir.rename_new("a", "b").unwrap_err().already_exists());
    dir.rename_new("a", "inner/a").unwrap();
    dir.rename("b", "inner/a").unwrap();
    assert_eq!(dir.read("inner/a", 9).unwrap(), b"b");
}

#[test]
fn what_is_made_again_is_not_made_twice() {
    let tree = Tree::new();
    let dir = tree.dir();
    dir.create_dir("x/y").unwrap().write("f", b"f").unwrap();
    assert_eq!(dir.create_dir("x/y").unwrap().read("f", 1).unwrap(), b"f");
    assert!(dir.new_dir("x/y").unwrap_err().already_exists());
    assert!(dir.new_dir("no/y").unwrap_err().is_not_found());
}

#[test]
fn a_private_directory_and_its_files_are_narrowed_to_their_user() {
    let tree = Tree::new();
    let mode = |path: &str| fs::metadata(tree.root.join(path)).unwrap().mode() & 0o777;
    for (path, wide) in [("inner", 0o777), ("inner/text", 0o666)] {
        fs::set_permissions(tree.root.join(path), PermissionsExt::from_mode(wide)).unwrap();
    }
    let dir = Dir::private(&tree.root.join("inner")).unwrap();
    assert_eq!((mode("inner"), mode("inner/text")), (0o700, 0o666));
    let mut text = String::new();
    dir.file("text").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), mode("inner/text")), ("text", 0o600));
    let below = Dir::private(&tree.root.join("new/state")).unwrap();
    below.create_dir("cap").unwrap().edit("lock").unwrap();
    assert_eq!(mode("new/state"), 0o700);
    assert_eq!(mode("new/state/cap"), 0o700);
    assert_eq!(mode("new/state/cap/lock"), 0o600);
    assert_eq!(mode("new"), 0o700, "it was made on the way");
}

#[test]
fn a_private_directory_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give files to another user");
        return;
    }
    let tree = Tree::new();
    let inner = tree.root.join("inner");
    std::os::unix::fs::chown(inner.join("text"), Some(12345), None).unwrap();
    let dir = Dir::private(&inner).unwrap();
    let another = Refusal::Owner {
        owner: 12345,
        user: 0,
    };
    assert_eq!(refused(dir.edit("text")), another);
    assert_eq!(refused(dir.file("text")), another);
    std::os::unix::fs::chown(&inner, Some(12345), None).unwrap();
    assert_eq!(refused(Dir::private(&inner)), another);
    let link = tree.root.join("link");
    symlink(tree.root.join("mine"), &link).unwrap();
    fs::create_dir(tree.root.join("mine")).unwrap();
    std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
    assert_eq!(refused(Dir::private(&link)), Refusal::Link);
    std::os::unix::fs::lchown(&link, Some(0), None).unwrap();
    Dir::private(&link).unwrap();
}
