//! A container for each guest: namespaces, control group and capabilities of its own, made by an
//! OCI runtime; inside, `cat` of a static busybox.

use super::process::busybox;
use super::singly::{Echo, Singly};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use vtax_guest::platform::oci::Bundle;
use vtax_host::command::version_line;

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
        })
    }

    fn name(&self, number: u32) -> String {
        format!("g{}", u64::from(self.first) + u64::from(number))
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
}

/// One for `cat` of a read-only root that all containers share, without capabilities.
fn described<'a>(name: &'a str, root: &'a Path, control_group: &'a str) -> Bundle<'a> {
    Bundle {
        name,
        root,
        writable: false,
        arguments: &["/bin/busybox", "cat"],
        environment: &["PATH=/bin"],
        network: None,
        control_group,
        mounts: Vec::new(),
    }
}

impl Singly for Containers {
    type Guest = Echo;

    fn start(&mut self, number: u32) -> Result<Echo, String> {
        let name = self.name(number);
        let bundle = self.folder.join(&name);
        let failed =
            |cause: std::io::Error| format!("cannot make the bundle of container {name}: {cause}");
        fs::create_dir_all(&bundle).map_err(failed)?;
        let group = format!("{}-{name}", self.runtime.control_group);
        let config = described(&name, &self.folder.join("root"), &group).config();
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

    fn ask(&mut self, echo: &mut Echo) -> Result<Duration, String> {
        echo.ask()
    }

    fn end(&mut self, echo: Echo, number: u32) -> Result<(), String> {
        let name = self.name(number);
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
        Ok(())
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let version = version_line(&self.runtime.program);
        [("container.runtime".to_owned(), version)].into()
    }
}
