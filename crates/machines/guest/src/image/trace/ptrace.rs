// SPDX-License-Identifier: Apache-2.0
//! The calls of ptrace(2) that a tracer needs. No library that this program has offers them.

use std::io;

/// What a traced process is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The entry of a system call, with its number and its arguments.
    Entry { number: i64, arguments: [u64; 6] },
    /// The exit of a system call, and whether it succeeded.
    Exit { succeeded: bool },
    /// Neither.
    Other,
}

/// The request of `struct ptrace_syscall_info` (Linux, `include/uapi/linux/ptrace.h`, since 5.3).
const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
/// The words of that structure: operation and architecture, instruction and stack pointer, then those of the operation.
const WORDS: usize = 10;

/// Has the parent of this process trace it. For a child before it executes a program.
pub(super) fn trace_me() -> io::Result<()> {
    // SAFETY: this request takes no pointers.
    check(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) })
}

/// Has a stopped process stop at system calls with a signal of their own, at the execution of programs, and in all
/// processes and threads that it starts. All of them end with the tracer.
pub(super) fn follow(pid: i32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_EXITKILL;
    // SAFETY: this request takes no pointers.
    check(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options) })
}

/// Lets a stopped process run to its next system call, with a signal or 0. One that was killed meanwhile is no error.
pub(super) fn resume(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: this request takes no pointers.
    match check(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, signal) }) {
        Err(cause) if cause.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

/// What a process that stopped for a system call is at.
pub(super) fn stop(pid: i32) -> io::Result<Stop> {
    let mut words = [0u64; WORDS];
    // SAFETY: the kernel writes at most as many bytes as the third argument says, which is the size of `words`.
    let result = unsafe {
        libc::ptrace(
            GET_SYSCALL_INFO,
            pid,
            size_of_val(&words),
            words.as_mut_ptr(),
        )
    };
    check(result)?;
    let [first, _, _, number, arguments @ ..] = words;
    // PTRACE_SYSCALL_INFO_ENTRY is 1, and PTRACE_SYSCALL_INFO_EXIT is 2.
    Ok(match first.to_ne_bytes()[0] {
        1 => Stop::Entry {
            number: number.cast_signed(),
            arguments,
        },
        2 => Stop::Exit {
            succeeded: number.cast_signed() >= 0 || arguments[0].to_ne_bytes()[0] == 0,
        },
        _ => Stop::Other,
    })
}

/// Waits for any traced process or child; its number and status. `None` when there is none left.
pub(super) fn wait() -> io::Result<Option<(i32, i32)>> {
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes to `status` alone.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
        if pid > 0 {
            return Ok(Some((pid, status)));
        }
        let cause = io::Error::last_os_error();
        match cause.raw_os_error() {
            Some(libc::ECHILD) => return Ok(None),
            Some(libc::EINTR) => {}
            _ => return Err(cause),
        }
    }
}

/// Ends this process by SIGALRM after some seconds.
pub(super) fn end_after(seconds: u32) {
    // SAFETY: this call takes no pointers, and the process has no handler of the signal.
    unsafe { libc::alarm(seconds) };
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
