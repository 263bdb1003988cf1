// SPDX-License-Identifier: Apache-2.0
//! Readers of the drivers' output, and the metrics of a workload.

use super::{Outcome, Timing, WorkDone, WorkloadResult};
use crate::generator::Summary;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use vtax_core::{Base, Quantity, Source, Unit, metric};
use vtax_host::HostError;
use vtax_results::{Metric, Work};

/// Reads the JSON output of `driver`.
pub fn json<T: DeserializeOwned>(driver: &str, raw: &[u8]) -> Outcome<T> {
    serde_json::from_slice(raw).map_err(|cause| {
        let what = if raw.iter().all(u8::is_ascii_whitespace) {
            return garbage(driver, "it printed nothing");
        } else if cause.is_eof() {
            format!("its JSON is cut off after {} bytes", raw.len())
        } else if cause.is_data() {
            format!("its JSON has not the expected form ({cause})")
        } else {
            format!("it did not print JSON ({cause})")
        };
        garbage(driver, &format!("{what}; it begins {}", quote(raw)))
    })
}

/// Returns the text output of `driver`, to the end of its last line.
pub fn text(driver: &str, raw: &[u8]) -> Outcome<String> {
    if raw.iter().all(u8::is_ascii_whitespace) {
        return Err(garbage(driver, "it printed nothing"));
    }
    if !raw.ends_with(b"\n") {
        let detail = format!(
            "its text is cut off after {} bytes; it begins {}",
            raw.len(),
            quote(raw)
        );
        return Err(garbage(driver, &detail));
    }
    Ok(String::from_utf8_lossy(raw).into_owned())
}

/// A word of such a text, if it is a number.
pub fn figure(word: &str) -> Option<f64> {
    word.trim_start_matches('(').parse().ok()
}

/// An error about a driver's output.
pub fn garbage(driver: &str, detail: &str) -> HostError {
    HostError::Protocol {
        peer: driver.to_owned(),
        detail: detail.to_owned(),
    }
}

/// The first bytes of some output, readable whatever they are.
pub fn quote(raw: &[u8]) -> String {
    const SHOWN: usize = 100;
    let text = raw.get(..SHOWN).unwrap_or(raw).escape_ascii();
    format!("\"{text}\"{}", if raw.len() > SHOWN { "…" } else { "" })
}

/// Returns a number that a driver must report, finite and not negative.
pub fn number(driver: &str, name: &str, value: Option<f64>) -> Outcome<f64> {
    match value {
        Some(value) if value.is_finite() && (0.0..=1e18).contains(&value) => Ok(value),
        Some(value) => Err(garbage(driver, &format!("`{name}` is {value}"))),
        None => Err(garbage(driver, &format!("`{name}` is missing"))),
    }
}

/// As [`number`], and not 0, for a divisor.
pub fn positive(driver: &str, name: &str, value: Option<f64>) -> Outcome<f64> {
    match number(driver, name, value)? {
        value if value >= 1e-9 => Ok(value),
        value => Err(garbage(driver, &format!("`{name}` is {value}"))),
    }
}

/// Refuses percentiles that fall where they have to rise, and a mean above the longest time.
pub fn ascending(driver: &str, times: &Summary) -> Outcome<()> {
    // Histograms keep three digits.
    const ROUNDING: f64 = 1.01;
    let rising = [times.p50, times.p90, times.p99, times.p999, times.max];
    let falls = rising.windows(2).any(|pair| match pair {
        [low, high] => *low > high * ROUNDING,
        _ => false,
    });
    if falls || times.mean > times.max * ROUNDING {
        let detail = format!("its latencies contradict each other: {times:?}");
        return Err(garbage(driver, &detail));
    }
    Ok(())
}

/// Seconds.
pub const SECONDS: Unit = Unit::from_base(Base::Second);
/// Operations per second.
pub const OP_RATE: Unit = Unit::per(Base::Operation, Base::Second);

/// Metrics by name. Load generators measure; the lab marks the metrics of an emulated target.
#[derive(Debug, Default)]
pub struct Metrics(pub BTreeMap<String, Metric>);

impl Metrics {
    /// Adds a metric; `about` completes its title.
    pub fn add(&mut self, metric: &metric::Metric, value: f64, about: &str) {
        self.add_in(metric, value, Unit::from_base(Base::One), about);
    }

    /// Adds a metric whose unit the workload chooses.
    pub fn add_in(&mut self, metric: &metric::Metric, value: f64, unit: Unit, about: &str) {
        let found = Metric::new(metric, about, unit, value, Source::Measured);
        self.0.insert(metric.name.to_owned(), found);
    }

    /// Makes a metric one that summaries lead with.
    pub fn lead(&mut self, metric: &metric::Metric) {
        if let Some(metric) = self.0.get_mut(metric.name) {
            metric.headline = true;
        }
    }

    /// Adds the percentiles of a latency, led by the 99th. `what` names the latency, such as `HTTP latency`.
    pub fn latency(&mut self, what: &str, times: &Summary) {
        for (metric, value) in [
            (metric::LATENCY_P50, times.p50),
            (metric::LATENCY_P90, times.p90),
            (metric::LATENCY_P99, times.p99),
            (metric::LATENCY_P999, times.p999),
            (metric::LATENCY_MAX, times.max),
            (metric::LATENCY_MEAN, times.mean),
        ] {
            self.add(metric, value, what);
        }
        self.lead(metric::LATENCY_P99);
    }

    /// The result of a load with these metrics.
    pub fn result(self, work: WorkDone) -> WorkloadResult {
        WorkloadResult {
            work: Some(work),
            metrics: self.0,
            ..WorkloadResult::default()
        }
    }
}

/// Work of any unit.
pub fn work(amount: f64, base: Base, phrase: &str) -> Work {
    Work {
        amount,
        unit: Unit::from_base(base),
        phrase: phrase.to_owned(),
    }
}

/// A reason for suspicion where `reached` is less than 95 % of what was asked.
pub fn shortfall(what: &str, reached: f64, asked: f64, unit: Unit) -> Option<String> {
    (reached < 0.95 * asked).then(|| {
        format!(
            "{what} reached {} of the {} asked ({:.0} %): the target or the load generator is saturated",
            Quantity::new(reached, unit),
            Quantity::new(asked, unit),
            100.0 * reached / asked
        )
    })
}

/// As [`shortfall`], for operations that arrive at random: three standard deviations (Poisson)
/// below what was asked are mere chance.
pub fn random_shortfall(reached: f64, asked: f64, timing: Timing) -> Option<String> {
    let seconds = timing.duration.as_secs_f64().max(1.0);
    let chance = 3.0 * (asked / seconds).sqrt();
    if reached + chance < asked {
        shortfall("the rate", reached, asked, OP_RATE)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_arrivals_than_asked_are_suspect_only_beyond_chance() {
        let timing = Timing {
            warmup: std::time::Duration::ZERO,
            duration: std::time::Duration::from_secs(4),
        };
        // A standard deviation of 100 in 4 s is 5 each second, and of 10 000 it is 50.
        assert_eq!(random_shortfall(86.0, 100.0, timing), None);
        assert!(random_shortfall(84.0, 100.0, timing).is_some());
        assert!(random_shortfall(9_400.0, 10_000.0, timing).is_some());
        assert_eq!(random_shortfall(9_600.0, 10_000.0, timing), None);
    }
}
