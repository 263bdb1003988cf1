// SPDX-License-Identifier: Apache-2.0
//! `/proc/interrupts` and `/proc/softirqs`: one row for each source, one column for each CPU (`show_interrupts` of
//! `kernel/irq/proc.c`).

use crate::text;

/// One row of the table, as the kernel printed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuRow<'a> {
    /// The text before the colon: `28`, `LOC`, `NET_RX`.
    pub label: &'a [u8],
    /// The text after the counts: chip, hardware number, device; or a description.
    pub description: &'a [u8],
    /// The sum over the CPUs.
    pub sum: u64,
}

/// How many CPUs the table's first line names; `None` if it is not such a table.
#[must_use]
pub fn cpu_columns(table: &[u8]) -> Option<usize> {
    let header = text::lines(table).next()?;
    let count = text::fields(header)
        .take_while(|field| field.starts_with(b"CPU"))
        .count();
    (count > 0).then_some(count)
}

/// The rows of a table with that many CPUs; lines that are not rows are skipped. `ERR` and `MIS` have one number, for
/// any number of CPUs.
pub fn cpu_rows(table: &[u8], columns: usize) -> impl Iterator<Item = CpuRow<'_>> {
    text::lines(table).skip(1).filter_map(move |line| {
        let (label, mut rest) = text::labelled(line)?;
        let mut sum = 0u64;
        let mut counted = 0;
        while counted < columns {
            let field = rest.trim_ascii_start();
            let end = field
                .iter()
                .position(u8::is_ascii_whitespace)
                .unwrap_or(field.len());
            let (count, after) = field.split_at_checked(end)?;
            let Some(count) = text::number(count) else {
                break;
            };
            sum = sum.saturating_add(count);
            rest = after;
            counted += 1;
        }
        (counted > 0).then_some(CpuRow {
            label,
            description: rest.trim_ascii(),
            sum,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_are_added_over_the_cpus_and_descriptions_follow_them() {
        let table =
            b"     CPU0  CPU1\n 24:  1  2  PCI-MSI 0-edge  eth 0\nLOC: 3 4  Local timer\nERR: 7\n";
        let columns = cpu_columns(table).unwrap();
        let rows: Vec<CpuRow<'_>> = cpu_rows(table, columns).collect();
        let row = |label, description, sum| CpuRow {
            label,
            description,
            sum,
        };
        let expected = [
            row(b"24".as_slice(), b"PCI-MSI 0-edge  eth 0".as_slice(), 3),
            row(b"LOC", b"Local timer", 7),
            row(b"ERR", b"", 7),
        ];
        assert_eq!(rows, expected);
        assert_eq!(cpu_columns(b"no table"), None);
    }

    proptest! {
        #[test]
        fn any_table_is_read_without_a_panic(table: Vec<u8>, columns in 0usize..4) {
            let _ = cpu_columns(&table);
            cpu_rows(&table, columns).for_each(drop);
        }
    }
}
