// SPDX-License-Identifier: Apache-2.0
//! Conversion of a device's counter or power readings to joules that never decrease: the arithmetic of every meter.

use std::path::Path;
use vtax_core::{Joules, Nanoseconds, Watts};
use vtax_observe::ObserveError;
use vtax_observe::counters::{Change, Counter, Rule};

/// Converts a counter that wraps, restarts and sometimes jumps to joules that never decrease.
///
/// A backward step is a wrap where the distance through the end of the range is an amount of energy that the device
/// could have used in the elapsed time, and a restart otherwise. The energy used around a restart is unknown and not
/// counted.
///
/// Two readings cannot show a counter that wrapped more than once between them (a 262 kJ range lasts 22 minutes at 200
/// W, so it must be read more often than that), or a restart whose value could also result from a wrap.
///
/// ```
/// use vtax_observe::counters::Change;
/// use vtax_meter::EnergyCounter;
/// use vtax_core::{Joules, Nanoseconds, Watts};
///
/// const SECOND: u64 = 1_000_000_000;
/// // Microjoules up to 262 kJ, as RAPL counts a package; at most 1 kW.
/// let mut package = EnergyCounter::new(Joules(1e-6), Some(262_143_328_850), Watts(1000.0));
/// assert_eq!(package.update(Nanoseconds(0), 262_143_000_000), Change::First);
/// assert_eq!(package.update(Nanoseconds(SECOND), 99_671_150), Change::Wrapped(100_000_000));
/// assert_eq!(package.update(Nanoseconds(2 * SECOND), 149_671_150), Change::Advanced(50_000_000));
/// assert!(matches!(package.update(Nanoseconds(3 * SECOND), 0), Change::Restarted { .. }));
/// assert_eq!(package.total(), Joules(150.0));
/// ```
#[derive(Debug, Clone)]
pub struct EnergyCounter {
    count: Joules,
    most: Watts,
    counter: Counter,
    last: Nanoseconds,
    used: u64,
}

/// Devices update their counters in steps (RAPL every millisecond, NVML every 100 ms, some hwmon chips every second),
/// so two readings in quick succession may differ by a step of this much time.
const UPDATE_STEP: Nanoseconds = Nanoseconds(1_000_000_000);

impl EnergyCounter {
    /// Creates a counter of which each count is worth `count`, which wraps after `range` (its largest value; `None` if
    /// it never wraps in practice), of a device that never draws more than `most`.
    pub fn new(count: Joules, range: Option<u64>, most: Watts) -> Self {
        Self {
            count,
            most,
            counter: Counter::new(Rule::energy(range)),
            last: Nanoseconds(0),
            used: 0,
        }
    }

    /// Takes the reading `raw` at the time `now`.
    pub fn update(&mut self, now: Nanoseconds, raw: u64) -> Change {
        let span = Nanoseconds(
            now.saturating_since(self.last)
                .0
                .saturating_add(UPDATE_STEP.0),
        );
        self.last = now;
        // A bound above the counter's range is no bound.
        let most = (self.most.0 * span.as_secs_f64() / self.count.0) as u64;
        let change = self.counter.advance_within(raw, most);
        self.used = self.used.saturating_add(change.gain());
        change
    }

    /// The energy used since the first reading.
    pub fn total(&self) -> Joules {
        self.joules(self.used)
    }

    fn joules(&self, counts: u64) -> Joules {
        Joules(counts as f64 * self.count.0)
    }

    /// The error for a change of the counter at `path` that left energy uncounted, if it did.
    pub fn complaint(&self, path: &Path, change: Change) -> Option<ObserveError> {
        let (what, numbers) = change.finding()?;
        let numbers = match change {
            Change::Leapt { by, most } => {
                let (by, most) = (self.joules(by).0, self.joules(most).0);
                format!("by {by:.0} J, at most {most:.0} J")
            }
            _ => numbers,
        };
        Some(ObserveError::Counter {
            name: "the energy counter".to_owned(),
            path: path.to_owned(),
            what,
            numbers,
        })
    }
}

/// Integrates power over the elapsed time. Each reading is valid until the next one, but for at most `stands`: a meter
/// that returns no readings adds no energy, rather than its last value forever.
#[derive(Debug, Clone)]
pub struct PowerIntegral {
    stands: Nanoseconds,
    most: Watts,
    last: Option<(Nanoseconds, Watts)>,
    closed: Joules,
    reported: Joules,
}

/// A reading that is not a valid power: negative, not finite, or more than the device can draw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImplausiblePower(pub Watts);

impl PowerIntegral {
    /// Creates an integral over readings of a device that never draws more than `most`, each valid for at most
    /// `stands`.
    pub fn new(stands: Nanoseconds, most: Watts) -> Self {
        Self {
            stands,
            most,
            last: None,
            closed: Joules(0.0),
            reported: Joules(0.0),
        }
    }

    /// Takes a reading at the time `at`.
    ///
    /// # Errors
    /// When the device could not draw that power; the previous reading remains valid.
    pub fn reading(&mut self, at: Nanoseconds, power: Watts) -> Result<(), ImplausiblePower> {
        if !(0.0..=self.most.0).contains(&power.0) {
            return Err(ImplausiblePower(power));
        }
        self.closed += self.open(at);
        self.last = Some((at, power));
        Ok(())
    }

    /// The energy used from the first reading until `now`; never less than an earlier result.
    pub fn total_at(&mut self, now: Nanoseconds) -> Joules {
        let total = self.closed + self.open(now);
        if total.0 > self.reported.0 {
            self.reported = total;
        }
        self.reported
    }

    /// The reading that is valid at `now`; `None` before the first one and once it is too old.
    pub fn standing(&self, now: Nanoseconds) -> Option<Watts> {
        let (at, power) = self.last?;
        (now.saturating_since(at) <= self.stands).then_some(power)
    }

    fn open(&self, now: Nanoseconds) -> Joules {
        self.last.map_or(Joules(0.0), |(at, power)| {
            let span = now.saturating_since(at).min(self.stands);
            Joules(power.0 * span.as_secs_f64())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;
    const RANGE: u64 = 262_143_328_850;

    fn at(seconds: f64) -> Nanoseconds {
        Nanoseconds((seconds * 1e9) as u64)
    }

    fn package() -> EnergyCounter {
        EnergyCounter::new(Joules(1e-6), Some(RANGE), Watts(1000.0))
    }

    /// Kepler exported RAPL's wrapping counter as a Prometheus counter.
    #[test]
    fn a_wrapping_counter_never_shows_as_a_falling_one() {
        let mut counter = package();
        let mut before = Joules(0.0);
        for second in 0..4000u64 {
            let raw = (second * 200_000_000 + RANGE - 5_000_000_000) % (RANGE + 1);
            assert!(!matches!(
                counter.update(Nanoseconds(second * SECOND), raw),
                Change::Restarted { .. }
            ));
            assert!(counter.total().0 >= before.0, "fell at second {second}");
            before = counter.total();
        }
        assert!((before.0 - 3999.0 * 200.0).abs() < 1e-3, "{before:?}");
    }

    /// Scaphandre dropped the sample in which the counter wrapped.
    #[test]
    fn the_energy_of_the_interval_that_wraps_is_counted() {
        let mut counter = package();
        counter.update(at(0.0), RANGE - 60_000_000);
        let change = counter.update(at(1.0), 40_000_000);
        assert_eq!(change, Change::Wrapped(100_000_000));
        assert!((counter.total().0 - 100.0).abs() < 1e-9);
    }

    /// A driver that restarts looks like a wrap unless the watts are checked.
    #[test]
    fn a_backward_step_too_large_for_a_wrap_is_a_restart_and_counts_nothing() {
        let mut counter = package();
        counter.update(at(0.0), 1_000_000_000);
        let change = counter.update(at(1.0), 5_000_000);
        assert!(matches!(change, Change::Restarted { .. }));
        assert_eq!(counter.total(), Joules(0.0));
        assert_eq!(
            counter.update(at(2.0), 105_000_000),
            Change::Advanced(100_000_000)
        );
    }

    #[test]
    fn a_counter_without_a_range_never_wraps() {
        let mut counter = EnergyCounter::new(Joules(1e-3), None, Watts(1000.0));
        counter.update(at(0.0), 100);
        assert!(matches!(
            counter.update(at(1.0), 50),
            Change::Restarted { .. }
        ));
    }

    #[test]
    fn a_reading_beyond_the_announced_range_does_not_confuse() {
        let mut counter = package();
        counter.update(at(0.0), u64::MAX);
        assert!(matches!(
            counter.update(at(1.0), 7),
            Change::Restarted { .. }
        ));
    }

    /// Kepler #1851: a 300 kW spike when a VM booted.
    #[test]
    fn a_300_kilowatt_spike_is_refused() {
        let mut counter = package();
        counter.update(at(0.0), 0);
        assert!(matches!(
            counter.update(at(1.0), 300_000_000_000 % RANGE),
            Change::Leapt { .. }
        ));
        assert_eq!(counter.total(), Joules(0.0));
        let mut power = PowerIntegral::new(at(5.0), Watts(10_000.0));
        assert_eq!(
            power.reading(at(0.0), Watts(300_000.0)),
            Err(ImplausiblePower(Watts(300_000.0)))
        );
        assert_eq!(power.total_at(at(1.0)), Joules(0.0));
    }

    /// A mark may fall just after a device's own update, so that a whole step appears in almost no time.
    #[test]
    fn two_readings_a_microsecond_apart_may_see_a_whole_update_step() {
        let mut gpu = EnergyCounter::new(Joules(1e-3), None, Watts(1000.0));
        gpu.update(Nanoseconds(0), 0);
        assert_eq!(
            gpu.update(Nanoseconds(1000), 70_000),
            Change::Advanced(70_000)
        );
    }

    /// Scaphandre #428: power was added as if it were energy, every five seconds.
    #[test]
    fn power_is_multiplied_by_the_time_that_really_passed() {
        let mut power = PowerIntegral::new(at(60.0), Watts(1000.0));
        for tick in 0..=4 {
            power
                .reading(at(f64::from(tick) * 5.0), Watts(100.0))
                .unwrap();
        }
        assert_eq!(power.total_at(at(20.0)), Joules(2000.0));
        let mut uneven = PowerIntegral::new(at(60.0), Watts(1000.0));
        for (when, watts) in [(0.0, 50.0), (0.25, 150.0), (3.25, 50.0)] {
            uneven.reading(at(when), Watts(watts)).unwrap();
        }
        assert_eq!(uneven.total_at(at(4.25)), Joules(12.5 + 450.0 + 50.0));
    }

    /// Alumet exported the last difference as a gauge, so joules between two scrapes were lost.
    #[test]
    fn joules_do_not_depend_on_how_often_they_are_asked_for() {
        let mut often = PowerIntegral::new(at(10.0), Watts(1000.0));
        let mut seldom = often.clone();
        for tick in 0..100u32 {
            let (when, watts) = (f64::from(tick) * 0.25, Watts(f64::from(tick % 7) * 10.0));
            often.reading(at(when), watts).unwrap();
            seldom.reading(at(when), watts).unwrap();
            often.total_at(at(when + 0.1));
        }
        let (often, seldom) = (often.total_at(at(25.0)), seldom.total_at(at(25.0)));
        assert!((often.0 - seldom.0).abs() < 1e-9, "{often:?} {seldom:?}");
    }

    #[test]
    fn a_silent_meter_stops_using_energy() {
        let mut power = PowerIntegral::new(at(2.0), Watts(1000.0));
        power.reading(at(0.0), Watts(100.0)).unwrap();
        assert_eq!(power.standing(at(1.0)), Some(Watts(100.0)));
        assert_eq!(power.standing(at(3.0)), None);
        assert_eq!(power.total_at(at(3600.0)), Joules(200.0));
    }

    proptest! {
        #[test]
        fn no_sequence_of_readings_makes_the_total_fall_or_grow_implausibly(
            readings in prop::collection::vec((0u64..10 * SECOND, any::<u64>()), 1..50),
            range in prop::option::of(any::<u64>()),
        ) {
            let mut counter = EnergyCounter::new(Joules(1e-6), range, Watts(500.0));
            let (mut now, mut before) = (0u64, 0.0);
            let mut spans = 0.0;
            for (wait, raw) in readings {
                now += wait;
                spans += wait as f64 / 1e9 + 1.0;
                counter.update(Nanoseconds(now), raw);
                prop_assert!(counter.total().0 >= before);
                prop_assert!(counter.total().0 <= 500.0 * spans * (1.0 + 1e-9));
                before = counter.total().0;
            }
        }

        #[test]
        fn an_integral_never_falls_whatever_is_read_and_asked(
            events in prop::collection::vec((any::<bool>(), 0u64..3 * SECOND, -10f64..2000.0), 1..80),
        ) {
            let mut power = PowerIntegral::new(Nanoseconds(SECOND), Watts(1000.0));
            let (mut now, mut before) = (0u64, 0.0);
            for (ask, wait, watts) in events {
                now += wait;
                if ask {
                    // The reading is for a slightly earlier time: the caller reads its clock first.
                    let total = power.total_at(Nanoseconds(now.saturating_sub(1000))).0;
                    prop_assert!(total >= before);
                    before = total;
                } else {
                    let _ = power.reading(Nanoseconds(now), Watts(watts));
                }
            }
        }
    }
}
