// SPDX-License-Identifier: Apache-2.0
//! The limits of a port's transmission: its source addresses, its rates, and its rate of frames to all other ports.

use crate::frame::Mac;
use crate::hold::Nanos;
use crate::memory::Room;
use serde::Deserialize;
use std::num::NonZeroU64;

/// The limits that an operator sets for a port. Without them, only memory is limited: see [`Limits::or_by_room`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    /// The source addresses of its frames.
    pub addresses: Option<Addresses>,
    /// The rate of frames. More wait in the guest's ring.
    pub packets: Option<Rate>,
    /// The rate of bytes of frames, without virtio-net headers. More wait in the guest's ring.
    pub bytes: Option<Rate>,
    /// The rate of frames that a switch sends to all ports: broadcast, multicast, to unknown addresses. More are
    /// dropped.
    pub floods: Option<Rate>,
    /// Bytes of memory that its front end may share.
    pub memory: Option<NonZeroU64>,
    /// Bytes of that memory that this program may populate. They are untouched pages, which the kernel charges to this
    /// program.
    pub populate: Option<NonZeroU64>,
}

impl Limits {
    /// The same for one of `ports` ports, with default limits of memory where none are given.
    #[must_use]
    pub fn or_by_room(&self, room: Room, ports: usize) -> Self {
        Self {
            memory: self.memory.or(NonZeroU64::new(room.memory())),
            populate: self.populate.or(NonZeroU64::new(room.populate(ports))),
            ..self.clone()
        }
    }

    /// Whether frames are limited, as opposed to memory.
    pub fn limit_frames(&self) -> bool {
        self.addresses.is_some()
            || self.packets.is_some()
            || self.bytes.is_some()
            || self.floods.is_some()
    }
}

/// Ethernet addresses that a port's frames may come from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "AddressList")]
pub enum Addresses {
    /// The first one that it sends from, for as long as the program runs.
    Learn,
    /// These.
    Only(Vec<Mac>),
}

/// The syntax of addresses: `"learn"`, one address, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum AddressList {
    One(String),
    Several(Vec<String>),
}

/// Why an address or a list of them is refused.
#[derive(Debug, thiserror::Error)]
pub enum AddressListError {
    /// No address of a station.
    #[error("{0:?} is no station's Ethernet address: write it as 52:54:00:12:34:56, or \"learn\"")]
    NoStation(String),
    /// No address at all.
    #[error("addresses: an empty list lets nothing through; leave it out")]
    Empty,
}

impl TryFrom<AddressList> for Addresses {
    type Error = AddressListError;

    fn try_from(listed: AddressList) -> Result<Self, AddressListError> {
        let listed = match listed {
            AddressList::One(word) if word == "learn" => return Ok(Self::Learn),
            AddressList::One(word) => vec![word],
            AddressList::Several(words) => words,
        };
        if listed.is_empty() {
            return Err(AddressListError::Empty);
        }
        let addresses: Result<_, _> = listed.iter().map(|text| address(text)).collect();
        addresses.map(Self::Only)
    }
}

/// Reads the address of a station.
///
/// # Errors
/// When it is no address, or a group's.
pub fn address(text: &str) -> Result<Mac, AddressListError> {
    let read = || {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2)?;
            *byte = u8::from_str_radix(part, 16).ok()?;
        }
        (parts.next().is_none() && is_station(bytes)).then_some(bytes)
    };
    read().ok_or_else(|| AddressListError::NoStation(text.to_owned()))
}

fn is_station(address: Mac) -> bool {
    address[0] & 1 == 0
}

/// A rate with a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Units a second.
    pub rate: NonZeroU64,
    /// Units at once after a pause.
    pub burst: NonZeroU64,
}

const PICOSECONDS: u128 = 1_000_000_000_000;

/// A rate limiter (the virtual scheduling algorithm, ITU-T I.371, A.1). A unit larger than the burst passes too, and
/// delays those after it.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    rate: Rate,
    /// The time at which all units so far would have passed at the rate, in ps.
    level: u128,
}

impl Bucket {
    fn new(rate: Rate) -> Self {
        Self { rate, level: 0 }
    }

    fn time_of(&self, units: u64) -> u128 {
        u128::from(units) * PICOSECONDS / u128::from(self.rate.rate.get())
    }

    /// When the next unit may pass, if that is not now.
    fn waits_until(&self, now: Nanos) -> Option<Nanos> {
        // One unit of the burst is the one that passes.
        let ahead = self.time_of(self.rate.burst.get() - 1);
        let at = self.level.saturating_sub(ahead).div_ceil(1000);
        let at = Nanos(u64::try_from(at).unwrap_or(u64::MAX));
        (at > now).then_some(at)
    }

    fn take(&mut self, units: u64, now: Nanos) {
        self.level = self.level.max(u128::from(now.0) * 1000) + self.time_of(units);
    }

    fn give_back(&mut self, units: u64) {
        self.level = self.level.saturating_sub(self.time_of(units));
    }
}

/// A limit that a port exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// See [`Limits::addresses`].
    Addresses,
    /// See [`Limits::packets`] and [`Limits::bytes`].
    Rate,
    /// See [`Limits::floods`].
    Floods,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Addresses => "frames from an address that is not its own are dropped",
            Self::Rate => "frames wait: it sends more than its rate",
            Self::Floods => "frames to all ports are dropped: it sends more than its rate of them",
        })
    }
}

/// The verdict on a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It passes, and is counted.
    Pass,
    /// It waits until then.
    Wait(Nanos),
    /// It comes from an address that is not the port's.
    Foreign,
}

/// A port's limits and their state.
#[derive(Debug)]
pub struct Guard {
    /// `None`: not limited. Empty: not learnt yet.
    own: Option<Vec<Mac>>,
    packets: Option<Bucket>,
    bytes: Option<Bucket>,
    floods: Option<Bucket>,
    /// Whether each limit was logged for the present front end.
    logged: [bool; 3],
}

impl Guard {
    /// A guard, if frames are limited at all.
    pub fn from_limits(limits: &Limits) -> Option<Self> {
        let own = limits.addresses.as_ref().map(|addresses| match addresses {
            Addresses::Learn => Vec::new(),
            Addresses::Only(addresses) => addresses.clone(),
        });
        limits.limit_frames().then(|| Self {
            own,
            packets: limits.packets.map(Bucket::new),
            bytes: limits.bytes.map(Bucket::new),
            floods: limits.floods.map(Bucket::new),
            logged: [false; 3],
        })
    }

    /// The addresses that only this port may use.
    pub fn own(&self) -> &[Mac] {
        self.own.as_deref().unwrap_or_default()
    }

    /// Learns the first address. Returns whether it did.
    pub fn learn(&mut self, source: Mac) -> bool {
        match &mut self.own {
            Some(own) if own.is_empty() && is_station(source) => {
                own.push(source);
                true
            }
            _ => false,
        }
    }

    /// Whether an address has still to be learnt.
    pub fn has_to_learn(&self) -> bool {
        self.own.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether frames may come from an address.
    pub fn allows(&self, source: Mac) -> bool {
        self.own.as_ref().is_none_or(|own| own.contains(&source))
    }

    /// The verdict on a frame of `bytes` bytes, which is counted if it passes.
    pub fn check(&mut self, source: Mac, bytes: u64, now: Nanos) -> Verdict {
        if !self.allows(source) {
            return Verdict::Foreign;
        }
        let buckets = [&self.packets, &self.bytes];
        let waits = buckets
            .into_iter()
            .flatten()
            .filter_map(|b| b.waits_until(now));
        if let Some(until) = waits.max() {
            return Verdict::Wait(until);
        }
        for (bucket, units) in [(&mut self.packets, 1), (&mut self.bytes, bytes)] {
            if let Some(bucket) = bucket {
                bucket.take(units, now);
            }
        }
        Verdict::Pass
    }

    /// Takes back the count of a frame that passed and comes again.
    pub fn give_back(&mut self, bytes: u64) {
        for (bucket, units) in [(&mut self.packets, 1), (&mut self.bytes, bytes)] {
            if let Some(bucket) = bucket {
                bucket.give_back(units);
            }
        }
    }

    /// Whether one more frame may go to all ports now.
    pub fn may_flood(&mut self, now: Nanos) -> bool {
        let Some(floods) = &mut self.floods else {
            return true;
        };
        let may = floods.waits_until(now).is_none();
        if may {
            floods.take(1, now);
        }
        may
    }

    /// Whether a limit that the port exceeds is to be logged, which it is once for each front end.
    pub fn mark_logged(&mut self, limit: Limit) -> bool {
        let logged = self.logged.get_mut(limit as usize);
        logged.is_some_and(|logged| !std::mem::replace(logged, true))
    }

    /// Notes that the front end has gone. Limits are logged again for the next.
    pub fn front_end_left(&mut self) {
        self.logged = [false; 3];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Mac = [0x52, 0x54, 0, 0, 0, 1];
    const B: Mac = [0x52, 0x54, 0, 0, 0, 2];

    fn limits(text: &str) -> Result<Limits, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    fn guard(text: &str) -> Guard {
        Guard::from_limits(&limits(text).unwrap()).unwrap()
    }

    #[test]
    fn limits_are_read_and_nonsense_is_refused_with_what_to_write() {
        let both = limits("addresses = ['52:54:00:00:00:01', '52:54:00:00:00:02']").unwrap();
        assert_eq!(both.addresses, Some(Addresses::Only(vec![A, B])));
        let one = limits("addresses = '52:54:00:00:00:01'").unwrap();
        assert_eq!(one.addresses, Some(Addresses::Only(vec![A])));
        let learn = limits("addresses = 'learn'").unwrap();
        assert_eq!(learn.addresses, Some(Addresses::Learn));
        for nothing in ["", "memory = 4096"] {
            assert!(Guard::from_limits(&limits(nothing).unwrap()).is_none());
        }
        for wrong in [
            "addresses = 'anything'",
            "addresses = []",
            "addresses = '01:00:5e:00:00:01'",
            "addresses = '52:54:00:00:00'",
            "addresses = '52:54:00:00:00:1'",
            "packets = { rate = 0, burst = 1 }",
            "packets = { rate = 1, burst = 0 }",
            "packets = { rate = 1 }",
            "memory = 0",
            "speed = 1",
        ] {
            assert!(limits(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_address_is_learnt_once_and_a_groups_never() {
        let mut guard = guard("addresses = 'learn'");
        assert!(!guard.learn([0xff; 6]) && guard.has_to_learn());
        assert!(guard.learn(A) && !guard.learn(B));
        guard.front_end_left();
        assert_eq!(guard.check(B, 60, Nanos(1)), Verdict::Foreign);
        assert_eq!(guard.check(A, 60, Nanos(1)), Verdict::Pass);
    }

    #[test]
    fn a_frame_larger_than_a_burst_passes_and_is_waited_for_afterwards() {
        let mut guard = guard("bytes = { rate = 1000000, burst = 1500 }");
        let now = Nanos::from_secs(9);
        assert_eq!(guard.check(A, 65_000, now), Verdict::Pass);
        let Verdict::Wait(until) = guard.check(A, 60, now) else {
            panic!("it does not wait");
        };
        assert_eq!(until.since(now).0 / 1_000_000, 63);
        assert_eq!(guard.check(A, 60, until), Verdict::Pass);
    }

    #[test]
    fn what_comes_again_is_counted_once() {
        let mut guard = guard("packets = { rate = 1, burst = 1 }");
        let now = Nanos::from_secs(9);
        for _ in 0..100 {
            assert_eq!(guard.check(A, 60, now), Verdict::Pass);
            guard.give_back(60);
        }
    }

    proptest! {
        /// A sender never passes more than the burst and the rate allow in the time, and hardly less if it sends
        /// whenever it may.
        #[test]
        fn no_sender_exceeds_its_rate(
            rate in 1u64..1_000_000,
            burst in 1u64..1000,
            pauses in prop::collection::vec(0u64..3_000_000, 1..200),
        ) {
            let mut bucket = Bucket::new(Rate {
                rate: NonZeroU64::new(rate).unwrap(),
                burst: NonZeroU64::new(burst).unwrap(),
            });
            let start = Nanos::from_secs(1000);
            let (mut now, mut passed) = (start, 0u64);
            for pause in pauses {
                now = Nanos(now.0 + pause);
                match bucket.waits_until(now) {
                    None => {
                        bucket.take(1, now);
                        passed += 1;
                    }
                    Some(until) => {
                        prop_assert!(until > now);
                        prop_assert!(bucket.waits_until(until).is_none());
                    }
                }
                let allowed = u128::from(now.since(start).0) * u128::from(rate) / 1_000_000_000;
                prop_assert!(u128::from(passed) <= allowed + u128::from(burst));
            }
        }
    }
}
