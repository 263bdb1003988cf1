// SPDX-License-Identifier: Apache-2.0
//! Counters of the network devices of a namespace, from `/proc/PID/net/dev` (`dev_seq_printf_stats` of
//! `net/core/net-procfs.c`).

use crate::text;

/// The line of a device. Its numbers are parsed on demand, since a host with many guests has thousands of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetDevice<'a> {
    /// The name.
    pub name: &'a [u8],
    numbers: &'a [u8],
}

/// The counts of one direction, since the device was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes.
    pub bytes: u64,
    /// Packets, or aggregates of packets with segmentation offloads.
    pub packets: u64,
    /// Packets with errors.
    pub errors: u64,
    /// Dropped packets.
    pub drops: u64,
}

/// The devices of a table, in its order; other lines are skipped.
pub fn net_devices(table: &[u8]) -> impl Iterator<Item = NetDevice<'_>> {
    text::lines(table).filter_map(|line| {
        let (name, numbers) = text::labelled(line)?;
        Some(NetDevice { name, numbers })
    })
}

impl NetDevice<'_> {
    /// Whether this is the loopback device.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.name == b"lo"
    }

    /// The received and the sent traffic; `None` if the line has another format.
    #[must_use]
    pub fn traffic(&self) -> Option<(Traffic, Traffic)> {
        let mut numbers = [0; 16];
        let mut fields = text::fields(self.numbers);
        for number in &mut numbers {
            *number = text::number(fields.next()?)?;
        }
        // Four more columns follow in either direction: fifo, frame or collisions, compressed and multicast or carrier.
        let [bytes, packets, errors, drops, _, _, _, _, sent @ ..] = numbers;
        let received = Traffic {
            bytes,
            packets,
            errors,
            drops,
        };
        let [bytes, packets, errors, drops, ..] = sent;
        let sent = Traffic {
            bytes,
            packets,
            errors,
            drops,
        };
        Some((received, sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_device_has_counts_in_both_directions() {
        let table = b"Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth0:1 2 3 4 5 6 7 8 10 20 30 40 50 60 70 80\n";
        let devices: Vec<NetDevice<'_>> = net_devices(table).collect();
        let [lo, eth0] = devices[..] else {
            panic!("{devices:?}");
        };
        assert!(lo.is_loopback() && !eth0.is_loopback());
        assert_eq!(eth0.name, b"eth0");
        let traffic = |bytes, packets, errors, drops| Traffic {
            bytes,
            packets,
            errors,
            drops,
        };
        let both = (traffic(1, 2, 3, 4), traffic(10, 20, 30, 40));
        assert_eq!(eth0.traffic(), Some(both));
    }

    #[test]
    fn a_line_with_too_few_numbers_or_other_words_has_no_traffic() {
        for line in ["eth0: 1 2 3", "eth0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 x"] {
            let device = net_devices(line.as_bytes()).next().unwrap();
            assert_eq!(device.traffic(), None, "{line}");
        }
        assert_eq!(net_devices(b"no device").next(), None);
    }

    proptest! {
        #[test]
        fn any_table_is_read_without_a_panic(table: Vec<u8>, numbers in "[ 0-9]{0,400}") {
            let table = [b"a:", numbers.as_bytes(), b"\n", &table].concat();
            for device in net_devices(&table) {
                let _ = device.traffic();
            }
        }
    }
}
