// SPDX-License-Identifier: Apache-2.0
//! `vtax-nic ctl`: sends requests to a running vtax-nic over its API socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use vtax_core::terminal;

use clap::Args;

use super::api::{Link, PortInfo, QueueInfo, Request, Response};
use super::lease::AskedBy;
use crate::vhost_net::Half;
use vtax_args::FormatArgs;

/// Arguments of `vtax-nic ctl`.
#[derive(Clone, Debug, Args)]
pub struct Ctl {
    /// The API socket of the running vtax-nic
    #[arg(long = "api", value_name = "PATH")]
    pub socket: PathBuf,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    request: Request,
}

/// Why a request to a running vtax-nic failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It cannot be reached.
    #[error("cannot connect to {}: {}; is vtax-nic running with this --api?", .0.display(), .1)]
    Connect(PathBuf, io::Error),
    /// The connection broke: what was tried, and where.
    #[error("cannot {} {}: {}", .0, .1.display(), .2)]
    Broken(&'static str, PathBuf, io::Error),
    /// The server closed the connection.
    #[error("vtax-nic closed {}", .0.display())]
    Closed(PathBuf),
    /// The server is another program.
    #[error("{} gave no answer of vtax-nic: {}", .0.display(), .1)]
    Answer(PathBuf, serde_json::Error),
    /// vtax-nic refused the request.
    #[error("{0}")]
    Refused(String),
    /// The answer cannot be printed.
    #[error("cannot print: {0}")]
    Print(#[source] io::Error),
}

/// A connection to a running vtax-nic.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let path = path.to_owned();
        match UnixStream::connect(&path) {
            Ok(stream) => Ok(Self {
                stream: BufReader::new(stream),
                path,
            }),
            Err(cause) => Err(ClientError::Connect(path, cause)),
        }
    }

    fn broken(&self, what: &'static str, cause: io::Error) -> ClientError {
        ClientError::Broken(what, self.path.clone(), cause)
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// When the connection broke, or the request was refused.
    pub fn ask(&mut self, request: &Request) -> Result<Response, ClientError> {
        let mut line =
            serde_json::to_vec(request).map_err(|cause| self.broken("write to", cause.into()))?;
        line.push(b'\n');
        self.stream
            .get_mut()
            .write_all(&line)
            .map_err(|cause| self.broken("write to", cause))?;
        self.next_answer()
    }

    /// Waits for the next answer of a subscription.
    ///
    /// # Errors
    /// When the connection broke, or the request was refused.
    pub fn next_answer(&mut self) -> Result<Response, ClientError> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        if read.map_err(|cause| self.broken("read from", cause))? == 0 {
            return Err(ClientError::Closed(self.path.clone()));
        }
        let response: Response = serde_json::from_str(&line)
            .map_err(|cause| ClientError::Answer(self.path.clone(), cause))?;
        match response.error {
            Some(error) => Err(ClientError::Refused(error)),
            None => Ok(response),
        }
    }
}

impl Ctl {
    /// Sends the request and writes the answer to `out`.
    ///
    /// # Errors
    /// When the request fails or the answer cannot be printed.
    pub fn run(&self) -> Result<(), ClientError> {
        let mut client = Client::connect(&self.socket)?;
        let mut request = self.request.clone();
        if let Request::Set { port, .. } | Request::ClearOverride { port } = &mut request {
            port.take_if(|port| port == "all");
        }
        let mut response = client.ask(&request)?;
        loop {
            self.print(&response).map_err(ClientError::Print)?;
            if !matches!(request, Request::Subscribe { .. }) {
                return Ok(());
            }
            response = client.next_answer()?;
        }
    }

    fn print(&self, response: &Response) -> io::Result<()> {
        if self.format.is_json() || response.ports.is_empty() {
            let mut out = terminal::data();
            out.write_all(&response.to_line())?;
            return out.flush();
        }
        writeln!(terminal::stdout(), "{}", table(&response.ports))
    }
}

/// A name without control characters, which could steer a terminal.
pub fn printable(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// The header of the table, whose columns are as wide as those of a row.
const HEADER: &str = "\
port             connected link mode     in force      cap    default  override   lease  data path";

fn table(ports: &[PortInfo]) -> String {
    let mut lines = vec![HEADER.to_owned()];
    for port in ports {
        let us = |value: u32| format!("{value} µs");
        lines.push(format!(
            "{:16} {:9} {:4} {:8} {:>8} {:>8} {:>10} {:>9} {:>7}  {}",
            printable(&port.port),
            if port.connected { "yes" } else { "no" },
            match port.link {
                Link::Up => "up",
                Link::Down => "down",
            },
            port.settings.mode.name(),
            us(port.in_force_us),
            us(port.policy.cap_us),
            us(port.policy.default_us),
            port.policy.override_us.map_or("-".into(), us),
            port.lease_left_s
                .map_or("-".into(), |left| format!("{left} s")),
            port.datapath,
        ));
        lines.extend(port.queues.iter().map(queue_line));
    }
    lines.join("\n")
}

fn queue_line(queue: &QueueInfo) -> String {
    let direction = match Half::of_queue(queue.queue) {
        Half::Rx => "rx",
        Half::Tx => "tx",
    };
    let bound = |us: u32, packets: Option<u32>| match packets {
        Some(packets) => format!("{us} µs or {packets} packets"),
        None => format!("{us} µs"),
    };
    let asked_by = match queue.asked_by {
        AskedBy::Default => "the default",
        AskedBy::Lease => "the guest's lease",
        AskedBy::Coalescing => "the guest's coalescing",
    };
    format!(
        "  {direction} {}: {asked_by} asks for {}, in force {}",
        queue.queue / 2,
        bound(queue.asked_us, queue.asked_packets),
        bound(queue.in_force_us, queue.in_force_packets)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Policy;
    use crate::hold::HoldSettings;

    #[test]
    fn a_table_of_hostile_names_does_not_steer_the_terminal() {
        let info = PortInfo {
            port: "\x1b[2Ja".into(),
            connected: true,
            link: Link::Up,
            settings: HoldSettings::default(),
            policy: Policy::default(),
            in_force_us: 200,
            datapath: "kernel".into(),
            lease_left_s: Some(3),
            queues: vec![QueueInfo {
                queue: 3,
                asked_by: AskedBy::Coalescing,
                asked_us: 5_000,
                asked_packets: Some(32),
                in_force_us: 1_000,
                in_force_packets: Some(32),
            }],
        };
        let table = table(&[info]);
        assert!(!table.contains('\x1b'));
        assert!(table.ends_with(
            "\n  tx 1: the guest's coalescing asks for 5000 µs or 32 packets, in force 1000 µs or 32 packets"
        ));
        assert!(table.contains("?[2Ja") && table.contains("200 µs") && table.contains("3 s"));
    }

    #[test]
    fn a_missing_socket_says_what_to_do() {
        let error = Client::connect(Path::new("/nonexistent/api")).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("/nonexistent/api") && error.contains("--api?"),
            "{error}"
        );
    }
}
