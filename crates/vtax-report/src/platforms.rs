//! What platforms are called and how they are drawn, in every report. A kind that is not known here is
//! called as the plan calls it, and is drawn with a mark that no other has.

use crate::results::Treatment;
use std::collections::{BTreeMap, HashSet};

/// A colour and a symbol.
pub type Mark = (&'static str, &'static str);

/// The marks of kinds, of Okabe and Ito's palette, which readers with any colour vision can tell apart:
/// each kind looks the same in every report.
const KINDS: [(&str, Mark); 10] = [
    ("native", ("#0072B2", "circle")),
    ("container", ("#009E73", "square")),
    ("qemu", ("#D55E00", "triangle-up")),
    ("xen", ("#CC79A7", "diamond")),
    ("firecracker", ("#8C6BB1", "triangle-right")),
    ("cloud-hypervisor", ("#7F7F7F", "triangle-left")),
    // Of the scalability test, which has no native treatments and no domains.
    ("mvm-parked", ("#0072B2", "circle")),
    ("mvm-live", ("#56B4E9", "diamond")),
    ("process", ("#E69F00", "cross")),
    ("thread", ("#CC79A7", "triangle-down")),
];

/// For other kinds, and for what is the second of a kind.
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

/// For what has no mark of its own.
pub const PLAIN: Mark = ("#7F7F7F", "circle");

fn of_kind(kind: &str) -> Option<Mark> {
    let known = KINDS.iter().find(|(known, _)| *known == kind);
    known.map(|(_, mark)| *mark)
}

/// A mark for each of what is drawn together, by its kind. The first of a kind looks like the kind. Two
/// have one colour only where there are more of them than colours.
pub fn marks(kinds: &[&str]) -> Vec<Mark> {
    let mut met = HashSet::new();
    let own: Vec<Option<Mark>> = (kinds.iter())
        .map(|kind| of_kind(kind).filter(|_| met.insert(*kind)))
        .collect();
    let used: HashSet<&str> = own.iter().flatten().map(|(color, _)| *color).collect();
    let spare = |mark: &&Mark| !used.contains(mark.0);
    // Where every colour is used they are used again.
    let mut others = (OTHERS.iter().filter(spare)).chain(OTHERS.iter().cycle());
    (own.into_iter())
        .map(|own| own.or_else(|| others.next().copied()).unwrap_or(PLAIN))
        .collect()
}

/// Marks for curves that are not told apart by their platforms alone.
pub fn mark_of_curve(place: usize) -> Mark {
    let first = KINDS.iter().take(4).map(|(_, mark)| *mark);
    let mut marks = first.chain(OTHERS).cycle();
    marks.nth(place % (4 + OTHERS.len())).unwrap_or(PLAIN)
}

/// What a platform is called in a sentence, from its kind and its trials' environment.
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
