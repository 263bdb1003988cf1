// SPDX-License-Identifier: Apache-2.0
//! The data of a comparison: a treatment against its baseline in one metric.

use super::{Certainty, MetricSummary};
use serde::Serialize;
use std::collections::HashMap;
use vtax_core::{Source, counted};
use vtax_results::numbers::{percent, ratio};
use vtax_results::stats::{
    self, Bounds, Effect, Interval, KneeRatio, NoTax, Pilot, Tax, Unsupported, Verdict,
};
use vtax_results::{Better, Treatment};

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
    /// The treatment's variant; `None` in a plan without variants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// The metric's stable name.
    pub metric: String,
    /// Name in tables.
    pub title: String,
    /// Which direction is better.
    pub better: Better,
    /// Whether a summary leads with it.
    pub headline: bool,
    /// The worse source of the two values.
    pub source: Source,
    /// Whether a model computed one of the two, regardless of `source`.
    pub modelled: bool,
    /// The ratio; `None` with a note where it does not exist.
    pub ratio: Option<f64>,
    /// The source of variation between repetitions of both sides, to which the interval and the verdict refer.
    pub certainty: Certainty,
    /// The estimate from the sample; `None` for an exact ratio.
    pub tax: Option<Tax>,
    /// The judgement.
    #[serde(flatten)]
    pub judgement: Judgement,
    /// The reason for a missing ratio, or another caveat.
    pub note: Option<String>,
    /// Why the verdict is withheld.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
    /// Disagreement between machines, where several ran the comparison.
    pub machines: Option<Disagreement>,
}

/// The judgement of a comparison. The default is that of a comparison that is not yet judged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Judgement {
    /// Student's p adjusted for the family of comparisons (Benjamini and Hochberg).
    pub adjusted_p: Option<f64>,
    /// Number of comparisons in that family.
    pub family: usize,
    /// The printed interval: adjusted for the family, consistent with `adjusted_p`. `tax` has the 95 % interval of this
    /// comparison alone.
    pub adjusted_interval: Option<Interval>,
    /// Level of `adjusted_interval`, 0.95 or more.
    pub confidence: Option<f64>,
    /// The ratios of means that the data allow at that level, where an end is open, so that there is no interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<Bounds>,
    /// The ratio of knees, with possibly open ends; `None` for other metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knee: Option<KneeRatio>,
    /// The reason why one side does not support the quantile that is compared, so that nothing is claimed; `None` for a
    /// supported quantile and other metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<Unsupported>,
    /// Whether one side is joules or watts of a power model, so that nothing is claimed as of a meter.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_model: bool,
    /// Half of the 95 % interval of the ratio that the error of that model alone would give, as a logarithm; `None` where it is
    /// not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_error: Option<f64>,
    /// Whether one side is the cost of a run of a fixed time whose work is not known, so that nothing is claimed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lacks_work: bool,
    /// How the canary moved it; `None` where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    /// What is known of the scatter between the runs of a comparison of costs; `None` for a comparison within a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between_runs: Option<BetweenRuns>,
    /// The noise floor: the chance difference between as many pairs of identical treatments, as a share. The interval
    /// is no narrower. `None` with fewer than four pairs.
    pub noise_floor: Option<f64>,
    /// Whether the interval would exclude 1 without the noise floor.
    pub is_below_floor: bool,
    /// The verdict.
    pub verdict: Verdict,
    /// Whether an effect of the plan's minimum or more is shown; `None` without a minimum effect, and where nothing is
    /// claimed.
    pub effect: Option<Effect>,
    /// The repetitions needed to show an effect, where neither a difference nor equality is shown.
    pub needed: Option<Needed>,
    /// The Hodges–Lehmann estimate of the ratio, where some pairs are outliers by Tukey's fences.
    pub robust_ratio: Option<f64>,
    /// Whether the sample consists of machines, each of which counts once, not of pairs.
    pub over_machines: bool,
}

/// How the canary beside the trials moved a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Control {
    /// The change of the logarithm of the metric by a change of that of the speed by 1.
    pub coefficient: f64,
    /// The width of the interval over that without the canary.
    pub width: f64,
}

/// What is known of the scatter between the two runs of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BetweenRuns {
    /// Nothing: the intervals have the scatter within the runs alone.
    Unknown,
    /// Both runs have the same canary. The ratio is the one at equal speeds of their hosts.
    ByCanary {
        /// The speed of the host in this run over that in the first.
        speed: f64,
    },
}

impl Judgement {
    /// Sets a verdict that claims nothing.
    pub(crate) fn claim_nothing(&mut self, verdict: Verdict) {
        (self.verdict, self.effect, self.needed) = (verdict, None, None);
    }
}

/// Number of repetitions that show an effect with a chance of 80 %, given the observed scatter, at the level of the printed
/// interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Needed {
    /// The effect to show, the plan's minimum effect or 0.02 without one; or the half width of the interval.
    pub effect: f64,
    /// Total repetitions.
    pub n: usize,
    /// Repetitions beyond the existing ones.
    pub more: usize,
}

impl Comparison {
    /// A comparison of one metric, not yet judged. `other` is the baseline's metric, if it has one; `sampled` is the
    /// estimate from the values where these are a sample.
    pub(crate) fn new(
        treatment: &Treatment,
        baseline: &Treatment,
        metric: &MetricSummary,
        other: Option<&MetricSummary>,
        sampled: impl FnOnce(&MetricSummary) -> Result<Tax, NoTax>,
    ) -> Self {
        let certainty = metric.certainty;
        let certainty = other.map_or(certainty, |other| certainty.with(other.certainty));
        let both = || [Some(metric), other].into_iter().flatten();
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
            variant: treatment.variant().map(str::to_owned),
            metric: metric.name.clone(),
            title: metric.title.clone(),
            better: metric.better,
            headline: metric.headline,
            source: other.map_or(metric.source, |other| metric.source.combine(other.source)),
            modelled: both().any(|one| one.modelled),
            note: match &found {
                Err(none) => Some(none.to_string()),
                Ok(_) => other.and_then(|other| metric.certainty.apart(other.certainty)),
            },
            ratio: found.ok().map(|(ratio, _)| ratio),
            certainty,
            tax: found.ok().and_then(|(_, tax)| tax),
            judgement: Judgement {
                unsupported: (both().filter_map(MetricSummary::unsupported))
                    .min_by_key(|one| one.values),
                lacks_work: both().any(|one| one.lacks_work),
                by_model: both().any(MetricSummary::is_by_model),
                // The curve is wrong by different amounts at different loads.
                model_error: (metric
                    .model_error()
                    .zip(other.and_then(|of| of.model_error())))
                .map(|(own, other)| own.hypot(other)),
                ..Judgement::default()
            },
            withheld: None,
            machines: None,
        }
    }

    /// Whether tables have a row of it: a headline, or a difference.
    pub fn is_shown(&self) -> bool {
        self.headline || self.judgement.verdict == Verdict::Different
    }

    /// Appends to the note.
    pub(crate) fn add_note(&mut self, more: String) {
        match &mut self.note {
            Some(note) => *note = format!("{note}; {more}"),
            None => self.note = Some(more),
        }
    }

    /// The repetitions needed to show an effect, `5 more blocks would show 2 %`; `None` where unknown.
    pub fn needed_in_words(&self) -> Option<String> {
        let Needed { effect, more, .. } = self.judgement.needed?;
        let effect = percent(effect);
        Some(match more {
            0 => format!("a difference of {effect} would have shown in 4 of 5 such runs"),
            more => format!("{} would show {effect}", self.more_in_words(more)),
        })
    }

    /// What the verdict leaves out: whether a difference that is shown reaches the minimum effect, and whether one is
    /// shown of what is the same within it.
    pub(crate) fn effect_in_words(&self, minimum_effect: f64) -> Option<String> {
        let ends = self.interval()?;
        let least = percent(minimum_effect);
        match (self.judgement.verdict, self.judgement.effect?) {
            (Verdict::Different, Effect::Open) => {
                Some(format!("whether it is {least} or more is open"))
            }
            (Verdict::Same, _) if !ends.contains(1.0) => {
                Some("a difference is shown and is smaller".to_owned())
            }
            _ => None,
        }
    }

    /// A number of further repetitions, `5 more blocks`, `2 more trials of each`.
    pub(crate) fn more_in_words(&self, more: usize) -> String {
        let of = |noun: &str| counted(more, &format!("more {noun}"));
        if let Certainty::Minutes { block } = self.certainty {
            let minutes = counted(more.saturating_mul(block), "more minute");
            return format!("{minutes} of each");
        }
        match self.tax.is_some_and(|tax| tax.paired) {
            _ if self.judgement.over_machines => of("machine"),
            true if self.certainty == Certainty::Seeds => of("seed"),
            true => of("block"),
            false => format!("{} of each", of("trial")),
        }
    }

    /// The plural of what is repeated.
    pub(crate) fn repeated(&self) -> &'static str {
        match self.certainty {
            Certainty::Minutes { .. } => "minutes",
            _ => "trials",
        }
    }

    /// The change of a tax between two runs: the ratio of `after` to `before`, one comparison with a baseline in each. The
    /// host's drift between the runs cancels, because both sides of a tax ran in the same blocks.
    pub(crate) fn of_taxes(after: &Self, before: &Self) -> Self {
        let certainty = after.certainty.with(before.certainty);
        let ratios = after.ratio.zip(before.ratio);
        let found = match (ratios, after.tax.zip(before.tax)) {
            _ if after.baseline != before.baseline => {
                Err("no ratio: the baselines differ".to_owned())
            }
            _ if after.judgement.knee.is_some() || before.judgement.knee.is_some() => {
                Err("no ratio of taxes of a knee: its values are load levels".to_owned())
            }
            (Some((new, old)), _) if certainty.is_exact() => stats::exact_ratio(new, old)
                .map(|ratio| (ratio, None))
                .map_err(|none| none.to_string()),
            (Some(_), Some((new, old)))
                if new
                    .open(stats::CONFIDENCE)
                    .or(old.open(stats::CONFIDENCE))
                    .is_some() =>
            {
                Err("no ratio: the ratio of one run is not bounded".to_owned())
            }
            (Some(_), Some((new, old))) => stats::ratio_of_taxes(&new, &old)
                .map(|tax| (tax.ratio, Some(tax)))
                .map_err(|none| none.to_string()),
            (Some(_), None) => Err((after.certainty.apart(before.certainty))
                .unwrap_or_else(|| "no ratio: only one tax is exact".to_owned())),
            (None, _) => Err("no ratio: one run has no tax".to_owned()),
        };
        let note = found.as_ref().err().cloned();
        let kept = found.ok();
        Self {
            source: after.source.combine(before.source),
            modelled: after.modelled || before.modelled,
            ratio: kept.map(|(ratio, _)| ratio),
            certainty,
            tax: kept.and_then(|(_, tax)| tax),
            judgement: Judgement {
                unsupported: after.judgement.unsupported.or(before.judgement.unsupported),
                lacks_work: after.judgement.lacks_work || before.judgement.lacks_work,
                by_model: after.judgement.by_model || before.judgement.by_model,
                model_error: (after
                    .judgement
                    .model_error
                    .zip(before.judgement.model_error))
                .map(|(new, old)| new.hypot(old)),
                over_machines: after.judgement.over_machines && before.judgement.over_machines,
                ..Judgement::default()
            },
            withheld: after.withheld.clone().or_else(|| before.withheld.clone()),
            machines: None,
            note,
            ..after.clone()
        }
    }

    /// The repetitions whose interval shows an effect with a chance of 80 %; `None` where unknown. A run that gets more
    /// blocks is judged by intervals that hold at every look.
    pub(crate) fn pairs_to_show(&self, effect: f64) -> Option<usize> {
        let tax = self.tax?;
        let floor = self.judgement.noise_floor.map_or(0.0, f64::ln_1p);
        // An interval for every look is without the canary.
        let gain = (self.judgement.control).map_or(1.0, |control| control.width.min(1.0));
        let pilot = Pilot {
            sd: (tax.sd? / gain).max(stats::scatter_of_floor(floor, tax.n)),
            n: tax.n,
            confidence: self.judgement.confidence?,
            sequential: tax.paired && !self.judgement.over_machines,
        };
        stats::pairs_to_show(effect, pilot)
    }

    /// The half width of the printed interval, relative to the ratio; `None` without an interval.
    pub fn half_width(&self) -> Option<f64> {
        stats::half_width(self.ratio?, self.interval()?)
    }

    /// The repetitions for which the printed interval is at most ± `width` wide, relative to the ratio; `None` where
    /// they cannot be estimated. The interval of two knees has the steps between load levels in it and does not narrow.
    pub fn needed_for(&self, width: f64) -> Option<Needed> {
        let is_unclaimed = matches!(
            self.judgement.verdict,
            Verdict::Suspect | Verdict::Unsupported | Verdict::NoWork | Verdict::Withheld
        );
        // The error of a model does not become smaller with more trials.
        let is_bound = self.judgement.knee.is_some() || self.judgement.model_error.is_some();
        if is_bound || is_unclaimed {
            return None;
        }
        let (had, level) = (self.tax?.n, self.judgement.confidence?);
        let n = stats::pairs_for_width(width, self.half_width()?, had, level)?;
        Some(Needed {
            effect: width,
            n,
            more: n.saturating_sub(had),
        })
    }

    /// Widens the interval of modelled joules by the error of the model.
    pub(crate) fn widen_by_model(&mut self) {
        if let (Some(half), Some(tax)) = (self.judgement.model_error, &mut self.tax) {
            tax.interval = tax
                .interval
                .and_then(|own| own.widened_by_factor(tax.ratio, half));
        }
    }

    /// What is known of the error of the model that computed the joules.
    pub(crate) fn model_in_words(&self) -> Option<&'static str> {
        (self.judgement.verdict == Verdict::Modelled).then_some(match self.judgement.model_error {
            Some(_) => "the error of the model’s fit is in the interval",
            None => "nothing is known of the model’s error",
        })
    }

    /// Sets the verdict of a comparison of suspect trials, about which nothing is claimed.
    pub(crate) fn make_provisional(&mut self) {
        if self.ratio.is_none() {
            return;
        }
        self.judgement.claim_nothing(Verdict::Suspect);
        self.note = Some("the trials are suspect: run again on a quiet host".to_owned());
    }

    /// The printed interval: adjusted for the family of comparisons once the family is known. `None` with an open end.
    pub fn interval(&self) -> Option<Interval> {
        if self.judgement.open.is_some() {
            return None;
        }
        self.judgement.adjusted_interval.or(self.tax?.interval)
    }

    /// The ratio with its interval, `3.1× [2.9–3.3]`, or `exactly 3.1×`; `None` without a ratio.
    pub fn ratio_in_words(&self) -> Option<String> {
        let interval = self
            .interval()
            .or_else(|| self.judgement.knee.as_ref()?.closed());
        let shown = ratio(self.ratio?, interval).line();
        let ends = self.judgement.knee.map(|knee| (knee.low, knee.high));
        Some(match ends {
            Some((Some(_), None)) => format!("at least {shown}"),
            Some((None, Some(_))) => format!("at most {shown}"),
            None if self.certainty.is_exact() => format!("exactly {shown}"),
            _ => match self.judgement.open {
                Some(open) => format!("{shown} [{}]", bounds_in_words(open)),
                None => shown,
            },
        })
    }

    /// The ratio in words, with the flags of what is not measured: `16× [13–18], emulated`.
    pub fn flagged_ratio(&self) -> Option<String> {
        let flags = self.source.flags(self.modelled);
        let shown = self.ratio_in_words()?;
        Some(flags.fold(shown, |shown, flag| format!("{shown}, {flag}")))
    }

    /// The clause about the host's resolution, for a comparison that the noise floor decides.
    pub(super) fn limit_in_words(&self) -> Option<String> {
        let floor = percent(self.judgement.noise_floor?);
        let limit = format!("this host resolves no difference below ±{floor} today");
        self.judgement.is_below_floor.then_some(limit)
    }

    /// Number of repetitions behind the ratio: `4 seeds`, `5 pairs`; `None` without a ratio.
    pub fn repetitions(&self) -> Option<String> {
        let (n, paired) = match self.tax {
            Some(tax) => (tax.n, tax.paired),
            None => (1, self.ratio.map(|_| true)?),
        };
        let repetition = if self.judgement.over_machines {
            "machine"
        } else {
            self.certainty.repetition(paired)
        };
        Some(counted(n, repetition))
    }
}

/// The ratios within bounds of which an end is open, in words.
pub(super) fn bounds_in_words(open: Bounds) -> String {
    let shown = |end| ratio(end, None).value;
    match (open.low, open.high) {
        (Some(low), _) => format!("at least {}", shown(low)),
        (None, Some(high)) => format!("at most {}", shown(high)),
        (None, None) => "nothing bounds it".to_owned(),
    }
}

/// Disagreement between machines about a ratio, as a factor; 1 for full agreement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Disagreement {
    /// Number of machines with pairs.
    pub machines: usize,
    /// Typical factor between two machines: the random effect's standard deviation.
    pub factor: f64,
    /// Its 95 % interval.
    pub interval: Interval,
    /// Probability of a disagreement this large between identical machines.
    pub p: f64,
}

impl Disagreement {
    /// Whether the interval excludes full agreement.
    pub fn is_shown(&self) -> bool {
        self.interval.low > 1.0
    }
}
