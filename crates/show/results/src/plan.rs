// SPDX-License-Identifier: Apache-2.0
//! The plan of a run, read from its text: the gates, and the keys that a comparison with another plan names.

use super::{ResultsDir, ResultsError};
use crate::limit::{GateError, Of, PlannedGate};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// The plan of a run.
#[derive(Debug, Clone, Default)]
pub struct RunPlan {
    /// Every value as TOML by its dotted key. An entry of a list of tables is `SECTION[NAME]`.
    keys: BTreeMap<String, String>,
    gates: Vec<PlannedGate>,
    /// The reason why the plan or its gates cannot be read.
    problem: Option<String>,
}

/// The reason why a plan or its gates cannot be read.
#[derive(Debug, thiserror::Error)]
enum PlanError {
    /// Its file.
    #[error(transparent)]
    File(#[from] ResultsError),
    /// Its text, or a table that is no gate.
    #[error("{}", .0.message())]
    Toml(#[from] toml::de::Error),
    /// A gate that means nothing.
    #[error(transparent)]
    Gate(#[from] GateError),
}

/// A `[[gate]]` of a plan.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GateTable {
    metric: String,
    limit: String,
    platform: Option<String>,
    treatment: Option<String>,
    #[serde(default)]
    of: Of,
}

impl RunPlan {
    /// Reads the plan of a results directory.
    pub fn from_results(results: &ResultsDir) -> Self {
        let read = || -> Result<Table, PlanError> { Ok(results.plan_text()?.parse()?) };
        let table = match read() {
            Ok(table) => table,
            Err(cause) => {
                return Self {
                    problem: Some(cause.to_string()),
                    ..Self::default()
                };
            }
        };
        let mut keys = BTreeMap::new();
        flatten("", &table, &mut keys);
        let (gates, problem) = match gates(&table) {
            Ok(gates) => (gates, None),
            Err(cause) => (Vec::new(), Some(cause.to_string())),
        };
        Self {
            keys,
            gates,
            problem,
        }
    }

    /// The gates.
    ///
    /// # Errors
    /// The reason why the plan or its gates cannot be read.
    pub fn gates(&self) -> Result<&[PlannedGate], &str> {
        self.problem.as_deref().map_or(Ok(&self.gates), Err)
    }

    /// Whether the run is looked at while it goes on, and ends when it knows enough.
    pub fn ends_when_it_knows(&self) -> bool {
        self.keys
            .get("stop.rule")
            .is_some_and(|rule| rule == "\"until\"")
    }

    /// Whether comparisons are of the typical pair of trials, in place of the mean.
    pub fn is_of_typical_pairs(&self) -> bool {
        self.keys
            .get("estimate")
            .is_some_and(|estimate| estimate == "\"typical\"")
    }

    /// The keys that only one of two plans has, or that differ; `None` where a plan cannot be read.
    pub fn differing(&self, other: &Self) -> Option<Vec<String>> {
        self.differing_as("", other, "")
    }

    /// As [`RunPlan::differing`], where the workload `before` of this plan is compared with `after` of the other.
    pub fn differing_as(&self, before: &str, other: &Self, after: &str) -> Option<Vec<String>> {
        if self.keys.is_empty() || other.keys.is_empty() {
            return None;
        }
        let (old, new) = (
            format!("workload[{before}]."),
            format!("workload[{after}]."),
        );
        let renamed = self
            .keys
            .iter()
            .map(|(key, value)| match key.strip_prefix(&old) {
                Some(rest) => (format!("{new}{rest}"), value.clone()),
                None => (key.clone(), value.clone()),
            });
        let mut renamed: BTreeMap<String, String> = renamed.collect();
        // A value as the plan writes it.
        if let Some(name) = other.keys.get(&(new.clone() + "name")) {
            renamed.insert(new + "name", name.clone());
        }
        let mut keys: BTreeSet<&String> = renamed.keys().chain(other.keys.keys()).collect();
        keys.retain(|key| renamed.get(*key) != other.keys.get(*key));
        Some(keys.into_iter().cloned().collect())
    }
}

fn gates(table: &Table) -> Result<Vec<PlannedGate>, PlanError> {
    let Some(value) = table.get("gate") else {
        return Ok(Vec::new());
    };
    let tables: Vec<GateTable> = value.clone().try_into()?;
    let gates = tables.iter().map(|gate| {
        let name = gate.treatment.as_deref().or(gate.platform.as_deref());
        PlannedGate::new(&gate.metric, name, &gate.limit, gate.of)
    });
    Ok(gates.collect::<Result<_, _>>()?)
}

fn flatten(before: &str, table: &Table, keys: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let key = match before {
            "" => key.clone(),
            before => format!("{before}.{key}"),
        };
        match value {
            Value::Table(inner) => flatten(&key, inner, keys),
            Value::Array(entries) if !entries.is_empty() && entries.iter().all(Value::is_table) => {
                for (at, entry) in entries.iter().enumerate() {
                    let Some(inner) = entry.as_table() else {
                        continue;
                    };
                    let text = |key: &str| inner.get(key).and_then(Value::as_str);
                    let name = text("name").or_else(|| text("kind"));
                    let name = name.map_or_else(|| (at + 1).to_string(), str::to_owned);
                    flatten(&format!("{key}[{name}]"), inner, keys);
                }
            }
            value => {
                keys.insert(key, value.to_string());
            }
        }
    }
}
