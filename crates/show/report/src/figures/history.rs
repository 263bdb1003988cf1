// SPDX-License-Identifier: Apache-2.0
//! The figure of one number over the runs of a plan.

use super::{Figure, Scale};
use crate::history::{History, Point, Series};
use serde_json::{Value, json};
use vtax_results::numbers::{ratio, when};
use vtax_results::stats::extremes;

/// The figures of the series of a history, those that change first.
pub fn of_history(history: &History) -> Vec<Figure> {
    let mut all: Vec<&Series> = history.series.iter().collect();
    all.sort_by_key(|one| one.changes.is_empty());
    let numbered = (1..).zip(all);
    numbered
        .map(|(number, one)| of_series(history, one, number))
        .collect()
}

fn of_series(history: &History, series: &Series, number: usize) -> Figure {
    let values = series.points.iter().map(|point| point.value);
    // A tax is a ratio: it has no unit and no scale.
    let scale = series.unit.map(|unit| Scale::from_values(values, unit));
    let by = scale.as_ref().map_or(1.0, |scale| scale.by);
    let shown = |point: &Point| match &scale {
        Some(scale) => scale.shown(point.value, point.interval).line(),
        None => ratio(point.value, point.interval).line(),
    };
    let points: Vec<Value> = (series.points.iter().enumerate())
        .map(|(place, point)| {
            let run = history.runs.get(point.run);
            let mut changes = series.changes.iter();
            let change = changes.find(|change| change.since == point.run);
            json!({
                "place": place + 1,
                "value": point.value / by,
                "low": point.interval.map(|interval| interval.low / by),
                "high": point.interval.map(|interval| interval.high / by),
                "shown": shown(point),
                "run": run.map(|run| &run.directory),
                "started": run.map(|run| when(&run.started)),
                "change": change.map(|change| if change.worse { "worse" } else { "better" }),
            })
        })
        .collect();
    let title = match &scale {
        Some(scale) if scale.unit.is_empty() => series.title.clone(),
        Some(scale) => format!("{} in {}", series.title, scale.unit),
        None => "ratio to the baseline".to_owned(),
    };
    let ends = series.points.iter().flat_map(|point| {
        let interval = point.interval.map(|interval| [interval.low, interval.high]);
        interval.into_iter().flatten().chain([point.value])
    });
    let (low, high) = extremes(ends.map(|end| end / by));
    let margin = (0.05 * (high - low)).max(0.01 * high.abs());
    let domain = [low - margin, high + margin];
    let x = json!({"field": "place", "type": "quantitative", "title": "run", "scale": {"zero": false, "nice": false, "padding": 12},
                   "axis": {"tickMinStep": 1, "grid": false, "format": "d"}});
    let y = |field: &str| json!({"field": field, "type": "quantitative", "title": title, "scale": {"zero": false, "domain": domain}});
    let tooltip = json!([
        {"field": "shown", "title": series.title}, {"field": "run"}, {"field": "started"}, {"field": "change", "title": "changes"}
    ]);
    // A line reaches a little beyond its first and last point.
    let levels: Vec<Value> = (series.levels().into_iter())
        .map(|(places, value)| {
            json!({"from": places.start as f64 + 0.7, "to": places.end as f64 + 0.3, "value": value / by})
        })
        .collect();
    let layers = [
        json!({"data": {"values": points}, "mark": {"type": "rule", "color": "#999"},
               "encoding": {"x": x, "y": y("low"), "y2": {"field": "high"}}}),
        json!({"data": {"values": points}, "mark": {"type": "point", "filled": true, "size": 55, "opacity": 1},
               "encoding": {"x": x, "y": y("value"), "tooltip": tooltip,
                            "color": {"condition": {"test": "datum.change === 'worse'", "value": "#B4322D"}, "value": "#4C72B0"}}}),
        json!({"data": {"values": levels}, "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.7, "color": "#4C72B0"},
               "encoding": {"x": {"field": "from", "type": "quantitative"}, "x2": {"field": "to"}, "y": y("value")}}),
    ];
    Figure::new(
        format!("{number:02}-history"),
        series.heading(),
        caption(series),
        json!(170),
        json!({"layer": layers}),
    )
}

fn caption(series: &Series) -> String {
    let lines = match series.changes.len() {
        0 => "The line is the geometric mean of the runs.",
        _ => "The lines are the levels that the changepoints separate.",
    };
    let bars = if series.exact {
        "The numbers are exact."
    } else {
        "Each point is a run with its 95 % confidence interval."
    };
    format!("{bars} {lines}")
}
