// SPDX-License-Identifier: Apache-2.0
//! The vtax backend of a VM's NIC: one `vtax nic` for each VM, between the VM and its tap. It runs in the target's
//! control groups, since its work is a cost of the guest.

use super::machine::VtaxNic;
use crate::platform::CommandLine;
use crate::platform::vm::surroundings::Surroundings;
use crate::platform::vm::wire::{Received, Wire, excerpt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use vtax_core::counter;
use vtax_host::HostError;

/// The time limit for the NIC to listen, and to reply.
const NIC_TIMEOUT: Duration = Duration::from_secs(10);

/// A running NIC. Dropping this value ends it.
pub(super) struct Nic {
    child: Child,
    control: Wire,
}

impl Nic {
    /// Starts a NIC on the switch's tap that listens at `socket` (inside `place`).
    pub(super) fn start(
        place: &dyn Surroundings,
        tap: &str,
        options: &VtaxNic,
        socket: &Path,
    ) -> Result<Self, HostError> {
        let program = std::env::current_exe().map_err(HostError::process(
            "find",
            "the vtax program, which is also the NIC",
        ))?;
        let control = place.run_dir().join("nic-control.sock");
        let messages = place.outside(&place.run_dir().join("nic.log"));
        let log = vtax_files::create(&messages)?;
        let line = command_line(&program, tap, options, socket, &control);
        let mut child = place
            .command(&line)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(HostError::process("start", "vtax nic"))?;
        let control = match connect(&mut child, &place.outside(&control), &messages) {
            Ok(control) => control,
            Err(error) => {
                end(&mut child);
                return Err(error);
            }
        };
        Ok(Self { child, control })
    }

    /// The NIC's process number.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// The data path that the NIC reports: `kernel`, or `user` and the reason.
    pub(super) fn datapath(&mut self) -> Result<String, HostError> {
        let answer = self.ask(&json!({"op": "list"}))?;
        answer["ports"][0]["datapath"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| self.control.protocol("no port in the NIC's list".into()))
    }

    /// `nic.kicks` (notifications from the guest), `nic.calls` (interrupts to it), `nic.drops`,
    /// since the NIC started.
    pub(super) fn counters(&mut self) -> Result<BTreeMap<String, f64>, HostError> {
        let answer = self.ask(&json!({"op": "stats"}))?;
        parse(&answer).ok_or_else(|| {
            let printed = answer.to_string();
            self.control
                .protocol(format!("no statistics but {}", excerpt(printed.as_bytes())))
        })
    }

    fn ask(&mut self, request: &Value) -> Result<Value, HostError> {
        let deadline = Instant::now() + NIC_TIMEOUT;
        self.control.send(b"", request, deadline)?;
        match self.control.receive(deadline)? {
            Received::Line(line) => serde_json::from_slice(&line).map_err(|_| {
                self.control
                    .protocol(format!("no JSON but {}", excerpt(&line)))
            }),
            Received::Nothing => Err(HostError::Timeout {
                what: "the NIC's answer".into(),
                seconds: NIC_TIMEOUT.as_secs(),
                evidence: String::new(),
            }),
        }
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn command_line(
    program: &Path,
    tap: &str,
    options: &VtaxNic,
    socket: &Path,
    control: &Path,
) -> CommandLine {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    vec![
        text(program),
        "nic".to_owned(),
        format!("--socket-path={}", text(socket)),
        format!("--tap={tap}"),
        format!("--api={}", text(control)),
        format!("--datapath={}", options.datapath),
        format!("--mode={}", options.mode),
        format!("--hold={}us", options.budget_us),
        format!("--update={}ms", options.update_ms),
    ]
}

/// Connects to the API's socket as soon as it exists.
fn connect(child: &mut Child, control: &Path, messages: &PathBuf) -> Result<Wire, HostError> {
    let deadline = Instant::now() + NIC_TIMEOUT;
    loop {
        let cause = match Wire::connect("vtax nic", control) {
            Ok(wire) => return Ok(wire),
            Err(cause) => cause,
        };
        let printed = || fs::read_to_string(messages).unwrap_or_default();
        if let Ok(Some(status)) = child.try_wait() {
            return Err(HostError::Program {
                command: "vtax nic".into(),
                status: status.to_string(),
                output: printed(),
            });
        }
        if Instant::now() >= deadline {
            return Err(HostError::Timeout {
                what: format!("the NIC's control socket ({cause})"),
                seconds: NIC_TIMEOUT.as_secs(),
                evidence: printed(),
            });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Parses the counters in a response with statistics; the NIC has one port.
fn parse(answer: &Value) -> Option<BTreeMap<String, f64>> {
    let totals = &answer["stats"][0];
    let count = |name: &str| totals[name].as_f64();
    let drops = totals["drops"].as_object()?.values();
    Some(BTreeMap::from([
        (counter::NIC_KICKS.to_owned(), count("kicks")?),
        (
            counter::NIC_CALLS.to_owned(),
            count("rx_calls")? + count("tx_calls")?,
        ),
        (
            counter::NIC_DROPS.to_owned(),
            drops.filter_map(Value::as_f64).sum(),
        ),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ports_counters_are_read_and_anything_else_is_refused() {
        let line = r#"{"ok":true,"at_ns":1,"stats":[{"port":"port0","kicks":7,"rx_calls":2,
            "tx_calls":1,"drops":{"no_buffer":3,"tap":1}}]}"#;
        let answer = serde_json::from_str(line).unwrap();
        let counters = parse(&answer).unwrap();
        assert_eq!(
            counters.into_iter().collect::<Vec<_>>(),
            [
                ("nic.calls".to_owned(), 3.0),
                ("nic.drops".to_owned(), 4.0),
                ("nic.kicks".to_owned(), 7.0),
            ]
        );
        for garbage in [json!({"ok": false, "error": "no"}), json!([]), json!(1)] {
            assert_eq!(parse(&garbage), None);
        }
    }
}
