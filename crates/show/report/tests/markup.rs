// SPDX-License-Identifier: Apache-2.0
//! Tests of escaping: text from a results directory remains text in its report.

use proptest::prelude::*;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use vtax_report::analysis::analyse;
use vtax_report::html::{Provenance, render};
use vtax_results::ResultsDir;
use vtax_testkit::markup::{FRAGMENTS, skeleton, text_of};
use vtax_testkit::results::{Fake, ramp};

/// Keys with values from the format's vocabulary. All other values are free text.
const FORMAT: [&str; 5] = ["better", "outcome", "role", "source", "unit"];

/// Appends `words` to every free text, and to the names of facts and factors.
fn append(value: &mut Value, words: &str) {
    match value {
        Value::String(text) => text.push_str(words),
        Value::Array(values) => values.iter_mut().for_each(|value| append(value, words)),
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                if !FORMAT.contains(&key.as_str()) {
                    append(value, words);
                }
                if let ("environment" | "factors", Some(named)) =
                    (key.as_str(), value.as_object_mut())
                {
                    let all = std::mem::take(named).into_iter();
                    named.extend(all.map(|(name, value)| (name + words, value)));
                }
            }
        }
        _ => {}
    }
}

/// The text files of a results directory, as created.
struct Texts {
    path: PathBuf,
    files: Vec<(PathBuf, Value)>,
}

impl Texts {
    fn of(results: &ResultsDir) -> Self {
        let trials = results.trial_indexes().into_iter();
        let trials = trials.map(|index| results.trial_path(index).join("trial.json"));
        let path = results.path().to_owned();
        let files = [path.join("run.json"), path.join("host.json")]
            .into_iter()
            .chain(trials);
        let files = files.map(|file| {
            let text = fs::read(&file).unwrap();
            (file, serde_json::from_slice(&text).unwrap())
        });
        Self {
            files: files.collect(),
            path,
        }
    }

    /// The report of the directory after `words` are appended to every text.
    fn report(&self, words: &str) -> String {
        for (file, original) in &self.files {
            let mut value = original.clone();
            append(&mut value, words);
            fs::write(file, value.to_string()).unwrap();
        }
        fs::write(self.path.join("plan.toml"), words).unwrap();
        let results = ResultsDir::open(&self.path).unwrap();
        render(
            &analyse(&results).unwrap(),
            &Provenance::from_results(&results),
        )
    }
}

fn directories(folder: &Path) -> [Texts; 2] {
    let fake = Fake {
        blocks: 1,
        seconds: 3,
        platforms: vec!["native", "qemu"],
        ..Fake::default()
    };
    let ramp = ResultsDir::create(
        &folder.join("ramp"),
        &ramp::run_info(),
        "",
        &serde_json::json!({"cpu": "Example"}),
    )
    .unwrap();
    (0..3).for_each(|index| ramp::write_trial(&ramp, index));
    [
        Texts::of(&fake.write(&folder.join("fake"))),
        Texts::of(&ramp),
    ]
}

/// Text with parts of markup. It begins with a word, since a name without an addition may be a known one.
fn words() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        prop::sample::select(&FRAGMENTS[..]).prop_map(str::to_owned),
        ".{0,9}"
    ];
    prop::collection::vec(part, 1..6).prop_map(|parts| format!(" plain{}", parts.concat()))
}

#[test]
fn text_of_a_results_directory_never_becomes_markup() {
    let folder = tempfile::tempdir().unwrap();
    for texts in directories(folder.path()) {
        let plain = skeleton(&texts.report(" plain"));
        proptest!(ProptestConfig::with_cases(24), |(words in words())| {
            let page = texts.report(&words);
            prop_assert!(skeleton(&page) == plain, "the tags of the page depend on its text");
            let unprintable = |c: char| c.is_control() && !"\n\t".contains(c);
            let is_shown = text_of(&page).contains(&words.replace(unprintable, "\u{fffd}"));
            prop_assert!(is_shown);
            let (_, data) = page.split_once("id=\"figures-data\">").unwrap();
            let (data, _) = data.split_once("</script>").unwrap();
            prop_assert!(serde_json::from_str::<Value>(data).is_ok());
        });
    }
}
