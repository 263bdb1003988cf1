// SPDX-License-Identifier: Apache-2.0
//! Tests that a report's figure of CPU over time, drawn from a trial's samples, sums to the trial's own metrics.

use super::tests::{between, observed, snapshot};
use super::*;
use crate::place::actor::Column;
use vtax_core::counter;
use vtax_core::{Base, Nanoseconds, Series, SeriesKind, Unit};
use vtax_load::workload::WorkloadResult;
use vtax_report::analysis::analyse;
use vtax_results::{
    Actor, FORMAT, ObservationCost, Phase, PhaseTimes, ResultsDir, Role, RunInfo, Scheduled,
    Treatment, Trial, TrialOutcome,
};

const SECOND: u64 = 1_000_000_000;
/// The length of the window in seconds. The window begins after two seconds.
const LENGTH: u64 = 8;

/// An owner, a counter, and the counter's growth in seconds per second.
type Rates<'a> = &'a [(&'a str, &'a str, f64)];

/// Returns the cores of each stage, by the metrics of the target and by the figure of the report.
fn both(
    counters: Rates<'_>,
    beside: Rates<'_>,
    is_elsewhere: bool,
    processors: usize,
    guests: &[ObservedGuest],
) -> [BTreeMap<Stage, f64>; 2] {
    let at = |seconds: u64| {
        let values = counters.iter();
        let values: Vec<_> = values
            .map(|(owner, name, rate)| (*owner, *name, rate * seconds as f64))
            .collect();
        snapshot(seconds, &values)
    };
    let (begin, end) = (at(2), at(2 + LENGTH));
    let observation = Observation {
        processors,
        ..between(&begin, &end, guests)
    };
    let metrics = observation.metrics(&WorkloadResult::default());
    let stages = Stage::ALL.into_iter();
    let table = stages
        .filter_map(|stage| Some((stage, metrics.get(&stage.metric())?.quantity.value)))
        .filter(|(_, cores)| *cores > 0.001)
        .collect();

    let folder = tempfile::tempdir().unwrap();
    let treatment = Treatment {
        label: "one".to_owned(),
        platform: "one".to_owned(),
        workload: "idle".to_owned(),
        factors: BTreeMap::new(),
        baseline: None,
        platform_kind: String::new(),
        workload_kind: String::new(),
    };
    let run = RunInfo {
        format: FORMAT,
        name: "agreement".to_owned(),
        description: String::new(),
        seed: 1,
        profile: "full".to_owned(),
        place: "local".to_owned(),
        started: String::new(),
        plan_sha256: String::new(),
        schedule: vec![Scheduled {
            treatment: 0,
            block: 0,
        }],
        treatments: vec![treatment.clone()],
        minimum_effect: 0.01,
        extended: false,
    };
    let path = folder.path().join("results");
    let results = ResultsDir::create(&path, &run, "", &serde_json::json!({})).unwrap();
    let writer = results.trial_writer(0).unwrap();
    let mut samples = writer.samples().unwrap();
    let there = counters.iter().map(|counter| (is_elsewhere, counter));
    let here = beside.iter().map(|counter| (false, counter));
    for (is_elsewhere, (owner, name, rate)) in there.chain(here) {
        let series = Series {
            owner: Owner::named(owner),
            metric: (*name).to_owned(),
            unit: Unit::from_base(Base::Nanosecond),
            kind: SeriesKind::Counter,
            source: Source::Measured,
        };
        let series = if is_elsewhere {
            Column {
                series,
                at: Vec::new(),
                values: Vec::new(),
            }
            .series(&Owner::Target)
        } else {
            series
        };
        let id = samples.register(&series);
        for tick in 0..2 * (LENGTH + 4) {
            let at = tick * SECOND / 2;
            samples.push(id, Nanoseconds(at), rate * at as f64).unwrap();
        }
    }
    samples.finish().unwrap();
    let actor = |name: &Owner, role, drives: Option<&Owner>| Actor {
        name: name.to_string(),
        role,
        platform: None,
        workload: None,
        drives: drives.map(Owner::to_string),
        place: "local".to_owned(),
        metrics: BTreeMap::new(),
        environment: BTreeMap::new(),
    };
    let actors = guests.iter().enumerate().flat_map(|(place, guest)| {
        let role = match place {
            0 => Role::Target,
            _ => Role::Neighbour,
        };
        let client = actor(&guest.client, Role::Client, Some(&guest.owner));
        [actor(&guest.owner, role, None), client]
    });
    let window = (begin.at, end.at);
    let phase = Phase {
        name: "all".to_owned(),
        level: None,
        window,
        work: None,
        metrics: BTreeMap::new(),
        others: BTreeMap::new(),
        kept: None,
    };
    let trial = Trial {
        format: FORMAT,
        index: 0,
        block: 0,
        treatment,
        started: String::new(),
        outcome: TrialOutcome::Complete,
        suspect: Vec::new(),
        disturbed: Vec::new(),
        times: PhaseTimes::default(),
        window,
        work: None,
        metrics,
        environment: BTreeMap::new(),
        observation: ObservationCost {
            processors: Some(processors),
            ..ObservationCost::default()
        },
        actors: actors.collect(),
        phases: vec![phase],
        objective: None,
    };
    writer.finish(trial).unwrap();

    let analysis = analyse(&results).unwrap();
    let timeline = analysis.treatments[0].timeline.as_ref().unwrap();
    let mut figure = BTreeMap::new();
    for layer in &timeline.cpu {
        let mean = layer.cores.iter().sum::<f64>() / LENGTH as f64;
        *figure.entry(layer.stage).or_insert(0.0) += mean;
    }
    [table, figure]
}

fn assert_agree([table, figure]: &[BTreeMap<Stage, f64>; 2]) {
    let stages = |of: &BTreeMap<Stage, f64>| of.keys().copied().collect::<Vec<_>>();
    assert_eq!(stages(table), stages(figure));
    for (stage, cores) in table {
        assert!(
            (cores - figure[stage]).abs() < 1e-7,
            "{stage:?}: {table:?} {figure:?}"
        );
    }
}

#[test]
fn a_vm_on_a_host_with_stolen_time() {
    let counters = [
        ("host", counter::CPU_IDLE, 0.9),
        ("host", counter::CPU_IOWAIT, 0.05),
        ("host", counter::CPU_STEAL, 0.5),
        ("target", counter::CPU_TOTAL, 1.2),
        ("target", counter::CPU_VCPU, 0.7),
        ("target", counter::CPU_VHOST, 0.2),
        ("target", counter::CPU_SOFTIRQ, 0.25),
        ("target", counter::CPU_SOFTIRQ_CONTEXT, 0.1),
        ("client", counter::CPU_TOTAL, 0.4),
        ("client", counter::CPU_SOFTIRQ, 0.1),
        ("client", counter::CPU_SOFTIRQ_CONTEXT, 0.15),
        ("vtax", counter::CPU_TOTAL, 0.02),
    ];
    let found = both(
        &counters,
        &[],
        false,
        4,
        &[observed("target", "client", true)],
    );
    assert_agree(&found);
    let softirq = found[0][&Stage::Softirq];
    assert!(softirq < 0.22, "of 0.25 by the clock: {softirq}");
}

#[test]
fn neighbours_are_together_what_the_figure_shows_one_by_one() {
    let counters = [
        ("host", counter::CPU_IDLE, 0.5),
        ("host", counter::CPU_STEAL, 0.25),
        ("target", counter::CPU_TOTAL, 0.3),
        ("client", counter::CPU_TOTAL, 0.2),
        ("pi", counter::CPU_TOTAL, 0.4),
        ("pi", counter::CPU_SOFTIRQ, 0.1),
        ("pi.client", counter::CPU_TOTAL, 0.05),
        ("switch", counter::CPU_TOTAL, 0.03),
        ("vtax", counter::CPU_TOTAL, 0.01),
    ];
    let guests = [
        observed("target", "client", false),
        observed("pi", "pi.client", true),
    ];
    assert_agree(&both(&counters, &[], false, 2, &guests));
}

#[test]
fn a_domain_beside_its_dom0() {
    let counters = [
        ("host", counter::CPU_IDLE, 0.1),
        ("host", counter::CPU_STEAL, 0.2),
        ("host", counter::CPU_DOM0, 0.7),
        ("target", counter::CPU_DOMAIN, 0.8),
        ("target", counter::CPU_TOTAL, 0.3),
        ("client", counter::CPU_TOTAL, 0.2),
        ("switch", counter::CPU_TOTAL, 0.05),
        ("vtax", counter::CPU_TOTAL, 0.02),
    ];
    assert_agree(&both(
        &counters,
        &[],
        false,
        1,
        &[observed("target", "client", false)],
    ));
}

#[test]
fn a_vm_whose_host_a_pool_counts() {
    let there = [
        ("host", counter::CPU_IDLE, 2.5),
        ("dom0", counter::CPU_TOTAL, 0.4),
        ("target", counter::CPU_VCPU, 0.75),
        ("target", counter::CPU_BACKEND, 0.1),
        ("target", counter::CPU_TOTAL, 0.85),
    ];
    let here = [
        ("host", counter::CPU_IDLE, 0.2),
        ("client", counter::CPU_TOTAL, 0.9),
        ("vtax", counter::CPU_TOTAL, 0.02),
    ];
    let found = both(
        &there,
        &here,
        true,
        4,
        &[observed("target", "client", true)],
    );
    assert_agree(&found);
    assert!((found[0][&Stage::Backend] - 0.1).abs() < 1e-9, "{found:?}");
    assert!((found[0][&Stage::Rest] - 0.65).abs() < 1e-9, "{found:?}");
}
