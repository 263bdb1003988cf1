// SPDX-License-Identifier: Apache-2.0
//! The passes of charging: each finds the guests, reads their use, attributes the soft interrupts and closes the
//! ledger. The totals never decrease.

use super::Method;
use super::counted::Counted;
use super::energy::{EnergyUse, IdleEnergy, IdlePower, IdleRule};
use super::exchanges::{Exchanges, GuestExchanges, IntervalExchanges};
use super::irq_accounting::IrqAccounting;
use super::ledger::{IoCharge, Ledger, Stages, Usage};
use super::probe::Programs;
use super::run_queue::{IntervalWaits, RunQueue};
use super::subjects::{SubjectSoftirqs, boxed};
use super::traced::Traced;
use super::usage::UsageReader;
use super::waits::Waits;
use super::weights::Weights;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use vtax_core::owner::Owner;
use vtax_core::{Joules, Nanoseconds, Source};
use vtax_inventory::{Guest, Guests, Service};
use vtax_kernel::file;
use vtax_meter::{HostEnergy, Meter, PowerModel, host_energy, joules_metric};
use vtax_observe::Roots;
use vtax_observe::clock::{Clock, process_cpu};
use vtax_observe::counters::Grants;
use vtax_observe::{Instrument, ObserveError, Readings, Snapshot, Subject};

/// The method by which soft interrupts are charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MethodChoice {
    /// Traced where BPF works, else counted.
    #[default]
    Auto,
    /// Traced, or an error.
    Traced,
    /// Counted.
    Counted,
    /// Traced, and counted beside it to compare.
    Both,
}

/// A text that names no method.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no method: give auto, traced, counted or both")]
pub struct MethodError(String);

impl FromStr for MethodChoice {
    type Err = MethodError;
    fn from_str(text: &str) -> Result<Self, MethodError> {
        match text {
            "auto" => Ok(Self::Auto),
            "traced" => Ok(Self::Traced),
            "counted" => Ok(Self::Counted),
            "both" => Ok(Self::Both),
            _ => Err(MethodError(text.to_owned())),
        }
    }
}

/// The guests that are charged.
#[derive(Debug, Clone, Default)]
pub enum Roster {
    /// Every guest of this host.
    #[default]
    Discovered,
    /// The guests that these subjects are. Other guests are charged as well: their time is not the host's.
    Given(Vec<Subject>),
}

/// The configuration of a charger.
#[derive(Default)]
pub struct ChargerOptions {
    /// The guests to charge.
    pub roster: Roster,
    /// Services that are guests too.
    pub services: Vec<Service>,
    /// The mount points of the kernel's files.
    pub roots: Roots,
    /// The method by which soft interrupts are charged.
    pub method: MethodChoice,
    /// Whether tracing examines every soft interrupt, whatever the rate ([`Traced::open_for_all`]).
    pub traces_all: bool,
    /// The weights of the counted method.
    pub weights: Weights,
    /// Meters, in order of preference; without a meter, no energy is charged.
    pub meters: Vec<Box<dyn Meter>>,
    /// Limitations that the caller knows, each a sentence: the first of [`Charger::notes`].
    pub notes: Vec<String>,
    /// The method that determines idle power where a meter does not report it (the power model does).
    pub idle_energy: IdleEnergy,
    /// The rule that assigns idle energy.
    pub idle_rule: IdleRule,
    /// Whether the waits of guests for processors are traced, unless the method is [`MethodChoice::Counted`].
    pub traces_waits: bool,
}

impl fmt::Debug for ChargerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargerOptions")
            .field("method", &self.method)
            .field("idle_rule", &self.idle_rule)
            .finish_non_exhaustive()
    }
}

/// The use of a guest since charging began.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GuestTotals {
    /// Its time by stage.
    pub stages: Stages,
    /// Its energy.
    pub energy: Joules,
    /// Its exchanges.
    pub exchanges: GuestExchanges,
    /// The error of its time: the sum of the errors of all intervals.
    pub error: Nanoseconds,
    /// Its waits for processors; `None` where they are not known.
    pub waits: Option<Waits>,
}

impl GuestTotals {
    /// Adds the use of another interval or guest.
    pub fn merge(&mut self, other: &Self) {
        self.stages.merge(&other.stages);
        self.energy += other.energy;
        self.exchanges.merge(&other.exchanges);
        self.error += other.error;
        if let Some(waits) = &other.waits {
            self.waits.get_or_insert_default().merge(waits);
        }
    }
}

/// The totals since charging began. They never decrease.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Totals {
    /// The present guests, by number.
    pub guests: BTreeMap<u32, GuestTotals>,
    /// The use of guests that are gone.
    pub gone: GuestTotals,
    /// The host's own tasks.
    pub host: Nanoseconds,
    /// Soft interrupts for no guest.
    pub host_softirq: Nanoseconds,
    /// The host's energy.
    pub host_energy: Joules,
    /// The unattributed time.
    pub unattributed: Nanoseconds,
    /// The energy of the unattributed time.
    pub unattributed_energy: Joules,
    /// All time that processors were busy.
    pub total: Nanoseconds,
}

/// One interval.
#[derive(Debug, Clone)]
pub struct Pass {
    /// Its end, on the monotonic clock.
    pub at: Nanoseconds,
    /// Each method's name and ledger; the first one determines the charges. Empty in the first pass, which only begins
    /// the first interval.
    pub ledgers: Vec<(&'static str, Ledger)>,
    /// The exchanges in the interval.
    pub exchanges: IntervalExchanges,
    /// The interval's energy, where a meter reported it.
    pub energy: Option<EnergyUse>,
    /// The waits for processors of each guest of which they are known, by number.
    pub waits: HashMap<u32, Waits>,
    /// Failures, as messages for the user.
    pub problems: Vec<String>,
}

impl Pass {
    /// The ledger that determines the charges.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.ledgers.first().map(|(_, ledger)| ledger)
    }
}

/// What a service is not charged for.
const NOT_OF_SERVICES: &str = "soft interrupts and packets of a service are not charged to it: they cannot be separated from the host's";

/// Charges a host's time and energy to its guests.
pub struct Charger {
    roster: Roster,
    guests: Guests,
    /// The tracing programs, where soft interrupts are traced.
    programs: Option<Programs>,
    /// Where waits for processors are traced.
    run_queue: Option<RunQueue>,
    usage: UsageReader,
    accounting: IrqAccounting,
    exchanges: Exchanges,
    methods: Vec<(Box<dyn Method>, Nanoseconds)>,
    energy: EnergyReader,
    idle_rule: IdleRule,
    totals: Totals,
    notes: Vec<String>,
    cpu_at_start: Nanoseconds,
}

impl Charger {
    /// Opens every source that this host offers and this process may use.
    ///
    /// # Errors
    /// When the host's processor time cannot be read, or tracing was requested and does not work.
    pub fn open(options: ChargerOptions) -> Result<Self, ObserveError> {
        raise_file_limit();
        let roots = options.roots;
        let mut guests = Guests::new(roots.clone());
        let mut notes = options.notes;
        if !options.services.is_empty() {
            notes.push(NOT_OF_SERVICES.to_owned());
        }
        guests.attach(options.services);
        let accounting = IrqAccounting::detect(&roots);
        let mut programs = None;
        let counted =
            || Box::new(Counted::open(options.weights, accounting, &roots)) as Box<dyn Method>;
        let mut traced = || {
            let open = if options.traces_all {
                Traced::open_for_all
            } else {
                Traced::open
            };
            let traced = open(&roots.sys, guests.hierarchy())?;
            programs = Some(traced.programs());
            Ok(Box::new(traced) as Box<dyn Method>)
        };
        let methods = match options.method {
            MethodChoice::Counted => vec![counted()],
            MethodChoice::Traced => vec![traced()?],
            MethodChoice::Both => vec![traced()?, counted()],
            MethodChoice::Auto => match traced() {
                Ok(traced) => vec![traced],
                Err(error) => {
                    // The message must fit on one line of a terminal, with the remedy.
                    let why = match error {
                        ObserveError::Permission { remedy, .. } => remedy,
                        error => error.to_string(),
                    };
                    notes.push(format!("softirqs counted, not traced: {why}"));
                    vec![counted()]
                }
            },
        };
        notes.extend(
            methods
                .iter()
                .filter_map(|method| method.note().map(str::to_owned)),
        );
        let traces_waits = options.traces_waits && options.method != MethodChoice::Counted;
        let run_queue = traces_waits.then(|| RunQueue::open(&roots.sys, guests.hierarchy()));
        let run_queue = match run_queue {
            Some(Err(error)) => {
                notes.push(format!("what guests waited for is not known: {error}"));
                None
            }
            opened => opened.and_then(Result::ok),
        };
        let exchanges = Exchanges::open(&roots);
        notes.extend(exchanges.note().map(str::to_owned));
        share_descriptors();
        Ok(Self {
            roster: options.roster,
            programs,
            run_queue,
            accounting,
            usage: UsageReader::open(&roots, accounting)?,
            exchanges,
            methods: methods
                .into_iter()
                .map(|method| (method, Nanoseconds(0)))
                .collect(),
            energy: EnergyReader::new(options.meters, options.idle_energy),
            idle_rule: options.idle_rule,
            totals: Totals::default(),
            notes,
            cpu_at_start: process_cpu(),
            guests,
        })
    }

    /// Limitations on this host and their reasons, each a sentence.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The way in which the kernel accounts interrupts.
    pub fn irq_accounting(&self) -> IrqAccounting {
        self.accounting
    }

    /// The name of the method that determines the charges.
    pub fn method(&self) -> &'static str {
        self.methods
            .first()
            .map_or("none", |(method, _)| method.name())
    }

    /// The model that computes the energy, where it is modelled.
    pub fn power_model(&self) -> Option<&PowerModel> {
        self.energy.current()?.model.as_ref()
    }

    /// The coverage of the energy, and whether it is measured; `None` without a meter.
    pub fn energy_source(&self) -> Option<(&str, Source)> {
        let energy = self.energy.current()?;
        Some((energy.covers.as_str(), energy.source))
    }

    /// The domains of the meters that the energy is the sum of, and what they cover; `None` without a meter.
    pub fn energy_meters(&self) -> Option<String> {
        Some(self.energy.current()?.to_string())
    }

    /// The numbers of the roster's guests in the last pass, in its order.
    ///
    /// # Errors
    /// When a given subject is not among the guests of this host.
    pub fn numbers(&self) -> Result<Vec<u32>, ObserveError> {
        let Roster::Given(subjects) = &self.roster else {
            return Ok(self.guests().map(|guest| guest.number).collect());
        };
        let number = |subject: &Subject| {
            let found = self.guests.guest_of(subject).map(|guest| guest.number);
            found.ok_or_else(|| {
                let seen: Vec<&str> = self.guests().map(|guest| guest.name.as_str()).collect();
                ObserveError::unavailable(
                    format!("the guest {}", subject.owner),
                    format!("charge-back does not see it; it sees: {}", seen.join(", ")),
                )
            })
        };
        subjects.iter().map(number).collect()
    }

    /// The instruments of a trial's subjects that read this charger's BPF programs, so that no program is attached
    /// twice. They include soft interrupts where these are traced.
    pub(super) fn instruments(
        &self,
        subjects: &[Subject],
        roots: &Roots,
    ) -> Vec<Result<Box<dyn Instrument>, ObserveError>> {
        let given: &[Subject] = match &self.roster {
            Roster::Given(given) => given,
            Roster::Discovered => &[],
        };
        let number = |subject: &Subject| {
            let is_given = given.iter().any(|given| given.owner == subject.owner);
            if !is_given {
                return None;
            }
            self.guests.guest_of(subject).map(|guest| guest.number)
        };
        let softirqs = self
            .programs
            .as_ref()
            .map(|programs| SubjectSoftirqs::reading(programs.clone(), &number, subjects, roots));
        let grants = self.exchanges.grants();
        let grants = grants.and_then(|grants| Grants::reading(grants, subjects));
        boxed(softirqs, grants.map(Ok))
    }

    /// The guests of the last pass.
    pub fn guests(&self) -> impl Iterator<Item = &Guest> {
        self.guests.iter()
    }

    /// Totals up to the last pass.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The CPU time that this process has used since [`Charger::open`].
    pub fn cost(&self) -> Nanoseconds {
        process_cpu().saturating_since(self.cpu_at_start)
    }

    /// Ends one interval and begins the next.
    ///
    /// # Errors
    /// When the host's processor time cannot be read. The failure of a single guest or method is in [`Pass::problems`],
    /// and its time is unattributed.
    pub fn pass(&mut self, clock: &dyn Clock) -> Result<Pass, ObserveError> {
        self.guests.scan();
        let mut problems = self.guests.problems().to_vec();
        let exchanges = self.exchanges.read(&self.guests);
        let usage = self.usage.read(clock, &self.guests)?;
        problems.extend_from_slice(&self.usage.problems);
        let now = clock.now();
        let busy = usage.as_ref().and_then(Usage::busy);
        let read = self.energy.read(now, busy, &mut problems);
        let waits = self.waits(&mut problems);
        let mut pass = Pass {
            at: now,
            ledgers: Vec::new(),
            exchanges,
            energy: None,
            waits,
            problems,
        };
        // In the first pass methods begin their own first interval.
        let begins = usage.is_none();
        let usage = usage.unwrap_or_default();
        if begins {
            pass.waits.clear();
        }
        pass.energy = if begins { None } else { read };
        for (method, carried) in &mut self.methods {
            let io = method.charge(&self.guests, &usage, &pass.exchanges);
            let io = io.unwrap_or_else(|error| {
                pass.problems.push(error.to_string());
                IoCharge::default()
            });
            if begins {
                continue;
            }
            let mut ledger = Ledger::close(&usage, &io, carried);
            if let Some(energy) = pass.energy {
                let guests = &self.guests;
                let cpus: BTreeMap<u32, u32> = guests
                    .iter()
                    .filter_map(|guest| Some((guest.number, guest.cpus?)))
                    .collect();
                ledger.charge_energy(energy, self.idle_rule, &|number| cpus.get(&number).copied());
            }
            pass.ledgers.push((method.name(), ledger));
        }
        self.add(&pass);
        Ok(pass)
    }

    /// The waits since the last pass, of each guest of which they are known.
    fn waits(&mut self, problems: &mut Vec<String>) -> HashMap<u32, Waits> {
        let Some(run_queue) = &mut self.run_queue else {
            return HashMap::new();
        };
        let IntervalWaits {
            guests: mut waits,
            problem,
        } = run_queue.read(&self.guests);
        problems.extend(problem);
        // The virtual processors of Xen domains are no tasks of this kernel.
        let traced = self.guests.iter().filter(|guest| guest.domain.is_none());
        for guest in traced {
            waits.entry(guest.number).or_default();
        }
        waits
    }

    fn add(&mut self, pass: &Pass) {
        let totals = &mut self.totals;
        let present = self.guests.numbers();
        let gone = &mut totals.gone;
        totals.guests.retain(|number, guest| {
            let stays = present.contains(number);
            if !stays {
                gone.merge(guest);
            }
            stays
        });
        for number in &present {
            totals.guests.entry(*number).or_default();
        }
        if let Some(ledger) = pass.ledger() {
            for row in &ledger.rows {
                let guest = totals.guests.entry(row.number).or_default();
                guest.stages.merge(&row.stages);
                guest.energy += row.energy;
                guest.error += row
                    .modelled
                    .map(|modelled| modelled.total())
                    .unwrap_or_default();
            }
            totals.gone.stages.merge(&ledger.departed.stages);
            totals.gone.energy += ledger.departed.energy;
            totals.host += ledger.host;
            totals.host_softirq += ledger.host_softirq;
            totals.host_energy += ledger.host_energy;
            totals.unattributed += ledger.unattributed;
            totals.unattributed_energy += ledger.unattributed_energy;
            totals.total += ledger.total;
        }
        for (number, exchanged) in &pass.exchanges.guests {
            if let Some(guest) = totals.guests.get_mut(number) {
                guest.exchanges.merge(exchanged);
            }
        }
        for (number, guest) in &mut totals.guests {
            if let Some(waits) = &mut guest.waits {
                waits.depart(&present);
            }
            if let Some(waits) = pass.waits.get(number) {
                guest.waits.get_or_insert_default().merge(waits);
            }
        }
    }
}

/// Why energy is not charged yet.
const UNKNOWN: &str = "energy is not charged yet: what this host draws doing nothing is not known before its processors \
                       were idle (busy for 5 % or less) for an interval; give --idle-watts";

/// The host's energy: from measuring meters once they move, otherwise from the model.
struct EnergyReader {
    meters: Vec<Box<dyn Meter>>,
    readings: Readings,
    choices: Vec<Choice>,
    idle: IdlePower,
    /// The time of the last pass.
    passed: Option<Nanoseconds>,
}

struct Choice {
    energy: HostEnergy,
    /// The series of the host's idle energy, where the meter reports it.
    idle: Option<String>,
    /// The time of the last reading, its joules and its idle joules.
    last: Option<(Nanoseconds, f64, f64)>,
    moved: bool,
}

impl EnergyReader {
    fn new(meters: Vec<Box<dyn Meter>>, idle: IdleEnergy) -> Self {
        let of = |source: Source| {
            host_energy(
                meters
                    .iter()
                    .map(AsRef::as_ref)
                    .filter(move |meter: &&dyn Meter| meter.source() == source),
            )
        };
        let choices = [Source::Measured, Source::Modelled]
            .into_iter()
            .filter_map(of)
            .map(|energy| Choice {
                idle: (energy.source == Source::Modelled).then(|| joules_metric("model", "idle")),
                energy,
                last: None,
                moved: false,
            })
            .collect();
        Self {
            meters,
            readings: Readings::default(),
            choices,
            idle: IdlePower::new(idle),
            passed: None,
        }
    }

    /// The series by which energy is charged; `None` while its idle part is not known.
    fn current(&self) -> Option<&HostEnergy> {
        let moved = self.choices.iter().find(|choice| choice.moved);
        let choice = moved.or(self.choices.last())?;
        (choice.idle.is_some() || self.idle.is_known()).then_some(&choice.energy)
    }

    /// The energy since the last call, in which processors were `busy` for this share of the time. `None` where no
    /// meter reported it, and where its idle part is not known: the whole energy is then not charged.
    fn read(
        &mut self,
        now: Nanoseconds,
        busy: Option<f64>,
        problems: &mut Vec<String>,
    ) -> Option<EnergyUse> {
        self.readings.clear_values();
        let passed = self.passed.replace(now);
        let (mut restarted, mut silent) = (Vec::new(), Vec::new());
        for meter in &mut self.meters {
            if let Err(error) = meter.read(now, &mut self.readings) {
                problems.push(error.without_numbers());
                match error {
                    ObserveError::Counter { .. } => restarted.push(meter.name().to_owned()),
                    ObserveError::Unavailable { .. } => silent.push(meter.name().to_owned()),
                    _ => {}
                }
            }
        }
        let shown = Snapshot::from_readings(now, &self.readings);
        let value = |metric: &str| Some(shown.get(&Owner::Host, metric)?.value);
        let mut steps = Vec::with_capacity(self.choices.len());
        for choice in &mut self.choices {
            let sum: Option<f64> = choice
                .energy
                .series
                .iter()
                .map(|metric| value(metric))
                .sum();
            let idle = choice.idle.as_deref();
            let idle = idle.and_then(value);
            let is_of = |meters: &[String]| {
                let mut own = choice.energy.meters.iter();
                own.any(|meter| meters.contains(meter))
            };
            // The energy that a device used around a restart is unknown, and the rest is only a part of the energy.
            let is_part = is_of(&restarted);
            // A counter that cannot be read keeps counting; power that was not integrated is lost.
            if sum.is_none() && is_of(&silent) {
                choice.last = None;
            }
            let step = sum.and_then(|sum| {
                let before = choice.last.replace((now, sum, idle.unwrap_or(0.0)))?;
                let span = now.saturating_since(before.0);
                Some((span, sum - before.1, idle.map(|idle| idle - before.2)))
            });
            let step = if is_part { None } else { step };
            choice.moved |= step.is_some_and(|(_, joules, _)| joules > 0.0);
            steps.push((choice.moved, choice.energy.source, step));
        }
        // A meter that does not move is ignored (inside VMs, meters are often present and constantly 0).
        let (_, source, step) = steps.into_iter().find(|(moved, ..)| *moved)?;
        let (span, joules, idle) = step?;
        let total = Joules(joules.max(0.0));
        // Energy of more than the last interval is no sign of how busy that interval was.
        let is_of_last = passed.is_some_and(|at| now.saturating_since(at) == span);
        let busy = if is_of_last { busy } else { None };
        let idle = match idle {
            Some(modelled) => Some(Joules(modelled)),
            None => self.idle.part(total, span, busy),
        };
        let Some(idle) = idle else {
            problems.push(UNKNOWN.to_owned());
            return None;
        };
        Some(EnergyUse {
            total,
            idle,
            source,
        })
    }
}

/// Raises the soft limit of open files to the hard limit, so that this process can hold a file open for each of many
/// guests.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // On failure, files of guests beyond the limit are opened for each reading.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}

/// Reserves half of the free descriptors for other uses: connections, queues, directories that are read.
fn share_descriptors() {
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return;
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let open = std::fs::read_dir("/proc/self/fd").map_or(limit / 2, Iterator::count);
    file::keep_open(file::kept_open() + limit.saturating_sub(open) / 2);
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_core::{Series, SeriesKind};
    use vtax_meter::{Absent, Domain, Part, Sensors, powercap};

    use std::fs;
    use std::path::Path;
    use vtax_core::{Base, Unit, Watts};

    const SECOND: u64 = 1_000_000_000;

    fn package(root: &Path, number: u32, joules: u64) {
        let zone = root.join(format!("sys/class/powercap/intel-rapl:{number}"));
        fs::create_dir_all(&zone).unwrap();
        fs::write(zone.join("name"), format!("package-{number}\n")).unwrap();
        fs::write(zone.join("energy_uj"), format!("{}\n", joules * 1_000_000)).unwrap();
    }

    /// Joules in each second of a host with two packages, given the values of their counters.
    fn seconds(of: &[[Option<u64>; 2]]) -> (Vec<Option<f64>>, Vec<String>) {
        let root = tempfile::tempdir().unwrap();
        let open = || -> Result<Sensors, Absent> {
            powercap(&root.path().join("sys"), &root.path().join("proc"))
        };
        let show = |[first, second]: &[Option<u64>; 2]| {
            for (number, joules) in [(0, first), (1, second)] {
                match joules {
                    Some(joules) => package(root.path(), number, *joules),
                    None => {
                        let file = format!("sys/class/powercap/intel-rapl:{number}/energy_uj");
                        fs::write(root.path().join(file), "").unwrap();
                    }
                }
            }
        };
        show(&of[0]);
        let meters: Vec<Box<dyn Meter>> = vec![Box::new(open().unwrap())];
        let mut reader = EnergyReader::new(meters, IdleEnergy::Fixed(Watts(0.0)));
        let mut problems = Vec::new();
        let used = of.iter().zip(0..).map(|(shown, second)| {
            show(shown);
            let read = reader.read(Nanoseconds(second * SECOND), Some(1.0), &mut problems);
            read.map(|energy| energy.total.0)
        });
        let used: Vec<_> = used.collect();
        (used.into_iter().skip(1).collect(), problems)
    }

    #[test]
    fn a_package_that_cannot_be_read_leaves_the_energy_unknown_and_is_named() {
        let (used, problems) = seconds(&[
            [Some(0), Some(1000)],
            [Some(50), Some(1060)],
            [Some(100), None],
            [Some(150), Some(1180)],
            [Some(200), None],
        ]);
        // The next reading includes the counts of the meantime.
        assert_eq!(used, [Some(110.0), None, Some(220.0), None]);
        assert!(
            problems[0].contains("intel-rapl:1/energy_uj"),
            "{problems:?}"
        );
    }

    /// A machine's meter that shows these joules, and none in between.
    struct Bmc(std::vec::IntoIter<Option<f64>>, Vec<Domain>);

    impl Instrument for Bmc {
        fn name(&self) -> &str {
            "ipmi"
        }
        fn read(&mut self, _: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
            let joules = self.0.next().flatten();
            let joules = joules.ok_or_else(|| {
                ObserveError::unavailable("the BMC's power", "no answer for too long")
            })?;
            let id = into.register(Series {
                owner: Owner::Host,
                metric: joules_metric("ipmi", "host"),
                unit: Unit::from_base(Base::Joule),
                kind: SeriesKind::Counter,
                source: Source::Measured,
            });
            into.record(id, joules);
            Ok(())
        }
    }

    impl Meter for Bmc {
        fn domains(&self) -> &[Domain] {
            &self.1
        }
    }

    #[test]
    fn energy_around_a_silence_that_nobody_integrated_is_unknown_and_not_part_of_it() {
        let shown = vec![Some(0.0), Some(100.0), None, Some(105.0), Some(205.0)];
        let domain = Domain {
            name: "host".to_owned(),
            part: Part::Machine,
        };
        let meters: Vec<Box<dyn Meter>> = vec![Box::new(Bmc(shown.into_iter(), vec![domain]))];
        let mut reader = EnergyReader::new(meters, IdleEnergy::Fixed(Watts(0.0)));
        let used: Vec<Option<f64>> = (0..5)
            .map(|second| {
                let now = Nanoseconds(second * SECOND);
                let read = reader.read(now, Some(1.0), &mut Vec::new());
                read.map(|energy| energy.total.0)
            })
            .collect();
        assert_eq!(used, [None, Some(100.0), None, None, Some(100.0)]);
    }

    #[test]
    fn energy_of_a_host_that_was_not_idle_yet_is_unknown_with_a_note_and_has_no_source() {
        let root = tempfile::tempdir().unwrap();
        package(root.path(), 0, 0);
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        let meters: Vec<Box<dyn Meter>> = vec![Box::new(powercap(&sys, &proc).unwrap())];
        let mut reader = EnergyReader::new(meters, IdleEnergy::Learned);
        let mut joules = 0;
        let mut second = |number: u64, watts: u64, busy| {
            joules += watts;
            package(root.path(), 0, joules);
            let mut problems = Vec::new();
            let read = reader.read(Nanoseconds(number * SECOND), Some(busy), &mut problems);
            let idle = read.map(|energy| (energy.total.0, energy.idle.0));
            (idle, problems.join(" "), reader.current().is_some())
        };
        second(0, 0, 1.0);
        for number in 1..4 {
            let (idle, why, has_source) = second(number, 112, 1.0);
            assert_eq!((idle, has_source), (None, false));
            assert!(why.contains("--idle-watts"), "{why}");
        }
        let (idle, why, has_source) = second(4, 40, 0.01);
        assert_eq!((idle, has_source), (Some((40.0, 40.0)), true));
        assert_eq!(why, "");
        assert_eq!(second(5, 112, 1.0).0, Some((112.0, 40.0)));
    }

    #[test]
    fn a_package_that_starts_anew_leaves_one_interval_unknown() {
        let (used, problems) = seconds(&[
            [Some(0), Some(1000)],
            [Some(50), Some(1060)],
            [Some(100), Some(3)],
            [Some(150), Some(63)],
        ]);
        assert_eq!(used, [Some(110.0), None, Some(110.0)]);
        assert!(problems[0].contains("started anew"), "{problems:?}");
    }
}
