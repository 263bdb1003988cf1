//! Xen: whether this host is the Dom0 of a hypervisor, and whether its toolstack answers.

use super::{Answer, Finding, Options, Topic};
use std::time::Duration;
use vtax_guest::platform::xen::is_control_domain;
use vtax_host::Roots;

pub(super) const XEN: &str = "Xen";

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    vec![xen(roots, options)]
}

fn xen(roots: &Roots, options: &Options) -> Finding {
    let finding = |answer, evidence: String| Finding::new(Topic::Kvm, XEN, answer, evidence);
    if roots.sys_text("hypervisor/type").as_deref() != Some("xen") {
        return finding(Answer::No, "this kernel does not run on Xen".to_owned()).remedy(
            "only for the platform xen: boot the hypervisor (Debian package xen-system-amd64), or \
             run the plan in an emulated one: --at testbed:xen",
        );
    }
    if !is_control_domain(&roots.proc) {
        return finding(
            Answer::No,
            "this host is a guest of Xen, not its Dom0 (/proc/xen/capabilities)".to_owned(),
        )
        .remedy("in a Dom0: mount -t xenfs xenfs /proc/xen");
    }
    let version = ["major", "minor"]
        .map(|part| {
            roots
                .sys_text(&format!("hypervisor/version/{part}"))
                .unwrap_or_else(|| "?".to_owned())
        })
        .join(".");
    let Some(xl) = roots.program("xl") else {
        return finding(
            Answer::No,
            format!("this host is the Dom0 of Xen {version}; xl is not installed"),
        )
        .remedy(format!("apt-get install xen-utils-{version}"))
        .package(&format!("xen-utils-{version}"));
    };
    // It asks the hypervisor and the store, as every creation of a domain does.
    match options.probes.run(&xl, &["list"], Duration::from_secs(20)) {
        Ok(output) if output.success => {
            let domains = output.stdout.lines().skip(1).count();
            finding(
                Answer::Yes,
                format!("this host is the Dom0 of Xen {version}; xl lists {domains} domains"),
            )
        }
        Ok(output) => finding(
            Answer::No,
            format!(
                "this host is the Dom0 of Xen {version}, but xl fails: {}",
                output.last_words()
            ),
        )
        .remedy("start the toolstack's daemons: service xen start"),
        Err(cause) => finding(
            Answer::No,
            format!(
                "this host is the Dom0 of Xen {version}, but xl does not end: {}",
                super::reason(&cause)
            ),
        )
        .remedy("is xenstored running? service xen restart"),
    }
}
