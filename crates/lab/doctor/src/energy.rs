// SPDX-License-Identifier: Apache-2.0
//! Energy meters, opened and measured under load as in a run. A meter whose value does not change counts as absent: in
//! VMs, RAPL is often present and zero.

use super::{Answer, Finding, Options, Subject, Topic};
use vtax_core::Source;
use vtax_host::Roots;
use vtax_meter::Discovery;

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let mut findings = match options.probes.meters(roots) {
        Ok(found) => found.iter().map(meter).collect(),
        Err(error) => vec![Subject(Topic::Energy, "meters").refused(&error)],
    };
    if options.scan_wall_meters {
        findings.push(scan(options));
    }
    findings
}

fn meter(found: &Discovery) -> Finding {
    let meter = match found {
        Ok(meter) => meter,
        Err(absent) => {
            let subject = Subject(Topic::Energy, absent.meter);
            return Finding {
                remedy: absent.remedy.clone(),
                ..subject.finding(Answer::No, absent.reason.as_str())
            };
        }
    };
    let domains = meter.domains().iter().map(|domain| domain.name.as_str());
    let domains = domains.collect::<Vec<_>>().join(", ");
    let finding = |answer, seen: &str| {
        let evidence = format!("{domains}: {seen}");
        Finding::new(Topic::Energy, meter.name(), answer, evidence)
    };
    if meter.source() == Source::Measured {
        return finding(Answer::Yes, "moved under load");
    }
    finding(Answer::Partly, "a model, flagged `modelled`")
        .remedy("fit it to a meter once: vtax meter calibrate")
}

fn scan(options: &Options) -> Finding {
    const SCAN: Subject = Subject(Topic::Energy, "scan for wall meters");
    let printed = match options.probes.scan_wall_meters() {
        Ok(printed) => printed,
        Err(cause) => {
            let remedy = "with a wall meter at hand: apt-get install sigrok-cli";
            return SCAN.no(super::reason(&cause), remedy);
        }
    };
    // `demo - Demo device with …` is always listed and is no meter.
    let found: Vec<&str> = printed
        .lines()
        .map(str::trim)
        .filter(|line| line.contains(" - ") && !line.starts_with("demo"))
        .collect();
    if !found.is_empty() {
        return SCAN.yes(found.join("; "));
    }
    SCAN.no(
        "sigrok-cli --scan found none",
        "serial meters are not found by scanning: name driver and port in VTAX_WALL_METER, such as mastech-mas345:conn=/dev/ttyUSB0",
    )
}
