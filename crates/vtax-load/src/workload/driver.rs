//! Starting services and load generators, and waiting for them without disturbing what is
//! measured.

use super::{Extent, Load, LoadClient, Program, Service, Timing};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vtax_guest::platform::{CommandLine, Finished, Job, Target};
use vtax_host::HostError;

/// How long a service may take to answer. An emulated machine on a busy host is slow.
const SERVICE_LIMIT: Duration = Duration::from_secs(60);
/// How long a driver may outlast the times it was given before it counts as stuck.
const GRACE: Duration = Duration::from_secs(30);
/// How often a target is asked outside the measured window.
const PAUSE: Duration = Duration::from_millis(100);

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

/// Says why a command failed: by a missing program, or as it printed.
fn failure(line: &[String], finished: &Finished, where_: &str, programs: &[Program]) -> HostError {
    let program = programs
        .iter()
        .find(|program| line.iter().any(|word| word == program.name));
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
    HostError::Program {
        command: shown(line),
        status: status(finished.code),
        output,
    }
}

/// A command line for messages: scripts are cut short.
fn shown(line: &[String]) -> String {
    let words = line
        .iter()
        .skip_while(|word| *word == "env" || *word == "LC_ALL=C");
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
pub fn prepare(
    target: &mut dyn Target,
    line: &CommandLine,
    limit: Duration,
    programs: &[Program],
) -> Result<(), HostError> {
    match target.run(line, limit)? {
        Finished { code: 0, .. } => Ok(()),
        finished => Err(failure(line, &finished, "target", programs)),
    }
}

/// Starts a service and waits until `port` answers the client.
pub fn start_service(
    target: &mut dyn Target,
    client: &dyn LoadClient,
    name: &'static str,
    line: &CommandLine,
    port: u16,
    programs: &[Program],
) -> Result<Service, HostError> {
    let job = target.start(line)?;
    let address = target.address();
    let deadline = Instant::now() + SERVICE_LIMIT;
    loop {
        if client.can_connect(address, port)? {
            return Ok(Service {
                job: Some((job, name)),
            });
        }
        if let Some(finished) = target.poll(job)? {
            return Err(failure(line, &finished, "target", programs));
        }
        if Instant::now() >= deadline {
            return Err(HostError::Timeout {
                what: format!("an answer of {name} in the target at {address} port {port}"),
                seconds: SERVICE_LIMIT.as_secs(),
                evidence: target.console_tail(),
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The error where a service has ended.
fn dead_service(target: &mut dyn Target, service: Service) -> Result<(), HostError> {
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

/// A load generator that runs as the client.
pub struct ClientLoad {
    line: CommandLine,
    child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    service: Service,
    programs: &'static [Program],
    limit: Option<(Instant, Duration)>,
}

impl ClientLoad {
    /// Starts it. A load that ends by its times is given up some time after them.
    pub fn start(
        client: &dyn LoadClient,
        service: Service,
        line: CommandLine,
        programs: &'static [Program],
        extent: Extent,
        timing: Timing,
    ) -> Result<Self, HostError> {
        let mut child = client.start(&line)?;
        let limit = timing.warmup + timing.duration + GRACE;
        Ok(Self {
            line,
            stdout: child.stdout.take().map(drain),
            stderr: child.stderr.take().map(drain),
            child,
            service,
            programs,
            limit: (extent == Extent::FixedDuration).then(|| (Instant::now() + limit, limit)),
        })
    }
}

/// Reads to the end on a thread of its own: a driver that fills its pipe would stop.
fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before a failed read is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

fn collected(reader: &mut Option<JoinHandle<Vec<u8>>>) -> Vec<u8> {
    reader
        .take()
        .and_then(|thread| thread.join().ok())
        .unwrap_or_default()
}

fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

impl Load for ClientLoad {
    fn poll(&mut self, target: &mut dyn Target) -> Result<Option<Vec<u8>>, HostError> {
        let waited = self.child.try_wait().map_err(|cause| {
            HostError::Other(format!(
                "cannot wait for the load generator `{}`: {cause}",
                shown(&self.line)
            ))
        })?;
        let Some(exit) = waited else {
            let Some((_, limit)) = self
                .limit
                .filter(|(deadline, _)| Instant::now() >= *deadline)
            else {
                return Ok(None);
            };
            dead_service(target, self.service)?;
            return Err(HostError::Timeout {
                what: format!("the end of the load generator `{}`", shown(&self.line)),
                seconds: limit.as_secs(),
                evidence: target.console_tail(),
            });
        };
        let finished = Finished {
            code: code(exit),
            stdout: collected(&mut self.stdout),
            stderr: collected(&mut self.stderr),
        };
        // First the cause, then the symptom: the driver of a dead service fails too.
        dead_service(target, self.service)?;
        match finished.code {
            0 => Ok(Some(finished.stdout)),
            _ => Err(failure(&self.line, &finished, "client", self.programs)),
        }
    }
}

impl Drop for ClientLoad {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // It may have ended in between; then there is nothing to kill.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A load that runs in the target itself. The target is asked for it during the warm-up and
/// after the measured window of fixed length, and never in between.
pub struct TargetLoad {
    line: CommandLine,
    job: Job,
    programs: &'static [Program],
    begun: Instant,
    extent: Extent,
    timing: Timing,
    next_poll: Instant,
}

impl TargetLoad {
    /// Starts it.
    pub fn start(
        target: &mut dyn Target,
        line: CommandLine,
        programs: &'static [Program],
        extent: Extent,
        timing: Timing,
    ) -> Result<Self, HostError> {
        let job = target.start(&line)?;
        let begun = Instant::now();
        Ok(Self {
            line,
            job,
            programs,
            begun,
            extent,
            timing,
            next_poll: begun,
        })
    }

    /// When to ask next, having asked after `elapsed`.
    fn next(extent: Extent, timing: Timing, elapsed: Duration) -> Duration {
        let end = timing.warmup + timing.duration;
        match extent {
            Extent::FixedDuration if elapsed + PAUSE < timing.warmup => elapsed + PAUSE,
            Extent::FixedDuration if elapsed < end => end,
            Extent::FixedDuration => elapsed + PAUSE,
            // The window ends when the work does: asking costs something, and so does not
            // noticing. A hundredth of the time that has passed keeps both small.
            Extent::ToCompletion => {
                elapsed + (elapsed / 100).clamp(Duration::from_millis(20), Duration::from_secs(1))
            }
        }
    }
}

impl Load for TargetLoad {
    fn poll(&mut self, target: &mut dyn Target) -> Result<Option<Vec<u8>>, HostError> {
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
        let limit = self.timing.warmup + self.timing.duration + GRACE;
        if self.extent == Extent::FixedDuration && elapsed >= limit {
            return Err(HostError::Timeout {
                what: format!("the end of `{}` in the target", shown(&self.line)),
                seconds: limit.as_secs(),
                evidence: target.console_tail(),
            });
        }
        self.next_poll = self.begun + Self::next(self.extent, self.timing, elapsed);
        Ok(None)
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
    fn a_missing_program_is_named_with_its_package() {
        let programs = [Program {
            name: "fio",
            package: "fio",
        }];
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
    fn a_script_is_shown_by_its_first_line() {
        let line = script("bash", "work() {\n  :\n}\n", &["4"]);
        assert_eq!(shown(&line), "bash -c work() { … vtax-workload 4");
    }
}
