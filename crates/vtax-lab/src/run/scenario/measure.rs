//! From what was observed of a guest and a load generator's result to a trial's metrics.

use super::observation::{CpuShares, Inner, Observation};
use super::residency::{self, ResidencyMetric};
use crate::external::xenapi::DOM0;
use std::collections::BTreeMap;
use vtax_core::{Base, Quantity, Source, Unit};
use vtax_load::workload::check::Account;
use vtax_load::workload::{WorkDone, WorkloadResult};
use vtax_observe::counters::Rule;
use vtax_observe::metric;
use vtax_report::results::{Better, Metric, Stage, Work};

/// What a guest's frames must amount to before notifications are divided by them.
const ENOUGH_BYTES: f64 = 1e6;

/// What a summary leads with where the guest has the vtax NIC, beside the workload's own.
const HOLDING: &[&str] = &[
    "cpu.outside_guest.per_work",
    "guest.interrupts.per_gb",
    "nic.kicks.per_gb",
    "rtt.mean",
    "download.p50",
];

/// Metrics as they are added, with the flag of the guest's platform.
struct MetricSet {
    metrics: BTreeMap<String, Metric>,
    source: Source,
}

impl MetricSet {
    fn add(&mut self, name: &str, title: &str, value: f64, unit: Unit, better: Better) {
        let metric = Metric {
            quantity: Quantity::new(value, unit),
            source: self.source,
            model: None,
            better,
            headline: false,
            title: title.to_owned(),
        };
        self.metrics.insert(name.to_owned(), metric);
    }

    fn lead(&mut self, name: &str) {
        if let Some(metric) = self.metrics.get_mut(name) {
            metric.headline = true;
        }
    }
}

/// Counters of the host that become rates: metric, series, title, what is counted.
const HOST_RATES: [(&str, &str, &str, Base); 8] = [
    (
        "interrupts.per_second",
        metric::INTERRUPTS_TOTAL,
        "interrupts of the host",
        Base::Interrupt,
    ),
    (
        "context_switches.per_second",
        metric::CONTEXT_SWITCHES,
        "context switches of the host",
        Base::One,
    ),
    (
        "kvm.exits.per_second",
        metric::KVM_EXITS,
        "VM exits",
        Base::Exit,
    ),
    (
        "cycles.per_second",
        metric::HW_CYCLES,
        "cycles of the host",
        Base::Cycle,
    ),
    (
        "instructions.per_second",
        metric::HW_INSTRUCTIONS,
        "instructions of the host",
        Base::Instruction,
    ),
    (
        "llc.references_per_second",
        metric::HW_LLC_REFERENCES,
        "last level cache references",
        Base::CacheEvent,
    ),
    (
        "llc.misses_per_second",
        metric::HW_LLC_MISSES,
        "last level cache misses",
        Base::CacheEvent,
    ),
    (
        "xen.machine.pages_exchanged_per_second",
        metric::XEN_PAGES_EXCHANGED,
        "pages exchanged with all domains",
        Base::Page,
    ),
];

/// Counters of a guest that become rates.
const GUEST_RATES: [(&str, &str, &str, Base); 7] = [
    (
        "net.rx_packets_per_second",
        metric::NET_RX_PACKETS,
        "frames from the target's device",
        Base::Packet,
    ),
    (
        "net.tx_packets_per_second",
        metric::NET_TX_PACKETS,
        "frames to the target's device",
        Base::Packet,
    ),
    (
        "net.rx_bytes_per_second",
        metric::NET_RX_BYTES,
        "bytes from the target's device",
        Base::Byte,
    ),
    (
        "net.tx_bytes_per_second",
        metric::NET_TX_BYTES,
        "bytes to the target's device",
        Base::Byte,
    ),
    (
        "xen.pages_exchanged_per_second",
        metric::XEN_PAGES_EXCHANGED,
        "pages exchanged with the target's domain",
        Base::Page,
    ),
    (
        "xen.pages_copied_per_second",
        metric::XEN_PAGES_COPIED,
        "pages copied by grant operations for it",
        Base::Page,
    ),
    (
        "xen.pages_mapped_per_second",
        metric::XEN_PAGES_MAPPED,
        "pages mapped by grant operations for it",
        Base::Page,
    ),
];

/// What a guest's devices carried, for whoever watches.
const CARRIED: [(&str, &str, Base); 6] = [
    (metric::NET_TX_BYTES, "to its network device", Base::Byte),
    (metric::NET_RX_BYTES, "from its network device", Base::Byte),
    (metric::NET_TX_PACKETS, "frames to it", Base::Packet),
    (metric::NET_RX_PACKETS, "frames from it", Base::Packet),
    (metric::BLOCK_READ_BYTES, "read from its disks", Base::Byte),
    (
        metric::BLOCK_WRITE_BYTES,
        "written to its disks",
        Base::Byte,
    ),
];

/// The guest's own counters that become rates: metric, key, title.
const INNER_RATES: [(&str, &str, &str); 3] = [
    (
        "guest.interrupts.per_second",
        "interrupts.total",
        "interrupts inside the guest",
    ),
    (
        "nic.calls.per_second",
        "nic.calls",
        "interrupts that the NIC raised",
    ),
    (
        "nic.kicks.per_second",
        "nic.kicks",
        "notifications that the guest sent to the NIC",
    ),
];

/// The guest's own times that become processors: metric, key, title.
const INNER_TIMES: [(&str, &str, &str); 2] = [
    (
        "guest.cpu.cores",
        "cpu.busy_ns",
        "processors busy as the guest sees them",
    ),
    (
        "guest.cpu.steal",
        "cpu.steal_ns",
        "processors that the guest was ready for and did not get",
    ),
];

/// Notifications of the same frames that they are divided by: both were read together.
const PER_GB: [(&str, &str, &str); 3] = [
    (
        "guest.interrupts.per_gb",
        "interrupts.paravirtual",
        "interrupts of the guest's paravirtual devices for 1 GB of frames",
    ),
    (
        "nic.calls.per_gb",
        "nic.calls",
        "interrupts that the NIC raised for 1 GB of frames",
    ),
    (
        "nic.kicks.per_gb",
        "nic.kicks",
        "notifications to the NIC for 1 GB of frames",
    ),
];

impl Observation<'_> {
    /// What the guest's devices carried, a second.
    pub(super) fn carried(&self) -> BTreeMap<String, Quantity> {
        let seconds = self.seconds();
        let owner = self.guests.get(self.guest).map(|guest| &guest.owner);
        let carried = CARRIED.into_iter().filter_map(|(series, title, base)| {
            let rate = self.delta(owner?, series)? / seconds;
            let unit = Unit::per(base, Base::Second);
            Some((title.to_owned(), Quantity::new(rate, unit)))
        });
        carried
            .filter(|(_, quantity)| quantity.value.is_finite())
            .collect()
    }

    /// What the load generator claims of the window and the guest's counters contradict. Where a
    /// guest has no such counter, nothing does.
    pub(super) fn contradictions(&self, result: &WorkloadResult) -> impl Iterator<Item = String> {
        let seconds = self.seconds();
        let guest = self.guests.get(self.guest);
        let counted = move |account: Account| {
            let owner = &guest?.owner;
            match account {
                Account::Clock => Some(seconds),
                _ => account
                    .series()
                    .iter()
                    .map(|series| self.delta(owner, series))
                    .sum(),
            }
        };
        result.claims.iter().filter_map(move |claim| {
            let reason = claim.disagreement(counted(claim.account)?, seconds)?;
            Some(match self.guest {
                0 => reason,
                _ => format!("{}: {reason}", guest?.owner),
            })
        })
    }

    /// Joules of the window, and the worst flag of the meters that gave them.
    pub(super) fn energy(&self) -> Option<(f64, Source)> {
        let mut sum = None;
        let mut guests = self.guests.iter().map(|guest| &guest.owner);
        let in_a_domain = guests.any(|guest| self.delta(guest, metric::CPU_DOMAIN).is_some());
        for (name, source) in self.energy {
            // The model turns this kernel's CPU time into joules, and a Xen domain's is not in it:
            // no number is better than one that leaves the guest out.
            if in_a_domain && *source == Source::Modelled {
                return None;
            }
            let joules = self.delta("host", name)?;
            let (total, worst) = sum.unwrap_or((0.0, Source::Measured));
            sum = Some((total + joules, source.combine(worst)));
        }
        sum
    }

    /// All metrics of the guest, its load generator's included, and of the host where the guest is
    /// the target.
    pub(super) fn metrics(&self, result: &WorkloadResult) -> BTreeMap<String, Metric> {
        let source = self.source();
        let mut set = MetricSet {
            metrics: result.metrics.clone(),
            source,
        };
        for metric in set.metrics.values_mut() {
            metric.source = metric.source.combine(source);
        }
        let seconds = self.seconds();
        if seconds <= 0.0 {
            return set.metrics;
        }
        let work = result.work.as_ref().map(|work| in_window(work, seconds));
        let work = work.filter(|work| work.amount > 0.0);
        self.add_cpu(&mut set, seconds, work.as_ref());
        if result.work.is_none() {
            set.lead("cpu.cores");
        }
        // What this host did is the target's cost only where the target is on it.
        let is_here = self
            .guests
            .get(self.guest)
            .is_some_and(|guest| guest.is_here);
        if self.guest == 0 && is_here {
            self.add_energy(&mut set, seconds, work.as_ref());
            if result.work.is_none() {
                set.lead("power.mean");
            }
            self.add_rates(&mut set, seconds, "host", &HOST_RATES);
            for found in residency::between(self.begin, self.end, seconds) {
                let ResidencyMetric {
                    name,
                    title,
                    value,
                    unit,
                } = found;
                set.add(&name, &title, value, unit, Better::Neither);
            }
        }
        if let Some(guest) = self.guests.get(self.guest) {
            self.add_rates(&mut set, seconds, &guest.owner, &GUEST_RATES);
            let pages = self.delta(&guest.owner, metric::XEN_PAGES_EXCHANGED);
            if let Some((pages, work)) = pages.zip(work.as_ref()) {
                let name = "xen.pages_exchanged.per_work";
                let title = format!("pages exchanged to {}", work.phrase);
                let unit = Unit::per(Base::Page, work.unit.base);
                set.add(name, &title, pages / work.amount, unit, Better::Lower);
            }
        }
        if self.guest == 0 {
            self.add_network_of_all(&mut set, seconds);
        }
        if let Some(inner) = self.inner.filter(|inner| inner.between > 0.0) {
            add_inner(&mut set, inner);
        }
        set.metrics
    }

    fn add_cpu(&self, set: &mut MetricSet, seconds: f64, work: Option<&Work>) {
        let Some(cpu) = self.cpu() else { return };
        let cores = Unit::of(Base::Core);
        let spent = cpu.for_target();
        let of_platform = set.source;
        // Where Domain 0's part is charged, all that it is in is no better than the method.
        let guest = self
            .guests
            .get(self.guest)
            .map_or("", |guest| guest.owner.as_str());
        let of_backend = self.end.source(guest, metric::CPU_BACKEND);
        let charged = of_backend.map_or(of_platform, |source| source.combine(of_platform));
        set.source = charged;
        let title = "processors kept busy for the target";
        set.add("cpu.cores", title, spent / seconds, cores, Better::Lower);
        if self.guest == 0 {
            let title = "processors kept busy in all";
            set.add(
                "cpu.machine",
                title,
                cpu.busy / seconds,
                cores,
                Better::Lower,
            );
            if let Some(stolen) = self.delta("host", metric::CPU_STEAL) {
                let title = "processors that this host's hypervisor gave to others";
                let stolen = stolen / 1e9 / seconds;
                set.add("cpu.steal", title, stolen, cores, Better::Lower);
            }
        }
        for (stage, value) in &cpu.stages {
            // Of a neighbour, what everybody else did is told by their own records.
            if self.guest != 0 && [Stage::Neighbours, Stage::Observer, Stage::Rest].contains(stage)
            {
                continue;
            }
            set.source = match stage {
                Stage::Vcpu => of_platform,
                _ => charged,
            };
            let title = format!("processors kept busy by {}", stage.words());
            let name = stage.metric();
            set.add(&name, &title, value / seconds, cores, Better::Neither);
        }
        set.source = charged;
        if let Some(work) = work {
            self.add_cpu_per_work(set, &cpu, work);
        }
        set.source = of_platform;
        if let Some(dom0) = self
            .delta(DOM0, metric::CPU_TOTAL)
            .filter(|_| self.guest == 0)
        {
            let title = "processors kept busy by Domain 0, counted by the pool";
            let busy = dom0 / 1e9 / seconds;
            set.add("cpu.dom0", title, busy, cores, Better::Neither);
        }
    }

    fn add_cpu_per_work(&self, set: &mut MetricSet, cpu: &CpuShares, work: &Work) {
        let spent = cpu.for_target();
        let unit = Unit::per(Base::Second, work.unit.base);
        let title = format!("CPU time to {}", work.phrase);
        set.add(
            "cpu.per_work",
            &title,
            spent / work.amount,
            unit,
            Better::Lower,
        );
        set.lead("cpu.per_work");
        if self.guest == 0 {
            let title = format!("CPU time of all of this host to {}", work.phrase);
            let name = "cpu.machine.per_work";
            set.add(name, &title, cpu.busy / work.amount, unit, Better::Lower);
        }
        if let Some(guest) = cpu.stages.get(&Stage::Vcpu) {
            let title = format!("CPU time outside guest code to {}", work.phrase);
            let outside = (spent - guest).max(0.0) / work.amount;
            set.add(
                "cpu.outside_guest.per_work",
                &title,
                outside,
                unit,
                Better::Lower,
            );
        }
    }

    fn add_energy(&self, set: &mut MetricSet, seconds: f64, work: Option<&Work>) {
        let Some((joules, of_meter)) = self.energy() else {
            return;
        };
        let of_platform = set.source;
        set.source = of_meter.combine(of_platform);
        let (watt, joule) = (Unit::of(Base::Watt), Unit::of(Base::Joule));
        let title = "mean power of the host";
        set.add("power.mean", title, joules / seconds, watt, Better::Lower);
        let title = "energy of the host in the window";
        set.add("energy.total", title, joules, joule, Better::Lower);
        if let Some(work) = work {
            let unit = Unit::per(Base::Joule, work.unit.base);
            let title = format!("host energy to {}", work.phrase);
            set.add(
                "energy.per_work",
                &title,
                joules / work.amount,
                unit,
                Better::Lower,
            );
            set.lead("energy.per_work");
        }
        set.source = of_platform;
    }

    fn add_rates(
        &self,
        set: &mut MetricSet,
        seconds: f64,
        owner: &str,
        rates: &[(&str, &str, &str, Base)],
    ) {
        for (name, series, title, base) in rates {
            if let Some(count) = self.delta(owner, series) {
                let unit = Unit::per(*base, Base::Second);
                set.add(name, title, count / seconds, unit, Better::Neither);
            }
        }
    }

    /// What crossed the devices of all guests, both ways: the machine's network as a driver domain
    /// has it, neighbours included.
    fn add_network_of_all(&self, set: &mut MetricSet, seconds: f64) {
        let both = [metric::NET_RX_BYTES, metric::NET_TX_BYTES];
        let devices = self
            .guests
            .iter()
            .flat_map(|guest| both.map(|series| self.delta(&guest.owner, series)));
        let known: Vec<f64> = devices.flatten().collect();
        if known.is_empty() {
            return;
        }
        set.add(
            "net.machine_bytes_per_second",
            "bytes from and to the devices of all guests",
            known.iter().sum::<f64>() / seconds,
            Unit::per(Base::Byte, Base::Second),
            Better::Neither,
        );
    }

    /// The work done in the window.
    pub(super) fn work(&self, result: &WorkloadResult) -> Option<Work> {
        result
            .work
            .as_ref()
            .map(|work| in_window(work, self.seconds()))
    }
}

/// How far a guest's counter went between two readings; `None` where it started anew meanwhile, as all do
/// in a guest that boots again.
#[allow(
    clippy::cast_precision_loss,
    reason = "counts of one window are far below 2^53"
)]
fn advanced(key: &str, before: f64, after: f64) -> Option<f64> {
    // The kernel counts interrupts in 32 bits.
    let rule = match key {
        key if key.contains("interrupts") => Rule::FROM_ZERO_IN_32_BITS,
        key if key.ends_with("_ns") => Rule::TIME,
        _ => Rule::FROM_ZERO,
    };
    let change = rule.change(before as u64, after as u64, u64::MAX);
    change.is_exact().then_some(change.gain() as f64)
}

/// What a guest's own counters say.
fn add_inner(set: &mut MetricSet, inner: Inner<'_>) {
    let Inner {
        before,
        after,
        between,
    } = inner;
    let advanced = |key: &str| advanced(key, *before.get(key)?, *after.get(key)?);
    for (name, key, title) in INNER_RATES {
        if let Some(count) = advanced(key) {
            let unit = Unit::per(Base::Interrupt, Base::Second);
            set.add(name, title, count / between, unit, Better::Lower);
        }
    }
    if let Some(bytes) = advanced("net.bytes").filter(|bytes| *bytes >= ENOUGH_BYTES) {
        for (name, key, title) in PER_GB {
            if let Some(count) = advanced(key) {
                let unit = Unit::per(Base::Interrupt, Base::Gigabyte);
                set.add(name, title, count / (bytes / 1e9), unit, Better::Lower);
            }
        }
    }
    for (name, key, title) in INNER_TIMES {
        if let Some(nanoseconds) = advanced(key) {
            let value = nanoseconds / 1e9 / between;
            set.add(name, title, value, Unit::of(Base::Core), Better::Neither);
        }
    }
    // Who chooses a NIC that holds notifications asks what that gives and what it costs.
    if advanced("nic.kicks").is_some() {
        for name in HOLDING {
            set.lead(name);
        }
    }
}

fn in_window(work: &WorkDone, seconds: f64) -> Work {
    match work {
        WorkDone::Rate(rate) => Work {
            amount: rate.amount * seconds,
            ..rate.clone()
        },
        WorkDone::Total(total) => total.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::observation::tests::{observed, snapshot};
    use super::*;
    use vtax_load::workload::check::{Amount, Claim};

    #[test]
    fn a_guests_counter_that_wraps_goes_on_and_one_of_a_guest_that_booted_again_is_none() {
        assert_eq!(advanced("net.bytes", 10.0, 25.0), Some(15.0));
        let wrapped = advanced("interrupts.total", 4_294_967_290.0, 4.0);
        assert_eq!(wrapped, Some(10.0));
        for key in ["net.bytes", "interrupts.total", "cpu.busy_ns"] {
            assert_eq!(advanced(key, 1e12, 20.0), None);
        }
    }

    #[test]
    fn a_claim_that_the_targets_device_contradicts_is_found_and_one_of_an_unknown_counter_is_not() {
        // The helper takes seconds of CPU time, 10^9 a second: a gigabyte to the target, a tenth of it back.
        let counters = |at: f64| {
            [
                ("target", metric::NET_TX_BYTES, 0.1 * at),
                ("target", metric::NET_RX_BYTES, 0.01 * at),
            ]
        };
        let (begin, end) = (snapshot(0, &counters(0.0)), snapshot(10, &counters(10.0)));
        let guests = [observed("target", "client", true)];
        let observation = Observation {
            begin: &begin,
            end: &end,
            processors: 1,
            guests: &guests,
            guest: 0,
            energy: &[],
            inner: None,
            host: Source::Measured,
        };
        let of = |rate: f64, account| {
            let result = WorkloadResult {
                claims: vec![Claim::at_most("payload", Amount::PerSecond(rate), account)],
                ..WorkloadResult::default()
            };
            observation.contradictions(&result).collect::<Vec<_>>()
        };
        assert!(of(0.099e9, Account::BytesToTarget).is_empty());
        assert!(of(0.1e9, Account::BytesBothWays).is_empty());
        let reason = of(0.2e9, Account::BytesToTarget).join("; ");
        assert!(
            reason.contains("2.00 GB") && reason.contains("1.00 GB"),
            "{reason}"
        );
        assert_eq!(of(0.099e9, Account::BytesFromTarget).len(), 1);
        assert!(of(1e12, Account::FramesToTarget).is_empty());
        assert!(of(1.0, Account::Clock).is_empty());
        assert_eq!(of(2.0, Account::Clock).len(), 1);
    }

    #[test]
    fn pages_exchanged_are_told_of_each_guest_of_all_and_for_the_work() {
        // The helper takes seconds of CPU time, 10^9 a second.
        let counters = |at: f64| {
            [
                ("host", metric::XEN_PAGES_EXCHANGED, 5e-8 * at),
                ("target", metric::XEN_PAGES_EXCHANGED, 3e-8 * at),
                ("target", metric::XEN_PAGES_COPIED, 1e-8 * at),
                ("pi", metric::XEN_PAGES_EXCHANGED, 2e-8 * at),
            ]
        };
        let (begin, end) = (snapshot(0, &counters(0.0)), snapshot(10, &counters(10.0)));
        let guests = [
            observed("target", "client", true),
            observed("pi", "pi.client", true),
        ];
        let of = |guest| Observation {
            begin: &begin,
            end: &end,
            processors: 1,
            guests: &guests,
            guest,
            energy: &[],
            inner: None,
            host: Source::Measured,
        };
        let result = WorkloadResult {
            work: Some(WorkDone::Rate(Work {
                amount: 10.0,
                unit: Unit::of(Base::Request),
                phrase: "serve 1 request".to_owned(),
            })),
            ..WorkloadResult::default()
        };
        let metrics = of(0).metrics(&result);
        let value = |name: &str| metrics[name].quantity.to_string();
        assert_eq!(value("xen.pages_exchanged_per_second"), "30.0 page/s");
        assert_eq!(value("xen.pages_copied_per_second"), "10.0 page/s");
        assert_eq!(
            value("xen.machine.pages_exchanged_per_second"),
            "50.0 page/s"
        );
        assert_eq!(value("xen.pages_exchanged.per_work"), "3.00 page/request");
        let beside = of(1).metrics(&WorkloadResult::default());
        let found: Vec<&str> = beside.keys().map(String::as_str).collect();
        assert_eq!(found, ["xen.pages_exchanged_per_second"]);
    }
}
