//! A plan in an emulated host: in with the plan and this very binary, out with the results.

use crate::cost::{self, CostModel};
use crate::host::Host;
use crate::machine::{self, Files};
use crate::outlet::{self, Lines};
use crate::payload::{self, Errand};
use crate::settings::Settings;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use vtax_lab::LabError;
use vtax_lab::place::Line;
use vtax_lab::signals::Signals;
use vtax_report::results::ResultsDir;

/// How often the ports are looked at. The host inside does not notice.
const POLL: Duration = Duration::from_millis(100);

/// A host that has said nothing for so long is stuck: the longest trials report their phases.
const SILENCE: Duration = Duration::from_secs(3600);

/// Words of the run that are kept for the message, should it fail.
const KEPT_LINES: usize = 12;

/// A plan to run in an emulated host.
#[derive(Debug, Clone)]
pub struct PlanRun<'a> {
    /// The host.
    pub host: &'a Host,
    /// How it runs.
    pub settings: &'a Settings,
    /// What its counts would have cost.
    pub cost_model: &'a CostModel,
    /// Our own binary.
    pub binary: PathBuf,
    /// What of vtax runs the plan: `run`, `accuracy run`.
    pub command: &'a str,
    /// The text of the plan.
    pub plan: String,
    /// Where the results are to be; an unfinished run in it goes on.
    pub results: PathBuf,
    /// Further arguments of `vtax run`, such as `--quick`: words without blanks.
    pub arguments: Vec<String>,
}

/// Runs it, hands on what the vtax inside says, and brings the results back even when the run
/// failed. The costs of what was counted are added to them.
///
/// # Errors
/// When the host does not come up or ends early (with the end of its console), the run in it
/// fails, or its results are not what it announced. When interrupted: what ran inside is lost.
pub fn run_plan(
    run: &PlanRun<'_>,
    signals: &Signals,
    each: &mut dyn FnMut(Line),
) -> Result<(), LabError> {
    let directory = tempfile::Builder::new()
        .prefix("vtax-testbed-")
        .tempdir()
        .map_err(LabError::file("create", std::env::temp_dir()))?;
    let path = |name: &str| directory.path().join(name);
    let (initrd, console) = (path("initrd"), path("console"));
    let (events, results) = (path("events"), path("results"));
    let earlier = run.results.join("run.json").exists();
    let errand = Errand::Plan {
        binary: &run.binary,
        command: run.command,
        plan: &run.plan,
        arguments: &run.arguments,
        earlier: earlier.then(|| packed(&run.results)).transpose()?,
    };
    fs::write(&initrd, payload::initrd(run.host, &errand)?)
        .map_err(LabError::file("write", &initrd))?;
    for file in [&console, &events, &results] {
        File::create(file).map_err(LabError::file("create", file))?;
    }
    let files = Files {
        initrd: &initrd,
        console: Some(&console),
        ports: Some((&events, &results)),
    };
    let mut machine = Running::start(&machine::command_line(run.host, run.settings, files))?;

    let mut lines = Lines::open(&events)?;
    let mut words = VecDeque::new();
    let mut hand_on = |line: Line| {
        if let Line::Text(text) = &line {
            words.push_back(text.clone());
            if words.len() > KEPT_LINES {
                words.pop_front();
            }
        }
        each(line);
    };
    let mut heard = (Instant::now(), 0);
    let status = loop {
        signals.check()?;
        let ended = machine.ended()?;
        let arrived = lines.follow(&mut hand_on)?;
        if let Some(status) = ended {
            break status;
        }
        let printed = fs::metadata(&console).map_or(0, |metadata| metadata.len());
        if arrived || printed != heard.1 {
            heard = (Instant::now(), printed);
        } else if heard.0.elapsed() > SILENCE {
            return Err(LabError::Timeout {
                what: "any word of the testbed".into(),
                seconds: SILENCE.as_secs(),
                evidence: tail(&console),
            });
        }
        std::thread::sleep(POLL);
    };

    let Some(ended) = lines.ended() else {
        return Err(LabError::Program {
            command: format!("the testbed:{}", run.host.hypervisor),
            status: format!("{status}, before its results came"),
            output: format!("{}\n{}", tail(&console), machine.messages()),
        });
    };
    outlet::fetch(&results, ended, &run.results)?;
    if run.settings.deterministic && run.results.join("run.json").exists() {
        let taken = ResultsDir::open(&run.results)?;
        cost::apply(&taken, run.cost_model, run.settings.frequency.instruction())?;
    }
    if ended.code == 0 {
        return Ok(());
    }
    Err(LabError::Program {
        command: format!("vtax {}, at testbed:{}", run.command, run.host.hypervisor),
        status: format!("exit status: {}", ended.code),
        output: Vec::from(words).join("\n"),
    })
}

/// The results that are there already, for a run that goes on.
fn packed(results: &Path) -> Result<Vec<u8>, LabError> {
    let output = Command::new("tar")
        .args(["--format=ustar", "--sort=name", "--mtime=@0", "-C"])
        .arg(results)
        .args(["-cf", "-", "."])
        .stdin(Stdio::null())
        .output()
        .map_err(LabError::file("run", "tar"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(LabError::Program {
        command: format!("tar -C {} -cf - .", results.display()),
        status: output.status.to_string(),
        output: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// A QEMU that ends with this value, and with this process however that ends.
struct Running {
    child: Child,
    messages: File,
}

impl Running {
    fn start(line: &[String]) -> Result<Self, LabError> {
        let messages = tempfile::tempfile().map_err(LabError::file("create", "a log"))?;
        let output = messages
            .try_clone()
            .map_err(LabError::file("create", "a log"))?;
        let child = command(line)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .map_err(missing)?;
        Ok(Self { child, messages })
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, LabError> {
        self.child
            .try_wait()
            .map_err(|cause| LabError::Other(format!("cannot wait for QEMU: {cause}")))
    }

    /// What QEMU said of itself, but for the features that emulation lacks.
    fn messages(&mut self) -> String {
        use std::io::{Read, Seek};
        let mut text = String::new();
        // Only for a message about another failure.
        let _ = self.messages.rewind();
        let _ = self.messages.read_to_string(&mut text);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.contains("TCG doesn't support requested feature"))
            .collect();
        lines.join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, or nobody waits for what it does.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// QEMU as a command that dies with this process, also by `kill -9`.
pub(crate) fn command(line: &[String]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).args(line);
    command
}

pub(crate) fn missing(cause: std::io::Error) -> LabError {
    LabError::Missing {
        what: format!("a program that starts QEMU ({cause})"),
        remedy: "apt-get install qemu-system-x86 util-linux".into(),
    }
}

fn tail(console: &Path) -> String {
    let bytes = fs::read(console).unwrap_or_default();
    let end = bytes.get(bytes.len().saturating_sub(2048)..);
    String::from_utf8_lossy(end.unwrap_or_default()).replace('\r', "")
}
