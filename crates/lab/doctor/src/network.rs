// SPDX-License-Identifier: Apache-2.0
//! Virtual networks: cells are made and destroyed, plain and with each link emulation.

use super::{Answer, Finding, Options, Subject, Topic};
use vtax_host::Roots;
use vtax_host::cell::{LinkConfig, Switch};

pub(super) const CELL: &str = "cell";

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let plain = LinkConfig::default();
    let made = |name, link: LinkConfig, what: &str, without: &str| {
        let subject = Subject(Topic::Network, name);
        match options.probes.cell(link) {
            Ok(()) => subject.yes(format!("{what}: made and destroyed")),
            Err(error) => {
                let finding = subject.refused(&error);
                let remedy = finding.remedy.clone();
                finding.remedy(remedy.unwrap_or_else(|| without.to_owned()))
            }
        }
    };
    let mut findings = vec![made(
        CELL,
        plain.clone(),
        "namespaces, control groups, bridge, veths and tap",
        "needs root, and a kernel with namespaces, bridge, veth and tun",
    )];
    if findings.iter().all(|cell| cell.answer == Answer::Yes) {
        let mut limited = plain.clone();
        limited.rate_mbit = Some(100.0);
        let mut delayed = plain.clone();
        delayed.delay_us = 1000;
        let mut switched = plain;
        switched.switch = Switch::OpenVswitch;
        findings.push(made(
            "link rate",
            limited,
            "a cell with tc tbf",
            "modprobe sch_tbf (CONFIG_NET_SCH_TBF); plans cannot set link.rate_mbit without",
        ));
        findings.push(made(
            "link delay",
            delayed,
            "a cell with tc netem",
            "modprobe sch_netem (CONFIG_NET_SCH_NETEM); plans cannot set link.delay_us without",
        ));
        findings.push(made(
            "Open vSwitch",
            switched,
            "a cell with Open vSwitch in the bridge's place",
            "plans cannot set link.switch = \"openvswitch\" without",
        ));
    }
    findings.push(vhost(roots, options));
    findings
}

fn vhost(roots: &Roots, options: &Options) -> Finding {
    const VHOST: Subject = Subject(Topic::Network, "vhost-net");
    match options.probes.open_device(&roots.dev.join("vhost-net")) {
        Ok(()) => VHOST.yes("/dev/vhost-net opens"),
        Err(cause) => VHOST.no(
            format!("/dev/vhost-net does not open: {}", super::reason(&cause)),
            "as root: modprobe vhost_net (CONFIG_VHOST_NET); plans use another nic.backend",
        ),
    }
}
