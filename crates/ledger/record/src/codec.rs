// SPDX-License-Identifier: Apache-2.0
//! The payload of a frame of seconds: columns of differences, compressed.
//!
//! Each column of the host and of a guest is written in the shortest of three ways: the values as numbers of variable
//! length, the differences from one second to the next, or the values less the smallest of them, each in the same number
//! of bits. Columns that are zero throughout are left out, so that an idle guest takes six bytes before compression,
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
    let mut plain = Vec::new();
    put(&mut plain, block.facts);
    put(&mut plain, block.first);
    put(&mut plain, block.seconds.len() as u64);
    let mut last = 0;
    for second in &block.seconds {
        put(&mut plain, zigzag(second.ended.wrapping_sub(last)));
        last = second.ended;
    }
    let host: Vec<&[u64; OF_HOST]> = block.seconds.iter().map(|second| &second.host).collect();
    put_columns(&mut plain, &host);
    let runs = runs(&block.seconds);
    put(&mut plain, runs.len() as u64);
    for (number, start, values) in runs {
        put(&mut plain, u64::from(number));
        put(&mut plain, start as u64);
        put(&mut plain, values.len() as u64);
        put_columns(&mut plain, &values);
    }
    plain.extend(serde_json::to_vec(&block.declared)?);
    let mut packed = Vec::new();
    DeflateEncoder::new(plain.as_slice(), level).read_to_end(&mut packed)?;
    Ok(packed)
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

fn put_columns<const N: usize>(into: &mut Vec<u8>, rows: &[&[u64; N]]) {
    let column = |place: usize| {
        rows.iter()
            .map(move |row| row.get(place).copied().unwrap_or(0))
    };
    let is_used = |place: &usize| column(*place).any(|value| value != 0);
    let mask = (0..N)
        .filter(is_used)
        .fold(0, |mask, place| mask | 1 << place);
    let (mut differences, mut packed) = (0_u64, 0_u64);
    let mut columns = Vec::new();
    for place in (0..N).filter(is_used) {
        let values: Vec<u64> = column(place).collect();
        let (mut plain, mut steps) = (Vec::new(), Vec::new());
        let mut last = 0;
        for value in &values {
            put(&mut plain, *value);
            put(&mut steps, zigzag(value.wrapping_sub(last).cast_signed()));
            last = *value;
        }
        let bits = pack(&values);
        let is_constant = values.iter().all(|value| Some(value) == values.first());
        let shortest = plain.len().min(steps.len());
        columns.extend(if is_constant {
            differences |= 1 << place;
            steps
        } else if bits.len() < shortest - shortest / 8 {
            // The others shrink by compression, and packed bits do not.
            packed |= 1 << place;
            bits
        } else if steps.len() < plain.len() {
            differences |= 1 << place;
            steps
        } else {
            plain
        });
    }
    put(into, mask);
    put(into, differences);
    put(into, packed);
    into.extend(columns);
}

/// The smallest value, a number of bits, and each value less the smallest in so many bits.
fn pack(values: &[u64]) -> Vec<u8> {
    let low = values.iter().copied().min().unwrap_or(0);
    let high = values.iter().copied().max().unwrap_or(0);
    let width = u64::BITS - (high - low).leading_zeros();
    let mut into = Vec::new();
    put(&mut into, low);
    put(&mut into, u64::from(width));
    let (mut bits, mut count) = (0_u128, 0);
    for value in values {
        bits |= u128::from(value - low) << count;
        count += width;
        while count >= 8 {
            into.push(bits as u8);
            bits >>= 8;
            count -= 8;
        }
    }
    if count > 0 {
        into.push(bits as u8);
    }
    into
}

fn unpack(
    from: &mut &[u8],
    rows: usize,
    mut set: impl FnMut(usize, u64),
) -> Result<(), CodecError> {
    let low = take(from)?;
    let width = u32::try_from(take(from)?)
        .ok()
        .filter(|width| *width <= u64::BITS);
    let width = width.ok_or(CodecError::Damaged)?;
    let (mut bits, mut count) = (0_u128, 0);
    for at in 0..rows {
        while count < width {
            let (byte, rest) = from.split_first().ok_or(CodecError::Damaged)?;
            *from = rest;
            bits |= u128::from(*byte) << count;
            count += 8;
        }
        let value = bits & ((1_u128 << width) - 1);
        set(at, low.wrapping_add(value as u64));
        bits >>= width;
        count -= width;
    }
    Ok(())
}

fn put(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
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
    let from = &mut from;
    let (facts, first) = (take(from)?, take(from)?);
    let count = size(take(from)?)?;
    if count > MOST_SECONDS {
        return Err(CodecError::TooMany);
    }
    let mut seconds = vec![Second::default(); count];
    let mut last = 0_i64;
    for second in &mut seconds {
        last = last.wrapping_add(unzigzag(take(from)?));
        second.ended = last;
    }
    take_columns(
        from,
        count,
        |at, place, value| {
            let host = seconds
                .get_mut(at)
                .and_then(|second| second.host.get_mut(place));
            host.into_iter().for_each(|into| *into = value);
        },
        OF_HOST,
    )?;
    let mut left = MOST_GUEST_SECONDS;
    for _ in 0..take(from)? {
        let number = u32::try_from(take(from)?).map_err(|_| CodecError::Damaged)?;
        let (start, length) = (size(take(from)?)?, size(take(from)?)?);
        left = left.checked_sub(length).ok_or(CodecError::TooMany)?;
        let end = start.checked_add(length).filter(|end| *end <= count);
        let own = end
            .and_then(|end| seconds.get_mut(start..end))
            .ok_or(CodecError::Damaged)?;
        for second in &mut *own {
            second.guests.push((number, [0; OF_GUEST]));
        }
        take_columns(
            from,
            length,
            |at, place, value| {
                let guest = own.get_mut(at).and_then(|second| second.guests.last_mut());
                let into = guest.and_then(|(_, values)| values.get_mut(place));
                into.into_iter().for_each(|into| *into = value);
            },
            OF_GUEST,
        )?;
    }
    for second in &mut seconds {
        second.guests.sort_by_key(|(number, _)| *number);
        second.guests.dedup_by_key(|(number, _)| *number);
    }
    let declared = serde_json::from_slice(from).map_err(|_| CodecError::Damaged)?;
    Ok(Block {
        facts,
        first,
        seconds,
        declared,
    })
}

fn take_columns(
    from: &mut &[u8],
    rows: usize,
    mut set: impl FnMut(usize, usize, u64),
    columns: usize,
) -> Result<(), CodecError> {
    let (mask, differences, packed) = (take(from)?, take(from)?, take(from)?);
    for place in (0..64).filter(|place| mask >> place & 1 == 1) {
        // A column of a later version is read and dropped.
        let is_known = place < columns;
        if packed >> place & 1 == 1 {
            unpack(from, rows, |at, value| {
                if is_known {
                    set(at, place, value);
                }
            })?;
            continue;
        }
        let mut last = 0_u64;
        for at in 0..rows {
            let number = take(from)?;
            last = match differences >> place & 1 {
                0 => number,
                _ => last.wrapping_add(unzigzag(number).cast_unsigned()),
            };
            if is_known {
                set(at, place, last);
            }
        }
    }
    Ok(())
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
        let mut plain = Vec::new();
        for value in [0, 0, MOST_SECONDS as u64] {
            put(&mut plain, value);
        }
        plain.extend([0; MOST_SECONDS]);
        plain.extend([0, 0, 0]);
        let runs = MOST_GUEST_SECONDS as u64 / MOST_SECONDS as u64 + 1;
        put(&mut plain, runs);
        for number in 0..runs {
            for value in [number, 0, MOST_SECONDS as u64, 0, 0, 0] {
                put(&mut plain, value);
            }
        }
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
