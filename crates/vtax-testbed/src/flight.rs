//! One errand in one emulated host, from its boot, or the moment that it begins at, to what it brings back.

use crate::host::Host;
use crate::link::{End, Link};
use crate::machine::{self, Files};
use crate::moment::{self, Moment};
use crate::outlet::{self, Lines};
use crate::payload::{Errand, Luggage};
use crate::running::{BREATH, Ports, Running, tail};
use crate::scratch::Scratch;
use crate::settings::Settings;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use vtax_host::HostError;
use vtax_lab::LabError;
use vtax_lab::place::Line;

/// How often the ports are looked at. The host inside does not notice.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// The most lines of text that are kept of a host.
const MOST_WORDS: usize = 10_000;

/// A host that has said nothing for so long is stuck: the longest trials report their phases.
const SILENCE: Duration = Duration::from_secs(3600);

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
    /// What the host is told once it rests: see [`Files::told`].
    pub told: &'a str,
    /// What it is brought then: see [`Errand::bring`].
    pub errand: &'a Path,
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
    directory: Scratch,
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
    pub fn boot(ticket: Ticket<'_>, errand: &Errand<'_>) -> Result<Self, LabError> {
        let Ticket {
            host,
            settings,
            link,
            ..
        } = ticket;
        let directory = Scratch::create(&std::env::temp_dir())?;
        let wire = directory.path().join("wire");
        let there = link.map(|link| Client::start(host, settings, link, &wire));
        let there = there.transpose()?;
        let luggage = Luggage::pack(directory.path(), host, settings, errand, link)?;
        let ports = Ports::create(directory.path())?;
        let files = Files {
            initrd: &luggage.initrd,
            errand: ticket.errand,
            link: there.as_ref().map(|_| (End::Host, wire.as_path())),
            pstates: luggage.pstates.as_deref(),
            told: Some(ticket.told),
            ..ports.files()
        };
        let machine = Running::start(&machine::command_line(host, settings, files), None)?;
        Self::of(machine, there, &ports, ticket.silence, directory)
    }

    /// Begins at a moment that a host of the same settings and disks has kept.
    ///
    /// # Errors
    /// As [`Flight::boot`], and when QEMU does not take the state.
    pub fn resume(ticket: Ticket<'_>, moment: &Moment) -> Result<Self, LabError> {
        let directory = Scratch::create(&std::env::temp_dir())?;
        let monitor = directory.path().join("monitor");
        let ports = Ports::create(directory.path())?;
        let paths = moment.paths();
        let files = Files {
            told: Some(ticket.told),
            ..paths.files(&ports, ticket.errand, &monitor, false)
        };
        let line = machine::command_line(ticket.host, ticket.settings, files);
        let mut machine = Running::start(&line, Some(&paths.state))?;
        machine.monitor(&monitor)?.load(&moment::from_state())?;
        Self::of(machine, None, &ports, ticket.silence, directory)
    }

    fn of(
        machine: Running,
        there: Option<Client>,
        ports: &Ports,
        silence: Duration,
        directory: Scratch,
    ) -> Result<Self, LabError> {
        Ok(Self {
            lines: Lines::open(&ports.events)?,
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
            if let Line::Text(text) = line
                && words.len() < MOST_WORDS
            {
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
    directory: Scratch,
}

impl Client {
    /// Boots it and waits until its end of the wire is there.
    fn start(host: &Host, settings: &Settings, link: &Link, wire: &Path) -> Result<Self, LabError> {
        let directory = Scratch::create(&std::env::temp_dir())?;
        let luggage = Luggage::pack(
            directory.path(),
            host,
            settings,
            &Errand::Client,
            Some(link),
        )?;
        let files = Files {
            initrd: &luggage.initrd,
            errand: &Errand::Client.bring(directory.path(), host.hypervisor)?,
            console: Some(&directory.path().join("console")),
            ports: None,
            link: Some((End::Client, wire)),
            pstates: None,
            told: None,
            moment: None,
        };
        let machine = Running::start(&machine::command_line(host, settings, files), None)?;
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
