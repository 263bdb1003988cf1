// SPDX-License-Identifier: Apache-2.0
//! The real server on loopback with requests of browsers and of strangers; the host is a fake one.
//!
//! Runs count as in progress only where a program whose name begins with `vtax` writes them; the name of this program
//! does.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_charge::fake::Host;
use vtax_inventory::Platform;
use vtax_results::ResultsDir;
/// Results directories that look like a real run's.
use vtax_testkit::results::Fake;
use vtax_web::{AppState, Certificate, ListenerSettings, Live, Server, Token, WebError};

/// A server and the live host that it serves.
struct Page {
    live: Arc<Live>,
    server: Server,
}

impl Page {
    fn open() -> Self {
        Self::with(Path::new("/nonexistent"))
    }

    /// A server with the results below a directory.
    fn with(results: &Path) -> Self {
        let live = Arc::new(Live::default());
        let app = AppState::new(Arc::clone(&live), results, Path::new("/nonexistent"));
        let server = Server::start(app, &ListenerSettings::open(anywhere())).unwrap();
        Self { live, server }
    }

    /// The head and the body of the response to a request.
    fn ask(&self, method: &str, path: &str, headers: &str) -> (String, String) {
        let mut stream = self.connect();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn get(&self, path: &str) -> (String, String) {
        self.ask("GET", path, "Host: localhost\r\n")
    }

    fn json(&self, path: &str) -> Value {
        let (head, body) = self.get(path);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The updates of a watcher, as they arrive.
    fn watch(&self, look: &str) -> impl Iterator<Item = (usize, Value)> + use<> {
        self.events(&format!("/api/live?{look}"))
    }

    /// Server-sent events, each with its size in bytes.
    fn events(&self, path: &str) -> impl Iterator<Item = (usize, Value)> + use<> {
        let mut stream = self.connect();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.filter_map(|line| {
            let data = line.strip_prefix("data: ")?.to_owned();
            Some((data.len(), serde_json::from_str(&data).unwrap()))
        })
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.server.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }
}

const OPERATOR: &str = "the operator's token";

fn anywhere() -> std::net::SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn policy(head: &str) -> &str {
    let mut lines = head.lines();
    let policy = lines.find_map(|line| line.strip_prefix("content-security-policy: "));
    policy.unwrap()
}

#[test]
fn the_page_and_its_files_come_with_a_policy_that_lets_nothing_else_in() {
    let page = Page::open();
    let (head, body) = page.get("/");
    assert!(
        head.starts_with("HTTP/1.1 200") && body.contains("<main"),
        "{head}"
    );
    let policy = policy(&head);
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self';"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"), "{policy}");
    for header in [
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cross-origin-resource-policy: same-origin",
    ] {
        assert!(head.contains(header), "{head}");
    }
    for (path, kind) in [
        ("/app.js", "text/javascript"),
        ("/app.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
        ("/uplot.js", "text/javascript"),
    ] {
        let (head, body) = page.get(path);
        assert!(head.contains(kind) && body.len() > 100, "{path}: {head}");
    }
}

#[test]
fn other_hosts_names_and_other_origins_are_refused_everywhere() {
    let page = Page::open();
    for path in [
        "/",
        "/api/about",
        "/api/live",
        "/api/history?span=hour",
        "/nothing",
    ] {
        for headers in [
            "Host: evil.example\r\n",
            "Host: evil.example:19191\r\n",
            "Host: localhost\r\nOrigin: http://evil.example\r\n",
            "Host: localhost\r\nOrigin: null\r\n",
            "Host: localhost\r\nOrigin: http://localhost:3000\r\n",
        ] {
            let (head, body) = page.ask("GET", path, headers);
            assert!(head.starts_with("HTTP/1.1 403"), "{path} {headers}: {head}");
            assert!(body.contains("\"error\""), "{body}");
        }
    }
    let (head, _) = page.ask(
        "GET",
        "/api/about",
        "Host: localhost:7\r\nOrigin: http://localhost:7\r\n",
    );
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

#[test]
fn nothing_is_changed_by_whom_the_page_does_not_know() {
    let page = Page::open();
    let own = "Host: localhost\r\nOrigin: http://localhost\r\n";
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        for path in [
            "/api/runs",
            "/api/run",
            "/api/notes",
            "/api/machines",
            "/api/live",
        ] {
            for (headers, status) in [
                // No origin, the origin of another page, and the origin of this server's page without a token.
                ("Host: localhost\r\n", "403"),
                ("Host: localhost\r\nOrigin: http://evil.example\r\n", "403"),
                (own, "403"),
                ("Host: localhost\r\nAuthorization: Bearer guess\r\n", "40"),
            ] {
                let headers = format!("{headers}Content-Length: 0\r\n");
                let (head, _) = page.ask(method, path, &headers);
                assert!(
                    head.starts_with(&format!("HTTP/1.1 {status}")),
                    "{method} {path} {headers}: {head}"
                );
            }
        }
        let headers = format!("{own}Content-Length: 0\r\n");
        let (head, _) = page.ask(method, "/", &headers);
        assert!(head.starts_with("HTTP/1.1 405"), "{method}: {head}");
    }
}

#[test]
fn only_the_pages_own_files_are_there() {
    let page = Page::open();
    for path in [
        "/../Cargo.toml",
        "/%2e%2e/Cargo.toml",
        "//etc/passwd",
        "/app.js/../../src/lib.rs",
        "/assets/app.js",
        "/LICENSE.uplot",
    ] {
        let (head, body) = page.get(path);
        assert!(head.starts_with("HTTP/1.1 404"), "{path}: {head}");
        assert!(body.contains("there is no such page"), "{body}");
    }
}

#[test]
fn an_address_that_leaves_the_host_is_refused_with_the_way_to_do_it() {
    let app = || {
        AppState::new(
            Arc::default(),
            Path::new("/nonexistent"),
            Path::new("/nonexistent"),
        )
    };
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let open = ListenerSettings::open(address.parse().unwrap());
        let guarded = ListenerSettings {
            operator: Some(Token::from_text(OPERATOR)),
            ..open.clone()
        };
        let encrypted = ListenerSettings {
            certificate: Some(Certificate {
                chain: "/nonexistent/chain".into(),
                key: "/nonexistent/key".into(),
            }),
            ..open.clone()
        };
        for (settings, why) in [
            (open, "unencrypted"),
            (guarded, "unencrypted"),
            (encrypted, "without a token"),
        ] {
            let refused = Server::start(app(), &settings).unwrap_err();
            assert!(matches!(refused, WebError::LeavesTheHost(..)));
            let reported = refused.to_string();
            assert!(
                reported.contains("ssh -L") && reported.contains(why),
                "{reported}"
            );
        }
    }
    let page = Page::open();
    let taken = Server::start(app(), &ListenerSettings::open(page.server.address())).unwrap_err();
    assert!(taken.to_string().contains("--listen"), "{taken}");
}

#[test]
fn a_guest_comes_and_goes_and_its_history_stays() {
    let page = Page::open();
    let mut host = Host::default();
    page.live.show(host.pass(1_000_000));
    let mut updates = page.watch("guest=4");
    let (_, update) = updates.next().unwrap();
    assert_eq!(
        (&update["guests"], &update["guest"]),
        (&0.into(), &Value::Null)
    );
    host.start(4);
    page.live.show(host.pass(1_000_000));
    let (_, update) = updates.next().unwrap();
    assert_eq!(update["rows"][0]["name"], "guest-4");
    assert_eq!(update["guest"]["platform"], "docker");
    host.end(4);
    page.live.show(host.pass(1_000_000));
    let (_, update) = updates.next().unwrap();
    assert_eq!((&update["tick"], &update["guests"]), (&3.into(), &0.into()));
    let past = page.json("/api/history?span=hour&guest=4");
    assert_eq!(
        (&past["name"], past["at"].as_array().unwrap().len()),
        (&"guest-4".into(), 1)
    );
    assert_eq!(
        page.json("/api/history?span=hour")["at"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    let (head, table) = page.get("/api/history.csv?span=hour&guest=4");
    assert!(head.contains("filename=\"vtax-guest-4.csv\""), "{head}");
    assert_eq!(table.lines().count(), 2, "{table}");
}

#[test]
fn what_is_not_there_or_makes_no_sense_is_reported() {
    let page = Page::open();
    for (path, status) in [
        ("/api/history?span=hour&guest=7", "404"),
        ("/api/history.csv?span=day&guest=7", "404"),
        ("/api/history?span=year", "400"),
        ("/api/history", "400"),
        ("/api/live?guest=x", "400"),
        ("/api/live?reversed=perhaps", "400"),
    ] {
        let (head, body) = page.get(path);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}")),
            "{path}: {head}"
        );
        assert!(
            serde_json::from_str::<Value>(&body).unwrap()["error"].is_string(),
            "{body}"
        );
    }
}

#[test]
fn a_hostile_name_is_data_and_nothing_else() {
    let page = Page::open();
    let mut host = Host::default();
    let name = "</script><img src=x onerror=alert(1)>\r\n\r\ndata: {}\r\nevent: x";
    host.start_named(1, name, Platform::Qemu);
    page.live.show(host.pass(1_000_000));
    let (_, update) = page.watch("guest=1").next().unwrap();
    assert_eq!(update["rows"][0]["name"], name);
    assert_eq!(update["guest"]["name"], name);
    let (head, body) = page.get("/api/history?span=hour&guest=1");
    assert!(head.contains("application/json"), "{head}");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["name"], name);
}

#[test]
fn a_thousand_guests_are_a_small_and_quick_update_for_many_watchers() {
    let page = Page::open();
    let mut host = Host::default();
    for number in 0..1000 {
        host.start(number);
    }
    page.live.show(host.pass(1_000_000));
    let mut watchers: Vec<_> = (0..100).map(|_| page.watch("sort=cpu")).collect();
    for watcher in &mut watchers {
        assert_eq!(watcher.next().unwrap().1["tick"], 1);
    }
    let mut slowest = Duration::ZERO;
    for tick in 2..7 {
        let snapshot = host.pass(1_000_000);
        let began = Instant::now();
        page.live.show(snapshot);
        for watcher in &mut watchers {
            let (bytes, update) = watcher.next().unwrap();
            assert!(bytes < 8 * 1024, "{bytes} bytes");
            assert_eq!(update["tick"], tick, "no watcher misses one");
            assert_eq!(update["guests"], 1000);
        }
        slowest = slowest.max(began.elapsed());
    }
    // An unoptimized build runs on a busy machine: the bound only separates linear work for each watcher from shared
    // work.
    println!(
        "NOTE: 1,000 guests, 100 watchers: {} ms from the snapshot to the last of them",
        slowest.as_millis()
    );
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
}

#[test]
fn silent_connections_keep_nobody_out_and_the_server_ends_with_watchers() {
    let page = Page::open();
    let silent: Vec<_> = (0..40).map(|_| page.connect()).collect();
    let mut host = Host::default();
    page.live.show(host.pass(1_000_000));
    let mut watcher = page.watch("");
    assert!(watcher.next().is_some());
    assert!(page.get("/").0.starts_with("HTTP/1.1 200"));
    let Page { server, live } = page;
    let began = Instant::now();
    drop(server);
    assert!(began.elapsed() < Duration::from_secs(5));
    live.show(host.pass(1_000_000));
    assert!(watcher.next().is_none());
    drop(silent);
}

#[test(needs = [test_all("takes 4 s")])]
fn who_holds_every_place_and_says_nothing_loses_it_and_a_watcher_does_not() {
    let live = Arc::new(Live::default());
    let app = AppState::new(
        Arc::clone(&live),
        Path::new("/nonexistent"),
        Path::new("/nonexistent"),
    );
    let settings = ListenerSettings {
        idle_timeout: Duration::from_secs(2),
        ..ListenerSettings::open("127.0.0.1:0".parse().unwrap())
    };
    let server = Server::start(app, &settings).unwrap();
    let page = Page { live, server };
    let mut host = Host::default();
    page.live.show(host.pass(1_000_000));
    let mut watcher = page.watch("");
    assert!(watcher.next().is_some());
    let began = Instant::now();
    // Some have sent a whole request, some a part of one, the rest nothing.
    let silent: Vec<TcpStream> = (0..300)
        .map(|number| {
            let mut stream = page.connect();
            let begun = match number % 3 {
                0 => "GET /icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n",
                1 => "GET / HTTP/1.1\r\nHost: local",
                _ => "",
            };
            stream.write_all(begun.as_bytes()).unwrap();
            stream
        })
        .collect();
    assert!(page.get("/").0.starts_with("HTTP/1.1 200"));
    assert!(
        began.elapsed() > Duration::from_millis(1500),
        "every place was taken, and the first came free when its holder had said nothing for long"
    );
    for mut stream in silent {
        let mut rest = Vec::new();
        // The server closes each connection, in order or with a reset.
        match stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(cause) => assert_eq!(cause.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
    page.live.show(host.pass(1_000_000));
    assert!(
        watcher.next().is_some(),
        "a watcher asks for nothing more, and stays"
    );
}

/// A folder with two runs that differ, one unfinished run, and runs that must not be listed.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    let small = small();
    let dear = Fake {
        vm_cost: 9.0,
        ..small.clone()
    };
    for (fake, dir) in [(&small, "2026/cheap"), (&dear, "dear <b>")] {
        let results = fake.write(&runs.join(dir));
        let analysis = vtax_report::analysis::analyse(&results).unwrap();
        vtax_report::html::write_report(&results, &analysis).unwrap();
    }
    let begun = small.create(&runs.join("begun"));
    small.write_trial(&begun, 0);
    small.write(&folder.path().join("outside"));
    std::os::unix::fs::symlink(folder.path().join("outside"), runs.join("link")).unwrap();
    small.create(&runs.join(".hidden"));
    fs::create_dir(runs.join("damaged")).unwrap();
    fs::write(runs.join("damaged/run.json"), "{").unwrap();
    folder
}

fn small() -> Fake {
    Fake {
        blocks: 4,
        seconds: 6,
        ..Fake::default()
    }
}

#[test]
fn runs_below_the_root_are_listed_with_what_they_found_and_no_others() {
    let folder = folder();
    let page = Page::with(&folder.path().join("runs"));
    let list = page.json("/api/results");
    let runs = list["runs"].as_array().unwrap();
    let dirs: Vec<&str> = runs
        .iter()
        .map(|run| run["dir"].as_str().unwrap())
        .collect();
    assert_eq!(dirs, ["2026/cheap", "begun", "dear <b>"]);
    let problems = list["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].as_str().unwrap().contains("damaged"),
        "{problems:?}"
    );
    let cheap = &runs[0];
    assert_eq!(cheap["state"], "complete");
    assert_eq!(cheap["verdict"], "different");
    assert_eq!(cheap["report"], true);
    assert_eq!(cheap["host"], "6.18.0", "and no name");
    assert!(cheap["found"][0].as_str().unwrap().contains('×'), "{cheap}");
    let begun = &runs[1];
    assert_eq!(begun["state"], "unfinished");
    assert_eq!(begun["done"], 1);
    assert_eq!(begun["verdict"], "");
    // A missing root is not an error: a run will create it.
    let list = Page::with(&folder.path().join("later")).json("/api/results");
    assert_eq!(list["runs"], serde_json::json!([]));
    assert_eq!(list["problems"], serde_json::json!([]));
}

#[test]
fn nothing_outside_the_root_is_read_by_whatever_name() {
    let folder = folder();
    let page = Page::with(&folder.path().join("runs"));
    let outside = folder.path().join("outside");
    for dir in [
        "../outside",
        "link",
        "2026/../../outside",
        "2026/cheap/../../../outside",
        outside.to_str().unwrap(),
        ".hidden",
        "2026",
        "",
        "2026/cheap/trials",
        "%00",
    ] {
        let dir = dir.replace('/', "%2F");
        for path in [
            format!("/report?dir={dir}"),
            format!("/api/run?dir={dir}"),
            format!("/api/compare?dir={dir}&dir={dir}"),
        ] {
            let (head, body) = page.get(&path);
            assert!(head.starts_with("HTTP/1.1 404"), "{path}: {head}\n{body}");
            assert!(body.contains("\"error\""), "{body}");
        }
    }
    // A report that is a link is not served.
    let report = folder.path().join("runs/begun/report.html");
    std::os::unix::fs::symlink("/etc/passwd", report).unwrap();
    let (head, body) = page.get("/report?dir=begun");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}\n{body}");
    assert!(body.contains("vtax report"), "{body}");
}

#[test]
fn a_report_is_a_page_of_nobody() {
    let folder = folder();
    let page = Page::with(&folder.path().join("runs"));
    let (head, body) = page.get("/report?dir=2026%2Fcheap");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(body.contains("<!doctype html>"), "{head}");
    let policy = policy(&head);
    assert!(policy.starts_with("sandbox "), "{policy}");
    assert!(!policy.contains("allow-same-origin"), "{policy}");
    assert!(
        policy.contains("default-src 'none'"),
        "it reaches nothing: {policy}"
    );
}

#[test]
fn the_history_of_a_plan_is_an_isolated_page_over_its_runs_below_the_root() {
    let folder = folder();
    let page = Page::with(&folder.path().join("runs"));
    let list = page.json("/api/results");
    let plan = list["runs"][0]["name"].as_str().unwrap();
    let (head, body) = page.get(&format!("/api/plan-history.html?plan={plan}"));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
    let policy = policy(&head);
    assert!(policy.starts_with("sandbox ") && policy.contains("default-src 'none'"));
    for run in ["2026/cheap<", "dear &lt;b&gt;<", "begun<"] {
        assert!(body.contains(run), "{run}");
    }
    assert!(!body.contains("/outside<") && !body.contains("/.hidden<"));
    let (head, body) = page.get("/api/plan-history.html?plan=%3Cnone%3E");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    assert!(body.contains("no run below"), "{body}");
}

#[test]
fn runs_are_compared_as_the_command_compares_them() {
    let folder = folder();
    let page = Page::with(&folder.path().join("runs"));
    let query = "dir=2026%2Fcheap&dir=dear+%3Cb%3E";
    let compared = page.json(&format!("/api/compare?{query}"));
    assert_eq!(compared["runs"][1]["dir"], "dear <b>");
    let rows = compared["rows"].as_array().unwrap();
    let of = |row: &&Value| {
        row["treatment"] == "qemu · iperf3-receive" && row["metric"] == "cpu.per_work"
    };
    let cell = &rows.iter().find(of).unwrap()["cells"][0];
    assert_eq!(cell["different"], true, "{cell}");
    let ratio = cell["ratio"].as_f64().unwrap();
    assert!((2.6..3.2).contains(&ratio), "nine over three: {cell}");
    assert!(cell["words"].as_str().unwrap().contains('×'), "{cell}");
    assert!(cell["repetitions"].is_string(), "{cell}");
    let all = page.json(&format!("/api/compare?{query}&all=true"));
    assert!(all["rows"].as_array().unwrap().len() > rows.len());
    for wrong in ["", "dir=begun", &"dir=begun&".repeat(9)] {
        let (head, body) = page.get(&format!("/api/compare?{wrong}"));
        assert!(head.starts_with("HTTP/1.1 404"), "{head}\n{body}");
        assert!(body.contains("2 to 8"), "{body}");
    }
}

#[test(needs = [test_all("takes 5 s")])]
fn a_run_is_followed_from_its_directory_while_it_goes_on() {
    let folder = folder();
    let fake = small();
    let path = folder.path().join("runs/begun");
    let results = ResultsDir::open(&path).unwrap();
    let page = Page::with(&folder.path().join("runs"));
    let mut updates = page.events("/api/run?dir=begun").map(|(_, update)| update);
    let first = updates.next().unwrap();
    assert_eq!(first["state"], "unfinished");
    assert_eq!(first["trials"][0]["state"], "counts");
    assert_eq!(first["trials"][1]["state"], "waiting");
    assert!(
        first["remaining_seconds"].as_f64().unwrap() > 0.0,
        "{first}"
    );
    // A log that is a link is not read.
    let writer = results.trial_writer(2).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", writer.path().join("log")).unwrap();
    let running = updates.find(|update| update["running"].is_object());
    assert_eq!(running.unwrap()["running"]["log"], serde_json::json!([]));
    drop(writer);
    let writer = results.trial_writer(1).unwrap();
    writeln!(writer.log().unwrap(), "boot qemu\n\x1b[2Jservice up").unwrap();
    let of = |update: &Value| update["running"]["log"][1].is_string();
    let running = updates.find(of).unwrap();
    assert_eq!(running["state"], "running");
    assert_eq!(running["running"]["index"], 1);
    assert_eq!(running["trials"][1]["state"], "running");
    let log = serde_json::json!(["boot qemu", " [2Jservice up"]);
    assert_eq!(running["running"]["log"], log);
    let mut second = fake.trial(results.run(), 1);
    second.disturbed = vec!["other programs used 9 %".to_owned()];
    writer.finish(second).unwrap();
    let after = updates.find(|update| update["running"].is_null()).unwrap();
    assert_ne!(after["trials"][1]["state"], "waiting", "{after}");
    assert!(after["trials"][1]["numbers"][0][1].is_string(), "{after}");
    // A failed trial has a reason, and so does one whose record is damaged.
    for index in results.pending() {
        fake.write_trial(&results, index);
    }
    fs::write(results.trial_path(3).join("trial.json"), "{").unwrap();
    let of =
        |update: &Value| update["state"] == "complete" && update["trials"][3]["state"] == "damaged";
    let last = updates.find(of).unwrap();
    let disturbed = last["trials"][1]["disturbed"][0].as_str();
    assert_eq!(disturbed, Some("other programs used 9 %"));
    for state in ["failed", "suspect", "damaged"] {
        let mut trials = last["trials"].as_array().unwrap().iter();
        let trial = trials.find(|trial| trial["state"] == state).unwrap();
        let why = trial["reasons"][0].as_str();
        assert!(why.is_some_and(|why| !why.is_empty()), "{trial}");
    }
}
