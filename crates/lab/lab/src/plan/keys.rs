// SPDX-License-Identifier: Apache-2.0
//! The keys of a plan itself, each declared once: the reader takes their bounds and defaults from these tables, and
//! `vtax explain` and the reference of keys print them.

use std::time::Duration;
use vtax_core::metric;
use vtax_host::settings::{
    Domain::{self, Choice, Integer, Number, Text},
    Parameter,
};

/// The longest time of a plan.
const LONGEST_TIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// Any time.
pub(super) const ANY_TIME: &str = "a time between 0ns and 30 days";
/// The time of a window.
pub(super) const WINDOW: &str = "a time between 100ms and 30 days";
const CAP: &str = "a time between 1s and 30 days";

/// The shortest time that a rule of texts permits; `None` where it is no rule of times.
pub(super) fn shortest(rule: &str) -> Option<Duration> {
    match rule {
        ANY_TIME => Some(Duration::ZERO),
        WINDOW => Some(Duration::from_millis(100)),
        CAP => Some(Duration::from_secs(1)),
        _ => None,
    }
}

/// Reads a time with its unit, such as `1h30m`; `None` where it is none of a plan.
pub(super) fn time(text: &str, least: Duration) -> Option<Duration> {
    let span = text.parse::<jiff::SignedDuration>().ok()?;
    let time = Duration::try_from(span).ok()?;
    (least..=LONGEST_TIME).contains(&time).then_some(time)
}

const BLOCKS: Domain = Integer(1, 100_000);

/// Declares tables of keys: the key, its values, its default if it has one, and its meaning. A text without a default
/// stands for a value that the reader takes apart by itself.
macro_rules! keys {
    () => { None };
    ($($(#[$about:meta])* $table:ident { $($key:literal: $domain:expr, [$($default:expr)?] $help:literal;)* })*) => {
        $($(#[$about])* pub const $table: &[Parameter] = &[$(Parameter {
            key: $key,
            domain: $domain,
            default: keys!($($default)?),
            help: $help,
        }),*];)*
    };
    ($default:expr) => { Some($default) };
}

keys! {
    /// The keys of a plan.
    PLAN {
        "name": Text("name"), [] "its name, also that of the results directory: letters, digits and -_.+";
        "description": Text("text"), [] "its purpose, in a sentence";
        "seed": Integer(0, i64::MAX), ["1"] "the seed of the order of trials: the same seed gives the same order";
        "repetitions": BLOCKS, ["5"] "blocks, each of which holds every treatment once";
        "seeds": BLOCKS, [] "in place of `repetitions`: in the testbed each block has a seed of its own";
        "draws": BLOCKS, [] "in place of `repetitions`: each block has a seed and a draw of its own";
        "warmup": Text(ANY_TIME), ["2s"] "how long a load runs before it is measured";
        "duration": Text(WINDOW), ["10s"] "the measured window of loads of a fixed duration";
        "order": Choice(&["interleaved", "sequential"]), ["interleaved"] "the order of trials; `sequential` is for debugging a plan";
        "sample_hz": Number(0.1, 50.0), ["1"] "readings of the counters in a second";
        "idle": Text(ANY_TIME), ["5s"] "the idle phase before each block, with a meter of this host; `0s`: none";
        "meters": Text("list of names"), [] "the meters to read, such as `[\"auto\"]`, the default";
        "canary": Choice(&["auto", "on", "off"]), ["auto"] "the reference of this host's speed beside trials; `auto`: on hosts that are not emulated";
        "minimum_effect": Number(0.0, 10.0), ["0.02"] "a relative difference of no interest: what is surely smaller is called the same";
        "estimate": Choice(&["mean", "typical"]), ["mean"] "what ratios are of: the mean of all pairs of trials, or the typical pair, which rare slow trials do not move";
        "baseline": Text("platform, or section of levels"), [] "what every treatment is compared with";
        "stop": Text("section"), [] "the rule to stop before the last block";
        "quick": Text("section"), [] "what the quick profile changes";
        "image": Text("image"), [] "the files of guests whose workload is a command";
        "settings": Text("section"), [] "settings of every trial";
        "factors": Text("section"), [] "settings with the levels that are varied";
        "platform": Text("sections"), [] "the platforms, each with its settings";
        "workload": Text("sections"), [] "the workloads, each with its settings";
        "variant": Text("sections"), [] "what is compared on each platform, such as two versions: each with its name and its own settings";
        "neighbour": Text("sections"), [] "guests beside the target";
        "again": Text("section"), [] "trials that may run again because they do not count";
        "places": Text("section"), [] "hosts of the client, where that is another machine";
        "gate": Text("sections"), [] "limits that runs and comparisons are judged by";
    }
    /// The keys of `[again]`.
    AGAIN {
        "share": Number(0.0, 10.0), ["0.5"] "the largest share of all trials that may run again";
    }
    /// The keys of `[stop]`.
    STOP {
        "rule": Choice(&["fixed", "precision", "until"]), [] "`fixed`: all blocks run; `precision`: until means are known; `until`: until ratios are";
        "until": Text("end"), [] "with the rule `until`: `METRIC ± 2%`, or `decided: GATE`";
        "metric": Text("metric"), [metric::CPU_PER_WORK.name] "the metric whose interval decides";
        "width": Number(0.001, 1.0), ["0.05"] "the wanted half width of each interval, relative to the mean";
        "minimum": Integer(2, 100_000), ["5"] "blocks that run in any case";
        "time_cap": Text(CAP), ["24h"] "no block starts after this time";
    }
    /// The keys of `[quick]`.
    QUICK {
        "repetitions": BLOCKS, [] "blocks; at most 3 without this key";
        "warmup": Text(ANY_TIME), ["1s"] "the warm-up; at most 1 s without this key";
        "duration": Text(WINDOW), ["3s"] "the window; at most 3 s without this key";
        "sample_hz": Number(0.1, 50.0), [] "readings of the counters in a second";
        "settings": Text("section"), [] "settings of every trial";
    }
}

/// The tables, each with its name.
pub const ALL: [(&str, &[Parameter]); 4] = [
    ("the plan", PLAN),
    ("[again]", AGAIN),
    ("[stop]", STOP),
    ("[quick]", QUICK),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_within_the_bounds_of_its_key() {
        for key in [PLAN, AGAIN, STOP, QUICK].concat() {
            let Some(default) = key.default else { continue };
            let is_valid = match key.domain {
                Integer(low, high) => default.parse().is_ok_and(|it| (low..=high).contains(&it)),
                Number(low, high) => default.parse().is_ok_and(|it| (low..=high).contains(&it)),
                Choice(words) => words.contains(&default),
                Text(rule) => shortest(rule).is_none_or(|least| time(default, least).is_some()),
                Domain::Bool => false,
            };
            assert!(is_valid, "{}: {default}", key.key);
        }
    }
}
