// SPDX-License-Identifier: Apache-2.0
//! The commands in the documentation are commands of the parser.

use crate::cli::Cli;
use clap::{CommandFactory, Parser};
use std::fs;
use vtax_testkit::{pages, workspace};

/// What the commands of a shell block need before they can run. A block without a need is run by a test.
const NEEDS: [&str; 8] = [
    "build", "guests", "machine", "program", "results", "root", "serves", "testbed",
];

/// The words after `vtax`, of commands that are part of vtax.
fn of_vtax(command: &[String]) -> Option<Vec<String>> {
    let (name, rest) = command.split_first()?;
    let before: &[&str] = match name.as_str() {
        "vtax" => &[],
        "vtax-nic" => &["nic"],
        "vtax-mvm" => &["mvm"],
        _ => return None,
    };
    let before = before.iter().map(|word| (*word).to_owned());
    Some(before.chain(rest.iter().cloned()).collect())
}

#[test]
fn every_command_of_vtax_in_a_shell_block_is_accepted_by_the_parser() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for block in pages::all().iter().flat_map(|page| pages::blocks(page)) {
        for line in pages::shell_lines(&block) {
            for words in pages::commands(&line).iter().filter_map(|it| of_vtax(it)) {
                seen += 1;
                let words = [vec!["vtax".to_owned()], words].concat();
                if let Err(cause) = Cli::try_parse_from(&words)
                    && cause.use_stderr()
                {
                    let cause = cause.to_string();
                    let first = cause.lines().next().unwrap_or_default().to_owned();
                    wrong.push(format!("{}: {}: {first}", block.place, words.join(" ")));
                }
            }
        }
    }
    assert!(seen > 60, "{seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_of_vtax_are_in_shell_blocks_and_the_needs_of_these_are_in_the_list() {
    let mut wrong = Vec::new();
    for block in pages::all().iter().flat_map(|page| pages::blocks(page)) {
        match block.language.as_str() {
            "sh" | "console" => wrong.extend(
                block
                    .marks
                    .iter()
                    .filter(|need| !NEEDS.contains(&need.as_str()))
                    .map(|need| format!("{}: no need is called `{need}`", block.place)),
            ),
            "" => wrong.push(format!(
                "{}: the fence names no language; use sh, console, toml or text",
                block.place
            )),
            _ => wrong.extend(
                block
                    .text
                    .lines()
                    .filter(|line| line.starts_with("$ ") || line.starts_with("sudo vtax "))
                    .map(|line| format!("{}: not in a block of sh: {line}", block.place)),
            ),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is wrong with a command in a code span, which may have placeholders: an unknown subcommand or option.
fn unknown_part(words: &[&str]) -> Option<String> {
    let mut command = &Cli::command();
    let mut is_after_options = false;
    for word in words {
        if let Some(long) = word.strip_prefix("--") {
            if long.is_empty() {
                return None;
            }
            is_after_options = true;
            let long = long.split('=').next().unwrap_or_default();
            let has = |argument: &clap::Arg| {
                argument.get_long() == Some(long)
                    || argument
                        .get_all_aliases()
                        .is_some_and(|aliases| aliases.contains(&long))
            };
            if !["help", "version"].contains(&long) && !command.get_arguments().any(has) {
                return Some(format!("{} has no option --{long}", command.get_name()));
            }
        } else if !is_after_options
            && word.starts_with(|first: char| first.is_ascii_lowercase())
            && command.has_subcommands()
        {
            let names = word.split(['|', '\\']).filter(|name| !name.is_empty());
            let names: Vec<&str> = names.collect();
            let found = names.iter().map(|name| command.find_subcommand(name));
            let found: Option<Vec<_>> = found.collect();
            let Some(found) = found else {
                return Some(format!("{} has no command {word}", command.get_name()));
            };
            command = found[0];
        }
    }
    None
}

#[test]
fn a_command_in_a_code_span_has_a_known_subcommand_and_known_options() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for page in pages::all() {
        for span in pages::spans(&page) {
            let words: Vec<&str> = span.split_whitespace().collect();
            let [name, rest @ ..] = words.as_slice() else {
                continue;
            };
            let words = match *name {
                "vtax" => rest.to_vec(),
                "vtax-nic" => [&["nic"], rest].concat(),
                "vtax-mvm" => [&["mvm"], rest].concat(),
                _ => continue,
            };
            seen += 1;
            if let Some(unknown) = unknown_part(&words) {
                wrong.push(format!("{}: `{span}`: {unknown}", pages::name(&page)));
            }
        }
    }
    assert!(seen > 150, "{seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_goals_of_make_in_the_documentation_are_in_the_makefile() {
    let makefile = fs::read_to_string(workspace::root().join("Makefile")).unwrap();
    let mut wrong = Vec::new();
    for page in pages::all() {
        let lines = pages::blocks(&page);
        let lines = lines.iter().flat_map(pages::shell_lines);
        for text in pages::spans(&page).into_iter().chain(lines) {
            for words in pages::commands(&text) {
                if let [make, goal, ..] = words.as_slice()
                    && make == "make"
                    && !makefile.contains(&format!("\n{goal}:"))
                {
                    wrong.push(format!("{}: make {goal}", pages::name(&page)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
