// SPDX-License-Identifier: Apache-2.0
//! `vtax density`: the number of guests that a host holds, this one or an emulated one.

use super::run::{Share, options};
use super::testbed;
use crate::Outcome;
use crate::cli::DensityArgs;
use crate::output::fail;
use vtax_density::cli::{execute, note_absent};
use vtax_density::run::PlannedClimbs;
use vtax_lab::place::Place;
use vtax_lab::run::Event;

/// The arguments before the command line of a supervisor.
const WORDS: [&str; 1] = ["density"];

pub fn run(arguments: &DensityArgs) -> Outcome {
    let DensityArgs { climbs, at, .. } = arguments;
    let hypervisor = match &at.place {
        Place::Testbed(hypervisor) => *hypervisor,
        Place::Local if at.emulated => return in_testbed(arguments),
        Place::Local => return Ok(execute(climbs, &WORDS)?),
        Place::Ssh(host) => {
            fail!(
                "climbs run locally or in a testbed: log in to {host} and run vtax density there"
            );
        }
    };
    let (mut plan, text) = climbs.read()?;
    testbed::check_root(hypervisor)?;
    let results = climbs.results(&plan);
    let signals = climbs.signals()?;
    let mut progress = climbs.progress(&signals);
    note_absent(
        plan.for_testbed(hypervisor)?,
        "in an emulated host",
        &mut progress,
    );
    if testbed::repeats_exactly(at)? && plan.without_repetitions() > 0 {
        let message = "one climb of each treatment: a repetition gives the same numbers here";
        progress(Event::Note {
            message: message.to_owned(),
        });
    }
    let inside = testbed::Inside {
        hypervisor,
        settings: at.testbed.as_deref(),
        command: "density",
        trials: &PlannedClimbs {
            plan: &plan,
            text: &text,
        },
        results: results.clone(),
        shard: None,
        jobs: at.jobs.map(usize::from),
    };
    inside.run(&signals, &mut progress)?;
    Ok(climbs.report(&results)?)
}

/// Runs one climb inside an emulated host. Its guests are watched by the climb itself: a guest that does not boot ends it,
/// and none has a kernel that could hang. The vtax outside writes the report.
fn in_testbed(DensityArgs { climbs, at, .. }: &DensityArgs) -> Outcome {
    let (mut plan, text) = climbs.read()?;
    if let Some(number) = at.treatment {
        plan.narrow(number)?;
    }
    let options = options(at, &climbs.results(&plan), Share::default())?;
    let signals = climbs.signals()?;
    let mut progress = climbs.progress(&signals);
    climbs.run_here(&mut plan, &text, &WORDS, &options, &signals, &mut progress)?;
    Ok(())
}
