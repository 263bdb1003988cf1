// SPDX-License-Identifier: Apache-2.0
//! The virtio standard's notification-coalescing commands (VIRTIO 1.3, 5.1.6.5.10), for front ends
//! that forward the control queue. QEMU and Cloud Hypervisor do not.

/// VIRTIO_NET_CTRL_NOTF_COAL.
pub const CLASS: u8 = 6;

/// The parameters of a direction or a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Packets after which to notify; 0 or 1: after each.
    pub max_packets: u32,
    /// The longest delay of a notification, in µs.
    pub max_usecs: u32,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coalesce {
    /// VIRTIO_NET_CTRL_NOTF_COAL_TX_SET: all transmit queues.
    SetTx(Parameters),
    /// VIRTIO_NET_CTRL_NOTF_COAL_RX_SET: all receive queues.
    SetRx(Parameters),
    /// VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET: one queue.
    SetQueue(u16, Parameters),
    /// VIRTIO_NET_CTRL_NOTF_COAL_VQ_GET: one queue. The device writes its parameters after the
    /// acknowledgement, as the command's result.
    GetQueue(u16),
}

impl Parameters {
    /// The longest delay in µs. One packet for each notification means no delay.
    pub fn hold_us(self) -> u32 {
        if self.max_packets > 1 {
            self.max_usecs
        } else {
            0
        }
    }
}

impl Coalesce {
    /// Reads a command of [`CLASS`] and its data; `None` where it is not well-formed.
    pub fn parse(command: u8, data: &[u8]) -> Option<Self> {
        match command {
            0 => parameters(data).map(Self::SetTx),
            1 => parameters(data).map(Self::SetRx),
            2 | 3 => {
                // struct virtio_net_ctrl_coal_vq: le16 queue, le16 reserved, then the parameters, which a driver may
                // leave out of VQ_GET.
                let (queue, rest) = data.split_first_chunk()?;
                let queue = u16::from_le_bytes(*queue);
                if command == 3 {
                    return Some(Self::GetQueue(queue));
                }
                Some(Self::SetQueue(queue, parameters(rest.get(2..)?)?))
            }
            _ => None,
        }
    }

    /// The parameters for a queue, if the command is about it. Receive queues have even numbers.
    pub fn of_queue(&self, queue: usize) -> Option<Parameters> {
        match *self {
            Self::SetRx(parameters) if queue.is_multiple_of(2) => Some(parameters),
            Self::SetTx(parameters) if !queue.is_multiple_of(2) => Some(parameters),
            Self::SetQueue(one, parameters) if usize::from(one) == queue => Some(parameters),
            _ => None,
        }
    }
}

/// struct virtio_net_ctrl_coal: le32 max_packets, le32 max_usecs.
fn parameters(data: &[u8]) -> Option<Parameters> {
    let (max_packets, rest) = data.split_first_chunk()?;
    let max_usecs = rest.first_chunk()?;
    Some(Parameters {
        max_packets: u32::from_le_bytes(*max_packets),
        max_usecs: u32::from_le_bytes(*max_usecs),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands_are_read_as_the_standard_lays_them_out() {
        let set = Parameters {
            max_packets: 32,
            max_usecs: 1_000,
        };
        assert_eq!(
            Coalesce::parse(0, &[32, 0, 0, 0, 0xe8, 3, 0, 0]),
            Some(Coalesce::SetTx(set))
        );
        assert_eq!(
            Coalesce::parse(1, &[32, 0, 0, 0, 0xe8, 3, 0, 0]),
            Some(Coalesce::SetRx(set))
        );
        let queue = [2, 1, 0, 0, 32, 0, 0, 0, 0xe8, 3, 0, 0];
        assert_eq!(
            Coalesce::parse(2, &queue),
            Some(Coalesce::SetQueue(258, set))
        );
        let get = [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Coalesce::parse(3, &get), Some(Coalesce::GetQueue(4)));
    }

    #[test]
    fn one_packet_a_notification_means_no_hold() {
        let each = Parameters {
            max_packets: 1,
            max_usecs: 500,
        };
        assert_eq!(each.hold_us(), 0);
        let many = Parameters {
            max_packets: 64,
            ..each
        };
        assert_eq!(many.hold_us(), 500);
    }

    #[test]
    fn a_command_is_about_its_direction_or_its_queue_alone() {
        let set = Parameters {
            max_packets: 8,
            max_usecs: 9,
        };
        let about = |command: Coalesce| -> Vec<usize> {
            (0..6)
                .filter(|queue| command.of_queue(*queue).is_some())
                .collect()
        };
        assert_eq!(about(Coalesce::SetRx(set)), [0, 2, 4]);
        assert_eq!(about(Coalesce::SetTx(set)), [1, 3, 5]);
        assert_eq!(about(Coalesce::SetQueue(3, set)), [3]);
        assert_eq!(about(Coalesce::GetQueue(3)), [0; 0]);
    }

    #[test]
    fn what_is_not_a_command_is_refused() {
        assert_eq!(Coalesce::parse(9, &[]), None);
        assert_eq!(Coalesce::parse(1, &[0]), None);
        assert_eq!(Coalesce::parse(2, &[2, 1, 0, 0, 32]), None);
        assert_eq!(Coalesce::parse(3, &[]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(command in any::<u8>(), bytes in proptest::collection::vec(any::<u8>(), 0..32)) {
            if let Some(command) = Coalesce::parse(command, &bytes) {
                let _ = command.of_queue(3).map(Parameters::hold_us);
            }
        }
    }
}
