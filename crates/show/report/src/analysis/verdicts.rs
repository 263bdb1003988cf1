// SPDX-License-Identifier: Apache-2.0
//! The verdict on each platform in one line: its taxes by workload.

use super::{Analysis, Comparison, distinct};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use vtax_core::metric;
use vtax_results::stats::Verdict;

/// The verdict on one platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlatformVerdict {
    /// The platform's name in the plan.
    pub platform: String,
    /// Its name for a reader: `A VM (QEMU, KVM)`.
    pub title: String,
    /// Its taxes by metric and workload, to follow the title and a comma.
    pub text: String,
    /// Whether a difference is shown in any workload.
    pub different: bool,
}

impl Analysis {
    /// The verdict on each platform that has a baseline, from the leading metric of each workload: the knee, the CPU for
    /// a unit of work, or the first compared metric.
    pub fn platform_verdicts(&self) -> Vec<PlatformVerdict> {
        let leading = self.workloads.iter().flat_map(|of| self.leading(of));
        let leading: Vec<&Comparison> = leading.collect();
        let verdict = |platform| {
            let mut own = leading.clone();
            own.retain(|of| of.platform == platform);
            self.platform_verdict(platform, &own)
        };
        let platforms = distinct(leading.iter().map(|of| of.platform.as_str()));
        platforms.into_iter().map(verdict).collect()
    }

    /// The comparisons of the leading metric of a workload.
    fn leading(&self, workload: &str) -> Vec<&Comparison> {
        let own = || (self.comparisons.iter()).filter(|of| of.workload == workload);
        let lead = super::words::lead(own());
        let is_lead = |of: &&Comparison| Some(of.metric.as_str()) == lead;
        own().filter(is_lead).collect()
    }

    fn platform_verdict(&self, platform: &str, own: &[&Comparison]) -> PlatformVerdict {
        let labels = self.by_label();
        let noun = |label: &str| labels.get(label).map(|of| of.noun.as_str());
        let title = own.first().and_then(|of| noun(&of.treatment));
        // The baseline of a platform can be the platform itself at another level.
        let baseline = |of: &Comparison| match labels.get(of.baseline.as_str()) {
            Some(other) if noun(&of.treatment) == Some(&other.noun) => {
                match other.treatment.variant() {
                    Some(variant) if self.is_across_variants(of) => format!("variant {variant}"),
                    _ => other.short.clone(),
                }
            }
            Some(other) => other.noun.clone(),
            None => of.baseline.clone(),
        };
        let key = |of: &Comparison| (quantity(of).to_owned(), baseline(of));
        let keys = distinct(own.iter().map(|of| key(of))).into_iter();
        let parts: Vec<String> = keys
            .map(|sought| {
                let mut same = own.to_vec();
                same.retain(|of| key(of) == sought);
                let workloads = by_workload(&same).join(", ");
                format!("{} against {}: {workloads}", sought.0, sought.1)
            })
            .collect();
        let flags = own.iter().flat_map(|of| of.source.flags(of.modelled));
        let named: BTreeSet<String> = flags.map(|flag| flag.to_string()).collect();
        let named: Vec<String> = named.into_iter().collect();
        let flags = match named.as_slice() {
            [] => String::new(),
            some => format!(" ({})", some.join(", ")),
        };
        PlatformVerdict {
            platform: platform.to_owned(),
            title: super::words::capital(title.unwrap_or(platform)),
            text: parts.join("; ") + &flags + ".",
            different: (own.iter()).any(|of| of.judgement.verdict == Verdict::Different),
        }
    }
}

/// The taxes by workload, `3.1× in send`. Workloads with the same words share them.
fn by_workload(own: &[&Comparison]) -> Vec<String> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    for workload in distinct(own.iter().map(|of| of.workload.as_str())) {
        let of_workload = own.iter().copied().filter(|of| of.workload == workload);
        let words = in_words(&of_workload.collect::<Vec<_>>());
        match found.iter_mut().find(|(other, _)| *other == words) {
            Some((_, workloads)) => workloads.push(workload),
            None => found.push((words, vec![workload])),
        }
    }
    let in_workloads = |(words, workloads): (String, Vec<&str>)| match workloads.as_slice() {
        [all @ .., last] if !all.is_empty() => {
            format!("{words} in {} and {last}", all.join(", "))
        }
        all => format!("{words} in {}", all.join(", ")),
    };
    found.into_iter().map(in_workloads).collect()
}

/// The name of the compared metric in a sentence.
fn quantity(comparison: &Comparison) -> &str {
    let words = metric::lookup(&comparison.metric).and_then(|metric| metric.words);
    words.map_or(comparison.title.as_str(), |words| words.noun)
}

/// The taxes of the treatments of one workload: the ratio of one treatment, the range of several.
fn in_words(own: &[&Comparison]) -> String {
    let is_shown = |of: &&&Comparison| of.judgement.verdict == Verdict::Different;
    let mut shown: Vec<&Comparison> = own.iter().filter(is_shown).copied().collect();
    shown.sort_by(|a, b| a.ratio.partial_cmp(&b.ratio).unwrap_or(Ordering::Equal));
    // The words without the interval have its digits, and the open end of a knee.
    let ratio = |of: &Comparison| {
        let words = of.ratio_in_words().unwrap_or_default();
        words.split(" [").next().unwrap_or_default().to_owned()
    };
    match (shown.as_slice(), own) {
        ([], [one]) => one.judgement.verdict.words().to_owned(),
        ([], all) => {
            let verdicts = distinct(all.iter().map(|of| of.judgement.verdict.words()));
            format!("{} ({} treatments)", verdicts.join(" or "), all.len())
        }
        ([one], [_]) => ratio(one),
        ([one], all) => format!("{} (1 of {} treatments)", ratio(one), all.len()),
        ([low, .., high], all) => format!(
            "{} to {} ({} of {} treatments)",
            ratio(low),
            ratio(high),
            shown.len(),
            all.len()
        ),
    }
}
