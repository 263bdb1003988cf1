// SPDX-License-Identifier: Apache-2.0
//! The vhost-user protocol (QEMU, `docs/interop/vhost-user.rst`), from the back end's side.
//!
//! The parser never waits for the rest of a message, as the `vhost` crate's does, because one thread serves the
//! sockets of many ports.

mod connection;
mod request;
#[cfg(test)]
mod tests;

pub use connection::{Connection, call, config_changed};
pub use request::{Message, Reply, Request, VringAddress};

/// Refuses a request for this reason.
///
/// # Errors
/// Always.
pub fn refuse<T>(why: &'static str) -> Result<T, ProtocolError> {
    Err(ProtocolError::Refused(why))
}

/// Why a front end is disconnected.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The front end closed the connection between two messages, which is no fault.
    #[error("the front end closed the connection")]
    Closed,
    /// The front end closed the connection in the middle of a message.
    #[error("the front end closed the connection after {have} of {want} bytes of a message")]
    Truncated {
        /// Bytes received.
        have: usize,
        /// Bytes announced.
        want: usize,
    },
    /// The socket failed.
    #[error("cannot {what} the front end's socket: {cause}")]
    Socket {
        /// Read or write.
        what: &'static str,
        /// The kernel's reason.
        cause: rustix::io::Errno,
    },
    /// Not version 1, or a reply where a request must be.
    #[error("a message has the flags {0:#x}, which no request has")]
    Flags(u32),
    /// Longer than any message can be.
    #[error("message {code} announces {size} bytes, more than any has")]
    Oversized {
        /// The request's code.
        code: u32,
        /// Bytes announced.
        size: u32,
    },
    /// A payload of a size that its request cannot have.
    #[error("message {code} has {size} bytes of payload, which it cannot have")]
    Size {
        /// The request's code.
        code: u32,
        /// Bytes received.
        size: usize,
    },
    /// More or fewer file descriptors than the request needs (as in CVE-2022-0669).
    #[error("message {code} came with {have} file descriptors instead of {want}")]
    Descriptors {
        /// The request's code.
        code: u32,
        /// The number received.
        have: usize,
        /// The number needed.
        want: usize,
    },
    /// An unknown request, or one of a feature that is not offered.
    #[error("message {0} is not supported")]
    Unsupported(u32),
    /// Postcopy migration, whose feature is not offered.
    #[error("postcopy migration is not supported: migrate without postcopy-ram")]
    Postcopy,
    /// A queue that the port does not have: the front end asks for more pairs than it was given.
    #[error("queue {0} does not exist: the port has fewer pairs (queue-pairs)")]
    Queue(u32),
    /// A request that is invalid at present or with these values.
    #[error("{0}")]
    Refused(&'static str),
    /// This program would have to populate too much of the front end's memory.
    #[error(
        "populating the memory that it shares would exceed {0} bytes: preallocate it \
         (prealloc=on), or raise limits.populate"
    )]
    Populated(u64),
    /// Memory that cannot be used.
    #[error(transparent)]
    Memory(#[from] crate::memory::MemoryError),
    /// The kernel's data path refused.
    #[error(transparent)]
    Kernel(#[from] crate::vhost_net::VhostError),
}
