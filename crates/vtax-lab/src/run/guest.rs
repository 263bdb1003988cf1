//! A guest of a trial, with its client and its service.

use crate::LabError;
use std::collections::BTreeMap;
use vtax_guest::platform::Target;
use vtax_host::HostError;
use vtax_host::cell::{Share, TARGET};
use vtax_host::settings::Settings;
use vtax_load::workload::{LoadClient, Service, Workload};
use vtax_observe::Subject;

/// A guest that is up.
pub(super) struct Guest<'a> {
    pub name: &'a str,
    pub platform: &'static str,
    pub workload: &'static dyn Workload,
    pub settings: &'a Settings,
    pub is_twin: bool,
    pub client: Box<dyn LoadClient>,
    pub client_subject: Subject,
    /// Where the client lives, as records name it.
    pub client_place: String,
    /// Facts about that place, where it is not this host.
    pub client_environment: BTreeMap<String, String>,
    /// The cell's switch, with the target, where it has processes.
    pub switch: Option<Subject>,
    pub target: Box<dyn Target>,
    pub service: Service,
}

impl Guest<'_> {
    /// Starts its service.
    pub fn serve(&mut self) -> Result<(), LabError> {
        let served = self
            .workload
            .serve(self.target.as_mut(), self.client.as_ref(), self.settings);
        self.service = served.map_err(|cause| self.blame(cause))?;
        Ok(())
    }

    /// An error that names the guest, where that is not the target, and its cap, where it was only late.
    pub fn blame(&self, cause: HostError) -> LabError {
        match Share::from_settings(self.settings).explain(cause) {
            cause if self.name == TARGET => cause.into(),
            cause @ HostError::Interrupted => cause.into(),
            cause => LabError::other(format!("the neighbour {}: {cause}", self.name)),
        }
    }
}
