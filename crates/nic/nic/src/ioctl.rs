// SPDX-License-Identifier: Apache-2.0
//! Requests of a device by ioctl(2).

use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Makes a request of a device.
///
/// # Safety
/// The request reads, or writes, a `T`.
pub(crate) unsafe fn ioctl<T>(
    device: &OwnedFd,
    request: u32,
    argument: &mut T,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise; the argument lives.
    match unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            request as _,
            std::ptr::from_mut(argument),
        )
    } {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}
