// SPDX-License-Identifier: Apache-2.0
//! The command line: `vtax-density`, which `vtax density` includes.

use crate::plan::Plan;
use crate::run::{self, PlannedClimbs};
use crate::{report, supervisor};
use clap::Args;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use vtax_args::FormatArgs;
use vtax_core::terminal;
use vtax_core::{Source, counted};
use vtax_host::signals::Signals;
use vtax_host::{HostError, Roots};
use vtax_lab::LabError;
use vtax_lab::plan::{Diagnostics, shipped};
use vtax_lab::run::{Event, FinishedTrial, Progress, RunOptions, SampledLevel, default_state_dir};
use vtax_results::ResultsDir;

/// How many guests this host holds, platform by platform.
#[derive(Debug, Args)]
pub struct DensityArguments {
    /// A density plan, a TOML file, such as plans/density.toml
    #[arg(conflicts_with = "platform", required_unless_present_any = ["platform", "supervise"])]
    pub plan: Option<PathBuf>,
    /// Climb these platforms as they are, without a plan: mvm-parked, mvm-live, qemu, firecracker, cloud-hypervisor,
    /// container, process, thread
    #[arg(long, value_name = "KIND,…", value_delimiter = ',')]
    pub platform: Vec<String>,
    /// The expected maximum of every platform, in place of the plan's
    #[arg(long, value_name = "GUESTS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max: Option<u32>,
    /// A quick run: fewer guests and one climb each, marked as such in the report
    #[arg(long)]
    pub quick: bool,
    /// The results directory [default: results/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// The format of the events
    #[command(flatten)]
    pub format: FormatArgs,
    /// Make and hold the guests of a climb; `vtax density` starts this itself
    #[arg(long, hide = true, value_name = "JSON")]
    pub supervise: Option<String>,
}

/// Runs the command on this host. `words` are the arguments before this command line: none for `vtax-density`,
/// `["density"]` for `vtax density`.
///
/// # Errors
/// As [`run::run`] and [`report::write`].
pub fn execute(arguments: &DensityArguments, words: &[&str]) -> Result<(), LabError> {
    if let Some(spec) = &arguments.supervise {
        return Ok(supervisor::serve(spec)?);
    }
    let (mut plan, text) = arguments.read()?;
    let options = RunOptions {
        results: arguments.results(&plan),
        shard: None,
        waits: false,
        state_dir: default_state_dir(),
        place: "local".to_owned(),
        host: Source::Measured,
        own: None,
    };
    let signals = arguments.signals()?;
    let mut progress = arguments.progress(&signals);
    arguments.run_here(&mut plan, &text, words, &options, &signals, &mut progress)?;
    arguments.report(&options.results)
}

impl DensityArguments {
    /// Reads the plan. Returns it with its text, in which the maximum of the command line is.
    ///
    /// # Errors
    /// When the plan cannot be read, or has mistakes.
    pub fn read(&self) -> Result<(Plan, String), LabError> {
        let mut text = match &self.plan {
            Some(path) => {
                let plan = shipped::read(path)?;
                if let Some(words) = plan.note() {
                    // Without a reader of standard error the climb goes on.
                    let _ = terminal::note(&words);
                }
                plan.text
            }
            None => Plan::of_platforms(&self.platform),
        };
        let file = self.plan.as_ref().map_or_else(
            || "--platform".to_owned(),
            |path| path.display().to_string(),
        );
        let read = |text: &str| {
            let wrong = |found: Diagnostics| LabError::Plan(found.to_string());
            Plan::read(&file, text, self.quick).map_err(wrong)
        };
        let mut plan = read(&text)?;
        if let Some(maximum) = self.max {
            text = with_maximum(&text, maximum)?;
            plan = read(&text)?;
        }
        Ok((plan, text))
    }

    /// The results directory.
    pub fn results(&self, plan: &Plan) -> PathBuf {
        let given = self.results.clone();
        given.unwrap_or_else(|| run::default_results(plan))
    }

    /// Takes requests to stop.
    ///
    /// # Errors
    /// When they cannot be handled.
    pub fn signals(&self) -> Result<Signals, LabError> {
        Signals::install()
            .map_err(|cause| LabError::other(format!("cannot handle signals: {cause}")))
    }

    /// The receiver of events. A closed output requests an orderly stop of the run.
    pub fn progress(&self, signals: &Signals) -> Box<dyn FnMut(Event)> {
        let asked = signals.flag();
        if self.format.is_json() {
            Box::new(move |event| {
                if let Ok(line) = serde_json::to_string(&event)
                    && print_line(&line).is_err()
                {
                    asked.store(true, Ordering::SeqCst);
                }
            })
        } else {
            Box::new(move |event| {
                if let Some(words) = line_of(&event)
                    && terminal::note(&words).is_err()
                {
                    asked.store(true, Ordering::SeqCst);
                }
            })
        }
    }

    /// Climbs on this host, without the platforms that it may leave out.
    ///
    /// # Errors
    /// As [`run::run`].
    pub fn run_here(
        &self,
        plan: &mut Plan,
        text: &str,
        words: &[&str],
        options: &RunOptions,
        signals: &Signals,
        progress: &mut dyn Progress,
    ) -> Result<(), LabError> {
        note_absent(plan.leave_out_absent(&Roots::host()), "here", progress);
        let words = words.iter().copied().chain(["--supervise"]);
        let words: Vec<String> = words.map(str::to_owned).collect();
        let planned = PlannedClimbs { plan, text };
        run::run(planned, &words, options, signals, progress).map(drop)
    }

    /// Writes the report of a run and prints its summary.
    ///
    /// # Errors
    /// As [`report::write`], and when a climb failed.
    pub fn report(&self, results: &Path) -> Result<(), LabError> {
        let (path, summary) = report::write(&ResultsDir::open(results)?)?;
        let written = if self.format.is_json() {
            let line = serde_json::json!({"event": "report", "path": path}).to_string();
            print_line(&line)
        } else {
            let mut out = terminal::stdout();
            writeln!(out, "{summary}\nreport: {}", path.display()).and_then(|()| out.flush())
        };
        // The report exists, so a closed output is no error.
        if let Err(cause) = written
            && cause.kind() != io::ErrorKind::BrokenPipe
        {
            return Err(HostError::file("write", "standard output")(cause).into());
        }
        if summary.failed > 0 {
            return Err(LabError::other(format!(
                "{} failed; the report names the reasons",
                counted(summary.failed, "climb")
            )));
        }
        Ok(())
    }
}

/// Reports the platforms that are left out.
pub fn note_absent(labels: Vec<String>, place: &str, progress: &mut dyn Progress) {
    for label in labels {
        progress.event(Event::Note {
            message: format!("{label} is not installed {place} and left out"),
        });
    }
}

/// Writes a line of JSON to standard output, which may be closed.
fn print_line(line: &str) -> io::Result<()> {
    let mut out = terminal::data();
    writeln!(out, "{line}").and_then(|()| out.flush())
}

/// The plan with another expected maximum, so that the stored `plan.toml` is the plan that ran.
fn with_maximum(text: &str, maximum: u32) -> Result<String, LabError> {
    let unreadable =
        |cause: &dyn std::fmt::Display| LabError::Plan(format!("the plan cannot be read: {cause}"));
    let mut table: toml::Table = toml::from_str(text).map_err(|cause| unreadable(&cause))?;
    let platforms = table
        .get_mut("platform")
        .and_then(toml::Value::as_array_mut);
    for platform in platforms.into_iter().flatten() {
        if let Some(platform) = platform.as_table_mut() {
            for key in ["maximum", "quick_maximum"] {
                platform.insert(key.to_owned(), toml::Value::Integer(maximum.into()));
            }
        }
    }
    toml::to_string(&table).map_err(|cause| unreadable(&cause))
}

fn line_of(event: &Event) -> Option<String> {
    let line = match event {
        Event::Note { message } => message.clone(),
        Event::Started {
            plan,
            results,
            trials,
            finished,
            ..
        } => format!(
            "{plan}: {trials} of {} climbs to make; results in {results}",
            trials + finished
        ),
        Event::TrialStarted { treatment, .. } => format!("{treatment}:"),
        Event::Phase { .. } | Event::Objective { .. } | Event::Metered { .. } => return None,
        Event::Sampled(SampledLevel {
            level,
            of,
            readings,
            ..
        }) => {
            let mut line = format!("  {level:>9} of {of}");
            for (name, reading) in readings {
                line += &format!("   {name} {reading}");
            }
            line
        }
        Event::TrialFinished(FinishedTrial {
            treatment,
            done,
            of,
            suspect,
            failed,
            ..
        }) => {
            let mut line = String::new();
            if let Some(reason) = failed {
                line += &format!("{treatment} failed: {reason}\n");
            }
            for reason in suspect {
                line += &format!("  suspect: {reason}\n");
            }
            line + &format!("  {done} of {} made", counted(*of, "climb"))
        }
    };
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_of_the_command_line_stands_in_the_stored_plan() {
        let text = Plan::of_platforms(&["thread".to_owned(), "process".to_owned()]);
        let text = with_maximum(&text, 7).unwrap();
        for quick in [false, true] {
            let plan = Plan::read("plan.toml", &text, quick).unwrap();
            assert!(plan.variants.iter().all(|variant| variant.maximum == 7));
        }
    }
}
