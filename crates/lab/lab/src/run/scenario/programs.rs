// SPDX-License-Identifier: Apache-2.0
//! The check for the programs that a plan's workloads need, before any guest boots.

use crate::LabError;
use crate::plan::{Catalogue, GuestRole, PlannedTreatment};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};
use vtax_guest::image::{Recipe, oci, user_files};
use vtax_guest::platform::{Platform, host_root};
use vtax_host::HostError;
use vtax_host::roots::PATH;
use vtax_host::settings::Settings;
use vtax_load::workload::command::{files_of, programs_in_target};
use vtax_load::workload::{Program, Workload};

/// The guests whose workloads are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// All guests.
    All,
    /// Guests whose clients are on this host.
    Here,
    /// Targets whose clients are on the remote client host.
    Remote,
}

/// Returns the client programs that a host lacks, each with its remedy. `is_installed` searches as clients on that
/// host do.
pub(super) fn missing_on_host(
    treatments: &[PlannedTreatment],
    catalogue: &Catalogue,
    whose: Whose,
    is_installed: &dyn Fn(&str) -> bool,
) -> BTreeSet<String> {
    client_programs(treatments, catalogue, whose)
        .into_iter()
        .filter(|(_, program)| !is_installed(program.name))
        .map(|(workload, program)| format!("{workload}: {}", missing(program)))
        .collect()
}

/// Returns the client programs, each with the workload's name in the plan.
pub(super) fn client_programs<'a>(
    treatments: &'a [PlannedTreatment],
    catalogue: &Catalogue,
    whose: Whose,
) -> BTreeSet<(&'a str, Program)> {
    programs(treatments, catalogue, whose, |workload| {
        workload.about().client_programs
    })
}

/// Checks that the image at `root`, made by `recipe`, has the programs of its guests.
///
/// # Errors
/// The programs that it lacks.
pub(super) fn check_image(
    treatments: &[PlannedTreatment],
    catalogue: &Catalogue,
    recipe: &Recipe,
    root: &Path,
) -> Result<(), LabError> {
    let lacking: BTreeSet<String> = programs(treatments, catalogue, Whose::All, |workload| {
        if Recipe::for_packages(workload.about().packages).packages == recipe.packages {
            workload.about().target_programs
        } else {
            &[]
        }
    })
    .into_iter()
    .filter(|(_, program)| !has_program(root, program.name, None))
    .map(|(workload, program)| {
        format!(
            "{workload}: the program `{}` of the Debian package {}",
            program.name, program.package
        )
    })
    .collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = lacking.into_iter().collect();
    Err(LabError::Host(HostError::Missing {
        what: format!("of the image in {}, {}", root.display(), list.join(", ")),
        remedy: "build it again with `vtax image build --force`".to_owned(),
    }))
}

/// Checks that each guest's image has the first program of the command that a plan runs in it. `root_of` returns the
/// root directory of a guest's image.
///
/// # Errors
/// The programs that they lack.
pub(super) fn check_commands<'a>(
    treatments: &[PlannedTreatment],
    catalogue: &Catalogue,
    root_of: &dyn Fn(&GuestRole<'_>) -> Option<&'a Path>,
) -> Result<(), LabError> {
    let mut lacking: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for planned in treatments {
        for guest in planned.guests() {
            let is_external = catalogue.is_external(guest.platform_kind, guest.settings);
            // The programs of an image of containers are its own.
            if is_external || oci::entered(guest.settings).is_some() {
                continue;
            }
            if let Some(directory) = oci::host_directory(guest.settings) {
                let files = files_of(guest.settings);
                let programs = programs_in_target(guest.settings).into_iter();
                for program in programs.filter(|program| !is_of_files(program, &files)) {
                    check_on_host(&program, &directory)?;
                }
                continue;
            }
            let found = || {
                let workload = catalogue.workload(guest.workload_kind)?;
                let program = workload.target_program(guest.settings)?;
                Some((program, root_of(&guest)?))
            };
            let folder = (!files_of(guest.settings).is_empty()).then_some(user_files::DIRECTORY);
            if let Some((program, _)) =
                found().filter(|(name, root)| !has_program(root, name, folder))
            {
                let what = format!("{}: the program `{program}`", planned.record.workload);
                let platforms = lacking.entry(what).or_default();
                platforms.insert(&planned.record.platform);
            }
        }
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let list = lacking.into_iter().map(|(what, platforms)| {
        let platforms: Vec<&str> = platforms.into_iter().collect();
        format!("{what} in the image of {}", platforms.join(", "))
    });
    Err(LabError::Host(HostError::Missing {
        what: list.collect::<Vec<_>>().join("; "),
        remedy: "name the Debian package that has it (--packages, in a plan `packages` of the workload), or its file (--files, \
                 `files`)"
            .to_owned(),
    }))
}

/// Whether a program of a command is one of the plan's files, or below one, by its path beside them.
fn is_of_files(program: &str, files: &[String]) -> bool {
    let path = Path::new(program);
    let beside = path.strip_prefix(user_files::DIRECTORY).unwrap_or(path);
    let first = beside
        .components()
        .find(|part| *part != Component::CurDir)
        .map(|part| part.as_os_str());
    let is_path = program.contains('/') && first.is_some();
    is_path
        && files
            .iter()
            .any(|file| Path::new(file).file_name() == first)
}

/// Checks that a program of a command is in the files of this host as its guests see them.
///
/// # Errors
/// When it is not; with what to do.
fn check_on_host(program: &str, directory: &Path) -> Result<(), HostError> {
    let lacks = |problem: String| {
        Err(HostError::NotInImage {
            image: format!("host:{}", directory.display()),
            problem,
        })
    };
    if !program.contains('/') {
        let is_there = std::env::split_paths(PATH).any(|folder| folder.join(program).is_file());
        return if is_there {
            Ok(())
        } else {
            lacks(format!("`{program}` is in none of {PATH}: give its path"))
        };
    }
    let Ok(file) = directory.join(program).canonicalize() else {
        return lacks(format!("there is no file `{program}`"));
    };
    let is_executable = file
        .metadata()
        .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0);
    if !is_executable {
        lacks(format!(
            "`{program}` is no executable file: `chmod +x {program}`"
        ))
    } else if host_root::shows(&file, directory) {
        Ok(())
    } else {
        lacks(format!(
            "`{program}` is {}, and homes, /tmp and /run are left out: start vtax in that file's directory or above it",
            file.display()
        ))
    }
}

/// Whether a directory of an image's programs has one of this name, or a path in the image exists. A link counts without
/// its target, which may exist only inside the image. `folder` is the working directory; without one, that is
/// the root directory.
fn has_program(root: &Path, name: &str, folder: Option<&str>) -> bool {
    let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let is_there = |path: &Path| path.symlink_metadata().is_ok();
    if name.contains('/') {
        match folder {
            _ if name.starts_with('/') => is_there(&inside(Path::new(name))),
            Some(folder) => is_there(&inside(Path::new(folder)).join(name)),
            None => is_there(&root.join(name)),
        }
    } else {
        std::env::split_paths(PATH).any(|folder| is_there(&inside(&folder).join(name)))
    }
}

/// Returns the programs that an external guest lacks for a workload, each with its remedy.
///
/// # Errors
/// When the guest does not answer.
pub(super) fn missing_in_external(
    platform: &dyn Platform,
    workload: &dyn Workload,
    settings: &Settings,
) -> Result<Vec<HostError>, HostError> {
    if !platform.is_external(settings) {
        return Ok(Vec::new());
    }
    refuse_scratch(workload, settings)?;
    let programs = workload.about().target_programs;
    let own = workload.target_program(settings);
    let own = own.as_deref().filter(|name| !name.contains('/'));
    let names: Vec<&str> = (programs.iter().map(|program| program.name))
        .chain(own)
        .collect();
    let lacking = platform.lacks(settings, &names)?;
    let lacking = lacking.into_iter().map(|name| {
        let package = programs.iter().find(|program| program.name == name);
        missing_in_guest(
            &name,
            package.map_or("of its name", |program| program.package),
        )
    });
    Ok(lacking.collect())
}

/// Refuses a workload that needs a scratch disk, for an external guest.
///
/// # Errors
/// When it needs one.
pub(super) fn refuse_scratch(
    workload: &dyn Workload,
    settings: &Settings,
) -> Result<(), HostError> {
    if workload.scratch_mib(settings) == 0 {
        return Ok(());
    }
    Err(HostError::Setting(format!(
        "{} needs a scratch disk, and an external guest gets none: take another workload",
        workload.kind()
    )))
}

/// Returns the error for a program that an external guest lacks.
pub(super) fn missing_in_guest(name: &str, package: &str) -> HostError {
    HostError::Missing {
        what: format!("the program `{name}` in the guest"),
        remedy: format!("install it there; in Debian it is in the package {package}"),
    }
}

/// Returns the programs of the guests' workloads, each with the workload's name in the plan.
fn programs<'a>(
    treatments: &'a [PlannedTreatment],
    catalogue: &Catalogue,
    whose: Whose,
    of: impl Fn(&dyn Workload) -> &'static [Program],
) -> BTreeSet<(&'a str, Program)> {
    let mut all = BTreeSet::new();
    for planned in treatments {
        let has_target = match whose {
            Whose::All => true,
            Whose::Here => !planned.client_is_remote,
            Whose::Remote => planned.client_is_remote,
        };
        let mut workloads = Vec::new();
        if has_target {
            workloads.push((&planned.record.workload, &planned.record.workload_kind));
        }
        if whose != Whose::Remote {
            let neighbours = planned.neighbours.iter();
            workloads.extend(neighbours.map(|guest| (&guest.name, &guest.workload_kind)));
        }
        for (name, kind) in workloads {
            if let Some(workload) = catalogue.workload(kind) {
                all.extend(of(workload).iter().map(|program| (name.as_str(), *program)));
            }
        }
    }
    all
}

fn missing(program: Program) -> HostError {
    HostError::Missing {
        what: format!("the program `{}`", program.name),
        remedy: format!("install the Debian package {}", program.package),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, treatments};
    use std::fs;

    fn planned(catalogue: &Catalogue) -> Vec<PlannedTreatment> {
        let text = "name = \"programs\"\n[[platform]]\nkind = \"native\"\n\
                    [[workload]]\nkind = \"iperf3-send\"\nname = \"send\"\n\
                    [[workload]]\nkind = \"idle\"\n";
        let plan = Plan::read("plan.toml", text, catalogue).unwrap();
        treatments(&plan, catalogue)
    }

    #[test]
    fn a_missing_client_is_named_with_its_package_before_anything_boots() {
        let catalogue = Catalogue::standard();
        let mut planned = planned(&catalogue);
        let missing = missing_on_host(&planned, &catalogue, Whose::All, &|name| name != "iperf3");
        assert_eq!(
            missing.into_iter().collect::<Vec<_>>(),
            ["send: the program `iperf3` is missing: install the Debian package iperf3"]
        );
        assert!(missing_on_host(&planned, &catalogue, Whose::All, &|_| true).is_empty());
        let lacking = |whose| missing_on_host(&planned, &catalogue, whose, &|_| false).len();
        assert_eq!((lacking(Whose::Here), lacking(Whose::Remote)), (1, 0));
        for planned in &mut planned {
            planned.client_is_remote = true;
        }
        let lacking = |whose| missing_on_host(&planned, &catalogue, whose, &|_| false).len();
        assert_eq!((lacking(Whose::Here), lacking(Whose::Remote)), (0, 1));
    }

    #[test]
    fn an_image_without_the_target_s_program_is_refused_and_a_link_is_a_program() {
        let catalogue = Catalogue::standard();
        let planned = planned(&catalogue);
        let root = tempfile::tempdir().unwrap();
        let recipe = Recipe::for_packages::<&str>(&[]);
        let refused = check_image(&planned, &catalogue, &recipe, root.path()).unwrap_err();
        let message = refused.to_string();
        assert!(
            message.contains("send: the program `iperf3`") && message.contains("--force"),
            "{message}"
        );
        let bin = root.path().join("usr/bin");
        fs::create_dir_all(&bin).unwrap();
        std::os::unix::fs::symlink("/etc/alternatives/iperf3", bin.join("iperf3")).unwrap();
        check_image(&planned, &catalogue, &recipe, root.path()).unwrap();
    }

    #[test]
    fn a_program_that_the_files_of_this_host_do_not_show_is_refused_with_the_way_out() {
        let here = tempfile::tempdir().unwrap();
        let below = here.path().join("below");
        fs::create_dir(&below).unwrap();
        let app = below.join("app");
        fs::write(&app, "").unwrap();
        let told = |program: &str, directory: &Path| {
            let checked = check_on_host(program, directory);
            checked.map_or_else(|cause| cause.to_string(), |()| String::new())
        };
        assert!(told("./app", &below).contains("chmod +x"));
        fs::set_permissions(&app, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(told("./app", &below), "");
        assert_eq!(told("below/app", here.path()), "");
        assert_eq!(told("sh", here.path()), "");
        let beside = here.path().join("beside");
        fs::create_dir(&beside).unwrap();
        let text = told("../below/app", &beside);
        assert!(text.contains("or above it"), "{text}");
        assert!(told("no-such-program", &below).contains("give its path"));
        assert!(told("./other", &below).contains("no file"));
    }

    #[test]
    fn a_program_of_a_command_that_the_image_lacks_is_named_with_its_platforms_and_the_key_of_packages()
     {
        let catalogue = Catalogue::standard();
        let of = |program: &str, files: &str| {
            let text = format!(
                "name = \"own\"\n[[platform]]\nkind = \"native\"\n[[platform]]\nkind = \"container\"\n\
                 [[workload]]\nkind = \"command\"\nname = \"mine\"\nload = \"{program} -x\"\n{files}"
            );
            let plan = Plan::read("plan.toml", &text, &catalogue).unwrap();
            treatments(&plan, &catalogue)
        };
        let root = tempfile::tempdir().unwrap();
        let root_of = |_: &GuestRole<'_>| Some(root.path());
        let check = |program: &str| check_commands(&of(program, ""), &catalogue, &root_of);
        for program in ["app", "/opt/app"] {
            let message = check(program).unwrap_err().to_string();
            let expected =
                format!("mine: the program `{program}` in the image of container, native");
            assert!(message.contains(&expected), "{message}");
            assert!(message.contains("`packages`"), "{message}");
        }
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        fs::create_dir_all(root.path().join("opt")).unwrap();
        fs::write(root.path().join("usr/bin/app"), "").unwrap();
        std::os::unix::fs::symlink("/nowhere", root.path().join("opt/app")).unwrap();
        for program in ["app", "/opt/app", "./opt/app"] {
            check(program).unwrap();
        }
        check("./app").unwrap_err();
        let without = |_: &GuestRole<'_>| None;
        check_commands(&of("missing", ""), &catalogue, &without).unwrap();
        let beside = of("./app", "files = [\"bin/app\"]\n");
        let message = check_commands(&beside, &catalogue, &root_of)
            .unwrap_err()
            .to_string();
        assert!(message.contains("`files`"), "{message}");
        fs::create_dir_all(root.path().join("files")).unwrap();
        fs::write(root.path().join("files/app"), "").unwrap();
        check_commands(&beside, &catalogue, &root_of).unwrap();
    }
}
