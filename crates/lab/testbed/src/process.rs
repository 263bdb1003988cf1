// SPDX-License-Identifier: Apache-2.0
//! The QEMU process of an emulated host, its output files and its monitor.

use crate::emulator::missing;
use crate::machine::Files;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use vtax_guest::platform::qemu::{Options, Qmp};
use vtax_host::HostError;
use vtax_host::untrusted::{drain, end_of};

/// Time limit of opening the monitor. QEMU takes a second; this machine may be busy.
const MONITOR_LIMIT: Duration = Duration::from_secs(120);

/// The most processor time of a host without output, apart from the phases of its trial. A nested guest that hangs in
/// QEMU's emulation uses processor time without output.
pub(crate) const SILENT_CPU_TIME: Duration = Duration::from_secs(120);

/// The environment variable with the path of a machine's state, so that the path needs no quoting.
pub(crate) const STATE: &str = "VTAX_STATE";

/// The output files of a host.
pub(crate) struct Ports {
    /// The file of the console's output.
    pub console: PathBuf,
    /// The file of the output lines of the command in the host.
    pub events: PathBuf,
    /// The archive of the host's results.
    pub results: PathBuf,
}

impl Ports {
    /// The files in a directory.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            console: directory.join("console"),
            events: directory.join("events"),
            results: directory.join("archive"),
        }
    }

    /// # Errors
    /// When one cannot be created.
    pub fn create(directory: &Path) -> Result<Self, HostError> {
        let ports = Self::in_directory(directory);
        for path in [&ports.console, &ports.events, &ports.results] {
            vtax_files::create(path)?;
        }
        Ok(ports)
    }

    /// The files of a machine with this output.
    pub fn files(&self) -> Files<'_> {
        Files {
            console: Some(&self.console),
            ports: Some((&self.events, &self.results)),
            ..Files::from_initrd(Path::new(""), Path::new(""))
        }
    }
}

/// A QEMU process. It ends with this value, and with this process even after a crash.
#[derive(Debug)]
pub(crate) struct QemuProcess {
    child: Child,
    messages: File,
}

impl QemuProcess {
    /// Starts QEMU; `state` is the value of [`STATE`].
    pub fn start(line: &Options, state: Option<&Path>) -> Result<Self, HostError> {
        let files = tempfile::tempfile().and_then(|log| Ok((log.try_clone()?, log)));
        let (output, messages) = files.map_err(HostError::file("create", "a log"))?;
        let mut command = line.command();
        if let Some(state) = state {
            command.env(STATE, state);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .map_err(missing)?;
        Ok(Self { child, messages })
    }

    /// Processor time so far; zero once it has ended.
    pub fn computed(&self) -> Duration {
        let time = vtax_kernel::Process::of_host(self.child.id()).cpu_time();
        Duration::from_nanos(time.unwrap_or_default().0)
    }

    pub fn ended(&mut self) -> Result<Option<ExitStatus>, HostError> {
        self.child
            .try_wait()
            .map_err(HostError::process("wait for", "QEMU"))
    }

    /// Connects to the monitor.
    ///
    /// # Errors
    /// When QEMU ends, or does not open the monitor in time.
    pub fn monitor(&mut self, socket: &Path) -> Result<Qmp, HostError> {
        let deadline = Instant::now() + MONITOR_LIMIT;
        loop {
            if let Some(qmp) = Qmp::connect(socket)? {
                return Ok(qmp);
            }
            if let Some(status) = self.ended()? {
                return Err(HostError::Program {
                    command: "the emulated host".into(),
                    status: format!("{status}, before it opened its monitor"),
                    output: self.messages(),
                });
            }
            if Instant::now() > deadline {
                return Err(HostError::Timeout {
                    what: format!("QEMU's monitor at {}", socket.display()),
                    seconds: MONITOR_LIMIT.as_secs(),
                    evidence: self.messages(),
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The error of the host `name` that ended early; `status` says how and before what.
    pub fn early_end(&mut self, name: &str, status: String, console: &Path) -> HostError {
        HostError::Program {
            command: name.to_owned(),
            status,
            output: format!("{}\n{}", tail(console), self.messages()),
        }
    }

    /// The messages of QEMU, without those about features that emulation lacks.
    pub fn messages(&mut self) -> String {
        use std::io::Seek;
        // The messages only explain another failure, so that their own errors do not matter.
        let _ = self.messages.rewind();
        let text = drain(&self.messages, 64 << 10);
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.contains("TCG doesn't support requested feature"))
            .collect();
        lines.join("\n")
    }
}

impl Drop for QemuProcess {
    fn drop(&mut self) {
        // Both fail only after the end of QEMU.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The end of the output of a console.
pub(crate) fn tail(console: &Path) -> String {
    String::from_utf8_lossy(&end_of(console, 2048)).replace('\r', "")
}
