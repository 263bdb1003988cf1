// SPDX-License-Identifier: Apache-2.0
//! A connected front end: messages from a stream socket that never blocks.

use super::{Message, ProtocolError, Reply};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const HEADER: usize = 12;

/// The most bytes of payload. It exceeds every message of a network device: a memory table of 8 regions has 264 bytes.
const MAX_PAYLOAD: usize = 1024;

/// The most descriptors that are received. A message has at most 8; one more shows that there are too many.
const MAX_DESCRIPTORS: usize = 9;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// A front end's socket and the received part of a message.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    buffer: [u8; HEADER + MAX_PAYLOAD],
    have: usize,
    descriptors: Vec<OwnedFd>,
}

impl Connection {
    /// Takes a connected socket in any mode. No operation blocks.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            buffer: [0; HEADER + MAX_PAYLOAD],
            have: 0,
            descriptors: Vec::new(),
        }
    }

    fn header(&self) -> [u32; 3] {
        let (words, _) = self.buffer.as_chunks();
        let header = words.first_chunk().copied().unwrap_or_default();
        header.map(u32::from_ne_bytes)
    }

    /// The length of the current message, as far as it is known.
    fn want(&self) -> Result<usize, ProtocolError> {
        if self.have < HEADER {
            return Ok(HEADER);
        }
        let [code, flags, size] = self.header();
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
            return Err(ProtocolError::Flags(flags));
        }
        match usize::try_from(size) {
            Ok(size) if size <= MAX_PAYLOAD => Ok(HEADER + size),
            _ => Err(ProtocolError::Oversized { code, size }),
        }
    }

    /// The next message, or `None` until more of it comes. Never reads past a message's end.
    ///
    /// # Errors
    /// When the front end closed the connection, or sends an invalid message.
    pub fn receive(&mut self) -> Result<Option<Message>, ProtocolError> {
        loop {
            let want = self.want()?;
            if self.have == want && want >= HEADER && self.have >= HEADER {
                break;
            }
            match self.read(want) {
                Ok(0) if self.have == 0 => return Err(ProtocolError::Closed),
                Ok(0) => {
                    let have = self.have;
                    return Err(ProtocolError::Truncated { have, want });
                }
                Ok(bytes) => self.have += bytes,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) if self.have == 0 => return Err(ProtocolError::Closed),
                Err(cause) => {
                    let what = "read from";
                    return Err(ProtocolError::Socket { what, cause });
                }
            }
            if self.descriptors.len() >= MAX_DESCRIPTORS {
                return Err(ProtocolError::Descriptors {
                    code: self.header()[0],
                    have: self.descriptors.len(),
                    want: MAX_DESCRIPTORS - 1,
                });
            }
        }
        let [code, flags, _] = self.header();
        let payload = self.buffer[HEADER..self.have].to_vec();
        self.have = 0;
        Ok(Some(Message {
            code,
            needs_ack: flags & NEED_REPLY != 0,
            payload,
            descriptors: std::mem::take(&mut self.descriptors),
        }))
    }

    fn read(&mut self, want: usize) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let result = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut self.buffer[self.have..want])],
            &mut control,
            RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.descriptors.extend(files);
            }
        }
        // There were more descriptors than fit, which the kernel has closed.
        if result.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Errno::TOOBIG);
        }
        Ok(result.bytes)
    }

    /// Answers a request.
    ///
    /// # Errors
    /// When the front end does not read its answers: its socket is full.
    pub fn reply(&mut self, code: u32, reply: Reply) -> Result<(), ProtocolError> {
        let payload = match reply {
            Reply::None => return Ok(()),
            Reply::Number(number) => number.to_ne_bytes().to_vec(),
            Reply::VringState { queue, base } => [queue, base].map(u32::to_ne_bytes).concat(),
            Reply::Config {
                offset,
                flags,
                bytes,
            } => {
                let fields = [offset, length(&bytes), flags].map(u32::to_ne_bytes);
                [fields.concat(), bytes].concat()
            }
            Reply::NoConfig => Vec::new(),
        };
        let header = [code, VERSION | REPLY, length(&payload)].map(u32::to_ne_bytes);
        let bytes = [header.concat(), payload].concat();
        let failed = |cause| ProtocolError::Socket {
            what: "write to",
            cause,
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match send(&self.socket, &bytes, flags) {
                // A few hundred bytes fit whole or not at all.
                Ok(sent) if sent == bytes.len() => return Ok(()),
                Ok(_) => return Err(failed(Errno::AGAIN)),
                Err(Errno::INTR) => {}
                Err(cause) => return Err(failed(cause)),
            }
        }
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Sends a message on the front end's channel; returns whether it was sent.
fn notify(channel: &OwnedFd, message: &[[u8; 4]]) -> bool {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    send(channel, message.as_flattened(), flags) == Ok(size_of_val(message))
}

/// Notifies the front end that the device's configuration space has changed (VHOST_USER_BACKEND_CONFIG_CHANGE_MSG);
/// returns whether the message was sent.
pub fn config_changed(channel: &OwnedFd) -> bool {
    const CONFIG_CHANGE: u32 = 2;
    notify(channel, &[CONFIG_CHANGE, VERSION, 0].map(u32::to_ne_bytes))
}

/// Signals the driver for a ring by a message on the front end's channel (VHOST_USER_BACKEND_VRING_CALL); returns
/// whether it was sent.
pub fn call(channel: &OwnedFd, queue: u32) -> bool {
    const VRING_CALL: u32 = 4;
    let message = [VRING_CALL, VERSION, 8, queue, 0];
    notify(channel, &message.map(u32::to_ne_bytes))
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
