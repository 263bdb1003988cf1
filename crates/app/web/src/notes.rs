// SPDX-License-Identifier: Apache-2.0
//! Notes on a run: `notes.jsonl` in its results directory, one JSON object a line. Notes are added, never changed.

use crate::error::RequestError;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use vtax_files::Dir;

/// The name of the file in a results directory.
pub const FILE: &str = "notes.jsonl";
/// The limit of one note: a paragraph or two.
const MAX_NOTE_BYTES: usize = 4000;
const MAX_FILE_BYTES: u64 = 4 << 20;

/// A note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When it was written, RFC 3339.
    pub at: String,
    /// Its trial; none for a note on the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<u32>,
    /// Its text.
    pub text: String,
}

/// The notes of a run, in the order of the file. Lines that are not notes are left out.
pub fn read(results: &Dir) -> Vec<Note> {
    let read = || -> io::Result<String> {
        let file = results.sole_file(FILE)?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let notes = text.lines().map(serde_json::from_str);
    notes.filter_map(Result::ok).collect()
}

/// Adds a note.
///
/// # Errors
/// When the text is empty or too long, or cannot be written.
pub fn add(results: &Dir, trial: Option<u32>, text: &str) -> Result<(), RequestError> {
    let text = text.trim();
    if text.is_empty() || text.len() > MAX_NOTE_BYTES {
        return Err(RequestError::NoteLength(MAX_NOTE_BYTES));
    }
    let note = Note {
        at: jiff::Timestamp::now().to_string(),
        trial,
        text: text.to_owned(),
    };
    let write = || -> io::Result<()> {
        let mut line = serde_json::to_vec(&note)?;
        line.push(b'\n');
        let mut file = results.append(FILE)?;
        // One write call, so that concurrent notes do not mix.
        file.write_all(&line)?;
        file.sync_all()
    };
    write().map_err(|cause| RequestError::Note {
        path: results.path().join(FILE),
        cause,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn read(results: &Path) -> Vec<Note> {
        super::read(&Dir::open(results).unwrap())
    }

    fn add(results: &Path, trial: Option<u32>, text: &str) -> Result<(), RequestError> {
        super::add(&Dir::open(results).unwrap(), trial, text)
    }

    #[test]
    fn notes_stay_in_their_order_and_what_is_none_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).is_empty());
        add(folder.path(), None, " the fan was loud\n").unwrap();
        fs::write(folder.path().join("x"), "").unwrap();
        let mut file = fs::OpenOptions::new()
            .append(true)
            .open(folder.path().join(FILE))
            .unwrap();
        writeln!(file, "not a note").unwrap();
        add(folder.path(), Some(3), "<b>\"hot\"\nindeed").unwrap();
        let notes = read(folder.path());
        let texts: Vec<&str> = notes.iter().map(|note| note.text.as_str()).collect();
        assert_eq!(texts, ["the fan was loud", "<b>\"hot\"\nindeed"]);
        assert_eq!((notes[0].trial, notes[1].trial), (None, Some(3)));
        assert!(add(folder.path(), None, " \n").is_err());
        assert!(add(folder.path(), None, &"x".repeat(MAX_NOTE_BYTES + 1)).is_err());
        assert_eq!(read(folder.path()).len(), 2);
    }

    #[test]
    fn a_link_is_neither_read_nor_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        fs::write(&secret, "{\"at\":\"\",\"text\":\"secret\"}\n").unwrap();
        let results = folder.path().join("results");
        fs::create_dir(&results).unwrap();
        std::os::unix::fs::symlink(&secret, results.join(FILE)).unwrap();
        assert!(read(&results).is_empty());
        assert!(
            add(&results, None, "text")
                .unwrap_err()
                .to_string()
                .contains("the owner of that directory")
        );
        assert_eq!(fs::read_to_string(&secret).unwrap().lines().count(), 1);
    }
}
