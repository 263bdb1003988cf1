// SPDX-License-Identifier: Apache-2.0
//! `vtax advise`: the knobs that would save a guest processor time, and the plan that measures them.

use super::json;
use crate::Outcome;
use crate::cli::AdviseArgs;
use crate::output::{fail, outln};
use crate::progress::note;
use std::collections::BTreeSet;
use vtax_core::{Base, Unit};
use vtax_lab::plan::shipped;
use vtax_record::advise::{self, Advice, KnobAdvice, Range};
use vtax_results::numbers::{percent, plain};
use vtax_results::text::{clean, columns, pad};

/// The plan that measures the knobs, whose platforms are reduced to them.
const PLAN: &str = "moderation";

pub fn advise(arguments: &AdviseArgs) -> Outcome {
    let mut rates = advise::read(&arguments.source)?;
    if let Some(wanted) = &arguments.guest {
        rates.retain(|rates| rates.guest == *wanted);
        if rates.is_empty() {
            fail!("{} has no guest {wanted}", arguments.source.display());
        }
    }
    let advice: Vec<Advice> = rates.iter().map(advise::advise).collect();
    let platforms = platforms(&advice);
    if let Some(path) = &arguments.output
        && !platforms.is_empty()
    {
        let plan = shipped::named(PLAN).map(|(_, text)| reduced(text, &platforms));
        vtax_files::write(path, plan.unwrap_or_default().as_bytes())?;
    }
    match arguments.format.is_json() {
        true => json(&advice)?,
        false if advice.is_empty() => outln!("no guests")?,
        false => advice.iter().try_for_each(print)?,
    }
    match &arguments.output {
        _ if platforms.is_empty() => note("no knob is advised, so that there is no plan to write"),
        Some(path) => note(&format!(
            "{} measures the advised knobs: vtax run {0}",
            path.display()
        )),
        None => note("-o FILE writes the plan that measures the advised knobs"),
    }
    Ok(())
}

fn print(advice: &Advice) -> Outcome {
    let rates = &advice.rates;
    let exits = match rates.exits {
        Some(exits) => format!("{exits:.0} exits/s"),
        None => "exits not counted".to_owned(),
    };
    outln!(
        "{} ({}): {:.3} processors, {:.0} frames/s received, {:.0} sent, {exits}, in {:.0} s",
        clean(&rates.guest),
        clean(&rates.platform),
        rates.cpu,
        rates.received,
        rates.sent,
        rates.seconds
    )?;
    let width = advice.knobs.iter().map(|one| columns(one.knob)).max();
    for one in &advice.knobs {
        outln!(
            "  {} {}  {}",
            if one.is_advised { "+" } else { "-" },
            pad(one.knob, width.unwrap_or(0)),
            words(one)
        )?;
    }
    Ok(())
}

/// The estimate and the reason of a knob.
fn words(one: &KnobAdvice) -> String {
    let estimate = one.saved_processors.zip(one.saved_share);
    let estimate = estimate.map(|(Range { low, high }, share)| {
        let delay = if one.delay_seconds > 0.0 { format!(
            "; delays a frame by up to {}",
            plain(one.delay_seconds, Unit::from_base(Base::Second))
        ) } else { String::new() };
        // A knob that cannot save costs more.
        let (verb, low, high, share) = if high <= 0.0 { (
            "costs",
            0.0 - high,
            0.0 - low,
            [0.0 - share.high, 0.0 - share.low],
        ) } else { ("saves", low, high, [share.low, share.high]) };
        let [least, most] = share.map(percent);
        format!("estimate: {verb} {low:.3} to {high:.3} processors, {least} to {most} of its cost{delay}")
    });
    let parts = estimate.into_iter().chain(one.reason.clone());
    parts.collect::<Vec<_>>().join("; ")
}

/// The platforms of the plan that measure the advised knobs.
fn platforms(advice: &[Advice]) -> BTreeSet<&'static str> {
    let knobs = advice.iter().flat_map(|advice| &advice.knobs);
    knobs
        .filter(|knob| knob.is_advised)
        .filter_map(|knob| knob.platform)
        .collect()
}

/// The text of the plan with its baseline, these platforms and QEMU's own virtio-net beside its timer.
fn reduced(text: &str, platforms: &BTreeSet<&str>) -> String {
    let mut kept = String::new();
    let mut table = String::new();
    let mut keep = |table: &str| {
        let name = table
            .lines()
            .find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        let is_kept = !table.starts_with("[[platform]]")
            || name.is_some_and(|name| {
                name == "off"
                    || platforms.contains(name)
                    || (name == "tap" && platforms.contains("tap-timer"))
            });
        if is_kept {
            kept.push_str(table);
        }
    };
    for line in text.split_inclusive('\n') {
        if line.starts_with('[') {
            keep(&table);
            table.clear();
        }
        table.push_str(line);
    }
    keep(&table);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_lab::plan::{Catalogue, Plan};

    #[test]
    fn the_plan_of_an_advice_has_the_baseline_and_the_advised_knobs() {
        let (_, text) = shipped::named(PLAN).unwrap();
        let names = |platforms: &[&'static str]| -> Vec<String> {
            let text = reduced(text, &platforms.iter().copied().collect());
            let plan = Plan::read("advised", &text, &Catalogue::standard()).unwrap();
            assert!(plan.workloads.len() > 5);
            plan.platforms.iter().map(|one| one.name.clone()).collect()
        };
        assert_eq!(names(&["adaptive"]), ["off", "adaptive"]);
        assert_eq!(names(&["tap-timer"]), ["off", "tap", "tap-timer"]);
    }

    #[test]
    fn every_knob_with_a_platform_is_in_the_plan() {
        let (_, text) = shipped::named(PLAN).unwrap();
        let plan = Plan::read(PLAN, text, &Catalogue::standard()).unwrap();
        for platform in advise::platforms() {
            assert!(
                plan.platforms.iter().any(|one| one.name == platform),
                "{platform}"
            );
        }
    }
}
