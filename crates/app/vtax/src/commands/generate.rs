// SPDX-License-Identifier: Apache-2.0
//! `vtax generate`: the man pages and completions of a package, from the parser.

use crate::Outcome;
use crate::cli::{GenerateCommand, completions, manual};
use crate::output::cannot_write;
use clap::Command;
use clap_complete::Shell;
use std::io::Write;
use std::path::Path;
use vtax_core::terminal;

pub fn execute(command: &GenerateCommand) -> Outcome {
    match command {
        GenerateCommand::Man { directory } => man(&manual::manual(), directory)?,
        GenerateCommand::Completions { shell } => {
            let mut out = terminal::data();
            out.write_all(completions(*shell).as_bytes())
                .and_then(|()| out.flush())
                .map_err(cannot_write)?;
        }
    }
    Ok(())
}

/// Writes the man page of a command, and those of the commands below it.
fn man(command: &Command, directory: &Path) -> Outcome {
    let below = command.get_subcommands().filter(|one| !one.is_hide_set());
    for one in below {
        man(one, directory)?;
    }
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    Ok(vtax_files::write(
        &directory.join(page.get_filename()),
        &text,
    )?)
}

fn completions(shell: Shell) -> String {
    let mut command = completions::completed();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "vtax", &mut text);
    let mut text = String::from_utf8_lossy(&text).into_owned();
    for (path, argument, names) in named(&command) {
        match shell {
            // A list of plans alone would hide files.
            Shell::Zsh if argument == "plan" => {
                let both = format!(":{{_files; compadd -- {names}}}'");
                text = text.replace(&format!(":({names})'"), &both);
            }
            // clap's completions for fish have no positional arguments.
            Shell::Fish => {
                let (first, rest) = path.split_once(' ').unwrap_or((&path, ""));
                let rest = match rest {
                    "" => String::new(),
                    name => format!("; and __fish_seen_subcommand_from {name}"),
                };
                let of = format!("__fish_vtax_using_subcommand {first}{rest}");
                text.push_str(&format!("complete -c vtax -n \"{of}\" -a \"{names}\"\n"));
            }
            _ => {}
        }
    }
    text
}

/// The commands whose argument has known names, such as those of plans: the words of the command, the argument, the names.
fn named(command: &Command) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for one in command.get_subcommands() {
        let own = one.get_name();
        for argument in one.get_positionals() {
            let values = argument.get_possible_values();
            let names: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
            if !names.is_empty() {
                found.push((
                    own.to_owned(),
                    argument.get_id().to_string(),
                    names.join(" "),
                ));
            }
        }
        let below = named(one).into_iter();
        found.extend(
            below.map(|(path, argument, names)| (format!("{own} {path}"), argument, names)),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_know_values_and_plans_and_nothing_that_is_hidden() {
        for (shell, place, plan) in [
            (Shell::Bash, "local testbed:kvm testbed:xen", "network-tax"),
            (
                Shell::Zsh,
                "local testbed\\:kvm testbed\\:xen",
                "{_files; compadd -- ",
            ),
            (
                Shell::Fish,
                "testbed:kvm",
                "__fish_seen_subcommand_from show\" -a \"",
            ),
        ] {
            let text = completions(shell);
            for known in [
                place,
                plan,
                "container",
                "softirq",
                "traced",
                "papers/rossi",
            ] {
                assert!(text.contains(known), "{shell}: {known}");
            }
            for hidden in ["place-name", "supervise", "actor"] {
                assert!(!text.contains(hidden), "{shell}: {hidden}");
            }
        }
    }

    #[test]
    fn a_synopsis_has_the_values_of_options_and_arguments_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        man(&manual::manual(), folder.path()).unwrap();
        let page = |name: &str| {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            text.replace('\\', "")
        };
        let run = page("vtax-run.1");
        assert!(run.contains("[--results DIR] [--quick]"), "{run}");
        assert!(run.contains("[PLAN] [-- COMMAND...]\n"), "{run}");
        assert!(
            !run.contains("place-name") && run.contains("text or json"),
            "{run}"
        );
        assert!(page("vtax-history.1").contains(" RESULTS...\n"));
        assert!(page("vtax-nic-ctl.1").contains("fBvtax nic ctlfR --api PATH ["));
    }

    #[test]
    fn a_man_page_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("vtax-doctor.1")).unwrap();
        let cause = man(&manual::manual(), folder.path())
            .unwrap_err()
            .to_string();
        assert!(cause.contains("vtax-doctor.1"), "{cause}");
    }
}
