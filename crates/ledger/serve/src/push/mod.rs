// SPDX-License-Identifier: Apache-2.0
//! Pushes of what a scrape would return: Prometheus' remote write and OTLP, with a queue on disk.
//!
//! Each pass is queued first and sent from the queue, so an outage of the server, the network or the exporter loses
//! nothing that fits into it. Samples keep the time of their pass.

mod destination;
mod message;
mod queue;
mod sender;
mod wire;

pub use crate::metrics::PushState;
pub use destination::{Destination, Protocol};
pub use message::Message;

use crate::jail;
use crate::metrics::{self, Own};
use crate::roster::Listing;
use message::Losses;
use queue::Queue;
use sender::Sender;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vtax_charge::LedgerSnapshot;
use vtax_http::{Token, TokenError};
use wire::Pass;

/// The options of pushes.
#[derive(Debug, Clone, Default)]
pub struct PushOptions {
    /// The servers, each with a queue of its own.
    pub to: Vec<Destination>,
    /// The bearer token to send.
    pub token: Option<Token>,
    /// Whether to send the token unencrypted through a network.
    pub is_plain_allowed: bool,
    /// A file with the certificates of authorities in PEM, in place of the well-known ones.
    pub authorities: Option<PathBuf>,
    /// Labels on every series: `job`, `instance` and others.
    pub labels: Vec<(String, String)>,
    /// The directory of the queues.
    pub queue: PathBuf,
    /// The limit of each queue on disk, in bytes.
    pub queue_bytes: u64,
}

/// The reason that nothing can be pushed.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The token would be sent unencrypted.
    #[error(
        "the token for {to} would travel unencrypted through the network: give an https address, or \
         --push-plain where nobody else reads that network"
    )]
    Plain {
        /// The server.
        to: String,
    },
    /// The file of the token cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The file of authorities cannot be used.
    #[error("cannot use {} as certificates of authorities: {why}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        why: String,
    },
    /// The queue cannot be opened.
    #[error("cannot queue in {}: {cause}", path.display())]
    Queue {
        /// The directory.
        path: PathBuf,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// The thread cannot be started.
    #[error("cannot start a thread that pushes: {0}")]
    Thread(#[source] io::Error),
    /// The thread cannot be sandboxed.
    #[error(transparent)]
    Jail(#[from] vtax_jail::JailError),
}

/// Returns a snapshot as the body of one request, and its number of samples; for benchmarks of servers.
#[cfg(feature = "testing")]
pub fn body(
    protocol: Protocol,
    snapshot: &LedgerSnapshot,
    listing: &Listing,
    labels: &[(String, String)],
) -> Option<(Vec<u8>, usize)> {
    let pass = pass(snapshot, listing, &Own::default(), None);
    let body = sender::body(protocol, std::slice::from_ref(&pass), labels)?;
    Some((body, pass.samples()))
}

fn pass(snapshot: &LedgerSnapshot, listing: &Listing, own: &Own, start_ms: Option<i64>) -> Pass {
    let mut pass = Pass {
        time_ms: snapshot.ended.as_millisecond(),
        start_ms: start_ms.unwrap_or(snapshot.began.as_millisecond()),
        families: Vec::new(),
    };
    metrics::families(&mut pass, snapshot, listing, own);
    pass
}

/// The state that the exporter's thread and the sender share.
#[derive(Debug)]
struct Shared {
    inside: Mutex<Inside>,
    /// Signals that something was queued, or that the exporter ends.
    news: Condvar,
}

#[derive(Debug)]
struct Inside {
    queue: Queue,
    state: PushState,
    /// Messages for the log that were not taken yet.
    messages: Vec<Message>,
    losses: Losses,
    /// Set when the exporter ends: what cannot be sent until then stays on disk.
    until: Option<Instant>,
}

impl Inside {
    fn trouble(&mut self, line: String) {
        self.messages.push(Message::Trouble(line));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pushes snapshots.
#[derive(Debug)]
pub struct Pusher {
    lines: Vec<Line>,
    start_ms: Option<i64>,
    last: Pass,
}

#[derive(Debug)]
struct Line {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The limit of the wait for queued passes and for a server's response when the exporter ends.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Time between two checks of a thread that is to end.
const POLL: Duration = Duration::from_millis(5);

impl Pusher {
    /// Opens the queues and starts to send their content.
    ///
    /// # Errors
    /// When a queue or the file of authorities cannot be used, or a token would be sent unencrypted.
    pub fn start(options: &PushOptions) -> Result<Self, PushError> {
        let lines = options.to.iter().map(|to| {
            let mut sender = Sender::new(to, options)?;
            let path = options.queue.join(to.directory());
            let (queue, messages) =
                Queue::open(&path, options.queue_bytes).map_err(|cause| PushError::Queue {
                    path: path.clone(),
                    cause,
                })?;
            // An earlier exporter may have sent part of its queue. Read before the first pass is queued.
            sender.unsure_until = queue.newest_time();
            let shared = Arc::new(Shared {
                inside: Mutex::new(Inside {
                    queue,
                    state: PushState {
                        to: to.shown(),
                        ..PushState::default()
                    },
                    messages: messages.into_iter().map(Message::Trouble).collect(),
                    losses: Losses::default(),
                    until: None,
                }),
                news: Condvar::new(),
            });
            let of_thread = Arc::clone(&shared);
            let start = move || {
                std::thread::Builder::new()
                    .name("push".to_owned())
                    .spawn(move || sender.run(&of_thread))
            };
            let thread = jail::spawn_sandboxed(|| jail::enter_pusher(&path, to.port), start)?;
            let thread = thread.map_err(PushError::Thread)?;
            Ok(Line {
                shared,
                thread: Some(thread),
            })
        });
        Ok(Self {
            lines: lines.collect::<Result<_, PushError>>()?,
            start_ms: None,
            last: Pass::default(),
        })
    }

    /// The state of each push.
    pub fn states(&self) -> Vec<PushState> {
        let now = jiff::Timestamp::now().as_millisecond();
        let states = self.lines.iter().map(|line| {
            let inside = line.shared.lock();
            let age = inside.queue.oldest_time().map_or(0, |time| now - time);
            PushState {
                queue_bytes: inside.queue.bytes(),
                queue_samples: inside.queue.samples(),
                oldest: Duration::from_millis(u64::try_from(age).unwrap_or(0)),
                ..inside.state.clone()
            }
        });
        states.collect()
    }

    /// The messages since the last call.
    pub fn take_messages(&self) -> Vec<Message> {
        let lines = self.lines.iter();
        lines
            .flat_map(|line| std::mem::take(&mut line.shared.lock().messages))
            .collect()
    }

    /// Queues a snapshot, as a scrape would return it now.
    pub fn push(&mut self, snapshot: &LedgerSnapshot, listing: &Listing, own: &Own) {
        let pass = pass(snapshot, listing, own, self.start_ms);
        self.start_ms = Some(pass.start_ms);
        self.queue(pass);
    }

    fn queue(&mut self, mut pass: Pass) {
        pass.end_missing(&self.last);
        let samples = u32::try_from(pass.samples()).unwrap_or(u32::MAX);
        let payload = sender::packed(&pass);
        for line in &self.lines {
            let mut inside = line.shared.lock();
            let queued = payload
                .as_deref()
                .map_err(|cause| io::Error::other(cause.clone()))
                .and_then(|payload| inside.queue.append(pass.time_ms, samples, payload));
            match queued {
                Ok(0) => {}
                Ok(dropped) => {
                    if let Some(lost) = inside.losses.full.add(dropped) {
                        let to = &inside.state.to;
                        let line = format!(
                            "the queue for {to} is full: {lost} of the oldest samples are dropped"
                        );
                        inside.trouble(line);
                    }
                    inside.state.dropped_full += dropped;
                }
                Err(cause) => {
                    if let Some(lost) = inside.losses.disk.add(u64::from(samples)) {
                        let to = &inside.state.to;
                        let line =
                            format!("cannot queue for {to}: {cause}; {lost} samples are dropped");
                        inside.trouble(line);
                    }
                    inside.state.dropped_disk += u64::from(samples);
                }
            }
            drop(inside);
            line.shared.news.notify_one();
        }
        self.last = pass;
    }

    /// Ends every series and waits up to `END_TIMEOUT` for the servers to take the queues; the rest stays on disk.
    /// Returns the last messages.
    pub fn finish(mut self) -> Vec<Message> {
        if !self.last.families.is_empty() {
            self.queue(Pass {
                time_ms: jiff::Timestamp::now()
                    .as_millisecond()
                    .max(self.last.time_ms + 1),
                start_ms: self.last.start_ms,
                families: Vec::new(),
            });
        }
        self.end();
        let mut messages = self.take_messages();
        for state in self.states() {
            if state.queue_samples > 0 {
                messages.push(Message::Trouble(format!(
                    "{} samples for {} wait on disk for the next exporter",
                    state.queue_samples, state.to
                )));
            }
        }
        messages
    }

    fn end(&mut self) {
        let until = Instant::now() + END_TIMEOUT;
        for line in &self.lines {
            line.shared.lock().until = Some(until);
            line.shared.news.notify_one();
        }
        for line in &mut self.lines {
            let Some(thread) = line.thread.take() else {
                continue;
            };
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(POLL);
            }
            // A thread that still waits for a response ends with the process. What it sent stays in the queue.
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Pusher {
    fn drop(&mut self) {
        self.end();
    }
}
