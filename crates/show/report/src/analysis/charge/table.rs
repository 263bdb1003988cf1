// SPDX-License-Identifier: Apache-2.0
//! Renders a study of charge-back as tables in Markdown.

use super::{Comparison, Method, PlatformStudy, Study};
use std::collections::BTreeSet;
use std::fmt::Write;
use vtax_results::Stage;
use vtax_results::stats::mean;

/// Renders the tables of a study, one platform after another.
pub fn of(study: &Study) -> String {
    let mut text = String::new();
    for platform in &study.platforms {
        // Writing to a string cannot fail.
        let _ = write(&mut text, study, platform);
    }
    text
}

fn write(text: &mut String, study: &Study, platform: &PlatformStudy) -> std::fmt::Result {
    let blocks = platform.measurements.iter().map(|found| found.block);
    let blocks: BTreeSet<u32> = blocks.collect();
    let seconds = platform.measurements.first();
    writeln!(
        text,
        "**{}**, {} at {} ({}, Linux {}), {} of {:.0} s each:\n",
        platform.name,
        study.name,
        study.place,
        study.source,
        study.kernel,
        match blocks.len() {
            1 => "1 round".to_owned(),
            many => format!("{many} rounds"),
        },
        seconds.map_or(0.0, |found| found.span.as_secs_f64()),
    )?;
    let fitted = platform.fitted();
    let mut methods = vec![("traced", Method::Traced), ("counted", Method::Counted)];
    if let Some(weights) = fitted {
        methods.push(("counted, weights fitted", Method::Fitted(weights)));
    }
    methods.push(("by processes", Method::Processes));

    write!(text, "| together over alone | alone, traced |")?;
    for (name, _) in &methods {
        write!(text, " {name} |")?;
    }
    write!(text, "\n|---|---:|")?;
    text.push_str(&"---:|".repeat(methods.len()));
    text.push('\n');
    for load in &platform.pair {
        let alone = platform.compare(load, Method::Traced).alone;
        let alone = mean(&alone).map_or("–".to_owned(), |time| {
            format!("{:.1} µs a unit of work", time / 1e3)
        });
        write!(text, "| {load} | {alone} |")?;
        for (_, method) in &methods {
            write!(text, " {} |", cell(&platform.compare(load, *method)))?;
        }
        text.push('\n');
    }
    write!(text, "| both, over the sum of the two | |")?;
    for (_, method) in &methods {
        let sum = platform.compare_sum(*method);
        write!(text, " {} |", ratio(sum))?;
    }
    text.push('\n');
    for load in &platform.pair {
        write!(text, "| {load} alone, over traced | |")?;
        for (_, method) in &methods {
            let over = ratio(platform.over_truth(load, *method));
            match platform.stated_error(load) {
                Some(error) if *method == Method::Counted => {
                    write!(text, " {over} ± {error:.2} |")?;
                }
                _ => write!(text, " {over} |")?,
            }
        }
        text.push('\n');
    }
    text.push('\n');
    for load in &platform.pair {
        stages(text, platform, load)?;
    }
    if let Some(weights) = fitted {
        writeln!(
            text,
            "- weights fitted to the other loads: received={:.0},sent={:.0},kibibyte=0,block-request={:.0},other={:.0}",
            weights.received, weights.sent, weights.block_request, weights.other
        )?;
    }
    for load in &platform.pair {
        if let Some(missed) = platform.missed_by_processes(load) {
            writeln!(
                text,
                "- {load}: {:.0} % of the host's work for its I/O is not in its processes' CPU time",
                100.0 * missed
            )?;
        }
    }
    if let Some(cost) = &platform.monitor
        && let (Some(without), Some(with)) = (mean(&cost.without), mean(&cost.with))
    {
        writeln!(
            text,
            "- tracing {}: {:.1} µs of the host's processors a unit of work without, {:.1} with it ({:+.2} %)",
            cost.load,
            without / 1e3,
            with / 1e3,
            100.0 * (with / without - 1.0)
        )?;
    }
    for note in &study.notes {
        writeln!(text, "- {note}")?;
    }
    text.push('\n');
    Ok(())
}

/// Writes a guest's CPU time by stage, alone and together.
fn stages(text: &mut String, platform: &PlatformStudy, load: &str) -> std::fmt::Result {
    let of = |running: usize, stage: &str| {
        let times: Vec<f64> = platform
            .at_work(load, running)
            .filter_map(|(_, guest, work)| {
                guest.charged.get("traced")?;
                Some(guest.stage("traced", stage).as_secs_f64() * 1e6 / work)
            })
            .collect();
        mean(&times)
    };
    let mut parts = Vec::new();
    for stage in Stage::CHARGED.map(Stage::name) {
        if let (Some(alone), Some(together)) = (of(1, stage), of(2, stage))
            && alone > 0.0
        {
            parts.push(format!("{stage} {alone:.1} → {together:.1}"));
        }
    }
    if parts.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "- {load}, µs a unit of work alone → together: {}",
        parts.join(", ")
    )
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
