// SPDX-License-Identifier: Apache-2.0
//! The host's KVM, disks that support direct I/O, and layers above images.

use rustix::fs::{Mode, OFlags};
use std::path::Path;
use vtax_host::command::plain;
use vtax_host::facts::KvmBackend;
use vtax_host::kernel_file;
use vtax_host::{HostError, Roots};

/// The KVM module of this kernel: `kvm_vmx`, `kvm_svm`, `kvm_pvm`, or `none`.
pub(in crate::platform) fn backend() -> String {
    match KvmBackend::detect(&Roots::host()) {
        Some(KvmBackend::KvmIntel) => "kvm_vmx",
        Some(KvmBackend::KvmAmd) => "kvm_svm",
        Some(KvmBackend::KvmPvm) => "kvm_pvm",
        None => "none",
    }
    .to_owned()
}

/// Checks that a device can be opened, which `what` needs.
pub(in crate::platform) fn need_device(
    path: &str,
    what: &str,
    remedy: &str,
) -> Result<(), HostError> {
    let opened = kernel_file::device(Path::new(path)).map(drop);
    opened.map_err(|cause| HostError::Missing {
        what: format!("{path}, which {what} needs, ({cause})"),
        remedy: remedy.to_owned(),
    })
}

/// Whether the file system of an image supports direct I/O.
pub(in crate::platform) fn takes_direct_io(image: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(image, flags, Mode::empty()).is_ok()
}

/// Creates the file for a guest's writes; unmodified data is read from the shared image.
pub(in crate::platform) fn qcow2_layer(image: &Path, at: &Path) -> Result<(), HostError> {
    let output = plain("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .args([image, at])
        .output()
        .map_err(HostError::process("run", "qemu-img"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(HostError::program(
        format!("qemu-img create {}", at.display()),
        &output,
    ))
}
