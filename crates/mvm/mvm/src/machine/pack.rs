// SPDX-License-Identifier: Apache-2.0
//! A guest's stored state: the difference from the state at reset.
//!
//! Processor, devices and memory form one sequence of bytes. Each run of bytes that differ from the state at reset is
//! stored as *gap, length, bytes*, with both numbers as variable-length integers. The bytes that wait on the serial
//! line follow. A sleeping web guest has touched an interrupt vector, a few stack words and a dozen registers: it is
//! stored in some hundred bytes.

use super::devices::{Devices, MAX_WIRE};
use super::kvm::Slot;
use super::state::{PlainDevices, Processor, Reset};
use super::{Guest, MEMORY};
use crate::error::{Error, Result};
use zerocopy::{FromBytes, IntoBytes};

/// Takes the guest out of its slot and leaves the slot's memory as at reset.
///
/// # Errors
/// [`Error::System`] when KVM fails.
pub fn pack(slot: &mut Slot, devices: &Devices, reset: &Reset) -> Result<Box<[u8]>> {
    let processor = slot.save()?;
    let mut writer = Writer {
        out: Vec::with_capacity(256),
        gap: 0,
    };
    writer.compare(processor.as_bytes(), reset.processor.as_bytes(), |_, _| {});
    writer.compare(
        PlainDevices::from_devices(devices).as_bytes(),
        &reset.devices,
        |_, _| {},
    );
    let mut runs: Vec<(usize, usize)> = Vec::new();
    writer.compare(slot.memory(), &reset.memory, |start, end| {
        runs.push((start, end))
    });
    let memory = slot.memory_mut();
    for (start, end) in runs {
        if let (Some(to), Some(from)) = (memory.get_mut(start..end), reset.memory.get(start..end)) {
            to.copy_from_slice(from);
        }
    }
    let mut out = writer.out;
    // No run has length 0, so a length of 0 ends the runs.
    out.extend([0, 0]);
    out.extend(&devices.uart.received);
    // A copy of the exact size, because shrinking in place fragments memory.
    Ok(Box::from(out.as_slice()))
}

/// Loads a stored guest into a slot whose memory is as at reset, which it still is on failure. An empty state is a
/// guest at reset.
///
/// # Errors
/// [`Error::State`] when `stored` was not made by [`pack`]; [`Error::System`] when KVM fails.
pub fn unpack(stored: &[u8], slot: &mut Slot, reset: &Reset) -> Result<Devices> {
    // Everything is checked before memory is touched.
    let (guest, tail) = read(stored, reset, |_, _| {})?;
    read(stored, reset, |at, bytes| {
        if let Some(to) = slot.memory_mut().get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    })?;
    let mut devices = guest.devices;
    devices.uart.received.extend(tail);
    slot.load(&guest.processor)?;
    Ok(devices)
}

/// Checks that `stored` can be unpacked, without a slot.
///
/// # Errors
/// [`Error::State`] with the defect.
pub fn check(stored: &[u8], reset: &Reset) -> Result<()> {
    read(stored, reset, |_, _| {}).map(|_| ())
}

/// Decodes processor and devices, gives each run of memory to `memory`, returns the waiting bytes.
fn read<'a>(
    stored: &'a [u8],
    reset: &Reset,
    mut memory: impl FnMut(usize, &[u8]),
) -> Result<(Guest, &'a [u8])> {
    if stored.is_empty() {
        return Ok((Guest::at_reset(reset), &[]));
    }
    const PROCESSOR: usize = size_of::<Processor>();
    const PLAIN: usize = PROCESSOR + size_of::<PlainDevices>();
    let mut plain = [0u8; PLAIN];
    let (processor, devices) = plain.split_at_mut(PROCESSOR);
    processor.copy_from_slice(reset.processor.as_bytes());
    devices.copy_from_slice(&reset.devices);
    let mut rest = stored;
    let mut at = 0usize;
    loop {
        let gap = number(&mut rest)?;
        let length = number(&mut rest)?;
        if length == 0 {
            break;
        }
        at = at.saturating_add(gap);
        let (bytes, behind) = rest
            .split_at_checked(length)
            .ok_or(Error::State("a run ends behind the end"))?;
        rest = behind;
        let end = at.saturating_add(length);
        if end <= PLAIN {
            if let Some(to) = plain.get_mut(at..end) {
                to.copy_from_slice(bytes);
            }
        } else if at >= PLAIN && end <= PLAIN + MEMORY {
            memory(at - PLAIN, bytes);
        } else {
            return Err(Error::State("a run lies outside"));
        }
        at = end;
    }
    if rest.len() > MAX_WIRE {
        return Err(Error::State("too many bytes wait on the serial line"));
    }
    let (processor, devices) = plain.split_at(PROCESSOR);
    let processor = Processor::read_from_bytes(processor)
        .map_err(|_| Error::State("processor of another size"))?;
    let plain = PlainDevices::read_from_bytes(devices)
        .map_err(|_| Error::State("devices of another size"))?;
    let mut devices = Devices {
        pic: plain.pic,
        pit: plain.pit,
        ..Devices::default()
    };
    devices.uart.registers = FromBytes::read_from_bytes(&plain.uart)
        .map_err(|_| Error::State("serial port of another size"))?;
    Ok((Guest { processor, devices }, rest))
}

struct Writer {
    out: Vec<u8>,
    /// Equal bytes since the last run.
    gap: usize,
}

impl Writer {
    /// Appends the runs in which `new` differs from `old`, which has the same length, and calls `run` for each.
    fn compare(&mut self, new: &[u8], old: &[u8], mut run: impl FnMut(usize, usize)) {
        /// The most equal bytes that are cheaper to store inside a run than to skip.
        const BRIDGE: usize = 2;
        const BLOCK: usize = 256;
        let length = new.len().min(old.len());
        let differs = |i: usize| new.get(i) != old.get(i);
        let mut at = 0;
        let mut done = 0;
        while at < length {
            let block = at..(at + BLOCK).min(length);
            if at.is_multiple_of(BLOCK) && new.get(block.clone()) == old.get(block.clone()) {
                at = block.end;
                continue;
            }
            if !differs(at) {
                at += 1;
                continue;
            }
            let start = at;
            let mut end = at + 1;
            let mut probe = end;
            while probe < length && probe <= end + BRIDGE {
                if differs(probe) {
                    end = probe + 1;
                }
                probe += 1;
            }
            self.number(self.gap + start - done);
            self.number(end - start);
            self.out.extend(new.get(start..end).unwrap_or_default());
            self.gap = 0;
            run(start, end);
            done = end;
            at = end;
        }
        self.gap += length - done;
    }

    fn number(&mut self, mut value: usize) {
        while value >= 0x80 {
            self.out.push((value & 0x7F) as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }
}

fn number(rest: &mut &[u8]) -> Result<usize> {
    let mut value = 0usize;
    for shift in [0, 7, 14, 21] {
        let (byte, behind) = rest
            .split_first()
            .ok_or(Error::State("it ends within a number"))?;
        *rest = behind;
        value |= usize::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Error::State("a number is too long"))
}
