// SPDX-License-Identifier: Apache-2.0
//! A guest's control queue, where its front end forwards it.

use super::guest::Guest;
use super::packet::BATCH;
use crate::control::coalesce::{Coalesce, Parameters};
use crate::control::queue::{Command, ERR, LONGEST_COMMAND, OK};
use crate::hold::Nanos;
use crate::memory::dirty_log;
use crate::memory::{self, Segment, own};
use crate::ring::{Direction, Place, RingFault, Virtqueue, for_ring};

/// The answer to a command: [`OK`] or [`ERR`], then the command's result.
type Answer = (u8, Option<Parameters>);

impl Guest {
    /// Answers up to a batch of commands. Others remain for the next call.
    ///
    /// # Errors
    /// The queue's number and its fault, when the ring is invalid. The queue has stopped then.
    pub fn serve_control(&mut self, now: Nanos) -> Result<(), (usize, RingFault)> {
        let served = self.answer_commands(now);
        served.map_err(|fault| (self.control_fault(fault), fault))
    }

    fn answer_commands(&mut self, now: Nanos) -> Result<(), RingFault> {
        self.control_due = None;
        if !self.is_controlled() {
            return Ok(());
        }
        for _ in 0..BATCH {
            let mut segments = std::mem::take(&mut self.segments);
            segments.clear();
            let request = self.take_request(&mut segments);
            let served = match request {
                Ok(Some(place)) => self
                    .serve_request(&segments, now)
                    .map(|len| Some((place, len))),
                other => other.map(|_| None),
            };
            self.segments = segments;
            let Some(ring) = self.control.running_ring() else {
                return Ok(());
            };
            let log = dirty_log(self.log.as_ref(), self.features);
            let served = served?;
            let wants_signal = for_ring!(ring, ring => {
                match served {
                    Some((place, len)) => ring.give(place, len),
                    None => {
                        if !ring.arm(log)? {
                            return Ok(());
                        }
                    }
                }
                ring.publish(log);
                ring.wants_signal()
            });
            if wants_signal {
                self.control.signal();
            }
        }
        self.control_due = Some(now);
        Ok(())
    }

    fn take_request(&mut self, segments: &mut Vec<Segment>) -> Result<Option<Place>, RingFault> {
        let Some(ring) = self.control.running_ring() else {
            return Ok(None);
        };
        let chain = for_ring!(ring, ring => {
            ring.take(&self.memory, Direction::Request, segments)
        })?;
        Ok(chain.map(|chain| chain.place))
    }

    /// Answers one command. Returns the bytes of the answer.
    fn serve_request(&mut self, segments: &[Segment], now: Nanos) -> Result<u32, RingFault> {
        let split = segments.iter().position(|segment| segment.writable);
        let split = split.unwrap_or(segments.len());
        let (to_read, to_write) = segments.split_at(split);
        if to_write.iter().any(|segment| !segment.writable) {
            return Err(RingFault::Direction);
        }
        // One byte more than the longest command shows that a command is too long.
        let mut request = [0; LONGEST_COMMAND + 1];
        let len = memory::peek(to_read, &mut request);
        let (status, result) = if len > LONGEST_COMMAND {
            self.counters.totals.control_malformed += 1;
            (ERR, None)
        } else {
            self.obey(&request[..len], now)
        };
        let mut answer = vec![status];
        if let Some(result) = result {
            answer.extend(result.max_packets.to_le_bytes());
            answer.extend(result.max_usecs.to_le_bytes());
        }
        let room: u64 = to_write.iter().map(|segment| u64::from(segment.len)).sum();
        answer.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        memory::copy(&[], &[own(&answer)], to_write);
        if let Some(log) = dirty_log(self.log.as_ref(), self.features) {
            super::transfer::mark(log, to_write, answer.len());
        }
        // At most nine bytes.
        Ok(u32::try_from(answer.len()).unwrap_or(0))
    }

    fn obey(&mut self, request: &[u8], now: Nanos) -> Answer {
        let Ok(command) = Command::parse(request, self.features) else {
            self.counters.totals.control_malformed += 1;
            return (ERR, None);
        };
        let answer = match command {
            Command::Filter => (OK, None),
            Command::Address(mac) => {
                self.config_space.mac = Some(mac);
                (OK, None)
            }
            Command::Pairs(pairs) => (self.use_pairs(pairs.into()), None),
            Command::Coalesce(coalesce) => self.coalesce(coalesce, now),
        };
        self.counters.totals.control_frames += 1;
        answer
    }

    fn use_pairs(&mut self, pairs: usize) -> u8 {
        if !(1..=self.pairs()).contains(&pairs) {
            return ERR;
        }
        self.asked_pairs = pairs;
        self.count_running();
        OK
    }

    fn coalesce(&mut self, command: Coalesce, now: Nanos) -> Answer {
        if let Coalesce::SetQueue(queue, _) | Coalesce::GetQueue(queue) = command
            && !self.is_enabled(queue.into())
        {
            return (ERR, None);
        }
        let Coalesce::GetQueue(queue) = command else {
            let due = self.leases.coalesce(now, command);
            if due <= now {
                self.settle_budget(now);
            } else {
                self.budget_due = Some(due);
            }
            return (OK, None);
        };
        let bound = self.leases.bound(now, queue.into());
        let result = Parameters {
            max_packets: bound.packets,
            max_usecs: bound.budget.whole_micros(),
        };
        (OK, Some(result))
    }
}
