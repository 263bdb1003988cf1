// SPDX-License-Identifier: Apache-2.0
//! The sections of a plan for neighbours, profiles, objectives and places.

use super::values::{as_number, flatten};
use super::{Reader, Value};
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
                self.complain(
                    offset,
                    format!("a neighbour cannot be called `{name}`, or two are"),
                )
                .help_with(
                    "names without `+` and `.`, other than target, client, switch, host, vtax, dom0 and none",
                );
            }
            if let Some(kind) = self.neighbour_kind(table, offset, platforms) {
                neighbours.push(Neighbour { name, kind });
            }
        }
        if neighbours.len() >= link::MOST_SEATS {
            self.refuse(
                value,
                format!(
                    "a trial has room for {} guests, the target included",
                    link::MOST_SEATS
                ),
            );
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
            self.only(table, ["name", "same_as"].into_iter(), "a twin");
            if self.text_of(same_as, "same_as")? != TARGET {
                self.refuse(same_as, "`same_as` must be \"target\"");
                return None;
            }
            return Some(NeighbourKind::Twin);
        }
        let Some(kind) = table.get("kind") else {
            self.complain(
                offset,
                "this `[[neighbour]]` has neither `kind` nor `same_as`",
            )
            .help_with("kind is a workload, such as \"cpu\"; same_as = \"target\" makes a twin");
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
        if self.catalogue.workload(&workload).is_none() {
            let kinds = self.catalogue.workloads.iter().map(|known| known.kind());
            self.unknown(
                kind.span().start,
                format!("there is no workload `{workload}`"),
                &workload,
                kinds,
            );
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
        let platform_kind = platform
            .as_ref()
            .and_then(|name| platforms.iter().find(|entry| entry.name == *name))
            .map_or("", |entry| entry.kind.as_str())
            .to_owned();
        let settings = self.neighbour_settings(table, &workload, &platform_kind);
        Some(NeighbourKind::Guest {
            workload,
            platform,
            settings,
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
            let parameter = if is_own {
                self.catalogue.parameter(platform, workload, &full)
            } else {
                None
            };
            let Some(parameter) = parameter else {
                let known = self.catalogue.workload(workload);
                let keys = known.iter().flat_map(|known| known.about().parameters);
                let keys = keys.map(|own| own.key.strip_prefix("load.").unwrap_or(own.key));
                self.unknown(
                    offset,
                    format!("a neighbour with the workload `{workload}` has no setting `{key}`"),
                    &key,
                    keys.chain(SETTINGS_OF_A_GUEST.map(|(short, _)| short))
                        .chain(["platform"]),
                );
                continue;
            };
            if let Some(level) = self.level(value, &parameter) {
                settings.0.insert(full, level);
            }
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
            self.refuse(
                value,
                format!("factor `{NEIGHBOURS}` must list lists of names"),
            )
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
            if !neighbours.iter().any(|known| known.name == name) || names.contains(&name) {
                let known = neighbours.iter().map(|known| known.name.as_str());
                self.unknown(
                    item.span().start,
                    format!("the plan has no other `[[neighbour]]` called `{name}`"),
                    &name,
                    known,
                );
                return None;
            }
            names.push(name);
        }
        Some(Level::Text(if names.is_empty() {
            ALONE.to_owned()
        } else {
            names.join("+")
        }))
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
            let text = self.text_of(value, "objective")?;
            Objective::parse(&text)
                .map_err(|cause| {
                    self.refuse(value, cause.to_string());
                })
                .ok()
        });
        let Some(value) = table.get("profile") else {
            return (Profile::Steady, objective);
        };
        let profile = self.profile(value).unwrap_or_default();
        let offset = value.span().start;
        let known = self.catalogue.workload(kind);
        let varies = !matches!(profile, Profile::Steady | Profile::Turns);
        if varies && known.is_some_and(|known| known.about().level.is_none()) {
            let able = self.catalogue.workloads.iter();
            let able = able.filter(|known| known.about().level.is_some());
            let able: Vec<&str> = able.map(|known| known.kind()).collect();
            self.complain(
                offset,
                format!("the workload `{kind}` has no load level that a profile could vary"),
            )
            .help_with(format!("these have one: {}", able.join(", ")));
        }
        if varies
            && table
                .get("extent")
                .and_then(|extent| extent.get_ref().as_str())
                == Some("completion")
        {
            self.complain(offset, "a profile needs a load that runs for a time")
                .help_with("leave `extent` out");
        }
        if matches!(profile, Profile::Search { .. }) && objective.is_none() {
            self.complain(offset, "a search needs an `objective` to keep")
                .help_with("add a line such as: objective = \"latency.p99 <= 20ms\"");
        }
        if known.is_some_and(|known| {
            varies && known.extent(&Settings::default()) == Extent::ToCompletion
        }) && table.get("extent").is_none()
        {
            self.complain(offset, format!("`{kind}` runs to its end by default"))
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
        let inner = value.get_ref().as_table().and_then(|table| {
            if table.len() != 1 {
                return None;
            }
            let (kind, inner) = table.iter().next()?;
            Some((kind.get_ref().to_string(), inner.get_ref().as_table()?))
        });
        let Some((kind, table)) = inner else {
            self.complain(offset, "`profile` must be a word or have one section")
                .help_with(
                    "such as { ramp = { from = 100, to = 2000, step = 100, every = \"10s\" } }",
                );
            return None;
        };
        let every = self
            .time(table, "every", Duration::from_millis(100))
            .unwrap_or(DEFAULT_LEVEL_TIME);
        match kind.as_str() {
            "steps" => self.steps(table, every, offset),
            "ramp" => {
                self.only(
                    table,
                    ["from", "to", "step", "times", "every", "beyond"].into_iter(),
                    "a ramp",
                );
                let (from, to) = self.bounds(table, offset)?;
                let plus = self.number(table, "step", 1e-6, 1e12).map(Step::Plus);
                let times = self.number(table, "times", 1.01, 100.0).map(Step::Times);
                let step = match (plus, times) {
                    (Some(step), None) | (None, Some(step)) => step,
                    _ => {
                        self.complain(offset, "a ramp has either a `step` or `times`")
                            .help_with("step = 100 adds, times = 1.5 multiplies");
                        return None;
                    }
                };
                let beyond = self
                    .time(table, "beyond", Duration::ZERO)
                    .unwrap_or(every * 2);
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
            "search" => {
                self.only(
                    table,
                    ["from", "to", "within", "every"].into_iter(),
                    "a search",
                );
                let (from, to) = self.bounds(table, offset)?;
                Some(Profile::Search {
                    from,
                    to,
                    within: self
                        .number(table, "within", 0.001, 1.0)
                        .unwrap_or(DEFAULT_PRECISION),
                    every,
                })
            }
            other => {
                self.unknown(
                    offset,
                    format!("there is no profile `{other}`"),
                    other,
                    KINDS,
                );
                None
            }
        }
    }

    /// Reads `levels = [...]`, or `of = 1000`, which is split into `count` equal parts, ten by default.
    fn steps(&mut self, table: &DeTable<'_>, every: Duration, offset: usize) -> Option<Profile> {
        self.only(
            table,
            ["levels", "of", "count", "every"].into_iter(),
            "steps",
        );
        let levels: Vec<f64> = if let Some(of) = self.number(table, "of", 1e-6, 1e12) {
            let count: u32 = self.integer(table, "count", 1, 1000).unwrap_or(10);
            (1..=count)
                .map(|part| of * f64::from(part) / f64::from(count))
                .collect()
        } else {
            let array = table
                .get("levels")
                .and_then(|value| value.get_ref().as_array());
            let Some(array) = array else {
                self.complain(offset, "the steps have neither `levels` nor `of`")
                    .help_with("such as { of = 1000 } for ten levels from 100 to 1000");
                return None;
            };
            array
                .iter()
                .filter_map(|item| as_number(item.get_ref()))
                .filter(|level| *level > 0.0)
                .collect::<Vec<_>>()
                .into_iter()
                .take(array.len())
                .collect()
        };
        let all_numbers = table
            .get("levels")
            .and_then(|value| value.get_ref().as_array())
            .is_none_or(|array| array.len() == levels.len());
        let rising = levels.windows(2).all(|pair| pair[0] < pair[1]);
        if levels.is_empty() || !all_numbers || !rising {
            self.complain(
                offset,
                "levels must be positive numbers, each above the one before",
            )
            .help_with("such as levels = [100, 200, 400]");
            return None;
        }
        Some(Profile::Steps { levels, every })
    }

    fn bounds(&mut self, table: &DeTable<'_>, offset: usize) -> Option<(f64, f64)> {
        let bounds = self
            .number(table, "from", 1e-6, 1e12)
            .zip(self.number(table, "to", 1e-6, 1e12));
        let Some((from, to)) = bounds else {
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
        let Some(value) = root.get("places") else {
            return Places::default();
        };
        let offset = value.span().start;
        let keys = ["client", "bridge", "device", "target"];
        let Some(table) = self.section(root, "places", keys.into_iter()) else {
            return Places::default();
        };
        let client = self.string(table, "client");
        let Some(host) = client
            .as_deref()
            .and_then(|place| place.strip_prefix("ssh:"))
        else {
            self.complain(offset, "`places.client` must be \"ssh:HOST\"")
                .help_with("without it the client lives on this host");
            return Places::default();
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
        let (Some(uplink), Some(target)) = (uplink, target) else {
            self.complain(
                offset,
                "a client elsewhere needs `bridge` or `device`, and the target's address",
            )
            .help_with("such as bridge = \"br0\", target = \"192.0.2.10/24\"");
            return Places::default();
        };
        Places {
            client: Some(RemoteClient {
                host: host.to_owned(),
                network: OuterNetwork { uplink, target },
            }),
        }
    }
}
