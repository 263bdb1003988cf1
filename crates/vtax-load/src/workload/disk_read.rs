//! `disk-read`: reads from the target's scratch disk, raw or through a file system (fio).

use super::driver::{TargetLoad, command, prepare};
use super::output::{Metrics, garbage, gigabytes, json, number, positive};
use super::{
    Extent, Load, LoadClient, Program, Service, Timing, WorkDone, Workload, WorkloadResult,
    chosen_extent, extent_parameter,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use vtax_guest::platform::Target;
use vtax_host::HostError;
use vtax_host::settings::{Domain, Parameter, Settings};
use vtax_report::results::Better;
use vtax_units::{Base, Unit};

/// See the module.
pub struct DiskRead;

const PROGRAMS: &[Program] = &[Program {
    name: "fio",
    package: "fio",
}];
const LAYOUT_LIMIT: Duration = Duration::from_secs(600);
/// At most this long does a paced fio wait before its first read: at its start it measures how long
/// the shortest sleep takes, and spins for as long before every read. Who starts several targets
/// one after the other gives each of them a moment in which no other works.
const QUIET_START: Duration = Duration::from_secs(4);
/// The job whose numbers count.
const MEASURED: &str = "measured";

fn size_mib(settings: &Settings) -> i64 {
    settings.integer("load.size_mib", 256).max(1)
}

fn file(target: &dyn Target) -> PathBuf {
    target.scratch().1.join("vtax-disk-read")
}

/// fio's report, as far as it counts.
#[derive(Debug, Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Debug, Deserialize)]
struct Job {
    jobname: String,
    error: i64,
    read: Read,
}

#[derive(Debug, Deserialize)]
struct Read {
    io_bytes: Option<f64>,
    iops: Option<f64>,
    /// In ms.
    runtime: Option<f64>,
    lat_ns: Latency,
}

#[derive(Debug, Deserialize)]
struct Latency {
    mean: Option<f64>,
    max: Option<f64>,
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

impl Workload for DiskRead {
    fn kind(&self) -> &'static str {
        "disk-read"
    }

    fn summary(&self) -> &'static str {
        "reads from a disk, raw or through a file system (fio in the target)"
    }

    fn parameters(&self) -> &'static [Parameter] {
        const PARAMETERS: &[Parameter] = &[
            Parameter {
                key: "load.access",
                domain: Domain::Choice(&["file", "raw"]),
                default: Some("file"),
                help: "through the file system, or from the block device below it",
            },
            Parameter {
                key: "load.pattern",
                domain: Domain::Choice(&["random", "sequential"]),
                default: Some("random"),
                help: "the order of the blocks",
            },
            Parameter {
                key: "load.block_bytes",
                domain: Domain::Integer(512, 16_777_216),
                default: Some("4096"),
                help: "bytes of each read",
            },
            Parameter {
                key: "load.queue_depth",
                domain: Domain::Integer(1, 1024),
                default: Some("16"),
                help: "reads under way at once",
            },
            Parameter {
                key: "load.direct",
                domain: Domain::Bool,
                default: Some("true"),
                help: "past the page cache (O_DIRECT)",
            },
            Parameter {
                key: "load.size_mib",
                domain: Domain::Integer(1, 1_048_576),
                default: Some("256"),
                help: "how much of the disk is read, in MiB; once where the extent is `completion`",
            },
            Parameter {
                key: "load.rate_mb",
                domain: Domain::Number(0.0, 1e6),
                default: Some("0"),
                help: "MB a second, at most; 0: as fast as the disk is",
            },
            extent_parameter("duration"),
        ];
        PARAMETERS
    }

    fn target_programs(&self) -> &'static [Program] {
        PROGRAMS
    }

    fn extent(&self, settings: &Settings) -> Extent {
        chosen_extent(settings, Extent::FixedDuration)
    }

    fn scratch_mib(&self, settings: &Settings) -> u64 {
        let size = u64::try_from(size_mib(settings)).unwrap_or(1);
        // A file system takes some of the disk for itself.
        size + size / 8 + 64
    }

    /// Fills the disk with a file of real data: reads of holes never reach a disk. For raw
    /// access the same bytes lie on the device.
    fn serve(
        &self,
        target: &mut dyn Target,
        _client: &dyn LoadClient,
        settings: &Settings,
    ) -> Result<Service, HostError> {
        let name = format!("--filename={}", file(target).display());
        let size = format!("--size={}M", size_mib(settings));
        let line = command([
            "fio",
            "--name=layout",
            &name,
            &size,
            "--rw=write",
            "--bs=1M",
            "--ioengine=psync",
            "--fallocate=none",
            "--end_fsync=1",
            "--output-format=json",
        ]);
        prepare(target, &line, LAYOUT_LIMIT, PROGRAMS)?;
        Ok(Service::default())
    }

    /// One fio with two jobs, the second of which begins when the first, the warm-up, is over.
    fn drive(
        &self,
        target: &mut dyn Target,
        _client: &dyn LoadClient,
        _service: Service,
        settings: &Settings,
        timing: Timing,
    ) -> Result<Box<dyn Load>, HostError> {
        let extent = self.extent(settings);
        let path = match settings.text("load.access") {
            Some("raw") => target.scratch().0,
            _ => file(target),
        };
        let pattern = match settings.text("load.pattern") {
            Some("sequential") => "read",
            _ => "randread",
        };
        let rate = settings.number("load.rate_mb", 0.0);
        let job = |name: &str| {
            let mut job = vec![
                format!("--name={name}"),
                format!("--filename={}", path.display()),
                format!("--size={}M", size_mib(settings)),
                format!("--rw={pattern}"),
                format!("--bs={}", settings.integer("load.block_bytes", 4096)),
                format!("--iodepth={}", settings.integer("load.queue_depth", 16)),
                format!("--direct={}", i32::from(settings.bool("load.direct", true))),
                "--ioengine=libaio".to_owned(),
                "--readonly".to_owned(),
                "--lat_percentiles=1".to_owned(),
                "--clat_percentiles=0".to_owned(),
                "--percentile_list=50:90:99:99.9".to_owned(),
            ];
            if rate > 0.0 {
                // Bytes: fio's suffixes are powers of 1024.
                job.push(format!("--rate={:.0}", (rate * 1e6).max(1.0)));
            }
            job
        };
        let timed = |time: Duration| {
            [
                "--time_based".to_owned(),
                format!("--runtime={}ms", time.as_millis().max(1)),
            ]
        };
        let mut line = command(["fio", "--output-format=json"]);
        if timing.warmup > Duration::ZERO {
            let mut warmup = timing.warmup;
            if rate > 0.0 {
                let quiet = QUIET_START.min(warmup / 2);
                warmup -= quiet;
                // For both jobs: a job that must wait for another's end does not wait for its begin.
                line.push(format!("--startdelay={}ms", quiet.as_millis()));
            }
            line.extend(job("warmup"));
            line.extend(timed(warmup));
        }
        line.extend(job(MEASURED));
        if timing.warmup > Duration::ZERO {
            line.push("--stonewall".to_owned());
        }
        if extent == Extent::FixedDuration {
            line.extend(timed(timing.duration));
        }
        Ok(Box::new(TargetLoad::start(
            target, line, PROGRAMS, extent, timing,
        )?))
    }

    fn parse(
        &self,
        raw: &[u8],
        settings: &Settings,
        _timing: Timing,
    ) -> Result<WorkloadResult, HostError> {
        // fio prints its remarks before the JSON, on the same stream.
        let begin = raw
            .windows(2)
            .position(|pair| pair == b"{\n" || pair == b"{\"");
        let output: Output = json(
            "fio",
            begin.and_then(|begin| raw.get(begin..)).unwrap_or(raw),
        )?;
        let job = output.jobs.iter().find(|job| job.jobname == MEASURED);
        let job = job.ok_or_else(|| garbage("fio", "its report has no job `measured`"))?;
        if job.error != 0 {
            let cause = i32::try_from(job.error).map(std::io::Error::from_raw_os_error);
            let cause = cause.map_or_else(|_| "unknown".to_owned(), |cause| cause.to_string());
            let detail = format!(
                "its job failed with error {} ({cause}); see the target's console",
                job.error
            );
            return Err(garbage("fio", &detail));
        }
        let bytes = positive("fio", "io_bytes", job.read.io_bytes)?;
        let seconds = positive("fio", "runtime", job.read.runtime)? / 1e3;
        let iops = number("fio", "iops", job.read.iops)?;
        let second = Unit::of(Base::Second);
        let byte_rate = Unit::per(Base::Byte, Base::Second);
        let mut metrics = Metrics::default();
        metrics.add(
            "throughput",
            bytes / seconds,
            byte_rate,
            Better::Higher,
            "disk read throughput",
        );
        let op_rate = Unit::per(Base::Operation, Base::Second);
        metrics.add("rate", iops, op_rate, Better::Higher, "disk reads");
        let percentile = |key: &str| job.read.lat_ns.percentile.get(key).copied();
        let latencies = [
            (
                "latency.p50",
                percentile("50.000000"),
                "disk read latency, median",
            ),
            (
                "latency.p90",
                percentile("90.000000"),
                "disk read latency, 90th percentile",
            ),
            (
                "latency.p99",
                percentile("99.000000"),
                "disk read latency, 99th percentile",
            ),
            (
                "latency.p999",
                percentile("99.900000"),
                "disk read latency, 99.9th percentile",
            ),
            (
                "latency.mean",
                job.read.lat_ns.mean,
                "disk read latency, mean",
            ),
            (
                "latency.max",
                job.read.lat_ns.max,
                "disk read latency, longest",
            ),
        ];
        for (name, value, title) in latencies {
            metrics.add(
                name,
                number("fio", name, value)? / 1e9,
                second,
                Better::Lower,
                title,
            );
        }
        metrics.lead("throughput");
        metrics.lead("latency.p99");
        let phrase = match settings.text("load.access") {
            Some("raw") => "read 1 GB from the raw disk",
            _ => "read 1 GB from a file",
        };
        let work = match self.extent(settings) {
            Extent::FixedDuration => WorkDone::Rate(gigabytes(bytes / seconds, phrase)),
            Extent::ToCompletion => {
                metrics.add(
                    "elapsed",
                    seconds,
                    second,
                    Better::Lower,
                    "time until all was read",
                );
                WorkDone::Total(gigabytes(bytes, phrase))
            }
        };
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

    const TIMING: Timing = Timing {
        warmup: Duration::from_millis(500),
        duration: Duration::from_secs(1),
    };
    const RECORDED: &[u8] = include_bytes!("../../tests/data/disk-read.json");

    #[test]
    fn the_measured_job_counts_and_the_warm_up_does_not() {
        let result = DiskRead
            .parse(RECORDED, &Settings::default(), TIMING)
            .unwrap();
        // The recording: 274 907 136 bytes in 1.001 s; the warm-up read 135 942 144.
        let throughput = result.metrics["throughput"].quantity.value;
        assert!((throughput - 274_632_503.5).abs() < 1.0, "{throughput}");
        assert_eq!(result.metrics["latency.p99"].quantity.value, 226_304e-9);
    }

    #[test]
    fn remarks_that_fio_prints_before_its_json_are_passed_over() {
        let mut raw = b"note: both iodepth >= 1 and synchronous I/O engine are selected\n".to_vec();
        raw.extend_from_slice(RECORDED);
        assert!(DiskRead.parse(&raw, &Settings::default(), TIMING).is_ok());
    }

    #[test]
    fn a_failed_job_is_an_error_with_the_systems_reason() {
        let text = String::from_utf8(RECORDED.to_vec()).unwrap();
        let (warmup, measured) = text.split_once("\"measured\"").unwrap();
        let raw = format!(
            "{warmup}\"measured\"{}",
            measured.replacen("\"error\":0", "\"error\":5", 1)
        );
        let message = DiskRead
            .parse(raw.as_bytes(), &Settings::default(), TIMING)
            .unwrap_err()
            .to_string();
        assert!(message.contains("Input/output error"), "{message}");
    }
}
