// SPDX-License-Identifier: Apache-2.0
//! The `vtax` command: parses the command line, calls the libraries, prints the results.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod cli;
mod commands;
#[cfg(test)]
mod documented;
mod exit;
mod output;
mod progress;
#[cfg(test)]
mod reference;

use clap::FromArgMatches;
use cli::{AccuracyCommand, Cli, Command, ImageCommand, MeterCommand, PlanCommand};
use cli::{help, words};
use exit::{Exit, NeedsRoot, is_interrupt, is_io};
use progress::{is_unread, note};
use std::error::Error;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use vtax_core::terminal;
use vtax_guest::image::trace;
use vtax_host::signals::{end_unread, end_with_reader};
use vtax_mvm::cli::MvmCommand;

/// The result of every command.
type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let parsed = help::parser().try_get_matches_from(words::words());
    let cli = parsed.and_then(|found| Cli::from_arg_matches(&found));
    let command = match cli {
        Ok(cli) => cli.command,
        Err(answer) => return print_parsed(&answer),
    };
    let Some(command) = command else {
        return ended(commands::next::run());
    };
    if only_prints(&command)
        && let Err(cause) = end_with_reader()
    {
        note(&format!("vtax: cannot handle signals: {cause}"));
        return Exit::Failed.into();
    }
    if let Command::Help(arguments) = &command {
        return print_help(&arguments.words);
    }
    if let Some(details) = command.details() {
        details.start_log();
    }
    let outcome = match command {
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Plan(PlanCommand::Check(arguments)) => commands::plan::check(&arguments),
        Command::Plan(PlanCommand::New(arguments)) => commands::plan::new(&arguments),
        Command::Plan(PlanCommand::List(format)) => commands::plan::list(format.is_json()),
        Command::Plan(PlanCommand::Show { name }) => commands::plan::show(&name),
        Command::Plan(PlanCommand::Keys(arguments)) => commands::plan::keys(&arguments),
        Command::Run(arguments) if arguments.fleet.fleet.is_some() => {
            commands::fleet::run(&arguments)
        }
        Command::Run(arguments) => commands::run::run(*arguments),
        Command::Merge(arguments) => commands::fleet::merge(&arguments),
        Command::Shard(arguments) => commands::fleet::shard(&arguments),
        Command::Report(arguments) => commands::report::report(&arguments),
        Command::Compare(arguments) => commands::report::compare(&arguments),
        Command::History(arguments) => commands::report::history(&arguments),
        Command::Survey(arguments) => commands::report::survey(&arguments),
        Command::Export(arguments) => commands::report::export(&arguments),
        Command::Atlas(arguments) => commands::atlas::run(&arguments),
        Command::Top(arguments) => commands::charge::top(&arguments),
        Command::Charge(arguments) => commands::charge::charge(&arguments),
        Command::Record(arguments) => commands::record::record(&arguments),
        Command::Advise(arguments) => commands::advise::advise(&arguments),
        Command::Bill(arguments) => commands::bill::bill(&arguments),
        Command::Cap(arguments) => commands::charge::cap(&arguments),
        Command::Exporter(arguments) => commands::charge::exporter(arguments),
        Command::Share(arguments) => commands::charge::share(&arguments),
        Command::Web(arguments) => commands::charge::web(&arguments),
        Command::Meter(MeterCommand::List(format)) => commands::meter::list(format.is_json()),
        Command::Meter(MeterCommand::Calibrate { output, step }) => {
            commands::meter::calibrate(&output, step)
        }
        Command::Image(ImageCommand::Build { force }) => commands::image::build(force),
        Command::Testbed(command) => commands::testbed::execute(command),
        Command::Mvm(command) => vtax_mvm::cli::execute(command, &["mvm"]).map_err(Into::into),
        Command::Nic(command) => command.execute().map_err(Into::into),
        Command::Density(arguments) => commands::density::run(&arguments),
        Command::Accuracy(AccuracyCommand::Run(arguments)) => commands::accuracy::run(arguments),
        Command::Accuracy(AccuracyCommand::Table { results, format }) => {
            commands::accuracy::table(&results, format.is_json())
        }
        Command::Restore(arguments) => commands::run::restore(&arguments),
        Command::Load(command) => commands::load::execute(&command),
        Command::Trace(arguments) => {
            trace::trace(&arguments.line, &arguments.root, &mut terminal::data())
                .map_err(Into::into)
        }
        Command::Explain(arguments) => commands::explain::run(&arguments),
        Command::Help(_) => Ok(()),
        Command::Generate(command) => commands::generate::execute(&command),
        Command::Actor => commands::actor::serve(),
    };
    ended(outcome)
}

/// Prints the error of a command, and returns its exit status.
fn ended(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => Exit::Done.into(),
        // The command was interrupted because its output has no reader: a message would have none either.
        Err(cause)
            if (is_interrupt(cause.as_ref()) || is_io(cause.as_ref(), ErrorKind::BrokenPipe))
                && is_unread() =>
        {
            end_unread();
            Exit::Failed.into()
        }
        Err(cause) => {
            // The command to type begins its line.
            if cause.is::<NeedsRoot>() {
                note(&cause.to_string())
            } else {
                note(&format!("vtax: {cause}"))
            }
            Exit::from_cause(cause.as_ref()).into()
        }
    }
}

/// Prints the help of the command or topic of these words.
fn print_help(words: &[String]) -> ExitCode {
    if let [word] = words
        && let Some((_, text)) = help::topics().find(|(topic, _)| topic == word)
    {
        return ended(output::write(format_args!("{text}\n")).map_err(Into::into));
    }
    let whole = std::iter::once("vtax").chain(words.iter().map(String::as_str));
    match help::parser().try_get_matches_from(whole.chain(["--help"])) {
        Ok(_) => Exit::Done.into(),
        Err(answer) => print_parsed(&answer),
    }
}

/// Prints the output of clap where no command runs: help and version on standard output with status 0, a wrong command
/// line on standard error with status 2.
fn print_parsed(answer: &clap::Error) -> ExitCode {
    let text = answer.render();
    if answer.use_stderr() {
        let mut out = terminal::stderr();
        let text = if out.has_styles() {
            text.ansi().to_string()
        } else {
            text.to_string()
        };
        let _ = out.write_all(text.as_bytes());
        return Exit::Usage.into();
    }
    let text = if terminal::stdout().has_styles() {
        text.ansi().to_string()
    } else {
        text.to_string()
    };
    match output::write(format_args!("{text}")) {
        Err(cause) if cause.kind() != ErrorKind::BrokenPipe => {
            note(&format!("vtax: {cause}"));
            Exit::Failed.into()
        }
        _ => Exit::Done.into(),
    }
}

/// Whether a command only reads files and prints: it may end at any time when its reader does. The other commands work
/// first, some with sockets, where SIGPIPE must stay ignored; they call [`end_with_reader`] before they print.
fn only_prints(command: &Command) -> bool {
    matches!(
        command,
        Command::Plan(_)
            | Command::Explain(_)
            | Command::Help(_)
            | Command::Report(_)
            | Command::Compare(_)
            | Command::History(_)
            | Command::Survey(_)
            | Command::Export(_)
            | Command::Mvm(MvmCommand::Build(_))
    )
}
