// SPDX-License-Identifier: Apache-2.0
//! A job: one payload in one emulated host, from the boot or the snapshot to the fetched results.

use crate::host::Host;
use crate::link::{End, Link};
use crate::machine::{self, Files};
use crate::output_channel::{self, OutputChannel};
use crate::payload::{BootFiles, Payload};
use crate::process::{Ports, QemuProcess, SILENT_CPU_TIME, tail};
use crate::scratch::Scratch;
use crate::settings::Settings;
use crate::snapshot::{self, Snapshot};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use vtax_host::HostError;
use vtax_lab::LabError;
use vtax_lab::place::Line;

/// Time between two polls of a job; they do not disturb the host.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// The most lines of text that are kept of a job.
const MOST_LINES: usize = 10_000;

/// Time without output after which a host is stuck; also the longest trials report their phases.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(3600);

/// The most processor time of QEMU for one second of the emulated host.
const SLOWEST: u32 = 10;

/// The specification of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobSpec<'a> {
    pub host: &'a Host,
    pub settings: &'a Settings,
    /// The link to a second host, where the plan has a remote client.
    pub link: Option<&'a Link>,
    /// The longest time without output, by the clock of the emulated host.
    pub silence: Duration,
    /// The seed and arguments of the trial: see [`Files::trial`].
    pub trial: &'a str,
    /// The file of the payload: see [`Payload::pack`].
    pub payload: &'a Path,
}

/// A running job. Dropping it ends its host.
pub(crate) struct Job {
    machine: QemuProcess,
    client: Option<Client>,
    channel: OutputChannel,
    lines: Vec<String>,
    /// The time of the last output, and the processor time and the length of the console by then.
    last_output: (Instant, Duration, u64),
    /// The most processor time without output.
    silence_limit: Duration,
    directory: Scratch,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobOutcome {
    /// The command ended with this code, and its results are fetched.
    Finished(i32),
    /// A guest in the host, or the host itself, is stuck; with the evidence.
    Stuck(String),
}

impl Job {
    /// Boots a host.
    ///
    /// # Errors
    /// When its files cannot be written, or QEMU does not start.
    pub fn boot(spec: JobSpec<'_>, payload: &Payload<'_>) -> Result<Self, LabError> {
        let JobSpec {
            host,
            settings,
            link,
            ..
        } = spec;
        let directory = Scratch::create(&std::env::temp_dir())?;
        let wire = directory.path().join("wire");
        let client = link.map(|link| Client::start(host, settings, link, &wire));
        let client = client.transpose()?;
        let boot_files = BootFiles::pack(directory.path(), host, settings, payload, link)?;
        let ports = Ports::create(directory.path())?;
        let files = Files {
            initrd: &boot_files.initrd,
            payload: spec.payload,
            link: client.as_ref().map(|_| (End::Host, wire.as_path())),
            pstates: boot_files.pstates.as_deref(),
            trial: Some(spec.trial),
            ..ports.files()
        };
        let machine = QemuProcess::start(&machine::command_line(host, settings, files), None)?;
        Self::new(machine, client, &ports, spec.silence, directory)
    }

    /// Starts a host from a snapshot of a host with the same settings and disks.
    ///
    /// # Errors
    /// As [`Job::boot`], and when QEMU does not load the state.
    pub fn resume(spec: JobSpec<'_>, snapshot: &Snapshot) -> Result<Self, LabError> {
        let directory = Scratch::create(&std::env::temp_dir())?;
        let monitor = directory.path().join("monitor");
        let ports = Ports::create(directory.path())?;
        let paths = snapshot.paths();
        let files = Files {
            trial: Some(spec.trial),
            ..paths.files(&ports, spec.payload, &monitor, false)
        };
        let line = machine::command_line(spec.host, spec.settings, files);
        let mut machine = QemuProcess::start(&line, Some(&paths.state))?;
        machine.monitor(&monitor)?.load(&snapshot::from_state())?;
        Self::new(machine, None, &ports, spec.silence, directory)
    }

    fn new(
        machine: QemuProcess,
        client: Option<Client>,
        ports: &Ports,
        silence: Duration,
        directory: Scratch,
    ) -> Result<Self, LabError> {
        Ok(Self {
            channel: OutputChannel::open(&ports.events)?,
            last_output: (Instant::now(), machine.computed(), 0),
            machine,
            client,
            lines: Vec::new(),
            silence_limit: SILENT_CPU_TIME + silence * SLOWEST,
            directory,
        })
    }

    /// The outcome; `None` while the job runs.
    ///
    /// # Errors
    /// When the host ended early, has no output for too long, or its results are not the announced ones.
    pub fn poll(&mut self) -> Result<Option<JobOutcome>, LabError> {
        let ended = self.machine.ended()?;
        let lines = &mut self.lines;
        let arrived = self.channel.follow(&mut |line| {
            if let Line::Text(text) = line
                && lines.len() < MOST_LINES
            {
                lines.push(text);
            }
        })?;
        if let Some(status) = ended {
            return self.finish(status).map(Some);
        }
        if let Some(client) = &mut self.client {
            client.check()?;
        }
        let printed = fs::metadata(self.console()).map_or(0, |metadata| metadata.len());
        let computed = self.machine.computed();
        let since = computed.saturating_sub(self.last_output.1);
        let seconds = since.as_secs();
        if self.channel.stuck() {
            return Ok(Some(JobOutcome::Stuck(format!(
                "a guest took no interrupts, {seconds} s of processor time after the last output"
            ))));
        }
        if arrived || printed != self.last_output.2 {
            self.last_output = (Instant::now(), computed, printed);
        } else if since > self.silence_limit {
            return Ok(Some(JobOutcome::Stuck(format!(
                "the host used {seconds} s of processor time without output"
            ))));
        } else if self.last_output.0.elapsed() > OUTPUT_TIMEOUT {
            return Err(LabError::Host(HostError::Timeout {
                what: "output of the emulated host".into(),
                seconds: OUTPUT_TIMEOUT.as_secs(),
                evidence: tail(&self.console()),
            }));
        }
        Ok(None)
    }

    /// The text output of the command.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The directory of the fetched results; it may be missing.
    pub fn results(&self) -> PathBuf {
        self.directory.path().join("results")
    }

    fn console(&self) -> PathBuf {
        self.directory.path().join("console")
    }

    fn finish(&mut self, status: ExitStatus) -> Result<JobOutcome, LabError> {
        let Some(ended) = self.channel.ended() else {
            let status = format!("{status}, before its results arrived");
            let console = self.console();
            let ended = self
                .machine
                .early_end("the emulated host", status, &console);
            return Err(ended.into());
        };
        let archive = self.directory.path().join("archive");
        output_channel::fetch(&archive, ended, &self.results())?;
        Ok(JobOutcome::Finished(ended.code))
    }
}

/// The second host, which runs the plan's client.
struct Client {
    machine: QemuProcess,
    directory: Scratch,
}

impl Client {
    /// Boots the host and waits until its end of the link exists.
    fn start(host: &Host, settings: &Settings, link: &Link, wire: &Path) -> Result<Self, LabError> {
        let directory = Scratch::create(&std::env::temp_dir())?;
        let (path, client) = (directory.path(), Payload::Client);
        let boot_files = BootFiles::pack(path, host, settings, &client, Some(link))?;
        let payload = client.pack(path, host.hypervisor)?;
        let files = Files {
            console: Some(&path.join("console")),
            link: Some((End::Client, wire)),
            ..Files::from_initrd(&boot_files.initrd, &payload)
        };
        let machine = QemuProcess::start(&machine::command_line(host, settings, files), None)?;
        let mut client = Self { machine, directory };
        while !wire.exists() {
            client.check()?;
            std::thread::sleep(POLL);
        }
        Ok(client)
    }

    /// # Errors
    /// When it has ended.
    fn check(&mut self) -> Result<(), LabError> {
        let Some(status) = self.machine.ended()? else {
            return Ok(());
        };
        let name = "the emulated host of the client";
        let status = format!("{status}, before the plan's end");
        let console = self.directory.path().join("console");
        Err(self.machine.early_end(name, status, &console).into())
    }
}
