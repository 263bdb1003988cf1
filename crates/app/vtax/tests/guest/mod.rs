// SPDX-License-Identifier: Apache-2.0
//! Guests for the tests of charge-back, and a client for HTTP servers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A process that appears as a Firecracker guest and uses some processor time, until dropped.
pub struct Guest(Child);

impl Guest {
    pub fn start(name: &str) -> Self {
        // Busy for a part of the time only: other tests run beside this one.
        let work = "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.05; done";
        let child = Command::new("sh")
            .arg0("firecracker")
            .args(["-c", work, &format!("--id={name}")])
            .stdin(Stdio::null())
            .spawn()
            .expect("sh starts");
        Self(child)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A name that no other process of this machine has.
pub fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// A child that is killed when dropped, also where the test fails.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running exporter that also listens on a free port, and its address there.
pub fn exporter(arguments: &[&str]) -> (Running, String) {
    let (child, address, _) = exporter_with_log(arguments);
    (child, address)
}

/// As [`exporter`], with the rest of its log, once it has ended.
pub fn exporter_with_log(arguments: &[&str]) -> (Running, String, JoinHandle<String>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_vtax"))
        .args(["exporter", "--listen", "0"])
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .map(Running)
        .unwrap();
    let mut printed = BufReader::new(child.0.stderr.take().unwrap()).lines();
    let line = printed
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.contains("http://"))
        .unwrap();
    let address = line.split("http://").nth(1).unwrap();
    let address = address.trim_end_matches("/metrics").to_owned();
    // The pipe must be read further, so that the exporter does not block.
    let log = std::thread::spawn(move || {
        let lines: Vec<String> = printed.map_while(Result::ok).collect();
        lines.join("\n")
    });
    (child, address, log)
}

/// The body of the response for a path.
pub fn get(address: &str, path: &str, accept: &str) -> Result<String, String> {
    let stream = TcpStream::connect(address).map_err(|cause| format!("{address}: {cause}"))?;
    get_from(stream, path, accept)
}

pub fn get_from(mut stream: impl Read + Write, path: &str, accept: &str) -> Result<String, String> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    );
    let mut answer = Vec::new();
    stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.read_to_end(&mut answer))
        .map_err(|cause| cause.to_string())?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    if !head.starts_with("HTTP/1.1 200") {
        return Err(format!("{head}\n{body}"));
    }
    if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        return unchunk(body);
    }
    Ok(body.to_owned())
}

fn unchunk(mut body: &str) -> Result<String, String> {
    let mut whole = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").ok_or("cut off")?;
        let size = usize::from_str_radix(size.trim(), 16).map_err(|cause| cause.to_string())?;
        if size == 0 {
            return Ok(whole);
        }
        whole.push_str(rest.get(..size).ok_or("cut off")?);
        body = rest.get(size + 2..).ok_or("cut off")?;
    }
}

/// Tries until an attempt succeeds; panics with the last failure after half a minute.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(cause) => assert!(Instant::now() < deadline, "{what}: {cause}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
