//! Figures of scenarios: load levels and knees, distributions, and one trial over time.

use super::{Curves, Figure, Platforms, ZOOM, encoding, ratio_ticks, titled, zoom};
use crate::analysis::certainty::Kinds;
use crate::analysis::{
    Analysis, LevelSummary, MetricSummary, Timeline, TreatmentSummary, distinct,
};
use crate::numbers::{common_scale, scaled};
use crate::results::Stage;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use vtax_core::metric::{self, Metric};
use vtax_core::{Source, Unit};

/// Figures of the levels of one workload.
pub(super) fn levels(
    analysis: &Analysis,
    all: &Platforms,
    workload: &str,
    treatments: &[&TreatmentSummary],
) -> Vec<Figure> {
    let mut treatments = treatments.to_vec();
    treatments.retain(|summary| summary.levels.len() > 1);
    let Some(axis) = LevelAxis::of(analysis, all, &treatments) else {
        return Vec::new();
    };
    let against_level = [
        Panel {
            id: "achieved",
            title: "what was served at each load",
            metrics: vec![(achieved(&treatments), "")],
            log: false,
        },
        Panel {
            id: "latency",
            title: "latency at each load",
            metrics: vec![(metric::LATENCY_P50, "p50"), (metric::LATENCY_P99, "p99")],
            log: true,
        },
        Panel {
            id: "errors",
            title: "errors at each load",
            metrics: vec![(metric::ERRORS, "")],
            log: false,
        },
    ];
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
    let panels = against_level
        .iter()
        .filter_map(|panel| axis.panel(workload, &treatments, panel));
    let curves = against_achieved
        .iter()
        .filter_map(|(metric, id, title, log)| {
            axis.against_achieved(workload, &treatments, metric.name, id, title, *log)
        });
    panels.chain(curves).collect()
}

/// The metric that says what came of the load that was asked for.
fn achieved(treatments: &[&TreatmentSummary]) -> &'static Metric {
    let mut levels = treatments.iter().flat_map(|summary| &summary.levels);
    match levels.any(|level| level.metric(metric::THROUGHPUT.name).is_some()) {
        true => metric::THROUGHPUT,
        false => metric::RATE,
    }
}

/// Metrics of the levels that share a figure.
struct Panel {
    id: &'static str,
    title: &'static str,
    /// The metrics, each with the word that tells it apart from the others.
    metrics: Vec<(&'static Metric, &'static str)>,
    log: bool,
}

/// What the figures of a workload's levels share.
struct LevelAxis<'a> {
    analysis: &'a Analysis,
    curves: Curves,
    scale: f64,
    unit: Unit,
    name: String,
    domain: (f64, f64),
    /// Levels that are far apart: on a linear axis the low ones would lie on each other.
    is_log: bool,
}

/// From this ratio of the highest to the lowest value on, an axis is logarithmic.
const FAR_APART: f64 = 20.0;

fn scale_of(is_log: bool) -> &'static str {
    if is_log { "log" } else { "linear" }
}

impl<'a> LevelAxis<'a> {
    fn of(
        analysis: &'a Analysis,
        all: &Platforms,
        treatments: &[&TreatmentSummary],
    ) -> Option<Self> {
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
            analysis,
            curves: Curves::of(analysis, all, "", treatments.iter().copied()),
            scale,
            unit,
            name,
            domain,
            is_log,
        })
    }

    fn curve(&self, summary: &TreatmentSummary) -> String {
        self.curves.name(self.analysis, "", summary)
    }

    fn panel(
        &self,
        workload: &str,
        treatments: &[&TreatmentSummary],
        panel: &Panel,
    ) -> Option<Figure> {
        let unit = treatments
            .iter()
            .flat_map(|summary| &summary.levels)
            .find_map(|level| Some(level.metric(panel.metrics.first()?.0.name)?.unit))?;
        let mut points: Vec<(&TreatmentSummary, &LevelSummary, &MetricSummary, &str)> = Vec::new();
        for summary in treatments {
            for level in &summary.levels {
                for (declared, word) in &panel.metrics {
                    let metric = level
                        .metric(declared.name)
                        .filter(|metric| metric.unit == unit);
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
        let knees = self.knees(treatments);
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
        // Where the load is asked for in the metric's unit, what was asked for is a line too.
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
            self.knees_in_words(treatments, panel.id == "achieved"),
            flags(points.iter().map(|(_, _, metric, _)| metric.source)),
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
    fn knees(&self, treatments: &[&TreatmentSummary]) -> Vec<Value> {
        let rows = treatments.iter().filter_map(|summary| {
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

    /// Which rule is whose knee; `fully` also says what broke the objective.
    fn knees_in_words(&self, treatments: &[&TreatmentSummary], fully: bool) -> String {
        let lines: Vec<String> = if fully {
            let lines = treatments
                .iter()
                .filter_map(|summary| summary.knee_in_words());
            lines.collect()
        } else {
            let knees = self.knees(treatments);
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

    fn against_achieved(
        &self,
        workload: &str,
        treatments: &[&TreatmentSummary],
        metric: &str,
        id: &str,
        title: &str,
        log: bool,
    ) -> Option<Figure> {
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
                flags(points.iter().map(|(_, _, _, y)| y.source))
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

/// `3 of 4`, or nothing where nothing had to hold.
fn kept(level: &LevelSummary) -> String {
    match level.judged {
        0 => "–".to_owned(),
        judged => format!("{} of {judged} trials", level.kept),
    }
}

/// Says which numbers of a figure are not measured.
fn flags(sources: impl Iterator<Item = Source>) -> String {
    let flags: BTreeSet<Source> = sources
        .filter(|source| *source != Source::Measured)
        .collect();
    let words: Vec<String> = flags.iter().map(ToString::to_string).collect();
    match words.as_slice() {
        [] => String::new(),
        words => format!(" Some of these numbers are {}.", words.join(" or ")),
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
    /// Trials set the domain: intervals of few trials are so wide that they would hide the curves.
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
        // Nothing but zeros still needs an axis.
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
            ("source", json!(metric.source.to_string())),
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

/// Latency by percentile: the distributions of every treatment at one load that all had.
pub(super) fn percentiles(
    analysis: &Analysis,
    all: &Platforms,
    workload: &str,
    treatments: &[&TreatmentSummary],
) -> Vec<Figure> {
    let mut treatments = treatments.to_vec();
    treatments.retain(|summary| !summary.distributions.is_empty());
    let distributions = treatments.iter().flat_map(|summary| &summary.distributions);
    // What neighbours saw is theirs; the figure is about the target.
    let names = distributions.map(|one| one.name.as_str());
    distinct(names.filter(|name| name.starts_with("client.")))
        .into_iter()
        .filter_map(|name| percentile_curves(analysis, all, workload, &treatments, name))
        .collect()
}

fn percentile_curves(
    analysis: &Analysis,
    all: &Platforms,
    workload: &str,
    treatments: &[&TreatmentSummary],
    name: &str,
) -> Option<Figure> {
    let level = common_level(treatments, name);
    let curves = Curves::of(analysis, all, "", treatments.iter().copied());
    let mut rows = Vec::new();
    let (mut most, mut lowest, mut highest) = (1.0_f64, f64::INFINITY, 0.0_f64);
    let mut points = Vec::new();
    let mut told = Vec::new();
    for summary in treatments {
        let Some(found) = summary
            .distributions
            .iter()
            .find(|one| one.name == name && one.level.as_deref() == level)
        else {
            continue;
        };
        let values = found.histogram.len();
        if values == 0 {
            continue;
        }
        told.push(format!("{} {values}", summary.short));
        for step in 0.. {
            // Twelve points a decade of 1 / (1 − p), as long as a value lies beyond.
            let beyond = 10_f64.powf(f64::from(step) / 12.0);
            if beyond > values as f64 || step > 200 {
                break;
            }
            let at = found.histogram.value_at_quantile(1.0 - 1.0 / beyond) as f64 / 1e9;
            if at > 0.0 {
                most = most.max(beyond);
                (lowest, highest) = (lowest.min(at), highest.max(at));
                points.push((summary, beyond, at));
            }
        }
    }
    let unit = Unit::of(vtax_core::Base::Second);
    let (scale, unit) = common_scale(points.iter().map(|(_, _, at)| *at), unit);
    for (summary, beyond, at) in &points {
        rows.push(json!({"beyond": beyond, "value": at / scale, "curve": curves.name(analysis, "", summary), "treatment": summary.short,
                         "percentile": format!("{:.4} %", 100.0 * (1.0 - 1.0 / beyond)), "shown": scaled(*at, None, scale, unit.clone()).line()}));
    }
    if rows.is_empty() {
        return None;
    }
    let (low, high) = (lowest / scale * 0.85, highest / scale * 1.2);
    let ticks: Vec<f64> = (0..12)
        .map(|decade| 10_f64.powi(decade))
        .filter(|tick| *tick <= most)
        .collect();
    let metric = name.rsplit('.').next().unwrap_or(name);
    let title = format!("{workload}: {metric} by percentile");
    let at = level.map_or_else(String::new, |level| {
        format!(" at {level}, the highest load that all were seen to keep")
    });
    Some(Figure::new(
        format!("{workload} {name} percentiles"),
        title,
        format!(
            "Every value of every trial that counts{at}; each tick to the right is ten times rarer. Values: {}.",
            told.join(", ")
        ),
        json!(240),
        json!({
            "data": {"values": rows},
            "mark": {"type": "line", "strokeWidth": 1.8, "point": {"size": 14, "filled": true}},
            "encoding": {
                "x": {"field": "beyond", "type": "quantitative", "title": "percentile", "scale": {"type": "log", "domain": [1, most], "nice": false},
                      "axis": {"values": ticks, "labelExpr": "datum.value == 1 ? '0 %' : format(1 - 1 / datum.value, '.' + max(0, round(log(datum.value) / LN10) - 2) + '%')"}},
                "y": {"field": "value", "type": "quantitative", "title": unit, "scale": {"type": "log", "domain": [low, high], "nice": false},
                      "axis": {"values": ratio_ticks(low, high), "labelExpr": "format(datum.value, '.4~r')"}},
                "color": curves.color(),
                "tooltip": [{"field": "treatment"}, {"field": "percentile"}, {"field": "shown", "title": metric}]
            }
        }),
    ))
}

/// The highest level that every treatment reached, and kept wherever it was judged; else the lowest
/// that all reached. `None` where the load was steady.
fn common_level<'a>(treatments: &[&'a TreatmentSummary], name: &str) -> Option<&'a str> {
    let reached = |summary: &TreatmentSummary, level: &str| {
        let mut own = summary.distributions.iter();
        own.any(|one| one.name == name && one.level.as_deref() == Some(level))
    };
    let kept = |summary: &TreatmentSummary, name: &str| {
        let mut levels = summary.levels.iter().filter(|level| level.name == name);
        levels.all(|level| level.kept == level.judged)
    };
    let mut common: Vec<&LevelSummary> = treatments
        .first()?
        .levels
        .iter()
        .filter(|level| treatments.iter().all(|one| reached(one, &level.name)))
        .collect();
    common.sort_by(|a, b| a.level.value.total_cmp(&b.level.value));
    let best = common
        .iter()
        .rev()
        .find(|level| treatments.iter().all(|one| kept(one, &level.name)));
    best.or(common.first()).map(|level| level.name.as_str())
}

/// More points than this on one curve are drawn as means of neighbouring seconds.
const MOST_POINTS: usize = 400;

/// CPU and power over time, from one trial of each treatment.
pub(super) fn timelines(
    analysis: &Analysis,
    all: &Platforms,
    workload: &str,
    treatments: &[&TreatmentSummary],
) -> Vec<Figure> {
    let treatments: Vec<(&TreatmentSummary, &Timeline)> = treatments
        .iter()
        .copied()
        .filter_map(|summary| Some((summary, summary.timeline.as_ref()?)))
        .collect();
    let cpu = treatments
        .iter()
        .filter_map(|(summary, timeline)| cpu_over_time(workload, summary, timeline));
    cpu.chain(watts_over_time(analysis, all, workload, &treatments))
        .collect()
}

/// A series thinned by averaging, as second and value.
fn thinned(values: &[f64]) -> Vec<(usize, f64)> {
    let every = values.len().div_ceil(MOST_POINTS).max(1);
    values
        .chunks(every)
        .enumerate()
        .filter_map(|(place, part)| Some((place * every, crate::stats::mean(part)?)))
        .collect()
}

/// Bands and labels of the phases, and how the caption explains them.
fn phases(timeline: &Timeline) -> (Vec<Value>, String) {
    let Some(first) = timeline.phases.first() else {
        return (Vec::new(), String::new());
    };
    let levels = timeline.phases.iter().filter_map(|phase| phase.level);
    let (scale, unit) = match first.level {
        Some(level) => common_scale(levels.map(|level| level.value), level.unit),
        None => (1.0, String::new()),
    };
    let rows: Vec<Value> = timeline
        .phases
        .iter()
        .enumerate()
        .map(|(place, phase)| {
            json!({"start": phase.start, "end": phase.end, "middle": (phase.start + phase.end) / 2.0, "name": phase.name,
                   "odd": place % 2, "text": phase.level.map_or_else(|| phase.name.clone(), |level| label(level.value / scale))})
        })
        .collect();
    let layers = vec![
        json!({"data": {"values": rows}, "mark": {"type": "rect", "clip": true, "color": "#888"},
               "encoding": {"x": {"field": "start", "type": "quantitative"}, "x2": {"field": "end"},
                            "opacity": {"field": "odd", "type": "quantitative", "scale": {"domain": [0, 1], "range": [0.05, 0.17]}, "legend": null}}}),
        json!({"data": {"values": rows}, "mark": {"type": "text", "clip": true, "baseline": "top", "fontSize": 10, "color": "#333"},
               "encoding": {"x": {"field": "middle", "type": "quantitative"}, "y": {"value": 3}, "text": {"field": "text"}, "tooltip": {"field": "name"}}}),
    ];
    let unit = if unit.is_empty() {
        String::new()
    } else {
        format!(" in {unit}")
    };
    (
        layers,
        format!(" Shaded bands are the phases, named by the load asked for{unit}."),
    )
}

/// A level as short as it can be said: `100`, `2.5`.
fn label(level: f64) -> String {
    ((level * 1000.0).round() / 1000.0).to_string()
}

pub(super) fn seconds() -> Value {
    json!({"field": "second", "type": "quantitative", "title": "seconds into the window", "scale": {"nice": false}, "axis": {"grid": false}})
}

/// Neighbours and their clients, told apart from each other and from every stage.
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
    let highest = top.iter().copied().fold(0.0, f64::max);
    let (mut drawn, explained) = phases(timeline);
    let color = encoding("who", &names, &colors, true);
    let place = drawn.len().min(1);
    drawn.insert(
        place,
        json!({
            "params": [zoom()],
            "data": {"values": rows},
            "mark": {"type": "area", "opacity": 0.9, "interpolate": "step-after", "clip": true},
            "encoding": {
                "x": seconds(),
                "y": {"field": "cores", "type": "quantitative", "stack": "zero", "title": "cores busy",
                      "scale": {"domain": [0, highest * 1.15], "nice": false}, "axis": {"tickCount": 4}},
                "color": color, "order": {"field": "place", "type": "quantitative"},
                "tooltip": [{"field": "who"}, {"field": "second"}, {"field": "cores", "title": "cores busy"}]
            }
        }),
    );
    let title = format!(
        "{workload}, {}: CPU by actor and stage over time",
        summary.short
    );
    Some(Figure::new(
        format!("{workload} {} cpu over time", summary.short),
        title,
        format!(
            "Trial {:04}, stacked by who spent it.{explained}{} {ZOOM}",
            timeline.trial,
            flags(timeline.cpu.iter().map(|layer| layer.source))
        ),
        json!(190),
        json!({"layer": drawn}),
    ))
}

fn watts_over_time(
    analysis: &Analysis,
    all: &Platforms,
    workload: &str,
    treatments: &[(&TreatmentSummary, &Timeline)],
) -> Option<Figure> {
    let own: Vec<_> = treatments
        .iter()
        .filter_map(|(summary, timeline)| Some((*summary, *timeline, timeline.watts.as_ref()?)))
        .collect();
    let (_, first, _) = own.first()?;
    let curves = Curves::of(analysis, all, "", own.iter().map(|(summary, ..)| *summary));
    let mut rows = Vec::new();
    let mut highest = 0.0_f64;
    for (summary, timeline, (watts, _)) in &own {
        for (second, watts) in thinned(watts) {
            highest = highest.max(watts);
            rows.push(json!({"second": second, "watts": (watts * 1e3).round() / 1e3, "treatment": summary.short,
                             "curve": curves.name(analysis, "", summary), "trial": format!("{:04}", timeline.trial)}));
        }
    }
    if rows.is_empty() {
        return None;
    }
    let (mut drawn, explained) = phases(first);
    let place = drawn.len().min(1);
    drawn.insert(
        place,
        json!({
            "params": [zoom()],
            "data": {"values": rows},
            "mark": {"type": "line", "strokeWidth": 1.3, "interpolate": "step-after", "clip": true},
            "encoding": {
                "x": seconds(),
                "y": {"field": "watts", "type": "quantitative", "title": "W", "scale": {"domain": [0, highest * 1.15], "nice": false}, "axis": {"tickCount": 4}},
                "color": curves.color(),
                "tooltip": [{"field": "treatment"}, {"field": "trial"}, {"field": "second"}, {"field": "watts", "title": "W"}]
            }
        }),
    );
    let title = format!("{workload}: power of the host over time");
    Some(Figure::new(
        format!("{workload} watts over time"),
        title,
        format!(
            "One trial of each treatment, the first that counts.{explained}{} {ZOOM}",
            flags(own.iter().map(|(_, _, (_, source))| *source))
        ),
        json!(190),
        json!({"layer": drawn}),
    ))
}
