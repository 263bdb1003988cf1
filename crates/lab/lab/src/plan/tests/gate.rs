// SPDX-License-Identifier: Apache-2.0
//! Tests of plans with gates.

use super::*;

/// A plan on two platforms with one gate, whose section has these lines.
fn of_gate(lines: &str) -> Result<Plan, Diagnostics> {
    let text = format!(
        "name = \"gated\"\n[[platform]]\nkind = \"native\"\n[[platform]]\nkind = \"qemu\"\nname = \"vm\"\n\
         [[workload]]\nkind = \"idle\"\n[[gate]]\n{lines}\n"
    );
    Plan::read("plan.toml", &text, &Catalogue::standard())
}

#[test]
fn a_gate_limits_a_change_or_a_tax_of_all_treatments_a_platform_or_a_treatment() {
    for (lines, expected) in [
        (
            "limit = \"> +5%\"",
            "cpu.per_work > +5% (change of the tax from a base run)",
        ),
        (
            "limit = \"< -5 %\"\nof = \"cost\"\nplatform = \"native\"",
            "cpu.per_work of native < -5 % (change of the cost from a base run)",
        ),
        (
            "limit = \"> 2.5x\"\nplatform = \"vm\"",
            "cpu.per_work of vm > 2.5x (tax of the run)",
        ),
        (
            "limit = \"> 2x\"\ntreatment = \"vm\"",
            "cpu.per_work of vm > 2x (tax of the run)",
        ),
    ] {
        let plan = of_gate(&format!("metric = \"cpu.per_work\"\n{lines}")).unwrap();
        let gates: Vec<String> = plan.gates.iter().map(ToString::to_string).collect();
        assert_eq!(gates, [expected]);
    }
}

#[test]
fn every_mistake_of_a_gate_is_refused_with_its_cause() {
    for (lines, cause) in [
        ("limit = \"> 5%\"", "this gate has no `metric`"),
        ("metric = \"cpu.per_work\"", "this gate has no `limit`"),
        ("limit = \"5%\"\nmetric = \"cpu.per_work\"", "no `>` or `<`"),
        (
            "limit = \"> 5\"\nmetric = \"cpu.per_work\"",
            "does not end with `%` or `x`",
        ),
        ("limit = \"> 0x\"\nmetric = \"cpu.per_work\"", "above 0"),
        ("limit = \"> 5%\"\nmetric = \"a b\"", "a metric is one word"),
        (
            "limit = \"> 5%\"\nmetric = \"own.rate\"",
            "no command of this plan has the metric",
        ),
        (
            "limit = \"> 5%\"\nmetric = \"cpu.per_work\"\nplatform = \"qemu\"",
            "no platform called `qemu`",
        ),
        (
            "limit = \"> 5%\"\nmetric = \"cpu.per_work\"\ntreatment = \"wm\"",
            "no treatment `wm`",
        ),
        (
            "limit = \"> 5%\"\nmetric = \"cpu.per_work\"\ntreatment = \"vm\"\nplatform = \"vm\"",
            "a gate has one of",
        ),
        (
            "limit = \"> 2x\"\nmetric = \"cpu.per_work\"\nof = \"cost\"",
            "is for a tax",
        ),
        (
            "limit = \"> 2x\"\nmetric = \"cpu.per_work\"\nplatform = \"native\"",
            "has a baseline",
        ),
        (
            "limit = \"> 5%\"\nmetric = \"cpu.per_work\"\nof = \"taxes\"",
            "\"tax\" or \"cost\"",
        ),
        (
            "limit = \"> 5%\"\nmetric = \"cpu.per_work\"\nbase = \"x\"",
            "no key `base`",
        ),
    ] {
        let found = of_gate(lines).unwrap_err().to_string();
        assert!(found.contains(cause), "{lines}: {found}");
    }
}
