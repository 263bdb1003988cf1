// SPDX-License-Identifier: Apache-2.0
//! The order of trials. Every block holds each treatment once, in an order drawn from the seed,
//! so that a drift of the host affects all treatments alike (randomised multiple interleaved
//! trials, Abedi & Brecht 2017).

use super::Order;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use vtax_core::SplitMix64;
use vtax_results::Scheduled;

/// Returns the trials of `blocks` blocks of `treatments` treatments. The same arguments give the
/// same order on every machine and in every version: the generator is part of the format.
pub fn schedule(treatments: usize, blocks: u32, order: Order, seed: u64) -> Vec<Scheduled> {
    let mut random = SplitMix64::new(seed);
    (1..=blocks)
        .flat_map(|block| {
            let mut of_block: Vec<usize> = (0..treatments).collect();
            if order == Order::Interleaved {
                random.shuffle(&mut of_block);
            }
            of_block
                .into_iter()
                .map(move |treatment| Scheduled { treatment, block })
        })
        .collect()
}

/// Returns the seed of a guest's load in a block, from 1 to 2^31 - 1, the range that every generator accepts.
/// Treatments of a block share it, so that their trials are pairs. Blocks differ, so that repetitions show the
/// variance of the draw. Guests differ, so that their requests are not due at the same times.
pub fn load_seed(seed: u64, block: u32, guest: usize) -> i64 {
    let mut random = SplitMix64::new(seed);
    let mut random = SplitMix64::new(random.bits() ^ u64::from(block));
    let mut random = SplitMix64::new(random.bits() ^ guest as u64);
    i64::try_from(random.bits() >> 33).unwrap_or(1).max(1)
}

/// A share of a plan's trials, written `I/N`: whole blocks, so that pairs stay on one machine. `I/N-B,C` excludes
/// blocks that ran on another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
    but: BTreeSet<u32>,
}

impl Shard {
    /// Whether a block belongs to this shard.
    pub fn contains(&self, block: u32) -> bool {
        block.wrapping_sub(1) % self.count == self.index - 1 && !self.but.contains(&block)
    }

    /// Returns the shard with `blocks` as its excluded blocks.
    #[must_use]
    pub fn but(self, blocks: BTreeSet<u32>) -> Self {
        Self {
            but: blocks,
            ..self
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)?;
        let mut before = '-';
        for block in &self.but {
            write!(f, "{before}{block}")?;
            before = ',';
        }
        Ok(())
    }
}

/// A text that is no shard.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a shard: write I/N with 1 <= I <= N, such as 2/4")]
pub struct ShardError(String);

impl FromStr for Shard {
    type Err = ShardError;
    fn from_str(text: &str) -> Result<Self, ShardError> {
        let parsed = text.split_once('/').and_then(|(index, rest)| {
            let (count, but) = match rest.split_once('-') {
                Some((count, blocks)) => (count, blocks.split(',').map(str::parse).collect()),
                None => (rest, Ok(BTreeSet::new())),
            };
            Some(Self {
                index: index.parse().ok()?,
                count: count.parse().ok()?,
                but: but.ok()?,
            })
        });
        match parsed {
            Some(shard) if shard.index >= 1 && shard.index <= shard.count => Ok(shard),
            _ => Err(ShardError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_load_has_a_seed_for_each_block_and_guest_that_stays_for_ever() {
        assert_eq!(load_seed(1, 1, 0), 733_647_653);
        assert_eq!(load_seed(1, 2, 1), 1_544_196_663);
        assert_eq!(load_seed(2014, 3, 0), 1_546_238_047);
        let mut all: Vec<i64> = (0..3)
            .flat_map(|seed| {
                (1..=20)
                    .flat_map(move |block| (0..4).map(move |guest| load_seed(seed, block, guest)))
            })
            .collect();
        assert!(all.iter().all(|seed| (1..1 << 31).contains(seed)));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 240);
    }

    #[test]
    fn a_seed_keeps_its_order_for_ever() {
        let order: Vec<usize> = schedule(5, 2, Order::Interleaved, 2014)
            .iter()
            .map(|s| s.treatment)
            .collect();
        assert_eq!(order, [2, 4, 1, 0, 3, 3, 4, 1, 0, 2]);
    }

    #[test]
    fn shards_are_written_i_of_n() {
        assert!("2/4".parse::<Shard>().unwrap().contains(2));
        assert!("2/4".parse::<Shard>().unwrap().contains(6));
        assert!(!"2/4".parse::<Shard>().unwrap().contains(3));
        let rest: Shard = "2/4-6,10".parse().unwrap();
        assert_eq!(rest.to_string(), "2/4-6,10");
        assert!(rest.contains(2) && !rest.contains(6) && rest.contains(14));
        for bad in [
            "2/4-", "2/4-x", "2/4-1-2", "0/4", "5/4", "1", "a/b", "1/0", "-1/2", "",
        ] {
            assert!(bad.parse::<Shard>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_block_holds_every_treatment_once(treatments in 1usize..20, blocks in 1u32..10, seed: u64) {
            let planned = schedule(treatments, blocks, Order::Interleaved, seed);
            for block in 1..=blocks {
                let seen: BTreeSet<usize> =
                    planned.iter().filter(|s| s.block == block).map(|s| s.treatment).collect();
                prop_assert_eq!(seen.len(), treatments);
            }
            prop_assert_eq!(planned.len(), treatments * blocks as usize);
        }

        #[test]
        fn shards_share_out_every_block_once(count in 1u32..9, block in 1u32..100) {
            let holders = (1..=count).filter(|i| format!("{i}/{count}").parse::<Shard>().unwrap().contains(block));
            prop_assert_eq!(holders.count(), 1);
        }
    }
}
