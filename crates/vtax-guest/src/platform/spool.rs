// SPDX-License-Identifier: Apache-2.0
//! The output of a command, copied from its pipe to a file of limited size.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::ioctl_fionread;
use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use vtax_host::HostError;
use vtax_host::command::MOST_OUTPUT;

/// Bytes of one read: the capacity of a pipe.
const CHUNK: usize = 64 << 10;
/// The time limit for copying what is in the pipe after the command ended. Processes that it left may go on printing.
const SETTLE: Duration = Duration::from_secs(2);

/// The copying of one output. It ends when no process holds the pipe.
#[derive(Debug)]
pub struct Spool {
    /// Locked from a read to the end of its write.
    pipe: Arc<Mutex<PipeReader>>,
}

impl Spool {
    /// Starts to copy what is written into the returned end. The file gets one byte more than [`MOST_OUTPUT`] at most, by
    /// which a reader sees that there was more; the rest is discarded, so the command never blocks.
    ///
    /// # Errors
    /// When there is no pipe.
    pub fn start(mut file: File) -> Result<(Self, Stdio), HostError> {
        let create = HostError::process("create", "a pipe for the output of a command".to_owned());
        let (pipe, writer, waited) = std::io::pipe()
            .and_then(|(pipe, writer)| Ok((pipe.try_clone()?, writer, pipe)))
            .map_err(create)?;
        let pipe = Arc::new(Mutex::new(pipe));
        let shared = Arc::clone(&pipe);
        thread::spawn(move || {
            let mut left = MOST_OUTPUT + 1;
            let mut chunk = vec![0; CHUNK];
            loop {
                // The lock is not held while nothing can be read.
                let mut ready = [PollFd::new(&waited, PollFlags::IN)];
                match poll(&mut ready, None) {
                    Ok(_) => {}
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(_) => return,
                }
                let mut pipe = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let Ok(length @ 1..) = pipe.read(&mut chunk) else {
                    return;
                };
                let wanted = length.min(left);
                let written = file.write_all(chunk.get(..wanted).unwrap_or_default());
                left = if written.is_ok() { left - wanted } else { 0 };
            }
        });
        Ok((Self { pipe }, writer.into()))
    }

    /// Waits until the file has everything that the command had printed when it ended.
    pub fn settle(&self) {
        let until = Instant::now() + SETTLE;
        while Instant::now() < until {
            let pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
            if ioctl_fionread(&*pipe).unwrap_or(0) == 0 {
                return;
            }
            drop(pipe);
            thread::sleep(Duration::from_millis(1));
        }
    }
}
