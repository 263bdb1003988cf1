// SPDX-License-Identifier: Apache-2.0
//! Tests of every form of report, from a results directory.

use crate::support::{change_trials, cpu, figure, page, run};
use std::fs;
use std::path::Path;
use vtax_core::Source;
use vtax_report::analysis::analyse;
use vtax_report::html::write_report;
use vtax_report::{export, figures, terminal};
use vtax_results::stats::{Interval, SteadyState, Verdict};
use vtax_results::{ResultsDir, Stage};
use vtax_testkit::results::Fake;

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
            .all(|sentence| sentence.text.contains("no difference shown")
                || sentence.text.contains(" by the model, not by a meter"))
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
        fs::remove_file(path.with_file_name("SHA256SUMS")).unwrap();
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
    assert!(table.contains("Energy is modelled by mine"), "{table}");
    assert!(table.contains("E = emulated and modelled"), "{table}");
    let brief = terminal::brief(&analysis, 200, false);
    assert!(brief.contains("E = emulated and modelled"), "{brief}");
    assert!(!brief.contains("Energy is modelled by mine"), "{brief}");
    let hint = brief.lines().last().unwrap();
    assert!(
        hint.contains(" more: vtax report ") && hint.ends_with(" --notes"),
        "{hint}"
    );
    let left_out = table.lines().count() + 1 - brief.lines().count();
    assert!(
        left_out > 0
            && brief
                .lines()
                .all(|line| line == hint || table.contains(line))
    );
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
    let layers = figure(&figures, "The tax of each platform").spec["layer"].as_array();
    let mut colors = layers
        .unwrap()
        .iter()
        .map(|layer| &layer["encoding"]["color"]);
    let color = colors
        .find(|color| color["scale"]["domain"].is_array())
        .unwrap();
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
    // No quiet host helps where the command is the cause.
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        trial.suspect =
            vec!["the command left `sh` running: what it does is in no cost".to_owned()];
        results.rewrite_trial(&trial).unwrap();
    }
    let advice = analyse(&results).unwrap().advice.unwrap();
    assert!(
        advice.ends_with("`vtax explain 'the command left'`."),
        "{advice}"
    );
}

#[test]
fn the_figure_of_taxes_says_which_side_is_dearer_and_its_line_crosses_no_text() {
    let (folder, _, analysis) = run(&Fake::default());
    let figures = figures::figures(&analysis);
    let paths = vtax_report::svg::write(
        &figures[..1],
        &[vtax_report::svg::FigureFormat::Svg],
        folder.path(),
    );
    let svg = fs::read_to_string(&paths.unwrap()[0]).unwrap();
    for words in ["← cheaper</text>", "dearer →</text>", "better →</text>"] {
        assert!(svg.contains(words), "{words}: {svg}");
    }
    // Of throughput more is better, and of nothing else here.
    let metrics = &analysis.comparisons;
    assert!(metrics.iter().any(|one| one.title == "Throughput"));
    assert_eq!(svg.matches("better →</text>").count(), 1);
    assert!(figures[0].caption.contains("better →"));

    let number = |text: &str, name: &str| -> f64 {
        let (_, value) = text.split_once(&format!("{name}=\"")).unwrap();
        value.split_once('"').unwrap().0.parse().unwrap()
    };
    let place = |element: &str| -> (f64, f64) {
        let (_, place) = element.split_once("transform=\"translate(").unwrap();
        let (x, y) = place.split_once(')').unwrap().0.split_once(',').unwrap();
        (x.parse().unwrap(), y.parse().unwrap())
    };
    let dashed: Vec<(f64, f64, f64)> = svg
        .split("<line ")
        .filter_map(|rest| rest.split_once("/>").map(|(line, _)| line))
        .filter(|line| line.contains("stroke-dasharray") && !line.contains("opacity=\"0\""))
        .map(|line| (place(line), number(line, "y2")))
        .map(|((x, y), long)| (x, y, y + long))
        .collect();
    assert!(dashed.len() > 3, "{svg}");
    let marks = svg.split_once("mark-text role-mark").unwrap().1;
    let texts = marks.split("<text ").skip(1);
    let texts = texts.filter(|text| text.contains("aria-roledescription=\"text mark\""));
    let mut read = 0;
    for text in texts {
        let (shown, _) = text.split_once('>').unwrap().1.split_once('<').unwrap();
        let ((x, y), long) = (place(text), 6.0 * shown.chars().count() as f64);
        let from = if text.contains("text-anchor=\"end\"") {
            x - long
        } else {
            x
        };
        // The line of text is from 8 pixels above its base to 2 below.
        let crossed = dashed.iter().find(|(line, top, end)| {
            (from..from + long).contains(line) && y - 8.0 < *end && y + 2.0 > *top
        });
        assert_eq!(crossed, None, "{shown}");
        read += 1;
    }
    assert!(read > 10, "{read} texts: {svg}");
}

#[test]
fn a_long_mean_in_the_terminals_table_stays_apart_from_its_mark_and_the_tax() {
    let (_folder, _, mut analysis) = run(&Fake::default());
    for own in analysis
        .treatments
        .iter_mut()
        .flat_map(|of| &mut of.metrics)
    {
        own.description.mean = 0.068_312;
        own.interval = Some(Interval {
            low: 0.068_231,
            high: 0.068_392,
        });
        own.modelled = true;
    }
    let table = terminal::table(&analysis, 80, false);
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.contains("0.0683"))
        .collect();
    assert!(!rows.is_empty(), "{table}");
    for row in rows {
        let (_, after) = row.split_once(']').unwrap();
        assert!(
            after.starts_with(" m ") || after.starts_with(" E "),
            "{row}"
        );
    }
}

#[test]
fn ratios_are_at_equal_speeds_of_the_host_where_the_canary_tells_something() {
    let fake = Fake {
        trouble: false,
        blocks: 10,
        platforms: vec!["native", "qemu"],
        canary: Some(1.0),
        ..Fake::default()
    };
    let (_folder, results, without) = run(&fake);
    assert!(
        without
            .noise
            .iter()
            .any(|line| line.starts_with("Canary: the speed of this host")),
        "{:?}",
        without.noise
    );
    // A host that slows down slows everything down with it.
    change_trials(&results, |trial| {
        let canary = trial.observation.canary.clone().unwrap();
        let both = [&canary.before, &canary.after];
        let speed: f64 = both
            .map(|of| of["calls"].per_cpu_second / 6e6)
            .iter()
            .product();
        let cost = &mut trial
            .metrics
            .get_mut("cpu.per_work")
            .unwrap()
            .quantity
            .value;
        *cost *= speed.powi(-8);
    });
    let analysis = analyse(&results).unwrap();
    let row = cpu(&analysis);
    let control = row.judgement.control.unwrap();
    assert!(control.coefficient < -10.0, "{control:?}");
    assert!(control.width < 0.5, "{control:?}");
    let interval = row.tax.unwrap().interval.unwrap();
    assert!(interval.contains(3.1), "{interval:?}");
    let line = analysis
        .noise
        .iter()
        .find(|line| line.starts_with("Ratios at equal speeds"));
    assert!(line.is_some(), "{:?}", analysis.noise);
    // Canaries with other instructions are not comparable.
    let mut trial = results.trial(3).unwrap();
    trial.observation.canary.as_mut().unwrap().code = "0".repeat(64);
    results.rewrite_trial(&trial).unwrap();
    let analysis = analyse(&results).unwrap();
    assert_eq!(cpu(&analysis).judgement.control, None);
    assert_eq!(analysis.host_speed, None);
    // A speed of zero, or none, is no reason to fail.
    let mut trial = results.trial(3).unwrap();
    trial.observation.canary.as_mut().unwrap().after.clear();
    results.rewrite_trial(&trial).unwrap();
    analyse(&results).unwrap();
}

#[test]
fn the_typical_pair_is_compared_where_the_plan_asks_for_it() {
    let fake = Fake {
        trouble: false,
        blocks: 12,
        platforms: vec!["native", "qemu"],
        ..Fake::default()
    };
    let (_folder, results, _) = run(&fake);
    // Of one trial in eight only its slowness is seen.
    change_trials(&results, |trial| {
        if trial.index % 8 == 3 {
            let cost = &mut trial
                .metrics
                .get_mut("cpu.per_work")
                .unwrap()
                .quantity
                .value;
            *cost *= 3.0;
        }
    });
    let width = |analysis: &vtax_report::analysis::Analysis| {
        let interval = cpu(analysis).interval().unwrap();
        assert!(interval.contains(3.1), "{interval:?}");
        interval.high / interval.low
    };
    let mean = analyse(&results).unwrap();
    fs::write(results.path().join("plan.toml"), "estimate = \"typical\"\n").unwrap();
    let typical = analyse(&results).unwrap();
    assert!(
        width(&typical) < 0.7 * width(&mean),
        "{} {}",
        width(&typical),
        width(&mean)
    );
    assert!(cpu(&typical).tax.unwrap().typical);
    let line = typical
        .noise
        .iter()
        .any(|line| line.contains("typical pair of trials"));
    assert!(line, "{:?}", typical.noise);
}
