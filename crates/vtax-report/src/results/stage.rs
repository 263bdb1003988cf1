//! Who spent the host's CPU time: the stages that it is split into, in metrics, tables and figures.

/// One share of the CPU time of a window. The shares of a trial sum to what the host did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// The service's own processes, where the target is no VM.
    Service,
    /// Guest code: vCPU threads, or a Xen domain's virtual processors.
    Vcpu,
    /// The virtual machine monitor's other threads.
    Emulator,
    /// Its I/O threads.
    Iothread,
    /// The kernel's vhost workers.
    Vhost,
    /// A Xen domain's backends in Dom0.
    Backend,
    /// Soft interrupts that worked for the target, where they are traced.
    Softirq,
    /// The load generator of the target.
    Client,
    /// All guests beside the target, with their load generators.
    Neighbours,
    /// vtax's own sampling.
    Observer,
    /// What nobody owns. Where soft interrupts are not traced it holds those of the target.
    Rest,
}

impl Stage {
    /// Every stage, the target's first, in the order in which figures stack them.
    pub const ALL: [Self; 11] = [
        Self::Service,
        Self::Vcpu,
        Self::Emulator,
        Self::Iothread,
        Self::Vhost,
        Self::Backend,
        Self::Softirq,
        Self::Client,
        Self::Neighbours,
        Self::Observer,
        Self::Rest,
    ];

    /// Its name in metrics: `cpu.stage.NAME`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Vcpu => "vcpu",
            Self::Emulator => "emulator",
            Self::Iothread => "iothread",
            Self::Vhost => "vhost",
            Self::Backend => "backend",
            Self::Softirq => "softirq",
            Self::Client => "client",
            Self::Neighbours => "neighbours",
            Self::Observer => "observer",
            Self::Rest => "rest",
        }
    }

    /// The stage of a name; `None` for one that this vtax does not know.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }

    /// Its metric, in cores.
    pub fn metric(self) -> String {
        format!("cpu.stage.{}", self.name())
    }

    /// The stage of a metric's name; `None` where it is not one of a stage.
    pub fn of_metric(metric: &str) -> Option<Self> {
        Self::named(metric.strip_prefix("cpu.stage.")?)
    }

    /// Who that is, in words that follow "by".
    pub fn words(self) -> &'static str {
        match self {
            Self::Service => "the service's processes",
            Self::Vcpu => "guest code (vCPU threads)",
            Self::Emulator => "the VMM's own threads",
            Self::Iothread => "I/O threads",
            Self::Vhost => "vhost workers",
            Self::Backend => "the domain's backends in Dom0",
            Self::Softirq => "soft interrupts for the target",
            Self::Client => "the client emulator",
            Self::Neighbours => "the neighbours",
            Self::Observer => "vtax's sampling",
            Self::Rest => "the rest of the host (soft interrupts, kernel threads)",
        }
    }

    /// Its colour in every figure.
    pub const fn color(self) -> &'static str {
        match self {
            Self::Service => "#0072B2",
            Self::Vcpu => "#D55E00",
            Self::Emulator => "#E69F00",
            Self::Iothread => "#F0E442",
            Self::Vhost => "#CC79A7",
            Self::Backend => "#8C6BB1",
            Self::Softirq => "#56B4E9",
            Self::Client => "#009E73",
            Self::Neighbours => "#8C564B",
            Self::Observer => "#BDBDBD",
            Self::Rest => "#7F7F7F",
        }
    }

    /// Whether its time is spent for the target in any case. [`Stage::Rest`] is too where soft
    /// interrupts are not traced.
    pub fn is_targets(self) -> bool {
        !matches!(
            self,
            Self::Client | Self::Neighbours | Self::Observer | Self::Rest
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_stage_is_found_by_its_metric_and_looks_like_no_other() {
        let mut looks = BTreeSet::new();
        for stage in Stage::ALL {
            assert_eq!(Stage::of_metric(&stage.metric()), Some(stage));
            assert!(looks.insert(stage.color()) && looks.insert(stage.words()));
        }
        assert_eq!(Stage::of_metric("cpu.stage.irq"), None);
        assert_eq!(Stage::of_metric("cpu.cores"), None);
        let targets = Stage::ALL.iter().filter(|stage| stage.is_targets()).count();
        assert_eq!(targets, 7);
    }
}
