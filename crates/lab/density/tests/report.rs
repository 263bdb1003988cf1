// SPDX-License-Identifier: Apache-2.0
//! The report of a density run: its content for a results directory, and that text of the directory stays text.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_density::limits::{Binding, Limits};
use vtax_density::record::{Births, Climb, Cloud, Idle, Interval, Latency, Sample, VERSION};
use vtax_density::report;
use vtax_density::resources::{Memory, Resource};
use vtax_results::{
    FORMAT, ObservationCost, PhaseTimes, ResultsDir, RunInfo, Scheduled, Treatment, Trial,
    TrialOutcome,
};
use vtax_testkit::markup::{FRAGMENTS, skeleton, text_of};

/// A climb of a platform to `maximum` guests with everything that a page shows.
fn climb(platform: &str, maximum: u32, binding: Binding, words: &str) -> Climb {
    let latency = |micros: f64| Latency {
        answered: 50,
        failed: 0,
        mean_us: micros,
        p50_us: micros,
        p99_us: micros * 2.0,
        max_us: micros * 3.0,
    };
    let before = Memory {
        total: 100e9,
        available: 95e9,
        ..Memory::default()
    };
    let interval = |population: u32| {
        let guests = f64::from(population);
        let used = guests * 1e6;
        Interval {
            population,
            births: (population > 0).then(|| Births {
                count: maximum / 20,
                seconds: 2.0,
                create: None,
                boot: Some(latency(900.0)),
            }),
            samples: vec![
                Sample {
                    shares: [
                        (Resource::Memory, 5.0 + used / 1e9),
                        (Resource::Cpu, guests * 0.01 + 3.0),
                    ]
                    .into(),
                    population_cpu: guests * 0.01,
                    ..Sample::default()
                };
                3
            ],
            probe: (population > 0).then(|| latency(120.0 + guests)),
            memory: Memory {
                available: 95e9 - used,
                ..before
            },
            charged: Some(used * 0.9),
            ..Interval::default()
        }
    };
    Climb {
        version: VERSION,
        platform: platform.to_owned(),
        maximum,
        limits: Limits {
            stop_percent: 90.0,
            reserve_percent: 10.0,
            probe_p99_ms: 100.0,
        },
        processors: 4,
        before,
        climb: (0..=20).map(|step| interval(maximum / 20 * step)).collect(),
        idle: Some(Idle {
            seconds: 10.0,
            core_percent: 0.4,
            joules: Some(120.0),
        }),
        cloud: Some(Cloud {
            seconds: 30.0,
            places: maximum,
            arrivals: 400,
            turned_away: 3,
            departures: 390,
            mean_population: 61.4,
            boot: Some(latency(950.0)),
            probe: latency(150.0),
            late: 0.002,
            core_percent: 1.2,
            refused: Some(format!("no more places{words}")),
        }),
        descent: Vec::new(),
        after: before,
        returned_after: 1.5,
        binding,
        own_cpu: 0.1,
        seconds: 42.0,
    }
}

/// A run of three climbs, of which one failed and one is pending. Each name and reason ends with `words`.
fn run(path: &Path, words: &str) -> ResultsDir {
    let treatment = |platform: &str| Treatment {
        label: format!("{platform} · density{words}"),
        platform: platform.to_owned(),
        workload: "density".to_owned(),
        factors: BTreeMap::from([("host.governor".to_owned(), "performance".to_owned())]),
        baseline: None,
        platform_kind: String::new(),
        workload_kind: String::new(),
    };
    let kinds = ["qemu", "mvm-live", "mvm-parked", "firecracker", "native"];
    let treatments: Vec<Treatment> = kinds.into_iter().map(treatment).collect();
    let run = RunInfo {
        format: FORMAT,
        name: format!("density{words}"),
        description: format!("How many guests a host holds{words}"),
        seed: 42,
        profile: "quick".to_owned(),
        place: format!("local{words}"),
        started: "2026-11-20T14:03:00+01:00".to_owned(),
        plan_sha256: "5f2b".repeat(16),
        schedule: (0..treatments.len())
            .map(|treatment| Scheduled {
                treatment,
                block: 1,
            })
            .collect(),
        treatments,
        minimum_effect: 0.0,
        extended: false,
    };
    let host = serde_json::json!({"cpu": format!("Example CPU{words}")});
    let results = ResultsDir::create(path, &run, &format!("# {words}\n"), &host).unwrap();
    let bindings = [
        Binding::Maximum,
        Binding::Refused {
            why: format!("no memory{words}"),
        },
        Binding::Resource {
            resource: Resource::Pids,
            percent: 91.0,
        },
    ];
    for (place, treatment) in run.treatments.iter().take(4).enumerate() {
        let index = u32::try_from(place).unwrap();
        let writer = results.trial_writer(index).unwrap();
        let outcome = match bindings.get(place) {
            Some(binding) => {
                let climb = climb(&treatment.platform, 2000, binding.clone(), words);
                let text = serde_json::to_vec(&climb).unwrap();
                writer.write_workload_json(&text).unwrap();
                TrialOutcome::Complete
            }
            None => TrialOutcome::Failed(format!("it did not boot{words}")),
        };
        let trial = Trial {
            format: FORMAT,
            index,
            block: 1,
            treatment: treatment.clone(),
            started: "2026-11-20T14:03:00+01:00".to_owned(),
            outcome,
            disturbed: Vec::new(),
            suspect: match place {
                1 => vec![format!("steal 7 %{words}")],
                _ => Vec::new(),
            },
            times: PhaseTimes::default(),
            window: (Nanoseconds(0), Nanoseconds(0)),
            work: None,
            metrics: BTreeMap::new(),
            environment: BTreeMap::from([(format!("fact{words}"), format!("value{words}"))]),
            actors: Vec::new(),
            phases: Vec::new(),
            objective: None,
            observation: ObservationCost::default(),
        };
        writer.finish(trial).unwrap();
    }
    results
}

/// Text with parts of markup. It begins with a word, because a name without an addition may be a known one.
fn words() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        prop::sample::select(&FRAGMENTS[..]).prop_map(str::to_owned),
        ".{0,9}"
    ];
    prop::collection::vec(part, 1..6).prop_map(|parts| format!(" plain{}", parts.concat()))
}

/// The report of a run with these words.
fn report_of(words: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (page, _) = report::write(&run(&folder.path().join("run"), words)).unwrap();
    fs::read_to_string(page).unwrap()
}

#[test(needs = [test_all("takes 5 s")])]
fn text_of_a_results_directory_never_becomes_markup() {
    let plain = skeleton(&report_of(" plain"));
    proptest!(ProptestConfig::with_cases(24), |(words in words())| {
        let page = report_of(&words);
        prop_assert!(skeleton(&page) == plain, "the tags of the page depend on its text");
        let unprintable = |c: char| c.is_control() && !"\n\t".contains(c);
        let is_shown = text_of(&page).contains(&words.replace(unprintable, "\u{fffd}"));
        prop_assert!(is_shown);
    });
}

#[test]
fn a_report_has_a_row_for_each_climb_and_the_tables_of_the_paper() {
    let page = text_of(&report_of(""));
    for shown in [
        "3 of 5 climbs",
        "1 climb not run yet",
        "no further guest: no memory",
        "failed: it did not boot",
        "ended early: no more places",
        "Table I: fixed highest frequency",
        "measured: qemu · density",
    ] {
        assert!(page.contains(shown), "{shown}\n{page}");
    }
}
