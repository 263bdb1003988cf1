// SPDX-License-Identifier: Apache-2.0
//! Existing guests and other hosts, which plans reach by libvirt, ssh and the API of a pool, and the emulated hosts of
//! `--place testbed:…`.

use super::{Finding, Options, Subject, Topic};
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

fn libvirt(options: &Options) -> Finding {
    const LIBVIRT: Subject = Subject(Topic::Places, "libvirt");
    match options.probes.libvirt() {
        Ok(seen) => LIBVIRT.yes(seen),
        Err(error) => LIBVIRT.refused(&error),
    }
}

/// The findings for `ssh` and `xenapi`. A pool's guests are listed over HTTPS and entered by ssh.
fn by_ssh(roots: &Roots, options: &Options) -> Vec<Finding> {
    let subjects = ["ssh", "xenapi"].map(|name| Subject(Topic::Places, name));
    let Some(path) = roots.program("ssh") else {
        let (seen, remedy) = (
            "the program ssh is not installed",
            "apt-get install openssh-client",
        );
        return subjects.map(|subject| subject.no(seen, remedy)).to_vec();
    };
    let [ssh, xenapi] = subjects;
    let seen = version(roots, "ssh", "-V").unwrap_or_else(|| path.display().to_string());
    let keys = options.probes.ssh_keys();
    let agent = match keys.agent {
        None => "no agent".to_owned(),
        Some(count) => format!("an agent with {}", counted(count, "key")),
    };
    let seen = format!("{seen}; {} in ~/.ssh, {agent}", counted(keys.files, "key"));
    let ssh = match keys.files + keys.agent.unwrap_or_default() {
        0 => ssh.partly(
            seen,
            "a login must work without a question: ssh-keygen, then ssh-copy-id root@GUEST; or ssh.key in the plan",
        ),
        _ => ssh.yes(format!("{seen}; no guest was tried")),
    };
    let variable = xenapi::LOGIN;
    let login = match std::env::var_os(variable) {
        Some(_) => "is set",
        None => "is not set: xenapi.login in the plan names a file",
    };
    let pools = format!(
        "pools of XenServer and XCP-ng, by HTTPS and ssh; {variable} {login}; `vtax run --dry-run PLAN` asks the \
         pool of a plan"
    );
    vec![ssh, xenapi.yes(pools)]
}

/// The container engines whose images and containers a plan can take.
const ENGINES: [&str; 2] = ["podman", "docker"];

fn engine(name: &'static str, roots: &Roots, options: &Options) -> Finding {
    let subject = Subject(Topic::Places, name);
    if roots.program(name).is_none() {
        let remedy = "optional: images of plans can be files and directories too";
        return subject.no("not installed", remedy);
    }
    match options.probes.engine(name) {
        Ok(version) => subject.yes(version),
        Err(error) => subject.no(
            error.to_string(),
            "its daemon must run, and this user must be allowed to ask it",
        ),
    }
}

fn testbed(name: &'static str, options: &Options) -> Finding {
    let subject = Subject(Topic::Places, name);
    match options.probes.testbed(name) {
        Ok(seen) => subject.yes(seen),
        Err(error @ HostError::Missing { .. }) => subject.refused(&error),
        Err(error) => {
            let kind = name.trim_start_matches("testbed:");
            subject.no(error.to_string(), format!("vtax testbed build {kind}"))
        }
    }
}
