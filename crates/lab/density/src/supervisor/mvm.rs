// SPDX-License-Identifier: Apache-2.0
//! Guests that are micro VMs of vtax's monitor, live or parked.

use super::error::{GuestError, Result};
use super::individual::ANSWER_LIMIT;
use super::{Guard, LONGEST_ANSWER, Population, Tally, micros};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
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
    socket: PathBuf,
    monitor: Option<Monitor>,
    /// The monitor of a guest that answers probes, and its socket; `None` where the guests' own image answers.
    probe: Option<(Monitor, PathBuf)>,
    connection: Option<UnixStream>,
    random: fastrand::Rng,
}

impl MicroVms {
    pub(super) fn new(holding: Holding, image: &str, first: u32, maximum: u32) -> Result<Self> {
        let image = Image::open(image)?;
        let socket = |what: &str| PathBuf::from(format!("/run/density-{what}-{first}.socket"));
        let probe = if ["web", "echo"].contains(&image.name()) {
            None
        } else {
            let web = Image::open("web")?;
            let plan = Plan {
                image: web,
                first: 0,
                count: 1,
                holding,
            };
            let socket = socket("probe");
            Some((Monitor::start(plan, 1, &socket)?, socket))
        };
        let plan = Plan {
            image,
            first,
            count: maximum,
            holding,
        };
        let socket = socket("guests");
        let monitor = Some(Monitor::start(plan.clone(), 0, &socket)?);
        Ok(Self {
            plan,
            socket,
            monitor,
            probe,
            connection: None,
            random: fastrand::Rng::with_seed(1),
        })
    }

    fn request(&mut self, guest: u32) -> Result<()> {
        let peer = || format!("guest {guest}");
        let failed = |cause: io::Error| GuestError::no_answer(peer())(cause);
        let mut stream = match self.connection.take() {
            Some(stream) => stream,
            None => {
                let socket = self
                    .probe
                    .as_ref()
                    .map_or(&self.socket, |(_, socket)| socket);
                let stream = UnixStream::connect(socket).map_err(failed)?;
                stream
                    .set_read_timeout(Some(ANSWER_LIMIT))
                    .map_err(failed)?;
                stream
            }
        };
        stream
            .write_all(format!("GET /vm/{guest}/hi HTTP/1.1\r\n\r\n").as_bytes())
            .map_err(failed)?;
        let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match http_answer(&received) {
                Some((200, _)) => {
                    self.connection = Some(stream);
                    return Ok(());
                }
                Some((status, body)) => {
                    let body = shown(String::from_utf8_lossy(&body).trim());
                    return Err(GuestError::WrongAnswer {
                        peer: peer(),
                        answer: format!("{status}: {body}"),
                    });
                }
                None => {}
            }
            match stream.read(&mut buffer).map_err(failed)? {
                0 => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                _ if received.len() > LONGEST_ANSWER => {
                    return Err(failed(io::ErrorKind::InvalidData.into()));
                }
                count => received.extend(buffer.iter().take(count)),
            }
        }
    }
}

impl Population for MicroVms {
    fn count(&self) -> u32 {
        self.monitor
            .as_ref()
            .map_or(0, |monitor| monitor.population.census().booted)
    }

    fn grow(&mut self, to: u32, guard: &mut Guard, tally: &mut Tally) -> Result<()> {
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
                tally.boot.push(each);
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
        self.connection = None;
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
        let began = Instant::now();
        self.request(guest)?;
        Ok(began.elapsed())
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
