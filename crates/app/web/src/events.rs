// SPDX-License-Identifier: Apache-2.0
//! The events of a run or a trial in progress: JSON lines, read while the file grows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};
use vtax_lab::run::{Event, RunState, RunningTrial};

/// The limit of one read, in bytes.
const MAX_READ_BYTES: u64 = 8 << 20;
/// A longer line is not an event.
const MAX_LINE_BYTES: usize = 64 << 10;

/// A value that accumulates events.
pub trait EventSink: Default {
    /// Adds an event that was read at this time, in seconds since 1970.
    fn add(&mut self, event: Event, at: f64);
}

/// Reads the new events in a file.
#[derive(Debug, Default)]
pub struct EventReader<T> {
    /// The inode of the file, and the bytes that were read.
    file: u64,
    read: u64,
    pub events: T,
}

impl<T: EventSink> EventReader<T> {
    /// Reads the new events. A run that is started again writes another file, and the events of the old file are then
    /// dropped.
    pub fn read(&mut self, file: io::Result<File>) -> &T {
        // A file that cannot be read has no events.
        let _ = file.and_then(|file| self.read_on(file));
        &self.events
    }

    fn read_on(&mut self, mut file: File) -> io::Result<()> {
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
        file.take(MAX_READ_BYTES).read_to_end(&mut bytes)?;
        // The last line may be incomplete.
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
            // Other lines are not events.
            if line.len() < MAX_LINE_BYTES
                && let Ok(event) = serde_json::from_slice::<Event>(line)
            {
                self.events.add(event.bounded(), at);
            }
        }
        Ok(())
    }
}

impl EventSink for RunState {
    fn add(&mut self, event: Event, at: f64) {
        self.add(event, at);
    }
}

impl EventSink for RunningTrial {
    fn add(&mut self, event: Event, _: f64) {
        self.add(event);
    }
}

/// The number of finished trials.
#[derive(Debug, Default)]
pub struct TrialCount(pub usize);

impl EventSink for TrialCount {
    fn add(&mut self, event: Event, _: f64) {
        self.0 += usize::from(matches!(event, Event::TrialFinished(_)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use vtax_lab::run::{FinishedTrial, LiveSample, MAX_LEVELS, MAX_SAMPLES, SampledLevel};

    fn line(event: &Event) -> String {
        serde_json::to_string(event).unwrap() + "\n"
    }

    fn finished(index: u32) -> Event {
        Event::TrialFinished(FinishedTrial {
            index,
            treatment: "vm".to_owned(),
            seconds: 2.0,
            done: 1,
            of: 3,
            remaining_seconds: 4.0,
            headline: "fast".to_owned(),
            suspect: vec!["swapped".to_owned()],
            disturbed: vec!["other programs".to_owned()],
            failed: None,
        })
    }

    #[test]
    fn events_are_heard_as_they_come_and_anew_in_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let mut listener: EventReader<RunState> = EventReader::default();
        let mut ended: EventReader<TrialCount> = EventReader::default();
        let events = listener.read(File::open(&path));
        assert!(events.finished.is_empty());
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
        let events = listener.read(File::open(&path));
        assert_eq!(events.started[&7].treatment, "vm");
        assert_eq!(events.notes, ["two [2J"]);
        assert!(events.finished.is_empty(), "the line is not whole");
        assert_eq!(ended.read(File::open(&path)).0, 0);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(rest.as_bytes()).unwrap();
        let events = listener.read(File::open(&path));
        assert!(events.started.is_empty());
        assert_eq!(events.finished[&7].suspect, ["swapped"]);
        assert_eq!(events.finished[&7].disturbed, ["other programs"]);
        assert_eq!(events.remaining, Some(4.0));
        assert_eq!(ended.read(File::open(&path)).0, 1);
        assert_eq!(ended.read(File::open(&path)).0, 1, "nothing is new");
        let other = folder.path().join("other");
        fs::write(&other, all.repeat(3) + &line(&started)).unwrap();
        fs::rename(&other, &path).unwrap();
        let events = listener.read(File::open(&path));
        assert!(
            events.finished.is_empty() && events.started.contains_key(&7),
            "it runs again"
        );
        assert_eq!(ended.read(File::open(&path)).0, 3);
    }

    #[test]
    fn what_a_trial_reports_is_bounded_and_goes_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let metered = |at: u32| {
            Event::Metered(LiveSample {
                at: at.into(),
                seconds: 1.0,
                cpu: BTreeMap::new(),
                carried: BTreeMap::new(),
                source: vtax_core::Source::Measured,
            })
        };
        let sampled = |level: u32| {
            Event::Sampled(SampledLevel {
                level: level.into(),
                of: 9e9,
                across: "guests".to_owned(),
                readings: BTreeMap::new(),
                kept: Some(true),
            })
        };
        let mut text: String = (0..1000)
            .flat_map(|number| [line(&metered(number)), line(&sampled(number))])
            .collect();
        text += &line(&Event::Phase {
            phase: "x".repeat(MAX_LINE_BYTES),
        });
        text += &line(&Event::Objective {
            text: "errors <= 1 %".to_owned(),
        });
        fs::write(&path, &text).unwrap();
        let mut listener: EventReader<RunState> = EventReader::default();
        let trial = &listener.read(File::open(&path)).trial;
        assert_eq!(
            (trial.samples.len(), trial.levels.len()),
            (MAX_SAMPLES, MAX_LEVELS)
        );
        assert_eq!(trial.samples[MAX_SAMPLES - 1].at, 999.0);
        assert_eq!(
            (trial.phase.as_str(), trial.objective.as_str()),
            ("", "errors <= 1 %")
        );
        let next = Event::TrialStarted {
            index: 1,
            treatment: "vm".to_owned(),
        };
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(line(&next).as_bytes()).unwrap();
        assert_eq!(
            listener.read(File::open(&path)).trial,
            RunningTrial::default()
        );
    }
}
