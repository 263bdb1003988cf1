// SPDX-License-Identifier: Apache-2.0
//! Trials of an ordinary user: this process enters a user namespace in which it has every capability over what it
//! creates, and none over the host.
//!
//! The rest of vtax is the same with and without root. What differs is asked here: [`is_root`] is false for a user in a
//! user namespace, although the process has the number 0 there.

mod ids;

pub use ids::{Ids, NoRange};

use crate::HostError;
use ids::Mapper;
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use vtax_kernel::Process;

/// What the numbers of a user without root lack: the reason of each value that is absent.
pub const SCOPE: &str =
    "measured without root: soft interrupts of the host are not in these numbers";

/// The fact in the record of a trial without root that has [`SCOPE`].
pub const FACT: &str = "scope";

/// The user who runs trials without root, and the ids of the user's namespace.
static USER: OnceLock<(u32, Ids)> = OnceLock::new();

/// Whether this process is root of the host, or of the container that vtax was started in.
pub fn is_root() -> bool {
    user().is_none() && rustix::process::geteuid().is_root()
}

/// The number of the user who runs trials without root; `None` for others.
pub fn user() -> Option<u32> {
    USER.get().map(|(user, _)| *user)
}

/// The ids of this process's user namespace; `None` where it has entered none.
pub fn ids() -> Option<&'static Ids> {
    USER.get().map(|(_, ids)| ids)
}

/// Whether the files that this process makes can have one owner alone, who is root in its user namespace.
pub fn has_one_owner() -> bool {
    !has_id(1)
}

/// Whether the files that this process makes can belong to a user or group of this number.
pub fn has_id(id: u32) -> bool {
    match ids() {
        None => true,
        Some(Ids::One { .. }) => id == 0,
        Some(Ids::Range { count }) => id < *count,
    }
}

/// Makes this process able to create cells without root. The process must have one thread.
///
/// # Errors
/// When the kernel or the host's policy refuses; with the setting that does, and the command that changes it.
pub fn enter() -> Result<(), HostError> {
    if user().is_some() {
        return Ok(());
    }
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let mapper = Mapper::start(uid, gid);
    // SAFETY: the flags leave file descriptors and memory shared with nobody else: the process has one thread, or the
    // kernel refuses CLONE_NEWUSER.
    if let Err(cause) = unsafe { unshare_unsafe(UnshareFlags::NEWUSER) } {
        mapper.end();
        return Err(refused(cause.into()));
    }
    let ids = mapper.map(uid, gid).map_err(refused)?;
    // AppArmor can grant the namespace and withhold what it is for.
    let held = capabilities(None).map_err(|cause| refused(cause.into()))?;
    if !held
        .effective
        .contains(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN)
    {
        return Err(refused(io::ErrorKind::PermissionDenied.into()));
    }
    USER.get_or_init(|| (uid.as_raw(), ids));
    Ok(())
}

/// The error of a user namespace that the kernel refused.
fn refused(cause: io::Error) -> HostError {
    refused_by(cause, Path::new("/proc/sys"), threads())
}

fn threads() -> usize {
    Process::of_host(std::process::id()).threads().len()
}

/// The settings that refuse user namespaces: the file, the value that refuses, and the command that allows them.
const SETTINGS: [(&str, &str, &str); 3] = [
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    (
        "kernel/unprivileged_userns_clone",
        "0",
        "sudo sysctl kernel.unprivileged_userns_clone=1",
    ),
    (
        "user/max_user_namespaces",
        "0",
        "sudo sysctl user.max_user_namespaces=10000",
    ),
];

fn refused_by(cause: io::Error, sysctl: &Path, threads: usize) -> HostError {
    let value = |file: &str| fs::read_to_string(sysctl.join(file)).unwrap_or_default();
    let found = SETTINGS
        .iter()
        .find(|(file, refuses, _)| value(file).trim() == *refuses);
    let (why, remedy) = match (found, cause.raw_os_error()) {
        (Some((file, refuses, command)), _) => (
            format!("{} is {refuses}", file.replace('/', ".")),
            format!("allow them, `{command}`, or run vtax as root"),
        ),
        (None, Some(libc::ENOSPC | libc::EUSERS)) => (
            "the quota of user namespaces is used up".to_owned(),
            format!(
                "end what holds them (`lsns -t user`), or raise the quota from {}: \
                 `sudo sysctl user.max_user_namespaces=…`",
                value("user/max_user_namespaces").trim()
            ),
        ),
        (None, _) if threads > 1 => (
            format!("vtax has {threads} threads"),
            "report this: a user namespace is entered before any thread starts".to_owned(),
        ),
        (None, _) => (
            cause.to_string(),
            "run vtax as root, or outside of a container or sandbox that withholds user namespaces"
                .to_owned(),
        ),
    };
    HostError::Missing {
        what: format!(
            "permission to make a user namespace ({why}), in which trials run without root,"
        ),
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_that_refuses_is_named_with_its_remedy() {
        let message = |file: &str, value: &str, errno: i32| {
            let sysctl = tempfile::tempdir().unwrap();
            let path = sysctl.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
            refused_by(io::Error::from_raw_os_error(errno), sysctl.path(), 1).to_string()
        };
        for (file, refuses, command) in SETTINGS {
            let text = message(file, refuses, libc::EPERM);
            assert!(text.contains(command), "{text}");
        }
        let quota = message("user/max_user_namespaces", "3", libc::ENOSPC);
        assert!(quota.contains("from 3: `sudo sysctl user.max"), "{quota}");
        let other = message("user/max_user_namespaces", "3", libc::EPERM);
        assert!(other.contains("container or sandbox"), "{other}");
    }
}
