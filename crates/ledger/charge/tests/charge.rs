// SPDX-License-Identifier: Apache-2.0
//! Charge-back on this machine's kernel.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up, or does not hold, should fail"
)]

use aya::programs::tc::qdisc_add_clsact;
use aya::programs::{Program, TcAttachType, XdpFlags};
use aya::{Ebpf, EbpfLoader};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use vtax_charge::{
    Charger, ChargerOptions, KeptPrograms, MethodChoice, Roster, Stage, instruments,
};
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, counter};
use vtax_inventory::{Guests, Hierarchy};
use vtax_observe::clock::SystemClock;
use vtax_observe::{Readings, Roots, Snapshot};
use vtax_testkit::containers::{Group, Namespace, Setting};
use vtax_testkit::{skip, skip_in_part};

/// A charger of all guests; skips the test where this kernel has no such method.
fn charger(method: MethodChoice) -> Charger {
    charger_of(Roster::Discovered, method)
}

fn charger_of(roster: Roster, method: MethodChoice) -> Charger {
    let options = ChargerOptions {
        roster,
        method,
        ..ChargerOptions::default()
    };
    Charger::open(options).unwrap_or_else(|error| {
        // Programs that this kernel refuses are a fault of ours.
        let text = error.to_string();
        let lacks = ["CAP_BPF", "CONFIG_DEBUG_INFO_BTF", "not implemented"];
        assert!(lacks.iter().any(|lack| text.contains(lack)), "{text}");
        skip!("{text}")
    })
}

#[test]
fn receiving_is_charged_to_the_receiver_though_it_ran_in_the_senders_context() {
    let setting = Setting::new(2);
    let mut charger = charger(MethodChoice::Traced);
    charger.pass(&SystemClock).unwrap();
    // The programs learn of the devices in the first pass.
    charger.pass(&SystemClock).unwrap();
    let sending = Duration::from_millis(700);
    let sent = setting.send(0, 64, sending);
    let pass = charger.pass(&SystemClock).unwrap();
    let numbers = setting.numbers(&charger);
    assert_ne!(numbers[0], numbers[1]);
    let ledger = pass.ledger().unwrap();
    let softirq = |index: usize| {
        let row = ledger.row(numbers[index]).unwrap();
        row.stages.get(Stage::Softirq).0
    };
    let a_packet = softirq(0) as f64 / sent as f64;
    eprintln!("{sent} packets, {a_packet:.0} ns of soft interrupts each");
    // The sender does nothing else, so that receiving is a large part of the time, and not all of it.
    let share = softirq(0) as f64 / sending.as_nanos() as f64;
    assert!(
        (0.03..1.05).contains(&share),
        "{share} of the time of sending"
    );
    assert!(
        softirq(1) * 100 < softirq(0),
        "the other container did nothing"
    );
    assert_eq!(
        ledger.sum().0 + ledger.made_good.0,
        ledger.total.0 + ledger.excess.0
    );
    assert!(ledger.excess.0 < ledger.span.0 / 10, "{ledger:?}");
    let own = ledger.row(numbers[0]).unwrap().stages.get(Stage::Vcpu).0;
    assert!(own < softirq(0) / 10, "its own processes slept: {own} ns");
}

/// The BPF programs that this process holds, by the hash of their instructions.
fn programs() -> BTreeMap<String, usize> {
    let files = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    let mut counts = BTreeMap::new();
    for file in files.flatten() {
        let info = std::fs::read_to_string(file.path()).unwrap_or_default();
        // Links have a tag, too, and no type.
        let tag = info.lines().find(|line| line.starts_with("prog_tag:"));
        if info.contains("prog_type:")
            && let Some(tag) = tag
        {
            *counts.entry(tag.to_owned()).or_default() += 1;
        }
    }
    counts
}

#[test(needs = [test_all("takes 10 s")])]
fn one_set_of_programs_serves_the_ledger_and_the_counters_of_a_trial() {
    let setting = Setting::new(1);
    let roots = Roots::host();
    let mut guests = Guests::new(roots.clone());
    guests.scan();
    let process = setting.containers[0].namespace.0.id();
    let mut found = guests.iter();
    let found = found.find(|guest| guest.process == Some(process)).unwrap();
    let subjects = vec![guests.subject(found, &Owner::Target)];
    let roster = Roster::Given(subjects.clone());
    let mut charger = charger_of(roster, MethodChoice::Traced);
    for _ in 0..2 {
        charger.pass(&SystemClock).unwrap();
    }
    let before = programs();
    let (mut instruments, absent) =
        instruments(&subjects, Some(&charger), &KeptPrograms::default(), &roots);
    for (tag, count) in programs() {
        let most = before.get(&tag).copied().unwrap_or(1);
        assert!(count <= most, "{tag} is attached twice: {absent:?}");
    }
    let mut readings = Readings::default();
    let mut softirqs = || {
        readings.clear_values();
        for instrument in &mut instruments {
            let _ = instrument.read(Nanoseconds(0), &mut readings);
        }
        let shown = Snapshot::from_readings(Nanoseconds(0), &readings);
        shown
            .get(&Owner::Target, counter::CPU_SOFTIRQ)
            .unwrap()
            .value
    };
    let from = softirqs();
    charger.pass(&SystemClock).unwrap();
    // The counters are read more often than the ledger is closed.
    for _ in 0..3 {
        setting.send(0, 64, Duration::from_millis(300));
        softirqs();
    }
    let pass = charger.pass(&SystemClock).unwrap();
    let counted = softirqs() - from;
    let [number] = charger.numbers().unwrap()[..] else {
        panic!("one guest was given")
    };
    let row = pass.ledger().unwrap().row(number).unwrap();
    let charged = row.stages.get(Stage::Softirq).0 as f64;
    eprintln!("charged {charged} ns, counted {counted} ns");
    // The ledger's are without what a hypervisor below took.
    assert!(counted > 0.0 && (0.5..1.02).contains(&(charged / counted)));
}

#[test]
fn a_guest_that_was_given_and_is_not_there_is_named_with_those_that_are() {
    let missing = vtax_observe::Subject {
        owner: Owner::named("pi"),
        vmm: Some(std::process::id()),
        ..vtax_observe::Subject::default()
    };
    let charger = charger_of(Roster::Given(vec![missing]), MethodChoice::Counted);
    let error = charger.numbers().unwrap_err().to_string();
    assert!(
        error.contains("guest pi") && error.contains("it sees"),
        "{error}"
    );
}

/// The world sends bursts of eight datagrams to all containers in turns for a while; how many bursts
/// to each.
fn send_bursts(setting: &Setting, world: &Namespace, time: Duration) -> u64 {
    let bind = || UdpSocket::bind("0.0.0.0:9999").unwrap();
    let receivers: Vec<UdpSocket> = setting
        .containers
        .iter()
        .map(|container| container.namespace.within(bind))
        .collect();
    for receiver in &receivers {
        receiver.set_nonblocking(true).unwrap();
    }
    world.within(|| {
        let sockets: Vec<UdpSocket> = (0..receivers.len())
            .map(|index| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.connect(format!("10.9.{index}.2:9999")).unwrap();
                cut_into(&socket, 64);
                socket
            })
            .collect();
        let (started, mut sent, mut into) = (Instant::now(), 0, [0; 2048]);
        while started.elapsed() < time {
            for _ in 0..64 {
                for socket in &sockets {
                    let _ = socket.send(&[0; 8 * 64]);
                }
                sent += 1;
            }
            for receiver in &receivers {
                while receiver.recv(&mut into).is_ok() {}
            }
        }
        sent
    })
}

/// Lets the kernel cut what a socket sends into datagrams of `size` bytes.
#[allow(unsafe_code, reason = "an option that no library has")]
fn cut_into(socket: &UdpSocket, size: libc::c_int) {
    let length = libc::socklen_t::try_from(size_of_val(&size)).unwrap();
    let value = (&raw const size).cast();
    // SAFETY: the option is an int, which lives.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            value,
            length,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn packets_that_come_in_lists_and_are_routed_are_charged_to_whom_they_go() {
    let setting = Setting::new(2);
    let mut charger = charger(MethodChoice::Traced);
    let Some(world) = setting.world() else {
        skip!("no routed port with GRO can be made here (needs ethtool)");
    };
    for _ in 0..2 {
        charger.pass(&SystemClock).unwrap();
    }
    let sent = send_bursts(&setting, &world, Duration::from_millis(700));
    let pass = charger.pass(&SystemClock).unwrap();
    let numbers = setting.numbers(&charger);
    let ledger = pass.ledger().unwrap();
    let softirq = |index: usize| {
        let row = ledger.row(numbers[index]).unwrap();
        row.stages.get(Stage::Softirq).0 as f64
    };
    let (one, other, host) = (softirq(0), softirq(1), ledger.host_softirq.0 as f64);
    eprintln!("{sent} bursts each: {one} and {other} ns, the host's {host} ns");
    // Both get the same, and the host does nothing for itself.
    assert!((0.8..1.25).contains(&(one / other)), "{one} and {other} ns");
    assert!(host < 0.2 * (one + other), "{host} of {one} and {other} ns");
    assert_eq!(
        ledger.sum().0 + ledger.made_good.0,
        ledger.total.0 + ledger.excess.0
    );
}

static REDIRECTS: &[u8] = aya::include_bytes_aligned!("containers/redirect.bpf.o");

/// Has a program redirect what comes from the world to the containers; it does as long as what is returned lives.
fn redirect(setting: &Setting, name: &str) -> Result<Ebpf, String> {
    let printed = |error: &dyn std::error::Error| format!("{error}: {:?}", error.source());
    setting.client.within(|| {
        let index = |device: &str| {
            let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
            name_to_index(socket, device).unwrap()
        };
        let mut programs = EbpfLoader::new()
            .set_global("first", &index("veth0"), true)
            .set_global("second", &index("veth1"), true)
            .load(REDIRECTS)
            .map_err(|error| printed(&error))?;
        match programs.program_mut(name).unwrap() {
            Program::SchedClassifier(program) => {
                program.load().map_err(|error| printed(&error))?;
                let _ = qdisc_add_clsact("port");
                let attached = program.attach("port", TcAttachType::Ingress);
                attached.map_err(|error| printed(&error))?;
            }
            Program::Xdp(program) => {
                program.load().map_err(|error| printed(&error))?;
                let attached = program.attach("port", XdpFlags::DRV_MODE);
                attached.map_err(|error| printed(&error))?;
            }
            _ => unreachable!("no other kind is in there"),
        }
        Ok(programs)
    })
}

/// Two containers get the same by a program that redirects: what each, and the host, is charged; and what the charger
/// says that it does not see.
fn charged_where_redirected(name: &str) -> ([f64; 3], String) {
    let setting = Setting::new(2);
    let mut charger = charger(MethodChoice::Traced);
    let Some(world) = setting.world() else {
        skip!("no routed port with GRO can be made here (needs ethtool)");
    };
    // A frame that XDP redirects comes with the port's address, and to a device that is polled.
    let address = "link set dev eth0 address 02:00:00:00:00:aa";
    assert!(
        setting
            .client
            .ip("link set dev port address 02:00:00:00:00:aa")
    );
    for container in &setting.containers {
        let mut gro = container.namespace.command(Path::new("ethtool"));
        let polled = gro.args(["-K", "eth0", "gro", "on"]).status();
        assert!(polled.unwrap().success() && container.namespace.ip(address));
    }
    let _programs = match redirect(&setting, name) {
        Ok(programs) => programs,
        Err(reason) => {
            let lacks = ["not permitted", "not supported", "unknown func"];
            assert!(lacks.iter().any(|lack| reason.contains(lack)), "{reason}");
            skip!("this kernel does not take {name}: {reason}");
        }
    };
    for _ in 0..2 {
        charger.pass(&SystemClock).unwrap();
    }
    let before = received(&setting);
    let sent = send_bursts(&setting, &world, Duration::from_millis(700));
    let came = received(&setting) - before;
    assert!(came > sent, "{came} packets of {sent} bursts for each came");
    let pass = charger.pass(&SystemClock).unwrap();
    let numbers = setting.numbers(&charger);
    let ledger = pass.ledger().unwrap();
    let softirq = |index: usize| {
        let row = ledger.row(numbers[index]).unwrap();
        row.stages.get(Stage::Softirq).0 as f64
    };
    let charged = [softirq(0), softirq(1), ledger.host_softirq.0 as f64];
    eprintln!("{name}, {sent} bursts each: {charged:?} ns of both and of the host");
    assert_eq!(
        ledger.sum().0 + ledger.made_good.0,
        ledger.total.0 + ledger.excess.0
    );
    (charged, charger.notes().join("; "))
}

/// Packets that came to both containers' devices.
fn received(setting: &Setting) -> u64 {
    let of = |index: usize| {
        let namespace = &setting.containers[index].namespace;
        let table = std::fs::read_to_string(format!("/proc/{}/net/dev", namespace.0.id())).unwrap();
        let line = table
            .lines()
            .find(|line| line.trim().starts_with("eth0:"))
            .unwrap();
        let count = line.split_whitespace().nth(2).unwrap();
        count.parse::<u64>().unwrap()
    };
    of(0) + of(1)
}

/// Whether both, who got the same, pay for it.
fn both_pay([one, other, host]: [f64; 3]) -> bool {
    (0.7..1.43).contains(&(one / other)) && host < 0.25 * (one + other)
}

#[test]
fn packets_that_are_redirected_to_a_device_are_charged_to_whom_they_go() {
    let (charged, _) = charged_where_redirected("redirect");
    assert!(both_pay(charged), "{charged:?} ns of both and of the host");
}

#[test]
fn packets_that_are_handed_into_a_namespace_are_charged_to_whom_they_go_or_reported_as_the_hosts() {
    let (charged, unseen) = charged_where_redirected("hand_over");
    let [one, other, host] = charged;
    let as_said = if unseen.contains("packets that BPF programs redirect") {
        skip_in_part(&unseen);
        one + other < 0.05 * host
    } else {
        both_pay(charged)
    };
    assert!(as_said, "{charged:?} ns of both and of the host, {unseen}");
}

#[test(needs = [test_all("takes 4 s")])]
fn frames_that_xdp_redirects_are_charged_to_whom_they_go() {
    let (charged, unseen) = charged_where_redirected("redirect_frame");
    assert!(
        both_pay(charged),
        "{charged:?} ns of both and of the host, {unseen}"
    );
}

#[test(needs = [test_all("takes 9 s")])]
fn nobody_pays_for_a_namespace_that_got_the_number_of_its_own() {
    let mut setting = Setting::new(1);
    let mut charger = charger(MethodChoice::Traced);
    struct Stays(Child);
    impl Drop for Stays {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let stays = Stays(Command::new("sleep").arg("60").spawn().unwrap());
    setting.containers[0].adopt(&stays.0);
    for _ in 0..2 {
        charger.pass(&SystemClock).unwrap();
    }
    let inode = |namespace: &Namespace| {
        let path = format!("/proc/{}/ns/net", namespace.0.id());
        std::fs::metadata(path).unwrap().ino()
    };
    // The container goes on, in another namespace; a new one gets the number once the kernel has let go of it.
    let number = inode(&setting.containers[0].namespace);
    let elsewhere = Namespace::new().unwrap();
    drop(std::mem::replace(
        &mut setting.containers[0].namespace,
        elsewhere,
    ));
    // Numbers below it are in the way: who has them stays.
    let mut others = Vec::new();
    while inode(&setting.containers[0].namespace) != number {
        if others.len() == 40 {
            skip!("none of 40 namespaces got the number {number}");
        }
        std::thread::sleep(Duration::from_millis(200));
        let next = Namespace::new().unwrap();
        let before = std::mem::replace(&mut setting.containers[0].namespace, next);
        others.push(before);
    }
    let container = &setting.containers[0].namespace;
    assert!(vtax_testkit::containers::connect(
        &setting.client,
        container,
        0
    ));
    let sent = setting.send(0, 64, Duration::from_millis(500));
    let pass = charger.pass(&SystemClock).unwrap();
    let ledger = pass.ledger().unwrap();
    let own = ledger.row(setting.numbers(&charger)[0]).unwrap();
    let (own, host) = (own.stages.get(Stage::Softirq).0, ledger.host_softirq.0);
    eprintln!("{sent} packets: {own} ns of the container's, {host} ns of the host's");
    assert!(sent > 1000 && own * 20 < host, "{own} of {host} ns");
    assert_eq!(
        ledger.sum().0 + ledger.made_good.0,
        ledger.total.0 + ledger.excess.0
    );
}

/// Has a thread of the kernel poll a container's own port. Whether that can be had.
fn poll_by_a_thread(container: &Namespace) -> bool {
    let mut gro = container.command(Path::new("ethtool"));
    let mut threaded = container.command(Path::new("unshare"));
    threaded
        .args(["-m", "sh", "-c"])
        .arg("mount -t sysfs none /mnt && echo 1 > /mnt/class/net/eth0/threaded");
    [gro.args(["-K", "eth0", "gro", "on"]), &mut threaded]
        .into_iter()
        .all(|command| command.status().is_ok_and(|status| status.success()))
}

#[test]
fn what_a_ports_own_thread_does_is_charged_to_no_other_guest_and_the_ledger_closes() {
    let setting = Setting::new(2);
    let mut charger = charger(MethodChoice::Traced);
    if !poll_by_a_thread(&setting.containers[0].namespace) {
        skip!("no port is polled by a thread here (needs ethtool)");
    }
    for _ in 0..2 {
        charger.pass(&SystemClock).unwrap();
    }
    let sent = setting.send(0, 64, Duration::from_millis(700));
    let pass = charger.pass(&SystemClock).unwrap();
    let numbers = setting.numbers(&charger);
    let ledger = pass.ledger().unwrap();
    let guests = numbers.iter().map(|number| {
        let row = ledger.row(*number).unwrap();
        row.stages.total().0
    });
    let guests: Vec<u64> = guests.collect();
    let host = ledger.host.0;
    eprintln!("{sent} packets: {guests:?} ns of guests, {host} ns of the host");
    assert!(sent > 1000);
    assert!(guests[1] * 100 < host, "{guests:?} of {host} ns");
    assert!(
        guests[0] < host / 2,
        "the thread's time is the host's: {guests:?} of {host} ns"
    );
    assert_eq!(
        ledger.sum().0 + ledger.made_good.0,
        ledger.total.0 + ledger.excess.0
    );
}

#[test]
fn counted_and_traced_see_the_same_receiver() {
    let setting = Setting::new(1);
    let mut charger = charger(MethodChoice::Both);
    charger.pass(&SystemClock).unwrap();
    charger.pass(&SystemClock).unwrap();
    let sent = setting.send(0, 64, Duration::from_millis(1500));
    let pass = charger.pass(&SystemClock).unwrap();
    let number = setting.numbers(&charger)[0];
    let exchanged = pass.exchanges.guests[&number];
    assert!(exchanged.received >= sent, "{exchanged:?}, {sent} sent");
    let softirq = |index: usize| {
        let (_, ledger) = &pass.ledgers[index];
        let row = ledger.row(number).unwrap();
        row.stages.get(Stage::Softirq).as_secs_f64()
    };
    eprintln!("traced {:.3} s, counted {:.3} s", softirq(0), softirq(1));
    // The kernel samples soft interrupt time at its tick on many hosts, so this is coarse.
    assert!(softirq(1) > 0.2 * softirq(0) && softirq(1) < 5.0 * softirq(0));
}

#[test]
fn guests_that_come_and_go_leave_a_ledger_that_closes() {
    let Some(hierarchy) = Hierarchy::find(Path::new("/sys")) else {
        skip!("no control group hierarchy accounts CPU time");
    };
    let mut charger = charger(MethodChoice::Auto);
    charger.pass(&SystemClock).unwrap();
    let mut busy = Vec::new();
    for round in 0..6u64 {
        busy.clear();
        for index in 0..5u64 {
            let spin = Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .spawn()
                .unwrap();
            let id = format!("{:x}{:x}", round * 16 + index + 16, std::process::id());
            let id = format!("{id:0<64}");
            struct Spin(Child);
            impl Drop for Spin {
                fn drop(&mut self) {
                    let _ = self.0.kill();
                    let _ = self.0.wait();
                }
            }
            let spin = Spin(spin);
            let Some(group) = Group::new(&hierarchy.mounted, &id, spin.0.id()) else {
                skip!("cannot make a control group; this needs root");
            };
            busy.push((spin, group));
        }
        std::thread::sleep(Duration::from_millis(300));
        let pass = charger.pass(&SystemClock).unwrap();
        let ledger = pass.ledger().unwrap();
        assert!(ledger.rows.len() >= 5, "{}", ledger.rows.len());
        assert_eq!(
            ledger.sum().0 + ledger.made_good.0,
            ledger.total.0 + ledger.excess.0
        );
        let capacity = ledger.span.0 * std::thread::available_parallelism().unwrap().get() as u64;
        for row in &ledger.rows {
            assert!(
                row.stages.total().0 <= capacity + 200_000_000,
                "a spike: {row:?}"
            );
        }
    }
}

/// Containers as crash loops and cron jobs make them: each lives for less than an interval, in a real control group.
/// A service's end beside them shows whose time is whose.
#[test(needs = [root()])]
fn containers_that_live_shorter_than_an_interval_are_charged_and_services_are_not() {
    let Some(hierarchy) = Hierarchy::find(Path::new("/sys")) else {
        skip!("no control group hierarchy accounts CPU time");
    };
    let test = format!("vtax-test-short-{}", std::process::id());
    let around = hierarchy.mounted.join(&test);
    // Below `docker`, all groups are containers; in a slice, services may be beside them.
    let (docker, slice) = (around.join("docker"), around.join("test.slice"));
    for directory in [&docker, &slice] {
        std::fs::create_dir_all(directory).unwrap();
    }
    struct Remove<'a>(Vec<&'a Path>);
    impl Drop for Remove<'_> {
        fn drop(&mut self) {
            for directory in &self.0 {
                let _ = std::fs::remove_dir(directory);
            }
        }
    }
    let scope = |number: u32| format!("docker-{number:064x}.scope");
    // The slice is known by a container in it.
    let kept = slice.join(scope(0));
    let _remove = Remove(vec![&kept, &docker, &slice, &around]);
    std::fs::create_dir(&kept).unwrap();
    let mut charger = charger(MethodChoice::Counted);
    charger.pass(&SystemClock).unwrap();

    let mut departed = |groups: &[std::path::PathBuf]| {
        let groups = groups.iter();
        let used: Vec<u64> = groups.map(|group| life(group, hierarchy.v1)).collect();
        let pass = charger.pass(&SystemClock).unwrap();
        let ledger = pass.ledger().unwrap();
        assert_eq!(
            ledger.sum().0 + ledger.made_good.0,
            ledger.total.0 + ledger.excess.0
        );
        (used, ledger.departed.stages.total().0)
    };
    for directory in [&docker, &slice] {
        let name = |number: u32| {
            if directory == &docker {
                format!("{number:064x}")
            } else {
                scope(number)
            }
        };
        let groups: Vec<_> = (1..4).map(|number| directory.join(name(number))).collect();
        let (used, charged) = departed(&groups);
        let used = used.iter().sum::<u64>();
        // Other engines of this host may have short containers as well.
        let is_all = charged as f64 >= used as f64 * 0.95;
        assert!(is_all, "{charged} ns charged of {used} ns in {directory:?}");
    }
    let (used, charged) = departed(&[slice.join("some.service")]);
    let is_little = (charged as f64) < used[0] as f64 * 0.5;
    assert!(is_little, "{charged} ns charged of a service's {used:?} ns");
}

/// Lets a process work in a new control group for 150 ms or more of processor time, and removes the group. Returns the
/// time that the group used, in nanoseconds.
fn life(group: &Path, v1: bool) -> u64 {
    use vtax_kernel::cgroup::GroupClock;
    std::fs::create_dir(group).unwrap();
    let procs = group.join("cgroup.procs");
    let work = "echo $$ > \"$0\" && i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done";
    let mut clock = GroupClock::in_directory(group, v1).unwrap();
    while clock.times().unwrap().total.0 < 150_000_000 {
        let status = Command::new("sh").args(["-c", work]).arg(&procs).status();
        assert!(status.unwrap().success());
    }
    let used = clock.times().unwrap().total.0;
    drop(clock);
    let until = Instant::now() + Duration::from_secs(5);
    while std::fs::remove_dir(group).is_err() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!group.exists());
    used
}
