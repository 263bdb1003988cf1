// SPDX-License-Identifier: Apache-2.0
//! The command line of the completions: the help, without what is hidden.

use super::help::documented;
use clap::{Arg, Command};

/// The command line as completions offer it.
pub fn completed() -> Command {
    visible(&documented())
}

fn visible(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|one| !one.is_hide_set());
    let below = command.get_subcommands().filter(|one| !one.is_hide_set());
    Command::new(kept(command.get_name()))
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_subcommand(true)
        .args(arguments.map(alone))
        .subcommands(below.map(visible))
}

/// An argument without its relations to others, some of which are hidden.
fn alone(argument: &Arg) -> Arg {
    let names = argument.get_value_names().unwrap_or_default();
    let alone = Arg::new(argument.get_id().clone())
        .short(argument.get_short())
        .long(argument.get_long().map(kept))
        .help(argument.get_help().cloned().unwrap_or_default())
        .action(argument.get_action().clone())
        .value_parser(argument.get_value_parser().clone())
        .value_names(names.iter().cloned())
        .index(argument.get_index())
        .last(argument.is_last_set());
    match argument.get_num_args() {
        Some(number) => alone.num_args(number),
        None => alone,
    }
}

/// clap takes names that live as long as the program, which prints completions and ends.
fn kept(name: &str) -> &'static str {
    Box::leak(name.to_owned().into_boxed_str())
}
