// SPDX-License-Identifier: Apache-2.0
//! A stand-in for a pool of XenServer or XCP-ng, limited to the calls of vtax and the tests: JSON-RPC and XML-RPC over
//! https, and `/rrd_updates`. Its behaviour follows the vendor's documents, and the vendor's own SDK accepts it
//! (`tests/xenapi.rs`). No VM runs in it.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

pub const LOGIN: (&str, &str) = ("root", "secret");
/// The largest number of rows that a host keeps for one step.
const ROWS: u64 = 120;
const NOTHING: &str = "OpaqueRef:NULL";

/// The pool, until the test ends.
#[derive(Clone)]
pub struct Pool {
    pub address: SocketAddr,
    folder: PathBuf,
    inside: Arc<Mutex<Inside>>,
}

/// The state of the pool.
pub struct Inside {
    /// Every object by its reference: its class and its record.
    objects: BTreeMap<String, (String, Map<String, Value>)>,
    sessions: BTreeSet<String>,
    /// Methods in the order of their calls.
    pub calls: Vec<String>,
    /// Seconds between two rows.
    pub step: u64,
    /// The columns of every row: class, UUID, name, value.
    pub counted: Vec<(String, String, String, f64)>,
    /// The address that the tools of VMs report.
    guest: String,
    made: u32,
}

/// The reason why a call fails: a code and its arguments.
type Refusal = Vec<String>;

fn refuse<T>(parts: &[&str]) -> Result<T, Refusal> {
    Err(parts.iter().map(|part| (*part).to_owned()).collect())
}

impl Pool {
    /// A pool of one host, at this address in a network namespace, or in the present one. Panics without openssl, which
    /// creates its certificate.
    pub fn start(folder: &Path, at: &str, namespace: Option<fs::File>) -> Self {
        let path = |name: &str| folder.join(name);
        // Like a host's own certificate, it is self-signed and not an authority.
        let config = format!(
            "[req]\nprompt = no\ndistinguished_name = name\nx509_extensions = more\n\
             [name]\nCN = xcp\n[more]\nsubjectAltName = IP:{at}\n"
        );
        fs::write(path("openssl.cnf"), config).unwrap();
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
            ])
            .args(["-nodes", "-days", "2", "-config"])
            .arg(path("openssl.cnf"))
            .arg("-keyout")
            .arg(path("pool.key"))
            .arg("-out")
            .arg(path("pool.pem"))
            .stderr(Stdio::null())
            .status();
        assert!(
            made.is_ok_and(|status| status.success()),
            "openssl makes a certificate"
        );
        fs::write(path("login"), format!("{}:{}\n", LOGIN.0, LOGIN.1)).unwrap();
        fs::set_permissions(path("login"), fs::Permissions::from_mode(0o600)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_file(path("pool.pem")).unwrap()],
                PrivateKeyDer::from_pem_file(path("pool.key")).unwrap(),
            )
            .unwrap();
        let address = format!("{at}:0");
        let bound = std::thread::spawn(move || {
            if let Some(namespace) = namespace {
                let network = rustix::thread::LinkNameSpaceType::Network;
                rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(network))
                    .unwrap();
            }
            TcpListener::bind(address).unwrap()
        });
        let listener = bound.join().unwrap();
        let pool = Self {
            address: listener.local_addr().unwrap(),
            folder: folder.to_owned(),
            inside: Arc::new(Mutex::new(Inside::new(at))),
        };
        let (server, config) = (pool.clone(), Arc::new(config));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (server, config) = (server.clone(), Arc::clone(&config));
                // A connection that breaks is not an error of the test.
                std::thread::spawn(move || server.serve(stream, config).ok());
            }
        });
        pool
    }

    pub fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file of the pool: its certificate, `pool.pem`, or its `login`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The lines of a plan that select this pool.
    pub fn lines(&self) -> String {
        format!(
            "kind = \"xenapi\"\nxenapi.host = \"{}\"\nxenapi.login = {:?}\nxenapi.ca = {:?}",
            self.address,
            self.file("login"),
            self.file("pool.pem")
        )
    }

    /// The names of the VMs, without templates and Domain 0.
    pub fn vms(&self) -> Vec<String> {
        let inside = self.inside();
        let vms = inside.objects.values().filter(|(class, vm)| {
            class == "VM" && vm["is_a_template"] == false && vm["is_control_domain"] == false
        });
        vms.map(|(_, vm)| text(&vm["name_label"])).collect()
    }

    /// All objects except sessions and guest metrics, for a comparison.
    pub fn objects(&self) -> BTreeMap<String, (String, Map<String, Value>)> {
        let mut objects = self.inside().objects.clone();
        objects.retain(|_, (class, _)| class != "session" && class != "VM_guest_metrics");
        objects
    }

    fn serve(&self, stream: TcpStream, config: Arc<ServerConfig>) -> io::Result<()> {
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        let mut reader = BufReader::new(StreamOwned::new(connection, stream));
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let (method, target) = (method.to_owned(), target.to_owned());
        let (mut length, mut cookie) = (0, String::new());
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.trim().split_once(':') else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap_or(0),
                "cookie" => cookie = value.trim().to_owned(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        let path = target.split('?').next().unwrap_or_default();
        let (status, kind, answer) = match (method.as_str(), path) {
            ("POST", "/jsonrpc") => self.json(&body),
            ("POST", "/" | "/RPC2") => self.xml(&body),
            ("GET", "/rrd_updates") => self.updates(&target, &cookie),
            _ => (
                "404 Not Found",
                "text/html",
                "<html>no such page</html>".to_owned(),
            ),
        };
        let stream = reader.get_mut();
        write!(
            stream,
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
            answer.len()
        )?;
        stream.conn.send_close_notify();
        stream.flush()
    }

    fn json(&self, body: &str) -> (&'static str, &'static str, String) {
        let request: Value = serde_json::from_str(body).unwrap_or_default();
        let (Some(method), Some(params)) =
            (request["method"].as_str(), request["params"].as_array())
        else {
            let printed = "<html><body><h1>HTTP 500 internal server error</h1></body></html>";
            return ("500 Internal Error", "text/html", printed.to_owned());
        };
        let id = &request["id"];
        let answer = match self.inside().call(method, params) {
            Ok(result) => json!({"jsonrpc": "2.0", "result": result, "id": id}),
            Err(refusal) => {
                let error = json!({"code": 1, "message": refusal[0], "data": refusal[1..]});
                json!({"jsonrpc": "2.0", "error": error, "id": id})
            }
        };
        ("200 OK", "application/json", answer.to_string())
    }

    fn xml(&self, body: &str) -> (&'static str, &'static str, String) {
        let method = between(body, "methodName").next().unwrap_or_default();
        let params: Vec<Value> = between(body, "value").map(|value| scalar(&value)).collect();
        let answer = match self.inside().call(&method, &params) {
            Ok(result) => json!({"Status": "Success", "Value": result}),
            Err(refusal) => json!({"Status": "Failure", "ErrorDescription": refusal}),
        };
        let mut out = "<?xml version=\"1.0\"?><methodResponse><params><param>".to_owned();
        write_value(&answer, &mut out);
        out += "</param></params></methodResponse>";
        if method == "host.get_servertime" {
            out = out
                .replace(
                    "<name>Value</name><value>",
                    "<name>Value</name><value><dateTime.iso8601>",
                )
                .replace("Z</value>", "Z</dateTime.iso8601></value>");
        }
        ("200 OK", "text/xml", out)
    }

    fn updates(&self, target: &str, cookie: &str) -> (&'static str, &'static str, String) {
        let query = target.split_once('?').map_or("", |(_, query)| query);
        let asked = |key: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
        };
        let mut inside = self.inside();
        let session = cookie
            .strip_prefix("session_id=")
            .or_else(|| asked("session_id"));
        if !session.is_some_and(|session| inside.sessions.contains(session)) {
            return (
                "401 Unauthorised",
                "text/html",
                "<html>no session</html>".to_owned(),
            );
        }
        inside.calls.push("GET /rrd_updates".to_owned());
        let step = inside.step;
        let start: u64 = asked("start")
            .and_then(|start| start.parse().ok())
            .unwrap_or(0);
        let columns: Vec<_> = inside
            .counted
            .iter()
            .filter(|(class, ..)| class != "host" || asked("host") == Some("true"))
            .collect();
        let last = now() / step * step;
        let first = (start / step * step + step).max(last.saturating_sub((ROWS - 1) * step));
        let mut rows = String::new();
        // The newest row first.
        for number in 0..=(last.saturating_sub(first) / step) {
            rows += &format!("<row><t>{}</t>", last - number * step);
            rows.extend(
                columns
                    .iter()
                    .map(|(.., value)| format!("<v>{value:.4}</v>")),
            );
            rows += "</row>";
        }
        let legend: String = columns
            .iter()
            .map(|(class, uuid, name, _)| format!("<entry>AVERAGE:{class}:{uuid}:{name}</entry>"))
            .collect();
        let text = format!(
            "<?xml version=\"1.0\"?><xport><meta><start>{first}</start><step>{step}</step><end>{last}</end>\
             <rows>{}</rows><columns>{}</columns><legend>{legend}</legend></meta><data>{rows}</data></xport>",
            (last - first) / step + 1,
            columns.len()
        );
        ("200 OK", "text/xml", text)
    }
}

impl Inside {
    /// One host with Domain 0, two VMs with unique names, two VMs with the same name, a halted VM, and a template.
    fn new(address: &str) -> Self {
        let mut inside = Self {
            objects: BTreeMap::new(),
            sessions: BTreeSet::new(),
            calls: Vec::new(),
            step: 5,
            counted: Vec::new(),
            guest: String::new(),
            made: 0,
        };
        let host = inside.add(
            "host",
            json!({
                "hostname": "xcp", "name_label": "xcp", "address": address,
                "API_version_major": "2", "API_version_minor": "21",
                "software_version": {"product_brand": "XCP-ng", "product_version": "8.3.0", "xen": "4.17.5"},
            }),
        );
        inside.add("pool", json!({"name_label": "", "master": host}));
        let dom0 = inside.vm("Control domain on host: xcp", "Running", &host);
        inside.set(&dom0, "is_control_domain", json!(true));
        inside.set(&host, "control_domain", json!(dom0));
        for (of, column, value) in [
            (&host, "cpu0", 1.0),
            (&host, "cpu1", 0.25),
            (&dom0, "cpu0", 0.3),
            (&dom0, "cpu1", 0.1),
        ] {
            inside.count(of, column, value);
        }
        for (name, columns) in [
            (
                "web",
                [
                    ("cpu0", 0.5),
                    ("cpu1", 0.25),
                    ("vif_0_tx", 2e5),
                    ("vbd_xvda_read", 1e5),
                ],
            ),
            (
                "db",
                [
                    ("cpu0", 0.1),
                    ("cpu1", 0.0),
                    ("vif_0_rx", 4e5),
                    ("vbd_xvda_write", 5e5),
                ],
            ),
        ] {
            let vm = inside.vm(name, "Running", &host);
            for (column, value) in columns {
                inside.count(&vm, column, value);
            }
        }
        for (name, state) in [("twin", "Running"), ("twin", "Running"), ("off", "Halted")] {
            inside.vm(name, state, &host);
        }
        let template = inside.vm("debian", "Halted", &host);
        inside.set(&template, "is_a_template", json!(true));
        inside
    }

    fn add(&mut self, class: &str, record: Value) -> String {
        self.made += 1;
        let uuid = format!("00000000-0000-4000-8000-{:012x}", self.made);
        let reference = format!("OpaqueRef:{uuid}");
        let mut record = record.as_object().cloned().unwrap_or_default();
        record.insert("uuid".to_owned(), json!(uuid));
        self.objects
            .insert(reference.clone(), (class.to_owned(), record));
        reference
    }

    /// A VM with a disk and an empty CD drive.
    fn vm(&mut self, name: &str, state: &str, host: &str) -> String {
        let metrics = self.add("VM_guest_metrics", json!({"networks": {}}));
        let vm = self.add(
            "VM",
            json!({
                "name_label": name, "is_a_template": false, "is_control_domain": false, "VCPUs_max": "2",
                "power_state": state, "resident_on": host, "guest_metrics": metrics, "VBDs": [],
            }),
        );
        let disk = self.add("VDI", json!({"name_label": "disk"}));
        let device = self.add("VBD", json!({"type": "Disk", "VDI": disk, "VM": vm}));
        self.set(&disk, "VBDs", json!([device]));
        let drive = self.add("VBD", json!({"type": "CD", "VDI": NOTHING, "VM": vm}));
        self.set(&vm, "VBDs", json!([device, drive]));
        vm
    }

    fn set(&mut self, reference: &str, field: &str, value: Value) {
        let (_, record) = self.objects.get_mut(reference).unwrap();
        record.insert(field.to_owned(), value);
    }

    /// Sets the address that the tools of all VMs report.
    pub fn tell(&mut self, address: &str) {
        self.guest = address.to_owned();
        for (class, record) in self.objects.values_mut() {
            if class == "VM_guest_metrics" {
                record.insert("networks".to_owned(), json!({"0/ip": address}));
            }
        }
    }

    fn count(&mut self, reference: &str, name: &str, value: f64) {
        let (class, record) = &self.objects[reference];
        let row = (
            class.to_lowercase(),
            text(&record["uuid"]),
            name.to_owned(),
            value,
        );
        self.counted.push(row);
    }

    fn record(&self, class: &str, reference: &str) -> Result<&Map<String, Value>, Refusal> {
        match self.objects.get(reference) {
            Some((found, record)) if found == class => Ok(record),
            _ => refuse(&["HANDLE_INVALID", class, reference]),
        }
    }

    fn call(&mut self, method: &str, params: &[Value]) -> Result<Value, Refusal> {
        let param = |at: usize| params.get(at).map(text).unwrap_or_default();
        self.calls.push(method.to_owned());
        if method == "session.login_with_password" {
            if (param(0).as_str(), param(1).as_str()) != LOGIN {
                return refuse(&[
                    "SESSION_AUTHENTICATION_FAILED",
                    &param(0),
                    "Authentication failure",
                ]);
            }
            let session = self.add("session", json!({}));
            self.sessions.insert(session.clone());
            return Ok(json!(session));
        }
        let session = param(0);
        if !self.sessions.contains(&session) {
            return refuse(&["SESSION_INVALID", &session]);
        }
        let (class, verb) = method.split_once('.').unwrap_or((method, ""));
        let of = param(1);
        match (class, verb) {
            ("session", "logout") => {
                self.sessions.remove(&session);
                self.objects.remove(&session);
                Ok(json!(""))
            }
            ("host", "get_servertime") => {
                let time = jiff::Timestamp::from_second(now().cast_signed()).unwrap();
                Ok(json!(time.strftime("%Y%m%dT%H:%M:%SZ").to_string()))
            }
            (_, "get_all") => {
                let all = self.objects.iter().filter(|(_, (found, _))| found == class);
                Ok(all.map(|(reference, _)| json!(reference)).collect())
            }
            (_, "get_by_name_label" | "get_by_uuid") => {
                let field = verb.trim_start_matches("get_by_");
                let mut found = self.objects.iter().filter(|(_, (found, record))| {
                    found == class && record.get(field) == Some(&json!(of))
                });
                match field {
                    "uuid" => match found.next() {
                        Some((reference, _)) => Ok(json!(reference)),
                        None => refuse(&["UUID_INVALID", class, &of]),
                    },
                    _ => Ok(found.map(|(reference, _)| json!(reference)).collect()),
                }
            }
            (_, "get_record") => Ok(Value::Object(self.record(class, &of)?.clone())),
            ("VM", "clone") => {
                let host = text(&self.record("VM", &of)?["resident_on"]);
                let vm = self.vm(&param(2), "Halted", &host);
                self.set(&vm, "is_a_template", json!(true));
                self.set(&vm, "resident_on", json!(NOTHING));
                self.set(&vm, "affinity", json!(host));
                Ok(json!(vm))
            }
            ("VM", "provision") => {
                self.record("VM", &of)?;
                self.set(&of, "is_a_template", json!(false));
                Ok(json!(""))
            }
            ("VM", "start" | "clean_shutdown" | "hard_shutdown") => {
                let (from, to) = match verb {
                    "start" => ("Halted", "Running"),
                    _ => ("Running", "Halted"),
                };
                let record = self.record("VM", &of)?;
                let state = text(&record["power_state"]);
                if record["is_a_template"] == true {
                    return refuse(&["VM_IS_TEMPLATE", &of, verb]);
                }
                if state != from {
                    return refuse(&["VM_BAD_POWER_STATE", &of, from, &state]);
                }
                let metrics = text(&record["guest_metrics"]);
                let host = record.get("affinity").cloned();
                self.set(&of, "power_state", json!(to));
                if let (Some(host), "Running") = (host, to) {
                    self.set(&of, "resident_on", host);
                    self.count(&of, "cpu0", 0.2);
                }
                let networks = json!({"0/ip": self.guest, "0/ipv6/0": "fe80::1"});
                self.set(&metrics, "networks", networks);
                Ok(json!(""))
            }
            ("VM", "destroy") => {
                let record = self.record("VM", &of)?;
                if record["power_state"] != "Halted" {
                    return refuse(&["VM_BAD_POWER_STATE", &of, "Halted", "Running"]);
                }
                let devices = record["VBDs"].as_array().cloned().unwrap_or_default();
                for device in devices.iter().map(text) {
                    self.objects.remove(&device);
                }
                self.objects.remove(&of);
                Ok(json!(""))
            }
            ("VDI", "destroy") => {
                self.record("VDI", &of)?;
                self.objects.remove(&of);
                Ok(json!(""))
            }
            (_, verb) => {
                let field = verb.strip_prefix("get_").unwrap_or("");
                let found = self.record(class, &of)?.get(field).cloned();
                found.map_or_else(|| refuse(&["MESSAGE_METHOD_UNKNOWN", method]), Ok)
            }
        }
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The texts between the tags of a name.
fn between<'a>(text: &'a str, name: &str) -> impl Iterator<Item = String> + use<'a> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&open)?;
        let (inside, after) = after.split_once(&close)?;
        rest = after;
        Some(inside.trim().to_owned())
    })
}

/// An argument of a call; no call here takes lists.
fn scalar(value: &str) -> Value {
    let plain = |kind: &str| between(value, kind).next();
    if let Some(flag) = plain("boolean") {
        return json!(flag == "1");
    }
    let text = plain("string").unwrap_or_else(|| value.to_owned());
    let text = text.replace("&lt;", "<").replace("&gt;", ">");
    json!(text.replace("&amp;", "&"))
}

fn write_value(value: &Value, out: &mut String) {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
    *out += "<value>";
    match value {
        Value::Bool(flag) => *out += &format!("<boolean>{}</boolean>", u8::from(*flag)),
        Value::Array(values) => {
            *out += "<array><data>";
            values.iter().for_each(|value| write_value(value, out));
            *out += "</data></array>";
        }
        Value::Object(members) => {
            *out += "<struct>";
            for (name, value) in members {
                *out += &format!("<member><name>{}</name>", escaped(name));
                write_value(value, out);
                *out += "</member>";
            }
            *out += "</struct>";
        }
        other => *out += &escaped(&text(other)),
    }
    *out += "</value>";
}
