//! The end of the report: which platforms and meters can be used now, and the one command that
//! installs what is missing.

use super::containers::RUNTIMES;
use super::energy::METERS;
use super::kvm::{EMULATION, KVM};
use super::limits::PRIVILEGES;
use super::network::{BRIDGE, NAMESPACE, TAP, VETH};
use super::xen::XEN;
use super::{Answer, Finding, Topic};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a user can do now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Every platform.
    pub platforms: Vec<Usable>,
    /// The sources of joules, best first; `model` is always there.
    pub meters: Vec<String>,
    /// What installs everything that is missing and needed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub install: Option<String>,
}

impl Summary {
    /// Whether any platform runs here, if only with flagged results: what `vtax doctor`'s exit
    /// status tells.
    pub fn can_run(&self) -> bool {
        self.platforms
            .iter()
            .any(|platform| platform.answer != Answer::No)
    }
}

/// Whether something can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usable {
    /// The platform's name in plans.
    pub name: String,
    /// Whether it can be used now; partly: with results that are flagged.
    pub answer: Answer,
    /// By which means, or what is in the way.
    pub reason: String,
}

/// Draws the conclusions from findings.
pub fn summarize(findings: &[Finding]) -> Summary {
    let host = Host { findings };
    let packages: BTreeSet<&str> = findings
        .iter()
        .filter(|finding| finding.answer != Answer::Yes)
        .filter_map(|finding| finding.package.as_deref())
        .collect();
    let mut meters: Vec<String> = METERS
        .iter()
        .filter(|name| host.is_yes(Topic::Energy, name))
        .map(|name| (*name).to_owned())
        .collect();
    meters.push("model".to_owned());
    Summary {
        platforms: vec![host.native(), host.container(), host.qemu(), host.xen()],
        meters,
        install: (!packages.is_empty()).then(|| {
            format!(
                "apt-get install {}",
                packages.into_iter().collect::<Vec<_>>().join(" ")
            )
        }),
    }
}

struct Host<'a> {
    findings: &'a [Finding],
}

impl Host<'_> {
    fn answer(&self, topic: Topic, name: &str) -> Option<Answer> {
        let is_it = |finding: &&Finding| finding.topic == topic && finding.name == name;
        self.findings
            .iter()
            .find(is_it)
            .map(|finding| finding.answer)
    }

    fn is_yes(&self, topic: Topic, name: &str) -> bool {
        self.answer(topic, name) == Some(Answer::Yes)
    }

    fn lacks_root(&self) -> bool {
        self.answer(Topic::Limits, PRIVILEGES) == Some(Answer::No)
    }

    /// What every platform needs and this host lacks.
    fn lacks(&self, devices: &[&str]) -> Vec<String> {
        let mut lacks = Vec::new();
        if self.lacks_root() {
            // Without root no device can be created, whatever the kernel has.
            lacks.push("root".to_owned());
        } else {
            let missing = devices
                .iter()
                .filter(|name| !self.is_yes(Topic::Network, name));
            lacks.extend(missing.map(|name| (*name).to_owned()));
        }
        let programs = self.findings.iter().filter(|finding| {
            finding.topic == Topic::Programs
                && finding.package.is_some()
                && finding.answer != Answer::Yes
        });
        // What only one platform needs is looked at there.
        let shared = programs
            .filter(|finding| !["qemu-system-x86_64", "runc"].contains(&finding.name.as_str()));
        lacks.extend(shared.map(|finding| finding.name.clone()));
        lacks
    }

    fn native(&self) -> Usable {
        usable(
            "native",
            &self.lacks(&[NAMESPACE, BRIDGE, VETH]),
            Answer::Yes,
            "in a control group and namespaces of its own",
        )
    }

    fn container(&self) -> Usable {
        let mut lacks = self.lacks(&[NAMESPACE, BRIDGE, VETH]);
        let runtime = RUNTIMES
            .iter()
            .find(|runtime| self.is_yes(Topic::Containers, runtime));
        if runtime.is_none() && !self.lacks_root() {
            lacks.push("an OCI runtime that works here".to_owned());
        }
        usable(
            "container",
            &lacks,
            Answer::Yes,
            &format!("with {}", runtime.unwrap_or(&"")),
        )
    }

    fn qemu(&self) -> Usable {
        let mut lacks = self.lacks(&[NAMESPACE, BRIDGE, VETH, TAP]);
        let emulation = self.is_yes(Topic::Kvm, EMULATION);
        if !self.is_yes(Topic::Programs, "qemu-system-x86_64") {
            lacks.push("qemu-system-x86_64".to_owned());
        }
        match self.answer(Topic::Kvm, KVM) {
            Some(Answer::Yes) => usable("qemu", &lacks, Answer::Yes, "with KVM"),
            Some(Answer::Partly) => usable(
                "qemu",
                &lacks,
                Answer::Partly,
                "with KVM if a kernel boots on it, else TCG, emulated",
            ),
            _ if emulation => usable(
                "qemu",
                &lacks,
                Answer::Partly,
                "with TCG: results are flagged `emulated`",
            ),
            _ => {
                if lacks.is_empty() {
                    lacks.push("KVM and TCG".to_owned());
                }
                usable("qemu", &lacks, Answer::No, "")
            }
        }
    }

    fn xen(&self) -> Usable {
        let mut lacks = self.lacks(&[NAMESPACE, BRIDGE, VETH]);
        if !self.is_yes(Topic::Kvm, XEN) {
            lacks.push("Xen with this host as its Dom0".to_owned());
        }
        usable("xen", &lacks, Answer::Yes, "with xl")
    }
}

fn usable(name: &str, lacks: &[String], answer: Answer, means: &str) -> Usable {
    let (answer, reason) = if lacks.is_empty() {
        (answer, means.to_owned())
    } else {
        (Answer::No, format!("lacks {}", lacks.join(", ")))
    };
    Usable {
        name: name.to_owned(),
        answer,
        reason,
    }
}
