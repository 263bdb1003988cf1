// SPDX-License-Identifier: Apache-2.0
//! `vtax run` and `vtax restore`.

use super::charge::CAP;
use super::{GatesNotPassed, NothingCounts, dry_run, json, one_liner, plan, report, testbed};
use crate::Outcome;
use crate::cli::{PlaceArgs, PlanRunArgs, RestoreArgs, RunArgs};
use crate::exit::NeedsRoot;
use crate::output::{fail, outln};
use crate::progress::{self, in_words, note};
use rustix::process::geteuid;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use vtax_core::{Source, counted};
use vtax_guest::image::{self, Recipe};
use vtax_host::cell::requirements;
use vtax_host::roots::Roots;
use vtax_host::signals::{Signals, end_with_reader};
use vtax_host::{HostError, cell, kernel_file, rootless};
use vtax_lab::LabError;
use vtax_lab::place::{Line, Place, SshRun, run_over_ssh};
use vtax_lab::plan::{Catalogue, Plan, PlannedTreatment, Shard, StopRule, Variation, treatments};
use vtax_lab::run::{
    self, Event, Known, Knows, OwnInstruments, Planned, Progress, RunOptions, RunSummary,
};
use vtax_report::analysis::Analysis;
use vtax_report::gate::{self, Gate, GateError};
use vtax_report::pipeline;
use vtax_results::ResultsDir;
use vtax_results::limit::Until;
use vtax_testbed::Speed;

/// Checks that this process may make the guests of treatments, and the images of those that it lacks.
///
/// # Errors
/// When it may not; with the command to type.
pub fn check_root(at: &PlaceArgs, planned: &Planned<'_>) -> Outcome {
    if geteuid().is_root() {
        return Ok(());
    }
    match at.place {
        Place::Ssh(_) => Ok(()),
        Place::Testbed(hypervisor) => {
            testbed::check_root(hypervisor)?;
            let all = planned.treatments.iter();
            let recipes: BTreeSet<Recipe> = all.flat_map(|one| planned.recipes_of(one)).collect();
            for recipe in recipes {
                if image::cached(&recipe)?.is_none() {
                    NeedsRoot::check("the image of guests with these packages is built")?;
                }
            }
            Ok(())
        }
        Place::Local => {
            let catalogue = planned.catalogue;
            let mut guests = planned.treatments.iter().flat_map(PlannedTreatment::guests);
            if !guests.all(|guest| catalogue.is_external(guest.platform_kind, guest.settings)) {
                enter_without_root()?;
            }
            Ok(())
        }
    }
}

/// Makes this process able to create cells and images, where it is not: as an ordinary user.
fn enter_without_root() -> Result<(), HostError> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if requirements::lacking(&status)
        .iter()
        .all(|capability| !capability.needed)
    {
        return Ok(());
    }
    rootless::enter()?;
    note(rootless::SCOPE);
    if let Some(ids) = rootless::ids() {
        note(&ids.to_string());
    }
    Ok(())
}

pub fn run(arguments: RunArgs) -> Outcome {
    let RunArgs {
        run: mut arguments,
        shard,
        part,
        fleet: _,
        command,
        dry_run,
        gates,
        summary,
    } = arguments;
    let catalogue = Catalogue::standard();
    let here = PathBuf::from(".");
    let (mut plan, text, folder) = match one_liner::plan(&command, rootless::is_root())? {
        Some(text) => {
            let plan = Plan::read("the command line", &text, &catalogue)
                .map_err(|wrong| one_liner::faults(&text, &wrong))?;
            arguments
                .results
                .get_or_insert_with(|| one_liner::free(&plan.name));
            (plan, text, here)
        }
        None => {
            let (plan, text) = plan::read(arguments.plan(), arguments.quick, &catalogue)?;
            (plan, text, plan::folder_of(arguments.plan()))
        }
    };
    plan.check_place(&arguments.at.place)?;
    check_more(&arguments, shard.as_ref())?;
    let all = treatments(&plan, &catalogue);
    let treatments = narrowed(&mut plan, all, &arguments)?;
    let planned = Planned {
        plan: &plan,
        text: &text,
        folder: &folder,
        treatments: &treatments,
        catalogue: &catalogue,
    };
    for gate in &gates {
        check_gate(gate, &planned)?;
    }
    check_root(&arguments.at, &planned)?;
    if arguments.plan.is_none()
        && let Some(root) = one_liner::seen(plan.settings.text("image"))
    {
        note(&root);
    }
    if dry_run {
        return dry_run::show(planned, &arguments, shard);
    }
    if let Some(file) = &summary {
        // A run of hours must not end with a file that cannot be written.
        vtax_files::append(file)?;
    }
    let results = arguments.results(&plan.name);
    // The vtax that merges partial results judges them.
    let is_whole =
        shard.is_none() && arguments.at.treatment.is_none() && arguments.at.place_name.is_none();
    let signals = Signals::install()?;
    let mut progress = progress::choose(arguments.format.is_json(), &signals);
    testbed::leave_out_repetitions(&mut plan, &arguments.at, progress.as_mut())?;
    if is_whole {
        let missing = treatments.iter().filter_map(plan::without_baseline);
        for message in missing.chain(plan.same_variants(&folder)) {
            progress.event(Event::Note { message });
        }
    }
    let began = Instant::now();
    let failed = if let Place::Ssh(host) = &arguments.at.place {
        let elsewhere = SshRun {
            ssh: "ssh".into(),
            host: host.clone(),
            binary: PathBuf::from("/proc/self/exe"),
            plan: text,
            results: results.clone(),
            arguments: forwarded(&arguments, shard.as_ref()),
        };
        let ended = run_over_ssh(&elsewhere, &signals, &mut |line| match line {
            Line::Event(event) => progress.event(event),
            Line::Text(text) => note(&format!("{host}: {text}")),
        });
        drop(progress);
        ended?;
        None
    } else {
        let planned = Planned {
            plan: &plan,
            text: &text,
            folder: &folder,
            treatments: &treatments,
            catalogue: &catalogue,
        };
        let ended = run_here(
            planned,
            "run",
            &arguments,
            &results,
            Share { shard, waits: part },
            &signals,
            progress.as_mut(),
        );
        drop(progress);
        let summary = ended?;
        if let Some(reason) = &summary.stopped_early {
            note(&format!("stopped before the last block: {reason}"));
        }
        if summary.ran == 0 {
            note(&format!(
                "this run is finished: {} already in {}",
                counted(summary.already, "trial"),
                results.display()
            ));
        } else {
            note(&format!(
                "{} in {}",
                counted(summary.ran, "trial"),
                in_words(began.elapsed())
            ));
        }
        (summary.failed > 0).then(|| {
            format!(
                "{} of {} failed; the same command runs them again",
                summary.failed,
                counted(summary.ran, "trial")
            )
        })
    };
    if arguments.plan.is_none() {
        note(&format!(
            "the plan of this run is {}; change a copy of it to go on from there",
            results.join("plan.toml").display()
        ));
    }
    end_with_reader()?;
    if part {
        return failed.map_or(Ok(()), |failed| Err(failed.into()));
    }
    let analysis = if arguments.format.is_json() {
        // Programs that read JSON lines read analysis.json too.
        report::write(std::slice::from_ref(&results))?.1
    } else {
        report::show(std::slice::from_ref(&results))?
    };
    if let Some(failed) = failed {
        let reason = most_frequent_failure(&analysis);
        fail!("{failed}{reason}");
    }
    if is_whole {
        let mut gates = gates;
        if let StopRule::Until {
            until: Until::Decided(gate),
            ..
        } = &plan.stop
        {
            gates.push(gate.clone());
        }
        let judged = judge(&analysis, &gates, arguments.format.is_json());
        if let Some(file) = &summary {
            append_summary(file, &analysis, &gates)?;
        }
        judged
    } else {
        Ok(())
    }
}

/// Why most of the failed trials failed, to follow their number.
fn most_frequent_failure(analysis: &Analysis) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let rows = analysis.trials.iter();
    for reason in rows.filter_map(|row| row.failed.as_deref()) {
        *reasons.entry(reason).or_default() += 1;
    }
    let most = reasons.into_iter().max_by_key(|(_, times)| *times);
    most.map_or_else(String::new, |(reason, _)| format!("\n{reason}"))
}

/// Appends the findings of a run and its gates to a file.
fn append_summary(file: &Path, analysis: &Analysis, given: &[Gate]) -> Outcome {
    let gates = gate::judge_run(analysis, given)?;
    let mut summary = vtax_files::append(file)?;
    let text = pipeline::summary(analysis, &gates);
    Ok(summary
        .write_all(text.as_bytes())
        .map_err(HostError::file("write", file))?)
}

/// Judges a finished run: whether any trial counts, the given gates, and those of its plan that need no base run. `json`
/// writes the outcomes to standard error, since standard output is a stream of events.
pub fn judge(analysis: &Analysis, given: &[Gate], json: bool) -> Outcome {
    NothingCounts::check(analysis)?;
    let gates = gate::judge_run(analysis, given)?;
    for judged in &gates {
        if json {
            note(&judged.to_string())
        } else {
            outln!("{judged}")?
        }
    }
    Ok(GatesNotPassed::check(&gates)?)
}

/// The part of a plan that one run executes.
#[derive(Debug, Default)]
pub struct Share {
    /// Only these blocks.
    pub shard: Option<Shard>,
    /// Whether it waits for another vtax run on this host.
    pub waits: bool,
}

/// Runs a plan on this host, or in emulated hosts on it. `command` is the vtax command that runs it.
pub fn run_here(
    planned: Planned<'_>,
    command: &str,
    arguments: &PlanRunArgs,
    results: &Path,
    share: Share,
    signals: &Signals,
    progress: &mut dyn Progress,
) -> Result<RunSummary, LabError> {
    if let Place::Testbed(hypervisor) = &arguments.at.place {
        let inside = testbed::Inside {
            hypervisor: *hypervisor,
            settings: arguments.at.testbed.as_deref(),
            command,
            trials: &planned,
            results: results.to_owned(),
            shard: share.shard,
            jobs: arguments.at.jobs.map(usize::from),
        };
        return inside.run(signals, progress);
    }
    if arguments.at.emulated {
        vtax_testbed::watch();
        let mut guests = planned.treatments.iter().flat_map(PlannedTreatment::guests);
        if guests.any(|guest| cell::Share::from_settings(guest.settings) != cell::Share::default())
        {
            enable_shares()?;
        }
    }
    let mut options = options(&arguments.at, results, share)?;
    options.more = arguments.more;
    run::run(planned, &options, signals, progress)
}

/// Enables weights and caps of guests in this emulated host. It starts without them, because the controller changes the
/// numbers of every plan.
fn enable_shares() -> Result<(), HostError> {
    let file = Path::new("/sys/fs/cgroup/cgroup.subtree_control");
    kernel_file::store(file, "+cpu").map_err(|cause| {
        HostError::Setting(format!(
            "cannot enable the controller `cpu` by {}: {cause}; it holds weights and caps of guests",
            file.display()
        ))
    })
}

/// The options of a run on this host, which may be an emulated one.
///
/// # Errors
/// When the speed of an emulated host cannot be adjusted to its frequency.
pub fn options(at: &PlaceArgs, results: &Path, share: Share) -> Result<RunOptions, LabError> {
    let place = at.place_name.clone();
    // The frequencies of an emulated host have no effect unless this adjusts its speed to them.
    let speed = if at.emulated {
        Speed::start(&Roots::host())?
    } else {
        None
    };
    let own = speed.map(|speed| Arc::new(speed) as Arc<dyn OwnInstruments>);
    Ok(RunOptions {
        results: results.to_owned(),
        shard: share.shard,
        waits: share.waits,
        state_dir: run::default_state_dir(),
        place: place.unwrap_or_else(|| at.place.to_string()),
        host: if at.emulated {
            Source::Simulated
        } else {
            Source::Measured
        },
        own,
        knows: Some(Arc::new(ByReport)),
        more: 0,
    })
}

/// Looks at a run by its report.
#[derive(Debug)]
pub struct ByReport;

impl Knows for ByReport {
    fn look(&self, results: &ResultsDir, until: &Until) -> Known {
        match vtax_report::until::look(results, until) {
            Ok((is_enough, in_words)) => Known {
                is_enough,
                in_words,
            },
            Err(cause) => Known {
                is_enough: false,
                in_words: format!("{until}: {cause}"),
            },
        }
    }
}

/// The treatments that are to run: all, or one of them, once.
///
/// # Errors
/// When there is no treatment with that number.
pub fn narrowed(
    plan: &mut Plan,
    mut treatments: Vec<PlannedTreatment>,
    arguments: &PlanRunArgs,
) -> Result<Vec<PlannedTreatment>, LabError> {
    let Some(number) = arguments.at.treatment else {
        return Ok(treatments);
    };
    if number >= treatments.len() {
        let none = format!("the plan has no treatment {number}");
        return Err(LabError::Plan(none));
    }
    (plan.repetitions, plan.again) = (1, 0.0);
    if let Some(first) = arguments.at.draw {
        plan.variation = Variation::Draws { first };
    }
    Ok(vec![treatments.swap_remove(number)])
}

/// Checks that blocks can be added to a run at its place.
///
/// # Errors
/// When it is one of emulated hosts, or a part of a run.
fn check_more(arguments: &PlanRunArgs, shard: Option<&Shard>) -> Result<(), LabError> {
    let why = match arguments.at.place {
        _ if arguments.more == 0 => return Ok(()),
        Place::Testbed(_) => "its blocks repeat: give the plan more `seeds` or `draws`",
        _ if shard.is_some() => "it is a part of a run: run the plan with more blocks",
        _ => return Ok(()),
    };
    Err(LabError::Plan(format!(
        "--more {} adds no blocks to this run: {why}",
        arguments.more
    )))
}

/// Checks before a run that a gate can be judged after it.
///
/// # Errors
/// When no treatment of this name is compared with another, or a limit in percent has no variants.
fn check_gate(gate: &Gate, planned: &Planned<'_>) -> Result<(), GateError> {
    let compared = || {
        let records = planned.treatments.iter().map(|one| &one.record);
        records.filter(|record| record.baseline.is_some())
    };
    if !gate.is_of_one_run && planned.plan.variants.is_empty() {
        return Err(GateError::NoVariants {
            gate: gate.text.clone(),
        });
    }
    if compared().any(|one| gate.applies_to(&one.label, &one.platform, one.variant())) {
        return Ok(());
    }
    let names = compared().flat_map(|one| [Some(one.platform.as_str()), one.variant()]);
    let names: BTreeSet<&str> = names.flatten().collect();
    Err(GateError::NothingCompared {
        gate: gate.text.clone(),
        names: names.into_iter().collect::<Vec<_>>().join(", "),
    })
}

/// The arguments that are also passed to the other vtax.
pub fn forwarded(arguments: &PlanRunArgs, shard: Option<&Shard>) -> Vec<String> {
    let quick = arguments.quick.then(|| "--quick".to_owned());
    let shard = shard.map(|shard| format!("--shard={shard}"));
    let more = (arguments.more > 0).then(|| format!("--more={}", arguments.more));
    quick.into_iter().chain(shard).chain(more).collect()
}

pub fn restore(arguments: &RestoreArgs) -> Outcome {
    let state = run::default_state_dir();
    let mut restored = run::restore(&state, arguments.forget)?;
    let cap = state.join(CAP);
    if cap.exists() {
        match run::restore(&cap, arguments.forget) {
            Ok(limits) => restored.extend(limits),
            // The running `vtax cap` still limits guests, and restores their limits when it ends.
            Err(LabError::Host(HostError::Busy { what, .. })) => note(&format!("vtax: {what}")),
            Err(error) => return Err(error.into()),
        }
    }
    end_with_reader()?;
    if arguments.format.is_json() {
        return json(&restored);
    }
    if restored.is_empty() {
        outln!("nothing to restore: the host is as it was found")?;
    }
    for change in restored {
        outln!("{change}")?;
    }
    Ok(())
}
