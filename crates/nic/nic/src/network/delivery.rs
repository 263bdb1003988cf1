// SPDX-License-Identifier: Apache-2.0
//! The delivery of one frame to a guest, in software where the guest lacks offloads.

use super::guest::Guest;
use super::packet::Frame;
use super::transfer::Delivery;
use crate::frame::{self, GsoKind, NetHeader, Offloads};
use crate::hold::Nanos;
use crate::memory::{Segment, own, peek};
use crate::ring::RingFault;
use crate::telemetry::DropReason;

/// How long a link keeps a frame for a guest without free buffers before it drops its frames. A switch drops them at
/// once.
pub(super) const BUFFER_TIMEOUT: Nanos = Nanos::from_micros(20_000);

/// Delivers a frame to a guest, in software where the guest lacks offloads.
#[inline]
pub(super) fn deliver_to_guest(
    guest: &mut Guest,
    pair: u8,
    frame: &Frame,
    software: (&mut Vec<u8>, &mut Vec<u8>),
    waiting: Option<Nanos>,
) -> Result<(Delivery, Option<Nanos>), RingFault> {
    let receiver = guest.receiver();
    let queue = usize::from(pair);
    let delivery = if frame.header.suits(receiver) {
        let frame = Frame {
            header: frame.header.for_receiver(receiver),
            ..*frame
        };
        guest.deliver(queue, &frame)?
    } else {
        deliver_in_software(guest, queue, frame, receiver, software.0, software.1)?
    };
    if delivery != Delivery::Full {
        guest.has_buffers(queue);
        return Ok((delivery, None));
    }
    let until = waiting.map(|now| (now, guest.lacks_buffers_since(queue, now) + BUFFER_TIMEOUT));
    let Some((now, until)) = until.filter(|(now, until)| until > now) else {
        return Ok((Delivery::Dropped(DropReason::NoBuffer), None));
    };
    // New buffers are tried after other sources had their turn, so that a guest that offers them one by one delays no
    // other.
    let came = guest.await_buffers(queue);
    Ok((Delivery::Full, Some(if came { now } else { until })))
}

/// Completes checksums, or segments the frame, in a private copy that the sender cannot change meanwhile.
fn deliver_in_software(
    guest: &mut Guest,
    queue: usize,
    frame: &Frame,
    receiver: Offloads,
    linear: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> Result<Delivery, RingFault> {
    linear.clear();
    linear.resize(frame.len, 0);
    peek(frame.segments, linear);
    if let Some((kind, size)) = frame.header.segmentation() {
        // The whole frame must fit: otherwise its first segments would be sent twice.
        let headers = if kind == GsoKind::Udp { 42 } else { 54 };
        let segments = frame.len.saturating_sub(headers).div_ceil(size) + 1;
        if guest.free_buffers(queue) < segments {
            return Ok(Delivery::Full);
        }
        let mut result = Ok(Delivery::Delivered);
        let segmented = frame::segment(
            linear,
            frame.header,
            receiver.checksum,
            scratch,
            |bytes, header| {
                if result == Ok(Delivery::Delivered) {
                    result = guest.deliver(queue, &whole(&[own(bytes)], header, bytes.len()));
                }
            },
        );
        return match segmented {
            Err(_) => Ok(Delivery::Dropped(DropReason::Malformed)),
            // The first segments are delivered, so that the frame must not come again.
            Ok(()) if result == Ok(Delivery::Full) => Ok(Delivery::Dropped(DropReason::NoBuffer)),
            Ok(()) => result,
        };
    }
    match frame.header.checksum() {
        Some((start, offset)) if !frame::complete(linear, start, offset) => {
            Ok(Delivery::Dropped(DropReason::Malformed))
        }
        _ => {
            let segments = [own(linear)];
            guest.deliver(queue, &whole(&segments, NetHeader::PLAIN, linear.len()))
        }
    }
}

pub(super) fn whole(segments: &[Segment], header: NetHeader, len: usize) -> Frame<'_> {
    Frame {
        header,
        segments,
        len,
    }
}
