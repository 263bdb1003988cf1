//! Figures as Vega-Lite specifications, which anyone can restyle.

mod scenario;

use crate::analysis::{Analysis, Comparison, MetricSummary, TreatmentSummary};
use crate::numbers::{common_scale, ratio, scaled};
use crate::results::{Stage, Treatment};
use crate::stats::Verdict;
use serde_json::{Value, json};
use vtax_units::Source;

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

/// Okabe and Ito's palette, which readers with any colour vision can tell apart, in an order
/// that gives each known kind of platform a colour of its own in every report.
const KINDS: [(&str, Mark); 4] = [
    ("native", ("#0072B2", "circle")),
    ("container", ("#009E73", "square")),
    ("qemu", ("#D55E00", "triangle-up")),
    ("xen", ("#CC79A7", "diamond")),
];
/// For other kinds, and for the second platform of a kind.
const OTHERS: [Mark; 4] = [
    ("#E69F00", "triangle-down"),
    ("#56B4E9", "cross"),
    ("#8C6BB1", "triangle-right"),
    ("#7F7F7F", "triangle-left"),
];

/// A colour and a symbol.
type Mark = (&'static str, &'static str);

/// A platform's name in the plan, and how it is drawn.
pub(crate) struct Platform {
    name: String,
    mark: Mark,
}

/// The colour of a platform.
pub(crate) fn color_of(platform: &str, all: &[Platform]) -> &'static str {
    mark_of(platform, all).0
}

fn mark_of(platform: &str, all: &[Platform]) -> Mark {
    let known = all.iter().find(|known| known.name == platform);
    known.map_or(("#7F7F7F", "circle"), |known| known.mark)
}

/// Colours and symbols for curves that are not told apart by their platforms alone.
fn mark_of_curve(place: usize) -> Mark {
    let known = KINDS.iter().map(|(_, mark)| *mark);
    let marks: Vec<Mark> = known.chain(OTHERS).collect();
    marks
        .get(place % marks.len())
        .copied()
        .unwrap_or(("#7F7F7F", "circle"))
}

/// The platforms of an analysis, in order of appearance: the first of a kind looks like the kind.
pub(crate) fn platforms(analysis: &Analysis) -> Vec<Platform> {
    let mut platforms: Vec<Platform> = Vec::new();
    let mut spare = OTHERS.into_iter().cycle();
    for Treatment { platform, .. } in analysis.treatments.iter().map(|one| &one.treatment) {
        if platforms.iter().any(|known| known.name == *platform) {
            continue;
        }
        let kind = analysis
            .treatments
            .iter()
            .find(|one| one.treatment.platform == *platform)
            .and_then(|one| KINDS.iter().find(|(kind, _)| *kind == one.treatment.kind()))
            .map(|(_, mark)| *mark)
            .filter(|mark| platforms.iter().all(|known| known.mark != *mark));
        platforms.push(Platform {
            name: platform.clone(),
            mark: kind
                .or_else(|| spare.next())
                .unwrap_or(("#7F7F7F", "circle")),
        });
    }
    platforms
}

fn names(platforms: &[Platform]) -> Vec<String> {
    platforms.iter().map(|known| known.name.clone()).collect()
}

/// Every figure of a report, the most telling first.
pub fn figures(analysis: &Analysis) -> Vec<Figure> {
    let mut figures = Vec::new();
    figures.extend(forest(analysis));
    for workload in &analysis.workloads {
        let treatments: Vec<&TreatmentSummary> = analysis
            .treatments
            .iter()
            .filter(|summary| &summary.treatment.workload == workload)
            .collect();
        for metric in headline_metrics(&treatments) {
            let sweeps: Vec<Figure> = swept(analysis, &treatments)
                .into_iter()
                .filter_map(|factor| sweep(analysis, workload, &treatments, metric, factor))
                .collect();
            if sweeps.is_empty() {
                figures.extend(dots(analysis, workload, &treatments, metric));
            }
            figures.extend(sweeps);
        }
    }
    for workload in &analysis.workloads {
        figures.extend(scenario::levels(analysis, workload));
        figures.extend(scenario::percentiles(analysis, workload));
    }
    for workload in &analysis.workloads {
        figures.extend(stages(analysis, workload));
    }
    for workload in &analysis.workloads {
        figures.extend(scenario::timelines(analysis, workload));
        figures.extend(over_time(analysis, workload));
    }
    for (number, figure) in figures.iter_mut().enumerate() {
        figure.id = format!("{:02}-{}", number + 1, file_name(&figure.id));
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

/// The headline metrics of a workload, each by the first treatment that has it; without any, the
/// first metric.
fn headline_metrics<'a>(treatments: &[&'a TreatmentSummary]) -> Vec<&'a MetricSummary> {
    let mut metrics: Vec<&MetricSummary> = Vec::new();
    for metric in treatments
        .iter()
        .flat_map(|summary| &summary.metrics)
        .filter(|metric| metric.headline)
    {
        if !metrics.iter().any(|known| known.name == metric.name) {
            metrics.push(metric);
        }
    }
    if metrics.is_empty() {
        metrics.extend(
            treatments
                .iter()
                .flat_map(|summary| &summary.metrics)
                .take(1),
        );
    }
    metrics
}

fn file_name(text: &str) -> String {
    let mut name: String = text
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect();
    name.truncate(60);
    name
}

/// What all specifications share; `height` is a number or a step.
pub fn specification(title: &str, height: Value, content: Value) -> Value {
    let mut spec = json!({
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
    if let (Some(spec), Value::Object(content)) = (spec.as_object_mut(), content) {
        spec.extend(content);
    }
    spec
}

/// The colour of each of the `shown` platforms, the same in every figure.
fn color(analysis: &Analysis, shown: &[String], legend: bool) -> Value {
    by_platform(analysis, shown, legend, |(color, _)| color)
}

/// The symbol of each of the `shown` platforms.
fn shape(analysis: &Analysis, shown: &[String], legend: bool) -> Value {
    by_platform(analysis, shown, legend, |(_, shape)| shape)
}

fn by_platform(
    analysis: &Analysis,
    shown: &[String],
    legend: bool,
    of: fn((&'static str, &'static str)) -> &'static str,
) -> Value {
    let all = platforms(analysis);
    let range: Vec<&str> = shown
        .iter()
        .map(|platform| of(mark_of(platform, &all)))
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

fn flag(source: Source) -> String {
    if source == Source::Measured {
        String::new()
    } else {
        format!(" {source}")
    }
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
fn forest(analysis: &Analysis) -> Option<Figure> {
    let shown: Vec<&Comparison> = analysis
        .comparisons
        .iter()
        .filter(|comparison| comparison.headline && comparison.tax.is_some())
        .collect();
    let curves = || {
        let mut factors = analysis.factors.keys();
        factors.any(|factor| numbers(analysis, factor).is_some())
    };
    if shown.len() > MOST_ROWS && curves() {
        return None;
    }
    let mut offsets: Vec<String> = vec![" ".to_owned()];
    let mut values = Vec::new();
    let mut rows: Vec<String> = Vec::new();
    for comparison in &shown {
        let tax = comparison.tax?;
        let summary = analysis
            .treatments
            .iter()
            .find(|summary| summary.treatment.label == comparison.treatment)?;
        // The label that remains when platform is shown by colour: workload, metric, levels.
        let levels = summary
            .short
            .strip_prefix(&summary.treatment.platform)
            .unwrap_or(&summary.short);
        // What tells rows apart comes first: a narrow page cuts their ends.
        let row = format!("{}{levels} · {}", comparison.workload, comparison.title);
        if !rows.contains(&row) {
            rows.push(row.clone());
            values.push(json!({"row": row, "offset": " ", "label": row}));
        }
        if !offsets.contains(&comparison.platform) {
            offsets.push(comparison.platform.clone());
        }
        let shown = ratio(tax.ratio, tax.interval);
        values.push(json!({
            "row": row,
            "offset": comparison.platform,
            "platform": comparison.platform,
            "treatment": comparison.treatment,
            "baseline": comparison.baseline,
            "ratio": tax.ratio,
            "low": tax.interval.map(|interval| interval.low),
            "high": tax.interval.map(|interval| interval.high),
            "text": format!("{}{}", shown.value, flag(comparison.source)),
            "interval": shown.line(),
            "evidence": format!("n = {}, p = {:.3}", tax.n, tax.p),
            "verdict": comparison.verdict.words(),
            "source": comparison.source.to_string(),
            "claimed": comparison.verdict == Verdict::Different,
        }));
    }
    if rows.is_empty() {
        return None;
    }
    let named: Vec<String> = offsets.iter().skip(1).cloned().collect();
    let spans: Vec<f64> = shown
        .iter()
        .filter_map(|comparison| comparison.tax)
        .flat_map(|tax| {
            [
                tax.ratio,
                tax.interval.map_or(tax.ratio, |i| i.low),
                tax.interval.map_or(tax.ratio, |i| i.high),
            ]
        })
        .filter(|value| value.is_finite() && *value > 0.0)
        .collect();
    // Room to the right for the printed ratio, and never so narrow that noise looks like news.
    let low = spans.iter().copied().fold(0.8, f64::min) * 0.93;
    let high = spans.iter().copied().fold(1.25, f64::max) * 1.6;
    let y = json!({"field": "row", "type": "nominal", "sort": rows, "axis": null, "scale": {"paddingInner": 0.2}});
    let offset = json!({"field": "offset", "type": "nominal", "sort": offsets, "scale": {"domain": offsets}});
    let x = |field: &str| {
        json!({"field": field, "type": "quantitative", "scale": {"type": "log", "domain": [low, high], "nice": false},
               "title": "ratio to the baseline (logarithmic)", "axis": {"values": ratio_ticks(low, high), "labelExpr": "format(datum.value, '.4~r')"}})
    };
    let tooltip = json!([
        {"field": "treatment", "title": "treatment"}, {"field": "baseline", "title": "against"},
        {"field": "interval", "title": "ratio [95 % CI]"}, {"field": "evidence", "title": "evidence"},
        {"field": "verdict", "title": "verdict"}, {"field": "source", "title": "source"}
    ]);
    let title = "The tax of each platform over its baseline";
    let spec = specification(
        title,
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
                              "color": color(analysis, &named, true), "tooltip": tooltip}},
                {"transform": [{"filter": "isValid(datum.ratio)"}], "mark": {"type": "point", "filled": true, "size": 85, "opacity": 1},
                 "encoding": {"y": y, "yOffset": offset, "x": x("ratio"), "color": color(analysis, &named, true),
                              "shape": shape(analysis, &named, true), "tooltip": tooltip}},
                {"transform": [{"filter": "isValid(datum.ratio)"}, {"calculate": "isValid(datum.high) ? datum.high : datum.ratio", "as": "end"}],
                 "mark": {"type": "text", "align": "left", "baseline": "middle", "dx": 8, "fontSize": 11, "color": "#333"},
                 "encoding": {"y": y, "yOffset": offset, "x": x("end"), "text": {"field": "text"}}}
            ]
        }),
    );
    Some(Figure {
        id: "tax".to_owned(),
        title: title.to_owned(),
        caption: "Geometric mean of the ratios of trials of the same block; bars are 95 % bootstrap confidence intervals. \
                  A bar that crosses the dashed line at 1 shows no difference."
            .to_owned(),
        spec,
    })
}

/// One metric of one workload: every trial, the mean and its interval.
fn dots(
    analysis: &Analysis,
    workload: &str,
    treatments: &[&TreatmentSummary],
    metric: &MetricSummary,
) -> Option<Figure> {
    let own: Vec<(&TreatmentSummary, &MetricSummary)> = treatments
        .iter()
        .filter_map(|summary| {
            Some((
                *summary,
                summary
                    .metric(&metric.name)
                    .filter(|own| own.unit == metric.unit)?,
            ))
        })
        .collect();
    let (scale, unit) = common_scale(own.iter().map(|(_, own)| own.description.max), metric.unit);
    let mut means = Vec::new();
    let mut trials = Vec::new();
    for (summary, own) in &own {
        let shown = scaled(own.description.mean, own.interval, scale, unit.clone());
        means.push(json!({
            "treatment": summary.short, "platform": summary.treatment.platform,
            "mean": own.description.mean / scale,
            "low": own.interval.map(|interval| interval.low / scale),
            "high": own.interval.map(|interval| interval.high / scale),
            "text": format!("{}{}", shown.value, flag(own.source)), "shown": shown.line(),
            "n": own.description.n, "source": own.source.to_string(),
        }));
        trials.extend(own.values.iter().map(|(index, value)| {
            json!({"treatment": summary.short, "platform": summary.treatment.platform, "value": value / scale,
                   "trial": format!("{index:04}"), "shown": scaled(*value, None, scale, unit.clone()).line()})
        }));
    }
    if means.is_empty() {
        return None;
    }
    let title = format!("{workload}: {}", metric.title);
    let order: Vec<&String> = own.iter().map(|(summary, _)| &summary.short).collect();
    let y = json!({"field": "treatment", "type": "nominal", "sort": order, "title": null});
    // Trials set the scale: intervals of few trials are so wide that they would hide the rest.
    let values = own.iter().flat_map(|(_, own)| &own.values);
    let (low, high) = values.fold((0.0_f64, 0.0_f64), |(low, high), (_, value)| {
        (low.min(value / scale), high.max(value / scale))
    });
    let domain = if high > low {
        [1.4 * low, 1.4 * high]
    } else {
        [0.0, 1.0]
    };
    let x = |field: &str| json!({"field": field, "type": "quantitative", "title": unit, "scale": {"domain": domain, "nice": true}, "axis": {"tickCount": 5}});
    let tooltip = json!([
        {"field": "treatment"}, {"field": "shown", "title": "mean [95 % CI]"}, {"field": "n"}, {"field": "source"}
    ]);
    let spec = specification(
        &title,
        json!({"step": 40}),
        json!({
            "layer": [
                {"data": {"values": trials}, "mark": {"type": "tick", "thickness": 1.5, "size": 15, "opacity": 0.55, "yOffset": 0},
                 "encoding": {"y": y, "x": x("value"), "color": color(analysis, &names(&platforms(analysis)), false),
                              "tooltip": [{"field": "treatment"}, {"field": "trial"}, {"field": "shown", "title": "value"}]}},
                {"data": {"values": means}, "transform": [{"filter": "isValid(datum.low)"}], "mark": {"type": "rule", "strokeWidth": 2, "clip": true},
                 "encoding": {"y": y, "x": x("low"), "x2": {"field": "high"}, "color": color(analysis, &names(&platforms(analysis)), false), "tooltip": tooltip}},
                {"data": {"values": means}, "mark": {"type": "point", "filled": true, "size": 95, "opacity": 1},
                 "encoding": {"y": y, "x": x("mean"), "color": color(analysis, &names(&platforms(analysis)), false), "shape": shape(analysis, &names(&platforms(analysis)), false), "tooltip": tooltip}},
                {"data": {"values": means}, "mark": {"type": "text", "dy": -14, "fontSize": 11, "color": "#333"},
                 "encoding": {"y": y, "x": x("mean"), "text": {"field": "text"}}}
            ]
        }),
    );
    Some(Figure {
        id: format!("{workload} {}", metric.name),
        title,
        caption: format!(
            "{}. Ticks are single trials; symbols are means; bars are 95 % confidence intervals, cut where they leave the frame.",
            direction(metric)
        ),
        spec,
    })
}

fn direction(metric: &MetricSummary) -> &'static str {
    match metric.better {
        crate::results::Better::Lower => "Less is better",
        crate::results::Better::Higher => "More is better",
        crate::results::Better::Neither => "Neither direction is better",
    }
}

/// The curves of a sweep: treatments that differ in the swept factor alone lie on one.
struct Curves {
    names: Vec<String>,
    marks: Vec<(&'static str, &'static str)>,
    one_platform: bool,
}

impl Curves {
    fn of<'a>(
        analysis: &Analysis,
        factor: &str,
        treatments: impl Iterator<Item = &'a TreatmentSummary> + Clone,
    ) -> Self {
        let mut shown: Vec<&String> = Vec::new();
        for summary in treatments.clone() {
            if !shown.contains(&&summary.treatment.platform) {
                shown.push(&summary.treatment.platform);
            }
        }
        let mut curves = Self {
            names: Vec::new(),
            marks: Vec::new(),
            one_platform: shown.len() == 1,
        };
        for summary in treatments {
            let name = curves.name(analysis, factor, summary);
            if !curves.names.contains(&name) {
                curves.names.push(name);
            }
        }
        let all = platforms(analysis);
        curves.marks = if curves.names.len() == shown.len() {
            shown.iter().map(|name| mark_of(name, &all)).collect()
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
    workload: &str,
    treatments: &[&TreatmentSummary],
    metric: &MetricSummary,
    factor: &str,
) -> Option<Figure> {
    let levels = analysis.factors.get(factor)?;
    let numeric = numbers(analysis, factor);
    let own: Vec<(&TreatmentSummary, &MetricSummary)> = treatments
        .iter()
        .filter(|summary| summary.treatment.factors.contains_key(factor))
        .filter_map(|summary| {
            Some((
                *summary,
                summary
                    .metric(&metric.name)
                    .filter(|own| own.unit == metric.unit)?,
            ))
        })
        .collect();
    let mut seen: Vec<&String> = own
        .iter()
        .filter_map(|(summary, _)| summary.treatment.factors.get(factor))
        .collect();
    seen.sort();
    seen.dedup();
    if seen.len() < 2 {
        return None;
    }
    let (scale, unit) = common_scale(own.iter().map(|(_, own)| own.description.max), metric.unit);
    let curves = Curves::of(analysis, factor, own.iter().map(|(summary, _)| *summary));
    let mut means = Vec::new();
    let mut trials = Vec::new();
    for (summary, own) in &own {
        let level = summary.treatment.factors.get(factor)?;
        let level = if numeric.is_some() {
            json!(level.parse::<f64>().ok())
        } else {
            json!(level)
        };
        let curve = curves.name(analysis, factor, summary);
        let shown = scaled(own.description.mean, own.interval, scale, unit.clone());
        means.push(json!({
            "level": level, "curve": curve, "treatment": summary.short,
            "mean": own.description.mean / scale, "low": own.interval.map(|interval| interval.low / scale),
            "high": own.interval.map(|interval| interval.high / scale), "shown": shown.line(),
            "n": own.description.n, "source": own.source.to_string(),
        }));
        trials.extend(own.values.iter().map(|(index, value)| {
            json!({"level": level, "curve": curve, "treatment": summary.short, "value": value / scale,
                   "trial": format!("{index:04}"), "shown": scaled(*value, None, scale, unit.clone()).line()})
        }));
    }
    let title = format!("{workload}: {} against {factor}", metric.title);
    let x = if numeric.is_some() {
        json!({"field": "level", "type": "quantitative", "title": factor, "scale": {"zero": false, "padding": 18},
               "axis": {"values": numeric, "labelExpr": "format(datum.value, '.12~r')"}})
    } else {
        json!({"field": "level", "type": "ordinal", "sort": levels, "title": factor, "axis": {"labelAngle": 0}})
    };
    // Trials set the scale: intervals of few trials are so wide that they would hide the curves.
    let values = own.iter().flat_map(|(_, own)| &own.values);
    let (low, high) = values.fold((0.0_f64, 0.0_f64), |(low, high), (_, value)| {
        (low.min(value / scale), high.max(value / scale))
    });
    let domain = [1.15 * low, 1.15 * high];
    let y = |field: &str| {
        json!({"field": field, "type": "quantitative", "title": unit,
               "scale": if high > low { json!({"domain": domain}) } else { json!({"zero": true}) }})
    };
    let tooltip = json!([
        {"field": "treatment"}, {"field": "shown", "title": "mean [95 % CI]"}, {"field": "n"}, {"field": "source"}
    ]);
    let (color, shape) = (curves.color(), curves.shape());
    let spec = specification(
        &title,
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
    );
    Some(Figure {
        id: format!("{workload} {} {factor}", metric.name),
        title,
        caption: format!(
            "{}. Ticks are single trials; symbols are means; bars are 95 % confidence intervals, cut where they leave the frame.",
            direction(metric)
        ),
        spec,
    })
}

/// Where the CPU time went, by stage.
fn stages(analysis: &Analysis, workload: &str) -> Option<Figure> {
    let mut values = Vec::new();
    let mut order: Vec<&String> = Vec::new();
    let mut shown: Vec<Stage> = Vec::new();
    for summary in analysis
        .treatments
        .iter()
        .filter(|summary| summary.treatment.workload == workload)
    {
        for (place, stage) in Stage::ALL.into_iter().enumerate() {
            let Some(metric) = summary.metric(&stage.metric()) else {
                continue;
            };
            let estimate = scaled(metric.description.mean, metric.interval, 1.0, String::new());
            values.push(json!({"treatment": summary.short, "stage": stage.words(), "mean": metric.description.mean,
                               "shown": estimate.line(), "place": place, "source": metric.source.to_string()}));
            shown.push(stage);
            if !order.contains(&&summary.short) {
                order.push(&summary.short);
            }
        }
    }
    if values.is_empty() {
        return None;
    }
    let (names, range) = stage_colors(&shown);
    let title = format!("{workload}: where the CPU time goes");
    let spec = specification(
        &title,
        json!({"step": 30}),
        json!({
            "data": {"values": values},
            "mark": {"type": "bar", "size": 18},
            "encoding": {
                "y": {"field": "treatment", "type": "nominal", "sort": order, "title": null},
                "x": {"field": "mean", "type": "quantitative", "stack": "zero", "title": "mean cores busy", "axis": {"tickCount": 5}},
                "color": encoding("stage", &names, &range, true),
                "order": {"field": "place", "type": "quantitative"},
                "tooltip": [{"field": "treatment"}, {"field": "stage"}, {"field": "shown", "title": "mean cores [95 % CI]"}, {"field": "source"}]
            }
        }),
    );
    Some(Figure {
        id: format!("{workload} cpu stages"),
        title,
        caption: "Mean over the trials that count, stacked by who spent it.".to_owned(),
        spec,
    })
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
fn over_time(analysis: &Analysis, workload: &str) -> Vec<Figure> {
    const MOST_POINTS: usize = 6000;
    let mut figures = Vec::new();
    for name in ["CPU", "received", "sent"] {
        let mut lines = Vec::new();
        for trial in analysis
            .trials
            .iter()
            .filter(|trial| trial.failed.is_none() && trial.suspect.is_empty())
        {
            let Some(summary) = analysis.treatments.iter().find(|summary| {
                summary.treatment.label == trial.treatment && summary.treatment.workload == workload
            }) else {
                continue;
            };
            lines.extend(
                trial
                    .series
                    .iter()
                    .filter(|series| series.name == name)
                    .map(|series| (summary, trial.index, series)),
            );
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
        let drawn = |one: &&TreatmentSummary| lines.iter().any(|(own, ..)| own.short == one.short);
        let own = analysis
            .treatments
            .iter()
            .filter(|one| one.treatment.workload == workload);
        let curves = Curves::of(analysis, "", own.filter(drawn));
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
        let spec = specification(
            &title,
            json!(170),
            json!({
                "data": {"values": values},
                "params": [zoom()],
                "mark": {"type": "line", "strokeWidth": 1.2, "opacity": 0.75, "interpolate": "step-after", "clip": true},
                "encoding": {
                    "x": {"field": "second", "type": "quantitative", "title": "seconds into the window", "scale": {"nice": false}, "axis": {"grid": false}},
                    "y": {"field": "rate", "type": "quantitative", "title": unit, "scale": {"zero": true}, "axis": {"tickCount": 4}},
                    "color": curves.color(),
                    "detail": {"field": "trial"},
                    "tooltip": [{"field": "treatment"}, {"field": "trial"}, {"field": "second"}, {"field": "rate", "format": ".3~g"}]
                }
            }),
        );
        figures.push(Figure {
            id: format!("{workload} {name} over time"),
            title,
            caption: format!(
                "One line a trial. A level line is a steady state; the classes are in the table of treatments. {ZOOM}"
            ),
            spec,
        });
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
