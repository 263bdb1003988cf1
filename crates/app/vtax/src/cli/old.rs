// SPDX-License-Identifier: Apache-2.0
//! The old spellings of vtax's options, which are still accepted.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use vtax_args::old::{self, Old};

const OWN: &[Old] = &[
    Old::renamed(&["run"], "--at", "--place"),
    Old::renamed(&["run"], "--on", "--fleet"),
    Old::renamed(&["accuracy", "run"], "--at", "--place"),
    Old::renamed(&["atlas"], "--at", "--place"),
    Old::renamed(&["atlas"], "--results", "--results-root"),
    Old::renamed(&["atlas"], "--out", "--output"),
    Old::renamed(&["atlas"], "--page-only", ""),
    Old::renamed(&["web"], "--results", "--results-root"),
    Old::renamed(&["web"], "--token", "--token-file"),
    Old::renamed(&["web"], "--watch-token", "--watch-token-file"),
    Old::renamed(&["survey"], "--dataset", "--output"),
    Old::renamed(&["top"], "--once", "--count=1"),
    Old::renamed(&["charge"], "--csv", "--format=csv"),
    Old::with_unit(&["meter", "calibrate"], "--seconds", "--step", "s"),
    Old::renamed(&["testbed", "guard"], "--plan", ""),
    Old::with_unit(&["load"], "--warmup", "--warmup", "s"),
    Old::with_unit(&["load"], "--duration", "--duration", "s"),
    Old::with_unit(&["load"], "--settle", "--settle", "s"),
    Old::with_unit(&["load"], "--timeout", "--timeout", "s"),
];

/// The tables of vtax and of the programs that it includes, each with the words before its commands.
const TABLES: &[(&[&str], &[Old])] = &[
    (&[], OWN),
    (&["nic"], vtax_nic::cli::OLD),
    (&["mvm"], vtax_mvm::cli::OLD),
];

/// The words of this process's command line with replaced old spellings. Each is noted on standard error.
pub fn words() -> Vec<OsString> {
    old::replaced(of_links(std::env::args_os().collect()), TABLES, "vtax")
}

/// The words with the command that a link to vtax names: `vtax-nic ctl` is `vtax nic ctl`, and `vtax-mvm` is `vtax mvm`.
fn of_links(mut words: Vec<OsString>) -> Vec<OsString> {
    let name = words.first().and_then(|word| Path::new(word).file_name());
    let command = match name.and_then(OsStr::to_str) {
        Some("vtax-nic") => "nic",
        Some("vtax-mvm") => "mvm",
        _ => return words,
    };
    // The usage lines of the help begin with the first word.
    words.splice(..1, ["vtax".into(), command.into()]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_vtax_is_the_command_that_its_name_has() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(Into::into).collect() };
        for (given, meant) in [
            ("/usr/bin/vtax-nic ctl list", "vtax nic ctl list"),
            ("vtax-mvm run", "vtax mvm run"),
            ("target/debug/vtax nic top", "target/debug/vtax nic top"),
        ] {
            assert_eq!(of_links(words(given)), words(meant));
        }
    }
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_old_spelling_has_a_replacement_in_the_parser_and_is_not_in_it_itself() {
        let whole = Cli::command();
        for (prefix, table) in TABLES {
            for spelling in *table {
                let path = prefix.iter().chain(spelling.command);
                let found = path
                    .clone()
                    .try_fold(&whole, |of, word| of.find_subcommand(word));
                let command = found.unwrap_or_else(|| panic!("{spelling:?} has no command"));
                let options = |command: &clap::Command| -> Vec<String> {
                    let all = command.get_arguments().filter_map(|one| one.get_long());
                    all.map(|long| format!("--{long}")).collect()
                };
                let mut all = options(command);
                all.extend(command.get_subcommands().flat_map(options));
                let new = spelling.new.split('=').next().unwrap().to_owned();
                assert!(
                    new.is_empty() || all.contains(&new),
                    "{spelling:?}: {all:?}"
                );
                let same = spelling.old == spelling.new;
                assert!(
                    same || !all.contains(&spelling.old.to_owned()),
                    "{spelling:?}"
                );
            }
        }
    }
}
