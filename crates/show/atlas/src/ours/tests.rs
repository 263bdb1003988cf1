// SPDX-License-Identifier: Apache-2.0
//! Tests of the stored numbers.

use super::*;
use serde_json::Value;
use std::fs;

fn no_models(_: &Trial) -> Vec<(String, BTreeMap<String, f64>)> {
    Vec::new()
}

#[test]
fn numbers_of_other_cost_models_come_back_from_their_file_and_follow_their_plan() {
    let kept = "plan,treatment,metric,model,value\np,vm · send,model.power,genoa,2.5\n\
                p,vm · send,model.power,rome,3\nq,vm · send,model.power,rome,4\n";
    let ours = Ours::kept().unwrap();
    let number = ours.numbers.values().next().unwrap();
    let mut all = Ours {
        models: models_of_csv(kept).unwrap(),
        ..Ours::default()
    };
    let keys: Vec<Key> = all.models.keys().cloned().collect();
    all.numbers
        .extend(keys.iter().map(|key| (key.clone(), number.clone())));
    assert_eq!(all.models_csv(), kept);
    for wrong in ["", &kept.replace("3", "three"), &format!("{kept}p,x\n")] {
        assert!(models_of_csv(wrong).is_err(), "{wrong}");
    }
    // A newer run of a plan replaces what other models made of the older one.
    all.take(Ours {
        origins: [("p".to_owned(), Origin::default())].into(),
        ..Ours::default()
    });
    assert_eq!(all.models.keys().collect::<Vec<_>>(), [&keys[1]]);
}

#[test]
fn numbers_come_back_from_their_file() {
    let key = |plan: &str, treatment: &str| Key {
        plan: plan.into(),
        treatment: treatment.into(),
        metric: "a + b".into(),
    };
    let number = Number {
        value: 0.1 + 0.2,
        interval: Some(Interval {
            low: 1e-9,
            high: 4.0,
        }),
        n: 4,
        unit: "cycle/GB".parse().unwrap(),
        source: Source::Emulated,
        varies: "seed".into(),
    };
    let origin = Origin {
        host: "A \"fast\" one, of 2".into(),
        ..Origin::default()
    };
    let ours = Ours {
        numbers: [
            (key("p", "x, y · \"z\""), number.clone()),
            (
                key("p", "w"),
                Number {
                    interval: None,
                    ..number.clone()
                },
            ),
        ]
        .into(),
        origins: [("p".to_owned(), origin)].into(),
        models: BTreeMap::new(),
        earlier: BTreeSet::new(),
    };
    let text = ours.csv(&ours.numbers.keys().cloned().collect());
    assert_eq!(Ours::of_csv(&text).unwrap(), ours);
    assert_eq!(ours.csv(&[key("q", "w")].into()).lines().count(), 1);
    for wrong in [
        "",
        "a,b\n",
        &format!("{text}p,x\n"),
        &text.replace(",4,", ",four,"),
    ] {
        assert!(Ours::of_csv(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_old_number_of_an_emulated_host_is_simulated_and_one_of_another_place_stays_emulated() {
    let read = |place: &str, flag: &str| {
        let text = format!(
            "{COLUMNS}\np,vm · send,cpu,1,,,1,core,{flag},trial,1,h,2026-01-01T00:00:00Z,{place},quick,4,x,\n"
        );
        let ours = Ours::of_csv(&text).unwrap();
        ours.numbers.into_values().next().unwrap().source
    };
    assert_eq!(read("testbed:kvm", "emulated"), Source::Simulated);
    assert_eq!(read("testbed:xen", "simulated"), Source::Simulated);
    assert_eq!(read("local", "emulated"), Source::Emulated);
    assert_eq!(read("testbed:kvm", "measured"), Source::Measured);
}

/// Makes a results directory of the plan `p` with three blocks of one treatment.
fn create_for_three_blocks(root: &Path, treatment: &Value, host: &Value) {
    let run = serde_json::from_value(
        serde_json::json!({ "format": 2, "name": "p", "description": "", "seed": 1,
        "profile": "quick", "place": "local", "started": "2026-01-01T00:00:00Z", "plan_sha256": "x",
        "treatments": [treatment], "minimum_effect": 0.02,
        "schedule": [{"treatment": 0, "block": 0}, {"treatment": 0, "block": 1}, {"treatment": 0, "block": 2}] }),
    );
    ResultsDir::create(root, &run.unwrap(), "", host).unwrap();
}

#[test]
fn sums_of_metrics_are_taken_trial_by_trial_and_of_those_that_count() {
    let root = tempfile::tempdir().unwrap();
    let treatment = serde_json::json!({ "label": "vm · send", "platform": "vm", "workload": "send", "factors": {},
        "baseline": null, "platform_kind": "qemu", "workload_kind": "iperf3-send" });
    let host = serde_json::json!({ "vtax": "9", "kernel": "6.1", "cpu": { "model": "C" } });
    create_for_three_blocks(root.path(), &treatment, &host);
    for (index, a, suspect) in [(0, 1.0, vec![]), (1, 3.0, vec![]), (2, 500.0, vec!["busy"])] {
        let metric = |value: f64| serde_json::json!({ "value": value, "unit": "core", "source": "emulated", "better": "lower", "title": "t" });
        let times = serde_json::json!({ "boot": 0, "service": 0, "warmup": 0, "measured": 1, "teardown": 0, "total": 1 });
        let trial = serde_json::json!({ "format": 2, "index": index, "block": index, "treatment": treatment,
            "started": "2026-01-01T00:00:00Z", "outcome": "complete", "suspect": suspect, "times": times,
            "window": [0, 1], "work": null, "metrics": { "a": metric(a), "b": metric(10.0) }, "environment": {},
            "actors": [{ "name": "large", "role": "neighbour", "platform": "qemu", "workload": "cpu",
                "place": "local", "metrics": { "a": metric(7.0 * a) }, "environment": {} }],
            "observation": { "cpu": 0, "passes": 1, "missed": 0 } });
        let folder = root.path().join(format!("trials/{index:04}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("trial.json"), trial.to_string()).unwrap();
    }
    let key = |metric: &str| Key {
        plan: "p".into(),
        treatment: "vm · send".into(),
        metric: metric.into(),
    };
    let wanted = ["a + b", "a + none", "large: a", "large: b", "small: a"].map(key);
    let wanted = wanted.into();
    let ours = Ours::of_results(root.path(), "p", None, &wanted, no_models).unwrap();
    let number = &ours.numbers[&key("a + b")];
    assert_eq!((number.value, number.n), (12.0, 2));
    assert!(
        number
            .interval
            .is_some_and(|interval| interval.contains(12.0))
    );
    assert_eq!(
        (number.source, number.varies.as_str()),
        (Source::Emulated, "trial")
    );
    assert_eq!(ours.numbers[&key("large: a")].value, 14.0);
    for absent in ["a + none", "large: b", "small: a"] {
        assert!(!ours.numbers.contains_key(&key(absent)), "{absent}");
    }
    assert_eq!(ours.origins["p"].host, "C, 6.1");
    let another = Ours::of_results(root.path(), "p", Some("another text"), &wanted, no_models);
    assert!(matches!(another, Err(AtlasError::AnotherPlan { .. })));
}

#[test]
fn a_load_level_is_each_trials_own_knee_or_its_lowest() {
    let root = tempfile::tempdir().unwrap();
    let treatment = serde_json::json!({ "label": "xen · 1KB", "platform": "xen", "workload": "1KB", "factors": {},
        "baseline": null, "platform_kind": "xen", "workload_kind": "http-rate" });
    let metric = |value: f64, unit: &str| serde_json::json!({ "value": value, "unit": unit, "source": "emulated", "better": "lower", "title": "t" });
    create_for_three_blocks(root.path(), &treatment, &serde_json::json!({}));
    // The knee of the second trial is one level higher than that of the first. The third has no knee. Knees are offered
    // loads, which are not quite their levels.
    for (index, knee) in [(0, Some(20.3)), (1, Some(25.7)), (2, None)] {
        let phases: Vec<_> = [20.0, 26.0, 33.8]
            .into_iter()
            .zip(1u32..)
            .map(|(level, place)| {
                let cores = 0.1 * f64::from(place) + 0.01 * f64::from(index);
                serde_json::json!({ "name": format!("{level} op/s"), "level": { "value": level, "unit": "op/s" },
                    "window": [0, 1], "work": null, "kept": knee.is_some_and(|knee| level <= knee * 1.02),
                    "metrics": { "a": metric(cores, "core"), "b": metric(1.0, "core") } })
            })
            .collect();
        let mut metrics = serde_json::json!({ "a": metric(9.0, "core") });
        if let Some(knee) = knee {
            metrics["knee"] = metric(knee, "op/s");
        }
        let times = serde_json::json!({ "boot": 0, "service": 0, "warmup": 0, "measured": 1, "teardown": 0, "total": 1 });
        let trial = serde_json::json!({ "format": 2, "index": index, "block": index, "treatment": treatment,
            "started": "2026-01-01T00:00:00Z", "outcome": "complete", "suspect": [], "times": times,
            "window": [0, 1], "work": null, "metrics": metrics, "environment": {}, "phases": phases,
            "observation": { "cpu": 0, "passes": 1, "missed": 0 } });
        let folder = root.path().join(format!("trials/{index:04}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("trial.json"), trial.to_string()).unwrap();
    }
    let key = |metric: &str| Key {
        plan: "p".into(),
        treatment: "xen · 1KB".into(),
        metric: metric.into(),
    };
    let wanted = [
        "a @ knee",
        "a + b @ knee",
        "a @ lowest",
        "a",
        "a @ top",
        "none @ knee",
    ]
    .map(key);
    let ours = Ours::of_results(root.path(), "p", None, &wanted.into(), no_models).unwrap();
    let found = |metric| {
        let number = ours.numbers.get(&key(metric))?;
        Some(((number.value * 1e6).round() / 1e6, number.n))
    };
    // 0.10 at the first trial's knee, the level of 20/s, 0.21 at the second's of 26/s.
    assert_eq!(found("a @ knee"), Some((0.155, 2)));
    assert_eq!(found("a + b @ knee"), Some((1.155, 2)));
    assert_eq!(found("a @ lowest"), Some((0.11, 3)));
    assert_eq!(found("a"), Some((9.0, 3)));
    assert_eq!((found("a @ top"), found("none @ knee")), (None, None));
}

#[test]
fn a_later_run_of_a_plan_replaces_all_of_it() {
    let kept = "plan,treatment,metric,value,low,high,n,unit,source,varies,vtax,host,started,place,profile,planned,plan_sha256,archive_sha256\n\
                p,one,m,1,,,1,s,measured,trials,0,h,t,local,full,3,x,y\n\
                p,two,m,2,,,1,s,measured,trials,0,h,t,local,full,3,x,y\n\
                q,one,m,3,,,1,s,measured,trials,0,h,t,local,full,3,x,y\n";
    let mut all = Ours::of_csv(kept).unwrap();
    let newer = kept.lines().take(2).collect::<Vec<_>>().join("\n");
    all.take(Ours::of_csv(&newer.replace("one,m,1", "one,m,9")).unwrap());
    let values: Vec<f64> = all.numbers.values().map(|number| number.value).collect();
    assert_eq!(values, [9.0, 3.0]);
}

/// The stored numbers of the plans whose runs are archived, and those that are computed again from the archives.
#[test]
fn each_stored_number_is_computed_again_from_the_trials_of_its_archive() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let (kept, catalogue) = (Ours::kept().unwrap(), Catalogue::read().unwrap());
    let wanted = crate::wanted(&catalogue.figures);
    let mut archived = 0;
    for (plan, origin) in &kept.origins {
        let archive = archive::path_of(&root.join("papers/runs"), plan);
        assert_eq!(
            archive.exists(),
            !origin.archive_sha256.is_empty(),
            "{plan}"
        );
        if !archive.exists() {
            continue;
        }
        let bytes = fs::read(&archive).unwrap();
        assert_eq!(
            digest(&bytes),
            origin.archive_sha256,
            "{}",
            archive.display()
        );
        let results = tempfile::tempdir().unwrap();
        archive::unpack(&archive, results.path()).unwrap();
        let again = Ours::of_results(results.path(), plan, None, &wanted, no_models).unwrap();
        assert_eq!(again.origins[plan], *origin);
        let stored = kept.numbers.iter().filter(|(key, _)| key.plan == *plan);
        let stored: BTreeMap<Key, Number> = stored
            .map(|(key, number)| (key.clone(), number.clone()))
            .collect();
        assert_eq!(again.numbers, stored, "{plan}");
        archived += 1;
    }
    assert!(archived > 0, "no run is archived");
}

#[test]
fn an_archive_is_the_same_bytes_again_and_a_foreign_one_writes_nothing_outside() {
    let folder = tempfile::tempdir().unwrap();
    let (results, archive) = (folder.path().join("run"), folder.path().join("p.jsonl.gz"));
    let treatment = serde_json::json!({ "label": "vm · send", "platform": "vm", "workload": "send", "factors": {},
        "baseline": null, "platform_kind": "qemu", "workload_kind": "iperf3-send" });
    create_for_three_blocks(&results, &treatment, &serde_json::json!({ "vtax": "9" }));
    let packed = || archive::packed(&ResultsDir::open(&results).unwrap());
    let first = packed().unwrap();
    fs::write(&archive, &first).unwrap();
    let unpacked = folder.path().join("again");
    fs::create_dir(&unpacked).unwrap();
    archive::unpack(&archive, &unpacked).unwrap();
    assert_eq!(
        archive::packed(&ResultsDir::open(&unpacked).unwrap()).unwrap(),
        first
    );
    // A run whose plan was changed later is not packed.
    fs::write(results.join("plan.toml"), "another").unwrap();
    let refused = packed().unwrap_err().to_string();
    assert!(
        refused.contains("plan.toml was changed after the run began"),
        "{refused}"
    );
    for path in [
        "../escape",
        "/tmp/escape",
        "trials/0000/../../../escape",
        "report.html",
    ] {
        let line = serde_json::json!({ "path": path, "text": "x" }).to_string();
        let file = fs::File::create(&archive).unwrap();
        let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, line.as_bytes()).unwrap();
        packed.finish().unwrap();
        let refused = archive::unpack(&archive, &unpacked)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("no record of a run"), "{path}: {refused}");
    }
    for wrong in [&b"no archive"[..], &first[..first.len() / 2]] {
        fs::write(&archive, wrong).unwrap();
        assert!(archive::unpack(&archive, &unpacked).is_err());
    }
}

#[test]
fn a_single_draw_has_the_error_of_the_draws_of_its_metric() {
    let mut ours = Ours::kept().unwrap();
    let number = ours.numbers.values().next().unwrap().clone();
    ours.numbers.clear();
    let key = |treatment: &str| Key {
        plan: "p".into(),
        treatment: treatment.into(),
        metric: "m".into(),
    };
    let drawn = |half: f64, n| Number {
        value: 1.0,
        interval: Some(Interval {
            low: (-half).exp(),
            high: half.exp(),
        }),
        n,
        varies: "seed".into(),
        ..number.clone()
    };
    ours.numbers.insert(key("two"), drawn(0.5, 2));
    assert_eq!(ours.spread("m"), None);
    ours.numbers.insert(key("four"), drawn(0.1, 4));
    assert!((ours.spread("m").unwrap() - 0.2_f64.exp()).abs() < 1e-9);
    assert_eq!(ours.spread("other"), None);
}

#[test]
fn what_was_kept_is_of_plans_and_figures_that_are_there() {
    let (kept, catalogue) = (Ours::kept().unwrap(), Catalogue::read().unwrap());
    let wanted = crate::wanted(&catalogue.figures);
    for key in &wanted {
        let level = key.metric.split_once(" @ ").map(|(_, level)| level);
        assert!(
            level.is_none_or(|level| [KNEE, LOWEST].contains(&level)),
            "{key:?} is at no level that there is"
        );
    }
    for key in kept.numbers.keys() {
        assert!(
            wanted.contains(key),
            "{key:?} is of no figure: `vtax atlas --keep` writes the files anew"
        );
    }
}
