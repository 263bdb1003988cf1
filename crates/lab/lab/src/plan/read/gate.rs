// SPDX-License-Identifier: Apache-2.0
//! The `[[gate]]` tables of a plan: limits that `vtax run` and `vtax compare` judge.

use super::Reader;
use super::values::{sections, table};
use crate::plan::{Catalogue, Entry, Plan, Variant, treatments};
use std::collections::BTreeSet;
use toml::de::DeTable;
use vtax_core::metric::{self, OWN};
use vtax_host::settings::Level;
use vtax_results::limit::{Of, PlannedGate};

/// The keys of a gate.
const KEYS: [&str; 6] = ["metric", "limit", "platform", "treatment", "variant", "of"];
/// The most gates of a plan.
const MOST_GATES: usize = 100;

impl Reader<'_, &Catalogue> {
    /// Reads the gates, each with the offset of its table.
    pub(super) fn gates(
        &mut self,
        root: &DeTable<'_>,
        platforms: &[Entry],
        variants: &[Variant],
    ) -> Vec<(usize, PlannedGate)> {
        let Some(value) = root.get("gate") else {
            return Vec::new();
        };
        let array = value.get_ref().as_array();
        let Some(array) = array.filter(|all| all.len() <= MOST_GATES) else {
            let message = format!("`gate` must be a list of at most {MOST_GATES} sections");
            self.refuse(value, message)
                .help_with("write [[gate]] with two brackets");
            return Vec::new();
        };
        let own = own_metrics(root);
        let gates = array.iter().filter_map(|item| {
            let table = self.table(item, "gate")?;
            let gate = self.gate(table, item.span().start, (platforms, variants), &own)?;
            Some((item.span().start, gate))
        });
        gates.collect()
    }

    fn gate(
        &mut self,
        table: &DeTable<'_>,
        offset: usize,
        (platforms, variants): (&[Entry], &[Variant]),
        own: &BTreeSet<String>,
    ) -> Option<PlannedGate> {
        self.only(table, KEYS, "[[gate]]");
        for key in ["metric", "limit"] {
            if !table.contains_key(key) {
                self.complain(offset, format!("this gate has no `{key}`"))
                    .help_with("such as metric = \"cpu.per_work\" and limit = \"> +5%\"");
            }
        }
        let metric = self.string(table, "metric")?;
        let limit = self.string(table, "limit")?;
        let place = |key: &str| table.get(key).map_or(offset, |value| value.span().start);
        // Some workloads declare metrics that are in no catalogue.
        if metric::lookup(&metric).is_none()
            && !own.contains(&metric)
            && let Some(name) = OWN.part(&metric)
        {
            let message = format!("no command of this plan has the metric `{name}`");
            let valid = own.iter().map(String::as_str);
            self.unknown(place("metric"), message, &metric, valid);
        }
        let platform = self.string(table, "platform");
        let treatment = self.string(table, "treatment");
        if let Some(name) = &platform {
            self.known_platform(name, place("platform"), platforms);
        }
        let variant = table.get("variant").and_then(|value| {
            let levels: Vec<Level> = variants.iter().map(Variant::level).collect();
            self.variant_level(value, &levels)
        });
        let variant = variant.map(|level| level.to_string());
        let subjects = [&treatment, &platform, &variant];
        if subjects.iter().filter(|subject| subject.is_some()).count() > 1 {
            self.complain(
                offset,
                "a gate has one of `platform`, `treatment` and `variant`",
            )
            .help_with("a treatment has one platform and one variant: leave the others out");
        }
        let words = [("tax", Of::Tax), ("cost", Of::Cost)];
        let message = |_: &str| "`of` must be \"tax\" or \"cost\"".to_owned();
        let of = self.word(table, "of", &words, message);
        // Variants are compared by their costs.
        let of = of.unwrap_or(if variants.is_empty() {
            Of::Tax
        } else {
            Of::Cost
        });
        let name = subjects.into_iter().flatten().next().map(String::as_str);
        match PlannedGate::new(&metric, name, &limit, of) {
            Ok(planned) if planned.gate.is_of_one_run && of == Of::Cost => {
                self.complain(place("of"), "a limit such as `> 2x` is for a tax")
                    .help_with(
                        "leave `of` out, or limit the change of the cost: limit = \"> +5%\"",
                    );
                None
            }
            Ok(planned) => Some(planned),
            Err(cause) => {
                self.complain(place("limit"), cause.to_string());
                None
            }
        }
    }

    /// Refuses gates for treatments that the plan does not have, or whose taxes do not exist.
    pub(super) fn gates_apply(&mut self, gates: &[(usize, PlannedGate)], plan: &Plan) {
        if gates.is_empty() {
            return;
        }
        let all = treatments(plan, self.catalogue);
        for (offset, planned) in gates {
            let applies = |needs_baseline: bool| {
                all.iter().any(|treatment| {
                    let record = &treatment.record;
                    let gate = &planned.gate;
                    gate.applies_to(&record.label, &record.platform, record.variant())
                        && (record.baseline.is_some() || !needs_baseline)
                })
            };
            if !applies(false) {
                let labels = all.iter().map(|treatment| treatment.record.label.as_str());
                let name = planned.gate.subject.as_deref().unwrap_or_default();
                let message = format!("the plan has no treatment `{name}`");
                self.unknown(*offset, message, name, labels);
            } else if planned.of == Of::Tax && !applies(true) {
                self.complain(
                    *offset,
                    "no treatment of this gate has a baseline, so there is no tax",
                )
                .help_with("add a baseline to the plan, or write of = \"cost\"");
            }
        }
    }
}

/// The metrics that the plan's commands declare.
fn own_metrics(root: &DeTable<'_>) -> BTreeSet<String> {
    let workloads = sections(root, "workload");
    let metrics = workloads.filter_map(|(_, workload)| table(workload, "metrics"));
    let names = metrics.flat_map(|metrics| metrics.keys());
    names.map(|name| OWN.fill(name.get_ref())).collect()
}
