// SPDX-License-Identifier: Apache-2.0
//! Gates: limits for the change of a metric between two runs, or for a tax of one run, which a pipeline fails on.

use crate::analysis::{Analysis, BetweenRuns, Comparison};
use crate::compare::{ComparedRun, RunComparison, compare_of, few, named};
use crate::history::{History, Series};
use crate::reference::Reference;
use serde::Serialize;
use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::fmt;
use vtax_core::{counted, metric};
pub use vtax_results::limit::{Gate, GateError, Of, PlannedGate};
use vtax_results::stats::{Bounds, FEWEST_IN_WINDOW, Verdict, confidence_of_each};
use vtax_results::text::clean;
use vtax_results::{HostDifference, host_differences, numbers};

/// Least similarity (Jaro–Winkler) of a name that an error suggests.
const SIMILAR: f64 = 0.7;
/// Most names that an error suggests.
const MOST_SUGGESTIONS: usize = 3;

/// The outcome of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GateOutcome {
    /// The whole interval is within the limit.
    Passed,
    /// The interval contains the limit, or there is no interval to judge by.
    Undecided,
    /// The whole interval is beyond the limit.
    Missed,
}

impl fmt::Display for GateOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Passed => "passed",
            Self::Undecided => "undecided",
            Self::Missed => "missed",
        })
    }
}

/// One gate, judged for one treatment of one run.
#[derive(Debug, Clone, Serialize)]
pub struct JudgedGate {
    /// The gate's text.
    pub gate: String,
    /// The run.
    pub run: String,
    /// The letter of the run in the table, where several runs are compared with the base run.
    pub letter: Option<char>,
    /// Label of the treatment.
    pub treatment: String,
    /// The outcome.
    pub outcome: GateOutcome,
    /// The ratio with its interval, and for an undecided gate the reason and the remedy.
    pub reason: String,
}

impl fmt::Display for JudgedGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gate, outcome, .. } = self;
        let (treatment, reason) = (clean(&self.treatment), clean(&self.reason));
        let run = self
            .letter
            .map_or_else(String::new, |letter| format!("{letter}  "));
        write!(f, "{outcome:<9}  {run}{gate}  {treatment}: {reason}")
    }
}

/// Whether costs are judged across hosts that differ in what decides their speed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AcrossHosts(pub bool);

impl AcrossHosts {
    fn check(
        self,
        gate: &Gate,
        run: &str,
        base: &str,
        hosts: &[HostDifference],
    ) -> Result<(), GateError> {
        let facts = hosts.iter().filter(|one| one.decides);
        let facts: Vec<String> = facts.map(HostDifference::in_words).collect();
        if self.0 || facts.is_empty() {
            return Ok(());
        }
        Err(GateError::OtherHost {
            gate: gate.text.clone(),
            run: clean(run),
            base: clean(base),
            facts: clean(&few(&facts)),
        })
    }
}

/// Judges gates for each of the other runs, and for each treatment unless a gate names one. `of` are the values of the
/// runs.
///
/// # Errors
/// When a run has no metric or no treatment of that name, or shares none with the base run.
pub fn judge(
    gates: &[Gate],
    of: Of,
    first: &Analysis,
    others: &[&Analysis],
    across: AcrossHosts,
) -> Result<Vec<JudgedGate>, GateError> {
    let gates: Vec<PlannedGate> = (gates.iter().cloned())
        .map(|gate| PlannedGate { gate, of })
        .collect();
    judge_each(
        first,
        others,
        across,
        |_| Ok(&gates),
        |_, gate| gate.is_of_one_run,
    )
}

/// As [`judge`], for each run by the gates of its own plan.
///
/// # Errors
/// As [`judge`], and when the plan of a run cannot be read.
pub fn judge_by_plans(
    first: &Analysis,
    others: &[&Analysis],
    across: AcrossHosts,
) -> Result<Vec<JudgedGate>, GateError> {
    // The gates of a plan with variants are for the changes between them.
    let is_alone = |run: &Analysis, gate: &Gate| gate.is_of_one_run || run.has_variants();
    judge_each(first, others, across, |run| planned(run), is_alone)
}

/// Judges a run by itself: by the `given` gates, and by those of its plan that need no base run. A limit in percent is one
/// for the change between variants, of the cost or of the tax.
///
/// # Errors
/// As [`judge_by_plans`], and when a given gate has a limit in percent and the run has no variants.
pub fn judge_run(run: &Analysis, given: &[Gate]) -> Result<Vec<JudgedGate>, GateError> {
    let has_variants = run.has_variants();
    let given = given.iter().map(|gate| (gate, Of::Cost));
    for (gate, _) in given.clone() {
        if !gate.is_of_one_run && !has_variants {
            return Err(GateError::NoVariants {
                gate: gate.text.clone(),
            });
        }
    }
    let planned = planned(run)?
        .iter()
        .map(|planned| (&planned.gate, planned.of));
    let planned = planned.filter(|(gate, _)| gate.is_of_one_run || has_variants);
    let mut judged = Vec::new();
    for (gate, of) in given.chain(planned) {
        judged.extend(judge_alone(gate, of, run)?);
    }
    Ok(judged)
}

/// Judges one gate for a run by itself.
fn judge_alone(gate: &Gate, of: Of, run: &Analysis) -> Result<Vec<JudgedGate>, GateError> {
    let mut alone = ComparedRun::alone(run);
    if !gate.is_of_one_run {
        match of {
            Of::Tax => alone.comparisons.clone_from(&run.tax_changes),
            Of::Cost => alone.comparisons.retain(|row| run.is_across_variants(row)),
        }
        let changed: BTreeSet<String> =
            run.changed().map(|of| of.treatment.label.clone()).collect();
        let references: BTreeSet<&str> = run
            .tax_changes
            .iter()
            .map(|row| row.baseline.as_str())
            .collect();
        alone.shared.retain(|one| {
            let has_tax = of == Of::Cost || !references.contains(one.label.as_str());
            changed.contains(&one.label) && has_tax
        });
    }
    judge_gate(gate, &alone)
}

/// The gates of a run's plan.
fn planned(run: &Analysis) -> Result<&[PlannedGate], GateError> {
    run.plan.gates().map_err(|cause| GateError::Plan {
        run: clean(&named(run)),
        cause: clean(cause),
    })
}

/// As [`judge`], for a comparison of recordings. A limit such as `2x` is one for the ratio of the two.
///
/// # Errors
/// As [`judge`].
pub fn judge_comparison(
    gates: &[Gate],
    comparison: &RunComparison,
    across: AcrossHosts,
) -> Result<Vec<JudgedGate>, GateError> {
    for run in &comparison.others {
        for gate in gates {
            across.check(gate, &run.run, &comparison.first, &run.hosts)?;
        }
    }
    let runs = comparison.others.iter();
    let judged = runs.flat_map(|run| gates.iter().map(move |gate| judge_gate(gate, run)));
    Ok(judged.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Judges gates for the last run of a history, against the best level since the last run that was accepted. A limit
/// such as `2x` is one for the ratio of the two.
///
/// # Errors
/// When no series has the metric or the treatment.
pub fn judge_history(
    gates: &[Gate],
    history: &History,
    across: AcrossHosts,
) -> Result<Vec<JudgedGate>, GateError> {
    let last = history.runs.len().saturating_sub(1);
    let last_run = history.runs.last();
    let run = last_run.map_or("", |run| run.directory.as_str());
    let runs = history.runs.iter().enumerate().rev();
    let accepted = runs
        .filter_map(|(at, run)| Some((at, run.accepted.as_ref()?)))
        .next();
    let family = gates.iter().flat_map(|gate| followed(gate, history));
    let confidence = confidence_of_each(family.count());
    let mut judged = Vec::new();
    for gate in gates {
        if let (Some(last), Of::Cost) = (last_run, history.of) {
            let counting = history.runs.iter().filter(|run| run.left_out.is_none());
            for base in counting {
                let hosts = host_differences(&base.host, &last.host);
                across.check(gate, &last.directory, &base.directory, &hosts)?;
            }
        }
        let unsupported = history.unsupported.iter().filter(|one| {
            one.metric == gate.metric
                && gate.applies_to(&one.treatment, &one.platform, one.variant.as_deref())
                && one.runs.contains(&last)
        });
        let few = unsupported.map(|one| {
            let why = Err(format!("of the last run, {}", one.reason).into());
            entry(gate, run, &one.treatment, why)
        });
        let mut own: Vec<JudgedGate> = few.collect();
        for one in followed(gate, history) {
            if own.iter().all(|of| of.treatment != one.treatment) {
                own.push(match accepted {
                    Some((at, who)) if at == last => JudgedGate {
                        outcome: GateOutcome::Passed,
                        reason: format!("accepted by {}: {}", clean(&who.by), clean(&who.why)),
                        ..entry(gate, run, &one.treatment, Err("accepted".into()))
                    },
                    _ => {
                        let at = accepted.map(|(at, _)| at);
                        let found = of_window(gate, one, history, at, confidence);
                        entry(gate, run, &one.treatment, found)
                    }
                });
            }
        }
        if own.is_empty() {
            return Err(GateError::NotFollowed {
                gate: gate.text.clone(),
            });
        }
        judged.extend(own);
    }
    Ok(judged)
}

fn judge_each<'a>(
    first: &'a Analysis,
    others: &[&'a Analysis],
    across: AcrossHosts,
    gates_of: impl Fn(&'a Analysis) -> Result<&'a [PlannedGate], GateError>,
    is_alone: impl Fn(&Analysis, &Gate) -> bool,
) -> Result<Vec<JudgedGate>, GateError> {
    let compared: [LazyCell<RunComparison, _>; 2] =
        [Of::Tax, Of::Cost].map(|of| LazyCell::new(move || compare_of(of, first, others)));
    let [taxes, costs] = &compared;
    let mut judged = Vec::new();
    for (at, (letter, run)) in ('B'..).zip(others).enumerate() {
        for planned in gates_of(run)? {
            let gate = &planned.gate;
            let own = match (is_alone(run, gate), planned.of) {
                (true, of) => judge_alone(gate, of, run)?,
                (false, of) => {
                    let compared = if of == Of::Tax { taxes } else { costs };
                    let Some(run) = compared.others.get(at) else {
                        continue;
                    };
                    if of == Of::Cost {
                        across.check(gate, &run.run, &compared.first, &run.hosts)?;
                    }
                    judge_gate(gate, run)?
                }
            };
            judged.extend(own.into_iter().map(|one| JudgedGate {
                letter: (others.len() > 1).then_some(letter),
                ..one
            }));
        }
    }
    Ok(judged)
}

/// The series of a history that a gate is on.
fn followed<'a>(gate: &'a Gate, history: &'a History) -> impl Iterator<Item = &'a Series> {
    let all = history.series.iter();
    all.filter(|one| {
        one.metric == gate.metric
            && gate.applies_to(&one.treatment, &one.platform, one.variant.as_deref())
    })
}

/// The worst outcome: missed, then undecided. Gates that judged nothing are undecided.
pub fn worst(judged: &[JudgedGate]) -> GateOutcome {
    let outcomes = judged.iter().map(|one| one.outcome);
    outcomes.max().unwrap_or(GateOutcome::Undecided)
}

fn judge_gate(gate: &Gate, run: &ComparedRun) -> Result<Vec<JudgedGate>, GateError> {
    let applies =
        |row: &&Comparison| gate.applies_to(&row.treatment, &row.platform, row.variant.as_deref());
    let rows = || run.comparisons.iter().filter(applies);
    let of_metric = || rows().filter(|row| row.metric == gate.metric);
    if let Some(name) = &gate.subject
        && rows().next().is_none()
    {
        let labels = run.comparisons.iter().map(|row| row.treatment.as_str());
        return Err(unknown(gate, run, "treatment", name, labels));
    }
    for row in of_metric() {
        let keys = run.differing_keys_of(&row.workload);
        if !keys.is_empty() {
            return Err(GateError::OtherWorkload {
                gate: gate.text.clone(),
                run: clean(&run.run),
                workload: clean(&row.workload),
                keys: clean(&few(&keys)),
            });
        }
    }
    let mut all: Vec<JudgedGate> = of_metric()
        .map(|row| entry(gate, &run.run, &row.treatment, of_row(gate, row)))
        .collect();
    // A metric that vtax knows and that no run has is absent everywhere; another name is a mistake.
    let is_nowhere = all.is_empty() && metric::lookup(&gate.metric).is_some();
    let lacking = run.shared.iter().filter(|one| {
        gate.applies_to(&one.label, &one.platform, one.variant.as_deref())
            && (is_nowhere || one.metrics.contains(&gate.metric))
            && of_metric().all(|row| row.treatment != one.label)
    });
    let why = if run.is_alone {
        "the treatment or its baseline lacks the metric"
    } else {
        "one of the runs lacks the metric"
    };
    all.extend(lacking.map(|one| entry(gate, &run.run, &one.label, Err(why.into()))));
    if all.is_empty() {
        let names = rows().map(|row| row.metric.as_str());
        return Err(unknown(gate, run, "metric", &gate.metric, names));
    }
    if gate.subject.is_none() {
        for (labels, reason) in [
            (&run.only_first, "only the base run has this treatment"),
            (&run.only_here, "the base run lacks this treatment"),
        ] {
            let undecided = || Err(reason.into());
            all.extend((labels.iter()).map(|label| entry(gate, &run.run, label, undecided())));
        }
    }
    Ok(all)
}

/// Why nothing decides a gate, in words.
struct NoEvidence(String);

impl<T: Into<String>> From<T> for NoEvidence {
    fn from(reason: T) -> Self {
        Self(reason.into())
    }
}

/// What decides a gate.
struct Evidence {
    /// The ratio with its interval, in words.
    shown: String,
    /// The ends of the interval; the ratio itself where it is exact.
    ends: (f64, f64),
    /// What would decide where the interval contains the limit, after a semicolon; empty where unknown.
    more: String,
}

/// A gate, judged by the evidence; undecided for the reason why there is none.
fn entry(
    gate: &Gate,
    run: &str,
    treatment: &str,
    found: Result<Evidence, NoEvidence>,
) -> JudgedGate {
    let (outcome, reason) = match found {
        Err(NoEvidence(reason)) => (GateOutcome::Undecided, reason),
        Ok(Evidence { shown, ends, more }) => match (gate.allows(ends.0), gate.allows(ends.1)) {
            (true, true) => (GateOutcome::Passed, shown),
            (false, false) => (GateOutcome::Missed, shown),
            _ => (
                GateOutcome::Undecided,
                format!("{shown}: the interval contains the limit{more}"),
            ),
        },
    };
    JudgedGate {
        gate: gate.text.clone(),
        run: run.to_owned(),
        letter: None,
        treatment: treatment.to_owned(),
        outcome,
        reason,
    }
}

/// The evidence of a comparison.
fn of_row(gate: &Gate, row: &Comparison) -> Result<Evidence, NoEvidence> {
    let (Some(ratio), Some(shown)) = (row.ratio, row.flagged_ratio()) else {
        return Err(row.note.as_deref().unwrap_or("no ratio").into());
    };
    let more = more(gate, row);
    let open = row.judgement.open.map(Bounds::hull);
    let ends = match (row.judgement.verdict, row.interval().or(open)) {
        (Verdict::Suspect, _) => return Err(format!("{shown}, but the trials are suspect").into()),
        (Verdict::Unsupported, _) => {
            let why = row.judgement.unsupported.map(|why| why.to_string());
            return Err(format!("{shown}, but {}", why.unwrap_or_default()).into());
        }
        (Verdict::Withheld, _) => {
            let why = row.withheld.as_deref().unwrap_or_default();
            return Err(format!("{shown}, but nothing is claimed: {why}").into());
        }
        (Verdict::Modelled, _) if row.judgement.model_error.is_none() => {
            return Err(format!(
                "{shown} by the model, and nothing is known of its error: gate cpu.per_work, or fit the model to a meter (`vtax \
                 meter calibrate`)"
            )
            .into());
        }
        (Verdict::NoWork, _) => {
            return Err(format!(
                "{shown}, but each run took the same time and its work is not known: give the work (--work, or `work` in \
                 a plan)"
            )
            .into());
        }
        _ if row.certainty.is_exact() => (ratio, ratio),
        _ if row.judgement.between_runs == Some(BetweenRuns::Unknown) => {
            return Err(format!(
                "{shown}, but the scatter between runs is not in it: compare variants in one run (vtax run --variant), taxes \
                 (--of tax), runs with a canary in several blocks, or more runs (vtax history)"
            )
            .into());
        }
        (verdict, Some(interval)) if verdict != Verdict::TooFewTrials => {
            (interval.low, interval.high)
        }
        _ => return Err(format!("{shown}: too few {}{more}", row.repeated()).into()),
    };
    Ok(Evidence { shown, ends, more })
}

/// The evidence of the last run of a series: its ratio to its reference.
fn of_window(
    gate: &Gate,
    series: &Series,
    history: &History,
    accepted: Option<usize>,
    confidence: f64,
) -> Result<Evidence, NoEvidence> {
    let last = history.runs.len().saturating_sub(1);
    let found = Reference::find(series, gate, last, accepted, confidence);
    let found = found.ok_or("the last run has no value that counts")?;
    let runs = counted(found.window.len(), "run");
    let (ratio, interval) = match (series.exact, found.window.first()) {
        (true, Some(best)) => (found.new.value / best.value, None),
        _ => {
            let ratio = found.ratio(confidence).ok_or_else(|| {
                format!(
                    "{runs} to judge it by, and the scatter from run to run needs {FEWEST_IN_WINDOW} of one level"
                )
            })?;
            (ratio.0, Some(ratio.1))
        }
    };
    let name = |run: usize| {
        let run = history.runs.get(run);
        run.map_or_else(String::new, |run| clean(&run.directory))
    };
    let since = found.worse_since.map(|since| {
        let first = name(since);
        format!(
            "; {} since {first} left out as worse: `vtax history … --accept {first} --why TEXT` makes it the reference",
            counted(found.left_out, "run")
        )
    });
    let from = match (series.exact, found.window.first()) {
        (true, Some(best)) => format!("the best before it, {}", name(best.run)),
        _ => format!("{runs} before it"),
    };
    Ok(Evidence {
        shown: format!(
            "{} of {from}{}",
            numbers::ratio(ratio, interval).line(),
            since.unwrap_or_default()
        ),
        ends: interval.map_or((ratio, ratio), |ends| (ends.low, ends.high)),
        more: String::new(),
    })
}

/// The repetitions that distinguish the ratio from the limit with a power of 80 %; empty where unknown.
fn more(gate: &Gate, row: &Comparison) -> String {
    let more = || {
        let (tax, ratio) = (row.tax?, row.ratio?);
        let distance = (gate.limit / ratio).ln().abs().exp_m1();
        let needed = row.pairs_to_show(distance)?;
        Some(row.more_in_words(needed.saturating_sub(tax.n).max(1)))
    };
    more().map_or_else(String::new, |more| format!("; {more} would decide"))
}

fn unknown<'a>(
    gate: &Gate,
    run: &ComparedRun,
    kind: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
) -> GateError {
    let only = [
        (&run.only_first, "; only the base run has it"),
        (&run.only_here, "; the base run lacks it"),
    ];
    let is_of = |labels: &[String]| kind == "treatment" && labels.iter().any(|of| of == name);
    let remedy = match only.into_iter().find(|(labels, _)| is_of(labels)) {
        Some((_, remedy)) => Some(remedy.to_owned()),
        None => nearest(name, known).map(|names| format!("; nearest: {names}")),
    };
    let is_alone = run.is_alone;
    let run = clean(&run.run);
    GateError::Unknown {
        gate: gate.text.clone(),
        runs: if is_alone {
            format!("the comparisons of {run} have")
        } else {
            format!("{run} and the base run share")
        },
        kind,
        name: clean(name),
        remedy: remedy.unwrap_or_default(),
    }
}

/// The most similar of the known names, or the first ones where none is similar; `None` without names.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let known = crate::analysis::distinct(known).into_iter();
    let known = known.map(|one| (strsim::jaro_winkler(name, one), one));
    let mut known: Vec<(f64, &str)> = known.collect();
    known.sort_by(|a, b| b.0.total_cmp(&a.0));
    let similar = known.iter().filter(|(alike, _)| *alike >= SIMILAR);
    let most = similar.count().clamp(1, MOST_SUGGESTIONS);
    let names = known.iter().take(most);
    let names: Vec<String> = names
        .map(|(_, name)| format!("`{}`", clean(name)))
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}
