//! What a run or a trial says of itself as it goes on: JSON lines, read as they come.

use crate::meters::Meter;
use crate::text::shown;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};
use vtax_core::Quantity;
use vtax_lab::run::Event;

/// Notes that are kept, the last ones.
const NOTES: usize = 20;
/// Levels that are kept, the last ones.
const POINTS: usize = 500;
/// Seconds whose readings are kept, the last ones.
const METERS: usize = 300;
/// Read at once; a line is shorter.
const MOST_BYTES: u64 = 8 << 20;
/// A longer line is nothing that a run says.
const LONGEST: usize = 64 << 10;

/// Takes events one by one.
pub trait Hears: Default {
    /// One that was read at this time, in seconds since 1970.
    fn hear(&mut self, event: Event, at: f64);
}

/// Reads what is new in a file of events.
#[derive(Debug, Default)]
pub struct Listener<T> {
    /// Which file, and how much of it.
    file: u64,
    read: u64,
    /// Who hears it.
    pub heard: T,
}

impl<T: Hears> Listener<T> {
    /// Reads what is new. A run that is started again writes another file, and what was heard before is
    /// then forgotten.
    pub fn listen(&mut self, file: io::Result<File>) -> &T {
        // Where there is nothing to read, nothing was said.
        let _ = file.and_then(|file| self.read_on(file));
        &self.heard
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
            if line.len() < LONGEST
                && let Ok(event) = serde_json::from_slice(line)
            {
                self.heard.hear(event, at);
            }
        }
        Ok(())
    }
}

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
    level: f64,
    of: f64,
    across: String,
    readings: BTreeMap<String, Quantity>,
    kept: Option<bool>,
}

/// What a trial that is under way said so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Told {
    /// What it does, in a word.
    pub phase: String,
    /// What it is judged by.
    pub objective: String,
    /// Levels, where it raises something step by step.
    pub points: VecDeque<Point>,
    /// What was sampled, second by second.
    pub meters: VecDeque<Meter>,
}

impl Hears for Told {
    fn hear(&mut self, event: Event, _: f64) {
        match event {
            Event::Phase { phase } => self.phase = shown(&phase),
            Event::Objective { text } => self.objective = shown(&text),
            Event::Sampled {
                level,
                of,
                across,
                readings,
                kept,
            } => {
                let across = shown(&across);
                let point = Point {
                    level,
                    of,
                    across,
                    readings,
                    kept,
                };
                keep(&mut self.points, point, POINTS);
            }
            Event::Metered {
                at,
                cpu,
                carried,
                source,
                ..
            } => {
                let meter = Meter {
                    at,
                    cpu,
                    carried,
                    source,
                };
                keep(&mut self.meters, meter, METERS);
            }
            _ => {}
        }
    }
}

/// Adds the last one, and drops the first where there are too many.
fn keep<T>(all: &mut VecDeque<T>, one: T, most: usize) {
    if all.len() >= most {
        all.pop_front();
    }
    all.push_back(one);
}

/// What was heard of a run so far.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// Lines for people, the last ones.
    pub notes: VecDeque<String>,
    /// For the rest, in seconds, as of the last trial's end.
    pub remaining: Option<f64>,
    /// Trials under way, by index.
    pub under_way: BTreeMap<u32, Begun>,
    /// Trials that are over, by index.
    pub over: BTreeMap<u32, Over>,
    /// Of the trial under way.
    pub told: Told,
}

impl Hears for Heard {
    fn hear(&mut self, event: Event, at: f64) {
        match event {
            Event::Note { message } => keep(&mut self.notes, shown(&message), NOTES),
            Event::Started {
                expected_seconds, ..
            } => self.remaining = Some(expected_seconds),
            Event::TrialStarted { index, treatment } => {
                // One that runs again is not over any more.
                self.over.remove(&index);
                let since = at;
                self.under_way.insert(index, Begun { treatment, since });
                self.told = Told::default();
            }
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
            of_trial => self.told.hear(of_trial, at),
        }
    }
}

/// How many trials a run has said to be over.
#[derive(Debug, Default)]
pub struct Ended(pub usize);

impl Hears for Ended {
    fn hear(&mut self, event: Event, _: f64) {
        self.0 += usize::from(matches!(event, Event::TrialFinished { .. }));
    }
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
        let mut listener: Listener<Heard> = Listener::default();
        let mut ended: Listener<Ended> = Listener::default();
        let heard = listener.listen(File::open(&path));
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
        let heard = listener.listen(File::open(&path));
        assert_eq!(heard.under_way[&7].treatment, "vm");
        assert_eq!(heard.notes, ["two [2J"]);
        assert!(heard.over.is_empty(), "the line is not whole");
        assert_eq!(ended.listen(File::open(&path)).0, 0);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(rest.as_bytes()).unwrap();
        let heard = listener.listen(File::open(&path));
        assert!(heard.under_way.is_empty());
        assert_eq!(heard.over[&7].suspect, ["swapped"]);
        assert_eq!(heard.remaining, Some(4.0));
        assert_eq!(ended.listen(File::open(&path)).0, 1);
        assert_eq!(ended.listen(File::open(&path)).0, 1, "nothing is new");
        let other = folder.path().join("other");
        fs::write(&other, all.repeat(3) + &line(&started)).unwrap();
        fs::rename(&other, &path).unwrap();
        let heard = listener.listen(File::open(&path));
        assert!(
            heard.over.is_empty() && heard.under_way.contains_key(&7),
            "it runs again"
        );
        assert_eq!(ended.listen(File::open(&path)).0, 3);
    }

    #[test]
    fn what_a_trial_tells_is_bounded_and_goes_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let metered = |at: u32| Event::Metered {
            at: at.into(),
            seconds: 1.0,
            cpu: BTreeMap::new(),
            carried: BTreeMap::new(),
            source: vtax_core::Source::Measured,
        };
        let sampled = |level: u32| Event::Sampled {
            level: level.into(),
            of: 9e9,
            across: "guests".to_owned(),
            readings: BTreeMap::new(),
            kept: Some(true),
        };
        let mut text: String = (0..1000)
            .flat_map(|number| [line(&metered(number)), line(&sampled(number))])
            .collect();
        text += &line(&Event::Phase {
            phase: "x".repeat(LONGEST),
        });
        text += &line(&Event::Objective {
            text: "errors <= 1 %".to_owned(),
        });
        fs::write(&path, &text).unwrap();
        let mut listener: Listener<Heard> = Listener::default();
        let told = &listener.listen(File::open(&path)).told;
        assert_eq!((told.meters.len(), told.points.len()), (METERS, POINTS));
        assert_eq!(told.meters[METERS - 1].at, 999.0);
        assert_eq!(
            (told.phase.as_str(), told.objective.as_str()),
            ("", "errors <= 1 %")
        );
        let next = Event::TrialStarted {
            index: 1,
            treatment: "vm".to_owned(),
        };
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(line(&next).as_bytes()).unwrap();
        assert_eq!(listener.listen(File::open(&path)).told, Told::default());
    }
}
