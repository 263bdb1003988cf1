// SPDX-License-Identifier: Apache-2.0
//! Containers: the control group layout, and the OCI runtimes that run a container on it.

use super::{Finding, Options, Subject, Topic};
use vtax_guest::platform::container::Runtime;
use vtax_host::Roots;
use vtax_host::facts::{CgroupLayout, CgroupVersion};

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let layout = CgroupLayout::detect(roots);
    let mut findings = vec![control_groups(&layout)];
    let runtimes = Runtime::ALL.map(|runtime| (runtime, options.probes.runtime(runtime)));
    let works = runtimes.iter().any(|(_, ran)| ran.is_ok());
    findings.extend(runtimes.map(|(runtime, ran)| {
        let subject = Subject(Topic::Containers, runtime.name());
        match ran {
            Ok(()) => subject.yes(format!(
                "ran a container on this layout ({})",
                layout.version
            )),
            Err(error) if works => subject
                .refused(&error)
                .remedy("not needed: another runtime works"),
            Err(error) => subject
                .refused(&error)
                .remedy("as root: apt-get install runc, which knows v1, v2 and hybrid layouts"),
        }
    }));
    findings
}

fn control_groups(layout: &CgroupLayout) -> Finding {
    const GROUPS: Subject = Subject(Topic::Containers, "control groups");
    let needed = ["cpuset", "memory", "cpu"].into_iter();
    let missing: Vec<&str> = needed
        .filter(|controller| !layout.has(controller))
        .collect();
    let v1 = list(layout.v1.keys());
    let v2 = list(&layout.v2_controllers);
    let seen = match layout.version {
        CgroupVersion::V1 => format!("v1: {v1}"),
        CgroupVersion::V2 if v2.is_empty() => "v2 without controllers".to_owned(),
        CgroupVersion::V2 => format!("v2: {v2}"),
        CgroupVersion::Hybrid if v2.is_empty() => {
            format!("hybrid: {v1} on v1; v2 without controllers")
        }
        CgroupVersion::Hybrid => format!("hybrid: {v1} on v1; {v2} on v2"),
        CgroupVersion::None => {
            return GROUPS.no(
                "none is mounted",
                "mount -t cgroup2 cgroup2 /sys/fs/cgroup; CPU time cannot be charged to targets without",
            );
        }
    };
    if missing.is_empty() {
        return GROUPS.yes(seen);
    }
    GROUPS.partly(
        seen,
        format!(
            "no controller {}; on v2: echo +{} > /sys/fs/cgroup/cgroup.subtree_control; on v1 it must be mounted",
            missing.join(", "),
            missing.join(" +")
        ),
    )
}

fn list<'a>(words: impl IntoIterator<Item = &'a String>) -> String {
    words
        .into_iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}
