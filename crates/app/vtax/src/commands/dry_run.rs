// SPDX-License-Identifier: Apache-2.0
//! `vtax run --dry-run`: prints what a run of a plan would check, start and change.

use super::json;
use crate::Outcome;
use crate::cli::PlanRunArgs;
use crate::exit::CannotHere;
use crate::output::outln;
use crate::progress::in_words;
use std::time::Duration;
use vtax_core::{Source, counted};
use vtax_host::signals::{Signals, end_with_reader};
use vtax_lab::LabError;
use vtax_lab::place::Place;
use vtax_lab::plan::Shard;
use vtax_lab::run::{self, DryRun, Planned, RunOptions, SeenGuest, dry_run};

/// The most trials that are listed.
const MOST_TRIALS: usize = 40;

/// Checks the plan on this host, looks at its guests and prints what a run would do.
pub fn show(planned: Planned<'_>, arguments: &PlanRunArgs, shard: Option<Shard>) -> Outcome {
    if arguments.at.place != Place::Local {
        return Err(Box::new(LabError::Plan(format!(
            "--dry-run looks at this host and at the plan's guests, and {} is another place: `vtax plan check` gives the \
             treatments, the trials and the time of a plan",
            arguments.at.place
        ))));
    }
    let signals = Signals::install()?;
    let options = RunOptions {
        results: arguments.results(&planned.plan.name),
        shard,
        waits: false,
        state_dir: run::default_state_dir(),
        place: arguments.at.place.to_string(),
        host: Source::Measured,
        own: None,
        knows: None,
        more: 0,
    };
    let dry = dry_run(planned, &options, &signals)?;
    end_with_reader()?;
    if arguments.format.is_json() {
        json(&dry)?
    } else {
        print(&dry)?
    }
    if dry.missing.is_empty() {
        Ok(())
    } else {
        Err(CannotHere("the plan cannot run: see what is missing").into())
    }
}

fn print(dry: &DryRun) -> Outcome {
    match dry.missing.as_slice() {
        [] => outln!("{}: can run; nothing was changed", dry.plan)?,
        missing => {
            outln!("{}: cannot run; nothing was changed", dry.plan)?;
            for what in missing {
                outln!("  missing   {what}")?;
            }
        }
    }
    for note in &dry.notes {
        outln!("  note      {note}")?;
    }
    for guest in &dry.guests {
        print_guest(guest)?;
    }
    outln!("\nA run would, in this order")?;
    outln!("  1. take the lock of this host, and undo what a killed run left")?;
    outln!("  2. check all of this again, and build images that are missing")?;
    outln!("  3. write results: {}", dry.results)?;
    outln!(
        "  4. run {}, about {}",
        counted(dry.trials.len(), "trial"),
        time(dry.seconds)
    )?;
    outln!("  5. write report.html there")?;
    for treatment in &dry.treatments {
        outln!(
            "\nA trial of {}, about {}",
            treatment.label,
            time(treatment.seconds)
        )?;
        for step in &treatment.steps {
            outln!("  - {step}")?;
        }
    }
    outln!("\nTrials")?;
    for trial in dry.trials.iter().take(MOST_TRIALS) {
        let label = dry
            .treatments
            .get(trial.treatment)
            .map(|one| one.label.as_str());
        outln!(
            "  after {:>12}  {:04}  block {:<3} {}",
            time(trial.starts),
            trial.index,
            trial.block,
            label.unwrap_or_default()
        )?;
    }
    if dry.trials.len() > MOST_TRIALS {
        outln!("  and {} more", dry.trials.len() - MOST_TRIALS)?;
    }
    Ok(())
}

fn print_guest(guest: &SeenGuest) -> Outcome {
    let look = &guest.look;
    outln!(
        "\nThe guest {} ({}), by one login",
        look.login,
        guest.platform
    )?;
    let line = |name: &str, value: String| -> Outcome {
        match value.trim() {
            "" => Ok(()),
            value => Ok(outln!("  {name:<14}{value}")?),
        }
    };
    let kernel = format!("{}, {}", look.kernel, look.distribution);
    line("kernel", kernel.trim_matches([',', ' ']).to_owned())?;
    line("processors", format!("{}, {}", look.processors, look.cpu))?;
    let (all, free) = (look.memory_kib >> 10, look.available_kib >> 10);
    line("memory", format!("{all} MiB, {free} MiB available"))?;
    line("machine", look.hardware.clone())?;
    line(
        "address",
        look.address
            .map_or(String::new(), |address| address.to_string()),
    )?;
    for (folder, free) in &look.disks {
        line("free space", format!("{} MiB in {folder}", free >> 10))?;
    }
    line("load", format!("{} (1, 5 and 15 min)", look.load))?;
    line("up for", time(look.uptime_seconds))?;
    if look.clock_ahead_seconds.is_finite() {
        let (ahead, error) = (look.clock_ahead_seconds, look.clock_error_seconds);
        line(
            "clock",
            format!("{ahead:+.1} s against this host, ± {error:.1} s"),
        )?;
    }
    let others = match look.logins.as_slice() {
        [] => "nobody else".to_owned(),
        some => some.join("; "),
    };
    line("logged in", others)?;
    let ports: Vec<String> = look.listens.iter().map(u16::to_string).collect();
    line("TCP servers", ports.join(", "))?;
    for program in &look.programs {
        line("has", program.clone())?;
    }
    for (program, package) in &look.missing {
        line("lacks", format!("{program} (Debian package {package})"))?;
    }
    for (name, fact) in &look.facts {
        line(name, fact.clone())?;
    }
    Ok(())
}

fn time(seconds: f64) -> String {
    in_words(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
