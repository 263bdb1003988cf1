// SPDX-License-Identifier: Apache-2.0
//! `http-download`: many clients download one large file at once from Apache in the target.

use super::check::Claim;
use super::http_closed::DRIVER;
use super::output::{BIT_RATE, Metrics, garbage, gigabytes};
use super::*;

/// The workload.
pub struct HttpDownload;

const CONNECTIONS: Parameter =
    Parameter::new("load.connections", Domain::Integer(1, 10_000), "100")
        .help("clients that download at once, on one connection each");
const FILE_MB: Parameter = Parameter::new("load.file_mb", Domain::Integer(1, 10_000), "20")
    .help("size of the file in MB (10^6 bytes)");
const EXTENT: Parameter = Extent::parameter("completion");

static ABOUT: About = About {
    kind: "http-download",
    summary: "clients download a file over HTTP, all at once (Apache in the target)",
    parameters: &[CONNECTIONS, FILE_MB, EXTENT],
    target_programs: apache::PROGRAMS,
    level: Some(LoadLevel::of(
        &CONNECTIONS,
        Unit::of(Base::One),
        1.0,
        "clients at once",
    )),
    ..About::NONE
};

impl Workload for HttpDownload {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let bytes = FILE_MB.integer(context.settings).saturating_mul(1_000_000);
        apache::serve(context, bytes, CONNECTIONS.integer(context.settings))
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let connections = CONNECTIONS.integer(spec.settings);
        let answers = match self.extent(spec.settings) {
            Extent::FixedDuration => None,
            Extent::ToCompletion => u64::try_from(connections).ok(),
        };
        http_closed::ask_again(spec.address, connections, spec.timing, answers, true)
    }

    fn parse(&self, raw: &[u8], settings: &Settings, _timing: Timing) -> Outcome<WorkloadResult> {
        let (report, histogram) = open_loop::read(DRIVER, raw, "closed")?;
        if report.bytes == 0 {
            let detail = "not one byte arrived in the measured part; measure longer";
            return Err(garbage(DRIVER, detail));
        }
        let bytes = report.bytes as f64;
        let rate = bytes / report.seconds;
        let mut metrics = Metrics::default();
        let title = "HTTP download throughput";
        metrics.add_in(metric::THROUGHPUT, 8.0 * rate, BIT_RATE, title);
        metrics.lead(metric::THROUGHPUT);
        // In a short window on a slow target not one download may be complete.
        if report.latency.count > 0 {
            let times = &report.latency;
            metrics.add(metric::DOWNLOAD_P50, times.p50, "");
            metrics.add(metric::DOWNLOAD_MAX, times.max, "");
        }
        let phrase = "serve 1 GB over HTTP";
        let work = metrics.done(
            self.extent(settings),
            gigabytes(rate, phrase),
            gigabytes(bytes, phrase),
            (report.seconds, "time until all downloads were done"),
        );
        let answers = report.requests as f64;
        let claims = match self.extent(settings) {
            Extent::FixedDuration => Claim::rates(answers / report.seconds, rate),
            Extent::ToCompletion => Claim::totals(answers, bytes, report.seconds),
        };
        Ok(WorkloadResult {
            claims,
            histograms: open_loop::named("download", histogram),
            ..metrics.result(work)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::settings::Level;

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
