//! A container for each guest: namespaces, control group and capabilities of its own, made by an
//! OCI runtime; inside, `cat` of a static busybox.

use super::process::busybox;
use super::singly::{Echo, Singly};
use super::work::Work;
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

/// Containers below this supervisor.
#[derive(Debug)]
pub(super) struct Containers {
    runtime: Runtime,
    folder: PathBuf,
    first: u32,
    work: Option<Work>,
}

impl Containers {
    pub(super) fn new(runtime: Runtime, first: u32, work: Option<Work>) -> Result<Self, String> {
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
            work,
        })
    }

    fn name(&self, number: u32) -> String {
        format!("g{}-{number}", self.first)
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

/// Busybox, in there.
const BUSYBOX: &str = "/bin/busybox";

/// One for a busybox of a read-only root that all containers share, without capabilities.
fn described<'a>(
    name: &'a str,
    root: &'a Path,
    control_group: &'a str,
    arguments: &'a [&'a str],
) -> Bundle<'a> {
    Bundle {
        name,
        root,
        writable: false,
        arguments,
        environment: &["PATH=/bin"],
        network: None,
        control_group,
        mounts: Vec::new(),
    }
}

impl Singly for Containers {
    /// One that works has no line to ask it by.
    type Guest = Option<Echo>;

    fn start(&mut self, number: u32) -> Result<Option<Echo>, String> {
        let name = self.name(number);
        let bundle = self.folder.join(&name);
        let failed =
            |cause: std::io::Error| format!("cannot make the bundle of container {name}: {cause}");
        fs::create_dir_all(&bundle).map_err(failed)?;
        let group = format!("{}-{name}", self.runtime.control_group);
        let (work, echo, input, output);
        let mut arguments = vec![BUSYBOX];
        if let Some(wanted) = self.work {
            work = wanted.arguments(BUSYBOX, number);
            arguments.extend(work.iter().map(String::as_str));
            (echo, input, output) = (None, Stdio::null(), wanted.output()?);
        } else {
            arguments.push("cat");
            let (ours, theirs) = Echo::pair().map_err(failed)?;
            input = Stdio::from(theirs.try_clone().map_err(failed)?);
            (echo, output) = (Some(ours), Stdio::from(theirs));
        }
        let config = described(&name, &self.folder.join("root"), &group, &arguments).config();
        vtax_files::write_scratch(&bundle.join("config.json"), config.to_string())
            .map_err(|error| failed(error.into()))?;
        let status = self
            .command()
            .args(["run", "--detach", "--bundle"])
            .arg(&bundle)
            .arg(&name)
            .stdin(input)
            .stdout(output)
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

    fn await_boot(&mut self, guest: &mut Option<Echo>) -> Result<(), String> {
        match guest {
            Some(echo) => echo.ask().map(drop),
            None => Ok(()),
        }
    }

    fn ask(&mut self, guest: &mut Option<Echo>) -> Result<Duration, String> {
        match guest {
            Some(echo) => echo.ask(),
            None => Err("a guest that works is not asked".to_owned()),
        }
    }

    fn end(&mut self, echo: Option<Echo>, number: u32) -> Result<(), String> {
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
