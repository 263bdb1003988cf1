// SPDX-License-Identifier: Apache-2.0
//! The selection of guests that get series of their own: all of them, up to a limit, so that a host which creates
//! thousands of guests an hour cannot fill the database behind the exporter.
//!
//! A guest keeps its series while it lives. The other guests share one sum until a series is free. Their use up to then
//! stays in that sum. Every sum only grows, and all sums together equal the ledger's total.

use std::collections::HashMap;
use vtax_charge::LedgerSnapshot;
use vtax_charge::{GuestTotals, Stages};
use vtax_core::{Joules, Nanoseconds};

/// Time and energy of guests without series.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sum {
    /// Time of all stages.
    pub cpu: Nanoseconds,
    /// Energy.
    pub energy: Joules,
}

/// The guests that have series.
#[derive(Debug)]
pub struct Roster {
    most: usize,
    /// The use of each guest, by number, before it got its series.
    places: HashMap<u32, GuestTotals>,
    left_out: Sum,
    departed: Sum,
}

/// The part of one snapshot that has series, and the sums of the rest.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Listing {
    /// Guests with series: their index in the snapshot, and their totals since they have series.
    pub listed: Vec<(usize, GuestTotals)>,
    /// Number of guests without series.
    pub left_out: usize,
    /// The use of guests while they lived without series.
    pub left_out_sum: Sum,
    /// The use of ended guests while they had series.
    pub departed_sum: Sum,
}

impl Roster {
    /// Creates a roster that gives series to at most `most` guests.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            places: HashMap::new(),
            left_out: Sum::default(),
            departed: Sum::default(),
        }
    }

    /// Updates the selection, and returns the listing of the next snapshot.
    pub fn update(&mut self, snapshot: &LedgerSnapshot) -> Listing {
        let present = snapshot.numbers();
        self.places.retain(|number, _| present.contains(number));
        let mut free = self.most.saturating_sub(self.places.len());
        let mut listing = Listing::default();
        let mut shown = Sum::default();
        let mut all = Sum {
            cpu: snapshot.totals.gone.stages.total(),
            energy: snapshot.totals.gone.energy,
        };
        // In order of discovery: the guest that waits longest gets the free series.
        for (index, guest) in snapshot.guests.iter().enumerate() {
            all.add(guest.total.stages.total(), guest.total.energy);
            if !self.places.contains_key(&guest.number) {
                if free == 0 {
                    listing.left_out += 1;
                    self.left_out
                        .add(guest.used.stages.total(), guest.used.energy);
                    continue;
                }
                free -= 1;
                // The sum of left-out guests already holds its use up to this interval.
                let before = difference(&guest.total, &guest.used);
                self.places.insert(guest.number, before);
            }
            if let Some(before) = self.places.get(&guest.number) {
                let since = difference(&guest.total, before);
                shown.add(since.stages.total(), since.energy);
                listing.listed.push((index, since));
            }
        }
        // The use that is in no other sum. Rounding must not decrease it by a billionth of a joule.
        let departed = all
            .cpu
            .0
            .saturating_sub(shown.cpu.0)
            .saturating_sub(self.left_out.cpu.0);
        let energy = all.energy - shown.energy - self.left_out.energy;
        self.departed.cpu = self.departed.cpu.max(Nanoseconds(departed));
        self.departed.energy = Joules(self.departed.energy.0.max(energy.0));
        listing.left_out_sum = self.left_out;
        listing.departed_sum = self.departed;
        listing
    }
}

impl Sum {
    fn add(&mut self, cpu: Nanoseconds, energy: Joules) {
        self.cpu += cpu;
        self.energy += energy;
    }
}

/// Returns `total` minus its part `part`.
fn difference(total: &GuestTotals, part: &GuestTotals) -> GuestTotals {
    let mut stages = Stages::default();
    for stage in vtax_charge::Stage::CHARGED {
        let time = total
            .stages
            .get(stage)
            .saturating_since(part.stages.get(stage));
        stages.add(stage, time);
    }
    GuestTotals {
        stages,
        energy: Joules((total.energy.0 - part.energy.0).max(0.0)),
        exchanges: total.exchanges.without(&part.exchanges),
        error: total.error.saturating_since(part.error),
        // No sum of other guests holds the waits from before, so that nothing is counted twice.
        waits: total.waits.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vtax_charge::fake::Host;

    fn names(snapshot: &LedgerSnapshot, listing: &Listing) -> Vec<u32> {
        let numbers = listing
            .listed
            .iter()
            .map(|(index, _)| snapshot.guests[*index].number);
        numbers.collect()
    }

    #[test]
    fn a_guest_keeps_its_series_and_the_oldest_that_waits_gets_a_free_place() {
        let mut host = Host::default();
        let mut roster = Roster::new(2);
        for number in 1..=4 {
            host.start(number);
        }
        let snapshot = host.pass(100);
        let listing = roster.update(&snapshot);
        assert_eq!(
            (names(&snapshot, &listing), listing.left_out),
            (vec![1, 2], 2)
        );
        assert_eq!(listing.left_out_sum.cpu.0, 200);
        host.end(1);
        let snapshot = host.pass(100);
        let listing = roster.update(&snapshot);
        assert_eq!(
            (names(&snapshot, &listing), listing.left_out),
            (vec![2, 3], 1)
        );
        assert_eq!(listing.departed_sum.cpu.0, 100);
        assert_eq!(
            listing.listed[1].1.stages.total().0,
            100,
            "not what is in the sum of the left out"
        );
        assert_eq!(listing.left_out_sum.cpu.0, 300);
    }

    proptest! {
        #[test]
        fn sums_close_and_nothing_falls_while_a_guest_lives(
            most in 0usize..5,
            changes in prop::collection::vec((0u32..3, 1u64..1000), 1..60),
        ) {
            let (mut host, mut roster, mut number) = (Host::default(), Roster::new(most), 0);
            let mut before: HashMap<u32, u64> = HashMap::new();
            let (mut left_out, mut departed) = (Sum::default(), Sum::default());
            for (change, time) in changes {
                match change {
                    0 => { number += 1; host.start(number); }
                    1 => host.end(number.saturating_sub(1)),
                    _ => {}
                }
                let snapshot = host.pass(time);
                let listing = roster.update(&snapshot);
                prop_assert!(listing.listed.len() <= most);
                let mut shown = 0;
                let mut now = HashMap::new();
                for (index, total) in &listing.listed {
                    let number = snapshot.guests[*index].number;
                    let time = total.stages.total().0;
                    prop_assert!(time >= before.get(&number).copied().unwrap_or(0));
                    now.insert(number, time);
                    shown += time;
                }
                before = now;
                prop_assert!(listing.left_out_sum.cpu >= left_out.cpu && listing.left_out_sum.energy.0 >= left_out.energy.0);
                prop_assert!(listing.departed_sum.cpu >= departed.cpu && listing.departed_sum.energy.0 >= departed.energy.0);
                (left_out, departed) = (listing.left_out_sum, listing.departed_sum);
                let all = shown + left_out.cpu.0 + departed.cpu.0;
                prop_assert_eq!(all + snapshot.totals.host.0 + snapshot.totals.unattributed.0, snapshot.totals.total.0);
            }
        }
    }
}
