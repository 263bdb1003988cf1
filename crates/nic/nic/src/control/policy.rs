// SPDX-License-Identifier: Apache-2.0
//! The operator's policy for holds.

use crate::vhost_net::Half;
use serde::{Deserialize, Serialize};

/// The operator's policy for one port, in µs of T_buf: the longest hold of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// The longest hold that a guest may ask for.
    pub cap_us: u32,
    /// The same for signals of received frames, in place of `cap_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_rx_us: Option<u32>,
    /// The same for drains of frames to send, in place of `cap_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_tx_us: Option<u32>,
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
            cap_rx_us: None,
            cap_tx_us: None,
            default_us: 200,
            override_us: None,
            lease_cap_s: 3_600,
        }
    }
}

impl Policy {
    /// The longest hold of a direction that a guest may ask for.
    pub fn cap(&self, half: Half) -> u32 {
        let own = match half {
            Half::Rx => self.cap_rx_us,
            Half::Tx => self.cap_tx_us,
        };
        own.unwrap_or(self.cap_us)
    }

    /// The T_buf of a direction in force where the guest asked for `asked_us`, or for nothing, in µs.
    pub fn in_force(&self, asked_us: Option<u32>, half: Half) -> u32 {
        let asked_us = asked_us.unwrap_or(self.default_us);
        self.override_us.unwrap_or(asked_us.min(self.cap(half)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_lease_gets_past_the_cap(cap_us: u32, default_us: u32, hold_us: u32) {
            let policy = Policy { cap_us, default_us, ..Policy::default() };
            for half in [Half::Rx, Half::Tx] {
                prop_assert!(policy.in_force(Some(hold_us), half) <= cap_us);
                prop_assert!(policy.in_force(None, half) <= cap_us);
            }
        }

        #[test]
        fn the_cap_of_a_direction_takes_the_place_of_the_common_one(cap_us: u32, own: u32, hold_us: u32) {
            let policy = Policy { cap_us, cap_tx_us: Some(own), ..Policy::default() };
            prop_assert_eq!(policy.in_force(Some(hold_us), Half::Rx), hold_us.min(cap_us));
            prop_assert_eq!(policy.in_force(Some(hold_us), Half::Tx), hold_us.min(own));
        }

        #[test]
        fn an_override_holds_whatever_the_guest_asks(fixed: u32, hold_us: u32) {
            let policy = Policy { override_us: Some(fixed), ..Policy::default() };
            prop_assert_eq!(policy.in_force(Some(hold_us), Half::Rx), fixed);
        }
    }
}
