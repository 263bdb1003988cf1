// SPDX-License-Identifier: Apache-2.0
//! The reports that the load generators print.

use super::{nanoseconds, seconds};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The result of one run of the load generator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// `open` or `closed`.
    pub mode: String,
    /// Open loop: the rate that was asked for, in requests per second.
    #[serde(default)]
    pub rate: Option<f64>,
    /// Length of the measured part in seconds: as asked, or (downloads) as long as it took.
    pub seconds: f64,
    /// Complete answers, with what was asked for, within the measured part.
    pub requests: u64,
    /// Bytes of bodies received within the measured part.
    pub bytes: u64,
    /// Open loop: requests that were due in the measured part.
    pub due: Option<u64>,
    /// Open loop: from the beginning of the measured part to the last answer to a request that was due
    /// in it, in seconds.
    #[serde(default)]
    pub last_answer: Option<f64>,
    /// Errors of requests that were due in the measured part.
    pub errors: Errors,
    /// Time from when a request was due (open) or sent (closed) to the last byte of its answer.
    pub latency: Summary,
    /// The whole distribution of that latency: an HDR histogram in nanoseconds, V2 deflate, base64.
    #[serde(default)]
    pub histogram: String,
    /// How late the generator itself was in sending a request that was due and for which a
    /// connection was free (open loop).
    pub lag: Option<Summary>,
    /// The resolution of the generator's timers in seconds (`clock_getres`): 1 ns with high resolution timers, and a tick
    /// of the kernel, such as 4 ms, without.
    #[serde(default)]
    pub timer: Option<f64>,
    /// Connections opened in all.
    pub connections: u64,
    /// CPU time that the generator used, in seconds.
    pub cpu_seconds: f64,
    /// Closed loop: how long each download took, in seconds, in the order in which they ended;
    /// the first 10 000 of them.
    pub download_seconds: Vec<f64>,
}

/// Requests that did not end in a complete answer with what was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errors {
    /// Connections refused, reset or closed early, and answers in another protocol.
    pub connection: u64,
    /// Answers with something else: another status than 200, or a value that is not there.
    pub status: u64,
    /// No complete answer within the timeout; counted in the latency with the time waited.
    pub timeout: u64,
    /// Still not sent when the run ended; counted in the latency with the time waited.
    pub unsent: u64,
}

impl Report {
    /// Returns the reason that there was no answer at all; `None` where there was one, or a part of one.
    pub fn unanswered(&self) -> Option<String> {
        let failed = self.errors.total();
        let is_answered =
            self.requests > 0 || self.bytes > 0 || self.due.is_some_and(|due| due > failed);
        if is_answered {
            return None;
        }
        Some(match self.due {
            Some(0) => {
                "no request was due in the measured part: measure longer or ask for a higher rate"
                    .to_owned()
            }
            Some(due) => format!(
                "not one of {due} requests was answered as asked ({}): check that the server runs and can be reached",
                self.errors
            ),
            None => {
                "not one byte of an answer came in the measured part: measure longer".to_owned()
            }
        })
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            connection,
            status,
            timeout,
            unsent,
        } = self;
        write!(
            f,
            "{connection} connections failed, {status} answers with an error status, {timeout} timeouts, {unsent} never sent"
        )
    }
}

impl Errors {
    /// Returns the number of all errors.
    pub fn total(&self) -> u64 {
        self.connection
            .saturating_add(self.status)
            .saturating_add(self.timeout)
            .saturating_add(self.unsent)
    }
}

/// A distribution of times, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of times.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// Collects times in nanoseconds with three significant digits.
#[derive(Debug)]
pub struct Times(pub Histogram<u64>);

impl Times {
    /// An empty collection.
    pub fn new() -> Self {
        // Bounds are 1 ns and 2^47 ns, 39 hours, more than any run; longer times saturate.
        match Histogram::new_with_bounds(1, 1 << 47, 3) {
            Ok(histogram) => Self(histogram),
            Err(_) => unreachable!(
                "the bounds and digits are constants that the crate documents as valid"
            ),
        }
    }

    /// Adds one time.
    pub fn record(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds);
    }

    /// Adds one time, in seconds, as often as it occurred.
    pub fn record_n(&mut self, seconds: f64, count: u64) {
        self.0.saturating_record_n(nanoseconds(seconds), count);
    }

    /// Returns the whole distribution, encoded as in [`Report::histogram`].
    pub fn encoded(&self) -> String {
        let mut bytes = Vec::new();
        match V2DeflateSerializer::new().serialize(&self.0, &mut bytes) {
            Ok(_) => BASE64_STANDARD.encode(bytes),
            // Writing to memory does not fail.
            Err(_) => String::new(),
        }
    }

    /// Returns the summary of the collected times.
    pub fn summary(&self) -> Summary {
        if self.0.is_empty() {
            return Summary::default();
        }
        let at = |quantile| seconds(self.0.value_at_quantile(quantile));
        Summary {
            count: self.0.len(),
            mean: self.0.mean() / 1e9,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: seconds(self.0.max()),
        }
    }
}

/// The histogram in a report; `None` where it has none.
///
/// # Errors
/// Why the text is no histogram.
pub fn decoded(text: &str) -> Result<Option<Histogram<u64>>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let bytes = BASE64_STANDARD
        .decode(text)
        .map_err(|cause| cause.to_string())?;
    let histogram = Deserializer::new().deserialize(&mut bytes.as_slice());
    histogram.map(Some).map_err(|cause| cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_unanswered_only_where_nothing_at_all_came() {
        let none = Report {
            mode: "open".to_owned(),
            rate: Some(100.0),
            seconds: 1.0,
            requests: 0,
            bytes: 0,
            due: Some(13),
            last_answer: None,
            errors: Errors {
                connection: 13,
                ..Errors::default()
            },
            latency: Summary::default(),
            histogram: String::new(),
            lag: None,
            timer: None,
            connections: 0,
            cpu_seconds: 0.0,
            download_seconds: Vec::new(),
        };
        let reason = none.unanswered().unwrap();
        assert!(
            reason.contains("not one of 13 requests") && reason.contains("13 connections failed"),
            "{reason}"
        );
        let idle = Report {
            due: Some(0),
            errors: Errors::default(),
            ..none.clone()
        };
        assert!(idle.unanswered().unwrap().contains("no request was due"));
        let silent = Report {
            due: None,
            errors: Errors::default(),
            ..none.clone()
        };
        assert!(silent.unanswered().unwrap().contains("not one byte"));
        // One was answered after the measured part, and a download is under way.
        assert_eq!(
            Report {
                due: Some(14),
                ..none.clone()
            }
            .unanswered(),
            None
        );
        assert_eq!(
            Report {
                due: None,
                bytes: 1,
                ..none
            }
            .unanswered(),
            None
        );
    }

    #[test]
    fn a_histogram_survives_its_text_and_garbage_is_refused() {
        let mut times = Times::new();
        for time in [1, 900, 1_000_000, u64::MAX] {
            times.record(time);
        }
        let text = times.encoded();
        assert_eq!(decoded(&text).unwrap().unwrap(), times.0);
        assert!(decoded("").unwrap().is_none());
        assert!(decoded(&text[..text.len() / 2]).is_err());
        assert!(decoded("Segmentation fault").is_err());
    }
}
