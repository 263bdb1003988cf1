// SPDX-License-Identifier: Apache-2.0
//! The front end's half of the vhost-user protocol on a blocking socket. It can also send invalid messages.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// Request numbers of the vhost-user specification.
#[expect(missing_docs, reason = "they are the specification's own names")]
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
}

const VERSION: u32 = 1;
const NEED_REPLY: u32 = 1 << 3;

/// VHOST_USER_PROTOCOL_F_REPLY_ACK.
const REPLY_ACK: u64 = 1 << 3;

/// Time limit of an answer of the back end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The socket failed or was closed.
    #[error("cannot {what} the back end: {error}")]
    Socket {
        /// The failed operation.
        what: &'static str,
        /// The error of the socket.
        error: std::io::Error,
    },
    /// The back end refused.
    #[error("the back end refused request {request} with {code}")]
    Refused {
        /// The request's number.
        request: u32,
        /// The answer.
        code: u64,
    },
    /// The back end does not offer a feature that is needed.
    #[error("the back end does not offer the features {0:#x}")]
    Features(u64),
}

pub(crate) fn failed(what: &'static str) -> impl Fn(std::io::Error) -> SessionError {
    move |error| SessionError::Socket { what, error }
}

/// A connection to a back end.
#[derive(Debug)]
pub struct Session {
    socket: UnixStream,
    acknowledges: bool,
}

impl Session {
    /// Connects to a back end that listens.
    ///
    /// # Errors
    /// When no process listens there.
    pub fn connect(path: &Path) -> Result<Self, SessionError> {
        Self::from_socket(UnixStream::connect(path).map_err(failed("connect to"))?)
    }

    /// Starts a session on a connected socket.
    ///
    /// # Errors
    /// When no time limit can be set on the socket.
    pub fn from_socket(socket: UnixStream) -> Result<Self, SessionError> {
        socket
            .set_read_timeout(Some(ANSWER_TIMEOUT))
            .and_then(|()| socket.set_write_timeout(Some(ANSWER_TIMEOUT)))
            .map_err(failed("set up the socket to"))?;
        Ok(Self {
            socket,
            acknowledges: false,
        })
    }

    /// Negotiates the offered features of `wanted`, and returns them.
    ///
    /// # Errors
    /// When the back end lacks something in `needed`, or the socket fails.
    pub fn negotiate(&mut self, wanted: u64, needed: u64) -> Result<u64, SessionError> {
        let offered = self.get(request::GET_FEATURES)?;
        if offered & needed != needed {
            return Err(SessionError::Features(needed & !offered));
        }
        self.request(request::SET_OWNER, &[], &[])?;
        let protocol = self.get(request::GET_PROTOCOL_FEATURES)?;
        let accepted = (protocol & REPLY_ACK).to_ne_bytes();
        self.request(request::SET_PROTOCOL_FEATURES, &accepted, &[])?;
        self.acknowledges = protocol & REPLY_ACK != 0;
        let agreed = offered & wanted;
        self.request(request::SET_FEATURES, &agreed.to_ne_bytes(), &[])?;
        Ok(agreed)
    }

    /// Sends a request without a reply of its own. Waits for the acknowledgement, where acknowledgements were
    /// negotiated.
    ///
    /// # Errors
    /// When the back end refuses, or the socket fails.
    pub fn request(
        &self,
        request: u32,
        payload: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> Result<(), SessionError> {
        let flags = VERSION | if self.acknowledges { NEED_REPLY } else { 0 };
        self.send(&message(request, flags, payload), files)?;
        if self.acknowledges {
            let code = number(&self.reply()?);
            if code != 0 {
                return Err(SessionError::Refused { request, code });
            }
        }
        Ok(())
    }

    /// Sends a request and returns the number of its reply.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn get(&self, request: u32) -> Result<u64, SessionError> {
        self.send(&message(request, VERSION, &[]), &[])?;
        Ok(number(&self.reply()?))
    }

    /// Sends any bytes and descriptors.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), SessionError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
            .map_err(|error| failed("write to")(error.into()))?;
        Ok(())
    }

    /// Waits until the back end closes the connection, up to `limit`.
    pub fn closed_within(&self, limit: Duration) -> bool {
        let _ = self.socket.set_read_timeout(Some(limit));
        let mut rest = Vec::new();
        let closed = match (&self.socket).read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        let _ = self.socket.set_read_timeout(Some(ANSWER_TIMEOUT));
        closed
    }

    fn reply(&self) -> Result<Vec<u8>, SessionError> {
        let mut header = [0; 12];
        let read = |bytes: &mut [u8]| {
            (&self.socket)
                .read_exact(bytes)
                .map_err(failed("read from"))
        };
        read(&mut header)?;
        let [.., s0, s1, s2, s3] = header;
        // Replies are at most a page long.
        let size = u32::from_ne_bytes([s0, s1, s2, s3]).min(4096) as usize;
        let mut payload = vec![0; size];
        read(&mut payload)?;
        Ok(payload)
    }
}

/// The bytes of a message.
pub fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let header = [request, flags, size].map(u32::to_ne_bytes);
    [header.as_flattened(), payload].concat()
}

/// The bytes of a vring state: a ring and a number.
pub fn state(ring: u32, number: u32) -> Vec<u8> {
    [ring, number].map(u32::to_ne_bytes).concat()
}

fn number(payload: &[u8]) -> u64 {
    payload
        .first_chunk()
        .map_or(u64::MAX, |bytes| u64::from_ne_bytes(*bytes))
}
