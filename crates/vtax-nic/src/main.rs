//! The program `vtax-nic`.

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;
use vtax_nic::cli::{CAPABILITIES, Cli, Verb};
use vtax_nic::serve;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = std::io::stdout();
    let result = match &cli.verb {
        Some(Verb::Ctl(ctl)) => ctl.run(&mut out),
        Some(Verb::Top(top)) => top.run(&mut out),
        None if cli.print_capabilities => {
            writeln!(out, "{CAPABILITIES}").map_err(|cause| cause.to_string())
        }
        None => cli
            .config()
            .map_err(|error| error.to_string())
            .and_then(|config| serve::serve(&config).map_err(|error| error.to_string())),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vtax-nic: {error}");
            ExitCode::FAILURE
        }
    }
}
