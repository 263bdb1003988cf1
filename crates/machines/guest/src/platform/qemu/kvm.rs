// SPDX-License-Identifier: Apache-2.0
//! Whether KVM can boot a stock kernel, tested with a real boot: on some hosts `/dev/kvm` opens and creates VMs and
//! still cannot boot one.

use super::machine::{Accel, Machine};
use super::options::Options;
use crate::image;
use crate::platform::GuestFiles;
use crate::platform::vm::host::backend;
use crate::platform::vm::process::{console_text, last_lines};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use vtax_files::Dir;
use vtax_host::HostError;
use vtax_host::command::plain;
use vtax_host::kernel_file;

/// The time limit of a boot under KVM, which takes a second or two, even on a loaded host.
const BOOT_TIMEOUT: Duration = Duration::from_secs(15);

/// The environment variable that declares that this host's KVM boots such a kernel, for an emulated host, which is
/// the same at every boot.
const KNOWN: &str = "VTAX_KVM_BOOTS";

/// The result of a boot under KVM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KvmVerdict {
    /// Whether the kernel reached user space.
    pub boots: bool,
    /// The KVM module: `kvm_vmx`, `kvm_svm`, `kvm_pvm`, or `none` without one.
    pub backend: String,
    /// The end of the console and QEMU's messages.
    pub evidence: String,
    /// The time until the kernel powered off, or the time spent waiting for it.
    pub seconds: f64,
}

/// Boots the image's kernel under KVM, with an initial RAM disk that prints a line and powers off. The boot takes
/// up to 15 s. The verdict is cached until the host's kernel, its boot, QEMU or the image change.
pub fn kvm_boots(guest: &GuestFiles) -> KvmVerdict {
    kvm_boots_with("qemu-system-x86_64", guest)
}

pub(super) fn kvm_boots_with(binary: &str, guest: &GuestFiles) -> KvmVerdict {
    let backend = backend();
    let no = |evidence: String| KvmVerdict {
        boots: false,
        backend: backend.clone(),
        evidence,
        seconds: 0.0,
    };
    // Opening needs no boot, and its error has a remedy of its own, so that the result is not cached.
    if let Err(cause) = kernel_file::device(Path::new("/dev/kvm")) {
        return no(format!("cannot open /dev/kvm: {cause}"));
    }
    let version = match version(binary) {
        Ok(version) => version,
        Err(error) => return no(error.to_string()),
    };
    if std::env::var_os(KNOWN).is_some() {
        return KvmVerdict {
            boots: true,
            ..no(format!("{KNOWN} is set"))
        };
    }
    let kept = image::cache_dir()
        .ok()
        .map(|dir| dir.join("kvm").join(key(&version, guest) + ".json"));
    if let Some(verdict) = kept.as_deref().and_then(read) {
        return verdict;
    }
    match probe(binary, guest, BOOT_TIMEOUT) {
        Ok(outcome) => {
            let verdict = KvmVerdict { backend, ..outcome };
            if let Some(path) = kept {
                // Without a cache the next run boots again.
                let _ = keep(&path, &verdict);
            }
            verdict
        }
        Err(error) => no(error.to_string()),
    }
}

/// The first line of QEMU's version, which also shows that it runs.
pub(super) fn version(binary: &str) -> Result<String, HostError> {
    let output = plain(binary)
        .arg("--version")
        .output()
        .map_err(|cause| HostError::Missing {
            what: format!("the program {binary} ({cause})"),
            remedy: "apt-get install qemu-system-x86, or set vm.binary".into(),
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let first = text.lines().next().unwrap_or_default();
    if output.status.success() && first.contains("QEMU") {
        return Ok(first.to_owned());
    }
    Err(HostError::Program {
        command: format!("{binary} --version"),
        status: output.status.to_string(),
        output: text.into_owned() + &String::from_utf8_lossy(&output.stderr),
    })
}

/// The first major version of QEMU known to give an emulated guest a vhost-user NIC with
/// message-signalled interrupts; 7.2 crashes when the guest turns them on.
const MSIX_WITH_TCG: u32 = 10;

/// Whether the machine's NIC may have message-signalled interrupts.
///
/// # Errors
/// When QEMU cannot be run.
pub(super) fn vhost_user_has_msix(machine: &Machine) -> Result<bool, HostError> {
    if machine.accel == Accel::Kvm || !machine.backend.is_vhost_user() {
        return Ok(true);
    }
    Ok(major(&version(&machine.binary)?).is_some_and(|major| major >= MSIX_WITH_TCG))
}

/// `QEMU emulator version 7.2.22 (Debian …)` → 7.
fn major(version: &str) -> Option<u32> {
    let (_, rest) = version.split_once("version ")?;
    rest.split(['.', ' ']).next()?.parse().ok()
}

fn key(version: &str, guest: &GuestFiles) -> String {
    let line = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut hasher = Sha256::new();
    let parts = [
        line("/proc/sys/kernel/osrelease"),
        line("/proc/sys/kernel/random/boot_id"),
        version.to_owned(),
        guest.recipe.clone(),
    ];
    for part in parts {
        hasher.update(part.trim());
        hasher.update([0]);
    }
    let digest = format!("{:x}", hasher.finalize());
    digest.chars().take(32).collect()
}

fn read(path: &Path) -> Option<KvmVerdict> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn keep(path: &Path, verdict: &KvmVerdict) -> std::io::Result<()> {
    Dir::create(path.parent().unwrap_or(path))?;
    Ok(vtax_files::write(
        path,
        &serde_json::to_vec_pretty(verdict)?,
    )?)
}

/// Boots, and waits at most `limit`. The backend is left empty.
fn probe(binary: &str, guest: &GuestFiles, limit: Duration) -> Result<KvmVerdict, HostError> {
    let dir = tempfile::Builder::new()
        .prefix("vtax-kvm-")
        .tempdir()
        .map_err(HostError::file("create", "/tmp"))?;
    let path = |name: &str| dir.path().join(name);
    let (initrd, console, messages) = (path("initrd"), path("console"), path("messages"));
    vtax_files::write_scratch(&initrd, image::probe(&guest.root)?)?;
    let stderr = vtax_files::create(&messages)?;

    let mut line = Options::bare(binary);
    line.option("-accel", "kvm")
        .option("-cpu", "host")
        .option("-machine", "q35")
        .option("-m", "256M")
        .kernel(&guest.kernel, &initrd, "console=ttyS0 panic=-1")
        .file("console", &console)
        .option("-serial", "chardev:console");
    let started = Instant::now();
    let mut child = line
        .command()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .map_err(HostError::process("start", binary))?;
    let mut ended = None;
    while ended.is_none() && started.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(10));
        ended = child
            .try_wait()
            .map_err(HostError::process("wait for", binary))?;
    }
    let seconds = started.elapsed().as_secs_f64();
    if ended.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }

    let seen = console_text(&console);
    let boots = seen.contains(image::PROBE_TOKEN);
    let how = match ended {
        Some(status) if boots => {
            format!("the kernel booted and powered off in {seconds:.1} s ({status})")
        }
        None if boots => format!(
            "the kernel booted; it did not power off within {} s",
            limit.as_secs()
        ),
        Some(status) => format!(
            "QEMU ended after {seconds:.1} s ({status}) before the kernel reached user space"
        ),
        None => format!(
            "the kernel did not reach user space within {} s",
            limit.as_secs()
        ),
    };
    let mut evidence = how;
    for (what, text) in [("console", seen), ("QEMU", console_text(&messages))] {
        for line in last_lines(&text, 8) {
            let _ = write!(evidence, "\n{what}: {line}");
        }
    }
    Ok(KvmVerdict {
        boots,
        backend: String::new(),
        evidence,
        seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn the_major_version_is_read_from_what_qemu_says() {
        assert_eq!(
            major("QEMU emulator version 7.2.22 (Debian 1:7.2)"),
            Some(7)
        );
        assert_eq!(major("QEMU emulator version 10.0.2"), Some(10));
        assert_eq!(major("QEMU"), None);
    }

    fn verdict(boots: bool) -> KvmVerdict {
        KvmVerdict {
            boots,
            backend: "kvm_vmx".into(),
            evidence: "seen\nthis".into(),
            seconds: 1.5,
        }
    }

    #[test]
    fn a_verdict_is_read_back_and_a_torn_one_is_not_believed() {
        let cache = tempfile::tempdir().unwrap();
        let path = cache.path().join("kvm").join("k.json");
        keep(&path, &verdict(true)).unwrap();
        assert_eq!(read(&path), Some(verdict(true)));
        fs::write(&path, "{\"boots\": tr").unwrap();
        assert_eq!(read(&path), None);
    }

    #[test]
    fn another_qemu_or_another_image_needs_another_boot() {
        let guest = |recipe: &str| GuestFiles {
            root: PathBuf::new(),
            image: PathBuf::new(),
            kernel: PathBuf::new(),
            initrd: PathBuf::new(),
            recipe: recipe.into(),
            directory: None,
            files: None,
        };
        assert_eq!(key("7.2", &guest("a")), key("7.2", &guest("a")));
        assert_ne!(key("7.2", &guest("a")), key("8.0", &guest("a")));
        assert_ne!(key("7.2", &guest("a")), key("7.2", &guest("b")));
    }

    #[test]
    fn a_missing_qemu_is_named_with_its_package() {
        let text = version("qemu-system-none").unwrap_err().to_string();
        assert!(
            text.contains("qemu-system-none") && text.contains("apt-get install"),
            "{text}"
        );
    }
}
