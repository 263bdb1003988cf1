// SPDX-License-Identifier: Apache-2.0
//! The last lines of another program's output, made safe to display.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use vtax_host::untrusted::shown;

/// The number of bytes at the end of a file that are read.
const MAX_BYTES: u64 = 4096;

/// The last `most` lines of a file that are not empty, without control characters; none of a file that cannot be read.
pub fn last_lines(file: io::Result<File>, most: usize) -> Vec<String> {
    let read = |mut file: File| -> io::Result<Vec<u8>> {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = file.and_then(read).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let from = lines.len().saturating_sub(most);
    lines.iter().skip(from).map(|line| shown(line)).collect()
}
