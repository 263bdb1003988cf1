// SPDX-License-Identifier: Apache-2.0
//! The program `vtax-nic`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use clap::Parser;
use std::process::ExitCode;
use vtax_nic::cli::Cli;

fn main() -> ExitCode {
    match Cli::parse().execute(&mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vtax-nic: {error}");
            ExitCode::FAILURE
        }
    }
}
