// SPDX-License-Identifier: Apache-2.0
//! The measured energy of the host. Modelled energy is left out, since it follows from processor time.

use vtax_core::owner::Owner;
use vtax_core::{Series, Source};
use vtax_host::meters;
use vtax_host::{HostError, Roots};
use vtax_meter::{Meter, host_energy};
use vtax_observe::Readings;
use vtax_observe::clock::{Clock, SystemClock};

/// The meters of this host.
pub struct Energy {
    meters: Vec<Box<dyn Meter>>,
    series: Vec<String>,
    readings: Readings,
}

impl Energy {
    /// Opens the meters that measure this host; `None` on a host without any.
    ///
    /// # Errors
    /// When the environment variables of meters are not valid.
    pub fn open(roots: &Roots) -> Result<Option<Self>, HostError> {
        let meters: Vec<Box<dyn Meter>> = meters::list(roots)?
            .into_iter()
            .flatten()
            .filter(|meter| meter.source() == Source::Measured)
            .collect();
        let series = host_energy(meters.iter().map(AsRef::as_ref)).map(|energy| energy.series);
        Ok(series.map(|series| Self {
            meters,
            series,
            readings: Readings::default(),
        }))
    }

    /// Joules so far; `None` when a meter cannot be read.
    pub fn read(&mut self) -> Option<f64> {
        let now = SystemClock.now();
        self.readings.clear_values();
        for meter in &mut self.meters {
            meter.read(now, &mut self.readings).ok()?;
        }
        let wanted =
            |series: &Series| series.owner == Owner::Host && self.series.contains(&series.metric);
        let values: Vec<f64> = self
            .readings
            .values()
            .filter(|(_, series, _)| wanted(series))
            .map(|(.., value)| value)
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }
}
