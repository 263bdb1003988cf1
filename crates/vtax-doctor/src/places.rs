//! Existing guests and other hosts, which plans reach by libvirt, ssh and the API of a pool, and the emulated hosts of
//! `--at testbed:…`.

use super::{Answer, Finding, Options, Topic};
use vtax_host::facts::version;
use vtax_host::{HostError, Roots};

/// The emulated hosts, as values of `--at`.
pub(super) const TESTBEDS: [&str; 2] = ["testbed:kvm", "testbed:xen"];

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let mut findings = vec![libvirt(options)];
    findings.extend(by_ssh(roots));
    findings.extend(TESTBEDS.map(|name| testbed(name, options)));
    findings
}

fn finding(name: &str, answer: Answer, evidence: impl Into<String>) -> Finding {
    Finding::new(Topic::Places, name, answer, evidence)
}

fn libvirt(options: &Options) -> Finding {
    match options.probes.libvirt() {
        Ok(seen) => finding("libvirt", Answer::Yes, seen),
        Err(error) => Finding::refused(Topic::Places, "libvirt", &error),
    }
}

/// The findings for `ssh` and `xenapi`. A pool's guests are listed over HTTPS and entered by ssh.
fn by_ssh(roots: &Roots) -> Vec<Finding> {
    let Some(seen) = roots
        .program("ssh")
        .map(|path| version(roots, "ssh", "-V").unwrap_or_else(|| path.display().to_string()))
    else {
        return ["ssh", "xenapi"]
            .map(|name| {
                finding(name, Answer::No, "the program ssh is not installed")
                    .remedy("apt-get install openssh-client")
            })
            .to_vec();
    };
    vec![
        finding(
            "ssh",
            Answer::Yes,
            format!("{seen}; which hosts it reaches was not tried"),
        ),
        finding(
            "xenapi",
            Answer::Yes,
            "pools of XenServer and XCP-ng, by HTTPS and ssh; none was asked",
        ),
    ]
}

fn testbed(name: &str, options: &Options) -> Finding {
    match options.probes.testbed(name) {
        Ok(seen) => finding(name, Answer::Yes, seen),
        Err(error @ HostError::Missing { .. }) => Finding::refused(Topic::Places, name, &error),
        Err(error) => finding(name, Answer::No, error.to_string()).remedy(format!(
            "vtax testbed build {}",
            name.trim_start_matches("testbed:")
        )),
    }
}
