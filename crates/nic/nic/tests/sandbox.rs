// SPDX-License-Identifier: Apache-2.0
//! The limits of the running program, checked from outside: in the kernel's files about it, and by system calls in its
//! threads.

use std::path::Path;
use vtax_nic::hold::Mode;
use vtax_nic_driver::backend::Backend;
use vtax_testkit::skip;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtax-nic");

/// Starts the program and waits for an answer, because its sockets exist before it enters its sandbox.
fn start(directory: &Path) -> Backend {
    let mode = (Mode::Adaptive, 1_000);
    let backend = Backend::start(Path::new(PROGRAM), directory, 2, mode, None).unwrap();
    backend.stats("a0").unwrap();
    backend
}

fn threads(process: u32) -> Vec<i32> {
    let tasks = format!("/proc/{process}/task");
    std::fs::read_dir(tasks)
        .unwrap()
        .map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect()
}

#[test]
fn every_thread_runs_filtered_and_without_privileges() {
    let directory = tempfile::tempdir().unwrap();
    let backend = start(directory.path());
    let threads = threads(backend.id());
    assert!(threads.len() >= 2, "a worker and the operator's");
    for thread in threads {
        let path = format!("/proc/{}/task/{thread}/status", backend.id());
        let status = std::fs::read_to_string(path).unwrap();
        for line in [
            "Seccomp:\t2",
            "NoNewPrivs:\t1",
            "CapInh:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "CapEff:\t0000000000000000",
        ] {
            assert!(
                status.lines().any(|found| found == line),
                "{line}: {status}"
            );
        }
    }
}

/// Tries system calls that a worker does not need in each thread.
#[cfg(target_arch = "x86_64")]
fn finds_no_way_out(process: u32, threads: Vec<i32>) {
    use vtax_jail::taken_over::Thread;
    for id in threads {
        let thread = Thread::new(id);
        // The thread makes the system calls itself.
        assert_eq!(thread.call(libc::SYS_getpid, [0; 4]), i64::from(process));
        let file = thread.string("/etc/passwd");
        let here = i64::from(libc::AT_FDCWD).cast_unsigned();
        let execute = u64::try_from(libc::PROT_READ | libc::PROT_EXEC).unwrap();
        let page = file & !4095;
        let inet = u64::try_from(libc::AF_INET).unwrap();
        let unix = u64::try_from(libc::AF_UNIX).unwrap();
        let netlink = u64::try_from(libc::AF_NETLINK).unwrap();
        let another = u64::from(std::process::id());
        for (what, number, arguments) in [
            ("open", libc::SYS_open, [file, 0, 0, 0]),
            ("openat", libc::SYS_openat, [here, file, 0, 0]),
            ("openat2", libc::SYS_openat2, [here, file, 0, 24]),
            ("creat", libc::SYS_creat, [file, 0o600, 0, 0]),
            ("unlink", libc::SYS_unlink, [file, 0, 0, 0]),
            ("socket", libc::SYS_socket, [inet, 1, 0, 0]),
            ("UNIX socket", libc::SYS_socket, [unix, 1, 0, 0]),
            ("netlink", libc::SYS_socket, [netlink, 3, 0, 0]),
            ("connect", libc::SYS_connect, [3, file, 16, 0]),
            ("bind", libc::SYS_bind, [3, file, 16, 0]),
            ("listen", libc::SYS_listen, [3, 1, 0, 0]),
            ("execve", libc::SYS_execve, [file, 0, 0, 0]),
            ("fork", libc::SYS_fork, [0; 4]),
            ("kill", libc::SYS_kill, [another, 0, 0, 0]),
            ("tgkill", libc::SYS_tgkill, [another, another, 0, 0]),
            ("pidfd_open", libc::SYS_pidfd_open, [another, 0, 0, 0]),
            ("ptrace", libc::SYS_ptrace, [0; 4]),
            (
                "read of another",
                libc::SYS_process_vm_readv,
                [another, file, 1, file],
            ),
            ("mount", libc::SYS_mount, [file, file, file, 0]),
            ("unshare", libc::SYS_unshare, [0; 4]),
            ("setuid", libc::SYS_setuid, [0; 4]),
            ("keyctl", libc::SYS_keyctl, [0; 4]),
            ("bpf", libc::SYS_bpf, [0; 4]),
            ("perf", libc::SYS_perf_event_open, [file, 0, 0, 0]),
            ("userfaultfd", libc::SYS_userfaultfd, [0; 4]),
            ("io_uring_setup", libc::SYS_io_uring_setup, [8, file, 0, 0]),
            (
                "io_uring_register",
                libc::SYS_io_uring_register,
                [3, 2, file, 1],
            ),
            (
                "executable memory",
                libc::SYS_mprotect,
                [page, 4096, execute, 0],
            ),
        ] {
            let result = thread.call(number, arguments);
            assert_eq!(result, -i64::from(libc::EPERM), "{what}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_thread_that_is_taken_over_opens_nothing_and_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let backend = start(directory.path());
    finds_no_way_out(backend.id(), threads(backend.id()));
    // The program still serves.
    assert!(backend.stats("a0").is_ok());
}

/// The program, ended with the test.
#[cfg(target_arch = "x86_64")]
struct Process(std::process::Child);

#[cfg(target_arch = "x86_64")]
impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_thread_that_is_taken_over_finds_no_way_out_by_a_tap() {
    use std::process::{Command, Stdio};
    use vtax_nic::control::{api::Request, client::Client};
    let directory = tempfile::tempdir().unwrap();
    let printed = directory.path().join("said");
    // The program runs in a network namespace of its own, so that no interface of this host changes.
    let mut child = Command::new("unshare");
    child
        .arg("-n")
        .arg(PROGRAM)
        .arg("--socket-path")
        .arg(directory.path().join("vm.sock"))
        .args(["--tap", "jail0", "--datapath", "user"])
        .arg("--api")
        .arg(directory.path().join("api"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&printed).unwrap());
    let mut child = Process(child.spawn().unwrap());
    // The socket accepts connections before the program's threads run. An answer shows that it serves.
    let serves = || {
        Client::connect(&directory.path().join("api"))
            .and_then(|mut client| client.ask(&Request::Stats { port: None }))
            .is_ok()
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !serves() {
        let printed = || std::fs::read_to_string(&printed).unwrap();
        if child.0.try_wait().unwrap().is_some() {
            let printed = printed();
            assert!(
                printed.contains("tap") || printed.contains("unshare"),
                "{printed}"
            );
            skip!("no tap here: {printed}");
        }
        assert!(
            std::time::Instant::now() < deadline,
            "it does not answer: {}",
            printed()
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let id = child.0.id();
    let threads = threads(id);
    assert!(threads.len() >= 2, "a worker and the operator's");
    finds_no_way_out(id, threads);
    assert!(serves());
}

#[cfg(not(target_arch = "x86_64"))]
#[test]
fn a_thread_that_is_taken_over_finds_no_way_out() {
    skip!("system calls are made in another's place on x86-64 only");
}
