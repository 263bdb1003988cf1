// SPDX-License-Identifier: Apache-2.0
//! An actor: the same vtax on another host, with a protocol of JSON lines through ssh.
//!
//! An actor leaves no files and no processes on its host. Its executable is an unlinked file, its processes end
//! with it, and it ends with the ssh connection.

mod remote;
mod samples;
mod serve;

pub(crate) use remote::this_system;
pub use remote::{Login, RemoteActor};
pub use samples::{Column, RemoteSamples};
pub use serve::serve;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, Source};
use vtax_host::command::Finished;
use vtax_host::untrusted::{shown, shown_lines};

/// The interval between two [`Request::Alive`].
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// The time without a request after which an actor ends.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The most bytes of a line. The longest line holds both outputs of a command, encoded.
const LONGEST_LINE: usize = 128 << 20;
/// The most values of one [`Reply::Part`]: about 1 MB.
const PART_VALUES: usize = 32_768;

/// The version, which must be the same on both sides.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A request to an actor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
enum Request {
    /// Read its monotonic clock.
    Clock,
    /// List which of these programs its host lacks.
    Lacks { programs: Vec<String> },
    /// Start a command.
    Start {
        job: u64,
        /// Whether the program is vtax itself.
        own: bool,
        line: Vec<String>,
    },
    /// Kill a command.
    Kill { job: u64 },
    /// Try a TCP connection.
    Connect { address: IpAddr, port: u16 },
    /// Sample its host, and a guest there or its own commands.
    Observe { hz: f64, guest: Option<GuestQuery> },
    /// Stop sampling and send the samples.
    Collect,
    /// Keep the connection; there is no reply.
    Alive,
}

/// A message of an actor. Each request except `Alive` has one reply, in order. Two kinds of message come without a
/// request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
enum Reply {
    /// The first message, without a request.
    Hello(Hello),
    Clock {
        at: Nanoseconds,
    },
    Lacks {
        programs: Vec<String>,
    },
    Done,
    Connected {
        yes: bool,
    },
    Observing {
        /// Counters that the host lacks, with the reasons.
        absent: Vec<String>,
        /// The guest of the request.
        guest: Option<GuestView>,
    },
    /// A part of the samples; more follow.
    Part(RemoteSamples),
    /// The last part of the samples.
    Collected(RemoteSamples),
    /// The request failed.
    Refused {
        cause: String,
    },
    /// A command has ended. The message comes without a request.
    Ended {
        job: u64,
        finished: JobOutput,
    },
}

impl Reply {
    /// Makes text printable, except a command's output.
    fn bounded(self) -> Self {
        let text = |text: String| shown(&text);
        let all = |texts: Vec<String>| texts.into_iter().map(text).collect();
        match self {
            Self::Hello(hello) => Self::Hello(Hello {
                version: text(hello.version),
                is_root: hello.is_root,
                facts: bounded_facts(hello.facts),
            }),
            Self::Lacks { programs } => Self::Lacks {
                programs: all(programs),
            },
            Self::Observing { absent, guest } => Self::Observing {
                absent: all(absent),
                guest: guest.map(|guest| GuestView {
                    facts: bounded_facts(guest.facts),
                    ..guest
                }),
            },
            Self::Part(gathered) => Self::Part(gathered.bounded()),
            Self::Collected(gathered) => Self::Collected(gathered.bounded()),
            Self::Refused { cause } => Self::Refused {
                cause: shown_lines(&cause),
            },
            other @ (Self::Clock { .. }
            | Self::Done
            | Self::Connected { .. }
            | Self::Ended { .. }) => other,
        }
    }
}

/// The most facts of a host or guest.
const MOST_FACTS: usize = 256;

fn bounded_facts(facts: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let facts = facts.into_iter().take(MOST_FACTS);
    facts
        .map(|(name, fact)| (shown(&name), shown(&fact)))
        .collect()
}

/// A query for a guest on an actor's host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestQuery {
    /// The owner of its samples.
    pub owner: Owner,
    /// Its name on that host; `None`: the guest is found by `says`.
    pub name: Option<String>,
    /// Its UUID and MAC addresses, for [`vtax_inventory::Identity::parse`].
    pub says: String,
}

/// A guest as its host sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestView {
    /// Whether it has its own kernel.
    pub is_vm: bool,
    /// `Emulated` when the processor does not run guest code itself.
    pub source: Source,
    /// Facts for the record.
    pub facts: BTreeMap<String, String>,
}

/// An actor's version, rights and host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hello {
    /// The version of its vtax.
    pub version: String,
    /// Whether it runs as root.
    pub is_root: bool,
    /// Facts about its host.
    pub facts: BTreeMap<String, String>,
}

/// A [`Finished`] in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct JobOutput {
    code: i32,
    stdout: Encoded,
    stderr: Encoded,
}

/// Bytes in JSON, in base64: their length does not depend on what they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
struct Encoded(Vec<u8>);

impl From<Encoded> for String {
    fn from(bytes: Encoded) -> Self {
        STANDARD.encode(bytes.0)
    }
}

impl TryFrom<String> for Encoded {
    type Error = base64::DecodeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        STANDARD.decode(text).map(Self)
    }
}

impl From<Finished> for JobOutput {
    fn from(finished: Finished) -> Self {
        Self {
            code: finished.code,
            stdout: Encoded(finished.stdout),
            stderr: Encoded(finished.stderr),
        }
    }
}

impl From<JobOutput> for Finished {
    fn from(ended: JobOutput) -> Self {
        Self {
            code: ended.code,
            stdout: ended.stdout.0,
            stderr: ended.stderr.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::command::{HEAD_OUTPUT, MOST_OUTPUT};

    #[test]
    fn every_byte_that_a_command_prints_comes_through() {
        let finished = Finished {
            code: 3,
            stdout: (0..=255).collect(),
            stderr: "µ".as_bytes().to_vec(),
        };
        let sent = Reply::Ended {
            job: 1,
            finished: finished.clone().into(),
        };
        let text = serde_json::to_string(&sent).unwrap();
        assert!(!text.contains('\n'));
        let longest = (HEAD_OUTPUT + MOST_OUTPUT + 100).div_ceil(3) * 4;
        assert!(2 * longest + text.len() < LONGEST_LINE);
        match serde_json::from_str(&text).unwrap() {
            Reply::Ended {
                finished: ended, ..
            } => assert_eq!(Finished::from(ended), finished),
            other => panic!("{other:?}"),
        }
    }
}
