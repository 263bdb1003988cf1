// SPDX-License-Identifier: Apache-2.0
//! Moves frames from and into a guest's rings: the work for each packet.

use super::packet::{BATCH, Batch, Frame};
use crate::frame::{NetHeader, Offloads};
use crate::hold::RxBatch;
use crate::memory::{self, DirtyLog, GuestMemory, Segment};
use crate::ring::{Chain, Direction, MAX_SEGMENTS, Place, RingFault, Virtqueue};
use crate::telemetry::DropReason;

/// The result of a delivery to a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It is in the ring, to be published.
    Delivered,
    /// There are too few buffers at present.
    Full,
    /// It is dropped.
    Dropped(DropReason),
}

/// Takes up to a batch of frames from a ring.
#[inline]
pub(super) fn pull(
    ring: &mut impl Virtqueue,
    memory: &GuestMemory,
    batch: &mut Batch,
    (header_len, sender): (usize, Offloads),
) {
    // All are prefetched before the first is read.
    let mut chains = [Chain::default(); BATCH];
    let mut count = 0;
    for chain in &mut chains {
        if let Some((place, segment)) = ring.take_single(memory, Direction::Readable) {
            segment.prefetch();
            *chain = batch.push_single(place, segment);
        } else {
            match ring.take(memory, Direction::Readable, &mut batch.segments) {
                Ok(Some(taken)) => {
                    if let Some(first) = taken.segments(&batch.segments).first() {
                        first.prefetch();
                    }
                    *chain = taken;
                }
                Ok(None) => break,
                Err(fault) => {
                    batch.fault = Some(fault);
                    break;
                }
            }
        }
        count += 1;
    }
    for chain in chains.iter().take(count) {
        batch.add_chain(*chain, header_len, sender);
    }
}

/// Puts one frame into as many buffers as it needs. `chains` and `segments` list them.
pub(super) fn deliver(
    ring: &mut impl Virtqueue,
    memory: &GuestMemory,
    frame: &Frame,
    (header_len, mergeable): (usize, bool),
    (chains, segments): (&mut Vec<Chain>, &mut Vec<Segment>),
) -> Result<Delivery, RingFault> {
    let need = header_len + frame.len;
    chains.clear();
    segments.clear();
    let mut room = 0;
    while room < need {
        let Some(chain) = ring.take(memory, Direction::Writable, segments)? else {
            put_back(ring, chains);
            // A frame that a whole ring of empty buffers cannot hold never fits.
            return Ok(if chains.len() >= usize::from(ring.size()) {
                Delivery::Dropped(DropReason::TooLong)
            } else {
                Delivery::Full
            });
        };
        if (chain.len as usize) < header_len {
            return Err(RingFault::SmallBuffer);
        }
        room += chain.len as usize;
        chains.push(chain);
        // The number of buffers is limited, because a guest may offer buffers of no bytes.
        let walked = segments.len() > MAX_SEGMENTS;
        if room < need && (walked || !mergeable) {
            put_back(ring, chains);
            return Ok(Delivery::Dropped(DropReason::TooLong));
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most the ring's size")]
    let header = frame.header.to_bytes(chains.len() as u16);
    memory::copy(&header[..header_len], frame.segments, segments);
    let mut left = need;
    for chain in chains.iter() {
        let bytes = left.min(chain.len as usize);
        left -= bytes;
        #[expect(clippy::cast_possible_truncation, reason = "at most a chain's length")]
        ring.give(chain.place, bytes as u32);
    }
    Ok(Delivery::Delivered)
}

fn put_back(ring: &mut impl Virtqueue, chains: &[Chain]) {
    if let Some(first) = chains.first() {
        #[expect(clippy::cast_possible_truncation, reason = "at most the ring's size")]
        ring.put_back(first.place, chains.len() as u16);
    }
}

/// Puts plain frames into one buffer each, as long as they fit. Returns their number and bytes.
#[inline]
pub(super) fn deliver_plain(
    ring: &mut impl Virtqueue,
    memory: &GuestMemory,
    log: Option<&DirtyLog>,
    header_len: usize,
    batch: &Batch,
    done: usize,
) -> (usize, u64) {
    let header = NetHeader::PLAIN.to_bytes(1);
    #[expect(clippy::cast_possible_truncation, reason = "a few bytes at most")]
    let header_bytes = header_len as u32;
    // All are prefetched before the first is written.
    let mut targets = [(Place::default(), Segment::EMPTY); BATCH];
    let mut count = 0;
    for (packet, slot) in batch.packets.iter().skip(done).zip(&mut targets) {
        if !packet.plain {
            break;
        }
        let Some((place, target)) = ring.take_single(memory, Direction::Writable) else {
            break;
        };
        if target.len < header_bytes + packet.len {
            ring.put_back(place, 1);
            break;
        }
        target.prefetch_to_write();
        *slot = (place, target);
        count += 1;
    }
    let (mut packets, mut bytes) = (0, 0);
    for (packet, (place, target)) in batch.packets.iter().skip(done).zip(&targets[..count]) {
        let need = header_bytes + packet.len;
        memory::copy(
            &header[..header_len],
            batch.segments(packet),
            std::slice::from_ref(target),
        );
        ring.give(*place, need);
        if let Some(log) = log {
            log.mark(target.guest, need.into());
        }
        packets += 1;
        bytes += u64::from(packet.len);
    }
    (packets, bytes)
}

/// Publishes a receive ring. Returns the batch for the hold.
#[inline]
pub(super) fn publish(ring: &mut impl Virtqueue, log: Option<&DirtyLog>, packets: u32) -> RxBatch {
    ring.publish(log);
    let wanted = ring.wants_signal();
    // The count of buffers may be old: it is updated if the driver waits. A fault is reported when the next buffer is
    // taken.
    let seen = ring.waiting();
    let free = if wanted && seen < ring.size() / 2 {
        ring.look().unwrap_or(seen)
    } else {
        seen
    };
    RxBatch {
        packets,
        free,
        ring_size: ring.size(),
        wanted,
    }
}

/// Marks the first `len` bytes of segments.
pub(super) fn mark(log: &DirtyLog, segments: &[Segment], len: usize) {
    let mut left = len as u64;
    for segment in segments {
        let bytes = left.min(segment.len.into());
        log.mark(segment.guest, bytes);
        left -= bytes;
    }
}
