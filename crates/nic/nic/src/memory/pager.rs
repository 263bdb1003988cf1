// SPDX-License-Identifier: Apache-2.0
//! Populates untouched pages that front ends share, within their port's account.
//!
//! The kernel charges a page of shared memory to the program that touches it first, not to the program that shares it.
//! So mappings of such memory are registered with userfaultfd(2). A worker, or the kernel on its behalf, that touches a
//! page that does not exist waits until the pager's thread has created the page, or has replaced the whole mapping with
//! anonymous memory. The port of a replaced mapping is then disconnected (see [`sigbus`](super::sigbus)).

use super::account::Account;
use super::sigbus;
use crate::poller::now;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::ioctl::opcode::{none, read, read_write};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const GROUP: u8 = 0xaa;
const NEW: u32 = none(GROUP, 0x00);
const API: u32 = read_write::<Handshake>(GROUP, 0x3f);
const REGISTER: u32 = read_write::<Registration>(GROUP, 0x00);
const WAKE: u32 = read::<Range>(GROUP, 0x02);
const ZEROPAGE: u32 = read_write::<Zeros>(GROUP, 0x04);

/// The pager's ioctl requests in the sandbox.
pub const REQUESTS: [u32; 3] = [REGISTER, WAKE, ZEROPAGE];

/// UFFD_API.
const VERSION: u64 = 0xaa;
/// UFFDIO_REGISTER_MODE_MISSING.
const MISSING: u64 = 1;
/// UFFD_EVENT_PAGEFAULT.
const PAGE_FAULT: u8 = 0x12;

/// `struct uffdio_api` (`linux/userfaultfd.h`).
#[repr(C)]
struct Handshake {
    version: u64,
    features: u64,
    requests: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Registration {
    range: Range,
    mode: u64,
    requests: u64,
}

#[repr(C)]
struct Zeros {
    range: Range,
    mode: u64,
    done: i64,
}

/// `struct uffd_msg` of a page fault.
#[repr(C)]
#[derive(Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

/// The receiver of missing pages from the kernel.
#[derive(Debug)]
struct Pager {
    faults: OwnedFd,
    /// Whether the kernel's own accesses on behalf of this process are reported.
    sees_kernel: bool,
    watched: Mutex<BTreeMap<usize, (usize, Arc<Account>)>>,
}

static PAGER: OnceLock<Pager> = OnceLock::new();

/// Opens the userfaultfd of the process, while it has its privileges.
///
/// # Errors
/// When the kernel has no userfaultfd, or this user may not use it.
pub fn open_pager() -> io::Result<()> {
    let (faults, sees_kernel) = descriptor()?;
    let mut handshake = Handshake {
        version: VERSION,
        features: 0,
        requests: 0,
    };
    ask(&faults, API, &mut handshake)?;
    let _ = PAGER.set(Pager {
        faults,
        sees_kernel,
        watched: Mutex::default(),
    });
    Ok(())
}

/// Opens a userfaultfd. Returns whether it reports the kernel's own faults, which needs access to the device file or a
/// capability.
fn descriptor() -> io::Result<(OwnedFd, bool)> {
    let flags = UserfaultfdFlags::CLOEXEC;
    let device = open(
        "/dev/userfaultfd",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    );
    if let Ok(device) = device {
        // SAFETY: the request takes flags and gives a descriptor.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), NEW as _, flags.bits()) };
        if fd >= 0 {
            // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
            return Ok((unsafe { OwnedFd::from_raw_fd(fd) }, true));
        }
    }
    // SAFETY: missing pages are filled with zeros, as the kernel does.
    if let Ok(faults) = unsafe { userfaultfd(flags) } {
        return Ok((faults, true));
    }
    let user_mode_only = UserfaultfdFlags::from_bits_retain(1);
    // SAFETY: as above.
    let faults = unsafe { userfaultfd(flags | user_mode_only) }?;
    Ok((faults, false))
}

/// Starts the thread that resolves missing pages, where [`open_pager`] has succeeded.
///
/// # Errors
/// When there are no more threads.
pub fn start_pager() -> io::Result<()> {
    let Some(pager) = PAGER.get() else {
        return Ok(());
    };
    let run = move || {
        loop {
            pager.answer();
        }
    };
    let thread = std::thread::Builder::new().name("pager".into());
    thread.spawn(run).map(drop)
}

/// Whether missing pages are reported that the kernel touches on behalf of this process, as vhost-net does. Only then
/// is the memory of such ports watched.
pub fn pager_sees_kernel() -> bool {
    PAGER.get().is_some_and(|pager| pager.sees_kernel)
}

/// A mapping whose missing pages are reported for as long as this lives.
#[derive(Debug)]
pub(super) struct Watch(usize);

impl Watch {
    /// Watches `len` bytes of whole pages at `start`; nothing where there is no pager.
    pub(super) fn new(
        start: usize,
        len: usize,
        account: &Arc<Account>,
    ) -> Result<Option<Self>, Errno> {
        let Some(pager) = PAGER.get() else {
            return Ok(None);
        };
        let mut watched = pager.watched();
        let mut registration = Registration {
            range: Range {
                start: start as u64,
                len: len as u64,
            },
            mode: MISSING,
            requests: 0,
        };
        ask(&pager.faults, REGISTER, &mut registration)?;
        watched.insert(start, (len, account.clone()));
        Ok(Some(Self(start)))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(pager) = PAGER.get() {
            pager.watched().remove(&self.0);
        }
    }
}

impl Pager {
    fn watched(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, (usize, Arc<Account>)>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a missing page and resolves it.
    fn answer(&self) {
        let mut message = Message::default();
        // SAFETY: the kernel writes one message of this size, in which any bytes are valid.
        let len = unsafe {
            libc::read(
                self.faults.as_raw_fd(),
                (&raw mut message).cast(),
                size_of::<Message>(),
            )
        };
        if usize::try_from(len) != Ok(size_of::<Message>()) || message.event != PAGE_FAULT {
            return;
        }
        // SAFETY: asks for a constant.
        let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let start = message.address - message.address % page;
        let range = Range { start, len: page };
        // The lock keeps the mapping until the page is resolved.
        let watched = self.watched();
        let address = usize::try_from(start).unwrap_or(0);
        let mapping = watched.range(..=address).next_back();
        if let Some((from, (len, account))) = mapping
            && address - from < *len
            && !self.populate(range, account)
        {
            sigbus::replace(address);
        }
        // Wakes the thread that waits, which repeats its access. Without a mapping here, the access finds another
        // mapping or none.
        let _ = ask(&self.faults, WAKE, &mut { range });
    }

    /// Makes a page, unless its account has no bytes left. Returns whether the page is resolved.
    fn populate(&self, range: Range, account: &Account) -> bool {
        if !account.take(range.len, now()) {
            return false;
        }
        let mut zeros = Zeros {
            range,
            mode: 0,
            done: 0,
        };
        let Err(cause) = ask(&self.faults, ZEROPAGE, &mut zeros) else {
            return true;
        };
        account.give_back(range.len, now());
        // Another thread created the page, the memory of the process is about to change, or the file was truncated.
        matches!(
            cause,
            Errno::EXIST | Errno::AGAIN | Errno::FAULT | Errno::NOENT
        )
    }
}

/// `argument` is of the type that the request's number names.
fn ask<T>(faults: &OwnedFd, request: u32, argument: &mut T) -> Result<(), Errno> {
    // SAFETY: each request above reads, or writes, a `T` of its own; what is mapped is not changed but for pages that
    // did not exist.
    unsafe { crate::ioctl::ioctl(faults, request, argument) }
}
