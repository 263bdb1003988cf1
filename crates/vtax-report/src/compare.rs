//! Two results directories side by side: what changed between one run and another.

use crate::analysis::{Analysis, Comparison, judge};
use crate::numbers::ratio;
use crate::results::Better;
use crate::stats::{NoTax, Verdict, seed_of, unpaired_tax};
use crate::terminal::{clean, cut, pad};
use serde::Serialize;
use vtax_units::Source;

/// The second run against the first.
#[derive(Debug, Clone, Serialize)]
pub struct RunComparison {
    /// Name and start of the first run.
    pub first: String,
    /// Name and start of the second.
    pub second: String,
    /// Treatments, by label, that only the first run has.
    pub only_first: Vec<String>,
    /// Treatments that only the second has.
    pub only_second: Vec<String>,
    /// Every metric with a direction of every treatment that both have: second over first.
    pub comparisons: Vec<Comparison>,
    /// What a reader must know before believing a difference.
    pub cautions: Vec<String>,
}

/// Compares two runs. Trials of different runs never shared a block, so nothing is paired.
pub fn compare(first: &Analysis, second: &Analysis) -> RunComparison {
    let missing_in = |from: &Analysis, other: &Analysis| -> Vec<String> {
        from.treatments
            .iter()
            .map(|summary| &summary.treatment.label)
            .filter(|label| {
                !other
                    .treatments
                    .iter()
                    .any(|summary| &summary.treatment.label == *label)
            })
            .cloned()
            .collect()
    };
    let mut comparisons = Vec::new();
    for after in &second.treatments {
        let Some(before) = first
            .treatments
            .iter()
            .find(|before| before.treatment.label == after.treatment.label)
        else {
            continue;
        };
        for metric in after
            .metrics
            .iter()
            .filter(|metric| metric.better != Better::Neither)
        {
            let Some(old) = before
                .metric(&metric.name)
                .filter(|old| old.unit == metric.unit)
            else {
                continue;
            };
            let values = |values: &[(u32, f64)]| {
                values.iter().map(|(_, value)| *value).collect::<Vec<f64>>()
            };
            let seed = seed_of(&["compare", &after.treatment.label, &metric.name]);
            let tax: Result<_, NoTax> =
                unpaired_tax(&values(&metric.values), &values(&old.values), seed);
            comparisons.push(Comparison {
                treatment: after.treatment.label.clone(),
                baseline: before.treatment.label.clone(),
                workload: after.treatment.workload.clone(),
                platform: after.treatment.platform.clone(),
                metric: metric.name.clone(),
                title: metric.title.clone(),
                better: metric.better,
                headline: metric.headline,
                source: metric.source.combine(old.source),
                modelled: [metric.source, old.source].contains(&Source::Modelled),
                note: tax.err().map(|reason| reason.to_string()),
                tax: tax.ok(),
                adjusted_p: None,
                family: 0,
                verdict: Verdict::NoRatio,
            });
        }
    }
    judge(
        &mut comparisons,
        first.minimum_effect.max(second.minimum_effect),
    );
    let mut cautions = vec![
        "The runs were not interleaved: a change of the host between them looks like a difference."
            .to_owned(),
    ];
    if first.plan_sha256 != second.plan_sha256 {
        cautions.push("The two plans differ.".to_owned());
    }
    if first.profile != second.profile {
        cautions.push(format!(
            "The profiles differ: {} and {}.",
            first.profile, second.profile
        ));
    }
    if first.place != second.place {
        cautions.push(format!(
            "The places differ: {} and {}.",
            first.place, second.place
        ));
    }
    RunComparison {
        first: format!("{}, {}", first.name, first.started),
        second: format!("{}, {}", second.name, second.started),
        only_first: missing_in(first, second),
        only_second: missing_in(second, first),
        comparisons,
        cautions,
    }
}

/// The comparison as a table: every headline metric, and every other one that differs.
pub fn table(comparison: &RunComparison, width: usize) -> String {
    let width = width.clamp(72, 120);
    let label_width = width - 58;
    let mut lines = vec![
        format!("A  {}", clean(&comparison.first)),
        format!("B  {}", clean(&comparison.second)),
        String::new(),
        format!(
            "  {} {} {} difference",
            pad("treatment", label_width),
            pad("metric", 18),
            pad("B / A", 20)
        ),
    ];
    let shown = |row: &&Comparison| row.headline || row.verdict == Verdict::Different;
    for row in comparison.comparisons.iter().filter(shown) {
        let tax = row.tax.map_or_else(
            || "–".to_owned(),
            |tax| ratio(tax.ratio, tax.interval).line(),
        );
        let verdict = match row.verdict {
            Verdict::Different => "shown",
            Verdict::NoDifferenceShown => "none shown",
            other => other.words(),
        };
        lines.push(format!(
            "  {} {} {} {verdict}",
            pad(&cut(&clean(&row.treatment), label_width), label_width),
            pad(&cut(&clean(&row.metric), 18), 18),
            pad(&tax, 20),
        ));
    }
    if comparison.comparisons.is_empty() {
        lines.push("  no treatment is in both".to_owned());
    }
    let only = [
        ("A", &comparison.only_first),
        ("B", &comparison.only_second),
    ];
    for (name, labels) in only.into_iter().filter(|(_, labels)| !labels.is_empty()) {
        lines.push(format!("  only in {name}: {}", clean(&labels.join(", "))));
    }
    lines.push(String::new());
    lines.extend(
        comparison
            .cautions
            .iter()
            .map(|caution| format!("  {}", clean(caution))),
    );
    lines.push(String::new());
    lines.join("\n")
}
