// SPDX-License-Identifier: Apache-2.0
//! Figures of shift functions: the ratio of each quantile of the latencies to the baseline's.

use super::metrics::Curves;
use super::{Context, Figure, logarithmic};
use crate::analysis::{Shift, TreatmentSummary, at_level, distinct};
use serde_json::json;
use vtax_core::{Base, Unit, counted};
use vtax_results::numbers::{plain, ratio};
use vtax_results::stats::{extremes, percentile};

/// The shift functions of a workload, one figure for each distribution.
pub(super) fn shifts(context: &Context) -> Vec<Figure> {
    let all = context.analysis.shifts.iter();
    let own = || all.clone().filter(|of| of.workload == context.workload);
    distinct(own().map(|of| of.distribution.as_str()))
        .into_iter()
        .filter_map(|distribution| {
            let shifts = own().filter(|of| of.distribution == distribution);
            figure(context, &shifts.collect::<Vec<_>>())
        })
        .collect()
}

fn figure(context: &Context, shifts: &[&Shift]) -> Option<Figure> {
    let first = shifts.first()?;
    let treatments = shifts.iter().map(|shift| &shift.treatment);
    let shown: Vec<&TreatmentSummary> = treatments
        .filter_map(|label| context.analysis.treatment(label))
        .collect();
    let curves = Curves::from_context(context, "", shown.iter().copied());
    let seconds = |value: f64| plain(value, Unit::from_base(Base::Second));
    let (mut rows, mut ends, mut quantiles) = (Vec::new(), vec![0.8, 1.25], Vec::new());
    for (shift, summary) in shifts.iter().zip(&shown) {
        for point in &shift.points {
            let interval = point.interval;
            ends.extend([interval.low, interval.high]);
            quantiles.push(point.quantile);
            rows.push(json!({
                "percentile": percentile(point.quantile), "curve": curves.name(summary), "treatment": summary.short,
                "ratio": point.ratio, "low": interval.low, "high": interval.high,
                "shown": ratio(point.ratio, Some(interval)).line(), "own": seconds(point.treatment_seconds),
                "baseline": seconds(point.baseline_seconds), "verdict": point.verdict.words()
            }));
        }
    }
    if rows.is_empty() {
        return None;
    }
    quantiles.sort_by(f64::total_cmp);
    let order = distinct(quantiles.into_iter().map(percentile));
    let (low, high) = extremes(ends.into_iter());
    let at = at_level(first.level.as_deref(), first.level_is_kept);
    let unit = if first.over_machines {
        "machine"
    } else {
        "pair"
    };
    let n = shifts.iter().map(|shift| shift.n).min()?;
    let mut caption = format!(
        "Ratio of each percentile to the baseline's{at}, geometric mean over at least {}. Bars are simultaneous 95 % confidence \
         intervals: they hold for all percentiles of the figure together. A bar that crosses the dashed line at 1 shows no \
         difference.",
        counted(n, unit)
    );
    if let Some(missing) = shifts.iter().flat_map(|of| &of.unsupported).next() {
        caption.push_str(&format!(
            " Left out where a trial has too few requests: {missing}."
        ));
    }
    let x = json!({"field": "percentile", "type": "ordinal", "sort": order, "title": "percentile",
                   "scale": {"domain": order}, "axis": {"labelAngle": 0, "labelExpr": "slice(datum.label, 1)"}});
    let offset = json!({"field": "curve", "type": "nominal"});
    let title = "ratio to the baseline (logarithmic)";
    let y = |field: &str| logarithmic(field, &title, (low * 0.95, high * 1.05));
    let tooltip = json!([
        {"field": "treatment"}, {"field": "percentile"}, {"field": "shown", "title": "ratio"}, {"field": "own", "title": first.distribution},
        {"field": "baseline", "title": "baseline"}, {"field": "verdict"}
    ]);
    let (color, shape) = (curves.color(), curves.shape());
    Some(Figure::new(
        format!("{} {} shift", first.workload, first.distribution),
        format!(
            "{}: shift of the {} by percentile",
            first.workload, first.distribution
        ),
        caption,
        json!(240),
        json!({
            "data": {"values": rows},
            "layer": [
                {"data": {"values": [{"one": 1}]}, "mark": {"type": "rule", "strokeDash": [3, 3], "color": "#888"},
                 "encoding": {"y": {"datum": 1}}},
                {"mark": {"type": "rule", "strokeWidth": 2},
                 "encoding": {"x": x, "xOffset": offset, "y": y("low"), "y2": {"field": "high"}, "color": color, "tooltip": tooltip}},
                {"mark": {"type": "point", "filled": true, "size": 60, "opacity": 1},
                 "encoding": {"x": x, "xOffset": offset, "y": y("ratio"), "color": color, "shape": shape, "tooltip": tooltip}}
            ]
        }),
    ))
}
