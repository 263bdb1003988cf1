// SPDX-License-Identifier: Apache-2.0
//! The bytes of a layer: decompressed by a program, hashed, and bounded.

use super::invalid;
use crate::image::{MOST_RATIO, hexadecimal};
use sha2::{Digest, Sha256};
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use vtax_host::HostError;

/// The first bytes of compressed files, with the program and Debian package that read them.
const COMPRESSED: [(&[u8], &str, &str); 2] = [
    (&[0x1f, 0x8b], "gzip", "gzip"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstd"),
];

/// Whether a file with these first bytes is compressed.
pub(super) fn is_compressed(first: &[u8]) -> bool {
    COMPRESSED
        .iter()
        .any(|(magic, ..)| first.starts_with(magic))
}

/// A reader that hashes the bytes it returns, and fails after `left` of them.
#[derive(Debug)]
pub(super) struct Hashed<R> {
    from: R,
    hasher: Sha256,
    left: u64,
    /// Whether the source has more bytes than it may have.
    pub is_over: bool,
}

impl<R: Read> Hashed<R> {
    pub fn new(from: R, most: u64) -> Self {
        Self {
            from,
            hasher: Sha256::new(),
            left: most,
            is_over: false,
        }
    }

    /// The source.
    pub fn source(&self) -> &R {
        &self.from
    }

    /// The source, the bytes that may still come, and the SHA-256 of those that came.
    pub fn finish(self) -> (R, u64, String) {
        (self.from, self.left, hexadecimal(self.hasher))
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.hasher.update(into.get(..read).unwrap_or_default());
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => {
                self.is_over = true;
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        Ok(read)
    }
}

/// The uncompressed bytes of a layer's file.
pub(super) struct Plain {
    from: Box<dyn Read + Send>,
    /// The bytes that were read.
    read: u64,
    /// The uncompressed bytes beyond which their ratio to those of the file is limited.
    free: u64,
    /// The bytes of the file that the program has been given.
    fed: Arc<AtomicU64>,
    /// Whether it is more than [`MOST_RATIO`] times its file.
    pub is_bomb: bool,
    /// The program that decompresses, and the thread that feeds it the file.
    program: Option<(Child, JoinHandle<String>)>,
}

impl Plain {
    /// Starts to read a layer's file. Beyond `free` bytes, it may be [`MOST_RATIO`] times its file.
    ///
    /// # Errors
    /// When its first bytes cannot be read, or the program that decompresses it cannot be started.
    pub fn from_file(
        file: Box<dyn Read + Send>,
        name: &Path,
        free: u64,
    ) -> Result<Self, HostError> {
        let mut first = Vec::new();
        let mut file = file;
        (&mut file)
            .take(4)
            .read_to_end(&mut first)
            .map_err(HostError::file("read", name))?;
        let compressed = COMPRESSED
            .iter()
            .find(|(magic, ..)| first.starts_with(magic));
        let fed = Arc::new(AtomicU64::new(0));
        let whole = Fed {
            from: io::Cursor::new(first).chain(file),
            fed: Arc::clone(&fed),
        };
        let Some((_, program, package)) = compressed else {
            return Ok(Self {
                from: Box::new(whole),
                read: 0,
                free,
                fed,
                is_bomb: false,
                program: None,
            });
        };
        let mut command = Command::new(program);
        command
            .args(["--decompress", "--stdout", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().map_err(|cause| HostError::Missing {
            what: format!("the program {program} ({cause})"),
            remedy: format!("apt-get install {package}"),
        })?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let feeder = std::thread::spawn(move || {
            let mut hashed = Hashed::new(whole, u64::MAX);
            if let Some(mut input) = input {
                // The program may end before the file does; the rest is hashed all the same.
                let _ = io::copy(&mut hashed, &mut input);
            }
            let _ = io::copy(&mut hashed, &mut io::sink());
            hashed.finish().2
        });
        let output = output.ok_or_else(|| invalid(name, "its decompression has no output"))?;
        Ok(Self {
            from: Box::new(BufReader::with_capacity(1 << 16, output)),
            read: 0,
            free,
            fed,
            is_bomb: false,
            program: Some((child, feeder)),
        })
    }

    /// Waits for the program. Returns the digest of a compressed file; `None` for an uncompressed file, whose digest
    /// is the reader's.
    ///
    /// # Errors
    /// When the program fails: the file is damaged.
    pub fn finish(mut self, name: &Path) -> Result<Option<String>, HostError> {
        let Some((mut child, feeder)) = self.program.take() else {
            return Ok(None);
        };
        // A program that writes more than was read ends by this.
        self.from = Box::new(io::empty());
        let status = child
            .wait()
            .map_err(HostError::process("wait for", "the decompression"))?;
        let digest = feeder.join().unwrap_or_default();
        if status.success() {
            Ok(Some(digest))
        } else {
            Err(invalid(
                name,
                &format!(
                    "it cannot be decompressed ({status}), so it is damaged: save the image again"
                ),
            ))
        }
    }
}

impl Read for Plain {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.read += read as u64;
        let most = self.fed.load(Ordering::Relaxed).saturating_mul(MOST_RATIO);
        if self.read > self.free && self.read > most {
            self.is_bomb = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(read)
    }
}

/// A reader that counts what it returns.
struct Fed<R> {
    from: R,
    fed: Arc<AtomicU64>,
}

impl<R: Read> Read for Fed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.fed.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if let Some((mut child, feeder)) = self.program.take() {
            let _ = child.kill();
            let _ = child.wait();
            let _ = feeder.join();
        }
    }
}
