// SPDX-License-Identifier: Apache-2.0
//! Guests in one QEMU each, for a few guests or hosts without KVM.

use crate::error::{Error, Result, start_problem};
use crate::front::http::line_as_answer;
use crate::front::router::Route;
use crate::image::{DiskFormat, Image, write_disk};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The most emulated guests.
pub const MAX_GUESTS: u32 = 64;

/// How QEMU runs guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// Emulation.
    Tcg,
    /// KVM, with the kernel's own interrupt controller.
    Kvm,
}

/// The machine of a QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// QEMU's default machine, with 128 MB of memory and its default devices.
    Stock,
    /// The smallest machine for a micro VM: 1 MB of memory, a disk, a serial port.
    Tuned,
}

/// QEMUs, each with one guest whose serial port is a UNIX socket. They end when this is dropped.
#[derive(Debug)]
pub struct Qemus {
    children: Vec<Child>,
    folder: TempDir,
}

impl Qemus {
    /// Starts `count` tuned guests and waits until their serial ports accept connections.
    ///
    /// # Errors
    /// [`Error::Configuration`] for more than [`MAX_GUESTS`], [`Error::Program`] when QEMU is
    /// missing or fails.
    pub fn start(image: &Image, count: u32, accelerator: Accelerator) -> Result<Self> {
        Self::start_on(Machine::Tuned, image, count, accelerator)
    }

    /// As [`Qemus::start`], with the given machine.
    ///
    /// # Errors
    /// As [`Qemus::start`].
    pub fn start_on(
        machine: Machine,
        image: &Image,
        count: u32,
        accelerator: Accelerator,
    ) -> Result<Self> {
        if count > MAX_GUESTS {
            return Err(Error::configuration(
                format!("{count} emulated guests"),
                format!(
                    "each is a whole QEMU: at most {MAX_GUESTS}; with KVM there is no such limit"
                ),
            ));
        }
        let folder = tempfile::tempdir().map_err(Error::temporary_directory)?;
        let disk = folder.path().join("disk.img");
        write_disk(image, DiskFormat::Raw, &disk)?;
        let mut qemus = Self {
            children: Vec::new(),
            folder,
        };
        for guest in 0..count {
            let child = start_one(machine, &disk, &qemus.socket(guest), accelerator)?;
            qemus.children.push(child);
        }
        for guest in 0..count {
            qemus.await_socket(guest)?;
        }
        Ok(qemus)
    }

    fn socket(&self, guest: u32) -> PathBuf {
        self.folder.path().join(format!("{guest}.serial"))
    }

    fn await_socket(&mut self, guest: u32) -> Result<()> {
        let socket = self.socket(guest);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !socket.exists() {
            let ended = self
                .children
                .get_mut(guest as usize)
                .and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > deadline {
                return Err(failed("it did not open its serial port".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The route to the guests.
    #[must_use]
    pub fn route(&self) -> QemuRoute {
        let guests = 0..self.children.len() as u32;
        QemuRoute {
            sockets: guests.map(|guest| self.socket(guest)).collect(),
        }
    }

    /// The processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().map(Child::id)
    }
}

impl Drop for Qemus {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

fn failed(problem: String) -> Error {
    let remedy = "install Debian package qemu-system-x86, or use KVM";
    Error::program("qemu-system-x86_64", problem, remedy)
}

fn start_one(
    machine: Machine,
    disk: &Path,
    socket: &Path,
    accelerator: Accelerator,
) -> Result<Child> {
    let mut command = Command::new("qemu-system-x86_64");
    if machine == Machine::Tuned {
        command.args(["-nodefaults", "-vga", "none", "-m", "1"]);
    }
    let accelerator = match accelerator {
        Accelerator::Tcg => "tcg",
        Accelerator::Kvm => "kvm",
    };
    let (disk, socket) = (disk.display(), socket.display());
    let drive = format!("file={disk},format=raw,if=ide,snapshot=on");
    let serial = format!("unix:{socket},server=on,wait=off");
    command
        .args(["-display", "none", "-accel", accelerator])
        .args(["-drive", &drive, "-serial", &serial])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    // SAFETY: between fork and exec only one async-signal-safe system call is made.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            Ok(())
        });
    }
    command
        .spawn()
        .map_err(|cause| failed(start_problem(&cause)))
}

/// Serial sockets by guest.
#[derive(Debug)]
pub struct QemuRoute {
    sockets: Vec<PathBuf>,
}

impl Route for QemuRoute {
    fn socket(&self, guest: u32) -> Option<PathBuf> {
        self.sockets.get(guest as usize).cloned()
    }

    fn request(&self, _guest: u32, line: &[u8]) -> Vec<u8> {
        line.to_vec()
    }

    fn answer(&self, received: &[u8]) -> Option<(u16, Vec<u8>)> {
        let end = received.iter().position(|b| *b == b'\n')?;
        let (status, body) = line_as_answer(received.get(..=end)?);
        Some((status, body.to_vec()))
    }

    fn status(&self) -> String {
        let guests = self.sockets.len();
        format!("{{\"guests\":{guests},\"accelerator\":\"tcg\"}}\n")
    }
}
