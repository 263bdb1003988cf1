//! A plan in an emulated host: in with the plan and this very binary, out with the results.

use crate::cost::{self, CostModel};
use crate::host::Host;
use crate::link::{End, Link};
use crate::machine::{self, Files};
use crate::outlet::{self, Lines};
use crate::payload::{self, Errand};
use crate::settings::Settings;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vtax_guest::platform::qemu::Options;
use vtax_host::HostError;
use vtax_host::signals::Signals;
use vtax_lab::LabError;
use vtax_lab::place::Line;
use vtax_lab::plan::RemoteClient;
use vtax_report::results::ResultsDir;

/// How often the ports are looked at. The host inside does not notice.
const POLL: Duration = Duration::from_millis(100);

/// A host that has said nothing for so long is stuck: the longest trials report their phases.
const SILENCE: Duration = Duration::from_secs(3600);

/// What an emulated host may compute without a word, besides its trials' phases. Rarely one with a
/// nested guest gets stuck for good in QEMU's emulation, and computes on.
const BREATH: Duration = Duration::from_secs(120);

/// What an emulated host computes at most for a second of its own time.
const SLOWEST: u32 = 20;

/// How often a host that got stuck is begun anew, each time with another seed: with the same one
/// it would get stuck at the same instruction.
const ATTEMPTS: u64 = 3;

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
    /// The client that the plan has on another host: a second emulated one, then.
    pub client: Option<&'a RemoteClient>,
    /// For how long a trial may say nothing, by the host's own clock: its window and warm-up.
    pub silence: Duration,
}

/// Runs it, hands on what the vtax inside says, and brings the results back even when the run
/// failed. The costs of what was counted are added to them.
///
/// # Errors
/// When the host does not come up, ends early (with the end of its console) or gets stuck again and
/// again, the run in it fails, or its results are not what it announced. When interrupted: what ran
/// inside is lost.
pub fn run_plan(
    run: &PlanRun<'_>,
    signals: &Signals,
    each: &mut dyn FnMut(Line),
) -> Result<(), LabError> {
    if run.client.is_some() && run.settings.deterministic {
        return Err(LabError::Host(HostError::Setting(
            "two hosts share no clock of instructions, and the plan has its client on a second one: --testbed FILE with deterministic = false".to_owned(),
        )));
    }
    let mut settings = run.settings.clone();
    for _ in 1..ATTEMPTS {
        match attempt(run, &settings, signals, each)? {
            Attempt::Ended => return Ok(()),
            Attempt::Stuck(spent) => {
                settings.seed = settings.seed.wrapping_add(1);
                each(Line::Text(format!(
                    "the emulated host computed for {} s without a word and is begun anew, with seed {}",
                    spent.as_secs(),
                    settings.seed
                )));
            }
        }
    }
    match attempt(run, &settings, signals, each)? {
        Attempt::Ended => Ok(()),
        Attempt::Stuck(spent) => Err(LabError::other(format!(
            "the emulated host got stuck {ATTEMPTS} times, the last time after {} s of processor time without a word: change the plan a little, or `seed` in the testbed's settings",
            spent.as_secs()
        ))),
    }
}

/// How an attempt at a run went.
enum Attempt {
    Ended,
    /// It computed for so long without a word.
    Stuck(Duration),
}

fn attempt(
    run: &PlanRun<'_>,
    settings: &Settings,
    signals: &Signals,
    each: &mut dyn FnMut(Line),
) -> Result<Attempt, LabError> {
    let directory = scratch_directory()?;
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
    let link = run.client.map(Link::of).transpose()?;
    let wire = path("wire");
    let there = link
        .as_ref()
        .map(|link| Client::start(run.host, settings, link, &wire));
    let mut there = there.transpose()?;
    fs::write(&initrd, payload::initrd(run.host, &errand, link.as_ref())?)
        .map_err(HostError::file("write", &initrd))?;
    for file in [&console, &events, &results] {
        File::create(file).map_err(HostError::file("create", file))?;
    }
    let files = Files {
        initrd: &initrd,
        console: Some(&console),
        ports: Some((&events, &results)),
        link: there.as_ref().map(|_| (End::Host, wire.as_path())),
    };
    let mut machine = Running::start(&machine::command_line(run.host, settings, files))?;

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
    let mut heard = (Instant::now(), machine.computed(), 0);
    let patience = BREATH + run.silence * SLOWEST;
    let status = loop {
        signals.check()?;
        let ended = machine.ended()?;
        let arrived = lines.follow(&mut hand_on)?;
        if let Some(status) = ended {
            break status;
        }
        if let Some(there) = &mut there {
            there.check()?;
        }
        let printed = fs::metadata(&console).map_or(0, |metadata| metadata.len());
        let computed = machine.computed();
        if arrived || printed != heard.2 {
            heard = (Instant::now(), computed, printed);
        } else if computed.saturating_sub(heard.1) > patience {
            return Ok(Attempt::Stuck(computed.saturating_sub(heard.1)));
        } else if heard.0.elapsed() > SILENCE {
            return Err(LabError::Host(HostError::Timeout {
                what: "any word of the testbed".into(),
                seconds: SILENCE.as_secs(),
                evidence: tail(&console),
            }));
        }
        std::thread::sleep(POLL);
    };

    let Some(ended) = lines.ended() else {
        return Err(LabError::Host(HostError::Program {
            command: format!("the testbed:{}", run.host.hypervisor),
            status: format!("{status}, before its results came"),
            output: format!("{}\n{}", tail(&console), machine.messages()),
        }));
    };
    outlet::fetch(&results, ended, &run.results)?;
    if settings.deterministic && run.results.join("run.json").exists() {
        let taken = ResultsDir::open(&run.results)?;
        cost::apply(&taken, run.cost_model, settings.frequency.instruction())?;
    }
    if ended.code == 0 {
        return Ok(Attempt::Ended);
    }
    Err(LabError::Host(HostError::Program {
        command: format!("vtax {}, at testbed:{}", run.command, run.host.hypervisor),
        status: format!("exit status: {}", ended.code),
        output: Vec::from(words).join("\n"),
    }))
}

/// The results that are there already, for a run that goes on.
fn packed(results: &Path) -> Result<Vec<u8>, HostError> {
    let output = Command::new("tar")
        .args(["--format=ustar", "--sort=name", "--mtime=@0", "-C"])
        .arg(results)
        .args(["-cf", "-", "."])
        .stdin(Stdio::null())
        .output()
        .map_err(HostError::file("run", "tar"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(HostError::Program {
        command: format!("tar -C {} -cf - .", results.display()),
        status: output.status.to_string(),
        output: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// The second host, where the plan's client lives.
struct Client {
    machine: Running,
    directory: TempDir,
}

impl Client {
    /// Boots it and waits until its end of the wire is there.
    fn start(host: &Host, settings: &Settings, link: &Link, wire: &Path) -> Result<Self, LabError> {
        let directory = scratch_directory()?;
        let initrd = directory.path().join("initrd");
        let payload = payload::initrd(host, &Errand::Client, Some(link))?;
        fs::write(&initrd, payload).map_err(HostError::file("write", &initrd))?;
        let files = Files {
            initrd: &initrd,
            console: Some(&directory.path().join("console")),
            ports: None,
            link: Some((End::Client, wire)),
        };
        let machine = Running::start(&machine::command_line(host, settings, files))?;
        let mut client = Self { machine, directory };
        while !wire.exists() {
            client.check()?;
            std::thread::sleep(POLL);
        }
        Ok(client)
    }

    /// # Errors
    /// When it has ended.
    fn check(&mut self) -> Result<(), LabError> {
        let Some(status) = self.machine.ended()? else {
            return Ok(());
        };
        Err(LabError::Host(HostError::Program {
            command: "the emulated host of the client".to_owned(),
            status: format!("{status}, before the plan's end"),
            output: format!(
                "{}\n{}",
                tail(&self.directory.path().join("console")),
                self.machine.messages()
            ),
        }))
    }
}

fn scratch_directory() -> Result<TempDir, HostError> {
    tempfile::Builder::new()
        .prefix("vtax-testbed-")
        .tempdir()
        .map_err(HostError::file("create", std::env::temp_dir()))
}

/// A QEMU that ends with this value, and with this process however that ends.
struct Running {
    child: Child,
    messages: File,
}

impl Running {
    fn start(line: &Options) -> Result<Self, HostError> {
        let messages = tempfile::tempfile().map_err(HostError::file("create", "a log"))?;
        let output = messages
            .try_clone()
            .map_err(HostError::file("create", "a log"))?;
        let child = line
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .map_err(missing)?;
        Ok(Self { child, messages })
    }

    /// Processor time that it used so far; none once it has ended.
    fn computed(&self) -> Duration {
        fs::read_to_string(format!("/proc/{}/stat", self.child.id()))
            .ok()
            .and_then(|stat| processor_time(&stat))
            .unwrap_or_default()
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, HostError> {
        self.child
            .try_wait()
            .map_err(HostError::process("wait for", "QEMU"))
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

/// User and system time in a process's `stat` (proc_pid_stat(5)).
fn processor_time(stat: &str) -> Option<Duration> {
    // The second field is a name, which may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    let ticks = rustix::param::clock_ticks_per_second();
    Some(Duration::from_secs(user.checked_add(system)?) / u32::try_from(ticks).ok()?)
}

pub(crate) fn missing(cause: std::io::Error) -> HostError {
    HostError::Missing {
        what: format!("a program that starts QEMU ({cause})"),
        remedy: "apt-get install qemu-system-x86 util-linux".into(),
    }
}

fn tail(console: &Path) -> String {
    let bytes = fs::read(console).unwrap_or_default();
    let end = bytes.get(bytes.len().saturating_sub(2048)..);
    String::from_utf8_lossy(end.unwrap_or_default()).replace('\r', "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests::fake_host;
    use std::net::Ipv4Addr;
    use vtax_host::cell::{OuterNetwork, Uplink};
    use vtax_lab::place::Hypervisor;

    #[test]
    fn two_hosts_with_one_clock_of_instructions_are_refused_before_anything_boots() {
        let client = RemoteClient {
            host: "client".to_owned(),
            network: OuterNetwork {
                uplink: Uplink::Bridge("lan".to_owned()),
                target: (Ipv4Addr::new(192, 0, 2, 10), 24),
            },
        };
        let run = PlanRun {
            host: &fake_host(Path::new("/no/such/cache"), Hypervisor::Kvm),
            settings: &Settings::default(),
            cost_model: &CostModel::shipped().unwrap(),
            binary: PathBuf::from("/no/such/vtax"),
            command: "run",
            plan: String::new(),
            results: PathBuf::from("/no/such/results"),
            arguments: Vec::new(),
            client: Some(&client),
            silence: Duration::ZERO,
        };
        let refused = run_plan(&run, &Signals::install().unwrap(), &mut |_| ()).unwrap_err();
        let said = refused.to_string();
        assert!(said.contains("deterministic = false"), "{said}");
    }

    #[test]
    fn processor_time_is_user_and_system_time_whatever_the_name() {
        let hertz = rustix::param::clock_ticks_per_second();
        let stat = format!(
            "7 (a) b) S 1 7 7 0 -1 4194304 5 6 7 8 {} {} 9 9 20 0 1 0 5 6 7",
            2 * hertz,
            3 * hertz
        );
        assert_eq!(processor_time(&stat), Some(Duration::from_secs(5)));
        assert_eq!(processor_time("7 (a) S 1"), None);
    }
}
