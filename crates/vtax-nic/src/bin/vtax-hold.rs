//! `vtax-hold`: asks, from inside a guest, the NIC's back end to hold notifications, and renews
//! the lease. It needs nothing but a kernel; `docs/nic-hold.md` says how to build it statically.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::fmt::Display;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendFlags};
use vtax_nic::control::frame::{ETHER_TYPE, Mac, Operation, Reply, Request, Status};

const USAGE: &str = "\
Ask the NIC's back end to hold notifications, so that the host does less for this guest

usage: vtax-hold INTERFACE [--hold-us N] [--lease-s N] [--once]   ask, and renew the lease
       vtax-hold INTERFACE --off [--lease-s N] [--once]           ask for no hold at all
       vtax-hold INTERFACE --query                                tell what is in force
       vtax-hold INTERFACE --release                              give the lease back

  --hold-us N   the longest that a notification may be held, each way, in µs (500)
  --lease-s N   for how long, in seconds (60); renewed at half of it
  --once        do not renew";

/// Tries for one answer, and how long each waits.
const TRIES: u32 = 3;
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug, PartialEq, Eq)]
struct Arguments {
    interface: String,
    operation: Operation,
    enable: bool,
    hold_us: u32,
    lease_s: u32,
    once: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments
        .iter()
        .any(|argument| argument == "-h" || argument == "--help")
    {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match parse(&arguments).and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vtax-hold: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        interface: String::new(),
        operation: Operation::Ask,
        enable: true,
        hold_us: 500,
        lease_s: 60,
        once: false,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut number = || {
            let value = rest
                .next()
                .ok_or_else(|| format!("{argument} needs a number"))?;
            value
                .parse()
                .map_err(|_| format!("{argument} needs a number, not '{value}'"))
        };
        match argument.as_str() {
            "--hold-us" => parsed.hold_us = number()?,
            "--lease-s" => parsed.lease_s = number()?,
            "--off" => parsed.enable = false,
            "--once" => parsed.once = true,
            "--query" => (parsed.operation, parsed.once) = (Operation::Query, true),
            "--release" => (parsed.operation, parsed.once) = (Operation::Release, true),
            name if !name.starts_with('-') && parsed.interface.is_empty() => {
                parsed.interface = name.to_owned();
            }
            other => return Err(format!("does not know '{other}'\n\n{USAGE}")),
        }
    }
    if parsed.interface.is_empty() {
        return Err(format!("which interface?\n\n{USAGE}"));
    }
    Ok(parsed)
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let interface = Interface::find(&arguments.interface)?;
    let socket = open(&interface)?;
    let mut nonce = u64::from(std::process::id()) << 32;
    loop {
        nonce += 1;
        let request = Request {
            source: interface.mac,
            operation: arguments.operation,
            enable: arguments.enable,
            hold_us: arguments.hold_us,
            lease_s: arguments.lease_s,
            nonce,
        };
        let reply = ask(&socket, &interface, &request)?;
        println!("{}", sentence(&interface.name, arguments, &reply));
        if arguments.once {
            return Ok(());
        }
        // Half of what was granted, so that a lost answer does not lose the lease.
        std::thread::sleep(Duration::from_secs((reply.lease_s / 2).max(1).into()));
    }
}

fn sentence(interface: &str, arguments: &Arguments, reply: &Reply) -> String {
    let in_force = if reply.enable {
        format!("holds notifications up to {} µs", reply.hold_us)
    } else {
        "holds no notifications".to_owned()
    };
    let why = match reply.status {
        Status::Granted => "",
        Status::Clamped => ", less than asked: the operator's cap",
        Status::Overridden => ": the operator has fixed it",
    };
    let lease = match (arguments.operation, reply.lease_s) {
        (_, 0) => "; no lease".to_owned(),
        (Operation::Ask, u32::MAX) | (_, u32::MAX) => "; lease without end".to_owned(),
        (_, left) => format!("; lease {left} s"),
    };
    format!("{interface}: the NIC {in_force}{why}{lease}")
}

/// A network interface, as sysfs describes it.
struct Interface {
    name: String,
    index: i32,
    mac: Mac,
}

impl Interface {
    fn find(name: &str) -> Result<Self, String> {
        if name.contains('/') || name == ".." || name == "." {
            return Err(format!("'{name}' is no interface's name"));
        }
        let read = |what: &str| {
            std::fs::read_to_string(format!("/sys/class/net/{name}/{what}")).map_err(|error| {
                format!(
                    "cannot find the interface {name}: {error}; see which there are with 'ip link'"
                )
            })
        };
        let index = read("ifindex")?;
        let address = read("address")?;
        Ok(Self {
            name: name.to_owned(),
            index: index
                .trim()
                .parse()
                .map_err(|_| format!("{name} has no index"))?,
            mac: mac(address.trim()).ok_or_else(|| {
                format!("{name} has no Ethernet address, but '{}'", address.trim())
            })?,
        })
    }
}

fn mac(text: &str) -> Option<Mac> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    bytes?.try_into().ok()
}

/// A packet socket that sees control frames of one interface only.
fn open(interface: &Interface) -> Result<OwnedFd, String> {
    let failed = |what: &str| {
        let error = std::io::Error::last_os_error();
        let advice = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "; it needs CAP_NET_RAW: run it as root, or 'setcap cap_net_raw+ep' it"
            }
            _ => "",
        };
        format!("cannot {what} on {}: {error}{advice}", interface.name)
    };
    let protocol = ETHER_TYPE.to_be();
    // SAFETY: no pointers.
    let fd = unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            protocol.into(),
        )
    };
    if fd < 0 {
        return Err(failed("open a packet socket"));
    }
    // SAFETY: a descriptor that the kernel has just given us and nobody else knows.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol,
        sll_ifindex: interface.index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = size_of_val(&address) as u32;
    // SAFETY: the pointer is to a sockaddr_ll that outlives the call, and `len` is its size.
    let bound = unsafe { libc::bind(fd, (&raw const address).cast(), len) };
    if bound < 0 {
        return Err(failed("bind a packet socket"));
    }
    Ok(socket)
}

fn ask(socket: &OwnedFd, interface: &Interface, request: &Request) -> Result<Reply, String> {
    let told =
        |what: &str, error: &dyn Display| format!("cannot {what} {}: {error}", interface.name);
    for _ in 0..TRIES {
        rustix::net::send(socket, &request.to_frame(), SendFlags::empty())
            .map_err(|error| told("send on", &error))?;
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|error| told("wait for", &error))?;
            let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&left)) {
                Ok(0) => break,
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(told("wait for", &error)),
            }
            let mut frame = [0; 2_048];
            let (received, _) = rustix::net::recv(socket, &mut frame, RecvFlags::empty())
                .map_err(|error| told("receive from", &error))?;
            // Others may speak this EtherType too: only the answer to this request counts.
            let frame = frame.get(..received).unwrap_or_default();
            if let Ok(reply) = Reply::from_frame(frame)
                && reply.nonce == request.nonce
            {
                return Ok(reply);
            }
        }
    }
    Err(format!(
        "no answer on {}: is its back end vtax-nic? Ordinary NICs drop this request",
        interface.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, String> {
        parse(
            &line
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn arguments_are_understood() {
        let asked = parsed("eth0 --hold-us 250 --lease-s 9 --once").unwrap();
        let expected = Arguments {
            interface: "eth0".into(),
            operation: Operation::Ask,
            enable: true,
            hold_us: 250,
            lease_s: 9,
            once: true,
        };
        assert_eq!(asked, expected);
        assert!(!parsed("--off eth0").unwrap().enable);
        assert_eq!(parsed("eth0 --query").unwrap().operation, Operation::Query);
        assert!(parsed("").unwrap_err().contains("which interface"));
        assert!(
            parsed("eth0 --hold-us many")
                .unwrap_err()
                .contains("'many'")
        );
        assert!(parsed("eth0 eth1").unwrap_err().contains("eth1"));
    }

    #[test]
    fn addresses_are_read() {
        assert_eq!(
            mac("52:54:00:12:34:56"),
            Some([0x52, 0x54, 0, 0x12, 0x34, 0x56])
        );
        assert_eq!(mac("00:00:00:00:00:00:00"), None);
        assert_eq!(mac(""), None);
    }

    #[test]
    fn a_missing_interface_says_what_to_do() {
        let error = Interface::find("no-such-if").err().unwrap();
        assert!(
            error.contains("no-such-if") && error.contains("ip link"),
            "{error}"
        );
        assert!(Interface::find("../../etc").is_err());
    }
}
