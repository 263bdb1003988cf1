// SPDX-License-Identifier: Apache-2.0
//! The catalogue: every figure of the papers, and the measured numbers that are compared with each.

use crate::AtlasError;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

const ATLAS: &str = include_str!("../../../../papers/atlas.toml");
const FIGURES: &str = include_str!("../../../../papers/figures.toml");

/// Every figure in the order of the papers, and the printed numbers.
#[derive(Debug, Clone, Deserialize)]
pub struct Catalogue {
    /// The papers.
    #[serde(rename = "paper")]
    pub papers: Vec<Paper>,
    /// The plans that measure the figures, by name.
    #[serde(rename = "plan")]
    pub plans: BTreeMap<String, Plan>,
    /// The figures and tables.
    #[serde(rename = "figure")]
    pub figures: Vec<Figure>,
    /// The claims of the papers, each with one vote.
    #[serde(rename = "claim", default)]
    pub claims: Vec<Claim>,
    /// The printed numbers, from `papers/figures.toml`.
    #[serde(skip)]
    printed: Table,
}

/// One paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Its short name, such as `shea`.
    pub key: String,
    /// Authors and year.
    pub authors: String,
    /// Title and venue.
    pub title: String,
    /// The cost models of processors that were sold when the paper was written; empty: all. A claim that a model decides
    /// counts where they agree.
    #[serde(default)]
    pub models: Vec<String>,
}

/// A plan that measures figures.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Its file below the directory of plans.
    pub file: String,
    /// The command of vtax that runs it: `run`, `accuracy run`, `density`.
    #[serde(default = "run")]
    pub command: String,
    /// The place of its run.
    pub at: String,
    /// The file with the testbed's settings, below the directory of plans, where the place is a testbed.
    #[serde(default)]
    pub testbed: Option<String>,
    /// The reason why it has no quick profile.
    #[serde(default)]
    pub full_only: String,
}

fn run() -> String {
    "run".to_owned()
}

impl Plan {
    /// The arguments of vtax that run the plan. `plans` is the directory of plans, `results` that of the results.
    pub fn arguments(
        &self,
        plans: &str,
        results: &str,
        quick: bool,
        at: Option<&str>,
    ) -> Vec<String> {
        let mut words: Vec<String> = self.command.split(' ').map(str::to_owned).collect();
        words.push(format!("{plans}/{}", self.file));
        words.push(format!("--results={results}"));
        // Climbs run where the atlas says: a host that holds other guests is another host.
        let at = match at {
            Some(at) if self.command != "density" => at,
            _ => &self.at,
        };
        if at != "local" {
            words.push(format!("--place={at}"));
            if at.starts_with("testbed:")
                && let Some(file) = &self.testbed
            {
                words.push(format!("--testbed={plans}/{file}"));
            }
        }
        if quick {
            words.push("--quick".to_owned());
        }
        words
    }
}

/// One figure or table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The paper's key.
    pub paper: String,
    /// Its name within the paper, such as `fig-1`.
    pub id: String,
    /// Its number in the paper, such as `Figure 1`.
    pub number: String,
    /// Its subject, in one sentence.
    pub title: String,
    /// The entries of `papers/figures.toml` with its results.
    pub entries: Vec<String>,
    /// The entries that describe the setup or the state of a number. They are not measured.
    #[serde(default)]
    pub setup: Vec<String>,
    /// The reason why the figure has no vote: its ratio is so by construction, or repeats that of another figure.
    #[serde(default)]
    pub uncounted: String,
    /// The compared series.
    #[serde(default)]
    pub series: Vec<Series>,
    /// The differences between the paper's setup and that of vtax, with their reasons.
    #[serde(default)]
    pub differs: String,
    /// The reason why nothing, or only a part, is measured, and the means to measure it.
    #[serde(default)]
    pub missing: String,
}

impl Figure {
    /// The name of the figure in the catalogue, such as `shea/fig-1`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.paper, self.id)
    }
}

/// The published effect of a claim, on the ratio of a system to the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// The ratio is above 1.
    Higher,
    /// The ratio is below 1.
    Lower,
    /// The ratio is 1, within the claim's minimum effect.
    None,
}

impl Effect {
    /// The effect in words, for a chart without printed numbers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Higher => "higher",
            Self::Lower => "lower",
            Self::None => "the same",
        }
    }
}

/// A claim of a paper. Claims are fixed before the runs that judge them.
#[derive(Debug, Clone, Deserialize)]
pub struct Claim {
    /// The figure, such as `shea/fig-2`.
    pub figure: String,
    /// The claim, in one sentence.
    pub text: String,
    /// The cause of the effect in the paper.
    pub mechanism: String,
    /// The reason why nothing measures it.
    pub missing: Option<String>,
    /// The setting of ours from which the ratio follows. Such a claim is judged, and has no vote.
    pub setting: Option<String>,
    /// Its test. `None` where [`Claim::missing`] has the reason.
    #[serde(flatten)]
    pub test: Option<Test>,
}

/// The test of a claim: the ratio of a row of a series to the series' baseline.
#[derive(Debug, Clone, Deserialize)]
pub struct Test {
    /// The series, by its quantity.
    pub series: String,
    /// The row, by its system.
    pub row: String,
    /// The published effect on the ratio.
    pub effect: Effect,
    /// The smallest ratio in either direction that is an effect; above 1.
    pub minimum: f64,
}

/// Systems or levels that are compared in one quantity.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// The quantity, such as `power of the processor`.
    pub what: String,
    /// The published unit.
    #[serde(default)]
    pub unit: String,
    /// The row that is the denominator of the ratios.
    pub baseline: String,
    /// The plan that measures it.
    pub plan: String,
    /// The place of the run for this series, if it differs from the plan's.
    pub at: Option<String>,
    /// The measured metric, or several whose values are added: `cpu.stage.backend + cpu.stage.softirq`. For a rising
    /// load, `… @ knee` is the value at the highest level that kept the objective, for each trial separately, and `… @
    /// lowest` the value at the lowest level.
    pub metric: Option<String>,
    /// The systems or levels.
    pub rows: Vec<Row>,
}

impl Series {
    fn plan_of<'a>(&'a self, row: &'a Row) -> &'a str {
        row.plan.as_deref().unwrap_or(&self.plan)
    }

    /// The names of the plans that measure it.
    fn plans(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|row| self.plan_of(row))
    }

    /// The plan, treatment and metric of a row; `None` for a row that is not measured.
    pub fn key(&self, row: &Row) -> Option<Key> {
        Some(Key {
            plan: self.plan_of(row).to_owned(),
            treatment: row.ours.clone()?,
            metric: row.metric.clone().or_else(|| self.metric.clone())?,
        })
    }
}

/// One system or level of a series.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name in the paper.
    pub system: String,
    /// The path of its printed number, or the expression that computes it ([`Catalogue::published`]).
    pub published: Option<String>,
    /// Its position in the order that a chart without numbers shows, from the smallest.
    pub rank: Option<u32>,
    /// The label of the treatment that measures it.
    pub ours: Option<String>,
    /// The plan, if it differs from the series'.
    pub plan: Option<String>,
    /// The metric, if it differs from the series'.
    pub metric: Option<String>,
    /// The factor by which the measured number is multiplied, such as 70 replies of 1 KB beside one of 70 KB.
    pub times: Option<f64>,
}

/// The key of a measured number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The plan's name.
    pub plan: String,
    /// The treatment's label.
    pub treatment: String,
    /// The metric, or a sum of several, and the load level ([`Series::metric`]).
    pub metric: String,
}

/// A number that is printed, or that is computed from printed ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Published {
    /// The number, or the middle of a range.
    pub value: f64,
    /// The printed range.
    pub range: Option<(f64, f64)>,
    /// Whether the paper says "about".
    pub approximate: bool,
    /// Whether it is computed from printed numbers.
    pub derived: bool,
}

impl Catalogue {
    /// Reads the catalogue of this program.
    ///
    /// # Errors
    /// When it was damaged before this program was built, which tests rule out.
    pub fn read() -> Result<Self, AtlasError> {
        Self::from_atlas(ATLAS, FIGURES)
    }

    /// Parses a catalogue.
    ///
    /// # Errors
    /// When one of the texts is invalid.
    pub fn from_atlas(atlas: &str, figures: &str) -> Result<Self, AtlasError> {
        let wrong = |file: &'static str| {
            move |cause: toml::de::Error| AtlasError::Catalogue(format!("{file}: {cause}"))
        };
        let mut catalogue: Self = toml::from_str(atlas).map_err(wrong("atlas.toml"))?;
        catalogue.printed = toml::from_str(figures).map_err(wrong("figures.toml"))?;
        for claim in &catalogue.claims {
            let refused = |what| {
                AtlasError::Catalogue(format!("atlas.toml: claim \"{}\" {what}", claim.text))
            };
            catalogue.testable(claim).map_err(refused)?;
        }
        Ok(catalogue)
    }

    /// # Errors
    /// What is wrong with the claim, when its figure, series or row does not exist, or it has neither a test nor a reason.
    fn testable(&self, claim: &Claim) -> Result<(), &'static str> {
        let mut figures = self.figures.iter();
        let figure = figures.find(|figure| figure.name() == claim.figure);
        let figure = figure.ok_or("is of no figure that there is")?;
        let test = match (&claim.test, &claim.missing) {
            (Some(test), None) => test,
            (None, Some(_)) => return Ok(()),
            (Some(_), Some(_)) => return Err("has a test and a reason why there is none"),
            (None, None) => {
                return Err("needs series, row, effect and minimum, or the reason as missing");
            }
        };
        let mut series = figure.series.iter();
        let series = series.find(|series| series.what == test.series);
        let series = series.ok_or("is of no series of its figure")?;
        let has_row = series.rows.iter().any(|row| row.system == test.row);
        has_row.then_some(()).ok_or("is of no row of its series")
    }

    /// The cost models that decide on the claims of a figure ([`Paper::models`]).
    pub fn models_of(&self, figure: &Figure) -> &[String] {
        let mut papers = self.papers.iter();
        let paper = papers.find(|paper| paper.key == figure.paper);
        paper.map_or(&[], |paper| &paper.models)
    }

    /// The figures that `wanted` names: all, those of a paper, or `PAPER/FIGURE`.
    ///
    /// # Errors
    /// When no figure has the name; the error lists the valid names.
    pub fn select(&self, wanted: Option<&str>) -> Result<Vec<&Figure>, AtlasError> {
        let Some(wanted) = wanted else {
            return Ok(self.figures.iter().collect());
        };
        let (paper, id) = match wanted.split_once('/') {
            Some((paper, id)) => (paper, Some(id)),
            None => (wanted, None),
        };
        let of_paper = || self.figures.iter().filter(|figure| figure.paper == paper);
        let is_wanted = |figure: &&Figure| id.is_none_or(|id| figure.id == id);
        let found: Vec<&Figure> = of_paper().filter(is_wanted).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let ids: Vec<&str> = of_paper().map(|figure| figure.id.as_str()).collect();
        let papers: Vec<&str> = self.papers.iter().map(|paper| paper.key.as_str()).collect();
        Err(AtlasError::Unknown(match id {
            Some(id) if !ids.is_empty() => {
                format!("{paper} has no figure `{id}`; it has {}", ids.join(", "))
            }
            _ => format!(
                "there is no paper `{paper}`; there are {}",
                papers.join(", ")
            ),
        }))
    }

    /// The plans of these figures with their names, each once; of all series, or only of those that judge a claim.
    pub fn plans_of(&self, figures: &[&Figure], only_judging: bool) -> Vec<(&str, &Plan)> {
        let judging = |figure: &Figure, series: &Series| {
            let mut claims = self.claims.iter();
            claims.any(|claim| {
                let test = claim.test.as_ref();
                claim.figure == figure.name() && test.is_some_and(|test| test.series == series.what)
            })
        };
        let mut used = BTreeSet::new();
        for figure in figures {
            let series = figure.series.iter();
            let series = series.filter(|series| !only_judging || judging(figure, series));
            used.extend(series.flat_map(Series::plans));
        }
        let plans = self.plans.iter();
        plans
            .filter(|(name, _)| used.contains(name.as_str()))
            .map(|(name, plan)| (name.as_str(), plan))
            .collect()
    }

    /// Evaluates a published number: numbers and paths into `papers/figures.toml`, with `+`, `-`, `*` and `/` between
    /// two, evaluated from left to right. An array of two numbers is a range.
    ///
    /// # Errors
    /// When a path does not exist, or the expression is malformed.
    pub fn published(&self, expression: &str) -> Result<Published, AtlasError> {
        let wrong =
            |what: &str| AtlasError::Catalogue(format!("`{expression}`: {what} in figures.toml"));
        let mut words = expression.split_whitespace();
        let first = words.next().ok_or_else(|| wrong("nothing"))?;
        let mut found = self.operand(first).ok_or_else(|| wrong(first))?;
        while let Some(operator) = words.next() {
            let word = words.next().ok_or_else(|| wrong(operator))?;
            let other = self.operand(word).ok_or_else(|| wrong(word))?;
            let value = match operator {
                "+" => found.value + other.value,
                "-" => found.value - other.value,
                "*" => found.value * other.value,
                "/" => found.value / other.value,
                _ => return Err(wrong(operator)),
            };
            found = Published {
                value,
                range: None,
                approximate: found.approximate || other.approximate,
                derived: true,
            };
        }
        Ok(found)
    }

    fn operand(&self, word: &str) -> Option<Published> {
        let exact = |value| Published {
            value,
            range: None,
            approximate: false,
            derived: false,
        };
        if let Ok(number) = word.parse() {
            return Some(Published {
                derived: true,
                ..exact(number)
            });
        }
        let (mut at, mut approximate) = (self.printed.get(word.split('.').next()?)?, false);
        for key in word.split('.').skip(1) {
            approximate = at.get("approximate").and_then(Value::as_bool) == Some(true);
            at = match at {
                Value::Array(items) => items.get(key.parse::<usize>().ok()?)?,
                other => other.get(key)?,
            };
        }
        let number = |value: &Value| {
            let whole = value.as_integer().map(|number| number as f64);
            whole.or_else(|| value.as_float())
        };
        match at {
            Value::Array(ends) => match ends.as_slice() {
                [low, high] => {
                    let (low, high) = (number(low)?, number(high)?);
                    Some(Published {
                        range: Some((low, high)),
                        approximate,
                        ..exact(f64::midpoint(low, high))
                    })
                }
                _ => None,
            },
            value => Some(Published {
                approximate,
                ..exact(number(value)?)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ours::Ours;
    use std::collections::BTreeSet;

    /// The path of every number and every chart.
    fn leaves(at: &Value, path: &str, found: &mut Vec<(String, bool)>) {
        let is_chart = path.split('.').any(|key| key == "chart_only");
        match at {
            Value::Table(table) => {
                for (key, value) in table {
                    leaves(value, &format!("{path}.{key}"), found);
                }
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    leaves(value, &format!("{path}.{index}"), found);
                }
            }
            _ => found.push((path.trim_start_matches('.').to_owned(), is_chart)),
        }
    }

    #[test]
    fn every_entry_of_the_papers_is_in_the_atlas() {
        let catalogue = Catalogue::read().unwrap();
        let mut all = Vec::new();
        leaves(&Value::Table(catalogue.printed.clone()), "", &mut all);
        assert!(all.len() > 300, "{}", all.len());
        let figures = || catalogue.figures.iter();
        let entries = || figures().flat_map(|figure| figure.entries.iter().chain(&figure.setup));
        let covers = |entry: &str, leaf: &str| {
            let rest = leaf.strip_prefix(entry);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        for (leaf, is_chart) in &all {
            // Each chart needs an entry of its own; an entry of its array does not cover it.
            let found = match is_chart {
                true => entries().any(|entry| entry == leaf),
                false => entries().any(|entry| covers(entry, leaf)),
            };
            assert!(found, "{leaf} is in no figure of papers/atlas.toml");
        }
        for entry in entries() {
            assert!(
                all.iter().any(|(leaf, _)| covers(entry, leaf)),
                "{entry} is not in papers/figures.toml"
            );
        }
    }

    #[test]
    fn most_entries_have_numbers_of_ours() {
        let (catalogue, kept) = (Catalogue::read().unwrap(), Ours::kept().unwrap());
        let is_chart = |entry: &str| entry.contains("chart_only");
        let has_ours = |figure: &Figure, entry: &str| {
            let mut rows = figure.series.iter().flat_map(|series| {
                let rows = series.rows.iter();
                rows.map(move |row| (row, series.key(row)))
            });
            rows.any(|(row, key)| {
                let words = row.published.iter().flat_map(|text| text.split(' '));
                let mut of_entry = words.filter_map(|word| word.strip_prefix(entry));
                // A chart whose points are not printed counts for the whole figure.
                let stands = is_chart(entry)
                    || of_entry.any(|rest| rest.is_empty() || rest.starts_with('.'));
                stands && key.is_some_and(|key| kept.numbers.contains_key(&key))
            })
        };
        let all: BTreeSet<&str> = (catalogue.figures.iter())
            .flat_map(|figure| figure.entries.iter().map(String::as_str))
            .collect();
        let without: Vec<&str> = (all.iter().copied())
            .filter(|entry| {
                let figures = catalogue.figures.iter();
                let mut of_entry =
                    figures.filter(|figure| figure.entries.iter().any(|one| one == entry));
                !of_entry.any(|figure| has_ours(figure, entry))
            })
            .collect();
        assert!(
            all.len() > 50 && without.len() * 6 <= all.len(),
            "{} of {} entries are without ours: {without:?}",
            without.len(),
            all.len()
        );
    }

    #[test]
    fn the_catalogue_holds_together() {
        let catalogue = Catalogue::read().unwrap();
        let mut names: Vec<String> = catalogue.figures.iter().map(Figure::name).collect();
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "a name twice");
        for figure in &catalogue.figures {
            let name = figure.name();
            assert!(
                catalogue
                    .papers
                    .iter()
                    .any(|paper| paper.key == figure.paper),
                "{name}"
            );
            let measured = figure.series.iter().flat_map(|series| {
                let rows = series.rows.iter();
                rows.map(move |row| series.key(row).is_some())
            });
            let measured: Vec<bool> = measured.collect();
            assert!(
                measured.iter().all(|is| *is) && !measured.is_empty() || !figure.missing.is_empty(),
                "{name} lacks numbers of ours and does not say why"
            );
            assert!(
                !measured.contains(&true) || !figure.differs.is_empty(),
                "{name} does not say what differs"
            );
            for plan in figure.series.iter().flat_map(Series::plans) {
                let plan = catalogue.plans.get(plan);
                let plan = plan.unwrap_or_else(|| panic!("{name}: a plan that is not listed"));
                let plans = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../plans");
                let path = std::path::Path::new(plans).join(&plan.file);
                assert!(path.is_file(), "{name}: {}", path.display());
            }
            for series in &figure.series {
                let mut rows = series.rows.iter();
                assert!(
                    rows.any(|row| row.system == series.baseline),
                    "{name}: {} has no row {}",
                    series.what,
                    series.baseline
                );
                for row in &series.rows {
                    let Some(expression) = &row.published else {
                        continue;
                    };
                    let published = catalogue.published(expression).unwrap();
                    assert!(published.value.is_finite(), "{name}: {expression}");
                    // The number is from an entry that the figure covers; the divisors may be from others.
                    let path = expression
                        .split(' ')
                        .find(|word| word.contains(&figure.paper));
                    assert!(
                        path.is_none_or(|path| {
                            let mut entries = figure.entries.iter().chain(&figure.setup);
                            entries.any(|entry| path.starts_with(entry.as_str()))
                        }),
                        "{name}: {expression}"
                    );
                }
            }
        }
    }

    #[test]
    fn claims_name_what_is_there_and_their_effects_are_the_published_ones() {
        let catalogue = Catalogue::read().unwrap();
        for claim in &catalogue.claims {
            let text = &claim.text;
            let mut figures = catalogue.figures.iter();
            let figure = figures.find(|figure| figure.name() == claim.figure);
            let figure = figure.unwrap();
            assert!(figure.uncounted.is_empty(), "{text}: a figure without vote");
            let Some(test) = &claim.test else { continue };
            assert!(test.minimum > 1.0, "{text}");
            let mut series = figure.series.iter();
            let series = series.find(|series| series.what == test.series).unwrap();
            let row = |system: &str| series.rows.iter().find(|row| row.system == system);
            let (own, base) = (row(&test.row).unwrap(), row(&series.baseline).unwrap());
            assert!(own.ours.is_some() && base.ours.is_some(), "{text}");
            let number = |row: &Row| {
                let printed = row.published.as_deref();
                let printed = printed.map(|text| catalogue.published(text).unwrap().value);
                printed.or(row.rank.map(f64::from)).unwrap()
            };
            let ratio = number(own) / number(base);
            let effect = if ratio >= test.minimum {
                Effect::Higher
            } else if ratio <= 1.0 / test.minimum {
                Effect::Lower
            } else {
                Effect::None
            };
            assert_eq!(effect, test.effect, "{text}: the paper has {ratio}");
        }
        for figure in &catalogue.figures {
            let name = figure.name();
            let is_claimed = catalogue.claims.iter().any(|claim| claim.figure == name);
            assert_ne!(is_claimed, !figure.uncounted.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_claim_that_nothing_can_test_is_refused_with_its_text_and_reason() {
        let refused = |claim: &str| {
            let atlas = format!(
                "paper = []\n[plan]\n[[figure]]\npaper = \"p\"\nid = \"f\"\nnumber = \"1\"\ntitle = \"T\"\nentries = []\n\
                 [[figure.series]]\nwhat = \"w\"\nbaseline = \"a\"\nplan = \"x\"\nmetric = \"m\"\n\
                 rows = [{{ system = \"a\" }}]\n[[claim]]\ntext = \"It holds.\"\nmechanism = \"m\"\n{claim}"
            );
            let catalogue = Catalogue::from_atlas(&atlas, "");
            catalogue.err().map(|error| error.to_string())
        };
        let whole =
            "figure = \"p/f\"\nseries = \"w\"\nrow = \"a\"\neffect = \"none\"\nminimum = 1.1";
        assert_eq!(refused(whole), None);
        assert_eq!(refused("figure = \"p/f\"\nmissing = \"no host\""), None);
        for (claim, why) in [
            (whole.replace("p/f", "p/g"), "no figure"),
            (whole.replace("\"w\"", "\"v\""), "no series"),
            (whole.replace("\"a\"", "\"b\""), "no row"),
            (
                whole.replace("minimum", "minimal"),
                "minimum, or the reason",
            ),
            (format!("{whole}\nmissing = \"x\""), "a test and a reason"),
        ] {
            let printed = refused(&claim).unwrap();
            assert!(
                printed.contains("It holds.") && printed.contains(why),
                "{printed}"
            );
        }
    }

    #[test]
    fn published_numbers_are_read_and_derived() {
        let figures = "[a.b]\nx = 30.0\napproximate = true\nrow = [1, 7, 9]\nspan = [33, 34]\ny = 4\n[a.c]\nz = 2";
        let catalogue = Catalogue::from_atlas("paper = []\nfigure = []\n[plan]", figures).unwrap();
        let of = |text: &str| catalogue.published(text).unwrap();
        assert_eq!(of("a.b.row.1").value, 7.0);
        assert!(of("a.b.x").approximate && !of("a.c.z").approximate);
        assert_eq!(of("a.b.span").range, Some((33.0, 34.0)));
        assert_eq!(of("a.b.span / a.c.z").value, 16.75);
        assert_eq!(of("100 - a.b.y / 2").value, 48.0);
        assert!(of("100 - a.b.y").derived && !of("a.b.y").derived);
        for wrong in [
            "",
            "a.b.none",
            "a.b.row",
            "a.b.y ^ 2",
            "a.b.y /",
            "a.b.row.9",
            "b",
        ] {
            let reported = catalogue.published(wrong).unwrap_err().to_string();
            assert!(reported.contains("figures.toml"), "{reported}");
        }
    }

    #[test]
    fn names_that_are_not_there_say_which_are() {
        let catalogue = Catalogue::read().unwrap();
        assert_eq!(
            catalogue.select(None).unwrap().len(),
            catalogue.figures.len()
        );
        assert_eq!(catalogue.select(Some("shea/table-1")).unwrap().len(), 1);
        assert!(catalogue.select(Some("rossi")).unwrap().len() > 5);
        let reported = |wanted| catalogue.select(Some(wanted)).unwrap_err().to_string();
        assert!(reported("shae").contains("shea, rossi, bratterud, cherkasova, chen"));
        assert!(
            reported("chen/fig-1").contains("fig-5"),
            "{}",
            reported("chen/fig-1")
        );
        assert!(reported("").contains("no paper"));
    }

    #[test]
    fn a_plan_is_run_as_its_command_says() {
        let plan = Plan {
            file: "papers/a.toml".into(),
            command: "accuracy run".into(),
            at: "testbed:kvm".into(),
            full_only: String::new(),
            testbed: Some("two-exact-processors.toml".into()),
        };
        assert_eq!(
            plan.arguments("plans", "r/a", true, None).join(" "),
            "accuracy run plans/papers/a.toml --results=r/a --place=testbed:kvm --testbed=plans/two-exact-processors.toml --quick"
        );
        assert_eq!(
            plan.arguments("plans", "r/a", false, Some("local"))
                .join(" "),
            "accuracy run plans/papers/a.toml --results=r/a"
        );
        let climbs = Plan {
            command: "density".into(),
            ..plan
        };
        for place in [None, Some("local"), Some("ssh:h")] {
            assert_eq!(
                climbs.arguments("plans", "r/a", false, place).join(" "),
                "density plans/papers/a.toml --results=r/a --place=testbed:kvm --testbed=plans/two-exact-processors.toml"
            );
        }
    }
}
