// SPDX-License-Identifier: Apache-2.0
//! A shell on the console of an emulated host.

use crate::emulator::missing;
use crate::host::Host;
use crate::machine::{self, Files};
use crate::payload::{BootFiles, Payload};
use crate::scratch::Scratch;
use crate::settings::Settings;
use vtax_host::HostError;

/// Boots a host with this terminal as its console, until it is powered off.
///
/// # Errors
/// When it cannot be started, or QEMU fails.
pub fn shell(host: &Host, settings: &Settings) -> Result<(), HostError> {
    host.emulator.supports(settings)?;
    let directory = Scratch::create(&std::env::temp_dir())?;
    let binary = std::env::current_exe().map_err(HostError::process("find", "the vtax program"))?;
    let shell = Payload::Shell { binary: &binary };
    let boot_files = BootFiles::pack(directory.path(), host, settings, &shell, None)?;
    let payload = shell.pack(directory.path(), host.hypervisor)?;
    let files = Files::from_initrd(&boot_files.initrd, &payload);
    let line = machine::command_line(host, settings, files);
    let status = line.command().status().map_err(missing)?;
    if status.success() {
        return Ok(());
    }
    Err(HostError::Program {
        command: line.words().join(" "),
        status: status.to_string(),
        output: String::new(),
    })
}
