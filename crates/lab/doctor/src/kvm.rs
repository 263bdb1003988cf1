// SPDX-License-Identifier: Apache-2.0
//! Virtual machines: whether KVM boots a kernel, and its backend.

use super::{Answer, Finding, KvmBoot, Options, Topic};
use std::io::ErrorKind;
use vtax_host::Roots;
use vtax_host::facts::{KvmBackend, has_cpu_flag};

pub(super) const KVM: &str = "KVM";
const EMULATED: &str = "VMs run under TCG instead, and each of their numbers is flagged `emulated`";

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let backend = KvmBackend::detect(roots);
    vec![
        kvm(roots, options, backend),
        kvm_backend(backend),
        nested(roots, backend),
    ]
}

fn kvm(roots: &Roots, options: &Options, backend: Option<KvmBackend>) -> Finding {
    let finding = |answer, evidence: String| Finding::new(Topic::Kvm, KVM, answer, evidence);
    let named = backend.map_or("unknown", KvmBackend::name);
    match options.probes.open_device(&roots.dev.join("kvm")) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => {
            return finding(Answer::No, "/dev/kvm does not exist".to_owned()).remedy(if let Some(module) = module(roots) {
                format!("modprobe {module} (the processor has the feature), or switch virtualization on in the firmware; {EMULATED}")
            } else {
                format!("this processor, or the VM that this host is, offers no virtualization; {EMULATED}")
            });
        }
        Err(cause) => {
            let why = super::reason(&cause);
            return finding(
                Answer::No,
                format!("/dev/kvm exists but does not open: {why}"),
            )
            .remedy("run as root, or: adduser $USER kvm, then log in again");
        }
        Ok(()) => {}
    }
    match options.probes.boot_on_kvm() {
        KvmBoot::Boots(how) => finding(Answer::Yes, format!("a stock kernel boots: {} (backend {named})", brief(&how))),
        KvmBoot::Fails(seen) => finding(
            Answer::No,
            format!("/dev/kvm opens, but a stock kernel does not boot (backend {named}): {}", brief(&seen)),
        )
        .remedy(format!("{EMULATED}; for measured VMs use a host with kvm_intel or kvm_amd that no other hypervisor (VirtualBox, VMware) holds")),
        KvmBoot::NotTried(why) => finding(
            Answer::Partly,
            format!("/dev/kvm opens; booting a kernel was not tried: {why} (backend {named})"),
        )
        .remedy("only a booted kernel decides; `vtax run` tries before the first trial"),
    }
}

/// The last line of a console, shortened for one line of a report.
fn brief(seen: &str) -> String {
    let last = seen.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.unwrap_or("it printed nothing")
        .chars()
        .take(160)
        .collect()
}

/// The module for this processor's virtualization feature.
fn module(roots: &Roots) -> Option<&'static str> {
    if has_cpu_flag(roots, "vmx") {
        Some("kvm_intel")
    } else if has_cpu_flag(roots, "svm") {
        Some("kvm_amd")
    } else {
        None
    }
}

fn kvm_backend(backend: Option<KvmBackend>) -> Finding {
    let finding = |answer, evidence| Finding::new(Topic::Kvm, "KVM backend", answer, evidence);
    match backend {
        Some(KvmBackend::KvmIntel) => finding(Answer::Yes, "kvm_intel (VT-x)"),
        Some(KvmBackend::KvmAmd) => finding(Answer::Yes, "kvm_amd (AMD-V)"),
        Some(KvmBackend::KvmPvm) => finding(
            Answer::Partly,
            "kvm_pvm (in software, without VT-x or AMD-V)",
        )
        .remedy("guests need a kernel built for it; stock distribution kernels do not boot"),
        None => finding(
            Answer::No,
            "none of kvm_intel, kvm_amd, kvm_pvm is loaded or built in",
        ),
    }
}

fn nested(roots: &Roots, backend: Option<KvmBackend>) -> Finding {
    let finding =
        |answer, evidence: String| Finding::new(Topic::Kvm, "nested KVM", answer, evidence);
    let Some(backend) = backend else {
        return finding(Answer::No, "there is no KVM backend".to_owned());
    };
    let parameter = format!("module/{backend}/parameters/nested");
    match roots.sys_text(&parameter).as_deref() {
        Some("Y" | "1") => finding(Answer::Yes, format!("{backend} offers it to guests")),
        Some(value) => finding(Answer::No, format!("/sys/{parameter} is {value}"))
            .remedy(format!("only for hypervisors inside guests: modprobe -r {backend} && modprobe {backend} nested=1")),
        None => finding(Answer::No, format!("{backend} has no parameter `nested`")),
    }
}
