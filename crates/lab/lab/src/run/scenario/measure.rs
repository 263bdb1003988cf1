// SPDX-License-Identifier: Apache-2.0
//! The metrics of a trial, from the observation of a guest and the result of its load generator.

use super::observation::{CpuShares, Inner, Observation};
use super::residency;
use std::collections::BTreeMap;
use vtax_core::owner::Owner;
use vtax_core::{Base, Pattern, Quantity, Source, Unit, counter, metric};
use vtax_load::workload::check::Account;
use vtax_load::workload::{Launch, WorkDone, WorkloadResult};
use vtax_observe::counters::Rule;
use vtax_results::{Metric, Stage, Work};

/// What a guest's frames must amount to before notifications are divided by them.
const ENOUGH_BYTES: f64 = 1e6;

/// The resolution of a command's own CPU time, in seconds: user and system time are printed in whole milliseconds each.
const OWN_RESOLUTION: f64 = 2e-3;
/// The resolution of the CPU time that waiters report, in seconds: user and system time are counted in ticks each.
const WAITED_RESOLUTION: f64 = 20e-3;

/// What a summary leads with where the guest has the vtax NIC, beside the workload's own.
const HOLDING: [&metric::Metric; 5] = [
    metric::CPU_OUTSIDE_GUEST_PER_WORK,
    metric::GUEST_INTERRUPTS_PER_GB,
    metric::NIC_KICKS_PER_GB,
    metric::RTT_MEAN,
    metric::DOWNLOAD_P50,
];

/// Metrics as they are added, with the flag of the guest's platform.
struct MetricSet {
    metrics: BTreeMap<String, Metric>,
    source: Source,
}

impl MetricSet {
    fn add(&mut self, metric: &metric::Metric, value: f64) {
        self.add_part(metric, "", "", value);
    }

    /// One of a family of metrics; `about` is for its title.
    fn add_part(&mut self, metric: &metric::Metric, part: &str, about: &str, value: f64) {
        let found = Metric::new(
            metric,
            about,
            Unit::from_base(Base::One),
            value,
            self.source,
        );
        self.metrics.insert(Pattern(metric.name).fill(part), found);
    }

    /// A cost of the window, for each unit of work.
    fn add_per_work(&mut self, metric: &metric::Metric, cost: f64, work: &Work) {
        let value = cost / work.amount;
        let found = Metric::new(metric, &work.phrase, work.unit, value, self.source);
        self.metrics.insert(metric.name.to_owned(), found);
    }

    fn lead(&mut self, metric: &metric::Metric) {
        if let Some(metric) = self.metrics.get_mut(metric.name) {
            metric.headline = true;
        }
    }
}

/// Counters of the host that become rates: metric, series.
const HOST_RATES: [(&metric::Metric, &str); 8] = [
    (metric::INTERRUPTS_PER_SECOND, counter::INTERRUPTS_TOTAL),
    (
        metric::CONTEXT_SWITCHES_PER_SECOND,
        counter::CONTEXT_SWITCHES,
    ),
    (metric::KVM_EXITS_PER_SECOND, counter::KVM_EXITS),
    (metric::CYCLES_PER_SECOND, counter::HW_CYCLES),
    (metric::INSTRUCTIONS_PER_SECOND, counter::HW_INSTRUCTIONS),
    (
        metric::LLC_REFERENCES_PER_SECOND,
        counter::HW_LLC_REFERENCES,
    ),
    (metric::LLC_MISSES_PER_SECOND, counter::HW_LLC_MISSES),
    (
        metric::XEN_MACHINE_PAGES_EXCHANGED_PER_SECOND,
        counter::XEN_PAGES_EXCHANGED,
    ),
];

/// Counters of a guest that become rates.
const GUEST_RATES: [(&metric::Metric, &str); 13] = [
    (metric::NET_RX_PACKETS_PER_SECOND, counter::NET_RX_PACKETS),
    (metric::NET_TX_PACKETS_PER_SECOND, counter::NET_TX_PACKETS),
    (metric::NET_RX_BYTES_PER_SECOND, counter::NET_RX_BYTES),
    (metric::NET_TX_BYTES_PER_SECOND, counter::NET_TX_BYTES),
    (metric::NET_RX_DROPS_PER_SECOND, counter::NET_RX_DROPS),
    (metric::NET_TX_DROPS_PER_SECOND, counter::NET_TX_DROPS),
    (
        metric::BLOCK_READ_REQUESTS_PER_SECOND,
        counter::BLOCK_READ_REQUESTS,
    ),
    (
        metric::BLOCK_WRITE_REQUESTS_PER_SECOND,
        counter::BLOCK_WRITE_REQUESTS,
    ),
    (
        metric::BLOCK_READ_BYTES_PER_SECOND,
        counter::BLOCK_READ_BYTES,
    ),
    (
        metric::BLOCK_WRITE_BYTES_PER_SECOND,
        counter::BLOCK_WRITE_BYTES,
    ),
    (
        metric::XEN_PAGES_EXCHANGED_PER_SECOND,
        counter::XEN_PAGES_EXCHANGED,
    ),
    (
        metric::XEN_PAGES_COPIED_PER_SECOND,
        counter::XEN_PAGES_COPIED,
    ),
    (
        metric::XEN_PAGES_MAPPED_PER_SECOND,
        counter::XEN_PAGES_MAPPED,
    ),
];

/// Counts of Xen's trace that become rates, of the host: metric, series.
const TRACED_OF_HOST: [(&metric::Metric, &str); 4] = [
    (metric::XEN_HYPERCALLS_PER_SECOND, counter::XEN_HYPERCALLS),
    (
        metric::XEN_DOMAIN_SWITCHES_PER_SECOND,
        counter::XEN_DOMAIN_SWITCHES,
    ),
    (metric::XEN_VM_EXITS_PER_SECOND, counter::XEN_VM_EXITS),
    (
        metric::XEN_DOM0_WAKEUPS_PER_SECOND,
        counter::XEN_DOM0_WAKEUPS,
    ),
];

/// Traffic of a guest's devices: the counter, its words in events, and its unit.
const CARRIED: [(&str, &str, Base); 6] = [
    (counter::NET_TX_BYTES, "to its network device", Base::Byte),
    (counter::NET_RX_BYTES, "from its network device", Base::Byte),
    (counter::NET_TX_PACKETS, "frames to it", Base::Packet),
    (counter::NET_RX_PACKETS, "frames from it", Base::Packet),
    (counter::BLOCK_READ_BYTES, "read from its disks", Base::Byte),
    (
        counter::BLOCK_WRITE_BYTES,
        "written to its disks",
        Base::Byte,
    ),
];

/// The guest's own counters that become rates: metric, key.
const INNER_RATES: [(&metric::Metric, &str); 3] = [
    (
        metric::GUEST_INTERRUPTS_PER_SECOND,
        counter::INTERRUPTS_TOTAL,
    ),
    (metric::NIC_CALLS_PER_SECOND, counter::NIC_CALLS),
    (metric::NIC_KICKS_PER_SECOND, counter::NIC_KICKS),
];

/// The guest's own times that become processors: metric, key.
const INNER_TIMES: [(&metric::Metric, &str); 2] = [
    (metric::GUEST_CPU_CORES, counter::CPU_BUSY),
    (metric::GUEST_CPU_STEAL, counter::CPU_STEAL),
];

/// Notifications of the same frames that they are divided by: both were read together.
const PER_GB: [(&metric::Metric, &str); 3] = [
    (
        metric::GUEST_INTERRUPTS_PER_GB,
        counter::INTERRUPTS_PARAVIRTUAL,
    ),
    (metric::NIC_CALLS_PER_GB, counter::NIC_CALLS),
    (metric::NIC_KICKS_PER_GB, counter::NIC_KICKS),
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
        let in_a_domain = guests.any(|guest| self.delta(guest, counter::CPU_DOMAIN).is_some());
        for (name, source) in self.energy {
            // The model turns this kernel's CPU time into joules, and a Xen domain's is not in it:
            // no number is better than one that leaves the guest out.
            if in_a_domain && *source == Source::Modelled {
                return None;
            }
            let joules = self.delta(&Owner::Host, name)?;
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
        self.add_cpu(&mut set, seconds, work.as_ref(), result);
        if result.work.is_none() {
            set.lead(metric::CPU_CORES);
        }
        // What this host did is the target's cost only where the target is on it.
        let is_here = self
            .guests
            .get(self.guest)
            .is_some_and(|guest| guest.is_here);
        if self.guest == 0 && is_here {
            self.add_energy(&mut set, seconds, work.as_ref());
            if result.work.is_none() {
                set.lead(metric::POWER_MEAN);
            }
            self.add_rates(&mut set, seconds, &Owner::Host, &HOST_RATES);
            for found in residency::between(self.begin, self.end, seconds) {
                let part = found.part.as_str();
                set.add_part(found.metric, part, part, found.value);
            }
        }
        if let Some(guest) = self.guests.get(self.guest) {
            self.add_rates(&mut set, seconds, &guest.owner, &GUEST_RATES);
            let pages = self.delta(&guest.owner, counter::XEN_PAGES_EXCHANGED);
            if let Some((pages, work)) = pages.zip(work.as_ref()) {
                set.add_per_work(metric::XEN_PAGES_EXCHANGED_PER_WORK, pages, work);
            }
        }
        self.add_traced(&mut set);
        if self.guest == 0 {
            self.add_network_of_all(&mut set, seconds);
        }
        if let Some(inner) = self.inner.filter(|inner| inner.between > 0.0) {
            add_inner(&mut set, inner);
        }
        set.metrics
    }

    fn add_cpu(
        &self,
        set: &mut MetricSet,
        seconds: f64,
        work: Option<&Work>,
        result: &WorkloadResult,
    ) {
        let Some(cpu) = self.cpu() else { return };
        let spent = cpu.for_target();
        let of_platform = set.source;
        // Where Domain 0's part is charged, all that it is in is no better than the method.
        let guest = self.guests.get(self.guest);
        let of_backend =
            guest.and_then(|guest| self.end.source(&guest.owner, counter::CPU_BACKEND));
        let charged = of_backend.map_or(of_platform, |source| source.combine(of_platform));
        set.source = charged;
        set.add(metric::CPU_CORES, spent / seconds);
        if self.guest == 0 {
            set.add(metric::CPU_MACHINE, cpu.busy / seconds);
            if let Some(stolen) = self.delta(&Owner::Host, counter::CPU_STEAL) {
                set.add(metric::CPU_STEAL, stolen / 1e9 / seconds);
            }
        }
        for (stage, value) in &cpu.stages {
            // The work of the other actors is in their own records.
            if self.guest != 0 && [Stage::Neighbours, Stage::Observer, Stage::Rest].contains(stage)
            {
                continue;
            }
            set.source = match stage {
                Stage::Vcpu => of_platform,
                _ => charged,
            };
            let family = metric::CPU_STAGE.metric();
            set.add_part(family, stage.name(), stage.words(), value / seconds);
        }
        set.source = charged;
        if let Some(work) = work {
            self.add_cpu_per_work(set, &cpu, work, result);
        }
        set.source = of_platform;
        if self.guest == 0
            && let Some(dom0) = self.delta(&Owner::Dom0, counter::CPU_TOTAL)
        {
            set.add(metric::CPU_DOM0, dom0 / 1e9 / seconds);
        }
    }

    fn add_cpu_per_work(
        &self,
        set: &mut MetricSet,
        cpu: &CpuShares,
        work: &Work,
        result: &WorkloadResult,
    ) {
        let mut spent = cpu.for_target();
        let whole = spent;
        if let Some((launch, spread)) = self.launch(spent, result) {
            set.add(metric::LAUNCH_CPU, launch);
            set.add(metric::LAUNCH_SPREAD, spread);
            spent -= launch;
        }
        set.add_per_work(metric::CPU_PER_WORK, spent, work);
        if self.guest == 0 {
            set.add_per_work(metric::CPU_MACHINE_PER_WORK, cpu.busy, work);
        }
        if let Some(guest) = cpu.stages.get(&Stage::Vcpu) {
            // The start of a command is in both.
            let outside = (whole - guest).max(0.0);
            set.add_per_work(metric::CPU_OUTSIDE_GUEST_PER_WORK, outside, work);
        }
    }

    /// The part of the guest's CPU time that started its command, and how far it is known. At least the command's own time
    /// stays.
    fn launch(&self, spent: f64, result: &WorkloadResult) -> Option<(f64, f64)> {
        let own = result.own_cpu?;
        let (launch, spread) = match result.launch? {
            Launch::Measured { mean, spread } => (mean, spread),
            Launch::Rest { waited } => {
                let owner = &self.guests.get(self.guest)?.owner;
                let beyond = self.delta(owner, counter::CPU_TOTAL)? / 1e9 - own;
                (beyond.min(waited + WAITED_RESOLUTION - own), OWN_RESOLUTION)
            }
        };
        let least = own.max(OWN_RESOLUTION / 2.0);
        Some((launch.min(spent - least).max(0.0), spread))
    }

    fn add_energy(&self, set: &mut MetricSet, seconds: f64, work: Option<&Work>) {
        let Some((joules, of_meter)) = self.energy() else {
            return;
        };
        let of_platform = set.source;
        set.source = of_meter.combine(of_platform);
        set.add(metric::POWER_MEAN, joules / seconds);
        set.add(metric::ENERGY_TOTAL, joules);
        if let Some(work) = work {
            set.add_per_work(metric::ENERGY_PER_WORK, joules, work);
        }
        if let Some(idle) = self.idle_joules(of_meter, seconds) {
            set.add(metric::POWER_IDLE, idle / seconds);
            self.add_energy_above_idle(set, joules - idle, work);
        }
        set.source = of_platform;
    }

    /// The joules that the idle host would have used in the window: by the idle phases of the run, or else by the idle
    /// power that the model itself states. `None` where neither is known.
    fn idle_joules(&self, of_meter: Source, seconds: f64) -> Option<f64> {
        let by_phase = self.idle.map(|watts| watts * seconds);
        by_phase.or_else(|| {
            let idle = counter::ENERGY.name(&["model", "idle"]);
            (of_meter == Source::Modelled).then(|| self.delta(&Owner::Host, &idle))?
        })
    }

    /// Adds the joules above idle, and the target's part of them by its share of the busy time. A load at a fixed rate
    /// leads with these: its total is mostly the idle power, which is the same on all platforms.
    fn add_energy_above_idle(&self, set: &mut MetricSet, above: f64, work: Option<&Work>) {
        set.add(metric::ENERGY_ABOVE_IDLE, above);
        let Some(work) = work else { return };
        set.add_per_work(metric::ENERGY_ABOVE_IDLE_PER_WORK, above, work);
        let share = self.cpu().filter(|cpu| cpu.busy > 0.0);
        let share = share.map(|cpu| cpu.for_target() / cpu.busy);
        if let Some(share) = share {
            let charged = above * share;
            set.add_per_work(metric::ENERGY_ABOVE_IDLE_OF_TARGET_PER_WORK, charged, work);
        }
        let target = self.guests.get(self.guest);
        if target.is_some_and(|target| target.is_paced) {
            set.lead(metric::ENERGY_ABOVE_IDLE_PER_WORK);
            set.lead(metric::ENERGY_ABOVE_IDLE_OF_TARGET_PER_WORK);
            if let Some(total) = set.metrics.get_mut(metric::ENERGY_PER_WORK.name) {
                total.headline = false;
            }
        }
    }

    fn add_rates(
        &self,
        set: &mut MetricSet,
        seconds: f64,
        owner: &Owner,
        rates: &[(&metric::Metric, &str)],
    ) {
        for (metric, series) in rates {
            if let Some(count) = self.delta(owner, series) {
                set.add(metric, count / seconds);
            }
        }
    }

    /// Rates and waiting by Xen's trace, over the time that its records cover.
    fn add_traced(&self, set: &mut MetricSet) {
        let covered = self.delta(&Owner::Host, counter::XEN_TRACE);
        let Some(covered) = covered.filter(|covered| *covered > 0.0) else {
            return;
        };
        let mut add = |owner: &Owner, rates: &[(&metric::Metric, &str)], wait: (&_, _)| {
            self.add_rates(set, covered / 1e9, owner, rates);
            let (metric, series) = wait;
            if let Some(waited) = self.delta(owner, series) {
                set.add(metric, waited / covered);
            }
        };
        if self.guest == 0 {
            let wait = (metric::XEN_DOM0_WAIT, counter::XEN_DOM0_WAIT);
            add(&Owner::Host, &TRACED_OF_HOST, wait);
        }
        if let Some(guest) = self.guests.get(self.guest) {
            let wakeups = [(metric::XEN_WAKEUPS_PER_SECOND, counter::XEN_WAKEUPS)];
            let wait = (metric::XEN_WAIT, counter::XEN_WAIT);
            add(&guest.owner, &wakeups, wait);
        }
    }

    /// What crossed the devices of all guests, both ways: the machine's network as a driver domain
    /// has it, neighbours included.
    fn add_network_of_all(&self, set: &mut MetricSet, seconds: f64) {
        let both = [counter::NET_RX_BYTES, counter::NET_TX_BYTES];
        let devices = self
            .guests
            .iter()
            .flat_map(|guest| both.map(|series| self.delta(&guest.owner, series)));
        let known: Vec<f64> = devices.flatten().collect();
        if known.is_empty() {
            return;
        }
        let rate = known.iter().sum::<f64>() / seconds;
        set.add(metric::NET_MACHINE_BYTES_PER_SECOND, rate);
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
    for (metric, key) in INNER_RATES {
        if let Some(count) = advanced(key) {
            set.add(metric, count / between);
        }
    }
    if let Some(bytes) = advanced(counter::NET_BYTES).filter(|bytes| *bytes >= ENOUGH_BYTES) {
        for (metric, key) in PER_GB {
            if let Some(count) = advanced(key) {
                set.add(metric, count / (bytes / 1e9));
            }
        }
    }
    for (metric, key) in INNER_TIMES {
        if let Some(nanoseconds) = advanced(key) {
            set.add(metric, nanoseconds / 1e9 / between);
        }
    }
    // Who chooses a NIC that holds notifications asks what that gives and what it costs.
    if advanced(counter::NIC_KICKS).is_some() {
        for metric in HOLDING {
            set.lead(metric);
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
    use super::super::observation::{
        ObservedGuest,
        tests::{between, observed, snapshot},
    };
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
                ("target", counter::NET_TX_BYTES, 0.1 * at),
                ("target", counter::NET_RX_BYTES, 0.01 * at),
            ]
        };
        let (begin, end) = (snapshot(0, &counters(0.0)), snapshot(10, &counters(10.0)));
        let guests = [observed("target", "client", true)];
        let observation = between(&begin, &end, &guests);
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
    fn the_start_of_a_command_has_no_time_of_other_processes_and_leaves_the_commands_own() {
        // 2 s of CPU time in the target's groups.
        let counters = |at: f64| [("target", counter::CPU_TOTAL, 0.2 * at)];
        let (begin, end) = (snapshot(0, &counters(0.0)), snapshot(10, &counters(10.0)));
        let guests = [observed("target", "client", false)];
        let observation = between(&begin, &end, &guests);
        let start = |own: f64, launch| {
            let result = WorkloadResult {
                own_cpu: Some(own),
                launch: Some(launch),
                ..WorkloadResult::default()
            };
            observation.launch(2.0, &result).unwrap()
        };
        let is = |found: (f64, f64), wanted: (f64, f64)| {
            let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
            assert!(
                close(found.0, wanted.0) && close(found.1, wanted.1),
                "{found:?}"
            );
        };
        // The waiters report the command and its start, and nothing else ran.
        is(start(1.99, Launch::Rest { waited: 2.0 }), (0.01, 2e-3));
        // A process that nobody waited for used 0.5 s: it is a part of the cost.
        is(start(1.45, Launch::Rest { waited: 1.5 }), (0.07, 2e-3));
        // The mean of other starts takes nothing of the command's own time.
        let measured = |mean| Launch::Measured { mean, spread: 0.1 };
        is(start(1.0, measured(0.4)), (0.4, 0.1));
        is(start(1.9, measured(0.4)), (0.1, 0.1));
        assert_eq!(observation.launch(2.0, &WorkloadResult::default()), None);
    }

    /// The energy metrics of 10 s in which the host used 500 J, and the target 2 s of 4 busy seconds.
    fn energy_metrics(
        source: Source,
        idle: Option<f64>,
        is_paced: bool,
    ) -> BTreeMap<String, Metric> {
        // The helper takes seconds of CPU time, 10^9 a second.
        let counters = |at: f64| {
            [
                ("host", counter::CPU_IDLE, 1.6 * at),
                ("target", counter::CPU_TOTAL, 0.2 * at),
                ("client", counter::CPU_TOTAL, 0.2 * at),
                ("host", "energy.model.host_joules", 50e-9 * at),
                ("host", "energy.model.idle_joules", 30e-9 * at),
            ]
        };
        let (begin, end) = (snapshot(0, &counters(0.0)), snapshot(10, &counters(10.0)));
        let guests = [ObservedGuest {
            is_paced,
            ..observed("target", "client", true)
        }];
        let energy = [("energy.model.host_joules".to_owned(), source)];
        let observation = Observation {
            processors: 2,
            energy: &energy,
            idle,
            ..between(&begin, &end, &guests)
        };
        observation.metrics(&WorkloadResult {
            work: Some(WorkDone::Rate(Work {
                amount: 10.0,
                unit: Unit::from_base(Base::Request),
                phrase: "serve 1 request".to_owned(),
            })),
            ..WorkloadResult::default()
        })
    }

    #[test]
    fn energy_above_idle_and_the_targets_share_of_it_are_beside_total_energy() {
        let found = energy_metrics(Source::Measured, Some(40.0), false);
        let value =
            |metric: &metric::Metric| (found[metric.name].quantity.value * 1e6).round() / 1e6;
        assert_eq!(value(metric::POWER_IDLE), 40.0);
        assert_eq!(value(metric::ENERGY_TOTAL), 500.0);
        assert_eq!(value(metric::ENERGY_ABOVE_IDLE), 100.0);
        assert_eq!(value(metric::ENERGY_PER_WORK), 5.0);
        assert_eq!(value(metric::ENERGY_ABOVE_IDLE_PER_WORK), 1.0);
        assert_eq!(value(metric::ENERGY_ABOVE_IDLE_OF_TARGET_PER_WORK), 0.5);
        assert!(found[metric::ENERGY_PER_WORK.name].headline);
        assert!(!found[metric::ENERGY_ABOVE_IDLE_PER_WORK.name].headline);
    }

    #[test]
    fn a_load_at_a_fixed_rate_leads_with_energy_above_idle() {
        let leads = |idle| {
            let found = energy_metrics(Source::Measured, idle, true);
            let of =
                |metric: &metric::Metric| found.get(metric.name).is_some_and(|one| one.headline);
            let above = metric::ENERGY_ABOVE_IDLE_PER_WORK;
            let target = metric::ENERGY_ABOVE_IDLE_OF_TARGET_PER_WORK;
            [of(metric::ENERGY_PER_WORK), of(above), of(target)]
        };
        assert_eq!(leads(Some(40.0)), [false, true, true]);
        assert_eq!(leads(None), [true, false, false], "idle power is not known");
    }

    #[test]
    fn without_an_idle_phase_only_the_model_states_an_idle_power() {
        let idle = |source| {
            let found = energy_metrics(source, None, false);
            found
                .get(metric::POWER_IDLE.name)
                .map(|power| power.quantity.value.round())
        };
        assert_eq!(
            (idle(Source::Modelled), idle(Source::Measured)),
            (Some(30.0), None)
        );
    }

    #[test]
    fn pages_exchanged_are_reported_of_each_guest_of_all_and_for_the_work() {
        // The helper takes seconds of CPU time, 10^9 a second.
        let counters = |at: f64| {
            [
                ("host", counter::XEN_PAGES_EXCHANGED, 5e-8 * at),
                ("target", counter::XEN_PAGES_EXCHANGED, 3e-8 * at),
                ("target", counter::XEN_PAGES_COPIED, 1e-8 * at),
                ("pi", counter::XEN_PAGES_EXCHANGED, 2e-8 * at),
            ]
        };
        let (begin, end) = (snapshot(0, &counters(0.0)), snapshot(10, &counters(10.0)));
        let guests = [
            observed("target", "client", true),
            observed("pi", "pi.client", true),
        ];
        let of = |guest| Observation {
            guest,
            ..between(&begin, &end, &guests)
        };
        let result = WorkloadResult {
            work: Some(WorkDone::Rate(Work {
                amount: 10.0,
                unit: Unit::from_base(Base::Request),
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
