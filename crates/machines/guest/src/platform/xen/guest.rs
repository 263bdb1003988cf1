// SPDX-License-Identifier: Apache-2.0
//! A running domain: its creation, its guest's agent and its end.

use super::backends;
use super::domain::{Domain, Files};
use crate::platform::vm::agent::Agent;
use crate::platform::vm::host::qcow2_layer;
use crate::platform::vm::inner;
use crate::platform::vm::process::{INIT_FAILED, last_lines};
use crate::platform::vm::surroundings::Surroundings;
use crate::platform::{
    About, CommandLine, Finished, GuestFiles, Job, Target, backing, release, switch_offloads_off,
};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tracing::debug;
use vtax_core::Source;
use vtax_host::HostError;
use vtax_host::cell::Seat;
use vtax_host::loop_device::Loop;
use vtax_host::wait::within;
use vtax_host::xl;
use vtax_observe::{NetDevice, Subject};

/// The time limit of a boot; on an emulated host a boot takes some 20 s.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// The interval between requests to the agent until its first reply: requests are lost until it opens its console.
const REQUEST_INTERVAL: Duration = Duration::from_secs(3);

/// The hotplug script of the network device. netback connects to a guest only after the script has reported
/// success. The script sets nothing up, since the device is moved into the cell.
const VIF_SCRIPT: &str = "#!/bin/sh
if [ \"$1\" = online ] || [ \"$1\" = add ]; then
    exec xenstore-write \"$XENBUS_PATH/hotplug-status\" connected
fi
";

/// The name of a cell's domain.
pub(super) fn name(seat: &Seat<'_>) -> String {
    format!("{}{}", xl::PREFIX, seat.unique_name())
}

/// A domain. Dropping it destroys it and ignores errors.
pub(super) struct Guest {
    name: String,
    id: u32,
    agent: Option<Agent>,
    about: About,
    console: Console,
    destroyed: bool,
}

impl Guest {
    /// Creates the domain and waits for its agent's first reply.
    ///
    /// # Errors
    /// The step that failed, with the end of the guest's console; no domain remains.
    pub(super) fn boot(
        domain: &Domain,
        files: &GuestFiles,
        seat: &Seat<'_>,
    ) -> Result<Self, HostError> {
        let scratch = seat.scratch();
        let scratch = scratch.map(Loop::attach).transpose()?;
        let booted = Self::boot_with(domain, files, seat, scratch.as_ref());
        // blkback holds the loop device and releases it when it ends; without a domain it is released here.
        let released = scratch.as_ref().map_or(Ok(()), Loop::release);
        let guest = booted?;
        released.map(|()| guest)
    }

    fn boot_with(
        domain: &Domain,
        files: &GuestFiles,
        seat: &Seat<'_>,
        scratch: Option<&Loop>,
    ) -> Result<Self, HostError> {
        let started = Instant::now();
        let mut guest = Self::create(domain, files, seat, scratch)?;
        debug!("the domain {} is created: number {}", guest.name, guest.id);
        let device = format!("vif{}.0", guest.id);
        seat.adopt_device(&device)?;
        guest.console.open(guest.id);
        xl::unpause(&guest.name)?;
        guest.wait_for_agent()?;
        let threads = backends::threads(Path::new("/proc"), guest.id);
        backends::adopt(seat.group(), &threads)?;
        if !seat.link().offloads {
            // netback offers all of its offloads, and no setting of the domain disables them.
            switch_offloads_off(&mut guest)?;
        }
        guest.about.subject.net_devices = vec![NetDevice {
            namespace_of: seat.holder_pid(),
            name: device,
        }];
        if let Some(scratch) = scratch {
            guest.about.subject.block_devices = vec![scratch.kernel_name()];
            let fact = backing(scratch.direct, "Dom0's");
            guest.about.environment.extend([fact]);
        }
        guest.about.environment.insert(
            "vm.boot_seconds".into(),
            format!("{:.3}", started.elapsed().as_secs_f64()),
        );
        Ok(guest)
    }

    /// Creates the domain, paused.
    fn create(
        domain: &Domain,
        files: &GuestFiles,
        seat: &Seat<'_>,
        scratch: Option<&Loop>,
    ) -> Result<Self, HostError> {
        let name = name(seat);
        // xl and QEMU run in Dom0's namespaces, where the sockets of the store and of libxl are, and reach the
        // cell's directory through its holder process.
        let file = |name: &str| seat.outside(&seat.run_dir().join(name));
        let (layer, script, config) = (file("root.qcow2"), file("vif"), file("xl.cfg"));
        let agents = [file("agent0.sock"), file("agent1.sock")];
        qcow2_layer(&files.image, &layer)?;
        vtax_files::write_scratch(&script, VIF_SCRIPT)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
            .map_err(HostError::file("write", &script))?;
        let network = Surroundings::network(seat);
        let text = domain.config(
            &name,
            files,
            Files {
                root: &layer,
                scratch: scratch.map(|scratch| scratch.device.as_path()),
                agents: [&agents[0], &agents[1]],
                vif_script: &script,
            },
            &network,
        )?;
        vtax_files::write_scratch(&config, &text)?;

        let arguments = ["create", "-q", "-p", "-e", &config.to_string_lossy()];
        let command = seat
            .entry()
            .outside_command(seat.group(), &xl::line("xl", &arguments));
        // A domain may exist from here on, even after an error of xl.
        let mut guest = Self {
            id: u32::MAX,
            agent: None,
            about: About::of_vm(
                network.address,
                Subject {
                    owner: seat.owner(),
                    cgroups: seat.cgroups(),
                    ..Subject::default()
                },
                Source::Measured,
                environment(Path::new("/sys"), domain, &text),
                "/dev/xvdb",
            ),
            console: Console::default(),
            destroyed: false,
            name,
        };
        xl::output(command, &format!("xl create {}", config.display()))?;
        guest.id = xl::find(&guest.name)?
            .ok_or_else(|| HostError::Protocol {
                peer: "`xl create`".to_owned(),
                detail: format!("it made no domain {}; see /var/log/xen", guest.name),
            })?
            .id;
        guest.about.subject.domain = Some(guest.id);
        guest.about.subject.is_traced = domain.is_traced;
        guest.agent = Some(Agent::connect(&xl::channel(guest.id)?)?);
        Ok(guest)
    }

    fn wait_for_agent(&mut self) -> Result<(), HostError> {
        let answered = within(BOOT_LIMIT, Duration::ZERO, || {
            match self.agent()?.synchronise(REQUEST_INTERVAL) {
                Ok(true) => return Ok(Some(())),
                Ok(false) => {}
                Err(error) => return Err(self.explain(error)),
            }
            let ended = xl::find(&self.name)?.map_or(Some("is gone"), |domain| domain.end());
            let console = self.console.text();
            if ended.is_some() || console.contains(INIT_FAILED) {
                return Err(self.ended(ended.unwrap_or("did not come up").to_owned()));
            }
            Ok(None)
        })?;
        answered.ok_or_else(|| HostError::Timeout {
            what: "the guest agent's first answer".into(),
            seconds: BOOT_LIMIT.as_secs(),
            evidence: self.evidence(),
        })
    }

    fn agent(&mut self) -> Result<&mut Agent, HostError> {
        self.agent.as_mut().ok_or_else(|| HostError::Closed {
            peer: format!("the agent of domain {}", self.name),
            detail: " before".to_owned(),
        })
    }

    /// Adds the domain's end to an error of the agent, if the domain has ended.
    fn explain(&mut self, error: HostError) -> HostError {
        let state = match xl::find(&self.name) {
            Ok(Some(domain)) => match domain.end() {
                Some(end) => end,
                None => return error,
            },
            Ok(None) => "is gone",
            Err(_) => return error,
        };
        self.ended(format!("{state}: {error}"))
    }

    fn ended(&self, status: String) -> HostError {
        HostError::Program {
            command: format!("domain {}", self.name),
            status,
            output: self.evidence(),
        }
    }

    fn evidence(&self) -> String {
        let console = self.console.text();
        let shown = last_lines(&console, 8).into_iter();
        let text: String = shown.map(|line| format!("\nconsole: {line}")).collect();
        if text.is_empty() {
            "\nconsole: (nothing)".into()
        } else {
            text
        }
    }

    fn destroy(&mut self) -> Result<(), HostError> {
        if self.destroyed {
            return Ok(());
        }
        // The connection is closed first, so that QEMU has no client.
        self.agent = None;
        xl::destroy(&self.name)?;
        self.destroyed = true;
        debug!("the domain {} is destroyed", self.name);
        Ok(())
    }
}

fn environment(sys: &Path, domain: &Domain, config: &str) -> BTreeMap<String, String> {
    let version: String = ["major", "minor", "extra"]
        .iter()
        .filter_map(|part| fs::read_to_string(sys.join("hypervisor/version").join(part)).ok())
        .map(|part| part.trim().to_owned())
        .enumerate()
        // `extra` starts with a dot.
        .map(|(place, part)| if place == 1 { format!(".{part}") } else { part })
        .collect();
    [
        ("xen.version", version),
        ("xen.kind", domain.kind.word().to_owned()),
        ("xen.configuration", config.trim_end().to_owned()),
        ("xen.dom0_kernel", release()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// The guest's console. xenconsoled buffers it until its terminal is read, so that reading on demand is enough.
#[derive(Debug, Default)]
struct Console {
    terminal: Option<fs::File>,
    seen: std::cell::RefCell<Vec<u8>>,
}

impl Console {
    /// The most bytes of a console that are kept.
    const KEPT: usize = 64 << 10;
    /// The most reads of the console at a time: 1 MiB, in half a second.
    const READS: usize = 256;

    /// Opens the console. On failure the guest runs without one, and errors have less detail.
    fn open(&mut self, domain: u32) {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        self.terminal = xl::console(domain).ok().and_then(|path: PathBuf| {
            let opened = rustix::fs::open(path, flags, Mode::empty());
            opened.ok().map(fs::File::from)
        });
    }

    fn text(&self) -> String {
        let mut seen = self.seen.borrow_mut();
        if let Some(mut terminal) = self.terminal.as_ref() {
            let mut buffer = [0; 4096];
            // The terminal never blocks: an error means that it is empty. A guest may print faster than this loop
            // reads.
            for _ in 0..Self::READS {
                let Ok(length @ 1..) = terminal.read(&mut buffer) else {
                    break;
                };
                seen.extend_from_slice(buffer.get(..length).unwrap_or_default());
                let surplus = seen.len().saturating_sub(Self::KEPT);
                seen.drain(..surplus);
                // xenconsoled refills the terminal when it is empty.
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        String::from_utf8_lossy(&seen).replace('\r', "")
    }
}

impl Target for Guest {
    fn about(&self) -> &About {
        &self.about
    }

    fn start(&mut self, command: &CommandLine) -> Result<Job, HostError> {
        let job = self.agent()?.start(command);
        job.map_err(|error| self.explain(error))
    }

    fn poll(&mut self, job: Job) -> Result<Option<Finished>, HostError> {
        let finished = self.agent()?.poll(job);
        finished.map_err(|error| self.explain(error))
    }

    fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, HostError> {
        let counters = inner::of_agent(self.agent()?);
        counters.map_err(|error| self.explain(error))
    }

    fn console_tail(&self) -> String {
        let text = self.console.text();
        let start = text.len().saturating_sub(8192);
        text.get(start..).unwrap_or(&text).to_owned()
    }

    fn stop(mut self: Box<Self>) -> Result<(), HostError> {
        // The guest needs no shutdown: its disks are discarded.
        self.destroy()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The journal destroys the domain if this fails.
        let _ = self.destroy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::settings::Settings;

    #[test]
    fn the_record_names_the_hypervisor_and_the_whole_configuration() {
        let sys = tempfile::tempdir().unwrap();
        let version = sys.path().join("hypervisor/version");
        fs::create_dir_all(&version).unwrap();
        for (part, text) in [("major", "4\n"), ("minor", "17\n"), ("extra", ".7\n")] {
            fs::write(version.join(part), text).unwrap();
        }
        let domain = Domain::from_settings(&Settings::default()).unwrap();
        let record = environment(sys.path(), &domain, "name = \"x\"\n");
        assert_eq!(record["xen.version"], "4.17.7");
        assert_eq!(record["xen.kind"], "pv");
        assert_eq!(record["xen.configuration"], "name = \"x\"");
    }

    #[test]
    fn a_console_keeps_its_end_and_never_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tty");
        fs::write(
            &path,
            [vec![b'x'; Console::KEPT], b"end\r\n".to_vec()].concat(),
        )
        .unwrap();
        let console = Console {
            terminal: fs::File::open(&path).ok(),
            ..Console::default()
        };
        let text = console.text();
        assert!(
            text.ends_with("xend\n") && text.len() < Console::KEPT,
            "{}",
            text.len()
        );
        assert_eq!(console.text(), text, "nothing new came");
        assert_eq!(Console::default().text(), "");
    }
}
