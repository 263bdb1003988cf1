// SPDX-License-Identifier: Apache-2.0
//! DPDK's virtio-user driver against the real program. Two linked ports send back all frames, or the frames of a file
//! go from one port to the other. The tests show that a driver of another project works with every kind of ring, not
//! how fast.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vtax_nic::hold::Mode;
use vtax_nic_driver::backend::Backend;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtax-nic");

/// Frames in flight on each port from the start.
const BURST: u64 = 32;

/// The longest start of a driver on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The argument for a driver at a port of the back end.
fn device(number: u8, directory: &Path, port: &str, ring: &str) -> String {
    let path = directory.join(port);
    let path = path.display();
    format!("--vdev=net_virtio_user{number},path={path},queue_size=256,{ring}")
}

/// DPDK's forwarder, which passes frames between the first and the second device, and between the third and the fourth.
fn testpmd(devices: &[String], more: &[&str]) -> Child {
    Command::new("dpdk-testpmd")
        .args([
            "-l",
            "0,1",
            "--no-huge",
            "-m",
            "128",
            "--no-pci",
            "--no-shconf",
        ])
        .arg("--log-level=1")
        .args(devices)
        .args([
            "--",
            "-i",
            "--forward-mode=io",
            "--nb-cores=1",
            "--total-num-mbufs=4096",
        ])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the forwarder to end, and checks its exit status.
fn finish(testpmd: Child, ring: &str) {
    let output = testpmd.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{ring}: {text}{errors}");
}

/// Sends frames of 64, 512 and 1,518 bytes through both ports, one size after the other, and checks that they
/// circulate.
fn drive(backend: &Backend, directory: &Path, ring: &str) {
    let devices = [
        device(0, directory, "a0", ring),
        device(1, directory, "b0", ring),
    ];
    let mut testpmd = testpmd(&devices, &[]);
    let mut input = testpmd.stdin.take().unwrap();
    let mut before = backend.stats("b0").unwrap().totals;
    for size in [64, 512, 1_518] {
        writeln!(input, "set txpkts {size}\nstart tx_first 1").unwrap();
        let start = Instant::now();
        // More frames than were injected: they returned and were sent again. Frames of the last size circulate until
        // the driver has stopped, many on a busy machine; new ones outweigh them in the end.
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
    finish(testpmd, ring);
}

fn try_rings(kind: &str) {
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
                // Frames in flight at the end may reach a driver that has stopped.
                assert!(drops <= 6 * BURST, "{ring}: {:?}", totals.drops);
                assert_eq!(totals.faults, 0, "{ring}");
            }
        }
    }
}

#[test(needs = [brought_by_test_all("dpdk-testpmd")])]
fn dpdk_speaks_over_split_rings() {
    try_rings("");
}

#[test(needs = [brought_by_test_all("dpdk-testpmd")])]
fn dpdk_speaks_over_packed_rings() {
    try_rings("packed_vq=1,");
}

/// The number of frames. All fit into a ring of 256 at once, each with a separate header, so that none needs to be
/// dropped.
const FRAMES: u8 = 100;

/// Frames of various lengths, each with different bytes.
fn frames() -> Vec<Vec<u8>> {
    let mut state = 1_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let frame = |number: u8| {
        let length = 60 + random() % (1_514 - 60 + 1);
        let mut frame: Vec<u8> = (0..length).map(|_| random().to_le_bytes()[0]).collect();
        // Unicast addresses, and no VLAN tag.
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x90, 0]);
        frame[14] = number;
        frame
    };
    (0..FRAMES).map(frame).collect()
}

/// A capture file in the format of libpcap.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    // The format's number, version 2.4, no time zone, and Ethernet.
    let mut file = words(&[0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65_535, 1]);
    for frame in frames {
        let length = u32::try_from(frame.len()).unwrap();
        file.extend(words(&[0, 0, length, length]));
        file.extend(frame);
    }
    file
}

/// The frames of a capture file.
fn captured(file: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = file.get(24..).unwrap_or_default();
    let mut frames = Vec::new();
    while let Some((head, behind)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes(head[8..12].try_into().unwrap());
        let (frame, behind) = behind.split_at(length.try_into().unwrap());
        frames.push(frame.to_vec());
        rest = behind;
    }
    frames
}

#[test(needs = [brought_by_test_all("dpdk-testpmd")])]
fn dpdk_gets_the_very_frames_that_it_sent_in_their_order() {
    let sent = frames();
    for ring in [
        "mrg_rxbuf=0,in_order=0",
        "mrg_rxbuf=1,in_order=1",
        "packed_vq=1,mrg_rxbuf=0,in_order=1",
        "packed_vq=1,mrg_rxbuf=1,in_order=0",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let [source, nowhere, came] = ["source", "nowhere", "came"].map(|name| path.join(name));
        std::fs::write(&source, capture(&sent)).unwrap();
        let file = |number: u8, rx: &str, tx: &Path| {
            format!("--vdev=net_pcap{number},{rx}tx_pcap={}", tx.display())
        };
        let backend = Backend::start(Path::new(PROGRAM), path, 1, (Mode::Off, 0), None).unwrap();
        let devices = [
            file(0, &format!("rx_pcap={},", source.display()), &nowhere),
            device(0, path, "a0", ring),
            device(1, path, "b0", ring),
            file(1, "", &came),
        ];
        // The frames of the file exist before the start, when the forwarder would discard them.
        let mut testpmd = testpmd(&devices, &["--no-flush-rx"]);
        let mut input = testpmd.stdin.take().unwrap();
        writeln!(input, "start").unwrap();
        let start = Instant::now();
        loop {
            let now = backend.stats("b0").unwrap().totals;
            if now.rx_packets == u64::from(FRAMES) {
                break;
            }
            let state = testpmd.try_wait().unwrap();
            let late = start.elapsed() > PATIENCE || state.is_some();
            assert!(!late, "{ring}: {now:?}, {state:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        // The forwarder passes on the frames in the guest's ring before the ports stop.
        std::thread::sleep(Duration::from_millis(200));
        writeln!(input, "stop\nquit").unwrap();
        drop(input);
        finish(testpmd, ring);
        let got = captured(&std::fs::read(&came).unwrap());
        assert_eq!(got.len(), sent.len(), "{ring}");
        for (number, (got, sent)) in got.iter().zip(&sent).enumerate() {
            assert!(
                got == sent,
                "{ring}: frame {number} differs: {got:02x?} for {sent:02x?}"
            );
        }
    }
}
