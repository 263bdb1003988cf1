// SPDX-License-Identifier: Apache-2.0
//! The provenance of a report's numbers: host, plan, order, and statistical methods.

use super::frame::{PROVENANCE, badge, file, fold, prose, section};
use crate::analysis::Analysis;
use maud::{Markup, html};
use serde_json::Value;
use std::collections::HashSet;
use vtax_core::{Base, Quantity, Unit};
use vtax_results::ResultsDir;
use vtax_results::numbers::percent;
use vtax_results::stats::RESAMPLES;

/// The data of a report that are not part of the analysis.
#[derive(Debug, Clone, Default)]
pub struct Provenance {
    /// The plan of the run.
    pub plan: String,
    /// `host.json`.
    pub host: Value,
    /// The schedule in order: label of the treatment, and block.
    pub schedule: Vec<(String, u32)>,
}

impl Provenance {
    /// Reads these data from a results directory; an unreadable part holds the reason.
    pub fn from_results(results: &ResultsDir) -> Self {
        let run = results.run();
        let schedule = run.schedule.iter().map(|entry| {
            let treatment = run.treatments.get(entry.treatment);
            let label = treatment.map_or("unknown", |treatment| treatment.label.as_str());
            (label.to_owned(), entry.block)
        });
        let (plan, host) = (results.plan_text(), results.host());
        Self {
            plan: plan.unwrap_or_else(|error| error.to_string()),
            host: host.unwrap_or_else(|error| Value::String(error.to_string())),
            schedule: schedule.collect(),
        }
    }

    /// The schedule as lines of text.
    fn order(&self) -> String {
        let lines = (0..)
            .zip(&self.schedule)
            .map(|(index, (label, block))| format!("{index:04}  block {block}  {label}\n"));
        lines.collect()
    }
}

pub(super) fn provenance(analysis: &Analysis, provenance: &Provenance) -> Markup {
    let machines = analysis.fleet.sentences(&analysis.comparisons);
    let platforms = platform_facts(analysis);
    section(
        PROVENANCE,
        &html! {
            (list(&facts(analysis, &provenance.host)))
            @if !platforms.is_empty() {
                (fold("The platforms: programs, kernels and command lines", false, &list(&platforms)))
            }
            (lines("The machines", &machines))
            (lines("Noise of this host", &analysis.noise))
            (lines("Checks on the design", &analysis.checks))
            (fold("How each number is made", false, &methods(analysis)))
            (file("The plan", &provenance.plan))
            (file("The host", &format!("{:#}", provenance.host)))
            (file("The order of trials", &provenance.order()))
        },
    )
}

/// Lines of text, folded; nothing without lines.
fn lines(summary: &str, lines: &[String]) -> Markup {
    let list = html! { ul { @for line in lines { li { (prose(line)) } } } };
    html! { @if !lines.is_empty() { (fold(summary, false, &list)) } }
}

/// Names and values.
fn list(facts: &[(String, String)]) -> Markup {
    html! { dl { @for (name, value) in facts { dt { (name) } dd { (value) } } } }
}

/// Facts about the host and the plan: name and value.
fn facts(analysis: &Analysis, host: &Value) -> Vec<(String, String)> {
    let host = host.as_object().into_iter().flatten();
    let host = host.filter_map(|(name, value)| fact(name, value));
    let run = [
        ("plan, SHA-256".to_owned(), analysis.plan_sha256.clone()),
        ("seed".to_owned(), analysis.seed.to_string()),
    ];
    host.chain(run).collect()
}

/// Facts about each platform: its name, and all facts in one text.
fn platform_facts(analysis: &Analysis) -> Vec<(String, String)> {
    let mut known = HashSet::new();
    let treatments = analysis.treatments.iter().filter(|summary| {
        !summary.environment.is_empty() && known.insert(&summary.treatment.platform)
    });
    let platforms = treatments.map(|summary| {
        let facts = summary.environment.iter();
        let facts = facts.map(|(name, value)| format!("{name}: {value}"));
        let facts: Vec<String> = facts.collect();
        (summary.treatment.platform.clone(), facts.join("; "))
    });
    platforms.collect()
}

/// A fact of `host.json` as name and text; `None` for an unknown value, a list or an object.
fn fact(name: &str, value: &Value) -> Option<(String, String)> {
    let (name, value) = match (name.strip_suffix("_bytes"), value) {
        (_, Value::Null | Value::Array(_) | Value::Object(_)) => return None,
        (_, Value::String(text)) => (name, text.clone()),
        (Some(what), Value::Number(bytes)) => {
            let bytes = Quantity::new(bytes.as_f64()?, Unit::from_base(Base::Byte));
            (what, bytes.to_string())
        }
        _ => (name, value.to_string()),
    };
    Some((name.replace('_', " "), value))
}

/// The statistical methods, each with its reference.
fn methods(analysis: &Analysis) -> Markup {
    let cite =
        |doi: &str, work: &str| html! { "(" a href={ "https://doi.org/" (doi) } { (work) } ")" };
    html! {
        ol.methods {
            li {
                b { "Order." } " Every block holds each treatment once, in random order from a stored seed: randomised multiple interleaved trials "
                (cite("10.1145/3030207.3030229", "Abedi & Brecht 2017")) "."
            }
            li {
                b { "Tax." } " The geometric mean of the ratios of trials of one block, repeated at the level of whole boots "
                (cite("10.1145/2464157.2464160", "Kalibera & Jones 2013")) "."
            }
            li {
                b { "Intervals." } " 95 %. Of a ratio: Student’s t of the logarithms. Of a mean: bootstrap with "
                (RESAMPLES) " resamples and expanded percentiles " (cite("10.1080/00031305.2015.1089789", "Hesterberg 2015"))
                "; Student’s t below eight values, of logarithms where a quantity cannot be negative."
            }
            li {
                b { "Verdict." } " A difference is claimed when the interval, which is adjusted for the family of comparisons ("
                (cite("10.1111/j.2517-6161.1995.tb02031.x", "Benjamini & Hochberg 1995"))
                "), excludes 1. Equality is claimed when the whole interval is nearer to 1 than " (percent(analysis.minimum_effect))
                ", whether it excludes 1 or not. Fewer than four pairs are always too few."
            }
            li {
                b { "Exact." } " A deterministic emulated host gives the same numbers for the same seed. Where all trials of both sides had one seed and agree \
                 within 0.02 %, their ratio is exact for that host, image and seed: there is nothing to test. With a seed for each block ("
                code { "seeds" } " in the plan) intervals are over seeds, and say how much chance there is in the timing."
            }
            li {
                b { "Steadiness." } " Rates per second of the window, cut at changepoints and classed flat, warm-up, slowdown or no steady state "
                (cite("10.1145/3133876", "Barrett et al. 2017")) "; trials that disagree make a treatment inconsistent."
            }
            li {
                b { "Flags." } (badge("modelled")) " is computed by a model from measured counters;" (badge("emulated"))
                " comes from a guest whose instructions software emulated on a real host;" (badge("simulated"))
                " was counted in an emulated host. A derived number carries the worst flag of its inputs; without a flag it was measured."
            }
            li {
                b { "Suspect trials" } " are kept and listed, never deleted, and left out of every mean and ratio; so is every attempt at a trial that was run again."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn facts_about_the_host_have_units_and_unknown_ones_are_left_out() {
        for (name, value, shown) in [
            (
                "memory_bytes",
                json!(25_276_510_208_u64),
                Some("memory: 25.3 GB"),
            ),
            ("cpu_quota", json!(null), None),
            ("versions", json!({"qemu": "7.2"}), None),
            ("kernel", json!("6.18"), Some("kernel: 6.18")),
            ("clock_ticks", json!(100), Some("clock ticks: 100")),
            ("is_virtual", json!(true), Some("is virtual: true")),
        ] {
            let found = fact(name, &value).map(|(name, value)| format!("{name}: {value}"));
            assert_eq!(found.as_deref(), shown);
        }
    }
}
