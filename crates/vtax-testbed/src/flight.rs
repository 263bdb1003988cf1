//! One errand in one emulated host, from its boot to what it brings back.

use crate::emulator::missing;
use crate::host::Host;
use crate::link::{End, Link};
use crate::machine::{self, Files};
use crate::outlet::{self, Lines};
use crate::payload::{self, Errand};
use crate::pstates;
use crate::scratch;
use crate::settings::Settings;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vtax_guest::platform::qemu::Options;
use vtax_host::HostError;
use vtax_lab::LabError;
use vtax_lab::place::Line;

/// How often the ports are looked at. The host inside does not notice.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// A host that has said nothing for so long is stuck: the longest trials report their phases.
const SILENCE: Duration = Duration::from_secs(3600);

/// What an emulated host may compute without a word, besides its trial's phases. Rarely one with a
/// nested guest gets stuck for good in QEMU's emulation, and computes on.
const BREATH: Duration = Duration::from_secs(120);

/// What an emulated host computes at most for a second of its own time.
const SLOWEST: u32 = 10;

/// What a host is booted with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket<'a> {
    pub host: &'a Host,
    pub settings: &'a Settings,
    /// Where the plan's client lives, where that is on a second host.
    pub link: Option<&'a Link>,
    /// For how long the errand may say nothing, by the host's own clock.
    pub silence: Duration,
}

/// A host on its errand. Dropping it ends the host.
pub(crate) struct Flight {
    machine: Running,
    there: Option<Client>,
    lines: Lines,
    words: Vec<String>,
    /// When it last said something, what it had computed by then, and how long its console was.
    heard: (Instant, Duration, u64),
    patience: Duration,
    directory: TempDir,
}

/// How a flight ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Landing {
    /// The command ended with this code, and its results are here.
    Ended(i32),
    /// A guest in it is stuck, or the host itself: how that was noticed.
    Stuck(String),
}

impl Flight {
    /// Boots a host.
    ///
    /// # Errors
    /// When its files cannot be written, or QEMU does not start.
    pub fn start(ticket: Ticket<'_>, errand: &Errand<'_>) -> Result<Self, LabError> {
        let Ticket {
            host,
            settings,
            link,
            silence,
        } = ticket;
        let directory = scratch::directory(&std::env::temp_dir())?;
        let path = |name: &str| directory.path().join(name);
        let (initrd, console) = (path("initrd"), path("console"));
        let (events, results, wire) = (path("events"), path("archive"), path("wire"));
        let there = link.map(|link| Client::start(host, settings, link, &wire));
        let there = there.transpose()?;
        fs::write(&initrd, payload::initrd(host, errand, link)?)
            .map_err(HostError::file("write", &initrd))?;
        let pstates = match errand {
            Errand::Trial {
                governors: true, ..
            } => Some(path("pstates")),
            _ => None,
        };
        if let Some(pstates) = &pstates {
            fs::write(pstates, pstates::table(settings.processors()))
                .map_err(HostError::file("write", pstates))?;
        }
        for file in [&console, &events, &results] {
            File::create(file).map_err(HostError::file("create", file))?;
        }
        let files = Files {
            initrd: &initrd,
            console: Some(&console),
            ports: Some((&events, &results)),
            link: there.as_ref().map(|_| (End::Host, wire.as_path())),
            pstates: pstates.as_deref(),
        };
        let machine = Running::start(&machine::command_line(host, settings, files))?;
        Ok(Self {
            lines: Lines::open(&events)?,
            heard: (Instant::now(), machine.computed(), 0),
            machine,
            there,
            words: Vec::new(),
            patience: BREATH + silence * SLOWEST,
            directory,
        })
    }

    /// What became of it; `None` while it is under way.
    ///
    /// # Errors
    /// When the host ended early (with the end of its console), says nothing at all, or what it brought
    /// is not what it announced.
    pub fn poll(&mut self) -> Result<Option<Landing>, LabError> {
        let ended = self.machine.ended()?;
        let words = &mut self.words;
        let arrived = self.lines.follow(&mut |line| {
            if let Line::Text(text) = line {
                words.push(text);
            }
        })?;
        if let Some(status) = ended {
            return self.land(status).map(Some);
        }
        if let Some(there) = &mut self.there {
            there.check()?;
        }
        let printed = fs::metadata(self.console()).map_or(0, |metadata| metadata.len());
        let computed = self.machine.computed();
        let since = computed.saturating_sub(self.heard.1);
        if self.lines.stuck() {
            return Ok(Some(Landing::Stuck(format!(
                "a guest took no interrupts any more, {} s of processor time after the last word",
                since.as_secs()
            ))));
        }
        if arrived || printed != self.heard.2 {
            self.heard = (Instant::now(), computed, printed);
        } else if since > self.patience {
            return Ok(Some(Landing::Stuck(format!(
                "the host computed for {} s without a word",
                since.as_secs()
            ))));
        } else if self.heard.0.elapsed() > SILENCE {
            return Err(LabError::Host(HostError::Timeout {
                what: "any word of the testbed".into(),
                seconds: SILENCE.as_secs(),
                evidence: tail(&self.console()),
            }));
        }
        Ok(None)
    }

    /// What the command said.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// The results that were brought back; there may be none.
    pub fn results(&self) -> PathBuf {
        self.directory.path().join("results")
    }

    fn console(&self) -> PathBuf {
        self.directory.path().join("console")
    }

    fn land(&mut self, status: ExitStatus) -> Result<Landing, LabError> {
        let Some(ended) = self.lines.ended() else {
            return Err(LabError::Host(HostError::Program {
                command: "the emulated host".into(),
                status: format!("{status}, before its results came"),
                output: format!("{}\n{}", tail(&self.console()), self.machine.messages()),
            }));
        };
        let archive = self.directory.path().join("archive");
        outlet::fetch(&archive, ended, &self.results())?;
        Ok(Landing::Ended(ended.code))
    }
}

/// The second host, where the plan's client lives.
struct Client {
    machine: Running,
    directory: TempDir,
}

impl Client {
    /// Boots it and waits until its end of the wire is there.
    fn start(host: &Host, settings: &Settings, link: &Link, wire: &Path) -> Result<Self, LabError> {
        let directory = scratch::directory(&std::env::temp_dir())?;
        let initrd = directory.path().join("initrd");
        let payload = payload::initrd(host, &Errand::Client, Some(link))?;
        fs::write(&initrd, payload).map_err(HostError::file("write", &initrd))?;
        let files = Files {
            initrd: &initrd,
            console: Some(&directory.path().join("console")),
            ports: None,
            link: Some((End::Client, wire)),
            pstates: None,
        };
        let machine = Running::start(&machine::command_line(host, settings, files))?;
        let mut client = Self { machine, directory };
        while !wire.exists() {
            client.check()?;
            std::thread::sleep(POLL);
        }
        Ok(client)
    }

    /// # Errors
    /// When it has ended.
    fn check(&mut self) -> Result<(), LabError> {
        let Some(status) = self.machine.ended()? else {
            return Ok(());
        };
        Err(LabError::Host(HostError::Program {
            command: "the emulated host of the client".to_owned(),
            status: format!("{status}, before the plan's end"),
            output: format!(
                "{}\n{}",
                tail(&self.directory.path().join("console")),
                self.machine.messages()
            ),
        }))
    }
}

/// A QEMU that ends with this value, and with this process however that ends.
struct Running {
    child: Child,
    messages: File,
}

impl Running {
    fn start(line: &Options) -> Result<Self, HostError> {
        let messages = tempfile::tempfile().map_err(HostError::file("create", "a log"))?;
        let output = messages
            .try_clone()
            .map_err(HostError::file("create", "a log"))?;
        let child = line
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .map_err(missing)?;
        Ok(Self { child, messages })
    }

    /// Processor time that it used so far; none once it has ended.
    fn computed(&self) -> Duration {
        fs::read_to_string(format!("/proc/{}/stat", self.child.id()))
            .ok()
            .and_then(|stat| processor_time(&stat))
            .unwrap_or_default()
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, HostError> {
        self.child
            .try_wait()
            .map_err(HostError::process("wait for", "QEMU"))
    }

    /// What QEMU said of itself, but for the features that emulation lacks.
    fn messages(&mut self) -> String {
        use std::io::{Read, Seek};
        let mut text = String::new();
        // Only for a message about another failure.
        let _ = self.messages.rewind();
        let _ = self.messages.read_to_string(&mut text);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.contains("TCG doesn't support requested feature"))
            .collect();
        lines.join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, or nobody waits for what it does.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// User and system time in a process's `stat` (proc_pid_stat(5)).
fn processor_time(stat: &str) -> Option<Duration> {
    // The second field is a name, which may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    let ticks = rustix::param::clock_ticks_per_second();
    Some(Duration::from_secs(user.checked_add(system)?) / u32::try_from(ticks).ok()?)
}

fn tail(console: &Path) -> String {
    let bytes = fs::read(console).unwrap_or_default();
    let end = bytes.get(bytes.len().saturating_sub(2048)..);
    String::from_utf8_lossy(end.unwrap_or_default()).replace('\r', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_user_and_system_time_whatever_the_name() {
        let hertz = rustix::param::clock_ticks_per_second();
        let stat = format!(
            "7 (a) b) S 1 7 7 0 -1 4194304 5 6 7 8 {} {} 9 9 20 0 1 0 5 6 7",
            2 * hertz,
            3 * hertz
        );
        assert_eq!(processor_time(&stat), Some(Duration::from_secs(5)));
        assert_eq!(processor_time("7 (a) S 1"), None);
    }
}
