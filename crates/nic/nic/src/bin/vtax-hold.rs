// SPDX-License-Identifier: Apache-2.0
//! `vtax-hold`: asks the NIC's back end, from inside a guest, to hold notifications, and renews the lease. It needs
//! nothing but a kernel; `docs/components/nic-hold.md` describes how to build it statically.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendFlags};
use vtax_nic::control::frame::{Mac, Operation, Reply, Request, Status};
use vtax_nic::network::{address, open_control_socket};

const USAGE: &str = "\
Ask the NIC's back end to hold notifications, so that the host does less for this guest

usage: vtax-hold INTERFACE [--hold-us N] [--lease-s N] [--once]   ask, and renew the lease
       vtax-hold INTERFACE --off [--lease-s N] [--once]           ask for no hold at all
       vtax-hold INTERFACE --query                                show what is in force
       vtax-hold INTERFACE --release                              give the lease back

  --hold-us N   the longest that a notification may be held, each way, in µs (500)
  --lease-s N   for how long, in seconds (60); renewed at half of it
  --once        do not renew";

/// The number of attempts to get an answer, and the timeout of each.
const ATTEMPTS: u32 = 3;
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Why the request for a hold failed.
#[derive(Debug, thiserror::Error)]
enum HoldError {
    #[error("{0} needs a number")]
    NoNumber(String),
    #[error("{0} needs a number, not '{1}'")]
    Number(String, String),
    #[error("does not know '{0}'\n\n{USAGE}")]
    Option(String),
    #[error("which interface?\n\n{USAGE}")]
    NoInterface,
    #[error("cannot print: {0}")]
    Print(io::Error),
    #[error("'{0}' is no interface's name")]
    Name(String),
    #[error("cannot find the interface {0}: {1}; see which there are with 'ip link'")]
    Missing(String, io::Error),
    #[error("{0} has no Ethernet address, but '{1}'")]
    Interface(String, String),
    #[error("cannot {} {}: {}{}", .0, .1, .2, advice(.2))]
    Socket(&'static str, String, io::Error),
    #[error("no answer on {0}: is its back end vtax-nic? Ordinary NICs drop this request")]
    Silent(String),
}

fn advice(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => {
            "; it needs CAP_NET_RAW: run it as root, or 'setcap cap_net_raw+ep' it"
        }
        _ => "",
    }
}

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
        return ended(print(USAGE));
    }
    ended(parse(&arguments).and_then(|arguments| run(&arguments)))
}

fn ended(outcome: Result<(), HoldError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = vtax_core::terminal::note(&format!("vtax-hold: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn print(line: &str) -> Result<(), HoldError> {
    writeln!(vtax_core::terminal::stdout(), "{line}").map_err(HoldError::Print)
}

fn parse(arguments: &[String]) -> Result<Arguments, HoldError> {
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
            let value = rest.next();
            let value = value.ok_or_else(|| HoldError::NoNumber(argument.clone()))?;
            let wrong = |_| HoldError::Number(argument.clone(), value.clone());
            value.parse().map_err(wrong)
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
            other => return Err(HoldError::Option(other.to_owned())),
        }
    }
    if parsed.interface.is_empty() {
        return Err(HoldError::NoInterface);
    }
    Ok(parsed)
}

fn run(arguments: &Arguments) -> Result<(), HoldError> {
    let interface = Interface::find(&arguments.interface)?;
    let socket = open_control_socket(&interface.name)
        .map_err(interface.failed("open a packet socket on"))?;
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
        let printed = print(&sentence(&interface.name, arguments, &reply));
        if arguments.once {
            return printed;
        }
        // The lease is renewed also where no process reads the answers.
        // A renewal after half of the granted lease: one lost answer does not end the lease.
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
    mac: Mac,
}

impl Interface {
    fn find(name: &str) -> Result<Self, HoldError> {
        let name = name.to_owned();
        if name.contains('/') || name == ".." || name == "." {
            return Err(HoldError::Name(name));
        }
        let found = match std::fs::read_to_string(format!("/sys/class/net/{name}/address")) {
            Ok(text) => text.trim().to_owned(),
            Err(cause) => return Err(HoldError::Missing(name, cause)),
        };
        match address(&found) {
            Ok(mac) => Ok(Self { name, mac }),
            Err(_) => Err(HoldError::Interface(name, found)),
        }
    }

    fn failed(&self, what: &'static str) -> impl Fn(io::Error) -> HoldError + use<> {
        let name = self.name.clone();
        move |cause| HoldError::Socket(what, name.clone(), cause)
    }
}

fn ask(socket: &OwnedFd, interface: &Interface, request: &Request) -> Result<Reply, HoldError> {
    for _ in 0..ATTEMPTS {
        rustix::net::send(socket, &request.to_frame(), SendFlags::empty())
            .map_err(|cause| interface.failed("send on")(cause.into()))?;
        let until = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).ok();
            let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
            match rustix::event::poll(&mut fds, left.as_ref()) {
                Ok(0) => break,
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(cause) => return Err(interface.failed("wait for")(cause.into())),
            }
            let mut frame = [0; 2_048];
            let (received, _) = rustix::net::recv(socket, &mut frame, RecvFlags::empty())
                .map_err(|cause| interface.failed("receive from")(cause.into()))?;
            // Other programs may use this EtherType: only the answer to this request counts.
            let frame = frame.get(..received).unwrap_or_default();
            if let Ok(reply) = Reply::from_frame(frame)
                && reply.nonce == request.nonce
            {
                return Ok(reply);
            }
        }
    }
    Err(HoldError::Silent(interface.name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, HoldError> {
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
        for (line, reason) in [
            ("", "which interface"),
            ("eth0 --hold-us many", "'many'"),
            ("eth0 eth1", "eth1"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn a_missing_interface_says_what_to_do() {
        let error = Interface::find("no-such-if").err().unwrap().to_string();
        assert!(
            error.contains("no-such-if") && error.contains("ip link"),
            "{error}"
        );
        assert!(Interface::find("../../etc").is_err());
    }
}
