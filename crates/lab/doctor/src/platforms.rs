// SPDX-License-Identifier: Apache-2.0
//! The end of the report: the usable platforms and meters, and the command that installs all missing packages.

use super::kvm::KVM;
use super::network::CELL;
use super::places::TESTBEDS;
use super::{Answer, Finding, Options, Subject, Topic};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use vtax_guest::platform::{self, Means};

/// The findings about platforms: each platform's own check, limited by the earlier findings.
pub(super) fn examine(findings: &[Finding], options: &Options) -> Vec<Finding> {
    let answer = |topic, name: &str| {
        let is_it = |finding: &&Finding| finding.topic == topic && finding.name == name;
        let found = findings.iter().find(is_it);
        found.map_or(Answer::No, |finding| finding.answer)
    };
    platform::all()
        .iter()
        .map(|platform| {
            let subject = Subject(Topic::Platforms, platform.kind());
            if let Err(error) = options.probes.platform(*platform) {
                return subject.refused(&error);
            }
            if answer(Topic::Network, CELL) != Answer::Yes {
                return subject.finding(Answer::No, format!("lacks a {CELL}: see Network"));
            }
            let kvm = answer(Topic::Kvm, KVM);
            match (platform.means(), kvm) {
                (Means::Kernel, _) => subject.yes("in a control group and namespaces of its own"),
                (Means::Program(programs), _) => {
                    let works = |name: &&&str| answer(Topic::Containers, name) == Answer::Yes;
                    let program = programs.iter().find(works).or(programs.first());
                    subject.yes(format!("with {}", program.copied().unwrap_or_default()))
                }
                (Means::Kvm | Means::KvmOrEmulation, Answer::Yes) => subject.yes("with KVM"),
                (Means::Kvm, Answer::Partly) => {
                    subject.finding(Answer::Partly, "with KVM if a kernel boots on it")
                }
                (Means::Kvm, Answer::No) => subject.finding(
                    Answer::No,
                    "lacks a KVM that boots a kernel: see Virtual machines",
                ),
                (Means::KvmOrEmulation, Answer::Partly) => subject.finding(
                    Answer::Partly,
                    "with KVM if a kernel boots on it, else TCG, emulated",
                ),
                (Means::KvmOrEmulation, Answer::No) => {
                    subject.finding(Answer::Partly, "with TCG: results are flagged `emulated`")
                }
            }
        })
        .collect()
}

/// The summary of the findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Every platform.
    pub platforms: Vec<Usable>,
    /// Existing guests (`libvirt`, `ssh`, `xenapi`) and emulated hosts (`testbed:kvm`, `testbed:xen`).
    #[serde(default)]
    pub places: Vec<Usable>,
    /// The energy meters, best first; `model` is always the last.
    pub meters: Vec<String>,
    /// The command that installs all packages that are missing and needed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub install: Option<String>,
}

impl Summary {
    /// Whether any plan can run here, at least emulated. It determines the exit status of `vtax doctor`.
    pub fn can_run(&self) -> bool {
        let testbeds = self.places.iter();
        self.platforms
            .iter()
            .chain(testbeds.filter(|place| TESTBEDS.contains(&place.name.as_str())))
            .any(|usable| usable.answer != Answer::No)
    }
}

/// A platform or place and its usability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usable {
    /// Its name in plans.
    pub name: String,
    /// Whether it can be used; partly: its results are flagged.
    pub answer: Answer,
    /// The means that it uses, or the reason against its use.
    pub reason: String,
}

/// Summarizes findings.
pub fn summarize(findings: &[Finding]) -> Summary {
    let of = |topic| {
        findings
            .iter()
            .filter(move |finding| finding.topic == topic)
    };
    let packages: BTreeSet<&str> = findings
        .iter()
        .filter_map(|finding| finding.package.as_deref())
        .collect();
    let usable = |topic| {
        of(topic)
            .map(|finding| Usable {
                name: finding.name.clone(),
                answer: finding.answer,
                reason: finding.evidence.clone(),
            })
            .collect()
    };
    Summary {
        platforms: usable(Topic::Platforms),
        places: usable(Topic::Places),
        meters: of(Topic::Energy)
            .filter(|finding| finding.answer == Answer::Yes)
            .map(|finding| finding.name.clone())
            .chain(["model".to_owned()])
            .collect(),
        install: (!packages.is_empty()).then(|| {
            let packages: Vec<&str> = packages.into_iter().collect();
            format!("apt-get install {}", packages.join(" "))
        }),
    }
}
