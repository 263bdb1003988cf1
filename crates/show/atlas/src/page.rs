// SPDX-License-Identifier: Apache-2.0
//! The page: one self-contained file without scripts.

use crate::catalogue::{Catalogue, Paper, Plan, Published};
use crate::claims::{FITTED, Judged, Score};
use crate::ours::{Number, Origin};
use crate::verdict::{FigureVerdict, Outcome, Ratio, SAME_SIZE};
use crate::{Compared, ComparedRow, Entry, coverage, matrix, summary};
use maud::{Markup, html};
use std::collections::BTreeMap;
use vtax_core::{Source, counted, metric, thousands};
use vtax_report::html::frame::{DASH, Page, badge, fold, prose, table};
use vtax_results::numbers;

/// Renders the page of these figures.
pub fn page(catalogue: &Catalogue, entries: &[Entry<'_>]) -> String {
    let papers = catalogue.papers.iter().map(|paper| {
        let own = entries
            .iter()
            .filter(|entry| entry.figure.paper == paper.key);
        (paper, own.collect::<Vec<_>>())
    });
    let papers: Vec<(&Paper, Vec<&Entry<'_>>)> =
        papers.filter(|(_, own)| !own.is_empty()).collect();
    Page {
        kind: "vtax atlas",
        name: "The papers’ figures, published beside ours",
        lede: &summary(entries),
        head: html! {},
        contents: html! {
            h2 { "Figures" }
            (matrix::matrix(&papers))
            (marks())
            (fold("How to read this page", false, &how_to_read()))
            (scores(entries))
            (fold("What the fitted cost model predicted", false, &predictions(entries)))
        },
        body: html! {
            @for (paper, own) in &papers {
                section id=(paper.key) {
                    h2 { (paper.authors) }
                    p.key { (paper.title) }
                    @for entry in own { (figure(catalogue, entry)) }
                }
            }
        },
        style: include_str!("../assets/atlas.css"),
        figures: None,
    }
    .render()
}

fn how_to_read() -> Markup {
    html! {
        p.key {
            "A published number is compared with ours as a ratio to the same baseline: watts at a wall plug, or seconds of another \
             machine, say nothing beside each other. The papers’ claims, fixed before the runs that judge them, have one vote each. A claim is "
            (outcome(Outcome::SameDirection)) " where the interval of our ratio excludes 1 on the published side and the ratio reaches the \
             claim’s minimum effect, whatever its size, " (outcome(Outcome::NoEffect)) " where the paper has none and the interval lies \
             within the minimum effect of 1, " (outcome(Outcome::Reversed)) " where it excludes 1 on the other side, " (outcome(Outcome::NotShown))
            " otherwise, and " (outcome(Outcome::Unknown)) " where nothing of ours measures the paper’s mechanism, or only one trial does. \
             An interval is of at least three draws, each with a seed, a start, a rate and an amount of memory of its own; a number of one draw \
             has the error that draws of its metric have. A claim that a cost model decides counts where every model of the paper’s years \
             gives the same verdict. An effect of the same direction also has the " (same_size())
            " where the logarithm of our ratio is " (SAME_SIZE.start()) " to " (SAME_SIZE.end()) " times the published one’s. A claim whose ratio \
             follows from a setting of ours has no vote. Series without a claim are shown and not counted."
        }
        p.key {
            "A figure has the same direction where each of its effects has, and there is at least one; the same size where each effect whose size \
             is printed has it. It contradicts where a claim is reversed, or has an effect where the paper has none."
        }
    }
}

/// The legend of the marks.
fn marks() -> Markup {
    html! {
        p.key {
            span.dot.published {} " published " span.dot.ours {} " ours, with its 95 % interval. Numbers that are not simply measured are marked "
            (badge("modelled")) " (computed by a model), " (badge("emulated")) " (of a guest whose instructions software emulated on a real host) or "
            (badge("simulated")) " (counted in an emulated host, whose times are not those of hardware)."
        }
    }
}

/// The scores of our numbers beside those of instruments that measure nothing.
fn scores(entries: &[Entry<'_>]) -> Markup {
    let (constant, best) = Score::of_best_constant(entries);
    let constant = format!("always {constant:.2}, the best constant");
    let instruments = [
        ("ours", Score::from_entries(entries)),
        ("always 1", Score::of_constant(entries, 1.0)),
        (&constant, best),
        (
            "the right direction, × 1.5",
            Score::of_directions(entries, 1.5),
        ),
        ("random, mean of 1,000", Score::of_random(entries)),
    ];
    let by = |columns: &[&str], cells: &dyn Fn(&Score) -> Vec<String>| {
        let rows = html! {
            @for (name, score) in &instruments {
                tr {
                    th scope="row" { (name) }
                    @for cell in cells(score) { td.number { (cell) } }
                }
            }
        };
        table([&[""], columns].concat(), &rows)
    };
    let others = [
        FigureVerdict::Partly,
        FigureVerdict::NotShown,
        FigureVerdict::Contradicts,
        FigureVerdict::Unknown,
    ];
    let columns = ["sign and size", "sign under all models", "sign"];
    let columns = [&columns[..], &others.map(FigureVerdict::name)].concat();
    let figures = by(&columns, &|score| {
        let same = score.figures_that_are(FigureVerdict::SameDirection);
        let counts = [score.sized_figures, same, score.signed_figures];
        let of_others = others.map(|verdict| score.figures_that_are(verdict));
        counts
            .iter()
            .chain(&of_others)
            .copied()
            .map(count)
            .collect()
    });
    let columns = [&["sign and size"], &Outcome::ALL.map(Outcome::name)[..]].concat();
    let claims = by(&columns, &|score| {
        let (same, all) = score.size;
        let sized = format!("{} of {}", count(same), count(all));
        let of_each = Outcome::ALL.map(|outcome| count(score.claims_that_are(outcome)));
        [&[sized], &of_each[..]].concat()
    });
    html! {
        h3 { "Score by figures, beside instruments that measure nothing" }
        (figures)
        p.key {
            (coverage(entries)) ". A figure is measured in part where a published row lacks a number of ours. The columns after the third \
             count under all models of the paper’s years. The other instruments answer every claim that has a test."
        }
        (fold("Score by claims", false, &html! {
            (claims)
            p.key { "Claims of no effect are conditions: alone they show nothing of a figure." }
        }))
    }
}

/// The ratios that the fitted cost model predicts, beside the published ones.
fn predictions(entries: &[Entry<'_>]) -> Markup {
    let claims = entries.iter().flat_map(|entry| {
        let claims = entry.claims.iter();
        claims.filter_map(move |one| Some((entry, one, one.fitted()?, one.published?.value)))
    });
    let rows = html! {
        @for (entry, one, fitted, published) in claims {
            tr {
                th scope="row" { a href={ "#" (entry.anchor()) } { (entry.figure.number) } ": " (one.claim.text) }
                td.number { (ratio(one.published)) }
                td.number { (one.ours_in_words()) }
                td.number { (numbers::ratio(fitted, None).line()) }
                td.number { (format!("{:+.0} %", 100.0 * (fitted / published - 1.0))) }
            }
        }
    };
    let columns = ["claim", "published", "ours", "fitted model", "its error"];
    html! {
        p.key {
            "The prices of " code { (FITTED) } " were fitted to the cycles of tables I and II of Shea, Wang and Liu alone, before any power was \
             predicted. Its errors below are of numbers that it had not seen, but for those two tables."
        }
        (table(columns, &rows))
    }
}

/// A count, or the mean of counts with one decimal.
fn count(value: f64) -> String {
    if (value - value.round()).abs() < 1e-6 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// An outcome as a coloured label.
fn outcome(outcome: Outcome) -> Markup {
    let class = match outcome {
        Outcome::SameDirection | Outcome::NoEffect => "yes",
        Outcome::NotShown | Outcome::Unknown => "open",
        Outcome::Reversed | Outcome::Unpublished => "no",
    };
    html! { span.outcome.(class) { (outcome.name()) } }
}

/// The label of an effect whose size is the published one.
fn same_size() -> Markup {
    html! { span.outcome.yes { (matrix::SAME_SIZE) } }
}

/// The verdict on a claim as coloured labels: its outcome, and its size where that is the published one.
fn verdict(one: &Judged<'_>) -> Markup {
    html! {
        (outcome(one.outcome))
        @if one.same_size() == Some(true) { " " (same_size()) }
    }
}

/// The verdict on a figure as coloured labels, the first with its sign.
fn figure_verdict(entry: &Entry<'_>) -> Markup {
    let (sign, class) = matrix::sign(entry.verdict());
    html! {
        span.outcome.(class) { (sign) " " (matrix::name(entry.verdict())) }
        @if entry.same_size() { " " (same_size()) }
    }
}

/// A claim in one line: what the paper says, the verdict, and both numbers.
fn claim_line(one: &Judged<'_>) -> Markup {
    html! {
        span.claim {
            (one.claim.text) " " (verdict(one)) " "
            @if one.claim.setting.is_some() { span.both { "no vote" } " " }
            span.both { "published " (one.published_in_words()) " · ours " (one.ours_in_words()) }
        }
    }
}

/// A figure, folded below its number, verdict, title and claims.
fn figure(catalogue: &Catalogue, entry: &Entry<'_>) -> Markup {
    let figure = entry.figure;
    let prose_of = [
        ("What differs.", &figure.differs),
        ("Not measured yet.", &figure.missing),
    ];
    html! {
        article {
          details.more {
            summary {
                b { (figure.number) } " " (figure_verdict(entry)) " " (figure.title)
                @for one in &entry.claims { (claim_line(one)) }
                @if !figure.uncounted.is_empty() { span.claim { "Not counted: " (figure.uncounted) "." } }
            }
            // A link to what is folded unfolds it.
            div id=(entry.anchor()) {
                @if !entry.claims.is_empty() { div.claims { (claims(&entry.claims)) } }
                @for compared in &entry.series { (series(catalogue, compared)) }
                @if entry.series.is_empty() {
                    p.key { "A chart whose points are not printed: only its shape could be compared." }
                }
                @for (head, text) in prose_of {
                    @if !text.is_empty() { p { b { (head) } " " (prose(text)) } }
                }
                (provenance(catalogue, entry))
            }
          }
        }
    }
}

/// The claims of a figure with the ratios that judge them.
fn claims(all: &[Judged<'_>]) -> Markup {
    let columns = [
        "claim",
        "published",
        "ours, with the interval of the verdict",
        "verdict",
        "the same under cost models",
        "share of the published effect",
    ];
    let rows = html! {
        @for one in all {
            tr {
                th scope="row" { (one.claim.text) span.detail { "mechanism: " (one.claim.mechanism) } }
                td.number { (published_effect(one)) }
                td.number { (one.ours_in_words()) }
                td {
                    (verdict(one))
                    @if let Some(reason) = one.reason() { span.detail { (reason) } }
                }
                td { (one.under_models().unwrap_or_else(|| DASH.to_owned())) }
                td.number { @if let Some(share) = one.share() { (format!("{share:.2}")) } @else { (DASH) } }
            }
        }
    };
    table(columns, &rows)
}

fn published_effect(one: &Judged<'_>) -> Markup {
    html! {
        @match (one.published, &one.claim.test) {
            (Some(published), _) => { (ratio(Some(published))) }
            (None, Some(test)) => {
                (test.effect.name())
                span.detail { "its size is not printed" }
            }
            (None, None) => { (DASH) }
        }
        @if let Some(test) = &one.claim.test { span.detail { "minimum effect × " (test.minimum) } }
    }
}

fn series(catalogue: &Catalogue, compared: &Compared<'_>) -> Markup {
    let series = compared.series;
    let is_printed = compared.rows.iter().any(|row| row.published.is_some());
    let to = |of: &str| format!("{of}, to {}", series.baseline);
    let columns = ["", "published", "ours", &to("published"), &to("ours")];
    let rows = html! {
        @for row in &compared.rows {
            tr {
                th scope="row" { (row.row.system) }
                td.number { @if let Some(number) = row.published { (published(number)) } @else { (DASH) } }
                td.number { (ours(row)) }
                td.number { (ratio(compared.published_ratio(row))) }
                td.number { (ratio(compared.our_ratio(row))) }
            }
        }
    };
    html! {
        h4 { (series.what) @if !series.unit.is_empty() { ", " (series.unit) } @if !is_printed { " (a chart without printed numbers: its shape alone)" } }
        (chart(compared))
        div.series { (table(columns, &rows)) }
        @for absent in compared.rows.iter().filter(|row| row.absent.is_some()) {
            p.key { "The stored run of " (absent.absent.as_deref().unwrap_or_default()) " has no number for " (absent.row.system) "." }
        }
        @if let (false, Some(plan)) = (compared.has_ours(), catalogue.plans.get(&series.plan)) {
            p.key {
                "plans/" (plan.file) " measures it: "
                code { (command(plan, &series.plan, false, series.at.as_deref())) }
            }
        }
    }
}

/// The shell command that runs a plan.
fn command(plan: &Plan, name: &str, quick: bool, at: Option<&str>) -> String {
    let words = plan.arguments("plans", &format!("atlas-results/{name}"), quick, at);
    format!("vtax {}", words.join(" "))
}

/// A published number: all printed digits, or three digits of a computed one.
fn published(number: Published) -> Markup {
    html! {
        @if number.approximate { "≈ " }
        @match (number.range, number.derived) {
            (Some((low, high)), _) => { (low) "–" (high) }
            (None, true) => {
                (numbers::scaled(number.value, None, 1.0, String::new()).value)
                span.detail { "computed from printed ones" }
            }
            (None, false) => { (thousands(number.value)) }
        }
    }
}

fn ours(row: &ComparedRow<'_>) -> Markup {
    html! {
        @if let Some((key, number, origin)) = &row.ours {
            (numbers::estimate(number.value, number.interval, number.unit).line())
            // A place to break the line: without it a narrow page breaks between the number and its unit.
            " " (badges(&key.metric, number))
            span.detail { (repeated(number, origin)) }
            @if row.is_earlier { span.detail { "of an earlier text of the plan" } }
        } @else {
            (DASH)
        }
    }
}

/// The number of repetitions, the planned ones where they are more, and the varied factor.
fn repeated(number: &Number, origin: &Origin) -> String {
    let planned = origin.planned as usize;
    let of = if planned > number.n {
        format!(" of {planned} planned")
    } else {
        String::new()
    };
    match number.varies.strip_prefix("exact") {
        Some(seed) => format!("n = {}{of}, exact{seed}", number.n),
        None => format!("n = {}{of}", counted(number.n, &number.varies)),
    }
}

/// The flags of a number. A modelled number of an emulated guest or host has both.
fn badges(metric: &str, number: &Number) -> Markup {
    html! {
        @if metric::MODEL.part(metric).is_some() || number.source == Source::Modelled { (badge(Source::Modelled)) }
        @if number.source > Source::Modelled { (badge(number.source)) }
    }
}

fn ratio(ratio: Option<Ratio>) -> String {
    ratio.map_or(DASH.to_owned(), |ratio| {
        numbers::ratio(ratio.value, ratio.interval).line()
    })
}

/// The ratios on a logarithmic scale: a dot for the published ratio, a dot with its interval for ours. The chart is
/// rows of HTML, so that its text is legible at any width and on paper.
fn chart(compared: &Compared<'_>) -> Markup {
    let rows = compared.rows.iter().map(|row| {
        let published = compared.published_ratio(row);
        (&row.row.system, published, compared.our_ratio(row))
    });
    let rows: Vec<_> = rows
        .filter(|(_, published, ours)| published.or(*ours).is_some())
        .collect();
    let all = rows
        .iter()
        .flat_map(|(_, published, ours)| [*published, *ours]);
    let ends = all.flatten().flat_map(|ratio| {
        let ends = ratio.interval.map(|i| [i.low, i.high]);
        [ratio.value].into_iter().chain(ends.into_iter().flatten())
    });
    let ends: Vec<f64> = ends.filter(|end| *end > 0.0 && end.is_finite()).collect();
    if ends.len() < 2 {
        return html! {};
    }
    let low = ends.iter().copied().fold(1.0, f64::min) / 1.1;
    let high = ends.iter().copied().fold(1.0, f64::max) * 1.1;
    let at = |value: f64| {
        let share = (value.max(low) / low).ln() / (high / low).ln();
        (share.clamp(0.0, 1.0) * 1000.0).round() / 10.0
    };
    let ticks: Vec<(f64, f64)> = ticks(low, high).into_iter().map(|t| (t, at(t))).collect();
    let narrow = apart(&ticks, NARROW);
    let mark = |class: &str, ratio: Option<Ratio>| {
        html! {
            @if let Some(ratio) = ratio.filter(|ratio| ratio.value > 0.0) {
                @if let Some(interval) = ratio.interval {
                    @let (from, to) = (at(interval.low), at(interval.high));
                    i class={ "span " (class) } style=(format!("left:{from}%;width:{:.1}%", to - from)) {}
                }
                i class={ "dot " (class) } style={ "left:" (at(ratio.value)) "%" } {}
            }
        }
    };
    html! {
        div.chart aria-hidden="true" {
            @for (system, published, ours) in &rows {
                div.bar {
                    span.name { (system) }
                    span.track {
                        i.one style={ "left:" (at(1.0)) "%" } {}
                        (mark("ours", *ours))
                        (mark("published", *published))
                    }
                }
            }
            div.bar.axis {
                span.name {}
                span.track {
                    @for (tick, at) in apart(&ticks, WIDE) {
                        i.tick.dense[!narrow.contains(&(tick, at))] style={ "left:" (at) "%" } { (tick) "×" }
                    }
                }
            }
        }
    }
}

/// The width of a tick's label, in percent of the scale: on a desktop screen, and on a screen of 360 pixels.
const WIDE: f64 = 9.0;
const NARROW: f64 = 21.0;

/// The ticks with positions that are at least `far` apart. Ticks next to 1 have priority.
fn apart(ticks: &[(f64, f64)], far: f64) -> Vec<(f64, f64)> {
    let mut nearest = ticks.to_vec();
    nearest.sort_by(|(a, _), (b, _)| a.ln().abs().total_cmp(&b.ln().abs()));
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for (tick, at) in nearest {
        if kept.iter().all(|(_, other)| (other - at).abs() >= far) {
            kept.push((tick, at));
        }
    }
    kept
}

/// At most five round numbers from `low` to `high`.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let within = |steps: &[f64]| {
        let decades = -6..=6;
        let all = decades.flat_map(|decade| steps.iter().map(move |step| (decade, step)));
        // Negative powers of ten are not exact; quotients are.
        let numbers = all.map(|(decade, step)| match decade {
            0.. => step * 10f64.powi(decade),
            _ => step / 10f64.powi(-decade),
        });
        numbers
            .filter(|tick| (low..=high).contains(tick))
            .collect::<Vec<_>>()
    };
    let fine = within(&[1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 7.0, 8.0, 9.0]);
    let coarse = [fine, within(&[1.0, 2.0, 5.0]), within(&[1.0])];
    coarse
        .into_iter()
        .find(|ticks| ticks.len() <= 5)
        .unwrap_or_default()
}

/// The plans, their commands and hosts.
fn provenance(catalogue: &Catalogue, entry: &Entry<'_>) -> Markup {
    let rows = entry.series.iter().flat_map(|compared| &compared.rows);
    let found = rows.filter_map(|row| row.ours.as_ref());
    let origins: BTreeMap<&str, &Origin> = found
        .map(|(key, _, origin)| (key.plan.as_str(), *origin))
        .collect();
    let plans = catalogue.plans_of(&[entry.figure], false);
    if plans.is_empty() {
        return html! {};
    }
    html! {
        dl.origin {
            @for (name, plan) in plans {
                @let origin = origins.get(name);
                @let place = origin.map(|origin| origin.place.as_str());
                @let quick = origin.is_some_and(|origin| origin.profile == "quick");
                dt { "plan" } dd { "plans/" (plan.file) }
                dt { "command" } dd { code { (command(plan, name, quick, place)) } }
                @if let Some(origin) = origin {
                    dt { "host" } dd { (origin.place) ": " (origin.host) }
                    dt { "run" }
                    dd {
                        (origin.started) ", " (origin.profile) " profile, vtax " (origin.vtax)
                        ", plan " (origin.plan_sha256.get(..12).unwrap_or(&origin.plan_sha256))
                    }
                } @else {
                    dt { "run" } dd { "none yet" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
