// SPDX-License-Identifier: Apache-2.0
//! The claims of the papers, judged by measured numbers, and the scores of instruments that measure nothing.

use crate::catalogue::Claim;
use crate::verdict::{
    Effect, FigureVerdict, Outcome, Ratio, SAME_SIZE, random_ratio, share_of_effect,
};
use crate::{Compared, Entry};
use std::collections::BTreeMap;
use std::fmt;
use vtax_core::SplitMix64;
use vtax_report::html::frame::DASH;
use vtax_report::numbers;
use vtax_report::stats::Interval;

/// The draws of the random instrument.
const DRAWS: u64 = 1000;

/// A claim with the numbers that judge it.
#[derive(Debug, Clone)]
pub struct Judged<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// The published ratio to the baseline, where it is printed.
    pub published: Option<Ratio>,
    /// The measured ratio to the baseline.
    pub ours: Option<Ratio>,
    /// The interval by which it was judged ([`crate::verdict::judged_interval`]).
    pub interval: Option<Interval>,
    /// The verdict.
    pub outcome: Outcome,
    /// Of a modelled ratio: the cost models under which the verdict is the same, and all.
    pub models: Option<(usize, usize)>,
}

impl<'a> Judged<'a> {
    /// Judges a claim by the compared series of its figure.
    pub fn of(claim: &'a Claim, series: &[Compared<'_>]) -> Self {
        let mut judged = Self {
            claim,
            published: None,
            ours: None,
            interval: None,
            outcome: Outcome::Unknown,
            models: None,
        };
        let Some(test) = &claim.test else {
            return judged;
        };
        let of_series = |one: &&Compared<'_>| one.series.what == test.series;
        let Some(compared) = series.iter().find(of_series) else {
            return judged;
        };
        let mut rows = compared.rows.iter();
        if let Some(row) = rows.find(|row| row.row.system == test.row) {
            judged.published = row.published_ratio;
            judged.ours = row.our_ratio;
            judged.interval = row.judged;
            judged.outcome = Outcome::judge(test.effect, test.minimum, row.judged);
            let base = compared.rows.iter();
            let mut base = base.filter(|one| one.row.system == compared.series.baseline);
            let base = base.next().and_then(|base| base.models);
            judged.models = row
                .models
                .zip(base)
                .and_then(|(own, base)| judged.under(own, base));
        }
        judged
    }

    /// Counts the cost models under which the verdict is the same. The interval of a model's ratio is as wide as that of
    /// the measured one.
    fn under(
        &self,
        own: &BTreeMap<String, f64>,
        base: &BTreeMap<String, f64>,
    ) -> Option<(usize, usize)> {
        let (test, measured, interval) =
            (self.claim.test.as_ref()?, self.ours?.value, self.interval?);
        let ratios = own
            .iter()
            .filter_map(|(model, value)| Some(value / base.get(model)?));
        let same = ratios.map(|ratio| {
            let shift = ratio / measured;
            let interval = Interval {
                low: interval.low * shift,
                high: interval.high * shift,
            };
            Outcome::judge(test.effect, test.minimum, Some(interval)) == self.outcome
        });
        let same: Vec<bool> = same.collect();
        let count = same.iter().filter(|same| **same).count();
        (!same.is_empty()).then_some((count, same.len()))
    }

    /// The cost models under which the verdict holds, in words; `None` for a ratio that no model made.
    pub fn under_models(&self) -> Option<String> {
        let (same, all) = self.models?;
        Some(match same == all {
            true => format!("all {all}"),
            false => format!("{same} of {all}: depends on the model"),
        })
    }

    /// The measured effect as a share of the published one, where the effect is as published and its size is printed.
    pub fn share(&self) -> Option<f64> {
        let is_effect = self.effect().is_some_and(|effect| effect != Effect::None);
        if self.outcome != Outcome::AsPublished || !is_effect {
            return None;
        }
        share_of_effect(self.ours?.value, self.published?.value)
    }

    fn effect(&self) -> Option<Effect> {
        Some(self.claim.test.as_ref()?.effect)
    }
}

/// The claims of a paper as a Markdown table, with links to the figures of `page`.
pub fn markdown(entries: &[Entry<'_>], paper: &str, page: &str) -> String {
    let mut text =
        "| claim | published | ours | verdict | cost models | figure |\n|---|---:|---:|---|---|---|\n".to_owned();
    let own = entries.iter().filter(|entry| entry.figure.paper == paper);
    for (entry, judged) in own.flat_map(|entry| entry.claims.iter().map(move |one| (entry, one))) {
        let published = match (judged.published, judged.effect()) {
            (Some(published), _) => numbers::ratio(published.value, None).line(),
            (None, Some(effect)) => effect.name().to_owned(),
            (None, None) => DASH.to_owned(),
        };
        let ours = judged
            .ours
            .map(|ours| numbers::ratio(ours.value, judged.interval).line());
        let verdict = judged.outcome.name();
        let reason = judged.claim.missing.as_deref();
        let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
        let models = judged.under_models();
        let models = models.unwrap_or_else(|| DASH.to_owned());
        let (number, id) = (&entry.figure.number, &entry.figure.id);
        text += &format!(
            "| {} | {published} | {} | {verdict}{reason} | {models} | [{number}]({page}#{paper}-{id}) |\n",
            judged.claim.text,
            ours.unwrap_or_else(|| DASH.to_owned())
        );
    }
    text
}

/// The verdicts of one instrument on all claims: counts, or means over draws.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// Claims by outcome.
    pub claims: BTreeMap<Outcome, f64>,
    /// Claims of an effect that is as published and of the same size, and those whose size is printed.
    pub size: (f64, f64),
    /// Counted figures by verdict.
    pub figures: BTreeMap<FigureVerdict, f64>,
    /// Figures that agree and whose effects are all of the published size, where sizes are printed.
    pub sized_figures: f64,
}

impl Score {
    /// The score of the measured numbers.
    pub fn of(entries: &[Entry<'_>]) -> Self {
        let mut score = Self::default();
        for entry in entries {
            let judged = entry.claims.iter();
            let answers = judged.map(|one| (one, one.outcome, one.ours.map(|ours| ours.value)));
            score.add(answers, 1.0);
        }
        score
    }

    /// The score of an instrument that answers each question with 1.
    pub fn of_constant(entries: &[Entry<'_>]) -> Self {
        let mut score = Self::default();
        for entry in entries {
            score.add(entry.claims.iter().filter_map(|one| answer(one, 1.0)), 1.0);
        }
        score
    }

    /// The mean score of an instrument that answers at random: the logarithms of its ratios have a normal distribution
    /// with the root mean square of the published ones.
    pub fn of_random(entries: &[Entry<'_>]) -> Self {
        let claims = || entries.iter().flat_map(|entry| &entry.claims);
        let effects = claims().filter_map(|one| Some(one.published?.value.ln()));
        let squares: Vec<f64> = effects.map(|effect| effect * effect).collect();
        let deviation = (squares.iter().sum::<f64>() / squares.len().max(1) as f64).sqrt();
        let mut random = SplitMix64::new(1);
        let mut score = Self::default();
        for _ in 0..DRAWS {
            for entry in entries {
                let drawn = entry.claims.iter().filter_map(|one| {
                    one.claim.test.as_ref()?;
                    answer(one, random_ratio(&mut random, deviation))
                });
                let drawn: Vec<_> = drawn.collect();
                score.add(drawn.into_iter(), 1.0 / DRAWS as f64);
            }
        }
        score
    }

    /// Adds the answers on the claims of one figure.
    fn add<'a>(
        &mut self,
        answers: impl Iterator<Item = (&'a Judged<'a>, Outcome, Option<f64>)>,
        weight: f64,
    ) {
        let mut of_figure = Vec::new();
        let mut sizes = Vec::new();
        for (judged, outcome, ratio) in answers {
            *self.claims.entry(outcome).or_default() += weight;
            let effect = judged.effect().unwrap_or(Effect::None);
            of_figure.push((effect, outcome));
            if let (true, Some(published)) = (effect != Effect::None, judged.published) {
                self.size.1 += weight;
                let share = ratio.and_then(|ratio| share_of_effect(ratio, published.value));
                let is_same = share.is_some_and(|share| SAME_SIZE.contains(&share));
                let is_same = is_same && outcome == Outcome::AsPublished;
                sizes.push(is_same);
                if is_same {
                    self.size.0 += weight;
                }
            }
        }
        if !of_figure.is_empty() {
            let verdict = FigureVerdict::of(&of_figure);
            *self.figures.entry(verdict).or_default() += weight;
            let agrees = verdict == FigureVerdict::Agrees;
            if agrees && !sizes.is_empty() && sizes.iter().all(|same| *same) {
                self.sized_figures += weight;
            }
        }
    }

    /// The claims with this outcome.
    pub fn claims_that_are(&self, outcome: Outcome) -> f64 {
        self.claims.get(&outcome).copied().unwrap_or(0.0)
    }

    /// The figures with this verdict.
    pub fn figures_that_are(&self, verdict: FigureVerdict) -> f64 {
        self.figures.get(&verdict).copied().unwrap_or(0.0)
    }
}

/// The answer of an instrument without error that reads this ratio for a claim, where the claim can be tested.
fn answer<'a>(
    judged: &'a Judged<'a>,
    ratio: f64,
) -> Option<(&'a Judged<'a>, Outcome, Option<f64>)> {
    let test = judged.claim.test.as_ref()?;
    let interval = Interval {
        low: ratio,
        high: ratio,
    };
    let outcome = Outcome::judge(test.effect, test.minimum, Some(interval));
    Some((judged, outcome, Some(ratio)))
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: f64 = self.claims.values().sum();
        write!(f, "{all:.0} claims")?;
        for outcome in Outcome::ALL {
            let (count, name) = (self.claims_that_are(outcome), outcome.name());
            write!(f, ", {name} {count:.0}")?;
        }
        let figures: f64 = self.figures.values().sum();
        write!(f, "; {figures:.0} figures counted")?;
        for verdict in FigureVerdict::ALL {
            let (count, name) = (self.figures_that_are(verdict), verdict.name());
            write!(f, ", {name} {count:.0}")?;
        }
        write!(f, ", in size too {:.0}", self.sized_figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::compare;
    use crate::ours::Ours;

    fn scores() -> [Score; 3] {
        let (catalogue, ours) = (Catalogue::read().unwrap(), Ours::kept().unwrap());
        let figures = catalogue.select(None).unwrap();
        let entries = compare(&catalogue, &figures, &ours).unwrap();
        [
            Score::of(&entries),
            Score::of_constant(&entries),
            Score::of_random(&entries),
        ]
    }

    #[test]
    fn a_constant_instrument_makes_no_figure_agree_and_shows_no_effect() {
        let [ours, constant, _] = scores();
        assert_eq!(constant.figures_that_are(FigureVerdict::Agrees), 0.0);
        assert_eq!(constant.figures_that_are(FigureVerdict::Partly), 0.0);
        assert_eq!(constant.size.0, 0.0);
        // It fulfils the claims of no effect, which count as conditions only.
        assert!(constant.claims_that_are(Outcome::AsPublished) < 10.0);
        assert!(ours.claims_that_are(Outcome::AsPublished) > 15.0, "{ours}");
    }

    #[test]
    fn a_random_instrument_is_far_from_ours_and_contradicts_most_figures() {
        let [ours, _, random] = scores();
        let agree = |score: &Score| score.figures_that_are(FigureVerdict::Agrees);
        assert!(agree(&random) < agree(&ours), "{random} {ours}");
        let contradicts = random.figures_that_are(FigureVerdict::Contradicts);
        assert!(contradicts > agree(&random), "{random}");
        let of = |score: &Score| score.size.0 / score.size.1;
        assert!(of(&random) < 0.25, "{:?}", random.size);
    }

    #[test]
    fn every_claim_has_one_vote() {
        let catalogue = Catalogue::read().unwrap();
        let [ours, constant, random] = scores();
        let votes = |score: &Score| score.claims.values().sum::<f64>();
        assert_eq!(votes(&ours), catalogue.claims.len() as f64);
        let tested = catalogue.claims.iter().filter(|claim| claim.test.is_some());
        assert_eq!(votes(&constant), tested.count() as f64);
        assert!((votes(&random) - votes(&constant)).abs() < 1e-6);
    }
}
