// SPDX-License-Identifier: Apache-2.0
//! The switch between the ports of a cell: its kinds, the shell lines that create it and attach devices, and its
//! requirements on the host.

use super::cgroup::Group;
use crate::HostError;
use crate::command::{need_program, quoted};
use crate::settings::{Domain, Parameter, Settings};
use std::path::Path;
use std::process::{Command, Stdio};

/// The parameter that selects the switch.
pub(super) const KIND: Parameter = Parameter::new("link.switch", Domain::Choice(&["bridge", "openvswitch", "none"]), "bridge").help("what is between the ports: Linux's bridge, Open vSwitch in the kernel, or nothing, where a VM's tap is its client's device");

/// The directory of Open vSwitch's sockets and database, in the cell's own `/run`.
const DIRECTORY: &str = "/run/openvswitch";
/// The schema of its database, as every distribution installs it.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// The `ovs-vsctl` command for that database. The set-up fails if the daemon does not answer in time.
const CONTROL: &str = "ovs-vsctl --db=unix:/run/openvswitch/db.sock --timeout=20";
const PACKAGE: &str = "openvswitch-switch";

/// The connection between the ports of a cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Switch {
    /// Linux's bridge.
    #[default]
    Bridge,
    /// Open vSwitch with the kernel's data path.
    OpenVswitch,
    /// No switch: a VM's tap is its client's device.
    None,
}

impl Switch {
    pub(super) fn from_settings(settings: &Settings) -> Result<Self, HostError> {
        match KIND.text(settings) {
            "bridge" => Ok(Self::Bridge),
            "openvswitch" => Ok(Self::OpenVswitch),
            "none" => Ok(Self::None),
            other => Err(KIND.unknown(other)),
        }
    }

    /// Whether the switch has processes of its own, which run in a separate control group.
    pub(super) fn has_daemons(self) -> bool {
        self == Self::OpenVswitch
    }

    /// The shell lines that start its processes in that group. The processes run in the namespaces of the shell, are
    /// independent of the host's own Open vSwitch, and do not write to the host's log.
    pub(super) fn start(group: &Group) -> String {
        let entrances: String = group
            .entrances()
            .iter()
            .map(|path| format!(" {}", quoted(&path.to_string_lossy())))
            .collect();
        format!(
            "mkdir {DIRECTORY}
(
for entrance in{entrances}; do echo 0 > \"$entrance\"; done
export OVS_RUNDIR={DIRECTORY} OVS_DBDIR={DIRECTORY} OVS_LOGDIR={DIRECTORY} OVS_SYSCONFDIR={DIRECTORY}
cd {DIRECTORY}
quiet='-vsyslog:off -vfile:off -vconsole:warn --no-chdir --detach'
ovsdb-tool -vsyslog:off create conf.db {SCHEMA}
ovsdb-server conf.db --remote=punix:db.sock --unixctl=db.ctl --pidfile=db.pid $quiet
{CONTROL} --no-wait init
ovs-vswitchd unix:db.sock --unixctl=switch.ctl --pidfile=switch.pid $quiet
)
"
        )
    }

    /// The shell lines that create a bridge of this kind.
    pub(super) fn bridge(self, name: &str, mac: &str, mtu: u32) -> String {
        match self {
            Self::Bridge => format!(
                "ip -batch - <<'END'
link add {name} address {mac} mtu {mtu} type bridge mcast_snooping 0
link set {name} addrgenmode none up
END
"
            ),
            Self::OpenVswitch => format!(
                "{CONTROL} add-br {name} -- set bridge {name} datapath_type=system 'other-config:hwaddr=\"{mac}\"' -- set interface {name} mtu_request={mtu}
ip link set {name} addrgenmode none up
"
            ),
            Self::None => String::new(),
        }
    }

    /// The argument of `ip link set` that makes a device a port; empty where `ip` cannot do it.
    pub(super) fn master(self, bridge: &str) -> String {
        match self {
            Self::Bridge => format!(" master {bridge}"),
            Self::OpenVswitch | Self::None => String::new(),
        }
    }

    /// The shell lines that make a device a port, where `ip` cannot do it.
    pub(super) fn plug(self, device: &str, bridge: &str) -> String {
        match self {
            // By default Open vSwitch removes the queueing disciplines of its ports, so the port gets a `linux-noop`
            // QoS. ovs-vsctl succeeds even where a device cannot be a port, so the last line checks it. Its output is
            // discarded.
            Self::OpenVswitch => format!(
                "{CONTROL} add-port {bridge} {device} -- --id=@ours create qos type=linux-noop -- set port {device} qos=@ours >/dev/null
ip -o link show dev {device} master ovs-system | grep -q .
"
            ),
            Self::Bridge | Self::None => String::new(),
        }
    }

    /// Checks that this host has the switch.
    pub(super) fn check(self) -> Result<(), HostError> {
        if self != Self::OpenVswitch {
            return Ok(());
        }
        for program in ["ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl"] {
            need_program(program, PACKAGE)?;
        }
        if !Path::new(SCHEMA).exists() {
            return Err(HostError::Missing {
                what: format!("{SCHEMA}, which a database of Open vSwitch is made from,"),
                remedy: format!("install the Debian package {PACKAGE}"),
            });
        }
        if !has_datapath() {
            return Err(HostError::Missing {
                what: "Open vSwitch in the kernel (CONFIG_OPENVSWITCH)".to_owned(),
                remedy: "`modprobe openvswitch` shows whether it is built as a module; or run the plan in an emulated host \
                         that has it: --place testbed:kvm. Its data path in user space is another switch, and none takes its place"
                    .to_owned(),
            });
        }
        Ok(())
    }
}

/// Whether the kernel supports Open vSwitch; the query loads the module.
fn has_datapath() -> bool {
    Command::new("genl")
        .args(["ctrl", "get", "name", "ovs_datapath"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Level;

    fn switch(word: &str) -> Result<Switch, HostError> {
        let level = Level::Text(word.to_owned());
        Switch::from_settings(&Settings([(KIND.key.to_owned(), level)].into()))
    }

    #[test]
    fn every_switch_has_its_word_and_another_is_refused_by_key() {
        assert_eq!(
            Switch::from_settings(&Settings::default()).unwrap(),
            Switch::Bridge
        );
        assert_eq!(switch("openvswitch").unwrap(), Switch::OpenVswitch);
        assert_eq!(switch("none").unwrap(), Switch::None);
        let message = switch("hub").unwrap_err().to_string();
        assert!(message.contains("link.switch"), "{message}");
    }

    #[test]
    fn open_vswitch_is_in_a_group_of_its_own_and_leaves_queueing_to_us() {
        let group = Group::at(vec!["/sys/fs/cgroup/it's/switch".into()]);
        let start = Switch::start(&group);
        let entrance = r"for entrance in '/sys/fs/cgroup/it'\''s/switch/cgroup.procs'; do";
        assert!(start.contains(entrance), "{start}");
        let plug = Switch::OpenVswitch.plug("tap0", "br0");
        assert!(plug.contains("add-port br0 tap0"), "{plug}");
        assert!(plug.contains("type=linux-noop"), "{plug}");
    }
}
