// SPDX-License-Identifier: Apache-2.0
//! The printed table and the boot rates in it.

use std::time::Duration;

/// The cost of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The decrease of available memory per guest, in bytes.
    pub bytes: f64,
    /// Guests booted per second, over all guests.
    pub rate: f64,
    /// Guests booted per second, over the first tenth.
    pub first_rate: f64,
}

pub fn row(what: &str, value: String, target: &str) {
    println!("{what:<44} {value:>22}   {target}");
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The times at which each tenth of the guests had booted.
pub struct Marks {
    count: u32,
    marks: Vec<(u32, Duration)>,
}

impl Marks {
    pub fn new(count: u32) -> Self {
        Self {
            count,
            marks: vec![(0, Duration::ZERO)],
        }
    }

    /// Records the time when a tenth of the guests is complete.
    pub fn note(&mut self, booted: u32, time: Duration) {
        let tenths = self.marks.len() as u32;
        if booted >= self.count || booted >= tenths * (self.count / 10).max(1) {
            self.marks.push((booted, time));
        }
    }

    /// Prints the rates, with `target` beside that of the first tenth. Returns the overall rate and that of the first
    /// tenth.
    pub fn print(&self, target: &str) -> (f64, f64) {
        let rate = |(from, t0): (u32, Duration), (to, t1): (u32, Duration)| {
            f64::from(to - from) / (t1 - t0).as_secs_f64()
        };
        let [first, second, .., last_but_one, last] = self.marks[..] else {
            return (0.0, 0.0);
        };
        let (overall, at_first, at_last) = (
            rate(first, last),
            rate(first, second),
            rate(last_but_one, last),
        );
        row(
            "booted, each by its own boot sector",
            format!("{:.1} s", last.1.as_secs_f64()),
            "",
        );
        row("boot rate, overall", format!("{overall:.0} /s"), "");
        row(
            "boot rate, first tenth",
            format!("{at_first:.0} /s"),
            target,
        );
        row(
            "boot rate, last tenth",
            format!("{at_last:.0} /s"),
            "≥ half of the first",
        );
        (overall, at_first)
    }
}
