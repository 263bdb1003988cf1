// SPDX-License-Identifier: Apache-2.0
//! The wording of a report: nouns for platforms, and one sentence per finding.

use super::variants::is_across_variants;
use super::{Analysis, Comparison, Read, Sentence, TreatmentSummary, TrialRow};
use std::collections::{BTreeMap, HashMap, HashSet};
use vtax_core::counted;
use vtax_core::metric;
use vtax_results::numbers::{percent, ratio};
use vtax_results::stats::{REPEATS_WITHIN, Tax, Verdict};
use vtax_results::{Treatment, VARIANT};

/// The metrics that lead a report, the first that a comparison has.
const LEADS: [&metric::Metric; 2] = [metric::KNEE, metric::CPU_PER_WORK];

/// Whether a sentence is of the metrics that lead a report.
pub(crate) fn is_leading(sentence: &Sentence) -> bool {
    LEADS.iter().any(|lead| lead.is(&sentence.metric))
}

/// The name of the metric that leads some comparisons: the knee, the CPU for a unit of work, the first headline, or the first.
pub(crate) fn lead<'a>(rows: impl Iterator<Item = &'a Comparison> + Clone) -> Option<&'a str> {
    let found = LEADS
        .iter()
        .find_map(|lead| rows.clone().find(|row| lead.is(&row.metric)));
    let headline = || rows.clone().find(|row| row.headline);
    let found = found.or_else(headline).or_else(|| rows.clone().next())?;
    Some(&found.metric)
}

/// Adds the plan's platform name to the noun of platforms that would share one.
pub(super) fn tell_nouns_apart(summaries: &mut [TreatmentSummary]) {
    let mut called: HashMap<String, HashSet<String>> = HashMap::new();
    for summary in summaries.iter() {
        let platforms = called.entry(summary.noun.clone()).or_default();
        platforms.insert(summary.treatment.platform.clone());
    }
    for summary in summaries {
        if called.get(&summary.noun).is_some_and(|all| all.len() > 1) {
            let platform = &summary.treatment.platform;
            summary.noun.push_str(&format!(" named {platform}"));
        }
    }
}

/// The most frequent reason for suspicion with its count; `None` without suspect trials.
pub(crate) fn most_frequent_reason(rows: &[TrialRow]) -> Option<(usize, &str)> {
    most_frequent(rows.iter().flat_map(|row| &row.suspect))
}

/// The most frequent of reasons, with its count.
pub(super) fn most_frequent<'a>(all: impl Iterator<Item = &'a String>) -> Option<(usize, &'a str)> {
    // Reasons differ in their numbers; the text before the first number is common.
    let mut reasons: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for reason in all {
        let cause = reason.split(|c: char| c.is_ascii_digit()).next();
        let entry = reasons
            .entry(cause.unwrap_or(reason))
            .or_insert((0, reason));
        entry.0 += 1;
    }
    reasons.into_values().max_by_key(|(times, _)| *times)
}

/// The beginning of reasons that lie in what a command does.
const OF_COMMAND: &str = "the command ";

/// The most frequent reason and its remedy, for a run whose trials are all suspect.
pub(super) fn advice(rows: &[TrialRow], place: &str) -> String {
    let most = most_frequent_reason(rows);
    let cause = most.map_or_else(String::new, |(times, reason)| {
        format!(" Most often ({}): {reason}.", counted(times, "time"))
    });
    // No other host helps a command that is the cause.
    if let Some((_, reason)) = most.filter(|(_, reason)| reason.starts_with(OF_COMMAND)) {
        let words: Vec<&str> = reason.split_whitespace().take(3).collect();
        let words = words.join(" ");
        return format!(
            "No trial counts, so nothing is claimed.{cause} What helps: `vtax explain '{words}'`."
        );
    }
    let mut ways = vec!["wait until the host is quiet and run the plan again"];
    if place.starts_with("testbed") {
        ways.push("leave the machine that emulates the testbed more processors");
    } else {
        ways.push("take another host (`--place ssh:HOST`)");
        ways.push("take an emulated one, whose counts repeat (`--place testbed:kvm`)");
    }
    format!(
        "No trial counts, so nothing is claimed.{cause} What helps: {}.",
        ways.join("; or ")
    )
}

/// Short names of treatments within their workload: the platform and the varied levels, or the label where these are
/// ambiguous.
pub(super) fn shorts(
    treatments: &[Treatment],
    factors: &BTreeMap<String, Vec<String>>,
) -> Vec<String> {
    let name = |treatment: &Treatment| {
        let own = treatment.factors.iter();
        let levels = own.filter(|(factor, _)| factors.contains_key(*factor));
        let levels = levels.map(|(factor, level)| match factor.as_str() {
            VARIANT => format!(" {level}"),
            _ => format!(" {}={level}", factor.rsplit('.').next().unwrap_or(factor)),
        });
        format!("{}{}", treatment.platform, levels.collect::<String>())
    };
    let names: Vec<String> = treatments.iter().map(name).collect();
    let named = || treatments.iter().zip(&names);
    let mut namesakes: HashMap<(&str, &str), usize> = HashMap::new();
    for (treatment, name) in named() {
        *namesakes.entry((&treatment.workload, name)).or_default() += 1;
    }
    let short = |(treatment, name): (&Treatment, &String)| {
        let is_alone = namesakes.get(&(treatment.workload.as_str(), name)) == Some(&1);
        let short = if is_alone { name } else { &treatment.label };
        short.clone()
    };
    named().map(short).collect()
}

/// The line about intervals that hold at every look.
pub(crate) fn at_every_look(analysis: &Analysis) -> Option<&'static str> {
    analysis.sequential.then_some(
        "This run was looked at while it went on. The intervals of its ratios hold at every look (a confidence sequence), and are \
         wider than those of a run whose length was fixed before it began.",
    )
}

/// One sentence for each change of a tax between variants.
pub(crate) fn tax_changes(analysis: &Analysis) -> Vec<Sentence> {
    let labels = analysis.by_label();
    let found = analysis.tax_changes.iter().filter_map(|change| {
        let own = labels.get(change.treatment.as_str())?;
        let reference = labels.get(change.baseline.as_str())?;
        let old = labels.get(own.treatment.baseline.as_deref()?)?;
        let (new, old) = (own.treatment.variant()?, old.treatment.variant()?);
        let words = metric::lookup(&change.metric).and_then(|metric| metric.words);
        let quantity = words.map_or(change.title.as_str(), |words| words.noun);
        let shown = change.ratio_in_words()?;
        let mut n = change.repetitions().unwrap_or_default();
        for flag in change.source.flags(change.modelled) {
            n.push_str(&format!(", {flag}"));
        }
        let what = format!(
            "the tax of {} over {} in {quantity} in {}",
            own.noun, reference.noun, change.workload
        );
        let text = match change.judgement.verdict {
            Verdict::Different => format!(
                "{} changes with variant {new}: it is {shown} that of variant {old} (n = {n}).",
                capital(&what)
            ),
            Verdict::Same => format!(
                "{} is the same with variant {new} as with {old}, within {} ({shown}, n = {n}).",
                capital(&what),
                percent(analysis.minimum_effect.max(REPEATS_WITHIN))
            ),
            Verdict::Withheld
            | Verdict::Suspect
            | Verdict::Unsupported
            | Verdict::NoWork
            | Verdict::Modelled => return None,
            _ => format!(
                "No change is shown of {what} from variant {old} to {new} ({shown}, n = {n})."
            ),
        };
        Some(Sentence {
            text,
            workload: change.workload.clone(),
            platform: change.platform.clone(),
            metric: change.metric.clone(),
            verdict: change.judgement.verdict,
            source: change.source,
        })
    });
    found.collect()
}

/// One sentence per headline comparison; one per comparison where no metric is a headline.
pub(super) fn sentences(analysis: &Analysis, trials: &[Read]) -> Vec<Sentence> {
    let any_headline = analysis.comparisons.iter().any(|one| one.headline);
    let labels = analysis.by_label();
    let mut phrases: HashMap<&str, &str> = HashMap::new();
    for Read { trial, .. } in trials.iter().filter(|read| read.counts) {
        if let Some(work) = &trial.work {
            let label = trial.treatment.label.as_str();
            phrases.entry(label).or_insert(&work.phrase);
        }
    }
    analysis
        .comparisons
        .iter()
        .filter(|comparison| comparison.headline || !any_headline)
        .filter_map(|comparison| {
            let treatment = labels.get(comparison.treatment.as_str())?;
            let baseline = labels.get(comparison.baseline.as_str())?;
            let phrase = phrases.get(comparison.treatment.as_str()).copied();
            Some(Sentence {
                text: sentence(analysis, comparison, treatment, baseline, phrase),
                workload: comparison.workload.clone(),
                platform: comparison.platform.clone(),
                metric: comparison.metric.clone(),
                verdict: comparison.judgement.verdict,
                source: comparison.source,
            })
        })
        .collect()
}

fn sentence(
    analysis: &Analysis,
    comparison: &Comparison,
    treatment: &TreatmentSummary,
    baseline: &TreatmentSummary,
    phrase: Option<&str>,
) -> String {
    // Shared levels are a condition; other levels belong to the two nouns.
    let mut condition = String::new();
    let (mut subject, mut object) = (treatment.noun.clone(), baseline.noun.clone());
    for factor in analysis.factors.keys() {
        match (
            treatment.treatment.factors.get(factor),
            baseline.treatment.factors.get(factor),
        ) {
            (Some(mine), Some(theirs)) if mine == theirs => {
                condition.push_str(&format!(", at {factor} = {mine}"))
            }
            // The platform of two variants is a condition as well.
            (Some(mine), Some(theirs))
                if factor == VARIANT && is_across_variants(treatment, baseline) =>
            {
                subject = format!("variant {mine}");
                object = format!("variant {theirs}");
                condition.push_str(&format!(" {}", at(&treatment.noun)));
            }
            (mine, theirs) => {
                for (side, level) in [(&mut subject, mine), (&mut object, theirs)] {
                    let with = level.map(|level| format!(" with {factor} = {level}"));
                    side.extend(with);
                }
            }
        }
    }
    if subject == object {
        (subject, object) = (comparison.treatment.clone(), comparison.baseline.clone());
    }
    let deed = phrase.map_or_else(
        || format!("in {}", comparison.workload),
        |phrase| format!("to {phrase}"),
    );
    let place = format!("in {}", comparison.workload);
    let declared = metric::lookup(&comparison.metric);
    let words = declared.and_then(|metric| Some((metric, metric.words?)));
    let quantity = words.map_or(comparison.title.as_str(), |(_, words)| words.noun);
    let scope = match words {
        Some((metric, _)) if metric.is_per_work() => &deed,
        _ => &place,
    };
    let (Some(shown), Some(n)) = (comparison.ratio_in_words(), comparison.repetitions()) else {
        let note = comparison.note.as_deref().unwrap_or("no ratio");
        return format!(
            "{}, {quantity} {scope}{condition}, against {object}: {note}.",
            capital(&subject)
        );
    };
    let mut evidence = format!("n = {n}");
    let ended = treatment.counts.ended().max(baseline.counts.ended());
    let is_of_pairs = |tax: &Tax| tax.paired && !comparison.judgement.over_machines;
    if comparison
        .tax
        .is_some_and(|tax| is_of_pairs(&tax) && tax.n < ended)
    {
        evidence.push_str(&format!(" of {ended}"));
    }
    if comparison.tax.is_some_and(|tax| !tax.paired) {
        evidence.push_str(", unpaired");
    }
    for flag in comparison.source.flags(comparison.modelled) {
        evidence.push_str(&format!(", {flag}"));
    }
    if let Some(robust) = outliers_matter(comparison) {
        evidence.push_str(&format!(
            "; {robust} by Hodges and Lehmann, which outliers do not move"
        ));
    }
    if treatment.counts.disturbed + baseline.counts.disturbed > 0 {
        evidence.push_str(", on a busy host");
    }
    if let Some(limit) = comparison.limit_in_words() {
        evidence.push_str(&format!("; {limit}"));
    }
    if let Some(needed) = comparison.needed_in_words() {
        evidence.push_str(&format!("; {needed}"));
    }
    if let Some(effect) = comparison.effect_in_words(analysis.minimum_effect) {
        evidence.push_str(&format!("; {effect}"));
    }
    if let Some(error) = comparison.model_in_words() {
        evidence.push_str(&format!("; {error}"));
    }
    let against = format!("{} against {object}", capital(&subject));
    let nothing = |why: &str| {
        format!(
            "{against}, {quantity} {scope}{condition}: nothing is claimed, since {why} ({shown}, {evidence})."
        )
    };
    match comparison.judgement.verdict {
        Verdict::Different => {
            let mut claim = match words {
                Some((_, own)) => format!(
                    "{} {} {shown} the {} of {object}",
                    capital(&subject),
                    own.verb,
                    own.object
                ),
                None => format!(
                    "{} of {subject} is {shown} that of {object}",
                    capital(quantity)
                ),
            };
            if metric::KNEE.is(&comparison.metric) {
                let objective = treatment.objective.as_ref();
                claim.push_str(" within ");
                claim.push_str(objective.map_or("its objective", |one| one.text.as_str()));
            }
            format!("{claim} {scope}{condition} ({evidence}).")
        }
        Verdict::Same => format!(
            "{against}: the same {quantity} {scope}{condition}, within {} ({shown}, {evidence}).",
            percent(analysis.minimum_effect.max(REPEATS_WITHIN))
        ),
        Verdict::Suspect => nothing("the trials are suspect"),
        Verdict::Unsupported => {
            let why = comparison.judgement.unsupported.map(|why| why.to_string());
            nothing(&why.unwrap_or_default())
        }
        Verdict::Modelled => format!(
            "{against}, {quantity} {scope}{condition}: {shown} by the model, not by a meter ({evidence})."
        ),
        Verdict::Withheld => nothing(comparison.withheld.as_deref().unwrap_or_default()),
        Verdict::NoWork => nothing("each run took the same time and its work is not known"),
        Verdict::TooFewTrials => format!(
            "{against}, {quantity} {scope}{condition}: too few trials for a claim ({shown}, {evidence}; at least 4 {}s are needed).",
            comparison.certainty.repetition(true)
        ),
        Verdict::NoDifferenceShown | Verdict::NoRatio => format!(
            "{against}: no difference shown in {quantity} {scope}{condition} ({shown}, {evidence})."
        ),
    }
}

/// The place of what runs there: on bare metal, in a VM.
fn at(noun: &str) -> String {
    let word = if noun.starts_with("bare metal") {
        "on"
    } else {
        "in"
    };
    format!("{word} {noun}")
}

/// The robust ratio, where it differs from the mean ratio by a quarter of the interval or more.
fn outliers_matter(comparison: &Comparison) -> Option<String> {
    let (robust, tax) = (comparison.judgement.robust_ratio?, comparison.tax?);
    let interval = tax.interval?;
    let width = (interval.high / interval.low).ln();
    let is_off = (robust / tax.ratio).ln().abs() >= 0.25 * width;
    is_off.then(|| ratio(robust, None).value)
}

/// The text with a capital first letter.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}
