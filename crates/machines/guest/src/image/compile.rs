// SPDX-License-Identifier: Apache-2.0
//! Compiles programs from source, in a temporary Debian system.

use super::build::{NEEDED_MIB, building_prefix, require_programs_and_rights, require_space};
use super::debian::{devices, mmdebstrap, sources};
use super::logged::run_logged;
use super::{lock, remove_abandoned};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use vtax_files::Dir;
use vtax_host::HostError;

/// Runs a shell script in a Debian with these packages, and keeps its `/out` as a directory. The directory appears
/// when it is complete; an existing one stays. `progress` receives the script's lines that start with `I: `, and a
/// line for each tenth of what ninja builds.
///
/// # Errors
/// When there is no root, a program or space is missing, or the script fails, with the end of its output.
pub fn compile(
    suite: &str,
    packages: &[String],
    script: &str,
    into: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    require_programs_and_rights()?;
    let parent = into.parent().unwrap_or(into);
    Dir::create(parent)?;
    let name = into.file_name().unwrap_or_default().to_string_lossy();
    let _lock = lock(parent, &name, progress)?;
    // Another process may have created it while this one waited for the lock.
    if into.is_dir() {
        return Ok(());
    }
    remove_abandoned(parent, &name, progress)?;
    require_space(parent, NEEDED_MIB)?;
    let building = tempfile::Builder::new()
        .prefix(&building_prefix(&name))
        .tempdir_in(parent)
        .map_err(HostError::file("create", parent))?;
    // apt downloads as a user of its own.
    fs::set_permissions(building.path(), fs::Permissions::from_mode(0o755))
        .map_err(HostError::file("write", building.path()))?;
    let path = |name: &str| building.path().join(name);
    let (source, out, log) = (path("build.sh"), path("out"), path("build.log"));
    vtax_files::write_scratch(&source, script)?;
    fs::create_dir(&out).map_err(HostError::file("create", &out))?;
    let command = compiler(suite, packages, &source, &out, building.path())?;
    run_logged(command, &log, progress)?;
    let handle = File::open(&out).map_err(HostError::file("read", &out))?;
    rustix::fs::syncfs(&handle).map_err(|cause| HostError::file("sync", &out)(cause.into()))?;
    fs::rename(&out, into).map_err(HostError::file("create", into))
}

/// The command that makes the temporary system in `building` and runs the script in it.
fn compiler(
    suite: &str,
    packages: &[String],
    source: &Path,
    out: &Path,
    building: &Path,
) -> Result<Command, HostError> {
    let mut command = mmdebstrap(packages, building)?;
    let [before, after] = devices();
    // The system takes gigabytes, and `/tmp` may be memory. A killed build leaves it where the next one removes it.
    command.env("TMPDIR", building);
    command
        .args(before)
        .arg("--format=null")
        .arg(format!(
            "--customize-hook=upload {} /root/build.sh",
            source.display()
        ))
        .arg("--customize-hook=chroot \"$1\" sh /root/build.sh")
        .arg(format!("--customize-hook=sync-out /out {}", out.display()))
        .args(after)
        .args([suite, "/dev/null"])
        .args(sources(suite));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_temporary_system_is_in_the_directory_of_the_build() {
        let building = Path::new("/cache/testbed/.building-qemu-0123-x1Y2z3");
        let [source, out] = ["build.sh", "out"].map(|name| building.join(name));
        let command = compiler("bookworm", &[], &source, &out, building).unwrap();
        let mut set = command.get_envs();
        let found = set.find(|(name, _)| *name == "TMPDIR");
        assert_eq!(found, Some(("TMPDIR".as_ref(), Some(building.as_os_str()))));
    }
}
