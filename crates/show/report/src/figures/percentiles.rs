// SPDX-License-Identifier: Apache-2.0
//! Figures of latency by percentile.

use super::metrics::Curves;
use super::{Context, Figure, Scale, logarithmic};
use crate::analysis::{at_level, common_level, distinct};
use serde_json::{Value, json};
use vtax_core::{Base, Unit};
use vtax_results::stats::extremes;

/// Latency by percentile: the distributions of every treatment at one common load.
pub(super) fn percentiles(context: &Context) -> Vec<Figure> {
    let mut treatments = context.treatments.to_vec();
    treatments.retain(|summary| !summary.distributions.is_empty());
    let distributions = treatments.iter().flat_map(|summary| &summary.distributions);
    let context = Context {
        treatments: &treatments,
        ..*context
    };
    // The figure is about the target: the latencies of neighbours are left out.
    let names = distributions.map(|one| one.name.as_str());
    distinct(names.filter(|name| name.starts_with("client.")))
        .into_iter()
        .filter_map(|name| percentile_curves(&context, name))
        .collect()
}

fn percentile_curves(context: &Context, name: &str) -> Option<Figure> {
    let (workload, treatments) = (context.workload, context.treatments);
    let common = common_level(treatments, name);
    let level = common.map(|level| level.name);
    let curves = Curves::from_context(context, "", treatments.iter().copied());
    let mut points = Vec::new();
    let mut parts = Vec::new();
    for summary in treatments {
        let mut all = summary.distributions.iter();
        let found = all.find(|one| one.name == name && one.level.as_deref() == level);
        let Some(found) = found else {
            continue;
        };
        let values = found.histogram.len();
        if values == 0 {
            continue;
        }
        parts.push(format!("{} {values}", summary.short));
        for step in 0.. {
            // Twelve points per decade of 1 / (1 − p), as long as a value lies beyond.
            let beyond = 10_f64.powf(f64::from(step) / 12.0);
            if beyond > values as f64 || step > 200 {
                break;
            }
            let at = found.histogram.value_at_quantile(1.0 - 1.0 / beyond) as f64 / 1e9;
            if at > 0.0 {
                points.push((summary, beyond, at));
            }
        }
    }
    let scale = Scale::from_values(
        points.iter().map(|(_, _, at)| *at),
        Unit::from_base(Base::Second),
    );
    let rows = points.iter().map(|(summary, beyond, at)| {
        json!({"beyond": beyond, "value": at / scale.by, "curve": curves.name(summary), "treatment": summary.short,
               "percentile": format!("{:.4} %", 100.0 * (1.0 - 1.0 / beyond)), "shown": scale.shown(*at, None).line()})
    });
    let rows: Vec<Value> = rows.collect();
    if rows.is_empty() {
        return None;
    }
    let most = points
        .iter()
        .map(|(_, beyond, _)| *beyond)
        .fold(1.0, f64::max);
    let (lowest, highest) = extremes(points.iter().map(|(_, _, at)| at / scale.by));
    let (low, high) = (lowest * 0.85, highest * 1.2);
    let mut ticks: Vec<f64> = (0..12).map(|decade| 10_f64.powi(decade)).collect();
    ticks.retain(|tick| *tick <= most);
    let metric = name.rsplit('.').next().unwrap_or(name);
    let title = format!("{workload}: {metric} by percentile");
    let at = at_level(level, common.is_some_and(|level| level.is_kept));
    Some(Figure::new(
        format!("{workload} {name} percentiles"),
        title,
        format!(
            "Every value of every trial that counts{at}; each tick to the right is ten times rarer. Values: {}.",
            parts.join(", ")
        ),
        json!(240),
        json!({
            "data": {"values": rows},
            "mark": {"type": "line", "strokeWidth": 1.8, "point": {"size": 14, "filled": true}},
            "encoding": {
                "x": {"field": "beyond", "type": "quantitative", "title": "percentile", "scale": {"type": "log", "domain": [1, most], "nice": false},
                      "axis": {"values": ticks, "labelExpr": "datum.value == 1 ? '0 %' : format(1 - 1 / datum.value, '.' + max(0, round(log(datum.value) / LN10) - 2) + '%')"}},
                "y": logarithmic("value", &scale.unit, (low, high)),
                "color": curves.color(),
                "tooltip": [{"field": "treatment"}, {"field": "percentile"}, {"field": "shown", "title": metric}]
            }
        }),
    ))
}
