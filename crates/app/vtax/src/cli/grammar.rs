// SPDX-License-Identifier: Apache-2.0
//! The grammar of the command line, over every visible command of the parser: one name has one meaning.

use super::help;
use clap::{Arg, ArgAction, Command};
use std::collections::BTreeMap;

/// An option of a visible command, with the words of the command.
struct Used {
    command: String,
    argument: Arg,
}

impl Used {
    fn value(&self) -> String {
        let names = self.argument.get_value_names().unwrap_or_default();
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        match self.argument.get_action() {
            ArgAction::Set | ArgAction::Append => names.join(" "),
            _ => String::new(),
        }
    }

    fn help(&self) -> String {
        self.argument
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default()
    }
}

fn collect(command: &Command, path: &str, found: &mut Vec<Used>) {
    found.extend(
        command
            .get_arguments()
            .filter(|argument| !argument.is_hide_set())
            .map(|argument| Used {
                command: path.to_owned(),
                argument: argument.clone(),
            }),
    );
    for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        collect(one, &format!("{path} {}", one.get_name()), found);
    }
}

/// The visible options by their long names, those of clap itself left out.
fn options() -> BTreeMap<String, Vec<Used>> {
    let mut found = Vec::new();
    collect(&help::parser(), "vtax", &mut found);
    let mut options: BTreeMap<String, Vec<Used>> = BTreeMap::new();
    for used in found {
        if let Some(long) = used
            .argument
            .get_long()
            .filter(|long| !["help", "version"].contains(long))
        {
            options.entry(long.to_owned()).or_default().push(used);
        }
    }
    options
}

/// An option with one meaning everywhere: its name, the names of its values (several where the meaning has several
/// forms), its short name, and the first words of its help.
type Meaning = (
    &'static str,
    &'static [&'static str],
    Option<char>,
    &'static [&'static str],
);

const MEANINGS: [Meaning; 11] = [
    (
        "output",
        &["FILE", "DIR"],
        Some('o'),
        &["The file to write", "The directory to write"],
    ),
    ("format", &["FORMAT"], None, &["The format of the output"]),
    ("json", &[""], None, &["The same as --format json"]),
    ("results", &["DIR"], None, &["The results directory"]),
    (
        "results-root",
        &["DIR"],
        None,
        &["The directory above results directories"],
    ),
    ("plans", &["DIR"], None, &["The directory of the plans"]),
    (
        "interval",
        &["TIME"],
        None,
        &["The time between two readings"],
    ),
    ("count", &["N"], None, &["The number of intervals"]),
    ("listen", &["ADDRESS"], None, &["The address to listen on"]),
    ("token-file", &["FILE"], None, &["The file with the"]),
    ("place", &["PLACE"], None, &["Where to run"]),
];

#[test]
fn the_options_of_the_grammar_have_one_meaning_in_every_command() {
    let options = options();
    let mut wrong = Vec::new();
    for (name, values, short, starts) in MEANINGS {
        let used = options
            .get(name)
            .unwrap_or_else(|| panic!("no command has --{name}"));
        for one in used {
            let help = one.help();
            if !values.contains(&one.value().as_str()) {
                wrong.push(format!("{} --{name} takes {}", one.command, one.value()));
            }
            if one.argument.get_short() != short {
                wrong.push(format!(
                    "{} --{name} is short {:?}",
                    one.command,
                    one.argument.get_short()
                ));
            }
            if !starts.iter().any(|start| help.starts_with(start)) {
                wrong.push(format!("{} --{name}: {help}", one.command));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Names with two meanings, which their commands make plain: `record --for 1h` and `plan new --for libvirt:NAME`; the
/// measured command of `run` and the saved population of `mvm run`; a metric that `run` reads and one that `history` follows;
/// the images of `run` and `mvm run` are both images.
const TWO_MEANINGS: [&str; 3] = ["for", "load", "metric"];

#[test]
fn an_option_has_the_same_kind_of_value_in_every_command() {
    let mut wrong = Vec::new();
    for (name, used) in options() {
        let mut values: Vec<String> = used.iter().map(Used::value).collect();
        values.sort();
        values.dedup();
        if values.len() > 1 && !TWO_MEANINGS.contains(&name.as_str()) && name != "output" {
            let commands: Vec<&str> = used.iter().map(|one| one.command.as_str()).collect();
            wrong.push(format!(
                "--{name} takes {values:?} in {}",
                commands.join(", ")
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_command_with_json_has_its_format_too() {
    let options = options();
    let commands = |name: &str| -> Vec<String> {
        let mut all: Vec<String> = options[name]
            .iter()
            .map(|one| one.command.clone())
            .collect();
        all.sort();
        all
    };
    let formats = commands("format");
    let without: Vec<String> = commands("json")
        .into_iter()
        .filter(|one| !formats.contains(one))
        .collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn times_have_units_and_no_name_contains_one() {
    let mut wrong = Vec::new();
    for (name, used) in options() {
        if ["-us", "-ms", "-s", "-seconds", "-minutes"]
            .iter()
            .any(|end| name.ends_with(end))
            || name == "seconds"
        {
            wrong.push(format!("--{name} has the unit in its name"));
        }
        for one in used.iter().filter(|one| one.value() == "TIME") {
            let command: Vec<&str> = one.command.split(' ').skip(1).collect();
            let needs_unit = one.argument.get_default_values().iter().all(|value| {
                value
                    .to_string_lossy()
                    .ends_with(|end: char| end.is_ascii_alphabetic())
            });
            if !needs_unit {
                wrong.push(format!("{command:?} --{name} has a default without a unit"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_option_has_help_that_begins_with_a_capital_and_a_named_value() {
    let mut wrong = Vec::new();
    for (name, used) in options() {
        for one in used {
            let help = one.help();
            if !help.starts_with(|first: char| first.is_uppercase()) {
                wrong.push(format!("{} --{name}: {help:?}", one.command));
            }
            let value = one.value();
            if value
                .replace(['-', '_'], "")
                .eq_ignore_ascii_case(&name.replace('-', ""))
                && !NAMED.contains(&value.as_str())
            {
                wrong.push(format!(
                    "{} --{name} has no name for its value: {value}",
                    one.command
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Values whose names are those of their options, deliberately.
const NAMED: [&str; 9] = [
    "FORMAT", "PLACE", "MODE", "IMAGE", "METHOD", "NAME", "WEIGHTS", "USER", "PID",
];
