//! An actor on another host: the same vtax there, spoken to in JSON lines through ssh.
//!
//! Nothing of it stays there. It runs from a file that is removed before it is full, and whatever it
//! starts ends with it; it ends with ssh's connection, however that ends.

mod gather;
mod remote;
mod serve;

pub use gather::{Column, Gathered};
pub use remote::{Login, RemoteActor};
pub use serve::serve;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use vtax_core::{Nanoseconds, Source};
use vtax_host::command::Finished;
use vtax_host::untrusted::{shown, shown_lines};

/// How often we say that we are still there.
const BEAT: Duration = Duration::from_secs(10);
/// An actor that has heard nothing for so long takes us for gone.
const SILENCE: Duration = Duration::from_secs(60);

/// The most bytes of a line. What a command prints is the longest: [`MOST_OUTPUT`] of it, some of it
/// escaped.
const LONGEST_LINE: usize = 64 << 20;
/// The most values of one [`Reply::Part`]: about 1 MB.
const PART: usize = 32_768;

/// The version of either side.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What an actor is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
enum Request {
    /// Its monotonic clock.
    Clock,
    /// Which of these programs it lacks.
    Lacks { programs: Vec<String> },
    /// To start a command.
    Start {
        job: u64,
        /// Whether the first word stands for vtax itself.
        own: bool,
        line: Vec<String>,
    },
    /// To end a command.
    Kill { job: u64 },
    /// Whether a TCP connection succeeds.
    Connect { address: IpAddr, port: u16 },
    /// To sample its host, and a guest of it in place of its own commands.
    Observe { hz: f64, guest: Option<Whom> },
    /// To stop that, and what was sampled.
    Collect,
    /// Nothing: we are there.
    Alive,
}

/// What an actor says: one answer to each request but `Alive`, in their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
enum Reply {
    /// First of all, unasked.
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
        /// What is not to be had there, with why.
        absent: Vec<String>,
        /// The guest that was asked for.
        guest: Option<Seen>,
    },
    /// A part of what was sampled; more follows.
    Part(Gathered),
    /// The last part.
    Collected(Gathered),
    /// It could not.
    Refused {
        cause: String,
    },
    /// A command has ended, unasked.
    Ended {
        job: u64,
        finished: Ended,
    },
}

impl Reply {
    /// The same with text that steers no terminal. What a command printed stays as it is.
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
                guest: guest.map(|guest| Seen {
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

/// A guest of an actor's host, as others know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whom {
    /// Owner of its samples.
    pub owner: String,
    /// Its name there, where that is known.
    pub name: Option<String>,
    /// What it says of itself, for [`vtax_observe::guests::Identity::parse`].
    pub says: String,
}

/// The same as its host sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Whether it has a kernel of its own.
    pub is_vm: bool,
    /// `Emulated` where its code is not run by the processor itself.
    pub source: Source,
    /// What the record says of it.
    pub facts: BTreeMap<String, String>,
}

/// Who an actor is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hello {
    /// The version of its vtax.
    pub version: String,
    /// Whether it is root there.
    pub is_root: bool,
    /// Facts about its host.
    pub facts: BTreeMap<String, String>,
}

/// A [`Finished`] on its way; bytes are characters of the same number, so that text stays short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

impl From<Finished> for Ended {
    fn from(finished: Finished) -> Self {
        let text = |bytes: Vec<u8>| bytes.into_iter().map(char::from).collect();
        Self {
            code: finished.code,
            stdout: text(finished.stdout),
            stderr: text(finished.stderr),
        }
    }
}

impl From<Ended> for Finished {
    fn from(ended: Ended) -> Self {
        let bytes = |text: String| {
            let bytes = text
                .chars()
                .map(|letter| u8::try_from(letter).unwrap_or(b'?'));
            bytes.collect()
        };
        Self {
            code: ended.code,
            stdout: bytes(ended.stdout),
            stderr: bytes(ended.stderr),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        match serde_json::from_str(&text).unwrap() {
            Reply::Ended {
                finished: ended, ..
            } => assert_eq!(Finished::from(ended), finished),
            other => panic!("{other:?}"),
        }
    }
}
