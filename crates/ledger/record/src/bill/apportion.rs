// SPDX-License-Identifier: Apache-2.0
//! Division of integers into parts that sum to the whole, by the largest-remainder method.

/// Divides `total` in proportion to `weights`. The parts sum to `total`: each is its share rounded down, and what is left
/// goes by one to the largest remainders, the first of equal ones first. Without any weight `total` goes to the part
/// `spare`. Empty for no weights.
///
/// Weights whose product with `total` exceeds 128 bits lose their lowest bits.
pub fn apportion(total: u128, weights: &[u128], spare: usize) -> Vec<u128> {
    let bits = |value: u128| u128::BITS - value.leading_zeros();
    let largest = weights.iter().copied().max().unwrap_or(0);
    let count = bits(weights.len() as u128);
    let drop = (bits(total) + bits(largest) + count).saturating_sub(u128::BITS - 1);
    let weight = |weight: &u128| weight.checked_shr(drop).unwrap_or(0);
    let sum: u128 = weights.iter().map(weight).sum();
    if sum == 0 {
        let mut parts = vec![0; weights.len()];
        if let Some(part) = parts.get_mut(spare) {
            *part = total;
        }
        return parts;
    }
    let mut remainders = Vec::with_capacity(weights.len());
    let mut parts = Vec::with_capacity(weights.len());
    for (at, own) in weights.iter().enumerate() {
        let product = total * weight(own);
        parts.push(product / sum);
        remainders.push((product % sum, at));
    }
    let given: u128 = parts.iter().sum();
    // Less than the number of parts, since each lost less than one.
    let left = usize::try_from(total - given).unwrap_or(0);
    remainders.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    for (_, at) in remainders.into_iter().take(left) {
        if let Some(part) = parts.get_mut(at) {
            *part += 1;
        }
    }
    parts
}

/// `value / divisor`, rounded to the nearest integer.
pub fn rounded(value: u128, divisor: u128) -> u128 {
    let divisor = divisor.max(1);
    let up = u128::from(value % divisor >= divisor.div_ceil(2));
    value / divisor + up
}

/// Values with `digits` decimals in fewer ones, so that they still sum to their rounded sum.
pub fn shown(values: &[u128], digits: u32, fewer: u32) -> Vec<u128> {
    let drop = 10_u128.saturating_pow(digits.saturating_sub(fewer));
    let sum = values
        .iter()
        .fold(0, |sum: u128, value| sum.saturating_add(*value));
    apportion(rounded(sum, drop), values, 0)
}

/// An integer with a decimal point before its last `digits` digits.
pub fn decimal(value: u128, digits: u32) -> String {
    let scale = 10_u128.saturating_pow(digits);
    if digits == 0 {
        return value.to_string();
    }
    let (whole, part) = (value / scale, value % scale);
    format!("{whole}.{part:0>width$}", width = digits as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_left_goes_to_the_largest_remainders() {
        assert_eq!(apportion(100, &[1, 1, 1], 0), [34, 33, 33]);
        assert_eq!(apportion(10, &[15, 25, 60], 0), [2, 2, 6]);
        assert_eq!(apportion(7, &[0, 0], 1), [0, 7]);
        assert_eq!(apportion(7, &[], 0), Vec::<u128>::new());
        assert_eq!(shown(&[1_500, 1_500], 3, 0), [2, 1]);
    }

    #[test]
    fn a_decimal_has_all_its_digits() {
        assert_eq!(decimal(5, 2), "0.05");
        assert_eq!(decimal(12_345, 2), "123.45");
        assert_eq!(decimal(7, 0), "7");
        assert_eq!((rounded(5, 10), rounded(4, 10), rounded(3, 0)), (1, 0, 3));
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_whole_and_are_within_one_of_their_share(
            total in 0u128..1 << 60, weights in prop::collection::vec(0u128..1 << 60, 1..40),
        ) {
            let parts = apportion(total, &weights, 0);
            prop_assert_eq!(parts.iter().sum::<u128>(), total);
            let sum: u128 = weights.iter().sum();
            if sum > 0 {
                for (part, weight) in parts.iter().zip(&weights) {
                    prop_assert!((part * sum).abs_diff(total * weight) < sum);
                }
            }
        }

        #[test]
        fn parts_sum_to_the_whole_for_any_numbers(
            total: u128, weights in prop::collection::vec(any::<u128>(), 1..40),
        ) {
            let parts = apportion(total, &weights, 0);
            let sum = parts.iter().try_fold(0_u128, |sum, part| sum.checked_add(*part));
            prop_assert_eq!(sum, Some(total));
        }
    }
}
