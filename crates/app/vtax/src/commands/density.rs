// SPDX-License-Identifier: Apache-2.0
//! `vtax density`: the number of guests that a host holds, this one or an emulated one.

use super::plan::text_of;
use super::run::{Share, options};
use super::testbed;
use crate::Outcome;
use crate::cli::DensityArgs;
use crate::output::{self, fail};
use crate::progress;
use serde_json::json;
use std::error::Error;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::Ordering;
use vtax_core::{counted, terminal};
use vtax_density::plan::Plan;
use vtax_density::run::{self, PlannedClimbs};
use vtax_density::{report, supervisor};
use vtax_host::Roots;
use vtax_host::signals::Signals;
use vtax_lab::place::Place;
use vtax_lab::run::{Event, FinishedTrial, Progress, SampledLevel};
use vtax_results::ResultsDir;

pub fn run(arguments: &DensityArgs) -> Outcome {
    if let Some(spec) = &arguments.supervise {
        return Ok(supervisor::serve(spec)?);
    }
    let at = &arguments.at;
    if let Place::Ssh(host) = &at.place {
        fail!("climbs run locally or in a testbed: log in to {host} and run vtax density there");
    }
    let (mut plan, text) = read(arguments)?;
    if let Place::Testbed(hypervisor) = at.place {
        testbed::check_root(hypervisor)?;
    }
    if let Some(number) = at.treatment {
        plan.narrow(number)?;
    }
    let results = arguments.results.clone();
    let results = results.unwrap_or_else(|| run::default_results(&plan));
    let signals = Signals::install()?;
    let mut progress = if arguments.format.is_json() {
        progress::choose(true, &signals)
    } else {
        for_people(&signals)
    };
    let mut note = |message| progress.event(Event::Note { message });
    if let Place::Testbed(hypervisor) = at.place {
        for label in plan.for_testbed(hypervisor)? {
            note(format!(
                "{label} is not installed in an emulated host and left out"
            ));
        }
        if testbed::repeats_exactly(at)? && plan.without_repetitions() > 0 {
            let message = "one climb of each treatment: a repetition gives the same numbers here";
            note(message.to_owned());
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
        inside.run(&signals, progress.as_mut())?;
    } else {
        for label in plan.leave_out_absent(&Roots::host()) {
            note(format!("{label} is not installed here and left out"));
        }
        let planned = PlannedClimbs {
            plan: &plan,
            text: &text,
        };
        let options = options(at, &results, Share::default())?;
        let words = ["density", "--supervise"].map(str::to_owned);
        run::run(planned, &words, &options, &signals, progress.as_mut())?;
        if at.emulated {
            // The vtax outside of the emulated host writes the report.
            return Ok(());
        }
    }
    report(&results, arguments.format.is_json())
}

/// Reads the plan. Returns it with its text, in which the maximum of the command line is.
fn read(arguments: &DensityArgs) -> Result<(Plan, String), Box<dyn Error>> {
    let (file, mut text) = match &arguments.plan {
        Some(path) => (path.display().to_string(), text_of(path)?),
        None => (
            "--platform".to_owned(),
            Plan::of_platforms(&arguments.platform),
        ),
    };
    let mut plan = Plan::read(&file, &text, arguments.quick)?;
    if let Some(maximum) = arguments.max {
        text = Plan::with_maximum(&text, maximum)?;
        plan = Plan::read(&file, &text, arguments.quick)?;
    }
    Ok((plan, text))
}

/// Writes the report of a run and prints its summary.
fn report(results: &Path, as_json: bool) -> Outcome {
    let (path, summary) = report::write(&ResultsDir::open(results)?)?;
    let written = if as_json {
        output::write_data(&json!({"event": "report", "path": path}).to_string())
    } else {
        output::write(format_args!("{summary}\nreport: {}\n", path.display()))
    };
    match written {
        // The report exists, so a closed output is no error.
        Err(cause) if cause.kind() != ErrorKind::BrokenPipe => return Err(cause.into()),
        _ => {}
    }
    if summary.failed > 0 {
        return Err(format!(
            "{} failed; the report names the reasons",
            counted(summary.failed, "climb")
        )
        .into());
    }
    Ok(())
}

/// The progress of climbs as lines on standard error. A closed output requests an orderly stop of the run.
fn for_people(signals: &Signals) -> Box<dyn Progress> {
    let asked = signals.flag();
    Box::new(move |event: Event| {
        if let Some(words) = line_of(&event)
            && terminal::note(&words).is_err()
        {
            asked.store(true, Ordering::SeqCst);
        }
    })
}

fn line_of(event: &Event) -> Option<String> {
    let line = match event {
        Event::Note { message } => message.clone(),
        Event::Started {
            plan,
            results,
            trials,
            finished,
            ..
        } => format!(
            "{plan}: {trials} of {} climbs to make; results in {results}",
            trials + finished
        ),
        Event::TrialStarted { treatment, .. } => format!("{treatment}:"),
        Event::Phase { .. } | Event::Objective { .. } | Event::Metered { .. } => return None,
        Event::Sampled(SampledLevel {
            level,
            of,
            readings,
            ..
        }) => {
            let readings = readings.iter();
            let readings = readings.map(|(name, reading)| format!("   {name} {reading}"));
            format!("  {level:>9} of {of}{}", readings.collect::<String>())
        }
        Event::TrialFinished(FinishedTrial {
            treatment,
            done,
            of,
            suspect,
            failed,
            ..
        }) => {
            let failed = failed.iter();
            let failed = failed.map(|reason| format!("{treatment} failed: {reason}\n"));
            let suspect = suspect
                .iter()
                .map(|reason| format!("  suspect: {reason}\n"));
            let reasons: String = failed.chain(suspect).collect();
            format!("{reasons}  {done} of {} made", counted(*of, "climb"))
        }
    };
    Some(line)
}
