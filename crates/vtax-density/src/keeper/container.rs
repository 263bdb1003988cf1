//! A container for each guest: namespaces, control group and capabilities of its own, made by an
//! OCI runtime; inside, `cat` of a static busybox.

use super::process::{Echo, busybox};
use super::{Guard, Population, Tally, micros};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How to start containers here; the lab knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Runtime {
    /// Its program.
    pub program: String,
    /// The control group of a container, in the runtime's terms, but for its number.
    pub control_group: String,
}

/// Where all of it lives: the cell's own tmpfs.
const FOLDER: &str = "/run/density";

/// Containers below this keeper.
#[derive(Debug)]
pub(super) struct Containers {
    runtime: Runtime,
    folder: PathBuf,
    first: u32,
    guests: Vec<Echo>,
    random: fastrand::Rng,
}

impl Containers {
    pub(super) fn new(runtime: Runtime, first: u32) -> Result<Self, String> {
        let folder = PathBuf::from(FOLDER);
        let failed = |cause: std::io::Error| {
            format!("cannot make the root of containers in {FOLDER}: {cause}")
        };
        let root = folder.join("root");
        for directory in ["bin", "proc", "dev", "sys", "tmp"] {
            fs::create_dir_all(root.join(directory)).map_err(failed)?;
        }
        if !root.join("bin/busybox").exists() {
            fs::copy(busybox()?, root.join("bin/busybox")).map_err(failed)?;
        }
        Ok(Self {
            runtime,
            folder,
            first,
            guests: Vec::new(),
            random: fastrand::Rng::with_seed(1),
        })
    }

    fn name(&self, index: usize) -> String {
        format!("g{}", u64::from(self.first) + index as u64)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.runtime.program);
        command
            .arg("--root")
            .arg(self.folder.join("state"))
            .arg("--log")
            .arg(self.folder.join("log"));
        command
    }

    fn start(&self, index: usize) -> Result<Echo, String> {
        let name = self.name(index);
        let bundle = self.folder.join(&name);
        let failed =
            |cause: std::io::Error| format!("cannot make the bundle of container {name}: {cause}");
        fs::create_dir_all(&bundle).map_err(failed)?;
        let group = format!("{}-{name}", self.runtime.control_group);
        let config = config(&name, &self.folder.join("root"), &group);
        fs::write(bundle.join("config.json"), config.to_string()).map_err(failed)?;
        let (echo, theirs) = Echo::pair().map_err(failed)?;
        let status = self
            .command()
            .args(["run", "--detach", "--bundle"])
            .arg(&bundle)
            .arg(&name)
            .stdin(Stdio::from(theirs.try_clone().map_err(failed)?))
            .stdout(Stdio::from(theirs))
            .stderr(Stdio::null())
            .status()
            .map_err(|cause| format!("cannot run `{}`: {cause}", self.runtime.program))?;
        if status.success() {
            return Ok(echo);
        }
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let last = log.lines().rev().find(|line| !line.trim().is_empty());
        Err(format!(
            "`{} run` of container {name} failed ({status}): {}",
            self.runtime.program,
            last.unwrap_or("it gave no reason")
        ))
    }
}

/// The bundle's `config.json` (OCI runtime specification 1.0): namespaces of its own, the network's
/// included, no capabilities, a read-only root that all containers share.
fn config(name: &str, root: &Path, control_group: &str) -> Value {
    let mut namespaces: Vec<Value> = ["pid", "ipc", "uts", "mount", "network"]
        .map(|kind| json!({"type": kind}))
        .to_vec();
    if Path::new("/proc/self/ns/cgroup").exists() {
        namespaces.push(json!({"type": "cgroup"}));
    }
    json!({
        "ociVersion": "1.0.2",
        "hostname": name,
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": ["/bin/busybox", "cat"],
            "env": ["PATH=/bin"],
            "cwd": "/",
            "noNewPrivileges": true,
        },
        "root": {"path": root, "readonly": true},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
        ],
        "linux": {"cgroupsPath": control_group, "namespaces": namespaces},
    })
}

impl Population for Containers {
    fn count(&self) -> u32 {
        u32::try_from(self.guests.len()).unwrap_or(u32::MAX)
    }

    fn grow(&mut self, to: u32, guard: &mut Guard, tally: &mut Tally) -> Result<(), String> {
        while self.count() < to && guard.permits() {
            let began = Instant::now();
            let mut echo = self.start(self.guests.len())?;
            tally.create.push(micros(began.elapsed()));
            let answered = echo.ask();
            self.guests.push(echo);
            answered?;
            tally.boot.push(micros(began.elapsed()));
        }
        Ok(())
    }

    fn shrink(&mut self, to: u32) -> Result<(), String> {
        while self.count() > to {
            let Some(echo) = self.guests.pop() else { break };
            let name = self.name(self.guests.len());
            // Its input ends, and `cat` with it; the runtime takes the rest away.
            drop(echo);
            let output = self
                .command()
                .args(["delete", "--force", &name])
                .output()
                .map_err(|cause| format!("cannot run `{}`: {cause}", self.runtime.program))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(format!("container {name} was not removed: {}", said.trim()));
            }
            let _ = fs::remove_dir_all(self.folder.join(&name));
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<Duration, String> {
        if self.guests.is_empty() {
            return Err("there is no guest to ask".to_owned());
        }
        let chosen = self.random.usize(..self.guests.len());
        match self.guests.get_mut(chosen) {
            Some(echo) => echo.ask(),
            None => Err("there is no guest to ask".to_owned()),
        }
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let said = Command::new(&self.runtime.program)
            .arg("--version")
            .output()
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default();
        let version = said.lines().next().unwrap_or_default().to_owned();
        [("container.runtime".to_owned(), version)].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_container_has_namespaces_and_a_control_group_of_its_own() {
        let config = config("g7", Path::new("/root"), "container-g7");
        let kinds = config.pointer("/linux/namespaces").unwrap().to_string();
        for kind in ["pid", "ipc", "uts", "mount", "network"] {
            assert!(kinds.contains(kind), "{kinds}");
        }
        assert_eq!(
            config.pointer("/linux/cgroupsPath").unwrap(),
            "container-g7"
        );
    }
}
