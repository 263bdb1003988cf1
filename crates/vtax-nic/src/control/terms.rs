//! What the operator allows, what the guest has leased, and what follows from both.

use serde::{Deserialize, Serialize};

use crate::hold::Nanos;

/// The operator's terms for one port, in µs of T_buf: the longest hold of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Terms {
    /// What no guest exceeds.
    pub cap_us: u32,
    /// What holds while the guest has no lease; the cap bounds it too.
    pub default_us: u32,
    /// If set: what holds, whatever cap and guest say.
    pub override_us: Option<u32>,
    /// The longest lease, in seconds.
    pub lease_cap_s: u32,
}

impl Default for Terms {
    /// Guests may ask for 1 ms; those that do not ask get 200 µs.
    fn default() -> Self {
        Self {
            cap_us: 1_000,
            default_us: 200,
            override_us: None,
            lease_cap_s: 3_600,
        }
    }
}

/// What a guest has been granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its T_buf in µs, before the cap; 0: it wants no hold.
    pub hold_us: u32,
    /// When it ends.
    pub ends: Nanos,
}

impl Terms {
    /// The T_buf in force, in µs.
    pub fn in_force(&self, lease: Option<Lease>) -> u32 {
        let asked = lease.map_or(self.default_us, |lease| lease.hold_us);
        self.override_us.unwrap_or(asked.min(self.cap_us))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_lease_gets_past_the_cap(cap_us: u32, default_us: u32, hold_us: u32) {
            let terms = Terms { cap_us, default_us, override_us: None, lease_cap_s: 1 };
            let lease = Lease { hold_us, ends: Nanos::ZERO };
            prop_assert!(terms.in_force(Some(lease)) <= cap_us);
            prop_assert!(terms.in_force(None) <= cap_us);
        }

        #[test]
        fn an_override_holds_whatever_the_guest_asks(fixed: u32, hold_us: u32) {
            let terms = Terms { override_us: Some(fixed), ..Terms::default() };
            let lease = Lease { hold_us, ends: Nanos::ZERO };
            prop_assert_eq!(terms.in_force(Some(lease)), fixed);
        }
    }
}
