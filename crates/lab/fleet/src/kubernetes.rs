// SPDX-License-Identifier: Apache-2.0
//! Shards as the indexes of one Kubernetes Job.
//!
//! The manifest is checked against the API's types; it was never run on a cluster. vtax passes it to `kubectl` where
//! that is installed, and prints it otherwise. kubectl follows the job and fetches the results: the shards write to a
//! persistent volume, which `vtax merge` reads.

use crate::FleetRun;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};
use tracing::info;
use vtax_host::HostError;
use vtax_lab::LabError;

/// The settings of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// An image with this vtax as `vtax` and the programs of the plan's platforms.
    pub image: String,
    /// The PersistentVolumeClaim, ReadWriteMany, for the results.
    pub claim: String,
}

/// The largest plan of a ConfigMap in bytes (the API's limit is 1 MiB with the metadata).
const MOST_PLAN: usize = 1_000_000;

/// The manifest: a ConfigMap with the plan, and an Indexed Job whose pods each run one shard, no two of
/// them on one node at a time.
///
/// # Errors
/// When the plan is too long for a ConfigMap.
pub fn manifest(run: &FleetRun) -> Result<Value, LabError> {
    if run.plan.len() > MOST_PLAN {
        return Err(LabError::other(format!(
            "the plan has {} bytes, and a ConfigMap takes {MOST_PLAN}: shorten it, or use another engine",
            run.plan.len()
        )));
    }
    let digest = format!(
        "{:x}",
        Sha256::digest(format!(
            "{}{}{}",
            run.plan,
            run.shards,
            run.arguments.join(" ")
        ))
    );
    let name = format!("vtax-{}", digest.get(..12).unwrap_or_default());
    let labels = json!({ "app.kubernetes.io/name": "vtax", "vtax/run": name });
    // The directory of a machine is named by its boot.
    let script = format!(
        "boot=$(cat /proc/sys/kernel/random/boot_id) && shard=$((JOB_COMPLETION_INDEX + 1)) && \
         mkdir -p \"/fleet/{name}/shard-$shard\" && exec vtax run /plan/plan.toml --part --json \
         --place-name kubernetes --shard \"$shard/{}\" --results \"/fleet/{name}/shard-$shard/$boot\" {}",
        run.shards,
        run.arguments.join(" ")
    );
    let container = json!({
        "name": "vtax",
        "image": run.pod.image,
        "command": ["sh", "-c", script],
        // Cells need namespaces and control groups.
        "securityContext": { "privileged": true },
        "env": [{ "name": "VTAX_STATE_DIR", "value": "/var/lib/vtax" }],
        "volumeMounts": [
            { "name": "plan", "mountPath": "/plan" },
            { "name": "fleet", "mountPath": "/fleet" },
            { "name": "state", "mountPath": "/var/lib/vtax" },
            { "name": "cache", "mountPath": "/var/cache/vtax" },
            { "name": "cgroups", "mountPath": "/sys/fs/cgroup" },
        ],
    });
    // The lock and the journal belong to the node.
    let volumes = json!([
        { "name": "plan", "configMap": { "name": name } },
        { "name": "fleet", "persistentVolumeClaim": { "claimName": run.pod.claim } },
        { "name": "state", "hostPath": { "path": "/var/lib/vtax", "type": "DirectoryOrCreate" } },
        { "name": "cache", "hostPath": { "path": "/var/cache/vtax", "type": "DirectoryOrCreate" } },
        { "name": "cgroups", "hostPath": { "path": "/sys/fs/cgroup", "type": "Directory" } },
    ]);
    let alone_on_its_node = json!([{
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": { "matchLabels": { "app.kubernetes.io/name": "vtax" } },
    }]);
    let pod = json!({
        "restartPolicy": "Never",
        "affinity": { "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": alone_on_its_node,
        }},
        "containers": [container],
        "volumes": volumes,
    });
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": { "name": name, "labels": labels },
        "spec": {
            "completionMode": "Indexed",
            "completions": run.shards,
            "parallelism": run.shards,
            "backoffLimitPerIndex": 3,
            "template": { "metadata": { "labels": labels }, "spec": pod },
        },
    });
    let plan = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "labels": labels },
        "data": { "plan.toml": run.plan },
    });
    Ok(json!({ "apiVersion": "v1", "kind": "List", "items": [plan, job] }))
}

/// Submits the manifest by kubectl and returns the next steps, or returns the manifest where kubectl is missing.
///
/// # Errors
/// When the plan is too long, or kubectl refuses.
pub fn hand_over(run: &FleetRun) -> Result<String, LabError> {
    let manifest = manifest(run)?;
    let text = serde_json::to_string_pretty(&manifest)
        .map_err(|cause| LabError::other(cause.to_string()))?;
    let name = manifest
        .pointer("/items/1/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    // By the user's search path, since kubectl is rarely a package of the system.
    let started = Command::new("kubectl")
        // Without a limit it waits for a server that does not answer.
        .args(["apply", "--filename", "-", "--request-timeout=60s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match started {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(text),
        started => started.map_err(HostError::process("start", "kubectl"))?,
    };
    if let Some(mut input) = child.stdin.take() {
        // A kubectl that closes its input reports the reason below.
        let _ = input.write_all(text.as_bytes());
    }
    let output = child
        .wait_with_output()
        .map_err(HostError::process("wait for", "kubectl"))?;
    if !output.status.success() {
        return Err(HostError::program("kubectl apply --filename -", &output).into());
    }
    info!("the cluster has taken the job {name}");
    Ok(format!(
        "the job {name} is the cluster's now. It ends with\n  kubectl wait --for=condition=complete job/{name} --timeout=24h\nand its results, wherever the claim {} is mounted, become one by\n  vtax merge /fleet/{name}/shard-*/* --results {}",
        run.pod.claim,
        run.results.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;
    use k8s_openapi::api::batch::v1::Job;
    use k8s_openapi::api::core::v1::ConfigMap;

    /// Whether the API's type has every field: unknown ones would be lost.
    fn comes_back<T: serde::Serialize + serde::de::DeserializeOwned>(item: &Value) {
        let typed: T = serde_json::from_value(item.clone()).unwrap();
        assert_eq!(&serde_json::to_value(typed).unwrap(), item);
    }

    fn run() -> FleetRun {
        FleetRun {
            engine: Engine::Kubernetes,
            shards: 8,
            blocks: 16,
            name: "small".to_owned(),
            plan: "name = \"small\"\n".to_owned(),
            results: "results/small".into(),
            binary: "vtax".into(),
            arguments: vec!["--quick".to_owned()],
            pod: Pod {
                image: "registry.example/vtax:1".to_owned(),
                claim: "vtax".to_owned(),
            },
        }
    }

    #[test]
    fn every_field_of_the_manifest_is_one_that_the_api_has() {
        let manifest = manifest(&run()).unwrap();
        comes_back::<ConfigMap>(&manifest["items"][0]);
        comes_back::<Job>(&manifest["items"][1]);
        let spec = &manifest["items"][1]["spec"];
        assert_eq!(
            (&spec["completionMode"], &spec["completions"]),
            (&json!("Indexed"), &json!(8))
        );
        let script = spec["template"]["spec"]["containers"][0]["command"][2]
            .as_str()
            .unwrap();
        assert!(
            script.contains("--shard \"$shard/8\"") && script.contains("--quick"),
            "{script}"
        );
    }

    #[test]
    fn a_plan_that_no_config_map_holds_is_refused() {
        let long = FleetRun {
            plan: "#".repeat(MOST_PLAN + 1),
            ..run()
        };
        assert!(
            manifest(&long)
                .unwrap_err()
                .to_string()
                .contains("ConfigMap")
        );
    }
}
