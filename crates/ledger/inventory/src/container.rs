// SPDX-License-Identifier: Apache-2.0
//! Data that container engines and plain OCI runtimes store about their containers: names, and states that give the
//! control group of each.

use super::runtimes::{Container, NameIn};
use super::{Platform, options};
use rustix::fs::{Mode, OFlags};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use vtax_kernel::Process;
use vtax_observe::Roots;

/// Larger than any state or configuration file of a container.
const LARGEST_FILE: u64 = 4 << 20;

/// The largest distance from a process to its container's monitor. A monitor is the parent of the container's first
/// process, which is close to all others.
const MOST_ANCESTORS: usize = 16;

/// Containers of plain OCI runtimes, which may be in any control group, from their states, each read once.
#[derive(Debug, Default)]
pub(super) struct OciStates {
    /// By the state's directory: the group and container of the state, `None` for a state that cannot be read.
    known: HashMap<PathBuf, Option<(PathBuf, Container)>>,
}

impl OciStates {
    /// Updates the states below `run`; returns the containers by control group, relative to the hierarchy.
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
            name_in: NameIn::Group,
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
        name_in: NameIn::Group,
    };
    Some((group, container))
}

/// The stores in which engines keep the names of their containers.
pub(super) struct Stores<'a> {
    roots: &'a Roots,
}

impl<'a> Stores<'a> {
    pub(super) fn new(roots: &'a Roots) -> Self {
        Self { roots }
    }

    /// Returns the platform of a container, and its name where its engine stored one. `process` finds a process of the
    /// container.
    pub(super) fn look_up(
        &self,
        container: &Container,
        process: impl FnOnce() -> Option<u32>,
    ) -> (Platform, Option<String>) {
        let id = container.id.as_str();
        let platform = container.platform;
        match container.name_in {
            NameIn::Docker => (platform, self.of_docker(id)),
            NameIn::Podman => {
                let name = self.of_podman(id);
                (platform, name.or_else(|| self.of_conmon(id, process()?)))
            }
            NameIn::Annotations => (platform, self.of_annotations(id)),
            NameIn::AnyEngine => {
                if let Some(name) = self.of_docker(id) {
                    return (platform, Some(name));
                }
                let is_containerds = platform == Platform::Docker && self.is_containerds(id);
                let platform = if is_containerds {
                    Platform::Containerd
                } else {
                    platform
                };
                (platform, self.of_annotations(id))
            }
            NameIn::Group => (platform, Some(id.to_owned())),
            NameIn::Number(of) => (platform, Some(format!("{of} {id}"))),
        }
    }

    /// The name that Docker stores. For a pod's container it is the pod's name, from kubelet's labels.
    fn of_docker(&self, id: &str) -> Option<String> {
        let folder = self.roots.lib.join("docker/containers").join(id);
        let config = json(&folder.join("config.v2.json"))?;
        let labels = config.get("Config").and_then(|known| known.get("Labels"));
        let of_pod = labels.and_then(pod_name);
        of_pod.or_else(|| Some(text(&config, "Name")?.trim_start_matches('/').to_owned()))
    }

    /// The name in the storage of root's Podman, with any storage driver.
    fn of_podman(&self, id: &str) -> Option<String> {
        let drivers = directories(&self.roots.lib.join("containers/storage"));
        let is_list = |path: &PathBuf| path.to_string_lossy().ends_with("-containers");
        let files = ["containers.json", "volatile-containers.json"];
        drivers
            .filter(is_list)
            .flat_map(|driver| files.map(|file| driver.join(file)))
            .find_map(|file| {
                let list = json(&file)?;
                let has_id = |entry: &&Value| entry.get("id").and_then(Value::as_str) == Some(id);
                let entry = list.as_array()?.iter().find(has_id)?;
                Some(entry.get("names")?.get(0)?.as_str()?.to_owned())
            })
    }

    /// The name on the command line of Podman's monitor for the container. The storage of other users is not read,
    /// because they can write it.
    fn of_conmon(&self, id: &str, process: u32) -> Option<String> {
        let mut process = Process::new(&self.roots.proc, process);
        for _ in 0..MOST_ANCESTORS {
            process = Process::new(&self.roots.proc, process.parent()?);
            let arguments = process.arguments();
            let is_conmon = arguments.first().map(|first| super::base_name(first));
            if is_conmon == Some(b"conmon")
                && options::value(&arguments, "c") == Some(id.as_bytes())
            {
                let name = options::value(&arguments, "n")?;
                return Some(String::from_utf8_lossy(name).into_owned());
            }
        }
        None
    }

    /// The directories in which containerd keeps its running tasks, by namespace.
    fn namespaces(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let run = &self.roots.run;
        let mut states = vec![
            run.join("containerd"),
            // k3s and RKE2, k0s.
            run.join("k3s/containerd"),
            run.join("k0s/containerd"),
        ];
        let var = self.roots.lib.parent();
        // MicroK8s is a snap; its state is the only one outside /run.
        states.extend(var.map(|var| var.join("snap/microk8s/common/run/containerd")));
        let tasks = |state: PathBuf| directories(&state.join("io.containerd.runtime.v2.task"));
        states.into_iter().flat_map(tasks)
    }

    /// Whether containerd runs the container for a client other than Docker, whose namespace is `moby`.
    fn is_containerds(&self, id: &str) -> bool {
        let mut others = self
            .namespaces()
            .filter(|namespace| !namespace.ends_with("moby"));
        others.any(|namespace| namespace.join(id).is_dir())
    }

    /// The name in the OCI configuration of a container that containerd or CRI-O runs.
    fn of_annotations(&self, id: &str) -> Option<String> {
        let of_crio = self.roots.run.join("containers/storage");
        let of_crio = of_crio.join("overlay-containers").join(id).join("userdata");
        let folders = self.namespaces().map(|namespace| namespace.join(id));
        let config = folders
            .chain([of_crio])
            .find_map(|folder| json(&folder.join("config.json")))?;
        let notes = config.get("annotations")?;
        pod_name(notes).or_else(|| text(notes, "nerdctl/name"))
    }
}

/// `namespace/pod/container` from the annotations of containerd or CRI-O, or kubelet's labels.
fn pod_name(notes: &Value) -> Option<String> {
    let first = |keys: &[&str]| keys.iter().find_map(|key| text(notes, key));
    let pod = first(&["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"])?;
    let namespace = first(&[
        "io.kubernetes.cri.sandbox-namespace",
        "io.kubernetes.pod.namespace",
    ]);
    let own = first(&[
        "io.kubernetes.cri.container-name",
        "io.kubernetes.container.name",
    ]);
    // The container that only holds a pod's namespaces has no name of its own.
    let own = own.filter(|own| own != "POD");
    let own = own.unwrap_or_else(|| "pause".to_owned());
    Some(format!("{}/{pod}/{own}", namespace.unwrap_or_default()))
}

fn text(json: &Value, key: &str) -> Option<String> {
    json.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// Parses a regular file that is no larger than [`LARGEST_FILE`].
fn json(file: &Path) -> Option<Value> {
    // A pipe in place of the file must not block the pass.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(file, flags, Mode::empty()).ok()?);
    let about = file.metadata().ok()?;
    if !about.is_file() || about.len() > LARGEST_FILE {
        return None;
    }
    let mut content = Vec::new();
    file.take(LARGEST_FILE).read_to_end(&mut content).ok()?;
    serde_json::from_slice(&content).ok()
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
    use super::super::runtimes;
    use super::*;
    use std::fs;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// Returns the result of a lookup for the container at a control group path, on a host with these files.
    fn looked_up(files: &[(&str, &str)], path: &str) -> (Platform, Option<String>) {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path.replace("ID", ID));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content.replace("ID", ID)).unwrap();
        }
        let container = runtimes::recognise(Path::new(&path.replace("ID", ID))).unwrap();
        Stores::new(&Roots::below(root.path())).look_up(&container, || Some(20))
    }

    #[test]
    fn engines_stored_names_are_found() {
        let named = |name: &str| Some(name.to_owned());
        let docker = "var/lib/docker/containers/ID/config.v2.json";
        let found = looked_up(&[(docker, r#"{"Name":"/web"}"#)], "docker/ID");
        assert_eq!(found, (Platform::Docker, named("web")));
        let found = looked_up(&[(docker, "{ not json")], "docker/ID");
        assert_eq!(found, (Platform::Docker, None));
        for driver in ["overlay", "vfs"] {
            let list = format!("var/lib/containers/storage/{driver}-containers/containers.json");
            let content = r#"[{"id":"x","names":["other"]},{"id":"ID","names":["pod-web"]}]"#;
            let found = looked_up(
                &[(&list, content)],
                "system.slice/web.service/libpod-payload-ID",
            );
            assert_eq!(found, (Platform::Podman, named("pod-web")));
        }
        let nerdctl = "run/containerd/io.containerd.runtime.v2.task/default/ID/config.json";
        let notes = r#"{"annotations":{"nerdctl/name":"web"}}"#;
        let found = looked_up(&[(nerdctl, notes)], "system.slice/nerdctl-ID.scope");
        assert_eq!(found, (Platform::Containerd, named("web")));
    }

    #[test]
    fn a_container_of_a_pod_is_named_after_it_on_every_distribution() {
        let expected = (Platform::Kubernetes, Some("ns/p/c".to_owned()));
        let of_containerd = r#"{"annotations":{"io.kubernetes.cri.sandbox-name":"p","io.kubernetes.cri.sandbox-namespace":"ns","io.kubernetes.cri.container-name":"c"}}"#;
        let scope = "kubepods.slice/kubepods-pod1.slice/cri-containerd-ID.scope";
        for state in [
            "run/containerd",
            "run/k3s/containerd",
            "run/k0s/containerd",
            "var/snap/microk8s/common/run/containerd",
        ] {
            let file = format!("{state}/io.containerd.runtime.v2.task/k8s.io/ID/config.json");
            assert_eq!(
                looked_up(&[(&file, of_containerd)], scope),
                expected,
                "{state}"
            );
        }
        let crio = "run/containers/storage/overlay-containers/ID/userdata/config.json";
        let labels = r#""io.kubernetes.pod.name":"p","io.kubernetes.pod.namespace":"ns","io.kubernetes.container.name":"c""#;
        let of_crio = format!(r#"{{"annotations":{{{labels}}}}}"#);
        let found = looked_up(&[(crio, &of_crio)], "kubepods/burstable/pod1/crio-ID");
        assert_eq!(found, expected);
        let docker = "var/lib/docker/containers/ID/config.v2.json";
        let of_docker =
            format!(r#"{{"Name":"/k8s_c_p_ns_u_0","Config":{{"Labels":{{{labels}}}}}}}"#);
        let found = looked_up(&[(docker, &of_docker)], "kubepods/burstable/pod1/ID");
        assert_eq!(found, expected);
    }

    #[test]
    fn an_id_in_a_group_of_the_users_choice_is_dockers_unless_containerd_has_it() {
        assert_eq!(looked_up(&[], "x/ID").0, Platform::Docker);
        let task = |namespace: &str| {
            format!("run/containerd/io.containerd.runtime.v2.task/{namespace}/ID/config.json")
        };
        let found = looked_up(&[(&task("moby"), "{}")], "x/ID");
        assert_eq!(found, (Platform::Docker, None));
        let notes = r#"{"annotations":{"nerdctl/name":"web"}}"#;
        let found = looked_up(&[(&task("prod"), notes)], "prod/ID");
        assert_eq!(found, (Platform::Containerd, Some("web".to_owned())));
    }

    #[test]
    fn a_container_of_another_users_podman_is_named_by_its_monitor() {
        let group =
            "user.slice/user-1000.slice/user@1000.service/app.slice/web.service/libpod-payload-ID";
        let stat = |parent: u32| format!("20 (nginx) S {parent} 1 1");
        let conmon = "/usr/bin/conmon\0-c\0ID\0-u\0ID\0-n\0web\0";
        let found = looked_up(
            &[
                ("proc/20/stat", &stat(19)),
                ("proc/19/cmdline", "sh\0"),
                ("proc/19/stat", &stat(18)),
                ("proc/18/cmdline", conmon),
            ],
            group,
        );
        assert_eq!(found, (Platform::Podman, Some("web".to_owned())));
        let others = conmon.replace("-c\0ID", "-c\0other");
        let files = [("proc/20/stat", &*stat(18)), ("proc/18/cmdline", &others)];
        assert_eq!(looked_up(&files, group), (Platform::Podman, None));
    }

    #[test]
    fn a_pipe_in_the_place_of_a_file_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("config.json");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(json(&path).is_none());
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
