// SPDX-License-Identifier: Apache-2.0
//! The facts of `host.json` that decide how fast a host is, and the differences of two hosts in them.

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A fact that decides speed.
pub(super) struct Fact {
    /// JSON pointer into `host.json`.
    pub(super) path: &'static str,
    /// Its name in messages.
    pub(super) name: &'static str,
    /// What a difference in it means.
    pub(super) weight: Weight,
}

/// What a difference in a fact means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    /// Costs of the two hosts are not comparable, and blocks of the two are never merged.
    Decides,
    /// Costs may differ by it, and blocks of the two are never merged.
    Kind,
    /// Costs may differ by it.
    Tells,
}

const fn fact(path: &'static str, name: &'static str, weight: Weight) -> Fact {
    Fact { path, name, weight }
}

/// The facts, by their weight.
pub(super) const FACTS: [Fact; 18] = [
    fact("/cpu/model", "processor", Weight::Decides),
    fact("/virtualization", "VMs run on", Weight::Decides),
    fact("/hypervisor", "runs under", Weight::Decides),
    fact("/kernel", "kernel", Weight::Decides),
    fact("/cpu/threads", "logical CPUs", Weight::Kind),
    fact("/cpu/sockets", "sockets", Weight::Tells),
    fact("/frequency_driver", "frequency driver", Weight::Kind),
    fact("/governors", "governor", Weight::Kind),
    fact("/turbo", "turbo", Weight::Kind),
    fact("/smt", "multithreading", Weight::Kind),
    fact("/cpu/microcode", "microcode", Weight::Tells),
    fact("/mitigations", "mitigations", Weight::Tells),
    fact("/kernel_command_line", "kernel command line", Weight::Tells),
    fact("/cpu_quota", "processor quota of the group", Weight::Tells),
    fact("/memory_bytes", "memory in bytes", Weight::Tells),
    fact(
        "/transparent_hugepages",
        "transparent huge pages",
        Weight::Tells,
    ),
    fact("/clock_source", "clock source", Weight::Tells),
    fact("/vtax", "vtax", Weight::Tells),
];

/// The text of a known fact.
pub(super) fn text(host: &Value, path: &str) -> Option<String> {
    match host.pointer(path)? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// A fact in which two hosts differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostDifference {
    /// The fact's name.
    pub fact: String,
    /// Its value on the first host; `None` where unknown.
    pub first: Option<String>,
    /// On the other one.
    pub other: Option<String>,
    /// Whether costs of the two are not comparable. Of an unknown fact that is not known.
    pub decides: bool,
}

impl HostDifference {
    /// `processor: A and B`; long values, such as those of mitigations, by name only.
    pub fn in_words(&self) -> String {
        const LONGEST: usize = 48;
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
        let (first, other) = (value(&self.first), value(&self.other));
        if first.len().max(other.len()) > LONGEST {
            return self.fact.clone();
        }
        format!("{}: {first} and {other}", self.fact)
    }
}

/// The differences of two hosts by their weight; programs' versions last. Empty where the facts of one are unknown.
pub fn host_differences(first: &Value, other: &Value) -> Vec<HostDifference> {
    let is_known = |host: &Value| host.as_object().is_some_and(|facts| !facts.is_empty());
    if !is_known(first) || !is_known(other) {
        return Vec::new();
    }
    let facts = FACTS.iter().map(|fact| {
        let values = [first, other].map(|host| text(host, fact.path));
        (fact.name.to_owned(), values, fact.weight == Weight::Decides)
    });
    let programs = |host: &Value| -> BTreeMap<String, String> {
        let own = host.pointer("/programs").and_then(Value::as_object);
        let own = own.into_iter().flatten();
        own.filter_map(|(name, version)| Some((name.clone(), version.as_str()?.to_owned())))
            .collect()
    };
    let (mine, theirs) = (programs(first), programs(other));
    // A program that one of the hosts lacks did not run there.
    let shared = mine.into_iter().filter_map(|(name, version)| {
        let other = theirs.get(&name)?.clone();
        Some((name, [Some(version), Some(other)], false))
    });
    let all = facts.chain(shared);
    all.filter(|(_, [first, other], _)| first != other)
        .map(|(fact, [first, other], decides)| HostDifference {
            decides: decides && first.is_some() && other.is_some(),
            fact,
            first,
            other,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn differences_are_told_by_weight_and_an_unknown_fact_decides_nothing() {
        let first = json!({"cpu": {"model": "EPYC", "threads": 2}, "kernel": "6.18", "hypervisor": "kvm",
            "mitigations": {"a": "x".repeat(60)}, "programs": {"runc": "1.1", "ip": "6"}, "vtax": "0.1"});
        let other = json!({"cpu": {"model": "Atom", "threads": 2}, "kernel": "6.18",
            "mitigations": {"a": "none"}, "programs": {"runc": "1.2"}, "vtax": "0.1"});
        let found = host_differences(&first, &other);
        let words: Vec<String> = found.iter().map(HostDifference::in_words).collect();
        assert_eq!(
            words,
            [
                "processor: EPYC and Atom",
                "runs under: kvm and unknown",
                "mitigations",
                "runc: 1.1 and 1.2"
            ]
        );
        let decides: Vec<bool> = found.iter().map(|one| one.decides).collect();
        assert_eq!(decides, [true, false, false, false]);
        assert_eq!(host_differences(&first, &first), []);
        assert_eq!(host_differences(&first, &Value::Null), []);
        assert_eq!(host_differences(&json!({}), &other), []);
    }
}
