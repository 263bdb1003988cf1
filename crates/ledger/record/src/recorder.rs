// SPDX-License-Identifier: Apache-2.0
//! `vtax record`: passes of the ledger, written to a recording second by second. The thread is sandboxed.

use crate::codec::MOST_GUEST_SECONDS;
use crate::second::{Identity, Remainders, Second};
use crate::store::{Facts, Store, StoreError};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vtax_charge::jail::{ReaderAccess, enter_reader};
use vtax_charge::{LedgerSnapshot, Problems, Watch};
use vtax_core::{Nanoseconds, counted};
use vtax_jail::JailError;
use vtax_observe::ObserveError;

/// Seconds of a block.
const BLOCK: usize = 120;
/// Seconds that are held in memory while the disk is full.
const HELD_SECONDS: usize = 600;
/// Blocks between two declarations of all guests.
const DECLARED_AGAIN: u32 = 30;

/// The options of `vtax record`.
#[derive(Debug, Clone)]
pub struct RecordOptions {
    /// The directory.
    pub output: PathBuf,
    /// The time between passes.
    pub interval: Duration,
    /// The time after which it ends; `None` runs until stopped.
    pub length: Option<Duration>,
    /// The parts of the facts that the caller gives: the host, the rule for idle energy, and the user's note.
    pub facts: Facts,
}

/// The reason that a recorder failed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The recording cannot be opened or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The last seconds cannot be written.
    #[error("cannot write the last {} to {}: {cause}; what was written before stays", counted(*seconds, "second"), path.display())]
    Last {
        /// The number of seconds.
        seconds: usize,
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        cause: std::io::Error,
    },
    /// The host cannot be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// It cannot be sandboxed.
    #[error(transparent)]
    Jail(#[from] JailError),
}

/// What a run of the recorder wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recorded {
    /// Seconds that were written.
    pub seconds: u64,
    /// Seconds that were lost because the disk was full.
    pub lost: u64,
    /// The size of the recording, in bytes.
    pub bytes: u64,
    /// The processor time of the recorder.
    pub cpu: Nanoseconds,
}

/// Records until `stop` is set or the time is over. `say` gets each new problem. The calling thread is sandboxed for
/// good.
///
/// # Errors
/// When the recording cannot be opened, or the host cannot be read in the first pass. A disk that is full later is a
/// problem and no error, unless it is full at the end.
pub fn run(
    mut watch: Watch,
    options: &RecordOptions,
    stop: &AtomicBool,
    say: &mut dyn FnMut(&str),
) -> Result<Recorded, RecordError> {
    let (store, note) = Store::open(&options.output)?;
    note.iter().for_each(|note| say(note));
    for note in watch.notes() {
        say(note);
    }
    let facts = Facts {
        interval_seconds: options.interval.as_secs_f64(),
        limitations: watch.notes().to_vec(),
        ..options.facts.clone()
    };
    let mut writer = Writer::new(store, facts);
    enter_reader(ReaderAccess {
        grown: true,
        ..ReaderAccess::default()
    })?;
    let mut problems = Problems::default();
    let began = Instant::now();
    watch.run(options.interval, stop, |snapshot, _| {
        match snapshot {
            Ok(snapshot) => {
                problems.report_new(&snapshot.problems, say);
                writer.take(&snapshot, say);
            }
            // The next pass covers this one's time too.
            Err(error) => problems.report_new([&error.to_string()], say),
        }
        if options
            .length
            .is_some_and(|length| began.elapsed() + options.interval / 2 >= length)
        {
            stop.store(true, Ordering::SeqCst);
        }
    })?;
    let is_over = options
        .length
        .is_some_and(|length| began.elapsed() + options.interval / 2 >= length);
    // The interval in progress, at its present length.
    if !is_over && let Ok(snapshot) = watch.pass() {
        writer.take(&snapshot, say);
    }
    writer
        .finish()
        .map_err(|(seconds, cause)| RecordError::Last {
            seconds,
            path: options.output.clone(),
            cause,
        })
}

/// Turns snapshots into frames.
pub(crate) struct Writer {
    pub(crate) store: Store,
    facts: Facts,
    are_facts_written: bool,
    remainders: Remainders,
    /// The processor time of this process in the last snapshot.
    own_cpu: Nanoseconds,
    /// The seconds since the last block, and those of them that are in the tail.
    pending: Vec<Second>,
    in_tail: usize,
    /// Guests that were declared in the last blocks, and those that the next block declares.
    known: HashMap<u32, Identity>,
    declared: Vec<Identity>,
    blocks: u32,
    /// The error of the last write, until one succeeds.
    failure: Option<String>,
    recorded: Recorded,
}

impl Writer {
    pub(crate) fn new(store: Store, facts: Facts) -> Self {
        Self {
            store,
            facts,
            are_facts_written: false,
            remainders: Remainders::default(),
            own_cpu: Nanoseconds(0),
            pending: Vec::new(),
            in_tail: 0,
            known: HashMap::new(),
            declared: Vec::new(),
            blocks: 0,
            failure: None,
            recorded: Recorded::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn set_note(&mut self, note: &str) {
        note.clone_into(&mut self.facts.note);
    }

    /// Records a snapshot. The first one only begins an interval.
    pub(crate) fn take(&mut self, snapshot: &LedgerSnapshot, say: &mut dyn FnMut(&str)) {
        let facts = Facts {
            began: snapshot.began.to_string(),
            method: snapshot.method.to_owned(),
            irq_accounting: snapshot.irq_accounting.to_string(),
            energy_covers: snapshot.energy_meters.clone(),
            energy_source: snapshot.energy_source.as_ref().map(|(_, source)| *source),
            energy_model: snapshot.power_model.as_ref().map(ToString::to_string),
            ..self.facts.clone()
        };
        if snapshot.ledger.span.0 == 0 {
            self.own_cpu = snapshot.own_cpu;
            return;
        }
        let is_same = self.facts.method == facts.method
            && self.facts.energy_model == facts.energy_model
            && self.facts.energy_covers == facts.energy_covers;
        if !is_same {
            // The seconds before are under the facts before.
            let flushed = self.flush();
            self.report(flushed, say);
            if !self.pending.is_empty() {
                self.lose(self.pending.len());
            }
            self.facts = facts;
            self.are_facts_written = false;
        }
        let own = snapshot.own_cpu.saturating_since(self.own_cpu);
        self.own_cpu = snapshot.own_cpu;
        self.recorded.cpu += own;
        for guest in &snapshot.guests {
            let identity = Identity::from_guest(guest);
            if self.known.get(&guest.number) != Some(&identity) {
                self.declared
                    .retain(|other| other.number != identity.number);
                self.declared.push(identity.clone());
                self.known.insert(guest.number, identity);
            }
        }
        self.pending.push(self.remainders.second(snapshot, own));
        let written = self.write();
        self.report(written, say);
        if self.pending.len() > HELD_SECONDS {
            self.lose(BLOCK);
        }
    }

    /// Writes the pending seconds: to the tail, or as a block where they are enough.
    fn write(&mut self) -> std::io::Result<()> {
        let guests: usize = self.pending.iter().map(|second| second.guests.len()).sum();
        if self.pending.len() >= BLOCK || guests >= MOST_GUEST_SECONDS / 2 {
            return self.flush();
        }
        self.write_facts()?;
        while let Some(second) = self.pending.get(self.in_tail) {
            // The guests that the block will declare are in the frame of each second that declares one.
            self.store
                .write_second(self.in_tail, second, &self.declared)?;
            self.in_tail += 1;
        }
        Ok(())
    }

    fn write_facts(&mut self) -> std::io::Result<()> {
        if !self.are_facts_written {
            self.store.write_facts(&self.facts)?;
            self.are_facts_written = true;
        }
        Ok(())
    }

    /// Writes the pending seconds as blocks.
    fn flush(&mut self) -> std::io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.write_facts()?;
        self.store.write_block(&self.pending, &self.declared)?;
        self.recorded.seconds += self.pending.len() as u64;
        self.pending.clear();
        self.in_tail = 0;
        self.declared.clear();
        self.blocks += 1;
        if self.blocks.is_multiple_of(DECLARED_AGAIN) {
            self.known.clear();
        }
        Ok(())
    }

    /// Drops the oldest pending seconds.
    fn lose(&mut self, seconds: usize) {
        let seconds = seconds.min(self.pending.len());
        self.pending.drain(..seconds);
        self.in_tail = self.in_tail.saturating_sub(seconds);
        self.store.skip(seconds);
        self.recorded.lost += seconds as u64;
    }

    fn report(&mut self, written: std::io::Result<()>, say: &mut dyn FnMut(&str)) {
        match (written, &self.failure) {
            (Err(cause), None) => {
                say(&format!(
                    "cannot write: {cause}; the last {} are held in memory until there is room",
                    counted(HELD_SECONDS, "second")
                ));
                self.failure = Some(cause.to_string());
            }
            (Ok(()), Some(_)) => {
                self.failure = None;
                let lost = match self.recorded.lost {
                    0 => String::new(),
                    lost => format!("; {lost} seconds are lost"),
                };
                say(&format!("writes again{lost}"));
            }
            _ => {}
        }
    }

    pub(crate) fn finish(mut self) -> Result<Recorded, (usize, std::io::Error)> {
        self.flush().map_err(|cause| (self.pending.len(), cause))?;
        self.recorded.bytes = self.store.bytes();
        Ok(self.recorded)
    }
}
