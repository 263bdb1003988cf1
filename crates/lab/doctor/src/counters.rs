// SPDX-License-Identifier: Apache-2.0
//! Hardware counters, VM exits and BPF, opened as in a run, and the kernel's accounting of interrupt time.

use super::{Counters, Finding, Options, Subject, Topic};
use vtax_charge::IrqAccounting;
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
        "VM exits are not counted by reason without",
    ),
    (
        "BPF with BTF",
        Counters::Traced,
        "needs CAP_BPF and CAP_PERFMON, and a kernel with CONFIG_DEBUG_INFO_BTF; charge-back counts instead",
    ),
];

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let finding = |(name, counters, without)| {
        let subject = Subject(Topic::Counters, name);
        match options.probes.counters(counters, roots) {
            Ok(seen) => subject.yes(seen),
            Err(error) => subject.no(error.to_string(), without),
        }
    };
    let mut findings = ASKED.map(finding).to_vec();
    findings.push(interrupt_time(IrqAccounting::detect(roots)));
    findings
}

/// The kernel's accounting of interrupt time, which only charge-back by counting uses.
fn interrupt_time(accounting: IrqAccounting) -> Finding {
    const TIME: Subject = Subject(Topic::Counters, "interrupt time");
    if accounting.is_by_clock() {
        return TIME.yes(accounting.to_string());
    }
    TIME.partly(
        accounting.to_string(),
        "charge-back that counts estimates soft interrupts and states its error; a kernel built with \
         CONFIG_IRQ_TIME_ACCOUNTING=y accounts them exactly, and charge-back that traces needs neither",
    )
}
