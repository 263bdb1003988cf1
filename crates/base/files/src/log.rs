// SPDX-License-Identifier: Apache-2.0
//! Logs that survive a crash: files that grow by frames, each with a length and a checksum.
//!
//! ```text
//! magic | 4 marker | 4 length of the payload | 4 CRC-32 of the payload | 1 kind | payload | 4 marker | …
//! ```
//!
//! Numbers are little endian. The magic names the format; its last byte is the version. The kind has no checksum, so that
//! a write of one byte changes it. A write that a crash or a full disk cut short leaves bytes that are no whole frame. The
//! kernel decides when it writes to the disk: a power cut loses the frames that it had not written.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

const MARKER: [u8; 4] = [0xF6, b'v', b't', b'x'];
/// Length of a frame without its payload, in bytes.
pub const HEAD: usize = 13;
/// The place of the kind in a frame.
const KIND: u64 = 12;
/// Longest payload, in bytes. A reader takes no memory for a longer one.
pub const LONGEST: usize = 64 << 20;
/// Bytes that are read at a time.
const PART: u64 = 1 << 16;

/// A log that is being written.
#[derive(Debug)]
pub struct Log {
    file: File,
    magic: &'static [u8],
    end: u64,
}

impl Log {
    /// Continues the log in `file` at the offset `end`, behind the last whole frame. An empty file is an empty log.
    pub fn new(file: File, magic: &'static [u8], end: u64) -> Self {
        Self { file, magic, end }
    }

    /// The offset behind the last whole frame.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// When it is too long, or cannot be written; the log is then as before.
    pub fn append(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        if payload.len() > LONGEST {
            return Err(io::Error::other("a frame is too long"));
        }
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let mut bytes = match self.end {
            0 => self.magic.to_vec(),
            _ => Vec::with_capacity(HEAD + payload.len()),
        };
        bytes.extend(MARKER);
        bytes.extend(length.to_le_bytes());
        bytes.extend(crc32fast::hash(payload).to_le_bytes());
        bytes.push(kind);
        bytes.extend(payload);
        self.write(&bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(cause) = self.file.write_all_at(bytes, self.end) {
            // A full disk may have taken a part.
            let _ = self.file.set_len(self.end);
            return Err(cause);
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Cuts off all bytes from the offset `end` on.
    ///
    /// # Errors
    /// When the file cannot be cut.
    pub fn cut(&mut self, end: u64) -> io::Result<()> {
        self.file.set_len(end)?;
        self.end = end;
        Ok(())
    }

    /// Removes all frames.
    ///
    /// # Errors
    /// When the file cannot be cut or written.
    pub fn clear(&mut self) -> io::Result<()> {
        self.cut(0)?;
        self.write(self.magic)
    }

    /// Changes the kind of the frame at an offset.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_kind(&self, at: u64, kind: u8) -> io::Result<()> {
        self.file.write_all_at(&[kind], at.saturating_add(KIND))
    }

    /// The payload of the frame of `length` bytes, its head included, at an offset; `None` if it is damaged.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self, at: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, at)?;
        let whole = frame(&bytes).filter(|(_, payload)| HEAD + payload.len() == length);
        Ok(whole.map(|(_, payload)| payload.to_vec()))
    }
}

/// The reason that a file is no log of a format.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is of another version of the format.
    #[error("its format is version {}, and this program reads version {}", found.escape_ascii(), known.escape_ascii())]
    Version {
        /// The version of the file.
        found: u8,
        /// The version that this program reads.
        known: u8,
    },
    /// It is another file.
    #[error("it is no such file")]
    Other,
}

/// The length of the payload and the kind of the frame that begins here, and the checksum of its payload.
fn head(bytes: &[u8]) -> Option<(usize, u8, u32)> {
    let (marker, rest) = bytes.split_first_chunk::<4>()?;
    let (size, rest) = rest.split_first_chunk::<4>()?;
    let (checksum, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*size)).ok()?;
    let is_frame = *marker == MARKER && length <= LONGEST;
    is_frame.then_some((length, *rest.first()?, u32::from_le_bytes(*checksum)))
}

/// The kind and the payload of the frame that begins here; `None` if it is damaged.
fn frame(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (length, kind, checksum) = head(bytes)?;
    let payload = bytes.get(HEAD..HEAD + length)?;
    (crc32fast::hash(payload) == checksum).then_some((kind, payload))
}

/// The frames of a log, in order. Behind damage it goes on at the next marker whose checksum is right.
#[derive(Debug)]
pub struct Frames<R> {
    from: R,
    /// Bytes that were read and are not part of a returned frame yet, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    is_at_end: bool,
    ends_at_damage: bool,
    /// Offset of `start` in the file.
    offset: u64,
    damaged: u64,
    end: u64,
}

impl<R: Read> Frames<R> {
    /// Reads the magic of a log.
    ///
    /// # Errors
    /// When the file cannot be read, or is no log of this format.
    pub fn open(mut from: R, magic: &[u8]) -> Result<Self, LogError> {
        let mut found = Vec::new();
        (&mut from)
            .take(magic.len() as u64)
            .read_to_end(&mut found)?;
        if found != magic {
            return Err(match (found.split_last(), magic.split_last()) {
                (Some((found, of)), Some((known, name))) if of == name => LogError::Version {
                    found: *found,
                    known: *known,
                },
                _ => LogError::Other,
            });
        }
        Ok(Self {
            from,
            buffer: Vec::new(),
            start: 0,
            is_at_end: false,
            ends_at_damage: false,
            offset: magic.len() as u64,
            damaged: 0,
            end: magic.len() as u64,
        })
    }

    /// Ends at the first damage.
    pub fn until_damage(self) -> Self {
        Self {
            ends_at_damage: true,
            ..self
        }
    }

    /// The number of bytes so far that belong to no whole frame.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// The offset behind the last whole frame.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the kind and the payload of the next whole frame; `None` at the end.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn next_frame(&mut self) -> io::Result<Option<(u8, Vec<u8>)>> {
        while self.fill(HEAD)? {
            if let Some((length, ..)) = head(self.left()) {
                self.fill(HEAD + length)?;
            }
            if let Some((kind, payload)) = frame(self.left()) {
                let found = (kind, payload.to_vec());
                self.advance(HEAD + found.1.len());
                self.end = self.offset;
                return Ok(Some(found));
            }
            if self.ends_at_damage {
                return Ok(None);
            }
            let mut later = self.left().windows(MARKER.len()).skip(1);
            let next = later.position(|bytes| bytes == MARKER);
            // A marker may begin in the last bytes.
            let most = (self.left().len() + 1).saturating_sub(MARKER.len());
            self.skip(next.map_or(most.max(1), |next| next + 1));
        }
        self.skip(self.left().len());
        Ok(None)
    }

    fn left(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// Reads until `bytes` bytes are left. Returns false where the file ends before.
    fn fill(&mut self, bytes: usize) -> io::Result<bool> {
        while self.left().len() < bytes && !self.is_at_end {
            if self.start > 0 {
                self.buffer.drain(..self.start);
                self.start = 0;
            }
            let read = (&mut self.from).take(PART).read_to_end(&mut self.buffer)?;
            self.is_at_end = read == 0;
        }
        Ok(self.left().len() >= bytes)
    }

    fn skip(&mut self, bytes: usize) {
        self.damaged += bytes as u64;
        self.advance(bytes);
    }

    fn advance(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.buffer.len());
        self.offset += bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: &[u8] = b"test 1";

    fn log(payloads: &[Vec<u8>]) -> (tempfile::NamedTempFile, Log) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut log = Log::new(file.reopen().unwrap(), MAGIC, 0);
        for payload in payloads {
            log.append(2, payload).unwrap();
        }
        (file, log)
    }

    fn read(mut frames: Frames<&[u8]>) -> (Vec<Vec<u8>>, u64) {
        let mut found = Vec::new();
        while let Some((_, payload)) = frames.next_frame().unwrap() {
            found.push(payload);
        }
        (found, frames.damaged())
    }

    fn content(file: &tempfile::NamedTempFile) -> Vec<u8> {
        std::fs::read(file.path()).unwrap()
    }

    #[test]
    fn another_file_and_another_version_are_recognised_by_the_first_bytes() {
        for bytes in [&b""[..], b"test", b"text 1 and more"] {
            let refused = Frames::open(bytes, MAGIC).unwrap_err();
            assert!(matches!(refused, LogError::Other), "{refused}");
        }
        let refused = Frames::open(&b"test 7 and more"[..], MAGIC).unwrap_err();
        let expected = "its format is version 7, and this program reads version 1";
        assert_eq!(refused.to_string(), expected);
    }

    #[test]
    fn a_length_beyond_the_file_takes_no_memory_and_ends_the_reading() {
        let (file, _) = log(&[b"whole".to_vec()]);
        let mut bytes = content(&file);
        bytes.extend(MARKER);
        bytes.extend(u32::MAX.to_le_bytes());
        bytes.extend([0; 40]);
        let frames = || Frames::open(bytes.as_slice(), MAGIC).unwrap();
        assert_eq!(read(frames()), (vec![b"whole".to_vec()], 48));
        assert_eq!(read(frames().until_damage()).0, [b"whole".to_vec()]);
    }

    #[test]
    fn a_kind_is_changed_in_place_and_a_cleared_log_has_no_frame() {
        let (file, mut log) = log(&[b"first".to_vec(), b"second".to_vec()]);
        let second = MAGIC.len() as u64 + HEAD as u64 + 5;
        log.set_kind(second, 9).unwrap();
        assert_eq!(
            log.read(second, HEAD + 6).unwrap(),
            Some(b"second".to_vec())
        );
        assert_eq!(log.read(second, HEAD + 5).unwrap(), None);
        let bytes = content(&file);
        let mut frames = Frames::open(bytes.as_slice(), MAGIC).unwrap();
        let kinds: Vec<u8> = std::iter::from_fn(|| Some(frames.next_frame().unwrap()?.0)).collect();
        assert_eq!((kinds, frames.end()), (vec![2, 9], log.end()));
        log.clear().unwrap();
        assert_eq!(content(&file), MAGIC);
    }

    /// Each byte in turn is changed, or the file is cut there.
    #[test]
    fn damage_loses_the_frames_that_it_hits_and_no_other() {
        let lengths = [0, 1, 300, 17, 0, 64];
        let payloads: Vec<Vec<u8>> = (0..)
            .zip(lengths)
            .map(|(n, length)| vec![n; length])
            .collect();
        let (file, _) = log(&payloads);
        let whole = content(&file);
        let mut ends = Vec::new();
        let mut end = MAGIC.len();
        for payload in &payloads {
            end += HEAD + payload.len();
            ends.push(end);
        }
        for at in MAGIC.len()..whole.len() {
            let hit = ends.iter().position(|end| at < *end).unwrap();
            let cut = Frames::open(&whole[..at], MAGIC).unwrap();
            assert_eq!(read(cut).0, payloads[..hit], "cut at {at}");
            let begin = ends[hit] - HEAD - payloads[hit].len();
            if at - begin == 12 {
                // The kind has no checksum.
                continue;
            }
            let mut bytes = whole.clone();
            bytes[at] ^= 0x5a;
            let mut expected = payloads.clone();
            expected.remove(hit);
            let changed = Frames::open(bytes.as_slice(), MAGIC).unwrap();
            assert_eq!(read(changed).0, expected, "changed at {at}");
        }
    }
}
