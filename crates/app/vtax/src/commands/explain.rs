// SPDX-License-Identifier: Apache-2.0
//! `vtax explain`: metrics, settings of plans and reasons to suspect a trial, from their catalogues.

use super::report::width;
use super::{json, plan};
use crate::Outcome;
use crate::cli::ExplainArgs;
use crate::output::{fail, outln};
use serde::Serialize;
use std::collections::BTreeMap;
use vtax_core::metric::{self, Better, FAMILIES, METRICS, Measure, Metric};
use vtax_host::settings::Parameter;
use vtax_lab::plan::{Catalogue, keys};
use vtax_lab::reasons::{self, Reason};

/// The explanation of one name.
#[derive(Debug, Serialize)]
struct Explanation {
    kind: &'static str,
    name: String,
    /// Its parts by their titles, in the order of the output.
    parts: Vec<(&'static str, String)>,
}

pub fn run(arguments: &ExplainArgs) -> Outcome {
    let text = arguments.words.join(" ");
    let found = explain(&text, &Catalogue::standard());
    if found.is_empty() {
        fail!(
            "`{text}` is no metric, setting or reason that vtax has{}: `vtax plan keys {}` searches the settings, and \
             `vtax report RESULTS --json` has the metrics of a run",
            nearest(&text),
            text.split('.').next_back().unwrap_or_default()
        );
    }
    if arguments.format.is_json() {
        return json(&found);
    }
    for (place, one) in found.iter().enumerate() {
        if place > 0 {
            outln!()?;
        }
        outln!("{} `{}`", one.kind, one.name)?;
        for (title, text) in &one.parts {
            let lines = wrapped(text, width() - INDENT);
            for (number, line) in lines.iter().enumerate() {
                let title = if number == 0 { title } else { "" };
                outln!("  {title:<10} {line}")?;
            }
        }
    }
    Ok(())
}

/// The column of the texts.
const INDENT: usize = 13;

/// The lines of a text of at most `width` characters, unless a word is longer.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn explain(text: &str, catalogue: &Catalogue) -> Vec<Explanation> {
    let mut found: Vec<Explanation> = metric::lookup(text)
        .map(|metric| of_metric(text, metric))
        .into_iter()
        .collect();
    found.extend(settings(text, catalogue));
    if found.is_empty() {
        found.extend(reasons::find(text).into_iter().map(of_reason));
    }
    found
}

fn of_metric(name: &str, metric: &Metric) -> Explanation {
    let unit = match metric.measure {
        Measure::Fixed(unit) => unit.to_string(),
        Measure::PerWork(base) => {
            format!("{base:?} for each unit of the workload's work").to_lowercase()
        }
        Measure::Workload => "the workload's".to_owned(),
    };
    let better = match metric.better {
        Better::Lower => "lower: it is a cost",
        Better::Higher => "higher",
        Better::Neither => "neither: it describes",
    };
    let meaning = metric.title.replace("{}", "…");
    let mut parts = vec![("meaning", meaning), ("better", better.to_owned())];
    if !unit.is_empty() {
        parts.push(("unit", unit));
    }
    parts.extend(metric::origin(name).map(|text| ("source", text.to_owned())));
    Explanation {
        kind: "metric",
        name: name.to_owned(),
        parts,
    }
}

/// The parameters with this key, or with this last part of it, as an entry of a plan writes it; each with the platforms and
/// workloads that have it.
fn settings(key: &str, catalogue: &Catalogue) -> Vec<Explanation> {
    let mut found: BTreeMap<(&str, &str), (Parameter, Vec<String>)> = BTreeMap::new();
    let last = format!(".{key}");
    let mut add = |parameters: &[Parameter], of: String| {
        let named = parameters
            .iter()
            .filter(|one| one.key == key || one.key.ends_with(&last));
        for one in named {
            let (_, owners) = found
                .entry((one.key, one.help))
                .or_insert((*one, Vec::new()));
            owners.push(of.clone());
        }
    };
    for (owner, own) in keys::ALL {
        add(own, owner.to_owned());
    }
    add(&catalogue.shared, "every trial".to_owned());
    for platform in catalogue.platforms {
        add(
            platform.parameters(),
            format!("platform {}", platform.kind()),
        );
    }
    for workload in catalogue.workloads {
        let about = workload.about();
        add(about.parameters, format!("workload {}", about.kind));
        add(about.definition, format!("workload {}", about.kind));
    }
    let of = |(parameter, owners): (Parameter, Vec<String>)| Explanation {
        kind: "setting",
        name: parameter.key.to_owned(),
        parts: [
            Some(("meaning", parameter.help.to_owned())),
            Some(("values", plan::values(parameter.domain))),
            parameter
                .default
                .map(|default| ("default", default.to_owned())),
            Some(("of", owners.join(", "))),
        ]
        .into_iter()
        .flatten()
        .collect(),
    };
    found.into_values().map(of).collect()
}

fn of_reason(reason: &Reason) -> Explanation {
    let effect = if reason.is_suspect {
        "The trial is suspect and does not count; it runs again at the end of its block."
    } else {
        "The trial is disturbed: it counts, and scatters more."
    };
    Explanation {
        kind: "reason",
        name: reason.name.clone(),
        parts: vec![
            ("text", reason.words.join(" …; ")),
            ("effect", effect.to_owned()),
            ("because", reason.because.clone()),
            ("source", reason.source.clone()),
            ("remedy", reason.remedy.clone()),
        ],
    }
}

/// The metrics that begin with the first part of a name, as a hint.
fn nearest(text: &str) -> String {
    let start = text.split('.').next().unwrap_or_default();
    let families = FAMILIES.iter().map(|family| family.metric());
    let names: Vec<&str> = METRICS
        .iter()
        .copied()
        .chain(families)
        .map(|metric| metric.name)
        .filter(|name| !start.is_empty() && name.split('.').next() == Some(start))
        .collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(" (metrics of {start} are {})", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(text: &str) -> Vec<(&'static str, String)> {
        let all = explain(text, &Catalogue::standard());
        all.into_iter().map(|one| (one.kind, one.name)).collect()
    }

    #[test]
    fn metrics_settings_and_reasons_are_explained_by_their_catalogues() {
        assert_eq!(
            explained("cpu.per_work"),
            [("metric", "cpu.per_work".to_owned())]
        );
        assert_eq!(
            explained("cpu.stage.vcpu"),
            [("metric", "cpu.stage.vcpu".to_owned())]
        );
        assert_eq!(explained("link.mtu")[0], ("setting", "link.mtu".to_owned()));
        let reason = "other programs used 2.45 s of CPU time";
        assert_eq!(explained(reason), [("reason", "foreign-load".to_owned())]);
        assert!(explained("cpu.nothing").is_empty());
        // As the entry of a workload writes it.
        assert_eq!(explained("ready"), [("setting", "load.ready".to_owned())]);
        assert!(explained("rate").contains(&("setting", "load.rate".to_owned())));
        assert!(nearest("cpu.nothing").contains("cpu.per_work"));
    }

    #[test]
    fn texts_are_wrapped_between_words() {
        let lines = wrapped("one two three extraordinarily", 9);
        assert_eq!(lines, ["one two", "three", "extraordinarily"]);
    }

    #[test]
    fn every_metric_and_every_setting_has_an_explanation_with_a_source_or_values() {
        let catalogue = Catalogue::standard();
        for metric in METRICS {
            let found = explain(metric.name, &catalogue);
            assert!(
                found[0].parts.iter().any(|(title, _)| *title == "source"),
                "{}",
                metric.name
            );
        }
        let platforms = catalogue.platforms.iter().flat_map(|one| one.parameters());
        for parameter in catalogue.shared.iter().chain(platforms) {
            let found = explain(parameter.key, &catalogue);
            let has = found.iter().any(|one| {
                one.parts
                    .iter()
                    .any(|(title, text)| *title == "values" && !text.is_empty())
            });
            assert!(has, "{}", parameter.key);
        }
    }
}
