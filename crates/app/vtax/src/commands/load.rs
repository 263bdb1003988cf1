// SPDX-License-Identifier: Apache-2.0
//! `vtax load`: load generators, as workloads start them in the client.

use crate::Outcome;
use crate::cli::LoadCommand;

pub fn execute(command: &LoadCommand) -> Outcome {
    Ok(match command {
        LoadCommand::Http(arguments) => vtax_load::http::main(arguments),
        LoadCommand::Memcached(arguments) => vtax_load::memcached::main(arguments),
    }?)
}
