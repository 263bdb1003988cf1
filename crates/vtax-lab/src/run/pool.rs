//! A pool that counts what the target's host does, during one trial.

use super::Log;
use super::elsewhere::{Hosted, Watched};
use super::instruments::SampleSink;
use crate::LabError;
use crate::found::xenapi::Counting;
use crate::place::actor::{Gathered, Seen};
use crate::place::clocks::{Alignment, Offset};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vtax_core::{Nanoseconds, Source};
use vtax_host::HostError;
use vtax_host::cell::TARGET;
use vtax_host::signals::Signals;

/// What is asked for before the first mark: rows that are not there yet cannot be had later.
const BEFORE: u64 = 15;
/// A row is there so long after its step, beside the step itself.
const LATE: u64 = 10;
/// Between two questions for it.
const PAUSE: Duration = Duration::from_secs(1);

/// The pool, and its clock before the trial.
pub(super) struct PoolWatch {
    counting: Counting,
    before: Offset,
}

impl PoolWatch {
    /// Begins, where a pool counts for the target.
    pub fn begin(counting: Option<Counting>) -> Result<Option<Self>, HostError> {
        let begun = counting.map(|counting| {
            let before = counting.clock()?;
            Ok(Self { counting, before })
        });
        begun.transpose()
    }

    /// Waits until what is between two marks has been counted, and adds it to our samples.
    pub fn end(
        self,
        (first, last): (Nanoseconds, Nanoseconds),
        signals: &Signals,
        samples: &SampleSink,
        log: &mut Log<'_>,
    ) -> Result<Watched, LabError> {
        let clocks = Alignment {
            before: self.before,
            after: self.counting.clock()?,
        };
        let host = self.counting.host();
        let theirs = |ours: Nanoseconds| (i128::from(ours.0) + clocks.after.ahead) / 1_000_000_000;
        let start = u64::try_from(theirs(first)).unwrap_or(0);
        let until = u64::try_from(theirs(last)).unwrap_or(0) + 1;
        let began = Instant::now();
        log.phase("wait for the pool's counters");
        let updates = loop {
            signals.check()?;
            let updates = self.counting.updates(start.saturating_sub(BEFORE))?;
            let newest = updates.rows.last().map_or(0, |(at, _)| *at);
            if newest >= until {
                break updates;
            }
            let limit = 2 * updates.step + LATE;
            if began.elapsed() >= Duration::from_secs(limit) {
                return Err(LabError::Host(HostError::Timeout {
                    what: format!("the counters of {host} for the end of the measured part"),
                    seconds: limit,
                    evidence: format!(
                        "its newest are {} s older: is xcp-rrdd running there?",
                        until - newest
                    ),
                }));
            }
            std::thread::sleep(PAUSE);
        };
        let unusable = |why: String| HostError::Protocol {
            peer: format!("/rrd_updates of {host}"),
            detail: why,
        };
        let (columns, processors) = self.counting.counters(&updates).map_err(unusable)?;
        let gathered = Gathered {
            columns,
            failures: Vec::new(),
        };
        samples.add(&gathered, TARGET, &clocks)?;
        let step = updates.step;
        let shortest = Nanoseconds(2 * step * 1_000_000_000);
        if last.saturating_since(first) < shortest {
            log.line(&format!(
                "the pool counts every {step} s: no processor time of {host} for a measured part of less than {} s; make `duration` longer",
                2 * step
            ));
        }
        let moved = (!self.counting.has_stayed()?)
            .then(|| format!("the VM moved to another host than {host} in the trial"));
        let counted = format!("by the pool: averages of {step} s");
        let clock = |offset: Offset| offset.ahead.to_string();
        Ok(Watched {
            environment: BTreeMap::from([
                ("counted".to_owned(), counted),
                ("processors".to_owned(), processors.to_string()),
                ("clock.before.ahead_ns".to_owned(), clock(clocks.before)),
                ("clock.after.ahead_ns".to_owned(), clock(clocks.after)),
            ]),
            suspect: moved.or_else(|| clocks.suspicion()),
            hosted: Some(Hosted {
                seen: Seen {
                    is_vm: true,
                    source: Source::Measured,
                    facts: BTreeMap::new(),
                },
                processors,
                gathered,
                clocks,
                shortest,
            }),
        })
    }
}
