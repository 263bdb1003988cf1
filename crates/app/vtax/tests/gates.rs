// SPDX-License-Identifier: Apache-2.0
//! `vtax compare --fail-on` and the gates of plans: their exit statuses, and the formats for pipelines.

use crate::support::{can_run_trials, the_host, vtax};
use serde_json::Value;
use std::fs;
use std::path::Path;
use vtax_testkit::results::Fake;

/// Two runs of one plan with canaries; in the second a VM costs 1.5 times as much.
fn runs(blocks: u32) -> tempfile::TempDir {
    runs_with(blocks, Some(1.0))
}

fn runs_with(blocks: u32, canary: Option<f64>) -> tempfile::TempDir {
    let work = tempfile::tempdir().unwrap();
    for (name, vm_cost) in [("base", 3.0), ("new", 4.5)] {
        let fake = Fake {
            blocks,
            vm_cost,
            trouble: false,
            platforms: vec!["native", "qemu"],
            canary,
            ..Fake::default()
        };
        let run = work.path().join(name);
        fake.write(&run);
        set_plan(&run, &plan(""));
    }
    work
}

/// Replaces the plan of a run.
fn set_plan(run: &Path, plan: &str) {
    fs::write(run.join("plan.toml"), plan).unwrap();
}

/// A plan of the faked runs, with further lines.
fn plan(more: &str) -> String {
    format!(
        "name = \"network-tax\"\nrepetitions = 8\n[[workload]]\nkind = \"http-rate\"\nclients = 8\n{more}"
    )
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
fn a_gate_on_cost_is_undecided_where_nothing_shows_how_runs_scatter() {
    for (blocks, canary) in [(8, None), (1, Some(1.0))] {
        let work = runs_with(blocks, canary);
        let (code, out, _) = gated(work.path(), "cost", "cpu.per_work > +5%");
        assert_eq!(code, Some(3), "{out}");
        let why = "scatter between runs is not in";
        assert!(out.contains(why), "{out}");
        let words = ["compare", "base", "new", "--json"];
        let (_, out, _) = ended(work.path(), &words);
        assert!(out.contains("\"between_runs\": \"unknown\""), "{out}");
    }
    let work = runs_with(8, None);
    let (code, out, _) = gated(work.path(), "tax", "cpu.per_work > +5%");
    assert_eq!(code, Some(4), "a tax has no scatter between runs: {out}");
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
fn a_cost_is_not_gated_across_processors_and_kernels_and_a_tax_goes_on_and_says_it() {
    let work = runs(8);
    // A record of another machine may write to no terminal.
    for (run, model, kernel) in [("base", "EPYC", "6.18"), ("new", "Atom", "5.10")] {
        let host = serde_json::json!({ "boot_id": run, "kernel": kernel, "cpu": { "model": model },
            "clock_source": format!("\u{1b}]0;{run}\u{7}") });
        fs::write(work.path().join(run).join("host.json"), host.to_string()).unwrap();
    }
    let (code, out, err) = gated(work.path(), "cost", "cpu.per_work > +100%");
    assert_eq!(code, Some(2), "{out}{err}");
    let why = "the hosts differ: processor: EPYC and Atom, kernel: 6.18 and 5.10";
    assert!(err.contains(why) && err.contains("--across-hosts"), "{err}");
    let words = [
        "compare",
        "base",
        "new",
        "--across-hosts",
        "--fail-on",
        "cpu.per_work > +100%",
    ];
    let (code, out, err) = ended(work.path(), &words);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(
        out.contains("The hosts of A and B differ: processor: EPYC and Atom"),
        "{out}"
    );
    let (code, compared, _) = gated(work.path(), "tax", "cpu.per_work > +100%");
    assert_eq!(code, Some(0), "{compared}");
    assert!(
        compared.contains("The hosts of A and B differ: processor: EPYC and Atom"),
        "{compared}"
    );
    // A history of costs is refused too.
    let words = |of| {
        [
            "history",
            "base",
            "new",
            "--of",
            of,
            "--fail-on",
            "cpu.per_work > +100%",
        ]
    };
    let (code, out, err) = ended(work.path(), &words("cost"));
    assert_eq!(code, Some(2), "{out}{err}");
    let (code, history, err) = ended(work.path(), &words("tax"));
    assert_eq!(code, Some(3), "{history}{err}");
    assert!(
        history.contains("The host of the last run differs"),
        "{history}"
    );
    for out in [compared, history] {
        assert!(
            out.contains("clock source") && !out.contains('\u{1b}'),
            "{out:?}"
        );
    }
}

#[test]
fn a_treatment_that_lacks_the_gated_metric_is_undecided_and_not_left_out() {
    let work = runs(8);
    for trial in fs::read_dir(work.path().join("new/trials")).unwrap() {
        let path = trial.unwrap().path().join("trial.json");
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        if record["treatment"]["label"] == "qemu · http-rate" {
            record["metrics"]
                .as_object_mut()
                .unwrap()
                .remove("cpu.per_work");
            fs::write(&path, record.to_string()).unwrap();
        }
    }
    for of in ["cost", "tax"] {
        let (code, out, err) = gated(work.path(), of, "cpu.per_work > +100%");
        assert_eq!(code, Some(3), "{out}{err}");
        let line =
            "undecided  cpu.per_work > +100%  qemu · http-rate: one of the runs lacks the metric";
        assert!(out.contains(line), "{of}: {out}");
    }
    // A metric that is known, and that neither run has.
    let (code, out, err) = gated(work.path(), "cost", "boot.last > +5%");
    assert_eq!(code, Some(3), "{out}{err}");
}

#[test]
fn an_accepted_run_is_kept_with_who_and_why() {
    let work = runs(4);
    let words = [
        "history",
        "base",
        "new",
        "--accept",
        "new",
        "--why",
        "a safer cipher",
    ];
    let (code, out, err) = ended(
        work.path(),
        &[&words[..], &["--fail-on", "cpu.per_work > +5%"]].concat(),
    );
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains(": a safer cipher"), "{out}");
    let file = fs::read(work.path().join("new/accepted.json")).unwrap();
    let accepted: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(accepted["why"], "a safer cipher");
    assert!(!accepted["by"].as_str().unwrap().is_empty());
    for (words, expected) in [
        (&["history", "base", "new", "--accept", "new"][..], 2),
        (
            &["history", "base", "new", "--accept", "other", "--why", "x"],
            1,
        ),
        (
            &["history", "base", "new", "--accept", "new", "--why", " "],
            1,
        ),
    ] {
        assert_eq!(ended(work.path(), words).0, Some(expected), "{words:?}");
    }
}

#[test]
fn the_gates_of_a_plan_are_judged_where_no_other_is_given() {
    let work = runs(8);
    let gate = |limit: &str, more: &str| {
        let gate = format!("[[gate]]\nmetric = \"cpu.per_work\"\nlimit = \"{limit}\"\n{more}");
        set_plan(&work.path().join("new"), &plan(&gate));
        ended(work.path(), &["compare", "base", "new"])
    };
    let (code, out, err) = gate("> +5%", "platform = \"qemu\"");
    assert_eq!(code, Some(4), "{out}{err}");
    let line = "missed     cpu.per_work of qemu > +5%  qemu · http-rate: ";
    assert!(out.contains(line), "{out}");
    for (limit, more, expected) in [
        ("> +100%", "of = \"cost\"", 0),
        (
            "> +5%",
            "treatment = \"qemu · http-rate\"\nof = \"cost\"",
            4,
        ),
        // The cost of bare metal is the same in both, and it has no tax.
        ("> +40%", "platform = \"native\"\nof = \"cost\"", 0),
        ("> 2x", "", 4),
        ("> 100x", "", 0),
        ("< 100x", "", 4),
    ] {
        let (code, out, err) = gate(limit, more);
        assert_eq!(code, Some(expected), "{limit} {more}: {out}{err}");
    }
    let words = [
        "compare",
        "base",
        "new",
        "--fail-on",
        "cpu.per_work > +100%",
    ];
    gate("> +5%", "");
    let (code, out, _) = ended(work.path(), &words);
    assert_eq!(
        code,
        Some(0),
        "gates of the command line replace them: {out}"
    );
}

#[test]
fn a_plan_whose_gates_cannot_be_read_is_no_plan_without_gates() {
    let work = runs(4);
    for broken in [
        "name = ",
        &plan("[[gate]]\nmetric = \"cpu.per_work\"\nlimit = \"5\"\n"),
    ] {
        set_plan(&work.path().join("new"), broken);
        let (code, _, err) = ended(work.path(), &["compare", "base", "new"]);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("the gates of new"), "{err}");
        let (code, ..) = gated(work.path(), "tax", "cpu.per_work > +1000%");
        assert_eq!(code, Some(0));
    }
}

#[test]
fn runs_of_different_plans_are_compared_with_their_differing_keys_and_not_gated_on_another_workload()
 {
    let work = runs(8);
    let other = plan("").replace("repetitions = 8", "repetitions = 9 # more");
    set_plan(&work.path().join("new"), &other);
    let (code, out, _) = gated(work.path(), "tax", "cpu.per_work > +100%");
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.contains("The plans of A and B differ: repetitions."),
        "{out}"
    );
    set_plan(
        &work.path().join("new"),
        &plan("[settings]\nlink.mtu = 9000").replace("clients = 8", "clients = 80"),
    );
    let (code, out, _) = ended(work.path(), &["compare", "base", "new"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.contains("differ: settings.link.mtu, workload[http-rate].clients."),
        "{out}"
    );
    let (code, _, err) = gated(work.path(), "tax", "cpu.per_work > +100%");
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("`http-rate`") && err.contains("workload[http-rate].clients"),
        "{err}"
    );
    // The other workloads are the same, and a limit for the tax itself needs no base run.
    for gate in [
        "cpu.per_work of qemu · cpu-control > +1000%",
        "cpu.per_work > 100x",
    ] {
        let (code, _, err) = gated(work.path(), "tax", gate);
        assert_eq!(code, Some(0), "{gate}: {err}");
    }
}

#[test]
fn gates_of_several_runs_name_the_run_that_each_is_about() {
    let work = runs(8);
    let words = [
        "compare",
        "base",
        "new",
        "base",
        "--of",
        "tax",
        "--fail-on",
        "cpu.per_work of qemu > +20%",
    ];
    let (code, out, err) = ended(work.path(), &words);
    assert_eq!(code, Some(4), "{out}{err}");
    assert!(
        out.contains("missed     B  cpu.per_work of qemu > +20%  qemu"),
        "{out}"
    );
    assert!(
        out.contains("passed     C  cpu.per_work of qemu > +20%  qemu"),
        "{out}"
    );
    let (_, out, _) = ended(work.path(), &[&words[..], &["--format", "md"]].concat());
    assert!(
        out.contains("| cpu.per\\_work of qemu &gt; +20% |") || out.contains("| new ("),
        "{out}"
    );
}

#[test(needs = [test_all("takes 10 s"), can_run_trials()])]
fn a_run_of_a_plan_is_judged_by_the_gates_that_need_no_base_run() {
    let work = tempfile::tempdir().unwrap();
    let _host = the_host();
    let plan = |limit: &str| {
        format!(
            "name = \"gated\"\nrepetitions = 4\nagain = {{ share = 0 }}\nmeters = [\"none\"]\n\
             [[platform]]\nkind = \"native\"\n[[platform]]\nkind = \"container\"\n[[workload]]\nkind = \"command\"\n\
             load = \"sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'\"\n\
             [[gate]]\nmetric = \"elapsed\"\nlimit = \"{limit}\"\n\
             [[gate]]\nmetric = \"elapsed\"\nlimit = \"> +5%\"\n"
        )
    };
    for (name, limit, expected) in [("loose", "> 1000x", 0), ("strict", "> 0.001x", 4)] {
        set_plan(work.path(), &plan(limit));
        let results = format!("--results={name}");
        let (code, out, err) = ended(work.path(), &["run", "plan.toml", &results]);
        // On a busy host every trial may be suspect.
        if err.contains("counts; the report gives the reason") {
            assert_eq!(code, Some(3), "{out}{err}");
            continue;
        }
        assert!(
            out.contains(&format!("elapsed {limit}  container")),
            "{out}{err}"
        );
        if !out.contains("undecided") {
            assert_eq!(code, Some(expected), "{out}{err}");
        }
        // A part of a run is not judged.
        let part = ["run", "plan.toml", "--results=part", "--shard=1/2"];
        let (code, out, err) = ended(work.path(), &part);
        assert_eq!(code, Some(0), "{out}{err}");
        fs::remove_dir_all(work.path().join("part")).unwrap();
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
    let page = include_str!("../../../../docs/howto/gates.md");
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
    assert!(rows.lines().count() > 3 && columns >= 20, "{rows}");
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

/// The shell commands of a pipeline's file that compare runs.
fn comparisons(pipeline: &str) -> Vec<&str> {
    let lines = pipeline.lines().map(str::trim_start);
    let commands = lines.filter_map(|line| {
        line.strip_prefix("- run: ")
            .or_else(|| line.strip_prefix("- "))
    });
    commands
        .filter_map(|command| Some(&command[command.find("vtax compare ")? + "vtax ".len()..]))
        .collect()
}

#[test]
fn the_pipeline_of_this_repository_fails_for_a_missed_gate_and_leaves_a_summary() {
    let workflow = include_str!("../../../../.github/workflows/cost.yml");
    let plan_gates = include_str!("../../../../plans/cost.toml");
    let gates = plan_gates.split_once("[[gate]]").unwrap().1;
    let own = comparisons(workflow);
    assert_eq!(own.len(), 1, "{own:?}");
    for line in own {
        let work = runs(8);
        set_plan(&work.path().join("new"), &plan(&format!("[[gate]]{gates}")));
        let script = format!("ln -s . results; exec \"$VTAX\" {line}");
        let ended = std::process::Command::new("sh")
            .args(["-ec", &script])
            .env("VTAX", env!("CARGO_BIN_EXE_vtax"))
            .env("VTAX_STATE_DIR", work.path().join("state"))
            .env("GITHUB_STEP_SUMMARY", work.path().join("cost.md"))
            .current_dir(work.path())
            .output()
            .unwrap();
        assert_eq!(ended.status.code(), Some(4), "{line}: {ended:?}");
        let summary = fs::read_to_string(work.path().join("cost.md")).unwrap();
        assert!(summary.contains("| missed |"), "{summary}");
        assert!(summary.contains("| qemu · http-rate |"), "{summary}");
        // Tables need a blank line before them, and as many cells in each row as in the heading.
        let mut table: Option<usize> = None;
        let mut before = "";
        for row in summary.lines() {
            let cells = row.replace("\\|", "").matches('|').count();
            match (row.starts_with('|'), table) {
                (true, Some(wanted)) => assert_eq!(cells, wanted, "{row}"),
                (true, None) => {
                    assert_eq!(before, "", "{summary}");
                    table = Some(cells);
                }
                (false, _) => table = None,
            }
            before = row;
        }
    }
}
