// SPDX-License-Identifier: Apache-2.0
//! The output of a command, copied from its pipe to a file of limited size: its begin, and its end.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::ioctl_fionread;
use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use vtax_host::HostError;
use vtax_host::command::{HEAD_OUTPUT, MOST_OUTPUT, left_out};

/// Bytes of one read: the capacity of a pipe.
const CHUNK: usize = 64 << 10;
/// The time limit for copying what is in the pipe after the command ended. Processes that it left may go on printing.
const SETTLE: Duration = Duration::from_secs(2);

/// The bytes of the file: the begin, and the last [`MOST_OUTPUT`] in a ring.
const WHOLE: u64 = (HEAD_OUTPUT + MOST_OUTPUT) as u64;

/// The copying of one output. It ends when no process holds the pipe.
#[derive(Debug)]
pub struct Spool {
    /// Locked from a read to the end of its write.
    copied: Arc<Mutex<Copied>>,
    file: File,
}

/// What has been copied.
#[derive(Debug)]
struct Copied {
    pipe: PipeReader,
    /// The bytes that the command has printed.
    total: u64,
    /// Whether the file could be written.
    failed: bool,
}

impl Spool {
    /// Starts to copy what is written into the returned end. What the file does not keep is discarded, so that the command
    /// never blocks.
    ///
    /// # Errors
    /// When there is no pipe.
    pub fn start(file: File) -> Result<(Self, Stdio), HostError> {
        let create = HostError::process("create", "a pipe for the output of a command".to_owned());
        let (pipe, writer, waited, into) = std::io::pipe()
            .and_then(|(pipe, writer)| Ok((pipe.try_clone()?, writer, pipe, file.try_clone()?)))
            .map_err(create)?;
        let copied = Arc::new(Mutex::new(Copied {
            pipe,
            total: 0,
            failed: false,
        }));
        let shared = Arc::clone(&copied);
        thread::spawn(move || {
            let mut chunk = vec![0; CHUNK];
            loop {
                // The lock is not held while nothing can be read.
                let mut ready = [PollFd::new(&waited, PollFlags::IN)];
                match poll(&mut ready, None) {
                    Ok(_) => {}
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(_) => return,
                }
                let mut copied = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let Ok(length @ 1..) = copied.pipe.read(&mut chunk) else {
                    return;
                };
                let written = store(&into, copied.total, chunk.get(..length).unwrap_or_default());
                copied.failed |= written.is_err();
                copied.total += length as u64;
            }
        });
        let spool = Self { copied, file };
        Ok((spool, writer.into()))
    }

    /// What the command has printed, at most its first 64 KiB and its last [`MOST_OUTPUT`] bytes; a line between them gives
    /// what was left out.
    ///
    /// # Errors
    /// When the file cannot be read, or could not be written.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        if copied.failed {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let part = |from: u64, to: u64| {
            let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(0)];
            self.file.read_exact_at(&mut bytes, from).map(|()| bytes)
        };
        if copied.total <= WHOLE {
            return part(0, copied.total);
        }
        let oldest = place(copied.total);
        let parts = [
            part(0, HEAD_OUTPUT as u64)?,
            left_out(copied.total - WHOLE).into_bytes(),
            part(oldest, WHOLE)?,
            part(HEAD_OUTPUT as u64, oldest)?,
        ];
        Ok(parts.concat())
    }

    /// Waits until the file has everything that the command had printed when it ended.
    pub fn settle(&self) {
        let until = Instant::now() + SETTLE;
        while Instant::now() < until {
            let copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
            if ioctl_fionread(&copied.pipe).unwrap_or(0) == 0 {
                return;
            }
            drop(copied);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The place in the file of the byte number `at`.
fn place(at: u64) -> u64 {
    match at.checked_sub(HEAD_OUTPUT as u64) {
        None => at,
        Some(beyond) => HEAD_OUTPUT as u64 + beyond % MOST_OUTPUT as u64,
    }
}

/// Writes bytes whose first one is number `at`.
fn store(file: &File, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let from = place(at);
        let room = if at < HEAD_OUTPUT as u64 {
            HEAD_OUTPUT as u64 - at
        } else {
            WHOLE - from
        };
        let length = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let (now, rest) = bytes.split_at(length);
        file.write_all_at(now, from)?;
        at += length as u64;
        bytes = rest;
    }
    Ok(())
}
