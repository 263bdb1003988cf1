//! `vtax compare --fail-on`: gates, their exit statuses, and the formats for pipelines.

use crate::support::vtax;
use serde_json::Value;
use std::fs;
use std::path::Path;
use vtax_testkit::results::Fake;

/// Two runs of one plan; in the second a VM costs 1.5 times as much.
fn runs(blocks: u32) -> tempfile::TempDir {
    let work = tempfile::tempdir().unwrap();
    for (name, vm_cost) in [("base", 3.0), ("new", 4.5)] {
        let fake = Fake {
            blocks,
            vm_cost,
            trouble: false,
            platforms: vec!["native", "qemu"],
            ..Fake::default()
        };
        fake.write(&work.path().join(name));
    }
    work
}

/// The exit status and both outputs of a command in `work`.
fn ended(work: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let output = vtax(&work.join("state"))
        .args(words)
        .current_dir(work)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// `vtax compare base new` with one gate.
fn gated(work: &Path, of: &str, gate: &str) -> (Option<i32>, String, String) {
    ended(
        work,
        &["compare", "base", "new", "--of", of, "--fail-on", gate],
    )
}

#[test]
fn a_gate_passes_where_the_whole_interval_is_within_the_limit() {
    let work = runs(8);
    let (code, out, err) = gated(work.path(), "tax", "cpu.per_work > +100%");
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains("passed     cpu.per_work > +100%"), "{out}");
    assert!(
        !out.contains("not interleaved"),
        "a tax has no drift: {out}"
    );
    let (code, out, _) = gated(work.path(), "cost", "cpu.per_work > +100%");
    assert_eq!(code, Some(0), "{out}");
}

#[test]
fn a_gate_is_missed_where_the_whole_interval_is_beyond_the_limit() {
    let work = runs(8);
    for of in ["tax", "cost"] {
        let (code, out, err) = gated(work.path(), of, "cpu.per_work > +5%");
        assert_eq!(code, Some(4), "{out}{err}");
        assert!(out.contains("missed     cpu.per_work > +5%"), "{out}");
        assert!(err.contains(" missed"), "{err}");
    }
    // The base is cheaper than the new run, so the reverse comparison falls.
    let words = ["compare", "new", "base", "--fail-on", "cpu.per_work < -5%"];
    assert_eq!(ended(work.path(), &words).0, Some(4));
}

#[test]
fn a_gate_is_undecided_where_the_interval_contains_the_limit_and_the_blocks_that_would_decide_are_printed()
 {
    let work = runs(5);
    let (code, out, err) = gated(work.path(), "tax", "cpu.per_work > +45%");
    assert_eq!(code, Some(3), "{out}{err}");
    let line = out.lines().find(|line| line.contains("undecided")).unwrap();
    assert!(line.contains("the interval contains the limit"), "{line}");
    assert!(line.contains("would decide"), "{line}");
    let few = runs(2);
    let (code, out, _) = gated(few.path(), "tax", "cpu.per_work > +5%");
    assert_eq!(code, Some(3), "{out}");
    assert!(out.contains("too few trials"), "{out}");
}

#[test]
fn a_gate_that_cannot_be_read_or_fits_nothing_is_a_usage_error_with_the_place_or_the_nearest_name()
{
    let work = runs(4);
    for (gate, expected) in [
        ("cpu.per_work + 5%", "column 18: no `>` or `<`"),
        (
            "cpu.per_work > five%",
            "column 16: the limit is not a number",
        ),
        ("cpu.per_work > 5", "does not end with `%`"),
        ("cpu.per_work > -200%", "not a finite number above -100"),
        ("> 5%", "column 1: the metric is missing"),
        ("cpu per_work > 5%", "column 4: a metric is one word"),
        ("cpu.per_werk > 5%", "nearest: `cpu.per_work`"),
        (
            "cpu.per_work of http-rate qemo > 5%",
            "no treatment `http-rate qemo`; nearest: `",
        ),
    ] {
        let (code, _, err) = gated(work.path(), "tax", gate);
        assert_eq!(code, Some(2), "{gate}: {err}");
        assert!(err.contains(expected), "{gate}: {err}");
    }
}

#[test]
fn a_run_in_which_no_trial_counts_makes_a_comparison_inconclusive() {
    let work = runs(4);
    for trial in fs::read_dir(work.path().join("new/trials")).unwrap() {
        let path = trial.unwrap().path().join("trial.json");
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        record["suspect"] = serde_json::json!(["the clock was set"]);
        fs::write(&path, record.to_string()).unwrap();
    }
    let (code, out, err) = ended(work.path(), &["compare", "base", "new"]);
    assert_eq!(code, Some(3), "{out}{err}");
}

#[test]
fn the_commands_of_the_gates_page_run_and_its_formats_hold_ratio_interval_and_gates() {
    let work = runs(6);
    let page = include_str!("../../../docs/gates.md");
    let mut run = 0;
    for line in page.lines() {
        let Some(line) = line.strip_prefix("$ vtax ") else {
            continue;
        };
        let script = format!("\"$VTAX\" {line}");
        let status = std::process::Command::new("sh")
            .args(["-c", &script])
            .env("VTAX", env!("CARGO_BIN_EXE_vtax"))
            .env("VTAX_STATE_DIR", work.path().join("state"))
            .env("GITHUB_STEP_SUMMARY", work.path().join("summary.md"))
            .current_dir(work.path())
            .output()
            .unwrap();
        let code = status.status.code();
        assert!(matches!(code, Some(0 | 3 | 4)), "{line}: {status:?}");
        run += 1;
    }
    assert!(run >= 5, "{run} commands");
    let summary = fs::read_to_string(work.path().join("summary.md")).unwrap();
    assert!(
        summary.contains("| missed |") && summary.contains("cpu.per\\_work"),
        "{summary}"
    );
    let bencher = fs::read(work.path().join("bencher.json")).unwrap();
    let bencher: Value = serde_json::from_slice(&bencher).unwrap();
    let measures: Vec<&Value> = bencher
        .as_object()
        .unwrap()
        .values()
        .map(|of| &of["cpu.per_work"])
        .collect();
    let number = |measure: &Value, name: &str| measure[name].as_f64().unwrap();
    assert!(!measures.is_empty());
    for one in measures {
        assert!(number(one, "lower_value") < number(one, "value"), "{one}");
        assert!(number(one, "value") < number(one, "upper_value"), "{one}");
    }
    let rows = fs::read_to_string(work.path().join("comparisons.csv")).unwrap();
    let columns = rows.lines().next().unwrap().split(',').count();
    assert!(rows.lines().count() > 3 && columns == 20, "{rows}");
    let (_, out, _) = ended(
        work.path(),
        &[
            "compare",
            "base",
            "new",
            "--json",
            "--fail-on",
            "cpu.per_work > 5%",
        ],
    );
    let json: Value = serde_json::from_str(&out).unwrap();
    let gates = json["gates"].as_array().unwrap();
    assert!(gates.iter().any(|gate| gate["outcome"] == "missed"));
    assert!(json["others"][0]["comparisons"].is_array());
}
