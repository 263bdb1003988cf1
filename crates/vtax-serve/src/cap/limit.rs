//! What limits a guest's own time: the quota of its control group, or the cap that Xen's scheduler has for a domain.

use super::quota::Quota;
use crate::snapshot::GuestUse;
use vtax_host::HostError;
use vtax_host::journal::{Journal, Recorded};
use vtax_host::xl::{self, Scheduler};
use vtax_observe::charge::Stage;
use vtax_observe::guests::Hierarchy;

/// A guest's limit.
#[derive(Debug)]
pub enum Limit {
    /// Of a container or a VM that processes of this host run.
    Group(Quota),
    /// Of a Xen domain.
    Domain(DomainCap),
}

impl Limit {
    /// That of a guest; in words why it has none.
    pub fn of(guest: &GuestUse, hierarchy: &Hierarchy) -> Result<Self, String> {
        match guest.domain {
            Some(domain) => DomainCap::of(domain)
                .map(Self::Domain)
                .map_err(|cause| cause.to_string()),
            None => Quota::of(guest, hierarchy).map(Self::Group),
        }
    }

    /// Whether it still is this guest's: a Xen domain that rebooted has another number.
    pub fn is_of(&self, guest: &GuestUse) -> bool {
        match self {
            Self::Group(_) => true,
            Self::Domain(cap) => guest.domain == Some(cap.domain),
        }
    }

    /// What it was when it was found, in processors; `None` without one.
    pub fn before(&self) -> Option<f64> {
        match self {
            Self::Group(quota) => quota.before(),
            Self::Domain(cap) => (cap.old > 0).then(|| f64::from(cap.old) / 100.0),
        }
    }

    /// The seconds that count for it since the last call; `None` when the guest is gone.
    pub fn accounted(&mut self, guest: &GuestUse) -> Option<f64> {
        match self {
            Self::Group(quota) => quota.accounted(),
            // The hypervisor's own count.
            Self::Domain(_) => Some(guest.used.stages.get(Stage::Vcpu).as_secs_f64()),
        }
    }

    /// Sets it, in processors; journalled before. A guest that went meanwhile needs none. A limit that another program
    /// changed meanwhile stays as that set it, in words.
    ///
    /// # Errors
    /// When it cannot be journalled, or the kernel or the hypervisor does not take it.
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

    /// The journal was undone: the limit is what it was, and the next one is journalled anew.
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
    /// When it was found, in percent of a processor; 0 is none.
    old: u32,
    /// Its entry in the journal, and what was set last.
    set: Option<(Recorded, u32)>,
}

impl DomainCap {
    fn of(domain: u32) -> Result<Self, HostError> {
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
        // From here on it may be set, whatever `xl` answers.
        self.set = Some((recorded, ours));
        self.scheduler.set_cap(self.domain, percent)?;
        self.set = Some((recorded, percent));
        Ok(None)
    }
}
