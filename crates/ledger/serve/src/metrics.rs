// SPDX-License-Identifier: Apache-2.0
//! The metric families of a snapshot, for scrapes and pushes. `docs/howto/charge-guests.md` has the table of names.
//!
//! All families are written from one immutable snapshot: the series of one scrape are of one interval, and a guest
//! that has ended has no series.

use crate::roster::Listing;
use std::time::Duration;
use vtax_charge::{ChargedGuest, LedgerSnapshot, softirq_source};
use vtax_charge::{GuestTotals, Stage, Waits};
use vtax_core::{Joules, Nanoseconds};
use vtax_http::metrics::{Exposition, Families, Format, Kind};
use vtax_inventory::Platform;
use vtax_meter::Fit;

/// Measurements of the exporter itself.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Own {
    /// Passes that succeeded.
    pub passes: u64,
    /// Passes that failed as a whole.
    pub failed: u64,
    /// Time since the served snapshot was taken.
    pub since_pass: Duration,
    /// Duration of the last pass, in seconds.
    pub pass_seconds: f64,
    /// Limit on the number of guests that have series.
    pub max_guests: usize,
    /// Resident memory of the exporter, in bytes; `None` where the kernel does not report it.
    pub resident_bytes: Option<u64>,
    /// State of each push destination.
    pub pushes: Vec<PushState>,
}

/// State of pushing to one server.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PushState {
    /// The server: the value of the label `to`.
    pub to: String,
    /// Size of the queue on disk, in bytes.
    pub queue_bytes: u64,
    /// Samples in the queue.
    pub queue_samples: u64,
    /// Age of the oldest queued sample.
    pub oldest: Duration,
    /// Requests that the server answered and that are not repeated.
    pub requests: u64,
    /// Size of the bodies of those requests as sent, in bytes.
    pub sent_bytes: u64,
    /// Samples that the server accepted.
    pub sent: u64,
    /// Samples that the server already had, by its response.
    pub repeated: u64,
    /// Samples that were dropped because the queue was full.
    pub dropped_full: u64,
    /// Samples that the server refuses however often they are sent.
    pub dropped_refused: u64,
    /// Samples that are too large for the server, each in a request of its own.
    pub dropped_too_large: u64,
    /// Samples that could not be written to or read from the disk.
    pub dropped_disk: u64,
    /// Requests that are repeated: without a response, or with one that asks to retry later.
    pub failures: u64,
}

/// Writes all metrics.
pub fn write(snapshot: &LedgerSnapshot, listing: &Listing, own: &Own, format: Format) -> String {
    let mut out = Exposition::new(format);
    families(&mut out, snapshot, listing, own);
    out.finish()
}

/// Writes every metric family to `out`. Scrapes and pushes share this list.
pub fn families(out: &mut dyn Families, snapshot: &LedgerSnapshot, listing: &Listing, own: &Own) {
    let page = &mut Page(out);
    about(page, snapshot);
    guests(page, snapshot, listing);
    rest(page, snapshot, listing);
    exporter(page, snapshot, listing, own);
    pushes(page, &own.pushes);
}

/// The last words of names that are units.
const UNITS: [&str; 6] = ["seconds", "bytes", "joules", "packets", "pages", "ratio"];

type Labels<'a> = [(&'a str, &'a str)];

struct Page<'a>(&'a mut dyn Families);

impl Page<'_> {
    /// Begins a family.
    fn family(&mut self, kind: Kind, name: &str, help: &str) {
        let last = name.rsplit('_').next();
        let unit = UNITS.into_iter().find(|unit| Some(*unit) == last);
        self.0.family(name, kind, unit, help);
    }

    fn sample(&mut self, labels: &Labels<'_>, value: f64) {
        self.0.sample(labels, value);
    }

    /// A family of one sample without labels.
    fn one(&mut self, kind: Kind, name: &str, help: &str, value: f64) {
        self.family(kind, name, help);
        self.sample(&[], value);
    }

    /// A family of one sample that is information in labels.
    fn info(&mut self, name: &str, help: &str, labels: &Labels<'_>) {
        self.family(Kind::Info, name, help);
        self.sample(labels, 1.0);
    }
}

fn count(value: u64) -> f64 {
    value as f64
}

fn about(page: &mut Page<'_>, snapshot: &LedgerSnapshot) {
    let version = env!("CARGO_PKG_VERSION");
    page.info(
        "vtax_build",
        "The vtax that exports this.",
        &[("version", version)],
    );
    let (covers, source) = match &snapshot.energy_source {
        Some((covers, source)) => (covers.as_str(), source.to_string()),
        None => ("nothing", "none".to_owned()),
    };
    page.info(
        "vtax_charge",
        "How soft interrupts are charged (traced or counted), how the kernel accounts interrupts, what the energy covers and whether it is measured.",
        &[
            ("method", snapshot.method),
            ("softirq_source", &softirq_source(snapshot.method).to_string()),
            ("irq_accounting", snapshot.irq_accounting.name()),
            ("energy_covers", covers),
            ("energy_source", &source),
        ],
    );
    let Some(model) = &snapshot.power_model else {
        return;
    };
    let watts = |of: fn(&Fit) -> f64| {
        let fit = model.fit.as_ref();
        fit.map_or(String::new(), |fit| format!("{:.1}", of(fit)))
    };
    let file = model.file.as_ref().map(|file| file.display().to_string());
    page.info(
        "vtax_power_model",
        "The power model that computes the energy: its date, file and coverage, the meter that it was fitted to, and how far it is off.",
        &[
            ("name", &model.name),
            ("date", model.date.as_deref().unwrap_or_default()),
            ("file", file.as_deref().unwrap_or("built-in")),
            ("covers", covers),
            ("fitted_to", model.fit.as_ref().map_or("", |fit| fit.meter.as_str())),
            ("residual_rms_watts", &watts(|fit| fit.residual_rms_watts)),
            ("residual_worst_watts", &watts(|fit| fit.residual_worst_watts)),
        ],
    );
}

/// The labels of every counter of energy: its source, and the name of the model where one computes it. `None` without
/// a meter.
fn of_energy<'a>(
    snapshot: &'a LedgerSnapshot,
    source: &'a Option<String>,
) -> Option<Vec<(&'static str, &'a str)>> {
    let model = snapshot.power_model.as_ref();
    let model = model.map(|model| ("model", model.name.as_str()));
    let of_source = ("source", source.as_deref()?);
    Some([of_source].into_iter().chain(model).collect())
}

fn energy_source(snapshot: &LedgerSnapshot) -> Option<String> {
    let source = snapshot.energy_source.as_ref();
    source.map(|(_, source)| source.to_string())
}

/// Returns whether guests of a platform can have a stage. A stage that is always zero has no series.
fn has(platform: Platform, stage: Stage) -> bool {
    match stage {
        Stage::Vcpu => true,
        // Those of a service cannot be separated from the host's.
        Stage::Softirq => platform != Platform::Native,
        Stage::Emulator => platform.is_vm(),
        Stage::Iothread | Stage::Vhost => platform.is_vm() && platform != Platform::Xen,
        Stage::Backend => platform == Platform::Xen,
        _ => false,
    }
}

/// A number of a guest, from its last interval and its totals.
type OfGuest = fn(&ChargedGuest, &GuestTotals) -> Option<f64>;

const HIDDEN: (&str, &str, OfGuest) = (
    "vtax_guest_hidden_cpu_ratio",
    "Share of a guest's processor time in the last interval that was not its own code. Absent while it uses none.",
    |guest, _| guest.hidden(),
);

const ERROR: (&str, &str, OfGuest) = (
    "vtax_guest_cpu_error_seconds",
    "How far vtax_guest_cpu_seconds of a guest may be off, all stages together: over any window, at most by what this grew. Absent where the times are measured.",
    |_, total| Some(total.error.as_secs_f64()),
);

/// A count of exchanges; those of a service cannot be separated from the host's.
fn known(guest: &ChargedGuest, of: u64) -> Option<f64> {
    (guest.platform != Platform::Native).then(|| count(of))
}

const EXCHANGES: [(&str, &str, OfGuest); 6] = [
    (
        "vtax_guest_receive_packets",
        "Packets that a guest received.",
        |guest, total| known(guest, total.exchanges.received),
    ),
    (
        "vtax_guest_transmit_packets",
        "Packets that a guest sent.",
        |guest, total| known(guest, total.exchanges.sent),
    ),
    (
        "vtax_guest_network_bytes",
        "Bytes that a guest received and sent.",
        |guest, total| known(guest, total.exchanges.bytes),
    ),
    (
        "vtax_guest_block_requests",
        "Block requests that completed for a guest.",
        |guest, total| known(guest, total.exchanges.block_requests),
    ),
    (
        "vtax_guest_exits",
        "VM exits of a guest, where the kernel shows them.",
        |_, total| total.exchanges.exits.map(count),
    ),
    (
        "vtax_guest_exchanged_pages",
        "Pages that back ends exchanged with a Xen domain, where BPF works.",
        |_, total| total.exchanges.pages.map(count),
    ),
];

fn guests(page: &mut Page<'_>, snapshot: &LedgerSnapshot, listing: &Listing) {
    let listed: Vec<(&ChargedGuest, &GuestTotals)> = listing
        .listed
        .iter()
        .filter_map(|(index, total)| Some((snapshot.guests.get(*index)?, total)))
        .collect();
    page.family(Kind::Info, "vtax_guest", "A guest of this host.");
    for (guest, _) in &listed {
        let labels = [
            ("guest", guest.name.as_str()),
            ("platform", guest.platform.name()),
            ("manager", guest.manager.unwrap_or("")),
            ("uuid", guest.uuid.as_deref().unwrap_or("")),
            ("number", &guest.number.to_string()),
        ];
        page.sample(&labels, 1.0);
    }
    page.family(
        Kind::Counter,
        "vtax_guest_cpu_seconds",
        "Host processor time that a guest caused, by stage: its own code (vcpu), its monitor (emulator, iothread), vhost workers, soft interrupts, Xen backends.",
    );
    for (guest, total) in &listed {
        for stage in Stage::CHARGED {
            let time = total.stages.get(stage);
            if time.0 > 0 || has(guest.platform, stage) {
                let [name, platform] = labels(guest);
                page.sample(
                    &[name, platform, ("stage", stage.name())],
                    time.as_secs_f64(),
                );
            }
        }
    }
    let each = |page: &mut Page<'_>, kind: Kind, (name, help, of): (&str, &str, OfGuest)| {
        page.family(kind, name, help);
        for (guest, total) in &listed {
            if let Some(value) = of(guest, total) {
                page.sample(&labels(guest), value);
            }
        }
    };
    if listed.iter().any(|(guest, _)| guest.total.error.0 > 0) {
        each(page, Kind::Counter, ERROR);
    }
    each(page, Kind::Gauge, HIDDEN);
    if listed.iter().any(|(_, total)| total.waits.is_some()) {
        waits(page, snapshot, &listed);
    }
    let source = energy_source(snapshot);
    if let Some(energy) = of_energy(snapshot, &source) {
        page.family(
            Kind::Counter,
            "vtax_guest_energy_joules",
            "Energy charged to a guest. The label source is measured or modelled; model names the power model.",
        );
        for (guest, total) in &listed {
            page.sample(
                &[&labels(guest), energy.as_slice()].concat(),
                total.energy.0,
            );
        }
    }
    for family in EXCHANGES {
        each(page, Kind::Counter, family);
    }
}

fn waits(page: &mut Page<'_>, snapshot: &LedgerSnapshot, listed: &[(&ChargedGuest, &GuestTotals)]) {
    page.family(
        Kind::Counter,
        "vtax_guest_wait_seconds",
        "Time in which tasks of a guest could run and waited for a processor, all tasks together, by what ran there meanwhile: a guest, or host, idle, interrupts, stolen, departed, others.",
    );
    for (guest, total) in listed {
        for (runner, time) in total.waits.iter().flat_map(Waits::iter) {
            let [name, platform] = labels(guest);
            let (ran, of) = snapshot.runner(runner);
            page.sample(
                &[name, platform, ("for", ran), ("for_platform", of)],
                time.as_secs_f64(),
            );
        }
    }
}

fn labels(guest: &ChargedGuest) -> [(&'static str, &str); 2] {
    [("guest", &guest.name), ("platform", guest.platform.name())]
}

/// Writes the families of time and energy outside of listed guests, so that the sums close.
fn rest(page: &mut Page<'_>, snapshot: &LedgerSnapshot, listing: &Listing) {
    let totals = &snapshot.totals;
    page.family(
        Kind::Counter,
        "vtax_host_cpu_seconds",
        "Processor time of the host itself: its tasks, and soft interrupts for no guest.",
    );
    page.sample(&[("kind", "tasks")], totals.host.as_secs_f64());
    page.sample(&[("kind", "softirq")], totals.host_softirq.as_secs_f64());
    let mut cpu = |name: &str, help: &str, time: Nanoseconds| {
        page.one(Kind::Counter, name, help, time.as_secs_f64());
    };
    cpu(
        "vtax_unattributed_cpu_seconds",
        "Processor time without an owner. Never spread over the guests.",
        totals.unattributed,
    );
    let (departed, left_out) = (&listing.departed_sum, &listing.left_out_sum);
    cpu(
        "vtax_departed_guests_cpu_seconds",
        "Processor time of guests that are gone. Grows at once by all that a guest had used when it ends, and by guests that lived between two passes: for sums, not for rates.",
        departed.cpu,
    );
    cpu(
        "vtax_left_out_guests_cpu_seconds",
        "Processor time of guests while they had no series, since there are more than --max-guests.",
        left_out.cpu,
    );
    cpu(
        "vtax_busy_cpu_seconds",
        "All processor time that was neither idle nor taken away by a hypervisor below: what the other counters add up to.",
        totals.total,
    );
    let source = energy_source(snapshot);
    let Some(of_energy) = of_energy(snapshot, &source) else {
        return;
    };
    let mut energy = |name: &str, help: &str, joules: Joules| {
        page.family(Kind::Counter, name, help);
        page.sample(&of_energy, joules.0);
    };
    energy(
        "vtax_host_energy_joules",
        "Energy of the host itself.",
        totals.host_energy,
    );
    energy(
        "vtax_unattributed_energy_joules",
        "Energy of the time without an owner.",
        totals.unattributed_energy,
    );
    let parts = totals.guests.values().map(|guest| guest.energy.0);
    let all = parts.sum::<f64>()
        + totals.gone.energy.0
        + totals.host_energy.0
        + totals.unattributed_energy.0;
    energy(
        "vtax_energy_joules",
        "All energy: what the other counters of energy add up to.",
        Joules(all),
    );
    energy(
        "vtax_departed_guests_energy_joules",
        "Energy of guests that are gone.",
        departed.energy,
    );
    energy(
        "vtax_left_out_guests_energy_joules",
        "Energy of guests while they had no series.",
        left_out.energy,
    );
}

fn exporter(page: &mut Page<'_>, snapshot: &LedgerSnapshot, listing: &Listing, own: &Own) {
    let mut gauge = |name: &str, help: &str, value: f64| page.one(Kind::Gauge, name, help, value);
    gauge(
        "vtax_guests",
        "Guests of this host.",
        snapshot.guests.len() as f64,
    );
    gauge(
        "vtax_guests_left_out",
        "Guests without series, since there are more than --max-guests.",
        listing.left_out as f64,
    );
    gauge(
        "vtax_guests_limit",
        "Guests that may have series.",
        own.max_guests as f64,
    );
    gauge(
        "vtax_exporter_interval_seconds",
        "Length of the last interval.",
        snapshot.ledger.span.as_secs_f64(),
    );
    gauge(
        "vtax_exporter_snapshot_timestamp_seconds",
        "When the last interval ended, in seconds since 1970.",
        snapshot.ended.as_duration().as_secs_f64(),
    );
    gauge(
        "vtax_exporter_snapshot_age_seconds",
        "How long ago that was: more than some intervals where passes fail or hang.",
        own.since_pass.as_secs_f64(),
    );
    gauge(
        "vtax_exporter_pass_seconds",
        "How long the last pass over all guests took.",
        own.pass_seconds,
    );
    gauge(
        "vtax_exporter_problems",
        "What failed in the last pass or works less well than it could; the exporter's output says what.",
        snapshot.problems.len() as f64,
    );
    if let Some(bytes) = own.resident_bytes {
        gauge(
            "vtax_exporter_resident_memory_bytes",
            "Memory that the exporter holds.",
            count(bytes),
        );
    }
    let mut counter =
        |name: &str, help: &str, value: f64| page.one(Kind::Counter, name, help, value);
    counter(
        "vtax_exporter_cpu_seconds",
        "Processor time of the exporter itself, scrapes included. Part of the host's.",
        snapshot.own_cpu.as_secs_f64(),
    );
    counter(
        "vtax_exporter_sampling_cpu_seconds",
        "The part of it that sampling and charging took.",
        snapshot.sampling_cpu.as_secs_f64(),
    );
    counter(
        "vtax_exporter_passes",
        "Passes that succeeded.",
        count(own.passes),
    );
    counter(
        "vtax_exporter_failed_passes",
        "Passes that failed as a whole.",
        count(own.failed),
    );
}

/// A number of a push destination.
type OfPush = fn(&PushState) -> f64;

/// The families of a push destination with one sample each.
const PUSHES: [(Kind, &str, &str, OfPush); 7] = [
    (
        Kind::Gauge,
        "vtax_push_queue_bytes",
        "What waits on disk to be pushed.",
        |state| count(state.queue_bytes),
    ),
    (
        Kind::Gauge,
        "vtax_push_queue_age_seconds",
        "How old the oldest sample is that waits to be pushed.",
        |state| state.oldest.as_secs_f64(),
    ),
    (
        Kind::Counter,
        "vtax_push_sent_samples",
        "Samples that the server took.",
        |state| count(state.sent),
    ),
    (
        Kind::Counter,
        "vtax_push_repeated_samples",
        "Samples that the server had already, since an answer of it was lost.",
        |state| count(state.repeated),
    ),
    (
        Kind::Counter,
        "vtax_push_requests",
        "Requests that the server answered and that are not repeated.",
        |state| count(state.requests),
    ),
    (
        Kind::Counter,
        "vtax_push_sent_bytes",
        "Bodies of these requests, as they travelled.",
        |state| count(state.sent_bytes),
    ),
    (
        Kind::Counter,
        "vtax_push_failures",
        "Requests that got no answer or one that says later.",
        |state| count(state.failures),
    ),
];

fn pushes(page: &mut Page<'_>, states: &[PushState]) {
    if states.is_empty() {
        return;
    }
    for (kind, name, help, value_of) in PUSHES {
        page.family(kind, name, help);
        for state in states {
            page.sample(&[("to", &state.to)], value_of(state));
        }
    }
    page.family(
        Kind::Counter,
        "vtax_push_dropped_samples",
        "Samples that are lost: the queue was full, the server refused them, or the disk did not keep them.",
    );
    for state in states {
        for (reason, samples) in [
            ("full", state.dropped_full),
            ("refused", state.dropped_refused),
            ("too_large", state.dropped_too_large),
            ("disk", state.dropped_disk),
        ] {
            page.sample(&[("to", &state.to), ("reason", reason)], count(samples));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::Roster;
    use vtax_charge::Runner;
    use vtax_charge::fake::Host;
    use vtax_core::Source;

    /// The sum of all samples of these names.
    fn sum(text: &str, names: &[&str]) -> f64 {
        let values = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let name = series.split('{').next()?;
            names.contains(&name).then(|| value.parse::<f64>().unwrap())
        });
        values.sum()
    }

    fn text(host: &mut Host, roster: &mut Roster, time: u64) -> String {
        let snapshot = host.pass(time);
        let listing = roster.update(&snapshot);
        write(&snapshot, &listing, &Own::default(), Format::Text)
    }

    #[test]
    fn the_series_of_every_scrape_add_up_to_the_measured_total_also_when_guests_come_and_go() {
        let (mut host, mut roster) = (Host::default(), Roster::new(3));
        for number in 1..40 {
            host.start(number);
            if number % 3 == 0 {
                host.end(number / 2);
                host.depart(5_000_000);
            }
            let text = text(&mut host, &mut roster, u64::from(number) * 1_000_000);
            let parts = sum(
                &text,
                &[
                    "vtax_guest_cpu_seconds_total",
                    "vtax_host_cpu_seconds_total",
                    "vtax_unattributed_cpu_seconds_total",
                    "vtax_departed_guests_cpu_seconds_total",
                    "vtax_left_out_guests_cpu_seconds_total",
                ],
            );
            let busy = sum(&text, &["vtax_busy_cpu_seconds_total"]);
            let joules = sum(
                &text,
                &[
                    "vtax_guest_energy_joules_total",
                    "vtax_host_energy_joules_total",
                    "vtax_unattributed_energy_joules_total",
                    "vtax_departed_guests_energy_joules_total",
                    "vtax_left_out_guests_energy_joules_total",
                ],
            );
            let energy = sum(&text, &["vtax_energy_joules_total"]);
            assert!(
                (joules - energy).abs() < energy * 1e-9,
                "{joules} and {energy}"
            );
            assert!((parts - busy).abs() < busy * 1e-9, "{parts} and {busy}");
        }
    }

    #[test]
    fn every_counter_of_modelled_energy_names_its_model() {
        let (mut host, mut roster) = (Host::default(), Roster::new(10));
        let text = text(&mut host, &mut roster, 1_000_000_000);
        let labels = "{name=\"another machine\",date=\"2011-04-06\",file=\"built-in\",covers=\"the whole machine\",\
                      fitted_to=\"\",residual_rms_watts=\"\",residual_worst_watts=\"\"} 1\n";
        assert!(
            text.contains(&format!("vtax_power_model_info{labels}")),
            "{text}"
        );
        let joules = text.lines().filter(|line| !line.starts_with('#'));
        let joules: Vec<&str> = joules
            .filter(|line| line.contains("joules_total"))
            .collect();
        assert!(joules.len() >= 5, "{text}");
        for line in joules {
            let named = line.contains("source=\"modelled\",model=\"another machine\"}");
            assert!(named, "{line}");
        }
    }

    #[test]
    fn measured_energy_names_no_model() {
        let (mut host, mut roster) = (Host::default(), Roster::new(10));
        let mut snapshot = host.pass(1_000_000_000);
        snapshot.energy_source = Some(("processor packages".to_owned(), Source::Measured));
        snapshot.power_model = None;
        let listing = roster.update(&snapshot);
        let text = write(&snapshot, &listing, &Own::default(), Format::Text);
        assert!(
            text.contains("vtax_energy_joules_total{source=\"measured\"} "),
            "{text}"
        );
        assert!(!text.contains("model=") && !text.contains("vtax_power_model_info"));
    }

    #[test]
    fn the_series_of_a_guest_vanish_with_it_and_its_stages_are_those_that_its_platform_has() {
        let (mut host, mut roster) = (Host::default(), Roster::new(10));
        host.start_named(1, "web", Platform::Docker);
        host.start_named(2, "vm", Platform::Qemu);
        let before = text(&mut host, &mut roster, 1_000_000_000);
        assert!(before.contains(
            "vtax_guest_cpu_seconds_total{guest=\"web\",platform=\"docker\",stage=\"vcpu\"} 0.9\n"
        ));
        assert!(before.contains("{guest=\"web\",platform=\"docker\",stage=\"softirq\"} 0.1\n"));
        assert!(before.contains("{guest=\"web\",platform=\"docker\",source=\"modelled\",model=\"another machine\"} 1000\n"));
        assert!(
            before.contains("vtax_guest_hidden_cpu_ratio{guest=\"web\",platform=\"docker\"} 0.1\n")
        );
        assert!(!before.contains("guest=\"web\",platform=\"docker\",stage=\"vhost\""));
        assert!(before.contains("guest=\"vm\",platform=\"qemu\",stage=\"vhost\"} 0\n"));
        host.end(1);
        let after = text(&mut host, &mut roster, 1);
        assert!(!after.contains("web") && after.contains("guest=\"vm\""));
    }

    #[test]
    fn a_guests_waits_name_what_ran_and_are_absent_where_they_are_not_known() {
        let (mut host, mut roster) = (Host::default(), Roster::new(10));
        host.start_named(1, "db", Platform::Docker);
        host.start_named(2, "batch", Platform::Qemu);
        assert!(!text(&mut host, &mut roster, 1).contains("vtax_guest_wait_seconds"));
        host.wait(1, Runner::Guest(2), 310_000_000);
        host.wait(1, Runner::Idle, 30_000_000);
        let shown = text(&mut host, &mut roster, 1);
        let of_db = "vtax_guest_wait_seconds_total{guest=\"db\",platform=\"docker\",";
        let lines = [
            "for=\"batch\",for_platform=\"qemu\"} 0.31\n",
            "for=\"idle\",for_platform=\"\"} 0.03\n",
        ];
        for line in lines {
            assert!(shown.contains(&format!("{of_db}{line}")), "{shown}");
        }
        assert_eq!(shown.matches("vtax_guest_wait_seconds_total{").count(), 2);
    }

    #[test]
    fn the_number_of_series_is_bounded_and_what_is_left_out_is_reported() {
        let (mut host, mut roster) = (Host::default(), Roster::new(5));
        for number in 1..500 {
            host.start(number);
        }
        let text = text(&mut host, &mut roster, 1);
        assert!(text.contains("vtax_guests 499\n") && text.contains("vtax_guests_left_out 494\n"));
        assert_eq!(text.matches("vtax_guest_info{").count(), 5);
    }

    #[test]
    fn a_name_cannot_break_out_of_its_label() {
        let (mut host, mut roster) = (Host::default(), Roster::new(5));
        host.start_named(1, "a\"} 1\nvtax_guests 9\\", Platform::Qemu);
        let text = text(&mut host, &mut roster, 1);
        assert!(text.contains("{guest=\"a\\\"} 1\\nvtax_guests 9\\\\\",platform="));
        assert_eq!(
            text.lines()
                .filter(|line| line.starts_with("vtax_guests "))
                .count(),
            1
        );
    }
}
