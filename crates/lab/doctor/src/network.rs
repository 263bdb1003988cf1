// SPDX-License-Identifier: Apache-2.0
//! Virtual networks: cells are made and destroyed, plain and with each link emulation.

use super::{Answer, Finding, Options, Topic};
use vtax_host::Roots;
use vtax_host::cell::{LinkConfig, Switch};

pub(super) const CELL: &str = "cell";

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let plain = LinkConfig::default();
    let made =
        |name: &str, link: LinkConfig, what: &str, without: &str| match options.probes.cell(link) {
            Ok(()) => Finding::new(
                Topic::Network,
                name,
                Answer::Yes,
                format!("{what}: made and destroyed"),
            ),
            Err(error) => {
                let finding = Finding::refused(Topic::Network, name, &error);
                match finding.remedy {
                    Some(_) => finding,
                    None => finding.remedy(without),
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
        findings.push(made(
            "link rate",
            LinkConfig {
                rate_mbit: Some(100.0),
                ..plain.clone()
            },
            "a cell with tc tbf",
            "modprobe sch_tbf (CONFIG_NET_SCH_TBF); plans cannot set link.rate_mbit without",
        ));
        findings.push(made(
            "link delay",
            LinkConfig {
                delay_us: 1000,
                ..plain.clone()
            },
            "a cell with tc netem",
            "modprobe sch_netem (CONFIG_NET_SCH_NETEM); plans cannot set link.delay_us without",
        ));
        findings.push(made(
            "Open vSwitch",
            LinkConfig {
                switch: Switch::OpenVswitch,
                ..plain
            },
            "a cell with Open vSwitch in the bridge's place",
            "plans cannot set link.switch = \"openvswitch\" without",
        ));
    }
    findings.push(vhost(roots, options));
    findings
}

fn vhost(roots: &Roots, options: &Options) -> Finding {
    let finding = |answer, seen: &str| Finding::new(Topic::Network, "vhost-net", answer, seen);
    match options.probes.open_device(&roots.dev.join("vhost-net")) {
        Ok(()) => finding(Answer::Yes, "/dev/vhost-net opens"),
        Err(cause) => finding(
            Answer::No,
            &format!("/dev/vhost-net does not open: {}", super::reason(&cause)),
        )
        .remedy("as root: modprobe vhost_net (CONFIG_VHOST_NET); plans use another nic.backend"),
    }
}
