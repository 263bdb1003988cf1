//! The counted method, which needs nothing but counters: the time of soft interrupts is divided by what was
//! exchanged, each kind with what it costs (Cherkasova & Gardner 2005 divided the driver domain's time by exchanged
//! pages).
//!
//! # Where the time comes from
//!
//! - A kernel that accounts interrupts by a clock ([`IrqAccounting::is_by_clock`]) has the interval's time, and only
//!   the division is a model.
//! - Other kernels sample it at their tick. What works in step with a timer is always at the same moment of the
//!   tick, which then finds its soft interrupts always or never, for as long as that goes on; no averaging helps.
//!   Where perf may sample, samples of `cpu-clock` at other moments take the tick's place ([`ClockSamples`]); they
//!   also show whom the soft interrupts interrupted.
//! - Where perf may not, the tick's samples are used for want of better, and the stated error reaches from nothing
//!   to twice the charge, or to three times what the weights alone expect.
//!
//! # What is done with it
//!
//! 1. [`CostModel`] learns over minutes what an exchange of each kind costs.
//! 2. An interval's time is what that model expects of its exchanges and what was seen, each by its variance.
//! 3. The time is divided among the guests and the host by what the model expects of the exchanges of each.
//! 4. Unless the kernel accounts interrupts apart, each guest's own time contains soft interrupts, for whomever,
//!    that interrupted it. That part is taken off: in proportion to the samples in its context in this and the last
//!    intervals; without samples, in proportion to the time that each ran.
//!
//! Busy time itself is known well (processors × time − idle, by the idle clock), and so is the run time of tasks; so
//! the parts above only move time between accounts, and the ledger closes.
//!
//! # Errors
//!
//! Each figure has the half-width of an interval that holds the true value in at least 9 of 10 cases: twice the root
//! of the sum of the variances of the model, of the samples, and of what the model leaves out, which is that an
//! exchange costs different guests differently (by a quarter, for the part of the time that is not theirs alone).

use super::Method;
use super::cost::{Amounts, CostModel, Estimate};
use super::exchanges::{GuestExchanges, IntervalExchanges};
use super::irq_accounting::IrqAccounting;
use super::ledger::{IoCharge, Usage};
use crate::counters::clock_samples::{ClockSamples, Sampled, Work};
use crate::guests::{Guests, Platform};
use crate::{ObserveError, Roots};
use std::collections::HashMap;
use std::path::PathBuf;
use std::str::FromStr;
use vtax_units::Nanoseconds;

/// Nanoseconds that receiving a packet is expected to take before anything is known; the other kinds follow by their
/// weights. About what processors of 2020 take for a small datagram over a veth pair.
const RECEIVED: f64 = 3300.0;

/// Standard deviation of what an exchange costs one guest, relative to the others.
const SPREAD: f64 = 0.25;

/// Standard deviations on either side that a stated error covers.
const WIDTH: f64 = 2.0;

/// What an exchange costs at most, over what the weights alone expect: bridges and packet filters are in it.
const DEAREST: f64 = 3.0;

/// Exchanges a second below which no samples are taken: they take less than 1 % of a processor.
const FEW: f64 = 1000.0;

/// Samples of context that earlier intervals count for: at most, and for each sample of this one.
const REMEMBERED: (f64, f64) = (500.0, 2.0);

/// And at least.
const LEAST_REMEMBERED: f64 = 100.0;

/// Nanoseconds of a soft interrupt for no I/O that samples may miss: it follows the tick at once, and a sample that is
/// due then is delivered to a VM so much later.
const MISSED: f64 = 5000.0;

/// A clock's account, which is printed in hundredths of a second.
const PRINTED: f64 = 1e7;

/// A tick's sample; most kernels have 250 ticks a second. Faster ones have smaller errors than are stated.
const TICK: f64 = 4e6;

/// What one exchange costs, relative to the others. Only ratios count.
///
/// The defaults were fitted to traced soft interrupts of containers that serve files of 10, 30 and
/// 50 KB (Linux 6.1, emulated, by an earlier state of the tracing programs; `make accuracy` prints
/// today's fit); the block request's and the other soft interrupt's are estimates. See
/// `docs/charge.md` on how far they are off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// A packet that the guest received.
    pub received: f64,
    /// A packet that it sent.
    pub sent: f64,
    /// A KiB of either on top: copies and checksums.
    pub kibibyte: f64,
    /// A block request's completion.
    pub block_request: f64,
    /// A run of another soft interrupt.
    pub other: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            received: 16_500.0,
            sent: 4300.0,
            kibibyte: 0.0,
            block_request: 6000.0,
            other: 1200.0,
        }
    }
}

/// `received=4,sent=1,kibibyte=0,block-request=2,other=0.3`: those not named are 0.
impl FromStr for Weights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut weights = Self {
            received: 0.0,
            sent: 0.0,
            kibibyte: 0.0,
            block_request: 0.0,
            other: 0.0,
        };
        for part in text.split(',') {
            let wrong = || {
                format!(
                    "`{part}` is no weight: give received, sent, kibibyte, block-request or other, \
                     each as NAME=NUMBER, with commas between"
                )
            };
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let value: f64 = value.trim().parse().map_err(|_| wrong())?;
            if !value.is_finite() || value < 0.0 {
                return Err(format!("`{part}`: a weight is a number from 0 on"));
            }
            *match name.trim() {
                "received" => &mut weights.received,
                "sent" => &mut weights.sent,
                "kibibyte" => &mut weights.kibibyte,
                "block-request" => &mut weights.block_request,
                "other" => &mut weights.other,
                _ => return Err(wrong()),
            } = value;
        }
        Ok(weights)
    }
}

impl Weights {
    /// In nanoseconds, as expected before anything is known.
    fn nanoseconds(&self) -> Amounts {
        let all = [
            self.received,
            self.sent,
            self.kibibyte,
            self.block_request,
            self.other,
        ];
        let most = all.into_iter().fold(f64::MIN_POSITIVE, f64::max);
        let reference = if self.received > 0.0 {
            self.received
        } else {
            most
        };
        all.map(|weight| weight / reference * RECEIVED)
    }
}

fn amounts(exchanged: &GuestExchanges) -> Amounts {
    [
        exchanged.received as f64,
        exchanged.sent as f64,
        exchanged.bytes as f64 / 1024.0,
        exchanged.block_requests as f64,
        0.0,
    ]
}

/// The host's: its packets, whose direction is not known, those that came in others' namespaces, and soft interrupts
/// that do no I/O.
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

/// In whose context soft interrupts ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Context {
    Idle,
    Ksoftirqd,
    Host,
    Guest(u32),
}

/// Kinds of exchanges whose time is seen by itself; all of them where there is no telling.
fn part(work: Option<Work>, amounts: Amounts) -> Amounts {
    let [received, sent, kibibytes, requests, others] = amounts;
    match work {
        None => amounts,
        Some(Work::Network) => [received, sent, kibibytes, 0.0, 0.0],
        Some(Work::Block) => [0.0, 0.0, 0.0, requests, 0.0],
        Some(Work::Other) => [0.0, 0.0, 0.0, 0.0, others],
    }
}

/// What samples found in an interval.
#[derive(Debug, Clone, Default)]
struct Samples {
    time: HashMap<(Context, Work), f64>,
    period: f64,
}

/// The counted method.
pub struct Counted {
    accounting: IrqAccounting,
    /// Of all kinds together, where a clock or the tick keeps the time.
    model: CostModel,
    /// Of each kind of soft interrupts, where samples tell them apart.
    models: [(Work, CostModel); 3],
    samples: Option<ClockSamples>,
    /// Samples by context, of intervals before.
    contexts: HashMap<Context, f64>,
    roots: Roots,
    note: Option<String>,
}

impl Counted {
    /// With these weights, on a kernel that accounts interrupts so. Where it samples them, perf takes samples if it
    /// may; a note says why it does not.
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

    /// Samples of the interval, by context. `None`: none were taken.
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

    /// The shares of the contexts, each with the variance of it.
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

    /// Divides soft interrupt time among those who exchanged so much, the host (`None`) included.
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
                let seen = samples.map(|samples| Seen {
                    time: samples.of(*work),
                    quantum: samples.period,
                    is_whole: false,
                });
                division.add(model, Some(*work), seen, parties, seconds);
            }
        } else {
            let is_whole = self.accounting.is_by_clock();
            let seen = Seen {
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
            // A guest that is alone has the whole time, whatever an exchange costs.
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
    fn of(&self, work: Work) -> f64 {
        let of = self.time.iter().filter(|((_, of), _)| *of == work);
        of.map(|(_, time)| time).sum()
    }
}

/// Soft interrupt time that was seen, by samples of what quantum.
#[derive(Debug, Clone, Copy)]
struct Seen {
    time: f64,
    quantum: f64,
    /// By a clock: the time itself, and no samples of it.
    is_whole: bool,
}

/// Soft interrupt time by whom it worked for.
#[derive(Debug, Default)]
struct Division {
    /// In the order of the parties.
    parts: Vec<Estimate>,
    whole: Estimate,
    /// What was seen while nothing was exchanged that it could have been for.
    unknown: f64,
}

impl Division {
    /// Adds the time of one kind of soft interrupts, of which so much was seen; `None`: nobody looked.
    fn add(
        &mut self,
        model: &mut CostModel,
        work: Option<Work>,
        seen: Option<Seen>,
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
            // What the tick finds in an interval is chance, or in step with what it finds.
            Some(_) if work.is_none() => Estimate {
                variance: 0.0,
                ..expected
            },
            Some(seen) => model.interval(&all, seen.time, seen.quantum),
        };
        let time = whole.time.max(0.0);
        let expected_time = expected.time.max(f64::MIN_POSITIVE);
        let factor = time / expected_time;
        // Whose that is which was not expected, nobody knows.
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

// Not negative, and below 2^53.
fn nanoseconds(time: f64) -> Nanoseconds {
    Nanoseconds(time as u64)
}

/// Whose context the samples are of.
fn by_context(sampled: Sampled, guests: &Guests) -> Samples {
    let monitors: HashMap<u32, u32> = guests
        .iter()
        .filter(|guest| guest.platform.is_vm())
        .flat_map(|guest| {
            let helpers = guest.helpers.iter().map(|helper| helper.pid);
            helpers.chain(guest.process).map(|pid| (pid, guest.number))
        })
        .collect();
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
        // Also one that has ended since.
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

/// Takes soft interrupts off those whom they interrupted, by samples.
fn move_by_samples(
    usage: &Usage,
    whole: Estimate,
    shares: &HashMap<Context, Estimate>,
    charge: &mut IoCharge,
) {
    // What ran in nobody's context is busy time that no task had; what is more was in some task's.
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
    // And what was more than those had whose it seemed to be.
    charge.host_context = host + nanoseconds(left);
    charge.host_context_error = error;
}

/// Likewise where nothing shows whom they interrupted: in proportion to the time that each ran. Any part, of what may
/// be as much as `most`, may have been in a guest's time.
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
mod tests {
    use super::super::ledger::{GuestUse, Ledger, Stage, Stages};
    use super::*;
    use proptest::prelude::*;

    /// On a kernel that accounts interrupts so, without perf.
    fn counted(accounting: IrqAccounting) -> Counted {
        let nowhere = std::path::Path::new("/nowhere");
        Counted::open(Weights::default(), accounting, &Roots::below(nowhere))
    }

    fn packets(count: u64) -> GuestExchanges {
        GuestExchanges {
            received: count,
            ..GuestExchanges::default()
        }
    }

    fn usage(softirq: u64, accounting: IrqAccounting) -> Usage {
        Usage {
            span: Nanoseconds(1_000_000_000),
            softirq: Nanoseconds(softirq),
            total: Nanoseconds(4_000_000_000),
            tasks: Nanoseconds(4_000_000_000),
            softirq_apart: accounting.is_apart(),
            ..Usage::default()
        }
    }

    #[test]
    fn packets_and_not_bytes_drive_the_cost() {
        let bulk = GuestExchanges {
            bytes: 300_000,
            ..packets(200)
        };
        let exchanges = IntervalExchanges {
            guests: [(1, packets(2000)), (2, bulk)].into(),
            ..IntervalExchanges::default()
        };
        let exact = IrqAccounting::Exact;
        let charge = counted(exact).charge_seen(&usage(1_000_000, exact), &exchanges, None);
        let (small, large) = (charge.guests[&1].softirq.0, charge.guests[&2].softirq.0);
        assert!(small > 9 * large, "{small} {large}");
        assert!((small + large).abs_diff(1_000_000) <= 2);
    }

    #[test]
    fn without_any_exchange_the_time_is_nobodys() {
        let exact = IrqAccounting::Exact;
        let none = IntervalExchanges::default();
        let charge = counted(exact).charge_seen(&usage(1000, exact), &none, None);
        assert_eq!(charge.unknown.0, 1000);
    }

    #[test]
    fn a_kernel_that_samples_and_gives_no_samples_has_an_error_as_large_as_the_charge_and_a_note() {
        let mut counted = counted(IrqAccounting::Sampled);
        let exchanges = IntervalExchanges {
            guests: [(1, packets(31_000))].into(),
            ..IntervalExchanges::default()
        };
        let usage = usage(400_000_000, IrqAccounting::Sampled);
        let charge = counted.charge_seen(&usage, &exchanges, None);
        let work = charge.guests[&1];
        assert!(work.softirq_error >= work.softirq, "{work:?}");
        assert!(
            counted
                .note()
                .unwrap()
                .contains("CONFIG_IRQ_TIME_ACCOUNTING")
        );
        // The tick never found one: what the weights expect is within the error all the same.
        let mut blind = super::tests::counted(IrqAccounting::Sampled);
        for _ in 0..100 {
            blind.charge_seen(
                &super::tests::usage(0, IrqAccounting::Sampled),
                &exchanges,
                None,
            );
        }
        let work = blind
            .charge_seen(
                &super::tests::usage(0, IrqAccounting::Sampled),
                &exchanges,
                None,
            )
            .guests[&1];
        assert!(
            work.softirq.0 + work.softirq_error.0 > 31_000 * 3300,
            "{work:?}"
        );
    }

    #[test]
    fn a_clock_is_believed_at_once_and_takes_nothing_off_tasks_that_are_accounted_apart() {
        for accounting in [IrqAccounting::Exact, IrqAccounting::Native] {
            let exchanges = IntervalExchanges {
                guests: [(1, packets(1000))].into(),
                ..IntervalExchanges::default()
            };
            let mut usage = usage(3_000_000, accounting);
            usage.guests = vec![own(1, 500_000_000)];
            let io = counted(accounting).charge_seen(&usage, &exchanges, None);
            assert_eq!(io.guests[&1].softirq.0, 3_000_000);
            assert_eq!(
                io.guests[&1].context.0 > 0,
                accounting == IrqAccounting::Native
            );
            let row = &Ledger::close(&usage, &io, &mut Nanoseconds(0)).rows[0];
            assert_eq!(row.modelled.unwrap().own.is_none(), accounting.is_apart());
        }
    }

    fn own(number: u32, time: u64) -> GuestUse {
        let mut stages = Stages::default();
        stages.add(Stage::Vcpu, Nanoseconds(time));
        GuestUse {
            number,
            own: stages,
            ..GuestUse::default()
        }
    }

    #[test]
    fn weights_are_read_from_words_and_wrong_ones_are_named() {
        let weights: Weights = "received=4, sent=1,block-request=2.5".parse().unwrap();
        assert_eq!((weights.received, weights.sent), (4.0, 1.0));
        assert_eq!((weights.block_request, weights.kibibyte), (2.5, 0.0));
        for wrong in ["", "sent", "sent=x", "sent=-1", "sent=inf", "bytes=1"] {
            let message = wrong.parse::<Weights>().unwrap_err();
            assert!(message.contains(wrong), "{message}");
        }
    }

    /// A kernel that accounts interrupts within tasks, and two containers and a sender on it. Every second, each
    /// container receives at its rate; soft interrupts run in the sender's context, in a container's, and in the
    /// idle task's. What all of that takes is known.
    struct Kernel {
        lot: u64,
        /// Nanoseconds that a packet takes each container.
        costs: [f64; 2],
        rates: [f64; 2],
        /// Shares of soft interrupts in the context of the containers; the rest is the sender's and the idle task's.
        contexts: [f64; 2],
        idle: f64,
        /// How much each second's costs differ from the mean.
        spread: f64,
        /// What the tick finds, for each nanosecond there is: 1 where the load has nothing to do with it.
        aliased: f64,
    }

    /// What is true of a second.
    struct Truth {
        softirq: [f64; 2],
        own: [f64; 2],
    }

    const PERIOD: f64 = 4e6;

    impl Kernel {
        fn drawn(seed: u64) -> Self {
            let mut kernel = Self {
                lot: seed,
                costs: [0.0; 2],
                rates: [0.0; 2],
                contexts: [0.0; 2],
                idle: 0.0,
                spread: 0.0,
                aliased: 1.0,
            };
            let mut between = |low: f64, high: f64| low + (high - low) * kernel.uniform();
            let cost = between(1500.0, 8000.0);
            let costs = [cost, cost * between(0.75, 1.35)];
            let rates = [between(5000.0, 60_000.0), between(2000.0, 40_000.0)];
            let contexts = [between(0.0, 0.2), between(0.0, 0.1)];
            let (idle, spread) = (between(0.0, 0.5), between(0.0, 0.2));
            Self {
                costs,
                rates,
                contexts,
                idle,
                spread,
                ..kernel
            }
        }

        fn uniform(&mut self) -> f64 {
            self.lot = self
                .lot
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.lot >> 11) as f64 / (1u64 << 53) as f64
        }

        /// How many samples fall into so many nanoseconds: the sum of many chances.
        fn hits(&mut self, time: f64) -> f64 {
            let chances = (time / PERIOD * 8.0).ceil();
            let chance = time / PERIOD / chances.max(1.0);
            (0..chances as u32)
                .filter(|_| self.uniform() < chance)
                .count() as f64
        }

        fn second(&mut self) -> (Truth, Usage, IntervalExchanges, Samples) {
            let now = 1.0 + self.spread * (self.uniform() - 0.5) * 3.46;
            let softirq = [0, 1].map(|of| self.costs[of] * self.rates[of] * now);
            // Timers and RCU take the host much longer than is expected.
            let of_host = 1000.0 * 20_000.0;
            let all = softirq[0] + softirq[1] + of_host;
            let own = [0, 1].map(|of| self.rates[of] * 2000.0);
            let sender = 300e6;
            let idle = all * self.idle;
            let [first, second] = self.contexts.map(|share| share * all);
            let rest = all - idle - first - second;
            let contexts = [
                (Context::Idle, idle),
                (Context::Guest(1), first),
                (Context::Guest(2), second),
                (Context::Host, rest),
            ];
            let mut seen = Samples {
                period: PERIOD,
                ..Samples::default()
            };
            for (context, time) in contexts {
                let other = of_host / all;
                for (work, share) in [(Work::Other, other), (Work::Network, 1.0 - other)] {
                    let time = self.hits(time * share) * PERIOD;
                    seen.time.insert((context, work), time);
                }
            }
            let ticks = self.hits(all * self.aliased) * PERIOD;
            let run = own[0] + own[1] + sender + all - idle;
            let usage = Usage {
                span: Nanoseconds(1_000_000_000),
                processors: 2,
                total: nanoseconds(run + idle),
                tasks: nanoseconds(run),
                softirq: nanoseconds(ticks),
                softirq_apart: false,
                guests: vec![
                    super::tests::own(1, (own[0] + first) as u64),
                    super::tests::own(2, (own[1] + second) as u64),
                ],
            };
            let exchanges = IntervalExchanges {
                guests: [
                    (1, packets(self.rates[0] as u64)),
                    (2, packets(self.rates[1] as u64)),
                ]
                .into(),
                other_softirqs: 1000,
                ..IntervalExchanges::default()
            };
            (Truth { softirq, own }, usage, exchanges, seen)
        }

        /// For `windows` windows of `seconds`: what is charged less what is true, with the stated error and what is
        /// true, of soft interrupts and own time of each container.
        fn charge(&mut self, windows: u32, seconds: u32, has_samples: bool) -> Vec<[f64; 3]> {
            let mut counted = counted(IrqAccounting::Sampled);
            let mut found = Vec::new();
            for _ in 0..windows {
                let mut sums = [[0.0; 3]; 4];
                for _ in 0..seconds {
                    let (truth, usage, exchanges, seen) = self.second();
                    let seen = has_samples.then_some(&seen);
                    let io = counted.charge_seen(&usage, &exchanges, seen);
                    let ledger = Ledger::close(&usage, &io, &mut Nanoseconds(0));
                    assert_eq!(ledger.sum().0, ledger.total.0 + ledger.excess.0);
                    assert!(ledger.excess.0 < 10, "{ledger:?}");
                    for of in 0..2 {
                        let row = &ledger.rows[of];
                        let modelled = row.modelled.unwrap();
                        let softirq = row.stages.get(Stage::Softirq).0 as f64;
                        let own = row.stages.get(Stage::Vcpu).0 as f64;
                        let figures = [
                            (softirq, truth.softirq[of], modelled.softirq),
                            (own, truth.own[of], modelled.own.unwrap()),
                        ];
                        for (sum, (charged, truth, error)) in sums[of * 2..].iter_mut().zip(figures)
                        {
                            sum[0] += charged - truth;
                            sum[1] += error.0 as f64;
                            sum[2] += truth;
                        }
                    }
                }
                found.extend(sums);
            }
            found
        }
    }

    #[test]
    fn stated_errors_hold_the_truth_in_nine_of_ten_cases_on_a_kernel_that_samples() {
        for seconds in [1, 6] {
            let (mut held, mut all, mut wide) = (0u32, 0u32, 0.0f64);
            for seed in 0..60 {
                for [off, error, truth] in Kernel::drawn(seed).charge(10, seconds, true) {
                    all += 1;
                    held += u32::from(off.abs() <= error);
                    wide += error / truth;
                }
            }
            let (held, wide) = (f64::from(held) / f64::from(all), wide / f64::from(all));
            assert!(held >= 0.9, "{seconds} s: {held} of {all}");
            // An error that holds everything would be of no use.
            assert!(wide < 0.6, "{seconds} s: {wide}");
        }
    }

    #[test]
    fn a_steady_load_is_charged_within_a_twentieth_over_a_minute() {
        let (mut off, mut truth, mut worst) = (0.0, 0.0, 0.0f64);
        for seed in 100..130 {
            let mut kernel = Kernel::drawn(seed);
            (kernel.spread, kernel.costs[1]) = (0.0, kernel.costs[0]);
            kernel.rates = [31_000.0, 8000.0];
            let minute = kernel.charge(1, 60, true);
            off += minute[0][0];
            truth += minute[0][2];
            worst = worst.max(minute[0][0].abs() / minute[0][2]);
        }
        assert!((off / truth).abs() < 0.02, "bias {}", off / truth);
        assert!(worst < 0.1, "{worst}");
    }

    #[test]
    fn a_load_in_step_with_the_tick_is_within_the_error_that_the_ticks_alone_allow() {
        let (mut held, mut all) = (0u32, 0u32);
        for seed in 0..60 {
            let mut kernel = Kernel::drawn(seed);
            kernel.aliased = [0.0, 0.3, 4.0][seed as usize % 3];
            for [off, error, _] in kernel.charge(5, 6, false) {
                all += 1;
                held += u32::from(off.abs() <= error);
            }
        }
        let held = f64::from(held) / f64::from(all);
        assert!(held >= 0.9, "{held} of {all}");
    }

    proptest! {
        #[test]
        fn the_books_close_and_nothing_is_charged_or_taken_off_twice(
            softirq in 0u64..1_000_000_000, total in 0u64..4_000_000_000, tasks in 0u64..4_000_000_000,
            counts in prop::collection::vec((0u64..1_000_000, 0u64..1_000_000_000), 1..5),
            hits in prop::collection::vec((0u32..8, 0u32..300), 0..8),
            other in 0u64..1000, has_samples in any::<bool>(), kind in 0usize..3,
        ) {
            let accounting = [IrqAccounting::Exact, IrqAccounting::Native, IrqAccounting::Sampled][kind];
            let usage = Usage {
                softirq: Nanoseconds(softirq), total: Nanoseconds(total), tasks: Nanoseconds(tasks),
                guests: counts.iter().zip(1..).map(|((_, time), number)| own(number, (*time).min(tasks / 5))).collect(),
                ..usage(0, accounting)
            };
            let exchanges = IntervalExchanges {
                guests: counts.iter().zip(1..).map(|((count, _), number)| (number, packets(*count))).collect(),
                other_softirqs: other, ..IntervalExchanges::default()
            };
            let context = |(of, count): &(u32, u32)| ((match of {
                0 => Context::Idle, 1 => Context::Ksoftirqd, 2 => Context::Host, of => Context::Guest(of - 2),
            }, [Work::Network, Work::Other, Work::Block][*count as usize % 3]), f64::from(*count) * PERIOD);
            let sampled = Samples { time: hits.iter().map(context).collect(), period: PERIOD };
            let mut counted = counted(accounting);
            for _ in 0..3 {
                let charge = counted.charge_seen(&usage, &exchanges, has_samples.then_some(&sampled));
                let charged: u64 = charge.guests.values().map(|work| work.softirq.0).sum();
                prop_assert!(charged + charge.host_softirq.0 <= total + 8);
                let taken: u64 = charge.guests.values().map(|work| work.context.0).sum();
                let in_tasks = (charged + charge.host_softirq.0).saturating_sub(total.saturating_sub(tasks));
                if !accounting.is_apart() && charge.is_modelled {
                    let taken = taken + charge.host_context.0 + charge.ksoftirqd.0;
                    prop_assert!(taken + 16 >= in_tasks, "{} of {}", taken, in_tasks);
                }
                let ledger = Ledger::close(&usage, &charge, &mut Nanoseconds(0));
                prop_assert_eq!(ledger.sum().0, ledger.total.0 + ledger.excess.0);
                prop_assert!(ledger.rows.iter().all(|row| row.stages.total().0 <= 1 << 40));
            }
        }
    }
}
