// SPDX-License-Identifier: Apache-2.0
//! A guest's own share, sent to it: its part of the host's ledger, one line of JSON per interval, over a virtio-serial
//! port, which `vtax share` reads in the guest.
//!
//! The host's side of a port is a UNIX socket of the guest's monitor, `NAME.sock` in one directory. The listening
//! process must be that monitor, or libvirt, so that no guest gets another's share by its name. Nothing is read from
//! a port, so a guest has no influence. A write never waits: a guest that does not read misses lines, and at most one
//! line is kept for it.

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use vtax_charge::{ChargedGuest, LedgerSnapshot};
use vtax_core::{Nanoseconds, Source};

/// The port's name, below `/dev/virtio-ports` in a guest.
pub const PORT: &str = "vtax.share.0";

/// Longer than any share.
const MAX_LINE_BYTES: u64 = 4096;

/// A guest's own use of the host in an interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The version of this format.
    pub version: u32,
    /// The start of the interval on the host's clock (RFC 3339, UTC).
    pub began: String,
    /// The end of the interval.
    pub ended: String,
    /// The length of the interval.
    pub interval_seconds: f64,
    /// The guest's processor time in the interval, with the host's work for it.
    pub cpu_seconds: f64,
    /// The part of `cpu_seconds` that the guest itself cannot see.
    pub hidden_cpu_seconds: f64,
    /// Processor time since charging began.
    pub cpu_seconds_total: f64,
    /// Its part of the host's energy in the interval, where the host has a meter.
    pub energy_joules: Option<f64>,
    /// Its part of the host's energy since charging began, where the host has a meter.
    pub energy_joules_total: Option<f64>,
    /// Whether the energy is measured or modelled.
    pub energy_source: Option<Source>,
}

impl Share {
    fn from_guest(guest: &ChargedGuest, snapshot: &LedgerSnapshot) -> Self {
        let energy = snapshot.energy.as_ref();
        Self {
            version: 1,
            began: snapshot.began.to_string(),
            ended: snapshot.ended.to_string(),
            interval_seconds: snapshot.ledger.span.as_secs_f64(),
            cpu_seconds: guest.used.stages.total().as_secs_f64(),
            hidden_cpu_seconds: guest.used.stages.hidden().as_secs_f64(),
            cpu_seconds_total: guest.total.stages.total().as_secs_f64(),
            energy_joules: energy.map(|_| guest.used.energy.0),
            energy_joules_total: energy.map(|_| guest.total.energy.0),
            energy_source: energy.map(|energy| energy.source),
        }
    }
}

/// One line for people.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.interval_seconds.max(f64::MIN_POSITIVE);
        write!(
            f,
            "{}  {:.3} processors ({:.3} of them hidden)",
            self.ended,
            self.cpu_seconds / seconds,
            self.hidden_cpu_seconds / seconds
        )?;
        match (
            self.energy_joules,
            self.energy_joules_total,
            self.energy_source,
        ) {
            (Some(joules), Some(total), Some(source)) => {
                write!(
                    f,
                    "  {:.2} W  {total:.1} J in all ({source})",
                    joules / seconds
                )
            }
            _ => f.write_str("  no meter on the host"),
        }
    }
}

/// The ports of this host's guests.
#[derive(Debug)]
pub struct Shares {
    folder: PathBuf,
    proc: PathBuf,
    ports: HashMap<u32, Port>,
}

/// A guest that has a port but gets no share over it.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The socket cannot be used.
    #[error("the port of {guest}: {}: {cause}", path.display())]
    Socket {
        /// The guest.
        guest: String,
        /// The socket.
        path: PathBuf,
        /// The kernel's reason.
        cause: Errno,
    },
    /// The process that listens is not the guest's monitor.
    #[error("{} is not its monitor's (process {process} listens): {guest} gets no share", path.display())]
    NotItsMonitor {
        /// The guest.
        guest: String,
        /// The socket.
        path: PathBuf,
        /// The process.
        process: u32,
    },
}

/// A connection to one port.
#[derive(Debug)]
struct Port {
    socket: OwnedFd,
    /// The rest of a line that did not fit; no other is sent before it.
    left: Vec<u8>,
}

impl Shares {
    /// Returns the ports of guests whose sockets are in `folder`.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            proc: PathBuf::from("/proc"),
            ports: HashMap::new(),
        }
    }

    /// Sends every guest that has a port its share of this interval. Returns the failures.
    pub fn hand_out(&mut self, snapshot: &LedgerSnapshot) -> Vec<PortError> {
        let mut problems = Vec::new();
        // The first pass begins the first interval.
        if snapshot.ledger.span == Nanoseconds(0) {
            return problems;
        }
        let present = snapshot.numbers();
        self.ports.retain(|number, _| present.contains(number));
        for guest in snapshot
            .guests
            .iter()
            .filter(|guest| guest.platform.is_vm())
        {
            if !self.ports.contains_key(&guest.number) {
                match self.connect(guest) {
                    Ok(None) => continue,
                    Ok(Some(socket)) => {
                        let left = Vec::new();
                        self.ports.insert(guest.number, Port { socket, left });
                    }
                    Err(problem) => {
                        problems.push(problem);
                        continue;
                    }
                }
            }
            let Some(port) = self.ports.get_mut(&guest.number) else {
                continue;
            };
            if port.send(&Share::from_guest(guest, snapshot)).is_err() {
                // Its monitor ended or took another client: the next pass tries again.
                self.ports.remove(&guest.number);
            }
        }
        problems
    }

    fn connect(&self, guest: &ChargedGuest) -> Result<Option<OwnedFd>, PortError> {
        if guest.name.contains('/') || guest.name.starts_with('.') {
            return Ok(None);
        }
        let path = self.folder.join(format!("{}.sock", guest.name));
        let Ok(address) = SocketAddrUnix::new(&path) else {
            return Ok(None);
        };
        let failed = |cause| PortError::Socket {
            guest: guest.name.clone(),
            path: path.clone(),
            cause,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(failed)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {}
            // The guest has no port, its monitor has ended, or other clients wait there.
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN) => return Ok(None),
            Err(cause) => return Err(failed(cause)),
        }
        let process = socket_peercred(&socket).map_err(failed)?.pid;
        let process = u32::try_from(process.as_raw_nonzero().get()).unwrap_or(0);
        if guest.process != Some(process) && !self.is_libvirt(process) {
            return Err(PortError::NotItsMonitor {
                guest: guest.name.clone(),
                path,
                process,
            });
        }
        rustix::net::shutdown(&socket, Shutdown::Read).map_err(failed)?;
        Ok(Some(socket))
    }

    /// Whether a process is libvirt, which opens the sockets of its domains.
    fn is_libvirt(&self, process: u32) -> bool {
        let program = std::fs::read_link(self.proc.join(format!("{process}/exe")));
        let name = program
            .ok()
            .and_then(|path| Some(path.file_name()?.to_owned()));
        name.is_some_and(|name| name == "libvirtd" || name == "virtqemud")
    }
}

impl Port {
    /// Sends what fits at once.
    fn send(&mut self, share: &Share) -> Result<(), Errno> {
        if self.left.is_empty() {
            self.left = serde_json::to_vec(share).unwrap_or_default();
            self.left.push(b'\n');
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(&self.socket, &self.left, flags) {
            Ok(sent) => {
                self.left.drain(..sent.min(self.left.len()));
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(cause) => Err(cause),
        }
    }
}

/// The reason that a guest cannot read its share.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// The guest has no port.
    #[error(
        "cannot open {path}: {cause}; the guest needs a virtio-serial port of this name, and its host `vtax exporter --share`"
    )]
    Port {
        /// The port.
        path: PathBuf,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// The port cannot be read.
    #[error("cannot read the port: {0}")]
    Read(#[from] io::Error),
}

/// The path of this guest's port: udev's name, or else the kernel's.
pub fn port(root: &Path) -> PathBuf {
    let named = root.join("dev/virtio-ports").join(PORT);
    if named.exists() {
        return named;
    }
    let folder = std::fs::read_dir(root.join("sys/class/virtio-ports"));
    let entries = folder.into_iter().flatten().flatten();
    let is_it = |port: &PathBuf| {
        std::fs::read_to_string(port.join("name")).is_ok_and(|name| name.trim_end() == PORT)
    };
    let found = entries.map(|port| port.path()).find(is_it);
    match found.as_deref().and_then(Path::file_name) {
        Some(device) => root.join("dev").join(device),
        None => named,
    }
}

/// The shares from a port, until it ends. Other lines are skipped: the first one may be incomplete.
///
/// # Errors
/// When there is no such port.
pub fn read(path: &Path) -> Result<impl Iterator<Item = io::Result<Share>> + use<>, ShareError> {
    let port = File::open(path).map_err(|cause| ShareError::Port {
        path: path.to_owned(),
        cause,
    })?;
    Ok(shares(BufReader::new(port)))
}

fn shares(mut port: impl BufRead) -> impl Iterator<Item = io::Result<Share>> {
    std::iter::from_fn(move || {
        loop {
            let mut line = Vec::new();
            match port
                .by_ref()
                .take(MAX_LINE_BYTES)
                .read_until(b'\n', &mut line)
            {
                Ok(0) => return None,
                Ok(_) => {}
                Err(cause) => return Some(Err(cause)),
            }
            if let Ok(share) = serde_json::from_slice(&line) {
                return Some(Ok(share));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};
    use vtax_charge::fake::Host;
    use vtax_inventory::Platform;

    /// An interval in which the guests of these names are monitored by this process.
    fn pass(host: &mut Host) -> LedgerSnapshot {
        let mut snapshot = host.pass(100_000_000);
        for guest in &mut snapshot.guests {
            guest.process = Some(std::process::id());
        }
        snapshot
    }

    fn messages(shares: &mut Shares, snapshot: &LedgerSnapshot) -> Vec<String> {
        let errors = shares.hand_out(snapshot).into_iter();
        errors.map(|error| error.to_string()).collect()
    }

    #[test]
    fn each_guest_receives_its_own_share_and_a_silent_one_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = Host::default();
        host.start_named(1, "web", Platform::Qemu);
        host.start_named(2, "silent", Platform::Qemu);
        host.start_named(3, "no-port", Platform::Qemu);
        let listen = |name: &str| UnixListener::bind(folder.path().join(name)).unwrap();
        let (web, silent) = (listen("web.sock"), listen("silent.sock"));
        let mut shares_of = Shares::new(folder.path());
        assert_eq!(
            messages(&mut shares_of, &pass(&mut host)),
            Vec::<String>::new()
        );
        let (mut port, _) = web.accept().unwrap();
        let (_never_read, _) = silent.accept().unwrap();
        // The exporter does not read from a port, even if the guest keeps writing.
        io::Write::write_all(&mut port, b"{\"version\":1}\n").unwrap_err();
        let mut reported = shares(BufReader::new(port.try_clone().unwrap()));
        let first = reported.next().unwrap().unwrap();
        assert_eq!((first.cpu_seconds, first.cpu_seconds_total), (0.1, 0.1));
        assert_eq!(first.energy_source, Some(Source::Modelled));
        let began = Instant::now();
        for _ in 0..5000 {
            assert_eq!(
                messages(&mut shares_of, &pass(&mut host)),
                Vec::<String>::new()
            );
            assert!(reported.next().unwrap().is_ok());
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it waited for somebody"
        );
        // One line is kept for the guest that does not read.
        let kept = &shares_of.ports[&2].left;
        assert!(!kept.is_empty() && kept.len() < 4096);
        assert_eq!(shares_of.ports.len(), 2);
        host.end(2);
        shares_of.hand_out(&pass(&mut host));
        assert_eq!(shares_of.ports.len(), 1);
    }

    #[test]
    fn a_guest_without_udev_has_its_port_by_the_kernels_name() {
        let root = tempfile::tempdir().unwrap();
        let of = |path: &str| root.path().join(path);
        assert_eq!(port(root.path()), of("dev/virtio-ports/vtax.share.0"));
        for (device, name) in [("vport1p1", "org.qemu.guest_agent.0"), ("vport1p2", PORT)] {
            std::fs::create_dir_all(of("sys/class/virtio-ports").join(device)).unwrap();
            let file = of("sys/class/virtio-ports").join(device).join("name");
            std::fs::write(file, format!("{name}\n")).unwrap();
        }
        assert_eq!(port(root.path()), of("dev/vport1p2"));
        std::fs::create_dir_all(of("dev/virtio-ports")).unwrap();
        std::fs::write(of("dev/virtio-ports").join(PORT), "").unwrap();
        assert_eq!(port(root.path()), of("dev/virtio-ports/vtax.share.0"));
    }

    #[test]
    fn who_listens_under_anothers_name_gets_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let web = UnixListener::bind(folder.path().join("web.sock")).unwrap();
        let mut host = Host::default();
        host.start_named(1, "web", Platform::Qemu);
        host.start_named(2, "../web", Platform::Qemu);
        let mut snapshot = pass(&mut host);
        snapshot.guests[0].process = Some(1);
        let mut shares_of = Shares::new(folder.path());
        let problems = messages(&mut shares_of, &snapshot);
        assert!(
            problems.len() == 1 && problems[0].contains("gets no share"),
            "{problems:?}"
        );
        let (mut port, _) = web.accept().unwrap();
        let mut reported = Vec::new();
        port.read_to_end(&mut reported).unwrap();
        assert!(reported.is_empty());
    }

    #[test]
    fn a_port_that_says_anything_else_is_passed_over_within_bounds() {
        let mut text = vec![b'x'; 100_000];
        text.extend_from_slice(b"\n{\"version\":1}\n\xff\xfe\n");
        let mut host = Host::default();
        host.start_named(1, "web", Platform::Qemu);
        let snapshot = pass(&mut host);
        let share = Share::from_guest(&snapshot.guests[0], &snapshot);
        text.extend(serde_json::to_vec(&share).unwrap());
        text.push(b'\n');
        let read: Vec<Share> = shares(io::Cursor::new(text)).map(Result::unwrap).collect();
        assert_eq!(read, [share]);
        assert!(read[0].to_string().contains("modelled"), "{}", read[0]);
    }
}
