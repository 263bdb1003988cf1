//! A kernel file that is opened once and read again and again into one buffer.

use crate::ObserveError;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Larger than any kernel text file; a file that exceeds it is not what it claims to be.
const LIMIT: usize = 16 << 20;

/// A file of `/proc`, `/sys` or a control group that stays open.
///
/// An open file of `/proc/PID` belongs to the process, not to its number: after the process is
/// gone it fails (`ESRCH`), also when another process has got the same number.
#[derive(Debug)]
pub(crate) struct KernelFile {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    one_piece: bool,
}

impl KernelFile {
    /// Opens a file that the kernel makes record by record, as a table of devices.
    pub(crate) fn open(path: impl Into<PathBuf>) -> Result<Self, ObserveError> {
        Self::with(path, false)
    }

    /// Opens a file that the kernel makes in one piece (`single_open` in its sources; all of
    /// sysfs and of control groups): a read that leaves room has read everything, which saves
    /// the second system call that finds the end.
    pub(crate) fn open_one_piece(path: impl Into<PathBuf>) -> Result<Self, ObserveError> {
        Self::with(path, true)
    }

    fn with(path: impl Into<PathBuf>, one_piece: bool) -> Result<Self, ObserveError> {
        let path = path.into();
        match File::open(&path) {
            Ok(file) => Ok(Self {
                file,
                path,
                buffer: vec![0; 1024],
                one_piece,
            }),
            Err(cause) => Err(ObserveError::Read { path, cause }),
        }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file's present content. Allocates only when it has outgrown every earlier one.
    pub(crate) fn read(&mut self) -> Result<&[u8], ObserveError> {
        match self.fill() {
            Ok(length) => Ok(self.buffer.get(..length).unwrap_or_default()),
            Err(cause) => Err(ObserveError::Read {
                path: self.path.clone(),
                cause,
            }),
        }
    }

    /// A complaint about this file's content.
    pub(crate) fn unexpected(&self, detail: impl Into<String>) -> ObserveError {
        ObserveError::Format {
            path: self.path.clone(),
            detail: detail.into(),
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut length = 0;
        loop {
            if length == self.buffer.len() {
                if length >= LIMIT {
                    return Err(io::Error::other(format!("it is larger than {LIMIT} bytes")));
                }
                self.buffer.resize(length * 2, 0);
            }
            let room = self.buffer.get_mut(length..).unwrap_or_default();
            match self.file.read_at(room, length as u64) {
                Ok(0) => return Ok(length),
                Ok(read) => {
                    length += read;
                    if self.one_piece && length < self.buffer.len() {
                        return Ok(length);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grows_and_shrinks_is_read_whole_each_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for open in [KernelFile::open, KernelFile::open_one_piece] {
            std::fs::write(&path, "short").unwrap();
            let mut file = open(path.clone()).unwrap();
            assert_eq!(file.read().unwrap(), b"short");
            std::fs::write(&path, vec![b'x'; 5000]).unwrap();
            assert_eq!(file.read().unwrap().len(), 5000);
            std::fs::write(&path, "").unwrap();
            assert_eq!(file.read().unwrap(), b"");
        }
    }

    #[test]
    fn a_process_that_vanishes_fails_instead_of_reading_its_successor() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let mut file = KernelFile::open(format!("/proc/{}/stat", child.id())).unwrap();
        assert!(file.read().is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        let error = file.read().unwrap_err();
        assert!(error.to_string().contains("/stat"), "{error}");
    }
}
