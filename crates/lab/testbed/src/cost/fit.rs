// SPDX-License-Identifier: Apache-2.0
//! The fit of `sandy-bridge-sleep`: its cycles are those of tables I and II of Shea, Wang and Liu, as nearly as two prices allow.

use super::CostModel;
use std::path::Path;

/// Of 10 Mb/s received and sent by bare metal and by KVM with QEMU's own back end: the published cycles a second, and the
/// instructions and VM exits a second of `plans/papers/shea-tables.toml`, quick, on 2026-11-26.
const TABLES: [(f64, f64, f64); 4] = [
    (11.5e6, 20.36e6, 0.0),
    (51.8e6, 95.50e6, 2039.0),
    (4.1e6, 19.25e6, 0.0),
    (33.4e6, 91.37e6, 4244.0),
];

/// The sum of squares of the logarithms of modelled over published cycles.
fn misfit(instruction: f64, vm_exit: f64) -> f64 {
    let errors = TABLES.map(|(published, instructions, exits)| {
        let modelled = instruction * instructions + vm_exit * exits;
        (modelled / published).ln()
    });
    errors.iter().map(|error| error * error).sum()
}

#[test]
fn the_prices_of_the_sleep_model_are_the_least_squares_of_tables_i_and_ii() {
    let model = CostModel::find(Path::new("sandy-bridge-sleep")).unwrap();
    let (instruction, vm_exit) = (model.cycles.instruction, model.cycles.vm_exit);
    let best = misfit(instruction, vm_exit);
    for steps in [-2.0, -1.0, 1.0, 2.0] {
        assert!(
            misfit(instruction + 0.01 * steps, vm_exit) > best,
            "{steps}"
        );
        assert!(
            misfit(instruction, vm_exit + 100.0 * steps) > best,
            "{steps}"
        );
    }
    // The price of every other event is in that of instructions.
    let others = [
        model.cycles.interrupt,
        model.cycles.context_switch,
        model.cycles.copied_byte,
    ];
    assert_eq!(others, [0.0; 3]);
    let factor = (best / TABLES.len() as f64).sqrt().exp();
    assert!((factor - 1.48).abs() < 0.01, "{factor}");
}
