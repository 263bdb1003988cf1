//! The real server on loopback, asked as browsers and as strangers ask it; the host is a fake one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_observe::guests::Platform;
use vtax_serve::fake::Host;
use vtax_web::{Live, Server, Site, WebError};

/// A server of a host, for as long as it lives.
struct Page {
    live: Arc<Live>,
    server: Server,
}

impl Page {
    fn open() -> Self {
        let live = Arc::new(Live::default());
        let site = Site {
            live: Arc::clone(&live),
        };
        let server = Server::start(site, "127.0.0.1:0".parse().unwrap()).unwrap();
        Self { live, server }
    }

    /// The head and the body of the answer to a request.
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

    /// The updates of a watcher, as they come.
    fn watch(&self, look: &str) -> impl Iterator<Item = (usize, Value)> + use<> {
        let mut stream = self.connect();
        write!(
            stream,
            "GET /api/live?{look} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        .unwrap();
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

#[test]
fn the_page_and_its_files_come_with_a_policy_that_lets_nothing_else_in() {
    let page = Page::open();
    let (head, body) = page.get("/");
    assert!(
        head.starts_with("HTTP/1.1 200") && body.contains("<main"),
        "{head}"
    );
    let policy = head
        .lines()
        .find_map(|line| line.strip_prefix("content-security-policy: "));
    let policy = policy.unwrap();
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
fn nothing_can_be_changed() {
    let page = Page::open();
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        for path in ["/", "/api/about", "/api/live"] {
            let (head, _) = page.ask(method, path, "Host: localhost\r\nContent-Length: 0\r\n");
            assert!(head.starts_with("HTTP/1.1 405"), "{method} {path}: {head}");
        }
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
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let site = Site {
            live: Arc::default(),
        };
        let refused = Server::start(site, address.parse().unwrap()).unwrap_err();
        assert!(matches!(refused, WebError::LeavesTheHost(_)));
        assert!(refused.to_string().contains("ssh -L"), "{refused}");
    }
    let page = Page::open();
    let site = Site {
        live: Arc::default(),
    };
    let taken = Server::start(site, page.server.address()).unwrap_err();
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
fn what_is_not_there_or_makes_no_sense_is_said() {
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
    // A build without optimisation, on a machine that does other things: the bound only tells linear
    // work for each watcher from work that is shared.
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
