// SPDX-License-Identifier: Apache-2.0
//! Energy of the guests: the idle energy of a host is divided by a stated rule, the rest in proportion to processor
//! time.

use super::ledger::{Ledger, Usage};
use std::collections::VecDeque;
use std::str::FromStr;
use vtax_core::{Joules, Nanoseconds, Source, Watts};

/// The rule that assigns the host's idle energy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IdleRule {
    /// The host.
    #[default]
    Host,
    /// All guests in equal parts.
    Equal,
    /// Guests in proportion to their assigned processors; a guest without a known number counts as one processor.
    Reservation,
}

impl IdleRule {
    /// Its name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Equal => "equal",
            Self::Reservation => "reservation",
        }
    }
}

/// A text that names no rule.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no rule for idle energy: give host, equal or reservation")]
pub struct IdleRuleError(String);

impl FromStr for IdleRule {
    type Err = IdleRuleError;
    fn from_str(text: &str) -> Result<Self, IdleRuleError> {
        [Self::Host, Self::Equal, Self::Reservation]
            .into_iter()
            .find(|rule| rule.name() == text)
            .ok_or_else(|| IdleRuleError(text.to_owned()))
    }
}

/// The energy of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EnergyUse {
    /// All of it.
    pub total: Joules,
    /// The energy that the host would have used while idle.
    pub idle: Joules,
    /// Measured or modelled.
    pub source: Source,
}

/// The method that determines the idle part.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum IdleEnergy {
    /// From the power of intervals in which the host was idle. Unknown before the first such interval.
    #[default]
    Learned,
    /// A given idle power.
    Fixed(Watts),
}

/// The largest busy share of an interval in which a host counts as idle. The operating system alone rarely uses less.
pub const IDLE_SHARE: f64 = 0.05;

/// The number of idle intervals that count. Only the last ones do, so that the result follows changes of temperature
/// and firmware.
const WINDOW: usize = 240;

/// The quantile of their powers that is the host's idle power: a low one, because an idle host always does some work,
/// but not the lowest, which is an outlier.
const QUANTILE: f64 = 0.1;

/// Learns a host's idle power from idle intervals, so that idle energy does not vanish as load rises.
#[derive(Debug, Clone, Default)]
pub struct IdlePower {
    how: IdleEnergy,
    /// Watts of the last idle intervals.
    seen: VecDeque<f64>,
}

impl IdlePower {
    /// Creates an estimate by the method `how`.
    pub fn new(how: IdleEnergy) -> Self {
        Self {
            how,
            seen: VecDeque::new(),
        }
    }

    /// Whether the idle power is known.
    pub fn is_known(&self) -> bool {
        self.watts().is_some()
    }

    /// The idle part of an interval that used `total` and in which processors were busy for the share `busy` of the
    /// time, 0 to 1. `None` while it is not known.
    pub fn part(&mut self, total: Joules, span: Nanoseconds, busy: Option<f64>) -> Option<Joules> {
        let seconds = span.as_secs_f64();
        let now = total.0 / seconds;
        // Meters that update once a second read 0 in between; no host idles at 0 W.
        if now.is_finite() && now > 0.0 && busy.is_some_and(|busy| busy <= IDLE_SHARE) {
            if self.seen.len() == WINDOW {
                self.seen.pop_front();
            }
            self.seen.push_back(now);
        }
        let watts = self.watts()?;
        Some(Joules((watts * seconds).clamp(0.0, total.0.max(0.0))))
    }

    fn watts(&self) -> Option<f64> {
        if let IdleEnergy::Fixed(watts) = self.how {
            return Some(watts.0);
        }
        let mut seen: Vec<f64> = self.seen.iter().copied().collect();
        seen.sort_by(f64::total_cmp);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a place in a short list"
        )]
        let place = (QUANTILE * seen.len() as f64) as usize;
        seen.get(place).copied()
    }
}

impl Usage {
    /// The share of the processors' time in which they were busy, including guests outside of this kernel; `None` where
    /// it is not known. For a Dom0 that sees only some of the processors, the result is too high.
    pub(super) fn busy(&self) -> Option<f64> {
        let capacity = self.span.0 as f64 * f64::from(self.processors);
        let outside: u64 = self.guests.iter().map(|guest| guest.outside.0).sum();
        (capacity > 0.0).then(|| (self.total.0 as f64 + outside as f64) / capacity)
    }
}

impl Ledger {
    /// Charges the interval's energy. `processors` returns the number of processors assigned to each guest.
    pub fn charge_energy(
        &mut self,
        energy: EnergyUse,
        rule: IdleRule,
        processors: &dyn Fn(u32) -> Option<u32>,
    ) {
        let idle = energy.idle.0.clamp(0.0, energy.total.0.max(0.0));
        let active = energy.total.0.max(0.0) - idle;
        let sum = self.sum().0 as f64;
        // Without any processor time, the energy is unattributed.
        let share = |time: Nanoseconds| {
            if sum > 0.0 {
                active * time.0 as f64 / sum
            } else {
                0.0
            }
        };
        self.host_energy = Joules(share(self.host) + share(self.host_softirq));
        self.unattributed_energy = Joules(if sum > 0.0 {
            share(self.unattributed)
        } else {
            active
        });
        let weight = |number: u32| match rule {
            IdleRule::Host => 0.0,
            IdleRule::Equal => 1.0,
            IdleRule::Reservation => f64::from(processors(number).unwrap_or(1).max(1)),
        };
        let weights: f64 = self.rows.iter().map(|row| weight(row.number)).sum();
        if weights <= 0.0 {
            self.host_energy += Joules(idle);
        }
        self.departed.energy = Joules(share(self.departed.stages.total()));
        for row in &mut self.rows {
            let mut joules = share(row.stages.total());
            if weights > 0.0 {
                joules += idle * weight(row.number) / weights;
            }
            row.energy = Joules(joules);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{Row, Stage, Stages};
    use super::*;
    use proptest::prelude::*;

    fn ledger(times: &[u64], host: u64, unattributed: u64) -> Ledger {
        let rows = times.iter().zip(1..).map(|(time, number)| {
            let mut stages = Stages::default();
            stages.add(Stage::Vcpu, Nanoseconds(*time));
            Row {
                number,
                stages,
                ..Row::default()
            }
        });
        Ledger {
            rows: rows.collect(),
            host: Nanoseconds(host),
            unattributed: Nanoseconds(unattributed),
            ..Ledger::default()
        }
    }

    fn joules(total: f64, idle: f64) -> EnergyUse {
        EnergyUse {
            total: Joules(total),
            idle: Joules(idle),
            source: Source::Measured,
        }
    }

    #[test]
    fn active_energy_goes_by_use_and_idle_energy_by_the_rule() {
        let mut ledger = ledger(&[100, 300], 500, 100);
        let cpus = |number| (number == 2).then_some(3);
        let energies =
            |ledger: &Ledger| -> Vec<f64> { ledger.rows.iter().map(|row| row.energy.0).collect() };
        ledger.charge_energy(joules(140.0, 40.0), IdleRule::Host, &cpus);
        assert_eq!(energies(&ledger), [10.0, 30.0]);
        assert_eq!(
            (ledger.host_energy.0, ledger.unattributed_energy.0),
            (90.0, 10.0)
        );
        ledger.charge_energy(joules(140.0, 40.0), IdleRule::Equal, &cpus);
        assert_eq!(energies(&ledger), [30.0, 50.0]);
        ledger.charge_energy(joules(140.0, 40.0), IdleRule::Reservation, &cpus);
        assert_eq!(energies(&ledger), [20.0, 60.0]);
    }

    const SECOND: Nanoseconds = Nanoseconds(1_000_000_000);

    /// Kepler #2465: idle energy vanished as load rose.
    #[test]
    fn idle_power_stays_when_load_rises() {
        let mut idle = IdlePower::default();
        let mut part = |joules, busy| idle.part(Joules(joules), SECOND, Some(busy));
        assert_eq!(part(50.0, 0.01), Some(Joules(50.0)));
        assert_eq!(part(200.0, 0.9), Some(Joules(50.0)));
        assert_eq!(
            part(0.0, 0.9),
            Some(Joules(0.0)),
            "never more than was used"
        );
        assert_eq!(part(0.0, 0.01), Some(Joules(0.0)));
        assert_eq!(part(400.0, 1.0), Some(Joules(50.0)));
        let mut fixed = IdlePower::new(IdleEnergy::Fixed(Watts(30.0)));
        assert!(fixed.is_known());
        assert_eq!(
            fixed.part(Joules(200.0), Nanoseconds(2_000_000_000), Some(1.0)),
            Some(Joules(60.0))
        );
    }

    #[test]
    fn a_host_is_as_busy_as_its_processors_and_the_guests_outside_of_its_kernel() {
        use crate::ledger::GuestUse;
        let usage = Usage {
            span: SECOND,
            processors: 4,
            total: SECOND,
            guests: vec![GuestUse {
                outside: SECOND,
                ..GuestUse::default()
            }],
            ..Usage::default()
        };
        assert_eq!(usage.busy(), Some(0.5));
        assert_eq!(Usage::default().busy(), None);
    }

    #[test]
    fn idle_power_is_not_known_on_a_host_that_was_never_idle() {
        let mut idle = IdlePower::default();
        for (joules, busy) in [
            (111.8, Some(1.0)),
            (90.0, Some(0.5)),
            (80.0, Some(0.06)),
            (70.0, None),
        ] {
            assert_eq!(idle.part(Joules(joules), SECOND, busy), None, "{busy:?}");
        }
        assert!(!idle.is_known());
        assert_eq!(
            idle.part(Joules(60.0), SECOND, Some(0.05)),
            Some(Joules(60.0))
        );
        assert!(idle.is_known());
    }

    #[test]
    fn idle_power_is_a_low_one_of_the_last_idle_intervals_and_not_the_lowest_ever() {
        let mut idle = IdlePower::default();
        let mut part = |watts: f64, busy| idle.part(Joules(watts), SECOND, Some(busy)).unwrap().0;
        // A single low reading of a meter must not determine the idle power.
        part(5.0, 0.01);
        for number in 0..WINDOW / 2 {
            part(50.0 + (number % 10) as f64, 0.01);
        }
        let learned = part(500.0, 1.0);
        assert!((50.0..53.0).contains(&learned), "{learned}");
        // A warmer host draws more, and after `WINDOW` intervals that is its idle power.
        for _ in 0..WINDOW {
            part(70.0, 0.01);
        }
        assert_eq!(part(500.0, 1.0), 70.0);
    }

    /// Scaphandre #428 treated watts as joules: over any interval, 100 W are 100 J a second.
    #[test]
    fn energy_is_power_times_the_interval_whatever_its_length() {
        for seconds in [1u64, 5, 15] {
            let mut ledger = ledger(&[1_000_000_000 * seconds], 0, 0);
            let total = 100.0 * seconds as f64;
            ledger.charge_energy(joules(total, 0.0), IdleRule::Host, &|_| None);
            assert_eq!(ledger.rows[0].energy.0, total);
        }
    }

    proptest! {
        #[test]
        fn energy_closes_and_is_never_negative(
            times in prop::collection::vec(0u64..1_000_000_000_000, 0..8),
            host in 0u64..1_000_000_000_000, unattributed in 0u64..1_000_000_000,
            total in 0.0f64..1e6, idle in -10.0f64..1e6, rule in 0usize..3,
        ) {
            let mut ledger = ledger(&times, host, unattributed);
            let rule = [IdleRule::Host, IdleRule::Equal, IdleRule::Reservation][rule];
            ledger.charge_energy(joules(total, idle), rule, &|number| (number % 2 == 0).then_some(number));
            prop_assert!((ledger.energy().0 - total).abs() <= total * 1e-9 + 1e-9);
            prop_assert!(ledger.rows.iter().all(|row| row.energy.0 >= 0.0));
        }
    }
}
