// SPDX-License-Identifier: Apache-2.0
//! The remaining privileges of the threads of a running exporter and a running recorder, from the kernel's status files and from system calls
//! made in those threads.

use crate::guest::{self, Guest, Running, eventually, get};
#[cfg(target_arch = "x86_64")]
use crate::record::{Recorder, wait_for};
use std::fs;
use std::net::TcpListener;
use vtax_testkit::skip;

/// The capabilities of root that the exporter keeps: DAC_READ_SEARCH, SYS_PTRACE, SYS_ADMIN, PERFMON and BPF.
const READS_THE_HOST: u64 = 1 << 2 | 1 << 19 | 1 << 21 | 1 << 38 | 1 << 39;

/// The threads of a process, with their names.
fn threads(process: u32) -> Vec<(i32, String)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let named = tasks.flatten().filter_map(|task| {
        let id = task.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((id, name.trim().to_owned()))
    });
    named.collect()
}

/// The thread of this name.
fn thread(process: u32, name: &str) -> i32 {
    let threads = threads(process);
    let found = threads.iter().find(|(_, found)| found == name);
    found.unwrap_or_else(|| panic!("no {name}: {threads:?}")).0
}

/// Asserts that the kernel reports a seccomp filter, no new privileges, and at most these capabilities.
fn is_shut_in(process: u32, thread: i32, kept: u64) {
    let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    };
    assert_eq!(field("Seccomp:"), "2");
    assert_eq!(field("NoNewPrivs:"), "1");
    for set in ["CapInh:", "CapPrm:", "CapEff:"] {
        let held = u64::from_str_radix(&field(set), 16).unwrap();
        assert_eq!(held & !kept, 0, "{set} {held:x}");
    }
}

/// An exporter that has made a pass in its jail.
fn start(arguments: &[&str]) -> (Running, String, Guest) {
    let name = guest::unique("jail");
    let guest = Guest::start(&name);
    let (child, address) = guest::exporter(&[&["--interval", "500ms"], arguments].concat());
    eventually("a guest is seen", || {
        let text = get(&address, "/metrics", "")?;
        if text.contains(&name) {
            Ok(())
        } else {
            Err(text)
        }
    });
    (child, address, guest)
}

#[cfg(target_arch = "x86_64")]
mod taken_over {
    use super::*;
    use vtax_jail::taken_over::Thread;

    fn refused(thread: &Thread, calls: &[(&str, libc::c_long, [u64; 4])]) {
        for (what, number, arguments) in calls {
            let result = thread.call(*number, *arguments);
            assert_eq!(result, -i64::from(libc::EPERM), "{what}");
        }
    }

    fn flag(value: i32) -> u64 {
        u64::from(value.unsigned_abs())
    }

    fn here() -> u64 {
        i64::from(libc::AT_FDCWD).cast_unsigned()
    }

    /// Asserts that system calls which no thread needs are refused.
    fn finds_no_way_out(process: u32, thread: &Thread) {
        // The system calls are really made in the thread: this one returns the exporter's PID.
        assert_eq!(thread.call(libc::SYS_getpid, [0; 4]), i64::from(process));
        let file = thread.string("/etc/passwd");
        let page = file & !4095;
        let execute = flag(libc::PROT_READ | libc::PROT_EXEC);
        let another = u64::from(std::process::id());
        let packet = flag(libc::AF_PACKET);
        refused(
            thread,
            &[
                ("open to write", libc::SYS_open, [file, 1, 0, 0]),
                ("creat", libc::SYS_creat, [file, 0o600, 0, 0]),
                ("openat2", libc::SYS_openat2, [here(), file, 0, 24]),
                ("rename", libc::SYS_rename, [file, file, 0, 0]),
                ("link", libc::SYS_link, [file, file, 0, 0]),
                ("chmod", libc::SYS_chmod, [file, 0o777, 0, 0]),
                ("packets", libc::SYS_socket, [packet, 3, 0, 0]),
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
                ("chroot", libc::SYS_chroot, [file, 0, 0, 0]),
                ("unshare", libc::SYS_unshare, [0; 4]),
                (
                    "another's files",
                    libc::SYS_setns,
                    [3, flag(libc::CLONE_NEWNS), 0, 0],
                ),
                ("setuid", libc::SYS_setuid, [0; 4]),
                ("keyctl", libc::SYS_keyctl, [0; 4]),
                ("a BPF program", libc::SYS_bpf, [5, file, 120, 0]),
                ("perf", libc::SYS_perf_event_open, [file, 0, 0, 0]),
                ("userfaultfd", libc::SYS_userfaultfd, [0; 4]),
                ("a module", libc::SYS_init_module, [file, 1, file, 0]),
                ("io_uring_setup", libc::SYS_io_uring_setup, [8, file, 0, 0]),
                (
                    "executable memory",
                    libc::SYS_mprotect,
                    [page, 4096, execute, 0],
                ),
            ],
        );
    }

    #[test]
    fn a_recorder_that_is_taken_over_finds_no_way_out_and_writes_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let (state, into) = (folder.path().join("state"), folder.path().join("recording"));
        let recorder = Recorder::start(&state, &into);
        let before = wait_for(&state, &into, 2);
        let process = recorder.0.id();
        let id = i32::try_from(process).unwrap();
        is_shut_in(process, id, READS_THE_HOST);
        let passes = Thread::new(id);
        finds_no_way_out(process, &passes);
        let file = passes.string("/etc/passwd");
        let creates = flag(libc::O_CREAT);
        refused(
            &passes,
            &[
                ("write", libc::SYS_openat, [here(), file, 1, 0]),
                ("create", libc::SYS_openat, [here(), file, creates, 0o600]),
                ("truncate", libc::SYS_truncate, [file, 0, 0, 0]),
                ("unlinkat", libc::SYS_unlinkat, [here(), file, 0, 0]),
                ("socket", libc::SYS_socket, [flag(libc::AF_INET), 1, 0, 0]),
                ("connect", libc::SYS_connect, [3, file, 16, 0]),
            ],
        );
        drop(passes);
        // The recorder goes on.
        wait_for(&state, &into, before + 2);
    }

    #[test]
    fn a_thread_of_the_exporter_that_is_taken_over_finds_no_way_out() {
        let (child, address, _guest) = start(&[]);
        let process = child.0.id();
        let inet = flag(libc::AF_INET);

        let id = thread(process, "http");
        is_shut_in(process, id, 0);
        let answers = Thread::new(id);
        finds_no_way_out(process, &answers);
        let file = answers.string("/etc/passwd");
        refused(
            &answers,
            &[
                ("open", libc::SYS_open, [file, 0, 0, 0]),
                ("openat", libc::SYS_openat, [here(), file, 0, 0]),
                ("unlinkat", libc::SYS_unlinkat, [here(), file, 0, 0]),
                ("socket", libc::SYS_socket, [inet, 1, 0, 0]),
                (
                    "UNIX socket",
                    libc::SYS_socket,
                    [flag(libc::AF_UNIX), 1, 0, 0],
                ),
                ("connect", libc::SYS_connect, [3, file, 16, 0]),
                ("bind", libc::SYS_bind, [3, file, 16, 0]),
                (
                    "a network",
                    libc::SYS_setns,
                    [3, flag(libc::CLONE_NEWNET), 0, 0],
                ),
                ("a BPF map", libc::SYS_bpf, [1, file, 120, 0]),
            ],
        );
        drop(answers);

        let id = i32::try_from(process).unwrap();
        is_shut_in(process, id, READS_THE_HOST);
        let passes = Thread::new(id);
        finds_no_way_out(process, &passes);
        let file = passes.string("/etc/passwd");
        let creates = flag(libc::O_CREAT);
        refused(
            &passes,
            &[
                ("write", libc::SYS_openat, [here(), file, 1, 0]),
                ("create", libc::SYS_openat, [here(), file, creates, 0o600]),
                ("unlinkat", libc::SYS_unlinkat, [here(), file, 0, 0]),
                ("socket", libc::SYS_socket, [inet, 1, 0, 0]),
                ("datagrams", libc::SYS_socket, [inet, 2, 0, 0]),
                ("connect", libc::SYS_connect, [3, file, 16, 0]),
                ("bind", libc::SYS_bind, [3, file, 16, 0]),
            ],
        );
        drop(passes);
        // The exporter still makes passes.
        let passes = |text: &str| {
            let line = text
                .lines()
                .find(|line| line.starts_with("vtax_exporter_passes_total"));
            line.map(str::to_owned)
        };
        let before = passes(&get(&address, "/metrics", "").unwrap()).unwrap();
        eventually("another pass", || {
            match passes(&get(&address, "/metrics", "")?) {
                Some(now) if now != before => Ok(()),
                now => Err(format!("{now:?} after {before}")),
            }
        });
    }

    #[test]
    fn a_thread_that_pushes_reaches_its_queue_and_its_server_and_nothing_else() {
        // The server accepts connections and sends no response.
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        fs::write(&secret, "x").unwrap();
        let queue = directory.path().join("queue");
        let to = format!("otlp:http://{}", server.local_addr().unwrap());
        let (child, ..) = start(&["--push", &to, "--queue", queue.to_str().unwrap()]);
        let process = child.0.id();
        let id = thread(process, "push");
        is_shut_in(process, id, 0);
        let pushes = Thread::new(id);
        finds_no_way_out(process, &pushes);
        // SAFETY: asks for the version; no pointer is followed.
        let landlock = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                std::ptr::null::<u8>(),
                0,
                1,
            )
        };
        if landlock < 4 {
            skip!("this kernel's Landlock ({landlock}) knows no networks");
        }
        let denied = -i64::from(libc::EACCES);
        let path = pushes.string(secret.to_str().unwrap());
        assert_eq!(pushes.call(libc::SYS_openat, [here(), path, 0, 0]), denied);
        assert_eq!(
            pushes.call(libc::SYS_unlinkat, [here(), path, 0, 0]),
            denied
        );
        let socket = pushes.call(libc::SYS_socket, [flag(libc::AF_INET), 1, 0, 0]);
        let port = elsewhere.local_addr().unwrap().port().to_be_bytes();
        let mut address = vec![2, 0, port[0], port[1], 127, 0, 0, 1];
        address.resize(16, 0);
        let address = pushes.bytes(&address);
        let connected = pushes.call(libc::SYS_connect, [socket.cast_unsigned(), address, 16, 0]);
        assert_eq!(connected, denied);
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[test]
fn a_thread_of_the_exporter_that_is_taken_over_finds_no_way_out() {
    let (child, ..) = start(&[]);
    is_shut_in(child.0.id(), thread(child.0.id(), "http"), 0);
    skip!("system calls are made in another's place on x86-64 only");
}
