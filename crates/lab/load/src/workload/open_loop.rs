// SPDX-License-Identifier: Apache-2.0
//! vtax's load generators in workloads: the settings of an open loop, the command line, and the parser of a report.

use super::check::Claim;
use super::output::{
    BIT_RATE, Metrics, REQUEST_RATE, SECONDS, ascending, garbage, json, number, positive, work,
};
use super::*;
use crate::generator::report::decoded;
use crate::generator::{Arguments, Arrival, Report};
use std::net::SocketAddr;
use vtax_core::Quantity;

/// The rate of requests.
pub const RATE: Parameter =
    Parameter::new("load.rate", Domain::Number(0.1, 1e6), "1000").help("requests per second");
/// When requests are due.
pub const ARRIVAL: Parameter = Parameter::new(
    "load.arrival",
    Domain::Choice(&["poisson", "constant"]),
    "poisson",
)
.help("how requests are spaced: as from many independent users, or equally");
/// The seed of arrivals.
pub const SEED: Parameter = Parameter::new("load.seed", Domain::Integer(0, i64::MAX), "1")
    .help("seed of the Poisson arrivals [default: one for each block, from the plan's seed; in an emulated host 1]");
/// The most requests in progress.
pub const CONNECTIONS: Parameter =
    Parameter::new("load.connections", Domain::Integer(1, 10_000), "100")
        .help("most connections at once; requests beyond wait, and the wait counts");
/// How long a request may take.
pub const TIMEOUT: Parameter = Parameter::new("load.timeout_s", Domain::Number(0.01, 600.0), "5")
    .help("seconds after which a request is given up");
/// The level that a ramp varies.
pub const LEVEL: LoadLevel = LoadLevel::of(&RATE, REQUEST_RATE, 1.0, "requests asked for");

/// Returns the generator's arguments for these settings.
pub fn arguments(address: SocketAddr, settings: &Settings, timing: Timing) -> Arguments {
    Arguments {
        connections: u32::try_from(CONNECTIONS.integer(settings)).unwrap_or(1),
        warmup: timing.warmup.as_secs_f64(),
        duration: timing.duration.as_secs_f64(),
        rate: RATE.number(settings),
        arrival: match ARRIVAL.text(settings) {
            "constant" => Arrival::Constant,
            _ => Arrival::Poisson,
        },
        seed: SEED.integer(settings).unsigned_abs(),
        timeout: TIMEOUT.number(settings),
        ..Arguments::new(address)
    }
}

/// As [`arguments`], for one level after the other.
pub fn ramp(
    address: SocketAddr,
    levels: &[Settings],
    first: Timing,
    settle: Duration,
) -> Option<Arguments> {
    Some(Arguments {
        ramp: levels.iter().map(|level| RATE.number(level)).collect(),
        settle: Some(settle.as_secs_f64()),
        ..arguments(address, levels.first()?, first)
    })
}

/// The command line of a load generator: this program again, as a process of its own.
pub fn generator(name: &str, flags: Vec<String>) -> Outcome<CommandLine> {
    let program = std::env::current_exe().map_err(HostError::process(
        "find",
        "the vtax program, which is also the load generator",
    ))?;
    let program = program.to_string_lossy().into_owned();
    let begin = [program, "load".to_owned(), name.to_owned()];
    Ok(begin.into_iter().chain(flags).collect())
}

/// Reads a report of that mode, and its histogram if it has one.
pub fn read(driver: &str, raw: &[u8], mode: &str) -> Outcome<(Report, Option<Histogram<u64>>)> {
    let report: Report = json(driver, raw)?;
    let histogram = verify(driver, &report, mode)?;
    Ok((report, histogram))
}

fn verify(driver: &str, report: &Report, mode: &str) -> Outcome<Option<Histogram<u64>>> {
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
        _ => Ok(histogram),
    }
}

/// Returns a histogram with its name, as results hold it, if there is one.
pub fn named(name: &str, histogram: Option<Histogram<u64>>) -> Vec<(String, Histogram<u64>)> {
    let named = histogram.map(|histogram| (name.to_owned(), histogram));
    named.into_iter().collect()
}

/// A load generator of vtax in open loop.
pub struct OpenLoop {
    /// Its name after `vtax load`.
    pub generator: &'static str,
    /// The protocol of its requests, for titles.
    pub what: &'static str,
}

/// The most lag that the resolution of the timers explains, in ticks: a timer waits for the tick after its time, and the
/// generator then sends what was due in between.
const TICKS_OF_LAG: f64 = 1.5;

impl OpenLoop {
    fn driver(&self) -> String {
        format!("vtax load {}", self.generator)
    }

    /// The command with these flags. Requests that are due at the very end may take as long as the
    /// timeout.
    pub fn command(&self, flags: Vec<String>, timeout: f64) -> Outcome<LoadCommand> {
        let line = generator(self.generator, flags)?;
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or_default();
        Ok(LoadCommand::client(line).patient(timeout))
    }

    /// Reads the output of one rate.
    pub fn parse(&self, raw: &[u8]) -> Outcome<WorkloadResult> {
        let report: Report = json(&self.driver(), raw)?;
        self.result(&report)
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "counts of requests are far below 2^53"
    )]
    fn result(&self, report: &Report) -> Outcome<WorkloadResult> {
        let (driver, what) = (self.driver(), self.what);
        let histogram = verify(&driver, report, "open")?;
        let failed = report.errors;
        if report.requests == 0 {
            let detail = format!(
                "not one answer arrived in the measured part ({failed}); check the link's settings \
                 and the service in the target, or measure longer"
            );
            return Err(garbage(&driver, &detail));
        }
        let missing = |name: &str| garbage(&driver, &format!("`{name}` is missing"));
        let due = report.due.ok_or_else(|| missing("due"))? as f64;
        let lag = report.lag.ok_or_else(|| missing("lag"))?;
        let (answered, errors) = (report.requests as f64, failed.total() as f64);
        let latency = &report.latency;

        let mut metrics = Metrics::default();
        metrics.latency(&format!("{what} latency"), latency);
        let rate = answered / report.seconds;
        let title = format!("{what} requests answered");
        metrics.add_in(metric::RATE, rate, REQUEST_RATE, &title);
        metrics.add(metric::OFFERED, due / report.seconds, what);
        let throughput = 8.0 * report.bytes as f64 / report.seconds;
        let title = format!("{what} payload received");
        metrics.add_in(metric::THROUGHPUT, throughput, BIT_RATE, &title);
        let share = if due > 0.0 { 100.0 * errors / due } else { 0.0 };
        let title = format!("{what} requests that failed");
        metrics.add(metric::ERRORS, share, &title);
        metrics.add(metric::LAG_P99, lag.p99, "");

        let (mut suspect, mut unreached) = (Vec::new(), None);
        // Compared with the requests that were due, not with the requested rate: Poisson arrivals vary. A few requests
        // are always in progress when the window closes.
        if answered < 0.95 * due && due - answered >= 10.0 {
            unreached = Some(format!(
                "only {} of the {} that were due were answered ({:.0} %): the target or the load generator is saturated",
                Quantity::new(rate, REQUEST_RATE),
                Quantity::new(due / report.seconds, REQUEST_RATE),
                100.0 * answered / due
            ));
        }
        if share > 0.1 {
            suspect.push(format!("{share:.1} % of the requests failed: {failed}"));
        }
        // The quantile that leads is judged first.
        let quantiles = [
            ("99th percentiles", lag.p99, latency.p99),
            ("medians", lag.p50, latency.p50),
        ];
        let late = quantiles
            .into_iter()
            .find(|(_, lag, latency)| *lag > 0.5 * latency);
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
        let late = late.map(|(of, by, latency_then)| Lateness {
            is_typical: lag.p50 > 0.5 * latency.p50,
            is_of_timer,
            text: format!(
                "the load generator itself sent late, by {} of a latency of {} ({of}): {cause}",
                Quantity::new(by, SECONDS),
                Quantity::new(latency_then, SECONDS)
            ),
        });
        if let Some(asked) = report.rate {
            let due = due / report.seconds;
            suspect.extend(check::random_excess(
                "the rate of requests due",
                due,
                asked,
                REQUEST_RATE,
                report.seconds,
            ));
        }
        let phrase = format!("serve 1 {what} request");
        let work = WorkDone::Rate(work(rate, Base::Request, &phrase));
        Ok(WorkloadResult {
            histograms: named("latency", histogram),
            claims: Claim::rates(rate, throughput / 8.0),
            suspect,
            unreached,
            late,
            ..metrics.result(work)
        })
    }
}
