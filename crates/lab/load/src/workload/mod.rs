// SPDX-License-Identifier: Apache-2.0
//! Workloads: a service in the target and the load generator that drives it; [`all`] registers them.
//!
//! Most are a file of data, `workloads/KIND.toml`, which `described` reads: the service in the target, the load's command
//! line, and the figures in its output. A workload whose output needs more is a module with a parser of its own.

pub mod check;
pub mod command;
mod described;
mod driver;
mod output;
mod sip;
#[cfg(test)]
mod tests;

use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use vtax_core::{Base, Quantity, Source, Unit, metric};
use vtax_guest::platform::{CommandLine, Finished, Job, Target};
use vtax_host::HostError;
use vtax_host::cell::{Client, ClientProcess};
use vtax_host::settings::{Domain, Level, Parameter, Settings};
use vtax_results::{Metric, Work};

/// The parameter of the seed of random arrivals, for workloads that have them.
pub const LOAD_SEED: Parameter = Parameter::new("load.seed", Domain::Integer(0, i64::MAX), "1")
    .help("seed of the Poisson arrivals [default: one for each block, from the plan's seed; in an emulated host 1]");

/// The result of an operation on a host.
pub type Outcome<T> = Result<T, HostError>;

/// The kinds of workloads, in the order of tables.
const KINDS: [&str; 21] = [
    "idle",
    "iperf3-receive",
    "iperf3-send",
    "iperf3-udp",
    "nuttcp",
    "http-download",
    "http-rate",
    "http-closed",
    "http-batch",
    "http-flood",
    "hping3",
    "board",
    "memcached",
    "tbench",
    "sysbench-oltp",
    "sip",
    "cpu",
    "stress-ng",
    "hackbench",
    "disk-read",
    "command",
];

/// Every workload, in the order of tables.
pub fn all() -> &'static [&'static dyn Workload] {
    static ALL: LazyLock<Vec<&'static dyn Workload>> = LazyLock::new(|| {
        let kinds = KINDS.iter();
        kinds
            .filter_map(|kind| match *kind {
                command::KIND => Some(&command::Command as &dyn Workload),
                sip::KIND => Some(&sip::Sip),
                // A test reads every file, so that none is left out.
                kind => described::read(kind)
                    .ok()
                    .map(|one| &*Box::leak(Box::new(one)) as &dyn Workload),
            })
            .collect()
    });
    &ALL
}

/// The workload of that kind.
pub fn by_kind(kind: &str) -> Option<&'static dyn Workload> {
    all()
        .iter()
        .copied()
        .find(|workload| workload.kind() == kind)
}

/// Where load generators run: a [`Client`] in a cell, or another machine.
pub trait LoadClient {
    /// Starts a command as the client.
    ///
    /// # Errors
    /// When it cannot be started.
    fn start(&self, line: &CommandLine) -> Outcome<Box<dyn Running>>;

    /// Whether a TCP connection from the client to `port` succeeds.
    ///
    /// # Errors
    /// When the client itself is gone.
    fn can_connect(&self, address: IpAddr, port: u16) -> Outcome<bool>;

    /// Whether [`Running::line`] returns the output of its commands while they run.
    fn streams_lines(&self) -> bool {
        false
    }
}

/// A command that runs as the client. Dropping it kills the command.
pub trait Running {
    /// Takes the next line of its output, with the time that it came; `None` where there is none yet.
    fn line(&mut self) -> Option<(Instant, Vec<u8>)> {
        None
    }

    /// Takes its result; `None` while it runs.
    ///
    /// # Errors
    /// When the client does not answer.
    fn poll(&mut self) -> Outcome<Option<Finished>>;
}

impl LoadClient for Client {
    fn start(&self, line: &CommandLine) -> Outcome<Box<dyn Running>> {
        Ok(Box::new(Client::start(self, line)?))
    }

    fn can_connect(&self, address: IpAddr, port: u16) -> Outcome<bool> {
        Client::can_connect(self, address, port)
    }

    fn streams_lines(&self) -> bool {
        true
    }
}

impl Running for ClientProcess {
    fn line(&mut self) -> Option<(Instant, Vec<u8>)> {
        ClientProcess::line(self)
    }

    fn poll(&mut self) -> Outcome<Option<Finished>> {
        ClientProcess::poll(self)
    }
}

/// A program and the Debian package that contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// The program's name, found through `PATH`.
    pub name: &'static str,
    /// The Debian package.
    pub package: &'static str,
}

impl Program {
    /// A program and its package.
    pub const fn new(name: &'static str, package: &'static str) -> Self {
        Self { name, package }
    }
}

/// The service that a workload started in the target, if it needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Service {
    /// The job it runs as, and its name for messages.
    pub job: Option<(Job, &'static str)>,
}

/// The end of a trial's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// After the plan's duration; reported in watts and rates.
    FixedDuration,
    /// When the work is done; reported in joules and totals.
    ToCompletion,
}

impl Extent {
    const KEY: &str = "load.extent";

    /// The parameter that chooses the extent, for workloads that offer both.
    const fn parameter(default: &'static str) -> Parameter {
        let domain = Domain::Choice(&["duration", "completion"]);
        Parameter::new(Self::KEY, domain, default)
            .help("measure for the plan's duration, or until the work is done")
    }
}

/// The times of one trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The load before the window opens.
    pub warmup: Duration,
    /// The window of a fixed-duration workload.
    pub duration: Duration,
}

/// The parameter for the amount of load, which a ramp varies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadLevel {
    /// The parameter's key.
    pub key: &'static str,
    /// The unit of the load.
    pub unit: Unit,
    /// The factor from the parameter to the unit, such as 10⁶ for Mbit/s.
    pub scale: f64,
    /// The title of axes.
    pub title: &'static str,
}

impl LoadLevel {
    const fn new(parameter: &Parameter, unit: Unit, scale: f64, title: &'static str) -> Self {
        Self {
            key: parameter.key,
            unit,
            scale,
            title,
        }
    }

    /// The load at a value of the parameter, in the unit of the load.
    pub fn quantity(&self, value: f64) -> Quantity {
        Quantity::new(value * self.scale, self.unit)
    }
}

/// The scratch disk as the target sees it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Scratch {
    /// The block device.
    pub device: PathBuf,
    /// Where its file system is mounted.
    pub directory: PathBuf,
}

impl Scratch {
    /// The disk of a target.
    pub fn from_target(target: &dyn Target) -> Self {
        let (device, directory) = target.about().scratch.clone();
        Self { device, directory }
    }
}

/// Where a load runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// As the client.
    Client,
    /// In the target itself.
    Target,
}

impl Runs {
    /// The value for this side.
    fn pick<T>(self, client: T, target: T) -> T {
        match self {
            Self::Client => client,
            Self::Target => target,
        }
    }
}

/// The command of a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadCommand {
    /// The command line; an empty one lets the time pass.
    pub line: CommandLine,
    /// Where it runs.
    pub runs: Runs,
    /// How long a load with fixed times may outlast them before it counts as hung.
    pub patience: Duration,
    /// Whether it goes on to its next level with each line that it prints ([`Workload::ramp`]).
    ramps: bool,
}

impl LoadCommand {
    /// A command that runs as the client.
    pub fn client(line: CommandLine) -> Self {
        Self {
            line,
            runs: Runs::Client,
            patience: Duration::from_secs(30),
            ramps: false,
        }
    }

    /// A command that runs in the target.
    pub fn target(line: CommandLine) -> Self {
        Self {
            runs: Runs::Target,
            ..Self::client(line)
        }
    }

    /// The same with more patience.
    pub fn patient(mut self, more: Duration) -> Self {
        self.patience += more;
        self
    }
}

/// The inputs of [`Workload::serve`].
pub struct ServeContext<'a> {
    /// The guest in which the service runs.
    pub target: &'a mut dyn Target,
    /// The client that will load it.
    pub client: &'a dyn LoadClient,
    /// The settings of the treatment.
    pub settings: &'a Settings,
}

/// The inputs of [`Workload::load`].
#[derive(Clone, Copy)]
pub struct LoadSpec<'a> {
    /// The target's address.
    pub address: IpAddr,
    /// The target's scratch disk.
    pub scratch: &'a Scratch,
    /// The settings of the treatment.
    pub settings: &'a Settings,
    /// The times of the load.
    pub timing: Timing,
}

/// The constants of a workload.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// The name in plans: `iperf3-receive`, `http-rate`, `cpu`.
    pub kind: &'static str,
    /// Its description in one line.
    pub summary: &'static str,
    /// The settings of a plan for it; keys start with `load.`.
    pub parameters: &'static [Parameter],
    /// The keys that only a section of its own in a plan can have, and no factor.
    pub definition: &'static [Parameter],
    /// The programs it runs in the target; the image has their packages.
    pub target_programs: &'static [Program],
    /// The programs it runs as the client, checked before anything boots.
    pub client_programs: &'static [Program],
    /// The Debian packages it needs in the target beyond those of the shared image.
    pub packages: &'static [&'static str],
    /// The parameter that a ramp varies, if it has one.
    pub level: Option<LoadLevel>,
    /// Whether a load without a parameter that chooses its extent ends when its work is done.
    pub to_completion: bool,
}

impl About {
    /// No constants, to be completed.
    pub const NONE: Self = Self {
        kind: "",
        summary: "",
        parameters: &[],
        definition: &[],
        target_programs: &[],
        client_programs: &[],
        packages: &[],
        level: None,
        to_completion: false,
    };
}

/// The parameters that set a rate; 0 is as fast as possible.
pub const RATES: [&str; 3] = ["load.rate", "load.rate_mbit", "load.rate_mb"];

/// A workload: a service, the command that drives it, and the parser of its output.
///
/// An implementation is data ([`Workload::load`] is a function of the settings alone) and a parser;
/// [`Workload::drive`] does the rest.
pub trait Workload: Sync {
    /// Its constants.
    fn about(&self) -> &'static About;

    /// The name in plans.
    fn kind(&self) -> &'static str {
        self.about().kind
    }

    /// The end of its window: that of the parameter that chooses it, where the workload has one.
    fn extent(&self, settings: &Settings) -> Extent {
        let mut parameters = self.about().parameters.iter();
        let parameter = parameters.find(|one| one.key == Extent::KEY);
        match parameter.map(|parameter| parameter.text(settings)) {
            Some("completion") => Extent::ToCompletion,
            None if self.about().to_completion => Extent::ToCompletion,
            _ => Extent::FixedDuration,
        }
    }

    /// Whether it offers work at a fixed rate in a window of fixed length, so that all platforms do the same work in the
    /// same time.
    fn is_paced(&self, settings: &Settings) -> bool {
        let parameters = self.about().parameters.iter();
        let mut rates = parameters.filter(|one| RATES.contains(&one.key));
        let is_paced = rates.any(|rate| rate.number(settings) > 0.0);
        is_paced && self.extent(settings) == Extent::FixedDuration
    }

    /// The scratch disk it needs in the target, in MiB; 0 for none.
    fn scratch_mib(&self, _settings: &Settings) -> u64 {
        0
    }

    /// The Debian packages it needs in the target with these settings, beyond those of the shared image.
    fn packages(&self, _settings: &Settings) -> Vec<String> {
        let packages = self.about().packages.iter();
        packages.map(|package| (*package).to_owned()).collect()
    }

    /// The program that these settings run as the client, beyond those of its `About`.
    fn client_program(&self, _settings: &Settings) -> Option<String> {
        None
    }

    /// The first program that these settings run in the target, beyond those of its `About`. It must be in the guest
    /// before a trial begins; what it installs is unknown.
    fn target_program(&self, _settings: &Settings) -> Option<String> {
        None
    }

    /// Starts the service inside the target and waits until it answers (from the client, where
    /// it listens on the network).
    ///
    /// # Errors
    /// When the service does not come up.
    fn serve(&self, _: &mut ServeContext) -> Outcome<Service> {
        Ok(Service::default())
    }

    /// The load's command: warm-up first, then the measured part.
    ///
    /// # Errors
    /// When the settings are invalid.
    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand>;

    /// Starts the load on the service that [`Workload::serve`] returned, and returns at once.
    ///
    /// # Errors
    /// When it cannot be started.
    fn drive(
        &self,
        target: &mut dyn Target,
        client: &dyn LoadClient,
        service: Service,
        settings: &Settings,
        timing: Timing,
    ) -> Outcome<Box<dyn Load>> {
        let command = self.load(LoadSpec {
            address: target.about().address,
            scratch: &Scratch::from_target(target),
            settings,
            timing,
        })?;
        let programs = command
            .runs
            .pick(self.about().client_programs, self.about().target_programs);
        let extent = self.extent(settings);
        driver::start(target, client, service, command, programs, extent, timing)
    }

    /// The command line that starts a command that does nothing in the target, as the load is started; `None` for loads
    /// that do not run in the target to their end.
    ///
    /// # Errors
    /// As [`Workload::load`].
    fn launch(&self, _spec: LoadSpec) -> Outcome<Option<CommandLine>> {
        Ok(None)
    }

    /// Parses the output of the load. A pure function, tested on recorded and on garbage input.
    ///
    /// # Errors
    /// When it is not the output of a successful load; the message quotes it.
    fn parse(&self, raw: &[u8], settings: &Settings, timing: Timing) -> Outcome<WorkloadResult>;

    /// The command of a generator that goes through load levels by itself, as the client. The first level has
    /// these times; the others settle for `settle` instead of a warm-up. At the end of a level, not before the
    /// end of its window, the generator prints one line, the output of [`Workload::load`] at that level, and
    /// begins the next level at once. `None`: a load is started for each level.
    ///
    /// # Errors
    /// As [`Workload::load`].
    fn ramp(
        &self,
        _address: IpAddr,
        _levels: &[Settings],
        _first: Timing,
        _settle: Duration,
    ) -> Outcome<Option<LoadCommand>> {
        Ok(None)
    }

    /// As [`Workload::drive`], for [`Workload::ramp`]. `None` also where the client does not stream the output
    /// of its commands.
    ///
    /// # Errors
    /// When it cannot be started.
    fn drive_ramp(
        &self,
        target: &mut dyn Target,
        client: &dyn LoadClient,
        service: Service,
        levels: &[Settings],
        first: Timing,
        settle: Duration,
    ) -> Outcome<Option<Box<dyn Load>>> {
        let command = if client.streams_lines() {
            self.ramp(target.about().address, levels, first, settle)?
        } else {
            None
        };
        let Some(command) = command else {
            return Ok(None);
        };
        let command = LoadCommand {
            ramps: true,
            ..command
        };
        let (programs, extent) = (self.about().client_programs, Extent::FixedDuration);
        driver::start(target, client, service, command, programs, extent, first).map(Some)
    }
}

/// A load in progress.
pub trait Load {
    /// The output of the load, once it or a level of it has ended; `None` while it runs. Call it often: it asks
    /// the target only when that does not disturb the measurement.
    ///
    /// # Errors
    /// When the load or the service died, with its output.
    fn poll(&mut self, target: &mut dyn Target) -> Outcome<Option<Vec<u8>>>;

    /// When a generator that goes from level to level by itself began the present level.
    fn level_began(&self) -> Option<Instant> {
        None
    }

    /// Whether it runs in the target itself.
    fn runs_in_target(&self) -> bool {
        false
    }
}

/// The lateness of a load generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lateness {
    /// The lateness and the latency that it affects, in words.
    pub text: String,
    /// Whether the median request was late too, and not only the slowest ones.
    pub is_typical: bool,
    /// Whether the resolution of the generator's timers explains it.
    pub is_of_timer: bool,
}

impl Lateness {
    /// Whether it makes a trial suspect. In an emulated host client and target take turns on the same few processors by
    /// design, so that there some requests always leave late: only a typical request's lateness counts. Lateness within
    /// the resolution of the timers moves arrivals by less than a tick and leaves their rate as it is, so that it counts
    /// only where the latency is a result.
    pub fn is_suspect(&self, host: Source, claims_latency: bool) -> bool {
        let is_explained = self.is_of_timer && !claims_latency;
        !is_explained && (self.is_typical || host != Source::Simulated)
    }
}

/// The result of a load.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkloadResult {
    /// The work done per second of the measured window (fixed duration) or in all (completion).
    pub work: Option<WorkDone>,
    /// Its metrics by stable name: `throughput`, `latency.p99`, `jitter`.
    pub metrics: BTreeMap<String, Metric>,
    /// Distributions in nanoseconds, by the name of their quantity: `latency`.
    pub histograms: Vec<(String, Histogram<u64>)>,
    /// The CPU time of a command in the target and of the processes that it waited for, by the kernel that it ran on, in
    /// seconds; with a resolution of 2 ms.
    pub own_cpu: Option<f64>,
    /// The CPU time of starting that command in the target, where it is known.
    pub launch: Option<Launch>,
    /// Reasons to suspect this trial that only the load generator knows.
    pub suspect: Vec<String>,
    /// Claims of the load generator that the lab's counters can check. A contradiction makes the trial suspect.
    pub claims: Vec<check::Claim>,
    /// Why the load was below the requested one: a steady trial becomes suspect, and a level of a profile counts as
    /// broken.
    pub unreached: Option<String>,
    /// The lateness of the load generator, where it is a large part of the latencies: a steady trial becomes suspect, and
    /// a ramp where a level up to the one that broke the objective has it.
    pub late: Option<Lateness>,
}

/// The CPU time of starting a command in a target: of the programs that enter the target, of the agent, the shell and the
/// time limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Launch {
    /// What the guest's control groups count beyond the command's own time, at most what the waiters of the command report
    /// beyond it: other processes of the guest are a part of its cost. In seconds, that of the waiters in all.
    Rest {
        /// The CPU time of the command and of the programs that started it, by their waiters.
        waited: f64,
    },
    /// That of starting a command that does nothing in the same way, in seconds.
    Measured {
        /// The mean of several starts.
        mean: f64,
        /// The difference of the longest and the shortest.
        spread: f64,
    },
}

/// The useful work, as a rate or a total.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkDone {
    /// Per second of the measured window.
    Rate(Work),
    /// In all.
    Total(Work),
}

/// Of the recorded outputs that tests parse.
#[cfg(test)]
const TIMING: Timing = Timing {
    warmup: Duration::from_secs(1),
    duration: Duration::from_secs(2),
};
