// SPDX-License-Identifier: Apache-2.0
//! The figure of all taxes: ratios to the baseline with their intervals.

use super::{Figure, Platforms, color, flags, numbers, shape};
use crate::analysis::certainty::Kinds;
use crate::analysis::{Analysis, Comparison, distinct};
use serde_json::json;
use std::collections::HashSet;
use vtax_results::Better;
use vtax_results::numbers::ratio;
use vtax_results::stats::Verdict;

/// The caption of the figure of taxes.
fn caption_of_taxes(kinds: Kinds, has_gains: bool) -> String {
    let bars = kinds.bars("bars", "");
    let mut caption = if !kinds.has_intervals() {
        format!("Ratios to the baseline. {bars} On the dashed line at 1 both are the same.")
    } else {
        format!(
            "Geometric mean of the ratios of trials of the same block; {bars} A bar that crosses the dashed line at 1 shows no difference."
        )
    };
    caption += " Left of the line is cheaper, right of it dearer";
    if has_gains {
        caption += "; in a row marked “better →” more is better";
    }
    caption + "."
}

/// The mark of a row of a metric of which more is better.
const MORE_IS_BETTER: &str = "better →";

/// Ticks of a logarithmic axis from `low` to `high`, few enough that their labels do not touch: 1, 2, 5 of each decade,
/// fewer for many decades, more for less than one.
pub(super) fn ratio_ticks(low: f64, high: f64) -> Vec<f64> {
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
    // Negative powers of ten are not exact; quotients are.
    let scaled = |step: f64, decade: i32| match decade {
        0.. => step * 10_f64.powi(decade),
        _ => step / 10_f64.powi(-decade),
    };
    (first..=last)
        .flat_map(|decade| steps.iter().map(move |step| scaled(*step, decade)))
        .filter(|tick| (low..=high).contains(tick))
        .collect()
}

/// A figure narrower than this has fewer ticks, and the least width of a narrow and of a wide figure, in pixels.
const NARROW: f64 = 480.0;
const LEAST: (f64, f64) = (280.0, NARROW);
/// The width of a digit of a tick's label, and the gap between labels, in pixels.
const DIGIT: f64 = 7.0;
const GAP: f64 = 8.0;

/// The ticks whose labels do not touch on an axis from `low` to `end` of this width. Those next to 1 have priority.
fn apart(ticks: &[f64], (low, end): (f64, f64), width: f64) -> Vec<f64> {
    let at = |tick: f64| (tick / low).ln() / (end / low).ln() * width;
    let half = |tick: f64| tick.to_string().len() as f64 * DIGIT / 2.0;
    let mut nearest = ticks.to_vec();
    nearest.sort_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs()));
    let mut kept: Vec<f64> = Vec::new();
    for tick in nearest {
        let is_free =
            |other: &f64| (at(tick) - at(*other)).abs() >= half(tick) + half(*other) + GAP;
        if kept.iter().all(is_free) {
            kept.push(tick);
        }
    }
    kept.sort_by(f64::total_cmp);
    kept
}

/// Most rows of the figure where the comparisons also have curves.
const MOST_ROWS: usize = 60;

/// The tax of every headline metric: ratio and interval on one logarithmic axis.
pub(super) fn forest(analysis: &Analysis, all: &Platforms) -> Option<Figure> {
    let shown = analysis.comparisons.iter();
    let shown = shown.filter(|one| one.headline && one.ratio.is_some());
    let shown: Vec<&Comparison> = shown.collect();
    let curves = || {
        let mut factors = analysis.factors.keys();
        factors.any(|factor| numbers(analysis, factor).is_some())
    };
    if shown.len() > MOST_ROWS && curves() {
        return None;
    }
    let labels = analysis.by_label();
    let named = distinct(shown.iter().map(|comparison| comparison.platform.clone()));
    let mut offsets = vec![" "];
    offsets.extend(named.iter().map(String::as_str));
    let mut values = Vec::new();
    let mut rows: Vec<String> = Vec::new();
    let mut known: HashSet<String> = HashSet::new();
    let mut texts: Vec<String> = Vec::new();
    for comparison in &shown {
        let interval = comparison.interval();
        let summary = labels.get(comparison.treatment.as_str())?;
        // The rest of the label, since the platform is shown by colour: workload, metric, levels.
        let levels = summary.short.strip_prefix(&summary.treatment.platform);
        let levels = levels.unwrap_or(&summary.short);
        // The distinguishing part comes first: a narrow page cuts the ends of rows.
        let row = format!("{}{levels} · {}", comparison.workload, comparison.title);
        if known.insert(row.clone()) {
            rows.push(row.clone());
            let better = (comparison.better == Better::Higher).then_some(MORE_IS_BETTER);
            values.push(json!({"row": row, "offset": " ", "label": row, "better": better}));
        }
        let text = ratio(comparison.ratio?, interval).value
            + &flags(comparison.certainty, comparison.source, comparison.modelled);
        texts.push(text.clone());
        values.push(json!({
            "row": row,
            "offset": comparison.platform,
            "platform": comparison.platform,
            "treatment": comparison.treatment,
            "baseline": comparison.baseline,
            "ratio": comparison.ratio,
            "low": interval.map(|interval| interval.low),
            "high": interval.map(|interval| interval.high),
            "text": text,
            "interval": comparison.ratio_in_words(),
            "evidence": match comparison.tax {
                Some(tax) => format!("n = {}, p = {:.3}", comparison.repetitions()?, tax.p),
                None => format!("n = {}", comparison.repetitions()?),
            },
            "verdict": comparison.judgement.verdict.words(),
            "source": comparison.source.words(comparison.modelled),
            "claimed": comparison.judgement.verdict == Verdict::Different,
        }));
    }
    if rows.is_empty() {
        return None;
    }
    let spans = shown.iter().flat_map(|one| {
        let ends = one.interval().map(|ends| [ends.low, ends.high]);
        one.ratio.into_iter().chain(ends.into_iter().flatten())
    });
    let spans = spans.filter(|value| value.is_finite() && *value > 0.0);
    let spans: Vec<f64> = spans.collect();
    let kinds: Kinds = shown.iter().map(|one| one.certainty).collect();
    // Leaves space on the right for the printed ratio, and a minimum span so that noise does not look large.
    let low = spans.iter().copied().fold(0.8, f64::min) * 0.93;
    let most = spans.iter().copied().fold(1.25, f64::max);
    let high = most * if kinds.exact { 3.0 } else { 1.6 };
    let y = json!({"field": "row", "type": "nominal", "sort": rows, "axis": null, "scale": {"paddingInner": 0.2}});
    // Bands behind every other row connect the label of a row with its marks.
    let bands = rows.iter().step_by(2).flat_map(|row| {
        let all = offsets.iter();
        all.map(move |offset| json!({"row": row, "offset": offset}))
    });
    let bands: Vec<_> = bands.collect();
    let offset = json!({"field": "offset", "type": "nominal", "sort": offsets, "scale": {"domain": offsets}});
    let longest = texts.iter().map(|text| text.chars().count()).max();
    let longest = longest.unwrap_or(0);
    let room = room_for_text(low, most, high, longest);
    let ticks = ratio_ticks(low, high);
    let ticks_of = |width| {
        apart(
            &ticks,
            (low, end_of_axis(low, most, high, longest, width)),
            width,
        )
    };
    let (narrow, wide) = (json!(ticks_of(LEAST.0)), json!(ticks_of(LEAST.1)));
    let ticks = json!({"expr": format!("width < {NARROW} ? {narrow} : {wide}")});
    let x = |field: &str| {
        json!({"field": field, "type": "quantitative", "scale": {"type": "log", "domainMin": low, "domainMax": room, "nice": false},
               "title": "ratio to the baseline (logarithmic)", "axis": {"values": ticks, "labelExpr": "format(datum.value, '.4~r')"}})
    };
    let tooltip = json!([
        {"field": "treatment", "title": "treatment"}, {"field": "baseline", "title": "against"},
        {"field": "interval", "title": kinds.titled("ratio")}, {"field": "evidence", "title": "evidence"},
        {"field": "verdict", "title": "verdict"}, {"field": "source", "title": "source"}
    ]);
    // The dashed line is in the rows of the marks, except where a ratio below 1 is printed across it: a figure in a file
    // has no background behind text.
    let top = "scale('y', datum.row) + scale('yOffset', datum.offset)";
    let covered =
        "datum.end < 1 && scale('x', 1) - scale('x', datum.end) < 7 * length(datum.text) + 12";
    let ends = json!([
        {"filter": "isValid(datum.ratio)"}, {"calculate": "isValid(datum.high) ? datum.high : datum.ratio", "as": "end"}
    ]);
    let side = |text: &str, align: &str, x: serde_json::Value| {
        json!({"data": {"values": [{}]},
               "mark": {"type": "text", "text": text, "align": align, "baseline": "bottom", "fontSize": 11, "color": "#444",
                        "x": x, "y": -4}})
    };
    let has_gains = shown.iter().any(|one| one.better == Better::Higher);
    let title = if analysis.has_variants() {
        "The change from the first variant on each platform"
    } else {
        "The tax of each platform over its baseline"
    };
    Some(Figure::new(
        "tax",
        title,
        caption_of_taxes(kinds, has_gains),
        json!({"step": 20}),
        json!({
            "data": {"values": values},
            "layer": [
                {"data": {"values": bands}, "mark": {"type": "rect", "color": "#888", "opacity": 0.1},
                 "encoding": {"y": y, "yOffset": offset, "x": {"value": 0}, "x2": {"value": "width"}}},
                {"transform": ends,
                 "mark": {"type": "rule", "strokeDash": [3, 3], "color": "#888", "opacity": {"expr": format!("{covered} ? 0 : 1")}},
                 "encoding": {"x": {"datum": 1}, "y": {"value": {"expr": top}},
                              "y2": {"value": {"expr": format!("{top} + bandwidth('yOffset')")}}}},
                {"transform": [{"filter": "isValid(datum.label)"}],
                 "mark": {"type": "text", "align": "left", "baseline": "middle", "fontSize": 11.5, "color": "#333",
                          "limit": {"expr": "width - (isValid(datum.better) ? 64 : 8)"}},
                 "encoding": {"y": y, "yOffset": offset, "x": {"value": 0}, "text": {"field": "label"}}},
                {"transform": [{"filter": "isValid(datum.better)"}],
                 "mark": {"type": "text", "align": "right", "baseline": "middle", "fontSize": 11, "color": "#444"},
                 "encoding": {"y": y, "yOffset": offset, "x": {"value": "width"}, "text": {"field": "better"}}},
                {"transform": [{"filter": "isValid(datum.low)"}], "mark": {"type": "rule", "strokeWidth": 2},
                 "encoding": {"y": y, "yOffset": offset, "x": x("low"), "x2": {"field": "high"},
                              "color": color(all, &named, true), "tooltip": tooltip}},
                {"transform": [{"filter": "isValid(datum.ratio)"}], "mark": {"type": "point", "filled": true, "size": 85, "opacity": 1},
                 "encoding": {"y": y, "yOffset": offset, "x": x("ratio"), "color": color(all, &named, true),
                              "shape": shape(all, &named, true), "tooltip": tooltip}},
                {"transform": ends,
                 "mark": {"type": "text", "align": "left", "baseline": "middle", "dx": 8, "fontSize": 11, "color": "#333"},
                 "encoding": {"y": y, "yOffset": offset, "x": x("end"), "text": {"field": "text"}}},
                side("← cheaper", "left", json!(0)),
                side("dearer →", "right", json!({"expr": "width"}))
            ]
        }),
    ))
}

/// The upper end of a logarithmic axis from `low`: at least `high`, and beyond `most` the room of a text of so many
/// letters in a figure of any width. Text takes at most six tenths of the figure.
fn room_for_text(low: f64, most: f64, high: f64, letters: usize) -> serde_json::Value {
    let text = width_of_text(letters);
    let part = format!("min(0.6, {text} / max(width, 1))");
    json!({"expr": format!("max({high}, {most} * pow({most} / {low}, {part} / (1 - {part})))")})
}

/// [`room_for_text`] in a figure of this width.
fn end_of_axis(low: f64, most: f64, high: f64, letters: usize, width: f64) -> f64 {
    let part = (width_of_text(letters) as f64 / width).min(0.6);
    high.max(most * (most / low).powf(part / (1.0 - part)))
}

/// The approximate width of a text of 11 px with its distance from its symbol, in pixels.
fn width_of_text(letters: usize) -> usize {
    6 * letters + 12
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_a_narrow_figure_do_not_touch_and_1_is_among_them() {
        for (low, high) in [
            (0.037, 53.0),
            (0.74, 2.0),
            (0.9, 1.3),
            (1e-6, 1e7),
            (0.4, 22.0),
        ] {
            let all = ratio_ticks(low, high);
            let of = |width: f64| {
                apart(
                    &all,
                    (low, end_of_axis(low, high / 1.6, high, 24, width)),
                    width,
                )
            };
            let (narrow, wide) = (of(LEAST.0), of(LEAST.1));
            assert!(
                narrow.len() <= wide.len() && narrow.contains(&1.0),
                "{narrow:?} {wide:?}"
            );
            assert!(narrow.len() >= 2, "{low}..{high}: {narrow:?}");
        }
        // "0.1" and "0.2" would touch.
        assert_eq!(
            apart(&[0.05, 0.1, 0.2, 0.5, 1.0, 2.0], (0.037, 1000.0), 280.0),
            [0.05, 0.2, 1.0, 2.0]
        );
    }

    #[test]
    fn a_tick_below_1_has_few_digits() {
        for tick in ratio_ticks(0.2, 0.7).iter().chain(&ratio_ticks(1e-6, 2.0)) {
            assert!(tick.to_string().len() <= 8, "{tick}");
        }
    }

    #[test]
    fn the_caption_says_which_side_is_dearer() {
        let costs = caption_of_taxes(Kinds::default(), false);
        assert!(
            costs.ends_with("Left of the line is cheaper, right of it dearer."),
            "{costs}"
        );
        let both = caption_of_taxes(Kinds::default(), true);
        assert!(
            both.contains(MORE_IS_BETTER) && both.ends_with("more is better."),
            "{both}"
        );
    }

    #[test]
    fn a_longer_label_gets_more_room_beside_the_highest_ratio() {
        let expr = |letters| room_for_text(0.7, 9.0, 14.0, letters)["expr"].to_string();
        assert!(expr(4).contains("min(0.6, 36 / max(width, 1))"));
        assert!(expr(24).contains("min(0.6, 156 / max(width, 1))"));
    }

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
