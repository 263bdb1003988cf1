// SPDX-License-Identifier: Apache-2.0
//! Names and marks of platforms in every report. An unknown kind has the name in the plan, and a mark of its own.

use std::collections::{BTreeMap, HashSet};
use vtax_results::Treatment;

/// A colour and a symbol.
pub type Mark = (&'static str, &'static str);

/// The marks of kinds, from the palette of Okabe and Ito, which is safe for all types of colour vision: each kind has
/// the same mark in every report.
const KINDS: [(&str, Mark); 10] = [
    ("native", ("#0072B2", "circle")),
    ("container", ("#009E73", "square")),
    ("qemu", ("#D55E00", "triangle-up")),
    ("xen", ("#CC79A7", "diamond")),
    ("firecracker", ("#8C6BB1", "triangle-right")),
    ("cloud-hypervisor", ("#7F7F7F", "triangle-left")),
    // Platforms of the scalability test, which has no native treatments and no domains.
    ("mvm-parked", ("#0072B2", "circle")),
    ("mvm-live", ("#56B4E9", "diamond")),
    ("process", ("#E69F00", "cross")),
    ("thread", ("#CC79A7", "triangle-down")),
];

/// Marks for other kinds, and for the second and further platforms of a kind.
const OTHERS: [Mark; 10] = [
    ("#E69F00", "triangle-down"),
    ("#56B4E9", "cross"),
    ("#8C6BB1", "triangle-right"),
    ("#7F7F7F", "triangle-left"),
    ("#B22222", "circle"),
    ("#4B7F52", "square"),
    ("#A0522D", "diamond"),
    ("#3B5B92", "cross"),
    ("#C0A000", "triangle-up"),
    ("#5F9EA0", "triangle-down"),
];

/// The default mark.
pub const PLAIN: Mark = ("#7F7F7F", "circle");

fn of_kind(kind: &str) -> Option<Mark> {
    let known = KINDS.iter().find(|(known, _)| *known == kind);
    known.map(|(_, mark)| *mark)
}

/// A mark for each platform of one figure, by its kind. The first of a kind has the mark of the kind. Two platforms
/// share a colour only where there are more platforms than colours.
pub fn marks(kinds: &[&str]) -> Vec<Mark> {
    let mut met = HashSet::new();
    let own: Vec<Option<Mark>> = (kinds.iter())
        .map(|kind| {
            if met.insert(*kind) {
                of_kind(kind)
            } else {
                None
            }
        })
        .collect();
    let used: HashSet<&str> = own.iter().flatten().map(|(color, _)| *color).collect();
    let spare = |mark: &&Mark| !used.contains(mark.0);
    // Colours repeat when all are used.
    let mut others = (OTHERS.iter().filter(spare)).chain(OTHERS.iter().cycle());
    (own.into_iter())
        .map(|own| own.or_else(|| others.next().copied()).unwrap_or(PLAIN))
        .collect()
}

/// The mark of the curve at this place, for curves that the platform alone does not distinguish.
pub fn mark_of_curve(place: usize) -> Mark {
    let first = KINDS.iter().take(4).map(|(_, mark)| *mark);
    let mut marks = first.chain(OTHERS).cycle();
    marks.nth(place % (4 + OTHERS.len())).unwrap_or(PLAIN)
}

/// The noun for a platform, from its kind and its trials' environment.
pub fn noun(treatment: &Treatment, environment: &BTreeMap<String, String>) -> String {
    let fact = |key: &str| environment.get(key).map(String::as_str);
    match treatment.kind() {
        "native" => "bare metal".to_owned(),
        "container" => "a container".to_owned(),
        "qemu" => match fact("accel") {
            Some("tcg") => "a VM (QEMU, TCG emulation)".to_owned(),
            Some("kvm") => "a VM (QEMU, KVM)".to_owned(),
            Some(other) => format!("a VM (QEMU, {other})"),
            None => "a VM (QEMU)".to_owned(),
        },
        "cloud-hypervisor" => "a VM (Cloud Hypervisor)".to_owned(),
        "firecracker" => "a VM (Firecracker)".to_owned(),
        "xen" => match fact("xen.kind") {
            Some("hvm") => "a Xen domain (HVM)".to_owned(),
            Some("pvh") => "a Xen domain (PVH)".to_owned(),
            Some("pv") => "a Xen domain (PV)".to_owned(),
            _ => "a Xen domain".to_owned(),
        },
        _ => treatment.platform.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colors(kinds: &[&str]) -> Vec<&'static str> {
        let marks = marks(kinds);
        marks.into_iter().map(|(color, _)| color).collect()
    }

    #[test]
    fn a_kind_looks_the_same_whatever_is_beside_it() {
        for (kind, mark) in KINDS {
            assert_eq!(
                marks(&["unheard-of", kind, "unheard-of"]).get(1),
                Some(&mark)
            );
        }
    }

    #[test]
    fn kinds_that_are_not_known_have_colours_that_nothing_beside_them_has() {
        let kinds = [
            "new",
            "native",
            "process",
            "newer",
            "qemu",
            "qemu",
            "firecracker",
            "native",
        ];
        let colors = colors(&kinds);
        let distinct: HashSet<&str> = colors.iter().copied().collect();
        assert_eq!(distinct.len(), kinds.len(), "{colors:?}");
    }

    #[test]
    fn more_than_there_are_colours_are_drawn_all_the_same() {
        let many = vec!["qemu"; 50];
        assert_eq!(marks(&many).len(), 50);
    }

    #[test]
    fn a_kind_that_is_not_known_is_called_as_the_plan_calls_it() {
        let treatment: Treatment = serde_json::from_value(serde_json::json!({
            "label": "mine · idle", "platform": "mine", "workload": "idle", "factors": {},
            "baseline": null, "platform_kind": "unheard-of", "workload_kind": "idle"
        }))
        .unwrap();
        assert_eq!(noun(&treatment, &BTreeMap::new()), "mine");
    }
}
