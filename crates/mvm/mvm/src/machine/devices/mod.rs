// SPDX-License-Identifier: Apache-2.0
//! The devices of a micro VM and their ports.

mod pic;
mod pit;
mod uart;

pub use pic::Pic;
pub use pit::{Channel, Pit};
pub use uart::{MAX_WIRE, Uart};

/// IRQ of the timer.
const TIMER_IRQ: u8 = 0;
/// IRQ of the first serial port.
const SERIAL_IRQ: u8 = 4;

/// Interrupt controllers, timer and serial port, as firmware leaves them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Devices {
    /// The two interrupt controllers.
    pub pic: Pic,
    /// The timer.
    pub pit: Pit,
    /// The serial port at 0x3F8.
    pub uart: Uart,
    /// The guest asked the keyboard controller to reset the machine.
    pub reset: bool,
}

impl Devices {
    /// Advances the timer to `now` (ns) and raises its interrupt line if it ticked.
    pub fn advance(&mut self, now: u64) {
        if self.pit.fired(now) {
            // The line goes low for one tick before each edge, so that the edge counts even where the line stayed high.
            self.pic.set_line(TIMER_IRQ, false);
            self.pic.set_line(TIMER_IRQ, true);
        }
    }

    /// The time of the timer's next interrupt in ns; `None` if the guest masks it.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        if self.pic.masked(TIMER_IRQ) {
            None
        } else {
            self.pit.deadline()
        }
    }

    /// Receives bytes on the serial line.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.uart.receive(bytes);
        self.serial_line();
    }

    fn serial_line(&mut self) {
        self.pic.set_line(SERIAL_IRQ, self.uart.interrupt());
    }

    /// Handles the guest's write of a byte to a port. Serial output is appended to `output`.
    pub fn write(&mut self, port: u16, value: u8, now: u64, output: &mut Vec<u8>) {
        match port {
            0x20 | 0x21 | 0xA0 | 0xA1 | 0x4D0 | 0x4D1 => self.pic.write(port, value),
            0x40..=0x43 => {
                self.advance(now);
                self.pit.write(port, value, now);
            }
            0x64 if value == 0xFE => self.reset = true,
            0x3F8..=0x3FF => {
                if self.uart.write(port - 0x3F8, value, output) {
                    self.pic.set_line(SERIAL_IRQ, false);
                }
                self.serial_line();
            }
            _ => {}
        }
    }

    /// Handles the guest's read of a byte from a port. Ports without a device read as ones.
    pub fn read(&mut self, port: u16, now: u64) -> u8 {
        match port {
            0x20 | 0x21 | 0xA0 | 0xA1 | 0x4D0 | 0x4D1 => self.pic.read(port),
            0x40..=0x43 => self.pit.read(port, now),
            0x3F8..=0x3FF => {
                let (value, fell) = self.uart.read(port - 0x3F8);
                if fell {
                    self.pic.set_line(SERIAL_IRQ, false);
                }
                self.serial_line();
                value
            }
            _ => 0xFF,
        }
    }
}
