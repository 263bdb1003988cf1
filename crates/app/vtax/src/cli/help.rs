// SPDX-License-Identifier: Apache-2.0
//! The help of vtax: commands in groups, two examples for each command, and topics that belong to no command.

use super::Cli;
use clap::{Command, CommandFactory};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The commands by purpose, in the order of the help.
pub const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Look at this host",
        &[
            "doctor", "top", "record", "advise", "bill", "charge", "exporter", "share", "web",
            "explain",
        ],
    ),
    ("Measure", &["run", "plan", "merge", "image"]),
    (
        "Judge",
        &["report", "compare", "history", "survey", "export"],
    ),
    (
        "Set up this host",
        &["cap", "meter", "nic", "mvm", "restore"],
    ),
    ("Research", &["testbed", "density", "accuracy", "atlas"]),
];

/// The texts that are data.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Texts {
    /// Help that belongs to no command, by the word after `vtax help`.
    topics: BTreeMap<String, String>,
    /// Two examples for each command, by its words: each command line with its effect.
    examples: BTreeMap<String, [(String, String); 2]>,
}

/// A test checks that the file can be read.
static TEXTS: LazyLock<Texts> =
    LazyLock::new(|| toml::from_str(include_str!("help.toml")).unwrap_or_default());

/// Help that belongs to no command: the word after `vtax help`, and the text.
pub fn topics() -> impl Iterator<Item = (&'static str, &'static str)> {
    let topics = TEXTS.topics.iter();
    topics.map(|(name, text)| (name.as_str(), text.as_str()))
}

/// The longest list of values that stands in the text of an option. A longer one is for completions.
const MOST_VALUES: usize = 20;

/// The whole command line, with the help of each command.
pub fn parser() -> Command {
    let command = on_one_line(documented());
    let summary = summary(&command);
    command.override_help(summary)
}

/// The command line with values in the texts of options, and with examples.
pub(super) fn documented() -> Command {
    with_examples(with_values(Cli::command()), "")
}

/// Adds the values that an argument takes to its text, in place of a line for each.
fn with_values(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let values = argument.get_possible_values();
        let names: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        // A flag has the values true and false.
        let takes = argument.get_action().takes_values();
        let ([first @ .., last], true) = (names.as_slice(), takes) else {
            return argument;
        };
        let help = argument.get_help().map(ToString::to_string);
        let help = help.unwrap_or_default();
        let argument = argument.hide_possible_values(true);
        if names.len() > MOST_VALUES || names.iter().all(|name| help.contains(name)) {
            return argument;
        }
        let or = if first.is_empty() { "" } else { " or " };
        argument.help(format!("{help}: {}{or}{last}", first.join(", ")))
    });
    command.mut_subcommands(with_values)
}

/// Puts the text of each option beside it. Without a long text anywhere, clap has this layout for `--help`, too.
fn on_one_line(command: Command) -> Command {
    let long = command.get_long_about().map(ToString::to_string);
    let command = match long.as_deref().and_then(|long| long.split_once("\n\n")) {
        None => command,
        Some((_, more)) => command.before_help(more.to_owned()).help_template(
            "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}",
        ),
    };
    let command = command.long_about(None::<&str>);
    command.mut_subcommands(on_one_line)
}

/// Adds the examples to the commands of which `path` has the words.
fn with_examples(command: Command, path: &str) -> Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|one| one.get_name().to_owned())
        .collect();
    let command = names.iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |one| with_examples(one, path.trim_start()))
    });
    let examples = TEXTS.examples.get(path).into_iter().flatten();
    let lines: String = examples
        .map(|(line, effect)| format!("\n  # {effect}\n  {line}"))
        .collect();
    match lines.as_str() {
        "" => command,
        lines => command.after_help(format!("Examples:{lines}")),
    }
}

/// The help of vtax itself: the commands by group.
fn summary(command: &Command) -> String {
    let mut text = String::from(
        "Measure what virtualization costs, in CPU, energy and latency.\n\nUsage: vtax COMMAND\n",
    );
    for (group, names) in GROUPS {
        text.push_str(&format!("\n{group}\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {name:<9} {about}\n"));
        }
    }
    let topics: Vec<String> = topics()
        .map(|(name, _)| format!("vtax help {name}"))
        .collect();
    text + &format!(
        "\nOptions and examples of a command: vtax help COMMAND\nTopics: {}\nNext step on this host: vtax\n",
        topics.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    /// Every visible command that has a help of its own, by its words.
    fn commands<'a>(command: &'a Command, path: &str, found: &mut Vec<(String, &'a Command)>) {
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            let path = format!("{path} {}", one.get_name()).trim_start().to_owned();
            commands(one, &path, found);
            found.push((path, one));
        }
    }

    fn all(parser: &Command) -> Vec<(String, &Command)> {
        let mut found = Vec::new();
        commands(parser, "", &mut found);
        found
    }

    #[test]
    fn every_visible_command_is_in_one_group() {
        let parser = parser();
        let visible: Vec<&str> = parser
            .get_subcommands()
            .filter(|one| !one.is_hide_set())
            .map(Command::get_name)
            .filter(|name| *name != "help")
            .collect();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        grouped.sort_unstable();
        let mut sorted = visible;
        sorted.sort_unstable();
        assert_eq!(grouped, sorted);
    }

    #[test]
    fn the_help_of_vtax_fits_on_a_screen() {
        let help = parser().render_help().to_string();
        assert!(help.lines().count() <= 48, "{help}");
        let long: Vec<&str> = help
            .lines()
            .filter(|line| line.chars().count() > 80)
            .collect();
        assert!(long.is_empty(), "{}", long.join("\n"));
    }

    /// What `vtax PATH --help` prints where no terminal has another width.
    fn help_of(path: &str) -> String {
        let words = ["vtax"]
            .into_iter()
            .chain(path.split(' '))
            .chain(["--help"]);
        parser()
            .try_get_matches_from(words)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn the_text_of_an_option_stands_beside_it_and_has_its_values() {
        for (path, _) in all(&parser()) {
            let help = help_of(&path);
            // An option whose text is on the next line is alone in its line.
            let alone = help.lines().map(str::trim_start);
            let alone = alone.filter(|line| line.starts_with('-') && !line.contains("  "));
            assert_eq!(alone.collect::<String>(), "", "{path}: {help}");
            assert!(!help.contains("ossible values"), "{path}: {help}");
        }
        let top = help_of("top");
        let format =
            "  --format <FORMAT>  The format of the output: text or json [default: text]\n";
        assert!(top.contains(format), "{top}");
        let run = help_of("run");
        for kind in super::super::values::platforms() {
            assert!(run.contains(kind), "{kind}");
        }
        assert!(help_of("compare").contains("text, json, md, csv or bencher"));
        let report = "Write report.html of a run or recording, and print its table\n\nThe figures ";
        assert!(help_of("report").starts_with(report));
    }

    #[test]
    fn the_options_of_charging_are_a_short_group_in_every_command_and_have_a_topic() {
        let topic = &TEXTS.topics["charging"];
        let parser = parser();
        let has = |command: &Command| {
            let mut options = command.get_arguments();
            options.any(|one| one.get_long() == Some("idle-watts"))
        };
        let commands = all(&parser).into_iter().filter(|(_, one)| has(one));
        let paths: Vec<String> = commands.map(|(path, _)| path).collect();
        assert_eq!(paths.len(), 6, "{paths:?}");
        for path in paths {
            let help = help_of(&path);
            let (_, group) = help.split_once("\nCharging:\n").unwrap();
            let lines = group.lines().take_while(|line| !line.is_empty()).count();
            assert!(
                lines <= 6 && group.contains("vtax help charging"),
                "{path}: {help}"
            );
            for option in ["--method", "--weights", "--idle ", "--idle-watts"] {
                assert!(group.contains(option) && topic.contains(option), "{option}");
            }
        }
    }

    #[test]
    fn every_command_has_two_examples_that_the_parser_accepts() {
        let parser = parser();
        let all = all(&parser);
        // The file can be read, and has no command twice.
        toml::from_str::<Texts>(include_str!("help.toml")).unwrap();
        let with = &TEXTS.examples;
        let without: Vec<&String> = all
            .iter()
            .filter(|(path, one)| {
                path != "help" && (!with.contains_key(path) || one.get_after_help().is_none())
            })
            .map(|(path, _)| path)
            .collect();
        assert!(without.is_empty(), "without examples: {without:?}");
        for (path, examples) in with {
            assert!(
                all.iter().any(|(known, _)| known == path),
                "no command {path}"
            );
            for (line, effect) in examples {
                assert!(
                    line.starts_with(
                        &format!("vtax {path}")
                            .split(" ctl ")
                            .next()
                            .unwrap()
                            .to_owned()
                    ),
                    "{line}"
                );
                assert!(!effect.is_empty() && line.len() <= 100, "{line}");
                let words = words(line);
                let parsed = super::parser().try_get_matches_from(&words);
                let parsed = parsed.and_then(|found| Cli::from_arg_matches(&found));
                assert!(parsed.is_ok(), "{line}: {}", parsed.err().unwrap());
            }
        }
    }

    /// The words of a line of shell, without its redirections.
    fn words(line: &str) -> Vec<String> {
        let command = match line.split_once(" > ") {
            Some((command, _)) if !line.contains("cpu.per_work >") => command,
            _ => line,
        };
        vtax_load::workload::command::words::split(command).unwrap()
    }
}
