// SPDX-License-Identifier: Apache-2.0
//! `vtax report` of a recording: one document, as JSON and as a table for terminals.

use crate::store::Facts;
use crate::summary::{Guest, Recording, Use, stages};
use jiff::Timestamp;
use serde::Serialize;
use std::collections::BTreeMap;
use vtax_charge::Stage;
use vtax_core::{Base, Joules, Nanoseconds, Source, Unit, counted};
use vtax_results::numbers::{percent, plain};
use vtax_results::text::{Table, clean, cut};

/// Minutes in the table of the busiest.
const BUSIEST_MINUTES: usize = 5;
/// Guests that a busy minute names.
const NAMED_GUESTS: usize = 3;
/// Guests of the table in a terminal.
const SHOWN_GUESTS: usize = 30;
/// Fewest packets, exits or bytes that a cost for each is computed from.
const FEWEST_EVENTS: u64 = 1000;
/// Bytes of a gigabyte.
pub const GIGABYTE: f64 = 1e9;

/// The report of a recording.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// The directory.
    pub recording: String,
    /// Start of the first second (RFC 3339, UTC).
    pub began: String,
    /// Length of all seconds, by the monotonic clock.
    pub recorded_seconds: f64,
    /// Intervals.
    pub intervals: u64,
    /// Intervals that are missing.
    pub missing_intervals: u64,
    /// Bytes that belong to no whole interval.
    pub damaged_bytes: u64,
    /// Starts of a recorder.
    pub sessions: usize,
    /// Steps of the wall clock.
    pub clock_steps: u64,
    /// Changes of the method or the model within the recording.
    pub changes: &'a [String],
    /// The facts of the last interval.
    pub facts: &'a Facts,
    /// Whether the energy is measured or modelled; `None` without a meter.
    pub energy_source: Option<Source>,
    /// The recorder's share of a processor.
    pub recorder_processors: f64,
    /// Size of the recording.
    pub bytes: u64,
    /// Size for each guest and second.
    pub bytes_per_guest_second: Option<f64>,
    /// All time that processors were busy.
    pub busy_cpu_seconds: f64,
    /// The host's own time.
    pub host_cpu_seconds: f64,
    /// Guests that ended within an interval, for the time that is in no guest's row.
    pub departed_cpu_seconds: f64,
    /// Time without an owner.
    pub unattributed_cpu_seconds: f64,
    /// Energy.
    pub energy_joules: Option<f64>,
    /// The host's part of the energy.
    pub host_energy_joules: Option<f64>,
    /// The part of guests that ended within an interval.
    pub departed_energy_joules: Option<f64>,
    /// The part of time without an owner.
    pub unattributed_energy_joules: Option<f64>,
    /// The part that an idle host uses, which nobody is charged for.
    pub idle_energy_joules: Option<f64>,
    /// The guests, those that cost most first.
    pub guests: Vec<GuestReport<'a>>,
    /// The minutes, or windows of another length where the recording is long.
    pub minutes: Vec<MinuteReport>,
    /// The numbers of the busiest minutes, the busiest first.
    pub busiest_minutes: Vec<usize>,
}

/// The guests of one name.
#[derive(Debug, Serialize)]
pub struct GuestReport<'a> {
    /// The name.
    pub guest: &'a str,
    /// The platform.
    pub platform: &'a str,
    /// The number of guests that had the name.
    pub instances: usize,
    /// The time that they were present, added up.
    pub present_seconds: f64,
    /// Its true cost: its own time and the host's for it.
    pub cpu_seconds: f64,
    /// The error of the time, where it is modelled.
    pub cpu_error_seconds: Option<f64>,
    /// Time that it sees.
    pub own_cpu_seconds: f64,
    /// Time that the host spends for it; none of a service, whose soft interrupts are not known.
    pub hidden_cpu_seconds: Option<f64>,
    /// The share of that.
    pub hidden_share: Option<f64>,
    /// Time by stage.
    pub stages: BTreeMap<&'static str, f64>,
    /// Energy.
    pub energy_joules: Option<f64>,
    /// Packets in both directions; none of a service, whose cannot be separated from the host's.
    pub packets: Option<u64>,
    /// Bytes in both directions, as the packets.
    pub bytes: Option<u64>,
    /// Block requests, as the packets.
    pub block_requests: Option<u64>,
    /// VM exits, where the kernel shows them.
    pub exits: Option<u64>,
    /// The cost of a packet.
    pub per_packet: Option<Cost>,
    /// The cost of a VM exit.
    pub per_exit: Option<Cost>,
    /// The cost of 10⁹ bytes through the network.
    pub per_gigabyte: Option<Cost>,
}

/// The cost of a unit of work: all that the guest cost, divided by the number of units.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cost {
    /// Processor time, hidden time included.
    pub cpu_seconds: f64,
    /// The hidden part.
    pub hidden_cpu_seconds: f64,
    /// Energy.
    pub energy_joules: Option<f64>,
}

/// A minute.
#[derive(Debug, Serialize)]
pub struct MinuteReport {
    /// Its start (RFC 3339, UTC).
    pub began: String,
    /// Its length by the monotonic clock.
    pub seconds: f64,
    /// Processors that were busy.
    pub busy_processors: f64,
    /// Processors that worked for the host itself.
    pub host_processors: f64,
    /// Processors that worked for guests which ended within an interval.
    pub departed_processors: f64,
    /// Processors without an owner.
    pub unattributed_processors: f64,
    /// Mean power.
    pub watts: Option<f64>,
    /// The processors that each guest cost, those that cost most first.
    pub guests: Vec<(String, f64)>,
}

impl Cost {
    /// The cost of each of `units`; `None` where they are too few.
    pub fn from_used(used: &Use, units: f64, energy: bool) -> Option<Self> {
        let each = |total: f64| total / units;
        (units > 0.0).then(|| Self {
            cpu_seconds: each(used.cpu().as_secs_f64()),
            hidden_cpu_seconds: each(used.stages.hidden().as_secs_f64()),
            energy_joules: energy.then(|| each(used.energy.0)),
        })
    }
}

impl<'a> Report<'a> {
    /// Makes the report.
    pub fn from_recording(recording: &'a Recording) -> Self {
        let host = &recording.host;
        let minutes: Vec<MinuteReport> = (0..recording.windows.len())
            .filter_map(|at| minute(recording, at))
            .collect();
        let mut busiest: Vec<usize> = recording.whole_windows().collect();
        let busy = |at: &usize| minutes.get(*at).map_or(0.0, |of| of.busy_processors);
        busiest.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
        busiest.truncate(BUSIEST_MINUTES);
        let has_energy = recording.energy_source.is_some();
        let part = |energy: Joules| has_energy.then_some(energy.0);
        let others = host.host_energy + host.departed_energy + host.unattributed_energy;
        let guests = recording.guests.iter().map(|guest| guest.total.energy);
        let charged = guests.fold(others, |sum, energy| sum + energy);
        Self {
            recording: recording.path.display().to_string(),
            began: recording.began().to_string(),
            recorded_seconds: host.span.as_secs_f64(),
            intervals: recording.seconds,
            missing_intervals: recording.missing,
            damaged_bytes: recording.damaged,
            sessions: recording.sessions,
            clock_steps: recording.clock_steps,
            changes: &recording.changes,
            facts: &recording.facts,
            energy_source: recording.energy_source,
            recorder_processors: recording.own_share(),
            bytes: recording.bytes,
            bytes_per_guest_second: (recording.guest_seconds > 0)
                .then(|| recording.bytes as f64 / recording.guest_seconds as f64),
            busy_cpu_seconds: host.busy.as_secs_f64(),
            host_cpu_seconds: host.host.as_secs_f64(),
            departed_cpu_seconds: host.departed.as_secs_f64(),
            unattributed_cpu_seconds: host.unattributed.as_secs_f64(),
            energy_joules: host.energy.map(|energy| energy.0),
            host_energy_joules: part(host.host_energy),
            departed_energy_joules: part(host.departed_energy),
            unattributed_energy_joules: part(host.unattributed_energy),
            idle_energy_joules: host.energy.map(|all| {
                let rest = all.0 - charged.0;
                // A smaller rest is rounding.
                if rest > all.0 * 1e-9 { rest } else { 0.0 }
            }),
            guests: (recording.guests.iter())
                .map(|guest| GuestReport::from_guest(guest, has_energy))
                .collect(),
            minutes,
            busiest_minutes: busiest,
        }
    }
}

/// The windows of a recording in which any time passed, each with its number.
pub fn windows(recording: &Recording) -> Vec<(usize, MinuteReport)> {
    let all = (0..recording.windows.len()).filter_map(|at| Some((at, minute(recording, at)?)));
    all.filter(|(_, window)| window.seconds > EMPTY).collect()
}

/// A window of no time, between two seconds that are a little longer than their window.
const EMPTY: f64 = 1e-6;

fn minute(recording: &Recording, at: usize) -> Option<MinuteReport> {
    let window = recording.windows.get(at)?;
    let seconds = window.span.as_secs_f64().max(1e-9);
    let processors = |time: Nanoseconds| time.as_secs_f64() / seconds;
    let guests = recording.guests.iter();
    let guests =
        guests.filter_map(|guest| Some((guest.label(), processors(guest.windows.get(&at)?.cpu()))));
    let mut guests: Vec<(String, f64)> = guests.collect();
    guests.sort_by(|a, b| b.1.total_cmp(&a.1));
    Some(MinuteReport {
        began: Timestamp::from_millisecond(window.began)
            .unwrap_or_default()
            .to_string(),
        seconds,
        busy_processors: processors(window.busy),
        host_processors: processors(window.host),
        departed_processors: processors(window.departed),
        unattributed_processors: processors(window.unattributed),
        watts: window.energy.map(|Joules(energy)| energy / seconds),
        guests,
    })
}

impl<'a> GuestReport<'a> {
    fn from_guest(guest: &'a Guest, has_energy: bool) -> Self {
        let used = &guest.total;
        let enough = |units: u64| (units >= FEWEST_EVENTS).then_some(units as f64);
        let cost = |units: Option<f64>| Cost::from_used(used, units?, has_energy);
        let known = |count: u64| (!guest.is_service()).then_some(count);
        Self {
            guest: &guest.name,
            platform: &guest.platform,
            instances: guest.instances,
            present_seconds: used.present.as_secs_f64(),
            cpu_seconds: used.cpu().as_secs_f64(),
            cpu_error_seconds: (used.error.0 > 0).then(|| used.error.as_secs_f64()),
            own_cpu_seconds: used.stages.get(Stage::Vcpu).as_secs_f64(),
            hidden_cpu_seconds: (!guest.is_service()).then(|| used.stages.hidden().as_secs_f64()),
            hidden_share: guest.hidden(),
            stages: (used.stages.iter())
                .map(|(stage, time)| (stage.name(), time.as_secs_f64()))
                .collect(),
            energy_joules: has_energy.then_some(used.energy.0),
            packets: known(used.packets()),
            bytes: known(used.exchanges.bytes),
            block_requests: known(used.exchanges.block_requests),
            exits: used.exchanges.exits,
            per_packet: cost(enough(used.packets())),
            per_exit: cost(used.exchanges.exits.and_then(enough)),
            per_gigabyte: cost(
                enough(used.exchanges.bytes / 1000).map(|_| used.exchanges.bytes as f64 / GIGABYTE),
            ),
        }
    }
}

/// A time in words, `1 h 2 min`.
pub fn length(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, 0) => format!("{minutes} min"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, 0, _) => format!("{hours} h"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// Processor time of one unit of work.
pub fn cpu_each(cost: Option<Cost>) -> String {
    let second = Unit::from_base(Base::Second);
    cost.map_or_else(|| "–".to_owned(), |cost| plain(cost.cpu_seconds, second))
}

/// A number of things.
pub fn count(number: u64, noun: &str) -> String {
    counted(usize::try_from(number).unwrap_or(usize::MAX), noun)
}

/// Sentences about the recording, for its head: length, method, meter, limits.
pub fn sentences(report: &Report<'_>) -> Vec<String> {
    let facts = report.facts;
    let mut lines = Vec::new();
    let modelled = match facts.method.as_str() {
        "traced" => "",
        _ => ", so that the times of guests are modelled",
    };
    lines.push(format!("Soft interrupts were {}{modelled}.", facts.method));
    let covers = facts.energy_covers.as_deref().unwrap_or("the host");
    lines.push(match (report.energy_source, &facts.energy_model) {
        (None, _) => "No meter: there is no energy.".to_owned(),
        (Some(source), Some(model)) => format!("Energy is {source} by {model} ({covers})."),
        (Some(source), None) => format!("Energy is {source} by {covers}."),
    });
    let each = report.bytes_per_guest_second;
    let each = each.map(|each| format!(", {each:.1} bytes for each guest and second"));
    lines.push(format!(
        "The recorder used {} of a processor and wrote {}{}.",
        percent(report.recorder_processors),
        plain(report.bytes as f64, Unit::from_base(Base::Byte)),
        each.unwrap_or_default()
    ));
    if report.sessions > 1 {
        let starts = counted(report.sessions, "start");
        lines.push(format!("It consists of {starts} of the recorder."));
    }
    let parts = [
        (report.missing_intervals, "interval", "are missing"),
        (
            report.damaged_bytes,
            "byte",
            "belong to no whole interval and are left out",
        ),
    ];
    for (number, noun, what) in parts.into_iter().filter(|(number, ..)| *number > 0) {
        lines.push(format!("{} {what}.", count(number, noun)));
    }
    if report.clock_steps > 0 {
        lines.push(format!(
            "The wall clock was set {}; lengths are by the monotonic clock.",
            count(report.clock_steps, "time")
        ));
    }
    let changes = report.changes.iter();
    lines.extend(changes.map(|change| format!("The method changed: {change}.")));
    lines
}

/// What no guest is charged for: the name of each part, its processor time and its energy.
pub fn others(of: &Report<'_>) -> Vec<(&'static str, Option<f64>, Option<f64>)> {
    let departed = Some(of.departed_cpu_seconds);
    let host = Some(of.host_cpu_seconds);
    let unattributed = Some(of.unattributed_cpu_seconds);
    let mut parts = vec![
        ("departed guests", departed, of.departed_energy_joules),
        ("the host itself", host, of.host_energy_joules),
        ("unattributed", unattributed, of.unattributed_energy_joules),
        ("idle: charged to nobody", None, of.idle_energy_joules),
    ];
    if of.idle_energy_joules.is_none_or(|joules| joules <= 0.0) {
        parts.pop();
    }
    if of.departed_cpu_seconds <= 0.0 {
        parts.remove(0);
    }
    parts
}

/// Renders the report as a table.
pub fn table(report: &Report<'_>, recording: &Recording, width: usize) -> String {
    let head = format!(
        "{}  {}  {}  {}",
        clean(&report.recording),
        vtax_results::numbers::when(&report.began),
        length(report.recorded_seconds),
        clean(&report.facts.note)
    );
    let mut lines = vec![head.trim_end().to_owned(), String::new()];
    let busy = report.busy_cpu_seconds.max(1e-9);
    let mut hidden = stages(&recording.guests);
    hidden.retain(|stage| *stage != Stage::Vcpu);
    let headings = ["guest", "CPU s", "%", "HID%"].into_iter();
    let headings = headings.chain(hidden.iter().map(|stage| stage.name()));
    let mut table = Table::new(headings.chain(["J", "packet", "exit", "GB"]), 1..usize::MAX);
    let first = |name: String, cpu: f64| {
        let share = 100.0 * cpu / busy;
        vec![name, format!("{cpu:.1}"), format!("{share:.1}")]
    };
    let dash = || "–".to_owned();
    for (guest, own) in (report.guests.iter().zip(&recording.guests)).take(SHOWN_GUESTS) {
        let times = match guest.instances {
            1 => String::new(),
            times => format!(" ×{times}"),
        };
        let name = format!("{}{times} ({})", guest.guest, guest.platform);
        let share = guest.hidden_share;
        // Nothing that was seen of a part that is not known is no zero.
        let seconds = |stage: &Stage| match own.total.stages.get(*stage) {
            Nanoseconds(0) if share.is_none() => dash(),
            time => format!("{:.1}", time.as_secs_f64()),
        };
        let joules = guest.energy_joules;
        let mut cells = first(name, guest.cpu_seconds);
        cells.push(share.map_or_else(dash, |share| format!("{:.1}", 100.0 * share)));
        cells.extend(hidden.iter().map(seconds));
        cells.push(joules.map_or_else(dash, |joules| format!("{joules:.0}")));
        cells.extend([guest.per_packet, guest.per_exit, guest.per_gigabyte].map(cpu_each));
        table.row(cells);
    }
    let mut row = |name: &str, cpu: f64, energy: Option<f64>| {
        let mut cells = first(name.to_owned(), cpu);
        cells.resize(4 + hidden.len(), String::new());
        cells.push(energy.map_or_else(String::new, |energy| format!("{energy:.0}")));
        table.row(cells);
    };
    let left = report.guests.get(SHOWN_GUESTS..).unwrap_or_default();
    if !left.is_empty() {
        let cpu = left.iter().map(|guest| guest.cpu_seconds).sum();
        let energy = left.iter().filter_map(|guest| guest.energy_joules).sum();
        let energy = report.energy_source.map(|_| energy);
        row(&counted(left.len(), "more guest"), cpu, energy);
    }
    for (name, cpu, energy) in others(report) {
        row(name, cpu.unwrap_or(0.0), energy);
    }
    row("all", report.busy_cpu_seconds, report.energy_joules);
    lines.extend(table.lines(width));
    lines.push(String::new());
    if !report.busiest_minutes.is_empty() {
        lines.push("  busiest minutes".to_owned());
    }
    let busiest = report.busiest_minutes.iter();
    for minute in busiest.filter_map(|at| report.minutes.get(*at)) {
        let guests = minute.guests.iter().take(NAMED_GUESTS);
        let guests = guests.map(|(name, processors)| format!("{} {processors:.2}", clean(name)));
        let clock = minute.began.get(11..16).unwrap_or(&minute.began);
        let line = format!(
            "  {clock}  {:.2} processors: host {:.2}, {}",
            minute.busy_processors,
            minute.host_processors,
            guests.collect::<Vec<_>>().join(", ")
        );
        lines.push(cut(&line, width));
    }
    lines.push(String::new());
    lines.push("  packet, exit, GB: processor time of each, all that the guest cost divided by their number".to_owned());
    let notes = sentences(report);
    lines.extend(notes.iter().map(|line| format!("  {}", clean(line))));
    lines.push(String::new());
    lines.join("\n")
}
