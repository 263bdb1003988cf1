// SPDX-License-Identifier: Apache-2.0
//! The 16550A serial port at 0x3F8.
//!
//! Behaves as QEMU's `hw/char/serial.c`: the interrupt line is derived from the registers after every access, receive
//! and transmit FIFOs hold 16 bytes, and a sent byte leaves at once. Bytes that do not fit into the receive FIFO wait
//! on the wire, up to [`MAX_WIRE`].

use std::collections::VecDeque;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The most bytes that wait for one guest; further bytes are lost, as on a real line.
pub const MAX_WIRE: usize = 16 << 10;

const IER_RECEIVE: u8 = 0x01;
const IER_TRANSMIT: u8 = 0x02;
const LCR_DIVISOR: u8 = 0x80;
const MCR_LOOPBACK: u8 = 0x10;
const FCR_ENABLE: u8 = 0x01;
const FCR_CLEAR_RECEIVE: u8 = 0x02;

/// The registers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable)]
pub struct Registers {
    divisor_low: u8,
    divisor_high: u8,
    interrupt_enable: u8,
    fifo_control: u8,
    line_control: u8,
    modem_control: u8,
    scratch: u8,
    /// The transmitter became empty, and its interrupt is not acknowledged.
    transmitter_empty: u8,
}

/// The port.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Uart {
    /// The registers.
    pub registers: Registers,
    /// Bytes in the receive FIFO and, behind them, on the wire.
    pub received: VecDeque<u8>,
}

impl Uart {
    /// Receives bytes on the line.
    pub fn receive(&mut self, bytes: &[u8]) {
        let room = MAX_WIRE.saturating_sub(self.received.len());
        self.received.extend(bytes.iter().take(room));
    }

    /// The state of the interrupt line.
    #[must_use]
    pub fn interrupt(&self) -> bool {
        self.cause() != 0x01
    }

    /// Interrupt identification, without the FIFO bits. 0x01: none.
    fn cause(&self) -> u8 {
        let r = &self.registers;
        if r.interrupt_enable & IER_RECEIVE != 0 && !self.received.is_empty() {
            let trigger = match (r.fifo_control & FCR_ENABLE, r.fifo_control >> 6) {
                (0, _) | (_, 0) => 1,
                (_, 1) => 4,
                (_, 2) => 8,
                _ => 14,
            };
            // Fewer than the trigger level raise the time-out interrupt, here without the wait.
            let is_reached = self.received.len() >= trigger;
            return if is_reached { 0x04 } else { 0x0C };
        }
        if r.interrupt_enable & IER_TRANSMIT != 0 && r.transmitter_empty != 0 {
            return 0x02;
        }
        0x01
    }

    /// Handles the guest's write to a register. Returns whether the interrupt line fell in between, so that a
    /// controller with edge triggering gets an edge.
    pub fn write(&mut self, register: u16, value: u8, output: &mut Vec<u8>) -> bool {
        let r = &mut self.registers;
        let divisor = r.line_control & LCR_DIVISOR != 0;
        match (register, divisor) {
            (0, true) => r.divisor_low = value,
            (1, true) => r.divisor_high = value,
            (0, false) => {
                if r.modem_control & MCR_LOOPBACK != 0 {
                    self.receive(&[value]);
                } else {
                    output.push(value);
                }
                self.registers.transmitter_empty = 1;
                return self.cause() == 0x02;
            }
            (1, false) => {
                let enabling = value & !r.interrupt_enable & IER_TRANSMIT != 0;
                r.interrupt_enable = value & 0x0F;
                if enabling {
                    r.transmitter_empty = 1;
                }
            }
            (2, _) => {
                if value & FCR_CLEAR_RECEIVE != 0 || (value ^ r.fifo_control) & FCR_ENABLE != 0 {
                    let has_fifo = r.fifo_control & FCR_ENABLE != 0;
                    let size = if has_fifo { 16 } else { 1 };
                    self.received.drain(..size.min(self.received.len()));
                }
                self.registers.fifo_control = value & 0xC9;
            }
            (3, _) => r.line_control = value,
            (4, _) => r.modem_control = value & 0x1F,
            (7, _) => r.scratch = value,
            _ => {}
        }
        false
    }

    /// Handles the guest's read of a register. Also returns whether the interrupt line fell in between.
    pub fn read(&mut self, register: u16) -> (u8, bool) {
        let divisor = self.registers.line_control & LCR_DIVISOR != 0;
        let r = &mut self.registers;
        let value = match (register, divisor) {
            (0, true) => r.divisor_low,
            (1, true) => r.divisor_high,
            (0, false) => {
                let byte = self.received.pop_front().unwrap_or(0);
                // Without FIFO each byte is a new arrival, with its own edge.
                let fell = r.fifo_control & FCR_ENABLE == 0 || self.received.is_empty();
                return (byte, fell);
            }
            (1, false) => r.interrupt_enable,
            (2, _) => {
                let cause = self.cause();
                if cause == 0x02 {
                    self.registers.transmitter_empty = 0;
                }
                let has_fifo = self.registers.fifo_control & FCR_ENABLE != 0;
                cause | if has_fifo { 0xC0 } else { 0 }
            }
            (3, _) => r.line_control,
            (4, _) => r.modem_control,
            // Transmitter and its holding register are always empty.
            (5, _) => 0x60 | u8::from(!self.received.is_empty()),
            (6, _) if r.modem_control & MCR_LOOPBACK != 0 => {
                let m = r.modem_control;
                (m & 0x0C) << 4 | (m & 0x02) << 3 | (m & 0x01) << 5
            }
            // Carrier, data set ready, clear to send.
            (6, _) => 0xB0,
            _ => r.scratch,
        };
        (value, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(fifo_control: u8) -> Uart {
        let mut uart = Uart::default();
        let mut output = Vec::new();
        uart.write(2, fifo_control, &mut output);
        uart.write(1, IER_RECEIVE, &mut output);
        uart
    }

    #[test]
    fn fewer_bytes_than_the_trigger_level_identify_as_a_time_out() {
        let mut uart = ready(0x47);
        uart.receive(b"abc");
        assert_eq!(uart.read(2).0, 0xCC);
        uart.receive(b"d");
        assert_eq!(uart.read(2).0, 0xC4);
    }

    #[test]
    fn an_empty_port_reads_zero_and_raises_nothing() {
        let mut uart = ready(0x07);
        assert_eq!(uart.read(0).0, 0);
        assert!(!uart.interrupt());
    }

    #[test]
    fn reading_the_identification_acknowledges_the_transmitter() {
        let mut uart = Uart::default();
        let mut output = Vec::new();
        uart.write(1, IER_TRANSMIT, &mut output);
        assert_eq!(uart.read(2).0, 0x02);
        assert!(!uart.interrupt());
        uart.write(0, b'x', &mut output);
        assert!(uart.interrupt());
        assert_eq!(output, b"x");
    }

    #[test]
    fn what_nobody_takes_is_capped() {
        let mut uart = ready(0x07);
        uart.receive(&vec![0; MAX_WIRE + 1]);
        assert_eq!(uart.received.len(), MAX_WIRE);
    }

    #[test]
    fn loopback_comes_back_and_does_not_leave() {
        let mut uart = ready(0x07);
        let mut output = Vec::new();
        uart.write(4, MCR_LOOPBACK, &mut output);
        uart.write(0, b'x', &mut output);
        assert!(output.is_empty());
        assert_eq!(uart.read(0).0, b'x');
    }
}
