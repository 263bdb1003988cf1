// SPDX-License-Identifier: Apache-2.0
//! The common parts of vtax's load generators: the arrival schedule, non-blocking connections, the open loop, and
//! the report.
//!
//! Open loop: requests are due at times that are fixed in advance, and the latency of each counts from the time it
//! was *due*, not from the time that a connection was free to send it. A stall of the service therefore shows in
//! every request that was due meanwhile (no coordinated omission; Tene, "How NOT to Measure Latency", 2015).
//!
//! There is one thread, one epoll instance, and connections are kept. The result is a line of JSON on
//! standard output, a [`Report`]; with `--ramp` there is one at the end of each rate.

mod arrivals;
pub(crate) mod connection;
pub(crate) mod open;
pub(crate) mod pool;
pub(crate) mod report;

pub use arrivals::Arrival;
pub use report::{Errors, Report, Summary};

use serde::Serialize;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;
use vtax_args::time::seconds as seconds_of;
use vtax_host::HostError;

/// The requests of a protocol and the heads of its answers. A connection carries one request at a time.
pub trait Protocol {
    /// Writes the next request.
    fn request(&mut self, out: &mut Vec<u8>);

    /// Reads the head of an answer; `None` while it is incomplete.
    ///
    /// # Errors
    /// When it is not a valid head.
    fn head(&self, bytes: &[u8]) -> io::Result<Option<Head>>;
}

/// The head of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Its own length in bytes.
    pub length: usize,
    /// Length of the body in bytes.
    pub body: u64,
    /// The error that the server answered, such as `status 503`.
    pub refused: Option<String>,
    /// Whether the server closes the connection after it.
    pub closes: bool,
}

/// The server, the load and its times.
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[group(skip)]
pub struct Arguments {
    /// Server address and port, such as `10.0.0.2:80` or `[fd00::2]:80`
    #[arg(long)]
    pub address: SocketAddr,
    /// Most connections at once
    #[arg(long, default_value_t = 100)]
    pub connections: u32,
    /// The time of load before the measured part
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = seconds_of)]
    pub warmup: f64,
    /// The time of the measured part
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = seconds_of)]
    pub duration: f64,
    /// Open loop: requests per second
    #[arg(long, default_value_t = 1000.0)]
    pub rate: f64,
    /// Open loop: several rates, one after the other, each with its warm-up and measured part
    #[arg(long, value_delimiter = ',', conflicts_with = "rate")]
    pub ramp: Vec<f64>,
    /// The time of load before the measured part of every rate of a ramp but the first [default: as --warmup]
    #[arg(long, value_name = "TIME", requires = "ramp", value_parser = seconds_of)]
    pub settle: Option<f64>,
    /// Open loop: how the requests are spaced
    #[arg(long, value_enum, default_value_t = Arrival::Poisson)]
    pub arrival: Arrival,
    /// Open loop: seed of all that is random, the same for every rate
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The time after which a request (open loop) or a silent server (closed loop) is given up
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = seconds_of)]
    pub timeout: f64,
}

impl Arguments {
    /// The rates of an open loop, in order.
    fn rates(&self) -> Vec<f64> {
        match self.ramp.as_slice() {
            [] => vec![self.rate],
            ramp => ramp.to_vec(),
        }
    }

    /// Runs one rate after the other, and prints a report at the end of each. The next rate begins with that
    /// line and shares nothing with the last one.
    ///
    /// # Errors
    /// The error of a run, or, at the end, an error when no run had an answer.
    pub(crate) fn each_rate(
        &self,
        run: impl Fn(Self) -> Result<Report, HostError>,
    ) -> Result<(), HostError> {
        let mut warmup = self.warmup;
        let mut unanswered = Some(String::new());
        for rate in self.rates() {
            let report = run(Self {
                rate,
                warmup,
                ..self.clone()
            });
            if let Ok(report) = &report {
                unanswered = unanswered.and(report.unanswered());
            }
            print(report)?;
            warmup = self.settle.unwrap_or(self.warmup);
        }
        match unanswered {
            None => Ok(()),
            Some(detail) => Err(HostError::Protocol {
                peer: self.address.to_string(),
                detail,
            }),
        }
    }

    pub(crate) fn check(&self) -> Result<(), HostError> {
        let seconds = [
            ("--warmup", self.warmup),
            ("--settle", self.settle.unwrap_or(0.0)),
            ("--duration", self.duration),
            ("--timeout", self.timeout),
        ];
        for (name, value) in seconds {
            if !(0.0..=86_400.0).contains(&value) {
                return wrong(format!("{name} {value} is not between 0 and 86400 seconds"));
            }
        }
        if self.timeout == 0.0 {
            return wrong("--timeout 0 gives up on every request; give a longer one".to_owned());
        }
        let name = if self.ramp.is_empty() {
            "--rate"
        } else {
            "--ramp"
        };
        for rate in self.rates() {
            if !(0.001..=10_000_000.0).contains(&rate) {
                return wrong(format!(
                    "{name} {rate} is not between 0.001 and 10000000 requests per second"
                ));
            }
        }
        if !(1..=60_000).contains(&self.connections) {
            return wrong(format!(
                "--connections {} is not between 1 and 60000",
                self.connections
            ));
        }
        Ok(())
    }

    /// A run without time has nothing to measure.
    pub(crate) fn check_duration(&self) -> Result<(), HostError> {
        if self.duration == 0.0 {
            return wrong("--duration 0 measures nothing; give a longer one".to_owned());
        }
        Ok(())
    }
}

/// An error about an argument.
pub(crate) fn wrong<T>(what: String) -> Result<T, HostError> {
    Err(HostError::Invalid {
        what: "the command line of `vtax load`".to_owned(),
        problem: what,
    })
}

/// Prints the report of a run as one line of JSON on standard output; on failure `{"error": …}`, so that the
/// reader of the output gets the reason too.
///
/// # Errors
/// The failure of the run, or of printing.
pub(crate) fn print<T: Serialize>(outcome: Result<T, HostError>) -> Result<(), HostError> {
    let line = match &outcome {
        Ok(report) => serde_json::to_string(report),
        Err(cause) => serde_json::to_string(&serde_json::json!({ "error": cause.to_string() })),
    };
    let mut line =
        line.map_err(|cause| HostError::file("write", "standard output")(cause.into()))?;
    line.push('\n');
    vtax_core::terminal::data()
        .write_all(line.as_bytes())
        .map_err(HostError::file("write", "standard output"))?;
    outcome.map(|_| ())
}

/// Sets the timer slack: by default the kernel may wake sleepers 50 µs late, which is as much as the latencies
/// measured here. Where the kernel refuses, the report's `lag` shows it.
pub(crate) fn wake_exactly() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Returns the resolution of the timers that wake a generator, in seconds. The kernel reports that of its timers for the
/// monotonic clock, whose readings are finer.
pub(crate) fn timer_resolution() -> Option<f64> {
    let resolution = rustix::time::clock_getres(rustix::time::ClockId::Monotonic);
    let time = Duration::try_from(resolution).ok()?;
    Some(time.as_secs_f64())
}

/// Seconds, checked against bounds, as nanoseconds.
pub(crate) fn nanoseconds(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds.clamp(0.0, 1e9)).as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds as seconds.
pub(crate) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
