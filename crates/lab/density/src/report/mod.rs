// SPDX-License-Identifier: Apache-2.0
//! The report of a density run: the paper's figures and tables with published and measured numbers, and further ones.

mod figures;
mod page;
mod published;
mod summary;

pub use summary::{Bound, Each, Summary, TreatmentClimbs};

use std::path::PathBuf;
use vtax_core::{Base, Quantity, Unit, thousands};
use vtax_lab::LabError;
use vtax_report::figures::Figure;
use vtax_report::html;
use vtax_results::ResultsDir;

/// Writes `report.html` and `figures/*.vl.json` into the results directory; returns the report's
/// path and the summary for a terminal.
///
/// # Errors
/// When the results cannot be read or the report not be written.
pub fn write(results: &ResultsDir) -> Result<(PathBuf, Summary), LabError> {
    let summary = Summary::from_results(results)?;
    let figures = figures::figures(&summary);
    html::write_figures(results, &figures)?;
    let page = page::page(results, &summary, &figures);
    Ok((html::write_page(results, &page)?, summary))
}

/// The figures of the report.
///
/// # Errors
/// When the results cannot be read.
pub fn figures_of(results: &ResultsDir) -> Result<Vec<Figure>, LabError> {
    Ok(figures::figures(&Summary::from_results(results)?))
}

/// Bytes with a fitting unit.
#[must_use]
pub fn bytes(bytes: f64) -> String {
    Quantity::new(bytes, Unit::from_base(Base::Byte)).to_string()
}

/// A duration in microseconds with a fitting unit.
pub(crate) fn time(micros: f64) -> String {
    Quantity::new(micros / 1e6, Unit::from_base(Base::Second)).to_string()
}

/// A count with separated thousands.
pub(crate) fn count(n: f64) -> String {
    thousands(format!("{:.0}", n.max(0.0)))
}

/// A modelled count with three digits, the precision of a straight line.
pub(crate) fn about(n: f64) -> String {
    if !(n.is_finite() && n > 0.0) {
        return "0".to_owned();
    }
    let step = 10f64.powf((n.log10().floor() - 2.0).max(0.0));
    count((n / step).round() * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(bytes(525.3), "525 B");
        assert_eq!(bytes(389_024.0), "389 kB");
        assert_eq!(bytes(12_600_000.0), "12.6 MB");
        assert_eq!(bytes(-2_000.0), "-2.00 kB");
        assert_eq!(time(127.0), "127 µs");
        assert_eq!(time(2_600.0), "2.60 ms");
        assert_eq!(count(1_000_000.0), "1,000,000");
        assert_eq!(count(12.0), "12");
        assert_eq!(about(43_210_987.0), "43,200,000");
        assert_eq!(about(17.0), "17");
    }
}
