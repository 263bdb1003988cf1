// SPDX-License-Identifier: Apache-2.0
//! The ids of a user namespace: the user's own, as 0, and those that /etc/subuid and /etc/subgid give to the user, from 1 on.
//!
//! Only newuidmap(1) and newgidmap(1) map more than one id. They must run outside of the namespace, so that a process that
//! starts before the namespace is made calls them.

use crate::roots::PATH;
use crate::{Roots, kernel_file};
use rustix::process::{Gid, Uid};
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The least length of a range: the ids below 65536 are those of a distribution.
const LEAST: u32 = 65536;

/// The ids of this process's user namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ids {
    /// The user's own, as 0.
    One {
        /// The reason why there are no others.
        why: NoRange,
    },
    /// The user's own and a range.
    Range {
        /// Their number: those from 0 to the one below it are mapped.
        count: u32,
    },
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One { why } => write!(f, "one id is mapped ({why})"),
            Self::Range { count } => write!(f, "{count} ids are mapped"),
        }
    }
}

/// The reason why a user namespace has no range of ids, with the remedy where there is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRange {
    /// A program of this name is not installed.
    #[error("{0} is missing: sudo apt-get install uidmap")]
    Program(&'static str),
    /// A file gives the user no range that is long enough.
    #[error(
        "{file} has no {LEAST} ids of {user}: sudo usermod --add-subuids FIRST-LAST --add-subgids FIRST-LAST {user}"
    )]
    NotGiven {
        /// The file.
        file: &'static str,
        /// The user, by name or number.
        user: String,
    },
    /// newuidmap or newgidmap failed, with its last line.
    #[error("{0}")]
    Refused(String),
}

/// A range of ids that belongs to a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u32,
    count: u32,
}

impl Range {
    /// The line of a map: these ids from 1 on.
    fn mapped(self) -> [String; 3] {
        [1, self.first, self.count].map(|number| number.to_string())
    }
}

/// The first range of the user in the text of /etc/subuid or /etc/subgid that is long enough (subuid(5)).
fn range(text: &str, name: Option<&str>, uid: u32) -> Option<Range> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        let first: u32 = fields.next()?.parse().ok()?;
        let count: u32 = fields.next()?.parse().ok()?;
        let is_users = Some(owner) == name || owner.parse() == Ok(uid);
        // No range of a user has the host's root. The last number of 32 bits is no id, inside and outside.
        let fits = first > 0 && first.checked_add(count).is_some() && count < u32::MAX;
        (is_users && fits && count >= LEAST && fields.next().is_none())
            .then_some(Range { first, count })
    })
}

/// The name of a user in the text of /etc/passwd.
fn name_of(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

/// A process outside of the namespace that maps the ids of this one, or the reason why there is none.
pub(super) struct Mapper(Result<Started, NoRange>);

struct Started {
    process: Child,
    count: u32,
}

/// Waits for a line, so that the namespace is there, and ends without one.
const SCRIPT: &str = r#"read -r pid && newuidmap "$pid" 0 "$1" 1 "$3" "$4" "$5" && newgidmap "$pid" 0 "$2" 1 "$6" "$7" "$8""#;

impl Mapper {
    /// Starts it.
    pub fn start(uid: Uid, gid: Gid) -> Self {
        Self(Self::started(uid, gid))
    }

    fn started(uid: Uid, gid: Gid) -> Result<Started, NoRange> {
        for program in ["newuidmap", "newgidmap"] {
            if Roots::host().program(program).is_none() {
                return Err(NoRange::Program(program));
            }
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let name = name_of(&passwd, uid.as_raw());
        let [uids, gids] = ["/etc/subuid", "/etc/subgid"].map(|file| {
            let text = fs::read_to_string(file).unwrap_or_default();
            range(&text, name, uid.as_raw()).ok_or_else(|| NoRange::NotGiven {
                file,
                user: name.map_or_else(|| uid.to_string(), str::to_owned),
            })
        });
        let (uids, gids) = (uids?, gids?);
        let process = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "sh"])
            .args([uid.to_string(), gid.to_string()])
            .args(uids.mapped())
            .args(gids.mapped())
            .env("PATH", PATH)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|cause| NoRange::Refused(format!("/bin/sh does not start: {cause}")))?;
        Ok(Started {
            process,
            count: uids.count.min(gids.count).saturating_add(1),
        })
    }

    /// Maps the ids of this process, which has just entered its namespace: one where a range cannot be had.
    ///
    /// # Errors
    /// When not even the user's own can be mapped.
    pub fn map(self, uid: Uid, gid: Gid) -> io::Result<Ids> {
        match self.0.and_then(Started::map) {
            Ok(count) => Ok(Ids::Range { count }),
            Err(why) => map_one(uid, gid).map(|()| Ids::One { why }),
        }
    }

    /// Ends it.
    pub fn end(self) {
        if let Ok(mut started) = self.0 {
            // This closes its input first.
            let _ = started.process.wait();
        }
    }
}

impl Started {
    fn map(mut self) -> Result<u32, NoRange> {
        if let Some(mut input) = self.process.stdin.take() {
            // The reason of one that has ended is in its output.
            let _ = writeln!(input, "{}", std::process::id());
        }
        let ended = self.process.wait_with_output();
        let output = ended.map_err(|cause| {
            NoRange::Refused(format!("newuidmap cannot be waited for: {cause}"))
        })?;
        if output.status.success() {
            return Ok(self.count);
        }
        let printed = String::from_utf8_lossy(&output.stderr);
        let last = printed.trim().lines().next_back();
        let last = last.unwrap_or("newuidmap failed");
        Err(NoRange::Refused(last.to_owned()))
    }
}

/// Maps the user's own ids.
fn map_one(uid: Uid, gid: Gid) -> io::Result<()> {
    let process = Path::new("/proc/self");
    let own = |id: u32| format!("0 {id} 1");
    let uid_map = process.join("uid_map");
    // newuidmap may have succeeded where newgidmap failed. A map is written once.
    if fs::read_to_string(&uid_map)?.is_empty() {
        kernel_file::store(&uid_map, &own(uid.as_raw()))?;
    }
    // A user may map its own group, once it has given up the right to drop groups (user_namespaces(7)).
    kernel_file::store(&process.join("setgroups"), "deny")?;
    kernel_file::store(&process.join("gid_map"), &own(gid.as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_user_is_found_by_name_and_by_number() {
        let text = "# ranges\nother:100000:65536\nme:165536:65536\n1001:231072:70000\n";
        let of = |name, uid| range(text, name, uid).map(|range| (range.first, range.count));
        assert_eq!(of(Some("me"), 1000), Some((165_536, 65_536)));
        assert_eq!(of(None, 1001), Some((231_072, 70_000)));
        assert_eq!(of(Some("none"), 1002), None);
        assert_eq!(of(None, 0), None);
    }

    #[test]
    fn a_line_that_gives_no_range_of_ids_is_passed_over() {
        for line in [
            "",
            "me",
            "me:",
            "me:100000",
            "me:100000:",
            "me::65536",
            ":100000:65536",
            "me:100000:65535",
            "me:0:65536",
            "me:-1:65536",
            "me:100000:-65536",
            "me:4294967295:65536",
            "me:4294901761:65536",
            "me:1:4294967295",
            "me:100000:18446744073709551616",
            "me:100000:65536:1",
            "me:1e5:65536",
            "you:100000:65536",
            "\u{0}me:100000:65536",
        ] {
            assert_eq!(range(line, Some("me"), 1000), None, "{line:?}");
            let next = format!("{line}\nme:100000:65536\n");
            assert!(range(&next, Some("me"), 1000).is_some(), "{line:?}");
        }
    }

    #[test]
    fn a_user_has_the_name_of_its_number() {
        let passwd = "root:x:0:0::/root:/bin/sh\nbroken\nme:x:1000:1000::/home/me:/bin/sh\n";
        assert_eq!(name_of(passwd, 1000), Some("me"));
        assert_eq!(name_of(passwd, 1001), None);
    }
}
