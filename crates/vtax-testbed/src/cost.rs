//! The cost model: what real hardware would have charged for what an emulated host counted.
//!
//! There, an instruction is a nanosecond and an exit, an interrupt, a cache miss cost nothing
//! beyond their instructions. A model, a small file, says what they cost in cycles, and what
//! cycles cost in watts. What comes of it is flagged `emulated` and names the model.

mod frequency;

use frequency::{AtFrequency, Slowdown};
use serde::Deserialize;
use std::fs;
use std::path::Path;
use vtax_host::HostError;
use vtax_lab::LabError;
use vtax_report::results::{Better, Metric, ResultsDir, Trial, TrialOutcome};
use vtax_units::{Base, Nanoseconds, Quantity, Source, Unit};

/// The model that vtax ships.
const SHIPPED: &str = include_str!("cost-model.toml");

/// How the facts of a trial name the model, and the length of an instruction.
const MODEL_FACT: &str = "cost.model";
const INSTRUCTION_FACT: &str = "testbed.instruction_ns";

/// A cost model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// Its name, which every figure of it carries.
    pub name: String,
    /// What hardware it describes.
    pub description: String,
    /// Cycles of each event.
    cycles: Cycles,
    /// What cycles cost.
    watts: Watts,
}

/// Cycles for each event, beyond the instructions that are executed anyway.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cycles {
    /// For each instruction itself.
    instruction: f64,
    vm_exit: f64,
    interrupt: f64,
    context_switch: f64,
    /// For each byte that crosses the target's device.
    copied_byte: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Watts {
    /// At rest.
    idle: f64,
    /// For each 10^9 cycles a second.
    per_gigahertz: f64,
    /// At full load by frequency: what a cycle costs at a lower one, in proportion.
    #[serde(default)]
    frequency: Vec<AtFrequency>,
}

impl CostModel {
    /// The model that vtax ships.
    ///
    /// # Errors
    /// Never with the file as it is; a test reads it.
    pub fn shipped() -> Result<Self, HostError> {
        Self::parse(SHIPPED, "the shipped cost model")
    }

    /// Reads a model.
    ///
    /// # Errors
    /// When it cannot be read, lacks a cost, or a cost is negative or not finite.
    pub fn read(path: &Path) -> Result<Self, HostError> {
        let text = fs::read_to_string(path).map_err(HostError::file("read", path))?;
        Self::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, origin: &str) -> Result<Self, HostError> {
        let model: Self = toml::from_str(text)
            .map_err(|cause| HostError::Setting(format!("{origin}: {cause}")))?;
        let Cycles {
            instruction,
            vm_exit,
            interrupt,
            context_switch,
            copied_byte,
        } = model.cycles;
        let costs = [
            ("cycles.instruction", instruction),
            ("cycles.vm_exit", vm_exit),
            ("cycles.interrupt", interrupt),
            ("cycles.context_switch", context_switch),
            ("cycles.copied_byte", copied_byte),
            ("watts.idle", model.watts.idle),
            ("watts.per_gigahertz", model.watts.per_gigahertz),
        ];
        for (name, cost) in costs {
            if !cost.is_finite() || cost < 0.0 {
                return Err(HostError::Setting(format!(
                    "{origin}: {name} = {cost} is not a cost: it must be 0 or more"
                )));
            }
        }
        for AtFrequency { mhz, watts } in &model.watts.frequency {
            if *mhz == 0 || !watts.is_finite() || *watts <= 0.0 {
                return Err(HostError::Setting(format!(
                    "{origin}: watts.frequency of {mhz} MHz and {watts} W: both must be more than 0"
                )));
            }
        }
        Ok(model)
    }

    /// Cycles a second of what was done for the target, and what could not be counted. Instructions
    /// are told apart by whom they were executed for; interrupts and context switches are not, so
    /// those of the load generator are in it.
    fn cycles_per_second(
        &self,
        trial: &Trial,
        instruction: Nanoseconds,
        slowdown: &Slowdown,
    ) -> Option<(f64, Vec<String>)> {
        let counted = |name: &str| trial.metrics.get(name).map(|metric| metric.quantity.value);
        let instructions = counted("cpu.cores")? * slowdown.pace / instruction.as_secs_f64();
        let mut cycles = instructions * self.cycles.instruction;
        let unknown = slowdown.unknown.iter();
        let mut left_out: Vec<_> = unknown.map(|mhz| format!("watts at {mhz} MHz")).collect();
        for (name, cost) in [
            ("kvm.exits.per_second", self.cycles.vm_exit),
            ("interrupts.per_second", self.cycles.interrupt),
            ("context_switches.per_second", self.cycles.context_switch),
            ("net.rx_bytes_per_second", self.cycles.copied_byte),
            ("net.tx_bytes_per_second", self.cycles.copied_byte),
        ] {
            match counted(name) {
                Some(count) => cycles += count * cost,
                None => left_out.push(name.to_owned()),
            }
        }
        Some((cycles, left_out))
    }
}

/// Adds what the model makes of each complete trial to the results, in the place of what another
/// model made: `model.cycles_per_second`, `model.power` and, where there is work,
/// `model.cycles_per_work` and `model.energy_per_work`.
///
/// # Errors
/// When the results cannot be read or written.
pub fn apply(
    results: &ResultsDir,
    model: &CostModel,
    instruction: Nanoseconds,
) -> Result<(), LabError> {
    for index in results.trial_indexes() {
        let mut trial = results.trial(index)?;
        if trial.outcome == TrialOutcome::Complete {
            charge(&mut trial, model, instruction);
            results.rewrite_trial(&trial)?;
        }
    }
    Ok(())
}

/// Adds what another model makes of results that were made in an emulated host.
///
/// # Errors
/// As [`apply`], and when they were not made in a deterministic one.
pub fn apply_again(results: &ResultsDir, model: &CostModel) -> Result<(), LabError> {
    let mut instruction = None;
    for index in results.trial_indexes() {
        let facts = results.trial(index)?.environment;
        instruction = instruction.or_else(|| facts.get(INSTRUCTION_FACT)?.parse().ok());
    }
    let instruction = instruction.filter(|length| *length > 0).ok_or_else(|| {
        LabError::Plan(format!(
            "{} was not made in a deterministic testbed: a cost model needs counted instructions",
            results.path().display()
        ))
    })?;
    apply(results, model, Nanoseconds(instruction))
}

/// Adds what the model makes of one trial.
pub(crate) fn charge(trial: &mut Trial, model: &CostModel, instruction: Nanoseconds) {
    let slowdown = Slowdown::of(trial, &model.watts.frequency);
    let counted = model.cycles_per_second(trial, instruction, &slowdown);
    let Some((cycles, left_out)) = counted else {
        return;
    };
    let watts = model.watts.idle + model.watts.per_gigahertz * slowdown.price * cycles / 1e9;
    let mut add = |name: &str, title: String, value: f64, unit: Unit| {
        let metric = Metric {
            quantity: Quantity::new(value, unit),
            source: Source::Emulated,
            better: Better::Lower,
            headline: false,
            title: format!("{title} (cost model {})", model.name),
        };
        trial.metrics.insert(name.to_owned(), metric);
    };
    let per_second = Unit::per(Base::Cycle, Base::Second);
    add(
        "model.cycles_per_second",
        "cycles spent for the target".into(),
        cycles,
        per_second,
    );
    add(
        "model.power",
        "power of a host that does only this".into(),
        watts,
        Unit::of(Base::Watt),
    );
    let seconds = trial
        .window
        .1
        .saturating_since(trial.window.0)
        .as_secs_f64();
    if let Some(work) = trial.work.as_ref().filter(|work| work.amount > 0.0) {
        let each = seconds / work.amount;
        add(
            "model.cycles_per_work",
            format!("cycles to {}", work.phrase),
            cycles * each,
            Unit::per(Base::Cycle, work.unit.base),
        );
        add(
            "model.energy_per_work",
            format!("energy to {}", work.phrase),
            watts * each,
            Unit::per(Base::Joule, work.unit.base),
        );
    }
    let mut facts = vec![
        (MODEL_FACT, format!("{}: {}", model.name, model.description)),
        (INSTRUCTION_FACT, instruction.0.to_string()),
    ];
    if !left_out.is_empty() {
        facts.push(("cost.not_counted", left_out.join(", ")));
    }
    for (key, value) in facts {
        trial.environment.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::tests::trial;

    #[test]
    fn the_shipped_model_can_be_read() {
        assert_eq!(CostModel::shipped().unwrap().name, "sandy-bridge");
    }

    #[test]
    fn every_event_costs_what_the_model_says() {
        let mut model = CostModel::shipped().unwrap();
        model.cycles = Cycles {
            instruction: 2.0,
            vm_exit: 100.0,
            interrupt: 10.0,
            context_switch: 1000.0,
            copied_byte: 0.5,
        };
        model.watts = Watts {
            idle: 5.0,
            per_gigahertz: 10.0,
            frequency: Vec::new(),
        };
        let mut trial = trial(
            "vm",
            &[
                ("cpu.cores", 0.25),
                ("kvm.exits.per_second", 7.0),
                ("interrupts.per_second", 11.0),
                ("context_switches.per_second", 13.0),
                ("net.rx_bytes_per_second", 4.0),
                ("net.tx_bytes_per_second", 2.0),
            ],
        );
        // An instruction of 2 ns: half as many in the same time.
        charge(&mut trial, &model, Nanoseconds(2));
        let events = 700.0 + 110.0 + 13_000.0 + 3.0;
        let value = |name: &str| trial.metrics[name].quantity.value;
        let cycles = 0.125e9 * 2.0 + events;
        assert!((value("model.cycles_per_second") - cycles).abs() < 1e-3);
        assert!((value("model.power") - (5.0 + cycles / 1e8)).abs() < 1e-9);
        let metric = &trial.metrics["model.power"];
        assert_eq!(metric.source, Source::Emulated);
        assert!(metric.title.contains("sandy-bridge"));
        assert_eq!(trial.environment[INSTRUCTION_FACT], "2");
        assert!(!trial.environment.contains_key("cost.not_counted"));
    }

    #[test]
    fn what_was_not_counted_is_named() {
        let mut trial = trial("vm", &[("cpu.cores", 0.25), ("interrupts.per_second", 1.0)]);
        charge(&mut trial, &CostModel::shipped().unwrap(), Nanoseconds(1));
        assert!(trial.environment["cost.not_counted"].contains("kvm.exits"));
    }

    #[test]
    fn a_lower_frequency_does_less_and_takes_less() {
        let power = |busy: [(&str, f64); 3]| {
            let mut trial = trial("vm", &[[("cpu.cores", 1.0)].as_slice(), &busy].concat());
            charge(&mut trial, &CostModel::shipped().unwrap(), Nanoseconds(1));
            let value = |name: &str| trial.metrics[name].quantity.value;
            assert!(!trial.environment["cost.not_counted"].contains("MHz"));
            (value("model.cycles_per_second"), value("model.power") - 6.5)
        };
        let at = |mhz: u64, busy| {
            let states = [1600, 1867, 2267];
            let names = [
                "frequency.1600_mhz.busy",
                "frequency.1867_mhz.busy",
                "frequency.2267_mhz.busy",
            ];
            let one = |index: usize| (names[index], if states[index] == mhz { busy } else { 0.0 });
            [one(0), one(1), one(2)]
        };
        let (most, full) = power(at(2267, 0.9));
        let (fewer, saving) = power(at(1600, 0.9));
        assert!((fewer / most - 1600.0 / 2267.0).abs() < 1e-9);
        assert!((saving / full - 45.0 / 80.0).abs() < 1e-9);
    }

    #[test]
    fn a_model_with_a_cost_that_is_none_is_refused() {
        for (old, new) in [
            ("idle = 6.5", "idle = -1"),
            ("vm_exit = 2000", "vm_exit = nan"),
            ("interrupt = 1000", "interupt = 1000"),
            ("copied_byte = 0.5", ""),
            ("mhz = 1600", "mhz = 0"),
            ("watts = 45", "watts = -45"),
        ] {
            let text = SHIPPED.replacen(old, new, 1);
            assert_ne!(text, SHIPPED);
            assert!(CostModel::parse(&text, "x").is_err(), "{new}");
        }
    }
}
