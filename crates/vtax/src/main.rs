//! The `vtax` command: parses, calls the libraries, prints. No logic.

mod cli;
mod commands;
mod progress;

use clap::Parser;
use cli::{AccuracyCommand, Cli, Command, ImageCommand, MeterCommand, PlanCommand};
use std::error::Error;
use std::process::ExitCode;

/// What every command ends with.
type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Plan(PlanCommand::Check { plan, quick }) => commands::plan::check(&plan, quick),
        Command::Plan(PlanCommand::Keys) => commands::plan::keys(),
        Command::Run(arguments) => commands::run::run(arguments),
        Command::Report(arguments) => commands::report::report(&arguments),
        Command::Compare(arguments) => commands::report::compare(&arguments),
        Command::Export(arguments) => commands::report::export(&arguments),
        Command::Top(arguments) => commands::charge::top(&arguments),
        Command::Charge(arguments) => commands::charge::charge(&arguments),
        Command::Exporter(arguments) => commands::charge::exporter(arguments),
        Command::Meter(MeterCommand::List) => commands::meter::list(),
        Command::Meter(MeterCommand::Calibrate { output, seconds }) => {
            commands::meter::calibrate(&output, seconds)
        }
        Command::Image(ImageCommand::Build { force }) => commands::image::build(force),
        Command::Testbed(command) => commands::testbed::execute(command),
        Command::Mvm(command) => vtax_mvm::cli::execute(command, &["mvm"]).map_err(Into::into),
        Command::Nic(command) => command.execute(&mut std::io::stdout()).map_err(Into::into),
        Command::Density(arguments) => {
            vtax_density::cli::execute(arguments, &["density"]).map_err(Into::into)
        }
        Command::Accuracy(AccuracyCommand::Run(arguments)) => commands::accuracy::run(arguments),
        Command::Accuracy(AccuracyCommand::Table { results }) => {
            commands::accuracy::table(&results)
        }
        Command::Restore(arguments) => commands::run::restore(arguments.forget),
        Command::Load(command) => commands::load::execute(&command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("vtax: {cause}");
            ExitCode::FAILURE
        }
    }
}
