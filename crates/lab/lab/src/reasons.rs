// SPDX-License-Identifier: Apache-2.0
//! The catalogue of reasons to suspect a trial or to call it disturbed: where each comes from, why it matters, and the
//! remedy.

use crate::suspect;
use serde::Deserialize;
use std::sync::LazyLock;

/// A kind of reason.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// A short name.
    pub name: String,
    /// Words that each of its texts contains.
    pub words: Vec<String>,
    /// Whether the trial does not count. A disturbed trial counts, and scatters more.
    pub is_suspect: bool,
    /// Why it matters.
    pub because: String,
    /// Where the finding comes from, with its limit.
    pub source: String,
    /// What to do.
    pub remedy: String,
}

/// The catalogue as it is written.
#[derive(Default, Deserialize)]
struct Catalogue {
    reason: Vec<Reason>,
}

/// A test checks that the file can be read.
static CATALOGUE: LazyLock<Catalogue> =
    LazyLock::new(|| toml::from_str(include_str!("reasons.toml")).unwrap_or_default());

/// Returns every kind of reason.
pub fn all() -> &'static [Reason] {
    &CATALOGUE.reason
}

/// Returns the kinds of reasons for a text: a name, a whole reason, or words of one.
pub fn find(text: &str) -> Vec<&'static Reason> {
    let text = text.trim().to_lowercase();
    let of_text = |reason: &&Reason| {
        let contains = |words: &String| {
            let words = words.to_lowercase();
            text.contains(&words) || (text.len() > 3 && words.contains(&text))
        };
        reason.name == text || reason.words.iter().any(contains)
    };
    if text.is_empty() {
        Vec::new()
    } else {
        all().iter().filter(of_text).collect()
    }
}

const _: () = {
    // The limits in the texts are those of the checks.
    assert!(suspect::FOREIGN_LOAD_SHARE == 0.05 && suspect::FOREIGN_LOAD_MINIMUM.0 == 200_000_000);
    assert!(suspect::STEAL_SHARE == 0.25 && suspect::FREQUENCY_DRIFT == 0.10);
    assert!(
        suspect::SWAP_PAGES == 256 && suspect::MISSED_SHARE == 0.05 && suspect::GAP_PERIODS == 3.0
    );
    assert!(suspect::CLOCK_STEP.0 == 1_000_000 && suspect::CLOCK_SLEW_PPM == 500);
    assert!(suspect::FREE_DISK_MINIMUM.0 == 256 << 20);
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_reason_is_found_by_its_name_its_text_and_words_of_it() {
        for text in [
            "foreign-load",
            "other programs used 2.45 s of CPU time",
            "Other programs",
        ] {
            let found = find(text);
            assert!(
                matches!(found.as_slice(), [one] if one.name == "foreign-load"),
                "{text}: {found:?}"
            );
        }
        assert!(find("").is_empty() && find("no such reason").is_empty());
    }

    #[test]
    fn names_are_unique_and_texts_are_sentences() {
        let names: BTreeSet<&str> = all().iter().map(|reason| reason.name.as_str()).collect();
        assert!(!names.is_empty());
        assert_eq!(names.len(), all().len());
        for reason in all() {
            for text in [&reason.because, &reason.source, &reason.remedy] {
                assert!(text.ends_with('.'), "{}: {text}", reason.name);
            }
        }
    }
}
