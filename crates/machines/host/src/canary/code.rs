// SPDX-License-Identifier: Apache-2.0
//! The timed loops of the canary, as machine instructions: no compiler changes them, so that readings of all builds
//! of vtax are comparable. Their digest is in every record.

use sha2::{Digest, Sha256};
use std::arch::global_asm;

// All are called by the System V ABI for x86-64; they use registers that a callee may change, or save them.
//
// Integer: `vtax_canary_integer(rounds)`, a chain of dependent shifts, exclusive ors and multiplications.
// Memory: `vtax_canary_memory(from, lines)`, one addition from each line of 64 bytes.
// System calls: `vtax_canary_calls(rounds)`, getppid, number 110.
// Exchange: `vtax_canary_exchange(to, from, rounds, length, buffer)`, a write, number 1, and a read, number 0, a
// round; returns the rounds that are left, which is 0 but for a failure.
// Answer: `vtax_canary_answer(from, to, length, buffer)`, a read and a write a round, until one fails or ends.
global_asm!(
    ".pushsection .text.vtax_canary, \"ax\", @progbits",
    ".p2align 6",
    ".globl vtax_canary_begin",
    ".hidden vtax_canary_begin",
    "vtax_canary_begin:",
    ".globl vtax_canary_integer",
    ".hidden vtax_canary_integer",
    "vtax_canary_integer:",
    "movabs rax, 0x9e3779b97f4a7c15",
    "mov rcx, rax",
    ".p2align 5",
    "2:",
    "mov rdx, rax",
    "shl rdx, 13",
    "xor rax, rdx",
    "mov rdx, rax",
    "shr rdx, 7",
    "xor rax, rdx",
    "mov rdx, rax",
    "shl rdx, 17",
    "xor rax, rdx",
    "imul rax, rcx",
    "dec rdi",
    "jnz 2b",
    "ret",
    ".p2align 6",
    ".globl vtax_canary_memory",
    ".hidden vtax_canary_memory",
    "vtax_canary_memory:",
    "xor eax, eax",
    ".p2align 5",
    "2:",
    "add rax, qword ptr [rdi]",
    "add rdi, 64",
    "dec rsi",
    "jnz 2b",
    "ret",
    ".p2align 6",
    ".globl vtax_canary_calls",
    ".hidden vtax_canary_calls",
    "vtax_canary_calls:",
    "2:",
    "mov eax, 110",
    "syscall",
    "dec rdi",
    "jnz 2b",
    "ret",
    ".p2align 6",
    ".globl vtax_canary_exchange",
    ".hidden vtax_canary_exchange",
    "vtax_canary_exchange:",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov rbx, rdi",
    "mov r12, rsi",
    "mov r13, rdx",
    "mov r14, rcx",
    "mov r15, r8",
    "2:",
    "mov eax, 1",
    "mov rdi, rbx",
    "mov rsi, r15",
    "mov rdx, r14",
    "syscall",
    "test rax, rax",
    "jle 3f",
    "xor eax, eax",
    "mov rdi, r12",
    "mov rsi, r15",
    "mov rdx, r14",
    "syscall",
    "test rax, rax",
    "jle 3f",
    "dec r13",
    "jnz 2b",
    "3:",
    "mov rax, r13",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "ret",
    ".p2align 6",
    ".globl vtax_canary_answer",
    ".hidden vtax_canary_answer",
    "vtax_canary_answer:",
    "push rbx",
    "push r12",
    "push r14",
    "push r15",
    "mov rbx, rdi",
    "mov r12, rsi",
    "mov r14, rdx",
    "mov r15, rcx",
    "2:",
    "xor eax, eax",
    "mov rdi, rbx",
    "mov rsi, r15",
    "mov rdx, r14",
    "syscall",
    "test rax, rax",
    "jle 3f",
    "mov eax, 1",
    "mov rdi, r12",
    "mov rsi, r15",
    "mov rdx, r14",
    "syscall",
    "test rax, rax",
    "jg 2b",
    "3:",
    "pop r15",
    "pop r14",
    "pop r12",
    "pop rbx",
    "ret",
    ".p2align 6",
    ".globl vtax_canary_end",
    ".hidden vtax_canary_end",
    "vtax_canary_end:",
    ".popsection",
);

mod loops {
    use std::os::fd::{AsRawFd, BorrowedFd};

    unsafe extern "sysv64" {
        static vtax_canary_begin: u8;
        static vtax_canary_end: u8;
        fn vtax_canary_integer(rounds: u64) -> u64;
        fn vtax_canary_memory(from: *const u64, lines: u64) -> u64;
        fn vtax_canary_calls(rounds: u64) -> u64;
        fn vtax_canary_exchange(
            to: i64,
            from: i64,
            rounds: u64,
            length: u64,
            buffer: *mut u8,
        ) -> u64;
        fn vtax_canary_answer(from: i64, to: i64, length: u64, buffer: *mut u8) -> u64;
    }

    /// The instructions.
    pub fn bytes() -> &'static [u8] {
        let (begin, end) = (&raw const vtax_canary_begin, &raw const vtax_canary_end);
        let length = (end as usize).saturating_sub(begin as usize);
        // SAFETY: both symbols are labels of one section, the end after the beginning, and what lies between them is
        // mapped for reading and never changes.
        unsafe { std::slice::from_raw_parts(begin, length) }
    }

    pub fn integer(rounds: u32) {
        // SAFETY: the loop uses registers alone. Zero rounds would wrap.
        unsafe { vtax_canary_integer(u64::from(rounds.max(1))) };
    }

    /// Reads every eighth word.
    pub fn memory(words: &[u64]) {
        let lines = words.len() / 8;
        if lines > 0 {
            // SAFETY: the loop reads the first word of each line, and all lines lie within the slice.
            unsafe { vtax_canary_memory(words.as_ptr(), lines as u64) };
        }
    }

    pub fn calls(rounds: u32) {
        // SAFETY: the system call has no argument and no effect.
        unsafe { vtax_canary_calls(u64::from(rounds.max(1))) };
    }

    /// Returns whether all rounds were made.
    pub fn exchange(
        to: BorrowedFd<'_>,
        from: BorrowedFd<'_>,
        rounds: u32,
        buffer: &mut [u8],
    ) -> bool {
        let [to, from] = [to, from].map(|end| i64::from(end.as_raw_fd()));
        let length = buffer.len() as u64;
        let rounds = u64::from(rounds.max(1));
        // SAFETY: the kernel reads and writes no more than the length of the buffer, which is borrowed for the call, as
        // the descriptors are.
        unsafe { vtax_canary_exchange(to, from, rounds, length, buffer.as_mut_ptr()) == 0 }
    }

    /// Returns when the other end is closed.
    pub fn answer(from: BorrowedFd<'_>, to: BorrowedFd<'_>, buffer: &mut [u8]) {
        let [from, to] = [from, to].map(|end| i64::from(end.as_raw_fd()));
        // SAFETY: as in `exchange`.
        unsafe { vtax_canary_answer(from, to, buffer.len() as u64, buffer.as_mut_ptr()) };
    }
}

pub use loops::{answer, calls, exchange, integer, memory};

/// SHA-256 of the instructions, in hexadecimal digits.
pub fn digest() -> String {
    format!("{:x}", Sha256::digest(loops::bytes()))
}
