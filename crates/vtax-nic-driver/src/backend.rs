//! A vtax-nic process with links of two ports each, for as long as a test or benchmark needs it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vtax_nic::control::api::Request;
use vtax_nic::control::client::Client;
use vtax_nic::hold::Mode;
use vtax_nic::telemetry::PortSnapshot;

use crate::nic::{Nic, Options};

/// How long the back end may take to start.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running vtax-nic. Dropped, it is ended.
#[derive(Debug)]
pub struct Backend {
    process: Child,
    directory: PathBuf,
}

impl Backend {
    /// Starts `program` with `links` links. Link `n` has the ports `a{n}`, which never holds, and
    /// `b{n}`, with the given mode and budget. Sockets are made in `directory`. If `cpu` is given,
    /// it runs on that processor alone.
    ///
    /// # Errors
    ///
    /// A sentence with what failed.
    pub fn start(
        program: &Path,
        directory: &Path,
        links: usize,
        (mode, budget_us): (Mode, u32),
        cpu: Option<usize>,
    ) -> Result<Self, String> {
        let config = directory.join("config.toml");
        vtax_files::write_scratch(&config, configuration(directory, links, mode, budget_us))
            .map_err(|error| error.to_string())?;
        let mut command = match cpu {
            Some(cpu) => {
                let mut pinned = Command::new("taskset");
                pinned.args(["-c", &cpu.to_string()]).arg(program);
                pinned
            }
            None => Command::new(program),
        };
        command.arg("--config").arg(&config).stdin(Stdio::null());
        let process = command
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let mut backend = Self {
            process,
            directory: directory.to_owned(),
        };
        let start = Instant::now();
        while Client::connect(&backend.directory.join("api")).is_err() {
            if let Ok(Some(status)) = backend.process.try_wait() {
                return Err(format!(
                    "{} ended at its start: {status}",
                    program.display()
                ));
            }
            if start.elapsed() > PATIENCE {
                return Err(format!(
                    "{} does not open its API socket",
                    program.display()
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(backend)
    }

    /// Connects a driver to a port.
    ///
    /// # Errors
    ///
    /// A sentence with what failed.
    pub fn connect(&self, port: &str, options: Options) -> Result<Nic, String> {
        let path = self.directory.join(port);
        Nic::connect(&path, options).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// A port's telemetry.
    ///
    /// # Errors
    ///
    /// A sentence with what failed.
    pub fn stats(&self, port: &str) -> Result<PortSnapshot, String> {
        let request = Request::Stats {
            port: Some(port.to_owned()),
        };
        let mut stats = self.ask(&request)?.stats;
        stats
            .pop()
            .ok_or_else(|| format!("no telemetry of port '{port}'"))
    }

    /// Asks over the operator's API.
    ///
    /// # Errors
    ///
    /// A sentence with what failed.
    pub fn ask(&self, request: &Request) -> Result<vtax_nic::control::api::Response, String> {
        Client::connect(&self.directory.join("api"))?.ask(request)
    }

    /// Processor time and voluntary sleeps of all its threads but the operator's, so far.
    ///
    /// # Errors
    ///
    /// A sentence: the process is gone.
    pub fn usage(&self) -> Result<Usage, String> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.process.id()));
        let told = |error| format!("cannot read {}: {error}", tasks.display());
        let mut usage = Usage::default();
        for task in std::fs::read_dir(&tasks).map_err(told)? {
            let task = task.map_err(told)?.path();
            let read = |name| std::fs::read_to_string(task.join(name)).map_err(told);
            if read("comm")?.trim() == "operator" {
                continue;
            }
            let nanos = read("schedstat")?
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok());
            usage.cpu += Duration::from_nanos(nanos.unwrap_or(0));
            let status = read("status")?;
            let sleeps = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
                .and_then(|count| count.trim().parse::<u64>().ok());
            usage.sleeps += sleeps.unwrap_or(0);
        }
        Ok(usage)
    }

    /// Its process.
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
        // It may have ended by itself; a child that is not waited for stays as a zombie.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a back end has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time.
    pub cpu: Duration,
    /// Times that a thread went to sleep by itself: wake-ups.
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
