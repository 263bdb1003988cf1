// SPDX-License-Identifier: Apache-2.0
//! How a command enters an image: as its user, with its environment, in its working directory.

use super::invalid;
use super::layout::Execution;
use crate::image::RecipeFile;
use crate::image::tree::Tree;
use std::fmt::Write;
use std::path::{Component, Path};
use vtax_host::HostError;
use vtax_host::command::quoted;
use vtax_host::roots::PATH;
use vtax_host::untrusted::tar::{Entry, Kind};

/// The image's directory in the guest's root.
pub const DIRECTORY: &str = "/image";
/// The program that runs its arguments in the image, or the image's entry point without arguments.
pub const ENTER: &str = "/usr/lib/vtax/image";
/// The program that mounts the kernel's file systems in the image, where the platform has not.
pub const MOUNTS: &str = "/usr/lib/vtax/image-mounts";

/// The most bytes of `/etc/passwd` and `/etc/group` that are read.
const MOST_ACCOUNTS: u64 = 4 << 20;

const MOUNT_SCRIPT: &str = r#"#!/bin/sh
# Mounts the kernel's file systems in the image. In a container its runtime has done that, except for the links.
if ! [ -e /image/proc/self ]; then
    for system in proc sys dev; do
        mount --rbind "/$system" "/image/$system" || exit 1
    done
fi
for link in fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do
    [ -e "/image/dev/${link%%:*}" ] || ln -s "${link#*:}" "/image/dev/${link%%:*}" || exit 1
done
"#;

/// A user of an image.
#[derive(Debug, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    home: String,
}

/// Completes a tree that has all layers: mount points, the working directory, and `/etc/hosts`. Returns the programs by
/// which commands enter it. `image` names it in errors.
///
/// # Errors
/// When its user, environment or working directory is not valid.
pub(super) fn complete(
    tree: &Tree,
    execution: &Execution,
    image: &Path,
) -> Result<Vec<RecipeFile>, HostError> {
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
    let directory = execution.working_dir.as_deref().unwrap_or_default();
    let directory = Path::new("/").join(directory);
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
    let file = |path: &str, text: String| RecipeFile {
        path: path.to_owned(),
        executable: true,
        text,
    };
    let script = script(image, execution, &directory.to_string_lossy(), &user)?;
    Ok(vec![
        file(ENTER, script),
        file(MOUNTS, MOUNT_SCRIPT.to_owned()),
    ])
}

fn script(
    image: &Path,
    execution: &Execution,
    directory: &str,
    user: &User,
) -> Result<String, HostError> {
    let mut text =
        "#!/bin/sh\n# Runs a command in the image; without a command, its entry point.\n"
            .to_owned();
    let words = entry_point(execution);
    match words.is_empty() {
        true => text
            .push_str("[ $# -gt 0 ] || { echo 'the image has no entry point' >&2; exit 127; }\n"),
        false => {
            let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            let _ = writeln!(text, "[ $# -gt 0 ] || set -- {}", words.join(" "));
        }
    }
    let mut environment = vec![format!("PATH={PATH}"), format!("HOME={}", user.home)];
    environment.extend(execution.env.iter().flatten().cloned());
    let mut last = std::collections::BTreeMap::new();
    for variable in &environment {
        match variable.split_once('=') {
            Some((name, value)) if !name.is_empty() && !name.starts_with('-') => {
                last.insert(name, value);
            }
            _ => {
                let problem = format!("its environment has {variable:?}, which is no NAME=value");
                return Err(invalid(image, &problem));
            }
        }
    }
    text.push_str("exec /usr/bin/env -i");
    for (name, value) in last {
        let _ = write!(text, " \\\n  {}", quoted(&format!("{name}={value}")));
    }
    let groups: Vec<String> = user.groups.iter().map(u32::to_string).collect();
    let groups = match groups.is_empty() {
        true => "--clear-groups".to_owned(),
        false => format!("--groups={}", groups.join(",")),
    };
    let _ = writeln!(
        text,
        " \\\n  /usr/bin/setpriv --regid={} {groups} \\\n  /usr/bin/unshare --root={DIRECTORY} --wd={} --setuid={} -- \"$@\"",
        user.gid,
        quoted(directory),
        user.uid
    );
    match text.contains('\0') {
        true => Err(invalid(image, "its configuration has a zero byte")),
        false => Ok(text),
    }
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
        groups: further.take(64).collect(),
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
    fn the_script_passes_words_with_quotes_and_newlines_unchanged() {
        let execution = Execution {
            env: Some(vec!["A=it's\n$B".into(), "PATH=/a".into()]),
            entrypoint: Some(vec!["/x y".into(), "'".into()]),
            ..Execution::default()
        };
        let root = user(Path::new("app"), "", b"", b"").unwrap();
        let text = script(Path::new("app"), &execution, "/w d", &root).unwrap();
        // The programs that enter the image are replaced by one that prints its arguments.
        let text = text.replace("exec /usr/bin/env", "exec printf '[%s]'");
        let output = std::process::Command::new("sh")
            .args(["-c", &text])
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(
            printed.contains("[A=it's\n$B][HOME=/][PATH=/a]"),
            "{printed}"
        );
        assert!(
            printed.ends_with("[--wd=/w d][--setuid=0][--][/x y][']"),
            "{printed}"
        );
    }

    #[test]
    fn an_environment_that_would_be_an_option_is_refused() {
        for variable in ["-u=A", "=x", "A"] {
            let execution = Execution {
                env: Some(vec![variable.into()]),
                ..Execution::default()
            };
            let root = user(Path::new("app"), "", b"", b"").unwrap();
            assert!(
                script(Path::new("app"), &execution, "/", &root).is_err(),
                "{variable}"
            );
        }
    }
}
