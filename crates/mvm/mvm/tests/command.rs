// SPDX-License-Identifier: Apache-2.0
//! Tests of the command: its errors on a host that lacks something, and its clean-up.

use crate::guests::{faulting, micro_vms};
use crate::load::{guest_choices, load, processor_time};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vtax_testkit::skip;

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

#[test(needs = [root()])]
fn without_kvm_it_says_why_and_what_to_do() {
    let (mounted, ..) = shell("unshare -m sh -c 'mount --bind /dev/null /dev/kvm'");
    if !mounted {
        skip!("hiding /dev/kvm needs root and a /dev/kvm");
    }
    let (success, _, error) = shell(
        "unshare -m sh -c 'mount --bind /dev/null /dev/kvm && exec $MVM run --listen 127.0.0.1:0'",
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

#[test(needs = [program("qemu-img")])]
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
    assert!(run.status.success());
    assert_eq!(&std::fs::read(&qcow2).unwrap()[..4], b"QFI\xFB");
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        3,
        "no temporary file is left"
    );
}

/// A running command, which is killed when this is dropped.
struct Running {
    child: Child,
    lines: Vec<String>,
    address: SocketAddr,
}

impl Running {
    /// Starts the command in a shell and waits until it serves HTTP.
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

#[test(needs = [micro_vms()])]
fn live_guests_beyond_the_descriptor_limit_spread_over_processes_that_end_with_the_first() {
    // 562 descriptors leave room for 50 guests a process.
    let script =
        "ulimit -n 562; exec $MVM run --image web --live --guests 120 --listen 127.0.0.1:0";
    let mut running = Running::start(script);
    let first = &running.lines[0];
    assert!(
        first.contains("3 processes") && first.contains("562 file descriptors"),
        "{first}"
    );
    let seconds = Duration::from_secs(1);
    let latencies = load(running.address, 120, "/hi", 100, 2, seconds).unwrap();
    assert_eq!((latencies.count(), latencies.failed), (100, 0));
    let children = format!("/proc/{0}/task/{0}/children", running.child.id());
    let shards: Vec<u32> = std::fs::read_to_string(children)
        .unwrap()
        .split_whitespace()
        .map(|p| p.parse().unwrap())
        .collect();
    assert_eq!(shards.len(), 3);
    // SIGKILL prevents any clean-up by the process itself.
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

/// Runs a command that must fail, and returns its error. Its folder for temporary files must be empty afterwards.
fn refused(script: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("export TMPDIR='{}'; {script}", folder.path().display());
    let (success, out, error) = shell(&script);
    assert!(!success, "{script}: {out}");
    assert!(!error.contains("panicked"), "{error}");
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "{script} leaves files behind");
    error
}

#[test]
fn malformed_images_are_refused_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let mut unsigned = [0u8; 512];
    unsigned[0] = 0xF4;
    let files: [(&str, &[u8], &str); 4] = [
        ("empty", &[], "512"),
        ("short", &[0xF4; 511], "512"),
        ("long", &[0xF4; 513], "512"),
        ("unsigned", &unsigned, "AA55"),
    ];
    for (name, bytes, problem) in files {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = refused(&format!(
            "$MVM run --image '{}' --listen 127.0.0.1:0",
            path.display()
        ));
        assert!(error.contains(problem), "{name}: {error}");
    }
}

#[test(needs = [micro_vms()])]
fn exhausted_descriptors_are_named() {
    let few = "ulimit -n 9; $MVM run --guests 5 --workers 4 --listen 127.0.0.1:0";
    let error = refused(few);
    assert!(error.contains("file descriptor limit"), "{error}");
    let live = "ulimit -n 100; $MVM run --live --guests 5 --listen 127.0.0.1:0";
    let error = refused(live);
    assert!(
        error.contains("100 file descriptors") && error.contains("none"),
        "{error}"
    );
}

#[test(needs = [micro_vms()])]
fn exhausted_memory_is_named() {
    for script in [
        // Too little address space for the table of guests.
        "ulimit -v 300000; $MVM run --guests 40000000 --listen 127.0.0.1:0",
        // More guests than fit into the memory of any host.
        "$MVM run --guests 4294967295 --listen 127.0.0.1:0",
        "$MVM run --live --guests 4000000000 --listen 127.0.0.1:0",
    ] {
        let error = refused(script);
        assert!(error.contains("memory is exhausted"), "{script}: {error}");
    }
}

#[test(needs = [micro_vms()])]
fn exhausted_process_ids_are_named_and_nothing_keeps_running() {
    // Since Linux 6.14 each PID namespace has its own limit, and its numbers start from 300 after a wrap.
    let limited = |script: &str| {
        format!(
            "unshare --pid --fork --mount-proc sh -c 'echo 340 > /proc/sys/kernel/pid_max && {script}'"
        )
    };
    let host = || std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    let before = host();
    let (own, ..) = shell(&limited("true"));
    if !own || host() != before {
        skip!("needs root and a kernel with a PID limit for each namespace");
    }
    // Every shard has two tasks, and many more where the kernel starts a thread for each VM.
    let script = limited(
        "$MVM run --live --guests 30000 --listen 127.0.0.1:0; code=$?; sleep 1; \
         for p in /proc/[0-9]*; do cat $p/comm; done | grep vtax-mvm >&2; exit $code",
    );
    let error = refused(&script);
    assert!(
        error.contains("process or thread limit"),
        "the limit is not named: {error}"
    );
    assert!(
        !error.lines().any(|line| line == "vtax-mvm"),
        "a process goes on: {error}"
    );
}

#[test(needs = [micro_vms()])]
fn no_branch_of_one_population_is_predicted_by_what_another_did() {
    const LINE: &str = "SpeculationIndirectBranch:\t";
    let of = |status: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(LINE));
        line.map(str::to_owned)
    };
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    if !of(&own).is_some_and(|how| how.starts_with("conditional")) {
        let how = of(&own);
        skip!("this kernel leaves branch prediction to no process: {how:?}");
    }
    let running = Running::start("exec $MVM run --guests 2 --listen 127.0.0.1:0");
    assert!(answer(running.address, "/vm/1/hi").contains("hello"));
    let tasks = std::fs::read_dir(format!("/proc/{}/task", running.child.id())).unwrap();
    let mut threads = 0;
    for task in tasks {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        assert_eq!(
            of(&status).as_deref(),
            Some("conditional force disabled"),
            "{status}"
        );
        threads += 1;
    }
    assert!(threads > 1);
}

#[test(needs = [micro_vms()])]
fn every_thread_of_a_monitor_is_shut_in_and_its_snapshot_is_still_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut running = Running::start(&format!(
        "exec $MVM run --guests 50 --save '{}' --socket '{}' --listen 127.0.0.1:0",
        at("saved").display(),
        at("socket").display()
    ));
    assert!(answer(running.address, "/vm/7/hi").contains("hello"));
    let id = running.child.id();
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let statuses: Vec<String> = tasks
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap())
        .collect();
    assert!(statuses.len() > 1);
    for status in statuses {
        for line in [
            "Seccomp:\t2",
            "NoNewPrivs:\t1",
            "CapInh:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "CapEff:\t0000000000000000",
        ] {
            assert!(status.lines().any(|found| found == line), "{status}");
        }
    }
    let id = rustix::process::Pid::from_child(&running.child);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert!(running.child.wait().unwrap().success());
    assert!(at("saved").exists() && !at("socket").exists());
    let loaded = Running::start(&format!(
        "exec $MVM run --load '{}' --listen 127.0.0.1:0",
        at("saved").display()
    ));
    assert!(answer(loaded.address, "/vm/49/hi").contains("hello"));
}

/// The answer to a client's request for `path`.
fn answer(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).unwrap();
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test(needs = [micro_vms()])]
fn more_clients_than_descriptors_keep_neither_clients_nor_guests_from_theirs() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("faulting.img");
    std::fs::write(&image, faulting().bytes()).unwrap();
    let running = Running::start(&format!(
        "ulimit -n 60; exec $MVM run --image '{}' --guests 9 --listen 127.0.0.1:0",
        image.display()
    ));
    let silent = || -> Vec<TcpStream> {
        let connect = |_| TcpStream::connect(running.address).unwrap();
        (0..200).map(connect).collect()
    };
    for guest in 0..9 {
        // The clients stay connected and more connect while a guest faults, whose worker needs descriptors for the next
        // guest.
        let clients = silent();
        let asked = Instant::now();
        let gone = answer(running.address, &format!("/vm/{guest}/x"));
        assert!(gone.starts_with("HTTP/1.1 410 "), "{gone}");
        let status = answer(running.address, "/status");
        let dead = format!("\"dead\":{}", guest + 1);
        assert!(status.contains(&dead), "{status}");
        assert!(asked.elapsed() < Duration::from_secs(8), "guest {guest}");
        drop(clients);
    }
}

#[test(needs = [test_all("takes 4 s"), micro_vms()])]
fn a_guest_that_is_alone_in_its_process_gets_no_more_than_each_of_many_in_another() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guests/burner.asm");
    if let Err(reason) = vtax_mvm::image::Image::open(source) {
        skip!("{reason}");
    }
    // 64 guests in the first process, one in the second.
    let running = Running::start(&format!(
        "exec $MVM run --image '{source}' --live --guests 65 --listen 127.0.0.1:0"
    ));
    let get = |path: String| {
        let answer = answer(running.address, &path);
        answer.split("\r\n\r\n").nth(1).unwrap().to_owned()
    };
    let spinners = [0, 1, 2, 3, 4, 64];
    for guest in spinners {
        assert_eq!(get(format!("/vm/{guest}/s")), ".\n");
    }
    let counts = || {
        spinners.map(|guest| {
            let answer = get(format!("/vm/{guest}/?"));
            let digits = answer.bytes().take(8).map(|c| u32::from(c - b'a'));
            let place = |i: usize| 8 * (i / 2) + 4 * (i % 2);
            digits.enumerate().map(|(i, d)| d << place(i)).sum::<u32>()
        })
    };
    std::thread::sleep(Duration::from_millis(300));
    let before = counts();
    std::thread::sleep(Duration::from_secs(3));
    let after = counts();
    let shares: Vec<u32> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    let (least, most) = (*shares.iter().min().unwrap(), *shares.iter().max().unwrap());
    assert!(
        least > 0 && f64::from(most) <= 1.6 * f64::from(least),
        "what five spinners in one process and one in another counted: {shares:?}"
    );
}

#[test]
fn clients_ask_guests_in_unrelated_orders() {
    let asked = |client| {
        let mut random = guest_choices(client);
        (0..64).map(move |_| random.below(1_000_000))
    };
    let first: Vec<usize> = asked(0).collect();
    let both = asked(1).filter(|guest| first.contains(guest)).count();
    assert!(both < 3, "{both} of 64 guests are asked by both clients");
}

#[test]
fn processor_time_includes_children_that_were_waited_for() {
    let before = processor_time(&[]);
    let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done";
    let status = Command::new("sh").args(["-c", burn]).status();
    assert!(status.unwrap().success());
    let spent = processor_time(&[]).saturating_sub(before);
    assert!(spent >= Duration::from_millis(50), "{spent:?}");
}
