// SPDX-License-Identifier: Apache-2.0
//! A QEMU machine as a transient domain of libvirt, booted from the shared image. libvirt creates its tap, which
//! moves into the cell.
//!
//! A domain outlives vtax, so that the journal records it; its files belong to the cell.

use super::command_line::kernel_command_line;
use super::machine::{self, Accel, Machine};
use crate::platform::vm::agent::{self, Agent};
use crate::platform::vm::host::{qcow2_layer, takes_direct_io};
use crate::platform::vm::process::console_text;
use crate::platform::vm::surroundings::Surroundings;
use crate::platform::vm::wire::Wire;
use crate::platform::vm::{inner, size};
use crate::platform::{About, CommandLine, Finished, GuestFiles, Job, Target};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vtax_host::HostError;
use vtax_host::cell::{self, Seat};
use vtax_host::journal::Change;
use vtax_host::roots::Roots;
use vtax_host::settings::{Domain, Parameter, Settings};
use vtax_host::virsh::{PREFIX, Virsh};
use vtax_host::wait::within;
use vtax_inventory::{Guests, Identity};
use vtax_observe::{NetDevice, Subject};

/// The connection to libvirt.
pub const URI: Parameter = Parameter::new("libvirt.uri", Domain::Text("uri"), "qemu:///system")
    .help(
        "which libvirt, as for `virsh -c`: qemu:///system, qemu:///session, qemu+ssh://HOST/system",
    );

/// The settings of a domain that vtax creates.
pub const PARAMETERS: &[Parameter] = &[
    URI,
    size::VCPUS,
    size::MEMORY_MIB,
    machine::MACHINE,
    machine::ACCEL,
    machine::CPU,
];

/// The time limit of a boot.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// The interval between two requests to the guest's agent.
const PAUSE: Duration = Duration::from_millis(200);

/// Whether this libvirt runs its guests on this host.
pub fn is_local(uri: &str) -> bool {
    let scheme = uri.split("://").next().unwrap_or_default();
    let host = uri
        .split("://")
        .nth(1)
        .and_then(|rest| rest.split('/').next());
    host == Some("") && matches!(scheme, "qemu" | "qemu+unix")
}

/// The connection that the settings select.
pub fn virsh(settings: &Settings, reads_only: bool) -> Virsh {
    Virsh {
        uri: URI.text(settings).to_owned(),
        reads_only,
    }
}

/// Checks that this host can create a domain with these settings.
///
/// # Errors
/// The first thing that is missing, with the remedy.
pub fn check(settings: &Settings) -> Result<(), HostError> {
    cell::refuse_share(settings, "libvirt has groups of its own for its domains")?;
    cell::check(settings)?;
    let uri = URI.text(settings);
    if !is_local(uri) {
        return Err(HostError::Setting(format!(
            "libvirt.uri = {uri:?} is another host's, which does not have this host's image and cell: run the \
             plan there (`--place ssh:HOST`), or measure a guest that it has (libvirt.domain)"
        )));
    }
    Machine::from_settings(settings)?;
    // A read-only connection cannot create a domain.
    virsh(settings, false).run(&["list", "--name"]).map(drop)
}

/// The domain of this seat, which outlives vtax.
pub fn outlives(seat: &Seat<'_>, settings: &Settings) -> Vec<Change> {
    vec![
        Change::Directory { path: folder(seat) },
        Change::Libvirt {
            uri: URI.text(settings).to_owned(),
            name: name(seat),
        },
    ]
}

/// The directory of the domain's files. It is outside of the cell, which libvirt's QEMU cannot access for lack of
/// capabilities.
fn folder(seat: &Seat<'_>) -> PathBuf {
    Path::new("/var/tmp").join(name(seat))
}

fn name(seat: &Seat<'_>) -> String {
    format!("{PREFIX}{}", seat.unique_name())
}

/// Ends its domain when it is dropped.
struct DomainGuard {
    virsh: Virsh,
    name: String,
    folder: PathBuf,
    has_ended: bool,
}

impl DomainGuard {
    fn end(&mut self) -> Result<(), HostError> {
        self.has_ended = true;
        self.virsh.end(&self.name)?;
        Ok(vtax_files::remove_all(&self.folder)?)
    }
}

impl Drop for DomainGuard {
    fn drop(&mut self) {
        if !self.has_ended {
            // The journal still records the domain.
            let _ = self.end();
        }
    }
}

/// A booted domain.
struct LibvirtGuest {
    domain: DomainGuard,
    agent: Agent,
    about: About,
    console: PathBuf,
}

/// Creates the domain and waits for its agent.
///
/// # Errors
/// When it does not come up; the cell removes all that remains.
pub fn boot(
    seat: &Seat<'_>,
    guest: &GuestFiles,
    settings: &Settings,
) -> Result<Box<dyn Target>, HostError> {
    let mut machine = Machine::from_settings(settings)?;
    machine.accel = match machine.accel {
        Accel::Auto if super::kvm_boots(guest).boots => Accel::Kvm,
        Accel::Auto => Accel::Tcg,
        decided => decided,
    };
    let (virsh, name) = (virsh(settings, false), name(seat));
    let folder = folder(seat);
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .map_err(HostError::file("create", &folder))?;
    let domain = DomainGuard {
        virsh,
        name: name.clone(),
        folder: folder.clone(),
        has_ended: false,
    };
    let file = |name: &str| folder.join(name);
    let (root, console, xml) = (file("root.qcow2"), file("console.log"), file("domain.xml"));
    qcow2_layer(&guest.image, &root)?;
    let tap = tap_name(seat);
    let text = DomainXml {
        machine: &machine,
        guest,
        seat,
        name: &name,
        root: &root,
        console: &console,
        tap: &tap,
        is_system: domain.virsh.uri.contains("/system"),
    }
    .xml();
    vtax_files::write_scratch(&xml, &text)?;
    let started = Instant::now();
    domain
        .virsh
        .run(&["create", "--file", &xml.to_string_lossy()])?;
    seat.adopt_device(&tap)?;
    let uuid = domain.virsh.run(&["domuuid", "--domain", &name])?;
    let mut guests = Guests::new(Roots::host());
    guests.scan();
    let identity = Identity {
        uuid: Some(uuid.clone()),
        ..Identity::default()
    };
    let found = guests
        .identified(&identity)
        .ok_or_else(|| HostError::Missing {
            what: format!("the process of the domain {name}, which libvirt runs,"),
            remedy: "run vtax where libvirt's QEMU is to be seen, as root".to_owned(),
        })?;
    let subject = Subject {
        net_devices: vec![NetDevice {
            namespace_of: seat.holder_pid(),
            name: tap,
        }],
        ..guests.subject(found, &seat.owner())
    };
    let group = found.group.clone().unwrap_or_default();
    let mut agent = Agent::over(relayed(&domain)?);
    wait_for_agent(&mut agent, &domain, &console)?;
    let facts = [
        (
            "accel",
            if machine.accel == Accel::Kvm {
                "kvm"
            } else {
                "tcg"
            }
            .to_owned(),
        ),
        ("libvirt.uri", domain.virsh.uri.clone()),
        (
            "libvirt.version",
            domain.virsh.run(&["version"])?.replace('\n', "; "),
        ),
        ("libvirt.uuid", uuid),
        ("libvirt.xml", text),
        ("host.cgroup", group.display().to_string()),
        (
            "vm.boot_seconds",
            format!("{:.3}", started.elapsed().as_secs_f64()),
        ),
    ];
    Ok(Box::new(LibvirtGuest {
        agent,
        about: About::of_vm(
            seat.address().0,
            subject,
            machine.accel.source(),
            facts.map(|(key, value)| (key.to_owned(), value)).into(),
            "/dev/vdb",
        ),
        console,
        domain,
    }))
}

/// The tap's name, unique in the network namespace in which libvirt creates it.
fn tap_name(seat: &Seat<'_>) -> String {
    format!("vt{}", seat.holder_pid())
        .chars()
        .take(12)
        .collect::<String>()
        + &seat.tap_name().replace("tap", "-")
}

/// The wire to the agent through libvirt: each line of JSON is one virsh command.
fn relayed(domain: &DomainGuard) -> Result<Wire, HostError> {
    let (ours, theirs) = UnixStream::pair().map_err(HostError::process("make", "a socket pair"))?;
    let reader = theirs
        .try_clone()
        .map_err(HostError::process("make", "a socket pair"))?;
    let (virsh, name) = (domain.virsh.clone(), domain.name.clone());
    // The thread ends with the wire.
    std::thread::spawn(move || {
        let mut theirs = theirs;
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            let start = line.iter().position(|byte| *byte == b'{').unwrap_or(0);
            let line = String::from_utf8_lossy(line.get(start..).unwrap_or_default()).into_owned();
            let answer = relay(&virsh, &name, &line);
            if theirs
                .write_all(answer.as_bytes())
                .and_then(|()| theirs.write_all(b"\n"))
                .is_err()
            {
                return;
            }
        }
    });
    Ok(Wire::new(agent::PEER, ours))
}

fn relay(virsh: &Virsh, name: &str, line: &str) -> String {
    let ask = |line: &str| {
        virsh.run(&[
            "qemu-agent-command",
            "--timeout",
            "20",
            "--domain",
            name,
            "--cmd",
            line,
        ])
    };
    let request: Value = serde_json::from_str(line).unwrap_or_default();
    let refused = |cause: HostError| serde_json::json!({"error": {"desc": cause.to_string()}});
    // libvirt synchronises with the agent itself.
    let answer = match request["execute"].as_str() {
        Some("guest-sync-delimited") => ask(r#"{"execute":"guest-ping"}"#)
            .map(|_| serde_json::json!({"return": request["arguments"]["id"]}).to_string()),
        _ => ask(line),
    };
    let answer = answer.unwrap_or_else(|cause| refused(cause).to_string());
    answer.replace('\n', " ")
}

fn wait_for_agent(
    agent: &mut Agent,
    domain: &DomainGuard,
    console: &Path,
) -> Result<(), HostError> {
    let answered = within(BOOT_LIMIT, PAUSE, || {
        let answered = agent.synchronise(Duration::from_secs(30))?;
        if !answered && domain.virsh.state(&domain.name)?.is_none() {
            return Err(HostError::Program {
                command: format!("the domain {}", domain.name),
                status: "it ended while it booted".to_owned(),
                output: console_text(console),
            });
        }
        Ok(answered.then_some(()))
    })?;
    answered.ok_or_else(|| HostError::Timeout {
        what: format!("the first answer of the guest agent of {}", domain.name),
        seconds: BOOT_LIMIT.as_secs(),
        evidence: console_text(console),
    })
}

/// The description of a domain.
struct DomainXml<'a> {
    machine: &'a Machine,
    guest: &'a GuestFiles,
    seat: &'a Seat<'a>,
    name: &'a str,
    root: &'a Path,
    console: &'a Path,
    tap: &'a str,
    is_system: bool,
}

impl DomainXml<'_> {
    fn xml(&self) -> String {
        let Self {
            machine,
            guest,
            seat,
            ..
        } = self;
        let kvm = machine.accel == Accel::Kvm;
        let network = Surroundings::network(*seat);
        let quoted = |path: &Path| escaped(&path.to_string_lossy());
        let cpu = match (&machine.cpu, kvm) {
            (Some(model), _) => {
                format!("<cpu mode='custom'><model>{}</model></cpu>", escaped(model))
            }
            (None, true) => "<cpu mode='host-passthrough'/>".to_owned(),
            (None, false) => "<cpu mode='maximum'/>".to_owned(),
        };
        // Without this label, libvirt changes the owner of the image, which QEMU only reads.
        let label =
            "<seclabel type='static' model='dac' relabel='no'><label>+0:+0</label></seclabel>\n";
        let scratch = seat.scratch().map(|scratch| {
            let direct = takes_direct_io(scratch);
            let cache = if direct { "cache='none'" } else { "" };
            disk("raw", scratch, "vdb", cache) + "\n"
        });
        let arguments = kernel_command_line(machine, &network, seat.scratch().is_some());
        format!(
            "<domain type='{}'>
<name>{}</name>
<memory unit='MiB'>{}</memory>
<vcpu>{}</vcpu>
<os><type arch='x86_64' machine='{}'>hvm</type>
<kernel>{}</kernel><initrd>{}</initrd>
<cmdline>{}</cmdline></os>
<features><acpi/><apic/></features>
{cpu}
<on_reboot>destroy</on_reboot><on_crash>destroy</on_crash>
{}<devices>
{}
{}<interface type='ethernet'><mac address='{}'/><target dev='{}'/><model type='virtio'/><mtu size='{}'/><rom enabled='no'/></interface>
<serial type='file'><source path='{}'/></serial>
<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
<controller type='usb' model='none'/><memballoon model='none'/>
</devices>
</domain>
",
            if kvm { "kvm" } else { "qemu" },
            escaped(self.name),
            machine.memory_mib,
            machine.vcpus,
            machine.kind.word(),
            quoted(&guest.kernel),
            quoted(&guest.initrd),
            escaped(&arguments),
            if self.is_system { label } else { "" },
            disk("qcow2", self.root, "vda", "cache='unsafe'"),
            scratch.unwrap_or_default(),
            network.mac,
            escaped(self.tap),
            network.mtu,
            quoted(self.console),
        )
    }
}

fn disk(format: &str, file: &Path, name: &str, cache: &str) -> String {
    format!(
        "<disk type='file' device='disk'><driver name='qemu' type='{format}' {cache}/><source file='{}'/><target dev='{name}' bus='virtio'/></disk>",
        escaped(&file.to_string_lossy())
    )
}

/// Escapes text for an element or an attribute.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, letter| {
        match letter {
            '<' | '>' | '&' | '\'' | '"' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "&#{};", u32::from(letter));
            }
            _ => out.push(letter),
        }
        out
    })
}

impl Target for LibvirtGuest {
    fn about(&self) -> &About {
        &self.about
    }

    fn start(&mut self, command: &CommandLine) -> Result<Job, HostError> {
        self.agent.start(command)
    }

    fn poll(&mut self, job: Job) -> Result<Option<Finished>, HostError> {
        self.agent.poll(job)
    }

    fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, HostError> {
        inner::of_agent(&mut self.agent)
    }

    fn console_tail(&self) -> String {
        console_text(&self.console)
    }

    fn stop(mut self: Box<Self>) -> Result<(), HostError> {
        self.domain.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_hosts_libvirt_can_make_a_domain_from_its_image() {
        for (uri, local) in [
            ("qemu:///system", true),
            ("qemu:///session", true),
            ("qemu+unix:///system?socket=/run/x", true),
            ("qemu+ssh://root@hv/system", false),
            ("qemu+tls://hv/system", false),
            ("xen:///system", false),
            ("qemu://hv/system", false),
            ("", false),
        ] {
            assert_eq!(is_local(uri), local, "{uri}");
        }
    }

    #[test]
    fn a_name_cannot_end_its_element() {
        assert_eq!(escaped("a'b<&>\""), "a&#39;b&#60;&#38;&#62;&#34;");
        assert!(disk("raw", Path::new("/x'/><evil"), "vda", "").contains("/x&#39;/&#62;&#60;evil"));
    }
}
