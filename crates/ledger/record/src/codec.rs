// SPDX-License-Identifier: Apache-2.0
//! The payload of a frame of seconds: packed columns, compressed.
//!
//! Each column of the host and of a guest is its smallest value, and the values less the smallest, each in the same number
//! of bits. A column that does not change takes no bits, so that an idle guest takes some thirty bytes before compression,
//! however many seconds the frame has.

use crate::second::{Identity, OF_GUEST, OF_HOST, Second};
use flate2::Compression;
use flate2::read::{DeflateDecoder, DeflateEncoder};
use std::io::{self, Read};

/// Most seconds of a frame.
pub const MOST_SECONDS: usize = 600;
/// Most seconds of guests in a frame: the sum of the seconds of each guest.
pub const MOST_GUEST_SECONDS: usize = 1 << 20;
/// Longest payload before compression, in bytes.
const LONGEST_PAYLOAD: u64 = 64 << 20;

/// Successive seconds under the same facts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Block {
    /// The number of the facts in this recording.
    pub facts: u64,
    /// The number of the first second in this recording.
    pub first: u64,
    /// The seconds.
    pub seconds: Vec<Second>,
    /// Guests that no earlier block declares, and now and then all guests again.
    pub declared: Vec<Identity>,
}

/// The reason why a payload is no block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// It ends within a number, or its compression is damaged.
    #[error("it is damaged")]
    Damaged,
    /// It holds more than a recorder writes.
    #[error("it holds more seconds or guests than a recorder writes")]
    TooMany,
}

/// Encodes a block.
///
/// # Errors
/// When it cannot be compressed, which takes memory only.
pub fn encode(block: &Block, level: Compression) -> io::Result<Vec<u8>> {
    let mut columns = Columns::default();
    let head = &mut columns.head;
    put(head, block.facts);
    put(head, block.first);
    put(head, block.seconds.len() as u64);
    let mut last = block.seconds.first().map_or(0, |second| second.ended);
    put(head, last.cast_unsigned());
    let lengths = block.seconds.iter().map(|second| {
        let before = std::mem::replace(&mut last, second.ended);
        second.ended.wrapping_sub(before).cast_unsigned()
    });
    columns.pack(&lengths.collect::<Vec<u64>>());
    let host: Vec<&[u64; OF_HOST]> = block.seconds.iter().map(|second| &second.host).collect();
    columns.pack_all(&host);
    let runs = runs(&block.seconds);
    put(&mut columns.head, runs.len() as u64);
    for (number, start, values) in runs {
        let head = &mut columns.head;
        put(head, u64::from(number));
        put(head, start as u64);
        put(head, values.len() as u64);
        columns.pack_all(&values);
    }
    let mut plain = Vec::new();
    put(&mut plain, columns.head.len() as u64);
    put(&mut plain, columns.bits.len() as u64);
    plain.extend(columns.head);
    plain.extend(columns.bits);
    plain.extend(serde_json::to_vec(&block.declared)?);
    let mut packed = Vec::new();
    DeflateEncoder::new(plain.as_slice(), level).read_to_end(&mut packed)?;
    Ok(packed)
}

/// Columns: their heads, and apart from these their values, which compression cannot shrink.
#[derive(Default)]
struct Columns<Bytes = Vec<u8>> {
    head: Bytes,
    bits: Bytes,
}

/// A guest's number, the first second of an uninterrupted presence, and its values from there on.
type Run<'a> = (u32, usize, Vec<&'a [u64; OF_GUEST]>);

fn runs(seconds: &[Second]) -> Vec<Run<'_>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    let mut open: std::collections::BTreeMap<u32, usize> = std::collections::BTreeMap::new();
    for (at, second) in seconds.iter().enumerate() {
        for (number, values) in &second.guests {
            let run = open.get(number).and_then(|place| runs.get_mut(*place));
            match run {
                Some((_, start, run)) if *start + run.len() == at => run.push(values),
                _ => {
                    open.insert(*number, runs.len());
                    runs.push((*number, at, vec![values]));
                }
            }
        }
    }
    runs
}

impl Columns {
    fn pack_all<const N: usize>(&mut self, rows: &[&[u64; N]]) {
        for place in 0..N {
            let column = rows.iter().filter_map(|row| row.get(place).copied());
            self.pack(&column.collect::<Vec<u64>>());
        }
    }

    /// Writes the smallest value, a number of bits, and each value less the smallest in so many bits.
    fn pack(&mut self, values: &[u64]) {
        let low = values.iter().copied().min().unwrap_or(0);
        let high = values.iter().copied().max().unwrap_or(0);
        let width = u64::BITS - (high - low).leading_zeros();
        put(&mut self.head, low);
        put(&mut self.head, u64::from(width));
        let (mut bits, mut count) = (0_u128, 0);
        for value in values {
            bits |= u128::from(value - low) << count;
            count += width;
            while count >= 8 {
                self.bits.push(bits as u8);
                bits >>= 8;
                count -= 8;
            }
        }
        if count > 0 {
            self.bits.push(bits as u8);
        }
    }
}

impl Columns<&[u8]> {
    fn number(&mut self) -> Result<u64, CodecError> {
        take(&mut self.head)
    }

    fn unpack(
        &mut self,
        rows: &mut [Second],
        mut set: impl FnMut(&mut Second, u64),
    ) -> Result<(), CodecError> {
        let low = self.number()?;
        let width = u32::try_from(self.number()?).unwrap_or(u32::MAX);
        if width > u64::BITS {
            return Err(CodecError::Damaged);
        }
        let (mut bits, mut count) = (0_u128, 0);
        for row in rows {
            while count < width {
                let (byte, rest) = self.bits.split_first().ok_or(CodecError::Damaged)?;
                self.bits = rest;
                bits |= u128::from(*byte) << count;
                count += 8;
            }
            let value = bits & ((1_u128 << width) - 1);
            set(row, low.wrapping_add(value as u64));
            bits >>= width;
            count -= width;
        }
        Ok(())
    }
}

fn put(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// Decodes a block. Takes memory for at most [`MOST_GUEST_SECONDS`], whatever the payload claims.
///
/// # Errors
/// When it is no block that a recorder wrote.
pub fn decode(payload: &[u8]) -> Result<Block, CodecError> {
    let mut plain = Vec::new();
    let mut unpacked = DeflateDecoder::new(payload).take(LONGEST_PAYLOAD + 1);
    unpacked
        .read_to_end(&mut plain)
        .map_err(|_| CodecError::Damaged)?;
    if plain.len() as u64 > LONGEST_PAYLOAD {
        return Err(CodecError::TooMany);
    }
    let mut from = plain.as_slice();
    let (of_head, of_bits) = (size(take(&mut from)?)?, size(take(&mut from)?)?);
    let parts = from.split_at_checked(of_head);
    let (head, rest) = parts.ok_or(CodecError::Damaged)?;
    let parts = rest.split_at_checked(of_bits);
    let (bits, json) = parts.ok_or(CodecError::Damaged)?;
    let mut columns = Columns { head, bits };
    let (facts, first) = (columns.number()?, columns.number()?);
    let count = size(columns.number()?)?;
    if count > MOST_SECONDS {
        return Err(CodecError::TooMany);
    }
    let mut seconds = vec![Second::default(); count];
    let mut last = columns.number()?.cast_signed();
    columns.unpack(&mut seconds, |second, length| {
        last = last.wrapping_add(length.cast_signed());
        second.ended = last;
    })?;
    for place in 0..OF_HOST {
        columns.unpack(&mut seconds, |second, value| {
            set(&mut second.host, place, value);
        })?;
    }
    let mut left = MOST_GUEST_SECONDS;
    for _ in 0..columns.number()? {
        let number = u32::try_from(columns.number()?).map_err(|_| CodecError::Damaged)?;
        let (start, length) = (size(columns.number()?)?, size(columns.number()?)?);
        left = left.checked_sub(length).ok_or(CodecError::TooMany)?;
        let end = start.checked_add(length).filter(|end| *end <= count);
        let own = end
            .and_then(|end| seconds.get_mut(start..end))
            .ok_or(CodecError::Damaged)?;
        for second in &mut *own {
            second.guests.push((number, [0; OF_GUEST]));
        }
        for place in 0..OF_GUEST {
            columns.unpack(own, |second, value| {
                if let Some((_, values)) = second.guests.last_mut() {
                    set(values, place, value);
                }
            })?;
        }
    }
    for second in &mut seconds {
        second.guests.sort_by_key(|(number, _)| *number);
        second.guests.dedup_by_key(|(number, _)| *number);
    }
    let declared = serde_json::from_slice(json).map_err(|_| CodecError::Damaged)?;
    Ok(Block {
        facts,
        first,
        seconds,
        declared,
    })
}

fn set(values: &mut [u64], place: usize, value: u64) {
    if let Some(into) = values.get_mut(place) {
        *into = value;
    }
}

fn take(from: &mut &[u8]) -> Result<u64, CodecError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first().ok_or(CodecError::Damaged)?;
        *from = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(CodecError::Damaged)
}

fn size(value: u64) -> Result<usize, CodecError> {
    usize::try_from(value).map_err(|_| CodecError::TooMany)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks() -> impl Strategy<Value = Block> {
        let values = prop_oneof![4 => Just(0_u64), 4 => 0_u64..5000, 1 => any::<u64>()];
        let guest = (0_u32..6, prop::array::uniform15(values.clone()));
        let second = (
            any::<i64>(),
            prop::array::uniform15(values),
            prop::collection::vec(guest, 0..5),
        );
        let seconds = prop::collection::vec(second, 0..20);
        (any::<u64>(), any::<u64>(), seconds).prop_map(|(facts, first, seconds)| Block {
            facts,
            first,
            seconds: seconds
                .into_iter()
                .map(|(ended, host, mut guests)| {
                    guests.sort_by_key(|(number, _)| *number);
                    guests.dedup_by_key(|(number, _)| *number);
                    Second {
                        ended,
                        host,
                        guests,
                    }
                })
                .collect(),
            declared: vec![Identity::unknown(3)],
        })
    }

    #[test]
    fn a_run_that_claims_more_guests_than_a_recorder_writes_is_refused() {
        let mut head = Vec::new();
        for value in [0, 0, MOST_SECONDS as u64, 0] {
            put(&mut head, value);
        }
        head.extend([0; 2 * (1 + OF_HOST)]);
        let runs = MOST_GUEST_SECONDS as u64 / MOST_SECONDS as u64 + 1;
        put(&mut head, runs);
        for number in 0..runs {
            for value in [number, 0, MOST_SECONDS as u64] {
                put(&mut head, value);
            }
            head.extend([0; 2 * OF_GUEST]);
        }
        let mut plain = Vec::new();
        put(&mut plain, head.len() as u64);
        put(&mut plain, 0);
        plain.extend(head);
        plain.extend(b"[]");
        let mut packed = Vec::new();
        let level = Compression::fast();
        DeflateEncoder::new(plain.as_slice(), level)
            .read_to_end(&mut packed)
            .unwrap();
        assert_eq!(decode(&packed), Err(CodecError::TooMany));
    }

    #[test]
    fn a_payload_that_unpacks_to_gigabytes_is_refused_at_the_limit() {
        let zeros = std::io::repeat(0).take(LONGEST_PAYLOAD + 10);
        let mut packed = Vec::new();
        DeflateEncoder::new(zeros, Compression::fast())
            .read_to_end(&mut packed)
            .unwrap();
        assert_eq!(decode(&packed), Err(CodecError::TooMany));
    }

    proptest! {
        #[test]
        fn a_block_is_the_same_after_decoding(block in blocks()) {
            let packed = encode(&block, Compression::default()).unwrap();
            prop_assert_eq!(decode(&packed), Ok(block));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
            let mut packed = Vec::new();
            DeflateEncoder::new(bytes.as_slice(), Compression::fast()).read_to_end(&mut packed).unwrap();
            let _ = decode(&packed);
        }
    }
}
