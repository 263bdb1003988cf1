// SPDX-License-Identifier: Apache-2.0
//! The account of a trial's window: from counters by owner and name to [`super::close`].

use super::{Account, Host, OwnerTimes, Stage, Stages, close};
use crate::owner::Owner;
use crate::{Nanoseconds, counter};

/// A window of a trial, or one second of it.
pub struct Window<'a> {
    /// The length of the window.
    pub span: Nanoseconds,
    /// Processors of the host that were online.
    pub processors: usize,
    /// The guest whose time is split by stage.
    pub target: &'a Owner,
    /// Whether the target is a VM; plain processes have one stage.
    pub is_vm: bool,
    /// The other owners on the host, each with the one stage that all of its time is charged as.
    pub others: &'a [(&'a Owner, Stage)],
    /// Returns the advance of a counter, given its owner and name; `None` where it was not read.
    pub advance: &'a dyn Fn(&Owner, &str) -> Option<Nanoseconds>,
}

/// A share of a window's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// The owner; [`Owner::Host`] for the rest.
    pub owner: &'a Owner,
    /// The stage that the time is charged as.
    pub stage: Stage,
    /// The amount of CPU time.
    pub time: Nanoseconds,
}

/// The owners beside the target on its host, each with the one stage that all of its time is charged as. The time of
/// a switch is charged to the target where it is the only guest; with `neighbours` it stays in the rest.
pub fn beside_target<'a>(
    clients: impl IntoIterator<Item = &'a Owner>,
    neighbours: impl IntoIterator<Item = &'a Owner>,
    has_switch: bool,
) -> Vec<(&'a Owner, Stage)> {
    let clients = clients.into_iter().map(|owner| (owner, Stage::Client));
    let mut others: Vec<_> = clients.collect();
    let clients = others.len();
    let neighbours = neighbours.into_iter();
    others.extend(neighbours.map(|owner| (owner, Stage::Neighbours)));
    if has_switch && others.len() == clients {
        others.push((&Owner::Switch, Stage::Switch));
    }
    others
}

impl<'a> Window<'a> {
    /// All time that the host was busy, by owner and stage: the target's stages with any time, `others` in their order,
    /// the cost of sampling, and the rest. `None` where the host's busy time is not known.
    pub fn parts(&self) -> Option<Vec<Part<'a>>> {
        let account = self.account()?;
        let mut charges = account.charges.iter();
        let of_target = charges.next().map(|charge| charge.stages);
        let of_target = of_target.unwrap_or_default();
        let part = |owner, stage, time| Part { owner, stage, time };
        let own = of_target.iter();
        let own = own.map(|(stage, time)| part(self.target, stage, time));
        let observer = [(&Owner::Observer, Stage::Observer)];
        let others = self.others.iter().copied().chain(observer).zip(charges);
        let others =
            others.map(|((owner, stage), charge)| part(owner, stage, charge.stages.total()));
        let rest = part(&Owner::Host, Stage::Rest, account.rest);
        Some(own.chain(others).chain([rest]).collect())
    }

    /// Closes the account of the target, `others` and [`Owner::Observer`]; the charges are in this order.
    fn account(&self) -> Option<Account> {
        let others = self
            .others
            .iter()
            .map(|(owner, stage)| self.processes(owner, *stage));
        let owners: Vec<OwnerTimes> = std::iter::once(self.of_target())
            .chain(others)
            .chain([self.processes(&Owner::Observer, Stage::Observer)])
            .collect();
        Some(close(&self.host()?, &owners))
    }

    fn time(&self, owner: &Owner, name: &str) -> Nanoseconds {
        (self.advance)(owner, name).unwrap_or_default()
    }

    /// Busy time is all time that is not idle: the kernel keeps idle time by its high resolution clock, while it
    /// samples the user and system columns at the tick. Where a Dom0 ran, the hypervisor's own count is exact.
    fn host(&self) -> Option<Host> {
        let idle = (self.advance)(&Owner::Host, counter::CPU_IDLE)?;
        let stolen = self.time(&Owner::Host, counter::CPU_STEAL);
        let processors = u64::try_from(self.processors).unwrap_or(u64::MAX);
        let capacity = self.span.0.saturating_mul(processors);
        let away = idle
            .0
            .saturating_add(self.time(&Owner::Host, counter::CPU_IOWAIT).0);
        let awake = Nanoseconds(capacity.saturating_sub(away));
        if let Some(ran) = (self.advance)(&Owner::Host, counter::CPU_DOM0) {
            return Some(Host::of_dom0(awake, ran, stolen));
        }
        Some(Host {
            busy: Nanoseconds(awake.0.saturating_sub(stolen.0)),
            stolen,
            softirqs_hold_stolen: true,
            ..Host::default()
        })
    }

    /// An owner whose tasks are all of one stage.
    fn processes(&self, owner: &Owner, stage: Stage) -> OwnerTimes {
        let mut tasks = Stages::default();
        tasks.add(stage, self.time(owner, counter::CPU_TOTAL));
        self.with_tasks(owner, tasks)
    }

    fn with_tasks(&self, owner: &Owner, tasks: Stages) -> OwnerTimes {
        OwnerTimes {
            tasks,
            outside: self.time(owner, counter::CPU_DOMAIN),
            softirq: self.time(owner, counter::CPU_SOFTIRQ),
            context: self.time(owner, counter::CPU_SOFTIRQ_CONTEXT),
            inside: None,
        }
    }

    /// In a Xen domain all tasks are backends. In any other VM, tasks outside the threads with a role are the
    /// monitor's.
    fn of_target(&self) -> OwnerTimes {
        let target = self.target;
        if self.time(target, counter::CPU_DOMAIN).0 > 0 {
            return self.processes(target, Stage::Backend);
        }
        if !self.is_vm {
            return self.processes(target, Stage::Service);
        }
        let mut tasks = Stages::default();
        for (stage, name) in [
            (Stage::Vcpu, counter::CPU_VCPU),
            (Stage::Iothread, counter::CPU_IOTHREAD),
            (Stage::Vhost, counter::CPU_VHOST),
            (Stage::Backend, counter::CPU_BACKEND),
        ] {
            tasks.add(stage, self.time(target, name));
        }
        let all = self.time(target, counter::CPU_TOTAL);
        tasks.add(Stage::Emulator, all.saturating_since(tasks.total()));
        self.with_tasks(target, tasks)
    }
}
