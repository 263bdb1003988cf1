// SPDX-License-Identifier: Apache-2.0
//! `vtax run --platform … -- COMMAND`: the plan of a command that is measured without a plan file.

mod root;
mod variant;

pub use root::seen;

use crate::cli::CommandArgs;
use std::path::{Path, PathBuf};
use variant::Variant;
use vtax_lab::plan::Diagnostics;
use vtax_lab::plan::write::{self, PlanText, name_of};
use vtax_load::workload::command::words::{join, split};

/// The platforms of an image where none are given.
const IMAGE_PLATFORMS: [&str; 3] = ["native", "container", "qemu"];

/// The name of a workload whose service is the entry point of an image: that of the next version is the same.
const ENTRY_POINT: &str = "service";

/// A command line that gives no run.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum CommandLineError {
    /// No command.
    #[error("no command is given: write it after `--`, or as --load 'COMMAND'")]
    None,
    /// Two commands.
    #[error(
        "--load and the words after `--` are both the measured command: a service goes into --serve {}",
        vtax_host::command::quoted(.0)
    )]
    Two(String),
    /// A path that a plan cannot contain.
    #[error("the path {0:?} is empty or not UTF-8, so that no plan can contain it")]
    Path(PathBuf),
    /// A metric without a name.
    #[error("--metric {0}: write NAME=REGEX, such as --metric 'p99=p99: ([0-9.]+)' ms")]
    Metric(String),
    /// A variant without a name or a value.
    #[error(
        "--variant {0}: write NAME=VALUE, such as --variant old=./app-1.2 --variant new=./app-1.3"
    )]
    Variant(String),
    /// A variant whose file does not exist.
    #[error(
        "--variant {0}: this file does not exist here; give its path, or another text for {{variant}}"
    )]
    NoFile(String),
    /// Variants that nothing uses.
    #[error(
        "the variants change nothing: write {{variant}} where their values belong, such as `-- {{variant}} --bench`, or \
         give images, such as --variant old=oci:old.tar"
    )]
    Unused,
    /// Options with values that a run cannot have, one in each line.
    #[error("{}", .0.join("\n"))]
    Options(Vec<String>),
}

/// The option that gives each key of the plan.
const OPTIONS: [(&str, &str); 15] = [
    ("kind", "--platform"),
    ("image", "--image"),
    ("load", "--load"),
    ("serve", "--serve"),
    ("ready", "--ready"),
    ("prepare", "--prepare"),
    ("packages", "--packages"),
    ("files", "--files"),
    ("stdin", "--input"),
    ("work", "--work"),
    ("metrics", "--metric"),
    ("name", "--name"),
    ("repetitions", "--runs"),
    ("stop", "--until"),
    ("warmup_runs", "--warmup"),
];

/// The faults of a command line's plan, each with the option that it lies in.
pub fn faults(text: &str, found: &Diagnostics) -> CommandLineError {
    let faults = found.list.iter().map(|fault| {
        let lines: Vec<&str> = text.lines().take(fault.line).collect();
        let line = lines.last().copied().unwrap_or_default();
        let section = lines.iter().rfind(|line| line.starts_with("[["));
        let is_of_variant = section == Some(&"[[variant]]");
        let (key, value) = line.split_once(" = ").unwrap_or((line, ""));
        let first = key.split('.').next().unwrap_or(key);
        let option = OPTIONS.iter().find(|(name, _)| *name == first);
        let option = match option {
            _ if first == "[[platform]]" => "--platform: ".to_owned(),
            _ if first == "[[variant]]" => "--variant: ".to_owned(),
            Some(_) if is_of_variant => format!("--variant, {first} {value}: "),
            Some((_, option)) => format!("{option} {value}: "),
            None => String::new(),
        };
        let help = fault
            .help
            .as_ref()
            .map_or(String::new(), |help| format!("; {help}"));
        format!("{option}{}{help}", fault.message)
    });
    let mut faults: Vec<String> = faults.collect();
    faults.dedup();
    CommandLineError::Options(faults)
}

/// Returns the plan as TOML; `None` where the arguments name no command. The files of this host are the default of more
/// commands without root (`is_root`).
///
/// # Errors
/// When no command is given, or two are.
pub fn plan(arguments: &CommandArgs, is_root: bool) -> Result<Option<String>, CommandLineError> {
    let is_given = arguments.image.is_some() || !arguments.variants.is_empty();
    if arguments.platform.is_empty() && !is_given {
        return Ok(None);
    }
    let mut variants = variant::read(arguments)?;
    let of_variant = variant::is_in;
    let load = match (arguments.words.as_slice(), &arguments.load) {
        ([], Some(load)) => load.clone(),
        (words @ [_, ..], Some(_)) => {
            return Err(CommandLineError::Two(join(words)));
        }
        ([], None) => {
            return Err(CommandLineError::None);
        }
        (words, None) => join(words),
    };
    let service = arguments.serve.as_deref();
    let root = root::image(arguments, service.unwrap_or(&load), &variants, is_root)?;
    let is_host = root
        .as_deref()
        .is_some_and(|text| text.starts_with("host:"));
    if is_host {
        variants.iter_mut().for_each(Variant::keep_in_place);
    }
    let first = variants.first();
    // The entry point of an image has the image's name.
    let image = arguments.image.as_deref().filter(|text| !of_variant(text));
    let image = image.or_else(|| {
        first
            .filter(|one| one.is_image)
            .map(|one| one.value.as_str())
    });
    let of_image = if arguments.ready.is_some() && !is_host {
        image
    } else {
        None
    };
    let program = match (service, of_image) {
        (None, Some(_)) => ENTRY_POINT.to_owned(),
        (service, _) => {
            let command = service.unwrap_or(&load);
            let names = variants.iter().map(|one| name(&one.in_command(command)));
            match names.collect::<Vec<_>>().as_slice() {
                [] => name(command),
                names => variant::common_name(names),
            }
        }
    };
    let workload = arguments.name.as_deref().unwrap_or(&program);
    let name = match (&arguments.name, service, of_image) {
        (None, None, Some(image)) => name_of_image(image),
        _ => workload.to_owned(),
    };
    let mut plan = PlanText::default();
    let description = match variants.as_slice() {
        [] => format!("the cost of {load}"),
        all => {
            let names = all.iter().map(|one| one.name.as_str());
            let names: Vec<&str> = names.collect();
            format!("the variants {} of {load}", names.join(", "))
        }
    };
    plan.text("name", &name)
        .text("description", &description)
        .value(
            "repetitions",
            arguments
                .until
                .as_ref()
                .map_or(arguments.runs, |_| arguments.at_most),
        )
        .text("warmup", "0s");
    if let Some(until) = &arguments.until {
        plan.text("stop.rule", "until")
            .text("stop.until", &until.to_string())
            .value("stop.minimum", arguments.runs.clamp(2, arguments.at_most));
    }
    if arguments.typical {
        plan.text("estimate", "typical");
    }
    if arguments.no_canary {
        plan.text("canary", "off");
    }
    if let Some(image) = root.as_deref().filter(|text| !of_variant(text)) {
        plan.text("image", &absolute_image(image)?);
    }
    let platforms: Vec<&str> = match arguments.platform.as_slice() {
        [] if is_host => root::PLATFORMS.to_vec(),
        [] => IMAGE_PLATFORMS.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    for platform in platforms {
        plan.section("platform").text("kind", platform);
    }
    plan.section("workload")
        .text("kind", "command")
        .text("name", workload);
    let load = Some(load);
    let texts = [
        ("load", &load),
        ("serve", &arguments.serve),
        ("ready", &arguments.ready),
        ("prepare", &arguments.prepare),
    ];
    let texts = texts.map(|(key, value)| (key, value.as_deref().unwrap_or_default()));
    for (key, value) in texts {
        if !value.is_empty() && !of_variant(value) {
            plan.text(key, value);
        }
    }
    if arguments.warmup > 0 {
        plan.value("warmup_runs", arguments.warmup);
    }
    if !arguments.packages.is_empty() {
        plan.texts("packages", &arguments.packages);
    }
    let of_variants = |path: &&PathBuf| path.to_str().is_some_and(of_variant);
    let common = arguments.files.iter().filter(|path| !of_variants(path));
    let files = common.map(|path| absolute(path));
    let mut files = files.collect::<Result<Vec<String>, CommandLineError>>()?;
    let has_image = (root.is_some() && !is_host) || variants.iter().any(|one| one.is_image);
    if !has_image && !is_host {
        let own = service.or(load.as_deref()).unwrap_or_default();
        files.extend(
            own_file(own, &arguments.files)
                .map(|path| absolute(&path))
                .transpose()?,
        );
    }
    if !files.is_empty() {
        plan.texts("files", &files);
    }
    if let [place, unit] = arguments.work.as_slice() {
        figure(&mut plan, "work", place, unit);
    }
    for pair in arguments.metrics.chunks(2) {
        let [named, unit] = pair else { continue };
        let (name, place) = named
            .split_once('=')
            .ok_or_else(|| CommandLineError::Metric(named.clone()))?;
        let is_key =
            name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.is_empty();
        if !is_key {
            return Err(CommandLineError::Metric(named.clone()));
        }
        plan.table(
            &format!("metrics.{name}"),
            &[("regex", place), ("unit", unit)],
        );
    }
    if let Some(input) = arguments.input.as_ref().filter(|path| !of_variants(path)) {
        plan.text("stdin", &absolute(input)?);
    }
    for variant in &variants {
        plan.section("variant").text("name", &variant.name);
        let own = texts.iter().filter(|(_, text)| of_variant(text));
        for (key, text) in own {
            plan.text(key, &variant.in_command(text));
        }
        if variant.is_image {
            plan.text("image", &absolute_image(&variant.value)?);
        } else if let Some(image) = arguments.image.as_deref().filter(|text| of_variant(text)) {
            plan.text("image", &absolute_image(&variant.in_text(image))?);
        }
        let own = arguments.files.iter().filter(of_variants);
        let mut own: Vec<String> = own
            .map(|path| variant.in_path(path))
            .collect::<Result<_, _>>()?;
        let is_run = texts.iter().any(|(_, text)| of_variant(text));
        if variant.is_file && is_run && !has_image {
            own.push(absolute(Path::new(&variant.value))?);
        }
        if !own.is_empty() {
            plan.texts("files", &[files.clone(), own].concat());
        }
        if let Some(input) = arguments.input.as_ref().filter(of_variants) {
            plan.text("stdin", &variant.in_path(input)?);
        }
    }
    Ok(Some(plan.finish()))
}

/// Appends a number of the output: a fixed one, or the group of an expression.
fn figure(plan: &mut PlanText, key: &str, place: &str, unit: &str) {
    match place.parse::<f64>() {
        Ok(count) => {
            let unit = write::quoted(unit);
            plan.value(key, format!("{{ count = {count:?}, unit = {unit} }}"))
        }
        Err(_) => plan.table(key, &[("regex", place), ("unit", unit)]),
    };
}

/// The program of a command, where it is a file of the working directory that is not among `files`: `./NAME`.
fn own_file(command: &str, files: &[PathBuf]) -> Option<PathBuf> {
    let program = split(command).ok()?.into_iter().next()?;
    let name = program
        .strip_prefix("./")
        .filter(|name| !name.contains('/'))?;
    let is_given = files
        .iter()
        .any(|file| file.file_name().is_some_and(|own| own == name));
    (!is_given && Path::new(&program).is_file()).then(|| PathBuf::from(program))
}

/// Returns an absolute path, with which the plan can be run from anywhere.
fn absolute(path: &Path) -> Result<String, CommandLineError> {
    let wrong = || CommandLineError::Path(path.to_owned());
    let absolute = std::path::absolute(path).map_err(|_| wrong())?;
    absolute.to_str().map(str::to_owned).ok_or_else(wrong)
}

/// Returns the text of an image with an absolute path.
fn absolute_image(text: &str) -> Result<String, CommandLineError> {
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

    /// The plan for root, also where the user of the test is not root.
    fn plan(arguments: &CommandArgs) -> Result<Option<String>, CommandLineError> {
        super::plan(arguments, true)
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
            assert_eq!(
                (plan.name.as_str(), plan.workloads[0].name.as_str()),
                (name, "service")
            );
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
    fn a_variant_s_value_stands_in_its_commands_and_a_file_is_added_to_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["old/app", "new/app"].map(|name| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, name).unwrap();
            path.to_str().unwrap().to_owned()
        });
        let plan = read(&CommandArgs {
            platform: Vec::new(),
            variants: vec![format!("old={}", paths[0]), format!("new={}", paths[1])],
            files: vec!["/opt/data".into()],
            ..arguments(&["{variant}", "--bench", "a b"])
        });
        assert_eq!(plan.name, "app");
        let kinds: Vec<&str> = plan.platforms.iter().map(|one| one.kind.as_str()).collect();
        assert_eq!(kinds, ["native", "container", "qemu"]);
        let load = &plan.workloads[0];
        for (settings, path) in load.variants.iter().zip(&paths) {
            assert_eq!(settings.text("load.load"), Some("./app --bench 'a b'"));
            assert_eq!(files_of(settings), ["/opt/data", path]);
        }
        for (names, shared) in [
            (["app-1.2", "app-1.3"], "app"),
            (["app", "app"], "app"),
            (["old", "new"], "variants"),
            (["a1", "a2"], "a"),
        ] {
            assert_eq!(variant::common_name(&names.map(str::to_owned)), shared);
        }
        // A value that is no file stands as it is.
        let plan = read(&CommandArgs {
            variants: vec!["one=1".to_owned(), "four=4".to_owned()],
            ..arguments(&["sysbench", "cpu", "--threads={variant}", "run"])
        });
        let loads = plan.workloads[0].variants.iter();
        let loads: Vec<&str> = loads.map(|own| own.text("load.load").unwrap()).collect();
        assert_eq!(
            loads,
            [
                "sysbench cpu --threads=1 run",
                "sysbench cpu --threads=4 run"
            ]
        );
    }

    #[test]
    fn variants_may_be_images_and_unused_or_nameless_ones_are_refused() {
        let images = CommandArgs {
            platform: Vec::new(),
            variants: vec![
                "old=oci:/a/old.tar".to_owned(),
                "new=oci:/a/new.tar".to_owned(),
            ],
            load: Some("wrk http://{target}".to_owned()),
            ready: Some("tcp:80".to_owned()),
            ..arguments(&[])
        };
        let plan = read(&images);
        let seen: Vec<&str> = (plan.variants.iter())
            .map(|one| one.settings.text("image").unwrap())
            .collect();
        assert_eq!(seen, ["oci:/a/old.tar", "oci:/a/new.tar"]);
        assert_eq!(
            (plan.name.as_str(), plan.workloads[0].name.as_str()),
            ("old", "service")
        );
        let refused = |variants: [&str; 2]| {
            let variants = variants.map(str::to_owned).to_vec();
            self::plan(&CommandArgs {
                variants,
                ..arguments(&["true"])
            })
            .unwrap_err()
        };
        assert_eq!(refused(["old=1", "new=2"]), CommandLineError::Unused);
        let missing = refused(["old=./no-such-file", "new=2"]).to_string();
        assert!(missing.contains("does not exist here"), "{missing}");
        assert!(matches!(
            refused(["old", "new=2"]),
            CommandLineError::Variant(_)
        ));
    }

    #[test]
    fn no_command_and_two_commands_are_refused() {
        assert_eq!(plan(&arguments(&[])), Err(CommandLineError::None));
        let both = CommandArgs {
            load: Some("a".to_owned()),
            ..arguments(&["b"])
        };
        let two = plan(&both).unwrap_err();
        assert!(
            two.to_string().contains("a service goes into --serve 'b'"),
            "{two}"
        );
        assert_eq!(plan(&CommandArgs::default()), Ok(None));
    }

    #[test]
    fn a_command_without_a_usable_name_gets_one() {
        assert_eq!(name("/opt/-.é"), "command");
        assert_eq!(name("'a b'"), "ab");
    }

    #[test]
    fn the_work_the_metrics_and_the_name_of_a_command_are_in_its_plan() {
        let with = CommandArgs {
            work: vec!["served ([0-9]+)".to_owned(), "request".to_owned()],
            metrics: ["p99=p99: ([0-9.]+)", "ms", "mean=mean=([0-9]+)", "us"]
                .map(str::to_owned)
                .into(),
            name: Some("hash".to_owned()),
            ..arguments(&["./app"])
        };
        let text = plan(&with).unwrap().unwrap();
        assert!(
            text.contains(r#"work = { regex = "served ([0-9]+)", unit = "request" }"#),
            "{text}"
        );
        let plan_ = read(&with);
        assert_eq!(
            (plan_.name.as_str(), plan_.workloads[0].name.as_str()),
            ("hash", "hash")
        );
        let fixed = CommandArgs {
            work: vec!["20".to_owned(), "frame".to_owned()],
            ..arguments(&["true"])
        };
        assert!(
            plan(&fixed)
                .unwrap()
                .unwrap()
                .contains("count = 20.0, unit = \"frame\"")
        );
        read(&fixed);
        for wrong in ["p99", "=x", "a b=x", "a.b=x"] {
            let with = CommandArgs {
                metrics: vec![wrong.to_owned(), "ms".to_owned()],
                ..arguments(&["true"])
            };
            assert_eq!(plan(&with), Err(CommandLineError::Metric(wrong.to_owned())));
        }
    }

    #[test]
    fn a_program_of_the_working_directory_is_taken_along() {
        // Tests run in the directory of their crate.
        let one = arguments(&["./Cargo.toml", "x"]);
        let here = std::env::current_dir().unwrap().join("Cargo.toml");
        assert_eq!(
            files_of(&read(&one).workloads[0].settings),
            [here.to_str().unwrap()]
        );
        for other in ["./no-such-file", "src/main.rs", "./src", "sh"] {
            assert!(files_of(&read(&arguments(&[other])).workloads[0].settings).is_empty());
        }
    }

    #[test]
    fn the_faults_of_a_command_line_name_its_options() {
        let shown = |with: CommandArgs| {
            let text = plan(&with).unwrap().unwrap();
            let wrong = Plan::read("the command line", &text, &Catalogue::standard()).unwrap_err();
            faults(&text, &wrong).to_string()
        };
        let platform = shown(CommandArgs {
            platform: vec!["native".to_owned(), "qmu".to_owned()],
            ..arguments(&["true"])
        });
        assert!(platform.starts_with("--platform \"qmu\": "), "{platform}");
        assert!(
            platform.contains("did you mean `qemu`?") && !platform.contains('\n'),
            "{platform}"
        );
        let ready = shown(CommandArgs {
            serve: Some("a".to_owned()),
            ready: Some("8080".to_owned()),
            ..arguments(&["true"])
        });
        assert!(ready.starts_with("--ready \"8080\": "), "{ready}");
        let work = shown(CommandArgs {
            work: vec!["no group".to_owned(), "request".to_owned()],
            ..arguments(&["true"])
        });
        assert!(
            work.starts_with("--work ") && work.contains("one group"),
            "{work}"
        );
        let image = shown(CommandArgs {
            image: Some("docker:nginx".to_owned()),
            ..arguments(&["true"])
        });
        assert!(image.contains("docker save -o nginx.tar nginx"), "{image}");
    }
}
