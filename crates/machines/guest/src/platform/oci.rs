// SPDX-License-Identifier: Apache-2.0
//! An OCI bundle's `config.json` (runtime specification 1.0): the common part of vtax's containers. Callers add to
//! the value.

use serde_json::{Value, json};
use std::path::Path;

/// A container: namespaces and a control group of its own, no capabilities, no new privileges.
#[derive(Debug, Clone)]
pub struct Bundle<'a> {
    /// Its host name.
    pub name: &'a str,
    /// Its root file system.
    pub root: &'a Path,
    /// Whether its root file system is writable.
    pub writable: bool,
    /// Its first process.
    pub arguments: &'a [&'a str],
    /// The environment of its first process, each `NAME=value`.
    pub environment: &'a [&'a str],
    /// The network namespace that it joins; `None` for a new one.
    pub network: Option<&'a Path>,
    /// Its control group, in the runtime's terms; `None` where it stays in the group of its starter.
    pub control_group: Option<&'a str>,
    /// The mounts besides `/proc` and `/dev`.
    pub mounts: Vec<Value>,
}

impl Bundle<'_> {
    /// The configuration.
    pub fn config(&self) -> Value {
        let mut namespaces = ["pid", "ipc", "uts", "mount"]
            .map(|kind| json!({"type": kind}))
            .to_vec();
        namespaces.push(match self.network {
            Some(path) => json!({"type": "network", "path": path}),
            None => json!({"type": "network"}),
        });
        if Path::new("/proc/self/ns/cgroup").exists() {
            namespaces.push(json!({"type": "cgroup"}));
        }
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc",
                   "options": ["nosuid", "noexec", "nodev"]}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                   "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]}),
        ];
        mounts.extend(self.mounts.iter().cloned());
        let mut config = json!({
            "ociVersion": "1.0.2",
            "hostname": self.name,
            "process": {
                "terminal": false,
                "user": {"uid": 0, "gid": 0},
                "args": self.arguments,
                "env": self.environment,
                "cwd": "/",
                "noNewPrivileges": true,
            },
            "root": {"path": self.root, "readonly": !self.writable},
            "mounts": mounts,
            "linux": {"namespaces": namespaces},
        });
        if let Some(group) = self.control_group {
            config["linux"]["cgroupsPath"] = json!(group);
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_container_has_namespaces_and_a_control_group_of_its_own() {
        let mut bundle = Bundle {
            name: "g7",
            root: Path::new("/root"),
            writable: false,
            arguments: &["cat"],
            environment: &["PATH=/bin"],
            network: None,
            control_group: Some("container-g7"),
            mounts: Vec::new(),
        };
        let config = bundle.config();
        let kinds = config.pointer("/linux/namespaces").unwrap().to_string();
        for kind in ["pid", "ipc", "uts", "mount", "network"] {
            assert!(kinds.contains(kind), "{kinds}");
        }
        assert!(!kinds.contains("path"), "{kinds}");
        assert_eq!(config["linux"]["cgroupsPath"], "container-g7");
        assert_eq!(config["root"]["readonly"], true);
        bundle.network = Some(Path::new("/run/netns/target"));
        let kinds = bundle.config()["linux"]["namespaces"].to_string();
        assert!(kinds.contains("/run/netns/target"), "{kinds}");
    }
}
