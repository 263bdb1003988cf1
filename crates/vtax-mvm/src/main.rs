// SPDX-License-Identifier: Apache-2.0
//! The `vtax-mvm` command: micro VMs without the rest of vtax.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use clap::Parser;
use std::process::ExitCode;
use vtax_mvm::cli::{MvmCommand, execute};

/// 512-byte guests, up to a million of them.
#[derive(Parser)]
#[command(name = "vtax-mvm", version)]
struct Cli {
    #[command(subcommand)]
    command: MvmCommand,
}

fn main() -> ExitCode {
    match execute(Cli::parse().command, &[]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("vtax-mvm: {cause}");
            ExitCode::FAILURE
        }
    }
}
