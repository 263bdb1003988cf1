//! Our own virtual NIC beside a monitor, which works for the guests on its ports: which ports those are,
//! and which sockets a monitor shares with its back ends.

use super::options;
use super::process::Process;
use serde::Deserialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A configuration file, as far as it is of interest.
#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    port: Vec<Port>,
}

#[derive(Debug, Deserialize)]
struct Port {
    #[serde(default, rename = "socket-path")]
    socket: Option<PathBuf>,
}

/// The socket of a NIC that has one port only, so that all it does is for one guest; `None` for other
/// programs and for a NIC with several ports, whose time nobody here can divide.
pub(super) fn only_port(arguments: &[Vec<u8>], process: Process<'_>) -> Option<PathBuf> {
    let mut words = arguments.iter().map(Vec::as_slice);
    let first = match super::base_name(words.next()?) {
        b"vtax-nic" => words.next()?,
        b"vtax" if words.next()? == b"nic" => words.next()?,
        _ => return None,
    };
    // `ctl` and `top` are its clients.
    if !first.starts_with(b"-") {
        return None;
    }
    let ports = options::values(arguments, "socket-path").map(path);
    let mut ports: Vec<Option<PathBuf>> = ports.map(Some).collect();
    ports.extend(options::values(arguments, "fd").map(|_| None));
    if let Some(file) = options::value(arguments, "config").map(path) {
        // As the process itself finds it.
        let from = match file.strip_prefix("/") {
            Ok(absolute) => process.path("root").join(absolute),
            Err(_) => process.path("cwd").join(file),
        };
        let config: Config = toml::from_str(&std::fs::read_to_string(from).ok()?).ok()?;
        ports.extend(config.port.into_iter().map(|port| port.socket));
    }
    match &mut ports[..] {
        [port] => port.take(),
        _ => None,
    }
}

/// The sockets that a monitor's command line names.
pub(super) fn sockets(arguments: &[Vec<u8>]) -> Vec<PathBuf> {
    let named = |argument: &Vec<u8>| {
        // The first part of a list needs no key, and is no socket.
        [("path", "path="), ("socket", "socket=")].map(|(key, given)| {
            let is_given = options::contains(argument, given.as_bytes());
            options::named(argument, key).filter(|_| is_given)
        })
    };
    let sockets = arguments.iter().flat_map(named).flatten();
    sockets.map(|socket| path(&socket)).collect()
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<Vec<u8>> {
        text.split(' ').map(|part| part.into()).collect()
    }

    #[test]
    fn a_nic_with_one_port_is_known_by_its_socket_and_others_are_not() {
        let proc = tempfile::tempdir().unwrap();
        let etc = proc.path().join("7/root/etc");
        std::fs::create_dir_all(&etc).unwrap();
        let one = "api = '/a'\n[[port]]\nname = 'vm1'\nsocket-path = '/run/vm1'\nhold = { mode = 'off' }\n";
        std::fs::write(etc.join("one.toml"), one).unwrap();
        std::fs::write(etc.join("two.toml"), [one, one].concat()).unwrap();
        for (text, socket) in [
            ("vtax-nic --socket-path /run/vm1 --tap t", Some("/run/vm1")),
            ("/usr/bin/vtax nic --socket-path=/run/vm1", Some("/run/vm1")),
            ("vtax-nic --config /etc/one.toml", Some("/run/vm1")),
            ("vtax-nic --config /etc/two.toml", None),
            ("vtax-nic --config /etc/none.toml", None),
            ("vtax-nic --socket-path /a --socket-path /b", None),
            ("vtax-nic --socket-path /a --fd 3", None),
            ("vtax-nic ctl --socket-path /a", None),
            ("vtax mvm --socket-path /a", None),
            ("vtax-nic", None),
        ] {
            let found = only_port(&line(text), Process::new(proc.path(), 7));
            assert_eq!(found, socket.map(PathBuf::from), "{text}");
        }
    }

    #[test]
    fn monitors_name_their_sockets_in_their_ways() {
        let qemu = line(
            "qemu-system-x86_64 -chardev socket,id=nic,path=/run/vm1.sock,server=on -kernel /k",
        );
        assert_eq!(sockets(&qemu), [PathBuf::from("/run/vm1.sock")]);
        let other = line("cloud-hypervisor --net vhost_user=true,socket=/run/vm2.sock");
        assert_eq!(sockets(&other), [PathBuf::from("/run/vm2.sock")]);
    }
}
