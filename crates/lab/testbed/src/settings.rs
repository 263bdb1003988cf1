// SPDX-License-Identifier: Apache-2.0
//! The settings of an emulated host that a plan does not have: a small TOML file.

use crate::cost::CostModel;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use vtax_core::Nanoseconds;
use vtax_host::HostError;
use vtax_lab::plan::shipped;

/// The largest last-level cache, in MiB.
const MOST_CACHE_MIB: u32 = 1024;

/// The settings of a testbed, with their defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Whether the clock of the machine is its instruction count. Otherwise it is this machine's clock, and numbers
    /// depend on other programs.
    pub deterministic: bool,
    /// The number of processors: 1, 2 or 4. By default 1 where the clock is the instruction count, otherwise 2.
    pub processors: Option<usize>,
    /// The size of a modelled last-level cache whose references and misses are counted, in MiB; only where the clock is
    /// the instruction count. Without it nothing is counted, and an emulated host is faster.
    pub llc_mib: Option<u32>,
    /// The speed of the processor; only where the clock is the instruction count.
    pub frequency: Frequency,
    /// Memory of the host, in MiB.
    pub memory_mib: u32,
    /// The seed of all random numbers of the machine.
    pub seed: u32,
    /// The resolution of the host kernel's timers. With coarse timers, several guests run under KVM for minutes: see
    /// `docs/why/testbed.md`.
    pub timers: Timers,
    /// Whether the processor of a host with Xen has virtualization (AMD-V with nested pages), which guests
    /// other than paravirtual ones need. Under KVM it always has.
    pub hvm: bool,
    /// The scheduler of a host with Xen; by default Xen's own choice.
    pub scheduler: Option<Scheduler>,
    /// The cost model: the name of a shipped one, or a file; by default the first shipped one.
    pub cost_model: Option<PathBuf>,
}

/// Processor speeds of a deterministic host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Frequency {
    /// An instruction takes 1 ns.
    Full,
    /// An instruction takes 2 ns, as on a host with the `powersave` governor.
    Half,
}

/// The resolution of the host kernel's timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Timers {
    /// Nanoseconds, as on current hosts.
    Fine,
    /// Ticks of 4 ms.
    Coarse,
}

/// Schedulers of Xen (`sched` on its command line).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// The default before Xen 4.12.
    Credit,
    /// The default since.
    Credit2,
}

impl Scheduler {
    /// Its name on Xen's command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Credit => "credit",
            Self::Credit2 => "credit2",
        }
    }
}

impl Frequency {
    /// QEMU's `-icount shift`: an instruction takes 2^shift ns.
    pub(crate) fn shift(self) -> u32 {
        match self {
            Self::Full => 0,
            Self::Half => 1,
        }
    }

    /// The duration of an instruction.
    pub fn instruction(self) -> Nanoseconds {
        Nanoseconds(1 << self.shift())
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deterministic: true,
            processors: None,
            llc_mib: None,
            frequency: Frequency::Full,
            memory_mib: 3072,
            seed: 1,
            timers: Timers::Fine,
            hvm: false,
            scheduler: None,
            cost_model: None,
        }
    }
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Not TOML, or unknown keys or values.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// The memory is out of range.
    #[error("memory_mib = {0} is not within 1024 and 1048576")]
    Memory(u32),
    /// Another number of processors.
    #[error("processors = {0} is not 1, 2 or 4")]
    Processors(usize),
    /// A cache of another size, or on a machine without a deterministic clock.
    #[error(
        "llc_mib = {0} needs deterministic = true and a power of two of at most 1024: only then are the counts repeatable"
    )]
    Cache(u32),
    /// Half the frequency of a machine without a deterministic clock.
    #[error("frequency = \"half\" needs deterministic = true: only then is there a clock to slow")]
    NoClock,
}

impl Settings {
    /// Reads a settings file, or where there is none, the one of this name that is part of vtax. A `cost_model` that is
    /// not the name of a shipped one is a path relative to the file.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, has unknown keys, or values out of range.
    pub fn read(path: &Path) -> Result<Self, HostError> {
        let text = shipped::read(path)?.text;
        let mut settings = Self::parse(&text)
            .map_err(|cause| HostError::Setting(format!("{}: {cause}", path.display())))?;
        if let (Some(model), Some(directory)) = (&mut settings.cost_model, path.parent())
            && CostModel::named(model)?.is_none()
        {
            *model = directory.join(&*model);
        }
        Ok(settings)
    }

    /// Parses a settings file; a `cost_model` stays as written.
    ///
    /// # Errors
    /// When it is not TOML, has unknown keys, or values out of range.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let settings: Self = toml::from_str(text)?;
        settings.check().map(|()| settings)
    }

    /// The number of processors of the machine.
    pub(crate) fn processors(&self) -> usize {
        let default = if self.deterministic { 1 } else { 2 };
        self.processors.unwrap_or(default)
    }

    /// # Errors
    /// When a value is out of range or does not fit another one.
    fn check(&self) -> Result<(), SettingsError> {
        if !(1024..=1 << 20).contains(&self.memory_mib) {
            return Err(SettingsError::Memory(self.memory_mib));
        }
        if let Some(other) = self.processors.filter(|given| ![1, 2, 4].contains(given)) {
            return Err(SettingsError::Processors(other));
        }
        let counts =
            |mib: &u32| self.deterministic && mib.is_power_of_two() && *mib <= MOST_CACHE_MIB;
        if let Some(mib) = self.llc_mib.filter(|mib| !counts(mib)) {
            return Err(SettingsError::Cache(mib));
        }
        if !self.deterministic && self.frequency == Frequency::Half {
            return Err(SettingsError::NoClock);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, HostError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("testbed.toml");
        std::fs::write(&path, text).unwrap();
        Settings::read(&path)
    }

    #[test]
    fn an_empty_file_is_a_deterministic_host_at_full_speed() {
        assert_eq!(read("").unwrap(), Settings::default());
        assert!(Settings::default().deterministic);
    }

    #[test]
    fn the_number_of_processors_follows_the_clock_unless_it_is_given() {
        for (text, processors) in [
            ("", 1),
            ("deterministic = false", 2),
            ("processors = 4", 4),
            ("deterministic = false\nprocessors = 1", 1),
        ] {
            assert_eq!(read(text).unwrap().processors(), processors, "{text}");
        }
    }

    #[test]
    fn half_the_frequency_makes_an_instruction_take_twice_as_long() {
        let settings = read("frequency = \"half\"").unwrap();
        assert_eq!(settings.frequency.instruction(), Nanoseconds(2));
        assert_eq!(settings.frequency.shift(), 1);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_file_and_the_key() {
        for (text, expected) in [
            ("memory_mib = 16", "memory_mib"),
            (
                "deterministic = false\nfrequency = \"half\"",
                "deterministic",
            ),
            ("frequency = \"third\"", "third"),
            ("timers = \"none\"", "none"),
            ("cores = 4", "cores"),
            ("processors = 3", "1, 2 or 4"),
            ("scheduler = \"fair\"", "fair"),
            ("llc_mib = 12", "power of two"),
            ("deterministic = false\nllc_mib = 8", "deterministic"),
        ] {
            let printed = read(text).unwrap_err().to_string();
            assert!(
                printed.contains(expected) && printed.contains("testbed.toml"),
                "{printed}"
            );
        }
    }

    #[test]
    fn a_cost_model_has_a_name_or_is_looked_for_beside_the_file() {
        let named = read("cost_model = \"genoa\"").unwrap().cost_model;
        assert_eq!(named, Some("genoa".into()));
        let model = read("cost_model = \"costs.toml\"").unwrap().cost_model;
        let model = model.unwrap();
        assert!(model.is_absolute() && model.ends_with("costs.toml"));
    }
}
