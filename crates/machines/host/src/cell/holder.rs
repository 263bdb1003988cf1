// SPDX-License-Identifier: Apache-2.0
//! The holder: the process that owns a cell's namespaces. It is PID 1 of the cell's PID namespace and reads from a
//! pipe that only this process holds open for writing. When this process ends, even by `kill -9`, the pipe closes,
//! the holder ends, and the kernel kills every process in the PID namespace and frees the namespaces with all their
//! resources.
//!
//! A pipe, not `PR_SET_PDEATHSIG`: the death signal comes when the *thread* that started the child ends, and is lost
//! when the thread ends before the child asks for the signal.

use crate::HostError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of the set-up, far above its usual tens of milliseconds.
const SETUP_SECONDS: i64 = 30;
/// Time limit for the end of killed processes, after which they count as stuck in the kernel.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Reads the holder's PID as seen from outside (the old /proc is still mounted), then mounts the cell's own /proc and
/// /run.
const PROLOGUE: &str = "set -e
read -r holder rest < /proc/self/stat
mount -t proc proc /proc
mount -t tmpfs -o mode=755 vtax /run
";

/// Prints the holder's PID, then executes `cat` as PID 1. PID 1 must reap orphans: the kernel reaps the orphans of a
/// process that ignores SIGCHLD (wait(2)), and the ignored signal is inherited over exec, so `cat` is sufficient.
const EPILOGUE: &str = "
echo \"$holder\"
exec env --ignore-signal=CHLD cat >/dev/null 2>&1
";

/// A running holder. Dropping the value ends the cell's processes.
#[derive(Debug)]
pub struct Holder {
    unshare: Child,
    pid: u32,
}

impl Holder {
    /// Starts a holder in new network, mount and PID namespaces, with a private `/proc` and a
    /// tmpfs on `/run`, and runs the shell lines `setup` there.
    ///
    /// # Errors
    /// When namespaces cannot be created, or when a line of `setup` fails, with its output.
    pub fn start(setup: &str) -> Result<Self, HostError> {
        let script = format!("{PROLOGUE}{setup}{EPILOGUE}");
        super::process::adopt_orphans().map_err(|cause| {
            HostError::Other(format!(
                "cannot adopt the orphans of a cell (prctl): {cause}"
            ))
        })?;
        let mut command = Command::new("unshare");
        command
            .args([
                "--net",
                "--mount",
                "--propagation",
                "private",
                "--pid",
                "--fork",
                "--kill-child",
                "--",
            ])
            .args(["sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C on the terminal goes to vtax alone, which ends the cell in order.
            .process_group(0);
        let mut unshare = command.spawn().map_err(|cause| HostError::Missing {
            what: format!("a running `unshare` ({cause})"),
            remedy: "install the Debian package util-linux".to_owned(),
        })?;
        match read_pid(&mut unshare) {
            Some(pid) => Ok(Self { unshare, pid }),
            None => Err(failure(unshare)),
        }
    }

    /// The holder's PID, as seen by this process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends the holder and waits until every process of its PID namespace has ended.
    ///
    /// # Errors
    /// When a process in the namespace does not die because it is stuck in the kernel.
    pub fn end(&mut self) -> Result<(), HostError> {
        drop(self.unshare.stdin.take());
        let deadline = Instant::now() + END_LIMIT;
        let mut pause = Duration::from_micros(200);
        loop {
            match self.unshare.try_wait() {
                Ok(Some(_)) => return Ok(()),
                Ok(None) if Instant::now() < deadline => super::process::reap_adopted(),
                Ok(None) => {
                    return Err(HostError::Timeout {
                        what: format!("the end of the cell's holder (PID {})", self.pid),
                        seconds: END_LIMIT.as_secs(),
                        evidence: "a process in the cell is stuck in the kernel: see `ps -eo pid,stat,wchan,args`"
                            .to_owned(),
                    });
                }
                Err(cause) => {
                    return Err(HostError::process("wait for", "the cell's holder")(cause));
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Nothing more can be done about a process that is stuck in the kernel; `end` reports it.
        let _ = self.end();
    }
}

fn read_pid(unshare: &mut Child) -> Option<u32> {
    let stdout = unshare.stdout.as_mut()?;
    let mut ready = [PollFd::new(stdout, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: SETUP_SECONDS,
        tv_nsec: 0,
    };
    if poll(&mut ready, Some(&limit)).ok()? == 0 {
        return None;
    }
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).ok()?;
    line.trim().parse().ok()
}

fn failure(mut unshare: Child) -> HostError {
    // With --kill-child the namespace dies with its parent, which closes standard error.
    let _ = unshare.kill();
    let mut output = String::new();
    if let Some(stderr) = unshare.stderr.as_mut() {
        let _ = stderr.read_to_string(&mut output);
    }
    let status = unshare
        .wait()
        .map_or_else(|cause| cause.to_string(), |status| status.to_string());
    if output.contains("unshare failed: No space left") {
        return HostError::Missing {
            what: format!("a namespace within this user's quota ({})", output.trim()),
            remedy: "end what holds them (`lsns`), or raise user.max_net_namespaces, user.max_mnt_namespaces and \
                     user.max_pid_namespaces by `sudo sysctl`"
                .to_owned(),
        };
    }
    if output.contains("unshare failed") {
        return HostError::Missing {
            what: format!("permission to make namespaces ({})", output.trim()),
            remedy: "run as root (CAP_SYS_ADMIN and CAP_NET_ADMIN), and not in a container that withholds them"
                .to_owned(),
        };
    }
    if output.contains("Specified qdisc kind is unknown") {
        return super::requirements::missing_netem();
    }
    HostError::Program {
        command: "the set-up of a cell".to_owned(),
        status,
        output,
    }
}
