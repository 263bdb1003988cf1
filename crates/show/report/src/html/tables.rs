// SPDX-License-Identifier: Apache-2.0
//! The tables of a report: metrics, levels, actors, comparisons, treatments and trials.

use super::frame::{DASH, TABLES, badge, fold, prose, section, table};
use crate::analysis::certainty::Kinds;
use crate::analysis::{
    ActorSummary, Analysis, Certainty, Comparison, LevelSummary, MetricSummary, TreatmentSummary,
    TrialRow, distinct_metrics, find_metric, not_separable, separable,
};
use crate::figures::Platforms;
use maud::{Markup, html};
use std::collections::{BTreeMap, HashMap};
use std::iter::once;
use vtax_core::metric::{self, Metric};
use vtax_core::{Source, counted};
use vtax_results::numbers::{estimate, plain, when};
use vtax_results::stats::{SteadyState, Verdict};

/// All tables.
pub(super) fn tables(analysis: &Analysis) -> Markup {
    let all = Platforms::from_analysis(analysis);
    let compared = analysis.compared();
    section(
        TABLES,
        &html! {
            (legend(analysis))
            @for (workload, treatments) in analysis.by_workload() {
                (metrics(workload, &treatments, &compared, &all))
                (levels(workload, &treatments, &all))
                @for summary in treatments.iter().filter(|one| one.has_neighbours()) {
                    (actors(workload, summary))
                }
            }
            (comparisons(analysis))
            (variance(analysis))
            (treatments(analysis, &all))
            (left_out(analysis))
            (trials(analysis))
        },
    )
}

/// The legend of the cells.
fn legend(analysis: &Analysis) -> Markup {
    let metrics = analysis.treatments.iter().flat_map(|of| &of.metrics);
    let kinds: Kinds = metrics.map(|metric| metric.certainty).collect();
    let ratio = analysis.ratio_name();
    let exact = format!(
        "xact for this host, image and seed; below it the {ratio}, the seed and the number of trials."
    );
    html! {
        p.key {
            @if kinds.has_intervals() {
                "Mean with its " (kinds.interval()) "; below it the " (ratio) ", which is the ratio to the baseline (● a difference is shown, \
                 ○ none is shown), the median, the standard deviation (SD) and the number of trials."
                @if kinds.exact { " What has a seed there: e" (exact) }
            } @else {
                "E" (exact)
            }
        }
    }
}

fn swatch(platform: &str, all: &Platforms) -> Markup {
    html! { span.swatch style={ "background:" (all.color(platform)) } {} }
}

/// A treatment's short name with its platform's colour.
fn short_name(summary: &TreatmentSummary, all: &Platforms) -> Markup {
    html! { (swatch(&summary.treatment.platform, all)) (summary.short) }
}

/// A metric's title, above its name in plans and queries.
fn metric_name(metric: &MetricSummary) -> Markup {
    html! { th scope="row" { (metric.title) span.detail { (breakable(&metric.name)) } } }
}

/// A metric's name, which a narrow column may break after a dot or an underscore.
fn breakable(name: &str) -> Markup {
    html! { @for part in name.split_inclusive(['.', '_']) { (part) wbr; } }
}

/// The flags of a number.
fn badges(source: Source, modelled: bool) -> Markup {
    html! { @for flag in source.flags(modelled) { (badge(flag)) } }
}

/// Comparisons with baselines by treatment and metric.
type Compared<'a> = HashMap<(&'a str, &'a str), &'a Comparison>;

/// The headline metrics of a workload, and the others folded.
fn metrics(
    workload: &str,
    treatments: &[&TreatmentSummary],
    compared: &Compared<'_>,
    all: &Platforms,
) -> Markup {
    let metrics = distinct_metrics(treatments.iter().flat_map(|summary| &summary.metrics));
    let (headline, rest): (Vec<_>, Vec<_>) =
        metrics.into_iter().partition(|metric| metric.headline);
    let columns = treatments.iter().map(|summary| Column {
        head: short_name(summary, all),
        metrics: &summary.metrics,
        label: &summary.treatment.label,
    });
    let columns: Vec<Column<'_>> = columns.collect();
    let rows = |metrics: &[&MetricSummary]| grid(metrics, &columns, scatter, compared);
    html! {
        h3 { (workload) }
        @if headline.is_empty() && rest.is_empty() {
            p { "No trial that counts." }
        }
        @if !headline.is_empty() { (rows(&headline)) }
        @if !rest.is_empty() {
            (fold(&format!("{workload}: {}", counted(rest.len(), "other metric")), headline.is_empty(), &rows(&rest)))
        }
    }
}

/// A column of a grid: its heading, and the metrics of a treatment or of an actor.
struct Column<'a> {
    head: Markup,
    metrics: &'a [MetricSummary],
    /// The treatment's label; empty for an actor.
    label: &'a str,
}

/// A table with a row for each metric.
fn grid(
    metrics: &[&MetricSummary],
    columns: &[Column<'_>],
    detail: fn(&MetricSummary) -> String,
    compared: &Compared<'_>,
) -> Markup {
    let heads = columns.iter().map(|column| column.head.clone());
    let rows = html! {
        @for metric in metrics {
            tr {
                (metric_name(metric))
                @for Column { metrics, label, .. } in columns {
                    @let key = (*label, metric.name.as_str());
                    (mean(find_metric(metrics, &metric.name), detail, compared.get(&key).copied()))
                }
            }
        }
    };
    table(once(html! { "metric" }).chain(heads), &rows)
}

/// The tax of a cell in words, with the mark of its verdict.
fn tax(compared: &Comparison) -> Markup {
    let different = compared.judgement.verdict == Verdict::Different;
    html! {
        @if let Some(ratio) = compared.ratio_in_words() {
            span.tax title=(compared.judgement.verdict.words()) {
                @if different { "● " } @else { "○ " } (ratio)
            }
        }
    }
}

/// One metric's cell: the mean with its interval, above its tax and `detail`.
fn mean(
    metric: Option<&MetricSummary>,
    detail: fn(&MetricSummary) -> String,
    compared: Option<&Comparison>,
) -> Markup {
    html! {
        @if let Some(metric) = metric {
            td.value {
                span.whole { (estimate(metric.description.mean, metric.interval, metric.unit).line()) }
                (badges(metric.source, metric.modelled))
                @if let Some(compared) = compared { (tax(compared)) }
                span.detail { (detail(metric)) }
                @if let Some(within) = metric.within_in_words() { span.detail { (within) } }
            }
        } @else {
            td { (DASH) }
        }
    }
}

/// Median, standard deviation and number of trials.
fn scatter(metric: &MetricSummary) -> String {
    let what = metric.description;
    match metric.certainty {
        Certainty::Exact { seed } => format!("exact, seed {seed}, n\u{a0}=\u{a0}{}", what.n),
        _ => {
            let of = |value| plain(value, metric.unit);
            let sd = what
                .sd
                .map_or(String::new(), |sd| format!("SD {}, ", of(sd)));
            let median = of(what.median);
            format!("median {median}, {sd}n\u{a0}=\u{a0}{}", what.n)
        }
    }
}

/// The number of trials.
fn size(metric: &MetricSummary) -> String {
    let exact = if metric.certainty.is_exact() {
        "exact, "
    } else {
        ""
    };
    format!("{exact}n = {}", metric.description.n)
}

/// Metrics of each level in a table of levels, if present.
const LEVEL_METRICS: [&Metric; 6] = [
    metric::THROUGHPUT,
    metric::LATENCY_P50,
    metric::LATENCY_P99,
    metric::ERRORS,
    metric::CPU_CORES,
    metric::POWER_MEAN,
];

fn levels(workload: &str, treatments: &[&TreatmentSummary], all: &Platforms) -> Markup {
    let levels: Vec<(&TreatmentSummary, &LevelSummary)> = treatments
        .iter()
        .flat_map(|summary| summary.levels.iter().map(move |level| (*summary, level)))
        .collect();
    let first = |metric: &&Metric| levels.iter().find_map(|(_, of)| of.metric(metric.name));
    let metrics: Vec<&MetricSummary> = LEVEL_METRICS.iter().filter_map(first).collect();
    let titles = metrics.iter().map(|metric| metric.title.as_str());
    let columns = ["treatment", "load", "objective kept"];
    let rows = html! {
        @for (summary, level) in &levels {
            tr {
                th scope="row" { (short_name(summary, all)) }
                td.number { (level_in_words(level)) }
                td { @if level.judged == 0 { (DASH) } @else { (level.kept) " of " (level.judged) } }
                @for metric in &metrics { (mean(level.metric(&metric.name), size, None)) }
            }
        }
    };
    html! {
        @if !metrics.is_empty() {
            (fold(&format!("{workload}: {} of load", counted(levels.len(), "level")), false, &table(columns.into_iter().chain(titles), &rows)))
        }
    }
}

/// A level's name, with the offered load where random arrivals moved it by more than 1 %.
fn level_in_words(level: &LevelSummary) -> String {
    let asked = level.level.value;
    let offered = level.metric(metric::OFFERED.name);
    match offered.map(|offered| offered.description.mean) {
        Some(offered) if (offered / asked - 1.0).abs() > 0.01 => {
            format!("{} (offered {offered:.0})", level.name)
        }
        _ => level.name.clone(),
    }
}

/// The other actors' metrics, beside the target's of the same name.
fn actors(workload: &str, summary: &TreatmentSummary) -> Markup {
    let actors = summary.actors.iter();
    let actors: Vec<&ActorSummary> = actors.filter(|actor| !actor.metrics.is_empty()).collect();
    let metrics = distinct_metrics(actors.iter().flat_map(|actor| &actor.metrics));
    let others = actors.iter().map(|actor| Column {
        head: html! { (actor.name) span.detail { (actor.facts) } },
        metrics: &actor.metrics,
        label: "",
    });
    let target = Column {
        head: html! { "target" },
        metrics: &summary.metrics,
        label: "",
    };
    let columns: Vec<Column<'_>> = once(target).chain(others).collect();
    html! {
        @if !metrics.is_empty() {
            h3 { (workload) ", " (summary.short) ", by actor" }
            (grid(&metrics, &columns, size, &HashMap::new()))
        }
    }
}

fn comparisons(analysis: &Analysis) -> Markup {
    let (headline, rest): (Vec<&Comparison>, Vec<&Comparison>) =
        (analysis.comparisons.iter()).partition(|comparison| comparison.headline);
    html! {
        @for (of, comparisons) in [("headline", &headline), ("other", &rest)] {
            @if !comparisons.is_empty() {
                (fold(&format!("{} of {of} metrics with the baseline", counted(comparisons.len(), "comparison")), false, &comparison_rows(comparisons, analysis.ratio_name())))
            }
        }
    }
}

fn comparison_rows(comparisons: &[&Comparison], ratio: &str) -> Markup {
    let rows = html! {
        @for comparison in comparisons {
            tr {
                th scope="row" { (comparison.treatment) span.detail { "against " (comparison.baseline) } }
                td { (comparison.title) }
                td.number {
                    (comparison.ratio_in_words().as_deref().unwrap_or(DASH))
                    (badges(comparison.source, comparison.modelled))
                }
                td.number { (comparison.repetitions().as_deref().unwrap_or(DASH)) }
                td { (comparison.tax.map_or(DASH.into(), |tax| format!("{:.2}", tax.effect))) }
                td { (probability(comparison.tax.map(|tax| tax.p))) }
                td { (probability(comparison.judgement.adjusted_p)) }
                td {
                    (comparison.judgement.verdict.words())
                    @if let Some(needed) = comparison.needed_in_words() { "; " (needed) }
                    @if let Some(note) = &comparison.note { span.detail { (prose(note)) } }
                }
            }
        }
    };
    let tests = ["Cliff’s δ", "p, Student’s t", "p, adjusted"];
    let head = ["treatment", "metric", ratio, "n"].into_iter();
    table(head.chain(tests).chain(["verdict"]), &rows)
}

fn probability(p: Option<f64>) -> String {
    match p {
        None => DASH.to_owned(),
        Some(p) if p < 0.001 => "< 0.001".to_owned(),
        Some(p) => format!("{p:.3}"),
    }
}

/// Steadiness by series, in one line.
fn in_words(steady: &BTreeMap<String, SteadyState>) -> String {
    let words = steady.iter();
    let words = words.map(|(series, class)| format!("{series}: {class}"));
    words.collect::<Vec<_>>().join("; ")
}

/// The variance of headline metrics by level, with the recommended repetitions.
fn variance(analysis: &Analysis) -> Markup {
    let all = &analysis.variance;
    let names = separable(all);
    let rows = html! {
        @for of in all {
            tr {
                th scope="row" { (of.treatment) }
                td { (of.title) span.detail { (breakable(&of.metric)) } }
                @for name in &names {
                    td.number { (of.level(name).map_or(DASH.into(), |level| level.in_words())) }
                }
                td.number { (of.window_in_words().as_deref().unwrap_or(DASH)) }
                td { (of.needed_in_words().as_deref().unwrap_or(DASH)) }
            }
        }
    };
    let columns = names.iter().map(|name| format!("between {name}s"));
    let recommended = ["best measured window", "repetitions"].map(str::to_owned);
    let head = ["treatment", "metric"].map(str::to_owned).into_iter();
    let content = html! {
        p.key {
            "Share of each level in the variance of one sample of a second (of one trial where there are no samples), and standard deviation relative to the mean (Kalibera and Jones 2013). "
            "The best measured window gives the most precise mean in a given time, with the time of boot, warm-up and teardown of these trials. "
            @for sentence in not_separable(all) { (sentence) " " }
        }
        (table(head.chain(columns).chain(recommended), &rows))
    };
    html! { @if !all.is_empty() { (fold("Variance by level, and recommended repetitions", false, &content)) } }
}

fn treatments(analysis: &Analysis, all: &Platforms) -> Markup {
    let rows = html! {
        @for summary in &analysis.treatments {
            tr {
                th scope="row" { (swatch(&summary.treatment.platform, all)) (summary.treatment.label) }
                td { (summary.counts.counted) }
                td { (summary.counts.suspect + summary.counts.failed) }
                td { @if summary.steady.is_empty() { (DASH) } @else { (in_words(&summary.steady)) } }
                @for phase in ["boot", "service", "warmup", "measured", "teardown"] {
                    td.number { (summary.phases.get(phase).map_or(DASH.into(), |seconds| format!("{seconds:.1} s"))) }
                }
            }
        }
    };
    let watching = &analysis.observation;
    let content = html! {
        (table(["treatment", "count", "left out", "steadiness", "boot", "service", "warm-up", "measured", "teardown"], &rows))
        @if let (Some(mean), Some(worst)) = (watching.cores, watching.worst_cores) {
            p.key {
                (format!("Watching cost {:.2} % of one core on average and {:.2} % in the worst trial", mean * 100.0, worst * 100.0))
                ", over " (watching.passes) " sampling passes, of which " (watching.missed) " more were missed."
            }
        }
    };
    let treatments = counted(analysis.treatments.len(), "treatment");
    let summary = format!("{treatments}: trials, steadiness, time by phase");
    fold(&summary, false, &content)
}

fn left_out(analysis: &Analysis) -> Markup {
    let row = |trial: String, treatment: &str, state: Markup, reason: &str| {
        html! { tr { td { (trial) } td { (treatment) } td { (state) } td.reason { (prose(reason)) } } }
    };
    // An earlier attempt precedes its replacement.
    let attempts = analysis.attempts.iter().map(|attempt| {
        let trial = format!("{:04}.{}", attempt.index, attempt.attempt);
        let state = html! { (attempt.state) span.detail { "run again: " (attempt.replacement) } };
        let row = row(trial, &attempt.treatment, state, &attempt.reason);
        (attempt.index, false, row)
    });
    let is_left_out = |trial: &&TrialRow| !trial.counts();
    let trials = analysis.trials.iter().filter(is_left_out).map(|trial| {
        let (number, state) = (format!("{:04}", trial.index), html! { (trial.state()) });
        let suspect = || trial.suspect.join("; ");
        let reason = trial.failed.clone().unwrap_or_else(suspect);
        let row = row(number, &trial.treatment, state, &reason);
        (trial.index, true, row)
    });
    let mut rows: Vec<(u32, bool, Markup)> = attempts.chain(trials).collect();
    rows.sort_by_key(|(index, replaced, _)| (*index, *replaced));
    let number = rows.len() + analysis.unreadable.len();
    let rows = html! {
        @for (.., row) in &rows { (row) }
        @for reason in &analysis.unreadable {
            (row(DASH.to_owned(), DASH, html! { "damaged" }, reason))
        }
    };
    let table = table(["trial", "treatment", "state", "reason"], &rows);
    html! {
        div #left-out {
            @if number == 0 {
                p.key { "No trial was left out." }
            } @else {
                (fold(&format!("{} left out, with reasons", counted(number, "trial")), false, &table))
            }
        }
    }
}

fn trials(analysis: &Analysis) -> Markup {
    let rows = html! {
        @for trial in &analysis.trials {
            tr class=[(!trial.counts()).then_some("left-out")] {
                td { (format!("{:04}", trial.index)) }
                td { (trial.block) }
                td { (trial.treatment) }
                td.number { (when(&trial.started)) }
                td.number { (format!("{:.1} s", trial.phases.get("total").copied().unwrap_or(0.0))) }
                td { (in_words(&trial.steady)) }
                td { (trial.state()) }
            }
        }
    };
    html! {
        @if !analysis.trials.is_empty() {
            (fold(
                &format!("All {} in the order they ran", counted(analysis.trials.len(), "trial")),
                false,
                &table(["trial", "block", "treatment", "started", "took", "steadiness", "state"], &rows),
            ))
        }
    }
}
