// SPDX-License-Identifier: Apache-2.0
//! Tests of the counts of exchanges.

use super::*;
use std::fs;

const HEAD: &str = "Inter-| Receive | Transmit\n face |bytes packets\n";
const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        host.put("sys/fs/cgroup/cgroup.controllers", "cpu");
        host.put("sys/class/net/eth0/device/x", "");
        host.put(&format!("sys/fs/cgroup/docker/{ID}/cgroup.procs"), "20\n");
        host.put("proc/20/cmdline", "nginx");
        for (pid, namespace) in [(1, 100), (20, 200)] {
            let ns = host.path(&format!("proc/{pid}/ns"));
            fs::create_dir_all(&ns).unwrap();
            std::os::unix::fs::symlink(format!("net:[{namespace}]"), ns.join("net")).unwrap();
        }
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn put(&self, path: &str, content: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn pair(&self) {
        for (below, name, index, peer) in
            [("sys", "veth1", 17, 2), ("proc/20/root/sys", "eth0", 2, 17)]
        {
            self.put(
                &format!("{below}/class/net/{name}/ifindex"),
                &index.to_string(),
            );
            self.put(
                &format!("{below}/class/net/{name}/iflink"),
                &peer.to_string(),
            );
        }
    }

    fn table(&self, pid: u32, lines: &[(&str, u64, u64)]) {
        let lines: String = lines
            .iter()
            .map(|(name, rx, tx)| format!("{name}: 10 {rx} 0 0 0 0 0 0 20 {tx} 0 0 0 0 0 0\n"))
            .collect();
        self.put(&format!("proc/{pid}/net/dev"), &format!("{HEAD}{lines}"));
    }

    fn roots(&self) -> Roots {
        Roots::below(&self.path(""))
    }
}

#[test]
fn packets_at_the_hosts_end_are_the_guests_with_directions_turned() {
    let host = Host::new();
    host.pair();
    host.table(
        1,
        &[
            ("lo", 5, 5),
            ("eth0", 100, 100),
            ("br0", 100, 100),
            ("veth1", 10, 20),
        ],
    );
    let mut guests = Guests::new(host.roots());
    guests.scan();
    let mut exchanges = Exchanges::open(&host.roots());
    assert_eq!(
        exchanges.read(&guests).host_packets,
        0,
        "nothing at first sight"
    );
    host.table(
        1,
        &[
            ("lo", 8, 8),
            ("eth0", 150, 100),
            ("br0", 150, 100),
            ("veth1", 13, 27),
        ],
    );
    let interval = exchanges.read(&guests);
    let guest = interval.guests.values().next().unwrap();
    assert_eq!((guest.sent, guest.received), (3, 7));
    assert_eq!(interval.host_packets, 3 + 50 - 10);
}

#[test]
fn soft_interrupts_that_complete_no_guests_requests_are_the_hosts() {
    let host = Host::new();
    let table = |timers: u64, completions: u64| {
        let lines = format!("CPU0 CPU1\nTIMER: {timers} 1\nNET_RX: 9 9\nBLOCK: {completions} 2\n");
        host.put("proc/softirqs", &lines);
    };
    let requests = |count: u64| {
        let path = format!("sys/fs/cgroup/docker/{ID}/io.stat");
        host.put(&path, &format!("8:0 rios={count} wios=0\n"));
    };
    table(10, 10);
    requests(1);
    let mut guests = Guests::new(host.roots());
    guests.scan();
    let mut exchanges = Exchanges::open(&host.roots());
    exchanges.read(&guests);
    table(15, 40);
    requests(11);
    let interval = exchanges.read(&guests);
    assert_eq!(
        (interval.other_softirqs, interval.host_block_requests),
        (5, 20)
    );
}

#[test]
fn packets_that_no_device_of_the_host_or_a_guest_had_are_unseen() {
    let host = Host::new();
    host.pair();
    let processed = |first: u64, second: u64| {
        let lines = format!("{first:08x} 00000000\n{second:08x} 00000000\n");
        host.put("proc/net/softnet_stat", &lines);
    };
    host.table(1, &[("lo", 0, 0), ("eth0", 0, 0), ("veth1", 0, 0)]);
    processed(0xffff_fff0, 5);
    let mut guests = Guests::new(host.roots());
    guests.scan();
    let mut exchanges = Exchanges::open(&host.roots());
    assert_eq!(exchanges.read(&guests).unseen_packets, 0);
    // The devices saw 10 packets of the loopback device, 20 that a port received, and 30 and 40 of the guest's.
    host.table(1, &[("lo", 10, 10), ("eth0", 20, 99), ("veth1", 30, 40)]);
    processed(0xffff_fff0, 5 + 107);
    assert_eq!(exchanges.read(&guests).unseen_packets, 7);
    processed(0xffff_fff0, 5 + 107);
    assert_eq!(exchanges.read(&guests).unseen_packets, 0);
}

#[test]
fn without_an_end_at_the_host_the_guests_own_table_is_read() {
    let host = Host::new();
    host.table(1, &[]);
    host.table(20, &[("lo", 50, 50), ("eth0", 1, 2)]);
    let mut guests = Guests::new(host.roots());
    guests.scan();
    let mut exchanges = Exchanges::open(&host.roots());
    exchanges.read(&guests);
    host.table(20, &[("lo", 90, 90), ("eth0", 4, 9)]);
    let interval = exchanges.read(&guests);
    let guest = interval.guests.values().next().unwrap();
    assert_eq!((guest.sent, guest.received), (7, 3));
}

#[test]
fn a_device_made_anew_under_its_old_name_makes_no_negative_count() {
    let host = Host::new();
    host.pair();
    host.table(1, &[("veth1", 1000, 1000)]);
    let mut guests = Guests::new(host.roots());
    guests.scan();
    let mut exchanges = Exchanges::open(&host.roots());
    exchanges.read(&guests);
    host.table(1, &[("veth1", 4, 5)]);
    let interval = exchanges.read(&guests);
    let guest = interval.guests.values().next().unwrap();
    assert_eq!((guest.sent, guest.received), (4, 5));
}

#[test]
fn a_port_that_is_plugged_in_counts_from_zero_and_one_that_is_pulled_out_counts_nothing() {
    let host = Host::new();
    host.table(1, &[("eth0", 100, 100)]);
    let mut guests = Guests::new(host.roots());
    guests.scan();
    let mut exchanges = Exchanges::open(&host.roots());
    exchanges.read(&guests);
    host.put("sys/class/net/eth1/device/x", "");
    host.table(1, &[("eth0", 100, 101), ("eth1", 20, 10)]);
    assert_eq!(exchanges.read(&guests).host_packets, 31);
    host.table(1, &[("eth1", 20, 10)]);
    assert_eq!(exchanges.read(&guests).host_packets, 0);
    // The device was plugged in again: its driver counts from zero.
    host.table(1, &[("eth0", 3, 0), ("eth1", 20, 10)]);
    assert_eq!(exchanges.read(&guests).host_packets, 3);
}

/// The kernel keeps a VM as long as its file of exits is open.
#[test]
fn the_file_of_a_vms_exits_is_not_kept_open() {
    let host = Host::new();
    host.put("proc/70/cmdline", "qemu-system-x86_64\0-enable-kvm\0");
    host.put("proc/70/comm", "qemu-system-x86\n");
    host.put(
        "proc/70/stat",
        "70 (qemu-system-x86) S 1 70 70 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 500 1 1",
    );
    let exits = |count: u64| host.put("sys/kernel/debug/kvm/70-9/exits", &format!("{count}\n"));
    exits(100);
    let mut guests = Guests::new(host.roots());
    guests.scan();
    let number = guests
        .iter()
        .find(|guest| guest.process == Some(70))
        .map(|guest| guest.number);
    let number = number.unwrap();
    let mut exchanges = Exchanges::open(&host.roots());
    exchanges.read(&guests);
    // An open file would still be the previous one.
    fs::remove_file(host.path("sys/kernel/debug/kvm/70-9/exits")).unwrap();
    exits(107);
    assert_eq!(exchanges.read(&guests).guests[&number].exits, Some(7));
}

#[test]
fn requests_of_a_domains_disks_are_those_of_its_rings_alone() {
    let host = Host::new();
    let disk = |name: &str, reads: u64, writes: u64| {
        let statistics = format!("sys/bus/xen-backend/devices/{name}/statistics");
        host.put(&format!("{statistics}/rd_req"), &format!("{reads}\n"));
        host.put(&format!("{statistics}/wr_req"), &format!("{writes}\n"));
    };
    disk("vbd-3-51712", 10, 1);
    disk("vbd-3-51728", 5, 0);
    disk("vbd-30-51712", 700, 700);
    let read = |reader: &mut Reader| reader.block_requests(false);
    let mut reader = Reader {
        rings: rings(3, &host.path("sys")),
        ..Reader::default()
    };
    assert_eq!(read(&mut reader), 0, "nothing at first sight");
    disk("vbd-3-51728", 9, 2);
    disk("vbd-30-51712", 900, 900);
    assert_eq!(read(&mut reader), 4 + 2);
}

#[test]
fn block_requests_are_read_on_v1_and_v2() {
    for (path, first, second) in [
        (
            format!("sys/fs/cgroup/blkio/docker/{ID}/blkio.throttle.io_serviced"),
            "8:0 Read 1\n8:0 Total 1\nTotal 1\n",
            "8:0 Read 5\n8:0 Total 5\nTotal 5\n",
        ),
        (
            format!("sys/fs/cgroup/docker/{ID}/io.stat"),
            "8:0 rbytes=1 wbytes=1 rios=1 wios=0\n",
            "8:0 rbytes=9 wbytes=9 rios=2 wios=1\n8:16 rios=2\n",
        ),
    ] {
        let host = Host::new();
        host.put(&path, first);
        let mut guests = Guests::new(host.roots());
        guests.scan();
        let mut exchanges = Exchanges::open(&host.roots());
        exchanges.read(&guests);
        host.put(&path, second);
        let interval = exchanges.read(&guests);
        // On a fake v2 host the directory of v1's controller looks like a separate group.
        let requests: u64 = interval
            .guests
            .values()
            .map(|guest| guest.block_requests)
            .sum();
        assert_eq!(requests, 4, "{path}");
    }
}
