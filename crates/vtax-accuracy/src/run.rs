//! Measures what a plan describes, platform by platform.

use crate::study::{GuestCharge, Measurement, MonitorCost, PlatformStudy, Study};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use vtax_guest::image::{self, Recipe};
use vtax_guest::platform::{GuestFiles, Target, xen};
use vtax_host::HostError;
use vtax_host::cell::{Cell, CellConfig};
use vtax_host::journal::Journal;
use vtax_host::lock::Lock;
use vtax_host::scratch;
use vtax_host::signals::Signals;
use vtax_lab::LabError;
use vtax_lab::plan::{Catalogue, Plan, PlannedTreatment, treatments};
use vtax_lab::run::{Event, Progress};
use vtax_load::workload::{Load, Service, Timing, WorkDone, Workload};
use vtax_observe::charge::{Charger, ChargerOptions, MethodChoice, Pass, Stage};
use vtax_observe::clock::SystemClock;
use vtax_units::{Nanoseconds, Source};

/// How often a load's end is looked for.
const POLL: Duration = Duration::from_millis(50);
/// Beyond its planned time, a load may take this long to finish and print.
const LOAD_GRACE: Duration = Duration::from_secs(30);
/// Loads begin at most this long one after the other: what a program learns at its start about the
/// clock it should not learn while another one starts.
const APART: Duration = Duration::from_secs(2);
/// Passes before the first interval: the methods learn of the guests' devices in them.
const PASSES_TO_SETTLE: u32 = 3;

/// How to run a study.
#[derive(Debug, Clone)]
pub struct StudyOptions {
    /// Where the journal and the lock are.
    pub state_dir: PathBuf,
    /// What `place` says in the record.
    pub place: String,
    /// Whether this host is an emulated one.
    pub emulated: bool,
}

/// Runs a study. Call it on a thread that lives as long as the run: cells die with their thread.
///
/// # Errors
/// When the plan has fewer than two workloads, this host cannot run it, another lab runs, a guest or
/// load fails, or the user interrupts.
pub fn run(
    plan: &Plan,
    catalogue: &Catalogue,
    options: &StudyOptions,
    signals: &Signals,
    progress: &mut dyn Progress,
) -> Result<Study, LabError> {
    let _lock = Lock::acquire(
        &options.state_dir,
        &format!("studying charge-back with plan {}", plan.name),
    )?;
    let mut journal = Journal::open(&options.state_dir, xen::end)?;
    journal.undo_all()?;
    let mut note = |message: String| progress.event(Event::Note { message });
    let guest = image::ensure(&Recipe::standard(), &mut |line| note(line.to_owned()))?;
    let all = treatments(plan, catalogue);
    let mut study = Study {
        name: plan.name.clone(),
        place: options.place.clone(),
        source: if options.emulated {
            Source::Emulated
        } else {
            Source::Measured
        },
        kernel: kernel(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        notes: Vec::new(),
        platforms: Vec::new(),
    };
    let bench = Bench {
        plan,
        catalogue,
        guest: &guest,
        signals,
    };
    for platform in &plan.platforms {
        let loads: Vec<&PlannedTreatment> = all
            .iter()
            .filter(|planned| planned.record.platform == platform.name)
            .collect();
        let ([first, between @ .., last], true) = (loads.as_slice(), loads.len() > 1) else {
            return Err(LabError::Plan(format!(
                "{}: a study of charge-back needs two workloads, one for each guest, and no factors",
                plan.name
            )));
        };
        let mark = journal.mark();
        let watched = between.first().unwrap_or(first);
        let monitor = bench.monitor_cost(watched, &mut journal, &mut note);
        journal.undo_to(mark)?;
        let monitor = monitor?;
        let mut measurements = Vec::new();
        // One for all of the platform's loads, as a monitor that has been up for a while.
        let mut charger = charger(&mut study)?;
        let mut groups: Vec<Vec<&PlannedTreatment>> =
            between.iter().map(|load| vec![*load]).collect();
        groups.push(vec![first, last]);
        for group in groups {
            let done = bench.with_guests(&group, &mut journal, &mut note, |raised, note| {
                bench.measure_all(raised, &mut charger, &mut measurements, note)
            });
            journal.undo_to(mark)?;
            done?;
        }
        study.platforms.push(PlatformStudy {
            name: platform.name.clone(),
            pair: [first, last].map(|planned| planned.record.workload.clone()),
            measurements,
            monitor,
        });
    }
    Ok(study)
}

fn kernel() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

struct Bench<'a> {
    plan: &'a Plan,
    catalogue: &'a Catalogue,
    guest: &'a GuestFiles,
    signals: &'a Signals,
}

/// A guest that is up, with its service.
struct Raised<'a> {
    planned: &'a PlannedTreatment,
    workload: &'static dyn Workload,
    target: Box<dyn Target>,
    service: Service,
    cell: Cell,
}

impl Bench<'_> {
    /// Raises guests, does with them what is to be done, and ends them.
    fn with_guests<T>(
        &self,
        loads: &[&PlannedTreatment],
        journal: &mut Journal,
        note: &mut dyn FnMut(String),
        work: impl FnOnce(&mut [Raised<'_>], &mut dyn FnMut(String)) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        let mut raised = Vec::new();
        for (position, planned) in loads.iter().enumerate() {
            note(format!("starting {}", planned.record.label));
            raised.push(self.raise(planned, position, journal)?);
        }
        let done = work(&mut raised, note);
        // Each is ended whatever became of the one before it.
        let ended = raised.into_iter().map(|guest| {
            let stopped = guest.target.stop();
            guest.cell.destroy().and(stopped)
        });
        let ended: Vec<_> = ended.collect();
        let done = done?;
        ended.into_iter().collect::<Result<(), HostError>>()?;
        Ok(done)
    }

    /// What tracing itself costs: the host's time for a load with and without it, in turns. `None`
    /// where tracing does not work.
    fn monitor_cost(
        &self,
        load: &PlannedTreatment,
        journal: &mut Journal,
        note: &mut dyn FnMut(String),
    ) -> Result<Option<MonitorCost>, LabError> {
        let open = |method| {
            Charger::open(ChargerOptions {
                method,
                ..ChargerOptions::default()
            })
        };
        if open(MethodChoice::Traced).is_err() {
            return Ok(None);
        }
        self.with_guests(&[load], journal, note, |raised, note| {
            let mut cost = MonitorCost {
                load: load.record.workload.clone(),
                without: Vec::new(),
                with: Vec::new(),
            };
            let mut measure = |block, traced: bool| -> Result<Option<f64>, LabError> {
                let (method, is) = if traced {
                    (MethodChoice::Traced, "traced")
                } else {
                    (MethodChoice::Counted, "untraced")
                };
                note(format!("measuring {}, {is}", load.record.label));
                let mut charger = open(method).map_err(unreadable)?;
                let numbers = settle(&mut charger, raised)?;
                let measured = self.measure(block, &mut charger, raised, &numbers, &[0])?;
                Ok(measured.host_cost_of_work())
            };
            // The first time, everything is cold: it does not count.
            measure(0, false)?;
            for block in 0..self.plan.repetitions {
                cost.without.extend(measure(block, false)?);
                cost.with.extend(measure(block, true)?);
            }
            Ok(Some(cost))
        })
    }

    fn raise<'b>(
        &self,
        planned: &'b PlannedTreatment,
        position: usize,
        journal: &mut Journal,
    ) -> Result<Raised<'b>, LabError> {
        self.signals.check()?;
        let settings = &planned.settings;
        let (Some(platform), Some(workload)) = (
            self.catalogue.platform(&planned.record.platform_kind),
            self.catalogue.workload(&planned.record.workload_kind),
        ) else {
            return Err(LabError::Plan(format!(
                "{} names a platform or workload that does not exist",
                planned.record.label
            )));
        };
        platform.check(settings)?;
        let name = format!("guest-{}-{position}", std::process::id());
        let mut config = CellConfig::from_settings(&name, settings)?;
        let mib = workload.scratch_mib(settings);
        if mib > 0 {
            // An image for each guest: only one may write to it.
            let folder = image::cache_dir()?.join(format!("guest-{position}"));
            config.scratch = Some(scratch::image(&folder, mib)?);
        }
        let cell = Cell::create(config, journal)?;
        let outlives = platform.outlives(&cell);
        if !outlives.is_empty() {
            journal.record_all(outlives)?;
        }
        let mut target = match platform.boot(&cell, self.guest, settings) {
            Ok(target) => target,
            Err(cause) => return Ok(cell.destroy().and(Err(cause))?),
        };
        let service = workload.serve(target.as_mut(), &cell.client(), settings)?;
        Ok(Raised {
            planned,
            workload,
            target,
            service,
            cell,
        })
    }

    fn measure_all(
        &self,
        raised: &mut [Raised<'_>],
        charger: &mut Charger,
        measurements: &mut Vec<Measurement>,
        note: &mut dyn FnMut(String),
    ) -> Result<(), LabError> {
        let numbers = settle(charger, raised)?;
        let is_pair = raised.len() > 1;
        for block in 0..self.plan.repetitions {
            let mut sets: Vec<Vec<usize>> = (0..raised.len()).map(|guest| vec![guest]).collect();
            if is_pair {
                sets.push((0..raised.len()).collect());
            }
            for running in sets {
                let names: Vec<&str> = running
                    .iter()
                    .filter_map(|index| raised.get(*index))
                    .map(|guest| guest.planned.record.label.as_str())
                    .collect();
                note(format!("measuring {}", names.join(" with ")));
                let measurement = self.measure(block, charger, raised, &numbers, &running)?;
                measurements.push(measurement);
            }
        }
        Ok(())
    }

    fn measure(
        &self,
        block: u32,
        charger: &mut Charger,
        raised: &mut [Raised<'_>],
        numbers: &[u32],
        running: &[usize],
    ) -> Result<Measurement, LabError> {
        let timing = Timing {
            warmup: self.plan.warmup,
            duration: self.plan.duration,
        };
        let began = Instant::now();
        let opens = began + timing.warmup;
        let mut loads: Vec<Driven> = raised.iter().map(|_| Driven::Idle).collect();
        for (before, index) in (0..).zip(running) {
            let start = began + APART.min(timing.warmup / 4) * before;
            self.wait(&mut loads, raised, start)?;
            let left = Timing {
                warmup: opens.saturating_duration_since(Instant::now()),
                ..timing
            };
            let (Some(guest), Some(load)) = (raised.get_mut(*index), loads.get_mut(*index)) else {
                continue;
            };
            let (client, settings) = (guest.cell.client(), &guest.planned.settings);
            let target = guest.target.as_mut();
            let workload = guest.workload;
            *load =
                Driven::Running(workload.drive(target, &client, guest.service, settings, left)?);
        }
        self.wait(&mut loads, raised, opens)?;
        charger.pass(&SystemClock).map_err(unreadable)?;
        let opened = Instant::now();
        self.wait(&mut loads, raised, opened + timing.duration)?;
        let pass = charger.pass(&SystemClock).map_err(unreadable)?;
        self.wait(
            &mut loads,
            raised,
            began + timing.warmup + timing.duration + LOAD_GRACE,
        )?;

        let mut guests = Vec::new();
        for ((guest, load), number) in raised.iter().zip(loads).zip(numbers) {
            let work = match load {
                Driven::Idle => None,
                Driven::Ended(raw) => {
                    let settings = &guest.planned.settings;
                    let result = guest.workload.parse(&raw, settings, timing)?;
                    Some(result.work.map_or(0.0, |work| match work {
                        WorkDone::Rate(work) | WorkDone::Total(work) => work.amount,
                    }))
                }
                Driven::Running(_) => {
                    return Err(LabError::Host(HostError::Timeout {
                        what: format!("the end of {}", guest.planned.record.label),
                        seconds: LOAD_GRACE.as_secs(),
                        evidence: guest.target.console_tail(),
                    }));
                }
            };
            guests.push(charged(
                &guest.planned.record.workload,
                work,
                &pass,
                *number,
            ));
        }
        Ok(measurement(block, &pass, guests))
    }

    /// Waits until `until`, or until all loads have ended.
    fn wait(
        &self,
        loads: &mut [Driven],
        raised: &mut [Raised<'_>],
        until: Instant,
    ) -> Result<(), LabError> {
        loop {
            self.signals.check()?;
            for (driven, guest) in loads.iter_mut().zip(raised.iter_mut()) {
                if let Driven::Running(load) = driven
                    && let Some(raw) = load.poll(guest.target.as_mut())?
                {
                    *driven = Driven::Ended(raw);
                }
            }
            let now = Instant::now();
            let runs = loads.iter().any(|load| matches!(load, Driven::Running(_)));
            if now >= until || !runs {
                return Ok(());
            }
            std::thread::sleep(POLL.min(until - now));
        }
    }
}

/// What became of a guest's load.
enum Driven {
    Idle,
    Running(Box<dyn Load>),
    Ended(Vec<u8>),
}

fn unreadable(error: vtax_observe::ObserveError) -> LabError {
    LabError::other(format!("cannot charge on this host: {error}"))
}

/// Both methods where the host offers both.
fn charger(study: &mut Study) -> Result<Charger, LabError> {
    let open = |method| {
        Charger::open(ChargerOptions {
            method,
            ..ChargerOptions::default()
        })
    };
    open(MethodChoice::Both).or_else(|error| {
        let note = format!("traced is missing: {error}");
        if !study.notes.contains(&note) {
            study.notes.push(note);
        }
        open(MethodChoice::Counted).map_err(unreadable)
    })
}

/// Lets a charger learn of the guests; its numbers for them.
fn settle(charger: &mut Charger, raised: &[Raised<'_>]) -> Result<Vec<u32>, LabError> {
    for _ in 0..PASSES_TO_SETTLE {
        charger.pass(&SystemClock).map_err(unreadable)?;
        std::thread::sleep(Duration::from_millis(200));
    }
    raised.iter().map(|guest| number(charger, guest)).collect()
}

/// The charger's number of a guest.
fn number(charger: &Charger, guest: &Raised<'_>) -> Result<u32, LabError> {
    let subject = guest.target.subject();
    let is_it = |found: &&vtax_observe::guests::Guest| {
        if let Some(domain) = subject.domain {
            return found.domain.is_some_and(|(id, _)| id == domain);
        }
        if subject.vmm.is_some() {
            return found.platform.is_vm() && found.process == subject.vmm;
        }
        let Some(group) = &found.group else {
            return false;
        };
        // The container's own group is in the target's.
        let mut parts = group
            .ancestors()
            .filter(|part| !part.as_os_str().is_empty());
        parts.any(|part| subject.cgroups.iter().any(|folder| folder.ends_with(part)))
    };
    let found = charger.guests().find(is_it).map(|found| found.number);
    found.ok_or_else(|| {
        let seen: Vec<&str> = charger.guests().map(|guest| guest.name.as_str()).collect();
        LabError::other(format!(
            "charge-back does not see the guest of {}; it sees: {}",
            guest.planned.record.label,
            seen.join(", ")
        ))
    })
}

fn charged(load: &str, work: Option<f64>, pass: &Pass, number: u32) -> GuestCharge {
    let exchanged = pass.exchanges.guests.get(&number).copied();
    let exchanged = exchanged.unwrap_or_default();
    let rows = || {
        let rows = pass.ledgers.iter();
        rows.filter_map(|(method, ledger)| Some((*method, ledger.row(number)?)))
    };
    GuestCharge {
        load: load.to_owned(),
        work,
        received: exchanged.received,
        sent: exchanged.sent,
        bytes: exchanged.bytes,
        block_requests: exchanged.block_requests,
        booked: rows().next().map_or(Nanoseconds(0), |(_, row)| row.booked),
        charged: rows()
            .map(|(method, row)| {
                let stages =
                    Stage::ALL.map(|stage| (stage.name().to_owned(), row.stages.get(stage)));
                (method.to_owned(), BTreeMap::from(stages))
            })
            .collect(),
    }
}

fn measurement(block: u32, pass: &Pass, guests: Vec<GuestCharge>) -> Measurement {
    let ledger = pass.ledger();
    // The counted method hands out all of the kernel's own account.
    let counted = pass.ledgers.iter().find(|(method, _)| *method == "counted");
    let softirq = counted.map_or(0, |(_, ledger)| {
        let rows = ledger.rows.iter();
        let of_guests: u64 = rows.map(|row| row.stages.get(Stage::Softirq).0).sum();
        of_guests + ledger.host_softirq.0
    });
    let by_method = || {
        pass.ledgers
            .iter()
            .map(|(method, ledger)| ((*method).to_owned(), ledger))
    };
    Measurement {
        block,
        guests,
        span: ledger.map_or(Nanoseconds(0), |ledger| ledger.span),
        total: ledger.map_or(Nanoseconds(0), |ledger| ledger.total),
        softirq: Nanoseconds(softirq),
        host_packets: pass.exchanges.host_packets,
        other_softirqs: pass.exchanges.other_softirqs,
        host: by_method()
            .map(|(method, ledger)| (method, [ledger.host, ledger.host_softirq]))
            .collect(),
        unattributed: by_method()
            .map(|(method, ledger)| (method, ledger.unattributed))
            .collect(),
    }
}
