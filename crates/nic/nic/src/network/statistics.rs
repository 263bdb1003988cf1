// SPDX-License-Identifier: Apache-2.0
//! The kernel's counters of an interface (`/sys/class/net/NAME/statistics`), for a port whose frames it moves. They
//! are read on request.

use crate::telemetry::Totals;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread};
use std::os::fd::OwnedFd;
use std::path::Path;

/// The directory of interfaces.
pub(super) const LISTED: &str = "/sys/class/net";

/// The counters of an interface, counted from the creation of this value.
#[derive(Debug)]
pub struct Statistics([Counter; 6]);

#[derive(Debug)]
struct Counter {
    file: OwnedFd,
    begun: u64,
    /// The last reading, for an interface that was removed.
    last: u64,
}

impl Statistics {
    /// Opens the counters of `interface` below `listed`, while files can still be opened.
    ///
    /// # Errors
    /// When the kernel has no such counters.
    pub(super) fn open(listed: &Path, interface: &str) -> Result<Self, Errno> {
        let directory = listed.join(interface).join("statistics");
        let counter = |name: &str| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let file = open(directory.join(name), flags, Mode::empty())?;
            let begun = read(&file).ok_or(Errno::INVAL)?;
            let last = begun;
            Ok::<_, Errno>(Counter { file, begun, last })
        };
        Ok(Self([
            counter("tx_packets")?,
            counter("tx_bytes")?,
            counter("rx_packets")?,
            counter("rx_bytes")?,
            counter("tx_dropped")?,
            counter("rx_dropped")?,
        ]))
    }

    /// Fills in frames and drops. The interface transmits the frames that its guest receives.
    pub(super) fn fill(&mut self, totals: &mut Totals) {
        let [rx_packets, rx_bytes, tx_packets, tx_bytes, unsent, refused] =
            self.0.each_mut().map(Counter::gained);
        totals.rx_packets = rx_packets;
        totals.rx_bytes = rx_bytes;
        totals.tx_packets = tx_packets;
        totals.tx_bytes = tx_bytes;
        totals.drops.tap = unsent + refused;
    }
}

impl Counter {
    fn gained(&mut self) -> u64 {
        self.last = read(&self.file).unwrap_or(self.last);
        self.last.saturating_sub(self.begun)
    }
}

fn read(file: &OwnedFd) -> Option<u64> {
    let mut text = [0; 32];
    let len = pread(file, &mut text, 0).ok()?;
    std::str::from_utf8(text.get(..len)?)
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_interface_transmits_since_the_start_is_what_its_guest_receives() {
        let listed = tempfile::tempdir().unwrap();
        let put = |values: [u32; 6]| {
            let directory = listed.path().join("tap0/statistics");
            std::fs::create_dir_all(&directory).unwrap();
            let names = [
                "tx_packets",
                "tx_bytes",
                "rx_packets",
                "rx_bytes",
                "tx_dropped",
                "rx_dropped",
            ];
            for (name, value) in names.into_iter().zip(values) {
                std::fs::write(directory.join(name), format!("{value}\n")).unwrap();
            }
        };
        assert!(Statistics::open(listed.path(), "tap0").is_err());
        put([10, 1_000, 20, 2_000, 1, 2]);
        let mut statistics = Statistics::open(listed.path(), "tap0").unwrap();
        put([13, 1_400, 25, 2_600, 1, 9]);
        let mut totals = Totals::default();
        statistics.fill(&mut totals);
        let frames = (
            totals.rx_packets,
            totals.rx_bytes,
            totals.tx_packets,
            totals.tx_bytes,
        );
        assert_eq!((frames, totals.drops.tap), ((3, 400, 5, 600), 7));
    }

    #[test]
    fn the_kernel_shows_the_counters_of_an_interface() {
        let mut statistics = Statistics::open(Path::new(LISTED), "lo").unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .send_to(&[0; 100], socket.local_addr().unwrap())
            .unwrap();
        let mut totals = Totals::default();
        statistics.fill(&mut totals);
        assert!(
            totals.rx_packets >= 1 && totals.rx_bytes >= 100,
            "{totals:?}"
        );
    }
}
