// SPDX-License-Identifier: Apache-2.0
//! Guests on fake hosts: every form of control groups, reused identities, and processes and groups that vanish during a
//! scan.

use super::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use vtax_core::owner::Owner;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A host below a temporary directory.
struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for directory in [
            "proc/1/ns",
            "sys/class/net",
            "sys/fs/cgroup",
            "dev",
            "run",
            "lib",
        ] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        symlink("net:[100]", root.path().join("proc/1/ns/net")).unwrap();
        Self(root)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn process(&self, pid: u32, line: &str, started: u64) {
        self.put(&format!("proc/{pid}/cmdline"), line.replace(' ', "\0"));
        self.put(&format!("proc/{pid}/comm"), "x\n");
        let zeros = "0 ".repeat(18);
        self.put(
            &format!("proc/{pid}/stat"),
            format!("{pid} (a) b)) S {zeros}{started} 0"),
        );
        self.put(
            &format!("proc/{pid}/cgroup"),
            "4:cpu,cpuacct:/vms\n0::/vms2\n",
        );
        let ns = self.path(&format!("proc/{pid}/ns"));
        fs::create_dir_all(&ns).unwrap();
        let _ = symlink("net:[100]", ns.join("net"));
    }

    fn kernel_thread(&self, pid: u32, name: &str) {
        self.put(&format!("proc/{pid}/cmdline"), "");
        self.put(&format!("proc/{pid}/comm"), format!("{name}\n"));
        let flags = 0x0020_8040;
        let zeros = "0 ".repeat(12);
        self.put(
            &format!("proc/{pid}/stat"),
            format!("{pid} ({name}) S 2 0 0 0 -1 {flags} {zeros}1 0"),
        );
    }

    fn end(&self, pid: u32) {
        fs::remove_dir_all(self.path(&format!("proc/{pid}"))).unwrap();
    }

    fn v1(&self) {
        self.put("sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", "0\n");
    }

    fn v2(&self) {
        self.put("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
    }

    fn group(&self, path: &str, processes: &str) {
        self.put(&format!("sys/fs/cgroup/{path}/cgroup.procs"), processes);
    }

    fn guests(&self) -> Guests {
        Guests::new(Roots::below(&self.path("")))
    }
}

fn names(guests: &Guests) -> Vec<String> {
    let mut names: Vec<String> = guests.iter().map(|guest| guest.name.clone()).collect();
    names.sort();
    names
}

#[test]
fn vms_of_every_monitor_are_found_and_others_are_not() {
    let host = Host::new();
    host.v2();
    host.process(10, "qemu-kvm -name guest=a,debug-threads=on -smp 2", 1);
    host.process(11, "cloud-hypervisor --api-socket /tmp/b.sock", 1);
    host.process(12, "firecracker --id c", 1);
    host.process(13, "vtax mvm run --image echo --count 9", 1);
    host.process(14, "bash -c qemu-kvm", 1);
    host.kernel_thread(15, "vhost-10");
    let mut guests = host.guests();
    guests.scan();
    assert_eq!(names(&guests), ["a", "b", "c", "echo x9"]);
    let a = guests.iter().find(|guest| guest.name == "a").unwrap();
    assert_eq!((a.cpus, a.process, a.is_new), (Some(2), Some(10), false));
    assert_eq!(a.group.as_deref(), Some(Path::new("vms2")));
    let helper = Helper {
        pid: 15,
        work: HelperWork::Vhost,
    };
    assert_eq!(a.helpers, [helper]);
}

#[test]
fn no_process_in_a_container_leaves_its_bill_by_calling_itself_a_monitor() {
    let host = Host::new();
    host.v2();
    host.group(&format!("docker/{ID}"), "10\n11\n12\n");
    host.process(9, "qemu-kvm -name b", 1);
    host.process(10, "qemu-system-x86_64 -name a", 1);
    host.process(11, "qemu-system-i386 -xen-domid 3", 1);
    host.process(12, "qemu-system-x86_64 -name vm", 1);
    for pid in 10..13 {
        host.put(
            &format!("proc/{pid}/cgroup"),
            format!("0::/docker/{ID}/sub\n"),
        );
    }
    fs::create_dir_all(host.path("proc/12/fd")).unwrap();
    symlink("anon_inode:kvm-vm", host.path("proc/12/fd/9")).unwrap();
    let mut guests = host.guests();
    for _ in 0..2 {
        guests.scan();
        assert_eq!(names(&guests), [&ID[..12], "b", "vm"], "one holds a VM");
    }
}

#[test]
fn no_process_bills_another_guest_by_a_kernel_threads_name() {
    let host = Host::new();
    host.v2();
    host.process(10, "qemu-kvm -name a", 1);
    // The process has cleared its arguments and set its name.
    host.process(20, "", 1);
    host.put("proc/20/comm", "vhost-10\n");
    let mut guests = host.guests();
    guests.scan();
    assert!(guests.iter().all(|guest| guest.helpers.is_empty()));
    host.end(20);
    host.kernel_thread(20, "vhost-10");
    guests.scan();
    assert_eq!(guests.iter().next().unwrap().helpers.len(), 1);
}

/// A line of `/proc/PID/maps` of a guest's memory with this inode.
fn memory(inode: u32) -> String {
    format!("7f00-7f10 rw-s 00000000 00:01 {inode} /memfd:memory-backend-memfd (deleted)\n")
}

#[test]
fn a_nic_that_maps_one_guests_memory_and_its_vhost_worker_are_that_guests() {
    let host = Host::new();
    host.v2();
    for (pid, name) in [(10, "a"), (11, "b")] {
        host.process(pid, &format!("qemu-kvm -name {name}"), 1);
        host.put(&format!("proc/{pid}/maps"), memory(pid));
    }
    host.process(20, "vtax-nic --config /etc/nic.toml", 1);
    host.put("proc/20/maps", memory(11));
    host.kernel_thread(21, "vhost-20");
    host.process(30, "vtax-nic --config /etc/other.toml", 1);
    host.put("proc/30/maps", memory(10) + &memory(11));
    host.kernel_thread(31, "vhost-30");
    host.process(40, "vtax-nic --socket-path /run/a.sock", 1);
    host.put("proc/40/maps", memory(99));
    host.put("sys/class/net/tap0/ifindex", "4\n");
    host.put("sys/class/net/tap0/iflink", "4\n");
    host.put("proc/20/fdinfo/5", "pos:\t0\niff:\ttap0\n");
    fs::create_dir_all(host.path("proc/20/fd")).unwrap();
    symlink("/dev/net/tun", host.path("proc/20/fd/5")).unwrap();
    let mut guests = host.guests();
    guests.scan();
    let named = |guests: &Guests, name: &str| {
        let mut guests = guests.iter().filter(|guest| guest.name == name);
        guests.next().unwrap().clone()
    };
    let helper = |pid, work| Helper { pid, work };
    let b = named(&guests, "b");
    let expected = [helper(20, HelperWork::Nic), helper(21, HelperWork::Vhost)];
    assert_eq!(b.helpers, expected);
    assert_eq!(
        b.devices[0].name, "tap0",
        "what comes from the tap is the guest's too"
    );
    assert_eq!(
        named(&guests, "a").helpers,
        [],
        "nobody can divide the time of several"
    );
    // Another process with the same number is not a NIC.
    host.end(20);
    host.process(20, "bash", 2);
    host.put("proc/20/maps", memory(11));
    for _ in 0..LOOK_AGAIN_LATER {
        guests.scan();
    }
    assert_eq!(named(&guests, "b").helpers, []);
}

#[test]
fn a_nic_in_a_container_of_its_own_is_the_containers() {
    let host = Host::new();
    host.v2();
    host.process(10, "qemu-kvm -name a", 1);
    host.process(20, "vtax-nic --socket-path /run/a.sock", 1);
    for pid in [10, 20] {
        host.put(&format!("proc/{pid}/maps"), memory(7));
    }
    host.put("proc/20/cgroup", format!("0::/docker/{ID}\n"));
    host.group(&format!("docker/{ID}"), "20\n");
    let mut guests = host.guests();
    guests.scan();
    let vm = guests.iter().find(|guest| guest.name == "a").unwrap();
    assert_eq!(vm.helpers, []);
}

#[test]
fn containers_are_found_on_v1_v2_and_hybrid_hosts() {
    for (prepare, prefix) in [
        (Host::v1 as fn(&Host), "cpu,cpuacct/"),
        (Host::v2, ""),
        (
            |host: &Host| {
                host.v1();
                host.put("sys/fs/cgroup/unified/cgroup.controllers", "");
            },
            "cpu,cpuacct/",
        ),
    ] {
        let host = Host::new();
        prepare(&host);
        host.process(20, "nginx", 1);
        fs::remove_file(host.path("proc/20/ns/net")).unwrap();
        symlink("net:[200]", host.path("proc/20/ns/net")).unwrap();
        host.group(&format!("{prefix}system.slice/docker-{ID}.scope"), "20\n");
        host.put(
            &format!("sys/fs/cgroup/{prefix}system.slice/docker-{ID}.scope/cpu.max"),
            "150000 100000\n",
        );
        let mut guests = host.guests();
        guests.scan();
        let guest = guests.iter().next().unwrap();
        assert_eq!(
            guest.name, "0123456789ab",
            "its id, where the engine stored no name"
        );
        assert_eq!(
            (guest.platform, guest.process, guest.cpus),
            (Platform::Docker, Some(20), Some(2))
        );
        assert_eq!(guest.devices.len(), 1);
        assert_eq!(
            (guest.devices[0].namespace, guest.devices[0].index),
            (200, 0)
        );
    }
}

/// Kepler used the number alone as the key, and the smaller times of a new process gave negative differences.
#[test]
fn a_process_number_that_is_used_again_is_another_guest() {
    let host = Host::new();
    host.v2();
    host.process(10, "qemu-kvm -name a", 1);
    let mut guests = host.guests();
    guests.scan();
    let first = guests.iter().next().unwrap().clone();
    // Both directories exist for a short time, so that their inodes differ.
    fs::rename(host.path("proc/10"), host.path("proc/old")).unwrap();
    host.process(10, "qemu-kvm -name b", 2);
    guests.scan();
    let second = guests.iter().next().unwrap().clone();
    assert_eq!(guests.len(), 1);
    assert_ne!(first.key, second.key);
    assert_ne!(first.number, second.number);
    assert_eq!((second.name.as_str(), second.is_new), ("b", true));
}

#[test]
fn a_shell_that_becomes_a_monitor_is_found_and_its_earlier_time_is_not_the_guests() {
    let host = Host::new();
    host.v2();
    host.process(10, "sh start-vm", 1);
    let mut guests = host.guests();
    guests.scan();
    assert!(guests.is_empty());
    host.process(10, "qemu-kvm -name a", 1);
    guests.scan();
    assert!(!guests.iter().next().unwrap().is_new);
}

#[test]
fn guests_that_end_vanish_and_a_group_made_anew_is_another_guest() {
    let host = Host::new();
    host.v2();
    host.process(10, "firecracker --id c", 1);
    let group = format!("docker/{ID}");
    host.group(&group, "");
    let mut guests = host.guests();
    guests.scan();
    assert_eq!(guests.len(), 2);
    let number = |guests: &Guests| {
        guests
            .iter()
            .find(|guest| guest.platform == Platform::Docker)
            .map(|guest| guest.number)
    };
    let before = number(&guests);
    host.end(10);
    fs::rename(
        host.path(&format!("sys/fs/cgroup/{group}")),
        host.path("old"),
    )
    .unwrap();
    host.group(&group, "");
    guests.scan();
    assert_eq!(guests.len(), 1);
    assert_ne!(number(&guests), before);
    fs::remove_dir_all(host.path("sys/fs/cgroup/docker")).unwrap();
    guests.scan();
    assert!(guests.is_empty());
}

/// Kepler merged all VMs without a name into one.
#[test]
fn guests_without_a_name_or_with_the_same_name_stay_apart() {
    let host = Host::new();
    host.v2();
    host.process(10, "qemu-kvm -m 512", 1);
    host.process(11, "qemu-kvm -m 512", 1);
    host.process(12, "qemu-kvm -name twin", 1);
    host.process(13, "qemu-kvm -name twin", 1);
    let mut guests = host.guests();
    guests.scan();
    let names = names(&guests);
    let distinct: HashSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), 4, "{names:?}");
    assert!(names.contains(&"qemu-10".to_owned()));
}

#[test]
fn hostile_names_come_out_harmless() {
    let host = Host::new();
    host.v2();
    let line = [
        b"qemu-kvm\0-name\0a\"\n\x1b[2J\xff".as_slice(),
        &[b'x'; 4096],
    ]
    .concat();
    host.process(10, "x", 1);
    host.put("proc/10/cmdline", line);
    let mut guests = host.guests();
    guests.scan();
    let name = guests.iter().next().unwrap().name.clone();
    assert!(
        name.chars().all(|c| !c.is_control()) && name.chars().count() <= 128,
        "{name}"
    );
}

#[test]
fn xen_domains_have_their_backends_and_device_models() {
    let host = Host::new();
    host.v2();
    host.put("proc/xen/capabilities", "control_d\n");
    host.put(
        "bin/xl",
        "#!/bin/sh\n[ \"$2\" = -l ] && { echo '[]'; exit; }\necho 'Name ID Mem VCPUs State Time(s)'\necho 'Domain-0 0 1 1 r 9.0'\necho 'web 3 512 1 -b---- 1.5'\n",
    );
    fs::set_permissions(host.path("bin/xl"), fs::Permissions::from_mode(0o755)).unwrap();
    host.put("sys/class/net/vif3.0/ifindex", "8\n");
    host.put("sys/class/net/vif3.0/iflink", "8\n");
    host.kernel_thread(30, "vif3.0-q0-guest");
    host.kernel_thread(31, "3.xvda-0");
    host.kernel_thread(32, "vif30.0-q0-gues");
    host.process(33, "qemu-system-i386 -xen-domid 3 -name web", 1);
    let mut guests = host.guests();
    guests.scan();
    assert_eq!(guests.len(), 1, "a device model is no guest");
    let web = guests.iter().next().unwrap();
    assert_eq!(web.domain, Some((3, Nanoseconds(1_500_000_000))));
    let helpers: Vec<u32> = web.helpers.iter().map(|helper| helper.pid).collect();
    assert_eq!(helpers, [30, 31, 33]);
    assert_eq!(web.devices[0].name, "vif3.0");
    assert!(guests.problems().is_empty());
}

#[test]
fn a_host_that_shows_nothing_has_no_guests_and_says_why() {
    let host = Host::new();
    fs::remove_dir_all(host.path("proc")).unwrap();
    let mut guests = host.guests();
    guests.scan();
    assert!(guests.is_empty());
    assert_eq!(guests.problems().len(), 2, "{:?}", guests.problems());
}

#[test]
fn a_device_of_a_shared_namespace_belongs_to_one_guest() {
    let host = Host::new();
    host.v2();
    for pid in [20, 21] {
        host.process(pid, "nginx", 1);
        fs::remove_file(host.path(&format!("proc/{pid}/ns/net"))).unwrap();
        symlink("net:[200]", host.path(&format!("proc/{pid}/ns/net"))).unwrap();
    }
    let second = ID.replace('0', "1");
    host.group(&format!("kubepods/pod1/{ID}"), "20\n");
    host.group(&format!("kubepods/pod1/{second}"), "21\n");
    let mut guests = host.guests();
    guests.scan();
    let owners = guests
        .iter()
        .filter(|guest| !guest.devices.is_empty())
        .count();
    assert_eq!((guests.len(), owners), (2, 1));
}

#[test]
fn the_processes_of_this_machine_can_be_scanned() {
    let mut guests = Guests::new(Roots::host());
    guests.scan();
    guests.scan();
    for guest in guests.iter() {
        eprintln!(
            "{} {} {:?}",
            guest.platform.name(),
            guest.name,
            guest.devices
        );
    }
}

#[test]
fn devices_that_come_after_their_guest_are_found() {
    let host = Host::new();
    host.v2();
    let mut guests = host.guests();
    guests.scan();
    host.group(&format!("docker/{ID}"), "");
    guests.scan();
    assert!(guests.iter().next().unwrap().devices.is_empty());
    host.process(20, "nginx", 1);
    fs::remove_file(host.path("proc/20/ns/net")).unwrap();
    symlink("net:[200]", host.path("proc/20/ns/net")).unwrap();
    host.group(&format!("docker/{ID}"), "20\n");
    guests.scan();
    assert_eq!(guests.iter().next().unwrap().devices.len(), 1);
}

/// Exporters that look for domains in control groups or in libvirt's files failed on unknown layouts. Here a domain is
/// its QEMU process, in any layout.
#[test]
fn a_domain_of_libvirt_is_found_once_in_every_layout_of_control_groups() {
    const LINE: &str = "/usr/bin/qemu-system-x86_64 -name guest=web-1,debug-threads=on -S -object \
        {\"qom-type\":\"secret\",\"id\":\"masterKey0\"} -uuid 1b4e28ba-2fa1-11d2-883f-0016d3cca427 -smp 2";
    let scope = r"machine.slice/machine-qemu\x2d1\x2dweb\x2d1.scope";
    let layouts: [(bool, String, &[&str]); 8] = [
        // systemd, v2: QEMU in a group below the scope, each vCPU in one of its own.
        (
            false,
            format!("{scope}/libvirt/emulator"),
            &["libvirt/vcpu0", "libvirt/vcpu1"],
        ),
        // systemd, v1: the same without `libvirt` between.
        (
            true,
            format!("{scope}/emulator"),
            &["vcpu0", "vcpu1", "iothread1"],
        ),
        (true, scope.to_owned(), &[]),
        // Without systemd, both versions.
        (
            false,
            "machine/qemu-1-web-1.libvirt-qemu/emulator".to_owned(),
            &["vcpu0"],
        ),
        (
            true,
            "machine/qemu-1-web-1.libvirt-qemu/emulator".to_owned(),
            &["vcpu0"],
        ),
        // A partition of its own.
        (
            false,
            r"prod.partition/machine-qemu\x2d7\x2dweb\x2d1.scope/libvirt/emulator".to_owned(),
            &["vcpu0"],
        ),
        // A session: the user's service manager moves no process, or there is none and the process stays at the top.
        (
            false,
            "user.slice/user-1000.slice/user@1000.service/app.slice/libvirtd.service".to_owned(),
            &[],
        ),
        (true, String::new(), &[]),
    ];
    for (v1, group, below) in layouts {
        let host = Host::new();
        let mounted = if v1 {
            host.v1();
            "cpu,cpuacct/"
        } else {
            host.v2();
            ""
        };
        host.process(10, LINE, 1);
        let entry = if v1 { "4:cpu,cpuacct:" } else { "0::" };
        host.put("proc/10/cgroup", format!("{entry}/{group}\n"));
        host.group(&format!("{mounted}{group}"), "10\n");
        let parent = Path::new(&group).parent().unwrap_or(Path::new(""));
        let parent = parent.display().to_string();
        for name in below {
            host.group(&format!("{mounted}{parent}/{name}"), "");
        }
        let mut guests = host.guests();
        for _ in 0..2 {
            guests.scan();
            assert_eq!(names(&guests), ["web-1"], "{group}");
        }
        let web = guests.named("web-1").unwrap();
        assert_eq!(web.manager, Some("libvirt"), "{group}");
        assert_eq!(
            web.uuid.as_deref(),
            Some("1b4e28ba-2fa1-11d2-883f-0016d3cca427")
        );
        assert_eq!(web.group.as_deref(), Some(Path::new(&group)), "{group}");
        // Other processes in its group do not belong to it: its threads are read.
        let subject = guests.subject(web, &Owner::Target);
        assert_eq!(
            (subject.vmm, subject.cgroups.len()),
            (Some(10), 0),
            "{group}"
        );
    }
}

#[test]
fn vms_and_containers_of_one_name_are_set_apart_by_what_their_managers_call_them() {
    let host = Host::new();
    host.v2();
    let line = "/usr/bin/kvm -id ID -name guest=web -smbios \
        type=1,uuid=1b4e28ba-2fa1-11d2-883f-0016d3cca427";
    host.process(10, &line.replace("ID", "107"), 1);
    let mut guests = host.guests();
    guests.scan();
    host.process(11, &line.replace("ID", "108"), 1);
    let second = ID.replace('0', "a");
    for id in [ID, &second] {
        host.group(&format!("system.slice/docker-{id}.scope"), "");
        let config = format!("var/lib/docker/containers/{id}/config.v2.json");
        host.put(&config, "{\"Name\":\"/we\\u0007b\"}");
    }
    guests.scan();
    let names = names(&guests);
    assert_eq!(names[2..], ["we\u{fffd}b", &names[3]]);
    assert_eq!(names[..2], ["web", "web (108)"]);
    let ids = [ID, &second].map(|id| format!("we\u{fffd}b ({})", &id[..12]));
    assert!(ids.contains(&names[3]), "{names:?}");
    let uuid = guests.named("web (108)").unwrap().uuid.clone();
    assert_eq!(uuid.unwrap(), "1b4e28ba-2fa1-11d2-883f-0016d3cca427");
}

#[test]
fn a_job_of_slurm_is_one_guest_with_all_its_steps() {
    let host = Host::new();
    host.v2();
    let scope = "system.slice/slurmstepd.scope";
    for group in [
        "system",
        "job_123/step_0/user/task_0",
        "job_123/step_0/slurm",
        &format!("job_123/step_batch/user/task_0/docker/{ID}"),
    ] {
        host.group(&format!("{scope}/{group}"), "");
    }
    let mut guests = host.guests();
    guests.scan();
    let [job] = guests.iter().collect::<Vec<_>>()[..] else {
        panic!("{:?}", names(&guests));
    };
    assert_eq!(
        (job.platform, job.name.as_str()),
        (Platform::Slurm, "job 123")
    );
    let group = format!("{scope}/job_123");
    assert_eq!(job.group.as_deref(), Some(Path::new(&group)));
}

#[test]
fn a_container_of_podman_is_podmans_though_crun_has_its_state() {
    let host = Host::new();
    host.v1();
    let group = format!("machine.slice/libpod-{ID}.scope");
    host.group(&format!("cpu,cpuacct/{group}"), "");
    let state = format!("{{\"cgroup-path\":\"/{group}\"}}");
    host.put(&format!("run/crun/{ID}/status"), state);
    let mut guests = host.guests();
    guests.scan();
    let platforms: Vec<Platform> = guests.iter().map(|guest| guest.platform).collect();
    assert_eq!(platforms, [Platform::Podman]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(40))]

    /// For any nesting: a guest inside a guest would be charged twice.
    #[test]
    fn no_guest_is_in_another_and_no_name_draws(paths in proptest::collection::vec(
        proptest::collection::vec(proptest::sample::select(vec![
            format!("docker-{ID}.scope"), ID.to_owned(), format!("libpod-payload-{ID}"), "docker".to_owned(),
            "lxc".to_owned(), "web".to_owned(), "lxc.payload.\u{1b}[2J".to_owned(), "job_7".to_owned(),
            "slurmstepd.scope".to_owned(), "kubepods".to_owned(), "x.service".to_owned(),
            r"machine-a\x0a\x1b.scope".to_owned(), format!("x.slice:docker:{ID}"), "garden".to_owned(),
        ]), 1..6), 1..12))
    {
        let host = Host::new();
        host.v2();
        for path in &paths {
            host.group(&path.join("/"), "");
        }
        let mut guests = host.guests();
        guests.scan();
        let groups: Vec<&Path> = guests.iter().filter_map(|guest| guest.group.as_deref()).collect();
        for one in &groups {
            let within = groups.iter().filter(|other| one.starts_with(other)).count();
            proptest::prop_assert_eq!(within, 1, "{}", one.display());
        }
        let names: HashSet<(Platform, &str)> =
            guests.iter().map(|guest| (guest.platform, guest.name.as_str())).collect();
        proptest::prop_assert_eq!(names.len(), guests.len(), "each has a name of its own");
        proptest::prop_assert!(names.iter().all(|(_, name)| !name.chars().any(char::is_control)));
    }
}

impl Host {
    /// A process with its parent, in a control group of v2.
    fn child(&self, pid: u32, parent: u32, line: &str, group: &str) {
        self.process(pid, line, u64::from(pid));
        let zeros = "0 ".repeat(17);
        let stat = format!("{pid} (x) S {parent} {zeros}{pid} 0");
        self.put(&format!("proc/{pid}/stat"), stat);
        self.put(
            &format!("proc/{pid}/status"),
            format!("Tgid:\t{pid}\nUid:\t0\n"),
        );
        self.put(&format!("proc/{pid}/cgroup"), format!("0::/{group}\n"));
    }

    /// The list with these services.
    fn attached(&self, pids: &[u32]) -> Guests {
        let mut guests = self.guests();
        let found = |pid: &u32| Service::find(&self.path("proc"), *pid, 0).unwrap();
        guests.attach(pids.iter().map(found));
        guests
    }
}

/// The processes of a service that are its own, and those that are others'.
fn of_service(guests: &Guests, pid: u32) -> (Vec<u32>, Vec<u32>) {
    let mut all = guests
        .iter()
        .filter(|guest| guest.platform == Platform::Native);
    let guest = all.find(|guest| guest.process == Some(pid)).unwrap();
    let of = |is_others: bool| {
        let members = guest.members.iter();
        let of = members.filter(|member| member.is_others == is_others);
        of.map(|member| member.pid).collect()
    };
    (of(false), of(true))
}

#[test]
fn a_service_is_a_guest_without_the_processes_of_other_guests() {
    let host = Host::new();
    host.v2();
    host.group(&format!("docker/{ID}"), "23\n");
    host.child(20, 1, "engine", "svc");
    host.child(21, 20, "qemu-kvm -name vm", "svc");
    host.child(22, 20, "shim", "svc");
    host.child(23, 22, "in-container", &format!("docker/{ID}/sub"));
    host.child(24, 20, "inner", "svc");
    host.child(25, 24, "worker", "svc");
    host.child(30, 1, "other", "svc");
    let mut guests = host.attached(&[20, 24, 20]);
    for _ in 0..2 {
        guests.scan();
        assert_eq!(names(&guests), [&ID[..12], "vm", "x", "x (pid 24)"]);
        assert_eq!(
            of_service(&guests, 20),
            (vec![20, 22], vec![21, 23, 24, 25])
        );
        assert_eq!(of_service(&guests, 24), (vec![24, 25], vec![]));
    }
    let by_process = guests.by_process();
    assert_eq!((by_process.len(), by_process.contains_key(&23)), (5, false));
    host.end(24);
    host.end(25);
    guests.scan();
    assert_eq!(names(&guests), [&ID[..12], "vm", "x"]);
    let problem = "process 24 (x) and those that it started have ended";
    assert_eq!(guests.problems(), [problem]);
}

#[test]
fn a_service_in_a_container_is_inside_it_and_a_monitor_is_no_service() {
    let host = Host::new();
    host.v2();
    host.group(&format!("docker/{ID}"), "20\n");
    host.child(20, 1, "in-container", &format!("docker/{ID}"));
    host.child(21, 20, "beside", &format!("docker/{ID}/sub"));
    host.child(30, 1, "qemu-kvm -name vm", "vms");
    let mut guests = host.attached(&[20, 30]);
    guests.scan();
    let container = guests.iter().find(|guest| guest.is_container()).unwrap();
    let service = guests
        .iter()
        .find(|guest| guest.platform == Platform::Native);
    assert_eq!(service.unwrap().inside, Some(container.number));
    assert_eq!(of_service(&guests, 20), (vec![20, 21], vec![]));
    assert_eq!(guests.len(), 3);
    let problem = "process 30 (x) is charged as the guest vm (qemu), without being named";
    assert_eq!(guests.problems(), [problem]);
}
