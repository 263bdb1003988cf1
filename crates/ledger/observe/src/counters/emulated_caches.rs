// SPDX-License-Identifier: Apache-2.0
//! References to and misses of the last-level cache that an emulator models: vtax's own QEMU with `-plugin llc`.
//!
//! The counts are read by CPUID, which needs no privileges and no driver. Leaf 0x4C4C4300 with subleaf 0xFFFFFFFF
//! returns the number of processors and a signature, and with the number of a processor its references in EBX:EAX and
//! its misses in EDX:ECX. Real processors have no such leaf, and answer without the signature.

use super::series::Column;
use crate::{Instrument, ObserveError, Readings};
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;

const LEAF: u32 = 0x4c4c_4300;
const SIGNATURE_SUBLEAF: u32 = 0xffff_ffff;
const SIGNATURE: &[u8; 12] = b"vtaxLLCcount";

/// The most processors that the model counts: more are no answer of the model.
const MOST_PROCESSORS: u32 = 64;

/// The counts of all processors together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    references: u64,
    misses: u64,
}

/// The emulator's counts for the host.
#[derive(Debug)]
pub struct EmulatedCaches {
    processors: u32,
    /// The counts when the instrument was opened.
    start: Counts,
    columns: [Column; 2],
}

impl EmulatedCaches {
    /// Opens the counts; `None` where the processor does not count.
    pub fn host() -> Option<Self> {
        let processors = processors(cpuid(SIGNATURE_SUBLEAF))?;
        Some(Self {
            processors,
            start: Counts::new(processors, cpuid),
            columns: [counter::HW_LLC_REFERENCES, counter::HW_LLC_MISSES]
                .map(|metric| Column::counter(&Owner::Host, metric)),
        })
    }
}

impl Counts {
    fn new(processors: u32, read: impl Fn(u32) -> [u32; 4]) -> Self {
        let none = Self {
            references: 0,
            misses: 0,
        };
        (0..processors).map(read).fold(none, |sum, registers| {
            let [eax, ebx, ecx, edx] = registers.map(u64::from);
            Self {
                references: sum.references.wrapping_add(ebx << 32 | eax),
                misses: sum.misses.wrapping_add(edx << 32 | ecx),
            }
        })
    }
}

impl Instrument for EmulatedCaches {
    fn name(&self) -> &str {
        "emulated caches"
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let now = Counts::new(self.processors, cpuid);
        let gains = [
            now.references.wrapping_sub(self.start.references),
            now.misses.wrapping_sub(self.start.misses),
        ];
        for (column, gain) in self.columns.iter_mut().zip(gains) {
            column.record(gain as f64, into);
        }
        Ok(())
    }
}

/// The number of processors by the answer to the signature's subleaf; `None` without the signature.
fn processors([count, rest @ ..]: [u32; 4]) -> Option<u32> {
    let signature: Vec<u8> = rest.into_iter().flat_map(u32::to_le_bytes).collect();
    (signature == SIGNATURE && (1..=MOST_PROCESSORS).contains(&count)).then_some(count)
}

/// EAX, EBX, ECX and EDX of a subleaf.
#[cfg(target_arch = "x86_64")]
#[allow(
    unused_unsafe,
    reason = "the function is unsafe in older versions of Rust"
)]
fn cpuid(subleaf: u32) -> [u32; 4] {
    // SAFETY: every x86-64 processor has CPUID, and it changes only the four registers that it returns.
    let found = unsafe { std::arch::x86_64::__cpuid_count(LEAF, subleaf) };
    [found.eax, found.ebx, found.ecx, found.edx]
}

#[cfg(not(target_arch = "x86_64"))]
fn cpuid(_subleaf: u32) -> [u32; 4] {
    [0; 4]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &[u8; 12]) -> [u32; 3] {
        let word =
            |at: usize| u32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]]);
        [word(0), word(4), word(8)]
    }

    #[test]
    fn only_the_signature_is_an_emulator_that_counts() {
        let [ebx, ecx, edx] = words(SIGNATURE);
        assert_eq!(processors([4, ebx, ecx, edx]), Some(4));
        assert_eq!(processors([0, ebx, ecx, edx]), None);
        assert_eq!(processors([u32::MAX, ebx, ecx, edx]), None);
        let [ebx, ecx, edx] = words(b"GenuntelineI");
        assert_eq!(processors([4, ebx, ecx, edx]), None);
        assert_eq!(processors([0; 4]), None);
    }

    #[test]
    fn the_counts_of_all_processors_are_added() {
        let read = |processor| match processor {
            0 => [1, 2, 3, 0],
            1 => [10, 0, 20, 1],
            _ => panic!("there are two processors"),
        };
        let expected = Counts {
            references: (2 << 32) + 11,
            misses: (1 << 32) + 23,
        };
        assert_eq!(Counts::new(2, read), expected);
    }
}
