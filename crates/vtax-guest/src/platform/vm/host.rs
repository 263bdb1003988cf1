// SPDX-License-Identifier: Apache-2.0
//! The host's KVM, and disks that support direct I/O.

use rustix::fs::{Mode, OFlags};
use std::path::Path;
use vtax_host::Roots;
use vtax_host::facts::KvmBackend;

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

/// Whether the file system of an image supports direct I/O.
pub(in crate::platform) fn takes_direct_io(image: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(image, flags, Mode::empty()).is_ok()
}
