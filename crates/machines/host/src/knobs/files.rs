// SPDX-License-Identifier: Apache-2.0
//! The files of the host's kernel that a host setting writes, with their values.

use super::assignment::Assignment;
use crate::facts::{cpu_directories, frequency_policies};
use crate::roots::{names, numbered, text};
use crate::settings::Level;
use crate::{HostError, Roots};
use std::path::{Path, PathBuf};

/// The assignments of a setting, by its key and level.
pub type Files = fn(&str, &Level, &Roots) -> Result<Vec<Assignment>, HostError>;

fn word<'a>(key: &str, level: &'a Level) -> Result<&'a str, HostError> {
    match level {
        Level::Text(value) => Ok(value),
        _ => Err(HostError::Setting(format!(
            "{key} takes text, such as \"performance\""
        ))),
    }
}

fn switch(key: &str, level: &Level) -> Result<bool, HostError> {
    match level {
        Level::Bool(value) => Ok(*value),
        _ => Err(HostError::Setting(format!("{key} takes true or false"))),
    }
}

/// The longest time that KVM polls for a wake-up before a virtual processor that halts sleeps. The parameter applies to VMs
/// that are made after it was set.
pub fn halt_poll(key: &str, level: &Level, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let path = roots.sys.join("module/kvm/parameters/halt_poll_ns");
    if !path.exists() {
        return Err(absent(
            key,
            &path,
            "this kernel has no KVM, or its module `kvm` is not loaded",
        ));
    }
    Ok(vec![Assignment::new(key, path, level.to_string())])
}

pub fn governor(key: &str, level: &Level, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let value = word(key, level)?;
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

pub fn turbo(key: &str, level: &Level, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let on = switch(key, level)?;
    let cpu = roots.sys.join("devices/system/cpu");
    let intel = cpu.join("intel_pstate/no_turbo");
    if intel.exists() {
        return Ok(vec![Assignment::new(key, intel, u8::from(!on).to_string())]);
    }
    let boost = cpu.join("cpufreq/boost");
    if boost.exists() {
        return Ok(vec![Assignment::new(key, boost, u8::from(on).to_string())]);
    }
    let why = "the frequency driver of this host has no switch for it";
    Err(absent(key, &boost, why))
}

pub fn smt(key: &str, level: &Level, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let on = switch(key, level)?;
    let path = roots.sys.join("devices/system/cpu/smt/control");
    let now = needed(key, &path, "this kernel cannot switch SMT")?;
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

pub fn ksm(key: &str, level: &Level, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let on = switch(key, level)?;
    let path = roots.sys.join("kernel/mm/ksm/run");
    let now = needed(key, &path, "this kernel has no KSM")?;
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

pub fn hugepages(key: &str, level: &Level, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let value = word(key, level)?;
    let path = roots.sys.join("kernel/mm/transparent_hugepage/enabled");
    let now = needed(key, &path, "this kernel has no transparent hugepages")?;
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
pub fn idle(key: &str, level: &Level, roots: &Roots) -> Result<Vec<Assignment>, HostError> {
    let deepest = word(key, level)?;
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

/// The content of a file that a setting needs.
fn needed(key: &str, path: &Path, why: &str) -> Result<String, HostError> {
    text(path).ok_or_else(|| absent(key, path, why))
}

fn absent(key: &str, path: &Path, why: &str) -> HostError {
    HostError::Missing {
        what: format!("{} (for {key})", path.display()),
        remedy: format!("{why}; leave {key} out of the plan"),
    }
}
