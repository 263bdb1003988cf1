//! The counted method, which needs nothing but counters: the kernel's soft interrupt time is divided
//! by what was exchanged, each kind with its weight (Cherkasova & Gardner 2005 divided the driver
//! domain's time by exchanged pages).
//!
//! What it assumes, and the traced method knows:
//! - what an exchange of one kind costs is the same for all guests;
//! - soft interrupts interrupt tasks in proportion to the time that these run, on kernels that book
//!   them on the interrupted task.

use super::Method;
use super::exchanges::{GuestExchanges, IntervalExchanges};
use super::ledger::{IoCharge, IoWork, Usage};
use crate::ObserveError;
use crate::guests::Guests;
use vtax_units::Nanoseconds;

/// What one exchange costs, relative to the others, in nanoseconds. Only their ratios count.
///
/// The defaults are estimates, not measurements: see `docs/charge.md` on how far they are off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// A packet, through the device and the stack behind it.
    pub packet: f64,
    /// A KiB of it on top: copies and checksums.
    pub kibibyte: f64,
    /// A block request's completion.
    pub block_request: f64,
    /// A run of another soft interrupt.
    pub other: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            packet: 1900.0,
            kibibyte: 60.0,
            block_request: 4000.0,
            other: 1200.0,
        }
    }
}

impl Weights {
    /// What a guest's exchanges cost, relative to other guests'.
    #[allow(
        clippy::cast_precision_loss,
        reason = "an interval's counts are below 2^53"
    )]
    pub fn cost(&self, exchanged: &GuestExchanges) -> f64 {
        let packets = exchanged.received.saturating_add(exchanged.sent);
        packets as f64 * self.packet
            + exchanged.bytes as f64 / 1024.0 * self.kibibyte
            + exchanged.block_requests as f64 * self.block_request
    }

    /// What the host's own soft interrupts cost: its packets, and those that do no I/O.
    #[allow(
        clippy::cast_precision_loss,
        reason = "an interval's counts are below 2^53"
    )]
    pub fn host_cost(&self, packets: u64, others: u64) -> f64 {
        packets as f64 * self.packet + others as f64 * self.other
    }
}

/// The counted method.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    weights: Weights,
}

impl Counted {
    /// With these weights.
    pub fn new(weights: Weights) -> Self {
        Self { weights }
    }
}

impl Method for Counted {
    fn name(&self) -> &'static str {
        "counted"
    }

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an interval's counts and nanoseconds are below 2^53, and shares are not negative"
    )]
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
        let softirq = usage.softirq.0 as f64;
        if sum <= 0.0 {
            charge.unknown = usage.softirq;
            return Ok(charge);
        }
        for (number, cost) in of_guests {
            let time = Nanoseconds((softirq * cost / sum) as u64);
            charge.guests.entry(number).or_default().softirq = time;
        }
        charge.host_softirq = Nanoseconds((softirq * of_host / sum) as u64);

        // What ran in nobody's context is the busy time that no task had.
        let idle_context = usage.total.saturating_since(usage.tasks);
        let in_tasks = usage.softirq.saturating_since(idle_context).0 as f64;
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
    use crate::guests::Roots;
    use proptest::prelude::*;

    fn charge(usage: &Usage, exchanges: &IntervalExchanges) -> IoCharge {
        let guests = Guests::new(Roots::default());
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

    #[test]
    fn packets_and_not_bytes_drive_the_cost() {
        let usage = Usage {
            softirq: Nanoseconds(1_000_000),
            ..Usage::default()
        };
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
