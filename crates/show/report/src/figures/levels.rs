// SPDX-License-Identifier: Apache-2.0
//! Figures of load levels: each metric against the load, and the knees.

use super::metrics::Curves;
use super::taxes::ratio_ticks;
use super::{Context, Figure, titled, unmeasured};
use crate::analysis::certainty::Kinds;
use crate::analysis::{
    LevelSummary, MetricSummary, TreatmentSummary, distinct_metrics, knee_in_words,
};
use serde_json::{Value, json};
use vtax_core::Unit;
use vtax_core::metric::{self, Metric};
use vtax_results::numbers::{common_scale, scaled};

/// Figures of the levels of one workload.
pub(super) fn levels(context: &Context) -> Vec<Figure> {
    let mut treatments = context.treatments.to_vec();
    treatments.retain(|summary| summary.levels.len() > 1);
    let context = Context {
        treatments: &treatments,
        ..*context
    };
    let Some(axis) = LevelAxis::of(context) else {
        return Vec::new();
    };
    let mut against_level = vec![
        Panel {
            id: "achieved".to_owned(),
            title: "what was served at each load".to_owned(),
            metrics: vec![(achieved(&treatments).name, "")],
            log: false,
        },
        Panel {
            id: "latency".to_owned(),
            title: "latency at each load".to_owned(),
            metrics: vec![
                (metric::LATENCY_P50.name, "p50"),
                (metric::LATENCY_P99.name, "p99"),
            ],
            log: true,
        },
        Panel {
            id: "errors".to_owned(),
            title: "errors at each load".to_owned(),
            metrics: vec![(metric::ERRORS.name, "")],
            log: false,
        },
    ];
    against_level.extend(own(&treatments));
    let against_achieved = [
        (
            metric::LATENCY_P99,
            "load-latency",
            "99th percentile of latency against what was served",
            true,
        ),
        (
            metric::POWER_MEAN,
            "watts-load",
            "power against what was served",
            false,
        ),
    ];
    let panels = against_level.iter().filter_map(|panel| axis.panel(panel));
    let curves = against_achieved
        .iter()
        .filter_map(|(metric, id, title, log)| axis.against_achieved(metric.name, id, title, *log));
    panels.chain(curves).collect()
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
    own.map(|metric| Panel {
        id: metric.name.clone(),
        title: format!("{} at each load", metric.title),
        metrics: vec![(metric.name.as_str(), "")],
        log: false,
    })
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

/// The common load axis of a workload's figures.
struct LevelAxis<'a> {
    context: Context<'a>,
    curves: Curves<'a>,
    scale: f64,
    unit: Unit,
    name: String,
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
    fn of(context: Context<'a>) -> Option<Self> {
        let treatments = context.treatments;
        let levels = || treatments.iter().flat_map(|summary| &summary.levels);
        let unit = levels().next()?.level.unit;
        let values: Vec<f64> = levels()
            .map(|level| level.level.value)
            .filter(|value| value.is_finite())
            .collect();
        let (scale, name) = common_scale(values.iter().copied(), unit);
        let low = values.iter().copied().fold(f64::INFINITY, f64::min) / scale;
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max) / scale;
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
            curves: Curves::of(&context, "", treatments.iter().copied()),
            scale,
            unit,
            name,
            domain,
            is_log,
        })
    }

    fn curve(&self, summary: &TreatmentSummary) -> String {
        self.curves.name(summary)
    }

    fn panel(&self, panel: &Panel<'_>) -> Option<Figure> {
        let Context {
            workload,
            treatments,
            ..
        } = self.context;
        let unit = treatments
            .iter()
            .flat_map(|summary| &summary.levels)
            .find_map(|level| Some(level.metric(panel.metrics.first()?.0)?.unit))?;
        let mut points: Vec<(&TreatmentSummary, &LevelSummary, &MetricSummary, &str)> = Vec::new();
        for summary in treatments {
            for level in &summary.levels {
                for (name, word) in &panel.metrics {
                    let metric = level.metric(name).filter(|metric| metric.unit == unit);
                    points.extend(metric.map(|metric| (*summary, level, metric, *word)));
                }
            }
        }
        let y = Axis::of(points.iter().map(|(_, _, metric, _)| *metric), panel.log)?;
        let rows: Vec<Value> = points
            .iter()
            .map(|(summary, level, metric, word)| {
                let mut row = y.row(metric);
                row.extend([
                    ("level".to_owned(), json!(level.level.value / self.scale)),
                    ("phase".to_owned(), json!(level.name)),
                    ("curve".to_owned(), json!(self.curve(summary))),
                    ("treatment".to_owned(), json!(summary.short)),
                    ("what".to_owned(), json!(word)),
                    ("kept".to_owned(), json!(kept(level))),
                ]);
                Value::Object(row)
            })
            .collect();
        let (low, high) = self.domain;
        let x = |field: &str| {
            json!({"field": field, "type": "quantitative", "title": format!("load asked for, {}", self.name),
                   "scale": {"type": scale_of(self.is_log), "domain": [low, high], "nice": false}, "axis": {"grid": false, "tickCount": 6}})
        };
        let color = self.curves.color();
        let words: Vec<&str> = panel.metrics.iter().map(|(_, word)| *word).collect();
        let dash = if words.len() > 1 {
            json!({"field": "what", "type": "nominal", "scale": {"domain": words, "range": [[4, 3], [1, 0]]}, "legend": null})
        } else {
            json!({"value": [1, 0]})
        };
        let kinds: Kinds = points
            .iter()
            .map(|(_, _, metric, _)| metric.certainty)
            .collect();
        let tooltip = json!([
            {"field": "treatment"}, {"field": "phase", "title": "load"}, {"field": "what", "title": "quantile"},
            {"field": "shown", "title": titled("mean", kinds)}, {"field": "n"}, {"field": "kept", "title": "objective kept"},
            {"field": "source"}
        ]);
        let knees = self.knees();
        let mut layers = vec![
            json!({"data": {"values": knees}, "transform": [{"filter": "isValid(datum.low)"}],
                   "mark": {"type": "rect", "opacity": 0.1, "clip": true},
                   "encoding": {"x": x("low"), "x2": {"field": "high"}, "color": color}}),
            json!({"data": {"values": knees}, "mark": {"type": "rule", "strokeWidth": 1.5, "strokeDash": [5, 3], "clip": true},
                   "encoding": {"x": x("knee"), "color": color, "tooltip": [{"field": "treatment"}, {"field": "shown", "title": titled("knee", kinds)}]}}),
        ];
        if knees.is_empty() {
            layers.clear();
        }
        // Where the load has the metric's unit, the requested load is a line too.
        if self.unit == unit && !panel.log {
            let asked: Vec<Value> = [low, high]
                .iter()
                .map(|level| json!({"level": level, "mean": level * self.scale / y.scale}))
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
        let caption = format!(
            "{}{lines}.{}{}",
            if kinds.has_intervals() {
                format!(
                    "Means over trials with their {} as bands, cut where they leave the frame",
                    kinds.interval()
                )
            } else {
                "Exact for this host, image and seed".to_owned()
            },
            self.knees_in_words(panel.id == "achieved"),
            unmeasured(
                points
                    .iter()
                    .flat_map(|(_, _, metric, _)| metric.source.flags(metric.modelled))
            ),
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
            let shown = scaled(
                knee.description.mean,
                knee.interval.filter(|interval| interval.low < interval.high),
                self.scale,
                self.name.clone(),
            );
            Some(json!({
                "curve": self.curve(summary), "treatment": summary.short, "knee": knee.description.mean / self.scale,
                "low": knee.interval.map(|interval| (interval.low / self.scale).max(self.domain.0)),
                "high": knee.interval.map(|interval| (interval.high / self.scale).min(self.domain.1)),
                "shown": shown.line(),
            }))
        });
        rows.collect()
    }

    /// The legend of the knee rules by treatment; with `fully`, also the reason for the failure of the objective.
    fn knees_in_words(&self, fully: bool) -> String {
        let treatments = self.context.treatments;
        let lines: Vec<String> = if fully {
            let lines = treatments
                .iter()
                .filter_map(|summary| knee_in_words(summary));
            lines.collect()
        } else {
            let knees = self.knees();
            let text = |row: &Value, field: &str| {
                row.get(field).and_then(Value::as_str).map(str::to_owned)
            };
            let line = |row| {
                Some(format!(
                    "{} at {}",
                    text(row, "treatment")?,
                    text(row, "shown")?
                ))
            };
            knees.iter().filter_map(line).collect()
        };
        if lines.is_empty() {
            return String::new();
        }
        format!(
            " Dashed rules are the knees{}: {}.",
            if treatments.iter().any(|one| one
                .metric(metric::KNEE.name)
                .is_some_and(|knee| knee.interval.is_some()))
            {
                ", shaded their intervals"
            } else {
                ""
            },
            lines.join(if fully { ". " } else { "; " })
        )
    }

    fn against_achieved(&self, metric: &str, id: &str, title: &str, log: bool) -> Option<Figure> {
        let Context {
            workload,
            treatments,
            ..
        } = self.context;
        let name = achieved(treatments).name;
        let mut points: Vec<(
            &TreatmentSummary,
            &LevelSummary,
            &MetricSummary,
            &MetricSummary,
        )> = Vec::new();
        for summary in treatments {
            for level in &summary.levels {
                let pair = level.metric(name).zip(level.metric(metric));
                points.extend(pair.map(|(x, y)| (*summary, level, x, y)));
            }
        }
        let x_axis = Axis::of(points.iter().map(|(_, _, x, _)| *x), false)?;
        let y_axis = Axis::of(points.iter().map(|(_, _, _, y)| *y), log)?;
        let rows: Vec<Value> = points
            .iter()
            .map(|(summary, level, x, y)| {
                let mut row = y_axis.row(y);
                row.extend([
                    ("x".to_owned(), json!(x.description.mean / x_axis.scale)),
                    ("xShown".to_owned(), json!(x_axis.shown(x))),
                    ("level".to_owned(), json!(level.level.value)),
                    ("phase".to_owned(), json!(level.name)),
                    ("curve".to_owned(), json!(self.curve(summary))),
                    ("treatment".to_owned(), json!(summary.short)),
                ]);
                Value::Object(row)
            })
            .collect();
        let served = || points.iter().map(|(_, _, x, _)| x.description.mean);
        let least = served().fold(f64::INFINITY, f64::min);
        let is_log = least > 0.0 && served().fold(0.0, f64::max) / least >= FAR_APART;
        let x = json!({"field": "x", "type": "quantitative", "title": format!("served, {}", x_axis.name),
                       "scale": {"type": scale_of(is_log), "zero": !is_log}, "axis": {"grid": false, "tickCount": 6}});
        let color = self.curves.color();
        let kinds: Kinds = (points.iter())
            .flat_map(|(_, _, x, y)| [x.certainty, y.certainty])
            .collect();
        let tooltip = json!([
            {"field": "treatment"}, {"field": "phase", "title": "load"}, {"field": "xShown", "title": titled("served", kinds)},
            {"field": "shown", "title": titled("mean", kinds)}, {"field": "n"}, {"field": "source"}
        ]);
        let title = format!("{workload}: {title}");
        Some(Figure::new(
            format!("{workload} {id}"),
            title,
            format!(
                "One symbol a load level, joined in the order in which the load was raised: where the curve turns, more was asked for \
                 than was served. {}{}",
                kinds.bars("Bars", ", cut where they leave the frame"),
                unmeasured(
                    points
                        .iter()
                        .flat_map(|(_, _, _, y)| y.source.flags(y.modelled))
                )
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
    scale: f64,
    name: String,
    domain: (f64, f64),
    log: bool,
}

impl Axis {
    /// Trials set the domain: the wide intervals of few trials would flatten the curves.
    fn of<'a>(metrics: impl Iterator<Item = &'a MetricSummary>, log: bool) -> Option<Self> {
        let metrics: Vec<&MetricSummary> = metrics.collect();
        let unit = metrics.first()?.unit;
        let values: Vec<f64> = metrics
            .iter()
            .filter(|metric| metric.unit == unit)
            .flat_map(|metric| metric.values.iter().map(|(_, value)| *value))
            .collect();
        let (scale, name) = common_scale(values.iter().copied(), unit);
        let highest = values.iter().copied().fold(0.0, f64::max) / scale;
        let lowest = values
            .iter()
            .copied()
            .filter(|value| !log || *value > 0.0)
            .fold(f64::INFINITY, f64::min)
            / scale;
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
        usable.then_some(Self {
            scale,
            name,
            domain,
            log,
        })
    }

    fn shown(&self, metric: &MetricSummary) -> String {
        scaled(
            metric.description.mean,
            metric.interval,
            self.scale,
            self.name.clone(),
        )
        .line()
    }

    fn row(&self, metric: &MetricSummary) -> serde_json::Map<String, Value> {
        let bound = |value: f64| (value / self.scale).clamp(self.domain.0, self.domain.1);
        let fields = [
            ("mean", json!(metric.description.mean / self.scale)),
            ("low", json!(metric.interval.map(|i| bound(i.low)))),
            ("high", json!(metric.interval.map(|i| bound(i.high)))),
            ("shown", json!(self.shown(metric))),
            ("n", json!(metric.description.n)),
            ("source", json!(metric.flags())),
        ];
        fields
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    fn encoding(&self, field: &str) -> Value {
        let (low, high) = self.domain;
        let title = if self.name.is_empty() {
            Value::Null
        } else {
            json!(self.name)
        };
        if self.log {
            json!({"field": field, "type": "quantitative", "title": title,
                   "scale": {"type": "log", "domain": [low, high], "nice": false},
                   "axis": {"values": ratio_ticks(low, high), "labelExpr": "format(datum.value, '.4~r')"}})
        } else {
            json!({"field": field, "type": "quantitative", "title": title,
                   "scale": {"domain": [low, high], "nice": false}, "axis": {"tickCount": 5}})
        }
    }
}
