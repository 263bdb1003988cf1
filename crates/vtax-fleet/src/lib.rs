//! Plans over many machines.
//!
//! vtax is no scheduler. An [`Engine`] that exists queues, retries and kills; vtax cuts a plan's blocks
//! into shards, ships itself and the plan, follows, collects and merges. What it relies on is little: an
//! engine starts `vtax shard` somewhere, perhaps twice, perhaps never.
//!
//! - Every machine fills a results directory of its own for each shard ([`Depot::directory`]), named by
//!   the kernel's id of its boot. A shard that is started again on the same machine goes on there; on
//!   another one it leaves out the blocks that are whole elsewhere and runs the others from their
//!   beginning. So blocks never span machines, and two that run the same shard at once do no harm.
//! - Whether a shard is done says its results, never the engine.
//! - All labs of one machine share its lock and take turns, so shards that an engine puts there at once
//!   do not disturb each other.
//! - What is merged is chosen block by block, and only among machines of one kind
//!   ([`vtax_report::results::merge`]). Sources stay as they are.
//!
//! Killed at any moment, `vtax run --on` goes on: the same command finds the depot, and by its name the
//! job that the engine still has.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod collect;
mod depot;
mod engine;
pub mod kubernetes;
mod slurm;
mod ssh;

pub use collect::{Collected, collect, gather};
pub use depot::{Depot, boot};
pub use engine::Engine;
pub use ssh::hosts;

use std::path::{Path, PathBuf};
use vtax_host::signals::Signals;
use vtax_lab::LabError;

/// A plan for many machines.
#[derive(Debug, Clone)]
pub struct FleetRun {
    /// Who starts the shards.
    pub engine: Engine,
    /// How many.
    pub shards: u32,
    /// The plan's blocks, numbered from 1.
    pub blocks: u32,
    /// The plan's name.
    pub name: String,
    /// The text of the plan.
    pub plan: String,
    /// Where the results are to be.
    pub results: PathBuf,
    /// Our own binary.
    pub binary: PathBuf,
    /// Further arguments of `vtax run`, such as `--quick`.
    pub arguments: Vec<String>,
    /// What Kubernetes needs to know.
    pub pod: kubernetes::Pod,
}

/// How it went.
#[derive(Debug)]
pub enum Ended {
    /// The results are there, whole or not.
    Collected(Collected),
    /// What an engine is to be given by hand, or was given and follows by itself.
    Handed(String),
}

/// Runs a plan on many machines, or goes on with it, and merges what there is in the end, whatever the end.
///
/// # Errors
/// When the engine is missing or refuses, the depot is another plan's, or nothing at all was run. Finished
/// trials stay in the depot.
pub fn run(
    run: &FleetRun,
    signals: &Signals,
    note: &mut dyn FnMut(String),
) -> Result<Ended, LabError> {
    if let Engine::Kubernetes = run.engine {
        return kubernetes::hand_over(run).map(Ended::Handed);
    }
    let depot = Depot::open(run)?;
    let went = match &run.engine {
        _ if depot.unfinished()?.is_empty() => Ok(()),
        Engine::Slurm { partition } => slurm::run(&depot, partition.as_deref(), signals, note),
        Engine::Ssh(file) => ssh::run(run, &depot, file, signals, note),
        Engine::Kubernetes => Ok(()),
    };
    let sources = depot.directories()?;
    if sources.is_empty() {
        went?;
        return Err(LabError::other(format!(
            "no shard has run a trial; what they said is below {}",
            depot.log(1).parent().unwrap_or(Path::new(".")).display()
        )));
    }
    let mut collected = collect(&sources, &run.results, Some(depot.submitted()))?;
    for shard in depot.unfinished()? {
        let said = depot.last_words(shard);
        collected.unfinished.push((shard, said));
    }
    match went {
        Ok(()) => Ok(Ended::Collected(collected)),
        Err(cause) if cause.is_interrupt() => Err(cause),
        Err(cause) => {
            collected.notes.push(cause.to_string());
            Ok(Ended::Collected(collected))
        }
    }
}
