// SPDX-License-Identifier: Apache-2.0
//! Plans over many machines.
//!
//! vtax is no scheduler. An existing [`Engine`] queues, retries and kills; vtax splits a plan's blocks into shards, copies
//! itself and the plan to the machines, follows the job, and collects and merges the results. It assumes only that an
//! engine starts `vtax shard` on some machine, any number of times.
//!
//! - Every machine writes a results directory of its own for each shard ([`WorkDir::directory`]), named by the kernel's id
//!   of its boot. A restarted shard continues there on the same machine. On another machine it leaves out the blocks that
//!   are complete elsewhere and runs the others from their beginning. So no block spans machines, and two machines may run
//!   the same shard.
//! - A shard counts as finished only when its results are complete, whatever the engine reports.
//! - All runs of one machine share its lock and take turns, so shards on one machine do not disturb each other.
//! - Results are merged block by block, and only among machines of one kind ([`vtax_results::merge`]). Sources do
//!   not change.
//!
//! After a kill the same `vtax run --fleet` continues: it finds the work directory, and by its name the engine's job.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod collect;
mod engine;
pub mod kubernetes;
mod slurm;
mod ssh;
mod workdir;

pub use collect::{Collected, collect, gather};
pub use engine::{Engine, EngineError};
pub use ssh::{HostListError, hosts};
pub use workdir::{WorkDir, boot};

use std::path::{Path, PathBuf};
use tracing::{info, warn};
use vtax_core::counted;
use vtax_host::signals::Signals;
use vtax_host::untrusted::first_line;
use vtax_lab::LabError;

/// A plan for many machines.
#[derive(Debug, Clone)]
pub struct FleetRun {
    /// The engine that starts the shards.
    pub engine: Engine,
    /// The number of shards.
    pub shards: u32,
    /// The plan's blocks, numbered from 1.
    pub blocks: u32,
    /// The plan's name.
    pub name: String,
    /// The text of the plan.
    pub plan: String,
    /// The results directory.
    pub results: PathBuf,
    /// The binary of vtax.
    pub binary: PathBuf,
    /// Further arguments of `vtax run`, such as `--quick`.
    pub arguments: Vec<String>,
    /// The settings of Kubernetes.
    pub pod: kubernetes::Pod,
}

/// The outcome of a run.
#[derive(Debug)]
pub enum FleetOutcome {
    /// The results are collected, complete or not.
    Collected(Collected),
    /// The engine has the job, or its manifest is to be submitted by hand: the next steps.
    Handed(String),
}

/// Runs a plan on many machines, or continues it, and merges the results, also after a failure.
///
/// # Errors
/// When the engine is missing or refuses, the work directory belongs to another plan, or there are no results. Finished
/// trials stay in the work directory.
pub fn run(
    run: &FleetRun,
    signals: &Signals,
    note: &mut dyn FnMut(String),
) -> Result<FleetOutcome, LabError> {
    if let Engine::Kubernetes = run.engine {
        return kubernetes::hand_over(run).map(FleetOutcome::Handed);
    }
    let workdir = WorkDir::open(run)?;
    let open = workdir.unfinished()?;
    info!(
        "the plan {} runs by {} in {}: {}, {} not finished",
        run.name,
        run.engine,
        workdir.path().display(),
        counted(run.shards, "shard"),
        open.len()
    );
    let went = match &run.engine {
        _ if open.is_empty() => Ok(()),
        Engine::Slurm { partition } => slurm::run(&workdir, partition.as_deref(), signals, note),
        Engine::Ssh(file) => ssh::run(run, &workdir, file, signals, note),
        Engine::Kubernetes => Ok(()),
    };
    if let Err(cause) = &went
        && !cause.is_interrupt()
    {
        warn!("{} ends early: {}", run.engine, first_line(cause));
    }
    let sources = workdir.directories()?;
    if sources.is_empty() {
        went?;
        return Err(LabError::other(format!(
            "no shard has run a trial; their output is below {}",
            workdir.log(1).parent().unwrap_or(Path::new(".")).display()
        )));
    }
    let mut collected = collect(&sources, &run.results, Some(workdir.submitted()))?;
    for shard in workdir.unfinished()? {
        let printed = workdir.last_words(shard);
        collected.unfinished.push((shard, printed));
    }
    match went {
        Ok(()) => Ok(FleetOutcome::Collected(collected)),
        Err(cause) if cause.is_interrupt() => Err(cause),
        Err(cause) => {
            collected.notes.push(cause.to_string());
            Ok(FleetOutcome::Collected(collected))
        }
    }
}
