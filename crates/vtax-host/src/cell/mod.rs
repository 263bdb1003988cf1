//! A cell: the sandbox of one trial. Its namespaces, bridge, veths, taps and mounts belong to
//! one holder process; when that dies, for whatever reason, the kernel removes them all.
//!
//! ```text
//!             switch (network namespace, also the cell's default)
//!   client ── veth ──┐
//!                    ├── bridge ── tap ── VM
//!   target ── veth ──┘          (native and container have a veth instead)
//! ```
//!
//! Only control group directories outlive the holder; they are in the journal. See `docs/cell.md`.

pub mod cgroup;
mod client;
pub mod cpus;
mod disk;
pub mod entry;
mod holder;
pub mod link;
pub mod process;
pub mod remove;
pub mod requirements;

pub use client::Client;
pub use disk::Attached;
pub use link::{LinkConfig, TapOptions};

use crate::HostError;
use crate::command::CommandLine;
use crate::facts::CgroupVersion;
use crate::journal::Journal;
use crate::settings::{Domain, Parameter, Settings};
use cgroup::{Group, Groups, Hierarchies};
use cpus::CpuList;
use entry::Entry;
use holder::Holder;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What a plan may set of where target and client run; the link has [`link::PARAMETERS`].
pub const PARAMETERS: &[Parameter] = &[
    Parameter {
        key: "target.pin",
        domain: Domain::Text("cpu list"),
        default: None,
        help: "processors that the target, VMM included, may use, as in \"0-3,6\"",
    },
    Parameter {
        key: "client.pin",
        domain: Domain::Text("cpu list"),
        default: None,
        help: "processors that the load generator may use, as in \"0-3,6\"",
    },
];

/// A network namespace of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Holds the bridge and taps; VMMs run here.
    Switch,
    /// The client emulator's.
    Client,
    /// The target's, on platforms that share the host's kernel.
    Target,
}

/// What a cell is to be like.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CellConfig {
    /// A name for people, such as `trial-0007`; the control groups are called `vtax-NAME-…`.
    pub name: String,
    /// The link between client and target.
    pub link: LinkConfig,
    /// Processors of the target.
    pub target_pin: Option<CpuList>,
    /// Processors of the client.
    pub client_pin: Option<CpuList>,
    /// The image of the scratch disk, where the workload needs one
    /// ([`crate::scratch::image`]). One cell at a time may write to it.
    pub scratch: Option<PathBuf>,
}

impl CellConfig {
    /// The cell that `link.*`, `target.pin` and `client.pin` describe, without a scratch disk.
    ///
    /// # Errors
    /// When a value is out of bounds, or a list of processors is wrong or names absent ones.
    pub fn from_settings(name: &str, settings: &Settings) -> Result<Self, HostError> {
        let pin = |key| settings.text(key).map(CpuList::parse_online).transpose();
        Ok(Self {
            name: name.to_owned(),
            link: LinkConfig::from_settings(settings)?,
            target_pin: pin("target.pin")?,
            client_pin: pin("client.pin")?,
            scratch: None,
        })
    }
}

/// Checks that this host can make the cell that these settings describe.
///
/// # Errors
/// The first thing that is wrong or missing, with its remedy.
pub fn check(settings: &Settings) -> Result<(), HostError> {
    let config = CellConfig::from_settings("check", settings)?;
    requirements::check(&config.link)
}

/// A trial's sandbox. Dropping it destroys it, without a word; [`Cell::destroy`] reports.
#[derive(Debug)]
pub struct Cell {
    // Fields are dropped in this order: first the processes, then their control groups.
    holder: Holder,
    groups: Groups,
    entry: Arc<Entry>,
    config: CellConfig,
    name: String,
    layout: CgroupVersion,
    ipv6: bool,
}

impl Cell {
    /// Makes a cell: control groups (after they are in the journal), namespaces, bridge, and the
    /// client's side of the link.
    ///
    /// # Errors
    /// When something is missing or fails; nothing is left behind.
    pub fn create(config: CellConfig, journal: &mut Journal) -> Result<Self, HostError> {
        Self::create_recorded(config, Some(journal))
    }

    /// Makes a cell whose control groups are in no journal, for checks that are over at once.
    pub fn create_unrecorded(config: CellConfig) -> Result<Self, HostError> {
        Self::create_recorded(config, None)
    }

    fn create_recorded(
        config: CellConfig,
        journal: Option<&mut Journal>,
    ) -> Result<Self, HostError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name: String = config
            .name
            .chars()
            .map(|letter| {
                if letter.is_ascii_alphanumeric() {
                    letter
                } else {
                    '-'
                }
            })
            .take(64)
            .collect();
        let unique = format!(
            "{name}-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let hierarchies = Hierarchies::detect()?;
        let groups = Groups::create(
            &hierarchies,
            &unique,
            config.target_pin.as_ref(),
            config.client_pin.as_ref(),
            journal,
        )?;
        let ipv6 = Path::new("/proc/net/if_inet6").exists();
        let holder = Holder::start(&link::client_side(&config.link, ipv6))?;
        let entry = Arc::new(Entry {
            holder: holder.pid(),
            target: groups.target.clone(),
            client: groups.client.clone(),
        });
        Ok(Self {
            holder,
            groups,
            entry,
            config,
            name: unique,
            layout: hierarchies.layout(),
            ipv6,
        })
    }

    /// The process that holds the cell's namespaces, PID 1 inside, as numbered outside.
    pub fn holder_pid(&self) -> u32 {
        self.entry.holder
    }

    /// A name that no other cell of this host has: letters, digits and `-`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the cell was asked to be like.
    pub fn config(&self) -> &CellConfig {
        &self.config
    }

    /// How this host mounts its control groups.
    pub fn cgroup_layout(&self) -> CgroupVersion {
        self.layout
    }

    /// A command that will run in this cell: in `space`, in the cell's mount and PID
    /// namespaces, and in the named control group (`target`, `client`), killed with the cell.
    ///
    /// Its environment is `PATH`, `LC_ALL=C` and `HOME` alone and its input is empty, unless the
    /// caller sets more. The process that is spawned waits outside for the one inside and ends
    /// as that does; killing it kills the other ([`Cell::host_pid`] tells that one's PID), but
    /// for the first few milliseconds, when only the end of the cell does. Should the control
    /// groups refuse the command, it ends with code 126; when there is no such program, with 127.
    pub fn command(&self, space: Space, group: &str, line: &CommandLine) -> Command {
        self.entry.command(space, group, line)
    }

    /// As [`Cell::command`], in a group that was made by [`Group::below`].
    pub fn command_in(&self, space: Space, group: &Group, line: &CommandLine) -> Command {
        self.entry.command_in(space, group, line)
    }

    /// The way in, which targets and clients keep.
    pub fn entry(&self) -> Arc<Entry> {
        Arc::clone(&self.entry)
    }

    /// The target's control group.
    pub fn target_group(&self) -> &Group {
        &self.entry.target
    }

    /// Runs shell lines in the cell's mount namespace, outside its control groups.
    pub fn script(
        &self,
        space: Space,
        what: &str,
        script: &str,
        arguments: &[&Path],
    ) -> Result<String, HostError> {
        self.entry.script(space, what, script, arguments)
    }

    /// The PID, on the host, of the command that a spawned [`Cell::command`] runs inside, once it
    /// is in its control groups.
    ///
    /// # Errors
    /// When it has already ended, or is not there within `limit`.
    pub fn host_pid(&self, spawned: &Child, limit: Duration) -> Result<u32, HostError> {
        let deadline = Instant::now() + limit;
        loop {
            let inside = process::children(spawned.id()).first().copied();
            if let Some(pid) = inside.filter(|pid| entry::has_become_the_command(*pid)) {
                return Ok(pid);
            }
            if Instant::now() >= deadline || !process::is_alive(spawned.id()) {
                return Err(HostError::Timeout {
                    what: "the start of a command in the cell".to_owned(),
                    seconds: limit.as_secs(),
                    evidence: format!(
                        "its waiter is {} (PID {})",
                        process::name(spawned.id()),
                        spawned.id()
                    ),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Where a path of the cell's mount namespace is seen from outside (`/proc/PID/root/…`), for
    /// sockets and files that the lab itself opens.
    pub fn outside(&self, inside: &Path) -> PathBuf {
        let below: PathBuf = inside
            .components()
            .filter(|part| matches!(part, std::path::Component::Normal(_)))
            .collect();
        PathBuf::from(format!("/proc/{}/root", self.entry.holder)).join(below)
    }

    /// The control group directories of `group`, one for each v1 controller or one for v2.
    pub fn cgroups(&self, group: &str) -> Vec<PathBuf> {
        self.entry.group(group).folders()
    }

    /// A directory inside the cell (a tmpfs) for sockets and scratch files.
    pub fn run_dir(&self) -> &Path {
        Path::new("/run")
    }

    /// The client emulator.
    ///
    /// # Errors
    /// Never, today.
    pub fn client(&self) -> Client {
        Client::new(self.entry())
    }

    /// The client's address.
    pub fn client_address(&self) -> IpAddr {
        IpAddr::V4(link::CLIENT_ADDRESS)
    }

    /// The address that a target must have, with the length of its prefix.
    pub fn target_address(&self) -> (Ipv4Addr, u8) {
        (link::TARGET_ADDRESS, link::PREFIX)
    }

    /// The MAC address that a target's network device must have.
    pub fn target_mac(&self) -> &'static str {
        link::TARGET_MAC
    }

    /// Makes a tap on the bridge for a VMM that runs in [`Space::Switch`], with the link's MTU.
    /// The guest must be told the MTU too (virtio-net `host_mtu`), and a VMM must withhold the
    /// offloads from its guest where the link has them off (`csum=off,gso=off,guest_tso4=off,…`).
    ///
    /// # Errors
    /// When the kernel has no taps, or the name is no device name or taken.
    pub fn attach_tap(&self, name: &str, options: TapOptions) -> Result<(), HostError> {
        let is_device_name = !name.is_empty()
            && name.len() < 16
            && name
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_')
            && !name.starts_with('-');
        if !is_device_name {
            return Err(HostError::Other(format!(
                "{name:?} is no name for a tap: up to 15 letters, digits, `-` and `_`"
            )));
        }
        let script = link::tap(name, options, &self.config.link);
        self.script(Space::Switch, "the set-up of a tap", &script, &[])
            .map(drop)
    }

    /// Takes a network device that the kernel made in the host's network namespace and puts it on
    /// the bridge. When the cell ends before the device does, the kernel gives it back.
    ///
    /// # Errors
    /// When there is no such device, or a line of the set-up fails.
    pub fn adopt_device(&self, name: &str) -> Result<(), HostError> {
        let output = Command::new("ip")
            .args(["link", "set", "dev", name, "netns"])
            .arg(self.holder_pid().to_string())
            .env("LC_ALL", "C")
            .output()
            .map_err(|cause| HostError::Other(format!("cannot run `ip`: {cause}")))?;
        if !output.status.success() {
            return Err(HostError::Program {
                command: format!("ip link set dev {name} netns …"),
                status: output.status.to_string(),
                output: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        let script = link::adopted(name, &self.config.link);
        self.script(
            Space::Switch,
            "the set-up of an adopted device",
            &script,
            &[],
        )
        .map(drop)
    }

    /// Connects the target's network namespace to the bridge; returns the veth's name in the
    /// switch, whose counters are the host's view: it *receives* what the target sends.
    ///
    /// # Errors
    /// When it is already connected, or a line of the set-up fails.
    pub fn attach_target_veth(&self) -> Result<&'static str, HostError> {
        let script = link::target_side(&self.config.link, self.ipv6);
        self.script(
            Space::Switch,
            "the set-up of the target's veth",
            &script,
            &[],
        )?;
        Ok("target0")
    }

    /// Kills everything inside, removes the control groups and verifies that nothing is left.
    ///
    /// # Errors
    /// What is left, by name.
    pub fn destroy(mut self) -> Result<(), HostError> {
        // Both are tried, whatever becomes of the first.
        let ended = self.holder.end();
        let removed = self.groups.remove();
        ended.and(removed)?;
        match &self.config.scratch {
            Some(image) => crate::scratch::wait_released(image),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Level;

    #[test]
    fn a_pin_to_absent_processors_is_refused_before_any_trial() {
        let mut settings = Settings::default();
        settings
            .0
            .insert("target.pin".to_owned(), Level::Text("8000".to_owned()));
        let message = CellConfig::from_settings("x", &settings)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("8000") && message.contains("not online"),
            "{message}"
        );
    }
}
