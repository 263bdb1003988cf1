//! Gates: limits for the change of a metric between two runs, which a pipeline fails on.

use crate::analysis::Comparison;
use crate::compare::{ComparedRun, RunComparison};
use crate::stats::{Verdict, pairs_to_show};
use crate::terminal::clean;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// The accepted forms of a gate, for error messages.
const FORMS: &str =
    "write `METRIC > +5%` or `METRIC < -5%`, for one treatment `METRIC of TREATMENT > +5%`";
/// Least similarity (Jaro–Winkler) of a name that an error suggests.
const SIMILAR: f64 = 0.7;
/// Most names that an error suggests.
const SUGGESTED: usize = 3;

/// A limit for the ratio of a run to the base run in one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    /// The text that it was read from.
    text: String,
    metric: String,
    /// Label of the treatment; `None` for every treatment with the metric.
    treatment: Option<String>,
    /// Whether a ratio above the limit misses the gate; otherwise one below.
    is_upper: bool,
    /// The limit as a ratio, 1.05 for +5 %.
    limit: f64,
}

/// The reason why a gate cannot be read or does not fit the compared runs.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The text is not a gate.
    #[error("gate `{text}`, column {column}: {problem}; {FORMS}")]
    Text {
        /// The gate.
        text: String,
        /// The column of the problem, from 1.
        column: usize,
        /// The problem.
        problem: &'static str,
    },
    /// No comparison of a run has the metric or the treatment.
    #[error("gate `{gate}`: {run} and the base run share no {kind} `{name}`{remedy}")]
    Unknown {
        /// The gate.
        gate: String,
        /// The compared run.
        run: String,
        /// `metric` or `treatment`.
        kind: &'static str,
        /// The name in the gate.
        name: String,
        /// The nearest names, after a semicolon; empty where nothing is compared.
        remedy: String,
    },
}

impl FromStr for Gate {
    type Err = GateError;

    fn from_str(text: &str) -> Result<Self, GateError> {
        let wrong = |byte: usize, problem| GateError::Text {
            text: clean(text),
            column: text.get(..byte).map_or(0, |before| before.chars().count()) + 1,
            problem,
        };
        let sign = text
            .rfind(['<', '>'])
            .ok_or_else(|| wrong(text.len(), "no `>` or `<`"))?;
        let (subject, rest) = text.split_at(sign);
        let is_upper = rest.starts_with('>');
        let number = rest.get(1..).unwrap_or_default();
        let start = sign + 1 + (number.len() - number.trim_start().len());
        let number = number
            .trim()
            .strip_suffix('%')
            .ok_or_else(|| wrong(text.len(), "the limit does not end with `%`"))?;
        let percent: f64 = number
            .trim()
            .parse()
            .map_err(|_| wrong(start, "the limit is not a number"))?;
        if !percent.is_finite() || percent <= -100.0 {
            return Err(wrong(start, "the limit is not a finite number above -100"));
        }
        let named = subject.trim();
        let (metric, treatment) = match named.split_once(" of ") {
            Some((metric, treatment)) => (metric.trim(), Some(treatment.trim())),
            None => (named, None),
        };
        if metric.is_empty() {
            return Err(wrong(0, "the metric is missing"));
        }
        if let Some(space) = metric.find(char::is_whitespace) {
            let before = subject.len() - subject.trim_start().len();
            return Err(wrong(before + space, "a metric is one word"));
        }
        if treatment.is_some_and(str::is_empty) {
            return Err(wrong(sign, "the treatment is missing"));
        }
        Ok(Self {
            text: clean(text.trim()),
            metric: metric.to_owned(),
            treatment: treatment.map(str::to_owned),
            is_upper,
            limit: 1.0 + percent / 100.0,
        })
    }
}

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
    /// The compared run.
    pub run: String,
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
        write!(f, "{outcome:<9}  {gate}  {treatment}: {reason}")
    }
}

/// Judges each gate for each run, and for each treatment unless the gate names one.
///
/// # Errors
/// When a run shares no metric or no treatment of that name with the base run.
pub fn judge(gates: &[Gate], comparison: &RunComparison) -> Result<Vec<JudgedGate>, GateError> {
    let mut judged = Vec::new();
    for run in &comparison.others {
        for gate in gates {
            judged.extend(gate.judge(run)?);
        }
    }
    Ok(judged)
}

/// The worst outcome: missed, then undecided. Gates that judged nothing are undecided.
pub fn worst(judged: &[JudgedGate]) -> GateOutcome {
    let outcomes = judged.iter().map(|one| one.outcome);
    outcomes.max().unwrap_or(GateOutcome::Undecided)
}

impl Gate {
    fn judge(&self, run: &ComparedRun) -> Result<Vec<JudgedGate>, GateError> {
        let judged = |treatment: &str, (outcome, reason): (GateOutcome, String)| JudgedGate {
            gate: self.text.clone(),
            run: run.run.clone(),
            treatment: treatment.to_owned(),
            outcome,
            reason,
        };
        let rows = run.comparisons.iter();
        if let Some(name) = &self.treatment
            && !rows.clone().any(|row| row.treatment == *name)
        {
            let labels = rows.map(|row| row.treatment.as_str());
            return Err(self.unknown(run, "treatment", name, labels));
        }
        let wanted = |row: &&Comparison| {
            row.metric == self.metric
                && self
                    .treatment
                    .as_ref()
                    .is_none_or(|name| *name == row.treatment)
        };
        let mut all: Vec<JudgedGate> = (rows.clone().filter(wanted))
            .map(|row| judged(&row.treatment, self.judge_row(row)))
            .collect();
        if all.is_empty() {
            let names = rows.map(|row| row.metric.as_str());
            return Err(self.unknown(run, "metric", &self.metric, names));
        }
        if self.treatment.is_none() {
            let missing = [
                (&run.only_first, "only the base run has this treatment"),
                (&run.only_here, "the base run lacks this treatment"),
            ];
            for (labels, reason) in missing {
                let undecided = || (GateOutcome::Undecided, reason.to_owned());
                all.extend(labels.iter().map(|label| judged(label, undecided())));
            }
        }
        Ok(all)
    }

    fn judge_row(&self, row: &Comparison) -> (GateOutcome, String) {
        let undecided = |reason: &str| (GateOutcome::Undecided, reason.to_owned());
        let (Some(ratio), Some(shown)) = (row.ratio, row.ratio_in_words()) else {
            return undecided(row.note.as_deref().unwrap_or("no ratio"));
        };
        let (low, high) = match (row.verdict, row.interval()) {
            (Verdict::Suspect, _) => {
                return undecided(&format!("{shown}, but the trials are suspect"));
            }
            _ if row.certainty.is_exact() => (ratio, ratio),
            (verdict, Some(interval)) if verdict != Verdict::TooFewTrials => {
                (interval.low, interval.high)
            }
            _ => {
                return (
                    GateOutcome::Undecided,
                    format!("{shown}: too few trials{}", self.more(row)),
                );
            }
        };
        let (is_within, is_beyond) = match self.is_upper {
            true => (high <= self.limit, low > self.limit),
            false => (low >= self.limit, high < self.limit),
        };
        match (is_within, is_beyond) {
            (true, _) => (GateOutcome::Passed, shown),
            (_, true) => (GateOutcome::Missed, shown),
            _ => {
                let more = self.more(row);
                let reason = format!("{shown}: the interval contains the limit{more}");
                (GateOutcome::Undecided, reason)
            }
        }
    }

    /// The repetitions that distinguish the ratio from the limit with a power of 80 %; empty where unknown.
    fn more(&self, row: &Comparison) -> String {
        let more = || {
            let (tax, ratio) = (row.tax?, row.ratio?);
            let distance = (self.limit / ratio).ln().abs().exp_m1();
            let needed = pairs_to_show(distance, tax.sd?)?;
            Some(row.more_in_words(needed.saturating_sub(tax.n).max(1)))
        };
        more().map_or_else(String::new, |more| format!("; {more} would decide"))
    }

    fn unknown<'a>(
        &self,
        run: &ComparedRun,
        kind: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> GateError {
        let only = [
            (&run.only_first, "; only the base run has it"),
            (&run.only_here, "; the base run lacks it"),
        ];
        let only = only
            .iter()
            .find(|(labels, _)| kind == "treatment" && labels.iter().any(|label| label == name));
        let remedy = match only {
            Some((_, remedy)) => (*remedy).to_owned(),
            None => {
                nearest(name, known).map_or_else(String::new, |names| format!("; nearest: {names}"))
            }
        };
        GateError::Unknown {
            gate: self.text.clone(),
            run: clean(&run.run),
            kind,
            name: clean(name),
            remedy,
        }
    }
}

/// The most similar of the known names, or the first ones where none is similar; `None` without names.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut known: Vec<(f64, &str)> = crate::analysis::distinct(known)
        .into_iter()
        .map(|one| (strsim::jaro_winkler(name, one), one))
        .collect();
    known.sort_by(|a, b| b.0.total_cmp(&a.0));
    let similar = known
        .iter()
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .count();
    let names = known.iter().take(similar.clamp(1, SUGGESTED));
    let names: Vec<String> = names
        .map(|(_, name)| format!("`{}`", clean(name)))
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}
