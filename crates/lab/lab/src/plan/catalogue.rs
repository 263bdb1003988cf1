// SPDX-License-Identifier: Apache-2.0
//! The names that a plan may use: platforms, workloads, and their settings.

use crate::external;
use std::sync::LazyLock;
use vtax_guest::platform::{self, Platform};
use vtax_host::cell;
use vtax_host::knobs::{self, Place};
use vtax_host::settings::{Domain, Parameter, Settings};
use vtax_load::workload::{self, Workload};

/// The setting that charges the guests of a trial.
pub use vtax_results::CHARGE;

/// Settings of the observation.
const OBSERVATION_SETTINGS: [Parameter; 1] = [Parameter::new(
    CHARGE,
    Domain::Choice(&["none", "counted", "traced", "both"]),
    "none",
)
.help("charge-back beside the readings: what each guest is charged, by which methods")];

/// Platforms that vtax boots, and those of external guests.
static PLATFORMS: LazyLock<Vec<&'static dyn Platform>> =
    LazyLock::new(|| [platform::all(), external::all()].concat());

/// The knobs of every trial: of the host's kernel and of guests' kernels.
fn shared_knobs() -> impl Iterator<Item = &'static Parameter> {
    let shared = knobs::TABLE
        .iter()
        .filter(|knob| !matches!(knob.place, Place::Vmm));
    shared.map(|knob| &knob.parameter)
}

/// Whether a setting of every trial applies to a platform: a knob of the guest's kernel does where vtax can set it.
fn applies(parameter: &Parameter, platform: &dyn Platform) -> bool {
    match knobs::by_key(parameter.key).map(|knob| &knob.place) {
        Some(Place::Guest { on_veth, .. }) => platform.guest_kernel().has_knob(*on_veth),
        _ => true,
    }
}

/// The platforms, workloads and settings of plans. Injected, so that tests have their own.
#[derive(Clone)]
pub struct Catalogue {
    /// The platforms.
    pub platforms: &'static [&'static dyn Platform],
    /// The workloads.
    pub workloads: &'static [&'static dyn Workload],
    /// The settings of every trial: of the link, the host and the guest's kernel.
    pub shared: Vec<Parameter>,
}

impl Catalogue {
    /// The catalogue of vtax.
    pub fn standard() -> Self {
        let shared = (cell::PARAMETERS.iter())
            .chain(cell::link::PARAMETERS)
            .chain(shared_knobs())
            .chain(&OBSERVATION_SETTINGS)
            .copied()
            .collect();
        Self {
            platforms: &PLATFORMS,
            workloads: workload::all(),
            shared,
        }
    }

    /// The platform of a kind.
    pub fn platform(&self, kind: &str) -> Option<&'static dyn Platform> {
        self.platforms
            .iter()
            .copied()
            .find(|platform| platform.kind() == kind)
    }

    /// Whether a guest of a platform kind exists without vtax, by its settings.
    pub fn is_external(&self, platform: &str, settings: &Settings) -> bool {
        let platform = self.platform(platform);
        platform.is_some_and(|platform| platform.is_external(settings))
    }

    /// The workload of a kind.
    pub fn workload(&self, kind: &str) -> Option<&'static dyn Workload> {
        self.workloads
            .iter()
            .copied()
            .find(|workload| workload.kind() == kind)
    }

    /// The settings of every trial that apply to a platform kind. An empty kind matches all kinds.
    pub fn shared_by(&self, platform: &str) -> impl Iterator<Item = &Parameter> + Clone {
        let platform = self.platform(platform);
        let shared = self.shared.iter();
        shared.filter(move |one| platform.is_none_or(|platform| applies(one, platform)))
    }

    /// The parameter `key` in a trial of this platform and workload kind; `None` where it does not apply. An
    /// empty kind matches all kinds.
    pub fn parameter(&self, platform: &str, workload: &str, key: &str) -> Option<Parameter> {
        let platforms = self
            .platforms
            .iter()
            .filter(|p| platform.is_empty() || p.kind() == platform);
        let workloads = self
            .workloads
            .iter()
            .filter(|w| workload.is_empty() || w.kind() == workload);
        (self.shared_by(platform))
            .chain(platforms.flat_map(|p| p.parameters()))
            .chain(workloads.flat_map(|w| w.about().parameters))
            .copied()
            .find(|parameter| parameter.key == key)
    }

    /// Every key of a platform, a workload or the lab.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> + '_ {
        (self.shared.iter())
            .chain(self.platforms.iter().flat_map(|p| p.parameters()))
            .chain(self.workloads.iter().flat_map(|w| w.about().parameters))
            .map(|parameter| parameter.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_knob_of_the_guests_kernel_applies_where_vtax_can_set_it() {
        let catalogue = Catalogue::standard();
        let applies = |platform: &str, key: &str| catalogue.parameter(platform, "", key).is_some();
        for (platform, deferral, ring) in [
            ("qemu", true, true),
            ("native", true, false),
            ("container", true, false),
            ("ssh", false, false),
            ("xenapi", false, false),
        ] {
            assert_eq!(
                applies(platform, "guest.napi_defer_hard_irqs"),
                deferral,
                "{platform}"
            );
            assert_eq!(applies(platform, "guest.ring"), ring, "{platform}");
            assert!(applies(platform, "host.halt_poll_ns"), "{platform}");
            assert_eq!(applies(platform, "vm.tx_timer"), platform == "qemu");
        }
    }

    #[test]
    fn every_knob_is_a_key_of_plans() {
        let catalogue = Catalogue::standard();
        for knob in knobs::TABLE {
            let key = knob.parameter.key;
            assert!(catalogue.keys().any(|known| known == key), "{key}");
        }
    }
}
