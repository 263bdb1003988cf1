//! `http-download`: many clients download one large file at once from Apache in the target.

use super::driver::ClientLoad;
use super::output::{Metrics, garbage, gigabytes};
use super::{
    Extent, Load, LoadClient, Program, Service, Timing, WorkDone, Workload, WorkloadResult,
    chosen_extent, extent_parameter, http_server,
};
use crate::http::Arguments;
use vtax_guest::platform::Target;
use vtax_host::HostError;
use vtax_host::settings::{Domain, Parameter, Settings};
use vtax_report::results::Better;
use vtax_units::{Base, Unit};

/// See the module.
pub struct HttpDownload;

fn connections(settings: &Settings) -> i64 {
    settings.integer("load.connections", 100)
}

impl Workload for HttpDownload {
    fn kind(&self) -> &'static str {
        "http-download"
    }

    fn summary(&self) -> &'static str {
        "clients download a file over HTTP, all at once (Apache in the target)"
    }

    fn parameters(&self) -> &'static [Parameter] {
        const PARAMETERS: &[Parameter] = &[
            Parameter {
                key: "load.connections",
                domain: Domain::Integer(1, 10_000),
                default: Some("100"),
                help: "clients that download at once, on one connection each",
            },
            Parameter {
                key: "load.file_mb",
                domain: Domain::Integer(1, 10_000),
                default: Some("20"),
                help: "size of the file in MB (10^6 bytes)",
            },
            extent_parameter("completion"),
        ];
        PARAMETERS
    }

    fn target_programs(&self) -> &'static [Program] {
        http_server::PROGRAMS
    }

    fn extent(&self, settings: &Settings) -> Extent {
        chosen_extent(settings, Extent::ToCompletion)
    }

    fn serve(
        &self,
        target: &mut dyn Target,
        client: &dyn LoadClient,
        settings: &Settings,
    ) -> Result<Service, HostError> {
        let bytes = settings
            .integer("load.file_mb", 20)
            .saturating_mul(1_000_000);
        http_server::serve(target, client, bytes, connections(settings))
    }

    fn drive(
        &self,
        target: &mut dyn Target,
        client: &dyn LoadClient,
        service: Service,
        settings: &Settings,
        timing: Timing,
    ) -> Result<Box<dyn Load>, HostError> {
        let extent = self.extent(settings);
        let connections = connections(settings);
        let line = http_server::client(&Arguments {
            closed: true,
            warmup: timing.warmup.as_secs_f64(),
            duration: timing.duration.as_secs_f64(),
            downloads: match extent {
                Extent::FixedDuration => None,
                Extent::ToCompletion => u64::try_from(connections).ok(),
            },
            timeout: 20.0,
            ..http_server::arguments(target, connections)
        })?;
        Ok(Box::new(ClientLoad::start(
            client,
            service,
            line,
            &[],
            extent,
            timing,
        )?))
    }

    fn parse(
        &self,
        raw: &[u8],
        settings: &Settings,
        _timing: Timing,
    ) -> Result<WorkloadResult, HostError> {
        let report = http_server::read(raw, "closed")?;
        if report.bytes == 0 {
            return Err(garbage(
                "vtax load http",
                "not one byte arrived in the measured part; measure longer",
            ));
        }
        #[allow(clippy::cast_precision_loss, reason = "2^53 bytes are 9 PB")]
        let bytes = report.bytes as f64;
        let second = Unit::of(Base::Second);
        let bit_rate = Unit::per(Base::Bit, Base::Second);
        let mut metrics = Metrics::default();
        metrics.add(
            "throughput",
            8.0 * bytes / report.seconds,
            bit_rate,
            Better::Higher,
            "HTTP download throughput",
        );
        // In a short window on a slow target not one download may be complete.
        if report.latency.count > 0 {
            let times = &report.latency;
            metrics.add(
                "download.p50",
                times.p50,
                second,
                Better::Lower,
                "time of one download, median",
            );
            metrics.add(
                "download.max",
                times.max,
                second,
                Better::Lower,
                "time of one download, longest",
            );
        }
        let phrase = "serve 1 GB over HTTP";
        let work = match self.extent(settings) {
            Extent::FixedDuration => WorkDone::Rate(gigabytes(bytes / report.seconds, phrase)),
            Extent::ToCompletion => {
                metrics.add(
                    "elapsed",
                    report.seconds,
                    second,
                    Better::Lower,
                    "time until all downloads were done",
                );
                WorkDone::Total(gigabytes(bytes, phrase))
            }
        };
        metrics.lead("throughput");
        Ok(WorkloadResult {
            work: Some(work),
            metrics: metrics.0,
            suspect: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use vtax_host::settings::Level;

    const TIMING: Timing = Timing {
        warmup: Duration::from_secs(1),
        duration: Duration::from_secs(2),
    };

    #[test]
    fn downloads_that_are_all_under_way_at_the_end_still_count_by_their_bytes() {
        let raw = br#"{"mode":"closed","seconds":2.0,"requests":0,"bytes":1000000,"due":null,
            "errors":{"connection":0,"status":0,"timeout":0,"unsent":0},
            "latency":{"count":0,"mean":0,"p50":0,"p90":0,"p99":0,"p999":0,"max":0},"lag":null,
            "connections":5,"cpu_seconds":0.1,"download_seconds":[]}"#;
        let settings =
            Settings([("load.extent".to_owned(), Level::Text("duration".to_owned()))].into());
        let result = HttpDownload.parse(raw, &settings, TIMING).unwrap();
        assert_eq!(result.metrics["throughput"].quantity.value, 4e6);
        assert!(
            !result.metrics.contains_key("download.p50"),
            "an unknown time is not 0 s"
        );
    }

    #[test]
    fn the_extent_decides_whether_work_is_a_rate_or_a_total() {
        let raw = br#"{"mode":"closed","seconds":2.0,"requests":5,"bytes":4000000000,"due":null,
            "errors":{"connection":0,"status":0,"timeout":0,"unsent":0},
            "latency":{"count":5,"mean":0.2,"p50":0.2,"p90":0.3,"p99":0.3,"p999":0.3,"max":0.3},"lag":null,
            "connections":5,"cpu_seconds":0.1,"download_seconds":[]}"#;
        let settings = |extent: &str| {
            Settings([("load.extent".to_owned(), Level::Text(extent.to_owned()))].into())
        };
        let rate = HttpDownload
            .parse(raw, &settings("duration"), TIMING)
            .unwrap();
        assert!(matches!(rate.work, Some(WorkDone::Rate(work)) if work.amount == 2.0));
        assert!(!rate.metrics.contains_key("elapsed"));
        let total = HttpDownload
            .parse(raw, &settings("completion"), TIMING)
            .unwrap();
        assert!(matches!(total.work, Some(WorkDone::Total(work)) if work.amount == 4.0));
        assert_eq!(total.metrics["elapsed"].quantity.value, 2.0);
        assert_eq!(total.metrics["throughput"].quantity.value, 16e9);
    }
}
