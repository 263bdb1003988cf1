// SPDX-License-Identifier: Apache-2.0
//! The calls of ptrace(2) and seccomp(2) that a tracer needs. No library that this program has offers them.

use std::io;

/// What a traced process is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The entry of a system call of [`filter`], with its number and its arguments.
    Entry { number: i64, arguments: [u64; 6] },
    /// The exit of a system call, and whether it succeeded.
    Exit { succeeded: bool },
    /// A system call by the numbers of another architecture, which a program of 32 bits makes.
    Foreign,
    /// None of these.
    Other,
}

/// The architecture of this program (Linux, `include/uapi/linux/audit.h`): 64 bits, little-endian.
const ARCHITECTURE: u32 = 0xc000_0000
    | if cfg!(target_arch = "aarch64") {
        libc::EM_AARCH64 as u32
    } else {
        libc::EM_X86_64 as u32
    };

/// The request of `struct ptrace_syscall_info` (Linux, `include/uapi/linux/ptrace.h`, since 5.3).
const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
/// The words of that structure: operation and architecture, instruction and stack pointer, then those of the operation.
const WORDS: usize = 10;

/// Has the parent of this process trace it. For a child before it executes a program.
pub(super) fn trace_me() -> io::Result<()> {
    // SAFETY: this request takes no pointers.
    check(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) })
}

/// The filter by which a traced process stops at the entry of the system calls with these numbers, and of all by the
/// numbers of another architecture. A stop costs a hundred times a system call, so that others must not stop.
pub(super) fn filter(numbers: impl Iterator<Item = libc::c_long>) -> Vec<libc::sock_filter> {
    // Of `struct seccomp_data` (Linux, `include/uapi/linux/seccomp.h`).
    const AT_NUMBER: u32 = 0;
    const AT_ARCHITECTURE: u32 = 4;
    let line = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = |at| line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let answer = |answer| line(libc::BPF_RET | libc::BPF_K, 0, 0, answer);
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut lines = vec![
        load(AT_ARCHITECTURE),
        line(equal, 1, 0, ARCHITECTURE),
        answer(libc::SECCOMP_RET_TRACE),
        load(AT_NUMBER),
    ];
    for number in numbers {
        let same = line(equal, 0, 1, number as u32);
        lines.extend([same, answer(libc::SECCOMP_RET_TRACE)]);
    }
    lines.push(answer(libc::SECCOMP_RET_ALLOW));
    lines
}

/// Puts this process and all that it starts below a filter.
pub(super) fn obey(filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies `len` lines from `filter`, which lives beyond the call, and changes none of them.
    check(libc::c_long::from(unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    }))
}

/// Has a stopped process stop at the system calls of its filter, at the execution of programs, and in all processes and
/// threads that it starts. All of them end with the tracer.
pub(super) fn follow(pid: i32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACESECCOMP
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_EXITKILL;
    // SAFETY: this request takes no pointers.
    check(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options) })
}

/// Lets a stopped process run, with a signal or 0, to the exit of the system call that it is in (`to_exit`) or to its next
/// stop. One that was killed meanwhile is no error.
pub(super) fn resume(pid: i32, signal: i32, to_exit: bool) -> io::Result<()> {
    let request = if to_exit {
        libc::PTRACE_SYSCALL
    } else {
        libc::PTRACE_CONT
    };
    // SAFETY: these requests take no pointers.
    match check(unsafe { libc::ptrace(request, pid, 0, signal) }) {
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
    let [operation, _, _, _, architecture @ ..] = first.to_ne_bytes();
    let is_foreign = u32::from_ne_bytes(architecture) != ARCHITECTURE;
    // PTRACE_SYSCALL_INFO_EXIT is 2, and PTRACE_SYSCALL_INFO_SECCOMP is 3, which is at an entry.
    Ok(match operation {
        3 if is_foreign => Stop::Foreign,
        3 => Stop::Entry {
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

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
