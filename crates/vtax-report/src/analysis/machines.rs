//! How much the machines of a run disagree: a random effect on the logarithm of a comparison's ratio.
//! Blocks never span machines, so every ratio is one machine's own.

use super::{Comparison, MetricSummary, Read};
use crate::numbers::count;
use crate::results::{Together, Trial};
use crate::stats::{Groups, Interval};
use serde::Serialize;
use std::collections::BTreeMap;

/// The machines that ran a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Fleet {
    /// How many.
    pub machines: usize,
    /// What all of them are, by fact.
    pub kind: BTreeMap<&'static str, String>,
    /// Blocks of each, in the order in which they were read.
    pub blocks: Vec<usize>,
    /// What was left out of several machines' results, in sentences.
    pub notes: Vec<String>,
    /// Machine of each block that was run.
    #[serde(skip)]
    of: BTreeMap<u32, usize>,
}

/// How much machines disagree about a ratio: 1 where they do not.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Disagreement {
    /// Machines that have pairs.
    pub machines: usize,
    /// Two machines differ by about this factor: the random effect's standard deviation.
    pub factor: f64,
    /// Its 95 % interval.
    pub interval: Interval,
    /// Chance of machines so far apart if none differed.
    pub p: f64,
}

impl Disagreement {
    /// Whether the interval excludes that they agree.
    pub fn is_shown(&self) -> bool {
        self.interval.low > 1.0
    }
}

impl Fleet {
    pub(super) fn of(together: &Together<'_>, place: &str) -> Self {
        let machines = &together.machines;
        let mut blocks = vec![0; machines.machines.len()];
        for at in machines.blocks.values() {
            if let Some(blocks) = blocks.get_mut(*at) {
                *blocks += 1;
            }
        }
        Self {
            machines: machines.machines.len(),
            kind: machines
                .machines
                .first()
                .map(|machine| machine.kind())
                .unwrap_or_default(),
            blocks,
            notes: together.notes.clone(),
            // Emulated hosts are the same whoever emulates them.
            of: match place.starts_with("testbed:") {
                true => BTreeMap::new(),
                false => machines.blocks.clone(),
            },
        }
    }

    /// Says of each comparison how much machines disagree. Where they do, one machine's blocks say less
    /// than that many machines would: the interval becomes that of the mean over machines.
    pub(super) fn judge<'a>(
        &self,
        comparisons: &mut [Comparison],
        metric: impl Fn(&str, &str) -> Option<&'a MetricSummary>,
        trials: &[Read],
    ) {
        if self.of.len() < 2 || self.machines < 2 {
            return;
        }
        let block_of: BTreeMap<u32, u32> = trials
            .iter()
            .map(|Read { trial, .. }: &Read| trial)
            .map(|trial: &Trial| (trial.index, trial.block))
            .collect();
        for comparison in comparisons {
            let Some(tax) = &mut comparison.tax else {
                continue;
            };
            let by_block = |label: &str| -> BTreeMap<u32, f64> {
                let values = metric(label, &comparison.metric).map(|metric| &metric.values);
                let values = values.into_iter().flatten();
                values
                    .filter_map(|(index, value)| Some((*block_of.get(index)?, value.ln())))
                    .collect()
            };
            let (mine, theirs) = (
                by_block(&comparison.treatment),
                by_block(&comparison.baseline),
            );
            let mut groups: Vec<Vec<f64>> = vec![Vec::new(); self.machines];
            for (block, value) in &mine {
                let pair = theirs.get(block).zip(self.of.get(block));
                if let Some((other, group)) =
                    pair.and_then(|(other, at)| Some((other, groups.get_mut(*at)?)))
                {
                    group.push(value - other);
                }
            }
            let groups: Groups = groups.iter().collect();
            let Some(found) = groups.between() else {
                continue;
            };
            let disagreement = Disagreement {
                machines: found.groups,
                factor: found.sd.exp(),
                interval: Interval {
                    low: found.interval.low.exp(),
                    high: found.interval.high.exp(),
                },
                p: found.p,
            };
            comparison.machines = Some(disagreement);
            let over = groups.mean().filter(|_| disagreement.is_shown());
            if let Some((centre, interval, p)) = over {
                tax.ratio = centre.exp();
                tax.interval = Some(Interval {
                    low: interval.low.exp(),
                    high: interval.high.exp(),
                });
                (tax.student_p, tax.n) = (p, groups.count());
                comparison.ratio = Some(tax.ratio);
                comparison.note = Some(format!(
                    "machines disagree: the mean and the interval are over {}",
                    count(groups.count(), "machine")
                ));
            }
        }
    }

    /// The machines and their disagreement about the headlines, in sentences; none of a run on one machine.
    pub fn sentences(&self, comparisons: &[Comparison]) -> Vec<String> {
        if self.machines < 2 {
            return self.notes.clone();
        }
        let kind: Vec<String> = self
            .kind
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        let (least, most) = (
            self.blocks.iter().min().copied().unwrap_or(0),
            self.blocks.iter().max().copied().unwrap_or(0),
        );
        let mut sentences = vec![format!(
            "{} of one kind ({}) ran {least} to {most} blocks each; no pair spans two of them.",
            count(self.machines, "machine"),
            kind.join(", ")
        )];
        for comparison in comparisons.iter().filter(|of| of.headline) {
            if let Some(found) = comparison.machines {
                sentences.push(format!(
                    "{}, {}: {} by a factor of {:.3} [{:.3}–{:.3}], p = {:.3}.",
                    comparison.treatment,
                    comparison.title,
                    match found.is_shown() {
                        true => "machines disagree",
                        false => "no disagreement of machines is shown; they differ",
                    },
                    found.factor,
                    found.interval.low,
                    found.interval.high,
                    found.p
                ));
            }
        }
        sentences.extend(self.notes.iter().cloned());
        sentences
    }
}
