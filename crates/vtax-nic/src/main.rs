// SPDX-License-Identifier: Apache-2.0
//! The program `vtax-nic`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use clap::Parser;
use std::process::ExitCode;
use vtax_args::old;
use vtax_nic::cli::{Cli, OLD};

fn main() -> ExitCode {
    let cli = Cli::parse_from(old::replaced(
        std::env::args_os(),
        &[(&[], OLD)],
        "vtax-nic",
    ));
    match cli.execute(&mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vtax-nic: {error}");
            ExitCode::FAILURE
        }
    }
}
