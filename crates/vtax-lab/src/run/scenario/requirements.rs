//! What a host must have to run the treatments of a plan, checked before the first trial.

use super::programs::{self, Whose};
use super::remote::ClientHost;
use super::{Scenarios, charging};
use crate::LabError;
use crate::place::actor::RemoteActor;
use std::collections::BTreeSet;
use vtax_host::cell::LinkConfig;
use vtax_host::host_settings;
use vtax_observe::charge::MethodChoice;

impl Scenarios<'_> {
    /// Checks that this host can run every treatment.
    ///
    /// # Errors
    /// Everything that is missing, in one message.
    pub(super) fn check(&self, actor: Option<&RemoteActor>) -> Result<(), LabError> {
        let is_installed = |name: &str| self.roots.program(name).is_some();
        let mut missing =
            programs::missing_on_host(self.planned, self.catalogue, Whose::Here, &is_installed);
        if let (Some(actor), Some(host)) = (actor, &self.client_host) {
            missing.extend(self.missing_on_client_host(actor, host)?);
        }
        missing.extend(self.missing_for_guests()?);
        let traced = self
            .planned
            .iter()
            .find(|planned| charging::chosen(&planned.settings) == Some(MethodChoice::Traced));
        if let Some(planned) = traced
            && let Some(cause) = charging::why_not_traced()
        {
            missing.insert(format!("{}: {cause}", planned.record.label));
        }
        if missing.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = missing.into_iter().collect();
        Err(LabError::Plan(format!(
            "this host cannot run the plan:\n  {}\n`vtax doctor` shows what it can",
            list.join("\n  ")
        )))
    }

    /// What guests and host settings of the treatments lack.
    fn missing_for_guests(&self) -> Result<BTreeSet<String>, LabError> {
        let mut missing = BTreeSet::new();
        let free = self
            .roots
            .proc_text("meminfo")
            .and_then(|text| vtax_host::facts::kib_of(&text, "MemAvailable").map(|kib| kib / 1024));
        for planned in self.planned {
            let specs = self.specs(planned)?;
            for spec in &specs {
                let who = match spec.is_target() {
                    true => planned.record.platform.clone(),
                    false => format!("{} on {}", spec.name, spec.platform.kind()),
                };
                let checked = spec.platform.check(spec.settings);
                let lacking = checked.and_then(|()| {
                    programs::missing_in_external(spec.platform, spec.workload, spec.settings)
                });
                match lacking {
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
            if let Some(free) = free.filter(|free| wanted > *free) {
                missing.insert(format!(
                    "{}: its guests want {wanted} MiB of memory, and {free} MiB are available: give them less (vm.memory_mib), or take fewer neighbours",
                    planned.record.label
                ));
            }
            if let Err(cause) = host_settings::check(&planned.settings, &self.roots.sys) {
                missing.insert(cause.to_string());
            }
        }
        Ok(missing)
    }

    /// What the client's host, and the network between, lack.
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
