// SPDX-License-Identifier: Apache-2.0
//! Stand-ins for a NIC and a population of micro VMs that use the real protocols and structures.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use vtax_nic::control::Policy;
use vtax_nic::control::api::{Link, PortInfo, Request, Response};
use vtax_nic::hold::{HoldSettings, Mode, Nanos};
use vtax_nic::telemetry::PortCounters;
use vtax_nic::vhost_net::Half;

/// The name of the NIC's one port, which contains HTML.
pub const PORT: &str = "<b>vm</b>";

/// Listens, and reports the policy that clients set.
pub fn nic(socket: &Path) -> Arc<Mutex<Policy>> {
    let listener = UnixListener::bind(socket).unwrap();
    let policy = Arc::new(Mutex::new(Policy::default()));
    let kept = Arc::clone(&policy);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let mut policy = kept.lock().unwrap();
            let mut settings = HoldSettings::default();
            let request = serde_json::from_str(&line).unwrap();
            match &request {
                Request::Set { change, .. } => change.apply(&mut policy, &mut settings),
                Request::ClearOverride { .. } => policy.override_us = None,
                _ => {}
            }
            let info = PortInfo {
                port: PORT.to_owned(),
                connected: true,
                link: Link::default(),
                settings,
                policy: *policy,
                in_force_us: policy.in_force(None, Half::Rx),
                datapath: "kernel".to_owned(),
                lease_left_s: None,
                queues: Vec::new(),
            };
            let mut response = Response {
                ok: true,
                error: None,
                at_ns: 7,
                ports: vec![info],
                stats: Vec::new(),
            };
            if matches!(request, Request::Stats { .. }) {
                response.ports.clear();
                let counters = PortCounters::default();
                response.stats =
                    vec![counters.snapshot(PORT, Mode::Paper, Nanos::from_micros(200))];
            }
            (&stream).write_all(&response.to_line()).unwrap();
        }
    });
    policy
}

/// The address of the population's status.
pub fn population() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&stream).lines();
            assert_eq!(lines.next().unwrap().unwrap(), "GET /status HTTP/1.1");
            assert!(lines.any(|line| line.unwrap().is_empty()));
            let body = "{\"guests\":1000000,\"booted\":12}\n";
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .unwrap();
        }
    });
    address
}
