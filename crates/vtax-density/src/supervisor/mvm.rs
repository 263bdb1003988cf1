//! Micro VMs in vtax's own monitor, live or parked.

use super::singly::PATIENCE;
use super::{Guard, LONGEST_ANSWER, Population, Tally, micros};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_host::untrusted::shown;
use vtax_mvm::front::router::http_answer;
use vtax_mvm::image::Image;
use vtax_mvm::machine::kvm::Host;
use vtax_mvm::population::worker::{Addresses, Workers};
use vtax_mvm::population::{Holding, Plan, Population as Monitor};

/// How long no guest may boot before the monitor counts as stuck.
const STUCK: Duration = Duration::from_secs(60);

/// One monitor with its workers.
#[derive(Debug)]
struct Running {
    monitor: Arc<Monitor>,
    workers: Workers,
}

impl Running {
    fn start(plan: Plan, admitted: u32, socket: &Path) -> Result<Self, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let monitor = Arc::new(Monitor::new(plan).map_err(|cause| cause.to_string())?);
        monitor.admit(admitted);
        let addresses = Addresses {
            http: None,
            unix: Some(socket.to_owned()),
        };
        let workers = Workers::start(Arc::clone(&monitor), cores, &addresses)
            .map_err(|cause| cause.to_string())?;
        Ok(Self { monitor, workers })
    }
}

/// Micro VMs of this process.
#[derive(Debug)]
pub(super) struct MicroVms {
    plan: Plan,
    socket: PathBuf,
    running: Option<Running>,
    /// A guest that answers, where the others' image does not.
    probe: Option<(Running, PathBuf)>,
    connection: Option<UnixStream>,
    random: fastrand::Rng,
}

impl MicroVms {
    pub(super) fn new(
        holding: Holding,
        image: &str,
        first: u32,
        maximum: u32,
    ) -> Result<Self, String> {
        let image = Image::open(image).map_err(|cause| cause.to_string())?;
        let socket = |what: &str| PathBuf::from(format!("/run/density-{what}-{first}.socket"));
        let probe = if ["web", "echo"].contains(&image.name()) {
            None
        } else {
            let web = Image::open("web").map_err(|cause| cause.to_string())?;
            let plan = Plan {
                image: web,
                first: 0,
                count: 1,
                holding,
            };
            let socket = socket("probe");
            Some((Running::start(plan, 1, &socket)?, socket))
        };
        let plan = Plan {
            image,
            first,
            count: maximum,
            holding,
        };
        let socket = socket("guests");
        let running = Some(Running::start(plan.clone(), 0, &socket)?);
        Ok(Self {
            plan,
            socket,
            running,
            probe,
            connection: None,
            random: fastrand::Rng::with_seed(1),
        })
    }

    fn request(&mut self, guest: u32) -> Result<(), String> {
        let failed = |cause: std::io::Error| format!("guest {guest} gave no answer: {cause}");
        let mut stream = match self.connection.take() {
            Some(stream) => stream,
            None => {
                let socket = self
                    .probe
                    .as_ref()
                    .map_or(&self.socket, |(_, socket)| socket);
                let stream = UnixStream::connect(socket).map_err(failed)?;
                stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
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
                    return Err(format!(
                        "guest {guest} answered {status}: {}",
                        shown(String::from_utf8_lossy(&body).trim())
                    ));
                }
                None => {}
            }
            match stream.read(&mut buffer).map_err(failed)? {
                0 => return Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
                _ if received.len() > LONGEST_ANSWER => {
                    return Err(failed(std::io::ErrorKind::InvalidData.into()));
                }
                count => received.extend(buffer.iter().take(count)),
            }
        }
    }
}

impl Population for MicroVms {
    fn count(&self) -> u32 {
        self.running
            .as_ref()
            .map_or(0, |running| running.monitor.census().booted)
    }

    fn grow(&mut self, to: u32, guard: &mut Guard, tally: &mut Tally) -> Result<(), String> {
        let Some(running) = &self.running else {
            return Err("the population has ended".to_owned());
        };
        let before = running.monitor.census().booted;
        let (mut seen, mut since) = (before, Instant::now());
        running.workers.admit(to.min(self.plan.count));
        loop {
            std::thread::sleep(Duration::from_millis(5));
            let census = running.monitor.census();
            if census.booted > seen {
                // Many boot between two looks: each then counts with the mean.
                let each = micros(since.elapsed()) / f64::from(census.booted - seen);
                tally.boot.push(each);
                (seen, since) = (census.booted, Instant::now());
            }
            if census.dead > 0 {
                return Err(format!(
                    "{} died while booting",
                    vtax_units::counted(census.dead, "guest")
                ));
            }
            if running.workers.stopped() {
                let cause = self.running.take().map(|running| running.workers.stop());
                return Err(match cause {
                    Some(Err(cause)) => cause.to_string(),
                    _ => "the monitor stopped".to_owned(),
                });
            }
            if seen >= to.min(self.plan.count) {
                return Ok(());
            }
            if !guard.permits() {
                running.workers.admit(seen);
                return Ok(());
            }
            if since.elapsed() > STUCK {
                return Err(format!("no guest booted for {} s", STUCK.as_secs()));
            }
        }
    }

    /// The monitor ends guests all at once.
    fn shrink(&mut self, to: u32) -> Result<(), String> {
        if to >= self.count() {
            return Ok(());
        }
        self.connection = None;
        match self.running.take() {
            Some(running) => running.workers.stop().map_err(|cause| cause.to_string()),
            None => Ok(()),
        }
    }

    fn ask(&mut self) -> Result<Duration, String> {
        let guest = match &self.probe {
            Some(_) => 0,
            None if self.count() == 0 => return Err("there is no guest to ask".to_owned()),
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
