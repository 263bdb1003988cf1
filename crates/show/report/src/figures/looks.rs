// SPDX-License-Identifier: Apache-2.0
//! How the intervals of a run that was looked at narrowed, block by block.

use super::{Figure, Platforms};
use crate::analysis::words::lead;
use crate::analysis::{Analysis, Comparison, pairs};
use serde_json::json;
use std::collections::BTreeMap;
use vtax_results::numbers::ratio;
use vtax_results::stats::{Interval, anytime_half_width, describe};

/// The most comparisons of the figure.
const MOST: usize = 8;

/// A look: the pairs so far, the ratio, and its interval.
type Look = (usize, f64, Interval);

/// The ratios of the metric that leads, after each block from which they have an interval; `None` for a run whose length was
/// fixed.
pub(super) fn narrowing(analysis: &Analysis, all: &Platforms) -> Option<Figure> {
    if !analysis.sequential {
        return None;
    }
    let all_rows = || {
        let rows = analysis.comparisons.iter();
        rows.filter(|row| row.headline && row.tax.is_some_and(|tax| tax.sequential))
    };
    let lead = lead(all_rows())?;
    let rows: Vec<&Comparison> = all_rows()
        .filter(|row| row.metric == lead)
        .take(MOST)
        .collect();
    let labels = analysis.by_label();
    let block_of: BTreeMap<u32, u32> = (analysis.trials.iter())
        .map(|row| (row.index, row.block))
        .collect();
    let mut values = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for row in &rows {
        let (own, base) = (
            labels.get(row.treatment.as_str())?,
            labels.get(row.baseline.as_str())?,
        );
        let (mine, theirs) = (own.metric(&row.metric)?, base.metric(&row.metric)?);
        let logs = pairs(mine, theirs, &block_of).into_iter();
        let logs: Vec<f64> = logs.map(|(_, value, other)| (value / other).ln()).collect();
        for (pairs, centre, ends) in looks(&logs) {
            values.push(json!({
                "treatment": own.short, "platform": row.platform, "pairs": pairs,
                "ratio": centre, "low": ends.low, "high": ends.high,
                "shown": ratio(centre, Some(ends)).line(),
            }));
        }
        names.push(&own.short);
    }
    if values.is_empty() {
        return None;
    }
    let colors: Vec<&str> = rows.iter().map(|row| all.color(&row.platform)).collect();
    let x = json!({"field": "pairs", "type": "quantitative", "title": "blocks", "scale": {"zero": false, "nice": false},
                   "axis": {"tickMinStep": 1, "format": "d", "grid": false}});
    let y = |field: &str| {
        json!({"field": field, "type": "quantitative", "title": "ratio to the baseline (logarithmic)",
                                 "scale": {"type": "log", "zero": false, "nice": false}})
    };
    let color = json!({"field": "treatment", "type": "nominal", "title": null, "scale": {"domain": names, "range": colors}});
    let dash =
        json!({"field": "treatment", "type": "nominal", "title": null, "scale": {"domain": names}});
    Some(Figure::new(
        "looks",
        "How the intervals narrowed",
        "The ratio in the metric that leads, after each block, with the 95 % interval of this comparison that holds at every \
         look. The run ended when its rule was met, or at its last block. On the dashed line at 1 both are the same.",
        json!(200),
        json!({
            "data": {"values": values},
            "layer": [
                {"mark": {"type": "area", "opacity": 0.14},
                 "encoding": {"x": x, "y": y("low"), "y2": {"field": "high"}, "color": color}},
                {"mark": {"type": "line", "strokeWidth": 1.8},
                 "encoding": {"x": x, "y": y("ratio"), "color": color, "strokeDash": dash,
                              "tooltip": [{"field": "treatment"}, {"field": "pairs", "title": "blocks"}, {"field": "shown", "title": "ratio"}]}},
                {"data": {"values": [{"one": 1}]}, "mark": {"type": "rule", "strokeDash": [3, 3], "color": "#888"},
                 "encoding": {"y": {"field": "one", "type": "quantitative"}}},
            ],
        }),
    ))
}

/// The looks at a growing sample of log ratios that have an interval.
fn looks(logs: &[f64]) -> Vec<Look> {
    let found = (2..=logs.len()).filter_map(|pairs| {
        let so_far = describe(logs.get(..pairs)?)?;
        let half = anytime_half_width(pairs, so_far.sd?, 0.95)?;
        let ends = Interval {
            low: (so_far.mean - half).exp(),
            high: (so_far.mean + half).exp(),
        };
        Some((pairs, so_far.mean.exp(), ends))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_look_is_the_interval_of_the_whole_sample_and_the_first_needs_five_pairs() {
        let logs = [0.1, 0.12, 0.09, 0.11, 0.1, 0.13, 0.08];
        let looks = looks(&logs);
        assert_eq!(looks.first().unwrap().0, 5);
        let (pairs, ratio, ends) = *looks.last().unwrap();
        assert_eq!(pairs, 7);
        assert!(ends.low < ratio && ratio < ends.high);
        let widths: Vec<f64> = looks
            .iter()
            .map(|(.., ends)| (ends.high / ends.low).ln())
            .collect();
        assert!(
            widths.last().unwrap() < widths.first().unwrap(),
            "{widths:?}"
        );
    }
}
