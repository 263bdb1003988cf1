// SPDX-License-Identifier: Apache-2.0
//! A small random generator with a published algorithm, so that a seed always gives the same sequence.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), with the
/// mixing constants of Vigna's reference implementation. It passes the usual tests of randomness, and every seed
/// begins a sequence of 2^64 draws.
///
/// It is implemented here because a library's draws may change between versions, and a stored seed must keep its
/// meaning.
///
/// ```
/// use vtax_core::SplitMix64;
/// assert_eq!(SplitMix64::new(0).bits(), 0xe220_a839_7b1d_cdaf);
/// ```
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator of `seed`. Generators of neighbouring seeds have unrelated sequences.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit` (0 for a limit of 0). The bias of multiply-and-shift is below `limit` / 2^64.
    pub fn below(&mut self, limit: usize) -> usize {
        let wide = u128::from(self.bits()) * (limit as u128);
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts items into random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_sequence() {
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(
            std::array::from_fn(|_| random.bits()),
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821,
            ]
        );
    }

    #[test]
    fn a_number_below_a_limit_reaches_each_and_never_the_limit() {
        let mut random = SplitMix64::new(7);
        let mut counts = [0_u32; 5];
        for _ in 0..5_000 {
            counts[random.below(5)] += 1;
        }
        // 1,000 each are expected; five standard deviations are 141.
        assert!(
            counts.iter().all(|count| (859..=1_141).contains(count)),
            "{counts:?}"
        );
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn shuffled_items_stay_the_same_items() {
        let mut items: Vec<u32> = (0..100).collect();
        SplitMix64::new(1).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
