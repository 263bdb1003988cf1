// SPDX-License-Identifier: Apache-2.0
//! Stamped frames, with number and time, by which the receiver counts losses, repetitions, reordering and delays.

use vtax_nic::hold::Nanos;

/// The shortest Ethernet frame in bytes, without FCS.
pub const SHORTEST_FRAME: usize = 60;

/// EtherType 0x88B6, IEEE Std 802 local experimental 2.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb6];
const MAGIC: [u8; 4] = *b"vtxp";

/// The stamp of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The number of the frame, from 0.
    pub number: u64,
    /// The time at which the frame was due, so that a late sender counts as delay (open loop).
    pub sent: Nanos,
}

/// Writes a stamped frame of `len` bytes.
pub fn write(frame: &mut Vec<u8>, to: [u8; 6], from: [u8; 6], len: usize, stamp: Stamp) {
    frame.clear();
    frame.extend_from_slice(&to);
    frame.extend_from_slice(&from);
    frame.extend_from_slice(&ETHER_TYPE);
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&stamp.number.to_be_bytes());
    frame.extend_from_slice(&stamp.sent.0.to_be_bytes());
    frame.resize(len.max(SHORTEST_FRAME), 0);
}

/// Reads a stamped frame.
pub fn read(frame: &[u8]) -> Option<Stamp> {
    let body = frame
        .get(12..)?
        .strip_prefix(&ETHER_TYPE)?
        .strip_prefix(&MAGIC)?;
    let (number, rest) = body.split_first_chunk()?;
    let sent = rest.first_chunk()?;
    Some(Stamp {
        number: u64::from_be_bytes(*number),
        sent: Nanos(u64::from_be_bytes(*sent)),
    })
}

/// The monotonic clock.
pub fn now() -> Nanos {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Nanos(seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// A receiver's counts of a stream.
#[derive(Clone, Debug, Default)]
pub struct Reception {
    /// Stamped frames.
    pub frames: u64,
    /// Numbers that were skipped.
    pub lost: u64,
    /// Frames that arrived after one with a higher number, or twice.
    pub disordered: u64,
    /// Delays in ns.
    pub delays: Vec<u64>,
    next: u64,
}

impl Reception {
    /// Counts a frame that arrived at `at`.
    pub fn frame(&mut self, frame: &[u8], at: Nanos) {
        let Some(stamp) = read(frame) else { return };
        self.frames += 1;
        self.delays.push(at.since(stamp.sent).0);
        if stamp.number < self.next {
            self.disordered += 1;
        } else {
            self.lost += stamp.number - self.next;
            self.next = stamp.number + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_as_it_was_written() {
        let mut frame = Vec::new();
        let stamp = Stamp {
            number: 7,
            sent: Nanos(99),
        };
        write(&mut frame, [2; 6], [4; 6], 64, stamp);
        assert_eq!((frame.len(), read(&frame)), (64, Some(stamp)));
        assert_eq!(read(&frame[..20]), None);
        assert_eq!(read(&[0; 64]), None);
    }

    #[test]
    fn losses_and_disorder_are_seen() {
        let mut seen = Reception::default();
        let mut frame = Vec::new();
        for number in [0, 1, 4, 3, 5] {
            write(
                &mut frame,
                [2; 6],
                [4; 6],
                64,
                Stamp {
                    number,
                    sent: Nanos(10),
                },
            );
            seen.frame(&frame, Nanos(30));
        }
        assert_eq!((seen.frames, seen.lost, seen.disordered), (5, 2, 1));
        assert_eq!(seen.delays, [20; 5]);
    }
}
