//! Signals through event descriptors that never wait for whoever receives them.
//!
//! A front end shares the open file of its call descriptor with us. It can put it into blocking mode
//! at any time and fill its counter: a write would then wait for as long as the front end likes, and
//! every other port with it. Looking before writing does not help, for it can do so in between.
//! What never waits is the kernel itself: it signals an event descriptor when an asynchronous read
//! has ended (`IOCB_FLAG_RESFD`, `io_submit(2)`), whatever the descriptor's mode, and a full counter
//! stays full. So a signal is a read of nothing from an empty file.

use rustix::fs::{MemfdFlags, memfd_create};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

/// Signals between two looks at what has ended; the kernel keeps an entry of each until then.
const UNREAPED: u32 = 256;

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

/// `struct io_event`: four words of which none is of interest.
type IoEvent = [u64; 4];

/// An asynchronous I/O context and the empty file that it reads.
#[derive(Debug)]
struct Reads {
    context: libc::c_ulong,
    empty: OwnedFd,
}

/// One for the process: the kernel locks it for a few instructions at most.
static READS: OnceLock<Option<Reads>> = OnceLock::new();

/// Gets ready, which a sandbox would forbid later. Tells whether signals can never wait; without
/// asynchronous I/O in the kernel they are plain writes.
pub fn prepare() -> bool {
    READS.get_or_init(Reads::new).is_some()
}

/// Signals an eventfd once. A counter that is full says all that a signal could.
#[inline]
pub fn raise(event: &OwnedFd) {
    match READS.get_or_init(Reads::new) {
        Some(reads) => reads.raise(event),
        None => {
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }
}

impl Reads {
    fn new() -> Option<Self> {
        let empty = memfd_create("nothing", MemfdFlags::CLOEXEC).ok()?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number, for which there is room.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, UNREAPED, &raw mut context) };
        (result == 0).then_some(Self { context, empty })
    }

    fn raise(&self, event: &OwnedFd) {
        let number = |file: &OwnedFd| file.as_raw_fd().cast_unsigned();
        let mut read = Iocb {
            opcode: PREAD,
            file: number(&self.empty),
            flags: SIGNAL_EVENT,
            event: number(event),
            ..Iocb::default()
        };
        let mut reads = [&raw mut read];
        // Twice: the second time after the entries of earlier ones were reaped.
        for _ in 0..2 {
            // SAFETY: one `iocb` that lives; its read is of no bytes into no buffer, and has ended
            // when the call returns.
            let result = unsafe {
                libc::syscall(libc::SYS_io_submit, self.context, 1_u64, reads.as_mut_ptr())
            };
            let full = || std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
            if result == 1 || !full() {
                return;
            }
            self.reap();
        }
    }

    fn reap(&self) {
        let mut ended = [IoEvent::default(); UNREAPED as usize];
        // SAFETY: the array has room for as many events as are asked for, and no time is given.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0_u64,
                u64::from(UNREAPED),
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
                scope.spawn(|| (0..5_000).for_each(|_| raise(&event)));
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
    fn what_is_no_eventfd_is_left_alone() {
        raise(&memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
        raise(&rustix::pipe::pipe().unwrap().1);
    }
}
