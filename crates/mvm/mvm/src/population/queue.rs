// SPDX-License-Identifier: Apache-2.0
//! The queue of turns: the guest with the least processor time is next.
//!
//! A guest that wakes starts one slice behind the least served, so that it answers at once and cannot save up time
//! (virtual run time, as in Linux's CFS).

use super::share::Share;
use crate::machine::slice::SLICE_NS;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The most run time that a guest may be ahead of those of other processes, in ns.
const MOST_LEAD_NS: u64 = 4 * SLICE_NS.unsigned_abs();

/// The longest wait of this process for another one's turn, in ns. A longer wait means that the other is stopped, or
/// that the host is busy.
const STUCK_TIMEOUT_NS: u64 = 200_000_000;

/// Guests that wait for their turn.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// The run time of the guest that had the last turn.
    least: u64,
    /// The order of arrival, which breaks ties.
    sequence: u64,
    share: Option<Share>,
    /// The start of the wait for another process, in ns, and the run time of that process's next guest.
    held_up: Option<(u64, u64)>,
}

/// The result of taking a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The turn of this guest.
    Guest(u32),
    /// The turn of guests in other processes.
    Others,
    /// No guest waits for a turn.
    Nobody,
}

impl Queue {
    /// Shares turns with other processes from now on.
    pub fn join(&mut self, share: Share) {
        self.share = Some(share);
    }

    /// Adds a guest with a run time of `runtime` ns. Returns the run time that it gets.
    pub fn push(&mut self, number: u32, runtime: u64) -> u64 {
        let least = self.share.as_ref().map_or(self.least, Share::floor);
        let runtime = runtime.max(least.saturating_sub(SLICE_NS.unsigned_abs()));
        self.sequence += 1;
        self.waiting.push(Reverse((runtime, self.sequence, number)));
        self.publish();
        runtime
    }

    /// Takes the guest that has the next turn at `now`, in ns.
    pub fn pop(&mut self, now: u64) -> Next {
        let Some(Reverse((runtime, _, number))) = self.waiting.peek().copied() else {
            self.publish();
            return Next::Nobody;
        };
        if self.must_wait(runtime, now) {
            return Next::Others;
        }
        self.waiting.pop();
        self.least = self.least.max(runtime);
        if let Some(share) = &self.share {
            let theirs = share
                .least_of_others()
                .map_or(runtime, |(_, theirs)| theirs);
            share.raise_floor(runtime.min(theirs));
        }
        Next::Guest(number)
    }

    /// Whether no guest waits.
    pub fn is_empty(&self) -> bool {
        self.publish();
        self.waiting.is_empty()
    }

    fn publish(&self) {
        if let Some(share) = &self.share {
            share.publish(self.waiting.peek().map(|Reverse((runtime, ..))| *runtime));
        }
    }

    fn must_wait(&mut self, runtime: u64, now: u64) -> bool {
        let Some(share) = &self.share else {
            return false;
        };
        let behind = share.least_of_others();
        let Some((process, theirs)) =
            behind.filter(|(_, theirs)| theirs.saturating_add(MOST_LEAD_NS) < runtime)
        else {
            self.held_up = None;
            return false;
        };
        match self.held_up {
            Some((since, at)) if at == theirs => {
                if now.saturating_sub(since) > STUCK_TIMEOUT_NS {
                    share.forget(process, theirs);
                    self.held_up = None;
                    return false;
                }
            }
            _ => self.held_up = Some((now, theirs)),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_that_always_want_to_run_get_equal_time() {
        let mut queue = Queue::default();
        let mut had = [0u64; 3];
        // The second guest uses only a third of each turn.
        let turn = [900, 300, 900];
        for number in 0..3 {
            queue.push(number, 0);
        }
        for _ in 0..10_000 {
            let Next::Guest(number) = queue.pop(0) else {
                panic!("nobody waits")
            };
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
        queue.pop(0);
        queue.push(1, 50_000_000);
        assert_eq!(queue.push(2, 0), 49_000_000);
        assert_eq!(queue.pop(0), Next::Guest(2));
    }

    /// The queues of two processes that share.
    fn pair() -> [Queue; 2] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("share");
        Share::create(&path).unwrap().set_processes(2);
        [0, 1].map(|own| {
            let mut queue = Queue::default();
            queue.join(Share::join(&path, own).unwrap());
            queue
        })
    }

    #[test]
    fn a_guest_that_is_alone_gets_no_more_than_each_of_many_in_another_process() {
        let mut queues = pair();
        let mut had = [0u64; 5];
        queues[0].push(0, 0);
        for number in 1..5 {
            queues[1].push(number, 0);
        }
        // Both processes may run a guest at any time, because each has a core.
        for round in 0..4000 {
            for queue in &mut queues {
                if let Next::Guest(number) = queue.pop(round) {
                    had[number as usize] += SLICE_NS.unsigned_abs();
                    queue.push(number, had[number as usize]);
                }
            }
        }
        let (least, most) = (had.iter().min().unwrap(), had.iter().max().unwrap());
        assert!(
            most - least <= MOST_LEAD_NS + 2 * SLICE_NS.unsigned_abs(),
            "{had:?}"
        );
    }

    #[test]
    fn a_process_that_is_stopped_holds_nobody_up_for_long() {
        let [mut going, mut stopped] = pair();
        stopped.push(1, 0);
        going.push(2, 50_000_000);
        assert_eq!(going.pop(0), Next::Others);
        assert_eq!(going.pop(STUCK_TIMEOUT_NS), Next::Others);
        assert_eq!(going.pop(STUCK_TIMEOUT_NS + 1), Next::Guest(2));
        going.push(2, 51_000_000);
        assert_eq!(going.pop(STUCK_TIMEOUT_NS + 2), Next::Guest(2));
        // The stopped process continues, and its run time is behind.
        going.push(2, 52_000_000);
        assert_eq!(stopped.pop(0), Next::Guest(1));
        stopped.push(1, 1_000_000);
        let next = going.pop(STUCK_TIMEOUT_NS + 3);
        assert_eq!(next, Next::Guest(2), "a guest that wakes saves up no time");
    }
}
