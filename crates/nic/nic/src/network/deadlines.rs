// SPDX-License-Identifier: Apache-2.0
//! The deadlines of a network's ports. Idle ports cost nothing.

use crate::hold::Nanos;
use std::collections::BTreeSet;

/// The deadlines of ports.
#[derive(Debug)]
pub(super) struct Deadlines {
    order: BTreeSet<(Nanos, u16)>,
    /// The deadline of each port that is in `order`.
    of: Vec<Option<Nanos>>,
    /// Ports whose deadline may have changed.
    stale: Vec<u16>,
    is_stale: Vec<bool>,
}

impl Deadlines {
    pub(super) fn new(ports: usize) -> Self {
        Self {
            order: BTreeSet::new(),
            of: vec![None; ports],
            stale: Vec::with_capacity(ports),
            is_stale: vec![false; ports],
        }
    }

    /// Notes that a port's deadline may change.
    #[inline]
    pub(super) fn touch(&mut self, port: u16) {
        if let Some(is_stale) = self.is_stale.get_mut(usize::from(port))
            && !std::mem::replace(is_stale, true)
        {
            self.stale.push(port);
        }
    }

    /// Updates the deadlines of the noted ports by `ask`.
    #[inline]
    pub(super) fn settle(&mut self, mut ask: impl FnMut(u16) -> Option<Nanos>) {
        while let Some(port) = self.stale.pop() {
            self.is_stale[usize::from(port)] = false;
            self.set(port, ask(port));
        }
    }

    fn set(&mut self, port: u16, deadline: Option<Nanos>) {
        let before = std::mem::replace(&mut self.of[usize::from(port)], deadline);
        if before == deadline {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, port));
        }
        if let Some(deadline) = deadline {
            self.order.insert((deadline, port));
        }
    }

    /// The earliest deadline.
    #[inline]
    pub(super) fn first(&self) -> Option<Nanos> {
        self.order.first().map(|(deadline, _)| *deadline)
    }

    /// The next port whose deadline has passed. It is returned again only after its deadline was updated.
    #[inline]
    pub(super) fn take(&mut self, now: Nanos) -> Option<u16> {
        let (_, port) = *self
            .order
            .first()
            .filter(|(deadline, _)| *deadline <= now)?;
        self.set(port, None);
        self.touch(port);
        Some(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_port_that_stays_due_is_given_once_a_look() {
        let mut deadlines = Deadlines::new(2);
        deadlines.touch(1);
        deadlines.settle(|_| Some(Nanos(5)));
        assert_eq!(deadlines.take(Nanos(4)), None);
        assert_eq!(deadlines.take(Nanos(5)), Some(1));
        assert_eq!(deadlines.take(Nanos(5)), None);
        deadlines.settle(|_| Some(Nanos(5)));
        assert_eq!(deadlines.take(Nanos(5)), Some(1));
    }

    #[test]
    fn nobody_is_asked_at_whom_nothing_happened() {
        let mut deadlines = Deadlines::new(64);
        deadlines.touch(7);
        deadlines.touch(7);
        let mut asked = Vec::new();
        deadlines.settle(|port| {
            asked.push(port);
            Some(Nanos(1))
        });
        deadlines.settle(|port| unreachable!("{port}"));
        assert_eq!((asked, deadlines.first()), (vec![7], Some(Nanos(1))));
    }

    proptest! {
        #[test]
        fn it_gives_what_a_scan_of_all_would(
            steps in prop::collection::vec((0u16..6, prop::option::of(0u64..40), 0u64..40), 1..80)
        ) {
            let mut deadlines = Deadlines::new(6);
            let mut all = [None; 6];
            for (port, deadline, now) in steps {
                all[usize::from(port)] = deadline.map(Nanos);
                deadlines.touch(port);
                deadlines.settle(|port| all[usize::from(port)]);
                prop_assert_eq!(deadlines.first(), all.iter().flatten().copied().min());
                let mut due = Vec::new();
                while let Some(port) = deadlines.take(Nanos(now)) {
                    due.push(port);
                }
                due.sort_unstable();
                let scan = (0..6).filter(|port| all[usize::from(*port)].is_some_and(|at| at.0 <= now));
                prop_assert_eq!(due, scan.collect::<Vec<u16>>());
                deadlines.settle(|port| all[usize::from(port)]);
            }
        }
    }
}
