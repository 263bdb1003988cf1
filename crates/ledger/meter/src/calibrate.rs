// SPDX-License-Identifier: Apache-2.0
//! Calibration: fits a power model to a meter by stepping the load from idle to full and reading both.

use super::model::{Model, POINTS, Utilization, busy_share};
use super::power_model::Fit;
use super::probe::{Bench, energy_since, take};
use super::{Meter, host_domains};
use std::path::Path;
use std::time::Duration;
use vtax_core::{Source, Watts};
use vtax_observe::ObserveError;

/// The durations of a calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalibrationSettings {
    /// The wait after each step of the load before any reading: clocks, fans and the meter's own averaging take time to
    /// settle.
    pub settle: Duration,
    /// Length of one observation. Longer than the meter's own period.
    pub observe: Duration,
    /// Observations at each of the eleven levels.
    pub observations: u32,
}

impl Default for CalibrationSettings {
    /// Eleven levels of 3 s and 10 × 2 s: about four minutes.
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(3),
            observe: Duration::from_secs(2),
            observations: 10,
        }
    }
}

/// The progress of a calibration, for a progress line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// The level that was just observed, in tenths of full load, 0 to 10.
    pub level: u32,
    /// The busy share that was measured.
    pub utilization: f64,
    /// The mean power that the meter showed.
    pub power: Watts,
}

/// Utilization and power over one span.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// The busy share of all processors' time, 0 to 1.
    pub utilization: f64,
    /// The meter's mean power.
    pub power: Watts,
}

/// A fitted model and its observations.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// The model.
    pub model: Model,
    /// All observations, in order.
    pub observations: Vec<Observation>,
}

impl Calibration {
    /// The model as a TOML file with an introduction.
    pub fn to_toml(&self) -> String {
        let m = &self.model;
        let mut text = String::from(
            "# Power against CPU utilization, fitted to a real meter by `vtax meter calibrate`.\n\
             # watts: at active idle, 10 %, 20 % … 100 % of all processors' time.\n\n",
        );
        // The model holds only strings, numbers and one table, which TOML always expresses.
        text.push_str(&toml::to_string(m).unwrap_or_default());
        text
    }
}

/// The reasons for which a calibration fails.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The meter could not be read.
    #[error("the meter failed during calibration: {0}")]
    Meter(#[from] ObserveError),
    /// The meter is itself a model.
    #[error(
        "`{0}` is itself a model: calibrate with a meter that measures (`vtax doctor` lists them)"
    )]
    NotMeasured(String),
    /// The meter covers no host.
    #[error(
        "`{0}` does not cover the host, only parts such as graphics boards: choose another meter"
    )]
    NotHost(String),
    /// The meter showed no energy at all.
    #[error(
        "`{0}` never moved, at idle or under full load, so it measures nothing here: choose another meter"
    )]
    Still(String),
    /// The meter did not follow the load.
    #[error(
        "`{meter}` shows {idle:.1} W at idle and {full:.1} W at full load: it does not follow this machine's load, so check what it is connected to"
    )]
    Unmoved {
        /// The meter.
        meter: String,
        /// At active idle, in watts.
        idle: f64,
        /// At full load, in watts.
        full: f64,
    },
    /// The processors did not follow the load.
    #[error(
        "utilization went only from {from:.0} % to {to:.0} %: other work or a CPU quota is in the way; calibrate on an otherwise idle machine without limits"
    )]
    Busy {
        /// Lowest utilization seen, in percent.
        from: f64,
        /// Highest utilization seen, in percent.
        to: f64,
    },
}

/// The smallest ratio of power at full load to power at idle. Any real machine shows tens of percent.
const LEAST_RISE: f64 = 1.02;

/// Steps the load of `bench` from active idle to full in 10 % steps, reads `meter` and the processors' time (from
/// `proc`), and fits a model. `name` describes the machine. The load is off when the function returns.
/// off again when it returns.
///
/// # Errors
/// When the meter fails, measures nothing, or does not follow the load.
pub fn calibrate(
    meter: &mut dyn Meter,
    bench: &mut Bench<'_>,
    proc: &Path,
    name: &str,
    settings: CalibrationSettings,
    progress: &mut dyn FnMut(Progress),
) -> Result<Calibration, CalibrateError> {
    if meter.source() != Source::Measured {
        return Err(CalibrateError::NotMeasured(meter.name().to_owned()));
    }
    let covers = host_domains(meter.domains());
    if covers.0.is_empty() {
        return Err(CalibrateError::NotHost(meter.name().to_owned()));
    }
    let covers = covers.1.to_owned();
    let cpus = Utilization::new(proc).read(bench.clock.now())?.0.processors;
    let observed = observe(meter, bench, proc, settings, progress);
    bench.load.set(0.0);
    let observations = observed?;
    check(meter.name(), &observations)?;
    let watts = fit(&observations);
    let mut model = Model {
        name: name.to_owned(),
        date: None,
        cpus,
        watts,
        calibration: None,
    };
    let errors: Vec<f64> = observations
        .iter()
        .map(|seen| model.power(seen.utilization).0 - seen.power.0)
        .collect();
    let square: f64 = errors.iter().map(|error| error * error).sum();
    model.calibration = Some(Fit {
        meter: meter.name().to_owned(),
        covers,
        observations: observations.len(),
        residual_rms_watts: (square / count(errors.len())).sqrt(),
        residual_worst_watts: errors
            .iter()
            .fold(0.0, |worst, error| worst.max(error.abs())),
    });
    Ok(Calibration {
        model,
        observations,
    })
}

fn observe(
    meter: &mut dyn Meter,
    bench: &mut Bench<'_>,
    proc: &Path,
    settings: CalibrationSettings,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Observation>, CalibrateError> {
    let mut observations = Vec::new();
    for level in 0..=10u32 {
        bench.load.set(f64::from(level) / 10.0);
        (bench.wait)(settings.settle);
        let mut processors = Utilization::new(proc);
        let read = |meter: &mut dyn Meter, bench: &Bench<'_>, processors: &mut Utilization| {
            let energy = take(meter, bench)?;
            let (mark, _) = processors.read(energy.at)?;
            Ok::<_, ObserveError>((energy, mark))
        };
        let mut before = read(meter, bench, &mut processors)?;
        for _ in 0..settings.observations.max(1) {
            (bench.wait)(settings.observe);
            let after = read(meter, bench, &mut processors)?;
            let span = after.0.at.saturating_since(before.0.at);
            // Without one of the host's domains, an observation would cover only a part of the host.
            let power = energy_since(meter, &before.0, &after.0).map(|used| used / span);
            if let Some(power) = power.filter(|power| power.0.is_finite())
                && let Some(utilization) = busy_share(&before.1, &after.1)
            {
                observations.push(Observation { utilization, power });
                progress(Progress {
                    level,
                    utilization,
                    power,
                });
            }
            before = after;
        }
    }
    Ok(observations)
}

fn check(meter: &str, observations: &[Observation]) -> Result<(), CalibrateError> {
    if observations.iter().all(|seen| seen.power.0 <= 0.0) {
        return Err(CalibrateError::Still(meter.to_owned()));
    }
    let lowest = observations
        .iter()
        .map(|seen| seen.utilization)
        .fold(1.0, f64::min);
    let highest = observations
        .iter()
        .map(|seen| seen.utilization)
        .fold(0.0, f64::max);
    if highest - lowest < 0.5 {
        return Err(CalibrateError::Busy {
            from: lowest * 100.0,
            to: highest * 100.0,
        });
    }
    let mean = |near: f64| {
        let powers: Vec<f64> = observations
            .iter()
            .filter(|seen| (seen.utilization - near).abs() <= 0.1)
            .map(|seen| seen.power.0)
            .collect();
        powers.iter().sum::<f64>() / count(powers.len())
    };
    let (idle, full) = (mean(lowest), mean(highest));
    if full < idle * LEAST_RISE {
        return Err(CalibrateError::Unmoved {
            meter: meter.to_owned(),
            idle,
            full,
        });
    }
    Ok(())
}

/// Returns the watts of the eleven points of the piecewise linear curve with the least squared distance to all
/// observations, made non-decreasing. Levels that were not reached (other work keeps a machine from 0 %) follow from
/// their neighbours, by a weak preference for straight lines.
fn fit(observations: &[Observation]) -> [f64; POINTS] {
    // Weak enough to change no observed level by more than a thousandth.
    let straightness = 1e-3 * count(observations.len());
    let mut rows = [[0.0; POINTS + 1]; POINTS];
    for seen in observations {
        let place = seen.utilization.clamp(0.0, 1.0) * 10.0;
        let share = |level: usize| (1.0 - (place - count(level)).abs()).max(0.0);
        for (level, row) in rows.iter_mut().enumerate() {
            for (other, cell) in row.iter_mut().enumerate() {
                let factor = if other == POINTS {
                    seen.power.0
                } else {
                    share(other)
                };
                *cell += share(level) * factor;
            }
        }
    }
    for middle in 1..POINTS - 1 {
        let bend = [(middle - 1, 1.0), (middle, -2.0), (middle + 1, 1.0)];
        for (level, weight) in bend {
            for (other, factor) in bend {
                if let Some(cell) = rows.get_mut(level).and_then(|row| row.get_mut(other)) {
                    *cell += straightness * weight * factor;
                }
            }
        }
    }
    let mut watts = solve(rows).map(|watts| watts.max(0.0));
    rise(&mut watts);
    watts
}

/// Gaussian elimination with pivoting; the system is positive definite once two levels were seen.
#[allow(
    clippy::indexing_slicing,
    reason = "all indices are below the constant dimensions"
)]
fn solve(mut rows: [[f64; POINTS + 1]; POINTS]) -> [f64; POINTS] {
    for column in 0..POINTS {
        let best = (column..POINTS)
            .max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()))
            .unwrap_or(column);
        rows.swap(column, best);
        let pivot = rows[column];
        for row in rows.iter_mut().skip(column + 1) {
            let factor = row[column] / pivot[column];
            for (cell, above) in row.iter_mut().zip(pivot).skip(column) {
                *cell -= factor * above;
            }
        }
    }
    let mut solution = [0.0; POINTS];
    for row in (0..POINTS).rev() {
        let known: f64 = (row + 1..POINTS)
            .map(|other| rows[row][other] * solution[other])
            .sum();
        solution[row] = (rows[row][POINTS] - known) / rows[row][row];
    }
    solution
}

/// Replaces every falling run by its mean (pool adjacent violators): more work never draws less.
fn rise(watts: &mut [f64; POINTS]) {
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for value in *watts {
        let mut pool = (value, 1usize);
        while let Some((mean, size)) = pools.pop() {
            if mean <= pool.0 {
                pools.push((mean, size));
                break;
            }
            let both = size + pool.1;
            pool = (
                (mean * count(size) + pool.0 * count(pool.1)) / count(both),
                both,
            );
        }
        pools.push(pool);
    }
    let flat = pools
        .into_iter()
        .flat_map(|(mean, size)| std::iter::repeat_n(mean, size));
    for (slot, value) in watts.iter_mut().zip(flat) {
        *slot = value;
    }
}

fn count(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Domain, Load, ModelMeter, Part, Probe, keep_moving, probe_under_load};
    use std::cell::RefCell;
    use std::fs;
    use std::sync::{Arc, Mutex};
    use tempfile::TempDir;
    use vtax_core::{Joules, Nanoseconds};
    use vtax_observe::clock::Clock;
    use vtax_observe::{Instrument, Readings};

    /// A machine of four processors whose power follows its load by `curve`.
    struct Machine {
        now: u64,
        share: f64,
        joules: f64,
        busy: f64,
        idle: f64,
        curve: fn(f64) -> f64,
        noise: f64,
    }

    #[derive(Clone)]
    struct Simulation(Arc<Mutex<Machine>>);

    impl Simulation {
        fn new(curve: fn(f64) -> f64) -> Self {
            let machine = Machine {
                now: 0,
                share: 0.0,
                joules: 0.0,
                busy: 0.0,
                idle: 0.0,
                curve,
                noise: 0.0,
            };
            Self(Arc::new(Mutex::new(machine)))
        }

        fn pass(&self, time: Duration, proc: &Path) {
            let mut machine = self.0.lock().unwrap();
            let seconds = time.as_secs_f64();
            machine.now += u64::try_from(time.as_nanos()).unwrap();
            machine.joules += ((machine.curve)(machine.share) + machine.noise) * seconds;
            machine.noise = -machine.noise;
            machine.busy += machine.share * seconds * 400.0;
            machine.idle += (1.0 - machine.share) * seconds * 400.0;
            let total = format!(
                "cpu {} 0 0 {} 0\n",
                machine.busy.round(),
                machine.idle.round()
            );
            fs::write(
                proc.join("stat"),
                total + "cpu0 0\ncpu1 0\ncpu2 0\ncpu3 0\n",
            )
            .unwrap();
        }
    }

    impl Load for Simulation {
        fn set(&mut self, share: f64) {
            self.0.lock().unwrap().share = share;
        }
    }

    impl Clock for Simulation {
        fn now(&self) -> Nanoseconds {
            Nanoseconds(self.0.lock().unwrap().now)
        }
        fn wall(&self) -> Nanoseconds {
            self.now()
        }
    }

    struct SimulatedMeter {
        machine: Simulation,
        series: super::super::series::MeterSeries,
        domains: [Domain; 1],
    }

    impl SimulatedMeter {
        fn new(machine: &Simulation) -> Self {
            Self {
                machine: machine.clone(),
                series: super::super::series::MeterSeries::joules("wall", "host", Source::Measured),
                domains: [Domain {
                    name: "host".into(),
                    part: Part::Machine,
                }],
            }
        }
    }

    impl Instrument for SimulatedMeter {
        fn name(&self) -> &str {
            "wall"
        }
        fn read(&mut self, _: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
            self.series
                .record_joules(into, Joules(self.machine.0.lock().unwrap().joules));
            Ok(())
        }
    }

    impl Meter for SimulatedMeter {
        fn domains(&self) -> &[Domain] {
            &self.domains
        }
    }

    fn with_bench<R>(machine: &Simulation, act: impl FnOnce(&mut Bench<'_>, &Path) -> R) -> R {
        let proc = TempDir::new().unwrap();
        machine.pass(Duration::ZERO, proc.path());
        let mut load = machine.clone();
        let mut wait = |time| machine.pass(time, proc.path());
        act(
            &mut Bench {
                load: &mut load,
                clock: machine,
                wait: &mut wait,
            },
            proc.path(),
        )
    }

    fn calibration(machine: &Simulation) -> Result<Calibration, CalibrateError> {
        let mut meter = SimulatedMeter::new(machine);
        with_bench(machine, |bench, proc| {
            calibrate(
                &mut meter,
                bench,
                proc,
                "a test",
                CalibrationSettings::default(),
                &mut |_| (),
            )
        })
    }

    fn server(share: f64) -> f64 {
        60.0 + 140.0 * share.sqrt()
    }

    #[test]
    fn a_machine_is_recovered_from_its_meter() {
        let machine = Simulation::new(server);
        let result = calibration(&machine).unwrap();
        for (level, watts) in result.model.watts.iter().enumerate() {
            let truth = server(level as f64 / 10.0);
            assert!(
                (watts - truth).abs() < truth * 0.01,
                "level {level}: {watts} for {truth}"
            );
        }
        assert_eq!(result.model.cpus, 4);
        assert_eq!(result.observations.len(), 110);
        assert_eq!(
            machine.0.lock().unwrap().share,
            0.0,
            "the load is off again"
        );
    }

    #[test]
    fn residuals_tell_how_noisy_the_meter_was() {
        let machine = Simulation::new(server);
        machine.0.lock().unwrap().noise = 3.0;
        let fit = calibration(&machine).unwrap().model.calibration.unwrap();
        assert!((fit.residual_rms_watts - 3.0).abs() < 0.2, "{fit:?}");
        assert!(fit.residual_worst_watts < 4.0, "{fit:?}");
    }

    #[test]
    fn the_toml_that_is_written_is_read_back_by_the_model() {
        let result = calibration(&Simulation::new(server)).unwrap();
        let text = result.to_toml();
        assert_eq!(Model::parse(&text).unwrap(), result.model);
        let root = TempDir::new().unwrap();
        fs::write(root.path().join("stat"), "cpu 1 0 0 1 0\ncpu0 0\n").unwrap();
        fs::write(root.path().join("model.toml"), &text).unwrap();
        let meter = ModelMeter::open(root.path(), Some(&root.path().join("model.toml"))).unwrap();
        assert!(meter.caveats()[0].contains("fitted to wall"));
    }

    #[test]
    fn a_meter_that_never_moves_cannot_calibrate() {
        let error = calibration(&Simulation::new(|_| 0.0)).unwrap_err();
        assert!(matches!(error, CalibrateError::Still(_)), "{error}");
    }

    #[test]
    fn a_meter_that_does_not_follow_the_load_cannot_calibrate() {
        let error = calibration(&Simulation::new(|_| 50.0))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("50.0 W at idle and 50.0 W at full load"),
            "{error}"
        );
    }

    #[test]
    fn a_curve_that_dips_is_made_to_rise() {
        let mut watts = [1.0, 2.0, 3.0, 2.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 9.0];
        rise(&mut watts);
        assert_eq!(
            watts,
            [1.0, 2.0, 2.5, 2.5, 5.0, 6.0, 7.0, 8.0, 9.0, 9.5, 9.5]
        );
    }

    #[test]
    fn levels_that_other_work_hides_follow_from_their_neighbours() {
        let seen = |utilization: f64| Observation {
            utilization,
            power: Watts(50.0 + 100.0 * utilization),
        };
        let watts = fit(&(15..=100)
            .map(|percent| seen(f64::from(percent) / 100.0))
            .collect::<Vec<_>>());
        assert!((watts[0] - 50.0).abs() < 0.5, "{watts:?}");
        assert!((watts[10] - 150.0).abs() < 0.5, "{watts:?}");
    }

    #[test]
    fn calibrating_with_a_model_is_refused() {
        let machine = Simulation::new(server);
        let error = with_bench(&machine, |bench, proc| {
            let mut meter = ModelMeter::open(proc, None).unwrap();
            let settings = CalibrationSettings::default();
            calibrate(&mut meter, bench, proc, "x", settings, &mut |_| ()).unwrap_err()
        });
        assert!(matches!(error, CalibrateError::NotMeasured(_)), "{error}");
    }

    /// The power PMU inside a VM: present, readable, and constantly 0.
    #[test]
    fn a_counter_that_is_present_but_0_forever_is_absent() {
        for (curve, moves) in [((|_| 0.0) as fn(f64) -> f64, false), (server, true)] {
            let machine = Simulation::new(curve);
            let mut meter = SimulatedMeter::new(&machine);
            let probe =
                with_bench(&machine, |bench, _| probe_under_load(&mut meter, bench)).unwrap();
            match (probe, moves) {
                (Probe::Moves(watts), true) => assert!((watts.0 - 200.0).abs() < 1e-6),
                (Probe::Still, false) => (),
                other => panic!("{other:?}"),
            }
            let kept = with_bench(&machine, |bench, _| {
                keep_moving(
                    vec![Ok(Box::new(SimulatedMeter::new(&machine)) as Box<dyn Meter>)],
                    bench,
                )
            });
            assert_eq!(kept[0].is_ok(), moves);
            if let Err(absent) = &kept[0] {
                assert!(
                    absent
                        .to_string()
                        .starts_with("wall is absent: its counters did not move")
                );
            }
        }
    }

    #[test]
    fn progress_is_reported_for_every_observation() {
        let machine = Simulation::new(server);
        let reported = RefCell::new(0);
        let mut meter = SimulatedMeter::new(&machine);
        with_bench(&machine, |bench, proc| {
            let settings = CalibrationSettings {
                observations: 2,
                ..CalibrationSettings::default()
            };
            calibrate(&mut meter, bench, proc, "x", settings, &mut |_| {
                *reported.borrow_mut() += 1
            })
        })
        .unwrap();
        assert_eq!(*reported.borrow(), 22);
    }
}
