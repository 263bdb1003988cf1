// SPDX-License-Identifier: Apache-2.0
//! Fuzz targets: a function for each interface that receives hostile bytes. `fuzz/` has the
//! fuzzers; the tests below replay their corpora.
//!
//! A target panics when an invariant is broken: segments outside of guest memory, a budget over the
//! operator's cap, or a neighbour that no longer gets its frames.

mod messages;
mod network;
mod rings;

pub use messages::{control_frame, messages, operator};
pub use network::{guest, logged, segmentation, taps};
pub use rings::{chains, compared, packed, regions};

use crate::features::Features;
use crate::frame::HEADER_LEN;
use crate::hold::{Mode, Nanos};
use crate::memory::{GuestMemory, MappedRegion, Segment};
use crate::network::{Batch, Network, Port};
use crate::poller::{Poller, PortId};
use crate::testing::{BUFFERS, MEMORY, Peer, linux, port};

/// The start time. It is far from 0, so that no earlier time counts as never.
const NOW: Nanos = Nanos(1_000_000_000_000);

/// The limit of steps in one input. Longer inputs find the same faults, later.
const MOST_STEPS: usize = 200;

/// A reader of numbers from the start of an input. Past the end it returns zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// An address: mostly of a buffer, sometimes at the end of memory, sometimes anything.
    fn address(&mut self) -> u64 {
        match self.u8() {
            0..200 => BUFFERS + u64::from(self.u16()) * 16,
            200..230 => MEMORY - u64::from(self.u8()),
            230..245 => u64::from(self.u32()),
            245.. => self.u64(),
        }
    }

    /// A length: mostly short.
    fn len(&mut self) -> u32 {
        match self.u8() {
            0..230 => u32::from(self.u16()),
            230.. => self.u32(),
        }
    }

    fn descriptor(&mut self) -> (u64, u32, u16, u16) {
        let (address, len) = (self.address(), self.len());
        (
            address,
            len,
            u16::from(self.u8() & 7),
            u16::from(self.u8() % 18),
        )
    }

    fn features(&mut self) -> Features {
        // Every front end accepts VERSION_1. The other features select the fields of the header.
        let kept = self.u64() | Features::VERSION_1.0 | Features::PROTOCOL.0;
        Features(linux().0 & kept)
    }

    fn has_more(&self) -> bool {
        !self.0.is_empty()
    }
}

/// A switch with a hostile port, number 0, and two neighbours.
struct HostileSwitch {
    network: Network,
    poller: Poller,
    batch: Batch,
    neighbours: [Peer; 2],
}

impl HostileSwitch {
    /// Sets up the hostile port: its driver completes the handshake with the given features, or it has no front end.
    fn new(hostile: Option<Features>, neighbours: Features) -> (Self, Option<Peer>) {
        let poller = Poller::new().unwrap();
        let mut zero = port(0, Mode::Adaptive).with_config_space(None, Some(1500));
        let hostile = hostile.map(|features| Peer::start(&mut zero, &poller, features));
        (
            Self::beside(Port::Guest(Box::new(zero)), poller, neighbours),
            hostile,
        )
    }

    /// Sets up the switch with any port in place of the hostile one.
    fn beside(zero: Port, poller: Poller, neighbours: Features) -> Self {
        let [mut one, mut two] = [1, 2].map(|number| port(number, Mode::Adaptive));
        let peers = [&mut one, &mut two].map(|guest| Peer::start(guest, &poller, neighbours));
        let [one, two] = [one, two].map(|guest| Port::Guest(Box::new(guest)));
        let ports = [zero, one, two];
        let mut switch = Self {
            network: Network::new(ports.into()),
            poller,
            batch: Batch::new(),
            neighbours: peers,
        };
        for port in 0..3 {
            switch.network.port_changed(port);
        }
        switch.run(NOW);
        switch
    }

    /// Works until the queues are empty, or for 200 rounds: a driver whose rings overlap can supply itself with frames
    /// without end. A round takes a microsecond, so that polling ends.
    fn run(&mut self, now: Nanos) {
        for round in 0..200 {
            let now = now + Nanos::from_micros(round);
            if !self.network.poll(now, &mut self.batch) {
                return;
            }
        }
    }

    fn kick(&mut self, port: u16, queue: u8, now: Nanos) {
        let id = PortId { network: 0, port };
        self.network.kicked(id, queue, now);
        self.run(now);
    }

    /// Checks that the neighbours reach each other after the hostile port's actions.
    fn check(mut self, now: Nanos) {
        self.network.take_stopped();
        let now = now + Nanos::from_secs(10);
        self.run(now);
        for neighbour in &mut self.neighbours {
            neighbour.received();
            neighbour.refill();
        }
        let mut bytes = [0x5a; 60];
        bytes[..14].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 0]);
        self.neighbours[0].send([0; HEADER_LEN], &bytes);
        self.kick(1, 1, now);
        let later = now + Nanos::from_secs(10);
        self.run(later);
        let received = self.neighbours[1].received();
        assert!(
            received.iter().any(|(_, frame)| frame == &bytes),
            "the neighbour got {} frames, and not its own",
            received.len()
        );
    }
}

/// Checks that a segment lies in one region, at the host address where the region is mapped.
fn check_segment(memory: &GuestMemory, segment: &Segment) {
    let (host, len) = (segment.host.addr() as u64, u64::from(segment.len));
    let holds = |region: &MappedRegion| {
        let inside = segment.guest.wrapping_sub(region.guest);
        inside < region.size && len <= region.size - inside && host == region.host + inside
    };
    assert!(memory.mapped().iter().any(holds), "{segment:?}");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// The name of a fuzz target, and the function that runs one input.
    type Target = (&'static str, fn(&[u8]));

    const TARGETS: [Target; 11] = [
        ("guest", super::guest),
        ("chains", super::chains),
        ("compared", super::compared),
        ("packed", super::packed),
        ("messages", super::messages),
        ("control_frame", super::control_frame),
        ("operator", super::operator),
        ("regions", super::regions),
        ("logged", super::logged),
        ("segmentation", super::segmentation),
        ("taps", super::taps),
    ];

    #[test]
    fn every_kept_input_of_every_target_passes() {
        for (target, run) in TARGETS {
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("fuzz/corpus")
                .join(target);
            let entries: Vec<_> = std::fs::read_dir(&corpus)
                .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
                .collect();
            assert!(entries.len() > 3, "{} is empty", corpus.display());
            for entry in entries {
                let path = entry.unwrap().path();
                let input = std::fs::read(&path).unwrap();
                eprintln!("{}", path.display());
                run(&input);
            }
        }
    }
}
