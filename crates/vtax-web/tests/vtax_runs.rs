//! Runs that are started, paused, resumed and cancelled by what is posted to the real server; and what the
//! server keeps apart: those who look and those who change something, with a token and encrypted.
//!
//! The runs are a program's that only looks like `vtax`, with real processes, signals and files.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

/// Results directories that look like a real run's.
#[path = "../../vtax-report/tests/common/mod.rs"]
mod common;
mod fake;

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_density::limits::{Binding, Limits};
use vtax_density::record::{Climb, Interval, Latency, Sample};
use vtax_density::resources::{Memory, Resource};
use vtax_report::results::{ResultsDir, TrialOutcome};
use vtax_web::{Certificate, Doors, Keeper, Live, Server, Site, Starter, Token};

const OPERATOR: &str = "the operator's token";
const WATCHER: &str = "the watchers' token";
/// Longer than a trial of the fake vtax ever takes in these tests.
const LONG: u64 = 600_000;

/// A page that starts runs, and the folder of all of it.
struct Page {
    folder: tempfile::TempDir,
    server: Option<Server>,
}

impl Page {
    fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("plans")).unwrap();
        fs::write(folder.path().join("plans/small.toml"), fake::PLAN).unwrap();
        fake::program(folder.path());
        let mut page = Self {
            folder,
            server: None,
        };
        page.start();
        page
    }

    /// Starts another server in the place of the one there was, as after the death of that.
    fn start(&mut self) {
        self.server = None;
        let starter = Starter {
            program: self.path().join("vtax"),
            state: self.path().join("state"),
        };
        let site = Site::new(
            Arc::new(Live::default()),
            &self.path().join("results"),
            &starter.state,
        )
        .with_keeper(&self.path().join("state"), Keeper::start(starter).unwrap())
        .with_plans(&self.path().join("plans"));
        let doors = Doors {
            operator: Some(Token::new(OPERATOR)),
            watcher: Some(Token::new(WATCHER)),
            ..Doors::open("127.0.0.1:0".parse().unwrap())
        };
        self.server = Some(Server::start(site, &doors).unwrap());
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.server.as_ref().unwrap().address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream
    }

    /// Status and body of the answer to a request with these headers.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String, String) {
        let mut stream = self.connect();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_owned(), body.to_owned())
    }

    fn get(&self, path: &str) -> Value {
        let (status, _, body) = self.ask("GET", path, &bearer(OPERATOR), "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let headers = bearer(OPERATOR) + JSON;
        let (status, _, body) = self.ask("POST", path, &headers, &body.to_string());
        (status, serde_json::from_str(&body).unwrap())
    }

    fn tell(&self, dir: &str, ask: &str) {
        let (status, answer) = self.post("/api/run", &json!({"dir": dir, "ask": ask}));
        assert_eq!(status, 200, "{ask}: {answer}");
    }

    fn start_run(&self, dir: &str, at: &str) {
        let wanted = json!({"text": fake::PLAN, "dir": dir, "at": at});
        let (status, answer) = self.post("/api/runs", &wanted);
        assert_eq!(status, 200, "{answer}");
    }

    /// A run as it is now, once it is as `is` wants it.
    fn until(&self, dir: &str, is: impl Fn(&Value) -> bool) -> Value {
        let dir = dir.replace('/', "%2F");
        let mut stream = self.connect();
        write!(
            stream,
            "GET /api/run?dir={dir} HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
            bearer(OPERATOR)
        )
        .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut last = Value::Null;
        for line in BufReader::new(stream).lines() {
            let line = line.unwrap_or_else(|cause| panic!("{cause}; the last was {last}"));
            if let Some(data) = line.strip_prefix("data: ") {
                last = serde_json::from_str(data).unwrap();
                if is(&last) {
                    return last;
                }
            }
            assert!(Instant::now() < deadline, "the last was {last}");
        }
        panic!("it was followed no more; the last was {last}");
    }

    fn until_state(&self, dir: &str, state: &str) -> Value {
        self.until(dir, |run| run["state"] == state)
    }

    /// Waits until the lab's process is gone; a run that ended puts its host back first.
    fn lab(&self) -> u32 {
        let text = fs::read_to_string(self.path().join("state/lock")).unwrap();
        let text = text.strip_prefix("process ").unwrap();
        text.split(',').next().unwrap().parse().unwrap()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // A run that is still there ends by itself.
        fake::pace(self.path(), 0);
    }
}

const JSON: &str = "Content-Type: application/json\r\n";

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

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

#[test]
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
    // It has a session of its own: no signal of this one's terminal reaches it.
    let lab = rustix::process::Pid::from_raw(page.lab().try_into().unwrap());
    assert_eq!(rustix::process::getsid(lab).unwrap(), lab.unwrap());

    // Another run on this host would measure this one.
    let other = json!({"text": fake::PLAN, "dir": "other", "at": "local"});
    let (status, answer) = page.post("/api/runs", &other);
    assert_eq!(status, 409);
    assert!(
        answer["error"].as_str().unwrap().contains("new/small"),
        "{answer}"
    );

    // Asked to pause, it works on until the trial is over; it can be asked to go on after all.
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
    // What is there is not started over, and nothing is put into it.
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

#[test]
fn a_run_outlives_its_page_and_is_found_paused_and_cancelled_by_the_next() {
    let mut page = Page::open();
    fake::pace(page.path(), LONG);
    page.start_run("small", "local");
    page.until("small", |run| run["running"].is_object());
    page.tell("small", "pause");
    page.start();
    // What the page before was asked holds.
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
fn a_run_of_a_terminal_is_followed_and_paused_too() {
    let page = Page::open();
    fake::pace(page.path(), LONG);
    let results = page.path().join("results");
    fs::create_dir(&results).unwrap();
    let mut terminal = Command::new(page.path().join("vtax"))
        .arg("run")
        .arg(page.path().join("plans/small.toml"))
        .args(["--results", "mine", "--at", "local", "--json"])
        .current_dir(&results)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !results.join("mine/run.json").exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let run = page.until("mine", |run| run["running"].is_object());
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
    let plan = results.join("mine/plan.toml");
    // The plan that the directory holds is what goes on.
    fs::write(plan, fake::PLAN).unwrap();
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
    assert_eq!((&last["level"], &last["of"]), (&json!(30), &json!(40)));
    assert_eq!(
        last["readings"]["memory"],
        json!({"value": 30.0, "unit": "%"})
    );
    assert_eq!(run["density"], true);
    page.tell("climbs", "cancel");
    page.until_state("climbs", "cancelled");
    // They run on this host alone.
    let far = json!({"text": fake::CLIMBS, "dir": "far", "at": "ssh:elsewhere"});
    let (status, answer) = page.post("/api/runs", &far);
    assert_eq!(status, 409);
    assert!(
        answer["error"].as_str().unwrap().contains("this host only"),
        "{answer}"
    );
}

#[test]
fn what_climbs_found_is_listed_and_drawn() {
    let page = Page::open();
    let mut run = fake::invented().run_info();
    run.treatments.truncate(1);
    run.treatments[0].workload = "density".to_owned();
    run.schedule.truncate(1);
    let path = page.path().join("results/climbs");
    let results = ResultsDir::create(&path, &run, "", &json!({})).unwrap();
    let writer = results.trial_writer(0).unwrap();
    let interval = |population: u32| Interval {
        population,
        samples: vec![Sample {
            shares: [(Resource::Memory, f64::from(population))].into(),
            ..Sample::default()
        }],
        probe: Some(Latency {
            p99_us: 100.0,
            ..Latency::default()
        }),
        ..Interval::default()
    };
    let climb = Climb {
        version: 1,
        platform: "native".to_owned(),
        maximum: 90,
        limits: Limits {
            stop_percent: 90.0,
            reserve_percent: 10.0,
            probe_p99_ms: 1000.0,
        },
        processors: 2,
        before: Memory::default(),
        climb: vec![interval(30), interval(60), interval(90)],
        idle: None,
        descent: Vec::new(),
        after: Memory::default(),
        returned_after: 0.0,
        binding: Binding::Resource {
            resource: Resource::Memory,
            percent: 90.0,
        },
        own_cpu: 0.0,
        seconds: 3.0,
    };
    let record = serde_json::to_vec(&climb).unwrap();
    writer.write_workload_json(&record).unwrap();
    let mut trial = fake::invented().trial(&run, 0);
    trial.outcome = TrialOutcome::Complete;
    writer.finish(trial).unwrap();
    let listed = &page.get("/api/results")["runs"][0];
    assert_eq!(listed["density"], true);
    let found = listed["found"][0].as_str().unwrap();
    assert!(
        found.contains("90 guests") && found.contains("memory"),
        "{found}"
    );
    let panels = page.get("/api/curves?dir=climbs");
    let memory = &panels[0];
    assert_eq!(
        (&memory["metric"], &memory["unit"]),
        (&json!("memory"), &json!("%"))
    );
    let points = json!([
        [30.0, 30.0, null, null],
        [60.0, 60.0, null, null],
        [90.0, 90.0, null, null]
    ]);
    assert_eq!(memory["lines"][0]["points"], points);
    assert_eq!(panels[1]["lines"][0]["points"][0][1], 1e-4);
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
    // What ends before there is anything of it says its last words.
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

#[test]
fn watchers_look_strangers_do_not_and_only_the_operator_changes_anything() {
    let page = Page::open();
    fake::invented().write(&page.path().join("results/one"));
    let note = json!({"dir": "one", "text": "the fan was <loud>"}).to_string();
    let origin = "Origin: http://localhost\r\n";
    for (headers, looks, notes) in [
        (String::new(), 401, 401),
        (bearer("guess"), 401, 401),
        (bearer(WATCHER), 200, 403),
        ("Cookie: vtax-1=x\r\n".to_owned(), 401, 401),
    ] {
        for path in [
            "/api/results",
            "/api/run?dir=none",
            "/report?dir=one",
            "/api/plans",
        ] {
            let (status, ..) = page.ask("GET", path, &headers, "");
            let known = if looks == 401 {
                status == 401
            } else {
                status != 401 && status != 403
            };
            assert!(known, "{path} {headers}: {status}");
        }
        let (status, _, body) = page.ask(
            "POST",
            "/api/notes",
            &format!("{headers}{origin}{JSON}"),
            &note,
        );
        assert_eq!(status, notes, "{headers}: {body}");
        for path in ["/", "/app.js", "/api/about"] {
            assert_eq!(page.ask("GET", path, &headers, "").0, 200, "{path}");
        }
    }
    // A cookie in the place of a token, for pages of this server alone.
    let shown = json!({"token": OPERATOR}).to_string();
    let (status, head, body) = page.ask("POST", "/api/enter", &format!("{origin}{JSON}"), &shown);
    assert_eq!((status, body.as_str()), (200, "{\"may\":\"operate\"}"));
    let cookie = head
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap();
    let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    let post = |headers: &str| {
        page.ask("POST", "/api/notes", &format!("{cookie}{headers}"), &note)
            .0
    };
    assert_eq!(post(JSON), 403, "no page says that it asks");
    assert_eq!(post(&format!("Origin: http://evil.example\r\n{JSON}")), 403);
    assert_eq!(post(&format!("Origin: null\r\n{JSON}")), 403);
    assert_eq!(post(&format!("{origin}Content-Type: text/plain\r\n")), 415);
    assert_eq!(post(&format!("{origin}{JSON}")), 200);
    let wrong = json!({"token": "guess"}).to_string();
    assert_eq!(
        page.ask("POST", "/api/enter", &format!("{origin}{JSON}"), &wrong)
            .0,
        401
    );
    let evil = format!("Origin: http://evil.example\r\n{JSON}");
    assert_eq!(page.ask("POST", "/api/enter", &evil, &shown).0, 403);
    // The one note that was allowed is there, for good.
    let notes = page.get("/api/notes?dir=one");
    assert_eq!(notes.as_array().unwrap().len(), 1);
    assert_eq!(notes[0]["text"], "the fan was <loud>");
    assert!(page.path().join("results/one/notes.jsonl").exists());
    assert_eq!(
        page.get("/api/results")["runs"][0]["notes"][0],
        "the fan was <loud>"
    );
    // No state changes by GET.
    assert_eq!(page.ask("GET", "/api/enter", &bearer(OPERATOR), "").0, 405);
    // A body that never comes to its end holds nobody else up.
    let mut slow = page.connect();
    write!(
        slow,
        "POST /api/notes HTTP/1.1\r\nHost: localhost\r\n{}{JSON}Content-Length: 900000\r\n\r\n",
        bearer(OPERATOR)
    )
    .unwrap();
    assert_eq!(page.get("/api/notes?dir=one").as_array().unwrap().len(), 1);
}

#[test]
fn a_comparison_has_curves_notes_and_a_file_to_hand_on() {
    let page = Page::open();
    common::ramp::write(&page.path().join("results/a"));
    common::ramp::write(&page.path().join("results/b"));
    let note = json!({"dir": "a", "text": "</script><b>cold</b>", "trial": 2});
    assert_eq!(page.post("/api/notes", &note).0, 200);
    let compared = page.get("/api/compare?dir=a&dir=b");
    let panels = compared["panels"].as_array().unwrap();
    let p99 = panels
        .iter()
        .find(|panel| panel["metric"] == "latency.p99")
        .unwrap();
    let lines = p99["lines"].as_array().unwrap();
    assert_eq!((lines.len(), &lines[1]["run"]), (2, &json!(1)));
    let points = lines[0]["points"].as_array().unwrap();
    assert!(
        points.len() > 2 && points[0][0].as_f64() < points[1][0].as_f64(),
        "{p99}"
    );
    assert_eq!(compared["notes"][0][0]["trial"], 2);
    let (status, head, file) =
        page.ask("GET", "/api/compare.html?dir=a&dir=b", &bearer(WATCHER), "");
    assert_eq!(status, 200);
    assert!(
        head.contains("attachment; filename=\"vtax-comparison.html\""),
        "{head}"
    );
    assert!(head.contains("content-security-policy: sandbox "), "{head}");
    assert!(!file.contains("<b>cold"), "names and notes are text");
    assert!(file.contains("latency.p99") && file.contains("cold"));
}

#[test]
fn connections_are_encrypted_where_there_is_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            "/CN=vtax.test",
            "-addext",
            "subjectAltName=DNS:vtax.test",
        ])
        .arg("-keyout")
        .arg(path("key.pem"))
        .arg("-out")
        .arg(path("chain.pem"))
        .stderr(Stdio::null())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        println!(
            "SKIPPED connections_are_encrypted_where_there_is_a_certificate: openssl is not installed"
        );
        return;
    }
    let certificate = Certificate {
        chain: path("chain.pem"),
        key: path("key.pem"),
    };
    let doors = Doors {
        certificate: Some(certificate.clone()),
        watcher: Some(Token::new(WATCHER)),
        ..Doors::open("0.0.0.0:0".parse().unwrap())
    };
    let site = || Site::new(Arc::new(Live::default()), folder.path(), folder.path());
    let server = Server::start(site(), &doors).unwrap();
    let address = format!("127.0.0.1:{}", server.address().port());
    // One that says nothing keeps nobody out.
    let _silent: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    let ask = |host: &str, headers: &str| {
        let mut client = Command::new("openssl")
            .args([
                "s_client",
                "-quiet",
                "-verify_return_error",
                "-verify_hostname",
                "vtax.test",
            ])
            .arg("-CAfile")
            .arg(path("chain.pem"))
            .arg("-connect")
            .arg(&address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = client.stdin.take().unwrap();
        write!(
            input,
            "GET /api/results HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        client
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut answer)
            .unwrap();
        drop(input);
        client.wait().unwrap();
        answer
            .split(' ')
            .nth(1)
            .map(|status| status.parse::<u16>().unwrap())
    };
    let known = bearer(WATCHER);
    assert_eq!(ask("vtax.test", &known), Some(200));
    assert_eq!(ask("127.0.0.1:1", &known), Some(200));
    assert_eq!(ask("vtax.test", ""), Some(401));
    assert_eq!(ask("evil.example", &known), Some(403));
    let origin = |scheme| format!("{known}Origin: {scheme}://vtax.test\r\n");
    assert_eq!(ask("vtax.test", &origin("https")), Some(200));
    assert_eq!(ask("vtax.test", &origin("http")), Some(403));
    // What is not encrypted gets no answer.
    let mut plain = TcpStream::connect(&address).unwrap();
    write!(plain, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
    // A key of another certificate, or no key at all, is refused in words.
    for wrong in ["chain.pem", "none.pem"] {
        let doors = Doors {
            certificate: Some(Certificate {
                key: path(wrong),
                ..certificate.clone()
            }),
            ..doors.clone()
        };
        let told = Server::start(site(), &doors).unwrap_err().to_string();
        assert!(told.contains(wrong), "{told}");
    }
}
