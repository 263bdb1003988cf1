//! The operator's policy for holds.

use serde::{Deserialize, Serialize};

/// The operator's policy for one port, in µs of T_buf: the longest hold of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// The longest hold that a guest may ask for.
    pub cap_us: u32,
    /// The hold while the guest has no lease, within the cap.
    pub default_us: u32,
    /// The hold in force whatever the guest asks for, if set. The cap does not apply.
    pub override_us: Option<u32>,
    /// The longest lease, in seconds.
    pub lease_cap_s: u32,
}

impl Default for Policy {
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

impl Policy {
    /// The T_buf in force where the guest asked for `asked_us`, or for nothing, in µs.
    pub fn in_force(&self, asked_us: Option<u32>) -> u32 {
        let asked_us = asked_us.unwrap_or(self.default_us);
        self.override_us.unwrap_or(asked_us.min(self.cap_us))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_lease_gets_past_the_cap(cap_us: u32, default_us: u32, hold_us: u32) {
            let policy = Policy { cap_us, default_us, override_us: None, lease_cap_s: 1 };
            prop_assert!(policy.in_force(Some(hold_us)) <= cap_us);
            prop_assert!(policy.in_force(None) <= cap_us);
        }

        #[test]
        fn an_override_holds_whatever_the_guest_asks(fixed: u32, hold_us: u32) {
            let policy = Policy { override_us: Some(fixed), ..Policy::default() };
            prop_assert_eq!(policy.in_force(Some(hold_us)), fixed);
        }
    }
}
