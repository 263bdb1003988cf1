// SPDX-License-Identifier: Apache-2.0
//! Tests of the page that a reader sees: the verdicts, the order of its parts, what is folded, and its figures.

use vtax_core::metric;
use vtax_report::analysis::{MetricSummary, PlatformVerdict, analyse};
use vtax_report::figures::figures;
use vtax_report::html::{Provenance, render};
use vtax_testkit::results::{Fake, ramp};

fn report() -> String {
    let folder = tempfile::tempdir().unwrap();
    let results = Fake::default().write(&folder.path().join("run"));
    let analysis = analyse(&results).unwrap();
    let page = render(&analysis, &Provenance::from_results(&results));
    // The scripts contain markup too.
    page.split("<script").next().unwrap().to_owned()
}

/// The page without the content of its folds.
fn unfolded(page: &str) -> String {
    let mut depth = 0_i32;
    let mut shown = String::new();
    for part in page.split_inclusive('>') {
        let is_end = part.ends_with("</details>");
        if depth == 0 {
            shown.push_str(part);
        }
        depth += i32::from(part.contains("<details")) - i32::from(is_end);
    }
    shown
}

#[test]
fn the_verdict_of_each_platform_comes_first_then_one_figure_and_the_rest_is_folded() {
    let page = report();
    let (before, after) = page.split_once("<figure>").unwrap();
    assert!(!before.contains("<details"), "a fold before the figure");
    let (_, verdicts) = before.split_once("<ul class=\"findings\">").unwrap();
    assert_eq!(verdicts.matches("<li").count(), 2, "{verdicts}");
    assert!(verdicts.contains("<b>A container</b>, CPU against bare metal: no difference"));
    assert!(verdicts.contains("<b>A VM (QEMU, TCG emulation)</b>, CPU against bare metal"));
    assert!(after.contains("<figure>"), "there are more figures");
    assert_eq!(unfolded(&page).matches("<figure>").count(), 1);
}

#[test]
fn a_table_has_the_tax_beside_each_mean_and_the_other_metrics_are_folded() {
    let page = report().replace("<wbr>", "");
    let shown = unfolded(&page);
    assert!(shown.contains("title=\"different\">● 3.09× ["));
    // Each headline metric, of two platforms with a baseline.
    assert_eq!(shown.matches("class=\"tax\"").count(), 2 * 6);
    assert!(!shown.contains("context_switches") && page.contains("context_switches"));
}

#[test]
fn p_values_have_the_names_of_their_tests() {
    let page = report();
    for name in ["p, Student’s t", "p, adjusted"] {
        assert!(page.contains(&format!(">{name}</th>")), "{name}");
    }
}

fn verdicts(fake: &Fake) -> Vec<PlatformVerdict> {
    let folder = tempfile::tempdir().unwrap();
    let results = fake.write(&folder.path().join("run"));
    analyse(&results).unwrap().platform_verdicts()
}

#[test]
fn each_platform_has_one_line_with_its_tax_in_each_workload() {
    let found = verdicts(&Fake::default());
    let [container, vm] = found.as_slice() else {
        panic!("{found:#?}")
    };
    assert_eq!(
        (container.title.as_str(), container.different),
        ("A container", false)
    );
    assert_eq!(
        container.text,
        "CPU against bare metal: no difference shown in iperf3-receive, http-rate and cpu-control."
    );
    assert!(vm.different);
    assert_eq!(
        vm.text,
        "CPU against bare metal: 3.09× in iperf3-receive, 3.1× in http-rate, no difference shown in cpu-control \
         (emulated)."
    );
}

#[test]
fn the_treatments_of_a_sweep_share_a_range() {
    let found = verdicts(&Fake {
        mtu: vec![576, 1500, 9000],
        ..Fake::default()
    });
    let vm = found.last().unwrap();
    assert!(vm.text.contains(" of 3 treatments) in"), "{}", vm.text);
}

#[test]
fn a_baseline_that_is_the_same_platform_has_its_level() {
    let folder = tempfile::tempdir().unwrap();
    let results = ramp::write(&folder.path().join("run"));
    let found = analyse(&results).unwrap().platform_verdicts();
    let words =
        "the load borne against vm neighbours=none: 0.63× (1 of 2 treatments) in http-rate.";
    assert_eq!(found[0].text, words);
}

#[test]
fn a_metric_that_the_plan_s_command_reports_has_a_figure_over_the_levels() {
    let folder = tempfile::tempdir().unwrap();
    let mut analysis = analyse(&ramp::write(&folder.path().join("run"))).unwrap();
    let title = "pages served at each load";
    let has = |analysis: &_| {
        figures(analysis)
            .iter()
            .any(|one| one.title.ends_with(title))
    };
    assert!(!has(&analysis));
    let levels = analysis.treatments.iter_mut().flat_map(|of| &mut of.levels);
    for level in levels {
        let mut own = level.metrics.first().unwrap().clone();
        own.name = metric::OWN.fill("pages");
        own.title = "pages served".to_owned();
        own.headline = false;
        level.metrics.push(own);
        // The order of metrics: headlines first, then by name.
        let order = |of: &MetricSummary| (!of.headline, of.name.clone());
        level.metrics.sort_by_key(order);
    }
    assert!(has(&analysis));
}

/// The scale of the figure of CPU time in a run where a VM costs this much.
fn scale(vm_cost: f64) -> String {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake {
        vm_cost,
        ..Fake::default()
    };
    let all = figures(&analyse(&fake.write(&folder.path().join("run"))).unwrap());
    let figure = all.iter().find(|one| one.title.contains("CPU time per"));
    figure.unwrap().spec["layer"][0]["encoding"]["x"]["scale"]["type"].to_string()
}

#[test]
fn an_axis_is_logarithmic_where_one_platform_dwarfs_the_others() {
    assert_eq!(scale(23.0), "\"log\"");
    assert_eq!(scale(2.0), "null");
}
