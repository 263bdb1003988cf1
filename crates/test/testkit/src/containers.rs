// SPDX-License-Identifier: Apache-2.0
//! Fake containers on this machine: a control group and a network namespace each, connected by a veth pair to a
//! client in another namespace.

#![allow(
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "what cannot be set up fails the test, and files of control groups are no files"
)]

use crate::{alone, skip};
use std::collections::HashMap;
use std::fs::{self, File};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use vtax_charge::Charger;
use vtax_inventory::Hierarchy;

/// A process in a network namespace of its own.
pub struct Namespace(pub Child);

impl Namespace {
    /// Creates a namespace that a process holds for ten minutes; `None` where this machine does not allow it.
    pub fn new() -> Option<Self> {
        let child = Command::new("unshare")
            .args(["--net", "sleep", "600"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let namespace = Self(child);
        // Waits until the process has left this process's namespace.
        let own = fs::read_link("/proc/self/ns/net").ok()?;
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(5) {
            let its = fs::read_link(format!("/proc/{}/ns/net", namespace.0.id())).ok()?;
            if its != own {
                return Some(namespace);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// Runs `ip` in this namespace; whether it succeeded.
    pub fn ip(&self, arguments: &str) -> bool {
        Command::new("nsenter")
            .args(["-t", &self.0.id().to_string(), "-n", "ip"])
            .args(arguments.split(' '))
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Runs `work` in this namespace, on a thread that ends with it.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
                move_into_link_name_space(
                    std::os::fd::AsFd::as_fd(&namespace),
                    Some(LinkNameSpaceType::Network),
                )
                .unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }
}

impl Namespace {
    /// A program in this namespace.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &self.0.id().to_string(), "-n"])
            .arg(program);
        command
    }
}

impl Container {
    /// Moves a process into this container's control group.
    pub fn adopt(&self, process: &Child) {
        fs::write(self.group.0.join("cgroup.procs"), process.id().to_string()).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A control group named as Docker names a container's, with one process in it.
pub struct Group(PathBuf);

impl Group {
    /// Creates the group of a container and moves a process into it.
    pub fn new(mounted: &Path, id: &str, process: u32) -> Option<Self> {
        let group = Self(
            mounted
                .join(format!("vtax-test-{}", std::process::id()))
                .join("docker")
                .join(id),
        );
        fs::create_dir_all(&group.0).ok()?;
        fs::write(group.0.join("cgroup.procs"), process.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let started = Instant::now();
        // A killed process leaves its group with a delay.
        while fs::remove_dir(&self.0).is_err() && started.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
        for parent in self.0.ancestors().skip(1).take(2) {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// A container: its group and its network namespace.
pub struct Container {
    // Dropped first: a group can be removed only after its processes have ended.
    /// The container's network namespace, held by its one process.
    pub namespace: Namespace,
    /// Its ID, as Docker assigns one.
    pub name: String,
    group: Group,
}

/// Connects a client and a container by a veth pair: 10.9.N.1 and 10.9.N.2.
pub fn connect(client: &Namespace, container: &Namespace, index: usize) -> bool {
    let pid = container.0.id();
    client.ip(&format!(
        "link add veth{index} type veth peer name eth0 netns {pid}"
    )) && client.ip(&format!("addr add 10.9.{index}.1/24 dev veth{index}"))
        && client.ip(&format!("link set veth{index} up"))
        && container.ip(&format!("addr add 10.9.{index}.2/24 dev eth0"))
        && container.ip("link set eth0 up")
        && container.ip("link set lo up")
}

/// Containers and their client.
pub struct Setting {
    /// The containers; the Nth has the address 10.9.N.2.
    pub containers: Vec<Container>,
    /// The sender of datagrams.
    pub client: Namespace,
    /// The lock that excludes other tests, since each would measure the other's load on the host.
    _alone: File,
}

impl Setting {
    /// Creates `count` containers, each with a veth pair of its own to the client: 10.9.N.1 to 10.9.N.2. Skips the
    /// test where this machine does not allow it.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let Some(hierarchy) = Hierarchy::find(Path::new("/sys")) else {
            skip!("no control group hierarchy accounts CPU time");
        };
        let namespace = || {
            let made = Namespace::new();
            made.unwrap_or_else(|| {
                skip!("cannot make a network namespace; this needs root, unshare, nsenter and ip")
            })
        };
        let alone = alone("containers");
        let client = namespace();
        let mut containers = Vec::new();
        for index in 0..count {
            let namespace = namespace();
            let pid = namespace.0.id();
            if !connect(&client, &namespace, index) {
                skip!("cannot connect two namespaces; this needs root, nsenter and ip");
            }
            // Unique among the tests that run at the same time.
            static NEXT: AtomicU32 = AtomicU32::new(0x1000);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let id = format!("{number:x}{:x}", std::process::id());
            let id = format!("{id:0<64}");
            let Some(group) = Group::new(&hierarchy.mounted, &id, pid) else {
                skip!("cannot make a control group; this needs root");
            };
            containers.push(Container {
                group,
                namespace,
                name: id,
            });
        }
        Self {
            containers,
            client,
            _alone: alone,
        }
    }

    /// Sends datagrams from the client to a container for a while; returns the number of datagrams.
    pub fn send(&self, to: usize, size: usize, time: Duration) -> u64 {
        let receiver = self.containers[to]
            .namespace
            .within(|| UdpSocket::bind("0.0.0.0:9999").unwrap());
        receiver.set_nonblocking(true).unwrap();
        self.client.within(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(format!("10.9.{to}.2:9999")).unwrap();
            let (started, payload) = (Instant::now(), vec![0; size]);
            let mut sent = 0;
            let mut into = [0; 2048];
            while started.elapsed() < time {
                for _ in 0..64 {
                    sent += u64::from(socket.send(&payload).is_ok());
                }
                while receiver.recv(&mut into).is_ok() {}
            }
            sent
        })
    }

    /// Creates a namespace beyond the client, which routes for it. The client's port there passes packets up in lists
    /// (GRO), as ports of real hosts do. `None` where this machine does not allow it.
    pub fn world(&self) -> Option<Namespace> {
        let world = Namespace::new()?;
        let pid = world.0.id();
        let routes = |index: usize| {
            let container = &self.containers[index].namespace;
            container.ip(&format!("route add default via 10.9.{index}.1"))
        };
        let is_up = self.client.ip(&format!(
            "link add port type veth peer name eth0 netns {pid}"
        )) && self.client.ip("addr add 10.10.0.1/24 dev port")
            && self.client.ip("link set port up")
            && world.ip("addr add 10.10.0.2/24 dev eth0")
            && world.ip("link set eth0 up")
            && world.ip("route add default via 10.10.0.1")
            && (0..self.containers.len()).all(routes);
        let offload = |of: &Namespace, arguments: [&str; 3]| {
            let mut command = of.command(Path::new("ethtool"));
            let status = command.arg("-K").args(arguments).status();
            status.is_ok_and(|status| status.success())
        };
        // The receiving end of a veth pair forms lists only from packets that the sender has segmented itself.
        let has_lists = is_up
            && offload(&world, ["eth0", "tso", "off"])
            && offload(&self.client, ["port", "gro", "on"]);
        let _ = offload(&world, ["eth0", "tx-udp-segmentation", "off"]);
        let forward = || fs::write("/proc/sys/net/ipv4/ip_forward", "1").is_ok();
        (has_lists && self.client.within(forward)).then_some(world)
    }

    /// The number that a charger has assigned to each container.
    pub fn numbers(&self, charger: &Charger) -> Vec<u32> {
        let by_name: HashMap<&str, u32> = charger
            .guests()
            .map(|guest| (guest.name.as_str(), guest.number))
            .collect();
        self.containers
            .iter()
            .map(|container| {
                let short = &container.name[..12];
                let mut names = by_name.iter().filter(|(name, _)| name.starts_with(short));
                *by_name
                    .get(short)
                    .or_else(|| names.next().map(|(_, number)| number))
                    .unwrap()
            })
            .collect()
    }
}
