// SPDX-License-Identifier: Apache-2.0
//! The claims of the papers, judged by measured numbers, and the scores of instruments that measure nothing.

use crate::catalogue::{Claim, Effect, Test};
use crate::verdict::{FigureVerdict, Outcome, Ratio, SAME_SIZE, random_ratio, share_of_effect};
use crate::{Compared, ComparedRow, Entry};
use std::collections::BTreeMap;
use std::fmt;
use vtax_core::SplitMix64;
use vtax_report::html::frame::DASH;
use vtax_results::numbers;
use vtax_results::stats::Interval;

/// The draws of the random instrument.
const DRAWS: u64 = 1000;
/// The largest logarithm of a constant that is tried, in hundredths: ratios from 0.1 to 10.
const CONSTANTS: i32 = 230;

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
    /// The verdict by the cost model of the run.
    pub sign: Outcome,
    /// The verdict that counts: as `sign` where no cost model decides, or each of the paper's years gives the same one;
    /// otherwise not shown.
    pub outcome: Outcome,
    /// Whether the trials of its numbers were kept.
    pub is_kept: bool,
    /// The ratios under cost models; empty for a ratio that no model made.
    pub models: Vec<UnderModel>,
}

/// A ratio under one cost model.
#[derive(Debug, Clone, PartialEq)]
pub struct UnderModel {
    /// The model, with what was changed in its prices.
    pub name: String,
    /// The ratio.
    pub ratio: f64,
    /// The verdict on it.
    pub outcome: Outcome,
    /// What it has to say.
    pub standing: Standing,
}

/// The part of a cost model in a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Its processor was sold when the paper was written: without its agreement the verdict does not count.
    Deciding,
    /// Such a model with its assumed prices halved or doubled.
    Varied,
    /// Its processor is of later years.
    Later,
}

/// The cost model whose prices were fitted to the cycles of two tables alone, before any power was predicted.
pub const FITTED: &str = "sandy-bridge-sleep";

impl<'a> Judged<'a> {
    /// Judges a claim by the compared series of its figure and by the cost models of the paper's years.
    pub fn from_claim(claim: &'a Claim, series: &[Compared<'_>], of_years: &[String]) -> Self {
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
                sign: Outcome::Unknown,
                outcome: Outcome::Unknown,
                is_kept: true,
                models: Vec::new(),
            };
        };
        let interval = compared.judged(row);
        let ours = compared.our_ratio(row);
        let sign = Outcome::judge(test.effect, test.minimum, interval);
        let base = compared.baseline().and_then(|base| base.models);
        let ours = ours.map(|ratio| Ratio { interval, ..ratio });
        let is_kept = |row: Option<&ComparedRow<'_>>| {
            let found = row.and_then(|row| row.ours.as_ref());
            found.is_none_or(|(_, _, origin)| !origin.archive_sha256.is_empty())
        };
        let is_kept = is_kept(Some(row)) && is_kept(compared.baseline());
        let sign = if is_kept { sign } else { Outcome::Unknown };
        let models = match (row.models, base, ours) {
            (Some(own), Some(base), Some(ours)) if is_kept => {
                under(test, ours, own, base, of_years)
            }
            _ => Vec::new(),
        };
        let mut deciding = models
            .iter()
            .filter(|one| one.standing == Standing::Deciding);
        let is_undisputed = deciding.all(|one| one.outcome == sign);
        Self {
            claim,
            published: compared.published_ratio(row),
            ours,
            sign,
            is_kept,
            outcome: if is_undisputed {
                sign
            } else {
                Outcome::NotShown
            },
            models,
        }
    }

    /// The cost models under which the verdict is that of the run's model, in words; `None` for a ratio that no model made.
    pub fn under_models(&self) -> Option<String> {
        let same = |(standing, name): (Standing, &str)| {
            let models = self.models.iter().filter(|one| one.standing == standing);
            let same: Vec<bool> = models.map(|one| one.outcome == self.sign).collect();
            let count = same.iter().filter(|same| **same).count();
            (!same.is_empty()).then(|| format!("{name}{count} of {}", same.len()))
        };
        let all = [
            (Standing::Deciding, ""),
            (Standing::Varied, "prices halved or doubled "),
            (Standing::Later, "later ones "),
        ];
        let words: Vec<String> = all.into_iter().filter_map(same).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// The ratio that the fitted model predicts.
    pub fn fitted(&self) -> Option<f64> {
        let mut models = self.models.iter();
        Some(models.find(|one| one.name == FITTED)?.ratio)
    }

    /// The measured effect as a share of the published one, where its direction is the published one and its size is
    /// printed.
    pub fn share(&self) -> Option<f64> {
        if self.sign != Outcome::SameDirection {
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

    /// What is to be said of the verdict: the lack of a measurement or of a vote, or that cost models disagree.
    pub fn reason(&self) -> Option<String> {
        if let Some(missing) = &self.claim.missing {
            return Some(missing.clone());
        }
        if let Some(setting) = &self.claim.setting {
            return Some(format!("no vote, because it follows from {setting}"));
        }
        if !self.is_kept {
            return Some("the trials of its run were not kept".to_owned());
        }
        let is_disputed = self.sign != self.outcome;
        is_disputed.then(|| {
            format!(
                "{} by the model of the run, and not by all",
                self.sign.name()
            )
        })
    }

    fn effect(&self) -> Option<Effect> {
        Some(self.claim.test.as_ref()?.effect)
    }
}

/// Judges a claim under each cost model. The interval of a model's ratio is as wide as that of the measured one.
fn under(
    test: &Test,
    measured: Ratio,
    own: &BTreeMap<String, f64>,
    base: &BTreeMap<String, f64>,
    of_years: &[String],
) -> Vec<UnderModel> {
    let Some(interval) = measured.interval else {
        return Vec::new();
    };
    let models = own.iter().filter_map(|(name, value)| {
        let ratio = value / base.get(name)?;
        let shift = ratio / measured.value;
        let interval = Interval {
            low: interval.low * shift,
            high: interval.high * shift,
        };
        let (model, is_varied) = match name.split_once(", ") {
            Some((model, _)) => (model, true),
            None => (name.as_str(), false),
        };
        let of_years = of_years.is_empty() || of_years.iter().any(|one| one == model);
        Some(UnderModel {
            name: name.clone(),
            ratio,
            outcome: Outcome::judge(test.effect, test.minimum, Some(interval)),
            standing: match (of_years, is_varied) {
                (false, _) => Standing::Later,
                (true, true) => Standing::Varied,
                (true, false) => Standing::Deciding,
            },
        })
    });
    models.collect()
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
        text += &format!(
            "| {} | {} | {} | {}{size}{} | {} | [{}]({page}#{}) |\n",
            judged.claim.text,
            judged.published_in_words(),
            judged.ours_in_words(),
            judged.outcome.name(),
            judged
                .reason()
                .map_or(String::new(), |reason| format!(": {reason}")),
            judged.under_models().unwrap_or_else(|| DASH.to_owned()),
            entry.figure.number,
            entry.anchor(),
        );
    }
    text
}

/// The answers of one instrument to all claims with a vote: counts, or means over draws.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// Claims by outcome, under all cost models of the papers' years.
    pub claims: BTreeMap<Outcome, f64>,
    /// Claims whose effect has the published direction and size, and those whose size is printed.
    pub size: (f64, f64),
    /// Counted figures by verdict, under all cost models of the papers' years.
    pub figures: BTreeMap<FigureVerdict, f64>,
    /// Counted figures with the published direction by the cost model of the run.
    pub signed_figures: f64,
    /// Figures whose verdict is the same direction and whose effects are all of the published size, where sizes are
    /// printed.
    pub sized_figures: f64,
}

/// The answer of an instrument to a claim.
struct Answer {
    sign: Outcome,
    outcome: Outcome,
    ratio: Option<f64>,
}

impl Score {
    /// The score of the measured numbers.
    pub fn from_entries(entries: &[Entry<'_>]) -> Self {
        let mut score = Self::default();
        score.add(entries, 1.0, |one| {
            Some(Answer {
                sign: one.sign,
                outcome: one.outcome,
                ratio: one.ours.map(|ours| ours.value),
            })
        });
        score
    }

    /// The score of an instrument that answers each question with `ratio`.
    pub fn of_constant(entries: &[Entry<'_>], ratio: f64) -> Self {
        let mut score = Self::default();
        score.add(entries, 1.0, |one| answer(one.claim.test.as_ref()?, ratio));
        score
    }

    /// The constant with the best score, by figures of the published size and then by those of the published sign.
    pub fn of_best_constant(entries: &[Entry<'_>]) -> (f64, Self) {
        let constants = (-CONSTANTS..=CONSTANTS).map(|step| (f64::from(step) / 100.0).exp());
        let scores = constants.map(|ratio| (ratio, Self::of_constant(entries, ratio)));
        let rank = |score: &Self| (score.sized_figures, score.signed_figures, score.size.0);
        let none = (1.0, Self::of_constant(entries, 1.0));
        scores.fold(none, |best, one| {
            if rank(&one.1) > rank(&best.1) {
                one
            } else {
                best
            }
        })
    }

    /// The score of an instrument that knows the direction of each effect and answers with this size, or with 1.
    pub fn of_directions(entries: &[Entry<'_>], size: f64) -> Self {
        let mut score = Self::default();
        score.add(entries, 1.0, |one| {
            let test = one.claim.test.as_ref()?;
            let ratio = match test.effect {
                Effect::Higher => size,
                Effect::Lower => 1.0 / size,
                Effect::None => 1.0,
            };
            answer(test, ratio)
        });
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

    /// Adds the answers on all claims with a vote.
    fn add(
        &mut self,
        entries: &[Entry<'_>],
        weight: f64,
        mut answer: impl FnMut(&Judged<'_>) -> Option<Answer>,
    ) {
        for entry in entries {
            let (mut outcomes, mut signs, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
            for judged in entry.votes() {
                let Some(answer) = answer(judged) else {
                    continue;
                };
                *self.claims.entry(answer.outcome).or_default() += weight;
                sizes.extend(judged.same_size_of(answer.outcome, answer.ratio));
                outcomes.push(answer.outcome);
                signs.push(answer.sign);
            }
            let same = sizes.iter().filter(|is_same| **is_same).count();
            self.size.0 += weight * same as f64;
            self.size.1 += weight * sizes.len() as f64;
            if outcomes.is_empty() {
                continue;
            }
            let verdict = FigureVerdict::from_claims(&outcomes);
            *self.figures.entry(verdict).or_default() += weight;
            if FigureVerdict::from_claims(&signs) == FigureVerdict::SameDirection {
                self.signed_figures += weight;
            }
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
fn answer(test: &Test, ratio: f64) -> Option<Answer> {
    let interval = Interval {
        low: ratio,
        high: ratio,
    };
    let outcome = Outcome::judge(test.effect, test.minimum, Some(interval));
    Some(Answer {
        sign: outcome,
        outcome,
        ratio: Some(ratio),
    })
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = |number| with(number, "is", "are");
        let has = |number| with(number, "has", "have");
        let figures = |verdict| self.figures_that_are(verdict);
        let judged = self.figures.values().sum::<f64>() - figures(FigureVerdict::Unknown);
        write!(
            f,
            "Of {} that we could judge, {} the published sign and size under all cost models of the papers' years, {:.0} the \
             sign under all of them, {:.0} the sign; {:.0} have a part of it, {} not shown, {}. ",
            with(judged, "figure", "figures"),
            has(self.sized_figures),
            figures(FigureVerdict::SameDirection),
            self.signed_figures,
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
        write!(
            f,
            "Of {}, {} the same direction ({:.0} the same size too), {} no effect, as published, {} not shown, {} reversed, \
             {} an effect where the paper has none.",
            with(judged, "judged claim", "judged claims"),
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

    fn with_entries<T>(then: impl FnOnce(&[Entry<'_>]) -> T) -> T {
        let (catalogue, ours) = (Catalogue::read().unwrap(), Ours::kept().unwrap());
        let figures = catalogue.select(None).unwrap();
        then(&compare(&catalogue, &figures, &ours).unwrap())
    }

    fn same(score: &Score) -> f64 {
        score.figures_that_are(FigureVerdict::SameDirection)
    }

    #[test]
    fn an_instrument_that_answers_1_shows_no_effect_in_any_figure() {
        let constant = with_entries(|entries| Score::of_constant(entries, 1.0));
        assert_eq!(same(&constant), 0.0);
        assert_eq!(constant.figures_that_are(FigureVerdict::Partly), 0.0);
        assert_eq!(constant.size.0, 0.0);
        // It fulfils the claims of no effect, which count as conditions only.
        assert_eq!(constant.claims_that_are(Outcome::SameDirection), 0.0);
        assert!(constant.claims_that_are(Outcome::NoEffect) >= 1.0);
    }

    #[test]
    fn the_best_constant_is_no_worse_than_any_and_knowing_directions_is_no_size() {
        with_entries(|entries| {
            let (ratio, best) = Score::of_best_constant(entries);
            for other in [1.0, 1.48, 1.5, 2.0, 2.43, 0.67] {
                let other = Score::of_constant(entries, other);
                assert!(other.sized_figures <= best.sized_figures, "{ratio}");
            }
            let directions = Score::of_directions(entries, 1.5);
            let all = directions.figures.values().sum::<f64>();
            assert!(same(&directions) > 0.8 * all, "{directions}");
            assert!(directions.sized_figures < 0.7 * all, "{directions}");
        });
    }

    #[test]
    fn a_random_instrument_contradicts_most_figures() {
        let random = with_entries(Score::of_random);
        let contradicts = random.figures_that_are(FigureVerdict::Contradicts);
        assert!(contradicts > same(&random), "{random}");
        assert!(random.size.0 / random.size.1 < 0.25, "{:?}", random.size);
    }

    #[test]
    fn every_claim_but_those_that_follow_from_a_setting_has_one_vote() {
        let catalogue = Catalogue::read().unwrap();
        let voting = || {
            catalogue
                .claims
                .iter()
                .filter(|claim| claim.setting.is_none())
        };
        assert!(voting().count() < catalogue.claims.len());
        let votes = |score: &Score| score.claims.values().sum::<f64>();
        with_entries(|entries| {
            assert_eq!(
                votes(&Score::from_entries(entries)),
                voting().count() as f64
            );
            let tested = voting().filter(|claim| claim.test.is_some()).count() as f64;
            assert_eq!(votes(&Score::of_constant(entries, 1.0)), tested);
            assert!((votes(&Score::of_random(entries)) - tested).abs() < 1e-6);
        });
    }

    #[test]
    fn a_claim_that_a_cost_model_decides_counts_only_where_those_of_the_papers_years_agree() {
        let test = Test {
            series: String::new(),
            row: String::new(),
            effect: Effect::Higher,
            minimum: 1.1,
        };
        let ratio = Ratio {
            value: 1.5,
            interval: Some(Interval {
                low: 1.4,
                high: 1.6,
            }),
        };
        let values = |old: f64, new: f64| {
            [
                ("new", new),
                ("old", old),
                ("old, assumed prices halved", new),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into()
        };
        let found = under(
            &test,
            ratio,
            &values(1.5, 1.01),
            &values(1.0, 1.0),
            &["old".to_owned()],
        );
        let outcomes: Vec<_> = found
            .iter()
            .map(|one| (one.outcome, one.standing))
            .collect();
        assert_eq!(
            outcomes,
            [
                (Outcome::NotShown, Standing::Later),
                (Outcome::SameDirection, Standing::Deciding),
                (Outcome::NotShown, Standing::Varied)
            ]
        );
        let all = under(&test, ratio, &values(1.5, 1.01), &values(1.0, 1.0), &[]);
        assert!(all.iter().all(|one| one.standing != Standing::Later));
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
            "Of 1 figure that we could judge, 0 have the published sign and size under all cost models of the papers' years, 0 the \
             sign under all of them, 0 the sign; 0 have a part of it, 0 are not shown, 1 contradicts. Of 3 judged claims, 0 have the \
             same direction (0 the same size too), 0 show no effect, as published, 0 are not shown, 1 is reversed, 2 have an effect \
             where the paper has none."
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
