//! Figures as Vega-Lite specifications, which anyone can restyle.

mod scenario;

use crate::analysis::certainty::{Certainty, Kinds};
use crate::analysis::{
    Analysis, Comparison, MetricSummary, TreatmentSummary, TrialRow, distinct, headline_metrics,
};
use crate::numbers::{Shown, common_scale, ratio, scaled};
use crate::platforms::{Mark, PLAIN, mark_of_curve, marks};
use crate::results::{Stage, Treatment};
use crate::stats::{Interval, Verdict};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use vtax_core::Source;

/// One figure.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Its file's name without ending, and its anchor in the report.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// How to read it.
    pub caption: String,
    /// The Vega-Lite specification; its width is that of the container.
    pub spec: Value,
}

/// The platforms of an analysis, and how each is drawn.
pub(crate) struct Platforms {
    /// In order of appearance.
    names: Vec<String>,
    marks: HashMap<String, Mark>,
}

impl Platforms {
    /// The first of a kind looks like the kind.
    pub(crate) fn of(analysis: &Analysis) -> Self {
        let treatments = analysis.treatments.iter().map(|of| &of.treatment);
        let mut met = HashSet::new();
        let firsts: Vec<&Treatment> = treatments
            .filter(|treatment| met.insert(treatment.platform.as_str()))
            .collect();
        let kinds: Vec<&str> = firsts.iter().map(|treatment| treatment.kind()).collect();
        let names: Vec<String> = (firsts.iter())
            .map(|treatment| treatment.platform.clone())
            .collect();
        let marks = names.iter().cloned().zip(marks(&kinds)).collect();
        Self { names, marks }
    }

    /// The colour of a platform.
    pub(crate) fn color(&self, platform: &str) -> &'static str {
        self.mark(platform).0
    }

    fn mark(&self, platform: &str) -> Mark {
        self.marks.get(platform).copied().unwrap_or(PLAIN)
    }
}

/// A page with more figures than this takes minutes to draw, and nobody looks at them all: the tables
/// have the rest.
const MOST_FIGURES: usize = 300;

/// Every figure of a report, the most telling first.
pub fn figures(analysis: &Analysis) -> Vec<Figure> {
    let all = Platforms::of(analysis);
    let workloads = analysis.by_workload();
    let trials = trials_by_label(analysis);
    let of_metrics = workloads.iter().flat_map(|(workload, treatments)| {
        let metrics = headline_metrics(treatments).into_iter();
        metrics.flat_map(|metric| of_metric(analysis, &all, workload, treatments, metric))
    });
    let of_levels = workloads.iter().flat_map(|(workload, treatments)| {
        let levels = scenario::levels(analysis, &all, workload, treatments);
        let percentiles = scenario::percentiles(analysis, &all, workload, treatments);
        levels.into_iter().chain(percentiles)
    });
    let of_stages = workloads
        .iter()
        .filter_map(|(workload, treatments)| stages(workload, treatments));
    let of_time = workloads.iter().flat_map(|(workload, treatments)| {
        let timelines = scenario::timelines(analysis, &all, workload, treatments);
        let rates = over_time(analysis, &all, workload, treatments, &trials);
        timelines.into_iter().chain(rates)
    });
    let mut figures: Vec<Figure> = forest(analysis, &all)
        .into_iter()
        .chain(of_metrics)
        .chain(of_levels)
        .chain(of_stages)
        .chain(of_time)
        .take(MOST_FIGURES)
        .collect();
    for (number, figure) in figures.iter_mut().enumerate() {
        figure.id = format!("{:02}-{}", number + 1, file_name(&figure.id));
    }
    figures
}

/// The trials that count, by the label of their treatment.
fn trials_by_label(analysis: &Analysis) -> HashMap<&str, Vec<&TrialRow>> {
    let mut found: HashMap<&str, Vec<&TrialRow>> = HashMap::new();
    let count = |trial: &&TrialRow| trial.failed.is_none() && trial.suspect.is_empty();
    for trial in analysis.trials.iter().filter(count) {
        let label = trial.treatment.as_str();
        found.entry(label).or_default().push(trial);
    }
    found
}

/// One metric of one workload: against each factor that becomes an axis, or without one.
fn of_metric(
    analysis: &Analysis,
    all: &Platforms,
    workload: &str,
    treatments: &[&TreatmentSummary],
    metric: &MetricSummary,
) -> Vec<Figure> {
    let mut figures: Vec<Figure> = swept(analysis, treatments)
        .into_iter()
        .filter_map(|factor| sweep(analysis, all, workload, treatments, metric, factor))
        .collect();
    if figures.is_empty() {
        figures.extend(dots(all, workload, treatments, metric));
    }
    figures
}

/// The factors that become an axis: numbers where there are any, since words then tell curves apart.
fn swept<'a>(analysis: &'a Analysis, treatments: &[&TreatmentSummary]) -> Vec<&'a String> {
    let varied = |factor: &String| {
        let mut levels = treatments
            .iter()
            .filter_map(|summary| summary.treatment.factors.get(factor));
        let first = levels.next();
        levels.any(|level| Some(level) != first)
    };
    let factors: Vec<&String> = analysis
        .factors
        .keys()
        .filter(|factor| varied(factor))
        .collect();
    let numeric: Vec<&String> = factors
        .iter()
        .copied()
        .filter(|factor| numbers(analysis, factor).is_some())
        .collect();
    if numeric.is_empty() { factors } else { numeric }
}

/// The levels of a factor, if all of them are numbers.
fn numbers(analysis: &Analysis, factor: &str) -> Option<Vec<f64>> {
    let levels = analysis.factors.get(factor)?;
    levels
        .iter()
        .map(|level| level.parse().ok().filter(|level: &f64| level.is_finite()))
        .collect()
}

fn file_name(text: &str) -> String {
    let mut name = text.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    name.truncate(60);
    name.to_ascii_lowercase()
}

impl Figure {
    /// A figure of `content`, which is a Vega-Lite specification but for what all figures share;
    /// `height` is a number or a step.
    pub fn new(
        id: impl Into<String>,
        title: impl Into<String>,
        caption: impl Into<String>,
        height: Value,
        content: Value,
    ) -> Self {
        let title = title.into();
        Self {
            id: id.into(),
            spec: specification(&title, height, content),
            title,
            caption: caption.into(),
        }
    }
}

fn specification(title: &str, height: Value, content: Value) -> Value {
    let spec = json!({
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": {"text": title, "anchor": "start", "frame": "group"},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": null,
        "config": {
            "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif",
            "view": {"stroke": null},
            "title": {"fontSize": 13, "fontWeight": 600, "offset": 10, "color": "#333"},
            "axis": {
                "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "labelColor": "#444", "titleColor": "#444",
                "gridColor": "#ddd", "domainColor": "#999", "tickColor": "#999", "labelLimit": 170, "titlePadding": 8
            },
            "axisY": {"domain": false, "ticks": false, "labelPadding": 8},
            "legend": {
                "orient": "bottom", "title": null, "labelFontSize": 11, "labelColor": "#444", "symbolSize": 90, "symbolOpacity": 1, "columns": 3
            }
        }
    });
    extended(spec, content)
}

/// The colour of each of the `shown` platforms, the same in every figure.
fn color(all: &Platforms, shown: &[String], legend: bool) -> Value {
    by_platform(all, shown, legend, |(color, _)| color)
}

/// The symbol of each of the `shown` platforms.
fn shape(all: &Platforms, shown: &[String], legend: bool) -> Value {
    by_platform(all, shown, legend, |(_, shape)| shape)
}

fn by_platform(
    all: &Platforms,
    shown: &[String],
    legend: bool,
    of: fn(Mark) -> &'static str,
) -> Value {
    let range: Vec<&str> = shown
        .iter()
        .map(|platform| of(all.mark(platform)))
        .collect();
    encoding("platform", shown, &range, legend)
}

/// Each name of a field has its colour or symbol. The legend has as many columns as fit.
fn encoding<T: AsRef<str> + serde::Serialize>(
    field: &str,
    names: &[T],
    range: &[&str],
    legend: bool,
) -> Value {
    let longest = names.iter().map(|name| name.as_ref().chars().count()).max();
    // Roughly what a letter of the legend and its symbol take, in pixels.
    let column = 7 * longest.unwrap_or(0) + 30;
    let legend = legend.then(|| {
        json!({"columns": {"expr": format!("max(1, floor(width / {column}))")}, "labelLimit": {"expr": "max(140, width - 20)"}})
    });
    json!({"field": field, "type": "nominal", "scale": {"domain": names, "range": range}, "sort": names, "legend": legend})
}

/// What is said behind a number: that it is exact, and where it comes from.
fn flags(certainty: Certainty, source: Source) -> String {
    let exact = certainty.is_exact().then(|| "exact".to_owned());
    let source = (source != Source::Measured).then(|| source.to_string());
    let flags: Vec<String> = exact.into_iter().chain(source).collect();
    if flags.is_empty() {
        String::new()
    } else {
        format!(" {}", flags.join(", "))
    }
}

/// The title of a column of `what`, with its interval where there is one.
fn titled(what: &str, kinds: Kinds) -> String {
    let interval = if kinds.has_intervals() {
        " [95 % CI]"
    } else {
        ""
    };
    format!("{what}{interval}")
}

/// How to read the figure of taxes.
fn caption_of_taxes(kinds: Kinds) -> String {
    let bars = kinds.bars("bars", "");
    if !kinds.has_intervals() {
        return format!(
            "Ratios to the baseline. {bars} On the dashed line at 1 both are the same."
        );
    }
    format!(
        "Geometric mean of the ratios of trials of the same block; {bars} A bar that crosses the dashed line at 1 shows no difference."
    )
}

/// Ticks of a logarithmic axis from `low` to `high`, few enough that their labels never touch:
/// 1, 2, 5 of each decade, fewer where there are many decades, more where there is less than one.
fn ratio_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (high / low).log10();
    let steps: &[f64] = match decades {
        d if d < 0.6 => &[
            1.0, 1.1, 1.2, 1.4, 1.6, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0,
        ],
        d if d < 4.0 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let first = low.log10().floor() as i32;
    let last = high.log10().ceil() as i32;
    (first..=last)
        .flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)))
        .filter(|tick| (low..=high).contains(tick))
        .collect()
}

/// More comparisons than this are not drawn beside each other where curves show them.
const MOST_ROWS: usize = 60;

/// The tax of every headline metric: ratio and interval on one logarithmic axis.
fn forest(analysis: &Analysis, all: &Platforms) -> Option<Figure> {
    let shown: Vec<&Comparison> = analysis
        .comparisons
        .iter()
        .filter(|comparison| comparison.headline && comparison.ratio.is_some())
        .collect();
    let curves = || {
        let mut factors = analysis.factors.keys();
        factors.any(|factor| numbers(analysis, factor).is_some())
    };
    if shown.len() > MOST_ROWS && curves() {
        return None;
    }
    let labels = analysis.by_label();
    let named = distinct(shown.iter().map(|comparison| comparison.platform.clone()));
    let offsets: Vec<&str> = std::iter::once(" ")
        .chain(named.iter().map(String::as_str))
        .collect();
    let mut values = Vec::new();
    let mut rows: Vec<String> = Vec::new();
    let mut known: HashSet<String> = HashSet::new();
    for comparison in &shown {
        let interval = comparison.tax.and_then(|tax| tax.interval);
        let summary = labels.get(comparison.treatment.as_str())?;
        // The label that remains when platform is shown by colour: workload, metric, levels.
        let levels = summary
            .short
            .strip_prefix(&summary.treatment.platform)
            .unwrap_or(&summary.short);
        // What tells rows apart comes first: a narrow page cuts their ends.
        let row = format!("{}{levels} · {}", comparison.workload, comparison.title);
        if known.insert(row.clone()) {
            rows.push(row.clone());
            values.push(json!({"row": row, "offset": " ", "label": row}));
        }
        values.push(json!({
            "row": row,
            "offset": comparison.platform,
            "platform": comparison.platform,
            "treatment": comparison.treatment,
            "baseline": comparison.baseline,
            "ratio": comparison.ratio,
            "low": interval.map(|interval| interval.low),
            "high": interval.map(|interval| interval.high),
            "text": format!("{}{}", ratio(comparison.ratio?, interval).value, flags(comparison.certainty, comparison.source)),
            "interval": comparison.ratio_in_words(),
            "evidence": match comparison.tax {
                Some(tax) => format!("n = {}, p = {:.3}", comparison.repetitions()?, tax.p),
                None => format!("n = {}", comparison.repetitions()?),
            },
            "verdict": comparison.verdict.words(),
            "source": comparison.source.to_string(),
            "claimed": comparison.verdict == Verdict::Different,
        }));
    }
    if rows.is_empty() {
        return None;
    }
    let spans: Vec<f64> = shown
        .iter()
        .flat_map(|comparison| {
            let interval = comparison.tax.and_then(|tax| tax.interval);
            let ends = interval.map(|interval| [interval.low, interval.high]);
            comparison
                .ratio
                .into_iter()
                .chain(ends.into_iter().flatten())
        })
        .filter(|value| value.is_finite() && *value > 0.0)
        .collect();
    let kinds: Kinds = shown
        .iter()
        .map(|comparison| comparison.certainty)
        .collect();
    // Room to the right for the printed ratio, and never so narrow that noise looks like news.
    let low = spans.iter().copied().fold(0.8, f64::min) * 0.93;
    let high = spans.iter().copied().fold(1.25, f64::max) * if kinds.exact { 3.0 } else { 1.6 };
    let y = json!({"field": "row", "type": "nominal", "sort": rows, "axis": null, "scale": {"paddingInner": 0.2}});
    let offset = json!({"field": "offset", "type": "nominal", "sort": offsets, "scale": {"domain": offsets}});
    let x = |field: &str| {
        json!({"field": field, "type": "quantitative", "scale": {"type": "log", "domain": [low, high], "nice": false},
               "title": "ratio to the baseline (logarithmic)", "axis": {"values": ratio_ticks(low, high), "labelExpr": "format(datum.value, '.4~r')"}})
    };
    let tooltip = json!([
        {"field": "treatment", "title": "treatment"}, {"field": "baseline", "title": "against"},
        {"field": "interval", "title": titled("ratio", kinds)}, {"field": "evidence", "title": "evidence"},
        {"field": "verdict", "title": "verdict"}, {"field": "source", "title": "source"}
    ]);
    let title = "The tax of each platform over its baseline";
    Some(Figure::new(
        "tax",
        title,
        caption_of_taxes(kinds),
        json!({"step": 20}),
        json!({
            "data": {"values": values},
            "layer": [
                {"data": {"values": [{"one": 1}]}, "mark": {"type": "rule", "strokeDash": [3, 3], "color": "#888"},
                 "encoding": {"x": {"datum": 1}}},
                {"transform": [{"filter": "isValid(datum.label)"}],
                 "mark": {"type": "text", "align": "left", "baseline": "middle", "fontSize": 11.5, "color": "#333", "limit": {"expr": "width - 8"}},
                 "encoding": {"y": y, "yOffset": offset, "x": {"value": 0}, "text": {"field": "label"}}},
                {"transform": [{"filter": "isValid(datum.low)"}], "mark": {"type": "rule", "strokeWidth": 2},
                 "encoding": {"y": y, "yOffset": offset, "x": x("low"), "x2": {"field": "high"},
                              "color": color(all, &named, true), "tooltip": tooltip}},
                {"transform": [{"filter": "isValid(datum.ratio)"}], "mark": {"type": "point", "filled": true, "size": 85, "opacity": 1},
                 "encoding": {"y": y, "yOffset": offset, "x": x("ratio"), "color": color(all, &named, true),
                              "shape": shape(all, &named, true), "tooltip": tooltip}},
                {"transform": [{"filter": "isValid(datum.ratio)"}, {"calculate": "isValid(datum.high) ? datum.high : datum.ratio", "as": "end"}],
                 "mark": {"type": "text", "align": "left", "baseline": "middle", "dx": 8, "fontSize": 11, "color": "#333"},
                 "encoding": {"y": y, "yOffset": offset, "x": x("end"), "text": {"field": "text"}}}
            ]
        }),
    ))
}

/// One metric of the treatments that have it, on one scale.
struct Values<'a> {
    own: Vec<(&'a TreatmentSummary, &'a MetricSummary)>,
    scale: f64,
    unit: String,
}

impl<'a> Values<'a> {
    fn of(treatments: &[&'a TreatmentSummary], metric: &MetricSummary) -> Self {
        let own: Vec<(&TreatmentSummary, &MetricSummary)> = treatments
            .iter()
            .filter_map(|summary| {
                let own = summary.metric(&metric.name);
                Some((*summary, own.filter(|own| own.unit == metric.unit)?))
            })
            .collect();
        let (scale, unit) =
            common_scale(own.iter().map(|(_, own)| own.description.max), metric.unit);
        Self { own, scale, unit }
    }

    fn kinds(&self) -> Kinds {
        self.own.iter().map(|(_, own)| own.certainty).collect()
    }

    fn shown(&self, own: &MetricSummary) -> Shown {
        scaled(
            own.description.mean,
            own.interval,
            self.scale,
            self.unit.clone(),
        )
    }

    /// A row for each mean, and one for each trial, with what `more` says of the treatment.
    fn rows(&self, more: impl Fn(&TreatmentSummary) -> Value) -> (Vec<Value>, Vec<Value>) {
        let scale = self.scale;
        let (mut means, mut trials) = (Vec::new(), Vec::new());
        for (summary, own) in &self.own {
            let bound = |of: fn(&Interval) -> f64| own.interval.as_ref().map(|i| of(i) / scale);
            let mean = json!({
                "treatment": summary.short, "mean": own.description.mean / scale,
                "low": bound(|i| i.low), "high": bound(|i| i.high),
                "shown": self.shown(own).line(), "n": own.description.n, "source": own.source.to_string(),
            });
            let common = more(summary);
            means.push(extended(mean, common.clone()));
            trials.extend(own.values.iter().map(|(index, value)| {
                let shown = scaled(*value, None, scale, self.unit.clone()).line();
                let trial = json!({"treatment": summary.short, "value": value / scale,
                                   "trial": format!("{index:04}"), "shown": shown});
                extended(trial, common.clone())
            }));
        }
        (means, trials)
    }

    /// From 0 or below to the highest trial: trials set the scale, since intervals of few are so wide
    /// that they would hide the rest.
    fn span(&self) -> (f64, f64) {
        let values = self.own.iter().flat_map(|(_, own)| &own.values);
        values.fold((0.0_f64, 0.0_f64), |(low, high), (_, value)| {
            (low.min(value / self.scale), high.max(value / self.scale))
        })
    }
}

/// An object with the fields of another.
fn extended(mut row: Value, more: Value) -> Value {
    if let (Some(row), Value::Object(more)) = (row.as_object_mut(), more) {
        row.extend(more);
    }
    row
}

/// How to read a figure of means and trials.
fn caption_of_trials(metric: &MetricSummary, kinds: Kinds) -> String {
    let direction = match metric.better {
        crate::results::Better::Lower => "Less is better",
        crate::results::Better::Higher => "More is better",
        crate::results::Better::Neither => "Neither direction is better",
    };
    let bars = kinds.bars("bars", ", cut where they leave the frame");
    if kinds.has_intervals() {
        format!("{direction}. Ticks are single trials; symbols are means; {bars}")
    } else {
        format!("{direction}. {bars}")
    }
}

/// One metric of one workload: every trial, the mean and its interval.
fn dots(
    all: &Platforms,
    workload: &str,
    treatments: &[&TreatmentSummary],
    metric: &MetricSummary,
) -> Option<Figure> {
    let values = Values::of(treatments, metric);
    let Values { own, unit, .. } = &values;
    let (mut means, trials) =
        values.rows(|summary| json!({"platform": summary.treatment.platform}));
    for (mean, (_, own)) in means.iter_mut().zip(own) {
        let text = format!(
            "{}{}",
            values.shown(own).value,
            flags(own.certainty, own.source)
        );
        *mean = extended(mean.take(), json!({"text": text}));
    }
    if means.is_empty() {
        return None;
    }
    let names = &all.names;
    let (color, shape) = (color(all, names, false), shape(all, names, false));
    let title = format!("{workload}: {}", metric.title);
    let order: Vec<&String> = own.iter().map(|(summary, _)| &summary.short).collect();
    let y = json!({"field": "treatment", "type": "nominal", "sort": order, "title": null});
    let (low, high) = values.span();
    let domain = if high > low {
        [1.4 * low, 1.4 * high]
    } else {
        [0.0, 1.0]
    };
    let x = |field: &str| json!({"field": field, "type": "quantitative", "title": unit, "scale": {"domain": domain, "nice": true}, "axis": {"tickCount": 5}});
    let tooltip = json!([
        {"field": "treatment"}, {"field": "shown", "title": titled("mean", values.kinds())}, {"field": "n"}, {"field": "source"}
    ]);
    Some(Figure::new(
        format!("{workload} {}", metric.name),
        title,
        caption_of_trials(metric, values.kinds()),
        json!({"step": 40}),
        json!({
            "layer": [
                {"data": {"values": trials}, "mark": {"type": "tick", "thickness": 1.5, "size": 15, "opacity": 0.55, "yOffset": 0},
                 "encoding": {"y": y, "x": x("value"), "color": color,
                              "tooltip": [{"field": "treatment"}, {"field": "trial"}, {"field": "shown", "title": "value"}]}},
                {"data": {"values": means}, "transform": [{"filter": "isValid(datum.low)"}], "mark": {"type": "rule", "strokeWidth": 2, "clip": true},
                 "encoding": {"y": y, "x": x("low"), "x2": {"field": "high"}, "color": color, "tooltip": tooltip}},
                {"data": {"values": means}, "mark": {"type": "point", "filled": true, "size": 95, "opacity": 1},
                 "encoding": {"y": y, "x": x("mean"), "color": color, "shape": shape, "tooltip": tooltip}},
                {"data": {"values": means}, "mark": {"type": "text", "dy": -14, "fontSize": 11, "color": "#333"},
                 "encoding": {"y": y, "x": x("mean"), "text": {"field": "text"}}}
            ]
        }),
    ))
}

/// The curves of a sweep: treatments that differ in the swept factor alone lie on one.
struct Curves {
    names: Vec<String>,
    marks: Vec<Mark>,
    one_platform: bool,
}

impl Curves {
    fn of<'a>(
        analysis: &Analysis,
        all: &Platforms,
        factor: &str,
        treatments: impl Iterator<Item = &'a TreatmentSummary> + Clone,
    ) -> Self {
        let shown = distinct(treatments.clone().map(|of| &of.treatment.platform));
        let mut curves = Self {
            names: Vec::new(),
            marks: Vec::new(),
            one_platform: shown.len() == 1,
        };
        curves.names = distinct(treatments.map(|of| curves.name(analysis, factor, of)));
        curves.marks = if curves.names.len() == shown.len() {
            shown.iter().map(|name| all.mark(name)).collect()
        } else {
            (0..curves.names.len()).map(mark_of_curve).collect()
        };
        curves
    }

    /// What a treatment's curve is called: its platform, and the levels of the other factors.
    fn name(&self, analysis: &Analysis, factor: &str, summary: &TreatmentSummary) -> String {
        let treatment = &summary.treatment;
        let others = treatment
            .factors
            .iter()
            .filter(|(name, _)| *name != factor && analysis.factors.contains_key(*name))
            .map(|(name, level)| format!("{name} = {level}"));
        let platform = Some(treatment.platform.clone());
        let mut parts: Vec<String> = others.collect();
        if !self.one_platform || parts.is_empty() {
            parts.splice(0..0, platform);
        }
        parts.join(", ")
    }

    fn color(&self) -> Value {
        let colors: Vec<&str> = self.marks.iter().map(|(color, _)| *color).collect();
        encoding("curve", &self.names, &colors, true)
    }

    fn shape(&self) -> Value {
        let shapes: Vec<&str> = self.marks.iter().map(|(_, shape)| *shape).collect();
        encoding("curve", &self.names, &shapes, true)
    }
}

/// One metric against the levels of one factor.
fn sweep(
    analysis: &Analysis,
    all: &Platforms,
    workload: &str,
    treatments: &[&TreatmentSummary],
    metric: &MetricSummary,
    factor: &str,
) -> Option<Figure> {
    let levels = analysis.factors.get(factor)?;
    let numeric = numbers(analysis, factor);
    let swept = |summary: &&&TreatmentSummary| summary.treatment.factors.contains_key(factor);
    let treatments: Vec<&TreatmentSummary> = treatments.iter().filter(swept).copied().collect();
    let values = Values::of(&treatments, metric);
    let Values { own, unit, .. } = &values;
    let level = |summary: &TreatmentSummary| summary.treatment.factors.get(factor).cloned();
    if distinct(own.iter().map(|(summary, _)| level(summary))).len() < 2 {
        return None;
    }
    let shown = own.iter().map(|(summary, _)| *summary);
    let curves = Curves::of(analysis, all, factor, shown);
    let (means, trials) = values.rows(|summary| {
        let level = level(summary).unwrap_or_default();
        let level = match &numeric {
            Some(_) => json!(level.parse::<f64>().ok()),
            None => json!(level),
        };
        json!({"level": level, "curve": curves.name(analysis, factor, summary)})
    });
    let title = format!("{workload}: {} against {factor}", metric.title);
    let x = if numeric.is_some() {
        json!({"field": "level", "type": "quantitative", "title": factor, "scale": {"zero": false, "padding": 18},
               "axis": {"values": numeric, "labelExpr": "format(datum.value, '.12~r')"}})
    } else {
        json!({"field": "level", "type": "ordinal", "sort": levels, "title": factor, "axis": {"labelAngle": 0}})
    };
    let (low, high) = values.span();
    let domain = [1.15 * low, 1.15 * high];
    let y = |field: &str| {
        json!({"field": field, "type": "quantitative", "title": unit,
               "scale": if high > low { json!({"domain": domain}) } else { json!({"zero": true}) }})
    };
    let tooltip = json!([
        {"field": "treatment"}, {"field": "shown", "title": titled("mean", values.kinds())}, {"field": "n"}, {"field": "source"}
    ]);
    let (color, shape) = (curves.color(), curves.shape());
    Some(Figure::new(
        format!("{workload} {} {factor}", metric.name),
        title,
        caption_of_trials(metric, values.kinds()),
        json!(240),
        json!({
            "data": {"values": means},
            "layer": [
                {"mark": {"type": "line", "strokeWidth": 1.5},
                 "encoding": {"x": x, "y": y("mean"), "color": color}},
                {"data": {"values": trials}, "mark": {"type": "tick", "thickness": 1.5, "size": 12, "opacity": 0.5, "orient": "horizontal"},
                 "encoding": {"x": x, "y": y("value"), "color": color,
                              "tooltip": [{"field": "treatment"}, {"field": "trial"}, {"field": "shown", "title": "value"}]}},
                {"transform": [{"filter": "isValid(datum.low)"}], "mark": {"type": "rule", "strokeWidth": 2, "clip": true},
                 "encoding": {"x": x, "y": y("low"), "y2": {"field": "high"}, "color": color, "tooltip": tooltip}},
                {"mark": {"type": "point", "filled": true, "size": 80, "opacity": 1},
                 "encoding": {"x": x, "y": y("mean"), "color": color, "shape": shape, "tooltip": tooltip}}
            ]
        }),
    ))
}

/// Where the CPU time went, by stage.
fn stages(workload: &str, treatments: &[&TreatmentSummary]) -> Option<Figure> {
    let mut values = Vec::new();
    let mut order: Vec<&str> = Vec::new();
    let mut shown: Vec<Stage> = Vec::new();
    let mut kinds = Vec::new();
    for summary in treatments {
        for (place, stage) in Stage::ALL.into_iter().enumerate() {
            let Some(metric) = summary.metric(&stage.metric()) else {
                continue;
            };
            let estimate = scaled(metric.description.mean, metric.interval, 1.0, String::new());
            values.push(json!({"treatment": summary.short, "stage": stage.words(), "mean": metric.description.mean,
                               "shown": estimate.line(), "place": place, "source": metric.source.to_string()}));
            shown.push(stage);
            kinds.push(metric.certainty);
            order.push(&summary.short);
        }
    }
    if values.is_empty() {
        return None;
    }
    let order = distinct(order);
    let (names, range) = stage_colors(&shown);
    let shown = titled("mean cores", kinds.into_iter().collect());
    let title = format!("{workload}: where the CPU time goes");
    Some(Figure::new(
        format!("{workload} cpu stages"),
        title,
        "Mean over the trials that count, stacked by who spent it.",
        json!({"step": 30}),
        json!({
            "data": {"values": values},
            "mark": {"type": "bar", "size": 18},
            "encoding": {
                "y": {"field": "treatment", "type": "nominal", "sort": order, "title": null},
                "x": {"field": "mean", "type": "quantitative", "stack": "zero", "title": "mean cores busy", "axis": {"tickCount": 5}},
                "color": encoding("stage", &names, &range, true),
                "order": {"field": "place", "type": "quantitative"},
                "tooltip": [{"field": "treatment"}, {"field": "stage"}, {"field": "shown", "title": shown}, {"field": "source"}]
            }
        }),
    ))
}

/// The words and the colours of the stages that are `shown`, in the order of [`Stage::ALL`].
fn stage_colors(shown: &[Stage]) -> (Vec<&'static str>, Vec<&'static str>) {
    Stage::ALL
        .into_iter()
        .filter(|stage| shown.contains(stage))
        .map(|stage| (stage.words(), stage.color()))
        .unzip()
}

/// How a reader moves along a time axis; a part of the captions.
const ZOOM: &str = "Drag along the time axis to move, zoom with Ctrl and the wheel or a pinch, double click to reset.";

/// A time axis that can be moved and zoomed. The bare wheel goes on scrolling the page.
fn zoom() -> Value {
    json!({"name": "zoom", "bind": "scales",
           "select": {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.ctrlKey]", "clear": "dblclick"}})
}

/// The rates within the measured window, one line a trial.
fn over_time(
    analysis: &Analysis,
    all: &Platforms,
    workload: &str,
    treatments: &[&TreatmentSummary],
    trials: &HashMap<&str, Vec<&TrialRow>>,
) -> Vec<Figure> {
    const MOST_POINTS: usize = 6000;
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
        let (scale, unit) = common_scale(
            lines
                .iter()
                .flat_map(|(_, _, series)| series.rates.iter().copied()),
            first.unit,
        );
        let unit = if name == "CPU" {
            "cores busy".to_owned()
        } else {
            unit
        };
        // In the plan's order, whatever the order of the trials was.
        let shorts: HashSet<&str> = lines.iter().map(|(own, ..)| own.short.as_str()).collect();
        let drawn = treatments
            .iter()
            .copied()
            .filter(|one| shorts.contains(one.short.as_str()));
        let curves = Curves::of(analysis, all, "", drawn);
        let mut values = Vec::new();
        for (summary, index, series) in &lines {
            for (second, rate) in series.rates.iter().enumerate().step_by(every) {
                values.push(json!({"second": second, "rate": rate / scale, "trial": format!("{index:04}"),
                                   "curve": curves.name(analysis, "", summary), "treatment": summary.short}));
            }
        }
        let what = if name == "CPU" {
            "CPU of the target"
        } else {
            name
        };
        let title = format!("{workload}: {what} over the measured window");
        figures.push(Figure::new(format!("{workload} {name} over time"), title, format!(
                "One line a trial. A level line is a steady state; the classes are in the table of treatments. {ZOOM}"
            ), json!(170), json!({
                "data": {"values": values},
                "params": [zoom()],
                "mark": {"type": "line", "strokeWidth": 1.2, "opacity": 0.75, "interpolate": "step-after", "clip": true},
                "encoding": {
                    "x": scenario::seconds(),
                    "y": {"field": "rate", "type": "quantitative", "title": unit, "scale": {"zero": true}, "axis": {"tickCount": 4}},
                    "color": curves.color(),
                    "detail": {"field": "trial"},
                    "tooltip": [{"field": "treatment"}, {"field": "trial"}, {"field": "second"}, {"field": "rate", "format": ".3~g"}]
                }
            })));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_ticks_are_few_and_keep_their_distance() {
        for (low, high) in [(0.74, 2.0), (0.03, 65.0), (0.9, 1.3), (1e-6, 1e7)] {
            let ticks = ratio_ticks(low, high);
            assert!((2..=16).contains(&ticks.len()), "{low}..{high}: {ticks:?}");
            let room = (high / low).log10() / 28.0;
            for pair in ticks.windows(2) {
                assert!(
                    (pair[1] / pair[0]).log10() > room,
                    "{low}..{high}: {ticks:?}"
                );
            }
        }
    }
}
