//! The ledger of one interval: arithmetic only, so that its invariants can be tested on any input.
//!
//! 1. The sum of all rows, the host's and the unattributed time is the measured total, up to the
//!    granularity of the sources ([`Ledger::excess`]).
//! 2. Nothing is negative.
//! 3. What a method cannot explain is unattributed and never spread over the guests.

use std::collections::{BTreeMap, HashMap};
pub use vtax_units::account::{Stage, Stages};
use vtax_units::{Joules, Nanoseconds};

/// What one guest used itself in an interval.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuestUse {
    /// The guest.
    pub number: u32,
    /// Its own threads and processes and its helpers, soft interrupts in their context included
    /// where the kernel books them so.
    pub own: Stages,
    /// Part of `own` that is no time of this kernel's tasks: the vCPUs of Xen domains.
    pub outside: Nanoseconds,
    /// The container whose control group this guest's monitor is in, and whose time therefore
    /// contains this one's.
    pub inside: Option<u32>,
}

/// What was used in an interval, as the kernel books it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// The interval's length.
    pub span: Nanoseconds,
    /// Processors that were online.
    pub processors: u32,
    /// All time that processors were neither idle nor taken away by a hypervisor below.
    pub total: Nanoseconds,
    /// The time of all tasks of this kernel.
    pub tasks: Nanoseconds,
    /// The kernel's own account of soft interrupt time.
    pub softirq: Nanoseconds,
    /// Whether this kernel books soft interrupts apart from the task that they interrupt
    /// (CONFIG_IRQ_TIME_ACCOUNTING).
    pub softirq_apart: bool,
    /// Each guest's own use.
    pub guests: Vec<GuestUse>,
}

/// What a method found for one guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoWork {
    /// Soft interrupt time that worked for it.
    pub softirq: Nanoseconds,
    /// Soft interrupt time, for whomever, that ran in the context of its tasks.
    pub context: Nanoseconds,
    /// How far `softirq` may be off, where a model made it: see [`Modelled`].
    pub softirq_error: Nanoseconds,
    /// And `context`.
    pub context_error: Nanoseconds,
}

/// What a method found in an interval.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IoCharge {
    /// By guest.
    pub guests: HashMap<u32, IoWork>,
    /// Soft interrupt time that worked for no guest: timers, the host's own devices.
    pub host_softirq: Nanoseconds,
    /// Soft interrupt time that ran in the context of the host's own tasks.
    pub host_context: Nanoseconds,
    /// Soft interrupt time in the kernel's own threads for it, which every kernel books on them.
    pub ksoftirqd: Nanoseconds,
    /// Soft interrupt time that the method saw and could not tell whose it was.
    pub unknown: Nanoseconds,
    /// Whether a model made this, so that the errors are meant.
    pub is_modelled: bool,
    /// How far `host_softirq` may be off.
    pub host_softirq_error: Nanoseconds,
    /// And `host_context`.
    pub host_context_error: Nanoseconds,
}

/// How far times that a model made may be off: half the width of an interval that holds the true value in at least 9
/// of 10 cases. Errors of intervals one after the other add up to no more than their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Modelled {
    /// Of the stages that are no soft interrupts, all together: of the host its tasks. `None` where the kernel
    /// accounts soft interrupts apart, so that these are measured.
    pub own: Option<Nanoseconds>,
    /// Of soft interrupts.
    pub softirq: Nanoseconds,
}

impl Modelled {
    /// With another's, as one.
    pub fn merge(self, other: Self) -> Self {
        let own = |of: Self| of.own.unwrap_or_default().0;
        let is_own = self.own.is_some() || other.own.is_some();
        Self {
            own: is_own.then(|| Nanoseconds(own(self).saturating_add(own(other)))),
            softirq: Nanoseconds(self.softirq.0.saturating_add(other.softirq.0)),
        }
    }

    /// Of everything.
    pub fn total(&self) -> Nanoseconds {
        Nanoseconds(
            self.softirq
                .0
                .saturating_add(self.own.unwrap_or_default().0),
        )
    }
}

/// One guest in an interval.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// The guest.
    pub number: u32,
    /// Its time by stage.
    pub stages: Stages,
    /// What the kernel books on its threads and processes: all that dividing by processes' CPU
    /// time can see.
    pub booked: Nanoseconds,
    /// Its energy.
    pub energy: Joules,
    /// How far its times may be off; `None` where they are measured.
    pub modelled: Option<Modelled>,
}

/// Who used the host's processors in an interval.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ledger {
    /// The interval's length.
    pub span: Nanoseconds,
    /// All time that processors were busy, guests outside this kernel included.
    pub total: Nanoseconds,
    /// The guests, by number.
    pub rows: Vec<Row>,
    /// The host's own tasks.
    pub host: Nanoseconds,
    /// Soft interrupts for no guest.
    pub host_softirq: Nanoseconds,
    /// The host's energy.
    pub host_energy: Joules,
    /// Time that nobody can be charged for.
    pub unattributed: Nanoseconds,
    /// The energy of that.
    pub unattributed_energy: Joules,
    /// By how much the parts exceed the total: sources that are a tick apart. Taken off the
    /// next intervals' unattributed time, so that it does not add up.
    pub excess: Nanoseconds,
    /// What of earlier intervals' excess was taken off this one's unattributed time.
    pub made_good: Nanoseconds,
    /// How far the host's times may be off; `None` where they are measured.
    pub modelled: Option<Modelled>,
    /// And the unattributed time.
    pub unattributed_error: Option<Nanoseconds>,
}

impl Ledger {
    /// Closes the books of an interval. `carried` is the excess of earlier intervals that is not
    /// yet made good, and becomes what is left of it.
    pub fn close(usage: &Usage, io: &IoCharge, carried: &mut Nanoseconds) -> Self {
        let mut own: BTreeMap<u32, Stages> = BTreeMap::new();
        let mut outside = 0u64;
        for guest in &usage.guests {
            own.entry(guest.number).or_default().merge(&guest.own);
            outside = outside.saturating_add(guest.outside.0);
        }
        let guests_tasks: u64 = {
            // What is inside another guest's group is counted there already.
            for guest in &usage.guests {
                if let Some(container) = guest.inside.and_then(|number| own.get_mut(&number)) {
                    container.take(guest.own.total());
                }
            }
            own.values()
                .fold(0u64, |sum, stages| sum.saturating_add(stages.total().0))
                .saturating_sub(outside)
        };
        let host_context = if usage.softirq_apart {
            0
        } else {
            io.host_context.0
        };
        let host = usage
            .tasks
            .0
            .saturating_sub(guests_tasks)
            .saturating_sub(host_context)
            .saturating_sub(io.ksoftirqd.0);

        let modelled = |softirq: Nanoseconds, context: Nanoseconds| {
            io.is_modelled.then_some(Modelled {
                own: (!usage.softirq_apart).then_some(context),
                softirq,
            })
        };
        let mut rows = Vec::with_capacity(own.len());
        for (number, mut stages) in own {
            let work = io.guests.get(&number).copied().unwrap_or_default();
            let booked = stages.total();
            if !usage.softirq_apart {
                stages.take(work.context);
            }
            stages.add(Stage::Softirq, work.softirq);
            rows.push(Row {
                number,
                stages,
                booked,
                energy: Joules(0.0),
                modelled: modelled(work.softirq_error, work.context_error),
            });
        }
        // Work for a guest that has no row (it ended meanwhile) stays visible as nobody's.
        let attributed = rows
            .iter()
            .fold(host, |sum, row| sum.saturating_add(row.stages.total().0))
            .saturating_add(io.host_softirq.0);
        let total = usage.total.0.saturating_add(outside);
        let (rest, over) = (
            total.saturating_sub(attributed),
            attributed.saturating_sub(total),
        );
        let made_good = rest.min(carried.0);
        carried.0 = (carried.0 - made_good).saturating_add(over);
        // At most the time that no task had.
        let unattributed_error = rows
            .iter()
            .filter_map(|row| row.modelled)
            .fold(io.host_softirq_error.0, |sum, row| {
                sum.saturating_add(row.softirq.0)
            })
            .min(usage.total.saturating_since(usage.tasks).0);
        Self {
            span: usage.span,
            total: Nanoseconds(total),
            rows,
            host: Nanoseconds(host),
            host_softirq: io.host_softirq,
            host_energy: Joules(0.0),
            unattributed: Nanoseconds(rest - made_good),
            unattributed_energy: Joules(0.0),
            excess: Nanoseconds(over),
            made_good: Nanoseconds(made_good),
            modelled: modelled(io.host_softirq_error, io.host_context_error),
            unattributed_error: io.is_modelled.then_some(Nanoseconds(unattributed_error)),
        }
    }

    /// The sum of all that is in the ledger.
    pub fn sum(&self) -> Nanoseconds {
        let rows = self
            .rows
            .iter()
            .fold(0u64, |sum, row| sum.saturating_add(row.stages.total().0));
        Nanoseconds(
            rows.saturating_add(self.host.0)
                .saturating_add(self.host_softirq.0)
                .saturating_add(self.unattributed.0),
        )
    }

    /// The sum of all energy in the ledger.
    pub fn energy(&self) -> Joules {
        self.rows
            .iter()
            .fold(self.host_energy + self.unattributed_energy, |sum, row| {
                sum + row.energy
            })
    }

    /// The row of a guest.
    pub fn row(&self, number: u32) -> Option<&Row> {
        let at = self.rows.binary_search_by_key(&number, |row| row.number);
        at.ok().and_then(|at| self.rows.get(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stages(vcpu: u64, emulator: u64) -> Stages {
        let mut stages = Stages::default();
        stages.add(Stage::Vcpu, Nanoseconds(vcpu));
        stages.add(Stage::Emulator, Nanoseconds(emulator));
        stages
    }

    fn guest(number: u32, own: Stages) -> GuestUse {
        GuestUse {
            number,
            own,
            ..GuestUse::default()
        }
    }

    fn work(softirq: u64, context: u64) -> IoWork {
        IoWork {
            softirq: Nanoseconds(softirq),
            context: Nanoseconds(context),
            ..IoWork::default()
        }
    }

    #[test]
    fn soft_interrupts_move_from_whom_they_interrupted_to_whom_they_worked_for() {
        let usage = Usage {
            total: Nanoseconds(1000),
            tasks: Nanoseconds(900),
            guests: vec![guest(1, stages(300, 0)), guest(2, stages(200, 0))],
            ..Usage::default()
        };
        // 100 ns for guest 2 interrupted guest 1, 50 ns for it the idle task.
        let io = IoCharge {
            guests: [(1, work(0, 100)), (2, work(150, 0))].into(),
            ..IoCharge::default()
        };
        let ledger = Ledger::close(&usage, &io, &mut Nanoseconds(0));
        assert_eq!(ledger.row(1).unwrap().stages.total().0, 200);
        assert_eq!(ledger.row(2).unwrap().stages.total().0, 350);
        assert_eq!(ledger.row(2).unwrap().stages.hidden().0, 150);
        assert_eq!((ledger.host.0, ledger.unattributed.0), (400, 50));
        assert_eq!(ledger.sum(), ledger.total);
        // A kernel that books soft interrupts apart has not booked them on guest 1.
        let usage = Usage {
            softirq_apart: true,
            ..usage
        };
        let ledger = Ledger::close(&usage, &io, &mut Nanoseconds(0));
        assert_eq!(ledger.row(1).unwrap().stages.total().0, 300);
    }

    #[test]
    fn a_vm_inside_a_container_is_not_counted_twice() {
        let mut vm = guest(2, stages(300, 100));
        vm.inside = Some(1);
        let usage = Usage {
            total: Nanoseconds(1000),
            tasks: Nanoseconds(1000),
            guests: vec![guest(1, stages(500, 0)), vm],
            ..Usage::default()
        };
        let ledger = Ledger::close(&usage, &IoCharge::default(), &mut Nanoseconds(0));
        assert_eq!(ledger.row(1).unwrap().stages.total().0, 100);
        assert_eq!(ledger.row(2).unwrap().stages.total().0, 400);
        assert_eq!(ledger.host.0, 500);
    }

    #[test]
    fn domains_of_a_hypervisor_below_add_to_the_total() {
        let mut domain = guest(1, stages(700, 0));
        domain.outside = Nanoseconds(700);
        let usage = Usage {
            total: Nanoseconds(100),
            tasks: Nanoseconds(90),
            guests: vec![domain],
            ..Usage::default()
        };
        let ledger = Ledger::close(&usage, &IoCharge::default(), &mut Nanoseconds(0));
        assert_eq!(
            (ledger.total.0, ledger.host.0, ledger.unattributed.0),
            (800, 90, 10)
        );
    }

    #[test]
    fn what_a_method_cannot_explain_is_nobodys() {
        let usage = Usage {
            total: Nanoseconds(1000),
            tasks: Nanoseconds(500),
            guests: vec![guest(1, stages(100, 0))],
            ..Usage::default()
        };
        let io = IoCharge {
            // Guest 9 ended before its row was read.
            guests: [(9, work(200, 0))].into(),
            unknown: Nanoseconds(100),
            ..IoCharge::default()
        };
        let ledger = Ledger::close(&usage, &io, &mut Nanoseconds(0));
        assert_eq!(ledger.unattributed.0, 500);
        assert_eq!(ledger.row(1).unwrap().stages.total().0, 100);
    }

    #[test]
    fn sources_that_are_a_tick_apart_do_not_add_up_to_unattributed_time() {
        let usage = |total| Usage {
            total: Nanoseconds(total),
            tasks: Nanoseconds(1000),
            ..Usage::default()
        };
        let mut carried = Nanoseconds(0);
        let mut unattributed = 0;
        for round in 0..100 {
            let total = if round % 2 == 0 { 990 } else { 1010 };
            let ledger = Ledger::close(&usage(total), &IoCharge::default(), &mut carried);
            unattributed += ledger.unattributed.0;
        }
        assert_eq!((unattributed, carried.0), (0, 0));
    }

    fn any_stages() -> impl Strategy<Value = Stages> {
        prop::array::uniform6(0u64..1_000_000_000).prop_map(|times| {
            let mut stages = Stages::default();
            for (stage, time) in Stage::CHARGED.into_iter().zip(times) {
                stages.add(stage, Nanoseconds(time));
            }
            stages
        })
    }

    proptest! {
        /// Whatever the sources say, the books close and nothing is negative (it is unsigned, so
        /// that an underflow would show as an absurd sum).
        #[test]
        fn the_books_close_on_any_input(
            guests in prop::collection::vec((1u32..6, any_stages(), any::<bool>(), prop::option::of(1u32..6)), 0..6),
            works in prop::collection::hash_map(1u32..8, (0u64..2_000_000_000, 0u64..2_000_000_000), 0..6),
            total in 0u64..20_000_000_000, tasks in 0u64..20_000_000_000,
            host in 0u64..2_000_000_000, context in 0u64..2_000_000_000,
            softirq_apart in any::<bool>(), carried in 0u64..1_000_000_000,
        ) {
            let usage = Usage {
                total: Nanoseconds(total),
                tasks: Nanoseconds(tasks),
                softirq_apart,
                guests: guests.iter().map(|(number, own, is_outside, inside)| GuestUse {
                    number: *number,
                    own: *own,
                    outside: if *is_outside { own.get(Stage::Vcpu) } else { Nanoseconds(0) },
                    inside: inside.filter(|inside| inside != number),
                }).collect(),
                ..Usage::default()
            };
            let io = IoCharge {
                guests: works.iter().map(|(number, (softirq, context))| (*number, work(*softirq, *context))).collect(),
                host_softirq: Nanoseconds(host),
                host_context: Nanoseconds(context),
                ksoftirqd: Nanoseconds(context / 3),
                ..IoCharge::default()
            };
            let mut left = Nanoseconds(carried);
            let ledger = Ledger::close(&usage, &io, &mut left);
            prop_assert_eq!(ledger.sum().0 + ledger.made_good.0, ledger.total.0 + ledger.excess.0);
            prop_assert_eq!(carried + ledger.excess.0, left.0 + ledger.made_good.0);
            prop_assert!(ledger.rows.iter().all(|row| row.stages.total().0 < 1 << 40));
        }
    }
}
