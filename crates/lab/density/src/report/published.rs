// SPDX-License-Identifier: Apache-2.0
//! The numbers of Bratterud and Haugerud (2013), from `papers/figures.toml`.

use serde::Deserialize;

const FIGURES: &str = include_str!("../../../../../papers/figures.toml");

/// The paper's host: 48 processors and 128 GB of memory. The paper does not print the size of its swap space.
pub(super) const PROCESSORS: f64 = 48.0;
pub(super) const MEMORY: f64 = 128.0 * 1024.0 * 1024.0 * 1024.0;

/// One row of table I or II.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) sleep: bool,
    pub(super) kvm: bool,
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
    bratterud: Bratterud,
}

#[derive(Deserialize)]
struct Bratterud {
    table_1: Vec<[f64; 10]>,
    table_2: Vec<[f64; 10]>,
    scalability_test: ScalabilityTest,
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

/// The numbers of the paper that reports show.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Published {
    /// Fixed highest frequency.
    pub(super) table_1: Vec<Row>,
    /// Default power saving.
    pub(super) table_2: Vec<Row>,
    pub(super) test: ScalabilityTest,
}

impl Published {
    /// Reads the numbers that this program includes; `None` only when it was built with damaged ones, which a test
    /// excludes.
    pub(super) fn read() -> Option<Self> {
        let file: File = toml::from_str(FIGURES).ok()?;
        let rows = |table: &[[f64; 10]]| table.iter().map(row).collect();
        Some(Self {
            table_1: rows(&file.bratterud.table_1),
            table_2: rows(&file.bratterud.table_2),
            test: file.bratterud.scalability_test,
        })
    }
}

fn row(columns: &[f64; 10]) -> Row {
    let [
        sleep,
        kvm,
        bits,
        guests,
        cpu_percent,
        ram_percent,
        swap_percent,
        size_kb,
        minutes,
        boot_seconds,
    ] = *columns;
    Row {
        sleep: sleep > 0.0,
        kvm: kvm > 0.0,
        bits,
        guests,
        cpu_percent,
        ram_percent,
        swap_percent,
        size_kb,
        minutes,
        boot_seconds,
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
