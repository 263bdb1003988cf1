// SPDX-License-Identifier: Apache-2.0
//! Runs that are started, paused, resumed and cancelled by requests to the real server.
//!
//! The runs are those of a stand-in for `vtax`, with real processes, signals and files.

/// Results directories that look like a real run's.
use crate::fake;

use crate::fake::page::Page;
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;
use vtax_results::ResultsDir;

/// Longer than a trial of the fake vtax in these tests.
const LONG: u64 = 600_000;

fn count(run: &Value, state: &str) -> usize {
    let trials = run["trials"].as_array().unwrap();
    trials
        .iter()
        .filter(|trial| trial["state"] == state)
        .count()
}

fn over(run: &Value) -> usize {
    let trials = run["trials"].as_array().unwrap().len();
    trials - count(run, "waiting") - count(run, "running")
}

#[test(needs = [test_all("takes 3 s")])]
fn a_run_is_started_paused_after_a_trial_and_resumed_to_its_end() {
    let page = Page::open();
    fake::pace(page.path(), LONG);
    page.start_run("new/small", "local");
    let run = page.until("new/small", |run| run["running"]["phase"] == "measure");
    assert_eq!((run["state"].as_str(), over(&run)), (Some("running"), 0));
    assert_eq!(run["controlled"], true);
    assert_eq!(
        run["running"]["log"][0],
        "boot ".to_owned() + run["running"]["treatment"].as_str().unwrap()
    );
    assert!(
        run["notes"].to_string().contains("an image is <built>"),
        "{run}"
    );
    assert_eq!(page.get("/api/runs")["runs"][0]["dir"], "new/small");
    // The run has a session of its own: no signal of this test's terminal reaches it.
    let lab = rustix::process::Pid::from_raw(page.lab().try_into().unwrap());
    assert_eq!(rustix::process::getsid(lab).unwrap(), lab.unwrap());

    // Another run on this host would disturb the measurements of this one.
    let other = json!({"text": fake::PLAN, "dir": "other", "at": "local"});
    let (status, answer) = page.post("/api/runs", &other);
    assert_eq!(status, 409);
    assert!(
        answer["error"].as_str().unwrap().contains("new/small"),
        "{answer}"
    );

    // After a request to pause, the run continues until the trial is over; a request to proceed withdraws the pause.
    page.tell("new/small", "pause");
    page.until_state("new/small", "pausing");
    page.tell("new/small", "proceed");
    page.until_state("new/small", "running");
    page.tell("new/small", "pause");
    fake::pace(page.path(), 800);
    let paused = page.until_state("new/small", "paused");
    let done = over(&paused);
    assert!((1..8).contains(&done), "{paused}");
    assert_eq!(paused["resumable"], true);
    assert!(
        paused["messages"]
            .to_string()
            .contains("the same command goes on"),
        "{paused}"
    );

    fake::pace(page.path(), 0);
    page.tell("new/small", "resume");
    let complete = page.until_state("new/small", "complete");
    assert_eq!(
        over(&complete),
        24,
        "its directory holds a longer one than was planned"
    );
    assert!(count(&complete, "suspect") > 0, "{complete}");
    assert_eq!(page.get("/api/results")["runs"][0]["state"], "complete");
    // Complete results are not started again, and no run may write into them.
    let within = json!({"text": fake::PLAN, "dir": "new/small/trials/x", "at": "local"});
    let (status, answer) = page.post("/api/runs", &within);
    assert_eq!(status, 409);
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .contains("within another run"),
        "{answer}"
    );
    let (status, answer) = page.post(
        "/api/runs",
        &json!({"text": fake::PLAN, "dir": "new/small", "at": "local"}),
    );
    assert_eq!(status, 409, "{answer}");
}

/// Checks the samples that the page shows of a run in progress.
fn sampled(run: &Value) {
    let meters = &run["running"]["meters"];
    assert_eq!(meters["at"], json!([1.0, 2.0, 3.0]), "{run}");
    assert_eq!(meters["stages"][0]["name"], "vcpu");
    assert_eq!(meters["stages"][0]["values"], json!([0.3, 0.6, 0.9]));
    let actors = meters["actors"].as_array().unwrap();
    assert!(actors.contains(&json!(["host", "rest", 0.15])), "{meters}");
    let carried = &meters["carried"][0];
    assert_eq!(carried["values"], json!([1e8, 2e8, 3e8]));
    assert_eq!(carried["unit"], "B/s");
}

#[test(needs = [test_all("takes 4 s")])]
fn what_is_sampled_is_seen_of_every_run_that_reports_it() {
    let page = Page::open();
    fake::pace(page.path(), LONG);
    fs::create_dir(page.path().join("results")).unwrap();
    let third = |run: &Value| run["running"]["meters"]["at"][2].is_number();
    page.start_run("here", "local");
    sampled(&page.until("here", third));
    page.tell("here", "cancel");
    page.until_state("here", "cancelled");
    // Over ssh the samples arrive with the other events.
    page.start_run("far", "ssh:elsewhere");
    sampled(&page.until("far", third));
    page.tell("far", "cancel");
    page.until_state("far", "cancelled");
    // A link in the place of a trial's events is not followed.
    let fake = fake::invented();
    let results = fake.create(&page.path().join("results/linked"));
    let writer = results.trial_writer(0).unwrap();
    let secret = page.path().join("secret");
    fs::write(&secret, "{\"event\":\"phase\",\"phase\":\"secret\"}\n").unwrap();
    std::os::unix::fs::symlink(&secret, writer.path().join("events.jsonl")).unwrap();
    let run = page.until("linked", |run| run["running"].is_object());
    assert_eq!(run["running"]["phase"], "");
}

#[test(needs = [test_all("takes 4 s")])]
fn a_run_in_a_testbed_has_the_settings_that_were_chosen_and_keeps_them() {
    let page = Page::open();
    fake::pace(page.path(), LONG);
    fs::create_dir(page.path().join("results")).unwrap();
    let wanted = |settings: &str, at: &str| json!({"text": fake::PLAN, "dir": "bed", "at": at, "settings": settings, "jobs": 2, "quick": true});
    for (settings, at, why) in [
        ("seed = 7", "local", "testbed:kvm"),
        ("sead = 7", "testbed:kvm", "sead"),
    ] {
        let (status, answer) = page.post("/api/runs", &wanted(settings, at));
        assert_eq!(status, 409);
        assert!(answer["error"].as_str().unwrap().contains(why), "{answer}");
        let (_, checked) = page.post("/api/plan", &wanted(settings, at));
        assert!(
            checked["place"].as_str().unwrap().contains(why),
            "{checked}"
        );
    }
    assert_eq!(
        page.post("/api/runs", &wanted("seed = 7", "testbed:kvm")).0,
        200
    );
    let started = || {
        page.until("bed", |run| run["running"].is_object());
        let arguments = fs::read_to_string(page.path().join("state/arguments")).unwrap();
        let arguments: Vec<&str> = arguments.lines().collect();
        let after = |name: &str| {
            let at = arguments.iter().position(|one| *one == name).unwrap();
            arguments[at + 1].to_owned()
        };
        assert_eq!(
            (after("--place").as_str(), after("--jobs").as_str()),
            ("testbed:kvm", "2")
        );
        assert!(arguments.contains(&"--quick"));
        assert_eq!(fs::read_to_string(after("--testbed")).unwrap(), "seed = 7");
    };
    started();
    page.tell("bed", "cancel");
    page.until_state("bed", "cancelled");
    // The resumed run has the same settings.
    fs::remove_file(page.path().join("state/arguments")).unwrap();
    page.tell("bed", "resume");
    started();
    page.tell("bed", "cancel");
    page.until_state("bed", "cancelled");
}

#[test(needs = [test_all("takes 3 s")])]
fn a_run_outlives_its_page_and_is_found_paused_and_cancelled_by_the_next() {
    let mut page = Page::open();
    fake::pace(page.path(), LONG);
    page.start_run("small", "local");
    page.until("small", |run| run["running"].is_object());
    page.tell("small", "pause");
    page.start();
    // The request to the earlier page remains in force.
    page.until_state("small", "pausing");
    fake::pace(page.path(), 800);
    let paused = page.until_state("small", "paused");
    fake::pace(page.path(), LONG);
    page.tell("small", "resume");
    page.until("small", |run| {
        run["state"] == "running" && run["running"].is_object()
    });
    page.start();
    page.until_state("small", "running");
    page.tell("small", "cancel");
    let cancelled = page.until_state("small", "cancelled");
    assert_eq!(over(&cancelled), over(&paused), "what was finished stays");
    let (status, answer) = page.post("/api/run", &json!({"dir": "small", "ask": "cancel"}));
    assert_eq!((status, answer["error"].is_string()), (409, true));
}

#[test]
fn nobody_runs_a_plan_of_another_user_by_resuming_what_was_started_here() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give a directory away");
        return;
    }
    let page = Page::open();
    fake::pace(page.path(), LONG);
    page.start_run("small", "local");
    page.until("small", |run| run["running"].is_object());
    page.tell("small", "cancel");
    page.until_state("small", "cancelled");
    std::os::unix::fs::chown(page.path().join("results/small"), Some(65534), None).unwrap();
    let (status, answer) = page.post("/api/run", &json!({"dir": "small", "ask": "resume"}));
    let why = answer["error"].as_str().unwrap_or_default();
    assert_eq!(status, 409, "{answer}");
    assert!(why.contains("belongs to another user"), "{answer}");
}

#[test]
fn a_run_of_a_terminal_is_followed_and_paused_too() {
    let page = Page::open();
    fake::pace(page.path(), LONG);
    let results = page.path().join("results");
    fs::create_dir(&results).unwrap();
    let mut terminal = Command::new(page.path().join("vtax"))
        .arg("run")
        .arg(page.path().join("plans/small.toml"))
        .args(["--results", "mine", "--place", "local", "--json"])
        .current_dir(&results)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !results.join("mine/run.json").exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let run = page.until("mine", |run| run["running"]["meters"]["at"][2].is_number());
    sampled(&run);
    assert_eq!(run["running"]["phase"], "measure");
    assert_eq!(
        (&run["state"], &run["controlled"]),
        (&json!("running"), &json!(true))
    );
    page.tell("mine", "pause");
    page.until_state("mine", "pausing");
    fake::pace(page.path(), 800);
    assert!(!terminal.wait().unwrap().success());
    let paused = page.until_state("mine", "paused");
    assert!((1..8).contains(&over(&paused)), "{paused}");
    fake::pace(page.path(), 0);
    page.tell("mine", "resume");
    page.until_state("mine", "complete");
}

#[test]
fn a_run_elsewhere_is_seen_before_anything_of_it_is_here() {
    let page = Page::open();
    fake::pace(page.path(), 300);
    fs::create_dir(page.path().join("results")).unwrap();
    page.start_run("far", "ssh:elsewhere");
    let run = page.until("far", |run| over(run) > 1);
    assert_eq!(
        (&run["state"], &run["place"]),
        (&json!("running"), &json!("ssh:elsewhere"))
    );
    assert!(!page.path().join("results/far").exists());
    assert!(run["running"]["treatment"].is_string(), "{run}");
    assert_eq!(run["trials"].as_array().unwrap().len(), 8);
    fake::pace(page.path(), 0);
    page.until("far", |run| {
        run["state"] == "complete" && run["trials"][0]["numbers"][0].is_array()
    });
}

#[test]
fn what_a_directory_does_not_tell_is_not_guessed() {
    let page = Page::open();
    let mut run = fake::invented().run_info();
    run.place = "testbed:kvm".to_owned();
    let path = page.path().join("results/bed");
    ResultsDir::create(&path, &run, fake::PLAN, &json!({})).unwrap();
    assert_eq!(page.until_state("bed", "unfinished")["resumable"], false);
    let (status, answer) = page.post("/api/run", &json!({"dir": "bed", "ask": "resume"}));
    assert_eq!(status, 409);
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .contains("settings of the testbed"),
        "{answer}"
    );
}

#[test]
fn a_climb_is_seen_while_it_goes_up() {
    let page = Page::open();
    fake::pace(page.path(), LONG);
    let wanted = json!({"text": fake::CLIMBS, "dir": "climbs", "at": "local"});
    assert_eq!(page.post("/api/runs", &wanted).0, 200);
    let run = page.until("climbs", |run| run["running"]["points"][2].is_object());
    let last = &run["running"]["points"][2];
    assert_eq!((&last["level"], &last["of"]), (&json!(30.0), &json!(40.0)));
    assert_eq!(
        last["readings"]["memory"],
        json!({"value": 30.0, "unit": "%"})
    );
    assert_eq!(run["density"], true);
    page.tell("climbs", "cancel");
    page.until_state("climbs", "cancelled");
    let bed = json!({"text": fake::CLIMBS, "dir": "bed", "at": "testbed:kvm"});
    assert_eq!(page.post("/api/runs", &bed).0, 200);
    page.until("bed", |run| run["running"]["points"][2].is_object());
    page.tell("bed", "cancel");
    page.until_state("bed", "cancelled");
    let far = json!({"text": fake::CLIMBS, "dir": "far", "at": "ssh:elsewhere"});
    let (status, answer) = page.post("/api/runs", &far);
    assert_eq!(status, 409);
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .contains("`local` or `testbed:kvm`"),
        "{answer}"
    );
}

#[test]
fn what_cannot_be_started_says_why() {
    let page = Page::open();
    let start = |text: &str, dir: &str, at: &str| {
        let (status, answer) = page.post("/api/runs", &json!({"text": text, "dir": dir, "at": at}));
        assert_eq!(status, 409, "{answer}");
        answer["error"].as_str().unwrap().to_owned()
    };
    assert!(start("name = 1", "x", "local").contains("mistakes"));
    for dir in ["../x", "/tmp/x", ".hidden", "a/b/c/d/e"] {
        assert!(start(fake::PLAN, dir, "local").contains("below"), "{dir}");
    }
    assert!(start(fake::PLAN, "x", "moon:x").contains("is not a place"));
    assert!(start(fake::PLAN, "x", "ssh:-oProxyCommand=x").contains("is not a place"));
    for dir in ["", "."] {
        assert!(start(fake::PLAN, dir, "local").contains("a name"), "{dir}");
    }
    // A run that ends before its directory exists shows its last messages.
    let wanted = json!({"text": fake::PLAN, "dir": "nowhere", "at": "ssh:nowhere"});
    assert_eq!(page.post("/api/runs", &wanted).0, 200);
    let run = page.until_state("nowhere", "unfinished");
    assert_eq!(run["messages"], json!(["vtax: cannot reach <nowhere>"]));
    let typed = json!({"text": fake::PLAN.replace("idle", "idel"), "at": "local"});
    let (status, found) = page.post("/api/plan", &typed);
    assert_eq!(status, 200);
    let mistake = &found["mistakes"][0];
    assert_eq!(
        (&mistake["line"], &mistake["column"]),
        (&json!(9), &json!(8)),
        "{found}"
    );
    assert!(
        mistake["help"].as_str().unwrap().contains("idle"),
        "{found}"
    );
    let (_, found) = page.post("/api/plan", &json!({"text": fake::PLAN, "at": "local"}));
    assert_eq!(found["plan"]["schedule"].as_array().unwrap().len(), 8);
    assert!(
        found["plan"]["expected_seconds"].as_f64().unwrap() > 1.0,
        "{found}"
    );
    let many = fake::PLAN.replace("repetitions = 4", "repetitions = 40000");
    let (_, found) = page.post("/api/plan", &json!({"text": many, "at": "local"}));
    assert_eq!(found["trials"], 80_000, "{found}");
    assert!(found["plan"]["schedule"].as_array().unwrap().len() < 10_000);
    let plans = page.get("/api/plans");
    assert_eq!(plans["plans"][0]["path"], "small.toml");
    assert_eq!(page.get("/api/plan?path=small.toml")["text"], fake::PLAN);
    assert!(!page.path().join("results").exists());
}
