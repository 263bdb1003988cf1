// SPDX-License-Identifier: Apache-2.0
//! Stops a thread of a child and makes system calls in its place, as an attacker in it would. For tests of sandboxes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    unsafe_code,
    reason = "in a test, a failure is a panic; no library has ptrace"
)]

use std::ffi::c_void;

/// A stopped thread of a child.
#[derive(Debug)]
pub struct Thread {
    id: i32,
    before: libc::user_regs_struct,
}

impl Thread {
    /// Stops a thread that waits in a system call. The `syscall` instruction of that call is used for other calls. A
    /// running thread is continued until it waits.
    pub fn new(id: i32) -> Self {
        for _ in 0..1_000 {
            // SAFETY: attaches to a thread of a child of ours.
            let result = unsafe { libc::ptrace(libc::PTRACE_ATTACH, id, 0, 0) };
            assert_eq!(
                result,
                0,
                "cannot trace: {}",
                std::io::Error::last_os_error()
            );
            wait(id);
            let before = registers(id);
            let thread = Self { id, before };
            if thread.word(before.rip - 2) & 0xffff == 0x050f {
                return thread;
            }
            drop(thread);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("thread {id} waits in no system call");
    }

    fn word(&self, address: u64) -> i64 {
        // SAFETY: reads a word of the thread's memory, not of ours.
        unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, self.id, address as *mut c_void, 0) }
    }

    /// Writes a string below the thread's stack and returns its address.
    pub fn string(&self, text: &str) -> u64 {
        self.bytes(text.as_bytes())
    }

    /// Writes bytes below the thread's stack and returns their address.
    pub fn bytes(&self, bytes: &[u8]) -> u64 {
        let at = (self.before.rsp - 512) & !7;
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len() / 8 * 8 + 8, 0);
        for (word, offset) in bytes.chunks_exact(8).zip((0..).step_by(8)) {
            let word = i64::from_ne_bytes(word.try_into().unwrap());
            let to = (at + offset) as *mut c_void;
            // SAFETY: writes below the red zone of a stopped thread's stack.
            let result = unsafe { libc::ptrace(libc::PTRACE_POKEDATA, self.id, to, word) };
            assert_eq!(result, 0);
        }
        at
    }

    /// Makes a system call and returns its result.
    pub fn call(&self, number: libc::c_long, arguments: [u64; 4]) -> i64 {
        let [rdi, rsi, rdx, r10] = arguments;
        let registers_of_call = libc::user_regs_struct {
            rax: number.cast_unsigned(),
            rdi,
            rsi,
            rdx,
            r10,
            rip: self.before.rip - 2,
            // Prevents the kernel from restarting a system call.
            orig_rax: u64::MAX,
            ..self.before
        };
        set_registers(self.id, &registers_of_call);
        // SAFETY: one instruction of a stopped thread.
        let result = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.id, 0, 0) };
        assert_eq!(result, 0);
        wait(self.id);
        registers(self.id).rax.cast_signed()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        set_registers(self.id, &self.before);
        // SAFETY: detaches from a thread that this process traces.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.id, 0, 0) };
    }
}

fn wait(id: i32) {
    let mut status = 0;
    // SAFETY: waits for a thread that this process traces; `status` is a local.
    let result = unsafe { libc::waitpid(id, &raw mut status, libc::__WALL) };
    assert!(
        result == id && libc::WIFSTOPPED(status),
        "{result} {status:#x}"
    );
}

fn registers(id: i32) -> libc::user_regs_struct {
    // SAFETY: all-zero is a valid set of registers, and the kernel fills it in.
    unsafe {
        let mut registers: libc::user_regs_struct = std::mem::zeroed();
        let result = libc::ptrace(libc::PTRACE_GETREGS, id, 0, &raw mut registers);
        assert_eq!(result, 0);
        registers
    }
}

fn set_registers(id: i32, registers: &libc::user_regs_struct) {
    // SAFETY: the thread is stopped, and the registers are derived from its own.
    let result = unsafe { libc::ptrace(libc::PTRACE_SETREGS, id, 0, &raw const *registers) };
    assert_eq!(result, 0);
}
