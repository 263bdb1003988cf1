// SPDX-License-Identifier: Apache-2.0
//! Tests with a real guest of the standard image, booted without a cell: no bridge and no client.

use super::*;
use crate::image::{self, Recipe};
use crate::knobs;
use crate::platform::vm::surroundings::Network;
use crate::platform::{CommandLine, Target};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vtax_core::owner::Owner;
use vtax_host::settings::Level;

/// A directory instead of a cell; QEMU ends with the test.
struct Plain {
    _turn: MutexGuard<'static, ()>,
    dir: tempfile::TempDir,
    scratch: Option<PathBuf>,
}

impl Plain {
    fn new() -> Self {
        // One guest at a time, since emulated guests keep every core busy.
        static TURN: Mutex<()> = Mutex::new(());
        Self {
            _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner),
            dir: tempfile::tempdir().unwrap(),
            scratch: None,
        }
    }
}

impl Surroundings for Plain {
    fn command(&self, line: &CommandLine) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(line);
        command
    }

    fn owner(&self) -> Owner {
        Owner::Target
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn outside(&self, inside: &Path) -> PathBuf {
        inside.to_owned()
    }

    fn cgroups(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    fn network(&self) -> Network {
        // QEMU forwards ports from a loopback address, which differs for each test.
        static NUMBER: AtomicU8 = AtomicU8::new(1);
        let [.., high, low] = std::process::id().to_be_bytes();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Network {
            address: [127, high, low, number].into(),
            ..Network::default()
        }
    }

    fn scratch(&self) -> Option<&Path> {
        self.scratch.as_deref()
    }

    fn attach_tap(&self, _name: &str, _multi_queue: bool) -> Result<(), HostError> {
        Err(HostError::Other("no tap without a cell".into()))
    }

    fn answer_for_target(&self) -> Result<(), HostError> {
        Ok(())
    }
}

/// The standard image, from the same cache as in trials; `None`, with a message, where it is not available.
fn guest() -> Option<GuestFiles> {
    let found = image::cached(&Recipe::standard()).unwrap();
    if found.is_some() {
        return found;
    }
    for (program, package) in [
        ("mmdebstrap", "mmdebstrap"),
        ("qemu-system-x86_64", "qemu-system-x86"),
    ] {
        if Command::new(program).arg("--version").output().is_err() {
            eprintln!("SKIPPED: {program} is missing (apt-get install {package})");
            return None;
        }
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can build the guest image");
        return None;
    }
    match image::ensure(&Recipe::standard(), &mut |line| eprintln!("{line}")) {
        Ok(guest) => Some(guest),
        Err(error) => {
            eprintln!("SKIPPED: the guest image cannot be built: {error}");
            None
        }
    }
}

fn machine(levels: &[(&str, Level)]) -> Machine {
    let mut settings: Settings = levels.iter().cloned().collect();
    let set = |key: &str, value: &str| (key.to_owned(), Level::Text(value.into()));
    settings.0.extend([
        set("vm.accel", "tcg"),
        set("nic.backend", "user"),
        set("nic.ports", "65511"),
    ]);
    Machine::from_settings(&settings).unwrap()
}

fn words(line: &[&str]) -> CommandLine {
    line.iter().map(|word| (*word).to_owned()).collect()
}

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_guest_boots_runs_commands_counts_and_leaves_no_process() {
    let Some(guest) = guest() else { return };
    let image_before = std::fs::metadata(&guest.image).unwrap().modified().unwrap();
    let place = Plain::new();
    let machine = machine(&[
        ("vm.vcpus", Level::Integer(2)),
        ("vm.iothread", Level::Bool(true)),
    ]);
    let mut vm: Box<dyn Target> = Box::new(boot(machine, &guest, &place).unwrap());
    eprintln!("booted in {} s", vm.about().environment["vm.boot_seconds"]);
    assert_eq!(vm.about().source, vtax_core::Source::Emulated);
    assert_eq!(vm.about().environment["accel"], "tcg");

    let kernel = vm.run(&words(&["uname", "-r"]), LIMIT).unwrap();
    assert_eq!(kernel.code, 0);
    let release = String::from_utf8(kernel.stdout).unwrap();
    assert!(release.trim_end().ends_with("cloud-amd64"), "{release}");

    // An output much larger than one message, with known content.
    let file = format!("/boot/vmlinuz-{}", release.trim_end());
    let expected = std::fs::read(&guest.kernel).unwrap();
    let big = vm
        .run(&words(&["head", "-c", "5000000", &file]), LIMIT)
        .unwrap();
    assert!(
        big.stdout == expected[..5_000_000],
        "5 MB came back changed"
    );

    let odd = vm
        .run(
            &words(&[
                "sh",
                "-c",
                "echo \"$1\" >&2; exit 7",
                "x",
                "a 'b' \"c\" $d\n*",
            ]),
            LIMIT,
        )
        .unwrap();
    assert_eq!(
        (odd.code, odd.stderr.as_slice()),
        (7, b"a 'b' \"c\" $d\n*\n".as_slice())
    );
    assert_eq!(
        vm.run(&words(&["/no/such/program"]), LIMIT).unwrap().code,
        127
    );
    let killed = vm.run(&words(&["sh", "-c", "kill -9 $$"]), LIMIT).unwrap();
    assert_eq!(killed.code, 137);

    // PID 1 reaps orphans of commands.
    vm.run(&words(&["sh", "-c", "(sleep 0.1 &) ; true"]), LIMIT)
        .unwrap();
    vm.run(&words(&["sleep", "0.5"]), LIMIT).unwrap();
    let zombies = vm
        .run(&words(&["sh", "-c", "ps -eo stat= | grep -c ^Z"]), LIMIT)
        .unwrap();
    assert_eq!(zombies.stdout, b"0\n");

    let before = vm.inner_counters().unwrap();
    vm.run(&words(&["cat", "/proc/cpuinfo"]), LIMIT).unwrap();
    let after = vm.inner_counters().unwrap();
    for key in ["interrupts.total", "interrupts.LOC", "context_switches"] {
        assert!(
            after[key] > before[key],
            "{key}: {} then {}",
            before[key],
            after[key]
        );
    }
    assert!(after["cpu.busy_ns"] >= before["cpu.busy_ns"]);

    let subject = vm.about().subject.clone();
    let process = subject.vmm.unwrap();
    assert_eq!(subject.vcpu_threads.len(), 2);
    assert_eq!(subject.iothreads.len(), 1);
    for thread in subject.vcpu_threads.iter().chain(&subject.iothreads) {
        let name = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/comm")).unwrap();
        assert!(
            name.starts_with("CPU ") || name.starts_with("IO "),
            "{name}"
        );
    }

    let started = std::time::Instant::now();
    vm.stop().unwrap();
    eprintln!("stopped in {} ms", started.elapsed().as_millis());
    assert!(!Path::new(&format!("/proc/{process}")).exists());
    assert_eq!(
        std::fs::metadata(&guest.image).unwrap().modified().unwrap(),
        image_before
    );
}

fn boot_error(guest: &GuestFiles, levels: &[(&str, Level)]) -> String {
    let place = Plain::new();
    let started = std::time::Instant::now();
    let Err(error) = boot(machine(levels), guest, &place) else {
        panic!("it booted");
    };
    eprintln!("noticed after {:.1} s", started.elapsed().as_secs_f64());
    error.to_string()
}

#[test]
fn a_kernel_panic_is_noticed_at_once_and_its_reason_shown() {
    let Some(mut guest) = guest() else { return };
    let dir = tempfile::tempdir().unwrap();
    guest.initrd = dir.path().join("initrd, broken");
    std::fs::write(&guest.initrd, "no archive").unwrap();
    let text = boot_error(&guest, &[]);
    assert!(
        text.contains("panicked") && text.contains("Unable to mount root fs"),
        "{text}"
    );
}

#[test]
fn a_guest_whose_init_gives_up_says_why() {
    let Some(mut guest) = guest() else { return };
    let dir = tempfile::tempdir().unwrap();
    guest.image = dir.path().join("empty, image");
    std::fs::write(&guest.image, vec![0; 1 << 20]).unwrap();
    let text = boot_error(&guest, &[]);
    assert!(text.contains("cannot mount vda"), "{text}");
}

#[test]
fn a_qemu_that_refuses_its_options_is_quoted() {
    let Some(guest) = guest() else { return };
    let text = boot_error(&guest, &[("vm.cpu", Level::Text("no-such-cpu".into()))]);
    assert!(
        text.contains("no-such-cpu") && text.contains("QEMU:"),
        "{text}"
    );
}

#[test]
fn a_qemu_that_is_killed_is_distinguished_from_a_silent_agent() {
    let Some(guest) = guest() else { return };
    let place = Plain::new();
    let mut vm = boot(machine(&[]), &guest, &place).unwrap();
    let process = i32::try_from(vm.about().subject.vmm.unwrap()).unwrap();
    let process = rustix::process::Pid::from_raw(process).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    let error = vm.run(&words(&["true"]), LIMIT).unwrap_err();
    assert!(matches!(error, HostError::Program { .. }), "{error}");
    assert!(error.to_string().contains("signal: 9"), "{error}");
}

#[test]
fn the_kvm_verdict_comes_from_a_boot_and_is_kept() {
    let Some(guest) = guest() else { return };
    let verdict = kvm_boots(&guest);
    eprintln!("{verdict:#?}");
    if !Path::new("/dev/kvm").exists() {
        assert!(!verdict.boots && verdict.evidence.contains("/dev/kvm"));
        eprintln!("SKIPPED: the boot: no /dev/kvm");
        return;
    }
    assert!(!verdict.evidence.is_empty());
    assert!(verdict.backend.starts_with("kvm_") || !verdict.boots);
    assert_eq!(kvm_boots(&guest), verdict);
}

#[test]
fn knobs_are_set_read_back_seen_to_change_and_refused_with_the_reason_where_the_kernel_has_none() {
    let Some(guest) = guest() else { return };
    let place = Plain::new();
    let timer = [("vm.tx_timer", Level::Integer(150_000))];
    let mut vm = boot(machine(&timer), &guest, &place).unwrap();
    assert_eq!(vm.about().environment["vm.tx_timer"], "150000");
    let text = |value: &str| Level::Text(value.into());
    let wanted: Settings = [
        ("guest.napi_defer_hard_irqs", Level::Integer(2)),
        ("guest.gro_flush_timeout", Level::Integer(100_000)),
        ("guest.busy_poll", Level::Integer(50)),
        ("guest.coalesce", text("rx-frames 1 tx-usecs 0")),
        ("guest.ring", text("rx 128 tx 128")),
        ("guest.gro", Level::Bool(false)),
        ("guest.tso", Level::Bool(false)),
    ]
    .into_iter()
    .collect();
    let found = knobs::set(&mut vm, &wanted).unwrap();
    for (key, level) in &wanted.0 {
        assert_eq!(found[key], level.to_string());
    }
    vm.administer("echo 0 >/sys/class/net/eth0/napi_defer_hard_irqs; ethtool -K eth0 gro on")
        .unwrap();
    let changes = vtax_host::knobs::changes(&found, &knobs::readings(&mut vm, &wanted).unwrap());
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert!(changes[0].contains("guest.gro ") && changes[1].contains("`2` at its begin, `0`"));
    // QEMU's NIC has no coalescing; IRQ suspension came with Linux 6.13.
    for (key, level, why) in [
        ("guest.coalesce", text("rx-usecs 100"), "not supported"),
        (
            "guest.irq_suspend_timeout",
            Level::Integer(1),
            "6.13 or newer",
        ),
    ] {
        let refused = knobs::set(&mut vm, &[(key, level)].into_iter().collect());
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(key), "{error}");
    }
    Box::new(vm).stop().unwrap();
}
