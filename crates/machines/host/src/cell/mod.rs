// SPDX-License-Identifier: Apache-2.0
//! A cell: the sandbox of one trial. Its namespaces, bridge, veths, taps and mounts belong to one holder process;
//! when that process ends, for whatever reason, the kernel removes all of these.
//!
//! ```text
//!             switch (network namespace, also the cell's default)
//!   client ── veth ──┐
//!                    ├── bridge ── tap ── VM
//!   target ── veth ──┘          (native and container have a veth instead)
//! ```
//!
//! A cell has a [`Seat`] for each guest, with a client of its own: `client1` and `target1` belong to the second seat.
//! Where the target's client is on another machine, the target's seat has a bridge of its own that connects to an
//! [`OuterNetwork`]. The plan selects the [`Switch`].
//!
//! Only control group directories outlive the holder; these are in the journal. See `docs/why/cell.md`.

pub mod cgroup;
mod client;
pub mod cpus;
mod disk;
pub mod entry;
mod holder;
pub mod link;
mod namespace;
pub mod process;
pub mod remove;
pub mod requirements;
mod seat;
mod share;
mod switch;
mod uplink;
mod waiter;

pub use client::{Client, ClientProcess};
pub use disk::Attached;
pub use link::{LinkConfig, TapOptions};
pub use namespace::Namespace;
pub use seat::{Seat, SeatConfig, TARGET};
pub use share::{Share, refuse as refuse_share};
pub use switch::Switch;
pub use uplink::{OuterNetwork, Uplink};
pub use waiter::Waiter;

use crate::HostError;
use crate::facts::CgroupVersion;
use crate::journal::Journal;
use crate::settings::{Domain, Parameter, Settings};
use cgroup::{Group, Groups, Hierarchies};
use entry::Entry;
use holder::Holder;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tracing::{debug, warn};
use vtax_core::counted;
use vtax_core::owner::Owner;
use vtax_observe::Subject;

/// The parameters of a plan for the placement of target and client. The link has [`link::PARAMETERS`].
pub const PARAMETERS: &[Parameter] = &[
    Parameter::unset("target.pin", Domain::Text("cpu list"))
        .help("processors that the target, VMM included, may use, as in \"0-3,6\""),
    Parameter::unset("client.pin", Domain::Text("cpu list"))
        .help("processors that the load generator may use, as in \"0-3,6\""),
    share::WEIGHT,
    share::CAP,
    Parameter::unset(CLIENT_PLACE, Domain::Choice(&[BESIDE, ELSEWHERE]))
        .help("where the target's load generator lives: beside it, or where [places] says"),
];

/// The parameter for the place of the target's client: [`BESIDE`] or [`ELSEWHERE`].
pub const CLIENT_PLACE: &str = "client.place";
/// The client is in the target's cell.
pub const BESIDE: &str = "beside";
/// The client is on the machine that the plan names.
pub const ELSEWHERE: &str = "elsewhere";

/// A network namespace of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// The space of the bridge and taps, in which VMMs run.
    Switch,
    /// The client emulator's space.
    Client,
    /// The target's space, on platforms that share the host's kernel.
    Target,
    /// The network of this process: the host's own, for guests that vtax did not create.
    Outside,
}

/// The configuration of a cell.
#[derive(Debug, Clone, PartialEq)]
pub struct CellConfig {
    /// A readable name, such as `trial-0007`; the control groups are named `vtax-NAME-…`.
    pub name: String,
    /// The link between clients and guests.
    pub link: LinkConfig,
    /// A seat for each guest, the target's first.
    pub seats: Vec<SeatConfig>,
    /// The network of the target's seat, where its client is on another machine.
    pub outer: Option<OuterNetwork>,
}

impl Default for CellConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            link: LinkConfig::default(),
            seats: vec![SeatConfig::default()],
            outer: None,
        }
    }
}

impl CellConfig {
    /// The cell of the settings `link.*`, `target.pin` and `client.pin`, with the target's seat alone.
    ///
    /// # Errors
    /// When a value is out of bounds, or a processor list is malformed or names absent processors.
    pub fn from_settings(name: &str, settings: &Settings) -> Result<Self, HostError> {
        Ok(Self {
            name: name.to_owned(),
            link: LinkConfig::from_settings(settings)?,
            seats: vec![SeatConfig::from_settings(TARGET, settings)?],
            outer: None,
        })
    }
}

/// Checks that this host can create the cell of these settings, for a guest that needs a switch.
///
/// # Errors
/// The first defect or missing requirement, with its remedy.
pub fn check(settings: &Settings) -> Result<(), HostError> {
    if LinkConfig::from_settings(settings)?.switch == Switch::None {
        return Err(HostError::Setting(
            "link.switch = \"none\" makes a VM's tap its client's device: it is for kind = \"qemu\" with another \
             nic.backend than user and vhost-user"
                .to_owned(),
        ));
    }
    check_with_tap(settings)
}

/// As [`check`], for a guest on a tap.
///
/// # Errors
/// As [`check`].
pub fn check_with_tap(settings: &Settings) -> Result<(), HostError> {
    let config = CellConfig::from_settings("check", settings)?;
    requirements::check(&config.link)?;
    if Hierarchies::detect()?.is_usable() {
        return Ok(());
    }
    refuse_share(
        settings,
        "without root they are made only below a delegated one (`systemd-run --user --scope -p Delegate=yes vtax run …`)",
    )
}

/// A trial's sandbox. Dropping the value destroys the cell and ignores errors; [`Cell::destroy`] reports errors.
#[derive(Debug)]
pub struct Cell {
    // Fields are dropped in this order: first the processes, then their control groups.
    holder: Holder,
    groups: Vec<Groups>,
    seats: Vec<Arc<Entry>>,
    /// The control group of the switch's own processes.
    switch: Option<Group>,
    config: CellConfig,
    name: String,
    layout: CgroupVersion,
    ipv6: bool,
}

impl Cell {
    /// Creates a cell: control groups (after recording these in the journal), namespaces, bridge, and the clients'
    /// sides of the links.
    ///
    /// # Errors
    /// When a requirement is missing or a step fails; nothing is left behind.
    pub fn create(config: CellConfig, journal: &mut Journal) -> Result<Self, HostError> {
        Self::create_recorded(config, Some(journal))
    }

    /// Creates a cell whose control groups are in no journal, for short checks.
    ///
    /// # Errors
    /// As [`Cell::create`].
    pub fn create_unrecorded(config: CellConfig) -> Result<Self, HostError> {
        Self::create_recorded(config, None)
    }

    fn create_recorded(
        config: CellConfig,
        mut journal: Option<&mut Journal>,
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
        let seats = seat::count(&config.seats)?;
        let hierarchies = Hierarchies::detect()?;
        // The seats' groups are siblings, so that the scheduler divides CPU time between seats as between unrelated
        // groups.
        let groups = (0..seats)
            .map(|seat| seat::unique_name(&unique, seat))
            .map(|name| Groups::create(&hierarchies, &name, journal.as_deref_mut()))
            .collect::<Result<Vec<_>, _>>()?;
        let ipv6 = Path::new("/proc/net/if_inet6").exists();
        let outer = config.outer.as_ref().map(OuterNetwork::bridge_mac);
        let switch = if config.link.switch.has_daemons()
            && let Some(of) = groups.first()
        {
            Some(of.leaf(&Owner::Switch.to_string(), None, None)?)
        } else {
            None
        };
        let mut setup = switch.as_ref().map(Switch::start).unwrap_or_default();
        setup.push_str(&link::client_sides(
            &config.link,
            ipv6,
            seats,
            outer.as_deref(),
        ));
        for seat in 1..seats {
            setup.push_str(&format!("mkdir /run/seat{seat}\n"));
        }
        let holder = Holder::start(&setup)?;
        let entries = (0..)
            .zip(config.seats.iter().zip(&groups))
            .map(|(seat, (of, groups))| {
                of.share.weigh(&groups.folders())?;
                let guest = groups.leaf("target", of.pin.as_ref(), Some(holder.pid()))?;
                of.share.cap(&guest)?;
                Ok(Arc::new(Entry {
                    holder: holder.pid(),
                    guest,
                    client: groups.leaf("client", of.client_pin.as_ref(), Some(holder.pid()))?,
                    seat,
                }))
            });
        let entries = entries.collect::<Result<Vec<_>, HostError>>()?;
        if let (Some(outer), Some(target)) = (&config.outer, entries.first()) {
            outer.connect(target, &config.link)?;
        }
        debug!(
            "the cell {unique} has {} and process {}",
            counted(seats, "seat"),
            holder.pid()
        );
        Ok(Self {
            holder,
            groups,
            seats: entries,
            switch,
            config,
            name: unique,
            layout: hierarchies.layout(),
            ipv6,
        })
    }

    /// The PID, outside the cell, of the process that holds the cell's namespaces; it is PID 1 inside.
    pub fn holder_pid(&self) -> u32 {
        self.holder.pid()
    }

    /// The cell's name, unique on this host: letters, digits and `-`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The seats, the target's first.
    pub fn seats(&self) -> impl Iterator<Item = Seat<'_>> {
        self.seats
            .iter()
            .zip(&self.config.seats)
            .map(|(entry, config)| Seat::new(self, entry, config))
    }

    /// The target's seat: the first one.
    ///
    /// # Errors
    /// When the cell has no seats.
    pub fn target(&self) -> Result<Seat<'_>, HostError> {
        self.seats()
            .next()
            .ok_or_else(|| HostError::Other(format!("the cell {} has no seats", self.name)))
    }

    /// The switch's own processes as a subject of the counters, where it has any.
    pub fn switch(&self) -> Option<Subject> {
        self.switch.as_ref().map(|group| Subject {
            owner: Owner::Switch,
            cgroups: group.folders(),
            ..Subject::default()
        })
    }

    /// The PID, on the host, of the command that a spawned [`Seat::command`] runs inside, once it is in its control
    /// groups.
    ///
    /// # Errors
    /// When it has already ended, or does not appear within `limit`.
    pub fn host_pid(&self, spawned: u32, limit: Duration) -> Result<u32, HostError> {
        entry::host_pid(spawned, limit)
    }

    /// The path outside the cell (`/proc/PID/root/…`) of a path in the cell's mount namespace, for sockets and files
    /// that the lab itself opens.
    pub fn outside(&self, inside: &Path) -> PathBuf {
        let below: PathBuf = inside
            .components()
            .filter(|part| matches!(part, std::path::Component::Normal(_)))
            .collect();
        PathBuf::from(format!("/proc/{}/root", self.holder_pid())).join(below)
    }

    /// Kills every process inside, removes the control groups and verifies that nothing is left.
    ///
    /// # Errors
    /// The names of what is left.
    pub fn destroy(mut self) -> Result<(), HostError> {
        let name = std::mem::take(&mut self.name);
        let gone = self.end();
        match &gone {
            Ok(()) => debug!("the cell {name} is gone"),
            Err(cause) => warn!("the cell {name} is not wholly gone: {cause}"),
        }
        gone
    }

    fn end(&mut self) -> Result<(), HostError> {
        // The second step runs even if the first fails.
        let ended = self.holder.end();
        let removed = self.groups.iter_mut().map(Groups::remove);
        let removed = removed.fold(Ok(()), Result::and);
        let outer = self.config.outer.as_ref();
        let gone = outer.map_or(Ok(()), |outer| outer.wait_gone(self.holder.pid()));
        ended.and(removed).and(gone)?;
        let images = self.config.seats.iter();
        images
            .filter_map(|seat| seat.scratch.as_deref())
            .try_for_each(crate::loop_device::wait_released)
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
