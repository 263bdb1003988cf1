// SPDX-License-Identifier: Apache-2.0
//! Virtual machines: whether KVM boots a kernel, and its backend.

use super::{Answer, Finding, KvmBoot, Options, Subject, Topic};
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
    let subject = Subject(Topic::Kvm, KVM);
    let named = backend.map_or("unknown", KvmBackend::name);
    match options.probes.open_device(&roots.dev.join("kvm")) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => {
            let remedy = match module(roots) {
                Some(module) => format!(
                    "modprobe {module} (the processor has the feature), or switch virtualization on in the firmware; {EMULATED}"
                ),
                None => format!(
                    "this processor, or the VM that this host is, offers no virtualization; {EMULATED}"
                ),
            };
            return subject.no("/dev/kvm does not exist", remedy);
        }
        Err(cause) => {
            return subject.no(
                format!(
                    "/dev/kvm exists but does not open: {}",
                    super::reason(&cause)
                ),
                "run as root, or: adduser $USER kvm, then log in again",
            );
        }
        Ok(()) => {}
    }
    match options.probes.boot_on_kvm() {
        KvmBoot::Boots(how) => {
            subject.yes(format!("a stock kernel boots: {} (backend {named})", brief(&how)))
        }
        KvmBoot::Fails(seen) => subject.no(
            format!(
                "/dev/kvm opens, but a stock kernel does not boot (backend {named}): {}",
                brief(&seen)
            ),
            format!(
                "{EMULATED}; for measured VMs use a host with kvm_intel or kvm_amd that no other hypervisor (VirtualBox, VMware) holds"
            ),
        ),
        KvmBoot::NotTried(why) => subject.partly(
            format!("/dev/kvm opens; booting a kernel was not tried: {why} (backend {named})"),
            "only a booted kernel decides; `vtax run` tries before the first trial",
        ),
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
    let modules = [("vmx", "kvm_intel"), ("svm", "kvm_amd")];
    let mut offered = modules
        .into_iter()
        .filter(|(flag, _)| has_cpu_flag(roots, flag));
    offered.next().map(|(_, module)| module)
}

fn kvm_backend(backend: Option<KvmBackend>) -> Finding {
    const BACKEND: Subject = Subject(Topic::Kvm, "KVM backend");
    match backend {
        Some(KvmBackend::KvmIntel) => BACKEND.yes("kvm_intel (VT-x)"),
        Some(KvmBackend::KvmAmd) => BACKEND.yes("kvm_amd (AMD-V)"),
        Some(KvmBackend::KvmPvm) => BACKEND.partly(
            "kvm_pvm (in software, without VT-x or AMD-V)",
            "guests need a kernel built for it; stock distribution kernels do not boot",
        ),
        None => BACKEND.finding(
            Answer::No,
            "none of kvm_intel, kvm_amd, kvm_pvm is loaded or built in",
        ),
    }
}

fn nested(roots: &Roots, backend: Option<KvmBackend>) -> Finding {
    const NESTED: Subject = Subject(Topic::Kvm, "nested KVM");
    let Some(backend) = backend else {
        return NESTED.finding(Answer::No, "there is no KVM backend");
    };
    let parameter = format!("module/{backend}/parameters/nested");
    match roots.sys_text(&parameter).as_deref() {
        Some("Y" | "1") => NESTED.yes(format!("{backend} offers it to guests")),
        Some(value) => NESTED.no(
            format!("/sys/{parameter} is {value}"),
            format!(
                "only for hypervisors inside guests: modprobe -r {backend} && modprobe {backend} nested=1"
            ),
        ),
        None => NESTED.finding(Answer::No, format!("{backend} has no parameter `nested`")),
    }
}
