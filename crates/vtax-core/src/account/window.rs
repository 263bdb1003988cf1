//! The account of a trial's window: from counters by owner and name to [`super::close`].

use super::{Account, Host, Owner, Stage, Stages, close};
use crate::Nanoseconds;

/// The owner of the host's own counters.
pub const HOST: &str = "host";
/// The owner of what sampling costs.
pub const OBSERVER: &str = "vtax";

/// The names of the counters that an account is made of, all in nanoseconds.
pub mod counter {
    /// CPU time that an owner's control group or process used, by the scheduler's own clock.
    pub const TOTAL: &str = "cpu.total_ns";
    /// CPU time of a VM's vCPU threads.
    pub const VCPU: &str = "cpu.vcpu_ns";
    /// CPU time of a VM's dedicated I/O threads.
    pub const IOTHREAD: &str = "cpu.iothread_ns";
    /// CPU time of the vhost workers that serve a VM.
    pub const VHOST: &str = "cpu.vhost_ns";
    /// What Domain 0 did for a VM of another host, by a method of charge-back.
    pub const BACKEND: &str = "cpu.backend_ns";
    /// CPU time of a Xen domain's vCPUs, which no process of the host has.
    pub const DOMAIN: &str = "cpu.domain_ns";
    /// CPU time in software interrupt handlers: the host's, or what worked for a subject.
    pub const SOFTIRQ: &str = "cpu.softirq_ns";
    /// CPU time in software interrupt handlers, for whomever, that ran in the context of a subject's
    /// tasks and is inside [`TOTAL`]: 0 on kernels that book it apart.
    pub const SOFTIRQ_CONTEXT: &str = "cpu.softirq_context_ns";
    /// Time with nothing to run and no I/O outstanding.
    pub const IDLE: &str = "cpu.idle_ns";
    /// Time with nothing to run while I/O was outstanding.
    pub const IOWAIT: &str = "cpu.iowait_ns";
    /// Time that a hypervisor below this host ran something else instead.
    pub const STEAL: &str = "cpu.steal_ns";
    /// CPU time of Dom0's vCPUs, as Xen counts it.
    pub const DOM0: &str = "cpu.dom0_ns";
}

/// A window of a trial, or one second of it.
pub struct Window<'a> {
    /// Its length.
    pub span: Nanoseconds,
    /// Processors of the host that were online.
    pub processors: usize,
    /// The guest whose time is split by stage.
    pub target: &'a str,
    /// Whether it is a VM; plain processes have one stage.
    pub is_vm: bool,
    /// The other owners on the host, each with the stage that all of its time is.
    pub others: &'a [(&'a str, Stage)],
    /// What a counter of an owner advanced by; `None` where it was not read.
    pub advance: &'a dyn Fn(&str, &str) -> Option<Nanoseconds>,
}

impl Window<'_> {
    /// The target's charge, those of `others` and that of [`OBSERVER`], in this order; `None` where it is not known
    /// how long the host was busy.
    pub fn account(&self) -> Option<Account> {
        let others = self
            .others
            .iter()
            .map(|(owner, stage)| self.processes(owner, *stage));
        let owners: Vec<Owner> = std::iter::once(self.of_target())
            .chain(others)
            .chain([self.processes(OBSERVER, Stage::Observer)])
            .collect();
        Some(close(&self.host()?, &owners))
    }

    fn time(&self, owner: &str, name: &str) -> Nanoseconds {
        (self.advance)(owner, name).unwrap_or_default()
    }

    /// Busy is what is not idle: idle time is kept by the kernel's high resolution clock, while the user and system
    /// columns are sampled at the tick. When a Dom0 ran, the hypervisor knows exactly.
    fn host(&self) -> Option<Host> {
        let dom0 = (self.advance)(HOST, counter::DOM0);
        let idle = (self.advance)(HOST, counter::IDLE)?;
        let stolen = self.time(HOST, counter::STEAL);
        let processors = u64::try_from(self.processors).unwrap_or(u64::MAX);
        let away = [idle, self.time(HOST, counter::IOWAIT), stolen];
        let busy = away
            .iter()
            .fold(self.span.0.saturating_mul(processors), |rest, time| {
                rest.saturating_sub(time.0)
            });
        Some(Host {
            busy: dom0.unwrap_or(Nanoseconds(busy)),
            stolen,
            tasks_hold_stolen: dom0.is_some(),
            softirqs_hold_stolen: true,
            ..Host::default()
        })
    }

    /// An owner whose tasks are all of one stage.
    fn processes(&self, owner: &str, stage: Stage) -> Owner {
        let mut tasks = Stages::default();
        tasks.add(stage, self.time(owner, counter::TOTAL));
        self.with_tasks(owner, tasks)
    }

    fn with_tasks(&self, owner: &str, tasks: Stages) -> Owner {
        Owner {
            tasks,
            outside: self.time(owner, counter::DOMAIN),
            softirq: self.time(owner, counter::SOFTIRQ),
            context: self.time(owner, counter::SOFTIRQ_CONTEXT),
            inside: None,
        }
    }

    /// Of a Xen domain all tasks are backends; of another VM, tasks that no thread of a role has are the monitor's.
    fn of_target(&self) -> Owner {
        let target = self.target;
        if self.time(target, counter::DOMAIN).0 > 0 {
            return self.processes(target, Stage::Backend);
        }
        if !self.is_vm {
            return self.processes(target, Stage::Service);
        }
        let mut tasks = Stages::default();
        for (stage, name) in [
            (Stage::Vcpu, counter::VCPU),
            (Stage::Iothread, counter::IOTHREAD),
            (Stage::Vhost, counter::VHOST),
            (Stage::Backend, counter::BACKEND),
        ] {
            tasks.add(stage, self.time(target, name));
        }
        let all = self.time(target, counter::TOTAL);
        tasks.add(Stage::Emulator, all.saturating_since(tasks.total()));
        self.with_tasks(target, tasks)
    }
}
