// SPDX-License-Identifier: Apache-2.0
//! Checks the stated sizes of a Parquet file's pages before any decoding: the decoder allocates the memory that a page
//! states, and expands encodings in which a few bytes represent many.

use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Most rows of a row group; vtax writes 32,768.
const MOST_ROWS: i64 = 1 << 20;
/// Most bytes of a decoded page; vtax writes a megabyte.
const MOST_BYTES: i64 = 16 << 20;
/// Most bytes of the footer: a kilobyte for each row group.
const LONGEST_FOOTER: u64 = 16 << 20;
/// Most bytes of a page header, which has some dozen.
const LONGEST_HEAD: usize = 4 << 10;
/// Most pages of a file; vtax writes some twenty for a row group.
const MOST_PAGES: usize = 1 << 20;
/// PLAIN, `PLAIN_DICTIONARY` and `RLE_DICTIONARY`: each value is in the page, or in a dictionary.
const ENCODINGS: [i64; 3] = [0, 2, 8];

/// The refusal of a file, or of a part of it, that vtax does not write.
pub(super) fn refused(why: impl Into<String>) -> ParquetError {
    ParquetError::General(why.into())
}

fn unread(cause: io::Error) -> ParquetError {
    refused(cause.to_string())
}

/// Refuses a file whose footer is longer than any that vtax writes.
///
/// # Errors
/// The reason.
pub(super) fn check_footer(file: &File) -> Result<(), ParquetError> {
    let length = file.metadata().map_err(unread)?.len();
    let mut end = [0; 8];
    let at = length
        .checked_sub(8)
        .ok_or_else(|| refused("it is too short for a Parquet file"))?;
    file.read_exact_at(&mut end, at).map_err(unread)?;
    let [a, b, c, d, ..] = end;
    let footer = u64::from(u32::from_le_bytes([a, b, c, d]));
    if footer > LONGEST_FOOTER {
        return Err(refused(format!(
            "its footer of {footer} bytes is longer than any that vtax writes"
        )));
    }
    Ok(())
}

/// Refuses row groups and pages that are larger than any that vtax writes, or encoded otherwise.
///
/// # Errors
/// The reason.
pub(super) fn check(file: &File, metadata: &ParquetMetaData) -> Result<(), ParquetError> {
    let mut pages = 0;
    for group in metadata.row_groups() {
        let rows = group.num_rows();
        if !(0..=MOST_ROWS).contains(&rows) {
            return Err(refused(format!("it has a row group of {rows} rows")));
        }
        for column in group.columns() {
            let first = column
                .dictionary_page_offset()
                .unwrap_or_else(|| column.data_page_offset())
                .min(column.data_page_offset());
            let length = u64::try_from(column.compressed_size()).unwrap_or(0);
            let mut at = u64::try_from(first).map_err(|_| refused("a column begins nowhere"))?;
            let end = at.saturating_add(length);
            while at < end {
                at = at.saturating_add(page(file, at)?);
                pages += 1;
                if pages > MOST_PAGES {
                    return Err(refused(format!("it has more than {MOST_PAGES} pages")));
                }
            }
        }
    }
    Ok(())
}

/// Checks the page at offset `at`. Returns its length in the file.
fn page(file: &File, at: u64) -> Result<u64, ParquetError> {
    let mut bytes = vec![0; LONGEST_HEAD];
    let read = file.read_at(&mut bytes, at).map_err(unread)?;
    bytes.truncate(read);
    let mut head = Head::default();
    let mut left = bytes.as_slice();
    structure(&mut left, &mut Vec::new(), &mut |path, value| {
        match path {
            [2] => head.decoded = value,
            [3] => head.stored = value,
            // Data pages, dictionary pages, and data pages of version 2.
            [5 | 7, 2] | [8, 4] => head.encoding = value,
            _ => {}
        }
    })
    .ok_or_else(|| refused("the head of a page is damaged"))?;
    if !(0..=MOST_BYTES).contains(&head.decoded) || !(0..=MOST_BYTES).contains(&head.stored) {
        let bytes = head.decoded.max(head.stored);
        return Err(refused(format!(
            "it has a page of {bytes} bytes, more than vtax writes"
        )));
    }
    if !ENCODINGS.contains(&head.encoding) {
        return Err(refused(
            "a page is encoded in a way that vtax does not write",
        ));
    }
    let length = bytes.len() - left.len();
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    u64::try_from(length.saturating_add(head.stored))
        .map_err(|_| refused("the head of a page is damaged"))
}

/// The checked fields of a page header.
#[derive(Default)]
struct Head {
    decoded: i64,
    stored: i64,
    encoding: i64,
}

/// Deepest nesting of a page header.
const DEEPEST_HEADER: usize = 4;

/// Parses a structure in Thrift's compact protocol. `seen` gets each number with the path of field ids to it. Returns
/// `None` for invalid or truncated input.
fn structure(
    bytes: &mut &[u8],
    path: &mut Vec<i64>,
    seen: &mut dyn FnMut(&[i64], i64),
) -> Option<()> {
    let mut id = 0;
    loop {
        let [head, rest @ ..] = *bytes else {
            return None;
        };
        *bytes = rest;
        if *head == 0 {
            return Some(());
        }
        id = match i64::from(head >> 4) {
            0 => number(bytes)?,
            step => id + step,
        };
        path.push(id);
        value(head & 15, bytes, path, seen)?;
        path.pop();
    }
}

fn value(
    kind: u8,
    bytes: &mut &[u8],
    path: &mut Vec<i64>,
    seen: &mut dyn FnMut(&[i64], i64),
) -> Option<()> {
    match kind {
        // A boolean's value is in its type.
        1 | 2 => {}
        3 => skip(bytes, 1)?,
        4..=6 => {
            let number = number(bytes)?;
            seen(path, number);
        }
        7 => skip(bytes, 8)?,
        8 => {
            let length = varint(bytes)?;
            skip(bytes, length)?;
        }
        12 if path.len() < DEEPEST_HEADER => structure(bytes, path, seen)?,
        // Page headers have no lists and no maps.
        _ => return None,
    }
    Some(())
}

fn skip(bytes: &mut &[u8], length: u64) -> Option<()> {
    *bytes = bytes.get(usize::try_from(length).ok()?..)?;
    Some(())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let [byte, rest @ ..] = *bytes else {
            return None;
        };
        *bytes = rest;
        value |= u64::from(byte & 127) << shift;
        if byte & 128 == 0 {
            return Some(value);
        }
    }
    None
}

/// Reads a zigzag-encoded variable-length integer.
fn number(bytes: &mut &[u8]) -> Option<i64> {
    let value = varint(bytes)?;
    let half = i64::try_from(value >> 1).ok()?;
    Some(if value & 1 == 0 { half } else { -half - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn looked_at(bytes: &[u8]) -> Result<u64, String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        page(&file, 0).map_err(|why| why.to_string())
    }

    /// Page type, decoded and stored length, and a data page's count and encoding.
    fn head(decoded: u8, encoding: u8) -> Vec<u8> {
        let data = [0x15, 2, 0x15, encoding << 1, 0];
        let mut bytes = vec![0x15, 0, 0x15, decoded << 1, 0x15, 10, 0x2c];
        bytes.extend(data);
        bytes.push(0);
        bytes
    }

    #[test]
    fn a_page_says_how_long_it_is_and_how_it_is_encoded() {
        assert_eq!(looked_at(&head(20, 0)), Ok(13 + 5));
        assert_eq!(looked_at(&head(20, 8)), Ok(13 + 5));
        let refused = looked_at(&head(20, 7)).unwrap_err();
        assert!(refused.contains("encoded"), "{refused}");
        // Two gigabytes.
        let vast = [0x15, 0, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0x15, 10, 0];
        let refused = looked_at(&vast).unwrap_err();
        assert!(refused.contains("a page of 2147483647 bytes"), "{refused}");
        for damaged in [
            &[][..],
            &[0x15],
            &[0x15, 0, 0x18, 0xff, 0xff, 0x7f, 0],
            &[0x19, 0],
        ] {
            assert!(looked_at(damaged).is_err(), "{damaged:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_there_is_looked_at_in_bounds(bytes: Vec<u8>) {
            let _ = looked_at(&bytes);
        }
    }
}
