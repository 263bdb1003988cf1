// SPDX-License-Identifier: Apache-2.0
//! `vtax cap`: an allocation of processor time that includes the host's work. A quota limits a guest's own time and
//! none of the host's work for it: of two guests with equal quotas, the one with more I/O gets more of the machine
//! (Cherkasova & Gardner, §5: left open by Xen's scheduler). Once an interval, the ledger gives the total cost of each
//! guest, and the quota of its control group is set so that its own time and the host's time for it together stay
//! within its share.
//!
//! The data flow of each guest: [`Ledger`](vtax_charge::Ledger) → `Controller` (the quota that its share
//! leaves) → `Limit` (the file of its control group, or its cap under Xen, journalled before the first change).

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod controller;
mod error;
mod limit;
mod quota;
#[cfg(test)]
mod tests;

use controller::Controller;
use limit::Limit;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vtax_charge::Problems;
use vtax_charge::Stage;
use vtax_charge::pace::Pace;
use vtax_charge::{ChargedGuest, LedgerSnapshot, Watch};
use vtax_host::HostError;
use vtax_host::journal::Journal;
use vtax_inventory::Hierarchy;
use vtax_observe::ObserveError;

/// Limit on the guests in the journal that have ended. Beyond it, all limits are restored and set anew, so that the
/// journal stays short on a host whose guests come and go for months.
const MOST_GONE: usize = 256;

/// Intervals between two checks whether a guest without a limit has one.
const LOOK_AGAIN: u64 = 10;

/// Options of `vtax cap`.
#[derive(Debug, Clone)]
pub struct CapOptions {
    /// Time between two readings of the ledger.
    pub interval: Duration,
    /// Number of intervals; `None` runs until stopped.
    pub count: Option<u64>,
    /// Shares of guests by name, in processors. Each guest of a name gets the whole share.
    pub guests: BTreeMap<String, f64>,
    /// Share of every other guest. `None`: the limit of the guest, and no share where it has none.
    pub each: Option<f64>,
    /// Reports the quotas without setting a limit.
    pub is_rehearsal: bool,
    /// Writes JSON lines instead of a table.
    pub json: bool,
}

/// The reason that a run failed.
#[derive(Debug, thiserror::Error)]
pub enum CapError {
    /// The output cannot be written.
    #[error("cannot write what was capped: {0}")]
    Write(#[from] io::Error),
    /// The host cannot be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// A limit could not be journalled or restored.
    #[error(transparent)]
    Host(#[from] HostError),
    /// No control group hierarchy accounts processor time.
    #[error(
        "no control group hierarchy accounts CPU time (neither v1's cpuacct nor v2 is mounted): guests have no quota \
         here"
    )]
    NoGroups,
    /// Some named guests were never held.
    #[error("{}", never_held(.names, .here))]
    NeverHeld {
        /// The names without a held guest.
        names: Vec<String>,
        /// The names of the present guests.
        here: Vec<String>,
    },
}

fn never_held(names: &[String], here: &[String]) -> String {
    format!(
        "no guest called {} was held; {}",
        names.join(" or "),
        in_words(here)
    )
}

/// Lists the present guests in a sentence.
fn in_words(here: &[String]) -> String {
    if here.is_empty() {
        "there are no guests".to_owned()
    } else {
        format!("there are: {}", here.join(", "))
    }
}

/// A guest's use and quota in one interval, in processors (seconds of processor time per second).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Held<'a> {
    /// End of the interval (RFC 3339, UTC).
    pub ended: String,
    /// The guest's name.
    pub guest: &'a str,
    /// Limit on its total use.
    pub share: f64,
    /// Its total use.
    pub used: f64,
    /// The part of `used` by its own code.
    pub own: f64,
    /// The part of `used` by the host's work for it.
    pub host: f64,
    /// Limit on its own time after the interval.
    pub quota: f64,
    /// Whether the quota was set, not only reported.
    pub is_set: bool,
}

struct Guest {
    limit: Limit,
    controller: Controller,
    /// Processor time charged since the guest is held, and the elapsed time, in seconds.
    charged: f64,
    span: f64,
    /// The last reported problem, which is not repeated.
    problem: Option<String>,
    is_there: bool,
}

/// Holds guests to their shares until `stop` is set or `count` intervals are over, then restores every limit.
///
/// # Errors
/// When the host cannot be read in the first pass, the journal cannot be written, or a limit cannot be restored. A
/// guest whose limit cannot be set is reported and not changed.
pub fn run(
    mut watch: Watch,
    options: &CapOptions,
    journal: &mut Journal,
    stop: &AtomicBool,
    out: &mut impl Write,
    say: &mut dyn FnMut(&str),
) -> Result<(), CapError> {
    let hierarchy = Hierarchy::find(Path::new("/sys")).ok_or(CapError::NoGroups)?;
    for note in watch.notes() {
        say(note);
    }
    let mut cap = Cap::new(hierarchy, options);
    let first = watch.pass()?;
    cap.interval(&first, journal, out, say)?;
    cap.tell_missing(&first, say);
    let mut pace = Pace::new(options.interval);
    let mut left = options.count;
    let outcome = loop {
        if left == Some(0) || !pace.wait(stop) || stop.load(Ordering::SeqCst) {
            break Ok(());
        }
        left = left.map(|left| left - 1);
        match watch.pass() {
            Ok(snapshot) => match cap.interval(&snapshot, journal, out, say) {
                Err(CapError::Write(cause)) if cause.kind() == ErrorKind::BrokenPipe => {
                    break Ok(());
                }
                Err(error) => break Err(error),
                Ok(()) => {}
            },
            // The next pass covers this one's time too.
            Err(error) => say(&error.to_string()),
        }
    };
    // The limits are restored on every outcome.
    journal.undo_all()?;
    say_left(journal, say);
    cap.tell_means(say);
    outcome.and_then(|()| cap.check_named())
}

struct Cap<'a> {
    hierarchy: Hierarchy,
    options: &'a CapOptions,
    /// Held guests with their names, by number.
    held: BTreeMap<u32, (String, Guest)>,
    /// Guests that cannot be held. The reason is reported once.
    refused: BTreeSet<u32>,
    /// Guests without a share, since they have no limit.
    unlimited: BTreeSet<u32>,
    /// Names of which no guest was held yet.
    awaited: BTreeSet<String>,
    /// Number of guests of a name at its last report.
    several: BTreeMap<String, usize>,
    /// The names of the last interval's guests.
    here: Vec<String>,
    problems: Problems,
    intervals: u64,
    gone: usize,
}

/// Returns the share given for a guest's unique name, or for the name that others may share, with that name.
fn named<'a>(options: &'a CapOptions, guest: &ChargedGuest) -> Option<(&'a String, f64)> {
    let names = [&guest.name, &guest.called];
    let mut shares = names
        .into_iter()
        .filter_map(|name| options.guests.get_key_value(name));
    shares.next().map(|(name, share)| (name, *share))
}

impl<'a> Cap<'a> {
    fn new(hierarchy: Hierarchy, options: &'a CapOptions) -> Self {
        Self {
            hierarchy,
            options,
            held: BTreeMap::new(),
            refused: BTreeSet::new(),
            unlimited: BTreeSet::new(),
            awaited: options.guests.keys().cloned().collect(),
            several: BTreeMap::new(),
            here: Vec::new(),
            problems: Problems::default(),
            intervals: 0,
            gone: 0,
        }
    }

    fn interval(
        &mut self,
        snapshot: &LedgerSnapshot,
        journal: &mut Journal,
        out: &mut impl Write,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), CapError> {
        self.problems.report_new(&snapshot.problems, say);
        self.forget_gone(snapshot, journal, say)?;
        if self.intervals.is_multiple_of(LOOK_AGAIN) {
            self.unlimited.clear();
        }
        self.intervals += 1;
        self.here = names(snapshot);
        self.tell_several(snapshot, say);
        for guest in &snapshot.guests {
            let held = self.held.get(&guest.number);
            if !held.is_some_and(|(_, held)| held.limit.is_of(guest)) {
                self.begin(guest, say);
            }
            let Some((_, held)) = self.held.get_mut(&guest.number) else {
                continue;
            };
            let span = snapshot.ledger.span;
            let Some(accounted) = held.limit.accounted(guest) else {
                continue;
            };
            // The first reading of a guest only starts an interval.
            if !std::mem::replace(&mut held.is_there, true) || span.0 == 0 {
                continue;
            }
            let (seconds, stages) = (span.as_secs_f64(), &guest.used.stages);
            held.charged += stages.total().as_secs_f64();
            held.span += seconds;
            let quota = held
                .controller
                .next(accounted, stages.total().as_secs_f64(), seconds);
            let mut is_set = false;
            if !self.options.is_rehearsal {
                match held.limit.set(quota, journal) {
                    Ok(None) => is_set = true,
                    Ok(Some(why)) => {
                        say(&format!(
                            "the limit of {}: {why}; that one is the guest's at the end",
                            guest.name
                        ));
                        // The guest is held again, from its new limit.
                        self.held.remove(&guest.number);
                        continue;
                    }
                    Err(error) => {
                        let problem = error.to_string();
                        if held.problem.as_ref() != Some(&problem) {
                            say(&format!("{} is not held: {problem}", guest.name));
                            held.problem = Some(problem);
                        }
                    }
                }
            }
            let own = stages.get(Stage::Vcpu).as_secs_f64() / seconds;
            let used = stages.total().as_secs_f64() / seconds;
            let held = Held {
                ended: snapshot.ended.to_string(),
                guest: &guest.name,
                share: held.controller.share(),
                used,
                own,
                host: used - own,
                quota,
                is_set,
            };
            write(&held, self.options.json, out)?;
        }
        out.flush()?;
        Ok(())
    }

    /// Starts to hold a guest, where it has a share and a limit can be set.
    fn begin(&mut self, guest: &ChargedGuest, say: &mut dyn FnMut(&str)) {
        if self.refused.contains(&guest.number) || self.unlimited.contains(&guest.number) {
            return;
        }
        let named = named(self.options, guest);
        let asked = named.map(|(_, share)| share).or(self.options.each);
        let limit = match Limit::from_guest(guest, &self.hierarchy) {
            Ok(limit) => limit,
            Err(why) => {
                if asked.is_some() {
                    say(&format!(
                        "{} cannot be held to its share: {why}",
                        guest.name
                    ));
                }
                self.refused.insert(guest.number);
                return;
            }
        };
        let Some(share) = asked.or(limit.before()) else {
            self.unlimited.insert(guest.number);
            return;
        };
        let held = Guest {
            limit,
            controller: Controller::new(share),
            charged: 0.0,
            span: 0.0,
            problem: None,
            is_there: false,
        };
        if let Some((name, _)) = named {
            self.awaited.remove(name);
        }
        self.held.insert(guest.number, (guest.name.clone(), held));
    }

    fn forget_gone(
        &mut self,
        snapshot: &LedgerSnapshot,
        journal: &mut Journal,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), CapError> {
        let is_here = |number: &u32| snapshot.guests.iter().any(|guest| guest.number == *number);
        self.refused.retain(&is_here);
        let before = self.held.len();
        self.held.retain(|number, _| is_here(number));
        self.gone += before - self.held.len();
        if self.gone > MOST_GONE {
            journal.undo_all()?;
            say_left(journal, say);
            for (_, guest) in self.held.values_mut() {
                guest.limit.forget();
            }
            self.gone = 0;
        }
        Ok(())
    }

    /// Reports named guests that are absent, and that no guest is held.
    fn tell_missing(&self, snapshot: &LedgerSnapshot, say: &mut dyn FnMut(&str)) {
        let is_here = |name: &&String| {
            let mut guests = snapshot.guests.iter();
            guests.any(|guest| [&guest.name, &guest.called].contains(name))
        };
        for name in self.options.guests.keys().filter(|name| !is_here(name)) {
            say(&format!(
                "no guest is called {name} yet; {}",
                in_words(&self.here)
            ));
        }
        if self.held.is_empty() {
            say(
                "no guest is limited yet: a guest needs --guest, --each or a limit of its control group",
            );
        }
    }

    /// Reports names that several guests have.
    fn tell_several(&mut self, snapshot: &LedgerSnapshot, say: &mut dyn FnMut(&str)) {
        for (name, share) in &self.options.guests {
            let of_name =
                |guest: &&ChargedGuest| named(self.options, guest).map(|(n, _)| n) == Some(name);
            let count = snapshot.guests.iter().filter(of_name).count();
            let printed = self.several.entry(name.clone()).or_insert(1);
            if count > *printed {
                *printed = count;
                say(&format!(
                    "{count} guests are called {name}: each is held to {share} processors"
                ));
            }
        }
    }

    /// # Errors
    /// When there are names of which no guest was held.
    fn check_named(self) -> Result<(), CapError> {
        if self.awaited.is_empty() {
            return Ok(());
        }
        Err(CapError::NeverHeld {
            names: self.awaited.into_iter().collect(),
            here: self.here,
        })
    }

    fn tell_means(&self, say: &mut dyn FnMut(&str)) {
        for (name, guest) in self.held.values().filter(|(_, guest)| guest.span > 0.0) {
            let share = guest.controller.share();
            let mean = guest.charged / guest.span;
            say(&format!(
                "{name}: {mean:.3} of its {share:.3} processors on average over {:.0} s ({:.0} %)",
                guest.span,
                100.0 * mean / share
            ));
        }
    }
}

fn names(snapshot: &LedgerSnapshot) -> Vec<String> {
    let guests = snapshot.guests.iter();
    guests.map(|guest| guest.name.clone()).collect()
}

/// Reports limits that were not restored, since another program set them.
fn say_left(journal: &mut Journal, say: &mut dyn FnMut(&str)) {
    for left in journal.take_left() {
        say(&left.to_string());
    }
}

fn write(held: &Held<'_>, json: bool, out: &mut impl Write) -> Result<(), io::Error> {
    if json {
        serde_json::to_writer(&mut *out, held)?;
        return writeln!(out);
    }
    let time = held.ended.get(11..19).unwrap_or("");
    let verb = if held.is_set { "quota" } else { "would be" };
    writeln!(
        out,
        "{time}  {:<24} share {:.3}  used {:.3} = own {:.3} + host {:.3}  {verb} {:.3}",
        held.guest, held.share, held.used, held.own, held.host, held.quota
    )
}
