// SPDX-License-Identifier: Apache-2.0
//! Podman's command lines. Podman's state and locks are in the cell, separate from the host's podman and from other
//! trials.

use super::CommandLine;
use super::root::Root;
use std::path::Path;
use vtax_host::roots::PATH;
use vtax_host::scratch::MOUNT_POINT;

/// A script that runs podman in a mount namespace: with shared memory of its own (`$1`), which contains its locks,
/// and with only those v1 control group hierarchies that have the group `$2`. In others, the runtime would create
/// groups that are never removed.
const ROOM: &str = r#"mount --bind "$1" /dev/shm
mounts=$(cat /proc/mounts)
while read -r _ folder type _; do
    case $type in
    cgroup) [ -d "$folder$2" ] || umount "$folder" ;;
    cgroup2) [ "$folder" = /sys/fs/cgroup ] || umount "$folder" ;;
    esac
done <<END
$mounts
END
shift 2; exec "$@""#;

/// A podman of one cell.
#[derive(Debug)]
pub(super) struct Podman<'a> {
    /// The directory of its state.
    pub folder: &'a Path,
    /// The OCI runtime.
    pub runtime: &'static str,
    /// The parent control group of its containers, as a path from the mount point.
    pub parent: &'a Path,
}

impl Podman<'_> {
    /// A command of podman.
    pub fn line(&self, arguments: &[&str]) -> CommandLine {
        let below = |name: &str| self.folder.join(name).display().to_string();
        let parent = self.parent.display().to_string();
        let room = ["unshare", "--mount", "sh", "-ec", ROOM, "vtax-podman"];
        let (shm, root, run, tmp) = (below("shm"), below("root"), below("run"), below("tmp"));
        let podman = [
            shm.as_str(),
            &parent,
            "podman",
            "--root",
            &root,
            "--runroot",
            &run,
            "--tmpdir",
            &tmp,
            "--storage-driver",
            "vfs",
            "--cgroup-manager",
            "cgroupfs",
            "--events-backend",
            "none",
            "--runtime",
            self.runtime,
        ];
        let words = room.iter().chain(&podman).chain(arguments);
        words.map(|word| (*word).to_owned()).collect()
    }

    /// Starts an idle container whose control group is below `parent`.
    pub fn run(
        &self,
        name: &str,
        root: &Root,
        network: &str,
        pid_file: &Path,
        init: &str,
    ) -> CommandLine {
        let parent = self.parent.display().to_string();
        let network = format!("ns:{network}");
        let pid_file = pid_file.display().to_string();
        let path = format!("PATH={PATH}");
        let mut line = self.line(&["run", "--detach", "--name", name, "--pidfile", &pid_file]);
        line.extend(
            [
                "--cgroups",
                "no-conmon",
                "--cgroup-parent",
                &parent,
                "--network",
                &network,
            ]
            .map(str::to_owned),
        );
        line.extend(
            [
                "--no-hosts",
                "--log-driver",
                "none",
                "--env",
                &path,
                "--env",
                "LC_ALL=C",
                "--env",
                "HOME=/root",
            ]
            .map(str::to_owned),
        );
        // As for the other runtimes: the measurement excludes the cost of a filter.
        line.extend(["--security-opt", "seccomp=unconfined"].map(str::to_owned));
        if let Some(scratch) = &root.scratch {
            let directory = format!("{}:{MOUNT_POINT}", scratch.directory.display());
            let device = scratch.device.display().to_string();
            line.extend(["--volume", &directory, "--device", &device].map(str::to_owned));
        }
        let rootfs = root.path.display().to_string();
        line.extend(["--rootfs", &rootfs, "sh", "-c", init].map(str::to_owned));
        line
    }
}
