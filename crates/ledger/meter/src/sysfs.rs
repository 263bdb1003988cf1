// SPDX-License-Identifier: Apache-2.0
//! Reading of the small files of /sys that meters use.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use vtax_observe::ObserveError;
use vtax_observe::roots::names;

/// A number file kept open, so that a reading is one system call and no allocation.
#[derive(Debug)]
pub(super) struct NumberFile {
    path: PathBuf,
    file: File,
}

impl NumberFile {
    /// Opens the file and reads it once, to verify that it can be read.
    pub fn open(path: PathBuf) -> Result<Self, ObserveError> {
        let number = Self::open_signed(path)?;
        number.read()?;
        Ok(number)
    }

    /// Like [`NumberFile::open`], for a file whose number may be negative.
    pub fn open_signed(path: PathBuf) -> Result<Self, ObserveError> {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(cause) => return Err(ObserveError::read(path, cause)),
        };
        let number = Self { path, file };
        number.parse::<i128>()?;
        Ok(number)
    }

    /// The current number.
    pub fn read(&self) -> Result<u64, ObserveError> {
        self.parse()
    }

    /// The current number, which may be negative: a reverse current.
    pub fn read_signed(&self) -> Result<i64, ObserveError> {
        self.parse()
    }

    fn parse<N: std::str::FromStr>(&self) -> Result<N, ObserveError> {
        let mut buffer = [0u8; 32];
        let failed = |cause| ObserveError::read(&self.path, cause);
        let length = self.file.read_at(&mut buffer, 0).map_err(failed)?;
        let text = buffer
            .get(..length)
            .and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.and_then(|text| text.trim().parse().ok())
            .ok_or_else(|| ObserveError::Format {
                path: self.path.clone(),
                detail: format!(
                    "expected a number, found `{}`",
                    text.unwrap_or("binary data").trim()
                ),
            })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The trimmed text of a file.
pub(super) fn text(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

/// The entries of a directory by name, sorted; empty when it does not exist.
pub(super) fn entries(directory: &Path) -> Vec<(String, PathBuf)> {
    let with_path = |name: String| (name.clone(), directory.join(name));
    names(directory).into_iter().map(with_path).collect()
}

/// Returns `text` in lower case, with all characters but letters, digits, `-` and `_` replaced, for the name of a
/// metric.
pub(super) fn slug(text: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '_' {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let slug: String = text.trim().chars().map(plain).collect();
    slug.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_file_that_holds_no_number_says_what_it_holds() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "none\n").unwrap();
        let error = NumberFile::open(file.path().to_owned())
            .unwrap_err()
            .to_string();
        assert!(error.contains("`none`"), "{error}");
    }

    #[test]
    fn names_become_metrics() {
        assert_eq!(slug("GPU PPT "), "gpu-ppt");
        assert_eq!(slug("Esocket0"), "esocket0");
    }
}
