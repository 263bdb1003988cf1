// SPDX-License-Identifier: Apache-2.0
//! The platform `ssh`: a machine or guest that accepts logins. The same vtax runs there as an actor, in its own
//! namespaces, so that its processes and its `/tmp` end with it.

use super::on_host::{self, LocalGuest};
use crate::place::actor::{GuestQuery, Login, RemoteActor};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;
use tracing::warn;
use vtax_core::owner::Owner;
use vtax_guest::platform::vm::inner;
use vtax_guest::platform::{
    About, Booted, CommandLine, Finished, GuestFiles, GuestKernel, Job, Platform, Target,
};
use vtax_host::HostError;
use vtax_host::cell::{self, LinkConfig, Seat};
use vtax_host::command::is_ssh_host;
use vtax_host::settings::{Domain, Parameter, Settings};
use vtax_host::untrusted::shown_lines;
use vtax_inventory::Identity;
use vtax_load::workload::{LoadClient, Running};

/// The platform `ssh`.
#[derive(Debug)]
pub(super) struct Ssh;

/// The template of a pool whose clone is the machine. A clone exists for one trial.
pub(super) const TEMPLATE: Parameter = Parameter::unset("xenapi.template", Domain::Text("name"))
    .help("the template to clone a VM from for each trial, which is removed afterwards");
/// The login.
pub(super) const TO: Parameter = Parameter::unset("ssh.to", Domain::Text("user@host")).help(
    "the machine or guest to measure, as ssh takes it: user@host, or a name of ~/.ssh/config",
);
const PORT: Parameter =
    Parameter::unset("ssh.port", Domain::Integer(1, 65535)).help("the port of its sshd");
const KEY: Parameter =
    Parameter::unset("ssh.key", Domain::Text("path")).help("the file of the key to log in with");
const SUDO: Parameter = Parameter::new("ssh.sudo", Domain::Bool, "false")
    .help("become root there by sudo, which must not ask a password");
const ADDRESS: Parameter = Parameter::unset("ssh.address", Domain::Text("address"))
    .help("where the load generator reaches it, if that is not where ssh does");
const GUEST: Parameter = Parameter::unset("ssh.guest", Domain::Text("name")).help(
    "its name among this host's guests, as `vtax top` shows it; unset: found by its UUID or MAC address",
);
const HOST: Parameter = Parameter::unset("ssh.host", Domain::Text("user@host")).help(
    "the host that runs it, where that is another one, as ssh takes it: what it does for the target is \
     sampled there",
);

/// The parameters of a login.
pub(super) const LOGIN: &[Parameter] = &[TO, PORT, KEY, SUDO, ADDRESS];

/// Prints a guest's UUID and MAC addresses.
const IDENTITY: &str =
    "cat /sys/class/dmi/id/product_uuid /sys/class/net/*/address 2>/dev/null; true";
/// The line between the tables of [`TABLES`].
const SEPARATOR: &str = "== vtax ==";
const TABLES: &str =
    r#"for f in interrupts stat net/dev; do cat "/proc/$f"; echo "== vtax =="; done"#;
/// The program that connects.
pub(super) const SSH: &str = "ssh";
/// The time limit of a short command.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);

/// One connection to each machine, which all trials share because a login is slow.
static ACTORS: Mutex<BTreeMap<Login, RemoteActor>> = Mutex::new(BTreeMap::new());

impl Platform for Ssh {
    fn kind(&self) -> &'static str {
        "ssh"
    }

    fn parameters(&self) -> &'static [Parameter] {
        static PARAMETERS: LazyLock<Vec<Parameter>> =
            LazyLock::new(|| [LOGIN, &[GUEST, HOST]].concat());
        &PARAMETERS
    }

    fn check(&self, settings: &Settings) -> Result<(), HostError> {
        check(settings)?;
        if let Some(there) = host(settings, &Owner::Target)? {
            // A request to sample fails where that host has no such guest.
            there.actor.observe(1.0, Some(there.guest))?;
            return there.actor.collect().map(drop);
        }
        on_this_host(settings, &Owner::Target).map(drop)
    }

    fn guest_kernel(&self) -> GuestKernel {
        GuestKernel::External
    }

    fn expected_overhead(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn is_external(&self, _settings: &Settings) -> bool {
        true
    }

    fn lacks(&self, settings: &Settings, programs: &[&str]) -> Result<Vec<String>, HostError> {
        lacks(settings, programs)
    }

    fn boot(&self, seat: &Seat, _guest: &GuestFiles, settings: &Settings) -> Booted {
        let on_host = on_this_host(settings, &seat.owner())?;
        Ok(Box::new(machine(settings, on_host)?))
    }
}

/// The host that runs a target, and the query that finds the target on it.
pub(crate) struct TargetHost {
    pub actor: RemoteActor,
    pub guest: GuestQuery,
}

/// Returns the host that `ssh.host` names, if it is set.
///
/// # Errors
/// When the host or the target cannot be reached.
pub(crate) fn host(settings: &Settings, owner: &Owner) -> Result<Option<TargetHost>, HostError> {
    let Some(host) = settings.text(HOST.key) else {
        return Ok(None);
    };
    let target = actor(&login(settings)?)?;
    Ok(Some(TargetHost {
        actor: actor(&host_login(host)?)?,
        guest: GuestQuery {
            owner: owner.clone(),
            name: settings.text(GUEST.key).map(str::to_owned),
            says: output_of(&target, IDENTITY)?,
        },
    }))
}

fn host_login(host: &str) -> Result<Login, HostError> {
    Ok(Login::to(checked_name(HOST.key, host)?))
}

/// Logs into the host that `ssh.host` names, if it is set, and reads nothing but its kind.
///
/// # Errors
/// When it accepts no login.
pub(super) fn reach_host(settings: &Settings) -> Result<(), HostError> {
    match settings.text(HOST.key) {
        Some(host) => host_login(host)?
            .ask(OsStr::new(SSH), "uname -s -m")
            .map(drop),
        None => Ok(()),
    }
}

/// Checks that a name is a host.
fn checked_name<'a>(key: &str, host: &'a str) -> Result<&'a str, HostError> {
    if !is_ssh_host(host) {
        return Err(HostError::Setting(format!(
            "{key} = {host:?} names no machine: write {key} = \"root@192.0.2.7\", as for ssh"
        )));
    }
    Ok(host)
}

/// Returns the guest of this host, by the name in the settings or by its identity.
fn on_this_host(settings: &Settings, owner: &Owner) -> Result<LocalGuest, HostError> {
    let shown = match settings.text(HOST.key) {
        Some(_) => String::new(),
        None => output_of(&actor(&login(settings)?)?, IDENTITY)?,
    };
    seen_here(settings, &Identity::parse(&shown), owner)
}

/// As [`on_this_host`], with the guest's identity.
///
/// # Errors
/// When this host has no guest of the name in the settings.
pub(super) fn seen_here(
    settings: &Settings,
    identity: &Identity,
    owner: &Owner,
) -> Result<LocalGuest, HostError> {
    if let Some(host) = settings.text(HOST.key) {
        let place = ("host.place".to_owned(), format!("ssh:{host}"));
        return Ok(LocalGuest::unseen(owner.clone(), [place].into()));
    }
    on_host::find(settings.text(GUEST.key), identity, owner)
}

/// Checks that the login works.
///
/// # Errors
/// The reason why the login fails, with the remedy.
pub(super) fn check(settings: &Settings) -> Result<(), HostError> {
    check_link(settings)?;
    let login = login(settings)?;
    address(&login, settings)?;
    actor(&login).map(drop)
}

/// Refuses settings that an external guest cannot have.
///
/// # Errors
/// The refused setting.
pub(super) fn check_link(settings: &Settings) -> Result<(), HostError> {
    let link = LinkConfig::from_settings(settings)?;
    if link.is_shaped() {
        return Err(HostError::Setting(
            "link.rate_mbit and link.delay_us shape the link of guests that vtax boots; the link of an \
             external guest stays as it is: leave them out"
                .to_owned(),
        ));
    }
    cell::refuse_share(settings, "an external guest is in none of vtax's")?;
    cell::check(settings)
}

/// Returns the programs in `programs` that the machine lacks.
///
/// # Errors
/// When the machine does not answer.
pub(super) fn lacks(settings: &Settings, programs: &[&str]) -> Result<Vec<String>, HostError> {
    actor(&login(settings)?)?.lacks(programs)
}

/// Returns the machine that the settings name.
///
/// # Errors
/// When the machine cannot be reached.
pub(super) fn machine(settings: &Settings, on_host: LocalGuest) -> Result<Machine, HostError> {
    let login = login(settings)?;
    let address = address(&login, settings)?;
    let actor = actor(&login)?;
    let facts = actor.hello().facts.iter();
    let facts = facts.map(|(name, fact)| (format!("guest.{name}"), fact.clone()));
    let own = [
        ("ssh.to", login.host.clone()),
        ("ssh.address", address.to_string()),
    ];
    let own = own.map(|(name, fact)| (name.to_owned(), fact));
    let environment = facts.chain(own).chain(on_host.facts).collect();
    Ok(Machine {
        actor,
        about: About {
            address,
            subject: on_host.subject,
            source: on_host.source,
            environment,
            scratch: Default::default(),
            is_shared: true,
        },
        jobs: BTreeMap::new(),
        next_job: 0,
        end: None,
    })
}

/// Returns the login that the settings describe.
pub(super) fn login(settings: &Settings) -> Result<Login, HostError> {
    let host = checked_name(TO.key, settings.text(TO.key).unwrap_or_default())?;
    let mut options = Vec::new();
    let port = PORT.integer(settings);
    if port > 0 {
        options.extend(["-p".to_owned(), port.to_string()]);
    }
    if let Some(key) = settings.text(KEY.key) {
        if !Path::new(key).is_file() {
            return Err(HostError::Setting(format!("ssh.key = {key:?} is no file")));
        }
        options.extend(["-i".to_owned(), key.to_owned()]);
    }
    Ok(Login {
        host: host.to_owned(),
        options,
        sudo: settings.bool(SUDO.key, false),
        is_target: true,
        is_temporary: settings.text(TEMPLATE.key).is_some(),
    })
}

/// A machine whose connection ended.
pub(crate) struct LostMachine {
    login: Login,
    /// The kernel's id of its boot, as of the login.
    boot: String,
}

/// The state of a machine whose connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It accepts no login, with the reason.
    Away(String),
    /// It started anew after the login.
    Restarted,
    /// It has run all the time.
    Same,
}

impl LostMachine {
    /// Returns its name, as ssh takes it.
    pub fn name(&self) -> &str {
        &self.login.host
    }

    /// Logs in and compares the present boot with the boot of the lost connection.
    pub fn presence(&self) -> Presence {
        match self.login.boot(OsStr::new(SSH)) {
            Err(cause) => Presence::Away(cause.to_string()),
            Ok(boot) if boot == self.boot => Presence::Same,
            Ok(_) => Presence::Restarted,
        }
    }
}

/// Returns the machines that do not answer on their connections, without those that exist for one trial only.
pub(crate) fn lost() -> Vec<LostMachine> {
    let actors = ACTORS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let lost = actors.into_iter().filter(|(login, actor)| {
        // The first request after the loss notices it.
        !login.is_temporary && (actor.is_lost() || actor.offset().is_err())
    });
    lost.map(|(login, actor)| LostMachine {
        login,
        boot: actor.boot().to_owned(),
    })
    .collect()
}

/// Returns the actor of a login. Starts one when there is none or its connection is lost.
fn actor(login: &Login) -> Result<RemoteActor, HostError> {
    let mut actors = ACTORS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(actor) = actors.get(login).filter(|actor| !actor.is_lost()) {
        return Ok(actor.clone());
    }
    if actors.contains_key(login) {
        warn!(
            "the machine {} was lost: it is logged into again",
            login.host
        );
    }
    let actor = RemoteActor::log_in(OsStr::new(SSH), login, Path::new("/proc/self/exe"))?;
    actors.insert(login.clone(), actor.clone());
    Ok(actor)
}

/// Returns the address for load generators: `ssh.address`, or else the one that ssh uses.
pub(super) fn address(login: &Login, settings: &Settings) -> Result<IpAddr, HostError> {
    let wanted = settings.text(ADDRESS.key).map(str::to_owned);
    let name = wanted.map_or_else(|| host_name(login), Ok)?;
    let none = |why: String| HostError::Missing {
        what: format!("the network address of {name} ({why})"),
        remedy: "set ssh.address".to_owned(),
    };
    let found = (name.as_str(), 0)
        .to_socket_addrs()
        .map_err(|cause| none(cause.to_string()))?;
    let mut found: Vec<IpAddr> = found.map(|socket| socket.ip()).collect();
    found.sort();
    found
        .first()
        .copied()
        .ok_or_else(|| none("none is known".to_owned()))
}

/// Returns the name that ssh connects to for this login.
fn host_name(login: &Login) -> Result<String, HostError> {
    let output = Command::new(SSH)
        .args(&login.options)
        .args(["-G", "--", &login.host])
        .stdin(Stdio::null())
        .output()
        .map_err(HostError::process("run", SSH))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let name = text.lines().find_map(|line| line.strip_prefix("hostname "));
    name.map(str::to_owned)
        .ok_or_else(|| HostError::program(format!("ssh -G {}", login.host), &output))
}

/// Returns the output of a shell line on the actor's host.
fn output_of(actor: &RemoteActor, line: &str) -> Result<String, HostError> {
    let words: CommandLine = ["sh", "-c", line].map(str::to_owned).to_vec();
    let mut running = actor.start(&words)?;
    let deadline = std::time::Instant::now() + COMMAND_LIMIT;
    loop {
        if let Some(finished) = running.poll()? {
            return Ok(shown_lines(&String::from_utf8_lossy(&finished.stdout)));
        }
        if std::time::Instant::now() >= deadline {
            return Err(HostError::Timeout {
                what: format!("the end of `{line}` on {}", actor.host()),
                seconds: COMMAND_LIMIT.as_secs(),
                evidence: String::new(),
            });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An external machine, or a clone created for the trial.
pub(super) struct Machine {
    actor: RemoteActor,
    pub about: About,
    /// The jobs. The drop of a job kills it.
    jobs: BTreeMap<u64, Box<dyn Running>>,
    next_job: u64,
    /// Removes the machine, if it was created for the trial.
    pub end: Option<End>,
}

/// A function that removes a machine.
pub(super) type End = Box<dyn FnOnce() -> Result<(), HostError>>;

impl Target for Machine {
    fn about(&self) -> &About {
        &self.about
    }

    fn start(&mut self, command: &CommandLine) -> Result<Job, HostError> {
        let running = self.actor.start(command)?;
        let job = self.next_job;
        self.next_job += 1;
        self.jobs.insert(job, running);
        Ok(Job(job))
    }

    fn poll(&mut self, job: Job) -> Result<Option<Finished>, HostError> {
        let running = self.jobs.get_mut(&job.0).ok_or_else(|| job.unknown())?;
        let finished = running.poll()?;
        if finished.is_some() {
            self.jobs.remove(&job.0);
        }
        Ok(finished)
    }

    fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, HostError> {
        let text = output_of(&self.actor, TABLES)?;
        let mut tables = text.split(SEPARATOR);
        let mut table = || tables.next().unwrap_or_default().trim_start();
        Ok(inner::counters(table(), table(), table()))
    }

    fn console_tail(&self) -> String {
        String::new()
    }

    /// Ends the jobs. An external machine continues unchanged; a clone is removed.
    fn stop(self: Box<Self>) -> Result<(), HostError> {
        drop(self.jobs);
        let Some(end) = self.end else {
            return Ok(());
        };
        // The next clone may get the same address.
        let host = self.actor.host();
        let mut actors = ACTORS.lock().unwrap_or_else(PoisonError::into_inner);
        actors.retain(|login, _| login.host != host);
        drop(actors);
        end()
    }
}
