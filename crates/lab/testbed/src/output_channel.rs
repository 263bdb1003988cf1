// SPDX-License-Identifier: Apache-2.0
//! The output of an emulated host: lines on one port while it runs, and at its end an archive of the results on the
//! other. The last line has the archive's length and digest.

use crate::watchdog::STUCK;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use vtax_files::Dir;
use vtax_host::HostError;
use vtax_host::untrusted::archive::{self, Budget, Refusal};
use vtax_lab::place::Line;
use vtax_results::is_record;

/// A longer line is forwarded in pieces.
const LONGEST_LINE: usize = 1 << 20;

/// The last line of a host, which announces its results.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct EndRecord {
    /// Always `ended`.
    testbed: String,
    /// The exit code of `vtax run`.
    pub code: i32,
    /// Length of the archive.
    bytes: u64,
    /// Its SHA-256, in hexadecimal.
    sha256: String,
}

/// The lines of a host, from the file that QEMU writes.
#[derive(Debug)]
pub(crate) struct OutputChannel {
    file: File,
    path: PathBuf,
    partial: Vec<u8>,
    stuck: bool,
    ended: Option<EndRecord>,
}

impl OutputChannel {
    pub(crate) fn open(path: &Path) -> Result<Self, HostError> {
        Ok(Self {
            file: File::open(path).map_err(HostError::file("read", path))?,
            path: path.to_owned(),
            partial: Vec::new(),
            stuck: false,
            ended: None,
        })
    }

    /// Forwards the new lines; returns whether any bytes have arrived.
    pub(crate) fn follow(&mut self, each: &mut dyn FnMut(Line)) -> Result<bool, HostError> {
        let mut arrived = false;
        let mut buffer = [0; 8192];
        loop {
            let count = match self.file.read(&mut buffer) {
                Ok(0) => return Ok(arrived),
                Ok(count) => count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) => return Err(HostError::file("read", &self.path)(cause)),
            };
            arrived = true;
            for byte in buffer.get(..count).unwrap_or_default() {
                if *byte == b'\n' || self.partial.len() >= LONGEST_LINE {
                    self.forward(each);
                }
                if *byte != b'\n' {
                    self.partial.push(*byte);
                }
            }
        }
    }

    fn forward(&mut self, each: &mut dyn FnMut(Line)) {
        let line = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        if line.trim().is_empty() {
            return;
        }
        if line == STUCK {
            self.stuck = true;
        } else if let Some(ended) = serde_json::from_str::<EndRecord>(&line)
            .ok()
            .filter(|ended| ended.testbed == "ended")
        {
            self.ended = Some(ended);
        } else {
            each(Line::read(&line));
        }
    }

    /// Whether the host has reported a stuck guest.
    pub(crate) fn stuck(&self) -> bool {
        self.stuck
    }

    /// The host's last line, if it has arrived.
    pub(crate) fn ended(&self) -> Option<&EndRecord> {
        self.ended.as_ref()
    }
}

/// Unpacks the announced archive after checking its length and digest.
///
/// # Errors
/// When the archive is not the announced one, has unexpected files, or cannot be stored.
pub(crate) fn fetch(archive: &Path, ended: &EndRecord, into: &Path) -> Result<(), HostError> {
    let protocol = |detail: String| HostError::Protocol {
        peer: "the testbed".into(),
        detail: format!("its results are refused: {detail}"),
    };
    let mut file = File::open(archive).map_err(HostError::file("read", archive))?;
    let mut hasher = Sha256::new();
    let length = io::copy(&mut file, &mut hasher).map_err(HostError::file("read", archive))?;
    if length != ended.bytes {
        return Err(protocol(format!(
            "{length} bytes came, {} were announced",
            ended.bytes
        )));
    }
    let digest = format!("{:x}", hasher.finalize());
    if digest != ended.sha256 {
        return Err(protocol(format!(
            "their SHA-256 is {digest}, {} was announced",
            ended.sha256
        )));
    }
    if length == 0 {
        // A run that ended before its first line has no results.
        return Ok(());
    }
    file.rewind().map_err(HostError::file("read", archive))?;
    let into = Dir::create(into).map_err(|cause| HostError::Other(cause.to_string()))?;
    let mut budget = Budget::RUN;
    archive::unpack(io::BufReader::new(file), &into, &is_record, &mut budget).map_err(|refusal| {
        match refusal {
            Refusal::Malformed(why) => protocol(why),
            Refusal::Store(cause) => HostError::Other(cause.to_string()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::io::Write;
    use vtax_lab::run::Event;

    fn lines(text: &[u8]) -> (Vec<Line>, Option<EndRecord>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let mut lines = OutputChannel::open(file.path()).unwrap();
        let mut seen = Vec::new();
        lines.follow(&mut |line| seen.push(line)).unwrap();
        (seen, lines.ended().cloned())
    }

    fn announced(archive: &[u8]) -> EndRecord {
        EndRecord {
            testbed: "ended".into(),
            code: 0,
            bytes: archive.len() as u64,
            sha256: format!("{:x}", Sha256::digest(archive)),
        }
    }

    #[test]
    fn events_words_and_the_last_line_are_distinguished() {
        let (seen, ended) = lines(
            b"{\"event\":\"phase\",\"phase\":\"boot\"}\nsome words\n\n{\"testbed\":\"ended\",\"code\":1,\"bytes\":0,\"sha256\":\"\"}\n",
        );
        let phase = Event::Phase {
            phase: "boot".into(),
        };
        assert_eq!(seen, [Line::Event(phase), Line::Text("some words".into())]);
        assert_eq!(ended.unwrap().code, 1);
    }

    #[test]
    fn a_stuck_guest_is_heard_of_and_no_word() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut lines = OutputChannel::open(file.path()).unwrap();
        file.write_all(STUCK.as_bytes()).unwrap();
        lines.follow(&mut |_| {}).unwrap();
        assert!(!lines.stuck());
        file.write_all(b"\n").unwrap();
        lines.follow(&mut |line| panic!("{line:?}")).unwrap();
        assert!(lines.stuck());
    }

    #[test]
    fn a_line_is_handed_on_when_it_is_whole() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut lines = OutputChannel::open(file.path()).unwrap();
        let mut seen = Vec::new();
        file.write_all(b"first ha").unwrap();
        assert!(lines.follow(&mut |line| seen.push(line)).unwrap());
        assert_eq!(seen, []);
        file.write_all(b"lf\nsecond").unwrap();
        lines.follow(&mut |line| seen.push(line)).unwrap();
        assert_eq!(seen, [Line::Text("first half".into())]);
        assert!(!lines.follow(&mut |_| {}).unwrap());
    }

    #[test]
    fn results_that_are_not_the_announced_ones_are_not_stored() {
        let into = tempfile::tempdir().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut archive = archive::entry("run.json", b'0', b"{}");
        archive.extend([0; 1024]);
        let ended = announced(&archive);
        let mut flipped = archive.clone();
        flipped[512] ^= 1;
        for (bytes, expected) in [
            (&archive[..700], "were announced"),
            (&archive[..0], "were announced"),
            (&flipped, "SHA-256"),
        ] {
            fs::write(file.path(), bytes).unwrap();
            let printed = fetch(file.path(), &ended, into.path())
                .unwrap_err()
                .to_string();
            assert!(printed.contains(expected), "{printed}");
            assert!(fs::read_dir(into.path()).unwrap().next().is_none());
        }
        fs::write(file.path(), &archive).unwrap();
        fetch(file.path(), &ended, into.path()).unwrap();
        assert_eq!(fs::read(into.path().join("run.json")).unwrap(), b"{}");
    }

    #[test]
    fn an_archive_that_is_as_announced_but_leads_outside_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        let into = outer.path().join("results");
        let file = tempfile::NamedTempFile::new().unwrap();
        let archive = archive::entry("../stolen", b'0', b"x");
        fs::write(file.path(), &archive).unwrap();
        let printed = fetch(file.path(), &announced(&archive), &into)
            .unwrap_err()
            .to_string();
        assert!(printed.contains("leads outside"), "{printed}");
        assert!(!outer.path().join("stolen").exists());
    }

    proptest! {
        #[test]
        fn no_lines_make_it_panic(text in proptest::collection::vec(any::<u8>(), 0..512)) {
            lines(&text);
        }
    }
}
