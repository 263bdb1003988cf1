// SPDX-License-Identifier: Apache-2.0
//! Existing guests and other hosts, which plans reach by libvirt, ssh and the API of a pool, and the emulated hosts of
//! `--place testbed:…`.

use super::{Answer, Finding, Options, Topic};
use vtax_core::counted;
use vtax_host::facts::version;
use vtax_host::{HostError, Roots, xenapi};

/// The emulated hosts, as values of `--place`.
pub(super) const TESTBEDS: [&str; 2] = ["testbed:kvm", "testbed:xen"];

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let mut findings = vec![libvirt(options)];
    findings.extend(by_ssh(roots, options));
    findings.extend(ENGINES.map(|name| engine(name, roots, options)));
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
fn by_ssh(roots: &Roots, options: &Options) -> Vec<Finding> {
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
    let keys = options.probes.ssh_keys();
    let agent = match keys.agent {
        None => "no agent".to_owned(),
        Some(count) => format!("an agent with {}", counted(count, "key")),
    };
    let seen = format!("{seen}; {} in ~/.ssh, {agent}", counted(keys.files, "key"));
    let ssh = match keys.files + keys.agent.unwrap_or_default() {
        0 => finding("ssh", Answer::Partly, seen).remedy(
            "a login must work without a question: ssh-keygen, then ssh-copy-id root@GUEST; or ssh.key in the plan",
        ),
        _ => finding("ssh", Answer::Yes, format!("{seen}; no guest was tried")),
    };
    let login = match std::env::var_os(xenapi::LOGIN) {
        Some(_) => "is set",
        None => "is not set: xenapi.login in the plan names a file",
    };
    vec![
        ssh,
        finding(
            "xenapi",
            Answer::Yes,
            format!(
                "pools of XenServer and XCP-ng, by HTTPS and ssh; {} {login}; `vtax run --dry-run PLAN` asks the \
                 pool of a plan",
                xenapi::LOGIN
            ),
        ),
    ]
}

/// The container engines whose images and containers a plan can take.
const ENGINES: [&str; 2] = ["podman", "docker"];

fn engine(name: &'static str, roots: &Roots, options: &Options) -> Finding {
    if roots.program(name).is_none() {
        return finding(name, Answer::No, "not installed")
            .remedy("optional: images of plans can be files and directories too");
    }
    match options.probes.engine(name) {
        Ok(version) => finding(name, Answer::Yes, version),
        Err(error) => finding(name, Answer::No, error.to_string())
            .remedy("its daemon must run, and this user must be allowed to ask it"),
    }
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
