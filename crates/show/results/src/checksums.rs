// SPDX-License-Identifier: Apache-2.0
//! `SHA256SUMS`: the digests of the files of a run and of each trial, as vtax wrote them.
//!
//! The format is that of coreutils: `sha256sum --check SHA256SUMS` finds a file that was changed later. It shows an edit by
//! hand or a damaged disk; who writes new sums as well is not found.

use super::ResultsError;
use sha2::{Digest, Sha256};
use std::io;
use std::path::Path;
use vtax_files::Dir;

/// The file of a directory's sums.
pub(super) const SUMS: &str = "SHA256SUMS";
/// Longest file of sums that is read, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// The sums of files with their content.
pub(super) fn of_contents(files: &[(&str, &[u8])]) -> String {
    let lines = files
        .iter()
        .map(|(name, bytes)| format!("{:x}  {name}\n", Sha256::digest(bytes)));
    lines.collect()
}

/// Writes the sums of all files of a directory.
pub(super) fn write(dir: &Dir) -> Result<(), ResultsError> {
    let mut lines = String::new();
    for entry in dir.list()?.iter().filter(|entry| entry.is_file) {
        if let Some(name) = entry.name.to_str().filter(|name| *name != SUMS) {
            lines += &format!("{}  {name}\n", digest(dir, name)?);
        }
    }
    Ok(dir.write(SUMS, lines.as_bytes())?)
}

/// Whether a file has the digest that the directory's sums give; `None` where they have none.
pub(super) fn is_intact(dir: &Dir, name: &str) -> Result<Option<bool>, ResultsError> {
    if !dir.contains(SUMS) {
        return Ok(None);
    }
    let text = dir.read_text(SUMS, MOST_BYTES)?;
    let mut sums = text.lines().filter_map(|line| line.split_once("  "));
    let Some((sum, _)) = sums.find(|(_, of)| *of == name) else {
        return Ok(None);
    };
    Ok(Some(digest(dir, name)? == sum))
}

fn digest(dir: &Dir, name: &str) -> Result<String, ResultsError> {
    let mut hasher = Sha256::new();
    io::copy(&mut dir.file(name)?, &mut hasher)
        .map_err(ResultsError::io("read", &dir.path().join(Path::new(name))))?;
    Ok(format!("{:x}", hasher.finalize()))
}
