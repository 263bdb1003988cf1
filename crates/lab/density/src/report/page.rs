// SPDX-License-Identifier: Apache-2.0
//! The page: findings, figures, tables beside those of the paper, and provenance.

use super::published::{MEMORY, PROCESSORS, Published, Row};
use super::summary::{Bound, Each, Summary, TreatmentClimbs};
use super::{about, bytes, count, time};
use crate::fit::Line;
use crate::limits::Binding;
use crate::record::{Climb, Cloud, Latency};
use crate::resources::{Memory, Resource};
use maud::{Markup, html};
use vtax_core::{counted, noun};
use vtax_report::figures::Figure;
use vtax_report::html::frame::{
    DASH, PROVENANCE, Page, SUMMARY, TABLES, badge, banner, captioned, contents, drawn, file,
    run_facts, section, table,
};
use vtax_results::{ResultsDir, Trial};

pub(super) fn page(results: &ResultsDir, summary: &Summary, figures: &[Figure]) -> String {
    let run = results.run();
    Page {
        kind: "vtax density report",
        name: &run.name,
        lede: &run.description,
        head: head(results, summary),
        contents: contents(),
        body: html! {
            (found(summary))
            (drawn(figures))
            (section(TABLES, &html! {
                (costs(summary))
                (churn(summary))
                (lines(summary))
                (published_tables(results, summary))
                (trials(summary))
            }))
            (provenance(results, summary))
        },
        style: "",
        figures: Some(figures),
    }
    .render()
}

fn modelled() -> Markup {
    badge("modelled")
}

fn head(results: &ResultsDir, summary: &Summary) -> Markup {
    let run = results.run();
    let climbs: Vec<&Trial> = (summary.seen.iter().flat_map(|seen| &seen.climbs))
        .map(|(trial, _)| trial)
        .collect();
    let planned = run.schedule.len();
    let counted_climbs =
        html! { b { (climbs.len()) " of " (planned) } " " (noun(planned, "climb")) };
    let suspect = climbs
        .iter()
        .filter(|trial| !trial.suspect.is_empty())
        .count();
    html! {
        (run_facts(&run.place, &run.started, &run.profile, run.seed, &counted_climbs))
        @if run.profile == "quick" {
            (banner(
                "Quick profile.",
                "Fewer guests and climbs, for a first look. Where nothing ended a climb, straight lines say what would, and say that they are modelled.",
            ))
        }
        @if suspect > 0 {
            (banner("Suspect.", format!(
                "There are reasons not to trust {suspect} of {}: the table of climbs names them. What is suspect is shown all the same.",
                counted(climbs.len(), "climb")
            )))
        }
        @if summary.pending > 0 {
            (banner("Unfinished.", format!("{} not run yet.", counted(summary.pending, "climb"))))
        }
    }
}

fn found(summary: &Summary) -> Markup {
    section(
        SUMMARY,
        &html! {
            ul.findings {
                @for seen in &summary.seen {
                    @if let Some(guests) = seen.guests() {
                        li.different { (sentence(seen, guests)) }
                    } @else {
                        li { (seen.treatment.label) ": " (seen.failures.first().map_or("not run yet", String::as_str)) }
                    }
                }
            }
            p.key {
                "Memory is the decrease of the host’s available memory from before the first guest to the top, divided by the guests, kernel included. \
                 Shared pages count once, so it is not the size that tools print for a process. Where other programs change the host’s memory so much that it does not follow the population, \
                 it is the charge of the guests’ control group: a little less than all."
            }
        },
    )
}

fn sentence(seen: &TreatmentClimbs, guests: f64) -> Markup {
    html! {
        b { (seen.treatment.label) } ": " (count(guests)) " "
        @if guests == 1.0 { "guest was" } @else { "guests were" } " held at once"
        @match seen.memory_each() {
            Some(Each::ByHost(each)) => { ", " (bytes(each)) " of memory each, all in" }
            Some(Each::Charged(each)) => { ", " (bytes(each)) " of memory each charged to their control group" }
            None => {}
        }
        @if let Some(answer) = seen.at_top(|_, top| Some(top.probe?.p50_us)) {
            "; one answers in " (time(answer)) " (median)"
        }
        @if let Some(idle) = seen.at_top(|climb, _| Some(climb.idle?.core_percent)) {
            (format!("; all of them idle use {idle:.2} % of one processor"))
        }
        @match seen.bound() {
            Some(Bound { modelled: true, words, guests, .. }) => {
                ". The expected maximum ended the climb; in a straight line, " (words) " would at about " (about(guests)) " guests " (modelled())
            }
            Some(Bound { words, .. }) if words == "nothing yet" => {
                ". The expected maximum ended the climb, and no resource had risen enough to say what would bind"
            }
            Some(Bound { words, .. }) => { ". Bound by " b { (words) } }
            None => {}
        }
        "."
    }
}

/// A value as formatted by `shown`; a dash without a value.
fn or_dash<T>(value: Option<T>, shown: impl FnOnce(T) -> String) -> String {
    value.map_or(DASH.to_owned(), shown)
}

fn costs(summary: &Summary) -> Markup {
    let climbed = summary.seen.iter().filter(|seen| !seen.climbs.is_empty());
    let rows = html! { @for seen in climbed { tr { th scope="row" { (seen.treatment.label) } (cost(seen)) } } };
    html! {
        h3 { "What a guest costs" }
        (table(["platform", "guests", "memory each", "user", "kernel", "charged", "made", "booted in", "answers in", "idle CPU", "J per hour", "came back"], &rows))
        p.key {
            "Medians, from the first to the last interval of a climb. Charged: to the guests’ control group. J per hour: the host’s energy while the population is idle, divided by the guests. Idle CPU is that of the whole population, in percent of one \
             processor, over a time in which nobody asks. “User” are anonymous and shared pages of processes, “kernel” slab, page tables, per-CPU and vmalloc areas (stacks are in those); \
             what is in no account, such as KVM’s own pages, is in the whole alone. “Hidden”: other programs came and went so much that the host’s memory does not follow the population; the charged column is free of them."
        }
    }
}

fn cost(seen: &TreatmentClimbs) -> Markup {
    let calm = seen.host_is_calm();
    let if_calm = |of: &dyn Fn(&Climb) -> Option<f64>| {
        if calm {
            seen.at_top(|climb, _| of(climb))
        } else {
            None
        }
    };
    let each = |of: fn(&Memory) -> f64| or_dash(if_calm(&|climb| climb.part_each(of)), bytes);
    let from_to = |pair: Option<(Latency, Latency)>| {
        or_dash(pair, |(first, last)| {
            format!("{} → {}", time(first.p50_us), time(last.p50_us))
        })
    };
    let made = seen.first_and_last(|interval| interval.births?.rate());
    let joules = seen.at_top(|climb, top| {
        let idle = climb.idle?;
        Some(idle.joules? / idle.seconds / f64::from(top.population.max(1)) * 3600.0)
    });
    html! {
        td.number { (count(seen.guests().unwrap_or(0.0))) }
        td.number { @if let Some(each) = if_calm(&Climb::bytes_each) { (bytes(each)) } @else { "hidden" } }
        td.number { (each(|memory| memory.user + memory.swap)) }
        td.number { (each(|memory| memory.kernel())) }
        td.number { (or_dash(seen.at_top(|climb, _| climb.charged_each()), bytes)) }
        td.number { (or_dash(made, |(first, last)| format!("{} → {} /s", digits(first), digits(last)))) }
        td.number { (from_to(seen.first_and_last(|interval| interval.births?.boot))) }
        td.number { (from_to(seen.first_and_last(|interval| interval.probe))) }
        td.number { (or_dash(seen.at_top(|climb, _| Some(climb.idle?.core_percent)), |cpu| format!("{cpu:.2} %"))) }
        td.number { @if let Some(joules) = joules { (format!("{joules:.1}")) } @else { "no meter" } }
        td.number { (or_dash(seen.at_top(|climb, _| climb.returned_percent()), |share| format!("{share:.0} %"))) }
    }
}

/// The table of churn.
fn churn(summary: &Summary) -> Markup {
    let all = summary.seen.iter();
    let all: Vec<(&TreatmentClimbs, &Cloud)> = all
        .filter_map(|seen| Some((seen, seen.records().find_map(|climb| climb.cloud.as_ref())?)))
        .collect();
    let rows = html! {
        @for (seen, _) in &all {
            tr { th scope="row" { (seen.treatment.label) } (churned(seen)) }
            @if let Some(why) = seen.records().find_map(|climb| climb.cloud.as_ref()?.refused.as_deref()) {
                tr { td colspan="10" { "ended early: " (why) } }
            }
        }
    };
    html! {
        @if !all.is_empty() {
            h3 { "Guests that come and go" }
            (table(["platform", "places", "there, mean", "came", "turned away", "went", "booted in, p50, p99", "answer in, p50, p99", "late, at most", "CPU"], &rows))
            p.key {
                "At the top of a climb guests arrive as a Poisson process and live for times drawn from an exponential distribution, in as many places as the climb had guests. \
                 Late: how long after its time a guest came or went, because making and ending others took longer. CPU: of the population, in percent of one processor."
            }
        }
    }
}

fn churned(seen: &TreatmentClimbs) -> Markup {
    let of = |of: fn(&Cloud) -> f64| seen.at_top(|climb, _| Some(of(climb.cloud.as_ref()?)));
    let pair = |of: fn(&Cloud) -> Option<Latency>| {
        let at = |which: fn(Latency) -> f64| {
            seen.at_top(|climb, _| of(climb.cloud.as_ref()?).map(which))
        };
        let times = at(|times| times.p50_us).zip(at(|times| times.p99_us));
        or_dash(times, |(p50, p99)| format!("{}, {}", time(p50), time(p99)))
    };
    html! {
        td.number { (or_dash(of(|cloud| f64::from(cloud.places)), count)) }
        td.number { (or_dash(of(|cloud| cloud.mean_population), digits)) }
        td.number { (or_dash(of(|cloud| f64::from(cloud.arrivals)), count)) }
        td.number { (or_dash(of(|cloud| f64::from(cloud.turned_away)), count)) }
        td.number { (or_dash(of(|cloud| f64::from(cloud.departures)), count)) }
        td.number { (pair(|cloud| cloud.boot)) }
        td.number { (pair(|cloud| Some(cloud.probe))) }
        td.number { (or_dash(of(|cloud| cloud.late * 1e6), time)) }
        td.number { (or_dash(of(|cloud| cloud.core_percent), |cpu| format!("{cpu:.1} %"))) }
    }
}

fn digits(value: f64) -> String {
    if value >= 100.0 {
        count(value)
    } else {
        format!("{value:.1}")
    }
}

fn lines(summary: &Summary) -> Markup {
    let slope = |line: Option<Line>| {
        or_dash(line, |line| {
            let error = line.slope_error.map(|error| format!(" ± {}", bytes(error)));
            format!("{}{}", bytes(line.slope), error.unwrap_or_default())
        })
    };
    let rows = html! {
        @for seen in summary.seen.iter().filter(|seen| !seen.climbs.is_empty()) {
            @let memory = seen.memory_line();
            @let processors = seen.climbs.first().map_or(1.0, |(_, climb)| f64::from(climb.processors));
            tr {
                th scope="row" { (seen.treatment.label) }
                td.number { (slope(memory)) }
                td.number { (or_dash(memory, |line| format!("{:.3}", line.r_squared))) }
                td.number { (or_dash(memory, |line| bytes(line.worst_residual))) }
                td.number { (slope(seen.charged_line())) }
                td.number {
                    (or_dash(seen.line(Resource::Cpu), |line| {
                        format!("{:.3} cores", (line.slope * 1e4 / 100.0 * processors).max(0.0))
                    }))
                }
                td.number {
                    @match seen.bound() {
                        Some(Bound { modelled: true, guests, words, .. }) => { (about(guests)) " (" (words) ")" (modelled()) }
                        Some(Bound { guests, words, .. }) if words == "nothing yet" => { "≥ " (count(guests)) }
                        Some(Bound { guests, words, .. }) => { (count(guests)) " (" (words) ")" }
                        None => { (DASH) }
                    }
                }
                td.number {
                    @if let Some((guests, by)) = seen.on_host(PROCESSORS, MEMORY) {
                        (about(guests)) " (" (by) ")" (modelled())
                    } @else {
                        (DASH)
                    }
                }
            }
        }
    };
    html! {
        h3 { "Straight lines through the climbs, and their extrapolation" }
        (table(["platform", "memory", "R²", "residual", "charged", "CPU of 10,000", "this host holds", "the paper’s host"], &rows))
        p.key {
            "Least squares over the intervals of all climbs: the cost of one more guest, with its standard error, and the worst residual. The paper’s host had 48 processors and 128 GB; its swap, whose size is \
             not printed, is left out, as are limits on processes and descriptors, which can be raised. A processor counts as one of this host’s. \
             Where the host’s memory follows no line (R² below 0.9, or a suspect climb), the line of the group’s charge is extrapolated in its place."
        }
    }
}

/// A treatment as a row of the paper's tables, and the sign before its number of guests.
fn as_row(seen: &TreatmentClimbs) -> Option<(&'static str, Row)> {
    let factor = |key: &str| seen.treatment.factors.get(key).map(String::as_str);
    let platform = seen.treatment.platform.as_str();
    let works = factor("work").is_some_and(|work| work != "none");
    if !["qemu", "mvm-live", "mvm-parked"].contains(&platform) || works {
        return None;
    }
    let (_, climb) = seen.climbs.first()?;
    let is_of_32_bits = factor("binary").is_some_and(|binary| binary.ends_with("i386"));
    let births = climb.climb.iter().filter_map(|interval| interval.births);
    let (made, seconds) = births.fold((0.0, 0.0), |(n, s), births| {
        (n + f64::from(births.count), s + births.seconds)
    });
    let row = Row {
        sleep: (!matches!(factor("image"), Some("idle-pit" | "spin"))).into(),
        kvm: (platform != "qemu" || factor("accel") == Some("kvm")).into(),
        bits: if is_of_32_bits { 32.0 } else { 64.0 },
        guests: seen.guests()?,
        cpu_percent: seen.share_at_top(Resource::Cpu)?,
        ram_percent: seen.share_at_top(Resource::Memory)?,
        swap_percent: seen.share_at_top(Resource::Swap).unwrap_or(0.0),
        size_kb: seen.at_top(|climb, _| climb.bytes_each())? / 1024.0,
        minutes: climb.seconds / 60.0,
        boot_seconds: if made > 0.0 { seconds / made } else { 0.0 },
    };
    let is_open = climb.binding == Binding::Maximum;
    Some((if is_open { "≥ " } else { "" }, row))
}

/// Whether the processor's power saving was on (table II) or off (table I); `None` where that is unknown.
fn power_saving(results: &ResultsDir, seen: &TreatmentClimbs) -> Option<bool> {
    let factor = seen.treatment.factors.get("host.governor").cloned();
    let governor = factor.or_else(|| {
        let host = results.host().ok()?;
        match host.get("governors")?.as_array()?.as_slice() {
            [one] => one.as_str().map(str::to_owned),
            _ => None,
        }
    })?;
    Some(governor != "performance")
}

fn published_tables(results: &ResultsDir, summary: &Summary) -> Markup {
    let rows = summary.seen.iter().filter_map(|seen| {
        let (more, row) = as_row(seen)?;
        let label = html! { b { "measured" } ": " (seen.treatment.label) };
        Some((power_saving(results, seen), paper_row(&label, more, &row)))
    });
    let measured: Vec<(Option<bool>, Markup)> = rows.collect();
    let published = if measured.is_empty() {
        None
    } else {
        Published::read()
    };
    let Some(published) = published else {
        return html! {};
    };
    // A table in the form of the paper: the published rows, then the measured ones.
    let paper_table = |title, published: &[Row], saving| {
        let columns = "|sleep|KVM|bits|MVMs|CPU %|RAM %|swap %|size/kB|minutes|boot/s";
        let rows = html! {
            @for row in published { (paper_row(&html! { "published" }, "", row)) }
            @for (_, row) in measured.iter().filter(|(of, _)| *of == saving) { (row) }
        };
        captioned(title, columns.split('|'), &rows)
    };
    let is_unknown = measured.iter().any(|(saving, _)| saving.is_none());
    let test = &published.test;
    html! {
        h3 { "The paper’s tables I and II, with this host’s rows in their form" }
        (paper_table("Table I: fixed highest frequency", &published.table_1, Some(false)))
        (paper_table("Table II: default power saving", &published.table_2, Some(true)))
        @if is_unknown {
            (paper_table("This host, which does not report its frequency governor, so that its rows belong to neither table", &[], None))
        }
        p.key {
            "Published: Bratterud and Haugerud (CloudCom 2013), QEMU on 48 processors with 128 GB and swap; their size/kB counts shared pages for every VM, ours is the host’s difference divided by the guests. \
             “≥”: the expected maximum ended the climb. Boot is wall time per guest while the population grows. Their figures 2 to 4 ran to "
            (count(test.vms_at_stop)) " VMs, where the processors stood at " (test.max_cpu_percent.power_saving_on)
            " % with power saving on and at " (test.max_cpu_percent.pit_on) " % with it off; with the timer of every guest on they stood at "
            (test.max_cpu_percent.pit_on) " %, with true sleep at " (test.max_cpu_percent.pit_off) " %."
        }
    }
}

fn paper_row(label: &Markup, more: &str, row: &Row) -> Markup {
    let numbers = [
        format!("{:.0}", row.bits),
        format!("{more}{}", count(row.guests)),
        format!("{:.1}", row.cpu_percent),
        format!("{:.1}", row.ram_percent),
        format!("{:.1}", row.swap_percent),
        match row.size_kb {
            size if size < 10.0 => format!("{size:.2}"),
            size => count(size),
        },
        format!("{:.1}", row.minutes),
        match row.boot_seconds {
            boot if boot < 0.01 => format!("{boot:.5}"),
            boot => format!("{boot:.2}"),
        },
    ];
    html! {
        tr {
            th scope="row" { (label) }
            @for is_on in [row.sleep, row.kvm] { td { @if is_on > 0 { "on" } @else { "off" } } }
            @for number in numbers { td.number { (number) } }
        }
    }
}

fn trials(summary: &Summary) -> Markup {
    let mut climbs: Vec<&(Trial, Climb)> = (summary.seen.iter())
        .flat_map(|seen| &seen.climbs)
        .collect();
    climbs.sort_by_key(|(trial, _)| trial.index);
    let rows = html! {
        @for (trial, climb) in climbs {
            tr {
                td { (format!("{:04}", trial.index)) }
                th scope="row" { (trial.treatment.label) }
                td.number { (count(f64::from(climb.guests()))) }
                td.reason { (climb.binding.to_string()) }
                td.number { (format!("{:.1} s", climb.seconds)) }
                td.number { (format!("{:.2} %", climb.overhead_percent())) }
                td.number { (format!("{:.1} s", climb.returned_after)) }
                td.reason { @if trial.suspect.is_empty() { "none" } @else { (trial.suspect.join("; ")) } }
            }
        }
        @for seen in &summary.seen {
            @for why in &seen.failures {
                tr {
                    td { (DASH) }
                    th scope="row" { (seen.treatment.label) }
                    td { (DASH) }
                    td.reason { "failed: " (why) }
                    @for _ in 0..4 { td { (DASH) } }
                }
            }
        }
    };
    html! {
        h3 { "Every climb" }
        (table(["trial", "platform", "guests", "ended by", "took", "own cost", "memory back after", "doubts"], &rows))
        p.key { "Own cost: processor time of the climb itself, guarding in the supervisor included, in percent of one processor." }
    }
}

fn provenance(results: &ResultsDir, summary: &Summary) -> Markup {
    let facts = summary.seen.iter().filter_map(|seen| {
        let (trial, _) = seen.climbs.first()?;
        let facts = trial.environment.iter();
        let facts: Vec<String> = facts
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        Some((&seen.treatment.label, facts.join("; ")))
    });
    let plan = results
        .plan_text()
        .unwrap_or_else(|cause| cause.to_string());
    let host = results
        .host()
        .map_or_else(|cause| cause.to_string(), |host| format!("{host:#}"));
    section(
        PROVENANCE,
        &html! {
            dl { @for (label, facts) in facts { dt { (label) } dd { (facts) } } }
            h3 { "How each number is made" }
            ol.methods {
                li {
                    b { "The test." } " The standardized scalability test of Bratterud and Haugerud (2013): guests in equal steps to an expected maximum, every resource as 0 to 100 %, \
                     until the first reaches its limit or the probe answers too slowly."
                }
                li { b { "Samples" } " are taken while guests sleep; what booting used is not in them. Error bars are one standard deviation over samples and climbs." }
                li { b { "CPU" } " in a platform’s own figure is the host’s; what ends a climb is the population’s own, by its control group’s account." }
                li { b { "Memory" } " is what less the host has available, shared pages once, kernel included; never a sum of process sizes." }
                li { b { "Flags." } " " (modelled()) " numbers are straight lines led on beyond what was seen. All others were measured." }
            }
            (file("The plan", &plan))
            (file("The host", &host))
        },
    )
}
