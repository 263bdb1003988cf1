// SPDX-License-Identifier: Apache-2.0
//! Collects the results directories of the machines into results that all of vtax reads.

use jiff::Timestamp;
use std::path::{Path, PathBuf};
use tracing::{info, warn};
use vtax_core::counted;
use vtax_lab::LabError;
use vtax_results::{Machine, ResultsDir, merge};

/// The largest error of a clock without a note, in seconds.
const GOOD_CLOCK: f64 = 2.0;

/// The collected results of a run.
#[derive(Debug, Default)]
pub struct Collected {
    /// The results: one directory, or one for each kind of machine.
    pub results: Vec<PathBuf>,
    /// The unfinished shards, with the last line of their logs.
    pub unfinished: Vec<(u32, String)>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Merges directories of one run into `into`; where their machines differ in kind, those of each kind
/// into `into.kind-1`, `into.kind-2` and so on.
///
/// # Errors
/// When they are not of one run, or a directory cannot be read or written.
pub fn collect(
    sources: &[ResultsDir],
    into: &Path,
    submitted: Option<&str>,
) -> Result<Collected, LabError> {
    let mut collected = Collected {
        notes: clocks(sources, submitted),
        ..Collected::default()
    };
    let mut kinds: Vec<(Machine, Vec<ResultsDir>)> = Vec::new();
    for note in &collected.notes {
        warn!("{note}");
    }
    for source in sources {
        let machines = source.machines()?;
        let Some(machine) = machines.machines.first() else {
            continue;
        };
        match kinds
            .iter_mut()
            .find(|(known, _)| known.differences(machine).is_empty())
        {
            Some((_, of)) => of.push(source.clone()),
            None => kinds.push((machine.clone(), vec![source.clone()])),
        }
    }
    if let [(one, _), (two, _), ..] = kinds.as_slice() {
        collected.notes.push(format!(
            "the machines are of {} kinds ({}): each kind has results of its own, and nothing is averaged over them; vtax compare shows them side by side",
            kinds.len(),
            one.differences(two).join("; ")
        ));
    }
    let several = kinds.len() > 1;
    for (number, (_, of)) in (1..).zip(&kinds) {
        let mut path = into.as_os_str().to_owned();
        if several {
            path.push(format!(".kind-{number}"));
        }
        let path = PathBuf::from(path);
        collected.notes.extend(merge(of, &path)?);
        info!(
            "merged into {}: {}",
            path.display(),
            counted(of.len(), "source")
        );
        collected.results.push(path);
    }
    Ok(collected)
}

/// As [`collect`], of directories by their paths.
///
/// # Errors
/// As [`collect`], and when one of them holds no run.
pub fn gather(paths: &[PathBuf], into: &Path) -> Result<Collected, LabError> {
    let sources: Vec<ResultsDir> = paths
        .iter()
        .map(|path| ResultsDir::open(path))
        .collect::<Result<_, _>>()?;
    // Results of another plan are refused.
    let of_one_run = |other: &&ResultsDir| {
        sources
            .first()
            .is_none_or(|first| first.run().plan_sha256 == other.run().plan_sha256)
    };
    if let Some(stranger) = sources.iter().find(|other| !of_one_run(other)) {
        return Err(LabError::other(format!(
            "{} holds a run of another plan than {}: only shards of one run are merged",
            stranger.path().display(),
            paths
                .first()
                .map_or_else(String::new, |path| path.display().to_string())
        )));
    }
    collect(&sources, into, None)
}

/// Notes about wrong clocks of machines. No number depends on them: times of day are only shown, and trials are timed by
/// the monotonic clock of their machine.
fn clocks(sources: &[ResultsDir], submitted: Option<&str>) -> Vec<String> {
    let now = Timestamp::now();
    let earliest = submitted.and_then(|text| text.parse::<Timestamp>().ok());
    let mut notes = Vec::new();
    for source in sources {
        let Ok(started) = source.run().started.parse::<Timestamp>() else {
            continue;
        };
        let behind = earliest.map_or(0.0, |earliest| {
            earliest.duration_since(started).as_secs_f64()
        });
        let ahead = started.duration_since(now).as_secs_f64();
        let (off, which) = if behind > ahead {
            (behind, "behind")
        } else {
            (ahead, "ahead of")
        };
        if off > GOOD_CLOCK {
            notes.push(format!(
                "the clock of the machine of {} is at least {off:.0} s {which} this one's: its times of day are wrong, its numbers are not",
                source.path().display()
            ));
        }
    }
    notes
}
