// SPDX-License-Identifier: Apache-2.0
//! Feature bits of virtio, virtio-net and the vhost-user protocol.

/// The operations of sets of bits.
macro_rules! bits {
    ($name:ident) => {
        impl $name {
            /// The features of either.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The features that `other` lacks.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// The features that both have.
            #[must_use]
            pub const fn within(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }

            /// Whether it has all features of `other`.
            #[inline]
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }
    };
}

/// Negotiated or offered features of a device (virtio 1.2, 5.1.3 and 6; vhost-user "Feature bits").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(pub u64);

impl Features {
    /// Partial checksums in transmitted frames.
    pub const CSUM: Self = Self(1);
    /// Partial checksums in received frames.
    pub const GUEST_CSUM: Self = Self(1 << 1);
    /// The device reports its MTU.
    pub const MTU: Self = Self(1 << 3);
    /// The device has an address.
    pub const MAC: Self = Self(1 << 5);
    /// Unsegmented TCP over IPv4 in received frames.
    pub const GUEST_TSO4: Self = Self(1 << 7);
    /// Unsegmented TCP over IPv6 in received frames.
    pub const GUEST_TSO6: Self = Self(1 << 8);
    /// Unsegmented TCP with ECN in received frames.
    pub const GUEST_ECN: Self = Self(1 << 9);
    /// Unfragmented UDP in received frames.
    pub const GUEST_UFO: Self = Self(1 << 10);
    /// Unsegmented TCP over IPv4 in transmitted frames.
    pub const HOST_TSO4: Self = Self(1 << 11);
    /// Unsegmented TCP over IPv6 in transmitted frames.
    pub const HOST_TSO6: Self = Self(1 << 12);
    /// Unsegmented TCP with ECN in transmitted frames.
    pub const HOST_ECN: Self = Self(1 << 13);
    /// Unfragmented UDP in transmitted frames.
    pub const HOST_UFO: Self = Self(1 << 14);
    /// A received frame may span several buffers.
    pub const MRG_RXBUF: Self = Self(1 << 15);
    /// The device has a link status.
    pub const STATUS: Self = Self(1 << 16);
    /// There is a control queue.
    pub const CTRL_VQ: Self = Self(1 << 17);
    /// Receive modes and address tables on the control queue.
    pub const CTRL_RX: Self = Self(1 << 18);
    /// VLAN filters on the control queue.
    pub const CTRL_VLAN: Self = Self(1 << 19);
    /// More receive modes on the control queue.
    pub const CTRL_RX_EXTRA: Self = Self(1 << 20);
    /// Several queue pairs.
    pub const MQ: Self = Self(1 << 22);
    /// The guest sets its address on the control queue.
    pub const CTRL_MAC_ADDR: Self = Self(1 << 23);
    /// Dirty pages are logged (vhost).
    pub const LOG_ALL: Self = Self(1 << 26);
    /// A header may be in one buffer with its frame.
    pub const ANY_LAYOUT: Self = Self(1 << 27);
    /// Indirect descriptor tables.
    pub const INDIRECT: Self = Self(1 << 28);
    /// Event indexes.
    pub const EVENT_IDX: Self = Self(1 << 29);
    /// Protocol features (vhost-user).
    pub const PROTOCOL: Self = Self(1 << 30);
    /// A device of virtio 1.0 or newer.
    pub const VERSION_1: Self = Self(1 << 32);
    /// Packed rings.
    pub const RING_PACKED: Self = Self(1 << 34);
    /// Buffers are returned in order.
    pub const IN_ORDER: Self = Self(1 << 35);

    /// Notification coalescing, queue by queue.
    pub const VQ_NOTF_COAL: Self = Self(1 << 52);
    /// Notification coalescing.
    pub const NOTF_COAL: Self = Self(1 << 53);

    /// All features that a port offers.
    pub const OFFERED: Self = Self::OFFLOADS
        .with(Self::MTU)
        .with(Self::MRG_RXBUF)
        .with(Self::STATUS)
        .with(Self::CTRL_VQ)
        .with(Self::CTRL_RX)
        .with(Self::CTRL_VLAN)
        .with(Self::CTRL_RX_EXTRA)
        .with(Self::CTRL_MAC_ADDR)
        .with(Self::VQ_NOTF_COAL)
        .with(Self::NOTF_COAL)
        .with(Self::MQ)
        .with(Self::LOG_ALL)
        .with(Self::ANY_LAYOUT)
        .with(Self::INDIRECT)
        .with(Self::EVENT_IDX)
        .with(Self::PROTOCOL)
        .with(Self::VERSION_1)
        .with(Self::RING_PACKED)
        .with(Self::IN_ORDER);

    /// Features that leave checksums and segmentation to the other side.
    pub const OFFLOADS: Self = Self::CSUM
        .with(Self::GUEST_CSUM)
        .with(Self::GUEST_TSO4)
        .with(Self::GUEST_TSO6)
        .with(Self::GUEST_ECN)
        .with(Self::GUEST_UFO)
        .with(Self::HOST_TSO4)
        .with(Self::HOST_TSO6)
        .with(Self::HOST_ECN)
        .with(Self::HOST_UFO);

    /// Features with fields in the device's configuration space.
    pub const OF_CONFIGURATION: Self = Self::MAC.with(Self::MTU).with(Self::STATUS).with(Self::MQ);

    /// Bytes of the virtio-net header: without the last field for legacy guests that did not ask for
    /// mergeable buffers (virtio 1.2, 5.1.6.1).
    pub const fn header_len(self) -> usize {
        if self.0 & (Self::VERSION_1.0 | Self::MRG_RXBUF.0) == 0 {
            10
        } else {
            12
        }
    }
}

/// Features of the vhost-user protocol itself (vhost-user "Protocol features").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProtocolFeatures(pub u64);

impl ProtocolFeatures {
    /// Several queues.
    pub const MQ: Self = Self(1);
    /// The dirty log comes as a file descriptor.
    pub const LOG_SHMFD: Self = Self(1 << 1);
    /// The back end announces a migrated guest.
    pub const RARP: Self = Self(1 << 2);
    /// Requests may ask for an acknowledgement.
    pub const REPLY_ACK: Self = Self(1 << 3);
    /// The front end sends the MTU.
    pub const MTU: Self = Self(1 << 4);
    /// The front end gives a channel for requests of the back end, which Linux's own front end needs to be
    /// interrupted.
    pub const BACKEND_REQ: Self = Self(1 << 5);
    /// The front end reads the device's configuration space from the back end.
    pub const CONFIG: Self = Self(1 << 9);
    /// RESET_DEVICE.
    pub const RESET_DEVICE: Self = Self(1 << 13);
    /// Kicks and calls may come as messages. Linux's own front end cannot wait for eventfds.
    pub const INBAND_NOTIFICATIONS: Self = Self(1 << 14);
    /// Memory regions come one by one.
    pub const CONFIGURE_MEM_SLOTS: Self = Self(1 << 15);
    /// The front end reads and writes the device's status.
    pub const STATUS: Self = Self(1 << 16);

    /// The features that all ports offer.
    pub const OFFERED: Self = Self(
        Self::MQ.0
            | Self::LOG_SHMFD.0
            | Self::RARP.0
            | Self::REPLY_ACK.0
            | Self::MTU.0
            | Self::BACKEND_REQ.0
            | Self::RESET_DEVICE.0
            | Self::INBAND_NOTIFICATIONS.0
            | Self::CONFIGURE_MEM_SLOTS.0,
    );
}

bits!(Features);
bits!(ProtocolFeatures);
