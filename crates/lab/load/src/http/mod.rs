// SPDX-License-Identifier: Apache-2.0
//! The HTTP load generator: `vtax load http`.
//!
//! Open loop (`--rate`): see [`crate::generator`].
//!
//! Closed loop (`--closed`): every connection downloads the file again and again, for a time or
//! until a number of downloads is done.

mod closed;
mod get;

pub use get::Get;

use crate::generator::pool::Pool;
use crate::generator::{self, Report, open, wake_exactly, wrong};
use vtax_host::HostError;

/// The arguments of `vtax load http`.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Arguments {
    /// Which server, and how much load.
    #[command(flatten)]
    pub common: generator::Arguments,
    /// Path of the file to request
    #[arg(long, default_value = "/")]
    pub path: String,
    /// Closed loop: download on every connection, again and again
    #[arg(long, conflicts_with_all = ["rate", "ramp"])]
    pub closed: bool,
    /// Closed loop: stop after this many downloads instead of after the duration
    #[arg(long, requires = "closed")]
    pub downloads: Option<u64>,
    /// A connection of its own for each request
    #[arg(long)]
    pub close: bool,
}

impl Arguments {
    fn check(&self) -> Result<(), HostError> {
        self.common.check()?;
        match self.downloads {
            None => self.common.check_duration()?,
            Some(0) => {
                return wrong("--downloads 0 measures nothing; ask for 1 or more".to_owned());
            }
            Some(_) => {}
        }
        if !self.path.starts_with('/') || self.path.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return wrong(format!(
                "--path {:?} is not a path: it starts with / and has neither spaces nor control characters",
                self.path
            ));
        }
        Ok(())
    }

    fn pool(&self) -> Result<Pool, HostError> {
        let generator::Arguments {
            address,
            connections,
            ..
        } = self.common;
        // In closed loop a request begins while the connection of the last one is being closed.
        let places = if self.closed && self.close {
            connections.saturating_mul(2)
        } else {
            connections
        };
        let get = Get::new(address, &self.path, !self.close);
        Pool::new(address, Box::new(get), places)
    }
}

/// Runs the load and prints a report for each rate.
///
/// # Errors
/// When the arguments contradict each other, no socket can be opened, or (closed loop) a download fails.
pub fn main(arguments: &Arguments) -> Result<(), HostError> {
    arguments.common.each_rate(|common| {
        run(&Arguments {
            common,
            ..arguments.clone()
        })
    })
}

/// Runs one load, in open or closed loop, at one rate.
///
/// # Errors
/// As [`main`].
pub fn run(arguments: &Arguments) -> Result<Report, HostError> {
    arguments.check()?;
    wake_exactly();
    if arguments.closed {
        return closed::run(arguments);
    }
    open::run(&arguments.common, arguments.pool()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::Arrival;
    fn example(change: impl Fn(&mut Arguments)) -> Arguments {
        let mut arguments = Arguments {
            common: generator::Arguments {
                address: "[fd00::2]:80".parse().unwrap(),
                connections: 7,
                warmup: 0.5,
                duration: 2.25,
                rate: 123.5,
                ramp: Vec::new(),
                settle: None,
                arrival: Arrival::Constant,
                seed: 42,
                timeout: 3.0,
            },
            path: "/file".to_owned(),
            closed: false,
            downloads: None,
            close: false,
        };
        change(&mut arguments);
        arguments
    }

    #[test]
    fn senseless_arguments_are_refused_by_name() {
        type Change = fn(&mut Arguments);
        let cases: [(Change, &str); 11] = [
            (|it| it.common.rate = 0.0, "--rate"),
            (|it| it.common.rate = f64::NAN, "--rate"),
            (|it| it.common.ramp = vec![1.0, -1.0], "--ramp"),
            (|it| it.common.duration = 0.0, "--duration"),
            (|it| it.common.duration = -1.0, "--duration"),
            (|it| it.common.warmup = f64::INFINITY, "--warmup"),
            (|it| it.common.settle = Some(-1.0), "--settle"),
            (|it| it.common.timeout = 0.0, "--timeout"),
            (|it| it.common.connections = 0, "--connections"),
            (|it| it.path = "a b\r\nX: y".to_owned(), "--path"),
            (|it| it.downloads = Some(0), "--downloads"),
        ];
        for (change, name) in cases {
            let message = run(&example(change)).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
    }
}
