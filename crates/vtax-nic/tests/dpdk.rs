//! DPDK's virtio-user driver against the real program: two linked ports, each sends back whatever
//! comes, and carries frames of a file from one to the other unchanged. It shows that a driver of others works with
//! every kind of ring, not how fast.

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

/// A port's driver.
fn device(directory: &Path, number: u8, ring: &str) -> String {
    let path = directory.join(["a0", "b0"][usize::from(number)]);
    let path = path.display();
    format!("--vdev=net_virtio_user{number},path={path},queue_size=256,{ring}")
}

/// DPDK's program, which sends what comes at a device out at its neighbour.
fn testpmd(devices: &[String]) -> Command {
    let mut command = Command::new("dpdk-testpmd");
    command
        .args(["-l", "0,1", "--no-huge", "-m", "128"])
        .args(["--no-pci", "--no-shconf", "--log-level=1"])
        .args(devices)
        .args(["--", "--forward-mode=io", "--nb-cores=1"])
        .arg("--total-num-mbufs=4096");
    command
}

/// Frames that differ in every byte's place, shorter than a minimal one up to the longest, fewer than a ring has buffers.
fn frames() -> Vec<Vec<u8>> {
    let byte = |frame: usize, at: usize| (frame * 31 + at * 7 + at / 256) as u8;
    let frame = |number: usize| {
        let len = 60 + number * 37 % 1455;
        let mut bytes: Vec<u8> = (0..len).map(|at| byte(number, at)).collect();
        // To everybody, from one station, of a type for experiments that is not that of control frames.
        bytes[..12].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7]);
        bytes[12..14].copy_from_slice(&[0x88, 0xb6]);
        bytes
    };
    (0..200).map(frame).collect()
}

/// Frames as a file in libpcap's format.
fn to_pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let words = [0xa1b2_c3d4_u32, 2 | 4 << 16, 0, 0, 65_535, 1];
    let mut file: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    for frame in frames {
        let len = u32::try_from(frame.len()).unwrap();
        file.extend([0, 0, len, len].iter().flat_map(|word| word.to_le_bytes()));
        file.extend(frame);
    }
    file
}

fn of_pcap(mut file: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    file = file.get(24..).unwrap_or(&[]);
    while let Some((head, rest)) = file.split_at_checked(16) {
        let len = u32::from_le_bytes(head[8..12].try_into().unwrap()) as usize;
        let Some((frame, rest)) = rest.split_at_checked(len) else {
            break;
        };
        frames.push(frame.to_vec());
        file = rest;
    }
    frames
}

/// Frames of a file go into one port and come out of the other, into another file: the same, in the same order.
fn carry(backend: &Backend, directory: &Path, ring: &str) {
    let (from, to) = (directory.join("in.pcap"), directory.join("out.pcap"));
    let frames = frames();
    std::fs::write(&from, to_pcap(&frames)).unwrap();
    let (at_start, at_end) = (
        format!("--vdev=net_pcap0,rx_pcap={}", from.display()),
        format!("--vdev=net_pcap1,tx_pcap={}", to.display()),
    );
    let devices = [
        at_start,
        device(directory, 0, ring),
        device(directory, 1, ring),
        at_end,
    ];
    let mut testpmd = testpmd(&devices)
        .arg("-i")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = testpmd.stdin.take().unwrap();
    writeln!(input, "start").unwrap();
    let start = Instant::now();
    while backend.stats("b0").unwrap().totals.rx_packets < frames.len() as u64 {
        let state = testpmd.try_wait().unwrap();
        let late = start.elapsed() > PATIENCE || state.is_some();
        assert!(!late, "{ring}: {:?}, {state:?}", backend.stats("b0"));
        std::thread::sleep(Duration::from_millis(20));
    }
    // What the port has, its driver takes before it stops.
    std::thread::sleep(Duration::from_millis(200));
    writeln!(input, "stop\nquit").unwrap();
    drop(input);
    let output = testpmd.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let came = of_pcap(&std::fs::read(&to).unwrap_or_default());
    assert_eq!(came.len(), frames.len(), "{ring}: {text}");
    for (number, (came, frame)) in came.iter().zip(&frames).enumerate() {
        assert!(
            came == frame,
            "{ring}: frame {number} of {} bytes",
            frame.len()
        );
    }
}

/// Drives both ports with frames of 64, 512 and 1,518 bytes, one size after the other, and sees
/// that they go round.
fn drive(backend: &Backend, directory: &Path, ring: &str) {
    let devices = [device(directory, 0, ring), device(directory, 1, ring)];
    let mut testpmd = testpmd(&devices)
        .arg("-i")
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
            carry(&backend, path, &ring);
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
