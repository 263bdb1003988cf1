// SPDX-License-Identifier: Apache-2.0
//! A learning switch's table of addresses and their ports.

use crate::frame::Mac;
use crate::hold::Nanos;
use std::collections::HashMap;

/// The most addresses of a port, so that none displaces those of others.
const ADDRESSES_PER_PORT: usize = 256;

/// Addresses are forgotten after this time without a frame (IEEE 802.1Q, table 8-6).
const ADDRESS_LIFETIME: Nanos = Nanos::from_secs(300);

/// The entry of an address.
#[derive(Debug, Clone, Copy)]
struct Entry {
    port: u16,
    seen: Nanos,
    /// Whether it is pinned to the port: it neither moves nor expires.
    pinned: bool,
}

impl Entry {
    fn is_old(&self, now: Nanos) -> bool {
        !self.pinned && now.since(self.seen) > ADDRESS_LIFETIME
    }
}

/// The destination of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// To one port.
    Port(u16),
    /// To all ports but its own.
    Flood,
    /// Nowhere: it is for its own port, or no bridge may forward it.
    Nowhere,
    /// Nowhere: its source address is pinned to another port.
    Forged,
}

/// The table.
#[derive(Debug)]
pub struct MacTable {
    entries: HashMap<Mac, Entry>,
    /// The number of addresses of each port.
    counts: Vec<usize>,
    /// The time of the last removal of expired addresses.
    swept: Nanos,
}

/// The least time between two removals of expired addresses, so that a port that invents addresses cannot cause them
/// all the time.
const SWEEP_INTERVAL: Nanos = Nanos::from_secs(1);

impl MacTable {
    /// A table for `ports` ports, with all its memory allocated.
    pub fn new(ports: usize) -> Self {
        Self {
            entries: HashMap::with_capacity(ports * ADDRESSES_PER_PORT),
            counts: vec![0; ports],
            swept: Nanos::ZERO,
        }
    }

    /// Pins an address to a port, unless it is pinned to another.
    pub fn pin(&mut self, address: Mac, port: u16) {
        if self.is_anothers(address, port) {
            return;
        }
        let entry = Entry {
            port,
            seen: Nanos::ZERO,
            pinned: true,
        };
        self.insert(address, entry);
    }

    /// Inserts or replaces an entry, and counts it.
    fn insert(&mut self, address: Mac, entry: Entry) {
        if let Some(old) = self.entries.insert(address, entry)
            && let Some(count) = self.counts.get_mut(usize::from(old.port))
        {
            *count = count.saturating_sub(1);
        }
        if let Some(count) = self.counts.get_mut(usize::from(entry.port)) {
            *count += 1;
        }
    }

    /// Whether an address is pinned to another port.
    pub fn is_anothers(&self, address: Mac, port: u16) -> bool {
        let entry = self.entries.get(&address);
        entry.is_some_and(|entry| entry.pinned && entry.port != port)
    }

    /// Learns the port of a frame's source and returns the frame's destination.
    #[inline]
    pub fn route(&mut self, source: Mac, target: Mac, port: u16, now: Nanos) -> Route {
        if !self.learn(source, port, now) {
            return Route::Forged;
        }
        // 01-80-C2-00-00-00 to -0F stay on their link (IEEE 802.1Q, 8.6.3).
        if let [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f] = target {
            return Route::Nowhere;
        }
        if target[0] & 1 != 0 {
            return Route::Flood;
        }
        match self.entries.get(&target) {
            Some(entry) if entry.is_old(now) => Route::Flood,
            Some(entry) if entry.port == port => Route::Nowhere,
            Some(entry) => Route::Port(entry.port),
            None => Route::Flood,
        }
    }

    /// Learns an address. Returns whether the port may send from it.
    fn learn(&mut self, source: Mac, port: u16, now: Nanos) -> bool {
        // No station has a group address.
        if source[0] & 1 != 0 {
            return true;
        }
        match self.entries.get_mut(&source) {
            Some(entry) if entry.port == port => {
                entry.seen = now;
                return true;
            }
            Some(entry) if entry.pinned => return false,
            _ => {}
        }
        if self.is_full(port) {
            self.forget_old(now);
            if self.is_full(port) {
                return true;
            }
        }
        let entry = Entry {
            port,
            seen: now,
            pinned: false,
        };
        self.insert(source, entry);
        true
    }

    fn is_full(&self, port: u16) -> bool {
        self.counts.get(usize::from(port)) >= Some(&ADDRESSES_PER_PORT)
    }

    /// Removes the addresses of a port whose front end has gone, except pinned ones.
    pub fn forget_port(&mut self, port: u16) {
        let mut kept = 0;
        self.entries.retain(|_, entry| {
            kept += usize::from(entry.port == port && entry.pinned);
            entry.port != port || entry.pinned
        });
        if let Some(count) = self.counts.get_mut(usize::from(port)) {
            *count = kept;
        }
    }

    fn forget_old(&mut self, now: Nanos) {
        if now.since(self.swept) < SWEEP_INTERVAL {
            return;
        }
        self.swept = now;
        let counts = &mut self.counts;
        self.entries.retain(|_, entry| {
            let keep = !entry.is_old(now);
            if !keep && let Some(count) = counts.get_mut(usize::from(entry.port)) {
                *count = count.saturating_sub(1);
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = [2, 0, 0, 0, 0, 1];
    const B: Mac = [2, 0, 0, 0, 0, 2];

    #[test]
    fn unknown_is_flooded_and_known_is_not() {
        let mut table = MacTable::new(3);
        assert_eq!(table.route(A, B, 0, Nanos(1)), Route::Flood);
        assert_eq!(table.route(B, A, 1, Nanos(2)), Route::Port(0));
        assert_eq!(table.route(A, B, 0, Nanos(3)), Route::Port(1));
        assert_eq!(table.route(A, A, 0, Nanos(3)), Route::Nowhere);
        assert_eq!(table.route(A, [0xff; 6], 0, Nanos(3)), Route::Flood);
        assert_eq!(
            table.route(A, [1, 0x80, 0xc2, 0, 0, 14], 0, Nanos(3)),
            Route::Nowhere
        );
    }

    #[test]
    fn a_station_that_moves_is_followed_and_one_that_is_silent_forgotten() {
        let mut table = MacTable::new(3);
        let _ = table.route(A, B, 0, Nanos(1));
        let _ = table.route(A, B, 2, Nanos(2));
        assert_eq!(table.route(B, A, 1, Nanos(3)), Route::Port(2));
        let later = ADDRESS_LIFETIME + Nanos(10);
        assert_eq!(table.route(B, A, 1, later), Route::Flood);
        let _ = table.route(A, B, 2, later);
        table.forget_port(2);
        assert_eq!(table.route(B, A, 1, later), Route::Flood);
    }

    #[test]
    fn no_port_takes_an_address_that_is_anothers_alone() {
        let mut table = MacTable::new(3);
        table.pin(A, 0);
        table.pin(A, 1);
        assert_eq!(table.route(A, B, 2, Nanos(1)), Route::Forged);
        let later = ADDRESS_LIFETIME + ADDRESS_LIFETIME;
        table.forget_port(0);
        assert_eq!(
            table.route(B, A, 1, later),
            Route::Port(0),
            "not learnt, not forgotten"
        );
        assert_eq!(table.route(A, B, 0, later), Route::Port(1));
        let mut learnt_before = MacTable::new(3);
        let _ = learnt_before.route(A, B, 2, Nanos(1));
        learnt_before.pin(A, 0);
        assert_eq!(learnt_before.route(B, A, 1, Nanos(2)), Route::Port(0));
        assert_eq!(learnt_before.counts, [1, 1, 0]);
    }

    #[test]
    fn a_port_that_invents_addresses_pushes_nobody_out() {
        let mut table = MacTable::new(2);
        let _ = table.route(A, B, 1, Nanos(1));
        for number in 0..100_000_u32 {
            let [a, b, c, d] = number.to_be_bytes();
            let _ = table.route([0x06, 0, a, b, c, d], B, 0, Nanos(2));
        }
        assert!(table.entries.len() <= ADDRESSES_PER_PORT + 1);
        assert_eq!(table.route(B, A, 0, Nanos(3)), Route::Port(1));
    }
}
