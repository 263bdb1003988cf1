//! What a raw counter did between two readings, and a total that never falls.

/// What a raw counter did since the last reading.
///
/// ```
/// use vtax_observe::counters::{MonotonicCounter, OnFall, Step};
/// let mut counter = MonotonicCounter::new(OnFall::Restarted);
/// assert_eq!(counter.advance(1000), Step::First);
/// assert_eq!(counter.advance(1200), Step::Forward(200));
/// assert_eq!(counter.advance(30), Step::Fell { from: 1200, to: 30 });
/// assert_eq!(counter.total(), 1230);
/// ```
///
/// What it cannot detect: a counter that restarts and passes its old value within one period
/// looks like one that went forward, and the step is too small by the old value. Sources
/// that can restart are therefore read through an open file that dies with its owner wherever
/// the kernel offers one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The first reading: nothing to compare with.
    First,
    /// It grew by this much, possibly zero.
    Forward(u64),
    /// It fell.
    Fell {
        /// The last reading.
        from: u64,
        /// This reading.
        to: u64,
    },
}

/// What a falling reading means, which only the source's own semantics can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFall {
    /// The source started again from zero (a device was created anew): all of the new reading
    /// is new.
    Restarted,
    /// The source is known to dip and to come back (`iowait` of `/proc/stat`): nothing is new
    /// until it has passed its highest reading.
    Dipped,
}

/// Turns raw readings into a total that never falls: neither a restart nor a dip makes a
/// negative difference, and neither makes a jump.
#[derive(Debug, Clone)]
pub struct MonotonicCounter {
    on_fall: OnFall,
    last: Option<u64>,
    total: u64,
}

impl MonotonicCounter {
    /// A counter without readings.
    pub fn new(on_fall: OnFall) -> Self {
        Self {
            on_fall,
            last: None,
            total: 0,
        }
    }

    /// Takes one raw reading.
    pub fn advance(&mut self, raw: u64) -> Step {
        let (step, gain) = match self.last {
            None => (Step::First, raw),
            Some(last) if raw >= last => (Step::Forward(raw - last), raw - last),
            Some(last) => {
                let step = Step::Fell {
                    from: last,
                    to: raw,
                };
                match self.on_fall {
                    OnFall::Restarted => (step, raw),
                    OnFall::Dipped => return step,
                }
            }
        };
        self.last = Some(raw);
        self.total = self.total.saturating_add(gain);
        step
    }

    /// Takes a reading whose difference from the last one means nothing, such as the first one
    /// after a CPU left the sum: the total stays.
    pub fn rebase(&mut self, raw: u64) {
        if self.last.is_none() {
            self.total = raw;
        }
        self.last = Some(raw);
    }

    /// The first reading plus all growth since.
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_dip_adds_nothing_until_the_old_value_is_passed() {
        let mut counter = MonotonicCounter::new(OnFall::Dipped);
        for raw in [100, 99, 100, 105] {
            counter.advance(raw);
        }
        assert_eq!(counter.total(), 105);
    }

    #[test]
    fn a_rebase_adds_nothing() {
        let mut counter = MonotonicCounter::new(OnFall::Restarted);
        counter.advance(100);
        counter.rebase(40);
        counter.advance(45);
        assert_eq!(counter.total(), 105);
    }

    proptest! {
        #[test]
        fn counters_that_go_backwards_never_give_negative_steps(
            raws in prop::collection::vec(any::<u64>(), 1..50),
            restarted in any::<bool>(),
        ) {
            let on_fall = if restarted { OnFall::Restarted } else { OnFall::Dipped };
            let mut counter = MonotonicCounter::new(on_fall);
            let mut before = 0;
            for raw in raws {
                counter.advance(raw);
                prop_assert!(counter.total() >= before);
                before = counter.total();
            }
        }
    }
}
