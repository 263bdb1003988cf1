// SPDX-License-Identifier: Apache-2.0
//! `vtax plan`: the check of a plan with its expected time, and the keys of plans.

use super::{json, precision};
use crate::Outcome;
use crate::cli::{PlanCheckArgs, PlanNewArgs};
use crate::output::{out, outln};
use crate::progress::{in_words, note};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::Path;
use vtax_core::counted;
use vtax_density::plan as density;
use vtax_host::HostError;
use vtax_host::settings::{Domain, Parameter};
use vtax_lab::plan::{
    Catalogue, Plan, PlannedTreatment, StopRule, new, treatments, unsupported_objectives,
};
use vtax_testbed::guard::Counts;

/// Reads a plan file; errors name the path as the user wrote it.
pub fn read(
    path: &Path,
    quick: bool,
    catalogue: &Catalogue,
) -> Result<(Plan, String), Box<dyn Error>> {
    let text = text_of(path)?;
    let plan = Plan::read(&path.display().to_string(), &text, catalogue);
    let plan = plan.map_err(|wrong| match other_kind(path, &text) {
        Some(what) => format!("{} {what}", path.display()).into(),
        None => Box::<dyn Error>::from(wrong),
    })?;
    Ok((if quick { plan.quick() } else { plan }, text))
}

fn text_of(path: &Path) -> Result<String, HostError> {
    fs::read_to_string(path).map_err(HostError::file("read", path))
}

/// The purpose of a TOML file that is not a plan of `vtax run`, with the command that reads it; `None` for a plan or an
/// unknown file.
fn other_kind(path: &Path, text: &str) -> Option<&'static str> {
    let is_of_testbed = || {
        vtax_testbed::Settings::read(path)
            .is_ok_and(|settings| settings != vtax_testbed::Settings::default())
    };
    if density::Plan::is_meant(text) {
        Some("is a plan of climbs: `vtax density FILE` runs it")
    } else if is_of_testbed() {
        Some(
            "is no plan, it has the settings of a testbed: \
             `vtax run PLAN --at testbed:kvm --testbed FILE` takes them",
        )
    } else if Counts::read(path).is_ok() {
        Some("is no plan, it has the counts that `vtax testbed guard` compares with")
    } else {
        None
    }
}

/// Writes a new plan.
pub fn new(arguments: &PlanNewArgs) -> Outcome {
    let new = new::new_plan(&arguments.subject, &Catalogue::standard())?;
    for what in &new.notes {
        note(&format!("vtax: {what}"));
    }
    let Some(path) = &arguments.output else {
        out!("{}", new.text)?;
        return Ok(());
    };
    if path.symlink_metadata().is_ok() {
        return Err(format!("{} exists: name a new file with -o", path.display()).into());
    }
    vtax_files::write(path, new.text.as_bytes())?;
    note(&format!(
        "{0} is written: read it, then `vtax run --dry-run {0}`",
        path.display()
    ));
    Ok(())
}

pub fn check(arguments: &PlanCheckArgs) -> Outcome {
    let (path, quick, as_json) = (&arguments.plan, arguments.quick, arguments.json);
    let text = text_of(path)?;
    if density::Plan::is_meant(&text) {
        let plan = density::Plan::read(&path.display().to_string(), &text, quick)?;
        if !arguments.results.is_empty() {
            return Err(format!(
                "{} is a plan of climbs, which have no blocks to compare: --results is for plans of `vtax run`",
                path.display()
            )
            .into());
        }
        return show_density(&plan, as_json);
    }
    let catalogue = Catalogue::standard();
    let (plan, _) = read(path, quick, &catalogue)?;
    let all = treatments(&plan, &catalogue);
    let caveats = unsupported_objectives(&plan, &all, &catalogue);
    let is_fixed = plan.stop == StopRule::Fixed;
    let trials = all.len() * plan.repetitions as usize;
    let time = plan.expected_time(&all, &catalogue);
    let precision = match arguments.results.is_empty() {
        true => None,
        false => Some(precision::estimate(arguments, &plan, &all, &catalogue)?),
    };
    if as_json {
        return json(&json!({
            "precision": precision,
            "name": plan.name,
            "description": plan.description,
            "quick": plan.is_quick,
            "treatments": all.iter().map(|planned| &planned.record).collect::<Vec<_>>(),
            "without_baseline": all.iter().filter_map(without_baseline).collect::<Vec<_>>(),
            "repetitions": plan.repetitions,
            "trials": trials,
            "expected_seconds": time.as_secs_f64(),
            "may_stop_earlier": !is_fixed,
            "cautions": caveats,
            "gates": plan.gates.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }));
    }
    outln!("{}: {}", plan.name, plan.description)?;
    for planned in &all {
        let record = &planned.record;
        let against = match (&record.baseline, &planned.missing_baseline) {
            (Some(baseline), _) => format!("   against {baseline}"),
            (None, Some(missing)) => format!("   no baseline: the plan has no {missing}"),
            (None, None) => String::new(),
        };
        outln!("  {}{against}", record.label)?;
    }
    for gate in &plan.gates {
        outln!("  gate: {gate}")?;
    }
    for caveat in &caveats {
        outln!("  caution: {caveat}")?;
    }
    let most = if is_fixed { "" } else { "at most " };
    outln!(
        "{}, {most}{}, {most}about {}",
        counted(all.len(), "treatment"),
        counted(trials, "trial"),
        in_words(time)
    )?;
    match (&precision, arguments.results.first()) {
        (Some(found), Some(at)) => precision::print(found, &plan, all.len(), at),
        _ => Ok(()),
    }
}

/// The notice for a treatment whose baseline is not in the plan.
pub fn without_baseline(planned: &PlannedTreatment) -> Option<String> {
    let missing = planned.missing_baseline.as_ref()?;
    let label = &planned.record.label;
    Some(format!(
        "{label} is compared with nothing: the plan has no treatment {missing}"
    ))
}

/// Prints the check of a plan of climbs.
fn show_density(plan: &density::Plan, as_json: bool) -> Outcome {
    let climbs = plan.variants.len() * plan.repetitions as usize;
    let time = plan.least_time();
    if as_json {
        let treatment = |variant: &density::Variant| {
            json!({
                "label": variant.treatment.label,
                "platform": variant.treatment.platform,
                "factors": variant.treatment.factors,
                "maximum": variant.maximum,
                "if_present": variant.if_present,
            })
        };
        return json(&json!({
            "name": plan.name,
            "description": plan.description,
            "quick": plan.is_quick,
            "treatments": plan.variants.iter().map(treatment).collect::<Vec<_>>(),
            "repetitions": plan.repetitions,
            "trials": climbs,
            "least_seconds": time.as_secs_f64(),
        }));
    }
    outln!("{}: {}", plan.name, plan.description)?;
    for variant in &plan.variants {
        let guests = counted(variant.maximum, "guest");
        let where_present = if variant.if_present {
            ", where it is installed"
        } else {
            ""
        };
        let label = &variant.treatment.label;
        outln!("  {label}   up to {guests}{where_present}")?;
    }
    outln!(
        "{}, {}, at least {} and the time that guests take to be made",
        counted(plan.variants.len(), "treatment"),
        counted(climbs, "climb"),
        in_words(time)
    )?;
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
            let about = workload.about();
            let parameters = documents(about.parameters);
            let definition = documents(about.definition);
            json!({"kind": about.kind, "summary": about.summary, "parameters": parameters, "definition": definition})
        });
        return json(&json!({
            "settings": documents(&catalogue.shared),
            "platforms": platforms.collect::<Vec<_>>(),
            "workloads": workloads.collect::<Vec<_>>(),
        }));
    }
    outln!("settings of every trial")?;
    print(&catalogue.shared)?;
    for platform in catalogue.platforms {
        outln!("platform `{}`", platform.kind())?;
        print(platform.parameters())?;
    }
    for workload in catalogue.workloads {
        outln!(
            "workload `{}`: {}",
            workload.kind(),
            workload.about().summary
        )?;
        print(&[workload.about().definition, workload.about().parameters].concat())?;
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
            "alias": parameter.alias,
        })
    };
    parameters.iter().map(document).collect()
}

/// The values that a parameter accepts, in words.
fn values(domain: Domain) -> String {
    match domain {
        Domain::Bool => "true | false".to_owned(),
        Domain::Integer(low, high) => format!("{low} to {high}"),
        Domain::Number(low, high) => format!("{low} to {high}"),
        Domain::Choice(choices) => choices.join(" | "),
        Domain::Text(rule) => rule.to_owned(),
    }
}

fn print(parameters: &[Parameter]) -> Outcome {
    let keys: BTreeSet<&str> = parameters.iter().map(|parameter| parameter.key).collect();
    let width = keys.iter().map(|key| key.len()).max().unwrap_or(0);
    for parameter in parameters {
        let values = values(parameter.domain);
        let default = parameter
            .default
            .map_or(String::new(), |default| format!(" [{default}]"));
        let alias = parameter
            .alias
            .map_or(String::new(), |alias| format!(", also as {alias}"));
        outln!(
            "  {:width$}  {}\n  {:width$}    {values}{default}{alias}",
            parameter.key,
            parameter.help,
            ""
        )?;
    }
    Ok(())
}
