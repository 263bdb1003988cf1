// SPDX-License-Identifier: Apache-2.0
//! `vtax plan`: the check of a plan with its expected time, and the keys of plans.

use super::{json, precision};
use crate::Outcome;
use crate::cli::{PlanCheckArgs, PlanKeysArgs, PlanNewArgs};
use crate::exit::NeedsRoot;
use crate::output::{fail, out, outln};
use crate::progress::{in_words, note};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use vtax_core::counted;
use vtax_density::plan as density;
use vtax_host::HostError;
use vtax_host::settings::{Domain, Parameter};
use vtax_lab::LabError;
use vtax_lab::plan::new::Subject;
use vtax_lab::plan::{
    Catalogue, Plan, PlannedTreatment, StopRule, new, shipped, treatments, unsupported_objectives,
};
use vtax_testbed::guard::Counts;

/// Reads a plan file, and checks that the files beside it exist that it names. Errors name the path as the user wrote it.
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
    plan.check_folder(&folder_of(path))
        .map_err(LabError::from)?;
    Ok((if quick { plan.quick() } else { plan }, text))
}

/// Returns the directory of a plan's file, at which the relative paths in it start.
pub fn folder_of(plan: &Path) -> PathBuf {
    let folder = plan.parent().unwrap_or(plan);
    // `absolute` fails only without a working directory.
    std::path::absolute(Path::new(".").join(folder)).unwrap_or_else(|_| folder.to_owned())
}

/// The text of a plan's file, or of the plan that is part of vtax.
pub fn text_of(path: &Path) -> Result<String, HostError> {
    let plan = shipped::read(path)?;
    if let Some(words) = plan.note() {
        note(&words);
    }
    Ok(plan.text)
}

/// Lists the plans that are part of vtax.
pub fn list(as_json: bool) -> Outcome {
    let catalogue = Catalogue::standard();
    let entries = shipped::ALL.iter().map(|(name, text)| {
        let described = match Plan::read(name, text, &catalogue) {
            Ok(plan) => plan.description,
            Err(_) => {
                let what = other_kind(Path::new(name), text).unwrap_or_default();
                let what = what.trim_start_matches("is no plan, it has ");
                what.trim_start_matches("is ").replace("FILE", name)
            }
        };
        (*name, described)
    });
    let entries: Vec<(&str, String)> = entries.collect();
    if as_json {
        let entries = entries.iter();
        return json(&Value::Array(
            entries
                .map(|(name, described)| json!({"name": name, "description": described}))
                .collect(),
        ));
    }
    let width = entries.iter().map(|(name, _)| name.len()).max();
    for (name, described) in &entries {
        outln!("{name:0$}  {described}", width.unwrap_or_default())?;
    }
    Ok(())
}

/// Prints a plan that is part of vtax.
pub fn show(name: &str) -> Outcome {
    let (_, text) = shipped::named(name)
        .ok_or_else(|| format!("vtax has no plan {name}: `vtax plan list` lists its plans"))?;
    out!("{text}")?;
    Ok(())
}

/// The purpose of a TOML file that is not a plan of `vtax run`, with the command that reads it; `None` for a plan or an
/// unknown file.
fn other_kind(path: &Path, text: &str) -> Option<String> {
    let is_of_testbed = || {
        vtax_testbed::Settings::read(path)
            .is_ok_and(|settings| settings != vtax_testbed::Settings::default())
    };
    if density::Plan::is_meant(text) {
        Some("is a plan of climbs: `vtax density FILE` runs it".to_owned())
    } else if is_of_testbed() {
        Some(
            "is no plan, it has the settings of a testbed: \
             `vtax run PLAN --place testbed:kvm --testbed FILE` takes them"
                .to_owned(),
        )
    } else if Counts::read(path).is_ok() {
        Some("is no plan, it has the counts that `vtax testbed guard` compares with".to_owned())
    } else if is_program(path, text) {
        let name = path.file_name().unwrap_or(path.as_os_str()).display();
        Some(format!(
            "is a program, no plan: in its directory, `vtax run --platform native,container,qemu -- ./{name}` measures it, \
             and with --serve './{name}' --ready WHEN --load 'COMMAND' it is the service"
        ))
    } else {
        None
    }
}

/// Whether a file is a program or a script.
fn is_program(path: &Path, text: &str) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_script = ["py", "sh", "js", "pl", "rb", "lua"]
        .map(Some)
        .contains(&extension);
    let mode = path
        .metadata()
        .map_or(0, |found| found.permissions().mode());
    is_script || text.starts_with("#!") || mode & 0o111 != 0
}

/// Writes a new plan.
pub fn new(arguments: &PlanNewArgs) -> Outcome {
    if matches!(arguments.subject, Subject::Ssh(_)) {
        NeedsRoot::check_capabilities("it checks that this host can run trials")?;
    }
    let new = new::new_plan(&arguments.subject, &Catalogue::standard())?;
    for what in &new.notes {
        note(&format!("vtax: {what}"));
    }
    let Some(path) = &arguments.output else {
        out!("{}", new.text)?;
        return Ok(());
    };
    if path.symlink_metadata().is_ok() {
        fail!("{} exists: name a new file with -o", path.display());
    }
    vtax_files::write(path, new.text.as_bytes())?;
    note(&format!(
        "{0} is written: read it, then `vtax run --dry-run {0}`",
        path.display()
    ));
    Ok(())
}

pub fn check(arguments: &PlanCheckArgs) -> Outcome {
    let (path, quick, as_json) = (&arguments.plan, arguments.quick, arguments.format.is_json());
    let text = shipped::read(path)?.text;
    if density::Plan::is_meant(&text) {
        let plan = density::Plan::read(&path.display().to_string(), &text, quick)?;
        if !arguments.results.is_empty() {
            fail!(
                "{} is a plan of climbs, which have no blocks to compare: --results is for plans of `vtax run`",
                path.display()
            );
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
    let precision = if arguments.results.is_empty() {
        None
    } else {
        Some(precision::estimate(arguments, &plan, &all, &catalogue)?)
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

/// The parameters of a platform or workload, or of every trial.
struct Keys {
    /// The key of the list in JSON.
    list: &'static str,
    kind: &'static str,
    summary: &'static str,
    /// What a workload's own table takes.
    definition: Vec<Parameter>,
    parameters: Vec<Parameter>,
}

impl Keys {
    fn all(catalogue: &Catalogue) -> Vec<Self> {
        let of = |list, kind, summary, definition: &[Parameter], parameters: &[Parameter]| Self {
            list,
            kind,
            summary,
            definition: definition.to_vec(),
            parameters: parameters.to_vec(),
        };
        let platforms = catalogue
            .platforms
            .iter()
            .map(|platform| of("platforms", platform.kind(), "", &[], platform.parameters()));
        let workloads = catalogue.workloads.iter().map(|workload| {
            let about = workload.about();
            let (definition, parameters) = (about.definition, about.parameters);
            of(
                "workloads",
                about.kind,
                about.summary,
                definition,
                parameters,
            )
        });
        let shared = of("settings", "", "", &[], &catalogue.shared);
        std::iter::once(shared)
            .chain(platforms)
            .chain(workloads)
            .collect()
    }

    /// Leaves only parameters with `text` in their key or description, unless the name or summary has it. Returns whether
    /// anything is left.
    fn filter(&mut self, text: &str) -> bool {
        let has = |of: &str| of.to_lowercase().contains(text);
        if has(self.kind) || has(self.summary) {
            return true;
        }
        let has_text = |one: &Parameter| has(one.key) || has(one.help);
        self.definition.retain(has_text);
        self.parameters.retain(has_text);
        !self.definition.is_empty() || !self.parameters.is_empty()
    }

    fn document(&self) -> Value {
        let parameters = documents(&self.parameters);
        match self.list {
            "platforms" => json!({"kind": self.kind, "parameters": parameters}),
            _ => json!({
                "kind": self.kind,
                "summary": self.summary,
                "parameters": parameters,
                "definition": documents(&self.definition),
            }),
        }
    }
}

pub fn keys(arguments: &PlanKeysArgs) -> Outcome {
    let mut all = Keys::all(&Catalogue::standard());
    if let Some(filter) = &arguments.filter {
        let text = filter.to_lowercase();
        all.retain_mut(|keys| keys.filter(&text));
        if all.is_empty() {
            fail!("no key, platform or workload has `{filter}` in it");
        }
    }
    if arguments.format.is_json() {
        let mut lists = json!({"settings": [], "platforms": [], "workloads": []});
        for keys in &all {
            if let Some(list) = lists.get_mut(keys.list).and_then(Value::as_array_mut) {
                match keys.list {
                    "settings" => list.extend(documents(&keys.parameters)),
                    _ => list.push(keys.document()),
                }
            }
        }
        return json(&lists);
    }
    for keys in &all {
        match keys.list {
            "settings" => outln!("settings of every trial")?,
            "platforms" => outln!("platform `{}`", keys.kind)?,
            _ => outln!("workload `{}`: {}", keys.kind, keys.summary)?,
        }
        print(&[&keys.definition[..], &keys.parameters].concat())?;
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

/// The values that a parameter accepts, in words.
pub fn values(domain: Domain) -> String {
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
        outln!(
            "  {:width$}  {}\n  {:width$}    {values}{default}",
            parameter.key,
            parameter.help,
            ""
        )?;
    }
    Ok(())
}
