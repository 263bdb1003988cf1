// SPDX-License-Identifier: Apache-2.0
//! The root file system of this host as that of a guest: each directory of it read-only below a writable layer of its own.
//!
//! A user namespace shows the host's mounts as one piece that no overlay takes apart. So each directory without mounts
//! below it gets an overlay, and one with mounts is made anew with its entries. What other users and the running system
//! keep is left out: homes, `/tmp`, `/run`, and file systems whose server may not answer.

use crate::image::user_files;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use vtax_files::Dir;
use vtax_host::HostError;
use vtax_kernel::mounts;

/// The directories that are empty in the guest, but for the working directory and what a platform mounts there.
const LEFT_OUT: [&str; 11] = [
    "/boot",
    "/dev",
    "/home",
    "/lost+found",
    "/media",
    "/mnt",
    "/proc",
    "/root",
    "/run",
    "/sys",
    "/tmp",
];

/// File systems whose server can keep a process waiting for ever.
const SERVED: [&str; 8] = ["9p", "afs", "autofs", "ceph", "cifs", "nfs", "nfs4", "smb3"];

/// The most files of directories with mounts below them: each is mounted or copied by itself.
const MOST_FILES: usize = 10_000;

/// The largest file that is copied, and the most bytes of all. The others are mounted read-only.
const MOST_COPIED: [u64; 2] = [1 << 20, 64 << 20];

/// Secrets of the host that root could read in a guest, as patterns of the shell.
pub(super) const SECRETS: &str = "etc/shadow etc/shadow- etc/gshadow etc/gshadow- etc/ssh/ssh_host_*_key etc/ssl/private \
                                  etc/sudoers etc/sudoers.d etc/krb5.keytab";

/// Whether a path without links is one of [`SECRETS`], or below it.
pub(crate) fn is_secret(path: &Path) -> bool {
    let mut patterns = SECRETS.split_whitespace();
    let path = path.strip_prefix("/").unwrap_or(path);
    patterns.any(|pattern| match pattern.split_once('*') {
        None => path.starts_with(pattern),
        Some((start, end)) => {
            let path = path.to_string_lossy();
            path.starts_with(start) && path.ends_with(end)
        }
    })
}

/// Whether a file of this host, by its path without links, is in the root of a guest with this working directory.
pub fn shows(file: &Path, directory: &Path) -> bool {
    !is_left_out(file, &directory.canonicalize().ok())
}

/// Whether a path is in a directory that is left out, and not in a kept one there.
pub(crate) fn is_left_out<'a>(
    path: &Path,
    kept: impl IntoIterator<Item = &'a PathBuf> + Copy,
) -> bool {
    let is_kept = |left: &str| {
        let mut kept = kept.into_iter();
        kept.any(|kept| kept.starts_with(left) && path.starts_with(kept))
    };
    let mut left_out = LEFT_OUT.iter();
    left_out.any(|left| path.starts_with(left) && !is_kept(left))
}

/// A step of the assembly, in order. Paths are absolute in the host and in the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// An empty directory with these permissions.
    Directory(PathBuf, u32),
    /// A link to a target.
    Link(PathBuf, PathBuf),
    /// The host's directory below a writable layer.
    Layer(PathBuf),
    /// The host's file, as a copy.
    Copy(PathBuf),
    /// The host's file, read-only.
    File(PathBuf),
    /// The plan's files, a directory of the host, below a writable layer at their place in the guest.
    Files(PathBuf),
    /// One of the plan's files in the working directory too, in the place of what has its name there.
    Beside(PathBuf, OsString),
}

impl Step {
    fn path(&self) -> &Path {
        match self {
            Self::Directory(path, _)
            | Self::Link(path, _)
            | Self::Layer(path)
            | Self::Copy(path)
            | Self::File(path) => path,
            Self::Files(_) => Path::new(user_files::DIRECTORY),
            Self::Beside(directory, _) => directory,
        }
    }

    /// Three words for the script that performs it.
    pub(super) fn words(&self) -> [OsString; 3] {
        match self {
            Self::Directory(path, mode) => ["d".into(), path.into(), format!("{mode:o}").into()],
            Self::Link(path, target) => ["l".into(), path.into(), target.into()],
            Self::Layer(path) => ["o".into(), path.into(), path.into()],
            Self::Copy(path) => ["c".into(), path.into(), OsString::new()],
            Self::File(path) => ["f".into(), path.into(), OsString::new()],
            Self::Files(path) => ["o".into(), user_files::DIRECTORY.into(), path.into()],
            Self::Beside(directory, name) => ["b".into(), directory.into(), name.clone()],
        }
    }
}

/// Returns the steps for the root of this host. The working directory is there, wherever it is, and the files of the plan
/// are beside what it has. `files` is the tree of them.
///
/// # Errors
/// When the root, the files or the table of mounts cannot be read, or the working directory cannot be one.
pub(super) fn steps(
    directory: Option<&Path>,
    files: Option<&Path>,
) -> Result<Vec<Step>, HostError> {
    // A link in its path would lead out of the guest's root.
    let kept = directory
        .map(|path| path.canonicalize().map_err(HostError::file("read", path)))
        .transpose()?;
    if let Some(directory) = &kept {
        check_directory(directory, files.is_some())?;
    }
    let table = Path::new("/proc/self/mountinfo");
    let table = fs::read(table).map_err(HostError::file("read", table))?;
    let mut walk = Walk {
        root: Path::new("/"),
        kept: kept.as_slice(),
        mounts: BTreeSet::new(),
        served: BTreeSet::new(),
        steps: Vec::new(),
        files: 0,
        copied: 0,
    };
    for mount in mounts::parse(&table) {
        let is_served = mount.kind.starts_with("fuse") || SERVED.contains(&mount.kind.as_str());
        if is_served {
            walk.served.insert(mount.point.clone());
        }
        walk.mounts.insert(mount.point);
    }
    walk.visit(Path::new("/"), false)
        .map_err(HostError::file("read", "/"))?;
    let mut steps = walk.steps;
    if let Some(files) = files {
        // Where the host has something of this name, the plan's files take its place.
        steps.retain(|step| !step.path().starts_with(user_files::DIRECTORY));
        steps.push(Step::Files(files.to_owned()));
        if let Some(directory) = kept {
            let names = Dir::open(files)?.list()?.into_iter();
            steps.extend(names.map(|entry| Step::Beside(directory.clone(), entry.name)));
        }
    }
    Ok(steps)
}

/// Checks that commands can run in a directory, which has no links in its path.
fn check_directory(directory: &Path, has_files: bool) -> Result<(), HostError> {
    let found = fs::metadata(directory).map_err(HostError::file("read", directory))?;
    if !found.is_dir() {
        return Err(HostError::Setting(format!(
            "{} is no directory, in which a command could run",
            directory.display()
        )));
    }
    if has_files && directory.starts_with(user_files::DIRECTORY) {
        return Err(HostError::Setting(format!(
            "{} is where the plan's files are in a guest: start vtax in another directory",
            directory.display()
        )));
    }
    Ok(())
}

struct Walk<'a> {
    /// Where the paths begin.
    root: &'a Path,
    kept: &'a [PathBuf],
    mounts: BTreeSet<PathBuf>,
    served: BTreeSet<PathBuf>,
    steps: Vec<Step>,
    /// The files so far that are steps of their own.
    files: usize,
    /// The bytes of those that are copied.
    copied: u64,
}

impl Walk<'_> {
    fn outside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Adds the entries of a directory; with `only_kept` those that lead to a kept one.
    fn visit(&mut self, directory: &Path, only_kept: bool) -> std::io::Result<()> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.outside(directory))? {
            let entry = entry?;
            names.push((entry.file_name(), entry.file_type()?));
        }
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (name, kind) in names {
            let path = directory.join(&name);
            let leads = self.kept.iter().any(|kept| kept.starts_with(&path));
            if kind.is_symlink() && !only_kept {
                let target = fs::read_link(self.outside(&path))?;
                self.steps.push(Step::Link(path, target));
            } else if kind.is_dir() && (leads || !only_kept) {
                self.add(&path, &name, leads)?;
            } else if kind.is_file() && !only_kept && directory != Path::new("/") {
                self.add_file(path)?;
            }
        }
        Ok(())
    }

    /// Adds a file of a directory that has no overlay.
    fn add_file(&mut self, path: PathBuf) -> std::io::Result<()> {
        self.files += 1;
        if self.files > MOST_FILES {
            return Err(std::io::Error::other(format!(
                "{} is one of more than {MOST_FILES} files beside mounts: start vtax in a directory without mounts below it",
                path.display()
            )));
        }
        let [most, most_of_all] = MOST_COPIED;
        let size = fs::metadata(self.outside(&path))?.len();
        let copied = self.copied.saturating_add(size);
        self.steps.push(if size <= most && copied <= most_of_all {
            self.copied = copied;
            Step::Copy(path)
        } else {
            Step::File(path)
        });
        Ok(())
    }

    fn add(&mut self, path: &Path, name: &OsStr, leads: bool) -> std::io::Result<()> {
        let is_kept = self.kept.iter().any(|kept| kept == path);
        let is_served = self.served.contains(path) && !is_kept;
        let mode = match name.to_str() {
            Some("tmp") => 0o1777,
            _ => 0o755,
        };
        // Below a directory that is left out, only what leads to a kept one is visited.
        if is_served || is_left_out(path, self.kept) {
            self.steps.push(Step::Directory(path.to_owned(), mode));
            return if leads {
                self.visit(path, true)
            } else {
                Ok(())
            };
        }
        let below = self.mounts.range(path.to_owned()..);
        let has_mounts = below
            .take_while(|mount| mount.starts_with(path))
            .any(|mount| mount != path);
        if !has_mounts {
            self.steps.push(Step::Layer(path.to_owned()));
            return Ok(());
        }
        let mode = fs::metadata(self.outside(path))
            .map_or(mode, |found| found.permissions().mode() & 0o1777);
        self.steps.push(Step::Directory(path.to_owned(), mode));
        self.visit(path, false)
    }
}

/// Performs the steps that follow as arguments, three words each.
pub(super) const SCRIPT: &str = r#"mkdir $SEAT/lower $SEAT/upper $SEAT/overlay
mkdir -m 755 $SEAT/root
mount -t tmpfs -o mode=755 vtax $SEAT/root
number=0
while [ $# -gt 0 ]; do
    case $1 in
    d) mkdir -m "$3" "$SEAT/root$2" ;;
    l) ln -s "$3" "$SEAT/root$2" ;;
    o)
        number=$((number + 1))
        mkdir $SEAT/lower/$number $SEAT/upper/$number $SEAT/overlay/$number "$SEAT/root$2"
        mount --bind "$3" $SEAT/lower/$number
        options=lowerdir=$SEAT/lower/$number,upperdir=$SEAT/upper/$number,workdir=$SEAT/overlay/$number
        mount -t overlay -o $options$LAYER_OPTIONS vtax "$SEAT/root$2"
        ;;
    # A file that cannot be read is not there, and a user cannot give one to another owner.
    c) cp -p -- "$2" "$SEAT/root$2" 2>/dev/null || : ;;
    f)
        : >"$SEAT/root$2"
        mount --bind -- "$2" "$SEAT/root$2"
        # A user namespace may drop none of the flags that the host's mount has.
        mount -o "remount,bind,$(findmnt --noheadings --first-only --output VFS-OPTIONS --target "$2"),ro" "$SEAT/root$2"
        ;;
    # In the guest's root, so that no link leads out of it. What is mounted over needs not be the user's.
    b)
        chroot $SEAT/root sh -ec 'cd "$1"; from="/files/$2"; to="./$2"
            [ ! -L "$to" ] || rm "$to"
            if [ -d "$from" ]; then [ -d "$to" ] || mkdir "$to"
            else [ -f "$to" ] || : >"$to"; fi
            mount --bind "$from" "$to"' sh "$2" "$3"
        ;;
    esac
    shift 3
done
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn walked(root: &Path, kept: &[&str], mounts: &[&str], served: &[&str]) -> Vec<Step> {
        let kept: Vec<PathBuf> = kept.iter().map(PathBuf::from).collect();
        let set = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
        let mut walk = Walk {
            root,
            kept: &kept,
            mounts: set(mounts),
            served: set(served),
            steps: Vec::new(),
            files: 0,
            copied: 0,
        };
        walk.visit(Path::new("/"), false).unwrap();
        walk.steps
    }

    fn directory(path: &str) -> Step {
        Step::Directory(
            path.into(),
            if path.ends_with("tmp") { 0o1777 } else { 0o755 },
        )
    }

    fn layer(path: &str) -> Step {
        Step::Layer(path.into())
    }

    #[test]
    fn homes_are_left_out_but_for_the_way_to_the_working_directory() {
        let root = tempfile::tempdir().unwrap();
        for path in [
            "usr/bin",
            "home/me/app",
            "home/me/mail",
            "home/other",
            "root",
            "tmp/x",
        ] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        symlink("usr/bin", root.path().join("bin")).unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let expected = [
            Step::Link("/bin".into(), "usr/bin".into()),
            directory("/home"),
            directory("/home/me"),
            layer("/home/me/app"),
            directory("/root"),
            directory("/tmp"),
            layer("/usr"),
        ];
        assert_eq!(walked(root.path(), &["/home/me/app"], &[], &[]), expected);
    }

    #[test]
    fn a_file_of_a_home_is_shown_below_the_working_directory_alone() {
        let own = tempfile::tempdir().unwrap();
        let own = own.path().canonicalize().unwrap();
        assert!(shows(&own.join("app"), &own));
        assert!(!shows(Path::new("/home/me/app"), &own));
        assert!(shows(Path::new("/usr/bin/app"), &own));
        assert!(!shows(Path::new("/home/me/app"), Path::new("/")));
    }

    #[test]
    fn passwords_and_keys_of_the_host_are_secrets_and_what_is_beside_them_is_not() {
        for path in [
            "/etc/shadow",
            "/etc/ssh/ssh_host_rsa_key",
            "/etc/ssl/private/a.key",
        ] {
            assert!(is_secret(Path::new(path)), "{path}");
        }
        for path in [
            "/etc/shadow.d",
            "/etc/ssh/ssh_host_rsa_key.pub",
            "/etc/passwd",
        ] {
            assert!(!is_secret(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn a_directory_with_mounts_is_made_anew_and_one_that_is_served_is_not_looked_at() {
        let root = tempfile::tempdir().unwrap();
        for path in ["srv/hangs/deep", "srv/own/deep", "srv/plain"] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        let mounts = ["/", "/srv/hangs", "/srv/own"];
        let expected = [
            directory("/srv"),
            directory("/srv/hangs"),
            layer("/srv/own"),
            layer("/srv/plain"),
        ];
        assert_eq!(walked(root.path(), &[], &mounts, &["/srv/hangs"]), expected);
    }

    #[test]
    fn the_files_beside_a_mount_are_copied_and_the_large_ones_mounted() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("srv/mount")).unwrap();
        fs::write(root.path().join("top"), "").unwrap();
        fs::write(root.path().join("srv/app"), "small").unwrap();
        let large = fs::File::create(root.path().join("srv/data")).unwrap();
        large.set_len((1 << 20) + 1).unwrap();
        let expected = [
            directory("/srv"),
            Step::Copy("/srv/app".into()),
            Step::File("/srv/data".into()),
            layer("/srv/mount"),
        ];
        assert_eq!(
            walked(root.path(), &[], &["/", "/srv/mount"], &[]),
            expected
        );
    }
}
