// SPDX-License-Identifier: Apache-2.0
//! The power reading of a server's BMC: `ipmitool dcmi power reading`, on a separate thread.

use super::program::{command_line, ending, run};
use super::series::MeterSeries;
use super::{Absent, Domain, Meter, Part, PowerIntegral};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use vtax_core::{Nanoseconds, Source, Watts};
use vtax_observe::clock::Clock;
use vtax_observe::{Instrument, ObserveError, Readings};

pub(super) const NAME: &str = "ipmi";

const DOMAIN: &str = "host";

/// The configuration for reading the BMC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpmiConfig {
    /// The program.
    pub program: PathBuf,
    /// The arguments before `dcmi power reading`, such as `-I lanplus -H bmc.example -U user -f FILE` for a BMC over
    /// the network. Empty: the local BMC, which needs a device below `/dev`.
    pub arguments: Vec<String>,
    /// Time between two requests. Most BMCs average over a second or more.
    pub period: Duration,
    /// The time limit of one request.
    pub limit: Duration,
}

impl Default for IpmiConfig {
    fn default() -> Self {
        Self {
            program: PathBuf::from("ipmitool"),
            arguments: Vec::new(),
            period: Duration::from_secs(1),
            limit: Duration::from_secs(10),
        }
    }
}

impl IpmiConfig {
    fn ask(&self, stop: &AtomicBool) -> Result<Watts, ObserveError> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .args(["dcmi", "power", "reading"]);
        let shown = run(&mut command, self.limit, stop)?;
        parse(&shown).map_err(|detail| ObserveError::Program {
            command: command_line(&command),
            detail: detail.to_string(),
        })
    }
}

/// A BMC that responds. [`Instrument::read`] uses the latest response, so that a slow BMC delays no other instrument.
#[derive(Debug)]
pub struct Ipmi {
    domains: [Domain; 1],
    caveats: Vec<String>,
    shared: Arc<Shared>,
    asker: Option<JoinHandle<()>>,
    joules: MeterSeries,
    watts: MeterSeries,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    integral: PowerIntegral,
    failure: Option<String>,
}

impl Ipmi {
    /// Reads the BMC once, and then every period on a separate thread.
    ///
    /// # Errors
    /// The reason that there is no BMC, or that it does not measure power.
    pub fn open(dev: &Path, config: IpmiConfig, clock: Arc<dyn Clock>) -> Result<Self, Absent> {
        let devices = ["ipmi0", "ipmi/0", "ipmidev/0"];
        if config.arguments.is_empty() && !devices.iter().any(|device| dev.join(device).exists()) {
            let reason = format!(
                "there is no {}: no BMC, or no driver",
                dev.join("ipmi0").display()
            );
            return Err(Absent::because(NAME, reason)
                .remedy("on a server with a BMC: modprobe ipmi_si ipmi_devintf"));
        }
        let shared = Shared {
            stop: AtomicBool::new(false),
            state: Mutex::new(State {
                integral: PowerIntegral::new(stands(&config), Part::Machine.most()),
                failure: None,
            }),
        };
        let absent = |reason: String| Absent::because(NAME, reason);
        let first = config.ask(&shared.stop).map_err(|error| {
            absent(error.to_string())
                .remedy("apt install ipmitool; the BMC must support DCMI power readings")
        })?;
        shared.take(Ok(first), &*clock);
        let shared = Arc::new(shared);
        let asker = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("ipmi".to_owned())
                .spawn(move || shared.ask(&config, &*clock))
        };
        Ok(Self {
            domains: [Domain { name: DOMAIN.to_owned(), part: Part::Machine }],
            caveats: vec![
                "IPMI gives whole watts, averaged by the BMC over a second or more: use long trials".to_owned(),
            ],
            shared,
            asker: Some(asker.map_err(|error| absent(format!("cannot start a thread: {error}")))?),
            joules: MeterSeries::joules(NAME, DOMAIN, Source::Measured),
            watts: MeterSeries::watts(NAME, DOMAIN, Source::Measured),
        })
    }
}

/// The time for which a response is valid: until the next one is overdue, with an allowance for slow responses.
fn stands(config: &IpmiConfig) -> Nanoseconds {
    Nanoseconds::from(config.period.saturating_mul(3).saturating_add(config.limit))
}

impl Shared {
    fn ask(&self, config: &IpmiConfig, clock: &dyn Clock) {
        while !self.stop.load(Ordering::Relaxed) {
            thread::park_timeout(config.period);
            if !self.stop.load(Ordering::Relaxed) {
                let answer = config.ask(&self.stop);
                self.take(answer, clock);
            }
        }
    }

    fn take(&self, answer: Result<Watts, ObserveError>, clock: &dyn Clock) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failure = match answer {
            Ok(watts) => state
                .integral
                .reading(clock.now(), watts)
                .err()
                .map(|_| format!("{} W is more than any machine draws", watts.0)),
            Err(error) => Some(error.to_string()),
        };
    }
}

/// A response of the BMC without a power.
#[derive(Debug, thiserror::Error)]
enum ResponseError {
    #[error("the BMC's power measurement is `{0}`")]
    State(String),
    #[error("the answer has no power reading: {0}")]
    Lacks(String),
    #[error("the BMC shows 0 W, so it does not measure")]
    Zero,
    #[error("`{0}` is no power")]
    NoPower(String),
}

/// Parses the watts in the output of `ipmitool dcmi power reading`.
fn parse(shown: &str) -> Result<Watts, ResponseError> {
    let field = |name: &str| {
        shown.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.trim().eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    if let Some(state) = field("Power reading state is")
        && !state.eq_ignore_ascii_case("activated")
    {
        return Err(ResponseError::State(state.to_owned()));
    }
    let value =
        field("Instantaneous power reading").ok_or_else(|| ResponseError::Lacks(ending(shown)))?;
    let mut words = value.split_whitespace();
    match (
        words.next().and_then(|number| number.parse::<f64>().ok()),
        words.next(),
    ) {
        (Some(watts), Some("Watts")) if watts > 0.0 => Ok(Watts(watts)),
        (Some(_), Some("Watts")) => Err(ResponseError::Zero),
        _ => Err(ResponseError::NoPower(value.to_owned())),
    }
}

impl Instrument for Ipmi {
    fn name(&self) -> &str {
        NAME
    }

    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut state = self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let total = state.integral.total_at(now);
        // Without a response the joules are unknown, not zero.
        if let Some(power) = state.integral.standing(now) {
            self.joules.record_joules(into, total);
            self.watts.record_watts(into, power);
        }
        let unavailable = |reason: String| ObserveError::Unavailable {
            what: "the BMC's power".to_owned(),
            reason,
        };
        match (state.failure.take(), state.integral.standing(now)) {
            (Some(failure), _) => Err(unavailable(failure)),
            (None, None) => Err(unavailable(
                "no answer for too long; no joules are counted".to_owned(),
            )),
            (None, Some(_)) => Ok(()),
        }
    }
}

impl Meter for Ipmi {
    fn domains(&self) -> &[Domain] {
        &self.domains
    }

    fn caveats(&self) -> &[String] {
        &self.caveats
    }
}

impl Drop for Ipmi {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(asker) = self.asker.take() {
            asker.thread().unpark();
            // Fails only if the thread panicked.
            let _ = asker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;
    use vtax_core::owner::Owner;
    use vtax_observe::Snapshot;

    const ANSWER: &str = "
    Instantaneous power reading:                   214 Watts
    Minimum during sampling period:                  2 Watts
    Maximum during sampling period:                468 Watts
    Average power reading over sample period:      184 Watts
    IPMI timestamp:                           Sun May  5 13:06:44 2024
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   activated
";

    /// An `ipmitool` that is the shell script `body`.
    fn server(body: &str) -> (TempDir, IpmiConfig) {
        let root = TempDir::new().unwrap();
        let script = root.path().join("ipmitool");
        fs::write(root.path().join("answer"), ANSWER).unwrap();
        fs::write(&script, format!("cd {}\n{body}\n", root.path().display())).unwrap();
        let config = IpmiConfig {
            program: "sh".into(),
            arguments: vec![script.display().to_string()],
            period: Duration::from_millis(10),
            ..IpmiConfig::default()
        };
        (root, config)
    }

    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> Nanoseconds {
            Nanoseconds(0)
        }
        fn wall(&self) -> Nanoseconds {
            Nanoseconds(0)
        }
    }

    fn open(body: &str) -> Result<(TempDir, Ipmi), Absent> {
        let (root, config) = server(body);
        let meter = Ipmi::open(root.path(), config, Arc::new(Fixed))?;
        Ok((root, meter))
    }

    #[test]
    fn a_server_that_answers_gives_watts_and_joules() {
        let (_root, mut meter) = open(r#"[ "$*" = "dcmi power reading" ] && cat answer"#).unwrap();
        let mut readings = Readings::default();
        meter
            .read(Nanoseconds(2_000_000_000), &mut readings)
            .unwrap();
        let snapshot = Snapshot::of(Nanoseconds(0), &readings);
        assert_eq!(
            snapshot
                .get(&Owner::Host, "power.ipmi.host_watts")
                .unwrap()
                .value,
            214.0
        );
        assert_eq!(
            snapshot
                .get(&Owner::Host, "energy.ipmi.host_joules")
                .unwrap()
                .value,
            428.0
        );
        assert!(meter.caveats()[0].contains("averaged"));
    }

    #[test]
    fn a_command_that_the_bmc_does_not_know_is_an_absence_with_its_words() {
        let absent = open("echo 'DCMI request failed because: Invalid command (c1)' >&2; exit 1")
            .unwrap_err();
        assert!(absent.reason.contains("Invalid command (c1)"), "{absent}");
    }

    #[test]
    fn garbage_zero_watts_and_a_switched_off_measurement_are_absences() {
        for (body, expected) in [
            ("printf '\\377\\001garbage'", "no power reading"),
            ("true", "it printed nothing"),
            ("sed s/214/abc/ answer", "is no power"),
            ("sed s/214/0/ answer", "0 W"),
            ("sed s/activated/deactivated/ answer", "`deactivated`"),
        ] {
            let absent = open(body).unwrap_err();
            assert!(absent.reason.contains(expected), "{body}: {absent}");
        }
    }

    #[test]
    fn a_bmc_that_falls_silent_never_blocks_a_reading_and_is_reported() {
        // The first response comes immediately; no later one comes.
        let (_root, mut meter) =
            open("[ -e asked ] && exec sleep 1000; touch asked; cat answer").unwrap();
        let mut readings = Readings::default();
        for second in 0..100u64 {
            let _ = meter.read(Nanoseconds(second * 1_000_000_000), &mut readings);
        }
        let error = meter
            .read(Nanoseconds(100_000_000_000), &mut readings)
            .unwrap_err();
        assert!(
            error.to_string().contains("no answer for too long"),
            "{error}"
        );
        readings.clear_values();
        let _ = meter.read(Nanoseconds(101_000_000_000), &mut readings);
        assert_eq!(readings.values().count(), 0, "its joules are unknown");
        drop(meter);
    }

    #[test]
    fn an_answer_that_takes_too_long_is_an_absence() {
        let (root, config) = server("exec sleep 1000");
        let config = IpmiConfig {
            limit: Duration::from_millis(100),
            ..config
        };
        let absent = Ipmi::open(root.path(), config, Arc::new(Fixed)).unwrap_err();
        assert!(absent.reason.contains("killed"), "{absent}");
    }

    #[test]
    fn a_host_without_a_bmc_is_not_even_asked() {
        let root = TempDir::new().unwrap();
        let config = IpmiConfig {
            program: "/nowhere/ipmitool".into(),
            ..IpmiConfig::default()
        };
        let absent = Ipmi::open(root.path(), config, Arc::new(Fixed)).unwrap_err();
        assert!(absent.reason.contains("ipmi0"), "{absent}");
    }
}
