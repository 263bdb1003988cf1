// SPDX-License-Identifier: Apache-2.0
//! `vtax atlas`: the figures of papers, each as published and as measured by vtax.

use crate::Outcome;
use crate::cli::AtlasArgs;
use crate::exit::Exit;
use crate::output::{fail, outln};
use crate::progress::{in_words, note};
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};
use vtax_atlas::catalogue::{Catalogue, Figure, Plan};
use vtax_atlas::claims::markdown;
use vtax_atlas::{Folders, compare, gather, keep_runs, missing, outdated, page, summary, unlisted};
use vtax_core::counted;
use vtax_host::signals::{Signals, end_with_reader};

pub fn run(arguments: &AtlasArgs) -> Outcome {
    let catalogue = Catalogue::read()?;
    let figures = catalogue.select(arguments.figures.as_deref())?;
    let folders = Folders {
        results: &arguments.results_root,
        plans: &arguments.plans,
        models: vtax_testbed::cost::modelled,
    };
    let failed = if arguments.run || arguments.quick {
        run_missing(arguments, &catalogue, &figures, &folders)?
    } else {
        Vec::new()
    };
    let (ours, unusable) = gather(&catalogue, Some(&folders))?;
    for cause in &unusable {
        note(&format!("left out: {cause}"));
    }
    for path in unlisted(&catalogue, &folders) {
        note(&format!(
            "left out: {}: it is of no plan of the atlas",
            path.display()
        ));
    }
    for (plan, origin) in outdated(&catalogue, &ours, &folders) {
        note(&format!(
            "{plan}: measured with an earlier text of the plan, on {}: a new run replaces its numbers",
            origin.started.get(..10).unwrap_or(&origin.started)
        ));
    }
    if let Some(folder) = &arguments.keep {
        let runs = keep_runs(&ours, &folders, &folder.join("runs"))?;
        ours.keep(&catalogue, &folder.join("ours"))?;
        let runs = counted(runs.len(), "run");
        note(&format!("kept in {}: {runs}", folder.display()));
    }
    let entries = compare(&catalogue, &figures, &ours)?;
    vtax_files::write(&arguments.output, page(&catalogue, &entries).as_bytes())?;
    end_with_reader()?;
    for paper in &catalogue.papers {
        if figures.iter().any(|figure| figure.paper == paper.key) {
            outln!("{}\n", paper.authors)?;
            outln!(
                "{}",
                markdown(&entries, &paper.key, "docs/notes/atlas-page.html")
            )?;
        }
    }
    outln!("{}", summary(&entries))?;
    outln!("page: {}", arguments.output.display())?;
    if !failed.is_empty() {
        fail!(
            "{} did not run to the end: {}; the same command goes on with them",
            counted(failed.len(), "plan"),
            failed.join(", ")
        );
    }
    if unusable.is_empty() {
        Ok(())
    } else {
        Err(format!("{} left out", counted(unusable.len(), "run")).into())
    }
}

/// Runs each plan without a complete run, by the command that a user would enter, and reports its duration. Returns the
/// names of the plans that failed; the other plans still run.
fn run_missing<'a>(
    arguments: &AtlasArgs,
    catalogue: &'a Catalogue,
    figures: &[&Figure],
    folders: &Folders<'_>,
) -> Result<Vec<&'a str>, Box<dyn std::error::Error>> {
    let mut todo = missing(catalogue, figures, folders, arguments.quick);
    let signals = Signals::install()?;
    let mut failed = Vec::new();
    let of_full = |(name, plan): &(&str, &Plan)| {
        let is_left = arguments.quick && !plan.full_only.is_empty();
        if is_left {
            note(&format!(
                "{name}: not with --quick: {}; `vtax atlas --run` runs it",
                plan.full_only
            ));
        }
        !is_left
    };
    todo.retain(of_full);
    for (number, (name, plan)) in todo.iter().enumerate() {
        signals.check()?;
        let words = words(arguments, folders, name, plan);
        note(&format!(
            "[{}/{}] vtax {}",
            number + 1,
            todo.len(),
            words.join(" ")
        ));
        let started = Instant::now();
        let ended = follow(&words, &signals);
        signals.check()?;
        match ended {
            // A run with no trial that counts has results too.
            Ok(status) if status.success() || status.code() == Some(Exit::Inconclusive as i32) => {
                note(&format!("{name}: whole, {}", in_words(started.elapsed())));
            }
            Ok(status) => {
                note(&format!("{name}: {status}; the other plans go on"));
                failed.push(*name);
            }
            Err(cause) => {
                note(&format!("{name}: cannot start vtax for it: {cause}"));
                failed.push(*name);
            }
        }
    }
    Ok(failed)
}

fn words(arguments: &AtlasArgs, folders: &Folders<'_>, name: &str, plan: &Plan) -> Vec<String> {
    let place = arguments.place.as_ref().map(ToString::to_string);
    let mut words = plan.arguments(
        &arguments.plans.display().to_string(),
        &folders.of_plan(name).display().to_string(),
        arguments.quick,
        place.as_deref(),
    );
    words.extend(arguments.details.word());
    words
}

/// Runs vtax with these arguments, and forwards a request to stop, once. The child has a process group of its own: a
/// terminal would send it a second request, which ends a run without its clean-up.
fn follow(words: &[String], signals: &Signals) -> io::Result<ExitStatus> {
    let mut child = Command::new("/proc/self/exe")
        .args(words)
        .process_group(0)
        .spawn()?;
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if signals.interrupted() && !asked {
            asked = true;
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(pid) = pid {
                // A child that has just ended needs no signal.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        sleep(Duration::from_millis(100));
    }
}
