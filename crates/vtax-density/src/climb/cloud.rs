//! A cloud at the top of a climb: guests come and go, as customers' do, and those that are there are asked.
//!
//! As many places as the climb had guests; arrivals and departures are Poisson processes, lifetimes exponential (Erlang's
//! loss system): who comes when all places are taken is turned away. Everything is drawn from the trial's seed.

use super::Ascent;
use crate::keeper::Request;
use crate::record::{Cloud, Latency};
use std::time::{Duration, Instant};
use vtax_host::HostError;

/// How long a cloud is watched, and how busy it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weather {
    /// Zero: there is none.
    pub watched: Duration,
    /// A guest's mean time of life.
    pub life: Duration,
    /// Guests that would be there with places for all, in percent of the places.
    pub load_percent: f64,
}

/// Between two requests.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happening {
    Arrival,
    Departure,
}

/// Draws what happens, and when.
struct Draw {
    random: fastrand::Rng,
    /// Each a second.
    arrivals: f64,
    departures_of_one: f64,
}

impl Draw {
    fn new(weather: &Weather, places: u32, seed: u64) -> Self {
        let life = weather.life.as_secs_f64();
        Self {
            random: fastrand::Rng::with_seed(seed),
            arrivals: weather.load_percent / 100.0 * f64::from(places) / life,
            departures_of_one: 1.0 / life,
        }
    }

    /// Seconds until the next happening among so many guests, and which.
    fn next(&mut self, population: u32) -> (f64, Happening) {
        let departures = f64::from(population) * self.departures_of_one;
        let all = self.arrivals + departures;
        // 1 less what is below 1 has a logarithm.
        let wait = -(1.0 - self.random.f64()).ln() / all;
        let happening = if self.random.f64() * all < self.arrivals {
            Happening::Arrival
        } else {
            Happening::Departure
        };
        (wait, happening)
    }
}

impl Ascent<'_, '_> {
    /// Lets guests come and go in the places of `places` guests. Returns how many are left.
    pub(super) fn cloud(
        &mut self,
        weather: &Weather,
        places: u32,
        seed: u64,
    ) -> Result<(Option<Cloud>, u32), HostError> {
        if weather.watched.is_zero() || places == 0 {
            return Ok((None, places));
        }
        let (watched, clock) = (weather.watched.as_secs_f64(), Instant::now());
        let cpu = self.group.read();
        let mut draw = Draw::new(weather, places, seed);
        let mut cloud = Cloud {
            places,
            ..Cloud::default()
        };
        let (mut boot, mut answers, mut failed) = (Vec::new(), Vec::new(), 0);
        let (mut population, mut guest_seconds) = (places, 0.0);
        let mut at = 0.0;
        loop {
            let (wait, happening) = draw.next(population);
            let until = (at + wait).min(watched);
            guest_seconds += f64::from(population) * (until - at);
            at = until;
            while clock.elapsed().as_secs_f64() < at {
                self.bench.signals.check()?;
                if population > 0 {
                    let answer = self.keeper.ask(&Request::Probe(1))?;
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
            let answer = match happening {
                Happening::Arrival if population == places => {
                    cloud.arrivals += 1;
                    cloud.turned_away += 1;
                    continue;
                }
                Happening::Arrival => {
                    cloud.arrivals += 1;
                    self.keeper.ask(&Request::Grow(population + 1))?
                }
                Happening::Departure => {
                    cloud.departures += 1;
                    self.keeper.ask(&Request::Shrink(population - 1))?
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
        cloud.boot = (!boot.is_empty()).then(|| Latency::of(boot, 0));
        cloud.probe = Latency::of(answers, failed);
        cloud.core_percent =
            (self.group.read().seconds - cpu.seconds).max(0.0) / seconds.max(1e-9) * 100.0;
        Ok((Some(cloud), population))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEATHER: Weather = Weather {
        watched: Duration::from_secs(10),
        life: Duration::from_secs(10),
        load_percent: 80.0,
    };

    /// The mean number of guests in the 100 places over 10,000 s, and the share of arrivals turned away.
    fn simulated(seed: u64) -> (f64, f64) {
        let mut draw = Draw::new(&WEATHER, 100, seed);
        let (mut population, mut guest_seconds, mut seconds) = (100, 0.0, 0.0);
        let (mut arrivals, mut turned_away) = (0.0, 0.0);
        while seconds < 10_000.0 {
            let (wait, happening) = draw.next(population);
            guest_seconds += f64::from(population) * wait;
            seconds += wait;
            match happening {
                Happening::Departure => population -= 1,
                Happening::Arrival => {
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
        let mut draw = Draw::new(&WEATHER, 100, 1);
        let (wait, happening) = draw.next(0);
        assert!(wait.is_finite() && happening == Happening::Arrival);
    }
}
