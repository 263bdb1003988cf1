// SPDX-License-Identifier: Apache-2.0
//! The two files of a recording as sequences of frames with a length and a checksum.
//!
//! ```text
//! 4 marker | 4 length of the payload | 4 CRC-32 of kind and payload | 1 kind | payload
//! ```
//!
//! Numbers are little endian. A reader that meets damage goes on at the next marker whose checksum is right.

use std::io::{self, Read};

/// The first bytes of each of the two files: the format and its version.
pub const MAGIC: &[u8; 16] = b"vtax-recording 1";
const MARKER: [u8; 4] = [0xF6, b'v', b't', b'x'];
/// Length of a frame's head, in bytes.
pub const HEAD: usize = 13;
/// Longest payload, in bytes. A reader takes no memory for a longer one.
pub const LONGEST: usize = 16 << 20;
/// Bytes that are read at a time.
const PART: usize = 1 << 16;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Facts of the host and of the method, as JSON.
    Facts,
    /// One or more seconds, compressed.
    Seconds,
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Self::Facts => 1,
            Self::Seconds => 2,
        }
    }
}

/// Returns a frame as bytes; `None` if the payload is too long for one.
pub fn frame(kind: Kind, payload: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(payload.len()).ok()?;
    if payload.len() > LONGEST {
        return None;
    }
    let mut frame = Vec::with_capacity(HEAD + payload.len());
    frame.extend(MARKER);
    frame.extend(length.to_le_bytes());
    frame.extend(checksum(kind.byte(), payload).to_le_bytes());
    frame.push(kind.byte());
    frame.extend(payload);
    Some(frame)
}

fn checksum(kind: u8, payload: &[u8]) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&[kind]);
    hash.update(payload);
    hash.finalize()
}

/// The frames of one file, in order.
#[derive(Debug)]
pub struct Frames<R> {
    from: R,
    /// Bytes that were read and are not part of a returned frame yet, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    is_at_end: bool,
    /// Offset of `start` in the file.
    offset: u64,
    /// Bytes that belong to no frame.
    damaged: u64,
    /// Offset after the last whole frame.
    end: u64,
}

impl<R: Read> Frames<R> {
    /// Reads the magic of a file. `None` if it is another file.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn open(mut from: R) -> io::Result<Option<Self>> {
        let mut magic = [0; MAGIC.len()];
        match from.read_exact(&mut magic) {
            Ok(()) if magic == *MAGIC => {}
            Err(cause) if cause.kind() != io::ErrorKind::UnexpectedEof => return Err(cause),
            _ => return Ok(None),
        }
        let offset = MAGIC.len() as u64;
        Ok(Some(Self {
            from,
            buffer: Vec::new(),
            start: 0,
            is_at_end: false,
            offset,
            damaged: 0,
            end: offset,
        }))
    }

    /// The number of bytes so far that belong to no whole frame.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// The offset after the last whole frame.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the next whole frame; `None` at the end.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn next_frame(&mut self) -> io::Result<Option<(Kind, Vec<u8>)>> {
        loop {
            if !self.fill(HEAD)? {
                self.skip(self.left().len());
                return Ok(None);
            }
            match self.head() {
                Some((kind, length, checked)) if self.fill(HEAD + length)? => {
                    let payload = self.left().get(HEAD..HEAD + length).unwrap_or_default();
                    if checksum(kind, payload) != checked {
                        self.skip(1);
                        continue;
                    }
                    let payload = payload.to_vec();
                    self.advance(HEAD + length);
                    self.end = self.offset;
                    match kind {
                        1 => return Ok(Some((Kind::Facts, payload))),
                        2 => return Ok(Some((Kind::Seconds, payload))),
                        // A frame of a later version.
                        _ => {}
                    }
                }
                _ => {
                    let next = self.left().get(1..).and_then(|rest| {
                        let at = rest
                            .windows(MARKER.len())
                            .position(|bytes| bytes == MARKER)?;
                        Some(at + 1)
                    });
                    // A marker may begin in the last bytes.
                    self.skip(
                        next.unwrap_or((self.left().len() + 1).saturating_sub(MARKER.len()).max(1)),
                    );
                }
            }
        }
    }

    fn left(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// Kind, length and checksum of the frame that starts here, if one does.
    fn head(&self) -> Option<(u8, usize, u32)> {
        let (marker, rest) = self.left().split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (checked, rest) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let is_frame = *marker == MARKER && length <= LONGEST;
        is_frame.then_some((*rest.first()?, length, u32::from_le_bytes(*checked)))
    }

    /// Reads until `bytes` bytes are left. Returns false where the file ends before.
    fn fill(&mut self, bytes: usize) -> io::Result<bool> {
        while self.left().len() < bytes && !self.is_at_end {
            if self.start > 0 {
                self.buffer.drain(..self.start);
                self.start = 0;
            }
            let read = (&mut self.from)
                .take(PART as u64)
                .read_to_end(&mut self.buffer)?;
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
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, u64) {
        let mut frames = Frames::open(bytes).unwrap().unwrap();
        let mut found = Vec::new();
        while let Some((_, payload)) = frames.next_frame().unwrap() {
            found.push(payload);
        }
        (found, frames.damaged())
    }

    fn file(payloads: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for payload in payloads {
            bytes.extend(frame(Kind::Seconds, payload).unwrap());
        }
        bytes
    }

    #[test]
    fn another_file_is_recognised_by_its_first_bytes() {
        for bytes in [&b""[..], b"vtax", b"vtax-recording 9 and more"] {
            assert!(Frames::open(bytes).unwrap().is_none());
        }
    }

    #[test]
    fn a_length_beyond_the_file_takes_no_memory_and_ends_the_reading() {
        let mut bytes = file(&[b"whole".to_vec()]);
        bytes.extend(MARKER);
        bytes.extend(u32::MAX.to_le_bytes());
        bytes.extend([0; 40]);
        let (found, damaged) = read(&bytes);
        assert_eq!((found, damaged), (vec![b"whole".to_vec()], 48));
    }

    proptest! {
        #[test]
        fn damage_loses_the_frames_that_it_hits_and_no_other(
            lengths in prop::collection::vec(0usize..400, 1..12), at in any::<prop::sample::Index>(), flip in any::<bool>(),
        ) {
            let payloads: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(n, length)| vec![n as u8; *length]).collect();
            let mut bytes = file(&payloads);
            let at = MAGIC.len() + at.index(bytes.len() - MAGIC.len());
            let hit = {
                let mut end = MAGIC.len();
                payloads.iter().position(|payload| { end += HEAD + payload.len(); at < end }).unwrap()
            };
            if flip { bytes[at] ^= 0x5a } else { bytes.truncate(at) }
            let (found, _) = read(&bytes);
            let mut expected = payloads.clone();
            if flip { expected.remove(hit); } else { expected.truncate(hit); }
            prop_assert_eq!(found, expected);
        }
    }
}
