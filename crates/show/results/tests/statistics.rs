// SPDX-License-Identifier: Apache-2.0
//! Tests of the statistics' properties: coverage, false calls, invariances, edge cases.

use proptest::prelude::*;
use vtax_core::{Nanoseconds, SeriesKind};
use vtax_results::Better;
use vtax_results::stats::{
    Effect, Interval, NoTax, Random, SteadyState, Tax, Verdict, classify, describe, exact_verdict,
    mean_interval, paired_tax, positive_mean_interval, quantile, rates, seed_of, unpaired_tax,
    verdict,
};

/// A standard normal number (Box and Muller 1958).
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.uniform()).ln()).sqrt();
    radius * (2.0 * std::f64::consts::PI * random.uniform()).cos()
}

/// `n` pairs whose true ratio is `ratio`: a shared level per block and lognormal noise.
fn pairs(random: &mut Random, n: usize, ratio: f64, noise: f64) -> (Vec<f64>, Vec<f64>) {
    (0..n)
        .map(|_| {
            let block = 10.0 * (0.05 * normal(random)).exp();
            (
                block * ratio * (noise * normal(random)).exp(),
                block * (noise * normal(random)).exp(),
            )
        })
        .unzip()
}

const WORLDS: usize = 400;

fn share(count: usize) -> f64 {
    count as f64 / WORLDS as f64
}

#[test]
fn the_interval_of_a_ratio_covers_the_truth_as_often_as_it_says() {
    for (n, paired) in [
        (4, true),
        (5, true),
        (7, true),
        (10, true),
        (5, false),
        (10, false),
    ] {
        let mut random = Random::new(seed_of(&["coverage"]) + n as u64);
        let covered = (0..WORLDS)
            .map(|_| {
                let (treatment, baseline) = pairs(&mut random, n, 1.7, 0.1);
                let tax = if paired { paired_tax } else { unpaired_tax };
                tax(&treatment, &baseline)
                    .unwrap()
                    .interval
                    .unwrap()
                    .contains(1.7)
            })
            .filter(|covers| *covers)
            .count();
        let coverage = share(covered);
        eprintln!("ratio, n = {n}, paired = {paired}: coverage {coverage:.3}");
        assert!(
            (0.90..=0.99).contains(&coverage),
            "n = {n}, paired = {paired}: coverage {coverage}"
        );
    }
}

#[test]
fn the_interval_of_a_mean_covers_the_truth_as_often_as_it_says() {
    for n in [3, 5, 8, 10] {
        let mut random = Random::new(seed_of(&["mean"]) + n as u64);
        let covered = (0..WORLDS)
            .filter(|world| {
                let values: Vec<f64> = (0..n).map(|_| 100.0 + 7.0 * normal(&mut random)).collect();
                mean_interval(&values, *world as u64)
                    .unwrap()
                    .contains(100.0)
            })
            .count();
        let coverage = share(covered);
        eprintln!("mean, n = {n}: coverage {coverage:.3}");
        assert!(
            (0.90..=0.99).contains(&coverage),
            "n = {n}: coverage {coverage}"
        );
    }
}

#[test]
fn the_interval_of_a_positive_mean_covers_the_truth_and_stays_positive() {
    for noise in [0.1, 0.4] {
        for n in [2, 3, 4, 5, 8] {
            let mut random = Random::new(seed_of(&["positive"]) + n as u64);
            let mut normal_low = 0;
            let covered = (0..WORLDS)
                .filter(|world| {
                    // The arithmetic mean of such values is 10.
                    let values: Vec<f64> = (0..n)
                        .map(|_| 10.0 * (noise * normal(&mut random) - noise * noise / 2.0).exp())
                        .collect();
                    let interval = positive_mean_interval(&values, *world as u64).unwrap();
                    assert!(interval.low > 0.0, "{values:?}: {interval:?}");
                    normal_low += usize::from(mean_interval(&values, 1).unwrap().low < 0.0);
                    interval.contains(10.0)
                })
                .count();
            let coverage = share(covered);
            eprintln!(
                "positive, n = {n}, noise {noise}: coverage {coverage:.3}; plain ones below zero {:.3}",
                share(normal_low)
            );
            assert!(
                (0.90..=0.99).contains(&coverage),
                "n = {n}, noise {noise}: coverage {coverage}"
            );
        }
    }
}

#[test]
fn zeros_cut_a_positive_interval_and_a_negative_value_is_taken_at_its_word() {
    let cut = positive_mean_interval(&[0.0, 0.0, 3.0], 1).unwrap();
    assert!(cut.low == 0.0 && cut.high > 3.0, "{cut:?}");
    let values = [-1.0, 2.0, 3.0];
    assert_eq!(
        positive_mean_interval(&values, 1),
        mean_interval(&values, 1)
    );
    assert_eq!(positive_mean_interval(&[5.0], 1), None);
}

#[test]
fn a_threefold_cost_is_found_with_five_pairs() {
    let mut random = Random::new(3);
    let (treatment, baseline) = pairs(&mut random, 5, 3.0, 0.05);
    let tax = paired_tax(&treatment, &baseline).unwrap();
    assert_eq!(verdict(&tax, 0.02), Verdict::Different);
    assert!((2.7..3.3).contains(&tax.ratio), "{tax:?}");
    assert_eq!(tax.effect, 1.0);
}

#[test]
fn a_difference_within_the_minimum_effect_is_the_same_and_one_that_may_reach_it_is_shown() {
    let baseline: Vec<f64> = (0..10).map(|i| 100.0 + 0.01 * f64::from(i)).collect();
    let treatment: Vec<f64> = baseline.iter().map(|value| value * 1.01).collect();
    let tax = paired_tax(&treatment, &baseline).unwrap();
    assert!(tax.p < 0.01 && !tax.interval.unwrap().contains(1.0));
    assert_eq!(verdict(&tax, 0.02), Verdict::Same);
    assert_eq!(verdict(&tax, 0.005), Verdict::Different);
    let interval = |low, high| Interval { low, high };
    for (low, high, effect, expected) in [
        (1.004, 1.034, Effect::Open, Verdict::Different),
        (1.021, 1.034, Effect::Shown, Verdict::Different),
        (0.95, 0.98, Effect::Shown, Verdict::Different),
        (1.004, 1.014, Effect::Excluded, Verdict::Same),
        (0.99, 1.01, Effect::Excluded, Verdict::Same),
        (0.99, 1.03, Effect::Open, Verdict::NoDifferenceShown),
    ] {
        let ends = interval(low, high);
        let of = Tax {
            interval: Some(ends),
            ..tax
        };
        assert_eq!(verdict(&of, 0.02), expected, "{ends:?}");
        assert_eq!(Effect::from_interval(ends, 0.02), Some(effect), "{ends:?}");
        assert_eq!(Effect::from_interval(ends, 0.0), None);
    }
}

#[test]
fn the_minimum_effect_is_the_same_factor_in_both_directions() {
    for (effect, least) in [(0.05, 1.05), (0.02, 1.02), (0.5, 1.5), (1.0, 2.0)] {
        let off: [f64; 10] = std::array::from_fn(|i| 1.0 + 1e-7 * i as f64);
        let shifted = off.map(|value| value * least * 1.0001);
        let judged = |treatment: &[f64], baseline: &[f64]| {
            let tax = paired_tax(treatment, baseline).unwrap();
            verdict(&tax, effect)
        };
        assert_eq!(judged(&shifted, &off), Verdict::Different, "{effect}");
        assert_eq!(judged(&off, &shifted), Verdict::Different, "{effect}");
        let less = off.map(|value| value * (1.0 + effect * 0.99));
        assert_eq!(judged(&less, &off), Verdict::Same);
        assert_eq!(judged(&off, &less), Verdict::Same);
        assert_eq!(exact_verdict(least, effect), Verdict::Different);
        assert_eq!(exact_verdict(1.0 / least, effect), Verdict::Different);
        assert_eq!(exact_verdict(1.0 + effect * 0.99, effect), Verdict::Same);
        assert_eq!(
            exact_verdict(1.0 / (1.0 + effect * 0.99), effect),
            Verdict::Same
        );
    }
}

#[test]
fn exact_values_that_repetitions_could_give_are_no_difference() {
    for ratio in [1.0, 1.0001, 1.0 / 1.0001, 1.00019] {
        assert_eq!(exact_verdict(ratio, 0.0), Verdict::Same, "{ratio}");
    }
    for ratio in [1.00021, 1.0 / 1.00021] {
        assert_eq!(exact_verdict(ratio, 0.0), Verdict::Different, "{ratio}");
    }
}

#[test]
fn equal_positive_values_have_an_interval_of_one_point() {
    for n in 2..12 {
        let interval = positive_mean_interval(&vec![350.0; n], 1).unwrap();
        assert_eq!((interval.low, interval.high), (350.0, 350.0), "n = {n}");
    }
}

#[test]
fn six_equal_values_have_their_mean_in_its_interval_and_no_scatter() {
    let found = describe(&[1.0; 6]).unwrap();
    assert_eq!((found.mean, found.sd), (1.0, Some(0.0)));
    let interval = mean_interval(&[1.0; 6], 1).unwrap();
    assert!(interval.contains(found.mean), "{interval:?}");
}

#[test]
fn three_pairs_are_too_few_however_far_apart() {
    let tax = paired_tax(&[30.0, 31.0, 32.0], &[1.0, 1.1, 1.2]).unwrap();
    assert_eq!(verdict(&tax, 0.02), Verdict::TooFewTrials);
    let one = paired_tax(&[30.0], &[1.0]).unwrap();
    assert_eq!(
        (one.interval, verdict(&one, 0.02)),
        (None, Verdict::TooFewTrials)
    );
}

#[test]
fn where_there_is_no_ratio_the_reason_is_given() {
    assert_eq!(
        paired_tax(&[1.0, 2.0], &[0.0, 2.0]),
        Err(NoTax::ZeroBaseline)
    );
    assert_eq!(
        paired_tax(&[0.0, 2.0], &[1.0, 2.0]),
        Err(NoTax::ZeroTreatment)
    );
    assert_eq!(paired_tax(&[-1.0, 2.0], &[1.0, 2.0]), Err(NoTax::Negative));
    assert_eq!(
        paired_tax(&[f64::NAN, 2.0], &[1.0, 2.0]),
        Err(NoTax::NotFinite)
    );
    assert_eq!(
        unpaired_tax(&[f64::INFINITY], &[1.0, 2.0]),
        Err(NoTax::NotFinite)
    );
    assert_eq!(paired_tax(&[], &[]), Err(NoTax::NoTrials));
    assert_eq!(unpaired_tax(&[1e300], &[1e-300]), Err(NoTax::NotFinite));
    assert!(NoTax::ZeroBaseline.to_string().contains("baseline is zero"));
}

#[test]
fn a_description_skips_what_is_not_a_number() {
    let found = describe(&[1.0, f64::NAN, 3.0, 8.0]).unwrap();
    assert_eq!((found.n, found.mean, found.median), (3, 4.0, 3.0));
    assert_eq!(describe(&[f64::NAN]), None);
    assert_eq!(describe(&[5.0]).unwrap().sd, None);
    assert_eq!(describe(&[f64::MAX, f64::MAX]).unwrap().mean, f64::MAX);
}

#[test]
fn percentiles_are_those_of_r_and_numpy() {
    let values = [15.0, 20.0, 35.0, 40.0, 50.0];
    for (probability, expected) in [
        (0.0, 15.0),
        (0.25, 20.0),
        (0.4, 29.0),
        (0.5, 35.0),
        (0.95, 48.0),
        (1.0, 50.0),
    ] {
        assert!((quantile(&values, probability).unwrap() - expected).abs() < 1e-9);
    }
    assert_eq!(quantile(&[], 0.5), None);
}

fn noisy(random: &mut Random, levels: &[(usize, f64)]) -> Vec<f64> {
    levels
        .iter()
        .flat_map(|(length, level)| vec![*level; *length])
        .map(|level| level * (1.0 + 0.01 * normal(random)))
        .collect()
}

#[test]
fn series_are_classified_by_where_they_end() {
    let mut random = Random::new(11);
    type Levels<'a> = &'a [(usize, f64)];
    let cases: [(Levels<'_>, Better, SteadyState); 8] = [
        (&[(60, 1.0)], Better::Lower, SteadyState::Flat),
        (&[(20, 2.0), (40, 1.0)], Better::Lower, SteadyState::WarmUp),
        (
            &[(20, 1.0), (40, 2.0)],
            Better::Lower,
            SteadyState::Slowdown,
        ),
        (&[(20, 1.0), (40, 2.0)], Better::Higher, SteadyState::WarmUp),
        (
            &[(20, 2.0), (40, 1.0)],
            Better::Higher,
            SteadyState::Slowdown,
        ),
        (
            &[(50, 1.0), (10, 3.0)],
            Better::Lower,
            SteadyState::NoSteadyState,
        ),
        (
            &[(20, 2.0), (20, 1.0), (20, 1.5)],
            Better::Lower,
            SteadyState::Slowdown,
        ),
        (&[(4, 1.0)], Better::Lower, SteadyState::TooShort),
    ];
    for (levels, better, expected) in cases {
        let found = classify(&noisy(&mut random, levels), better);
        assert_eq!(found, expected, "{levels:?} {better:?}");
    }
    assert_eq!(classify(&[0.0; 30], Better::Lower), SteadyState::Flat);
    assert_eq!(classify(&[7.5; 30], Better::Lower), SteadyState::Flat);
}

#[test]
fn steady_noise_is_rarely_taken_for_a_change() {
    let mut random = Random::new(5);
    let mut flat = 0;
    for _ in 0..200 {
        let found = classify(&noisy(&mut random, &[(30, 4.0)]), Better::Lower);
        if found == SteadyState::Flat {
            flat += 1;
        }
    }
    assert!(
        flat >= 196,
        "only {flat} of 200 flat series were called flat"
    );
}

#[test]
fn rates_come_from_counters_by_interpolation_and_from_gauges_by_means() {
    let at = |seconds: f64| Nanoseconds((seconds * 1e9) as u64);
    let window = (at(1.0), at(4.0));
    let counter: Vec<_> = [0.3, 0.9, 1.7, 2.5, 3.4, 4.2]
        .map(|t| (at(t), 5.0 * t))
        .to_vec();
    let found = rates(&counter, SeriesKind::Counter, window, at(1.0));
    assert_eq!(found.len(), 3);
    assert!(
        found.iter().all(|rate| (rate - 5.0).abs() < 1e-6),
        "{found:?}"
    );
    let gauge: Vec<_> = [1.2, 1.4, 2.2, 3.1, 3.9].map(|t| (at(t), t)).to_vec();
    let found = rates(&gauge, SeriesKind::Gauge, window, at(1.0));
    for (found, expected) in found.iter().zip([1.3, 2.2, 3.5]) {
        assert!((found - expected).abs() < 1e-9);
    }
    assert!(rates(&[], SeriesKind::Counter, window, at(1.0)).is_empty());
    assert!(rates(&counter, SeriesKind::Counter, window, Nanoseconds(0)).is_empty());
    assert!(rates(&counter, SeriesKind::Counter, (at(4.0), at(1.0)), at(1.0)).is_empty());
}

fn positive() -> impl Strategy<Value = Vec<(f64, f64)>> {
    proptest::collection::vec((1e-6f64..1e6, 1e-6f64..1e6), 2..9)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_change_of_unit_leaves_the_tax_alone(values in positive(), scale in 1e-3f64..1e3) {
        let (treatment, baseline): (Vec<f64>, Vec<f64>) = values.into_iter().unzip();
        let scaled = |values: &[f64]| -> Vec<f64> { values.iter().map(|value| value * scale).collect() };
        for tax in [paired_tax, unpaired_tax] {
            let one = tax(&treatment, &baseline).unwrap();
            let other = tax(&scaled(&treatment), &scaled(&baseline)).unwrap();
            prop_assert!((one.ratio / other.ratio - 1.0).abs() < 1e-9);
            prop_assert!((one.p - other.p).abs() < 1e-9);
            prop_assert!((one.interval.unwrap().low / other.interval.unwrap().low - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn swapping_the_labels_inverts_the_tax(values in positive()) {
        let (treatment, baseline): (Vec<f64>, Vec<f64>) = values.into_iter().unzip();
        let one = paired_tax(&treatment, &baseline).unwrap();
        let other = paired_tax(&baseline, &treatment).unwrap();
        prop_assert!((one.ratio * other.ratio - 1.0).abs() < 1e-9);
        prop_assert!((one.interval.unwrap().low * other.interval.unwrap().high - 1.0).abs() < 1e-6);
        prop_assert!((one.p - other.p).abs() < 1e-12);
        prop_assert_eq!(one.effect, -other.effect);
    }

    #[test]
    fn the_interval_holds_the_estimate(values in positive()) {
        let (treatment, baseline): (Vec<f64>, Vec<f64>) = values.into_iter().unzip();
        for tax in [paired_tax, unpaired_tax] {
            let tax = tax(&treatment, &baseline).unwrap();
            prop_assert!(tax.interval.unwrap().contains(tax.ratio), "{:?}", tax);
            prop_assert!((0.0..=1.0).contains(&tax.p));
        }
    }

    #[test]
    fn the_interval_of_a_positive_mean_is_positive_and_holds_the_mean(
        values in proptest::collection::vec(1e-6f64..1e6, 2..9),
    ) {
        let interval = positive_mean_interval(&values, 4).unwrap();
        let mean = describe(&values).unwrap().mean;
        prop_assert!(interval.low > 0.0 && interval.contains(mean), "{:?} {:?}", values, interval);
    }

    #[test]
    fn no_numbers_make_the_statistics_panic(
        first in proptest::collection::vec(any::<f64>(), 0..12),
        second in proptest::collection::vec(any::<f64>(), 0..12),
    ) {
        let _ = paired_tax(&first, &second);
        let _ = unpaired_tax(&first, &second);
        let _ = mean_interval(&first, 1);
        let _ = positive_mean_interval(&first, 1);
        let _ = describe(&first);
        let _ = classify(&first, Better::Neither);
    }
}
