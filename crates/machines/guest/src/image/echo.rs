// SPDX-License-Identifier: Apache-2.0
//! The smallest guest with a complete Linux: the image's kernel, unpacked, and an initial RAM disk that echoes the
//! serial port.

use super::GuestFiles;
use super::initrd;
use super::vmlinux::{beside, vmlinux};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use vtax_host::HostError;

/// The line that the guest prints on its serial port after its boot. It then echoes its input.
pub const ECHO_TOKEN: &str = "vtax-echo: ready";

/// The files of an echoing guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EchoGuest {
    /// The kernel as an ELF file.
    pub kernel: PathBuf,
    /// Its initial RAM disk.
    pub initrd: PathBuf,
}

/// The echoing guest of an image, created beside the image unless it exists.
///
/// # Errors
/// As [`vmlinux`].
pub fn echo_guest(files: &GuestFiles) -> Result<EchoGuest, HostError> {
    Ok(EchoGuest {
        kernel: vmlinux(files)?,
        initrd: beside(files, "initrd.echo", || initrd::echo(&files.root))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_prints_the_token_that_is_waited_for() {
        assert!(initrd::ECHO_INIT.contains(ECHO_TOKEN));
    }
}
