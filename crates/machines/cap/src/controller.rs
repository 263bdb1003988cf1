// SPDX-License-Identifier: Apache-2.0
//! The quota that a guest's share leaves it.
//!
//! A quota limits the time that the kernel accounts to the guest's group. The share limits the time that the ledger
//! charges. The ratio of charged to accounted time over the last seconds is the *price* of accounted time. Share over
//! price is the quota that keeps a guest with a steady load within its share. Charged time beyond the share is *owed*
//! and subtracted, so that the mean is right also where the host works for a guest that sleeps.

/// Time constant of the decay of past intervals, in seconds: smooth, and short for an observer.
const MEMORY_S: f64 = 3.0;

/// Time in which owed time is recovered, in seconds.
const HORIZON_S: f64 = 2.0;

/// Limit on owed time, in seconds of the share: traffic from others must not stop a guest for longer afterwards.
const MOST_OWED_S: f64 = 10.0;

/// Limit on unused time, in seconds of the share: it covers the random error of an interval and allows no savings.
const MOST_IN_HAND_S: f64 = 0.1;

/// The smallest quota, in processors: with less, no program answers within the time-outs of its kernel.
const LEAST: f64 = 0.01;

/// The largest quota, as a multiple of the share. It exceeds 1 since soft interrupts for others may run on the guest's
/// account.
pub(super) const MOST_OF_SHARE: f64 = 1.25;

/// The control loop of one guest.
#[derive(Debug, Clone)]
pub struct Controller {
    share: f64,
    /// Time that the kernel accounted in the last seconds, decayed, in seconds.
    accounted: f64,
    /// Time that the ledger charged in the last seconds, decayed, in seconds.
    charged: f64,
    /// Owed time in seconds; `None` until a quota is in force.
    owed: Option<f64>,
}

impl Controller {
    /// Creates a controller for a share in processors.
    pub fn new(share: f64) -> Self {
        Self {
            share,
            accounted: 0.0,
            charged: 0.0,
            owed: None,
        }
    }

    /// Returns the limit on the guest's total use, in processors.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Returns the quota in processors after an interval of `elapsed` seconds, in which the kernel accounted
    /// `accounted` seconds to the guest's group and the ledger charged `charged` seconds to the guest.
    pub fn next(&mut self, accounted: f64, charged: f64, elapsed: f64) -> f64 {
        let share = self.share;
        let keep = (-elapsed / MEMORY_S).exp();
        self.accounted = self.accounted * keep + accounted;
        self.charged = self.charged * keep + charged;
        let owed = self.owed.map_or(0.0, |owed| {
            (owed + charged - share * elapsed).clamp(-MOST_IN_HAND_S * share, MOST_OWED_S * share)
        });
        self.owed = Some(owed);
        let aim = (share - owed / HORIZON_S).max(0.0);
        let most = (share * MOST_OF_SHARE).max(LEAST);
        // The price is unknown when the guest has almost no time of its own.
        let price = if self.accounted > 1e-3 * MEMORY_S {
            self.charged / self.accounted
        } else {
            1.0
        };
        if price > 0.0 {
            (aim / price).clamp(LEAST, most)
        } else {
            most
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the mean total use of a guest from the tenth second on. The guest's demand is `wants` processors. The
    /// host works `rate` seconds for each second of the guest, and `always` seconds per second besides.
    fn mean(share: f64, wants: f64, rate: f64, always: f64) -> f64 {
        let mut controller = Controller::new(share);
        let (mut quota, mut sum) = (f64::INFINITY, 0.0);
        for second in 0..70 {
            let own = wants.min(quota);
            let charged = own * (1.0 + rate) + always;
            quota = controller.next(own, charged, 1.0);
            if second >= 10 {
                sum += charged;
            }
        }
        sum / 60.0
    }

    #[test]
    fn a_guest_that_wants_more_gets_its_share_whatever_the_host_does_for_it() {
        for (rate, always) in [(0.0, 0.0), (0.6, 0.0), (3.0, 0.0), (0.0, 0.2), (0.5, 0.1)] {
            let got = mean(0.4, 2.0, rate, always);
            assert!((got / 0.4 - 1.0).abs() < 0.02, "{rate}, {always}: {got}");
        }
    }

    #[test]
    fn a_guest_that_wants_less_is_not_held_back() {
        let got = mean(0.4, 0.1, 1.0, 0.0);
        assert!((got - 0.2).abs() < 1e-9, "{got}");
    }

    #[test]
    fn a_flood_of_others_holds_a_guest_back_for_some_twelve_seconds_afterwards() {
        let mut controller = Controller::new(0.4);
        for _ in 0..1000 {
            let quota = controller.next(0.0, 1.0, 1.0);
            assert!((LEAST..=0.4 * MOST_OF_SHARE).contains(&quota), "{quota}");
        }
        let (mut quota, mut seconds) = (LEAST, 0);
        while quota < 0.35 {
            quota = controller.next(quota, quota, 1.0);
            seconds += 1;
            assert!(seconds < 14, "{quota} after {seconds} s");
        }
    }

    proptest! {
        #[test]
        fn a_quota_is_always_one_that_can_be_set(
            share in 0.001..512.0,
            intervals in prop::collection::vec((0.0..600.0, 0.0..600.0, 1e-6..60.0), 1..50),
        ) {
            let mut controller = Controller::new(share);
            for (accounted, charged, elapsed) in intervals {
                let quota = controller.next(accounted, charged, elapsed);
                prop_assert!(quota >= LEAST && quota <= (share * MOST_OF_SHARE).max(LEAST));
            }
        }
    }
}
