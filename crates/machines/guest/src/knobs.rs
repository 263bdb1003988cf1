// SPDX-License-Identifier: Apache-2.0
//! The knobs of guests' kernels: set in a booted guest, and read again.

use crate::platform::Target;
use std::collections::BTreeMap;
use vtax_host::HostError;
use vtax_host::knobs::guest::GuestSetting;
use vtax_host::knobs::{self, Knob};
use vtax_host::settings::{Level, Settings};

/// The knobs of guests' kernels that are set, with their levels.
fn given(
    settings: &Settings,
) -> impl Iterator<Item = (&'static Knob, &'static GuestSetting, &Level)> {
    knobs::of_guests().filter_map(|(knob, setting)| {
        let level = settings.0.get(knob.parameter.key)?;
        Some((knob, setting, level))
    })
}

/// Checks the levels of the knobs, without a guest.
///
/// # Errors
/// The first level that is no value of its knob, or a knob of a guest in which nothing is changed.
pub fn check(settings: &Settings, is_external: bool) -> Result<(), HostError> {
    for (knob, setting, level) in given(settings) {
        let key = knob.parameter.key;
        if is_external {
            return Err(HostError::Setting(format!(
                "{key} is not set in a guest that exists already, in which vtax changes nothing: set it there, and \
                 leave {key} out of the plan"
            )));
        }
        setting.wanted(key, level)?;
    }
    Ok(())
}

/// Sets the knobs in a booted guest. Returns their readings.
///
/// # Errors
/// When the guest's kernel or device has no such knob, or reads as another value than the one that was set.
pub fn set(
    guest: &mut dyn Target,
    settings: &Settings,
) -> Result<BTreeMap<String, String>, HostError> {
    let mut readings = BTreeMap::new();
    for (knob, setting, level) in given(settings) {
        let key = knob.parameter.key;
        let refused = |why: &str| HostError::Setting(refusal(knob, level, why));
        let wanted = setting.wanted(key, level)?;
        let output =
            guest
                .administer(&setting.script(key, level)?)
                .map_err(|cause| match cause {
                    HostError::Program { output, .. } => refused(output.trim()),
                    other => other,
                })?;
        match setting.reading(level, &output) {
            Some(reading) if reading == wanted => drop(readings.insert(key.to_owned(), reading)),
            Some(reading) => return Err(refused(&format!("it reads `{reading}` afterwards"))),
            None => return Err(refused("it has no reading afterwards")),
        }
    }
    Ok(readings)
}

/// Reads the knobs that are set. One without a reading is left out.
///
/// # Errors
/// When the guest does not answer.
pub fn readings(
    guest: &mut dyn Target,
    settings: &Settings,
) -> Result<BTreeMap<String, String>, HostError> {
    let mut readings = BTreeMap::new();
    for (knob, setting, level) in given(settings) {
        let output = match guest.administer(&setting.reading_script()) {
            Err(HostError::Program { .. }) => continue,
            other => other?,
        };
        let reading = setting.reading(level, &output);
        readings.extend(reading.map(|reading| (knob.parameter.key.to_owned(), reading)));
    }
    Ok(readings)
}

/// The text of an error for a knob that a guest refuses.
fn refusal(knob: &Knob, level: &Level, why: &str) -> String {
    let key = knob.parameter.key;
    let since = knob.since.map(|(major, minor)| {
        format!(", or give the guest a kernel that has it (Linux {major}.{minor} or newer)")
    });
    format!(
        "{key} = {level} cannot be set in the guest: {why}; leave {key} out of the plan for this platform{}",
        since.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::{About, CommandLine, Finished, Job};

    /// The output of shell lines.
    type Answer = dyn Fn(&str) -> Result<String, HostError>;

    /// A guest that answers to shell lines by a function.
    struct FakeGuest(Box<Answer>);

    impl Target for FakeGuest {
        fn about(&self) -> &About {
            unreachable!()
        }
        fn start(&mut self, _: &CommandLine) -> Result<Job, HostError> {
            unreachable!()
        }
        fn poll(&mut self, _: Job) -> Result<Option<Finished>, HostError> {
            unreachable!()
        }
        fn administer(&mut self, script: &str) -> Result<String, HostError> {
            (self.0)(script)
        }
        fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, HostError> {
            unreachable!()
        }
        fn console_tail(&self) -> String {
            String::new()
        }
        fn stop(self: Box<Self>) -> Result<(), HostError> {
            Ok(())
        }
    }

    fn answering(answer: impl Fn(&str) -> Result<String, HostError> + 'static) -> FakeGuest {
        FakeGuest(Box::new(answer))
    }

    fn settings() -> Settings {
        let deferral = ("guest.napi_defer_hard_irqs", Level::Integer(1));
        [deferral, ("vm.vcpus", Level::Integer(1))]
            .into_iter()
            .collect()
    }

    fn failed(output: &str) -> HostError {
        HostError::Program {
            command: String::new(),
            status: "code 1".to_owned(),
            output: output.to_owned(),
        }
    }

    #[test]
    fn a_knob_that_is_set_is_read_back() {
        let mut guest = answering(|script| {
            assert!(script.contains("echo 1 >/sys/class/net/eth0/napi_defer_hard_irqs"));
            Ok("1\n".to_owned())
        });
        let found = set(&mut guest, &settings()).unwrap();
        assert_eq!(found["guest.napi_defer_hard_irqs"], "1");
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_knob_that_the_guests_kernel_lacks_is_refused_with_its_reason_and_the_kernel_that_has_it() {
        let mut guest = answering(|_| Err(failed("Linux 4.19 has no /sys/class/net/eth0/x\n")));
        let error = set(&mut guest, &settings()).unwrap_err().to_string();
        assert!(
            error.contains("Linux 4.19 has no /sys/class/net/eth0/x; ")
                && error.contains("Linux 5.8 or newer"),
            "{error}"
        );
    }

    #[test]
    fn a_value_that_the_guests_kernel_changes_is_not_taken_for_the_one_that_was_set() {
        let mut guest = answering(|_| Ok("0\n".to_owned()));
        let error = set(&mut guest, &settings()).unwrap_err().to_string();
        assert!(error.contains("it reads `0` afterwards"), "{error}");
    }

    #[test]
    fn a_knob_that_disappears_has_no_reading_and_a_guest_without_an_answer_is_an_error() {
        let mut guest = answering(|_| Err(failed("gone")));
        assert!(readings(&mut guest, &settings()).unwrap().is_empty());
        let mut guest = answering(|_| Err(HostError::Other("no answer".to_owned())));
        assert!(readings(&mut guest, &settings()).is_err());
    }

    #[test]
    fn nothing_is_set_in_a_guest_that_exists_already() {
        let error = check(&settings(), true).unwrap_err().to_string();
        assert!(error.contains("vtax changes nothing"), "{error}");
        check(&settings(), false).unwrap();
    }
}
