// SPDX-License-Identifier: Apache-2.0
//! Starting services and load generators, and waiting for them without disturbing what is
//! measured.

use super::{
    Extent, Load, LoadClient, LoadCommand, Outcome, Program, Running, Runs, ServeContext, Service,
    Timing,
};
use serde::Serialize;
use std::time::{Duration, Instant};
use vtax_guest::image::{oci, user_files};
use vtax_guest::platform::{CommandLine, Finished, Job, Target};
use vtax_host::HostError;

/// How long a service may take to answer.
const SERVICE_LIMIT: Duration = Duration::from_secs(60);
/// How long the preparation of files and tables may take. An emulated machine on a busy host is slow.
const PREPARE_LIMIT: Duration = Duration::from_secs(600);
/// How long after the failure of a generator the end of a service may show as its cause.
const SERVICE_END_DELAY: Duration = Duration::from_secs(1);
/// How much before its time a load of fixed length may end.
const EARLY_END_TOLERANCE: Duration = Duration::from_millis(250);
/// Between two polls of a target outside the window.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The first argument of the script that a command runs in; messages leave out all before it.
pub(super) const MARK: &str = "vtax-command";
/// The directory of the service's log in the target.
pub(super) const DIRECTORY: &str = "/tmp/vtax-command";

/// A command line with numbers and messages in no particular language.
pub fn command<I>(words: I) -> CommandLine
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    ["env", "LC_ALL=C"]
        .into_iter()
        .map(str::to_owned)
        .chain(words.into_iter().map(Into::into))
        .collect()
}

/// A shell script as a command line; `arguments` are its `$1`, `$2`, ….
pub fn script(shell: &str, text: &str, arguments: &[&str]) -> CommandLine {
    command(
        [shell, "-c", text, "vtax-workload"]
            .into_iter()
            .chain(arguments.iter().copied()),
    )
}

/// A time for programs that count whole seconds, rounded up.
pub fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// The error of a failed command: a missing program, or its output.
fn failure(line: &[String], finished: &Finished, where_: &str, programs: &[Program]) -> HostError {
    let program = programs
        .iter()
        .find(|program| line.iter().any(|word| word == program.name));
    let mut own = line.iter().skip_while(|word| *word != MARK).skip(1);
    let own = own.find(|word| *word != DIRECTORY);
    // The program that enters an image prints what the image lacks.
    if let (127, Some(own)) = (finished.code, own.filter(|own| *own != oci::ENTER)) {
        return HostError::Missing {
            what: format!("`{own}` in the {where_}"),
            remedy: "give the command's whole path, the Debian package that has it in the plan's `packages`, or its file in `files`".to_owned(),
        };
    }
    // 127 is what a shell and env return for a program that is not there.
    if let (127, Some(program)) = (finished.code, program) {
        return HostError::Missing {
            what: format!("`{}` in the {where_}", program.name),
            remedy: format!("it comes with the Debian package {}", program.package),
        };
    }
    let mut output = String::from_utf8_lossy(&finished.stderr).into_owned();
    if output.trim().is_empty() {
        output = String::from_utf8_lossy(&finished.stdout).into_owned();
    }
    // A command of a plan, natively too, sees the files of its guest.
    let place = match own {
        Some(own) if where_ == "target" && own != oci::ENTER && !is_in_host(line) => {
            ", in the files of vtax's image: those of this host come with `files` (--files)"
        }
        _ => "",
    };
    HostError::Program {
        command: shown(line),
        // What `timeout` returns when it ends a command.
        status: match line.iter().position(|word| word == "timeout") {
            Some(at) if finished.code == 124 => match line.get(at + 3) {
                Some(limit) => format!("it did not end within {limit} s"),
                None => status(finished.code),
            },
            _ => format!("{}{place}", status(finished.code)),
        },
        output,
    }
}

/// The directory that a command line in the target changes to: `env -C DIRECTORY …`.
fn folder(line: &[String]) -> Option<&str> {
    match line {
        [env, change, directory, ..] if env == "env" && change == "-C" => Some(directory),
        _ => None,
    }
}

/// Whether a command in the target runs in a directory of this host's files.
fn is_in_host(line: &[String]) -> bool {
    folder(line).is_some_and(|directory| directory != user_files::DIRECTORY)
}

/// A command line for messages: scripts are cut short.
fn shown(line: &[String]) -> String {
    let before = ["env", "LC_ALL=C", DIRECTORY, oci::ENTER];
    let own = line.iter().position(|word| word == MARK);
    let words = line
        .iter()
        .skip(own.map_or(folder(line).map_or(0, |_| 3), |mark| mark + 1))
        .skip_while(|word| before.contains(&word.as_str()));
    let short = |word: &String| match word.lines().next() {
        Some(first) if first.len() < word.trim_end().len() => format!("{first} …"),
        _ => word.clone(),
    };
    words.map(short).collect::<Vec<_>>().join(" ")
}

fn status(code: i32) -> String {
    match code {
        129.. => format!("killed by signal {}", code - 128),
        _ => format!("exit code {code}"),
    }
}

/// Runs a command in the target that has to succeed.
pub fn prepare(target: &mut dyn Target, line: &CommandLine, programs: &[Program]) -> Outcome<()> {
    match target.run(line, PREPARE_LIMIT)? {
        Finished { code: 0, .. } => Ok(()),
        finished => Err(failure(line, &finished, "target", programs)),
    }
}

/// Runs a command as the client that has to succeed.
pub fn prepare_client(
    client: &dyn LoadClient,
    line: &CommandLine,
    programs: &[Program],
) -> Outcome<()> {
    let mut running = client.start(line)?;
    let deadline = Instant::now() + PREPARE_LIMIT;
    loop {
        match running.poll()? {
            Some(Finished { code: 0, .. }) => return Ok(()),
            Some(finished) => return Err(failure(line, &finished, "client", programs)),
            None if Instant::now() >= deadline => {
                return Err(HostError::Timeout {
                    what: format!("the end of `{}` as the client", shown(line)),
                    seconds: PREPARE_LIMIT.as_secs(),
                    evidence: String::new(),
                });
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

impl ServeContext<'_> {
    /// Starts a service and waits until `port` answers the client.
    pub fn start(
        &mut self,
        name: &'static str,
        line: &CommandLine,
        port: u16,
        programs: &[Program],
    ) -> Outcome<Service> {
        let client = self.client;
        let answers = |target: &mut dyn Target| client.can_connect(target.about().address, port);
        self.start_until(name, line, Some(port), SERVICE_LIMIT, programs, answers)
    }

    /// The same for a server of one client at a time. An attempt to connect would be that client, and while the server
    /// leaves it and listens anew, the next one is reset: so the target is asked whether anything listens.
    pub fn start_for_one(
        &mut self,
        name: &'static str,
        line: &CommandLine,
        port: u16,
        programs: &[Program],
    ) -> Outcome<Service> {
        let tables = command(["cat", "/proc/net/tcp", "/proc/net/tcp6"]);
        let listens = |target: &mut dyn Target| {
            // Where there is no IPv6, one of them is missing.
            let Finished { stdout, .. } = target.run(&tables, SERVICE_LIMIT)?;
            Ok(is_listened_on(&String::from_utf8_lossy(&stdout), port))
        };
        self.start_until(name, line, Some(port), SERVICE_LIMIT, programs, listens)
    }

    /// Starts a service and waits until `is_up`, for `limit`. Nothing else may answer at its `port`.
    pub(super) fn start_until(
        &mut self,
        name: &'static str,
        line: &CommandLine,
        port: Option<u16>,
        limit: Duration,
        programs: &[Program],
        mut is_up: impl FnMut(&mut dyn Target) -> Outcome<bool>,
    ) -> Outcome<Service> {
        let (client, target) = (self.client, &mut *self.target);
        let address = target.about().address;
        // A server that answers there already is not the workload's: it must be neither loaded nor measured.
        if let Some(port) = port
            && target.about().is_shared
            && client.can_connect(address, port)?
        {
            return Err(HostError::Busy {
                what: format!("port {port} of {address} has a server already, which is not vtax's"),
                remedy: format!(
                    "stop it for the time of the run, or take a workload other than {name}"
                ),
            });
        }
        let job = target.start(line)?;
        let deadline = Instant::now() + limit;
        loop {
            if is_up(target)? {
                return Ok(Service {
                    job: Some((job, name)),
                });
            }
            if let Some(finished) = target.poll(job)? {
                // A service that has gone into the background.
                if finished.code == 0 {
                    return Err(HostError::Program {
                        command: shown(line),
                        status: "it ended with 0 before it was ready; where it goes into the background, set \
                                 `ready = \"exit\"`"
                            .to_owned(),
                        output: String::from_utf8_lossy(&finished.stderr).into_owned(),
                    });
                }
                return Err(failure(line, &finished, "target", programs));
            }
            if Instant::now() >= deadline {
                return Err(HostError::Timeout {
                    what: match port {
                        Some(port) => {
                            format!("an answer of {name} in the target at {address} port {port}")
                        }
                        None => format!("a sign that {name} in the target is ready"),
                    },
                    seconds: limit.as_secs(),
                    evidence: target.console_tail(),
                });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether a socket listens on `port`, by `/proc/net/tcp` and `tcp6` (`Documentation/networking/proc_net_tcp.rst` of Linux).
fn is_listened_on(tables: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    tables.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_local = words.next().is_some_and(|local| local.ends_with(&port));
        is_local && words.nth(1) == Some(LISTEN)
    })
}

/// The error where a service has ended.
fn dead_service(target: &mut dyn Target, service: Service) -> Outcome<()> {
    let Some((job, name)) = service.job else {
        return Ok(());
    };
    match target.poll(job)? {
        None => Ok(()),
        Some(finished) => Err(HostError::Program {
            command: format!("{name} in the target"),
            status: format!("it ended during the trial, {}", status(finished.code)),
            output: String::from_utf8_lossy(&finished.stderr).into_owned(),
        }),
    }
}

/// Starts a load. One that ends by its times is given up when it outlasts them for too long.
pub fn start(
    target: &mut dyn Target,
    client: &dyn LoadClient,
    service: Service,
    command: LoadCommand,
    programs: &'static [Program],
    extent: Extent,
    timing: Timing,
) -> Outcome<Box<dyn Load>> {
    let begun = Instant::now();
    let length = timing.warmup + timing.duration;
    if command.line.is_empty() {
        return Ok(Box::new(Pause { begun, length }));
    }
    let is_fixed = extent == Extent::FixedDuration;
    let limit = is_fixed.then_some(length + command.patience);
    let load: Box<dyn Load> = match command.runs {
        Runs::Client => Box::new(ClientLoad {
            running: client.start(&command.line)?,
            line: command.line,
            ramps: command.ramps,
            service,
            programs,
            begun,
            least: if is_fixed && !command.ramps {
                length.saturating_sub(EARLY_END_TOLERANCE)
            } else {
                Duration::ZERO
            },
            limit,
        }),
        Runs::Target => Box::new(TargetLoad {
            job: target.start(&command.line)?,
            line: command.line,
            programs,
            begun,
            extent,
            timing,
            limit,
            next_poll: begun,
        }),
    };
    Ok(load)
}

/// What a load without a command prints.
#[derive(Debug, Serialize)]
struct Elapsed {
    /// How long it took.
    seconds: f64,
}

/// Time that passes.
struct Pause {
    begun: Instant,
    length: Duration,
}

impl Load for Pause {
    fn poll(&mut self, _target: &mut dyn Target) -> Outcome<Option<Vec<u8>>> {
        let passed = self.begun.elapsed();
        if passed < self.length {
            return Ok(None);
        }
        let seconds = passed.as_secs_f64();
        let text = serde_json::to_vec(&Elapsed { seconds });
        text.map(Some)
            .map_err(|cause| HostError::file("write", "the time that passed")(cause.into()))
    }
}

/// A load generator that runs as the client.
struct ClientLoad {
    line: CommandLine,
    ramps: bool,
    running: Box<dyn Running>,
    service: Service,
    programs: &'static [Program],
    /// When it was started, or went on to its present level.
    begun: Instant,
    /// One that ends sooner has failed, whatever its exit code.
    least: Duration,
    limit: Option<Duration>,
}

impl Load for ClientLoad {
    fn poll(&mut self, target: &mut dyn Target) -> Outcome<Option<Vec<u8>>> {
        if let Some((came, line)) = self.ramps.then(|| self.running.line()).flatten() {
            dead_service(target, self.service)?;
            self.begun = came;
            return Ok(Some(line));
        }
        let Some(finished) = self.running.poll()? else {
            let elapsed = self.begun.elapsed();
            let Some(limit) = self.limit.filter(|limit| elapsed >= *limit) else {
                return Ok(None);
            };
            dead_service(target, self.service)?;
            return Err(HostError::Timeout {
                what: format!("the end of the load generator `{}`", shown(&self.line)),
                seconds: limit.as_secs(),
                evidence: target.console_tail(),
            });
        };
        // First the cause, then the symptom: the generator of a dead service fails too, and may be seen to first.
        dead_service(target, self.service)?;
        // iperf3 may exit with 0 and its error in the JSON.
        let ended = Instant::now();
        let is_early = ended < self.begun + self.least;
        if finished.code != 0 || is_early {
            while ended.elapsed() < SERVICE_END_DELAY {
                std::thread::sleep(POLL_INTERVAL);
                dead_service(target, self.service)?;
            }
        }
        match finished.code {
            0 => Ok(Some(finished.stdout)),
            _ => Err(failure(&self.line, &finished, "client", self.programs)),
        }
    }

    fn level_began(&self) -> Option<Instant> {
        self.ramps.then_some(self.begun)
    }
}

/// A load that runs in the target itself. The target is asked for it during the warm-up and
/// after the measured window of fixed length, and never in between.
struct TargetLoad {
    line: CommandLine,
    job: Job,
    programs: &'static [Program],
    begun: Instant,
    extent: Extent,
    timing: Timing,
    limit: Option<Duration>,
    next_poll: Instant,
}

impl TargetLoad {
    /// When to ask next, having asked after `elapsed`.
    fn next(extent: Extent, timing: Timing, elapsed: Duration) -> Duration {
        let end = timing.warmup + timing.duration;
        match extent {
            Extent::FixedDuration if elapsed + POLL_INTERVAL < timing.warmup => {
                elapsed + POLL_INTERVAL
            }
            Extent::FixedDuration if elapsed < end => end,
            Extent::FixedDuration => elapsed + POLL_INTERVAL,
            // The window ends when the work does: asking costs something, and so does not
            // noticing. A hundredth of the time that has passed keeps both small.
            Extent::ToCompletion => {
                elapsed + (elapsed / 100).clamp(Duration::from_millis(20), Duration::from_secs(1))
            }
        }
    }
}

impl Load for TargetLoad {
    fn poll(&mut self, target: &mut dyn Target) -> Outcome<Option<Vec<u8>>> {
        let now = Instant::now();
        if now < self.next_poll {
            return Ok(None);
        }
        match target.poll(self.job)? {
            Some(finished) if finished.code == 0 => return Ok(Some(finished.stdout)),
            Some(finished) => return Err(failure(&self.line, &finished, "target", self.programs)),
            None => {}
        }
        let elapsed = self.begun.elapsed();
        if let Some(limit) = self.limit.filter(|limit| elapsed >= *limit) {
            return Err(HostError::Timeout {
                what: format!("the end of `{}` in the target", shown(&self.line)),
                seconds: limit.as_secs(),
                evidence: target.console_tail(),
            });
        }
        self.next_poll = self.begun + Self::next(self.extent, self.timing, elapsed);
        Ok(None)
    }

    fn runs_in_target(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_in_the_target_is_not_asked_about_during_a_fixed_window() {
        let timing = Timing {
            warmup: Duration::from_secs(2),
            duration: Duration::from_secs(10),
        };
        let mut elapsed = Duration::ZERO;
        let mut asked = Vec::new();
        while elapsed < Duration::from_secs(13) {
            elapsed = TargetLoad::next(Extent::FixedDuration, timing, elapsed);
            asked.push(elapsed);
        }
        let during = asked
            .iter()
            .filter(|at| (timing.warmup..timing.warmup + timing.duration).contains(*at));
        assert_eq!(during.count(), 0, "{asked:?}");
        assert!(asked.iter().any(|at| *at < timing.warmup));
        assert!(asked.contains(&Duration::from_secs(12)));
    }

    #[test]
    fn the_end_of_a_load_to_completion_is_noticed_within_a_hundredth_of_its_time() {
        let timing = Timing {
            warmup: Duration::ZERO,
            duration: Duration::ZERO,
        };
        for seconds in [5, 60, 90] {
            let elapsed = Duration::from_secs(seconds);
            assert!(
                TargetLoad::next(Extent::ToCompletion, timing, elapsed) - elapsed <= elapsed / 100
            );
        }
    }

    #[test]
    fn a_port_is_listened_on_in_either_table_and_not_while_it_is_only_connected_to() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n   \
             0: 020A5B0A:1451 010A5B0A:C350 01 00000000:00000000 00:00000000 00000000\n   \
             1: 00000000:1388 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n   \
             2: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0:0 00:0 0\n";
        assert!(is_listened_on(table, 5000) && is_listened_on(table, 80));
        assert!(!is_listened_on(table, 5201) && !is_listened_on("", 80));
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let programs = [Program::new("fio", "fio")];
        let finished = Finished {
            code: 127,
            stdout: vec![],
            stderr: b"env: 'fio': No such file".to_vec(),
        };
        let message = failure(
            &command(["fio", "--version"]),
            &finished,
            "target",
            &programs,
        )
        .to_string();
        assert_eq!(
            message,
            "`fio` in the target is missing: it comes with the Debian package fio"
        );
    }

    #[test]
    fn times_are_rounded_up_to_whole_seconds() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(2)), 2);
        assert_eq!(whole_seconds(Duration::from_millis(2500)), 3);
    }

    #[test]
    fn a_script_is_shown_by_its_first_line() {
        let line = script("bash", "work() {\n  :\n}\n", &["4"]);
        assert_eq!(shown(&line), "bash -c work() { … vtax-workload 4");
    }
}
