//! Reading what drivers print, and naming what was found.

use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use vtax_host::HostError;
use vtax_report::results::{Better, Metric, Work};
use vtax_units::{Base, Quantity, Source, Unit};

/// Reads JSON that `driver` printed.
pub fn json<T: DeserializeOwned>(driver: &str, raw: &[u8]) -> Result<T, HostError> {
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

/// A number from a driver that has to be there, finite and not negative.
pub fn number(driver: &str, name: &str, value: Option<f64>) -> Result<f64, HostError> {
    match value {
        Some(value) if value.is_finite() && (0.0..=1e18).contains(&value) => Ok(value),
        Some(value) => Err(garbage(driver, &format!("`{name}` is {value}"))),
        None => Err(garbage(driver, &format!("`{name}` is missing"))),
    }
}

/// As [`number`], and not 0, to be divided by.
pub fn positive(driver: &str, name: &str, value: Option<f64>) -> Result<f64, HostError> {
    match number(driver, name, value)? {
        value if value >= 1e-9 => Ok(value),
        value => Err(garbage(driver, &format!("`{name}` is {value}"))),
    }
}

/// Metrics by name. Load generators measure; where the target is emulated, the lab says so.
#[derive(Debug, Default)]
pub struct Metrics(pub BTreeMap<String, Metric>);

impl Metrics {
    /// Adds a metric.
    pub fn add(&mut self, name: &str, value: f64, unit: Unit, better: Better, title: &str) {
        let metric = Metric {
            quantity: Quantity::new(value, unit),
            source: Source::Measured,
            better,
            headline: false,
            title: title.to_owned(),
        };
        self.0.insert(name.to_owned(), metric);
    }

    /// Makes a metric one that summaries lead with.
    pub fn lead(&mut self, name: &str) {
        if let Some(metric) = self.0.get_mut(name) {
            metric.headline = true;
        }
    }
}

/// Work in units of 10⁹ bytes.
pub fn gigabytes(bytes: f64, phrase: &str) -> Work {
    Work {
        amount: bytes / 1e9,
        unit: Unit::of(Base::Gigabyte),
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
