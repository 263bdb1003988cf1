// SPDX-License-Identifier: Apache-2.0
//! The operator's API: one JSON object a line on a UNIX socket, and the jobs that it gives to workers.
//!
//! Requests: `{"op":"list"}`, `{"op":"stats"}`, `{"op":"subscribe","interval_ms":1000}`,
//! `{"op":"set","port":"a","cap_us":500}`, `{"op":"clear_override","port":"a"}`. `port` selects one port; without it a
//! request is about all. Every answer has `ok`; a failed one has `error`.

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use rustix::event::EventfdFlags;
use serde::{Deserialize, Serialize};

use super::lease::AskedBy;
use super::policy::Policy;
use crate::hold::{HoldSettings, Mode};
use crate::telemetry::PortSnapshot;
use vtax_args::time::{whole_microseconds, whole_milliseconds, whole_seconds};

/// The longest request line, in bytes.
pub const LONGEST_LINE: usize = 16 * 1024;

/// How long a worker may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A command of an operator: a request line, a subcommand of `vtax-nic ctl`, and what workers carry out. Each has the
/// port that it is about; without one it is about all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, clap::Subcommand)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// List the ports, and the hold in force on each
    List {
        /// Only this port
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Print the ports' telemetry, as JSON
    Stats {
        /// Only this port
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Print the ports' telemetry again and again, as JSON
    // It comes at once and after every interval, until the client closes.
    #[command(name = "watch")]
    Subscribe {
        /// Only this port
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
        /// The time between two readings
        // At least 100 ms.
        #[serde(default = "one_second")]
        #[arg(long = "interval", value_name = "TIME", default_value = "1s", value_parser = whole_milliseconds)]
        interval_ms: u32,
    },
    /// Change a port's policy or controller
    Set {
        /// The port, or 'all'
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[arg(required = true)]
        port: Option<String>,
        /// The changes.
        #[serde(flatten)]
        #[command(flatten)]
        change: Change,
    },
    /// Remove the override
    ClearOverride {
        /// The port, or 'all'
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[arg(required = true)]
        port: Option<String>,
    },
}

impl Request {
    /// Whether it asks for telemetry, rather than for the state of ports.
    pub fn is_for_telemetry(&self) -> bool {
        matches!(self, Self::Stats { .. } | Self::Subscribe { .. })
    }

    /// The port that it is about; `None`: all.
    pub fn port(&self) -> Option<&str> {
        match self {
            Self::List { port }
            | Self::Stats { port }
            | Self::Subscribe { port, .. }
            | Self::Set { port, .. }
            | Self::ClearOverride { port } => port.as_deref(),
        }
    }
}

fn one_second() -> u32 {
    1_000
}

/// The state of a port's link, as the device's configuration space shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// Frames pass.
    #[default]
    Up,
    /// Frames from and to the port are dropped.
    Down,
}

/// The changes of `set`. A field that is absent stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub struct Change {
    /// The longest hold that a guest may ask for
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long = "cap", value_name = "TIME", value_parser = whole_microseconds)]
    pub cap_us: Option<u32>,
    /// The same for signals of received frames, in place of --cap
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long = "cap-rx", value_name = "TIME", value_parser = whole_microseconds)]
    pub cap_rx_us: Option<u32>,
    /// The same for drains of frames to send, in place of --cap
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long = "cap-tx", value_name = "TIME", value_parser = whole_microseconds)]
    pub cap_tx_us: Option<u32>,
    /// The longest hold while the guest has not asked for another
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long = "default", value_name = "TIME", value_parser = whole_microseconds)]
    pub default_us: Option<u32>,
    /// The hold whatever the guest asks for
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long = "override", value_name = "TIME", value_parser = whole_microseconds)]
    pub override_us: Option<u32>,
    /// The longest lease
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long = "lease-cap", value_name = "TIME", value_parser = whole_seconds)]
    pub lease_cap_s: Option<u32>,
    /// The controller: off, fixed, paper or adaptive
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,
    /// RX hold of mode fixed
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long = "fixed-rx", value_name = "TIME", value_parser = whole_microseconds)]
    pub fixed_rx_us: Option<u32>,
    /// TX hold of mode fixed
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long = "fixed-tx", value_name = "TIME", value_parser = whole_microseconds)]
    pub fixed_tx_us: Option<u32>,
    /// The time between two updates of mode paper [the paper's: 5s]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long = "update", value_name = "TIME", value_parser = whole_microseconds)]
    pub update_us: Option<u32>,
    /// Connect the port's link or disconnect it: up or down
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[arg(long, value_name = "STATE")]
    pub link: Option<Link>,
}

impl Change {
    /// Applies the changes. New controllers are needed if `settings` differ afterwards.
    pub fn apply(&self, policy: &mut Policy, settings: &mut HoldSettings) {
        let set = |field: &mut u32, value: Option<u32>| *field = value.unwrap_or(*field);
        set(&mut policy.cap_us, self.cap_us);
        set(&mut policy.default_us, self.default_us);
        set(&mut policy.lease_cap_s, self.lease_cap_s);
        set(&mut settings.fixed_rx_us, self.fixed_rx_us);
        set(&mut settings.fixed_tx_us, self.fixed_tx_us);
        set(&mut settings.update_us, self.update_us);
        policy.cap_rx_us = self.cap_rx_us.or(policy.cap_rx_us);
        policy.cap_tx_us = self.cap_tx_us.or(policy.cap_tx_us);
        policy.override_us = self.override_us.or(policy.override_us);
        settings.mode = self.mode.unwrap_or(settings.mode);
    }
}

/// An answer line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// Whether the request was carried out.
    pub ok: bool,
    /// The reason of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The time of the answer in ns on the monotonic clock, by which rates are computed from counters.
    pub at_ns: u64,
    /// Answers to `list`, `set` and `clear_override`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortInfo>,
    /// Answers to `stats` and `subscribe`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stats: Vec<PortSnapshot>,
}

/// The state of a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortInfo {
    /// Its name.
    pub port: String,
    /// Whether a front end is connected.
    pub connected: bool,
    /// The state of its link.
    #[serde(default)]
    pub link: Link,
    /// Its controller.
    #[serde(flatten)]
    pub settings: HoldSettings,
    /// The operator's policy.
    #[serde(flatten)]
    pub policy: Policy,
    /// The T_buf in force, in µs.
    pub in_force_us: u32,
    /// The data path: `kernel`, or `user` with the reason.
    #[serde(default)]
    pub datapath: String,
    /// The remaining time of the guest's lease, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_left_s: Option<u32>,
    /// The holds of the queues of running pairs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueInfo>,
}

/// The holds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueInfo {
    /// Its number. Receive queues have even numbers, transmit queues odd ones.
    pub queue: usize,
    /// The request that decides.
    pub asked_by: AskedBy,
    /// The T_buf that it asks for, in µs.
    pub asked_us: u32,
    /// The number of packets that ends a hold, if it asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_packets: Option<u32>,
    /// The T_buf in force, in µs.
    pub in_force_us: u32,
    /// The number of packets that ends a hold, if there is one in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force_packets: Option<u32>,
}

/// A worker's report on one port.
#[derive(Clone, Debug)]
pub enum Report {
    /// The port's state.
    Info(PortInfo),
    /// Its telemetry.
    Stats(Box<PortSnapshot>),
}

/// A command in a worker's [`Mailbox`].
#[derive(Debug)]
pub struct Job {
    /// The command. The answer to one for telemetry is [`Report::Stats`], to any other [`Report::Info`].
    pub request: Request,
    answer: Sender<Vec<Report>>,
}

impl Job {
    /// Whether it concerns this port.
    pub fn concerns(&self, port: &str) -> bool {
        self.request.port().is_none_or(|wanted| wanted == port)
    }

    /// Sends the reports. Must be called also if no port is concerned.
    pub fn answer(self, reports: Vec<Report>) {
        // The receiver may have stopped waiting.
        let _ = self.answer.send(reports);
    }
}

/// The receiver of a worker's jobs. [`Mailbox::as_fd`] is readable when there are some.
#[derive(Debug)]
pub struct Mailbox {
    jobs: Receiver<Job>,
    event: Arc<OwnedFd>,
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Mailbox {
    /// Takes all jobs. Never blocks.
    pub fn take(&self) -> impl Iterator<Item = Job> + '_ {
        // The event is cleared first, so that a later job sets it again. It need not be set.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.jobs.try_iter()
    }
}

/// The sender of jobs to a worker's [`Mailbox`].
#[derive(Clone, Debug)]
pub struct MailboxSender {
    jobs: Sender<Job>,
    event: Arc<OwnedFd>,
}

/// Makes a worker's mailbox and its sender.
///
/// # Errors
/// When the kernel cannot create an eventfd.
pub fn mailbox() -> std::io::Result<(MailboxSender, Mailbox)> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let event = Arc::new(rustix::event::eventfd(0, flags)?);
    let (sender, receiver) = mpsc::channel();
    Ok((
        MailboxSender {
            jobs: sender,
            event: Arc::clone(&event),
        },
        Mailbox {
            jobs: receiver,
            event,
        },
    ))
}

/// Why a request is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The line is no request.
    #[error("not a request: {0}")]
    Syntax(#[from] serde_json::Error),
    /// A worker's thread has ended.
    #[error("a worker has ended: restart vtax-nic")]
    WorkerEnded,
    /// A worker is busy.
    #[error("a worker did not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
    /// No port has this name.
    #[error("there is no port '{0}': see which there are with list")]
    NoPort(String),
}

/// Sends a command to all workers and collects their reports.
///
/// # Errors
/// When no port has that name, or a worker has ended or does not answer.
pub fn ask(workers: &[MailboxSender], request: &Request) -> Result<Vec<Report>, RequestError> {
    let (sender, receiver) = mpsc::channel();
    for worker in workers {
        let job = Job {
            request: request.clone(),
            answer: sender.clone(),
        };
        worker
            .jobs
            .send(job)
            .map_err(|_| RequestError::WorkerEnded)?;
        // Fails only when the counter is full, and then the event is set.
        let _ = rustix::io::write(&worker.event, &1u64.to_ne_bytes());
    }
    let mut reports = Vec::new();
    for _ in workers {
        let part = receiver
            .recv_timeout(ANSWER_TIMEOUT)
            .map_err(|_| RequestError::Timeout)?;
        reports.extend(part);
    }
    match request.port() {
        Some(name) if reports.is_empty() => Err(RequestError::NoPort(name.to_owned())),
        _ => Ok(reports),
    }
}

impl Response {
    /// A success.
    pub fn from_reports(reports: Vec<Report>) -> Self {
        let mut response = Self {
            ok: true,
            error: None,
            at_ns: crate::poller::now().0,
            ports: Vec::new(),
            stats: Vec::new(),
        };
        for report in reports {
            match report {
                Report::Info(info) => response.ports.push(info),
                Report::Stats(stats) => response.stats.push(*stats),
            }
        }
        response
    }

    /// A failure.
    pub fn failed(error: impl Display) -> Self {
        Self {
            ok: false,
            error: Some(error.to_string()),
            ..Self::from_reports(Vec::new())
        }
    }

    /// Returns the answer as a line, with its line feed.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_else(|error| {
            format!(r#"{{"ok":false,"at_ns":0,"error":"cannot write the answer: {error}"}}"#).into()
        });
        line.push(b'\n');
        line
    }
}

/// Reads a request line.
///
/// # Errors
/// [`RequestError::Syntax`].
pub fn parse(line: &[u8]) -> Result<Request, RequestError> {
    Ok(serde_json::from_slice(line)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_are_read_as_documented() {
        let set = parse(br#"{"op":"set","port":"a","cap_us":500,"mode":"paper"}"#).unwrap();
        let change = Change {
            cap_us: Some(500),
            mode: Some(Mode::Paper),
            ..Change::default()
        };
        assert_eq!(
            set,
            Request::Set {
                port: Some("a".into()),
                change
            }
        );
        assert_eq!(
            parse(br#"{"op":"subscribe"}"#).unwrap(),
            Request::Subscribe {
                port: None,
                interval_ms: 1_000
            }
        );
        assert!(
            parse(br#"{"op":"explode"}"#)
                .unwrap_err()
                .to_string()
                .contains("explode")
        );
        assert!(parse(br#"{"op":"set","cap_us":-1}"#).is_err());
        assert!(parse(b"").is_err());
    }

    #[test]
    fn a_misspelt_setting_is_refused_rather_than_ignored() {
        let error = parse(br#"{"op":"set","port":"a","capus":500}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("capus"), "{error}");
    }

    #[test]
    fn a_change_leaves_the_rest() {
        let (mut policy, mut settings) = (Policy::default(), HoldSettings::default());
        let change = Change {
            override_us: Some(7),
            fixed_rx_us: Some(9),
            ..Change::default()
        };
        change.apply(&mut policy, &mut settings);
        assert_eq!(
            policy,
            Policy {
                override_us: Some(7),
                ..Policy::default()
            }
        );
        assert_eq!(
            settings,
            HoldSettings {
                fixed_rx_us: 9,
                ..HoldSettings::default()
            }
        );
    }

    #[test]
    fn all_workers_are_asked_and_an_unknown_port_is_an_error() {
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let (sender, mailbox) = mailbox().unwrap();
                std::thread::spawn(move || {
                    let mut served = 0;
                    while served < 2 {
                        let mut fds = [rustix::event::PollFd::new(
                            &mailbox,
                            rustix::event::PollFlags::IN,
                        )];
                        rustix::event::poll(&mut fds, None).unwrap();
                        for job in mailbox.take() {
                            let port = format!("p{worker}");
                            let info = PortInfo {
                                port: port.clone(),
                                connected: true,
                                link: Link::Up,
                                settings: HoldSettings::default(),
                                policy: Policy::default(),
                                in_force_us: 200,
                                datapath: "kernel".into(),
                                lease_left_s: None,
                                queues: Vec::new(),
                            };
                            let concerned = job.concerns(&port);
                            job.answer(
                                concerned
                                    .then_some(Report::Info(info))
                                    .into_iter()
                                    .collect(),
                            );
                            served += 1;
                        }
                    }
                });
                sender
            })
            .collect();
        let list = |port: Option<&str>| Request::List {
            port: port.map(str::to_owned),
        };
        assert_eq!(ask(&workers, &list(None)).unwrap().len(), 3);
        assert!(
            ask(&workers, &list(Some("q")))
                .unwrap_err()
                .to_string()
                .contains("no port 'q'")
        );
    }

    proptest! {
        #[test]
        fn any_line_is_survived(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }

        #[test]
        fn any_port_name_survives_a_request(name: String, cap_us: u32) {
            let change = Change { cap_us: Some(cap_us), ..Change::default() };
            let request = Request::Set { port: Some(name), change };
            let line = serde_json::to_vec(&request).unwrap();
            prop_assert!(!line.contains(&b'\n'));
            prop_assert_eq!(parse(&line).unwrap(), request);
        }
    }
}
