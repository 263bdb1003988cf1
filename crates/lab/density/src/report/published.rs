// SPDX-License-Identifier: Apache-2.0
//! The numbers of Bratterud and Haugerud (2013), from `papers/figures.toml`.

use serde::Deserialize;

const FIGURES: &str = include_str!("../../../../../papers/figures.toml");

/// The paper's host: 48 processors and 128 GB of memory. The paper does not print the size of its swap space.
pub(super) const PROCESSORS: f64 = 48.0;
pub(super) const MEMORY: f64 = 128.0 * 1024.0 * 1024.0 * 1024.0;

/// One row of table I or II, with the columns in the paper's order.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Row {
    /// 1: the guests sleep, 0: they do not.
    pub(super) sleep: u8,
    /// 1: with KVM, 0: emulated.
    pub(super) kvm: u8,
    pub(super) bits: f64,
    pub(super) guests: f64,
    pub(super) cpu_percent: f64,
    pub(super) ram_percent: f64,
    pub(super) swap_percent: f64,
    pub(super) size_kb: f64,
    pub(super) minutes: f64,
    pub(super) boot_seconds: f64,
}

#[derive(Deserialize)]
struct File {
    bratterud: Published,
}

/// The numbers of the paper that reports show.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Published {
    /// Fixed highest frequency.
    pub(super) table_1: Vec<Row>,
    /// Default power saving.
    pub(super) table_2: Vec<Row>,
    #[serde(rename = "scalability_test")]
    pub(super) test: ScalabilityTest,
}

/// Numbers that the text of the paper gives for its figures.
#[derive(Debug, Clone, Deserialize, PartialEq)]
pub(super) struct ScalabilityTest {
    pub(super) vms_at_stop: f64,
    pub(super) max_cpu_percent: MaxCpu,
}

/// The highest share of the processors in each figure, in percent.
#[derive(Debug, Clone, Deserialize, PartialEq)]
pub(super) struct MaxCpu {
    pub(super) power_saving_on: f64,
    pub(super) pit_on: f64,
    pub(super) pit_off: f64,
}

impl Published {
    /// Reads the numbers that this program includes; `None` only when it was built with damaged ones, which a test
    /// excludes.
    pub(super) fn read() -> Option<Self> {
        let file: File = toml::from_str(FIGURES).ok()?;
        Some(file.bratterud)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_records_are_in_the_tables() {
        let published = Published::read().unwrap();
        let most = |rows: &[Row]| rows.iter().map(|row| row.guests).fold(0.0, f64::max);
        assert!((most(&published.table_1) - 110_239.0).abs() < 0.5);
        assert!((most(&published.table_2) - 111_179.0).abs() < 0.5);
        assert_eq!((published.table_1.len(), published.table_2.len()), (8, 8));
        assert!((published.test.max_cpu_percent.pit_off - 2.06).abs() < 1e-9);
    }
}
