//! `http-rate`: HTTP requests to Apache in the target at a fixed rate, and how long they take,
//! counted from when each was due.

use super::driver::ClientLoad;
use super::output::{Metrics, garbage};
use super::{
    Extent, Load, LoadClient, Program, Service, Timing, WorkDone, Workload, WorkloadResult,
    http_server,
};
use crate::http::{Arguments, Arrival};
use vtax_guest::platform::Target;
use vtax_host::HostError;
use vtax_host::settings::{Domain, Parameter, Settings};
use vtax_report::results::{Better, Work};
use vtax_units::{Base, Quantity, Unit};

/// See the module.
pub struct HttpRate;

const DEFAULT_RATE: f64 = 1000.0;

fn connections(settings: &Settings) -> i64 {
    settings.integer("load.connections", 100)
}

impl Workload for HttpRate {
    fn kind(&self) -> &'static str {
        "http-rate"
    }

    fn summary(&self) -> &'static str {
        "HTTP requests at a fixed rate, open loop (Apache in the target)"
    }

    fn parameters(&self) -> &'static [Parameter] {
        const PARAMETERS: &[Parameter] = &[
            Parameter {
                key: "load.rate",
                domain: Domain::Number(0.1, 1e6),
                default: Some("1000"),
                help: "requests per second",
            },
            Parameter {
                key: "load.arrival",
                domain: Domain::Choice(&["poisson", "constant"]),
                default: Some("poisson"),
                help: "how requests are spaced: as from many independent users, or equally",
            },
            Parameter {
                key: "load.seed",
                domain: Domain::Integer(0, i64::MAX),
                default: Some("1"),
                help: "seed of the Poisson arrivals; every trial has the same ones",
            },
            Parameter {
                key: "load.connections",
                domain: Domain::Integer(1, 10_000),
                default: Some("100"),
                help: "most connections at once; requests beyond wait, and the wait counts",
            },
            Parameter {
                key: "load.file_bytes",
                domain: Domain::Integer(1, 1_000_000_000),
                default: Some("1000"),
                help: "size of each answer in bytes",
            },
            Parameter {
                key: "load.timeout_s",
                domain: Domain::Number(0.01, 600.0),
                default: Some("5"),
                help: "seconds after which a request is given up",
            },
        ];
        PARAMETERS
    }

    fn target_programs(&self) -> &'static [Program] {
        http_server::PROGRAMS
    }

    fn extent(&self, _settings: &Settings) -> Extent {
        Extent::FixedDuration
    }

    fn level(&self) -> Option<super::LoadLevel> {
        Some(super::LoadLevel {
            key: "load.rate",
            unit: Unit::per(Base::Request, Base::Second),
            title: "requests asked for",
        })
    }

    fn serve(
        &self,
        target: &mut dyn Target,
        client: &dyn LoadClient,
        settings: &Settings,
    ) -> Result<Service, HostError> {
        http_server::serve(
            target,
            client,
            settings.integer("load.file_bytes", 1000),
            connections(settings),
        )
    }

    fn drive(
        &self,
        target: &mut dyn Target,
        client: &dyn LoadClient,
        service: Service,
        settings: &Settings,
        timing: Timing,
    ) -> Result<Box<dyn Load>, HostError> {
        let timeout = settings.number("load.timeout_s", 5.0);
        let line = http_server::client(&Arguments {
            rate: settings.number("load.rate", DEFAULT_RATE),
            arrival: match settings.text("load.arrival") {
                Some("constant") => Arrival::Constant,
                _ => Arrival::Poisson,
            },
            seed: u64::try_from(settings.integer("load.seed", 1)).unwrap_or(1),
            warmup: timing.warmup.as_secs_f64(),
            duration: timing.duration.as_secs_f64(),
            timeout,
            ..http_server::arguments(target, connections(settings))
        })?;
        // Requests that are due at the very end may take as long as the timeout.
        let patience = Timing {
            duration: timing.duration + std::time::Duration::from_secs_f64(timeout),
            ..timing
        };
        Ok(Box::new(ClientLoad::start(
            client,
            service,
            line,
            &[],
            Extent::FixedDuration,
            patience,
        )?))
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "counts of requests are far below 2^53"
    )]
    fn parse(
        &self,
        raw: &[u8],
        _settings: &Settings,
        _timing: Timing,
    ) -> Result<WorkloadResult, HostError> {
        let report = http_server::read(raw, "open")?;
        if report.requests == 0 {
            let errors = report.errors;
            let detail = format!(
                "not one answer arrived in the measured part ({} connections failed, {} answers with an error status, \
                 {} timeouts, {} never sent); check the link's settings and the service in the target, or measure longer",
                errors.connection, errors.status, errors.timeout, errors.unsent
            );
            return Err(garbage("vtax load http", &detail));
        }
        let due = report
            .due
            .ok_or_else(|| garbage("vtax load http", "`due` is missing"))? as f64;
        let lag = report
            .lag
            .ok_or_else(|| garbage("vtax load http", "`lag` is missing"))?;
        let (answered, errors) = (report.requests as f64, report.errors.total() as f64);
        let second = Unit::of(Base::Second);
        let request_rate = Unit::per(Base::Request, Base::Second);

        let mut metrics = Metrics::default();
        let latency = &report.latency;
        let percentiles = [
            ("latency.p50", latency.p50, "HTTP latency, median"),
            ("latency.p90", latency.p90, "HTTP latency, 90th percentile"),
            ("latency.p99", latency.p99, "HTTP latency, 99th percentile"),
            (
                "latency.p999",
                latency.p999,
                "HTTP latency, 99.9th percentile",
            ),
            ("latency.max", latency.max, "HTTP latency, longest"),
            ("latency.mean", latency.mean, "HTTP latency, mean"),
        ];
        for (name, value, title) in percentiles {
            metrics.add(name, value, second, Better::Lower, title);
        }
        metrics.lead("latency.p99");
        let rate = answered / report.seconds;
        metrics.add(
            "rate",
            rate,
            request_rate,
            Better::Higher,
            "HTTP requests answered",
        );
        let bit_rate = Unit::per(Base::Bit, Base::Second);
        let throughput = 8.0 * report.bytes as f64 / report.seconds;
        metrics.add(
            "throughput",
            throughput,
            bit_rate,
            Better::Higher,
            "HTTP payload received",
        );
        let share = if due > 0.0 { 100.0 * errors / due } else { 0.0 };
        metrics.add(
            "errors",
            share,
            Unit::of(Base::Percent),
            Better::Lower,
            "HTTP requests that failed",
        );
        metrics.add(
            "lag.p99",
            lag.p99,
            second,
            Better::Neither,
            "lateness of the load generator itself, 99th percentile",
        );

        let mut suspect = Vec::new();
        // Against what was due, not the rate asked: Poisson arrivals vary. A few requests are
        // always under way when the window closes.
        if answered < 0.95 * due && due - answered >= 10.0 {
            suspect.push(format!(
                "only {} of the {} that were due were answered ({:.0} %): the target or the load generator is saturated",
                Quantity::new(rate, request_rate),
                Quantity::new(due / report.seconds, request_rate),
                100.0 * answered / due
            ));
        }
        if share > 0.1 {
            let kinds = report.errors;
            suspect.push(format!(
                "{share:.1} % of the requests failed: {} connections failed, {} answers with an error status, \
                 {} timeouts, {} never sent",
                kinds.connection, kinds.status, kinds.timeout, kinds.unsent
            ));
        }
        if lag.p50 > 0.5 * latency.p50 {
            suspect.push(format!(
                "the load generator itself sent late, by {} of a latency of {} (medians): the client lacks CPU time",
                Quantity::new(lag.p50, second),
                Quantity::new(latency.p50, second)
            ));
        }
        let work = Work {
            amount: rate,
            unit: Unit::of(Base::Request),
            phrase: "serve 1 HTTP request".to_owned(),
        };
        Ok(WorkloadResult {
            work: Some(WorkDone::Rate(work)),
            metrics: metrics.0,
            suspect,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TIMING: Timing = Timing {
        warmup: Duration::from_secs(1),
        duration: Duration::from_secs(2),
    };

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
        assert_eq!(result.suspect, Vec::<String>::new());
        assert_eq!(result.metrics["rate"].quantity.value, 999.0);
        assert!(result.metrics["latency.p99"].headline);
        assert!(matches!(result.work, Some(WorkDone::Rate(work)) if work.amount == 999.0));
    }

    #[test]
    fn saturation_failed_requests_and_a_late_generator_are_each_suspect() {
        let reasons = |raw: String| parse(&raw).suspect.join("; ");
        assert!(reasons(report(1800, 0, 0.0)).contains("saturated"));
        assert!(reasons(report(1998, 10, 0.0)).contains("10 timeouts"));
        assert!(reasons(report(1998, 0, 0.000_6)).contains("lacks CPU time"));
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
