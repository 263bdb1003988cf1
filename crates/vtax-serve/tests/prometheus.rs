//! A real Prometheus and its promtool judge what the exporter says.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up, or does not hold, should fail"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use vtax_observe::charge::{Charger, ChargerOptions, MethodChoice};
use vtax_serve::exporter::{self, ExporterOptions};

fn skip(program: &str) -> bool {
    let missing = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_err();
    if missing {
        eprintln!("SKIPPED: {program} is not installed (Debian: prometheus)");
    }
    missing
}

/// An exporter of this host on a thread that ends with the test's process.
fn exporter() -> SocketAddr {
    let options = ChargerOptions {
        method: MethodChoice::Auto,
        ..ChargerOptions::default()
    };
    let charger = Charger::open(options).unwrap();
    let options = ExporterOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        interval: Duration::from_millis(500),
        most_guests: 100,
    };
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        exporter::run(
            charger,
            options,
            &mut |address| sender.send(address).unwrap(),
            &mut |_| {},
        )
    });
    let address = receiver.recv().unwrap();
    std::thread::sleep(Duration::from_millis(800));
    address
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    Some(body.to_owned())
}

#[test]
fn promtool_accepts_metrics_and_alert_rules() {
    if skip("promtool") {
        return;
    }
    let text = get(exporter(), "/metrics").unwrap();
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let said = check.wait_with_output().unwrap();
    let complaints = [said.stdout, said.stderr].concat();
    assert!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&complaints)
    );

    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("grafana/alerts.yml");
    let said = Command::new("promtool")
        .args(["check", "rules"])
        .arg(rules)
        .output()
        .unwrap();
    assert!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
}

#[test]
fn the_dashboards_queries_use_metrics_that_the_exporter_has() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("grafana");
    let dashboard = std::fs::read_to_string(directory.join("dashboard.json")).unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert!(parsed["panels"].as_array().unwrap().len() >= 8);
    let alerts = std::fs::read_to_string(directory.join("alerts.yml")).unwrap();
    let source = include_str!("../src/metrics.rs");
    let mut seen = 0;
    for word in (dashboard + &alerts).split(|c: char| !(c.is_ascii_lowercase() || c == '_')) {
        if word.starts_with("vtax_") {
            let family = word.trim_end_matches("_total");
            assert!(source.contains(&format!("\"{family}\"")), "{word}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn a_real_prometheus_scrapes_the_exporter() {
    struct Ends(Child);
    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    if skip("prometheus") {
        return;
    }
    let target = exporter();
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let directory = std::env::temp_dir().join(format!("vtax-prometheus-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let config = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: vtax\n    static_configs:\n      - targets: ['{target}']\n"
    );
    std::fs::write(directory.join("prometheus.yml"), config).unwrap();
    let server = Command::new("prometheus")
        .arg(format!(
            "--config.file={}",
            directory.join("prometheus.yml").display()
        ))
        .arg(format!(
            "--storage.tsdb.path={}",
            directory.join("data").display()
        ))
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let server = Ends(server.unwrap());
    let started = Instant::now();
    let mut answer = None;
    while started.elapsed() < Duration::from_secs(40) {
        std::thread::sleep(Duration::from_millis(500));
        let found = get(address, "/api/v1/query?query=vtax_cpu_seconds_total");
        if let Some(found) = found.filter(|found| found.contains("vtax_cpu_seconds_total")) {
            answer = Some(found);
            break;
        }
    }
    drop(server);
    let _ = std::fs::remove_dir_all(&directory);
    let answer = answer.unwrap();
    assert!(answer.contains("\"status\":\"success\""), "{answer}");
}
