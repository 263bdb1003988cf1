//! The command: what it says when the host lacks something, and that it leaves nothing behind.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use vtax_mvm::machine::kvm::Host;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtax-mvm");

fn shell(script: &str) -> (bool, String, String) {
    let run = Command::new("sh")
        .arg("-c")
        .arg(script)
        .env("MVM", PROGRAM)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (run.status.success(), text(&run.stdout), text(&run.stderr))
}

#[test]
fn without_kvm_it_says_why_and_what_to_do() {
    let (mounted, ..) = shell("unshare -m sh -c 'mount --bind /dev/null /dev/kvm'");
    if !mounted {
        eprintln!("SKIPPED: hiding /dev/kvm needs root and a /dev/kvm");
        return;
    }
    let (success, _, error) = shell(
        "unshare -m sh -c 'mount --bind /dev/null /dev/kvm && exec $MVM run --http 127.0.0.1:0'",
    );
    assert!(
        !success && error.contains("/dev/kvm") && error.contains("--accel tcg"),
        "{error}"
    );
}

#[test]
fn without_nasm_it_names_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("x.asm");
    std::fs::write(&source, "org 0x7C00\n").unwrap();
    let run = Command::new(PROGRAM)
        .env("PATH", "/nowhere")
        .arg("build")
        .arg(&source)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&run.stderr);
    assert!(
        !run.status.success() && error.contains("Debian package nasm"),
        "{error}"
    );
}

#[test]
fn build_writes_sector_raw_and_qcow2() {
    let folder = tempfile::tempdir().unwrap();
    let build = |format: &str| {
        let output = folder.path().join(format);
        let run = Command::new(PROGRAM)
            .args(["build", "web", "--format", format, "--output"])
            .arg(&output)
            .output()
            .unwrap();
        (output, run)
    };
    let (sector, run) = build("sector");
    assert!(run.status.success());
    assert_eq!(std::fs::read(&sector).unwrap().len(), 512);
    let (raw, _) = build("raw");
    assert_eq!(std::fs::metadata(&raw).unwrap().len(), 1 << 20);
    let (qcow2, run) = build("qcow2");
    if String::from_utf8_lossy(&run.stderr).contains("not installed") {
        eprintln!("SKIPPED: qemu-img is not installed (Debian package qemu-utils)");
        return;
    }
    assert_eq!(&std::fs::read(&qcow2).unwrap()[..4], b"QFI\xFB");
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        3,
        "no temporary file is left"
    );
}

/// A running command. Nothing of it outlives the test, even one that fails.
struct Running {
    child: Child,
    lines: Vec<String>,
    address: SocketAddr,
}

impl Running {
    /// Starts it by a shell, and waits until it serves HTTP.
    fn start(script: &str) -> Self {
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(script)
            .env("MVM", PROGRAM)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self {
            child,
            lines: Vec::new(),
            address: SocketAddr::from(([0; 4], 0)),
        };
        for line in out.lines() {
            let line = line.unwrap();
            if let Some(rest) = line.strip_prefix("http://") {
                running.address = rest.split('/').next().unwrap().parse().unwrap();
                return running;
            }
            running.lines.push(line);
        }
        panic!("it ended before it served: {:?}", running.lines);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn no_kvm() -> bool {
    Host::open().is_err_and(|reason| {
        eprintln!("SKIPPED: {reason}");
        true
    })
}

#[test]
fn live_guests_beyond_the_descriptor_limit_spread_over_processes_that_end_with_the_first() {
    if no_kvm() {
        return;
    }
    // 562 descriptors leave room for 50 guests a process.
    let script = "ulimit -n 562; exec $MVM run --image web --live --count 120 --http 127.0.0.1:0";
    let mut running = Running::start(script);
    let first = &running.lines[0];
    assert!(
        first.contains("3 processes") && first.contains("562 file descriptors"),
        "{first}"
    );
    let seconds = Duration::from_secs(1);
    let latencies = vtax_mvm::measure::load(running.address, 120, "/hi", 100, 2, seconds).unwrap();
    assert_eq!((latencies.count(), latencies.failed), (100, 0));
    let children = format!("/proc/{0}/task/{0}/children", running.child.id());
    let shards: Vec<u32> = std::fs::read_to_string(children)
        .unwrap()
        .split_whitespace()
        .map(|p| p.parse().unwrap())
        .collect();
    assert_eq!(shards.len(), 3);
    // SIGKILL: nothing gets the chance to clean up.
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    for pid in shards {
        let gone = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
        assert!(gone, "shard {pid} outlives its parent");
    }
}
