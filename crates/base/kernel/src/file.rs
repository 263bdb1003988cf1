// SPDX-License-Identifier: Apache-2.0
//! A kernel file that is opened once and read many times into one buffer. Above a limit of open files, a file is
//! opened for each reading.

use crate::KernelError;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest content that is read, in bytes; kernel text files are smaller.
const MOST_BYTES: usize = 16 << 20;

/// The limit and the number of kernel files that are kept open.
#[derive(Debug)]
struct Places {
    most: AtomicUsize,
    taken: AtomicUsize,
}

impl Places {
    const fn without_limit() -> Self {
        Self {
            most: AtomicUsize::new(usize::MAX),
            taken: AtomicUsize::new(0),
        }
    }

    /// Keeps a file open if the limit allows it.
    fn keep(&'static self, file: File) -> Option<OpenFile> {
        let most = self.most.load(Ordering::Relaxed);
        let take = |taken| (taken < most).then_some(taken + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let taken = self.taken.fetch_update(set, fetch, take);
        taken.is_ok().then(|| OpenFile { file, places: self })
    }
}

/// The places of this process.
static PLACES: Places = Places::without_limit();

/// Reads the content of a file once.
///
/// # Errors
/// When it cannot be read.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>, KernelError> {
    let path = path.as_ref();
    std::fs::read(path).map_err(KernelError::read(path))
}

/// The number of kernel files that are kept open.
pub fn kept_open() -> usize {
    PLACES.taken.load(Ordering::Relaxed)
}

/// Limits the number of kernel files that are kept open. Files above the limit that are open already stay open.
pub fn keep_open(most: usize) {
    PLACES.most.store(most, Ordering::Relaxed);
}

/// An open file. Dropping it frees its place.
#[derive(Debug)]
struct OpenFile {
    file: File,
    places: &'static Places,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.places.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A file of `/proc`, `/sys` or a control group that stays open where the limit allows it.
///
/// An open file of `/proc/PID` belongs to the process, not to its number: after the process has ended, reading
/// fails (`ESRCH`), even if another process has the same number. A file that is opened for each reading lacks this
/// protection; callers that list processes and groups identify them in each pass.
#[derive(Debug)]
pub struct KernelFile {
    file: Option<OpenFile>,
    path: PathBuf,
    buffer: Vec<u8>,
    one_piece: bool,
}

impl KernelFile {
    /// Opens a file that the kernel writes record by record, such as a table of devices.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, KernelError> {
        Self::with(path, false)
    }

    /// Opens a file that the kernel writes in one piece (`single_open` in its sources; all of sysfs and of control
    /// groups). A read that does not fill the buffer has read everything, which saves the second system call that
    /// finds the end.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open_one_piece(path: impl Into<PathBuf>) -> Result<Self, KernelError> {
        Self::with(path, true)
    }

    fn with(path: impl Into<PathBuf>, one_piece: bool) -> Result<Self, KernelError> {
        Self::kept(path.into(), one_piece, &PLACES)
    }

    fn kept(path: PathBuf, one_piece: bool, places: &'static Places) -> Result<Self, KernelError> {
        match File::open(&path) {
            Ok(file) => Ok(Self {
                file: places.keep(file),
                path,
                buffer: vec![0; 1024],
                one_piece,
            }),
            Err(cause) => Err(KernelError::Read { path, cause }),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file's current content. Allocates only when the content exceeds the buffer.
    ///
    /// # Errors
    /// When it cannot be read, or is larger than 16 MiB.
    pub fn read(&mut self) -> Result<&[u8], KernelError> {
        match self.fill() {
            Ok(length) => Ok(self.buffer.get(..length).unwrap_or_default()),
            Err(cause) => Err(KernelError::Read {
                path: self.path.clone(),
                cause,
            }),
        }
    }

    /// An error about this file's content.
    pub fn unexpected(&self, detail: impl Into<String>) -> KernelError {
        KernelError::format(&self.path, detail)
    }

    fn fill(&mut self) -> io::Result<usize> {
        let opened;
        let file = match &self.file {
            Some(kept) => &kept.file,
            None => {
                opened = File::open(&self.path)?;
                &opened
            }
        };
        let mut length = 0;
        loop {
            if length == self.buffer.len() {
                if length >= MOST_BYTES {
                    return Err(io::Error::other(format!(
                        "it is larger than {MOST_BYTES} bytes"
                    )));
                }
                self.buffer.resize(length * 2, 0);
            }
            let room = self.buffer.get_mut(length..).unwrap_or_default();
            match file.read_at(room, length as u64) {
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
    fn a_file_without_a_place_is_opened_for_each_reading_and_a_place_is_free_again_afterwards() {
        static TWO: Places = Places::without_limit();
        TWO.most.store(2, Ordering::Relaxed);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "1").unwrap();
        let open = || KernelFile::kept(path.clone(), true, &TWO).unwrap();
        let mut files = [open(), open(), open()];
        let is_kept: Vec<bool> = files.iter().map(|file| file.file.is_some()).collect();
        assert_eq!(is_kept, [true, true, false]);
        for file in &mut files {
            assert_eq!(file.read().unwrap(), b"1");
        }
        drop(files);
        assert!(open().file.is_some());
        assert_eq!(TWO.taken.load(Ordering::Relaxed), 0);
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
