//! Number of repetitions needed to show an effect, from the observed scatter.

use super::distribution::student_quantile;

/// Confidence level of the two-sided test with this power.
const CONFIDENCE: f64 = 0.95;
/// Confidence of the two-sided quantile that leaves 20 % above it: the power is 80 %.
const POWER: f64 = 0.6;
/// Largest useful number of repetitions.
const MOST: usize = 100_000;

/// Number of pairs of trials that show a ratio of 1 + `effect` with a chance of 80 %, where the logarithms of pairs'
/// ratios have the standard deviation `sd`; `None` above 100,000, or without an effect.
///
/// The approximation n = ((t(0.975) + t(0.8)) · sd / δ)² with Student's quantiles (Guenther 1981).
pub fn pairs_to_show(effect: f64, sd: f64) -> Option<usize> {
    let scatter = sd / effect.ln_1p();
    if !scatter.is_finite() || effect <= 0.0 {
        return None;
    }
    let is_enough = |n: usize| {
        let degrees = u32::try_from(n - 1).unwrap_or(u32::MAX);
        let both = student_quantile(CONFIDENCE, degrees) + student_quantile(POWER, degrees);
        (both * scatter).powi(2) <= n as f64
    };
    // Doubling first: quantiles with many degrees of freedom are slow.
    let (mut few, mut many) = (super::tax::FEWEST_PAIRS, super::tax::FEWEST_PAIRS);
    while !is_enough(many) {
        if many == MOST {
            return None;
        }
        (few, many) = (many + 1, (2 * many).min(MOST));
    }
    while few < many {
        let middle = few + (many - few) / 2;
        match is_enough(middle) {
            true => many = middle,
            false => few = middle + 1,
        }
    }
    Some(few)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_scatter_or_a_smaller_effect_needs_more_pairs() {
        // For six pairs (2.571 + 0.920)² · 0.550 = 6.7 are needed, for seven (2.447 + 0.906)² · 0.550 = 6.2.
        assert_eq!(pairs_to_show(0.1, 0.0707), Some(7));
        assert_eq!(pairs_to_show(0.1, 0.0), Some(4));
        let needed = |effect, sd| pairs_to_show(effect, sd).unwrap();
        assert!(needed(0.02, 0.0707) > 20 * needed(0.1, 0.0707) / 2);
        assert!(needed(0.1, 0.2) > needed(0.1, 0.1));
        assert_eq!(pairs_to_show(0.0, 0.1), None);
        assert_eq!(pairs_to_show(0.02, f64::NAN), None);
        assert_eq!(pairs_to_show(1e-9, 1.0), None);
    }
}
