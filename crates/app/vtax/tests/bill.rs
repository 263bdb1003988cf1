// SPDX-License-Identifier: Apache-2.0
//! `vtax bill` of a real recording: the table, the JSON and the rows of FOCUS agree, and what is refused says why.

use crate::record::{Recorder, wait_for};
use crate::support::{finish, vtax};
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use vtax_core::csv::fields;
use vtax_testkit::{pages, workspace};

/// The tariff of the documentation.
fn documented() -> String {
    let page = workspace::root().join("docs/howto/bill.md");
    let mut blocks = pages::blocks(&page).into_iter();
    let block = blocks.find(|block| block.marks == ["tariff"]).unwrap();
    block.text
}

/// Records this host into `hour` of a directory, beside tariffs: `tariff.toml` with all sections, `machine.toml` and
/// `carbon.toml` with one.
pub fn record(work: &Path) -> PathBuf {
    let into = work.join("hour");
    let recorder = Recorder::start(&work.join("state"), &into);
    wait_for(&work.join("state"), &into, 12);
    drop(recorder);
    fs::write(work.join("tariff.toml"), documented()).unwrap();
    for (name, section) in [
        ("machine", "[machine]\nprice = 3600"),
        ("carbon", "[carbon]\ngrams_per_kwh = 363"),
    ] {
        let text = format!("currency = \"EUR\"\n{section}\n");
        fs::write(work.join(format!("{name}.toml")), text).unwrap();
    }
    into
}

/// `vtax bill hour --tariff FILE OPTIONS` in the directory.
fn command(work: &Path, tariff: &str, options: &[&str]) -> Command {
    let mut command = vtax(&work.join("state"));
    command
        .current_dir(work)
        .args(["bill", "hour", "--tariff", tariff])
        .args(options);
    command
}

fn bill(work: &Path, tariff: &str, options: &[&str]) -> String {
    let output = finish(&mut command(work, tariff, options), true);
    String::from_utf8(output.stdout).unwrap()
}

fn refused(work: &Path, tariff: &str, options: &[&str]) -> String {
    let output = finish(&mut command(work, tariff, options), false);
    String::from_utf8(output.stderr).unwrap()
}

/// A decimal number as an integer of its last digit.
fn digits(text: &str) -> u128 {
    text.replace('.', "").parse().unwrap()
}

#[test]
fn the_rows_of_a_real_recording_sum_to_the_bill_of_the_host_in_every_format() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    record(work);
    let json: Value = serde_json::from_str(&bill(work, "tariff.toml", &["--json"])).unwrap();
    let whole = json["whole"]["exact_cost"].as_str().unwrap();
    let parties = json["parties"].as_array().unwrap();
    let sum = |key: &str| {
        parties
            .iter()
            .map(|party| digits(party[key].as_str().unwrap()))
            .sum::<u128>()
    };
    assert_eq!(sum("exact_cost"), digits(whole));
    assert_eq!(sum("cost"), digits(json["whole"]["cost"].as_str().unwrap()));
    assert_eq!(
        digits(json["whole"]["electricity_cost"].as_str().unwrap())
            + digits(json["whole"]["machine_cost"].as_str().unwrap()),
        digits(whole)
    );
    // The energy and the processor time are those of the report.
    let mut report = vtax(&work.join("state"));
    report.current_dir(work).args(["report", "hour", "--json"]);
    let report: Value = serde_json::from_slice(&finish(&mut report, true).stdout).unwrap();
    let joules = json["whole"]["energy_kwh"].as_f64().unwrap() * 3.6e6;
    assert!(
        (joules / report["energy_joules"].as_f64().unwrap() - 1.0).abs() < 1e-6,
        "{json}"
    );
    let host = parties
        .iter()
        .find(|party| party["party"] == "host")
        .unwrap();
    let seconds = host["cpu_seconds"].as_f64().unwrap();
    assert!((seconds - report["host_cpu_seconds"].as_f64().unwrap()).abs() < 1e-3);
    assert_eq!(host["energy_source"], report["energy_source"]);

    let rows = bill(work, "tariff.toml", &["--format", "focus"]);
    let mut lines = rows.lines();
    let header = fields(lines.next().unwrap());
    let rows: Vec<HashMap<String, String>> = lines
        .map(|line| header.iter().cloned().zip(fields(line)).collect())
        .collect();
    let billed: u128 = rows.iter().map(|row| digits(&row["BilledCost"])).sum();
    assert_eq!(billed, digits(whole));
    assert!(rows.iter().all(|row| row["BillingCurrency"] == "EUR"));

    let table = bill(work, "tariff.toml", &[]);
    assert!(
        table.contains("the whole host") && table.contains("EUR"),
        "{table}"
    );
    // One hour costs 3600 EUR, so that each recorded second costs one.
    let table: Value = serde_json::from_str(&bill(work, "machine.toml", &["--json"])).unwrap();
    let cost: f64 = table["whole"]["exact_cost"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        (cost - table["recorded_seconds"].as_f64().unwrap()).abs() < 1e-4,
        "{table}"
    );
}

#[test]
fn the_carbon_of_a_unit_of_work_is_printed_for_the_host_and_for_a_guest_that_exists() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    record(work);
    let table = bill(work, "tariff.toml", &["--per", "1000", "request"]);
    assert!(
        table.contains("SCI of the whole host:") && table.contains("g of CO₂e for each request"),
        "{table}"
    );
    let json = bill(work, "tariff.toml", &["--per", "1000", "request", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let (sci, whole) = (&json["sci"], &json["whole"]);
    let grams = |of: &Value, key: &str| of[key].as_f64().unwrap();
    let expected = (grams(whole, "operational_grams") + grams(whole, "embodied_grams")) / 1000.0;
    assert!(
        (grams(sci, "grams_per_unit") - expected).abs() < 1e-12,
        "{json}"
    );
    for (options, words) in [
        (
            &["nobody-has-this-name", "--per", "1", "request"][..],
            "no guest nobody-has-this-name",
        ),
        (&["nobody"], "--per"),
        (&["--per", "0", "request"], "above 0"),
        (&["--per", "many", "request"], "`many` is no number"),
        (&["--per", "1", " "], "the unit is empty"),
        (
            &["--per", "1", "request", "--format", "focus"],
            "leave out --per",
        ),
    ] {
        let why = refused(work, "tariff.toml", options);
        assert!(why.contains(words), "{options:?}: {why}");
    }
    let why = refused(work, "machine.toml", &["--per", "1", "request"]);
    assert!(why.contains("[carbon] and [embodied]"), "{why}");
}

#[test]
fn a_series_is_read_from_a_file_beside_the_tariff_or_from_a_server_of_this_host_and_no_other() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    record(work);
    let series = |series: &str| {
        let text = format!("currency = \"EUR\"\n[carbon]\nseries = \"{series}\"\n");
        fs::write(work.join("series.toml"), text).unwrap();
    };
    let csv = "time,grams_per_kwh\n2020-01-01T00:00:00Z,363\n2100-01-01T00:00:00Z,0\n";
    fs::write(work.join("grid.csv"), csv).unwrap();
    let fixed: Value = serde_json::from_str(&bill(work, "carbon.toml", &["--json"])).unwrap();
    let grams = &fixed["whole"]["operational_grams"];
    assert!(grams.as_f64().unwrap() > 0.0);
    series("grid.csv");
    let read: Value = serde_json::from_str(&bill(work, "series.toml", &["--json"])).unwrap();
    assert_eq!(&read["whole"]["operational_grams"], grams);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    series(&format!(
        "http://{}/grid.csv",
        listener.local_addr().unwrap()
    ));
    let serving = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let _ = client.read(&mut [0; 4096]).unwrap();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            csv.len()
        );
        client.write_all((head + csv).as_bytes()).unwrap();
    });
    let read: Value = serde_json::from_str(&bill(work, "series.toml", &["--json"])).unwrap();
    assert_eq!(&read["whole"]["operational_grams"], grams);
    serving.join().unwrap();

    for (name, words) in [
        ("http://192.0.2.1/grid.csv", "is not on this host"),
        ("https://127.0.0.1/grid.csv", "does not begin with http://"),
        ("missing.csv", "missing.csv"),
        ("tariff.toml", "tariff.toml: line 1: give the columns"),
    ] {
        series(name);
        let why = refused(work, "series.toml", &[]);
        assert!(why.contains(words), "{name}: {why}");
    }
    fs::write(work.join("old.csv"), csv.replace("2100", "2021")).unwrap();
    series("old.csv");
    let why = refused(work, "series.toml", &[]);
    assert!(why.contains("no value for 20"), "{why}");
}

#[test]
fn wrong_tariffs_and_recordings_are_refused_with_their_place() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    record(work);
    let why = refused(work, "missing.toml", &[]);
    assert!(why.contains("missing.toml"), "{why}");
    fs::write(work.join("wrong.toml"), "currency = \"EUR\"\nprice = 1\n").unwrap();
    let why = refused(work, "wrong.toml", &[]);
    assert!(
        why.contains("wrong.toml: line 2, column 1: unknown field `price`"),
        "{why}"
    );
    let why = refused(work, "machine.toml", &["--format", "focus"]);
    assert!(why.contains("add [focus]"), "{why}");
    let mut command = vtax(&work.join("state"));
    command
        .current_dir(work)
        .args(["bill", "state", "--tariff", "machine.toml"]);
    let why = String::from_utf8(finish(&mut command, false).stderr).unwrap();
    assert!(why.contains("state"), "{why}");
}
