//! Owners of series of readings, and their names in files.

use std::fmt;

/// The host's own counters.
pub const HOST: &str = "host";
/// CPU time and resources that sampling itself uses.
pub const OBSERVER: &str = "vtax";
/// The guest to which the treatment is applied.
pub const TARGET: &str = "target";
/// The load generator that drives the target.
pub const CLIENT: &str = "client";
/// The processes of a virtual switch.
pub const SWITCH: &str = "switch";
/// Domain 0 of a Xen host.
pub const DOM0: &str = "dom0";

/// An owner, parsed from its name. Every name is an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner<'a> {
    /// [`HOST`].
    Host,
    /// [`OBSERVER`].
    Observer,
    /// [`TARGET`].
    Target,
    /// [`CLIENT`].
    Client,
    /// [`SWITCH`].
    Switch,
    /// [`DOM0`].
    Dom0,
    /// A guest beside the target, by the name that the plan gives it.
    Guest(&'a str),
    /// The client of a guest, `hog.client`, or an owner on the machine of an actor, `client.host`.
    Of {
        /// The guest or actor.
        actor: &'a str,
        /// The owner's own name.
        owner: &'a str,
    },
}

impl<'a> Owner<'a> {
    const FIXED: [(Self, &'static str); 6] = [
        (Self::Host, HOST),
        (Self::Observer, OBSERVER),
        (Self::Target, TARGET),
        (Self::Client, CLIENT),
        (Self::Switch, SWITCH),
        (Self::Dom0, DOM0),
    ];

    /// Returns the owner with this name.
    #[must_use]
    pub fn named(name: &'a str) -> Self {
        if let Some((actor, owner)) = name.rsplit_once('.') {
            return Self::Of { actor, owner };
        }
        let mut fixed = Self::FIXED.iter();
        let fixed = fixed.find(|(_, known)| *known == name);
        fixed.map_or(Self::Guest(name), |(owner, _)| *owner)
    }

    /// Whether this is a host: that of the run, or that of an actor on another machine.
    #[must_use]
    pub fn is_host(self) -> bool {
        matches!(self, Self::Host | Self::Of { owner: HOST, .. })
    }
}

impl fmt::Display for Owner<'_> {
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
            ("hog", Owner::Guest("hog")),
        ] {
            assert_eq!(Owner::named(name), owner);
            assert_eq!(owner.to_string(), name);
        }
        let clients_host = Owner::Of {
            actor: "hog.client",
            owner: HOST,
        };
        assert_eq!(Owner::named("hog.client.host"), clients_host);
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
            prop_assert_eq!(Owner::named(&name).to_string(), name);
        }
    }
}
