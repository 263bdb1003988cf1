// SPDX-License-Identifier: Apache-2.0
//! The metric families of a snapshot, for scrapes and pushes. `docs/howto/charge-guests.md` has the table of names.
//!
//! All families are written from one immutable snapshot: the series of one scrape are of one interval, and a guest
//! that has ended has no series.

use crate::roster::{Listing, Sum};
use std::time::Duration;
use vtax_charge::{ChargedGuest, LedgerSnapshot, softirq_source};
use vtax_charge::{GuestTotals, Stage};
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
    about(out, snapshot);
    guests(out, snapshot, listing);
    rest(out, snapshot, listing);
    exporter(out, snapshot, listing, own);
    pushes(out, &own.pushes);
}

fn count(value: u64) -> f64 {
    value as f64
}

fn about(out: &mut dyn Families, snapshot: &LedgerSnapshot) {
    let version = env!("CARGO_PKG_VERSION");
    out.family(
        "vtax_build",
        Kind::Info,
        None,
        "The vtax that exports this.",
    );
    out.sample(&[("version", version)], 1.0);
    out.family(
        "vtax_charge",
        Kind::Info,
        None,
        "How soft interrupts are charged (traced or counted), how the kernel accounts interrupts, what the energy covers and whether it is measured.",
    );
    let (covers, source) = match &snapshot.energy_source {
        Some((covers, source)) => (covers.as_str(), source.to_string()),
        None => ("nothing", "none".to_owned()),
    };
    let softirq_source = softirq_source(snapshot.method).to_string();
    out.sample(
        &[
            ("method", snapshot.method),
            ("softirq_source", &softirq_source),
            ("irq_accounting", snapshot.irq_accounting.name()),
            ("energy_covers", covers),
            ("energy_source", &source),
        ],
        1.0,
    );
    if let Some(model) = &snapshot.power_model {
        out.family(
            "vtax_power_model",
            Kind::Info,
            None,
            "The power model that computes the energy: its date, file and coverage, the meter that it was fitted to, and how far it is off.",
        );
        let watts = |of: fn(&Fit) -> f64| {
            let fit = model.fit.as_ref();
            fit.map_or(String::new(), |fit| format!("{:.1}", of(fit)))
        };
        let fitted_to = model.fit.as_ref().map_or("", |fit| fit.meter.as_str());
        let file = model.file.as_ref().map(|file| file.display().to_string());
        out.sample(
            &[
                ("name", &model.name),
                ("date", model.date.as_deref().unwrap_or_default()),
                ("file", file.as_deref().unwrap_or("built-in")),
                ("covers", covers),
                ("fitted_to", fitted_to),
                ("residual_rms_watts", &watts(|fit| fit.residual_rms_watts)),
                (
                    "residual_worst_watts",
                    &watts(|fit| fit.residual_worst_watts),
                ),
            ],
            1.0,
        );
    }
}

/// The labels of every counter of energy: its source, and the name of the model where one computes it. `None` without
/// a meter.
fn of_energy(snapshot: &LedgerSnapshot) -> Option<Vec<(&'static str, String)>> {
    let (_, source) = snapshot.energy_source.as_ref()?;
    let model = snapshot.power_model.as_ref();
    let model = model.map(|model| ("model", model.name.clone()));
    Some(
        [("source", source.to_string())]
            .into_iter()
            .chain(model)
            .collect(),
    )
}

/// Returns whether guests of a platform can have a stage. A stage that is always zero has no series.
fn has(platform: Platform, stage: Stage) -> bool {
    match stage {
        Stage::Vcpu | Stage::Softirq => true,
        Stage::Emulator => platform.is_vm(),
        Stage::Iothread | Stage::Vhost => platform.is_vm() && platform != Platform::Xen,
        Stage::Backend => platform == Platform::Xen,
        _ => false,
    }
}

fn guests(out: &mut dyn Families, snapshot: &LedgerSnapshot, listing: &Listing) {
    let listed: Vec<(&ChargedGuest, &GuestTotals)> = listing
        .listed
        .iter()
        .filter_map(|(index, total)| Some((snapshot.guests.get(*index)?, total)))
        .collect();
    out.family("vtax_guest", Kind::Info, None, "A guest of this host.");
    for (guest, _) in &listed {
        let number = guest.number.to_string();
        out.sample(
            &[
                ("guest", &guest.name),
                ("platform", guest.platform.name()),
                ("manager", guest.manager.unwrap_or("")),
                ("uuid", guest.uuid.as_deref().unwrap_or("")),
                ("number", &number),
            ],
            1.0,
        );
    }
    out.family(
        "vtax_guest_cpu_seconds",
        Kind::Counter,
        Some("seconds"),
        "Host processor time that a guest caused, by stage: its own code (vcpu), its monitor (emulator, iothread), vhost workers, soft interrupts, Xen backends.",
    );
    for (guest, total) in &listed {
        for stage in Stage::CHARGED {
            let time = total.stages.get(stage);
            if time.0 > 0 || has(guest.platform, stage) {
                let labels = [
                    ("guest", guest.name.as_str()),
                    ("platform", guest.platform.name()),
                    ("stage", stage.name()),
                ];
                out.sample(&labels, time.as_secs_f64());
            }
        }
    }
    if listed.iter().any(|(guest, _)| guest.total.error.0 > 0) {
        out.family(
            "vtax_guest_cpu_error_seconds",
            Kind::Counter,
            Some("seconds"),
            "How far vtax_guest_cpu_seconds of a guest may be off, all stages together: over any window, at most by what this grew. Absent where the times are measured.",
        );
        for (guest, total) in &listed {
            out.sample(&labels(guest), total.error.as_secs_f64());
        }
    }
    out.family(
        "vtax_guest_hidden_cpu_ratio",
        Kind::Gauge,
        Some("ratio"),
        "Share of a guest's processor time in the last interval that was not its own code. Absent while it uses none.",
    );
    for (guest, _) in &listed {
        if let Some(hidden) = guest.hidden() {
            out.sample(&labels(guest), hidden);
        }
    }
    if let Some(energy) = of_energy(snapshot) {
        out.family(
            "vtax_guest_energy_joules",
            Kind::Counter,
            Some("joules"),
            "Energy charged to a guest. The label source is measured or modelled; model names the power model.",
        );
        for (guest, total) in &listed {
            let energy = energy.iter().map(|(name, value)| (*name, value.as_str()));
            let all: Vec<(&str, &str)> = labels(guest).into_iter().chain(energy).collect();
            out.sample(&all, total.energy.0);
        }
    }
    type Counted = fn(&GuestTotals) -> Option<u64>;
    let counts: [(&str, Option<&str>, &str, Counted); 6] = [
        (
            "vtax_guest_receive_packets",
            Some("packets"),
            "Packets that a guest received.",
            |total| Some(total.exchanges.received),
        ),
        (
            "vtax_guest_transmit_packets",
            Some("packets"),
            "Packets that a guest sent.",
            |total| Some(total.exchanges.sent),
        ),
        (
            "vtax_guest_network_bytes",
            Some("bytes"),
            "Bytes that a guest received and sent.",
            |total| Some(total.exchanges.bytes),
        ),
        (
            "vtax_guest_block_requests",
            None,
            "Block requests that completed for a guest.",
            |total| Some(total.exchanges.block_requests),
        ),
        (
            "vtax_guest_exits",
            None,
            "VM exits of a guest, where the kernel shows them.",
            |total| total.exchanges.exits,
        ),
        (
            "vtax_guest_exchanged_pages",
            Some("pages"),
            "Pages that back ends exchanged with a Xen domain, where BPF works.",
            |total| total.exchanges.pages,
        ),
    ];
    for (name, unit, help, value) in counts {
        out.family(name, Kind::Counter, unit, help);
        for (guest, total) in &listed {
            if let Some(value) = value(total) {
                out.sample(&labels(guest), count(value));
            }
        }
    }
}

fn labels(guest: &ChargedGuest) -> [(&'static str, &str); 2] {
    [("guest", &guest.name), ("platform", guest.platform.name())]
}

/// Writes the families of time and energy outside of listed guests, so that the sums close.
fn rest(out: &mut dyn Families, snapshot: &LedgerSnapshot, listing: &Listing) {
    let totals = &snapshot.totals;
    let mut cpu = |name: &str, help: &str, samples: &[(&[(&str, &str)], f64)]| {
        out.family(name, Kind::Counter, Some("seconds"), help);
        for (labels, value) in samples {
            out.sample(labels, *value);
        }
    };
    cpu(
        "vtax_host_cpu_seconds",
        "Processor time of the host itself: its tasks, and soft interrupts for no guest.",
        &[
            (&[("kind", "tasks")], totals.host.as_secs_f64()),
            (&[("kind", "softirq")], totals.host_softirq.as_secs_f64()),
        ],
    );
    cpu(
        "vtax_unattributed_cpu_seconds",
        "Processor time without an owner. Never spread over the guests.",
        &[(&[], totals.unattributed.as_secs_f64())],
    );
    let (departed, left_out) = (&listing.departed_sum, &listing.left_out_sum);
    cpu(
        "vtax_departed_guests_cpu_seconds",
        "Processor time of guests that are gone. Grows at once by all that a guest had used when it ends, and by guests that lived between two passes: for sums, not for rates.",
        &[(&[], departed.cpu.as_secs_f64())],
    );
    cpu(
        "vtax_left_out_guests_cpu_seconds",
        "Processor time of guests while they had no series, since there are more than --max-guests.",
        &[(&[], left_out.cpu.as_secs_f64())],
    );
    cpu(
        "vtax_busy_cpu_seconds",
        "All processor time that was neither idle nor taken away by a hypervisor below: what the other counters add up to.",
        &[(&[], totals.total.as_secs_f64())],
    );
    let Some(of_energy) = of_energy(snapshot) else {
        return;
    };
    let of_energy = of_energy
        .iter()
        .map(|(name, value)| (*name, value.as_str()));
    let of_energy: Vec<(&str, &str)> = of_energy.collect();
    let mut energy = |name: &str, help: &str, joules: f64| {
        out.family(name, Kind::Counter, Some("joules"), help);
        out.sample(&of_energy, joules);
    };
    energy(
        "vtax_host_energy_joules",
        "Energy of the host itself.",
        totals.host_energy.0,
    );
    energy(
        "vtax_unattributed_energy_joules",
        "Energy of the time without an owner.",
        totals.unattributed_energy.0,
    );
    let parts = totals.guests.values().map(|guest| guest.energy.0);
    let all = parts.sum::<f64>()
        + totals.gone.energy.0
        + totals.host_energy.0
        + totals.unattributed_energy.0;
    energy(
        "vtax_energy_joules",
        "All energy: what the other counters of energy add up to.",
        all,
    );
    let of = |sum: &Sum| sum.energy.0;
    energy(
        "vtax_departed_guests_energy_joules",
        "Energy of guests that are gone.",
        of(departed),
    );
    energy(
        "vtax_left_out_guests_energy_joules",
        "Energy of guests while they had no series.",
        of(left_out),
    );
}

fn exporter(out: &mut dyn Families, snapshot: &LedgerSnapshot, listing: &Listing, own: &Own) {
    let mut gauge = |name: &str, unit: Option<&str>, help: &str, value: f64| {
        out.family(name, Kind::Gauge, unit, help);
        out.sample(&[], value);
    };
    gauge(
        "vtax_guests",
        None,
        "Guests of this host.",
        count(snapshot.guests.len() as u64),
    );
    gauge(
        "vtax_guests_left_out",
        None,
        "Guests without series, since there are more than --max-guests.",
        count(listing.left_out as u64),
    );
    gauge(
        "vtax_guests_limit",
        None,
        "Guests that may have series.",
        count(own.max_guests as u64),
    );
    gauge(
        "vtax_exporter_interval_seconds",
        Some("seconds"),
        "Length of the last interval.",
        snapshot.ledger.span.as_secs_f64(),
    );
    gauge(
        "vtax_exporter_snapshot_timestamp_seconds",
        Some("seconds"),
        "When the last interval ended, in seconds since 1970.",
        snapshot.ended.as_duration().as_secs_f64(),
    );
    gauge(
        "vtax_exporter_snapshot_age_seconds",
        Some("seconds"),
        "How long ago that was: more than some intervals where passes fail or hang.",
        own.since_pass.as_secs_f64(),
    );
    gauge(
        "vtax_exporter_pass_seconds",
        Some("seconds"),
        "How long the last pass over all guests took.",
        own.pass_seconds,
    );
    gauge(
        "vtax_exporter_problems",
        None,
        "What failed in the last pass or works less well than it could; the exporter's output says what.",
        count(snapshot.problems.len() as u64),
    );
    if let Some(bytes) = own.resident_bytes {
        gauge(
            "vtax_exporter_resident_memory_bytes",
            Some("bytes"),
            "Memory that the exporter holds.",
            count(bytes),
        );
    }
    let mut counter = |name: &str, unit: Option<&str>, help: &str, value: f64| {
        out.family(name, Kind::Counter, unit, help);
        out.sample(&[], value);
    };
    counter(
        "vtax_exporter_cpu_seconds",
        Some("seconds"),
        "Processor time of the exporter itself, scrapes included. Part of the host's.",
        snapshot.own_cpu.as_secs_f64(),
    );
    counter(
        "vtax_exporter_sampling_cpu_seconds",
        Some("seconds"),
        "The part of it that sampling and charging took.",
        snapshot.sampling_cpu.as_secs_f64(),
    );
    counter(
        "vtax_exporter_passes",
        None,
        "Passes that succeeded.",
        count(own.passes),
    );
    counter(
        "vtax_exporter_failed_passes",
        None,
        "Passes that failed as a whole.",
        count(own.failed),
    );
}

fn pushes(out: &mut dyn Families, states: &[PushState]) {
    if states.is_empty() {
        return;
    }
    type Value = fn(&PushState) -> f64;
    let gauges: [(&str, &str, &str, Value); 2] = [
        (
            "vtax_push_queue_bytes",
            "bytes",
            "What waits on disk to be pushed.",
            |state| count(state.queue_bytes),
        ),
        (
            "vtax_push_queue_age_seconds",
            "seconds",
            "How old the oldest sample is that waits to be pushed.",
            |state| state.oldest.as_secs_f64(),
        ),
    ];
    for (name, unit, help, value_of) in gauges {
        out.family(name, Kind::Gauge, Some(unit), help);
        for state in states {
            out.sample(&[("to", &state.to)], value_of(state));
        }
    }
    let counters: [(&str, Option<&str>, &str, Value); 5] = [
        (
            "vtax_push_sent_samples",
            None,
            "Samples that the server took.",
            |state| count(state.sent),
        ),
        (
            "vtax_push_repeated_samples",
            None,
            "Samples that the server had already, since an answer of it was lost.",
            |state| count(state.repeated),
        ),
        (
            "vtax_push_requests",
            None,
            "Requests that the server answered and that are not repeated.",
            |state| count(state.requests),
        ),
        (
            "vtax_push_sent_bytes",
            Some("bytes"),
            "Bodies of these requests, as they travelled.",
            |state| count(state.sent_bytes),
        ),
        (
            "vtax_push_failures",
            None,
            "Requests that got no answer or one that says later.",
            |state| count(state.failures),
        ),
    ];
    for (name, unit, help, value_of) in counters {
        out.family(name, Kind::Counter, unit, help);
        for state in states {
            out.sample(&[("to", &state.to)], value_of(state));
        }
    }
    out.family(
        "vtax_push_dropped_samples",
        Kind::Counter,
        None,
        "Samples that are lost: the queue was full, the server refused them, or the disk did not keep them.",
    );
    for state in states {
        for (reason, samples) in [
            ("full", state.dropped_full),
            ("refused", state.dropped_refused),
            ("too_large", state.dropped_too_large),
            ("disk", state.dropped_disk),
        ] {
            out.sample(&[("to", &state.to), ("reason", reason)], count(samples));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::Roster;
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
