//! The supervisor: a process in the climb's cell that makes guests, holds them and asks them.
//!
//! It is this program run again. It takes one JSON request a line and gives one JSON answer a
//! line; when its input closes, however the climb ended, it ends, and the cell takes whatever it
//! kept along. Guests count as the cell's target; the climb itself stays outside.

mod client;
mod container;
mod linux;
mod mixed;
mod mvm;
mod process;
mod qemu;
mod shards;
mod singly;
mod thread;
mod work;

pub use client::Supervisor;
pub use container::Runtime;
pub use linux::LinuxOptions;
pub use qemu::{Devices, QemuOptions};
pub use work::Work;

use crate::limits::{Binding, Limits};
use crate::resources::{Accounts, ProcessLevels};
use serde::{Deserialize, Serialize};
use singly::OneByOne;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};
use vtax_host::{HostError, Roots};
use vtax_mvm::population::Holding;
use vtax_observe::clock::thread_cpu;

/// The most bytes of one answer of a guest.
const LONGEST_ANSWER: usize = 64 << 10;

/// What errors call it.
pub(crate) const SUPERVISOR: &str = "the guest supervisor";

/// What a supervisor keeps; its only argument.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// What the guests are.
    pub guests: Guests,
    /// What some of them do; the others sleep until they are asked.
    pub work: Option<Work>,
    /// How many of a hundred do it.
    pub working_percent: u32,
    /// The number of the first.
    pub first: u32,
    /// How many there may become.
    pub maximum: u32,
    /// All guests in one process, whose own limits then bind.
    pub one_process: bool,
    /// What they may use up.
    pub limits: Limits,
    /// The words that make this program a supervisor.
    pub words: Vec<String>,
}

/// A kind of guest, with all that is needed to make one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Guests {
    /// Threads that echo.
    Thread,
    /// Processes that echo: `cat` of busybox.
    Process,
    /// The same `cat` in a container.
    Container {
        /// The OCI runtime.
        runtime: Runtime,
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
    /// A VM with a kernel of its own for each guest.
    Linux(LinuxOptions),
}

/// What the climb asks of its supervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Make guests until there are so many.
    Grow(u32),
    /// End guests until there are so many.
    Shrink(u32),
    /// Ask guests, so many times, one after the other.
    Probe(u32),
}

/// What the supervisor answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Guests now.
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
    /// Why no further guest can be made.
    pub refused: Option<String>,
    /// The level that stopped the growth.
    pub exceeded: Option<Binding>,
    /// Processor time of guarding, in seconds.
    pub guard_cpu: f64,
    /// Descriptors and mappings of the one process that holds all guests.
    pub process: Option<ProcessLevels>,
    /// What there is to know of the platform, told with the first answer.
    pub facts: BTreeMap<String, String>,
}

/// Guests of one kind, kept by this process.
trait Population {
    /// Guests now.
    fn count(&self) -> u32;

    /// Makes guests until there are `to`, or the guard says no.
    ///
    /// # Errors
    /// Why a guest could not be made; those made before stay.
    fn grow(&mut self, to: u32, guard: &mut Guard, tally: &mut Tally) -> Result<(), String>;

    /// Ends guests until there are `to` or, where they cannot be ended singly, fewer.
    ///
    /// # Errors
    /// What did not end.
    fn shrink(&mut self, to: u32) -> Result<(), String>;

    /// Asks one guest and waits for its answer.
    ///
    /// # Errors
    /// Why there was none.
    fn ask(&mut self) -> Result<Duration, String>;

    /// Facts for the trial's record.
    fn facts(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

/// Times of births, in microseconds.
#[derive(Debug, Default)]
struct Tally {
    create: Vec<f64>,
    boot: Vec<f64>,
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// How often the guard looks at most.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks at the host's levels while guests are made, so that no limit is passed between two
/// samples of the climb: the reserve of memory above all.
#[derive(Debug)]
struct Guard {
    limits: Limits,
    roots: Roots,
    looked: Option<Instant>,
    exceeded: Option<Binding>,
    cpu: Duration,
}

impl Guard {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            roots: Roots::host(),
            looked: None,
            exceeded: None,
            cpu: Duration::ZERO,
        }
    }

    /// Whether one more guest may be made.
    fn permits(&mut self) -> bool {
        if self.exceeded.is_some() {
            return false;
        }
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            let began = thread_cpu();
            if let Ok(accounts) = Accounts::levels(&self.roots) {
                // Mappings are counted line by line, which takes long when there are many: the
                // climb does it once an interval.
                self.exceeded = self.limits.exceeded(&accounts.level_shares(None));
            }
            self.looked = Some(Instant::now());
            self.cpu += Duration::from(thread_cpu().saturating_since(began));
        }
        self.exceeded.is_none()
    }
}

/// Guests that one process of ours can hold.
fn capacity(guests: &Guests) -> u32 {
    let descriptors =
        u32::try_from(vtax_mvm::population::capacity::raise_descriptors()).unwrap_or(u32::MAX);
    match guests {
        // Starting a process copies its parent's table of descriptors, one for each guest: a
        // large one would make guests look slow to create.
        Guests::Process | Guests::Container { .. } | Guests::Linux(_) => {
            1000.min(descriptors.saturating_sub(64))
        }
        // A stack and one for signals, each with its guard page: four mappings; room for the allocator's own.
        Guests::Thread => (crate::resources::most_mappings() * 0.24) as u32,
        Guests::Mvm { live: true, .. } => {
            // The answering descriptors of the supervisor and its workers besides.
            vtax_mvm::population::capacity::Capacity::of_this_process()
                .guests
                .saturating_sub(64)
                .min(vtax_mvm::shard::GUESTS_PER_PROCESS)
        }
        Guests::Mvm { live: false, .. } | Guests::Qemu(_) => u32::MAX,
    }
}

fn populate(spec: &Spec) -> Result<Box<dyn Population>, String> {
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
        Guests::Thread => Box::new(OneByOne::new(thread::Threads)),
        Guests::Process => Box::new(OneByOne::new(process::Processes::new(spec.work)?)),
        Guests::Container { runtime } => Box::new(OneByOne::new(container::Containers::new(
            runtime.clone(),
            spec.first,
            spec.work,
        )?)),
        Guests::Mvm { live, image } => {
            let holding = if *live {
                Holding::Live
            } else {
                Holding::Parked
            };
            Box::new(mvm::MicroVms::new(
                holding,
                &booting(image),
                spec.first,
                spec.maximum,
            )?)
        }
        Guests::Qemu(options) => {
            let image = booting(&options.image);
            let options = QemuOptions {
                image,
                ..options.clone()
            };
            Box::new(qemu::Qemus::new(options, spec.first)?)
        }
        Guests::Linux(options) => Box::new(OneByOne::new(linux::Linuxes::new(
            options.clone(),
            spec.first,
        )?)),
    })
}

/// Serves requests until the input closes.
///
/// # Errors
/// When `spec` is no [`Spec`], or the output is closed.
pub fn serve(spec: &str) -> Result<(), HostError> {
    let spec: Spec = serde_json::from_str(spec).map_err(|cause| HostError::Invalid {
        what: "the argument of --supervise".to_owned(),
        problem: cause.to_string(),
    })?;
    let mut population = match populate(&spec) {
        Ok(population) => population,
        Err(why) => {
            return say(&Answer {
                refused: Some(why),
                ..Answer::default()
            });
        }
    };
    let facts = population.facts();
    say(&Answer {
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
        say(&answer)?;
    }
    Ok(())
}

fn handle(population: &mut dyn Population, request: &Request, limits: &Limits) -> Answer {
    let began = Instant::now();
    let mut answer = Answer::default();
    match request {
        Request::Grow(to) => {
            let (mut guard, mut tally) = (Guard::new(*limits), Tally::default());
            answer.refused = population.grow(*to, &mut guard, &mut tally).err();
            answer.create = tally.create;
            answer.boot = tally.boot;
            answer.exceeded = guard.exceeded;
            answer.guard_cpu = guard.cpu.as_secs_f64();
        }
        Request::Shrink(to) => answer.refused = population.shrink(*to).err(),
        Request::Probe(times) => {
            for _ in 0..*times {
                match population.ask() {
                    Ok(time) => answer.probe.push(micros(time)),
                    Err(why) => {
                        answer.failed += 1;
                        answer.refused = Some(why);
                    }
                }
                // A pause, so that guests answer from sleep rather than from a warm loop.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    answer.population = population.count();
    answer.seconds = began.elapsed().as_secs_f64();
    answer
}

fn say(answer: &Answer) -> Result<(), HostError> {
    let mut out = io::stdout().lock();
    serde_json::to_string(answer)
        .map_err(io::Error::from)
        .and_then(|line| writeln!(out, "{line}"))
        .and_then(|()| out.flush())
        .map_err(HostError::file("write", "the supervisor's output"))
}
