// SPDX-License-Identifier: Apache-2.0
//! Renders a study of charge-back as tables in Markdown.

use super::{Comparison, Method, PlatformStudy, Study};
use std::collections::BTreeSet;
use vtax_core::counted;
use vtax_results::Stage;
use vtax_results::stats::mean;
use vtax_results::text::Table;

/// Renders the tables of a study, one platform after another.
pub fn markdown(study: &Study) -> String {
    let platforms = study.platforms.iter();
    let parts = platforms.map(|platform| {
        let notes = notes(study, platform);
        let notes = notes.iter().map(|note| format!("- {note}\n"));
        let table = table(platform).markdown();
        let head = head(study, platform);
        format!("{head}\n\n{table}\n{}\n", notes.collect::<String>())
    });
    parts.collect()
}

fn head(study: &Study, platform: &PlatformStudy) -> String {
    let blocks = platform.measurements.iter().map(|found| found.block);
    let blocks: BTreeSet<u32> = blocks.collect();
    let first = platform.measurements.first();
    format!(
        "**{}**, {} at {} ({}, Linux {}), {} of {:.0} s each:",
        platform.name,
        study.name,
        study.place,
        study.source,
        study.kernel,
        counted(blocks.len(), "round"),
        first.map_or(0.0, |found| found.span.as_secs_f64()),
    )
}

fn table(platform: &PlatformStudy) -> Table {
    let mut methods = vec![("traced", Method::Traced), ("counted", Method::Counted)];
    if let Some(weights) = platform.fitted() {
        methods.push(("counted, weights fitted", Method::Fitted(weights)));
    }
    methods.push(("by processes", Method::Processes));
    let names = methods.iter().map(|(name, _)| *name);
    let headings = ["together over alone", "alone, traced"].into_iter();
    let mut table = Table::new(headings.chain(names), 1..usize::MAX);
    let mut row = |name: String, alone: String, of: &dyn Fn(Method) -> String| {
        let cells = methods.iter().map(|(_, method)| of(*method));
        table.row([name, alone].into_iter().chain(cells));
    };
    for load in &platform.pair {
        let alone = mean(&platform.compare(load, Method::Traced).alone);
        let alone = alone.map(|time| format!("{:.1} µs a unit of work", time / 1e3));
        let alone = alone.unwrap_or_else(|| "–".to_owned());
        row(load.clone(), alone, &|method| {
            cell(&platform.compare(load, method))
        });
    }
    let both = "both, over the sum of the two".to_owned();
    row(both, String::new(), &|method| {
        ratio(platform.compare_sum(method))
    });
    for load in &platform.pair {
        let name = format!("{load} alone, over traced");
        row(name, String::new(), &|method| {
            let over = ratio(platform.over_truth(load, method));
            match platform.stated_error(load) {
                Some(error) if method == Method::Counted => format!("{over} ± {error:.2}"),
                _ => over,
            }
        });
    }
    table
}

fn notes(study: &Study, platform: &PlatformStudy) -> Vec<String> {
    let pair = platform.pair.iter();
    let stages = pair.clone().filter_map(|load| stages(platform, load));
    let mut notes: Vec<String> = stages.collect();
    if let Some(weights) = platform.fitted() {
        notes.push(format!(
            "weights fitted to the other loads: received={:.0},sent={:.0},kibibyte=0,block-request={:.0},other={:.0}",
            weights.received, weights.sent, weights.block_request, weights.other
        ));
    }
    notes.extend(pair.filter_map(|load| {
        let missed = 100.0 * platform.missed_by_processes(load)?;
        Some(format!(
            "{load}: {missed:.0} % of the host's work for its I/O is not in its processes' CPU time"
        ))
    }));
    if let Some(cost) = &platform.monitor
        && let (Some(without), Some(with)) = (mean(&cost.without), mean(&cost.with))
    {
        notes.push(format!(
            "tracing {}: {:.1} µs of the host's processors a unit of work without, {:.1} with it ({:+.2} %)",
            cost.load,
            without / 1e3,
            with / 1e3,
            100.0 * (with / without - 1.0)
        ));
    }
    notes.extend(study.notes.iter().cloned());
    notes
}

/// A guest's CPU time by stage, alone and together; `None` where no stage has any.
fn stages(platform: &PlatformStudy, load: &str) -> Option<String> {
    let of = |running: usize, stage: &str| {
        let times = platform.at_work(load, running);
        let times = times.filter(|(_, guest, _)| guest.charged.contains_key("traced"));
        let times =
            times.map(|(_, guest, work)| guest.stage("traced", stage).as_secs_f64() * 1e6 / work);
        mean(&times.collect::<Vec<f64>>())
    };
    let shown = |stage: Stage| {
        let stage = stage.name();
        let (alone, together) = (of(1, stage)?, of(2, stage)?);
        (alone > 0.0).then(|| format!("{stage} {alone:.1} → {together:.1}"))
    };
    let parts: Vec<String> = Stage::CHARGED.into_iter().filter_map(shown).collect();
    let parts = (!parts.is_empty()).then(|| parts.join(", "))?;
    Some(format!(
        "{load}, µs a unit of work alone → together: {parts}"
    ))
}

fn cell(compared: &Comparison) -> String {
    match compared.range() {
        Some((low, high)) if compared.alone.len() > 1 => {
            format!("{} [{low:.3}–{high:.3}]", ratio(compared.ratio()))
        }
        _ => ratio(compared.ratio()),
    }
}

fn ratio(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.3}"))
}
