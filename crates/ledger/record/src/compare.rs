// SPDX-License-Identifier: Apache-2.0
//! `vtax compare` of two recordings: ratios for each guest that both have, by unit of work, with intervals over minutes.

use crate::report::GIGABYTE;
use crate::store::Facts;
use crate::summary::{Guest, Recording, Use};
use std::collections::BTreeMap;
use vtax_core::metric::{self, Metric};
use vtax_core::{Source, counted};
use vtax_report::analysis::judge;
use vtax_report::compare::{ComparedRun, RunComparison};
use vtax_report::over_time::comparison;
use vtax_results::host_differences;
use vtax_results::numbers::when;
use vtax_results::text::cut;

/// Smallest relative difference that counts as a difference.
const MINIMUM_EFFECT: f64 = 0.02;
/// Fewest packets or exits, and fewest gigabytes, of a recording that a cost for each is compared for.
const FEWEST: f64 = 1000.0;
const LEAST_GB: f64 = FEWEST * 1e3 / GIGABYTE;
/// Least processor time of a guest in a recording, in seconds: less is noise.
const LEAST_CPU: f64 = 1.0;
/// Differing facts that a comparison names.
const MOST_FACTS: usize = 12;
/// Length of a named fact.
const LONGEST_FACT: usize = 60;

/// A number of a guest's use in a window.
type Measure = fn(&Use) -> f64;

/// The compared metrics: whether it is energy, the least work in a recording, cost and work.
const METRICS: [(&Metric, bool, f64, Measure, Measure); 9] = [
    (metric::COST_CPU, false, 0.0, cpu, present),
    (metric::COST_HIDDEN, false, 0.0, hidden_percent, cpu),
    (metric::COST_CPU_PER_PACKET, false, FEWEST, cpu, packets),
    (metric::COST_HOST_PER_PACKET, false, FEWEST, hidden, packets),
    (metric::COST_CPU_PER_GB, false, LEAST_GB, cpu, gigabytes),
    (metric::COST_HOST_PER_GB, false, LEAST_GB, hidden, gigabytes),
    (metric::COST_CPU_PER_EXIT, false, FEWEST, cpu, exits),
    (metric::COST_POWER, true, 0.0, joules, present),
    (
        metric::COST_ENERGY_PER_GB,
        true,
        LEAST_GB,
        joules,
        gigabytes,
    ),
];

fn cpu(used: &Use) -> f64 {
    used.cpu().as_secs_f64()
}

fn hidden(used: &Use) -> f64 {
    used.stages.hidden().as_secs_f64()
}

fn hidden_percent(used: &Use) -> f64 {
    100.0 * hidden(used)
}

fn joules(used: &Use) -> f64 {
    used.energy.0
}

fn present(used: &Use) -> f64 {
    used.present.as_secs_f64()
}

fn packets(used: &Use) -> f64 {
    used.packets() as f64
}

fn exits(used: &Use) -> f64 {
    used.exchanges.exits.unwrap_or(0) as f64
}

fn gigabytes(used: &Use) -> f64 {
    used.exchanges.bytes as f64 / GIGABYTE
}

/// Compares two recordings, guest by guest.
pub fn compare(before: &Recording, after: &Recording) -> RunComparison {
    let (old, new) = (by_label(before), by_label(after));
    let mut comparisons = Vec::new();
    let mut small = 0;
    // In the order of the report: guests that cost most first.
    for guest in &after.guests {
        let label = guest.label();
        let Some(other) = old.get(&label) else {
            continue;
        };
        if cpu(&other.total).min(cpu(&guest.total)) < LEAST_CPU {
            small += 1;
            continue;
        }
        for (metric, is_energy, least, cost, work) in METRICS {
            let source = match before.energy_source.zip(after.energy_source) {
                Some((before, after)) if is_energy => before.max(after),
                None if is_energy => continue,
                _ => source_of_cpu(&[other, guest]),
            };
            let hidden = [
                metric::COST_HIDDEN,
                metric::COST_HOST_PER_PACKET,
                metric::COST_HOST_PER_GB,
            ];
            let is_hidden = hidden.iter().any(|of| of.is(metric.name));
            let enough = |guest: &Guest| {
                let is_known = !is_hidden || guest.hidden().is_some();
                is_known && cost(&guest.total) > 0.0 && work(&guest.total) > least
            };
            if !enough(other) || !enough(guest) {
                continue;
            }
            let series = |guest: &Guest| -> Vec<(f64, f64)> {
                let windows = guest.windows.values();
                windows.map(|used| (cost(used), work(used))).collect()
            };
            let subject = (label.as_str(), guest.platform.as_str());
            let minutes = before.window.max(after.window) as f64 / 60e9;
            let (new, old) = (series(guest), series(other));
            comparisons.push(comparison(subject, metric, source, minutes, &new, &old));
        }
    }
    judge(&mut comparisons, MINIMUM_EFFECT);
    let only = |these: &BTreeMap<String, &Guest>, those: &BTreeMap<String, &Guest>| {
        let labels = these.keys().filter(|label| !those.contains_key(*label));
        labels.cloned().collect()
    };
    RunComparison {
        first: named(before),
        others: vec![ComparedRun {
            is_alone: false,
            run: named(after),
            only_first: only(&old, &new),
            only_here: only(&new, &old),
            hosts: host_differences(&before.facts.host, &after.facts.host),
            shared: Vec::new(),
            plan_keys: Vec::new(),
            comparisons,
        }],
        cautions: cautions(before, after, small),
        minimum_effect: MINIMUM_EFFECT,
    }
}

fn by_label(recording: &Recording) -> BTreeMap<String, &Guest> {
    let guests = recording.guests.iter();
    guests.map(|guest| (guest.label(), guest)).collect()
}

fn source_of_cpu(guests: &[&Guest]) -> Source {
    if guests.iter().any(|guest| guest.total.error.0 > 0) {
        Source::Modelled
    } else {
        Source::Measured
    }
}

fn named(recording: &Recording) -> String {
    let note = match recording.facts.note.as_str() {
        "" => String::new(),
        note => format!(", {note}"),
    };
    format!(
        "{} ({}, {}{note})",
        recording.path.display(),
        when(&recording.began().to_string()),
        crate::report::length(recording.host.span.as_secs_f64())
    )
}

fn cautions(before: &Recording, after: &Recording, small: usize) -> Vec<String> {
    let mut cautions = vec!["The recordings are of different times: whatever else changed on the host between them, the load included, looks like a difference.".to_owned()];
    if small > 0 {
        cautions.push(format!(
            "{} used less than {LEAST_CPU} s of processor time in a recording: left out, because so little is noise.",
            counted(small, "guest")
        ));
    }
    let mut guests = before.guests.iter().chain(&after.guests);
    if guests.any(|guest| guest.total.error.0 > 0) {
        cautions.push("Times are modelled: the errors of the model are in both recordings and not in the intervals.".to_owned());
    }
    if before.energy_source.max(after.energy_source) == Some(Source::Modelled) {
        cautions.push("Energy is modelled from the use of processors: it shows no difference that these do not show.".to_owned());
    }
    let (old, new) = (&before.facts, &after.facts);
    let mut differs = |what: &str, old: String, new: String| {
        if old != new {
            let shown = |text: &str| match text {
                "" => "nothing".to_owned(),
                text => cut(text, LONGEST_FACT),
            };
            cautions.push(format!(
                "The {what} differs: {} before, {} after.",
                shown(&old),
                shown(&new)
            ));
        }
    };
    differs("method", old.method.clone(), new.method.clone());
    let interval = |of: &Facts| format!("{} s", of.interval_seconds);
    differs("interval", interval(old), interval(new));
    let (mine, theirs) = (old.idle_rule.clone(), new.idle_rule.clone());
    differs("rule for idle energy", mine, theirs);
    let model = |of: &Facts| of.energy_model.clone().unwrap_or_default();
    differs("power model", model(old), model(new));
    let hosts = host_differences(&old.host, &new.host);
    for one in hosts.into_iter().take(MOST_FACTS) {
        let value = |value: Option<String>| value.unwrap_or_default();
        differs(
            &format!("host's {}", one.fact),
            value(one.first),
            value(one.other),
        );
    }
    cautions
}
