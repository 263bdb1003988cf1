// SPDX-License-Identifier: Apache-2.0
//! How a command enters an image: as its user, with its environment, in its working directory.

use super::invalid;
use super::layout::Execution;
use crate::image::tree::Tree;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use vtax_host::HostError;
use vtax_host::roots::PATH;
use vtax_host::untrusted::tar::{Entry, Kind};

/// The image's directory in the guest's root.
pub const DIRECTORY: &str = "/image";
/// The program that runs its arguments in the image, or the image's entry point without arguments.
pub const ENTER: &str = "/usr/lib/vtax/image";
/// The argument of [`ENTER`] that starts no program.
pub const NOTHING: &str = "";
/// The program that mounts the kernel's file systems in the image, where the platform has not.
pub const MOUNTS: &str = "/usr/lib/vtax/image-mounts";

/// The capabilities of root in a container and in an image on every platform, with their numbers
/// (`include/uapi/linux/capability.h`): Docker's defaults (`oci/caps/defaults.go` of moby).
pub const CAPABILITIES: [(&str, u8); 14] = [
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_FSETID", 4),
    ("CAP_FOWNER", 3),
    ("CAP_MKNOD", 27),
    ("CAP_NET_RAW", 13),
    ("CAP_SETGID", 6),
    ("CAP_SETUID", 7),
    ("CAP_SETFCAP", 31),
    ("CAP_SETPCAP", 8),
    ("CAP_NET_BIND_SERVICE", 10),
    ("CAP_SYS_CHROOT", 18),
    ("CAP_KILL", 5),
    ("CAP_AUDIT_WRITE", 29),
];

/// The program behind [`ENTER`], from `guest/enter.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/enter"));
/// The record that it reads.
const RECORD: &str = "/usr/lib/vtax/image.conf";

/// The most bytes of `/etc/passwd` and `/etc/group` that are read.
const MOST_ACCOUNTS: u64 = 4 << 20;
/// The most groups of a user beside its own, the number that `guest/enter.rs` has room for.
const MOST_GROUPS: usize = 64;

/// As a container has them: the kernel's settings are read-only, and `/dev` has only devices that are harmless.
const MOUNT_SCRIPT: &str = r#"#!/bin/sh
# Mounts the kernel's file systems in the image. In a container its runtime has done that, except for the links.
set -e
cd /image
if ! [ -e proc/self ]; then
    mount -t proc -o nosuid,nodev,noexec proc proc
    for path in bus fs irq sys sysrq-trigger; do
        ! [ -e "proc/$path" ] || { mount --bind "proc/$path" "proc/$path" && mount -o remount,bind,ro "proc/$path"; }
    done
    mount --bind /sys sys
    mount -o remount,bind,ro,nosuid,nodev,noexec sys
    mount -t tmpfs -o nosuid,nodev,noexec,mode=755,size=64k dev dev
    for device in null zero full random urandom tty; do
        : >"dev/$device"
        mount --bind "/dev/$device" "dev/$device"
    done
    mkdir dev/pts dev/shm dev/mqueue
    mount -t devpts -o nosuid,noexec,newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
    mount -t tmpfs -o nosuid,nodev,noexec,mode=1777,size=64m shm dev/shm
    # A user namespace mounts it only with an IPC namespace of its own.
    mount -t mqueue -o nosuid,nodev,noexec mqueue dev/mqueue 2>/dev/null || rmdir dev/mqueue
fi
for link in ptmx:pts/ptmx fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do
    [ -e "dev/${link%%:*}" ] || [ -L "dev/${link%%:*}" ] || ln -s "${link#*:}" "dev/${link%%:*}"
done
"#;

/// A file that vtax adds beside an image.
#[derive(Debug)]
pub(super) struct Added {
    /// Its absolute path in the guest.
    pub path: &'static str,
    /// Its mode bits.
    pub mode: u32,
    /// Its content.
    pub content: Vec<u8>,
}

/// A user of an image.
#[derive(Debug, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    home: String,
}

/// Completes a tree that has all layers: mount points, the working directory, and `/etc/hosts`. Returns the files by
/// which commands enter it. `image` names it in errors.
///
/// # Errors
/// When its user, environment or working directory is not valid.
pub(super) fn complete(
    tree: &Tree,
    execution: &Execution,
    image: &Path,
) -> Result<Vec<Added>, HostError> {
    for name in ["proc", "sys", "dev"] {
        tree.mount_point(name)?;
    }
    // Container engines provide this file, and services look `localhost` up.
    if tree.read("etc/hosts", 1).is_empty() {
        let text = "127.0.0.1 localhost\n::1 localhost\n";
        let hosts = Entry {
            name: "etc/hosts".into(),
            kind: Kind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: 0,
            size: text.len() as u64,
            capability: None,
        };
        tree.add(&hosts, &mut text.as_bytes())?;
    }
    let directory = PathBuf::from(directory(execution));
    if directory
        .components()
        .any(|part| part == Component::ParentDir)
    {
        let problem = format!("its working directory {directory:?} has `..`");
        return Err(invalid(image, &problem));
    }
    if let Ok(below) = directory.strip_prefix("/") {
        tree.make(below)?;
    }
    let named = execution.user.as_deref().unwrap_or_default();
    let accounts = ["etc/passwd", "etc/group"].map(|file| tree.read(file, MOST_ACCOUNTS));
    let user = user(image, named, &accounts[0], &accounts[1])?;
    let record = record(image, execution, &directory.to_string_lossy(), &user)?;
    let file = |path, mode, content: &[u8]| Added {
        path,
        mode,
        content: content.to_vec(),
    };
    Ok(vec![
        file(ENTER, 0o755, PROGRAM),
        // Variables of the environment can be secrets.
        file(RECORD, 0o600, &record),
        file(MOUNTS, 0o755, MOUNT_SCRIPT.as_bytes()),
    ])
}

/// The record of `guest/enter.rs`: strings that end with NUL, in the order that its head describes.
fn record(
    image: &Path,
    execution: &Execution,
    directory: &str,
    user: &User,
) -> Result<Vec<u8>, HostError> {
    let mut environment = vec![format!("PATH={PATH}"), format!("HOME={}", user.home)];
    environment.extend(execution.env.iter().flatten().cloned());
    let mut last = BTreeMap::new();
    for variable in &environment {
        match variable.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                last.insert(name, value);
            }
            _ => {
                let problem = format!("its environment has {variable:?}, which is no NAME=value");
                return Err(invalid(image, &problem));
            }
        }
    }
    let kept = CAPABILITIES.iter().map(|(_, number)| 1u64 << number);
    let mut strings = vec![
        directory.to_owned(),
        user.uid.to_string(),
        user.gid.to_string(),
        kept.sum::<u64>().to_string(),
    ];
    let variables = last.iter().map(|(name, value)| format!("{name}={value}"));
    for list in [
        user.groups.iter().map(u32::to_string).collect(),
        variables.collect(),
        entry_point(execution),
    ] {
        let list: Vec<String> = list;
        strings.push(list.len().to_string());
        strings.extend(list);
    }
    if strings.iter().any(|string| string.contains('\0')) {
        Err(invalid(image, "its configuration has a zero byte"))
    } else {
        Ok((strings.join("\0") + "\0").into_bytes())
    }
}

/// The directories in which the image's programs are found.
pub(super) fn path(execution: &Execution) -> String {
    let variables = execution.env.iter().flatten();
    let mut own = variables.filter_map(|variable| variable.strip_prefix("PATH="));
    own.next_back().unwrap_or(PATH).to_owned()
}

/// The image's working directory, an absolute path.
pub(super) fn directory(execution: &Execution) -> String {
    let directory = execution.working_dir.as_deref().unwrap_or_default();
    Path::new("/")
        .join(directory)
        .to_string_lossy()
        .into_owned()
}

/// The words of the image's entry point: its program and arguments.
pub(super) fn entry_point(execution: &Execution) -> Vec<String> {
    let words = [&execution.entrypoint, &execution.cmd];
    let words = words.into_iter().flatten().flatten();
    words.cloned().collect()
}

/// Resolves `USER`, `USER:GROUP` or nothing, each by name or number, as container engines do.
fn user(image: &Path, named: &str, passwd: &[u8], group: &[u8]) -> Result<User, HostError> {
    let lacks = |what: &str, name: &str, file: &str| {
        invalid(image, &format!("its {what} `{name}` is not in its {file}"))
    };
    let (name, group_name) = match named.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (named, None),
    };
    let name = if name.is_empty() { "0" } else { name };
    let (passwd, groups) = (
        String::from_utf8_lossy(passwd),
        String::from_utf8_lossy(group),
    );
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<String>>();
    let accounts = || passwd.lines().map(fields);
    let field = |line: &[String], at: usize| line.get(at).cloned().unwrap_or_default();
    let number = name.parse::<u32>().ok();
    let account = accounts().find(|line| field(line, 0) == name).or_else(|| {
        accounts().find(|line| number.is_some() && field(line, 2).parse().ok() == number)
    });
    let uid = match (&account, number) {
        (Some(line), _) => field(line, 2).parse().ok(),
        (None, number) => number,
    };
    let uid = uid.ok_or_else(|| lacks("user", name, "/etc/passwd"))?;
    let own = account
        .as_ref()
        .and_then(|line| field(line, 3).parse().ok());
    let gid = match group_name {
        None => own.unwrap_or(0),
        Some(group) => groups
            .lines()
            .map(fields)
            .find(|line| field(line, 0) == group)
            .map_or_else(|| group.parse().ok(), |line| field(&line, 2).parse().ok())
            .ok_or_else(|| lacks("group", group, "/etc/group"))?,
    };
    let login = account.as_ref().map(|line| field(line, 0));
    let is_member = |line: &[String]| {
        let members = field(line, 3);
        login
            .as_ref()
            .is_some_and(|login| members.split(',').any(|member| member == login))
    };
    let further = groups
        .lines()
        .map(fields)
        // With a group of its own a container has no further groups.
        .filter(|line| group_name.is_none() && is_member(line))
        .filter_map(|line| field(&line, 2).parse().ok())
        .filter(|further| *further != gid);
    let home = account.as_ref().map(|line| field(line, 5));
    Ok(User {
        uid,
        gid,
        groups: further.take(MOST_GROUPS).collect(),
        home: home
            .filter(|home| !home.is_empty())
            .unwrap_or_else(|| "/".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] = b"root:x:0:0::/root:/bin/sh\nweb:x:33:34::/srv:/bin/false\nbroken\n";
    const GROUP: &[u8] = b"root:x:0:\nweb:x:34:\nlog:x:4:web,other\n";

    #[test]
    fn a_user_is_resolved_by_name_and_by_number_with_its_groups_and_home() {
        let of = |named| user(Path::new("app"), named, PASSWD, GROUP).unwrap();
        let numbers = |named| {
            let user = of(named);
            (user.uid, user.gid, user.groups, user.home)
        };
        assert_eq!(numbers(""), (0, 0, vec![], "/root".into()));
        assert_eq!(numbers("web"), (33, 34, vec![4], "/srv".into()));
        assert_eq!(numbers("33"), (33, 34, vec![4], "/srv".into()));
        assert_eq!(numbers("web:log"), (33, 4, vec![], "/srv".into()));
        assert_eq!(numbers("1234"), (1234, 0, vec![], "/".into()));
        assert_eq!(numbers("1234:99"), (1234, 99, vec![], "/".into()));
    }

    #[test]
    fn a_user_or_group_that_the_image_lacks_is_an_error_with_its_name() {
        let wrong = |named| {
            user(Path::new("app"), named, PASSWD, GROUP)
                .unwrap_err()
                .to_string()
        };
        assert!(wrong("nobody").contains("`nobody` is not in its /etc/passwd"));
        assert!(wrong("broken").contains("`broken`"));
        assert!(wrong("web:nogroup").contains("`nogroup` is not in its /etc/group"));
        assert!(wrong("-1").contains("`-1`"));
        assert!(wrong("4294967296").contains("4294967296"));
    }

    #[test]
    fn the_record_passes_words_with_quotes_and_newlines_unchanged() {
        let execution = Execution {
            env: Some(vec![
                "A=it's\n$B".into(),
                "PATH=/a".into(),
                "LD_PRELOAD=/evil.so".into(),
            ]),
            entrypoint: Some(vec!["/x y".into(), "'".into(), String::new()]),
            ..Execution::default()
        };
        let web = user(Path::new("app"), "web", PASSWD, GROUP).unwrap();
        let record = record(Path::new("app"), &execution, "/w d", &web).unwrap();
        let strings: Vec<&[u8]> = record.split(|byte| *byte == 0).collect();
        let wanted = [
            "/w d",
            "33",
            "34",
            // The mask of the container engines, 0xa80425fb.
            "2818844155",
            "1",
            "4",
            "4",
            "A=it's\n$B",
            "HOME=/srv",
            "LD_PRELOAD=/evil.so",
            "PATH=/a",
            "3",
            "/x y",
            "'",
            "",
            "",
        ];
        assert_eq!(strings, wanted.map(str::as_bytes));
    }

    #[test]
    fn what_is_no_variable_and_a_zero_byte_are_refused() {
        for variable in ["=x", "A", "A=\0"] {
            let execution = Execution {
                env: Some(vec![variable.into()]),
                ..Execution::default()
            };
            let root = user(Path::new("app"), "", b"", b"").unwrap();
            let refused = record(Path::new("app"), &execution, "/", &root);
            assert!(refused.is_err(), "{variable}");
        }
    }
}
