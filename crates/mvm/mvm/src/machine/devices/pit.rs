// SPDX-License-Identifier: Apache-2.0
//! The 8254 timer: three channels at 1,193,182 Hz, computed from the clock on access.
//!
//! Source: Intel 8254 data sheet. Binary counting only; channel 0 drives IRQ 0. The count is not stepped: a channel
//! stores the time of its load, so that elapsed time costs nothing.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Counts a second.
const HERTZ: u64 = 1_193_182;
const SECOND: u64 = 1_000_000_000;

fn counts(ns: u64) -> u64 {
    // Split, so that 2^64 ns do not overflow.
    (ns / SECOND) * HERTZ + (ns % SECOND) * HERTZ / SECOND
}

/// The first ns at which [`counts`] is at least `count`.
fn nanoseconds(count: u64) -> u64 {
    (count / HERTZ) * SECOND + ((count % HERTZ) * SECOND).div_ceil(HERTZ)
}

/// One channel. Flags are bytes, so that the struct is plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable)]
pub struct Channel {
    /// The time at which the count was loaded, in ns.
    loaded: u64,
    /// Edges of the output that were reported since then.
    reported: u64,
    /// Counts from one edge to the next, 1 to 65,536. 0: not loaded since the mode was set.
    divisor: u32,
    latch: u16,
    mode: u8,
    /// 1 low byte, 2 high byte, 3 low then high.
    access: u8,
    /// The low byte of a count whose high byte has not been written yet.
    low: u8,
    writing_high: u8,
    reading_high: u8,
    latched: u8,
    status: u8,
    status_latched: u8,
    unused: [u8; 2],
}

impl Channel {
    fn periodic(&self) -> bool {
        matches!(self.mode, 2 | 3)
    }

    /// Edges of the output from loading until `now`.
    fn edges(&self, now: u64) -> u64 {
        if self.divisor == 0 {
            return 0;
        }
        let edges = counts(now.saturating_sub(self.loaded)) / u64::from(self.divisor);
        if self.periodic() { edges } else { edges.min(1) }
    }

    fn count(&self, now: u64) -> u16 {
        if self.divisor == 0 {
            return 0;
        }
        let passed = counts(now.saturating_sub(self.loaded));
        let divisor = u64::from(self.divisor);
        let left = match self.mode {
            2 => divisor - passed % divisor,
            // Mode 3 counts by two, twice a period.
            3 => divisor - 2 * passed % divisor,
            _ => divisor.wrapping_sub(passed),
        };
        (left & 0xFFFF) as u16
    }

    fn output(&self, now: u64) -> bool {
        if self.divisor == 0 {
            return self.mode != 0;
        }
        let passed = counts(now.saturating_sub(self.loaded));
        match self.mode {
            3 => passed % u64::from(self.divisor) < u64::from(self.divisor).div_ceil(2),
            2 => true,
            _ => passed >= u64::from(self.divisor),
        }
    }

    /// Latches the count, unless one is latched already.
    fn hold(&mut self, now: u64) {
        if self.latched == 0 {
            self.latch = self.count(now);
            self.latched = 1;
        }
    }

    fn load(&mut self, count: u16, now: u64) {
        self.divisor = if count == 0 { 65_536 } else { u32::from(count) };
        self.loaded = now;
        self.reported = 0;
    }
}

/// The timer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
pub struct Pit {
    channels: [Channel; 3],
}

impl Default for Pit {
    /// The state that firmware leaves: channel 0 ticks 18.2 times a second.
    fn default() -> Self {
        let channel = Channel {
            divisor: 65_536,
            mode: 3,
            access: 3,
            ..Channel::default()
        };
        Self {
            channels: [channel; 3],
        }
    }
}

impl Pit {
    /// Whether channel 0 had an edge since the last call. Several missed ticks count as one.
    pub fn fired(&mut self, now: u64) -> bool {
        let [channel, ..] = &mut self.channels;
        let edges = channel.edges(now);
        let fired = edges > channel.reported;
        channel.reported = edges;
        fired
    }

    /// The time of channel 0's next edge, in ns.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        let [channel, ..] = &self.channels;
        if channel.divisor == 0 || (!channel.periodic() && channel.reported > 0) {
            return None;
        }
        let next = (channel.reported + 1).saturating_mul(u64::from(channel.divisor));
        Some(channel.loaded.saturating_add(nanoseconds(next)))
    }

    /// Handles the guest's write to one of the ports 0x40 to 0x43.
    pub fn write(&mut self, port: u16, value: u8, now: u64) {
        if port & 3 == 3 {
            return self.control(value, now);
        }
        let Some(channel) = self.channels.get_mut(usize::from(port & 3)) else {
            return;
        };
        match channel.access {
            1 => channel.load(u16::from(value), now),
            2 => channel.load(u16::from(value) << 8, now),
            _ if channel.writing_high == 0 => {
                channel.low = value;
                channel.writing_high = 1;
            }
            _ => {
                channel.writing_high = 0;
                channel.load(u16::from_le_bytes([channel.low, value]), now);
            }
        }
    }

    fn control(&mut self, value: u8, now: u64) {
        if value >> 6 == 3 {
            for (i, channel) in self.channels.iter_mut().enumerate() {
                if value & (2 << i) == 0 {
                    continue;
                }
                if value & 0x20 == 0 {
                    channel.hold(now);
                }
                if value & 0x10 == 0 && channel.status_latched == 0 {
                    channel.status = u8::from(channel.output(now)) << 7
                        | channel.access << 4
                        | channel.mode << 1;
                    channel.status_latched = 1;
                }
            }
            return;
        }
        let Some(channel) = self.channels.get_mut(usize::from(value >> 6)) else {
            return;
        };
        let access = (value >> 4) & 3;
        if access == 0 {
            return channel.hold(now);
        }
        let mode = (value >> 1) & 7;
        *channel = Channel {
            access,
            // Modes 6 and 7 are 2 and 3.
            mode: if mode > 5 { mode - 4 } else { mode },
            loaded: now,
            ..Channel::default()
        };
    }

    /// Handles the guest's read of one of the ports 0x40 to 0x43.
    pub fn read(&mut self, port: u16, now: u64) -> u8 {
        let Some(channel) = self.channels.get_mut(usize::from(port & 3)) else {
            return 0xFF;
        };
        if channel.status_latched != 0 {
            channel.status_latched = 0;
            return channel.status;
        }
        let count = if channel.latched != 0 {
            channel.latch
        } else {
            channel.count(now)
        };
        let [low, high] = count.to_le_bytes();
        let has_two = !matches!(channel.access, 1 | 2);
        let is_first_of_two = has_two && channel.reading_high == 0;
        if is_first_of_two {
            // Both halves of an unlatched read come from one count, so that the value is consistent.
            channel.latch = count;
        }
        channel.latched = u8::from(is_first_of_two);
        channel.reading_high = channel.latched;
        if is_first_of_two || channel.access == 1 {
            low
        } else {
            high
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(pit: &mut Pit, control: u8, count: u16, now: u64) {
        let [low, high] = count.to_le_bytes();
        pit.write(0x43, control, now);
        pit.write(0x40, low, now);
        pit.write(0x40, high, now);
    }

    #[test]
    fn one_shot_fires_once_and_never_again() {
        let mut pit = Pit::default();
        program(&mut pit, 0x30, 11_932, 5);
        let deadline = pit.deadline().unwrap();
        assert!(!pit.fired(deadline - 1));
        assert!(pit.fired(deadline));
        assert_eq!(pit.deadline(), None);
        assert!(!pit.fired(u64::MAX));
    }

    #[test]
    fn a_periodic_timer_fires_on_every_deadline_and_missed_ticks_are_one() {
        let mut pit = Pit::default();
        program(&mut pit, 0x34, 11_932, 0);
        for _ in 0..1000 {
            let deadline = pit.deadline().unwrap();
            assert!(!pit.fired(deadline - 1));
            assert!(pit.fired(deadline));
        }
        assert!(pit.fired(100 * SECOND));
        assert!(!pit.fired(100 * SECOND));
        assert!(pit.deadline().unwrap() > 100 * SECOND);
    }

    #[test]
    fn the_count_runs_down_and_a_latch_holds_it() {
        let mut pit = Pit::default();
        program(&mut pit, 0x34, 10_000, 0);
        let read = |pit: &mut Pit, now| {
            u16::from_le_bytes([pit.read(0x40, now), pit.read(0x40, now + SECOND)])
        };
        assert_eq!(read(&mut pit, 0), 10_000);
        pit.write(0x43, 0x00, 1_000_000);
        assert_eq!(read(&mut pit, 2_000_000), 10_000 - 1193);
    }
}
