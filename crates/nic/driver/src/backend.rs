// SPDX-License-Identifier: Apache-2.0
//! A vtax-nic process with links of two ports each, for tests and benchmarks.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use vtax_kernel::text;
use vtax_nic::control::api::{Request, Response};
use vtax_nic::control::client::{Client, ClientError};
use vtax_nic::hold::Mode;
use vtax_nic::telemetry::PortSnapshot;

use crate::nic::{Nic, Options};
use crate::session::SessionError;

/// Time limit of the start of the back end.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why a back end cannot be started or used.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// Its directory or configuration cannot be written.
    #[error(transparent)]
    File(#[from] vtax_files::FileError),
    /// The program cannot be started.
    #[error("cannot start {}: {}", .0.display(), .1)]
    Start(PathBuf, io::Error),
    /// The program ended before it served.
    #[error("{} ended at its start: {}", .0.display(), .1)]
    Ended(PathBuf, ExitStatus),
    /// The program does not serve.
    #[error("{} does not open its API socket", .0.display())]
    Silent(PathBuf),
    /// A driver cannot use a port.
    #[error("{}: {}", .0.display(), .1)]
    Session(PathBuf, SessionError),
    /// The request to the operator's API failed.
    #[error(transparent)]
    Api(#[from] ClientError),
    /// An answer of the API lacks a port.
    #[error("no telemetry of port '{0}'")]
    NoStats(String),
    /// The processor time or the sleeps of the process cannot be read.
    #[error("cannot read {}: {}", .0.display(), .1)]
    Usage(PathBuf, io::Error),
}

/// A running vtax-nic process, which is ended when this is dropped.
#[derive(Debug)]
pub struct Backend {
    process: Child,
    directory: PathBuf,
}

impl Backend {
    /// Starts `program` with `links` links. Link `n` has the ports `a{n}`, which never holds, and `b{n}`, with the
    /// given mode and budget. Its sockets are in `directory`. If `cpu` is given, the process runs only on that
    /// processor.
    ///
    /// # Errors
    /// When it cannot be configured or started.
    pub fn start(
        program: &Path,
        directory: &Path,
        links: usize,
        (mode, budget_us): (Mode, u32),
        cpu: Option<usize>,
    ) -> Result<Self, BackendError> {
        let config = directory.join("config.toml");
        vtax_files::write_scratch(&config, configuration(directory, links, mode, budget_us))?;
        let mut command = match cpu {
            Some(cpu) => {
                let mut pinned = Command::new("taskset");
                pinned.args(["-c", &cpu.to_string()]).arg(program);
                pinned
            }
            None => Command::new(program),
        };
        command.arg("--config").arg(&config).stdin(Stdio::null());
        let program = program.to_owned();
        let process = match command.spawn() {
            Ok(process) => process,
            Err(cause) => return Err(BackendError::Start(program, cause)),
        };
        let mut backend = Self {
            process,
            directory: directory.to_owned(),
        };
        let start = Instant::now();
        while Client::connect(&backend.directory.join("api")).is_err() {
            if let Ok(Some(status)) = backend.process.try_wait() {
                return Err(BackendError::Ended(program, status));
            }
            if start.elapsed() > START_TIMEOUT {
                return Err(BackendError::Silent(program));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(backend)
    }

    /// Connects a driver to a port.
    ///
    /// # Errors
    /// [`BackendError::Session`].
    pub fn connect(&self, port: &str, options: Options) -> Result<Nic, BackendError> {
        let path = self.directory.join(port);
        Nic::connect(&path, options).map_err(|cause| BackendError::Session(path, cause))
    }

    /// A port's telemetry.
    ///
    /// # Errors
    /// When the API does not answer, or has no such port.
    pub fn stats(&self, port: &str) -> Result<PortSnapshot, BackendError> {
        let request = Request::Stats {
            port: Some(port.to_owned()),
        };
        let last = self.ask(&request)?.stats.pop();
        last.ok_or_else(|| BackendError::NoStats(port.to_owned()))
    }

    /// Sends a request over the operator's API.
    ///
    /// # Errors
    /// When the API does not answer, or refuses.
    pub fn ask(&self, request: &Request) -> Result<Response, ClientError> {
        Client::connect(&self.directory.join("api"))?.ask(request)
    }

    /// Processor time and voluntary sleeps so far of all threads except the thread of the operator's API.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn usage(&self) -> Result<Usage, BackendError> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.process.id()));
        let failed = |cause| BackendError::Usage(tasks.clone(), cause);
        let mut usage = Usage::default();
        for task in std::fs::read_dir(&tasks).map_err(failed)? {
            let task = task.map_err(failed)?.path();
            let read = |name| std::fs::read_to_string(task.join(name)).map_err(failed);
            if read("comm")?.trim() == "operator" {
                continue;
            }
            let times = read("schedstat")?;
            let nanos = times.split(' ').next().and_then(|n| n.parse().ok());
            usage.cpu += Duration::from_nanos(nanos.unwrap_or(0));
            let status = read("status")?;
            let sleeps = text::keyed(status.as_bytes(), "voluntary_ctxt_switches:");
            usage.sleeps += sleeps.unwrap_or(0);
        }
        Ok(usage)
    }

    /// The process's ID.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // The process may have ended by itself. The wait below prevents a zombie.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A back end's use of the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time.
    pub cpu: Duration,
    /// Voluntary sleeps of its threads, each of which ends with a wake-up.
    pub sleeps: u64,
}

fn configuration(directory: &Path, links: usize, mode: Mode, budget_us: u32) -> String {
    let quoted = |path: PathBuf| format!("{:?}", path.display().to_string());
    let mut text = format!("api = {}\n", quoted(directory.join("api")));
    for link in 0..links {
        for (side, mode, budget_us) in [("a", Mode::Off, 0), ("b", mode, budget_us)] {
            let path = quoted(directory.join(format!("{side}{link}")));
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "[[port]]\nname = \"{side}{link}\"\nnetwork = \"link{link}\"\nsocket-path = {path}\n\
                 queue-pairs = 1\nhold = {{ mode = \"{mode}\" }}\n\
                 policy = {{ cap_us = {budget_us}, default_us = {budget_us} }}\n"
            );
        }
    }
    text
}
