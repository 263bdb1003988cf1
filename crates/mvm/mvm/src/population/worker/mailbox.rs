// SPDX-License-Identifier: Apache-2.0
//! Answers between workers, and their sleep without lost wake-ups.
//!
//! A worker without work first sets its flag `asleep`, then checks for work once more, then waits for events. A
//! publisher first publishes work, then reads the flags. Both the check and the publication take one lock. If the
//! check came first, the publisher reads the flag and wakes the worker; if it came second, it finds the work.

use super::super::{Answer, ReplyTo, lock};
use crate::error::{Error, Result};
use mio::{Events, Poll, Token, Waker};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The event of a wake-up.
pub const WAKE: Token = Token(0);

#[derive(Debug)]
struct Mailbox {
    answers: Mutex<Vec<(ReplyTo, Answer)>>,
    waker: Waker,
    asleep: AtomicBool,
}

impl Mailbox {
    /// Wakes the worker if it sleeps or is about to. Returns whether that was the case.
    fn wake(&self) -> bool {
        let asleep = self.asleep.swap(false, Ordering::SeqCst);
        if asleep {
            // The wake-up writes to an eventfd whose counter cannot overflow.
            let _ = self.waker.wake();
        }
        asleep
    }
}

/// A mailbox for each worker.
#[derive(Debug)]
pub struct Mailboxes(Vec<Mailbox>);

impl Mailboxes {
    /// A mailbox for each worker. A wake-up ends the worker's `poll`.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when no descriptor is left.
    pub fn new<'a>(polls: impl IntoIterator<Item = &'a Poll>) -> Result<Self> {
        let mailbox = |poll: &Poll| {
            Ok(Mailbox {
                answers: Mutex::default(),
                waker: Waker::new(poll.registry(), WAKE)
                    .map_err(|cause| Error::of_limit("make a worker's waker", cause))?,
                asleep: AtomicBool::new(false),
            })
        };
        let mailboxes: Result<_> = polls.into_iter().map(mailbox).collect();
        Ok(Self(mailboxes?))
    }

    /// Wakes a sleeping worker, if there is one, after work was published.
    pub fn wake_one(&self) {
        let _ = self.0.iter().any(Mailbox::wake);
    }

    /// Wakes every worker.
    pub fn wake_all(&self) {
        for mailbox in &self.0 {
            mailbox.wake();
        }
    }

    /// Adds an answer to the mailbox of the worker that has the connection.
    pub fn post(&self, reply: ReplyTo, answer: Answer) {
        if let Some(mailbox) = self.0.get(reply.worker) {
            lock(&mailbox.answers).push((reply, answer));
            mailbox.wake();
        }
    }

    /// Takes a worker's answers.
    pub fn take(&self, worker: usize) -> Vec<(ReplyTo, Answer)> {
        self.0
            .get(worker)
            .map(|mailbox| std::mem::take(&mut *lock(&mailbox.answers)))
            .unwrap_or_default()
    }

    /// Waits for events until `timeout`, or without a limit if that is `None`, unless `work` returns true.
    ///
    /// # Errors
    /// When the kernel fails, except by interruptions.
    pub fn sleep(
        &self,
        worker: usize,
        poll: &mut Poll,
        events: &mut Events,
        timeout: Option<Duration>,
        work: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        let Some(mailbox) = self.0.get(worker) else {
            return Ok(());
        };
        mailbox.asleep.store(true, Ordering::SeqCst);
        let busy = !lock(&mailbox.answers).is_empty() || work();
        let outcome = look(
            poll,
            events,
            if busy { Some(Duration::ZERO) } else { timeout },
        );
        mailbox.asleep.store(false, Ordering::SeqCst);
        outcome
    }
}

/// Reads the pending events, or waits for some until `timeout`.
///
/// # Errors
/// When the kernel fails, except by interruptions, such as by the slice timer.
pub fn look(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
    match poll.poll(events, timeout) {
        Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {
            events.clear();
            Ok(())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    /// Workers that take from one queue and sleep without a time-out.
    struct Pool {
        mailboxes: Mailboxes,
        queue: Mutex<VecDeque<u64>>,
        done: AtomicU64,
        stopping: AtomicBool,
    }

    fn pool(workers: usize) -> (Arc<Pool>, Vec<std::thread::JoinHandle<()>>) {
        let polls: Vec<Poll> = (0..workers).map(|_| Poll::new().unwrap()).collect();
        let pool = Arc::new(Pool {
            mailboxes: Mailboxes::new(&polls).unwrap(),
            queue: Mutex::default(),
            done: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        });
        let threads = polls
            .into_iter()
            .enumerate()
            .map(|(index, poll)| {
                let pool = Arc::clone(&pool);
                std::thread::spawn(move || pool.work(index, poll))
            })
            .collect();
        (pool, threads)
    }

    impl Pool {
        fn work(&self, index: usize, mut poll: Poll) {
            let mut events = Events::with_capacity(8);
            while !self.stopping.load(Ordering::SeqCst) {
                let work = || !lock(&self.queue).is_empty() || self.stopping.load(Ordering::SeqCst);
                self.mailboxes
                    .sleep(index, &mut poll, &mut events, None, work)
                    .unwrap();
                let answers = self.mailboxes.take(index).len() as u64;
                let taken = u64::from(lock(&self.queue).pop_front().is_some());
                // As a worker does before its turn: another worker takes the rest.
                if !lock(&self.queue).is_empty() {
                    self.mailboxes.wake_one();
                }
                self.done.fetch_add(answers + taken, Ordering::SeqCst);
            }
        }

        fn reach(&self, count: u64) {
            let deadline = Instant::now() + Duration::from_secs(20);
            while self.done.load(Ordering::SeqCst) < count {
                assert!(
                    Instant::now() < deadline,
                    "work {count} is left to workers that sleep"
                );
                std::hint::spin_loop();
            }
        }
    }

    /// One worker on this thread, which work can reach at each step of its going to sleep.
    struct Sleeper {
        mailboxes: Mailboxes,
        poll: Poll,
        queue: Mutex<Vec<u64>>,
    }

    impl Sleeper {
        fn new() -> Self {
            let poll = Poll::new().unwrap();
            Self {
                mailboxes: Mailboxes::new([&poll]).unwrap(),
                poll,
                queue: Mutex::default(),
            }
        }

        fn publish(&self) {
            lock(&self.queue).push(1);
            self.mailboxes.wake_one();
        }

        fn post(&self) {
            let reply = ReplyTo {
                worker: 0,
                connection: 0,
                request: 0,
            };
            self.mailboxes.post(reply, Answer::TooLong);
        }

        /// Sleeps until woken; `late` runs between the last check for work and the wait. Returns whether the sleep
        /// lasted to its time limit.
        fn sleeps_through(&mut self, late: impl FnOnce(&Mailboxes, &Mutex<Vec<u64>>)) -> bool {
            let long = Duration::from_secs(5);
            let started = Instant::now();
            let (mailboxes, queue) = (&self.mailboxes, &self.queue);
            let mut events = Events::with_capacity(8);
            mailboxes
                .sleep(0, &mut self.poll, &mut events, Some(long), || {
                    let work = !lock(queue).is_empty();
                    late(mailboxes, queue);
                    work
                })
                .unwrap();
            started.elapsed() >= long
        }
    }

    #[test]
    fn work_published_before_a_worker_says_that_it_sleeps_is_found() {
        let mut sleeper = Sleeper::new();
        sleeper.publish();
        assert!(!sleeper.sleeps_through(|_, _| ()));
    }

    #[test]
    fn an_answer_posted_before_a_worker_says_that_it_sleeps_is_found() {
        let mut sleeper = Sleeper::new();
        sleeper.post();
        assert!(!sleeper.sleeps_through(|_, _| ()));
    }

    #[test]
    fn work_published_after_the_last_look_wakes_the_worker() {
        let mut sleeper = Sleeper::new();
        assert!(!sleeper.sleeps_through(|mailboxes, queue| {
            lock(queue).push(1);
            mailboxes.wake_one();
        }));
    }

    #[test]
    fn a_worker_is_woken_once_for_each_sleep_and_again_in_the_next() {
        let mut sleeper = Sleeper::new();
        for _ in 0..3 {
            let woken = !sleeper.sleeps_through(|mailboxes, _| {
                mailboxes.wake_one();
                mailboxes.wake_one();
                mailboxes.wake_all();
            });
            assert!(woken);
        }
        // No earlier wake-up is left that would end the next sleep.
        let mut events = Events::with_capacity(8);
        let brief = Some(Duration::from_millis(20));
        let started = Instant::now();
        let Sleeper {
            mailboxes, poll, ..
        } = &mut sleeper;
        mailboxes
            .sleep(0, poll, &mut events, brief, || false)
            .unwrap();
        assert!(started.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn work_that_comes_while_a_worker_goes_to_sleep_is_done() {
        let (pool, threads) = pool(2);
        // One item at a time, each just when the workers go to sleep after the last: a lost wake-up would leave the
        // item undone, because nothing else wakes the workers.
        for number in 1..=20_000 {
            if number % 2 == 0 {
                lock(&pool.queue).push_back(number);
                pool.mailboxes.wake_one();
            } else {
                let reply = ReplyTo {
                    worker: usize::from(number % 4 == 1),
                    connection: 0,
                    request: number,
                };
                pool.mailboxes.post(reply, Answer::TooLong);
            }
            pool.reach(number);
        }
        pool.stopping.store(true, Ordering::SeqCst);
        pool.mailboxes.wake_all();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
