// SPDX-License-Identifier: Apache-2.0
//! The cost model: the cycles and energy of real hardware, from the counts of an emulated host.
//!
//! In an emulated host an instruction takes a nanosecond, and exits, interrupts and cache misses cost only their
//! instructions. A model is a small file with the cycles of each event and the watts of cycles. Its metrics are flagged
//! `simulated` and have the model's name in their titles.

#[cfg(test)]
mod fit;
mod frequency;
mod sleep;
mod variants;

use frequency::{AtFrequency, Slowdown};
use serde::Deserialize;
use sleep::Sleep;
use std::fs;
use std::path::Path;
pub use variants::modelled;
use vtax_core::{Base, Nanoseconds, Source, Unit, metric};
use vtax_host::HostError;
use vtax_lab::LabError;
use vtax_results::{Metric, ResultsDir, Trial, TrialOutcome, emulated};

/// The models that vtax ships: the default, then the others by age.
const SHIPPED: [&str; 8] = [
    include_str!("cost-models/sandy-bridge.toml"),
    include_str!("cost-models/sandy-bridge-sleep.toml"),
    include_str!("cost-models/nehalem.toml"),
    include_str!("cost-models/haswell-ep.toml"),
    include_str!("cost-models/skylake-sp.toml"),
    include_str!("cost-models/rome.toml"),
    include_str!("cost-models/ice-lake-sp.toml"),
    include_str!("cost-models/genoa.toml"),
];

/// The facts of a trial with the model and the events that were not counted.
const MODEL_FACT: &str = "cost.model";
const NOT_COUNTED_FACT: &str = "cost.not_counted";

/// The fact of a trial with the idle states that its gaps were charged by.
const SLEEP_FACT: &str = "cost.sleep";

/// The events that an emulated host counts only with a modelled cache.
const NOT_EMULATED: &str = "references to the last-level cache (not emulated without llc_mib)";

/// The reason why a model with idle states gives no watts.
const NOT_RECORDED: &str = "idle gaps (not recorded, so no watts)";

/// A cost model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// Its name, which is in the title of its metrics.
    pub name: String,
    /// The hardware that it describes.
    pub description: String,
    /// The numbers without a source.
    #[serde(default)]
    assumed: Vec<String>,
    /// Cycles of each event.
    cycles: Cycles,
    /// The power of cycles.
    watts: Watts,
    /// The idle states that idle gaps are charged by, in place of `watts.idle`.
    #[serde(default)]
    sleep: Option<Sleep>,
}

/// Cycles of each event, in addition to its instructions.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cycles {
    /// For each instruction itself.
    instruction: f64,
    vm_exit: f64,
    interrupt: f64,
    context_switch: f64,
    /// For each hypercall of a paravirtual domain and each switch of a processor to another domain, where Xen is traced. A
    /// model without them leaves these events out.
    #[serde(default)]
    hypercall: Option<f64>,
    #[serde(default)]
    domain_switch: Option<f64>,
    /// For each byte that crosses the target's device, where misses of the last-level cache are not counted.
    copied_byte: f64,
    /// For each miss of the last-level cache, where they are counted.
    llc_miss: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Watts {
    /// At rest.
    idle: f64,
    /// For each 10^9 cycles a second.
    per_gigahertz: f64,
    /// At full load by frequency, for the relative cost of a cycle at a lower frequency.
    #[serde(default)]
    frequency: Vec<AtFrequency>,
}

impl CostModel {
    /// All models that vtax ships; the first is the default.
    ///
    /// # Errors
    /// When a shipped model is invalid, which a test rules out.
    pub fn table() -> Result<Vec<Self>, HostError> {
        let parse = |text: &&str| Self::parse(text, "a shipped cost model");
        SHIPPED.iter().map(parse).collect()
    }

    /// The default model.
    ///
    /// # Errors
    /// As [`Self::table`].
    pub fn shipped() -> Result<Self, HostError> {
        let [first, ..] = SHIPPED;
        Self::parse(first, "the shipped cost model")
    }

    /// The shipped model of this name; `None` where there is none.
    ///
    /// # Errors
    /// As [`Self::table`].
    pub fn named(name: &Path) -> Result<Option<Self>, HostError> {
        let mut table = Self::table()?.into_iter();
        Ok(table.find(|model| name == Path::new(&model.name)))
    }

    /// The shipped model of this name, otherwise the model in this file.
    ///
    /// # Errors
    /// As [`Self::read`]. When neither exists, the error lists the valid names.
    pub fn find(name: &Path) -> Result<Self, HostError> {
        if let Some(model) = Self::named(name)? {
            return Ok(model);
        }
        if !name.exists() {
            let table = Self::table()?;
            let names: Vec<&str> = table.iter().map(|model| model.name.as_str()).collect();
            return Err(HostError::Setting(format!(
                "no cost model `{}`: it is no file, and vtax ships {}",
                name.display(),
                names.join(", ")
            )));
        }
        Self::read(name)
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
        let refused = |why: String| HostError::Setting(format!("{origin}: {why}"));
        let model: Self = toml::from_str(text).map_err(|cause| refused(cause.to_string()))?;
        match model.fault() {
            Some(fault) => Err(refused(fault)),
            None => Ok(model),
        }
    }

    /// Returns the reason why it is no model, if any.
    fn fault(&self) -> Option<String> {
        let costs = self.costs();
        let is_cost = |cost: f64| cost.is_finite() && cost >= 0.0;
        if let Some((name, cost)) = costs.iter().find(|(_, cost)| !is_cost(*cost)) {
            return Some(format!(
                "{name} = {cost} is not a cost: it must be 0 or more"
            ));
        }
        let states = self.sleep.iter().flat_map(Sleep::names);
        let known: Vec<&str> = costs.iter().map(|(name, _)| *name).chain(states).collect();
        if let Some(name) = (self.assumed.iter()).find(|name| !known.contains(&name.as_str())) {
            return Some(format!(
                "assumed = \"{name}\" is none of its costs: {}",
                costs.map(|(name, _)| name).join(", ")
            ));
        }
        let is_power = |of: &AtFrequency| of.mhz > 0 && of.watts.is_finite() && of.watts > 0.0;
        if let Some(AtFrequency { mhz, watts }) =
            self.watts.frequency.iter().find(|of| !is_power(of))
        {
            return Some(format!(
                "watts.frequency of {mhz} MHz and {watts} W: both must be more than 0"
            ));
        }
        self.sleep.as_ref().and_then(Sleep::fault)
    }

    /// Its numbers by name: cycles of each event, then watts.
    pub fn costs(&self) -> [(&'static str, f64); 10] {
        let mut model = self.clone();
        let numbers = model.numbers();
        numbers.map(|(name, number)| (name, number.copied().unwrap_or_default()))
    }

    /// The same, to be changed; `None` where it lacks one.
    fn numbers(&mut self) -> [(&'static str, Option<&mut f64>); 10] {
        let (cycles, watts) = (&mut self.cycles, &mut self.watts);
        [
            ("instruction", Some(&mut cycles.instruction)),
            ("vm_exit", Some(&mut cycles.vm_exit)),
            ("interrupt", Some(&mut cycles.interrupt)),
            ("context_switch", Some(&mut cycles.context_switch)),
            ("hypercall", cycles.hypercall.as_mut()),
            ("domain_switch", cycles.domain_switch.as_mut()),
            ("copied_byte", Some(&mut cycles.copied_byte)),
            ("llc_miss", Some(&mut cycles.llc_miss)),
            ("idle", Some(&mut watts.idle)),
            ("per_gigahertz", Some(&mut watts.per_gigahertz)),
        ]
    }

    /// Whether one of its numbers has no source.
    pub fn is_assumed(&self, cost: &str) -> bool {
        self.assumed.iter().any(|name| name == cost)
    }

    /// Cycles a second of the work for the target, and the names of events that could not be counted. Instructions are
    /// attributed to the task that they were executed for. Interrupts and context switches are not attributed, so the
    /// cycles include those of the load generator.
    fn cycles_per_second(
        &self,
        trial: &Trial,
        instruction: Nanoseconds,
        slowdown: &Slowdown,
    ) -> Option<(f64, Vec<String>)> {
        let counted = |of: &metric::Metric| Some(trial.metrics.get(of.name)?.quantity.value);
        let instructions = counted(metric::CPU_CORES)? * slowdown.pace / instruction.as_secs_f64();
        let mut cycles = instructions * self.cycles.instruction;
        let unknown = slowdown.unknown.iter();
        let mut left_out: Vec<_> = unknown.map(|mhz| format!("watts at {mhz} MHz")).collect();
        // The cycles of a copied byte are those of the lines that it misses.
        let copied_byte = match counted(metric::LLC_MISSES_PER_SECOND) {
            Some(misses) => {
                cycles += misses * self.cycles.llc_miss;
                0.0
            }
            None => {
                left_out.push(NOT_EMULATED.to_owned());
                self.cycles.copied_byte
            }
        };
        // On Xen the exits are those of its trace.
        let exits = [
            metric::KVM_EXITS_PER_SECOND,
            metric::XEN_VM_EXITS_PER_SECOND,
        ];
        let [kvm, _] = exits;
        let exits = exits.into_iter().find(|exits| counted(exits).is_some());
        let costs = &self.cycles;
        for (event, cost) in [
            (exits.unwrap_or(kvm), costs.vm_exit),
            (metric::INTERRUPTS_PER_SECOND, costs.interrupt),
            (metric::CONTEXT_SWITCHES_PER_SECOND, costs.context_switch),
            (metric::NET_RX_BYTES_PER_SECOND, copied_byte),
            (metric::NET_TX_BYTES_PER_SECOND, copied_byte),
        ] {
            match counted(event) {
                Some(count) => cycles += count * cost,
                None => left_out.push(event.name.to_owned()),
            }
        }
        for (event, cost) in [
            (metric::XEN_HYPERCALLS_PER_SECOND, costs.hypercall),
            (metric::XEN_DOMAIN_SWITCHES_PER_SECOND, costs.domain_switch),
        ] {
            match (counted(event), cost) {
                (Some(count), Some(cost)) => cycles += count * cost,
                (Some(_), None) => left_out.push(format!("{} (no price in the model)", event.name)),
                (None, _) if trial.treatment.platform_kind == "xen" => {
                    left_out.push(event.name.to_owned());
                }
                (None, _) => {}
            }
        }
        Some((cycles, left_out))
    }
}

/// Recomputes the metrics of each complete trial of an emulated host with this model. All trials are read before the
/// first is written.
///
/// # Errors
/// When the results cannot be read or written, hold no complete trial, or were not made in a
/// deterministic emulated host.
pub fn apply_again(results: &ResultsDir, model: &CostModel) -> Result<(), LabError> {
    let mut trials = results.trials().collect::<Result<Vec<Trial>, _>>()?;
    trials.retain(|trial| trial.outcome == TrialOutcome::Complete);
    if trials.is_empty() {
        return Err(LabError::Plan(format!(
            "{} has no complete trial: there is nothing to compute again",
            results.path().display()
        )));
    }
    let length = |trial: &Trial| -> Option<u64> {
        let length = trial.environment.get(emulated::INSTRUCTION_NS)?;
        length.parse().ok().filter(|length| *length > 0)
    };
    // All trials of a run have the same settings; the record of a trial may lack the duration of an instruction.
    let known = trials.iter().find_map(length).ok_or_else(|| {
        LabError::Plan(format!(
            "{} was not made in a deterministic testbed: a cost model needs counted instructions",
            results.path().display()
        ))
    })?;
    for trial in &mut trials {
        let length = length(trial).unwrap_or(known);
        charge(trial, model, Nanoseconds(length));
    }
    for trial in &trials {
        results.rewrite_trial(trial)?;
    }
    Ok(())
}

/// Replaces the model metrics of one trial: `model.cycles_per_second`, `model.power` and, where there is work,
/// `model.cycles_per_work` and `model.energy_per_work`. Also replaces the facts about the model.
pub(crate) fn charge(trial: &mut Trial, model: &CostModel, instruction: Nanoseconds) {
    trial
        .metrics
        .retain(|name, _| metric::MODEL.part(name).is_none());
    for fact in [MODEL_FACT, NOT_COUNTED_FACT, SLEEP_FACT] {
        trial.environment.remove(fact);
    }
    let length = instruction.0.to_string();
    keep(trial, emulated::INSTRUCTION_NS, length);
    let slowdown = Slowdown::from_trial(trial, &model.watts.frequency);
    let counted = model.cycles_per_second(trial, instruction, &slowdown);
    let Some((cycles, mut left_out)) = counted else {
        return;
    };
    let rest = model.sleep.as_ref().map(|sleep| sleep.rest(trial));
    if matches!(rest, Some(None)) {
        left_out.push(NOT_RECORDED.to_owned());
    }
    let idle = match &rest {
        Some(rest) => rest.as_ref().map(|rest| rest.watts),
        None => Some(model.watts.idle),
    };
    let watts = idle.map(|idle| idle + model.watts.per_gigahertz * slowdown.price * cycles / 1e9);
    let (begin, end) = trial.window;
    let seconds = end.saturating_since(begin).as_secs_f64();
    let mut add = |declared: &metric::Metric, about: &str, given: Unit, value: f64| {
        let mut metric = Metric::new(declared, about, given, value, Source::Simulated);
        metric
            .title
            .push_str(&format!(" (cost model {})", model.name));
        trial.metrics.insert(declared.name.to_owned(), metric);
    };
    let none = Unit::from_base(Base::One);
    add(metric::MODEL_CYCLES_PER_SECOND, "", none, cycles);
    if let Some(watts) = watts {
        add(metric::MODEL_POWER, "", none, watts);
    }
    if let Some(work) = trial.work.as_ref().filter(|work| work.amount > 0.0) {
        let each = seconds / work.amount;
        let mut add = |declared, value| add(declared, &work.phrase, work.unit, value);
        add(metric::MODEL_CYCLES_PER_WORK, cycles * each);
        if let Some(watts) = watts {
            add(metric::MODEL_ENERGY_PER_WORK, watts * each);
        }
    }
    if let Some(rest) = rest.flatten() {
        keep(trial, SLEEP_FACT, rest.to_string());
    }
    let about = format!("{}: {}", model.name, model.description);
    keep(trial, MODEL_FACT, about);
    keep(trial, NOT_COUNTED_FACT, left_out.join(", "));
}

/// Stores a fact about a trial.
pub(crate) fn keep(trial: &mut Trial, fact: &str, value: String) {
    trial.environment.insert(fact.to_owned(), value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::tests::trial;
    use serde_json::json;
    use vtax_results::{FORMAT, IdleBin, IdleGaps, RunInfo, Scheduled};

    /// Results with these trials.
    fn results(folder: &Path, trials: &[Trial]) -> ResultsDir {
        let run = RunInfo {
            format: FORMAT,
            name: "test".into(),
            description: String::new(),
            seed: 1,
            profile: "full".into(),
            place: "testbed:kvm".into(),
            started: "2026-01-01T00:00:00Z".into(),
            plan_sha256: String::new(),
            treatments: vec![trial("vm", &[]).treatment],
            schedule: vec![
                Scheduled {
                    treatment: 0,
                    block: 1
                };
                trials.len().max(1)
            ],
            minimum_effect: 0.02,
            extended: false,
        };
        let results = ResultsDir::create(&folder.join("run"), &run, "", &json!({})).unwrap();
        for (index, trial) in (0..).zip(trials) {
            let writer = results.trial_writer(index).unwrap();
            let trial = Trial {
                index,
                ..trial.clone()
            };
            writer.finish(trial).unwrap();
        }
        results
    }

    #[test]
    fn results_are_charged_again_all_or_none() {
        let mut first = trial("vm", &[("cpu.cores", 0.25)]);
        charge(&mut first, &CostModel::shipped().unwrap(), Nanoseconds(2));
        // The record of a trial may lack the duration of an instruction.
        let second = trial("vm", &[("cpu.cores", 0.5)]);
        let mut failed = trial("vm", &[]);
        failed.outcome = TrialOutcome::Failed("stuck".into());
        let folder = tempfile::tempdir().unwrap();
        let results = results(folder.path(), &[first, second, failed]);
        let genoa = CostModel::find(Path::new("genoa")).unwrap();
        apply_again(&results, &genoa).unwrap();
        for (index, cycles) in [(0, 0.125e9), (1, 0.25e9)] {
            let trial = results.trial(index).unwrap();
            let found = trial.metrics["model.cycles_per_second"].clone();
            assert!((found.quantity.value / cycles - 1.0_f64).abs() < 1e-9);
            assert!(found.title.contains("genoa"), "{}", found.title);
            assert!(trial.environment[MODEL_FACT].starts_with("genoa: "));
        }
        let before = results.trial(0).unwrap();
        std::fs::write(results.trial_path(1).join("trial.json"), "{\"ind").unwrap();
        let printed = apply_again(&results, &CostModel::shipped().unwrap());
        let printed = printed.unwrap_err().to_string();
        assert!(
            printed.contains("trial.json") && printed.contains("corrupted"),
            "{printed}"
        );
        assert_eq!(results.trial(0).unwrap(), before);
    }

    #[test]
    fn results_without_counted_instructions_cannot_be_charged() {
        for (trials, expected) in [
            (
                vec![trial("vm", &[("cpu.cores", 0.5)])],
                "deterministic testbed",
            ),
            (Vec::new(), "no complete trial"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let results = results(folder.path(), &trials);
            let printed = apply_again(&results, &CostModel::shipped().unwrap());
            let printed = printed.unwrap_err().to_string();
            assert!(printed.contains(expected), "{printed}");
        }
    }

    #[test]
    fn every_shipped_model_can_be_read_and_found_by_its_name() {
        let table = CostModel::table().unwrap();
        assert_eq!(table.len(), SHIPPED.len());
        assert_eq!(table[0], CostModel::shipped().unwrap());
        assert_eq!(table[0].name, "sandy-bridge");
        for model in &table {
            assert_eq!(CostModel::find(Path::new(&model.name)).unwrap(), *model);
        }
        let printed = CostModel::find(Path::new("nowhere.toml")).unwrap_err();
        let printed = printed.to_string();
        assert!(
            printed.contains("nowhere.toml") && printed.contains("genoa"),
            "{printed}"
        );
    }

    #[test]
    fn watts_of_a_shipped_model_are_those_of_its_data_sheet_at_full_load() {
        // TDP, and the 10^9 cycles a second of all cores.
        for (name, tdp, cycles) in [
            ("sandy-bridge", 95.0, 4.0 * 3.1),
            ("sandy-bridge-sleep", 95.0, 4.0 * 3.1),
            ("nehalem", 95.0, 4.0 * 2.93),
            ("haswell-ep", 95.0, 8.0 * 2.6),
            ("skylake-sp", 165.0, 28.0 * 2.1),
            ("rome", 225.0, 64.0 * 2.25),
            ("ice-lake-sp", 270.0, 40.0 * 2.3),
            ("genoa", 210.0, 32.0 * 2.7),
        ] {
            let model = CostModel::find(Path::new(name)).unwrap();
            let watts = model.watts;
            let awake = model.sleep.map_or(watts.idle, |sleep| sleep.awake());
            let full = awake + watts.per_gigahertz * cycles;
            assert!((full / tdp - 1.0_f64).abs() < 0.01, "{name}: {full}");
        }
    }

    #[test]
    fn every_event_costs_what_the_model_says() {
        let mut model = CostModel::shipped().unwrap();
        model.cycles = Cycles {
            instruction: 2.0,
            vm_exit: 100.0,
            interrupt: 10.0,
            context_switch: 1000.0,
            hypercall: Some(20.0),
            domain_switch: Some(500.0),
            copied_byte: 0.5,
            llc_miss: 3.0,
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
        // An instruction of 2 ns gives half as many in the same time.
        charge(&mut trial, &model, Nanoseconds(2));
        let events = 700.0 + 110.0 + 13_000.0 + 3.0;
        let value = |name: &str| trial.metrics[name].quantity.value;
        let cycles = 0.125e9 * 2.0 + events;
        assert!((value("model.cycles_per_second") - cycles).abs() < 1e-3);
        assert!((value("model.power") - (5.0 + cycles / 1e8)).abs() < 1e-9);
        let metric = &trial.metrics["model.power"];
        assert_eq!(metric.source, Source::Simulated);
        assert!(metric.title.contains("sandy-bridge"));
        assert_eq!(trial.environment[emulated::INSTRUCTION_NS], "2");
        assert_eq!(trial.environment[NOT_COUNTED_FACT], NOT_EMULATED);
    }

    #[test]
    fn events_of_xens_trace_have_prices_and_without_prices_or_a_trace_are_named() {
        let mut model = CostModel::shipped().unwrap();
        let hypercalls = (metric::XEN_HYPERCALLS_PER_SECOND.name, 1000.0);
        let switches = (metric::XEN_DOMAIN_SWITCHES_PER_SECOND.name, 100.0);
        let exits = (metric::XEN_VM_EXITS_PER_SECOND.name, 10.0);
        let charged = |model: &CostModel, metrics: &[(&str, f64)]| {
            let mut trial = trial("vm", &[&[("cpu.cores", 0.0)], metrics].concat());
            trial.treatment.platform_kind = "xen".to_owned();
            charge(&mut trial, model, Nanoseconds(1));
            let cycles = trial.metrics["model.cycles_per_second"].quantity.value;
            (cycles, trial.environment[NOT_COUNTED_FACT].clone())
        };
        let (cycles, left_out) = charged(&model, &[hypercalls, switches, exits]);
        let prices = model.cycles;
        let expected = 1000.0 * prices.hypercall.unwrap()
            + 100.0 * prices.domain_switch.unwrap()
            + 10.0 * prices.vm_exit;
        assert!((cycles - expected).abs() < 1e-6, "{cycles} {expected}");
        assert!(
            !left_out.contains("xen.") && !left_out.contains("kvm."),
            "{left_out}"
        );

        let (cycles, left_out) = charged(&model, &[]);
        assert!(
            cycles.abs() < 1e-9
                && left_out.contains("kvm.exits")
                && left_out.contains(hypercalls.0)
        );

        let text = SHIPPED[0]
            .lines()
            .filter(|line| !line.starts_with("hypercall =") && !line.starts_with("domain_switch ="))
            .map(|line| line.replace(", \"hypercall\", \"domain_switch\"", "") + "\n")
            .collect::<String>();
        model = CostModel::parse(&text, "a model without prices of Xen").unwrap();
        let (cycles, left_out) = charged(&model, &[hypercalls]);
        assert!(
            cycles.abs() < 1e-9 && left_out.contains("no price"),
            "{cycles} {left_out}"
        );
    }

    #[test]
    fn what_was_not_counted_is_named() {
        let mut trial = trial("vm", &[("cpu.cores", 0.25), ("interrupts.per_second", 1.0)]);
        charge(&mut trial, &CostModel::shipped().unwrap(), Nanoseconds(1));
        let not_counted = &trial.environment[NOT_COUNTED_FACT];
        assert!(not_counted.contains("kvm.exits") && not_counted.contains(NOT_EMULATED));
    }

    #[test]
    fn a_counted_miss_costs_its_cycles_in_place_of_those_of_copied_bytes() {
        let model = CostModel::shipped().unwrap();
        let cycles = |metrics: &[(&str, f64)]| {
            let mut trial = trial("vm", metrics);
            charge(&mut trial, &model, Nanoseconds(1));
            let not_counted = trial.environment[NOT_COUNTED_FACT].contains(NOT_EMULATED);
            let cycles = trial.metrics["model.cycles_per_second"].quantity.value;
            (cycles, not_counted)
        };
        let none = ("cpu.cores", 0.0);
        let received = ("net.rx_bytes_per_second", 1e6);
        let misses = (metric::LLC_MISSES_PER_SECOND.name, 1000.0);
        assert_eq!(cycles(&[none, received]), (0.5e6, true));
        let (priced, not_counted) = cycles(&[none, received, misses]);
        assert!(!not_counted);
        assert!((priced - 1000.0 * model.cycles.llc_miss).abs() < 1e-6);
    }

    #[test]
    fn idle_gaps_are_charged_by_a_model_with_idle_states_and_their_absence_is_named() {
        let model = CostModel::find(Path::new("sandy-bridge-sleep")).unwrap();
        let mut without = trial("vm", &[("cpu.cores", 0.0)]);
        charge(&mut without, &model, Nanoseconds(1));
        assert!(!without.metrics.contains_key("model.power"));
        assert!(without.metrics.contains_key("model.cycles_per_second"));
        assert!(without.environment[NOT_COUNTED_FACT].contains(NOT_RECORDED));

        let mut asleep = trial("vm", &[("cpu.cores", 0.0)]);
        let bin = IdleBin {
            from_us: 1 << 19,
            gaps: 1,
            seconds: 1.0,
        };
        asleep.observation.idle_gaps = vec![IdleGaps {
            processor: 0,
            bins: vec![bin],
        }];
        charge(&mut asleep, &model, Nanoseconds(1));
        let watts = asleep.metrics["model.power"].quantity.value;
        assert!((watts - model.watts.idle / 4.0).abs() < 1e-9, "{watts}");
        assert!(asleep.environment[SLEEP_FACT].contains("C6 100 %"));
        // Another model says nothing of idle states.
        charge(&mut asleep, &CostModel::shipped().unwrap(), Nanoseconds(1));
        assert!(!asleep.environment.contains_key(SLEEP_FACT));
    }

    #[test]
    fn another_model_replaces_all_of_the_first() {
        let find = |name: &str| CostModel::find(Path::new(name)).unwrap();
        let counted = trial("vm", &[("cpu.cores", 0.25), ("kvm.exits.per_second", 9.0)]);
        let mut once = counted.clone();
        charge(&mut once, &find("genoa"), Nanoseconds(2));
        let mut again = counted;
        charge(&mut again, &find("nehalem"), Nanoseconds(2));
        let stale = again.metrics["model.power"].clone();
        again.metrics.insert("model.of_another_time".into(), stale);
        charge(&mut again, &find("genoa"), Nanoseconds(2));
        assert_eq!(again, once);
        // A trial without the needed counts keeps no metrics of an earlier model.
        again.metrics.remove("cpu.cores");
        charge(&mut again, &find("genoa"), Nanoseconds(2));
        assert!(!again.environment.contains_key(MODEL_FACT));
        assert!(again.metrics.keys().all(|name| !name.starts_with("model.")));
    }

    #[test]
    fn a_lower_frequency_does_less_and_takes_less() {
        let power = |busy: [(&str, f64); 4]| {
            let mut trial = trial("vm", &[[("cpu.cores", 1.0)].as_slice(), &busy].concat());
            charge(&mut trial, &CostModel::shipped().unwrap(), Nanoseconds(1));
            let value = |name: &str| trial.metrics[name].quantity.value;
            assert!(!trial.environment["cost.not_counted"].contains("MHz"));
            (value("model.cycles_per_second"), value("model.power") - 6.5)
        };
        let at = |mhz: u64, busy| {
            let states = [1600, 1867, 2267, 2533];
            let names = [
                "frequency.1600_mhz.busy",
                "frequency.1867_mhz.busy",
                "frequency.2267_mhz.busy",
                "frequency.2533_mhz.busy",
            ];
            let one = |index: usize| (names[index], if states[index] == mhz { busy } else { 0.0 });
            [one(0), one(1), one(2), one(3)]
        };
        let (most, full) = power(at(2533, 0.9));
        let (fewer, saving) = power(at(1600, 0.9));
        assert!((fewer / most - 1600.0 / 2533.0).abs() < 1e-9);
        assert!((saving / full - 45.0 / 95.0).abs() < 1e-9);
    }

    #[test]
    fn a_model_with_a_cost_that_is_none_is_refused() {
        for (old, new) in [
            ("idle = 6.5", "idle = -1"),
            ("vm_exit = 2000", "vm_exit = nan"),
            ("interrupt = 1000", "interupt = 1000"),
            ("copied_byte = 0.5", ""),
            ("assumed = [\"instruction\"", "assumed = [\"instructions\""),
            ("mhz = 1600", "mhz = 0"),
            ("watts = 45", "watts = -45"),
        ] {
            let text = SHIPPED[0].replacen(old, new, 1);
            assert_ne!(text, SHIPPED[0]);
            assert!(CostModel::parse(&text, "x").is_err(), "{new}");
        }
    }
}
