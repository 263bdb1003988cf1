// SPDX-License-Identifier: Apache-2.0
//! A guest's share of CPU time: a weight relative to other guests, and a cap, both set by control groups.

use super::cgroup::Group;
use crate::HostError;
use crate::kernel_file;
use crate::settings::{Domain, Parameter, Settings};
use std::path::PathBuf;
use vtax_kernel::cgroup::CpuLimit;

pub(super) const WEIGHT: Parameter = Parameter::unset(
    "target.cpu_weight",
    Domain::Integer(1, 10_000),
)
.help(
    "the target's part of processors that are short, its client included; 100 is what others have. Under Xen the domain's \
     weight too",
);
pub(super) const CAP: Parameter = Parameter::unset("target.cpu_cap", Domain::Number(0.05, 1024.0))
    .help(
        "processors that the target may use at most, VMM and vhost included. Under Xen the domain, and as many those in Dom0 \
         that work for it",
    );

/// A guest's weight and cap.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Share {
    /// The weight in units of cgroup v2's `cpu.weight`.
    weight: Option<u64>,
    /// The cap in processors.
    cap: Option<f64>,
}

impl Share {
    /// The share of these settings.
    pub fn from_settings(settings: &Settings) -> Self {
        Self {
            weight: settings
                .0
                .get(WEIGHT.key)
                .map(|_| WEIGHT.integer(settings).unsigned_abs()),
            cap: settings.0.get(CAP.key).map(|_| CAP.number(settings)),
        }
    }

    /// The weight; guests without one have 100.
    pub fn weight(&self) -> Option<u64> {
        self.weight
    }

    /// The cap in processors.
    pub fn processors(&self) -> Option<f64> {
        self.cap
    }

    /// Extends a timeout error of a capped guest by the cap as a possible cause.
    pub fn explain(&self, mut error: HostError) -> HostError {
        if let (Some(cap), HostError::Timeout { what, .. }) = (self.cap, &mut error) {
            what.push_str(&format!(
                " (the guest has {} = {cap} processors: more may be what it needs)",
                CAP.key
            ));
        }
        error
    }

    /// Sets the weight of a seat, which contains its guest.
    ///
    /// # Errors
    /// When the seat has no such controller, or the kernel refuses the value.
    pub(super) fn weigh(&self, seat: &[PathBuf]) -> Result<(), HostError> {
        let Some(weight) = self.weight else {
            return Ok(());
        };
        // v1's default is 1024, v2's is 100.
        let shares = (weight * 1024 / 100).max(2);
        write(
            WEIGHT.key,
            seat,
            [
                ("cpu.weight", weight.to_string()),
                ("cpu.shares", shares.to_string()),
            ],
        )
    }

    /// Sets the cap of a guest.
    ///
    /// # Errors
    /// As [`Share::weigh`]; a group above may allow less.
    pub(super) fn cap(&self, guest: &Group) -> Result<(), HostError> {
        let Some(cap) = self.cap else {
            return Ok(());
        };
        let period_us = CpuLimit::PERIOD_US;
        let limit = CpuLimit {
            quota_us: Some((cap * period_us as f64).round() as u64),
            period_us,
        };
        write(
            CAP.key,
            &guest.folders(),
            [false, true].map(|v1| (CpuLimit::file(v1), limit.setting(v1))),
        )
    }
}

/// Refuses weights and caps for guests that a cell's control groups do not contain.
///
/// # Errors
/// When the settings have a weight or a cap; `why` names the scheduler of the guest.
pub fn refuse(settings: &Settings, why: &str) -> Result<(), HostError> {
    match [WEIGHT, CAP]
        .iter()
        .find(|known| settings.0.contains_key(known.key))
    {
        Some(known) => Err(HostError::Setting(format!(
            "{} is held by control groups, and {why}: take it out, or set it for other platforms",
            known.key
        ))),
        None => Ok(()),
    }
}

/// Writes to the first of these files that exists.
fn write(key: &str, folders: &[PathBuf], files: [(&str, String); 2]) -> Result<(), HostError> {
    for folder in folders {
        for (name, value) in &files {
            let file = folder.join(name);
            if file.exists() {
                return kernel_file::store(&file, value).map_err(|cause| {
                    HostError::Setting(format!(
                        "cannot set {key} by writing {value:?} to {}: {cause}; a group above may allow less",
                        file.display()
                    ))
                });
            }
        }
    }
    Err(HostError::Missing {
        what: format!("the controller `cpu` of control groups, by which {key} is held,"),
        remedy:
            "enable it for the group that vtax is started in: `echo +cpu > cgroup.subtree_control` \
                 of the one above"
                .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Level;
    use std::fs;

    fn settings(pairs: &[(&str, Level)]) -> Settings {
        Settings(
            pairs
                .iter()
                .map(|(key, level)| ((*key).to_owned(), level.clone()))
                .collect(),
        )
    }

    #[test]
    fn both_interfaces_get_their_own_units() {
        let share = Share::from_settings(&settings(&[
            (WEIGHT.key, Level::Integer(200)),
            (CAP.key, Level::Number(0.3)),
        ]));
        for (weight, cap, expected) in [
            ("cpu.weight", "cpu.max", ["200", "30000 100000"]),
            ("cpu.shares", "cpu.cfs_quota_us", ["2048", "30000"]),
        ] {
            let seat = tempfile::tempdir().unwrap();
            fs::write(seat.path().join(weight), "").unwrap();
            fs::write(seat.path().join(cap), "").unwrap();
            let folders = [seat.path().to_owned()];
            share.weigh(&folders).unwrap();
            share.cap(&Group::at(folders.to_vec())).unwrap();
            let read = |name| fs::read_to_string(seat.path().join(name)).unwrap();
            assert_eq!([read(weight), read(cap)], expected);
        }
    }

    #[test]
    fn what_cannot_be_held_is_refused_with_a_reason() {
        let capped = settings(&[(CAP.key, Level::Number(0.3))]);
        let nowhere = tempfile::tempdir().unwrap();
        let group = Group::at(vec![nowhere.path().to_owned()]);
        let printed = Share::from_settings(&capped).cap(&group).unwrap_err();
        assert!(
            printed.to_string().contains("controller `cpu`"),
            "{printed}"
        );
        let printed = refuse(&capped, "libvirt has groups of its own").unwrap_err();
        assert!(printed.to_string().contains("target.cpu_cap"), "{printed}");
        assert!(refuse(&Settings::default(), "nobody").is_ok());
        let late = || HostError::Timeout {
            what: "an answer".to_owned(),
            seconds: 90,
            evidence: String::new(),
        };
        let printed = Share::from_settings(&capped).explain(late()).to_string();
        assert!(printed.contains("target.cpu_cap = 0.3"), "{printed}");
        assert_eq!(
            Share::default().explain(late()).to_string(),
            late().to_string()
        );
        assert!(Share::default().cap(&group).is_ok());
    }
}
