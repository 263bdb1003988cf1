// SPDX-License-Identifier: Apache-2.0
//! A VMM's process and the line to its guest's serial port.

use super::{Machine, Vmm, cloud_hypervisor, firecracker};
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vtax_host::command::CommandLine;

/// The time limit for a VMM to create its socket, which precedes its guest's boot.
const SOCKET_LIMIT: Duration = Duration::from_secs(10);

/// The buffer for Firecracker's output, in bytes as the kernel counts them: a thousand for each byte of the guest,
/// since the bytes are sent one by one. Bytes beyond the buffer are lost.
const UNREAD_BYTES: usize = 256 << 20;

/// The directory and name prefix of a VMM's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory, as the VMM sees it.
    pub inside: PathBuf,
    /// The directory, as this process sees it.
    pub outside: PathBuf,
    /// The prefix of its files' names.
    pub stem: String,
}

impl Place {
    fn file(&self, folder: &Path, ending: &str) -> PathBuf {
        folder.join(format!("{}.{ending}", self.stem))
    }
}

/// A started VMM, whose guest may not have booted.
#[derive(Debug)]
pub struct Started {
    /// The VMM's process, or the process that waits for it.
    pub child: Child,
    /// The guest's serial port; the other end is closed if the VMM exited at once.
    pub line: UnixStream,
    /// The VMM's log, as this process sees it.
    pub log: PathBuf,
    /// Its other files.
    pub files: Vec<PathBuf>,
    /// Its arguments and configuration, for the record.
    pub description: String,
}

impl Vmm {
    /// Starts `program` for a machine. `command` creates the process of a command line.
    ///
    /// # Errors
    /// When it cannot be started, or its files cannot be written.
    pub fn start(
        self,
        program: &str,
        machine: &Machine,
        place: &Place,
        command: impl Fn(&CommandLine) -> Command,
    ) -> io::Result<Started> {
        let outside = |ending: &str| place.file(&place.outside, ending);
        let inside = |ending: &str| place.file(&place.inside, ending);
        let log = outside("log");
        let output = vtax_files::create(&log)?;
        let mut words = vec![program.to_owned()];
        match self {
            Self::Firecracker => {
                let config = outside("json");
                let text = firecracker::configuration(machine, &inside("log")).to_string();
                vtax_files::write_scratch(&config, &text)?;
                words.extend(firecracker::arguments(&inside("json")));
                let (line, theirs) = UnixStream::pair()?;
                set_socket_send_buffer_size_force(&theirs, UNREAD_BYTES)?;
                let theirs = OwnedFd::from(theirs);
                let child = command(&words)
                    .stdin(Stdio::from(theirs.try_clone()?))
                    .stdout(Stdio::from(theirs))
                    .stderr(output)
                    .spawn()?;
                Ok(Started {
                    child,
                    line,
                    log,
                    files: vec![config],
                    description: format!("{} {text}", words.join(" ")),
                })
            }
            Self::CloudHypervisor => {
                let serial = outside("serial");
                words.extend(cloud_hypervisor::arguments(machine, &inside("serial")));
                let mut child = command(&words)
                    .stdin(Stdio::null())
                    .stdout(output.try_clone()?)
                    .stderr(output)
                    .spawn()?;
                let line = connected(&serial, &mut child)?;
                Ok(Started {
                    child,
                    line,
                    log,
                    files: vec![serial],
                    description: words.join(" "),
                })
            }
        }
    }
}

/// Connects to the guest's serial port as soon as it exists: before version 53, output is lost while no client is
/// connected.
fn connected(serial: &Path, child: &mut Child) -> io::Result<UnixStream> {
    let began = Instant::now();
    while child.try_wait()?.is_none() && began.elapsed() < SOCKET_LIMIT {
        std::thread::sleep(Duration::from_millis(1));
        if let Ok(line) = UnixStream::connect(serial) {
            return Ok(line);
        }
    }
    // A line whose other end is closed; the wait for the boot reports the cause.
    Ok(UnixStream::pair()?.0)
}
