//! `vtax accuracy`: how right charge-back is.

use super::{json, plan, testbed};
use crate::Outcome;
use crate::cli::PlanRunArgs;
use crate::progress;
use std::path::{Path, PathBuf};
use vtax_accuracy::run::{self, StudyOptions};
use vtax_accuracy::study::Study;
use vtax_accuracy::table;
use vtax_host::signals::{Signals, end_with_reader};
use vtax_lab::place::Place;
use vtax_lab::plan::Catalogue;
use vtax_lab::run::default_state_dir;

pub fn run(arguments: PlanRunArgs) -> Outcome {
    let catalogue = Catalogue::standard();
    let (plan, text) = plan::read(&arguments.plan, arguments.quick, &catalogue)?;
    let results = arguments
        .results
        .unwrap_or_else(|| Path::new("results").join(&plan.name));
    let signals = Signals::install()?;
    let mut progress = progress::choose(arguments.json, &signals);
    match &arguments.at {
        Place::Local => {
            let options = StudyOptions {
                state_dir: default_state_dir(),
                place: arguments
                    .place_name
                    .unwrap_or_else(|| arguments.at.to_string()),
                emulated: arguments.emulated,
            };
            let study = run::run(&plan, &catalogue, &options, &signals, progress.as_mut());
            drop(progress);
            study?.write(&results)?;
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
                arguments: arguments
                    .quick
                    .then(|| "--quick".to_owned())
                    .into_iter()
                    .collect(),
                silence: plan.warmup + plan.duration,
            };
            let ended = inside.run(&signals, progress.as_mut());
            drop(progress);
            ended?;
        }
    }
    if arguments.json {
        return Ok(());
    }
    table(&[results], false)
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
        print!("{}", table::of(study));
    }
    Ok(())
}
