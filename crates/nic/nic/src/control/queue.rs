// SPDX-License-Identifier: Apache-2.0
//! Commands of the virtio-net control queue (virtio 1.3, 5.1.6.5), for front ends that forward it.
//! QEMU and Cloud Hypervisor do not: they answer it themselves.

use super::coalesce::{self, Coalesce};
use crate::features::Features;
use crate::frame::Mac;

/// The longest command that is read, in bytes: a table of some 300 addresses.
pub const LONGEST_COMMAND: usize = 2048;

/// VIRTIO_NET_OK and VIRTIO_NET_ERR, the device's answer.
pub const OK: u8 = 0;
/// See [`OK`].
pub const ERR: u8 = 1;

const CLASS_RX: u8 = 0;
const CLASS_MAC: u8 = 1;
const CLASS_VLAN: u8 = 2;
const CLASS_MQ: u8 = 4;

/// A valid command of a negotiated feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Receive modes, filter tables, VLANs. A port passes on all frames, more than any filter admits,
    /// so that there is nothing to do. That is allowed ("best effort", 5.1.6.5.1 and 5.1.6.5.2).
    Filter,
    /// VIRTIO_NET_CTRL_MAC_ADDR_SET: the own address.
    Address(Mac),
    /// VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET: the number of pairs in use.
    Pairs(u16),
    /// Notification coalescing.
    Coalesce(Coalesce),
}

/// Why a command is answered with [`ERR`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Its feature was not negotiated, or it is unknown.
    #[error("control command {command} of class {class} was not negotiated")]
    Unknown {
        /// The command's class.
        class: u8,
        /// Its number.
        command: u8,
    },
    /// Its data is invalid.
    #[error(
        "control command {command} of class {class} has {bytes} bytes of data, which it cannot have"
    )]
    Data {
        /// The command's class.
        class: u8,
        /// Its number.
        command: u8,
        /// Bytes of data.
        bytes: usize,
    },
    /// Shorter than class and command.
    #[error("a control command of {0} bytes")]
    Short(usize),
}

impl Command {
    /// Reads a command of a driver: class, command, data.
    ///
    /// # Errors
    /// When it is unknown, not negotiated, or its data is wrong.
    pub fn parse(request: &[u8], features: Features) -> Result<Self, CommandError> {
        let [class, command, data @ ..] = request else {
            return Err(CommandError::Short(request.len()));
        };
        let (class, command) = (*class, *command);
        let needed = match (class, command) {
            (CLASS_RX, 0..=1) | (CLASS_MAC, 0) => Features::CTRL_RX,
            (CLASS_RX, 2..=5) => Features::CTRL_RX_EXTRA,
            (CLASS_MAC, 1) => Features::CTRL_MAC_ADDR,
            (CLASS_VLAN, 0..=1) => Features::CTRL_VLAN,
            (CLASS_MQ, 0) => Features::MQ,
            (coalesce::CLASS, 0..=1) => Features::NOTF_COAL,
            (coalesce::CLASS, 2..=3) => Features::VQ_NOTF_COAL,
            _ => return Err(CommandError::Unknown { class, command }),
        };
        if !features.has(needed) {
            return Err(CommandError::Unknown { class, command });
        }
        let filter = |fits| {
            if fits { Some(Self::Filter) } else { None }
        };
        let parsed = match class {
            CLASS_RX => filter(data.len() == 1),
            CLASS_MAC if command == 0 => filter(is_address_tables(data)),
            CLASS_MAC => Mac::try_from(data).ok().map(Self::Address),
            CLASS_VLAN => filter(data.len() == 2),
            CLASS_MQ => <[u8; 2]>::try_from(data)
                .ok()
                .map(|pairs| Self::Pairs(u16::from_le_bytes(pairs))),
            _ => Coalesce::parse(command, data).map(Self::Coalesce),
        };
        let bytes = data.len();
        parsed.ok_or(CommandError::Data {
            class,
            command,
            bytes,
        })
    }
}

/// Whether these are the two tables of VIRTIO_NET_CTRL_MAC_TABLE_SET: each a count and as many
/// addresses.
fn is_address_tables(mut data: &[u8]) -> bool {
    for _ in 0..2 {
        let Some((count, rest)) = data.split_first_chunk() else {
            return false;
        };
        let bytes = u64::from(u32::from_le_bytes(*count)) * 6;
        let Some(rest) = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| rest.get(bytes..))
        else {
            return false;
        };
        data = rest;
    }
    data.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: Features = Features::OFFERED;

    #[test]
    fn commands_are_read_as_the_standard_lays_them_out() {
        let tables = [&[1, 0][..], &[1, 0, 0, 0], &[2; 6], &[2, 0, 0, 0], &[3; 12]].concat();
        for filter in [
            &[0, 0, 1][..],
            &[0, 5, 0],
            &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &tables,
            &[2, 0, 5, 0],
        ] {
            assert_eq!(
                Command::parse(filter, ALL),
                Ok(Command::Filter),
                "{filter:?}"
            );
        }
        assert_eq!(
            Command::parse(&[1, 1, 2, 0, 0, 0, 0, 1], ALL),
            Ok(Command::Address([2, 0, 0, 0, 0, 1]))
        );
        assert_eq!(Command::parse(&[4, 0, 2, 1], ALL), Ok(Command::Pairs(258)));
        assert!(matches!(
            Command::parse(&[6, 1, 32, 0, 0, 0, 0xe8, 3, 0, 0], ALL),
            Ok(Command::Coalesce(Coalesce::SetRx(_)))
        ));
    }

    #[test]
    fn what_was_not_negotiated_or_cannot_be_is_refused() {
        for (request, features) in [
            (&[][..], ALL),
            (&[4], ALL),
            (&[0, 6, 0], ALL),
            (&[0, 0], ALL),
            (&[0, 0, 1, 1], ALL),
            (&[1, 0, 255, 255, 255, 255, 0, 0, 0, 0], ALL),
            (&[1, 0, 0, 0, 0, 0], ALL),
            (&[3, 0], ALL),
            (&[4, 0, 1], ALL),
            (&[4, 1, 0, 0], ALL),
            (&[5, 0, 0, 0, 0, 0, 0, 0, 0, 0], ALL),
            (&[6, 0, 0], ALL),
            (&[9, 9, 9], ALL),
            (&[4, 0, 1, 0], ALL.without(Features::MQ)),
            (&[0, 0, 1], ALL.without(Features::CTRL_RX)),
            (
                &[6, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                ALL.without(Features::NOTF_COAL),
            ),
        ] {
            assert!(Command::parse(request, features).is_err(), "{request:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(0..9_u8, 0..40), features: u64) {
            let _ = Command::parse(&bytes, Features(features));
        }
    }
}
