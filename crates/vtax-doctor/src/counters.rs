//! Hardware counters, VM exits and BPF, opened as a run opens them.

use super::{Answer, Counters, Finding, Options, Topic};
use vtax_host::Roots;

const ASKED: [(&str, Counters, &str); 3] = [
    (
        "hardware counters",
        Counters::Hardware,
        "inside a VM its hypervisor must offer a virtual PMU; cycles and cache misses are left out",
    ),
    (
        "VM exits",
        Counters::KvmExits,
        "VM exits are not told by reason without",
    ),
    (
        "BPF with BTF",
        Counters::Traced,
        "needs CAP_BPF and CAP_PERFMON, and a kernel with CONFIG_DEBUG_INFO_BTF; charge-back counts instead",
    ),
];

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let finding = |(name, counters, without): (&str, Counters, &str)| match options
        .probes
        .counters(counters, roots)
    {
        Ok(seen) => Finding::new(Topic::Counters, name, Answer::Yes, seen),
        Err(error) => {
            Finding::new(Topic::Counters, name, Answer::No, error.to_string()).remedy(without)
        }
    };
    ASKED.map(finding).to_vec()
}
