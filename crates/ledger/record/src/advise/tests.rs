// SPDX-License-Identifier: Apache-2.0
//! Estimates from rates, and rates from files.

#![allow(clippy::indexing_slicing, reason = "a failure is a panic")]

use super::*;
use std::fs;
use std::path::Path;

/// A guest that receives and sends 20,000 frames a second, with an exit for each frame.
fn busy() -> GuestRates {
    GuestRates {
        guest: "web".to_owned(),
        platform: "qemu".to_owned(),
        seconds: 60.0,
        cpu: 0.8,
        vcpu: 0.5,
        emulator: 0.0,
        vhost: 0.2,
        softirq: 0.1,
        received: 20_000.0,
        sent: 20_000.0,
        exits: Some(40_000.0),
    }
}

fn of<'a>(advice: &'a Advice, platform: &str) -> &'a KnobAdvice {
    let mut knobs = advice.knobs.iter();
    knobs.find(|knob| knob.platform == Some(platform)).unwrap()
}

#[test]
fn a_guest_with_many_notifications_is_advised_to_delay_them_by_the_formula_of_the_model() {
    let advice = advise(&busy());
    let deferral = of(&advice, "deferral-1ms");
    assert!(deferral.is_advised);
    // At most 20,000 interrupts, of which 20,000 / 21 are left, each with a timer of one notification.
    let left = 20_000.0 / 21.0;
    let high = deferral.saved_processors.unwrap().high;
    assert!((high - PRICE.high * (20_000.0 - 2.0 * left)).abs() < 1e-9);
    // At least 10,000 interrupts, with a timer of two.
    let left = 10_000.0 / 11.0;
    let low = deferral.saved_processors.unwrap().low;
    assert!((low - PRICE.low * (10_000.0 - 3.0 * left)).abs() < 1e-9);
    assert!((deferral.saved_share.unwrap().high - high / 0.8).abs() < 1e-12);
    // The NIC delays both directions and is first.
    assert_eq!(advice.knobs[0].platform, Some("adaptive"));
    assert!(advice.knobs[0].is_advised);
}

#[test]
fn nothing_is_advised_where_the_counters_do_not_support_it_and_each_knob_has_a_reason() {
    let without_exits = GuestRates {
        exits: None,
        ..busy()
    };
    let short = GuestRates {
        seconds: 2.0,
        ..busy()
    };
    let few = GuestRates {
        received: 100.0,
        sent: 50.0,
        exits: Some(300.0),
        ..busy()
    };
    let silent = GuestRates {
        received: 0.0,
        sent: 0.0,
        cpu: 0.0,
        ..busy()
    };
    for (rates, reason) in [
        (without_exits, "not counted"),
        (short, "10 s are needed"),
        (few, "its timers would cost as much"),
        (silent, "timers"),
    ] {
        let advice = advise(&rates);
        for knob in &advice.knobs {
            assert!(!knob.is_advised, "{}: {reason}", knob.knob);
            assert!(knob.reason.is_some());
        }
        let deferral = of(&advice, "deferral-1ms");
        assert!(
            deferral.reason.as_ref().unwrap().contains(reason),
            "{deferral:?}"
        );
    }
}

#[test]
fn a_knob_is_judged_for_the_part_of_the_host_that_moves_the_frames() {
    let advice = advise(&busy());
    assert!(
        of(&advice, "tap-timer")
            .reason
            .as_ref()
            .unwrap()
            .contains("vhost moves")
    );
    let qemu = GuestRates {
        vhost: 0.0,
        emulator: 0.2,
        ..busy()
    };
    let advice = advise(&qemu);
    for platform in ["adaptive", "vhost-busyloop"] {
        let reason = of(&advice, platform).reason.as_ref().unwrap();
        assert!(reason.contains("vhost=on"), "{reason}");
    }
    assert!(of(&advice, "tap-timer").saved_processors.is_some());
}

#[test]
fn polling_costs_more_than_it_saves_until_frames_follow_within_the_price_of_a_notification() {
    let advice = advise(&busy());
    let polling = of(&advice, "vhost-busyloop");
    assert!(polling.saved_processors.unwrap().high < 0.0);
    assert!(
        polling
            .reason
            .as_ref()
            .unwrap()
            .contains("polling would cost")
    );
    let dense = GuestRates {
        sent: 2e6,
        exits: Some(2e6),
        ..busy()
    };
    let saved = of(&advise(&dense), "vhost-busyloop")
        .saved_processors
        .unwrap();
    assert!(saved.high > 0.0);
}

#[test]
fn a_saving_is_never_more_than_the_guest_costs_and_more_frames_never_save_less_at_most() {
    let mut last = f64::MIN;
    for thousands in [1.0, 10.0, 100.0, 1000.0, 10_000.0] {
        let rates = GuestRates {
            received: thousands * 1e3,
            exits: Some(thousands * 2e3),
            ..busy()
        };
        let saved = of(&advise(&rates), "deferral-1ms")
            .saved_processors
            .unwrap();
        assert!(saved.low <= saved.high && saved.high <= rates.cpu);
        assert!(saved.high >= last, "{thousands}");
        last = saved.high;
    }
}

const LINES: &str = include_str!("../../tests/data/top.jsonl");

#[test]
fn lines_of_top_are_averaged_by_guest_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.jsonl");
    fs::write(&path, LINES).unwrap();
    let rates = read(&path).unwrap();
    let names: Vec<_> = rates.iter().map(|rates| rates.guest.as_str()).collect();
    assert_eq!(names, ["web-1", "batch"]);
    let web = &rates[0];
    assert!((web.seconds - 30.0).abs() < 1e-9);
    assert!((web.received - 12_000.0).abs() < 1e-6, "{web:?}");
    assert!((web.vhost - 0.2).abs() < 1e-9);
    assert_eq!(rates[1].exits, None);
}

#[test]
fn a_file_that_is_neither_is_an_error_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    fs::write(&path, "\n{\"interval_seconds\": 1}\n").unwrap();
    let error = read(&path).unwrap_err().to_string();
    assert!(
        error.contains("line 2") && error.contains("vtax record"),
        "{error}"
    );
    assert!(
        read(Path::new("/nonexistent"))
            .unwrap_err()
            .to_string()
            .contains("/nonexistent")
    );
    fs::write(&path, "").unwrap();
    assert!(read(&path).unwrap().is_empty());
}
