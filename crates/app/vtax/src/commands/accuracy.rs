// SPDX-License-Identifier: Apache-2.0
//! `vtax accuracy`: the accuracy of charge-back.

use super::{json, plan, run, testbed};
use crate::Outcome;
use crate::cli::PlanRunArgs;
use crate::output::{fail, out};
use crate::progress;
use std::path::PathBuf;
use vtax_core::counted;
use vtax_host::signals::{Signals, end_with_reader};
use vtax_lab::place::Place;
use vtax_lab::plan::{Catalogue, charge_study};
use vtax_lab::run::{Event, Planned, why_not_traced};
use vtax_report::analysis::charge::{self, Study};

pub fn run(arguments: PlanRunArgs) -> Outcome {
    let catalogue = Catalogue::standard();
    let (mut plan, text) = plan::read(arguments.plan(), arguments.quick, &catalogue)?;
    plan.check_place(&arguments.at.place)?;
    let results = arguments.results(&plan.name);
    let signals = Signals::install()?;
    let mut progress = progress::choose(arguments.format.is_json(), &signals);
    let untraced = match &arguments.at.place {
        Place::Local => why_not_traced(),
        // Emulated hosts have all prerequisites of tracing.
        Place::Testbed(_) => None,
        Place::Ssh(_) => {
            return Err("a study of charge-back runs locally or in a testbed; \
                        log in there and run it"
                .into());
        }
    };
    let study = charge_study(&plan, &catalogue, untraced.is_none())?;
    let treatments = run::narrowed(&mut plan, study, &arguments)?;
    testbed::leave_out_repetitions(&mut plan, &arguments.at, progress.as_mut())?;
    if let Some(why) = &untraced {
        let message = format!("traced is missing: {why}");
        progress.event(Event::Note { message });
    }
    let planned = Planned {
        plan: &plan,
        text: &text,
        folder: &plan::folder_of(arguments.plan()),
        treatments: &treatments,
        catalogue: &catalogue,
    };
    run::check_root(&arguments.at, &planned)?;
    let ended = run::run_here(
        planned,
        "accuracy run",
        &arguments,
        &results,
        run::Share::default(),
        &signals,
        progress.as_mut(),
    );
    drop(progress);
    let failed = ended?.failed;
    if !arguments.format.is_json() {
        table(&[results], false)?;
    }
    if failed > 0 {
        fail!(
            "{} failed; the same command runs them again",
            counted(failed, "trial")
        );
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
        out!("{}", charge::markdown(study))?;
    }
    Ok(())
}
