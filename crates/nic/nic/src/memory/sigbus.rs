// SPDX-License-Identifier: Apache-2.0
//! Survives a front end that truncates the file of a mapping.
//!
//! An access to a page that the file no longer has raises SIGBUS. The handler replaces the whole mapping with
//! anonymous memory, so that the access reads zeros, and marks the mapping, whose port is disconnected soon after. A
//! SIGBUS anywhere else ends the process.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Enough for 64 ports with 32 regions and a dirty log each, which need 2,112.
const MAX_WATCHES: usize = 2304;

/// One watched range of addresses. `start` is 0 when the slot is free and 1 while it is filled.
struct Slot {
    start: AtomicUsize,
    len: AtomicUsize,
    hit: AtomicBool,
}

static WATCHED: [Slot; MAX_WATCHES] = [const {
    Slot {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        hit: AtomicBool::new(false),
    }
}; MAX_WATCHES];

static ANY_HIT: AtomicBool = AtomicBool::new(false);

/// A range that is watched for as long as this lives.
#[derive(Debug)]
pub(super) struct TruncationWatch(usize);

impl TruncationWatch {
    /// Watches `len` bytes at `start`; none when every slot is taken.
    pub(super) fn new(start: usize, len: usize) -> Option<Self> {
        WATCHED.iter().enumerate().find_map(|(index, slot)| {
            slot.start
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
                .ok()?;
            slot.hit.store(false, Ordering::Relaxed);
            slot.len.store(len, Ordering::Relaxed);
            slot.start.store(start, Ordering::Release);
            Some(Self(index))
        })
    }

    pub(super) fn was_hit(&self) -> bool {
        WATCHED
            .get(self.0)
            .is_some_and(|slot| slot.hit.load(Ordering::Relaxed))
    }
}

impl Drop for TruncationWatch {
    fn drop(&mut self) {
        if let Some(slot) = WATCHED.get(self.0) {
            slot.start.store(0, Ordering::Release);
        }
    }
}

/// Whether any mapping was ever truncated. If not, no mapping needs to be checked.
pub fn seen() -> bool {
    ANY_HIT.load(Ordering::Relaxed)
}

/// Installs the handler for the whole process. May be called more than once.
///
/// # Errors
/// When the kernel refuses.
pub fn install() -> std::io::Result<()> {
    // SAFETY: all-zero is a valid `sigaction`: no flags, an empty mask, the default handler.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: `action` is filled in, and the handler is async-signal-safe.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The handler of SIGBUS. It is async-signal-safe: it calls [`replace`] and `signal` only.
extern "C" fn on_sigbus(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO, and `si_addr` is its field for
    // SIGBUS.
    let address = unsafe { (*info).si_addr() }.addr();
    if replace(address) {
        return;
    }
    // The address is in no watched mapping: the repeated access ends the process. SAFETY: SIG_DFL is a valid
    // disposition.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

/// Replaces the mapping that an address is in with anonymous memory and marks it. Returns `false` if there is none.
/// Async-signal-safe.
pub(super) fn replace(address: usize) -> bool {
    for slot in &WATCHED {
        let start = slot.start.load(Ordering::Acquire);
        let len = slot.len.load(Ordering::Relaxed);
        if start > 1 && address.wrapping_sub(start) < len {
            // SAFETY: replaces a mapping of this process, kept alive by the guard of this slot, with one of the same
            // extent; pointers into it stay valid.
            let replaced = unsafe {
                libc::mmap(
                    std::ptr::without_provenance_mut(start),
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if replaced != libc::MAP_FAILED {
                slot.hit.store(true, Ordering::Relaxed);
                ANY_HIT.store(true, Ordering::Relaxed);
                return true;
            }
        }
    }
    false
}
