// SPDX-License-Identifier: Apache-2.0
//! A container of systemd-nspawn, in the cell's target network namespace and control group, not managed by systemd.

use super::root::Root;
use super::shared_kernel::{Entrance, SharedKernelTarget, works};
use super::{Booted, CommandLine, GuestFiles, GuestKernel, Means, Platform};
use crate::image::oci::PARAMETER as IMAGE;
use std::fs;
use std::time::Duration;
use vtax_host::HostError;
use vtax_host::cell::{self, Seat, Space};
use vtax_host::command::version_line;
use vtax_host::settings::{Parameter, Settings};

/// The platform `systemd-nspawn`.
#[derive(Debug)]
pub struct Nspawn;

const PROGRAM: &str = "systemd-nspawn";

/// The container's first program, started by nspawn's PID 1. It prints a line when it runs.
const INIT: &str = "echo vtax-ready; while :; do sleep 2147483 & wait; done";

/// Starts the container and waits until its first program runs. Prints the leader's PID in the cell, and the
/// leader's bounding set of capabilities. The leader is PID 1 of the container.
const START: &str = r#"log=$1; shift
"$@" </dev/null >"$log" 2>&1 &
turns=0
until grep -qx vtax-ready "$log"; do
    # Z and X are the states of a process that has ended. Its command line is no sign: it is empty within execve, too.
    grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$!/status" && [ $turns -lt 600 ] || exit 1
    turns=$((turns + 1))
    sleep 0.05
done
read -r leader others < /proc/$!/task/$!/children
echo "$leader"
sed -n 's/^CapBnd:[[:space:]]*//p' "/proc/$leader/status""#;

impl Platform for Nspawn {
    fn kind(&self) -> &'static str {
        PROGRAM
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[IMAGE]
    }

    fn check(&self, settings: &Settings) -> Result<(), HostError> {
        cell::check(settings)?;
        let remedy = "install the Debian package systemd-container; where vtax itself is in a container, that one \
                      must be allowed to mount procfs and control groups";
        works(PROGRAM, "systemd-container", remedy.to_owned(), |seat| {
            boot(seat, &GuestFiles::of_this_host(None, None))
        })
    }

    fn means(&self) -> Means {
        Means::Program(&[PROGRAM])
    }

    fn guest_kernel(&self) -> GuestKernel {
        GuestKernel::Hosts
    }

    fn expected_overhead(&self) -> Duration {
        Duration::from_millis(700)
    }

    fn boot(&self, seat: &Seat, guest: &GuestFiles, _settings: &Settings) -> Booted {
        boot(seat, guest)
    }
}

fn boot(seat: &Seat<'_>, guest: &GuestFiles) -> Booted {
    let device = seat.attach_veth()?;
    let root = Root::mount(seat, guest)?;
    // On v2 nspawn creates groups below its own, which then can have no processes: commands need another group.
    let group = seat.group().below("nspawn")?;
    let (leader, capabilities) = start(seat, &container(&root, &seat.guest_network()), &group)?;
    let entrance = Entrance {
        space: Space::Switch,
        group: seat.group().below("commands")?,
        prefix: way_in(leader, capabilities),
    };
    let facts = [
        ("nspawn.version", version_line(PROGRAM)),
        ("nspawn.seccomp", "none".to_owned()),
        (
            "nspawn.capabilities",
            "systemd-nspawn's defaults".to_owned(),
        ),
    ];
    Ok(Box::new(SharedKernelTarget::new(
        seat, &root, &device, entrance, facts,
    )?))
}

/// The command that runs the container.
fn container(root: &Root, network: &str) -> CommandLine {
    let mut line: CommandLine = [
        PROGRAM,
        "--quiet",
        "--register=no",
        "--keep-unit",
        "--settings=no",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
        "--console=pipe",
        "--as-pid2",
        "--machine=target",
    ]
    .map(str::to_owned)
    .to_vec();
    line.push(format!("--network-namespace-path={network}"));
    line.push(format!("--directory={}", root.path.display()));
    if let Some(scratch) = &root.scratch {
        line.push(format!("--bind={}", scratch.device.display()));
    }
    line.extend(["/bin/sh", "-c", INIT].map(str::to_owned));
    line
}

/// Starts the container. Returns the leader's PID in the cell, and its capabilities.
fn start(
    seat: &Seat<'_>,
    line: &CommandLine,
    group: &cell::cgroup::Group,
) -> Result<(u32, u64), HostError> {
    let inside = seat.run_dir().join("nspawn.log");
    let log = seat.outside(&inside);
    vtax_files::create(&log)?;
    let words = ["sh", "-c", START, "vtax-nspawn"].map(str::to_owned);
    let words = (words.into_iter())
        .chain([inside.display().to_string()])
        .chain(line.iter().cloned())
        .collect();
    let output = seat
        .command_in(Space::Switch, group, &words)
        .output()
        .map_err(HostError::process("start", format!("`{PROGRAM}`")))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    match leader(&printed) {
        Some(leader) if output.status.success() => Ok(leader),
        _ => Err(HostError::Program {
            command: line.join(" "),
            status: output.status.to_string(),
            output: fs::read_to_string(&log).unwrap_or_default()
                + &String::from_utf8_lossy(&output.stderr),
        }),
    }
}

/// Parses the leader and its capabilities from the output of [`START`].
fn leader(printed: &str) -> Option<(u32, u64)> {
    let (leader, capabilities) = printed.trim().split_once('\n')?;
    Some((
        leader.parse().ok()?,
        u64::from_str_radix(capabilities, 16).ok()?,
    ))
}

/// The words that precede a command to run it in the container. The command enters the container's namespaces with
/// the container's capabilities; its outputs are the caller's files.
fn way_in(leader: u32, capabilities: u64) -> CommandLine {
    let held = (0..u64::BITS).filter(|number| capabilities >> number & 1 == 1);
    let bound = held.fold("-all".to_owned(), |list, number| {
        format!("{list},+cap_{number}")
    });
    [
        "setpriv",
        "--bounding-set",
        &bound,
        "--",
        "nsenter",
        &format!("--target={leader}"),
        "--mount",
        "--uts",
        "--ipc",
        "--net",
        "--pid",
        "--",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::super::root::Layer;
    use super::*;
    use std::path::PathBuf;
    use vtax_host::cell::Attached;

    #[test]
    fn a_container_is_in_the_seats_network_on_the_shared_root_with_its_disk() {
        let root = Root {
            path: "/run/seat1/root".into(),
            layer: Layer::Overlay,
            scratch: Some(Attached {
                device: "/dev/loop3".into(),
                directory: PathBuf::from("/scratch"),
                direct: true,
            }),
            has_image: false,
        };
        let line = container(&root, "/run/netns/target1");
        for word in [
            "--network-namespace-path=/run/netns/target1",
            "--directory=/run/seat1/root",
            "--bind=/dev/loop3",
            "--register=no",
            "--keep-unit",
        ] {
            assert!(line.contains(&word.to_owned()), "{word}: {line:?}");
        }
    }

    #[test]
    fn a_command_has_the_containers_namespaces_and_no_more_than_its_capabilities() {
        let way = way_in(17, 0b1001).join(" ");
        assert!(
            way.contains("--bounding-set -all,+cap_0,+cap_3 --"),
            "{way}"
        );
        assert!(way.contains("--target=17 --mount"), "{way}");
    }

    #[test]
    fn only_a_leader_with_its_capabilities_is_taken() {
        assert_eq!(leader("17\n00000000fdecafff\n"), Some((17, 0xfdec_afff)));
        for printed in ["", "17\n", "\n00ff\n", "17\nnone\n"] {
            assert_eq!(leader(printed), None, "{printed:?}");
        }
    }
}
