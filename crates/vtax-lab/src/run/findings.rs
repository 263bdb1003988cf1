//! What was read of a trial, and what it comes to: the metrics of the target, of its neighbours and of each phase, and the
//! reasons to suspect them.

use super::guest::Guest;
use super::instruments;
use super::observation::{Inner, Observation, Party};
use super::phases::{Driven, Stretch};
use super::trial::Attempt;
use crate::LabError;
use crate::suspect::{self, OwnWork};
use std::collections::BTreeMap;
use std::time::Instant;
use vtax_core::account::OBSERVER;
use vtax_core::{Nanoseconds, Source};
use vtax_host::cell::SWITCH;
use vtax_host::host_settings;
use vtax_load::workload::{Lateness, WorkloadResult};
use vtax_observe::{ObserverReport, Snapshot, metric};
use vtax_report::results::{Actor, Better, HistogramRecord, Metric, ObservationCost, Phase, Role};

/// The place of an actor that lives on this host.
pub const LOCAL: &str = "local";

/// The guests' own counters, and when they were read.
pub struct InnerReadings {
    of: Vec<BTreeMap<String, f64>>,
    at: Instant,
}

impl InnerReadings {
    /// Those of all guests, now.
    ///
    /// # Errors
    /// What a guest says that cannot tell them.
    pub fn of(guests: &mut [Guest<'_>]) -> Result<Self, LabError> {
        let read = guests.iter_mut().map(|guest| guest.target.inner_counters());
        Ok(Self {
            of: read.collect::<Result<_, _>>()?,
            at: Instant::now(),
        })
    }
}

/// All that was read of a trial.
pub struct Findings<'a, 'b> {
    /// Whether this host is emulated.
    pub host: Source,
    /// The counters of this host's meters.
    pub energy: &'a [(String, Source)],
    /// From one sample to the next.
    pub period: Nanoseconds,
    /// The guests of the trial, the target first.
    pub guests: &'a [Guest<'b>],
    /// Their names in the samples.
    pub parties: &'a [Party],
    /// The same, as long as no other host tells of them.
    pub unseen: &'a [Party],
    /// Of this host.
    pub processors: usize,
    /// How the sampling went.
    pub report: &'a ObserverReport,
    /// The guests' own counters, before and after.
    pub inner: (&'a InnerReadings, &'a InnerReadings),
    /// What the host of the target counted at each mark, where that is another one.
    pub hosted: BTreeMap<Nanoseconds, Snapshot>,
    /// Of that host.
    pub processors_there: usize,
    /// The shortest window that it says something of.
    pub shortest: Nanoseconds,
}

/// The load generator's own lateness at the levels that say what the target bears: up to the lowest one that broke
/// the objective. Beyond it, and where the load was not reached, the client may well lack CPU time.
pub(super) fn late_in_a_ramp(stretches: &[Stretch], host: Source) -> Option<String> {
    let level = |stretch: &Stretch| stretch.level.map_or(0.0, |level| level.value);
    let broken = stretches
        .iter()
        .filter(|stretch| stretch.kept == Some(false));
    let lowest = broken.map(level).fold(f64::INFINITY, f64::min);
    stretches.iter().find_map(|stretch| {
        let result = stretch.results.first()?.as_ref()?;
        let late = result.late.as_ref().filter(|late| counts(late, host))?;
        let is_judged = level(stretch) <= lowest && result.unreached.is_none();
        is_judged.then(|| format!("at {}: {}", stretch.name, late.text))
    })
}

/// Whether a load generator's lateness makes its trial suspect. In an emulated host client and target take turns on the
/// same few processors by design, so that there some requests always leave late: only a typical request's lateness counts.
fn counts(late: &Lateness, host: Source) -> bool {
    late.is_typical || host != Source::Emulated
}

impl Findings<'_, '_> {
    /// Writes what they come to into the attempt.
    pub fn conclude(&self, driven: Driven, attempt: &mut Attempt) {
        let (Some(first), Some(last)) = (driven.stretches.first(), driven.stretches.last()) else {
            return;
        };
        let whole = (&first.begin, &last.end);
        attempt.window = (first.begin.at, last.end.at);
        let reasons = suspect::reasons(&first.before, &last.after, &self.own_work(whole));
        attempt.suspect.extend(reasons);
        let nothing = WorkloadResult::default();
        let is_steady = driven.stretches.len() == 1 && first.level.is_none();
        let of_target = self.observation(whole, 0, true);
        let result = first.results.first().and_then(Option::as_ref);
        let result = result.filter(|_| is_steady).unwrap_or(&nothing);
        let of_load = result.suspect.iter().chain(&result.unreached);
        attempt.suspect.extend(of_load.cloned());
        let late = result.late.iter().filter(|late| counts(late, self.host));
        attempt.suspect.extend(late.map(|late| late.text.clone()));
        if !is_steady {
            let late = late_in_a_ramp(&driven.stretches, self.host);
            attempt.suspect.extend(late);
        }
        attempt
            .suspect
            .extend(self.contradictions(&driven, is_steady));
        attempt.work = of_target.work(result);
        attempt.metrics = of_target.metrics(result);
        if is_steady {
            attempt.metrics.extend(self.charged(first, 0, Some(result)));
        } else {
            attempt.phases = driven
                .stretches
                .iter()
                .map(|stretch| self.phase(stretch))
                .collect();
        }
        let knee = driven.objective.as_ref().and_then(|outcome| outcome.knee);
        if let (Some(knee), Some(level), Some(outcome)) = (knee, driven.level, &driven.objective) {
            let metric = Metric {
                quantity: knee,
                source: of_target.source(),
                model: None,
                better: Better::Higher,
                headline: true,
                title: format!("highest load ({}) that kept {}", level.title, outcome.text),
            };
            attempt.metrics.insert("knee".to_owned(), metric);
        }
        attempt.objective = driven.objective;
        attempt.observation = ObservationCost {
            cpu: self.report.cpu,
            passes: self.report.passes,
            missed: self.report.missed,
            processors: Some(of_target.processors),
            energy: of_target.energy().map_or_else(Vec::new, |_| {
                let names = of_target.energy.iter().map(|(name, _)| name.clone());
                names.collect()
            }),
        };
        attempt.actors = (0..)
            .zip(self.guests)
            .flat_map(|(party, guest)| {
                let throughout = driven.throughout.get(party).and_then(Option::as_ref);
                let mut metrics = BTreeMap::new();
                if party != 0 {
                    let of = self.observation(whole, party, true);
                    metrics = of.metrics(throughout.unwrap_or(&nothing));
                    if is_steady {
                        metrics.extend(self.charged(first, party, throughout));
                    }
                }
                self.actors(party, guest, metrics)
            })
            .collect();
    }

    /// What load generators claim and the counters of their guests contradict.
    fn contradictions(&self, driven: &Driven, is_steady: bool) -> Vec<String> {
        let mut found = Vec::new();
        for stretch in &driven.stretches {
            let window = (&stretch.begin, &stretch.end);
            for (party, result) in stretch.results.iter().enumerate() {
                let Some(result) = result else { continue };
                let of = self.observation(window, party, false);
                let place = match is_steady {
                    true => String::new(),
                    false => format!("{}: ", stretch.name),
                };
                found.extend(
                    of.contradictions(result)
                        .map(|what| format!("{place}{what}")),
                );
            }
        }
        found
    }

    /// A guest and its client.
    fn actors(
        &self,
        party: usize,
        guest: &Guest<'_>,
        metrics: BTreeMap<String, Metric>,
    ) -> [Actor; 2] {
        let subject = guest.target.subject();
        [
            Actor {
                name: subject.owner.clone(),
                role: if party == 0 {
                    Role::Target
                } else {
                    Role::Neighbour
                },
                platform: Some(guest.platform.to_owned()),
                workload: Some(guest.workload.kind().to_owned()),
                drives: None,
                place: LOCAL.to_owned(),
                metrics,
                environment: match party {
                    0 => BTreeMap::new(),
                    _ => guest.target.environment(),
                },
            },
            Actor {
                name: guest.client_subject.owner.clone(),
                role: Role::Client,
                platform: None,
                workload: None,
                drives: Some(subject.owner),
                place: guest.client_place.clone(),
                metrics: BTreeMap::new(),
                environment: guest.client_environment.clone(),
            },
        ]
    }

    fn phase(&self, stretch: &Stretch) -> Phase {
        let nothing = WorkloadResult::default();
        let result = |party: usize| {
            let found = stretch.results.get(party).and_then(Option::as_ref);
            found.unwrap_or(&nothing)
        };
        let of = |party| self.observation((&stretch.begin, &stretch.end), party, false);
        let metrics = |party| {
            let mut metrics = of(party).metrics(result(party));
            let found = stretch.results.get(party).and_then(Option::as_ref);
            metrics.extend(self.charged(stretch, party, found));
            metrics
        };
        let others = (1..self.parties.len()).filter_map(|party| {
            let name = self.parties.get(party)?.guest.clone();
            Some((name, metrics(party)))
        });
        Phase {
            name: stretch.name.clone(),
            level: stretch.level,
            window: (stretch.begin.at, stretch.end.at),
            work: of(0).work(result(0)),
            metrics: metrics(0),
            others: others.collect(),
            kept: stretch.kept,
        }
    }

    /// What a guest was charged in a stretch, where guests are charged.
    fn charged(
        &self,
        stretch: &Stretch,
        party: usize,
        result: Option<&WorkloadResult>,
    ) -> BTreeMap<String, Metric> {
        let Some(charged) = &stretch.charged else {
            return BTreeMap::new();
        };
        let of = self.observation((&stretch.begin, &stretch.end), party, false);
        let work = result.and_then(|result| of.work(result));
        let work = work.as_ref().map(|work| (work, of.seconds()));
        charged.metrics(party, work, of.source())
    }

    /// What was observed of a guest between two marks; with the guest's own counters, which were read
    /// around the whole measured part.
    fn observation<'s>(
        &'s self,
        (begin, end): (&'s Snapshot, &'s Snapshot),
        party: usize,
        with_inner: bool,
    ) -> Observation<'s> {
        let (before, after) = self.inner;
        let between = after.at.duration_since(before.at);
        let inner = before.of.get(party).zip(after.of.get(party));
        let inner = inner.filter(|(before, after)| !before.is_empty() && !after.is_empty());
        let there = self.hosted.get(&begin.at).zip(self.hosted.get(&end.at));
        let there = there.filter(|_| party == 0);
        let is_short = end.at.saturating_since(begin.at) < self.shortest;
        let there = there.filter(|_| !is_short);
        let parties = if is_short { self.unseen } else { self.parties };
        // What the meters of this host say is not about another one.
        let (processors, energy) = match there {
            Some(_) => (self.processors_there, &[][..]),
            None => (self.processors, self.energy),
        };
        let (begin, end) = there.unwrap_or((begin, end));
        Observation {
            begin,
            end,
            processors,
            parties,
            party,
            energy,
            inner: inner.filter(|_| with_inner).map(|(before, after)| Inner {
                before,
                after,
                between: between.as_secs_f64(),
            }),
            host: self.host,
        }
    }

    /// What all actors did: the rest is foreign.
    fn own_work(&self, (begin, end): (&Snapshot, &Snapshot)) -> OwnWork {
        let spent = |owner: &str, name| {
            let spent = end.since(begin, owner, name);
            instruments::nanoseconds(spent.map_or(0.0, |quantity| quantity.value))
        };
        let sum = |of: fn(&Party) -> &str, name| {
            let spent = self.parties.iter().map(|party| spent(of(party), name).0);
            Nanoseconds(spent.sum())
        };
        OwnWork {
            target: sum(|party| &party.guest, metric::CPU_TOTAL),
            client: sum(|party| &party.client, metric::CPU_TOTAL),
            vtax: spent(OBSERVER, metric::CPU_TOTAL),
            switch: spent(SWITCH, metric::CPU_TOTAL),
            domains: sum(|party| &party.guest, metric::CPU_DOMAIN),
            period: self.period,
            observer: self.report.clone(),
            is_alone: self.host == Source::Emulated,
            follows_load: self
                .guests
                .first()
                .is_some_and(|target| host_settings::follows_load(target.settings)),
        }
    }
}

/// The distributions that the loads found, by client and stretch.
pub fn histograms(driven: &Driven, parties: &[Party]) -> Vec<HistogramRecord> {
    let (Some(first), Some(last)) = (driven.stretches.first(), driven.stretches.last()) else {
        return Vec::new();
    };
    let throughout = (first.begin.at, last.end.at);
    let stretches = driven.stretches.iter();
    stretches
        .map(|stretch| ((stretch.begin.at, stretch.end.at), &stretch.results))
        .chain([(throughout, &driven.throughout)])
        .flat_map(|(window, results)| {
            parties
                .iter()
                .zip(results)
                .flat_map(move |(party, result)| {
                    let found = result.iter().flat_map(|result| &result.histograms);
                    found.map(move |(metric, histogram)| HistogramRecord {
                        actor: party.client.clone(),
                        metric: metric.clone(),
                        window,
                        histogram: histogram.clone(),
                    })
                })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_an_emulated_host_only_a_typical_lateness_counts() {
        let late = |is_typical| Lateness {
            text: String::new(),
            is_typical,
        };
        assert!(counts(&late(false), Source::Measured) && counts(&late(true), Source::Emulated));
        assert!(!counts(&late(false), Source::Emulated));
    }
}
