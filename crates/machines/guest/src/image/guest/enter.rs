// SPDX-License-Identifier: Apache-2.0
//! Runs a command in the image of a container: `image [PROGRAM ARGUMENT…]`; without a program, the image's entry point. An
//! empty program ends with 0 once the image is entered, which shows what entering it costs.
//!
//! The image is untrusted, and this program starts as root outside of it. It therefore changes its root, capabilities and
//! user first, and gives the image's environment only to `execve(2)`. Until then nothing of the image is executed: this
//! program has no libc and no dynamic loader, so that no variable, library or locale of an image can reach it.
//!
//! `build.rs` compiles it. It reads the record that `oci/enter.rs` writes: strings that each end with NUL, namely the working
//! directory, the user, the group, the capabilities that a root of the image keeps (a bit mask), and then three lists, each
//! after its length: further groups, the environment, and the entry point.

#![no_std]
#![no_main]
// The loops below must not become calls of memcpy(3) and the like.
#![no_builtins]
#![deny(unsafe_op_in_unsafe_fn)]

use core::arch::{asm, global_asm};

const RECORD: &[u8] = b"/usr/lib/vtax/image.conf\0";
const IMAGE: &[u8] = b"/image\0";

/// The exit codes of shells and container engines: not found, and found but not executable.
const NOT_FOUND: usize = 127;
const NOT_EXECUTABLE: usize = 126;
/// The exit code when the image cannot be entered.
const FAILED: usize = 125;

// Errors of Linux, `include/uapi/asm-generic/errno-base.h`.
const EPERM: isize = -1;
const ENOENT: isize = -2;
const ENOEXEC: isize = -8;
const EACCES: isize = -13;
const EINVAL: isize = -22;
const ENOTDIR: isize = -20;

/// The longest path that Linux accepts, with its NUL.
const PATH_MAX: usize = 4096;

/// EPERM (`include/uapi/asm-generic/errno-base.h`).
const NOT_PERMITTED: isize = -1;

/// The system calls of x86-64 (`arch/x86/entry/syscalls/syscall_64.tbl`).
mod number {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const OPENAT: usize = 257;
    pub const LSEEK: usize = 8;
    pub const MMAP: usize = 9;
    pub const CLOSE_RANGE: usize = 436;
    pub const CHDIR: usize = 80;
    pub const FCHDIR: usize = 81;
    pub const CHROOT: usize = 161;
    pub const PIVOT_ROOT: usize = 155;
    pub const MOUNT: usize = 165;
    pub const UMOUNT2: usize = 166;
    pub const UNSHARE: usize = 272;
    pub const UMASK: usize = 95;
    pub const PRCTL: usize = 157;
    pub const CAPGET: usize = 125;
    pub const CAPSET: usize = 126;
    pub const SETGROUPS: usize = 116;
    pub const SETRESGID: usize = 119;
    pub const SETRESUID: usize = 117;
    pub const FACCESSAT: usize = 269;
    pub const EXECVE: usize = 59;
    pub const EXIT_GROUP: usize = 231;
}

// The kernel starts a program with the number of its arguments at the stack pointer, and their addresses above it
// (System V ABI, "Process Initialization").
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {run}",
    "ud2",
    run = sym run,
);

fn system(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the callers pass numbers, and addresses of values that live longer than the call.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

fn exit(code: usize) -> ! {
    loop {
        system(number::EXIT_GROUP, [code, 0, 0, 0, 0, 0]);
    }
}

fn print(text: &[u8]) {
    let mut from = 0;
    while from < text.len() {
        let at = text.as_ptr() as usize + from;
        match system(number::WRITE, [2, at, text.len() - from, 0, 0, 0]) {
            written @ 1.. => from += written.unsigned_abs(),
            _ => return,
        }
    }
}

fn print_number(number: usize) {
    if number > 9 {
        print_number(number / 10);
    }
    print(&[b'0' + (number % 10) as u8]);
}

/// Prints a text of the image. Its control bytes are printed as escapes.
fn print_name(text: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for &byte in text {
        match byte {
            b'\r' => print(b"\\r"),
            b'\n' => print(b"\\n"),
            b'\t' => print(b"\\t"),
            0..=0x1f | 0x7f => print(&[
                b'\\',
                b'x',
                HEX[usize::from(byte >> 4) & 15],
                HEX[usize::from(byte & 15)],
            ]),
            _ => print(&[byte]),
        }
    }
}

fn fail(what: &[u8], error: isize) -> ! {
    print(b"vtax: cannot ");
    print(what);
    print(b": errno ");
    print_number(error.unsigned_abs());
    print(b"\n");
    exit(FAILED)
}

/// Ends the program when a system call has failed.
fn need(what: &[u8], result: isize) -> usize {
    match result {
        0.. => result.unsigned_abs(),
        error => fail(what, error),
    }
}

/// The string at an address, without its NUL.
///
/// # Safety
/// The bytes from the address up to a NUL must be readable for the rest of the program.
unsafe fn string(address: *const u8) -> &'static [u8] {
    let mut length = 0;
    // SAFETY: the caller promises that all bytes up to the NUL are readable.
    unsafe {
        while *address.add(length) != 0 {
            length += 1;
        }
        core::slice::from_raw_parts(address, length)
    }
}

/// A file or anonymous memory in the address space.
fn map(length: usize, writable: bool, file: Option<usize>) -> *mut u8 {
    const READ: usize = 1;
    const WRITE: usize = 2;
    const PRIVATE: usize = 2;
    const ANONYMOUS: usize = 0x20;
    let protection = if writable { READ | WRITE } else { READ };
    let (flags, file) = match file {
        Some(file) => (PRIVATE, file),
        None => (PRIVATE | ANONYMOUS, usize::MAX),
    };
    let mapped = system(number::MMAP, [0, length, protection, flags, file, 0]);
    // mmap(2) returns an error as one of the last 4,095 addresses.
    if (-4095..0).contains(&mapped) {
        fail(b"map memory", mapped);
    }
    mapped as *mut u8
}

/// The strings of the record, one after the other.
struct Record {
    bytes: &'static [u8],
}

impl Record {
    fn read() -> Self {
        const CLOEXEC: usize = 0o2_000_000;
        const END: usize = 2;
        let at = RECORD.as_ptr() as usize;
        let opened = system(number::OPENAT, [AT_CWD, at, CLOEXEC, 0, 0, 0]);
        let file = need(b"open /usr/lib/vtax/image.conf", opened);
        let length = need(
            b"read /usr/lib/vtax/image.conf",
            system(number::LSEEK, [file, 0, END, 0, 0, 0]),
        );
        if length == 0 {
            malformed();
        }
        let mapped = map(length, false, Some(file));
        // SAFETY: the mapping has this length and is never removed. Only root can change the file, which vtax has written
        // as a whole before.
        let bytes = unsafe { core::slice::from_raw_parts(mapped, length) };
        if bytes.last() != Some(&0) {
            malformed();
        }
        Self { bytes }
    }

    /// The next string, without its NUL, which follows it in memory.
    fn next(&mut self) -> &'static [u8] {
        let Some(end) = self.bytes.iter().position(|byte| *byte == 0) else {
            malformed()
        };
        let (string, rest) = self.bytes.split_at(end);
        self.bytes = &rest[1..];
        string
    }

    fn number(&mut self) -> usize {
        let digits = self.next();
        let mut number = 0usize;
        if digits.is_empty() {
            malformed();
        }
        for digit in digits {
            let value = usize::from(digit.wrapping_sub(b'0'));
            let next = number
                .checked_mul(10)
                .and_then(|number| number.checked_add(value));
            match next {
                Some(next) if value < 10 => number = next,
                _ => malformed(),
            }
        }
        number
    }
}

fn malformed() -> ! {
    print(b"vtax: /usr/lib/vtax/image.conf is damaged: have the image unpacked again\n");
    exit(FAILED)
}

const AT_CWD: usize = -100isize as usize;

/// A list of pointers that ends with a null pointer, as `execve(2)` takes it.
struct Pointers {
    first: *mut *const u8,
    length: usize,
}

impl Pointers {
    /// An empty list with room for `most` strings.
    fn for_most(most: usize) -> Self {
        let Some(bytes) = most.checked_add(1).and_then(|most| most.checked_mul(8)) else {
            malformed()
        };
        // Anonymous memory is zero, so the list ends with null at every length.
        let first = map(bytes, true, None).cast::<*const u8>();
        Self { first, length: 0 }
    }

    /// Adds a string that ends with NUL. The caller adds at most the number that it has made room for.
    fn add(&mut self, string: *const u8) {
        // SAFETY: the list has room, and one more for the null at its end.
        unsafe { *self.first.add(self.length) = string };
        self.length += 1;
    }

    fn of_record(record: &mut Record) -> Self {
        let number = record.number();
        // Each string has at least its NUL.
        if number > record.bytes.len() {
            malformed();
        }
        let mut list = Self::for_most(number);
        for _ in 0..number {
            list.add(record.next().as_ptr());
        }
        list
    }
}

/// The way in which the image has become the root.
#[derive(PartialEq)]
enum Root {
    /// The root of a mount namespace of its own: `..` and `chroot(2)` end there.
    Mounted,
    /// By `chroot(2)` in a container, which has taken the right to mount away. Its escape leads into the container.
    InContainer,
    /// By `chroot(2)`, which a process with the capability for it leaves.
    Changed,
}

/// Makes the image the root, where it can be done in a mount namespace of its own, without device files.
fn change_root() -> Root {
    const NEW_NAMESPACE: usize = 0x0002_0000;
    const BIND_ALL: usize = 4096 | 16384;
    const PRIVATE_ALL: usize = (1 << 18) | 16384;
    const NO_DEVICES: usize = 4 | 32 | 4096;
    const O_PATH_DIRECTORY_CLOEXEC: usize = 0o10_000_000 | 0o200_000 | 0o2_000_000;
    const DETACH: usize = 2;
    let at = |text: &[u8]| text.as_ptr() as usize;
    let (here, image) = (at(b".\0"), at(IMAGE));
    // The namespace's own root: this process may be in a chroot already, where pivot_root(2) would leave a way out.
    let top = system(number::CHDIR, [at(b"/proc/1/root/\0"), 0, 0, 0, 0, 0]);
    let own = system(number::UNSHARE, [NEW_NAMESPACE, 0, 0, 0, 0, 0]);
    if own == EPERM {
        chroot();
        return Root::InContainer;
    }
    need(b"make a mount namespace", own);
    if top < 0 {
        chroot();
        return Root::Changed;
    }
    let private = system(number::MOUNT, [0, here, 0, PRIVATE_ALL, 0, 0]);
    need(b"separate the mounts", private);
    let bound = system(number::MOUNT, [image, image, 0, BIND_ALL, 0, 0]);
    need(b"mount /image", bound);
    let limited = system(number::MOUNT, [0, image, 0, NO_DEVICES, 0, 0]);
    need(b"mount /image without devices", limited);
    let flags = O_PATH_DIRECTORY_CLOEXEC;
    let opened = system(number::OPENAT, [AT_CWD, image, flags, 0, 0, 0]);
    let opened = need(b"open /image", opened);
    need(
        b"leave the root",
        system(number::CHROOT, [here, 0, 0, 0, 0, 0]),
    );
    need(
        b"enter /image",
        system(number::FCHDIR, [opened, 0, 0, 0, 0, 0]),
    );
    match system(number::PIVOT_ROOT, [here, here, 0, 0, 0, 0]) {
        // A host whose root is its initial RAM file system.
        EINVAL => {
            need(
                b"change the root",
                system(number::CHROOT, [here, 0, 0, 0, 0, 0]),
            );
            Root::Changed
        }
        pivoted => {
            need(b"change the root", pivoted);
            let detached = system(number::UMOUNT2, [here, DETACH, 0, 0, 0, 0]);
            need(b"detach the root", detached);
            Root::Mounted
        }
    }
}

fn chroot() {
    let image = IMAGE.as_ptr() as usize;
    need(
        b"change the root to /image",
        system(number::CHROOT, [image, 0, 0, 0, 0, 0]),
    );
}

/// Takes all capabilities but those of `kept` away, for good.
fn limit_capabilities(kept: u64) {
    const BOUNDING_DROP: usize = 24;
    const NO_NEW_PRIVILEGES: usize = 38;
    const VERSION_3: u32 = 0x2008_0522;
    for capability in 0..64usize {
        if kept >> capability & 1 == 0 {
            match system(number::PRCTL, [BOUNDING_DROP, capability, 0, 0, 0, 0]) {
                // Beyond the last capability of this kernel.
                EINVAL => break,
                // Without CAP_SETPCAP there is nothing more to take than what the sets below hold.
                EPERM => break,
                dropped => need(b"limit the capabilities", dropped),
            };
        }
    }
    let header: [u32; 2] = [VERSION_3, 0];
    // Twice effective, permitted and inheritable: the low 32 capabilities, then the high ones (capget(2)).
    let mut sets = [0u32; 6];
    let (header, at) = (header.as_ptr() as usize, sets.as_mut_ptr() as usize);
    need(
        b"read the capabilities",
        system(number::CAPGET, [header, at, 0, 0, 0, 0]),
    );
    // SAFETY: the kernel has written the array, which the compiler does not know.
    let mut sets = unsafe { core::ptr::read_volatile(&raw const sets) };
    for (half, kept) in [(0, kept as u32), (3, (kept >> 32) as u32)] {
        sets[half + 1] &= kept;
        sets[half] = sets[half + 1];
        sets[half + 2] = 0;
    }
    let at = sets.as_ptr() as usize;
    need(
        b"limit the capabilities",
        system(number::CAPSET, [header, at, 0, 0, 0, 0]),
    );
    let limited = system(number::PRCTL, [NO_NEW_PRIVILEGES, 1, 0, 0, 0, 0]);
    need(b"refuse new privileges", limited);
}

/// Executes a program. Returns the error only.
fn execute(path: *const u8, arguments: &Pointers, environment: &Pointers) -> isize {
    let (words, variables) = (arguments.first as usize, environment.first as usize);
    system(number::EXECVE, [path as usize, words, variables, 0, 0, 0])
}

fn exists(path: *const u8) -> bool {
    system(number::FACCESSAT, [AT_CWD, path as usize, 0, 0, 0, 0]) == 0
}

/// Explains why a program that exists cannot be executed, and ends.
fn not_executable(path: *const u8, error: isize) -> ! {
    // SAFETY: the callers pass a path that ends with NUL.
    let name = unsafe { string(path) };
    print(b"vtax: `");
    print_name(name);
    match error {
        ENOENT => {
            let mut first = [0u8; 256];
            let opened = system(number::OPENAT, [AT_CWD, path as usize, 0, 0, 0, 0]);
            let buffer = first.as_mut_ptr() as usize;
            let read = match opened {
                0.. => system(
                    number::READ,
                    [opened.unsigned_abs(), buffer, first.len(), 0, 0, 0],
                ),
                _ => 0,
            };
            // SAFETY: the kernel has written the array, which the compiler does not know.
            let first = unsafe { core::ptr::read_volatile(&raw const first) };
            let line = first
                .get(..read.max(0).unsigned_abs())
                .unwrap_or_default()
                .split(|byte| *byte == b'\n')
                .next()
                .unwrap_or_default();
            match line.strip_prefix(b"#!") {
                Some(line) => {
                    let line = line.trim_ascii_start();
                    let interpreter = line.split(|byte| *byte == b' ').next();
                    print(b"` cannot run: its interpreter `");
                    print_name(interpreter.unwrap_or_default());
                    print(b"` is not in the image\n");
                }
                None => print(b"` cannot run: its dynamic loader is not in the image\n"),
            }
            exit(NOT_FOUND)
        }
        EACCES => print(b"` in the image is not executable for its user\n"),
        ENOEXEC => print(
            b"` in the image is no program of this processor, and has no line `#!INTERPRETER`\n",
        ),
        error => {
            print(b"` in the image cannot be executed: errno ");
            print_number(error.unsigned_abs());
            print(b"\n");
        }
    }
    exit(NOT_EXECUTABLE)
}

/// Executes the program that the first argument names, with a name without `/` in the directories of the environment's PATH.
fn run_program(arguments: &Pointers, environment: &Pointers) -> ! {
    // SAFETY: the list has at least one string, and all of its strings and of the environment's end with NUL.
    let name = unsafe { string(*arguments.first) };
    if name.contains(&b'/') {
        let error = execute(name.as_ptr(), arguments, environment);
        if matches!(error, ENOENT | ENOTDIR) && !exists(name.as_ptr()) {
            print(b"vtax: `");
            print_name(name);
            print(b"` is not in the image\n");
            exit(NOT_FOUND);
        }
        not_executable(name.as_ptr(), error);
    }
    let mut directories: &[u8] = b"";
    for at in 0..environment.length {
        // SAFETY: as above; `at` is within the list.
        let variable = unsafe { string(*environment.first.add(at)) };
        if let Some(value) = variable.strip_prefix(b"PATH=") {
            directories = value;
        }
    }
    let mut candidate = [0u8; PATH_MAX];
    let mut refused = None;
    for directory in directories.split(|byte| *byte == b':') {
        // An empty entry is the working directory (POSIX, "Environment Variables").
        let directory = if directory.is_empty() {
            b"."
        } else {
            directory
        };
        if name.is_empty() || directory.len() + name.len() + 2 > PATH_MAX {
            continue;
        }
        let mut length = 0;
        for part in [directory, b"/", name, b"\0"] {
            for byte in part {
                candidate[length] = *byte;
                length += 1;
            }
        }
        let error = execute(candidate.as_ptr(), arguments, environment);
        match error {
            ENOENT | ENOTDIR if !exists(candidate.as_ptr()) => {}
            // A later directory may have one that can be executed.
            EACCES => refused = refused.or(Some(error)),
            error => not_executable(candidate.as_ptr(), error),
        }
    }
    print(b"vtax: `");
    print_name(name);
    match refused {
        Some(_) => print(b"` in the image is not executable for its user (PATH "),
        None => print(b"` is not in the image (PATH "),
    }
    print_name(directories);
    print(b")\n");
    exit(match refused {
        Some(_) => NOT_EXECUTABLE,
        None => NOT_FOUND,
    })
}

/// The whole program. `stack` is the stack pointer that the kernel has set.
extern "C" fn run(stack: *const usize) -> ! {
    const SYS_CHROOT: u64 = 1 << 18;
    // SAFETY: the kernel has put the number of arguments there, and their addresses above it.
    let (count, words) = unsafe { (*stack, stack.add(1).cast::<*const u8>()) };
    let mut record = Record::read();
    let directory = record.next();
    let (user, group) = (record.number(), record.number());
    let kept = record.number() as u64;
    let number_of_groups = record.number();
    let mut groups = [0u32; 64];
    if number_of_groups > groups.len() {
        malformed();
    }
    for number in groups.iter_mut().take(number_of_groups) {
        *number = record.number() as u32;
    }
    let environment = Pointers::of_record(&mut record);
    let entry_point = Pointers::of_record(&mut record);
    let arguments = match count {
        0 | 1 => entry_point,
        count => {
            let mut given = Pointers::for_most(count);
            for at in 1..count {
                // SAFETY: the kernel has put `count` addresses there.
                given.add(unsafe { *words.add(at) });
            }
            given
        }
    };
    if arguments.length == 0 {
        print(b"vtax: the image has no entry point\n");
        exit(NOT_FOUND);
    }
    // A directory of the host that is open here would be a way out of the image.
    let closed = system(number::CLOSE_RANGE, [3, u32::MAX as usize, 0, 0, 0, 0]);
    need(b"close inherited descriptors", closed);
    let root = change_root();
    let entered = system(number::CHDIR, [directory.as_ptr() as usize, 0, 0, 0, 0, 0]);
    need(b"enter the working directory of the image", entered);
    system(number::UMASK, [0o022, 0, 0, 0, 0, 0]);
    limit_capabilities(match root {
        Root::Changed => kept & !SYS_CHROOT,
        Root::Mounted | Root::InContainer => kept,
    });
    let set = system(
        number::SETGROUPS,
        [number_of_groups, groups.as_ptr() as usize, 0, 0, 0, 0],
    );
    // A user namespace with one id denies this call. Its root keeps the groups, which have no numbers there.
    let is_root = user == 0 && group == 0 && number_of_groups == 0;
    match (set, is_root) {
        (NOT_PERMITTED, true) => {}
        (NOT_PERMITTED, false) => fail(
            b"become the image's user, which a user namespace with a range of ids has (newuidmap)",
            set,
        ),
        _ => _ = need(b"set the groups of the image's user", set),
    }
    let set = system(number::SETRESGID, [group, group, group, 0, 0, 0]);
    need(b"set the group of the image's user", set);
    let set = system(number::SETRESUID, [user, user, user, 0, 0, 0]);
    need(b"set the image's user", set);
    // SAFETY: the list has at least one string, and all of its strings end with NUL.
    if unsafe { string(*arguments.first) }.is_empty() {
        exit(0);
    }
    run_program(&arguments, &environment)
}

/// Fills memory: the compiler calls it to make arrays of zeros.
///
/// # Safety
/// As memset(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
    for at in 0..length {
        // SAFETY: the caller promises `length` writable bytes.
        unsafe { *to.add(at) = byte as u8 };
    }
    to
}

/// The name that unwinding code of the library `core` refers to. Nothing unwinds here, since a panic ends the program.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    print(b"vtax: the program that enters the image has failed\n");
    exit(FAILED)
}
