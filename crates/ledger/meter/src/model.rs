// SPDX-License-Identifier: Apache-2.0
//! Power from utilization, for hosts without a meter: a curve through active idle and ten load levels.

use super::power_model::{Fit, PowerModel};
use super::series::MeterSeries;
use super::sysfs::text;
use super::{Absent, Domain, Meter, Part};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use vtax_core::{Joules, Nanoseconds, Source, Watts};
use vtax_kernel::stat::HostStat;
use vtax_observe::counters::Findings;
use vtax_observe::counters::cpu_time::{CpuMark, CpuTime};
use vtax_observe::{Instrument, ObserveError, Readings};

pub(super) const NAME: &str = "model";

/// The text of the model that is used unless a calibrated one is given.
pub const DEFAULT_MODEL: &str = include_str!("model.toml");

/// The levels of a model: active idle and ten steps of 10 %, as SPECpower_ssj2008 measures them.
pub const POINTS: usize = 11;

/// A machine's power against the share of its processors' time that is busy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The machine, and how the curve was obtained.
    pub name: String,
    /// The day on which it was measured or fitted, such as 2026-03-01; unknown in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// Processors of that machine, as Linux counts them.
    pub cpus: u32,
    /// Watts at active idle, 10 %, 20 % … 100 %.
    pub watts: [f64; POINTS],
    /// How a calibration fitted it; absent from a published curve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Fit>,
}

/// A model that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Not TOML, or other keys.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// A machine without processors.
    #[error("`cpus` must be at least 1")]
    Cpus,
    /// A power out of range.
    #[error("`watts` holds {0}, which is no power of one machine")]
    Power(f64),
    /// A curve that falls after this step.
    #[error(
        "`watts` falls from {} % to {} % load; a machine that works more never draws less",
        .0 * 10, (.0 + 1) * 10
    )]
    Falls(usize),
    /// No power at full load.
    #[error("`watts` at full load must be above 0")]
    NoPower,
}

impl Model {
    /// Reads a model from TOML.
    ///
    /// # Errors
    /// A description of the first fault, in one sentence.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let model: Self = toml::from_str(text)?;
        if model.cpus == 0 {
            return Err(ModelError::Cpus);
        }
        if let Some(watts) = model
            .watts
            .iter()
            .find(|watts| !(0.0..=1e6).contains(*watts))
        {
            return Err(ModelError::Power(*watts));
        }
        let fall = model
            .watts
            .windows(2)
            .position(|pair| matches!(pair, [low, high] if low > high));
        if let Some(step) = fall {
            return Err(ModelError::Falls(step));
        }
        if model.watts.last().is_none_or(|full| *full <= 0.0) {
            return Err(ModelError::NoPower);
        }
        Ok(model)
    }

    /// The power at `utilization`, the busy share (0 to 1) of all processors' time.
    pub fn power(&self, utilization: f64) -> Watts {
        let place = utilization.clamp(0.0, 1.0) * 10.0;
        let mut steps = self.watts.windows(2).zip(0u8..);
        let on_step = steps.find_map(|(pair, step)| match pair {
            [low, high] if place <= f64::from(step) + 1.0 => {
                Some(low + (high - low) * (place - f64::from(step)))
            }
            _ => None,
        });
        // Only NaN is outside all steps; it counts as idle.
        Watts(on_step.unwrap_or(self.idle().0))
    }

    /// The power at active idle.
    pub fn idle(&self) -> Watts {
        Watts(self.watts.first().copied().unwrap_or(0.0))
    }
}

/// The utilization of all processors, from `/proc/stat`.
#[derive(Debug)]
pub(super) struct Utilization {
    path: PathBuf,
    time: CpuTime,
}

impl Utilization {
    /// Opens the file of the machine whose procfs is at `proc`.
    pub fn new(proc: &Path) -> Self {
        Self {
            path: proc.join("stat"),
            time: CpuTime::default(),
        }
    }

    /// Reads the file; also returns the changes since the last reading that left time uncounted.
    ///
    /// # Errors
    /// When it cannot be read or has another format.
    pub fn read(&mut self, now: Nanoseconds) -> Result<(CpuMark, Findings), ObserveError> {
        let stat = HostStat::parse(&vtax_kernel::read(&self.path)?);
        let Some(stat) = stat.filter(|stat| stat.processors > 0) else {
            return Err(ObserveError::format(
                &self.path,
                "expected a line `cpu` and one for each processor",
            ));
        };
        let mut findings = Findings::default();
        self.time
            .advance(now, &stat.times, stat.processors, &self.path, &mut findings);
        Ok((self.time.mark(), findings))
    }
}

/// The busy share of all processors' time between two marks, 0 to 1; `None` for an empty span and where the file did
/// not show it.
pub(super) fn busy_share(earlier: &CpuMark, later: &CpuMark) -> Option<f64> {
    let processors = later.processors.max(earlier.processors);
    let all = later.at.saturating_since(earlier.at).as_secs_f64() * f64::from(processors);
    let busy = later.busy_since(earlier)?.as_secs_f64();
    (all > 0.0).then(|| (busy / all).clamp(0.0, 1.0))
}

/// `/proc/stat` counts in ticks of 10 ms, so utilization is taken over at least this time: over a shorter span it is
/// mostly rounding, which the curve converts to a bias.
const WINDOW: Nanoseconds = Nanoseconds(1_000_000_000);

/// Joules from a [`Model`] and `/proc/stat`. Two domains: `host`, and within it `idle`, the energy that the machine
/// would have used in the same time while idle.
#[derive(Debug)]
pub struct ModelMeter {
    model: Model,
    file: Option<PathBuf>,
    scale: f64,
    utilization: Utilization,
    domains: [Domain; 2],
    caveats: Vec<String>,
    start: Option<Nanoseconds>,
    window: Option<CpuMark>,
    closed: Joules,
    recorded: Joules,
    host: MeterSeries,
    idle: MeterSeries,
    watts: MeterSeries,
}

impl ModelMeter {
    /// Opens the model in `file`, or [`DEFAULT_MODEL`].
    ///
    /// # Errors
    /// When the file cannot be read or is not a model, or `/proc/stat` is missing.
    pub fn open(proc: &Path, file: Option<&Path>) -> Result<Self, Absent> {
        let absent = |reason: String| Absent::because(NAME, reason);
        let content = match file {
            Some(path) => text(path).map_err(|error| {
                absent(format!("cannot read {}: {error}", path.display()))
                    .remedy("fit a model with `vtax meter calibrate`, or use the default one")
            })?,
            None => DEFAULT_MODEL.to_owned(),
        };
        let model = Model::parse(&content).map_err(|problem| {
            let file = file.map_or("the default model".to_owned(), |path| {
                path.display().to_string()
            });
            absent(format!("{file}: {problem}")).remedy("docs/howto/energy.md describes the format")
        })?;
        let mut utilization = Utilization::new(proc);
        let seen = utilization.read(Nanoseconds(0));
        let cpus = seen
            .map_err(|error| absent(error.to_string()))?
            .0
            .processors;
        let mut caveats = vec![match &model.calibration {
            Some(fit) => format!(
                "joules are modelled from CPU utilization by a curve fitted to {} (off by {:.1} W \
                 typically, {:.1} W at worst): work that is not CPU time does not show",
                fit.meter, fit.residual_rms_watts, fit.residual_worst_watts
            ),
            None => format!(
                "joules are modelled from CPU utilization by the published curve of another machine \
                 ({}): they rank treatments, they are not this machine's joules",
                model.name
            ),
        }];
        if cpus != model.cpus {
            caveats.push(format!(
                "the curve of {} processors was scaled to the {cpus} of this machine",
                model.cpus
            ));
        }
        let series = |domain| MeterSeries::joules(NAME, domain, Source::Modelled);
        Ok(Self {
            scale: f64::from(cpus) / f64::from(model.cpus),
            model,
            file: file.map(Path::to_owned),
            utilization: Utilization::new(proc),
            domains: [
                Domain::machine(),
                Domain {
                    name: "idle".to_owned(),
                    part: Part::Idle,
                },
            ],
            caveats,
            start: None,
            window: None,
            closed: Joules(0.0),
            recorded: Joules(0.0),
            host: series("host"),
            idle: series("idle"),
            watts: MeterSeries::watts(NAME, "host", Source::Modelled),
        })
    }
}

impl Instrument for ModelMeter {
    fn name(&self) -> &str {
        NAME
    }

    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let (mark, findings) = self.utilization.read(now)?;
        let start = *self.start.get_or_insert(now);
        let before = *self.window.get_or_insert(mark);
        let span = now.saturating_since(before.at);
        // The failure of a single column is reported by the instrument of the host's CPU time.
        let mut known = Ok(());
        match busy_share(&before, &mark) {
            Some(utilization) => {
                let power = Watts(self.model.power(utilization).0 * self.scale);
                let total = Joules(self.closed.0 + power.0 * span.as_secs_f64());
                if span >= WINDOW {
                    self.closed = total;
                    self.window = Some(mark);
                }
                // An open window is estimated again at each reading; the reported total must not fall.
                if total.0 > self.recorded.0 {
                    self.recorded = total;
                }
                self.watts.record_watts(into, power);
            }
            // The energy of this window is unknown, and the next window begins.
            None if span > Nanoseconds(0) => {
                self.closed = self.recorded;
                self.window = Some(mark);
                known = findings.end();
            }
            None => {}
        }
        self.host.record_joules(into, self.recorded);
        let whole = now.saturating_since(start).as_secs_f64();
        self.idle
            .record_joules(into, Joules(self.model.idle().0 * self.scale * whole));
        known
    }
}

impl Meter for ModelMeter {
    fn domains(&self) -> &[Domain] {
        &self.domains
    }

    fn source(&self) -> Source {
        Source::Modelled
    }

    fn model(&self) -> Option<PowerModel> {
        Some(PowerModel {
            name: self.model.name.clone(),
            date: self.model.date.clone(),
            file: self.file.clone(),
            fit: self.model.calibration.clone(),
        })
    }

    fn caveats(&self) -> &[String] {
        &self.caveats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_energy;
    use proptest::prelude::*;
    use std::fs;
    use tempfile::TempDir;
    use vtax_core::owner::Owner;
    use vtax_observe::Snapshot;

    /// `/proc/stat` of a machine with 24 processors after so many busy and idle ticks.
    fn stat(root: &TempDir, busy: u64, idle: u64) {
        let mut text = format!(
            "cpu {} 0 {} {idle} 0 0 0 0 7 0\n",
            busy / 2,
            busy - busy / 2
        );
        for cpu in 0..24 {
            text.push_str(&format!("cpu{cpu} 0 0 0 0 0 0 0 0 0 0\n"));
        }
        text.push_str("intr 0\n");
        fs::write(root.path().join("stat"), text).unwrap();
    }

    fn open(root: &TempDir) -> ModelMeter {
        ModelMeter::open(root.path(), None).unwrap()
    }

    fn read(meter: &mut ModelMeter, seconds: f64) -> Snapshot {
        let mut readings = Readings::default();
        let now = Nanoseconds((seconds * 1e9) as u64);
        meter.read(now, &mut readings).unwrap();
        Snapshot::from_readings(now, &readings)
    }

    fn value(snapshot: &Snapshot, metric: &str) -> f64 {
        snapshot.get(&Owner::Host, metric).unwrap().value
    }

    #[test]
    fn the_default_model_is_a_model_and_every_point_of_it_is_hit() {
        let model = Model::parse(DEFAULT_MODEL).unwrap();
        for (step, watts) in model.watts.iter().enumerate() {
            assert!((model.power(step as f64 / 10.0).0 - watts).abs() < 1e-9);
        }
        assert!((model.power(0.05).0 - 78.2).abs() < 1e-9);
        assert_eq!(model.power(7.0).0, 222.0);
        assert_eq!(model.power(-1.0).0, 58.4);
        assert_eq!(model.power(f64::NAN).0, 58.4);
    }

    #[test]
    fn modelled_joules_carry_the_flag_and_say_that_they_are_not_this_machines() {
        let root = TempDir::new().unwrap();
        stat(&root, 0, 0);
        let mut meter = open(&root);
        let energy = host_energy([&meter as &dyn Meter]).unwrap();
        assert_eq!(energy.source, Source::Modelled);
        assert!(energy.caveats[0].contains("another machine"));
        let model = energy.model.unwrap();
        assert!(model.name.contains("x3550"), "{model:?}");
        assert!(
            model
                .to_string()
                .ends_with("of 2011-04-06, a published curve of another machine")
        );
        assert_eq!(model.file, None);
        let mut readings = Readings::default();
        meter.read(Nanoseconds(0), &mut readings).unwrap();
        assert!(
            readings
                .series()
                .iter()
                .all(|series| series.source == Source::Modelled)
        );
    }

    #[test]
    fn joules_follow_the_curve_over_real_time() {
        let root = TempDir::new().unwrap();
        stat(&root, 0, 0);
        let mut meter = open(&root);
        read(&mut meter, 0.0);
        stat(&root, 12_000, 12_000);
        let snapshot = read(&mut meter, 10.0);
        assert!((value(&snapshot, "energy.model.host_joules") - 1400.0).abs() < 1e-9);
        assert!((value(&snapshot, "power.model.host_watts") - 140.0).abs() < 1e-9);
    }

    /// Kepler #2465: idle energy was the remainder after active energy, so it vanished as load rose.
    #[test]
    fn idle_energy_is_the_same_at_every_load_and_never_vanishes() {
        for busy in [0u64, 1200, 2400] {
            let root = TempDir::new().unwrap();
            stat(&root, 0, 0);
            let mut meter = open(&root);
            read(&mut meter, 0.0);
            stat(&root, busy, 2400 - busy);
            let snapshot = read(&mut meter, 1.0);
            let idle = value(&snapshot, "energy.model.idle_joules");
            assert!((idle - 58.4).abs() < 1e-9, "{busy} busy ticks: {idle}");
            assert!(value(&snapshot, "energy.model.host_joules") >= idle - 1e-9);
        }
    }

    /// At 50 Hz a span holds a tick or two, so every span looks all idle or all busy.
    #[test]
    fn fast_sampling_gives_the_joules_of_slow_sampling() {
        let root = TempDir::new().unwrap();
        stat(&root, 0, 0);
        let (mut fast, mut slow) = (open(&root), open(&root));
        read(&mut fast, 0.0);
        read(&mut slow, 0.0);
        let (mut busy, mut idle) = (0u64, 0u64);
        for tick in 1..=500u64 {
            // One fifth of the time busy, in bursts.
            if tick % 5 == 0 {
                busy += 48
            } else {
                idle += 48
            }
            stat(&root, busy, idle);
            read(&mut fast, tick as f64 * 0.02);
        }
        let metric = "energy.model.host_joules";
        let (fast, slow) = (
            value(&read(&mut fast, 10.0), metric),
            value(&read(&mut slow, 10.0), metric),
        );
        assert!((slow - 1090.0).abs() < 1e-6, "{slow}");
        assert!((fast - slow).abs() < slow * 0.01, "{fast} {slow}");
    }

    #[test]
    fn a_machine_with_other_processors_gets_its_share_of_the_curve_and_a_caveat() {
        let root = TempDir::new().unwrap();
        fs::write(
            root.path().join("stat"),
            "cpu 0 0 0 100 0\ncpu0 0 0 0 50 0\ncpu1 0 0 0 50 0\n",
        )
        .unwrap();
        let mut meter = open(&root);
        read(&mut meter, 0.0);
        fs::write(
            root.path().join("stat"),
            "cpu 0 0 0 300 0\ncpu0 0 0 0 150 0\ncpu1 0 0 0 150 0\n",
        )
        .unwrap();
        let joules = value(&read(&mut meter, 1.0), "energy.model.host_joules");
        assert!((joules - 58.4 / 12.0).abs() < 1e-9, "{joules}");
        assert!(meter.caveats()[1].contains("2 of this machine"));
    }

    #[test]
    fn broken_models_say_what_is_wrong() {
        let curve = |watts: &str| format!("name = \"x\"\ncpus = 2\nwatts = [{watts}]\n");
        let rising = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11";
        assert!(Model::parse(&curve(rising)).is_ok());
        for (text, expected) in [
            (curve("1, 2, 3"), "watts"),
            (
                curve("1, 2, 3, 4, 5, 4, 7, 8, 9, 10, 11"),
                "falls from 40 % to 50 %",
            ),
            (curve("-1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"), "-1"),
            (curve("0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0"), "full load"),
            (curve("nan, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"), "no power"),
            (curve(rising).replace("cpus = 2", "cpus = 0"), "at least 1"),
            (curve(rising) + "wats = 3\n", "wats"),
            ("garbage".to_owned(), "line 1"),
        ] {
            let problem = Model::parse(&text).unwrap_err().to_string();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn a_model_of_a_file_carries_the_file_its_date_and_how_well_it_fits() {
        let root = TempDir::new().unwrap();
        stat(&root, 0, 0);
        let file = root.path().join("mine.toml");
        let fit = "[calibration]\nmeter = \"wall\"\ncovers = \"x\"\nobservations = 9\n\
                   residual_rms_watts = 0.8\nresidual_worst_watts = 2.1\n";
        let curve = "watts = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]";
        let text = format!("name = \"mine\"\ndate = \"2026-03-01\"\ncpus = 2\n{curve}\n{fit}");
        fs::write(&file, text).unwrap();
        let meter = ModelMeter::open(root.path(), Some(&file)).unwrap();
        let model = host_energy([&meter as &dyn Meter]).unwrap().model.unwrap();
        assert_eq!(model.file.as_ref(), Some(&file));
        let words = "mine, of 2026-03-01, fitted to wall (off by 0.8 W typically, 2.1 W at worst)";
        assert_eq!(model.to_string(), words);
    }

    #[test]
    fn a_missing_or_broken_file_is_named() {
        let root = TempDir::new().unwrap();
        stat(&root, 0, 0);
        let file = root.path().join("mine.toml");
        let absent = ModelMeter::open(root.path(), Some(&file)).unwrap_err();
        assert!(absent.reason.contains("mine.toml"), "{absent}");
        fs::write(&file, "cpus = 1").unwrap();
        let absent = ModelMeter::open(root.path(), Some(&file)).unwrap_err();
        assert!(absent.reason.contains("mine.toml"), "{absent}");
    }

    /// `/proc/stat` of four processors: user, idle and steal ticks.
    fn stat_of_four(root: &TempDir, user: u64, idle: u64, steal: u64) {
        let mut text = format!("cpu {user} 0 0 {idle} 0 0 0 {steal} 0 0\n");
        for cpu in 0..4 {
            text.push_str(&format!("cpu{cpu} 0 0 0 0 0 0 0 0 0 0\n"));
        }
        fs::write(root.path().join("stat"), text).unwrap();
    }

    /// Returns the watts of four processors that were busy for 19.2 of 400 ticks a second, where the columns of idle
    /// and stolen time show `idle` and `steal` after each number of seconds.
    fn watts_of_four(idle: impl Fn(u64) -> u64, steal: impl Fn(u64) -> u64, last: u64) -> f64 {
        let root = TempDir::new().unwrap();
        let at = |second: u64| stat_of_four(&root, second * 192 / 10, idle(second), steal(second));
        at(0);
        let mut meter = open(&root);
        read(&mut meter, 0.0);
        for second in 1..=last {
            at(second);
            let _ = meter.read(
                Nanoseconds(second * 1_000_000_000),
                &mut Readings::default(),
            );
        }
        let snapshot = read(&mut meter, last as f64);
        value(&snapshot, "energy.model.host_joules") / last as f64
    }

    const IDLE: u64 = 10_000_000_000;

    #[test]
    fn stolen_time_that_falls_every_second_is_not_taken_for_work() {
        let idle = |second: u64| IDLE + second * 3808 / 10;
        let without = watts_of_four(idle, |_| 7, 10);
        let with = watts_of_four(idle, |second| 9_000_000_000 - second * 8_000_000, 10);
        assert_eq!(format!("{with:.1}"), "12.9");
        assert!((with - without).abs() < 0.02, "{with} {without}");
    }

    #[test]
    fn a_processor_taken_offline_and_back_costs_its_intervals_and_nothing_later() {
        // The idle time of an offline processor is counted by another clock, hours behind.
        let offline = |second: u64| (3..6).contains(&second);
        let idle = |second: u64| {
            let behind = if offline(second) { 2_000_000 } else { 0 };
            IDLE + second * 3808 / 10 - behind
        };
        let with = watts_of_four(idle, |_| 0, 60);
        let without = watts_of_four(|second| IDLE + second * 3808 / 10, |_| 0, 60);
        assert!((with - without).abs() < 0.02, "{with} {without}");
    }

    #[test]
    fn an_interval_in_which_every_column_starts_anew_is_not_counted_and_reported() {
        let root = TempDir::new().unwrap();
        let mut meter = {
            stat_of_four(&root, 5_000_000, IDLE, 0);
            open(&root)
        };
        read(&mut meter, 0.0);
        stat_of_four(&root, 5_000_000 + 192, IDLE + 3808, 0);
        let before = value(&read(&mut meter, 10.0), "energy.model.host_joules");
        stat_of_four(&root, 1, 1, 0);
        let mut readings = Readings::default();
        let error = meter.read(Nanoseconds(12_000_000_000), &mut readings);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("/stat") && error.contains("started anew"),
            "{error}"
        );
        let snapshot = Snapshot::from_readings(Nanoseconds(0), &readings);
        assert_eq!(value(&snapshot, "energy.model.host_joules"), before);
        stat_of_four(&root, 1 + 192, 1 + 3808, 0);
        let after = value(&read(&mut meter, 22.0), "energy.model.host_joules");
        assert!((after - before - 129.0).abs() < 1.0, "{before} {after}");
    }

    proptest! {
        #[test]
        fn joules_never_fall_whatever_proc_stat_says(
            steps in prop::collection::vec((0u64..2_000_000_000, 0u64..10_000, 0u64..10_000), 1..30),
        ) {
            let root = TempDir::new().unwrap();
            stat(&root, 0, 0);
            let mut meter = open(&root);
            let (mut now, mut before) = (0, 0.0);
            for (wait, busy, idle) in steps {
                now += wait;
                stat(&root, busy, idle);
                let mut readings = Readings::default();
                // An unexplained change is reported as an error, and the values are recorded in any case.
                let _ = meter.read(Nanoseconds(now), &mut readings);
                let snapshot = Snapshot::from_readings(Nanoseconds(now), &readings);
                let joules = value(&snapshot, "energy.model.host_joules");
                prop_assert!(joules >= before);
                before = joules;
            }
        }

        #[test]
        fn no_text_panics_the_model_parser(text in ".{0,200}") {
            let _ = Model::parse(&text);
        }
    }
}
