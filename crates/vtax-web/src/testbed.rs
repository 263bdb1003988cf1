//! What of a testbed can be chosen, beyond what a plan says: `--testbed` and `--jobs` of `vtax run`.

use serde::{Deserialize, Serialize};
use vtax_lab::place::Place;
use vtax_testbed::Settings;
use vtax_testbed::cost::CostModel;

/// Emulated hosts at the same time, at most: more than any machine has memory for.
const MOST_JOBS: usize = 256;

/// What was chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Testbed {
    /// The settings file, as it is written; empty for the defaults.
    #[serde(default)]
    pub settings: String,
    /// Emulated hosts at the same time; none: as many as fit.
    #[serde(default)]
    pub jobs: Option<usize>,
}

impl Testbed {
    /// # Errors
    /// What is wrong with it, or why it is not for this place; in words.
    pub fn check(&self, place: &Place) -> Result<(), String> {
        if *self == Self::default() {
            return Ok(());
        }
        if !matches!(place, Place::Testbed(_)) {
            return Err(format!(
                "settings of a testbed are for testbed:kvm and testbed:xen, and the place is {place}"
            ));
        }
        if self
            .jobs
            .is_some_and(|jobs| !(1..=MOST_JOBS).contains(&jobs))
        {
            return Err(format!(
                "give 1 to {MOST_JOBS} emulated hosts at the same time"
            ));
        }
        let settings = Settings::parse(&self.settings)
            .map_err(|why| format!("the settings of the testbed: {why}"))?;
        let Some(model) = settings.cost_model else {
            return Ok(());
        };
        let is_shipped = CostModel::named(&model).map_err(|error| error.to_string())?;
        if is_shipped.is_none() && !model.is_absolute() {
            return Err(format!(
                "the settings of the testbed: cost_model = {:?} is no model that vtax ships (vtax testbed cost --list); of a file give the whole path",
                model.display().to_string()
            ));
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
            assert!(refused.contains(why), "{refused}");
        }
    }
}
