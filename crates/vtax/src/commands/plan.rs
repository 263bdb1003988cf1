//! `vtax plan`: what a plan comes to, and what plans can say.

use super::json;
use crate::Outcome;
use crate::progress::in_words;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use vtax_host::settings::{Domain, Parameter};
use vtax_lab::plan::{Catalogue, Plan, StopRule, treatments};
use vtax_units::counted;

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

pub fn check(path: &Path, quick: bool, as_json: bool) -> Outcome {
    let catalogue = Catalogue::standard();
    let (plan, _) = read(path, quick, &catalogue)?;
    let all = treatments(&plan, &catalogue);
    let is_fixed = plan.stop == StopRule::Fixed;
    let trials = all.len() * plan.repetitions as usize;
    let time = plan.expected_time(&all, &catalogue);
    if as_json {
        let records: Vec<_> = all.iter().map(|planned| &planned.record).collect();
        return json(&json!({
            "name": plan.name,
            "description": plan.description,
            "quick": plan.is_quick,
            "treatments": records,
            "repetitions": plan.repetitions,
            "trials": trials,
            "expected_seconds": time.as_secs_f64(),
            "may_stop_earlier": !is_fixed,
        }));
    }
    println!("{}: {}", plan.name, plan.description);
    for planned in &all {
        let against = planned
            .record
            .baseline
            .as_deref()
            .map_or(String::new(), |baseline| format!("   against {baseline}"));
        println!("  {}{against}", planned.record.label);
    }
    let most = if is_fixed { "" } else { "at most " };
    println!(
        "{}, {most}{}, {most}about {}",
        counted(all.len(), "treatment"),
        counted(trials, "trial"),
        in_words(time)
    );
    Ok(())
}

pub fn keys(as_json: bool) -> Outcome {
    let catalogue = Catalogue::standard();
    if as_json {
        let platforms = catalogue.platforms.iter().map(|platform| {
            let parameters = documents(platform.parameters());
            json!({"kind": platform.kind(), "parameters": parameters})
        });
        let workloads = catalogue.workloads.iter().map(|workload| {
            let parameters = documents(workload.parameters());
            json!({"kind": workload.kind(), "summary": workload.summary(), "parameters": parameters})
        });
        return json(&json!({
            "settings": documents(&catalogue.shared),
            "platforms": platforms.collect::<Vec<_>>(),
            "workloads": workloads.collect::<Vec<_>>(),
        }));
    }
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

fn documents(parameters: &[Parameter]) -> Vec<Value> {
    let document = |parameter: &Parameter| {
        json!({
            "key": parameter.key,
            "help": parameter.help,
            "values": values(parameter.domain),
            "default": parameter.default,
        })
    };
    parameters.iter().map(document).collect()
}

/// What a parameter accepts, in words.
fn values(domain: Domain) -> String {
    match domain {
        Domain::Bool => "true | false".to_owned(),
        Domain::Integer(low, high) => format!("{low} to {high}"),
        Domain::Number(low, high) => format!("{low} to {high}"),
        Domain::Choice(choices) => choices.join(" | "),
        Domain::Text(rule) => rule.to_owned(),
    }
}

fn print(parameters: &[Parameter]) {
    let keys: BTreeSet<&str> = parameters.iter().map(|parameter| parameter.key).collect();
    let width = keys.iter().map(|key| key.len()).max().unwrap_or(0);
    for parameter in parameters {
        let values = values(parameter.domain);
        let default = parameter
            .default
            .map_or(String::new(), |default| format!(" [{default}]"));
        println!(
            "  {:width$}  {}\n  {:width$}    {values}{default}",
            parameter.key, parameter.help, ""
        );
    }
}
