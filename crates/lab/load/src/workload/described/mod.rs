// SPDX-License-Identifier: Apache-2.0
//! Workloads that a file describes: `workloads/KIND.toml`.
//!
//! A file has the workload's constants and parameters, the command lines of its service and its load, the figures that
//! are read from the load's output, and what follows from them: metrics, work, claims and reasons for suspicion. Keys of
//! tables that a file does not have are those of the files that it is `like`.

mod expression;
mod printed;
mod report;
#[cfg(test)]
mod tests;

pub use expression::Scope;
pub use printed::{Figure, Printed};

use super::check::{self, Account, Amount, Claim};
use super::command::words;
use super::driver::{self, command, prepare, prepare_client};
use super::output::{Metrics, ascending, number, random_shortfall, shortfall, work};
use super::{
    About, Domain, Extent, LOAD_SEED, LoadCommand, LoadLevel, LoadSpec, Outcome, Parameter,
    Program, Scratch, ServeContext, Service, Settings, Timing, WorkDone, Workload, WorkloadResult,
};
use crate::generator::Summary;
use printed::Output;
use serde::Deserialize;
use serde::de::value::{Error as WordError, StrDeserializer};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use vtax_core::{Unit, metric};
use vtax_guest::platform::CommandLine;
use vtax_host::HostError;

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../workloads/", $name, ".toml")))),*]
    };
}

/// The files: of workloads, and those that others are like.
const FILES: &[(&str, &str)] = files!(
    "parameters" "apache" "iperf3" "open-loop" "idle" "iperf3-receive" "iperf3-send" "iperf3-udp" "nuttcp" "http-download"
    "http-rate" "http-closed" "http-batch" "http-flood" "hping3" "board" "memcached" "tbench" "sysbench-oltp" "cpu"
    "stress-ng" "hackbench" "disk-read"
);

/// A workload that a file describes.
pub struct Described {
    about: &'static About,
    file: &'static Description,
}

/// A file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Description {
    /// As [`About::kind`].
    kind: String,
    /// As [`About::summary`].
    summary: String,
    /// The name of the load's program, for messages.
    driver: String,
    /// As [`About::parameters`]: each in full, or the key of one of `parameters.toml`.
    parameters: Vec<Entry>,
    /// As [`About::target_programs`]: names and packages.
    target_programs: Vec<[String; 2]>,
    /// As [`About::client_programs`].
    client_programs: Vec<[String; 2]>,
    /// As [`About::packages`].
    packages: Vec<String>,
    /// As [`About::level`].
    level: Option<Level>,
    /// As [`About::to_completion`].
    to_completion: bool,
    /// As [`Workload::scratch_mib`], an expression.
    scratch_mib: Option<String>,
    /// Names and their expressions, computed first and in alphabetical order.
    define: BTreeMap<String, String>,
    /// Commands in the target before the service.
    prepare: Vec<Line>,
    /// The service in the target.
    service: Option<Serves>,
    /// Commands of the client after the service has come up.
    fill: Vec<Line>,
    /// The load.
    load: Drives,
    /// Its output.
    output: Output,
    /// What the output has only where the load failed, read before all other figures.
    failures: Vec<Figure>,
    /// The figures, in order.
    figures: Vec<Figure>,
    /// The title of a latency whose `p50`, `p90`, `p99`, `p999`, `max` and `mean` are known, in seconds.
    latency: Option<String>,
    /// Whether latencies that contradict each other are an error.
    ascending: bool,
    /// The other metrics.
    metrics: Vec<Shows>,
    /// The work: a rate, or where the extent is `completion` a total.
    work: Option<Done>,
    /// As [`WorkloadResult::claims`], rates or totals as the work is.
    claims: Vec<Claims>,
    /// As [`WorkloadResult::suspect`].
    suspect: Vec<Doubt>,
    /// As [`WorkloadResult::unreached`]: the first that holds.
    unreached: Vec<Doubt>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Entry {
    Named(String),
    Whole(Declared),
}

/// A parameter: a whole number, a number or a choice, else a boolean.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Declared {
    key: String,
    integer: Option<(i64, i64)>,
    number: Option<(f64, f64)>,
    choice: Option<Vec<String>>,
    default: Option<String>,
    help: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Level {
    key: String,
    unit: Unit,
    scale: f64,
    title: String,
}

/// A command line.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Line {
    /// The shell of a script whose arguments the words are.
    shell: String,
    /// The script.
    script: Option<String>,
    /// The words, quoted as in a shell, with expressions in braces. A word with blanks in its expression has quotes.
    words: Vec<Words>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Words {
    Always(String),
    When { when: String, add: String },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Serves {
    /// Its name for messages.
    name: String,
    /// The port that answers once it is up.
    port: u16,
    /// Whether it serves one client at a time, so that an attempt to connect would disturb it.
    #[serde(default)]
    for_one: bool,
    line: Line,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Drives {
    /// Whether it runs in the target.
    in_target: bool,
    /// By how many seconds it may outlast its times beyond the usual.
    patience: Option<String>,
    /// Whether it goes through the levels of a ramp by itself: they are the text `ramp`, with `settle` seconds.
    ramps: bool,
    line: Line,
}

/// A metric.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shows {
    name: String,
    value: String,
    /// Its unit, where a workload chooses it.
    unit: Option<Unit>,
    /// The part of its title that a workload chooses.
    #[serde(default)]
    title: String,
    /// Whether summaries lead with it.
    #[serde(default)]
    lead: bool,
    when: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Done {
    amount: String,
    unit: Unit,
    phrase: String,
    when: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    what: String,
    amount: String,
    account: String,
    most: Option<String>,
    varies: Option<f64>,
    when: Option<String>,
}

/// A reason for suspicion, by one of the checks of [`check`] and [`super::output`], or by a condition.
#[derive(Debug, Deserialize)]
#[serde(tag = "check", rename_all = "kebab-case", deny_unknown_fields)]
enum Doubt {
    Duration {
        seconds: String,
        asked: String,
        when: Option<String>,
    },
    ProcessorTime {
        spent: String,
        processes: String,
        seconds: String,
    },
    Excess {
        what: String,
        reached: String,
        asked: String,
        unit: Unit,
        seconds: String,
        #[serde(default)]
        random: bool,
    },
    Shortfall {
        what: String,
        reached: String,
        asked: String,
        unit: Unit,
        #[serde(default)]
        random: bool,
    },
    Text {
        when: String,
        text: String,
    },
}

/// The workload of an embedded file.
///
/// # Errors
/// When there is none of that kind, or it is not valid.
pub fn read(kind: &str) -> Result<Described, toml::de::Error> {
    let file: Description = table(kind)?.try_into()?;
    let file: &'static Description = Box::leak(Box::new(file));
    let programs = |programs: &'static [[String; 2]]| {
        let programs = programs.iter();
        let programs: Vec<Program> = programs
            .map(|[name, package]| Program::new(name, package))
            .collect();
        &*programs.leak()
    };
    let packages: Vec<&str> = file.packages.iter().map(String::as_str).collect();
    let parameters = file.parameters.iter().map(Entry::parameter);
    let parameters: Vec<Parameter> = parameters.collect::<Result<_, _>>()?;
    let about = About {
        kind: &file.kind,
        summary: &file.summary,
        parameters: parameters.leak(),
        target_programs: programs(&file.target_programs),
        client_programs: programs(&file.client_programs),
        packages: packages.leak(),
        level: file.level.as_ref().map(|level| LoadLevel {
            key: &level.key,
            unit: level.unit,
            scale: level.scale,
            title: &level.title,
        }),
        to_completion: file.to_completion,
        ..About::NONE
    };
    let about = Box::leak(Box::new(about));
    Ok(Described { about, file })
}

/// A file with what it takes from those that it is like.
fn table(name: &str) -> Result<toml::Table, toml::de::Error> {
    let file = FILES.iter().find(|(file, _)| *file == name);
    let (_, text) = file.ok_or_else(|| missing(name))?;
    let mut own: toml::Table = toml::from_str(text)?;
    let bases = own.remove("like");
    for base in bases.iter().filter_map(toml::Value::as_array).flatten() {
        complete(&mut own, table(base.as_str().unwrap_or_default())?);
    }
    Ok(own)
}

/// Adds what a table lacks.
fn complete(own: &mut toml::Table, base: toml::Table) {
    for (key, value) in base {
        match own.get_mut(&key) {
            None => {
                own.insert(key, value);
            }
            Some(toml::Value::Table(part)) => {
                if let toml::Value::Table(value) = value {
                    complete(part, value);
                }
            }
            Some(_) => {}
        }
    }
}

fn missing(what: &str) -> toml::de::Error {
    serde::de::Error::custom(format!(
        "there is no `{what}` among vtax's files of workloads"
    ))
}

impl Entry {
    fn parameter(&'static self) -> Result<Parameter, toml::de::Error> {
        match self {
            Self::Whole(declared) => Ok(declared.parameter()),
            Self::Named(key) if *key == LOAD_SEED.key => Ok(LOAD_SEED),
            Self::Named(key) => {
                let shared: Description = table("parameters")?.try_into()?;
                let shared = shared.parameters.into_iter().find_map(|entry| match entry {
                    Self::Whole(declared) if declared.key == *key => Some(declared),
                    _ => None,
                });
                let declared = shared.ok_or_else(|| missing(key))?;
                let declared: &'static Declared = Box::leak(Box::new(declared));
                Ok(declared.parameter())
            }
        }
    }
}

impl Declared {
    fn parameter(&'static self) -> Parameter {
        let domain = match (self.integer, self.number, &self.choice) {
            (Some((low, high)), ..) => Domain::Integer(low, high),
            (_, Some((low, high)), _) => Domain::Number(low, high),
            (.., Some(words)) => {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                Domain::Choice(words.leak())
            }
            _ => Domain::Bool,
        };
        Parameter {
            key: &self.key,
            domain,
            default: self.default.as_deref(),
            help: &self.help,
        }
    }
}

impl Line {
    /// The command line with the values of its expressions.
    fn filled(&self, scope: &Scope) -> Outcome<CommandLine> {
        let mut text = String::new();
        for part in &self.words {
            let words = match part {
                Words::Always(words) => words,
                Words::When { when, add } if scope.holds(Some(when))? => add,
                Words::When { .. } => continue,
            };
            text.push_str(words);
            text.push(' ');
        }
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let words = words::split(&text)
            .map_err(|cause| HostError::Setting(format!("the workload's `{text}`: {cause}")))?;
        let words: Vec<String> = words
            .iter()
            .map(|word| scope.text(word))
            .collect::<Outcome<_>>()?;
        Ok(match &self.script {
            Some(script) => {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                driver::script(&self.shell, script, &words)
            }
            // vtax's own numbers and messages are in no particular language.
            None if text.starts_with("{vtax}") => words,
            None => command(words),
        })
    }
}

impl Described {
    /// The names of a trial's settings and times.
    fn scope(&self, settings: &Settings, timing: Timing) -> Outcome<Scope> {
        let mut scope = Scope::default();
        scope.set("kind", self.about.kind);
        for parameter in self.about.parameters {
            let name = parameter.key.trim_start_matches("load.");
            match parameter.domain {
                Domain::Bool => scope.set(name, parameter.bool(settings)),
                Domain::Integer(..) => scope.set(name, parameter.integer(settings)),
                Domain::Number(..) => scope.set(name, parameter.number(settings)),
                Domain::Choice(_) | Domain::Text(_) => scope.set(name, parameter.text(settings)),
            }
        }
        for (name, time) in [("warmup", timing.warmup), ("duration", timing.duration)] {
            scope.set(name, time.as_secs_f64());
            scope.set(&format!("{name}_us"), time.as_micros() as f64);
        }
        for (name, expression) in &self.file.define {
            let value = scope.value(expression)?;
            scope.set(name, value);
        }
        Ok(scope)
    }

    /// The same, with the place of the load.
    fn scope_at(
        &self,
        address: IpAddr,
        scratch: &Scratch,
        settings: &Settings,
        timing: Timing,
    ) -> Outcome<Scope> {
        let mut scope = self.scope(settings, timing)?;
        let program = std::env::current_exe().map_err(HostError::process(
            "find",
            "the vtax program, which is also the load generator",
        ))?;
        scope.set("vtax", &*program.to_string_lossy());
        scope.set("address", address.to_string());
        let host = match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        scope.set("host", host);
        scope.set("scratch", &*scratch.directory.to_string_lossy());
        scope.set("device", &*scratch.device.to_string_lossy());
        Ok(scope)
    }

    fn command(&self, scope: &Scope) -> Outcome<LoadCommand> {
        let load = &self.file.load;
        let line = load.line.filled(scope)?;
        let command = if load.in_target {
            LoadCommand::target(line)
        } else {
            LoadCommand::client(line)
        };
        let more = load.patience.as_ref().map(|more| scope.number(more));
        let more = Duration::try_from_secs_f64(more.transpose()?.unwrap_or(0.0));
        Ok(command.patient(more.unwrap_or_default()))
    }
}

impl Workload for Described {
    fn about(&self) -> &'static About {
        self.about
    }

    fn scratch_mib(&self, settings: &Settings) -> u64 {
        let timing = Timing {
            warmup: Duration::ZERO,
            duration: Duration::ZERO,
        };
        let size = self.file.scratch_mib.as_ref().map(|size| {
            let scope = self.scope(settings, timing)?;
            scope.number(size)
        });
        size.and_then(Result::ok).unwrap_or(0.0) as u64
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let (address, scratch) = (
            context.target.about().address,
            Scratch::from_target(context.target),
        );
        let timing = Timing {
            warmup: Duration::ZERO,
            duration: Duration::ZERO,
        };
        let scope = self.scope_at(address, &scratch, context.settings, timing)?;
        let programs = self.about.target_programs;
        for line in &self.file.prepare {
            prepare(context.target, &line.filled(&scope)?, programs)?;
        }
        let service = match &self.file.service {
            None => Service::default(),
            Some(serves) => {
                let line = serves.line.filled(&scope)?;
                if serves.for_one {
                    context.start_for_one(&serves.name, &line, serves.port, programs)?
                } else {
                    context.start(&serves.name, &line, serves.port, programs)?
                }
            }
        };
        for line in &self.file.fill {
            let line = line.filled(&scope)?;
            prepare_client(context.client, &line, self.about.client_programs)?;
        }
        Ok(service)
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let mut scope = self.scope_at(spec.address, spec.scratch, spec.settings, spec.timing)?;
        scope.set("ramp", "");
        self.command(&scope)
    }

    fn ramp(
        &self,
        address: IpAddr,
        levels: &[Settings],
        first: Timing,
        settle: Duration,
    ) -> Outcome<Option<LoadCommand>> {
        let rate = self.about.level.and_then(|level| {
            let mut parameters = self.about.parameters.iter();
            parameters.find(|one| self.file.load.ramps && one.key == level.key)
        });
        let (Some(rate), Some(settings)) = (rate, levels.first()) else {
            return Ok(None);
        };
        let scratch = Scratch {
            device: "".into(),
            directory: "".into(),
        };
        let mut scope = self.scope_at(address, &scratch, settings, first)?;
        let values = levels.iter().map(|one| rate.number(one).to_string());
        scope.set("ramp", values.collect::<Vec<_>>().join(","));
        scope.set("settle", settle.as_secs_f64());
        self.command(&scope).map(Some)
    }

    fn parse(&self, raw: &[u8], settings: &Settings, timing: Timing) -> Outcome<WorkloadResult> {
        let (file, driver) = (self.file, self.file.driver.as_str());
        let mut scope = self.scope(settings, timing)?;
        let mut printed = Printed::read(&file.output, driver, raw, &mut scope)?;
        for figure in file.failures.iter().chain(&file.figures) {
            printed.figure(figure, &mut scope)?;
        }
        let value =
            |name: &str, expression: &str| number(driver, name, Some(scope.number(expression)?));
        let mut metrics = Metrics::default();
        if let Some(title) = &file.latency {
            let times = Summary {
                count: 0,
                mean: value("mean", "mean")?,
                p50: value("p50", "p50")?,
                p90: value("p90", "p90")?,
                p99: value("p99", "p99")?,
                p999: value("p999", "p999")?,
                max: value("max", "max")?,
            };
            if file.ascending {
                ascending(driver, &times)?;
            }
            metrics.latency(&scope.text(title)?, &times);
        }
        for shows in &file.metrics {
            if scope.holds(shows.when.as_ref())? {
                let declared = metric::lookup(&shows.name).ok_or_else(|| {
                    HostError::Setting(format!("the catalogue has no metric `{}`", shows.name))
                })?;
                let unit = shows.unit.unwrap_or(Unit::from_base(vtax_core::Base::One));
                let (value, title) = (value(&shows.name, &shows.value)?, scope.text(&shows.title)?);
                metrics.add_in(declared, value, unit, &title);
                if shows.lead {
                    metrics.lead(declared);
                }
            }
        }
        let extent = self.extent(settings);
        let mut result = WorkloadResult {
            metrics: metrics.0,
            late: printed.late,
            histograms: printed.histograms,
            ..WorkloadResult::default()
        };
        if let Some(done) = &file.work
            && scope.holds(done.when.as_ref())?
        {
            let amount = value("the work", &done.amount)?;
            let work = work(amount, done.unit.base, &scope.text(&done.phrase)?);
            result.work = Some(match extent {
                Extent::FixedDuration => WorkDone::Rate(work),
                Extent::ToCompletion => WorkDone::Total(work),
            });
        }
        for claims in &file.claims {
            if scope.holds(claims.when.as_ref())? {
                result.claims.push(claims.claim(&scope, extent)?);
            }
        }
        for doubt in &file.suspect {
            result.suspect.extend(doubt.reason(driver, &scope, timing)?);
        }
        for doubt in &file.unreached {
            let reason = doubt.reason(driver, &scope, timing)?;
            result.unreached = result.unreached.or(reason);
        }
        Ok(result)
    }
}

impl Claims {
    fn claim(&'static self, scope: &Scope, extent: Extent) -> Outcome<Claim> {
        let amount = scope.number(&self.amount)?;
        let amount = match extent {
            Extent::FixedDuration => Amount::PerSecond(amount),
            Extent::ToCompletion => Amount::InAll(amount),
        };
        let account = scope.text(&self.account)?;
        let account = Account::deserialize(StrDeserializer::<WordError>::new(&account))
            .map_err(|cause| HostError::Setting(format!("the account `{account}`: {cause}")))?;
        let most = self.most.as_ref().map(|most| scope.number(most));
        Ok(Claim {
            what: &self.what,
            amount,
            account,
            most: most.transpose()?.filter(|most| !most.is_nan()),
            varies: self.varies.unwrap_or(1.0),
        })
    }
}

impl Doubt {
    /// The reason, where there is one.
    fn reason(&self, driver: &str, scope: &Scope, timing: Timing) -> Outcome<Option<String>> {
        let number = |expression: &str| scope.number(expression);
        Ok(match self {
            Self::Duration {
                seconds,
                asked,
                when,
            } => {
                let asked = Duration::try_from_secs_f64(number(asked)?).unwrap_or_default();
                if !scope.holds(when.as_ref())? {
                    return Ok(None);
                }
                check::duration(driver, number(seconds)?, asked)
            }
            Self::ProcessorTime {
                spent,
                processes,
                seconds,
            } => {
                let processes = number(processes)? as i64;
                check::processor_time(driver, number(spent)?, processes, number(seconds)?)
            }
            Self::Excess {
                what,
                reached,
                asked,
                unit,
                seconds,
                random,
            } => {
                let check = if *random {
                    check::random_excess
                } else {
                    check::excess
                };
                let (reached, asked) = (number(reached)?, number(asked)?);
                check(&scope.text(what)?, reached, asked, *unit, number(seconds)?)
            }
            Self::Shortfall {
                reached,
                asked,
                random: true,
                ..
            } => random_shortfall(number(reached)?, number(asked)?, timing),
            Self::Shortfall {
                what,
                reached,
                asked,
                unit,
                ..
            } => shortfall(&scope.text(what)?, number(reached)?, number(asked)?, *unit),
            Self::Text { when, text } => {
                if !scope.holds(Some(when))? {
                    return Ok(None);
                }
                Some(scope.text(text)?)
            }
        })
    }
}
