// SPDX-License-Identifier: Apache-2.0
//! A target and a client on this host: they share one set of namespaces with nothing but a loopback device and an empty
//! `/tmp`, which the kernel removes with the process that holds them.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use vtax_core::Source;
use vtax_guest::platform::{About, CommandLine, Finished, Job, Target};
use vtax_host::HostError;
use vtax_host::cell::ClientProcess;
use vtax_host::settings::{Level, Settings};
use vtax_load::workload::{
    Load, LoadClient, Running, ServeContext, Service, Timing, WorkDone, Workload, WorkloadResult,
    by_kind,
};
use vtax_observe::Subject;
use vtax_testkit::skip;

/// Namespaces held by one process, and the commands that run in them.
pub struct Host {
    pub holder: Child,
    pub inside: String,
    pub jobs: HashMap<u64, Child>,
    /// Number of further polls in which a finished job appears to run.
    pub late: u32,
    about: About,
}

impl Host {
    /// Namespaces that end with the test, or with `drop`.
    pub fn new() -> Self {
        // The host's /proc still shows the PID by which others can enter.
        let script = "read -r pid rest < /proc/self/stat && mount -t tmpfs tmpfs /tmp && ip link set lo up \
                      && echo \"$pid\" && exec sleep infinity";
        let mut holder = Command::new("setpriv")
            .args([
                "--pdeathsig",
                "KILL",
                "unshare",
                "--mount",
                "--net",
                "--pid",
                "--fork",
                "--kill-child",
            ])
            .args(["sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut inside = String::new();
        BufReader::new(holder.stdout.take().unwrap())
            .read_line(&mut inside)
            .unwrap();
        if inside.trim().is_empty() {
            let _ = holder.kill();
            let _ = holder.wait();
            skip!("this user may not create namespaces");
        }
        Self {
            holder,
            inside: inside.trim().to_owned(),
            jobs: HashMap::new(),
            late: 0,
            about: About {
                address: Ipv4Addr::LOCALHOST.into(),
                subject: Subject::default(),
                source: Source::Measured,
                environment: BTreeMap::new(),
                // A file replaces the device: fio reads both alike, and neither needs a mount.
                scratch: ("/tmp/vtax-disk-read".into(), "/tmp".into()),
                is_shared: false,
            },
        }
    }

    pub fn client(&self) -> LocalClient {
        LocalClient {
            inside: self.inside.clone(),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        for child in self.jobs.values_mut() {
            let _ = child.wait();
        }
    }
}

pub fn spawn_inside(
    inside: &str,
    namespaces: &[&str],
    line: &CommandLine,
) -> Result<Child, HostError> {
    Command::new("nsenter")
        .args(["--target", inside])
        .args(namespaces)
        .arg("--")
        .args(line)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(HostError::file("run", "nsenter"))
}

impl Target for Host {
    fn about(&self) -> &About {
        &self.about
    }

    fn start(&mut self, command: &CommandLine) -> Result<Job, HostError> {
        let child = spawn_inside(&self.inside, &["--mount", "--net", "--pid"], command)?;
        let job = child.id().into();
        self.jobs.insert(job, child);
        Ok(Job(job))
    }

    fn poll(&mut self, job: Job) -> Result<Option<Finished>, HostError> {
        if let Some(late) = self.late.checked_sub(1) {
            self.late = late;
            return Ok(None);
        }
        let child = self.jobs.get_mut(&job.0).unwrap();
        let Some(status) = child.try_wait().unwrap() else {
            return Ok(None);
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        child
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut stdout)
            .unwrap();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_end(&mut stderr)
            .unwrap();
        let code = status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap());
        Ok(Some(Finished {
            code,
            stdout,
            stderr,
        }))
    }

    fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, HostError> {
        Ok(BTreeMap::new())
    }

    fn console_tail(&self) -> String {
        String::new()
    }

    fn stop(self: Box<Self>) -> Result<(), HostError> {
        Ok(())
    }
}

/// A client that sees the host's files, with this program among them, as clients in a cell do.
pub struct LocalClient {
    pub inside: String,
}

impl LoadClient for LocalClient {
    fn start(&self, line: &CommandLine) -> Result<Box<dyn Running>, HostError> {
        let child = spawn_inside(&self.inside, &["--net", "--pid"], line)?;
        Ok(Box::new(ClientProcess::new(child)))
    }

    fn streams_lines(&self) -> bool {
        true
    }

    fn can_connect(&self, address: IpAddr, port: u16) -> Result<bool, HostError> {
        let script = format!("exec 3<>/dev/tcp/{address}/{port}");
        let line = ["bash", "-c", &script].map(str::to_owned).to_vec();
        let mut child = spawn_inside(&self.inside, &["--net", "--pid"], &line)?;
        Ok(child.wait().unwrap().success())
    }
}

pub fn settings<const N: usize>(levels: [(&str, Level); N]) -> Settings {
    levels.into_iter().collect()
}

pub fn text(word: &str) -> Level {
    Level::Text(word.to_owned())
}

pub const TIMING: Timing = Timing {
    warmup: Duration::from_millis(500),
    duration: Duration::from_millis(1000),
};

/// Starts the service of a workload.
pub fn serve(
    target: &mut Host,
    workload: &dyn Workload,
    settings: &Settings,
) -> Result<Service, HostError> {
    let client = &target.client();
    workload.serve(&mut ServeContext {
        target,
        client,
        settings,
    })
}

/// Drives a workload as the lab does, and returns the driver's output.
pub fn drive(
    host: &mut Host,
    workload: &dyn Workload,
    settings: &Settings,
) -> Result<Vec<u8>, HostError> {
    let client = host.client();
    let service = serve(host, workload, settings)?;
    let mut load = workload.drive(host, &client, service, settings, TIMING)?;
    wait(host, load.as_mut())
}

/// Waits until a load or its level ends, and returns its output.
pub fn wait(host: &mut Host, load: &mut dyn Load) -> Result<Vec<u8>, HostError> {
    loop {
        if let Some(raw) = load.poll(host)? {
            return Ok(raw);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a workload to its result.
pub fn run(kind: &str, settings: &Settings) -> WorkloadResult {
    let mut host = Host::new();
    let workload = by_kind(kind).unwrap();
    let raw =
        drive(&mut host, workload, settings).unwrap_or_else(|cause| panic!("{kind}: {cause}"));
    let result = workload.parse(&raw, settings, TIMING);
    result.unwrap_or_else(|cause| panic!("{kind}: {cause}\n{}", String::from_utf8_lossy(&raw)))
}

pub fn value(result: &WorkloadResult, name: &str) -> f64 {
    result
        .metrics
        .get(name)
        .unwrap_or_else(|| panic!("no {name}: {result:?}"))
        .quantity
        .value
}

pub fn rate(result: &WorkloadResult) -> f64 {
    match &result.work {
        Some(WorkDone::Rate(work)) => work.amount,
        other => panic!("not a rate: {other:?}"),
    }
}

pub fn total(result: &WorkloadResult) -> f64 {
    match &result.work {
        Some(WorkDone::Total(work)) => work.amount,
        other => panic!("not a total: {other:?}"),
    }
}
