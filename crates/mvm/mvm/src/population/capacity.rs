// SPDX-License-Identifier: Apache-2.0
//! How many live guests a process can hold.

/// Descriptors and mappings of one live guest: its vCPU and the run page.
const PER_GUEST: u64 = 1;
/// Descriptors and mappings of the process itself.
const RESERVE: u64 = 512;

/// The most clients of a worker. The search for the longest silent client reads all of them.
const MOST_CLIENTS: u64 = 4096;

/// The number of live guests that a process can hold, and the limit that binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Guests.
    pub guests: u32,
    /// The limit that binds.
    pub limit: Limit,
}

/// A limit on live guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `ulimit -n`, the hard one.
    Descriptors(u64),
    /// `vm.max_map_count`.
    Mappings(u64),
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Descriptors(n) => write!(f, "{n} file descriptors a process"),
            Self::Mappings(n) => write!(f, "{n} mappings a process (vm.max_map_count)"),
        }
    }
}

/// Raises this process's soft limit on descriptors to the hard one; returns it.
pub fn raise_descriptors() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(1 << 20);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(hard),
            maximum: limit.maximum,
        },
    );
    hard
}

/// The most clients of each of `workers` beside `guests` live guests: half of the remaining descriptors, so that
/// clients never take those that guests need.
pub fn clients(guests: u32, workers: usize) -> usize {
    use rustix::process::{Resource, getrlimit};
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    clients_of(descriptors, guests, workers)
}

fn clients_of(descriptors: u64, guests: u32, workers: usize) -> usize {
    let left = descriptors.saturating_sub(u64::from(guests) * PER_GUEST);
    let each = left / 2 / (workers as u64).max(1);
    usize::try_from(each.clamp(1, MOST_CLIENTS)).unwrap_or(1)
}

impl Capacity {
    /// The capacity on this host. Raises the soft descriptor limit to the hard one.
    #[must_use]
    pub fn of_this_process() -> Self {
        let hard = raise_descriptors();
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let mappings = mappings
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(65_530);
        Self::new(hard, mappings)
    }

    fn new(descriptors: u64, mappings: u64) -> Self {
        let fit = |limit: u64| limit.saturating_sub(RESERVE) / PER_GUEST;
        let (guests, limit) = if fit(descriptors) <= fit(mappings) {
            (fit(descriptors), Limit::Descriptors(descriptors))
        } else {
            (fit(mappings), Limit::Mappings(mappings))
        };
        Self {
            guests: u32::try_from(guests).unwrap_or(u32::MAX),
            limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_half_of_the_descriptors_to_everything_else() {
        assert_eq!(clients_of(1024, 0, 4), 128);
        assert_eq!(clients_of(1024, 512, 1), 256);
        assert_eq!(clients_of(100, 200, 2), 1);
        assert_eq!(clients_of(1 << 20, 0, 1), 4096);
    }

    #[test]
    fn the_limit_that_binds_is_named() {
        assert_eq!(
            Capacity::new(20_000, 65_530),
            Capacity {
                guests: 19_488,
                limit: Limit::Descriptors(20_000)
            }
        );
        assert_eq!(Capacity::new(1 << 20, 65_530).guests, 65_018);
        assert_eq!(
            Capacity::new(1 << 20, 65_530).limit,
            Limit::Mappings(65_530)
        );
        assert_eq!(Capacity::new(100, 65_530).guests, 0);
    }
}
