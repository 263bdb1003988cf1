// SPDX-License-Identifier: Apache-2.0
//! Settings of a testbed that are not in a plan: `--testbed` and `--jobs` of `vtax run`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use vtax_lab::place::Place;
use vtax_testbed::Settings;
use vtax_testbed::cost::CostModel;

/// The limit of emulated hosts at the same time: above the memory of any machine.
const MAX_JOBS: usize = 256;

/// The testbed settings of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Testbed {
    /// The text of a settings file; empty for the defaults.
    #[serde(default)]
    pub settings: String,
    /// The number of emulated hosts at the same time; none for as many as fit.
    #[serde(default)]
    pub jobs: Option<usize>,
}

/// Settings of a testbed that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// The place is not a testbed.
    #[error("settings of a testbed are for testbed:kvm and testbed:xen, and the place is {0}")]
    NoTestbed(Place),
    /// Too few or too many hosts.
    #[error("give 1 to {MAX_JOBS} emulated hosts at the same time")]
    Jobs,
    /// The settings file is wrong.
    #[error("the settings of the testbed: {0}")]
    Settings(String),
    /// The cost model is neither a shipped one nor the whole path of a file.
    #[error(
        "the settings of the testbed: cost_model = {:?} is no model that vtax ships (vtax testbed cost --list); of a file give the whole path",
        .0.display().to_string()
    )]
    CostModel(PathBuf),
}

impl Testbed {
    /// # Errors
    /// When a setting is wrong, or the place is no testbed.
    pub fn check(&self, place: &Place) -> Result<(), TestbedError> {
        if *self == Self::default() {
            return Ok(());
        }
        if !matches!(place, Place::Testbed(_)) {
            return Err(TestbedError::NoTestbed(place.clone()));
        }
        if self
            .jobs
            .is_some_and(|jobs| !(1..=MAX_JOBS).contains(&jobs))
        {
            return Err(TestbedError::Jobs);
        }
        let wrong = |cause: &dyn std::fmt::Display| TestbedError::Settings(cause.to_string());
        let settings =
            Settings::parse(&self.settings).map_err(|cause| wrong(&cause.to_string()))?;
        let Some(model) = settings.cost_model else {
            return Ok(());
        };
        let shipped = CostModel::named(&model).map_err(|cause| wrong(&cause))?;
        if shipped.is_none() && !model.is_absolute() {
            return Err(TestbedError::CostModel(model));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_and_are_for_testbeds_alone() {
        let check = |settings: &str, jobs, place: &str| {
            let settings = settings.to_owned();
            Testbed { settings, jobs }.check(&place.parse().unwrap())
        };
        check("", None, "local").unwrap();
        check("seed = 7\n", Some(2), "testbed:kvm").unwrap();
        for (settings, jobs, place, why) in [
            ("seed = 7", None, "local", "are for testbed:kvm"),
            ("", Some(2), "ssh:other", "are for testbed:kvm"),
            ("", Some(0), "testbed:xen", "give 1 to"),
            ("sead = 7", None, "testbed:kvm", "sead"),
            ("memory_mib = 1", None, "testbed:kvm", "memory_mib"),
            (
                "cost_model = \"own.toml\"",
                None,
                "testbed:kvm",
                "whole path",
            ),
        ] {
            let refused = check(settings, jobs, place).unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
        }
    }
}
