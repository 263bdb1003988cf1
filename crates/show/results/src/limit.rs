// SPDX-License-Identifier: Apache-2.0
//! Gates as they are written: a metric, a limit for a ratio, and the treatments that they apply to.

use crate::text::clean;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The accepted forms of a gate, for error messages.
const FORMS: &str = "write `METRIC > +5%`, `METRIC < -5%` or, for the tax itself, `METRIC > 2x`; for one treatment or \
                     platform `METRIC of NAME > +5%`";
/// The values of runs that are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Of {
    /// The ratio of a treatment to its baseline.
    #[default]
    Tax,
    /// The treatment's own mean.
    Cost,
}

/// A limit for a ratio in one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    /// The text that it was read from.
    pub text: String,
    /// The metric.
    pub metric: String,
    /// Label of the treatment, or name of the platform or variant; `None` for every treatment with the metric.
    pub subject: Option<String>,
    /// Whether a ratio above the limit misses the gate; otherwise one below.
    pub is_upper: bool,
    /// The limit as a ratio, 1.05 for +5 %.
    pub limit: f64,
    /// Whether the limit is for the tax of one run; otherwise for the ratio of a run to the base run.
    pub is_of_one_run: bool,
}

/// A gate of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedGate {
    /// The gate.
    pub gate: Gate,
    /// The values of the two runs whose ratio is limited.
    pub of: Of,
}

impl PlannedGate {
    /// Reads a gate from the values of its keys. `name` is that of a treatment or platform, `limit` such as `> +5%`.
    ///
    /// # Errors
    /// When they are no gate.
    pub fn new(metric: &str, name: Option<&str>, limit: &str, of: Of) -> Result<Self, GateError> {
        let name = name.map_or_else(String::new, |name| format!(" of {name}"));
        let gate = format!("{metric}{name} {}", limit.trim()).parse()?;
        Ok(Self { gate, of })
    }
}

impl fmt::Display for PlannedGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match (self.gate.is_of_one_run, self.of) {
            (true, _) => "tax of the run",
            (false, Of::Tax) => "change of the tax from a base run",
            (false, Of::Cost) => "change of the cost from a base run",
        };
        write!(f, "{} ({of})", self.gate.text)
    }
}

/// The reason why a gate cannot be read or does not fit the compared runs.
#[derive(Debug, Clone, thiserror::Error)]
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
    #[error("gate `{gate}`: {runs} no {kind} `{name}`{remedy}")]
    Unknown {
        /// The gate.
        gate: String,
        /// The run or runs, with their verb.
        runs: String,
        /// `metric` or `treatment`.
        kind: &'static str,
        /// The name in the gate.
        name: String,
        /// The nearest names, after a semicolon; empty where nothing is compared.
        remedy: String,
    },
    /// No series of a history has the metric or the treatment.
    #[error(
        "gate `{gate}`: no run that counts has this metric of this treatment; `vtax report RESULTS --json` lists both"
    )]
    NotFollowed {
        /// The gate.
        gate: String,
    },
    /// A limit in percent for a run by itself that compares no variants.
    #[error(
        "gate `{gate}`: a limit in percent is for the change from another run or variant, and this run has neither: give \
         variants (--variant NAME=VALUE), compare two runs (`vtax compare`), or limit the tax, such as `> 2x`"
    )]
    NoVariants {
        /// The gate.
        gate: String,
    },
    /// No treatment of the gate is compared with another one in the run.
    #[error(
        "gate `{gate}`: no treatment of this name is compared with another one in this run; compared are: {names}"
    )]
    NothingCompared {
        /// The gate.
        gate: String,
        /// The platforms and variants that are compared.
        names: String,
    },
    /// The workload of a treatment is another one in the base run.
    #[error(
        "gate `{gate}`: the workload `{workload}` of {run} is not that of the base run: {keys} differ; run both with \
         one plan"
    )]
    OtherWorkload {
        /// The gate.
        gate: String,
        /// The compared run.
        run: String,
        /// The workload.
        workload: String,
        /// The differing keys of the plans.
        keys: String,
    },
    /// The hosts of two runs differ in a fact that decides their speed.
    #[error(
        "gate `{gate}`: a cost of {run} is not comparable with that of {base}, as the hosts differ: {facts}; measure both \
         on one host, gate the tax (--of tax), or give --across-hosts"
    )]
    OtherHost {
        /// The gate.
        gate: String,
        /// The judged run.
        run: String,
        /// The run that it is judged by.
        base: String,
        /// The differing facts.
        facts: String,
    },
    /// The plan of a run cannot be read, so its gates are unknown.
    #[error(
        "the gates of {run} cannot be read: {cause}; give gates with --fail-on, or restore plan.toml from a copy"
    )]
    Plan {
        /// The run.
        run: String,
        /// The reason.
        cause: String,
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
        let number = number.trim();
        let is_of_one_run = !number.ends_with('%');
        let number = number
            .strip_suffix(['%', 'x', '×'])
            .ok_or_else(|| wrong(text.len(), "the limit does not end with `%` or `x`"))?;
        let number: f64 = number
            .trim()
            .parse()
            .map_err(|_| wrong(start, "the limit is not a number"))?;
        let (least, problem, limit) = if is_of_one_run {
            (0.0, "the limit is not a finite number above 0", number)
        } else {
            let ratio = 1.0 + number / 100.0;
            (-100.0, "the limit is not a finite number above -100", ratio)
        };
        if !number.is_finite() || number <= least {
            return Err(wrong(start, problem));
        }
        let named = subject.trim();
        let (metric, subject_name) = match named.split_once(" of ") {
            Some((metric, name)) => (metric.trim(), Some(name.trim())),
            None => (named, None),
        };
        if metric.is_empty() {
            return Err(wrong(0, "the metric is missing"));
        }
        if let Some(space) = metric.find(char::is_whitespace) {
            let before = subject.len() - subject.trim_start().len();
            return Err(wrong(before + space, "a metric is one word"));
        }
        if subject_name.is_some_and(str::is_empty) {
            return Err(wrong(sign, "the treatment is missing"));
        }
        Ok(Self {
            text: clean(text.trim()),
            metric: metric.to_owned(),
            subject: subject_name.map(str::to_owned),
            is_upper,
            limit,
            is_of_one_run,
        })
    }
}

/// When a run knows enough: `METRIC ± 2%`, or `decided: GATE`.
#[derive(Debug, Clone, PartialEq)]
pub enum Until {
    /// Each interval of the metric's ratios is narrow enough.
    Width {
        /// The metric.
        metric: String,
        /// Label of the treatment, or name of the platform or variant; `None` for every treatment with the metric.
        subject: Option<String>,
        /// The half width in percent.
        percent: f64,
    },
    /// A gate is passed or missed.
    Decided(Gate),
}

/// A text that says no end of a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UntilError {
    /// No width.
    #[error(
        "`{0}` is no end of a run: write `METRIC ± 2%`, `METRIC of NAME ± 2%`, or `decided: GATE` such as `decided: \
         cpu.per_work > +5%`"
    )]
    Form(String),
    /// A gate that cannot be read.
    #[error("{0}")]
    Gate(String),
}

impl FromStr for Until {
    type Err = UntilError;

    fn from_str(text: &str) -> Result<Self, UntilError> {
        if let Some(gate) = text.trim().strip_prefix("decided:") {
            let gate = gate.trim().parse::<Gate>();
            return gate
                .map(Self::Decided)
                .map_err(|wrong| UntilError::Gate(wrong.to_string()));
        }
        let wrong = || UntilError::Form(clean(text));
        let split = text.split_once('±').or_else(|| text.split_once("+-"));
        let (named, width) = split.ok_or_else(wrong)?;
        let width = width
            .trim()
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok());
        let width = width
            .filter(|width| (0.01..=1000.0).contains(width))
            .ok_or_else(wrong)?;
        let (metric, subject) = match named.trim().split_once(" of ") {
            Some((metric, subject)) => (metric.trim(), Some(subject.trim())),
            None => (named.trim(), None),
        };
        let is_name = |name: &str| !name.is_empty();
        if metric.contains(char::is_whitespace) || !is_name(metric) || !subject.is_none_or(is_name)
        {
            return Err(wrong());
        }
        Ok(Self::Width {
            metric: metric.to_owned(),
            subject: subject.map(str::to_owned),
            percent: width,
        })
    }
}

impl Until {
    /// The label of a treatment, or the name of a platform or variant, that it is of.
    pub fn subject(&self) -> Option<&str> {
        match self {
            Self::Width { subject, .. } => subject.as_deref(),
            Self::Decided(gate) => gate.subject.as_deref(),
        }
    }
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Width {
                metric,
                subject,
                percent,
            } => {
                let of = subject
                    .as_ref()
                    .map_or_else(String::new, |name| format!(" of {name}"));
                write!(f, "{metric}{of} ± {percent}%")
            }
            Self::Decided(gate) => write!(f, "decided: {}", gate.text),
        }
    }
}

/// Whether a gate or an end of a run that has this subject is of a treatment.
pub fn is_of(
    subject: Option<&str>,
    treatment: &str,
    platform: &str,
    variant: Option<&str>,
) -> bool {
    subject.is_none_or(|name| name == treatment || name == platform || variant == Some(name))
}

impl Gate {
    /// Whether a ratio is within the limit.
    pub fn allows(&self, ratio: f64) -> bool {
        if self.is_upper {
            ratio <= self.limit
        } else {
            ratio >= self.limit
        }
    }

    /// Whether a value is farther from missing the gate than another one.
    pub fn is_better(&self, value: f64, other: f64) -> bool {
        if self.is_upper {
            value < other
        } else {
            value > other
        }
    }

    /// Whether the gate applies to the treatment with this label, of this platform and variant.
    pub fn applies_to(&self, treatment: &str, platform: &str, variant: Option<&str>) -> bool {
        is_of(self.subject.as_deref(), treatment, platform, variant)
    }
}
