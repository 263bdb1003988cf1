// SPDX-License-Identifier: Apache-2.0
//! A meter between the machine and the wall socket: any instrument that sigrok reads, through `sigrok-cli`.

use super::program::{Reaped, ending, not_started};
use super::series::MeterSeries;
use super::{Absent, Domain, Meter, Part, PowerIntegral};
use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use vtax_core::{Nanoseconds, Source, Watts};
use vtax_observe::clock::Clock;
use vtax_observe::{Instrument, ObserveError, Readings};

pub(super) const NAME: &str = "wall";

const DOMAIN: &str = "host";

/// Volts of a configured mains voltage.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Volts(pub f64);

/// The instrument to read, and the conversion of its readings to watts.
#[derive(Debug, Clone, PartialEq)]
pub struct WallConfig {
    /// The program.
    pub program: PathBuf,
    /// sigrok's name for the driver and its connection, such as `mastech-mas345:conn=/dev/ttyUSB0` (`sigrok-cli -L`
    /// lists the drivers).
    pub driver: String,
    /// The channels to read; all of them if `None`.
    pub channels: Option<String>,
    /// The voltage to multiply a current with, where the instrument shows no voltage itself.
    pub volts: Option<Volts>,
    /// The share of volt-amperes that is true power (1 for DC and for a resistive load).
    pub power_factor: f64,
    /// The time for which a reading is valid without a later one, and the wait for the first reading.
    pub stands: Duration,
}

impl WallConfig {
    /// Configures the instrument behind `driver`, without a voltage.
    pub fn new(driver: impl Into<String>) -> Self {
        Self {
            program: PathBuf::from("sigrok-cli"),
            driver: driver.into(),
            channels: None,
            volts: None,
            power_factor: 1.0,
            stands: Duration::from_secs(5),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args([
            "--driver",
            &self.driver,
            "--continuous",
            "--output-format",
            "analog",
        ]);
        if let Some(channels) = &self.channels {
            command.args(["--channels", channels]);
        }
        command
    }
}

/// An instrument that sigrok reads. `sigrok-cli` samples continuously until its standard input closes, so it ends with
/// this process in every case.
#[derive(Debug)]
pub struct WallMeter {
    domains: [Domain; 1],
    caveats: Vec<String>,
    driver: String,
    shared: Arc<Shared>,
    program: Option<Reaped>,
    reader: Option<JoinHandle<()>>,
    joules: MeterSeries,
    watts: MeterSeries,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    integral: PowerIntegral,
    interpreter: Interpreter,
    readings: u64,
    failures: u64,
    failure: Option<ReadingError>,
    printed: String,
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of unusable first readings after which the instrument counts as unusable.
const ENOUGH_FAILURES: u64 = 5;

impl WallMeter {
    /// Starts `sigrok-cli` and waits for the first usable reading.
    ///
    /// # Errors
    /// The reason that there is none: the program's own message, or the fault of its readings.
    pub fn open(config: &WallConfig, clock: Arc<dyn Clock>) -> Result<Self, Absent> {
        let absent = |reason: String| Absent::because(NAME, format!("{}: {reason}", config.driver));
        let failed = |error: io::Error| absent(not_started(&error));
        if !(config.power_factor > 0.0 && config.power_factor <= 1.0) {
            return Err(absent(format!(
                "a power factor of {} is impossible",
                config.power_factor
            )));
        }
        let mut command = config.command();
        let (output, writer) = io::pipe().map_err(failed)?;
        command
            .stdin(Stdio::piped())
            .stdout(writer.try_clone().map_err(failed)?)
            .stderr(writer);
        let program = Reaped(
            command
                .spawn()
                .map_err(|error| failed(error).remedy("apt install sigrok-cli"))?,
        );
        // The command holds copies of the pipe's ends; while they are open, the output does not end.
        drop(command);
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                integral: PowerIntegral::new(config.stands.into(), Part::Machine.most()),
                interpreter: Interpreter::new(config.volts, config.power_factor),
                readings: 0,
                failures: 0,
                failure: None,
                printed: String::new(),
                ended: false,
            }),
            changed: Condvar::new(),
        });
        let reader = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("wall meter".to_owned())
                .spawn(move || read_lines(output, &shared, &*clock))
                .map_err(failed)?
        };
        let mut meter = Self {
            domains: [Domain {
                name: DOMAIN.to_owned(),
                part: Part::Machine,
            }],
            caveats: Vec::new(),
            driver: config.driver.clone(),
            shared,
            program: Some(program),
            reader: Some(reader),
            joules: MeterSeries::joules(NAME, DOMAIN, Source::Measured),
            watts: MeterSeries::watts(NAME, DOMAIN, Source::Measured),
        };
        meter.caveats = meter.first_reading(config.stands).map_err(|reason| {
            absent(reason.to_string()).remedy(
                "check the cable, that the instrument sends data and is set to current or power, \
                 that this user may open the port (group dialout), and the voltage in the settings",
            )
        })?;
        Ok(meter)
    }

    /// Waits for the first usable reading and returns the caveats that come with its kind.
    fn first_reading(&self, limit: Duration) -> Result<Vec<String>, ReadingError> {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        loop {
            if state.readings > 0 {
                return Ok(state.interpreter.caveats());
            }
            if state.ended {
                return Err(ReadingError::Ended(ending(&state.printed)));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.failures >= ENOUGH_FAILURES {
                let failure = state.failure.take();
                return Err(failure.unwrap_or(ReadingError::Silent(limit)));
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Reads every line until the program ends.
fn read_lines(output: PipeReader, shared: &Shared, clock: &dyn Clock) {
    /// Longer than any reading; longer lines are cut at this length, in bytes.
    const LONGEST_LINE: u64 = 4096;
    let mut output = BufReader::new(output);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let read = (&mut output)
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut bytes);
        let at = clock.now();
        let mut state = shared.lock();
        if matches!(read, Ok(0) | Err(_)) {
            state.ended = true;
            shared.changed.notify_all();
            return;
        }
        state.take(at, String::from_utf8_lossy(&bytes).trim());
        shared.changed.notify_all();
    }
}

/// A wall meter that gives no power.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
enum ReadingError {
    #[error(
        "the instrument shows current only, and power needs a voltage too: configure it \
         (230 V in Europe, 120 V in North America; better: measure it)"
    )]
    NoVoltage,
    #[error("`{0}` is no power of one machine (overload?)")]
    Overload(String),
    #[error("no reading in {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// The program has ended, with this output.
    #[error("{0}")]
    Ended(String),
}

impl State {
    fn take(&mut self, at: Nanoseconds, line: &str) {
        let Some(sample) = parse(line) else {
            // Not a reading, but a message of the program, kept in case it ends.
            if self.printed.len() > 4096 {
                self.printed.clear();
            }
            self.printed.push_str(line);
            self.printed.push('\n');
            return;
        };
        let problem = match self.interpreter.watts(&sample) {
            Ok(None) => return,
            Ok(Some(watts)) => match self.integral.reading(at, watts) {
                Ok(()) => None,
                Err(_) => Some(ReadingError::Overload(line.to_owned())),
            },
            Err(problem) => Some(problem),
        };
        match problem {
            None => self.readings += 1,
            Some(_) => self.failures += 1,
        }
        self.failure = problem.or(self.failure.take());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quantity {
    Volts,
    Amperes,
    Watts,
}

/// One reading, in plain volts, amperes or watts.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    value: f64,
    quantity: Quantity,
    alternating: bool,
}

/// Parses `P1: 700 mA AC` as 0.7 A, alternating. `None` for any other line. An overload is shown as `inf`.
fn parse(line: &str) -> Option<Sample> {
    let (_, reading) = line.split_once(": ")?;
    let mut words = reading.split_whitespace();
    let value: f64 = words.next()?.parse().ok()?;
    let unit = words.next()?;
    let symbol = unit.chars().next_back()?;
    let quantity = match symbol {
        'V' => Quantity::Volts,
        'A' => Quantity::Amperes,
        'W' => Quantity::Watts,
        _ => return None,
    };
    let scale = match unit.strip_suffix(symbol)? {
        "p" => 1e-12,
        "n" => 1e-9,
        "u" | "µ" | "μ" => 1e-6,
        "m" => 1e-3,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        _ => return None,
    };
    let alternating = words.any(|flag| flag == "AC");
    Some(Sample {
        value: value * scale,
        quantity,
        alternating,
    })
}

/// Converts an instrument's readings to watts: the power where the instrument shows it, otherwise current times
/// voltage, from the instrument or the configuration.
#[derive(Debug)]
struct Interpreter {
    configured: Option<Volts>,
    power_factor: f64,
    volts: Option<Volts>,
    shows_power: bool,
    alternating: bool,
}

impl Interpreter {
    fn new(configured: Option<Volts>, power_factor: f64) -> Self {
        Self {
            configured,
            power_factor,
            volts: None,
            shows_power: false,
            alternating: false,
        }
    }

    /// The power that a reading completes, if any. Reversed leads only change the sign, so the absolute value is used.
    fn watts(&mut self, sample: &Sample) -> Result<Option<Watts>, ReadingError> {
        let size = sample.value.abs();
        match sample.quantity {
            Quantity::Watts => {
                self.shows_power = true;
                Ok(Some(Watts(size)))
            }
            _ if self.shows_power => Ok(None),
            Quantity::Volts => {
                self.volts = Some(Volts(size));
                Ok(None)
            }
            Quantity::Amperes => {
                self.alternating = sample.alternating;
                let volts = self.volts.or(self.configured);
                let volts = volts.ok_or(ReadingError::NoVoltage)?;
                Ok(Some(Watts(size * volts.0 * self.power_factor)))
            }
        }
    }

    fn caveats(&self) -> Vec<String> {
        if self.shows_power {
            return Vec::new();
        }
        let mut caveats = Vec::new();
        if self.volts.is_none()
            && let Some(volts) = self.configured
        {
            caveats.push(format!(
                "the voltage was not measured but taken to be {} V",
                volts.0
            ));
        }
        if self.alternating {
            caveats.push(match self.power_factor {
                1.0 => {
                    "volts times amperes of an AC supply is apparent power; true power is lower \
                        by the power factor, which a multimeter does not see"
                        .to_owned()
                }
                factor => format!(
                    "true power was taken to be {factor} of the apparent power that a multimeter \
                     sees; the real power factor changes with load"
                ),
            });
        }
        caveats
    }
}

impl Instrument for WallMeter {
    fn name(&self) -> &str {
        NAME
    }

    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut state = self.shared.lock();
        let total = state.integral.total_at(now);
        let standing = state.integral.standing(now);
        // Without a reading the joules are unknown, not zero.
        if let Some(power) = standing {
            self.joules.record_joules(into, total);
            self.watts.record_watts(into, power);
        }
        let problem = match (state.ended, state.failure.take(), standing) {
            (true, _, _) => format!("sigrok-cli ended: {}", ending(&state.printed)),
            (false, Some(failure), _) => failure.to_string(),
            (false, None, None) => "no reading for too long; no joules are counted".to_owned(),
            (false, None, Some(_)) => return Ok(()),
        };
        Err(ObserveError::Unavailable {
            what: format!("wall meter {}", self.driver),
            reason: problem,
        })
    }
}

impl Meter for WallMeter {
    fn domains(&self) -> &[Domain] {
        &self.domains
    }

    fn caveats(&self) -> &[String] {
        &self.caveats
    }
}

impl Drop for WallMeter {
    fn drop(&mut self) {
        if let Some(mut program) = self.program.take() {
            // Closing its input makes sigrok-cli stop and restore the port.
            drop(program.0.stdin.take());
            let deadline = Instant::now() + Duration::from_secs(2);
            while Instant::now() < deadline && matches!(program.0.try_wait(), Ok(None)) {
                thread::sleep(Duration::from_millis(10));
            }
        }
        if let Some(reader) = self.reader.take() {
            // Fails only if the thread panicked.
            let _ = reader.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;
    use vtax_observe::clock::SystemClock;

    fn amperes(value: f64) -> Sample {
        Sample {
            value,
            quantity: Quantity::Amperes,
            alternating: true,
        }
    }

    #[test]
    fn the_lines_of_sigrok_become_readings() {
        assert_eq!(parse("P1: 750 mA AC"), Some(amperes(0.75)));
        assert_eq!(parse("P1: -4.500 V DC").unwrap().value, -4.5);
        assert_eq!(
            parse("Power: 1.25 kW").map(|sample| sample.value),
            Some(1250.0)
        );
        assert_eq!(parse("P1: inf A AC").unwrap().value, f64::INFINITY);
        for other in [
            "",
            "P1:",
            "P1: 3",
            "P1: 3 VA",
            "P1: 12 °C",
            "P1: 5 Wh",
            "No devices found.",
            "P1: x V",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn power_needs_both_volts_and_amperes_or_a_direct_reading() {
        let mut alone = Interpreter::new(None, 1.0);
        assert!(
            alone
                .watts(&amperes(0.5))
                .unwrap_err()
                .to_string()
                .contains("needs a voltage")
        );
        let mut configured = Interpreter::new(Some(Volts(230.0)), 1.0);
        assert_eq!(configured.watts(&amperes(0.5)), Ok(Some(Watts(115.0))));
        let measured = Sample {
            value: 240.0,
            quantity: Quantity::Volts,
            alternating: true,
        };
        assert_eq!(configured.watts(&measured), Ok(None));
        assert_eq!(configured.watts(&amperes(0.5)), Ok(Some(Watts(120.0))));
        let direct = Sample {
            value: 88.0,
            quantity: Quantity::Watts,
            alternating: false,
        };
        assert_eq!(configured.watts(&direct), Ok(Some(Watts(88.0))));
        assert_eq!(
            configured.watts(&amperes(0.5)),
            Ok(None),
            "not counted twice"
        );
    }

    #[test]
    fn a_multimeters_caveats_are_reported_and_a_power_meters_are_none() {
        let mut meter = Interpreter::new(Some(Volts(230.0)), 1.0);
        meter.watts(&amperes(0.5)).unwrap();
        let caveats = meter.caveats().join("\n");
        assert!(
            caveats.contains("230 V") && caveats.contains("power factor"),
            "{caveats}"
        );
        meter
            .watts(&Sample {
                value: 1.0,
                quantity: Quantity::Watts,
                alternating: false,
            })
            .unwrap();
        assert!(meter.caveats().is_empty());
    }

    /// A `sigrok-cli` that is the shell script `body`.
    fn open(body: &str) -> Result<(TempDir, WallMeter), Absent> {
        let root = TempDir::new().unwrap();
        let mut config = WallConfig::new("demo");
        config.program = root.path().join("sigrok-cli");
        config.volts = Some(Volts(100.0));
        config.stands = Duration::from_secs(20);
        // A separate process writes the script: if this process had it open for writing, a child that another test
        // starts at the same time would inherit the descriptor, and a file open for writing cannot be executed.
        let write = "printf '#!/bin/sh\n%s\n' \"$1\" > \"$0\" && chmod +x \"$0\"";
        let written = Command::new("sh")
            .args(["-c", write])
            .arg(&config.program)
            .arg(body)
            .status();
        assert!(written.unwrap().success());
        let meter = WallMeter::open(&config, Arc::new(SystemClock))?;
        Ok((root, meter))
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let absent = open("echo 'No devices found.'; exit 1").unwrap_err();
        assert_eq!(absent.reason, "demo: No devices found.");
    }

    #[test]
    fn readings_that_are_all_overloads_are_an_absence() {
        let absent = open("yes 'P1: inf A AC' | head -5; cat").unwrap_err();
        assert!(absent.reason.contains("overload"), "{absent}");
    }

    #[test]
    fn garbage_is_no_reading() {
        let absent = open("head -c 100000 /dev/zero; printf '\\377\\n'").unwrap_err();
        assert!(absent.reason.starts_with("demo: "), "{absent}");
    }

    #[test]
    fn a_program_that_ends_in_the_middle_is_reported_and_counts_no_further() {
        let (_root, mut meter) = open("echo 'P1: 1.5 A AC'; read ignored; echo unplugged").unwrap();
        let mut readings = Readings::default();
        meter.read(SystemClock.now(), &mut readings).unwrap();
        drop(meter.program.as_mut().unwrap().0.stdin.take());
        let mut state = meter.shared.lock();
        while !state.ended {
            state = meter.shared.changed.wait(state).unwrap();
        }
        drop(state);
        let error = meter.read(SystemClock.now(), &mut readings).unwrap_err();
        assert!(error.to_string().contains("ended: unplugged"), "{error}");
        let late = Nanoseconds(SystemClock.now().0 + 3_600_000_000_000);
        let _ = meter.read(late, &mut readings);
        let joules = readings.values().next().unwrap().2;
        assert!(
            joules <= 150.0 * 20.0 + 1e-6,
            "a reading stands for 20 s at most: {joules} J"
        );
        readings.clear_values();
        let _ = meter.read(late, &mut readings);
        assert_eq!(readings.values().count(), 0, "its joules are unknown");
    }

    #[test]
    fn a_missing_program_says_how_to_install_it() {
        let config = WallConfig {
            program: "/nowhere/sigrok-cli".into(),
            ..WallConfig::new("demo")
        };
        let absent = WallMeter::open(&config, Arc::new(SystemClock)).unwrap_err();
        assert!(absent.remedy.unwrap().contains("apt install sigrok-cli"));
    }

    #[test]
    fn a_power_factor_beyond_one_is_refused() {
        let config = WallConfig {
            power_factor: 1.5,
            ..WallConfig::new("demo")
        };
        let absent = WallMeter::open(&config, Arc::new(SystemClock)).unwrap_err();
        assert!(absent.reason.contains("1.5"));
    }
}
