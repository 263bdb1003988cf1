// SPDX-License-Identifier: Apache-2.0
//! Tests of the times of a VMM's threads.

use super::*;
use crate::Snapshot;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vtax_core::owner::Owner;

/// The owner of a thread outside all processes.
const KERNEL: &str = "kernel";

struct FakeVmm {
    proc: tempfile::TempDir,
    clock: Arc<AtomicU64>,
}

impl FakeVmm {
    fn new() -> Self {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("70/task")).unwrap();
        Self {
            proc,
            clock: Arc::default(),
        }
    }

    fn thread(&self, tid: u32, name: &str, schedstat: &str) {
        let directory = self.proc.path().join(format!("70/task/{tid}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("comm"), format!("{name}\n")).unwrap();
        fs::write(directory.join("schedstat"), format!("{schedstat}\n")).unwrap();
    }

    fn end(&self, tid: u32) {
        fs::remove_dir_all(self.proc.path().join(format!("70/task/{tid}"))).unwrap();
    }

    fn process(&self, pid: u32, name: &str, of: &str, schedstat: &str) {
        let directory = self.proc.path().join(pid.to_string());
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("comm"), format!("{name}\n")).unwrap();
        let flags = if of == KERNEL { 0x0020_8040 } else { 0x40_0100 };
        let stat = format!("{pid} ({name}) S 1 0 0 0 -1 {flags} 0\n");
        fs::write(directory.join("stat"), stat).unwrap();
        fs::write(directory.join("schedstat"), format!("{schedstat}\n")).unwrap();
    }

    fn open(&self, subject: &Subject) -> VmmThreads {
        let clock = Arc::clone(&self.clock);
        let read: ProcessClock = Box::new(move || Ok(clock.load(Ordering::Relaxed)));
        let mut threads = VmmThreads::with_clock(subject, 70, self.proc.path(), read).unwrap();
        threads.kernel_threads =
            vhost_threads_outside(self.proc.path(), &threads.threads, subject.nic);
        threads
    }
}

fn subject() -> Subject {
    Subject {
        owner: Owner::Target,
        vmm: Some(70),
        ..Subject::default()
    }
}

fn read(threads: &mut VmmThreads, readings: &mut Readings) -> Snapshot {
    // The steps are large enough that the threads are listed each time: on some file systems a directory's link
    // count is constant.
    static NOW: AtomicU64 = AtomicU64::new(0);
    let now = Nanoseconds(NOW.fetch_add(LIST_AGAIN.0, Ordering::Relaxed));
    readings.clear_values();
    threads.read(now, readings).unwrap();
    Snapshot::from_readings(Nanoseconds(0), readings)
}

fn value(snapshot: &Snapshot, metric: &str) -> f64 {
    snapshot.get(&Owner::Target, metric).unwrap().value
}

#[test]
fn threads_are_distinguished_by_the_names_that_vmms_give_them() {
    let rules = Rules {
        vcpu_threads: vec![5],
        iothreads: vec![6],
    };
    let role = |name: &str| rules.role([1, 1], name.as_bytes());
    for name in [
        "CPU 0/KVM",
        "CPU 12/TCG",
        "ALL CPUs/TCG",
        "vcpu0",
        "fc_vcpu 3",
        "crosvm_vcpu1",
    ] {
        assert_eq!(role(name), Stage::Vcpu, "{name}");
    }
    assert_eq!(role("IO iothread0"), Stage::Iothread);
    assert_eq!(role("IO mon_iothread"), Stage::Emulator);
    assert_eq!(role("vhost-4242"), Stage::Vhost);
    for name in [
        "qemu-system-x86",
        "worker",
        "vcpu",
        "vcpu0x",
        "vhost-",
        "CPU",
        "call_rcu",
        "",
    ] {
        assert_eq!(role(name), Stage::Emulator, "{name}");
    }
    assert_eq!(rules.role([5, 900], b"qemu"), Stage::Vcpu);
    assert_eq!(rules.role([900, 6], b"qemu"), Stage::Iothread);
}

#[test]
fn the_roles_and_the_emulator_add_up_to_the_process() {
    let vmm = FakeVmm::new();
    vmm.thread(70, "qemu", "900 1 1");
    vmm.thread(71, "CPU 0/KVM", "500 40 7");
    vmm.thread(72, "CPU 1/KVM", "300 2 3");
    vmm.thread(73, "IO disk", "50 0 2");
    vmm.thread(74, "vhost-70", "25 0 1");
    vmm.clock.store(2000, Ordering::Relaxed);
    let mut threads = vmm.open(&subject());
    let snapshot = read(&mut threads, &mut Readings::default());
    assert_eq!(value(&snapshot, counter::CPU_VCPU), 800.0);
    assert_eq!(value(&snapshot, counter::CPU_VCPU_WAIT), 42.0);
    assert_eq!(value(&snapshot, "context_switches.vcpu"), 10.0);
    assert_eq!(value(&snapshot, counter::CPU_IOTHREAD), 50.0);
    assert_eq!(value(&snapshot, counter::CPU_VHOST), 25.0);
    assert_eq!(value(&snapshot, counter::CPU_EMULATOR), 2000.0 - 875.0);
}

#[test]
fn times_are_exact_also_beyond_what_a_float_holds() {
    let vmm = FakeVmm::new();
    let vcpu = (1 << 53) + 1;
    vmm.thread(71, "CPU 0/KVM", &format!("{vcpu} 0 1"));
    vmm.clock.store(vcpu + 2, Ordering::Relaxed);
    let times = vmm.open(&subject()).times(Nanoseconds(0)).unwrap();
    assert_eq!(times.stages.get(Stage::Vcpu).0, vcpu);
    assert_eq!(times.stages.total().0, vcpu + 2);
}

#[test]
fn vhost_workers_of_the_nic_are_the_guests_wherever_they_are() {
    let vmm = FakeVmm::new();
    vmm.thread(70, "qemu", "100 0 1");
    vmm.process(70, "qemu", "qemu-system-x86_64", "100 0 1");
    vmm.process(90, "vtax-nic", "vtax-nic", "50 0 1");
    vmm.process(80, "vhost-90", KERNEL, "33 0 1");
    vmm.process(81, "vhost-95", KERNEL, "1000 0 1");
    for (tid, name) in [(90, "vtax-nic"), (91, "vhost-90")] {
        let task = vmm.proc.path().join(format!("90/task/{tid}"));
        fs::create_dir_all(&task).unwrap();
        fs::write(task.join("comm"), name).unwrap();
        fs::write(task.join("schedstat"), "400 0 1\n").unwrap();
    }
    vmm.clock.store(100, Ordering::Relaxed);
    let nic = Some(90);
    let mut threads = vmm.open(&Subject { nic, ..subject() });
    let snapshot = read(&mut threads, &mut Readings::default());
    assert_eq!(value(&snapshot, counter::CPU_VHOST), 433.0);
    assert_eq!(value(&snapshot, counter::CPU_EMULATOR), 100.0);
}

#[test]
fn vhost_workers_are_found_as_kernel_threads_too() {
    let vmm = FakeVmm::new();
    vmm.thread(70, "qemu", "100 0 1");
    vmm.process(70, "qemu", "qemu-system-x86_64", "100 0 1");
    vmm.process(80, "vhost-70", KERNEL, "33 0 1");
    vmm.process(81, "vhost-71", KERNEL, "1000 0 1");
    vmm.process(82, "vhost-70", "", "1000 0 1");
    vmm.clock.store(100, Ordering::Relaxed);
    let mut threads = vmm.open(&subject());
    let mut readings = Readings::default();
    let snapshot = read(&mut threads, &mut readings);
    assert_eq!(value(&snapshot, counter::CPU_VHOST), 33.0);
    let emulator = value(&snapshot, counter::CPU_EMULATOR);
    assert_eq!(
        emulator, 100.0,
        "a kernel thread is not in the process's clock"
    );
}

#[test]
fn a_thread_that_ends_keeps_its_share_and_totals_never_fall() {
    let vmm = FakeVmm::new();
    vmm.thread(71, "CPU 0/KVM", "500 0 1");
    vmm.thread(72, "CPU 1/KVM", "300 0 1");
    vmm.clock.store(1000, Ordering::Relaxed);
    let mut threads = vmm.open(&subject());
    let mut readings = Readings::default();
    read(&mut threads, &mut readings);
    vmm.end(72);
    let after = read(&mut threads, &mut readings);
    assert_eq!(value(&after, counter::CPU_VCPU), 800.0);
}

#[test]
fn a_reused_thread_number_gives_no_negative_step() {
    let vmm = FakeVmm::new();
    vmm.thread(71, "CPU 0/KVM", "500 0 9");
    vmm.clock.store(1000, Ordering::Relaxed);
    let mut threads = vmm.open(&subject());
    let mut readings = Readings::default();
    let before = read(&mut threads, &mut readings);
    // The thread ends between two readings, and another one gets its number.
    vmm.thread(71, "CPU 0/KVM", "20 0 1");
    let after = read(&mut threads, &mut readings);
    let step = after
        .since(&before, &Owner::Target, counter::CPU_VCPU)
        .unwrap();
    assert_eq!(step.value, 20.0);
}

#[test]
fn a_thread_that_names_itself_late_is_still_recognised() {
    let vmm = FakeVmm::new();
    vmm.thread(71, "qemu-system-x86", "10 0 1");
    let mut threads = vmm.open(&subject());
    vmm.thread(71, "CPU 0/KVM", "10 0 1");
    let snapshot = read(&mut threads, &mut Readings::default());
    assert_eq!(value(&snapshot, counter::CPU_VCPU), 10.0);
}

#[test]
fn thread_numbers_from_the_vmms_own_pid_namespace_are_understood() {
    let vmm = FakeVmm::new();
    vmm.thread(71, "qemu", "10 0 1");
    fs::write(
        vmm.proc.path().join("70/task/71/status"),
        "Pid:\t71\nNSpid:\t71\t3\n",
    )
    .unwrap();
    let subject = Subject {
        vcpu_threads: vec![3],
        ..subject()
    };
    let mut threads = vmm.open(&subject);
    let snapshot = read(&mut threads, &mut Readings::default());
    assert_eq!(value(&snapshot, counter::CPU_VCPU), 10.0);
}

#[test]
fn many_threads_make_one_series_for_each_role_and_not_one_for_each_thread() {
    let vmm = FakeVmm::new();
    for tid in 100..400 {
        let name = if tid % 2 == 0 { "CPU 0/KVM" } else { "worker" };
        vmm.thread(tid, name, "10 0 1");
    }
    let mut readings = Readings::default();
    let snapshot = read(&mut vmm.open(&subject()), &mut readings);
    assert_eq!(value(&snapshot, counter::CPU_VCPU), 1500.0);
    // The total is also recorded, since no control group of the VM accounts it.
    assert_eq!(readings.series().len(), 9);
    assert_eq!(
        value(&snapshot, counter::CPU_TOTAL),
        1500.0 + value(&snapshot, counter::CPU_EMULATOR)
    );
}

#[test]
fn a_kernel_without_thread_accounting_is_an_error_with_the_remedy() {
    let vmm = FakeVmm::new();
    vmm.thread(71, "CPU 0/KVM", "0 0 0");
    vmm.clock.store(1_000_000, Ordering::Relaxed);
    let mut threads = vmm.open(&subject());
    let error = threads
        .read(Nanoseconds(0), &mut Readings::default())
        .unwrap_err();
    assert!(error.to_string().contains("delayacct"), "{error}");
}

#[test]
fn hostile_thread_names_and_broken_files_are_errors_or_ignored_but_never_panic() {
    let vmm = FakeVmm::new();
    vmm.thread(71, "CPU 0/KVM\u{0}\u{7f}", "x y z");
    fs::create_dir_all(vmm.proc.path().join("70/task/not a number")).unwrap();
    fs::create_dir_all(vmm.proc.path().join("70/task/99999999999999999999")).unwrap();
    let mut threads = vmm.open(&subject());
    assert!(
        threads
            .read(Nanoseconds(0), &mut Readings::default())
            .is_err()
    );
}

/// Reads real threads of the test process, with a vCPU's name.
#[test]
fn real_threads_that_come_and_go_are_charged_to_their_role() {
    let subject = Subject {
        owner: Owner::Target,
        vmm: Some(std::process::id()),
        ..Subject::default()
    };
    let mut threads = VmmThreads::open(&subject, Path::new("/proc")).unwrap();
    let mut readings = Readings::default();
    let mut before = {
        threads.read(Nanoseconds(0), &mut readings).unwrap();
        Snapshot::from_readings(Nanoseconds(0), &readings)
    };
    let first = before.clone();
    let mut now = Nanoseconds(0);
    for round in 0..5 {
        let stop = Arc::new(AtomicBool::new(false));
        let burner = std::thread::Builder::new().name(format!("vcpu{round}"));
        let flag = Arc::clone(&stop);
        let burner = burner
            .spawn(move || {
                while !flag.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
            .unwrap();
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            readings.clear_values();
            // Other tests' threads in this process may end when one begins: the number of threads says nothing.
            now = Nanoseconds(now.0 + LIST_AGAIN.0);
            threads.read(now, &mut readings).unwrap();
            let after = Snapshot::from_readings(Nanoseconds(0), &readings);
            for metric in [counter::CPU_VCPU, counter::CPU_EMULATOR, counter::CPU_VHOST] {
                let step = after.since(&before, &Owner::Target, metric).unwrap();
                assert!(step.value >= 0.0, "{metric} fell by {step}");
            }
            before = after;
        }
        stop.store(true, Ordering::Relaxed);
        burner.join().unwrap();
    }
    let burnt = before
        .since(&first, &Owner::Target, counter::CPU_VCPU)
        .unwrap();
    assert!(burnt.value > 1e6, "five busy threads left {burnt}");
}

#[test]
fn a_vmm_that_vanishes_is_an_error_also_when_its_number_is_reused() {
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let subject = Subject {
        vmm: Some(child.id()),
        ..subject()
    };
    let mut threads = VmmThreads::open(&subject, Path::new("/proc")).unwrap();
    let mut readings = Readings::default();
    threads.read(Nanoseconds(0), &mut readings).unwrap();
    // The successor's clock: a later process with the same number must not be charged to this VMM.
    threads.clock = process_clock(std::process::id());
    child.kill().unwrap();
    child.wait().unwrap();
    readings.clear_values();
    let error = threads.read(Nanoseconds(1), &mut readings).unwrap_err();
    assert!(error.to_string().contains("/task"), "{error}");
    assert_eq!(readings.values().count(), 0);
}
