// SPDX-License-Identifier: Apache-2.0
//! A client for QMP, the QEMU Machine Protocol (QEMU `docs/interop/qmp-spec.txt`).

use crate::platform::vm::wire::{Received, Wire, excerpt};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};
use vtax_host::HostError;

/// The time limit for QEMU's reply to a query, which takes milliseconds unless QEMU hangs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The time limit for writing or reading a machine's state without its memory: a few hundred KiB.
const STATE_PATIENCE: Duration = Duration::from_secs(30);

/// The interval between two checks of a migration.
const STATE_POLL: Duration = Duration::from_millis(5);

/// The most events that are kept for [`Qmp::take_events`]; a guest can cause any number.
const EVENTS_KEPT: usize = 256;

/// A connection to QEMU's monitor.
#[derive(Debug)]
pub struct Qmp {
    wire: Wire,
    version: String,
    next_id: u64,
    events: VecDeque<Event>,
}

/// An event of QEMU.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Event {
    /// Its name, such as `SHUTDOWN`.
    pub(super) name: String,
    /// Its data, `null` where there is none.
    pub(super) data: Value,
}

impl Qmp {
    /// Connects to the monitor at a UNIX socket; `None` while no process listens there.
    ///
    /// # Errors
    /// When the peer does not greet as QMP does.
    pub fn connect(socket: &Path) -> Result<Option<Self>, HostError> {
        match Wire::connect("QEMU", socket) {
            Ok(wire) => Self::greet(wire, REPLY_TIMEOUT).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Negotiates: greeting, then capabilities.
    ///
    /// # Errors
    /// When the peer does not greet as QMP does within `limit`.
    pub(super) fn greet(wire: Wire, limit: Duration) -> Result<Self, HostError> {
        let mut qmp = Self {
            wire,
            version: String::new(),
            next_id: 0,
            events: VecDeque::new(),
        };
        let deadline = Instant::now() + limit;
        let greeting = qmp.next_value("its greeting", limit, deadline)?;
        let version = &greeting["QMP"]["version"]["qemu"];
        let number = |part: &str| version[part].as_u64();
        let (Some(major), Some(minor), Some(micro)) =
            (number("major"), number("minor"), number("micro"))
        else {
            return Err(qmp.wire.unexpected("no greeting but", &greeting));
        };
        let package = greeting["QMP"]["version"]["package"]
            .as_str()
            .unwrap_or_default()
            .trim();
        qmp.version = format!("{major}.{minor}.{micro} {package}")
            .trim_end()
            .to_owned();
        qmp.execute_within("qmp_capabilities", Value::Null, limit)?;
        Ok(qmp)
    }

    /// QEMU's version, such as `7.2.22 Debian 1:7.2+dfsg-7`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// QEMU's process number in this process's PID namespace.
    ///
    /// # Errors
    /// When it is in a namespace that is not visible here.
    pub(super) fn process(&self) -> Result<u32, HostError> {
        self.wire.peer_process()
    }

    /// Executes a command and returns its return value.
    ///
    /// # Errors
    /// When QEMU refuses it, does not reply in time, or sends an invalid reply.
    pub(super) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, HostError> {
        self.execute_within(command, arguments, REPLY_TIMEOUT)
    }

    fn execute_within(
        &mut self,
        command: &str,
        arguments: Value,
        limit: Duration,
    ) -> Result<Value, HostError> {
        let id = self.next_id;
        self.next_id += 1;
        let deadline = Instant::now() + limit;
        let mut request = json!({ "execute": command, "id": id });
        if let (Some(object), false) = (request.as_object_mut(), arguments.is_null()) {
            object.insert("arguments".into(), arguments);
        }
        self.wire.send(b"", &request, deadline)?;
        loop {
            let mut answer = self.next_value(command, limit, deadline)?;
            if let Some(error) = answer.get("error") {
                // An error without an id is the reply to a request that could not be parsed: this one.
                if answer.get("id").is_none_or(|given| *given == id) {
                    let reason = error["desc"].as_str().unwrap_or("no reason given");
                    return Err(self
                        .wire
                        .protocol(format!("it refuses `{request}`: {reason}")));
                }
            } else if answer.get("return").is_some() {
                if answer["id"] == id {
                    return Ok(answer["return"].take());
                }
            } else {
                let what = "neither an answer nor an event:";
                return Err(self.wire.unexpected(what, &answer));
            }
            // A reply to an earlier command that timed out.
        }
    }

    /// Returns the next value that is not an event; events are kept.
    fn next_value(
        &mut self,
        what: &str,
        limit: Duration,
        deadline: Instant,
    ) -> Result<Value, HostError> {
        loop {
            match self.wire.receive(deadline)? {
                Received::Line(line) if line.is_empty() => {}
                Received::Line(line) => {
                    let value: Value = serde_json::from_slice(&line)
                        .map_err(|_| self.wire.protocol(format!("not JSON: {}", excerpt(&line))))?;
                    let Some(name) = value.get("event").and_then(Value::as_str) else {
                        return Ok(value);
                    };
                    let event = Event {
                        name: name.to_owned(),
                        data: value["data"].clone(),
                    };
                    self.keep(event);
                }
                Received::Nothing => {
                    return Err(HostError::Timeout {
                        what: format!("QEMU's answer to {what}"),
                        seconds: limit.as_secs(),
                        evidence: String::new(),
                    });
                }
            }
        }
    }

    fn keep(&mut self, event: Event) {
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The events since the last call, oldest first.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    /// Whether QEMU has reported this event since the last call, or reports it within `limit`. Sends nothing, so
    /// that the machine is not disturbed.
    ///
    /// # Errors
    /// When the connection ends, or a message is not QMP.
    pub fn has_sent(&mut self, event: &str, limit: Duration) -> Result<bool, HostError> {
        match self.next_value("events", limit, Instant::now() + limit) {
            Ok(answer) => return Err(self.wire.unexpected("no event but", &answer)),
            Err(HostError::Timeout { .. }) => {}
            Err(other) => return Err(other),
        }
        Ok(self.take_events().iter().any(|own| own.name == event))
    }

    /// Writes the state of a stopped machine, without the memory that it shares with files, to `uri`:
    /// `exec:cat >"$STATE"`.
    ///
    /// # Errors
    /// When QEMU refuses or fails, or takes longer than 30 s.
    pub fn save(&mut self, uri: &str) -> Result<(), HostError> {
        self.leave_shared_memory()?;
        self.execute("migrate", json!({ "uri": uri }))?;
        self.migrated()
    }

    /// Reads such a state into a machine that was started for it (`-incoming defer`), and resumes it.
    ///
    /// # Errors
    /// As [`Qmp::save`], and when the state belongs to another machine.
    pub fn load(&mut self, uri: &str) -> Result<(), HostError> {
        self.leave_shared_memory()?;
        self.execute("migrate-incoming", json!({ "uri": uri }))?;
        self.migrated()?;
        self.execute("cont", Value::Null).map(drop)
    }

    fn leave_shared_memory(&mut self) -> Result<(), HostError> {
        let capability = json!({ "capability": "x-ignore-shared", "state": true });
        let arguments = json!({ "capabilities": [capability] });
        self.execute("migrate-set-capabilities", arguments)
            .map(drop)
    }

    /// Waits until a state has been written or read.
    fn migrated(&mut self) -> Result<(), HostError> {
        let deadline = Instant::now() + STATE_PATIENCE;
        loop {
            let answer = self.execute("query-migrate", Value::Null)?;
            match answer["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => {
                    return Err(self.wire.unexpected("no state is kept:", &answer));
                }
                _ if Instant::now() > deadline => {
                    return Err(HostError::Timeout {
                        what: "a machine's state".into(),
                        seconds: STATE_PATIENCE.as_secs(),
                        evidence: answer.to_string(),
                    });
                }
                _ => std::thread::sleep(STATE_POLL),
            }
        }
    }

    /// Thread ids of the vCPUs in order, in QEMU's own PID namespace.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub(super) fn vcpu_threads(&mut self) -> Result<Vec<u32>, HostError> {
        let answer = self.execute("query-cpus-fast", Value::Null)?;
        let mut threads = Vec::new();
        for cpu in answer.as_array().map(Vec::as_slice).unwrap_or_default() {
            let index = cpu["cpu-index"].as_u64().unwrap_or(u64::MAX);
            threads.push((index, self.thread_id(cpu)?));
        }
        threads.sort_unstable();
        if threads.is_empty() {
            return Err(self.wire.unexpected("no vCPU in", &answer));
        }
        Ok(threads.into_iter().map(|(_, thread)| thread).collect())
    }

    /// A property of an object.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub(super) fn property(&mut self, path: &str, name: &str) -> Result<Value, HostError> {
        self.execute("qom-get", json!({ "path": path, "property": name }))
    }

    /// The dedicated I/O threads, by their ids in QEMU's own PID namespace.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub(super) fn iothreads(&mut self) -> Result<Vec<u32>, HostError> {
        let answer = self.execute("query-iothreads", Value::Null)?;
        answer
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .map(|thread| self.thread_id(thread))
            .collect()
    }

    fn thread_id(&self, value: &Value) -> Result<u32, HostError> {
        value["thread-id"]
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| self.wire.unexpected("no thread-id in", value))
    }

    /// The state of the machine: `running`, `guest-panicked`, `shutdown`.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub(super) fn status(&mut self) -> Result<String, HostError> {
        let answer = self.execute("query-status", Value::Null)?;
        let status = answer["status"].as_str().map(str::to_owned);
        status.ok_or_else(|| self.wire.unexpected("no status in", &answer))
    }

    /// Makes QEMU exit at once.
    ///
    /// # Errors
    /// When QEMU does not accept the command. A connection that closes without a reply is not an error, since QEMU
    /// exits.
    pub fn quit(&mut self) -> Result<(), HostError> {
        match self.execute_within("quit", Value::Null, Duration::from_secs(2)) {
            Err(HostError::Closed { .. }) => Ok(()),
            other => other.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::vm::wire::fake::{Peer, Side};

    const GREETING: &str = concat!(
        r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian 1:7.2"}, "#,
        r#""capabilities": ["oob"]}}"#,
        "\r\n"
    );

    fn greeted(side: &mut Side) {
        side.say(GREETING);
        assert_eq!(side.hear()["execute"], "qmp_capabilities");
        side.say("{\"return\": {}, \"id\": 0}\n");
    }

    /// Receives a command and replies to it.
    fn answer(side: &mut Side, with: &str) {
        let id = side.hear()["id"].clone();
        side.say(format!("{{\"return\": {with}, \"id\": {id}}}\n"));
    }

    fn connect(peer: &Peer) -> Result<Qmp, HostError> {
        Qmp::greet(
            Wire::connect("QEMU", &peer.path).unwrap(),
            Duration::from_secs(10),
        )
    }

    #[test]
    fn the_greeting_reports_the_version() {
        let peer = Peer::start(|mut side| greeted(&mut side));
        assert_eq!(connect(&peer).unwrap().version(), "7.2.22 Debian 1:7.2");
        peer.finish();
    }

    #[test]
    fn events_between_command_and_answer_are_kept_and_unknown_ones_do_not_disturb() {
        let peer = Peer::start(|mut side| {
            greeted(&mut side);
            let request = side.hear();
            side.say("{\"event\": \"NIC_RX_FILTER_CHANGED\", \"data\": {\"name\": \"n\"}}\n");
            side.say(
                "{\"event\": \"FROM_THE_FUTURE\", \"timestamp\": {}}\n{\"timestamp\": 1, \"ev",
            );
            std::thread::sleep(Duration::from_millis(5));
            side.say("ent\": \"RESUME\"}\n");
            side.say(format!(
                "{{\"return\": {{\"status\": \"running\"}}, \"id\": {}}}\n",
                request["id"]
            ));
        });
        let mut qmp = connect(&peer).unwrap();
        assert_eq!(qmp.status().unwrap(), "running");
        let names: Vec<String> = qmp
            .take_events()
            .into_iter()
            .map(|event| event.name)
            .collect();
        assert_eq!(
            names,
            ["NIC_RX_FILTER_CHANGED", "FROM_THE_FUTURE", "RESUME"]
        );
        assert!(qmp.take_events().is_empty());
        peer.finish();
    }

    #[test]
    fn a_state_is_waited_for_and_a_failure_reported() {
        let peer = Peer::start(|mut side| {
            greeted(&mut side);
            side.say("{\"event\": \"GUEST_PANICKED\"}\n");
            answer(&mut side, "{}");
            answer(&mut side, "{}");
            answer(&mut side, "{\"status\": \"active\"}");
            answer(&mut side, "{\"status\": \"completed\"}");
            answer(&mut side, "{}");
            answer(&mut side, "{}");
            answer(&mut side, "{\"status\": \"failed\"}");
        });
        let mut qmp = connect(&peer).unwrap();
        let moment = Duration::from_millis(20);
        assert!(!qmp.has_sent("STOP", moment).unwrap());
        qmp.save("exec:cat >/dev/null").unwrap();
        let failed = qmp.save("exec:false").unwrap_err().to_string();
        assert!(failed.contains("failed"), "{failed}");
        peer.finish();
    }

    #[test]
    fn an_error_answer_is_reported_with_its_reason_and_the_command() {
        let peer = Peer::start(|mut side| {
            greeted(&mut side);
            let id = side.hear()["id"].clone();
            side.say(format!(
                "{{\"error\": {{\"class\": \"CommandNotFound\", \"desc\": \"no such command\"}}, \"id\": {id}}}\n"
            ));
        });
        let text = connect(&peer)
            .unwrap()
            .execute("dance", Value::Null)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("no such command") && text.contains("dance"),
            "{text}"
        );
        peer.finish();
    }

    #[test]
    fn the_late_answer_to_an_abandoned_command_is_not_taken_for_the_next_ones() {
        let peer = Peer::start(|mut side| {
            greeted(&mut side);
            let first = side.hear()["id"].clone();
            let second = side.hear()["id"].clone();
            side.say(format!("{{\"return\": \"late\", \"id\": {first}}}\n"));
            side.say(format!("{{\"return\": \"mine\", \"id\": {second}}}\n"));
        });
        let mut qmp = connect(&peer).unwrap();
        let slow = qmp
            .execute_within("slow", Value::Null, Duration::from_millis(20))
            .unwrap_err();
        assert!(matches!(slow, HostError::Timeout { .. }), "{slow}");
        assert_eq!(qmp.execute("next", Value::Null).unwrap(), "mine");
        peer.finish();
    }

    #[test]
    fn garbage_instead_of_a_greeting_is_an_error_that_quotes_it() {
        for garbage in [
            "SSH-2.0-OpenSSH_9.2\n",
            "{}\n",
            "[]\n",
            "{\"QMP\": 7}\n",
            "\u{fffd}\n",
            "null\n",
        ] {
            let peer = Peer::start(move |mut side| side.say(garbage));
            let error = connect(&peer).unwrap_err();
            assert!(
                matches!(error, HostError::Protocol { .. }),
                "{garbage}: {error}"
            );
            peer.finish();
        }
    }

    #[test]
    fn garbage_instead_of_an_answer_is_an_error() {
        for garbage in ["{\"unknown\": 1}\n", "%$#\n", "{\"return\": \n"] {
            let peer = Peer::start(move |mut side| {
                greeted(&mut side);
                side.hear();
                side.say(garbage);
            });
            assert!(
                matches!(
                    connect(&peer).unwrap().status(),
                    Err(HostError::Protocol { .. })
                ),
                "{garbage}"
            );
            peer.finish();
        }
    }

    #[test]
    fn a_monitor_that_closes_is_an_error_except_after_quit() {
        let close = || {
            Peer::start(|mut side| {
                greeted(&mut side);
                side.hear();
            })
        };
        let peer = close();
        let text = connect(&peer).unwrap().status().unwrap_err().to_string();
        assert!(text.contains("closed the connection"), "{text}");
        peer.finish();
        let peer = close();
        connect(&peer).unwrap().quit().unwrap();
        peer.finish();
    }

    #[test]
    fn threads_come_in_the_order_of_vcpus() {
        let peer = Peer::start(|mut side| {
            greeted(&mut side);
            for cpus in [
                r#"[{"cpu-index": 1, "thread-id": 11}, {"cpu-index": 0, "thread-id": 12}]"#,
                r#"[{"id": "io0", "thread-id": 13, "poll-max-ns": 0}]"#,
                r#"[{"cpu-index": 0, "thread-id": -4}]"#,
            ] {
                answer(&mut side, cpus);
            }
        });
        let mut qmp = connect(&peer).unwrap();
        assert_eq!(qmp.vcpu_threads().unwrap(), [12, 11]);
        assert_eq!(qmp.iothreads().unwrap(), [13]);
        assert!(
            qmp.vcpu_threads()
                .unwrap_err()
                .to_string()
                .contains("thread-id")
        );
        peer.finish();
    }

    #[test]
    fn a_flood_of_events_does_not_fill_the_memory() {
        let peer = Peer::start(|mut side| {
            greeted(&mut side);
            let id = side.hear()["id"].clone();
            for number in 0..1000 {
                side.say(format!(
                    "{{\"event\": \"RTC_CHANGE\", \"data\": {number}}}\n"
                ));
            }
            side.say(format!(
                "{{\"return\": {{\"status\": \"running\"}}, \"id\": {id}}}\n"
            ));
        });
        let mut qmp = connect(&peer).unwrap();
        qmp.status().unwrap();
        let events = qmp.take_events();
        assert_eq!(events.len(), EVENTS_KEPT);
        assert_eq!(events.last().unwrap().data, 999);
        peer.finish();
    }
}
