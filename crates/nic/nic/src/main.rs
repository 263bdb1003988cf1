// SPDX-License-Identifier: Apache-2.0
//! The program `vtax-nic`.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

use clap::Parser;
use std::process::ExitCode;
use vtax_core::terminal::note;
use vtax_nic::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = note(&format!("vtax-nic: {error}"));
            ExitCode::FAILURE
        }
    }
}
