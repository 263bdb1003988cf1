// SPDX-License-Identifier: Apache-2.0
//! `command`: any command as a workload, with its service and the numbers that it prints, as a plan defines them.
//!
//! A command runs without a shell. `bash` in front of it reads the clock before and after it, and `timeout` ends it.

pub mod figure;
pub mod generators;
pub mod words;

use super::check::Claim;
use super::driver::{DIRECTORY, MARK, command, prepare, prepare_client, script, whole_seconds};
use super::output::{Metrics, garbage, positive, quote, text};
use super::*;
use figure::{COMMAND, Figure, FigureError};
use std::str::FromStr;
use vtax_core::metric::OWN;
use vtax_guest::image::{oci, user_files};
use vtax_host::command::quoted;

/// The workload.
pub struct Command;

/// The kind in plans.
pub const KIND: &str = "command";

const LOAD: Parameter = Parameter::unset("load.load", Domain::Text("a command")).help(
    "the command that is measured: as the client where there is a service, else in the target",
);
const SERVE: Parameter =
    Parameter::unset("load.serve", Domain::Text("a command")).help("the service in the target");
const READY: Parameter = Parameter::unset(
    "load.ready",
    Domain::Text("tcp:PORT, log:EXPRESSION or exit"),
)
.help("when the service is ready: a port answers, its output matches, or it has ended well");
const PREPARE: Parameter = Parameter::unset("load.prepare", Domain::Text("a command"))
    .help("a command in the target before the service, once a trial");
const PACKAGES: Parameter = Parameter::unset("load.packages", Domain::Text("a list of names"))
    .help("Debian packages that the image gets");
/// The files that the image of a command gets, as a JSON list of paths.
pub const FILES: Parameter = Parameter::unset("load.files", Domain::Text("a list of paths"))
    .help("files and directories that the image gets, beside which the commands in the target run");
const STDIN: Parameter = Parameter::unset("load.stdin", Domain::Text("a path"))
    .help("the file that the command reads as its standard input, beside the image's files; unset: nothing");
const WORK: Parameter = Parameter::unset(
    "load.work",
    Domain::Text("{ count | json | csv | regex, unit }"),
)
.help("the work that the command does: a count, or a number that it prints");
const METRICS: Parameter = Parameter::unset(
    "load.metrics",
    Domain::Text("a table: NAME = { json | csv | regex, unit, better }"),
)
.help("numbers that the command prints, as metrics own.NAME");

const LEVEL: Parameter = Parameter::new("load.level", Domain::Number(1e-9, 1e12), "1")
    .help("the value of {level} in the command");
const WARMUP_RUNS: Parameter = Parameter::new("load.warmup_runs", Domain::Integer(0, 1000), "0")
    .help("runs of the command before the measured one, in each trial");
const READY_WITHIN: Parameter =
    Parameter::new("load.ready_within_s", Domain::Number(0.1, 3600.0), "60")
        .help("after which a service that is not ready fails the trial, in seconds");
const LIMIT: Parameter = Parameter::new("load.limit_s", Domain::Number(0.1, 3500.0), "3500")
    .help("after which a command that has not ended fails the trial, in seconds");
const EXTENT: Parameter = Extent::parameter("completion");

/// How long a command of a fixed duration may outlast it.
const MOST_OVERTIME: Duration = Duration::from_secs(30);
/// The beginning of the line that the script prints last.
const TRAILER: &str = "vtax: elapsed_us ";

/// Runs a command and prints its time by the clock of the machine that it runs on, and its CPU time: the shell's own, and
/// that of its children, of which the command is the only one (POSIX, `times`).
const TIMED: &str = r#"a=$EPOCHREALTIME; "$@" || exit; b=$EPOCHREALTIME
printf '\nvtax: elapsed_us %d\n' $((${b/[.,]/} - ${a/[.,]/})); times"#;

/// Runs a service. The last of its outputs, at most 256 KiB, are kept in `$1`, and the end of
/// them is printed when it ends. `dd` writes at once what it reads.
const SERVED: &str = r#"umask 077; d=$1; shift
rm -rf "$d" && mkdir "$d" && mkfifo "$d/pipe" || exit 1
while dd bs=1k count=128 of="$d/new" 2>"$d/dd" && [ -s "$d/new" ]; do mv "$d/new" "$d/old"; done <"$d/pipe" &
"$@" >"$d/pipe" 2>&1 </dev/null; s=$?; wait
cat "$d/old" "$d/new" 2>/dev/null | tail -n 12 >&2; exit $s"#;

/// When a service is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ready {
    /// When its port accepts a connection from the client.
    Tcp(u16),
    /// When its output matches an expression.
    Log(String),
    /// When its command has ended with 0: it went on in the background, or had only to prepare something.
    Exit,
}

/// A text that is no value of `ready`.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ReadyError {
    /// No port.
    #[error("`{0}` is not a port from 1 to 65535")]
    Port(String),
    /// An expression with a mistake.
    #[error(transparent)]
    Expression(#[from] FigureError),
    /// None of its forms.
    #[error("`ready` is tcp:PORT, log:EXPRESSION or exit")]
    Form,
}

impl FromStr for Ready {
    type Err = ReadyError;

    fn from_str(text: &str) -> Result<Self, ReadyError> {
        match text.split_once(':') {
            Some(("tcp", port)) => match port.parse() {
                Ok(port) if port > 0 => Ok(Self::Tcp(port)),
                _ => Err(ReadyError::Port(port.to_owned())),
            },
            Some(("log", pattern)) if !pattern.is_empty() => {
                figure::regex(pattern)?;
                Ok(Self::Log(pattern.to_owned()))
            }
            None if text == "exit" => Ok(Self::Exit),
            _ => Err(ReadyError::Form),
        }
    }
}

/// What a plan defines of a command, beside its parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Definition {
    /// The measured command.
    pub load: String,
    /// The service; none with `ready` is the entry point of the guest's image.
    pub serve: Option<String>,
    /// When the service is ready.
    pub ready: Option<String>,
    /// The command before it.
    pub prepare: Option<String>,
    /// The packages of the image.
    pub packages: Vec<String>,
    /// The files and directories that the image gets.
    pub files: Vec<String>,
    /// The file of standard input of a command in the target, by its name among [`Definition::files`].
    pub stdin: Option<String>,
    /// The work.
    pub work: Option<Figure>,
    /// The metrics by name, without their prefix.
    pub metrics: BTreeMap<String, Figure>,
}

impl Definition {
    /// The settings that carry it.
    pub fn settings(&self) -> Settings {
        let json = |value: serde_json::Result<String>| value.unwrap_or_default();
        let mut settings = Settings::default();
        let mut set = |parameter: &Parameter, text: Option<String>| {
            if let Some(text) = text {
                settings
                    .0
                    .insert(parameter.key.to_owned(), Level::Text(text));
            }
        };
        set(&LOAD, Some(self.load.clone()));
        set(&SERVE, self.serve.clone());
        set(&READY, self.ready.clone());
        set(&PREPARE, self.prepare.clone());
        set(
            &PACKAGES,
            (!self.packages.is_empty()).then(|| self.packages.join(" ")),
        );
        let files = || json(serde_json::to_string(&self.files));
        set(&FILES, (!self.files.is_empty()).then(files));
        set(&STDIN, self.stdin.clone());
        set(
            &WORK,
            self.work
                .as_ref()
                .map(|work| json(serde_json::to_string(work))),
        );
        let metrics = || json(serde_json::to_string(&self.metrics));
        set(&METRICS, (!self.metrics.is_empty()).then(metrics));
        settings
    }
}

fn figures<T: serde::de::DeserializeOwned>(
    parameter: &Parameter,
    settings: &Settings,
) -> Outcome<Option<T>> {
    let parsed = parameter.given(settings).map(serde_json::from_str);
    let wrong = |cause| {
        HostError::Setting(format!(
            "{} is not as a plan sets it: {cause}",
            parameter.key
        ))
    };
    parsed.transpose().map_err(wrong)
}

/// The words of a command with the values of its placeholders; `None` where it is not set.
fn line(
    parameter: &Parameter,
    address: IpAddr,
    settings: &Settings,
    timing: Timing,
) -> Outcome<Option<Vec<String>>> {
    let Some(text) = parameter.given(settings) else {
        return Ok(None);
    };
    let words = words::split(text)
        .map_err(|cause| HostError::Setting(format!("{}: {cause}", parameter.key)))?;
    let values = [
        ("{target}", address.to_string()),
        ("{level}", LEVEL.number(settings).to_string()),
        ("{warmup}", whole_seconds(timing.warmup).to_string()),
        ("{duration}", whole_seconds(timing.duration).to_string()),
        (
            "{seconds}",
            (whole_seconds(timing.warmup) + whole_seconds(timing.duration)).to_string(),
        ),
    ];
    let filled = words.into_iter().map(|word| {
        values
            .iter()
            .fold(word, |word, (name, value)| word.replace(name, value))
    });
    Ok(Some(filled.collect()))
}

/// The words of a command in the target: below its image, where it has one.
fn in_target(words: Vec<String>, settings: &Settings) -> Vec<String> {
    let enter = oci::entered(settings).map(|_| oci::ENTER.to_owned());
    enter.into_iter().chain(words).collect()
}

/// The files and directories that the image of a command gets, as the plan writes them.
pub fn files_of(settings: &Settings) -> Vec<String> {
    let text = FILES.given(settings).unwrap_or_default();
    serde_json::from_str(text).unwrap_or_default()
}

/// A command line in the target that runs beside the plan's files, where it has some. In the files of this host it runs in
/// the working directory, which has them too.
fn beside_files(line: CommandLine, settings: &Settings) -> CommandLine {
    let files = || {
        FILES
            .given(settings)
            .map(|_| user_files::DIRECTORY.to_owned())
    };
    let host = oci::host_directory(settings).map(|path| path.display().to_string());
    let enter = host
        .or_else(files)
        .map(|directory| ["env".to_owned(), "-C".to_owned(), directory]);
    enter.into_iter().flatten().chain(line).collect()
}

/// Whether the command drives a service. Without `serve`, `ready` waits for the entry point of the guest's image.
fn has_service(settings: &Settings) -> bool {
    SERVE.given(settings).is_some() || READY.given(settings).is_some()
}

/// Whether the service of a command is the entry point of its guest's image.
pub fn serves_entry_point(settings: &Settings) -> bool {
    has_service(settings) && SERVE.given(settings).is_none()
}

/// How long one run of the command takes, where it is a generator that says so.
pub fn run_time(settings: &Settings) -> Option<Duration> {
    generators::runs_for(LOAD.given(settings)?)
}

/// The number of runs of the command in a trial.
pub fn runs(settings: &Settings) -> u32 {
    let before = u32::try_from(WARMUP_RUNS.integer(settings));
    before.unwrap_or_default().saturating_add(1)
}

/// The programs of the commands that run in the target itself, without an image's entry point.
pub fn programs_in_target(settings: &Settings) -> Vec<String> {
    let load = (!has_service(settings)).then_some(&LOAD);
    let commands = [&PREPARE, &SERVE].into_iter().chain(load);
    let words = commands.filter_map(|command| words::split(command.given(settings)?).ok());
    words.filter_map(|words| words.into_iter().next()).collect()
}

/// The command lines that run in the target, for a dry run that finds the files that they use: what prepares the target,
/// the service, and the load where it has no service. Placeholders have short times and the address of the loopback.
///
/// # Errors
/// When a command is not valid.
pub fn lines_in_target(settings: &Settings) -> Outcome<Vec<CommandLine>> {
    let address = IpAddr::from([127, 0, 0, 1]);
    let timing = Timing {
        duration: Duration::from_secs(1),
        ..NO_TIMES
    };
    let mut lines = Vec::new();
    for parameter in [&PREPARE, &SERVE] {
        let words = line(parameter, address, settings, timing)?;
        lines.extend(words.map(|words| beside_files(command(words), settings)));
    }
    if !has_service(settings) {
        let load = Command.load(LoadSpec {
            address,
            scratch: &Scratch::default(),
            settings,
            timing,
        })?;
        lines.push(load.line);
    }
    Ok(lines)
}

/// The times of a command outside of a window.
const NO_TIMES: Timing = Timing {
    warmup: Duration::ZERO,
    duration: Duration::ZERO,
};

static ABOUT: About = About {
    kind: KIND,
    summary: "any command, with a service of its own where it needs one, and the numbers that it prints",
    parameters: &[LEVEL, EXTENT, WARMUP_RUNS, READY_WITHIN, LIMIT],
    definition: &[
        LOAD, SERVE, READY, PREPARE, PACKAGES, FILES, STDIN, WORK, METRICS,
    ],
    target_programs: &[
        Program::new("bash", "bash"),
        Program::new("timeout", "coreutils"),
    ],
    client_programs: &[
        Program::new("bash", "bash"),
        Program::new("timeout", "coreutils"),
    ],
    level: Some(LoadLevel::new(
        &LEVEL,
        Unit::from_base(Base::One),
        1.0,
        "level of the command",
    )),
    ..About::NONE
};

impl Workload for Command {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn packages(&self, settings: &Settings) -> Vec<String> {
        let text = PACKAGES.text(settings);
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn client_program(&self, settings: &Settings) -> Option<String> {
        has_service(settings).then_some(())?;
        words::split(LOAD.given(settings)?).ok()?.into_iter().next()
    }

    fn target_program(&self, settings: &Settings) -> Option<String> {
        if oci::entered(settings).is_some() {
            // Its programs are found by the environment of the image.
            return None;
        }
        let first = [&PREPARE, &SERVE, &LOAD]
            .into_iter()
            .find_map(|parameter| parameter.given(settings))?;
        words::split(first).ok()?.into_iter().next()
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let settings = context.settings;
        let address = context.target.about().address;
        if oci::entered(settings).is_some() {
            prepare(context.target, &command([oci::MOUNTS.to_owned()]), &[])?;
        }
        if let Some(words) = line(&PREPARE, address, settings, NO_TIMES)? {
            let line = command(in_target(words, settings));
            prepare(context.target, &beside_files(line, settings), &[])?;
        }
        let service = if has_service(settings) {
            let words = line(&SERVE, address, settings, NO_TIMES)?.unwrap_or_default();
            let words = in_target(words, settings);
            if words.is_empty() {
                return Err(HostError::Setting(format!(
                    "{} needs {}, or an image whose entry point is the service",
                    READY.key, SERVE.key
                )));
            }
            self.start(context, &words)?
        } else {
            Service::default()
        };
        for _ in 0..WARMUP_RUNS.integer(settings) {
            let scratch = &Scratch::from_target(context.target);
            let load = self.load(LoadSpec {
                address,
                scratch,
                settings,
                timing: NO_TIMES,
            })?;
            match load.runs {
                Runs::Client => prepare_client(context.client, &load.line, &[])?,
                Runs::Target => prepare(context.target, &load.line, &[])?,
            }
        }
        Ok(service)
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let settings = spec.settings;
        let words = line(&LOAD, spec.address, settings, spec.timing)?
            .ok_or_else(|| HostError::Setting(format!("{} is not set", LOAD.key)))?;
        let words = if has_service(settings) {
            words
        } else {
            in_target(words, settings)
        };
        let line = self.timed(words, settings, spec.timing);
        Ok(if has_service(settings) {
            LoadCommand::client(line)
        } else {
            LoadCommand::target(beside_files(line, settings))
        }
        .patient(MOST_OVERTIME))
    }

    fn launch(&self, spec: LoadSpec) -> Outcome<Option<CommandLine>> {
        let settings = spec.settings;
        if has_service(settings) || self.extent(settings) != Extent::ToCompletion {
            return Ok(None);
        }
        // In an image, which may lack `true`, the program that enters it.
        let nothing = match oci::entered(settings) {
            Some(_) => vec![oci::ENTER.to_owned(), oci::NOTHING.to_owned()],
            None => vec!["true".to_owned()],
        };
        let line = self.timed(nothing, settings, spec.timing);
        Ok(Some(beside_files(line, settings)))
    }

    fn parse(&self, raw: &[u8], settings: &Settings, _: Timing) -> Outcome<WorkloadResult> {
        let all = text(COMMAND, raw)?;
        let trailer = all.rfind(TRAILER).map(|at| all.split_at(at));
        let (output, elapsed, own_cpu) = trailer
            .and_then(|(output, trailer)| {
                let mut lines = trailer.strip_prefix(TRAILER)?.lines();
                let elapsed: f64 = lines.next()?.parse().ok()?;
                let own_cpu = lines.nth(1).and_then(times);
                Some((
                    output.strip_suffix('\n').unwrap_or(output),
                    elapsed / 1e6,
                    own_cpu,
                ))
            })
            .ok_or_else(|| {
                garbage(
                    COMMAND,
                    &format!("its time is missing after {}", quote(raw)),
                )
            })?;
        let elapsed = positive(COMMAND, "elapsed", Some(elapsed))?;
        let mut metrics = Metrics::default();
        let own: Option<BTreeMap<String, Figure>> = figures(&METRICS, settings)?;
        let mut suspect = Vec::new();
        for (name, figure) in own.unwrap_or_default() {
            let figure::Reading { value, unit, doubt } = figure.read(&name, output)?;
            suspect.extend(doubt);
            let metric = Metric {
                quantity: vtax_core::Quantity::new(value, unit),
                source: Source::Measured,
                model: None,
                meter: None,
                better: figure.better,
                headline: true,
                title: format!("{name}, as the command printed it"),
            };
            metrics.0.insert(OWN.fill(&name), metric);
        }
        let work: Option<Figure> = figures(&WORK, settings)?;
        let work = work.map(|work| work.read("work", output)).transpose()?;
        let work = work.map(|figure::Reading { value, unit, doubt }| {
            suspect.extend(doubt);
            (value, unit)
        });
        let extent = self.extent(settings);
        let printed = generator(settings).and_then(|generator| generators::read(generator, output));
        suspect.extend(printed.as_ref().and_then(|printed| printed.failed.clone()));
        let (done, claims) = match (extent, work) {
            (
                Extent::FixedDuration,
                Some((
                    amount,
                    Unit {
                        base,
                        per: Some(Base::Second),
                    },
                )),
            ) => (WorkDone::Rate(work_of(amount, base)), Vec::new()),
            (Extent::ToCompletion, None) => {
                let work = printed.map(|of| super::output::work(of.amount, of.base, of.phrase));
                let work = work.unwrap_or_else(once);
                (WorkDone::Total(work), vec![Claim::elapsed(elapsed)])
            }
            (Extent::ToCompletion, Some((amount, Unit { base, per: None }))) => {
                positive(COMMAND, "work", Some(amount))?;
                (
                    WorkDone::Total(work_of(amount, base)),
                    vec![Claim::elapsed(elapsed)],
                )
            }
            (Extent::FixedDuration, _) => {
                let detail = format!(
                    "{} has no unit per second, which `duration` needs",
                    WORK.key
                );
                return Err(HostError::Setting(detail));
            }
            (Extent::ToCompletion, _) => {
                let detail = format!("{} has a unit per second, which needs `duration`", WORK.key);
                return Err(HostError::Setting(detail));
            }
        };
        if extent == Extent::ToCompletion {
            metrics.add(metric::ELAPSED, elapsed, "time until the command ended");
            metrics.lead(metric::ELAPSED);
        }
        Ok(WorkloadResult {
            claims,
            suspect,
            own_cpu,
            ..metrics.result(done)
        })
    }
}

/// The sum of user and system time of a line of `times`, such as `0m0.010s 0m0.002s`, in seconds.
fn times(line: &str) -> Option<f64> {
    let one = |text: &str| {
        let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
        let seconds: f64 = seconds.replace(',', ".").parse().ok()?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds)
    };
    let (user, system) = line.split_once(' ')?;
    Some(one(user)? + one(system)?).filter(|sum| sum.is_finite() && *sum >= 0.0)
}

/// Work in a unit of the plan.
fn work_of(amount: f64, base: Base) -> Work {
    super::output::work(amount, base, &format!("do 1 {}", base.symbol()))
}

/// The work of a command that counts none.
fn once() -> Work {
    super::output::work(1.0, Base::Operation, Work::ONCE)
}

/// The load generator of the command, whose output is read; `None` where the plan says what the work is.
fn generator(settings: &Settings) -> Option<&'static generators::Generator> {
    match WORK.given(settings) {
        Some(_) => None,
        None => generators::started(LOAD.given(settings)?),
    }
}

impl Command {
    /// The command line that runs a command with its time limit, and prints its times.
    fn timed(&self, words: Vec<String>, settings: &Settings, timing: Timing) -> CommandLine {
        let limit = match self.extent(settings) {
            Extent::FixedDuration => {
                (timing.warmup + timing.duration + MOST_OVERTIME).as_secs_f64()
            }
            Extent::ToCompletion => LIMIT.number(settings),
        };
        let limit = limit.to_string();
        let mut redirected = "\"$@\"".to_owned();
        if let Some(file) = STDIN.given(settings) {
            redirected.push_str(&format!(" <{}", quoted(file)));
        }
        if generator(settings).is_some_and(|generator| generator.is_on_stderr) {
            redirected.push_str(" 2>&1");
        }
        let timed = TIMED.replacen("\"$@\"", &redirected, 1);
        let before = ["timeout", "-k", "2", &limit, "bash", "-c", &timed, MARK].map(str::to_owned);
        command(before.into_iter().chain(words))
    }

    /// Starts the service and waits until it is ready.
    fn start(&self, context: &mut ServeContext, words: &[String]) -> Outcome<Service> {
        let (client, settings) = (context.client, context.settings);
        let ready = READY
            .text(settings)
            .parse::<Ready>()
            .map_err(|cause| HostError::Setting(cause.to_string()))?;
        if ready == Ready::Exit {
            let line = command(words.iter().cloned());
            prepare(context.target, &beside_files(line, settings), &[])?;
            return Ok(Service::default());
        }
        let mut arguments = vec![DIRECTORY];
        arguments.extend(words.iter().map(String::as_str));
        let mut line = script("sh", SERVED, &arguments);
        if let Some(name) = line.iter_mut().find(|word| *word == "vtax-workload") {
            MARK.clone_into(name);
        }
        let line = beside_files(line, settings);
        let limit = Duration::from_secs_f64(READY_WITHIN.number(settings));
        let name = "the service of the command";
        let started = match ready {
            Ready::Tcp(port) => {
                let up = |target: &mut dyn Target| client.can_connect(target.about().address, port);
                context.start_until(name, &line, Some(port), limit, &[], up)
            }
            Ready::Log(pattern) => {
                let regex = figure::regex(&pattern)
                    .map_err(|cause| HostError::Setting(cause.to_string()))?;
                let up = |target: &mut dyn Target| Ok(regex.is_match(&service_log(target)?));
                context.start_until(name, &line, None, limit, &[], up)
            }
            Ready::Exit => return Ok(Service::default()),
        };
        match started {
            Err(HostError::Timeout { what, seconds, .. }) => Err(HostError::Timeout {
                what,
                seconds,
                evidence: figure::last_lines(&service_log(context.target)?),
            }),
            other => other,
        }
    }
}

/// What the service printed last.
fn service_log(target: &mut dyn Target) -> Outcome<String> {
    let read = format!("cat {DIRECTORY}/old {DIRECTORY}/new 2>/dev/null | tail -c 60000");
    let log = target.run(&script("sh", &read, &[]), Duration::from_secs(30))?;
    Ok(String::from_utf8_lossy(&log.stdout).into_owned())
}

#[cfg(test)]
mod tests;
