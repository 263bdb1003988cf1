//! The lowest floor: a thread that sleeps until it is asked.

use super::singly::{PATIENCE, Singly};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Large enough for a loop that does nothing; of these only the touched pages are memory.
const STACK: usize = 32 << 10;

#[derive(Debug)]
pub(super) struct Guest {
    ask: SyncSender<u8>,
    answer: Receiver<u8>,
    thread: JoinHandle<()>,
}

/// Threads of this process.
#[derive(Debug)]
pub(super) struct Threads;

impl Singly for Threads {
    type Guest = Guest;

    fn start(&mut self, _number: u32) -> Result<Guest, String> {
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
        Ok(Guest {
            ask,
            answer,
            thread,
        })
    }

    fn ask(&mut self, guest: &mut Guest) -> Result<Duration, String> {
        let began = Instant::now();
        let ended = || "a thread has ended".to_owned();
        guest.ask.send(b'?').map_err(|_| ended())?;
        guest
            .answer
            .recv_timeout(PATIENCE)
            .map(|_| began.elapsed())
            .map_err(|cause| format!("a thread gave no answer: {cause}"))
    }

    fn end(&mut self, guest: Guest, _number: u32) -> Result<(), String> {
        drop(guest.ask);
        guest
            .thread
            .join()
            .map_err(|_| "a thread panicked".to_owned())
    }
}
