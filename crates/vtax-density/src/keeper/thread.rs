//! The lowest floor: a thread that sleeps until it is asked.

use super::{Guard, Population, Tally, micros};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Large enough for a loop that does nothing; of these only the touched pages are memory.
const STACK: usize = 32 << 10;

#[derive(Debug)]
struct Guest {
    ask: SyncSender<u8>,
    answer: Receiver<u8>,
    thread: JoinHandle<()>,
}

/// Threads of this process.
#[derive(Debug)]
pub(super) struct Threads {
    guests: Vec<Guest>,
    random: fastrand::Rng,
}

impl Default for Threads {
    fn default() -> Self {
        Self {
            guests: Vec::new(),
            random: fastrand::Rng::with_seed(1),
        }
    }
}

impl Guest {
    fn start() -> Result<Self, String> {
        let (ask, asked) = sync_channel::<u8>(1);
        let (reply, answer) = sync_channel::<u8>(1);
        let thread = std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || {
                for byte in asked {
                    if reply.send(byte).is_err() {
                        return;
                    }
                }
            })
            .map_err(|cause| {
                format!("cannot start a thread: {cause}; see kernel.pid_max, kernel.threads-max and vm.max_map_count")
            })?;
        Ok(Self {
            ask,
            answer,
            thread,
        })
    }

    fn echo(&self) -> Result<(), String> {
        let ended = || "a thread has ended".to_owned();
        self.ask.send(b'?').map_err(|_| ended())?;
        self.answer
            .recv_timeout(Duration::from_secs(10))
            .map(drop)
            .map_err(|cause| format!("a thread gave no answer: {cause}"))
    }
}

impl Population for Threads {
    fn count(&self) -> u32 {
        u32::try_from(self.guests.len()).unwrap_or(u32::MAX)
    }

    fn grow(&mut self, to: u32, guard: &mut Guard, tally: &mut Tally) -> Result<(), String> {
        while self.count() < to && guard.permits() {
            let began = Instant::now();
            let guest = Guest::start()?;
            tally.create.push(micros(began.elapsed()));
            guest.echo()?;
            tally.boot.push(micros(began.elapsed()));
            self.guests.push(guest);
        }
        Ok(())
    }

    fn shrink(&mut self, to: u32) -> Result<(), String> {
        for guest in self
            .guests
            .drain(usize::try_from(to).unwrap_or(0).min(self.guests.len())..)
        {
            drop(guest.ask);
            guest
                .thread
                .join()
                .map_err(|_| "a thread panicked".to_owned())?;
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<Duration, String> {
        if self.guests.is_empty() {
            return Err("there is no guest to ask".to_owned());
        }
        let chosen = self.random.usize(..self.guests.len());
        let Some(guest) = self.guests.get(chosen) else {
            return Err("there is no guest to ask".to_owned());
        };
        let began = Instant::now();
        guest.echo()?;
        Ok(began.elapsed())
    }
}
