//! Whose CPU time a window was: the rule by which the time that a host was busy is charged to its owners.
//!
//! 1. The charges, the host's own tasks, soft interrupts for nobody and the rest sum to what the host did, up to the
//!    granularity of the counters ([`Account::excess`]).
//! 2. Nothing is negative, and nobody is charged for more than was counted for it.
//! 3. Soft interrupts are taken off the tasks that they interrupted and charged to whom they worked for.
//! 4. What nobody is known to own stays in the rest and is never spread over the owners.
//!
//! ```
//! use vtax_core::Nanoseconds;
//! use vtax_core::account::{Host, Owner, Stage, close};
//! let host = Host { busy: Nanoseconds(1000), ..Host::default() };
//! let mut owner = Owner { softirq: Nanoseconds(150), context: Nanoseconds(100), ..Owner::default() };
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

/// What was counted of a host in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Host {
    /// Time that processors of this kernel were neither idle nor taken away by a hypervisor below.
    pub busy: Nanoseconds,
    /// Time that a hypervisor below took away from them.
    pub stolen: Nanoseconds,
    /// The time of all tasks of this kernel; `None` where it is not read, and the host's own are in the rest.
    pub tasks: Option<Nanoseconds>,
    /// Soft interrupts that worked for no owner.
    pub softirq: Nanoseconds,
    /// Soft interrupts inside the time of tasks that no owner has.
    pub context: Nanoseconds,
    /// Soft interrupts in the kernel's own threads for them (ksoftirqd), which are inside `tasks` on every kernel.
    pub ksoftirqd: Nanoseconds,
    /// Whether the time of tasks goes on while a hypervisor below runs something else. Kernels take that out of
    /// their tasks' time, but Dom0's does not.
    pub tasks_hold_stolen: bool,
    /// Whether that of soft interrupts does: it is so wherever they are timed by the clock.
    pub softirqs_hold_stolen: bool,
}

/// What was counted of an owner in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    /// Its tasks by stage, with the soft interrupts that the kernel books on them.
    pub tasks: Stages,
    /// Its virtual processors that a hypervisor below runs, as Xen does: no time of this kernel, and exact.
    pub outside: Nanoseconds,
    /// Soft interrupts that worked for it, whatever they interrupted.
    pub softirq: Nanoseconds,
    /// Soft interrupts, for whomever, inside `tasks`; nothing where the kernel books them apart.
    pub context: Nanoseconds,
    /// The place of the owner whose tasks hold this one's: the container that a monitor runs in.
    pub inside: Option<usize>,
}

/// What an owner is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Charge {
    /// Its time by stage.
    pub stages: Stages,
    /// What the kernel books on its tasks, with its time outside of this kernel: all that dividing by processes'
    /// CPU time can see.
    pub booked: Nanoseconds,
}

/// A closed window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Account {
    /// All that processors did, the owners' time outside of this kernel included.
    pub total: Nanoseconds,
    /// The owners' charges, in the order in which they were given.
    pub charges: Vec<Charge>,
    /// The host's own tasks, where the time of all tasks is known.
    pub host: Nanoseconds,
    /// Soft interrupts that worked for no owner.
    pub softirq: Nanoseconds,
    /// What remains of the total.
    pub rest: Nanoseconds,
    /// By how much the parts exceed the total: idle time is rounded to ticks, tasks are counted in nanoseconds.
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

/// Closes the books of a window.
pub fn close(host: &Host, owners: &[Owner]) -> Account {
    let ran = host.busy.0.saturating_add(host.stolen.0);
    // Of what a clock counted, the part in which this kernel had the processor.
    let kept = |time: Nanoseconds| match (host.busy.0, host.stolen.0) {
        (0, _) | (_, 0) => time.0,
        (busy, _) => proportion(time.0, busy, ran),
    };
    let of_tasks = |time: Nanoseconds| match host.tasks_hold_stolen {
        true => kept(time),
        false => time.0,
    };
    let of_softirqs = |time: Nanoseconds| match host.softirqs_hold_stolen {
        true => kept(time),
        false => time.0,
    };

    let tasks = |owner: &Owner| {
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
