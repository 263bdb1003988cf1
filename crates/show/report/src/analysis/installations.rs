// SPDX-License-Identifier: Apache-2.0
//! Comparisons of existing guests, which have installations of their own: what differs besides the platform.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use vtax_results::Treatment;

/// A treatment and the facts of its first trial.
#[derive(Debug, Clone, Copy)]
pub(super) struct Installed<'a> {
    pub treatment: &'a Treatment,
    pub environment: &'a BTreeMap<String, String>,
}

/// The fact of a guest that vtax logged into.
const LOGIN: &str = "ssh.to";
/// The fact with the image of a guest that vtax made, as the plan names it.
const IMAGE: &str = "image.source";
/// The facts that are compared: their names in sentences, in the record of an existing guest, and the path in
/// `host.json`.
const FACTS: [(&str, &str, &str); 4] = [
    ("kernel", "guest.kernel", "/kernel"),
    ("distribution", "guest.distribution", ""),
    ("processor model", "guest.cpu", "/cpu/model"),
    ("processors", "guest.processors", "/cpu/threads"),
];
/// The distribution of guests without an image of the plan.
const OWN_IMAGE: &str = "vtax's image";

/// Returns a sentence for each pair of compared platforms of which at least one is an existing guest. `host` is the
/// run's `host.json`.
pub(super) fn sentences(all: &[Installed<'_>], host: &Value) -> Vec<String> {
    let mut named = BTreeSet::new();
    let mut sentences = Vec::new();
    for own in all {
        let label = own.treatment.baseline.as_ref();
        let Some(baseline) = all.iter().find(|one| Some(&one.treatment.label) == label) else {
            continue;
        };
        let platforms = (&own.treatment.platform, &baseline.treatment.platform);
        let is_pair = platforms.0 != platforms.1 && (is_existing(own) || is_existing(baseline));
        if is_pair && named.insert(platforms) {
            sentences.push(sentence(own, baseline, host));
        }
    }
    sentences
}

fn is_existing(installed: &Installed<'_>) -> bool {
    installed.environment.contains_key(LOGIN)
}

/// Returns the known facts of an installation, by their names in sentences.
fn installation(summary: &Installed<'_>, host: &Value) -> BTreeMap<&'static str, String> {
    let shares_kernel = ["native", "container"].contains(&summary.treatment.kind());
    let known = FACTS.iter().filter_map(|(name, of_guest, of_host)| {
        let own = summary.environment.get(*of_guest).cloned();
        let value = match (is_existing(summary), *name) {
            (true, _) => own,
            (false, "distribution") => {
                let image = summary.environment.get(IMAGE);
                Some(image.map_or_else(|| OWN_IMAGE.to_owned(), |image| format!("image {image}")))
            }
            (false, _) if shares_kernel => host.pointer(of_host).map(|value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            }),
            (false, "processors") => summary.treatment.factors.get("vm.vcpus").cloned().or(own),
            (false, _) => own,
        };
        Some((*name, value?))
    });
    known.collect()
}

fn sentence(treatment: &Installed<'_>, baseline: &Installed<'_>, host: &Value) -> String {
    let (mine, theirs) = (installation(treatment, host), installation(baseline, host));
    let differ = FACTS.iter().filter_map(|(name, ..)| {
        let (one, other) = (mine.get(name)?, theirs.get(name)?);
        (one != other).then(|| format!("{name} ({one}; {other})"))
    });
    let differ: Vec<String> = differ.collect();
    let (platform, other) = (&treatment.treatment.platform, &baseline.treatment.platform);
    let what = match differ.as_slice() {
        [] => "no difference of kernel, distribution or processors is known".to_owned(),
        some => format!("they differ in {}", some.join(", ")),
    };
    let compared = format!("Two installations are compared: {platform} and {other}; {what}.");
    let (guest, made) = match (is_existing(treatment), is_existing(baseline)) {
        (true, true) => return compared,
        (true, false) => (platform, baseline),
        (false, _) => (other, treatment),
    };
    let caution = "A difference between them is not the platform's alone.";
    if made.environment.contains_key(IMAGE) {
        return format!("{compared} {caution}");
    }
    format!(
        "{compared} {caution} For a fair pair give {} the root directory of {guest}: image = \"dir:ROOT\", \
         and its service as a command (docs/howto/measure-your-vm.md).",
        made.treatment.platform
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn treatment(platform: &str, kind: &str) -> Treatment {
        Treatment {
            label: format!("{platform} · http-rate"),
            platform: platform.to_owned(),
            workload: "http-rate".to_owned(),
            factors: BTreeMap::new(),
            baseline: (kind != "native").then(|| "native · http-rate".to_owned()),
            platform_kind: kind.to_owned(),
            workload_kind: "http-rate".to_owned(),
        }
    }

    fn facts(facts: &[(&str, &str)]) -> BTreeMap<String, String> {
        let facts = facts.iter();
        facts
            .map(|(name, fact)| ((*name).to_owned(), (*fact).to_owned()))
            .collect()
    }

    fn found(
        guest: (&str, &BTreeMap<String, String>),
        native: &BTreeMap<String, String>,
    ) -> Vec<String> {
        let host = json!({"kernel": "6.12.0", "cpu": {"threads": 2, "model": "Xeon"}});
        let (vm, native_one) = (treatment("vm", guest.0), treatment("native", "native"));
        let all = [
            Installed {
                treatment: &vm,
                environment: guest.1,
            },
            Installed {
                treatment: &vm,
                environment: guest.1,
            },
            Installed {
                treatment: &native_one,
                environment: native,
            },
        ];
        sentences(&all, &host)
    }

    #[test]
    fn bare_metal_beside_an_existing_guest_is_another_installation_and_each_pair_is_named_once() {
        let guest = facts(&[
            (LOGIN, "root@web"),
            ("guest.kernel", "6.1.0"),
            ("guest.distribution", "Debian 12"),
            ("guest.processors", "2"),
        ]);
        let found = found(("ssh", &guest), &BTreeMap::new());
        assert_eq!(found.len(), 1, "{found:?}");
        for part in [
            "Two installations are compared: vm and native",
            "kernel (6.1.0; 6.12.0)",
            "distribution (Debian 12; vtax's image)",
            "give native the root directory of vm",
        ] {
            assert!(found[0].contains(part), "{part}: {found:?}");
        }
        assert!(!found[0].contains("processor"), "{found:?}");
    }

    #[test]
    fn a_baseline_with_an_image_is_named_by_it_and_not_offered_one() {
        let guest = facts(&[(LOGIN, "root@web"), ("guest.distribution", "Debian 12")]);
        let found = found(("libvirt", &guest), &facts(&[(IMAGE, "dir:/srv/web")]));
        assert!(
            found[0].contains("(Debian 12; image dir:/srv/web)"),
            "{found:?}"
        );
        assert!(!found[0].contains("For a fair pair"), "{found:?}");
    }

    #[test]
    fn platforms_that_vtax_makes_are_not_mentioned() {
        assert_eq!(
            found(("qemu", &BTreeMap::new()), &BTreeMap::new()),
            Vec::<String>::new()
        );
    }
}
