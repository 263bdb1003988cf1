//! Cloud Hypervisor: all on its command line, and the guest's serial port as a UNIX socket, since it
//! reads its own input only from a terminal.

use super::{Guest, KERNEL_ARGUMENTS, MEMORY_MIB, Place};
use crate::keeper::singly::Echo;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vtax_guest::image::EchoGuest;

/// How long it may take to make its socket, which it does before its guest boots.
const SOCKET_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn start(program: &Path, guest: &EchoGuest, place: &Place) -> std::io::Result<Guest> {
    let (serial, (log, file)) = (place.file("serial"), place.log()?);
    let mut child = Command::new(program)
        .args(arguments(guest, &serial))
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()?;
    // At once: what a guest says while nobody listens is lost.
    let began = Instant::now();
    let mut line = None;
    while line.is_none() && child.try_wait()?.is_none() && began.elapsed() < SOCKET_LIMIT {
        std::thread::sleep(Duration::from_millis(1));
        line = UnixStream::connect(&serial).ok();
    }
    let line = match line {
        Some(line) => Echo::over(line)?,
        // Closed at the other end: the wait for its boot finds out why.
        None => Echo::pair()?.0,
    };
    Ok(Guest {
        child,
        line,
        log,
        files: vec![serial],
    })
}

fn arguments(guest: &EchoGuest, serial: &Path) -> Vec<String> {
    [
        "--kernel",
        &guest.kernel.display().to_string(),
        "--initramfs",
        &guest.initrd.display().to_string(),
        "--cmdline",
        KERNEL_ARGUMENTS,
        "--cpus",
        "boot=1",
        "--memory",
        &format!("size={MEMORY_MIB}M"),
        "--console",
        "off",
        "--serial",
        &format!("socket={}", serial.display()),
    ]
    .map(str::to_owned)
    .to_vec()
}
