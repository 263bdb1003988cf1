//! The counted method, which needs nothing but counters: the kernel's soft interrupt time is divided
//! by what was exchanged, each kind with its weight (Cherkasova & Gardner 2005 divided the driver
//! domain's time by exchanged pages).
//!
//! What it assumes, and the traced method knows:
//! - what an exchange of one kind costs is the same for all guests;
//! - soft interrupts interrupt tasks in proportion to the time that these run, on kernels that book
//!   them on the interrupted task.
//!
//! Most kernels sample soft interrupt time: a tick that finds one running books all of the 1 to
//! 10 ms since the last tick on it. In an interval that is mostly chance. So what an exchange costs
//! is taken from many intervals, and what is charged is that cost times the interval's exchanges.

use super::Method;
use super::exchanges::{GuestExchanges, IntervalExchanges};
use super::ledger::{IoCharge, IoWork, Usage};
use crate::ObserveError;
use crate::guests::Guests;
use std::str::FromStr;
use vtax_units::Nanoseconds;

/// How much sampled soft interrupt time says what an exchange costs: 5,000 ticks of 4 ms, so that
/// chance is below 2 %. With more, older time counts less.
const REMEMBERED: f64 = 20e9;

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
    /// What a guest's exchanges cost, relative to other guests'.
    pub fn cost(&self, exchanged: &GuestExchanges) -> f64 {
        exchanged.received as f64 * self.received
            + exchanged.sent as f64 * self.sent
            + exchanged.bytes as f64 / 1024.0 * self.kibibyte
            + exchanged.block_requests as f64 * self.block_request
    }

    /// What the host's own soft interrupts cost: its packets, and those that do no I/O.
    pub fn host_cost(&self, packets: u64, others: u64) -> f64 {
        packets as f64 * (self.received + self.sent) / 2.0 + others as f64 * self.other
    }
}

/// The counted method.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    weights: Weights,
    /// Soft interrupt time of the past, and what was exchanged in it.
    past: (f64, f64),
}

impl Counted {
    /// With these weights.
    pub fn new(weights: Weights) -> Self {
        Self {
            weights,
            past: (0.0, 0.0),
        }
    }

    /// Nanoseconds that soft interrupts took for exchanges of this cost.
    fn time_for(&mut self, cost: f64, usage: &Usage) -> f64 {
        let softirq = usage.softirq.0 as f64;
        if usage.softirq_apart {
            // Kept by a clock.
            return softirq;
        }
        let (time, exchanged) = &mut self.past;
        *time += softirq;
        *exchanged += cost;
        let found = cost * *time / *exchanged;
        if *time > REMEMBERED {
            *time /= 2.0;
            *exchanged /= 2.0;
        }
        found.min(softirq.max(usage.total.0 as f64))
    }
}

impl Method for Counted {
    fn name(&self) -> &'static str {
        "counted"
    }

    // An interval's counts and nanoseconds are below 2^53, and shares are not negative.
    fn charge(
        &mut self,
        _: &Guests,
        usage: &Usage,
        exchanges: &IntervalExchanges,
    ) -> Result<IoCharge, ObserveError> {
        let weights = self.weights;
        let of_host = weights.host_cost(exchanges.host_packets, exchanges.other_softirqs);
        let of_guests: Vec<(u32, f64)> = exchanges
            .guests
            .iter()
            .map(|(number, own)| (*number, weights.cost(own)))
            .collect();
        let sum = of_host + of_guests.iter().map(|(_, cost)| cost).sum::<f64>();
        let mut charge = IoCharge::default();
        if sum <= 0.0 {
            charge.unknown = usage.softirq;
            return Ok(charge);
        }
        let softirq = self.time_for(sum, usage);
        for (number, cost) in of_guests {
            let time = Nanoseconds((softirq * cost / sum) as u64);
            charge.guests.entry(number).or_default().softirq = time;
        }
        charge.host_softirq = Nanoseconds((softirq * of_host / sum) as u64);

        // What ran in nobody's context is the busy time that no task had.
        let idle_context = usage.total.saturating_since(usage.tasks);
        let in_tasks = (softirq - idle_context.0 as f64).max(0.0);
        let tasks = (usage.tasks.0 as f64).max(1.0);
        let mut left = in_tasks;
        for guest in &usage.guests {
            let own = guest.own.total().saturating_since(guest.outside);
            let context = (in_tasks * own.0 as f64 / tasks).min(left);
            left -= context;
            charge
                .guests
                .entry(guest.number)
                .or_insert_with(IoWork::default)
                .context = Nanoseconds(context as u64);
        }
        charge.host_context = Nanoseconds(left as u64);
        Ok(charge)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{GuestUse, Ledger, Stage, Stages};
    use super::*;
    use crate::Roots;
    use proptest::prelude::*;

    fn charge(usage: &Usage, exchanges: &IntervalExchanges) -> IoCharge {
        let guests = Guests::new(Roots::host());
        Counted::default()
            .charge(&guests, usage, exchanges)
            .unwrap()
    }

    fn packets(count: u64) -> GuestExchanges {
        GuestExchanges {
            received: count,
            ..GuestExchanges::default()
        }
    }

    /// An interval of a kernel that books `softirq`.
    fn usage(softirq: u64) -> Usage {
        Usage {
            softirq: Nanoseconds(softirq),
            total: Nanoseconds(4_000_000_000),
            tasks: Nanoseconds(4_000_000_000),
            ..Usage::default()
        }
    }

    #[test]
    fn packets_and_not_bytes_drive_the_cost() {
        let usage = usage(1_000_000);
        let bulk = GuestExchanges {
            bytes: 300_000,
            ..packets(200)
        };
        let exchanges = IntervalExchanges {
            guests: [(1, packets(2000)), (2, bulk)].into(),
            ..IntervalExchanges::default()
        };
        let charge = charge(&usage, &exchanges);
        let (small, large) = (charge.guests[&1].softirq.0, charge.guests[&2].softirq.0);
        assert!(small > 9 * large, "{small} {large}");
        assert!((small + large).abs_diff(1_000_000) <= 2);
    }

    #[test]
    fn without_any_exchange_the_time_is_nobodys() {
        let usage = Usage {
            softirq: Nanoseconds(1000),
            ..Usage::default()
        };
        let charge = charge(&usage, &IntervalExchanges::default());
        assert_eq!(charge.unknown.0, 1000);
    }

    #[test]
    fn chance_of_the_tick_evens_out_and_a_clock_is_believed_at_once() {
        let guests = Guests::new(Roots::host());
        let exchanges = IntervalExchanges {
            guests: [(1, packets(1000))].into(),
            ..IntervalExchanges::default()
        };
        let mut counted = Counted::default();
        // 8 ms an interval, seen as 0, 4, 8 or 20 ms by turns.
        let mut charged = 0;
        for interval in 0..100 {
            let sampled = [0u64, 20, 4, 8][interval % 4];
            let io = counted.charge(&guests, &usage(sampled * 1_000_000), &exchanges);
            charged = io.unwrap().guests[&1].softirq.0;
        }
        assert!(charged.abs_diff(8_000_000) < 400_000, "{charged}");
        let exact = Usage {
            softirq_apart: true,
            ..usage(3_000_000)
        };
        let io = counted.charge(&guests, &exact, &exchanges).unwrap();
        assert_eq!(io.guests[&1].softirq.0, 3_000_000);
    }

    #[test]
    fn what_an_exchange_costs_is_forgotten_when_it_changes() {
        let guests = Guests::new(Roots::host());
        let exchanges = IntervalExchanges {
            guests: [(1, packets(1000))].into(),
            ..IntervalExchanges::default()
        };
        let mut counted = Counted::default();
        let mut charge = |softirq| {
            let io = counted.charge(&guests, &usage(softirq), &exchanges);
            io.unwrap().guests[&1].softirq.0
        };
        for _ in 0..200 {
            charge(500_000_000);
        }
        for _ in 0..400 {
            charge(250_000_000);
        }
        assert!(charge(250_000_000) < 255_000_000);
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

    proptest! {
        #[test]
        fn all_soft_interrupt_time_is_charged_once_and_taken_off_once(
            softirq in 0u64..1_000_000_000, total in 0u64..4_000_000_000, tasks in 0u64..4_000_000_000,
            counts in prop::collection::vec((0u64..1_000_000, 0u64..1_000_000_000), 1..5),
            other in 1u64..1000,
        ) {
            let guests = counts.iter().zip(1..).map(|((count, own), number)| {
                let mut stages = Stages::default();
                stages.add(Stage::Vcpu, Nanoseconds((*own).min(tasks / 5)));
                (GuestUse { number, own: stages, ..GuestUse::default() }, packets(*count))
            });
            let (used, exchanged): (Vec<_>, Vec<_>) = guests.unzip();
            let usage = Usage {
                softirq: Nanoseconds(softirq), total: Nanoseconds(total), tasks: Nanoseconds(tasks),
                guests: used, ..Usage::default()
            };
            let exchanges = IntervalExchanges {
                guests: exchanged.into_iter().zip(1..).map(|(own, number)| (number, own)).collect(),
                other_softirqs: other, ..IntervalExchanges::default()
            };
            let charge = charge(&usage, &exchanges);
            let charged: u64 = charge.guests.values().map(|work| work.softirq.0).sum();
            prop_assert!((charged + charge.host_softirq.0).abs_diff(softirq) <= 8);
            let taken: u64 = charge.guests.values().map(|work| work.context.0).sum();
            let in_tasks = softirq.saturating_sub(total.saturating_sub(tasks));
            prop_assert!((taken + charge.host_context.0).abs_diff(in_tasks) <= 8);
            let ledger = Ledger::close(&usage, &charge, &mut Nanoseconds(0));
            prop_assert_eq!(ledger.sum().0, ledger.total.0 + ledger.excess.0);
        }
    }
}
