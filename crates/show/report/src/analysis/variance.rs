// SPDX-License-Identifier: Apache-2.0
//! The variance of headline metrics by level, and the repetitions that it recommends.

use super::{
    Comparison, Fleet, LevelVariance, MetricSummary, MetricVariance, TreatmentSummary, TrialRow,
    WIDTH, by_key,
};
use std::collections::{BTreeMap, HashMap};
use vtax_core::{Base, metric};
use vtax_results::stats::{Nested, best_repetitions, components};

/// Seconds of one sample.
const SAMPLE: f64 = 1.0;

/// The names of the levels that any of these metrics has, lowest first.
pub fn separable(all: &[MetricVariance]) -> Vec<&'static str> {
    let mut names = vec!["sample", "trial", "block", "machine"];
    names.retain(|name| all.iter().any(|of| of.level(name).is_some()));
    names
}

/// The levels that the data of a run do not separate, one sentence each.
pub fn not_separable(all: &[MetricVariance]) -> Vec<&'static str> {
    let names = separable(all);
    let is_without = |name: &str| all.iter().any(|of| of.level(name).is_none());
    let sentences = [
        (
            is_without("sample"),
            "Where there is no share of samples, a trial has one value, and the scatter within it is not separable.",
        ),
        (
            !names.contains(&"block"),
            "Trial, boot and block are not separable in this plan: each trial is a boot, and a block has one trial of a \
             treatment.",
        ),
        (
            !names.contains(&"machine"),
            "Machines are not separable: the results are of one machine, or have too few blocks of each.",
        ),
    ];
    let those = sentences.into_iter().filter(|(applies, _)| *applies);
    those.map(|(_, sentence)| sentence).collect()
}

/// The variance of each headline metric that is a sample of two trials or more.
pub(super) fn by_level(
    summaries: &[TreatmentSummary],
    rows: &[TrialRow],
    fleet: &Fleet,
    comparisons: &[Comparison],
) -> Vec<MetricVariance> {
    let rows: HashMap<u32, &TrialRow> = rows.iter().map(|row| (row.index, row)).collect();
    let compared = by_key(comparisons);
    let mut found = Vec::new();
    for summary in summaries {
        let headlines = summary.metrics.iter().filter(|metric| metric.headline);
        for metric in headlines.filter(|metric| !metric.certainty.is_exact()) {
            let label = summary.treatment.label.as_str();
            let comparison = compared.get(&(label, metric.name.as_str()));
            let needed = comparison.and_then(|of| of.needed_for(WIDTH));
            let phase = |name: &str| summary.phases.get(name).copied().unwrap_or(0.0);
            let Some(levels) = of_metric(metric, &rows, fleet) else {
                continue;
            };
            let variance = |name: &str| {
                let level = levels.iter().find(|of| of.level == name)?;
                Some(level.sd * level.sd)
            };
            let best = variance("sample")
                .zip(variance("trial"))
                .and_then(|(sample, trial)| {
                    let overhead = phase("total") - phase("measured");
                    best_repetitions((sample, SAMPLE), (trial, overhead))
                });
            found.push(MetricVariance {
                treatment: label.to_owned(),
                metric: metric.name.clone(),
                title: metric.title.clone(),
                measured_seconds: phase("measured"),
                best_measured_seconds: best.map(|samples| samples * SAMPLE),
                repetitions: needed.map(|needed| needed.n),
                repetition: if comparison.is_some_and(|of| of.judgement.over_machines) {
                    "machine"
                } else {
                    "block"
                },
                levels,
            });
        }
    }
    found
}

/// The levels of one metric; `None` with fewer than two trials, and where a value is not positive.
fn of_metric(
    metric: &MetricSummary,
    rows: &HashMap<u32, &TrialRow>,
    fleet: &Fleet,
) -> Option<Vec<LevelVariance>> {
    let mean = metric.description.mean;
    if metric.values.len() < 2 || metric.values.iter().any(|(_, value)| *value <= 0.0) {
        return None;
    }
    let samples: Option<Vec<Vec<f64>>> = (metric.values.iter())
        .map(|(index, value)| samples(metric, rows.get(index)?, value / mean))
        .collect();
    let mut machines: BTreeMap<usize, BTreeMap<u32, Vec<Nested>>> = BTreeMap::new();
    for (place, (index, value)) in metric.values.iter().enumerate() {
        let block = rows.get(index)?.block;
        let own = samples.as_ref().and_then(|samples| samples.get(place));
        let trial = own.map_or_else(
            || Nested::from_values(&[value / mean]),
            |own| Nested::from_values(own),
        );
        let blocks = machines.entry(fleet.machine_of(block)).or_default();
        blocks.entry(block).or_default().push(trial);
    }
    let blocks = |blocks: BTreeMap<u32, Vec<Nested>>| {
        Nested::Group(blocks.into_values().map(Nested::Group).collect())
    };
    let design = Nested::Group(machines.into_values().map(blocks).collect());
    let found = components(&design, 4)?;
    // The only trial of each block is not separable from its block.
    let is_one_each = found.get(1).is_none_or(Option::is_none);
    let names = if is_one_each {
        ["sample", "", "trial", "machine"]
    } else {
        ["sample", "trial", "block", "machine"]
    };
    let all: f64 = found.iter().flatten().sum();
    let named = names.into_iter().zip(found);
    let levels = named.filter_map(|(level, variance)| {
        let variance = variance?;
        Some(LevelVariance {
            level,
            sd: variance.sqrt(),
            share: if all > 0.0 { variance / all } else { 0.0 },
        })
    });
    Some(levels.collect())
}

/// The metric per second of a trial, scaled so that its mean is `value`: the rate of traffic for throughput, CPU time per
/// byte of traffic for CPU time per work that is traffic. `None` for any other metric, under a load that changes, with
/// fewer than two samples, and below one reading a second.
fn samples(metric: &MetricSummary, row: &TrialRow, value: f64) -> Option<Vec<f64>> {
    // A load that changes makes every series change.
    if row.steady.is_empty() || row.series.iter().any(|one| !one.has_reading_each) {
        return None;
    }
    let mean = |rates: &[f64]| vtax_results::stats::mean(rates).unwrap_or(0.0);
    let (cpu, traffic): (Vec<_>, Vec<_>) = (row.series.iter()).partition(|one| one.name == "CPU");
    // The traffic of a transfer is in the busier direction.
    let traffic = (traffic.into_iter())
        .max_by(|one, other| mean(&one.rates).total_cmp(&mean(&other.rates)))?;
    let rates: Vec<f64> = if metric::THROUGHPUT.is(&metric.name) && is_of_bytes(metric.unit.base) {
        traffic.rates.clone()
    } else if metric::CPU_PER_WORK.is(&metric.name) && metric.unit.per.is_some_and(is_of_bytes) {
        let both = cpu.first()?.rates.iter().zip(&traffic.rates);
        both.map(|(cpu, bytes)| cpu / bytes).collect()
    } else {
        return None;
    };
    let middle = vtax_results::stats::mean(&rates).filter(|mean| *mean > 0.0)?;
    (rates.len() > 1).then(|| rates.iter().map(|rate| value * rate / middle).collect())
}

fn is_of_bytes(base: Base) -> bool {
    matches!(base, Base::Byte | Base::Gigabyte | Base::Bit)
}
