// SPDX-License-Identifier: Apache-2.0
//! The reports of vtax's load generators: their checks, and the lateness of the generator.

use super::super::output::{SECONDS, ascending, garbage, json, number, positive};
use super::super::{Lateness, Outcome};
use super::expression::Scope;
use crate::generator::report::decoded;
use crate::generator::{Report, Summary};
use hdrhistogram::Histogram;
use vtax_core::Quantity;

/// Reads a report of that mode, and its histogram if it has one.
pub fn read(driver: &str, raw: &[u8], mode: &str) -> Outcome<(Report, Option<Histogram<u64>>)> {
    let report: Report = json(driver, raw)?;
    if report.mode != mode {
        let detail = format!("its mode is {:?}, not {mode:?}", report.mode);
        return Err(garbage(driver, &detail));
    }
    positive(driver, "seconds", Some(report.seconds))?;
    let latency = &report.latency;
    let lag = report.lag.unwrap_or_default();
    for time in [
        latency.p50,
        latency.p90,
        latency.p99,
        latency.p999,
        latency.max,
        latency.mean,
        lag.p99,
    ] {
        number(driver, "latency", Some(time))?;
    }
    ascending(driver, latency)?;
    for (name, count) in [("requests", report.requests), ("bytes", report.bytes)] {
        number(driver, name, Some(count as f64))?;
    }
    let (failed, due) = (report.errors.total(), report.due.unwrap_or(u64::MAX));
    if failed > due || latency.count > due {
        let timed = latency.count;
        let detail =
            format!("of {due} requests that were due, {failed} failed and {timed} were timed");
        return Err(garbage(driver, &detail));
    }
    let histogram = decoded(&report.histogram)
        .map_err(|cause| garbage(driver, &format!("its histogram cannot be read: {cause}")))?;
    match &histogram {
        Some(times) if times.len() != latency.count => {
            let (summed, listed) = (latency.count, times.len());
            let detail =
                format!("its latency is of {summed} requests, and its histogram of {listed}");
            Err(garbage(driver, &detail))
        }
        _ => Ok((report, histogram)),
    }
}

/// Gives a report's numbers their names.
pub fn name(report: &Report, scope: &mut Scope) {
    let count = |count: Option<u64>| count.map_or(f64::NAN, |count| count as f64);
    for (name, value) in [
        ("report.seconds", report.seconds),
        ("report.requests", report.requests as f64),
        ("report.bytes", report.bytes as f64),
        ("report.due", count(report.due)),
        ("report.errors", report.errors.total() as f64),
        ("report.timed", report.latency.count as f64),
        ("report.rate", report.rate.unwrap_or(f64::NAN)),
        ("report.last_answer", report.last_answer.unwrap_or(f64::NAN)),
        ("report.lag", report.lag.map_or(f64::NAN, |lag| lag.p99)),
    ] {
        scope.set(name, value);
    }
    scope.set("report.failed", report.errors.to_string());
    name_latency(&report.latency, scope);
}

/// Gives the percentiles of a latency, its longest and its mean time their names.
pub fn name_latency(times: &Summary, scope: &mut Scope) {
    for (name, value) in [
        ("p50", times.p50),
        ("p90", times.p90),
        ("p99", times.p99),
        ("p999", times.p999),
        ("max", times.max),
        ("mean", times.mean),
    ] {
        scope.set(name, value);
    }
}

/// The most lag that the resolution of the timers explains, in ticks: a timer waits for the tick after its time, and the
/// generator then sends what was due in between.
const TICKS_OF_LAG: f64 = 1.5;

/// The lateness of the generator in an open loop.
pub fn lateness(report: &Report) -> Option<Lateness> {
    let (lag, latency) = (report.lag?, &report.latency);
    // The quantile that leads is judged first.
    let quantiles = [
        ("99th percentiles", lag.p99, latency.p99),
        ("medians", lag.p50, latency.p50),
    ];
    let late = quantiles
        .into_iter()
        .find(|(_, lag, latency)| *lag > 0.5 * latency);
    let (of, by, then) = late?;
    let is_of_timer = report
        .timer
        .is_some_and(|tick| lag.p99 <= TICKS_OF_LAG * tick);
    let cause = match report.timer {
        Some(tick) if is_of_timer => format!(
            "its timers have a resolution of {} (no high resolution timers)",
            Quantity::new(tick, SECONDS)
        ),
        _ => "the client lacks CPU time".to_owned(),
    };
    Some(Lateness {
        is_typical: lag.p50 > 0.5 * latency.p50,
        is_of_timer,
        text: format!(
            "the load generator itself sent late, by {} of a latency of {} ({of}): {cause}",
            Quantity::new(by, SECONDS),
            Quantity::new(then, SECONDS)
        ),
    })
}
