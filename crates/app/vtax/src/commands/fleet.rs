// SPDX-License-Identifier: Apache-2.0
//! `vtax run --fleet`, `vtax merge`, and the shard that an engine starts.

use super::{plan, report, testbed};
use crate::Outcome;
use crate::cli::{Cli, Command, MergeArgs, RunArgs, ShardArgs};
use crate::output::{fail, outln};
use crate::progress::{self, note};
use clap::Parser;
use std::path::{Path, PathBuf};
use vtax_core::counted;
use vtax_fleet::kubernetes::Pod;
use vtax_fleet::{Collected, Engine, FleetOutcome, FleetRun, WorkDir, boot};
use vtax_host::roots::Roots;
use vtax_host::signals::{Signals, end_with_reader};
use vtax_lab::place::Place;
use vtax_lab::plan::{Catalogue, StopRule};

pub fn run(arguments: &RunArgs) -> Outcome {
    let RunArgs {
        run: arguments,
        fleet,
        ..
    } = arguments;
    let engine = fleet.fleet.clone().ok_or("--fleet names no engine")?;
    let (mut plan, text) = plan::read(arguments.plan(), arguments.quick, &Catalogue::standard())?;
    match &arguments.at.place {
        place @ Place::Testbed(_) => plan.check_place(place)?,
        _ => plan.check_elsewhere(&format!("--fleet {engine}"))?,
    }
    if plan.stop != StopRule::Fixed {
        fail!(
            "a plan that stops by precision cannot be cut into shards: none of them sees the others' trials; take [stop] out and give repetitions"
        );
    }
    let mut forwarded = super::run::forwarded(arguments, None);
    match &arguments.at.place {
        Place::Local => {}
        Place::Ssh(_) => {
            fail!("--fleet names the machines that run the plan: leave --place out");
        }
        Place::Testbed(_) if arguments.at.testbed.is_some() => {
            return Err(
                "the machines of --fleet do not have the file of --testbed: leave it out".into(),
            );
        }
        place @ Place::Testbed(_) => {
            forwarded.push(format!("--place={place}"));
            forwarded.extend(arguments.at.jobs.map(|jobs| format!("--jobs={jobs}")));
        }
    }
    let signals = Signals::install()?;
    let mut progress = progress::choose(arguments.format.is_json(), &signals);
    testbed::leave_out_repetitions(&mut plan, &arguments.at, progress.as_mut())?;
    drop(progress);
    let blocks = plan.repetitions;
    let shards = fleet.shards.map_or(blocks, u32::from);
    if shards > blocks {
        fail!("{shards} shards of {blocks} blocks: a block is never cut, so give at most {blocks}");
    }
    let image = match (&engine, &fleet.pod_image) {
        (Engine::Kubernetes, None) => {
            return Err(
                "Kubernetes starts images: give one that has this vtax with --pod-image".into(),
            );
        }
        (_, image) => image.clone().unwrap_or_default(),
    };
    let results = arguments.results(&plan.name);
    let run = FleetRun {
        engine,
        shards,
        blocks,
        name: plan.name.clone(),
        plan: text,
        results,
        binary: PathBuf::from("/proc/self/exe"),
        arguments: forwarded,
        pod: Pod {
            image,
            claim: fleet.claim.clone(),
        },
    };
    let ended = vtax_fleet::run(&run, &signals, &mut |line| note(&line))?;
    end_with_reader()?;
    match ended {
        FleetOutcome::Handed(text) => {
            outln!("{text}")?;
            Ok(())
        }
        FleetOutcome::Collected(collected) => tell(&collected, arguments.format.is_json()),
    }
}

pub fn merge(arguments: &MergeArgs) -> Outcome {
    let collected = vtax_fleet::gather(&arguments.sources, &arguments.results)?;
    tell(&collected, false)
}

/// Prints the notes and reports of collected results.
fn tell(collected: &Collected, json: bool) -> Outcome {
    for line in &collected.notes {
        note(line);
    }
    let mut judged: Outcome = Ok(());
    for results in &collected.results {
        let analysis = if json {
            report::write(std::slice::from_ref(results))?.1
        } else {
            report::show(std::slice::from_ref(results))?
        };
        judged = judged.and(super::run::judge(&analysis, &[], json));
    }
    if collected.unfinished.is_empty() {
        return judged;
    }
    let printed: Vec<String> = collected
        .unfinished
        .iter()
        .map(|(shard, printed)| format!("  {shard}: {printed}"))
        .collect();
    Err(format!(
        "{} not finished; the same command goes on with them. The last that was heard:\n{}",
        counted(collected.unfinished.len(), "shard"),
        printed.join("\n")
    )
    .into())
}

/// Runs the part of a shard that this machine runs, as `vtax run`.
pub fn shard(arguments: &ShardArgs) -> Outcome {
    let workdir = WorkDir::read(&arguments.workdir)?;
    let boot = boot(&Roots::host())?;
    let share = workdir.rest(arguments.shard, &boot)?;
    let results = workdir.directory(arguments.shard, &boot);
    let path = |path: &Path| path.display().to_string();
    let mut words = vec![
        "vtax".to_owned(),
        "run".to_owned(),
        path(&arguments.workdir.join("plan.toml")),
        format!("--results={}", path(&results)),
        format!("--shard={share}"),
        "--json".to_owned(),
        "--part".to_owned(),
        "--place-name=slurm".to_owned(),
    ];
    words.extend(workdir.arguments().iter().cloned());
    match Cli::try_parse_from(words)?.command {
        Some(Command::Run(run)) => super::run::run(*run),
        _ => Err("a shard is a run".into()),
    }
}
