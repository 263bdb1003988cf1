// SPDX-License-Identifier: Apache-2.0
//! Checks every layout of up to three regions over a small grid of addresses and lengths, at both ends of the address
//! space: every range nearby is translated by the one region that holds it, or not at all.
//!
//! A grid suffices: translation compares addresses and lengths without regard to their magnitude, so that only the
//! order of ends matters, and whether a sum exceeds 64 bits. Three regions are one more than the comparison of any pair
//! needs; each region is searched for a range on its own.

use super::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const LENGTHS: [u64; 3] = [1, 2, 5];

/// The starts of regions.
const STARTS: [u64; 6] = [0, 1, 4, u64::MAX - 5, u64::MAX - 2, u64::MAX];

/// The starts of ranges: those of the regions, and the addresses around them.
fn probes() -> impl Iterator<Item = u64> {
    (0..10).chain(u64::MAX - 10..=u64::MAX)
}

/// The front end's address of a guest address. It counts from the other end, so that the two differ in order.
fn user(guest: u64, size: u64) -> u64 {
    u64::MAX.wrapping_sub(guest).wrapping_sub(size)
}

/// Whether the `len` addresses from `start` on are among the `of` addresses from `from` on, without overflow.
fn inside(start: u64, len: u64, from: u64, of: u64) -> bool {
    let [start, len, from, of] = [start, len, from, of].map(u128::from);
    start >= from && start + len <= from + of
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    let end = |(start, len): (u64, u64)| u128::from(start) + u128::from(len);
    u128::from(a.0) < end(b) && u128::from(b.0) < end(a)
}

/// Whether [`GuestMemory::add`] should accept a region.
fn may_be_added(region: RegionDescription, others: &[RegionDescription]) -> bool {
    let fits = |start: u64| u128::from(start) + u128::from(region.size) <= u128::from(u64::MAX);
    let clashes = |other: &RegionDescription| {
        *other != region
            && (overlap((region.guest, region.size), (other.guest, other.size))
                || overlap((region.user, region.size), (other.user, other.size)))
    };
    fits(region.guest) && fits(region.user) && !others.iter().any(clashes)
}

fn check(memory: &GuestMemory, regions: &[RegionDescription]) {
    let mapped = memory.mapped();
    let host = |region: &RegionDescription| {
        let found = mapped.iter().find(|found| found.guest == region.guest);
        found.unwrap().host
    };
    for address in probes() {
        for len in [1, 2, 3, 6, u32::MAX] {
            let holder = regions
                .iter()
                .find(|region| inside(address, 1, region.guest, region.size));
            let found = memory.at(address, len);
            let found =
                found.map(|found| (found.host.addr() as u64, u64::from(found.len), found.guest));
            let expected = holder.map(|region| {
                let ahead = address - region.guest;
                let len = u64::from(len).min(region.size - ahead);
                (host(region) + ahead, len, address)
            });
            assert_eq!(found, expected, "{address:#x}, {len} in {regions:x?}");
        }
        for len in [1, 2, 3, 6, u64::MAX] {
            let holder = regions
                .iter()
                .find(|region| inside(address, len, region.user, region.size));
            let found = memory.at_user(address, len, 1);
            let found = found.map(|(host, guest)| (host.addr() as u64, guest));
            let expected = holder.map(|region| {
                let ahead = address - region.user;
                (host(region) + ahead, region.guest + ahead)
            });
            assert_eq!(found, expected, "user {address:#x}, {len} in {regions:x?}");
        }
    }
}

/// Adds every region of the grid to `memory`, and up to `more` others after it. Returns the number of layouts.
fn explore(regions: &mut Vec<RegionDescription>, file: &OwnedFd, more: usize) -> usize {
    let mut layouts = 0;
    for (guest, size) in STARTS
        .iter()
        .flat_map(|start| LENGTHS.map(|size| (*start, size)))
    {
        let region = RegionDescription {
            guest,
            size,
            user: user(guest, size),
            offset: 3,
        };
        let mut memory = GuestMemory::default();
        for region in regions.iter() {
            memory.add(*region, file.try_clone().unwrap()).unwrap();
        }
        let added = memory.add(region, file.try_clone().unwrap());
        let may = may_be_added(region, regions);
        assert_eq!(added.is_ok(), may, "{region:x?} to {regions:x?}");
        if !may || regions.contains(&region) {
            continue;
        }
        layouts += 1;
        regions.push(region);
        check(&memory, regions);
        if more > 0 {
            layouts += explore(regions, file, more - 1);
        }
        regions.pop();
    }
    layouts
}

#[test]
fn no_range_is_translated_that_is_not_all_in_one_region() {
    let file = memfd_create("grid", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 4096).unwrap();
    let layouts = explore(&mut Vec::new(), &file, 2);
    assert!(layouts > 500, "{layouts}");
}
