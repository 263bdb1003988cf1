//! `idle`: no load at all. What a platform costs when it does nothing.

use super::output::{json, positive};
use super::{Extent, Load, LoadClient, Service, Timing, WorkDone, Workload, WorkloadResult};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use vtax_guest::platform::Target;
use vtax_host::HostError;
use vtax_host::settings::{Parameter, Settings};
use vtax_report::results::Work;
use vtax_units::{Base, Unit};

/// See the module.
pub struct Idle;

#[derive(Serialize, Deserialize)]
struct Output {
    seconds: f64,
}

impl Workload for Idle {
    fn kind(&self) -> &'static str {
        "idle"
    }

    fn summary(&self) -> &'static str {
        "the booted target does nothing"
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[]
    }

    fn extent(&self, _settings: &Settings) -> Extent {
        Extent::FixedDuration
    }

    fn serve(
        &self,
        _target: &mut dyn Target,
        _client: &dyn LoadClient,
        _settings: &Settings,
    ) -> Result<Service, HostError> {
        Ok(Service::default())
    }

    fn drive(
        &self,
        _target: &mut dyn Target,
        _client: &dyn LoadClient,
        _service: Service,
        _settings: &Settings,
        timing: Timing,
    ) -> Result<Box<dyn Load>, HostError> {
        Ok(Box::new(Pause {
            begun: Instant::now(),
            length: timing.warmup + timing.duration,
        }))
    }

    fn parse(
        &self,
        raw: &[u8],
        _settings: &Settings,
        _timing: Timing,
    ) -> Result<WorkloadResult, HostError> {
        let output: Output = json("idle", raw)?;
        positive("idle", "seconds", Some(output.seconds))?;
        let work = Work {
            amount: 1.0,
            unit: Unit::of(Base::Second),
            phrase: "stay idle for 1 s".to_owned(),
        };
        Ok(WorkloadResult {
            work: Some(WorkDone::Rate(work)),
            ..WorkloadResult::default()
        })
    }
}

/// Time that passes.
struct Pause {
    begun: Instant,
    length: Duration,
}

impl Load for Pause {
    fn poll(&mut self, _target: &mut dyn Target) -> Result<Option<Vec<u8>>, HostError> {
        let seconds = self.begun.elapsed().as_secs_f64();
        if seconds < self.length.as_secs_f64() {
            return Ok(None);
        }
        let text = serde_json::to_vec(&Output { seconds })
            .map_err(|cause| HostError::Other(cause.to_string()))?;
        Ok(Some(text))
    }
}
