// SPDX-License-Identifier: Apache-2.0
//! A container: an OCI bundle with Docker's default capabilities, run by runc or crun, in the
//! cell's target network namespace and control group.

use super::oci::Bundle;
use super::podman::Podman;
use super::root::Root;
use super::shared_kernel::{Entrance, SharedKernelTarget, works};
use super::{Booted, CommandLine, GuestFiles, GuestKernel, Means, Platform};
use crate::image::oci::{CAPABILITIES, DIRECTORY, PARAMETER as IMAGE};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use vtax_host::cell::Attached;
use vtax_host::cell::cgroup::{Group, Hierarchies};
use vtax_host::cell::{self, Seat, Space};
use vtax_host::command::need_program;
use vtax_host::command::version_line;
use vtax_host::facts::CgroupVersion;
use vtax_host::roots::{PATH, Roots};
use vtax_host::scratch::MOUNT_POINT;
use vtax_host::settings::{Domain, Parameter, Settings};
use vtax_host::{HostError, rootless};

/// The platform `container`.
#[derive(Debug)]
pub struct Container;

/// The container's name in its runtime. Runtimes keep their state in the cell, so that every cell can use the same
/// name.
const NAME: &str = "target";

/// The container's init. A waiting shell reaps orphans, as PID 1 must; the length of the sleep is irrelevant.
const INIT: &str = "while :; do sleep 2147483 & wait; done";

/// An OCI runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Runtime {
    /// The runtime of the Open Containers Initiative, in Go.
    Runc,
    /// The runtime in C.
    Crun,
    /// The runtime of gVisor, whose containers have a kernel in user space.
    Runsc,
    /// The engine, over runc or crun: the same container with a monitor process.
    Podman,
}

impl Runtime {
    /// The runtimes that `auto` tries, in this order.
    pub const ALL: [Self; 2] = [Self::Runc, Self::Crun];

    /// The runtimes that are used only by name, since they run something other than a plain container.
    const BY_NAME: [Self; 2] = [Self::Runsc, Self::Podman];

    /// The name of its program and Debian package.
    pub fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
            Self::Runsc => "runsc",
            Self::Podman => "podman",
        }
    }

    /// The runtime's program with the arguments that all of its commands have.
    fn line(self, run_dir: &Path, arguments: &[&str]) -> CommandLine {
        let [state, log] = ["oci", "oci.log"].map(|name| run_dir.join(name));
        let [state, log] = [state.to_string_lossy(), log.to_string_lossy()];
        // On some kernels runsc creates control groups that are never removed. Without them, its processes stay in
        // the group in which they are started, which is the target's.
        let own: &[&str] = match self {
            Self::Runsc => &["--ignore-cgroups"],
            Self::Crun if !rootless::is_root() => &["--cgroup-manager=disabled"],
            _ => &[],
        };
        [self.name(), "--root", &state, "--log", &log]
            .iter()
            .chain(own)
            .chain(arguments)
            .map(|&part| part.to_owned())
            .collect()
    }

    /// Checks that it works on this host by running `true` in a container, once in each process.
    ///
    /// # Errors
    /// When it is not installed or fails, with its output.
    pub fn check(self) -> Result<(), HostError> {
        let remedy = format!(
            "set container.runtime to `auto`, or install the Debian package {} in a version that \
             supports this host's control groups",
            self.name()
        );
        works(self.name(), self.name(), remedy, |seat| {
            boot(seat, &GuestFiles::of_this_host(None, None), self)
        })
    }
}

/// Returns the runtime that `container.runtime` selects, after its check.
///
/// # Errors
/// When it does not work; for `auto`, the reasons for every runtime.
pub fn runtime(settings: &Settings) -> Result<Runtime, HostError> {
    let wanted = settings.text("container.runtime").unwrap_or("auto");
    if let Some(runtime) = Runtime::ALL
        .into_iter()
        .chain(Runtime::BY_NAME)
        .find(|runtime| runtime.name() == wanted)
    {
        return runtime.check().map(|()| runtime);
    }
    if wanted != "auto" {
        return Err(HostError::Setting(format!(
            "container.runtime = {wanted:?} is none of auto, runc, crun, runsc, podman"
        )));
    }
    let mut reasons = Vec::new();
    for runtime in Runtime::ALL {
        match runtime.check() {
            Ok(()) => return Ok(runtime),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(HostError::Unusable {
        what: "the OCI runtime (runc or crun)".to_owned(),
        why: reasons.join("; "),
        remedy: "install the Debian package runc or crun".to_owned(),
    })
}

/// The reason to refuse an image with this runtime.
pub const NO_IMAGE: &str = "container.runtime = \"podman\" cannot run a guest with an image, whose /proc podman does not mount: \
                        use runc, crun or runsc";

impl Platform for Container {
    fn kind(&self) -> &'static str {
        "container"
    }

    fn parameters(&self) -> &'static [Parameter] {
        const PARAMETERS: &[Parameter] = &[IMAGE, Parameter::new("container.runtime", Domain::Choice(&["auto", "runc", "crun", "runsc", "podman"]), "auto").help("the OCI runtime or engine; `auto` takes runc or crun, the first that works with this host's control groups")];
        PARAMETERS
    }

    fn check(&self, settings: &Settings) -> Result<(), HostError> {
        cell::check(settings)?;
        let runtime = runtime(settings)?;
        match IMAGE.given(settings) {
            Some(_) if runtime == Runtime::Podman => Err(HostError::Setting(NO_IMAGE.to_owned())),
            _ => Ok(()),
        }
    }

    fn means(&self) -> Means {
        Means::Program(&["runc", "crun"])
    }

    fn guest_kernel(&self) -> GuestKernel {
        GuestKernel::Hosts
    }

    fn expected_overhead(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn boot(&self, seat: &Seat, guest: &GuestFiles, settings: &Settings) -> Booted {
        boot(seat, guest, runtime(settings)?)
    }
}

fn boot(seat: &Seat<'_>, guest: &GuestFiles, runtime: Runtime) -> Booted {
    let device = seat.attach_veth()?;
    let root = Root::mount(seat, guest)?;
    // The runtime itself belongs to the target, but not to the container's group: on v2 a group with groups below
    // it can have no processes.
    let group = seat.group().below("runtime")?;
    let hierarchies = Hierarchies::detect()?;
    let prefix = match runtime {
        Runtime::Podman => start_podman(seat, &root, &hierarchies, &group)?,
        _ => start_bundle(seat, &root, runtime, &hierarchies, &group)?,
    };
    let entrance = Entrance {
        space: Space::Switch,
        group,
        prefix,
    };
    let capabilities = match runtime {
        Runtime::Podman => "podman's defaults",
        _ => "Docker's defaults",
    };
    let facts = [
        ("container.runtime", version_line(runtime.name())),
        ("container.seccomp", "none".to_owned()),
        ("container.capabilities", capabilities.to_owned()),
    ];
    Ok(Box::new(SharedKernelTarget::new(
        seat, &root, &device, entrance, facts,
    )?))
}

/// Starts a bundle. Returns the words that precede a command to run it in the container.
fn start_bundle(
    seat: &Seat<'_>,
    root: &Root,
    runtime: Runtime,
    hierarchies: &Hierarchies,
    group: &Group,
) -> Result<CommandLine, HostError> {
    // The name that systemd's cgroup driver would use, by which it is recognized as a container.
    let name = format!("{}-{NAME}.scope", runtime.name());
    // Without root the container stays in the group of the runtime, which is the guest's.
    let control_group = if rootless::is_root() {
        Some(control_group_path(runtime, hierarchies, group, &name)?)
    } else {
        None
    };
    let mut config = bundle(root, &seat.guest_network(), control_group.as_deref())?;
    if root.has_image {
        add_image(&mut config);
    }
    let folder = seat.outside(&seat.run_dir().join("bundle"));
    fs::create_dir(&folder).map_err(HostError::file("create", &folder))?;
    let path = folder.join("config.json");
    vtax_files::write_scratch(&path, config.to_string())?;
    let inside = |name: &str| seat.run_dir().join(name);
    let mut line = runtime.line(
        &seat.run_dir(),
        &[
            "run",
            "--detach",
            "--bundle",
            &inside("bundle").to_string_lossy(),
            "--pid-file",
            &inside("container.pid").to_string_lossy(),
            NAME,
        ],
    );
    line.splice(0..0, hide(runtime, hierarchies));
    let delete = runtime.line(&seat.run_dir(), &["delete", "--force", NAME]);
    start(seat, runtime, group, line, &delete)?;
    Ok(exec_line(runtime, &seat.run_dir()))
}

/// Starts a container by podman. Returns the words that precede a command to run it in the container.
fn start_podman(
    seat: &Seat<'_>,
    root: &Root,
    hierarchies: &Hierarchies,
    group: &Group,
) -> Result<CommandLine, HostError> {
    // crun does not support hybrid hosts.
    let oci = match hierarchies.layout() {
        CgroupVersion::V2 if Roots::host().program("crun").is_some() => Runtime::Crun,
        _ => Runtime::Runc,
    };
    need_program(oci.name(), oci.name())?;
    let parent = podmans_parent(hierarchies, group)?;
    let folder = seat.run_dir().join("podman");
    let shm = seat.outside(&folder.join("shm"));
    fs::create_dir_all(&shm).map_err(HostError::file("create", &shm))?;
    let podman = Podman {
        folder: &folder,
        runtime: oci.name(),
        parent: &parent,
    };
    let pid_file = seat.run_dir().join("container.pid");
    let line = podman.run(NAME, root, &seat.guest_network(), &pid_file, INIT);
    let delete = podman.line(&["rm", "--force", "--time", "0", NAME]);
    start(seat, Runtime::Podman, group, line, &delete)?;
    Ok(keeping_outputs(podman.line(&[
        "exec",
        "--preserve-fds",
        "2",
        NAME,
    ])))
}

/// The parent control group of podman's containers, as a path from the mount point. Podman takes one path for all
/// hierarchies, and beside v1 it ignores v2. On v2 a group with processes can have no groups below it, so that the
/// parent is one level up.
fn podmans_parent(hierarchies: &Hierarchies, group: &Group) -> Result<PathBuf, HostError> {
    let is_v2 = hierarchies.layout() == CgroupVersion::V2;
    let folders = group.folders();
    let counted = folders
        .iter()
        .filter(|folder| is_v2 || Some(folder.as_path()) != group.v2_folder());
    let paths: BTreeSet<PathBuf> = counted
        .filter_map(|folder| hierarchies.path_below_mount(folder))
        .collect();
    match (paths.first(), paths.len()) {
        (Some(path), 1) if is_v2 => Ok(path.parent().unwrap_or(path).to_owned()),
        (Some(path), 1) => Ok(path.clone()),
        _ => Err(HostError::Missing {
            what: "one control group path for all v1 hierarchies, which podman needs,".to_owned(),
            remedy: "use runc, or start vtax in the same group of each: see /proc/self/cgroup"
                .to_owned(),
        }),
    }
}

/// The path of the container's control group in the runtime's terms: next to `runtime` on v2, below it on v1.
///
/// On v1, a relative path is below runc's own group in each hierarchy. crun accepts only absolute paths from the
/// mount point, the same for all hierarchies.
fn control_group_path(
    runtime: Runtime,
    hierarchies: &Hierarchies,
    group: &Group,
    name: &str,
) -> Result<String, HostError> {
    let paths: BTreeSet<PathBuf> = group
        .folders()
        .iter()
        .filter_map(|folder| hierarchies.path_below_mount(folder))
        .collect();
    match (hierarchies.layout(), runtime, paths.first()) {
        (CgroupVersion::V2, _, Some(path)) => Ok(path.with_file_name(name).display().to_string()),
        (_, Runtime::Crun, Some(path)) if paths.len() == 1 => {
            Ok(path.join(name).display().to_string())
        }
        (_, Runtime::Crun, _) => Err(HostError::Missing {
            what: "one control group path for all v1 hierarchies, which crun needs,".to_owned(),
            remedy: "use runc, or start vtax in the same group of each: see /proc/self/cgroup"
                .to_owned(),
        }),
        _ => Ok(name.to_owned()),
    }
}

/// The parent control group in which a program starts containers of its own.
#[derive(Debug)]
pub struct ContainerPool {
    group: Group,
    hide: Vec<String>,
    /// The control group of a container in the runtime's terms, up to a suffix that the caller chooses.
    pub control_group: String,
}

impl ContainerPool {
    /// Creates the pool in the group of a seat's guest.
    ///
    /// # Errors
    /// When the group cannot be created, or the runtime has no path for it.
    pub fn in_cell(seat: &Seat<'_>, runtime: Runtime) -> Result<Self, HostError> {
        let group = seat.group().below("runtime")?;
        let hierarchies = Hierarchies::detect()?;
        Ok(Self {
            control_group: control_group_path(runtime, &hierarchies, &group, "container")?,
            hide: hide(runtime, &hierarchies),
            group,
        })
    }

    /// As [`Seat::command`], in this pool.
    #[must_use]
    pub fn command(&self, seat: &Seat<'_>, line: &CommandLine) -> Command {
        let line = [self.hide.clone(), line.clone()].concat();
        seat.command_in(Space::Switch, &self.group, &line)
    }
}

/// The words that precede a command to run it in the container. A runtime copies a command's output through pipes
/// of its own, at the target's expense, until the last process that inherited them has ended, background services
/// included. It passes descriptors above 2 unchanged.
fn exec_line(runtime: Runtime, run_dir: &Path) -> CommandLine {
    match runtime {
        // runsc passes its own descriptors to the command.
        Runtime::Runsc => runtime.line(run_dir, &["exec", NAME]),
        _ => keeping_outputs(runtime.line(run_dir, &["exec", "--preserve-fds", "2", NAME])),
    }
}

fn keeping_outputs(exec: CommandLine) -> CommandLine {
    let out: CommandLine = ["sh", "-c", r#"exec "$@" 3>&1 4>&2"#, "vtax-exec"]
        .map(str::to_owned)
        .to_vec();
    let back = ["sh", "-c", r#"exec "$@" >&3 2>&4 3>&- 4>&-"#, "vtax-exec"]
        .map(str::to_owned)
        .to_vec();
    [out, exec, back].concat()
}

/// On a hybrid host, runc (1.1) also resolves the relative path in the v2 hierarchy, but from its root. Where it
/// finds no v2 hierarchy, the container stays in runc's own group there, which is correct.
const HIDE_V2: &str = r#"umount "$1"; shift; exec "$@""#;

/// runsc (of 2022) mistakes a network namespace for the host's if it finds these settings, which newer kernels show
/// in every namespace.
const HIDE_NETWORK: &str = r#"mount -t tmpfs none /proc/sys/net; exec "$@""#;

/// The words that precede a runtime's command to hide mounts from it.
fn hide(runtime: Runtime, hierarchies: &Hierarchies) -> Vec<String> {
    let room =
        |script: &str| ["unshare", "--mount", "sh", "-c", script, "vtax-hide"].map(str::to_owned);
    match (runtime, hierarchies.layout(), hierarchies.v2_mount()) {
        (Runtime::Runc, CgroupVersion::Hybrid, Some(mount)) => room(HIDE_V2)
            .into_iter()
            .chain([mount.display().to_string()])
            .collect(),
        (Runtime::Runsc, ..) => room(HIDE_NETWORK).to_vec(),
        _ => Vec::new(),
    }
}

fn start(
    seat: &Seat<'_>,
    runtime: Runtime,
    group: &Group,
    line: CommandLine,
    delete: &CommandLine,
) -> Result<(), HostError> {
    let inside = |name: &str| seat.run_dir().join(name);
    let printed = seat.outside(&inside("container.log"));
    let log = vtax_files::create(&printed)?;
    let other = log.try_clone().map_err(HostError::file("open", &printed))?;
    // Files instead of pipes, since the container keeps them open.
    let status = seat
        .command_in(Space::Switch, group, &line)
        .stdout(log)
        .stderr(other)
        .status()
        .map_err(HostError::process("start", format!("`{}`", runtime.name())))?;
    if !status.success() {
        let read = |name: &str| fs::read_to_string(seat.outside(&inside(name))).unwrap_or_default();
        return Err(HostError::Program {
            command: line.join(" "),
            status: status.to_string(),
            output: format!("{}{}", read("oci.log"), read("container.log")),
        });
    }
    check_place(seat, runtime).inspect_err(|_| {
        // The runtime removes what it created outside of the cell.
        let _ = seat.command_in(Space::Switch, group, delete).output();
    })
}

/// Checks the control group of the container. Some runtimes interpret the path differently on some hosts, and a
/// container elsewhere would be neither counted nor removed.
fn check_place(seat: &Seat<'_>, runtime: Runtime) -> Result<(), HostError> {
    let pid_file = seat.outside(&seat.run_dir().join("container.pid"));
    let pid = fs::read_to_string(&pid_file).map_err(HostError::file("read", &pid_file))?;
    let places = seat.outside(Path::new(&format!("/proc/{}/cgroup", pid.trim())));
    let places = fs::read_to_string(&places).map_err(HostError::file("read", places))?;
    let folders = seat.cgroups();
    if folders.is_empty() {
        // No process of the container leaves the guest's PID namespace.
        return Ok(());
    }
    let ours = folders
        .first()
        .and_then(|folder| folder.parent()?.file_name())
        .unwrap_or_default()
        .to_string_lossy();
    let inside = places
        .lines()
        .filter(|line| line.contains(&format!("/{ours}/target")))
        .count();
    if inside >= folders.len() {
        return Ok(());
    }
    Err(HostError::Protocol {
        peer: runtime.name().to_owned(),
        detail: format!(
            "it put the container outside of the control group {ours}: {}",
            places.replace('\n', " ")
        ),
    })
}

/// The bundle's `config.json`, with Docker's defaults.
///
/// A user without root maps one group, so that terminals belong to it and not to group 5.
fn bundle(root: &Root, network: &str, control_group: Option<&str>) -> Result<Value, HostError> {
    let terminals: &[&str] = if rootless::is_root() { &["gid=5"] } else { &[] };
    let terminals = [
        &[
            "nosuid",
            "noexec",
            "newinstance",
            "ptmxmode=0666",
            "mode=0620",
        ],
        terminals,
    ]
    .concat();
    let mut mounts = vec![
        json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts",
               "options": terminals}),
        json!({"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
               "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]}),
        json!({"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue",
               "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs",
               "options": ["nosuid", "noexec", "nodev", "ro"]}),
    ];
    let mut devices = Vec::new();
    let mut allowed = vec![json!({"allow": false, "access": "rwm"})];
    if let Some(scratch) = &root.scratch {
        let (major, minor) = device_number(scratch)?;
        mounts.push(
            json!({"destination": MOUNT_POINT, "type": "bind", "source": scratch.directory,
                           "options": ["bind", "rw", "noatime"]}),
        );
        devices.push(
            json!({"path": scratch.device, "type": "b", "major": major, "minor": minor,
                            "fileMode": 0o660, "uid": 0, "gid": 0}),
        );
        allowed.push(
            json!({"allow": true, "type": "b", "major": major, "minor": minor, "access": "rwm"}),
        );
    }
    let path = format!("PATH={PATH}");
    let mut config = Bundle {
        name: NAME,
        root: &root.path,
        writable: true,
        arguments: &["sh", "-c", INIT],
        environment: &[&path, "LC_ALL=C", "HOME=/root"],
        network: Some(Path::new(network)),
        control_group,
        mounts,
    }
    .config();
    let capabilities = CAPABILITIES.map(|(name, _)| name);
    config["process"]["capabilities"] =
        json!({"bounding": capabilities, "effective": capabilities, "permitted": capabilities});
    let linux = &mut config["linux"];
    linux["resources"] = json!({"devices": allowed});
    linux["devices"] = json!(devices);
    linux["maskedPaths"] = json!([
        "/proc/acpi",
        "/proc/kcore",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/proc/sched_debug",
        "/proc/scsi",
        "/sys/firmware"
    ]);
    linux["readonlyPaths"] = json!([
        "/proc/bus",
        "/proc/fs",
        "/proc/irq",
        "/proc/sys",
        "/proc/sysrq-trigger"
    ]);
    Ok(config)
}

/// Adds the kernel's file systems in the image (`/image`), as the container has them in its own root: its processes have
/// no capability to mount them later.
fn add_image(config: &mut Value) {
    let inside = |path: &str| format!("{DIRECTORY}{path}");
    let list = |config: &Value, place: &str| -> Vec<Value> {
        let list = config.pointer(place).and_then(Value::as_array);
        list.cloned().unwrap_or_default()
    };
    let mut mounts = list(config, "/mounts");
    for mount in mounts.clone() {
        let destination = mount["destination"].as_str().unwrap_or_default();
        if ["/proc", "/sys", "/dev"]
            .iter()
            .any(|system| destination.starts_with(system))
        {
            let mut copy = mount.clone();
            copy["destination"] = json!(inside(destination));
            mounts.push(copy);
        }
    }
    let mut devices = list(config, "/linux/devices");
    // Linux `Documentation/admin-guide/devices.txt`: the devices that every container has.
    for (name, major, minor) in [
        ("null", 1, 3),
        ("zero", 1, 5),
        ("full", 1, 7),
        ("random", 1, 8),
        ("urandom", 1, 9),
        ("tty", 5, 0),
    ] {
        let path = inside(&format!("/dev/{name}"));
        if rootless::is_root() {
            devices.push(
                json!({"path": path, "type": "c", "major": major, "minor": minor,
                                "fileMode": 0o666, "uid": 0, "gid": 0}),
            );
        } else {
            // A user namespace makes no device: those of the host are mounted.
            mounts.push(
                json!({"destination": path, "type": "bind", "source": format!("/dev/{name}"),
                               "options": ["bind", "nosuid", "noexec"]}),
            );
        }
    }
    config["mounts"] = json!(mounts);
    config["linux"]["devices"] = json!(devices);
    for key in ["maskedPaths", "readonlyPaths"] {
        let mut paths = list(config, &format!("/linux/{key}"));
        let copies = paths.iter().filter_map(Value::as_str).map(inside);
        let copies: Vec<Value> = copies.map(Value::String).collect();
        paths.extend(copies);
        config["linux"][key] = json!(paths);
    }
}

fn device_number(scratch: &Attached) -> Result<(u32, u32), HostError> {
    let about =
        fs::metadata(&scratch.device).map_err(HostError::file("inspect", &scratch.device))?;
    let device = about.rdev();
    Ok((rustix::fs::major(device), rustix::fs::minor(device)))
}
