// SPDX-License-Identifier: Apache-2.0
//! The sections of a plan for neighbours, profiles, objectives and places.

use super::values::{as_number, flatten, text};
use super::{Reader, Value, short};
use crate::plan::keys::{ANY_TIME, WINDOW};
use crate::plan::profile::MOST_LEVELS;
use crate::plan::{
    ALONE, Catalogue, Entry, NEIGHBOURS, Neighbour, NeighbourKind, Objective, Places, Profile,
    RemoteClient, SETTINGS_OF_A_GUEST, Step,
};
use std::time::Duration;
use toml::de::DeTable;
use vtax_core::owner::Owner;
use vtax_host::cell::{OuterNetwork, TARGET, Uplink, link};
use vtax_host::command::is_ssh_host;
use vtax_host::settings::{Level, Settings};
use vtax_load::workload::Extent;
use vtax_load::workload::command::KIND;

/// The default time of a level.
const DEFAULT_LEVEL_TIME: Duration = Duration::from_secs(10);
/// The default relative precision of a search.
const DEFAULT_PRECISION: f64 = 0.05;
/// The bounds of load levels.
const LEVELS: (f64, f64) = (1e-6, 1e12);

impl Reader<'_, &Catalogue> {
    /// Reads the `[[neighbour]]` sections.
    pub(super) fn neighbours(&mut self, root: &DeTable<'_>, platforms: &[Entry]) -> Vec<Neighbour> {
        let Some(value) = root.get("neighbour") else {
            return Vec::new();
        };
        let Some(array) = value.get_ref().as_array() else {
            self.refuse(value, "`neighbour` must be a list of sections")
                .help_with("write [[neighbour]] with two brackets");
            return Vec::new();
        };
        let mut neighbours: Vec<Neighbour> = Vec::new();
        for item in array {
            let offset = item.span().start;
            let Some(table) = item.get_ref().as_table() else {
                self.complain(offset, "each `neighbour` must be a section with `name`");
                continue;
            };
            let Some(name) = table.get("name") else {
                self.complain(offset, "this `[[neighbour]]` has no `name`")
                    .help_with("add a line such as: name = \"disk\"");
                continue;
            };
            let Some(name) = self.name(name) else {
                continue;
            };
            let taken = !matches!(Owner::named(&name), Owner::Guest(_))
                || name == ALONE
                || name.contains('+')
                || neighbours.iter().any(|other| other.name == name);
            if taken {
                let message = format!("a neighbour cannot be called `{name}`, or two are");
                self.complain(offset, message).help_with(
                    "names without `+` and `.`, other than target, client, switch, host, vtax, dom0 and none",
                );
            }
            if let Some(kind) = self.neighbour_kind(table, offset, platforms) {
                neighbours.push(Neighbour { name, kind });
            }
        }
        if neighbours.len() >= link::MOST_SEATS {
            let most = link::MOST_SEATS;
            let message = format!("a trial has room for {most} guests, the target included");
            self.refuse(value, message);
        }
        neighbours
    }

    fn neighbour_kind(
        &mut self,
        table: &DeTable<'_>,
        offset: usize,
        platforms: &[Entry],
    ) -> Option<NeighbourKind> {
        if let Some(same_as) = table.get("same_as") {
            self.only(table, ["name", "same_as"], "a twin");
            if self.text_of(same_as, "same_as")? != TARGET {
                self.refuse(same_as, "`same_as` must be \"target\"");
                return None;
            }
            return Some(NeighbourKind::Twin);
        }
        let Some(kind) = table.get("kind") else {
            let message = "this `[[neighbour]]` has neither `kind` nor `same_as`";
            self.complain(offset, message).help_with(
                "kind is a workload, such as \"cpu\"; same_as = \"target\" makes a twin",
            );
            return None;
        };
        let workload = self.text_of(kind, "kind")?;
        if workload == KIND {
            self.refuse(kind, "a neighbour cannot be a command")
                .help_with(
                    "take another workload, or same_as = \"target\" for a twin of the target",
                );
            return None;
        }
        let catalogue = self.catalogue;
        if catalogue.workload(&workload).is_none() {
            let kinds = catalogue.workloads.iter().map(|known| known.kind());
            let message = format!("there is no workload `{workload}`");
            self.unknown(kind.span().start, message, &workload, kinds);
            return None;
        }
        let platform = match table.get("platform") {
            None => None,
            Some(value) => {
                let name = self.text_of(value, "platform")?;
                self.known_platform(&name, value.span().start, platforms);
                Some(name)
            }
        };
        let known = |name: &String| platforms.iter().find(|entry| entry.name == *name);
        let entry = platform.as_ref().and_then(known);
        let kind = entry.map_or("", |entry| entry.kind.as_str());
        Some(NeighbourKind::Guest {
            settings: self.neighbour_settings(table, &workload, kind),
            workload,
            platform,
        })
    }

    /// Reads a neighbour's settings under their full keys. Its table omits `load.`, and has short names for the
    /// settings of a guest.
    fn neighbour_settings(
        &mut self,
        table: &DeTable<'_>,
        workload: &str,
        platform: &str,
    ) -> Settings {
        let catalogue = self.catalogue;
        let mut settings = Settings::default();
        for (key, offset, value) in flatten(table) {
            if ["name", "kind", "platform"].contains(&key.as_str()) {
                continue;
            }
            let own = SETTINGS_OF_A_GUEST.iter().find(|(short, _)| *short == key);
            let full = match own {
                Some((_, full)) => (*full).to_owned(),
                None if key.contains('.') => key.clone(),
                None => format!("load.{key}"),
            };
            let for_all = ["host.", "link.", "target.", "client."];
            let is_own = !for_all.iter().any(|prefix| key.starts_with(prefix));
            let parameter = catalogue.parameter(platform, workload, &full);
            if let (Some(parameter), true) = (parameter, is_own) {
                let level = self.level(value, &parameter);
                settings.0.extend(level.map(|level| (full, level)));
                continue;
            }
            let known = catalogue.workload(workload);
            let keys = known.iter().flat_map(|known| known.about().parameters);
            let keys = keys.map(|own| short(own.key));
            let keys = keys.chain(SETTINGS_OF_A_GUEST.map(|(short, _)| short));
            let message =
                format!("a neighbour with the workload `{workload}` has no setting `{key}`");
            self.unknown(offset, message, &key, keys.chain(["platform"]));
        }
        settings
    }

    /// Reads the levels of the factor `neighbours`, which are lists of names.
    pub(super) fn neighbour_levels(
        &mut self,
        value: &Value<'_>,
        neighbours: &[Neighbour],
    ) -> Vec<Level> {
        let level = |reader: &mut Self, item: &Value<'_>| reader.neighbour_level(item, neighbours);
        self.levels(value, NEIGHBOURS, level).unwrap_or_else(|| {
            let message = format!("factor `{NEIGHBOURS}` must list lists of names");
            self.refuse(value, message)
                .help_with("write neighbours = [[], [\"pi\"], [\"pi\", \"disk\"]]");
            Vec::new()
        })
    }

    /// Reads one level of the factor `neighbours` as text such as `pi+disk`.
    pub(super) fn neighbour_level(
        &mut self,
        value: &Value<'_>,
        neighbours: &[Neighbour],
    ) -> Option<Level> {
        let Some(array) = value.get_ref().as_array() else {
            self.refuse(value, "neighbours are a list of names")
                .help_with("write [\"pi\"], or [] for none");
            return None;
        };
        let mut names: Vec<String> = Vec::new();
        for item in array {
            let name = self.text_of(item, NEIGHBOURS)?;
            let mut known = neighbours.iter().map(|known| known.name.as_str());
            if names.contains(&name) || !known.clone().any(|known| known == name) {
                let message = format!("the plan has no other `[[neighbour]]` called `{name}`");
                self.unknown(item.span().start, message, &name, known.by_ref());
                return None;
            }
            names.push(name);
        }
        let names = match names.as_slice() {
            [] => ALONE.to_owned(),
            names => names.join("+"),
        };
        Some(Level::Text(names))
    }

    /// Reads `profile` and `objective` of a workload.
    pub(super) fn drive(
        &mut self,
        table: &DeTable<'_>,
        section: &str,
        kind: &str,
    ) -> (Profile, Option<Objective>) {
        if section != "workload" {
            return (Profile::Steady, None);
        }
        let objective = table.get("objective").and_then(|value| {
            match Objective::parse(&self.text_of(value, "objective")?) {
                Ok(objective) => Some(objective),
                Err(cause) => {
                    self.refuse(value, cause.to_string());
                    None
                }
            }
        });
        let Some(value) = table.get("profile") else {
            return (Profile::Steady, objective);
        };
        let profile = self.profile(value).unwrap_or_default();
        let catalogue = self.catalogue;
        let known = catalogue.workload(kind);
        let varies = !matches!(profile, Profile::Steady | Profile::Turns);
        if varies && known.is_some_and(|known| known.about().level.is_none()) {
            let able = catalogue.workloads.iter();
            let able = able.filter(|known| known.about().level.is_some());
            let able: Vec<&str> = able.map(|known| known.kind()).collect();
            let message =
                format!("the workload `{kind}` has no load level that a profile could vary");
            self.refuse(value, message)
                .help_with(format!("these have one: {}", able.join(", ")));
        }
        if varies && text(table, "extent") == Some("completion") {
            self.refuse(value, "a profile needs a load that runs for a time")
                .help_with("leave `extent` out");
        }
        if matches!(profile, Profile::Search { .. }) && objective.is_none() {
            self.refuse(value, "a search needs an `objective` to keep")
                .help_with("add a line such as: objective = \"latency.p99 <= 20ms\"");
        }
        let by_default = known.map(|known| known.extent(&Settings::default()));
        if varies && by_default == Some(Extent::ToCompletion) && table.get("extent").is_none() {
            self.refuse(value, format!("`{kind}` runs to its end by default"))
                .help_with("add a line: extent = \"duration\"");
        }
        (profile, objective)
    }

    fn profile(&mut self, value: &Value<'_>) -> Option<Profile> {
        const KINDS: [&str; 5] = ["steady", "steps", "ramp", "search", "turns"];
        let offset = value.span().start;
        if let Some(word) = value.get_ref().as_str() {
            return match word {
                "steady" => Some(Profile::Steady),
                "turns" => Some(Profile::Turns),
                _ => {
                    self.unknown(offset, format!("there is no profile `{word}`"), word, KINDS);
                    None
                }
            };
        }
        let only = value.get_ref().as_table().filter(|table| table.len() == 1);
        let inner = only.and_then(|table| {
            let (kind, inner) = table.iter().next()?;
            Some((kind.get_ref().as_ref(), inner.get_ref().as_table()?))
        });
        let Some((kind, table)) = inner else {
            self.complain(offset, "`profile` must be a word or have one section")
                .help_with(
                    "such as { ramp = { from = 100, to = 2000, step = 100, every = \"10s\" } }",
                );
            return None;
        };
        let every = self.time(table, "every", WINDOW);
        let every = every.unwrap_or(DEFAULT_LEVEL_TIME);
        match kind {
            "steps" => self.steps(table, every, offset),
            "ramp" => self.ramp(table, every, offset),
            "search" => {
                self.only(table, ["from", "to", "within", "every"], "a search");
                let (from, to) = self.bounds(table, offset)?;
                let within = self.number(table, "within", 0.001, 1.0);
                Some(Profile::Search {
                    from,
                    to,
                    within: within.unwrap_or(DEFAULT_PRECISION),
                    every,
                })
            }
            other => {
                let message = format!("there is no profile `{other}`");
                self.unknown(offset, message, other, KINDS);
                None
            }
        }
    }

    fn ramp(&mut self, table: &DeTable<'_>, every: Duration, offset: usize) -> Option<Profile> {
        let keys = ["from", "to", "step", "times", "every", "beyond"];
        self.only(table, keys, "a ramp");
        let (from, to) = self.bounds(table, offset)?;
        let plus = self.number(table, "step", LEVELS.0, LEVELS.1);
        let times = self.number(table, "times", 1.01, 100.0);
        let step = match (plus.map(Step::Plus), times.map(Step::Times)) {
            (Some(step), None) | (None, Some(step)) => step,
            _ => {
                self.complain(offset, "a ramp has either a `step` or `times`")
                    .help_with("step = 100 adds, times = 1.5 multiplies");
                return None;
            }
        };
        let beyond = self.time(table, "beyond", ANY_TIME).unwrap_or(every * 2);
        let ramp = Profile::Ramp {
            from,
            to,
            step,
            every,
            beyond,
        };
        if ramp.rising().len() >= MOST_LEVELS {
            self.complain(offset, format!("more than {MOST_LEVELS} levels"))
                .help_with("take larger steps");
            return None;
        }
        Some(ramp)
    }

    /// Reads `levels = [...]`, or `of = 1000`, which is split into `count` equal parts, ten by default.
    fn steps(&mut self, table: &DeTable<'_>, every: Duration, offset: usize) -> Option<Profile> {
        self.only(table, ["levels", "of", "count", "every"], "steps");
        let of = self.number(table, "of", LEVELS.0, LEVELS.1);
        let array = table.get("levels");
        let array = array.and_then(|value| value.get_ref().as_array());
        let levels: Option<Vec<f64>> = match (of, array) {
            (Some(_), Some(_)) => None,
            (Some(of), None) => {
                let count: u32 = self.integer(table, "count", 1, 1000).unwrap_or(10);
                let part = |part: u32| of * f64::from(part) / f64::from(count);
                Some((1..=count).map(part).collect())
            }
            (None, Some(array)) => array.iter().map(|item| as_number(item.get_ref())).collect(),
            (None, None) => {
                self.complain(offset, "the steps have neither `levels` nor `of`")
                    .help_with("such as { of = 1000 } for ten levels from 100 to 1000");
                return None;
            }
        };
        let rising = levels.filter(|levels| {
            let is_rising = levels.windows(2).all(|pair| pair[0] < pair[1]);
            is_rising && levels.first().is_some_and(|first| *first > 0.0)
        });
        let Some(levels) = rising else {
            let message = "levels must be positive numbers, each above the one before";
            self.complain(offset, message)
                .help_with("such as levels = [100, 200, 400]");
            return None;
        };
        Some(Profile::Steps { levels, every })
    }

    fn bounds(&mut self, table: &DeTable<'_>, offset: usize) -> Option<(f64, f64)> {
        let [from, to] = ["from", "to"].map(|key| self.number(table, key, LEVELS.0, LEVELS.1));
        let Some((from, to)) = from.zip(to) else {
            self.complain(offset, "the profile needs `from` and `to`");
            return None;
        };
        if from > to {
            self.complain(offset, format!("the levels go from {from} down to {to}"))
                .help_with("give the lower level as `from`");
            return None;
        }
        Some((from, to))
    }

    /// Reads `[places] client = "ssh:HOST"`, and the network to that host.
    pub(super) fn places(&mut self, root: &DeTable<'_>) -> Places {
        Places {
            client: self.remote_client(root),
        }
    }

    fn remote_client(&mut self, root: &DeTable<'_>) -> Option<RemoteClient> {
        let offset = root.get("places")?.span().start;
        let table = self.section(root, "places", ["client", "bridge", "device", "target"])?;
        let client = self.string(table, "client");
        let host = client.as_deref().and_then(|text| text.strip_prefix("ssh:"));
        let Some(host) = host else {
            self.complain(offset, "`places.client` must be \"ssh:HOST\"")
                .help_with("without it the client lives on this host");
            return None;
        };
        if !is_ssh_host(host) {
            self.complain(offset, format!("`{host}` is no host for ssh"));
        }
        let uplink = match (self.string(table, "bridge"), self.string(table, "device")) {
            (Some(bridge), None) => Some(Uplink::Bridge(bridge)),
            (None, Some(device)) => Some(Uplink::Device(device)),
            _ => None,
        };
        let target = self.string(table, "target").and_then(|text| {
            let (address, prefix) = text.split_once('/')?;
            let prefix: u8 = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
            Some((address.parse().ok()?, prefix))
        });
        let Some((uplink, target)) = uplink.zip(target) else {
            let message = "a client elsewhere needs `bridge` or `device`, and the target's address";
            self.complain(offset, message)
                .help_with("such as bridge = \"br0\", target = \"192.0.2.10/24\"");
            return None;
        };
        Some(RemoteClient {
            host: host.to_owned(),
            network: OuterNetwork { uplink, target },
        })
    }
}
