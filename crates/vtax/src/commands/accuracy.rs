//! `vtax accuracy`: how right charge-back is.

use super::{json, plan, run, testbed};
use crate::Outcome;
use crate::cli::PlanRunArgs;
use crate::progress;
use std::path::PathBuf;
use vtax_host::signals::{Signals, end_with_reader};
use vtax_lab::place::Place;
use vtax_lab::plan::{Catalogue, charge_study};
use vtax_lab::run::{Event, run_planned, why_not_traced};
use vtax_report::analysis::charge::{self, Study};
use vtax_units::counted;

pub fn run(arguments: PlanRunArgs) -> Outcome {
    let catalogue = Catalogue::standard();
    let (plan, text) = plan::read(&arguments.plan, arguments.quick, &catalogue)?;
    // What is refused is refused here, before a testbed is booted for it.
    charge_study(&plan, &catalogue, true)?;
    let results = arguments.results(&plan.name);
    let signals = Signals::install()?;
    let mut progress = progress::choose(arguments.json, &signals);
    let mut failed = 0;
    match &arguments.at {
        Place::Local => {
            let untraced = why_not_traced();
            if let Some(why) = &untraced {
                let message = format!("traced is missing: {why}");
                progress.event(Event::Note { message });
            }
            let study = charge_study(&plan, &catalogue, untraced.is_none())?;
            let options = run::options(&arguments, results.clone(), None);
            let ended = run_planned(
                &plan,
                &text,
                study,
                &catalogue,
                &options,
                &signals,
                progress.as_mut(),
            );
            drop(progress);
            failed = ended?.failed;
        }
        Place::Ssh(_) => {
            return Err("a study of charge-back runs locally or in a testbed; \
                        log in there and run it"
                .into());
        }
        Place::Testbed(hypervisor) => {
            let inside = testbed::Inside {
                hypervisor: *hypervisor,
                settings: arguments.testbed.as_deref(),
                command: "accuracy run",
                plan: text,
                results: results.clone(),
                arguments: run::forwarded(&arguments, None),
                silence: plan.warmup + plan.duration,
            };
            let ended = inside.run(&signals, progress.as_mut());
            drop(progress);
            ended?;
        }
    }
    if !arguments.json {
        table(&[results], false)?;
    }
    if failed > 0 {
        return Err(format!(
            "{} failed; the same command runs them again",
            counted(failed, "trial")
        )
        .into());
    }
    Ok(())
}

pub fn table(results: &[PathBuf], as_json: bool) -> Outcome {
    let studies: Vec<Study> = results
        .iter()
        .map(|directory| Study::read(directory))
        .collect::<Result<_, _>>()?;
    end_with_reader()?;
    if as_json {
        return json(&studies);
    }
    for study in &studies {
        print!("{}", charge::table(study));
    }
    Ok(())
}
