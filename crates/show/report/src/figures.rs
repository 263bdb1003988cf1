// SPDX-License-Identifier: Apache-2.0
//! Figures as Vega-Lite specifications, which other tools can restyle.

mod history;
mod levels;
mod looks;
mod metrics;
mod percentiles;
mod shifts;
mod taxes;
mod timelines;

pub use history::of_history;

use crate::analysis::certainty::{Certainty, Kinds};
use crate::analysis::{
    Analysis, MetricSummary, TreatmentSummary, TrialRow, distinct, headline_metrics,
};
use crate::platforms::{Mark, PLAIN, marks};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap, HashSet};
use vtax_core::{Source, Unit};
use vtax_results::numbers::{Shown, common_scale, scaled};
use vtax_results::stats::Interval;
use vtax_results::{Stage, Treatment};

/// One figure.
#[derive(Debug, Clone)]
pub struct Figure {
    /// File name without extension, and anchor in the report.
    pub id: String,
    /// Title.
    pub title: String,
    /// Caption, with the meaning of the marks.
    pub caption: String,
    /// The Vega-Lite specification; its width is that of the container.
    pub spec: Value,
}

/// The platforms of an analysis with their marks.
pub(crate) struct Platforms {
    /// In order of appearance.
    names: Vec<String>,
    marks: HashMap<String, Mark>,
}

impl Platforms {
    /// Assigns the marks. The first platform of a kind has the mark of the kind.
    pub(crate) fn from_analysis(analysis: &Analysis) -> Self {
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

/// The inputs that the figures of one workload share.
#[derive(Clone, Copy)]
struct Context<'a> {
    analysis: &'a Analysis,
    platforms: &'a Platforms,
    workload: &'a str,
    treatments: &'a [&'a TreatmentSummary],
}

/// Most figures of a page. A page with more takes minutes to draw, and the tables have the same data.
const MOST_FIGURES: usize = 300;

/// Every figure of a report, the most informative first.
pub fn figures(analysis: &Analysis) -> Vec<Figure> {
    let all = Platforms::from_analysis(analysis);
    let workloads = analysis.by_workload();
    let trials = trials_by_label(analysis);
    let context = |(workload, treatments)| Context {
        analysis,
        platforms: &all,
        workload,
        treatments,
    };
    let named = workloads.iter().map(|(name, own)| (*name, own.as_slice()));
    let contexts: Vec<Context> = named.map(context).collect();
    let of_metrics = contexts.iter().flat_map(|context| {
        let metrics = headline_metrics(context.treatments).into_iter();
        metrics.flat_map(|metric| metrics::of_metric(context, metric))
    });
    let of_levels = contexts.iter().flat_map(|context| {
        let levels = levels::levels(context).into_iter();
        let percentiles = percentiles::percentiles(context);
        levels.chain(percentiles).chain(shifts::shifts(context))
    });
    let of_stages = contexts.iter().filter_map(stages);
    let of_time = contexts.iter().flat_map(|context| {
        let timelines = timelines::timelines(context).into_iter();
        timelines.chain(timelines::over_time(context, &trials))
    });
    let mut figures: Vec<Figure> = taxes::forest(analysis, &all)
        .into_iter()
        .chain(looks::narrowing(analysis, &all))
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
    for trial in analysis.trials.iter().filter(|trial| trial.counts()) {
        let label = trial.treatment.as_str();
        found.entry(label).or_default().push(trial);
    }
    found
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
    /// Creates a figure from `content`, the Vega-Lite specification without the properties that all figures share.
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

/// An encoding with a colour or symbol for each name of a field. The legend has as many columns as fit.
fn encoding<T: AsRef<str> + Serialize>(
    field: &str,
    names: &[T],
    range: &[&str],
    legend: bool,
) -> Value {
    let longest = names.iter().map(|name| name.as_ref().chars().count()).max();
    // Approximate width of a legend entry's letters and symbol, in pixels.
    let column = 7 * longest.unwrap_or(0) + 30;
    let legend = legend.then(|| {
        json!({"columns": {"expr": format!("max(1, floor(width / {column}))")}, "labelLimit": {"expr": "max(140, width - 20)"}})
    });
    json!({"field": field, "type": "nominal", "scale": {"domain": names, "range": range}, "sort": names, "legend": legend})
}

/// The flags after a number: exactness, and its source.
fn flags(certainty: Certainty, source: Source, modelled: bool) -> String {
    let exact = certainty.is_exact().then(|| "exact".to_owned());
    let source = source.flags(modelled).map(|flag| flag.to_string());
    let flags: Vec<String> = exact.into_iter().chain(source).collect();
    if flags.is_empty() {
        String::new()
    } else {
        format!(" {}", flags.join(", "))
    }
}

/// Adds the fields of one object to another.
fn extended(mut row: Value, more: Value) -> Value {
    if let (Some(row), Value::Object(more)) = (row.as_object_mut(), more) {
        row.extend(more);
    }
    row
}

/// The figure of CPU time by stage.
fn stages(context: &Context) -> Option<Figure> {
    let workload = context.workload;
    let mut values = Vec::new();
    let mut order: Vec<&str> = Vec::new();
    let mut shown: Vec<Stage> = Vec::new();
    let mut kinds = Vec::new();
    for summary in context.treatments {
        for (place, stage) in Stage::ALL.into_iter().enumerate() {
            let Some(metric) = summary.metric(&stage.metric()) else {
                continue;
            };
            let estimate = scaled(metric.description.mean, metric.interval, 1.0, String::new());
            values.push(json!({"treatment": summary.short, "stage": stage.words(), "mean": metric.description.mean,
                               "shown": estimate.line(), "place": place, "source": metric.flags()}));
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
    let shown = Kinds::from_iter(kinds).titled("mean cores");
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

/// Names and colours of the stages that are `shown`, in the order of [`Stage::ALL`].
fn stage_colors(shown: &[Stage]) -> (Vec<&'static str>, Vec<&'static str>) {
    Stage::ALL
        .into_iter()
        .filter(|stage| shown.contains(stage))
        .map(|stage| (stage.words(), stage.color()))
        .unzip()
}

/// The scale of an axis: values are divided by it and have this unit.
struct Scale {
    by: f64,
    unit: String,
}

impl Scale {
    /// The scale for the largest of `values`.
    fn from_values(values: impl Iterator<Item = f64>, unit: Unit) -> Self {
        let (by, unit) = common_scale(values, unit);
        Self { by, unit }
    }

    fn shown(&self, value: f64, interval: Option<Interval>) -> Shown {
        scaled(value, interval, self.by, self.unit.clone())
    }

    fn mean(&self, metric: &MetricSummary) -> Shown {
        self.shown(metric.description.mean, metric.interval)
    }

    /// The row of a mean, its interval cut to the frame from `low` to `high`.
    fn row(&self, metric: &MetricSummary, (low, high): (f64, f64), more: Value) -> Value {
        let end = |of: fn(Interval) -> f64| {
            let end = metric.interval.map(|interval| of(interval) / self.by);
            end.map(|end| end.clamp(low, high))
        };
        let row = json!({
            "mean": metric.description.mean / self.by, "low": end(|of| of.low), "high": end(|of| of.high),
            "shown": self.mean(metric).line(), "n": metric.description.n, "source": metric.flags(),
        });
        extended(row, more)
    }
}

/// The frame that cuts nothing.
const WHOLE: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);

/// A field on a logarithmic axis between two values.
fn logarithmic(field: &str, title: &impl Serialize, (low, high): (f64, f64)) -> Value {
    json!({"field": field, "type": "quantitative", "title": title,
           "scale": {"type": "log", "domain": [low, high], "nice": false},
           "axis": {"values": taxes::ratio_ticks(low, high), "labelExpr": "format(datum.value, '.4~r')"}})
}

/// A sentence about the numbers of a figure that are not measured.
fn unmeasured(flags: impl Iterator<Item = Source>) -> String {
    let flags: BTreeSet<Source> = flags.filter(|flag| *flag != Source::Measured).collect();
    let words: Vec<String> = flags.iter().map(ToString::to_string).collect();
    match words.as_slice() {
        [] => String::new(),
        words => format!(" Some of these numbers are {}.", words.join(" or ")),
    }
}
