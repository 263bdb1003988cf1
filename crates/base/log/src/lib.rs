// SPDX-License-Identifier: Apache-2.0
//! The log of programs that serve and of runs: `tracing` events as lines on standard error; and the report of programs
//! that serve to systemd.
//!
//! In a service of systemd a line has the journal's priority and no time of its own. The output of a program, such as a
//! table or its final error, is not logged. An event is one line of at most 2,000 characters without control characters,
//! so that no caller has to remember that a client, a guest or another machine chose a part of its text.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod spaced;
mod startup;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use spaced::{More, Spaced};
pub use startup::Startup;

use clap::{ArgAction, Args};
use std::fmt;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
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
        start(self.level(), LevelFilter::INFO);
    }

    /// The level that the options set; `None` without them.
    fn level(self) -> Option<LevelFilter> {
        Some(match (self.verbose, self.quiet) {
            (0, 0) => return None,
            (0, 1) => LevelFilter::WARN,
            (0, 2) => LevelFilter::ERROR,
            (0, _) => LevelFilter::OFF,
            (1, _) => LevelFilter::DEBUG,
            (_, _) => LevelFilter::TRACE,
        })
    }
}

/// The option of commands that print their own progress. Without it, the directives in `RUST_LOG` apply; without those
/// nothing is logged.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Details {
    /// Log to standard error: -v info, -vv debug, -vvv trace
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

impl Details {
    /// As [`Verbosity::start_log`].
    pub fn start_log(self) {
        start(self.level(), LevelFilter::OFF);
    }

    /// The option as it is passed to another `vtax`; `None` without it.
    #[must_use]
    pub fn word(self) -> Option<String> {
        let count = usize::from(self.verbose);
        (count > 0).then(|| format!("-{}", "v".repeat(count)))
    }

    fn level(self) -> Option<LevelFilter> {
        Some(match self.verbose {
            0 => return None,
            1 => LevelFilter::INFO,
            2 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }
}

/// Whether any event of this process is logged.
#[must_use]
pub fn is_on() -> bool {
    LevelFilter::current() != LevelFilter::OFF
}

/// Starts logging events of `level`; where the options set none, by `RUST_LOG`, or else of `default`.
fn start(level: Option<LevelFilter>, default: LevelFilter) {
    let directives = std::env::var("RUST_LOG").unwrap_or_default();
    let (filter, invalid) = filter(level, default, &directives);
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(terminal::stderr)
        // The program does not end when the reader of standard error does.
        .log_internal_errors(false);
    let log = tracing_subscriber::registry().with(filter);
    let _ = if is_journal() {
        log.with(lines.event_format(Line::of_the_journal()))
            .try_init()
    } else {
        log.with(lines.event_format(Line::default())).try_init()
    };
    if let Some(cause) = invalid {
        warn!("RUST_LOG={directives:?} is ignored: {cause}; valid is RUST_LOG=info,vtax_nic=debug");
    }
}

/// The filter, and the error of `directives` if they are invalid. Invalid directives are not used: a warning is logged
/// even where nothing else is.
fn filter(
    level: Option<LevelFilter>,
    default: LevelFilter,
    directives: &str,
) -> (Targets, Option<ParseError>) {
    let by_level = |level| Targets::new().with_default(level);
    match level {
        Some(level) => (by_level(level), None),
        None if directives.is_empty() => (by_level(default), None),
        None => match directives.parse() {
            Ok(filter) => (filter, None),
            Err(cause) => (by_level(default.max(LevelFilter::WARN)), Some(cause)),
        },
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

/// An event as one line that steers no terminal and cannot pass for two.
struct Line<T = SystemTime> {
    text: Format<Full, T>,
    /// Whether it begins with its priority for the journal (sd-daemon(3)).
    has_priority: bool,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            text: Format::default(),
            has_priority: false,
        }
    }
}

impl Line<()> {
    fn of_the_journal() -> Self {
        Self {
            text: Format::default().without_time().with_level(false),
            has_priority: true,
        }
    }
}

impl<S, N, T> FormatEvent<S, N> for Line<T>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    T: FormatTime,
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
        if self.has_priority {
            write!(writer, "<{priority}>")?;
        }
        let mut text = String::new();
        self.text
            .format_event(context, Writer::new(&mut text), event)?;
        writeln!(writer, "{}", terminal::shown(text.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::logged_by;
    use tracing::{debug, error, info};

    /// The log of one event of each level.
    fn logged(level: Option<LevelFilter>, default: LevelFilter, directives: &str) -> String {
        logged_by(filter(level, default, directives).0, || {
            error!("failed");
            warn!("odd");
            info!("started");
            debug!("details");
        })
    }

    fn level(verbose: u8, quiet: u8) -> Option<LevelFilter> {
        Verbosity { verbose, quiet }.level()
    }

    #[test]
    fn a_line_of_the_journal_begins_with_its_priority_and_has_no_time() {
        assert_eq!(
            logged(None, LevelFilter::INFO, ""),
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
            let logged = logged(level(verbose, quiet), LevelFilter::INFO, directives);
            assert_eq!(
                logged.lines().count(),
                lines,
                "{verbose} {quiet} {directives}"
            );
        }
    }

    #[test]
    fn a_command_with_progress_of_its_own_logs_nothing_unless_it_is_asked_to() {
        for (verbose, directives, lines) in [
            (0, "", 0),
            (0, "warn", 2),
            (1, "", 3),
            (1, "off", 3),
            (2, "", 4),
        ] {
            let details = Details { verbose };
            let logged = logged(details.level(), LevelFilter::OFF, directives);
            assert_eq!(logged.lines().count(), lines, "{verbose} {directives}");
        }
        assert_eq!(Details { verbose: 2 }.word().as_deref(), Some("-vv"));
        assert_eq!(Details::default().word(), None);
    }

    #[test]
    fn invalid_directives_leave_the_default_level() {
        let (_, invalid) = filter(None, LevelFilter::INFO, "vtax_nic=loud");
        assert!(invalid.is_some());
        for (default, lines) in [(LevelFilter::INFO, 3), (LevelFilter::OFF, 2)] {
            let logged = logged(None, default, "vtax_nic=loud");
            assert_eq!(logged.lines().count(), lines);
        }
    }

    #[test]
    fn what_a_client_chose_stays_one_line_and_steers_no_terminal() {
        let name = format!("x\n<3>vtax: all is lost\u{1b}[2J{}", "y".repeat(5000));
        let logged = testing::logged(|| warn!("the client {name} is refused"));
        assert_eq!(logged.lines().count(), 1, "{logged}");
        assert!(logged.starts_with("<4>vtax_log::tests: the client x <3>vtax"));
        assert!(!logged.trim_end().contains(char::is_control) && logged.chars().count() < 2010);
    }
}
