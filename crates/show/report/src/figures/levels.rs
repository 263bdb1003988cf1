// SPDX-License-Identifier: Apache-2.0
//! Figures of load levels: each metric against the load, and the knees.

use super::metrics::Curves;
use super::{Context, Figure, Scale, logarithmic, unmeasured};
use crate::analysis::certainty::Kinds;
use crate::analysis::{
    LevelSummary, MetricSummary, TreatmentSummary, distinct_metrics, knee_in_words,
};
use serde_json::{Value, json};
use vtax_core::Unit;
use vtax_core::metric::{self, Metric};
use vtax_results::stats::extremes;

/// Figures of the levels of one workload.
pub(super) fn levels(context: &Context) -> Vec<Figure> {
    let mut treatments = context.treatments.to_vec();
    treatments.retain(|summary| summary.levels.len() > 1);
    let context = Context {
        treatments: &treatments,
        ..*context
    };
    let Some(axis) = LevelAxis::from_context(context) else {
        return Vec::new();
    };
    let latency = vec![
        (metric::LATENCY_P50.name, "p50"),
        (metric::LATENCY_P99.name, "p99"),
    ];
    let served = vec![(achieved(&treatments).name, "")];
    let mut panels = vec![
        Panel::from_id("achieved", "what was served", served, false),
        Panel::from_id("latency", "latency", latency, true),
        Panel::from_id("errors", "errors", vec![(metric::ERRORS.name, "")], false),
    ];
    panels.extend(own(&treatments));
    let figures = panels.iter().filter_map(|panel| axis.panel(panel));
    let p99 = "99th percentile of latency";
    let curves = [
        axis.against_achieved(metric::LATENCY_P99.name, "load-latency", p99, true),
        axis.against_achieved(metric::POWER_MEAN.name, "watts-load", "power", false),
    ];
    figures.chain(curves.into_iter().flatten()).collect()
}

/// The metric that measures the achieved load.
fn achieved(treatments: &[&TreatmentSummary]) -> &'static Metric {
    let mut levels = treatments.iter().flat_map(|summary| &summary.levels);
    if levels.any(|level| level.metric(metric::THROUGHPUT.name).is_some()) {
        metric::THROUGHPUT
    } else {
        metric::RATE
    }
}

/// A figure for each metric that the plan's own command reports at the levels.
fn own<'a>(treatments: &[&'a TreatmentSummary]) -> Vec<Panel<'a>> {
    let levels = treatments.iter().flat_map(|summary| &summary.levels);
    let metrics = distinct_metrics(levels.flat_map(|level| &level.metrics)).into_iter();
    let own = metrics.filter(|metric| metric::OWN.part(&metric.name).is_some());
    own.map(|metric| Panel::from_id(&metric.name, &metric.title, vec![(&metric.name, "")], false))
        .collect()
}

/// Metrics of the levels that share a figure.
struct Panel<'a> {
    id: String,
    title: String,
    /// The names of the metrics, each with the word that distinguishes it from the others.
    metrics: Vec<(&'a str, &'static str)>,
    log: bool,
}

impl<'a> Panel<'a> {
    fn from_id(id: &str, title: &str, metrics: Vec<(&'a str, &'static str)>, log: bool) -> Self {
        Self {
            id: id.to_owned(),
            title: format!("{title} at each load"),
            metrics,
            log,
        }
    }
}

/// The common load axis of a workload's figures.
struct LevelAxis<'a> {
    context: Context<'a>,
    curves: Curves<'a>,
    scale: Scale,
    unit: Unit,
    domain: (f64, f64),
    /// Whether the load axis is logarithmic: on a linear axis, low levels far below the highest would overlap.
    is_log: bool,
}

/// Smallest ratio of the highest to the lowest value for a logarithmic axis.
const FAR_APART: f64 = 20.0;

fn scale_of(is_log: bool) -> &'static str {
    if is_log { "log" } else { "linear" }
}

impl<'a> LevelAxis<'a> {
    fn from_context(context: Context<'a>) -> Option<Self> {
        let treatments = context.treatments;
        let levels = || treatments.iter().flat_map(|summary| &summary.levels);
        let unit = levels().next()?.level.unit;
        let values: Vec<f64> = levels()
            .map(|level| level.level.value)
            .filter(|value| value.is_finite())
            .collect();
        let scale = Scale::from_values(values.iter().copied(), unit);
        let (low, high) = extremes(values.into_iter().map(|value| value / scale.by));
        let margin = 0.04 * (high - low);
        let is_log = low > 0.0 && high / low >= FAR_APART;
        let domain = if is_log {
            let margin = (high / low).powf(0.04);
            (low / margin, high * margin)
        } else {
            (low - margin, high + margin)
        };
        (high > low).then(|| Self {
            context,
            curves: Curves::from_context(&context, "", treatments.iter().copied()),
            scale,
            unit,
            domain,
            is_log,
        })
    }

    /// The levels of all treatments.
    fn levels(&self) -> impl Iterator<Item = (&'a TreatmentSummary, &'a LevelSummary)> {
        let treatments = self.context.treatments.iter().copied();
        treatments.flat_map(|summary| summary.levels.iter().map(move |level| (summary, level)))
    }

    fn panel(&self, panel: &Panel<'_>) -> Option<Figure> {
        let workload = self.context.workload;
        let first = panel.metrics.first()?.0;
        let unit = self
            .levels()
            .find_map(|(_, of)| Some(of.metric(first)?.unit))?;
        let mut points: Vec<(&TreatmentSummary, &LevelSummary, &MetricSummary, &str)> = Vec::new();
        for (summary, level) in self.levels() {
            for (name, word) in &panel.metrics {
                let metric = level.metric(name).filter(|metric| metric.unit == unit);
                points.extend(metric.map(|metric| (summary, level, metric, *word)));
            }
        }
        let y = Axis::from_metrics(points.iter().map(|(_, _, metric, _)| *metric), panel.log)?;
        let rows = points.iter().map(|(summary, level, metric, word)| {
            let more = json!({
                "level": level.level.value / self.scale.by, "phase": level.name, "curve": self.curves.name(summary),
                "treatment": summary.short, "what": word, "kept": kept(level),
            });
            y.row(metric, more)
        });
        let rows: Vec<Value> = rows.collect();
        let (low, high) = self.domain;
        let x = |field: &str| {
            json!({"field": field, "type": "quantitative", "title": format!("load asked for, {}", self.scale.unit),
                   "scale": {"type": scale_of(self.is_log), "domain": [low, high], "nice": false}, "axis": {"grid": false, "tickCount": 6}})
        };
        let color = self.curves.color();
        let words: Vec<&str> = panel.metrics.iter().map(|(_, word)| *word).collect();
        let dash = if words.len() > 1 {
            json!({"field": "what", "type": "nominal", "scale": {"domain": words, "range": [[4, 3], [1, 0]]}, "legend": null})
        } else {
            json!({"value": [1, 0]})
        };
        let kinds: Kinds = points.iter().map(|(_, _, of, _)| of.certainty).collect();
        let tooltip = json!([
            {"field": "treatment"}, {"field": "phase", "title": "load"}, {"field": "what", "title": "quantile"},
            {"field": "shown", "title": kinds.titled("mean")}, {"field": "n"}, {"field": "kept", "title": "objective kept"},
            {"field": "source"}
        ]);
        let knees = self.knees();
        let mut layers = vec![
            json!({"data": {"values": knees}, "transform": [{"filter": "isValid(datum.low)"}],
                   "mark": {"type": "rect", "opacity": 0.1, "clip": true},
                   "encoding": {"x": x("low"), "x2": {"field": "high"}, "color": color}}),
            json!({"data": {"values": knees}, "mark": {"type": "rule", "strokeWidth": 1.5, "strokeDash": [5, 3], "clip": true},
                   "encoding": {"x": x("knee"), "color": color, "tooltip": [{"field": "treatment"}, {"field": "shown", "title": kinds.titled("knee")}]}}),
        ];
        if knees.is_empty() {
            layers.clear();
        }
        // Where the load has the metric's unit, the requested load is a line too.
        if self.unit == unit && !panel.log {
            let asked: Vec<Value> = [low, high]
                .iter()
                .map(|level| json!({"level": level, "mean": level * self.scale.by / y.scale.by}))
                .collect();
            layers.push(json!({"data": {"values": asked}, "mark": {"type": "line", "strokeDash": [2, 3], "color": "#888", "strokeWidth": 1, "clip": true},
                               "encoding": {"x": x("level"), "y": y.encoding("mean")}}));
        }
        layers.extend([
            json!({"transform": [{"filter": "isValid(datum.low)"}], "mark": {"type": "area", "opacity": 0.16, "clip": true},
                   "encoding": {"x": x("level"), "y": y.encoding("low"), "y2": {"field": "high"}, "color": color, "detail": {"field": "what"}}}),
            json!({"mark": {"type": "line", "strokeWidth": 1.8, "clip": true},
                   "encoding": {"x": x("level"), "y": y.encoding("mean"), "color": color, "strokeDash": dash}}),
            json!({"mark": {"type": "point", "filled": true, "size": 46, "opacity": 1, "clip": true},
                   "encoding": {"x": x("level"), "y": y.encoding("mean"), "color": color, "shape": self.curves.shape(), "tooltip": tooltip}}),
        ]);
        let title = format!("{workload}: {}", panel.title);
        let lines = if words.len() > 1 {
            "; dashes are the median, full lines the 99th percentile"
        } else {
            ""
        };
        let sources = points.iter();
        let flags = sources.flat_map(|(_, _, of, _)| of.source.flags(of.modelled));
        let means = if kinds.has_intervals() {
            let interval = kinds.interval();
            format!(
                "Means over trials with their {interval} as bands, cut where they leave the frame"
            )
        } else {
            "Exact for this host, image and seed".to_owned()
        };
        let caption = format!(
            "{means}{lines}.{}{}",
            self.knees_in_words(panel.id == "achieved"),
            unmeasured(flags),
        );
        Some(Figure::new(
            format!("{workload} {}", panel.id),
            title,
            caption,
            json!(210),
            json!({"data": {"values": rows}, "layer": layers}),
        ))
    }

    /// One row for each treatment that has a knee.
    fn knees(&self) -> Vec<Value> {
        let rows = self.context.treatments.iter().filter_map(|summary| {
            let knee = summary.metric(metric::KNEE.name).filter(|knee| knee.unit == self.unit)?;
            let interval = knee.interval.filter(|interval| interval.low < interval.high);
            let shown = self.scale.shown(knee.description.mean, interval);
            Some(json!({
                "curve": self.curves.name(summary), "treatment": summary.short, "knee": knee.description.mean / self.scale.by,
                "low": knee.interval.map(|interval| (interval.low / self.scale.by).max(self.domain.0)),
                "high": knee.interval.map(|interval| (interval.high / self.scale.by).min(self.domain.1)),
                "shown": shown.line(),
            }))
        });
        rows.collect()
    }

    /// The legend of the knee rules by treatment; with `fully`, also the reason for the failure of the objective.
    fn knees_in_words(&self, fully: bool) -> String {
        let treatments = self.context.treatments;
        let lines: Vec<String> = if fully {
            let all = treatments.iter();
            all.filter_map(|one| knee_in_words(one)).collect()
        } else {
            let knees = self.knees();
            let line = |row: &Value| {
                let text = |field: &str| row.get(field).and_then(Value::as_str);
                Some(format!("{} at {}", text("treatment")?, text("shown")?))
            };
            knees.iter().filter_map(line).collect()
        };
        if lines.is_empty() {
            return String::new();
        }
        let mut knees = (treatments.iter()).filter_map(|one| one.metric(metric::KNEE.name));
        let shaded = if knees.any(|knee| knee.interval.is_some()) {
            ", shaded their intervals"
        } else {
            ""
        };
        let all = lines.join(if fully { ". " } else { "; " });
        format!(" Dashed rules are the knees{shaded}: {all}.")
    }

    fn against_achieved(&self, metric: &str, id: &str, title: &str, log: bool) -> Option<Figure> {
        let workload = self.context.workload;
        let name = achieved(self.context.treatments).name;
        let points = self.levels().filter_map(|(summary, level)| {
            Some((summary, level, level.metric(name)?, level.metric(metric)?))
        });
        let points: Vec<_> = points.collect();
        let x_axis = Axis::from_metrics(points.iter().map(|(_, _, x, _)| *x), false)?;
        let y_axis = Axis::from_metrics(points.iter().map(|(_, _, _, y)| *y), log)?;
        let rows = points.iter().map(|(summary, level, x, y)| {
            let more = json!({
                "x": x.description.mean / x_axis.scale.by, "xShown": x_axis.scale.mean(x).line(), "level": level.level.value,
                "phase": level.name, "curve": self.curves.name(summary), "treatment": summary.short,
            });
            y_axis.row(y, more)
        });
        let rows: Vec<Value> = rows.collect();
        let (least, most) = extremes(points.iter().map(|(_, _, x, _)| x.description.mean));
        let is_log = least > 0.0 && most / least >= FAR_APART;
        let x = json!({"field": "x", "type": "quantitative", "title": format!("served, {}", x_axis.scale.unit),
                       "scale": {"type": scale_of(is_log), "zero": !is_log}, "axis": {"grid": false, "tickCount": 6}});
        let color = self.curves.color();
        let kinds: Kinds = (points.iter())
            .flat_map(|(_, _, x, y)| [x.certainty, y.certainty])
            .collect();
        let tooltip = json!([
            {"field": "treatment"}, {"field": "phase", "title": "load"}, {"field": "xShown", "title": kinds.titled("served")},
            {"field": "shown", "title": kinds.titled("mean")}, {"field": "n"}, {"field": "source"}
        ]);
        let title = format!("{workload}: {title} against what was served");
        let sources = points.iter();
        let flags = sources.flat_map(|(_, _, _, of)| of.source.flags(of.modelled));
        Some(Figure::new(
            format!("{workload} {id}"),
            title,
            format!(
                "One symbol a load level, joined in the order in which the load was raised: where the curve turns, more was asked for \
                 than was served. {}{}",
                kinds.bars("Bars", ", cut where they leave the frame"),
                unmeasured(flags)
            ),
            json!(210),
            json!({
                "data": {"values": rows},
                "layer": [
                    {"mark": {"type": "line", "strokeWidth": 1.8},
                     "encoding": {"x": x, "y": y_axis.encoding("mean"), "color": color, "order": {"field": "level"}}},
                    {"transform": [{"filter": "isValid(datum.low)"}], "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6, "clip": true},
                     "encoding": {"x": x, "y": y_axis.encoding("low"), "y2": {"field": "high"}, "color": color}},
                    {"mark": {"type": "point", "filled": true, "size": 46, "opacity": 1},
                     "encoding": {"x": x, "y": y_axis.encoding("mean"), "color": color, "shape": self.curves.shape(), "tooltip": tooltip}}
                ]
            }),
        ))
    }
}

/// `3 of 4`, or nothing without an objective.
fn kept(level: &LevelSummary) -> String {
    match level.judged {
        0 => "–".to_owned(),
        judged => format!("{} of {judged} trials", level.kept),
    }
}

/// The axis of one metric.
struct Axis {
    scale: Scale,
    domain: (f64, f64),
    log: bool,
}

impl Axis {
    /// Trials set the domain: the wide intervals of few trials would flatten the curves.
    fn from_metrics<'a>(
        metrics: impl Iterator<Item = &'a MetricSummary>,
        log: bool,
    ) -> Option<Self> {
        let metrics: Vec<&MetricSummary> = metrics.collect();
        let unit = metrics.first()?.unit;
        let own = metrics.iter().filter(|metric| metric.unit == unit);
        let values = || {
            own.clone()
                .flat_map(|metric| metric.values.iter().map(|(_, value)| *value))
        };
        let scale = Scale::from_values(values(), unit);
        let highest = values().fold(0.0, f64::max) / scale.by;
        let lowest = extremes(values().filter(|value| !log || *value > 0.0)).0 / scale.by;
        let domain = if log {
            (lowest * 0.8, highest * 1.25)
        } else {
            (lowest.min(0.0), (1.1 * highest).max(f64::MIN_POSITIVE))
        };
        let usable = lowest.is_finite() && highest.is_finite() && (!log || highest > 0.0);
        // Values that are all zero still need an axis.
        let domain = if domain.1 < 1e-300 {
            (0.0, 1.0)
        } else {
            domain
        };
        usable.then_some(Self { scale, domain, log })
    }

    fn row(&self, metric: &MetricSummary, more: Value) -> Value {
        self.scale.row(metric, self.domain, more)
    }

    fn encoding(&self, field: &str) -> Value {
        let (low, high) = self.domain;
        let unit = Some(&self.scale.unit).filter(|unit| !unit.is_empty());
        if self.log {
            return logarithmic(field, &unit, self.domain);
        }
        json!({"field": field, "type": "quantitative", "title": unit,
               "scale": {"domain": [low, high], "nice": false}, "axis": {"tickCount": 5}})
    }
}
