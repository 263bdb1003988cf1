// SPDX-License-Identifier: Apache-2.0
//! Outliers, and an estimate of the centre that is robust against them.

use super::describe::{median, quantile};

/// Fewest values for quartiles.
const FEWEST_VALUES: usize = 5;

/// Positions of the values beyond Tukey's fences, 1.5 interquartile ranges outside of the quartiles (Tukey 1977); empty
/// for fewer than five values.
pub fn outliers(values: &[f64]) -> Vec<usize> {
    if values.len() < FEWEST_VALUES {
        return Vec::new();
    }
    let quartiles = quantile(values, 0.25).zip(quantile(values, 0.75));
    let Some((low, high)) = quartiles else {
        return Vec::new();
    };
    let fence = 1.5 * (high - low);
    let is_outside = |value: f64| value < low - fence || value > high + fence;
    let all = values.iter().enumerate();
    all.filter(|(_, value)| is_outside(**value))
        .map(|(position, _)| position)
        .collect()
}

/// The median of the means of all pairs of values, including each value with itself (Hodges and Lehmann 1963); `None`
/// without values. The time grows with the square of their number.
pub fn hodges_lehmann(values: &[f64]) -> Option<f64> {
    let pairs = values.iter().enumerate().flat_map(|(at, one)| {
        let others = values.iter().skip(at);
        others.map(move |other| one.midpoint(*other))
    });
    median(&pairs.collect::<Vec<f64>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlier_is_named_and_moves_the_centre_little() {
        let values = [1.0, 1.1, 0.9, 1.05, 0.95, 3.0];
        assert_eq!(outliers(&values), [5]);
        let centre = hodges_lehmann(&values).unwrap();
        assert!((1.0..1.1).contains(&centre), "{centre}");
        assert_eq!(outliers(&[1.0, 1.0, 1.0, 9.0]), Vec::<usize>::new());
        assert_eq!(outliers(&[2.0; 8]), Vec::<usize>::new());
        // The median of 1, 1.5, 2, 2.5, 3 and 4.
        assert_eq!(hodges_lehmann(&[1.0, 2.0, 4.0]), Some(2.25));
        assert_eq!(hodges_lehmann(&[]), None);
    }
}
