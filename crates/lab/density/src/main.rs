// SPDX-License-Identifier: Apache-2.0
//! The `vtax-density` command: the scalability test without the rest of vtax.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

use clap::Parser;
use std::process::ExitCode;
use vtax_core::terminal::note;
use vtax_density::cli::{DensityArguments, execute};

/// How many guests this host can hold.
#[derive(Parser)]
#[command(name = "vtax-density", version)]
struct Cli {
    #[command(flatten)]
    arguments: DensityArguments,
}

fn main() -> ExitCode {
    match execute(&Cli::parse().arguments, &[]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            let _ = note(&format!("vtax-density: {cause}"));
            ExitCode::FAILURE
        }
    }
}
