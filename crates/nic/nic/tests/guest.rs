// SPDX-License-Identifier: Apache-2.0
//! A stock Debian guest in QEMU behind the back end. QEMU emulates the processor, so that the tests do not measure
//! speed.

use crate::support;
use crate::support::{
    Guest, Image, Machine, Namespace, Process, back_end, generic_device, guests, image, receive,
    wait_for, wait_for_socket,
};
use std::path::Path;
use vtax_nic::control::api::{Change, Link, PortInfo, Request};
use vtax_nic::control::client::Client;
use vtax_testkit::needs::{Need, test_all};

/// Bytes of the files whose checksums are compared.
const FILE: u32 = 24 << 20;

/// Listens once on a port and prints the checksum of the received bytes.
fn listen(port: u16) -> String {
    receive(port, "sha256sum")
}

/// Sends a file each way over `family` and compares checksums at both ends.
fn exchange(guest: &Guest, namespace: &Namespace, host: &str, me: &str) {
    let listener = namespace.start(&listen(5001));
    let sent = guest.run(&format!(
        "head -c {FILE} /dev/urandom > /tmp/file; sleep 0.3;
         busybox nc {host} 5001 < /tmp/file; sha256sum < /tmp/file"
    ));
    assert_eq!(sent, listener.output(), "guest to host, {host}");
    let sender = namespace.start(&format!(
        "head -c {FILE} /dev/urandom > /tmp/nic-test-$$; sha256sum < /tmp/nic-test-$$;
         for try in 1 2 3 4 5 6 7 8 9 10; do
           busybox nc {me} 5002 < /tmp/nic-test-$$ && break; sleep 0.3;
         done; rm /tmp/nic-test-$$"
    ));
    let received = guest.run(&listen(5002));
    assert_eq!(received, sender.output(), "host to guest, {me}");
}

/// Whether the guest's driver has negotiated a feature.
fn negotiated(guest: &Guest, bit: usize) -> bool {
    let bits = guest.run("cat /sys/class/net/eth0/device/features");
    bits.as_bytes().get(bit) == Some(&b'1')
}

/// VIRTIO_F_RING_PACKED.
const RING_PACKED: usize = 34;

fn try_machine(image: &Image, settings: &Machine, mode: &str) {
    let Machine {
        pairs, mtu, packed, ..
    } = *settings;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nic.sock");
    let namespace = Namespace::new(mtu, pairs);
    let path = socket.to_str().unwrap();
    let queues = pairs.to_string();
    let _back_end = back_end(
        &namespace,
        &[
            "--socket-path",
            path,
            "--tap",
            "tap0",
            "--tap-queues",
            &queues,
            "--mode",
            mode,
        ],
    );
    wait_for_socket(&socket);
    let machine = Machine {
        socket,
        ..settings.clone()
    };
    let guest = Guest::boot(image, directory.path(), &machine);
    assert_eq!(negotiated(&guest, RING_PACKED), packed);
    if pairs > 1 {
        guest.run(&format!("ethtool -L eth0 combined {pairs}"));
    }
    assert_eq!(guest.run("cat /sys/class/net/eth0/mtu"), mtu.to_string());
    exchange(&guest, &namespace, "10.91.0.1", "10.91.0.2");
    exchange(&guest, &namespace, "fd91::1", "fd91::2");
}

/// The need of a test that boots another variant of a guest.
fn variant() -> Need {
    test_all("a quarter of a minute: another variant boots")
}

/// A guest with one pair, an MTU of 1500, offloads and split rings.
fn usual() -> Machine {
    Machine::new(std::path::PathBuf::new())
}

#[test(needs = [test_all("takes 11 s"), guests()])]
fn traffic_passes_with_offloads() {
    let image = image();
    try_machine(&image, &usual(), "adaptive");
}

#[test(needs = [guests(), variant()])]
fn traffic_passes_over_packed_rings() {
    let image = image();
    let machine = Machine {
        packed: true,
        ..usual()
    };
    try_machine(&image, &machine, "adaptive");
}

#[test(needs = [guests(), variant()])]
fn traffic_passes_over_packed_rings_without_offloads() {
    let image = image();
    let machine = Machine {
        packed: true,
        offloads: false,
        ..usual()
    };
    try_machine(&image, &machine, "off");
}

#[test(needs = [guests(), variant()])]
fn traffic_passes_without_offloads_in_jumbo_frames() {
    let image = image();
    let machine = Machine {
        mtu: 9000,
        offloads: false,
        ..usual()
    };
    try_machine(&image, &machine, "off");
}

#[test(needs = [guests(), variant()])]
fn traffic_passes_over_four_queue_pairs() {
    let image = image();
    let machine = Machine {
        pairs: 4,
        ..usual()
    };
    try_machine(&image, &machine, "adaptive");
}

/// Starts a long transfer from the guest, whose checksums are compared at its end.
fn long_transfer(guest: &Guest, namespace: &Namespace) -> support::Running {
    let listener = namespace.start(&listen(5003));
    guest.run(
        "head -c 150000000 /dev/urandom > /tmp/long; sleep 0.3;
         (busybox nc 10.91.0.1 5003 < /tmp/long; touch /run/done) > /dev/null 2>&1 &",
    );
    listener
}

fn finish(guest: &Guest, listener: support::Running) {
    wait_for("the transfer's end", || {
        guest.run("ls /run/done 2> /dev/null || true") == "/run/done"
    });
    assert_eq!(guest.run("sha256sum < /tmp/long"), listener.output());
}

fn progress(namespace: &Namespace) -> u64 {
    namespace
        .run("sed -n 's/.*tap0: *//p' /proc/net/dev | cut -d ' ' -f 1")
        .parse()
        .unwrap()
}

#[test(needs = [guests(), variant()])]
fn a_connection_survives_the_back_ends_death() {
    survive(false);
}

/// Only the ring itself has the position from which to continue.
#[test(needs = [test_all("takes 23 s"), guests()])]
fn a_connection_over_packed_rings_survives_the_back_ends_death() {
    survive(true);
}

fn survive(packed: bool) {
    let image = image();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nic.sock");
    let namespace = Namespace::new(1500, 1);
    let arguments = ["--socket-path", socket.to_str().unwrap(), "--tap", "tap0"];
    let first = back_end(&namespace, &arguments);
    wait_for_socket(&socket);
    let machine = Machine {
        packed,
        ..Machine::new(socket.clone())
    };
    let guest = Guest::boot(&image, directory.path(), &machine);
    assert_eq!(negotiated(&guest, RING_PACKED), packed);
    die_three_times(&guest, &namespace, first, &arguments);
}

/// Kills the back end during a long transfer and restarts it, three times. Returns the last one.
fn die_three_times(
    guest: &Guest,
    namespace: &Namespace,
    mut back_end: Process,
    arguments: &[&str],
) -> Process {
    let listener = long_transfer(guest, namespace);
    let mut deaths = 0;
    for _ in 0..3 {
        let before = progress(namespace);
        wait_for("progress", || progress(namespace) > before + 10_000_000);
        let in_the_middle = guest.run("ls /run/done 2> /dev/null || true").is_empty();
        deaths += u32::from(in_the_middle);
        back_end.kill();
        back_end = support::back_end(namespace, arguments);
    }
    assert!(deaths > 0, "the transfer was over before the first death");
    finish(guest, listener);
    assert!(back_end.is_running());
    back_end
}

#[test(needs = [guests(), variant()])]
fn a_back_end_that_connects_meets_its_guest_again_whichever_of_them_dies() {
    let image = image();
    let directory = tempfile::tempdir().unwrap();
    let namespace = Namespace::new(1500, 1);
    let socket = directory.path().join("nic.sock");
    let path = socket.to_str().unwrap();
    let arguments = ["--socket-path", path, "--tap", "tap0", "--client"];
    let machine = |name| Machine {
        name,
        listens: true,
        ..Machine::new(socket.clone())
    };
    // The back end may start first.
    let first = back_end(&namespace, &arguments);
    let guest = Guest::boot(&image, directory.path(), &machine("guest"));
    let mut last = die_three_times(&guest, &namespace, first, &arguments);
    drop(guest);
    let another = Guest::boot(&image, directory.path(), &machine("another"));
    exchange(&another, &namespace, "10.91.0.1", "10.91.0.2");
    assert!(last.is_running());
}

/// The state of the only port.
fn port(api: &Path) -> PortInfo {
    let request = Request::List { port: None };
    let mut answer = Client::connect(api).unwrap().ask(&request).unwrap();
    answer.ports.remove(0)
}

#[test(needs = [test_all("takes 24 s"), guests()])]
fn a_guest_asks_for_holds_by_frame_is_answered_and_renews_its_lease() {
    let image = image();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (socket, api) = (at("nic.sock"), at("api.sock"));
    let namespace = Namespace::new(1500, 1);
    let paths = [socket.to_str().unwrap(), api.to_str().unwrap()];
    let mut arguments = vec![
        "--socket-path",
        paths[0],
        "--tap",
        "tap0",
        "--api",
        paths[1],
    ];
    arguments.extend(["--hold", "100us", "--cap", "300us"]);
    let mut back_end = back_end(&namespace, &arguments);
    wait_for_socket(&socket);
    let guest = Guest::boot(&image, directory.path(), &Machine::new(socket));
    let program = guest.install(&namespace, Path::new(env!("CARGO_BIN_EXE_vtax-hold")));
    let hold = |arguments: &str| guest.run(&format!("{program} eth0 {arguments}"));
    assert_eq!(
        hold("--query"),
        "eth0: the NIC holds notifications up to 100 µs; no lease"
    );
    assert_eq!(
        hold("--hold-us 900 --lease-s 20 --once"),
        "eth0: the NIC holds notifications up to 300 µs, less than asked: the operator's cap; lease 20 s"
    );
    assert_eq!(port(&api).in_force_us, 300);
    hold("--off --once");
    assert_eq!(port(&api).in_force_us, 0);
    assert_eq!(
        hold("--release"),
        "eth0: the NIC holds notifications up to 100 µs; no lease"
    );

    let lease = 5;
    let line = format!(
        "{program} eth0 --hold-us 250 --lease-s {lease} > /run/hold 2>&1 < /dev/null & echo $!"
    );
    let running = guest.run(&line);
    wait_for("the first answer", || port(&api).in_force_us == 250);
    let began = std::time::Instant::now();
    wait_for("two leases' time", || {
        assert_eq!(port(&api).in_force_us, 250, "the lease has ended");
        began.elapsed().as_secs() > 2 * lease
    });
    let answers = guest.run("cat /run/hold");
    assert!(answers.lines().count() > 3, "{answers}");
    guest.run(&format!("kill {running}"));
    wait_for("the lease's end", || port(&api).in_force_us == 100);
    assert!(back_end.is_running());
}

#[test(needs = [guests(), generic_device(), variant()])]
fn a_generic_front_end_brings_address_mtu_link_and_coalescing_to_an_unmodified_guest() {
    let image = image();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (socket, api) = (at("nic.sock"), at("api.sock"));
    let namespace = Namespace::new(1400, 1);
    let config = format!(
        "api = '{}'
        [[port]]
        name = 'vm1'
        socket-path = '{}'
        generic = true
        queue-pairs = 1
        mac = '52:54:00:12:34:56'
        mtu = 1400
        policy = {{ cap_us = 1000, default_us = 0 }}
        [[tap]]
        name = 'tap0'\n",
        api.display(),
        socket.display(),
    );
    std::fs::write(at("config"), config).unwrap();
    let _back_end = back_end(&namespace, &["--config", at("config").to_str().unwrap()]);
    wait_for_socket(&socket);
    let machine = Machine {
        generic: true,
        mtu: 1400,
        ..Machine::new(socket)
    };
    let guest = Guest::boot(&image, directory.path(), &machine);
    let shown = guest.run("cd /sys/class/net/eth0; cat address mtu carrier");
    assert_eq!(shown, "52:54:00:12:34:56\n1400\n1");
    exchange(&guest, &namespace, "10.91.0.1", "10.91.0.2");
    guest.run("ethtool -C eth0 rx-usecs 700 rx-frames 64 tx-usecs 5000 tx-frames 32");
    let queues: Vec<_> = port(&api).queues;
    let in_force = queues.iter().map(|queue| queue.in_force_us);
    assert_eq!(in_force.collect::<Vec<_>>(), [700, 1_000]);
    exchange(&guest, &namespace, "10.91.0.1", "10.91.0.2");
    let link = |link| {
        let change = Change {
            link: Some(link),
            ..Change::default()
        };
        let port = Some("vm1".into());
        Client::connect(&api)
            .unwrap()
            .ask(&Request::Set { port, change })
            .unwrap();
    };
    link(Link::Down);
    wait_for("the guest to lose its carrier", || {
        guest.run("cat /sys/class/net/eth0/carrier") == "0"
    });
    link(Link::Up);
    wait_for("the guest to have a carrier", || {
        guest.run("cat /sys/class/net/eth0/carrier") == "1"
    });
    exchange(&guest, &namespace, "10.91.0.1", "10.91.0.2");
}

fn shared_disk(image: &Image, directory: &Path) -> std::path::PathBuf {
    let disk = directory.join("disk.qcow2");
    let status = std::process::Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .args([image.root().as_path(), disk.as_path()])
        .status();
    assert!(status.unwrap().success());
    disk
}

#[test(needs = [guests(), variant()])]
fn a_guest_migrates_under_load_with_no_byte_changed() {
    migrate(false);
}

#[test(needs = [guests(), variant()])]
fn a_guest_with_packed_rings_migrates_under_load_with_no_byte_changed() {
    migrate(true);
}

fn migrate(packed: bool) {
    let image = image();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let namespace = Namespace::new(1500, 1);
    let sockets = [at("a.sock"), at("b.sock")];
    let arguments: Vec<&str> = sockets
        .iter()
        .flat_map(|path| ["--socket-path", path.to_str().unwrap()])
        .chain(["--tap", "tap0"])
        .collect();
    let mut back_end = back_end(&namespace, &arguments);
    wait_for_socket(&sockets[1]);
    let disk = shared_disk(&image, directory.path());
    let source = Machine {
        name: "source",
        disk: Some(disk),
        packed,
        ..Machine::new(sockets[0].clone())
    };
    let target = Machine {
        name: "target",
        socket: sockets[1].clone(),
        incoming: Some(at("migration.sock")),
        ..source.clone()
    };
    let old = Guest::boot(&image, directory.path(), &source);
    let listener = long_transfer(&old, &namespace);
    let new = Guest::boot(&image, directory.path(), &target);
    wait_for_socket(&at("migration.sock"));
    let before = progress(&namespace);
    wait_for("progress", || progress(&namespace) > before + 1_000_000);
    let uri = format!("unix:{}", at("migration.sock").display());
    let parameters = serde_json::json!({ "downtime-limit": 1000, "max-bandwidth": 1u64 << 30 });
    old.monitor("migrate-set-parameters", parameters);
    old.monitor("migrate", serde_json::json!({ "uri": uri }));
    wait_for("the migration's end", || {
        let info = old.monitor("query-migrate", serde_json::json!({}));
        assert_ne!(info["status"], "failed", "{info}");
        info["status"] == "completed"
    });
    let moved = progress(&namespace);
    drop(old);
    finish(&new, listener);
    assert!(
        progress(&namespace) > moved,
        "the transfer was over before the guest moved"
    );
    assert!(back_end.is_running());
}
