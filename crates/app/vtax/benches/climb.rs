// SPDX-License-Identifier: Apache-2.0
//! Live micro VMs and a tuned QEMU with the same boot sector, one climb each in one run: memory of a guest, guests made
//! per second, and the cost of the climb itself.
//!
//! `cargo bench -p vtax --bench climb`; needs root.

#![allow(clippy::expect_used, reason = "a bench that cannot be set up ends")]

use std::process::Command;
use vtax_density::report::{Summary, TreatmentClimbs, bytes};
use vtax_results::ResultsDir;

const PLAN: &str = r#"
name = "bench-climb"
repetitions = 1
[density]
intervals = 5
idle_seconds = 5
[[platform]]
kind = "mvm-live"
image = "idle"
maximum = 2000
[[platform]]
kind = "qemu"
image = "idle"
accel = "tcg"
maximum = 60
"#;

fn rate(seen: &TreatmentClimbs) -> f64 {
    let births = seen
        .records()
        .flat_map(|climb| &climb.climb)
        .filter_map(|interval| interval.births);
    let (made, seconds) = births.fold((0.0, 0.0), |(made, seconds), births| {
        (made + f64::from(births.count), seconds + births.seconds)
    });
    made / seconds
}

fn main() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (plan, results) = (
        folder.path().join("plan.toml"),
        folder.path().join("results"),
    );
    std::fs::write(&plan, PLAN).expect("the plan is written");
    let status = Command::new(env!("CARGO_BIN_EXE_vtax"))
        .arg("density")
        .arg(&plan)
        .arg("--results")
        .arg(&results)
        .env("VTAX_STATE_DIR", folder.path().join("state"))
        .status()
        .expect("the program starts");
    assert!(status.success(), "the climbs failed");
    let results = ResultsDir::open(&results).expect("results");
    let summary = Summary::from_results(&results).expect("records");
    let mut found = Vec::new();
    for seen in &summary.seen {
        let each = seen.at_top(|climb, _| climb.bytes_each()).unwrap_or(0.0);
        let own = seen
            .records()
            .map(vtax_density::record::Climb::overhead_percent)
            .fold(0.0, f64::max);
        println!(
            "{:<12} {:>10} each, {:>8.1} guests/s, own overhead {own:.2} % of a core (target: <= 1 %)",
            seen.treatment.label,
            bytes(each),
            rate(seen)
        );
        found.push((each, rate(seen)));
    }
    if let [(mvm_bytes, mvm_rate), (qemu_bytes, qemu_rate)] = found[..] {
        println!(
            "memory of a QEMU over a micro VM's: {:.0}x (target: >= 10x)",
            qemu_bytes / mvm_bytes
        );
        println!(
            "creation rate of micro VMs over QEMU's: {:.0}x (target: >= 100x)",
            mvm_rate / qemu_rate
        );
    }
}
