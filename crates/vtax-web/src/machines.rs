//! What runs beside the guests and has an interface of its own: NICs by their operator's sockets,
//! populations of micro VMs by their address.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vtax_nic::control::api::{Change, PortInfo, Request, Response};
use vtax_nic::telemetry::PortSnapshot;

/// They answer at once or not at all.
const PATIENCE: Duration = Duration::from_secs(3);
/// Of an answer.
const MOST_BYTES: u64 = 4 << 20;

/// Where they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machines {
    /// The sockets of `vtax nic --api`.
    pub nics: Vec<PathBuf>,
    /// The addresses of `vtax mvm run --http`.
    pub populations: Vec<SocketAddr>,
}

/// All of them as they are now.
#[derive(Debug, Serialize)]
pub struct Seen {
    nics: Vec<Nic>,
    populations: Vec<Population>,
}

/// One NIC.
#[derive(Debug, Serialize)]
struct Nic {
    socket: String,
    /// Why it tells nothing.
    error: Option<String>,
    /// When, in ns on the monotonic clock.
    at_ns: u64,
    ports: Vec<Port>,
}

#[derive(Debug, Serialize)]
struct Port {
    info: PortInfo,
    stats: Option<PortSnapshot>,
}

/// One population of micro VMs.
#[derive(Debug, Serialize)]
struct Population {
    address: String,
    error: Option<String>,
    /// What it says of itself.
    status: Option<Value>,
}

/// A port's budget, as the page sets it. One of the three.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    socket: PathBuf,
    port: String,
    /// What holds while the guest has not asked, in µs.
    default_us: Option<u32>,
    /// What holds whatever the guest asks, in µs.
    override_us: Option<u32>,
    /// Let cap, default and guest decide again.
    #[serde(default)]
    clear: bool,
}

impl Machines {
    /// Asks all of them.
    pub fn look(&self) -> Seen {
        let populations = self.populations.iter().map(|address| {
            let status = status(*address);
            Population {
                address: address.to_string(),
                error: status.as_ref().err().map(|cause| {
                    format!("no population answers at {address}: {cause}; does `vtax mvm run --http {address}` run?")
                }),
                status: status.ok(),
            }
        });
        Seen {
            nics: self.nics.iter().map(|socket| nic(socket)).collect(),
            populations: populations.collect(),
        }
    }

    /// Sets a port's budget, never above the operator's cap.
    ///
    /// # Errors
    /// When there is no such port, the budget is above its cap, or the NIC refuses; in words.
    pub fn set(&self, budget: &Budget) -> Result<(), String> {
        let socket = self.nics.iter().find(|socket| **socket == budget.socket);
        let socket =
            socket.ok_or("vtax web was not told of this NIC: give its socket with --nic")?;
        let port = Some(budget.port.clone());
        let known = ask(socket, &Request::List { port: port.clone() })?;
        let known = known
            .ports
            .first()
            .ok_or("the NIC says nothing of this port")?;
        let asked = budget
            .default_us
            .into_iter()
            .chain(budget.override_us)
            .max();
        if asked.is_some_and(|asked| asked > known.policy.cap_us) {
            return Err(format!(
                "the operator’s cap of this port is {} µs; this raises it: vtax nic ctl --socket {} set {} --cap-us N",
                known.policy.cap_us,
                socket.display(),
                budget.port
            ));
        }
        if budget.clear {
            ask(socket, &Request::ClearOverride { port }).map(drop)
        } else {
            let change = Change {
                default_us: budget.default_us,
                override_us: budget.override_us,
                ..Change::default()
            };
            if change == Change::default() {
                return Err("give a default or an override, in µs".to_owned());
            }
            ask(socket, &Request::Set { port, change }).map(drop)
        }
    }
}

fn nic(socket: &Path) -> Nic {
    let look = || -> Result<(u64, Vec<Port>), String> {
        let infos = ask(socket, &Request::List { port: None })?;
        let mut stats = ask(socket, &Request::Stats { port: None })?;
        let ports = infos.ports.into_iter().map(|info| {
            let own = stats.stats.iter().position(|one| one.port == info.port);
            let stats = own.map(|at| stats.stats.swap_remove(at));
            Port { info, stats }
        });
        let ports = ports.collect();
        Ok((stats.at_ns, ports))
    };
    let (error, (at_ns, ports)) = match look() {
        Ok(seen) => (None, seen),
        Err(why) => (Some(why), (0, Vec::new())),
    };
    Nic {
        socket: socket.display().to_string(),
        error,
        at_ns,
        ports,
    }
}

/// As `vtax nic ctl` asks, but not for ever.
fn ask(socket: &Path, request: &Request) -> Result<Response, String> {
    let exchange = || -> io::Result<Response> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = String::new();
        BufReader::new(stream.take(MOST_BYTES)).read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    };
    let response = exchange().map_err(|cause| {
        format!(
            "no NIC answers at {}: {cause}; does `vtax nic --api` run with it?",
            socket.display()
        )
    })?;
    match response.error {
        Some(error) => Err(error),
        None => Ok(response),
    }
}

fn status(address: SocketAddr) -> io::Result<Value> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!("GET /status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut lines = BufReader::new(stream.take(MOST_BYTES)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    if !first.starts_with("HTTP/1.1 200") {
        return Err(io::Error::other("it gives no status"));
    }
    // After an empty line comes the status, in one: it may keep the connection.
    let mut body = lines.skip_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
    let status = body.nth(1).transpose()?.unwrap_or_default();
    Ok(serde_json::from_str(&status)?)
}
