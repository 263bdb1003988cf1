//! Whose turn it is: the guest that has had the least processor time.
//!
//! A guest that wakes starts one slice behind the least served, so that sleepers answer at once
//! and none can save up time (virtual run time, as in Linux's CFS).

use crate::machine::slice::SLICE_NS;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Guests that wait for their turn.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// The run time of the guest that was last given a turn.
    least: u64,
    /// Breaks ties: first come, first served.
    sequence: u64,
}

impl Queue {
    /// Adds a guest that has had `runtime` ns; returns what it counts as.
    pub fn push(&mut self, number: u32, runtime: u64) -> u64 {
        let runtime = runtime.max(self.least.saturating_sub(SLICE_NS.unsigned_abs()));
        self.sequence += 1;
        self.waiting.push(Reverse((runtime, self.sequence, number)));
        runtime
    }

    /// Takes the guest whose turn it is.
    pub fn pop(&mut self) -> Option<u32> {
        let Reverse((runtime, _, number)) = self.waiting.pop()?;
        self.least = self.least.max(runtime);
        Some(number)
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_that_always_want_to_run_get_equal_time() {
        let mut queue = Queue::default();
        let mut had = [0u64; 3];
        // The second uses only a third of each turn.
        let turn = [900, 300, 900];
        for number in 0..3 {
            queue.push(number, 0);
        }
        for _ in 0..10_000 {
            let number = queue.pop().unwrap();
            had[number as usize] += turn[number as usize];
            queue.push(number, had[number as usize]);
        }
        let (least, most) = (had.iter().min().unwrap(), had.iter().max().unwrap());
        assert!(most - least <= 900, "{had:?}");
    }

    #[test]
    fn a_guest_that_slept_for_long_goes_first_but_only_by_one_slice() {
        let mut queue = Queue::default();
        queue.push(1, 50_000_000);
        queue.pop();
        queue.push(1, 50_000_000);
        assert_eq!(queue.push(2, 0), 49_000_000);
        assert_eq!(queue.pop(), Some(2));
    }
}
