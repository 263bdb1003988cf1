// SPDX-License-Identifier: Apache-2.0
//! The `vtax-density` command: the scalability test without the rest of vtax.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use clap::Parser;
use std::process::ExitCode;
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
            eprintln!("vtax-density: {cause}");
            ExitCode::FAILURE
        }
    }
}
