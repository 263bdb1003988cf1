// SPDX-License-Identifier: Apache-2.0
//! Compiles programs from source, in a temporary Debian system.

use super::build::{
    building_prefix, mmdebstrap, require_root_and_programs, require_space, run_logged, sources,
};
use super::{lock, remove_abandoned};
use std::fs::{self, File};
use std::path::Path;
use vtax_files::Dir;
use vtax_host::HostError;

/// Runs a shell script in a Debian with these packages, and keeps its `/out` as a directory. The directory appears
/// when it is complete; an existing one stays. `progress` receives the script's lines that start with `I: `.
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
    require_root_and_programs()?;
    let parent = into.parent().unwrap_or(into);
    Dir::create(parent)?;
    require_space(parent)?;
    let name = into.file_name().unwrap_or_default().to_string_lossy();
    let _lock = lock(parent, &name, progress)?;
    // Another process may have created it while this one waited for the lock.
    if into.is_dir() {
        return Ok(());
    }
    remove_abandoned(parent, &name)?;
    let building = tempfile::Builder::new()
        .prefix(&building_prefix(&name))
        .tempdir_in(parent)
        .map_err(HostError::file("create", parent))?;
    let path = |name: &str| building.path().join(name);
    let (source, out, log) = (path("build.sh"), path("out"), path("build.log"));
    vtax_files::write_scratch(&source, script)?;
    fs::create_dir(&out).map_err(HostError::file("create", &out))?;
    let mut command = mmdebstrap(packages);
    command
        .arg("--format=null")
        .arg(format!(
            "--customize-hook=upload {} /root/build.sh",
            source.display()
        ))
        .arg("--customize-hook=chroot \"$1\" sh /root/build.sh")
        .arg(format!("--customize-hook=sync-out /out {}", out.display()))
        .args([suite, "/dev/null"])
        .args(sources(suite));
    run_logged(command, &log, progress)?;
    let handle = File::open(&out).map_err(HostError::file("read", &out))?;
    rustix::fs::syncfs(&handle).map_err(|cause| HostError::file("sync", &out)(cause.into()))?;
    fs::rename(&out, into).map_err(HostError::file("create", into))
}
