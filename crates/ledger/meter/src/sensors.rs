// SPDX-License-Identifier: Apache-2.0
//! Sensors that are read when their meter is read: those of powercap, perf, hwmon, NVML and batteries.

use super::series::MeterSeries;
use super::{Domain, EnergyCounter, Meter, Part, PowerIntegral};
use std::fmt;
use std::path::PathBuf;
use vtax_core::{Nanoseconds, Source, Watts};
use vtax_observe::{Instrument, ObserveError, Readings};

/// The longest time that a power is valid; a host that stalls for longer has used an unknown amount of energy. Some
/// batteries' chips return a mean over half a minute.
const VALID_FOR: Nanoseconds = Nanoseconds(60_000_000_000);

/// Reads a sensor.
pub(super) type Read<T> = Box<dyn FnMut() -> Result<T, ObserveError> + Send>;

/// The sensors of one meter, each of one domain.
pub struct Sensors {
    name: &'static str,
    domains: Vec<Domain>,
    sensors: Vec<Sensor>,
    pub(super) caveats: Vec<String>,
    /// Whether the energy during a failed reading of a power is not counted, rather than taken to go on.
    pub(super) stops_on_failure: bool,
}

struct Sensor {
    /// The file or the device, for messages.
    path: PathBuf,
    reading: Reading,
    joules: MeterSeries,
    watts: MeterSeries,
}

/// What a sensor shows.
pub(super) enum Reading {
    /// Energy that the device counts, and its power where it shows that too.
    Counted(EnergyCounter, Read<u64>, Option<Read<Watts>>),
    /// Power, integrated here.
    Shown(PowerIntegral, Read<Watts>),
}

impl Reading {
    /// The power of a part of the machine.
    pub(super) fn of_power(part: Part, power: Read<Watts>) -> Self {
        Self::Shown(PowerIntegral::new(VALID_FOR, part.most()), power)
    }
}

impl fmt::Debug for Sensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.name)
            .field("domains", &self.domains)
            .finish_non_exhaustive()
    }
}

impl Sensors {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            domains: Vec::new(),
            sensors: Vec::new(),
            caveats: Vec::new(),
            stops_on_failure: false,
        }
    }

    pub(super) fn add(&mut self, domain: Domain, path: impl Into<PathBuf>, reading: Reading) {
        self.sensors.push(Sensor {
            path: path.into(),
            reading,
            joules: MeterSeries::joules(self.name, &domain.name, Source::Measured),
            watts: MeterSeries::watts(self.name, &domain.name, Source::Measured),
        });
        self.domains.push(domain);
    }
}

impl Sensor {
    fn read(
        &mut self,
        now: Nanoseconds,
        into: &mut Readings,
        stops_on_failure: bool,
    ) -> Result<(), ObserveError> {
        match &mut self.reading {
            Reading::Counted(counter, count, power) => {
                if let Some(Ok(power)) = power.as_mut().map(|power| power()) {
                    self.watts.record_watts(into, power);
                }
                let change = counter.update(now, count()?);
                self.joules.record_joules(into, counter.total());
                counter.complaint(&self.path, change).map_or(Ok(()), Err)
            }
            Reading::Shown(integral, power) => {
                let read = power();
                if stops_on_failure && read.is_err() {
                    // No power is a possible power.
                    let _ = integral.reading(now, Watts(0.0));
                }
                let power = read?;
                let taken = integral.reading(now, power);
                if taken.is_ok() {
                    self.watts.record_watts(into, power);
                }
                self.joules.record_joules(into, integral.total_at(now));
                taken.map_err(|_| {
                    let power = power.0;
                    let detail =
                        format!("{power:.0} W is not what any such device draws; not counted");
                    ObserveError::format(&self.path, detail)
                })
            }
        }
    }
}

impl Instrument for Sensors {
    fn name(&self) -> &str {
        self.name
    }

    /// Reads every sensor. The first error is returned.
    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut outcome = Ok(());
        for sensor in &mut self.sensors {
            let read = sensor.read(now, into, self.stops_on_failure);
            outcome = outcome.and(read);
        }
        outcome
    }
}

impl Meter for Sensors {
    fn domains(&self) -> &[Domain] {
        &self.domains
    }

    fn caveats(&self) -> &[String] {
        &self.caveats
    }
}
