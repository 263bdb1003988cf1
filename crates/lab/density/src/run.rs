// SPDX-License-Identifier: Apache-2.0
//! The climbs of a plan as an experiment of the lab, and the files and metrics of their trials.

use crate::climb::{Bench, Energy, check, climb};
use crate::limits::{Binding, Limits};
use crate::plan::{Plan, Variant, WORKLOAD};
use crate::record::{Climb, Cloud, Interval, Latency, median};
use crate::resources::{Memory, Resource};
use crate::stop::nearest;
use crate::supervisor::Guests;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use vtax_core::owner::Owner;
use vtax_core::{Base, Nanoseconds, Quantity, Series, SeriesKind, Source, Unit, counter, metric};
use vtax_guest::image::Recipe;
use vtax_host::journal::Journal;
use vtax_host::signals::Signals;
use vtax_host::{Roots, knobs};
use vtax_lab::LabError;
use vtax_lab::plan::{Order, RemoteClient, Variation};
use vtax_lab::run::{
    Assignment, Event, Experiment, Log, NewRun, PlanTrials, Progress, RunOptions, RunSummary,
    SampledLevel, run_experiment,
};
use vtax_results::{
    Metric, ObservationCost, ResultsDir, SampleWriter, Treatment, Trial, TrialWriter,
};

/// The least difference of a ratio from 1 that counts as an effect.
const MINIMUM_EFFECT: f64 = 0.02;
/// Other programs' processor time above which a climb is suspect, in percent of the machine.
const FOREIGN_PERCENT: f64 = 5.0;
/// Processor time of the climb itself above which it is suspect, in percent of one processor.
const OVERHEAD_PERCENT: f64 = 1.0;
/// The share of memory that has to return, in percent.
const RETURNED_PERCENT: f64 = 95.0;
/// The least memory whose return is judged: below it, changes by other programs are larger.
const JUDGED_BYTES: f64 = 64e6;

/// The longest time of one guest's boot that is not taken for a host that hangs, in a deterministic emulated host.
const LONGEST_BOOT: Duration = Duration::from_secs(5);

/// A plan and its text.
#[derive(Debug, Clone, Copy)]
pub struct PlannedClimbs<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The plan as it is written.
    pub text: &'a str,
}

impl PlanTrials for PlannedClimbs<'_> {
    fn new_run<'a>(&'a self, place: &'a str) -> NewRun<'a> {
        NewRun {
            plan_text: self.text,
            files: "",
            name: &self.plan.name,
            description: &self.plan.description,
            is_quick: self.plan.is_quick,
            place,
            seed: self.plan.seed,
            repetitions: self.plan.repetitions,
            order: Order::Interleaved,
            minimum_effect: MINIMUM_EFFECT,
        }
    }

    fn records(&self) -> Vec<Treatment> {
        let variants = self.plan.variants.iter();
        variants.map(|variant| variant.treatment.clone()).collect()
    }

    fn number(&self, treatment: usize) -> usize {
        let variant = self.plan.variants.get(treatment);
        variant.map_or(treatment, |variant| variant.number)
    }

    fn again(&self) -> f64 {
        self.plan.again
    }

    /// Each climb in an emulated host has a seed of its own. It changes little, which only several show.
    fn variation(&self) -> Variation {
        Variation::Seeds
    }

    /// The standard image, which every emulated host has, suffices for all platforms.
    fn recipes(&self, _treatment: usize) -> BTreeSet<Recipe> {
        BTreeSet::new()
    }

    fn sets_governor(&self) -> bool {
        let mut variants = self.plan.variants.iter();
        variants.any(|variant| variant.host.0.contains_key("host.governor"))
    }

    fn client(&self) -> Option<&RemoteClient> {
        None
    }

    /// The boots of one step, or the time at the top.
    fn longest_silence(&self, treatment: usize) -> Duration {
        let method = &self.plan.method;
        let variant = self.plan.variants.get(treatment);
        let step = variant.map_or(0, |variant| variant.maximum.div_ceil(method.intervals));
        let top = method.idle + method.churn.watched + method.memory_return;
        top.max(LONGEST_BOOT.saturating_mul(step))
    }

    fn expected(&self, _treatment: usize) -> Duration {
        self.plan.method.least_time()
    }
}

/// Runs a plan. `words` are the arguments that make this program a supervisor.
///
/// # Errors
/// As [`run_experiment`]. Finished climbs stay.
pub fn run(
    planned: PlannedClimbs<'_>,
    words: &[String],
    options: &RunOptions,
    signals: &Signals,
    progress: &mut dyn Progress,
) -> Result<(ResultsDir, RunSummary), LabError> {
    let mut climbs = Climbs {
        planned,
        place: &options.place,
        host: options.host,
        bench: Bench {
            method: &planned.plan.method,
            roots: Roots::host(),
            signals,
            words,
            energy: None,
        },
    };
    run_experiment(&mut climbs, options, signals, progress)
}

struct Climbs<'a> {
    planned: PlannedClimbs<'a>,
    place: &'a str,
    /// The flag of this host: no number of a climb has a better one.
    host: Source,
    bench: Bench<'a>,
}

impl Experiment for Climbs<'_> {
    fn new_run(&self) -> NewRun<'_> {
        self.planned.new_run(self.place)
    }

    fn treatments(&self) -> Vec<Treatment> {
        self.planned.records()
    }

    fn again(&self) -> f64 {
        self.planned.again()
    }

    fn prepare(&mut self, note: &mut dyn FnMut(String)) -> Result<(), LabError> {
        let missing = self.planned.plan.variants.iter().filter_map(|variant| {
            let cause = check(variant, &self.bench.roots).err()?;
            Some(format!("\n  {}: {cause}", variant.treatment.label))
        });
        let missing: String = missing.collect();
        if !missing.is_empty() {
            return Err(LabError::Plan(format!(
                "this host cannot run the plan:{missing}"
            )));
        }
        self.bench.energy = Energy::open(&self.bench.roots)?;
        if self.bench.energy.is_none() {
            note("no energy meter on this host: no joules".to_owned());
        }
        Ok(())
    }

    fn expected(&self, treatment: usize) -> Duration {
        self.planned.expected(treatment)
    }

    fn perform(
        &mut self,
        assignment: Assignment,
        journal: &mut Journal,
        writer: &TrialWriter,
        log: &mut Log<'_>,
        trial: &mut Trial,
    ) -> Result<(), LabError> {
        let plan = self.planned.plan;
        let Some(variant) = plan.variants.get(assignment.treatment) else {
            let treatment = assignment.treatment;
            return Err(LabError::Plan(format!(
                "the plan has no treatment {treatment}"
            )));
        };
        knobs::host::apply(&variant.host, &self.bench.roots.sys, journal)?;
        let seed = plan.seed.wrapping_add(assignment.block.into());
        let (record, facts) = climb(&mut self.bench, variant, seed, journal, &mut |interval| {
            log.event(sampled(&plan.method.limits, interval, variant.maximum));
        })?;
        let raw = serde_json::to_vec_pretty(&record)
            .map_err(|cause| LabError::other(cause.to_string()))?;
        writer.write_workload_json(&raw)?;
        samples(&record, self.host, writer.samples()?)?;
        trial.suspect = suspicions(&record);
        trial.metrics = metrics(&record, self.host.combine(source_of(variant)));
        trial.environment = facts;
        let factors = variant.treatment.factors.iter();
        let factors = factors.map(|(key, level)| (format!("factor.{key}"), level.clone()));
        let binding = record.binding.to_string();
        let ended = ("density.binding".to_owned(), binding.clone());
        trial.environment.extend(factors.chain([ended]));
        trial.window = (Nanoseconds(0), nanoseconds(record.seconds));
        trial.times.measured = nanoseconds(record.seconds);
        let intervals = record.climb.iter().chain(&record.descent);
        trial.observation = ObservationCost {
            cpu: nanoseconds(record.own_cpu),
            passes: intervals
                .map(|interval| interval.samples.len() as u64)
                .sum(),
            missed: 0,
            ..ObservationCost::default()
        };
        let each = record.bytes_each().map_or_else(String::new, |each| {
            format!(
                ", {} each",
                Quantity::new(each, Unit::from_base(Base::Byte))
            )
        });
        let message = format!(
            "{}: {} guests{each}; ended by {binding}",
            variant.treatment.label,
            record.guests()
        );
        log.line(&message);
        log.event(Event::Note { message });
        Ok(())
    }
}

/// The progress event of an interval.
fn sampled(limits: &Limits, interval: &Interval, maximum: u32) -> Event {
    let mut readings = BTreeMap::new();
    let mut read = |name: &str, value, unit| {
        readings.insert(name.to_owned(), Quantity::new(value, unit));
    };
    if let Some((resource, share)) = nearest(limits, interval) {
        read(resource.name(), share, Unit::from_base(Base::Percent));
    }
    if let Some(rate) = interval.births.and_then(|births| births.rate()) {
        read("guests made", rate, Unit::per(Base::One, Base::Second));
    }
    if let Some(probe) = interval.probe {
        read(
            "probe p99",
            probe.p99_us / 1e6,
            Unit::from_base(Base::Second),
        );
    }
    Event::Sampled(SampledLevel {
        level: interval.population.into(),
        of: maximum.into(),
        across: "guests".to_owned(),
        readings,
        kept: None,
    })
}

/// The source of a variant's processor time: emulated where QEMU emulates the guests' instructions.
fn source_of(variant: &Variant) -> Source {
    match &variant.guests {
        Guests::Qemu(options) if options.accel == "tcg" => Source::Emulated,
        _ => Source::Measured,
    }
}

fn nanoseconds(seconds: f64) -> Nanoseconds {
    Duration::try_from_secs_f64(seconds)
        .unwrap_or_default()
        .into()
}

/// Reasons not to trust a climb.
fn suspicions(climb: &Climb) -> Vec<String> {
    let samples = climb.climb.iter().flat_map(|interval| &interval.samples);
    let foreign = samples
        .filter_map(|sample| Some(sample.shares.get(&Resource::Cpu)? - sample.population_cpu));
    let foreign = median(foreign).filter(|share| *share > FOREIGN_PERCENT);
    let own = Some(climb.overhead_percent()).filter(|percent| *percent > OVERHEAD_PERCENT);
    let top = climb.top().map(|top| top.memory.available);
    let taken = top.map_or(0.0, |available| climb.before.available - available);
    let is_judged = taken > JUDGED_BYTES;
    let returned = climb.returned_percent();
    let returned = returned.filter(|percent| *percent < RETURNED_PERCENT && is_judged);
    let reasons = [
        foreign.map(|share| {
            format!("other programs used {share:.0} % of the machine while guests slept")
        }),
        own.map(|percent| format!("the climb itself used {percent:.1} % of a processor")),
        returned.map(|percent| {
            let seconds = climb.returned_after;
            format!("only {percent:.0} % of the memory came back within {seconds:.0} s")
        }),
        (taken < JUDGED_BYTES && climb.guests() > 0).then(|| {
            format!(
                "the whole population took {:.0} MB, which changes by other programs may hide",
                taken.max(0.0) / 1e6
            )
        }),
    ];
    reasons.into_iter().flatten().collect()
}

/// The metrics of a climb.
fn metrics(climb: &Climb, source: Source) -> BTreeMap<String, Metric> {
    let guests = f64::from(climb.guests());
    let top = climb.top();
    let user = |memory: &Memory| memory.user + memory.swap;
    let boot = |interval: Option<&Interval>| Some(interval?.births?.boot?.p50_us / 1e6);
    let probe = |of: fn(&Latency) -> f64| Some(of(top?.probe.as_ref()?) / 1e6);
    let joules = || {
        let idle = climb.idle?;
        let each = idle.joules? / idle.seconds / guests;
        (guests > 0.0).then_some(each)
    };
    let binding = match climb.binding {
        Binding::Resource { percent, .. } => Some(percent),
        _ => None,
    };
    let cloud = climb.cloud.as_ref();
    let turned_away = |cloud: &Cloud| {
        let share = f64::from(cloud.turned_away) / f64::from(cloud.arrivals) * 100.0;
        (cloud.arrivals > 0).then_some(share)
    };
    let all = [
        (metric::GUESTS, Some(guests)),
        (
            metric::HELD,
            (climb.binding != Binding::Maximum).then_some(guests),
        ),
        (metric::MEMORY_EACH, climb.bytes_each()),
        (metric::MEMORY_CHARGED_EACH, climb.charged_each()),
        (metric::MEMORY_USER_EACH, climb.part_each(user)),
        (metric::MEMORY_KERNEL_EACH, climb.part_each(Memory::kernel)),
        (
            metric::CPU_TOP,
            top.and_then(|top| top.median(|sample| Some(sample.population_cpu))),
        ),
        (metric::CPU_IDLE, climb.idle.map(|idle| idle.core_percent)),
        (metric::BOOT_FIRST, boot(climb.climb.get(1))),
        (metric::BOOT_LAST, boot(top)),
        (metric::PROBE_P50, probe(|probe| probe.p50_us)),
        (metric::PROBE_P99, probe(|probe| probe.p99_us)),
        (metric::JOULES_EACH, joules()),
        (metric::RETURNED, climb.returned_percent()),
        (metric::OVERHEAD, Some(climb.overhead_percent())),
        (metric::BINDING, binding),
        (
            metric::CLOUD_GUESTS,
            cloud.map(|cloud| cloud.mean_population),
        ),
        (metric::CLOUD_TURNED_AWAY, cloud.and_then(turned_away)),
        (
            metric::CLOUD_BOOT_P99,
            cloud.and_then(|cloud| Some(cloud.boot?.p99_us / 1e6)),
        ),
        (
            metric::CLOUD_PROBE_P99,
            cloud.map(|cloud| cloud.probe.p99_us / 1e6),
        ),
        (metric::CLOUD_LATE, cloud.map(|cloud| cloud.late)),
        (metric::CLOUD_CPU, cloud.map(|cloud| cloud.core_percent)),
    ];
    let known = all.into_iter().filter_map(|(declared, value)| {
        let value = value.filter(|value| value.is_finite())?;
        let metric = Metric::new(declared, "", Unit::from_base(Base::One), value, source);
        Some((declared.name.to_owned(), metric))
    });
    known.collect()
}

/// Writes all samples in the format of any trial.
fn samples(climb: &Climb, source: Source, mut writer: SampleWriter) -> Result<(), LabError> {
    let mut register = |owner: Owner, metric: &str, base| {
        writer.register(&Series {
            owner,
            metric: metric.to_owned(),
            unit: Unit::from_base(base),
            kind: SeriesKind::Gauge,
            source,
        })
    };
    let population = register(Owner::Target, metric::GUESTS.name, Base::One);
    let own = register(Owner::Target, &counter::SHARE.fill("cpu"), Base::Percent);
    let shares: BTreeMap<Resource, _> = Resource::ALL
        .into_iter()
        .map(|resource| {
            let metric = counter::SHARE.fill(resource.name().replace(' ', "_").to_lowercase());
            (resource, register(Owner::Host, &metric, Base::Percent))
        })
        .collect();
    for interval in climb.climb.iter().chain(&climb.descent) {
        for sample in &interval.samples {
            let at = nanoseconds(sample.at);
            writer.push(population, at, f64::from(interval.population))?;
            writer.push(own, at, sample.population_cpu)?;
            for (resource, share) in &sample.shares {
                if let Some(id) = shares.get(resource) {
                    writer.push(*id, at, *share)?;
                }
            }
        }
    }
    Ok(writer.finish()?)
}

/// Whether a results directory is of a density run.
#[must_use]
pub fn is_density(results: &ResultsDir) -> bool {
    let treatments = &results.run().treatments;
    let mut workloads = treatments.iter().map(|treatment| &treatment.workload);
    !treatments.is_empty() && workloads.all(|workload| workload == WORKLOAD)
}

/// The default results directory of a plan.
#[must_use]
pub fn default_results(plan: &Plan) -> PathBuf {
    let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
    Path::new("results").join(format!("{}-{now}", plan.name))
}
