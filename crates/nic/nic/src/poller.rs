// SPDX-License-Identifier: Apache-2.0
//! The worker's epoll instance: descriptors, each with a token, and a deadline.

use crate::hold::Nanos;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The time on the monotonic clock.
pub fn now() -> Nanos {
    read(ClockId::Monotonic)
}

/// The processor time that this thread has used.
pub fn cpu_time() -> Nanos {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    Nanos(seconds * 1_000_000_000 + rest)
}

/// The meaning of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// A port's socket, where front ends connect.
    Listener(PortId),
    /// A connected front end.
    FrontEnd(PortId),
    /// A guest's kick of a ring.
    Kick(PortId, u8),
    /// Frames, or completed operations, of a queue of a tap.
    Tap(PortId, u8),
    /// The kernel wants the guest to be signalled for frames that a pair received.
    Call(PortId, u8),
    /// Control frames of a guest whose frames the kernel moves.
    ControlFrame(PortId),
    /// Requests of an operator, or the order to end.
    Control,
}

/// A port of a network of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortId {
    /// The network's index in the worker.
    pub network: u16,
    /// The port's index in the network.
    pub port: u16,
}

impl Token {
    fn to_u64(self) -> u64 {
        let pack = |kind: u64, id: PortId, queue: u8| {
            kind << 40 | u64::from(id.network) << 24 | u64::from(id.port) << 8 | u64::from(queue)
        };
        match self {
            Self::Listener(id) => pack(0, id, 0),
            Self::FrontEnd(id) => pack(1, id, 0),
            Self::Kick(id, queue) => pack(2, id, queue),
            Self::Tap(id, queue) => pack(3, id, queue),
            Self::Call(id, pair) => pack(4, id, pair),
            Self::ControlFrame(id) => pack(5, id, 0),
            Self::Control => 6 << 40,
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "takes apart what was packed"
    )]
    fn from_u64(packed: u64) -> Self {
        let id = PortId {
            network: (packed >> 24) as u16,
            port: (packed >> 8) as u16,
        };
        match packed >> 40 {
            0 => Self::Listener(id),
            1 => Self::FrontEnd(id),
            2 => Self::Kick(id, packed as u8),
            3 => Self::Tap(id, packed as u8),
            4 => Self::Call(id, packed as u8),
            5 => Self::ControlFrame(id),
            _ => Self::Control,
        }
    }
}

/// An epoll instance. A clone shares it.
#[derive(Debug, Clone)]
pub struct Poller {
    epoll: Arc<OwnedFd>,
}

impl Poller {
    /// # Errors
    /// When the kernel gives no epoll instance.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            epoll: Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?),
        })
    }

    /// Reports each time that `file` becomes readable (edge-triggered), so that an eventfd need not be read.
    ///
    /// # Errors
    /// When `file` cannot be waited for.
    pub fn watch(&self, file: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(
            &self.epoll,
            file,
            EventData::new_u64(token.to_u64()),
            EventFlags::IN | EventFlags::ET,
        )
    }

    /// Reports as long as `file` is readable (level-triggered).
    ///
    /// # Errors
    /// When `file` cannot be waited for.
    pub fn watch_level(&self, file: impl AsFd, token: Token) -> Result<(), Errno> {
        let data = EventData::new_u64(token.to_u64());
        epoll::add(&self.epoll, file, data, EventFlags::IN)
    }

    /// Mutes or unmutes a watched file. An unmuted file is reported at once if it is readable.
    pub fn mute(&self, file: impl AsFd, token: Token, mute: bool) {
        let flags = if mute {
            EventFlags::empty()
        } else {
            EventFlags::IN
        };
        let data = EventData::new_u64(token.to_u64());
        let _ = epoll::modify(&self.epoll, file, data, flags | EventFlags::ET);
    }

    /// Stops reporting a file. Closing it does not suffice, because the other side has the same open file.
    pub fn forget(&self, file: impl AsFd) {
        let _ = epoll::delete(&self.epoll, file);
    }

    /// Waits for events until `deadline`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn wait(&self, deadline: Option<Nanos>, tokens: &mut Vec<Token>) -> Result<(), Errno> {
        tokens.clear();
        let timeout = deadline.map(|deadline| {
            let left = deadline.since(now()).0;
            Timespec {
                tv_sec: i64::try_from(left / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(left % 1_000_000_000).unwrap_or(0),
            }
        });
        let mut events = [std::mem::MaybeUninit::uninit(); 64];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => {
                tokens.extend(events.iter().map(|event| Token::from_u64(event.data.u64())));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(cause) => Err(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::write;

    #[test]
    fn tokens_survive_packing() {
        let id = PortId {
            network: 0xfffe,
            port: 0xabcd,
        };
        for token in [
            Token::Listener(id),
            Token::FrontEnd(id),
            Token::Kick(id, 255),
            Token::Tap(id, 7),
            Token::Call(id, 7),
            Token::ControlFrame(id),
            Token::Control,
        ] {
            assert_eq!(Token::from_u64(token.to_u64()), token);
        }
    }

    #[test]
    fn each_kick_is_reported_though_none_is_read() {
        let poller = Poller::new().unwrap();
        let kick = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        poller.watch(&kick, Token::Control).unwrap();
        let mut tokens = Vec::new();
        for _ in 0..3 {
            poller.wait(Some(now()), &mut tokens).unwrap();
            assert!(tokens.is_empty());
            write(&kick, &1_u64.to_ne_bytes()).unwrap();
            poller.wait(Some(now()), &mut tokens).unwrap();
            assert_eq!(tokens, [Token::Control]);
        }
    }
}
