// SPDX-License-Identifier: Apache-2.0
//! Tests of every form of report, from a results directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use vtax_core::{Quantity, Source};
use vtax_report::analysis::{
    Analysis, Certainty, Comparison, analyse, analyse_shards, knee_in_words,
};
use vtax_report::html::{Provenance, render, write_report};
use vtax_report::results::{Aside, ResultsDir, ResultsError, Stage, Trial};
use vtax_report::stats::{SteadyState, Verdict};
use vtax_report::{compare, export, figures, terminal};
use vtax_testkit::results::{Fake, ramp};

fn run(fake: &Fake) -> (tempfile::TempDir, ResultsDir, Analysis) {
    let folder = tempfile::tempdir().unwrap();
    let results = fake.write(&folder.path().join("run"));
    let analysis = analyse(&results).unwrap();
    (folder, results, analysis)
}

fn page(results: &ResultsDir, analysis: &Analysis) -> String {
    render(analysis, &Provenance::of(results))
}

/// Writes a report for inspection to the build's temporary directory.
fn keep(fake: &Fake, name: &str) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    let results = fake.write(&path);
    let report = write_report(&results, &analyse(&results).unwrap()).unwrap();
    eprintln!("a report to look at: {}", report.display());
}

#[test]
fn the_summary_says_in_plain_words_what_a_vm_costs() {
    let (_folder, _, analysis) = run(&Fake::default());
    let texts: Vec<&str> = analysis
        .sentences
        .iter()
        .map(|sentence| sentence.text.as_str())
        .collect();
    let start = "A VM (QEMU, TCG emulation) costs 3.09× [";
    let vm = texts
        .iter()
        .find(|text| text.starts_with(start))
        .unwrap_or_else(|| panic!("{texts:#?}"));
    assert!(
        vm.contains("] the CPU of bare metal to receive 1 GB (n = 5 pairs, emulated)."),
        "{vm}"
    );
    assert!(texts.iter().any(|text| text.starts_with(
        "A container against bare metal: no difference shown in CPU to receive 1 GB ("
    )));
    assert!(
        texts
            .iter()
            .any(|text| text.contains("to receive 1 GB") && text.contains("modelled"))
    );
    assert!(texts.iter().any(|text| {
        text.contains("no difference shown in CPU to compute one operation") && text.contains("VM")
    }));
}

#[test]
fn a_lost_trial_costs_its_pair_and_no_verdict() {
    let (_folder, _, analysis) = run(&Fake::default());
    let http = analysis
        .comparisons
        .iter()
        .find(|c| c.workload == "http-rate" && c.platform == "qemu" && c.metric == "cpu.per_work")
        .unwrap();
    let tax = http.tax.unwrap();
    assert_eq!(
        (tax.n, tax.paired, http.judgement.verdict),
        (4, true, Verdict::Different)
    );
    assert!(http.note.as_deref().unwrap().contains("without a partner"));
}

#[test]
fn identical_treatments_come_out_as_no_difference() {
    let fake = Fake {
        platforms: vec!["native", "container"],
        blocks: 8,
        trouble: false,
        ..Fake::default()
    };
    let (_folder, _, analysis) = run(&fake);
    assert!(analysis.comparisons.len() > 10);
    let claimed: Vec<_> = analysis
        .comparisons
        .iter()
        .filter(|c| c.judgement.verdict == Verdict::Different)
        .collect();
    assert!(claimed.is_empty(), "{claimed:#?}");
    assert!(
        analysis
            .sentences
            .iter()
            .all(|sentence| sentence.text.contains("no difference shown"))
    );
}

#[test]
fn suspect_and_failed_trials_are_counted_listed_and_left_out() {
    let (_folder, results, analysis) = run(&Fake::default());
    assert_eq!(
        (
            analysis.counts.planned,
            analysis.counts.counted,
            analysis.counts.suspect,
            analysis.counts.failed
        ),
        (45, 43, 1, 1)
    );
    let suspect = results.trial(4).unwrap();
    let summary = analysis
        .treatments
        .iter()
        .find(|s| s.treatment == suspect.treatment)
        .unwrap();
    assert_eq!(summary.counts.suspect, 1);
    assert!(
        summary
            .metrics
            .iter()
            .all(|metric| metric.values.iter().all(|(index, _)| *index != 4))
    );
    let html = page(&results, &analysis);
    assert!(
        html.contains("foreign load: 0.31 cores outside the cell")
            && html.contains("did not answer within 20 s")
    );
    assert!(terminal::table(&analysis, 80, false).contains("trial 0004 is suspect: foreign load"));
}

#[test]
fn every_number_that_is_not_measured_carries_its_flag() {
    let (_folder, results, analysis) = run(&Fake::default());
    for summary in &analysis.treatments {
        for metric in &summary.metrics {
            let vm = summary.treatment.platform == "qemu";
            let energy = metric.name.starts_with("energy") || metric.name.starts_with("power");
            let expected = if vm {
                Source::Emulated
            } else if energy {
                Source::Modelled
            } else {
                Source::Measured
            };
            assert_eq!(
                metric.source, expected,
                "{} of {}",
                metric.name, summary.treatment.label
            );
        }
    }
    assert_eq!(analysis.source, Some(Source::Emulated));
    let html = page(&results, &analysis);
    assert!(
        html.contains("<b>Emulated.</b>") && html.contains("<span class=\"badge\">modelled</span>")
    );
    let table = terminal::table(&analysis, 80, false);
    assert!(table.contains("e = emulated:") && table.contains("m = modelled:"));
}

#[test]
fn the_table_fits_its_width_and_says_none_shown_without_claiming_equality() {
    let (_folder, _, analysis) = run(&Fake::default());
    for width in [80, 100, 120] {
        let table = terminal::table(&analysis, width, false);
        let widest = table
            .lines()
            .map(|line| line.chars().count())
            .max()
            .unwrap();
        assert!(widest <= width, "{widest} columns of {width}:\n{table}");
        assert!(!table.contains('\x1b'));
    }
    let table = terminal::table(&analysis, 80, true);
    assert!(table.contains('\x1b') && table.contains("none shown") && table.contains("baseline"));
}

#[test]
fn a_quick_run_is_marked_everywhere() {
    let fake = Fake {
        profile: "quick",
        ..Fake::default()
    };
    let (_folder, results, analysis) = run(&fake);
    assert!(page(&results, &analysis).contains("Quick profile."));
    assert!(terminal::table(&analysis, 80, false).contains("Quick profile"));
    keep(&fake, "report-quick");
}

#[test]
fn the_report_is_one_file_that_asks_for_nothing_else() {
    let (_folder, results, analysis) = run(&Fake::default());
    let path = write_report(&results, &analysis).unwrap();
    let html = fs::read_to_string(path).unwrap();
    for request in [
        "src=\"",
        "src='",
        "@import",
        "url(",
        "<link rel=\"stylesheet",
        "sourceMappingURL=",
        "<iframe",
        "<img",
    ] {
        // Only the page itself is checked; the inlined libraries may contain these words.
        let page = html.split("<script>").next().unwrap();
        assert!(!page.contains(request), "the page contains {request}");
    }
    assert!(!html.contains("//# sourceMappingURL"));
    assert!(
        html.contains("prefers-color-scheme: dark")
            && html.contains("@media print")
            && html.contains("width=device-width")
    );
    assert_eq!(html.matches("</script>").count(), 5);
    let analysis: serde_json::Value =
        serde_json::from_slice(&fs::read(results.path().join("analysis.json")).unwrap()).unwrap();
    assert_eq!(analysis["counts"]["planned"], 45);
    let specs: Vec<_> = fs::read_dir(results.path().join("figures"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(specs.len() > 10);
    for spec in specs {
        let spec: serde_json::Value = serde_json::from_slice(&fs::read(spec).unwrap()).unwrap();
        assert!(spec["$schema"].as_str().unwrap().contains("vega-lite") && spec["width"] == 640);
    }
}

#[test]
fn the_summary_comes_before_figures_tables_and_provenance() {
    let (_folder, results, analysis) = run(&Fake::default());
    let html = page(&results, &analysis);
    let places: Vec<usize> = [
        "<h1>",
        "id=\"summary\"",
        "id=\"figures\"",
        "id=\"tables\"",
        "id=\"provenance\"",
    ]
    .iter()
    .map(|part| html.find(part).unwrap())
    .collect();
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn hostile_text_is_shown_and_never_run() {
    let spice =
        "</script><script>alert(1)</script>\n\"'&<img src=x onerror=alert(1)>\u{2028}\u{0}\x1b[31m";
    let (_folder, results, analysis) = run(&Fake {
        spice,
        ..Fake::default()
    });
    let html = page(&results, &analysis);
    assert_eq!(
        html.matches("</script>").count(),
        5,
        "a label closed a script"
    );
    assert!(!html.contains("<script>alert(1)") && !html.contains("<img src=x"));
    assert!(!html.contains('\u{0}') && !html.contains('\x1b'));
    assert!(html.contains("&lt;/script&gt;&lt;script&gt;alert(1)"));
    let data = html
        .split("id=\"figures-data\">")
        .nth(1)
        .unwrap()
        .split("</script>")
        .next()
        .unwrap();
    let figures: serde_json::Value = serde_json::from_str(data).unwrap();
    assert!(
        figures.to_string().contains("</script><script>alert(1)"),
        "the label is data in the figures"
    );
    let table = terminal::table(&analysis, 80, false);
    assert!(!table.contains('\x1b') && !table.contains('\u{0}'));
}

#[test(needs = [test_all("takes 5 s")])]
fn factors_become_the_axis_of_figures_and_conditions_of_sentences() {
    let fake = Fake {
        mtu: vec![1500, 4000, 9000],
        ..Fake::default()
    };
    let (_folder, _, analysis) = run(&fake);
    assert_eq!(analysis.factors["link.mtu"], ["1500", "4000", "9000"]);
    let sweep = figures::figures(&analysis)
        .into_iter()
        .find(|f| f.title == "iperf3-receive: CPU time per GB received against link.mtu")
        .unwrap();
    assert_eq!(sweep.spec["layer"][0]["encoding"]["x"]["field"], "level");
    assert!(
        analysis
            .sentences
            .iter()
            .any(|s| s.text.contains("to receive 1 GB, at link.mtu = 9000 ("))
    );
    assert!(
        analysis
            .treatments
            .iter()
            .any(|summary| summary.short == "qemu mtu=9000")
    );
    keep(&fake, "report-factors");
}

#[test]
fn a_factor_of_numbers_is_the_axis_and_words_tell_its_curves_apart() {
    let (_scratch, _, mut analysis) = run(&Fake {
        mtu: vec![1500, 9000],
        ..Fake::default()
    });
    // One platform in three modes instead of three platforms.
    let modes = ["native", "container", "qemu"];
    for summary in &mut analysis.treatments {
        let mode = std::mem::replace(&mut summary.treatment.platform, "qemu".to_owned());
        summary
            .treatment
            .factors
            .insert("nic.mode".to_owned(), mode);
    }
    let levels = modes.iter().map(|mode| (*mode).to_owned()).collect();
    analysis.factors.insert("nic.mode".to_owned(), levels);
    let figures = figures::figures(&analysis);
    assert!(!figures.iter().any(|f| f.title.contains("against nic.mode")));
    let sweep = figures
        .iter()
        .find(|f| f.title == "iperf3-receive: CPU time per GB received against link.mtu")
        .unwrap();
    let color = &sweep.spec["layer"][0]["encoding"]["color"];
    let names: Vec<String> = modes
        .iter()
        .map(|mode| format!("nic.mode = {mode}"))
        .collect();
    assert_eq!(color["field"], "curve");
    assert_eq!(color["scale"]["domain"], serde_json::json!(names));
    let colors = color["scale"]["range"].as_array().unwrap();
    assert!(colors[0] != colors[1] && colors[1] != colors[2]);
}

#[test]
fn a_slow_start_of_every_trial_is_seen() {
    let (_folder, _, analysis) = run(&Fake {
        seconds: 40,
        ..Fake::default()
    });
    let steady = |platform: &str| {
        let summary = analysis
            .treatments
            .iter()
            .find(|s| s.treatment.platform == platform && s.treatment.workload == "cpu-control")
            .unwrap();
        summary.steady["CPU"]
    };
    assert_eq!(steady("native"), SteadyState::Flat);
    assert_eq!(steady("qemu"), SteadyState::WarmUp);
    // The words describe the target; the series are its host's, which sends the bytes that the target receives.
    let receives = analysis
        .treatments
        .iter()
        .find(|it| it.treatment.workload == "iperf3-receive");
    let steady = &receives.unwrap().steady;
    assert!(
        steady.contains_key("received") && !steady.contains_key("sent"),
        "{steady:?}"
    );
}

#[test]
fn an_unfinished_run_is_reported_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake {
        trouble: false,
        ..Fake::default()
    };
    let results = fake.create(&folder.path().join("run"));
    let empty = analyse(&results).unwrap();
    assert_eq!(empty.counts.pending, 45);
    assert!(page(&results, &empty).contains("45 trials were not run yet"));
    assert!(terminal::table(&empty, 80, false).contains("no trial that counts"));
    for index in 0..9 {
        fake.write_trial(&results, index);
    }
    let some = analyse(&results).unwrap();
    assert_eq!(some.counts.pending, 36);
    assert!(some.comparisons.iter().all(|c| matches!(
        c.judgement.verdict,
        Verdict::TooFewTrials | Verdict::NoRatio
    )));
    assert!(
        some.sentences
            .iter()
            .any(|s| s.text.contains("too few trials")),
        "{:#?}",
        some.sentences
    );
    assert!(page(&results, &some).contains("36 trials were not run yet"));
}

#[test]
fn incomplete_blocks_are_compared_without_pairing_and_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake {
        blocks: 8,
        trouble: false,
        ..Fake::default()
    };
    let results = fake.create(&folder.path().join("run"));
    let run = results.run().clone();
    for index in results.pending() {
        let entry = &run.schedule[index as usize];
        // Bare metal has the even blocks, everything else the odd ones and block 0.
        let even = entry.block.is_multiple_of(2);
        if (run.treatments[entry.treatment].platform == "native") == even || entry.block == 0 {
            fake.write_trial(&results, index);
        }
    }
    let analysis = analyse(&results).unwrap();
    let vm = analysis
        .comparisons
        .iter()
        .find(|c| c.platform == "qemu" && c.metric == "cpu.per_work")
        .unwrap();
    assert!(!vm.tax.unwrap().paired && vm.note.as_deref().unwrap().contains("without pairing"));
    assert_eq!(vm.judgement.verdict, Verdict::Different);
    assert!(
        analysis
            .sentences
            .iter()
            .any(|s| s.text.contains("unpaired"))
    );
}

#[test]
fn damaged_files_are_listed_and_the_rest_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let results = Fake::default().write(&folder.path().join("run"));
    fs::write(results.trial_path(0).join("trial.json"), "{").unwrap();
    fs::write(results.trial_path(1).join("samples.parquet"), "not parquet").unwrap();
    fs::remove_file(results.trial_path(2).join("samples.parquet")).unwrap();
    let analysis = analyse(&results).unwrap();
    assert_eq!(
        (analysis.counts.counted, analysis.counts.unreadable),
        (42, 2)
    );
    assert!(page(&results, &analysis).contains("trials/0000/trial.json is corrupted"));
}

#[test]
fn shards_are_read_together_and_strangers_refused() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let shards: Vec<ResultsDir> = ["a", "b"]
        .iter()
        .map(|name| fake.create(&folder.path().join(name)))
        .collect();
    for index in shards[0].pending() {
        fake.write_trial(&shards[index as usize % 2], index);
    }
    let together = analyse_shards(&[&shards[0], &shards[1]]).unwrap();
    assert_eq!((together.counts.counted, together.counts.pending), (43, 0));
    let stranger = Fake {
        blocks: 2,
        ..Fake::default()
    }
    .create(&folder.path().join("stranger"));
    assert!(matches!(
        analyse_shards(&[&shards[0], &stranger]),
        Err(ResultsError::NotOneRun { .. })
    ));
}

#[test]
fn any_number_of_runs_are_compared_with_the_first_by_label() {
    let (_one, _, before) = run(&Fake {
        trouble: false,
        ..Fake::default()
    });
    let (_two, _, after) = run(&Fake {
        trouble: false,
        vm_cost: 2.0,
        ..Fake::default()
    });
    let (_three, _, less) = run(&Fake {
        platforms: vec!["native", "container"],
        ..Fake::default()
    });
    let comparison = compare::compare(&before, &[&before, &after, &less]);
    let [same, changed, fewer] = comparison.others.as_slice() else {
        panic!("three runs against one: {comparison:?}");
    };
    assert!(
        same.comparisons
            .iter()
            .all(|c| c.judgement.verdict != Verdict::Different)
    );
    let vm = changed
        .comparisons
        .iter()
        .find(|c| c.platform == "qemu" && c.metric == "cpu.per_work")
        .unwrap();
    assert_eq!(vm.judgement.verdict, Verdict::Different);
    assert!((vm.tax.unwrap().ratio - 2.0 / 3.1).abs() < 0.05);
    assert!(
        changed
            .comparisons
            .iter()
            .filter(|c| c.platform == "native")
            .all(|c| c.judgement.verdict != Verdict::Different)
    );
    assert_eq!((fewer.only_first.len(), fewer.only_here.len()), (3, 0));
    for width in [80, 120] {
        let table = compare::table(&comparison, width);
        assert!(table.contains("not in D: qemu · iperf3-receive"), "{table}");
        assert!(table.contains("were not interleaved"));
        for column in ["B / A", "C / A", "D / A"] {
            assert!(table.contains(column), "{table}");
        }
        let beside = table.lines().find(|line| line.contains("B / A")).unwrap();
        assert!(beside.contains("C / A") && beside.contains("D / A") == (width == 120));
        let vm = "    cpu.per_work          1.00×";
        assert!(table.contains(vm) && table.contains("] *"), "{table}");
        let mut lines = table.lines().filter(|line| !line.contains("not in"));
        assert!(
            lines.all(|line| line.chars().count() <= width),
            "{width}:\n{table}"
        );
    }
    assert!(
        serde_json::to_string(&comparison)
            .unwrap()
            .contains("\"verdict\":\"different\"")
    );
}

#[test]
fn exports_hold_every_trial_and_metric() {
    let (folder, results, _) = run(&Fake {
        spice: ",\"x\"\n",
        ..Fake::default()
    });
    let mut csv = Vec::new();
    assert!(export::csv(&results, &mut csv).unwrap().is_empty());
    let text = String::from_utf8(csv).unwrap();
    assert!(text.starts_with("trial,block,treatment,platform,workload,"));
    let metrics: usize = results
        .trials()
        .map(|trial| trial.unwrap().metrics.len())
        .sum();
    // The spice puts a line break into the label of every row, and one more into two reasons.
    assert!(text.contains("\"native · iperf3-receive,\"\"x\"\"\n\""));
    assert_eq!(
        text.matches("\n").count() - 1 - text.matches("\"x\"\"\n").count(),
        metrics
    );
    let parquet = folder.path().join("trials.parquet");
    assert!(export::parquet(&results, &parquet).unwrap().is_empty());
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let reader = SerializedFileReader::new(fs::File::open(&parquet).unwrap()).unwrap();
    assert_eq!(
        reader.metadata().file_metadata().num_rows() as usize,
        metrics
    );
    let mut samples = Vec::new();
    assert!(
        export::csv_samples(&results, &mut samples)
            .unwrap()
            .is_empty()
    );
    let rows: u64 = results
        .trial_indexes()
        .into_iter()
        .map(|index| results.samples(index).unwrap().rows())
        .sum();
    assert_eq!(
        samples.iter().filter(|byte| **byte == b'\n').count() as u64,
        rows + 1
    );
}

#[test]
fn an_exported_trial_that_was_disturbed_is_marked_and_counts() {
    let (_folder, results, _) = run(&Fake::default());
    let mut trial = results.trial(0).unwrap();
    trial.disturbed = vec!["other programs used 9 %".to_owned()];
    results.rewrite_trial(&trial).unwrap();
    let mut csv = Vec::new();
    assert!(export::csv(&results, &mut csv).unwrap().is_empty());
    let text = String::from_utf8(csv).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let disturbed = names.iter().position(|name| *name == "disturbed").unwrap();
    let counts = names.iter().position(|name| *name == "counts").unwrap();
    for row in lines {
        let cells: Vec<&str> = row.split(',').collect();
        let marked = cells[disturbed] == "other programs used 9 %";
        assert_eq!(marked, cells[0] == "0", "{row}");
        assert!(!marked || cells[counts] == "true", "{row}");
    }
}

/// The source of an emulated guest's joules is worse than `modelled`, and both facts are shown.
#[test]
fn modelled_joules_of_an_emulated_guest_show_both_flags_and_the_model() {
    let words = "mine, of 2026-03-01, fitted to wall (off by 0.8 W typically, 2.1 W at worst)";
    let (folder, results, _) = run(&Fake::default());
    for index in results.trial_indexes() {
        let path = results.path().join(format!("trials/{index:04}/trial.json"));
        let mut trial: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        trial["environment"]["power_model"] = words.into();
        trial["environment"]["power_model.name"] = "mine".into();
        let metric = &mut trial["metrics"]["energy.per_work"];
        if metric.is_object() {
            metric["source"] = "emulated".into();
            metric["model"] = "mine".into();
        }
        fs::write(&path, trial.to_string()).unwrap();
    }
    let mut csv = Vec::new();
    export::csv(&results, &mut csv).unwrap();
    let text = String::from_utf8(csv).unwrap();
    let mut rows = text.lines().filter(|row| row.contains(",energy.per_work,"));
    assert!(rows.all(|row| row.contains(&format!(",emulated,lower,\"{words}\","))));
    let others = text.lines().filter(|row| row.contains(",cpu.per_work,"));
    assert!(others.filter(|row| row.contains("lower,,")).count() > 0);
    let analysis = analyse(&results).unwrap();
    let table = terminal::table(&analysis, 200, false);
    assert!(table.contains("energy is modelled by mine"), "{table}");
    assert!(table.contains("E = emulated and modelled"), "{table}");
    let report = fs::read_to_string(write_report(&results, &analysis).unwrap()).unwrap();
    let both = "<span class=\"badge\">emulated</span><span class=\"badge\">modelled</span>";
    assert!(report.contains(both) && report.contains(words));
    drop(folder);
}

#[test]
fn an_analysis_of_the_same_data_is_the_same() {
    let (_folder, results, analysis) = run(&Fake {
        blocks: 3,
        ..Fake::default()
    });
    let again = analyse(&results).unwrap();
    assert_eq!(
        serde_json::to_string(&analysis).unwrap(),
        serde_json::to_string(&again).unwrap()
    );
}

fn figure<'a>(figures: &'a [figures::Figure], title: &str) -> &'a figures::Figure {
    let found = figures.iter().find(|figure| figure.title.contains(title));
    let titles: Vec<&str> = figures.iter().map(|figure| figure.title.as_str()).collect();
    found.unwrap_or_else(|| panic!("no `{title}` among {titles:#?}"))
}

fn ramp_run() -> (tempfile::TempDir, ResultsDir, Analysis) {
    let folder = tempfile::tempdir().unwrap();
    let results = ramp::write(&folder.path().join("run"));
    let analysis = analyse(&results).unwrap();
    (folder, results, analysis)
}

#[test]
fn the_cpu_figure_shows_the_stages_that_the_lab_writes_in_cores() {
    let (_folder, _, analysis) = run(&Fake::default());
    let figures = figures::figures(&analysis);
    let spec = &figure(&figures, "iperf3-receive: where the CPU time goes").spec;
    let names = spec["encoding"]["color"]["scale"]["domain"].clone();
    let shown = [
        Stage::Service,
        Stage::Vcpu,
        Stage::Emulator,
        Stage::Vhost,
        Stage::Softirq,
        Stage::Client,
        Stage::Observer,
        Stage::Rest,
    ];
    assert_eq!(names, serde_json::json!(shown.map(Stage::words)));
    let colors = &spec["encoding"]["color"]["scale"]["range"];
    assert_eq!(*colors, serde_json::json!(shown.map(Stage::color)));
    assert_eq!(spec["encoding"]["x"]["title"], "mean cores busy");
}

#[test]
fn joules_of_an_emulated_guest_are_emulated_and_modelled_wherever_they_are_shown() {
    let (_folder, results, analysis) = run(&Fake::default());
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        if trial.treatment.platform == "qemu" {
            let metrics = trial.metrics.values_mut();
            metrics.for_each(|metric| metric.source = vtax_core::Source::Emulated);
            results.rewrite_trial(&trial).unwrap();
        }
    }
    drop(analysis);
    let analysis = analyse(&results).unwrap();
    let both = "emulated, modelled";
    let figures = figures::figures(&analysis);
    let tax = figure(&figures, "The tax of each platform")
        .spec
        .to_string();
    assert!(tax.contains(&format!("\"source\":\"{both}\"")), "{tax}");
    let text = tax
        .split("\"text\":\"")
        .find(|text| text.contains(&format!(" {both}\"")));
    assert!(text.is_some(), "{tax}");
    let dots = figures
        .iter()
        .filter(|figure| figure.title.starts_with("iperf3-receive"));
    let is_energy = |figure: &&figures::Figure| figure.title.to_lowercase().contains("energy");
    for figure in dots.filter(is_energy) {
        let spec = figure.spec.to_string();
        assert!(spec.contains(&format!(" {both}\"")), "{spec}");
    }
    let sentences = analysis
        .sentences
        .iter()
        .map(|sentence| sentence.text.as_str());
    let joules: Vec<&str> = sentences.filter(|text| text.contains("energy")).collect();
    assert!(joules.iter().any(|text| text.contains(both)), "{joules:#?}");
    let of_compared = analysis.comparisons.iter().map(|row| ("run", row));
    let rows = vtax_report::pipeline::csv(of_compared);
    let column = rows
        .lines()
        .find(|line| line.contains("qemu") && line.contains("energy.per_work"));
    assert!(column.unwrap().contains(",emulated,true,"), "{rows}");
}

#[test]
fn words_and_colours_follow_the_kind_of_a_platform_and_not_its_name() {
    let (_folder, results, _) = run(&Fake {
        trouble: false,
        ..Fake::default()
    });
    // The plan has other names, and two platforms of one kind.
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        let treatment = &mut trial.treatment;
        for (kind, name) in [("qemu", "vm"), ("native", "metal")] {
            if treatment.platform == kind {
                treatment.platform = name.to_owned();
            }
        }
        if treatment.platform == "container" {
            treatment.platform_kind = "qemu".to_owned();
            trial.environment = [("accel".to_owned(), "tcg".to_owned())].into();
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let file = results.path().join("run.json");
    let mut info: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    info["treatments"] = serde_json::json!([]);
    fs::write(&file, info.to_string()).unwrap();
    let analysis = analyse(&ResultsDir::open(results.path()).unwrap()).unwrap();
    let noun = |platform: &str| {
        let mut all = analysis.treatments.iter();
        all.find(|one| one.treatment.platform == platform)
            .unwrap()
            .noun
            .clone()
    };
    assert_eq!(noun("vm"), "a VM (QEMU, TCG emulation) named vm");
    assert_eq!(
        noun("container"),
        "a VM (QEMU, TCG emulation) named container"
    );
    assert_eq!(noun("metal"), "bare metal");
    let figures = figures::figures(&analysis);
    let color = &figure(&figures, "The tax of each platform").spec["layer"][2]["encoding"]["color"];
    let names: Vec<&str> = color["scale"]["domain"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|name| name.as_str())
        .collect();
    let colors = color["scale"]["range"].as_array().unwrap();
    assert_eq!(names.len(), 2);
    assert_ne!(colors[0], colors[1]);
    assert!(colors.contains(&serde_json::json!("#D55E00")), "{colors:?}");
}

#[test]
fn two_trials_never_give_a_negative_time_and_nothing_that_counts_gives_advice() {
    let fake = Fake {
        blocks: 2,
        trouble: false,
        ..Fake::default()
    };
    let (_folder, results, analysis) = run(&fake);
    let intervals = analysis
        .treatments
        .iter()
        .flat_map(|summary| &summary.metrics)
        .filter_map(|metric| metric.interval);
    assert!(intervals.clone().count() > 50);
    for interval in intervals {
        assert!(interval.low >= 0.0, "{interval:?}");
    }
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        trial.suspect = vec![format!("foreign load: 0.{index} cores outside the cell")];
        results.rewrite_trial(&trial).unwrap();
    }
    let nothing = analyse(&results).unwrap();
    assert_eq!(nothing.counts.counted, 0);
    assert!(nothing.comparisons.is_empty() && nothing.sentences.is_empty());
    let mut metrics = nothing.treatments.iter().flat_map(|one| &one.metrics);
    assert!(metrics.all(|metric| metric.interval.is_none()));
    for text in [
        terminal::table(&nothing, 80, false).replace("\n  ", " "),
        page(&results, &nothing),
    ] {
        assert!(
            text.contains("Most often (18 times): foreign load"),
            "{text}"
        );
        assert!(text.contains("--place testbed:kvm") && text.contains("wait until"));
    }
    let table = terminal::table(&nothing, 80, false);
    assert!(!table.contains("s/GB"), "{table}");
}

#[test]
fn a_ramp_shows_its_levels_its_knees_and_what_broke() {
    let (_folder, results, analysis) = ramp_run();
    let alone = &analysis.treatments[0];
    assert_eq!((alone.levels.len(), alone.levels[0].trials), (8, 4));
    let knees: Vec<f64> = analysis
        .treatments
        .iter()
        .map(|one| one.metric("knee").unwrap().description.mean)
        .collect();
    assert!(knees[0] > knees[1] && knees[1] > knees[2], "{knees:?}");
    let figures = figures::figures(&analysis);
    let served = figure(&figures, "http-rate: what was served at each load");
    let layers = served.spec["layer"].as_array().unwrap();
    assert_eq!(layers[0]["mark"]["type"], "rect");
    assert_eq!(layers[1]["data"]["values"].as_array().unwrap().len(), 3);
    assert_eq!(layers[1]["data"]["values"][0]["knee"], knees[0]);
    assert!(
        served.caption.contains("kept latency.p99 <= 20ms (n = 4)")
            && served.caption.contains("broken by latency.p99 = "),
        "{}",
        served.caption
    );
    assert_eq!(served.spec["data"]["values"].as_array().unwrap().len(), 24);
    let latency = figure(&figures, "latency at each load");
    assert_eq!(latency.spec["data"]["values"].as_array().unwrap().len(), 48);
    for title in [
        "errors at each load",
        "99th percentile of latency against what was served",
        "power against what was served",
        "latency by percentile",
        "neighbours=pi: CPU by actor and stage over time",
        "power of the host over time",
    ] {
        figure(&figures, title);
    }
    let power = figure(&figures, "power against what was served");
    assert!(power.caption.contains("modelled"));
    let table = terminal::table(&analysis, 80, false);
    let flat = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("request/s kept latency.p99 <= 20ms (n = 4)"),
        "{table}"
    );
    assert!(table.lines().all(|line| line.chars().count() <= 80));
    assert!(
        flat.contains("A VM (QEMU, KVM) with neighbours = disk+net bears 0."),
        "{table}"
    );
    let html = page(&results, &analysis);
    assert!(html.contains("kept latency.p99 &lt;= 20ms (n = 4)"));
    assert!(html.contains("neighbours=disk+net, by actor"));
    assert!(!html.contains("neighbours=none, by actor"));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-ramp");
    let _ = fs::remove_dir_all(&path);
    let kept = ramp::write(&path);
    write_report(&kept, &analyse(&kept).unwrap()).unwrap();
}

#[test]
fn a_knee_that_is_a_bound_says_so() {
    let (_folder, results, _) = ramp_run();
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        let objective = trial.objective.as_mut().unwrap();
        match trial.treatment.factors["neighbours"].as_str() {
            "none" => {
                objective.broke = None;
                trial.phases.retain(|phase| phase.kept == Some(true));
            }
            "pi" => {}
            _ => {
                objective.knee = None;
                trial.metrics.remove("knee");
                for phase in &mut trial.phases {
                    phase.kept = Some(false);
                }
            }
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let analysis = analyse(&results).unwrap();
    let knees: Vec<String> = analysis
        .treatments
        .iter()
        .map(|one| knee_in_words(one).unwrap())
        .collect();
    assert!(
        knees[0].contains(": at least 350 request/s kept"),
        "{}",
        knees[0]
    );
    assert!(knees[0].contains("in 4 of 4 trials the highest load kept it"));
    assert!(
        knees[2].contains("no load kept latency.p99") && knees[2].contains("lowest judged load")
    );
    let compared = |neighbours: &str| {
        let mut all = analysis.comparisons.iter();
        all.find(|one| one.metric == "knee" && one.treatment.ends_with(neighbours))
    };
    let note = compared("pi").unwrap().note.as_deref().unwrap();
    assert!(note.contains("the knee is a lower bound"), "{note}");
    assert!(compared("disk+net").is_none());
    assert!(analysis.treatments.iter().all(|one| one.steady.is_empty()));
}

#[test]
fn a_knee_that_a_late_generator_hides_is_at_least_the_load_that_was_judged() {
    let (_folder, results, before) = ramp_run();
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        if trial.treatment.factors["neighbours"] != "none" {
            continue;
        }
        let objective = trial.objective.as_mut().unwrap();
        objective.broke = None;
        for phase in &mut trial.phases {
            if phase.kept == Some(false) {
                phase.kept = None;
                objective.late_from = objective.late_from.or(phase.level);
            }
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let analysis = analyse(&results).unwrap();
    let knee = knee_in_words(&analysis.treatments[0]).unwrap();
    let (low, from) = (
        ": at least 350 request/s kept",
        "was late from 400 request/s on",
    );
    let late = format!("in 4 of 4 trials the load generator {from}");
    assert!(knee.contains(low) && knee.contains(&late), "{knee}");
    assert!(!knee.contains("the highest load kept it"), "{knee}");
    let table = terminal::table(&analysis, 200, false);
    let flat = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(from), "{table}");
    assert!(page(&results, &analysis).contains(from));
    let data = serde_json::to_value(&analysis.treatments[0].objective).unwrap();
    assert_eq!(data["late"], 4);
    assert!(data["knees"][0][1]["high"].is_null());
    let paired = |one: &&Comparison| one.metric == "knee" && one.treatment.ends_with("pi");
    let paired = analysis.comparisons.iter().find(paired).unwrap();
    let note = paired.note.as_deref().unwrap();
    assert!(
        note.contains("is a lower bound: the load generator was late"),
        "{note}"
    );
    let compared = compare::compare(&before, &[&analysis]);
    let rows = &compared.others[0].comparisons;
    let own = rows.iter().find(|one| one.metric == "knee").unwrap();
    let note = own.note.as_deref().unwrap();
    assert!(note.contains("the load generator was late"), "{note}");
}

#[test]
fn a_knee_below_levels_with_too_few_requests_for_its_quantile_is_at_least_the_load_that_was_judged()
{
    let (_folder, results, _) = ramp_run();
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        let objective = trial.objective.as_mut().unwrap();
        objective.broke = None;
        let shows_none = trial.treatment.factors["neighbours"] == "pi";
        for phase in &mut trial.phases {
            if shows_none || phase.kept == Some(false) {
                phase.kept = None;
                objective.unsupported_from = objective.unsupported_from.or(phase.level);
            }
        }
        if shows_none {
            objective.knee = None;
            trial.metrics.remove("knee");
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let analysis = analyse(&results).unwrap();
    let of = |neighbours: &str| {
        let mut all = analysis.treatments.iter();
        all.find(|one| one.treatment.label.ends_with(neighbours))
            .unwrap()
    };
    let some = knee_in_words(of("none")).unwrap();
    let low = ": at least 350 request/s kept";
    let few = "in 4 of 4 trials requests are too few for its quantile from 400 request/s on";
    assert!(some.contains(low) && some.ends_with(few), "{some}");
    let none = knee_in_words(of("pi")).unwrap();
    let (shown, lowest) = (
        ": no load is shown to keep",
        "quantile from 100 request/s on",
    );
    assert!(none.contains(shown) && none.ends_with(lowest), "{none}");
    let knees = of("none").objective.as_ref().unwrap();
    assert_eq!((knees.unsupported, knees.held_to_last), (4, 0));
    assert!(knees.knees.iter().all(|(_, knee)| knee.high.is_none()));
    let mut all = analysis.comparisons.iter();
    let disk = all.find(|one| one.metric == "knee" && one.treatment.ends_with("disk+net"));
    assert_ne!(disk.unwrap().judgement.verdict, Verdict::Different);
    let note = disk.unwrap().note.as_deref().unwrap();
    assert!(
        note.contains("requests are too few for its quantile"),
        "{note}"
    );
}

#[test]
fn figures_of_one_level_are_of_the_highest_that_was_judged_in_all_treatments() {
    let (_folder, results, before) = ramp_run();
    let levels = |analysis: &Analysis| -> Vec<String> {
        let shifts = analysis.shifts.iter();
        shifts.filter_map(|shift| shift.level.clone()).collect()
    };
    assert!(!levels(&before).is_empty());
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        for phase in &mut trial.phases {
            phase.kept = phase.kept.filter(|_| phase.level.unwrap().value <= 150.0);
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let levels = levels(&analyse(&results).unwrap());
    assert!(
        levels.iter().all(|level| level == "150 req/s"),
        "{levels:?}"
    );
    assert!(!levels.is_empty());
}

#[test]
fn the_interval_of_a_knee_is_of_offered_loads() {
    let (_folder, results, _) = ramp_run();
    let capacity = 333.0;
    let mut expected = Vec::new();
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        let (mut low, mut high) = (0.0, f64::INFINITY);
        for (number, phase) in (1..).zip(&mut trial.phases) {
            let asked = phase.level.unwrap();
            let off = f64::from((7919 * index + 104_729 * number) % 201) / 1000.0 - 0.1;
            let load = asked.value * (1.0 + off);
            let mut offered = phase.metrics["rate"].clone();
            offered.quantity = Quantity::new(load, asked.unit);
            phase.metrics.insert("offered".to_owned(), offered);
            phase.kept = Some(load <= capacity);
            match load <= capacity {
                true => low = load.max(low),
                false => high = load.min(high),
            }
        }
        expected.push((index, low, high));
        results.rewrite_trial(&trial).unwrap();
    }
    let analysis = analyse(&results).unwrap();
    let objectives = analysis.treatments.iter().flat_map(|one| &one.objective);
    let found = objectives.flat_map(|one| &one.knees);
    let mut found: Vec<_> = found
        .map(|(index, knee)| (*index, knee.low, knee.high.unwrap()))
        .collect();
    found.sort_by_key(|one| one.0);
    assert_eq!(found, expected);
}

#[test]
fn steady_runs_have_no_figures_of_scenarios() {
    let (_folder, _, analysis) = run(&Fake::default());
    for figure in figures::figures(&analysis) {
        for title in [
            "each load",
            "percentile",
            "actor",
            "power of the host",
            "served",
        ] {
            let headline = figure.title.contains("99th percentile of response time");
            assert!(
                headline || !figure.title.contains(title),
                "{}",
                figure.title
            );
        }
    }
}

#[test]
fn time_series_can_be_zoomed_and_say_so() {
    let (_folder, _, analysis) = ramp_run();
    let all = figures::figures(&analysis);
    let over_time: Vec<_> = all
        .iter()
        .filter(|figure| {
            figure.title.contains("over time") || figure.title.contains("over the measured")
        })
        .collect();
    assert!(over_time.len() >= 5);
    for figure in over_time {
        let layers = figure.spec["layer"].as_array();
        let mut views: Vec<&serde_json::Value> = layers.into_iter().flatten().collect();
        views.push(&figure.spec);
        let bound = views
            .iter()
            .filter(|view| view["params"][0]["bind"] == "scales");
        assert_eq!(bound.count(), 1, "{}", figure.title);
        assert!(figure.caption.contains("double click to reset"));
    }
}

#[test]
fn distributions_add_up_over_trials_and_are_compared_where_all_kept_the_objective() {
    let (_folder, results, analysis) = ramp_run();
    let alone = &analysis.treatments[0];
    assert_eq!(alone.distributions.len(), 8);
    assert!(
        alone
            .distributions
            .iter()
            .all(|one| one.trials == 4 && one.histogram.len() == 8000)
    );
    let figures = figures::figures(&analysis);
    let curves = figure(&figures, "latency by percentile");
    let lowest_knee = analysis.treatments[2]
        .metric("knee")
        .unwrap()
        .description
        .min;
    assert!(
        curves.caption.contains(&format!("at {lowest_knee} req/s")),
        "{lowest_knee}: {}",
        curves.caption
    );
    let values = curves.spec["data"]["values"].as_array().unwrap();
    let p99 = |curve: &str| {
        let at = values.iter().find(|value| {
            value["curve"] == curve && (value["beyond"].as_f64().unwrap() - 100.0).abs() < 1e-6
        });
        at.unwrap()["value"].as_f64().unwrap()
    };
    assert!(p99("neighbours = disk+net") > p99("neighbours = none"));
    // A damaged file loses its distributions and is named.
    fs::write(results.trial_path(0).join("latencies.hlog"), "not a log\n").unwrap();
    let damaged = analyse(&results).unwrap();
    assert_eq!(damaged.counts.counted, 12);
    assert!(damaged.unreadable[0].contains("0000/latencies.hlog is corrupted"));
    assert_eq!(results.damaged()[0].0, 0);
}

#[test]
fn the_timeline_splits_the_cpu_by_actor_and_finds_the_watts() {
    let (_folder, _, analysis) = ramp_run();
    let crowded = analysis.treatments[2].timeline.as_ref().unwrap();
    let who: Vec<(&str, Stage)> = crowded
        .cpu
        .iter()
        .map(|layer| (layer.actor.as_str(), layer.stage))
        .collect();
    assert_eq!(
        who,
        [
            ("target", Stage::Vcpu),
            ("target", Stage::Emulator),
            ("target", Stage::Vhost),
            ("target", Stage::Softirq),
            ("client", Stage::Client),
            ("disk", Stage::Neighbours),
            ("disk.client", Stage::Neighbours),
            ("net", Stage::Neighbours),
            ("net.client", Stage::Neighbours),
        ]
    );
    let mean = |place: usize| {
        let cores = &crowded.cpu[place].cores;
        cores.iter().sum::<f64>() / cores.len() as f64
    };
    assert!((mean(5) - 0.8).abs() < 0.02, "{}", mean(5));
    assert_eq!(crowded.cpu[0].cores.len(), 160);
    // Not the idle part, and not the sum of both.
    let (watts, _) = crowded.watts.as_ref().unwrap();
    assert!(watts.iter().sum::<f64>() / watts.len() as f64 > 15.0);
    assert_eq!(crowded.phases.len(), 8);
    assert_eq!(
        (crowded.phases[1].start, crowded.phases[1].end),
        (20.0, 40.0)
    );
}

#[test]
fn what_was_run_again_is_shown_beside_its_replacement() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let results = fake.write(&folder.path().join("run"));
    // Trial 4 is suspect, trial 11 failed; the second attempt at 4 counts, that at 11 has not run yet.
    results.set_aside(4, Aside::Again).unwrap();
    results.set_aside(11, Aside::Failed).unwrap();
    let quiet = Fake {
        trouble: false,
        ..fake
    };
    quiet.write_trial(&results, 4);
    let analysis = analyse(&results).unwrap();
    let rows: Vec<_> = analysis
        .attempts
        .iter()
        .map(|row| (row.index, row.attempt.as_str(), row.state, row.replacement))
        .collect();
    assert_eq!(
        rows,
        [
            (4, "again-1", "suspect", "counts"),
            (11, "failed-1", "failed", "not run yet")
        ]
    );
    assert_eq!((analysis.counts.counted, analysis.counts.pending), (44, 1));
    let html = page(&results, &analysis);
    assert!(html.contains("<td>0004.again-1</td>") && html.contains("run again: counts"));
    assert!(html.contains("foreign load: 0.31 cores"));
    let mut csv = Vec::new();
    export::csv(&results, &mut csv).unwrap();
    let text = String::from_utf8(csv).unwrap();
    assert!(!text.contains("foreign load"), "attempts are left out");
}

#[test]
fn an_attempt_that_was_repeated_for_a_disturbance_has_it_as_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let quiet = Fake {
        trouble: false,
        ..Fake::default()
    };
    let results = quiet.write(&folder.path().join("run"));
    let busy = "other programs used 1.95 s of CPU time, 97.3 % of the machine (limit 5.0 %)";
    let mut trial = results.trial(4).unwrap();
    trial.suspect = vec![busy.to_owned()];
    results.rewrite_trial(&trial).unwrap();
    results.set_aside(4, Aside::Again).unwrap();
    quiet.write_trial(&results, 4);
    let analysis = analyse(&results).unwrap();
    let row = &analysis.attempts[0];
    assert_eq!((row.state, row.reason.as_str()), ("disturbed", busy));
}

#[test]
fn a_figure_at_a_load_that_not_all_kept_does_not_claim_that_they_did() {
    let (_folder, results, before) = ramp_run();
    let captions = |analysis: &Analysis| {
        let mut all = figures::figures(analysis);
        all.retain(|one| one.id.ends_with("-shift") || one.id.contains("percentiles"));
        all.into_iter().map(|one| one.caption).collect::<Vec<_>>()
    };
    let kept = captions(&before);
    assert!(
        kept.len() >= 2
            && kept
                .iter()
                .all(|one| one.contains("the highest load that all kept")),
        "{kept:?}"
    );
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        for phase in &mut trial.phases {
            phase.kept = Some(false);
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let broken = captions(&analyse(&results).unwrap());
    let lowest = "at 100 req/s, the lowest load, which not all kept";
    assert!(
        broken.len() == kept.len() && broken.iter().all(|one| one.contains(lowest)),
        "{broken:?}"
    );
}

/// A run in emulated hosts: every number depends only on the treatment and the seed. `change` modifies each trial, with
/// its seed among its facts, before its numbers are generated.
fn emulated(blocks: u32, change: impl Fn(&mut Trial)) -> (tempfile::TempDir, ResultsDir, Analysis) {
    let fake = Fake {
        platforms: vec!["native", "qemu"],
        blocks,
        trouble: false,
        ..Fake::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let results = fake.write(&folder.path().join("run"));
    let mut first = BTreeMap::new();
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        let facts = [("testbed.seed", "1"), ("testbed.instruction_ns", "1")];
        let facts = facts.map(|(key, value)| (key.to_owned(), value.to_owned()));
        trial.environment.extend(facts);
        change(&mut trial);
        let label = trial.treatment.label.clone();
        let metrics = first.entry(label.clone()).or_insert(trial.metrics.clone());
        let seed: u64 = trial.environment["testbed.seed"].parse().unwrap();
        for (name, metric) in &mut trial.metrics {
            let chance = 1.0 + 0.001 * (seed * label.len() as u64 % 7) as f64;
            let noise = metric.quantity.value;
            metric.quantity.value = match trial.environment.contains_key("noise") {
                true => noise,
                false => metrics[name].quantity.value * chance,
            };
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let analysis = analyse(&results).unwrap();
    (folder, results, analysis)
}

fn cpu(analysis: &Analysis) -> &Comparison {
    let mut all = analysis.comparisons.iter();
    all.find(|one| one.workload == "iperf3-receive" && one.metric == "cpu.per_work")
        .unwrap()
}

#[test]
fn repetitions_of_one_seed_are_exact() {
    for blocks in [1, 3] {
        let (_folder, results, analysis) = emulated(blocks, |_| {});
        let vm = cpu(&analysis);
        assert_eq!(vm.certainty, Certainty::Exact { seed: 1 });
        assert_eq!((vm.tax, vm.judgement.adjusted_p), (None, None));
        assert_eq!(vm.judgement.verdict, Verdict::Different);
        assert!(vm.ratio.unwrap() > 2.0, "{vm:?}");
        let metrics = analysis.treatments.iter().flat_map(|of| &of.metrics);
        assert!(metrics.clone().count() > 10);
        assert!(metrics.clone().all(|of| of.interval.is_none()));
        assert!(
            metrics
                .clone()
                .all(|of| of.description.n == blocks as usize)
        );
        let text = &analysis.sentences[0].text;
        assert!(
            text.contains(" costs exactly 3.") && text.contains("(n = 1 seed, emulated)"),
            "{text}"
        );
        for shown in [
            page(&results, &analysis),
            terminal::table(&analysis, 100, false),
        ] {
            // The script of the page is left out of the check.
            let shown = shown.split("<script>").next().unwrap();
            let rules = shown.find("How each number is made").unwrap_or(shown.len());
            let words: Vec<&str> = shown[..rules].split_whitespace().collect();
            let shown = words.join(" ");
            for wrong in ["too few", "95 %", "not shown", "none shown", "n = 1 pair"] {
                assert!(!shown.contains(wrong), "{wrong}");
            }
            assert!(shown.contains("says nothing about chance in the timing"));
        }
        let json = serde_json::json!(analysis)["comparisons"][0].clone();
        assert_eq!(json["certainty"]["exact"]["seed"], 1);
        assert!(json["tax"].is_null() && json["ratio"].is_number());
        let figures = figures::figures(&analysis);
        let tax = &figures[0];
        assert!(tax.caption.contains("exact") && !tax.caption.contains("bars"));
        let rows = tax.spec["data"]["values"].as_array().unwrap();
        let drawn = rows.iter().filter(|row| row["ratio"].is_number());
        assert!(drawn.clone().count() > 2);
        assert!(drawn.clone().all(|row| row["low"].is_null()));
        assert!(
            drawn
                .clone()
                .all(|row| row["text"].as_str().unwrap().contains("× exact"))
        );
    }
}

#[test]
fn a_seed_for_each_block_gives_an_interval_over_seeds() {
    let (_folder, results, analysis) = emulated(4, |trial| {
        let seed = (trial.block + 1).to_string();
        trial.environment.insert("testbed.seed".into(), seed);
    });
    let vm = cpu(&analysis);
    assert_eq!((vm.certainty, vm.tax.unwrap().n), (Certainty::Seeds, 4));
    assert_eq!(vm.judgement.verdict, Verdict::Different);
    let text = &analysis.sentences[0].text;
    assert!(text.contains("n = 4 seeds, emulated"), "{text}");
    assert!(page(&results, &analysis).contains("how much chance there is in the timing"));
    assert!(terminal::table(&analysis, 100, false).contains("[95 % CI over seeds]"));
    let caption = &figures::figures(&analysis)[0].caption;
    assert!(caption.contains("over seeds"), "{caption}");
}

#[test]
fn repetitions_of_one_seed_that_differ_are_a_sample() {
    let (_folder, _, analysis) = emulated(4, |trial| {
        trial.environment.insert("noise".into(), String::new());
    });
    let vm = cpu(&analysis);
    assert_eq!(vm.certainty, Certainty::Trials);
    assert!(vm.tax.unwrap().interval.is_some());
}

#[test]
fn a_trial_whose_host_got_stuck_is_no_repetition_of_the_others() {
    let stuck = |block| {
        move |trial: &mut Trial| {
            if trial.block == block && trial.treatment.platform == "qemu" {
                trial.environment.insert("testbed.stuck".into(), "1".into());
                trial.environment.insert("testbed.seed".into(), "9".into());
            }
        }
    };
    let (_folder, _, analysis) = emulated(3, stuck(2));
    assert_eq!(cpu(&analysis).certainty, Certainty::Exact { seed: 1 });
    assert_eq!(analysis.counts.suspect, 3);
    let reason = analysis.trials.iter().find_map(|row| row.suspect.first());
    assert!(reason.unwrap().contains("seed 9"), "{reason:?}");
    // With no other trial of its treatment it counts, with its own seed.
    let (_folder, _, analysis) = emulated(1, stuck(0));
    let vm = cpu(&analysis);
    assert_eq!(
        (vm.certainty, vm.judgement.verdict),
        (Certainty::Seeds, Verdict::TooFewTrials)
    );
    assert!(vm.note.as_deref().unwrap().contains("seed 9"), "{vm:?}");
    assert_eq!(analysis.counts.suspect, 0);
    assert!(analysis.sentences[0].text.contains("at least 4 seeds"));
}

/// A run with suspect trials: those of the VM, or all.
fn suspect(only_vms: bool) -> (tempfile::TempDir, Analysis) {
    let fake = Fake {
        blocks: 6,
        trouble: false,
        vm_cost: 6.2,
        ..Fake::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let results = fake.write(&folder.path().join("run"));
    for mut trial in results.trials().map(Result::unwrap) {
        if !only_vms || trial.treatment.platform == "qemu" {
            trial.suspect.push("steal 7 % of the window".to_owned());
            results.rewrite_trial(&trial).unwrap();
        }
    }
    let analysis = analyse(&results).unwrap();
    (folder, analysis)
}

#[test]
fn a_comparison_claims_nothing_of_suspect_trials_and_names_the_run_and_the_reason() {
    let (_one, _, before) = run(&Fake {
        blocks: 6,
        trouble: false,
        ..Fake::default()
    });
    for (only_vms, what) in [
        (true, "In B a treatment has only suspect trials"),
        (false, "In B every trial is suspect"),
    ] {
        let (_two, after) = suspect(only_vms);
        for (first, other) in [(&before, &after), (&after, &before)] {
            let compared = compare::compare(first, &[other]);
            let rows = &compared.others[0].comparisons;
            assert!(rows.len() > 10);
            let claimed = rows
                .iter()
                .filter(|row| row.judgement.verdict == Verdict::Different);
            assert_eq!(claimed.count(), 0);
            let table = compare::table(&compared, 120);
            assert!(!table.contains("] *"), "{table}");
            let what = match std::ptr::eq(first, &after) {
                true => what.replace("In B", "In A"),
                false => what.to_owned(),
            };
            assert!(table.contains(&what), "{table}");
            assert!(table.contains("steal 7 % of the window"), "{table}");
        }
    }
    let table = compare::table(&compare::compare(&before, &[&before]), 100);
    assert!(!table.contains("suspect"), "{table}");
}

#[test]
fn a_sentence_about_suspect_trials_does_not_blame_their_number() {
    let (_folder, analysis) = suspect(true);
    let text = &analysis.sentences[0].text;
    assert!(text.contains("since the trials are suspect"), "{text}");
    assert!(text.contains("n = 6 pairs"), "{text}");
    assert!(
        !text.contains("too few") && !text.contains("at least 4"),
        "{text}"
    );
    let table = terminal::table(&analysis, 100, false);
    assert!(!table.contains("too few trials"), "{table}");
    assert!(table.contains("suspect trials"), "{table}");
}

#[test]
fn compared_runs_are_called_by_the_directories_that_were_given() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake {
        trouble: false,
        ..Fake::default()
    };
    let analyses = ["before", "after"].map(|name| {
        let results = fake.write(&folder.path().join(name));
        analyse(&results).unwrap()
    });
    let compared = compare::compare(&analyses[0], &[&analyses[1]]);
    let table = compare::table(&compared, 120);
    let called = |letter: &str, name: &str| {
        let path = folder.path().join(name);
        let mut lines = table.lines();
        lines.any(|line| line.starts_with(&format!("{letter}  {} (", path.display())))
    };
    assert!(called("A", "before") && called("B", "after"), "{table}");
}

#[test]
fn exact_runs_compare_exactly() {
    let (_folder, _, before) = emulated(1, |_| {});
    let (_other, _, after) = emulated(2, |_| {});
    let comparison = compare::compare(&before, &[&after]);
    let rows = &comparison.others[0].comparisons;
    assert!(rows.len() > 4);
    assert!(
        rows.iter()
            .all(|row| row.judgement.verdict == Verdict::Same)
    );
    let table = compare::table(&comparison, 100);
    assert!(
        table.contains("exactly 1.00×") && !table.contains("95 %"),
        "{table}"
    );
}

#[test]
fn what_is_exact_but_suspect_is_not_claimed() {
    let (_folder, _, analysis) = emulated(2, |trial| trial.suspect.push("clock stepped".into()));
    assert!(analysis.provisional && analysis.comparisons.is_empty());
    let (_folder, _, analysis) = emulated(2, |trial| {
        if trial.treatment.platform == "qemu" {
            trial.suspect.push("clock stepped".into());
        }
    });
    assert_eq!(cpu(&analysis).judgement.verdict, Verdict::Suspect);
    let text = &analysis.sentences[0].text;
    assert!(
        text.contains("nothing is claimed, since the trials are suspect"),
        "{text}"
    );
    assert!(!text.contains("too few"), "{text}");
}
