//! Energy charged with the time: what a host uses doing nothing is divided by a stated rule, what it
//! uses on top by the processors' time.

use super::ledger::Ledger;
use std::str::FromStr;
use vtax_units::{Joules, Nanoseconds, Source, Watts};

/// Who pays for the energy that the host would use doing nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IdleRule {
    /// The host.
    #[default]
    Host,
    /// All guests alike.
    Equal,
    /// Guests by the processors that they were given; one whose number is not known counts as one.
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

impl FromStr for IdleRule {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Host, Self::Equal, Self::Reservation]
            .into_iter()
            .find(|rule| rule.name() == text)
            .ok_or_else(|| {
                format!("`{text}` is no rule for idle energy: give host, equal or reservation")
            })
    }
}

/// The energy of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EnergyUse {
    /// All of it.
    pub total: Joules,
    /// What the host would have used doing nothing.
    pub idle: Joules,
    /// Measured or modelled.
    pub source: Source,
}

/// How the idle part is found.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum IdleEnergy {
    /// The lowest power seen so far: right once the host has been idle for an interval.
    #[default]
    Lowest,
    /// Given.
    Fixed(Watts),
}

/// Learns a host's idle power. It only ever falls, so idle energy does not vanish as load rises.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdlePower {
    how: IdleEnergy,
    lowest: Option<f64>,
}

impl IdlePower {
    /// Found as `how` says.
    pub fn new(how: IdleEnergy) -> Self {
        Self { how, lowest: None }
    }

    /// The idle part of an interval in which `total` was used.
    pub fn part(&mut self, total: Joules, span: Nanoseconds) -> Joules {
        let seconds = span.as_secs_f64();
        let watts = match self.how {
            IdleEnergy::Fixed(watts) => watts.0,
            IdleEnergy::Lowest => {
                let now = total.0 / seconds;
                // Meters that update once a second read 0 in between: no host idles at 0 W.
                if now.is_finite() && now > 0.0 {
                    self.lowest = Some(self.lowest.map_or(now, |lowest| lowest.min(now)));
                }
                self.lowest.unwrap_or(0.0)
            }
        };
        Joules((watts * seconds).clamp(0.0, total.0.max(0.0)))
    }
}

impl Ledger {
    /// Charges the interval's energy. `processors` says how many each guest was given.
    pub fn charge_energy(
        &mut self,
        energy: EnergyUse,
        rule: IdleRule,
        processors: &dyn Fn(u32) -> Option<u32>,
    ) {
        let idle = energy.idle.0.clamp(0.0, energy.total.0.max(0.0));
        let active = energy.total.0.max(0.0) - idle;
        let sum = self.sum().0 as f64;
        // No time at all was used: nobody's.
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

    /// Kepler #2465: idle energy vanished as load rose.
    #[test]
    fn idle_power_stays_when_load_rises() {
        let mut idle = IdlePower::default();
        let second = Nanoseconds(1_000_000_000);
        assert_eq!(idle.part(Joules(50.0), second), Joules(50.0));
        assert_eq!(idle.part(Joules(200.0), second), Joules(50.0));
        assert_eq!(
            idle.part(Joules(0.0), second),
            Joules(0.0),
            "never more than was used"
        );
        assert_eq!(idle.part(Joules(400.0), second), Joules(50.0));
        let mut fixed = IdlePower::new(IdleEnergy::Fixed(Watts(30.0)));
        assert_eq!(
            fixed.part(Joules(200.0), Nanoseconds(2_000_000_000)),
            Joules(60.0)
        );
    }

    /// Scaphandre #428 took watts for joules: over any interval, 100 W are 100 J a second.
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
