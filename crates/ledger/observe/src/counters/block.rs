// SPDX-License-Identifier: Apache-2.0
//! Counters of a subject's block devices, from `/sys/class/block/NAME/stat`.
//!
//! Requests are counted at completion, after merging; bytes are their 512-byte sectors. Busy time (the kernel's
//! `io_ticks`) has a resolution of 1 ms and means that at least one request was in flight: a device that serves many
//! requests at once is not saturated at 100 %.

use super::counter::{Counter, Findings, Rule};
use super::series::Column;
use crate::{Instrument, ObserveError, Readings};
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::KernelFile;
use vtax_kernel::text;

/// Metric, field of the `stat` file (Documentation/block/stat.rst), and the value of one unit of the field.
const FIELDS: [(&str, usize, u64); 5] = [
    (counter::BLOCK_READ_REQUESTS, 0, 1),
    (counter::BLOCK_READ_BYTES, 2, 512),
    (counter::BLOCK_WRITE_REQUESTS, 4, 1),
    (counter::BLOCK_WRITE_BYTES, 6, 512),
    (counter::BLOCK_BUSY, 9, 1_000_000),
];

/// The block devices of one subject; their counts are summed.
#[derive(Debug)]
pub struct BlockDevices {
    name: String,
    devices: Vec<(KernelFile, [Counter; FIELDS.len()])>,
    columns: Vec<Column>,
}

impl BlockDevices {
    /// Opens the `stat` file of every device below `sys`.
    ///
    /// # Errors
    /// When a device does not exist.
    pub fn open(owner: &Owner, sys: &Path, names: &[String]) -> Result<Self, ObserveError> {
        let devices = names
            .iter()
            .map(|name| {
                // sysfs writes the slash of names such as `cciss/c0d0` as `!`.
                let directory = name.replace('/', "!");
                if matches!(directory.as_str(), "" | "." | "..") {
                    return Err(ObserveError::unavailable(
                        format!("block device `{name}`"),
                        "that is no name of a device",
                    ));
                }
                let path = sys.join("class/block").join(directory).join("stat");
                let counters = std::array::from_fn(|_| Counter::new(Rule::FROM_ZERO));
                Ok((KernelFile::open_one_piece(path)?, counters))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            name: format!("block {owner}"),
            devices,
            columns: FIELDS
                .iter()
                .map(|(metric, _, _)| Column::counter(owner, *metric))
                .collect(),
        })
    }
}

impl Instrument for BlockDevices {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut sums = [0u64; FIELDS.len()];
        let mut findings = Findings::default();
        for (file, counters) in &mut self.devices {
            let mut values = [0; 11];
            let mut found = 0;
            for (value, field) in values.iter_mut().zip(text::fields(file.read()?)) {
                let Some(number) = text::number(field) else {
                    break;
                };
                *value = number;
                found += 1;
            }
            if found < values.len() {
                return Err(file.unexpected("expected at least eleven numbers").into());
            }
            for ((counter, (metric, field, scale)), sum) in
                counters.iter_mut().zip(FIELDS).zip(&mut sums)
            {
                let change = counter.advance(values.get(field).copied().unwrap_or(0));
                findings.note(file.path(), metric, change);
                *sum = sum.saturating_add(counter.total().saturating_mul(scale));
            }
        }
        for (column, sum) in self.columns.iter_mut().zip(sums) {
            column.record_count(sum, into);
        }
        findings.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;
    use std::fs;

    #[test]
    fn sectors_become_bytes_and_milliseconds_become_nanoseconds() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("class/block/cciss!c0d0");
        fs::create_dir_all(&device).unwrap();
        fs::write(
            device.join("stat"),
            "  10 1 80 5 20 2 160 6 0 7 11 0 0 0 0 0 0\n",
        )
        .unwrap();
        let names = ["cciss/c0d0".to_owned()];
        let mut devices = BlockDevices::open(&Owner::Target, root.path(), &names).unwrap();
        let mut readings = Readings::default();
        devices.read(Nanoseconds(0), &mut readings).unwrap();
        let snapshot = Snapshot::from_readings(Nanoseconds(0), &readings);
        let value = |metric| snapshot.get(&Owner::Target, metric).unwrap().value;
        assert_eq!(value(counter::BLOCK_READ_REQUESTS), 10.0);
        assert_eq!(value(counter::BLOCK_READ_BYTES), 40_960.0);
        assert_eq!(value(counter::BLOCK_WRITE_REQUESTS), 20.0);
        assert_eq!(value(counter::BLOCK_WRITE_BYTES), 81_920.0);
        assert_eq!(value(counter::BLOCK_BUSY), 7e6);
    }

    #[test]
    fn a_device_that_does_not_exist_is_named_and_a_path_is_no_device() {
        let root = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            BlockDevices::open(&Owner::Target, root.path(), &[name.to_owned()])
                .unwrap_err()
                .to_string()
        };
        assert!(open("vdz").contains("class/block/vdz/stat"));
        assert!(open("..").contains("no name of a device"));
        assert!(open("../../etc").contains("..!..!etc"));
    }
}
