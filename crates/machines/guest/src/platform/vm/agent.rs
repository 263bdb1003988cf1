// SPDX-License-Identifier: Apache-2.0
//! A client for the QEMU guest agent (QEMU `docs/interop/qemu-ga-ref`), which needs neither a network nor a
//! password in the guest.

use super::wire::{Received, Wire, excerpt};
use crate::platform::{CommandLine, Finished, Job};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use vtax_host::HostError;
use vtax_host::command::{HEAD_OUTPUT, MOST_OUTPUT, left_out};

/// The time limit for the agent's reply. Under emulation a busy guest can take a second.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// The agent's name in errors.
pub(in crate::platform) const PEER: &str = "the guest agent";

/// The bytes of one `guest-file-read`; the agent's own limit is 48 MB.
const READ_BYTES: usize = 1 << 20;

/// The bytes of one `guest-file-read` over a serial port, where each byte costs the VMM a call and a reply must
/// come in time.
const SERIAL_READ_BYTES: usize = 32 << 10;

/// The most bytes of a guest's console that are kept, where the guest's kernel writes to the agent's line.
const MOST_CONSOLE: u64 = 64 << 20;

/// A script that keeps a command's outputs in files in the guest's memory. The agent's own capture ends at 16 MiB,
/// and copies while the command runs, inside the measured window.
const WITH_FILES: &str = r#"exec "$@" >"$0.out" 2>"$0.err""#;

/// The beginning of the paths of these files. `/tmp` is a memory file system of its own: a command that fills it does not
/// take the space that the agent needs for its state in `/run`.
const OUTPUTS: &str = "/tmp/vtax-job-";

/// The delimiter of `guest-sync-delimited`: no UTF-8 text contains it.
const DELIMITER: u8 = 0xff;

/// A connection to the agent of one guest.
#[derive(Debug)]
pub(in crate::platform) struct Agent {
    wire: Wire,
    /// The log of lines that are not replies, where the guest's kernel writes to the same line.
    console: Option<File>,
    console_bytes: u64,
    next_sync: u64,
    jobs: BTreeMap<u64, Running>,
    next_job: u64,
}

/// A command that the agent has started.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Running {
    pid: u64,
    /// The path of its outputs, without `.out` and `.err`.
    files: String,
}

impl Agent {
    /// Connects to the host's side of the agent's port. The agent need not be there yet.
    ///
    /// # Errors
    /// When nothing listens at `path`.
    pub(in crate::platform) fn connect(path: &Path) -> Result<Self, HostError> {
        let wire = Wire::connect(PEER, path).map_err(HostError::file("connect to", path))?;
        Ok(Self::over(wire))
    }

    /// A client over an existing wire.
    pub(in crate::platform) fn over(wire: Wire) -> Self {
        Self {
            wire,
            console: None,
            console_bytes: 0,
            // The first number differs between clients, which identifies replies to an earlier one.
            next_sync: u64::from(std::process::id()) << 20,
            jobs: BTreeMap::new(),
            next_job: 0,
        }
    }

    /// A client over a serial port that is also the guest's console; the kernel's messages go to `console`.
    pub(in crate::platform) fn on_console(line: UnixStream, console: File) -> Self {
        Self {
            console: Some(console),
            ..Self::over(Wire::new(PEER, line))
        }
    }

    /// Tries for `limit` to synchronise with the agent. Bytes before the agent's reply, such as replies to an
    /// earlier client, are skipped.
    ///
    /// # Errors
    /// When the port is closed. No reply in time is `false`.
    pub(in crate::platform) fn synchronise(&mut self, limit: Duration) -> Result<bool, HostError> {
        let deadline = Instant::now() + limit;
        let id = self.next_sync;
        self.next_sync += 1;
        let request = json!({ "execute": "guest-sync-delimited", "arguments": { "id": id } });
        self.send(&[DELIMITER], &request, deadline)?;
        self.answered(id, deadline)
    }

    /// Continues to wait for the reply to the last [`Agent::synchronise`].
    ///
    /// # Errors
    /// As [`Agent::synchronise`].
    pub(in crate::platform) fn still_synchronising(
        &mut self,
        limit: Duration,
    ) -> Result<bool, HostError> {
        self.answered(self.next_sync.saturating_sub(1), Instant::now() + limit)
    }

    fn answered(&mut self, id: u64, deadline: Instant) -> Result<bool, HostError> {
        while let Received::Line(line) = self.wire.receive(deadline)? {
            let start = line
                .iter()
                .rposition(|byte| *byte == DELIMITER)
                .map_or(0, |position| position + 1);
            let answer: Option<Value> = line
                .get(start..)
                .and_then(|rest| serde_json::from_slice(rest).ok());
            match answer {
                Some(answer) if answer["return"] == id => return Ok(true),
                Some(_) => {}
                None => self.pass_over(&line),
            }
        }
        Ok(false)
    }

    /// Sends a request. On failure, logs the last output of a guest that has ended.
    fn send(&mut self, prefix: &[u8], request: &Value, deadline: Instant) -> Result<(), HostError> {
        let sent = self.wire.send(prefix, request, deadline);
        if sent.is_err() && self.console.is_some() {
            let soon = Instant::now() + Duration::from_millis(100);
            while let Ok(Received::Line(line)) = self.wire.receive(soon) {
                self.pass_over(&line);
            }
        }
        sent
    }

    /// Logs a line that is not a reply.
    fn pass_over(&mut self, line: &[u8]) {
        if let Some(console) = &mut self.console
            && self.console_bytes < MOST_CONSOLE
        {
            self.console_bytes += line.len() as u64 + 1;
            // The log only helps to explain errors.
            let _ = console.write_all(&[line, b"\n"].concat());
        }
    }

    /// Executes an agent command and returns its return value.
    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, HostError> {
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut request = json!({ "execute": command });
        if let (Some(object), false) = (request.as_object_mut(), arguments.is_null()) {
            object.insert("arguments".into(), arguments);
        }
        self.send(b"", &request, deadline)?;
        let mut answer: Value = loop {
            let Received::Line(line) = self.wire.receive(deadline)? else {
                return Err(HostError::Timeout {
                    what: format!("the guest agent's answer to {command}"),
                    seconds: REPLY_TIMEOUT.as_secs(),
                    evidence: String::new(),
                });
            };
            match serde_json::from_slice(&line) {
                Ok(answer) => break answer,
                Err(_) if self.console.is_some() => self.pass_over(&line),
                Err(_) => {
                    let printed = format!("to {command}: not JSON: {}", excerpt(&line));
                    return Err(self.wire.protocol(printed));
                }
            }
        };
        if let Some(error) = answer.get("error") {
            let reason = error["desc"].as_str().unwrap_or("no reason given");
            return Err(self.wire.protocol(format!(
                "it refuses {}: {reason}",
                excerpt(request.to_string().as_bytes())
            )));
        }
        match answer.get_mut("return") {
            Some(value) => Ok(value.take()),
            None => {
                let what = format!("to {command}: no answer but");
                Err(self.wire.unexpected(&what, &answer))
            }
        }
    }

    /// Starts a command. A command that cannot be executed ends with 126 or 127 and a line on its standard error,
    /// as under a shell.
    ///
    /// # Errors
    /// When the agent does not accept it.
    pub(in crate::platform) fn start(&mut self, line: &CommandLine) -> Result<Job, HostError> {
        let job = Job(self.next_job);
        self.next_job += 1;
        let files = format!("{OUTPUTS}{}", job.0);
        let mut arguments = vec!["-c", WITH_FILES, &files];
        arguments.extend(line.iter().map(String::as_str));
        let answer = self.execute("guest-exec", json!({ "path": "/bin/sh", "arg": arguments }))?;
        let pid = answer["pid"].as_u64();
        let pid = pid.ok_or_else(|| self.wire.unexpected("no pid in", &answer))?;
        self.jobs.insert(job.0, Running { pid, files });
        Ok(job)
    }

    /// Returns and forgets the result of a command; `None` while it runs.
    ///
    /// # Errors
    /// When the agent's reply is missing or invalid, or no such command runs.
    pub(in crate::platform) fn poll(&mut self, job: Job) -> Result<Option<Finished>, HostError> {
        let running = self.jobs.get(&job.0).ok_or_else(|| job.unknown())?;
        let running = running.clone();
        let answer = self.execute("guest-exec-status", json!({ "pid": running.pid }))?;
        match answer["exited"].as_bool() {
            Some(false) => return Ok(None),
            Some(true) => {}
            None => {
                let what = "to guest-exec-status: no `exited` in";
                return Err(self.wire.unexpected(what, &answer));
            }
        }
        let number = |key: &str| {
            answer[key]
                .as_i64()
                .and_then(|value| i32::try_from(value).ok())
        };
        let code = match (number("exitcode"), number("signal")) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128i32.saturating_add(signal),
            (None, None) => {
                return Err(self
                    .wire
                    .protocol("a command ended with neither code nor signal".into()));
            }
        };
        let stdout = self.read_output(&format!("{}.out", running.files))?;
        let stderr = self.read_output(&format!("{}.err", running.files))?;
        self.jobs.remove(&job.0);
        Ok(Some(Finished {
            code,
            stdout,
            stderr,
        }))
    }

    /// Reads an output of a command. Empties the file of a long output, so that it leaves space for those of further commands.
    fn read_output(&mut self, path: &str) -> Result<Vec<u8>, HostError> {
        let content = self.read_file(path);
        if content.as_ref().is_ok_and(|all| all.len() > MOST_OUTPUT) || content.is_err() {
            let emptied = self.execute("guest-file-open", json!({ "path": path, "mode": "w" }));
            // The first error is reported.
            let _ = emptied
                .and_then(|handle| self.execute("guest-file-close", json!({ "handle": handle })));
        }
        content
    }

    /// Reads a file of the guest, including files of `/proc`. Of a file of more than [`HEAD_OUTPUT`] and [`MOST_OUTPUT`] bytes
    /// together these are read, from its begin and its end, and a line between them gives what is left out.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(in crate::platform) fn read_file(&mut self, path: &str) -> Result<Vec<u8>, HostError> {
        let handle = self.execute("guest-file-open", json!({ "path": path, "mode": "r" }))?;
        let content = self.read_all(path, &handle);
        // The agent does not close files by itself.
        let closed = self.execute("guest-file-close", json!({ "handle": handle }));
        let content = content?;
        closed?;
        Ok(content)
    }

    /// Moves the position in an open file; returns the new one.
    fn seek(&mut self, handle: &Value, offset: u64, whence: &str) -> Result<u64, HostError> {
        let to = json!({ "handle": handle, "offset": offset, "whence": whence });
        let answer = self.execute("guest-file-seek", to)?;
        let position = answer["position"].as_u64();
        position.ok_or_else(|| self.wire.unexpected("no position in", &answer))
    }

    fn read_all(&mut self, path: &str, handle: &Value) -> Result<Vec<u8>, HostError> {
        let mut content = Vec::new();
        let mut is_whole = true;
        let count = match self.console {
            Some(_) => SERIAL_READ_BYTES,
            None => READ_BYTES,
        };
        loop {
            let answer = self.execute(
                "guest-file-read",
                json!({ "handle": handle, "count": count }),
            )?;
            let part = answer["buf-b64"].as_str();
            let part = part.and_then(|text| STANDARD.decode(text).ok());
            let part =
                part.ok_or_else(|| self.wire.unexpected(&format!("{path} came as"), &answer))?;
            content.extend_from_slice(&part);
            // An empty read is also the end, so that a faulty agent cannot cause an endless loop. So is more than the end had: a
            // process that the command left may go on printing.
            let is_full = content.len() > HEAD_OUTPUT + MOST_OUTPUT;
            let is_end = answer["eof"].as_bool().unwrap_or(false) || part.is_empty();
            if is_end || is_full && !is_whole {
                return Ok(content);
            }
            if is_full {
                is_whole = false;
                let size = self.seek(handle, 0, "end")?;
                let end = self.seek(handle, size.saturating_sub(MOST_OUTPUT as u64), "set")?;
                content.truncate(HEAD_OUTPUT);
                content.extend(left_out(end.saturating_sub(HEAD_OUTPUT as u64)).bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::fake::{Peer, Side};
    use super::*;

    fn answer_sync(side: &mut Side) {
        let id = side.hear()["arguments"]["id"].clone();
        side.say(b"\xff");
        side.say(format!("{{\"return\": {id}}}\n"));
    }

    fn connected(peer: &Peer) -> Agent {
        let mut agent = Agent::connect(&peer.path).unwrap();
        assert!(agent.synchronise(Duration::from_secs(10)).unwrap());
        agent
    }

    #[test]
    fn what_the_port_carries_before_the_answer_is_passed_over() {
        let peer = Peer::start(|mut side| {
            side.say(b"\x00\x01garbage of a boot\n{\"return\": {}}\n\xff{\"return\": 1}\nhalf");
            answer_sync(&mut side);
        });
        let mut agent = Agent::connect(&peer.path).unwrap();
        assert!(agent.synchronise(Duration::from_secs(10)).unwrap());
        peer.finish();
    }

    #[test]
    fn a_console_on_the_agents_line_is_kept_and_never_taken_for_an_answer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut agent = Agent::on_console(ours, File::create(&path).unwrap());
        let guest = std::thread::spawn(move || {
            let mut reader = std::io::BufReader::new(theirs.try_clone().unwrap());
            let (mut theirs, mut request) = (theirs, Vec::new());
            std::io::BufRead::read_until(&mut reader, b'\n', &mut request).unwrap();
            let id: Value = serde_json::from_slice(&request[1..]).unwrap();
            let id = &id["arguments"]["id"];
            write!(theirs, "booting\r\n").unwrap();
            // A terminal in cooked mode echoes its input.
            theirs.write_all(&request).unwrap();
            theirs.write_all(b"\xff").unwrap();
            writeln!(theirs, "{{\"return\": {id}}}").unwrap();
            std::io::BufRead::read_until(&mut reader, b'\n', &mut request).unwrap();
            write!(
                theirs,
                "a bad page\n{{\"return\": {{\"pid\": 7}}}}\nKernel panic\n"
            )
            .unwrap();
        });
        assert!(agent.synchronise(Duration::from_secs(10)).unwrap());
        agent.start(&vec!["true".into()]).unwrap();
        guest.join().unwrap();
        let error = agent.start(&vec!["true".into()]).unwrap_err();
        assert!(matches!(error, HostError::Closed { .. }), "{error}");
        let console = std::fs::read_to_string(path).unwrap();
        assert_eq!(console, "booting\na bad page\nKernel panic\n");
    }

    #[test]
    fn an_agent_that_is_slow_to_come_is_waited_for_without_asking_again() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let peer = Peer::start(move |mut side| {
            wait.recv().unwrap();
            answer_sync(&mut side);
        });
        let mut agent = Agent::connect(&peer.path).unwrap();
        assert!(!agent.synchronise(Duration::from_millis(10)).unwrap());
        go.send(()).unwrap();
        assert!(agent.still_synchronising(Duration::from_secs(10)).unwrap());
        peer.finish();
    }

    #[test]
    fn a_command_is_started_polled_and_its_outputs_are_read_in_pieces() {
        let peer = Peer::start(|mut side| {
            answer_sync(&mut side);
            let exec = side.hear();
            assert_eq!(exec["arguments"]["path"], "/bin/sh");
            assert_eq!(exec["arguments"]["arg"][3], "echo");
            side.say("{\"return\": {\"pid\": 77}}\n");
            assert_eq!(side.hear()["arguments"]["pid"], 77);
            side.say("{\"return\": {\"exited\": false}}\n");
            side.hear();
            side.say("{\"return\": {\"exited\": true, \"exitcode\": 3}}\n");
            for (pieces, handle) in [
                (vec![("aGVs", false), ("bG8=", true)], 1000),
                (vec![("", true)], 1001),
            ] {
                assert_eq!(side.hear()["execute"], "guest-file-open");
                side.say(format!("{{\"return\": {handle}}}\n"));
                for (text, eof) in pieces {
                    assert_eq!(side.hear()["arguments"]["handle"], handle);
                    side.say(format!("{{\"return\": {{\"count\": 3, \"buf-b64\": \"{text}\", \"eof\": {eof}}}}}\n"));
                }
                assert_eq!(side.hear()["execute"], "guest-file-close");
                side.say("{\"return\": {}}\n");
            }
        });
        let mut agent = connected(&peer);
        let job = agent.start(&vec!["echo".into(), "hello".into()]).unwrap();
        assert_eq!(agent.poll(job).unwrap(), None);
        let finished = agent.poll(job).unwrap().unwrap();
        assert_eq!(
            finished,
            Finished {
                code: 3,
                stdout: b"hello".to_vec(),
                stderr: Vec::new()
            }
        );
        peer.finish();
    }

    #[test]
    fn of_a_long_output_the_begin_and_the_end_are_read() {
        let piece = STANDARD.encode(vec![b'm'; READ_BYTES]);
        let size = 300 << 20;
        let peer = Peer::start(move |mut side| {
            answer_sync(&mut side);
            side.hear();
            side.say("{\"return\": 9}\n");
            // The begin, up to one byte more than is kept in all.
            let pieces = (HEAD_OUTPUT + MOST_OUTPUT) / READ_BYTES + 1;
            for _ in 0..pieces {
                assert_eq!(side.hear()["execute"], "guest-file-read");
                side.say(format!(
                    "{{\"return\": {{\"count\": {READ_BYTES}, \"buf-b64\": \"{piece}\", \"eof\": false}}}}\n"
                ));
            }
            let to_end = side.hear()["arguments"].clone();
            assert_eq!(to_end, json!({ "handle": 9, "offset": 0, "whence": "end" }));
            side.say(format!(
                "{{\"return\": {{\"position\": {size}, \"eof\": false}}}}\n"
            ));
            let to_last = side.hear()["arguments"].clone();
            let from = size - MOST_OUTPUT;
            assert_eq!(
                to_last,
                json!({ "handle": 9, "offset": from, "whence": "set" })
            );
            side.say(format!(
                "{{\"return\": {{\"position\": {from}, \"eof\": false}}}}\n"
            ));
            side.hear();
            side.say("{\"return\": {\"count\": 3, \"buf-b64\": \"ZW5k\", \"eof\": true}}\n");
            assert_eq!(side.hear()["execute"], "guest-file-close");
            side.say("{\"return\": {}}\n");
        });
        let printed = connected(&peer).read_file("/tmp/vtax-job-0.out").unwrap();
        let note = left_out((size - MOST_OUTPUT - HEAD_OUTPUT) as u64);
        assert!(printed.ends_with(format!("m{note}end").as_bytes()));
        assert_eq!(printed.len(), HEAD_OUTPUT + note.len() + 3);
        peer.finish();
    }

    #[test]
    fn a_command_that_a_signal_ended_has_the_shells_code() {
        let peer = Peer::start(|mut side| {
            answer_sync(&mut side);
            side.hear();
            side.say("{\"return\": {\"pid\": 1}}\n");
            side.hear();
            side.say("{\"return\": {\"exited\": true, \"signal\": 9}}\n");
            for _ in 0..2 {
                side.hear();
                side.say("{\"return\": 1}\n");
                side.hear();
                side.say("{\"return\": {\"count\": 0, \"buf-b64\": \"\", \"eof\": true}}\n");
                side.hear();
                side.say("{\"return\": {}}\n");
            }
        });
        let mut agent = connected(&peer);
        let job = agent.start(&vec!["true".into()]).unwrap();
        let finished = agent.poll(job).unwrap().unwrap();
        assert_eq!(finished.code, 137);
        let unknown = agent.poll(job).unwrap_err().to_string();
        assert!(unknown.contains("command number 0"), "{unknown}");
        peer.finish();
    }

    #[test]
    fn an_agent_that_refuses_or_talks_garbage_is_an_error_that_says_so() {
        let cases = [
            (
                "{\"error\": {\"class\": \"GenericError\", \"desc\": \"disabled by policy\"}}\n",
                "disabled by policy",
            ),
            ("{\"return\": {\"pid\": \"many\"}}\n", "no pid"),
            ("{\"something\": 1}\n", "no answer"),
            ("kernel panic\n", "not JSON"),
            ("", "closed the connection"),
        ];
        for (printed, expected) in cases {
            let peer = Peer::start(move |mut side| {
                answer_sync(&mut side);
                side.hear();
                side.say(printed);
            });
            let text = connected(&peer)
                .start(&vec!["true".into()])
                .unwrap_err()
                .to_string();
            assert!(text.contains(expected), "{printed}: {text}");
            peer.finish();
        }
    }

    #[test]
    fn a_file_that_is_not_base64_is_an_error_and_is_closed_all_the_same() {
        let peer = Peer::start(|mut side| {
            answer_sync(&mut side);
            side.hear();
            side.say("{\"return\": 5}\n");
            side.hear();
            side.say("{\"return\": {\"count\": 3, \"buf-b64\": \"%%%%\", \"eof\": true}}\n");
            assert_eq!(side.hear()["execute"], "guest-file-close");
            side.say("{\"return\": {}}\n");
        });
        let text = connected(&peer)
            .read_file("/proc/stat")
            .unwrap_err()
            .to_string();
        assert!(text.contains("/proc/stat came as"), "{text}");
        peer.finish();
    }
}
