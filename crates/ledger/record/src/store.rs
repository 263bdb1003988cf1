// SPDX-License-Identifier: Apache-2.0
//! The directory of a recording.
//!
//! `recording.vtax` holds facts and blocks of two minutes and only grows. `tail.vtax` holds the seconds since the last
//! block, one frame each; it is emptied when their block is written. Seconds are numbered, and a reader takes each
//! number once, so that a recorder may be killed between the two. Nothing is synced: after a power failure, data that
//! the kernel had not written is lost.

use crate::codec::{self, Block};
use crate::second::{Identity, Second};
use flate2::Compression;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use vtax_core::Source;
use vtax_files::log::{Frames, Log, LogError};
use vtax_files::{Dir, FileError};

/// The first bytes of each of the two files.
const MAGIC: &[u8] = b"vtax-recording 2";
/// The kind of frames with facts of the host and of the method, as JSON.
const FACTS: u8 = 1;
/// The kind of frames with one or more seconds, compressed.
const SECONDS: u8 = 2;
/// The file of facts and blocks.
pub const RECORDING: &str = "recording.vtax";
/// The file of the seconds since the last block.
const TAIL: &str = "tail.vtax";
/// Longest tail that is read, in bytes.
const LONGEST_TAIL: u64 = 256 << 20;

/// Facts of the host and of the method, which hold until the next ones.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// The number in the recording, from 0.
    pub number: u64,
    /// The number of the start of the recorder that wrote them, from 1.
    pub session: u64,
    /// Start of the first interval (RFC 3339, UTC).
    pub began: String,
    /// The interval, in seconds.
    pub interval_seconds: f64,
    /// The method that charges soft interrupts.
    pub method: String,
    /// How the kernel accounts interrupts.
    pub irq_accounting: String,
    /// The coverage of the energy; `None` without a meter.
    pub energy_covers: Option<String>,
    /// Whether the energy is measured or modelled.
    pub energy_source: Option<Source>,
    /// The model that computes the energy, where it is modelled.
    pub energy_model: Option<String>,
    /// The rule for idle energy.
    pub idle_rule: String,
    /// The user's text.
    pub note: String,
    /// Limitations of the host.
    pub limitations: Vec<String>,
    /// Facts about the host, as in `host.json` of results.
    pub host: serde_json::Value,
}

/// The reason why a directory is not recorded into, or not read as a recording.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file cannot be opened, read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file cannot be read or written.
    #[error("cannot {action} the recording in {path}: {cause}")]
    Io {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The directory.
        path: String,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Another recorder writes there.
    #[error("another `vtax record` writes to {0}: stop it, or give another directory")]
    Busy(String),
    /// The directory holds something else.
    #[error("{0} holds files and no recording: give an empty or a new directory")]
    NotEmpty(String),
    /// No second was recorded.
    #[error("the recording in {0} holds no second yet")]
    Empty(String),
    /// The file is no recording of this version.
    #[error("{0} is no recording that this version of vtax reads")]
    NotARecording(String),
}

impl StoreError {
    fn io(action: &'static str, dir: &Dir) -> impl FnOnce(io::Error) -> Self {
        let path = dir.path().display().to_string();
        move |cause| Self::Io {
            action,
            path,
            cause,
        }
    }
}

/// Whether a directory holds a recording.
pub fn is_recording(path: &Path) -> bool {
    let found = Dir::open(path).and_then(|dir| dir.file(RECORDING));
    found.is_ok_and(|file| {
        matches!(
            Frames::open(file, MAGIC),
            Ok(_) | Err(LogError::Version { .. })
        )
    })
}

/// A second of a recording, with its place.
#[derive(Debug)]
pub struct Read<'a> {
    /// The facts that hold in it.
    pub facts: &'a Facts,
    /// The number of the second in the recording.
    pub number: u64,
    /// The guests that were declared so far under these facts' session.
    pub guests: &'a HashMap<u32, Identity>,
    /// The values.
    pub second: &'a Second,
}

/// The state at the end of a recording.
#[derive(Debug, Default)]
pub struct End {
    /// Bytes that belong to no whole frame, or to one that does not decode.
    pub damaged: u64,
    /// The size of both files, in bytes.
    pub bytes: u64,
    /// The number of the next second.
    next: u64,
    /// The number of the next facts.
    facts: u64,
    /// The number of sessions.
    sessions: u64,
    /// The offset after the last whole frame of the recording.
    offset: u64,
    /// The seconds of the tail that are in no block.
    tail: Vec<Block>,
}

/// Reads a recording, also while it is being written: calls `take` for each second, in order.
///
/// # Errors
/// When it cannot be read, or is no recording.
pub fn read(path: &Path, take: impl FnMut(Read<'_>)) -> Result<End, StoreError> {
    read_dir(&Dir::open(path)?, take)
}

fn read_dir(dir: &Dir, mut take: impl FnMut(Read<'_>)) -> Result<End, StoreError> {
    // The tail first: a block that is written meanwhile repeats its seconds, and none is missed.
    let (tail, damaged_tail, tail_bytes) = read_tail(dir)?;
    let file = dir.file(RECORDING)?;
    let length = file.metadata().map_err(StoreError::io("read", dir))?.len();
    let mut frames = Frames::open(file, MAGIC).map_err(|error| {
        let path = dir.path().join(RECORDING).display().to_string();
        match error {
            LogError::Io(cause) => StoreError::io("read", dir)(cause),
            LogError::Version { .. } => StoreError::NotARecording(format!("{path} ({error})")),
            LogError::Other => StoreError::NotARecording(path),
        }
    })?;
    let mut reader = Reader {
        end: End {
            damaged: damaged_tail,
            bytes: length + tail_bytes,
            ..End::default()
        },
        facts: HashMap::new(),
        guests: HashMap::new(),
        session: 0,
    };
    while let Some((kind, payload)) = frames.next_frame().map_err(StoreError::io("read", dir))? {
        let size = payload.len() as u64;
        let is_read = match kind {
            FACTS => serde_json::from_slice(&payload).is_ok_and(|facts| {
                reader.facts(facts);
                true
            }),
            SECONDS => codec::decode(&payload).is_ok_and(|block| {
                reader.block(&block, &mut take);
                true
            }),
            _ => false,
        };
        if !is_read {
            reader.end.damaged += size;
        }
    }
    reader.end.damaged += frames.damaged();
    reader.end.offset = frames.end();
    for block in tail {
        if reader.block(&block, &mut take) {
            reader.end.tail.push(block);
        }
    }
    Ok(reader.end)
}

/// Returns the blocks of the tail, the number of damaged bytes, and its size.
fn read_tail(dir: &Dir) -> Result<(Vec<Block>, u64, u64), StoreError> {
    let file = match dir.file(TAIL) {
        Err(error) if error.is_not_found() => return Ok((Vec::new(), 0, 0)),
        other => other?,
    };
    let length = file.metadata().map_err(StoreError::io("read", dir))?.len();
    let mut frames = match Frames::open(io::Read::take(file, LONGEST_TAIL), MAGIC) {
        Ok(frames) => frames,
        Err(LogError::Io(cause)) => return Err(StoreError::io("read", dir)(cause)),
        Err(_) => return Ok((Vec::new(), length, length)),
    };
    let (mut blocks, mut damaged) = (Vec::new(), 0);
    while let Some((_, payload)) = frames.next_frame().map_err(StoreError::io("read", dir))? {
        match codec::decode(&payload) {
            Ok(block) => blocks.push(block),
            Err(_) => damaged += payload.len() as u64,
        }
    }
    Ok((blocks, damaged + frames.damaged(), length))
}

/// Most different facts of a recording that a reader remembers.
const MOST_FACTS: usize = 10_000;
/// Most guests of a session that a reader remembers.
const MOST_GUESTS: usize = 1_000_000;

struct Reader {
    end: End,
    facts: HashMap<u64, Facts>,
    guests: HashMap<u32, Identity>,
    /// The session of `guests`.
    session: u64,
}

impl Reader {
    fn facts(&mut self, facts: Facts) {
        self.end.facts = self.end.facts.max(facts.number.saturating_add(1));
        self.end.sessions = self.end.sessions.max(facts.session);
        if self.facts.len() < MOST_FACTS {
            self.facts.insert(facts.number, facts);
        }
    }

    /// Returns whether the block has seconds that are new.
    fn block(&mut self, block: &Block, take: &mut impl FnMut(Read<'_>)) -> bool {
        let Some(facts) = self.facts.get(&block.facts) else {
            return false;
        };
        // Another session numbers its guests anew.
        if self.session != facts.session {
            self.guests.clear();
            self.session = facts.session;
        }
        for identity in block.declared.iter().filter(|identity| identity.is_short()) {
            if self.guests.len() < MOST_GUESTS || self.guests.contains_key(&identity.number) {
                self.guests.insert(identity.number, identity.clone());
            }
        }
        let mut is_new = false;
        for (number, second) in (block.first..).zip(&block.seconds) {
            if number < self.end.next {
                continue;
            }
            is_new = true;
            self.end.next = number.saturating_add(1);
            take(Read {
                facts,
                number,
                guests: &self.guests,
                second,
            });
        }
        is_new
    }
}

/// A recording that is being written. It opens no file once it is open.
#[derive(Debug)]
pub struct Store {
    recording: Log,
    tail: Log,
    next: u64,
    facts: u64,
    session: u64,
    /// Whether writes fail as on a full disk.
    #[cfg(test)]
    fails: bool,
}

impl Store {
    /// Opens a new recording, or one to be continued, whose incomplete end is cut off. The second value describes that
    /// in a sentence.
    ///
    /// # Errors
    /// When the directory holds something else, another recorder writes there, or it cannot be written.
    pub fn open(path: &Path) -> Result<(Self, Option<String>), StoreError> {
        let named = || path.display().to_string();
        match Dir::open(path) {
            Err(error) if error.is_not_found() => {}
            found => {
                let found = found?;
                if !found.contains(RECORDING) && !found.list()?.is_empty() {
                    return Err(StoreError::NotEmpty(named()));
                }
            }
        }
        // The names and the use of guests are private.
        let dir = Dir::private(path)?;
        let file = dir.edit(RECORDING)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| StoreError::Busy(named()))?;
        let failed = |action| StoreError::io(action, &dir);
        let length = file.metadata().map_err(failed("read"))?.len();
        let mut recording = Log::new(file, MAGIC, length);
        // A recorder that was killed at once, or had no room, leaves a file without its first bytes.
        if length < MAGIC.len() as u64 {
            recording.clear().map_err(failed("write"))?;
        }
        let end = read_dir(&dir, |_| {})?;
        let mut tail = Log::new(dir.edit(TAIL)?, MAGIC, 0);
        recording.cut(end.offset).map_err(failed("write"))?;
        for block in &end.tail {
            let payload = codec::encode(block, Compression::default()).map_err(failed("write"))?;
            recording
                .append(SECONDS, &payload)
                .map_err(failed("write"))?;
        }
        tail.clear().map_err(failed("write"))?;
        let note = (end.damaged > 0 && length > 0).then(|| {
            format!(
                "{} bytes of {} are no whole second: they are left out",
                end.damaged,
                named()
            )
        });
        let store = Self {
            recording,
            tail,
            next: end.next,
            facts: end.facts,
            session: end.sessions + 1,
            #[cfg(test)]
            fails: false,
        };
        Ok((store, note))
    }

    #[cfg(test)]
    pub(crate) fn fail_writes(&mut self, fails: bool) {
        self.fails = fails;
    }

    /// The size of both files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.recording.end() + self.tail.end()
    }

    /// The number of the next second.
    pub fn next(&self) -> u64 {
        self.next
    }

    fn find_room(&self) -> io::Result<()> {
        #[cfg(test)]
        if self.fails {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Writes facts that hold for the following seconds.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write_facts(&mut self, facts: &Facts) -> io::Result<()> {
        self.find_room()?;
        let facts = Facts {
            number: self.facts,
            session: self.session,
            ..facts.clone()
        };
        self.recording.append(FACTS, &serde_json::to_vec(&facts)?)?;
        self.facts += 1;
        Ok(())
    }

    fn payload(
        &self,
        first: u64,
        seconds: &[Second],
        declared: &[Identity],
        level: Compression,
    ) -> io::Result<Vec<u8>> {
        self.find_room()?;
        let block = Block {
            facts: self.facts.saturating_sub(1),
            first,
            seconds: seconds.to_vec(),
            declared: declared.to_vec(),
        };
        codec::encode(&block, level)
    }

    /// Writes a second that the next block will contain, `before` seconds after the last block.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_second(
        &mut self,
        before: usize,
        second: &Second,
        declared: &[Identity],
    ) -> io::Result<()> {
        let first = self.next.saturating_add(before as u64);
        let payload = self.payload(
            first,
            std::slice::from_ref(second),
            declared,
            Compression::fast(),
        )?;
        self.tail.append(SECONDS, &payload)
    }

    /// Writes a block, and empties the tail.
    ///
    /// # Errors
    /// When it cannot be written; the tail stays.
    pub fn write_block(&mut self, seconds: &[Second], declared: &[Identity]) -> io::Result<()> {
        let payload = self.payload(self.next, seconds, declared, Compression::default())?;
        self.recording.append(SECONDS, &payload)?;
        self.skip(seconds.len());
        self.tail.cut(MAGIC.len() as u64)
    }

    /// Leaves out the numbers of seconds that are lost.
    pub fn skip(&mut self, seconds: usize) {
        self.next = self.next.saturating_add(seconds as u64);
    }
}
