// SPDX-License-Identifier: Apache-2.0
//! Randomly altered results and plans are read or refused: no reader panics, and no impossible number is accepted.
//! `TRIES=5000 cargo test -p vtax --test integration mutations` takes minutes; without it 1,000 plans and 200 results
//! are altered.

use crate::support::vtax;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use vtax_core::SplitMix64;
use vtax_lab::plan::{Catalogue, Plan, treatments};
use vtax_report::analysis::{Analysis, analyse};
use vtax_report::{compare, export, html, terminal};
use vtax_results::ResultsDir;

fn tries() -> u64 {
    std::env::var("TRIES").map_or(1000, |tries| tries.parse().unwrap())
}

/// Inputs that are hard for readers of numbers, texts and nesting.
const FRAGMENTS: [&[u8]; 16] = [
    b"1e999",
    b"-1",
    b"NaN",
    b"null",
    b"[]",
    b"{}",
    b"\"\"",
    b"\"\\u0000\"",
    b"18446744073709551616",
    b"-9223372036854775808",
    b"0",
    b"1e-320",
    b"\xff\xfe",
    b"\x00",
    b"[[[[[[[[",
    b"\xf0\x9f\x92\xa3",
];

/// One to four alterations.
fn mutated(original: &[u8], random: &mut SplitMix64) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(24)).min(bytes.len());
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let piece = bytes[at..end].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            3 => bytes.truncate(at),
            4 => {
                // Replaces the next number, where there is one.
                let digits = |byte: &u8| byte.is_ascii_digit() || b".-+eE".contains(byte);
                let begin = bytes[at..]
                    .iter()
                    .position(u8::is_ascii_digit)
                    .map_or(at, |skip| at + skip);
                let end = bytes[begin..]
                    .iter()
                    .position(|byte| !digits(byte))
                    .map_or(begin, |len| begin + len);
                bytes.splice(
                    begin..end,
                    FRAGMENTS[random.below(FRAGMENTS.len())].iter().copied(),
                );
            }
            _ => drop(bytes.splice(
                at..at,
                FRAGMENTS[random.below(FRAGMENTS.len())].iter().copied(),
            )),
        }
    }
    bytes
}

fn copy(from: &Path, to: &Path, files: &mut Vec<PathBuf>) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to, files);
        } else {
            fs::copy(&from, &to).unwrap();
            files.push(to);
        }
    }
}

/// Reads, analyses and renders a results directory. Returns whether it was read.
fn read_results(path: &Path, good: &Analysis) -> bool {
    let Ok(results) = ResultsDir::open(path) else {
        return false;
    };
    let Ok(analysis) = analyse(&results) else {
        return false;
    };
    let _ = terminal::table(&analysis, 80, false);
    let _ = html::write_report(&results, &analysis);
    let _ = export::csv(&results, &mut Vec::new());
    let _ = export::csv_samples(&results, &mut Vec::new());
    let _ = compare::table(&compare::compare(good, &[&analysis]), 80);
    true
}

#[test]
fn a_damaged_part_is_named_without_the_text_of_a_panic_and_ends_with_1() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../show/report/tests/data/format-1");
    let work = tempfile::tempdir().unwrap();
    let (results, mut files) = (work.path().join("results"), Vec::new());
    copy(&kept, &results, &mut files);
    let is_samples = |path: &&PathBuf| path.extension().is_some_and(|end| end == "parquet");
    let file = files.iter().find(is_samples).unwrap();
    let original = fs::read(file).unwrap();
    let mut random = SplitMix64::new(7);
    let mut damaged = 0;
    for _ in 0..40 {
        let mut bytes = original.clone();
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
        fs::write(file, bytes).unwrap();
        for command in ["report", "export"] {
            let mut line = vtax(&work.path().join("state"));
            line.arg(command).arg(&results);
            if command == "export" {
                line.arg("samples");
            }
            let output = line.output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(
                !told.contains("panicked") && !told.contains("backtrace"),
                "{at}: {told}"
            );
            let lost = told.contains("left out: ");
            assert_eq!(
                output.status.code(),
                Some(i32::from(lost)),
                "{command}, {at}: {told}"
            );
            damaged += usize::from(lost);
        }
    }
    assert!(damaged > 0, "no altered bit damaged a part");
}

#[test(needs = [test_all("takes 3 s")])]
fn results_that_were_altered_at_random_are_read_or_refused() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../show/report/tests/data/format-1");
    let (mut read, mut refused) = (0, 0);
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good");
    copy(&kept, &good, &mut Vec::new());
    let good = analyse(&ResultsDir::open(&good).unwrap()).unwrap();
    let path = folder.path().join("results");
    let mut files = Vec::new();
    copy(&kept, &path, &mut files);
    files.sort();
    // Each altered directory is read, analysed and rendered.
    for seed in 0..tries() / 5 {
        let mut random = SplitMix64::new(seed);
        let file = &files[random.below(files.len())];
        let original = fs::read(file).unwrap();
        fs::write(file, mutated(&original, &mut random)).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| read_results(&path, &good)));
        fs::write(file, original).unwrap();
        match outcome {
            Ok(true) => read += 1,
            Ok(false) => refused += 1,
            Err(_) => panic!("try {seed} of {} panicked", file.display()),
        }
    }
    // Both outcomes must occur, or the alterations are of no use.
    assert!(read > 2 && refused > 2, "{read} read, {refused} refused");
}

#[test]
fn plans_that_were_altered_at_random_are_read_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../plans");
    let mut plans: Vec<PathBuf> = [folder.clone(), folder.join("papers")]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .collect();
    plans.sort();
    let texts: Vec<Vec<u8>> = plans.iter().map(|path| fs::read(path).unwrap()).collect();
    let standard = Catalogue::standard();
    let (mut read, mut refused) = (0, 0);
    for seed in 0..tries() {
        let mut random = SplitMix64::new(seed);
        let number = random.below(texts.len());
        let bytes = mutated(&texts[number], &mut random);
        let text = String::from_utf8_lossy(&bytes);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let climbs = vtax_density::plan::Plan::read("plan.toml", &text, false)
                .map_err(|wrong| wrong.to_string());
            match Plan::read("plan.toml", &text, &standard) {
                Ok(plan) => {
                    let all = treatments(&plan, &standard);
                    let time = plan.expected_time(&all, &standard);
                    assert!(!all.is_empty() && time.as_secs_f64().is_finite());
                    true
                }
                Err(wrong) => {
                    assert!(!wrong.to_string().is_empty());
                    climbs.is_ok()
                }
            }
        }));
        match outcome {
            Ok(true) => read += 1,
            Ok(false) => refused += 1,
            Err(_) => panic!("try {seed} of {} panicked", plans[number].display()),
        }
    }
    assert!(read > 20 && refused > 20, "{read} read, {refused} refused");
}
