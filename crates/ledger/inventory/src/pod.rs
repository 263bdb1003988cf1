// SPDX-License-Identifier: Apache-2.0
//! Recognition of Kubernetes pods in control group paths: kubelet names a pod's group by the pod's UID, with one format
//! for its cgroupfs driver and another for systemd's.

use std::path::Path;

/// The UID of the pod whose control group is `group` or an ancestor of it, in the API server's format.
pub fn pod_of(group: &Path) -> Option<String> {
    let mut parts = group.iter().filter_map(|part| part.to_str());
    let first = parts.by_ref().find(|part| is_kubelets(part))?;
    std::iter::once(first).chain(parts).find_map(uid)
}

/// Whether kubelet creates groups with this name.
pub(super) fn is_kubelets(part: &str) -> bool {
    part.starts_with("kubepods") || part.contains("-kubepods")
}

/// `pod1b4e28ba-…`, `kubepods-burstable-pod1b4e28ba_….slice`, the same with `:cri-containerd:ID`.
fn uid(part: &str) -> Option<String> {
    let part = part.split_once(':').map_or(part, |(slice, _)| slice);
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let uid = match name.strip_prefix("pod") {
        Some(uid) => uid,
        None if name.contains("kubepods-") => name.rsplit_once("-pod")?.1,
        None => return None,
    };
    let uid = uid.replace('_', "-");
    // The UID of a static pod is a hash without dashes.
    let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    let is_uid = digits == 32 && (uid.len() == 32 || super::uuid(uid.as_bytes()).is_some());
    is_uid.then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "1b4e28ba-2fa1-11d2-883f-0016d3cca427";

    #[test]
    fn a_pod_is_found_in_every_layout_of_kubelet() {
        let under = UID.replace('-', "_");
        let id = "0123456789abcdef".repeat(4);
        for path in [
            // cgroupfs: guaranteed, burstable, best effort.
            format!("kubepods/pod{UID}/{id}"),
            format!("kubepods/burstable/pod{UID}/{id}"),
            format!("kubepods/besteffort/pod{UID}"),
            // systemd, by containerd and by CRI-O, which adds one level on v2.
            format!("kubepods.slice/kubepods-pod{under}.slice/cri-containerd-{id}.scope"),
            format!(
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/crio-{id}.scope/container"
            ),
            format!(
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{under}.slice"
            ),
            // kubelet below a group of its own, and a node that is a container.
            format!(
                "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{under}.slice/cri-containerd-{id}.scope"
            ),
            format!("docker/{id}/kubelet/kubepods/burstable/pod{UID}/{id}"),
            // A runtime with the cgroupfs driver under a kubelet with systemd's.
            format!(
                "system.slice/containerd.service/kubepods-burstable-pod{under}.slice:cri-containerd:{id}"
            ),
            format!("system.slice/crio.service/kubepods-pod{under}.slice:crio:{id}"),
            format!("kubepods/burstable/pod{UID}/crio-{id}"),
            // A sandbox's monitor in its pod's group.
            format!("kubepods/burstable/pod{UID}/kata_{id}"),
        ] {
            assert_eq!(pod_of(Path::new(&path)).as_deref(), Some(UID), "{path}");
        }
        let hash = UID.replace('-', "");
        let of_static = format!("kubepods/burstable/pod{hash}/{id}");
        assert_eq!(pod_of(Path::new(&of_static)), Some(hash));
    }

    #[test]
    fn what_is_no_pod_is_none() {
        for path in [
            "",
            "kubepods",
            "kubepods/burstable",
            "kubepods.slice/kubepods-burstable.slice",
            "system.slice/podman.service",
            "kubepods/podx",
            "machine.slice/libpod-0123.scope",
            "user.slice/pod1b4e28ba-2fa1-11d2-883f-0016d3cca427/x",
            "kata_overhead/1b4e28ba",
        ] {
            assert_eq!(pod_of(Path::new(path)), None, "{path}");
        }
    }
}
