// SPDX-License-Identifier: Apache-2.0
//! A recording in windows of a minute: the use of each guest and of the host.
//!
//! Guests of one given name and platform are one guest here: one that is started again continues, and guests that have
//! the name at the same time are added up.

use crate::second::Identity;
use crate::store::{self, Facts, Read, StoreError};
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use vtax_charge::{EnergyUse, GuestExchanges, Stage, Stages};
use vtax_core::{Joules, Nanoseconds, Source};
use vtax_inventory::Platform;

/// Length of a window.
const MINUTE: u64 = 60_000_000_000;
/// Length of a window in figures of a short recording.
const SECOND: u64 = 1_000_000_000;
/// Longest recording whose figures have a point a second.
const SHORT: u64 = 20 * MINUTE;
/// Most names of guests; the use of further ones is one sum.
const MOST_NAMES: usize = 100_000;
/// Most uses of a guest in a window; beyond that two windows become one.
const MOST_USES: usize = 2_000_000;
/// The name of the sum of guests beyond [`MOST_NAMES`].
const OTHERS: &str = "further guests";
/// Most windows; beyond that two become one, so that a year takes no more memory than two days.
const MOST_WINDOWS: usize = 2880;

/// Use in a window, or in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Use {
    /// Processor time by stage.
    pub stages: Stages,
    /// Energy.
    pub energy: Joules,
    /// The error of the time: at most the sum of the errors of the seconds.
    pub error: Nanoseconds,
    /// Packets, bytes, requests, exits.
    pub exchanges: GuestExchanges,
    /// The time that guests of the name were present, added up.
    pub present: Nanoseconds,
}

impl Use {
    fn add(&mut self, other: &Self) {
        self.stages.merge(&other.stages);
        self.energy += other.energy;
        self.error += other.error;
        self.present += other.present;
        self.exchanges.merge(&other.exchanges);
    }

    /// All of its processor time.
    pub fn cpu(&self) -> Nanoseconds {
        self.stages.total()
    }

    /// Packets received and sent.
    pub fn packets(&self) -> u64 {
        self.exchanges.received.saturating_add(self.exchanges.sent)
    }
}

/// The guests of one name and platform.
#[derive(Debug, Clone, PartialEq)]
pub struct Guest {
    /// The given name.
    pub name: String,
    /// The platform.
    pub platform: String,
    /// Whether it is a VM.
    pub vm: bool,
    /// The number of guests that had the name.
    pub instances: usize,
    /// Use in all windows.
    pub total: Use,
    /// Use by the number of the window.
    pub windows: BTreeMap<usize, Use>,
}

impl Guest {
    /// Its name with its platform, by which it is matched with guests of other recordings.
    pub fn label(&self) -> String {
        format!("{} ({})", self.name, self.platform)
    }

    /// Whether it is a service of the host, whose soft interrupts and exchanges cannot be separated from the host's.
    pub fn is_service(&self) -> bool {
        self.platform == Platform::Native.name()
    }

    /// The share of its processor time that the guest does not see; `None` without any time, for a VM whose monitor does
    /// not name its threads, and for a service, whose soft interrupts are not known.
    pub fn hidden(&self) -> Option<f64> {
        let (total, stages) = (self.total.cpu().0, &self.total.stages);
        let is_known = !self.is_service() && (!self.vm || stages.get(Stage::Vcpu).0 > 0);
        (total > 0 && is_known).then(|| stages.hidden().0 as f64 / total as f64)
    }
}

/// The host in a window.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Window {
    /// Start of its first second by the wall clock, in milliseconds since 1970.
    pub began: i64,
    /// Its length by the monotonic clock.
    pub span: Nanoseconds,
    /// All time that processors were busy.
    pub busy: Nanoseconds,
    /// The host's own time, soft interrupts for no guest included.
    pub host: Nanoseconds,
    /// Guests that ended within an interval, for the time that is in no guest's use.
    pub departed: Nanoseconds,
    /// Time without an owner.
    pub unattributed: Nanoseconds,
    /// Energy, where a meter reported it.
    pub energy: Option<Joules>,
    /// The host's part of the energy.
    pub host_energy: Joules,
    /// The part of guests that ended within an interval.
    pub departed_energy: Joules,
    /// The part of time without an owner.
    pub unattributed_energy: Joules,
}

impl Window {
    fn add(&mut self, other: &Self) {
        self.span += other.span;
        self.busy += other.busy;
        self.host += other.host;
        self.departed += other.departed;
        self.unattributed += other.unattributed;
        self.host_energy += other.host_energy;
        self.departed_energy += other.departed_energy;
        self.unattributed_energy += other.unattributed_energy;
        self.energy = match (self.energy, other.energy) {
            (Some(mine), Some(more)) => Some(mine + more),
            (known, None) | (None, known) => known,
        };
    }
}

/// A recording.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// The directory.
    pub path: PathBuf,
    /// The facts of the last seconds.
    pub facts: Facts,
    /// The differing methods and power models of the other seconds, each in a sentence.
    pub changes: Vec<String>,
    /// The number of starts of a recorder.
    pub sessions: usize,
    /// The number of seconds, or intervals of another length.
    pub seconds: u64,
    /// Seconds that are missing: lost to a full disk or to damage.
    pub missing: u64,
    /// Bytes that belong to no whole second.
    pub damaged: u64,
    /// Size of the files, in bytes.
    pub bytes: u64,
    /// The sum of the lengths of guests' presence, in seconds: what the size is divided by.
    pub guest_seconds: u64,
    /// Steps of the wall clock of two seconds or more.
    pub clock_steps: u64,
    /// Length of a window, in nanoseconds.
    pub window: u64,
    /// The host, by window.
    pub windows: Vec<Window>,
    /// The host in all windows.
    pub host: Window,
    /// The guests, those that cost most first.
    pub guests: Vec<Guest>,
    /// The source of the energy.
    pub energy_source: Option<Source>,
    /// The recorder's own processor time.
    pub recorder: Nanoseconds,
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// When it cannot be read, or holds no second.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        Self::read_in(path, MINUTE)
    }

    /// As [`Recording::read`], in windows of a second. `None` for a recording of more than 20 minutes.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn in_seconds(&self) -> Result<Option<Self>, StoreError> {
        if self.host.span.0 <= SHORT {
            Self::read_in(&self.path, SECOND).map(Some)
        } else {
            Ok(None)
        }
    }

    fn read_in(path: &Path, window: u64) -> Result<Self, StoreError> {
        let mut reader = Summing::default();
        reader.recording.window = window;
        let end = store::read(path, |read| reader.take(&read))?;
        let mut recording = reader.recording;
        if recording.seconds == 0 {
            return Err(StoreError::Empty(path.display().to_string()));
        }
        for window in &recording.windows {
            recording.host.add(window);
        }
        recording.host.began = recording.windows.first().map_or(0, |window| window.began);
        recording.guests = reader.guests.into_values().collect();
        recording.guests.sort_by(|a, b| {
            (b.total.cpu(), &a.name, &a.platform).cmp(&(a.total.cpu(), &b.name, &b.platform))
        });
        recording.path = path.to_owned();
        recording.sessions = reader.sessions.len();
        recording.damaged = end.damaged;
        recording.bytes = end.bytes;
        recording.guest_seconds = reader.guest_time / 1_000_000_000;
        Ok(recording)
    }

    /// Start of the first second.
    pub fn began(&self) -> Timestamp {
        Timestamp::from_millisecond(self.host.began).unwrap_or_default()
    }

    /// The recorder's share of a processor.
    pub fn own_share(&self) -> f64 {
        self.recorder.as_secs_f64() / self.host.span.as_secs_f64().max(1e-9)
    }

    /// The windows that are long enough to be compared with others: at least half of a whole one.
    pub fn whole_windows(&self) -> impl Iterator<Item = usize> {
        let windows = self.windows.iter().enumerate();
        windows
            .filter(|(_, window)| window.span.0.saturating_mul(2) >= self.window)
            .map(|(at, _)| at)
    }
}

/// The state while seconds are added up.
#[derive(Default)]
struct Summing {
    recording: Recording,
    /// The length of all seconds so far.
    elapsed: u64,
    guest_time: u64,
    /// The number of the last second, and its end by the wall clock.
    last: Option<(u64, u64, i64)>,
    sessions: HashSet<u64>,
    guests: HashMap<(String, String), Guest>,
    /// The number of uses in the windows of all guests.
    uses: usize,
    seen: HashMap<(u64, u32), (String, String)>,
}

/// A step of the wall clock against the monotonic clock that is no jitter, in milliseconds.
const STEP: i64 = 2000;

impl Summing {
    fn take(&mut self, read: &Read<'_>) {
        let (facts, second) = (read.facts, read.second);
        self.note(facts);
        let account = second.account();
        let span = account.ledger.span;
        let length = i64::try_from(span.0 / 1_000_000).unwrap_or(i64::MAX);
        let began = second.ended.saturating_sub(length);
        if let Some((session, number, ended)) = self.last {
            let next = number.saturating_add(1);
            let missing = &mut self.recording.missing;
            *missing = missing.saturating_add(read.number.saturating_sub(next));
            let is_next = session == facts.session && read.number == next;
            if is_next && began.saturating_sub(ended).saturating_abs() >= STEP {
                self.recording.clock_steps += 1;
            }
        }
        self.last = Some((facts.session, read.number, second.ended));
        let at = self.at(began);
        self.elapsed = self.elapsed.saturating_add(span.0);
        self.recording.seconds += 1;
        self.recording.recorder += account.recorder;
        let source = account.energy.map(|energy: EnergyUse| energy.source);
        self.recording.energy_source = self.recording.energy_source.max(source);
        if let Some(window) = self.recording.windows.get_mut(at) {
            window.add(&Window {
                began: 0,
                span,
                busy: account.ledger.total,
                host: account.ledger.host + account.ledger.host_softirq,
                departed: account.ledger.departed.stages.total(),
                unattributed: account.ledger.unattributed,
                energy: account.energy.map(|energy| energy.total),
                host_energy: account.ledger.host_energy,
                departed_energy: account.ledger.departed.energy,
                unattributed_energy: account.ledger.unattributed_energy,
            });
        }
        for (row, exchanges) in account.ledger.rows.iter().zip(&account.exchanges) {
            let error = row.modelled.map(|modelled| modelled.total());
            let used = Use {
                stages: row.stages,
                energy: row.energy,
                error: error.unwrap_or_default(),
                exchanges: *exchanges,
                present: span,
            };
            self.guest_time = self.guest_time.saturating_add(span.0);
            let identity = read.guests.get(&row.number);
            self.add((facts.session, row.number), identity, at, &used);
        }
    }

    /// Adds a use to the guest of a number in a session.
    fn add(&mut self, own: (u64, u32), identity: Option<&Identity>, at: usize, used: &Use) {
        let unknown = Identity::unknown(own.1);
        let identity = identity.unwrap_or(&unknown);
        let mut key = (identity.called().to_owned(), identity.platform.clone());
        if self.guests.len() >= MOST_NAMES && !self.guests.contains_key(&key) {
            key = (OTHERS.to_owned(), String::new());
        }
        let guest = self.guests.entry(key.clone()).or_insert_with(|| Guest {
            name: key.0.clone(),
            platform: key.1.clone(),
            vm: identity.vm,
            instances: 0,
            total: Use::default(),
            windows: BTreeMap::new(),
        });
        if self.seen.get(&own) != Some(&key) {
            guest.instances += 1;
            if self.seen.len() < MOST_USES {
                self.seen.insert(own, key);
            }
        }
        guest.total.add(used);
        let windows = guest.windows.len();
        guest.windows.entry(at).or_default().add(used);
        self.uses += guest.windows.len() - windows;
    }

    /// The window of a second that begins now.
    fn at(&mut self, began: i64) -> usize {
        let place = |elapsed: u64, window: u64| {
            usize::try_from(elapsed / window.max(1)).unwrap_or(usize::MAX)
        };
        while place(self.elapsed, self.recording.window) >= MOST_WINDOWS
            || self.uses > MOST_USES && self.recording.windows.len() > 1
        {
            self.coarsen();
        }
        let at = place(self.elapsed, self.recording.window);
        while self.recording.windows.len() <= at {
            self.recording.windows.push(Window {
                began,
                ..Window::default()
            });
        }
        at
    }

    /// Makes two windows one.
    fn coarsen(&mut self) {
        self.recording.window = self.recording.window.saturating_mul(2);
        let pairs = self.recording.windows.chunks(2).filter_map(|pair| {
            let (first, more) = pair.split_first()?;
            let mut sum = *first;
            more.iter().for_each(|other| sum.add(other));
            Some(sum)
        });
        self.recording.windows = pairs.collect();
        for guest in self.guests.values_mut() {
            for (at, used) in std::mem::take(&mut guest.windows) {
                guest.windows.entry(at / 2).or_default().add(&used);
            }
        }
        self.uses = self.guests.values().map(|guest| guest.windows.len()).sum();
    }

    fn note(&mut self, facts: &Facts) {
        let is_first = self.sessions.is_empty();
        if !is_first && self.recording.facts.number == facts.number {
            return;
        }
        self.sessions.insert(facts.session);
        let before = std::mem::replace(&mut self.recording.facts, facts.clone());
        let is_same = before.method == facts.method
            && before.energy_model == facts.energy_model
            && before.interval_seconds == facts.interval_seconds;
        if !is_first && !is_same {
            let model = before.energy_model.as_deref();
            let model = model.map_or(String::new(), |model| format!(", energy by {model}"));
            self.recording.changes.push(format!(
                "until {} soft interrupts were {}, once in {} s{model}",
                facts.began, before.method, before.interval_seconds
            ));
        }
    }
}

/// The stages that have any time in a recording, in their order.
pub fn stages(guests: &[Guest]) -> Vec<Stage> {
    let time = |guest: &Guest, stage: &Stage| guest.total.stages.get(*stage).0;
    let has = |stage: &Stage| guests.iter().any(|guest| time(guest, stage) > 0);
    Stage::CHARGED.into_iter().filter(has).collect()
}
