// SPDX-License-Identifier: Apache-2.0
//! A cell's uplink to a network outside, in a network namespace in place of the host's.

use rustix::thread::UnshareFlags;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::panic::resume_unwind;
use std::process::Command;
use std::time::{Duration, Instant};
use vtax_host::cell::{Cell, CellConfig, LinkConfig, OuterNetwork, SeatConfig, Uplink};
use vtax_testkit::skip;

const TARGET: Ipv4Addr = Ipv4Addr::new(10, 93, 0, 10);

fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(
        output.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a test on a thread with an empty network namespace.
fn on_a_host_of_its_own(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: a network namespace is a thread's own, and no file descriptor is unshared.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            test();
        });
        thread.join().unwrap_or_else(|panic| resume_unwind(panic));
    });
}

fn config(uplink: Uplink, mtu: u32) -> CellConfig {
    CellConfig {
        name: "uplink".to_owned(),
        link: LinkConfig {
            mtu,
            ..LinkConfig::default()
        },
        seats: vec![
            SeatConfig::default(),
            SeatConfig {
                name: "neighbour".to_owned(),
                ..SeatConfig::default()
            },
        ],
        outer: Some(OuterNetwork {
            uplink,
            target: (TARGET, 24),
        }),
    }
}

/// Whether a host answers at an address; a refused connection counts.
fn answers(address: Ipv4Addr) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        let address = SocketAddr::from((address, 9));
        match TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
            Ok(_) => return true,
            Err(cause) if cause.kind() == ErrorKind::ConnectionRefused => return true,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    false
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test(needs = [root()])]
fn a_bridge_of_the_host_gets_one_port_and_loses_it_with_the_cell_however_that_ends() {
    on_a_host_of_its_own(|| {
        sh("ip link add lan type bridge
            ip link add nic type veth peer name far
            ip link set nic master lan up
            ip address add 10.93.0.1/24 dev lan
            ip link set far up
            ip link set lan up");
        let about_lan = || sh("ip -o link show lan | sed 's/state [A-Z]*//'");
        let links = || sh("ip -o link | cut -d: -f2");
        let (lan, before) = (about_lan(), links());
        for is_killed in [false, true] {
            let cell = Cell::create_unrecorded(config(Uplink::Bridge("lan".to_owned()), 1400));
            let cell = cell.unwrap();
            let seat = cell.target().unwrap();
            assert_eq!(seat.address(), (TARGET, 24));
            assert_eq!(seat.address_v6(), None);
            seat.attach_veth().unwrap();
            let ports = sh("ip -o link show master lan");
            assert_eq!(ports.lines().count(), 2, "{ports}");
            assert_eq!(about_lan(), lan, "the bridge is as it was");
            assert!(answers(TARGET), "the target is on the network");
            let neighbour = cell.seats().nth(1).unwrap();
            assert!(
                neighbour
                    .client()
                    .can_connect(TARGET.into(), 9)
                    .is_ok_and(|yes| !yes)
            );
            if is_killed {
                let holder = i32::try_from(cell.holder_pid()).unwrap();
                let holder = rustix::process::Pid::from_raw(holder).unwrap();
                rustix::process::kill_process(holder, rustix::process::Signal::KILL).unwrap();
                eventually("the port goes with the cell", || links() == before);
                drop(cell);
            } else {
                cell.destroy().unwrap();
            }
            assert_eq!(links(), before);
            assert_eq!(about_lan(), lan);
        }
    });
}

#[test(needs = [root()])]
fn a_device_of_the_host_carries_the_target_and_is_as_it_was_afterwards() {
    on_a_host_of_its_own(|| {
        sh("ip link add nic type veth peer name far
            ip address add 10.93.0.1/24 dev far
            ip link set far up
            ip link set nic addrgenmode none
            ip link set nic up");
        let about = || sh("ip -d -o link show nic | sed 's/state [A-Z]*//'");
        let before = about();
        let config = config(Uplink::Device("nic".to_owned()), 1500);
        let checked = config.outer.as_ref().unwrap().check(&config.link);
        if let Err(cause) = checked {
            assert!(cause.to_string().contains("CONFIG_MACVLAN"), "{cause}");
            skip!("{cause}");
        }
        let cell = Cell::create_unrecorded(config.clone()).unwrap();
        cell.target().unwrap().attach_veth().unwrap();
        assert!(answers(TARGET), "the target is on the network");
        cell.destroy().unwrap();
        eventually("the device is as it was", || about() == before);

        sh("ip address add 10.94.0.1/24 dev nic");
        let refused = config.outer.as_ref().unwrap().check(&config.link);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("has addresses of this host"), "{refused}");
    });
}
