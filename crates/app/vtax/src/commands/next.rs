// SPDX-License-Identifier: Apache-2.0
//! `vtax` without a command: the next steps on this host, by what the doctor finds.

use crate::Outcome;
use crate::output::out;
use vtax_doctor::{self as doctor, Answer, HostProbes, Options, Summary};
use vtax_guest::image;
use vtax_host::signals::{Signals, end_with_reader};
use vtax_host::{Roots, rootless};

pub fn run() -> Outcome {
    // Where it is refused, a run needs root.
    let runs = rootless::is_root() || rootless::enter().is_ok();
    let signals = Signals::install()?;
    // A step needs neither the boot of a guest nor the look into an emulated host.
    let probes = HostProbes {
        boot: None,
        testbed: None,
    };
    let options = Options {
        probes: &probes,
        scan_wall_meters: false,
        storage: image::cache_dir()?,
        signals: Some(&signals),
    };
    let findings = doctor::examine(&Roots::host(), &options);
    signals.check()?;
    end_with_reader()?;
    let steps = steps(&doctor::summarize(&findings), rootless::is_root(), runs);
    out!(
        "vtax measures what virtualization costs. Next steps on this host:\n\n{}\n{}",
        steps
            .iter()
            .map(|(command, effect)| format!("  # {effect}\n  {command}\n"))
            .collect::<String>(),
        "vtax doctor has the details; vtax help has all commands.\n"
    )?;
    Ok(())
}

/// The command lines of the next steps, each with its effect.
/// The steps of a user; `runs` says whether this user runs trials.
fn steps(summary: &Summary, is_root: bool, runs: bool) -> Vec<(String, String)> {
    let step = |command: String, effect: &str| (command, effect.to_owned());
    let mut steps = vec![step(
        "vtax top".to_owned(),
        "guests of this host by their full cost",
    )];
    let usable: Vec<&str> = summary
        .platforms
        .iter()
        .filter(|one| one.answer != Answer::No)
        .map(|one| one.name.as_str())
        .collect();
    let sudo = if is_root { "" } else { "sudo " };
    let run = if runs { "" } else { sudo };
    match usable.as_slice() {
        [first, second, ..] => steps.push(step(
            format!("{run}vtax run --platform {first},{second} -- sha256sum /usr/bin/perl"),
            "a command on two platforms, without a plan",
        )),
        _ => {
            if let Some(install) = &summary.install {
                steps.push(step(
                    format!("{sudo}{install}"),
                    "the programs that platforms need",
                ));
            }
        }
    }
    // Its guests have images that root builds.
    if is_root && usable.len() < 2 {
        steps.push(step(
            "vtax plan new --for command -o plan.toml && vtax run plan.toml --place testbed:kvm"
                .to_owned(),
            "a plan in an emulated host",
        ));
    }
    steps.push(step(
        "vtax exporter".to_owned(),
        "the same numbers for Prometheus, at http://127.0.0.1:19190/metrics",
    ));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_doctor::Usable;

    fn summary(names: &[&str]) -> Summary {
        let usable = |name: &&str| Usable {
            name: (*name).to_owned(),
            answer: Answer::Yes,
            reason: String::new(),
        };
        Summary {
            platforms: names.iter().map(usable).collect(),
            places: Vec::new(),
            meters: Vec::new(),
            install: Some("apt-get install crun".to_owned()),
        }
    }

    fn lines(summary: &Summary, is_root: bool) -> String {
        let steps = steps(summary, is_root, is_root);
        steps.into_iter().map(|(line, _)| line + "\n").collect()
    }

    #[test]
    fn two_platforms_are_compared_and_one_leads_to_an_installation() {
        let two = lines(&summary(&["native", "container"]), true);
        assert!(
            two.contains("vtax run --platform native,container --"),
            "{two}"
        );
        assert!(!two.contains("apt-get") && !two.contains("sudo"), "{two}");
        let one = lines(&summary(&["native"]), true);
        assert!(one.contains("apt-get install crun"), "{one}");
        assert!(one.contains("--place testbed:kvm"), "{one}");
    }

    #[test]
    fn an_ordinary_user_gets_sudo_and_nothing_that_needs_root_without_it() {
        let user = lines(&summary(&["native", "container"]), false);
        assert!(
            user.contains("sudo vtax run") && !user.contains("--place testbed:kvm"),
            "{user}"
        );
    }

    #[test]
    fn a_user_who_runs_trials_without_root_gets_no_sudo_for_them() {
        let steps = steps(&summary(&["native", "container"]), false, true);
        let run = steps.iter().find(|(line, _)| line.contains("vtax run"));
        assert!(run.unwrap().0.starts_with("vtax run"), "{steps:?}");
    }

    #[test]
    fn every_step_of_vtax_is_accepted_by_the_parser() {
        for is_root in [false, true] {
            for line in lines(&summary(&["native", "qemu"]), is_root).lines() {
                for command in line
                    .split("&&")
                    .map(|part| part.trim().trim_start_matches("sudo "))
                {
                    if command.starts_with("vtax ") {
                        let words = command.split(' ');
                        let parsed = crate::cli::help::parser().try_get_matches_from(words);
                        assert!(parsed.is_ok(), "{command}: {}", parsed.err().unwrap());
                    }
                }
            }
        }
    }
}
