// SPDX-License-Identifier: Apache-2.0
//! The numbers of a finished run: the verdict on each platform, and the headline metrics of each workload with their
//! taxes.

use serde_json::{Value, json};
use vtax_report::analysis::{Analysis, Comparison, MetricSummary, distinct};
use vtax_results::numbers::estimate;
use vtax_results::stats::Verdict;

/// The numbers of an analysis: the verdict on each platform, and of each workload a row for each headline metric. A row
/// has a cell for each treatment; none where the treatment lacks the metric.
pub fn findings(analysis: &Analysis) -> Value {
    let compared = analysis.compared();
    let workloads = analysis.by_workload().into_iter();
    let workloads = workloads.filter_map(|(name, treatments)| {
        let metrics = treatments.iter().flat_map(|of| &of.metrics);
        let headlines = metrics.filter(|metric| metric.headline);
        let names = distinct(headlines.map(|of| (of.name.as_str(), of.title.as_str())));
        let rows = names.into_iter().map(|(metric, title)| {
            let cells = treatments.iter().map(|of| {
                let key = (of.treatment.label.as_str(), metric);
                Some(cell(of.metric(metric)?, compared.get(&key).copied()))
            });
            json!({ "title": title, "cells": cells.collect::<Vec<_>>() })
        });
        let rows: Vec<Value> = rows.collect();
        let treatments: Vec<&str> = treatments.iter().map(|of| of.short.as_str()).collect();
        let table = json!({ "name": name, "treatments": treatments, "rows": rows });
        (!rows.is_empty()).then_some(table)
    });
    json!({
        "verdicts": analysis.platform_verdicts(),
        "workloads": workloads.collect::<Vec<_>>(),
    })
}

fn cell(metric: &MetricSummary, compared: Option<&Comparison>) -> Value {
    let is_different = |of: &Comparison| of.judgement.verdict == Verdict::Different;
    json!({
        "value": estimate(metric.description.mean, metric.interval, metric.unit).line(),
        "source": metric.flags(),
        // The ratio to the baseline; none of a baseline.
        "tax": compared.and_then(Comparison::ratio_in_words),
        "different": compared.is_some_and(is_different),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_report::analysis::analyse;
    use vtax_testkit::results::Fake;

    #[test]
    fn a_finished_run_has_the_verdict_of_each_platform_and_its_headline_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let results = Fake::default().write(&folder.path().join("run"));
        let found = findings(&analyse(&results).unwrap());
        let titles: Vec<&Value> = (0..2).map(|at| &found["verdicts"][at]["title"]).collect();
        assert_eq!(titles, ["A container", "A VM (QEMU, TCG emulation)"]);
        let first = &found["workloads"][0];
        assert_eq!(first["treatments"], json!(["native", "container", "qemu"]));
        let cells = first["rows"][0]["cells"].as_array().unwrap();
        let taxes: Vec<(bool, bool)> = cells
            .iter()
            .map(|of| (of["tax"].is_string(), of["different"] == true))
            .collect();
        assert_eq!(taxes, [(false, false), (true, false), (true, true)]);
    }
}
