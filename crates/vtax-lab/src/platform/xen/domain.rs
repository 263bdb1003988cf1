//! One booted domain.

use super::config::{self, Files, Size};
use super::stat::DomainCpu;
use super::xl;
use crate::LabError;
use crate::cell::Cell;
use crate::image;
use crate::platform::qemu::agent::{Agent, Running};
use crate::platform::qemu::{inner, kvm};
use crate::platform::scratch::MOUNT_POINT;
use crate::platform::{CommandLine, Finished, GuestFiles, Job, Target};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use vtax_observe::{Instrument, NetDevice, Subject};
use vtax_units::Source;

/// A guest whose agent has not answered by then will not.
const BOOT_LIMIT: Duration = Duration::from_secs(90);

/// Destroying takes a second or two, mostly for the back ends to let go.
const DESTROY_LIMIT: Duration = Duration::from_secs(30);

/// What the guest's init says when it gives up.
const INIT_FAILED: &str = "vtax-init: FAILED";

/// Destroys the domain and removes its files when its input ends: a domain outlives the processes
/// of Dom0, so something must wait for the end of this one, however that comes.
const GUARDIAN: &str = r#"read -r _; xl destroy "$1" 2>/dev/null; rm -rf -- "$2""#;

/// A booted domain.
pub(super) struct Domain {
    guardian: Guardian,
    id: u32,
    agent: Agent,
    jobs: BTreeMap<u64, Running>,
    next_job: u64,
    address: IpAddr,
    subject: Subject,
    environment: BTreeMap<String, String>,
}

impl Domain {
    /// Boots a domain until its agent answers.
    pub(super) fn boot(cell: &Cell, guest: &GuestFiles, size: Size) -> Result<Self, LabError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "vtax-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let directory = PathBuf::from(format!("/run/{name}"));
        let started = Instant::now();
        // First, so that there is never a domain without it.
        let mut guardian = Guardian::start(&name, &directory)?;
        fs::create_dir_all(&directory).map_err(LabError::file("create", &directory))?;
        let file = |name: &str| directory.join(name);
        let (initrd, script, agent) = (file("initrd"), file("vif"), file("agent.sock"));
        let write = |path: &Path, bytes: &[u8]| {
            fs::write(path, bytes).map_err(LabError::file("write", path))
        };
        write(&initrd, &image::paravirtual(&guest.root)?)?;
        write(&script, config::hotplug_script(cell).as_bytes())?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
            .map_err(LabError::file("write", &script))?;
        let text = config::domain(
            &name,
            guest,
            size,
            cell.config().link.mtu,
            Files {
                initrd: &initrd,
                script: &script,
                agent: &agent,
                scratch: cell.config().scratch.as_deref(),
            },
        )?;
        let path = file("domain.cfg");
        write(&path, text.as_bytes())?;
        xl(&["create", "-q", &path.to_string_lossy()])?;
        let id = xl(&["domid", &name])?;
        let id: u32 = id.trim().parse().map_err(|_| LabError::Protocol {
            peer: "xl domid".into(),
            detail: format!("{:?} is not a domain's number", id.trim()),
        })?;
        guardian.follow_console()?;
        let agent = guardian.wait_for_agent(&agent)?;
        let boot = started.elapsed();

        let subject = Subject {
            owner: "target".into(),
            net_devices: vec![NetDevice {
                namespace_of: cell.holder_pid(),
                name: format!("vif{id}.0"),
            }],
            ..Subject::default()
        };
        let version = xl(&["info", "xen_version"]).unwrap_or_default();
        let environment = [
            ("xen.version", version.trim().to_owned()),
            ("xen.type", "pv".to_owned()),
            ("vm.config", text),
            ("vm.boot_seconds", format!("{:.3}", boot.as_secs_f64())),
        ];
        Ok(Self {
            guardian,
            id,
            agent,
            jobs: BTreeMap::new(),
            next_job: 0,
            address: IpAddr::V4(cell.target_address().0),
            subject,
            environment: environment
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        })
    }
}

/// Whoever destroys the domain in the end, and what it has printed till then.
struct Guardian {
    child: Child,
    name: String,
    console: PathBuf,
    reader: Option<Child>,
}

impl Guardian {
    fn start(name: &str, directory: &Path) -> Result<Self, LabError> {
        let child = Command::new("sh")
            .args(["-c", GUARDIAN, "sh", name])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of reach of the terminal's Ctrl-C.
            .process_group(0)
            .spawn()
            .map_err(LabError::file("run", "sh"))?;
        Ok(Self {
            child,
            name: name.to_owned(),
            console: directory.join("console.log"),
            reader: None,
        })
    }

    fn follow_console(&mut self) -> Result<(), LabError> {
        let log = File::create(&self.console).map_err(LabError::file("create", &self.console))?;
        let reader = Command::new("xl")
            .args(["console", "-t", "pv", &self.name])
            // Its end would end the reading.
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .map_err(LabError::file("run", "xl"))?;
        self.reader = Some(reader);
        Ok(())
    }

    fn console_tail(&self) -> String {
        kvm::console_text(&self.console)
    }

    fn wait_for_agent(&self, path: &Path) -> Result<Agent, LabError> {
        let deadline = Instant::now() + BOOT_LIMIT;
        let mut agent: Option<Agent> = None;
        while Instant::now() < deadline {
            if self.console_tail().contains(INIT_FAILED) || xl(&["domid", &self.name]).is_err() {
                return Err(LabError::Program {
                    command: format!("the domain {}", self.name),
                    status: "it ended before its agent answered".into(),
                    output: self.console_tail(),
                });
            }
            let slice = Duration::from_millis(500);
            match &mut agent {
                None => match Agent::connect(path) {
                    Ok(connected) => agent = Some(connected),
                    Err(_) => std::thread::sleep(slice),
                },
                // What is sent before the guest has its channel set up is lost, so ask again.
                // A channel that the guest opens anew drops whoever was connected.
                Some(connected) => match connected.synchronise(slice) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(_) => agent = None,
                },
            }
        }
        agent
            .filter(|_| Instant::now() < deadline)
            .ok_or_else(|| LabError::Timeout {
                what: "the guest agent's first answer".into(),
                seconds: BOOT_LIMIT.as_secs(),
                evidence: self.console_tail(),
            })
    }

    /// Has the domain destroyed; whether that was done in time.
    fn release(&mut self) -> bool {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + DESTROY_LIMIT;
        let mut ended = false;
        while !ended && Instant::now() < deadline {
            ended = !matches!(self.child.try_wait(), Ok(None));
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some(mut reader) = self.reader.take() {
            // It ends with the console; this is for the case that it does not.
            let _ = reader.kill();
            let _ = reader.wait();
        }
        ended
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.release();
    }
}

impl Target for Domain {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn subject(&self) -> Subject {
        self.subject.clone()
    }

    fn instruments(&self) -> Result<Vec<Box<dyn Instrument>>, LabError> {
        Ok(vec![Box::new(DomainCpu::open(self.id)?)])
    }

    fn source(&self) -> Source {
        Source::Measured
    }

    fn environment(&self) -> BTreeMap<String, String> {
        self.environment.clone()
    }

    fn scratch(&self) -> (PathBuf, PathBuf) {
        (PathBuf::from("/dev/xvdb"), PathBuf::from(MOUNT_POINT))
    }

    fn start(&mut self, command: &CommandLine) -> Result<Job, LabError> {
        let running = self.agent.start(command)?;
        let job = Job(self.next_job);
        self.next_job += 1;
        self.jobs.insert(job.0, running);
        Ok(job)
    }

    fn poll(&mut self, job: Job) -> Result<Option<Finished>, LabError> {
        let Some(running) = self.jobs.get(&job.0) else {
            return Err(LabError::Other(format!(
                "command {} is not running in the domain",
                job.0
            )));
        };
        let finished = self.agent.poll(running)?;
        if finished.is_some() {
            self.jobs.remove(&job.0);
        }
        Ok(finished)
    }

    fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, LabError> {
        let mut read = |path: &str| -> Result<String, LabError> {
            let bytes = self.agent.read_file(path)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let interrupts = read("/proc/interrupts")?;
        let stat = read("/proc/stat")?;
        Ok(inner::counters(&interrupts, &stat))
    }

    fn console_tail(&self) -> String {
        self.guardian.console_tail()
    }

    fn stop(mut self: Box<Self>) -> Result<(), LabError> {
        // Nothing in the guest is worth a shutdown: its disks are thrown away.
        if self.guardian.release() {
            return Ok(());
        }
        Err(LabError::Timeout {
            what: format!("the end of the domain {}", self.guardian.name),
            seconds: DESTROY_LIMIT.as_secs(),
            evidence: "`xl list` shows it; `xl destroy` it by hand".into(),
        })
    }
}
