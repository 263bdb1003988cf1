//! Directories for a while. Their names say whose they are, so that what a killed vtax left is told from what
//! is in use.

use std::fs;
use std::path::Path;
use tempfile::TempDir;
use vtax_host::HostError;

/// What they are called, before the process that they belong to.
const PREFIX: &str = "vtax-testbed-";

/// A new one, which goes when dropped; what others left behind there goes now.
///
/// # Errors
/// When it cannot be created.
pub(crate) fn directory(below: &Path) -> Result<TempDir, HostError> {
    sweep(below);
    tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}-", std::process::id()))
        .tempdir_in(below)
        .map_err(HostError::file("create a directory in", below))
}

/// Removes those whose vtax was killed before it could.
fn sweep(below: &Path) {
    for entry in fs::read_dir(below).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX);
        let owner = owner.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            // What cannot be removed is in the directory for such files.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_vtax_left_is_swept_and_what_others_have_stays() {
        let below = tempfile::tempdir().unwrap();
        let own = format!("{PREFIX}{}-a", std::process::id());
        // No kernel numbers processes so far.
        let left = format!("{PREFIX}4194305-b");
        for name in [own.as_str(), &left, "vtax-testbed-old", "somebody's"] {
            fs::create_dir(below.path().join(name)).unwrap();
            fs::write(below.path().join(name).join("initrd"), "x").unwrap();
        }
        sweep(below.path());
        assert!(!below.path().join(left).exists());
        assert_eq!(fs::read_dir(below.path()).unwrap().count(), 3);
    }
}
