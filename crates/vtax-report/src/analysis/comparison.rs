//! The data of a comparison: a treatment against its baseline in one metric.

use super::{Certainty, MetricSummary};
use crate::numbers::{percent, ratio};
use crate::results::{Better, Treatment};
use crate::stats::{self, Interval, KneeRatio, NoTax, Tax, Verdict};
use serde::Serialize;
use std::collections::HashMap;
use vtax_core::{Source, counted};

/// Comparisons by the treatment's label and the metric's name.
pub fn by_key(comparisons: &[Comparison]) -> HashMap<(&str, &str), &Comparison> {
    let keyed = comparisons.iter().map(|one| {
        let key = (one.treatment.as_str(), one.metric.as_str());
        (key, one)
    });
    keyed.collect()
}

/// One treatment against its baseline in one metric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Label of the treatment.
    pub treatment: String,
    /// Label of its baseline.
    pub baseline: String,
    /// The workload.
    pub workload: String,
    /// The treatment's platform.
    pub platform: String,
    /// The metric's stable name.
    pub metric: String,
    /// Its name in tables.
    pub title: String,
    /// Which direction is better.
    pub better: Better,
    /// Whether a summary leads with it.
    pub headline: bool,
    /// The worse flag of the two.
    pub source: Source,
    /// Whether one of the two comes from a model, whatever else is true of it.
    pub modelled: bool,
    /// The ratio; `None` with a note where there is none.
    pub ratio: Option<f64>,
    /// What the repetitions of both vary; then the interval and the verdict speak of that.
    pub certainty: Certainty,
    /// What a sample says of the ratio; `None` where it is exact.
    pub tax: Option<Tax>,
    /// Student's p adjusted for the family of comparisons (Benjamini and Hochberg).
    pub adjusted_p: Option<f64>,
    /// How many comparisons that family has.
    pub family: usize,
    /// The interval that is printed: adjusted for that family, so that it agrees with `adjusted_p`. The 95 %
    /// interval of this comparison alone is in `tax`.
    pub adjusted_interval: Option<Interval>,
    /// Level of `adjusted_interval`, 0.95 or more.
    pub confidence: Option<f64>,
    /// The ratio of knees, whose ends may be open, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knee: Option<KneeRatio>,
    /// What so many pairs of identical treatments differ by, by chance: the noise floor, as a share. The interval is no
    /// narrower. `None` without four pairs.
    pub noise_floor: Option<f64>,
    /// Whether the interval excludes 1 but for the noise floor.
    pub is_below_floor: bool,
    /// What may be said.
    pub verdict: Verdict,
    /// How many repetitions would show how much, where neither a difference nor equality is shown.
    pub needed: Option<Needed>,
    /// The Hodges–Lehmann estimate of the ratio, where pairs are outliers by Tukey's fences.
    pub robust_ratio: Option<f64>,
    /// Whether the sample is of machines, each of which counts once, not of pairs.
    pub over_machines: bool,
    /// Why there is no ratio, or what else a reader must know.
    pub note: Option<String>,
    /// How much the machines that ran it disagree, where several did.
    pub machines: Option<Disagreement>,
}

/// How many repetitions show an effect with a chance of 80 %, by the scatter that was observed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Needed {
    /// The effect: the plan's minimum effect, 0.02 where it has none.
    pub effect: f64,
    /// Repetitions, in all.
    pub n: usize,
    /// Those beyond the ones that there are.
    pub more: usize,
}

impl Comparison {
    /// Of one metric, not yet judged. `other` is the baseline's, which may lack it; `sampled` is what
    /// their values say where these are a sample.
    pub(crate) fn of(
        treatment: &Treatment,
        baseline: &Treatment,
        metric: &MetricSummary,
        other: Option<&MetricSummary>,
        sampled: impl FnOnce(&MetricSummary) -> Result<Tax, NoTax>,
    ) -> Self {
        let certainty = other.map_or(metric.certainty, |other| {
            metric.certainty.with(other.certainty)
        });
        let found = match other {
            None => Err(NoTax::NoTrials),
            Some(other) if certainty.is_exact() => {
                let means = (metric.description.mean, other.description.mean);
                stats::exact_ratio(means.0, means.1).map(|ratio| (ratio, None))
            }
            Some(other) => sampled(other).map(|tax| (tax.ratio, Some(tax))),
        };
        Self {
            treatment: treatment.label.clone(),
            baseline: baseline.label.clone(),
            workload: treatment.workload.clone(),
            platform: treatment.platform.clone(),
            metric: metric.name.clone(),
            title: metric.title.clone(),
            better: metric.better,
            headline: metric.headline,
            source: other.map_or(metric.source, |other| metric.source.combine(other.source)),
            modelled: [Some(metric), other]
                .into_iter()
                .flatten()
                .any(|one| one.modelled),
            note: match &found {
                Err(none) => Some(none.to_string()),
                Ok(_) => other.and_then(|other| metric.certainty.apart(other.certainty)),
            },
            ratio: found.ok().map(|(ratio, _)| ratio),
            certainty,
            tax: found.ok().and_then(|(_, tax)| tax),
            adjusted_p: None,
            family: 0,
            adjusted_interval: None,
            confidence: None,
            knee: None,
            noise_floor: None,
            is_below_floor: false,
            verdict: Verdict::NoRatio,
            needed: None,
            robust_ratio: None,
            over_machines: false,
            machines: None,
        }
    }

    /// Adds to what else a reader must know.
    pub(crate) fn add_note(&mut self, more: String) {
        match &mut self.note {
            Some(note) => *note = format!("{note}; {more}"),
            None => self.note = Some(more),
        }
    }

    /// What would show an effect, `5 more blocks would show 2 %`; `None` where that is not known.
    pub fn needed_in_words(&self) -> Option<String> {
        let Needed { effect, more, .. } = self.needed?;
        let effect = percent(effect);
        Some(match (more, self.over_machines, self.tax?.paired) {
            (0, ..) => format!("enough to show {effect}"),
            (more, true, _) => format!("{} would show {effect}", further(more, "machine")),
            (more, false, true) if self.certainty == Certainty::Seeds => {
                format!("{} would show {effect}", further(more, "seed"))
            }
            (more, false, true) => format!("{} would show {effect}", further(more, "block")),
            (more, false, false) => {
                format!("{} of each would show {effect}", further(more, "trial"))
            }
        })
    }

    /// Nothing is claimed of trials that are suspect.
    pub(crate) fn make_provisional(&mut self) {
        if self.ratio.is_none() {
            return;
        }
        self.verdict = Verdict::Suspect;
        self.needed = None;
        self.note = Some("the trials are suspect: run again on a quiet host".to_owned());
    }

    /// The interval that is printed: adjusted for the family of comparisons once that is known.
    pub fn interval(&self) -> Option<Interval> {
        self.adjusted_interval.or(self.tax?.interval)
    }

    /// The ratio with its interval, `3.1× [2.9–3.3]`, or `exactly 3.1×`; `None` where there is none.
    pub fn ratio_in_words(&self) -> Option<String> {
        let interval = self.interval().or_else(|| self.knee.as_ref()?.closed());
        let shown = ratio(self.ratio?, interval).line();
        if let Some(knee) = self.knee {
            return Some(match (knee.low, knee.high) {
                (Some(_), None) => format!("at least {shown}"),
                (None, Some(_)) => format!("at most {shown}"),
                _ => shown,
            });
        }
        Some(if self.certainty.is_exact() {
            format!("exactly {shown}")
        } else {
            shown
        })
    }

    /// What its sentence has where the noise floor decides.
    pub(super) fn limit_in_words(&self) -> Option<String> {
        let floor = self.noise_floor.filter(|_| self.is_below_floor)?;
        Some(format!(
            "this host cannot tell less than ±{} today",
            percent(floor)
        ))
    }

    /// How many repetitions the ratio comes from: `4 seeds`, `5 pairs`; `None` without a ratio.
    pub fn repetitions(&self) -> Option<String> {
        let (n, paired) = match self.tax {
            Some(tax) => (tax.n, tax.paired),
            None => (1, self.ratio.map(|_| true)?),
        };
        let repetition = match self.over_machines {
            true => "machine",
            false => self.certainty.repetition(paired),
        };
        Some(counted(n, repetition))
    }
}

/// `1 more block`, `2 more blocks`.
fn further(n: usize, noun: &str) -> String {
    counted(n, &format!("more {noun}"))
}

/// How much machines disagree about a ratio: 1 where they do not.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Disagreement {
    /// Machines that have pairs.
    pub machines: usize,
    /// Two machines differ by about this factor: the random effect's standard deviation.
    pub factor: f64,
    /// Its 95 % interval.
    pub interval: Interval,
    /// Chance of machines so far apart if none differed.
    pub p: f64,
}

impl Disagreement {
    /// Whether the interval excludes that they agree.
    pub fn is_shown(&self) -> bool {
        self.interval.low > 1.0
    }
}
