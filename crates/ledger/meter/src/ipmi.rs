// SPDX-License-Identifier: Apache-2.0
//! The power reading of a server's BMC: `ipmitool dcmi power reading`, on a separate thread.

use super::Absent;
use super::load::Threads;
use super::polled::{Latest, Polled};
use super::program::{command_line, ending, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use vtax_core::{Nanoseconds, Watts};
use vtax_observe::ObserveError;
use vtax_observe::clock::Clock;

pub(super) const NAME: &str = "ipmi";

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

/// Reads the BMC once, and then every period on a separate thread.
///
/// # Errors
/// The reason that there is no BMC, or that it does not measure power.
pub fn ipmi(dev: &Path, config: IpmiConfig, clock: Arc<dyn Clock>) -> Result<Polled, Absent> {
    let devices = ["ipmi0", "ipmi/0", "ipmidev/0"];
    if config.arguments.is_empty() && !devices.iter().any(|device| dev.join(device).exists()) {
        let reason = format!(
            "there is no {}: no BMC, or no driver",
            dev.join("ipmi0").display()
        );
        return Err(Absent::because(NAME, reason)
            .remedy("on a server with a BMC: modprobe ipmi_si ipmi_devintf"));
    }
    let absent = |reason: String| Absent::because(NAME, reason);
    let first = config.ask(&AtomicBool::new(false)).map_err(|error| {
        absent(error.to_string())
            .remedy("apt install ipmitool; the BMC must support DCMI power readings")
    })?;
    let latest = Latest::new(stands(&config));
    take(&latest, Ok(first), &*clock);
    let mut asker = Threads::default();
    let thread = {
        let (latest, stop) = (latest.clone(), asker.stop());
        move || {
            while !stop.load(Ordering::Relaxed) {
                thread::park_timeout(config.period);
                if !stop.load(Ordering::Relaxed) {
                    take(&latest, config.ask(&stop), &*clock);
                }
            }
        }
    };
    asker
        .start(NAME.to_owned(), thread)
        .map_err(|error| absent(format!("cannot start a thread: {error}")))?;
    let mut meter = Polled::new(NAME, "the BMC's power".to_owned(), latest, asker);
    meter.caveats.push(
        "IPMI gives whole watts, averaged by the BMC over a second or more: use long trials"
            .to_owned(),
    );
    Ok(meter)
}

/// The time for which a response is valid: until the next one is overdue, with an allowance for slow responses.
fn stands(config: &IpmiConfig) -> Nanoseconds {
    Nanoseconds::from(config.period.saturating_mul(3).saturating_add(config.limit))
}

fn take(latest: &Latest, answer: Result<Watts, ObserveError>, clock: &dyn Clock) {
    let failure = match answer {
        Ok(watts) if latest.take(clock.now(), watts) => None,
        Ok(watts) => Some(format!("{} W is more than any machine draws", watts.0)),
        Err(error) => Some(error.to_string()),
    };
    latest.lock().failure = failure;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Meter;
    use std::fs;
    use tempfile::TempDir;
    use vtax_core::owner::Owner;
    use vtax_observe::{Instrument, Readings, Snapshot};

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

    fn open(body: &str) -> Result<(TempDir, Polled), Absent> {
        let (root, config) = server(body);
        let meter = ipmi(root.path(), config, Arc::new(Fixed))?;
        Ok((root, meter))
    }

    #[test]
    fn a_server_that_answers_gives_watts_and_joules() {
        let (_root, mut meter) = open(r#"[ "$*" = "dcmi power reading" ] && cat answer"#).unwrap();
        let mut readings = Readings::default();
        meter
            .read(Nanoseconds(2_000_000_000), &mut readings)
            .unwrap();
        let snapshot = Snapshot::from_readings(Nanoseconds(0), &readings);
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
        let absent = ipmi(root.path(), config, Arc::new(Fixed)).unwrap_err();
        assert!(absent.reason.contains("killed"), "{absent}");
    }

    #[test]
    fn a_host_without_a_bmc_is_not_even_asked() {
        let root = TempDir::new().unwrap();
        let config = IpmiConfig {
            program: "/nowhere/ipmitool".into(),
            ..IpmiConfig::default()
        };
        let absent = ipmi(root.path(), config, Arc::new(Fixed)).unwrap_err();
        assert!(absent.reason.contains("ipmi0"), "{absent}");
    }
}
