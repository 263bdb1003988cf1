// SPDX-License-Identifier: Apache-2.0
//! The guest supervisor: a process in the climb's cell that makes, holds and probes guests.
//!
//! It is a second process of this program. It reads one JSON request a line and writes one JSON answer a line. It ends
//! when its input closes, also after a crash of the climb, and the cell ends its guests. Guests count as the cell's
//! target; the climb itself runs outside of the cell.

mod client;
mod container;
mod error;
mod individual;
mod linux;
mod mixed;
mod mvm;
mod process;
mod qemu;
mod shards;
mod thread;
mod work;

pub(crate) use linux::{echo_guest, vmm_program};

pub use client::Supervisor;
pub use qemu::QemuOptions;
pub use work::Work;

use crate::limits::{Binding, Limits};
use crate::resources::{Accounts, ProcessLevels};
use error::Result;
use individual::{GuestDriver, IndividualGuests};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use vtax_guest::image::EchoGuest;
use vtax_guest::platform::vmm::Vmm;
use vtax_host::command::CommandLine;
use vtax_host::{HostError, Roots};
use vtax_observe::clock::thread_cpu;

/// The largest size of a guest's answer, in bytes.
const LONGEST_ANSWER: usize = 64 << 10;

/// The name of a supervisor in errors.
pub(crate) const SUPERVISOR: &str = "the guest supervisor";

/// The population of a supervisor; its only argument.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The kind of the guests, of containers with the name of the runtime.
    pub guests: Guests,
    /// The control group of a container as the runtime takes it, without the number.
    pub control_group: String,
    /// The kernel of guests that boot Linux.
    pub kernel: Option<EchoGuest>,
    /// The work of some guests; the others sleep until a probe.
    pub work: Option<Work>,
    /// The share of guests with work, in percent.
    pub working_percent: u32,
    /// The number of the first guest.
    pub first: u32,
    /// The largest population.
    pub maximum: u32,
    /// Whether one process holds all guests, so that its limits count.
    pub one_process: bool,
    /// The limits of the guests' use of resources.
    pub limits: Limits,
    /// The arguments that make this program a supervisor.
    pub words: Vec<String>,
}

impl Spec {
    /// The command line of the supervisor, a process of this program.
    ///
    /// # Errors
    /// When the program is not found.
    pub fn command_line(&self) -> std::result::Result<CommandLine, HostError> {
        let program = std::env::current_exe();
        let program = program.map_err(HostError::process("find", "this program"))?;
        let spec = serde_json::to_string(self)
            .map_err(|cause| HostError::process("start", SUPERVISOR)(cause.into()))?;
        let mut line = vec![program.display().to_string()];
        line.extend(self.words.iter().cloned().chain([spec]));
        Ok(line)
    }
}

/// A kind of guest with its options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Guests {
    /// Threads that echo.
    Thread,
    /// Processes that echo: `cat` of busybox.
    Process,
    /// The same `cat` in a container, by `auto`, `runc` or `crun`.
    Container {
        /// The OCI runtime.
        runtime: String,
    },
    /// Micro VMs in vtax's own monitor.
    Mvm {
        /// Live: each keeps its KVM objects. Otherwise halted guests are parked.
        live: bool,
        /// The boot sector.
        image: String,
    },
    /// A QEMU for each guest.
    Qemu(QemuOptions),
    /// A VM with a kernel of its own for each guest, by this VMM.
    Linux(Vmm),
}

impl Guests {
    /// The program that makes them, unless that is vtax.
    #[must_use]
    pub fn program(&self) -> Option<&str> {
        match self {
            Self::Qemu(options) => Some(&options.program),
            Self::Linux(vmm) => Some(vmm.program()),
            Self::Thread | Self::Process | Self::Container { .. } | Self::Mvm { .. } => None,
        }
    }
}

/// The command of a command line.
fn command(line: &CommandLine) -> Command {
    let mut words = line.iter();
    let mut command = Command::new(words.next().map_or("", String::as_str));
    command.args(words);
    command
}

/// The path of a program.
///
/// # Errors
/// When it is not installed, with the remedy.
pub(crate) fn installed(
    roots: &Roots,
    program: &str,
    remedy: &str,
) -> std::result::Result<PathBuf, HostError> {
    roots.program(program).ok_or_else(|| HostError::Missing {
        what: format!("the program {program}"),
        remedy: remedy.to_owned(),
    })
}

/// A request of the climb.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Make guests up to this population.
    Grow(u32),
    /// End guests down to this population.
    Shrink(u32),
    /// Probe guests this many times, one after the other.
    Probe(u32),
}

/// An answer of the supervisor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The population.
    pub population: u32,
    /// Wall time, in seconds.
    pub seconds: f64,
    /// Times to make a guest, in microseconds.
    pub create: Vec<f64>,
    /// Times to a guest that has booted, in microseconds.
    pub boot: Vec<f64>,
    /// Response times, in microseconds.
    pub probe: Vec<f64>,
    /// Requests without an answer.
    pub failed: u32,
    /// The reason why no further guest can be made.
    pub refused: Option<String>,
    /// The level that stopped the growth.
    pub exceeded: Option<Binding>,
    /// Processor time of the guard, in seconds.
    pub guard_cpu: f64,
    /// Descriptors and mappings of the one process that holds all guests.
    pub process: Option<ProcessLevels>,
    /// Facts about the platform; only in the first answer.
    pub facts: BTreeMap<String, String>,
}

/// Guests of one kind that this process holds.
trait Population {
    /// The number of guests.
    fn count(&self) -> u32;

    /// Makes guests up to `to`, or until the guard permits no further one. Adds the times to make and to boot them to
    /// `answer`.
    ///
    /// # Errors
    /// When a guest cannot be made; earlier ones stay.
    fn grow(&mut self, to: u32, guard: &mut Guard, answer: &mut Answer) -> Result<()>;

    /// Ends guests down to `to`, or all where they cannot be ended individually.
    ///
    /// # Errors
    /// When a guest does not end.
    fn shrink(&mut self, to: u32) -> Result<()>;

    /// Probes one guest and waits for its answer.
    ///
    /// # Errors
    /// When no answer comes.
    fn ask(&mut self) -> Result<Duration>;

    /// Facts for the trial's record.
    fn facts(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The shortest time between two checks of the guard.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Checks the host's levels while guests are made, so that no limit, above all the reserve of memory, is passed between
/// two samples of the climb.
#[derive(Debug)]
struct Guard {
    limits: Limits,
    roots: Roots,
    checked: Option<Instant>,
    exceeded: Option<Binding>,
    cpu: Duration,
}

impl Guard {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            roots: Roots::host(),
            checked: None,
            exceeded: None,
            cpu: Duration::ZERO,
        }
    }

    /// Whether one more guest may be made.
    fn permits(&mut self) -> bool {
        if self.exceeded.is_some() {
            return false;
        }
        if self.checked.is_none_or(|at| at.elapsed() >= CHECK_INTERVAL) {
            let began = thread_cpu();
            if let Ok(accounts) = Accounts::levels(&self.roots) {
                // Mappings are left out: counting them line by line is slow, so the climb does it once an interval.
                self.exceeded = self.limits.exceeded(&accounts.level_shares(None));
            }
            self.checked = Some(Instant::now());
            self.cpu += Duration::from(thread_cpu().saturating_since(began));
        }
        self.exceeded.is_none()
    }
}

/// The number of guests that one process can hold.
fn capacity(guests: &Guests) -> u32 {
    let descriptors =
        u32::try_from(vtax_mvm::population::capacity::raise_descriptors()).unwrap_or(u32::MAX);
    match guests {
        // The start of a process copies its parent's table of descriptors, one for each guest. A large table would
        // lengthen the measured times.
        Guests::Process | Guests::Container { .. } | Guests::Linux(_) => {
            1000.min(descriptors.saturating_sub(64))
        }
        // A thread has four mappings, stack and signal stack with a guard page each; the allocator needs some as well.
        Guests::Thread => (crate::resources::most_mappings() * 0.24) as u32,
        Guests::Mvm { live: true, .. } => {
            // The capacity without the descriptors of the supervisor and of its workers.
            vtax_mvm::population::capacity::Capacity::of_this_process()
                .guests
                .saturating_sub(64)
                .min(vtax_mvm::shard::GUESTS_PER_PROCESS)
        }
        Guests::Mvm { live: false, .. } | Guests::Qemu(_) => u32::MAX,
    }
}

fn populate(spec: &Spec) -> Result<Box<dyn Population>> {
    if spec.work.is_some() && spec.working_percent < 100 {
        let working = mixed::working(spec.maximum, spec.working_percent);
        let sleeping = spec.maximum - working;
        return Ok(Box::new(mixed::Mixed {
            sleepers: populate(&Spec {
                work: None,
                maximum: sleeping,
                ..spec.clone()
            })?,
            workers: populate(&Spec {
                working_percent: 100,
                first: spec.first + sleeping,
                maximum: working,
                ..spec.clone()
            })?,
            working_percent: spec.working_percent,
        }));
    }
    let booting = |image: &str| match spec.work {
        Some(_) => work::WORKING_IMAGE.to_owned(),
        None => image.to_owned(),
    };
    let capacity = capacity(&spec.guests);
    if !spec.one_process && spec.maximum > capacity {
        return Ok(Box::new(shards::Shards::new(spec.clone(), capacity)));
    }
    Ok(match &spec.guests {
        Guests::Thread => individual(thread::Threads),
        Guests::Process => individual(process::Processes::new(spec.work)?),
        Guests::Container { runtime } => individual(container::Containers::new(runtime, spec)?),
        Guests::Mvm { live, image } => Box::new(mvm::MicroVms::new(*live, &booting(image), spec)?),
        Guests::Qemu(options) => {
            let image = booting(&options.image);
            Box::new(qemu::QemuGuests::new(options, &image, spec.first)?)
        }
        Guests::Linux(vmm) => individual(linux::LinuxGuests::new(*vmm, spec)?),
    })
}

fn individual(kind: impl GuestDriver + 'static) -> Box<dyn Population> {
    Box::new(IndividualGuests::new(kind))
}

/// Serves requests until the input closes.
///
/// # Errors
/// When `spec` is no [`Spec`], or the output is closed.
pub fn serve(spec: &str) -> std::result::Result<(), HostError> {
    let spec: Spec = serde_json::from_str(spec).map_err(|cause| HostError::Invalid {
        what: "the argument of --supervise".to_owned(),
        problem: cause.to_string(),
    })?;
    let mut population = match populate(&spec) {
        Ok(population) => population,
        Err(cause) => {
            return send(&Answer {
                refused: Some(cause.to_string()),
                ..Answer::default()
            });
        }
    };
    let facts = population.facts();
    send(&Answer {
        facts,
        ..Answer::default()
    })?;
    let alone = spec.one_process;
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let request: Request = serde_json::from_str(&line).map_err(|cause| HostError::Invalid {
            what: format!("the request {line} to the supervisor"),
            problem: cause.to_string(),
        })?;
        let mut answer = handle(population.as_mut(), &request, &spec.limits);
        answer.process = alone.then(ProcessLevels::own);
        send(&answer)?;
    }
    Ok(())
}

fn handle(population: &mut dyn Population, request: &Request, limits: &Limits) -> Answer {
    let began = Instant::now();
    let mut answer = Answer::default();
    match request {
        Request::Grow(to) => {
            let mut guard = Guard::new(*limits);
            let grown = population.grow(*to, &mut guard, &mut answer);
            answer.refused = grown.err().map(|cause| cause.to_string());
            answer.exceeded = guard.exceeded;
            answer.guard_cpu = guard.cpu.as_secs_f64();
        }
        Request::Shrink(to) => {
            let shrunk = population.shrink(*to);
            answer.refused = shrunk.err().map(|cause| cause.to_string());
        }
        Request::Probe(times) => {
            for _ in 0..*times {
                match population.ask() {
                    Ok(time) => answer.probe.push(micros(time)),
                    Err(cause) => {
                        answer.failed += 1;
                        answer.refused = Some(cause.to_string());
                    }
                }
                // A pause, so that guests answer from sleep and not from a warm loop.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    answer.population = population.count();
    answer.seconds = began.elapsed().as_secs_f64();
    answer
}

fn send(answer: &Answer) -> std::result::Result<(), HostError> {
    let mut out = vtax_core::terminal::data();
    serde_json::to_string(answer)
        .map_err(io::Error::from)
        .and_then(|line| writeln!(out, "{line}"))
        .and_then(|()| out.flush())
        .map_err(HostError::file("write", "the supervisor's output"))
}
