// SPDX-License-Identifier: Apache-2.0
//! Churn at the top of a climb: guests start and end as in a cloud, and the running ones are probed.
//!
//! There are as many places as the climb had guests. Arrivals are a Poisson process and lifetimes are exponential
//! (Erlang's loss system): an arrival is turned away while all places are taken. The trial's seed determines all draws.

use super::{Ascent, GroupUsage};
use crate::plan::Churn;
use crate::record::{Cloud, Latency};
use crate::supervisor::Request;
use std::time::{Duration, Instant};
use vtax_host::HostError;

/// Time between two probes.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// A change of the population.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Arrival,
    Departure,
}

/// Draws the changes of the population and their times.
struct Draw {
    random: fastrand::Rng,
    /// Per second.
    arrivals: f64,
    departures_of_one: f64,
}

impl Draw {
    fn new(churn: &Churn, places: u32, seed: u64) -> Self {
        let life = churn.life.as_secs_f64();
        Self {
            random: fastrand::Rng::with_seed(seed),
            arrivals: churn.load_percent / 100.0 * f64::from(places) / life,
            departures_of_one: 1.0 / life,
        }
    }

    /// The next change of a population of this size, and the seconds until it.
    fn next(&mut self, population: u32) -> (f64, Change) {
        let departures = f64::from(population) * self.departures_of_one;
        let all = self.arrivals + departures;
        // 1 - x with x below 1 is above 0, so its logarithm exists.
        let wait = -(1.0 - self.random.f64()).ln() / all;
        let change = if self.random.f64() * all < self.arrivals {
            Change::Arrival
        } else {
            Change::Departure
        };
        (wait, change)
    }
}

impl Ascent<'_, '_> {
    /// Starts and ends guests in `places` places. Returns the number of guests left.
    pub(super) fn churn(
        &mut self,
        churn: &Churn,
        places: u32,
        seed: u64,
    ) -> Result<(Option<Cloud>, u32), HostError> {
        if churn.watched.is_zero() || places == 0 {
            return Ok((None, places));
        }
        let (watched, clock) = (churn.watched.as_secs_f64(), Instant::now());
        let cpu = GroupUsage::read(&self.group);
        let mut draw = Draw::new(churn, places, seed);
        let mut cloud = Cloud {
            places,
            ..Cloud::default()
        };
        let (mut boot, mut answers, mut failed) = (Vec::new(), Vec::new(), 0);
        let (mut population, mut guest_seconds) = (places, 0.0);
        let mut at = 0.0;
        loop {
            let (wait, change) = draw.next(population);
            let until = (at + wait).min(watched);
            guest_seconds += f64::from(population) * (until - at);
            at = until;
            while clock.elapsed().as_secs_f64() < at {
                self.bench.signals.check()?;
                if population > 0 {
                    let answer = self.supervisor.ask(&Request::Probe(1))?;
                    answers.extend(answer.probe);
                    failed += answer.failed;
                }
                let left = Duration::from_secs_f64(at).saturating_sub(clock.elapsed());
                std::thread::sleep(left.min(ASK_EVERY));
            }
            if at >= watched {
                break;
            }
            cloud.late = cloud.late.max(clock.elapsed().as_secs_f64() - at);
            let answer = match change {
                Change::Arrival if population == places => {
                    cloud.arrivals += 1;
                    cloud.turned_away += 1;
                    continue;
                }
                Change::Arrival => {
                    cloud.arrivals += 1;
                    self.supervisor.ask(&Request::Grow(population + 1))?
                }
                Change::Departure => {
                    cloud.departures += 1;
                    self.supervisor.ask(&Request::Shrink(population - 1))?
                }
            };
            population = answer.population;
            self.guard_cpu += answer.guard_cpu;
            boot.extend(answer.boot);
            cloud.refused = answer
                .refused
                .or_else(|| answer.exceeded.map(|binding| binding.to_string()));
            if cloud.refused.is_some() {
                break;
            }
        }
        let seconds = clock.elapsed().as_secs_f64();
        cloud.seconds = seconds;
        cloud.mean_population = if at > 0.0 { guest_seconds / at } else { 0.0 };
        cloud.boot = Latency::of_any(boot);
        cloud.probe = Latency::from_micros(answers, failed);
        cloud.core_percent = GroupUsage::read(&self.group).core_percent_since(&cpu, seconds);
        Ok((Some(cloud), population))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHURN: Churn = Churn {
        watched: Duration::from_secs(10),
        life: Duration::from_secs(10),
        load_percent: 80.0,
    };

    /// The mean number of guests in the 100 places over 10,000 s, and the share of arrivals turned away.
    fn simulated(seed: u64) -> (f64, f64) {
        let mut draw = Draw::new(&CHURN, 100, seed);
        let (mut population, mut guest_seconds, mut seconds) = (100, 0.0, 0.0);
        let (mut arrivals, mut turned_away) = (0.0, 0.0);
        while seconds < 10_000.0 {
            let (wait, change) = draw.next(population);
            guest_seconds += f64::from(population) * wait;
            seconds += wait;
            match change {
                Change::Departure => population -= 1,
                Change::Arrival => {
                    arrivals += 1.0;
                    if population == 100 {
                        turned_away += 1.0;
                    } else {
                        population += 1;
                    }
                }
            }
        }
        (guest_seconds / seconds, turned_away / arrivals)
    }

    #[test]
    fn the_cloud_is_erlangs_loss_system() {
        // Erlang's formula B for a load of 80 in 100 places: 0.4 % are turned away, by recursion.
        let lost = (1..=100).fold(1.0, |b: f64, n| 80.0 * b / (f64::from(n) + 80.0 * b));
        let (population, turned_away) = simulated(1);
        assert!(
            (population - 80.0 * (1.0 - lost)).abs() < 1.0,
            "{population}"
        );
        assert!(
            (turned_away - lost).abs() < 0.003,
            "{turned_away} of {lost}"
        );
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        assert_eq!(simulated(7), simulated(7));
        assert_ne!(simulated(7), simulated(8));
    }

    #[test]
    fn an_empty_cloud_waits_for_an_arrival() {
        let mut draw = Draw::new(&CHURN, 100, 1);
        let (wait, change) = draw.next(0);
        assert!(wait.is_finite() && change == Change::Arrival);
    }
}
