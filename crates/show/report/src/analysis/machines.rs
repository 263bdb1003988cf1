// SPDX-License-Identifier: Apache-2.0
//! Disagreement between the machines of a run: a random effect on the logarithm of a comparison's ratio. A block never
//! spans machines, so every ratio comes from one machine.

use super::checks::Pairs;
use super::{Comparison, Disagreement};
use serde::Serialize;
use std::collections::BTreeMap;
use vtax_core::counted;
use vtax_results::numbers::ratio;
use vtax_results::stats::{Groups, tax_over};
use vtax_results::{Identities, Machine, Together};

/// The machines of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Fleet {
    /// Number of machines.
    pub machines: usize,
    /// Them and their boots in words.
    pub counted: String,
    /// Facts that all of them share.
    pub kind: BTreeMap<&'static str, String>,
    /// All facts of the first of them, as in `host.json`.
    #[serde(skip)]
    pub host: serde_json::Value,
    /// Number of blocks of each machine, in the order of reading.
    pub blocks: Vec<usize>,
    /// Data left out of several machines' results, in sentences.
    pub notes: Vec<String>,
    /// Machine of each block that was run; empty for emulated hosts, which do not differ.
    #[serde(skip)]
    of: BTreeMap<u32, usize>,
}

impl Fleet {
    pub(super) fn from_together(together: &Together<'_>, place: &str) -> Self {
        let machines = &together.machines;
        // Boots of one machine are one.
        let mut identities = Identities::default();
        let numbers = machines.machines.iter().map(|of| identities.number(of));
        let numbers: Vec<usize> = numbers.collect();
        let of = machines.blocks.iter();
        let of = of.filter_map(|(block, at)| Some((*block, *numbers.get(*at)?)));
        let of: BTreeMap<u32, usize> = of.collect();
        let mut blocks = vec![0; identities.machines()];
        for at in of.values() {
            if let Some(blocks) = blocks.get_mut(*at) {
                *blocks += 1;
            }
        }
        Self {
            machines: identities.machines(),
            counted: identities.in_words(),
            kind: (machines.machines.first()).map_or_else(BTreeMap::new, Machine::kind),
            host: (machines.machines.first()).map_or_else(Default::default, |one| one.host.clone()),
            blocks,
            notes: (together.notes.iter().cloned())
                .chain(identities.caution().map(|one| format!("Machines: {one}.")))
                .collect(),
            // An emulated host is the same on every machine.
            of: if place.starts_with("testbed:") {
                BTreeMap::new()
            } else {
                of
            },
        }
    }

    /// The machine of a block; 0 where all blocks are of one.
    pub(super) fn machine_of(&self, block: u32) -> usize {
        self.of.get(&block).copied().unwrap_or(0)
    }

    /// Judges a comparison over machines and sets their disagreement. Each machine counts once, because pairs of one
    /// machine are not independent of each other.
    pub(super) fn judge(&self, comparison: &mut Comparison, pairs: &Pairs) {
        let Some(tax) = comparison.tax else { return };
        if self.of.len() < 2 || self.machines < 2 {
            return;
        }
        let mut groups: Vec<Vec<f64>> = vec![Vec::new(); self.machines];
        for (block, value, other) in pairs {
            let group = self.of.get(block).and_then(|at| groups.get_mut(*at));
            if let Some(group) = group {
                group.push(value.ln() - other.ln());
            }
        }
        let groups: Groups = groups.iter().collect();
        let Some(over) = tax_over(&groups, tax.effect) else {
            return;
        };
        comparison.machines = groups.between().map(|found| Disagreement {
            machines: found.groups,
            factor: found.sd.exp(),
            interval: found.interval.exp(),
            p: found.p,
        });
        (comparison.tax, comparison.ratio) = (Some(over), Some(over.ratio));
        comparison.judgement.over_machines = true;
        let disagree = comparison.machines.is_some_and(|found| found.is_shown());
        let mut note = format!(
            "{}the mean and the interval are over {}, each of which counts once",
            if disagree { "machines disagree: " } else { "" },
            counted(over.n, "machine")
        );
        if let Some((centre, interval)) = groups.mean_of_these() {
            let these = ratio(centre.exp(), Some(interval.exp()));
            note += &format!("; for these machines alone it is {}", these.line());
        }
        comparison.add_note(note);
    }

    /// The machines and their disagreement about the headlines, in sentences; empty for a run on one machine.
    pub fn sentences(&self, comparisons: &[Comparison]) -> Vec<String> {
        if self.machines < 2 {
            return self.notes.clone();
        }
        let kind = self.kind.iter();
        let kind: Vec<String> = kind
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        let mut sentences = vec![format!(
            "{} of one kind ({}) ran {} to {} blocks each; no pair spans two of them.",
            self.counted,
            kind.join(", "),
            self.blocks.iter().min().unwrap_or(&0),
            self.blocks.iter().max().unwrap_or(&0)
        )];
        for comparison in comparisons.iter().filter(|of| of.headline) {
            if let Some(found) = comparison.machines {
                sentences.push(format!(
                    "{}, {}: {} by a factor of {:.3} [{:.3}–{:.3}], p = {:.3}.",
                    comparison.treatment,
                    comparison.title,
                    if found.is_shown() {
                        "machines disagree"
                    } else {
                        "no disagreement of machines is shown; they differ"
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
