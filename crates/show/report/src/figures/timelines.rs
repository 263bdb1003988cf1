// SPDX-License-Identifier: Apache-2.0
//! Figures over time: CPU and power of one trial, and the rates of all.

use super::metrics::Curves;
use super::{Context, Figure, Scale, encoding, extended, unmeasured};
use crate::analysis::{Timeline, TreatmentSummary, TrialRow};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use vtax_core::Source;
use vtax_results::Stage;
use vtax_results::numbers::common_scale;

/// Most points of a curve; longer curves are drawn as means of neighbouring seconds.
const MOST_POINTS: usize = 400;

/// CPU and power over time, from one trial of each treatment.
pub(super) fn timelines(context: &Context) -> Vec<Figure> {
    let treatments = context.treatments.iter().copied();
    let treatments: Vec<(&TreatmentSummary, &Timeline)> = treatments
        .filter_map(|summary| Some((summary, summary.timeline.as_ref()?)))
        .collect();
    let cpu = treatments.iter();
    let cpu =
        cpu.filter_map(|(summary, timeline)| cpu_over_time(context.workload, summary, timeline));
    cpu.chain(watts_over_time(context, &treatments)).collect()
}

/// Thins a series by averaging. Returns pairs of second and value.
fn thinned(values: &[f64]) -> Vec<(usize, f64)> {
    let every = values.len().div_ceil(MOST_POINTS).max(1);
    values
        .chunks(every)
        .enumerate()
        .filter_map(|(place, part)| Some((place * every, vtax_results::stats::mean(part)?)))
        .collect()
}

/// Bands and labels of the phases, and the sentence of the caption about them.
fn phases(timeline: &Timeline) -> (Vec<Value>, String) {
    let Some(first) = timeline.phases.first() else {
        return (Vec::new(), String::new());
    };
    let levels = timeline.phases.iter().filter_map(|phase| phase.level);
    let (scale, unit) = match first.level {
        Some(level) => common_scale(levels.map(|level| level.value), level.unit),
        None => (1.0, String::new()),
    };
    let rows = timeline.phases.iter().enumerate().map(|(place, phase)| {
        json!({"start": phase.start, "end": phase.end, "middle": (phase.start + phase.end) / 2.0, "name": phase.name,
               "odd": place % 2, "text": phase.level.map_or_else(|| phase.name.clone(), |level| label(level.value / scale))})
    });
    let rows: Vec<Value> = rows.collect();
    let layers = vec![
        json!({"data": {"values": rows}, "mark": {"type": "rect", "clip": true, "color": "#888"},
               "encoding": {"x": {"field": "start", "type": "quantitative"}, "x2": {"field": "end"},
                            "opacity": {"field": "odd", "type": "quantitative", "scale": {"domain": [0, 1], "range": [0.05, 0.17]}, "legend": null}}}),
        json!({"data": {"values": rows}, "mark": {"type": "text", "clip": true, "baseline": "top", "fontSize": 10, "color": "#333"},
               "encoding": {"x": {"field": "middle", "type": "quantitative"}, "y": {"value": 3}, "text": {"field": "text"}, "tooltip": {"field": "name"}}}),
    ];
    let within = if unit.is_empty() { "" } else { " in " };
    let explained =
        format!(" Shaded bands are the phases, named by the load asked for{within}{unit}.");
    (layers, explained)
}

/// A figure over the seconds of a trial: `layer` between the bands of its phases and their labels. `caption` precedes what
/// explains these, and `flags` are of the numbers.
fn with_phases(
    [id, title, caption]: [String; 3],
    timeline: &Timeline,
    flags: impl Iterator<Item = Source>,
    layer: Value,
) -> Figure {
    let (mut drawn, explained) = phases(timeline);
    let place = drawn.len().min(1);
    drawn.insert(place, extended(json!({"params": [zoom()]}), layer));
    let caption = format!("{caption}{explained}{} {ZOOM}", unmeasured(flags));
    Figure::new(id, title, caption, json!(190), json!({"layer": drawn}))
}

/// A field on an axis from 0 to a little above the highest value.
fn from_zero(field: &str, title: &str, highest: f64) -> Value {
    json!({"field": field, "type": "quantitative", "title": title,
           "scale": {"domain": [0, highest * 1.15], "nice": false}, "axis": {"tickCount": 4}})
}

/// The shortest label of a level: `100`, `2.5`.
fn label(level: f64) -> String {
    ((level * 1000.0).round() / 1000.0).to_string()
}

fn seconds() -> Value {
    json!({"field": "second", "type": "quantitative", "title": "seconds into the window", "scale": {"nice": false}, "axis": {"grid": false}})
}

/// Colours of neighbours and their clients, distinct from each other and from every stage.
const NEIGHBOURS: [&str; 6] = [
    Stage::Neighbours.color(),
    "#C49C94",
    "#17808A",
    "#8FC1C6",
    "#6A3D9A",
    "#B89FD0",
];

fn cpu_over_time(
    workload: &str,
    summary: &TreatmentSummary,
    timeline: &Timeline,
) -> Option<Figure> {
    let mut names: Vec<String> = Vec::new();
    let mut colors: Vec<&str> = Vec::new();
    let mut rows = Vec::new();
    let mut top: Vec<f64> = Vec::new();
    let mut spare = NEIGHBOURS.into_iter().cycle();
    let mut layers: Vec<_> = timeline.cpu.iter().collect();
    layers.sort_by_key(|layer| layer.stage);
    for (place, layer) in layers.into_iter().enumerate() {
        let name = if layer.stage.is_targets() {
            layer.stage.words().to_owned()
        } else {
            layer.actor.clone()
        };
        for (number, (second, cores)) in thinned(&layer.cores).into_iter().enumerate() {
            rows.push(json!({"second": second, "cores": (cores * 1e4).round() / 1e4, "who": name, "place": place}));
            top.resize(top.len().max(number + 1), 0.0);
            if let Some(top) = top.get_mut(number) {
                *top += cores;
            }
        }
        names.push(name);
        colors.push(match layer.stage {
            Stage::Neighbours => spare.next().unwrap_or("#7F7F7F"),
            stage => stage.color(),
        });
    }
    if rows.is_empty() {
        return None;
    }
    let highest = top.into_iter().fold(0.0, f64::max);
    let y = from_zero("cores", "cores busy", highest);
    let texts = [
        format!("{workload} {} cpu over time", summary.short),
        format!(
            "{workload}, {}: CPU by actor and stage over time",
            summary.short
        ),
        format!("Trial {:04}, stacked by who spent it.", timeline.trial),
    ];
    Some(with_phases(
        texts,
        timeline,
        timeline.cpu.iter().map(|layer| layer.source),
        json!({
            "data": {"values": rows},
            "mark": {"type": "area", "opacity": 0.9, "interpolate": "step-after", "clip": true},
            "encoding": {
                "x": seconds(),
                "y": extended(y, json!({"stack": "zero"})),
                "color": encoding("who", &names, &colors, true), "order": {"field": "place", "type": "quantitative"},
                "tooltip": [{"field": "who"}, {"field": "second"}, {"field": "cores", "title": "cores busy"}]
            }
        }),
    ))
}

fn watts_over_time(
    context: &Context,
    treatments: &[(&TreatmentSummary, &Timeline)],
) -> Option<Figure> {
    let own = treatments.iter();
    let own: Vec<_> = own
        .filter_map(|(summary, timeline)| Some((*summary, *timeline, timeline.watts.as_ref()?)))
        .collect();
    let (_, first, _) = own.first()?;
    let curves = Curves::from_context(context, "", own.iter().map(|(summary, ..)| *summary));
    let mut rows = Vec::new();
    let mut highest = 0.0_f64;
    for (summary, timeline, (watts, _)) in &own {
        for (second, watts) in thinned(watts) {
            highest = highest.max(watts);
            rows.push(json!({"second": second, "watts": (watts * 1e3).round() / 1e3, "treatment": summary.short,
                             "curve": curves.name(summary), "trial": format!("{:04}", timeline.trial)}));
        }
    }
    if rows.is_empty() {
        return None;
    }
    let workload = context.workload;
    let texts = [
        format!("{workload} watts over time"),
        format!("{workload}: power of the host over time"),
        "One trial of each treatment, the first that counts.".to_owned(),
    ];
    Some(with_phases(
        texts,
        first,
        own.iter().map(|(_, _, (_, source))| *source),
        json!({
            "data": {"values": rows},
            "mark": {"type": "line", "strokeWidth": 1.3, "interpolate": "step-after", "clip": true},
            "encoding": {
                "x": seconds(),
                "y": from_zero("watts", "W", highest),
                "color": curves.color(),
                "tooltip": [{"field": "treatment"}, {"field": "trial"}, {"field": "second"}, {"field": "watts", "title": "W"}]
            }
        }),
    ))
}

/// The instructions for moving along a time axis; a part of the captions.
const ZOOM: &str = "Drag along the time axis to move, zoom with Ctrl and the wheel or a pinch, double click to reset.";

/// A time axis with panning and zoom. The wheel without Ctrl scrolls the page.
fn zoom() -> Value {
    json!({"name": "zoom", "bind": "scales",
           "select": {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.ctrlKey]", "clear": "dblclick"}})
}

/// The rates within the measured window, one line per trial.
pub(super) fn over_time(context: &Context, trials: &HashMap<&str, Vec<&TrialRow>>) -> Vec<Figure> {
    const MOST_POINTS: usize = 6000;
    let (workload, treatments) = (context.workload, context.treatments);
    let mut own: Vec<(&TreatmentSummary, &TrialRow)> = Vec::new();
    for summary in treatments {
        let trials = trials.get(summary.treatment.label.as_str());
        own.extend(trials.into_iter().flatten().map(|trial| (*summary, *trial)));
    }
    own.sort_by_key(|(_, trial)| trial.index);
    let mut figures = Vec::new();
    for name in ["CPU", "received", "sent"] {
        let mut lines = Vec::new();
        for (summary, trial) in &own {
            let series = trial.series.iter().filter(|series| series.name == name);
            lines.extend(series.map(|series| (*summary, trial.index, series)));
        }
        let points: usize = lines.iter().map(|(_, _, series)| series.rates.len()).sum();
        let Some((_, _, first)) = lines
            .first()
            .filter(|(_, _, series)| series.rates.len() > 2)
        else {
            continue;
        };
        let every = points.div_ceil(MOST_POINTS).max(1);
        let rates = lines.iter().flat_map(|(_, _, series)| &series.rates);
        let scale = Scale::from_values(rates.copied(), first.unit);
        let (what, unit) = match name {
            "CPU" => ("CPU of the target", "cores busy"),
            name => (name, scale.unit.as_str()),
        };
        // The plan's order, independent of the order of trials.
        let shorts: HashSet<&str> = lines.iter().map(|(own, ..)| own.short.as_str()).collect();
        let all = treatments.iter().copied();
        let drawn = all.filter(|one| shorts.contains(one.short.as_str()));
        let curves = Curves::from_context(context, "", drawn);
        let mut values = Vec::new();
        for (summary, index, series) in &lines {
            for (second, rate) in series.rates.iter().enumerate().step_by(every) {
                values.push(
                    json!({"second": second, "rate": rate / scale.by, "trial": format!("{index:04}"),
                                   "curve": curves.name(summary), "treatment": summary.short}),
                );
            }
        }
        let title = format!("{workload}: {what} over the measured window");
        figures.push(Figure::new(format!("{workload} {name} over time"), title, format!(
                "One line a trial. A level line is a steady state; the classes are in the table of treatments. {ZOOM}"
            ), json!(170), json!({
                "data": {"values": values},
                "params": [zoom()],
                "mark": {"type": "line", "strokeWidth": 1.2, "opacity": 0.75, "interpolate": "step-after", "clip": true},
                "encoding": {
                    "x": seconds(),
                    "y": {"field": "rate", "type": "quantitative", "title": unit, "scale": {"zero": true}, "axis": {"tickCount": 4}},
                    "color": curves.color(),
                    "detail": {"field": "trial"},
                    "tooltip": [{"field": "treatment"}, {"field": "trial"}, {"field": "second"}, {"field": "rate", "format": ".3~g"}]
                }
            })));
    }
    figures
}
