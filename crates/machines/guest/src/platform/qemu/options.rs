// SPDX-License-Identifier: Apache-2.0
//! The builder of QEMU's command line, for every QEMU that vtax starts.

use std::path::Path;
use std::process::Command;
use vtax_host::command::CommandLine;
use vtax_host::roots::PATH;

/// The q35 machine without unused controllers, which firmware and kernel would probe in every boot.
pub const Q35: &str = "q35,usb=off,vmport=off,smm=off,sata=off,smbus=off";

/// A path as the value of a QEMU option, where `,` ends the value and `,,` is a comma.
pub fn value(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// A command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options(CommandLine);

impl Options {
    /// A machine with QEMU's default devices.
    pub fn stock(binary: &str) -> Self {
        Self(vec![binary.to_owned()])
    }

    /// A machine without default devices and display. QEMU exits instead of a reboot, so that a guest's panic shows
    /// at once.
    pub fn bare(binary: &str) -> Self {
        let mut options = Self::stock(binary);
        options
            .flag("-nodefaults")
            .flag("-no-user-config")
            .option("-display", "none")
            .flag("-no-reboot");
        options
    }

    /// An option without a value.
    pub fn flag(&mut self, name: &str) -> &mut Self {
        self.0.push(name.to_owned());
        self
    }

    /// An option.
    pub fn option(&mut self, name: &str, value: impl Into<String>) -> &mut Self {
        self.flag(name);
        self.0.push(value.into());
        self
    }

    /// A kernel that QEMU loads directly, without firmware or boot loader.
    pub fn kernel(&mut self, kernel: &Path, initrd: &Path, line: impl Into<String>) -> &mut Self {
        self.option("-kernel", kernel.to_string_lossy())
            .option("-initrd", initrd.to_string_lossy())
            .option("-append", line)
    }

    /// A character device that writes to a file.
    pub fn file(&mut self, id: &str, path: &Path) -> &mut Self {
        self.option("-chardev", format!("file,id={id},path={}", value(path)))
    }

    /// A character device that listens at a UNIX socket and does not wait for a client.
    pub fn socket(&mut self, id: &str, path: &Path) -> &mut Self {
        let path = value(path);
        self.option(
            "-chardev",
            format!("socket,id={id},path={path},server=on,wait=off"),
        )
    }

    /// A port to the guest over a character device, by the name that the guest sees.
    pub fn port(&mut self, chardev: &str, name: &str) -> &mut Self {
        self.option(
            "-device",
            format!("virtserialport,chardev={chardev},name={name}"),
        )
    }

    /// The words of the command line, with the program.
    pub fn words(&self) -> &[String] {
        &self.0
    }

    /// A command that ends with this process, even after `kill -9`, and that preempts no other program when it wakes up
    /// (`SCHED_BATCH`). The threads of a QEMU whose clock is the instruction count wake each other tens of thousands of
    /// times a second while its host is idle, and each wakeup would preempt.
    pub fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", "chrt", "--batch", "0"])
            .args(&self.0)
            .env("PATH", PATH);
        command
    }
}

impl From<Options> for CommandLine {
    fn from(options: Options) -> Self {
        options.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_preempts_no_other_program() {
        let mut asks = Options::stock("sh");
        asks.option("-c", "chrt -p $$");
        let printed = asks.command().output().unwrap();
        let printed = String::from_utf8(printed.stdout).unwrap();
        assert!(printed.contains("SCHED_BATCH"), "{printed}");
    }
}
