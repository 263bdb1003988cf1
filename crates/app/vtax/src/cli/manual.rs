// SPDX-License-Identifier: Apache-2.0
//! The command line of the man pages: the help, with a synopsis that has the values of options.

use super::help::documented;
use clap::{Arg, Command};

/// The command line as man pages show it.
pub fn manual() -> Command {
    let mut command = documented().disable_help_subcommand(true);
    command.build();
    with_synopsis(command)
}

fn with_synopsis(command: Command) -> Command {
    let name = command.get_bin_name().unwrap_or("vtax").to_owned();
    let visible = || command.get_arguments().filter(|one| !one.is_hide_set());
    let options = visible().filter(|one| !one.is_positional()).map(option);
    let mut places: Vec<&Arg> = visible().filter(|one| one.is_positional()).collect();
    places.sort_by_key(|one| one.get_index());
    let below = match (
        command.has_subcommands(),
        command.is_subcommand_required_set(),
    ) {
        (false, _) => None,
        (true, true) => Some("COMMAND".to_owned()),
        (true, false) => Some("[COMMAND]".to_owned()),
    };
    let words = options.chain(places.into_iter().map(place)).chain(below);
    let words: Vec<String> = std::iter::once(name).chain(words).collect();
    command
        .override_usage(words.join(" "))
        .mut_subcommands(with_synopsis)
}

/// The names of an argument's values.
fn values(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    names.join(" ")
}

/// An option in a synopsis: `[--results DIR]`.
fn option(argument: &Arg) -> String {
    let name = match (argument.get_long(), argument.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, short) => format!("-{}", short.unwrap_or_default()),
    };
    let value = if argument.get_action().takes_values() {
        values(argument)
    } else {
        String::new()
    };
    let is_optional = argument
        .get_num_args()
        .is_some_and(|some| some.min_values() == 0);
    let word = match (value.as_str(), is_optional) {
        ("", _) => name,
        (value, true) => format!("{name} [{value}]"),
        (value, false) => format!("{name} {value}"),
    };
    if argument.is_required_set() {
        word
    } else {
        format!("[{word}]")
    }
}

/// A positional argument in a synopsis: `PLAN`, `[PLAN]`, `RESULTS...`, `[-- COMMAND...]`.
fn place(argument: &Arg) -> String {
    let many = argument
        .get_num_args()
        .is_some_and(|some| some.max_values() > 1);
    let before = if argument.is_last_set() { "-- " } else { "" };
    let word = format!(
        "{before}{}{}",
        values(argument),
        if many { "..." } else { "" }
    );
    if argument.is_required_set() {
        word
    } else {
        format!("[{word}]")
    }
}
