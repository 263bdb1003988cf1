// SPDX-License-Identifier: Apache-2.0
//! The running program with configured limits, on a switch with other ports.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vtax_nic::control::api::Request;
use vtax_nic::control::client::Client;
use vtax_nic::telemetry::Totals;
use vtax_nic_driver::descriptor::Descriptor;
use vtax_nic_driver::memory::GUEST_BASE;
use vtax_nic_driver::nic::{Nic, Options};

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtax-nic");

/// A switch of three ports, of which `a` has limits. The process ends with the test.
struct Switch {
    process: Child,
    directory: tempfile::TempDir,
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Switch {
    fn start(limits: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let port = |name: &str| format!("[[port]]\nsocket-path = '{}'\n", at(name));
        let text = format!(
            "api = '{}'\n{}limits = {limits}\n{}{}",
            at("api"),
            port("a"),
            port("b"),
            port("c")
        );
        std::fs::write(at("config"), text).unwrap();
        let process = Command::new(PROGRAM)
            .args(["--config", &at("config")])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let switch = Self { process, directory };
        let start = Instant::now();
        while Client::connect(&switch.at("api")).is_err() {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "it does not start"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        switch
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.directory.path()).join(name)
    }

    fn connect(&self, name: &str) -> Nic {
        Nic::connect(&self.at(name), Options::default()).unwrap()
    }

    /// Shared memory that the program has touched, in bytes.
    fn touched(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssShmem:"));
        let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
        kilobytes.parse::<u64>().unwrap() << 10
    }

    fn totals(&self, name: &str) -> Totals {
        let port = Some(name.to_owned());
        let mut client = Client::connect(&self.at("api")).unwrap();
        let mut stats = client.ask(&Request::Stats { port }).unwrap().stats;
        stats.pop().unwrap().totals
    }

    /// Ends the program. Returns its log.
    fn log(mut self) -> String {
        self.process.kill().unwrap();
        let mut printed = String::new();
        let log = self.process.stderr.take();
        log.unwrap().read_to_string(&mut printed).unwrap();
        printed
    }
}

fn frame(to: u8, from: u8) -> Vec<u8> {
    let mut frame = vec![7; 60];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb6]);
    frame
}

/// Sends `sent` repeatedly until it arrives.
fn pass(from: &mut Nic, to: &mut Nic, sent: &[u8]) {
    let start = Instant::now();
    loop {
        from.send(0, sent);
        let mut arrived = false;
        to.wait(0, Duration::from_millis(20));
        to.receive(0, 64, |received| arrived |= received == sent);
        if arrived {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "nothing arrives");
    }
}

#[test]
fn no_guest_of_the_running_program_takes_anothers_address() {
    let switch = Switch::start("{ addresses = '02:00:00:00:00:01' }");
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| switch.connect(name));
    pass(&mut b, &mut a, &frame(1, 2));
    for _ in 0..20 {
        // `a` uses the address of `b`, and `c` that of `a`.
        a.send(0, &frame(3, 2));
        c.send(0, &frame(2, 1));
    }
    let start = Instant::now();
    while switch.totals("a").drops.foreign_address < 20
        || switch.totals("c").drops.foreign_address < 20
    {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "they are let through"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    // Frames to both ports still arrive.
    pass(&mut a, &mut b, &frame(2, 1));
    pass(&mut b, &mut a, &frame(1, 2));
    pass(&mut c, &mut a, &frame(1, 3));
    let printed = switch.log();
    let line = "port a: frames from an address that is not its own are dropped";
    assert_eq!(printed.matches(line).count(), 1, "{printed}");
}

#[test]
fn a_guest_that_sends_all_it_can_takes_its_rate_and_no_more_time_from_the_others() {
    let switch = Switch::start("{ packets = { rate = 1000, burst = 10 } }");
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| switch.connect(name));
    pass(&mut b, &mut a, &frame(1, 2));
    pass(&mut a, &mut b, &frame(2, 1));
    pass(&mut c, &mut b, &frame(2, 3));
    let (start, before) = (Instant::now(), switch.totals("a").tx_packets);
    let mut trips = 0;
    while start.elapsed() < Duration::from_millis(500) {
        for _ in 0..32 {
            a.send(0, &frame(2, 1));
        }
        pass(&mut c, &mut b, &frame(2, 3));
        trips += 1;
    }
    let sent = switch.totals("a").tx_packets - before;
    let allowed = start.elapsed().as_millis() + 10;
    assert!(u128::from(sent) <= allowed, "{sent} of {allowed}");
    assert!(sent > 100, "{sent}: its rate is 1,000 a second");
    assert!(
        trips > 100,
        "{trips} frames of the neighbour in half a second"
    );
    assert!(switch.totals("a").throttled > 0);
}

/// Sends frames out of untouched memory, each from another page, until the front end is disconnected or all pages were
/// sent. Returns the number of frames that the program took.
fn send_untouched(nic: &mut Nic, pages: u64, mut meanwhile: impl FnMut()) -> u64 {
    let untouched = GUEST_BASE + nic.memory.size() - pages * 4096;
    let mut sent = 0;
    for page in 0..pages {
        let tx = &mut nic.pairs[0].tx;
        let head = (page % 256) as u16;
        let frame = Descriptor {
            address: untouched + page * 4096,
            len: 100,
            flags: 0,
            next: 0,
        };
        tx.ring.describe(&nic.memory, head, frame);
        tx.ring.offer(&nic.memory, head);
        if page % 128 != 127 {
            continue;
        }
        tx.ring.publish(&nic.memory);
        tx.kick();
        let start = Instant::now();
        while sent <= page {
            if nic.pairs[0].tx.ring.take_used(&nic.memory).is_some() {
                sent += 1;
            } else if nic.session.closed_within(Duration::from_millis(1)) {
                return sent;
            }
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{sent} of {page}"
            );
        }
        meanwhile();
    }
    sent
}

#[test]
fn a_front_end_whose_memory_nobody_touched_loses_its_port_and_the_program_stays_small() {
    const MIB: u64 = 1 << 20;
    let switch = Switch::start("{ populate = 8388608 }");
    let options = Options {
        untouched: 64 << 20,
        ..Options::default()
    };
    let [mut b, mut c] = ["b", "c"].map(|name| switch.connect(name));
    pass(&mut b, &mut c, &frame(3, 2));
    pass(&mut c, &mut b, &frame(2, 3));
    let before = switch.touched();
    let mut a = Nic::connect(&switch.at("a"), options).unwrap();
    for round in 0..3 {
        let sent = send_untouched(&mut a, 64 * MIB / 4096, || {
            pass(&mut b, &mut c, &frame(3, 2));
        });
        assert!(sent * 4096 <= 9 * MIB, "{sent} pages in round {round}");
        assert!(a.session.closed_within(Duration::from_secs(5)), "{round}");
        pass(&mut c, &mut b, &frame(2, 3));
        let more = switch.touched().saturating_sub(before);
        // This includes the receive buffers of the neighbours, which were untouched as well.
        assert!(more < 12 * MIB, "{more} bytes in round {round}");
        // The account stays with the port: for a new front end, the used rings alone exceed it.
        a = match Nic::connect(&switch.at("a"), options) {
            Ok(next) => next,
            Err(_) => break,
        };
    }
    assert!(switch.totals("a").faults >= 1);
    assert_eq!(switch.totals("b").faults + switch.totals("c").faults, 0);
    let printed = switch.log();
    assert!(
        printed.contains("port a: half of the 8388608 bytes that may be populated for it are used"),
        "{printed}"
    );
    assert!(
        printed.contains("port a: front end disconnected: populating the memory that it shares"),
        "{printed}"
    );
}
