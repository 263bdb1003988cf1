// SPDX-License-Identifier: Apache-2.0
//! `disk-read`: reads from the target's scratch disk, raw or through a file system (fio).

use super::check::{Account, Amount, Claim};
use super::driver::{command, prepare};
use super::output::{
    BYTE_RATE, Metrics, OP_RATE, ascending, garbage, gigabytes, json, number, positive,
};
use super::*;
use crate::generator::Summary;
use serde::Deserialize;

/// The workload.
pub struct DiskRead;

const PROGRAMS: &[Program] = &[Program::of("fio", "fio")];
const ACCESS: Parameter = Parameter::new("load.access", Domain::Choice(&["file", "raw"]), "file")
    .help("through the file system, or from the block device below it");
const PATTERN: Parameter = Parameter::new(
    "load.pattern",
    Domain::Choice(&["random", "sequential"]),
    "random",
)
.help("the order of the blocks");
const BLOCK_BYTES: Parameter =
    Parameter::new("load.block_bytes", Domain::Integer(512, 16_777_216), "4096")
        .help("bytes of each read");
const QUEUE_DEPTH: Parameter = Parameter::new("load.queue_depth", Domain::Integer(1, 1024), "16")
    .help("reads under way at once");
const DIRECT: Parameter =
    Parameter::new("load.direct", Domain::Bool, "true").help("past the page cache (O_DIRECT)");
const SIZE_MIB: Parameter = Parameter::new("load.size_mib", Domain::Integer(1, 1_048_576), "256")
    .help("how much of the disk is read, in MiB; once where the extent is `completion`");
const RATE_MB: Parameter = Parameter::new("load.rate_mb", Domain::Number(0.0, 1e6), "0")
    .help("MB a second, at most; 0: as fast as the disk is");
const EXTENT: Parameter = Extent::parameter("duration");

/// Limit on the wait of a paced fio before its first read. At its start, fio measures the duration of the shortest
/// sleep, and spins for as long before every read. Targets that are started one after the other each get a time in
/// which no other target works.
const QUIET_START: Duration = Duration::from_secs(4);
/// The job whose numbers count.
const MEASURED: &str = "measured";

fn file(scratch: &Scratch) -> PathBuf {
    scratch.directory.join("vtax-disk-read")
}

/// The used part of fio's report.
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
    /// Runtime in ms.
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

static ABOUT: About = About {
    kind: "disk-read",
    summary: "reads from a disk, raw or through a file system (fio in the target)",
    parameters: &[
        ACCESS,
        PATTERN,
        BLOCK_BYTES,
        QUEUE_DEPTH,
        DIRECT,
        SIZE_MIB,
        RATE_MB,
        EXTENT,
    ],
    target_programs: PROGRAMS,
    level: Some(LoadLevel::of(
        &RATE_MB,
        BYTE_RATE,
        1e6,
        "disk reads asked for",
    )),
    ..About::NONE
};

impl Workload for DiskRead {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn scratch_mib(&self, settings: &Settings) -> u64 {
        let size = SIZE_MIB.integer(settings).unsigned_abs();
        // A file system takes some of the disk for itself.
        size + size / 8 + 64
    }

    /// Fills the disk with a file of real data: reads of holes never reach a disk. For raw access the same bytes are on
    /// the device.
    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let name = format!(
            "--filename={}",
            file(&Scratch::of(context.target)).display()
        );
        let size = format!("--size={}M", SIZE_MIB.integer(context.settings));
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
        prepare(context.target, &line, PROGRAMS)?;
        Ok(Service::default())
    }

    /// One fio with two jobs, the second of which begins when the first, the warm-up, is over.
    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let (settings, timing) = (spec.settings, spec.timing);
        let path = match ACCESS.text(settings) {
            "raw" => spec.scratch.device.clone(),
            _ => file(spec.scratch),
        };
        let pattern = match PATTERN.text(settings) {
            "sequential" => "read",
            _ => "randread",
        };
        let rate = RATE_MB.number(settings);
        let job = |name: &str| {
            let mut job = vec![
                format!("--name={name}"),
                format!("--filename={}", path.display()),
                format!("--size={}M", SIZE_MIB.integer(settings)),
                format!("--rw={pattern}"),
                format!("--bs={}", BLOCK_BYTES.integer(settings)),
                format!("--iodepth={}", QUEUE_DEPTH.integer(settings)),
                format!("--direct={}", i32::from(DIRECT.bool(settings))),
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
                // The delay applies to both jobs: the second waits for the first only once the first has begun.
                line.push(format!("--startdelay={}ms", quiet.as_millis()));
            }
            line.extend(job("warmup"));
            line.extend(timed(warmup));
        }
        line.extend(job(MEASURED));
        if timing.warmup > Duration::ZERO {
            line.push("--stonewall".to_owned());
        }
        if self.extent(settings) == Extent::FixedDuration {
            line.extend(timed(timing.duration));
        }
        Ok(LoadCommand::target(line))
    }

    fn parse(&self, raw: &[u8], settings: &Settings, timing: Timing) -> Outcome<WorkloadResult> {
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
        let mut metrics = Metrics::default();
        let throughput = bytes / seconds;
        let title = "disk read throughput";
        metrics.add_in(metric::THROUGHPUT, throughput, BYTE_RATE, title);
        metrics.add_in(metric::RATE, iops, OP_RATE, "disk reads");
        let latency = &job.read.lat_ns;
        let of = |name: &str, value| Ok::<_, HostError>(number("fio", name, value)? / 1e9);
        let percentile = |key: &str| of(key, latency.percentile.get(key).copied());
        let times = Summary {
            p50: percentile("50.000000")?,
            p90: percentile("90.000000")?,
            p99: percentile("99.000000")?,
            p999: percentile("99.900000")?,
            mean: of("lat_ns.mean", latency.mean)?,
            max: of("lat_ns.max", latency.max)?,
            ..Summary::default()
        };
        ascending("fio", &times)?;
        metrics.latency("disk read latency", &times);
        metrics.lead(metric::THROUGHPUT);
        let phrase = match ACCESS.text(settings) {
            "raw" => "read 1 GB from the raw disk",
            _ => "read 1 GB from a file",
        };
        let work = metrics.done(
            self.extent(settings),
            gigabytes(throughput, phrase),
            gigabytes(bytes, phrase),
            (seconds, "time until all was read"),
        );
        let mut suspect = Vec::new();
        let mut claims = Vec::new();
        let amount = match self.extent(settings) {
            Extent::FixedDuration => {
                suspect.extend(check::duration("fio", seconds, timing.duration));
                Amount::PerSecond(throughput)
            }
            Extent::ToCompletion => {
                claims.push(Claim::elapsed(seconds));
                Amount::InAll(bytes)
            }
        };
        // Reads from the page cache never reach a device.
        if DIRECT.bool(settings) {
            claims.push(Claim::at_most("read", amount, Account::BytesRead));
        }
        let asked = RATE_MB.number(settings) * 1e6;
        suspect.extend(check::excess(
            "the rate of reads",
            throughput,
            asked,
            BYTE_RATE,
            seconds,
        ));
        Ok(WorkloadResult {
            suspect,
            claims,
            ..metrics.result(work)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
