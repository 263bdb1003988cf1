// SPDX-License-Identifier: Apache-2.0
//! A packet socket for control frames alone: at the tap of a guest whose frames the kernel moves, or in a guest.

use crate::control::frame::ETHER_TYPE;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Opens the socket, which never blocks. The frames also continue to the tap's network, where no bridge relays them.
///
/// # Errors
/// When the kernel refuses: this needs CAP_NET_RAW.
pub fn open(interface: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // The socket has no protocol yet, so that it receives nothing from other interfaces before it is bound.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    let index = name_to_index(&socket, interface)?;
    // SAFETY: all-zero is a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = ETHER_TYPE.to_be();
    address.sll_ifindex = libc::c_int::try_from(index).unwrap_or(0);
    // SAFETY: the address lives and is as long as the given length.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::super::Tap;
    use super::*;
    use crate::frame::HEADER_LEN;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::{read, write};

    /// A frame of a guest that went through the kernel.
    fn frame(kind: u16) -> Vec<u8> {
        let mut frame = vec![0; HEADER_LEN];
        frame.extend([0x01, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1]);
        frame.extend(kind.to_be_bytes());
        frame.resize(HEADER_LEN + 60, 7);
        frame
    }

    fn wait(file: &OwnedFd) -> bool {
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: 200_000_000,
        };
        poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&limit)) == Ok(1)
    }

    /// Exchanges frames in a network namespace of this thread.
    fn exchange() -> Result<(), String> {
        // SAFETY: takes this thread, which ends with the test, into a namespace of its own.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
            return Err(io::Error::last_os_error().to_string());
        }
        let tap = Tap::open("tap0", 1).map_err(|cause| cause.to_string())?;
        let up = std::process::Command::new("ip")
            .args(["link", "set", "tap0", "up"])
            .status();
        if !up.map_err(|cause| cause.to_string())?.success() {
            return Err("ip link set tap0 up".into());
        }
        let ends = tap.ends().unwrap();
        let (guest, control) = (&ends.queues[0], ends.control.unwrap());
        write(guest, &frame(0x0800)).unwrap();
        assert!(!wait(&control), "it brings no other frames");
        write(guest, &frame(ETHER_TYPE)).unwrap();
        assert!(wait(&control));
        let mut bytes = [0; 200];
        assert_eq!(read(&control, &mut bytes).unwrap(), 60);
        assert_eq!(bytes[..60], frame(ETHER_TYPE)[HEADER_LEN..]);
        bytes[40] = 9;
        write(&control, &bytes[..60]).unwrap();
        // The interface also sends frames of its own.
        loop {
            assert!(wait(guest), "no answer");
            let mut came = [0; 2_000];
            let len = read(guest, &mut came).unwrap();
            if came[HEADER_LEN..len] == bytes[..60] {
                return Ok(());
            }
        }
    }

    #[test]
    fn control_frames_come_from_a_tap_alone_and_answers_go_to_its_guest() {
        let result = std::thread::spawn(exchange).join().unwrap();
        if let Err(why) = result {
            eprintln!("SKIPPED: no tap in a namespace: {why}");
        }
    }
}
