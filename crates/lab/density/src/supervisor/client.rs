// SPDX-License-Identifier: Apache-2.0
//! The client of a supervisor: sends requests and reads answers.

use super::{Answer, Request, SUPERVISOR};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use vtax_host::HostError;

/// The largest size of an answer, which holds a time for each guest.
const LONGEST_ANSWER: u64 = 16 << 20;

/// A running supervisor. Dropping it ends the process.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The first answer, which has the facts about the platform.
    pub hello: Answer,
}

impl Supervisor {
    /// Starts `command` and waits for its first answer.
    ///
    /// # Errors
    /// When it cannot be started, ends at once, or cannot make such guests.
    pub fn start(mut command: Command) -> Result<Self, HostError> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(HostError::process("start", SUPERVISOR))?;
        let requests = child.stdin.take();
        let Some(answers) = child.stdout.take() else {
            return Err(HostError::Closed {
                peer: SUPERVISOR.to_owned(),
                detail: " before its first answer".to_owned(),
            });
        };
        let mut supervisor = Self {
            child,
            requests,
            answers: BufReader::new(answers),
            hello: Answer::default(),
        };
        supervisor.hello = supervisor.answer()?;
        match supervisor.hello.refused.take() {
            Some(why) => Err(HostError::Other(why)),
            None => Ok(supervisor),
        }
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// When the supervisor has ended, with the end of its output.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, HostError> {
        let line = serde_json::to_string(request)
            .map_err(|cause| HostError::process("ask", SUPERVISOR)(cause.into()))?;
        if let Some(requests) = &mut self.requests
            && writeln!(requests, "{line}")
                .and_then(|()| requests.flush())
                .is_err()
        {
            return Err(self.ended());
        }
        self.answer()
    }

    fn answer(&mut self) -> Result<Answer, HostError> {
        let mut line = String::new();
        let mut answers = (&mut self.answers).take(LONGEST_ANSWER);
        match answers.read_line(&mut line) {
            Ok(read) if read > 0 => {
                serde_json::from_str(&line).map_err(|cause| HostError::Protocol {
                    peer: SUPERVISOR.to_owned(),
                    detail: format!("{} ({cause})", line.trim()),
                })
            }
            _ => Err(self.ended()),
        }
    }

    fn ended(&mut self) -> HostError {
        drop(self.requests.take());
        let mut output = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            // The status is reported without the output as well.
            let _ = stderr.take(16 << 10).read_to_string(&mut output);
        }
        let status = self
            .child
            .wait()
            .map_or_else(|cause| cause.to_string(), |status| status.to_string());
        HostError::Program {
            command: SUPERVISOR.to_owned(),
            status,
            output,
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // A supervisor ends when its input closes.
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}
