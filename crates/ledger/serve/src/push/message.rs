// SPDX-License-Identifier: Apache-2.0
//! The log of pushes. The thread that pushes hands its messages to the exporter's, which logs them after each pass.

use std::ops::Deref;
use std::time::Duration;
use tracing::{info, warn};
use vtax_log::Spaced;

/// The time between two messages about losses of one kind.
const INTERVAL: Duration = Duration::from_secs(60);

/// A message for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A failure or a loss.
    Trouble(String),
    /// The end of a failure.
    Recovery(String),
}

impl Message {
    /// Logs it.
    pub fn log(&self) {
        match self {
            Self::Trouble(line) => warn!("{line}"),
            Self::Recovery(line) => info!("{line}"),
        }
    }
}

impl Deref for Message {
    type Target = str;

    fn deref(&self) -> &str {
        let (Self::Trouble(line) | Self::Recovery(line)) = self;
        line
    }
}

/// The samples that were lost for each reason. A loss is a message at once, and those that follow are one a minute.
#[derive(Debug)]
pub(super) struct Losses {
    pub full: Spaced,
    pub disk: Spaced,
    pub refused: Spaced,
    pub too_large: Spaced,
}

impl Default for Losses {
    fn default() -> Self {
        Self {
            full: Spaced::every(INTERVAL),
            disk: Spaced::every(INTERVAL),
            refused: Spaced::every(INTERVAL),
            too_large: Spaced::every(INTERVAL),
        }
    }
}

/// Whether a failed attempt is a message: the first one, and later each with twice as many before it. With the longest
/// wait between two attempts these are a dozen in a day.
pub(super) fn is_logged(failed: u32) -> bool {
    failed == 1 || (failed >= 8 && failed.is_power_of_two())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_a_warning_and_its_end_is_not() {
        let logged = vtax_log::testing::logged(|| {
            Message::Trouble("cannot push".to_owned()).log();
            Message::Recovery("it answers again".to_owned()).log();
        });
        let of = "vtax_serve::push::message";
        assert_eq!(
            logged,
            format!("<4>{of}: cannot push\n<6>{of}: it answers again\n")
        );
    }

    #[test]
    fn a_long_outage_is_logged_ever_more_rarely() {
        let logged: Vec<u32> = (1..100).filter(|failed| is_logged(*failed)).collect();
        assert_eq!(logged, [1, 8, 16, 32, 64]);
    }
}
