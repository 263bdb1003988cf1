//! The running program with limits from its configuration, among strangers on a switch.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vtax_nic::control::api::Request;
use vtax_nic::control::client::Client;
use vtax_nic::telemetry::Totals;
use vtax_nic_driver::nic::{Nic, Options};

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtax-nic");

/// A switch of three: what `a` sends is limited. It ends with the test.
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

    fn totals(&self, name: &str) -> Totals {
        let port = Some(name.to_owned());
        let mut client = Client::connect(&self.at("api")).unwrap();
        let mut stats = client.ask(&Request::Stats { port }).unwrap().stats;
        stats.pop().unwrap().totals
    }

    /// Ends it; gives what it logged.
    fn log(mut self) -> String {
        self.process.kill().unwrap();
        let mut said = String::new();
        let log = self.process.stderr.take();
        log.unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

fn frame(to: u8, from: u8) -> Vec<u8> {
    let mut frame = vec![7; 60];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb6]);
    frame
}

/// Sends `sent` again and again until it arrives.
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
        // `a` says that it is `b`, and `c` that it is `a`.
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
    // The traffic of both still finds them.
    pass(&mut a, &mut b, &frame(2, 1));
    pass(&mut b, &mut a, &frame(1, 2));
    pass(&mut c, &mut a, &frame(1, 3));
    let said = switch.log();
    let line = "port a: frames from an address that is not its own are dropped";
    assert_eq!(said.matches(line).count(), 1, "{said}");
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
