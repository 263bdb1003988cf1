// SPDX-License-Identifier: Apache-2.0
//! The connection to an actor: one request at a time, replies in their order, and ends of commands in between.

use super::login::unreachable;
use crate::place::actor::samples::TooMuch;
use crate::place::actor::{RemoteSamples, Reply, Request};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write;
use std::process::Child;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::warn;
use vtax_host::HostError;
use vtax_host::command::Finished;
use vtax_host::untrusted::{first_line, shown};

/// The time limit of a reply.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The time limit of the end of an actor and its ssh.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A connection through ssh, which closes on drop.
pub(super) struct Connection {
    pub(super) host: String,
    /// Locked for one request at a time; `None` once closed.
    pub(super) input: Mutex<Option<Input>>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) jobs: AtomicU64,
    /// The start of sampling, and its rate in Hz.
    pub(super) sampling: Mutex<Option<(Instant, f64)>>,
    pub(super) ssh: Mutex<Option<Child>>,
}

pub(super) type Input = Box<dyn Write + Send>;

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// The messages of an actor.
#[derive(Default)]
pub(super) struct Inbox {
    /// The actor's host.
    host: String,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    /// Whether a reply is due: to a request, or the greeting.
    pub(super) is_due: bool,
    pub(super) reply: Option<Reply>,
    /// The samples before the last part.
    pub(super) gathered: RemoteSamples,
    /// The most values that are accepted.
    pub(super) most: usize,
    /// Commands that have not ended.
    pub(super) running: BTreeSet<u64>,
    pub(super) ended: BTreeMap<u64, Finished>,
    /// The reason why the connection is lost.
    pub(super) lost: Option<String>,
    /// Whether this end closes the connection.
    pub(super) is_closing: bool,
}

/// A reply that breaks the protocol.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplyError {
    #[error("it answered what it was not asked")]
    Unasked,
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    #[error("it sent `{start}`, which is not understood: {cause}")]
    Unknown {
        /// The start of the line.
        start: String,
        cause: serde_json::Error,
    },
}

impl State {
    /// Processes a message.
    ///
    /// # Errors
    /// The violation of the protocol.
    pub(super) fn take(&mut self, reply: Reply) -> Result<(), ReplyError> {
        match reply {
            Reply::Ended { job, finished } => {
                // A killed command may have ended before.
                if self.running.remove(&job) {
                    self.ended.insert(job, finished.into());
                }
            }
            _ if !self.is_due => return Err(ReplyError::Unasked),
            Reply::Part(part) => self.gathered.append(part, self.most)?,
            Reply::Collected(last) => {
                self.gathered.append(last, self.most)?;
                self.is_due = false;
                self.reply = Some(Reply::Collected(std::mem::take(&mut self.gathered)));
            }
            other => {
                self.is_due = false;
                self.reply = Some(other);
            }
        }
        Ok(())
    }
}

impl Inbox {
    pub(super) fn for_host(host: &str) -> Self {
        Self {
            host: host.to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self, line: &str) {
        let mut state = self.state();
        if state.lost.is_some() {
            return;
        }
        let taken = match serde_json::from_str::<Reply>(line) {
            Ok(reply) => state.take(reply.bounded()),
            Err(cause) => {
                let start: String = line.chars().take(200).collect();
                let start = shown(&start);
                Err(ReplyError::Unknown { start, cause })
            }
        };
        drop(state);
        match taken {
            Ok(()) => self.changed.notify_all(),
            Err(why) => self.lose(why.to_string()),
        }
    }

    pub(super) fn lose(&self, why: String) {
        let mut state = self.state();
        if state.lost.is_none() {
            if !state.is_closing {
                warn!(
                    "the connection to {} is lost: {}",
                    self.host,
                    first_line(&why)
                );
            }
            state.lost = Some(why);
        }
        self.changed.notify_all();
    }
}

impl Connection {
    pub(super) fn sampling(&self) -> MutexGuard<'_, Option<(Instant, f64)>> {
        self.sampling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ask(&self, request: &Request) -> Result<Reply, HostError> {
        self.ask_within(request, ANSWER_LIMIT)
    }

    pub(super) fn ask_within(
        &self,
        request: &Request,
        limit: Duration,
    ) -> Result<Reply, HostError> {
        // The lock is held until the reply comes, because replies come in the order of requests.
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        self.inbox.state().is_due = true;
        self.write(&mut input, request)?;
        let reply = self.next(limit);
        if reply.is_err() {
            // A late reply would count as the reply to the next request.
            self.inbox.lose("it did not answer in time".to_owned());
        }
        match reply? {
            Reply::Refused { cause } => {
                Err(HostError::Other(format!("the host {}: {cause}", self.host)))
            }
            reply => Ok(reply),
        }
    }

    pub(super) fn send(&self, request: &Request) -> Result<(), HostError> {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&mut input, request)
    }

    pub(super) fn write(
        &self,
        input: &mut Option<Input>,
        request: &Request,
    ) -> Result<(), HostError> {
        if let Some(why) = &self.inbox.state().lost {
            return Err(self.gone(why));
        }
        let mut line = serde_json::to_vec(request).map_err(|cause| {
            HostError::process("ask", format!("the actor on {}", self.host))(cause.into())
        })?;
        line.push(b'\n');
        let input = input.as_mut().ok_or_else(|| self.gone("it was ended"))?;
        let sent = input.write_all(&line).and_then(|()| input.flush());
        sent.map_err(|cause| {
            // The error output of ssh, which comes within a second, is more useful than "broken pipe".
            let why = self.await_loss().unwrap_or_else(|| cause.to_string());
            self.gone(&why)
        })
    }

    pub(super) fn await_loss(&self) -> Option<String> {
        let state = self.inbox.state();
        let limit = Duration::from_secs(1);
        let waited = self
            .inbox
            .changed
            .wait_timeout_while(state, limit, |state| state.lost.is_none());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.lost.clone()
    }

    pub(super) fn next(&self, limit: Duration) -> Result<Reply, HostError> {
        let state = self.inbox.state();
        let waited = self
            .inbox
            .changed
            .wait_timeout_while(state, limit, |state| {
                state.reply.is_none() && state.lost.is_none()
            });
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match (state.reply.take(), &state.lost) {
            (Some(reply), _) => Ok(reply),
            (None, Some(why)) => Err(self.gone(why)),
            (None, None) => Err(HostError::Timeout {
                what: format!("an answer of the actor on {}", self.host),
                seconds: limit.as_secs(),
                evidence: String::new(),
            }),
        }
    }

    pub(super) fn gone(&self, why: &str) -> HostError {
        unreachable(&self.host, why)
    }

    pub(super) fn unexpected(&self, reply: &Reply) -> HostError {
        let shown: String = format!("{reply:?}").chars().take(200).collect();
        HostError::Protocol {
            peer: format!("the actor on {}", self.host),
            detail: shown,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.inbox.state().is_closing = true;
        // The actor ends with its input, and ssh with the actor.
        drop(self.input.get_mut().map(Option::take));
        let Ok(Some(ssh)) = self.ssh.get_mut() else {
            return;
        };
        let deadline = Instant::now() + END_LIMIT;
        while matches!(ssh.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The actor ends with its ssh.
        let _ = ssh.kill();
        let _ = ssh.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_log::testing::logged;

    #[test]
    fn a_connection_is_lost_once_in_the_log_and_one_that_is_closed_is_not() {
        let inbox = Inbox::for_host("there");
        let lost = logged(|| {
            inbox.take("nonsense\u{1b}[2J");
            inbox.lose("its connection ended".to_owned());
        });
        let of = "<4>vtax_lab::place::actor::remote::connection: the connection to there is lost: ";
        assert!(lost.starts_with(of) && lost.lines().count() == 1, "{lost}");
        assert!(lost.contains("it sent `nonsense [2J`"), "{lost}");
        let inbox = Inbox::for_host("there");
        inbox.state().is_closing = true;
        assert_eq!(logged(|| inbox.lose("its connection ended".to_owned())), "");
    }
}
