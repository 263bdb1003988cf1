//! Containers: recognised by their control groups, which every runtime names in its own way, or by
//! the state that a plain OCI runtime keeps; named by what their engine stored.

use super::Platform;
use serde_json::Value;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Larger than any state or configuration file of a container.
const LARGEST_FILE: u64 = 4 << 20;

/// What a control group's path says of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Container {
    pub(super) platform: Platform,
    /// The engine's id, or the name where it has none.
    pub(super) id: String,
}

/// The container whose control group this is, by the path's last parts (relative to the hierarchy).
pub(super) fn recognise(group: &Path) -> Option<Container> {
    let leaf = std::str::from_utf8(group.file_name()?.as_bytes()).ok()?;
    let parent = group
        .parent()
        .and_then(Path::file_name)
        .map_or("", |name| name.to_str().unwrap_or(""));
    let container = |platform, id: &str| {
        Some(Container {
            platform,
            id: id.to_owned(),
        })
    };
    let in_pod = group
        .iter()
        .any(|part| part.as_bytes().starts_with(b"kubepods"));
    let engine = |default| {
        if in_pod {
            Platform::Kubernetes
        } else {
            default
        }
    };

    if let Some(name) = leaf.strip_suffix(".scope") {
        // The monitors that podman and CRI-O put beside each container are no containers.
        for (prefix, platform) in [
            ("docker-", engine(Platform::Docker)),
            ("libpod-", Platform::Podman),
            ("cri-containerd-", Platform::Kubernetes),
            ("crio-", Platform::Kubernetes),
            ("nerdctl-", Platform::Containerd),
        ] {
            if let Some(id) = name.strip_prefix(prefix).filter(|id| is_id(id)) {
                return container(platform, id);
            }
        }
        for (prefix, platform) in [("runc-", Platform::Runc), ("crun-", Platform::Crun)] {
            if let Some(id) = name.strip_prefix(prefix).filter(|id| !id.is_empty()) {
                return container(platform, id);
            }
        }
        if let Some(name) = name.strip_prefix("machine-") {
            let is_vm = name.starts_with("qemu");
            return (!is_vm).then(|| container(Platform::Nspawn, name))?;
        }
        return None;
    }
    if let Some(name) = leaf
        .strip_prefix("systemd-nspawn@")
        .and_then(|name| name.strip_suffix(".service"))
    {
        return container(Platform::Nspawn, name);
    }
    if let Some(name) = leaf.strip_prefix("lxc.payload.") {
        return container(Platform::Lxc, name);
    }
    if let Some(id) = leaf.strip_prefix("libpod-").filter(|id| is_id(id)) {
        return container(Platform::Podman, id);
    }
    if parent == "lxc" {
        return container(Platform::Lxc, leaf);
    }
    if is_id(leaf) {
        let default = match parent {
            "docker" => Platform::Docker,
            _ => Platform::Containerd,
        };
        return container(engine(default), leaf);
    }
    None
}

/// Engines give containers 256-bit ids in hexadecimal.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Containers of plain OCI runtimes, which may be in any control group: their states, read once.
#[derive(Debug, Default)]
pub(super) struct OciStates {
    /// By the state's directory: what it says, `None` for a state that cannot be read.
    known: HashMap<PathBuf, Option<(PathBuf, Container)>>,
}

impl OciStates {
    /// Brings the states below `run` up to date; the containers by control group, relative to the
    /// hierarchy.
    pub(super) fn update(&mut self, run: &Path) -> HashMap<&Path, &Container> {
        let mut present = Vec::new();
        let mut roots = vec![run.to_owned()];
        roots.extend(directories(&run.join("user")));
        for root in roots {
            for (runtime, file) in [("runc", "state.json"), ("crun", "status")] {
                for state in directories(&root.join(runtime)) {
                    let entry = self.known.entry(state.clone());
                    entry.or_insert_with(|| read_state(&state.join(file), &state));
                    present.push(state);
                }
            }
        }
        if present.len() < self.known.len() {
            self.known.retain(|state, _| present.contains(state));
        }
        // A container that is being created has no complete state yet.
        self.known.retain(|_, state| state.is_some());
        self.known
            .values()
            .flatten()
            .map(|(group, container)| (group.as_path(), container))
            .collect()
    }
}

fn read_state(file: &Path, state: &Path) -> Option<(PathBuf, Container)> {
    let id = state.file_name()?.to_str()?.to_owned();
    let json = json(file)?;
    if let Some(path) = json.get("cgroup-path").and_then(Value::as_str) {
        let group = PathBuf::from(path.trim_start_matches('/'));
        let container = Container {
            platform: Platform::Crun,
            id,
        };
        return (!group.as_os_str().is_empty()).then_some((group, container));
    }
    let paths = json.get("cgroup_paths")?.as_object()?;
    // runc writes paths with their mount point: `…/cgroup/cpuacct/a` (v1), `…/cgroup/a` (v2).
    let (path, controllers) = match paths.get("cpuacct") {
        Some(path) => (path, 1),
        None => (paths.get("")?, 0),
    };
    let mut parts = Path::new(path.as_str()?)
        .iter()
        .skip_while(|part| *part != "cgroup");
    let group: PathBuf = parts.by_ref().skip(1 + controllers).collect();
    let container = Container {
        platform: Platform::Runc,
        id,
    };
    Some((group, container))
}

/// What people call a container, from what its engine stored; `None` where it stored nothing.
pub(super) fn name(container: &Container, run: &Path, lib: &Path) -> Option<String> {
    let id = container.id.as_str();
    let text = |json: &Value, key: &str| json.get(key).and_then(Value::as_str).map(str::to_owned);
    match container.platform {
        Platform::Docker => {
            let file = lib
                .join("docker/containers")
                .join(id)
                .join("config.v2.json");
            let name = text(&json(&file)?, "Name")?;
            Some(name.trim_start_matches('/').to_owned())
        }
        Platform::Podman => ["containers.json", "volatile-containers.json"]
            .into_iter()
            .find_map(|file| {
                let list = json(&lib.join("containers/storage/overlay-containers").join(file))?;
                let entry = list
                    .as_array()?
                    .iter()
                    .find(|entry| entry.get("id").and_then(Value::as_str) == Some(id))?;
                Some(entry.get("names")?.get(0)?.as_str()?.to_owned())
            }),
        Platform::Kubernetes | Platform::Containerd => {
            let tasks = run.join("containerd/io.containerd.runtime.v2.task");
            let mut files: Vec<PathBuf> = directories(&tasks)
                .map(|namespace| namespace.join(id).join("config.json"))
                .collect();
            files.push(
                run.join("containers/storage/overlay-containers")
                    .join(id)
                    .join("userdata/config.json"),
            );
            let config = files.iter().find_map(|file| json(file))?;
            let notes = config.get("annotations")?;
            let first = |keys: &[&str]| keys.iter().find_map(|key| text(notes, key));
            let pod = first(&["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"]);
            let Some(pod) = pod else {
                return text(notes, "nerdctl/name");
            };
            let namespace = first(&[
                "io.kubernetes.cri.sandbox-namespace",
                "io.kubernetes.pod.namespace",
            ])
            .unwrap_or_default();
            // The container that only holds a pod's namespaces has no name of its own.
            let own = first(&[
                "io.kubernetes.cri.container-name",
                "io.kubernetes.container.name",
            ])
            .unwrap_or_else(|| "pause".to_owned());
            Some(format!("{namespace}/{pod}/{own}"))
        }
        _ => Some(id.to_owned()),
    }
}

fn json(file: &Path) -> Option<Value> {
    let size = std::fs::metadata(file).ok()?.len();
    (size <= LARGEST_FILE)
        .then(|| std::fs::read(file).ok())?
        .and_then(|content| serde_json::from_slice(&content).ok())
}

fn directories(parent: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(parent)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            entry.file_type().ok()?.is_dir().then(|| entry.path())
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn every_engine_is_told_by_how_it_names_control_groups() {
        for (path, platform) in [
            ("system.slice/docker-ID.scope", Platform::Docker),
            ("docker/ID", Platform::Docker),
            ("machine.slice/libpod-ID.scope", Platform::Podman),
            ("libpod_parent/libpod-ID", Platform::Podman),
            (
                "user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope",
                Platform::Podman,
            ),
            (
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-ID.scope",
                Platform::Kubernetes,
            ),
            (
                "kubepods.slice/kubepods-pod1.slice/crio-ID.scope",
                Platform::Kubernetes,
            ),
            (
                "kubepods.slice/kubepods-pod1.slice/docker-ID.scope",
                Platform::Kubernetes,
            ),
            ("kubepods/besteffort/pod1/ID", Platform::Kubernetes),
            ("default/ID", Platform::Containerd),
            ("system.slice/nerdctl-ID.scope", Platform::Containerd),
            ("system.slice/runc-web.scope", Platform::Runc),
            ("system.slice/crun-web.scope", Platform::Crun),
            ("lxc.payload.web", Platform::Lxc),
            ("lxc/web", Platform::Lxc),
            ("machine.slice/systemd-nspawn@web.service", Platform::Nspawn),
            ("machine.slice/machine-web.scope", Platform::Nspawn),
        ] {
            let found = recognise(Path::new(&path.replace("ID", ID)));
            assert_eq!(
                found.map(|container| container.platform),
                Some(platform),
                "{path}"
            );
        }
    }

    #[test]
    fn what_stands_beside_containers_is_none() {
        for path in [
            "machine.slice/libpod-conmon-ID.scope",
            "system.slice/crio-conmon-ID.scope",
            "system.slice/docker.service",
            "docker",
            "kubepods.slice/kubepods-pod1.slice",
            "machine.slice/machine-qemu\\x2d1\\x2dweb.scope",
            "user.slice/session-1.scope",
            "",
        ] {
            assert_eq!(
                recognise(Path::new(&path.replace("ID", ID))),
                None,
                "{path}"
            );
        }
    }

    #[test]
    fn engines_stored_names_are_found() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, content: &str| {
            let path = root.path().join(path.replace("ID", ID));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content.replace("ID", ID)).unwrap();
        };
        put(
            "lib/docker/containers/ID/config.v2.json",
            r#"{"Name":"/web"}"#,
        );
        put(
            "lib/containers/storage/overlay-containers/containers.json",
            r#"[{"id":"x","names":["other"]},{"id":"ID","names":["pod-web"]}]"#,
        );
        put(
            "run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json",
            r#"{"annotations":{"io.kubernetes.cri.sandbox-name":"p","io.kubernetes.cri.sandbox-namespace":"ns","io.kubernetes.cri.container-name":"c"}}"#,
        );
        let name = |platform| {
            let container = Container {
                platform,
                id: ID.to_owned(),
            };
            name(
                &container,
                &root.path().join("run"),
                &root.path().join("lib"),
            )
        };
        assert_eq!(name(Platform::Docker).as_deref(), Some("web"));
        assert_eq!(name(Platform::Podman).as_deref(), Some("pod-web"));
        assert_eq!(name(Platform::Kubernetes).as_deref(), Some("ns/p/c"));
        put("lib/docker/containers/ID/config.v2.json", "{ not json");
        assert_eq!(name(Platform::Docker), None);
    }

    #[test]
    fn plain_runtimes_are_found_by_their_states_in_any_group() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, content: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        put(
            "runc/a/state.json",
            r#"{"id":"a","cgroup_paths":{"cpuacct":"/sys/fs/cgroup/cpuacct/mine/a","memory":"/sys/fs/cgroup/memory/mine/a"}}"#,
        );
        put(
            "runc/b/state.json",
            r#"{"id":"b","cgroup_paths":{"":"/sys/fs/cgroup/b.slice/b"}}"#,
        );
        put(
            "user/1000/crun/c/status",
            r#"{"pid":7,"cgroup-path":"/user.slice/c"}"#,
        );
        put("runc/half/state.json", r#"{"id":"#);
        let mut states = OciStates::default();
        let found = states.update(root.path());
        assert_eq!(found[Path::new("mine/a")].id, "a");
        assert_eq!(found[Path::new("b.slice/b")].id, "b");
        assert_eq!(found[Path::new("user.slice/c")].platform, Platform::Crun);
        assert_eq!(found.len(), 3);
        fs::remove_dir_all(root.path().join("runc/b")).unwrap();
        let found = states.update(root.path());
        assert!(!found.contains_key(Path::new("b.slice/b")));
    }
}
