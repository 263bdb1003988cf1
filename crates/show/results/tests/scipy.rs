// SPDX-License-Identifier: Apache-2.0
//! Compares the statistics with SciPy and statsmodels on the same generated data sets.

use serde_json::{Value, json};
use std::process::Command;
use vtax_results::stats::{
    Covariances, Random, benjamini_hochberg, changepoints, controlled_tax, hodges_lehmann,
    outliers, paired_tax, quantile, ratio_of_means, trend, typical_tax, unpaired_tax,
};
use vtax_testkit::needs::python_modules;
use vtax_testkit::results::normal;

/// The same statistics from SciPy and statsmodels. E-divisive's statistic is computed from its definition.
const SCRIPT: &str = r#"
import json, sys
import numpy as np
from scipy import optimize, stats
from statsmodels.stats.multitest import multipletests

def strongest(x):
    best = (-1.0, 0)
    for at in range(2, len(x) - 1):
        a, b = x[:at], x[at:]
        between = np.mean([abs(p - q) for p in a for q in b])
        within = [2 * sum(abs(s[i] - s[j]) for i in range(len(s)) for j in range(i)) / (len(s) * (len(s) - 1)) for s in (a, b)]
        best = max(best, (len(a) * len(b) / len(x) * (2 * between - sum(within)), at))
    return best[1]

def trend(x):
    n = len(x)
    score = sum(np.sign(x[j] - x[i]) for i in range(n) for j in range(i + 1, n))
    z = max(abs(score) - 1, 0) / np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return [min(2 * stats.norm.sf(z), 1.0), stats.theilslopes(x).slope * (n - 1)]

out = []
for one in json.load(open(sys.argv[1])):
    a, b = np.log(one["treatment"]), np.log(one["baseline"])
    d, n = a - b, len(a)
    alone = stats.ttest_1samp(d, 0)
    low, high = alone.confidence_interval(0.95)
    half = stats.t.ppf(0.975, n - 1) * np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / n)
    q1, q3 = np.quantile(d, [0.25, 0.75])
    fence = 1.5 * (q3 - q1)
    found = {
        "ratio": stats.gmean(np.exp(d)), "low": np.exp(low), "high": np.exp(high), "student_p": alone.pvalue,
        "welch": [np.exp(d.mean() - half), np.exp(d.mean() + half)],
        "welch_p": 2 * stats.t.sf(abs(d.mean()) / np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / n), n - 1),
        "bh": list(multipletests(one["p"], method="fdr_bh")[1]),
        "centre": np.median([(d[i] + d[j]) / 2 for i in range(n) for j in range(i, n)]),
        "quantile": np.quantile(one["treatment"], 0.9),
        "outliers": [i for i in range(n) if n >= 5 and not q1 - fence <= d[i] <= q3 + fence],
        "trend": trend(one["treatment"]), "split": strongest(one["series"]),
    }
    # Fieller's set, from its definition: the ratios for which the t of the difference is not beyond the quantile.
    x, y = one["treatment"], [value - 8 for value in one["baseline"]]
    if np.mean(y) > 0:
        def beyond(at):
            return stats.ttest_1samp(np.subtract(x, at * np.array(y)), 0).pvalue - 0.05
        centre = np.mean(x) / np.mean(y)
        found["means"] = centre
        found["means_p"] = stats.ttest_rel(x, y).pvalue
        found["bounded"] = bool(stats.ttest_1samp(y, 0).pvalue < 0.05)
        if found["bounded"]:
            far = 2.0
            while beyond(centre * far) > 0:
                far *= 2
            found["fieller"] = [optimize.brentq(beyond, -centre, centre, xtol=1e-13), optimize.brentq(beyond, centre, centre * far, xtol=1e-13)]
    # The interval that holds at every look: the ratio of two densities of t is 20 at its ends, and 1 / p at no difference.
    mean, error, g = d.mean(), d.std(ddof=1) / np.sqrt(n), 1 + n
    def evidence(at):
        t = (mean - at) / error
        return np.exp(stats.t.logpdf(t / np.sqrt(g), n - 1) - stats.t.logpdf(t, n - 1)) / np.sqrt(g)
    found["anytime_p"] = min(1.0, 1 / evidence(0.0))
    if evidence(mean + 1e9 * error) > 20:
        far = 1.0
        while evidence(mean + far * error) < 20:
            far *= 2
        half = optimize.brentq(lambda x: np.log(evidence(mean + x * error) / 20), 0, far, xtol=1e-14) * error
        found["anytime"] = [np.exp(mean - half), np.exp(mean + half)]
    # Regression on a control; the coefficient is shrunk by the F of its test.
    x = np.array(one["controls"][0]) - np.array(one["controls"][1])
    line = stats.linregress(x, d)
    shrunk = 1 - 2 / (line.slope / line.stderr) ** 2
    if n >= 6 and shrunk > 0:
        rest = d - shrunk * line.slope * x
        error = np.sqrt(((rest - rest.mean()) ** 2).sum() / (n - 2) * (1 / n + x.mean() ** 2 / ((x - x.mean()) ** 2).sum()))
        half = stats.t.ppf(0.975, n - 2) * error
        found["controlled"] = [shrunk * line.slope, np.exp(rest.mean() - half), np.exp(rest.mean() + half)]
    # The ends of the values that the test of signed ranks does not refuse.
    if n >= 6:
        averages = sorted((d[i] + d[j]) / 2 for i in range(n) for j in range(i, n))
        keeps = lambda at: stats.wilcoxon(d - at, method="exact").pvalue > 0.05
        low = next(w for w in averages if keeps(w + 1e-9))
        high = next(w for w in reversed(averages) if keeps(w - 1e-9))
        found["typical"] = [np.exp(low), np.exp(high)]
    out.append(found)
print(json.dumps(out, default=float))
"#;

const SETS: u64 = 200;

fn close(what: &str, found: f64, expected: &Value) {
    let expected = expected.as_f64().unwrap();
    assert!(
        (found - expected).abs() <= 1e-9 * expected.abs().max(1.0),
        "{what}: {found} here, {expected} there"
    );
}

struct Set {
    treatment: Vec<f64>,
    baseline: Vec<f64>,
    /// A control of each, which correlates with it.
    controls: [Vec<f64>; 2],
    p: Vec<f64>,
    series: Vec<f64>,
}

fn generate(seed: u64) -> Set {
    let random = &mut Random::new(seed + 1);
    let n = 4 + random.below(13);
    let value = |random: &mut Random| {
        let spike = if random.uniform() < 0.1 { 2.0 } else { 1.0 };
        spike * 10.0 * (0.1 * normal(random)).exp()
    };
    let treatment: Vec<f64> = (0..n).map(|_| 1.05 * value(random)).collect();
    let baseline: Vec<f64> = (0..n).map(|_| value(random)).collect();
    let controls = [&treatment, &baseline].map(|values| {
        let controls = values.iter().map(|of| of.ln() + 0.2 * normal(random));
        controls.collect()
    });
    Set {
        treatment,
        baseline,
        controls,
        p: (0..1 + random.below(20))
            .map(|_| random.uniform().powi(3))
            .collect(),
        series: (0..20)
            .map(|at| normal(random) + if at < 12 { 0.0 } else { 4.0 })
            .collect(),
    }
}

#[test(needs = [brought_by_test_all("python3"), python_module("scipy"), python_module("statsmodels")])]
fn statistics_agree_with_scipy_and_statsmodels() {
    let sets: Vec<Set> = (0..SETS).map(generate).collect();
    let data: Vec<Value> = sets
        .iter()
        .map(|set| {
            json!({
                "treatment": set.treatment, "baseline": set.baseline, "controls": set.controls, "p": set.p,
                "series": set.series,
            })
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sets.json");
    std::fs::write(&file, json!(data).to_string()).unwrap();
    let mut python = Command::new("python3");
    python.arg("-c").arg(SCRIPT).arg(&file);
    python.env("PYTHONPATH", python_modules());
    let output = python.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let theirs: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(theirs.len(), sets.len());
    let (mut splits, mut looks, mut controls, mut bounded) = (0, 0, 0, 0);
    for (index, (set, there)) in sets.iter().zip(&theirs).enumerate() {
        let seed = index as u64;
        let tax = paired_tax(&set.treatment, &set.baseline).unwrap();
        let interval = tax.interval.unwrap();
        close("ratio", tax.ratio, &there["ratio"]);
        close("low end", interval.low, &there["low"]);
        close("high end", interval.high, &there["high"]);
        close("Student's p", tax.p, &there["student_p"]);
        let less: Vec<f64> = set.baseline.iter().map(|value| value - 8.0).collect();
        match (
            ratio_of_means(&set.treatment, &less, Covariances::default()),
            there.get("means"),
        ) {
            (Ok(of_means), Some(ratio)) => {
                close("ratio of means", of_means.ratio, ratio);
                close("p of means", of_means.p, &there["means_p"]);
                match of_means.interval {
                    Some(ends) => {
                        close("low end by Fieller", ends.low, &there["fieller"][0]);
                        close("high end by Fieller", ends.high, &there["fieller"][1]);
                        bounded += 1;
                    }
                    None => assert_eq!(there["bounded"], json!(false), "set {index}"),
                }
            }
            (none, there) => assert!(none.is_err() && there.is_none(), "{none:?} {there:?}"),
        }
        let looked = tax.at_any_time();
        close("p at any time", looked.p, &there["anytime_p"]);
        match (looked.interval, there.get("anytime")) {
            (Some(own), Some(ends)) => {
                close("low end at any time", own.low, &ends[0]);
                close("high end at any time", own.high, &ends[1]);
                looks += 1;
            }
            (own, other) => assert!(own.is_none() && other.is_none(), "{own:?} {other:?}"),
        }
        let values = set
            .treatment
            .iter()
            .copied()
            .zip(set.baseline.iter().copied());
        let values: Vec<(f64, f64)> = values.collect();
        let [own, other] = &set.controls;
        let beside: Vec<(f64, f64)> = own.iter().copied().zip(other.iter().copied()).collect();
        match (
            controlled_tax(&tax, &values, &beside),
            there.get("controlled"),
        ) {
            (Some(found), Some(expected)) => {
                let interval = found.tax.interval.unwrap();
                close("coefficient", found.coefficient, &expected[0]);
                close("low end at equal controls", interval.low, &expected[1]);
                close("high end at equal controls", interval.high, &expected[2]);
                controls += 1;
            }
            (own, other) => assert!(own.is_none() && other.is_none(), "{own:?} {other:?}"),
        }
        let typical = typical_tax(&tax, &values);
        assert_eq!(typical.is_some(), there.get("typical").is_some());
        if let Some(interval) = typical.and_then(|tax| tax.interval) {
            close(
                "low end of the typical pair",
                interval.low,
                &there["typical"][0],
            );
            close(
                "high end of the typical pair",
                interval.high,
                &there["typical"][1],
            );
        }
        let apart = unpaired_tax(&set.treatment, &set.baseline).unwrap();
        close("unpaired p", apart.p, &there["welch_p"]);
        close(
            "unpaired low",
            apart.interval.unwrap().low,
            &there["welch"][0],
        );
        close(
            "unpaired high",
            apart.interval.unwrap().high,
            &there["welch"][1],
        );
        for (at, p) in benjamini_hochberg(&set.p).into_iter().enumerate() {
            close("adjusted p", p, &there["bh"][at]);
        }
        let pairs = set.treatment.iter().zip(&set.baseline);
        let logs: Vec<f64> = pairs.map(|(own, other)| own.ln() - other.ln()).collect();
        let centre = hodges_lehmann(&logs).unwrap();
        close("Hodges and Lehmann", centre, &there["centre"]);
        let high = quantile(&set.treatment, 0.9).unwrap();
        close("quantile", high, &there["quantile"]);
        assert_eq!(json!(outliers(&logs)), there["outliers"], "set {index}");
        let trend = trend(&set.treatment).unwrap();
        close("Mann and Kendall", trend.p, &there["trend"][0]);
        close("Sen", trend.change, &there["trend"][1]);
        let found: Vec<usize> = changepoints(&set.series, seed)
            .iter()
            .map(|c| c.at)
            .collect();
        if !found.is_empty() {
            splits += 1;
            let split = there["split"].as_u64().unwrap() as usize;
            assert!(found.contains(&split), "{found:?}, {split} there");
        }
    }
    assert!(looks > 100, "{looks}");
    assert!(controls > 50, "{controls}");
    assert!(bounded >= 20, "{bounded}");
    assert!(splits > 190, "{splits} series have a change");
}
