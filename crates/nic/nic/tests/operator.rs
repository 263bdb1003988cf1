// SPDX-License-Identifier: Apache-2.0
//! The running program in its sandbox, from the side of operators and Prometheus.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtax-nic");

/// The program. It ends with the test.
struct Nic(Child);

impl Drop for Nic {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(directory: &Path, metrics: SocketAddr) -> Nic {
    start_with(directory, |command| {
        command.args(["--listen", &metrics.to_string()])
    })
}

fn start_with(directory: &Path, set: impl FnOnce(&mut Command) -> &mut Command) -> Nic {
    let mut command = Command::new(PROGRAM);
    command
        .arg("--socket-path")
        .arg(directory.join("vm1.sock"))
        .arg("--socket-path")
        .arg(directory.join("vm2.sock"))
        .arg("--api")
        .arg(directory.join("api"))
        .env_remove("RUST_LOG")
        .stdin(Stdio::null());
    let nic = Nic(set(&mut command).spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(20);
    while !lists(directory) {
        assert!(Instant::now() < deadline, "it does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    nic
}

fn lists(directory: &Path) -> bool {
    let list = Command::new(PROGRAM)
        .args(["ctl", "--api"])
        .arg(directory.join("api"))
        .arg("list")
        .stderr(Stdio::null())
        .output()
        .unwrap();
    list.status.success() && String::from_utf8_lossy(&list.stdout).contains("override")
}

fn a_free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[test]
fn silent_clients_of_the_metrics_keep_neither_ctl_nor_scrapes_out() {
    let directory = tempfile::tempdir().unwrap();
    let metrics = a_free_port();
    let nic = start(directory.path(), metrics);
    let silent: Vec<_> = (0..80)
        .map(|_| TcpStream::connect(metrics).unwrap())
        .collect();
    // Time to accept all of the clients.
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    assert!(lists(directory.path()));
    let mut scrape = TcpStream::connect(metrics).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    scrape.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("vtax_nic_packets_total{port="), "{answer}");
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    // The threads of clients are in the sandbox too.
    let tasks = std::fs::read_dir(format!("/proc/{}/task", nic.0.id())).unwrap();
    let statuses: Vec<String> = tasks
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok())
        .collect();
    assert!(statuses.len() > 3, "{}", statuses.len());
    assert!(statuses.iter().all(|status| status.contains("Seccomp:\t2")));
    drop(silent);
}

#[test]
fn files_in_the_places_of_sockets_survive_and_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(at("file"), "precious").unwrap();
    let file = at("file");
    let (one, two, metrics) = (at("vm1.sock"), at("vm2.sock"), format!("unix:{file}"));
    for arguments in [
        &["--socket-path", &file][..],
        &["--socket-path", &two, "--api", &file],
        &["--socket-path", &two, "--listen", &metrics],
    ] {
        let mut child = Command::new(PROGRAM)
            .args(["--socket-path", &one])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            printed.contains(&file) && printed.contains("a file, not a socket"),
            "{arguments:?}: {printed}"
        );
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    }
}

/// Sends an invalid message. The program logs it before it closes the connection.
fn fail_as_front_end(directory: &Path) {
    let mut front_end = UnixStream::connect(directory.join("vm1.sock")).unwrap();
    front_end.write_all(&[0xff; 12]).unwrap();
    let _ = front_end.read(&mut [0]);
}

#[test]
fn a_log_that_nobody_reads_does_not_end_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let (reader, log) = std::io::pipe().unwrap();
    drop(reader);
    let _nic = start_with(directory.path(), |command| command.stderr(log));
    fail_as_front_end(directory.path());
    assert!(lists(directory.path()));
}

#[test]
fn the_journal_gets_the_priority_of_a_warning_and_no_time() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, log) = UnixStream::pair().unwrap();
    let stat = rustix::fs::fstat(&log).unwrap();
    let nic = start_with(directory.path(), |command| {
        command
            .env("JOURNAL_STREAM", format!("{}:{}", stat.st_dev, stat.st_ino))
            .stderr(OwnedFd::from(log))
    });
    fail_as_front_end(directory.path());
    drop(nic);
    let mut lines = String::new();
    journal.read_to_string(&mut lines).unwrap();
    let mut warnings = lines.lines().filter(|line| line.contains("disconnected"));
    assert!(
        warnings.next().unwrap().starts_with("<4>vtax_nic::"),
        "{lines}"
    );
    let mut started = lines
        .lines()
        .filter(|line| line.starts_with("<6>vtax_nic::"));
    for text in ["serves 2 ports by 1 worker", "its front end has connected"] {
        assert!(started.any(|line| line.ends_with(text)), "{text}: {lines}");
    }
}
