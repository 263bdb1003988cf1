// SPDX-License-Identifier: Apache-2.0
//! A test that a meter moves under load. A meter that does not move counts as absent: inside VMs, energy counters are
//! often present and constantly 0.

use super::load::Load;
use super::{Absent, Discovery, Domain, Meter, host_domains, joules_metric};
use std::time::Duration;
use vtax_core::owner::Owner;
use vtax_core::{Joules, Nanoseconds, Watts};
use vtax_observe::clock::Clock;
use vtax_observe::{ObserveError, Readings, Snapshot};

/// The environment of a probe or a calibration; simulated in tests.
pub struct Bench<'a> {
    /// Makes the processors busy.
    pub load: &'a mut dyn Load,
    /// Stamps readings.
    pub clock: &'a dyn Clock,
    /// Lets time pass: `std::thread::sleep`.
    pub wait: &'a mut dyn FnMut(Duration),
}

/// The behaviour of a meter while every processor was busy.
#[derive(Debug, Clone, PartialEq)]
pub enum Probe {
    /// It moved: the mean power over the time of the load, summed over the host's domains (all
    /// domains where none covers a host).
    Moves(Watts),
    /// It did not move at all.
    Still,
}

/// The duration of the load, longer than the slowest meter needs for two readings.
const LONG_ENOUGH: Duration = Duration::from_secs(3);

/// Loads every processor for three seconds and reports whether `meter` moves.
///
/// # Errors
/// When the meter cannot be read.
pub fn probe_under_load(
    meter: &mut dyn Meter,
    bench: &mut Bench<'_>,
) -> Result<Probe, ObserveError> {
    bench.load.set(1.0);
    let ends = take(meter, bench).and_then(|before| {
        (bench.wait)(LONG_ENOUGH);
        Ok((before, take(meter, bench)?))
    });
    bench.load.set(0.0);
    let (before, after) = ends?;
    let Some(used) = energy_since(meter, &before, &after) else {
        // A missing domain fails again here, and the error gives the reason.
        let now = bench.clock.now();
        meter.read(now, &mut Readings::default())?;
        return Err(ObserveError::unavailable(
            format!("every domain of the meter {}", meter.name()),
            "one of them failed while the load ran",
        ));
    };
    let power = used / after.at.saturating_since(before.at);
    Ok(if power.0.is_finite() && power.0 > 0.0 {
        Probe::Moves(power)
    } else {
        Probe::Still
    })
}

/// Probes every measured meter and marks those that do not move as absent.
pub fn keep_moving(found: Vec<Discovery>, bench: &mut Bench<'_>) -> Vec<Discovery> {
    let probe = |found: Discovery| match found {
        Ok(mut meter) if meter.source() == vtax_core::Source::Measured => {
            let name = super::discovery::static_name(meter.name());
            match probe_under_load(meter.as_mut(), bench) {
                Ok(Probe::Moves(_)) => Ok(meter),
                Ok(Probe::Still) => Err(still(name)),
                Err(error) => Err(Absent::because(name, error.to_string()).unreadable()),
            }
        }
        other => other,
    };
    found.into_iter().map(probe).collect()
}

fn still(meter: &'static str) -> Absent {
    Absent::because(
        meter,
        format!(
            "its counters did not move in {} s with every processor busy, as inside most VMs",
            LONG_ENOUGH.as_secs()
        ),
    )
}

/// Reads a meter once. A domain that cannot be read does not hide the others, but a reading without any value is an
/// error.
pub(super) fn take(meter: &mut dyn Meter, bench: &Bench<'_>) -> Result<Snapshot, ObserveError> {
    let mut readings = Readings::default();
    let now: Nanoseconds = bench.clock.now();
    let read = meter.read(now, &mut readings);
    if readings.values().next().is_none() {
        read?;
    }
    Ok(Snapshot::from_readings(now, &readings))
}

/// The energy of the host's domains of `meter` between two readings (of all its domains where none cover a host);
/// `None` where one of these domains is missing, since a part of the energy would be wrong.
pub(super) fn energy_since(
    meter: &dyn Meter,
    before: &Snapshot,
    after: &Snapshot,
) -> Option<Joules> {
    let since = |domain: &Domain| {
        let metric = joules_metric(meter.name(), &domain.name);
        Some(after.since(before, &Owner::Host, &metric)?.value)
    };
    let (host, _) = host_domains(meter.domains());
    if host.is_empty() {
        return Some(Joules(meter.domains().iter().filter_map(since).sum()));
    }
    let mut host = host.into_iter();
    host.try_fold(0.0, |sum, domain| Some(sum + since(domain)?))
        .map(Joules)
}
