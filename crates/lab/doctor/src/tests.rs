// SPDX-License-Identifier: Apache-2.0
//! Tests of the doctor on hosts made of files, and on the host that runs the tests.

use super::fake_probes::FakeProbes;
use super::*;
use vtax_host::fake_host::FakeHost;

const PLAIN: Style = Style {
    color: false,
    width: 80,
};

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

#[track_caller]
fn remedy<'a>(findings: &'a [Finding], topic: Topic, name: &str) -> &'a str {
    finding(findings, topic, name).remedy.as_deref().unwrap()
}

#[test]
fn a_server_with_everything_can_use_every_platform_that_answers() {
    let host = with_programs(FakeHost::intel_server());
    let probes = FakeProbes {
        answers: |name| name != "xen",
        ..FakeProbes::default()
    };
    let findings = examined(&host, &probes);
    for (topic, name, evidence) in [
        (
            Topic::Kvm,
            "KVM",
            "a stock kernel boots: to its init in 1.2 s (backend kvm_intel)",
        ),
        (Topic::Kvm, "nested KVM", "kvm_intel"),
        (
            Topic::Containers,
            "control groups",
            "v2: cpuset cpu io memory pids",
        ),
        (Topic::Network, "link delay", "tc netem"),
        (Topic::Energy, "powercap", "package-1"),
        (Topic::Counters, "hardware counters", "cycles"),
        (Topic::Cpu, "cpufreq governors", "powersave in use"),
        (Topic::Cpu, "bare metal", ""),
        (Topic::Limits, "open files", "1024 now, up to 524288"),
        (Topic::Platforms, "container", "with runc"),
        (Topic::Platforms, "qemu", "with KVM"),
        (Topic::Platforms, "cloud-hypervisor", "with KVM"),
        (Topic::Platforms, "firecracker", "with KVM"),
    ] {
        assert_finding(&findings, topic, name, Answer::Yes, evidence);
    }
    let xen = finding(&findings, Topic::Platforms, "xen");
    assert_eq!(
        (xen.answer, xen.remedy.as_deref()),
        (Answer::No, Some("bring xen"))
    );
    let summary = summarize(&findings);
    assert_eq!(summary.meters, ["powercap", "model"]);
    assert_eq!(summary.install, None);
    assert!(summary.can_run());
}

#[test]
fn kvm_that_opens_and_does_not_boot_is_distinguished_from_one_that_does_not_open() {
    let kvm = |findings: &[Finding], answer, evidence| {
        assert_finding(findings, Topic::Kvm, "KVM", answer, evidence);
    };
    let host = with_programs(FakeHost::cloud_vm());
    host.directory("sys/module/kvm_pvm");
    let missing = examined(&host, &FakeProbes::default());
    kvm(&missing, Answer::No, "/dev/kvm does not exist");
    host.file("dev/kvm", "");
    let dead = examined(
        &host,
        &FakeProbes {
            boot: KvmBoot::Fails("SeaBIOS\r\nno output in 10 s\n\n".to_owned()),
            ..FakeProbes::default()
        },
    );
    kvm(
        &dead,
        Answer::No,
        "/dev/kvm opens, but a stock kernel does not boot (backend kvm_pvm): no output in 10 s",
    );
    assert_finding(&dead, Topic::Platforms, "qemu", Answer::Partly, "with TCG");
    assert_finding(
        &dead,
        Topic::Platforms,
        "firecracker",
        Answer::No,
        "lacks a KVM",
    );
    let untried = examined(
        &host,
        &FakeProbes {
            boot: KvmBoot::NotTried("no kernel at hand".to_owned()),
            ..FakeProbes::default()
        },
    );
    // An open device does not confirm KVM.
    kvm(&untried, Answer::Partly, "not tried");
}

#[test]
fn a_missing_kvm_device_names_the_module_that_fits_the_processor() {
    for (host, module) in [
        (FakeHost::intel_server(), "modprobe kvm_intel"),
        (FakeHost::amd_desktop(), "modprobe kvm_amd"),
    ] {
        host.remove("dev/kvm");
        let findings = examined(&host, &FakeProbes::default());
        assert!(remedy(&findings, Topic::Kvm, "KVM").contains(module));
    }
}

#[test]
fn control_group_layouts_are_reported_with_their_controllers() {
    let groups = |findings: &[Finding], answer, evidence| {
        assert_finding(
            findings,
            Topic::Containers,
            "control groups",
            answer,
            evidence,
        );
    };
    let probes = FakeProbes::default();
    let v1 = examined(&FakeHost::amd_desktop(), &probes);
    groups(
        &v1,
        Answer::Yes,
        "v1: cpu cpuacct cpuset memory name=systemd",
    );
    let hybrid = examined(&FakeHost::cloud_vm(), &probes);
    groups(&hybrid, Answer::Yes, "on v1; v2 without controllers");
    let host = FakeHost::intel_server();
    host.cgroups_v2("cpu pids");
    let poor = examined(&host, &probes);
    groups(&poor, Answer::Partly, "v2: cpu pids");
    host.cgroups_v2("");
    let bare = examined(&host, &probes);
    groups(&bare, Answer::Partly, "v2 without controllers");
    assert!(
        remedy(&poor, Topic::Containers, "control groups").contains("no controller cpuset, memory")
    );
    let none = examined(&FakeHost::empty(), &probes);
    groups(&none, Answer::No, "none is mounted");
}

#[test]
fn one_runtime_that_runs_a_container_is_enough() {
    let host = with_programs(FakeHost::cloud_vm());
    let probes = FakeProbes {
        answers: |name| name != "crun",
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
    let crun = finding(&findings, Topic::Containers, "crun");
    assert_eq!(crun.answer, Answer::No);
    assert!(crun.remedy.as_deref().unwrap().contains("not needed"));
}

#[test]
fn without_a_cell_no_platform_can_run_whatever_its_own_check_says() {
    let host = with_programs(FakeHost::intel_server());
    let probes = FakeProbes {
        cell: |_| Err(HostError::Other("Operation not permitted".to_owned())),
        answers: |name| !name.starts_with("testbed:"),
        ..FakeProbes::default()
    };
    let findings = examined(&host, &probes);
    assert_finding(
        &findings,
        Topic::Network,
        "cell",
        Answer::No,
        "Operation not permitted",
    );
    assert!(findings.iter().all(|finding| finding.name != "link rate"));
    assert!(!summarize(&findings).can_run());
}

#[test]
fn a_link_emulation_that_the_kernel_lacks_says_which_setting_that_costs() {
    let host = with_programs(FakeHost::cloud_vm());
    let probes = FakeProbes {
        cell: |link| match link.delay_us {
            0 => Ok(()),
            _ => Err(HostError::Other("qdisc kind is unknown".to_owned())),
        },
        ..FakeProbes::default()
    };
    let findings = examined(&host, &probes);
    let delay = finding(&findings, Topic::Network, "link delay");
    assert_eq!(delay.answer, Answer::No);
    assert!(delay.remedy.as_deref().unwrap().contains("link.delay_us"));
    assert!(summarize(&findings).can_run());
}

#[test]
fn missing_programs_give_one_install_line_without_what_is_optional() {
    let host = FakeHost::intel_server();
    let findings = examined(&host, &FakeProbes::default());
    assert_eq!(
        summarize(&findings).install.as_deref(),
        Some(
            "apt-get install cpio e2fsprogs ethtool iproute2 mmdebstrap qemu-system-x86 runc util-linux"
        )
    );
    assert!(remedy(&findings, Topic::Programs, "sigrok-cli").starts_with("optional"));
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
        "user 1000, without any capability",
    );
    assert!(
        findings
            .iter()
            .all(|finding| !finding.name.starts_with("CAP_"))
    );

    // A process with some of them.
    host.file(
        "proc/self/status",
        "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000020\n",
    );
    let findings = examined(&host, &FakeProbes::default());
    assert_finding(&findings, Topic::Limits, "privileges", Answer::No, "8 of 9");
    assert!(remedy(&findings, Topic::Limits, "CAP_NET_ADMIN").contains("bridges"));

    // A container's root without CAP_PERFMON and CAP_BPF but with CAP_SYS_ADMIN has both in effect.
    host.file(
        "proc/self/status",
        "Uid:\t0\t0\t0\t0\nCapEff:\t0000003fffffffff\n",
    );
    let findings = examined(&host, &FakeProbes::default());
    assert_finding(&findings, Topic::Limits, "privileges", Answer::Yes, "root");
}

#[test]
fn an_ordinary_user_learns_what_works_without_root() {
    let host = with_programs(FakeHost::intel_server());
    host.file(
        "proc/self/status",
        "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n",
    );
    let probes = FakeProbes {
        cell: |_| {
            Err(HostError::Missing {
                what: "CAP_NET_ADMIN".to_owned(),
                remedy: "run as root".to_owned(),
            })
        },
        answers: |name| name.starts_with("testbed:"),
        ..FakeProbes::default()
    };
    let findings = examined(&host, &probes);
    let report = render(&findings, PLAIN);
    let (short, rest) = report.split_once("\n\n").unwrap();
    assert!(
        short.starts_with("In short\n  no      plans here"),
        "{short}"
    );
    for part in [
        "--place testbed:kvm",
        "without root",
        "top, record",
        "exporter",
        "web",
        "sudo vtax",
    ] {
        assert!(short.contains(part), "{part}: {short}");
    }
    assert_finding(&findings, Topic::Network, "cell", Answer::No, "needs root");
    assert!(!rest.contains("CAP_NET_ADMIN"), "{rest}");
    // A plan can run in an emulated host.
    assert!(summarize(&findings).can_run());
}

#[test]
fn guests_that_exist_are_reached_by_libvirt_ssh_and_a_pool() {
    let host = with_programs(FakeHost::intel_server());
    let probes = FakeProbes {
        answers: |name| name != "libvirt",
        ..FakeProbes::default()
    };
    let without = examined(&host, &probes);
    for name in ["libvirt", "ssh", "xenapi"] {
        assert_eq!(finding(&without, Topic::Places, name).answer, Answer::No);
    }
    assert_eq!(remedy(&without, Topic::Places, "libvirt"), "bring libvirt");
    assert!(remedy(&without, Topic::Places, "ssh").contains("openssh-client"));
    host.program("ssh", "OpenSSH_9.2");
    let with = examined(&host, &FakeProbes::default());
    for name in ["libvirt", "ssh", "xenapi", "testbed:kvm", "testbed:xen"] {
        assert_eq!(finding(&with, Topic::Places, name).answer, Answer::Yes);
    }
    assert_finding(
        &with,
        Topic::Places,
        "ssh",
        Answer::Yes,
        "1 key in ~/.ssh, no agent",
    );
    assert_finding(&with, Topic::Places, "podman", Answer::No, "not installed");
    host.program("podman", "4.3.1");
    let with_podman = examined(&host, &FakeProbes::default());
    assert_finding(&with_podman, Topic::Places, "podman", Answer::Yes, "4.3.1");
    let keyless = FakeProbes {
        answers: |name| name != "a key",
        ..FakeProbes::default()
    };
    let keyless = examined(&host, &keyless);
    assert_finding(&keyless, Topic::Places, "ssh", Answer::Partly, "0 keys");
    assert!(remedy(&keyless, Topic::Places, "ssh").contains("ssh-copy-id"));
    let places: Vec<String> = summarize(&with)
        .places
        .into_iter()
        .map(|place| place.name)
        .collect();
    assert_eq!(
        places,
        [
            "libvirt",
            "ssh",
            "xenapi",
            "podman",
            "docker",
            "testbed:kvm",
            "testbed:xen"
        ]
    );
}

#[test]
fn how_the_kernel_accounts_interrupts_is_reported_with_what_would_make_it_exact() {
    let host = FakeHost::intel_server();
    host.file("proc/sys/kernel/osrelease", "6.1.0\n");
    for (line, answer, evidence) in [
        ("CONFIG_IRQ_TIME_ACCOUNTING=y\n", Answer::Yes, "by a clock"),
        (
            "CONFIG_TICK_CPU_ACCOUNTING=y\n",
            Answer::Partly,
            "sampled at the kernel's tick",
        ),
    ] {
        host.file("boot/config-6.1.0", line);
        let findings = examined(&host, &FakeProbes::default());
        assert_finding(
            &findings,
            Topic::Counters,
            "interrupt time",
            answer,
            evidence,
        );
    }
}

#[test]
fn refused_counters_say_what_refused_them() {
    let probes = FakeProbes {
        answers: |name| name != "Hardware",
        ..FakeProbes::default()
    };
    let findings = examined(&FakeHost::intel_server(), &probes);
    assert_finding(
        &findings,
        Topic::Counters,
        "hardware counters",
        Answer::No,
        "kernel.perf_event_paranoid is 3",
    );
    assert_finding(&findings, Topic::Counters, "VM exits", Answer::Yes, "");
}

#[test]
fn a_meter_that_is_there_names_its_domains_and_one_that_is_not_its_reason() {
    let host = FakeHost::amd_desktop();
    host.file("proc/stat", "cpu 1 0 0 1 0\ncpu0 1 0 0 1 0\n");
    host.file("sys/class/hwmon/hwmon3/name", "power_meter\n");
    host.file("sys/class/hwmon/hwmon3/power1_average", "183000000\n");
    let findings = examined(&host, &FakeProbes::default());
    for (topic, name, answer, evidence) in [
        (Topic::Energy, "hwmon", Answer::Yes, "moved"),
        (Topic::Energy, "powercap", Answer::No, "zone"),
        (Topic::Energy, "model", Answer::Partly, "modelled"),
    ] {
        assert_finding(&findings, topic, name, answer, evidence);
    }
    assert_eq!(summarize(&findings).meters, ["hwmon", "model"]);
}

#[test]
fn a_scan_finds_wall_meters_and_ignores_the_demo_device() {
    let host = FakeHost::intel_server();
    let scan = |answer: &'static str| {
        let probes = FakeProbes {
            scan: answer,
            ..FakeProbes::default()
        };
        let options = Options {
            probes: &probes,
            scan_wall_meters: true,
            signals: None,
            storage: host.path(""),
        };
        let findings = examine(&host.roots, &options);
        finding(&findings, Topic::Energy, "scan for wall meters").clone()
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
    for (topic, name, answer, evidence) in [
        (Topic::Memory, "no KSM", Answer::Partly, "scans"),
        (Topic::Memory, "no swap", Answer::Partly, "2.0 GiB"),
        (Topic::Memory, "free memory", Answer::Partly, "0.9 GiB"),
        (Topic::Memory, "free disk", Answer::No, "1.0 GiB"),
        (Topic::Cpu, "clock source", Answer::Partly, "hpet"),
        (Topic::Cpu, "mitigations", Answer::Partly, "spectre_v2"),
        (Topic::Cpu, "whole CPUs", Answer::Partly, "2.00 CPUs"),
    ] {
        assert_finding(&findings, topic, name, answer, evidence);
    }
}

#[test]
fn an_empty_host_is_examined_to_the_end() {
    let probes = FakeProbes {
        answers: |_| false,
        ..FakeProbes::default()
    };
    let findings = examined(&FakeHost::empty(), &probes);
    let summary = summarize(&findings);
    assert_eq!(summary.platforms.len(), vtax_guest::platform::all().len());
    assert!(!summary.can_run());
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
            let helpless =
                ["nested KVM", "hwmon", "KVM backend", "model"].contains(&finding.name.as_str());
            assert!(
                finding.answer == Answer::Yes
                    || finding.remedy.is_some()
                    || finding.topic == Topic::Platforms
                    || helpless,
                "{finding:?}"
            );
            if let Some(package) = &finding.package {
                // The install command of the summary names these packages.
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
        let page = render(&findings, PLAIN);
        assert!(!page.contains('\x1b'));
        for line in page.lines() {
            // Paths and commands are not broken across lines.
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
                ..PLAIN
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
    let page = render(&findings, PLAIN);
    let expected = "\nNetwork\n  \
        yes     tap            created and removed\n  \
        no      vhost-net      /dev/vhost-net does not exist\n                         → modprobe vhost_net\n";
    assert!(page.starts_with("In short\n"), "{page}");
    assert!(page.ends_with(expected), "{page}");
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

/// The network devices of this host, and the control groups of probes, which a probe must remove.
fn leftovers() -> Vec<String> {
    let mut left = Vec::new();
    let devices = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names = devices
        .lines()
        .skip(2)
        .filter_map(|line| line.split(':').next());
    left.extend(names.map(|name| name.trim().to_owned()));
    let mounts = vtax_host::facts::CgroupLayout::detect(&Roots::host());
    for mount in mounts.v1.values().chain(mounts.v2.iter()) {
        left.extend(
            vtax_host::roots::names(mount)
                .into_iter()
                .filter(|name| name.contains("vtax-probe")),
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
    eprintln!("{}", render(&findings, PLAIN));
    if finding(&findings, Topic::Limits, "privileges").answer != Answer::Yes {
        eprintln!("SKIPPED: real networks and containers need root");
        return;
    }
    for (topic, name, program) in [
        (Topic::Network, "cell", "ip"),
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
