// SPDX-License-Identifier: Apache-2.0
//! What an existing guest shows about itself to a login that only reads: for `vtax run --dry-run` and `vtax plan new`.
//!
//! The login runs one shell line, which reads files of /proc, /sys and /etc, and starts no program that writes. No file
//! is copied into the guest, and no actor is started.

use super::{ExternalGuest, libvirt, on_host, ssh, xenapi};
use crate::place::actor::Login;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;
use vtax_core::owner::Owner;
use vtax_host::HostError;
use vtax_host::roots::PATH;
use vtax_host::settings::Settings;
use vtax_host::untrusted::shown;
use vtax_inventory::Identity;
use vtax_load::workload::Program;
use vtax_load::workload::command::words;

/// The programs of every guest that runs workloads: they start vtax there in namespaces of its own.
pub(crate) const NEEDED: [Program; 2] = [
    Program::new("unshare", "util-linux"),
    Program::new("mktemp", "coreutils"),
];

/// Reads the guest. Each line is `NAME=VALUE`; a name may repeat. The placeholder `PROGRAMS` becomes `NAME/PACKAGE` of
/// each program, and `FOLDERS` the folders in which they are searched.
const SCRIPT: &str = r#"LC_ALL=C; export LC_ALL
put() { echo "$1=$2"; }
first() { IFS= read -r line < "$1" && echo "$line"; }
put clock "$(date +%s.%N)"
put user "$(id -u)"
put machine "$(uname -s -m)"
put kernel "$(uname -r)"
put distribution "$(sed -n "s/^PRETTY_NAME=//p" /etc/os-release | tr -d \")"
put cpu "$(sed -n "s/^model name[[:space:]]*: //p" /proc/cpuinfo | head -n 1)"
put processors "$(grep -c "^processor" /proc/cpuinfo)"
put memory_kib "$(sed -n "s/^MemTotal: *//p" /proc/meminfo)"
put available_kib "$(sed -n "s/^MemAvailable: *//p" /proc/meminfo)"
put hardware "$(first /sys/class/dmi/id/sys_vendor) $(first /sys/class/dmi/id/product_name)"
put load "$(first /proc/loadavg)"
put uptime "$(first /proc/uptime)"
for folder in /var/tmp /tmp; do put disk "$folder $(df -Pk "$folder" | tail -n 1)"; done
who | while IFS= read -r line; do put login "$line"; done
cat /proc/net/tcp /proc/net/tcp6 | while read -r number local remote state rest; do
    if [ "$state" = 0A ]; then put listens "$local"; fi
done
cat /sys/class/dmi/id/product_uuid /sys/class/net/*/address | while IFS= read -r line; do put identity "$line"; done
for wanted in PROGRAMS; do
    name="${wanted%%/*}"; package="${wanted#*/}"; found=
    for folder in FOLDERS; do if [ -z "$found" ] && [ -x "$folder/$name" ]; then found="$folder/$name"; fi; done
    if [ -n "$found" ]; then
        version="$(dpkg-query -W -f "\${Version}" "$package" || rpm -q --qf "%{VERSION}" -f "$found")"
        put program "$name $found $version"
    else put missing "$name $package"; fi
done"#;

/// An existing guest as a login sees it. Every text is printable.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GuestLook {
    /// The login, as ssh takes it.
    pub login: String,
    /// The address to which load generators connect.
    pub address: Option<IpAddr>,
    /// What the platform's manager and this host know of it, by fact.
    pub facts: BTreeMap<String, String>,
    /// Whether commands run as root.
    pub is_root: bool,
    /// System and architecture, as `uname -s -m`.
    pub machine: String,
    /// The kernel's release.
    pub kernel: String,
    /// The distribution with its version.
    pub distribution: String,
    /// The processor's model.
    pub cpu: String,
    /// Online processors.
    pub processors: u64,
    /// Memory in KiB: all of it, and what is available.
    pub memory_kib: u64,
    /// Available memory in KiB.
    pub available_kib: u64,
    /// The machine as its firmware names it.
    pub hardware: String,
    /// Mean numbers of runnable tasks in the last 1, 5 and 15 minutes.
    pub load: String,
    /// Seconds since its boot.
    pub uptime_seconds: f64,
    /// How far its wall clock is ahead of this host's, in seconds.
    pub clock_ahead_seconds: f64,
    /// The error of that at most, in seconds.
    pub clock_error_seconds: f64,
    /// Free KiB of a directory, with the directory.
    pub disks: Vec<(String, u64)>,
    /// Other users' logins, as `who` prints them.
    pub logins: Vec<String>,
    /// TCP ports with a server.
    pub listens: Vec<u16>,
    /// The programs of the plan that it has: name, path and version.
    pub programs: Vec<String>,
    /// The programs of the plan that it lacks: name and Debian package.
    pub missing: Vec<(String, String)>,
}

/// Looks at the guest of a platform's settings; `None` for guests that vtax makes.
///
/// # Errors
/// When the guest does not exist, does not run, or accepts no login, with the remedy.
pub fn look(
    kind: &str,
    settings: &Settings,
    programs: &[Program],
) -> Result<Option<GuestLook>, HostError> {
    let Some(guest) = found(kind, settings)? else {
        return Ok(None);
    };
    let settings = guest.settings;
    ssh::check_link(&settings)?;
    let login = ssh::login(&settings)?;
    let address = ssh::address(&login, &settings)?;
    let (mut look, printed) = look_by(&login, &[&NEEDED, programs].concat())?;
    look.address = Some(address);
    ssh::reach_host(&settings)?;
    look.facts.extend(guest.facts);
    let seen = match (kind, guest.identity) {
        ("ssh", _) => ssh::seen_here(&settings, &identity_of(&printed), &Owner::Target)?.facts,
        (_, Some(identity)) => on_host::find(None, &identity, &Owner::Target)?.facts,
        (_, None) => BTreeMap::new(),
    };
    look.facts.extend(seen);
    Ok(Some(look))
}

/// Looks at the machine of a client, which needs no root.
///
/// # Errors
/// When it accepts no login.
pub(crate) fn look_at_client(host: &str, programs: &[Program]) -> Result<GuestLook, HostError> {
    look_by(&Login::to(host), programs).map(|(look, _)| look)
}

fn look_by(login: &Login, programs: &[Program]) -> Result<(GuestLook, String), HostError> {
    let line = words::join(&["sh", "-c", &script(programs)]);
    let sudo = if login.sudo { "sudo -n " } else { "" };
    let before = now();
    let printed = login.ask(ssh::SSH.as_ref(), &format!("{sudo}{line} 2>/dev/null"))?;
    let mut look = GuestLook::read(&printed, before, now());
    look.login = login.host.clone();
    Ok((look, printed))
}

fn found(kind: &str, settings: &Settings) -> Result<Option<ExternalGuest>, HostError> {
    match kind {
        "ssh" => Ok(Some(ExternalGuest {
            settings: settings.clone(),
            facts: BTreeMap::new(),
            identity: None,
        })),
        "libvirt" => libvirt::named(settings),
        "xenapi" => xenapi::named(settings),
        _ => Ok(None),
    }
}

fn script(programs: &[Program]) -> String {
    let programs = programs
        .iter()
        .map(|one| format!("{}/{}", one.name, one.package));
    let programs: Vec<String> = programs.collect();
    SCRIPT
        .replace("PROGRAMS", &programs.join(" "))
        .replace("FOLDERS", &PATH.replace(':', " "))
}

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

fn values<'a>(printed: &'a str, name: &'a str) -> impl Iterator<Item = String> + 'a {
    let lines = printed.lines().filter_map(move |line| {
        let (key, value) = line.split_once('=')?;
        (key == name).then(|| shown(value.trim()))
    });
    lines.filter(|value| !value.is_empty())
}

fn identity_of(printed: &str) -> Identity {
    Identity::parse(&values(printed, "identity").collect::<Vec<_>>().join("\n"))
}

impl GuestLook {
    /// Reads the output of the script, which was sent and came at these times of this host.
    fn read(printed: &str, before: f64, after: f64) -> Self {
        let text = |name: &str| values(printed, name).next().unwrap_or_default();
        let number = |text: &str| {
            let word = text.split_whitespace().next().unwrap_or_default();
            word.parse::<f64>().ok().filter(|value| value.is_finite())
        };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the conversion saturates"
        )]
        let count = |name: &str| number(&text(name)).map_or(0, |value| value as u64);
        let clock = number(&text("clock"));
        let mut listens: Vec<u16> = values(printed, "listens")
            .filter_map(|local| u16::from_str_radix(local.rsplit(':').next()?, 16).ok())
            .collect();
        listens.sort_unstable();
        listens.dedup();
        let disk = |line: String| {
            let mut words = line.split_whitespace();
            let folder = words.next()?.to_owned();
            // File system, blocks, used, available.
            let free = words.nth(3)?.parse().ok()?;
            Some((folder, free))
        };
        let missing = |line: String| {
            let (name, package) = line.split_once(' ')?;
            Some((name.to_owned(), package.to_owned()))
        };
        let load = text("load");
        let load: Vec<&str> = load.split(' ').take(3).collect();
        Self {
            is_root: text("user") == "0",
            machine: text("machine"),
            kernel: text("kernel"),
            distribution: text("distribution"),
            cpu: text("cpu"),
            processors: count("processors"),
            memory_kib: count("memory_kib"),
            available_kib: count("available_kib"),
            hardware: text("hardware"),
            load: load.join(" "),
            uptime_seconds: number(&text("uptime")).unwrap_or_default(),
            clock_ahead_seconds: clock.map_or(f64::NAN, |clock| clock - (before + after) / 2.0),
            clock_error_seconds: (after - before) / 2.0,
            disks: values(printed, "disk").filter_map(disk).collect(),
            logins: values(printed, "login").collect(),
            listens,
            programs: values(printed, "program").collect(),
            missing: values(printed, "missing").filter_map(missing).collect(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_script_reads_this_machine_and_finds_programs_with_their_packages() {
        let programs = [
            Program::new("sh", "dash"),
            Program::new("no-such-program", "no-such-package"),
        ];
        let before = now();
        let output = Command::new("sh")
            .args(["-c", &script(&programs)])
            .output()
            .unwrap();
        let look = GuestLook::read(&String::from_utf8_lossy(&output.stdout), before, now());
        assert!(look.processors > 0 && look.memory_kib > 1000, "{look:?}");
        assert_eq!(look.disks.len(), 2, "{look:?}");
        assert!(look.disks.iter().all(|(folder, _)| folder.ends_with("tmp")));
        assert!(look.clock_ahead_seconds.abs() <= look.clock_error_seconds);
        assert!(
            look.programs.iter().any(|line| line.starts_with("sh /")),
            "{look:?}"
        );
        assert_eq!(
            look.missing,
            [("no-such-program".to_owned(), "no-such-package".to_owned())]
        );
    }

    #[test]
    fn a_guest_that_prints_anything_is_read_without_harm() {
        for printed in [
            "",
            "=\n==\nclock=never",
            "listens=zz\nlistens=:::0050\ndisk=a b",
            "\u{1b}[2J=x",
        ] {
            let look = GuestLook::read(printed, 1.0, 2.0);
            assert!(look.disks.is_empty() && !look.is_root, "{look:?}");
        }
        let look = GuestLook::read(
            "kernel=6\u{1b}[2J\nlistens=00:0050\nlistens=11:0050",
            0.0,
            0.0,
        );
        assert!(!look.kernel.contains('\u{1b}'));
        assert_eq!(look.listens, [80]);
    }
}
