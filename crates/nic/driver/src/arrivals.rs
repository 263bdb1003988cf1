// SPDX-License-Identifier: Apache-2.0
//! Open-loop arrival processes of packets.

use std::io;
use std::path::{Path, PathBuf};

use vtax_core::SplitMix64;
use vtax_nic::hold::Nanos;

/// The reason why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the trace {}: {}", .0.display(), .1)]
    Read(PathBuf, io::Error),
    /// The text of the file is no trace.
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, Box<TraceError>),
    /// A line, by number and text, is no time in µs.
    #[error("line {0}: '{1}' is no time in µs")]
    NoTime(usize, String),
    /// A time, by line and text, is before the one above it.
    #[error("line {0}: times must rise, {1} does not")]
    Falls(usize, String),
    /// No time is after 0.
    #[error("a trace needs at least one time after 0")]
    Empty,
}

/// An arrival process.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Memoryless, at a mean rate in packets/s.
    Poisson {
        /// Packets/s.
        rate: f64,
    },
    /// A constant rate.
    Constant {
        /// Packets/s.
        rate: f64,
    },
    /// A Poisson process while on, silence while off.
    OnOff {
        /// Packets/s while on.
        rate: f64,
        /// The duration of the on phase.
        on: Nanos,
        /// The duration of the off phase.
        off: Nanos,
    },
    /// Back-to-back packets at the speed of a link, then a pause: as `iperf` sends at a low rate.
    Bursts {
        /// Packets in a burst.
        packets: u32,
        /// Time between two packets of a burst.
        spacing: Nanos,
        /// Time between the starts of two bursts.
        period: Nanos,
    },
    /// The given times in ns from the start, repeated without end.
    Trace(Vec<u64>),
}

impl Arrivals {
    /// 10 Mb/s in frames of 1500 bytes, evenly spaced: 833 packets/s.
    pub const TEN_MEGABITS: Self = Self::Constant {
        rate: 10e6 / 8.0 / 1500.0,
    };

    /// 10 Mb/s in bursts of 128 KiB on a 1 Gb/s link, as `iperf3 -b 10M` sends TCP.
    pub const TEN_MEGABITS_IN_BURSTS: Self = Self::Bursts {
        packets: 87,
        spacing: Nanos(12_000),
        period: Nanos(104_400_000),
    };

    /// A trace file: one time a line, in µs from the start, in rising order; `#` starts a comment.
    ///
    /// # Errors
    /// When the file cannot be read or is no trace.
    pub fn from_file(path: &Path) -> Result<Self, TraceError> {
        let path = path.to_owned();
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                Self::from_trace(&text).map_err(|cause| TraceError::File(path, Box::new(cause)))
            }
            Err(cause) => Err(TraceError::Read(path, cause)),
        }
    }

    /// Parses the text of a trace file, as described at [`Arrivals::from_file`].
    ///
    /// # Errors
    /// When a line is no time, a time is before the one above it, or no time is after 0.
    pub fn from_trace(text: &str) -> Result<Self, TraceError> {
        let mut times: Vec<u64> = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default().trim().to_owned();
            if text.is_empty() {
                continue;
            }
            let micros = text.parse().ok();
            let Some(micros) = micros.filter(|micros: &f64| micros.is_finite() && *micros >= 0.0)
            else {
                return Err(TraceError::NoTime(line, text));
            };
            let time = (micros * 1e3) as u64;
            if times.last().is_some_and(|last| *last > time) {
                return Err(TraceError::Falls(line, text));
            }
            times.push(time);
        }
        if times.last().is_none_or(|last| *last == 0) {
            return Err(TraceError::Empty);
        }
        Ok(Self::Trace(times))
    }

    /// The arrival times from zero on, without end. The same seed gives the same times.
    pub fn times(&self, seed: u64) -> Times<'_> {
        Times {
            arrivals: self,
            random: SplitMix64::new(seed),
            at: 0.0,
            count: 0,
        }
    }
}

/// The iterator of [`Arrivals::times`].
#[derive(Clone, Debug)]
pub struct Times<'a> {
    arrivals: &'a Arrivals,
    random: SplitMix64,
    /// The last arrival in ns. Its error stays below 1 ns for months.
    at: f64,
    count: u64,
}

impl Iterator for Times<'_> {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        let count = self.count;
        self.count += 1;
        self.at = match self.arrivals {
            Arrivals::Poisson { rate } => self.at + exponential(&mut self.random, 1e9 / rate),
            Arrivals::Constant { rate } => (count + 1) as f64 * 1e9 / rate,
            Arrivals::OnOff { rate, on, off } => {
                // The process advances only in on phases, by `on` in each period of the clock.
                let (on, period) = (on.0 as f64, (on.0 + off.0) as f64);
                let running = (self.at / period).floor() * on + (self.at % period).min(on);
                let running = running + exponential(&mut self.random, 1e9 / rate);
                (running / on).floor() * period + running % on
            }
            Arrivals::Bursts {
                packets,
                spacing,
                period,
            } => {
                let (burst, packet) = (count / u64::from(*packets), count % u64::from(*packets));
                (burst * period.0 + packet * spacing.0) as f64
            }
            Arrivals::Trace(times) => {
                let length = times.len().max(1) as u64;
                let period = times.last().copied().unwrap_or(1);
                let index = usize::try_from(count % length).unwrap_or(0);
                let offset = times.get(index).copied().unwrap_or(0);
                (count / length * period + offset) as f64
            }
        };
        Some(Nanos(self.at as u64))
    }
}

/// An exponentially distributed value.
fn exponential(random: &mut SplitMix64, mean: f64) -> f64 {
    -mean * (1.0 - random.uniform()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn in_a_second(arrivals: &Arrivals) -> usize {
        arrivals.times(7).take_while(|at| *at < SECOND).count()
    }

    #[test]
    fn a_seed_keeps_its_arrivals_for_ever() {
        let arrivals = Arrivals::Poisson { rate: 1_000.0 };
        let first: Vec<u64> = arrivals.times(7).take(4).map(|at| at.0).collect();
        assert_eq!(first, [494_017, 510_948, 2_821_169, 3_695_670]);
    }

    #[test]
    fn rates_are_kept() {
        let poisson = in_a_second(&Arrivals::Poisson { rate: 50_000.0 });
        assert!((49_000..51_000).contains(&poisson), "{poisson}");
        assert_eq!(in_a_second(&Arrivals::Constant { rate: 1_000.0 }), 999);
        let on_off = Arrivals::OnOff {
            rate: 100_000.0,
            on: Nanos::from_micros(10_000),
            off: Nanos::from_micros(30_000),
        };
        let count = in_a_second(&on_off);
        assert!((24_000..26_000).contains(&count), "{count}");
        assert!(
            on_off
                .times(7)
                .take(50_000)
                .all(|at| at.0 % 40_000_000 <= 10_000_000)
        );
        let bits = in_a_second(&Arrivals::TEN_MEGABITS_IN_BURSTS) * 1500 * 8;
        assert!((9_500_000..10_600_000).contains(&bits), "{bits}");
    }

    #[test]
    fn times_rise_and_repeat_with_the_seed() {
        for arrivals in [
            Arrivals::Poisson { rate: 1e5 },
            Arrivals::TEN_MEGABITS_IN_BURSTS,
            Arrivals::OnOff {
                rate: 1e5,
                on: Nanos(50_000),
                off: Nanos(70_000),
            },
            Arrivals::from_trace("1 # first\n\n2.5\n4").unwrap(),
        ] {
            let times: Vec<_> = arrivals.times(1).take(1_000).collect();
            assert!(times.is_sorted(), "{arrivals:?}");
            assert!(arrivals.times(1).take(1_000).eq(times));
        }
    }

    #[test]
    fn a_bad_trace_says_which_line() {
        let wrong = |text| Arrivals::from_trace(text).unwrap_err().to_string();
        assert!(wrong("1\nx").contains("line 2"));
        assert!(wrong("2\n1").contains("rise"));
        assert!(Arrivals::from_trace("# nothing").is_err());
        assert!(Arrivals::from_trace("NaN").is_err());
    }
}
