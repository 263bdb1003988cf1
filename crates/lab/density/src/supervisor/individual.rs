// SPDX-License-Identifier: Apache-2.0
//! A population whose guests are made, probed and ended individually.

use super::error::{GuestError, Result};
use super::{Answer, Guard, LONGEST_ANSWER, Population, micros};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vtax_host::untrusted::shown_lines;

/// Time limit of an answer.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Makes, probes and ends guests of one kind.
pub(super) trait GuestDriver {
    /// A running guest.
    type Guest;

    /// Makes the guest with this number, which need not have booted yet.
    ///
    /// # Errors
    /// When it cannot be made.
    fn start(&mut self, number: u32) -> Result<Self::Guest>;

    /// The connection for probes; a guest with work has none.
    fn line(_guest: &mut Self::Guest) -> Option<&mut Echo> {
        None
    }

    /// Waits for a guest's first answer, which shows that it has booted. A guest without a connection is not asked.
    ///
    /// # Errors
    /// When it does not boot.
    fn await_boot(&mut self, guest: &mut Self::Guest) -> Result<()> {
        match Self::line(guest) {
            Some(line) => line.ask().map(drop),
            None => Ok(()),
        }
    }

    /// Probes a guest and waits for its answer.
    ///
    /// # Errors
    /// When no answer comes, or the guest has no connection.
    fn ask(&mut self, guest: &mut Self::Guest) -> Result<Duration> {
        Self::line(guest).map_or(Err(GuestError::NotProbed), Echo::ask)
    }

    /// Ends the guest with this number.
    ///
    /// # Errors
    /// When it does not end.
    fn end(&mut self, guest: Self::Guest, number: u32) -> Result<()>;

    /// Facts for the trial's record.
    fn facts(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

/// The guests of a driver; probes go to random ones.
pub(super) struct IndividualGuests<K: GuestDriver> {
    kind: K,
    /// Guests with their numbers, which are never used again.
    guests: Vec<(u32, K::Guest)>,
    next: u32,
    random: fastrand::Rng,
}

impl<K: GuestDriver> IndividualGuests<K> {
    pub(super) fn new(kind: K) -> Self {
        Self {
            kind,
            guests: Vec::new(),
            next: 0,
            random: fastrand::Rng::with_seed(1),
        }
    }
}

impl<K: GuestDriver> Population for IndividualGuests<K> {
    fn count(&self) -> u32 {
        u32::try_from(self.guests.len()).unwrap_or(u32::MAX)
    }

    fn grow(&mut self, to: u32, guard: &mut Guard, answer: &mut Answer) -> Result<()> {
        while self.count() < to && guard.permits() {
            let began = Instant::now();
            let number = self.next;
            self.next += 1;
            let mut guest = self.kind.start(number)?;
            answer.create.push(micros(began.elapsed()));
            if let Err(why) = self.kind.await_boot(&mut guest) {
                // The reason of the failed boot is reported, not one of the clean-up.
                let _ = self.kind.end(guest, number);
                return Err(why);
            }
            answer.boot.push(micros(began.elapsed()));
            self.guests.push((number, guest));
        }
        Ok(())
    }

    /// Ends guests at random.
    fn shrink(&mut self, to: u32) -> Result<()> {
        while self.count() > to {
            let chosen = self.random.usize(..self.guests.len());
            let (number, guest) = self.guests.swap_remove(chosen);
            self.kind.end(guest, number)?;
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<Duration> {
        let chosen = self.random.usize(..self.guests.len().max(1));
        match self.guests.get_mut(chosen) {
            Some((_, guest)) => self.kind.ask(guest),
            None => Err(GuestError::Empty),
        }
    }

    fn facts(&self) -> BTreeMap<String, String> {
        self.kind.facts()
    }
}

/// The connection to a guest that echoes its input, or to a monitor.
#[derive(Debug)]
pub(super) struct Echo(UnixStream);

impl Echo {
    /// The connection over a connected socket.
    pub(super) fn over(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        Ok(Self(stream))
    }

    /// A connection to the socket at `path`.
    pub(super) fn to(path: &Path) -> io::Result<Self> {
        Self::over(UnixStream::connect(path)?)
    }

    /// A connection, and the guest's end of it for its input and output.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::over(ours)?, theirs.into()))
    }

    /// Sends a byte and waits until it comes back.
    pub(super) fn ask(&mut self) -> Result<Duration> {
        let began = Instant::now();
        self.request(b"?", |_| Some(()))
            .map_err(GuestError::no_answer("a guest"))?;
        Ok(began.elapsed())
    }

    /// Sends a request and reads until `whole` finds a whole answer in what has arrived.
    ///
    /// # Errors
    /// When the connection closes, the time limit of an answer is over, or the answer is too long.
    pub(super) fn request<T>(
        &mut self,
        request: &[u8],
        whole: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<T> {
        self.0.write_all(request)?;
        let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match self.0.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ if received.len() > LONGEST_ANSWER => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                count => received.extend(buffer.iter().take(count)),
            }
            if let Some(answer) = whole(&received) {
                return Ok(answer);
            }
        }
    }

    /// Reads until `text` has arrived.
    ///
    /// # Errors
    /// When the connection closes, or `limit` is over, before that.
    pub(super) fn wait_for(
        &mut self,
        text: &str,
        limit: Duration,
    ) -> std::result::Result<(), NotReceived> {
        let deadline = Instant::now() + limit;
        let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A time-out of zero would mean no limit.
            let timed = self
                .0
                .set_read_timeout(Some(left.max(Duration::from_millis(1))));
            match timed.and_then(|()| self.0.read(&mut buffer)) {
                Ok(count) if count > 0 && received.len() < LONGEST_ANSWER => {
                    received.extend(buffer.iter().take(count));
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                _ => return Err(NotReceived::from_received(&received)),
            }
            let text = text.as_bytes();
            if received.windows(text.len()).any(|bytes| bytes == text) {
                let reset = self.0.set_read_timeout(Some(ANSWER_LIMIT));
                return reset.map_err(|_| NotReceived::from_received(&received));
            }
        }
    }
}

/// The connection to what answers the probes of a population. It is made at the first probe and after a failure.
#[derive(Debug)]
pub(super) struct Probes {
    socket: PathBuf,
    line: Option<Echo>,
}

impl Probes {
    /// Probes to the socket at `path`.
    pub(super) fn to(path: &Path) -> Self {
        let socket = path.to_owned();
        Self { socket, line: None }
    }

    /// As [`Echo::request`]. Returns the answer and its time.
    pub(super) fn request<T>(
        &mut self,
        request: &[u8],
        whole: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<(T, Duration)> {
        let mut line = match self.line.take() {
            Some(line) => line,
            None => Echo::to(&self.socket)?,
        };
        let began = Instant::now();
        let answer = line.request(request, whole)?;
        let took = began.elapsed();
        self.line = Some(line);
        Ok((answer, took))
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.line = None;
    }
}

/// An expected text did not arrive.
#[derive(Debug, thiserror::Error)]
#[error("the expected text did not arrive, but `{received}`")]
pub(super) struct NotReceived {
    /// The text that arrived instead, free of control characters.
    pub(super) received: String,
}

impl NotReceived {
    fn from_received(received: &[u8]) -> Self {
        Self {
            received: shown_lines(&String::from_utf8_lossy(received)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_read_up_to_a_text_and_what_arrived_instead_is_reported() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut line = Echo::over(ours).unwrap();
        theirs.write_all(b"noise\nnow ready\n").unwrap();
        line.wait_for("ready\n", ANSWER_LIMIT).unwrap();
        theirs.write_all(b"panic").unwrap();
        let waited = line.wait_for("ready", Duration::from_millis(20));
        assert_eq!(waited.unwrap_err().received, "panic");
        theirs.write_all(b"the end").unwrap();
        drop(theirs);
        assert_eq!(
            line.wait_for("ready", ANSWER_LIMIT).unwrap_err().received,
            "the end"
        );
    }
}
