// SPDX-License-Identifier: Apache-2.0
//! `report.html` of a recording: guests by true cost, over time, the busiest minutes, and where the numbers come from.

use crate::report::{
    Cost, GuestReport, MinuteReport, Report, count, cpu_each, length, others, sentences, windows,
};
use crate::summary::{Recording, stages};
use maud::{Markup, html};
use serde_json::{Value, json};
use std::collections::HashMap;
use vtax_charge::Stage;
use vtax_core::{Base, Source, Unit, counted};
use vtax_files::{Dir, FileError};
use vtax_report::figures::Figure;
use vtax_report::html::frame::{
    DASH, FIGURES, PROVENANCE, Page, SUMMARY, TABLES, badge, banner, captioned, drawn, file, links,
    section,
};
use vtax_results::numbers::{percent, plain, when};
use vtax_results::stats::mean;

/// Guests with a colour of their own; the others are one.
const COLOURED_GUESTS: usize = 8;
/// Colours of guests, the host, unattributed time and the other guests.
const COLOURS: [&str; COLOURED_GUESTS] = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#8C564B",
];
const HOST: (&str, &str) = ("the host itself", "#BDBDBD");
const UNATTRIBUTED: (&str, &str) = ("unattributed", "#7F7F7F");
const OTHERS: (&str, &str) = ("other guests", "#F0E442");
/// Points of the figure over time; more minutes are drawn as means of neighbours.
const MOST_POINTS: usize = 240;
/// Guests of the figure by stage.
const FIGURE_GUESTS: usize = 15;
/// Guests in the table.
const TABLE_GUESTS: usize = 200;

/// Renders the page.
pub fn page(report: &Report<'_>, recording: &Recording) -> String {
    // A recording that cannot be read a second time has its figures by minutes.
    let fine = recording.in_seconds().ok().flatten();
    let series = Series::from_recording(fine.as_ref().unwrap_or(recording));
    let figures = figures(report, recording, &series);
    let name = recording.path.file_name().map_or_else(
        || report.recording.clone(),
        |name| name.to_string_lossy().into_owned(),
    );
    Page {
        kind: "vtax record",
        name: &name,
        lede: &report.facts.note,
        head: head(report),
        contents: links(&[SUMMARY, FIGURES, TABLES, PROVENANCE]),
        body: html! {
            (section(SUMMARY, &found(report)))
            (drawn(&figures))
            (section(TABLES, &html! { (guests(report)) (costs(report)) (busiest(report)) }))
            (section(PROVENANCE, &provenance(report)))
        },
        style: "",
        figures: Some(&figures),
    }
    .render()
}

fn head(report: &Report<'_>) -> Markup {
    html! {
        ul.facts {
            li { "from " b { (when(&report.began)) } }
            li { "recorded " b { (length(report.recorded_seconds)) } }
            li { b { (counted(report.guests.len(), "guest")) } }
            li { "soft interrupts " b { (report.facts.method) } }
            @if let Some(source) = report.energy_source { li { "energy " b { (source.to_string()) } } }
        }
        @if report.damaged_bytes > 0 || report.missing_intervals > 0 {
            (banner("Incomplete.", format!("{} missing, {} damaged.", count(report.missing_intervals, "interval"), count(report.damaged_bytes, "byte"))))
        }
    }
}

/// The flag of modelled numbers.
fn flag(source: Option<Source>) -> Markup {
    html! { @if source == Some(Source::Modelled) { " " (badge("modelled")) } }
}

fn found(report: &Report<'_>) -> Markup {
    let busy = report.busy_cpu_seconds.max(1e-9);
    let guests: f64 = report.guests.iter().map(|guest| guest.cpu_seconds).sum();
    let guests = guests + report.departed_cpu_seconds;
    let known = || {
        let guests = report.guests.iter();
        guests.filter(|guest| guest.hidden_share.is_some())
    };
    let of_known: f64 = known().map(|guest| guest.cpu_seconds).sum();
    let hidden: f64 = known().filter_map(|guest| guest.hidden_cpu_seconds).sum();
    html! {
        ul.findings {
            li {
                "Guests caused " b { (percent(guests / busy)) } " of the processor time that was used; the host's own work was "
                (percent(report.host_cpu_seconds / busy)) ", and " (percent(report.unattributed_cpu_seconds / busy)) " has no owner."
            }
            @if of_known > 0.0 {
                li {
                    b { (percent(hidden / of_known)) } " of what " (of_guests(known().count(), report.guests.len()))
                    " cost is hidden from them: the host spends it for them."
                }
            }
            @for (place, guest) in report.guests.iter().take(3).enumerate() {
                li {
                    b { (guest.guest) } (if place == 0 { " cost most: " } else { " follows: " }) (share(guest.cpu_seconds, report.recorded_seconds))
                    @if let Some(hidden) = guest.hidden_share { ", " (percent(hidden)) " of it hidden" }
                    "."
                }
            }
        }
    }
}

/// The guests of a share, where it is not known of all.
fn of_guests(known: usize, all: usize) -> String {
    if known == all {
        "guests".to_owned()
    } else {
        format!("{known} of {all} guests, for which it is known,")
    }
}

/// Mean processors.
fn share(seconds: f64, of: f64) -> String {
    format!("{:.3} processors", seconds / of.max(1e-9))
}

fn guests(report: &Report<'_>) -> Markup {
    let busy = report.busy_cpu_seconds.max(1e-9);
    let rest = report.guests.len().saturating_sub(TABLE_GUESTS);
    let columns = "guest,platform,present,CPU,of all,own,hidden,hidden share,energy";
    let energy = |part: Option<f64>| html! { (joules(part)) @if part.is_some() { (flag(report.energy_source)) } };
    let rows = html! {
        @for guest in report.guests.iter().take(TABLE_GUESTS) {
            tr {
                td { (guest.guest) @if guest.instances > 1 { " ×" (guest.instances) } }
                td { (guest.platform) }
                td { (length(guest.present_seconds)) }
                td { (format!("{:.1} s", guest.cpu_seconds)) @if let Some(error) = guest.cpu_error_seconds { " ± " (format!("{error:.1} s")) (flag(Some(Source::Modelled))) } }
                td { (percent(guest.cpu_seconds / busy)) }
                td { (format!("{:.1} s", guest.own_cpu_seconds)) }
                td { (hidden_time(guest)) }
                td { (guest.hidden_share.map_or_else(|| DASH.to_owned(), percent)) }
                td { (energy(guest.energy_joules)) }
            }
        }
        @if rest > 0 { tr { td { (counted(rest, "more guest")) ", in the JSON" } } }
        @for (name, cpu, part) in others(report) {
            tr {
                td { (name) } td {} td {}
                @if let Some(cpu) = cpu { td { (format!("{cpu:.1} s")) } td { (percent(cpu / busy)) } } @else { td {} td {} }
                td {} td {} td {}
                td { (energy(part)) }
            }
        }
        tr { td { b { "all" } } td {} td { (length(report.recorded_seconds)) } td { (format!("{:.1} s", report.busy_cpu_seconds)) } td { "100 %" } td {} td {} td {} td { (energy(report.energy_joules)) } }
    };
    captioned(
        "Guests by true cost: their own time and the host's for them",
        columns.split(','),
        &rows,
    )
}

fn joules(energy: Option<f64>) -> String {
    energy.map_or_else(
        || DASH.to_owned(),
        |energy| plain(energy, Unit::from_base(Base::Joule)),
    )
}

/// The hidden time of a guest; nothing that was seen of a part that is not known is no zero.
fn hidden_time(guest: &GuestReport<'_>) -> String {
    let hidden = guest.hidden_cpu_seconds.unwrap_or_default();
    if guest.hidden_share.is_none() && hidden == 0.0 {
        return DASH.to_owned();
    }
    format!("{hidden:.1} s")
}

fn costs(report: &Report<'_>) -> Markup {
    let cell = |cost: Option<Cost>| {
        html! {
            (cpu_each(cost))
            @if let Some(cost) = cost {
                @if cost.hidden_cpu_seconds > 0.0 { br; small { (plain(cost.hidden_cpu_seconds, Unit::from_base(Base::Second))) " hidden" } }
                @if let Some(energy) = cost.energy_joules { br; small { (plain(energy, Unit::from_base(Base::Joule))) (flag(report.energy_source)) } }
            }
        }
    };
    let number = |count: Option<u64>, base: Base| {
        count.map_or_else(
            || DASH.to_owned(),
            |count| plain(count as f64, Unit::from_base(base)),
        )
    };
    let does = |guest: &&GuestReport<'_>| {
        guest.per_packet.is_some() || guest.per_exit.is_some() || guest.per_gigabyte.is_some()
    };
    if !report.guests.iter().any(|guest| does(&guest)) {
        return Markup::default();
    }
    let rows = html! {
        @for guest in report.guests.iter().filter(does).take(TABLE_GUESTS) {
            tr {
                td { (guest.guest) }
                td { (number(guest.packets, Base::Packet)) }
                td { (cell(guest.per_packet)) }
                td { (number(guest.bytes, Base::Byte)) }
                td { (cell(guest.per_gigabyte)) }
                td { (number(guest.exits, Base::Exit)) }
                td { (cell(guest.per_exit)) }
            }
        }
    };
    let columns = "guest,packets,each packet,bytes,each GB,VM exits,each exit";
    captioned(
        "The cost of a unit of work: all that the guest cost, divided by the number of units",
        columns.split(','),
        &rows,
    )
}

fn busiest(report: &Report<'_>) -> Markup {
    if report.busiest_minutes.is_empty() {
        return Markup::default();
    }
    let rows = html! {
        @for minute in report.busiest_minutes.iter().filter_map(|at| report.minutes.get(*at)) {
            tr {
                td { (when(&minute.began)) }
                td { (format!("{:.2}", minute.busy_processors)) }
                td { (format!("{:.2}", minute.host_processors)) }
                td { (minute.watts.map_or_else(|| DASH.to_owned(), |watts| plain(watts, Unit::from_base(Base::Watt)))) @if minute.watts.is_some() { (flag(report.energy_source)) } }
                td { @for (place, (name, processors)) in minute.guests.iter().take(4).enumerate() { @if place > 0 { ", " } (name) " " (format!("{processors:.2}")) } }
            }
        }
    };
    captioned(
        "The busiest minutes",
        ["minute", "processors", "the host itself", "power", "guests"],
        &rows,
    )
}

fn provenance(report: &Report<'_>) -> Markup {
    let facts = serde_json::to_string_pretty(report.facts).unwrap_or_default();
    html! {
        ul.findings {
            @for line in sentences(report) { li { (line) } }
            @for line in &report.facts.limitations { li { (line) } }
        }
        (file("The facts that the recorder wrote", &facts))
    }
}

fn figures(report: &Report<'_>, recording: &Recording, series: &Series) -> Vec<Figure> {
    let all = [
        over_time(report, series),
        power(report, series),
        by_stage(report, recording),
    ];
    all.into_iter().flatten().collect()
}

/// The points of the figures over time.
struct Series {
    windows: Vec<(usize, MinuteReport)>,
    /// What a window is, in words.
    unit: &'static str,
}

impl Series {
    fn from_recording(recording: &Recording) -> Self {
        Self {
            windows: windows(recording),
            unit: match recording.window {
                1_000_000_000 => "second",
                60_000_000_000 => "minute",
                _ => "window",
            },
        }
    }

    /// Windows that are drawn as one point each.
    fn thinned(&self) -> impl Iterator<Item = (usize, &[(usize, MinuteReport)])> {
        let every = self.windows.len().div_ceil(MOST_POINTS).max(1);
        let parts = self.windows.chunks(every);
        parts.filter_map(|part| Some((part.first()?.0, part)))
    }

    /// The time of day of a window, `07:05`, with its second where that tells it from others.
    fn clock<'a>(&self, window: &'a MinuteReport) -> &'a str {
        let end = if self.unit == "second" { 19 } else { 16 };
        window.began.get(11..end).unwrap_or(&window.began)
    }

    fn axis(&self) -> Value {
        let title = format!("{}s into the recording", self.unit);
        json!({"field": "minute", "type": "quantitative", "title": title, "scale": {"nice": false}, "axis": {"grid": false}})
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn over_time(report: &Report<'_>, series: &Series) -> Option<Figure> {
    let named = report.guests.iter().take(COLOURED_GUESTS);
    let named: Vec<String> = named
        .map(|guest| format!("{} ({})", guest.guest, guest.platform))
        .collect();
    let mut areas: Vec<(&str, &str)> = named.iter().map(String::as_str).zip(COLOURS).collect();
    if report.guests.len() > named.len() || report.departed_cpu_seconds > 0.0 {
        areas.push(OTHERS);
    }
    areas.extend([UNATTRIBUTED, HOST]);
    let (names, colours): (Vec<&str>, Vec<&str>) = areas.into_iter().unzip();
    let place: HashMap<&str, usize> = names.iter().copied().zip(0..).collect();
    let mut rows = Vec::new();
    for (at, part) in series.thinned() {
        let mut sums = vec![0.0; names.len()];
        let mut add = |name: &str, value: f64| {
            let place = place.get(name).or_else(|| place.get(OTHERS.0));
            if let Some(sum) = place.and_then(|place| sums.get_mut(*place)) {
                *sum += value / part.len() as f64;
            }
        };
        for (_, minute) in part {
            for (name, processors) in &minute.guests {
                add(name, *processors);
            }
            add(OTHERS.0, minute.departed_processors);
            add(UNATTRIBUTED.0, minute.unattributed_processors);
            add(HOST.0, minute.host_processors);
        }
        let clock = part.first().map_or("", |(_, first)| series.clock(first));
        for (place, (name, sum)) in names.iter().zip(sums).enumerate() {
            rows.push(json!({"minute": at, "clock": clock, "processors": rounded(sum), "who": name, "place": place}));
        }
    }
    if rows.is_empty() {
        return None;
    }
    Some(Figure::new(
        "01-processors",
        "Processors over time, by who caused the work",
        "Stacked; each guest's area is its own time and the host's for it. A point is a UNIT, or the mean of neighbouring ones.".replace("UNIT", series.unit),
        json!(240),
        json!({
            "data": {"values": rows},
            "mark": {"type": "area", "opacity": 0.9, "interpolate": "step-after", "clip": true},
            "encoding": {
                "x": series.axis(),
                "y": {"field": "processors", "type": "quantitative", "stack": "zero", "title": "processors busy", "axis": {"tickCount": 4}},
                "color": {"field": "who", "type": "nominal", "scale": {"domain": names, "range": colours}, "sort": names,
                          "legend": {"columns": {"expr": "max(1, floor(width / 170))"}, "labelLimit": 150}},
                "order": {"field": "place", "type": "quantitative"},
                "tooltip": [{"field": "who"}, {"field": "clock"}, {"field": "processors", "title": "processors busy"}]
            }
        }),
    ))
}

fn power(report: &Report<'_>, series: &Series) -> Option<Figure> {
    let source = report.energy_source?;
    let rows: Vec<Value> = series
        .thinned()
        .filter_map(|(at, part)| {
            let watts: Vec<f64> = part.iter().filter_map(|(_, window)| window.watts).collect();
            let clock = part.first().map_or("", |(_, first)| series.clock(first));
            Some(json!({"minute": at, "clock": clock, "watts": rounded(mean(&watts)?)}))
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    Some(Figure::new(
        "02-power",
        "Power of the host over time",
        format!("Mean of each {}, {source}.", series.unit),
        json!(130),
        json!({
            "data": {"values": rows},
            "mark": {"type": "line", "strokeWidth": 1.5, "interpolate": "step-after", "color": "#0072B2"},
            "encoding": {
                "x": series.axis(),
                "y": {"field": "watts", "type": "quantitative", "title": "W", "scale": {"zero": true}, "axis": {"tickCount": 4}},
                "tooltip": [{"field": "clock"}, {"field": "watts", "title": "W"}]
            }
        }),
    ))
}

fn by_stage(report: &Report<'_>, recording: &Recording) -> Option<Figure> {
    let shown = stages(&recording.guests);
    let words = |stage: Stage| match stage {
        Stage::Softirq => "soft interrupts for it",
        Stage::Vcpu => "its own code",
        other => other.words(),
    };
    let mut rows = Vec::new();
    for guest in report.guests.iter().take(FIGURE_GUESTS) {
        for (place, stage) in shown.iter().enumerate() {
            let seconds = guest.stages.get(stage.name()).copied().unwrap_or(0.0);
            if seconds > 0.0 {
                let name = format!("{} ({})", guest.guest, guest.platform);
                rows.push(json!({"guest": name, "stage": words(*stage), "seconds": rounded(seconds), "place": place}));
            }
        }
    }
    if rows.is_empty() {
        return None;
    }
    let names: Vec<&str> = shown.iter().map(|stage| words(*stage)).collect();
    let colours: Vec<&str> = shown.iter().map(|stage| stage.color()).collect();
    Some(Figure::new(
        "03-stages",
        "What guests cost, by stage",
        "All but its own code is hidden from a guest. The guests that cost most.",
        json!({"step": 26}),
        json!({
            "data": {"values": rows},
            "mark": {"type": "bar", "size": 16},
            "encoding": {
                "y": {"field": "guest", "type": "nominal", "sort": null, "title": null},
                "x": {"field": "seconds", "type": "quantitative", "stack": "zero", "title": "seconds of processor time", "axis": {"tickCount": 5}},
                "color": {"field": "stage", "type": "nominal", "scale": {"domain": names, "range": colours}, "sort": names,
                          "legend": {"columns": {"expr": "max(1, floor(width / 190))"}, "labelLimit": 180}},
                "order": {"field": "place", "type": "quantitative"},
                "tooltip": [{"field": "guest"}, {"field": "stage"}, {"field": "seconds"}]
            }
        }),
    ))
}

/// Writes the page as `report.html` into the directory of the recording.
///
/// # Errors
/// When the file cannot be written.
pub fn write(report: &Report<'_>, recording: &Recording) -> Result<(), FileError> {
    Dir::open(&recording.path)?.write("report.html", page(report, recording).as_bytes())
}
