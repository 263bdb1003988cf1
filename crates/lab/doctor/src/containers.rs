// SPDX-License-Identifier: Apache-2.0
//! Containers: the control group layout, and the OCI runtimes that run a container on it.

use super::{Answer, Finding, Options, Topic};
use vtax_guest::platform::container::Runtime;
use vtax_host::Roots;
use vtax_host::facts::{CgroupLayout, CgroupVersion};

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let layout = CgroupLayout::detect(roots);
    let mut findings = vec![control_groups(&layout)];
    let runtimes = Runtime::ALL.map(|runtime| (runtime, options.probes.runtime(runtime)));
    let works = runtimes.iter().any(|(_, ran)| ran.is_ok());
    findings.extend(runtimes.map(|(runtime, ran)| match ran {
        Ok(()) => Finding::new(
            Topic::Containers,
            runtime.name(),
            Answer::Yes,
            format!("ran a container on this layout ({})", layout.version),
        ),
        Err(error) => {
            let finding = Finding::refused(Topic::Containers, runtime.name(), &error);
            if works {
                finding.remedy("not needed: another runtime works")
            } else {
                finding
                    .remedy("as root: apt-get install runc, which knows v1, v2 and hybrid layouts")
            }
        }
    }));
    findings
}

fn control_groups(layout: &CgroupLayout) -> Finding {
    let needed = ["cpuset", "memory"];
    let missing: Vec<&str> = needed
        .into_iter()
        .chain(["cpu"])
        .filter(|controller| !layout.has(controller))
        .collect();
    let seen = match layout.version {
        CgroupVersion::V1 => format!("v1: {}", list(layout.v1.keys())),
        CgroupVersion::V2 if layout.v2_controllers.is_empty() => {
            "v2 without controllers".to_owned()
        }
        CgroupVersion::V2 => format!("v2: {}", list(&layout.v2_controllers)),
        CgroupVersion::Hybrid if layout.v2_controllers.is_empty() => {
            format!(
                "hybrid: {} on v1; v2 without controllers",
                list(layout.v1.keys())
            )
        }
        CgroupVersion::Hybrid => format!(
            "hybrid: {} on v1; {} on v2",
            list(layout.v1.keys()),
            list(&layout.v2_controllers)
        ),
        CgroupVersion::None => "none is mounted".to_owned(),
    };
    let finding = |answer| Finding::new(Topic::Containers, "control groups", answer, seen.clone());
    if layout.version == CgroupVersion::None {
        finding(Answer::No).remedy("mount -t cgroup2 cgroup2 /sys/fs/cgroup; CPU time cannot be charged to targets without")
    } else if missing.is_empty() {
        finding(Answer::Yes)
    } else {
        finding(Answer::Partly).remedy(format!(
            "no controller {}; on v2: echo +{} > /sys/fs/cgroup/cgroup.subtree_control; on v1 it must be mounted",
            missing.join(", "),
            missing.join(" +")
        ))
    }
}

fn list<'a>(words: impl IntoIterator<Item = &'a String>) -> String {
    words
        .into_iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}
