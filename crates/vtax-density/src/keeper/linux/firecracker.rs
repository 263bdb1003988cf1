//! Firecracker: a configuration file in the place of its API, and its own input and output as the
//! guest's serial port (docs/getting-started.md and `VmmConfig` of its sources).

use super::{Guest, KERNEL_ARGUMENTS, MEMORY_MIB, Place};
use crate::keeper::singly::Echo;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use vtax_guest::image::EchoGuest;

pub(super) fn start(program: &Path, guest: &EchoGuest, place: &Place) -> std::io::Result<Guest> {
    let (config, (log, file)) = (place.file("json"), place.log()?);
    std::fs::write(&config, configuration(guest, &log).to_string())?;
    let (line, theirs) = Echo::pair()?;
    let child = Command::new(program)
        .args(["--no-api", "--config-file"])
        .arg(&config)
        .stdin(Stdio::from(theirs.try_clone()?))
        .stdout(Stdio::from(theirs))
        .stderr(file)
        .spawn()?;
    Ok(Guest {
        child,
        line,
        log,
        files: vec![config],
    })
}

/// One processor, no drive, no network; no PCI, which Firecracker's machine has only on request.
fn configuration(guest: &EchoGuest, log: &Path) -> Value {
    json!({
        "boot-source": {
            "kernel_image_path": guest.kernel,
            "initrd_path": guest.initrd,
            "boot_args": format!("{KERNEL_ARGUMENTS} pci=off"),
        },
        "drives": [],
        "machine-config": {"vcpu_count": 1, "mem_size_mib": MEMORY_MIB},
        // By itself it would log to the guest's serial port.
        "logger": {"log_path": log, "level": "Error"},
    })
}
