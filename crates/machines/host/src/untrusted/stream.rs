// SPDX-License-Identifier: Apache-2.0
//! Streams from other machines and guests, read with bounded memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

/// The lines of a stream without their newlines, as text. A line of more than `most` bytes is an error, which ends
/// the iteration.
#[derive(Debug)]
pub struct Lines<R> {
    from: R,
    most: usize,
    has_ended: bool,
}

impl<R: BufRead> Lines<R> {
    /// The lines of a stream, of at most `most` bytes each.
    pub fn new(from: R, most: usize) -> Self {
        Self {
            from,
            most,
            has_ended: false,
        }
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = io::Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let mut line = Vec::new();
        // One byte more: the line's newline, or the evidence that the line is too long.
        let most = u64::try_from(self.most).unwrap_or(u64::MAX);
        let read = (&mut self.from)
            .take(most.saturating_add(1))
            .read_until(b'\n', &mut line);
        match read {
            Ok(0) => None,
            Ok(_) => {
                if line.last() == Some(&b'\n') {
                    line.pop();
                } else if line.len() > self.most {
                    self.has_ended = true;
                    return Some(Err(too_long("a line", self.most)));
                }
                Some(Ok(String::from_utf8_lossy(&line).into_owned()))
            }
            Err(cause) => {
                self.has_ended = true;
                Some(Err(cause))
            }
        }
    }
}

/// Reads a stream of at most `most` bytes to its end.
///
/// # Errors
/// When the stream cannot be read or is longer.
pub fn read(from: impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX);
    from.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        return Err(too_long("an answer", most));
    }
    Ok(bytes)
}

/// Reads a stream of any length to its end and returns its last `most` bytes. Bytes before a failed read count.
pub fn drain(mut from: impl Read, most: usize) -> Vec<u8> {
    let mut last = VecDeque::new();
    let mut buffer = [0; 16 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                last.extend(buffer.get(..count).unwrap_or_default());
                let surplus = last.len().saturating_sub(most);
                drop(last.drain(..surplus));
            }
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    last.into()
}

/// The last `most` bytes of a file written by another machine or a guest; none where it cannot be read.
pub fn end_of(path: &Path, most: u64) -> Vec<u8> {
    let end = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let from = file.metadata()?.len().saturating_sub(most);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    end().unwrap_or_default()
}

/// Runs a command whose output comes from another machine: as [`Command::output`], with at most `most` bytes of
/// standard output, and the last `most` bytes of standard error.
///
/// # Errors
/// When it cannot be run, or when it prints more; it is killed then.
pub fn output(command: &mut Command, most: usize) -> io::Result<Output> {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    finish(child, most)
}

fn finish(mut child: Child, most: usize) -> io::Result<Output> {
    let errors = child.stderr.take();
    let errors = thread::spawn(move || errors.map(|pipe| drain(pipe, most)));
    let stdout = match child.stdout.take().map(|pipe| read(pipe, most)) {
        Some(Err(cause)) => {
            // The command may have ended in between.
            let _ = child.kill();
            let _ = child.wait();
            return Err(cause);
        }
        Some(Ok(bytes)) => bytes,
        None => Vec::new(),
    };
    let status = child.wait()?;
    Ok(Output {
        status,
        stdout,
        stderr: errors.join().ok().flatten().unwrap_or_default(),
    })
}

fn too_long(what: &str, most: usize) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("{what} has more than {most} bytes"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufReader, repeat};

    fn lines(text: &[u8], most: usize) -> Vec<Result<String, ErrorKind>> {
        let lines = Lines::new(BufReader::with_capacity(3, text), most);
        lines
            .map(|line| line.map_err(|cause| cause.kind()))
            .collect()
    }

    #[test]
    fn lines_come_one_by_one_and_the_last_needs_no_end() {
        let all = lines(b"one\n\ntwo\xff\nlast", 10);
        let wanted = ["one", "", "two\u{fffd}", "last"];
        assert_eq!(all, wanted.map(|line| Ok(line.to_owned())));
    }

    #[test]
    fn a_line_of_the_most_bytes_is_one_and_a_longer_one_ends_the_lines() {
        assert_eq!(
            lines(b"1234\n5678", 4),
            [Ok("1234".into()), Ok("5678".into())]
        );
        let cut = [Ok("1".to_owned()), Err(ErrorKind::InvalidData)];
        assert_eq!(lines(b"1\n12345\n2\n", 4), cut);
        assert_eq!(lines(b"1\n12345", 4), cut);
    }

    #[test]
    fn a_line_without_an_end_is_given_up_at_its_limit() {
        let mut endless = Lines::new(BufReader::new(repeat(b'x')), 1000);
        assert!(endless.next().unwrap().is_err());
        assert!(endless.next().is_none());
    }

    #[test]
    fn an_answer_is_read_up_to_its_limit_and_no_longer() {
        assert_eq!(read(&b"1234"[..], 4).unwrap(), b"1234");
        assert!(
            read(repeat(b'x'), 4)
                .unwrap_err()
                .to_string()
                .contains("more than 4 bytes")
        );
    }

    #[test]
    fn of_a_drained_stream_its_end_is_kept() {
        let text: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(drain(text.as_slice(), 8), text[text.len() - 8..]);
        assert_eq!(drain(&b"ab"[..], 8), b"ab");
    }

    #[test]
    fn of_a_file_its_end_is_read_however_long_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 40).unwrap();
        assert_eq!(end_of(file.path(), 5), [0; 5]);
        std::fs::write(file.path(), "abc").unwrap();
        assert_eq!(end_of(file.path(), 5), b"abc");
        assert_eq!(end_of(Path::new("/no/such/file"), 5), b"");
    }

    #[test]
    fn a_command_that_prints_without_end_is_killed_and_one_that_complains_long_is_heard() {
        let mut endless = Command::new("yes");
        let refused = output(&mut endless, 1000).unwrap_err().to_string();
        assert!(refused.contains("more than 1000 bytes"), "{refused}");
        let mut long = Command::new("sh");
        long.args(["-c", "echo out; seq 1 100000 >&2; exit 3"]);
        let heard = output(&mut long, 1000).unwrap();
        assert_eq!(
            (heard.status.code(), heard.stdout.as_slice()),
            (Some(3), &b"out\n"[..])
        );
        assert!(heard.stderr.len() == 1000 && heard.stderr.ends_with(b"100000\n"));
    }
}
