//! `vtax plan`: what a plan comes to, and what plans can say.

use crate::Outcome;
use crate::progress::in_words;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use vtax_host::settings::{Domain, Parameter};
use vtax_lab::plan::{Catalogue, Plan, StopRule, treatments};

/// Reads a plan file; complaints name the file as the user did.
pub fn read(
    path: &Path,
    quick: bool,
    catalogue: &Catalogue,
) -> Result<(Plan, String), Box<dyn std::error::Error>> {
    let text = fs::read_to_string(path)
        .map_err(|cause| format!("cannot read {}: {cause}", path.display()))?;
    let plan = Plan::read(&path.display().to_string(), &text, catalogue)?;
    Ok((if quick { plan.quick() } else { plan }, text))
}

pub fn check(path: &Path, quick: bool) -> Outcome {
    let catalogue = Catalogue::standard();
    let (plan, _) = read(path, quick, &catalogue)?;
    let all = treatments(&plan, &catalogue);
    println!("{}: {}", plan.name, plan.description);
    for planned in &all {
        let against = planned
            .record
            .baseline
            .as_deref()
            .map_or(String::new(), |baseline| format!("   against {baseline}"));
        println!("  {}{against}", planned.record.label);
    }
    let most = if plan.stop == StopRule::Fixed {
        ""
    } else {
        "at most "
    };
    let trials = all.len() * plan.repetitions as usize;
    let time = in_words(plan.expected_time(&all, &catalogue));
    println!(
        "{} treatments, {most}{trials} trials, {most}about {time}",
        all.len()
    );
    Ok(())
}

pub fn keys() -> Outcome {
    let catalogue = Catalogue::standard();
    println!("settings of every trial");
    print(&catalogue.shared);
    for platform in catalogue.platforms {
        println!("platform `{}`", platform.kind());
        print(platform.parameters());
    }
    for workload in catalogue.workloads {
        println!("workload `{}`: {}", workload.kind(), workload.summary());
        print(workload.parameters());
    }
    Ok(())
}

fn print(parameters: &[Parameter]) {
    let keys: BTreeSet<&str> = parameters.iter().map(|parameter| parameter.key).collect();
    let width = keys.iter().map(|key| key.len()).max().unwrap_or(0);
    for parameter in parameters {
        let values = match parameter.domain {
            Domain::Bool => "true | false".to_owned(),
            Domain::Integer(low, high) => format!("{low} to {high}"),
            Domain::Number(low, high) => format!("{low} to {high}"),
            Domain::Choice(choices) => choices.join(" | "),
            Domain::Text(rule) => rule.to_owned(),
        };
        let default = parameter
            .default
            .map_or(String::new(), |default| format!(" [{default}]"));
        println!(
            "  {:width$}  {}\n  {:width$}    {values}{default}",
            parameter.key, parameter.help, ""
        );
    }
}
