// SPDX-License-Identifier: Apache-2.0
//! Checks of the metrics, the rules and the dashboard's queries with the tools of Prometheus. Needs Debian's package
//! `prometheus`, which contains promtool.

use crate::guest::{Guest, Running, eventually, exporter, get, unique};
use serde_json::Value;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn contrib() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../contrib")
        .canonicalize()
        .unwrap()
}

fn promtool(arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(contrib().join("prometheus"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}: {printed}");
    printed.into_owned()
}

#[test(needs = [brought_by_test_all("promtool")])]
fn promtool_accepts_the_rules_and_they_fire_when_they_should() {
    promtool(&["check", "rules", "vtax.rules.yml"], "");
    promtool(&["check", "rules", "vtax-fleet.rules.yml"], "");
    promtool(&["check", "config", "prometheus.yml"], "");
    for tests in ["vtax.rules.test.yml", "vtax-fleet.rules.test.yml"] {
        let printed = promtool(&["test", "rules", tests], "");
        assert!(printed.contains("SUCCESS"), "{printed}");
    }
}

#[test(needs = [brought_by_test_all("promtool")])]
fn promtool_finds_nothing_to_say_about_the_metrics() {
    let _guest = Guest::start(&format!("{}\\\"\n{{}}", unique("lint")));
    let (_exporter, address) = exporter(&["--interval", "500ms"]);
    let metrics = eventually("the first guest", || {
        let text = get(&address, "/metrics", "")?;
        if text.contains("lint-") {
            Ok(text)
        } else {
            Err(text)
        }
    });
    assert_eq!(promtool(&["check", "metrics"], &metrics).trim(), "");
}

/// Every query of the dashboard, with Grafana's variables filled in.
fn queries() -> Vec<(String, String)> {
    let dashboard = std::fs::read_to_string(contrib().join("grafana/vtax.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let filled = [
                ("$__rate_interval", "4s"),
                ("$__range", "10s"),
                ("$instance", ".*"),
                ("$guest", ".*"),
            ];
            let query = target["expr"].as_str().unwrap().to_owned();
            let query = filled
                .iter()
                .fold(query, |query, (name, value)| query.replace(name, value));
            assert!(!query.contains('$'), "{query}");
            queries.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    assert!(queries.len() > 15);
    queries
}

fn encode(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test(needs = [brought_by_test_all("prometheus"), brought_by_test_all("promtool")])]
fn a_real_prometheus_scrapes_the_exporter_and_answers_every_query_of_the_dashboard() {
    let name = unique("queried");
    let _guest = Guest::start(&name);
    let (_exporter, target) = exporter(&["--interval", "500ms"]);
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("prometheus.yml");
    let rules = contrib().join("prometheus/vtax.rules.yml");
    let text = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
         rule_files: [\"{}\"]\n\
         scrape_configs:\n  - job_name: vtax\n    static_configs: [{{ targets: [\"{target}\"] }}]\n",
        rules.display()
    );
    std::fs::write(&config, text).unwrap();
    // Prometheus does not report its port, so port 0 is of no use.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let address = format!("127.0.0.1:{port}");
    let _prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            directory.path().join("data").display()
        ))
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(Running)
        .unwrap();
    let ask = |query: &str| -> Result<Vec<Value>, String> {
        let path = format!("/api/v1/query?query={}", encode(query));
        let answer: Value =
            serde_json::from_str(&get(&address, &path, "")?).map_err(|cause| cause.to_string())?;
        if answer["status"] != "success" {
            return Err(answer.to_string());
        }
        Ok(answer["data"]["result"]
            .as_array()
            .cloned()
            .unwrap_or_default())
    };
    let rate = format!("sum(rate(vtax_guest_cpu_seconds_total{{guest=\"{name}\"}}[4s])) > 0");
    eventually("the guest's rate", || match ask(&rate)?.len() {
        0 => Err("none yet".to_owned()),
        _ => Ok(()),
    });
    // Series that may be absent on this host: VM exits need KVM, and the hidden share is that of guests with vCPU
    // threads, which the stand-in lacks.
    let may_be_empty =
        |title: &str, query: &str| title == "VM exits" || query.contains("stage=\"vcpu\"");
    for (title, query) in queries() {
        eventually(&format!("{title}: {query}"), || match ask(&query)?.len() {
            0 if !may_be_empty(&title, &query) => Err("it has no result".to_owned()),
            _ => Ok(()),
        });
    }
    // The rules recorded it from live series.
    eventually("the recorded sum", || {
        match ask("vtax:charged_cpu_seconds:sum")?.len() {
            1 => Ok(()),
            other => Err(format!("{other} series")),
        }
    });
    let up = ask("up{job=\"vtax\"} == 1").unwrap();
    assert_eq!(up.len(), 1, "{up:?}");
}
