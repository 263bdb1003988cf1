//! Virtual networks: every kind of device and queueing discipline that a cell uses is really
//! created, in a network namespace of its own that ends with the probe.

use super::{Answer, Finding, Options, Topic};
use std::collections::BTreeMap;
use std::time::Duration;
use vtax_host::Roots;

pub(super) const NAMESPACE: &str = "network namespace";
pub(super) const BRIDGE: &str = "bridge";
pub(super) const VETH: &str = "veth";
pub(super) const TAP: &str = "tap";

/// Tries one thing a line and prints `NAME yes` or `NAME no REASON`. `tc` needs the devices.
const SCRIPT: &str = "\
try() { name=$1; shift
  if said=$(\"$@\" 2>&1); then echo \"$name yes\"; else echo \"$name no\" $said; fi; }
echo netns yes
try bridge ip link add vtaxbridge type bridge
try veth ip link add vtaxveth0 type veth peer name vtaxveth1
try tap ip tuntap add dev vtaxtap mode tap
try tbf tc qdisc add dev vtaxveth0 root tbf rate 100mbit burst 32kb latency 50ms
try netem tc qdisc add dev vtaxveth1 root netem delay 1ms
";

/// What was tried, what it is called in the report, and what the kernel needs for it.
const TRIED: [(&str, &str, &str); 6] = [
    (
        "netns",
        NAMESPACE,
        "CONFIG_NET_NS, and CAP_SYS_ADMIN: run as root",
    ),
    (
        "bridge",
        BRIDGE,
        "modprobe bridge (CONFIG_BRIDGE), and CAP_NET_ADMIN",
    ),
    (
        "veth",
        VETH,
        "modprobe veth (CONFIG_VETH), and CAP_NET_ADMIN",
    ),
    (
        "tap",
        TAP,
        "modprobe tun (CONFIG_TUN), /dev/net/tun and CAP_NET_ADMIN",
    ),
    (
        "tbf",
        "tc tbf",
        "modprobe sch_tbf (CONFIG_NET_SCH_TBF); plans cannot set link.rate_mbit without",
    ),
    (
        "netem",
        "tc netem",
        "modprobe sch_netem (CONFIG_NET_SCH_NETEM); plans cannot set link.delay_us without",
    ),
];

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let mut findings: Vec<Finding> = match attempt(roots, options) {
        Ok(answers) => TRIED
            .iter()
            .map(|(key, name, needs)| {
                let finding =
                    |answer, evidence: &str| Finding::new(Topic::Network, name, answer, evidence);
                match answers.get(*key) {
                    Some(Ok(())) => finding(Answer::Yes, "created and removed"),
                    Some(Err(why)) => finding(Answer::No, why).remedy(format!("needs {needs}")),
                    None => finding(Answer::No, "the probe did not get this far")
                        .remedy(format!("needs {needs}")),
                }
            })
            .collect(),
        Err((why, remedy, package)) => TRIED
            .iter()
            .map(|(_, name, _)| {
                let finding =
                    |evidence: &str| Finding::new(Topic::Network, name, Answer::No, evidence);
                if *name != NAMESPACE {
                    return finding("not tried").remedy(format!("see {NAMESPACE}"));
                }
                let finding = finding(&why).remedy(remedy.clone());
                match package {
                    Some(package) => finding.package(package),
                    None => finding,
                }
            })
            .collect(),
    };
    findings.push(vhost(roots, options));
    findings
}

type Answers = BTreeMap<String, Result<(), String>>;

fn attempt(
    roots: &Roots,
    options: &Options,
) -> Result<Answers, (String, String, Option<&'static str>)> {
    for (program, package) in [
        ("unshare", "util-linux"),
        ("ip", "iproute2"),
        ("tc", "iproute2"),
    ] {
        if roots.program(program).is_none() {
            let why = format!("{program} is not installed");
            return Err((why, format!("apt-get install {package}"), Some(package)));
        }
    }
    let Some(unshare) = roots.program("unshare") else {
        return Ok(Answers::new());
    };
    let root = || "run as root: network namespaces need CAP_SYS_ADMIN".to_owned();
    // `ip` and `tc` are not in every user's PATH.
    let path = format!(
        "PATH={}",
        roots
            .path
            .iter()
            .map(|part| part.to_string_lossy())
            .collect::<Vec<_>>()
            .join(":")
    );
    let arguments = ["--net", "env", &path, "sh", "-c", SCRIPT];
    match options
        .probes
        .run(&unshare, &arguments, Duration::from_secs(20))
    {
        Ok(output) if output.success => Ok(parse(&output.stdout)),
        Ok(output) => Err((output.last_words(), root(), None)),
        Err(cause) => Err((super::reason(&cause), root(), None)),
    }
}

fn parse(printed: &str) -> Answers {
    printed
        .lines()
        .filter_map(|line| {
            let (name, answer) = line.split_once(' ')?;
            match answer.split_once(' ').unwrap_or((answer, "")) {
                ("yes", _) => Some((name.to_owned(), Ok(()))),
                ("no", why) => Some((name.to_owned(), Err(why.to_owned()))),
                _ => None,
            }
        })
        .collect()
}

fn vhost(roots: &Roots, options: &Options) -> Finding {
    let finding =
        |answer, evidence: String| Finding::new(Topic::Network, "vhost-net", answer, evidence);
    let device = roots.dev.join("vhost-net");
    if !device.exists() {
        return finding(Answer::No, "/dev/vhost-net does not exist".to_owned())
            .remedy("modprobe vhost_net (CONFIG_VHOST_NET); plans use another nic.backend");
    }
    match options.probes.open_device(&device) {
        Ok(()) => finding(Answer::Yes, "/dev/vhost-net opens".to_owned()),
        Err(cause) => finding(
            Answer::No,
            format!(
                "/dev/vhost-net does not open: {cause}",
                cause = super::reason(&cause)
            ),
        )
        .remedy("run as root, or as a member of the group kvm"),
    }
}
