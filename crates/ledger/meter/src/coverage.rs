// SPDX-License-Identifier: Apache-2.0
//! Containment among the domains that meters measure, and the choice of the domains that make up the host.
//!
//! A domain inside another one is never added to it, even where the two belong to different meters.

use super::{Meter, PowerModel, joules_metric};
use std::fmt;
use vtax_core::{Source, Watts, counter};

/// The part of a machine that a domain covers; it decides which domains may be added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The whole machine: at the wall, at its BMC, at its ACPI power meter or its battery.
    Machine,
    /// One power supply at its input; all supplies together are the machine.
    Supply,
    /// The output of one power supply: its input without its own losses.
    SupplyOutput,
    /// One board or superchip module at its input: processors, memory, and graphics built onto it.
    Module,
    /// One processor socket and its memory.
    Socket,
    /// The whole platform as RAPL defines it (`psys`): packages, memory and parts of the board.
    Platform,
    /// One processor package (socket or die): cores, caches, memory controller, built-in graphics.
    Package,
    /// The memory of one package.
    Memory,
    /// The cores, inside a package.
    Cores,
    /// Built-in graphics and the like, inside a package.
    Uncore,
    /// An accelerator board of its own.
    Accelerator,
    /// The energy that the machine would have used while idle.
    Idle,
    /// A domain that the device does not describe. Recorded, never added up.
    Unknown,
}

impl Part {
    /// The parts that directly contain this one; a meter may show each of them. Empty for [`Part::Unknown`].
    pub fn lies_in(self) -> &'static [Self] {
        match self {
            Self::Machine | Self::Unknown => &[],
            Self::Supply | Self::Idle => &[Self::Machine],
            Self::SupplyOutput => &[Self::Supply],
            Self::Module | Self::Platform => &[Self::SupplyOutput],
            Self::Socket => &[Self::Module],
            Self::Package | Self::Memory => &[Self::Socket, Self::Platform],
            Self::Cores | Self::Uncore => &[Self::Package],
            Self::Accelerator => &[Self::Module, Self::SupplyOutput],
        }
    }

    /// Whether energy of `other` is, or may be, energy of this part too. A part contains itself.
    pub fn contains(self, other: Self) -> bool {
        self == other || other.lies_in().iter().any(|outer| self.contains(*outer))
    }

    /// An upper bound for the power of such a part; a reading above it is invalid.
    pub fn most(self) -> Watts {
        match self {
            Self::Package | Self::Memory | Self::Cores | Self::Uncore => Watts(2_000.0),
            Self::Socket | Self::Accelerator => Watts(5_000.0),
            Self::Machine
            | Self::Supply
            | Self::SupplyOutput
            | Self::Module
            | Self::Platform
            | Self::Idle
            | Self::Unknown => Watts(30_000.0),
        }
    }
}

/// One domain that a meter measures separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// Its name within the meter, such as `package-0`.
    pub name: String,
    /// The part that it covers.
    pub part: Part,
}

impl Domain {
    /// The only domain of a meter that measures the whole machine.
    pub(super) fn machine() -> Self {
        Self {
            name: "host".to_owned(),
            part: Part::Machine,
        }
    }
}

/// The series whose sum is the host's energy.
#[derive(Debug, Clone, PartialEq)]
pub struct HostEnergy {
    /// The metric of each; every one is a counter of the host in joules.
    pub series: Vec<String>,
    /// The meters of these series.
    pub meters: Vec<String>,
    /// The flag that the sum must carry.
    pub source: Source,
    /// The coverage of the sum, as a phrase.
    pub covers: String,
    /// The caveats of the meters used.
    pub caveats: Vec<String>,
    /// The model that computed the joules, where they are modelled.
    pub model: Option<PowerModel>,
}

impl fmt::Display for HostEnergy {
    /// The domains of the sum by meter, and what they cover: `perf package-0, perf ram-0: processor packages and memory`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let series = self.series.iter();
        let domains: Vec<String> = series
            .map(|metric| {
                counter::ENERGY
                    .part(metric)
                    .unwrap_or(metric)
                    .replacen('.', " ", 1)
            })
            .collect();
        write!(f, "{}: {}", domains.join(", "), self.covers)
    }
}

/// The parts that make up a host, in order of preference, a phrase for their coverage, and whether several domains of
/// one kind are added.
const HOSTS: [(&[Part], &str, bool); 7] = [
    (&[Part::Package, Part::Memory], "processor packages", true),
    (&[Part::Machine], "the whole machine", false),
    (&[Part::Supply], "the whole machine", true),
    (&[Part::Module], "boards at their input", true),
    (&[Part::Socket], "processor sockets and their memory", true),
    // psys is one counter for the platform, although every package repeats it.
    (&[Part::Platform], "the platform", false),
    (
        &[Part::SupplyOutput],
        "what the power supplies deliver",
        true,
    ),
];

/// The domains of one meter that together cover the host once, and a phrase for their coverage. Empty when they do not
/// cover a host: a graphics board alone does not.
///
/// All packages and their memory where there are any; otherwise the whole machine, or every power supply that it has;
/// otherwise the parts inside those, outermost first.
pub fn host_domains(domains: &[Domain]) -> (Vec<&Domain>, &'static str) {
    for (parts, covers, are_added) in HOSTS {
        let is_there = |part: Part| domains.iter().any(|domain| domain.part == part);
        if !parts.first().is_some_and(|first| is_there(*first)) {
            continue;
        }
        let covered = domains.iter().filter(|domain| parts.contains(&domain.part));
        let most = if are_added { usize::MAX } else { 1 };
        let covers = if is_there(Part::Memory) && parts.contains(&Part::Memory) {
            "processor packages and memory"
        } else {
            covers
        };
        return (covered.take(most).collect(), covers);
    }
    (Vec::new(), "nothing of a host")
}

/// The series whose sum is the host's energy: those of the first of `meters` (which
/// [`super::discover`] returns in order of preference) that covers a host, and accelerator boards
/// beside it where that meter does not contain them. `None` when no meter covers a host.
pub fn host_energy<'a>(meters: impl IntoIterator<Item = &'a dyn Meter>) -> Option<HostEnergy> {
    let meters: Vec<&dyn Meter> = meters.into_iter().collect();
    let base = meters
        .iter()
        .find(|meter| !host_domains(meter.domains()).0.is_empty())?;
    let (domains, covers) = host_domains(base.domains());
    let series_of = |meter: &dyn Meter, domain: &Domain| joules_metric(meter.name(), &domain.name);
    let mut energy = HostEnergy {
        series: domains
            .iter()
            .map(|domain| series_of(*base, domain))
            .collect(),
        meters: vec![base.name().to_owned()],
        source: base.source(),
        covers: covers.to_owned(),
        caveats: base.caveats().to_vec(),
        model: base.model(),
    };
    let contains = |part: Part| domains.iter().any(|domain| domain.part.contains(part));
    if !contains(Part::Accelerator) {
        for meter in &meters {
            let is_board = |domain: &&Domain| domain.part == Part::Accelerator;
            let boards: Vec<&Domain> = meter.domains().iter().filter(is_board).collect();
            if boards.is_empty() {
                continue;
            }
            let series = boards.iter().map(|domain| series_of(*meter, domain));
            energy.series.extend(series);
            energy.source = energy.source.combine(meter.source());
            if !energy.covers.ends_with("graphics boards") {
                energy.covers.push_str(" and graphics boards");
            }
            if meter.name() != base.name() {
                energy.meters.push(meter.name().to_owned());
                energy.caveats.extend_from_slice(meter.caveats());
            }
        }
    }
    let unexplained: Vec<String> = meters
        .iter()
        .flat_map(|meter| meter.domains().iter().map(|domain| (meter.name(), domain)))
        .filter(|(_, domain)| domain.part == Part::Unknown)
        .map(|(meter, domain)| format!("{meter} {}", domain.name))
        .collect();
    if !unexplained.is_empty() {
        energy.caveats.push(format!(
            "recorded and not added, since what they cover is not known: {}",
            unexplained.join(", ")
        ));
    }
    Some(energy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vtax_core::Nanoseconds;
    use vtax_observe::{Instrument, ObserveError, Readings};

    struct Fake {
        name: &'static str,
        domains: Vec<Domain>,
        source: Source,
    }

    impl Instrument for Fake {
        fn name(&self) -> &str {
            self.name
        }
        fn read(&mut self, _: Nanoseconds, _: &mut Readings) -> Result<(), ObserveError> {
            Ok(())
        }
    }

    impl Meter for Fake {
        fn domains(&self) -> &[Domain] {
            &self.domains
        }
        fn source(&self) -> Source {
            self.source
        }
    }

    fn fake(name: &'static str, domains: &[(&str, Part)]) -> Fake {
        let domains = domains.iter().map(|(name, part)| Domain {
            name: (*name).to_owned(),
            part: *part,
        });
        Fake {
            name,
            domains: domains.collect(),
            source: Source::Measured,
        }
    }

    fn metrics(meters: &[Fake]) -> Vec<String> {
        host_energy(meters.iter().map(|meter| meter as &dyn Meter))
            .map(|energy| energy.series)
            .unwrap_or_default()
    }

    /// PowerJoular ignored the second socket.
    #[test]
    fn the_host_is_every_socket_and_its_memory_and_nothing_twice() {
        let rapl = fake(
            "powercap",
            &[
                ("package-0", Part::Package),
                ("core-0", Part::Cores),
                ("uncore-0", Part::Uncore),
                ("dram-0", Part::Memory),
                ("package-1", Part::Package),
                ("dram-1", Part::Memory),
                ("psys", Part::Platform),
            ],
        );
        assert_eq!(
            metrics(&[rapl]),
            [
                "energy.powercap.package-0_joules",
                "energy.powercap.dram-0_joules",
                "energy.powercap.package-1_joules",
                "energy.powercap.dram-1_joules",
            ]
        );
    }

    #[test]
    fn the_first_meter_that_covers_a_host_is_the_only_one_summed() {
        let meters = [
            fake("hwmon", &[("nvme-power1", Part::Unknown)]),
            fake("ipmi", &[("host", Part::Machine)]),
            fake("wall", &[("host", Part::Machine)]),
        ];
        assert_eq!(metrics(&meters), ["energy.ipmi.host_joules"]);
    }

    #[test]
    fn graphics_boards_are_added_to_packages_but_not_to_a_whole_machine() {
        let gpu = || fake("nvml", &[("gpu-0", Part::Accelerator)]);
        let packages = fake("perf", &[("package-0", Part::Package)]);
        assert_eq!(
            metrics(&[packages, gpu()]),
            ["energy.perf.package-0_joules", "energy.nvml.gpu-0_joules"]
        );
        assert_eq!(
            metrics(&[gpu(), fake("wall", &[("host", Part::Machine)])]),
            ["energy.wall.host_joules"]
        );
        assert!(metrics(&[gpu()]).is_empty());
    }

    #[test]
    fn psys_stands_in_only_where_there_is_no_package() {
        let meter = fake(
            "powercap",
            &[("psys", Part::Platform), ("psys-1", Part::Platform)],
        );
        assert_eq!(metrics(&[meter]), ["energy.powercap.psys_joules"]);
    }

    #[test]
    fn the_idle_share_of_a_model_lies_inside_the_host() {
        let meter = fake("model", &[("host", Part::Machine), ("idle", Part::Idle)]);
        assert_eq!(metrics(&[meter]), ["energy.model.host_joules"]);
    }

    #[test]
    fn the_words_of_a_sum_name_each_domain_by_its_meter_and_what_all_cover() {
        let packages = fake(
            "perf",
            &[("package-0", Part::Package), ("ram-0", Part::Memory)],
        );
        let board = fake("nvml", &[("gpu-0", Part::Accelerator)]);
        let energy = host_energy([&packages as &dyn Meter, &board]).unwrap();
        assert_eq!(
            energy.to_string(),
            "perf package-0, perf ram-0, nvml gpu-0: processor packages and memory and graphics boards"
        );
    }

    #[test]
    fn a_modelled_meter_makes_a_modelled_sum() {
        let mut model = fake("model", &[("host", Part::Machine)]);
        model.source = Source::Modelled;
        let energy = host_energy([&model as &dyn Meter]).unwrap();
        assert_eq!(energy.source, Source::Modelled);
    }

    const ALL: [Part; 13] = [
        Part::Machine,
        Part::Supply,
        Part::SupplyOutput,
        Part::Module,
        Part::Socket,
        Part::Platform,
        Part::Package,
        Part::Memory,
        Part::Cores,
        Part::Uncore,
        Part::Accelerator,
        Part::Idle,
        Part::Unknown,
    ];

    #[test]
    fn the_machine_contains_every_part_that_is_explained_and_no_part_lies_in_its_own_contents() {
        for part in ALL {
            assert_eq!(Part::Machine.contains(part), part != Part::Unknown);
            for other in ALL {
                let both = part.contains(other) && other.contains(part);
                assert!(!both || part == other, "{part:?} {other:?}");
            }
        }
        for (outer, inner) in [
            (Part::Supply, Part::SupplyOutput),
            (Part::Platform, Part::Cores),
            (Part::Package, Part::Uncore),
            (Part::Module, Part::Accelerator),
            (Part::Socket, Part::Memory),
        ] {
            assert!(outer.contains(inner) && !inner.contains(outer));
        }
        for (one, other) in [
            (Part::Package, Part::Memory),
            (Part::Package, Part::Accelerator),
            (Part::Platform, Part::Accelerator),
        ] {
            assert!(!one.contains(other) && !other.contains(one));
        }
    }

    proptest! {
        /// Any set of domains, in any order and number.
        #[test]
        fn nothing_that_is_added_lies_inside_anything_else_that_is_added(
            of_each in prop::collection::vec(prop::collection::vec(0usize..ALL.len(), 0..7), 1..5),
        ) {
            let names = ["powercap", "hwmon", "nvml", "ipmi"];
            let meters: Vec<Fake> = of_each.iter().zip(names).map(|(parts, name)| {
                let domains: Vec<(String, Part)> = parts.iter().zip(0..)
                    .map(|(part, number): (_, u32)| (format!("d-{number}"), ALL[*part])).collect();
                let borrowed: Vec<(&str, Part)> =
                    domains.iter().map(|(name, part)| (name.as_str(), *part)).collect();
                fake(name, &borrowed)
            }).collect();
            let part_of = |metric: &String| {
                let all = meters.iter().flat_map(|meter| {
                    meter.domains.iter().map(|domain| (joules_metric(meter.name, &domain.name), domain.part))
                });
                all.into_iter().find(|(name, _)| name == metric).unwrap().1
            };
            let added: Vec<Part> = metrics(&meters).iter().map(part_of).collect();
            for (index, one) in added.iter().enumerate() {
                prop_assert!(*one != Part::Unknown);
                for other in added.iter().skip(index + 1) {
                    prop_assert!(one == other || !one.contains(*other) && !other.contains(*one));
                }
            }
            let unique: std::collections::HashSet<_> = metrics(&meters).into_iter().collect();
            prop_assert_eq!(unique.len(), added.len());
        }
    }

    #[test]
    fn the_whole_machine_contains_its_supplies_and_they_contain_what_they_deliver() {
        let supply = |number: u32| {
            [
                (format!("pin-{number}"), Part::Supply),
                (format!("pout-{number}"), Part::SupplyOutput),
            ]
        };
        let mut domains: Vec<(String, Part)> = supply(0).into_iter().chain(supply(1)).collect();
        let sum = |domains: &[(String, Part)]| {
            let domains: Vec<_> = domains
                .iter()
                .map(|(name, part)| (name.as_str(), *part))
                .collect();
            metrics(&[fake("hwmon", &domains)])
        };
        let both = ["energy.hwmon.pin-0_joules", "energy.hwmon.pin-1_joules"];
        assert_eq!(sum(&domains), both);
        domains.push(("power_meter-power1".to_owned(), Part::Machine));
        assert_eq!(sum(&domains), ["energy.hwmon.power_meter-power1_joules"]);
    }

    #[test]
    fn boards_that_hwmon_shows_are_added_to_packages_of_another_meter() {
        let meters = [
            fake("powercap", &[("package-0", Part::Package)]),
            fake("hwmon", &[("xe-card", Part::Accelerator)]),
        ];
        assert_eq!(
            metrics(&meters),
            [
                "energy.powercap.package-0_joules",
                "energy.hwmon.xe-card_joules"
            ]
        );
    }

    #[test]
    fn what_is_not_explained_is_named_and_never_added() {
        let meters = [
            fake("powercap", &[("package-0", Part::Package)]),
            fake("hwmon", &[("nvme-power1", Part::Unknown)]),
        ];
        let energy = host_energy(meters.iter().map(|meter| meter as &dyn Meter)).unwrap();
        assert_eq!(energy.series.len(), 1);
        assert!(energy.caveats[0].contains("hwmon nvme-power1"));
    }
}
