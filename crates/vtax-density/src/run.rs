//! The run loop: every variant of a plan climbed in interleaved random order, one trial a climb,
//! into an ordinary results directory. Killed at any moment it loses at most the climb in flight.

use crate::climb::{Bench, Energy, check, climb};
use crate::limits::Binding;
use crate::plan::{Plan, Variant};
use crate::record::{Climb, Interval};
use crate::resources::Resource;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vtax_host::journal::Journal;
use vtax_host::lock::Lock;
use vtax_host::signals::Signals;
use vtax_host::{HostError, Roots, host_settings};
use vtax_lab::LabError;
use vtax_lab::plan::Order;
use vtax_lab::run::NewRun;
use vtax_report::results::{
    Better, Metric, ObservationCost, PhaseTimes, ResultsDir, SampleKind, SampleSeries,
    SampleWriter, Trial, TrialOutcome, TrialWriter,
};
use vtax_units::{Base, Nanoseconds, Quantity, Source, Unit, counted};

/// How to run a density plan.
#[derive(Debug, Clone)]
pub struct Options {
    /// The results directory; created, or gone on with where it holds an unfinished run of this plan.
    pub results: PathBuf,
    /// Where the journal and the lock are.
    pub state_dir: PathBuf,
    /// The words that make this program a keeper.
    pub words: Vec<String>,
}

/// What a run tells whoever watches it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// Something worth a line.
    Note {
        /// The line.
        message: String,
    },
    /// A climb begins.
    ClimbStarted {
        /// What is climbed.
        treatment: String,
        /// The expected maximum.
        maximum: u32,
    },
    /// An interval is sampled.
    Interval {
        /// What is climbed.
        treatment: String,
        /// Guests.
        population: u32,
        /// The expected maximum.
        maximum: u32,
        /// The resource that is nearest to its limit, and its share in percent.
        nearest: Option<(Resource, f64)>,
        /// Guests made a second.
        rate: Option<f64>,
        /// The probe's 99th percentile, in microseconds.
        probe_p99_us: Option<f64>,
    },
    /// A climb ended.
    ClimbFinished {
        /// What was climbed.
        treatment: String,
        /// Guests at the top.
        guests: u32,
        /// What ended it, in words.
        binding: String,
        /// Memory of a guest in bytes, all in.
        bytes_each: Option<f64>,
        /// Reasons not to trust it.
        suspect: Vec<String>,
    },
    /// A climb failed.
    ClimbFailed {
        /// What was climbed.
        treatment: String,
        /// Why.
        reason: String,
    },
}

/// A ratio this near to 1 is no effect.
const MINIMUM_EFFECT: f64 = 0.02;
/// Other programs' processor time above which a climb is suspect, in percent of the machine.
const FOREIGN_PERCENT: f64 = 5.0;
/// The climb's own processor time that is too much, in percent of one processor.
const OVERHEAD_PERCENT: f64 = 1.0;
/// The share of memory that has to come back, in percent.
const RETURNED_PERCENT: f64 = 95.0;
/// Below this much memory, what other programs take or give back is larger than what is measured.
const JUDGED_BYTES: f64 = 64e6;

/// Runs a plan. Returns the results directory.
///
/// # Errors
/// When the plan cannot run on this host, another lab runs, the directory holds something else, or
/// the user interrupts. Finished climbs stay.
pub fn run(
    plan: &Plan,
    text: &str,
    options: &Options,
    signals: &Signals,
    tell: &mut dyn FnMut(Event),
) -> Result<ResultsDir, LabError> {
    let purpose = format!("climbing {} into {}", plan.name, options.results.display());
    let _lock = Lock::acquire(&options.state_dir, &purpose)?;
    let mut journal = Journal::open(&options.state_dir, vtax_guest::platform::xen::end)?;
    let undone = journal.undo_all()?;
    if undone > 0 {
        tell(Event::Note {
            message: format!(
                "an earlier run was cut off; undone on the host: {}",
                counted(undone, "change")
            ),
        });
    }
    let roots = Roots::host();
    let missing: Vec<String> = plan
        .variants
        .iter()
        .filter_map(|variant| {
            let cause = check(variant, &roots).err()?;
            Some(format!("{}: {cause}", variant.treatment.label))
        })
        .collect();
    if !missing.is_empty() {
        return Err(LabError::Plan(format!(
            "this host cannot run the plan:\n  {}",
            missing.join("\n  ")
        )));
    }
    let new = NewRun {
        plan_text: text,
        name: &plan.name,
        description: &plan.description,
        is_quick: plan.is_quick,
        place: "local",
        seed: plan.seed,
        repetitions: plan.repetitions,
        order: Order::Interleaved,
        minimum_effect: MINIMUM_EFFECT,
    };
    let results = new.open(&options.results, &roots, || {
        plan.variants
            .iter()
            .map(|variant| variant.treatment.clone())
            .collect()
    })?;
    let mut energy = Energy::open(&roots)?;
    if energy.is_none() {
        tell(Event::Note {
            message: "no energy meter on this host: no joules".to_owned(),
        });
    }
    for index in results.pending() {
        signals.check()?;
        let Some(scheduled) = results.run().schedule.get(index as usize) else {
            continue;
        };
        let Some(variant) = plan.variants.get(scheduled.treatment) else {
            continue;
        };
        let mut bench = Bench {
            method: &plan.method,
            roots: &roots,
            signals,
            words: &options.words,
            energy: &mut energy,
        };
        let writer = results.trial_writer(index)?;
        one(
            &mut bench,
            variant,
            scheduled.block,
            writer,
            &mut journal,
            tell,
        )?;
    }
    Ok(results)
}

fn one(
    bench: &mut Bench<'_>,
    variant: &Variant,
    block: u32,
    writer: TrialWriter,
    journal: &mut Journal,
    tell: &mut dyn FnMut(Event),
) -> Result<(), LabError> {
    let label = variant.treatment.label.clone();
    tell(Event::ClimbStarted {
        treatment: label.clone(),
        maximum: variant.maximum,
    });
    let (began, started) = (Instant::now(), jiff::Timestamp::now().to_string());
    let limits = bench.method.limits;
    let mark = journal.mark();
    let applied = host_settings::apply(&variant.host, &bench.roots.sys, journal);
    let outcome = applied.and_then(|()| {
        climb(bench, variant, journal, &mut |interval| {
            tell(Event::Interval {
                treatment: label.clone(),
                population: interval.population,
                maximum: variant.maximum,
                nearest: crate::stop::nearest(&limits, interval),
                rate: interval
                    .births
                    .filter(|births| births.seconds > 0.0)
                    .map(|births| f64::from(births.count) / births.seconds),
                probe_p99_us: interval.probe.map(|probe| probe.p99_us),
            });
        })
    });
    journal.undo_to(mark)?;
    let mut trial = Trial {
        format: vtax_report::results::FORMAT,
        index: writer.index(),
        block,
        treatment: variant.treatment.clone(),
        started,
        outcome: TrialOutcome::Complete,
        suspect: Vec::new(),
        times: PhaseTimes::default(),
        window: (Nanoseconds(0), Nanoseconds(0)),
        work: None,
        metrics: BTreeMap::new(),
        environment: BTreeMap::new(),
        observation: ObservationCost::default(),
        actors: Vec::new(),
        phases: Vec::new(),
        objective: None,
    };
    match outcome {
        Err(HostError::Interrupted) => return Err(HostError::Interrupted.into()),
        Err(cause) => {
            trial.outcome = TrialOutcome::Failed(cause.to_string());
            tell(Event::ClimbFailed {
                treatment: label,
                reason: cause.to_string(),
            });
        }
        Ok((record, facts)) => {
            let raw = serde_json::to_vec_pretty(&record)
                .map_err(|cause| LabError::other(cause.to_string()))?;
            writer.write_workload_json(&raw)?;
            samples(&record, writer.samples()?)?;
            trial.suspect = suspicions(&record);
            trial.metrics = metrics(&record, source_of(variant));
            trial.environment = facts;
            trial.environment.extend(
                variant
                    .treatment
                    .factors
                    .iter()
                    .map(|(key, level)| (format!("factor.{key}"), level.clone())),
            );
            trial
                .environment
                .insert("density.binding".to_owned(), record.binding.to_string());
            trial.window = (Nanoseconds(0), nanoseconds(record.seconds));
            trial.times.measured = nanoseconds(record.seconds);
            trial.observation = ObservationCost {
                cpu: nanoseconds(record.own_cpu),
                passes: record
                    .climb
                    .iter()
                    .chain(&record.descent)
                    .map(|interval| interval.samples.len() as u64)
                    .sum(),
                missed: 0,
            };
            tell(Event::ClimbFinished {
                treatment: label,
                guests: record.guests(),
                binding: record.binding.to_string(),
                bytes_each: record.bytes_each(),
                suspect: trial.suspect.clone(),
            });
        }
    }
    trial.times.total = nanoseconds(began.elapsed().as_secs_f64());
    writer.finish(trial)?;
    Ok(())
}

/// Guests whose instructions are emulated say nothing about the processor time of others.
fn source_of(variant: &Variant) -> Source {
    match &variant.kind {
        crate::plan::Kind::Qemu(options) if options.accel == "tcg" => Source::Emulated,
        _ => Source::Measured,
    }
}

fn nanoseconds(seconds: f64) -> Nanoseconds {
    Nanoseconds(
        u64::try_from(
            Duration::try_from_secs_f64(seconds.max(0.0))
                .unwrap_or_default()
                .as_nanos(),
        )
        .unwrap_or(u64::MAX),
    )
}

/// Reasons not to trust a climb.
fn suspicions(climb: &Climb) -> Vec<String> {
    let mut reasons = Vec::new();
    let samples = || climb.climb.iter().flat_map(|interval| &interval.samples);
    let foreign = samples()
        .filter_map(|sample| Some(sample.shares.get(&Resource::Cpu)? - sample.population_cpu));
    if let Some(foreign) = crate::stop::median(foreign).filter(|share| *share > FOREIGN_PERCENT) {
        reasons.push(format!(
            "other programs used {foreign:.0} % of the machine while guests slept"
        ));
    }
    if climb.overhead_percent() > OVERHEAD_PERCENT {
        reasons.push(format!(
            "the climb itself used {:.1} % of a processor",
            climb.overhead_percent()
        ));
    }
    let taken = climb.before.available
        - climb
            .top()
            .map_or(climb.before.available, |top| top.memory.available);
    if let Some(returned) = climb
        .returned_percent()
        .filter(|percent| *percent < RETURNED_PERCENT && taken > JUDGED_BYTES)
    {
        reasons.push(format!(
            "only {returned:.0} % of the memory came back within {:.0} s",
            climb.returned_after
        ));
    }
    if taken < JUDGED_BYTES && climb.guests() > 0 {
        reasons.push(format!(
            "the whole population took {:.0} MB, which other programs' coming and going may hide",
            taken.max(0.0) / 1e6
        ));
    }
    reasons
}

/// The numbers of a climb that tables compare.
fn metrics(climb: &Climb, source: Source) -> BTreeMap<String, Metric> {
    let mut metrics = BTreeMap::new();
    let mut put = |name: &str, title: &str, value: Option<f64>, base: Base, better, headline| {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            let metric = Metric {
                quantity: Quantity::new(value, Unit::of(base)),
                source,
                better,
                headline,
                title: title.to_owned(),
            };
            metrics.insert(name.to_owned(), metric);
        }
    };
    let guests = f64::from(climb.guests());
    let top = climb.top();
    put(
        "guests",
        "guests held",
        Some(guests),
        Base::One,
        Better::Higher,
        true,
    );
    put(
        "memory.each",
        "memory of a guest, all in",
        climb.bytes_each(),
        Base::Byte,
        Better::Lower,
        true,
    );
    put(
        "memory.charged.each",
        "memory of a guest that its control group is charged for",
        climb.charged_each(),
        Base::Byte,
        Better::Lower,
        false,
    );
    let per_guest = |of: &dyn Fn(&crate::resources::Memory) -> f64| {
        top.filter(|top| top.population > 0)
            .map(|top| (of(&top.memory) - of(&climb.before)) / f64::from(top.population))
    };
    put(
        "memory.user.each",
        "of which processes' pages",
        per_guest(&|m| m.user + m.swap),
        Base::Byte,
        Better::Lower,
        false,
    );
    put(
        "memory.kernel.each",
        "of which kernel",
        per_guest(&|m| m.kernel()),
        Base::Byte,
        Better::Lower,
        false,
    );
    let cpu = top.and_then(|top| {
        crate::stop::median(top.samples.iter().map(|sample| sample.population_cpu))
    });
    put(
        "cpu.top",
        "CPU of the sleeping population at the top",
        cpu,
        Base::Percent,
        Better::Lower,
        false,
    );
    put(
        "cpu.idle",
        "CPU of the idle population, of one processor",
        climb.idle.map(|idle| idle.core_percent),
        Base::Percent,
        Better::Lower,
        true,
    );
    let born = |interval: Option<&Interval>| {
        interval
            .and_then(|interval| interval.births)
            .and_then(|births| births.boot)
            .map(|boot| boot.p50_us / 1e6)
    };
    put(
        "boot.first",
        "time to a booted guest, first interval",
        born(climb.climb.get(1)),
        Base::Second,
        Better::Lower,
        false,
    );
    put(
        "boot.last",
        "time to a booted guest, last interval",
        born(top),
        Base::Second,
        Better::Lower,
        true,
    );
    let probe = |of: fn(&crate::record::Latency) -> f64| {
        top.and_then(|top| top.probe.as_ref().map(|probe| of(probe) / 1e6))
    };
    put(
        "probe.p50",
        "response time at the top, median",
        probe(|probe| probe.p50_us),
        Base::Second,
        Better::Lower,
        false,
    );
    put(
        "probe.p99",
        "response time at the top, 99th percentile",
        probe(|probe| probe.p99_us),
        Base::Second,
        Better::Lower,
        true,
    );
    put(
        "joules.each",
        "energy of an idle guest in a second, host's share included",
        climb
            .idle
            .and_then(|idle| Some(idle.joules? / idle.seconds / guests))
            .filter(|_| guests > 0.0),
        Base::Joule,
        Better::Lower,
        false,
    );
    put(
        "returned",
        "memory that came back",
        climb.returned_percent(),
        Base::Percent,
        Better::Higher,
        false,
    );
    put(
        "overhead",
        "CPU of the climb itself, of one processor",
        Some(climb.overhead_percent()),
        Base::Percent,
        Better::Lower,
        false,
    );
    if let Binding::Resource { percent, .. } = climb.binding {
        put(
            "binding",
            "share of the binding resource",
            Some(percent),
            Base::Percent,
            Better::Neither,
            false,
        );
    }
    metrics
}

/// Every sample, as in any other trial.
fn samples(climb: &Climb, mut writer: SampleWriter) -> Result<(), LabError> {
    let mut register = |owner: &str, metric: &str, base| {
        writer.register(&SampleSeries {
            owner: owner.to_owned(),
            metric: metric.to_owned(),
            unit: Unit::of(base),
            kind: SampleKind::Gauge,
            source: Source::Measured,
        })
    };
    let population = register("target", "guests", Base::One);
    let own = register("target", "share.cpu", Base::Percent);
    let shares: BTreeMap<Resource, _> = Resource::ALL
        .into_iter()
        .map(|resource| {
            let metric = format!("share.{}", resource.name().replace(' ', "_").to_lowercase());
            (resource, register("host", &metric, Base::Percent))
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
    !treatments.is_empty()
        && treatments
            .iter()
            .all(|treatment| treatment.workload == crate::plan::WORKLOAD)
}

/// The default results directory of a plan.
#[must_use]
pub fn default_results(plan: &Plan) -> PathBuf {
    let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
    Path::new("results").join(format!("{}-{now}", plan.name))
}
