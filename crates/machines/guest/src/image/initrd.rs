// SPDX-License-Identifier: Apache-2.0
//! The initial RAM disks: for the image, for the KVM probe, and for the echoing guest.

use super::cpio::Archive;
use super::modules;
use lz4_flex::frame::FrameDecoder;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::process::Command;
use vtax_host::HostError;

/// The most bytes of an unpacked kernel or module.
const MOST_UNPACKED: u64 = 1 << 30;
/// PID 1 of the initial RAM disk; part of the recipe's hash.
pub(super) const INIT: &str = include_str!("guest/initrd-init.sh");
const PROBE_INIT: &str = include_str!("guest/probe-init.sh");
pub(super) const ECHO_INIT: &str = include_str!("guest/echo-init.sh");

/// The line that a kernel prints under [`probe`] when it reaches user space.
pub(crate) const PROBE_TOKEN: &str = "vtax-probe: user space reached";

/// The applets that the init scripts call. They are links, because not every busybox finds its own applets.
const APPLETS: [&str; 11] = [
    "cat",
    "insmod",
    "ip",
    "ln",
    "mkdir",
    "mount",
    "poweroff",
    "sh",
    "switch_root",
    "umount",
    "usleep",
];

/// Builds the initial RAM disk that mounts the image and starts the guest agent, from the busybox of `root` and the
/// named modules of `directory`, a `/lib/modules/VERSION`.
pub(super) fn boot<S: AsRef<str>>(
    root: &Path,
    directory: &Path,
    names: &[S],
) -> Result<Vec<u8>, HostError> {
    let mut archive = base(root, INIT)?;
    archive.directory("newroot");
    archive.directory("modules");
    for (position, path) in modules::in_load_order(directory, names)?.iter().enumerate() {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let name = file.split(".ko").next().unwrap_or(&file);
        // The position in the name makes the shell's `modules/*` the load order.
        archive.executable(
            &format!("modules/{position:02}-{name}"),
            &uncompressed(path)?,
        );
    }
    Ok(archive.finish())
}

/// Builds the initial RAM disk that prints [`PROBE_TOKEN`] and powers off, for
/// [`crate::platform::qemu::kvm_boots`].
pub(crate) fn probe(root: &Path) -> Result<Vec<u8>, HostError> {
    Ok(base(root, PROBE_INIT)?.finish())
}

/// Builds the initial RAM disk that echoes its console, for [`super::echo_guest`].
pub(super) fn echo(root: &Path) -> Result<Vec<u8>, HostError> {
    Ok(base(root, ECHO_INIT)?.finish())
}

fn base(root: &Path, init: &str) -> Result<Archive, HostError> {
    let busybox = root.join("bin/busybox");
    let busybox = fs::read(&busybox).map_err(HostError::file("read", &busybox))?;
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "proc", "sys"] {
        archive.directory(directory);
    }
    // Without this device the kernel cannot print init's output.
    archive.character_device("dev/console", 5, 1);
    archive.executable("bin/busybox", &busybox);
    for applet in APPLETS {
        archive.symlink(&format!("bin/{applet}"), "busybox");
    }
    archive.executable("init", init.as_bytes());
    Ok(archive)
}

/// Reads a file and decompresses it by the format of its name. Newer Debian kernels compress their modules, which
/// busybox's `insmod` does not support.
pub(super) fn uncompressed(path: &Path) -> Result<Vec<u8>, HostError> {
    let (tool, package) = match path.extension().and_then(|extension| extension.to_str()) {
        Some("gz") => ("gzip", "gzip"),
        Some("lz4") => return unpacked_lz4(path).map_err(HostError::file("read", path)),
        Some("xz") => ("xz", "xz-utils"),
        Some("zst") => ("zstd", "zstd"),
        _ => return fs::read(path).map_err(HostError::file("read", path)),
    };
    let output = Command::new(tool)
        .args(["--decompress", "--stdout"])
        .arg(path)
        .output()
        .map_err(|cause| HostError::Missing {
            what: format!("the program {tool} ({cause})"),
            remedy: format!("apt-get install {package}"),
        })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(HostError::program(
        format!("{tool} --decompress {}", path.display()),
        &output,
    ))
}

/// The content of a file of LZ4 frames, of the legacy format too.
fn unpacked_lz4(path: &Path) -> io::Result<Vec<u8>> {
    let file = BufReader::new(File::open(path)?);
    let mut content = Vec::new();
    let mut bounded = FrameDecoder::new(file).take(MOST_UNPACKED + 1);
    bounded.read_to_end(&mut content)?;
    if content.len() as u64 > MOST_UNPACKED {
        return Err(io::Error::other("it unpacks to more than 1 GiB"));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_prints_the_token_that_is_looked_for() {
        assert!(PROBE_INIT.contains(PROBE_TOKEN));
    }
}
