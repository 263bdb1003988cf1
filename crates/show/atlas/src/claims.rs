// SPDX-License-Identifier: Apache-2.0
//! The claims of the papers, judged by measured numbers, and the scores of instruments that measure nothing.

use crate::catalogue::{Claim, Effect, Test};
use crate::verdict::{FigureVerdict, Outcome, Ratio, SAME_SIZE, random_ratio, share_of_effect};
use crate::{Compared, Entry};
use std::collections::BTreeMap;
use std::fmt;
use vtax_core::SplitMix64;
use vtax_report::html::frame::DASH;
use vtax_results::numbers;
use vtax_results::stats::Interval;

/// The draws of the random instrument.
const DRAWS: u64 = 1000;

/// A claim with the numbers that judge it.
#[derive(Debug, Clone)]
pub struct Judged<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// The published ratio to the baseline, where it is printed.
    pub published: Option<Ratio>,
    /// The measured ratio to the baseline, with the interval by which it was judged
    /// ([`crate::verdict::judged_interval`]).
    pub ours: Option<Ratio>,
    /// The verdict.
    pub outcome: Outcome,
    /// Of a modelled ratio: the cost models under which the verdict is the same, and all.
    pub models: Option<(usize, usize)>,
}

impl<'a> Judged<'a> {
    /// Judges a claim by the compared series of its figure.
    pub fn from_claim(claim: &'a Claim, series: &[Compared<'_>]) -> Self {
        let found = claim.test.as_ref().and_then(|test| {
            let mut series = series.iter();
            let compared = series.find(|one| one.series.what == test.series)?;
            Some((test, compared, compared.row(&test.row)?))
        });
        let Some((test, compared, row)) = found else {
            return Self {
                claim,
                published: None,
                ours: None,
                outcome: Outcome::Unknown,
                models: None,
            };
        };
        let interval = compared.judged(row);
        let ours = compared.our_ratio(row);
        let outcome = Outcome::judge(test.effect, test.minimum, interval);
        let base = compared.baseline().and_then(|base| base.models);
        let ours = ours.map(|ratio| Ratio { interval, ..ratio });
        Self {
            claim,
            published: compared.published_ratio(row),
            ours,
            outcome,
            models: (row.models.zip(base))
                .and_then(|(own, base)| under(test, ours?, outcome, own, base)),
        }
    }

    /// The cost models under which the verdict holds, in words; `None` for a ratio that no model made.
    pub fn under_models(&self) -> Option<String> {
        let (same, all) = self.models?;
        Some(if same == all {
            format!("all {all}")
        } else {
            format!("{same} of {all}: depends on the model")
        })
    }

    /// The measured effect as a share of the published one, where its direction is the published one and its size is
    /// printed.
    pub fn share(&self) -> Option<f64> {
        if self.outcome != Outcome::SameDirection {
            return None;
        }
        share_of_effect(self.ours?.value, self.published?.value)
    }

    /// Whether the effect is as published, its size included; `None` for one whose size is not printed, and for a claim
    /// of no effect.
    pub fn same_size(&self) -> Option<bool> {
        self.same_size_of(self.outcome, self.ours.map(|ours| ours.value))
    }

    /// [`Self::same_size`] for an instrument with another answer.
    fn same_size_of(&self, outcome: Outcome, ratio: Option<f64>) -> Option<bool> {
        let published = self.published?;
        if self.effect()? == Effect::None {
            return None;
        }
        let share = ratio.and_then(|ratio| share_of_effect(ratio, published.value));
        let is_same = share.is_some_and(|share| SAME_SIZE.contains(&share));
        Some(is_same && outcome == Outcome::SameDirection)
    }

    /// The published ratio, or the direction where no number is printed.
    pub fn published_in_words(&self) -> String {
        match (self.published, self.effect()) {
            (Some(published), _) => numbers::ratio(published.value, None).line(),
            (None, Some(effect)) => effect.name().to_owned(),
            (None, None) => DASH.to_owned(),
        }
    }

    /// The measured ratio with the interval of the verdict.
    pub fn ours_in_words(&self) -> String {
        let ours = self
            .ours
            .map(|ours| numbers::ratio(ours.value, ours.interval).line());
        ours.unwrap_or_else(|| DASH.to_owned())
    }

    fn effect(&self) -> Option<Effect> {
        Some(self.claim.test.as_ref()?.effect)
    }
}

/// Counts the cost models under which the verdict is the same, and all. The interval of a model's ratio is as wide as that
/// of the measured one.
fn under(
    test: &Test,
    measured: Ratio,
    outcome: Outcome,
    own: &BTreeMap<String, f64>,
    base: &BTreeMap<String, f64>,
) -> Option<(usize, usize)> {
    let interval = measured.interval?;
    let ratios = own.iter();
    let ratios = ratios.filter_map(|(model, value)| Some(value / base.get(model)?));
    let same = ratios.map(|ratio| {
        let shift = ratio / measured.value;
        let interval = Interval {
            low: interval.low * shift,
            high: interval.high * shift,
        };
        Outcome::judge(test.effect, test.minimum, Some(interval)) == outcome
    });
    let same: Vec<bool> = same.collect();
    let count = same.iter().filter(|same| **same).count();
    (!same.is_empty()).then_some((count, same.len()))
}

/// The claims of a paper as a Markdown table, with links to the figures of `page`.
pub fn markdown(entries: &[Entry<'_>], paper: &str, page: &str) -> String {
    let mut text =
        "| claim | published | ours | verdict | cost models | figure |\n|---|---:|---:|---|---|---|\n".to_owned();
    let own = entries.iter().filter(|entry| entry.figure.paper == paper);
    for (entry, judged) in own.flat_map(|entry| entry.claims.iter().map(move |one| (entry, one))) {
        let size = if judged.same_size() == Some(true) {
            ", same size"
        } else {
            ""
        };
        let reason = judged.claim.missing.as_ref();
        text += &format!(
            "| {} | {} | {} | {}{size}{} | {} | [{}]({page}#{}) |\n",
            judged.claim.text,
            judged.published_in_words(),
            judged.ours_in_words(),
            judged.outcome.name(),
            reason.map_or(String::new(), |reason| format!(": {reason}")),
            judged.under_models().unwrap_or_else(|| DASH.to_owned()),
            entry.figure.number,
            entry.anchor(),
        );
    }
    text
}

/// The verdicts of one instrument on all claims: counts, or means over draws.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// Claims by outcome.
    pub claims: BTreeMap<Outcome, f64>,
    /// Claims whose effect has the published direction and size, and those whose size is printed.
    pub size: (f64, f64),
    /// Counted figures by verdict.
    pub figures: BTreeMap<FigureVerdict, f64>,
    /// Figures whose verdict is the same direction and whose effects are all of the published size, where sizes are
    /// printed.
    pub sized_figures: f64,
}

impl Score {
    /// The score of the measured numbers.
    pub fn from_entries(entries: &[Entry<'_>]) -> Self {
        let mut score = Self::default();
        score.add(entries, 1.0, |one| {
            Some((one.outcome, one.ours.map(|ours| ours.value)))
        });
        score
    }

    /// The score of an instrument that answers each question with 1.
    pub fn of_constant(entries: &[Entry<'_>]) -> Self {
        let mut score = Self::default();
        score.add(entries, 1.0, |one| answer(one.claim.test.as_ref()?, 1.0));
        score
    }

    /// The mean score of an instrument that answers at random: the logarithms of its ratios have a normal distribution
    /// with the root mean square of the published ones.
    pub fn of_random(entries: &[Entry<'_>]) -> Self {
        let claims = entries.iter().flat_map(|entry| &entry.claims);
        let effects = claims.filter_map(|one| Some(one.published?.value.ln()));
        let squares: Vec<f64> = effects.map(|effect| effect * effect).collect();
        let deviation = (squares.iter().sum::<f64>() / squares.len().max(1) as f64).sqrt();
        let mut random = SplitMix64::new(1);
        let mut score = Self::default();
        for _ in 0..DRAWS {
            score.add(entries, 1.0 / DRAWS as f64, |one| {
                let test = one.claim.test.as_ref()?;
                answer(test, random_ratio(&mut random, deviation))
            });
        }
        score
    }

    /// Adds the answers on all claims: for each the outcome and the ratio, or none.
    fn add(
        &mut self,
        entries: &[Entry<'_>],
        weight: f64,
        mut answer: impl FnMut(&Judged<'_>) -> Option<(Outcome, Option<f64>)>,
    ) {
        for entry in entries {
            let (mut outcomes, mut sizes) = (Vec::new(), Vec::new());
            for judged in &entry.claims {
                let Some((outcome, ratio)) = answer(judged) else {
                    continue;
                };
                *self.claims.entry(outcome).or_default() += weight;
                outcomes.push(outcome);
                sizes.extend(judged.same_size_of(outcome, ratio));
            }
            let same = sizes.iter().filter(|is_same| **is_same).count();
            self.size.0 += weight * same as f64;
            self.size.1 += weight * sizes.len() as f64;
            if outcomes.is_empty() {
                continue;
            }
            let verdict = FigureVerdict::from_claims(&outcomes);
            *self.figures.entry(verdict).or_default() += weight;
            if figure_has_same_size(Some(verdict), &sizes) {
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

/// Whether all effects of a figure have the published size, by those of its claims whose size is printed.
pub(crate) fn figure_has_same_size(verdict: Option<FigureVerdict>, sizes: &[bool]) -> bool {
    verdict == Some(FigureVerdict::SameDirection)
        && !sizes.is_empty()
        && sizes.iter().all(|same| *same)
}

/// The answer of an instrument without error that reads this ratio.
fn answer(test: &Test, ratio: f64) -> Option<(Outcome, Option<f64>)> {
    let interval = Interval {
        low: ratio,
        high: ratio,
    };
    let outcome = Outcome::judge(test.effect, test.minimum, Some(interval));
    Some((outcome, Some(ratio)))
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = |number| with(number, "is", "are");
        let has = |number| with(number, "has", "have");
        let figures = |verdict| self.figures_that_are(verdict);
        let judged = self.figures.values().sum::<f64>() - figures(FigureVerdict::Unknown);
        let noun = with(judged, "figure", "figures");
        write!(
            f,
            "Of {noun} that we could judge, {} the same direction ({:.0} the same size too), {:.0} in part, {} undecided (not \
             shown), {}. ",
            has(figures(FigureVerdict::SameDirection)),
            self.sized_figures,
            figures(FigureVerdict::Partly),
            is(figures(FigureVerdict::NotShown)),
            with(
                figures(FigureVerdict::Contradicts),
                "contradicts",
                "contradict"
            ),
        )?;
        let claims = |outcome| self.claims_that_are(outcome);
        let judged = self.claims.values().sum::<f64>() - claims(Outcome::Unknown);
        let noun = with(judged, "judged claim", "judged claims");
        write!(
            f,
            "Of {noun}, {} the same direction ({:.0} the same size too), {} no effect, as published, {} undecided, {} reversed, \
             {} an effect where the paper has none.",
            has(claims(Outcome::SameDirection)),
            self.size.0,
            with(claims(Outcome::NoEffect), "shows", "show"),
            is(claims(Outcome::NotShown)),
            is(claims(Outcome::Reversed)),
            has(claims(Outcome::Unpublished)),
        )
    }
}

/// A rounded number with the word for one and for several.
fn with(number: f64, one: &str, several: &str) -> String {
    let number = number.round();
    let word = if number == 1.0 { one } else { several };
    format!("{number:.0} {word}")
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
            Score::from_entries(&entries),
            Score::of_constant(&entries),
            Score::of_random(&entries),
        ]
    }

    #[test]
    fn a_constant_instrument_shows_no_effect_in_any_figure() {
        let [ours, constant, _] = scores();
        assert_eq!(constant.figures_that_are(FigureVerdict::SameDirection), 0.0);
        assert_eq!(constant.figures_that_are(FigureVerdict::Partly), 0.0);
        assert_eq!(constant.size.0, 0.0);
        // It fulfils the claims of no effect, which count as conditions only.
        assert_eq!(constant.claims_that_are(Outcome::SameDirection), 0.0);
        assert!((1.0..10.0).contains(&constant.claims_that_are(Outcome::NoEffect)));
        assert!(
            ours.claims_that_are(Outcome::SameDirection) > 15.0,
            "{ours}"
        );
    }

    #[test]
    fn a_random_instrument_is_far_from_ours_and_contradicts_most_figures() {
        let [ours, _, random] = scores();
        let same = |score: &Score| score.figures_that_are(FigureVerdict::SameDirection);
        assert!(same(&random) < same(&ours), "{random} {ours}");
        let contradicts = random.figures_that_are(FigureVerdict::Contradicts);
        assert!(contradicts > same(&random), "{random}");
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

    #[test]
    fn a_score_in_words_is_two_sentences_whose_numbers_add_up() {
        let [ours, ..] = scores();
        let words = ours.to_string();
        let sentences: Vec<&str> = words.split_inclusive(". ").collect();
        let [figures, claims] = sentences.as_slice() else {
            panic!("{words}")
        };
        for sentence in [figures, claims] {
            let numbers = sentence.split(|c: char| !c.is_ascii_digit());
            let numbers: Vec<u32> = numbers.filter_map(|number| number.parse().ok()).collect();
            // The first number is the sum of the others but the third, which is a part of the second.
            let [all, same, size, others @ ..] = numbers.as_slice() else {
                panic!("{sentence}")
            };
            assert_eq!(*all, same + others.iter().sum::<u32>(), "{sentence}");
            assert!(size <= same && *size > 0, "{sentence}");
        }
        assert!(!words.contains("agree"), "{words}");
    }

    #[test]
    fn a_score_in_words_has_the_grammar_of_its_numbers() {
        let one = Score {
            figures: [
                (FigureVerdict::Contradicts, 1.0),
                (FigureVerdict::Unknown, 2.0),
            ]
            .into(),
            claims: [(Outcome::Reversed, 1.0), (Outcome::Unpublished, 2.0)].into(),
            ..Score::default()
        };
        assert_eq!(
            one.to_string(),
            "Of 1 figure that we could judge, 0 have the same direction (0 the same size too), 0 in part, 0 are undecided (not \
             shown), 1 contradicts. Of 3 judged claims, 0 have the same direction (0 the same size too), 0 show no effect, as \
             published, 0 are undecided, 1 is reversed, 2 have an effect where the paper has none."
        );
    }

    #[test]
    fn a_claim_has_the_same_size_only_where_its_direction_is_the_same() {
        let (catalogue, ours) = (Catalogue::read().unwrap(), Ours::kept().unwrap());
        let figures = catalogue.select(Some("shea/table-2")).unwrap();
        let entries = compare(&catalogue, &figures, &ours).unwrap();
        let judged = &entries[0].claims[0];
        assert!(judged.published.is_some());
        let published = judged.published.map(|one| one.value);
        let of = |outcome, ratio| judged.same_size_of(outcome, ratio);
        assert_eq!(of(Outcome::SameDirection, published), Some(true));
        assert_eq!(of(Outcome::SameDirection, Some(1.01)), Some(false));
        assert_eq!(of(Outcome::NotShown, published), Some(false));
        assert_eq!(of(Outcome::Unknown, None), Some(false));
        let unprinted = Judged {
            published: None,
            ..judged.clone()
        };
        assert_eq!(unprinted.same_size(), None);
    }
}
