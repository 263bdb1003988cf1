// SPDX-License-Identifier: Apache-2.0
//! Access to results with a token and encryption; notes, curves and climbs of results.

/// Results directories that look like a real run's.
use crate::fake;

use crate::fake::page::{JSON, OPERATOR, Page, WATCHER, bearer};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use vtax_density::limits::{Binding, Limits};
use vtax_density::record::{Climb, Interval, Latency, Sample};
use vtax_density::resources::{Memory, Resource};
use vtax_results::{ResultsDir, TrialOutcome};
use vtax_web::{AppState, Certificate, ListenerSettings, Live, Server, Token};

#[test]
fn a_plan_with_commands_is_neither_checked_nor_started_for_a_watcher() {
    let page = Page::open();
    let mark = page.path().join("ran");
    let plan = format!(
        "name = \"own\"\n[[platform]]\nkind = \"native\"\n[[workload]]\nkind = \"command\"\nload = \"touch {}\"\n",
        mark.display()
    );
    let body = json!({"text": plan, "dir": "own", "at": "local", "quick": true}).to_string();
    let origin = "Origin: http://localhost\r\n";
    for path in ["/api/plan", "/api/runs"] {
        for (headers, expected) in [(String::new(), 401), (bearer(WATCHER), 403)] {
            let headers = format!("{headers}{origin}{JSON}");
            let (status, _, answer) = page.ask("POST", path, &headers, &body);
            assert_eq!(status, expected, "{path}: {answer}");
        }
    }
    assert!(!page.path().join("results/own").exists() && !mark.exists());
    // The operator sees the command before it runs.
    let headers = format!("{}{origin}{JSON}", bearer(OPERATOR));
    let (status, _, answer) = page.ask("POST", "/api/plan", &headers, &body);
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("command, load: touch "), "{answer}");
    assert!(!mark.exists());
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
            "/api/atlas.html",
            "/api/run?dir=none",
            "/report?dir=one",
            "/api/plan-history.html?plan=one",
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
    // A cookie and a key in the place of a token, for pages of this server alone.
    let shown = json!({"token": OPERATOR}).to_string();
    let (status, head, body) = page.ask("POST", "/api/enter", &format!("{origin}{JSON}"), &shown);
    assert_eq!(status, 200, "{body}");
    let entered: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(entered["may"], "operate");
    let key = format!("Vtax-Key: {}\r\n", entered["key"].as_str().unwrap());
    let cookie = head
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap();
    let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    // The browser sends the cookie to a server on another port, and nothing else.
    let alone = format!("{cookie}{origin}{JSON}");
    assert_eq!(page.ask("POST", "/api/notes", &alone, &note).0, 403);
    assert_eq!(
        page.ask("GET", "/api/results", &cookie, "").0,
        200,
        "it looks"
    );
    let keyed = format!("{key}{origin}{JSON}");
    assert_eq!(page.ask("POST", "/api/notes", &keyed, &note).0, 401);
    let post = |headers: &str| {
        page.ask(
            "POST",
            "/api/notes",
            &format!("{cookie}{key}{headers}"),
            &note,
        )
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
        403
    );
    let evil = format!("Origin: http://evil.example\r\n{JSON}");
    assert_eq!(page.ask("POST", "/api/enter", &evil, &shown).0, 403);
    // The one accepted note is stored in the results directory.
    let notes = page.get("/api/notes?dir=one");
    assert_eq!(notes.as_array().unwrap().len(), 1);
    assert_eq!(notes[0]["text"], "the fan was <loud>");
    assert!(page.path().join("results/one/notes.jsonl").exists());
    assert_eq!(
        page.get("/api/results")["runs"][0]["notes"][0],
        "the fan was <loud>"
    );
    let beyond = json!({"dir": "one", "text": "x", "trial": 4000});
    let (status, refused) = page.post("/api/notes", &beyond);
    assert_eq!(status, 409);
    let why = refused["error"].as_str().unwrap();
    assert!(why.contains("no trial 4000"), "{why}");
    // GET changes no state.
    assert_eq!(page.ask("GET", "/api/enter", &bearer(OPERATOR), "").0, 405);
    // A request whose body is incomplete does not delay other requests.
    let mut slow = page.connect();
    write!(
        slow,
        "POST /api/notes HTTP/1.1\r\nHost: localhost\r\n{}{JSON}Content-Length: 900000\r\n\r\n",
        bearer(OPERATOR)
    )
    .unwrap();
    assert_eq!(page.get("/api/notes?dir=one").as_array().unwrap().len(), 1);
}

#[test(needs = [brought_by_test_all("openssl")])]
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
    assert!(made.is_ok_and(|status| status.success()));
    let certificate = Certificate {
        chain: path("chain.pem"),
        key: path("key.pem"),
    };
    let settings = ListenerSettings {
        certificate: Some(certificate.clone()),
        watcher: Some(Token::from_text(WATCHER)),
        ..ListenerSettings::open("0.0.0.0:0".parse().unwrap())
    };
    let app = || AppState::new(Arc::new(Live::default()), folder.path(), folder.path());
    let server = Server::start(app(), &settings).unwrap();
    let address = format!("127.0.0.1:{}", server.address().port());
    // Silent connections do not keep others out.
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
    // The server accepts no version older than TLS 1.3, whatever features this build enables in libraries.
    let greeted = |version: &str| {
        let greeting = Command::new("openssl")
            .args(["s_client", "-connect", &address, version])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        greeting.status.success()
    };
    assert!(greeted("-tls1_3"));
    assert!(!greeted("-tls1_2"));
    // An unencrypted request gets no response.
    let mut plain = TcpStream::connect(&address).unwrap();
    write!(plain, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
    // The key of another certificate, or a missing key, is an error that names the file.
    for wrong in ["chain.pem", "none.pem"] {
        let settings = ListenerSettings {
            certificate: Some(Certificate {
                key: path(wrong),
                ..certificate.clone()
            }),
            ..settings.clone()
        };
        let reported = Server::start(app(), &settings).unwrap_err().to_string();
        assert!(reported.contains(wrong), "{reported}");
    }
}

#[test]
fn a_comparison_has_curves_notes_and_a_file_to_hand_on() {
    let page = Page::open();
    vtax_testkit::results::ramp::write(&page.path().join("results/a"));
    vtax_testkit::results::ramp::write(&page.path().join("results/b"));
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
        cloud: None,
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
