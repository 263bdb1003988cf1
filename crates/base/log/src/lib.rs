// SPDX-License-Identifier: Apache-2.0
//! The log of programs that serve: `tracing` events as lines on standard error; and their report to systemd.
//!
//! In a service of systemd a line has the journal's priority and no time of its own. The output of a program, such as a
//! table or its final error, is not logged.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod startup;

pub use startup::Startup;

use clap::{ArgAction, Args};
use std::fmt;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use vtax_core::terminal;

/// The options for how much is logged. Without either, the directives in `RUST_LOG` apply; the default level is `info`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Verbosity {
    /// Logs more: -v debug, -vv trace
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
    /// Logs less: -q warnings and errors, -qq errors, -qqq nothing
    #[arg(short, long, action = ArgAction::Count)]
    pub quiet: u8,
}

impl Verbosity {
    /// Starts logging to standard error. Only the first call in a process has an effect.
    ///
    /// To be called before the program enters a sandbox: afterwards, an event needs no system call but `write`.
    pub fn start_log(self) {
        let directives = std::env::var("RUST_LOG").unwrap_or_default();
        let (filter, invalid) = self.filter(&directives);
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(terminal::stderr)
            // The program does not end when the reader of standard error does.
            .log_internal_errors(false);
        let log = tracing_subscriber::registry().with(filter);
        let _ = if is_journal() {
            log.with(lines.event_format(JournalLine::default()))
                .try_init()
        } else {
            log.with(lines).try_init()
        };
        if let Some(cause) = invalid {
            warn!(
                "RUST_LOG={directives:?} is ignored: {cause}; valid is RUST_LOG=info,vtax_nic=debug"
            );
        }
    }

    /// The filter, and the error of `directives` if they are invalid. Invalid directives are not used.
    fn filter(self, directives: &str) -> (Targets, Option<ParseError>) {
        let level = match (self.verbose, self.quiet) {
            (0, 0) => LevelFilter::INFO,
            (0, 1) => LevelFilter::WARN,
            (0, 2) => LevelFilter::ERROR,
            (0, _) => LevelFilter::OFF,
            (1, _) => LevelFilter::DEBUG,
            (_, _) => LevelFilter::TRACE,
        };
        let by_level = Targets::new().with_default(level);
        if directives.is_empty() || level != LevelFilter::INFO {
            return (by_level, None);
        }
        match directives.parse() {
            Ok(filter) => (filter, None),
            Err(cause) => (by_level, Some(cause)),
        }
    }
}

/// Whether standard error is the socket of systemd's journal that `JOURNAL_STREAM` names (systemd.exec(5)). A child
/// whose standard error leads elsewhere inherits the variable too.
fn is_journal() -> bool {
    rustix::fs::fstat(terminal::stderr()).is_ok_and(|stat| {
        std::env::var("JOURNAL_STREAM")
            .is_ok_and(|stream| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
    })
}

/// A line with a prefix that contains its priority for the journal (sd-daemon(3)).
struct JournalLine(Format<Full, ()>);

impl Default for JournalLine {
    fn default() -> Self {
        Self(Format::default().without_time().with_level(false))
    }
}

impl<S, N> FormatEvent<S, N> for JournalLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        write!(writer, "<{priority}>")?;
        self.0.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};
    use tracing::{debug, error, info};

    /// The log of one event of each level.
    fn logged(verbosity: Verbosity, directives: &str) -> String {
        #[derive(Clone, Default)]
        struct Buffer(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Buffer {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber = tracing_subscriber::registry()
            .with(verbosity.filter(directives).0)
            .with(
                tracing_subscriber::fmt::layer()
                    .with_ansi(false)
                    .event_format(JournalLine::default())
                    .with_writer(move || writer.clone()),
            );
        tracing::subscriber::with_default(subscriber, || {
            error!("failed");
            warn!("odd");
            info!("started");
            debug!("details");
        });
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap()
    }

    fn verbosity(verbose: u8, quiet: u8) -> Verbosity {
        Verbosity { verbose, quiet }
    }

    #[test]
    fn a_line_of_the_journal_begins_with_its_priority_and_has_no_time() {
        assert_eq!(
            logged(verbosity(0, 0), ""),
            "<3>vtax_log::tests: failed\n<4>vtax_log::tests: odd\n<6>vtax_log::tests: started\n"
        );
    }

    #[test]
    fn options_set_the_level_and_outrank_rust_log() {
        for (verbose, quiet, directives, lines) in [
            (0, 0, "", 3),
            (1, 0, "", 4),
            (0, 1, "", 2),
            (0, 2, "", 1),
            (0, 3, "", 0),
            (0, 0, "error", 1),
            (0, 0, "warn,vtax_log=debug", 4),
            (0, 1, "debug", 2),
            (1, 0, "off", 4),
        ] {
            let logged = logged(verbosity(verbose, quiet), directives);
            assert_eq!(
                logged.lines().count(),
                lines,
                "{verbose} {quiet} {directives}"
            );
        }
    }

    #[test]
    fn invalid_directives_leave_the_default_level() {
        let (_, invalid) = Verbosity::default().filter("vtax_nic=loud");
        assert!(invalid.is_some());
        assert_eq!(
            logged(Verbosity::default(), "vtax_nic=loud")
                .lines()
                .count(),
            3
        );
    }
}
