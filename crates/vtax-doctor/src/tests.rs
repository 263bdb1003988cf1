//! The doctor on hosts made of files, and on the host that runs the tests.

use super::*;
use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use vtax_host::fake_host::FakeHost;

type RunFake = dyn Fn(&str, &[&str]) -> io::Result<ProgramOutput>;

/// A host's behaviour, to be chosen by each test.
struct FakeProbes {
    device: KvmDevice,
    boot: KvmBoot,
    /// What a program prints: its name and first argument to output.
    run: Box<RunFake>,
    /// Whether events open; those that do share one counter value.
    counters: fn(CounterEvent) -> io::Result<()>,
    counted: Rc<RefCell<u64>>,
    load: Box<dyn Fn()>,
    bpf: bool,
    free_space: u64,
}

impl Default for FakeProbes {
    fn default() -> Self {
        Self {
            device: KvmDevice::CreatesVms,
            boot: KvmBoot::Boots("to its init in 1.2 s".to_owned()),
            run: Box::new(|program, arguments| Ok(said(&answer_of(program, arguments)))),
            counters: |_| Ok(()),
            counted: Rc::default(),
            load: Box::new(|| ()),
            bpf: true,
            free_space: 100 << 30,
        }
    }
}

/// What programs print where all is well.
fn answer_of(program: &str, arguments: &[&str]) -> String {
    match (program, arguments.first().copied()) {
        ("qemu-system-x86_64", Some("-accel")) => {
            "Accelerators supported in QEMU binary:\ntcg\nkvm\n".to_owned()
        }
        ("unshare", Some("--net")) => {
            "netns yes\nbridge yes\nveth yes\ntap yes\ntbf yes\nnetem yes\n".to_owned()
        }
        _ => format!("{program} 1.2.3\n"),
    }
}

fn said(stdout: &str) -> ProgramOutput {
    ProgramOutput {
        success: true,
        stdout: stdout.to_owned(),
        stderr: String::new(),
    }
}

fn failed(stderr: &str) -> ProgramOutput {
    ProgramOutput {
        success: false,
        stdout: String::new(),
        stderr: stderr.to_owned(),
    }
}

impl Probes for FakeProbes {
    fn boot_on_kvm(&self) -> KvmBoot {
        self.boot.clone()
    }

    fn kvm_device(&self, device: &Path) -> KvmDevice {
        if device.exists() {
            self.device.clone()
        } else {
            KvmDevice::Missing
        }
    }

    fn open_device(&self, _device: &Path) -> io::Result<()> {
        Ok(())
    }

    fn run(
        &self,
        program: &Path,
        arguments: &[&str],
        _limit: Duration,
    ) -> io::Result<ProgramOutput> {
        (self.run)(&program.file_name().unwrap().to_string_lossy(), arguments)
    }

    fn open_counter(&self, event: CounterEvent) -> io::Result<ReadCounter> {
        (self.counters)(event)?;
        let counted = self.counted.clone();
        Ok(Box::new(move || Ok(*counted.borrow())))
    }

    fn load_bpf(&self, _program_type: u32) -> io::Result<()> {
        if self.bpf {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::EPERM))
        }
    }

    fn load_cpus(&self) {
        (self.load)();
    }

    fn free_space(&self, _path: &Path) -> Option<u64> {
        Some(self.free_space)
    }
}

const PROGRAMS: [&str; 11] = [
    "qemu-system-x86_64",
    "mmdebstrap",
    "mke2fs",
    "cpio",
    "ip",
    "tc",
    "ethtool",
    "unshare",
    "nsenter",
    "setpriv",
    "runc",
];

fn with_programs(host: FakeHost) -> FakeHost {
    for program in PROGRAMS {
        host.program(program, "1.2.3");
    }
    host
}

fn examined(host: &FakeHost, probes: &FakeProbes) -> Vec<Finding> {
    let options = Options {
        probes,
        scan_wall_meters: false,
        signals: None,
        storage: host.path(""),
    };
    examine(&host.roots, &options)
}

#[track_caller]
fn finding<'a>(findings: &'a [Finding], topic: Topic, name: &str) -> &'a Finding {
    findings
        .iter()
        .find(|finding| finding.topic == topic && finding.name == name)
        .unwrap_or_else(|| panic!("no finding {name}"))
}

#[track_caller]
fn assert_finding(findings: &[Finding], topic: Topic, name: &str, answer: Answer, evidence: &str) {
    let finding = finding(findings, topic, name);
    assert!(
        finding.answer == answer && finding.evidence.contains(evidence),
        "{finding:?}"
    );
}

#[test]
fn a_server_with_everything_can_use_every_platform_and_both_rapl_ways() {
    let host = with_programs(FakeHost::intel_server());
    host.file("sys/bus/event_source/devices/power/type", "9\n");
    host.file("sys/bus/event_source/devices/power/cpumask", "0,4\n");
    host.file(
        "sys/bus/event_source/devices/power/events/energy-pkg",
        "event=0x02\n",
    );
    host.file(
        "sys/bus/event_source/devices/power/events/energy-pkg.scale",
        "2.3e-10\n",
    );
    host.file("sys/kernel/tracing/events/kvm/kvm_exit/id", "512\n");
    host.file("sys/kernel/btf/vmlinux", "");
    let counted: Rc<RefCell<u64>> = Rc::default();
    let zone = host.path("sys/class/powercap/intel-rapl:1/energy_uj");
    let probes = FakeProbes {
        counted: counted.clone(),
        load: Box::new(move || {
            *counted.borrow_mut() += 1000;
            std::fs::write(&zone, counted.borrow().to_string()).unwrap();
        }),
        ..FakeProbes::default()
    };
    let findings = examined(&host, &probes);
    assert_finding(
        &findings,
        Topic::Kvm,
        "KVM",
        Answer::Yes,
        "a stock kernel boots: to its init in 1.2 s (backend kvm_intel)",
    );
    assert_finding(
        &findings,
        Topic::Kvm,
        "nested KVM",
        Answer::Yes,
        "kvm_intel",
    );
    assert_finding(
        &findings,
        Topic::Containers,
        "control groups",
        Answer::Yes,
        "v2: cpuset cpu io memory pids",
    );
    assert_finding(
        &findings,
        Topic::Network,
        "tc netem",
        Answer::Yes,
        "created",
    );
    assert_finding(
        &findings,
        Topic::Energy,
        "RAPL (perf)",
        Answer::Yes,
        "energy-pkg moved",
    );
    assert_finding(
        &findings,
        Topic::Energy,
        "RAPL (powercap)",
        Answer::Yes,
        "package-1 moved",
    );
    assert_finding(
        &findings,
        Topic::Counters,
        "hardware counters",
        Answer::Yes,
        "cycles",
    );
    assert_finding(
        &findings,
        Topic::Counters,
        "tracepoints",
        Answer::Yes,
        "kvm:kvm_exit",
    );
    assert_finding(
        &findings,
        Topic::Cpu,
        "cpufreq governors",
        Answer::Yes,
        "powersave in use",
    );
    assert_finding(&findings, Topic::Cpu, "bare metal", Answer::Yes, "");
    assert_finding(
        &findings,
        Topic::Limits,
        "open files",
        Answer::Yes,
        "1024 now, up to 524288",
    );
    let summary = summarize(&findings);
    assert!(
        summary
            .platforms
            .iter()
            // The hypervisor is below a host or it is not: nothing can be installed in its place.
            .all(|platform| (platform.answer == Answer::Yes) == (platform.name != "xen")),
        "{summary:?}"
    );
    assert_eq!(summary.meters, ["RAPL (perf)", "RAPL (powercap)", "model"]);
    assert_eq!(summary.install, None);
    assert!(summary.can_run());
}

#[test]
fn peer_bug_rapl_counters_that_never_move_count_as_absent() {
    let host = FakeHost::intel_server();
    host.file("sys/bus/event_source/devices/power/type", "9\n");
    host.file(
        "sys/bus/event_source/devices/power/events/energy-pkg",
        "event=0x02\n",
    );
    let findings = examined(&host, &FakeProbes::default());
    assert_finding(
        &findings,
        Topic::Energy,
        "RAPL (powercap)",
        Answer::No,
        "did not move under load",
    );
    assert_finding(
        &findings,
        Topic::Energy,
        "RAPL (perf)",
        Answer::No,
        "did not move under load",
    );
    assert_finding(
        &findings,
        Topic::Counters,
        "hardware counters",
        Answer::No,
        "did not move under load",
    );
    assert_eq!(summarize(&findings).meters, ["model"]);
}

#[test]
fn peer_bug_only_the_first_socket_is_looked_at() {
    let host = FakeHost::intel_server();
    let second = host.path("sys/class/powercap/intel-rapl:1/energy_uj");
    let probes = FakeProbes {
        load: Box::new(move || std::fs::write(&second, "262143329000").unwrap()),
        ..FakeProbes::default()
    };
    let findings = examined(&host, &probes);
    assert_finding(
        &findings,
        Topic::Energy,
        "RAPL (powercap)",
        Answer::Yes,
        "package-1 moved",
    );
}

#[test]
fn kvm_that_opens_and_does_not_boot_is_told_apart_from_one_that_does_not_open() {
    let host = with_programs(FakeHost::cloud_vm());
    host.directory("sys/module/kvm_pvm");
    let kvm = |probes: &FakeProbes| finding(&examined(&host, probes), Topic::Kvm, "KVM").clone();

    let missing = kvm(&FakeProbes::default());
    assert!(
        missing.answer == Answer::No && missing.evidence == "/dev/kvm does not exist",
        "{missing:?}"
    );

    host.file("dev/kvm", "");
    let closed = kvm(&FakeProbes {
        device: KvmDevice::Closed("Permission denied".to_owned()),
        ..FakeProbes::default()
    });
    assert!(
        closed.evidence.contains("does not open: Permission denied")
            && closed.remedy.unwrap().contains("adduser")
    );

    let no_vm = kvm(&FakeProbes {
        device: KvmDevice::NoVm("Device or resource busy".to_owned()),
        ..FakeProbes::default()
    });
    assert!(
        no_vm.answer == Answer::No && no_vm.evidence.contains("opens but creates no VM"),
        "{no_vm:?}"
    );

    let dead = FakeProbes {
        boot: KvmBoot::Fails("SeaBIOS\r\nno output in 10 s\n\n".to_owned()),
        ..FakeProbes::default()
    };
    let dead_finding = kvm(&dead);
    assert_eq!(dead_finding.answer, Answer::No);
    assert_eq!(
        dead_finding.evidence,
        "/dev/kvm opens and creates VMs, but a stock kernel does not boot (backend kvm_pvm): no output in 10 s"
    );
    let summary = summarize(&examined(&host, &dead));
    let qemu = summary
        .platforms
        .iter()
        .find(|platform| platform.name == "qemu")
        .unwrap();
    assert!(
        qemu.answer == Answer::Partly && qemu.reason.contains("TCG"),
        "{qemu:?}"
    );

    let untried = kvm(&FakeProbes {
        boot: KvmBoot::NotTried("no kernel at hand".to_owned()),
        ..FakeProbes::default()
    });
    assert_eq!(
        untried.answer,
        Answer::Partly,
        "an open device proves nothing"
    );
}

#[test]
fn a_dom0_counts_only_when_its_toolstack_answers() {
    let host = with_programs(FakeHost::intel_server());
    let xen = |probes: &FakeProbes| finding(&examined(&host, probes), Topic::Kvm, "Xen").clone();
    let none = xen(&FakeProbes::default());
    assert!(
        none.answer == Answer::No && none.evidence.contains("does not run on Xen"),
        "{none:?}"
    );
    host.file("sys/hypervisor/type", "xen\n");
    host.file("sys/hypervisor/version/major", "4\n");
    host.file("sys/hypervisor/version/minor", "17\n");
    host.file("proc/xen/capabilities", "");
    assert!(
        xen(&FakeProbes::default())
            .evidence
            .contains("a guest of Xen")
    );
    host.file("proc/xen/capabilities", "control_d\n");
    let bare = xen(&FakeProbes::default());
    assert_eq!(bare.package.as_deref(), Some("xen-utils-4.17"));
    host.program("xl", "4.17");
    let answers = FakeProbes {
        run: Box::new(|program, arguments| {
            Ok(said(&match (program, arguments.first().copied()) {
                ("xl", Some("list")) => "Name ID Mem\nDomain-0 0 1536\nweb 1 512\n".to_owned(),
                _ => answer_of(program, arguments),
            }))
        }),
        ..FakeProbes::default()
    };
    let works = xen(&answers);
    assert_eq!(works.answer, Answer::Yes);
    assert_eq!(
        works.evidence,
        "this host is the Dom0 of Xen 4.17; xl lists 2 domains"
    );
    assert!(
        summarize(&examined(&host, &answers))
            .platforms
            .iter()
            .any(|platform| platform.name == "xen" && platform.answer == Answer::Yes)
    );
    let fails = FakeProbes {
        run: Box::new(|program, arguments| {
            Ok(match (program, arguments.first().copied()) {
                ("xl", Some("list")) => failed("libxl: error: xs_open failed\n"),
                _ => said(&answer_of(program, arguments)),
            })
        }),
        ..FakeProbes::default()
    };
    let silent = xen(&fails);
    assert!(
        silent.answer == Answer::No && silent.evidence.contains("xs_open failed"),
        "{silent:?}"
    );
}

#[test]
fn a_missing_kvm_device_names_the_module_that_fits_the_processor() {
    for (host, module) in [
        (FakeHost::intel_server(), "modprobe kvm_intel"),
        (FakeHost::amd_desktop(), "modprobe kvm_amd"),
    ] {
        host.remove("dev/kvm");
        let findings = examined(&host, &FakeProbes::default());
        assert!(
            finding(&findings, Topic::Kvm, "KVM")
                .remedy
                .as_deref()
                .unwrap()
                .contains(module)
        );
    }
}

#[test]
fn control_group_layouts_are_told_with_their_controllers() {
    let probes = FakeProbes::default();
    let v1 = examined(&FakeHost::amd_desktop(), &probes);
    assert_finding(
        &v1,
        Topic::Containers,
        "control groups",
        Answer::Yes,
        "v1: cpu cpuacct cpuset memory name=systemd",
    );
    let hybrid = examined(&FakeHost::cloud_vm(), &probes);
    assert_finding(
        &hybrid,
        Topic::Containers,
        "control groups",
        Answer::Yes,
        "on v1; v2 without controllers",
    );
    let host = FakeHost::intel_server();
    host.cgroups_v2("cpu pids");
    let poor = examined(&host, &probes);
    assert_finding(
        &poor,
        Topic::Containers,
        "control groups",
        Answer::Partly,
        "v2: cpu pids",
    );
    assert!(
        finding(&poor, Topic::Containers, "control groups")
            .remedy
            .as_deref()
            .unwrap()
            .contains("no controller cpuset, memory")
    );
    let none = examined(&FakeHost::empty(), &probes);
    assert_finding(
        &none,
        Topic::Containers,
        "control groups",
        Answer::No,
        "none is mounted",
    );
}

#[test]
fn a_runtime_counts_only_if_it_runs_a_container_on_this_layout() {
    let host = with_programs(FakeHost::cloud_vm());
    host.program("crun", "crun version 1.8.1");
    let probes = FakeProbes {
        run: Box::new(|program, arguments| match (program, arguments) {
            ("crun", ["--root", _, "run", ..]) => Ok(failed(
                "time=\"2026-01-01\" level=error msg=\"cgroups in \\\"hybrid\\\" mode not supported\"\n",
            )),
            _ => Ok(said(&answer_of(program, arguments))),
        }),
        ..FakeProbes::default()
    };
    let findings = examined(&host, &probes);
    assert_finding(
        &findings,
        Topic::Containers,
        "runc",
        Answer::Yes,
        "(hybrid)",
    );
    assert_finding(
        &findings,
        Topic::Containers,
        "crun",
        Answer::No,
        "(hybrid): cgroups in \"hybrid\" mode not supported",
    );
    let container = summarize(&findings)
        .platforms
        .into_iter()
        .find(|platform| platform.name == "container")
        .unwrap();
    assert_eq!(
        (container.answer, container.reason.as_str()),
        (Answer::Yes, "with runc")
    );
}

#[test]
fn refused_namespaces_are_told_once() {
    let host = with_programs(FakeHost::intel_server());
    let probes = FakeProbes {
        run: Box::new(|program, arguments| match program {
            "unshare" => Ok(failed("unshare: unshare failed: Operation not permitted\n")),
            _ => Ok(said(&answer_of(program, arguments))),
        }),
        ..FakeProbes::default()
    };
    let findings = examined(&host, &probes);
    assert_finding(
        &findings,
        Topic::Network,
        "network namespace",
        Answer::No,
        "unshare failed: Operation not permitted",
    );
    let tap = finding(&findings, Topic::Network, "tap");
    assert_eq!(tap.remedy.as_deref(), Some("see network namespace"));
}

#[test]
fn kernels_without_a_device_kind_say_so_in_their_words() {
    let host = with_programs(FakeHost::cloud_vm());
    let probes = FakeProbes {
        run: Box::new(|program, arguments| match program {
            "unshare" => Ok(said(
                "netns yes\nbridge no RTNETLINK answers: Operation not supported\nveth yes\ntap yes\ntbf yes\n",
            )),
            _ => Ok(said(&answer_of(program, arguments))),
        }),
        ..FakeProbes::default()
    };
    let findings = examined(&host, &probes);
    assert_finding(
        &findings,
        Topic::Network,
        "bridge",
        Answer::No,
        "RTNETLINK answers: Operation not supported",
    );
    assert_finding(
        &findings,
        Topic::Network,
        "tc netem",
        Answer::No,
        "did not get this far",
    );
    let native = summarize(&findings).platforms.remove(0);
    assert_eq!(
        (native.answer, native.reason.as_str()),
        (Answer::No, "lacks bridge")
    );
}

#[test]
fn missing_programs_give_one_install_line_without_what_is_optional() {
    let host = FakeHost::intel_server();
    let findings = examined(&host, &FakeProbes::default());
    assert_eq!(
        summarize(&findings).install.as_deref(),
        Some(
            "apt-get install cpio crun e2fsprogs ethtool iproute2 mmdebstrap qemu-system-x86 runc util-linux"
        )
    );
    assert!(
        finding(&findings, Topic::Programs, "sigrok-cli")
            .remedy
            .as_deref()
            .unwrap()
            .starts_with("optional")
    );
}

#[test]
fn without_root_each_missing_capability_says_what_it_costs() {
    let host = with_programs(FakeHost::intel_server());
    host.file(
        "proc/self/status",
        "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n",
    );
    let findings = examined(&host, &FakeProbes::default());
    assert_finding(
        &findings,
        Topic::Limits,
        "privileges",
        Answer::No,
        "user 1000, 9 of 9",
    );
    assert!(
        finding(&findings, Topic::Limits, "privileges")
            .remedy
            .as_deref()
            .unwrap()
            .contains("without root these work")
    );
    assert!(
        finding(&findings, Topic::Limits, "CAP_NET_ADMIN")
            .remedy
            .as_deref()
            .unwrap()
            .contains("bridges")
    );
    assert!(
        summarize(&findings)
            .platforms
            .iter()
            .all(|platform| platform.answer == Answer::No && platform.reason.contains("root"))
    );

    // A container's root without CAP_PERFMON and CAP_BPF but with CAP_SYS_ADMIN has both in effect.
    host.file(
        "proc/self/status",
        "Uid:\t0\t0\t0\t0\nCapEff:\t0000003fffffffff\n",
    );
    let findings = examined(&host, &FakeProbes::default());
    assert_finding(&findings, Topic::Limits, "privileges", Answer::Yes, "root");
}

#[test]
fn refused_counters_say_which_setting_refused_them() {
    let host = FakeHost::intel_server();
    host.file("proc/sys/kernel/perf_event_paranoid", "3\n");
    let probes = FakeProbes {
        counters: |_| Err(io::Error::from_raw_os_error(libc::EACCES)),
        bpf: false,
        ..FakeProbes::default()
    };
    let findings = examined(&host, &probes);
    assert_finding(
        &findings,
        Topic::Counters,
        "hardware counters",
        Answer::No,
        "Permission denied (kernel.perf_event_paranoid = 3)",
    );
    assert_finding(
        &findings,
        Topic::Counters,
        "BPF with BTF",
        Answer::No,
        "Operation not permitted; BTF is missing",
    );
}

#[test]
fn counters_that_exist_in_part_are_named() {
    let host = FakeHost::intel_server();
    let counted: Rc<RefCell<u64>> = Rc::default();
    let probes = FakeProbes {
        counters: |event| match event.config {
            3 => Err(io::Error::from_raw_os_error(libc::ENOENT)),
            _ => Ok(()),
        },
        counted: counted.clone(),
        load: Box::new(move || *counted.borrow_mut() += 1),
        ..FakeProbes::default()
    };
    let findings = examined(&host, &probes);
    assert_finding(
        &findings,
        Topic::Counters,
        "hardware counters",
        Answer::Partly,
        "cycles, instructions, LLC references count; LLC misses do not",
    );
}

#[test]
fn sensors_and_server_meters_are_found() {
    let host = FakeHost::intel_server();
    host.file("sys/class/hwmon/hwmon3/name", "power_meter\n");
    host.file("sys/class/hwmon/hwmon3/power1_average", "183000000\n");
    host.file("sys/class/hwmon/hwmon3/power1_cap", "500000000\n");
    host.file("dev/ipmi0", "");
    host.program("ipmitool", "");
    let probes = FakeProbes {
        run: Box::new(|program, arguments| match program {
            "ipmitool" => Ok(said(
                "\n    Instantaneous power reading:                   220 Watts\n    Minimum …",
            )),
            _ => Ok(said(&answer_of(program, arguments))),
        }),
        ..FakeProbes::default()
    };
    let findings = examined(&host, &probes);
    assert_finding(
        &findings,
        Topic::Energy,
        "hwmon",
        Answer::Yes,
        "power_meter power1_average",
    );
    assert_finding(
        &findings,
        Topic::Energy,
        "IPMI DCMI",
        Answer::Yes,
        "220 Watts",
    );
}

#[test]
fn a_scan_finds_wall_meters_and_ignores_the_demo_device() {
    let host = FakeHost::intel_server();
    host.program("sigrok-cli", "");
    let scan = |answer: &'static str| {
        let probes = FakeProbes {
            run: Box::new(move |_, _| Ok(said(answer))),
            ..FakeProbes::default()
        };
        let options = Options {
            probes: &probes,
            scan_wall_meters: true,
            signals: None,
            storage: host.path(""),
        };
        finding(&examine(&host.roots, &options), Topic::Energy, "wall meter").clone()
    };
    let none =
        scan("The following devices were found:\ndemo - Demo device with 13 channels: D0 D1\n");
    assert_eq!(none.answer, Answer::No);
    let meter = scan(
        "The following devices were found:\nuni-t-ut61e:conn=1.4 - UNI-T UT61E with 1 channel: P1\n",
    );
    assert!(
        meter.answer == Answer::Yes && meter.evidence.starts_with("uni-t-ut61e"),
        "{meter:?}"
    );
}

#[test]
fn what_disturbs_measurements_is_partly() {
    let host = FakeHost::intel_server();
    host.file("sys/kernel/mm/ksm/run", "1\n");
    host.file(
        "proc/swaps",
        "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n",
    );
    host.file(
        "proc/meminfo",
        "MemTotal: 4000000 kB\nMemAvailable: 900000 kB\nSwapTotal: 2097152 kB\n",
    );
    host.file(
        "sys/devices/system/clocksource/clocksource0/current_clocksource",
        "hpet\n",
    );
    host.file(
        "sys/devices/system/cpu/vulnerabilities/spectre_v2",
        "Mitigation: IBRS; BHI: Vulnerable\n",
    );
    host.file("proc/self/cgroup", "0::/\n");
    host.file("sys/fs/cgroup/cpu.max", "200000 100000\n");
    let findings = examined(
        &host,
        &FakeProbes {
            free_space: 1 << 30,
            ..FakeProbes::default()
        },
    );
    assert_finding(&findings, Topic::Memory, "no KSM", Answer::Partly, "scans");
    assert_finding(
        &findings,
        Topic::Memory,
        "no swap",
        Answer::Partly,
        "2.0 GiB",
    );
    assert_finding(
        &findings,
        Topic::Memory,
        "free memory",
        Answer::Partly,
        "0.9 GiB",
    );
    assert_finding(&findings, Topic::Memory, "free disk", Answer::No, "1.0 GiB");
    assert_finding(
        &findings,
        Topic::Cpu,
        "clock source",
        Answer::Partly,
        "hpet",
    );
    assert_finding(
        &findings,
        Topic::Cpu,
        "mitigations",
        Answer::Partly,
        "spectre_v2",
    );
    assert_finding(
        &findings,
        Topic::Cpu,
        "whole CPUs",
        Answer::Partly,
        "2.00 CPUs",
    );
}

#[test]
fn an_empty_host_is_examined_to_the_end() {
    let findings = examined(&FakeHost::empty(), &FakeProbes::default());
    assert!(
        findings
            .iter()
            .any(|finding| finding.topic == Topic::Programs)
    );
    let summary = summarize(&findings);
    assert!(
        summary
            .platforms
            .iter()
            .all(|platform| platform.answer == Answer::No)
    );
    assert!(!summary.can_run());
}

#[test]
fn a_host_that_only_emulates_can_run() {
    let host = with_programs(FakeHost::cloud_vm());
    assert!(summarize(&examined(&host, &FakeProbes::default())).can_run());
}

#[test]
fn every_no_that_can_be_helped_has_a_remedy_and_every_package_is_in_it() {
    for host in [
        FakeHost::empty(),
        FakeHost::intel_server(),
        FakeHost::amd_desktop(),
        FakeHost::cloud_vm(),
    ] {
        for finding in examined(&host, &FakeProbes::default()) {
            let helpless = ["NVML", "nested KVM", "hwmon", "KVM backend", "RAPL (perf)"]
                .contains(&finding.name.as_str());
            assert!(
                finding.answer == Answer::Yes || finding.remedy.is_some() || helpless,
                "{finding:?}"
            );
            if let Some(package) = &finding.package {
                // The one command of the summary is made of these.
                assert!(
                    finding
                        .remedy
                        .as_deref()
                        .unwrap()
                        .contains(package.as_str()),
                    "{finding:?}"
                );
            }
        }
    }
}

#[test]
fn reports_stay_within_eighty_columns_and_are_plain_off_a_terminal() {
    for host in [
        FakeHost::empty(),
        with_programs(FakeHost::intel_server()),
        FakeHost::cloud_vm(),
    ] {
        let findings = examined(
            &host,
            &FakeProbes {
                boot: KvmBoot::Fails("x".repeat(30)),
                ..FakeProbes::default()
            },
        );
        let page = render(
            &findings,
            Style {
                color: false,
                width: 80,
            },
        );
        assert!(!page.contains('\x1b'));
        for line in page.lines() {
            // Paths and commands are kept whole.
            let longest = line
                .split_whitespace()
                .map(|word| word.chars().count())
                .max()
                .unwrap_or(0);
            assert!(
                line.chars().count() <= 80 || longest > 48 || line.contains("apt-get install cpio"),
                "{line}"
            );
        }
        let colored = render(
            &findings,
            Style {
                color: true,
                width: 80,
            },
        );
        assert!(colored.contains("\x1b[31mno"));
    }
}

#[test]
fn a_finding_is_a_line_and_its_remedy_is_indented_below() {
    let findings = [
        Finding::new(Topic::Network, "tap", Answer::Yes, "created and removed")
            .remedy("never shown"),
        Finding::new(
            Topic::Network,
            "vhost-net",
            Answer::No,
            "/dev/vhost-net does not exist",
        )
        .remedy("modprobe vhost_net"),
    ];
    let page = render(
        &findings,
        Style {
            color: false,
            width: 80,
        },
    );
    let expected = "Network\n  \
        yes     tap        created and removed\n  \
        no      vhost-net  /dev/vhost-net does not exist\n                     → modprobe vhost_net\n";
    assert!(page.starts_with(expected), "{page}");
}

#[test]
fn json_reports_read_back_as_the_same_findings() {
    let host = FakeHost::amd_desktop();
    let findings = examined(&host, &FakeProbes::default());
    let report: serde_json::Value = serde_json::from_str(&json(&findings).unwrap()).unwrap();
    let read: Vec<Finding> = serde_json::from_value(report["findings"].clone()).unwrap();
    assert_eq!(read, findings);
    let summary: Summary = serde_json::from_value(report["summary"].clone()).unwrap();
    assert_eq!(summary, summarize(&findings));
    assert_eq!(report["findings"][0]["answer"], "yes");
}

/// What a host would have to lose if probes left something behind.
fn leftovers() -> Vec<String> {
    let mut left = Vec::new();
    for line in std::fs::read_to_string("/proc/net/dev")
        .unwrap_or_default()
        .lines()
        .skip(2)
    {
        left.push(line.split(':').next().unwrap_or_default().trim().to_owned());
    }
    let mounts = vtax_host::facts::CgroupLayout::detect(&Roots::host());
    for mount in mounts.v1.values().chain(mounts.v2.iter()) {
        left.extend(
            vtax_host::roots::names(mount)
                .into_iter()
                .filter(|name| name.contains("vtax-doctor")),
        );
    }
    left
}

#[test]
fn this_host_is_examined_for_real_and_nothing_is_left_behind() {
    let probes = HostProbes::default();
    let before = leftovers();
    let options = Options {
        probes: &probes,
        scan_wall_meters: false,
        signals: None,
        storage: std::env::temp_dir(),
    };
    let findings = examine(&Roots::host(), &options);
    assert_eq!(leftovers(), before);
    assert_ne!(
        finding(&findings, Topic::Kvm, "KVM").answer,
        Answer::Yes,
        "nothing was booted, so nothing is proved"
    );
    eprintln!(
        "{}",
        render(
            &findings,
            Style {
                color: false,
                width: 80
            }
        )
    );
    if finding(&findings, Topic::Limits, "privileges").answer != Answer::Yes {
        eprintln!("SKIPPED: real networks and containers need root");
        return;
    }
    for (topic, name, program) in [
        (Topic::Network, "veth", "ip"),
        (Topic::Containers, "runc", "runc"),
    ] {
        if Roots::host().program(program).is_none() {
            eprintln!("SKIPPED: {program} is not installed");
            continue;
        }
        let found = finding(&findings, topic, name);
        assert!(
            !found.evidence.is_empty() && !found.evidence.contains("not tried"),
            "{found:?}"
        );
    }
}

#[test]
fn a_program_that_hangs_is_killed_with_its_children() {
    let probes = HostProbes::default();
    let marker = format!("31.{}", std::process::id());
    let script = format!("sleep {marker} & sleep {marker}");
    let error = probes
        .run(
            Path::new("/bin/sh"),
            &["-c", &script],
            Duration::from_millis(200),
        )
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let alive = vtax_host::roots::names(Path::new("/proc"))
        .into_iter()
        .any(|process| {
            std::fs::read(Path::new("/proc").join(process).join("cmdline")).is_ok_and(|command| {
                String::from_utf8_lossy(&command).starts_with(&format!("sleep\0{marker}"))
            })
        });
    assert!(!alive, "a child outlived the probe");
}

#[test]
fn real_counters_count_what_this_thread_does() {
    // PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK: there on every kernel with perf.
    let event = CounterEvent {
        pmu: 1,
        config: 1,
        scope: CounterScope::ThisThread,
    };
    let probes = HostProbes::default();
    match probes.open_counter(event) {
        Ok(read) => {
            let seen = counters::watch(
                vec![counters::Watched {
                    name: "task clock".to_owned(),
                    read,
                }],
                &probes,
            );
            assert!(seen.iter().all(|seen| seen.moved));
        }
        Err(cause) => eprintln!("SKIPPED: perf_event_open: {cause}"),
    }
}
