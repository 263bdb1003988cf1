// SPDX-License-Identifier: Apache-2.0
//! The limit of a guest's own time: the quota of its control group, or the cap of Xen's scheduler for its domain.

use super::error::LimitError;
use super::quota::Quota;
use vtax_charge::ChargedGuest;
use vtax_charge::Stage;
use vtax_host::HostError;
use vtax_host::journal::{Journal, Recorded};
use vtax_host::xl::{self, Scheduler};
use vtax_inventory::Hierarchy;

/// A guest's limit.
#[derive(Debug)]
pub enum Limit {
    /// The quota of a container, or of a VM whose monitor is a process of this host.
    Group(Quota),
    /// The cap of a Xen domain.
    Domain(DomainCap),
}

impl Limit {
    /// The limit of a guest.
    ///
    /// # Errors
    /// When it has none.
    pub fn from_guest(guest: &ChargedGuest, hierarchy: &Hierarchy) -> Result<Self, LimitError> {
        match guest.domain {
            Some(domain) => Ok(Self::Domain(DomainCap::from_domain(domain)?)),
            None => Quota::from_guest(guest, hierarchy).map(Self::Group),
        }
    }

    /// Returns whether the limit is still this guest's: a Xen domain gets another number when it reboots.
    pub fn is_of(&self, guest: &ChargedGuest) -> bool {
        match self {
            Self::Group(_) => true,
            Self::Domain(cap) => guest.domain == Some(cap.domain),
        }
    }

    /// The first value, in processors; `None` without one.
    pub fn before(&self) -> Option<f64> {
        match self {
            Self::Group(quota) => quota.before(),
            Self::Domain(cap) => (cap.old > 0).then(|| f64::from(cap.old) / 100.0),
        }
    }

    /// The guest's own CPU time since the last call, in seconds; `None` when the guest is gone.
    pub fn accounted(&mut self, guest: &ChargedGuest) -> Option<f64> {
        match self {
            Self::Group(quota) => quota.accounted(),
            // The hypervisor counts it.
            Self::Domain(_) => Some(guest.used.stages.get(Stage::Vcpu).as_secs_f64()),
        }
    }

    /// Sets the limit, in processors, after a journal entry. A guest that has ended is not an error. A value that
    /// another program has set stays, and is returned in words.
    ///
    /// # Errors
    /// When it cannot be journalled, or the kernel or the hypervisor refuses it.
    pub fn set(
        &mut self,
        processors: f64,
        journal: &mut Journal,
    ) -> Result<Option<String>, HostError> {
        match self {
            Self::Group(quota) => quota.set(processors, journal),
            Self::Domain(cap) => cap.set(processors, journal),
        }
    }

    /// After the journal was undone: the guest has its first limit again.
    pub fn forget(&mut self) {
        match self {
            Self::Group(quota) => quota.forget(),
            Self::Domain(cap) => cap.set = None,
        }
    }
}

/// A domain's cap.
#[derive(Debug)]
pub struct DomainCap {
    scheduler: Scheduler,
    domain: u32,
    /// The first value, in percent of a processor; 0 is none.
    old: u32,
    /// Its entry in the journal, and the last value that was set.
    set: Option<(Recorded, u32)>,
}

impl DomainCap {
    fn from_domain(domain: u32) -> Result<Self, HostError> {
        let scheduler = Scheduler::find()?;
        Ok(Self {
            scheduler,
            domain,
            old: scheduler.cap(domain)?,
            set: None,
        })
    }

    fn set(&mut self, processors: f64, journal: &mut Journal) -> Result<Option<String>, HostError> {
        let percent = xl::percent(processors);
        if self.set.is_some_and(|(_, last)| last == percent) {
            return Ok(None);
        }
        let replaced = self.replace(percent, journal);
        match replaced {
            Err(_) if !xl::is_there(self.domain)? => Ok(None),
            other => other,
        }
    }

    fn replace(
        &mut self,
        percent: u32,
        journal: &mut Journal,
    ) -> Result<Option<String>, HostError> {
        let ours = self.set.map_or(self.old, |(_, last)| last);
        let now = self.scheduler.cap(self.domain)?;
        if now != ours {
            return Ok(Some(xl::set_by_others(now)));
        }
        let recorded = match self.set {
            Some((recorded, _)) => {
                journal.rewrite(recorded, &percent.to_string())?;
                recorded
            }
            None => journal.record_cap(self.domain, self.old, percent)?,
        };
        // `xl` may set the cap even if it fails.
        self.set = Some((recorded, ours));
        self.scheduler.set_cap(self.domain, percent)?;
        self.set = Some((recorded, percent));
        Ok(None)
    }
}
