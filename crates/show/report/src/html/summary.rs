// SPDX-License-Identifier: Apache-2.0
//! The top of a report: the run, its caveats, and its findings.

use super::frame::{SUMMARY, banner, figure_place, fold, prose, prose_with, run_facts, section};
use crate::analysis::certainty::{Kinds, ONE_SEED};
use crate::analysis::words::{at_every_look, is_leading, tax_changes};
use crate::analysis::{Analysis, Sentence, adjusted_in_words, asked_effect, knee_in_words};
use crate::figures::Figure;
use maud::{Markup, html};
use std::collections::HashMap;
use vtax_core::{Source, counted, metric};
use vtax_results::numbers::percent;
use vtax_results::stats::Verdict;

/// The run and its caveats.
pub(super) fn head(analysis: &Analysis) -> Markup {
    let counts = analysis.counts;
    let trials = html! {
        b { (counts.counted) " of " (counts.planned) } " trials count" @if counts.counted == 1 { "s" }
    };
    html! {
        (run_facts(&analysis.place, &analysis.started, &analysis.profile, analysis.seed, &trials))
        @if analysis.profile == "quick" {
            (banner("Quick profile.", "Trials were cut short for a first look. Run the full plan before you draw conclusions."))
        }
        @if let Some(advice) = &analysis.advice {
            (banner("Nothing counts.", html! {
                (prose(advice)) " The suspect trials’ values are shown without intervals, to look at."
            }))
        } @else if analysis.provisional {
            (banner("Provisional.", "Some treatment has only suspect trials, so suspect trials are shown and no difference is claimed. \
                The table of trials names the reasons; run again when the host is quiet."))
        }
        @for installations in &analysis.installations {
            (banner("Two installations.", prose(installations.trim_start_matches("Two installations are compared: "))))
        }
        @if analysis.source == Some(Source::Emulated) {
            (banner("Emulated.", "Numbers marked so come from a guest whose instructions were emulated in software, not run by the \
                processor. They show how the method works and what emulation costs, not what hardware virtualization costs."))
        }
        @if analysis.source == Some(Source::Simulated) {
            (banner("Simulated.", "Numbers marked so come from an emulated host. It runs the same instructions as a real one, and \
                its times are not those of hardware."))
        }
        @if counts.pending > 0 && analysis.sequential {
            (banner("Ended early.", html! {
                "The rule of its plan ended the run, or it is not finished: " (counted(counts.pending, "trial"))
                @if counts.pending == 1 { " was" } @else { " were" } " not run."
            }))
        } @else if counts.pending > 0 {
            (banner("Unfinished.", html! {
                (counted(counts.pending, "trial")) @if counts.pending == 1 { " was" } @else { " were" } " not run yet."
            }))
        }
    }
}

/// The verdict on each platform in one line, the first figure, and the findings, folded.
pub(super) fn found(analysis: &Analysis, first: Option<&Figure>) -> Markup {
    let verdicts = analysis.platform_verdicts();
    section(
        SUMMARY,
        &html! {
            @if verdicts.is_empty() {
                p { "Nothing was compared: no treatment with a baseline has a trial that counts." }
            } @else {
                ul.findings {
                    @for of in &verdicts {
                        li class=[of.different.then_some("different")] { b { (of.title) } ", " (with_bold_ratios(&of.text)) }
                    }
                }
                @for of in tax_changes(analysis).iter().filter(|of| is_leading(of)) {
                    p { (with_bold_ratios(&of.text)) }
                }
                p.key { "● a difference is shown. ○ none is shown, which is not proof of equality." }
            }
            (knees(analysis))
            @if let Some(figure) = first { (figure_place(1, figure)) }
            (sentences(analysis))
            @if !analysis.energy.is_empty() {
                (fold("Energy: meters, model and idle power", false, &html! {
                    ul { @for line in &analysis.energy { li { (prose(line)) } } }
                }))
            }
            (left_out(analysis))
        },
    )
}

/// The knees of the treatments.
fn knees(analysis: &Analysis) -> Markup {
    html! {
        @for (workload, treatments) in analysis.by_workload() {
            @let knees: Vec<String> = treatments.iter().filter_map(|summary| knee_in_words(summary)).collect();
            @if !knees.is_empty() {
                p.key { (workload) ", the highest load that kept the objective:" }
                ul.knees { @for knee in &knees { li { (knee) } } }
            }
        }
    }
}

/// All findings by workload, folded, with their legend.
fn sentences(analysis: &Analysis) -> Markup {
    let mut sentences: HashMap<&str, Vec<&Sentence>> = HashMap::new();
    for sentence in &analysis.sentences {
        let workload = sentence.workload.as_str();
        sentences.entry(workload).or_default().push(sentence);
    }
    let all = html! {
        @for (workload, _) in analysis.by_workload() {
            @let found = sentences.remove(workload).unwrap_or_default();
            @if !found.is_empty() {
                h3 { (workload) }
                (of_workload(&found))
            }
        }
        (legend(analysis))
    };
    let summary = counted(analysis.sentences.len(), "finding") + " in sentences";
    html! { @if !analysis.sentences.is_empty() { (fold(&summary, false, &all)) } }
}

/// Number of findings of a workload above which those of other metrics than the first are folded.
const FOLD_METRICS_ABOVE: usize = 4;

/// Number of findings above which those without a difference are folded.
const FOLD_EQUAL_ABOVE: usize = 8;

/// The findings of one workload: those of processor time, or of its first metric, before the figures; the others folded.
fn of_workload(found: &[&Sentence]) -> Markup {
    let is_cpu = |sentence: &&&Sentence| metric::CPU_PER_WORK.is(&sentence.metric);
    let lead = found.iter().find(is_cpu).or(found.first());
    let is_first = |of: &&Sentence| {
        found.len() <= FOLD_METRICS_ABOVE || lead.is_some_and(|lead| lead.metric == of.metric)
    };
    let (first, more): (Vec<&Sentence>, Vec<&Sentence>) = found.iter().copied().partition(is_first);
    html! {
        (different_first(&first))
        @if !more.is_empty() {
            (fold(&format!("{} of other metrics", counted(more.len(), "finding")), false, &different_first(&more)))
        }
    }
}

/// Findings with a difference, then those without. In a large sweep the latter are folded so that the others are visible.
fn different_first(found: &[&Sentence]) -> Markup {
    let (different, other): (Vec<&Sentence>, Vec<&Sentence>) =
        (found.iter().copied()).partition(|sentence| sentence.verdict == Verdict::Different);
    html! {
        (findings(&different))
        @if found.len() > FOLD_EQUAL_ABOVE && !other.is_empty() {
            (fold(
                &format!("{} without a difference shown", counted(other.len(), "comparison")),
                false,
                &findings(&other),
            ))
        } @else {
            (findings(&other))
        }
    }
}

fn findings(sentences: &[&Sentence]) -> Markup {
    html! {
        @if !sentences.is_empty() {
            ul.findings {
                @for sentence in sentences {
                    li class=[(sentence.verdict == Verdict::Different).then_some("different")] { (prose_with(&sentence.text, with_bold_ratios)) }
                }
            }
        }
    }
}

fn with_bold_ratios(text: &str) -> Markup {
    let is_ratio = |word: &str| {
        let number = word.trim_end_matches([',', ')']).strip_suffix('×');
        number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()))
    };
    html! {
        @for (place, word) in text.split(' ').enumerate() {
            @let bare = word.trim_start_matches('(');
            @if place > 0 { " " }
            @if is_ratio(bare) {
                (word.strip_suffix(bare).unwrap_or_default()) b { (bare) }
            } @else {
                (word)
            }
        }
    }
}

/// The legend of the findings.
fn legend(analysis: &Analysis) -> Markup {
    let compared = analysis.comparisons.iter();
    let kinds: Kinds = compared.map(|comparison| comparison.certainty).collect();
    let least = percent(analysis.minimum_effect);
    html! {
        @if kinds.has_intervals() {
            p.key {
                "● a difference: the interval, adjusted for the number of comparisons, excludes 1. ○ the same within " (least)
                ": the whole interval is nearer to 1 than that, whether it excludes 1 or not. ○ none shown, which is not proof of equality: the interval says what remains possible, and how many more repetitions would show "
                (percent(asked_effect(analysis.minimum_effect))) " with a chance of 80 %."
                @if kinds.seeds { " Where n counts seeds, intervals say how much chance there is in the timing." }
            }
        }
        @if let Some(line) = at_every_look(analysis) { p.key { (line) } }
        @if let Some(adjusted) = adjusted_in_words(&analysis.comparisons) { p.key { (adjusted) } }
        @if kinds.exact {
            p.key {
                (prose(ONE_SEED)) " ● a difference" @if kinds.has_intervals() { " of what is exact" }
                ": at least " (least) ". ○ less."
            }
        }
    }
}

fn left_out(analysis: &Analysis) -> Markup {
    let counts = analysis.counts;
    // A provisional report includes its suspect trials.
    let suspect = if analysis.provisional {
        0
    } else {
        counts.suspect
    };
    let all = [
        (suspect, "marked suspect"),
        (counts.failed, "failed"),
        (counts.unreadable, "damaged on disk"),
        (analysis.attempts.len(), "run again"),
    ];
    let left_out = all.iter().filter(|(n, _)| *n > 0);
    let left_out: Vec<String> = left_out.map(|(n, what)| format!("{n} {what}")).collect();
    html! {
        @if !left_out.is_empty() {
            p.key {
                "Left out of these numbers: " (left_out.join(", ")) " (" a href="#left-out" { "which, and why" } ")."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(metric: &str, text: &str) -> Sentence {
        Sentence {
            text: text.to_owned(),
            workload: "send".to_owned(),
            platform: "vm".to_owned(),
            metric: metric.to_owned(),
            verdict: Verdict::Different,
            source: Source::Measured,
        }
    }

    #[test]
    fn findings_of_processor_time_come_before_the_fold_with_those_of_other_metrics() {
        let all = [
            sentence(metric::THROUGHPUT.name, "throughput of a container"),
            sentence(metric::CPU_PER_WORK.name, "CPU of a container"),
            sentence(metric::CPU_PER_WORK.name, "CPU of a VM"),
            sentence(metric::THROUGHPUT.name, "throughput of a VM"),
            sentence(metric::LATENCY_P50.name, "latency of a VM"),
        ];
        let all: Vec<&Sentence> = all.iter().collect();
        let page = of_workload(&all).into_string();
        let (before, folded) = page.split_once("<details").unwrap();
        assert!(
            before.contains("CPU of a container") && before.contains("CPU of a VM"),
            "{page}"
        );
        assert!(
            !before.contains("throughput") && !before.contains("latency"),
            "{page}"
        );
        assert!(folded.contains("3 findings of other metrics"), "{page}");
        assert!(folded.contains("throughput of a VM"), "{page}");
        // A few findings are all visible.
        assert!(!of_workload(&all[..4]).into_string().contains("<details"));
    }
}
