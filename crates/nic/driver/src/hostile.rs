// SPDX-License-Identifier: Apache-2.0
//! Fault injection: every violation of rings, frames and the protocol that a back end must survive, with no effect on
//! other ports than the faulty one.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::event::EventfdFlags;

use crate::descriptor::{Descriptor, INDIRECT, NEXT, WRITE};
use crate::nic::{BUFFER_LEN, HEADER_LEN, Nic, Queue};
use crate::session::{SessionError, failed, message, request, state};

/// Declares an enum with a list of its variants.
macro_rules! every {
    ($(#[$about:meta])* pub enum $name:ident { $($variant:ident,)* }) => {
        $(#[$about])*
        pub enum $name {
            $($variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: [Self; [$(Self::$variant),*].len()] = [$(Self::$variant),*];
        }
    };
}

every! {
    /// A fault of a ring or a frame, injected on queue pair 0 of a running NIC.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[expect(missing_docs, reason = "the names describe the faults")]
    pub enum DriverFault {
        AvailableIndexJumps,
        HeadPastTable,
        NextPastTable,
        ChainLoops,
        IndirectEmpty,
        IndirectNotMultipleOf16,
        IndirectNested,
        IndirectLoops,
        IndirectOutsideMemory,
        IndirectBesideNext,
        AddressOverflows,
        AddressOutsideMemory,
        RangeLeavesMemory,
        ZeroLength,
        WritableInTransmit,
        ReadableInReceive,
        HeaderInTwelveParts,
        ShorterThanHeader,
        HeaderOnly,
        ChecksumStartPastEnd,
        ChecksumOffsetPastEnd,
        SegmentsOfZeroBytes,
        UnnegotiatedSegmentation,
        UnknownSegmentation,
        ReceiveBufferShorterThanHeader,
        TooManyBuffers,
        EventIndexOscillates,
        DescriptorsRewritten,
        MemoryTruncated,
    }
}

impl DriverFault {
    /// Injects the fault and kicks. Receive-side faults take effect with the next frame for the NIC.
    pub fn inject(self, nic: &mut Nic) {
        let Some(pair) = nic.pairs.first_mut() else {
            return;
        };
        let memory = &nic.memory;
        let tx = &mut pair.tx;
        let size = tx.ring.size;
        let frame = Descriptor::from_address(tx.buffer(0), 64);
        let table = tx.tables();
        let chain = |tx: &mut Queue, parts: &[Descriptor]| {
            for (index, part) in (0u16..).zip(parts) {
                tx.ring.describe(memory, index, *part);
            }
            tx.ring.offer(memory, 0);
            tx.ring.publish(memory);
        };
        let indirect = |tx: &mut Queue, len: u32, flags: u16, entries: &[Descriptor]| {
            for (slot, entry) in (0u64..).zip(entries) {
                memory.write(table + 16 * slot, &entry.to_bytes());
            }
            chain(
                tx,
                &[Descriptor::from_address(table, len).flagged(INDIRECT | flags)],
            );
        };
        // The header's fields: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
        let with_header =
            |tx: &mut Queue, flags: u8, gso: u8, gso_size: u16, start: u16, offset: u16| {
                let mut header = vec![flags, gso];
                let fields = [54, gso_size, start, offset, 0];
                header.extend(fields.map(u16::to_le_bytes).as_flattened());
                memory.write(frame.address, &header);
                chain(tx, &[Descriptor { len: 200, ..frame }]);
            };
        match self {
            Self::AvailableIndexJumps => {
                let index = tx.ring.published().wrapping_add(size + 1);
                memory.store(tx.ring.available + 2, index, Ordering::Release);
            }
            Self::HeadPastTable => {
                tx.ring.offer(memory, size);
                tx.ring.publish(memory);
            }
            Self::NextPastTable => chain(tx, &[frame.before(u16::MAX)]),
            Self::ChainLoops => chain(tx, &[frame.before(1), frame.before(0)]),
            Self::IndirectEmpty => indirect(tx, 0, 0, &[]),
            Self::IndirectNotMultipleOf16 => indirect(tx, 17, 0, &[frame]),
            Self::IndirectNested => {
                let inner = Descriptor::from_address(table + 16, 16).flagged(INDIRECT);
                indirect(tx, 16, 0, &[inner, frame]);
            }
            Self::IndirectLoops => indirect(tx, 16, 0, &[frame.before(0)]),
            Self::IndirectOutsideMemory => {
                chain(tx, &[Descriptor::from_address(64, 16).flagged(INDIRECT)]);
            }
            Self::IndirectBesideNext => indirect(tx, 16, NEXT, &[frame]),
            Self::AddressOverflows => {
                chain(tx, &[Descriptor::from_address(u64::MAX - 8, u32::MAX)])
            }
            Self::AddressOutsideMemory => chain(tx, &[Descriptor::from_address(0, frame.len)]),
            Self::RangeLeavesMemory => {
                let last = crate::memory::GUEST_BASE + memory.size() - 4;
                chain(tx, &[Descriptor::from_address(last, frame.len)]);
            }
            Self::ZeroLength => chain(tx, &[Descriptor { len: 0, ..frame }]),
            Self::WritableInTransmit => chain(tx, &[frame.flagged(WRITE)]),
            Self::ReadableInReceive => {
                inject_receive_fault(&mut pair.rx, memory, |buffer| buffer.flagged(0));
            }
            Self::HeaderInTwelveParts => {
                let byte = |at: u16| Descriptor::from_address(frame.address + u64::from(at), 1);
                let header = (0..HEADER_LEN as u16).map(|at| byte(at).before(at + 1));
                let parts: Vec<_> = header
                    .chain([Descriptor::from_address(tx.buffer(1), 60)])
                    .collect();
                chain(tx, &parts);
            }
            Self::ShorterThanHeader => chain(tx, &[Descriptor { len: 5, ..frame }]),
            Self::HeaderOnly => chain(
                tx,
                &[Descriptor::from_address(frame.address, HEADER_LEN as u32)],
            ),
            Self::ChecksumStartPastEnd => with_header(tx, 1, 0, 0, u16::MAX, 16),
            Self::ChecksumOffsetPastEnd => with_header(tx, 1, 0, 0, 34, u16::MAX),
            Self::SegmentsOfZeroBytes => with_header(tx, 1, 1, 0, 34, 16),
            Self::UnnegotiatedSegmentation => with_header(tx, 1, 4, 1_400, 34, 16),
            Self::UnknownSegmentation => with_header(tx, 0, 0x55, 1_400, 34, 16),
            Self::ReceiveBufferShorterThanHeader => {
                inject_receive_fault(&mut pair.rx, memory, |buffer| Descriptor {
                    len: 4,
                    ..buffer
                });
            }
            Self::TooManyBuffers => {
                // An indirect table of 2,048 parts, which covers the frame buffers of the ring.
                let table = tx.buffer(0);
                let parts = 2_048;
                for part in 0..parts {
                    let more = if part + 1 < parts { NEXT } else { 0 };
                    let entry = Descriptor::from_address(table, 1)
                        .before(part + 1)
                        .flagged(more);
                    memory.write(table + 16 * u64::from(part), &entry.to_bytes());
                }
                let whole = Descriptor::from_address(table, 16 * u32::from(parts));
                chain(tx, &[whole.flagged(INDIRECT)]);
            }
            Self::EventIndexOscillates => {
                let events = [(&tx.ring, 31_337), (&pair.rx.ring, 40_503)];
                for value in 0..10_000u16 {
                    for (ring, step) in events {
                        let value = value.wrapping_mul(step);
                        memory.store(ring.used_event(), value, Ordering::Release);
                    }
                }
                chain(tx, &[frame]);
            }
            Self::DescriptorsRewritten => {
                chain(tx, &[frame]);
                tx.kick();
                for round in 0..10_000u32 {
                    let bad = Descriptor::from_address(u64::from(round) << 40, u32::MAX).before(7);
                    let written = if round % 2 == 0 { bad } else { frame };
                    tx.ring.describe(memory, 0, written);
                }
            }
            Self::MemoryTruncated => {
                tx.ring.offer(memory, 0);
                let _ = memory.truncate(0);
            }
        }
        if let Some(pair) = nic.pairs.first() {
            pair.tx.kick();
            pair.rx.kick();
        }
    }
}

fn inject_receive_fault(
    rx: &mut Queue,
    memory: &crate::memory::GuestMemory,
    spoil: impl Fn(Descriptor) -> Descriptor,
) {
    for index in 0..rx.ring.size {
        let buffer = Descriptor::from_address(rx.buffer(index), BUFFER_LEN).flagged(WRITE);
        rx.ring.describe(memory, index, spoil(buffer));
    }
}

every! {
    /// A faulty message, sent on a connected session before or while a NIC runs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[expect(missing_docs, reason = "the names describe the messages")]
    pub enum BadMessage {
        RingAddressesBeforeMemory,
        MemoryWithoutFile,
        MemoryWithExcessFiles,
        MemoryWithOverlappingRegions,
        MemoryWithTooManyRegions,
        RingSizeNotPowerOfTwo,
        RingSizeZero,
        RingPastLast,
        RingAddressesOutsideMemory,
        Truncated,
        Oversized,
        UnknownRequest,
        WrongVersion,
        LogSmallerThanMemory,
        BlockingEventfdWithSaturatedCounter,
    }
}

impl BadMessage {
    /// Sends the message on the session of a NIC. For [`BadMessage::RingAddressesBeforeMemory`] use
    /// [`BadMessage::send_on`] with a new session.
    ///
    /// # Errors
    /// The back end has closed the session already.
    pub fn send(self, nic: &Nic) -> Result<(), SessionError> {
        self.send_on(&nic.session, nic)
    }

    /// Sends the message on any session, with files and addresses of `nic`.
    ///
    /// # Errors
    /// The back end has closed the session already.
    pub fn send_on(self, session: &crate::session::Session, nic: &Nic) -> Result<(), SessionError> {
        let send = |request, payload: &[u8], files: &[_]| {
            session.send(&message(request, 1, payload), files)
        };
        let words = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let file = nic.memory.as_fd();
        let region = [1 << 30, nic.memory.size(), nic.memory.user_base(), 0];
        let one_region = words(&[&[1], &region[..]].concat());
        match self {
            Self::RingAddressesBeforeMemory | Self::RingAddressesOutsideMemory => {
                let ring = words(&[0, 0xdead_0000, 0xdead_1000, 0xdead_2000, 0]);
                send(request::SET_VRING_ADDR, &ring, &[])
            }
            Self::MemoryWithoutFile => send(request::SET_MEM_TABLE, &one_region, &[]),
            Self::MemoryWithExcessFiles => send(request::SET_MEM_TABLE, &one_region, &[file; 16]),
            Self::MemoryWithOverlappingRegions => {
                // QEMU before 8.0 sends one region twice, so the second region here is shifted.
                let [guest, size, user, offset] = region;
                let shifted = [guest + 4096, size, user, offset];
                let table = words(&[&[2], &region[..], &shifted[..]].concat());
                send(request::SET_MEM_TABLE, &table, &[file, file])
            }
            Self::MemoryWithTooManyRegions => {
                let mut table = words(&[u64::from(u32::MAX)]);
                table.extend(words(&region));
                send(request::SET_MEM_TABLE, &table, &[file])
            }
            Self::RingSizeNotPowerOfTwo => send(request::SET_VRING_NUM, &state(0, 100), &[]),
            Self::RingSizeZero => send(request::SET_VRING_NUM, &state(0, 0), &[]),
            Self::RingPastLast => send(request::SET_VRING_NUM, &state(9_999, 256), &[]),
            Self::Truncated => {
                let whole = message(request::SET_VRING_NUM, 1, &state(0, 256));
                session.send(whole.get(..15).unwrap_or_default(), &[])
            }
            Self::Oversized => {
                let mut header = message(request::SET_MEM_TABLE, 1, &[]);
                header.truncate(8);
                header.extend_from_slice(&u32::MAX.to_ne_bytes());
                session.send(&header, &[])
            }
            Self::UnknownRequest => send(0x7fff_ffff, &[0; 8], &[]),
            Self::WrongVersion => session.send(&message(request::SET_OWNER, 3, &[]), &[]),
            Self::LogSmallerThanMemory => {
                let log = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC)
                    .and_then(|log| rustix::fs::ftruncate(&log, 8).map(|()| log))
                    .map_err(|error| failed("make a log for")(error.into()))?;
                send(request::SET_LOG_BASE, &words(&[8, 0]), &[log.as_fd()])
            }
            Self::BlockingEventfdWithSaturatedCounter => {
                let call = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).and_then(|call| {
                    rustix::io::write(&call, &(u64::MAX - 1).to_ne_bytes()).map(|_| call)
                });
                let call = call.map_err(|error| failed("make an eventfd for")(error.into()))?;
                send(request::SET_VRING_CALL, &words(&[0]), &[call.as_fd()])
            }
        }
    }
}
