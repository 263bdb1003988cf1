//! DPDK's virtio-user driver against the real program: two linked ports, each sends back whatever
//! comes. It shows that a driver of others works with every kind of ring, not how fast.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vtax_nic::hold::Mode;
use vtax_nic_driver::backend::Backend;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtax-nic");

/// Frames that are under way on each port, from the first on.
const BURST: u64 = 32;

/// How long a driver may take to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn has_testpmd() -> bool {
    let found = Command::new("sh")
        .args(["-c", "command -v dpdk-testpmd"])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        eprintln!("SKIPPED: the program dpdk-testpmd is missing (apt-get install dpdk-dev)");
    }
    found
}

/// Drives both ports with frames of 64, 512 and 1,518 bytes, one size after the other, and sees
/// that they go round.
fn drive(backend: &Backend, directory: &Path, ring: &str) {
    let device = |number: u8, port: &str| {
        let path = directory.join(port);
        let path = path.display();
        format!("--vdev=net_virtio_user{number},path={path},queue_size=256,{ring}")
    };
    let mut testpmd = Command::new("dpdk-testpmd")
        .args([
            "-l",
            "0,1",
            "--no-huge",
            "-m",
            "128",
            "--no-pci",
            "--no-shconf",
        ])
        .args(["--log-level=1", &device(0, "a0"), &device(1, "b0")])
        .args([
            "--",
            "-i",
            "--forward-mode=io",
            "--nb-cores=1",
            "--total-num-mbufs=4096",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = testpmd.stdin.take().unwrap();
    let mut before = backend.stats("b0").unwrap().totals;
    for size in [64, 512, 1_518] {
        writeln!(input, "set txpkts {size}\nstart tx_first 1").unwrap();
        let start = Instant::now();
        // More than were put in: they came back and went again. Frames of the last size go round
        // until the driver has stopped, many on a busy machine; new ones outweigh them in the end.
        before = loop {
            let now = backend.stats("b0").unwrap().totals;
            let packets = now.rx_packets - before.rx_packets;
            let bytes = now.rx_bytes - before.rx_bytes;
            if packets > 100 * BURST && bytes > packets * size / 2 {
                break now;
            }
            let state = testpmd.try_wait().unwrap();
            let late = start.elapsed() > PATIENCE || state.is_some();
            assert!(!late, "{ring}, {size} bytes: {now:?}, {state:?}");
            std::thread::sleep(Duration::from_millis(20));
        };
        writeln!(input, "stop").unwrap();
    }
    writeln!(input, "quit").unwrap();
    drop(input);
    let output = testpmd.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{ring}: {text}{errors}");
}

fn try_rings(kind: &str) {
    if !has_testpmd() {
        return;
    }
    for mergeable in [0, 1] {
        for in_order in [0, 1] {
            let ring = format!("{kind}mrg_rxbuf={mergeable},in_order={in_order}");
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path();
            let backend = Backend::start(Path::new(PROGRAM), path, 1, (Mode::Off, 0), None);
            let backend = backend.unwrap();
            drive(&backend, path, &ring);
            for port in ["a0", "b0"] {
                let totals = backend.stats(port).unwrap().totals;
                let drops: u64 = totals.drops.named().iter().map(|(_, count)| count).sum();
                // What is under way at the end may find a driver that has stopped.
                assert!(drops <= 6 * BURST, "{ring}: {:?}", totals.drops);
                assert_eq!(totals.faults, 0, "{ring}");
            }
        }
    }
}

#[test]
fn dpdk_speaks_over_split_rings() {
    try_rings("");
}

#[test]
fn dpdk_speaks_over_packed_rings() {
    try_rings("packed_vq=1,");
}
