// SPDX-License-Identifier: Apache-2.0
//! The `vtax-mvm` command: micro VMs without the rest of vtax.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

use clap::Parser;
use std::process::ExitCode;
use vtax_core::terminal::note;
use vtax_mvm::cli::{MvmCommand, execute};

/// 512-byte guests, up to a million of them.
#[derive(Parser)]
#[command(name = "vtax-mvm", version)]
struct Cli {
    #[command(subcommand)]
    command: MvmCommand,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match execute(cli.command, &[]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            let _ = note(&format!("vtax-mvm: {cause}"));
            ExitCode::FAILURE
        }
    }
}
