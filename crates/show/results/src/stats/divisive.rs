// SPDX-License-Identifier: Apache-2.0
//! Changepoints in a series of few values, such as one number of each of many runs: E-divisive (Matteson and
//! James 2014, "A nonparametric approach for multiple change point analysis of multivariate data").
//!
//! PELT in [`super::steady`] needs some 45 points to see a change. E-divisive decides by permutation, so that the
//! chance of a false change is known at any length.

use super::random::Random;

/// A changepoint separates at least this many values from the rest: one deviating value is an outlier.
const SHORTEST_SEGMENT: usize = 2;
/// Number of permutations in the test of a changepoint.
const ARRANGEMENTS: u32 = 1_999;
/// Significance level of each test.
const ALPHA: f64 = 0.05;
/// Longest series that is tested, since the time of a test grows with the square of the length. Callers cut a longer
/// one to its last values.
pub const LONGEST_SERIES: usize = 400;

/// A change of a series' level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Changepoint {
    /// Index of the first value after the change.
    pub at: usize,
    /// The share of permutations with a split at least as strong as this one.
    pub p: f64,
}

/// The changepoints of `values`, in the order of the series. Values that are not finite have no distances; the caller
/// leaves them out, otherwise there are no changepoints.
///
/// The strongest split of any segment is tested against random permutations of the values within their segments. It
/// counts where p < 0.05; then both halves are split further. The search ends at the first split that does not count.
/// At most one in twenty series without a change gets one.
pub fn changepoints(values: &[f64], seed: u64) -> Vec<Changepoint> {
    if values.len() > LONGEST_SERIES || values.iter().any(|value| !value.is_finite()) {
        return Vec::new();
    }
    let mut random = Random::new(seed);
    let mut starts = vec![0, values.len()];
    let mut found: Vec<Changepoint> = Vec::new();
    while let Some((strength, at)) = strongest(values, &starts) {
        let mut shuffled = values.to_vec();
        let mut as_strong = 1;
        for _ in 0..ARRANGEMENTS {
            for (start, end) in segments(&starts) {
                if let Some(segment) = shuffled.get_mut(start..end) {
                    shuffle(segment, &mut random);
                }
            }
            let chance = strongest(&shuffled, &starts).map_or(0.0, |(strength, _)| strength);
            // Equality within rounding counts as equally strong.
            as_strong += u32::from(chance >= strength * (1.0 - 1e-9));
        }
        let p = f64::from(as_strong) / f64::from(ARRANGEMENTS + 1);
        if p >= ALPHA {
            break;
        }
        found.push(Changepoint { at, p });
        starts.push(at);
        starts.sort_unstable();
    }
    found.sort_unstable_by_key(|change| change.at);
    found
}

/// The start and end of each segment, from `starts`.
fn segments(starts: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
    starts.iter().copied().zip(starts.iter().copied().skip(1))
}

fn shuffle(values: &mut [f64], random: &mut Random) {
    for index in (1..values.len()).rev() {
        values.swap(index, random.below(index + 1));
    }
}

/// The strongest split of any segment, and its index; `None` where no segment can be split or all values are equal.
fn strongest(values: &[f64], starts: &[usize]) -> Option<(f64, usize)> {
    segments(starts)
        .filter_map(|(start, end)| {
            let (strength, at) = split(values.get(start..end)?)?;
            Some((strength, start + at))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(strength, _)| *strength > 0.0)
}

/// The strongest split of one segment: m·k / (m + k) times the energy distance of its halves of m and k values.
fn split(values: &[f64]) -> Option<(f64, usize)> {
    let n = values.len();
    if n < 2 * SHORTEST_SEGMENT {
        return None;
    }
    let distance_to = |value: f64, others: &[f64]| -> f64 {
        others.iter().map(|other| (value - other).abs()).sum()
    };
    // Sums of the distances of each pair: within the left half, within the right, and between them.
    let (mut left, mut between) = (0.0, 0.0);
    let mut right: f64 = (values.iter().enumerate())
        .map(|(index, value)| distance_to(*value, values.get(index + 1..).unwrap_or(&[])))
        .sum();
    let mut best: Option<(f64, usize)> = None;
    for (index, value) in values.iter().enumerate() {
        let to_left = distance_to(*value, values.get(..index).unwrap_or(&[]));
        let to_right = distance_to(*value, values.get(index + 1..).unwrap_or(&[]));
        left += to_left;
        right -= to_right;
        between += to_right - to_left;
        let (m, k) = (index + 1, n - index - 1);
        if m < SHORTEST_SEGMENT || k < SHORTEST_SEGMENT {
            continue;
        }
        let (m, k) = (m as f64, k as f64);
        let energy =
            2.0 * between / (m * k) - 2.0 * left / (m * (m - 1.0)) - 2.0 * right / (k * (k - 1.0));
        let strength = m * k / (m + k) * energy;
        if best.is_none_or(|(most, _)| strength > most) {
            best = Some((strength, index + 1));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values around 0 with a standard deviation of 1, by the sum of twelve uniform ones.
    fn noise(n: usize, random: &mut Random) -> Vec<f64> {
        (0..n)
            .map(|_| (0..12).map(|_| random.uniform()).sum::<f64>() - 6.0)
            .collect()
    }

    #[test]
    fn a_step_is_found_where_it_is() {
        let mut values = noise(20, &mut Random::new(1));
        values.iter_mut().skip(12).for_each(|value| *value += 6.0);
        let found = changepoints(&values, 7);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found.first().map(|change| change.at), Some(12));
        assert!(found.iter().all(|change| change.p < 0.01), "{found:?}");
    }

    #[test]
    fn two_steps_are_both_found_in_order() {
        let mut values = noise(45, &mut Random::new(2));
        values.iter_mut().skip(15).for_each(|value| *value += 5.0);
        values.iter_mut().skip(30).for_each(|value| *value -= 9.0);
        let found: Vec<usize> = changepoints(&values, 7).iter().map(|c| c.at).collect();
        assert_eq!(found, [15, 30]);
    }

    #[test]
    fn a_series_without_a_change_has_one_in_at_most_one_of_twenty() {
        let mut random = Random::new(3);
        let all = 400;
        for n in [8, 20] {
            let falsely = (0..all)
                .filter(|index| !changepoints(&noise(n, &mut random), *index).is_empty())
                .count();
            // 5 % and three standard errors.
            assert!(falsely <= 33, "{falsely} of {all} at {n} values");
        }
    }

    #[test]
    fn one_value_that_is_off_is_no_change() {
        let mut values = noise(20, &mut Random::new(4));
        if let Some(last) = values.last_mut() {
            *last = 50.0;
        }
        assert_eq!(changepoints(&values, 7), []);
    }

    #[test]
    fn equal_few_and_infinite_values_have_no_change() {
        assert_eq!(changepoints(&[1.0; 30], 1), []);
        assert_eq!(changepoints(&[1.0, 1.0, 9.0], 1), []);
        assert_eq!(changepoints(&[], 1), []);
        assert_eq!(changepoints(&[1.0, f64::NAN, 1.0, 1.0, 1.0], 1), []);
        assert_eq!(changepoints(&[0.0; LONGEST_SERIES + 1], 1), []);
    }

    #[test]
    fn the_strength_of_a_split_is_that_of_the_definition() {
        let values = [1.0, 2.0, 7.0, 9.0];
        // Between: 6 + 8 + 5 + 7 = 26; within: 1 and 2. 2·26/4 − 1 − 2 = 10, times 2·2/4.
        assert_eq!(split(&values), Some((10.0, 2)));
    }
}
