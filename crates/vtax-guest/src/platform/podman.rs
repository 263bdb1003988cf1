//! Podman's command lines. All of its state is in the cell, its locks included, so that neither the host's podman
//! nor the next trial's sees it.

use super::CommandLine;
use super::root::Root;
use std::path::Path;
use vtax_host::roots::PATH;
use vtax_host::scratch::MOUNT_POINT;

/// A mount namespace for podman: shared memory of its own (`$1`), which holds its locks, and of the
/// control groups v1 only those hierarchies that have the group `$2`; elsewhere the runtime would make
/// groups that nobody removes.
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
    /// The control group below which its containers are, from the mount point.
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

    /// Starts a container that does nothing, whose control group is below `parent`.
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
        // As for the other runtimes: the cost of a filter is not part of the measurement.
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
