// SPDX-License-Identifier: Apache-2.0
//! The two 8259A interrupt controllers of a PC, cascaded at IRQ 2.
//!
//! Source: Intel 8259A data sheet. Behaves as QEMU's `hw/intc/i8259.c`, so that an image that works
//! there works here.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The input of the first controller that the second one drives.
const CASCADE: u8 = 2;

/// One 8259A. Flags are bytes, so that the struct is plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable)]
struct Chip {
    lines: u8,
    requests: u8,
    mask: u8,
    service: u8,
    vector_base: u8,
    /// The next initialisation command word; 0 is none.
    initialising: u8,
    needs_icw4: u8,
    single: u8,
    auto_end: u8,
    rotate_on_auto_end: u8,
    special_mask: u8,
    special_nested: u8,
    poll: u8,
    read_service: u8,
    level_triggered: u8,
    /// The IRQ that has the highest priority.
    first: u8,
}

impl Chip {
    /// Position in the priority order of the foremost IRQ in `set`; 8 when there is none.
    fn priority(&self, set: u8) -> u8 {
        (0..8)
            .find(|i| set & (1 << ((i + self.first) & 7)) != 0)
            .unwrap_or(8)
    }

    /// The IRQ to deliver now. `cascaded`: this is the first controller.
    fn pending(&self, cascaded: bool) -> Option<u8> {
        let wanted = self.priority(self.requests & !self.mask);
        if wanted == 8 {
            return None;
        }
        let mut service = self.service;
        if self.special_mask != 0 {
            service &= !self.mask;
        }
        if self.special_nested != 0 && cascaded {
            service &= !(1 << CASCADE);
        }
        (wanted < self.priority(service)).then_some((wanted + self.first) & 7)
    }

    fn set_line(&mut self, irq: u8, high: bool) {
        let bit = 1 << (irq & 7);
        let by_level = self.level_triggered & bit != 0;
        if high && (by_level || self.lines & bit == 0) {
            self.requests |= bit;
        } else if by_level {
            self.requests &= !bit;
        }
        self.lines = self.lines & !bit | u8::from(high) << (irq & 7);
    }

    fn acknowledge(&mut self, irq: u8) {
        let bit = 1 << (irq & 7);
        if self.auto_end != 0 {
            if self.rotate_on_auto_end != 0 {
                self.first = (irq + 1) & 7;
            }
        } else {
            self.service |= bit;
        }
        if self.level_triggered & bit == 0 {
            self.requests &= !bit;
        }
    }

    fn initialise(&mut self, icw1: u8) {
        // Lines and trigger modes are wires, which initialisation does not change.
        *self = Self {
            lines: self.lines,
            level_triggered: self.level_triggered,
            ..Self::default()
        };
        self.initialising = 1;
        self.needs_icw4 = icw1 & 1;
        self.single = icw1 & 2;
    }

    fn command(&mut self, value: u8) {
        if value & 0x10 != 0 {
            return self.initialise(value);
        }
        if value & 0x08 != 0 {
            if value & 0x04 != 0 {
                self.poll = 1;
            }
            if value & 0x02 != 0 {
                self.read_service = value & 1;
            }
            if value & 0x40 != 0 {
                self.special_mask = (value >> 5) & 1;
            }
            return;
        }
        match value >> 5 {
            0 | 4 => self.rotate_on_auto_end = value >> 7,
            operation @ (1 | 3 | 5 | 7) => {
                // The end of a named IRQ, or of the foremost one.
                let irq = match self.priority(self.service) {
                    _ if operation & 2 != 0 => value & 7,
                    8 => return,
                    foremost => (foremost + self.first) & 7,
                };
                self.service &= !(1 << irq);
                if operation & 4 != 0 {
                    self.first = (irq + 1) & 7;
                }
            }
            6 => self.first = (value + 1) & 7,
            _ => {}
        }
    }

    fn data(&mut self, value: u8) {
        let last = if self.needs_icw4 != 0 { 3 } else { 0 };
        match self.initialising {
            0 => self.mask = value,
            1 => {
                self.vector_base = value & 0xF8;
                self.initialising = if self.single != 0 { last } else { 2 };
            }
            2 => self.initialising = last,
            _ => {
                self.special_nested = (value >> 4) & 1;
                self.auto_end = (value >> 1) & 1;
                self.initialising = 0;
            }
        }
    }

    fn read(&mut self, command_port: bool, cascaded: bool) -> u8 {
        if self.poll != 0 {
            self.poll = 0;
            return match self.pending(cascaded) {
                Some(irq) => {
                    self.acknowledge(irq);
                    irq | 0x80
                }
                None => 0,
            };
        }
        match (command_port, self.read_service != 0) {
            (false, _) => self.mask,
            (true, true) => self.service,
            (true, false) => self.requests,
        }
    }
}

/// Both controllers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
pub struct Pic {
    first: Chip,
    second: Chip,
}

impl Default for Pic {
    /// The state that firmware leaves, vectors 0x08 and 0x70, but with everything masked: this machine has no firmware
    /// that could serve an interrupt.
    fn default() -> Self {
        let chip = |vector_base| Chip {
            vector_base,
            mask: 0xFF,
            ..Chip::default()
        };
        Self {
            first: chip(0x08),
            second: chip(0x70),
        }
    }
}

impl Pic {
    /// Sets the level of a device's interrupt line.
    pub fn set_line(&mut self, irq: u8, high: bool) {
        if irq < 8 {
            self.first.set_line(irq, high);
        } else {
            self.second.set_line(irq - 8, high);
            self.cascade();
        }
    }

    fn cascade(&mut self) {
        let high = self.second.pending(false).is_some();
        self.first.set_line(CASCADE, high);
    }

    /// Whether an IRQ of the first controller is masked there.
    #[must_use]
    pub fn masked(&self, irq: u8) -> bool {
        self.first.mask & (1 << (irq & 7)) != 0
    }

    /// Whether the processor's interrupt pin is high.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.first.pending(true).is_some()
    }

    /// Acknowledges the interrupt as the processor does, and returns its vector. A withdrawn request reads as IRQ 7.
    pub fn acknowledge(&mut self) -> u8 {
        let Some(irq) = self.first.pending(true) else {
            return self.first.vector_base.wrapping_add(7);
        };
        self.first.acknowledge(irq);
        if irq != CASCADE {
            return self.first.vector_base.wrapping_add(irq);
        }
        let irq = self.second.pending(false);
        if let Some(irq) = irq {
            self.second.acknowledge(irq);
        }
        self.cascade();
        self.second.vector_base.wrapping_add(irq.unwrap_or(7))
    }

    /// Handles the guest's write to a controller's port.
    pub fn write(&mut self, port: u16, value: u8) {
        match port {
            0x20 => self.first.command(value),
            0x21 => self.first.data(value),
            0xA0 => self.second.command(value),
            0xA1 => self.second.data(value),
            // IRQs 0, 1, 2, 8 and 13 cannot be level triggered.
            0x4D0 => self.first.level_triggered = value & 0xF8,
            _ => self.second.level_triggered = value & 0xDE,
        }
        self.cascade();
    }

    /// Handles the guest's read of a controller's port.
    pub fn read(&mut self, port: u16) -> u8 {
        let value = match port {
            0x20 | 0x21 => self.first.read(port == 0x20, true),
            0xA0 | 0xA1 => self.second.read(port == 0xA0, false),
            0x4D0 => self.first.level_triggered,
            _ => self.second.level_triggered,
        };
        self.cascade();
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unmasked() -> Pic {
        let mut pic = Pic::default();
        pic.write(0x21, 0);
        pic.write(0xA1, 0);
        pic
    }

    #[test]
    fn a_masked_request_waits_for_its_unmasking() {
        let mut pic = Pic::default();
        pic.set_line(4, true);
        assert!(!pic.pending());
        pic.write(0x21, 0xEF);
        assert_eq!(pic.acknowledge(), 0x0C);
    }

    #[test]
    fn a_line_that_stays_high_interrupts_once() {
        let mut pic = unmasked();
        pic.set_line(4, true);
        assert_eq!(pic.acknowledge(), 0x0C);
        pic.write(0x20, 0x20);
        pic.set_line(4, true);
        assert!(!pic.pending());
        pic.set_line(4, false);
        pic.set_line(4, true);
        assert!(pic.pending());
    }

    #[test]
    fn a_lower_priority_waits_for_the_end_of_a_higher_one() {
        let mut pic = unmasked();
        pic.set_line(0, true);
        assert_eq!(pic.acknowledge(), 0x08);
        pic.set_line(4, true);
        assert!(!pic.pending());
        pic.write(0x20, 0x20);
        assert_eq!(pic.acknowledge(), 0x0C);
    }

    #[test]
    fn the_second_controller_arrives_through_the_first() {
        let mut pic = unmasked();
        pic.set_line(8, true);
        assert_eq!(pic.acknowledge(), 0x70);
    }

    #[test]
    fn initialisation_sets_vectors_and_clears_the_mask() {
        let mut pic = Pic::default();
        for (port, value) in [(0x20, 0x11), (0x21, 0x40), (0x21, 0x04), (0x21, 0x01)] {
            pic.write(port, value);
        }
        assert_eq!(pic.read(0x21), 0);
        pic.set_line(4, true);
        assert_eq!(pic.acknowledge(), 0x44);
    }
}
