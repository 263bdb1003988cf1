// SPDX-License-Identifier: Apache-2.0
//! VM exits of all VMs on the host, by reason, counted at the tracepoint `kvm:kvm_exit`.
//!
//! The counters use perf with filters because the tracepoint carries the exact reason: the files of
//! `/sys/kernel/debug/kvm` count only a few kinds and lose a VM's counts when it ends, and a BPF program, the other
//! exact method, needs a toolchain and BTF. Each CPU has one group: the total, unfiltered, and one event for each of
//! the common reasons with the filter `exit_reason==N`. One system call per CPU reads them all. An exit costs its trace
//! record plus one integer comparison per filter, a fraction of a microsecond, against one to two microseconds for the
//! exit itself. A reading interrupts every CPU once, which is cheap on bare metal only. All other reasons are counted
//! together as `kvm.exits.other`. Exits that reached the VMM are also counted separately, at `kvm:kvm_userspace_exit`.
//!
//! A backend that interprets a guest's real mode (as `kvm_pvm` does) has no exits there. Where VMs reach user space and
//! the count of exits is still 0, the backend does not record exits, and the counter is reported as absent.

use super::counter::Rule;
use super::event_group::{Event, EventGroup, Scope, explain};
use super::hardware;
use super::series::GuardedColumn;
use crate::{Instrument, ObserveError, Readings};
use perf_event_open_sys::bindings;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::text;

const OWNER: &Owner = &Owner::Host;
const WHAT: &str = "KVM exits (tracepoint kvm:kvm_exit)";

/// The kernel module that runs guests, which defines the meaning of an exit's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvmBackend {
    /// Intel VT-x: numbers from the Intel SDM, vol. 3, appendix C.
    Vmx,
    /// AMD-V: numbers from the AMD APM, vol. 2, appendix C.
    Svm,
    /// Anything else; reasons are reported by number.
    Other,
}

/// The common reasons of exits, as the kernel spells them (`asm/vmx.h`).
const VMX_REASONS: &[(u32, &str)] = &[
    (0, "EXCEPTION_NMI"),
    (1, "EXTERNAL_INTERRUPT"),
    (7, "INTERRUPT_WINDOW"),
    (10, "CPUID"),
    (12, "HLT"),
    (18, "VMCALL"),
    (28, "CR_ACCESS"),
    (30, "IO_INSTRUCTION"),
    (31, "MSR_READ"),
    (32, "MSR_WRITE"),
    (40, "PAUSE_INSTRUCTION"),
    (44, "APIC_ACCESS"),
    (45, "EOI_INDUCED"),
    (48, "EPT_VIOLATION"),
    (49, "EPT_MISCONFIG"),
    (52, "PREEMPTION_TIMER"),
    (56, "APIC_WRITE"),
];

/// The common reasons of exits in `asm/svm.h`.
const SVM_REASONS: &[(u32, &str)] = &[
    (0x60, "interrupt"),
    (0x64, "vintr"),
    (0x65, "cr0_sel_write"),
    (0x72, "cpuid"),
    (0x77, "pause"),
    (0x78, "hlt"),
    (0x7b, "io"),
    (0x7c, "msr"),
    (0x81, "hypercall"),
    (0x10, "write_cr0"),
    (0x14, "write_cr4"),
    (0x400, "npf"),
    (0x401, "avic_incomplete_ipi"),
    (0x402, "avic_unaccelerated_access"),
];

/// The number of reasons that are counted where their meaning is not known.
const UNKNOWN_REASONS: u32 = 32;

impl KvmBackend {
    /// Detects the backend by the module that is loaded or built in.
    pub fn detect(sys: &Path) -> Self {
        let has = |module: &str| sys.join("module").join(module).exists();
        match (has("kvm_intel"), has("kvm_amd")) {
            (true, _) => Self::Vmx,
            (_, true) => Self::Svm,
            _ => Self::Other,
        }
    }

    /// The reasons that are counted separately: number and name.
    pub fn reasons(self) -> Vec<(u32, String)> {
        let named = |reasons: &[(u32, &str)]| {
            let owned = reasons
                .iter()
                .map(|(number, name)| (*number, (*name).to_owned()));
            owned.collect()
        };
        match self {
            Self::Vmx => named(VMX_REASONS),
            Self::Svm => named(SVM_REASONS),
            Self::Other => (0..UNKNOWN_REASONS)
                .map(|number| (number, format!("reason_{number}")))
                .collect(),
        }
    }
}

/// VM exits on the host.
#[derive(Debug)]
pub struct KvmExits {
    groups: Vec<EventGroup>,
    sums: Vec<u64>,
    to_user_space: GuardedColumn,
    total: GuardedColumn,
    reasons: Vec<GuardedColumn>,
    other: GuardedColumn,
}

impl KvmExits {
    /// Starts counting on every CPU, as owner `host`.
    ///
    /// # Errors
    /// When the tracepoint does not exist, tracefs is not mounted, or perf may not be used.
    pub fn host(sys: &Path) -> Result<Self, ObserveError> {
        let tracepoint = |name: &str| -> Result<Event, ObserveError> {
            Ok(Event {
                kind: bindings::PERF_TYPE_TRACEPOINT,
                config: tracepoint_id(sys, name)?,
                filter: None,
            })
        };
        let exit = tracepoint("kvm_exit")?;
        let reasons = KvmBackend::detect(sys).reasons();
        let mut events = vec![tracepoint("kvm_userspace_exit")?, exit.clone()];
        for (number, _) in &reasons {
            events.push(Event {
                // A number and fixed text contain no zero byte.
                filter: CString::new(format!("exit_reason=={number}")).ok(),
                ..exit.clone()
            });
        }
        let groups = hardware::online_cpus(sys)?
            .into_iter()
            .map(|cpu| EventGroup::open(Scope::Cpu(cpu), &events))
            .collect::<std::io::Result<_>>()
            .map_err(|cause| explain(WHAT, &cause))?;
        let column = |metric: String| GuardedColumn::new(OWNER, metric, Rule::FROM_ZERO);
        Ok(Self {
            groups,
            sums: vec![0; events.len()],
            to_user_space: column(counter::KVM_USERSPACE_EXITS.to_owned()),
            total: column(counter::KVM_EXITS.to_owned()),
            reasons: reasons
                .iter()
                .map(|(_, name)| column(counter::KVM_EXITS_FOR.fill(name)))
                .collect(),
            other: column(counter::KVM_EXITS_FOR.fill("other")),
        })
    }

    /// Whether the tracepoint can be counted here. Without a VM no exit occurs, so this only verifies that it opens.
    ///
    /// # Errors
    /// As [`KvmExits::host`].
    pub fn probe(sys: &Path) -> Result<String, ObserveError> {
        let exits = Self::host(sys)?;
        Ok(format!(
            "opened on {} CPUs, {:?} reasons",
            exits.groups.len(),
            KvmBackend::detect(sys)
        ))
    }
}

fn tracepoint_id(sys: &Path, name: &str) -> Result<u64, ObserveError> {
    let roots = ["kernel/tracing", "kernel/debug/tracing"].map(|root| sys.join(root));
    let unavailable = |reason: String| ObserveError::unavailable(WHAT, reason);
    let Some(events) = roots
        .iter()
        .map(|root| root.join("events"))
        .find(|events| events.is_dir())
    else {
        return Err(unavailable(
            "tracefs is not mounted or not readable: as root, \
             `mount -t tracefs tracefs /sys/kernel/tracing`"
                .to_owned(),
        ));
    };
    let path: PathBuf = events.join("kvm").join(name).join("id");
    match std::fs::read(&path) {
        Ok(id) => text::number(id.trim_ascii())
            .ok_or_else(|| ObserveError::format(path, "expected one number")),
        Err(cause) => Err(unavailable(format!(
            "{}: {cause}: is the module kvm loaded?",
            path.display()
        ))),
    }
}

impl Instrument for KvmExits {
    fn name(&self) -> &str {
        "KVM exits"
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        self.sums.fill(0);
        for group in &mut self.groups {
            let counts = group.read().map_err(|cause| explain(WHAT, &cause))?;
            for (sum, count) in self.sums.iter_mut().zip(counts.values()) {
                *sum = sum.saturating_add(count);
            }
        }
        let [to_user_space, total, reasons @ ..] = self.sums.as_slice() else {
            return Ok(());
        };
        self.to_user_space.record(*to_user_space, into);
        // No guest reaches user space without an exit: this backend does not count exits.
        if *total == 0 && *to_user_space > 0 {
            return Ok(());
        }
        self.total.record(*total, into);
        for (column, count) in self.reasons.iter_mut().zip(reasons) {
            column.record(*count, into);
        }
        let other = total.saturating_sub(reasons.iter().sum());
        self.other.record(other, into);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;
    use kvm_ioctls::{Kvm, VcpuExit};
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    #[test]
    fn reasons_have_names_on_intel_and_amd_and_numbers_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(KvmBackend::detect(root.path()), KvmBackend::Other);
        assert_eq!(
            KvmBackend::Other.reasons()[12],
            (12, "reason_12".to_owned())
        );
        std::fs::create_dir_all(root.path().join("module/kvm_amd")).unwrap();
        assert_eq!(KvmBackend::detect(root.path()), KvmBackend::Svm);
        assert!(
            KvmBackend::Svm
                .reasons()
                .contains(&(0x78, "hlt".to_owned()))
        );
        std::fs::create_dir_all(root.path().join("module/kvm_intel")).unwrap();
        assert_eq!(KvmBackend::detect(root.path()), KvmBackend::Vmx);
        assert!(KvmBackend::Vmx.reasons().contains(&(12, "HLT".to_owned())));
    }

    #[test]
    fn without_tracefs_the_remedy_is_named() {
        let root = tempfile::tempdir().unwrap();
        let error = KvmExits::host(root.path()).unwrap_err();
        assert!(error.to_string().contains("mount -t tracefs"), "{error}");
    }

    /// A `/sys` with tracefs: the host's, or one in a mount namespace that a child process keeps open.
    struct Sys(PathBuf, Option<Child>);

    impl Sys {
        fn with_tracefs() -> Result<Self, String> {
            if Path::new("/sys/kernel/tracing/events").is_dir() {
                return Ok(Self(PathBuf::from("/sys"), None));
            }
            let script =
                "mount -t tracefs tracefs /sys/kernel/tracing && echo ready && exec sleep 600";
            let mut child = Command::new("unshare")
                .args(["--mount", "sh", "-c", script])
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| error.to_string())?;
            let mut line = String::new();
            let output = child.stdout.take().ok_or("no output")?;
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(|error| error.to_string())?;
            let root = PathBuf::from(format!("/proc/{}/root/sys", child.id()));
            let held = Self(root, Some(child));
            if line == "ready\n" {
                Ok(held)
            } else {
                Err("tracefs cannot be mounted".to_owned())
            }
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            if let Some(child) = &mut self.1 {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// A guest that writes to a port in a loop, run for `exits` exits to user space.
    fn run_guest(exits: u64) -> Result<(), String> {
        let failed = |error: kvm_ioctls::Error| format!("/dev/kvm: {error}");
        let kvm = Kvm::new().map_err(failed)?;
        let vm = kvm.create_vm().map_err(failed)?;
        // mov dx, 0x3f8; again: out dx, al; jmp again
        let code = [0xba, 0xf8, 0x03, 0xee, 0xeb, 0xfd];
        let mut memory = Box::new(Page([0; 4096]));
        memory.0[..code.len()].copy_from_slice(&code);
        let region = kvm_bindings::kvm_userspace_memory_region {
            slot: 0,
            guest_phys_addr: 0x1000,
            memory_size: 0x1000,
            userspace_addr: memory.0.as_ptr() as u64,
            flags: 0,
        };
        // SAFETY: `memory` is aligned, as large as the slot says, and outlives the VM.
        unsafe { vm.set_user_memory_region(region) }.map_err(failed)?;
        let mut vcpu = vm.create_vcpu(0).map_err(failed)?;
        let mut special = vcpu.get_sregs().map_err(failed)?;
        special.cs.base = 0;
        special.cs.selector = 0;
        vcpu.set_sregs(&special).map_err(failed)?;
        let mut registers = vcpu.get_regs().map_err(failed)?;
        registers.rip = 0x1000;
        registers.rflags = 2;
        vcpu.set_regs(&registers).map_err(failed)?;
        for _ in 0..exits {
            match vcpu.run().map_err(failed)? {
                VcpuExit::IoOut(0x3f8, _) => {}
                other => return Err(format!("unexpected exit {other:?}")),
            }
        }
        drop((vcpu, vm));
        drop(memory);
        Ok(())
    }

    /// A page of memory with the alignment that KVM requires.
    #[repr(align(4096))]
    struct Page([u8; 4096]);

    #[test]
    fn the_exits_of_a_real_guest_are_counted_by_reason() {
        let sys = match Sys::with_tracefs() {
            Ok(sys) => sys,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let mut exits = match KvmExits::host(&sys.0) {
            Ok(exits) => exits,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let mut readings = Readings::default();
        let mut snapshot = || {
            readings.clear_values();
            exits.read(Nanoseconds(0), &mut readings).unwrap();
            Snapshot::from_readings(Nanoseconds(0), &readings)
        };
        let before = snapshot();
        if let Err(error) = run_guest(1000) {
            return eprintln!("SKIPPED: {error}");
        }
        let after = snapshot();
        let step = |metric: &str| match after.since(&before, &Owner::Host, metric) {
            Some(step) => step.value,
            None => panic!("{metric} was not counted"),
        };
        assert!(step(counter::KVM_USERSPACE_EXITS) >= 1000.0);
        let by_reason = match KvmBackend::detect(&sys.0) {
            KvmBackend::Vmx => "kvm.exits.IO_INSTRUCTION",
            KvmBackend::Svm => "kvm.exits.io",
            KvmBackend::Other => {
                return eprintln!("SKIPPED: reasons, as only VMX and SVM exit from real mode");
            }
        };
        assert!(step(by_reason) >= 1000.0);
        assert!(step(counter::KVM_EXITS) >= step(by_reason));
    }

    #[test]
    fn filters_tell_the_exits_of_a_real_guest_apart() {
        let sys = match Sys::with_tracefs() {
            Ok(sys) => sys,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let id = match tracepoint_id(&sys.0, "kvm_userspace_exit") {
            Ok(id) => id,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let event = |filter: &str| Event {
            kind: bindings::PERF_TYPE_TRACEPOINT,
            config: id,
            filter: CString::new(filter).ok(),
        };
        // KVM_EXIT_IO is 2, KVM_EXIT_MMIO is 6.
        let events = [event("reason==2"), event("reason==6")];
        let mut group = match EventGroup::open(Scope::ThisThread, &events) {
            Ok(group) => group,
            Err(error) => return eprintln!("SKIPPED: {}", explain(WHAT, &error)),
        };
        if let Err(error) = run_guest(1000) {
            return eprintln!("SKIPPED: {error}");
        }
        let counts: Vec<u64> = group.read().unwrap().values().collect();
        assert_eq!(counts, [1000, 0]);
    }
}
