// SPDX-License-Identifier: Apache-2.0
//! `vtax testbed`, and `vtax run --place testbed:…`.

use super::{json, plan};
use crate::Outcome;
use crate::cli::{PlaceArgs, TestbedCommand, TestbedPart};
use crate::exit::NeedsRoot;
use crate::output::outln;
use crate::progress::{self, in_words, note};
use rustix::process::geteuid;
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;
use vtax_core::{counted, metric};
use vtax_host::HostError;
use vtax_host::signals::{Signals, end_with_reader};
use vtax_lab::LabError;
use vtax_lab::place::{Hypervisor, Place};
use vtax_lab::plan::{Catalogue, Plan, Shard, treatments};
use vtax_lab::run::{Event, PlanTrials, Planned, Progress, RunSummary, default_state_dir};
use vtax_report::analysis::Analysis;
use vtax_results::ResultsDir;
use vtax_results::numbers::estimate;
use vtax_results::text::clean;
use vtax_testbed::cost::{self, CostModel};
use vtax_testbed::emulator;
use vtax_testbed::guard::{Counts, TOLERANCE};
use vtax_testbed::{PlanRun, Settings};

pub fn execute(command: TestbedCommand) -> Outcome {
    match command {
        TestbedCommand::Build { part, .. } => build(part),
        TestbedCommand::Shell {
            hypervisor,
            testbed,
            ..
        } => shell(hypervisor, testbed.as_deref()),
        TestbedCommand::List(format) => list(format.is_json()),
        TestbedCommand::Rm { part } => remove(part),
        TestbedCommand::Cost {
            results: Some(results),
            model,
            ..
        } => {
            let model = read_model(model.as_deref())?;
            cost::apply_again(&ResultsDir::open(&results)?, &model)?;
            end_with_reader()?;
            let analysis = super::report::show(std::slice::from_ref(&results))?;
            list_modelled(&analysis, &model)
        }
        TestbedCommand::Cost { results: None, .. } => list_models(),
        TestbedCommand::Guard {
            plan,
            counts,
            accept_counts,
            ..
        } => guard(&plan, &counts, accept_counts),
    }
}

/// Checks that an image of a host is there, or that this process may build it.
///
/// # Errors
/// When it may not; with the command to type.
pub fn check_root(hypervisor: Hypervisor) -> Outcome {
    if !geteuid().is_root() && vtax_testbed::cached(hypervisor)?.is_none() {
        let words = ["testbed", "build", &hypervisor.to_string()].map(OsString::from);
        return Err(
            NeedsRoot::for_arguments(words, "the image of the emulated host is built").into(),
        );
    }
    Ok(())
}

fn build(part: TestbedPart) -> Outcome {
    let began = Instant::now();
    let what = match part {
        TestbedPart::Host(hypervisor) => {
            check_root(hypervisor)?;
            vtax_testbed::build(hypervisor, &mut note)?;
            format!("testbed:{hypervisor}")
        }
        TestbedPart::Qemu => emulator::build(&mut note)?.display().to_string(),
    };
    end_with_reader()?;
    outln!("{what} is ready, {}", in_words(began.elapsed()))?;
    Ok(())
}

fn shell(hypervisor: Hypervisor, file: Option<&Path>) -> Outcome {
    let settings = read_settings(file)?;
    check_root(hypervisor)?;
    let host = vtax_testbed::ready(hypervisor, &mut note)?;
    Ok(vtax_testbed::shell(&host, &settings)?)
}

fn list(as_json: bool) -> Outcome {
    let kept = vtax_testbed::list()?;
    let built = emulator::list()?;
    end_with_reader()?;
    if as_json {
        let hosts = kept.iter().map(|host| {
            json!({
                "hypervisor": host.hypervisor.to_string(),
                "bytes": host.bytes,
                "path": host.path,
                "is_current": host.is_current,
            })
        });
        let emulators = built
            .iter()
            .map(|built| json!({ "qemu": built.path, "is_current": built.is_current }));
        return json(&hosts.chain(emulators).collect::<Vec<_>>());
    }
    if kept.is_empty() {
        outln!("no testbed is built: `vtax testbed build kvm` builds one")?;
    }
    for host in kept {
        outln!(
            "{:4}  {:5} MiB  {}{}",
            host.hypervisor,
            host.bytes >> 20,
            host.path.display(),
            earlier(host.is_current)
        )?;
    }
    for built in built {
        let path = built.path.display();
        outln!("qemu             {path}{}", earlier(built.is_current))?;
    }
    Ok(())
}

/// What the list says of one that is not of this vtax.
fn earlier(is_current: bool) -> &'static str {
    if is_current {
        ""
    } else {
        "  (of an earlier recipe)"
    }
}

fn remove(part: TestbedPart) -> Outcome {
    let (count, what) = match part {
        TestbedPart::Host(hypervisor) => {
            let removed = vtax_testbed::remove(hypervisor)?;
            let mut left = vtax_testbed::list()?.into_iter();
            if removed.is_empty() && left.any(|host| host.hypervisor == hypervisor) {
                NeedsRoot::check("the image is in the cache of root")?;
            }
            let bytes: u64 = removed.iter().map(|host| host.bytes).sum();
            let images = counted(removed.len(), "image");
            (images, format!(", {} MiB", bytes >> 20))
        }
        TestbedPart::Qemu => (counted(emulator::remove()?.len(), "QEMU"), String::new()),
    };
    end_with_reader()?;
    outln!("{count} removed{what}")?;
    Ok(())
}

fn guard(path: &Path, counts: &Path, accept_counts: bool) -> Outcome {
    let catalogue = Catalogue::standard();
    let (plan, text) = plan::read(path, false, &catalogue)?;
    plan.check_place(&Place::Testbed(Hypervisor::Kvm))?;
    check_root(Hypervisor::Kvm)?;
    // The directory has a random name, and no other user can replace it.
    let scratch = tempfile::Builder::new()
        .prefix("vtax-guard-")
        .tempdir()
        .map_err(HostError::file("create", std::env::temp_dir()))?;
    let directory = scratch.path().join("results");
    let signals = Signals::install()?;
    let treatments = treatments(&plan, &catalogue);
    let inside = Inside {
        hypervisor: Hypervisor::Kvm,
        settings: None,
        command: "run",
        trials: &Planned {
            plan: &plan,
            text: &text,
            folder: &plan::folder_of(path),
            treatments: &treatments,
            catalogue: &catalogue,
        },
        results: directory.clone(),
        shard: None,
        jobs: None,
    };
    let mut progress = progress::for_people(&signals);
    let ended = inside.run(&signals, progress.as_mut());
    drop(progress);
    let found = ended.and_then(|_| Counts::from_results(&ResultsDir::open(&directory)?));
    // Only the counts of the run are used.
    drop(scratch);
    let found = found?;
    end_with_reader()?;
    if accept_counts {
        found.write(counts)?;
        outln!(
            "{} written to {}; commit it",
            counted(found.len(), "count"),
            counts.display()
        )?;
        return Ok(());
    }
    let moved = found.moved(&Counts::read(counts)?);
    if moved.is_empty() {
        outln!(
            "within {} % of {}: {}",
            TOLERANCE * 100.0,
            counts.display(),
            counted(found.len(), "count")
        )?;
        return Ok(());
    }
    for line in &moved {
        outln!("{line}")?;
    }
    Err(format!(
        "{} of {} moved by more than {} %; if that is wanted, `vtax testbed guard --accept-counts` and commit {}",
        moved.len(),
        counted(found.len(), "count"),
        TOLERANCE * 100.0,
        counts.display()
    )
    .into())
}

/// A plan that is to run in a testbed.
pub struct Inside<'a> {
    pub hypervisor: Hypervisor,
    /// The file of the testbed's settings.
    pub settings: Option<&'a Path>,
    /// The vtax command that runs the plan.
    pub command: &'a str,
    pub trials: &'a dyn PlanTrials,
    pub results: PathBuf,
    pub shard: Option<Shard>,
    /// The number of emulated hosts at the same time.
    pub jobs: Option<usize>,
}

impl Inside<'_> {
    pub fn run(
        self,
        signals: &Signals,
        progress: &mut dyn Progress,
    ) -> Result<RunSummary, LabError> {
        let settings = read_settings(self.settings)?;
        let cost_model = read_model(settings.cost_model.as_deref())?;
        let mut tell = |line: &str| {
            progress.event(Event::Note {
                message: line.to_owned(),
            });
        };
        let host = vtax_testbed::ready(self.hypervisor, &mut tell)?;
        signals.check()?;
        tell(
            "each trial has an emulated host of its own, whose clock is slower than this machine's",
        );
        let run = PlanRun {
            trials: self.trials,
            host: &host,
            settings: &settings,
            cost_model: &cost_model,
            binary: PathBuf::from("/proc/self/exe"),
            command: self.command,
            results: self.results,
            state_dir: default_state_dir(),
            shard: self.shard.clone(),
            jobs: self.jobs,
        };
        vtax_testbed::run_plan(&run, signals, progress)
    }
}

/// Whether a repetition of a trial would give the same results: in a deterministic testbed.
///
/// # Errors
/// When the settings of the testbed cannot be read.
pub fn repeats_exactly(at: &PlaceArgs) -> Result<bool, HostError> {
    match at.place {
        Place::Testbed(_) => Ok(read_settings(at.testbed.as_deref())?.deterministic),
        Place::Local | Place::Ssh(_) => Ok(false),
    }
}

/// Reduces a plan to one trial of each treatment where repetitions repeat exactly.
///
/// # Errors
/// As [`repeats_exactly`].
pub fn leave_out_repetitions(
    plan: &mut Plan,
    at: &PlaceArgs,
    progress: &mut dyn Progress,
) -> Result<(), HostError> {
    if repeats_exactly(at)? && plan.without_repetitions() > 0 {
        let message = "one trial of each treatment: a repetition gives the same numbers here; `draws = N` in the plan, in place of `repetitions`, varies the timing".to_owned();
        progress.event(Event::Note { message });
    }
    Ok(())
}

fn read_settings(file: Option<&Path>) -> Result<Settings, HostError> {
    file.map_or_else(|| Ok(Settings::default()), Settings::read)
}

fn read_model(name: Option<&Path>) -> Result<CostModel, HostError> {
    name.map_or_else(CostModel::shipped, CostModel::find)
}

/// Prints what the model computes of each treatment.
fn list_modelled(analysis: &Analysis, model: &CostModel) -> Outcome {
    outln!("\nby the cost model {}:", model.name)?;
    for summary in &analysis.treatments {
        outln!("  {}", clean(&summary.treatment.label))?;
        for metric in &summary.metrics {
            if metric::MODEL.part(&metric.name).is_none() {
                continue;
            }
            let n = metric.description.n;
            let mean = estimate(metric.description.mean, metric.interval, metric.unit);
            outln!("    {:26}{} (n = {n})", metric.name, mean.line())?;
        }
    }
    Ok(())
}

/// Prints the shipped cost models, a column for each of their numbers.
fn list_models() -> Outcome {
    let models = CostModel::table()?;
    end_with_reader()?;
    for (place, model) in models.iter().enumerate() {
        if place == 0 {
            let names = model.costs().map(|(name, _)| format!("{name:>16}"));
            outln!("{:20}{}", "cost model", names.concat())?;
        }
        let numbers = model.costs().map(|(name, cost)| {
            let sign = if model.is_assumed(name) { "~" } else { "" };
            format!("{:>16}", format!("{sign}{cost}"))
        });
        outln!("{:20}{}", model.name, numbers.concat())?;
    }
    outln!()?;
    for model in &models {
        outln!("{:20}{}", model.name, model.description)?;
    }
    outln!(
        "\ncycles for each event beyond its instructions; watts at rest, and for each 10^9 cycles a second; ~ assumed"
    )?;
    Ok(())
}
