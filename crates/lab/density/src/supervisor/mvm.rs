// SPDX-License-Identifier: Apache-2.0
//! Guests that are micro VMs of vtax's monitor, live or parked.

use super::error::{GuestError, Result};
use super::individual::Probes;
use super::{Answer, Guard, Population, Spec, micros};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_host::HostError;
use vtax_host::untrusted::shown;
use vtax_mvm::front::router::http_answer;
use vtax_mvm::image::Image;
use vtax_mvm::machine::kvm::Host;
use vtax_mvm::population::worker::{Addresses, Workers};
use vtax_mvm::population::{Holding, Plan, Population as MonitorPopulation};

/// Time without a boot after which the monitor counts as stuck.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);

/// One monitor with its workers.
#[derive(Debug)]
struct Monitor {
    population: Arc<MonitorPopulation>,
    workers: Workers,
}

impl Monitor {
    fn start(plan: Plan, admitted: u32, socket: &Path) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let population = Arc::new(MonitorPopulation::new(plan)?);
        population.admit(admitted);
        let addresses = Addresses {
            http: None,
            unix: Some(socket.to_owned()),
        };
        let workers = Workers::start(Arc::clone(&population), cores, &addresses)?;
        Ok(Self {
            population,
            workers,
        })
    }
}

/// The micro VMs of this process.
#[derive(Debug)]
pub(super) struct MicroVms {
    plan: Plan,
    monitor: Option<Monitor>,
    /// The monitor of a guest that answers probes; `None` where the guests' own image answers.
    probe: Option<Monitor>,
    probes: Probes,
    random: fastrand::Rng,
}

impl MicroVms {
    pub(super) fn new(live: bool, image: &str, spec: &Spec) -> Result<Self> {
        let holding = if live { Holding::Live } else { Holding::Parked };
        let (image, first) = (Image::open(image)?, spec.first);
        let answers = ["web", "echo"].contains(&image.name());
        let socket = |what: &str| PathBuf::from(format!("/run/density-{what}-{first}.socket"));
        let (guests, probe) = (socket("guests"), socket("probe"));
        let plan = Plan {
            image,
            first,
            count: spec.maximum,
            holding,
        };
        let monitor = Monitor::start(plan.clone(), 0, &guests)?;
        let of_probe = if answers {
            None
        } else {
            let plan = Plan {
                image: Image::open("web")?,
                first: 0,
                count: 1,
                holding,
            };
            Some(Monitor::start(plan, 1, &probe)?)
        };
        Ok(Self {
            plan,
            monitor: Some(monitor),
            probe: of_probe,
            probes: Probes::to(if answers { &guests } else { &probe }),
            random: fastrand::Rng::with_seed(1),
        })
    }
}

impl Population for MicroVms {
    fn count(&self) -> u32 {
        self.monitor
            .as_ref()
            .map_or(0, |monitor| monitor.population.census().booted)
    }

    fn grow(&mut self, to: u32, guard: &mut Guard, answer: &mut Answer) -> Result<()> {
        let Some(monitor) = &self.monitor else {
            return Err(GuestError::Stopped);
        };
        let before = monitor.population.census().booted;
        let (mut booted, mut since) = (before, Instant::now());
        monitor.workers.admit(to.min(self.plan.count));
        loop {
            std::thread::sleep(Duration::from_millis(5));
            let census = monitor.population.census();
            if census.booted > booted {
                // Several guests may boot between two checks; their mean is one value.
                let each = micros(since.elapsed()) / f64::from(census.booted - booted);
                answer.boot.push(each);
                (booted, since) = (census.booted, Instant::now());
            }
            if census.dead > 0 {
                return Err(GuestError::Died(census.dead));
            }
            if monitor.workers.stopped() {
                let outcome = self.monitor.take().map(|monitor| monitor.workers.stop());
                return Err(match outcome {
                    Some(Err(cause)) => cause.into(),
                    _ => GuestError::Stopped,
                });
            }
            if booted >= to.min(self.plan.count) {
                return Ok(());
            }
            if !guard.permits() {
                monitor.workers.admit(booted);
                return Ok(());
            }
            if since.elapsed() > BOOT_TIMEOUT {
                return Err(GuestError::Host(HostError::Timeout {
                    what: "the boot of a further guest".to_owned(),
                    seconds: BOOT_TIMEOUT.as_secs(),
                    evidence: String::new(),
                }));
            }
        }
    }

    /// Ends all guests: the monitor cannot end them individually.
    fn shrink(&mut self, to: u32) -> Result<()> {
        if to >= self.count() {
            return Ok(());
        }
        self.probes.close();
        match self.monitor.take() {
            Some(monitor) => Ok(monitor.workers.stop()?),
            None => Ok(()),
        }
    }

    fn ask(&mut self) -> Result<Duration> {
        let guest = match &self.probe {
            Some(_) => 0,
            None if self.count() == 0 => return Err(GuestError::Empty),
            None => self.plan.first + self.random.u32(..self.count()),
        };
        let peer = format!("guest {guest}");
        let request = format!("GET /vm/{guest}/hi HTTP/1.1\r\n\r\n");
        let answered = self.probes.request(request.as_bytes(), http_answer);
        match answered.map_err(GuestError::no_answer(&peer))? {
            ((200, _), took) => Ok(took),
            ((status, body), _) => {
                let body = shown(String::from_utf8_lossy(&body).trim());
                let answer = format!("{status}: {body}");
                Err(GuestError::WrongAnswer { peer, answer })
            }
        }
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let state = match self.plan.holding {
            Holding::Live => "live",
            Holding::Parked => "parked",
        };
        [
            fact("kvm.backend", Host::backend().to_owned()),
            fact("mvm.image", self.plan.image.name().to_owned()),
            fact("mvm.state", state.to_owned()),
        ]
        .into()
    }
}
