// SPDX-License-Identifier: Apache-2.0
//! The connections of a run and the wait for their events.

use super::Protocol;
use super::connection::{Connection, Progress};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use vtax_host::HostError;

/// The most bytes of one receive.
const RECEIVE_BYTES: usize = 128 * 1024;

/// Connections by slot, and the epoll instance that watches them.
pub struct Pool {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    slots: Vec<Option<Connection>>,
    /// Slots without a connection, and since when.
    vacant: Vec<(usize, u64)>,
    buffer: Vec<u8>,
    address: SocketAddr,
    protocol: Box<dyn Protocol>,
    start: Instant,
    /// Connections opened so far.
    pub opened: u64,
}

impl Pool {
    /// A pool of up to `limit` connections to `address`; its clock starts now.
    pub fn new(
        address: SocketAddr,
        protocol: Box<dyn Protocol>,
        limit: u32,
    ) -> Result<Self, HostError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|cause| HostError::file("create", "an epoll instance")(cause.into()))?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(Self {
            epoll,
            events: Vec::with_capacity(256),
            slots: (0..limit).map(|_| None).collect(),
            vacant: (0..limit).rev().map(|slot| (slot, 0)).collect(),
            buffer: vec![0; RECEIVE_BYTES],
            address,
            protocol,
            start: Instant::now(),
            opened: 0,
        })
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Opens a connection where one is allowed; `None` where all are in use.
    pub fn open(&mut self) -> Option<io::Result<usize>> {
        if self.vacant.is_empty() {
            let closing =
                |slot: &Option<Connection>| slot.as_ref().is_some_and(Connection::is_closing);
            self.close(self.slots.iter().position(closing)?);
        }
        let (slot, since) = self.vacant.pop()?;
        let opened = Connection::open(self.address, since).and_then(|connection| {
            let data = epoll::EventData::new_u64(slot as u64);
            epoll::add(
                &self.epoll,
                connection.socket(),
                data,
                epoll::EventFlags::IN | epoll::EventFlags::OUT,
            )?;
            Ok(connection)
        });
        Some(match opened {
            Ok(connection) => {
                self.opened += 1;
                if let Some(place) = self.slots.get_mut(slot) {
                    *place = Some(connection);
                }
                Ok(slot)
            }
            Err(cause) => {
                self.vacant.push((slot, since));
                Err(cause)
            }
        })
    }

    /// The connection in a slot, if there is one.
    pub fn get(&mut self, slot: usize) -> Option<&mut Connection> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Sends the next request on the connection in `slot`.
    pub fn begin(&mut self, slot: usize, due: u64, now: u64) -> io::Result<()> {
        let Some(Some(connection)) = self.slots.get_mut(slot) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        connection.begin(self.protocol.as_mut(), due, now)?;
        Self::watch(&self.epoll, connection, slot)
    }

    /// Registers for writability only while there is something to write: a socket is almost always writable,
    /// and epoll would report it all the time.
    fn watch(epoll: &OwnedFd, connection: &mut Connection, slot: usize) -> io::Result<()> {
        if connection.is_sending() == connection.writability_watched {
            return Ok(());
        }
        connection.writability_watched = connection.is_sending();
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, connection.writability_watched);
        Ok(epoll::modify(
            epoll,
            connection.socket(),
            epoll::EventData::new_u64(slot as u64),
            flags,
        )?)
    }

    /// Handles an event in `slot`, and closes the connection where it is of no more use. One that the server closes
    /// stays open until then, so that the port waits (TIME-WAIT) at the server's end. A client has 28,000 ports.
    pub fn advance(&mut self, slot: usize) -> Option<(Progress, u64)> {
        let connection = self.slots.get_mut(slot)?.as_mut()?;
        let due = connection.due;
        let mut progress = connection.advance(self.protocol.as_ref(), &mut self.buffer);
        if let Err(cause) = Self::watch(&self.epoll, connection, slot) {
            progress = Progress::Failed(cause);
        }
        if matches!(
            progress,
            Progress::Failed(_) | Progress::Closed | Progress::Stale
        ) {
            self.close(slot);
        }
        Some((progress, due))
    }

    /// Closes a connection.
    pub fn close(&mut self, slot: usize) {
        if self.slots.get_mut(slot).and_then(Option::take).is_some() {
            self.vacant.push((slot, self.now()));
        }
    }

    /// Closes every connection.
    pub fn close_all(&mut self) {
        for slot in 0..self.slots.len() {
            self.close(slot);
        }
    }

    /// The slots whose connections carry a request.
    pub fn busy(&self) -> impl Iterator<Item = (usize, &Connection)> {
        let present = self.slots.iter().enumerate();
        present
            .filter_map(|(slot, place)| Some((slot, place.as_ref()?)))
            .filter(|(_, connection)| connection.is_busy())
    }

    /// Waits for events until `deadline` on the pool's clock, and puts the slots with an event into `ready`.
    pub fn wait(&mut self, deadline: u64, ready: &mut Vec<usize>) -> Result<(), HostError> {
        ready.clear();
        let left = Duration::from_nanos(deadline.saturating_sub(self.now()));
        if !left.is_zero() {
            // epoll_wait counts in milliseconds, too coarse for arrivals; ppoll in nanoseconds.
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(
                &mut [PollFd::new(&self.epoll, PollFlags::IN)],
                Some(&timeout),
            ) {
                Ok(0) | Err(Errno::INTR) => return Ok(()),
                Ok(_) => {}
                Err(cause) => {
                    return Err(HostError::file("wait for", "sockets")(cause.into()));
                }
            }
        }
        self.events.clear();
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            Some(&none),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(cause) => {
                return Err(HostError::file("read", "socket events")(cause.into()));
            }
        }
        ready.extend(self.events.iter().filter_map(|event| {
            // Copied out first: the event is a packed structure.
            let data = event.data;
            usize::try_from(data.u64()).ok()
        }));
        Ok(())
    }
}
