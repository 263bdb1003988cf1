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
    /// Processes of the switch itself, where the target is the only guest.
    Switch,
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
    pub const ALL: [Self; 12] = [
        Self::Service,
        Self::Vcpu,
        Self::Emulator,
        Self::Iothread,
        Self::Vhost,
        Self::Backend,
        Self::Softirq,
        Self::Switch,
        Self::Client,
        Self::Neighbours,
        Self::Observer,
        Self::Rest,
    ];

    /// Its name in metrics, who that is in words that follow "by", and its colour in every figure.
    const fn looks(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Service => ("service", "the service's processes", "#0072B2"),
            Self::Vcpu => ("vcpu", "guest code (vCPU threads)", "#D55E00"),
            Self::Emulator => ("emulator", "the VMM's own threads", "#E69F00"),
            Self::Iothread => ("iothread", "I/O threads", "#F0E442"),
            Self::Vhost => ("vhost", "vhost workers", "#CC79A7"),
            Self::Backend => ("backend", "the domain's backends in Dom0", "#8C6BB1"),
            Self::Softirq => ("softirq", "soft interrupts for the target", "#56B4E9"),
            Self::Switch => ("switch", "the switch's own processes", "#332288"),
            Self::Client => ("client", "the client emulator", "#009E73"),
            Self::Neighbours => ("neighbours", "the neighbours", "#8C564B"),
            Self::Observer => ("observer", "vtax's sampling", "#BDBDBD"),
            Self::Rest => {
                let words = "the rest of the host (soft interrupts, kernel threads)";
                ("rest", words, "#7F7F7F")
            }
        }
    }

    /// Its name in metrics: `cpu.stage.NAME`.
    pub const fn name(self) -> &'static str {
        self.looks().0
    }

    /// Its metric, in cores.
    pub fn metric(self) -> String {
        format!("cpu.stage.{}", self.name())
    }

    /// Who that is, in words that follow "by".
    pub const fn words(self) -> &'static str {
        self.looks().1
    }

    /// Its colour in every figure.
    pub const fn color(self) -> &'static str {
        self.looks().2
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
    fn a_stage_looks_like_no_other() {
        let mut looks = BTreeSet::new();
        for stage in Stage::ALL {
            let (name, words, color) = stage.looks();
            assert!(looks.insert(name) && looks.insert(color) && looks.insert(words));
        }
        let targets = Stage::ALL.iter().filter(|stage| stage.is_targets()).count();
        assert_eq!(targets, 8);
    }
}
