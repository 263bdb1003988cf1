// SPDX-License-Identifier: Apache-2.0
//! One climb: the population grows in equal steps, with samples at each, until a resource binds; then it shrinks.

mod churn;
mod energy;

pub use energy::Energy;

use crate::limits::Binding;
use crate::plan::{Method, Variant};
use crate::record::{Births, Climb, Idle, Interval, Latency, Sample, VERSION};
use crate::resources::{Accounts, Memory};
use crate::stop::{judge, steps};
use crate::supervisor::{
    Answer, Guests, Request, SUPERVISOR, Spec, Supervisor, echo_guest, installed, vmm_program,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use vtax_guest::platform::container::{self, ContainerPool};
use vtax_host::cell::{Cell, CellConfig, Seat, Space};
use vtax_host::journal::Journal;
use vtax_host::kernel_file;
use vtax_host::settings::Level;
use vtax_host::signals::Signals;
use vtax_host::{HostError, Roots};
use vtax_kernel::cgroup::{self, GroupClock};
use vtax_observe::clock::process_cpu;

/// The host and the method of a climb.
pub struct Bench<'a> {
    /// The method.
    pub method: &'a Method,
    /// The host.
    pub roots: Roots,
    /// Stop requests.
    pub signals: &'a Signals,
    /// The arguments that make this program a supervisor.
    pub words: &'a [String],
    /// The host's energy meter, where there is one.
    pub energy: Option<Energy>,
}

/// The longest request for guests. Stop requests are checked between two requests.
const BATCH_SECONDS: f64 = 1.0;
/// Time for booted guests to become idle before they are sampled.
const SETTLE: Duration = Duration::from_millis(150);
/// The share of the population's memory that has to return; other programs may have taken the rest.
const RETURNED: f64 = 0.98;
/// Steps of a descent.
const DESCENT: [u32; 4] = [75, 50, 25, 0];

/// Runs a climb. Returns its record and facts about the platform.
///
/// # Errors
/// When the cell or the supervisor cannot be made, the supervisor fails, or a stop is requested. All started processes
/// end in every case.
pub fn climb(
    bench: &mut Bench<'_>,
    variant: &Variant,
    seed: u64,
    journal: &mut Journal,
    saw: &mut dyn FnMut(&Interval),
) -> Result<(Climb, BTreeMap<String, String>), HostError> {
    let config = CellConfig {
        name: "density".to_owned(),
        ..CellConfig::default()
    };
    let cell = Cell::create(config, journal)?;
    let before = Accounts::read(&bench.roots)?.memory;
    let (cpu_before, began) = (process_cpu(), Instant::now());
    let seat = cell.target()?;
    let supervisor = start(&seat, bench, variant)?;
    let facts = supervisor.hello.facts.clone();
    let mut ascent = Ascent {
        bench,
        supervisor,
        group: seat.cgroups(),
        began,
        guard_cpu: 0.0,
        rate: None,
    };
    let (climb, binding) = ascent.up(variant, saw)?;
    let idle = ascent.idle()?;
    let top = climb.last().map_or(0, |top| top.population);
    let method = ascent.bench.method;
    let (cloud, left) = match variant.guests {
        // The monitor of micro VMs cannot end guests individually.
        Guests::Mvm { .. } => (None, top),
        _ => ascent.churn(&method.churn, top, seed)?,
    };
    let descent = ascent.down(top, left)?;
    let guard_cpu = ascent.guard_cpu;
    drop(ascent);
    cell.destroy()?;
    let (after, returned_after) = returned(bench, &before, &climb)?;
    let record = Climb {
        version: VERSION,
        platform: variant.treatment.platform.clone(),
        maximum: variant.maximum,
        limits: bench.method.limits,
        processors: processors(),
        before,
        climb,
        descent,
        idle,
        cloud,
        after,
        returned_after,
        binding,
        own_cpu: process_cpu().saturating_since(cpu_before).as_secs_f64() + guard_cpu,
        seconds: began.elapsed().as_secs_f64(),
    };
    Ok((record, facts))
}

/// Checks that this host can run a variant.
///
/// # Errors
/// When a program or a device is missing.
pub fn check(variant: &Variant, roots: &Roots) -> Result<(), HostError> {
    vtax_host::knobs::host::check(&variant.host, &roots.sys)?;
    match &variant.guests {
        Guests::Container { runtime } => runtime_of(runtime).map(drop),
        Guests::Qemu(options) => {
            let remedy = "install the Debian package qemu-system-x86";
            installed(roots, &options.program, remedy).map(drop)
        }
        Guests::Linux(vmm) => {
            vmm_program(roots, *vmm)?;
            let kvm = roots.dev.join("kvm");
            kernel_file::device(&kvm).map_err(HostError::file("open", &kvm))?;
            echo_guest().map(drop)
        }
        Guests::Mvm { .. } => vtax_mvm::machine::kvm::Host::open()
            .map(drop)
            .map_err(|cause| HostError::Missing {
                what: format!("the KVM of micro VMs ({cause})"),
                remedy: "run on a host that has it, or climb platforms that need none".to_owned(),
            }),
        Guests::Thread | Guests::Process => Ok(()),
    }
}

/// The OCI runtime of this name, or one that works for `auto`.
fn runtime_of(name: &str) -> Result<container::Runtime, HostError> {
    let wanted = ("container.runtime", Level::Text(name.to_owned()));
    container::runtime(&[wanted].into_iter().collect())
}

fn start(seat: &Seat<'_>, bench: &Bench<'_>, variant: &Variant) -> Result<Supervisor, HostError> {
    let mut spec = Spec {
        guests: variant.guests.clone(),
        control_group: String::new(),
        kernel: None,
        work: variant.work,
        working_percent: bench.method.working_percent,
        first: 0,
        maximum: variant.maximum,
        one_process: bench.method.one_process,
        limits: bench.method.limits,
        words: bench.words.to_vec(),
    };
    let mut pool = None;
    match &mut spec.guests {
        Guests::Container { runtime } => {
            let found = runtime_of(runtime)?;
            found.name().clone_into(runtime);
            let pool = pool.insert(ContainerPool::in_cell(seat, found)?);
            spec.control_group.clone_from(&pool.control_group);
        }
        Guests::Linux(_) => spec.kernel = Some(echo_guest()?),
        _ => {}
    }
    let line = spec.command_line()?;
    Supervisor::start(match &pool {
        Some(pool) => pool.command(seat, &line),
        None => seat.command(Space::Switch, &line),
    })
}

impl Bench<'_> {
    /// The energy so far in joules, where the host has a meter.
    fn joules(&mut self) -> Option<f64> {
        self.energy.as_mut().and_then(Energy::read)
    }

    /// The energy since `earlier`, in joules.
    fn joules_since(&mut self, earlier: Option<f64>) -> Option<f64> {
        Some((self.joules()? - earlier?).max(0.0))
    }
}

struct Ascent<'a, 'b> {
    bench: &'a mut Bench<'b>,
    supervisor: Supervisor,
    /// The directories of the population's control group.
    group: Vec<PathBuf>,
    began: Instant,
    guard_cpu: f64,
    /// Guests made per second in the last request.
    rate: Option<f64>,
}

impl Ascent<'_, '_> {
    fn up(
        &mut self,
        variant: &Variant,
        saw: &mut dyn FnMut(&Interval),
    ) -> Result<(Vec<Interval>, Binding), HostError> {
        let limits = self.bench.method.limits;
        let mut climb = vec![self.look(0, None)?];
        for to in steps(variant.maximum, self.bench.method.intervals) {
            let from = climb.last().map_or(0, |last: &Interval| last.population);
            let (births, grown) = self.grow(from, to)?;
            let mut interval = self.look(grown.population, grown.process)?;
            interval.births = Some(births);
            interval.refused = grown.refused;
            if grown.population > 0 {
                interval.probe = Some(self.probe()?);
            }
            let mut binding = judge(&limits, &interval);
            if matches!(binding, Some(Binding::Probe { .. })) {
                // A second probe, since one outlier does not end a climb.
                interval.probe = Some(self.probe()?);
                binding = judge(&limits, &interval);
            }
            saw(&interval);
            climb.push(interval);
            if let Some(binding) = grown.exceeded.or(binding) {
                return Ok((climb, binding));
            }
            self.bench.signals.check()?;
        }
        Ok((climb, Binding::Maximum))
    }

    fn grow(&mut self, from: u32, to: u32) -> Result<(Births, Answer), HostError> {
        let mut sum = Answer {
            population: from,
            ..Answer::default()
        };
        while sum.population < to && sum.refused.is_none() && sum.exceeded.is_none() {
            self.bench.signals.check()?;
            let left = f64::from(to - sum.population);
            let batch = self.rate.map_or(left.min(8.0), |rate| {
                (rate * BATCH_SECONDS).clamp(1.0, left)
            });
            // At least 1 and at most the missing guests.
            let goal = sum.population.saturating_add(batch.ceil() as u32).min(to);
            let answer = self.supervisor.ask(&Request::Grow(goal))?;
            let made = answer.population.saturating_sub(sum.population);
            if answer.seconds > 0.0 && made > 0 {
                self.rate = Some(f64::from(made) / answer.seconds);
            } else if answer.refused.is_none() && answer.exceeded.is_none() {
                return Err(HostError::Protocol {
                    peer: SUPERVISOR.to_owned(),
                    detail: format!("it made no guest towards {goal} and gave no reason"),
                });
            }
            self.guard_cpu += answer.guard_cpu;
            sum.population = answer.population;
            sum.seconds += answer.seconds;
            sum.create.extend(answer.create);
            sum.boot.extend(answer.boot);
            sum.refused = answer.refused;
            sum.exceeded = answer.exceeded;
            sum.process = answer.process;
        }
        let births = Births {
            count: sum.population.saturating_sub(from),
            seconds: sum.seconds,
            create: Latency::of_any(std::mem::take(&mut sum.create)),
            boot: Latency::of_any(std::mem::take(&mut sum.boot)),
        };
        Ok((births, sum))
    }

    /// Samples the host while the guests sleep.
    fn look(
        &mut self,
        population: u32,
        process: Option<crate::resources::ProcessLevels>,
    ) -> Result<Interval, HostError> {
        std::thread::sleep(SETTLE);
        let (energy, clock) = (self.bench.joules(), Instant::now());
        let mut samples = Vec::new();
        let mut earlier = Accounts::read(&self.bench.roots)?;
        let mut cpu = GroupUsage::read(&self.group);
        for _ in 0..self.bench.method.samples {
            std::thread::sleep(self.bench.method.sample);
            let now = Accounts::read(&self.bench.roots)?;
            let cpu_now = GroupUsage::read(&self.group);
            samples.push(Sample {
                at: self.began.elapsed().as_secs_f64(),
                shares: now.shares_since(&earlier, process.as_ref()),
                population_cpu: cpu_now.share_since(&cpu),
                population_disk: cpu_now.disk_bytes > cpu.disk_bytes,
            });
            (earlier, cpu) = (now, cpu_now);
        }
        let seconds = clock.elapsed().as_secs_f64();
        let joules = self.bench.joules_since(energy);
        Ok(Interval {
            population,
            samples,
            memory: earlier.memory,
            // None where memory is not accounted.
            charged: cgroup::memory_used(&self.group).map(|bytes| bytes.0 as f64),
            joules: joules.map(|joules| (joules, seconds)),
            ..Interval::default()
        })
    }

    fn probe(&mut self) -> Result<Latency, HostError> {
        let answer = self
            .supervisor
            .ask(&Request::Probe(self.bench.method.probes))?;
        Ok(Latency::from_micros(answer.probe, answer.failed))
    }

    /// Measures the whole population without probes.
    fn idle(&mut self) -> Result<Option<Idle>, HostError> {
        let wanted = self.bench.method.idle;
        if wanted.is_zero() {
            return Ok(None);
        }
        let (energy, cpu, clock) = (
            self.bench.joules(),
            GroupUsage::read(&self.group),
            Instant::now(),
        );
        while clock.elapsed() < wanted {
            self.bench.signals.check()?;
            std::thread::sleep(Duration::from_millis(100).min(wanted));
        }
        let seconds = clock.elapsed().as_secs_f64();
        let used = GroupUsage::read(&self.group);
        Ok(Some(Idle {
            seconds,
            core_percent: used.core_percent_since(&cpu, seconds),
            joules: self.bench.joules_since(energy),
        }))
    }

    /// Shrinks a population of `left` guests in steps, which are percentages of the largest population `top`.
    fn down(&mut self, top: u32, mut left: u32) -> Result<Vec<Interval>, HostError> {
        let mut descent = Vec::new();
        for percent in DESCENT {
            let to = u32::try_from(u64::from(top) * u64::from(percent) / 100).unwrap_or(0);
            if to >= left {
                continue;
            }
            let answer = self.supervisor.ask(&Request::Shrink(to))?;
            if let Some(why) = answer.refused {
                return Err(HostError::Protocol {
                    peer: SUPERVISOR.to_owned(),
                    detail: format!(
                        "it cannot shrink the population from {left} to {to} guests: {why}"
                    ),
                });
            }
            left = answer.population;
            descent.push(self.look(left, answer.process)?);
            self.bench.signals.check()?;
        }
        Ok(descent)
    }
}

/// Waits until the memory has returned or the time limit is over.
fn returned(
    bench: &Bench<'_>,
    before: &Memory,
    climb: &[Interval],
) -> Result<(Memory, f64), HostError> {
    let taken = climb
        .last()
        .map_or(0.0, |top| before.available - top.memory.available);
    let clock = Instant::now();
    loop {
        let memory = Accounts::levels(&bench.roots)?.memory;
        let missing = before.available - memory.available;
        if missing <= taken.max(0.0) * (1.0 - RETURNED)
            || clock.elapsed() > bench.method.memory_return
        {
            return Ok((memory, clock.elapsed().as_secs_f64()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn processors() -> u32 {
    std::thread::available_parallelism()
        .ok()
        .and_then(|n| u32::try_from(n.get()).ok())
        .unwrap_or(1)
}

/// What the population has used.
#[derive(Clone, Copy)]
struct GroupUsage {
    at: Instant,
    /// Processor time.
    seconds: f64,
    /// Bytes to and from disks.
    disk_bytes: f64,
}

impl GroupUsage {
    /// Reads the accounts of a control group, whose directories these are.
    fn read(group: &[PathBuf]) -> Self {
        let times = GroupClock::find(group).and_then(|mut clock| clock.times().ok());
        let disk_bytes = group.iter().find_map(|folder| cgroup::disk_bytes(folder));
        Self {
            at: Instant::now(),
            seconds: times.unwrap_or_default().total.as_secs_f64(),
            disk_bytes: disk_bytes.unwrap_or_default().0 as f64,
        }
    }

    /// Processor time since `earlier`, in percent of one processor, over `seconds`.
    fn core_percent_since(&self, earlier: &Self, seconds: f64) -> f64 {
        (self.seconds - earlier.seconds).max(0.0) / seconds.max(1e-9) * 100.0
    }

    /// Processor time since `earlier`, in percent of all processors.
    fn share_since(&self, earlier: &Self) -> f64 {
        let wall = (self.at - earlier.at).as_secs_f64() * f64::from(processors());
        if wall > 0.0 {
            ((self.seconds - earlier.seconds) / wall * 100.0).clamp(0.0, 100.0)
        } else {
            0.0
        }
    }
}
