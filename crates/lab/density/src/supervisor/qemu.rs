// SPDX-License-Identifier: Apache-2.0
//! Guests that are QEMU processes, optionally with the paper's tuning. All boot the same 512-byte sector; a further
//! guest answers the probes on its serial port.

use super::error::{GuestError, Result, last_line};
use super::individual::{Echo, Probes};
use super::{Answer, Guard, Population, micros};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vtax_guest::platform::qemu::{Options, value};
use vtax_host::HostError;
use vtax_host::command::version_line;
use vtax_host::untrusted::shown;
use vtax_mvm::image::{DiskFormat, Image, write_disk};

/// The options of QEMU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QemuOptions {
    /// `qemu-system-x86_64` or `qemu-system-i386`.
    pub program: String,
    /// The machine type: pc, q35, isapc.
    pub machine: String,
    /// `kvm` or `tcg`.
    pub accel: String,
    /// Whether it has QEMU's default devices: display adapter, network, 128 MB. Otherwise it has a disk and a serial
    /// port only, and 1 MB, or 2 MB for a q35.
    pub is_stock: bool,
    /// The boot sector.
    pub image: String,
}

/// Time limit of a boot.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// Time between two checks of a booting guest; a check stops it briefly.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);
const FOLDER: &str = "/run/density-qemu";
/// The names of peers in errors.
const MONITOR: &str = "QEMU's monitor";
const PROBE: &str = "the probe";

impl QemuOptions {
    /// The command line of one guest.
    fn command_line(&self, disk: &Path, serial: &Path, monitor: &Path) -> Options {
        let socket = |path: &Path| format!("unix:{},server=on,wait=off", path.display());
        let mut line = Options::stock(&self.program);
        if !self.is_stock {
            // SeaBIOS needs more than 1 MB to read the disk of a q35, which is on AHCI.
            let mebibytes = if self.machine == "q35" { "2" } else { "1" };
            line.flag("-nodefaults")
                .flag("-no-user-config")
                .option("-vga", "none")
                .option("-m", mebibytes);
        }
        let trimmed = if self.is_stock || self.machine == "isapc" {
            ""
        } else {
            ",usb=off,hpet=off,vmport=off"
        };
        line.option("-machine", format!("{}{trimmed}", self.machine))
            .option("-accel", self.accel.as_str())
            .option("-display", "none")
            // All guests share one disk, and none writes to it.
            .option(
                "-drive",
                format!("file={},format=raw,if=ide,file.locking=off", value(disk)),
            )
            .option("-serial", socket(serial))
            .option("-monitor", socket(monitor));
        line
    }
}

#[derive(Debug)]
struct Guest {
    child: Child,
    began: Instant,
    serial: PathBuf,
    monitor: PathBuf,
    console: Option<Echo>,
    created: bool,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.serial);
        let _ = fs::remove_file(&self.monitor);
    }
}

/// The QEMUs of one supervisor.
#[derive(Debug)]
pub(super) struct QemuGuests {
    options: QemuOptions,
    disk: PathBuf,
    /// The guest that answers the probes.
    _probe: Guest,
    probes: Probes,
    guests: Vec<Guest>,
    next: u32,
    /// The prefix of the names of its files.
    prefix: String,
    random: fastrand::Rng,
}

impl QemuGuests {
    pub(super) fn new(options: &QemuOptions, image: &str, first: u32) -> Result<Self> {
        let prefix = format!("{first}-");
        fs::create_dir_all(FOLDER).map_err(HostError::file("create", FOLDER))?;
        let disk = |name: &str, image: &str| -> Result<PathBuf> {
            let image = Image::open(image)?;
            let path = Path::new(FOLDER).join(format!("{prefix}{name}"));
            write_disk(&image, DiskFormat::Raw, &path)?;
            Ok(path)
        };
        let own = disk("guest.img", image)?;
        let disk_of_probe = disk("probe.img", "web")?;
        let mut probe = start(options, &disk_of_probe, &format!("{prefix}probe"))?;
        while !probe.has_booted()? {
            std::thread::sleep(CHECK_INTERVAL);
        }
        Ok(Self {
            options: options.clone(),
            disk: own,
            probes: Probes::to(&probe.serial),
            _probe: probe,
            guests: Vec::new(),
            next: 0,
            prefix,
            random: fastrand::Rng::with_seed(1),
        })
    }
}

fn start(options: &QemuOptions, disk: &Path, name: &str) -> Result<Guest> {
    let path = |what: &str| Path::new(FOLDER).join(format!("{name}.{what}"));
    let (serial, monitor) = (path("serial"), path("monitor"));
    let log = vtax_files::create(&path("log")).map_err(HostError::from)?;
    let line = options.command_line(disk, &serial, &monitor);
    let child = Command::new(&options.program)
        .args(line.words().iter().skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(|cause| GuestError::Start {
            what: options.program.clone(),
            cause,
            remedy: "install the Debian package qemu-system-x86",
        })?;
    Ok(Guest {
        child,
        began: Instant::now(),
        serial,
        monitor,
        console: None,
        created: false,
    })
}

impl Guest {
    /// Whether the boot sector has reached its first `hlt`. QEMU's monitor shows that in the processor's registers,
    /// also for images without output.
    fn has_booted(&mut self) -> Result<bool> {
        if let Ok(Some(status)) = self.child.try_wait() {
            let log = fs::read_to_string(self.serial.with_extension("log")).unwrap_or_default();
            return Err(GuestError::Program {
                command: "QEMU".to_owned(),
                status,
                reason: last_line(&log),
            });
        }
        if self.began.elapsed() > BOOT_LIMIT {
            return Err(GuestError::Boot {
                what: format!(
                    "a QEMU did not boot its guest within {} s",
                    BOOT_LIMIT.as_secs()
                ),
                reason: "its processor did not halt in the boot sector".to_owned(),
                remedy: "if KVM cannot run its firmware, use accel = \"tcg\"".to_owned(),
            });
        }
        if self.console.is_none() {
            let Ok(console) = Echo::to(&self.monitor) else {
                return Ok(false);
            };
            self.console = Some(console);
            self.registers("")?;
            self.created = true;
        }
        let asleep = sleeps_in_sector(&self.registers("info registers\n")?);
        if asleep {
            // Closed, since connections to all guests would exhaust the descriptors of this process.
            self.console = None;
        }
        Ok(asleep)
    }

    /// Sends a line to the monitor and reads up to its next prompt.
    fn registers(&mut self, line: &str) -> Result<String> {
        let Some(console) = &mut self.console else {
            return Ok(String::new());
        };
        let prompt = |got: &[u8]| {
            let text = got.strip_suffix(b"(qemu) ")?;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        let answered = console.request(line.as_bytes(), prompt);
        answered.map_err(GuestError::no_answer(MONITOR))
    }
}

/// Whether `info registers` shows a processor that halts within a boot sector at 0000:7C00.
fn sleeps_in_sector(registers: &str) -> bool {
    let value = |name: &str| -> Option<u64> {
        let rest = registers.split_once(name)?.1;
        let digits: String = rest
            .trim_start()
            .chars()
            .take_while(char::is_ascii_hexdigit)
            .collect();
        u64::from_str_radix(&digits, 16).ok()
    };
    let instruction = value("RIP=").or_else(|| value("EIP="));
    instruction.is_some_and(|at| (0x7C00..0x7E00).contains(&at))
        && value("CS =") == Some(0)
        && value("HLT=") == Some(1)
}

impl Population for QemuGuests {
    fn count(&self) -> u32 {
        u32::try_from(self.guests.len()).unwrap_or(u32::MAX)
    }

    /// As many guests boot at a time as there are processors.
    fn grow(&mut self, to: u32, guard: &mut Guard, answer: &mut Answer) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut booting: Vec<Guest> = Vec::new();
        loop {
            let wanted = usize::try_from(to)
                .unwrap_or(0)
                .saturating_sub(self.guests.len());
            while booting.len() < cores.min(wanted) && guard.permits() {
                let guest = start(
                    &self.options,
                    &self.disk,
                    &format!("{}{}", self.prefix, self.next),
                )?;
                self.next += 1;
                booting.push(guest);
            }
            if booting.is_empty() {
                return Ok(());
            }
            let mut still = Vec::new();
            for mut guest in booting {
                let created = guest.created;
                let booted = guest.has_booted()?;
                if !created && guest.created {
                    answer.create.push(micros(guest.began.elapsed()));
                }
                if booted {
                    answer.boot.push(micros(guest.began.elapsed()));
                    self.guests.push(guest);
                } else {
                    still.push(guest);
                }
            }
            booting = still;
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    fn shrink(&mut self, to: u32) -> Result<()> {
        let left = usize::try_from(to).unwrap_or(0).min(self.guests.len());
        // Guests end at random.
        self.random.shuffle(&mut self.guests);
        for guest in self.guests.iter_mut().skip(left) {
            // All are killed before the first is waited for.
            let _ = guest.child.kill();
        }
        self.guests.truncate(left);
        Ok(())
    }

    fn ask(&mut self) -> Result<Duration> {
        let line = |got: &[u8]| got.strip_suffix(b"\n").map(<[u8]>::to_vec);
        let answered = self.probes.request(b"/hi\n", line);
        let (answer, took) = answered.map_err(GuestError::no_answer(PROBE))?;
        if answer.starts_with(b"200") {
            return Ok(took);
        }
        Err(GuestError::WrongAnswer {
            peer: PROBE.to_owned(),
            answer: shown(String::from_utf8_lossy(&answer).trim()),
        })
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let line =
            self.options
                .command_line(&self.disk, Path::new("N.serial"), Path::new("N.monitor"));
        let fact = |name: &str, value: String| (name.to_owned(), value);
        [
            fact("qemu.version", version_line(&self.options.program)),
            fact("qemu.command", line.words().join(" ")),
        ]
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(is_stock: bool, machine: &str) -> QemuOptions {
        QemuOptions {
            program: "qemu-system-x86_64".to_owned(),
            machine: machine.to_owned(),
            accel: "tcg".to_owned(),
            is_stock,
            image: "idle".to_owned(),
        }
    }

    const STOCK: &str = "qemu-system-x86_64 -machine pc -accel tcg -display none -drive \
        file=d,format=raw,if=ide,file.locking=off -serial unix:s,server=on,wait=off -monitor \
        unix:m,server=on,wait=off";
    const TUNED: &str = "qemu-system-x86_64 -nodefaults -no-user-config -vga none -m 2 -machine \
        q35,usb=off,hpet=off,vmport=off -accel tcg -display none -drive \
        file=d,format=raw,if=ide,file.locking=off -serial unix:s,server=on,wait=off -monitor \
        unix:m,server=on,wait=off";

    fn line(options: &QemuOptions) -> String {
        options
            .command_line(Path::new("d"), Path::new("s"), Path::new("m"))
            .words()
            .join(" ")
    }

    #[test]
    fn the_whole_line_is_as_it_was() {
        assert_eq!(line(&options(true, "pc")), STOCK);
        assert_eq!(line(&options(false, "q35")), TUNED);
    }

    #[test]
    fn stock_has_what_qemu_gives_and_tuned_has_nothing_more_than_asked_for() {
        let stock = line(&options(true, "pc"));
        assert!(stock.contains("-machine pc -accel tcg") && !stock.contains("nodefaults"));
        let tuned = line(&options(false, "q35"));
        assert!(
            tuned.contains("-nodefaults")
                && tuned.contains("-m 2 ")
                && tuned.contains("q35,usb=off")
        );
        assert!(line(&options(false, "isapc")).contains("-m 1 -machine isapc -accel"));
    }

    #[test]
    fn only_a_processor_that_halts_in_the_sector_has_booted() {
        let asleep = "EIP=00007c42 EFL=00000246\r\nCS =0000 00000000 0000ffff\r\nSMM=0 HLT=1\r\n";
        assert!(sleeps_in_sector(asleep));
        assert!(sleeps_in_sector(
            &asleep.replace("EIP=0000", "RIP=000000000000")
        ));
        assert!(!sleeps_in_sector(&asleep.replace("HLT=1", "HLT=0")));
        assert!(!sleeps_in_sector(&asleep.replace("CS =0000", "CS =f000")));
        assert!(!sleeps_in_sector(&asleep.replace("7c42", "1234")));
        assert!(!sleeps_in_sector(""));
    }
}
