// SPDX-License-Identifier: Apache-2.0
//! Host-state factors: settings of the host's kernel that a plan may set and vary. Each old value is recorded in the
//! journal before a new one is written, and every write is read back.

use crate::facts::{chosen, cpu_directories, frequency_policies};
use crate::journal::Journal;
use crate::kernel_file::{store, unreadable, verify};
use crate::roots::{names, numbered, text};
use crate::settings::{Domain, Parameter, Settings};
use crate::{HostError, Roots};
use std::path::{Path, PathBuf};

/// The host parameters of a plan.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::unset("host.smt", Domain::Bool).help("simultaneous multithreading of every core"),
    Parameter::unset(
        "host.governor",
        Domain::Choice(&[
            "performance",
            "powersave",
            "schedutil",
            "ondemand",
            "conservative",
            "userspace",
        ]),
    )
    .help("cpufreq governor of every CPU"),
    Parameter::unset("host.turbo", Domain::Bool)
        .help("frequency boost above the nominal frequency"),
    Parameter::unset("host.ksm", Domain::Bool)
        .help("kernel same-page merging; off also unmerges what was merged"),
    Parameter::unset("host.thp", Domain::Choice(&["always", "madvise", "never"]))
        .help("transparent hugepages"),
    Parameter::unset(
        "host.idle_max",
        Domain::Text("an idle state, in quotes: its name or number"),
    )
    .help("deepest idle state that a CPU may enter, such as \"C1\" or \"1\""),
];

/// Checks, without changing anything, that this host supports these `host.*` settings.
///
/// # Errors
/// The first setting that this host does not support, with the values that it does.
pub fn check(settings: &Settings, sys: &Path) -> Result<(), HostError> {
    let roots = roots_of(sys);
    for key in settings.0.keys().filter(|key| key.starts_with("host.")) {
        for assignment in assignments(settings, key, &roots)? {
            assignment.offered()?;
        }
    }
    Ok(())
}

/// Puts the `host.*` settings in force. Values that already are in force are not written.
///
/// # Errors
/// When this host does not offer the value, or the value does not stay. The writes before the error are in the
/// journal, which can undo them.
pub fn apply(settings: &Settings, sys: &Path, journal: &mut Journal) -> Result<(), HostError> {
    let roots = roots_of(sys);
    // In the order of `PARAMETERS`: SMT determines which CPUs exist for the others, and the journal undoes in
    // reverse.
    for parameter in PARAMETERS {
        for assignment in assignments(settings, parameter.key, &roots)? {
            assignment.make(journal)?;
        }
    }
    Ok(())
}

fn roots_of(sys: &Path) -> Roots {
    Roots {
        sys: sys.to_owned(),
        ..Roots::host()
    }
}

/// One value for one file.
#[derive(Debug)]
struct Assignment {
    key: String,
    path: PathBuf,
    value: String,
    /// The values that the kernel offers for this file, where it lists them.
    offers: Option<Vec<String>>,
}

impl Assignment {
    fn new(key: &str, path: PathBuf, value: impl Into<String>) -> Self {
        Self {
            key: key.to_owned(),
            path,
            value: value.into(),
            offers: None,
        }
    }

    fn offered(&self) -> Result<(), HostError> {
        match &self.offers {
            Some(offers) if !offers.contains(&self.value) => Err(HostError::Setting(format!(
                "{} = `{}` is not offered by {}; this host offers: {}",
                self.key,
                self.value,
                self.path.display(),
                if offers.is_empty() {
                    "nothing".to_owned()
                } else {
                    offers.join(", ")
                },
            ))),
            _ => Ok(()),
        }
    }

    fn make(&self, journal: &mut Journal) -> Result<(), HostError> {
        let Some(now) = text(&self.path) else {
            return if self.vanished() {
                Ok(())
            } else {
                Err(unreadable(&self.path))
            };
        };
        let old = chosen(&now);
        if old == self.value {
            return Ok(());
        }
        self.offered()?;
        let recorded = journal.record_setting(&self.path, old, &self.value)?;
        match store(&self.path, &self.value) {
            Ok(()) => verify(&self.path, &self.value).or_else(|error| {
                // The kernel may store another form of the value, which must be undone too.
                if let Some(now) = text(&self.path) {
                    journal.rewrite(recorded, chosen(&now))?;
                }
                Err(error)
            }),
            Err(_) if self.vanished() => Ok(()),
            Err(cause) => Err(HostError::Setting(format!(
                "cannot set {} = `{}`: writing {}: {cause}; {}",
                self.key,
                self.value,
                self.path.display(),
                remedy(&cause)
            ))),
        }
    }

    // The cpufreq directory of a CPU disappears when the CPU goes offline; nothing is left to set.
    fn vanished(&self) -> bool {
        self.key == "host.governor" && !self.path.exists()
    }
}

fn remedy(cause: &std::io::Error) -> &'static str {
    match cause.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            "run as root, outside of a container with a read-only /sys"
        }
        _ => "leave this setting out of the plan, or run it on a host that has it",
    }
}

fn assignments(
    settings: &Settings,
    key: &str,
    roots: &Roots,
) -> Result<Vec<Assignment>, HostError> {
    if !settings.0.contains_key(key) {
        return Ok(Vec::new());
    }
    match key {
        "host.governor" => governor(key, required_text(settings, key)?, roots),
        "host.turbo" => turbo(key, required_bool(settings, key)?, roots),
        "host.smt" => smt(key, required_bool(settings, key)?, roots),
        "host.ksm" => ksm(key, required_bool(settings, key)?, roots),
        "host.thp" => hugepages(key, required_text(settings, key)?, roots),
        "host.idle_max" => idle(key, required_text(settings, key)?, roots),
        _ => Err(HostError::Setting(format!(
            "{key} is not a setting of the host; there are: {}",
            PARAMETERS
                .iter()
                .map(|parameter| parameter.key)
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}

fn required_text<'a>(settings: &'a Settings, key: &str) -> Result<&'a str, HostError> {
    settings
        .text(key)
        .ok_or_else(|| HostError::Setting(format!("{key} takes text, such as \"performance\"")))
}

fn required_bool(settings: &Settings, key: &str) -> Result<bool, HostError> {
    match settings.0.get(key) {
        Some(crate::settings::Level::Bool(value)) => Ok(*value),
        _ => Err(HostError::Setting(format!("{key} takes true or false"))),
    }
}

/// Whether the settings have a governor that lets the frequency follow the load. The effect of `powersave` depends on
/// the driver: with intel_pstate the frequency follows the load.
pub fn follows_load(settings: &Settings) -> bool {
    settings
        .text("host.governor")
        .is_some_and(|name| !["performance", "userspace"].contains(&name))
}

fn governor(key: &str, value: &str, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let policies = frequency_policies(roots);
    if policies.is_empty() {
        return Err(absent(
            key,
            &roots.sys.join("devices/system/cpu/cpufreq/policy*"),
            "the kernel has no cpufreq driver for this processor (usual inside a VM)",
        ));
    }
    Ok(policies
        .into_iter()
        .map(|policy| Assignment {
            offers: text(&policy.join("scaling_available_governors"))
                .map(|list| list.split_whitespace().map(str::to_owned).collect()),
            ..Assignment::new(key, policy.join("scaling_governor"), value)
        })
        .collect())
}

fn turbo(key: &str, on: bool, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let cpu = roots.sys.join("devices/system/cpu");
    let intel = cpu.join("intel_pstate/no_turbo");
    if intel.exists() {
        return Ok(vec![Assignment::new(
            key,
            intel,
            if on { "0" } else { "1" },
        )]);
    }
    let boost = cpu.join("cpufreq/boost");
    if boost.exists() {
        return Ok(vec![Assignment::new(
            key,
            boost,
            if on { "1" } else { "0" },
        )]);
    }
    Err(absent(
        key,
        &boost,
        "the frequency driver of this host has no switch for it",
    ))
}

fn smt(key: &str, on: bool, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let path = roots.sys.join("devices/system/cpu/smt/control");
    let Some(now) = text(&path) else {
        return Err(absent(key, &path, "this kernel cannot switch SMT"));
    };
    let value = if on { "on" } else { "off" };
    let offers = match now.as_str() {
        "on" | "off" => vec!["on".to_owned(), "off".to_owned()],
        // `forceoff` keeps SMT off until the next boot, which satisfies `off`.
        "forceoff" if !on => return Ok(Vec::new()),
        // A processor without SMT satisfies `off`.
        "notsupported" if !on => return Ok(Vec::new()),
        other => vec![other.to_owned()],
    };
    Ok(vec![Assignment {
        offers: Some(offers),
        ..Assignment::new(key, path, value)
    }])
}

fn ksm(key: &str, on: bool, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let path = roots.sys.join("kernel/mm/ksm/run");
    let Some(now) = text(&path) else {
        return Err(absent(key, &path, "this kernel has no KSM"));
    };
    // 0 stops scanning but keeps merged pages; 2 stops and unmerges (admin-guide/mm/ksm). A fresh kernel's 0 has
    // merged nothing and is left as it is.
    let merged = roots
        .sys_text("kernel/mm/ksm/pages_sharing")
        .is_some_and(|pages| pages != "0");
    if !on && now == "0" && !merged {
        return Ok(Vec::new());
    }
    Ok(vec![Assignment::new(key, path, if on { "1" } else { "2" })])
}

fn hugepages(key: &str, value: &str, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let path = roots.sys.join("kernel/mm/transparent_hugepage/enabled");
    let Some(now) = text(&path) else {
        return Err(absent(
            key,
            &path,
            "this kernel has no transparent hugepages",
        ));
    };
    let offers = now
        .split_whitespace()
        .map(|word| word.trim_matches(['[', ']']).to_owned())
        .collect();
    Ok(vec![Assignment {
        offers: Some(offers),
        ..Assignment::new(key, path, value)
    }])
}

/// Disables the states deeper than `deepest`, of every CPU. The others stay as they are, since the kernel disables
/// some states by itself.
fn idle(key: &str, deepest: &str, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let mut assignments = Vec::new();
    let mut has_states = false;
    for cpu in cpu_directories(roots) {
        let idle = cpu.join("cpuidle");
        // A deeper state has a higher number (kernel: admin-guide/pm/cpuidle).
        let states: Vec<(String, String, PathBuf)> = names(&idle)
            .into_iter()
            .filter_map(|entry| {
                let number = numbered(&entry, "state")?.to_string();
                let state = idle.join(entry);
                Some((number, text(&state.join("name"))?, state))
            })
            .collect();
        if states.is_empty() {
            continue;
        }
        has_states = true;
        let chosen = states
            .iter()
            .position(|(number, name, _)| number == deepest || name == deepest)
            .ok_or_else(|| {
                let there: Vec<String> = states
                    .iter()
                    .map(|(number, name, _)| format!("{name} ({number})"))
                    .collect();
                HostError::Setting(format!(
                    "{key} = `{deepest}` is no state of {}; there are: {}",
                    idle.display(),
                    there.join(", ")
                ))
            })?;
        let deeper = states.into_iter().skip(chosen + 1);
        assignments
            .extend(deeper.map(|(_, _, state)| Assignment::new(key, state.join("disable"), "1")));
    }
    if has_states {
        return Ok(assignments);
    }
    Err(absent(
        key,
        &roots.sys.join("devices/system/cpu/cpu*/cpuidle/state*"),
        "the kernel has no idle states to choose from on this processor (usual inside a VM)",
    ))
}

fn absent(key: &str, path: &Path, why: &str) -> HostError {
    HostError::Missing {
        what: format!("{} (for {key})", path.display()),
        remedy: format!("{why}; leave {key} out of the plan"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_host::FakeHost;
    use crate::journal::Change;
    use crate::kernel_file::{Restored, Written, restore};
    use crate::settings::Level;

    fn settings(levels: &[(&str, Level)]) -> Settings {
        levels.iter().cloned().collect()
    }

    fn text_level(value: &str) -> Level {
        Level::Text(value.to_owned())
    }

    fn journal(host: &FakeHost) -> Journal {
        crate::journal::Journal::open(&host.path("state")).unwrap()
    }

    fn undo(journal: &Journal) -> Vec<Restored> {
        let undone = journal.pending().iter().rev().map(|change| match change {
            Change::Setting { path, old, written } => restore(path, old, written.as_ref()).unwrap(),
            other => panic!("{other:?}"),
        });
        undone.collect()
    }

    #[test]
    fn every_setting_is_journalled_written_and_undone_in_reverse() {
        let host = FakeHost::intel_server();
        let mut journal = journal(&host);
        let wanted = settings(&[
            ("host.governor", text_level("performance")),
            ("host.turbo", Level::Bool(false)),
            ("host.smt", Level::Bool(false)),
            ("host.ksm", Level::Bool(true)),
            ("host.thp", text_level("never")),
            ("vm.vcpus", Level::Integer(2)),
        ]);
        check(&wanted, &host.roots.sys).unwrap();
        assert!(journal.pending().is_empty(), "a check changes nothing");
        apply(&wanted, &host.roots.sys, &mut journal).unwrap();
        assert_eq!(
            host.read("sys/devices/system/cpu/cpufreq/policy7/scaling_governor"),
            "performance"
        );
        assert_eq!(
            host.read("sys/devices/system/cpu/intel_pstate/no_turbo"),
            "1"
        );
        assert_eq!(host.read("sys/devices/system/cpu/smt/control"), "off");
        assert_eq!(host.read("sys/kernel/mm/ksm/run"), "1");
        assert_eq!(
            host.read("sys/kernel/mm/transparent_hugepage/enabled"),
            "never"
        );
        let first = journal.pending().first().cloned().unwrap();
        assert_eq!(
            first,
            Change::Setting {
                path: host.path("sys/devices/system/cpu/smt/control"),
                old: "on".to_owned(),
                written: Some(Written::first(
                    &host.path("sys/devices/system/cpu/smt/control"),
                    "off"
                )),
            }
        );
        assert_eq!(journal.pending().len(), 8 + 4);

        assert!(
            undo(&journal)
                .iter()
                .all(|restored| *restored == Restored::Done)
        );
        assert_eq!(
            host.read("sys/devices/system/cpu/cpufreq/policy0/scaling_governor"),
            "powersave"
        );
        assert_eq!(
            host.read("sys/devices/system/cpu/intel_pstate/no_turbo"),
            "0"
        );
        assert_eq!(host.read("sys/devices/system/cpu/smt/control"), "on");
        assert_eq!(host.read("sys/kernel/mm/ksm/run"), "0");
        assert_eq!(
            host.read("sys/kernel/mm/transparent_hugepage/enabled"),
            "madvise"
        );
    }

    #[test]
    fn a_value_already_in_force_is_neither_written_nor_journalled() {
        let host = FakeHost::intel_server();
        let mut journal = journal(&host);
        let wanted = settings(&[
            ("host.governor", text_level("powersave")),
            ("host.thp", text_level("madvise")),
            ("host.ksm", Level::Bool(false)),
        ]);
        apply(&wanted, &host.roots.sys, &mut journal).unwrap();
        assert!(journal.pending().is_empty());
        assert_eq!(
            host.read("sys/kernel/mm/transparent_hugepage/enabled"),
            "always [madvise] never\n"
        );
    }

    #[test]
    fn a_governor_that_is_not_offered_is_refused_with_those_that_are() {
        let host = FakeHost::intel_server();
        let mut journal = journal(&host);
        let wanted = settings(&[("host.governor", text_level("schedutil"))]);
        for error in [
            check(&wanted, &host.roots.sys).unwrap_err(),
            apply(&wanted, &host.roots.sys, &mut journal).unwrap_err(),
        ] {
            assert!(
                error.to_string().contains("performance, powersave"),
                "{error}"
            );
        }
        assert!(journal.pending().is_empty());
        assert_eq!(
            host.read("sys/devices/system/cpu/cpufreq/policy0/scaling_governor"),
            "powersave\n"
        );
    }

    #[test]
    fn a_write_that_does_not_stick_is_an_error_and_stays_in_the_journal() {
        let host = FakeHost::intel_server();
        // Accepts every write and keeps none, like a governor that the platform overrides.
        host.link(
            "sys/devices/system/cpu/intel_pstate/no_turbo",
            Path::new("/dev/null"),
        );
        let mut journal = journal(&host);
        let error = apply(
            &settings(&[("host.turbo", Level::Bool(false))]),
            &host.roots.sys,
            &mut journal,
        )
        .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("no_turbo was set to `1` but reads ``"),
            "{error}"
        );
        assert_eq!(journal.pending().len(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error_with_the_remedy() {
        let host = FakeHost::intel_server();
        host.link(
            "sys/devices/system/cpu/cpufreq/policy3/scaling_governor",
            Path::new("/proc/version"),
        );
        let mut journal = journal(&host);
        let error = apply(
            &settings(&[("host.governor", text_level("performance"))]),
            &host.roots.sys,
            &mut journal,
        )
        .unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("policy3/scaling_governor")
                && message.contains("host.governor = `performance`"),
            "{message}"
        );
        // The three earlier entries can be undone.
        assert_eq!(journal.pending().len(), 4);
        assert_eq!(
            host.read("sys/devices/system/cpu/cpufreq/policy2/scaling_governor"),
            "performance"
        );
    }

    #[test]
    fn a_cpu_that_vanishes_is_skipped_when_setting_and_when_restoring() {
        let host = FakeHost::intel_server();
        host.remove("sys/devices/system/cpu/cpufreq/policy5/scaling_governor");
        let mut journal = journal(&host);
        apply(
            &settings(&[("host.governor", text_level("performance"))]),
            &host.roots.sys,
            &mut journal,
        )
        .unwrap();
        assert_eq!(journal.pending().len(), 7);
        host.remove("sys/devices/system/cpu/cpufreq/policy7/scaling_governor");
        let undone = undo(&journal);
        assert_eq!(
            undone
                .iter()
                .filter(|restored| **restored == Restored::Gone)
                .count(),
            1
        );
        assert_eq!(
            undone
                .iter()
                .filter(|restored| **restored == Restored::Done)
                .count(),
            6
        );
    }

    #[test]
    fn restoring_what_cannot_be_restored_is_an_error_that_says_how_to_do_it_by_hand() {
        let host = FakeHost::empty();
        host.link("sys/setting", Path::new("/proc/version"));
        let error = restore(&host.path("sys/setting"), "powersave", None).unwrap_err();
        assert!(error.to_string().contains("echo powersave >"), "{error}");
        host.link("sys/setting", Path::new("/dev/null"));
        let error = restore(&host.path("sys/setting"), "powersave", None).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("was set to `powersave` but reads"),
            "{error}"
        );
    }

    #[test]
    fn settings_of_hardware_that_is_not_there_are_refused_by_name() {
        let host = FakeHost::cloud_vm();
        for (key, level) in [
            ("host.governor", text_level("performance")),
            ("host.turbo", Level::Bool(true)),
            ("host.smt", Level::Bool(true)),
        ] {
            let error = check(&settings(&[(key, level)]), &host.roots.sys).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
        // A processor with one thread a core satisfies `off`.
        check(
            &settings(&[("host.smt", Level::Bool(false))]),
            &host.roots.sys,
        )
        .unwrap();
    }

    /// Adds an idle state of a CPU, with its `disable` file.
    fn idle_state(host: &FakeHost, cpu: u32, number: usize, name: &str, disable: &str) {
        let state = format!("sys/devices/system/cpu/cpu{cpu}/cpuidle/state{number}");
        host.file(&format!("{state}/name"), &format!("{name}\n"));
        host.file(&format!("{state}/disable"), disable);
    }

    #[test]
    fn idle_states_deeper_than_the_named_one_are_off_until_undone() {
        let host = FakeHost::intel_server();
        for cpu in 0..8 {
            for (number, name) in ["POLL", "C1", "C1E", "C6"].into_iter().enumerate() {
                // The kernel itself disables C1 here.
                idle_state(
                    &host,
                    cpu,
                    number,
                    name,
                    if name == "C1" { "1\n" } else { "0\n" },
                );
            }
        }
        let off = |cpu: u32| -> String {
            let file = |state| {
                host.read(&format!(
                    "sys/devices/system/cpu/cpu{cpu}/cpuidle/state{state}/disable"
                ))
            };
            (0..4).map(|state| file(state).trim().to_owned()).collect()
        };
        for (deepest, expected) in [
            ("C1E", "0101"),
            ("2", "0101"),
            ("POLL", "0111"),
            ("3", "0100"),
        ] {
            let mut journal = journal(&host);
            let wanted = settings(&[("host.idle_max", text_level(deepest))]);
            check(&wanted, &host.roots.sys).unwrap();
            apply(&wanted, &host.roots.sys, &mut journal).unwrap();
            assert_eq!((off(0).as_str(), off(7).as_str()), (expected, expected));
            undo(&journal);
            assert_eq!((off(0).as_str(), off(7).as_str()), ("0100", "0100"));
            host.remove("state/journal.jsonl");
        }
    }

    #[test]
    fn an_idle_state_that_is_not_there_is_refused_with_those_that_are() {
        let host = FakeHost::intel_server();
        let wanted = settings(&[("host.idle_max", text_level("C3"))]);
        let error = check(&wanted, &host.roots.sys).unwrap_err().to_string();
        assert!(
            error.contains("cpuidle/state* (for host.idle_max) is missing"),
            "{error}"
        );
        idle_state(&host, 0, 0, "POLL", "0\n");
        idle_state(&host, 0, 1, "C1", "0\n");
        let error = check(&wanted, &host.roots.sys).unwrap_err().to_string();
        assert!(
            error.contains("`C3` is no state of") && error.contains("POLL (0), C1 (1)"),
            "{error}"
        );
    }

    #[test]
    fn amd_boost_is_set_where_amd_has_it() {
        let host = FakeHost::amd_desktop();
        let mut journal = journal(&host);
        apply(
            &settings(&[("host.turbo", Level::Bool(false))]),
            &host.roots.sys,
            &mut journal,
        )
        .unwrap();
        assert_eq!(host.read("sys/devices/system/cpu/cpufreq/boost"), "0");
    }

    #[test]
    fn ksm_is_unmerged_when_switched_off_after_it_merged() {
        let host = FakeHost::intel_server();
        host.file("sys/kernel/mm/ksm/run", "0\n");
        host.file("sys/kernel/mm/ksm/pages_sharing", "12\n");
        let mut journal = journal(&host);
        apply(
            &settings(&[("host.ksm", Level::Bool(false))]),
            &host.roots.sys,
            &mut journal,
        )
        .unwrap();
        assert_eq!(host.read("sys/kernel/mm/ksm/run"), "2");
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_refused() {
        let host = FakeHost::intel_server();
        let error = check(
            &settings(&[("host.governer", text_level("performance"))]),
            &host.roots.sys,
        )
        .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("there are: host.smt, host.governor"),
            "{error}"
        );
        assert!(
            check(
                &settings(&[("host.smt", text_level("off"))]),
                &host.roots.sys
            )
            .is_err()
        );
        assert!(
            check(
                &settings(&[("host.thp", Level::Bool(true))]),
                &host.roots.sys
            )
            .is_err()
        );
    }
}
