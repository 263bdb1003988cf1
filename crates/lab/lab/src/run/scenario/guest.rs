// SPDX-License-Identifier: Apache-2.0
//! A guest of a trial: its specification, and the booted guest with its client and service.

use crate::LabError;
use crate::place::actor::RemoteActor;
use std::collections::BTreeMap;
use std::time::Instant;
use tracing::{debug, warn};
use vtax_core::owner::Owner;
use vtax_guest::image::GuestFiles;
use vtax_guest::platform::{Platform, Target};
use vtax_host::cell::{Seat, Share, TARGET};
use vtax_host::journal::Journal;
use vtax_host::knobs::{HUGE_PAGES, pages};
use vtax_host::settings::Settings;
use vtax_host::untrusted::first_line;
use vtax_host::{HostError, Roots};
use vtax_load::workload::{LoadClient, ServeContext, Service, Workload};
use vtax_observe::Subject;

/// The place of an actor on this host.
pub(super) const LOCAL: &str = "local";

/// A guest as the plan specifies it.
#[derive(Clone, Copy)]
pub(super) struct GuestSpec<'a> {
    pub name: &'a str,
    pub platform: &'static dyn Platform,
    pub workload: &'static dyn Workload,
    pub settings: &'a Settings,
    /// Whether its load follows the target's profile.
    pub is_twin: bool,
}

/// Returns a client on another machine as a subject. Only its name is set, because no process of this host is the
/// client's.
fn remote_client() -> Subject {
    Subject {
        owner: Owner::Client,
        ..Subject::default()
    }
}

impl<'a> GuestSpec<'a> {
    pub fn is_target(&self) -> bool {
        self.name == TARGET
    }

    /// Boots the guest, with its client on this host, or on the host of `actor` when the seat is on that
    /// host's network.
    ///
    /// # Errors
    /// When the guest does not boot. The error of a neighbour contains its name.
    pub fn boot(
        self,
        seat: &Seat<'_>,
        files: &GuestFiles,
        actor: Option<(&RemoteActor, String)>,
        switch: Option<Subject>,
        journal: &mut Journal,
    ) -> Result<Guest<'a>, LabError> {
        let booted = self.boot_target(seat, files, journal);
        let mut target = booted.map_err(|cause| {
            if self.is_target() || cause.is_interrupt() {
                cause
            } else {
                LabError::other(format!(
                    "the neighbour {} does not boot: {cause}",
                    self.name
                ))
            }
        })?;
        let knobs = vtax_guest::knobs::set(target.as_mut(), self.settings)?;
        let (client, client_subject, client_place): (Box<dyn LoadClient>, _, _) = match actor {
            Some((actor, place)) if seat.outer_network().is_some() => {
                (Box::new(actor.clone()), remote_client(), place)
            }
            _ => {
                let client = seat.client();
                let subject = client.subject();
                (Box::new(client), subject, LOCAL.to_owned())
            }
        };
        Ok(Guest {
            spec: self,
            client,
            client_subject,
            client_place,
            client_environment: BTreeMap::new(),
            switch,
            target,
            knobs,
            service: Service::default(),
        })
    }

    fn boot_target(
        &self,
        seat: &Seat<'_>,
        files: &GuestFiles,
        journal: &mut Journal,
    ) -> Result<Box<dyn Target>, LabError> {
        let outlives = self.platform.outlives(seat, self.settings);
        if !outlives.is_empty() {
            journal.record_all(outlives)?;
        }
        if HUGE_PAGES.parameter.bool(self.settings) {
            let mib = self.platform.memory_mib(self.settings);
            pages::reserve(mib, &Roots::host(), journal)?;
        }
        let (name, kind) = (self.name, self.platform.kind());
        debug!("the guest {name} boots on {kind}");
        let began = Instant::now();
        let booted = self.platform.boot(seat, files, self.settings);
        match &booted {
            Ok(_) => debug!(
                "the guest {name} has booted after {:.1} s",
                began.elapsed().as_secs_f64()
            ),
            Err(HostError::Interrupted) => {}
            // The trial's own log has what its console said.
            Err(cause) => warn!(
                "the guest {name} does not boot on {kind}: {}",
                first_line(cause)
            ),
        }
        Ok(booted.map_err(|cause| Share::from_settings(self.settings).explain(cause))?)
    }
}

/// A booted guest.
pub(super) struct Guest<'a> {
    pub spec: GuestSpec<'a>,
    pub client: Box<dyn LoadClient>,
    pub client_subject: Subject,
    /// The client's place, as records name it.
    pub client_place: String,
    /// Facts about the client's place, when that is another host.
    pub client_environment: BTreeMap<String, String>,
    /// The cell's switch, if it has processes. Only the target holds it.
    pub switch: Option<Subject>,
    pub target: Box<dyn Target>,
    /// The readings of the knobs that were set in its kernel.
    pub knobs: BTreeMap<String, String>,
    pub service: Service,
}

impl Guest<'_> {
    /// Starts the guest's service.
    ///
    /// # Errors
    /// When the service does not come up.
    pub fn serve(&mut self) -> Result<(), LabError> {
        let GuestSpec {
            workload, settings, ..
        } = self.spec;
        let (target, client) = (self.target.as_mut(), self.client.as_ref());
        let context = &mut ServeContext {
            target,
            client,
            settings,
        };
        let served = workload.serve(context);
        self.service = served.map_err(|cause| self.blame(cause))?;
        Ok(())
    }

    /// Returns the subjects on this host: the guest, its client, and the switch.
    pub fn subjects(&self) -> impl Iterator<Item = Subject> {
        let client = (self.client_place == LOCAL).then(|| self.client_subject.clone());
        let all = [
            Some(self.target.about().subject.clone()),
            client,
            self.switch.clone(),
        ];
        all.into_iter().flatten().filter(Subject::is_here)
    }

    /// Returns an error with the name of a neighbour, and with the guest's cap of processors for a timeout.
    pub fn blame(&self, cause: HostError) -> LabError {
        match Share::from_settings(self.spec.settings).explain(cause) {
            cause if self.spec.is_target() => cause.into(),
            cause @ HostError::Interrupted => cause.into(),
            cause => LabError::other(format!("the neighbour {}: {cause}", self.spec.name)),
        }
    }
}
