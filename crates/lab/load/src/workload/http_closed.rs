// SPDX-License-Identifier: Apache-2.0
//! `http-closed`: as many HTTP requests as Apache in the target answers to clients that each wait for one answer before
//! the next request. Overload reduces their requests, so latencies do not describe users who arrive independently:
//! those of `http-rate` do.

use super::check::Claim;
use super::http_rate::{FILE_BYTES, KEEPALIVE};
use super::output::{BIT_RATE, Metrics, REQUEST_RATE, garbage, work};
use super::*;
use crate::generator;
use crate::http::Arguments;

/// The workload.
pub struct HttpClosed;

/// Its load generator, for messages.
pub const DRIVER: &str = "vtax load http";
const CONNECTIONS: Parameter = Parameter::new("load.connections", Domain::Integer(1, 10_000), "10")
    .help("clients, one request at a time on a connection each");

/// Returns the load of clients that each send the next request after an answer: for the times of `timing`, or until
/// `answers` answers.
pub fn ask_again(
    address: IpAddr,
    clients: i64,
    timing: Timing,
    answers: Option<u64>,
    keepalive: bool,
) -> Outcome<LoadCommand> {
    let arguments = Arguments {
        common: generator::Arguments {
            connections: u32::try_from(clients).unwrap_or(1),
            warmup: timing.warmup.as_secs_f64(),
            duration: timing.duration.as_secs_f64(),
            timeout: 20.0,
            ..generator::Arguments::new(apache::socket(address))
        },
        path: apache::PATH.to_owned(),
        closed: true,
        downloads: answers,
        close: !keepalive,
    };
    open_loop::generator("http", arguments.to_flags()).map(LoadCommand::client)
}

static ABOUT: About = About {
    kind: "http-closed",
    summary: "HTTP requests as fast as they are answered, closed loop (Apache in the target)",
    parameters: &[CONNECTIONS, FILE_BYTES, KEEPALIVE],
    target_programs: apache::PROGRAMS,
    level: Some(LoadLevel::of(
        &CONNECTIONS,
        Unit::of(Base::One),
        1.0,
        "clients at once",
    )),
    ..About::NONE
};

impl Workload for HttpClosed {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let connections = CONNECTIONS.integer(context.settings);
        apache::serve(context, FILE_BYTES.integer(context.settings), connections)
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        ask_again(
            spec.address,
            CONNECTIONS.integer(spec.settings),
            spec.timing,
            None,
            KEEPALIVE.bool(spec.settings),
        )
    }

    fn parse(&self, raw: &[u8], _settings: &Settings, _timing: Timing) -> Outcome<WorkloadResult> {
        let (report, histogram) = open_loop::read(DRIVER, raw, "closed")?;
        if report.requests == 0 {
            let detail = "not one answer arrived whole in the measured part; measure longer";
            return Err(garbage(DRIVER, detail));
        }
        let rate = report.requests as f64 / report.seconds;
        let throughput = 8.0 * report.bytes as f64 / report.seconds;
        let mut metrics = Metrics::default();
        metrics.add_in(metric::RATE, rate, REQUEST_RATE, "HTTP requests answered");
        metrics.lead(metric::RATE);
        metrics.latency("HTTP latency", &report.latency);
        let title = "HTTP payload received";
        metrics.add_in(metric::THROUGHPUT, throughput, BIT_RATE, title);
        let phrase = "serve 1 HTTP request";
        Ok(WorkloadResult {
            histograms: open_loop::named("latency", histogram),
            claims: Claim::rates(rate, throughput / 8.0),
            ..metrics.result(WorkDone::Rate(work(rate, Base::Request, phrase)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_whole_answers_and_none_at_all_is_an_error() {
        let raw = include_str!("../../tests/data/http-download.json");
        let parse = |raw: &str| HttpClosed.parse(raw.as_bytes(), &Settings::default(), TIMING);
        let result = parse(raw).unwrap();
        let rate = result.metrics["rate"].quantity.value;
        assert!((rate - 5.0 / 0.006_094_438).abs() < 1e-6, "{result:?}");
        assert!(result.metrics["rate"].headline);
        let none = raw.replace("\"requests\":5", "\"requests\":0");
        assert!(parse(&none).unwrap_err().to_string().contains("not one"));
    }
}
