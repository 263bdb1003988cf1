// SPDX-License-Identifier: Apache-2.0
//! Owners of series of readings, and their names in files.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The name of the target, and of its seat.
pub const TARGET: &str = "target";
/// The name of the client that drives the target.
pub const CLIENT: &str = "client";
const HOST: &str = "host";

/// An owner of series. Files hold its name, and every name is an owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Owner {
    /// `host`: the host's own counters.
    Host,
    /// `vtax`: CPU time and resources that sampling itself uses.
    Observer,
    /// `target`: the guest to which the treatment is applied.
    #[default]
    Target,
    /// `client`: the load generator that drives the target.
    Client,
    /// `switch`: the processes of a virtual switch.
    Switch,
    /// `dom0`: Domain 0 of a Xen host.
    Dom0,
    /// A guest beside the target, by the name that the plan gives it.
    Guest(Box<str>),
    /// The client of a guest, `hog.client`, or an owner on the machine of an actor, `client.host`.
    Of {
        /// The guest or actor.
        actor: Box<str>,
        /// The owner's own name.
        owner: Box<str>,
    },
}

impl Owner {
    const FIXED: [(Self, &'static str); 6] = [
        (Self::Host, HOST),
        (Self::Observer, "vtax"),
        (Self::Target, TARGET),
        (Self::Client, CLIENT),
        (Self::Switch, "switch"),
        (Self::Dom0, "dom0"),
    ];

    /// Returns the owner with this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        if let Some((actor, owner)) = name.rsplit_once('.') {
            return Self::Of {
                actor: actor.into(),
                owner: owner.into(),
            };
        }
        let mut fixed = Self::FIXED.into_iter();
        let fixed = fixed.find(|(_, known)| *known == name);
        fixed.map_or_else(|| Self::Guest(name.into()), |(owner, _)| owner)
    }

    /// Returns this owner on the machine of an actor: `client.host`.
    #[must_use]
    pub fn on_machine_of(&self, actor: &Self) -> Self {
        Self::named(&format!("{actor}.{self}"))
    }

    /// Whether this is a host: that of the run, or that of an actor on another machine.
    #[must_use]
    pub fn is_host(&self) -> bool {
        match self {
            Self::Of { owner, .. } => **owner == *HOST,
            other => *other == Self::Host,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guest(name) => f.write_str(name),
            Self::Of { actor, owner } => write!(f, "{actor}.{owner}"),
            fixed => {
                let mut all = Self::FIXED.iter();
                let name = all.find(|(owner, _)| owner == fixed);
                f.write_str(name.map_or("", |(_, name)| name))
            }
        }
    }
}

impl From<String> for Owner {
    fn from(name: String) -> Self {
        Self::named(&name)
    }
}

impl From<Owner> for String {
    fn from(owner: Owner) -> Self {
        owner.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_files_are_owners() {
        for (name, owner) in [
            ("host", Owner::Host),
            ("vtax", Owner::Observer),
            ("target", Owner::Target),
            ("client", Owner::Client),
            ("switch", Owner::Switch),
            ("dom0", Owner::Dom0),
            ("hog", Owner::Guest("hog".into())),
        ] {
            assert_eq!(Owner::named(name), owner);
            assert_eq!(owner.to_string(), name);
        }
        let clients_host = Owner::Of {
            actor: "hog.client".into(),
            owner: HOST.into(),
        };
        assert_eq!(Owner::named("hog.client.host"), clients_host);
        assert_eq!(
            Owner::Host.on_machine_of(&Owner::named("hog.client")),
            clients_host
        );
    }

    #[test]
    fn hosts_are_that_of_the_run_and_those_of_actors_elsewhere() {
        for (name, is_host) in [
            ("host", true),
            ("target.host", true),
            ("hog.client.host", true),
            ("client", false),
            ("hog.client", false),
            ("myhost", false),
        ] {
            assert_eq!(Owner::named(name).is_host(), is_host, "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_name_stays_as_it_is(name in "[a-z.]{0,12}|\\PC{0,12}") {
            let owner = Owner::named(&name);
            prop_assert_eq!(owner.to_string(), name.as_str());
            let json = serde_json::to_string(&owner).unwrap();
            prop_assert_eq!(&json, &serde_json::to_string(&name).unwrap());
            prop_assert_eq!(serde_json::from_str::<Owner>(&json).unwrap(), owner);
        }
    }
}
