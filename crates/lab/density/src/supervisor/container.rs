// SPDX-License-Identifier: Apache-2.0
//! Guests that are containers: an OCI runtime makes each with its own namespaces, control group and
//! capabilities, and `cat` of a static busybox runs in it.

use super::Spec;
use super::error::{GuestError, Result, last_line};
use super::individual::{Echo, GuestDriver};
use super::process::busybox;
use super::work::Work;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vtax_guest::platform::oci::Bundle;
use vtax_host::HostError;
use vtax_host::command::version_line;

/// Bundles and the shared root, on the tmpfs of the cell.
const FOLDER: &str = "/run/density";

/// The containers of one supervisor.
#[derive(Debug)]
pub(super) struct Containers {
    /// The program of the OCI runtime.
    runtime: String,
    /// The control group of a container as the runtime takes it, without the number.
    control_group: String,
    folder: PathBuf,
    first: u32,
    work: Option<Work>,
}

impl Containers {
    pub(super) fn new(runtime: &str, spec: &Spec) -> Result<Self> {
        let folder = PathBuf::from(FOLDER);
        let root = folder.join("root");
        for directory in ["bin", "proc", "dev", "sys", "tmp"] {
            let directory = root.join(directory);
            fs::create_dir_all(&directory).map_err(HostError::file("create", directory))?;
        }
        let copy = root.join("bin/busybox");
        if !copy.exists() {
            fs::copy(busybox()?, &copy).map_err(HostError::file("create", copy))?;
        }
        Ok(Self {
            runtime: runtime.to_owned(),
            control_group: spec.control_group.clone(),
            folder,
            first: spec.first,
            work: spec.work,
        })
    }

    fn name(&self, number: u32) -> String {
        format!("g{}-{number}", self.first)
    }

    /// Runs `words`, a command of the runtime, on a container.
    fn run(&self, words: &[&str], name: &str, input: Stdio, output: Stdio) -> Result<()> {
        let (program, log) = (&self.runtime, self.folder.join("log"));
        let status = Command::new(program)
            .arg("--root")
            .arg(self.folder.join("state"))
            .arg("--log")
            .arg(&log)
            .args(words)
            .arg(name)
            .stdin(input)
            .stdout(output)
            .stderr(Stdio::null())
            .status()
            .map_err(HostError::process("run", program))?;
        if status.success() {
            return Ok(());
        }
        let verb = words.first().copied().unwrap_or_default();
        Err(GuestError::Program {
            command: format!("{program} {verb} {name}"),
            status,
            reason: last_line(&fs::read_to_string(log).unwrap_or_default()),
        })
    }
}

/// The busybox of the shared root.
const BUSYBOX: &str = "/bin/busybox";

/// The bundle of a busybox without capabilities, on the read-only root that all containers share.
fn busybox_bundle<'a>(
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
        control_group: Some(control_group),
        mounts: Vec::new(),
    }
}

impl GuestDriver for Containers {
    /// The connection for probes; a guest with work has none.
    type Guest = Option<Echo>;

    fn start(&mut self, number: u32) -> Result<Option<Echo>> {
        let name = self.name(number);
        let bundle = self.folder.join(&name);
        let failed = |cause: io::Error| HostError::file("create", &bundle)(cause);
        fs::create_dir_all(&bundle).map_err(failed)?;
        let group = format!("{}-{name}", self.control_group);
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
        let config = busybox_bundle(&name, &self.folder.join("root"), &group, &arguments).config();
        vtax_files::write_scratch(&bundle.join("config.json"), config.to_string())
            .map_err(HostError::from)?;
        let at = bundle.display().to_string();
        self.run(&["run", "--detach", "--bundle", &at], &name, input, output)?;
        Ok(echo)
    }

    fn line(guest: &mut Option<Echo>) -> Option<&mut Echo> {
        guest.as_mut()
    }

    fn end(&mut self, echo: Option<Echo>, number: u32) -> Result<()> {
        let name = self.name(number);
        // The end of its input ends `cat`; the runtime removes the container.
        drop(echo);
        self.run(&["delete", "--force"], &name, Stdio::null(), Stdio::null())?;
        let _ = vtax_files::remove_all(&self.folder.join(&name));
        Ok(())
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let version = version_line(&self.runtime);
        [("container.runtime".to_owned(), version)].into()
    }
}
