// SPDX-License-Identifier: Apache-2.0
//! Guests that are threads, a lower bound of the cost of any guest: each sleeps until a probe.

use super::error::{GuestError, Result};
use super::individual::{ANSWER_LIMIT, GuestDriver};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Stack of a thread; only its touched pages take memory.
const STACK: usize = 32 << 10;

#[derive(Debug)]
pub(super) struct Guest {
    ask: SyncSender<u8>,
    answer: Receiver<u8>,
    thread: JoinHandle<()>,
}

/// The threads of this process.
#[derive(Debug)]
pub(super) struct Threads;

impl GuestDriver for Threads {
    type Guest = Guest;

    fn start(&mut self, _number: u32) -> Result<Guest> {
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
            .map_err(|cause| GuestError::Start {
                what: "a thread".to_owned(),
                cause,
                remedy: "check kernel.pid_max, kernel.threads-max and vm.max_map_count",
            })?;
        Ok(Guest {
            ask,
            answer,
            thread,
        })
    }

    fn await_boot(&mut self, guest: &mut Guest) -> Result<()> {
        self.ask(guest).map(drop)
    }

    fn ask(&mut self, guest: &mut Guest) -> Result<Duration> {
        let began = Instant::now();
        let sent = guest.ask.send(b'?').map_err(io::Error::other);
        let answered = sent.and_then(|()| {
            let answer = guest.answer.recv_timeout(ANSWER_LIMIT);
            answer.map_err(io::Error::other)
        });
        answered
            .map(|_| began.elapsed())
            .map_err(GuestError::no_answer("a thread"))
    }

    fn end(&mut self, guest: Guest, _number: u32) -> Result<()> {
        drop(guest.ask);
        guest.thread.join().map_err(|_| GuestError::Panicked)
    }
}
