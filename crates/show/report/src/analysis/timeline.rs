// SPDX-License-Identifier: Apache-2.0
//! One trial over time: CPU time by actor in each second, under the rules of the trial's table, and the host's power.

use std::collections::{BTreeMap, HashMap};
use vtax_core::account::{Window, beside_target};
use vtax_core::owner::Owner;
use vtax_core::{Base, Nanoseconds, Quantity, SeriesKind, Source, counter, metric};
use vtax_results::stats;
use vtax_results::{Actor, Role, Samples, Stage, Trial};

/// One trial over time, with one value per second of its window.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The trial's index.
    pub trial: u32,
    /// CPU by actor and stage, in cores: all CPU time of the target's host.
    pub cpu: Vec<Layer>,
    /// The host's power in watts, with its source.
    pub watts: Option<(Vec<f64>, Source)>,
    /// The phases, in order.
    pub phases: Vec<TimelinePhase>,
}

/// One phase on the axis of a [`Timeline`].
#[derive(Debug, Clone, PartialEq)]
pub struct TimelinePhase {
    /// Its name.
    pub name: String,
    /// The requested load.
    pub level: Option<Quantity>,
    /// Start, in seconds of the window.
    pub start: f64,
    /// End, in seconds of the window.
    pub end: f64,
}

/// The CPU time of one actor in one stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// The actor.
    pub actor: String,
    /// The stage.
    pub stage: Stage,
    /// Source of the numbers.
    pub source: Source,
    /// Cores kept busy in each second.
    pub cores: Vec<f64>,
}

const SECOND: Nanoseconds = Nanoseconds(1_000_000_000);
/// Most seconds of a timeline: more than a day.
const MOST_SECONDS: u64 = 100_000;

/// Counters of an owner that enter the account.
const OF_OWNERS: [&str; 8] = [
    counter::CPU_TOTAL,
    counter::CPU_VCPU,
    counter::CPU_IOTHREAD,
    counter::CPU_VHOST,
    counter::CPU_BACKEND,
    counter::CPU_SOFTIRQ,
    counter::CPU_SOFTIRQ_CONTEXT,
    counter::CPU_DOMAIN,
];
/// Counters of a host that enter the account.
const OF_HOSTS: [&str; 4] = [
    counter::CPU_IDLE,
    counter::CPU_IOWAIT,
    counter::CPU_STEAL,
    counter::CPU_DOM0,
];
/// Counters of the rest of a host's processor time.
const COLUMNS: [&str; 4] = [
    counter::CPU_USER,
    counter::CPU_SYSTEM,
    counter::CPU_IRQ,
    counter::CPU_SOFTIRQ,
];

/// Whether the timeline uses this series.
pub(in crate::analysis) fn is_wanted(owner: &Owner, metric: &str) -> bool {
    let mut power = [counter::ENERGY, counter::POWER].into_iter();
    if owner.is_host() {
        let of_host = OF_HOSTS.contains(&metric) || COLUMNS.contains(&metric);
        of_host || *owner == Owner::Host && power.any(|of| of.part(metric).is_some())
    } else {
        OF_OWNERS.contains(&metric)
    }
}

/// Builds the timeline of a trial from its samples.
pub(in crate::analysis) fn timeline(trial: &Trial, samples: &[Samples]) -> Timeline {
    let seconds = |at: Nanoseconds| at.saturating_since(trial.window.0).as_secs_f64();
    Timeline {
        trial: trial.index,
        cpu: cpu(trial, samples),
        watts: watts(trial, samples),
        phases: trial
            .phases
            .iter()
            .map(|phase| TimelinePhase {
                name: phase.name.clone(),
                level: phase.level,
                start: seconds(phase.window.0),
                end: seconds(phase.window.1),
            })
            .collect(),
    }
}

/// CPU time by actor and stage in each second. A second without samples of the target or its host has no layers; such
/// seconds at the end are left out.
fn cpu(trial: &Trial, samples: &[Samples]) -> Vec<Layer> {
    let counted = Counted::from_trial(trial, samples);
    let (target, clients, neighbours) = owners(trial);
    let target = &target;
    let has_switch = counted.has(&Owner::Switch, counter::CPU_TOTAL);
    let others = beside_target(&clients, &neighbours, has_switch);
    let beside = others.iter().map(|(owner, _)| *owner);
    let named: Vec<&Owner> = std::iter::once(target)
        .chain(beside)
        .chain([&Owner::Observer, &Owner::Host])
        .collect();
    let mut layers: BTreeMap<(usize, Stage), Vec<f64>> = BTreeMap::new();
    let mut known = 0;
    for second in 0..counted.seconds {
        let advance = |owner: &Owner, name: &str| counted.advance(owner, name, second);
        let mut totals = [counter::CPU_TOTAL, counter::CPU_DOMAIN].into_iter();
        if totals.all(|name| advance(target, name).is_none()) {
            continue;
        }
        let window = Window {
            span: SECOND,
            processors: counted.processors,
            target,
            is_vm: counted.has(target, counter::CPU_VCPU),
            others: &others,
            advance: &advance,
        };
        let Some(parts) = window.parts() else {
            continue;
        };
        known = second + 1;
        for part in parts {
            let place = named.iter().position(|owner| *owner == part.owner);
            let key = (place.unwrap_or_default(), part.stage);
            let cores = layers
                .entry(key)
                .or_insert_with(|| vec![0.0; counted.seconds]);
            if let Some(cores) = cores.get_mut(second) {
                *cores = part.time.as_secs_f64();
            }
        }
    }
    layers.retain(|_, cores| cores.iter().any(|cores| *cores > 0.001));
    let drawn = layers
        .into_iter()
        .filter_map(|((actor, stage), mut cores)| {
            let actor = *named.get(actor)?;
            cores.truncate(known);
            Some(Layer {
                actor: actor.to_string(),
                stage,
                source: counted.source(actor, stage),
                cores,
            })
        });
    drawn.collect()
}

/// The target, its clients and its neighbours on its host.
fn owners(trial: &Trial) -> (Owner, Vec<Owner>, Vec<Owner>) {
    let named = |actor: &Actor| Owner::named(&actor.name);
    let target = trial.actors.iter().find(|actor| actor.role == Role::Target);
    let target = target.map_or(Owner::Target, named);
    let here = trial.actors.iter().filter(|actor| actor.place == "local");
    let beside = here.filter(|actor| actor.role != Role::Target);
    let is_its_client = |actor: &&Actor| {
        let drives = actor.drives.as_deref();
        actor.role == Role::Client && drives.is_none_or(|guest| Owner::named(guest) == target)
    };
    let (clients, neighbours): (Vec<&Actor>, Vec<&Actor>) = beside.partition(is_its_client);
    // A trial without actors has one client.
    let unnamed = trial.actors.is_empty().then_some(Owner::Client);
    let clients = unnamed.into_iter().chain(clients.into_iter().map(named));
    let neighbours = neighbours.into_iter().map(named);
    (target, clients.collect(), neighbours.collect())
}

/// A counter and its increase in each second.
type Advances<'a> = (&'a Samples, Vec<Option<Nanoseconds>>);

/// The counters of a trial by owner and name, in the seconds of its window.
struct Counted<'a> {
    series: HashMap<&'a Owner, HashMap<&'a str, Advances<'a>>>,
    seconds: usize,
    processors: usize,
    /// Whether the target's host is another machine, so that every owner but the target is one of that machine.
    is_elsewhere: bool,
}

impl<'a> Counted<'a> {
    fn from_trial(trial: &Trial, samples: &'a [Samples]) -> Self {
        let span = trial.window.1.saturating_since(trial.window.0);
        let seconds = span.0.checked_div(SECOND.0).unwrap_or(0).min(MOST_SECONDS);
        let mut series: HashMap<&Owner, HashMap<&str, Advances<'_>>> = HashMap::new();
        for one in samples.iter().filter(|one| is_time(one)) {
            let advances = advances(&one.points, trial.window.0, seconds);
            let of_owner = series.entry(&one.series.owner).or_default();
            of_owner.insert(&one.series.metric, (one, advances));
        }
        let mut counted = Self {
            series,
            seconds: usize::try_from(seconds).unwrap_or(0),
            processors: 1,
            is_elsewhere: false,
        };
        let there = Owner::Host.on_machine_of(&Owner::Target);
        counted.is_elsewhere = counted.has(&there, counter::CPU_IDLE);
        counted.processors = counted.processors_of(trial);
        counted
    }

    fn find(&self, owner: &Owner, name: &str) -> Option<&Advances<'a>> {
        let series = if self.is_elsewhere && *owner != Owner::Target {
            self.series.get(&owner.on_machine_of(&Owner::Target))
        } else {
            self.series.get(owner)
        };
        series?.get(name)
    }

    fn has(&self, owner: &Owner, name: &str) -> bool {
        self.find(owner, name).is_some()
    }

    fn advance(&self, owner: &Owner, name: &str, second: usize) -> Option<Nanoseconds> {
        match self.find(owner, name) {
            Some((_, advances)) => advances.get(second).copied().flatten(),
            // Without the host's counters, the rest and stolen time are unknown.
            None if (owner, name) == (&Owner::Host, counter::CPU_IDLE) => {
                let processors = u64::try_from(self.processors).unwrap_or(u64::MAX);
                Some(Nanoseconds(SECOND.0.saturating_mul(processors)))
            }
            None => None,
        }
    }

    /// Number of the host's processors. Records without it give the mean processor time per second over all columns.
    fn processors_of(&self, trial: &Trial) -> usize {
        let known = trial.observation.processors;
        let there = || trial.environment.get("host.processors")?.parse().ok();
        if let Some(processors) = known {
            return processors;
        }
        if self.is_elsewhere
            && let Some(processors) = there()
        {
            return processors;
        }
        let whole = COLUMNS.iter().chain(&OF_HOSTS[..3]);
        let times = whole.filter_map(|name| self.find(&Owner::Host, name));
        let mut sums = vec![0.0; self.seconds];
        for (_, advances) in times {
            for (sum, advance) in sums.iter_mut().zip(advances) {
                *sum += advance.unwrap_or_default().as_secs_f64();
            }
        }
        let mean = stats::mean(&sums).unwrap_or_default();
        mean.round().clamp(1.0, 1e6) as usize
    }

    fn source(&self, actor: &Owner, stage: Stage) -> Source {
        let name = match stage {
            Stage::Vcpu if self.has(actor, counter::CPU_DOMAIN) => counter::CPU_DOMAIN,
            Stage::Vcpu => counter::CPU_VCPU,
            Stage::Rest => counter::CPU_IDLE,
            _ => counter::CPU_TOTAL,
        };
        let found = self.find(actor, name);
        let found = found.or_else(|| self.find(actor, counter::CPU_TOTAL));
        found.map_or(Source::Measured, |(samples, _)| samples.series.source)
    }
}

fn is_time(samples: &Samples) -> bool {
    samples.series.unit.base == Base::Nanosecond && samples.series.kind == SeriesKind::Counter
}

/// Increase of a counter in each of the seconds, interpolated between two samples; `None` for a second outside of the
/// samples.
fn advances(
    points: &[(Nanoseconds, f64)],
    from: Nanoseconds,
    seconds: u64,
) -> Vec<Option<Nanoseconds>> {
    (0..seconds)
        .map(|second| {
            let begin = Nanoseconds(from.0.saturating_add(second * SECOND.0));
            let end = begin + SECOND;
            let before = points.partition_point(|(at, _)| *at <= begin);
            let after = points.partition_point(|(at, _)| *at < end);
            let around = points.get(before.saturating_sub(1)..points.len().min(after + 1))?;
            let rates = stats::rates(around, SeriesKind::Counter, (begin, end), SECOND);
            let rate = rates.first()?.round().max(0.0);
            Some(Nanoseconds(rate as u64))
        })
        .collect()
}

/// The host's power over time: the sum of the series that the record names as those of `power.mean`. `None` where one of
/// them is absent, and in records that name none.
fn watts(trial: &Trial, samples: &[Samples]) -> Option<(Vec<f64>, Source)> {
    let known = trial.metrics.get(metric::POWER_MEAN.name)?;
    let rates = |name: &String| {
        let mut of_host = samples
            .iter()
            .filter(|samples| samples.series.owner == Owner::Host);
        let found = of_host.find(|samples| samples.series.metric == *name)?;
        let series = &found.series;
        let base = match series.kind {
            SeriesKind::Counter => Base::Joule,
            SeriesKind::Gauge => Base::Watt,
        };
        (series.unit.base == base)
            .then(|| stats::rates(&found.points, series.kind, trial.window, SECOND))
    };
    let named = trial.observation.energy.iter();
    let parts = named.map(rates).collect::<Option<Vec<_>>>()?;
    (!parts.is_empty()).then(|| (sum(&parts), known.source))
}

fn sum(parts: &[Vec<f64>]) -> Vec<f64> {
    let seconds = parts.iter().map(Vec::len).max().unwrap_or(0);
    let of = |second: usize| parts.iter().filter_map(|part| part.get(second)).sum();
    (0..seconds).map(of).collect()
}

#[cfg(test)]
mod tests;
