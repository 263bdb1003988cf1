// SPDX-License-Identifier: Apache-2.0
//! What holds for every workload: its parameters, its command, its parser on real and other output.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use vtax_core::Quantity;
use vtax_host::settings::Level;

/// What the real drivers printed once, by workload: those of Debian 12, then those of Debian 13 that are others.
const RECORDED: &[(&str, &str)] = &[
    ("idle", r#"{"seconds":3.0}"#),
    ("command", "\nvtax: elapsed_us 3000000\n"),
    (
        "iperf3-receive",
        include_str!("../../tests/data/iperf3-receive.json"),
    ),
    (
        "iperf3-send",
        include_str!("../../tests/data/iperf3-send.json"),
    ),
    (
        "iperf3-udp",
        include_str!("../../tests/data/iperf3-udp.json"),
    ),
    (
        "iperf3-udp",
        include_str!("../../tests/data/iperf3-udp-send.json"),
    ),
    ("nuttcp", include_str!("../../tests/data/nuttcp.txt")),
    (
        "http-download",
        include_str!("../../tests/data/http-download.json"),
    ),
    ("http-rate", include_str!("../../tests/data/http-rate.json")),
    (
        "http-closed",
        include_str!("../../tests/data/http-download.json"),
    ),
    (
        "http-batch",
        include_str!("../../tests/data/http-batch.json"),
    ),
    (
        "http-flood",
        include_str!("../../tests/data/http-batch.json"),
    ),
    ("board", include_str!("../../tests/data/board.json")),
    ("hping3", include_str!("../../tests/data/hping3.txt")),
    ("memcached", include_str!("../../tests/data/memcached.json")),
    ("tbench", include_str!("../../tests/data/tbench.txt")),
    (
        "sysbench-oltp",
        include_str!("../../tests/data/sysbench-oltp.txt"),
    ),
    ("sip", include_str!("../../tests/data/sip.csv")),
    ("cpu", include_str!("../../tests/data/cpu.json")),
    ("stress-ng", include_str!("../../tests/data/stress-ng.yaml")),
    ("hackbench", include_str!("../../tests/data/hackbench.txt")),
    ("disk-read", include_str!("../../tests/data/disk-read.json")),
    (
        "iperf3-receive",
        include_str!("../../tests/data/iperf3-receive-3.18.json"),
    ),
    (
        "iperf3-send",
        include_str!("../../tests/data/iperf3-send-3.18.json"),
    ),
    (
        "iperf3-udp",
        include_str!("../../tests/data/iperf3-udp-3.18.json"),
    ),
    (
        "iperf3-udp",
        include_str!("../../tests/data/iperf3-udp-send-3.18.json"),
    ),
    (
        "iperf3-udp",
        include_str!("../../tests/data/iperf3-udp-3.9.json"),
    ),
    ("nuttcp", include_str!("../../tests/data/nuttcp-8.2.2.txt")),
    ("sip", include_str!("../../tests/data/sip-3.7.3.csv")),
    (
        "stress-ng",
        include_str!("../../tests/data/stress-ng-0.19.yaml"),
    ),
    (
        "disk-read",
        include_str!("../../tests/data/disk-read-3.39.json"),
    ),
];

/// What real drivers printed of a load of which nothing arrived.
const ALL_LOST: &[(&str, &str)] = &[
    (
        "iperf3-udp",
        include_str!("../../tests/data/iperf3-udp-3.12-all-lost-omit-1.json"),
    ),
    (
        "iperf3-udp",
        include_str!("../../tests/data/iperf3-udp-3.18-all-lost-omit-1.json"),
    ),
];

/// What takes the place of a number in a driver's output: what counters give that wrapped or fell, and
/// what divisions by zero and empty fields do.
const BROKEN: &[&str] = &[
    "-1",
    "-447",
    "18446744073709551169",
    "18446744073709551615",
    "4294966849",
    "99999999999999999999999999",
    "1e308",
    "1e400",
    "-1e400",
    "0",
    "-0",
    "0.0000000000001",
    "NaN",
    "nan",
    "-nan",
    "inf",
    "-inf",
    "null",
    "\"\"",
    "",
];

/// Where the numbers of some output are.
fn numbers(raw: &str) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, byte) in raw.bytes().enumerate() {
        match found.last_mut() {
            Some(last) if last.end == at && (byte.is_ascii_digit() || byte == b'.') => {
                last.end = at + 1;
            }
            _ if byte.is_ascii_digit() => found.push(at..at + 1),
            _ => {}
        }
    }
    found
}

/// What is wrong with a result as numbers.
fn nonsense(result: &WorkloadResult) -> Option<String> {
    let is_amount = |value: f64| value.is_finite() && value >= 0.0;
    for (name, metric) in &result.metrics {
        let Quantity { value, unit } = metric.quantity;
        // A message may be sent again more than once.
        let is_part = unit == Unit::from_base(Base::Percent) && name != "retransmissions";
        if !is_amount(value) || is_part && value > 100.0 {
            return Some(format!("{name} is {value}"));
        }
    }
    let work = match &result.work {
        Some(WorkDone::Rate(work) | WorkDone::Total(work)) => work.amount,
        None => 0.0,
    };
    if !is_amount(work) {
        return Some(format!("the work is {work}"));
    }
    result.claims.iter().find_map(|claim| {
        let (check::Amount::PerSecond(amount) | check::Amount::InAll(amount)) = claim.amount;
        (!is_amount(amount)).then(|| format!("{claim:?}"))
    })
}

#[test]
fn kinds_are_unique_and_parameters_belong_to_the_load() {
    let kinds: BTreeSet<_> = all().iter().map(|workload| workload.kind()).collect();
    assert_eq!(kinds.len(), all().len());
    for workload in all() {
        let keys: BTreeSet<_> = workload
            .about()
            .parameters
            .iter()
            .map(|parameter| parameter.key)
            .collect();
        assert_eq!(
            keys.len(),
            workload.about().parameters.len(),
            "{}",
            workload.kind()
        );
        assert!(keys.iter().all(|key| key.starts_with("load.")), "{keys:?}");
        assert!(by_kind(workload.kind()).is_some());
    }
    assert!(by_kind("iperf4").is_none());
}

/// All that a workload makes of its settings.
fn made_of(
    workload: &dyn Workload,
    settings: &Settings,
) -> impl PartialEq + std::fmt::Debug + use<> {
    let scratch = &Scratch {
        device: "/dev/vdb".into(),
        directory: "/scratch".into(),
    };
    let address = IpAddr::from([10, 91, 0, 2]);
    let mut settings = settings.clone();
    if workload.kind() == command::KIND {
        let load = Level::Text("sleep {level}".to_owned());
        settings.0.insert("load.load".to_owned(), load);
    }
    let settings = &settings;
    let load = workload
        .load(LoadSpec {
            address,
            scratch,
            settings,
            timing: TIMING,
        })
        .unwrap();
    (
        load,
        workload.extent(settings),
        workload.scratch_mib(settings),
    )
}

#[test]
fn every_documented_default_is_allowed_and_is_the_one_in_force() {
    for workload in all() {
        for parameter in workload.about().parameters {
            let Some(default) = parameter.default else {
                continue;
            };
            let key = parameter.key;
            let unset = Settings::default();
            let level = match parameter.domain {
                Domain::Bool => Level::Bool(default.parse().unwrap()),
                Domain::Integer(low, high) => {
                    let value = default.parse().unwrap();
                    assert!((low..=high).contains(&value), "{key}");
                    assert_eq!(parameter.integer(&unset), value, "{key}");
                    Level::Integer(value)
                }
                Domain::Number(low, high) => {
                    let value = default.parse().unwrap();
                    assert!((low..=high).contains(&value), "{key}");
                    assert_eq!(parameter.number(&unset), value, "{key}");
                    Level::Number(value)
                }
                Domain::Choice(words) => {
                    assert!(words.contains(&default), "{key}");
                    Level::Text(default.to_owned())
                }
                Domain::Text(_) => Level::Text(default.to_owned()),
            };
            let set = Settings([(key.to_owned(), level)].into());
            assert_eq!(
                made_of(*workload, &set),
                made_of(*workload, &unset),
                "{}: {key}",
                workload.kind()
            );
        }
    }
}

#[test]
fn a_load_level_is_a_numeric_parameter_that_changes_the_command() {
    for workload in all() {
        let Some(level) = workload.about().level else {
            continue;
        };
        let found = workload
            .about()
            .parameters
            .iter()
            .find(|it| it.key == level.key);
        let set = match found.unwrap().domain {
            Domain::Integer(low, high) => Level::Integer(low.max(7).min(high)),
            Domain::Number(low, high) => Level::Number(7.5_f64.clamp(low, high)),
            other => panic!("{}: {other:?}", workload.kind()),
        };
        let set = Settings([(level.key.to_owned(), set)].into());
        let unset = made_of(*workload, &Settings::default());
        assert_ne!(made_of(*workload, &set), unset, "{}", workload.kind());
        assert!(level.scale > 0.0 && !level.title.is_empty());
    }
}

#[test]
fn the_open_loops_ramp_by_themselves_as_their_levels_are_set() {
    for kind in ["http-rate", "memcached"] {
        let levels = [50.0, 75.5].map(|rate| {
            let rate = ("load.rate".to_owned(), Level::Number(rate));
            Settings([rate, ("load.timeout_s".to_owned(), Level::Number(2.0))].into())
        });
        let address = std::net::Ipv4Addr::LOCALHOST.into();
        let settle = Duration::from_millis(250);
        let ramp = by_kind(kind)
            .unwrap()
            .ramp(address, &levels, TIMING, settle);
        let line = ramp.unwrap().unwrap().line.join(" ");
        assert!(line.contains("--ramp 50,75.5 --settle 0.25s"), "{line}");
        assert!(
            line.contains("--warmup 1s --duration 2s --timeout 2s "),
            "{line}"
        );
    }
}

#[test]
fn every_recorded_output_gives_titled_finite_numbers_and_one_headline_at_least() {
    for (kind, raw) in RECORDED {
        let result = by_kind(kind)
            .unwrap()
            .parse(raw.as_bytes(), &Settings::default(), TIMING);
        let result = result.unwrap_or_else(|cause| panic!("{kind}: {cause}"));
        assert!(result.work.is_some(), "{kind}");
        for (name, metric) in &result.metrics {
            assert!(metric.quantity.value.is_finite(), "{kind}: {name}");
            assert!(!metric.title.is_empty(), "{kind}: {name}");
        }
        assert!(
            *kind == "idle" || result.metrics.values().any(|metric| metric.headline),
            "{kind}"
        );
    }
}

#[test]
fn output_that_ends_early_or_is_empty_or_foreign_is_an_error_that_quotes_it() {
    for (kind, raw) in RECORDED {
        let workload = by_kind(kind).unwrap();
        let parse = |raw: &[u8]| {
            workload
                .parse(raw, &Settings::default(), TIMING)
                .map(|_| ())
        };
        let cut = parse(&raw.trim_end().as_bytes()[..raw.trim_end().len() - 2])
            .unwrap_err()
            .to_string();
        assert!(cut.contains("cut off"), "{kind}: {cut}");
        let empty = parse(b"").unwrap_err().to_string();
        assert!(empty.contains("nothing"), "{kind}: {empty}");
        let foreign = parse(b"Segmentation fault \xff\x00")
            .unwrap_err()
            .to_string();
        assert!(foreign.contains("Segmentation fault"), "{kind}: {foreign}");
        assert!(parse(b"{}").is_err(), "{kind}");
        assert!(parse(b"[]").is_err(), "{kind}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_bytes_panic_a_parser(raw in prop::collection::vec(any::<u8>(), 0..300)) {
        for workload in all() {
            let _ = workload.parse(&raw, &Settings::default(), TIMING);
        }
    }

    #[test]
    fn no_mutation_of_real_output_panics_a_parser_or_gives_a_number_that_is_not_finite(
        places in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(&b"0-9e.,\"{}[]nax"[..])), 1..6),
    ) {
        for (kind, raw) in RECORDED {
            let mut raw = raw.as_bytes().to_vec();
            for (place, byte) in &places {
                let at = place.index(raw.len());
                raw[at] = *byte;
            }
            if let Ok(result) = by_kind(kind).unwrap().parse(&raw, &Settings::default(), TIMING) {
                for (name, metric) in result.metrics {
                    prop_assert!(metric.quantity.value.is_finite(), "{}: {}", kind, name);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_broken_number_in_real_output_is_an_error_or_leaves_every_figure_possible(
        broken in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(BROKEN)), 1..4),
    ) {
        for (kind, raw) in RECORDED.iter().chain(ALL_LOST) {
            let places = numbers(raw);
            let mut raw = (*raw).to_owned();
            let mut broken: Vec<_> = broken
                .iter()
                .map(|(place, text)| (&places[place.index(places.len())], text))
                .collect();
            // From the end, so that the places before stay where they are.
            broken.sort_by_key(|(place, _)| std::cmp::Reverse(place.start));
            broken.dedup_by_key(|(place, _)| place.start);
            for (place, text) in broken {
                raw.replace_range(place.clone(), text);
            }
            let parsed = by_kind(kind).unwrap().parse(raw.as_bytes(), &Settings::default(), TIMING);
            if let Ok(result) = parsed {
                prop_assert_eq!(nonsense(&result), None, "{}: {}", kind, raw);
            }
        }
    }
}

#[test]
fn a_load_of_a_parameter_in_other_units_is_a_quantity_in_the_unit_of_the_load() {
    let unit = Unit::per(Base::Bit, Base::Second);
    let level = LoadLevel {
        key: "load.rate_mbit",
        unit,
        scale: 1e6,
        title: "load",
    };
    assert_eq!(level.quantity(90.0), Quantity::new(90e6, unit));
    assert_eq!(level.quantity(90.0).to_string(), "90.0 Mbit/s");
}
