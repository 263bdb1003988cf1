// SPDX-License-Identifier: Apache-2.0
//! A guest's turn: taken from the queue or booted, run for a slice, and put back.

use super::super::queue::Next;
use super::super::{
    Active, Answer, Guest, GuestState, Holding, LiveGuest, MAX_ANSWER, Population, ReplyTo,
    Storage, activate, lock,
};
use super::event_loop::{Timer, Worker};
use crate::error::{Error, Result};
use crate::machine::devices::Devices;
use crate::machine::kvm::{Slot, Tenancy};
use crate::machine::pack::{pack, unpack};
use crate::machine::{Clock, Fault, Stop, run};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most serial output of a slice. More is dropped, because a serial line cannot carry it in a millisecond.
const MAX_SLICE_OUTPUT: usize = 64 << 10;

impl Worker {
    /// Gives one guest its turn. Returns its processor time in ns; `None` when no guest waits.
    pub fn turn(&mut self) -> Result<Option<u64>> {
        let shared = Arc::clone(&self.shared);
        let population = &shared.population;
        if population.held.load(Ordering::Acquire) {
            return Ok(None);
        }
        // Boots and turns alternate, so that neither spinning guests nor a million boots delay the others.
        let boots = self.boots && population.boots_wait();
        self.boot_next = !self.boot_next && boots;
        let offset = if self.boot_next || boots && lock(&population.queue).is_empty() {
            population.next_boot()
        } else {
            None
        };
        let booting = offset.is_some();
        if let Some(offset) = offset {
            population.reserve.check(offset, population.plan.holding)?;
        }
        let number = match offset {
            Some(offset) => population.plan.first + offset,
            None => {
                let now = self.clock.now();
                match lock(&population.queue).pop(now) {
                    Next::Guest(number) => number,
                    Next::Nobody => return Ok(None),
                    Next::Others => {
                        self.ahead = true;
                        return Ok(None);
                    }
                }
            }
        };
        // One worker boots all live guests.
        if population.runnable(population.plan.holding == Holding::Parked) {
            shared.mailboxes.wake_one();
        }
        let Some(cell) = population.guest(number) else {
            return Ok(Some(0));
        };
        let (body, inbox) = {
            let mut guest = lock(cell);
            let taken = match activate(&mut guest) {
                // The guest got input before its boot: it is in the queue and boots from there.
                Ok(active) if booting && active.queued => None,
                Ok(active) => {
                    active.queued = false;
                    active
                        .body
                        .take()
                        .map(|body| (body, std::mem::take(&mut active.inbox)))
                }
                Err(_) => None,
            };
            let Some(taken) = taken else {
                population
                    .booted
                    .fetch_add(u32::from(booting), Ordering::Relaxed);
                return Ok(Some(0));
            };
            taken
        };
        self.slice.arm();
        let started = thread_time();
        let (stop, body, deadline) = self.run(number, body, &inbox)?;
        let ran = thread_time().saturating_sub(started);
        population.turns.fetch_add(1, Ordering::Relaxed);
        if booting {
            population.booted.fetch_add(1, Ordering::Relaxed);
        }
        let output = std::mem::take(&mut self.output);
        let mut answers = Vec::new();
        if population.listening.load(Ordering::Acquire) != 0
            && !output.is_empty()
            && let Some(reply) = lock(&population.listeners).get(&number)
        {
            answers.push((*reply, Answer::Output(output.clone())));
        }
        {
            let mut guest = lock(cell);
            if let Guest::Active(active) = &mut *guest {
                active.runtime = active.runtime.saturating_add(ran);
                pass_output(active, &output, &mut answers);
                active.body = Some(body);
                // Under the guest's lock, so that another worker's next deadline is stored later.
                if let (Some(deadline), Stop::Halted) = (deadline, stop)
                    && lock(&population.ticking).insert(number, deadline) != Some(deadline)
                {
                    self.timers.set(deadline, Timer::Guest(number));
                }
                match stop {
                    Stop::Dead(fault) => {
                        let replies = active.asks.drain(..).filter_map(|ask| ask.reply);
                        answers.extend(replies.map(|reply| (reply, Answer::Dead(fault))));
                        *guest = Guest::Dead(fault);
                        population.dead.fetch_add(1, Ordering::Relaxed);
                    }
                    Stop::Preempted => population.enqueue(number, active),
                    Stop::Halted if !active.inbox.is_empty() => population.enqueue(number, active),
                    Stop::Halted if active.asks.is_empty() => {
                        if let Some(body) = active.body.take() {
                            *guest = Guest::Idle(body);
                        }
                    }
                    Stop::Halted => {}
                }
            }
        }
        self.output = output;
        self.output.clear();
        for (reply, answer) in answers {
            self.deliver(reply, answer);
        }
        Ok(Some(ran))
    }

    /// Runs a guest for a slice. Its output is in `self.output`; the last result is its timer.
    fn run(
        &mut self,
        number: u32,
        body: GuestState,
        inbox: &[u8],
    ) -> Result<(Stop, GuestState, Option<u64>)> {
        let shared = Arc::clone(&self.shared);
        let population = &shared.population;
        let mut held = match body {
            GuestState::LiveGuest(held) => held,
            GuestState::Stored(stored) => match (&population.storage, &mut self.slot) {
                (Storage::Parked(reset), Some((slot, arena))) => {
                    let mut devices = unpack(&stored, slot, reset)?;
                    devices.receive(inbox);
                    let (clock, output) = (&mut self.clock, &mut self.output);
                    let mut stop = run_slice(population, slot, &mut devices, clock, output)?;
                    if slot.paging() {
                        stop = Stop::Dead(Fault::Paging);
                    }
                    if let Stop::Dead(_) = stop {
                        // The vCPU of a dead guest is not used again.
                        slot.memory_mut().fill(0);
                        self.slice.disarm();
                        let image = &population.plan.image;
                        *slot = Slot::new(&population.host, arena, 0, image, Tenancy::Turns)?;
                        return Ok((stop, GuestState::Stored(Box::default()), None));
                    }
                    let deadline = devices.deadline();
                    let stored = pack(slot, &devices, reset)?;
                    return Ok((stop, GuestState::Stored(stored), deadline));
                }
                (Storage::Live(arena), _) => {
                    let index = (number - population.plan.first) as usize;
                    let image = &population.plan.image;
                    // The kernel aborts making a VM when a signal arrives.
                    self.slice.disarm();
                    let slot = Slot::new(&population.host, arena, index, image, Tenancy::One)?;
                    self.slice.arm();
                    Box::new(LiveGuest {
                        slot,
                        devices: Devices::default(),
                    })
                }
                (Storage::Parked(_), None) => {
                    return Err(Error::State("a worker of parked guests has no slot"));
                }
            },
        };
        let LiveGuest { slot, devices } = &mut *held;
        devices.receive(inbox);
        let (clock, output) = (&mut self.clock, &mut self.output);
        let stop = run_slice(population, slot, devices, clock, output)?;
        let deadline = devices.deadline();
        Ok((stop, GuestState::LiveGuest(held), deadline))
    }
}

/// Runs a guest until it stops or is preempted, and counts the output beyond the most of a slice.
fn run_slice(
    population: &Population,
    slot: &mut Slot,
    devices: &mut Devices,
    clock: &mut Clock,
    output: &mut Vec<u8>,
) -> Result<Stop> {
    let (stop, lost) = run(slot, devices, clock, None, output, MAX_SLICE_OUTPUT)?;
    population.lost_output.fetch_add(lost, Ordering::Relaxed);
    Ok(stop)
}

/// Processor time of this thread, in ns. It leaves out the time that the host gave to other threads.
fn thread_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Passes a guest's output to the requests that wait for it.
fn pass_output(active: &mut Active, output: &[u8], answers: &mut Vec<(ReplyTo, Answer)>) {
    let mut rest = output;
    while !active.asks.is_empty() && !rest.is_empty() {
        let end = rest.iter().position(|b| *b == b'\n').map(|i| i + 1);
        let (part, behind) = rest.split_at(end.unwrap_or(rest.len()));
        rest = behind;
        active.answer.extend(
            part.iter()
                .take(MAX_ANSWER + 1 - active.answer.len().min(MAX_ANSWER + 1)),
        );
        let too_long = active.answer.len() > MAX_ANSWER;
        if end.is_none() && !too_long {
            return;
        }
        let line = std::mem::take(&mut active.answer);
        if let Some(ask) = active.asks.pop_front() {
            let answer = if too_long {
                Answer::TooLong
            } else {
                Answer::Line(line)
            };
            answers.extend(ask.reply.map(|reply| (reply, answer)));
        }
        if let Some(next) = active.asks.front() {
            active.inbox.extend(&next.request);
        }
    }
}
