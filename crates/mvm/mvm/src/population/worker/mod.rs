// SPDX-License-Identifier: Apache-2.0
//! Workers: identical threads that each serve connections and give guests their turns.
//!
//! One thread reads a request, wakes, runs and parks its guest, and writes the answer. A worker without work sleeps in
//! the kernel, without a timer unless some guest's own timer is due.
//!
//! Workers serve HTTP themselves and not through [`vtax_http::Server`], which has a thread for each client and would
//! pass each answer between threads twice. Both share the syntax.

mod connection;
mod event_loop;
mod mailbox;
mod serving;
mod timers;
mod turn;

use super::{Census, Holding, Population, capacity, lock};
use crate::error::{Error, Result};
use event_loop::Worker;
use mailbox::Mailboxes;
use mio::Poll;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vtax_http::unix::{self, Users};

/// Time limit of a guest's answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The addresses of a population.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// HTTP over TCP.
    pub http: Option<SocketAddr>,
    /// The multiplexed UNIX socket.
    pub unix: Option<PathBuf>,
}

/// Listening sockets of workers that do not run yet. Starting the workers opens no socket, so that the sandbox may be
/// entered before.
#[derive(Debug)]
pub struct Listeners {
    tcp: Option<TcpListener>,
    unix: Option<(UnixListener, PathBuf)>,
}

impl Listeners {
    /// Listens.
    ///
    /// # Errors
    /// [`Error::System`] or [`Error::Listen`] when it cannot listen on an address.
    pub fn open(addresses: &Addresses) -> Result<Self> {
        let system = |tried: String| move |cause| Error::System { tried, cause };
        let tcp = |address| {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let tcp = addresses
            .http
            .map(|address| tcp(address).map_err(system(format!("listen on {address}"))));
        let tcp = tcp.transpose()?;
        let unix = match &addresses.unix {
            Some(path) => {
                let listener = unix::listen(path, Users::ByUmask)?;
                let failed = system(format!("listen on {}", path.display()));
                listener.set_nonblocking(true).map_err(failed)?;
                Some((listener, path.clone()))
            }
            None => None,
        };
        Ok(Self { tcp, unix })
    }
}

/// Running workers. They stop when this is dropped.
#[derive(Debug)]
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
    http: Option<SocketAddr>,
    unix: Option<PathBuf>,
}

#[derive(Debug)]
struct Shared {
    population: Arc<Population>,
    mailboxes: Mailboxes,
    stopping: AtomicBool,
    /// The last count of stored bytes of all guests, and how long it is valid.
    stored: Mutex<Option<(u64, Instant)>>,
}

impl Shared {
    /// Counts of guests. Repeated requests take at most a tenth of the time for reading every guest.
    fn census(&self) -> Census {
        let mut stored = lock(&self.stored);
        let began = Instant::now();
        if let Some((stored_bytes, until)) = *stored
            && began < until
        {
            return Census {
                stored_bytes,
                ..self.population.census()
            };
        }
        let census = self.population.full_census();
        let ended = Instant::now();
        *stored = Some((census.stored_bytes, ended + 9 * (ended - began)));
        census
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.mailboxes.wake_all();
    }
}

impl Workers {
    /// Binds the addresses and starts `count` workers.
    ///
    /// # Errors
    /// [`Error::System`] when an address cannot be bound or a thread cannot be started; then no worker runs.
    pub fn start(population: Arc<Population>, count: usize, addresses: &Addresses) -> Result<Self> {
        Self::serve(population, count, Listeners::open(addresses)?)
    }

    /// As [`Workers::start`], on listening sockets.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when no descriptor or thread is left; then no worker runs.
    pub fn serve(population: Arc<Population>, count: usize, listeners: Listeners) -> Result<Self> {
        let count = count.max(1);
        let Listeners { tcp, unix } = listeners;
        let http = tcp.as_ref().and_then(|l| l.local_addr().ok());
        let (unix, path) = unix.unzip();
        let polls = (0..count)
            .map(|_| Poll::new().map_err(|e| Error::of_limit("make an event queue", e)))
            .collect::<Result<Vec<Poll>>>()?;
        let live = match population.plan.holding {
            Holding::Live => population.plan.count,
            Holding::Parked => 0,
        };
        let clients = capacity::clients(live, count);
        let shared = Arc::new(Shared {
            population,
            mailboxes: Mailboxes::new(&polls)?,
            stopping: AtomicBool::new(false),
            stored: Mutex::default(),
        });
        let mut workers = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            http,
            unix: path,
        };
        for (index, poll) in polls.into_iter().enumerate() {
            let clone = |e| Error::of_limit("share a listener", e);
            let tcp = tcp.as_ref().map(TcpListener::try_clone);
            let tcp = tcp.transpose().map_err(clone)?;
            let unix = unix.as_ref().map(UnixListener::try_clone);
            let unix = unix.transpose().map_err(clone)?;
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || {
                    let outcome = Worker::new(Arc::clone(&shared), index, poll, tcp, unix, clients)
                        .and_then(Worker::work);
                    if outcome.is_err() {
                        // The failure of one worker stops all, so that no guest waits for it.
                        shared.stop();
                    }
                    outcome
                });
            let thread =
                thread.map_err(|cause| Error::of_limit(format!("start worker {index}"), cause))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Admits guests as [`Population::admit`] does, and wakes the worker that boots guests.
    pub fn admit(&self, count: u32) {
        self.shared.population.admit(count);
        self.shared.mailboxes.wake_all();
    }

    /// The address of HTTP, with the port that the kernel chose for port 0.
    #[must_use]
    pub fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Whether a worker has stopped because of an error.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.shared.stopping.load(Ordering::SeqCst)
    }

    /// Stops the workers.
    ///
    /// # Errors
    /// The first worker's error.
    pub fn stop(mut self) -> Result<()> {
        self.halt()
    }

    fn halt(&mut self) -> Result<()> {
        self.shared.stop();
        let mut outcome = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread.join().unwrap_or_else(|_| {
                Err(Error::System {
                    tried: "run a worker".into(),
                    cause: io::Error::other("it panicked"),
                })
            });
            outcome = outcome.and(ended);
        }
        if let Some(path) = self.unix.take() {
            unix::remove(&path);
        }
        outcome
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}
