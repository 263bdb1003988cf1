// SPDX-License-Identifier: Apache-2.0
//! The counted method, which needs only counters: the time of soft interrupts is divided by the exchanges, each kind
//! with its cost (Cherkasova & Gardner 2005 divided the driver domain's time by exchanged pages).
//!
//! # Source of the time
//!
//! - A kernel that accounts interrupts by a clock ([`IrqAccounting::is_by_clock`]) gives the interval's time; only
//!   the division is modelled.
//! - Other kernels sample the time at their tick. Work that is synchronous with a timer always falls at the same phase
//!   of the tick, which then finds its soft interrupts always or never, for as long as the work continues; averaging
//!   does not help. Where perf may sample, samples of `cpu-clock` at other times replace the tick's
//!   ([`ClockSamples`]); they also show the tasks that the soft interrupts interrupted.
//! - Where perf may not sample, the tick's samples are used, and the stated error ranges from zero to twice the
//!   charge, or to three times the time that the weights alone predict.
//!
//! # Computation
//!
//! 1. [`CostModel`] learns the cost of an exchange of each kind over minutes.
//! 2. An interval's time combines the model's prediction for its exchanges and the observed time, weighted by variance.
//! 3. The time is divided among the guests and the host by the model's prediction for the exchanges of each.
//! 4. Unless the kernel accounts interrupts separately, each guest's own time contains soft interrupts, for any
//!    owner, that interrupted it. That part is subtracted: in proportion to the samples in its context in this and the
//!    last intervals; without samples, in proportion to the time that each ran.
//!
//! Busy time itself is known well (processors × time − idle, by the idle clock), and so is the run time of tasks. The
//! steps above only move time between accounts, and the ledger still sums to the total.
//!
//! # Errors
//!
//! Each figure has the half-width of an interval that holds the true value in at least 9 of 10 cases: twice the root of
//! the sum of the variances of the model, of the samples, and of the model's omission that an exchange costs different
//! guests differently (by a quarter, for the part of the time that is shared with others).

use super::Method;
use super::cost::{Amounts, CostModel, Estimate};
use super::exchanges::{GuestExchanges, IntervalExchanges};
use super::irq_accounting::IrqAccounting;
use super::ledger::{IoCharge, Usage};
use super::weights::Weights;
use std::collections::HashMap;
use std::path::PathBuf;
use vtax_core::Nanoseconds;
use vtax_inventory::{Guests, Platform};
use vtax_observe::counters::clock_samples::{ClockSamples, Sampled, Work};
use vtax_observe::{ObserveError, Roots};

/// Standard deviation of the cost of an exchange for one guest, relative to the others.
const SPREAD: f64 = 0.25;

/// The number of standard deviations on either side that a stated error covers.
const WIDTH: f64 = 2.0;

/// The largest cost of an exchange, relative to the prediction of the weights alone: bridges and packet filters add to
/// it.
const DEAREST: f64 = 3.0;

/// The rate of exchanges per second below which no samples are taken: such exchanges use less than 1 % of a processor.
const FEW: f64 = 1000.0;

/// The weight of context samples of earlier intervals: the most in total, and the most per sample of this interval.
const REMEMBERED: (f64, f64) = (500.0, 2.0);

/// The least total weight of context samples of earlier intervals.
const LEAST_REMEMBERED: f64 = 100.0;

/// Nanoseconds of a soft interrupt without I/O that samples may miss: it directly follows the tick, and a VM receives a
/// sample that is due then with this delay.
const MISSED: f64 = 5000.0;

/// The resolution of a clock's account, which is printed in hundredths of a second, in nanoseconds.
const PRINTED: f64 = 1e7;

/// The time of a tick's sample, in nanoseconds; most kernels have 250 ticks a second. Faster kernels have smaller
/// errors than stated.
const TICK: f64 = 4e6;

fn amounts(exchanged: &GuestExchanges) -> Amounts {
    [
        exchanged.received as f64,
        exchanged.sent as f64,
        exchanged.bytes as f64 / 1024.0,
        exchanged.block_requests as f64,
        0.0,
    ]
}

/// The host's exchanges: its packets, whose direction is not known, packets that arrived in other namespaces, and soft
/// interrupts without I/O.
fn amounts_of_host(exchanges: &IntervalExchanges) -> Amounts {
    let packets = exchanges.host_packets as f64 / 2.0;
    [
        packets + exchanges.unseen_packets as f64,
        packets,
        0.0,
        exchanges.host_block_requests as f64,
        exchanges.other_softirqs as f64,
    ]
}

/// The context in which soft interrupts ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Context {
    Idle,
    Ksoftirqd,
    Host,
    Guest(u32),
}

/// The kinds of exchanges whose time is observed separately; all kinds where the work is unknown.
fn part(work: Option<Work>, amounts: Amounts) -> Amounts {
    let [received, sent, kibibytes, requests, others] = amounts;
    match work {
        None => amounts,
        Some(Work::Network) => [received, sent, kibibytes, 0.0, 0.0],
        Some(Work::Block) => [0.0, 0.0, 0.0, requests, 0.0],
        Some(Work::Other) => [0.0, 0.0, 0.0, 0.0, others],
    }
}

/// The samples of an interval.
#[derive(Debug, Clone, Default)]
struct Samples {
    time: HashMap<(Context, Work), f64>,
    period: f64,
}

/// The counted method.
pub struct Counted {
    accounting: IrqAccounting,
    /// The model of all kinds together, where a clock or the tick keeps the time.
    model: CostModel,
    /// The model of each kind of soft interrupts, where samples distinguish them.
    models: [(Work, CostModel); 3],
    samples: Option<ClockSamples>,
    /// Samples by context, of earlier intervals.
    contexts: HashMap<Context, f64>,
    roots: Roots,
    note: Option<String>,
}

impl Counted {
    /// Opens the method with these weights, on a kernel with this interrupt accounting. Where the kernel samples, perf
    /// takes samples if permitted; otherwise a note gives the reason.
    pub fn open(weights: Weights, accounting: IrqAccounting, roots: &Roots) -> Self {
        let mut counted = Self {
            accounting,
            models: [Work::Network, Work::Block, Work::Other].map(|work| {
                let weights = part(Some(work), weights.nanoseconds());
                (work, CostModel::new(weights))
            }),
            model: CostModel::new(weights.nanoseconds()),
            samples: None,
            contexts: HashMap::new(),
            roots: roots.clone(),
            note: None,
        };
        if !accounting.is_by_clock() {
            counted.sample();
        }
        counted
    }

    fn sample(&mut self) {
        let opened = ClockSamples::open(&self.roots.proc);
        self.note = opened.as_ref().err().map(|error| {
            format!("counted soft interrupts may be off by their whole amount: they are {}, and {error}", self.accounting)
        });
        self.samples = opened.ok();
    }

    /// Samples of the interval, by context; `None` where none were taken.
    fn sampled(&mut self, guests: &Guests, usage: &Usage, exchanged: f64) -> Option<Samples> {
        let online = usage.processors as usize;
        if self
            .samples
            .as_ref()
            .is_some_and(|samples| online > 0 && samples.processors() != online)
        {
            // A processor came or went.
            self.sample();
        }
        let goes_on = usage.span.0 == 0 || exchanged / usage.span.as_secs_f64() >= FEW;
        let sampled = self.samples.as_mut()?.read(usage.span, goes_on)?;
        Some(by_context(sampled, guests))
    }

    /// The shares of the contexts, each with its variance.
    fn shares(&mut self, seen: &Samples) -> HashMap<Context, Estimate> {
        let hits = seen.time.values().sum::<f64>() / seen.period.max(1.0);
        let known: f64 = self.contexts.values().sum();
        let most = (hits * REMEMBERED.1).clamp(LEAST_REMEMBERED, REMEMBERED.0);
        let kept = if known > most { most / known } else { 1.0 };
        self.contexts.retain(|_, count| {
            *count *= kept;
            *count > 0.01
        });
        for ((context, _), time) in &seen.time {
            *self.contexts.entry(*context).or_default() += time / seen.period.max(1.0);
        }
        let all = self.contexts.values().sum::<f64>().max(1.0);
        let share = |(context, count): (&Context, &f64)| {
            let share = count / all;
            let variance = share * (1.0 - share) / all + all.powi(-2);
            (
                *context,
                Estimate {
                    time: share,
                    variance,
                },
            )
        };
        self.contexts.iter().map(share).collect()
    }

    /// Divides soft interrupt time among the parties by their exchanges, the host (`None`) included.
    fn divide(
        &mut self,
        usage: &Usage,
        parties: &[(Option<u32>, Amounts)],
        samples: Option<&Samples>,
    ) -> Division {
        let mut division = Division {
            parts: vec![Estimate::default(); parties.len()],
            ..Division::default()
        };
        let seconds = usage.span.as_secs_f64();
        if samples.is_some() || self.samples.is_some() {
            for (work, model) in &mut self.models {
                let seen = samples.map(|samples| ObservedTime {
                    time: samples.of_work(*work),
                    quantum: samples.period,
                    is_whole: false,
                });
                division.add(model, Some(*work), seen, parties, seconds);
            }
        } else {
            let is_whole = self.accounting.is_by_clock();
            let seen = ObservedTime {
                time: usage.softirq.0 as f64,
                quantum: if is_whole { PRINTED } else { TICK },
                is_whole,
            };
            division.add(&mut self.model, None, Some(seen), parties, seconds);
        }
        let factor = (usage.total.0 as f64 / division.whole.time.max(1.0)).min(1.0);
        let parts = division.parts.iter_mut();
        for estimate in parts.chain([&mut division.whole]) {
            estimate.time *= factor;
        }
        division
    }

    fn charge_seen(
        &mut self,
        usage: &Usage,
        exchanges: &IntervalExchanges,
        samples: Option<&Samples>,
    ) -> IoCharge {
        let guests = exchanges.guests.iter();
        let parties: Vec<(Option<u32>, Amounts)> = guests
            .map(|(number, own)| (Some(*number), amounts(own)))
            .chain([(None, amounts_of_host(exchanges))])
            .collect();
        let Division {
            parts,
            whole,
            unknown,
        } = self.divide(usage, &parties, samples);
        let mut charge = IoCharge {
            unknown: nanoseconds(unknown),
            is_modelled: true,
            ..IoCharge::default()
        };
        let is_ticked =
            samples.is_none() && self.samples.is_none() && !self.accounting.is_by_clock();
        for (Estimate { time, variance }, (party, amounts)) in parts.into_iter().zip(&parties) {
            let share = time / whole.time.max(f64::MIN_POSITIVE);
            // A guest without others has the whole time, whatever the cost of an exchange.
            let variance = variance + (SPREAD * time * (1.0 - share)).powi(2);
            let mut error = WIDTH * variance.max(0.0).sqrt();
            if is_ticked {
                let most = DEAREST * self.model.expected(amounts);
                error = error.max(time).max(most - time);
            }
            let (time, error) = (nanoseconds(time), nanoseconds(error));
            match party {
                Some(number) => {
                    let work = charge.guests.entry(*number).or_default();
                    (work.softirq, work.softirq_error) = (time, error);
                }
                None => {
                    let missed = if usage.softirq_apart || is_ticked {
                        0.0
                    } else {
                        MISSED * exchanges.other_softirqs as f64
                    };
                    let error = error + nanoseconds(missed);
                    (charge.host_softirq, charge.host_softirq_error) = (time, error);
                }
            }
        }
        if usage.softirq_apart {
            return charge;
        }
        if samples.is_some() || !self.contexts.is_empty() {
            let shares = self.shares(samples.unwrap_or(&Samples::default()));
            move_by_samples(usage, whole, &shares, &mut charge);
            return charge;
        }
        let mut most = whole.time + WIDTH * whole.variance.max(0.0).sqrt();
        if is_ticked {
            let expected = parties
                .iter()
                .map(|(_, amounts)| self.model.expected(amounts));
            most = (2.0 * whole.time).max(DEAREST * expected.sum::<f64>());
        }
        move_by_run_time(usage, whole.time, most, &mut charge);
        charge
    }
}

impl Samples {
    fn of_work(&self, work: Work) -> f64 {
        let of = self.time.iter().filter(|((_, of), _)| *of == work);
        of.map(|(_, time)| time).sum()
    }
}

/// Observed soft interrupt time, with the quantum of its samples.
#[derive(Debug, Clone, Copy)]
struct ObservedTime {
    time: f64,
    quantum: f64,
    /// Whether a clock gave the time itself, without samples.
    is_whole: bool,
}

/// Soft interrupt time by the party that it worked for.
#[derive(Debug, Default)]
struct Division {
    /// In the order of the parties.
    parts: Vec<Estimate>,
    whole: Estimate,
    /// Time that was observed without any exchange that could explain it.
    unknown: f64,
}

impl Division {
    /// Adds the time of one kind of soft interrupts, with its observed time; `None` where it was not observed.
    fn add(
        &mut self,
        model: &mut CostModel,
        work: Option<Work>,
        seen: Option<ObservedTime>,
        parties: &[(Option<u32>, Amounts)],
        seconds: f64,
    ) {
        let mut all = Amounts::default();
        for (_, amounts) in parties {
            for (sum, amount) in all.iter_mut().zip(part(work, *amounts)) {
                *sum += amount;
            }
        }
        if model.expected(&all) <= 0.0 {
            self.unknown += seen.map_or(0.0, |seen| seen.time);
            return;
        }
        if let Some(seen) = seen {
            model.learn(&all, seen.time, seen.quantum, seconds);
        }
        let expected = model.estimate(&all);
        let whole = match seen {
            None => model.unseen(&all),
            Some(seen) if seen.is_whole => Estimate {
                time: seen.time,
                variance: seen.quantum * seen.quantum,
            },
            // The tick's samples in an interval are random, or synchronous with the work that they find.
            Some(_) if work.is_none() => Estimate {
                variance: 0.0,
                ..expected
            },
            Some(seen) => model.interval(&all, seen.time, seen.quantum),
        };
        let time = whole.time.max(0.0);
        let expected_time = expected.time.max(f64::MIN_POSITIVE);
        let factor = time / expected_time;
        // Time beyond the prediction and its error cannot be attributed.
        let chance = WIDTH * (whole.variance + expected.variance).max(0.0).sqrt();
        let unexpected = ((time - expected.time).abs() - chance).max(0.0);
        for (sum, (_, amounts)) in self.parts.iter_mut().zip(parties) {
            let own = model.estimate(&part(work, *amounts));
            let share = own.time / expected_time;
            sum.time += own.time * factor;
            sum.variance += own.variance * factor * factor
                + share * share * (whole.variance + unexpected * unexpected);
        }
        self.whole.time += time;
        self.whole.variance += whole.variance + expected.variance * factor * factor;
    }
}

// The time is not negative, and is below 2^53.
fn nanoseconds(time: f64) -> Nanoseconds {
    Nanoseconds(time as u64)
}

/// Groups samples by the owner of their context.
fn by_context(sampled: Sampled, guests: &Guests) -> Samples {
    let monitors = guests.by_process();
    let containers: HashMap<PathBuf, u32> = guests
        .iter()
        .filter(|guest| !guest.platform.is_vm() && guest.platform != Platform::Xen)
        .filter_map(|guest| Some((guest.group.clone()?, guest.number)))
        .collect();
    let v1 = guests.hierarchy().is_some_and(|hierarchy| hierarchy.v1);
    let context = |pid: u32| {
        if pid == 0 {
            return Context::Idle;
        }
        if let Some(guest) = monitors.get(&pid) {
            return Context::Guest(*guest);
        }
        let process = guests.process(pid);
        if let Some(group) = process.control_group(v1)
            && let Ok(group) = group.strip_prefix("/")
            && let Some(guest) = group.ancestors().find_map(|group| containers.get(group))
        {
            return Context::Guest(*guest);
        }
        let is_ksoftirqd = |name: Vec<u8>| name.starts_with(b"ksoftirqd/");
        if process.command_name().is_some_and(is_ksoftirqd) && process.is_kernel_thread() {
            return Context::Ksoftirqd;
        }
        // Includes processes that have ended since.
        Context::Host
    };
    let mut samples = Samples {
        period: sampled.period,
        ..Samples::default()
    };
    let mut known: HashMap<u32, Context> = HashMap::new();
    for ((pid, work), time) in sampled.time {
        let context = *known.entry(pid).or_insert_with(|| context(pid));
        *samples.time.entry((context, work)).or_default() += time;
    }
    samples
}

/// Subtracts soft interrupts from the owners that they interrupted, by samples.
fn move_by_samples(
    usage: &Usage,
    whole: Estimate,
    shares: &HashMap<Context, Estimate>,
    charge: &mut IoCharge,
) {
    // Soft interrupts outside all tasks are busy time without a task; time beyond that was in some task's time.
    let room = usage.total.saturating_since(usage.tasks).0 as f64;
    let idle = shares.get(&Context::Idle).map_or(0.0, |share| share.time);
    let in_tasks = whole.time - (whole.time * idle).min(room);
    let of_tasks = (1.0 - idle).max(f64::MIN_POSITIVE);
    let scale = in_tasks / of_tasks;
    let mut left = in_tasks;
    let mut take = |share: Estimate, most: f64| {
        let time = (share.time * scale).min(most).min(left);
        left -= time;
        let variance = share.variance * scale * scale + share.time.powi(2) * whole.variance;
        (
            nanoseconds(time),
            nanoseconds((WIDTH * variance.sqrt()).min(most)),
        )
    };
    for guest in &usage.guests {
        let own = guest.own.total().saturating_since(guest.outside).0 as f64;
        if let Some(share) = shares.get(&Context::Guest(guest.number)) {
            let work = charge.guests.entry(guest.number).or_default();
            (work.context, work.context_error) = take(*share, own);
        }
    }
    if let Some(share) = shares.get(&Context::Ksoftirqd) {
        (charge.ksoftirqd, _) = take(*share, usage.tasks.0 as f64);
    }
    let share = shares.get(&Context::Host).copied().unwrap_or_default();
    let (host, error) = take(share, usage.tasks.0 as f64);
    // Also the time beyond that of the apparent owners.
    charge.host_context = host + nanoseconds(left);
    charge.host_context_error = error;
}

/// Subtracts soft interrupts where nothing shows which owner they interrupted: in proportion to the time that each ran.
/// Any part of a time of up to `most` may have been in a guest's time.
fn move_by_run_time(usage: &Usage, whole: f64, most: f64, charge: &mut IoCharge) {
    let room = usage.total.saturating_since(usage.tasks).0 as f64;
    let in_tasks = (whole - room).max(0.0);
    let tasks = (usage.tasks.0 as f64).max(1.0);
    let mut left = in_tasks;
    for guest in &usage.guests {
        let own = guest.own.total().saturating_since(guest.outside).0 as f64;
        let context = (in_tasks * own / tasks).min(left);
        left -= context;
        let error = context.max(most.min(own) - context);
        let work = charge.guests.entry(guest.number).or_default();
        (work.context, work.context_error) = (nanoseconds(context), nanoseconds(error));
    }
    charge.host_context = nanoseconds(left);
    charge.host_context_error = nanoseconds(most.max(left));
}

impl Method for Counted {
    fn name(&self) -> &'static str {
        "counted"
    }

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    fn charge(
        &mut self,
        guests: &Guests,
        usage: &Usage,
        exchanges: &IntervalExchanges,
    ) -> Result<IoCharge, ObserveError> {
        let packets = |own: &GuestExchanges| own.received + own.sent + own.block_requests;
        let exchanged =
            exchanges.guests.values().map(packets).sum::<u64>() + exchanges.host_packets;
        let sampled = self.sampled(guests, usage, exchanged as f64);
        if usage.span.0 == 0 {
            // The first interval begins.
            return Ok(IoCharge::default());
        }
        Ok(self.charge_seen(usage, exchanges, sampled.as_ref()))
    }
}

#[cfg(test)]
mod tests;
