//! Workloads: a service in the target and the load generator that drives it. One file each;
//! [`all`] registers them.

mod cpu;
mod disk_read;
mod driver;
mod http_download;
mod http_rate;
mod http_server;
mod idle;
mod iperf3;
mod iperf3_tcp;
mod iperf3_udp;
mod output;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Child;
use std::time::Duration;
use vtax_guest::platform::{CommandLine, Job, Target};
use vtax_host::HostError;
use vtax_host::cell::Client;
use vtax_host::settings::{Domain, Parameter, Settings};
use vtax_report::results::{Metric, Work};

/// Every workload, in the order of tables.
pub fn all() -> &'static [&'static dyn Workload] {
    &[
        &idle::Idle,
        &iperf3_tcp::Iperf3Tcp::Receive,
        &iperf3_tcp::Iperf3Tcp::Send,
        &iperf3_udp::Iperf3Udp,
        &http_download::HttpDownload,
        &http_rate::HttpRate,
        &cpu::Cpu,
        &disk_read::DiskRead,
    ]
}

/// The workload of that kind.
pub fn by_kind(kind: &str) -> Option<&'static dyn Workload> {
    all()
        .iter()
        .copied()
        .find(|workload| workload.kind() == kind)
}

/// Where load generators run: a [`Client`] in a cell.
pub trait LoadClient {
    /// Starts a command as the client; its output is piped.
    ///
    /// # Errors
    /// When it cannot be started.
    fn start(&self, line: &CommandLine) -> Result<Child, HostError>;

    /// Whether a TCP connection from the client to `port` succeeds.
    ///
    /// # Errors
    /// When the client itself is gone.
    fn can_connect(&self, address: IpAddr, port: u16) -> Result<bool, HostError>;
}

impl LoadClient for Client {
    fn start(&self, line: &CommandLine) -> Result<Child, HostError> {
        Client::start(self, line)
    }

    fn can_connect(&self, address: IpAddr, port: u16) -> Result<bool, HostError> {
        Client::can_connect(self, address, port)
    }
}

/// A program and the Debian package that brings it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// The program's name, found through `PATH`.
    pub name: &'static str,
    /// The Debian package.
    pub package: &'static str,
}

/// The service that a workload started in the target, if it needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Service {
    /// The job it runs as, and its name for messages.
    pub job: Option<(Job, &'static str)>,
}

/// How a trial's measured window ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// After the plan's duration; reported in watts and rates.
    FixedDuration,
    /// When the work is done; reported in joules and totals.
    ToCompletion,
}

/// The parameter that chooses the extent, for workloads that offer both.
const fn extent_parameter(default: &'static str) -> Parameter {
    Parameter {
        key: "load.extent",
        domain: Domain::Choice(&["duration", "completion"]),
        default: Some(default),
        help: "measure for the plan's duration, or until the work is done",
    }
}

/// The chosen extent.
fn chosen_extent(settings: &Settings, default: Extent) -> Extent {
    match settings.text("load.extent") {
        Some("duration") => Extent::FixedDuration,
        Some("completion") => Extent::ToCompletion,
        _ => default,
    }
}

/// The setting that a workload's load level is, for ramps and searches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadLevel {
    /// Its key, such as `load.rate`.
    pub key: &'static str,
    /// Its unit.
    pub unit: vtax_units::Unit,
    /// What it is, in a few words: `requests asked for`.
    pub title: &'static str,
}

/// The times of one trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Load runs this long before the measured window opens.
    pub warmup: Duration,
    /// The measured window of a fixed-duration workload.
    pub duration: Duration,
}

/// A load: a service, its driver and the reading of what the driver printed.
pub trait Workload: Sync {
    /// The name in plans: `iperf3-receive`, `http-rate`, `cpu`.
    fn kind(&self) -> &'static str;

    /// What it does, in one line.
    fn summary(&self) -> &'static str;

    /// What a plan may set for it; keys start with `load.`.
    fn parameters(&self) -> &'static [Parameter];

    /// The programs it runs in the target; the shared image has their packages.
    fn target_programs(&self) -> &'static [Program] {
        &[]
    }

    /// The programs it runs as the client, on the host.
    fn client_programs(&self) -> &'static [Program] {
        &[]
    }

    /// How its measured window ends.
    fn extent(&self, settings: &Settings) -> Extent;

    /// The setting that a ramp varies, if the load has a level.
    fn level(&self) -> Option<LoadLevel> {
        None
    }

    /// The scratch disk it needs in the target, in MiB; 0 for none.
    fn scratch_mib(&self, _settings: &Settings) -> u64 {
        0
    }

    /// Starts the service inside the target and waits until it answers (from the client, where
    /// it listens on the network).
    ///
    /// # Errors
    /// When the service does not come up.
    fn serve(
        &self,
        target: &mut dyn Target,
        client: &dyn LoadClient,
        settings: &Settings,
    ) -> Result<Service, HostError>;

    /// Starts the load on what [`Workload::serve`] returned: warm-up first, then the measured
    /// part. Returns at once.
    ///
    /// # Errors
    /// When the driver cannot be started.
    fn drive(
        &self,
        target: &mut dyn Target,
        client: &dyn LoadClient,
        service: Service,
        settings: &Settings,
        timing: Timing,
    ) -> Result<Box<dyn Load>, HostError>;

    /// Reads what the driver printed. A pure function, tested on recorded and on garbage input.
    ///
    /// # Errors
    /// When it is not what the driver prints when all is well; the message quotes it.
    fn parse(
        &self,
        raw: &[u8],
        settings: &Settings,
        timing: Timing,
    ) -> Result<WorkloadResult, HostError>;
}

/// A load in progress.
pub trait Load {
    /// What the driver printed, once it has ended; `None` while it runs. To be called often: it
    /// decides for itself when asking the target would not disturb what is measured.
    ///
    /// # Errors
    /// When the driver or the service died, with what it said.
    fn poll(&mut self, target: &mut dyn Target) -> Result<Option<Vec<u8>>, HostError>;
}

/// What a workload found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkloadResult {
    /// The work done per second of the measured window (fixed duration) or in all (completion).
    pub work: Option<WorkDone>,
    /// Its metrics by stable name: `throughput`, `latency.p99`, `jitter`.
    pub metrics: BTreeMap<String, Metric>,
    /// Reasons not to trust this trial that only the load generator can see.
    pub suspect: Vec<String>,
}

/// The useful work, as a rate or a total.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkDone {
    /// Per second of the measured window.
    Rate(Work),
    /// In all.
    Total(Work),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use vtax_host::settings::Level;

    const TIMING: Timing = Timing {
        warmup: Duration::from_secs(1),
        duration: Duration::from_secs(2),
    };

    /// What the real drivers printed once, by workload.
    const RECORDED: &[(&str, &str)] = &[
        ("idle", r#"{"seconds":3.0}"#),
        (
            "iperf3-receive",
            include_str!("../../tests/data/iperf3-receive.json"),
        ),
        (
            "iperf3-send",
            include_str!("../../tests/data/iperf3-send.json"),
        ),
        (
            "iperf3-udp",
            include_str!("../../tests/data/iperf3-udp.json"),
        ),
        (
            "iperf3-udp",
            include_str!("../../tests/data/iperf3-udp-send.json"),
        ),
        (
            "http-download",
            include_str!("../../tests/data/http-download.json"),
        ),
        ("http-rate", include_str!("../../tests/data/http-rate.json")),
        ("cpu", include_str!("../../tests/data/cpu.json")),
        ("disk-read", include_str!("../../tests/data/disk-read.json")),
    ];

    #[test]
    fn kinds_are_unique_and_parameters_belong_to_the_load() {
        let kinds: BTreeSet<_> = all().iter().map(|workload| workload.kind()).collect();
        assert_eq!(kinds.len(), all().len());
        for workload in all() {
            let keys: BTreeSet<_> = workload
                .parameters()
                .iter()
                .map(|parameter| parameter.key)
                .collect();
            assert_eq!(
                keys.len(),
                workload.parameters().len(),
                "{}",
                workload.kind()
            );
            assert!(keys.iter().all(|key| key.starts_with("load.")), "{keys:?}");
            assert!(by_kind(workload.kind()).is_some());
        }
        assert!(by_kind("iperf4").is_none());
    }

    #[test]
    fn documented_defaults_are_allowed_and_are_the_defaults_in_force() {
        for workload in all() {
            for parameter in workload.parameters() {
                let Some(default) = parameter.default else {
                    continue;
                };
                let level = match parameter.domain {
                    Domain::Bool => Level::Bool(default.parse().unwrap()),
                    Domain::Integer(low, high) => {
                        let value = default.parse().unwrap();
                        assert!((low..=high).contains(&value), "{}", parameter.key);
                        Level::Integer(value)
                    }
                    Domain::Number(low, high) => {
                        let value = default.parse().unwrap();
                        assert!((low..=high).contains(&value), "{}", parameter.key);
                        Level::Number(value)
                    }
                    Domain::Choice(words) => {
                        assert!(words.contains(&default), "{}", parameter.key);
                        Level::Text(default.to_owned())
                    }
                    Domain::Text(_) => Level::Text(default.to_owned()),
                };
                let settings = Settings([(parameter.key.to_owned(), level)].into());
                let unset = Settings::default();
                assert_eq!(
                    workload.extent(&settings),
                    workload.extent(&unset),
                    "{}",
                    parameter.key
                );
                assert_eq!(
                    workload.scratch_mib(&settings),
                    workload.scratch_mib(&unset),
                    "{}",
                    parameter.key
                );
            }
        }
    }

    #[test]
    fn every_recorded_output_gives_titled_finite_numbers_and_one_headline_at_least() {
        for (kind, raw) in RECORDED {
            let result = by_kind(kind)
                .unwrap()
                .parse(raw.as_bytes(), &Settings::default(), TIMING);
            let result = result.unwrap_or_else(|cause| panic!("{kind}: {cause}"));
            assert!(result.work.is_some(), "{kind}");
            for (name, metric) in &result.metrics {
                assert!(metric.quantity.value.is_finite(), "{kind}: {name}");
                assert!(!metric.title.is_empty(), "{kind}: {name}");
            }
            assert!(
                *kind == "idle" || result.metrics.values().any(|metric| metric.headline),
                "{kind}"
            );
        }
    }

    #[test]
    fn output_that_ends_early_or_is_empty_or_foreign_is_an_error_that_quotes_it() {
        for (kind, raw) in RECORDED {
            let workload = by_kind(kind).unwrap();
            let parse = |raw: &[u8]| {
                workload
                    .parse(raw, &Settings::default(), TIMING)
                    .map(|_| ())
            };
            let cut = parse(&raw.trim_end().as_bytes()[..raw.trim_end().len() - 2])
                .unwrap_err()
                .to_string();
            assert!(cut.contains("cut off"), "{kind}: {cut}");
            let empty = parse(b"").unwrap_err().to_string();
            assert!(empty.contains("nothing"), "{kind}: {empty}");
            let foreign = parse(b"Segmentation fault \xff\x00")
                .unwrap_err()
                .to_string();
            assert!(foreign.contains("Segmentation fault"), "{kind}: {foreign}");
            assert!(parse(b"{}").is_err(), "{kind}");
            assert!(parse(b"[]").is_err(), "{kind}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn no_bytes_panic_a_parser(raw in prop::collection::vec(any::<u8>(), 0..300)) {
            for workload in all() {
                let _ = workload.parse(&raw, &Settings::default(), TIMING);
            }
        }

        #[test]
        fn no_mutation_of_real_output_panics_a_parser_or_gives_a_number_that_is_not_finite(
            places in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(&b"0-9e.,\"{}[]nax"[..])), 1..6),
        ) {
            for (kind, raw) in RECORDED {
                let mut raw = raw.as_bytes().to_vec();
                for (place, byte) in &places {
                    let at = place.index(raw.len());
                    raw[at] = *byte;
                }
                if let Ok(result) = by_kind(kind).unwrap().parse(&raw, &Settings::default(), TIMING) {
                    for (name, metric) in result.metrics {
                        prop_assert!(metric.quantity.value.is_finite(), "{}: {}", kind, name);
                    }
                }
            }
        }
    }
}
