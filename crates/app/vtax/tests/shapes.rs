// SPDX-License-Identifier: Apache-2.0
//! The JSON of commands has the shapes that `docs/reference/schemas` documents, as JSON Schema.
//!
//! With `VTAX_WRITE_SCHEMAS=1` the test adds what a schema lacks, and leaves its descriptions as they are.

use crate::cli::{command, finished_results, work};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use vtax_core::{Base, Source, Unit, metric};
use vtax_results::{Accepted, IdlePhase, Metric, Trial};
use vtax_testkit::results::Fake;

/// The schemas with the command lines whose output they describe. RESULTS is a directory of results, FAKE another one.
const SCHEMAS: &[(&str, &[&str])] = &[
    ("advise", &["advise --json top.jsonl"]),
    (
        "bill",
        &[
            "bill --json hour --tariff tariff.toml",
            "bill --json hour --tariff tariff.toml --per 1000 request",
            "bill --json hour --tariff machine.toml",
            "bill --json hour --tariff carbon.toml",
        ],
    ),
    (
        "compare",
        &[
            "compare --json RESULTS RESULTS",
            "compare --json FAKE FAKE --fail-on cpu.per_work>5%",
        ],
    ),
    (
        "explain",
        &[
            "explain --json cpu.per_work",
            "explain --json link.mtu",
            "explain --json foreign-load",
        ],
    ),
    (
        "history",
        &["history --json RESULTS RESULTS", "history --json FAKE FAKE"],
    ),
    (
        "plan-check",
        &[
            "plan check --json plan.toml",
            "plan check --json climbs.toml",
        ],
    ),
    ("plan-keys", &["plan keys --json"]),
    ("plan-list", &["plan list --json"]),
    ("report", &["report --json RESULTS", "report --json FAKE"]),
    ("survey", &["survey --json RESULTS", "survey --json FAKE"]),
];

/// Keys whose objects are maps: their keys are names of the run, such as factors.
const MAPS: [&str; 8] = [
    "environment",
    "factors",
    "headline",
    "levels",
    "metrics",
    "readings",
    "steady",
    "stages",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/schemas")
}

/// The schema of one value; `name` is its key.
fn schema(name: &str, value: &Value) -> Value {
    match value {
        Value::Null => json!({"type": ["null"]}),
        Value::Bool(_) => json!({"type": ["boolean"]}),
        Value::Number(_) => json!({"type": ["number"]}),
        Value::String(_) => json!({"type": ["string"]}),
        Value::Array(items) => {
            let items = items.iter().map(|item| schema("", item));
            let items = items.reduce(|one, other| merged(&one, &other));
            match items {
                Some(items) => json!({"type": ["array"], "items": items}),
                None => json!({"type": ["array"]}),
            }
        }
        Value::Object(fields) => {
            let is_word = |key: &String| {
                key.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            };
            if MAPS.contains(&name) || !fields.keys().all(is_word) {
                let values = fields.values().map(|value| schema("", value));
                return match values.reduce(|one, other| merged(&one, &other)) {
                    Some(values) => json!({"type": ["object"], "additionalProperties": values}),
                    None => json!({"type": ["object"]}),
                };
            }
            let fields = fields
                .iter()
                .map(|(key, value)| (key.clone(), schema(key, value)));
            json!({"type": ["object"], "properties": fields.collect::<Map<_, _>>()})
        }
    }
}

/// The schema of what one of two schemas describes. Of a description, the first stays.
fn merged(one: &Value, other: &Value) -> Value {
    let (Value::Object(one), Value::Object(other)) = (one, other) else {
        return one.clone();
    };
    let mut both = one.clone();
    for (key, value) in other {
        let merged = match (both.get(key), key.as_str()) {
            (None, _) => value.clone(),
            (Some(known), "type") => {
                let mut types = [known, value]
                    .map(|of| of.as_array().cloned().unwrap_or_default())
                    .concat();
                types.sort_by_key(ToString::to_string);
                types.dedup();
                Value::Array(types)
            }
            (Some(known), "properties") => {
                let mut all = known.as_object().cloned().unwrap_or_default();
                for (name, of) in value.as_object().into_iter().flatten() {
                    let of = all.get(name).map_or(of.clone(), |known| merged(known, of));
                    all.insert(name.clone(), of);
                }
                Value::Object(all)
            }
            (Some(known), "items" | "additionalProperties") => merged(known, value),
            (Some(known), _) => known.clone(),
        };
        both.insert(key.clone(), merged);
    }
    Value::Object(both)
}

/// The deviations of a value from a schema, each with its path.
fn deviations(value: &Value, schema: &Value, path: &str, found: &mut Vec<String>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let types = schema["type"].as_array();
    if types.is_some_and(|types| !types.iter().any(|one| one == kind)) {
        found.push(format!(
            "{path} is {kind}, and documented as {}",
            schema["type"]
        ));
    }
    match value {
        Value::Array(items) => {
            for item in items {
                match schema.get("items") {
                    Some(of) => deviations(item, of, &format!("{path}[]"), found),
                    None => found.push(format!("{path}[] is not documented")),
                }
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                let known = schema["properties"]
                    .get(key)
                    .or(schema.get("additionalProperties"));
                let path = format!("{path}.{key}");
                match known {
                    Some(of) => deviations(value, of, &path, found),
                    None => found.push(format!("{path} is not documented")),
                }
            }
        }
        _ => {}
    }
}

/// The documents that a command prints: one, or one a line.
fn documents(work: &Path, results: &str, line: &str) -> Vec<Value> {
    let words: Vec<&str> = line
        .split(' ')
        .map(|word| match word {
            "RESULTS" => results,
            "FAKE" => "fake",
            other => other,
        })
        .collect();
    let output = command(work, &words).output().unwrap();
    let read = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    let documents: Result<Vec<Value>, _> = read.collect();
    documents.unwrap_or_else(|cause| panic!("{line}: {cause}"))
}

/// Adds joules of a meter above idle power, of which bare metal has nearly none, so that a ratio has an open end. Two blocks
/// share an idle phase.
fn add_energy_above_idle(trial: &mut Trial) {
    let block = f64::from(trial.block);
    let is_vm = trial.treatment.platform == "qemu";
    let own = if is_vm {
        30.0
    } else {
        4.0 * (block % 3.0) - 3.0
    };
    let idle = 40.0 + 0.1 * (block / 2.0).floor();
    for (declared, value) in [
        (metric::POWER_MEAN, idle + own),
        (metric::POWER_IDLE, idle),
        (metric::ENERGY_TOTAL, idle + own),
        (metric::ENERGY_ABOVE_IDLE, own),
    ] {
        let unit = Unit::from_base(Base::Joule);
        let of = Metric::new(declared, "", unit, value, Source::Measured);
        trial.metrics.insert(declared.name.to_owned(), of);
    }
    trial.observation.idle = Some(IdlePhase {
        started: format!("at {idle}"),
        block: trial.block,
        seconds: 5.0,
        watts: Some(idle),
        busy: Some(0.01),
        not_idle: None,
    });
}

#[test]
fn the_json_of_commands_has_the_documented_shapes() {
    let work = work();
    let results = finished_results(work.path());
    let fake = Fake {
        blocks: 8,
        canary: Some(1.0),
        ..Fake::default()
    };
    let fake = fake.write(&work.path().join("fake"));
    for mut trial in fake.trials().map(Result::unwrap) {
        add_energy_above_idle(&mut trial);
        fake.rewrite_trial(&trial).unwrap();
    }
    fake.accept(&Accepted {
        by: "ann".to_owned(),
        at: "2026-11-20T14:03:00Z".to_owned(),
        why: "a safer cipher".to_owned(),
    })
    .unwrap();
    fs::copy(crate::advise::lines(), work.path().join("top.jsonl")).unwrap();
    crate::bill::record(work.path());
    let writes = std::env::var_os("VTAX_WRITE_SCHEMAS").is_some();
    let mut wrong = Vec::new();
    for (name, lines) in SCHEMAS {
        let path = folder().join(format!("{name}.json"));
        let text = fs::read_to_string(&path).unwrap_or_else(|_| "{}".to_owned());
        let mut known: Value = serde_json::from_str(&text).unwrap();
        for line in *lines {
            for document in documents(work.path(), &results, line) {
                if writes {
                    known = merged(&known, &schema("", &document));
                }
                let mut found = Vec::new();
                deviations(&document, &known, name, &mut found);
                found.dedup();
                wrong.extend(found);
            }
        }
        if writes {
            fs::create_dir_all(folder()).unwrap();
            fs::write(&path, serde_json::to_string_pretty(&known).unwrap() + "\n").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_schema_is_in_its_page() {
    let page = fs::read_to_string(folder().join("../json.md")).unwrap();
    for (name, _) in SCHEMAS {
        assert!(page.contains(&format!("(schemas/{name}.json)")), "{name}");
    }
    let files = fs::read_dir(folder()).unwrap();
    let mut names: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let stems: Vec<&str> = names
        .iter()
        .map(|path| path.file_stem().unwrap().to_str().unwrap())
        .collect();
    let tested: Vec<&str> = SCHEMAS.iter().map(|(name, _)| *name).collect();
    assert_eq!(stems, tested);
}

#[test]
fn a_field_that_no_schema_has_and_a_wrong_type_are_deviations() {
    let known = schema(
        "",
        &json!({"a": 1, "factors": {"x.y": "z"}, "list": [{"b": null}]}),
    );
    let deviating = |value: Value| {
        let mut found = Vec::new();
        deviations(&value, &known, "it", &mut found);
        found
    };
    assert!(deviating(json!({"a": 2.5, "factors": {"other": "w"}, "list": []})).is_empty());
    assert_eq!(deviating(json!({"c": 1})), ["it.c is not documented"]);
    assert_eq!(deviating(json!({"list": [{"b": 1}]})).len(), 1);
    assert_eq!(
        deviating(json!({"a": "1"})),
        ["it.a is string, and documented as [\"number\"]"]
    );
}
