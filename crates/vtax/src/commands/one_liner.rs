// SPDX-License-Identifier: Apache-2.0
//! `vtax run --platform … -- COMMAND`: the plan of a command that is measured without a plan file.

use crate::cli::CommandArgs;
use std::path::{Path, PathBuf};
use vtax_lab::plan::write::{PlanText, name_of};
use vtax_load::workload::command::words::{join, split};

/// The platforms of an image where none are given.
const IMAGE_PLATFORMS: [&str; 3] = ["native", "container", "qemu"];

/// Arguments that do not give one measured command.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// No command.
    #[error("no command is given: write it after `--`, or as --load 'COMMAND'")]
    None,
    /// Two commands.
    #[error("--load and the words after `--` are both the measured command: give one")]
    Two,
    /// A path that a plan cannot contain.
    #[error("the path {0:?} is empty or not UTF-8, so that no plan can contain it")]
    Path(PathBuf),
}

/// Returns the plan as TOML; `None` where the arguments name no command.
///
/// # Errors
/// When no command is given, or two are.
pub fn plan(arguments: &CommandArgs) -> Result<Option<String>, LoadError> {
    if arguments.platform.is_empty() && arguments.image.is_none() {
        return Ok(None);
    }
    let load = match (arguments.words.as_slice(), &arguments.load) {
        ([], Some(load)) => load.clone(),
        ([_, ..], Some(_)) => {
            return Err(LoadError::Two);
        }
        ([], None) => {
            return Err(LoadError::None);
        }
        (words, None) => join(words),
    };
    let service = arguments.serve.as_deref();
    // The entry point of an image has the image's name.
    let of_image = arguments
        .image
        .as_deref()
        .filter(|_| arguments.ready.is_some());
    let name = match (service, of_image) {
        (None, Some(image)) => name_of_image(image),
        (service, _) => name(service.unwrap_or(&load)),
    };
    let mut plan = PlanText::default();
    plan.text("name", &name)
        .text("description", &format!("the cost of {load}"))
        .value("repetitions", arguments.runs)
        .text("warmup", "0s");
    if let Some(image) = &arguments.image {
        plan.text("image", &absolute_image(image)?);
    }
    let platforms: Vec<&str> = match arguments.platform.as_slice() {
        [] => IMAGE_PLATFORMS.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    for platform in platforms {
        plan.section("platform").text("kind", platform);
    }
    plan.section("workload")
        .text("kind", "command")
        .text("name", &name)
        .text("load", &load);
    let texts = [
        ("serve", &arguments.serve),
        ("ready", &arguments.ready),
        ("prepare", &arguments.prepare),
    ];
    for (key, value) in texts {
        if let Some(value) = value {
            plan.text(key, value);
        }
    }
    if arguments.warmup > 0 {
        plan.value("warmup_runs", arguments.warmup);
    }
    if !arguments.packages.is_empty() {
        plan.texts("packages", &arguments.packages);
    }
    if !arguments.files.is_empty() {
        let files = arguments.files.iter().map(|path| absolute(path));
        plan.texts("files", &files.collect::<Result<Vec<String>, _>>()?);
    }
    if let Some(input) = &arguments.input {
        plan.text("stdin", &absolute(input)?);
    }
    Ok(Some(plan.finish()))
}

/// Returns an absolute path, with which the plan can be run from anywhere.
fn absolute(path: &Path) -> Result<String, LoadError> {
    let wrong = || LoadError::Path(path.to_owned());
    let absolute = std::path::absolute(path).map_err(|_| wrong())?;
    absolute.to_str().map(str::to_owned).ok_or_else(wrong)
}

/// Returns the text of an image with an absolute path.
fn absolute_image(text: &str) -> Result<String, LoadError> {
    match text.split_once(':') {
        Some((kind @ ("oci" | "dir"), path)) if !path.is_empty() => {
            Ok(format!("{kind}:{}", absolute(Path::new(path))?))
        }
        // A name of podman, or a text that the reader of plans refuses.
        _ => Ok(text.to_owned()),
    }
}

/// Returns a name for a command: that of its program.
fn name(command: &str) -> String {
    let program = split(command)
        .ok()
        .and_then(|words| words.into_iter().next());
    let program = program.unwrap_or_default();
    let base = program.rsplit('/').next().unwrap_or_default();
    name_of(base, "command")
}

/// Returns a name for an image: the last part of its path or name, without a tag and `.tar`.
fn name_of_image(image: &str) -> String {
    let (_, place) = image.split_once(':').unwrap_or_default();
    let last = place.rsplit('/').find(|part| !part.is_empty());
    let base = last
        .unwrap_or_default()
        .split(':')
        .next()
        .unwrap_or_default();
    name_of(base.strip_suffix(".tar").unwrap_or(base), "image")
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
    use vtax_load::workload::command::files_of;

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
    fn an_image_needs_neither_a_plan_nor_platforms() {
        use clap::Parser;
        let parse = |words: &[&str]| crate::cli::Cli::try_parse_from(words).map(drop);
        let image = ["vtax", "run", "--image", "oci:a.tar", "--load", "true"];
        parse(&[image.as_slice(), &["--ready", "tcp:80"]].concat()).unwrap();
        assert!(parse(&[image.as_slice(), &["plan.toml"]].concat()).is_err());
        assert!(parse(&["vtax", "run", "--load", "true"]).is_err());
    }

    #[test]
    fn the_words_after_two_dashes_are_the_measured_command() {
        use clap::Parser;
        let line = [
            "vtax",
            "run",
            "--platform",
            "native,qemu",
            "--",
            "sysbench",
            "cpu",
            "run",
        ];
        let cli = crate::cli::Cli::try_parse_from(line).unwrap();
        let Some(crate::cli::Command::Run(run)) = cli.command else {
            panic!("{cli:?}");
        };
        assert_eq!(run.command.words, ["sysbench", "cpu", "run"]);
        assert_eq!(run.run.plan, None);
    }

    #[test]
    fn an_image_is_measured_on_three_platforms_and_its_entry_point_is_the_service() {
        for (image, name) in [
            ("oci:/a/app.tar", "app"),
            ("podman:localhost/web:1.2", "web"),
            ("dir:/srv/root/", "root"),
        ] {
            let plan = read(&CommandArgs {
                platform: Vec::new(),
                image: Some(image.to_owned()),
                load: Some("wrk http://{target}".to_owned()),
                ready: Some("tcp:80".to_owned()),
                ..arguments(&[])
            });
            let kinds: Vec<&str> = plan.platforms.iter().map(|one| one.kind.as_str()).collect();
            assert_eq!(kinds, ["native", "container", "qemu"]);
            assert_eq!(plan.settings.text("image"), Some(image));
            assert_eq!(plan.name, name);
        }
        let packages = CommandArgs {
            image: Some("oci:x".to_owned()),
            packages: vec!["jq".to_owned()],
            ..arguments(&["true"])
        };
        let text = plan(&packages).unwrap().unwrap();
        let wrong = Plan::read("plan.toml", &text, &Catalogue::standard()).unwrap_err();
        assert!(
            wrong.to_string().contains("not added to an `image`"),
            "{wrong}"
        );
    }

    #[test]
    fn a_service_its_preparation_warm_up_runs_and_packages_are_in_the_plan() {
        let with = CommandArgs {
            serve: Some("redis-server --save ''".to_owned()),
            ready: Some("tcp:6379".to_owned()),
            load: Some("redis-benchmark -h {target}".to_owned()),
            prepare: Some("true".to_owned()),
            packages: vec!["redis-server".to_owned()],
            files: vec!["app".into(), "/opt/data".into()],
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
        let here = std::env::current_dir().unwrap().join("app");
        let files = [here.to_str().unwrap(), "/opt/data"];
        assert_eq!(files_of(settings), files);
    }

    #[test]
    fn no_command_and_two_commands_are_refused() {
        assert_eq!(plan(&arguments(&[])), Err(LoadError::None));
        let both = CommandArgs {
            load: Some("a".to_owned()),
            ..arguments(&["b"])
        };
        assert_eq!(plan(&both), Err(LoadError::Two));
        assert_eq!(plan(&CommandArgs::default()), Ok(None));
    }

    #[test]
    fn a_command_without_a_usable_name_gets_one() {
        assert_eq!(name("/opt/-.é"), "command");
        assert_eq!(name("'a b'"), "ab");
    }
}
