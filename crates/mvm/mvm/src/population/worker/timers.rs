// SPDX-License-Identifier: Apache-2.0
//! A worker's timers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Deadlines in ns, each with a `T`.
#[derive(Debug)]
pub struct Timers<T> {
    order: BinaryHeap<Reverse<(u64, u64)>>,
    pending: HashMap<u64, T>,
    last: u64,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self {
            order: BinaryHeap::new(),
            pending: HashMap::new(),
            last: 0,
        }
    }
}

impl<T> Timers<T> {
    /// Sets a timer. Returns its number.
    pub fn set(&mut self, at: u64, what: T) -> u64 {
        self.last += 1;
        self.order.push(Reverse((at, self.last)));
        self.pending.insert(self.last, what);
        self.last
    }

    /// Cancels a timer, if it has not fired.
    pub fn cancel(&mut self, timer: u64) {
        self.pending.remove(&timer);
    }

    /// The next deadline, without cancelled timers.
    pub fn next(&mut self) -> Option<u64> {
        while let Some(Reverse((at, timer))) = self.order.peek() {
            if self.pending.contains_key(timer) {
                return Some(*at);
            }
            self.order.pop();
        }
        None
    }

    /// Takes a timer that is due, with its deadline.
    pub fn due(&mut self, now: u64) -> Option<(u64, T)> {
        let at = self.next().filter(|at| *at <= now)?;
        let Reverse((_, timer)) = self.order.pop()?;
        Some((at, self.pending.remove(&timer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_in_order_once_and_not_before_their_time() {
        let mut timers = Timers::default();
        timers.set(30, 'c');
        timers.set(10, 'a');
        timers.set(20, 'b');
        assert_eq!(timers.due(9), None);
        assert_eq!(timers.due(25), Some((10, 'a')));
        assert_eq!(timers.due(25), Some((20, 'b')));
        assert_eq!(timers.due(25), None);
        assert_eq!(timers.next(), Some(30));
    }

    #[test]
    fn a_cancelled_timer_is_not_waited_for() {
        let mut timers = Timers::default();
        let first = timers.set(10, 'a');
        timers.set(20, 'b');
        timers.cancel(first);
        assert_eq!(timers.next(), Some(20));
        assert_eq!(timers.due(20), Some((20, 'b')));
        assert_eq!(timers.next(), None);
    }
}
