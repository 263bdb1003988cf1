// SPDX-License-Identifier: Apache-2.0
//! The test that each number in the prose of the papers' pages is one of the data.
//!
//! A number has a comment behind it, which no reader sees and which is the number's source:
//!
//! - `1.50<!--ours shea-platforms | model.power | kvm-tap · send / bare-metal · send-->` is a ratio of stored numbers.
//!   One treatment alone is its value, and `% A / B` is the difference of a ratio from 1 in percent. A number that is of
//!   no row of the catalogue is refused, since no run renews it.
//! - `1.64<!--printed shea.iperf_send.watts.kvm.rapl / shea.iperf_send.watts.bare_metal.rapl-->` is printed in the
//!   paper, or computed from what is ([`Catalogue::published`]).
//! - `100<!--plan papers/shea-tables.toml settings.link.rate_mbit-->` is a setting of a plan below `plans`. An entry of
//!   a list has its index as key. A text such as `"12s"` is its leading number.
//!
//! A mark of a plan of which nothing is stored yet is pending: its number is `…`, and no other number may be.
//!
//! A number without a mark is refused, and so are fractions and numbers above twelve in words. Headings, code, the
//! targets of links, the table of claims, digits behind a letter (`Dom0`), and the numbers of figures, tables and
//! sections (`Figures 2 to 4`) need no mark.
//!
//! With `VTAX_WRITE_DOCS=1` the test writes the numbers of all marks, with as many decimals as before.

use crate::AtlasError;
use crate::catalogue::{Catalogue, Key};
use crate::ours::Ours;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use vtax_core::thousands;

/// A number whose plan has no stored number yet.
const PENDING: &str = "…";

/// Beginnings of words that are numbers.
const WORDS: [&str; 21] = [
    "dozen", "eighth", "eighty", "fifth", "fifty", "forty", "half", "hundred", "million", "ninety",
    "quarter", "seventh", "seventy", "sixth", "sixty", "tenth", "third", "thirty", "thousand",
    "twenty", "twice",
];

/// A mark: the number before it, what stands between both, and the source.
struct Mark<'a> {
    before: &'a str,
    number: &'a str,
    unit: &'a str,
    source: &'a str,
}

/// The marks of a text, and what is behind the last one.
fn marks(mut text: &str) -> (Vec<Mark<'_>>, &str) {
    let mut found = Vec::new();
    while let Some((before, after)) = text.split_once("<!--") {
        let (source, rest) = after.split_once("-->").unwrap_or((after, ""));
        let end = before.trim_end_matches([' ', '%', '×']).len();
        let digits = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '…');
        let begin = before[..end].trim_end_matches(digits).len();
        found.push(Mark {
            before: &before[..begin],
            number: &before[begin..end],
            unit: &before[end..],
            source,
        });
        text = rest;
    }
    (found, text)
}

/// What marks name.
struct Data {
    catalogue: Catalogue,
    ours: Ours,
    wanted: BTreeSet<Key>,
}

impl Data {
    fn read() -> Self {
        let catalogue = Catalogue::read().unwrap();
        let series = catalogue.figures.iter().flat_map(|figure| &figure.series);
        let keys = series.flat_map(|series| series.rows.iter().filter_map(|row| series.key(row)));
        Self {
            wanted: keys.collect(),
            ours: Ours::kept().unwrap(),
            catalogue,
        }
    }

    /// The text with the number of each mark; its marks that name nothing are the error.
    fn renewed(&self, text: &str) -> Result<String, Vec<String>> {
        let (marks, rest) = marks(text);
        let (mut renewed, mut wrong) = (String::new(), Vec::new());
        for mark in marks {
            match self.value(mark.source) {
                Ok(value) => renewed += &[mark.before, &written(value, mark.number)].concat(),
                Err(why) => wrong.push(format!("{why}: {}", mark.source)),
            }
            renewed += &format!("{}<!--{}-->", mark.unit, mark.source);
        }
        renewed += rest;
        if wrong.is_empty() {
            Ok(renewed)
        } else {
            Err(wrong)
        }
    }

    /// The value of a source. `None` where its plan has no stored number.
    fn value(&self, source: &str) -> Result<Option<f64>, AtlasError> {
        let words = source.split_whitespace().collect::<Vec<_>>().join(" ");
        match words.split_once(' ') {
            Some(("ours", key)) => self.of_ours(key),
            Some(("printed", expression)) => Ok(Some(self.catalogue.published(expression)?.value)),
            Some(("plan", setting)) => {
                let value = of_plan(setting).ok_or_else(|| unknown("no such setting"))?;
                Ok(Some(value))
            }
            _ => Err(unknown("neither ours, printed nor plan")),
        }
    }

    fn of_ours(&self, key: &str) -> Result<Option<f64>, AtlasError> {
        let fields: Vec<&str> = key.split(" | ").collect();
        let [plan, metric, treatments] = fields[..] else {
            return Err(unknown("PLAN | METRIC | TREATMENTS"));
        };
        let of = |treatment: &str| {
            let key = Key {
                plan: plan.to_owned(),
                treatment: treatment.to_owned(),
                metric: metric.to_owned(),
            };
            if !self.wanted.contains(&key) {
                return Err(unknown(&format!("no row of the catalogue is {treatment}")));
            }
            if self.ours.numbers.keys().all(|key| key.plan != plan) {
                return Ok(None);
            }
            let number = self.ours.numbers.get(&key);
            let number = number.ok_or_else(|| unknown("no stored number"))?;
            Ok(Some(number.value))
        };
        let percent = treatments.strip_prefix("% ");
        let value = match percent.unwrap_or(treatments).split_once(" / ") {
            Some((own, base)) => of(own)?.zip(of(base)?).map(|(own, base)| own / base),
            None => of(treatments)?,
        };
        Ok(value.map(|value| match percent {
            Some(_) => (value - 1.0).abs() * 100.0,
            None => value,
        }))
    }
}

fn unknown(what: &str) -> AtlasError {
    AtlasError::Unknown(what.to_owned())
}

/// A setting: `FILE KEY`.
fn of_plan(setting: &str) -> Option<f64> {
    let (file, key) = setting.split_once(' ')?;
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../plans");
    let plan: toml::Value = toml::from_str(&fs::read_to_string(plans.join(file)).ok()?).ok()?;
    let value = key.split('.').try_fold(&plan, |value, key| match value {
        toml::Value::Array(entries) => entries.get(key.parse::<usize>().ok()?),
        _ => value.get(key),
    })?;
    match value {
        toml::Value::Integer(number) => Some(*number as f64),
        toml::Value::Float(number) => Some(*number),
        toml::Value::String(text) => text
            .trim_end_matches(|c: char| !c.is_ascii_digit())
            .parse()
            .ok(),
        _ => None,
    }
}

/// A value with as many decimals as the number that it replaces.
fn written(value: Option<f64>, number: &str) -> String {
    let Some(value) = value else {
        return PENDING.to_owned();
    };
    let decimals = match number.split_once('.') {
        Some((_, decimals)) => decimals.len(),
        None if number == PENDING && value < 10.0 => 2,
        None => 0,
    };
    thousands(format!("{value:.decimals$}"))
}

/// The numbers of a page without a mark, each with the words before it.
fn unmarked(text: &str) -> Vec<String> {
    let (marks, rest) = marks(text);
    let parts = marks.iter().map(|mark| mark.before).chain([rest]);
    let text = prose(&parts.collect::<Vec<_>>().join("N"));
    let words: Vec<&str> = text.split_whitespace().collect();
    // How many of the next words may be numbers of figures.
    let (mut found, mut names) = (Vec::new(), 0);
    for (at, word) in words.iter().enumerate() {
        let lower = word.to_lowercase();
        let bare = lower.trim_matches(|c: char| !c.is_alphanumeric());
        match bare {
            "figure" | "table" | "section" => names = 1,
            "figures" | "tables" | "sections" => names = usize::MAX,
            "and" | "to" if names > 1 => {}
            _ if names > 0 && bare.parse::<u32>().is_ok() => {
                names = if word.ends_with('.') { 0 } else { names - 1 };
            }
            _ => {
                names = 0;
                if is_number(bare) || word.contains(PENDING) {
                    found.push(words[at.saturating_sub(5)..=at].join(" "));
                }
            }
        }
    }
    found
}

/// Whether a word is a number, or begins with one.
fn is_number(word: &str) -> bool {
    let digit = word.find(|c: char| c.is_ascii_digit());
    digit.is_some_and(|at| !word[..at].ends_with(char::is_alphabetic))
        || WORDS.iter().any(|number| word.starts_with(number))
        || word.ends_with("teen")
}

/// The prose of a page.
fn prose(text: &str) -> String {
    let (mut prose, mut is_code, mut is_claims) = (String::new(), false, false);
    for line in text.lines() {
        is_claims = line.starts_with("| claim | published |") || is_claims && line.starts_with('|');
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        if !(is_code || is_fence || is_claims || line.starts_with('#')) {
            prose += &format!("{line}\n");
        }
    }
    let spans: Vec<&str> = prose.split('`').step_by(2).collect();
    let mut links = String::new();
    for (at, part) in spans.join("code").split("](").enumerate() {
        links += match part.split_once(')') {
            Some((_, behind)) if at > 0 => behind,
            _ => part,
        };
    }
    links
}

#[test]
fn the_numbers_of_a_kept_page_have_marks_and_are_those_of_the_data() {
    let data = Data::read();
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/notes/papers");
    for page in fs::read_dir(pages).unwrap() {
        let path = page.unwrap().path();
        // Another test writes the table of claims.
        let file = File::open(&path).unwrap();
        file.lock().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let renewed = data.renewed(&text);
        let renewed = renewed.unwrap_or_else(|wrong| panic!("{}: {wrong:#?}", path.display()));
        if std::env::var_os("VTAX_WRITE_DOCS").is_some() {
            fs::write(&path, &renewed).unwrap();
        } else {
            let lines = text.lines().zip(renewed.lines());
            let differ: Vec<_> = lines.filter(|(old, new)| old != new).collect();
            assert!(differ.is_empty(), "{}: {differ:#?}", path.display());
        }
        let unmarked = unmarked(&renewed);
        assert!(unmarked.is_empty(), "{}: {unmarked:#?}", path.display());
    }
}

#[test]
fn a_number_of_another_run_and_a_mark_without_data_are_refused() {
    let mut data = Data::read();
    let number = data.ours.numbers.values().next().unwrap().clone();
    for (plan, treatment, value) in [
        ("p", "a · x", 3.0),
        ("p", "b · x", 2.0),
        ("new", "a · x", 0.0),
    ] {
        let key = Key {
            plan: plan.into(),
            treatment: treatment.into(),
            metric: "m".into(),
        };
        data.wanted.insert(key.clone());
        if plan == "p" {
            let value = crate::ours::Number {
                value,
                ..number.clone()
            };
            data.ours.numbers.insert(key, value);
        }
    }
    let unstored = Key {
        treatment: "c · x".into(),
        ..data
            .wanted
            .iter()
            .find(|key| key.plan == "p")
            .unwrap()
            .clone()
    };
    data.wanted.insert(unstored);
    for (right, others) in [
        (
            "1.50<!--ours p | m | a · x / b · x-->",
            &["1.49", "…", ""][..],
        ),
        (
            "50 %<!--ours p | m | % a ·\nx / b · x-->",
            &["49 %", "50.5%"],
        ),
        ("3×<!--ours p | m | a · x-->", &["2×", "…"]),
        ("…<!--ours new | m | a · x-->", &["1.00", ""]),
        (
            "10,000<!--printed rossi.headline.hping_requests-->",
            &["10000", "…"],
        ),
        (
            "200<!--plan papers/shea-hold-wire.toml settings.link.rate_mbit-->",
            &["300"],
        ),
        (
            "11 s: 11<!--plan papers/shea-hold-wire.toml warmup-->",
            &["11 s: 12"],
        ),
        (
            "1,000<!--plan papers/shea-hold-wire.toml platform.1.nic.hold_us-->",
            &["1000"],
        ),
    ] {
        assert_eq!(data.renewed(right).as_deref(), Ok(right));
        let (_, mark) = right.split_once("<!--").unwrap();
        for other in others {
            let other = format!("{other}<!--{mark}");
            assert_ne!(data.renewed(&other).unwrap(), other);
        }
    }
    assert_eq!(
        data.renewed("…<!--ours p | m | a · x-->").as_deref(),
        Ok("3.00<!--ours p | m | a · x-->")
    );
    for none in [
        "ours p | n | a · x",
        "ours p | m | c · x",
        "ours p | m | a · x / d · x",
        "ours newer | m | a · x",
        "ours p | a · x",
        "printed rossi.headline.requests",
        "plan papers/none.toml warmup",
        "plan papers/shea-hold-wire.toml platform.7.nic.hold_us",
        "plan papers/shea-hold-wire.toml name",
        "said 3",
    ] {
        let wrong = data.renewed(&format!("3<!--{none}-->")).unwrap_err();
        assert!(wrong[0].ends_with(none), "{wrong:?}");
    }
}

#[test]
fn a_number_without_a_mark_is_refused_and_names_are_none() {
    let names = "# A, INFOCOM 2014\nDom0 in [Figure 7](x.html#a-7), [Figures 2, 3](b) and [4](c), of Table 2.\n\
                 See section 5, `1 in code`.\n```sh\n3\n```\n| claim | published | 1 |\n|---|\n| 2 |\n\n\
                 One of twelve takes 3 %<!--ours p--> of `2`.";
    assert_eq!(unmarked(names), Vec::<String>::new());
    for number in [
        "It takes 2 W.",
        "5ms",
        "1.5x",
        "(3)",
        "Figure 7 has 8.",
        "Figure 7 and 8 W.",
        "Tables 1 to 3 are of 2 W.",
        "a hundred",
        "two thirds",
        "fifteen",
        "… W",
        "| a | 2 |",
        "a 64-bit guest",
    ] {
        assert_eq!(unmarked(number).len(), 1, "{number}");
    }
}
