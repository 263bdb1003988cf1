//! `vtax run` and `vtax restore`.

use super::{json, plan, report, testbed};
use crate::Outcome;
use crate::cli::{PlanRunArgs, RestoreArgs, RunArgs};
use crate::progress::{self, in_words, note};
use std::path::PathBuf;
use std::time::Instant;
use vtax_host::signals::{Signals, end_with_reader};
use vtax_lab::place::{Line, Place, SshRun, run_over_ssh};
use vtax_lab::plan::{Catalogue, Shard};
use vtax_lab::run::{self, RunOptions};
use vtax_units::{Source, counted};

pub fn run(arguments: RunArgs) -> Outcome {
    let RunArgs {
        run: arguments,
        shard,
    } = arguments;
    let catalogue = Catalogue::standard();
    let (plan, text) = plan::read(&arguments.plan, arguments.quick, &catalogue)?;
    let results = arguments.results(&plan.name);
    let signals = Signals::install()?;
    let mut progress = progress::choose(arguments.json, &signals);
    let began = Instant::now();
    let failed = match &arguments.at {
        Place::Local => {
            let options = options(&arguments, results.clone(), shard);
            let ended = run::run(
                &plan,
                &text,
                &catalogue,
                &options,
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
        }
        Place::Ssh(host) => {
            let elsewhere = SshRun {
                ssh: "ssh".into(),
                host: host.clone(),
                binary: PathBuf::from("/proc/self/exe"),
                plan: text,
                results: results.clone(),
                arguments: forwarded(&arguments, shard),
            };
            let ended = run_over_ssh(&elsewhere, &signals, &mut |line| match line {
                Line::Event(event) => progress.event(event),
                Line::Text(text) => note(&format!("{host}: {text}")),
            });
            drop(progress);
            ended?;
            None
        }
        Place::Testbed(hypervisor) => {
            let inside = testbed::Inside {
                hypervisor: *hypervisor,
                settings: arguments.testbed.as_deref(),
                command: "run",
                plan: text,
                results: results.clone(),
                arguments: forwarded(&arguments, shard),
                silence: plan.warmup + plan.duration,
            };
            let ended = inside.run(&signals, progress.as_mut());
            drop(progress);
            ended?;
            None
        }
    };
    end_with_reader()?;
    if arguments.json {
        // Whoever reads JSON lines reads analysis.json too.
        report::write(std::slice::from_ref(&results))?;
    } else {
        report::show(std::slice::from_ref(&results))?;
    }
    failed.map_or(Ok(()), |failed| Err(failed.into()))
}

/// How a run on this host is run.
pub fn options(arguments: &PlanRunArgs, results: PathBuf, shard: Option<Shard>) -> RunOptions {
    let place = arguments.place_name.clone();
    RunOptions {
        results,
        shard,
        state_dir: run::default_state_dir(),
        place: place.unwrap_or_else(|| arguments.at.to_string()),
        host: if arguments.emulated {
            Source::Emulated
        } else {
            Source::Measured
        },
    }
}

/// The arguments that the other vtax needs too.
pub fn forwarded(arguments: &PlanRunArgs, shard: Option<Shard>) -> Vec<String> {
    let quick = arguments.quick.then(|| "--quick".to_owned());
    let shard = shard.map(|shard| format!("--shard={shard}"));
    quick.into_iter().chain(shard).collect()
}

pub fn restore(arguments: &RestoreArgs) -> Outcome {
    let restored = run::restore(&run::default_state_dir(), arguments.forget)?;
    end_with_reader()?;
    if arguments.json {
        return json(&restored);
    }
    if restored.is_empty() {
        println!("nothing to restore: the host is as it was found");
    }
    for change in restored {
        println!("{change}");
    }
    Ok(())
}
