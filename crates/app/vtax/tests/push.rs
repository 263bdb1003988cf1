// SPDX-License-Identifier: Apache-2.0
//! A real exporter pushes to a real Prometheus; both are killed in the meantime. Needs Debian's package `prometheus`.

use crate::guest::{Guest, Running, eventually, exporter, get, unique};
use serde_json::Value;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn prometheus(directory: &Path, address: &str) -> Running {
    let config = directory.join("prometheus.yml");
    std::fs::write(&config, "{}").unwrap();
    let server = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            directory.join("data").display()
        ))
        .arg(format!("--web.listen-address={address}"))
        .arg("--web.enable-remote-write-receiver")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(Running)
        .unwrap();
    eventually("Prometheus", || get(address, "/-/ready", ""));
    server
}

/// The pushed values of the exporter's count of passes, in order.
fn passes(address: &str, name: &str) -> Result<Vec<u64>, String> {
    let query = format!("vtax_exporter_passes_total{{instance=\"{name}\"}}[10m]");
    let query: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let answer = get(address, &format!("/api/v1/query?query={query}"), "")?;
    let answer: Value = serde_json::from_str(&answer).map_err(|cause| cause.to_string())?;
    let values = answer["data"]["result"][0]["values"].as_array();
    let values = values.ok_or("none yet")?.iter();
    values
        .map(|value| value[1].as_str().and_then(|text| text.parse().ok()))
        .collect::<Option<_>>()
        .ok_or_else(|| answer.to_string())
}

#[test(needs = [brought_by_test_all("prometheus")])]
fn a_prometheus_and_an_exporter_that_are_killed_lose_no_pass_and_repeat_none() {
    let directory = tempfile::tempdir().unwrap();
    let name = unique("pusher");
    let _guest = Guest::start(&name);
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap().to_string();
    drop(port);
    let to = format!("remote-write:http://{address}/api/v1/write");
    let queue = directory.path().join("queue");
    let label = format!("instance={name}");
    let arguments = [
        ["--interval", "100ms"],
        ["--method", "counted"],
        ["--push", &to],
        ["--push-label", &label],
        ["--queue", queue.to_str().unwrap()],
    ];
    let arguments: Vec<&str> = arguments.concat();
    let server = prometheus(directory.path(), &address);
    let (first, _) = exporter(&arguments);
    eventually("the first pushes", || {
        match passes(&address, &name)?.len() {
            0..5 => Err("fewer than 5".to_owned()),
            _ => Ok(()),
        }
    });
    // Both are killed when dropped.
    drop(server);
    std::thread::sleep(Duration::from_secs(2));
    drop(first);
    let (_second, metrics) = exporter(&arguments);
    std::thread::sleep(Duration::from_secs(2));
    let metrics = eventually("some failures", || {
        let text = get(&metrics, "/metrics", "")?;
        if text.contains("vtax_push_failures_total{") {
            Ok(text)
        } else {
            Err(text)
        }
    });
    assert!(metrics.contains("reason=\"full\"} 0\n"), "{metrics}");
    let _server = prometheus(directory.path(), &address);
    eventually("every pass of both, once", || {
        let found = passes(&address, &name)?;
        let second = found.iter().rposition(|&pass| pass == 1).unwrap_or(0);
        let (of_first, of_second) = found.split_at(second);
        let is_whole = |passes: &[u64]| passes.iter().zip(1..).all(|(found, pass)| *found == pass);
        if of_first.len() > 15 && of_second.len() > 15 {
            assert!(is_whole(of_first) && is_whole(of_second), "{found:?}");
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    });
}
