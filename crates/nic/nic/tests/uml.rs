// SPDX-License-Identifier: Apache-2.0
//! User-mode Linux guests, whose vhost-user front end is the kernel's own and which need no KVM, on one link.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vtax_nic::control::api::{Link, PortInfo, Request};
use vtax_nic::control::client::Client;
use vtax_nic::control::lease::AskedBy;
use vtax_testkit::needs::find_program;
use vtax_testkit::skip;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtax-nic");

/// How long a guest may take to boot, and a command to end.
const PATIENCE: Duration = Duration::from_secs(90);

/// The guests' init. It runs the scripts that appear in the shared directory, in the order of their numbers.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t hostfs -o / host /host
for module in failover net_failover virtio_net; do insmod /$module.ko; done
ip addr add $address dev eth0
ip link set eth0 up
number=0
while sleep 0.05; do
  [ -e /host$shared/$number.script ] || continue
  sh /host$shared/$number.script > /host$shared/$number.output 2>&1
  echo $? > /host$shared/$number.status
  mv /host$shared/$number.status /host$shared/$number.ended
  number=$((number + 1))
done
";

/// A process. It ends with the test, with all processes that it started.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.process_group(0).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Finds a kernel module by name.
fn module(below: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(below).ok()?;
    entries.flatten().find_map(|entry| {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => module(&path, name),
            _ => path.ends_with(name).then_some(path),
        }
    })
}

/// Packs the guests' files into one archive. Fails with the name of a missing part.
fn image(directory: &Path) -> Result<PathBuf, String> {
    let root = directory.join("root");
    for made in ["bin", "proc", "sys", "dev", "host"] {
        std::fs::create_dir_all(root.join(made)).unwrap();
    }
    let copy = |from: Option<PathBuf>, to: &str, what: &str| {
        let from = from.ok_or_else(|| format!("there is no {what}"))?;
        std::fs::copy(from, root.join(to)).unwrap();
        Ok::<_, String>(())
    };
    copy(find_program("busybox"), "bin/busybox", "busybox")?;
    let program = find_program("linux.uml").ok_or("there is no linux.uml")?;
    // Debian's package puts them beside the program: `usr/bin/linux.uml` and `usr/lib/uml/modules`.
    let modules = program.ancestors().nth(2).unwrap().join("lib/uml/modules");
    for name in ["failover.ko", "net_failover.ko", "virtio_net.ko"] {
        copy(module(&modules, name), name, name)?;
    }
    std::fs::write(root.join("init"), INIT).unwrap();
    std::fs::set_permissions(root.join("init"), PermissionsExt::from_mode(0o755)).unwrap();
    let archive = Command::new("sh")
        .args(["-c", "find . | cpio -o -H newc --quiet > ../initrd"])
        .current_dir(&root)
        .status();
    if !archive.is_ok_and(|status| status.success()) {
        return Err("there is no cpio".into());
    }
    Ok(directory.join("initrd"))
}

/// A guest.
struct Guest {
    _process: Process,
    /// The directory of its scripts.
    shared: PathBuf,
    scripts: u32,
}

impl Guest {
    fn boot(directory: &Path, name: &str, address: &str) -> Self {
        let shared = directory.join(format!("{name}.scripts"));
        std::fs::create_dir(&shared).unwrap();
        let console = std::fs::File::create(shared.join("console")).unwrap();
        let at = |name: &str| directory.join(name).display().to_string();
        let process = Process::start(
            // Without random addresses. With them the guest counts up to 1 GB between its program and its heap as memory, and
            // the descriptions of those pages leave it too few to fork.
            Command::new("setarch")
                .arg("-R")
                .arg(find_program("linux.uml").unwrap())
                .args(["mem=64M", "con=null", "con0=fd:0,fd:1"])
                .arg(format!("initrd={}", at("initrd")))
                .arg(format!("virtio_uml.device={}:1", at(name)))
                .arg(format!("address={address}"))
                .arg(format!("shared={}", shared.display()))
                .env("HOME", directory)
                .stdin(Stdio::null())
                .stdout(console.try_clone().unwrap())
                .stderr(console),
        );
        Self {
            _process: process,
            shared,
            scripts: 0,
        }
    }

    /// Runs a shell script in the guest. Returns its status and its output.
    fn run(&mut self, script: &str) -> (i32, String) {
        let at = |kind: &str| self.shared.join(format!("{}.{kind}", self.scripts));
        std::fs::write(at("new"), script).unwrap();
        std::fs::rename(at("new"), at("script")).unwrap();
        let start = Instant::now();
        while !at("ended").exists() {
            if start.elapsed() > PATIENCE {
                let console = std::fs::read_to_string(self.shared.join("console"));
                panic!("{script} does not end; the console:\n{}", console.unwrap());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let status = std::fs::read_to_string(at("ended")).unwrap();
        let output = std::fs::read_to_string(at("output")).unwrap();
        self.scripts += 1;
        (status.trim().parse().unwrap(), output)
    }

    /// Runs a script that must succeed. Returns its output.
    fn ask(&mut self, script: &str) -> String {
        let (status, output) = self.run(script);
        assert_eq!(status, 0, "{script}: {output}");
        output
    }

    /// Runs a program of the host in the guest.
    fn host_program(&mut self, line: &str) -> String {
        self.ask(&format!(
            "PATH=/usr/sbin:/sbin:/bin:/usr/bin chroot /host {line}"
        ))
    }

    /// Waits until a script prints `output`.
    fn wait_for(&mut self, script: &str, output: &str) {
        let start = Instant::now();
        while self.ask(script).trim() != output {
            assert!(
                start.elapsed() < PATIENCE,
                "{script} does not print {output}"
            );
        }
    }
}

/// The value of a row of `ethtool -c`.
fn row(text: &str, name: &str) -> String {
    let mut rows = text.lines().filter_map(|line| line.split_once(':'));
    let found = rows.find(|(key, _)| *key == name);
    found.map_or("no such row".into(), |(_, value)| value.trim().into())
}

/// A running back end, its guests and its API.
struct Bench {
    directory: tempfile::TempDir,
    _back_end: Process,
    guest: Guest,
    other: Guest,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        image(directory.path()).unwrap_or_else(|missing| skip!("{missing}"));
        let config = format!(
            "api = '{}'
            [[port]]
            socket-path = '{}'
            generic = true
            mac = '52:54:00:12:34:56'
            mtu = 1400
            queue-pairs = 2
            policy = {{ cap_us = 1000, cap_tx_us = 600, default_us = 0 }}
            [[port]]
            socket-path = '{}'
            generic = true\n",
            at("api"),
            at("guest"),
            at("other"),
        );
        std::fs::write(at("config"), config).unwrap();
        let back_end = Process::start(Command::new(PROGRAM).args(["--config", &at("config")]));
        let start = Instant::now();
        while !directory.path().join("api").exists() {
            assert!(start.elapsed() < PATIENCE, "the back end does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self {
            guest: Guest::boot(directory.path(), "guest", "10.9.0.1/24"),
            other: Guest::boot(directory.path(), "other", "10.9.0.2/24"),
            _back_end: back_end,
            directory,
        }
    }

    fn api(&self, request: &Request) -> PortInfo {
        let mut client = Client::connect(&self.directory.path().join("api")).unwrap();
        client.ask(request).unwrap().ports.remove(0)
    }

    fn info(&self) -> PortInfo {
        self.api(&Request::List {
            port: Some("guest".into()),
        })
    }

    fn set_link(&self, link: Link) {
        let change = vtax_nic::control::api::Change {
            link: Some(link),
            ..Default::default()
        };
        self.api(&Request::Set {
            port: Some("guest".into()),
            change,
        });
    }
}

#[test(needs = [brought_by_test_all("linux.uml")])]
fn guests_of_linuxs_own_front_end_ping_each_other_with_the_operators_address_mtu_and_link() {
    let mut bench = Bench::new();
    let net = "cd /sys/class/net/eth0; cat address mtu carrier";
    assert_eq!(bench.guest.ask(net), "52:54:00:12:34:56\n1400\n1\n");
    let other = bench.other.ask(net);
    assert!(other.ends_with("\n1500\n1\n"), "{other}");
    let ping = "ping -c 3 -W 20 10.9.0.2";
    bench.guest.ask(ping);
    bench.guest.ask("ping -c 2 -W 20 -s 1372 10.9.0.2");
    let carrier = "cat /sys/class/net/eth0/carrier";
    bench.set_link(Link::Down);
    bench.guest.wait_for(carrier, "0");
    assert_eq!(bench.info().link, Link::Down);
    let (status, output) = bench.guest.run("ping -c 1 -W 1 10.9.0.2");
    assert_ne!(status, 0, "{output}");
    bench.set_link(Link::Up);
    bench.guest.wait_for(carrier, "1");
    bench.guest.ask(ping);
}

#[test(needs = [brought_by_test_all("linux.uml"), program("ethtool")])]
fn ethtool_coalesces_each_direction_of_a_port_of_linuxs_own_front_end() {
    let mut bench = Bench::new();
    let names = ["rx-usecs", "rx-frames", "tx-usecs", "tx-frames"];
    // What `ethtool` asks for, and the time and the packets in force of the receive and of the transmit queue.
    for (asked, in_force) in [
        (["700", "64", "0", "1"], [(700, 64), (0, 1)]),
        (["0", "1", "400", "32"], [(0, 1), (400, 32)]),
        // Beyond the operator's cap for transmit queues, and beyond the common one.
        (["5000", "64", "5000", "64"], [(1_000, 64), (600, 64)]),
        (["0", "1", "0", "1"], [(0, 1), (0, 1)]),
    ] {
        let pairs = names.iter().zip(asked);
        let settings: Vec<_> = pairs
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let line = format!("ethtool -C eth0 {}", settings.join(" "));
        bench.guest.host_program(&line);
        let shown = bench.guest.host_program("ethtool -c eth0");
        assert_eq!(names.map(|name| row(&shown, name)), asked, "{shown}");
        let queues = bench.info().queues;
        assert!(
            queues
                .iter()
                .all(|queue| queue.asked_by == AskedBy::Coalescing)
        );
        let found: Vec<_> = queues
            .iter()
            .map(|queue| (queue.in_force_us, queue.in_force_packets.unwrap_or(0)))
            .collect();
        assert_eq!(found, in_force);
        bench.guest.ask("ping -c 3 -W 20 10.9.0.2");
    }
}

/// The first kernel whose virtio_net driver moderates each receive queue by itself.
const FIRST_WITH_MODERATION: (u32, u32) = (6, 8);

/// The version of the guests' kernel.
fn kernel(guest: &mut Guest) -> (u32, u32) {
    let release = guest.ask("uname -r");
    let mut parts = release.split(['.', '-']).map(|part| part.parse().unwrap());
    (parts.next().unwrap(), parts.next().unwrap())
}

#[test(needs = [brought_by_test_all("linux.uml"), program("ethtool")])]
fn a_guest_that_moderates_its_interrupts_itself_gets_each_time_that_it_asks_for() {
    let mut bench = Bench::new();
    let kernel = kernel(&mut bench.guest);
    if kernel < FIRST_WITH_MODERATION {
        skip!("Linux {kernel:?} of linux.uml has no adaptive moderation in virtio_net");
    }
    bench.guest.host_program("ethtool -C eth0 adaptive-rx on");
    bench
        .guest
        .ask("(while true; do nc -l -p 5000 >/dev/null; done) >/dev/null 2>&1 &");
    bench.other.ask(
        "(while true; do dd if=/dev/zero bs=1k count=20000 | nc 10.9.0.1 5000; sleep 0.2; done) >/dev/null 2>&1 &",
    );
    // The driver commands another time for a receive queue when its packet rate changes.
    let mut seen = std::collections::BTreeSet::new();
    let start = Instant::now();
    while seen.len() < 3 {
        let queue = bench.info().queues[0];
        if queue.asked_by == AskedBy::Coalescing {
            assert_eq!(queue.in_force_us, queue.asked_us.min(1_000), "{queue:?}");
            seen.insert(queue.asked_us);
        }
        assert!(start.elapsed() < PATIENCE, "the guest asked for {seen:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let shown = bench.guest.host_program("ethtool -c eth0");
    assert!(shown.contains("Adaptive RX: on"), "{shown}");
    let log = bench.guest.ask("dmesg");
    assert!(!log.contains("Failed to set"), "{log}");
    bench.guest.host_program("ethtool -C eth0 adaptive-rx off");
}
