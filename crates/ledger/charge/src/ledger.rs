// SPDX-License-Identifier: Apache-2.0
//! The ledger of one interval: arithmetic only, so that tests can check its invariants on any input.
//!
//! Time is divided by [`vtax_core::account`]. The ledger adds the data of several intervals and of methods: an excess
//! that is subtracted from later unattributed time, the errors of models, and energy. Time that a method cannot explain
//! is unattributed and never spread over the guests.

use std::collections::{BTreeMap, HashMap};
use vtax_core::account::{self, Host, OwnerTimes};
pub use vtax_core::account::{Stage, Stages};
use vtax_core::{Joules, Nanoseconds};

/// The own use of one guest in an interval.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuestUse {
    /// The guest.
    pub number: u32,
    /// The time of its own threads and processes and its helpers, including soft interrupts in their context where the
    /// kernel accounts them to the interrupted task.
    pub own: Stages,
    /// The part of `own` that is not time of this kernel's tasks: the vCPUs of Xen domains.
    pub outside: Nanoseconds,
    /// The container whose control group contains this guest's monitor, and whose time therefore contains this guest's
    /// time.
    pub inside: Option<u32>,
}

/// The use of a host in an interval, as the kernel accounts it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// The interval's length.
    pub span: Nanoseconds,
    /// The number of online processors.
    pub processors: u32,
    /// All time that processors were neither idle nor stolen by a hypervisor below.
    pub total: Nanoseconds,
    /// Time that a hypervisor below stole.
    pub stolen: Nanoseconds,
    /// The time of all tasks of this kernel.
    pub tasks: Nanoseconds,
    /// Whether that time, and guests' own time, includes time that a hypervisor below runs something else: in a Dom0.
    pub tasks_hold_stolen: bool,
    /// The kernel's own account of soft interrupt time.
    pub softirq: Nanoseconds,
    /// Whether this kernel accounts soft interrupts separately from the task that they interrupt
    /// (CONFIG_IRQ_TIME_ACCOUNTING).
    pub softirq_apart: bool,
    /// Each guest's own use.
    pub guests: Vec<GuestUse>,
    /// The time of containers that ended within the interval, which is not part of any guest's own use.
    pub departed: Nanoseconds,
}

/// The result of a method for one guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoWork {
    /// Soft interrupt time that worked for it.
    pub softirq: Nanoseconds,
    /// Soft interrupt time, for any owner, that ran in the context of its tasks.
    pub context: Nanoseconds,
    /// The error of `softirq`, where a model computed it: see [`Modelled`].
    pub softirq_error: Nanoseconds,
    /// The error of `context`.
    pub context_error: Nanoseconds,
}

/// The result of a method for an interval.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IoCharge {
    /// By guest.
    pub guests: HashMap<u32, IoWork>,
    /// Soft interrupt time that worked for no guest: timers, the host's own devices.
    pub host_softirq: Nanoseconds,
    /// Soft interrupt time that ran in the context of the host's own tasks.
    pub host_context: Nanoseconds,
    /// Soft interrupt time in the kernel's own threads for soft interrupts, which every kernel accounts to those
    /// threads.
    pub ksoftirqd: Nanoseconds,
    /// Soft interrupt time that the method saw and could not attribute.
    pub unknown: Nanoseconds,
    /// Whether a clock timed the results; it includes time that a hypervisor below runs something else.
    pub is_by_clock: bool,
    /// Whether a model computed the results, so that the errors are valid.
    pub is_modelled: bool,
    /// The error of `host_softirq`.
    pub host_softirq_error: Nanoseconds,
    /// The error of `host_context`.
    pub host_context_error: Nanoseconds,
}

/// The error of times that a model computed: half the width of an interval that holds the true value in at least 9 of
/// 10 cases. The error over several intervals is at most the sum of their errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Modelled {
    /// The error of all stages other than soft interrupts, together; for the host, of its tasks. `None` where the
    /// kernel accounts soft interrupts separately, so that these stages are measured.
    pub own: Option<Nanoseconds>,
    /// The error of soft interrupts.
    pub softirq: Nanoseconds,
}

impl Modelled {
    /// Adds two errors.
    pub fn merge(self, other: Self) -> Self {
        let own = |of: Self| of.own.unwrap_or_default().0;
        let is_own = self.own.is_some() || other.own.is_some();
        Self {
            own: is_own.then(|| Nanoseconds(own(self).saturating_add(own(other)))),
            softirq: Nanoseconds(self.softirq.0.saturating_add(other.softirq.0)),
        }
    }

    /// The error of the whole time.
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
    /// The time that the kernel accounts to its threads and processes. Division by the CPU time of processes sees only
    /// this.
    pub booked: Nanoseconds,
    /// Its energy.
    pub energy: Joules,
    /// The error of its times; `None` where they are measured.
    pub modelled: Option<Modelled>,
}

impl Row {
    /// Soft interrupts that the kernel accounts to its threads and processes and that are not charged to it.
    pub fn taken(&self) -> Nanoseconds {
        let own = self.stages.total();
        let own = own.saturating_since(self.stages.get(Stage::Softirq));
        self.booked.saturating_since(own)
    }
}

/// The use of the host's processors in an interval, by guest.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ledger {
    /// The interval's length.
    pub span: Nanoseconds,
    /// All time that processors were busy, including guests outside this kernel.
    pub total: Nanoseconds,
    /// The guests, by number.
    pub rows: Vec<Row>,
    /// The guests that ended within the interval, together: the time that is in no other row. Its number is 0, which no
    /// guest has.
    pub departed: Row,
    /// The host's own tasks.
    pub host: Nanoseconds,
    /// Soft interrupts for no guest.
    pub host_softirq: Nanoseconds,
    /// The host's energy.
    pub host_energy: Joules,
    /// Time that cannot be attributed to any owner.
    pub unattributed: Nanoseconds,
    /// The energy of the unattributed time.
    pub unattributed_energy: Joules,
    /// The amount by which the parts exceed the total, from sources that are a tick apart. It is subtracted from the
    /// next intervals' unattributed time, so that it does not accumulate.
    pub excess: Nanoseconds,
    /// The excess of earlier intervals that was subtracted from this one's unattributed time.
    pub made_good: Nanoseconds,
    /// The error of the host's times; `None` where they are measured.
    pub modelled: Option<Modelled>,
    /// The error of the unattributed time.
    pub unattributed_error: Option<Nanoseconds>,
}

impl Ledger {
    /// Closes the account of an interval. `carried` is the excess of earlier intervals that has not been subtracted
    /// yet; it is updated to the remaining excess.
    pub fn close(usage: &Usage, io: &IoCharge, carried: &mut Nanoseconds) -> Self {
        let mut places: BTreeMap<u32, usize> = BTreeMap::new();
        for guest in &usage.guests {
            places.entry(guest.number).or_default();
        }
        for (place, at) in places.values_mut().enumerate() {
            *at = place;
        }
        // On kernels that account soft interrupts separately, the time of tasks contains none.
        let context = |time: Nanoseconds| {
            if usage.softirq_apart {
                Nanoseconds(0)
            } else {
                time
            }
        };
        let work = |number: u32| io.guests.get(&number).copied().unwrap_or_default();
        let of_method = |number: &u32| OwnerTimes {
            softirq: work(*number).softirq,
            context: context(work(*number).context),
            ..OwnerTimes::default()
        };
        let mut owners: Vec<OwnerTimes> = places.keys().map(of_method).collect();
        for guest in &usage.guests {
            let owner = places.get(&guest.number).and_then(|at| owners.get_mut(*at));
            let Some(owner) = owner else { continue };
            for (stage, time) in guest.own.iter() {
                let of_tasks = match stage {
                    Stage::Vcpu => time.saturating_since(guest.outside),
                    _ => time,
                };
                owner.tasks.add(stage, of_tasks);
            }
            let outside = owner.outside.0.saturating_add(guest.outside.0);
            owner.outside = Nanoseconds(outside);
            let around = guest.inside.and_then(|number| places.get(&number));
            owner.inside = around.copied().or(owner.inside);
        }
        let mut departed = OwnerTimes::default();
        departed.tasks.add(Stage::Vcpu, usage.departed);
        owners.push(departed);
        let host = Host {
            busy: usage.total,
            stolen: usage.stolen,
            tasks: Some(usage.tasks),
            softirq: io.host_softirq,
            context: context(io.host_context),
            ksoftirqd: io.ksoftirqd,
            tasks_hold_stolen: usage.tasks_hold_stolen,
            softirqs_hold_stolen: io.is_by_clock,
        };
        let account = account::close(&host, &owners);

        let modelled = |softirq: Nanoseconds, context: Nanoseconds| {
            io.is_modelled.then_some(Modelled {
                own: (!usage.softirq_apart).then_some(context),
                softirq,
            })
        };
        let charged = places.keys().zip(&account.charges);
        let rows: Vec<Row> = charged
            .map(|(number, charge)| Row {
                number: *number,
                stages: charge.stages,
                booked: charge.booked,
                energy: Joules(0.0),
                modelled: modelled(work(*number).softirq_error, work(*number).context_error),
            })
            .collect();
        let departed = account.charges.last().copied().unwrap_or_default();
        // Work for a guest without a row (it has ended meanwhile) stays visible as unattributed.
        let made_good = account.rest.0.min(carried.0);
        carried.0 = (carried.0 - made_good).saturating_add(account.excess.0);
        // At most the time outside all tasks.
        let unattributed_error = rows
            .iter()
            .filter_map(|row| row.modelled)
            .fold(io.host_softirq_error.0, |sum, row| {
                sum.saturating_add(row.softirq.0)
            })
            .min(usage.total.saturating_since(usage.tasks).0);
        Self {
            span: usage.span,
            total: account.total,
            rows,
            departed: Row {
                stages: departed.stages,
                booked: departed.booked,
                ..Row::default()
            },
            host: account.host,
            host_softirq: account.softirq,
            host_energy: Joules(0.0),
            unattributed: Nanoseconds(account.rest.0 - made_good),
            unattributed_energy: Joules(0.0),
            excess: account.excess,
            made_good: Nanoseconds(made_good),
            modelled: modelled(io.host_softirq_error, io.host_context_error),
            unattributed_error: io.is_modelled.then_some(Nanoseconds(unattributed_error)),
        }
    }

    /// The rows of the guests, and then of those that ended within the interval.
    pub fn charged(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().chain([&self.departed])
    }

    /// The sum of all times in the ledger.
    pub fn sum(&self) -> Nanoseconds {
        let rows = self
            .charged()
            .fold(0u64, |sum, row| sum.saturating_add(row.stages.total().0));
        Nanoseconds(
            rows.saturating_add(self.host.0)
                .saturating_add(self.host_softirq.0)
                .saturating_add(self.unattributed.0),
        )
    }

    /// The sum of all energy in the ledger.
    pub fn energy(&self) -> Joules {
        self.charged()
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
        // 100 ns for guest 2 interrupted guest 1, 50 ns for guest 2 interrupted the idle task.
        let io = IoCharge {
            guests: [(1, work(0, 100)), (2, work(150, 0))].into(),
            ..IoCharge::default()
        };
        let ledger = Ledger::close(&usage, &io, &mut Nanoseconds(0));
        assert_eq!(ledger.row(1).unwrap().stages.total().0, 200);
        assert_eq!(ledger.row(2).unwrap().stages.total().0, 350);
        let taken = [1, 2].map(|number| ledger.row(number).unwrap().taken().0);
        assert_eq!(taken, [100, 0]);
        assert_eq!(ledger.row(2).unwrap().stages.hidden().0, 150);
        assert_eq!((ledger.host.0, ledger.unattributed.0), (400, 50));
        assert_eq!(ledger.sum(), ledger.total);
        // A kernel that accounts soft interrupts separately has not added them to guest 1's time.
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
    fn time_that_a_hypervisor_below_took_is_in_no_row() {
        let usage = Usage {
            total: Nanoseconds(800),
            stolen: Nanoseconds(200),
            tasks: Nanoseconds(700),
            guests: vec![guest(1, stages(0, 400))],
            ..Usage::default()
        };
        let io = IoCharge {
            guests: [(1, work(100, 50))].into(),
            is_by_clock: true,
            ..IoCharge::default()
        };
        let found = |usage: &Usage, io: &IoCharge| {
            let ledger = Ledger::close(usage, io, &mut Nanoseconds(0));
            let stages = ledger.rows[0].stages;
            let of = |stage| stages.get(stage).0;
            let parts = (of(Stage::Emulator), of(Stage::Softirq), ledger.host.0);
            assert_eq!(ledger.sum(), ledger.total);
            parts
        };
        assert_eq!(found(&usage, &io), (360, 80, 300));
        let sampled = IoCharge {
            is_by_clock: false,
            ..io.clone()
        };
        assert_eq!(found(&usage, &sampled), (350, 100, 300));
        let dom0 = Usage {
            tasks_hold_stolen: true,
            ..usage
        };
        assert_eq!(found(&dom0, &io), (280, 80, 240));
    }

    #[test]
    fn soft_interrupts_in_back_ends_leave_a_domains_own_time_as_xen_counts_it() {
        let mut domain = guest(1, stages(900, 0));
        domain.outside = Nanoseconds(900);
        domain.own.add(Stage::Backend, Nanoseconds(100));
        let usage = Usage {
            total: Nanoseconds(300),
            tasks: Nanoseconds(200),
            guests: vec![domain],
            ..Usage::default()
        };
        let io = IoCharge {
            guests: [(1, work(40, 40))].into(),
            ..IoCharge::default()
        };
        let ledger = Ledger::close(&usage, &io, &mut Nanoseconds(0));
        let row = ledger.row(1).unwrap();
        assert_eq!(row.stages.get(Stage::Vcpu).0, 900);
        assert_eq!(row.stages.get(Stage::Backend).0, 60);
        assert_eq!((row.booked.0, row.stages.total().0), (1000, 1000));
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
        /// For any values of the sources, the parts sum to the total and nothing is negative (times are unsigned, so an
        /// underflow would show as an absurd sum).
        #[test]
        fn the_books_close_on_any_input(
            guests in prop::collection::vec((1u32..6, any_stages(), any::<bool>(), prop::option::of(1u32..6)), 0..6),
            works in prop::collection::hash_map(1u32..8, (0u64..2_000_000_000, 0u64..2_000_000_000), 0..6),
            total in 0u64..20_000_000_000, tasks in 0u64..20_000_000_000,
            host in 0u64..2_000_000_000, context in 0u64..2_000_000_000,
            softirq_apart in any::<bool>(), carried in 0u64..1_000_000_000, departed in 0u64..2_000_000_000,
            stolen in 0u64..20_000_000_000, tasks_hold_stolen in any::<bool>(), is_by_clock in any::<bool>(),
        ) {
            let usage = Usage {
                total: Nanoseconds(total),
                stolen: Nanoseconds(stolen),
                tasks: Nanoseconds(tasks),
                tasks_hold_stolen,
                softirq_apart,
                departed: Nanoseconds(departed),
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
                is_by_clock,
                ..IoCharge::default()
            };
            let mut left = Nanoseconds(carried);
            let ledger = Ledger::close(&usage, &io, &mut left);
            prop_assert_eq!(ledger.sum().0 + ledger.made_good.0, ledger.total.0 + ledger.excess.0);
            prop_assert_eq!(carried + ledger.excess.0, left.0 + ledger.made_good.0);
            prop_assert!(ledger.departed.stages.total().0 <= departed);
            prop_assert!(ledger.rows.iter().all(|row| row.stages.total().0 < 1 << 40));
        }
    }
}
