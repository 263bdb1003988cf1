// SPDX-License-Identifier: Apache-2.0
//! Counters that a pool keeps of the target and its host.

use super::counters::{HostCounters, RemoteReport};
use super::{Ending, RemoteCounters};
use crate::LabError;
use crate::external::xenapi::HostStatistics;
use crate::place::actor::{GuestView, RemoteSamples};
use crate::place::clocks::{Alignment, Offset};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, Source};
use vtax_host::HostError;
use vtax_host::xenapi::{Updates, UpdatesError};

/// The time from the first requested row to the first mark, in seconds.
const LEAD_SECONDS: u64 = 15;
/// The longest delay of a row after its step, in seconds.
const ROW_DELAY_SECONDS: u64 = 10;
/// The interval between two requests for rows.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// The statistics of the target's host, and the host's clock before the trial.
pub(super) struct PoolCounters {
    statistics: HostStatistics,
    clock_before: Offset,
}

impl PoolCounters {
    /// Reads the host's clock. The pool counts at all times.
    ///
    /// # Errors
    /// When the pool does not answer.
    pub fn begin(statistics: HostStatistics) -> Result<Self, HostError> {
        Ok(Self {
            clock_before: statistics.clock()?,
            statistics,
        })
    }

    /// Waits for the rows from before the first mark until after the last one.
    fn rows(&self, clocks: &Alignment, ending: &mut Ending<'_, '_>) -> Result<Updates, LabError> {
        let host_second = |at: Nanoseconds| {
            let at = (i128::from(at.0) + clocks.after.ahead) / 1_000_000_000;
            u64::try_from(at).unwrap_or(0)
        };
        let start = host_second(ending.marks.0).saturating_sub(LEAD_SECONDS);
        let until = host_second(ending.marks.1) + 1;
        let began = Instant::now();
        ending.log.phase("wait for the pool's counters");
        loop {
            ending.signals.check()?;
            let updates = self.statistics.updates(start)?;
            let newest = updates.rows.last().map_or(0, |(at, _)| *at);
            if newest >= until {
                return Ok(updates);
            }
            let limit = 2 * updates.step + ROW_DELAY_SECONDS;
            if began.elapsed() >= Duration::from_secs(limit) {
                let host = self.statistics.host();
                return Err(LabError::Host(HostError::Timeout {
                    what: format!("the counters of {host} for the end of the measured part"),
                    seconds: limit,
                    evidence: format!(
                        "its newest are {} s older: is xcp-rrdd running there?",
                        until - newest
                    ),
                }));
            }
            std::thread::sleep(REQUEST_INTERVAL);
        }
    }
}

impl RemoteCounters for PoolCounters {
    fn end(&self, ending: &mut Ending<'_, '_>) -> Result<RemoteReport, LabError> {
        let clocks = Alignment {
            before: self.clock_before,
            after: self.statistics.clock()?,
        };
        let updates = self.rows(&clocks, ending)?;
        let host = self.statistics.host();
        let unusable = |why: UpdatesError| HostError::Protocol {
            peer: format!("/rrd_updates of {host}"),
            detail: why.to_string(),
        };
        let (columns, processors) = self.statistics.counters(&updates).map_err(unusable)?;
        let samples = RemoteSamples {
            columns,
            failures: Vec::new(),
        };
        ending.samples.add(&samples, &Owner::Target, &clocks)?;
        let step = updates.step;
        let shortest = Nanoseconds(2 * step * 1_000_000_000);
        if ending.marks.1.saturating_since(ending.marks.0) < shortest {
            ending.log.line(&format!(
                "the pool counts every {step} s: no processor time of {host} for a measured part of less than {} s; make `duration` longer",
                2 * step
            ));
        }
        let moved = (!self.statistics.has_stayed()?)
            .then(|| format!("the VM moved to another host than {host} in the trial"));
        let facts = [
            ("counted", format!("by the pool: averages of {step} s")),
            ("processors", processors.to_string()),
            ("clock.before.ahead_ns", clocks.before.ahead.to_string()),
            ("clock.after.ahead_ns", clocks.after.ahead.to_string()),
        ];
        Ok(RemoteReport {
            environment: facts.map(|(name, fact)| (name.to_owned(), fact)).into(),
            suspect: moved.or_else(|| clocks.suspicion()),
            counters: Some(HostCounters {
                target: GuestView {
                    is_vm: true,
                    source: Source::Measured,
                    facts: BTreeMap::new(),
                },
                processors,
                samples,
                clocks,
                shortest,
            }),
        })
    }
}
