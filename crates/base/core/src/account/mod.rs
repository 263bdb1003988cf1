// SPDX-License-Identifier: Apache-2.0
//! Accounting of the CPU time of a window: the rules by which the busy time of a host is charged to its owners.
//!
//! 1. The charges, the host's own tasks, soft interrupts without an owner and the rest sum to the total busy time, up
//!    to the granularity of the counters ([`Account::excess`]).
//! 2. Nothing is negative, and no owner is charged for more than was counted for it.
//! 3. Soft interrupts are subtracted from the tasks that they interrupted and charged to the owners they worked for.
//! 4. Time without a known owner stays in the rest and is never spread over the owners.
//!
//! ```
//! use vtax_core::Nanoseconds;
//! use vtax_core::account::{Host, OwnerTimes, Stage, close};
//! let host = Host { busy: Nanoseconds(1000), ..Host::default() };
//! let mut owner = OwnerTimes { softirq: Nanoseconds(150), context: Nanoseconds(100), ..OwnerTimes::default() };
//! owner.tasks.add(Stage::Vcpu, Nanoseconds(300));
//! let account = close(&host, &[owner]);
//! assert_eq!(account.charges[0].stages.get(Stage::Vcpu), Nanoseconds(200));
//! assert_eq!(account.charges[0].stages.total(), Nanoseconds(350));
//! assert_eq!(account.rest, Nanoseconds(650));
//! ```

mod stage;
mod window;

pub use stage::{Stage, Stages};
pub use window::{Part, Window, beside_target};

use crate::Nanoseconds;

/// The counters of a host in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Host {
    /// Time that processors of this kernel were neither idle nor stolen by a hypervisor below.
    pub busy: Nanoseconds,
    /// Time that a hypervisor below stole from them.
    pub stolen: Nanoseconds,
    /// The time of all tasks of this kernel; `None` where it is not read, and the time of the host's own tasks is in
    /// the rest.
    pub tasks: Option<Nanoseconds>,
    /// Soft interrupts that worked for no owner.
    pub softirq: Nanoseconds,
    /// Soft interrupts inside the time of tasks without an owner.
    pub context: Nanoseconds,
    /// Soft interrupts in the kernel's own threads for soft interrupts (ksoftirqd), inside `tasks` on every kernel.
    pub ksoftirqd: Nanoseconds,
    /// Whether the time of tasks includes time that a hypervisor below runs something else. Kernels subtract that time
    /// from their tasks, except the kernel of a Dom0.
    pub tasks_hold_stolen: bool,
    /// Whether the time of soft interrupts includes it: true wherever a clock times soft interrupts.
    pub softirqs_hold_stolen: bool,
}

impl Host {
    /// The counters of a Dom0, whose kernel was not idle for `awake` and which its hypervisor ran for `ran`.
    ///
    /// The kernel counts the wait of a processor that leaves idle both as idle and as stolen. Only the stolen time outside of
    /// idle time can be in the time of its tasks.
    pub fn of_dom0(awake: Nanoseconds, ran: Nanoseconds, stolen: Nanoseconds) -> Self {
        Self {
            busy: ran,
            stolen: stolen.min(Nanoseconds(awake.0.saturating_sub(ran.0))),
            tasks_hold_stolen: true,
            softirqs_hold_stolen: true,
            ..Self::default()
        }
    }
}

/// The counters of an owner in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerTimes {
    /// Its tasks by stage, including the soft interrupts that the kernel accounts to them.
    pub tasks: Stages,
    /// Its virtual processors that a hypervisor below runs, as Xen does. Exact, and no part of this kernel's time.
    pub outside: Nanoseconds,
    /// Soft interrupts that worked for it, whichever task they interrupted.
    pub softirq: Nanoseconds,
    /// Soft interrupts for any owner inside `tasks`; zero where the kernel accounts soft interrupts separately.
    pub context: Nanoseconds,
    /// The index of the owner whose tasks contain this owner's tasks: the container that a monitor runs in.
    pub inside: Option<usize>,
}

/// The time charged to an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Charge {
    /// Its time by stage.
    pub stages: Stages,
    /// The time that the kernel accounts to its tasks, plus its time outside of this kernel. Division by the CPU time
    /// of processes sees only this.
    pub booked: Nanoseconds,
}

/// A closed window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Account {
    /// All time that processors were busy, including the owners' time outside of this kernel.
    pub total: Nanoseconds,
    /// The owners' charges, in the order of the input.
    pub charges: Vec<Charge>,
    /// The host's own tasks, where the time of all tasks is known.
    pub host: Nanoseconds,
    /// Soft interrupts that worked for no owner.
    pub softirq: Nanoseconds,
    /// The remainder of the total.
    pub rest: Nanoseconds,
    /// The amount by which the parts exceed the total: idle time is rounded to ticks, tasks are counted in nanoseconds.
    pub excess: Nanoseconds,
}

impl Account {
    /// The sum of all parts.
    pub fn sum(&self) -> Nanoseconds {
        let charges = self.charges.iter().map(|charge| charge.stages.total().0);
        let parts = charges.chain([self.host.0, self.softirq.0, self.rest.0]);
        Nanoseconds(parts.fold(0, u64::saturating_add))
    }
}

/// Closes the account of a window.
pub fn close(host: &Host, owners: &[OwnerTimes]) -> Account {
    let ran = host.busy.0.saturating_add(host.stolen.0);
    // Of a time that a clock counted, returns the part in which this kernel had the processor.
    let kept = |time: Nanoseconds| match (host.busy.0, host.stolen.0) {
        (0, _) | (_, 0) => time.0,
        (busy, _) => proportion(time.0, busy, ran),
    };
    let of_tasks = |time: Nanoseconds| {
        if host.tasks_hold_stolen {
            kept(time)
        } else {
            time.0
        }
    };
    let of_softirqs = |time: Nanoseconds| {
        if host.softirqs_hold_stolen {
            kept(time)
        } else {
            time.0
        }
    };

    let tasks = |owner: &OwnerTimes| {
        let mut stages = Stages::default();
        for (stage, time) in owner.tasks.iter() {
            stages.add(stage, Nanoseconds(of_tasks(time)));
        }
        stages
    };
    let mut own: Vec<Stages> = owners.iter().map(tasks).collect();
    for (place, owner) in owners.iter().enumerate() {
        let around = owner.inside.filter(|around| *around != place);
        if let Some(around) = around.and_then(|around| own.get_mut(around)) {
            around.take(tasks(owner).total());
        }
    }
    let owned = own
        .iter()
        .fold(0u64, |sum, stages| sum.saturating_add(stages.total().0));
    let charges: Vec<Charge> = own
        .into_iter()
        .zip(owners)
        .map(|(mut stages, owner)| {
            let booked = stages.total().0.saturating_add(owner.outside.0);
            stages.take(Nanoseconds(of_softirqs(owner.context)));
            stages.add(Stage::Softirq, Nanoseconds(of_softirqs(owner.softirq)));
            stages.add(Stage::Vcpu, owner.outside);
            Charge {
                stages,
                booked: Nanoseconds(booked),
            }
        })
        .collect();
    let tasks_of_host = host.tasks.map_or(0, |tasks| {
        of_tasks(tasks)
            .saturating_sub(owned)
            .saturating_sub(of_softirqs(host.context))
            .saturating_sub(of_softirqs(host.ksoftirqd))
    });

    let outside = owners
        .iter()
        .fold(0u64, |sum, owner| sum.saturating_add(owner.outside.0));
    let mut account = Account {
        total: Nanoseconds(host.busy.0.saturating_add(outside)),
        charges,
        host: Nanoseconds(tasks_of_host),
        softirq: Nanoseconds(of_softirqs(host.softirq)),
        ..Account::default()
    };
    let attributed = account.sum();
    account.rest = account.total.saturating_since(attributed);
    account.excess = attributed.saturating_since(account.total);
    account
}

/// `part` × `share` / `whole`, rounded down; nothing where there is no whole.
fn proportion(part: u64, share: u64, whole: u64) -> u64 {
    let product = u128::from(part) * u128::from(share);
    let quotient = product.checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(quotient).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
