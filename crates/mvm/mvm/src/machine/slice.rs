// SPDX-License-Identifier: Apache-2.0
//! Time slices: a timer on each worker thread that interrupts a spinning guest.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::Once;

/// Length of a slice, in ns.
pub const SLICE_NS: i64 = 1_000_000;

thread_local! {
    /// The `immediate_exit` byte of the vCPU that this thread runs, or null.
    static RUNNING: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

/// Interrupts KVM_RUN, and sets `immediate_exit` in case KVM_RUN was not entered yet.
extern "C" fn over(_signal: libc::c_int) {
    let byte = RUNNING.with(Cell::get);
    if !byte.is_null() {
        // SAFETY: `RUNNING` is set only while the slot that owns the mapping is borrowed by this
        // thread, and the handler runs on this thread.
        unsafe { byte.write_volatile(1) };
    }
}

/// Marks the vCPU that the handler interrupts while this is alive.
pub(super) struct Running(());

impl Running {
    pub(super) fn new(immediate_exit: *mut u8) -> Self {
        RUNNING.with(|cell| cell.set(immediate_exit));
        Self(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.with(|cell| cell.set(ptr::null_mut()));
    }
}

/// This thread's slice timer.
pub struct SliceTimer {
    timer: libc::timer_t,
    armed: bool,
    /// The timer signals the thread that created it.
    not_send: std::marker::PhantomData<*const ()>,
}

impl SliceTimer {
    /// Creates the calling thread's timer, disarmed.
    ///
    /// # Errors
    /// [`Error::System`] when the kernel has no timer left for this process.
    pub fn new() -> Result<Self> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: a zeroed sigaction is valid; the handler only touches a thread-local cell
            // that needs no initialisation, which is async-signal-safe.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = over as extern "C" fn(libc::c_int) as libc::sighandler_t;
                libc::sigaction(signal(), &action, ptr::null_mut());
            }
        });
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: a zeroed sigevent is valid, and both pointers live across the call.
        let made = unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal();
            event.sigev_notify_thread_id = libc::gettid();
            libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer)
        };
        if made != 0 {
            return Err(Error::of_limit(
                "make a slice timer",
                io::Error::last_os_error(),
            ));
        }
        Ok(Self {
            timer,
            armed: false,
            not_send: std::marker::PhantomData,
        })
    }

    /// Starts the timer, which ends every slice.
    pub fn arm(&mut self) {
        if !self.armed {
            self.set(SLICE_NS);
            self.armed = true;
        }
    }

    /// Stops the timer, which would cost an idle thread processor time.
    pub fn disarm(&mut self) {
        if self.armed {
            self.set(0);
            self.armed = false;
        }
    }

    fn set(&self, ns: i64) {
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: ns,
        };
        let every = libc::itimerspec {
            it_interval: time,
            it_value: time,
        };
        // SAFETY: the timer is ours, and the argument lives across the call. It cannot fail with
        // a valid timer and time.
        unsafe { libc::timer_settime(self.timer, 0, &every, ptr::null_mut()) };
    }
}

impl Drop for SliceTimer {
    fn drop(&mut self) {
        // SAFETY: the timer is ours and deleted once.
        unsafe { libc::timer_delete(self.timer) };
    }
}

/// A real-time signal that no runtime uses.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}
