// SPDX-License-Identifier: Apache-2.0
//! The record of a trial, computed from its readings: metrics of the target, of its neighbours and of each phase,
//! and the reasons to suspect them.

use super::guest::{Guest, LOCAL};
use super::instruments;
use super::metering::Metering;
use super::observation::{Inner, Observation, ObservedGuest};
use super::phases::{MeasuredWindow, Measurement};
use super::residency;
use crate::LabError;
use crate::suspect::{self, OwnWork};
use std::collections::BTreeMap;
use std::time::Instant;
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, Source, counter, metric};
use vtax_host::knobs;
use vtax_load::workload::{Lateness, WorkloadResult};
use vtax_observe::{ObserverReport, Snapshot};
use vtax_results::{Actor, HistogramRecord, Metric, ObservationCost, Phase, Role, Trial};

/// The guests' own counters, and the time of the reading.
pub struct InnerReadings {
    of: Vec<BTreeMap<String, f64>>,
    at: Instant,
}

impl InnerReadings {
    /// Reads the counters of all guests.
    ///
    /// # Errors
    /// When a guest does not answer.
    pub fn from_guests(guests: &mut [Guest<'_>]) -> Result<Self, LabError> {
        let read = guests.iter_mut().map(|guest| guest.target.inner_counters());
        Ok(Self {
            of: read.collect::<Result<_, _>>()?,
            at: Instant::now(),
        })
    }
}

/// The counters of the target's host, when that is another machine.
pub struct RemoteTarget {
    /// The guests, the target as its host sees it.
    pub guests: Vec<ObservedGuest>,
    /// That host's counters at each mark.
    pub snapshots: BTreeMap<Nanoseconds, Snapshot>,
    /// The number of that host's processors.
    pub processors: usize,
    /// The shortest window that its counters cover.
    pub shortest: Nanoseconds,
}

/// The readings of a trial.
pub struct Findings<'a, 'b> {
    pub metering: &'a Metering<'a>,
    /// The interval between two samples.
    pub period: Nanoseconds,
    /// The guests of the trial, the target first.
    pub guests: &'a [Guest<'b>],
    /// The report on the sampling.
    pub report: &'a ObserverReport,
    /// The guests' own counters, before and after the measured part.
    pub inner: (&'a InnerReadings, &'a InnerReadings),
    pub remote: Option<RemoteTarget>,
}

/// Returns the lateness of the load generator in a trial without a judged level. Elsewhere the levels at which it was
/// late have no judgement, and the knee is the one of the others.
pub(super) fn late_in_a_ramp(
    windows: &[MeasuredWindow],
    is_late: &dyn Fn(&Lateness) -> bool,
) -> Option<String> {
    if windows.iter().any(|window| window.kept.is_some()) {
        return None;
    }
    windows.iter().find_map(|window| {
        let late = window.of_target()?.late.as_ref();
        let late = late.filter(|late| is_late(late))?;
        Some(format!("at {}: {}", window.name, late.text))
    })
}

impl Findings<'_, '_> {
    /// Completes the record of the trial.
    pub fn conclude(&self, measured: Measurement, trial: &mut Trial) {
        let (Some(first), Some(last)) = (measured.windows.first(), measured.windows.last()) else {
            return;
        };
        let whole = (&first.begin, &last.end);
        trial.window = (first.begin.at, last.end.at);
        let (before, after, own) = (&first.before, &last.after, self.own_work(whole));
        trial.suspect.extend(suspect::reasons(before, after, &own));
        trial
            .disturbed
            .extend(suspect::disturbances(before, after, &own));
        let nothing = WorkloadResult::default();
        let is_steady = measured.windows.len() == 1 && first.level.is_none();
        let of_target = self.observation(whole, 0, true);
        let result = match first.of_target() {
            Some(result) if is_steady => result,
            _ => &nothing,
        };
        let of_load = result.suspect.iter().chain(&result.unreached);
        trial.suspect.extend(of_load.cloned());
        let is_late = |late: &Lateness| self.metering.is_late(late);
        let late = if is_steady {
            let late = result.late.as_ref().filter(|late| is_late(late));
            late.map(|late| late.text.clone())
        } else {
            late_in_a_ramp(&measured.windows, &is_late)
        };
        trial.suspect.extend(late);
        let contradictions = self.contradictions(&measured.windows, is_steady);
        trial.suspect.extend(contradictions);
        trial.suspect.extend(self.left(&measured.windows));
        trial.work = of_target.work(result);
        trial.metrics = of_target.metrics(result);
        if is_steady {
            trial.metrics.extend(self.charged(first, 0, Some(result)));
        } else {
            let windows = measured.windows.iter();
            trial.phases = windows.map(|window| self.phase(window)).collect();
        }
        let knee = knee(&measured, of_target.source());
        trial.metrics.extend(knee);
        trial.observation = ObservationCost {
            idle: trial.observation.idle.take(),
            // The run's, which reads it when the trial has ended.
            canary: None,
            idle_gaps: residency::idle_gaps(of_target.begin, of_target.end),
            cpu: self.report.cpu,
            passes: self.report.passes,
            missed: self.report.missed,
            processors: Some(of_target.processors),
            energy: of_target.energy().map_or_else(Vec::new, |_| {
                let names = of_target.energy.iter().map(|(name, _)| name.clone());
                names.collect()
            }),
        };
        let actors = (0..).zip(self.guests).flat_map(|(index, guest)| {
            let throughout = measured.throughout.get(guest.spec.name);
            let mut metrics = BTreeMap::new();
            if index != 0 {
                let of = self.observation(whole, index, true);
                metrics = of.metrics(throughout.unwrap_or(&nothing));
                if is_steady {
                    metrics.extend(self.charged(first, index, throughout));
                }
            }
            self.actors(guest, metrics)
        });
        trial.actors = actors.collect();
        trial.objective = measured.objective;
    }

    /// Returns the claims of load generators that the counters of their guests contradict.
    fn contradictions(&self, windows: &[MeasuredWindow], is_steady: bool) -> Vec<String> {
        let mut found = Vec::new();
        for window in windows {
            let place = if is_steady {
                String::new()
            } else {
                format!("{}: ", window.name)
            };
            for (index, guest) in self.guests.iter().enumerate() {
                let Some(result) = window.results.get(guest.spec.name) else {
                    continue;
                };
                let of = self.observation(window.marks(), index, false);
                let contradictions = of.contradictions(result);
                found.extend(contradictions.map(|what| format!("{place}{what}")));
            }
        }
        found
    }

    /// Returns the reasons to suspect windows for what commands left running or outside of their control groups.
    fn left(&self, windows: &[MeasuredWindow]) -> Vec<String> {
        let mut found = Vec::new();
        for window in windows {
            for (index, guest) in self.guests.iter().enumerate() {
                let Some(left) = window.left.get(guest.spec.name) else {
                    continue;
                };
                let of = self.observation(window.marks(), index, false);
                let owner = &guest.target.about().subject.owner;
                let counted = of.delta(owner, counter::CPU_TOTAL);
                let reasons = left.reasons(counted.map(|nanoseconds| nanoseconds / 1e9));
                found.extend(reasons.into_iter().map(|reason| {
                    if guest.spec.is_target() {
                        reason
                    } else {
                        format!("{owner}: {reason}")
                    }
                }));
            }
        }
        found
    }

    /// Returns a guest and its client as actors.
    fn actors(&self, guest: &Guest<'_>, metrics: BTreeMap<String, Metric>) -> [Actor; 2] {
        let owner = &guest.target.about().subject.owner;
        let is_target = guest.spec.is_target();
        [
            Actor {
                name: owner.to_string(),
                role: if is_target {
                    Role::Target
                } else {
                    Role::Neighbour
                },
                platform: Some(guest.spec.platform.kind().to_owned()),
                workload: Some(guest.spec.workload.kind().to_owned()),
                drives: None,
                place: LOCAL.to_owned(),
                metrics,
                environment: if is_target {
                    BTreeMap::new()
                } else {
                    let mut facts = guest.target.about().environment.clone();
                    facts.extend(guest.knobs.clone());
                    facts
                },
            },
            Actor {
                name: guest.client_subject.owner.to_string(),
                role: Role::Client,
                platform: None,
                workload: None,
                drives: Some(owner.to_string()),
                place: guest.client_place.clone(),
                metrics: BTreeMap::new(),
                environment: guest.client_environment.clone(),
            },
        ]
    }

    fn phase(&self, window: &MeasuredWindow) -> Phase {
        let nothing = WorkloadResult::default();
        let metrics = |index: usize, name: &str| {
            let of = self.observation(window.marks(), index, false);
            let result = window.results.get(name);
            let mut metrics = of.metrics(result.unwrap_or(&nothing));
            metrics.extend(self.charged(window, index, result));
            metrics
        };
        let mut guests = (0..).zip(self.guests).map(|(index, guest)| {
            let owner = guest.target.about().subject.owner.to_string();
            (owner, metrics(index, guest.spec.name))
        });
        let target = guests.next();
        Phase {
            name: window.name.clone(),
            level: window.level,
            window: window.times(),
            work: self
                .observation(window.marks(), 0, false)
                .work(window.of_target().unwrap_or(&nothing)),
            metrics: target.map(|(_, metrics)| metrics).unwrap_or_default(),
            others: guests.collect(),
            kept: window.kept,
        }
    }

    /// Returns the charge of a guest in a window; empty when guests are not charged.
    fn charged(
        &self,
        window: &MeasuredWindow,
        guest: usize,
        result: Option<&WorkloadResult>,
    ) -> BTreeMap<String, Metric> {
        let Some(charged) = &window.charged else {
            return BTreeMap::new();
        };
        let of = self.observation(window.marks(), guest, false);
        let work = result.and_then(|result| of.work(result));
        let work = work.as_ref().map(|work| (work, of.seconds()));
        charged.metrics(guest, work, of.source())
    }

    /// Returns the observation of a guest between two marks. `with_inner` adds the guest's own counters, which were
    /// read around the whole measured part.
    fn observation<'s>(
        &'s self,
        marks: (&'s Snapshot, &'s Snapshot),
        guest: usize,
        with_inner: bool,
    ) -> Observation<'s> {
        let mut observation = self.metering.observation(marks, guest);
        let length = marks.1.at.saturating_since(marks.0.at);
        if let Some(remote) = self
            .remote
            .as_ref()
            .filter(|remote| length >= remote.shortest)
        {
            observation.guests = &remote.guests;
            let there = remote.snapshots.get(&marks.0.at);
            let there = there.zip(remote.snapshots.get(&marks.1.at));
            // The meters of this host do not measure the target's host.
            if guest == 0
                && let Some((begin, end)) = there
            {
                (observation.begin, observation.end) = (begin, end);
                (observation.processors, observation.energy) = (remote.processors, &[]);
            }
        }
        let (before, after) = self.inner;
        let inner = before.of.get(guest).zip(after.of.get(guest));
        let inner = inner.filter(|(before, after)| !before.is_empty() && !after.is_empty());
        observation.inner = match inner {
            Some((one, other)) if with_inner => Some(Inner {
                before: one,
                after: other,
                between: after.at.duration_since(before.at).as_secs_f64(),
            }),
            _ => None,
        };
        observation
    }

    /// Returns the CPU time of all actors. The rest of the host's CPU time is foreign.
    fn own_work(&self, (begin, end): (&Snapshot, &Snapshot)) -> OwnWork {
        let spent = |owner: &Owner, name| {
            let spent = end.since(begin, owner, name);
            instruments::nanoseconds(spent.map_or(0.0, |quantity| quantity.value))
        };
        let guests = &self.metering.guests;
        let sum = |of: fn(&ObservedGuest) -> &Owner, name| {
            Nanoseconds(guests.iter().map(|guest| spent(of(guest), name).0).sum())
        };
        let target = self.guests.first();
        OwnWork {
            target: sum(|guest| &guest.owner, counter::CPU_TOTAL),
            client: sum(|guest| &guest.client, counter::CPU_TOTAL),
            vtax: spent(&Owner::Observer, counter::CPU_TOTAL),
            switch: spent(&Owner::Switch, counter::CPU_TOTAL),
            domains: sum(|guest| &guest.owner, counter::CPU_DOMAIN),
            period: self.period,
            observer: self.report.clone(),
            is_alone: self.metering.host == Source::Simulated,
            follows_load: target
                .is_some_and(|target| knobs::host::follows_load(target.spec.settings)),
        }
    }
}

/// Returns the knee as a metric, if a level kept the objective.
fn knee(measured: &Measurement, source: Source) -> Option<(String, Metric)> {
    let (outcome, level) = (measured.objective.as_ref()?, measured.level?);
    let knee = outcome.knee?;
    let about = format!("({}) that kept {}", level.title, outcome.text);
    let metric = Metric::new(metric::KNEE, &about, knee.unit, knee.value, source);
    Some((metric::KNEE.name.to_owned(), metric))
}

/// Returns the distributions that the loads report, by client and window.
pub fn histograms(measured: &Measurement, guests: &[ObservedGuest]) -> Vec<HistogramRecord> {
    let Some((first, last)) = measured.marks() else {
        return Vec::new();
    };
    let windows = measured.windows.iter();
    let windows = windows.map(|window| (window.times(), &window.results));
    let all = windows.chain([((first.at, last.at), &measured.throughout)]);
    all.flat_map(|(window, results)| {
        guests.iter().flat_map(move |guest| {
            let result = results.get(&guest.owner.to_string());
            let found = result.into_iter().flat_map(|result| &result.histograms);
            found.map(move |(metric, histogram)| HistogramRecord {
                actor: guest.client.to_string(),
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
        let is_suspect = |is_typical, host| {
            let late = Lateness {
                text: String::new(),
                is_typical,
                is_of_timer: false,
            };
            late.is_suspect(host, true)
        };
        assert!(is_suspect(false, Source::Measured) && is_suspect(true, Source::Simulated));
        assert!(!is_suspect(false, Source::Simulated));
    }

    #[test]
    fn a_lateness_of_coarse_timers_counts_only_where_latency_is_a_result() {
        let late = |is_of_timer| Lateness {
            text: String::new(),
            is_typical: true,
            is_of_timer,
        };
        for host in [Source::Measured, Source::Simulated] {
            assert!(late(true).is_suspect(host, true));
            assert!(!late(true).is_suspect(host, false));
            assert!(late(false).is_suspect(host, false));
        }
    }
}
