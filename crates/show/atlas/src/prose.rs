// SPDX-License-Identifier: Apache-2.0
//! The test that numbers in the prose of the papers' pages are those of the stored data.
//!
//! Such a number has a comment behind it, which no reader sees: `1.50<!--ours shea-platforms | model.power | kvm-tap · send /
//! bare-metal · send-->` is a ratio. One treatment alone is its value, and `% A / B` is the difference of a ratio from 1 in
//! percent.

use crate::catalogue::Key;
use crate::ours::Ours;
use std::fs;
use std::path::Path;

const MARK: &str = "<!--ours ";

/// Checks each marked number of a page, and returns how many there are.
///
/// # Errors
/// The marks whose number is another one, or has no stored value.
fn check(text: &str, ours: &Ours) -> Result<usize, Vec<String>> {
    let mut parts = text.split(MARK);
    let mut before = parts.next().unwrap_or_default();
    let (mut count, mut wrong) = (0, Vec::new());
    for part in parts {
        let (mark, after) = part.split_once("-->").unwrap_or((part, ""));
        let written = before.trim_end_matches([' ', '%', '×']);
        let digits = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',');
        let start = written.trim_end_matches(digits).len();
        let number = written[start..].replace(',', "");
        let decimals = number.split_once('.').map_or(0, |(_, digits)| digits.len());
        match value(mark, ours) {
            Some(value) if format!("{value:.decimals$}") == number => {}
            found => wrong.push(format!("{number} is {found:?}: {mark}")),
        }
        (count, before) = (count + 1, after);
    }
    if wrong.is_empty() {
        Ok(count)
    } else {
        Err(wrong)
    }
}

/// The value of a mark: `PLAN | METRIC | [%] TREATMENT [/ TREATMENT]`.
fn value(mark: &str, ours: &Ours) -> Option<f64> {
    let fields: Vec<String> = mark
        .split('|')
        .map(|field| field.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let [plan, metric, treatments] = <[String; 3]>::try_from(fields).ok()?;
    let of = |treatment: &str| {
        let key = Key {
            plan: plan.clone(),
            treatment: treatment.to_owned(),
            metric: metric.clone(),
        };
        Some(ours.numbers.get(&key)?.value)
    };
    let percent = treatments.strip_prefix("% ");
    let treatments = percent.unwrap_or(&treatments);
    let ratio = match treatments.split_once(" / ") {
        Some((own, base)) => of(own)? / of(base)?,
        None => of(treatments)?,
    };
    Some(match percent {
        Some(_) => (ratio - 1.0).abs() * 100.0,
        None => ratio,
    })
}

#[test]
fn marked_numbers_in_prose_are_those_of_the_stored_data() {
    let ours = Ours::kept().unwrap();
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/notes/papers");
    let mut marked = 0;
    for page in fs::read_dir(pages).unwrap() {
        let page = page.unwrap().path();
        let text = fs::read_to_string(&page).unwrap();
        marked +=
            check(&text, &ours).unwrap_or_else(|wrong| panic!("{}: {wrong:#?}", page.display()));
    }
    assert!(marked > 0, "no page has a marked number");
}

#[test]
fn a_number_of_another_run_and_a_mark_without_data_are_refused() {
    let mut ours = Ours::kept().unwrap();
    let number = ours.numbers.values().next().unwrap().clone();
    for (treatment, value) in [("a · x", 3.0), ("b · x", 2.0)] {
        let key = Key {
            plan: "p".into(),
            treatment: treatment.into(),
            metric: "m".into(),
        };
        let value = crate::ours::Number {
            value,
            ..number.clone()
        };
        ours.numbers.insert(key, value);
    }
    let page = "It takes 1.50<!--ours p | m | a · x / b · x--> times, 50 %<!--ours p | m | % a ·\nx / b · x--> more, 3<!--ours p | m | a · x-->.";
    assert_eq!(check(page, &ours), Ok(3));
    for wrong in [
        page.replace("1.50", "1.5001"),
        page.replace("50 %", "49 %"),
        page.replace("p | m", "p | n"),
        page.replace("a · x-->.", "c · x-->."),
        page.replace("| m", ""),
    ] {
        assert!(check(&wrong, &ours).is_err(), "{wrong}");
    }
}
