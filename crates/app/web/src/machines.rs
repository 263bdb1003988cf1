// SPDX-License-Identifier: Apache-2.0
//! The state of NICs and populations of micro VMs, requested over their own interfaces: from a `vtax nic` over its
//! operator's socket, from a `vtax mvm run` over HTTP.

use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vtax_nic::control::api::{Change, Request, Response};

/// The limit of a connection, a request and its response each.
const TIMEOUT: Duration = Duration::from_secs(3);
const MAX_RESPONSE_BYTES: u64 = 4 << 20;

/// The addresses of the NICs and populations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machines {
    /// The sockets of `vtax nic --api`.
    pub nics: Vec<PathBuf>,
    /// The addresses of `vtax mvm run --listen`.
    pub populations: Vec<SocketAddr>,
}

/// A change of a port's budget: new values, or the removal of the override.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    socket: PathBuf,
    port: String,
    /// The budget without a request of the guest, in µs.
    default_us: Option<u32>,
    /// The budget whatever the guest requests, in µs.
    override_us: Option<u32>,
    /// Removes the override.
    #[serde(default)]
    clear: bool,
}

/// A NIC or a population of micro VMs that gives no state, or refuses a change.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The command line does not name the NIC.
    #[error("vtax web does not know this NIC: give its socket with --nic")]
    UnknownNic,
    /// The NIC does not answer.
    #[error("no NIC answers at {}: {cause}; does `vtax nic --api` run with it?", socket.display())]
    NoNic {
        /// Its operator's socket.
        socket: PathBuf,
        /// The reason.
        cause: io::Error,
    },
    /// The NIC refuses.
    #[error("{0}")]
    Refused(String),
    /// The response of the NIC lacks the port.
    #[error("the NIC gives no state of this port")]
    NoPort,
    /// The budget is above the operator's cap.
    #[error(
        "the operator’s cap of this port is {cap_us} µs; this raises it: vtax nic ctl --api {} set {port} --cap TIME",
        socket.display()
    )]
    AboveCap {
        /// The cap.
        cap_us: u32,
        /// The operator's socket.
        socket: PathBuf,
        /// The port.
        port: String,
    },
    /// The change is empty.
    #[error("give a default or an override, in µs")]
    NoBudget,
    /// The population does not answer.
    #[error(
        "no population answers at {address}: {cause}; does `vtax mvm run --listen {address}` run?"
    )]
    NoPopulation {
        /// Its address.
        address: SocketAddr,
        /// The reason.
        cause: io::Error,
    },
}

impl Machines {
    /// Requests the state of all NICs and populations; each without an answer has the reason.
    pub fn list(&self) -> Value {
        let populations = self.populations.iter().map(|address| {
            let address = *address;
            let status = status(address).map_err(|cause| {
                let error = MachineError::NoPopulation { address, cause };
                error.to_string()
            });
            json!({
                "address": address.to_string(),
                "error": status.as_ref().err(),
                // Its own status document.
                "status": status.as_ref().ok(),
            })
        });
        json!({
            "nics": self.nics.iter().map(|socket| nic(socket)).collect::<Vec<_>>(),
            "populations": populations.collect::<Vec<_>>(),
        })
    }

    /// Sets a port's budget, never above the operator's cap.
    ///
    /// # Errors
    /// When there is no such port, the budget is above its cap, or the NIC refuses.
    pub fn set(&self, budget: &Budget) -> Result<(), MachineError> {
        let socket = self.nics.iter().find(|socket| **socket == budget.socket);
        let socket = socket.ok_or(MachineError::UnknownNic)?;
        let port = Some(budget.port.clone());
        let known = ask(socket, &Request::List { port: port.clone() })?;
        let known = known.ports.first().ok_or(MachineError::NoPort)?;
        let highest = budget.default_us.max(budget.override_us);
        if highest.is_some_and(|highest| highest > known.policy.cap_us) {
            return Err(MachineError::AboveCap {
                cap_us: known.policy.cap_us,
                socket: socket.clone(),
                port: budget.port.clone(),
            });
        }
        if budget.clear {
            return ask(socket, &Request::ClearOverride { port }).map(drop);
        }
        let change = Change {
            default_us: budget.default_us,
            override_us: budget.override_us,
            ..Change::default()
        };
        if change == Change::default() {
            return Err(MachineError::NoBudget);
        }
        ask(socket, &Request::Set { port, change }).map(drop)
    }
}

fn nic(socket: &Path) -> Value {
    let read = || -> Result<(u64, Vec<Value>), MachineError> {
        let infos = ask(socket, &Request::List { port: None })?;
        let stats = ask(socket, &Request::Stats { port: None })?;
        let ports = infos.ports.iter().map(|info| {
            let own = stats.stats.iter().find(|one| one.port == info.port);
            json!({ "info": info, "stats": own })
        });
        Ok((stats.at_ns, ports.collect()))
    };
    let (error, (at_ns, ports)) = match read() {
        Ok(state) => (None, state),
        Err(error) => (Some(error.to_string()), (0, Vec::new())),
    };
    json!({
        "socket": socket.display().to_string(),
        "error": error,
        // On the monotonic clock.
        "at_ns": at_ns,
        "ports": ports,
    })
}

/// Sends a request as `vtax nic ctl` does, with a timeout.
fn ask(socket: &Path, request: &Request) -> Result<Response, MachineError> {
    let exchange = || -> io::Result<Response> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = String::new();
        BufReader::new(stream.take(MAX_RESPONSE_BYTES)).read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    };
    let response = exchange().map_err(|cause| MachineError::NoNic {
        socket: socket.to_owned(),
        cause,
    })?;
    match response.error {
        Some(error) => Err(MachineError::Refused(error)),
        None => Ok(response),
    }
}

fn status(address: SocketAddr) -> io::Result<Value> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let request = format!("GET /status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut lines = BufReader::new(stream.take(MAX_RESPONSE_BYTES)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    if !first.starts_with("HTTP/1.1 200") {
        return Err(io::Error::other("it gives no status"));
    }
    // The status is the line after the empty one. The server may keep the connection open.
    let mut body = lines.skip_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
    let status = body.nth(1).transpose()?.unwrap_or_default();
    Ok(serde_json::from_str(&status)?)
}
