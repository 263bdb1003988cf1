// SPDX-License-Identifier: Apache-2.0
//! `vtax plan check --results`: the blocks that a plan needs for intervals of a wanted width, from earlier results.

use super::report;
use crate::Outcome;
use crate::cli::PlanCheckArgs;
use crate::output::{fail, outln};
use crate::progress::in_words;
use serde::Serialize;
use std::error::Error;
use std::path::Path;
use std::time::Duration;
use vtax_core::counted;
use vtax_lab::plan::{Catalogue, Plan, PlannedTreatment, treatments};
use vtax_report::analysis::{Analysis, Comparison};
use vtax_results::ResultsDir;
use vtax_results::numbers::percent;

/// The blocks that each headline comparison of a plan needs.
#[derive(Debug, Serialize)]
pub struct Precision {
    /// The wanted half width of each ratio's interval, relative to the ratio.
    width: f64,
    /// The largest number of blocks of any comparison; `None` where a comparison has no estimate, or is over machines.
    blocks: Option<usize>,
    /// Seconds of that many blocks.
    seconds: Option<f64>,
    /// Seconds of one block of the plan.
    block_seconds: f64,
    comparisons: Vec<Row>,
    /// Treatments of the plan that the results do not have, or have with other settings.
    not_in_results: Vec<String>,
    /// Differences between the results and the plan that may change the scatter, in sentences.
    cautions: Vec<String>,
}

/// One comparison.
#[derive(Debug, Serialize)]
struct Row {
    treatment: String,
    baseline: String,
    metric: String,
    title: String,
    ratio: Option<f64>,
    /// The ratio with its interval, in words.
    shown: Option<String>,
    /// Repetitions behind the interval.
    repetitions: usize,
    /// The present half width, relative to the ratio.
    width: Option<f64>,
    /// Noun of one repetition: `block`, or `machine` where the ratio is over machines.
    repetition: &'static str,
    /// Repetitions for the wanted width, in all.
    needed: Option<usize>,
    /// Seconds of as many blocks; `None` over machines.
    seconds: Option<f64>,
    /// The reason for a missing estimate.
    unknown: Option<String>,
}

/// Estimates the blocks from results of the same plan, or of an earlier version of it with common treatments.
///
/// # Errors
/// When the results are unreadable or of another plan, no trial counts, or no comparison can be estimated.
pub fn estimate(
    arguments: &PlanCheckArgs,
    plan: &Plan,
    planned: &[PlannedTreatment],
    catalogue: &Catalogue,
) -> Result<Precision, Box<dyn Error>> {
    let (results, analysis) = report::read(&arguments.results)?;
    let earlier = earlier_plan(&results, plan, catalogue)?;
    let old = treatments(&earlier, catalogue);
    let is_common = |one: &&PlannedTreatment| {
        let mut old = old.iter();
        old.any(|other| other.record.label == one.record.label && is_same(other, one))
    };
    let (common, missing): (Vec<_>, Vec<_>) = planned.iter().partition(is_common);
    let at = results.path().display();
    if common.is_empty() {
        fail!(
            "{at} has no treatment of {}: give results of this plan",
            arguments.plan.display()
        );
    }
    if analysis.counts.counted == 0 {
        fail!(
            "no trial of {at} counts, so nothing can be estimated: `vtax report {at}` gives the reasons"
        );
    }
    let block_seconds: f64 = planned
        .iter()
        .map(|one| {
            let is_known = common.iter().any(|known| known.record == one.record);
            let summary = if is_known {
                analysis.treatment(&one.record.label)
            } else {
                None
            };
            let measured = summary.and_then(|summary| summary.phases.get("total").copied());
            measured.unwrap_or_else(|| one.expected_time(plan, catalogue).as_secs_f64())
        })
        .sum();
    let is_in_both = |label: &str| common.iter().any(|one| one.record.label == label);
    let comparisons: Vec<Row> = analysis
        .comparisons
        .iter()
        .filter(|of| of.headline && is_in_both(&of.treatment) && is_in_both(&of.baseline))
        .map(|of| row(of, arguments.width, block_seconds))
        .collect();
    let is_estimated = |row: &Row| row.needed.is_some();
    if !comparisons.iter().any(is_estimated) {
        let mut reasons = comparisons.iter().filter_map(|row| row.unknown.as_deref());
        let reason = reasons
            .next()
            .unwrap_or("no treatment of them has a baseline that counts");
        fail!("cannot estimate the blocks from {at}: {reason}");
    }
    let needed = comparisons.iter().map(|row| {
        if row.repetition == "block" {
            row.needed
        } else {
            None
        }
    });
    let blocks = needed
        .collect::<Option<Vec<_>>>()
        .and_then(|all| all.into_iter().max());
    Ok(Precision {
        width: arguments.width,
        blocks,
        seconds: blocks.map(|blocks| blocks as f64 * block_seconds),
        block_seconds,
        comparisons,
        not_in_results: missing.iter().map(|one| one.record.label.clone()).collect(),
        cautions: cautions(&analysis, &earlier, plan),
    })
}

/// The plan of the results, with their profile.
fn earlier_plan(
    results: &ResultsDir,
    plan: &Plan,
    catalogue: &Catalogue,
) -> Result<Plan, Box<dyn Error>> {
    let at = results.path();
    if vtax_density::run::is_density(results) {
        fail!(
            "{} has climbs of `vtax density`: give results of `vtax run`",
            at.display()
        );
    }
    let run = results.run();
    if run.name != plan.name {
        fail!(
            "{} has results of another plan, {}: give results of {}",
            at.display(),
            run.name,
            plan.name
        );
    }
    let file = at.join("plan.toml");
    let earlier = Plan::read(
        &file.display().to_string(),
        &results.plan_text()?,
        catalogue,
    )
    .map_err(|wrong| format!("cannot read the plan of the results: {wrong}"))?;
    Ok(if run.profile == "quick" {
        earlier.quick()
    } else {
        earlier
    })
}

/// Whether two planned treatments with one label run the same.
fn is_same(one: &PlannedTreatment, other: &PlannedTreatment) -> bool {
    let baseline = other.record.baseline.clone();
    let mut one = one.clone();
    // A baseline that was added or removed does not change the treatment itself.
    one.record.baseline = baseline;
    one.missing_baseline.clone_from(&other.missing_baseline);
    one == *other
}

fn row(of: &Comparison, width: f64, block_seconds: f64) -> Row {
    let needed = match of.needed_for(width) {
        Some(needed) => Some(needed.n),
        None if of.certainty.is_exact() && of.ratio.is_some() => Some(1),
        None => None,
    };
    let repetition = if of.judgement.over_machines {
        "machine"
    } else {
        "block"
    };
    let repetitions = of.tax.map_or(1, |tax| tax.n);
    let unknown = || {
        let reason = if of.ratio.is_none() {
            of.note
                .clone()
                .unwrap_or_else(|| "there is no ratio".to_owned())
        } else if of.judgement.knee.is_some() {
            "the steps between load levels limit the interval of a knee: try levels that are closer"
                .to_owned()
        } else if repetitions < 2 {
            format!("one {repetition} shows no scatter: run four or more")
        } else if of.half_width().is_none() {
            "there is no interval".to_owned()
        } else if let Some(unsupported) = of.judgement.unsupported {
            format!("{unsupported}: run longer trials, or at a higher rate")
        } else if of.judgement.lacks_work {
            "each run took the same time and its work is not known: give the work".to_owned()
        } else if let Some(why) = &of.withheld {
            format!("nothing is claimed: {why}")
        } else if of.needed_for(1.0).is_none() {
            "the trials are suspect: run again on a quiet host".to_owned()
        } else {
            format!("more than 100,000 {repetition}s: choose a larger --width, or longer trials")
        };
        format!("{}: {reason}", of.title)
    };
    Row {
        treatment: of.treatment.clone(),
        baseline: of.baseline.clone(),
        metric: of.metric.clone(),
        title: of.title.clone(),
        ratio: of.ratio,
        shown: of.ratio_in_words(),
        repetitions,
        width: of.half_width(),
        repetition,
        seconds: match needed {
            Some(n) if !of.judgement.over_machines => Some(n as f64 * block_seconds),
            _ => None,
        },
        unknown: needed.is_none().then(unknown),
        needed,
    }
}

fn cautions(analysis: &Analysis, earlier: &Plan, plan: &Plan) -> Vec<String> {
    let mut cautions = Vec::new();
    if (earlier.duration, earlier.warmup) != (plan.duration, plan.warmup) {
        cautions.push(format!(
            "The results have a window of {} after {} of warm-up, the plan {} after {}: the scatter may differ.",
            in_words(earlier.duration),
            in_words(earlier.warmup),
            in_words(plan.duration),
            in_words(plan.warmup)
        ));
    }
    if analysis.provisional {
        cautions.push(
            "Some treatment has only suspect trials, so nothing is estimated from them.".to_owned(),
        );
    }
    let unreadable = analysis.unreadable.iter();
    cautions.extend(unreadable.map(|reason| format!("left out: {reason}")));
    cautions
}

/// Prints the estimate below the plan.
///
/// # Errors
/// When standard output fails.
pub fn print(found: &Precision, plan: &Plan, treatments: usize, at: &Path) -> Outcome {
    let wanted = percent(found.width);
    outln!(
        "\nintervals of ratios in {}, and what ±{wanted} needs:",
        at.display()
    )?;
    let mut last = None;
    for row in &found.comparisons {
        let pair = (&row.treatment, &row.baseline);
        if last != Some(pair) {
            outln!("  {} against {}", row.treatment, row.baseline)?;
            last = Some(pair);
        }
        let shown = row.shown.as_deref().unwrap_or("no ratio");
        let now = match row.width {
            Some(width) => format!(
                "{shown}, ±{} with {}",
                percent(width),
                counted(row.repetitions, row.repetition)
            ),
            None => shown.to_owned(),
        };
        let needs = match (&row.unknown, row.needed) {
            (Some(_), _) | (None, None) => "cannot be estimated".to_owned(),
            (None, Some(needed)) => {
                let time = row.seconds.map(|seconds| format!(", {}", words(seconds)));
                format!(
                    "{}{}",
                    counted(needed, row.repetition),
                    time.unwrap_or_default()
                )
            }
        };
        outln!("    {}: {now}; needs {needs}", row.title)?;
    }
    for reason in found
        .comparisons
        .iter()
        .filter_map(|row| row.unknown.as_ref())
    {
        outln!("  cannot be estimated: {reason}")?;
    }
    for label in &found.not_in_results {
        outln!("  not in the results, or with other settings there: {label}")?;
    }
    for caution in &found.cautions {
        outln!("  {caution}")?;
    }
    if let (Some(blocks), Some(seconds)) = (found.blocks, found.seconds) {
        outln!(
            "±{wanted} for all of them: {}, {}, about {}; the plan has {}",
            counted(blocks, "block"),
            counted(blocks * treatments, "trial"),
            words(seconds),
            plan.repetitions
        )?;
    }
    Ok(())
}

fn words(seconds: f64) -> String {
    in_words(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}
