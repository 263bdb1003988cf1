//! What a run says of itself as it goes on: the JSON lines of `vtax run --json`, read as they come.

use crate::text::shown;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use vtax_lab::run::Event;
use vtax_units::Quantity;

/// Notes that are kept, the last ones.
const NOTES: usize = 20;
/// Read at once; a line is shorter.
const MOST_BYTES: u64 = 8 << 20;

/// A trial that is under way.
#[derive(Debug, Clone, PartialEq)]
pub struct Begun {
    /// Its treatment's label.
    pub treatment: String,
    /// When it was seen to begin, in seconds since 1970.
    pub since: f64,
}

/// A trial that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Over {
    /// How long it took.
    pub seconds: f64,
    /// Its leading numbers in words.
    pub headline: String,
    /// Why not to trust it.
    pub suspect: Vec<String>,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

/// What a trial saw at one level of what it raises step by step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    level: u32,
    of: u32,
    readings: BTreeMap<String, Quantity>,
}

/// What was heard of a run so far.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// Which file, and how much of it.
    file: u64,
    read: u64,
    /// Lines for people, the last ones.
    pub notes: Vec<String>,
    /// For the rest, in seconds, as of the last trial's end.
    pub remaining: Option<f64>,
    /// Trials under way, by index.
    pub under_way: BTreeMap<u32, Begun>,
    /// Trials that are over, by index.
    pub over: BTreeMap<u32, Over>,
    /// Of the trial under way.
    pub phase: String,
    /// Of the trial under way.
    pub points: Vec<Point>,
}

impl Heard {
    /// Reads what is new. A run that is started again writes another file, and what was heard before is
    /// then forgotten.
    pub fn listen(&mut self, path: &Path) {
        // Where there is nothing to read, nothing was said.
        let _ = self.read_on(path);
    }

    fn read_on(&mut self, path: &Path) -> std::io::Result<()> {
        let mut file = File::open(path)?;
        let known = file.metadata()?;
        if known.ino() != self.file || known.len() < self.read {
            *self = Self {
                file: known.ino(),
                ..Self::default()
            };
        }
        if known.len() == self.read {
            return Ok(());
        }
        let written = known.modified()?.duration_since(UNIX_EPOCH);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let at = written.or(now).map_or(0.0, |since| since.as_secs_f64());
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes)?;
        // The last line may not be whole yet.
        let whole = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        self.read += u64::try_from(whole).unwrap_or(0);
        for line in bytes
            .get(..whole)
            .unwrap_or_default()
            .split(|byte| *byte == b'\n')
        {
            // Lines of other kinds are for others.
            if let Ok(event) = serde_json::from_slice(line) {
                self.take(event, at);
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event, at: f64) {
        match event {
            Event::Note { message } => {
                self.notes.push(shown(&message));
                let more = self.notes.len().saturating_sub(NOTES);
                self.notes.drain(..more);
            }
            Event::Started {
                expected_seconds, ..
            } => self.remaining = Some(expected_seconds),
            Event::TrialStarted { index, treatment } => {
                // One that runs again is not over any more.
                self.over.remove(&index);
                let since = at;
                self.under_way.insert(index, Begun { treatment, since });
                self.phase.clear();
                self.points.clear();
            }
            Event::Phase { phase } => self.phase = shown(&phase),
            Event::Sampled {
                level,
                of,
                readings,
            } => self.points.push(Point {
                level,
                of,
                readings,
            }),
            Event::TrialFinished {
                index,
                seconds,
                remaining_seconds,
                headline,
                suspect,
                failed,
                ..
            } => {
                self.under_way.remove(&index);
                self.remaining = Some(remaining_seconds);
                let over = Over {
                    seconds,
                    headline,
                    suspect,
                    failed,
                };
                self.over.insert(index, over);
            }
        }
    }
}

/// How many trials a run has said to be over.
pub fn trials_over(path: &Path) -> usize {
    let bytes = std::fs::read(path).unwrap_or_default();
    let mark = b"\"event\":\"trial_finished\"";
    let lines = bytes.split(|byte| *byte == b'\n');
    lines
        .filter(|line| line.windows(mark.len()).any(|part| part == mark))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    fn line(event: &Event) -> String {
        serde_json::to_string(event).unwrap() + "\n"
    }

    fn finished(index: u32) -> Event {
        Event::TrialFinished {
            index,
            treatment: "vm".to_owned(),
            seconds: 2.0,
            done: 1,
            of: 3,
            remaining_seconds: 4.0,
            headline: "fast".to_owned(),
            suspect: vec!["swapped".to_owned()],
            failed: None,
        }
    }

    #[test]
    fn events_are_heard_as_they_come_and_anew_in_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let mut heard = Heard::default();
        heard.listen(&path);
        assert!(heard.over.is_empty());
        let started = Event::TrialStarted {
            index: 7,
            treatment: "vm".to_owned(),
        };
        let note = Event::Note {
            message: "two\x1b[2J".to_owned(),
        };
        let all = line(&started) + "no event\n" + &line(&note) + &line(&finished(7));
        let (most, rest) = all.split_at(all.len() - 9);
        fs::write(&path, most).unwrap();
        heard.listen(&path);
        assert_eq!(heard.under_way[&7].treatment, "vm");
        assert_eq!(heard.notes, ["two [2J"]);
        assert!(heard.over.is_empty(), "the line is not whole");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(rest.as_bytes()).unwrap();
        heard.listen(&path);
        assert!(heard.under_way.is_empty());
        assert_eq!(heard.over[&7].suspect, ["swapped"]);
        assert_eq!((heard.remaining, trials_over(&path)), (Some(4.0), 1));
        let other = folder.path().join("other");
        fs::write(&other, all.repeat(3) + &line(&started)).unwrap();
        fs::rename(&other, &path).unwrap();
        heard.listen(&path);
        assert!(
            heard.over.is_empty() && heard.under_way.contains_key(&7),
            "it runs again"
        );
    }
}
