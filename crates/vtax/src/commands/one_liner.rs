//! `vtax run --platform … -- COMMAND`: the plan of a command that is measured without a plan file.

use crate::cli::CommandArgs;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use vtax_load::workload::command::words::{join, split};

/// The longest name that is made of a program's name.
const LONGEST_NAME: usize = 50;

/// Returns the plan as TOML; `None` where the arguments name no command.
///
/// # Errors
/// When no command is given, or two are.
pub fn plan(arguments: &CommandArgs) -> Result<Option<String>, String> {
    if arguments.platform.is_empty() {
        return Ok(None);
    }
    let load = match (arguments.words.as_slice(), &arguments.load) {
        ([], Some(load)) => load.clone(),
        ([_, ..], Some(_)) => {
            return Err(
                "--load and the words after `--` are both the measured command: give one".into(),
            );
        }
        ([], None) => {
            return Err("no command is given: write it after `--`, or as --load 'COMMAND'".into());
        }
        (words, None) => join(words),
    };
    let name = name(arguments.serve.as_deref().unwrap_or(&load));
    let mut plan = format!("name = {}\n", text(&name));
    let mut line = |key: &str, value: String| {
        let _ = writeln!(plan, "{key} = {value}");
    };
    line("description", text(&format!("the cost of {load}")));
    line("repetitions", arguments.runs.to_string());
    line("warmup", text("0s"));
    for platform in &arguments.platform {
        line("\n[[platform]]\nkind", text(platform));
    }
    line("\n[[workload]]\nkind", text("command"));
    line("name", text(&name));
    line("load", text(&load));
    let texts = [
        ("serve", &arguments.serve),
        ("ready", &arguments.ready),
        ("prepare", &arguments.prepare),
    ];
    for (key, value) in texts {
        if let Some(value) = value {
            line(key, text(value));
        }
    }
    if arguments.warmup > 0 {
        line("warmup_runs", arguments.warmup.to_string());
    }
    if !arguments.packages.is_empty() {
        let packages: Vec<String> = arguments.packages.iter().map(|name| text(name)).collect();
        line("packages", format!("[{}]", packages.join(", ")));
    }
    Ok(Some(plan))
}

/// Returns a name for a command: that of its program.
fn name(command: &str) -> String {
    let program = split(command)
        .ok()
        .and_then(|words| words.into_iter().next());
    let program = program.unwrap_or_default();
    let base = program.rsplit('/').next().unwrap_or_default();
    let kept: String = base
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-_.+".contains(*c))
        .take(LONGEST_NAME)
        .collect();
    match kept.trim_start_matches(['-', '.']) {
        "" => "command".to_owned(),
        kept => kept.to_owned(),
    }
}

/// Returns a TOML string. Its escapes are those of JSON, and DEL.
fn text(value: &str) -> String {
    let json = serde_json::to_string(value).unwrap_or_default();
    json.replace('\u{7f}', "\\u007f")
}

/// Returns the results directory: the plan's name below `results`, with the first number that is free.
pub fn free(name: &str) -> PathBuf {
    let folder = Path::new("results");
    let numbered = (2..).map(|number: u32| folder.join(format!("{name}-{number}")));
    let mut all = std::iter::once(folder.join(name)).chain(numbered);
    all.find(|path| path.symlink_metadata().is_err())
        .unwrap_or_else(|| folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_lab::plan::{Catalogue, Plan};

    fn arguments(words: &[&str]) -> CommandArgs {
        CommandArgs {
            platform: vec!["native".to_owned(), "qemu".to_owned()],
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            runs: 4,
            ..CommandArgs::default()
        }
    }

    fn read(arguments: &CommandArgs) -> Plan {
        let text = plan(arguments).unwrap().unwrap();
        Plan::read("plan.toml", &text, &Catalogue::standard())
            .unwrap_or_else(|wrong| panic!("{wrong}\n{text}"))
    }

    #[test]
    fn words_become_the_load_of_a_plan_that_the_reader_accepts() {
        let plan = read(&arguments(&[
            "/usr/bin/sh",
            "-c",
            "echo \"a\"\t'b'\n\u{7f}$1",
            "",
        ]));
        assert_eq!((plan.name.as_str(), plan.repetitions), ("sh", 4));
        assert_eq!(plan.platforms.len(), 2);
        let load = plan.workloads[0].settings.text("load.load").unwrap();
        assert_eq!(split(load).unwrap()[2], "echo \"a\"\t'b'\n\u{7f}$1");
    }

    #[test]
    fn a_service_its_preparation_warm_up_runs_and_packages_are_in_the_plan() {
        let with = CommandArgs {
            serve: Some("redis-server --save ''".to_owned()),
            ready: Some("tcp:6379".to_owned()),
            load: Some("redis-benchmark -h {target}".to_owned()),
            prepare: Some("true".to_owned()),
            packages: vec!["redis-server".to_owned()],
            warmup: 2,
            ..arguments(&[])
        };
        let plan = read(&with);
        let settings = &plan.workloads[0].settings;
        assert_eq!(plan.name, "redis-server");
        assert_eq!(settings.text("load.serve"), Some("redis-server --save ''"));
        assert_eq!(settings.integer("load.warmup_runs", 0), 2);
        assert_eq!(settings.text("load.packages"), Some("redis-server"));
        assert_eq!(settings.text("load.prepare"), Some("true"));
    }

    #[test]
    fn no_command_and_two_commands_are_refused() {
        assert!(plan(&arguments(&[])).unwrap_err().contains("no command"));
        let both = CommandArgs {
            load: Some("a".to_owned()),
            ..arguments(&["b"])
        };
        assert!(plan(&both).unwrap_err().contains("give one"));
        assert_eq!(plan(&CommandArgs::default()), Ok(None));
    }

    #[test]
    fn a_command_without_a_usable_name_gets_one() {
        assert_eq!(name("/opt/-.é"), "command");
        assert_eq!(name("'a b'"), "ab");
    }
}
