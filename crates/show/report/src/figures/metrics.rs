// SPDX-License-Identifier: Apache-2.0
//! Figures of one metric: each trial and the mean, by treatment or against a factor.

use super::{
    Context, Figure, Scale, WHOLE, color, encoding, extended, flags, logarithmic, numbers, shape,
};
use crate::analysis::certainty::Kinds;
use crate::analysis::{Analysis, MetricSummary, TreatmentSummary, distinct};
use crate::platforms::{Mark, mark_of_curve};
use serde_json::{Value, json};
use vtax_results::stats::extremes;

/// Figures of one metric of one workload: against each factor with an axis, or without one.
pub(super) fn of_metric(context: &Context, metric: &MetricSummary) -> Vec<Figure> {
    let mut figures: Vec<Figure> = swept(context)
        .into_iter()
        .filter_map(|factor| sweep(context, metric, factor))
        .collect();
    if figures.is_empty() {
        figures.extend(dots(context, metric));
    }
    figures
}

/// The factors with an axis: numeric ones if there are any, since textual levels then distinguish curves.
fn swept<'a>(context: &Context<'a>) -> Vec<&'a String> {
    let analysis = context.analysis;
    let varied = |factor: &&String| {
        let treatments = context.treatments.iter();
        let mut levels = treatments.filter_map(|of| of.treatment.factors.get(*factor));
        let first = levels.next();
        levels.any(|level| Some(level) != first)
    };
    let factors: Vec<&String> = analysis.factors.keys().filter(varied).collect();
    let mut numeric = factors.clone();
    numeric.retain(|factor| numbers(analysis, factor).is_some());
    if numeric.is_empty() { factors } else { numeric }
}

/// One metric of the treatments that have it, on one scale.
struct Values<'a> {
    own: Vec<(&'a TreatmentSummary, &'a MetricSummary)>,
    scale: Scale,
}

impl<'a> Values<'a> {
    fn from_treatments(treatments: &[&'a TreatmentSummary], metric: &MetricSummary) -> Self {
        let own = treatments.iter().filter_map(|summary| {
            let own = summary.metric(&metric.name);
            Some((*summary, own.filter(|own| own.unit == metric.unit)?))
        });
        let own: Vec<(&TreatmentSummary, &MetricSummary)> = own.collect();
        let scale = Scale::from_values(own.iter().map(|(_, own)| own.description.max), metric.unit);
        Self { own, scale }
    }

    fn kinds(&self) -> Kinds {
        self.own.iter().map(|(_, own)| own.certainty).collect()
    }

    /// The tooltip of a mean.
    fn tooltip(&self) -> Value {
        let mean = self.kinds().titled("mean");
        json!([{"field": "treatment"}, {"field": "shown", "title": mean}, {"field": "n"}, {"field": "source"}])
    }

    /// A row for each mean, and one for each trial, with the fields of `more` for the treatment.
    fn rows(&self, more: impl Fn(&TreatmentSummary) -> Value) -> (Vec<Value>, Vec<Value>) {
        let (mut means, mut trials) = (Vec::new(), Vec::new());
        for (summary, own) in &self.own {
            let common = extended(more(summary), json!({"treatment": summary.short}));
            means.push(self.scale.row(own, WHOLE, common.clone()));
            trials.extend(own.values.iter().map(|(index, value)| {
                let shown = self.scale.shown(*value, None).line();
                let trial = json!({"value": value / self.scale.by, "trial": format!("{index:04}"), "shown": shown});
                extended(trial, common.clone())
            }));
        }
        (means, trials)
    }

    /// The span from 0 or below to the highest trial. Trials set the scale, since the wide intervals of few trials
    /// would flatten the rest.
    fn span(&self) -> (f64, f64) {
        let values = self.own.iter().flat_map(|(_, own)| &own.values);
        let ends = extremes(values.map(|(_, value)| value / self.scale.by));
        (ends.0.min(0.0), ends.1.max(0.0))
    }

    /// The encoding of a field on the axis of values, with `room` beyond the highest value. `far_apart` asks for a
    /// logarithmic axis, which needs positive values.
    fn axis(&self, room: f64, far_apart: bool) -> impl Fn(&str) -> Value {
        let (low, high) = self.span();
        let values = self.own.iter().flat_map(|(_, own)| &own.values);
        let least = values.fold(f64::INFINITY, |least, (_, value)| least.min(*value));
        let is_log = far_apart && least > 0.0;
        let unit = &self.scale.unit;
        move |field| {
            if is_log {
                let title = format!("{unit} (logarithmic)").trim().to_owned();
                return logarithmic(field, &title, (least / self.scale.by / room, high * room));
            }
            let domain = if high > low {
                [room * low, room * high]
            } else {
                [0.0, 1.0]
            };
            json!({"field": field, "type": "quantitative", "title": unit, "scale": {"domain": domain, "nice": true},
                   "axis": {"tickCount": 5}})
        }
    }
}

/// Smallest ratio of the highest to the lowest mean for a logarithmic axis.
const FAR_APART: f64 = 5.0;

/// Whether one treatment dwarfs another, so that a linear axis would draw the lower at its edge.
fn are_far_apart<'a>(own: impl Iterator<Item = &'a MetricSummary>) -> bool {
    let (least, most) = extremes(own.map(|own| own.description.mean));
    least > 0.0 && most / least >= FAR_APART
}

/// The caption of a figure of means and trials.
fn caption_of_trials(metric: &MetricSummary, kinds: Kinds) -> String {
    let direction = match metric.better {
        vtax_results::Better::Lower => "Less is better",
        vtax_results::Better::Higher => "More is better",
        vtax_results::Better::Neither => "Neither direction is better",
    };
    let bars = kinds.bars("bars", ", cut where they leave the frame");
    if kinds.has_intervals() {
        format!("{direction}. Ticks are single trials; symbols are means; {bars}")
    } else {
        format!("{direction}. {bars}")
    }
}

/// One metric of one workload: every trial, the mean and its interval.
fn dots(context: &Context, metric: &MetricSummary) -> Option<Figure> {
    let (all, workload) = (context.platforms, context.workload);
    let values = Values::from_treatments(context.treatments, metric);
    let Values { own, scale } = &values;
    let (mut means, trials) =
        values.rows(|summary| json!({"platform": summary.treatment.platform}));
    for (mean, (_, own)) in means.iter_mut().zip(own) {
        let text = scale.mean(own).value + &flags(own.certainty, own.source, own.modelled);
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
    let far_apart = are_far_apart(own.iter().map(|(_, own)| *own));
    let x = values.axis(1.4, far_apart);
    let tooltip = values.tooltip();
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

/// The curves of a sweep: treatments that differ only in the swept factor share one.
pub(super) struct Curves<'a> {
    analysis: &'a Analysis,
    /// The swept factor; empty for curves of another variable.
    factor: &'a str,
    names: Vec<String>,
    marks: Vec<Mark>,
    one_platform: bool,
}

impl<'a> Curves<'a> {
    pub(super) fn from_context<'b>(
        context: &Context<'a>,
        factor: &'a str,
        treatments: impl Iterator<Item = &'b TreatmentSummary> + Clone,
    ) -> Self {
        let shown = distinct(treatments.clone().map(|of| &of.treatment.platform));
        let mut curves = Self {
            analysis: context.analysis,
            factor,
            names: Vec::new(),
            marks: Vec::new(),
            one_platform: shown.len() == 1,
        };
        curves.names = distinct(treatments.map(|of| curves.name(of)));
        curves.marks = if curves.names.len() == shown.len() {
            let platforms = shown.iter();
            platforms.map(|name| context.platforms.mark(name)).collect()
        } else {
            (0..curves.names.len()).map(mark_of_curve).collect()
        };
        curves
    }

    /// The name of a treatment's curve: its platform, and the levels of the other factors.
    pub(super) fn name(&self, summary: &TreatmentSummary) -> String {
        let treatment = &summary.treatment;
        let mut parts: Vec<String> = (treatment.factors.iter())
            .filter(|(name, _)| *name != self.factor && self.analysis.factors.contains_key(*name))
            .map(|(name, level)| format!("{name} = {level}"))
            .collect();
        if !self.one_platform || parts.is_empty() {
            parts.insert(0, treatment.platform.clone());
        }
        parts.join(", ")
    }

    pub(super) fn color(&self) -> Value {
        let colors: Vec<&str> = self.marks.iter().map(|(color, _)| *color).collect();
        encoding("curve", &self.names, &colors, true)
    }

    pub(super) fn shape(&self) -> Value {
        let shapes: Vec<&str> = self.marks.iter().map(|(_, shape)| *shape).collect();
        encoding("curve", &self.names, &shapes, true)
    }
}

/// One metric against the levels of one factor.
fn sweep(context: &Context, metric: &MetricSummary, factor: &str) -> Option<Figure> {
    let workload = context.workload;
    let levels = context.analysis.factors.get(factor)?;
    let numeric = numbers(context.analysis, factor);
    let mut treatments = context.treatments.to_vec();
    treatments.retain(|summary| summary.treatment.factors.contains_key(factor));
    let values = Values::from_treatments(&treatments, metric);
    let own = &values.own;
    let level = |summary: &TreatmentSummary| summary.treatment.factors.get(factor).cloned();
    if distinct(own.iter().map(|(summary, _)| level(summary))).len() < 2 {
        return None;
    }
    let shown = own.iter().map(|(summary, _)| *summary);
    let curves = Curves::from_context(context, factor, shown);
    let (means, trials) = values.rows(|summary| {
        let level = level(summary).unwrap_or_default();
        let level = match &numeric {
            Some(_) => json!(level.parse::<f64>().ok()),
            None => json!(level),
        };
        json!({"level": level, "curve": curves.name(summary)})
    });
    let title = format!("{workload}: {} against {factor}", metric.title);
    let x = if numeric.is_some() {
        json!({"field": "level", "type": "quantitative", "title": factor, "scale": {"zero": false, "padding": 18},
               "axis": {"values": numeric, "labelExpr": "format(datum.value, '.12~r')"}})
    } else {
        json!({"field": "level", "type": "ordinal", "sort": levels, "title": factor, "axis": {"labelAngle": 0}})
    };
    // A factor can change a metric by far. A platform dwarfs another only at one level.
    let far_apart = levels.iter().any(|one| {
        let there = own.iter().filter(|(of, _)| level(of).as_ref() == Some(one));
        are_far_apart(there.map(|(_, own)| *own))
    });
    let y = values.axis(1.15, far_apart);
    let tooltip = values.tooltip();
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
