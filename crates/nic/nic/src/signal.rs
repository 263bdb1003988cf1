// SPDX-License-Identifier: Apache-2.0
//! Signals through event descriptors, which never wait for the receiver.
//!
//! A front end shares the open file of its call descriptor with this process. It can put it into blocking mode at any
//! time and fill its counter: a write would then wait for as long as the front end likes, and all other ports would
//! wait too. A check before the write does not help, because the mode can change in between. The kernel itself never
//! waits: it signals an event descriptor when an asynchronous read has ended (`IOCB_FLAG_RESFD`, `io_submit(2)`),
//! whatever the descriptor's mode, and a full counter stays full. So a signal is a read of no bytes from an empty file.

use rustix::fs::{MemfdFlags, fstatfs, memfd_create};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

/// The most signals before their completions are reaped. The kernel keeps an entry of each until then.
const MOST_UNREAPED: u32 = 256;

const PREAD: u16 = 0;
const SIGNAL_EVENT: u32 = 1;

/// `struct iocb` (`linux/aio_abi.h`).
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key_and_rw_flags: u64,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

/// `struct io_event`: four words, which are not read.
type IoEvent = [u64; 4];

/// Attempts at a signal while other threads use up the reaped entries.
const ATTEMPTS: u32 = 64;

/// The type of file system that event descriptors, among others, are on (`linux/magic.h`).
const ANON_INODE: u64 = 0x0904_1934;

/// An asynchronous I/O context and the empty file that it reads.
#[derive(Debug)]
struct Reads {
    context: libc::c_ulong,
    empty: OwnedFd,
    /// A file that cannot be read.
    unreadable: OwnedFd,
}

/// The context of the process. The kernel locks it for a few instructions at most.
static READS: OnceLock<Option<Reads>> = OnceLock::new();

/// Makes the context, which the sandbox forbids later. Returns whether signals never wait; without asynchronous I/O in
/// the kernel they are plain writes.
pub fn prepare() -> bool {
    reads().is_some()
}

fn reads() -> Option<&'static Reads> {
    READS.get_or_init(Reads::new).as_ref()
}

/// Signals an eventfd once. Returns whether that succeeded, as it does when the counter is full.
#[inline]
pub fn raise(event: &OwnedFd) -> bool {
    match reads() {
        Some(reads) => reads.raise(event),
        None => matches!(
            rustix::io::write(event, &1_u64.to_ne_bytes()),
            Ok(_) | Err(Errno::AGAIN)
        ),
    }
}

/// Whether a file is an eventfd. Waiting for other anonymous inodes may block on their owner, as on an epoll
/// instance's lock.
pub fn is_event(file: &OwnedFd) -> bool {
    match reads() {
        // The kernel looks up the event before it checks whether the other file can be read, and does not signal it for
        // a read that did not begin.
        Some(reads) => reads.submit(&reads.unreadable, file) == Err(Errno::BADF),
        None => fstatfs(file).is_ok_and(|system| u64::try_from(system.f_type) == Ok(ANON_INODE)),
    }
}

impl Reads {
    fn new() -> Option<Self> {
        let empty = memfd_create("nothing", MemfdFlags::CLOEXEC).ok()?;
        let (_, unreadable) = pipe_with(PipeFlags::CLOEXEC).ok()?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number, for which there is room.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, MOST_UNREAPED, &raw mut context) };
        (result == 0).then_some(Self {
            context,
            empty,
            unreadable,
        })
    }

    fn raise(&self, event: &OwnedFd) -> bool {
        self.submit(&self.empty, event).is_ok()
    }

    /// Reads no bytes from `file`, which signals `event`.
    fn submit(&self, file: &OwnedFd, event: &OwnedFd) -> Result<(), Errno> {
        let number = |file: &OwnedFd| file.as_raw_fd().cast_unsigned();
        let mut read = Iocb {
            opcode: PREAD,
            file: number(file),
            flags: SIGNAL_EVENT,
            event: number(event),
            ..Iocb::default()
        };
        let mut reads = [&raw mut read];
        for _ in 0..ATTEMPTS {
            // SAFETY: one `iocb` that lives; its read is of no bytes into no buffer, and has ended
            // when the call returns.
            let result = unsafe {
                libc::syscall(libc::SYS_io_submit, self.context, 1_u64, reads.as_mut_ptr())
            };
            if result == 1 {
                return Ok(());
            }
            match Errno::from_io_error(&std::io::Error::last_os_error()) {
                Some(Errno::AGAIN) => self.reap(),
                other => return Err(other.unwrap_or(Errno::INVAL)),
            }
        }
        Err(Errno::AGAIN)
    }

    fn reap(&self) {
        let mut ended = [IoEvent::default(); MOST_UNREAPED as usize];
        // SAFETY: the array has room for as many events as are asked for, and no time is given.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0_u64,
                u64::from(MOST_UNREAPED),
                ended.as_mut_ptr(),
                std::ptr::null_mut::<libc::timespec>(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn read(event: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    #[test]
    fn this_kernel_signals_by_itself() {
        assert!(prepare(), "a kernel without CONFIG_AIO");
    }

    #[test]
    fn each_signal_counts_also_past_the_first_reaping() {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        for _ in 0..10_000 {
            raise(&event);
        }
        assert_eq!(read(&event), 10_000);
    }

    #[test]
    fn workers_share_the_context() {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5_000).for_each(|_| assert!(raise(&event))));
            }
        });
        assert_eq!(read(&event), 20_000);
    }

    #[test]
    fn a_full_counter_in_blocking_mode_holds_nobody_up() {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        raise(&event);
        raise(&event);
        assert!(read(&event) >= u64::MAX - 1);
    }

    #[test]
    fn what_is_no_eventfd_is_left_alone_and_known() {
        let other = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        let (_reader, pipe) = rustix::pipe::pipe().unwrap();
        for file in [other, pipe] {
            assert!(!is_event(&file));
            assert!(!raise(&file), "not told, and said so");
        }
    }

    #[test]
    fn looking_whether_it_is_an_eventfd_does_not_signal_it() {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        assert!(is_event(&event));
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).unwrap_err();
    }
}
