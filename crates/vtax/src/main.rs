//! The `vtax` command: parses, calls the libraries, prints. No logic.

mod cli;
mod progress;

use clap::Parser;
use cli::{Cli, Command, ExportFormat, ImageCommand, LoadCommand, MeterCommand, PlanCommand};
use std::error::Error;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vtax_lab::place::{self, Line, Place, SshRun};
use vtax_lab::plan::{Catalogue, Plan, treatments};
use vtax_lab::run::{self, Event, Progress, RunOptions};
use vtax_lab::signals::Signals;
use vtax_lab::{Roots, doctor, image, load};

type Outcome = Result<ExitCode, Box<dyn Error>>;

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(code) => code,
        Err(cause) => {
            eprintln!("vtax: {cause}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Run(arguments) => run_plan(arguments),
        Command::Plan(PlanCommand::Check { plan, quick }) => check_plan(&plan, quick),
        Command::Plan(PlanCommand::Keys) => print_keys(),
        Command::Report(arguments) => report(&arguments.results, arguments.json),
        Command::Restore(arguments) => {
            let undone = run::restore(&run::default_state_dir(), arguments.forget)?;
            if undone.is_empty() {
                println!("nothing to restore: the host is as it was found");
            }
            for line in undone {
                println!("undone: {line}");
            }
            Ok(ExitCode::SUCCESS)
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
