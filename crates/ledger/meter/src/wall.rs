// SPDX-License-Identifier: Apache-2.0
//! A meter between the machine and the wall socket: any instrument that sigrok reads, through `sigrok-cli`.

use super::Absent;
use super::polled::{Latest, Polled};
use super::program::{Reaped, ending, not_started};
use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use vtax_core::Watts;
use vtax_observe::clock::Clock;

pub(super) const NAME: &str = "wall";

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

/// The number of unusable first readings after which the instrument counts as unusable.
const ENOUGH_FAILURES: u64 = 5;

/// Starts `sigrok-cli` and waits for the first usable reading. It samples continuously until its standard input closes,
/// so it ends with this process in every case.
///
/// # Errors
/// The reason that there is none: the program's own message, or the fault of its readings.
pub fn wall(config: &WallConfig, clock: Arc<dyn Clock>) -> Result<Polled, Absent> {
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
    let started = command.spawn();
    let child = started.map_err(|error| failed(error).remedy("apt install sigrok-cli"))?;
    let mut program = Program {
        child: Some(Reaped(child)),
        reader: None,
    };
    // The command holds copies of the pipe's ends; while they are open, the output does not end.
    drop(command);
    let latest = Latest::new(config.stands.into());
    let (first, began) = channel();
    let reading = Reader {
        interpreter: Interpreter::new(config.volts, config.power_factor),
        latest: latest.clone(),
        first: Some(first),
    };
    let builder = thread::Builder::new().name("wall meter".to_owned());
    let reader = builder.spawn(move || reading.follow(output, &*clock));
    program.reader = Some(reader.map_err(failed)?);
    let what = format!("wall meter {}", config.driver);
    let mut meter = Polled::new(NAME, what, latest.clone(), program);
    let caveats = began.recv_timeout(config.stands).unwrap_or_else(|_| {
        let failure = latest.lock().failure.take();
        let failure = failure.unwrap_or_else(|| ReadingError::Silent(config.stands).to_string());
        Err(NoReading(failure))
    });
    meter.caveats = caveats.map_err(|NoReading(reason)| {
        absent(reason).remedy(
            "check the cable, that the instrument sends data and is set to current or power, \
             that this user may open the port (group dialout), and the voltage in the settings",
        )
    })?;
    Ok(meter)
}

/// The program and the thread that reads its output. Both end when this value is dropped.
struct Program {
    child: Option<Reaped>,
    reader: Option<JoinHandle<()>>,
}

/// Why the instrument has no usable reading, in words.
struct NoReading(String);

/// The thread that reads the program's output.
struct Reader {
    interpreter: Interpreter,
    latest: Latest,
    /// Gets the caveats of the first usable reading, or the reason that there is none.
    first: Option<Sender<Result<Vec<String>, NoReading>>>,
}

impl Reader {
    /// Reads every line until the program ends.
    fn follow(mut self, output: PipeReader, clock: &dyn Clock) {
        /// Longer than any reading; longer lines are cut at this length, in bytes.
        const LONGEST_LINE: u64 = 4096;
        let mut output = BufReader::new(output);
        let mut bytes = Vec::new();
        let (mut failures, mut printed) = (0, String::new());
        loop {
            bytes.clear();
            let read = (&mut output)
                .take(LONGEST_LINE)
                .read_until(b'\n', &mut bytes);
            let at = clock.now();
            if matches!(read, Ok(0) | Err(_)) {
                let last = ending(&printed);
                self.latest.lock().ended = Some(format!("sigrok-cli ended: {last}"));
                self.begin(Err(NoReading(last)));
                return;
            }
            let text = String::from_utf8_lossy(&bytes);
            let line = text.trim();
            let Some(sample) = parse(line) else {
                // Not a reading, but a message of the program, kept in case it ends.
                if printed.len() > 4096 {
                    printed.clear();
                }
                printed.push_str(line);
                printed.push('\n');
                continue;
            };
            let problem = match self.interpreter.watts(&sample) {
                Ok(None) => continue,
                Ok(Some(watts)) if self.latest.take(at, watts) => {
                    let caveats = self.interpreter.caveats();
                    self.begin(Ok(caveats));
                    continue;
                }
                Ok(Some(_)) => ReadingError::Overload(line.to_owned()).to_string(),
                Err(problem) => problem.to_string(),
            };
            failures += 1;
            if failures >= ENOUGH_FAILURES {
                self.begin(Err(NoReading(problem.clone())));
            }
            self.latest.lock().failure = Some(problem);
        }
    }

    /// Tells the first usable reading, or that there is none, to the caller that waits for it.
    fn begin(&mut self, outcome: Result<Vec<String>, NoReading>) {
        if let Some(first) = self.first.take() {
            // The caller may have stopped waiting.
            let _ = first.send(outcome);
        }
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

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(mut program) = self.child.take() {
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
    use vtax_core::Nanoseconds;
    use vtax_observe::clock::SystemClock;
    use vtax_observe::{Instrument, Readings};

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
    fn open(body: &str) -> Result<(TempDir, Polled), Absent> {
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
        let meter = wall(&config, Arc::new(SystemClock))?;
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
        let wait = "while [ ! -e \"$0.unplugged\" ]; do sleep 0.01; done";
        let (root, mut meter) =
            open(&format!("echo 'P1: 1.5 A AC'; {wait}; echo unplugged")).unwrap();
        let mut readings = Readings::default();
        meter.read(SystemClock.now(), &mut readings).unwrap();
        std::fs::write(root.path().join("sigrok-cli.unplugged"), "").unwrap();
        let error = loop {
            match meter.read(SystemClock.now(), &mut readings) {
                Ok(()) => thread::sleep(Duration::from_millis(10)),
                Err(error) => break error,
            }
        };
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
        let absent = wall(&config, Arc::new(SystemClock)).unwrap_err();
        assert!(absent.remedy.unwrap().contains("apt install sigrok-cli"));
    }

    #[test]
    fn a_power_factor_beyond_one_is_refused() {
        let config = WallConfig {
            power_factor: 1.5,
            ..WallConfig::new("demo")
        };
        let absent = wall(&config, Arc::new(SystemClock)).unwrap_err();
        assert!(absent.reason.contains("1.5"));
    }
}
