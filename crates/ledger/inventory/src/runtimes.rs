// SPDX-License-Identifier: Apache-2.0
//! The names of control groups: one table of the names that container engines, machine managers and batch systems give
//! them, with the source of each row, and the function that matches a path against it.

use super::{Platform, pod};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The place where a container's name is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameIn {
    /// Docker's `config.v2.json` of the container.
    Docker,
    /// The containers of Podman's storage, or the monitor's command line.
    Podman,
    /// The annotations of the OCI configuration that containerd or CRI-O keeps while it runs.
    Annotations,
    /// Docker's or containerd's data, whichever contains the id.
    AnyEngine,
    /// The group's own name is the container's.
    Group,
    /// The group's name is a number of this kind of item.
    Number(&'static str),
}

/// One form of control group names.
pub(super) struct Row {
    /// The last parts of the path. `{id}` is 64 hexadecimal digits, `{name}` is any text, `{unit}` is any text with
    /// systemd's escapes, `{number}` is decimal digits: one of these identifies the guest. `#` is decimal digits, `*`
    /// is any text or none, a part `**` is any number of parts, and a part `{kubepods}` is a group of kubelet.
    pub(super) pattern: &'static str,
    /// The guest that the group is; `None` for a group that an engine creates beside its guests. Groups inside a
    /// guest's group belong to the guest.
    pub(super) guest: Option<(Platform, NameIn)>,
    /// The project, file and version that defines the name.
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "readers and the documentation use it")
    )]
    pub(super) source: &'static str,
}

const fn guest(
    pattern: &'static str,
    platform: Platform,
    name: NameIn,
    source: &'static str,
) -> Row {
    Row {
        pattern,
        guest: Some((platform, name)),
        source,
    }
}

const fn beside(pattern: &'static str, source: &'static str) -> Row {
    Row {
        pattern,
        guest: None,
        source,
    }
}

const CRI_CONTAINERD: &str = "containerd 2.4 internal/cri/server/helpers.go getCgroupsPath";
const CRIO: &str = "CRI-O 1.36 internal/config/cgmgr";
const KUBELET: &str =
    "Kubernetes pkg/kubelet/cm/cgroup_manager_linux.go; Moby 29.7 daemon/oci_linux.go";
const MOBY: &str = "Moby 29.7 daemon/oci_linux.go withCgroups";
const PODMAN: &str = "Podman 5.4 libpod/container_internal_linux.go getOCICgroupPath";
const PODMAN_POD: &str = "Podman 5.4 libpod/pod_internal_linux.go";
const CONMON: &str = "Podman 5.4 libpod/oci_conmon_linux.go";
const NERDCTL: &str = "nerdctl 2.3 pkg/cmd/container/run_cgroup_linux.go";
const CONTAINERD: &str = "containerd 2.4 pkg/oci/spec_opts.go WithDefaultCgroup";
const OCI_SCOPE: &str = "opencontainers/cgroups systemd/common.go getUnitName; crun";
const LXC: &str = "LXC 7.0 src/lxc/cgroups/cgroup.h";
const LXC_3: &str = "LXC 3.1 and 3.2 (procps-ng library/readproc.c)";
const LXC_OLD: &str = "LXC to 3.0 (procps-ng library/readproc.c)";
const LIBVIRT_SCOPE: &str = "libvirt src/util/virsystemd.c virSystemdMakeScopeName";
const LIBVIRT: &str = "libvirt docs/cgroups.rst, hosts without systemd";
const MACHINED: &str = "systemd src/machine/machine.c; units/systemd-nspawn@.service.in";
const KATA: &str = "Kata Containers 4.1 docs/design/host-cgroups.md";
const SLURM_V1: &str = "Slurm 25.05 src/plugins/cgroup/v1/xcgroup.c";
const SLURM_V2: &str = "Slurm 25.05 src/plugins/cgroup/v2/cgroup_v2.c";
const HTCONDOR: &str = "HTCondor 25.13 src/condor_starter.V6.1/vanilla_proc.cpp, BASE_CGROUP";
const FLUX: &str = "flux-core 0.88 src/common/libsubprocess/bulk-exec.c";
const APPTAINER: &str = "Apptainer 1.5 internal/pkg/cgroups/manager_linux.go";
const SINGULARITY: &str = "SingularityCE internal/pkg/cgroups/manager_linux.go";
const GARDEN: &str = "Garden (guardian) rundmc/cgroups, rundmc/bundlerules/cgroup_path.go";

/// The forms of control group names. The first matching row applies.
pub(super) const ROWS: &[Row] = &{
    use NameIn::{Annotations, AnyEngine, Docker, Group, Number, Podman};
    use Platform::{Apptainer, Flux, Garden, HtCondor, Lxc, Nspawn, Singularity, Slurm};
    [
        // Groups that engines create beside their guests.
        beside("libpod-conmon-{id}.scope", CONMON),
        beside("libpod_parent/{id}", PODMAN_POD),
        beside("crio-conmon-{id}.scope", CRIO),
        beside("crio-conmon-{id}", CRIO),
        beside("lxc.monitor.{name}", LXC),
        beside("lxc.monitor/{name}", LXC_3),
        beside(r"machine-qemu\x2d#\x2d{unit}.scope", LIBVIRT_SCOPE),
        beside(r"machine-qemu\x2dembed\x2d{unit}.scope", LIBVIRT_SCOPE),
        beside(r"machine-ch\x2d#\x2d{unit}.scope", LIBVIRT_SCOPE),
        beside("{name}.libvirt-qemu", LIBVIRT),
        beside("kata_{name}", KATA),
        beside("kata_overhead/**/{name}", KATA),
        beside("*slurmstepd.scope/system", SLURM_V2),
        beside("garden/good", GARDEN),
        beside("garden/bad", GARDEN),
        // Kubernetes. Runtimes with the cgroupfs driver use systemd's `slice:prefix:id` as a name.
        guest(
            "cri-containerd-{id}.scope",
            Platform::Kubernetes,
            Annotations,
            CRI_CONTAINERD,
        ),
        guest(
            "*:cri-containerd:{id}",
            Platform::Kubernetes,
            Annotations,
            CRI_CONTAINERD,
        ),
        guest("crio-{id}.scope", Platform::Kubernetes, Annotations, CRIO),
        guest("crio-{id}", Platform::Kubernetes, Annotations, CRIO),
        guest("*:crio:{id}", Platform::Kubernetes, Annotations, CRIO),
        guest(
            "{kubepods}/**/docker-{id}.scope",
            Platform::Kubernetes,
            AnyEngine,
            KUBELET,
        ),
        guest(
            "*kubepods*:docker:{id}",
            Platform::Kubernetes,
            AnyEngine,
            KUBELET,
        ),
        guest(
            "{kubepods}/**/{id}",
            Platform::Kubernetes,
            AnyEngine,
            KUBELET,
        ),
        // Engines.
        guest("docker-{id}.scope", Platform::Docker, Docker, MOBY),
        guest("*:docker:{id}", Platform::Docker, Docker, MOBY),
        guest("docker/{id}", Platform::Docker, Docker, MOBY),
        guest("libpod-{id}.scope", Platform::Podman, Podman, PODMAN),
        guest("libpod-payload-{id}", Platform::Podman, Podman, PODMAN),
        guest("libpod-{id}", Platform::Podman, Podman, PODMAN),
        guest("*:libpod:{id}", Platform::Podman, Podman, PODMAN),
        guest(
            "nerdctl-{id}.scope",
            Platform::Containerd,
            Annotations,
            NERDCTL,
        ),
        guest("*:nerdctl:{id}", Platform::Containerd, Annotations, NERDCTL),
        guest(
            "default/{id}",
            Platform::Containerd,
            Annotations,
            CONTAINERD,
        ),
        guest("runc-{name}.scope", Platform::Runc, Group, OCI_SCOPE),
        guest("crun-{name}.scope", Platform::Crun, Group, OCI_SCOPE),
        // System containers.
        guest("lxc.payload.{name}", Lxc, Group, LXC),
        guest("lxc.payload/{name}", Lxc, Group, LXC_3),
        guest("lxc/{name}", Lxc, Group, LXC_OLD),
        guest(
            r"machine-lxc\x2d#\x2d{unit}.scope",
            Lxc,
            Group,
            LIBVIRT_SCOPE,
        ),
        guest("lxc-#-{name}.libvirt-lxc", Lxc, Group, LIBVIRT),
        guest("{name}.libvirt-lxc", Lxc, Group, LIBVIRT),
        guest("systemd-nspawn@{unit}.service", Nspawn, Group, MACHINED),
        guest("machine-{unit}.scope", Nspawn, Group, MACHINED),
        // Batch systems: a job is the guest, including its steps and all processes that it starts.
        guest(
            "*slurmstepd.scope/job_{number}",
            Slurm,
            Number("job"),
            SLURM_V2,
        ),
        guest("slurm*/uid_#/job_{number}", Slurm, Number("job"), SLURM_V1),
        guest("htcondor/{name}", HtCondor, Group, HTCONDOR),
        guest(
            "user@#.service/**/imp-shell-#-{unit}.service",
            Flux,
            Group,
            FLUX,
        ),
        guest(
            "user@#.service/**/shell-#-{unit}.service",
            Flux,
            Group,
            FLUX,
        ),
        guest(
            "apptainer-{number}.scope",
            Apptainer,
            Number("process"),
            APPTAINER,
        ),
        guest(
            "apptainer/{number}",
            Apptainer,
            Number("process"),
            APPTAINER,
        ),
        guest(
            "singularity-{number}.scope",
            Singularity,
            Number("process"),
            SINGULARITY,
        ),
        guest(
            "singularity/{number}",
            Singularity,
            Number("process"),
            SINGULARITY,
        ),
        guest("garden/good/{name}", Garden, Group, GARDEN),
        guest("garden/bad/{name}", Garden, Group, GARDEN),
        guest("garden/{name}", Garden, Group, GARDEN),
        // Docker with `--cgroup-parent` and the cgroupfs driver, unless containerd has the id.
        guest("{id}", Platform::Docker, AnyEngine, MOBY),
    ]
};

/// The guest that a control group's path describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Container {
    pub(super) platform: Platform,
    /// The engine's id, or the name where it has none. It may be any text.
    pub(super) id: String,
    pub(super) name_in: NameIn,
}

/// Recognises a guest by the path of its control group relative to the hierarchy.
pub(super) fn recognise(group: &Path) -> Option<Container> {
    let parts: Vec<&[u8]> = group.iter().map(OsStrExt::as_bytes).collect();
    let (row, id) = ROWS.iter().find_map(|row| {
        let pattern: Vec<&str> = row.pattern.split('/').collect();
        let mut id = Vec::new();
        ends_in(&pattern, &parts, &mut id).then_some((row, id))
    })?;
    let (platform, name_in) = row.guest?;
    Some(Container {
        platform,
        id: String::from_utf8_lossy(&id).into_owned(),
        name_in,
    })
}

/// Whether a group contains guests only, by the path of the group relative to the hierarchy: kubelet's groups, and
/// groups that engines create for their containers.
pub(super) fn holds_only_guests(group: &Path) -> bool {
    let parts: Vec<&[u8]> = group.iter().map(OsStrExt::as_bytes).collect();
    let is_kubelets = |part: &&[u8]| std::str::from_utf8(part).is_ok_and(pod::is_kubelets);
    if parts.iter().any(is_kubelets) {
        return true;
    }
    let guests = ROWS.iter().filter(|row| row.guest.is_some());
    let around = guests.filter_map(|row| row.pattern.rsplit_once('/'));
    around
        .map(|(around, _)| around)
        .chain(["libpod_parent"])
        .filter(|around| !around.contains("**"))
        .any(|around| {
            let pattern: Vec<&str> = around.split('/').collect();
            ends_in(&pattern, &parts, &mut Vec::new())
        })
}

/// Whether a group is a guest's, or one that an engine creates beside its guest, by its path.
pub(super) fn is_engines(group: &Path) -> bool {
    let parts: Vec<&[u8]> = group.iter().map(OsStrExt::as_bytes).collect();
    ROWS.iter().any(|row| {
        let pattern: Vec<&str> = row.pattern.split('/').collect();
        ends_in(&pattern, &parts, &mut Vec::new())
    })
}

/// Whether a path ends in these parts; `id` is set to the part that identifies the guest.
fn ends_in(pattern: &[&str], path: &[&[u8]], id: &mut Vec<u8>) -> bool {
    let Some((last, pattern)) = pattern.split_last() else {
        return true;
    };
    if *last == "**" {
        let above = |length| path.get(..length).unwrap_or_default();
        return (0..=path.len()).any(|length| ends_in(pattern, above(length), id));
    }
    let Some((part, path)) = path.split_last() else {
        return false;
    };
    let fits = if *last == "{kubepods}" {
        std::str::from_utf8(part).is_ok_and(pod::is_kubelets)
    } else {
        part_fits(last.as_bytes(), part, id)
    };
    fits && ends_in(pattern, path, id)
}

fn part_fits(pattern: &[u8], text: &[u8], id: &mut Vec<u8>) -> bool {
    const ID_LENGTH: usize = 64;
    let digits = || {
        let is_digit = |byte: &&u8| byte.is_ascii_digit();
        text.split_at(text.iter().take_while(is_digit).count())
    };
    if let Some(rest) = pattern.strip_prefix(b"{id}") {
        let Some((found, text)) = text.split_at_checked(ID_LENGTH) else {
            return false;
        };
        id.splice(.., found.iter().copied());
        return found.iter().all(u8::is_ascii_hexdigit) && part_fits(rest, text, id);
    }
    if let Some(rest) = pattern.strip_prefix(b"{number}") {
        let (found, text) = digits();
        id.splice(.., found.iter().copied());
        return !found.is_empty() && part_fits(rest, text, id);
    }
    if let Some(rest) = pattern.strip_prefix(b"{name}") {
        let found = text.strip_suffix(rest).unwrap_or_default();
        id.splice(.., found.iter().copied());
        return !found.is_empty();
    }
    if let Some(rest) = pattern.strip_prefix(b"{unit}") {
        let found = text.strip_suffix(rest).unwrap_or_default();
        *id = unescaped(found);
        return !found.is_empty();
    }
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'#', rest)), _) => {
            let (found, text) = digits();
            !found.is_empty() && part_fits(rest, text, id)
        }
        (Some((b'*', rest)), _) => {
            let from = |at| text.get(at..).unwrap_or_default();
            (0..=text.len()).any(|at| part_fits(rest, from(at), id))
        }
        (Some((one, pattern)), Some((other, text))) => one == other && part_fits(pattern, text, id),
        _ => false,
    }
}

/// The unescaped form of systemd's `text`: `\x2d` encodes the byte 0x2d (`systemd-escape(1)`).
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut found = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        let (byte, after) = escape(rest).unwrap_or((*byte, after));
        found.push(byte);
        rest = after;
    }
    found
}

/// The byte that an escape at the beginning of a text encodes, and the rest of the text.
fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let (code, after) = text.strip_prefix(b"\\x")?.split_at_checked(2)?;
    let code = std::str::from_utf8(code).ok()?;
    // A number may have a sign.
    if !code.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    Some((u8::from_str_radix(code, 16).ok()?, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const POD: &str = "1b4e28ba_2fa1_11d2_883f_0016d3cca427";

    fn found(path: &str) -> Option<(Platform, String)> {
        let path = path.replace("ID", ID).replace("POD", POD);
        recognise(Path::new(&path)).map(|found| (found.platform, found.id))
    }

    #[test]
    fn a_group_that_contains_nothing_but_guests_is_known_by_its_path() {
        for (group, is) in [
            ("docker", true),
            ("a/lxc.payload", true),
            ("slurm_node1/uid_1000", true),
            ("libpod_parent", true),
            ("kubepods.slice/kubepods-burstable.slice", true),
            ("", false),
            ("system.slice", false),
            ("machine.slice", false),
            ("user.slice/user-0.slice", false),
        ] {
            assert_eq!(holds_only_guests(Path::new(group)), is, "{group}");
        }
        let id = Path::new("system.slice").join(format!("docker-{ID}.scope"));
        assert!(is_engines(&id));
        assert!(!is_engines(Path::new("system.slice/logrotate.service")));
    }

    #[test]
    fn every_runtime_is_recognised_by_how_it_calls_its_control_groups() {
        use Platform::*;
        let user = "user.slice/user-1000.slice/user@1000.service";
        let of_user = |rest: &str| format!("{user}/{rest}");
        for (path, platform, id) in [
            ("system.slice/docker-ID.scope", Docker, ID),
            ("docker/ID", Docker, ID),
            ("x/ID", Docker, ID),
            ("a/b/ID", Docker, ID),
            (
                "system.slice/docker.service/system.slice:docker:ID",
                Docker,
                ID,
            ),
            ("machine.slice/libpod-ID.scope", Podman, ID),
            ("libpod_parent/libpod-ID", Podman, ID),
            ("libpod_parent/ID/libpod-ID", Podman, ID),
            ("system.slice/web.service/libpod-payload-ID", Podman, ID),
            (&of_user("user.slice/libpod-ID.scope"), Podman, ID),
            (
                &of_user("app.slice/web.service/libpod-payload-ID"),
                Podman,
                ID,
            ),
            (
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podPOD.slice/cri-containerd-ID.scope",
                Kubernetes,
                ID,
            ),
            (
                "system.slice/containerd.service/kubepods-burstable-podPOD.slice:cri-containerd:ID",
                Kubernetes,
                ID,
            ),
            (
                "system.slice/crio.service/kubepods-podPOD.slice:crio:ID",
                Kubernetes,
                ID,
            ),
            (
                "system.slice/docker.service/kubepods-podPOD.slice:docker:ID",
                Kubernetes,
                ID,
            ),
            (
                "kubepods.slice/kubepods-podPOD.slice/crio-ID.scope",
                Kubernetes,
                ID,
            ),
            (
                "kubepods.slice/kubepods-podPOD.slice/docker-ID.scope",
                Kubernetes,
                ID,
            ),
            (
                "kubelet.slice/kubelet-kubepods.slice/x/docker-ID.scope",
                Kubernetes,
                ID,
            ),
            ("kubepods/burstable/podPOD/crio-ID", Kubernetes, ID),
            ("kubepods/besteffort/podPOD/ID", Kubernetes, ID),
            ("default/ID", Containerd, ID),
            ("system.slice/nerdctl-ID.scope", Containerd, ID),
            (
                "system.slice/containerd.service/system.slice:nerdctl:ID",
                Containerd,
                ID,
            ),
            ("system.slice/runc-web.scope", Runc, "web"),
            ("system.slice/crun-web.scope", Crun, "web"),
            ("lxc.payload.web", Lxc, "web"),
            ("lxc.payload/c1", Lxc, "c1"),
            ("lxc/web", Lxc, "web"),
            (
                r"machine.slice/machine-lxc\x2d4711\x2dweb.scope",
                Lxc,
                "web",
            ),
            (
                r"machine.slice/machine-lxc\x2d4711\x2dweb\x2d1.scope",
                Lxc,
                "web-1",
            ),
            ("machine/lxc-4711-web-1.libvirt-lxc", Lxc, "web-1"),
            ("machine/web.libvirt-lxc", Lxc, "web"),
            ("machine.slice/systemd-nspawn@web.service", Nspawn, "web"),
            (
                r"machine.slice/systemd-nspawn@deb\x2dtemplate.service",
                Nspawn,
                "deb-template",
            ),
            ("machine.slice/machine-web.scope", Nspawn, "web"),
            (r"machine.slice/machine-db\x2d1.scope", Nspawn, "db-1"),
            (
                r"machine.slice/machine-qemu\x2dbuild.scope",
                Nspawn,
                "qemu-build",
            ),
            (r"machine.slice/machine-x\x2.scope", Nspawn, r"x\x2"),
            (r"machine.slice/machine-x\x+1.scope", Nspawn, r"x\x+1"),
            ("system.slice/slurmstepd.scope/job_123", Slurm, "123"),
            ("system.slice/node1_slurmstepd.scope/job_123", Slurm, "123"),
            ("slurm/uid_1000/job_123", Slurm, "123"),
            ("slurm_node1/uid_1000/job_123", Slurm, "123"),
            (
                "system.slice/condor.service/htcondor/_var_lib_condor_execute_slot1_1@h",
                HtCondor,
                "_var_lib_condor_execute_slot1_1@h",
            ),
            (&of_user("app.slice/imp-shell-0-f2Nd.service"), Flux, "f2Nd"),
            (&of_user("shell-12-f2Nd.service"), Flux, "f2Nd"),
            ("system.slice/apptainer-4711.scope", Apptainer, "4711"),
            ("apptainer/4711", Apptainer, "4711"),
            ("singularity/4711", Singularity, "4711"),
            (
                &of_user("user.slice/singularity-4711.scope"),
                Singularity,
                "4711",
            ),
            ("garden/5fa2d5a1-web", Garden, "5fa2d5a1-web"),
            ("garden/good/5fa2d5a1-web", Garden, "5fa2d5a1-web"),
        ] {
            assert_eq!(found(path), Some((platform, id.to_owned())), "{path}");
        }
    }

    #[test]
    fn what_engines_put_beside_their_guests_is_no_guest() {
        for path in [
            "machine.slice/libpod-conmon-ID.scope",
            "system.slice/web.service/runtime",
            "libpod_parent/ID",
            "libpod_parent/conmon",
            "machine.slice/machine-libpod_pod_ID.slice",
            "system.slice/crio-conmon-ID.scope",
            "kubepods/burstable/podPOD/crio-conmon-ID",
            "system.slice/docker.service",
            "docker",
            "lxc.monitor.web",
            "lxc.monitor/c1",
            "lxc.payload",
            "kubepods.slice/kubepods-podPOD.slice",
            "kubepods/podPOD/kata_ID",
            "kata_overhead/ID",
            "kata_overhead/kubepods/podPOD/ID",
            r"machine.slice/machine-qemu\x2d1\x2dweb.scope",
            r"machine.slice/machine-qemu\x2dembed\x2d0991f456\x2d1\x2ddemo.scope",
            r"machine.slice/machine-ch\x2d1\x2dweb.scope",
            "machine/qemu-1-web.libvirt-qemu",
            "system.slice/slurmstepd.scope",
            "system.slice/slurmstepd.scope/system",
            "slurm/uid_1000",
            "slurm/system",
            "system.slice/slurmd.service",
            "system.slice/shell-0-f2Nd.service",
            "garden/good",
            "garden/bad",
            "user.slice/session-1.scope",
            "system.slice/apptainer-x.scope",
            "",
        ] {
            assert_eq!(found(path), None, "{path}");
        }
    }

    #[test]
    fn a_name_that_is_no_text_is_found_all_the_same() {
        let path = std::ffi::OsStr::from_bytes(b"lxc.payload.a\xff\x1b[2J");
        let found = recognise(Path::new(path)).unwrap();
        assert_eq!(found.platform, Platform::Lxc);
        let hidden = found_in(r"machine.slice/machine-a\x0ab\x1b\x00.scope");
        assert_eq!(hidden, "a\nb\u{1b}\0");
        let shown = super::super::name::sanitised(hidden.as_bytes());
        assert!(shown.chars().all(|c| !c.is_control()), "{shown:?}");
    }

    fn found_in(path: &str) -> String {
        recognise(Path::new(path)).unwrap().id
    }

    /// `docs/reference/runtimes.md` has one line for each row, in the same order.
    #[test]
    fn the_documentation_has_the_table() {
        let page = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../docs/reference/runtimes.md"
        );
        let page = std::fs::read_to_string(page).unwrap();
        let rows: Vec<String> = ROWS
            .iter()
            .map(|row| {
                let (kind, name) = match row.guest {
                    None => ("no guest", "".to_owned()),
                    Some((platform, name)) => (
                        platform.name(),
                        match name {
                            NameIn::Docker => "Docker's container".to_owned(),
                            NameIn::Podman => "Podman's storage, conmon".to_owned(),
                            NameIn::Annotations => "OCI annotations".to_owned(),
                            NameIn::AnyEngine => "Docker's container, OCI annotations".to_owned(),
                            NameIn::Group => "the group".to_owned(),
                            NameIn::Number(of) => format!("`{of} N`"),
                        },
                    ),
                };
                format!("| `{}` | {kind} | {name} | {} |", row.pattern, row.source)
            })
            .collect();
        let documented: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        assert_eq!(documented.join("\n"), rows.join("\n"));
    }

    proptest! {
        #[test]
        fn no_path_panics(parts in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..300),
                r"(machine-|lxc/|lxc-|libpod-|job_|uid_|kubepods|\\x2d|:docker:|[0-9a-f]{64}|\.scope|\*|#|\{id\}){0,6}"
                    .prop_map(String::into_bytes),
            ],
            0..8,
        )) {
            let path = parts.join(&b'/');
            let path = Path::new(std::ffi::OsStr::from_bytes(&path));
            if let Some(found) = recognise(path) {
                prop_assert!(!found.id.is_empty());
                prop_assert!(path.as_os_str().len() >= found.id.len() / 3);
            }
        }
    }
}
