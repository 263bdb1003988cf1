// SPDX-License-Identifier: Apache-2.0
//! Bills of recordings: parts sum to the host's bill, whatever was recorded.

#![allow(clippy::indexing_slicing, reason = "a failure is a panic")]

use super::apportion::{decimal, rounded};
use super::tariff::Tariff;
use super::*;
use crate::second::{OF_GUEST, OF_HOST, Second};
use crate::store::Store;
use proptest::prelude::*;
use std::path::PathBuf;
use vtax_core::csv::fields;

/// Monday, 2026-11-30, 21:30 UTC.
const BEGAN: i64 = 1_796_074_200_000;

/// A second that ends `seconds` after [`BEGAN`], in which the host used `joules`, of which `idle` idle.
fn second(seconds: i64, joules: u64, idle: u64) -> Second {
    let mut host = [0; OF_HOST];
    host[0] = 10_000;
    host[1] = 1000;
    host[3] = 500;
    host[5] = idle * 1000;
    host[7] = joules * 1000;
    host[8] = idle * 1000;
    host[9] = 1;
    Second {
        ended: BEGAN + 1000 * seconds,
        host,
        guests: Vec::new(),
    }
}

fn guest(number: u32, tenths_of_ms: u64) -> (u32, [u64; OF_GUEST]) {
    let mut values = [0; OF_GUEST];
    values[0] = tenths_of_ms;
    (number, values)
}

fn named(number: u32, name: &str) -> Identity {
    serde_json::from_value(serde_json::json!({"n": number, "name": name, "platform": "qemu"}))
        .unwrap()
}

/// A recording of these seconds.
fn recording(seconds: &[Second], declared: &[Identity]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let (mut store, _) = Store::open(&path).unwrap();
    store
        .write_facts(&Facts {
            method: "traced".to_owned(),
            ..Facts::default()
        })
        .unwrap();
    for block in seconds.chunks(120) {
        store.write_block(block, declared).unwrap();
    }
    (folder, path)
}

fn tariff(text: &str) -> Tariff {
    Tariff::parse(text).unwrap()
}

fn bill(path: &Path, tariff: &Tariff) -> Result<Bill, BillError> {
    made(path, tariff, tariff.fixed().as_ref(), &mut |_| Ok(()))
}

/// The rows of FOCUS, each with its fields by column, and the bill.
fn focus(path: &Path, tariff: &Tariff) -> (Vec<HashMap<String, String>>, Bill) {
    let mut out = Vec::new();
    let mut rows = FocusRows::new(&mut out, tariff).unwrap();
    let bill = made(path, tariff, tariff.fixed().as_ref(), &mut |hour| {
        rows.hour(hour)
    })
    .unwrap();
    rows.finish().unwrap();
    let text = String::from_utf8(out).unwrap();
    let mut lines = text.lines();
    let header = fields(lines.next().unwrap());
    let row = |line: &str| {
        let fields = fields(line);
        assert_eq!(fields.len(), header.len(), "{line}");
        header.iter().cloned().zip(fields).collect()
    };
    (lines.map(row).collect(), bill)
}

/// A decimal number as an integer of its last digit.
fn digits(text: &str) -> u128 {
    text.replace('.', "").parse().unwrap()
}

fn charge_of(bill: &Bill, party: Party) -> Charge {
    bill.charges
        .iter()
        .find(|(other, _)| *other == party)
        .unwrap()
        .1
}

#[test]
fn an_hour_is_billed_as_by_hand() {
    // 3600 J a second for an hour from 21:30: 1800 s at 0.24 and 1800 s at 0.32 for a kWh of each second's thousandth.
    let mut seconds: Vec<Second> = (1..=3600).map(|at| second(at, 3600, 1800)).collect();
    for second in &mut seconds {
        second.guests = vec![guest(1, 6000), guest(2, 2500)];
    }
    let (_folder, path) = recording(&seconds, &[named(1, "web"), named(2, "db")]);
    let tariff = tariff(
        "currency = \"EUR\"\n[electricity]\noffset = \"UTC\"\n[[electricity.window]]\nfrom = \"22:00\"\nto = \"21:00\"\n\
         price = 0.32\n[[electricity.window]]\nfrom = \"21:00\"\nto = \"22:00\"\nprice = 0.24\n[machine]\nprice = 0.5\n\
         [carbon]\ngrams_per_kwh = 100\n[embodied]\nkilograms = 876.6\nyears = 1\n",
    );
    let bill = bill(&path, &tariff).unwrap();
    // Each second ends one later than it began: the first of 3600 began at 21:30:00.
    assert_eq!(bill.whole.energy, 3600 * 3600 * 1_000_000);
    assert_eq!(decimal(bill.whole.electricity, 8), "1.00800000");
    assert_eq!(decimal(bill.whole.machine, 8), "0.50000000");
    assert_eq!(decimal(bill.whole.operational, 6), "360.000000");
    assert_eq!(decimal(bill.whole.embodied, 6), "100.000000");
    // Processor time: 60, 25, 10 and 5 %. Half of the energy is idle and the host's.
    let expected = [
        (
            Party::Guest(0),
            "0.30240000",
            "0.30000000",
            "108.000000",
            "60.000000",
        ),
        (
            Party::Guest(1),
            "0.12600000",
            "0.12500000",
            "45.000000",
            "25.000000",
        ),
        (
            Party::Host,
            "0.55440000",
            "0.05000000",
            "198.000000",
            "10.000000",
        ),
        (
            Party::Unattributed,
            "0.02520000",
            "0.02500000",
            "9.000000",
            "5.000000",
        ),
    ];
    for (party, electricity, machine, operational, embodied) in expected {
        let charge = charge_of(&bill, party);
        assert_eq!(decimal(charge.electricity, 8), electricity, "{party:?}");
        assert_eq!(decimal(charge.machine, 8), machine, "{party:?}");
        assert_eq!(decimal(charge.operational, 6), operational, "{party:?}");
        assert_eq!(decimal(charge.embodied, 6), embodied, "{party:?}");
    }
    let per = Per::parse("120000", "request").unwrap();
    let sci = Sci::of(&bill, &tariff, Some("web"), &per).unwrap();
    assert!((sci.grams_per_unit - 168.0 / 120_000.0).abs() < 1e-12);
    assert_eq!(sci.source, Source::Measured);
    let sci = Sci::of(&bill, &tariff, None, &per).unwrap();
    assert!((sci.grams_per_unit - 460.0 / 120_000.0).abs() < 1e-12);
    let why = Sci::of(&bill, &tariff, Some("nobody"), &per)
        .unwrap_err()
        .to_string();
    assert!(why.contains("no guest nobody"), "{why}");
    let table = table(&bill, &tariff, Some(&sci), "recording", 80);
    assert!(
        table.lines().all(|line| line.chars().count() <= 80),
        "{table}"
    );
    assert!(table.contains("all numbers are measured"), "{table}");
}

#[test]
fn the_page_shows_what_is_printed() {
    let page = include_str!("../../../../../docs/howto/bill.md");
    let block = |fence: &str| {
        let (_, rest) = page.split_once(fence).unwrap();
        rest.split_once("```").unwrap().0
    };
    // Tuesday, 10:00 at an offset of an hour.
    let began: Timestamp = "2026-12-01T09:00:00Z".parse().unwrap();
    let later = (began.as_millisecond() - BEGAN) / 1000;
    let mut seconds: Vec<Second> = (1..=3600).map(|at| second(later + at, 135, 90)).collect();
    for second in &mut seconds {
        second.host[9] = 2;
        second.guests = vec![guest(1, 6003), guest(2, 2510)];
    }
    let (_folder, path) = recording(&seconds, &[named(1, "web-1"), named(2, "batch")]);
    let tariff = tariff(block("```toml tariff\n"));
    let bill = bill(&path, &tariff).unwrap();
    let table = table(&bill, &tariff, None, "hour", 80);
    let (shown, _) = table.split_once("\n\n  ~").unwrap();
    assert_eq!(shown, block("```text\n").trim_end(), "{shown}");
}

#[test]
fn an_interval_belongs_to_the_hour_in_which_it_began_and_hours_sum_to_the_bill() {
    let seconds: Vec<Second> = (1..=4000).map(|at| second(at, 100, 40)).collect();
    let (_folder, path) = recording(&seconds, &[]);
    let tariff = tariff("currency = \"EUR\"\n[electricity]\nprice = 0.3\n");
    let mut hours = Vec::new();
    let made = made(&path, &tariff, None, &mut |hour| {
        hours.push((hour.began.to_string(), hour.span.0, hour.whole.electricity));
        Ok(())
    });
    let bill = made.unwrap();
    let names: Vec<(&str, u64)> = hours
        .iter()
        .map(|(began, span, _)| (began.as_str(), span / 1_000_000_000))
        .collect();
    assert_eq!(
        names,
        [
            ("2026-11-30T21:00:00Z", 1800),
            ("2026-11-30T22:00:00Z", 2200)
        ]
    );
    assert_eq!(
        hours.iter().map(|(.., cost)| cost).sum::<u128>(),
        bill.whole.electricity
    );
}

#[test]
fn without_a_meter_there_is_no_energy_and_no_zero() {
    let mut seconds: Vec<Second> = (1..=10).map(|at| second(at, 100, 40)).collect();
    for second in &mut seconds {
        second.host[9] = 0;
    }
    let (_folder, path) = recording(&seconds, &[]);
    let electricity =
        "currency = \"EUR\"\n[electricity]\nprice = 0.3\n[carbon]\ngrams_per_kwh = 1\n";
    let why = bill(&path, &tariff(electricity)).unwrap_err().to_string();
    assert!(why.contains("had no meter"), "{why}");
    let both = tariff(&format!(
        "{electricity}[machine]\nprice = 1\n[focus]\naccount = \"a\"\nprovider = \"p\"\nhost = \"h\"\n"
    ));
    let bill = bill(&path, &both).unwrap();
    let table = table(&bill, &both, None, "recording", 80);
    assert!(table.contains('–') && table.contains("no meter"), "{table}");
    let document = serde_json::to_value(Document::new(&bill, &both, None)).unwrap();
    assert!(
        document["whole"]["energy_kwh"].is_null()
            && document["whole"]["electricity_cost"].is_null()
    );
    assert!(document["whole"]["operational_grams"].is_null());
    let (rows, _) = focus(&path, &both);
    assert!(
        rows.iter()
            .all(|row| row["SkuId"] == "machine" && row["x_OperationalGrams"].is_empty())
    );
    // A part with a meter is billed, and the other part is said.
    seconds[0].host[9] = 2;
    let (_folder, path) = recording(&seconds, &[]);
    let tariff = tariff(electricity);
    let bill = super::tests::bill(&path, &tariff).unwrap();
    assert_eq!(bill.unmetered.0, 9_000_000_000);
    let table = super::table(&bill, &tariff, None, "recording", 80);
    assert!(
        table.contains("9 s had no meter") && table.contains("~"),
        "{table}"
    );
}

#[test]
fn a_series_that_does_not_cover_the_recording_is_an_error_with_the_time() {
    let seconds: Vec<Second> = (1..=10).map(|at| second(at, 100, 40)).collect();
    let (_folder, path) = recording(&seconds, &[]);
    let tariff = tariff("currency = \"EUR\"\n[carbon]\nseries = \"a.csv\"\n");
    let series = |text: &str| {
        let series = Intensity::series(format!("time,grams_per_kwh\n{text}").as_bytes()).unwrap();
        made(&path, &tariff, Some(&series), &mut |_| Ok(()))
    };
    let why = series("2026-11-30T21:30:05Z,100\n2026-11-30T22:00:00Z,200\n").unwrap_err();
    assert!(
        why.to_string()
            .contains("no value for 2026-11-30T21:30:00Z"),
        "{why}"
    );
    let bill = series("2026-11-30T21:00:00Z,3600\n2026-11-30T21:30:05Z,7200\n").unwrap();
    // 500 J at 3.6 kg and 500 J at 7.2 kg for a kWh.
    assert_eq!(decimal(bill.whole.operational, 6), "1.500000");
}

#[test]
fn names_of_guests_break_neither_rows_nor_spreadsheets() {
    let names = [
        "=HYPERLINK(\"http://a\",\"b\")",
        "+1+1",
        "@SUM(A1)",
        "-2+3",
        "a,b\"c\"",
        "a\u{1b}[31mb",
        "",
    ];
    let mut seconds: Vec<Second> = (1..=5).map(|at| second(at, 100, 40)).collect();
    let declared: Vec<Identity> = (1..)
        .zip(names)
        .map(|(number, name)| named(number, name))
        .collect();
    for second in &mut seconds {
        second.guests = declared.iter().map(|one| guest(one.number, 100)).collect();
    }
    let (_folder, path) = recording(&seconds, &declared);
    let tariff = tariff(
        "currency = \"EUR\"\n[electricity]\nprice = 0.3\n[focus]\naccount = \"=1\"\nprovider = \"p\"\nhost = \"h\"\n",
    );
    let (rows, bill) = focus(&path, &tariff);
    assert_eq!(rows.len(), names.len() + 2);
    let found = |name: &str| rows.iter().any(|row| row["AllocatedResourceName"] == name);
    assert!(found("'=HYPERLINK(\"http://a\",\"b\")") && found("'+1+1") && found("'@SUM(A1)"));
    assert!(found("'-2+3") && found("a,b\"c\""));
    for row in &rows {
        assert!(
            row.values()
                .all(|text| !text.starts_with(['=', '+', '-', '@'])),
            "{row:?}"
        );
    }
    let table = table(&bill, &tariff, None, "recording", 80);
    assert!(
        !table.contains('\u{1b}') && table.lines().all(|line| line.chars().count() <= 80),
        "{table}"
    );
}

#[test]
fn rows_of_focus_have_the_columns_that_must_not_be_null() {
    let mut seconds: Vec<Second> = (1..=2000).map(|at| second(at, 100, 40)).collect();
    for second in &mut seconds {
        second.guests = vec![guest(1, 500)];
    }
    let (_folder, path) = recording(&seconds, &[named(1, "web")]);
    let tariff = tariff(
        "currency = \"JPY\"\n[electricity]\nprice = 31\n[machine]\nprice = 20\n[focus]\naccount = \"a\"\nprovider = \"p\"\n\
         host = \"h\"\n[carbon]\ngrams_per_kwh = 1\n[embodied]\nkilograms = 1\nyears = 1\n",
    );
    let (rows, bill) = focus(&path, &tariff);
    // Two hours, two charges, three parties.
    assert_eq!(rows.len(), 12);
    let never_null = [
        "BilledCost",
        "EffectiveCost",
        "ListCost",
        "ContractedCost",
        "BillingCurrency",
        "BillingAccountId",
        "BillingPeriodStart",
        "BillingPeriodEnd",
        "ChargePeriodStart",
        "ChargePeriodEnd",
        "ChargeCategory",
        "PricingQuantity",
        "PricingUnit",
        "ServiceName",
        "ServiceCategory",
        "ServiceProviderName",
        "HostProviderName",
        "InvoiceIssuerName",
        "ProviderName",
        "PublisherName",
        "AllocatedMethodId",
        "AllocatedMethodDetails",
        "SkuPriceId",
    ];
    for row in &rows {
        assert!(
            never_null.iter().all(|column| !row[*column].is_empty()),
            "{row:?}"
        );
        assert_eq!(
            row["AllocatedResourceId"].is_empty(),
            row["x_Party"] != "guest"
        );
    }
    let row = rows
        .iter()
        .find(|row| row["x_Party"] == "guest" && row["SkuId"] == "electricity")
        .unwrap();
    assert_eq!(row["ChargePeriodStart"], "2026-11-30T21:00:00Z");
    assert_eq!(row["ChargePeriodEnd"], "2026-11-30T22:00:00Z");
    assert_eq!(row["BillingPeriodStart"], "2026-11-01T00:00:00Z");
    assert_eq!(row["BillingPeriodEnd"], "2026-12-01T00:00:00Z");
    assert_eq!(
        (
            row["ConsumedUnit"].as_str(),
            row["AllocatedResourceId"].as_str()
        ),
        ("kWh", "qemu/web")
    );
    let details: serde_json::Value = serde_json::from_str(&row["AllocatedMethodDetails"]).unwrap();
    assert_eq!(details["Elements"][0]["UsageUnit"], "kWh");
    for hour in ["2026-11-30T21:00:00Z", "2026-11-30T22:00:00Z"] {
        for sku in ["electricity", "machine"] {
            let of = rows
                .iter()
                .filter(|row| row["ChargePeriodStart"] == hour && row["SkuId"] == sku);
            let ratio = of.map(|row| {
                let details: serde_json::Value =
                    serde_json::from_str(&row["AllocatedMethodDetails"]).unwrap();
                details["Elements"][0]["AllocatedRatio"].as_f64().unwrap()
            });
            assert!((ratio.sum::<f64>() - 1.0).abs() < 1e-12);
        }
    }
    let grams = |column: &str| -> u128 {
        let all = rows
            .iter()
            .map(|row| row[column].as_str())
            .filter(|text| !text.is_empty());
        all.map(digits).sum()
    };
    assert_eq!(grams("x_OperationalGrams"), bill.whole.operational);
    assert_eq!(grams("x_EmbodiedGrams"), bill.whole.embodied);
}

/// The host's bill, from the energy of its intervals alone.
fn of_host(path: &Path, tariff: &Tariff) -> u128 {
    let mut hours: BTreeMap<i64, (u128, u128)> = BTreeMap::new();
    store::read(path, |read| {
        let began = read.second.ended - i64::try_from(read.second.host[0] / 10).unwrap();
        let (energy, span) = hours.entry(began.div_euclid(HOUR)).or_default();
        let price = tariff.electricity.as_ref().unwrap().at(began).0;
        let is_metered = read.second.host[9] > 0;
        *energy +=
            u128::from(read.second.host[7] * u64::from(is_metered)) * 1000 * u128::from(price);
        *span += u128::from(read.second.host[0]) * 100_000;
    })
    .unwrap();
    let scale = 10_u128.pow(tariff.currency.decimals);
    let machine = tariff.machine.map_or(0, |price| u128::from(price.0));
    let hour = |(energy, span): (u128, u128)| {
        rounded(energy * scale, PER_KWH) + rounded(span * machine * scale, PER_KWH)
    };
    hours.into_values().map(hour).sum()
}

prop_compose! {
    fn seconds()(
        values in prop::collection::vec(
            (
                prop::array::uniform6(0u64..100_000),
                0u64..5_000_000,
                0u64..5_000_000,
                prop::collection::vec((1u32..6, 0u64..50_000, 0u64..5000), 0..5),
                0u64..3,
            ),
            1..40,
        ),
        step in 1i64..1200,
    ) -> Vec<Second> {
        let of = |(at, (times, total, idle, guests, source))| {
            let (at, times, guests): (i64, [u64; 6], Vec<(u32, u64, u64)>) = (at, times, guests);
            let [span, tasks, softirq, rest, departed, host_idle] = times;
            let mut host = [0; OF_HOST];
            (host[0], host[1], host[2], host[3]) = (span, tasks, softirq, rest);
            (host[5], host[6], host[7], host[8]) = (host_idle, rest / 7, total, idle);
            (host[9], host[14]) = (source, departed);
            let mut guests: Vec<_> = guests.into_iter().map(|(number, time, idle)| {
                let mut guest = guest(number, time);
                guest.1[6] = idle;
                guest
            }).collect();
            guests.sort_unstable();
            guests.dedup_by_key(|(number, _)| *number);
            Second { ended: BEGAN + at * step * 1000, host, guests }
        };
        (1..).zip(values).map(of).collect()
    }
}

prop_compose! {
    fn tariffs()(
        currency in prop::sample::select(vec!["EUR", "JPY", "KWD", "UYW"]),
        prices in prop::array::uniform3(0u64..3_000_000),
        has_machine: bool,
        from in 0usize..24,
    ) -> Tariff {
        let [day, night, machine] = prices.map(|price| decimal(u128::from(price), 6));
        let to = (from + 7) % 24;
        let machine = if has_machine { format!("[machine]\nprice = {machine}\n") } else { String::new() };
        tariff(&format!(
            "currency = \"{currency}\"\n[electricity]\noffset = \"-03:30\"\n[[electricity.window]]\nfrom = \"{from:02}:00\"\n\
             to = \"{to:02}:00\"\nprice = {day}\n[[electricity.window]]\nfrom = \"{to:02}:00\"\nto = \"{from:02}:00\"\n\
             price = {night}\n{machine}[carbon]\ngrams_per_kwh = 363.5\n[embodied]\nkilograms = 1300\nyears = 5\n\
             [focus]\naccount = \"a\"\nprovider = \"p\"\nhost = \"h\"\n"
        ))
    }
}

proptest! {
    #[test]
    fn rows_sum_to_the_bill_of_the_host(seconds in seconds(), tariff in tariffs()) {
        let (_folder, path) = recording(&seconds, &[named(1, "a"), named(2, "a"), named(3, "b")]);
        let is_metered = seconds.iter().any(|second| second.host[9] > 0);
        let expected = of_host(&path, &tariff);
        let (rows, bill) = focus(&path, &tariff);
        prop_assert_eq!(bill.whole.cost(), expected);
        let sum = |of: fn(&Charge) -> u128| bill.charges.iter().map(|(_, charge)| of(charge)).sum::<u128>();
        prop_assert_eq!(sum(|charge| charge.cost()), expected);
        prop_assert_eq!(sum(|charge| charge.operational), bill.whole.operational);
        prop_assert_eq!(sum(|charge| charge.embodied), bill.whole.embodied);
        let energy: u64 = seconds.iter().filter(|second| second.host[9] > 0).map(|second| second.host[7]).sum();
        prop_assert_eq!(sum(|charge| charge.energy), u128::from(energy) * 1000);
        prop_assert_eq!(rows.iter().map(|row| digits(&row["BilledCost"])).sum::<u128>(), expected);
        prop_assert!(is_metered || bill.whole.energy_source.is_none());
        let document = serde_json::to_value(Document::new(&bill, &tariff, None)).unwrap();
        let parties = document["parties"].as_array().unwrap();
        let cost = |one: &serde_json::Value| digits(one["cost"].as_str().unwrap());
        let units = rounded(expected, 1_000_000);
        prop_assert_eq!(parties.iter().map(cost).sum::<u128>(), units);
        prop_assert_eq!(cost(&document["whole"]), units);
    }

    #[test]
    fn no_recording_panics(
        values in prop::collection::vec((any::<[u64; OF_HOST]>(), any::<i64>(), any::<[u64; OF_GUEST]>()), 1..20),
        tariff in tariffs(),
    ) {
        let seconds: Vec<Second> = values
            .into_iter()
            .map(|(host, ended, guest)| Second { ended, host, guests: vec![(1, guest)] })
            .collect();
        let (_folder, path) = recording(&seconds, &[]);
        if let Ok(bill) = bill(&path, &tariff) {
            let _ = table(&bill, &tariff, None, "recording", 80);
            let _ = serde_json::to_value(Document::new(&bill, &tariff, None)).unwrap();
        }
    }
}
