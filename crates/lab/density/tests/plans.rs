// SPDX-License-Identifier: Apache-2.0
//! The treatments of the plans of this repository, their options and their order. Continued results depend on all of
//! them.

use std::fmt::Write;
use std::path::Path;
use vtax_density::plan::Plan;
use vtax_lab::plan::{Order, schedule};

const PLANS: [&str; 4] = [
    "density.toml",
    "papers/bratterud-emulated.toml",
    "papers/bratterud-tables.toml",
    "papers/bratterud-tuning.toml",
];

fn described(name: &str, is_quick: bool) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../plans")
        .join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let plan = Plan::read(name, &text, is_quick).unwrap();
    let mut printed = format!(
        "{name}, quick {}: {:?}, seed {}, repetitions {}\n{:?}\n",
        plan.is_quick, plan.name, plan.seed, plan.repetitions, plan.method
    );
    for variant in &plan.variants {
        let treatment = &variant.treatment;
        writeln!(
            printed,
            "{}: {} {} {} {:?}\n  {}, up to {}, host {:?}, if present {}",
            treatment.label,
            treatment.platform,
            treatment.workload,
            treatment.platform_kind,
            treatment.factors,
            variant.guests.program().unwrap_or("no program"),
            variant.maximum,
            variant.host.0,
            variant.if_present
        )
        .unwrap();
    }
    let order: Vec<String> = schedule(
        plan.variants.len(),
        plan.repetitions,
        Order::Interleaved,
        plan.seed,
    )
    .iter()
    .map(|scheduled| scheduled.treatment.to_string())
    .collect();
    writeln!(printed, "order {}\n", order.join(" ")).unwrap();
    printed
}

#[test]
fn every_plan_comes_to_what_it_always_came_to() {
    let printed: String = PLANS
        .iter()
        .flat_map(|name| [described(name, false), described(name, true)])
        .collect();
    let known = include_str!("plans.txt");
    for (line, (now, then)) in printed.lines().zip(known.lines()).enumerate() {
        assert_eq!(now, then, "line {} of plans.txt", line + 1);
    }
    assert_eq!(printed.len(), known.len(), "{printed}");
}

#[test]
fn the_cloud_has_guests_of_every_work() {
    for is_quick in [false, true] {
        let printed = described("papers/bratterud-cloud.toml", is_quick);
        for work in ["none", "cpu", "disk", "network"] {
            assert!(
                printed.contains(&format!("container work={work}")),
                "{printed}"
            );
        }
    }
}
