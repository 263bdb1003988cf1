// SPDX-License-Identifier: Apache-2.0
//! A pool of XenServer or XCP-ng, through its own interface: JSON-RPC over https, and the counters of its hosts
//! (`/rrd_updates`).
//!
//! A connection whose certificate is not the expected one is always refused. A session is short: it is opened for one
//! purpose and closed when the [`Pool`] is dropped.

mod tls;
mod updates;

pub use updates::{Updates, UpdatesError};

use crate::HostError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;
use ureq::Agent;

/// The prefix of the names of vtax's VMs; no other VM is ever started, stopped or removed.
pub const PREFIX: &str = "vtax-";
/// The environment variable with `USER:PASSWORD`, used where no file is set.
pub const LOGIN: &str = "VTAX_XENAPI_LOGIN";

/// Time limit of a call, longer than any takes, the start of a VM on a busy pool included.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit of connecting to a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a response: more than the counters of a host with a thousand VMs over ten minutes.
const MOST_BYTES: u64 = 256 * 1024 * 1024;
/// The most characters of an error response that are quoted.
const MOST_QUOTED: usize = 200;

/// The address of a pool, its expected certificates, and the place of the login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Its coordinator, as `NAME` or `NAME:PORT`.
    pub host: String,
    /// The certificates to trust, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorities: Option<PathBuf>,
    /// SHA-256 of the certificates to trust, in hexadecimal, with commas between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The file with `USER:PASSWORD`; unset: the variable [`LOGIN`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<PathBuf>,
}

impl Access {
    /// User and password. They are read at each use and not kept.
    fn credentials(&self) -> Result<(String, String), HostError> {
        let Some(path) = &self.login else {
            let text = std::env::var(LOGIN).map_err(|_| HostError::Missing {
                what: format!("the login of the pool {}", self.host),
                remedy: format!(
                    "write USER:PASSWORD to a file with mode 0600 and name it in xenapi.login, or to the variable {LOGIN}"
                ),
            })?;
            return split(&text, &format!("the variable {LOGIN}"));
        };
        let metadata = std::fs::metadata(path).map_err(HostError::file("read", path))?;
        let what = format!("the login in {}", path.display());
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(HostError::Invalid {
                what,
                problem: format!("others may read it: chmod 0600 {}", path.display()),
            });
        }
        let text = std::fs::read_to_string(path).map_err(HostError::file("read", path))?;
        split(&text, &what)
    }
}

fn split(text: &str, what: &str) -> Result<(String, String), HostError> {
    let text = text.trim_end_matches(['\n', '\r']);
    let parts = text.split_once(':').filter(|(user, _)| !user.is_empty());
    let (user, password) = parts.ok_or_else(|| HostError::Invalid {
        what: what.to_owned(),
        problem: "it is one line, USER:PASSWORD".to_owned(),
    })?;
    Ok((user.to_owned(), password.to_owned()))
}

/// The used fields of a VM's record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Vm {
    /// The VM's UUID, by which the pool's counters name it.
    pub uuid: String,
    /// Its name.
    pub name_label: String,
    /// `Running`, `Halted`, `Suspended` or `Paused`.
    pub power_state: String,
    /// Whether it is a template.
    pub is_a_template: bool,
    /// Whether it is a host's own domain.
    pub is_control_domain: bool,
    /// The reference of the host that it runs on.
    pub resident_on: String,
    /// The reference of the metrics that its guest tools report.
    pub guest_metrics: String,
}

/// The used fields of a host's record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Host {
    /// The host's UUID, by which the pool's counters name it.
    pub uuid: String,
    /// Its name.
    pub hostname: String,
    /// The host's network address.
    pub address: String,
    /// Its Domain 0.
    pub control_domain: String,
    /// Versions by component.
    pub software_version: BTreeMap<String, String>,
}

/// The failure of a call.
enum Failure {
    /// The pool's error code and its parameters.
    Refused(String, Vec<String>),
    /// Any other error.
    Other(HostError),
}

/// A session with a pool.
pub struct Pool {
    access: Access,
    agent: Agent,
    session: String,
}

impl std::fmt::Debug for Pool {
    /// Omits the session, which is as secret as a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({})", self.access.host)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // A session that stays open expires by itself.
        let _ = self.call("session.logout", &[]);
    }
}

impl Pool {
    /// Opens a session.
    ///
    /// # Errors
    /// When the pool does not answer, its certificate is not an expected one, or it refuses the login.
    pub fn log_in(access: &Access) -> Result<Self, HostError> {
        let host = &access.host;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if host.is_empty() || !host.chars().all(plain) {
            return Err(HostError::Setting(format!(
                "xenapi.host = {host:?} names no host: write its name or address, with :PORT where that is not 443"
            )));
        }
        let (user, password) = access.credentials()?;
        let mut pool = Self {
            access: access.clone(),
            agent: tls::agent(access, TIMEOUT, CONNECT_TIMEOUT)?,
            session: String::new(),
        };
        let arguments = [user.as_str(), &password, "1.0", "vtax"];
        let session = pool.send("session.login_with_password", &json!(arguments));
        pool.session = match session {
            Ok(Value::String(session)) => session,
            Ok(_) => return Err(pool.unexpected("session.login_with_password gave no session")),
            Err(Failure::Other(cause)) => return Err(cause),
            Err(Failure::Refused(code, about)) => {
                return Err(match (code.as_str(), about.first()) {
                    ("HOST_IS_SLAVE", Some(other)) => HostError::Setting(format!(
                        "xenapi.host = {host:?} is a member of its pool, and the coordinator is {other}: write xenapi.host = {other:?}"
                    )),
                    ("SESSION_AUTHENTICATION_FAILED", _) => HostError::Invalid {
                        what: format!("the login of {user} to the pool {host}"),
                        problem: "the pool refuses user or password".to_owned(),
                    },
                    _ => pool.refused("session.login_with_password", &code, &about),
                });
            }
        };
        Ok(pool)
    }

    /// The pool's host, as `NAME` or `NAME:PORT`.
    pub fn host(&self) -> &str {
        &self.access.host
    }

    /// Calls a method with the session and these arguments.
    ///
    /// # Errors
    /// When the pool does not answer, or the pool's error.
    pub fn call(&self, method: &str, arguments: &[&str]) -> Result<Value, HostError> {
        if self.session.is_empty() {
            return Ok(Value::Null);
        }
        let all: Vec<&str> = [self.session.as_str()]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        self.called(method, &json!(all))
    }

    /// As [`Pool::call`], with arguments of any type; the session is inserted before these.
    ///
    /// # Errors
    /// As [`Pool::call`].
    pub fn call_with(&self, method: &str, mut arguments: Vec<Value>) -> Result<Value, HostError> {
        arguments.insert(0, json!(self.session));
        self.called(method, &Value::Array(arguments))
    }

    fn called(&self, method: &str, arguments: &Value) -> Result<Value, HostError> {
        self.send(method, arguments)
            .map_err(|failure| match failure {
                Failure::Other(cause) => cause,
                Failure::Refused(code, about) => self.refused(method, &code, &about),
            })
    }

    /// Calls a method and converts its result.
    ///
    /// # Errors
    /// As [`Pool::call`], or when the result has another type.
    pub fn get<T: DeserializeOwned>(
        &self,
        method: &str,
        arguments: &[&str],
    ) -> Result<T, HostError> {
        serde_json::from_value(self.call(method, arguments)?)
            .map_err(|cause| self.unexpected(&format!("{method}: {cause}")))
    }

    /// The VMs or templates with a name: references and records.
    ///
    /// # Errors
    /// When the pool does not answer.
    pub fn named(&self, name: &str) -> Result<Vec<(String, Vm)>, HostError> {
        let references: Vec<String> = self.get("VM.get_by_name_label", &[name])?;
        let record = |reference: String| -> Result<(String, Vm), HostError> {
            let record = self.get("VM.get_record", &[&reference])?;
            Ok((reference, record))
        };
        references.into_iter().map(record).collect()
    }

    /// The one VM, or template, with a name.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn one(&self, name: &str, template: bool) -> Result<(String, Vm), HostError> {
        let (what, all) = if template {
            ("template", "xe template-list")
        } else {
            ("VM", "xe vm-list")
        };
        let mut found = self.named(name)?;
        found.retain(|(_, vm)| vm.is_a_template == template && !vm.is_control_domain);
        match found.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(HostError::Missing {
                what: format!("a {what} called `{name}` in the pool {}", self.host()),
                remedy: format!("`{all}` there shows what it has"),
            }),
            several => {
                let uuids: Vec<&str> = several.iter().map(|(_, vm)| vm.uuid.as_str()).collect();
                Err(HostError::Setting(format!(
                    "{} {what}s of the pool {} are called `{name}` ({}): give one of them another name",
                    several.len(),
                    self.host(),
                    uuids.join(", ")
                )))
            }
        }
    }

    /// The counters of a host and its VMs since `start`, in seconds since 1970 by that host's clock.
    ///
    /// # Errors
    /// When the host does not answer, or its response has no counters.
    pub fn updates(&self, of: &Host, start: u64) -> Result<Updates, HostError> {
        // The host of a one-host pool is reached at the pool's address; other hosts have their own.
        let hosts: Vec<String> = self.get("host.get_all", &[])?;
        let host = match hosts.as_slice() {
            [_] => self.host(),
            _ => of.address.as_str(),
        };
        let url = format!("https://{host}/rrd_updates?start={start}&cf=AVERAGE&host=true");
        let request = self.agent.get(&url);
        // In a header, since the address appears in logs.
        let cookie = format!("session_id={}", self.session);
        let response = request.header("Cookie", &cookie).call();
        let text = self.read(host, response)?;
        Updates::parse(&text).map_err(|why| HostError::Protocol {
            peer: format!("/rrd_updates of {host}"),
            detail: why.to_string(),
        })
    }

    /// Stops and removes a VM that vtax created, with its disks; a missing one counts as removed.
    ///
    /// # Errors
    /// When it is not a VM of vtax, or cannot be removed.
    pub fn end(&self, name: &str) -> Result<(), HostError> {
        if !name.starts_with(PREFIX) {
            return Err(HostError::Invalid {
                what: format!("the VM {name} of the pool {}", self.host()),
                problem: "it is not named like one of ours and is never stopped; if the journal names it, the journal is damaged: run `vtax restore --forget`".to_owned(),
            });
        }
        for (vm, record) in self.named(name)? {
            if record.power_state != "Halted" {
                self.call("VM.hard_shutdown", &[&vm])?;
            }
            // Before the VM's removal, since its record lists the disks.
            let devices: Vec<String> = self.get("VM.get_VBDs", &[&vm])?;
            for device in devices {
                let kind: String = self.get("VBD.get_type", &[&device])?;
                let disk: String = self.get("VBD.get_VDI", &[&device])?;
                if kind != "Disk" || disk == NOTHING {
                    continue;
                }
                // A disk that other VMs use too is kept.
                let users: Vec<String> = self.get("VDI.get_VBDs", &[&disk])?;
                if users.len() == 1 {
                    self.call("VDI.destroy", &[&disk])?;
                }
            }
            self.call("VM.destroy", &[&vm])?;
        }
        Ok(())
    }

    fn send(&self, method: &str, arguments: &Value) -> Result<Value, Failure> {
        let host = self.host();
        let body = json!({"jsonrpc": "2.0", "method": method, "params": arguments, "id": 1});
        let request = self.agent.post(&format!("https://{host}/jsonrpc"));
        let response = request
            .header("Content-Type", "application/json")
            .send(body.to_string().as_bytes());
        let text = self.read(host, response).map_err(Failure::Other)?;
        let mut answer: Value = serde_json::from_str(&text)
            .map_err(|cause| Failure::Other(self.unexpected(&format!("{method}: {cause}"))))?;
        if let Some(result) = answer.get_mut("result") {
            return Ok(result.take());
        }
        let error = answer.get("error").cloned().unwrap_or_default();
        let Some(code) = error.get("message").and_then(Value::as_str) else {
            let why = format!("{method} gave neither a result nor an error");
            return Err(Failure::Other(self.unexpected(&why)));
        };
        let about = error.get("data").and_then(Value::as_array);
        let about = about.into_iter().flatten().filter_map(Value::as_str);
        Err(Failure::Refused(
            code.to_owned(),
            about.map(str::to_owned).collect(),
        ))
    }

    /// The text of a response from a host of the pool.
    fn read(
        &self,
        host: &str,
        response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<String, HostError> {
        let mut response =
            response.map_err(|cause| tls::unreachable(host, &self.access, &cause))?;
        let status = response.status();
        let bytes = response
            .body_mut()
            .with_config()
            .limit(MOST_BYTES)
            .read_to_vec();
        let bytes = bytes.map_err(|cause| tls::unreachable(host, &self.access, &cause))?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if !status.is_success() {
            let plain = |c: char| if c.is_control() { ' ' } else { c };
            let words: String = text.trim().chars().take(MOST_QUOTED).map(plain).collect();
            return Err(HostError::Protocol {
                peer: format!("https://{host}"),
                detail: format!("{status} {words}"),
            });
        }
        Ok(text)
    }

    fn refused(&self, method: &str, code: &str, about: &[String]) -> HostError {
        HostError::Other(format!(
            "the pool {} refuses {method}: {}",
            self.host(),
            [&[code.to_owned()][..], about].concat().join(" ")
        ))
    }

    fn unexpected(&self, detail: &str) -> HostError {
        HostError::Protocol {
            peer: format!("the pool {}", self.host()),
            detail: detail.to_owned(),
        }
    }
}

/// The null reference.
pub const NOTHING: &str = "OpaqueRef:NULL";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_that_others_may_read_or_that_is_none_is_refused_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("login");
        let access = Access {
            host: "pool.invalid".to_owned(),
            authorities: None,
            fingerprint: None,
            login: Some(file.clone()),
        };
        let printed = |text: &str, mode: u32| {
            // A file that its owner may not write to cannot be written again.
            let _ = std::fs::remove_file(&file);
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            access.credentials().map_err(|cause| cause.to_string())
        };
        assert_eq!(
            printed("root:se:cret \n", 0o600),
            Ok(("root".to_owned(), "se:cret ".to_owned()))
        );
        for mode in [0o640, 0o604, 0o620] {
            let refused = printed("root:secret", mode).unwrap_err();
            assert!(refused.contains("chmod 0600") && !refused.contains("secret"));
        }
        for text in ["", "secret", ":secret"] {
            let refused = printed(text, 0o400).unwrap_err();
            assert!(refused.contains("USER:PASSWORD") && !refused.contains("secret"));
        }
        std::fs::remove_file(&file).unwrap();
        assert!(access.credentials().is_err());
        for host in ["", "http://pool", "pool/x", "a b", "root@pool"] {
            let access = Access {
                host: host.to_owned(),
                ..access.clone()
            };
            let refused = Pool::log_in(&access).unwrap_err().to_string();
            assert!(refused.contains("names no host"), "{host}: {refused}");
        }
    }
}
