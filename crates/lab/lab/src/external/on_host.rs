// SPDX-License-Identifier: Apache-2.0
//! An external guest among the guests of this host: its processes, control group and devices.

use std::collections::BTreeMap;
use vtax_core::Source;
use vtax_core::owner::Owner;
use vtax_host::HostError;
use vtax_host::roots::Roots;
use vtax_inventory::{Guests, Identity};
use vtax_observe::Subject;

/// An external guest as this host sees it.
pub(crate) struct LocalGuest {
    /// The subject of the counters. Only its owner is set when another host runs the guest.
    pub subject: Subject,
    /// `Emulated` when the processor does not run guest code itself.
    pub source: Source,
    /// Facts for the record.
    pub facts: BTreeMap<String, String>,
}

impl LocalGuest {
    /// A guest whose processes this host does not see.
    pub fn unseen(owner: Owner, facts: BTreeMap<String, String>) -> Self {
        Self {
            subject: Subject {
                owner,
                ..Subject::default()
            },
            source: Source::Measured,
            facts,
        }
    }
}

/// Finds a guest by its name, or by its identity when no name is given.
///
/// # Errors
/// When no guest has the name.
pub(crate) fn find(
    name: Option<&str>,
    identity: &Identity,
    owner: &Owner,
) -> Result<LocalGuest, HostError> {
    let mut guests = Guests::new(Roots::host());
    guests.scan();
    let found = match name {
        Some(name) => Some(guests.named(name).ok_or_else(|| unknown(name, &guests))?),
        None => guests.identified(identity),
    };
    let fact = |key: &str, value: String| (key.to_owned(), value);
    let Some(guest) = found else {
        let why = "no VM of this host has its UUID or the address of one of its devices: only what its \
                   load saw and what it says itself is known";
        let facts = BTreeMap::from([fact("host.guest", format!("none: {why}"))]);
        return Ok(LocalGuest::unseen(owner.clone(), facts));
    };
    let manager = guest
        .manager
        .map(|manager| fact("host.manager", manager.to_owned()));
    let uuid = guest.uuid.clone().map(|uuid| fact("host.uuid", uuid));
    let group = guest
        .group
        .as_ref()
        .map(|group| fact("host.cgroup", group.display().to_string()));
    let process = guest
        .process
        .map(|process| fact("host.process", process.to_string()));
    let facts = [
        Some(fact("host.guest", guest.name.clone())),
        Some(fact("host.platform", guest.platform.name().to_owned())),
        manager,
        uuid,
        group,
        process,
    ];
    Ok(LocalGuest {
        subject: guests.subject(guest, owner),
        source: if guests.is_native(guest) {
            Source::Measured
        } else {
            Source::Emulated
        },
        facts: facts.into_iter().flatten().collect(),
    })
}

fn unknown(name: &str, guests: &Guests) -> HostError {
    let names: Vec<&str> = guests.iter().map(|guest| guest.name.as_str()).collect();
    let here = match names.as_slice() {
        [] => "this host has no guest".to_owned(),
        names => format!("this host has {}", names.join(", ")),
    };
    HostError::Missing {
        what: format!("a guest of this host called `{name}`"),
        remedy: format!("{here}; `vtax top` shows them"),
    }
}
