//! Guests that are made, asked and ended one by one.

use super::{Guard, LONGEST_ANSWER, Population, Tally, micros};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vtax_host::untrusted::shown_lines;

/// How long an answer may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How guests of one kind are made, asked and ended.
pub(super) trait Singly {
    /// A running guest.
    type Guest;

    /// Makes the guest with this number, which need not have booted yet.
    ///
    /// # Errors
    /// Why it could not be made.
    fn start(&mut self, number: u32) -> Result<Self::Guest, String>;

    /// Waits until a guest has booted, which a first answer shows.
    ///
    /// # Errors
    /// Why it has not.
    fn await_boot(&mut self, guest: &mut Self::Guest) -> Result<(), String> {
        self.ask(guest).map(drop)
    }

    /// Asks a guest and waits for its answer.
    ///
    /// # Errors
    /// Why there was none.
    fn ask(&mut self, guest: &mut Self::Guest) -> Result<Duration, String>;

    /// Ends the guest with this number.
    ///
    /// # Errors
    /// Why it did not end.
    fn end(&mut self, guest: Self::Guest, number: u32) -> Result<(), String>;

    /// Facts for the trial's record.
    fn facts(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

/// A population of such guests, asked at random.
pub(super) struct OneByOne<K: Singly> {
    kind: K,
    /// With their numbers, which none that comes later has.
    guests: Vec<(u32, K::Guest)>,
    next: u32,
    random: fastrand::Rng,
}

impl<K: Singly> OneByOne<K> {
    pub(super) fn new(kind: K) -> Self {
        Self {
            kind,
            guests: Vec::new(),
            next: 0,
            random: fastrand::Rng::with_seed(1),
        }
    }
}

impl<K: Singly> Population for OneByOne<K> {
    fn count(&self) -> u32 {
        u32::try_from(self.guests.len()).unwrap_or(u32::MAX)
    }

    fn grow(&mut self, to: u32, guard: &mut Guard, tally: &mut Tally) -> Result<(), String> {
        while self.count() < to && guard.permits() {
            let began = Instant::now();
            let number = self.next;
            self.next += 1;
            let mut guest = self.kind.start(number)?;
            tally.create.push(micros(began.elapsed()));
            if let Err(why) = self.kind.await_boot(&mut guest) {
                // Why it has not booted is what matters.
                let _ = self.kind.end(guest, number);
                return Err(why);
            }
            tally.boot.push(micros(began.elapsed()));
            self.guests.push((number, guest));
        }
        Ok(())
    }

    /// Any may be the next to go.
    fn shrink(&mut self, to: u32) -> Result<(), String> {
        while self.count() > to {
            let chosen = self.random.usize(..self.guests.len());
            let (number, guest) = self.guests.swap_remove(chosen);
            self.kind.end(guest, number)?;
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<Duration, String> {
        let chosen = self.random.usize(..self.guests.len().max(1));
        match self.guests.get_mut(chosen) {
            Some((_, guest)) => self.kind.ask(guest),
            None => Err("there is no guest to ask".to_owned()),
        }
    }

    fn facts(&self) -> BTreeMap<String, String> {
        self.kind.facts()
    }
}

/// The line to a guest that echoes what it is sent.
#[derive(Debug)]
pub(super) struct Echo(UnixStream);

impl Echo {
    /// The line over a connected socket.
    pub(super) fn over(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    /// Our end, and the guest's for its input and output.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::over(ours)?, theirs.into()))
    }

    /// Sends a byte and waits until it comes back.
    pub(super) fn ask(&mut self) -> Result<Duration, String> {
        let began = Instant::now();
        let mut byte = [b'?'];
        self.0
            .write_all(&byte)
            .and_then(|()| self.0.read_exact(&mut byte))
            .map_err(|cause| format!("a guest gave no answer: {cause}"))?;
        Ok(began.elapsed())
    }

    /// Reads until `words` have come.
    ///
    /// # Errors
    /// What came instead before the line closed or `limit` was over.
    pub(super) fn hear(&mut self, words: &str, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A time-out of zero would mean none.
            let timed = self
                .0
                .set_read_timeout(Some(left.max(Duration::from_millis(1))));
            match timed.and_then(|()| self.0.read(&mut buffer)) {
                Ok(count) if count > 0 && heard.len() < LONGEST_ANSWER => {
                    heard.extend(buffer.iter().take(count));
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                _ => return Err(shown_lines(&String::from_utf8_lossy(&heard))),
            }
            let words = words.as_bytes();
            if heard.windows(words.len()).any(|bytes| bytes == words) {
                return self
                    .0
                    .set_read_timeout(Some(PATIENCE))
                    .map_err(|cause| cause.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_heard_to_its_words_and_told_when_they_do_not_come() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut line = Echo::over(ours).unwrap();
        theirs.write_all(b"noise\nnow ready\n").unwrap();
        line.hear("ready\n", PATIENCE).unwrap();
        theirs.write_all(b"panic").unwrap();
        let heard = line.hear("ready", Duration::from_millis(20));
        assert_eq!(heard.unwrap_err(), "panic");
        theirs.write_all(b"the end").unwrap();
        drop(theirs);
        assert_eq!(line.hear("ready", PATIENCE).unwrap_err(), "the end");
    }
}
