//! A floor: a process that sleeps until it is asked. The program is `cat` of a static busybox,
//! the same as in a container.

use super::{Guard, Population, Tally, micros};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long an answer may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A guest that echoes what it is sent.
#[derive(Debug)]
pub(super) struct Echo(UnixStream);

impl Echo {
    /// Our end, and the guest's for its input and output.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(PATIENCE))?;
        Ok((Self(ours), theirs.into()))
    }

    /// Sends a byte and waits until it comes back.
    pub(super) fn ask(&mut self) -> Result<Duration, String> {
        let began = Instant::now();
        let mut byte = [b'?'];
        self.0
            .write_all(&byte)
            .and_then(|()| self.0.read_exact(&mut byte))
            .map_err(|cause| format!("a guest gave no answer: {cause}"))?;
        Ok(began.elapsed())
    }
}

/// The static busybox of this host.
pub(super) fn busybox() -> Result<PathBuf, String> {
    vtax_lab::Roots::host()
        .path
        .iter()
        .map(|folder| folder.join("busybox"))
        .find(|program| program.is_file())
        .ok_or_else(|| "busybox is missing: install the Debian package busybox-static".to_owned())
}

/// Processes below this one.
#[derive(Debug)]
pub(super) struct Processes {
    busybox: PathBuf,
    guests: Vec<(Child, Echo)>,
    random: fastrand::Rng,
}

impl Processes {
    pub(super) fn new() -> Result<Self, String> {
        Ok(Self {
            busybox: busybox()?,
            guests: Vec::new(),
            random: fastrand::Rng::with_seed(1),
        })
    }

    fn start(&self) -> io::Result<(Child, Echo)> {
        let (echo, theirs) = Echo::pair()?;
        let child = Command::new(&self.busybox)
            .arg("cat")
            .stdin(Stdio::from(theirs.try_clone()?))
            .stdout(Stdio::from(theirs))
            .stderr(Stdio::null())
            .spawn()?;
        Ok((child, echo))
    }
}

impl Population for Processes {
    fn count(&self) -> u32 {
        u32::try_from(self.guests.len()).unwrap_or(u32::MAX)
    }

    fn grow(&mut self, to: u32, guard: &mut Guard, tally: &mut Tally) -> Result<(), String> {
        while self.count() < to && guard.permits() {
            let began = Instant::now();
            let (child, mut echo) = self.start().map_err(|cause| {
                format!("cannot start a process: {cause}; see `ulimit -n`, `ulimit -u` and kernel.pid_max")
            })?;
            tally.create.push(micros(began.elapsed()));
            let answered = echo.ask();
            self.guests.push((child, echo));
            answered?;
            tally.boot.push(micros(began.elapsed()));
        }
        Ok(())
    }

    fn shrink(&mut self, to: u32) -> Result<(), String> {
        for (mut child, echo) in self
            .guests
            .drain(usize::try_from(to).unwrap_or(0).min(self.guests.len())..)
        {
            // Its input ends, and `cat` with it.
            drop(echo);
            child
                .wait()
                .map_err(|cause| format!("cannot wait for a process: {cause}"))?;
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<Duration, String> {
        if self.guests.is_empty() {
            return Err("there is no guest to ask".to_owned());
        }
        let chosen = self.random.usize(..self.guests.len());
        match self.guests.get_mut(chosen) {
            Some((_, echo)) => echo.ask(),
            None => Err("there is no guest to ask".to_owned()),
        }
    }
}
