//! The HTTP load generator: `vtax load http`.
//!
//! Open loop (`--rate`): requests are due at moments that are fixed beforehand, and the latency
//! of each is counted from the moment it was *due*, not from when a connection was free to send
//! it. A service that stalls therefore shows the stall in every request that was due meanwhile
//! (no coordinated omission; Tene, "How NOT to Measure Latency", 2015).
//!
//! Closed loop (`--closed`): every connection downloads the file again and again, for a time or
//! until a number of downloads is done.
//!
//! One thread, one epoll instance, keep-alive connections. The result is one JSON document on
//! standard output, a [`Report`].

mod arrivals;
mod closed;
mod connection;
mod open;
mod pool;
mod report;

pub use arrivals::Arrival;
pub use report::{Errors, Report, Summary};

use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;
use vtax_host::HostError;

/// What to ask of which server.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Arguments {
    /// Server address and port, such as 10.0.0.2:80 or [fd00::2]:80
    #[arg(long)]
    pub address: SocketAddr,
    /// Path of the file to request
    #[arg(long, default_value = "/")]
    pub path: String,
    /// Most connections at once
    #[arg(long, default_value_t = 100)]
    pub connections: u32,
    /// Seconds of load before the measured part
    #[arg(long, default_value_t = 0.0)]
    pub warmup: f64,
    /// Seconds of the measured part
    #[arg(long, default_value_t = 10.0)]
    pub duration: f64,
    /// Open loop: requests per second
    #[arg(long, default_value_t = 1000.0, conflicts_with = "closed")]
    pub rate: f64,
    /// Open loop: how the requests are spaced
    #[arg(long, value_enum, default_value_t = Arrival::Poisson)]
    pub arrival: Arrival,
    /// Open loop: seed of the Poisson arrivals
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Closed loop: download on every connection, again and again
    #[arg(long)]
    pub closed: bool,
    /// Closed loop: stop after this many downloads instead of after the duration
    #[arg(long, requires = "closed")]
    pub downloads: Option<u64>,
    /// Seconds after which a request (open loop) or a silent server (closed loop) is given up
    #[arg(long, default_value_t = 10.0)]
    pub timeout: f64,
}

impl Arguments {
    /// These arguments as they are written after `vtax load http`.
    pub fn to_flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        let mut flag = |name: &str, value: String| flags.extend([format!("--{name}"), value]);
        flag("address", self.address.to_string());
        flag("path", self.path.clone());
        flag("connections", self.connections.to_string());
        flag("warmup", self.warmup.to_string());
        flag("duration", self.duration.to_string());
        flag("timeout", self.timeout.to_string());
        if self.closed {
            if let Some(downloads) = self.downloads {
                flag("downloads", downloads.to_string());
            }
            flags.push("--closed".to_owned());
        } else {
            flag("rate", self.rate.to_string());
            flag("arrival", self.arrival.to_string());
            flag("seed", self.seed.to_string());
        }
        flags
    }

    fn check(&self) -> Result<(), HostError> {
        let wrong = |what: String| Err(HostError::Other(format!("vtax load http: {what}")));
        let seconds = [
            ("--warmup", self.warmup),
            ("--duration", self.duration),
            ("--timeout", self.timeout),
        ];
        for (name, value) in seconds {
            if !(0.0..=86_400.0).contains(&value) {
                return wrong(format!("{name} {value} is not between 0 and 86400 seconds"));
            }
        }
        if self.duration == 0.0 && self.downloads.is_none() {
            return wrong("--duration 0 measures nothing; give a longer one".to_owned());
        }
        if self.timeout == 0.0 {
            return wrong("--timeout 0 gives up on every request; give a longer one".to_owned());
        }
        if !self.closed && !(0.001..=10_000_000.0).contains(&self.rate) {
            return wrong(format!(
                "--rate {} is not between 0.001 and 10000000 requests per second",
                self.rate
            ));
        }
        if !(1..=60_000).contains(&self.connections) {
            return wrong(format!(
                "--connections {} is not between 1 and 60000",
                self.connections
            ));
        }
        if self.downloads == Some(0) {
            return wrong("--downloads 0 measures nothing; ask for at least 1".to_owned());
        }
        if !self.path.starts_with('/') || self.path.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return wrong(format!(
                "--path {:?} is not a path: it starts with / and has neither spaces nor control characters",
                self.path
            ));
        }
        Ok(())
    }

    fn request(&self) -> Vec<u8> {
        let Self { path, address, .. } = self;
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: vtax\r\nAccept: */*\r\n\r\n")
            .into_bytes()
    }
}

/// Runs the load and prints its [`Report`] as one line of JSON on standard output; on failure
/// prints `{"error": …}` there instead, so that whoever reads the output gets the reason too.
///
/// # Errors
/// When the arguments make no sense, no socket can be opened, or (closed loop) a download fails.
pub fn main(arguments: &Arguments) -> Result<(), HostError> {
    let outcome = run(arguments);
    let line = match &outcome {
        Ok(report) => serde_json::to_string(report),
        Err(cause) => serde_json::to_string(&serde_json::json!({ "error": cause.to_string() })),
    };
    let mut line = line
        .map_err(|cause| HostError::Other(format!("cannot write the report as JSON: {cause}")))?;
    line.push('\n');
    std::io::stdout()
        .write_all(line.as_bytes())
        .map_err(HostError::file("write", "standard output"))?;
    outcome.map(|_| ())
}

/// Runs the load.
///
/// # Errors
/// As [`main`].
pub fn run(arguments: &Arguments) -> Result<Report, HostError> {
    arguments.check()?;
    // The kernel may wake sleepers 50 µs late to save power, as late as the latencies that are
    // measured here; where it refuses, the report's `lag` shows it.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    if arguments.closed {
        closed::run(arguments)
    } else {
        open::run(arguments)
    }
}

/// Seconds, checked to be sane, as nanoseconds.
fn nanoseconds(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds.clamp(0.0, 1e9)).as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds as seconds.
#[allow(clippy::cast_precision_loss, reason = "2^53 ns are 104 days")]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn example() -> Arguments {
        Arguments {
            address: "[fd00::2]:80".parse().unwrap(),
            path: "/file".to_owned(),
            connections: 7,
            warmup: 0.5,
            duration: 2.25,
            rate: 123.5,
            arrival: Arrival::Constant,
            seed: 42,
            closed: false,
            downloads: None,
            timeout: 3.0,
        }
    }

    #[test]
    fn the_command_line_says_the_same_as_the_arguments() {
        let open = example();
        let closed = Arguments {
            closed: true,
            downloads: Some(9),
            rate: 1000.0,
            arrival: Arrival::Poisson,
            seed: 1,
            ..example()
        };
        for arguments in [open, closed] {
            let line = ["load".to_owned()].into_iter().chain(arguments.to_flags());
            assert_eq!(Cli::parse_from(line).arguments, arguments);
        }
    }

    #[test]
    fn senseless_arguments_are_refused_by_name() {
        let cases = [
            (
                Arguments {
                    rate: 0.0,
                    ..example()
                },
                "--rate",
            ),
            (
                Arguments {
                    rate: f64::NAN,
                    ..example()
                },
                "--rate",
            ),
            (
                Arguments {
                    duration: 0.0,
                    ..example()
                },
                "--duration",
            ),
            (
                Arguments {
                    duration: -1.0,
                    ..example()
                },
                "--duration",
            ),
            (
                Arguments {
                    warmup: f64::INFINITY,
                    ..example()
                },
                "--warmup",
            ),
            (
                Arguments {
                    timeout: 0.0,
                    ..example()
                },
                "--timeout",
            ),
            (
                Arguments {
                    connections: 0,
                    ..example()
                },
                "--connections",
            ),
            (
                Arguments {
                    path: "a b\r\nX: y".to_owned(),
                    ..example()
                },
                "--path",
            ),
            (
                Arguments {
                    closed: true,
                    downloads: Some(0),
                    ..example()
                },
                "--downloads",
            ),
        ];
        for (arguments, name) in cases {
            let message = run(&arguments).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
    }
}
