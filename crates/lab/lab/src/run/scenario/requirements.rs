// SPDX-License-Identifier: Apache-2.0
//! The check that a host can run the treatments of a plan, before the first trial.

use super::guest::GuestSpec;
use super::programs::{self, Whose};
use super::remote::ClientHost;
use super::{Scenarios, charging, images};
use crate::LabError;
use crate::place::actor::RemoteActor;
use std::collections::BTreeSet;
use vtax_charge::MethodChoice;
use vtax_core::Bytes;
use vtax_host::HostError;
use vtax_host::cell::LinkConfig;
use vtax_host::knobs;
use vtax_kernel::MemInfo;

/// Returns what a guest lacks, or why it cannot be checked.
pub(super) type GuestCheck<'a> =
    dyn FnMut(&GuestSpec<'_>) -> Result<Vec<HostError>, HostError> + 'a;

/// Checks a guest as before a run: this host for its platform, and an external guest for its programs.
pub(super) fn lacks(spec: &GuestSpec<'_>) -> Result<Vec<HostError>, HostError> {
    spec.platform.check(spec.settings)?;
    let is_external = spec.platform.is_external(spec.settings);
    vtax_guest::knobs::check(spec.settings, is_external)?;
    programs::missing_in_external(spec.platform, spec.workload, spec.settings)
}

impl Scenarios<'_> {
    /// Checks that this host can run every treatment.
    ///
    /// # Errors
    /// All missing requirements, in one message.
    pub(super) fn check(&self, actor: Option<&RemoteActor>) -> Result<(), LabError> {
        let missing = self.missing(actor, &mut |spec| lacks(spec))?;
        if missing.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = missing.into_iter().collect();
        Err(LabError::CannotHere(format!(
            "this host cannot run the plan:\n  {}\n`vtax doctor` shows what it can",
            list.join("\n  ")
        )))
    }

    /// Returns all missing requirements. `check` returns what one guest lacks.
    ///
    /// # Errors
    /// When the plan names what does not exist, or the client's machine does not answer.
    pub(super) fn missing(
        &self,
        actor: Option<&RemoteActor>,
        check: &mut GuestCheck<'_>,
    ) -> Result<BTreeSet<String>, LabError> {
        let is_installed = |name: &str| self.roots.program(name).is_some();
        let mut missing =
            programs::missing_on_host(self.planned, self.catalogue, Whose::Here, &is_installed);
        if let (Some(actor), Some(host)) = (actor, &self.client_host) {
            missing.extend(self.missing_on_client_host(actor, host)?);
        }
        missing.extend(self.missing_commands()?);
        missing.extend(self.missing_images()?);
        missing.extend(self.missing_for_guests(check)?);
        let traced = self
            .planned
            .iter()
            .find(|planned| charging::chosen(&planned.settings) == Some(MethodChoice::Traced));
        if let Some(planned) = traced
            && let Some(cause) = charging::why_not_traced()
        {
            missing.insert(format!("{}: {cause}", planned.record.label));
        }
        Ok(missing)
    }

    /// Returns the programs of commands that clients on this host lack.
    fn missing_commands(&self) -> Result<BTreeSet<String>, LabError> {
        let mut missing = BTreeSet::new();
        for planned in self.planned.iter().filter(|one| !one.client_is_remote) {
            for spec in self.specs(planned)? {
                let program = spec.workload.client_program(spec.settings);
                let program = program.filter(|name| self.roots.program(name).is_none());
                missing.extend(program.map(|name| {
                    let workload = &planned.record.workload;
                    format!("{workload}: the program `{name}` is missing on this host, where clients run: install it")
                }));
            }
        }
        Ok(missing)
    }

    /// Returns why images and files of the plan cannot be used.
    fn missing_images(&self) -> Result<BTreeSet<String>, LabError> {
        let mut missing = BTreeSet::new();
        let mut checked = BTreeSet::new();
        for planned in self.planned {
            for spec in self.specs(planned)? {
                if spec.platform.is_external(spec.settings) {
                    continue;
                }
                let key = match images::key(spec.platform, spec.workload, spec.settings) {
                    Ok(key) => key,
                    Err(cause) => {
                        missing.insert(format!("{}: {cause}", planned.record.platform));
                        continue;
                    }
                };
                if let Some(key) = key
                    && !checked.contains(&key)
                {
                    if let Err(cause) = self.images.check(&key) {
                        missing.insert(format!("{}: {cause}", planned.record.workload));
                    }
                    checked.insert(key);
                }
            }
        }
        Ok(missing)
    }

    /// Returns the missing requirements of the treatments' guests and host settings.
    fn missing_for_guests(&self, check: &mut GuestCheck<'_>) -> Result<BTreeSet<String>, LabError> {
        let mut missing = BTreeSet::new();
        let memory = MemInfo::read(&self.roots.proc).unwrap_or_default();
        for planned in self.planned {
            let specs = self.specs(planned)?;
            for spec in &specs {
                let who = if spec.is_target() {
                    planned.record.platform.clone()
                } else {
                    format!("{} on {}", spec.name, spec.platform.kind())
                };
                match check(spec) {
                    Ok(lacking) => {
                        missing.extend(lacking.into_iter().map(|what| format!("{who}: {what}")))
                    }
                    Err(cause) => {
                        missing.insert(format!("{who}: {cause}"));
                    }
                }
            }
            let wanted: u64 = specs
                .iter()
                .map(|spec| spec.platform.memory_mib(spec.settings))
                .sum();
            let lacking = lacking_memory(wanted, memory.available);
            missing.extend(lacking.map(|what| format!("{}: {what}", planned.record.label)));
            if let Err(cause) = knobs::host::check(&planned.settings, &self.roots.sys) {
                missing.insert(cause.to_string());
            }
        }
        Ok(missing)
    }

    /// Returns the missing requirements of the client's host and of the network to it.
    fn missing_on_client_host(
        &self,
        actor: &RemoteActor,
        host: &ClientHost,
    ) -> Result<BTreeSet<String>, LabError> {
        let (planned, catalogue) = (self.planned, self.catalogue);
        let programs = programs::client_programs(planned, catalogue, Whose::Remote);
        let programs: Vec<&str> = programs.iter().map(|(_, program)| program.name).collect();
        let lacks = actor.lacks(&programs)?;
        let is_installed = |name: &str| !lacks.iter().any(|lacking| lacking == name);
        let missing = programs::missing_on_host(planned, catalogue, Whose::Remote, &is_installed);
        let place = host.place();
        let missing = missing.into_iter().map(|what| format!("{place}: {what}"));
        let mut missing: BTreeSet<String> = missing.collect();
        for planned in planned.iter().filter(|planned| planned.client_is_remote) {
            let link = LinkConfig::from_settings(&planned.settings)?;
            if let Err(cause) = host.client.network.check(&link) {
                missing.insert(cause.to_string());
            }
        }
        Ok(missing)
    }
}

/// Returns a message when guests want more MiB of memory than is free.
fn lacking_memory(wanted_mib: u64, free: Option<Bytes>) -> Option<String> {
    let free_mib = free?.0 >> 20;
    (wanted_mib > free_mib).then(|| {
        format!(
            "its guests want {wanted_mib} MiB of memory, and {free_mib} MiB are available: give them less (vm.memory_mib), or take fewer neighbours"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_that_want_more_memory_than_is_free_are_refused() {
        let free = Some(Bytes(1 << 30));
        let lacking = lacking_memory(1025, free).unwrap();
        assert!(lacking.contains("1024 MiB are available"), "{lacking}");
        assert_eq!(lacking_memory(1024, free), None);
        assert_eq!(lacking_memory(1 << 30, None), None);
    }
}
