// SPDX-License-Identifier: Apache-2.0
//! The measurement of a trial: services, counters of this host and of others, the measured part, and the record.

use super::charging::Charging;
use super::findings::{self, Findings, InnerReadings, RemoteTarget};
use super::guest::Guest;
use super::instruments::SampleSink;
use super::knob_watch::KnobWatch;
use super::live::LiveSampler;
use super::load::{DrivenGuests, TrialContext};
use super::metering::{Metering, observed};
use super::phases::{Instruments, Measurement, PhaseRunner};
use super::remote::{Ending, RemoteReport, Remotes};
use super::{Scenarios, power_model};
use crate::LabError;
use crate::place::actor::RemoteActor;
use crate::plan::PlannedTreatment;
use crate::run::{Log, OwnInstruments};
use crate::suspect::HostWatch;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, warn};
use vtax_core::{Hertz, Nanoseconds};
use vtax_host::roots::Roots;
use vtax_kernel::stat::HostStat;
use vtax_load::workload::LOAD_SEED;
use vtax_observe::clock::SystemClock;
use vtax_observe::{Observer, ObserverConfig, Subject};
use vtax_results::NOT_TRACED;
use vtax_results::{Trial, TrialWriter};

/// The measurement of one trial.
pub(super) struct Measuring<'a> {
    pub scenarios: &'a Scenarios<'a>,
    pub planned: &'a PlannedTreatment,
    /// The trial's block.
    pub block: u32,
    /// The actor on the client's host, when that is another machine.
    pub actor: Option<&'a RemoteActor>,
    pub writer: &'a TrialWriter,
}

impl Measuring<'_> {
    /// Measures the booted guests.
    ///
    /// # Errors
    /// When a service, a load, or a counter fails.
    pub fn run(
        &self,
        guests: &mut [Guest<'_>],
        log: &mut Log<'_>,
        trial: &mut Trial,
    ) -> Result<(), LabError> {
        let lab = self.scenarios;
        log.phase("service");
        let clock = Instant::now();
        for guest in guests.iter_mut() {
            lab.signals.check()?;
            guest.serve()?;
        }
        trial.times.service = clock.elapsed().into();

        let charging = Charging::begin(&self.planned.settings, guests)?;
        let not_traced = charging.as_ref();
        let not_traced = not_traced.and_then(|charging| charging.not_traced.clone());
        let facts = not_traced.map(|why| (NOT_TRACED.to_owned(), why));
        trial.environment.extend(facts);
        let knobs = KnobWatch::begin(guests, &self.planned.settings, &lab.roots.sys);
        trial.environment.extend(knobs.facts());
        let inner_before = InnerReadings::from_guests(guests)?;
        let hz = lab.plan.sample_hz;
        let metering = Metering {
            guests: observed(guests),
            processors: online_processors(lab.roots),
            energy: &lab.meters.energy,
            idle: lab.idle.watts(),
            host: lab.host,
            claims_latency: charging.is_none() || self.planned.objective.is_some(),
        };
        let watch = HostWatch::new(lab.roots, self.writer.path());
        let remotes = Remotes::begin(self.actor, guests.first(), hz)?;
        let samples = SampleSink::new(self.writer.samples()?);
        let observer = self.observe(guests, charging.as_ref(), &samples, log)?;

        let context = TrialContext {
            plan: lab.plan,
            planned: self.planned,
            block: self.block,
            host: lab.host,
        };
        let seed = guests
            .first()
            .and_then(|target| context.load_seed(0, target));
        let fact = seed.map(|seed| (LOAD_SEED.key.to_owned(), seed.to_string()));
        trial.environment.extend(fact);
        let runner = PhaseRunner {
            trial: context,
            signals: lab.signals,
            guests: DrivenGuests::from_guests(guests)?,
            instruments: Instruments {
                observer: &observer,
                watch: &watch,
                metering: &metering,
                charging,
                live: LiveSampler::for_host(lab.host),
            },
            log: &mut *log,
            measured: Measurement::default(),
        };
        let measured = runner.run(&mut trial.times);
        let report = observer.stop();
        let marks = measured.as_ref().ok().and_then(Measurement::marks);
        let reports = marks.map(|(first, last)| {
            remotes.end(&mut Ending {
                marks: (first.at, last.at),
                signals: lab.signals,
                samples: &samples,
                log: &mut *log,
            })
        });
        // The samples are closed after a failure too, so that they can be read.
        let closed = samples.close();
        let measured = measured?;
        let report = report?;
        let (client, host) = reports.transpose()?.unwrap_or_default();
        closed?;
        if let (Some(client), Some(target)) = (client, guests.first_mut()) {
            target.client_environment = client.environment;
            trial.suspect.extend(client.suspect);
        }
        let remote = host.and_then(|host| remote_target(host, &metering, &measured, trial));
        self.writer.write_workload_json(&measured.raw)?;
        let histograms = findings::histograms(&measured, &metering.guests);
        self.writer.write_histograms(&histograms)?;
        let inner_after = InnerReadings::from_guests(guests)?;
        let changed = knobs.end(guests, &self.planned.settings, &lab.roots.sys)?;
        trial.suspect.extend(changed);
        for (instrument, count, first) in &report.failures {
            let line = format!("{instrument} could not be read {count} times: {first}");
            warn!("{line}");
            log.line(&line);
        }
        let findings = Findings {
            metering: &metering,
            period: Nanoseconds::from(Duration::from_secs_f64(1.0 / hz)),
            guests,
            report: &report,
            inner: (&inner_before, &inner_after),
            remote,
        };
        findings.conclude(measured, trial);
        if let Some(energy) = &lab.meters.host {
            power_model::record(energy, trial);
        }
        Ok(())
    }

    /// Starts to sample this host, and the guests and clients on it.
    fn observe(
        &self,
        guests: &[Guest<'_>],
        charging: Option<&Charging>,
        samples: &SampleSink,
        log: &mut Log<'_>,
    ) -> Result<Observer, LabError> {
        let lab = self.scenarios;
        let subjects: Vec<Subject> = guests.iter().flat_map(Guest::subjects).collect();
        let charger = charging.map(Charging::charger);
        let (mut observed, absent) =
            vtax_charge::instruments(&subjects, charger, &lab.programs, lab.roots);
        observed.extend(lab.meters.instruments());
        observed.extend(lab.own.into_iter().flat_map(OwnInstruments::open));
        for reason in absent {
            debug!("not observed: {reason}");
            log.line(&format!("not observed: {reason}"));
        }
        let rate = ObserverConfig {
            rate: Hertz(lab.plan.sample_hz),
        };
        let sink = Box::new(samples.clone());
        Ok(Observer::start(
            rate,
            Arc::new(SystemClock),
            observed,
            sink,
        )?)
    }
}

/// Writes the report of the target's host into the record. Returns that host's counters at the marks of each
/// window.
fn remote_target(
    report: RemoteReport,
    metering: &Metering<'_>,
    measured: &Measurement,
    trial: &mut Trial,
) -> Option<RemoteTarget> {
    let facts = report.environment.into_iter();
    let facts = facts.map(|(name, fact)| (format!("host.{name}"), fact));
    trial.environment.extend(facts);
    trial.suspect.extend(report.suspect);
    let host = report.counters?;
    let mut guests = metering.guests.clone();
    if let Some(target) = guests.first_mut() {
        (target.is_here, target.is_vm) = (true, host.target.is_vm);
        target.source = target.source.combine(host.target.source);
    }
    let windows = measured.windows.iter();
    let times = windows.flat_map(|window| [window.begin.at, window.end.at]);
    let snapshots = times.map(|at| (at, host.at(at))).collect();
    trial.environment.extend(host.target.facts);
    Some(RemoteTarget {
        guests,
        snapshots,
        processors: host.processors,
        shortest: host.shortest,
    })
}

/// Returns the number of online processors. The affinity of this process does not lower it.
fn online_processors(roots: &Roots) -> usize {
    HostStat::read(&roots.proc).map_or(1, |stat| stat.processors.max(1) as usize)
}
