// SPDX-License-Identifier: Apache-2.0
//! `vtax generate`: the man pages and completions of a package, from the parser.

use crate::Outcome;
use crate::cli::{GenerateCommand, help};
use crate::output::cannot_write;
use std::io::Write;
use vtax_core::terminal;

pub fn execute(command: &GenerateCommand) -> Outcome {
    match command {
        GenerateCommand::Man { directory } => clap_mangen::generate_to(help::parser(), directory)?,
        GenerateCommand::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut help::parser(), "vtax", &mut text);
            let mut out = terminal::data();
            out.write_all(&text)
                .and_then(|()| out.flush())
                .map_err(cannot_write)?;
        }
    }
    Ok(())
}
