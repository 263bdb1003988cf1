//! Virtual machines: whether KVM really boots a kernel, which backend it has, and emulation.

use super::{Answer, Finding, KvmBoot, KvmDevice, Options, Topic};
use std::time::Duration;
use vtax_host::Roots;
use vtax_host::facts::{KvmBackend, has_cpu_flag};

pub(super) const KVM: &str = "KVM";
pub(super) const EMULATION: &str = "TCG";
const EMULATED: &str =
    "VMs run under TCG instead, and every number of theirs is flagged `emulated`";

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let backend = KvmBackend::detect(roots);
    vec![
        kvm(roots, options, backend),
        kvm_backend(backend),
        nested(roots, backend),
        emulation(roots, options),
    ]
}

fn kvm(roots: &Roots, options: &Options, backend: Option<KvmBackend>) -> Finding {
    let finding = |answer, evidence: String| Finding::new(Topic::Kvm, KVM, answer, evidence);
    let named = backend.map_or("unknown", KvmBackend::name);
    match options.probes.kvm_device(&roots.dev.join("kvm")) {
        KvmDevice::Missing => finding(Answer::No, "/dev/kvm does not exist".to_owned()).remedy(if let Some(module) = module(roots) {
            format!("modprobe {module} (the processor has the feature), or switch virtualization on in the firmware; {EMULATED}")
        } else {
            format!("this processor, or the VM that this host is, offers no virtualization; {EMULATED}")
        }),
        KvmDevice::Closed(why) => finding(Answer::No, format!("/dev/kvm exists but does not open: {why}"))
            .remedy("run as root, or: adduser $USER kvm, then log in again"),
        KvmDevice::NoVm(why) => finding(
            Answer::No,
            format!("/dev/kvm opens but creates no VM: {why} (backend {named})"),
        )
        .remedy(format!("another hypervisor may hold the processor (VirtualBox, VMware): stop it; {EMULATED}")),
        KvmDevice::CreatesVms => match options.probes.boot_on_kvm() {
            KvmBoot::Boots(how) => finding(Answer::Yes, format!("a stock kernel boots: {} (backend {named})", brief(&how))),
            KvmBoot::Fails(seen) => finding(
                Answer::No,
                format!(
                    "/dev/kvm opens and creates VMs, but a stock kernel does not boot (backend {named}): {}",
                    brief(&seen)
                ),
            )
            .remedy(format!("{EMULATED}; for measured VMs use a host with kvm_intel or kvm_amd")),
            KvmBoot::NotTried(why) => finding(
                Answer::Partly,
                format!("/dev/kvm opens and creates VMs; booting a kernel was not tried: {why} (backend {named})"),
            )
            .remedy("only a booted kernel decides; `vtax run` tries before the first trial"),
        },
    }
}

/// The last line of a console, not too long for one line of a report.
fn brief(seen: &str) -> String {
    let last = seen.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.unwrap_or("it said nothing")
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

fn emulation(roots: &Roots, options: &Options) -> Finding {
    let finding = |answer, evidence: String| Finding::new(Topic::Kvm, EMULATION, answer, evidence);
    let Some(qemu) = roots.program("qemu-system-x86_64") else {
        return finding(Answer::No, "qemu-system-x86_64 is not installed".to_owned())
            .remedy("apt-get install qemu-system-x86")
            .package("qemu-system-x86");
    };
    match options
        .probes
        .run(&qemu, &["-accel", "help"], Duration::from_secs(10))
    {
        Ok(output) if output.stdout.lines().any(|line| line.trim() == "tcg") => finding(
            Answer::Yes,
            "qemu-system-x86_64 has the accelerator tcg".to_owned(),
        ),
        Ok(output) => finding(
            Answer::No,
            format!(
                "{} -accel help names no tcg: {}",
                qemu.display(),
                output.last_words()
            ),
        )
        .remedy("install a QEMU that is built with TCG: apt-get install qemu-system-x86"),
        Err(cause) => finding(
            Answer::No,
            format!(
                "{} does not run: {cause}",
                qemu.display(),
                cause = super::reason(&cause)
            ),
        )
        .remedy("apt-get install --reinstall qemu-system-x86"),
    }
}
