// SPDX-License-Identifier: Apache-2.0
//! `http-rate`: HTTP requests to Apache in the target at a fixed rate, and how long they take,
//! counted from when each was due.

use super::open_loop::{self, OpenLoop};
use super::*;
use crate::generator;
use crate::http::Arguments;

/// The workload.
pub struct HttpRate;

const LOOP: OpenLoop = OpenLoop {
    generator: "http",
    what: "HTTP",
};
/// The size of each answer.
pub const FILE_BYTES: Parameter =
    Parameter::new("load.file_bytes", Domain::Integer(1, 1_000_000_000), "1000")
        .help("size of each answer in bytes");

/// Whether connections are kept.
pub const KEEPALIVE: Parameter = Parameter::new("load.keepalive", Domain::Bool, "true")
    .help("whether a connection carries many requests; false: each request opens one, which the server closes");

fn command(common: generator::Arguments, settings: &Settings) -> Outcome<LoadCommand> {
    let timeout = common.timeout;
    let arguments = Arguments {
        common,
        path: apache::PATH.to_owned(),
        closed: false,
        downloads: None,
        close: !KEEPALIVE.bool(settings),
    };
    LOOP.command(arguments.to_flags(), timeout)
}

static ABOUT: About = About {
    kind: "http-rate",
    summary: "HTTP requests at a fixed rate, open loop (Apache in the target)",
    parameters: &[
        open_loop::RATE,
        open_loop::ARRIVAL,
        open_loop::SEED,
        open_loop::CONNECTIONS,
        FILE_BYTES,
        KEEPALIVE,
        open_loop::TIMEOUT,
    ],
    target_programs: apache::PROGRAMS,
    level: Some(open_loop::LEVEL),
    ..About::NONE
};

impl Workload for HttpRate {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let connections = open_loop::CONNECTIONS.integer(context.settings);
        apache::serve(context, FILE_BYTES.integer(context.settings), connections)
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let (address, settings) = (apache::socket(spec.address), spec.settings);
        command(
            open_loop::arguments(address, settings, spec.timing),
            settings,
        )
    }

    fn parse(&self, raw: &[u8], _settings: &Settings, _timing: Timing) -> Outcome<WorkloadResult> {
        LOOP.parse(raw)
    }

    fn ramp(
        &self,
        address: IpAddr,
        levels: &[Settings],
        first: Timing,
        settle: Duration,
    ) -> Outcome<Option<LoadCommand>> {
        let common = open_loop::ramp(apache::socket(address), levels, first, settle);
        let command = |(common, level)| command(common, level);
        common.zip(levels.first()).map(command).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(requests: u64, timeouts: u64, lag: f64) -> String {
        format!(
            r#"{{"mode":"open","seconds":2.0,"requests":{requests},"bytes":{bytes},"due":2000,
            "errors":{{"connection":0,"status":0,"timeout":{timeouts},"unsent":0}},
            "latency":{{"count":2000,"mean":0.001,"p50":0.001,"p90":0.002,"p99":0.003,"p999":0.004,"max":0.005}},
            "lag":{{"count":2000,"mean":{lag},"p50":{lag},"p90":{lag},"p99":{lag},"p999":{lag},"max":{lag}}},
            "connections":5,"cpu_seconds":0.1,"download_seconds":[]}}"#,
            bytes = requests * 1000
        )
    }

    fn parse(raw: &str) -> WorkloadResult {
        HttpRate
            .parse(raw.as_bytes(), &Settings::default(), TIMING)
            .unwrap()
    }

    #[test]
    fn a_rate_that_is_met_is_trusted() {
        let result = parse(&report(1998, 0, 0.000_01));
        assert_eq!((result.suspect, result.unreached), (vec![], None));
        assert_eq!(result.metrics["rate"].quantity.value, 999.0);
        assert!(result.metrics["latency.p99"].headline);
        assert!(matches!(result.work, Some(WorkDone::Rate(work)) if work.amount == 999.0));
    }

    #[test]
    fn saturation_failed_requests_and_a_late_generator_are_each_suspect() {
        let reasons = |raw: String| parse(&raw).suspect.join("; ");
        let unreached = parse(&report(1800, 0, 0.0)).unreached.unwrap();
        assert!(unreached.contains("saturated"), "{unreached}");
        assert!(reasons(report(1998, 10, 0.0)).contains("10 timeouts"));
        let late = |lag| {
            let late = parse(&report(1998, 0, lag)).late;
            late.map_or(String::new(), |late| late.text)
        };
        assert!(late(0.000_6).contains("(medians): the client lacks CPU time"));
        assert_eq!(late(0.000_4), "");
    }

    #[test]
    fn a_generator_that_is_late_at_the_99th_percentile_is_late() {
        let raw = report(1998, 0, 0.000_4).replacen(r#""p99":0.0004"#, r#""p99":0.002"#, 1);
        let late = parse(&raw).late.unwrap();
        assert!(!late.is_typical);
        let late = late.text;
        assert!(
            late.contains("2.00 ms of a latency of 3.00 ms (99th percentiles)"),
            "{late}"
        );
    }

    #[test]
    fn a_lateness_within_a_tick_of_the_timers_names_the_timers() {
        let with_timer = |lag, seconds| {
            let timer = format!(r#""timer":{seconds},"mode""#);
            let raw = report(1998, 0, lag).replacen(r#""mode""#, &timer, 1);
            parse(&raw).late.unwrap()
        };
        let late = with_timer(0.003, 0.004);
        assert!(late.is_of_timer && late.is_typical);
        assert!(
            late.text.contains("a resolution of 4.00 ms"),
            "{}",
            late.text
        );
        // A lag of many ticks, and high resolution timers: the client is the cause.
        for late in [with_timer(0.03, 0.004), with_timer(0.003, 1e-9)] {
            assert!(
                !late.is_of_timer && late.text.contains("lacks CPU time"),
                "{}",
                late.text
            );
        }
    }

    #[test]
    fn the_load_that_was_offered_is_a_metric() {
        let offered = &parse(&report(1998, 0, 0.0)).metrics["offered"];
        assert_eq!(offered.quantity.value, 1000.0);
    }

    #[test]
    fn a_run_without_a_single_answer_is_an_error_that_counts_what_went_wrong() {
        let raw = report(0, 2000, 0.0);
        let message = HttpRate
            .parse(raw.as_bytes(), &Settings::default(), TIMING)
            .unwrap_err()
            .to_string();
        assert!(message.contains("2000 timeouts"), "{message}");
    }
}
