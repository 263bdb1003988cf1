// SPDX-License-Identifier: Apache-2.0
//! A pseudorandom generator with a published algorithm, for estimates from millions of numbers, and its seeds.

use vtax_core::SplitMix64;

/// xoshiro256++ (Blackman and Vigna 2021, "Scrambled linear pseudorandom number generators"), seeded by [`SplitMix64`]
/// as its authors recommend.
#[derive(Debug, Clone)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// Creates the generator of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut seeds = SplitMix64::new(seed);
        Self {
            state: std::array::from_fn(|_| seeds.bits()),
        }
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number below `limit` (0 for a limit of 0). The bias of multiply-and-shift is below
    /// `limit` / 2^64.
    pub fn below(&mut self, limit: usize) -> usize {
        let wide = u128::from(self.bits()) * (limit as u128);
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A standard normal number (Box and Muller 1958), for simulations.
    #[cfg(test)]
    pub(super) fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// A seed derived from names alone (FNV-1a), so that an estimate does not change when other treatments or metrics are
/// added.
pub fn seed_of(names: &[&str]) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    names.iter().fold(0xcbf2_9ce4_8422_2325, |hash, name| {
        step(name.bytes().fold(hash, step), 0xff)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_keeps_its_sequence_for_ever() {
        let mut random = Random::new(2014);
        assert_eq!(
            std::array::from_fn(|_| random.bits()),
            [
                14_412_750_752_135_708_724,
                1_970_104_489_111_500_680,
                2_191_885_889_410_271_186,
            ]
        );
    }
}
