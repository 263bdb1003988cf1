// SPDX-License-Identifier: Apache-2.0
//! The arrival schedule of requests, independent of the server.

use std::fmt;

/// The spacing of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrival {
    /// Independent arrivals, as from many users: exponential gaps.
    Poisson,
    /// Equal gaps.
    Constant,
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Poisson => "poisson",
            Self::Constant => "constant",
        })
    }
}

/// The times at which requests are due, in nanoseconds since the start.
#[derive(Debug)]
pub struct Arrivals {
    arrival: Arrival,
    random: fastrand::Rng,
    gap: f64,
    // Kept as a float: rounding each gap to whole nanoseconds would change the rate.
    next: f64,
    end: f64,
}

impl Arrivals {
    /// A schedule of `rate` requests a second up to `end`, in nanoseconds.
    pub fn new(arrival: Arrival, rate: f64, seed: u64, end: u64) -> Self {
        let mut arrivals = Self {
            arrival,
            random: fastrand::Rng::with_seed(seed),
            gap: 1e9 / rate,
            next: 0.0,
            end: end as f64,
        };
        if arrival == Arrival::Poisson {
            arrivals.next += arrivals.draw();
        }
        arrivals
    }

    fn draw(&mut self) -> f64 {
        match self.arrival {
            Arrival::Constant => self.gap,
            // 1 - u is never 0, so the logarithm is finite.
            Arrival::Poisson => -(1.0 - self.random.f64()).ln() * self.gap,
        }
    }

    /// The next time, without advancing.
    // Positive and below `end`, a u64.
    pub fn peek(&self) -> Option<u64> {
        (self.next < self.end).then_some(self.next as u64)
    }
}

impl Iterator for Arrivals {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let due = self.peek()?;
        self.next += self.draw();
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_arrivals_are_equally_spaced() {
        let due: Vec<u64> = Arrivals::new(Arrival::Constant, 1000.0, 1, 5_000_000).collect();
        assert_eq!(due, [0, 1_000_000, 2_000_000, 3_000_000, 4_000_000]);
    }

    #[test]
    fn poisson_arrivals_keep_the_rate_and_vary_as_poisson_does() {
        let due: Vec<u64> = Arrivals::new(Arrival::Poisson, 10_000.0, 7, 10_000_000_000).collect();
        // 100 000 expected; five standard deviations are 1 581.
        assert!((98_419..=101_581).contains(&due.len()), "{}", due.len());
        assert!(due.windows(2).all(|pair| pair[0] <= pair[1]));
        // Exponential gaps: the share longer than the mean is 1/e.
        let long = due
            .windows(2)
            .filter(|pair| pair[1] - pair[0] > 100_000)
            .count() as f64
            / due.len() as f64;
        assert!((long - (-1.0_f64).exp()).abs() < 0.01, "{long}");
    }

    #[test]
    fn a_seed_keeps_its_arrivals_for_ever() {
        let due: Vec<u64> = Arrivals::new(Arrival::Poisson, 1_000.0, 7, 1_000_000_000)
            .take(4)
            .collect();
        assert_eq!(due, [1_484_488, 1_736_142, 3_003_020, 3_659_116]);
    }

    #[test]
    fn a_seed_repeats_its_arrivals_and_another_seed_does_not() {
        let arrivals =
            |seed| Arrivals::new(Arrival::Poisson, 100.0, seed, 1_000_000_000).collect::<Vec<_>>();
        assert_eq!(arrivals(3), arrivals(3));
        assert_ne!(arrivals(3), arrivals(4));
    }
}
